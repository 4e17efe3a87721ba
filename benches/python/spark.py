"""Spark over qewqew beside its limits, in one run: rows per second and ratios.

    .venv/bin/python benches/python/spark.py [rows of 64 B] [rows of 4 KiB]

The limit of reading is Arrow batches that lie ready in the worker's memory, the limit of writing a worker that drops
what it gets; the peers are parquet files, which are never synced, and a source that yields tuples. The ways take turns;
each figure is the median of nine rounds, after three in which the JVM compiles. Each table has a session of its own.
"""

import multiprocessing
import os
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import memory_source

from tailrace import qewqew
from tailrace.spark import session

WARM_UP, ROUNDS = 3, 9


def timed(ways: dict[str, Callable[[], object]]) -> dict[str, float]:
    """Seconds that each takes."""
    times: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(WARM_UP + ROUNDS):
        for name, work in ways.items():
            start = time.perf_counter()
            work()
            times[name].append(time.perf_counter() - start)
    return {name: statistics.median(took[WARM_UP:]) for name, took in times.items()}


def noop(frame: Any) -> None:
    """Pull every row into the JVM and drop it."""
    frame.write.format("noop").mode("overwrite").save()


def read(spark: Any, place: Path, rows: int, size: int) -> None:
    """Read so many rows in all the ways."""
    path = place / "q"
    with qewqew.DurableQueue(path, chunk_size=8 << 20, sync="never", role="producer") as queue:
        messages = memory_source.some_messages(size)
        for first in range(0, rows, len(messages)):
            queue.enqueue_many(messages[: rows - first])
    made = spark.read.format("memory").option("rows", rows).option("size", size)
    parquet = str(place / "p")
    made.option("form", "arrow").load().write.option("compression", "none").parquet(parquet)
    url = f"qewqew:{path}"
    ways = {
        "limit: Arrow from memory": lambda: noop(made.option("form", "arrow").load()),
        "parquet": lambda: noop(spark.read.parquet(parquet)),
        "tuples": lambda: noop(made.option("form", "tuples").load()),
        "tailrace, value": lambda: noop(spark.read.schema("value binary").format("tailrace").load(url)),
        "tailrace, all columns": lambda: noop(spark.read.format("tailrace").load(url)),
    }
    report("read", rows, size, timed(ways), ["limit: Arrow from memory", "parquet"])


def write(spark: Any, place: Path, rows: int, size: int) -> None:
    """Write so many rows in all the ways."""
    made = spark.read.format("memory").option("rows", rows).option("size", size)
    parquet = str(place / "p")
    made.option("form", "arrow").load().write.option("compression", "none").parquet(parquet)
    cached = spark.read.parquet(parquet).cache()
    cached.count()

    def to(sync: str) -> None:
        # Into a new queue each time, as parquet's "overwrite" removes what it wrote before: memory that was in use a
        # moment ago is several times faster than memory that a virtual machine has to ask for.
        target = place / sync
        shutil.rmtree(target, ignore_errors=True)
        target.mkdir()
        append = cached.write.format("tailrace").mode("append")
        append.option("chunkSize", 8 << 20).option("sync", sync).save(f"qewqew:{target / 'q'}")

    ways = {
        "limit: Arrow to nowhere": lambda: cached.write.format("memory").mode("append").save(),
        "parquet": lambda: cached.write.mode("overwrite").option("compression", "none").parquet(f"{parquet}w"),
        "tailrace, synced": lambda: to("always"),
        "tailrace, not synced": lambda: to("never"),
    }
    report("write", rows, size, timed(ways), ["parquet"])


def report(what: str, rows: int, size: int, times: dict[str, float], peers: list[str]) -> None:
    """Print one line for each way."""
    print(f"\n{what} {rows:,} rows of {size} B")
    for name, seconds in times.items():
        rate = rows / seconds
        ratios = "".join(f"   {times[peer] / seconds:5.2f} of {peer}" for peer in peers)
        print(f"  {name:25} {rate / 1e6:7.2f} Mrow/s {rate * size / 1e6:8.0f} MB/s{ratios}")


def latency(spark: Any, place: Path, count: int, size: int) -> None:
    """From put to the end of the micro-batch that has it, one message at a time."""
    path = place / "latency"
    with qewqew.DurableQueue(path, role="producer", sync="never") as queue:
        queue.enqueue(b"first")
        seen: list[float] = []
        frame = spark.readStream.format("tailrace").load(f"qewqew:{path}")
        writer = frame.writeStream.foreachBatch(lambda batch, _: seen.extend([time.perf_counter()] * batch.count()))
        query = writer.option("checkpointLocation", str(place / "latency.checkpoint")).start()
        while not seen:
            time.sleep(0.01)
        times = []
        for _ in range(count):
            before, start = len(seen), time.perf_counter()
            queue.enqueue(bytes(size))
            while len(seen) == before:
                time.sleep(0.001)
            times.append(seen[-1] - start)
        query.stop()
    middle, least = statistics.median(times) * 1000, min(times) * 1000
    print(f"\nmicro-batch latency, put to foreachBatch: p50 {middle:.0f} ms, min {least:.0f} ms")


def main(work: Callable[[Any, Path, int, int], None], rows: int, size: int) -> None:
    """Measure in a session of its own: what a JVM compiled for one kind of job is not what another needs."""
    # The workers import the source by its name, so that what they have made stays in their memory.
    os.environ["PYTHONPATH"] = os.pathsep.join([str(Path(__file__).parent), *sys.path[1:]])
    spark = session("local[2]", spark__driver__memory="4g")
    spark.sparkContext.setLogLevel("ERROR")
    spark.dataSource.register(memory_source.Memory)
    with tempfile.TemporaryDirectory(prefix="tailrace-bench-") as place:
        work(spark, Path(place), rows, size)
    spark.stop()


if __name__ == "__main__":
    small, large = (int(text) for text in (sys.argv[1:] + ["1000000", "100000"][len(sys.argv) - 1 :]))
    for job in [(read, small, 64), (read, large, 4096), (write, small, 64), (write, large, 4096), (latency, 20, 8)]:
        alone = multiprocessing.get_context("spawn").Process(target=main, args=job)
        alone.start()
        alone.join()
        if alone.exitcode:
            sys.exit(alone.exitcode)
