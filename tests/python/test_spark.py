"""Every queue through a real Spark, read and written, and killed where it hurts."""

import json
import os
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pyspark = pytest.importorskip("pyspark")

from spark_support import (  # noqa: E402
    QUICK_START,
    Cluster,
    descendants,
    driver,
    eventually,
    kill,
    processes,
    several,
    workers_of,
)
from tailrace import EndOfFile, aq, conq, mcp, qewqew, ring  # noqa: E402
from tailrace.spark import pipe, session  # noqa: E402

pytestmark = [
    pytest.mark.spark,
    pytest.mark.timeout(240),
    # Spark leaves sockets and processes to the garbage collector.
    pytest.mark.filterwarnings("ignore"),
]

COUNT = 100_000

#: From 4.2 on Spark tells a source where a micro-batch begins and how much it may have; before, it takes all there is.
VERSION = tuple(map(int, pyspark.__version__.split(".")[:2]))
ADMITS = VERSION >= (4, 2)


def at_most(rows: int) -> dict[str, Any]:
    return {"maxRowsPerTrigger": rows} if ADMITS else {}


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    place = tmp_path_factory.mktemp("spark")
    places = {"spark__local__dir": place, "spark__sql__warehouse__dir": place / "warehouse"}
    spark = session("local[2,4]", **places, **QUICK_START)
    spark.sparkContext.setLogLevel("ERROR")
    yield spark
    spark.stop()


def numbered(first: int, count: int) -> list[bytes]:
    return [b"%064d" % number for number in range(first, first + count)]


def filled(path: Path, count: int = COUNT, first: int = 0, **options: Any) -> str:
    with qewqew.DurableQueue(path, role="producer", sync="never", **({"chunk_size": 1 << 18} | options)) as queue:
        queue.enqueue_many(numbered(first, count))
    return f"qewqew:{path}"


def drained(path: Path) -> list[bytes]:
    with qewqew.DurableQueue(path, role="consumer", sync="never") as queue:
        return queue.dequeue_many(10 * COUNT)


def read(spark: Any, url: str) -> Any:
    return spark.read.format("tailrace").load(url)


def stream(spark: Any, url: str, **options: Any) -> Any:
    return spark.readStream.format("tailrace").options(**options).load(url)


def run(frame: Any, place: Path, form: str = "parquet", **options: Any) -> Any:
    writer = frame.writeStream.format(form).options(**options).option("checkpointLocation", str(place / "checkpoint"))
    if form == "parquet":
        writer = writer.option("path", str(place / "out"))
    query = writer.trigger(availableNow=True).start()
    assert query.awaitTermination(120)
    return query


def values(spark: Any, place: Path) -> list[bytes]:
    return [bytes(row.value) for row in spark.read.parquet(str(place / "out")).select("value").collect()]


def parquet_values(place: Path) -> list[bytes]:
    """Read what Spark's file sink has committed, without a Spark."""
    import pyarrow.parquet

    log = place / "_spark_metadata"
    texts = [file.read_text() for file in log.iterdir() if not file.name.startswith(".")]
    entries = [line for text in texts for line in text.splitlines()]
    files = {json.loads(line)["path"].removeprefix("file://") for line in entries if line.startswith("{")}
    return [
        value for file in files for value in pyarrow.parquet.read_table(file, columns=["value"])["value"].to_pylist()
    ]


def first_batch(running: subprocess.Popen[str], checkpoint: Path) -> None:
    """Wait until a driver has finished a micro-batch."""
    assert running.stdout is not None
    line = running.stdout.readline()
    while not line.startswith("batch"):
        assert line, Path(f"{checkpoint}.log").read_text()[-3000:]
        line = running.stdout.readline()


def test_a_batch_read_of_qewqew_is_a_snapshot_and_takes_nothing(spark: Any, tmp_path: Path) -> None:
    url = filled(tmp_path / "q", 5_000)
    frame = read(spark, url)
    assert frame.count() == 5_000
    rows = frame.orderBy("offset").collect()
    assert [bytes(row.value) for row in rows] == numbered(0, 5_000)
    assert [row.offset for row in rows] == [66 * number for number in range(5_000)]
    assert {(row.partition, row.timestamp, row.queue) for row in rows} == {(0, None, str(tmp_path / "q"))}
    filled(tmp_path / "q", 10, first=5_000)
    assert frame.count() == (5_000 if VERSION >= (4, 1) else 5_010), "planned once; 4.0 plans every action"
    assert read(spark, url).count() == 5_010
    chosen = spark.read.format("tailrace").schema("value binary").load(url)
    assert chosen.columns == ["value"]
    assert chosen.count() == 5_010
    assert drained(tmp_path / "q") == numbered(0, 5_010)


