"""The two readers that Spark calls, over the feed of any queue. Works from Spark 4.0 on."""

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition

from tailrace.spark.columns import Columns
from tailrace.spark.queues import Feed, Limits, Offset, Part

try:
    from pyspark.sql.streaming.datasource import (
        ReadAllAvailable,
        ReadMaxBytes,
        ReadMaxRows,
        SupportsTriggerAvailableNow,
    )

    ADMITS = True
except ModuleNotFoundError:  # Spark 4.0 and 4.1: no limits; AvailableNow takes one micro-batch.
    ADMITS = False

    class SupportsTriggerAvailableNow:  # type: ignore[no-redef]
        """Stands in for the class of Spark 4.2."""


__all__ = ["BatchReader", "StreamReader"]


class BatchReader(DataSourceReader):
    """A snapshot: what was there when the query was planned, as often as Spark asks for it."""

    def __init__(self, feed: Feed, columns: Columns) -> None:
        self.feed = feed
        self.columns = columns

    def partitions(self) -> list[InputPartition]:
        """Cut the snapshot into tasks."""
        return list(self.feed.snapshot())

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Copy one task's messages."""
        # For no partitions at all Spark makes up one with nothing in it.
        if isinstance(partition, Part):
            yield from self.feed.read(partition, self.columns)


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """A stream. Its offsets are the feed's; what Spark asks late, twice or never is the feed's to bear."""

    def __init__(self, feed: Feed, columns: Columns) -> None:
        self.feed = feed
        self.columns = columns
        self.last_stop: Offset | None = None
        options = feed.options
        self.limits = Limits(options.max_rows_per_trigger, options.max_bytes_per_trigger)
        if self.limits != Limits() and not ADMITS:
            raise ValueError("maxRowsPerTrigger and maxBytesPerTrigger need Spark 4.2 or later")

    def initialOffset(self) -> Offset:  # noqa: N802
        """Where a new checkpoint begins."""
        return self.feed.initial()

    def latestOffset(self, start: Offset | None = None, limit: Any = None) -> Offset:  # noqa: N802
        """Where the next micro-batch ends. Spark 4.0 and 4.1 give no arguments."""
        horizon = self.feed.horizon() if self.last_stop is None else self.last_stop
        return self.feed.advance(start, horizon, self._within(limit))

    def _within(self, limit: Any) -> Limits:
        # Spark knows one limit at a time, so the other of the two options is ours to keep. ReadAllAvailable
        # (Trigger.Once) means all, whatever the options say.
        if not ADMITS or isinstance(limit, ReadAllAvailable):
            return Limits() if limit is not None and self.limits != Limits() else self.limits
        rows, size = self.limits.rows, self.limits.bytes
        if isinstance(limit, ReadMaxRows):
            rows = limit.max_rows
        elif isinstance(limit, ReadMaxBytes):
            size = limit.max_bytes
        return Limits(rows, size)

    def getDefaultReadLimit(self) -> Any:  # noqa: N802
        """The limit that the options ask for."""
        if self.limits.rows is not None:
            return ReadMaxRows(self.limits.rows)
        if self.limits.bytes is not None:
            return ReadMaxBytes(self.limits.bytes)
        return ReadAllAvailable()

    def reportLatestOffset(self) -> Offset | None:  # noqa: N802
        """How far one could read now: Spark shows it in the progress as the latest offset."""
        return self.feed.horizon()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Do not run after producers that go on."""
        self.last_stop = self.feed.freeze()

    def partitions(self, start: Offset, end: Offset) -> list[InputPartition]:
        """Cut a micro-batch into tasks."""
        return list(self.feed.plan(start, end))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Copy one task's messages."""
        assert isinstance(partition, Part)
        yield from self.feed.read(partition, self.columns)

    def stop(self) -> None:
        """The query is over; Spark does not always get to say so."""
        self.feed.close()

    def commit(self, end: Offset) -> None:
        """The query has finished everything before ``end``."""
        self.feed.commit(end)
