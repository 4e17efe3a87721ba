"""The two writers that Spark calls, over the drain of any queue. Both take Arrow batches."""

import itertools
import uuid
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamWriter, WriterCommitMessage
from pyspark.sql.types import BinaryType, StringType, StructType

from tailrace.spark.options import Options
from tailrace.spark.queues import Attempt, Drain, Stamp, Written

try:
    from pyspark.sql.datasource import DataSourceStreamArrowWriter
except ImportError:  # Spark 4.0 gives rows to a stream's writer.
    DataSourceStreamArrowWriter = DataSourceStreamWriter  # type: ignore[misc,assignment]

#: Rows that are made into one array.
GULP = 10_000

__all__ = ["BatchWriter", "StreamWriter", "check_schema"]


def check_schema(options: Options, schema: StructType, overwrite: bool) -> None:
    """Refuse what cannot be written, before any task runs."""
    if overwrite:
        raise ValueError(f"{options.url!r} can only be appended to: .mode('append')")
    column = next((column for column in schema if column.name == "value"), None)
    if column is None:
        raise ValueError(
            f"writing to {options.url!r} needs a column 'value' of type binary or string, there are only "
            f"{', '.join(repr(name) for name in schema.names) or 'none'}"
        )
    if not isinstance(column.dataType, (BinaryType, StringType)):
        raise ValueError(
            f"the column 'value' to be written to {options.url!r} must be binary or string, "
            f"not {column.dataType.simpleString()}: cast it, or make it one with to_json(struct(...))"
        )


class BatchWriter(DataSourceArrowWriter):
    """Appends a DataFrame."""

    def __init__(self, drain: Drain) -> None:
        self.drain = drain
        self.job = uuid.uuid4().hex

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Write one task's messages."""
        task = _task()
        return self.drain.write(_messages(iterator), Attempt(self.job, task.partitionId(), task.taskAttemptId()))

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """All tasks have written."""
        self.drain.commit(_written(messages), None)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Some task has failed for good."""
        # Where all have failed nobody says which job it was.
        self.drain.abort(_written(messages) or [Written(0, Attempt(self.job, 0, 0))], None)


class StreamWriter(DataSourceStreamArrowWriter):
    """Appends micro-batches."""

    def __init__(self, drain: Drain) -> None:
        self.drain = drain

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Write one task's messages."""
        task = _task()
        stamp = Stamp(
            task.getLocalProperty("sql.streaming.queryId") or "",
            int(task.getLocalProperty("streaming.sql.batchId") or -1),
            task.getLocalProperty("spark.jobGroup.id") or "",
        )
        if not stamp.query or stamp.batch < 0 or not stamp.run:
            raise RuntimeError("Spark does not tell which query and micro-batch this task belongs to")
        job = f"{stamp.query}-{stamp.batch}"
        return self.drain.write(_messages(iterator), Attempt(job, task.partitionId(), task.taskAttemptId(), stamp))

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """All tasks of a micro-batch have written; after a crash Spark says so again."""
        written = _written(messages)
        if written:
            self.drain.commit(written, written[0].attempt.stamp)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Some task of a micro-batch has failed for good."""
        written = _written(messages)
        if written:
            self.drain.abort(written, written[0].attempt.stamp)


def _task() -> TaskContext:
    context = TaskContext.get()
    assert context is not None, "write() runs in a task"
    return context


def _written(messages: list[WriterCommitMessage | None]) -> list[Written]:
    return [message for message in messages if isinstance(message, Written)]


def _messages(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.BinaryArray]:
    """Take the column ``value`` out of what Spark gives, as plain binary without nulls."""
    for values in _columns(batches):
        if values.null_count:
            raise ValueError("the column 'value' holds a null, which is no message: filter with value IS NOT NULL")
        if len(values):
            yield values if values.type == pa.binary() else pc.cast(values, pa.binary())


def _columns(batches: Iterator[Any]) -> Iterator[pa.Array]:
    first = next(batches, None)
    if first is None:
        return
    everything = itertools.chain((first,), batches)
    if isinstance(first, pa.RecordBatch):
        yield from (batch.column("value") for batch in everything)
        return
    # Spark 4.0 gives rows to a stream's writer, one by one.
    while rows := list(itertools.islice(everything, GULP)):
        yield pa.array([row["value"] for row in rows])
