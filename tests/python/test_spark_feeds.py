"""What the Spark source decides, without a Spark: its feeds called as Spark calls them."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("pyspark")


from spark_support import feed, messages, rows, through_json
from tailrace import (
    AlreadyOpen,
    FormatError,
    QueueError,
    QueueNotFound,
    aq,
    conq,
    mcp,
    qewqew,
    ring,
)
from tailrace.spark.columns import Columns, offered
from tailrace.spark.options import Options
from tailrace.spark.queues import Limits
from tailrace.spark.queues.tokens import BATCH_BYTES

pytestmark = pytest.mark.spark


@pytest.fixture
def queue(tmp_path: Path) -> str:
    with qewqew.DurableQueue(tmp_path / "q", chunk_size=1000, sync="never") as durable:
        durable.enqueue_many(messages(0, 1_000))
    return f"qewqew:{tmp_path / 'q'}"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "needs a queue"),
        ({"url": "ring:/x", "batchrow": "1"}, "did you mean 'batchRows'"),
        ({"url": "ring:/x", "batchRows": "many"}, "'batchRows' is 'many': expected a whole number"),
        ({"url": "ring:/x", "batchRows": "0"}, "from 1 to"),
        ({"url": "ring:/x", "consumer": "me"}, "is for qewqew queues, not for 'ring:/x'"),
        ({"url": "qewqew:/x", "consumer": "../me"}, "expected a name"),
        ({"url": "qewqew:/x", "consumer": "me.lock"}, "does not end with .lock"),
        ({"url": "qewqew:/x", "startingOffsets": "now"}, "expected earliest, latest, or an offset"),
        ({"url": "qewqew:/x", "failOnDataLoss": "maybe"}, "expected true or false"),
        ({"url": "conq:/x#y", "leaseSeconds": "1"}, "at least 3 seconds"),
        ({"url": "aq:/x", "failOnDataLoss": "false"}, "is for qewqew and ring queues, not for 'aq:/x'"),
    ],
)
def test_wrong_options_are_named(options: dict[str, str], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Options.parse(options)


def test_a_range_is_the_same_every_time_and_stays_until_the_commit(queue: str) -> None:
    first = feed(queue, minPartitions=5)
    start = first.initial()
    end = through_json(first.advance(start, first.horizon(), Limits(rows=300)))
    parts = first.plan(start, end)
    assert 1 < len(parts) <= 6
    assert rows(first, parts) == messages(0, 300)
    assert rows(feed(queue), parts) == messages(0, 300), "in another process"
    following = first.advance(end, first.horizon(), Limits())
    first.commit(end)
    first.commit(end)
    assert rows(first, first.plan(end, following)) == messages(300, 700)
    with pytest.raises(QueueError, match="are gone"):
        first.plan(start, end)


def test_limits_hold_by_rows_and_by_bytes_and_let_one_message_through(queue: str) -> None:
    reader = feed(queue)
    start, horizon = reader.initial(), reader.horizon()
    for limits, count in [
        (Limits(rows=1), 1),
        (Limits(bytes=100), 10),
        (Limits(bytes=1), 1),
        (Limits(700, 6_000), 600),
    ]:
        end = reader.advance(start, horizon, limits)
        assert len(rows(reader, reader.plan(start, end))) == count, limits


def test_the_beginning_is_pinned_before_anybody_hears_of_it(queue: str) -> None:
    reader = feed(queue, startingOffsets="latest")
    start = reader.initial()
    with qewqew.DurableQueue(queue.removeprefix("qewqew:"), role="producer", sync="never", chunk_size=1000) as durable:
        durable.enqueue_many(messages(1_000, 5))
    # It crashes before the first commit; the next life begins at the same place.
    reader.close()
    again = feed(queue, startingOffsets="latest")
    assert again.initial() == start
    assert rows(again, again.plan(start, again.advance(start, again.horizon(), Limits()))) == messages(1_000, 5)


def test_a_consumer_has_one_query(queue: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tailrace.spark.queues.cursor.PATIENCE", 0.1)
    holder = feed(queue)
    holder.initial()
    with pytest.raises(AlreadyOpen, match="another query reads"):
        feed(queue).initial()
    holder.close()
    feed(queue).initial()


def test_data_loss_is_an_error_or_stepped_over(queue: str) -> None:
    reader = feed(queue)
    start = reader.initial()
    end = reader.advance(start, reader.horizon(), Limits())
    reader.close()
    with qewqew.DurableQueue(queue.removeprefix("qewqew:"), role="consumer", sync="never", chunk_size=1000) as durable:
        durable.dequeue_many(500)
    strict = feed(queue)
    with pytest.raises(QueueError, match="Set failOnDataLoss to false"):
        strict.plan(start, end)
    strict.close()
    tolerant = feed(queue, failOnDataLoss="false")
    assert rows(tolerant, tolerant.plan(start, end)) == messages(500, 500)


def test_a_glob_takes_in_queues_that_appear_later(tmp_path: Path) -> None:
    def fill(name: str, first: int) -> None:
        with qewqew.DurableQueue(tmp_path / name, sync="never", chunk_size=1000) as durable:
            durable.enqueue_many(messages(first, 100))

    fill("host-a", 0)
    reader = feed(f"qewqew:{tmp_path}/host-?")
    start = reader.initial()
    middle = through_json(reader.advance(start, reader.horizon(), Limits()))
    fill("host-b", 100)
    reader.handles[""] = (reader.handles[""][0], 0.0)
    end = reader.advance(middle, reader.horizon(), Limits())
    assert rows(reader, reader.plan(start, middle)) == messages(0, 100)
    assert rows(reader, reader.plan(middle, end)) == messages(100, 100)


@pytest.mark.parametrize("said", ["latest", "json"])
def test_a_queue_that_appears_later_is_read_from_its_beginning(tmp_path: Path, said: str) -> None:
    def fill(name: str, first: int) -> None:
        with qewqew.DurableQueue(tmp_path / name, sync="never", chunk_size=1000) as durable:
            durable.enqueue_many(messages(first, 100))

    fill("host-a", 0)
    url = f"qewqew:{tmp_path}/host-?"
    if said == "json":
        other = feed(url, consumer="other")
        said = json.dumps(other.horizon())
        other.close()
    reader = feed(url, startingOffsets=said)
    start = reader.initial()
    fill("host-b", 100)
    reader.handles[""] = (reader.handles[""][0], 0.0)
    end = through_json(reader.advance(start, reader.horizon(), Limits()))
    assert rows(reader, reader.plan(start, end)) == messages(100, 100)


def test_a_wrong_beginning_is_named_and_not_kept(queue: str) -> None:
    path = queue.removeprefix("qewqew:")
    other = feed(queue, consumer="other")
    right = other.horizon()[path]
    other.close()
    for place, message in [
        ({"position": right["position"] + 1}, "startingOffsets is at 10001 in .*, which ends at 10000"),
        ({"position": 3}, "no message begins or ends at position 3"),
        ({"position": "3"}, "is no offset of"),
        ({"queue": "0" * 32}, "is not the queue"),
    ]:
        reader = feed(queue, startingOffsets=json.dumps({path: right | place}))
        with pytest.raises(ValueError, match=message):
            reader.initial()
        reader.close()
    assert feed(queue).initial()[path]["position"] == 0


def test_a_queue_of_a_glob_that_was_removed_is_an_error_or_left_out_and_not_made_again(tmp_path: Path) -> None:
    for name in ("host-a", "host-b"):
        with qewqew.DurableQueue(tmp_path / name, sync="never", chunk_size=1000) as durable:
            durable.enqueue_many(messages(0, 100))
    url = f"qewqew:{tmp_path}/host-?"
    reader = feed(url)
    start = reader.initial()
    end = through_json(reader.advance(start, reader.horizon(), Limits(rows=20)))
    reader.close()
    for file in tmp_path.glob("host-b*"):
        file.unlink()
    for step in ("advance", "plan", "commit"):
        strict = feed(url)
        arguments = {"advance": (end, strict.horizon(), Limits()), "plan": (start, end), "commit": (end,)}[step]
        with pytest.raises(QueueNotFound, match=r"no qewqew queue at .*host-b any more.* set failOnDataLoss to false"):
            getattr(strict, step)(*arguments)
        strict.close()
    tolerant = feed(url, failOnDataLoss="false")
    assert rows(tolerant, tolerant.plan(start, end)) == messages(0, 10)
    following = tolerant.advance(end, tolerant.horizon(), Limits())
    assert list(following) == [str(tmp_path / "host-a")]
    tolerant.commit(end)
    assert rows(tolerant, tolerant.plan(end, following)) == messages(10, 90)
    assert not list(tmp_path.glob("host-b*"))


def test_the_checkpoint_of_another_durable_queue_or_ring_is_refused(queue: str, tmp_path: Path) -> None:
    path = queue.removeprefix("qewqew:")
    with qewqew.DurableQueue(tmp_path / "other", sync="never") as durable:
        durable.enqueue_many(messages(0, 10))
    reader = feed(queue)
    start = reader.initial()
    end = reader.advance(start, reader.horizon(), Limits())
    reader.close()
    for url in (f"qewqew:{tmp_path / 'other'}", f"qewqew:{tmp_path}/o*"):
        other = feed(url)
        with pytest.raises(FormatError, match=f"was made with '{path}'.*use a checkpoint of its own"):
            other.advance(end, other.horizon(), Limits())
        with pytest.raises(FormatError, match=f"was made with '{path}'.*use a checkpoint of its own"):
            other.plan(start, end)
        other.close()
    for name in ("one", "two"):
        with ring.Queue.create(tmp_path / name, max_len=10, msg_size=1) as slots:
            slots.put_many(messages(0, 5))
    one, two = feed(f"ring:{tmp_path / 'one'}"), feed(f"ring:{tmp_path / 'two'}")
    start, end = one.initial(), one.horizon()
    with pytest.raises(FormatError, match="use a checkpoint of its own"):
        two.advance(start, end, Limits())
    with pytest.raises(FormatError, match="use a checkpoint of its own"):
        two.plan(start, end)
    with pytest.raises(FormatError, match="is no offset of 'ring:"):
        feed(f"ring:{tmp_path / 'one'}", startingOffsets="{}").initial()


def test_a_ring_counts_what_it_overwrote(tmp_path: Path) -> None:
    with ring.Queue.create(tmp_path / "ring", max_len=10, msg_size=1) as durable:
        url = f"ring:{tmp_path / 'ring'}"
        reader = feed(url, failOnDataLoss="false")
        start = reader.initial()
        durable.put_many(messages(0, 25))
        end = reader.advance(start, reader.horizon(), Limits())
        assert end == {"queue": start["queue"], "sequence": 25, "lost": 15}
        assert rows(reader, reader.plan(start, end)) == messages(15, 10)
        with pytest.raises(QueueError, match=r"15 messages .* were overwritten"):
            feed(url).advance(start, end, Limits())
        with pytest.raises(QueueError, match="has not come to message 1000"):
            feed(url).advance(start | {"sequence": 1_000}, end, Limits())


@pytest.mark.parametrize("kind", ["aq", "ring"])
def test_a_file_of_another_kind_is_named(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "file"
    if kind == "aq":
        ring.Queue.create(path, max_len=10, msg_size=1).close()
    else:
        aq.Queue.create(path, size=1 << 16).close()
    for call in ("snapshot", "initial", "horizon"):
        reader = feed(f"{kind}:{path}")
        if (kind, call) != ("aq", "initial"):
            with pytest.raises(FormatError, match=f"{path} (is no aq queue|cannot be opened as a ring)"):
                getattr(reader, call)()


def test_a_missing_queue_file_is_not_made_up(tmp_path: Path) -> None:
    mcp.create_system(tmp_path / "system")
    with pytest.raises(QueueNotFound, match=r"there is no queue file 'NO.Q'"):
        feed(f"mcp:{tmp_path / 'system'}#NO.Q").snapshot()


@pytest.mark.parametrize("url", ["mcp:{}#NO.Q", "conq:{}#jobs", "qewqew:{}/q", "aq:{}/q", "ring:{}/q"])
def test_looking_at_a_place_without_queues_leaves_nothing_there(url: str, tmp_path: Path) -> None:
    for call in ("snapshot", "initial", "horizon"):
        with pytest.raises(QueueNotFound):
            getattr(feed(url.format(tmp_path)), call)()
    assert not list(tmp_path.iterdir())


def test_a_batch_of_a_glob_that_names_nothing_is_an_error_and_a_stream_waits(tmp_path: Path) -> None:
    url = f"qewqew:{tmp_path}/host-*"
    with pytest.raises(QueueNotFound, match=r"no qewqew queue that '.*/host-\*' names"):
        feed(url).snapshot()
    reader = feed(url)
    assert reader.advance(reader.initial(), reader.horizon(), Limits()) == {}


@pytest.mark.parametrize("kind", ["aq", "conq", "mcp", "qewqew", "ring"])
def test_large_messages_come_in_small_batches(kind: str, tmp_path: Path) -> None:
    path, size, count = tmp_path / "queue", 40_000, 100
    if kind == "aq":
        made = aq.Queue.create(path, size=1 << 23)
    elif kind == "ring":
        made = ring.Queue.create(path, max_len=count, msg_size=size // 8)
    elif kind == "qewqew":
        made = qewqew.DurableQueue(path, role="producer", sync="never", chunk_size=1 << 23)
    elif kind == "conq":
        manager = conq.QueueManager.open(path)
        manager.create_queue("jobs")
        made = manager.queue("jobs")
    else:
        made = mcp.QueueFile.open("MY.Q", "output", system=path, max_messages=count, record_size=size, keep=True)
    sent = [number.to_bytes(4, "big") * (size // 4) for number in range(count)]
    made.put_many(sent)
    reader = feed({"conq": f"conq:{path}#jobs", "mcp": f"mcp:{path}#MY.Q"}.get(kind, f"{kind}:{path}"))
    start = reader.initial()
    columns = Columns(kind, offered(kind))
    for parts in (reader.snapshot(), reader.plan(start, reader.advance(start, reader.horizon(), Limits()))):
        batches = [batch.column("value") for part in parts for batch in reader.read(part, columns)]
        # A ring shows its slots as they lie.
        assert sorted(value for batch in batches for value in batch.to_pylist()) == sent
        assert max(len(batch) for batch in batches) in (BATCH_BYTES // size, BATCH_BYTES // size + 1)
    reader.close()
    made.close()


def test_a_family_has_only_its_members(tmp_path: Path) -> None:
    opened = {"system": tmp_path, "max_messages": 10, "record_size": 80, "keep": True}
    mcp.QueueFile.open("MY.QFF", "output", family_size=2, **opened).close()
    mcp.QueueFile.open("MY.Q", "output", **opened).close()
    for name, said in (("MY.QFF", "2 members: expected 1 to 2"), ("MY.Q", "no members: leave it out")):
        reader = feed(f"mcp:{tmp_path}#{name}", key=3)
        for call in (reader.snapshot, reader.horizon):
            with pytest.raises(ValueError, match=f"option 'key' is 3, but .* has {said}"):
                call()


#: Run by a process of its own, since whoever has the memory mapped dies of a truncated file: makes a queue, plans a
#: micro-batch, truncates the file and goes on.
TRUNCATING = """
import os, sys
from pathlib import Path
from tailrace import aq, conq, mcp, qewqew, ring
from tailrace.spark.columns import Columns, offered
from tailrace.spark.options import Options
from tailrace.spark.queues import Limits, feed_for