def test_a_batch_written_to_qewqew_is_there_once_and_in_order(spark: Any, tmp_path: Path) -> None:
    frame = spark.range(0, 20_000, 1, 2).selectExpr("lpad(cast(id as string), 64, '0') AS value")
    frame.write.format("tailrace").mode("append").option("url", f"qewqew:{tmp_path / 'q'}").save()
    assert drained(tmp_path / "q") == numbered(0, 20_000)
    assert not list((tmp_path / "q.staged").iterdir())


def test_a_stream_goes_on_where_it_was_and_removes_what_is_done(spark: Any, tmp_path: Path) -> None:
    url = filled(tmp_path / "q", 25_000)
    query = run(stream(spark, url, **at_most(10_000)), tmp_path)
    assert [report["numInputRows"] for report in query.recentProgress] == (
        [10_000, 10_000, 5_000] if ADMITS else [25_000]
    )
    filled(tmp_path / "q", 1_000, first=25_000)
    run(stream(spark, url), tmp_path)
    assert sorted(values(spark, tmp_path)) == numbered(0, 26_000)
    with qewqew.DurableQueue(tmp_path / "q", role="consumer") as queue:
        # Spark commits a batch when it has planned the next one: only the last one is still there.
        assert queue.qsize() == 1_000


def test_qewqew_to_qewqew_with_workers_killed_loses_nothing_and_repeats_nothing(spark: Any, tmp_path: Path) -> None:
    url, target = filled(tmp_path / "from"), tmp_path / "to"
    killed: list[int] = []
    is_over = threading.Event()

    def killer() -> None:
        while not is_over.wait(0.3) and len(killed) < 3:
            # Only while tasks stage: that is the middle of a micro-batch.
            if list(target.parent.glob("to.staged/*")):
                for pid in workers_of(os.getpid())[:1]:
                    kill(pid)
                    killed.append(pid)

    thread = threading.Thread(target=killer)
    thread.start()
    try:
        run(stream(spark, url, **at_most(10_000)).select("value"), tmp_path, "tailrace", url=f"qewqew:{target}")
    finally:
        is_over.set()
        thread.join()
    assert killed, "the query was over before anybody was killed"
    assert Counter(drained(target)) == Counter(numbered(0, COUNT))


@pytest.mark.timeout(300)
def test_qewqew_to_qewqew_with_the_driver_killed_loses_nothing_and_repeats_nothing(
    tmp_path: Path, is_soak: bool
) -> None:
    url, target = filled(tmp_path / "from"), f"qewqew:{tmp_path / 'to'}"
    for _ in range(3 if is_soak else 1):
        with driver(url, target, tmp_path / "checkpoint") as running:
            if ADMITS:
                first_batch(running, tmp_path / "checkpoint")
                # Some way into the next micro-batch.
                time.sleep(0.3)
            else:
                # Into the only one.
                eventually(lambda: any((tmp_path / "checkpoint" / "offsets").glob("[0-9]*")))
            java = [pid for pid, _, command in descendants(running.pid) if "java" in command.split(" ")[0]]
            assert java
            for pid in java:
                kill(pid)
            assert running.wait(60) != 0
    with driver(url, target, tmp_path / "checkpoint", rows=50_000) as last:
        output, _ = last.communicate(timeout=200)
    assert last.returncode == 0, Path(f"{tmp_path / 'checkpoint'}.log").read_text()[-3000:]
    assert "moved" in output
    assert Counter(drained(tmp_path / "to")) == Counter(numbered(0, COUNT))


