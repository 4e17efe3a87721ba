"""``format("tailrace")``: the class that Spark knows. It only picks the right reader or writer."""

from collections.abc import Mapping
from functools import cached_property

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)
from pyspark.sql.types import StructType

from tailrace.spark.columns import Columns, offered
from tailrace.spark.options import Options
from tailrace.spark.queues import drain_for, feed_for
from tailrace.spark.reading import BatchReader, StreamReader
from tailrace.spark.writing import BatchWriter, StreamWriter, check_schema

__all__ = ["TailraceSource"]


class TailraceSource(DataSource):
    """Any of the five queues as a table, a stream or a sink.

    >>> spark.read.format("tailrace").option("url", "ring:/dev/shm/latest").load()  # doctest: +SKIP
    DataFrame[value: binary, partition: int, offset: bigint, timestamp: timestamp, queue: string]
    """

    @classmethod
    def name(cls) -> str:
        """The name in ``format(...)``."""
        return "tailrace"

    @cached_property
    def parsed(self) -> Options:
        """The options, checked."""
        given: Mapping[str, str] = self.options
        return Options.parse(given)

    def schema(self) -> StructType:
        """The columns of this kind of queue."""
        return offered(self.parsed.scheme)

    def reader(self, schema: StructType) -> DataSourceReader:
        """Read what is there now, without taking it."""
        return BatchReader(feed_for(self.parsed), Columns(self.parsed.scheme, schema))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        """Read on and on, and let go of what the query has finished."""
        return StreamReader(feed_for(self.parsed), Columns(self.parsed.scheme, schema))

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """Append the column ``value``."""
        check_schema(self.parsed, schema, overwrite)
        return BatchWriter(drain_for(self.parsed))

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802
        """Append the column ``value`` of every micro-batch."""
        check_schema(self.parsed, schema, overwrite)
        return StreamWriter(drain_for(self.parsed))
