"""The columns that Spark sees, and the Arrow batches that carry them.

They follow Spark's own Kafka source. A schema given by the user picks some of them: ``.schema("value binary")`` spares
Spark the transport of all others, since Spark does not tell a Python source which columns a query uses.
"""

from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
from pyspark.sql.types import (
    BinaryType,
    BooleanType,
    DataType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

__all__ = ["Columns", "offered"]

Places: TypeAlias = np.ndarray[Any, np.dtype[np.int64]] | pa.Array

COMMON: dict[str, DataType] = {
    "value": BinaryType(),
    "partition": IntegerType(),
    "offset": LongType(),
    "timestamp": TimestampType(),
    "queue": StringType(),
}

ARROW = {
    "value": pa.binary(),
    "partition": pa.int32(),
    "offset": pa.int64(),
    "timestamp": pa.timestamp("us", tz="UTC"),
    "queue": pa.string(),
    "committed": pa.bool_(),
}


def offered(scheme: str) -> StructType:
    """Give the columns of a kind of queue; only aq can tell a committed item from an abandoned one."""
    types = COMMON | ({"committed": BooleanType()} if scheme == "aq" else {})
    return StructType([StructField(name, kind) for name, kind in types.items()])


class Columns:
    """The columns that a read was asked for."""

    def __init__(self, scheme: str, schema: StructType) -> None:
        types = {column.name: column.dataType for column in offered(scheme)}
        for column in schema:
            if column.name not in types:
                raise ValueError(f"a {scheme} queue has no column {column.name!r}, only {', '.join(types)}")
            if column.dataType != types[column.name]:
                raise ValueError(
                    f"column {column.name!r} of a {scheme} queue is {types[column.name].simpleString()}, "
                    f"not {column.dataType.simpleString()}"
                )
        self.names = [column.name for column in schema]

    def batch(
        self,
        values: pa.BinaryArray,
        *,
        partition: int,
        offsets: Places | Callable[[], Places],
        queue: str,
        committed: pa.BooleanArray | None = None,
    ) -> pa.RecordBatch:
        """Put drained messages into a batch of exactly the types that Spark demands.

        ``offsets`` may be a function, which is called only where the column was asked for.
        """
        rows = len(values)
        makers: dict[str, Callable[[], pa.Array]] = {
            "value": lambda: values,
            "partition": lambda: pa.array(np.full(rows, partition, dtype=np.int32)),
            "offset": lambda: pa.array(offsets() if callable(offsets) else offsets, type=pa.int64()),
            "timestamp": lambda: pa.nulls(rows, ARROW["timestamp"]),
            "queue": lambda: pa.repeat(pa.scalar(queue, pa.string()), rows),
            "committed": lambda: committed,
        }
        arrays = [makers[name]() for name in self.names]
        fields = [pa.field(name, ARROW[name], nullable=True) for name in self.names]
        if not arrays:
            # df.count() on a schema without columns does not exist in Spark; the number of rows would be lost here.
            raise ValueError("at least one column must be read")
        return pa.RecordBatch.from_arrays(arrays, schema=pa.schema(fields))