@pytest.mark.timeout(300)
def test_a_cluster_reads_three_queues_while_producers_write_and_an_executor_is_killed(tmp_path: Path) -> None:
    share = COUNT // 3 + 1
    for place in range(3):
        filled(tmp_path / f"host{place}", share // 2, first=place * share)
    source, target = f"qewqew:{tmp_path}/host*", tmp_path / "to"
    with (
        Cluster(tmp_path) as cluster,
        driver(source, f"qewqew:{target}", tmp_path / "checkpoint", cluster.url, rows=15_000, once=False) as running,
    ):
        first_batch(running, tmp_path / "checkpoint")
        executors = cluster.executors()
        assert len(executors) == 2
        kill(executors[0])
        for place in range(3):
            filled(tmp_path / f"host{place}", share - share // 2, first=place * share + share // 2)
        moved = qewqew.RangeReader(target)
        eventually(lambda: moved.tail_position >= 3 * share * 66, 150)
    assert Counter(drained(target)) == Counter(numbered(0, 3 * share))


def test_two_queries_on_one_consumer_are_refused(spark: Any, tmp_path: Path) -> None:
    url = filled(tmp_path / "q", 1_000)
    first = stream(spark, url).writeStream.format("noop").option("checkpointLocation", str(tmp_path / "one")).start()
    try:
        eventually(lambda: first.lastProgress is not None)
        with pytest.raises(Exception, match=r"another query reads .* as consumer 'spark'"):
            run(stream(spark, url), tmp_path)
    finally:
        first.stop()


def test_a_glob_is_one_source(spark: Any, tmp_path: Path) -> None:
    for place in range(3):
        filled(tmp_path / f"host{place}", 1_000, first=1_000 * place)
    run(stream(spark, f"qewqew:{tmp_path}/host*"), tmp_path)
    assert sorted(values(spark, tmp_path)) == numbered(0, 3_000)
    assert {row.partition for row in spark.read.parquet(str(tmp_path / "out")).collect()} == {0, 1, 2}


def test_ring_shows_its_slots_and_counts_what_was_overwritten(spark: Any, tmp_path: Path) -> None:
    path = tmp_path / "ring"
    with ring.Queue.create(path, max_len=1_000, msg_size=8) as queue:
        queue.put_many(numbered(0, 1_500))
        assert sorted(bytes(row.value) for row in read(spark, f"ring:{path}").collect()) == numbered(500, 1_000)
        run(stream(spark, f"ring:{path}"), tmp_path)
        assert sorted(values(spark, tmp_path)) == numbered(500, 1_000)
        queue.put_many(numbered(1_500, 3_000))
        with pytest.raises(Exception, match=rf"{2_000 if ADMITS else ''} messages .* were overwritten"):
            run(stream(spark, f"ring:{path}"), tmp_path)
        query = run(stream(spark, f"ring:{path}", failOnDataLoss=False), tmp_path)
        if ADMITS:
            assert json.loads(query.recentProgress[0]["sources"][0]["endOffset"])["lost"] == 2_000
        assert sorted(values(spark, tmp_path)) == numbered(500, 1_000) + numbered(3_500, 1_000)
        ten = spark.range(10).selectExpr("cast(id as string) AS value")
        ten.write.format("tailrace").mode("append").save(f"ring:{path}")
        assert queue.counters["enqueued"] == 4_510


def test_aq_is_read_in_place_and_released_when_done(spark: Any, tmp_path: Path) -> None:
    path, url = tmp_path / "aq", f"aq:{tmp_path / 'aq'}"
    with aq.Queue.create(path, size=1 << 20) as queue:
        spark.range(0, 1_000, 1, 1).selectExpr("lpad(cast(id as string), 64, '0') AS value").write.format(
            "tailrace"
        ).mode("append").option("url", url).save()
        rows = read(spark, url).orderBy("offset").collect()
        assert [bytes(row.value) for row in rows] == numbered(0, 1_000)
        assert all(row.committed for row in rows)
        run(stream(spark, url, **at_most(600)), tmp_path)
        assert sorted(values(spark, tmp_path)) == numbered(0, 1_000)
        # Spark commits a micro-batch when it plans the next one.
        eventually(lambda: queue.qsize() == (400 if ADMITS else 1_000), 20)
        queue.put_many(numbered(1_000, 10))
        run(stream(spark, url), tmp_path)
        # The last micro-batch of the first run was never committed, and the checkpoint knows that it was done.
        assert sorted(set(values(spark, tmp_path))) == numbered(0, 1_010)
        with pytest.raises(Exception, match=r"was full for 0.5 seconds"):
            spark.range(100_000).selectExpr("repeat('x', 64) AS value").write.format("tailrace").mode("append").option(
                "timeout", 0.5
            ).save(url)


def test_conq_is_leased_and_dequeued_when_done(spark: Any, tmp_path: Path) -> None:
    manager = conq.QueueManager.open(tmp_path / "system")
    manager.create_queue("jobs")
    url = f"conq:{tmp_path / 'system'}#jobs"
    spark.range(0, 500, 1, 1).selectExpr("lpad(cast(id as string), 64, '0') AS value").write.format("tailrace").mode(
        "append"
    ).save(url)
    run(stream(spark, url, **at_most(300), leaseSeconds=5), tmp_path)
    assert sorted(values(spark, tmp_path)) == numbered(0, 500)
    queue = manager.queue("jobs")
    stats = queue.stats()
    kept = 200 if ADMITS else 500
    assert stats.ready + stats.leased + stats.expired == kept, "the last micro-batch waits for the next one"
    assert sorted(bytes(row.value) for row in read(spark, url).collect()) == numbered(500 - kept, kept), (
        "and takes nothing"
    )
    manager.queue("jobs").put_many(numbered(500, 10))
    # They come back when the lease of the driver that is gone has run out, and are known to be done.
    run(stream(spark, url, leaseSeconds=5), tmp_path)
    assert sorted(values(spark, tmp_path)) == numbered(0, 510)


def test_mcp_is_read_to_its_end_and_a_pipe_into_it_ends_it(spark: Any, tmp_path: Path) -> None:
    system = tmp_path / "system"
    opened: dict[str, Any] = {"system": system, "max_messages": 2_000, "record_size": 80, "keep": True}
    with mcp.QueueFile.open("IN.Q", "output", **opened) as file:
        file.put_many(numbered(0, 500))
    url, target = f"mcp:{system}#IN.Q", f"mcp:{system}#OUT.Q"
    assert sorted(bytes(row.value) for row in read(spark, url).collect()) == numbered(0, 500)
    with mcp.QueueFile.open("OUT.Q", "input", **opened) as reader:
        options = at_most(200)
        moved = pipe(url, target, checkpoint=tmp_path / "checkpoint", once=True, options=options, spark=spark)
        assert moved == 500
        # All of it, and then the end of file: not one between the three micro-batches.
        assert list(reader) == numbered(0, 500)


def test_a_query_and_a_batch_end_the_queue_file_that_they_write_to(spark: Any, tmp_path: Path) -> None:
    system = tmp_path / "system"
    opened: dict[str, Any] = {"system": system, "max_messages": 5_000, "record_size": 80, "keep": True}
    url = f"mcp:{system}#OUT.Q"
    got: list[bytes] = []

    def reading(file: Any) -> threading.Thread:
        # To the end of file: an early one would end it with less.
        thread = threading.Thread(target=lambda: got.extend(file))
        thread.start()
        return thread

    with mcp.QueueFile.open("OUT.Q", "input", **opened) as file:
        thread = reading(file)
        source = filled(tmp_path / "q", 3_000)
        run(stream(spark, source, **at_most(1_000)).select("value"), tmp_path, "tailrace", url=url)
        thread.join(60)
        assert not thread.is_alive(), "the end of the query is the end of the file"
    assert sorted(got) == numbered(0, 3_000)
    got.clear()
    with mcp.QueueFile.open("OUT.Q", "input", **opened) as file:
        thread = reading(file)
        frame = spark.range(0, 2_000, 1, 4).selectExpr("lpad(cast(id as string), 64, '0') AS value")
        frame.write.format("tailrace").mode("append").option("url", url).save()
        thread.join(60)
        assert not thread.is_alive(), "four tasks on two cores, and one end"
    assert sorted(got) == numbered(0, 2_000)


def test_a_batch_of_which_every_task_fails_ends_the_queue_file_too(spark: Any, tmp_path: Path) -> None:
    url, opened = f"mcp:{tmp_path / 'system'}#OUT.Q", {"system": tmp_path / "system", "keep": True}
    with mcp.QueueFile.open("OUT.Q", "input", max_messages=10, record_size=80, **opened) as file:
        with pytest.raises(Exception, match="holds a null"):
            spark.sql("SELECT cast(null AS string) AS value").write.format("tailrace").mode("append").save(url)
        with pytest.raises(EndOfFile):
            file.read(timeout=20)


def test_a_queue_truncated_under_a_running_query_ends_it_with_what_to_do(spark: Any, tmp_path: Path) -> None:
    url = filled(tmp_path / "q", 5_000, chunk_size=1 << 16)
    query = stream(spark, url, **at_most(1_000)).writeStream.format("noop")
    running = query.option("checkpointLocation", str(tmp_path / "checkpoint")).start()
    try:
        eventually(lambda: running.lastProgress is not None)
        os.truncate(max(tmp_path.glob("q.[0-9]*"), key=lambda path: int(path.suffix[1:])), 100)
        with pytest.raises(Exception, match=r"was truncated or damaged under the query .*tailrace repair"):
            running.awaitTermination(60)
    finally:
        running.stop()


@pytest.mark.timeout(300)
def test_the_sources_that_hold_messages_lose_nothing_when_workers_and_the_driver_are_killed(tmp_path: Path) -> None:
    count, place = 20_000, tmp_path / "system"
    region = aq.Queue.create(tmp_path / "aq", size=1 << 23)
    region.put_many(numbered(0, count))
    manager = conq.QueueManager.open(tmp_path / "conq")
    manager.create_queue("jobs")
    manager.queue("jobs").put_many(numbered(0, count))
    opened: dict[str, Any] = {"system": place, "max_messages": 2 * count, "buffers": count, "record_size": 80}
    with mcp.QueueFile.open("IN.Q", "output", keep=True, **opened) as file:
        file.put_many(numbered(0, count))
    urls = [f"aq:{tmp_path / 'aq'}", f"conq:{tmp_path / 'conq'}#jobs", f"mcp:{place}#IN.Q"]

    with several(urls, tmp_path, rows=2_000, once=False) as running:
        first_batch(running, tmp_path / "several")
        for pid in workers_of(running.pid)[:1]:
            kill(pid)
        first_batch(running, tmp_path / "several")
        family = descendants(running.pid)
        for pid, _, command in family:
            if "java" in command.split(" ")[0]:
                kill(pid)
        assert running.wait(60) != 0
    # A run up to what is available takes what nobody has in hand when it begins: the processes of the dead driver see
    # that it is gone and end, and what it had leased becomes readable after leaseSeconds.
    eventually(lambda: not {pid for pid, _, _ in family} & {pid for pid, _, _ in processes()})
    eventually(lambda: manager.queue("jobs").stats().leased == 0)
    with several(urls, tmp_path, rows=2_000, once=True) as last:
        last.communicate(timeout=200)
    assert last.returncode == 0, (tmp_path / "several.log").read_text()[-3000:]
    for number, url in enumerate(urls):
        # Spark's file sink takes each micro-batch once, a replayed one has the same messages, and the offsets know what
        # Spark had finished and not yet told the source of. But what conq lost the lease of comes back as new.
        found, expected = Counter(parquet_values(tmp_path / f"out{number}")), Counter(numbered(0, count))
        assert not expected - found, url
        again = (found - expected).total()
        exact = ("aq:", "mcp:") if ADMITS else ("aq:",)
        assert again == 0 if url.startswith(exact) else again <= (2_000 if ADMITS else count), (url, again)


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("nowhere", "'nowhere' is not a queue URL"),
        ("rabbit:/x", "unknown scheme 'rabbit'"),
        ("qewqew:/no/such/queue", "there is no qewqew queue at /no/such/queue"),
        ("ring:/no/such/ring", "/no/such/ring"),
        ("conq:/no/such#jobs", "jobs|/no/such"),
    ],
)
def test_a_wrong_url_is_named(spark: Any, url: str, message: str) -> None:
    with pytest.raises(Exception, match=message):
        read(spark, url).count()


