"""Rows that lie ready in Spark's workers, and a sink that drops them there: what the way to Python and back costs."""

import functools
import os
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    InputPartition,
    WriterCommitMessage,
)

TASKS = 2
#: In larger batches it took longer.
BATCH_BYTES = 1 << 20


def some_messages(size: int) -> list[bytes]:
    """Messages of which no two are the same: a dictionary of few values is not what a queue carries."""
    count = max(1_000, min(50_000, (8 << 20) // size))
    noise = os.urandom(count * size)
    return [noise[at : at + size] for at in range(0, len(noise), size)]


@functools.cache
def made(size: int) -> tuple[list[bytes], pa.RecordBatch]:
    """Give messages of a size, and the same as a batch: made once in the life of a worker."""
    messages = some_messages(size)
    schema = pa.schema([pa.field("value", pa.binary(), nullable=True)])
    return messages, pa.RecordBatch.from_arrays([pa.array(messages, pa.binary())], schema=schema)


class Memory(DataSource):
    """Rows from the worker's memory, as Arrow batches or as tuples; or to nowhere."""

    @classmethod
    def name(cls) -> str:
        """The name in ``format(...)``."""
        return "memory"

    def schema(self) -> str:
        """One column."""
        return "value binary"

    def reader(self, schema: Any) -> DataSourceReader:
        """Read."""
        return MemoryReader(int(self.options["rows"]), int(self.options["size"]), self.options["form"])

    def writer(self, schema: Any, overwrite: bool) -> DataSourceArrowWriter:
        """Write."""
        return NowhereWriter()


class MemoryReader(DataSourceReader):
    """Half of the rows for each of two tasks."""

    def __init__(self, rows: int, size: int, form: str) -> None:
        self.rows, self.size, self.form = rows, size, form

    def partitions(self) -> list[InputPartition]:
        """Two tasks."""
        return [InputPartition(task) for task in range(TASKS)]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """Yield what is there already."""
        left = self.rows // TASKS
        messages, batch = made(self.size)
        while left > 0:
            if self.form == "tuples":
                yield from ((message,) for message in messages[:left])
            else:
                step = max(1, BATCH_BYTES // self.size)
                for start in range(0, min(left, len(batch)), step):
                    yield batch.slice(start, min(step, left - start))
            left -= len(messages)


class NowhereWriter(DataSourceArrowWriter):
    """Takes every batch and keeps none."""

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Let Spark bring all of them."""
        for _ in iterator:
            pass
        return WriterCommitMessage()