kind, path = sys.argv[1], Path(sys.argv[2])
messages = [b"%08d" % number for number in range(20)]
if kind == "aq":
    made = aq.Queue.create(path, size=1 << 16)
elif kind == "ring":
    made = ring.Queue.create(path, max_len=1_000, msg_size=1)
elif kind == "qewqew":
    made = qewqew.DurableQueue(path, role="producer", sync="never", chunk_size=100)
elif kind == "conq":
    manager = conq.QueueManager.open(path)
    manager.create_queue("jobs")
    made = manager.queue("jobs")
else:
    made = mcp.QueueFile.open("MY.Q", "output", system=path, max_messages=100, record_size=80, keep=True)
made.put_many(messages)
url = {"conq": f"conq:{path}#jobs", "mcp": f"mcp:{path}#MY.Q"}.get(kind, f"{kind}:{path}")
feed = feed_for(Options.parse({"url": url}))
start = feed.initial()
end = feed.advance(start, feed.horizon(), Limits(rows=5))
assert feed.plan(start, end)
victim = Path(f"{path}.3") if kind == "qewqew" else path
if victim.is_dir():
    victim = max((file for file in victim.iterdir() if file.is_file()), key=lambda file: file.stat().st_size)
os.truncate(victim, 20)
try:
    following = feed.advance(end, feed.horizon(), Limits())
    columns = Columns(kind, offered(kind))
    batches = [batch for part in feed.plan(end, following) for batch in feed.read(part, columns)]