def test_a_queue_of_another_kind_and_a_checkpoint_of_another_queue_are_refused(spark: Any, tmp_path: Path) -> None:
    with ring.Queue.create(tmp_path / "ring", max_len=4, msg_size=8):
        pass
    with pytest.raises(Exception, match="is not the head file of a qewqew queue"):
        read(spark, f"qewqew:{tmp_path / 'ring'}").count()
    url = filled(tmp_path / "q", 10)
    run(stream(spark, url), tmp_path)
    for path in tmp_path.glob("q*"):
        path.unlink()
    filled(tmp_path / "q", 10)
    with pytest.raises(Exception, match="is not the queue that this checkpoint was made with"):
        run(stream(spark, url), tmp_path)


def test_a_pipe_goes_through_sql_and_json(spark: Any, tmp_path: Path) -> None:
    with qewqew.DurableQueue(tmp_path / "q", sync="never") as queue:
        queue.enqueue_many([b'{"id": %d, "kind": "%s"}' % (n, b"ab"[n % 2 : n % 2 + 1]) for n in range(100)])
        queue.head_position  # noqa: B018
    reports: list[Any] = []
    moved = pipe(
        f"qewqew:{tmp_path / 'q'}",
        f"qewqew:{tmp_path / 'out'}",
        checkpoint=tmp_path / "checkpoint",
        schema="id int, kind string",
        sql="SELECT id FROM messages WHERE kind = 'a'",
        once=True,
        progress=reports.append,
        spark=spark,
    )
    assert moved == 100
    assert [report.rows for report in reports] == [100]
    assert drained(tmp_path / "out") == [b'{"id":%d}' % n for n in range(0, 100, 2)]
    with pytest.raises(ValueError, match="'excel:/x' is no target"):
        pipe("qewqew:/x", "excel:/x", checkpoint=tmp_path)
