"""``tailrace pipe``: from a queue through SQL to files or to another queue, as one call."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import col, from_json, struct, to_json
from pyspark.sql.types import BinaryType, StringType

from tailrace._url import FORMS, split
from tailrace.spark._session import session
from tailrace.spark.options import Options

__all__ = ["Progress", "pipe", "split_target"]

#: File formats of Spark that need nothing but a directory.
FILES = ("parquet", "json", "orc", "csv", "text")


@dataclass(frozen=True)
class Progress:
    """One finished micro-batch of a pipe."""

    batch: int
    rows: int
    seconds: float
    total_rows: int
    offsets: str


def pipe(
    source: str,
    target: str,
    *,
    checkpoint: str | Path,
    sql: str | None = None,
    schema: str | None = None,
    once: bool = False,
    interval: float = 0.0,
    options: dict[str, Any] | None = None,
    target_options: dict[str, Any] | None = None,
    progress: Callable[[Progress], None] | None = None,
    spark: SparkSession | None = None,
) -> int:
    """Move messages from a queue to files or to another queue, and give the number of rows read.

    ``source`` is a queue URL; ``target`` is a queue URL, or ``parquet:DIR`` (also json, orc, csv, text). With
    ``schema`` (DDL) the messages are JSON objects and become these columns. ``sql`` selects from the table
    ``messages``. A target queue gets the column ``value``, or each row as JSON when there is none.

    ``once`` ends when everything is moved that was there at the start; otherwise it runs until it is interrupted or
    fails. The checkpoint directory is what a next call goes on from; it belongs to this one pipe.

    >>> pipe("qewqew:/data/events", "parquet:/data/out", checkpoint="/data/ckpt", once=True)  # doctest: +SKIP
    100000

    Raises:
        ValueError: a URL, the target's kind or the schema is wrong.
    """
    # Needs the native module of the queue only when it is called for.
    from tailrace.spark.queues.mcp import open_file

    split(source)
    kind, place = split_target(target)
    spark = spark or session()
    messages: DataFrame = spark.readStream.format("tailrace").options(**(options or {})).option("url", source).load()
    if schema is not None:
        parsed = from_json(col("value").cast("string"), schema)
        messages = messages.select(parsed.alias("message")).select("message.*")
    if sql is not None:
        messages.createOrReplaceTempView("messages")
        messages = spark.sql(sql)
    is_mcp = kind == "tailrace" and target.startswith("mcp:")
    if is_mcp:
        target_options = {"eof": "driver"} | (target_options or {})
    if kind == "tailrace":
        messages = _as_messages(messages)
        writer = messages.writeStream.format(kind).option("url", place)
    else:
        writer = messages.writeStream.format(kind).option("path", place)
    writer = writer.options(**(target_options or {})).option("checkpointLocation", str(checkpoint)).outputMode("append")
    writer = writer.trigger(availableNow=True) if once else writer.trigger(processingTime=f"{interval} seconds")
    seen, total = -1, 0
    # Held open from before the first micro-batch to behind the last one: the end of file comes at the end, and only
    # then.
    keeper = open_file(Options.parse({"url": target}), "output") if is_mcp else None
    query = None
    try:
        query = writer.start()
        is_over = False
        while not is_over:
            is_over = bool(query.awaitTermination(1))
            for report in query.recentProgress:
                batch = int(report["batchId"])
                # A query without news reports its last batch again, with no rows.
                if batch <= seen or (report.get("numInputRows") or 0) == 0:
                    continue
                rows = int(report["numInputRows"])
                seen, total = batch, total + rows
                if progress is not None:
                    offsets = str(report["sources"][0].get("endOffset"))
                    progress(Progress(batch, rows, report["batchDuration"] / 1000, total, offsets))
    finally:
        if query is not None:
            query.stop()
        if keeper is not None:
            keeper.close()
    return total


def split_target(target: str) -> tuple[str, str]:
    """Check a target and split it into the format that Spark knows and where it is."""
    kind, colon, place = target.partition(":")
    if kind in FORMS:
        split(target)
        return "tailrace", target
    if not colon or kind not in FILES:
        raise ValueError(
            f"{target!r} is no target: expected a queue URL ({', '.join(FORMS.values())}) or one of "
            f"{', '.join(f'{name}:DIR' for name in FILES)}"
        )
    if not place:
        raise ValueError(f"{target!r} has no directory: expected {kind}:DIR")
    return kind, place


def _as_messages(rows: DataFrame) -> DataFrame:
    found = next((column for column in rows.schema if column.name == "value"), None)
    if found is not None and isinstance(found.dataType, (BinaryType, StringType)):
        return rows.select("value")
    return rows.select(to_json(struct("*")).alias("value"))