except Exception as error:
    print(type(error).__name__, error, flush=True)
os._exit(0)
"""


@pytest.mark.parametrize("kind", ["aq", "conq", "mcp", "qewqew", "ring"])
def test_a_queue_that_is_truncated_under_the_query_is_an_error_that_says_what_to_do(kind: str, tmp_path: Path) -> None:
    arguments = [sys.executable, "-c", TRUNCATING, kind, str(tmp_path / "queue")]
    done = subprocess.run(arguments, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert "CorruptQueue" in done.stdout
    assert "truncated" in done.stdout
    assert ("repair" if kind == "qewqew" else "create it again") in done.stdout


@pytest.mark.parametrize(("program", "frozen"), [("pyspark.daemon", True), ("somebody.else", False)])
def test_only_a_worker_of_spark_keeps_the_collector_from_its_modules(program: str, frozen: bool) -> None:
    """What the first collection finds is frozen; what is garbage then is not."""
    script = f"""
import gc, importlib.machinery, sys, weakref
sys.modules["__main__"].__spec__ = importlib.machinery.ModuleSpec({program!r}, None)
import tailrace.spark
class Circle: pass
circle = Circle(); circle.itself = circle
gone = weakref.ref(circle)
del circle
assert gc.get_freeze_count() == 0
gc.collect()
assert gone() is None
print(gc.get_freeze_count() > 1000)
for _ in range(10):
    gc.collect()
circle = Circle(); circle.itself = circle
gc.collect()
gone = weakref.ref(circle)
del circle
gc.collect()
assert gone() is None, "later objects are collected as everywhere"
"""
    done = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True, timeout=60)
    assert done.stdout.strip() == str(frozen)
