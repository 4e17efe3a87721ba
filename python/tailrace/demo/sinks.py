"""The end of the demo's pipeline: the durable queue into Parquet, by Spark or, where there is none, by Arrow."""

from pathlib import Path
from typing import Any

from tailrace.demo.data import RESULT
from tailrace.demo.stages import Places

__all__ = ["drain"]

#: Rows of one micro-batch: several of them show how the stream goes on.
BATCH_ROWS = 100_000


def drain(places: Places, sink: str, parquet: str) -> None:
    """Drain the durable queue into Parquet files until the spooler is done and nothing is left."""
    if sink == "spark":
        _with_spark(places, parquet)
    else:
        _with_arrow(places, Path(parquet))
    places.progress("sink")["done"] = 1


def _with_spark(places: Places, parquet: str) -> None:
    from pyspark.sql import functions as f

    from tailrace.spark import session

    progress, spooler = places.progress("sink"), places.progress("spooler")
    spark = session(
        "local[2]",
        app_name="tailrace demo",
        spark__sql__session__timeZone="UTC",
        spark__sql__parquet__outputTimestampType="TIMESTAMP_MICROS",
        spark__local__dir=str(places.directory),
    )
    spark.sparkContext.setLogLevel("ERROR")
    schema = ", ".join(f"{name} {kind}" for name, kind in RESULT.items())
    options = {"nullValue": "NA", "timestampFormat": "yyyy-MM-dd'T'HH:mm:ssX"}
    source = spark.readStream.format("tailrace").option("url", f"qewqew:{places.qewqew}")
    messages = source.option("maxRowsPerTrigger", BATCH_ROWS).load()
    flights = messages.select(f.from_csv(f.col("value").cast("string"), schema, options).alias("flight")).select(
        "flight.*"
    )
    # The checkpoint makes it one stream over several queries: each goes on where the last one ended.
    stream = flights.writeStream.format("parquet").option("path", parquet)
    stream = stream.option("checkpointLocation", str(places.directory / "checkpoint"))
    stored = 0
    while True:
        finished = spooler["done"]
        query = stream.trigger(availableNow=True).start()
        while not query.awaitTermination(1):
            progress["handled"] = stored + _rows_of(query)
        stored += _rows_of(query)
        progress["handled"] = stored
        if finished:
            break
    spark.stop()


def _rows_of(query: Any) -> int:
    return sum(batch["numInputRows"] for batch in query.recentProgress)


def _with_arrow(places: Places, parquet: Path) -> None:
    import io

    import pyarrow as pa
    import pyarrow.parquet as pq
    from pyarrow import csv

    from tailrace import qewqew
    from tailrace.errors import QueueEmpty

    progress, spooler = places.progress("sink"), places.progress("spooler")
    types = {"int": pa.int32(), "string": pa.string(), "timestamp": pa.timestamp("us", tz="UTC")}
    convert = csv.ConvertOptions(
        column_types={name: types[kind] for name, kind in RESULT.items()}, null_values=["NA"], strings_can_be_null=True
    )
    parquet.mkdir(parents=True)
    with qewqew.DurableQueue(places.qewqew, sync="group", role="consumer") as durable:
        for number in range(1 << 30):
            finished = spooler["done"]
            try:
                batch = durable.get_many(50_000, timeout=0.2)
            except QueueEmpty:
                if finished:
                    return
                continue
            read = csv.ReadOptions(column_names=list(RESULT))
            table = csv.read_csv(io.BytesIO(b"\n".join(batch)), read_options=read, convert_options=convert)
            pq.write_table(table, parquet / f"part-{number:05}.parquet")
            progress["handled"] += table.num_rows
