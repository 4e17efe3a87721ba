"""tailrace.ring as people use it: one process, threads, several processes, kill -9, Ctrl-C, pickle, numpy, Arrow."""

import multiprocessing
import os
import pickle
import queue
import random
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tailrace
from harness import Args, Losses, Oracle, Order, Promise, State, Watchdog, Workers, held, payload
from tailrace import ring

SOAK = os.environ.get("TAILRACE_SOAK", "0") not in ("", "0")
COUNTERS = ("overwritten", "abandoned", "lost_in_hands", "discarded")


@pytest.fixture
def directory() -> Iterator[Path]:
    path = Path(tempfile.mkdtemp(dir="/dev/shm", prefix="tailrace-test-"))
    yield path
    shutil.rmtree(path)


@pytest.fixture
def path(directory: Path) -> Path:
    return directory / "ring"


def padded(text: bytes, size: int = 8) -> bytes:
    return text.ljust(size, b"\0")


def test_the_file_is_the_document_byte_for_byte(path: Path) -> None:
    q = ring.Queue.create(path, max_len=5, msg_size=3)
    q.enqueue(b"a" * 24)
    q.enqueue(b"b" * 10)
    image = path.read_bytes()
    assert image[:32] == struct.pack("<QIIQII", 0x576F726B20697320, 5, 3, 0, 0, 2)
    assert image[32:64] == bytes(8) + b"a" * 24
    assert image[64:96] == bytes(8) + b"b" * 10 + bytes(14)
    assert image[96 : 32 + 5 * 32] == bytes(3 * 32)
    assert path.stat().st_mode & 0o777 == 0o600


def test_the_oldest_is_overwritten_and_the_gap_shows(path: Path) -> None:
    q = ring.Queue.create(path, max_len=3, msg_size=1)
    for number in range(5):
        q.enqueue(b"%d" % number)
    assert q.full()
    assert len(q) == q.qsize() == 3
    assert q.dequeue_with_sequence() == (2, padded(b"2"))
    assert q.dequeue() == padded(b"3")
    assert q.get() == padded(b"4")
    assert q.empty()
    assert q.counters == {
        "enqueued": 5,
        "overwritten": 2,
        "abandoned": 0,
        "lost_in_hands": 0,
        "discarded": 0,
        "queued": 0,
    }


def test_looking_takes_nothing(path: Path) -> None:
    q = ring.Queue.create(path, max_len=3, msg_size=1)
    assert q.latest() is None
    assert q.peek_all() == []
    assert q.snapshot() == []
    q.put_many([b"a", b"b", b"c", b"d"])
    assert q.latest() == padded(b"d")
    assert q.peek_all() == [padded(b"b"), padded(b"c"), padded(b"d")]
    assert q.snapshot() == [(1, padded(b"b")), (2, padded(b"c")), (3, padded(b"d"))]
    assert q.qsize() == 3


@pytest.mark.parametrize(
    "make",
    [bytes, bytearray, memoryview, lambda b: np.frombuffer(b, dtype=np.uint64), lambda b: np.frombuffer(b, np.uint8)],
    ids=["bytes", "bytearray", "memoryview", "uint64", "uint8"],
)
def test_anything_with_the_buffer_protocol_is_a_message(make: object) -> None:
    q = ring.Queue.anonymous(max_len=4, msg_size=4)
    data = bytes(range(32))
    q.enqueue(make(data))
    q.put_many([make(data)])
    assert q.get_many(2) == [data, data]
    assert np.frombuffer(data, np.uint64).size == q.msg_size


def test_wrong_arguments_are_named_before_anything_happens(path: Path) -> None:
    q = ring.Queue.create(path, max_len=2, msg_size=1)
    q.enqueue(b"")
    assert q.dequeue() == bytes(8)
    with pytest.raises(tailrace.MessageTooLarge, match="9 bytes is too large, the limit is 8 bytes") as caught:
        q.enqueue(b"123456789")
    assert (caught.value.size, caught.value.limit) == (9, 8)
    with pytest.raises(tailrace.MessageTooLarge):
        q.put_many([b"1", b"123456789"])
    assert q.empty()
    with pytest.raises(TypeError, match="'str'"):
        q.enqueue("text")
    with pytest.raises(TypeError, match="not one bytes object"):
        q.put_many(b"12")
    with pytest.raises(BufferError, match="contiguous"):
        q.enqueue(np.arange(4, dtype=np.uint8)[::2])
    for timeout in (-1, float("nan")):
        with pytest.raises(ValueError, match="timeout must be"):
            q.dequeue(timeout=timeout)
    q.close()
    with pytest.raises(tailrace.MessageTooLarge):
        q.enqueue(b"123456789")


def test_files_that_are_no_rings_are_refused_by_name(path: Path) -> None:
    with pytest.raises(ValueError, match="max_len is 0"):
        ring.Queue.create(path, max_len=0)
    with pytest.raises(ValueError, match="msg_size is 0"):
        ring.Queue.create(path, msg_size=0)
    with pytest.raises(ValueError, match="max_len 4294967295 with msg_size 4294967295"):
        ring.Queue.create(path, max_len=2**32 - 1, msg_size=2**32 - 1)
    with pytest.raises(ValueError, match="from 0 to 4294967295, not 4294967296"):
        ring.Queue.create(path, max_len=2**32)
    assert not path.exists()
    with pytest.raises(tailrace.QueueNotFound):
        ring.Queue.open(path)
    ring.Queue.create(path, max_len=2, msg_size=1)
    with pytest.raises(tailrace.QueueExists):
        ring.Queue.create(path)
    image = path.read_bytes()
    for change, message in [
        (b"not the magic of a ring", "not a ring"),
        (image[:8][::-1], "foreign byte order"),
        (image[:8] + struct.pack("<I", 0), "max_len is 0"),
        (image[:8] + struct.pack("<II", 2**32 - 1, 2**32 - 1), "max_len 4294967295"),
        (image[:8] + struct.pack("<II", 10**6, 1), "the file has"),
        (image[:24] + struct.pack("<II", 2, 0), "START_IDX is 2"),
        (image[:24] + struct.pack("<II", 0, 3), "QUEUE_LEN is 3"),
    ]:
        path.write_bytes(change + image[len(change) :])
        with pytest.raises(tailrace.FormatError, match=message):
            ring.Queue.open(path)
    path.write_bytes(b"short")
    with pytest.raises(tailrace.FormatError, match="5 bytes are too short"):
        ring.Queue.open(path)


def test_waiting_ends_with_a_message_or_with_the_time() -> None:
    q = ring.Queue.anonymous(max_len=2, msg_size=1)
    for call in (
        q.dequeue,
        q.get,
        q.dequeue_with_sequence,
        lambda **t: q.get_many(3, **t),
        lambda **t: q.get_arrow(3, **t),
    ):
        with pytest.raises(queue.Empty):
            call(timeout=0)
        with pytest.raises(tailrace.QueueEmpty):
            call(timeout=0.01)
    threading.Timer(0.05, q.enqueue, [b"late"]).start()
    assert q.dequeue(timeout=20) == padded(b"late")
    threading.Timer(0.05, q.enqueue, [b"later"]).start()
    assert q.dequeue() == padded(b"later")


def test_closing_ends_every_use_and_wakes_the_waiting() -> None:
    q = ring.Queue.anonymous(max_len=2, msg_size=1)
    threading.Timer(0.05, q.close).start()
    with pytest.raises(tailrace.QueueClosed):
        q.dequeue()
    assert q.closed
    with ring.Queue.anonymous() as other:
        assert not other.closed
    assert other.closed
    for call in (
        q.qsize,
        q.latest,
        q.snapshot,
        q.info,
        lambda: q.enqueue(b""),
        lambda: q.get(timeout=0),
        lambda: len(q),
    ):
        with pytest.raises(tailrace.QueueClosed):
            call()


def test_closing_gives_memory_and_descriptors_back_while_the_object_lives(path: Path) -> None:
    q = ring.Queue.create(path, max_len=2, msg_size=1, foreign_timeout=0.5)
    assert min(held(path)) > 0
    other = ring.Queue.open(path)
    q.close()
    assert other.info()["participants"] == {"alive": 1, "dead": 0}
    other.close()
    assert held(path) == (0, 0)
    # What was fixed when it was opened can still be asked for.
    assert (q.max_len, q.msg_size, q.message_bytes, q.path) == (2, 1, 8, path)
    assert pickle.loads(pickle.dumps(q)).max_len == 2


def test_closing_under_a_waiting_call_gives_everything_back_when_that_ends(path: Path) -> None:
    q = ring.Queue.create(path, max_len=2, msg_size=1)
    threading.Timer(0.05, q.close).start()
    with pytest.raises(tailrace.QueueClosed):
        q.dequeue()
    assert held(path) == (0, 0)


def test_a_child_that_closes_leaves_its_parent_alone(path: Path) -> None:
    q = ring.Queue.create(path, max_len=2, msg_size=1)
    child = multiprocessing.get_context("fork").Process(target=q.close)
    child.start()
    child.join()
    assert child.exitcode == 0
    q.enqueue(b"here")
    assert q.dequeue(timeout=0) == padded(b"here")


def test_iteration_takes_what_is_there() -> None:
    q = ring.Queue.anonymous(max_len=8, msg_size=1)
    assert q.put_many(b"%d" % n for n in range(5)) == 5
    assert list(q) == [padded(b"%d" % n) for n in range(5)]
    assert list(q) == []
    assert q


def test_a_handle_travels_as_its_path(path: Path) -> None:
    q = ring.Queue.create(path, max_len=2, msg_size=1, foreign_timeout=0.5)
    q.enqueue(b"here")
    twin = pickle.loads(pickle.dumps(q))
    assert twin.path == q.path == path
    assert twin.dequeue() == padded(b"here")
    assert tailrace.open(f"ring:{path}").max_len == 2
    with pytest.raises(TypeError, match="cannot be pickled"):
        pickle.dumps(ring.Queue.anonymous())
    assert repr(q) == f'<tailrace.ring.Queue "{path}">'


def test_info_says_what_holds(path: Path) -> None:
    q = ring.Queue.create(path, max_len=2, msg_size=1)
    other = ring.Queue.open(path)
    info = q.info()
    assert (info["kind"], info["path"], info["trailer"], info["foreign_seen"]) == ("ring", str(path), True, False)
    assert info["parameters"] == {"max_len": 2, "msg_size": 1, "message_bytes": 8}
    assert info["participants"] == {"alive": 2, "dead": 0}
    assert "dies blocks nobody" in info["promises"][0]
    del other
    assert q.info()["participants"] == {"alive": 1, "dead": 0}


def test_a_file_that_knows_only_the_document_works_with_the_weaker_promise(path: Path) -> None:
    path.write_bytes(struct.pack("<QIIQII", 0x576F726B20697320, 3, 1, 0, 1, 1) + struct.pack("<QQ", 0, 7) * 3)
    q = ring.Queue.open(path)
    info = q.info()
    assert not info["trailer"]
    assert info["format"]["trailer"] is None
    assert "no trailer" in info["promises"][0]
    assert q.dequeue_with_sequence() == (None, struct.pack("<Q", 7))
    q.put_many([b"a", b"b", b"c", b"d"])
    assert ring.Queue.open(path).peek_all() == [padded(b"b"), padded(b"c"), padded(b"d")]
    assert path.stat().st_size == 32 + 3 * 16


@pytest.mark.parametrize("place", [16, 32], ids=["header", "slot"])
def test_a_dead_foreign_holder_is_broken_after_foreign_timeout(path: Path, place: int) -> None:
    # Longer than any single attempt of a waiting call.
    q = ring.Queue.create(path, max_len=1, msg_size=1, foreign_timeout=0.2)
    uses = [lambda: q.put(b"new", timeout=20), lambda: q.put_many([b"new"], timeout=20), lambda: q.enqueue(b"new")]
    if place == 16:
        uses += [lambda: q.get(timeout=20), lambda: q.get_arrow(1, timeout=20)]
    for use in uses:
        q.put(b"old")
        with path.open("r+b") as file:
            file.seek(place)
            file.write(struct.pack("<Q", 1))
        began = time.monotonic()
        use()
        assert time.monotonic() - began > 0.15
    q.enqueue(b"last")
    assert q.get(timeout=0) == padded(b"last")


def test_threads_share_a_handle_and_lose_nothing() -> None:
    q = ring.Queue.anonymous(max_len=4096, msg_size=1)
    got: list[bytes] = []

    def writer(base: int) -> None:
        for number in range(500):
            q.put(struct.pack("<Q", base + number))

    def reader() -> None:
        for _ in range(500):
            got.append(q.get(timeout=20))

    threads = [threading.Thread(target=writer, args=[base]) for base in (0, 1000, 2000, 3000)]
    threads += [threading.Thread(target=reader) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(struct.unpack("<Q", m)[0] for m in got) == [b + n for b in (0, 1000, 2000, 3000) for n in range(500)]
    assert q.counters["enqueued"] == 2000


def test_a_waiting_thread_lets_the_others_run() -> None:
    q = ring.Queue.anonymous(max_len=2, msg_size=1)
    thread = threading.Thread(target=q.get)
    thread.start()
    counted = 0
    until = time.monotonic() + 0.1
    while time.monotonic() < until:
        counted += 1
    assert thread.is_alive()
    assert counted > 1000
    q.put(b"")
    thread.join(20)
    assert not thread.is_alive()


def test_a_look_that_waits_lets_the_others_run(path: Path) -> None:
    q = ring.Queue.create(path, max_len=2, msg_size=1)
    q.put(b"there")
    with path.open("r+b") as file:
        # A foreign program holds the header.
        file.seek(16)
        file.write(struct.pack("<Q", 1))
    for look in (q.latest, q.snapshot, lambda: q.counters, q.info):
        thread = threading.Thread(target=pytest.raises, args=(tailrace.WaitTimeout, look))
        thread.start()
        began = time.monotonic()
        time.sleep(0.01)
        assert time.monotonic() - began < 0.5
        assert thread.is_alive()
        thread.join(20)
        assert not thread.is_alive()


def test_ctrl_c_ends_a_wait(path: Path) -> None:
    code = (
        "import sys\nfrom tailrace import ring\nq = ring.Queue.open(sys.argv[1])\nprint('ready', flush=True)\n"
        "try:\n    q.get()\nexcept KeyboardInterrupt:\n    q.put(b'interrupted')\n"
    )
    q = ring.Queue.create(path, max_len=2, msg_size=2)
    child = subprocess.Popen([sys.executable, "-c", code, str(path)], stdout=subprocess.PIPE)
    with child:
        assert child.stdout is not None
        assert child.stdout.readline() == b"ready\n"
        time.sleep(0.2)
        child.send_signal(signal.SIGINT)
        assert q.get(timeout=20) == padded(b"interrupted", 16)
    assert child.returncode == 0


def _echo(q: ring.Queue, back: ring.Queue, count: int) -> None:
    for _ in range(count):
        back.put(q.get(timeout=20))


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_multiprocessing_children_take_part(directory: Path, method: str) -> None:
    there = ring.Queue.create(directory / "there", max_len=64, msg_size=1)
    back = ring.Queue.create(directory / "back", max_len=64, msg_size=1)
    child = multiprocessing.get_context(method).Process(target=_echo, args=(there, back, 40))
    child.start()
    for number in range(40):
        there.put(b"%d" % number)
        assert back.get(timeout=20) == padded(b"%d" % number)
    child.join(20)
    assert child.exitcode == 0
    assert there.info()["participants"]["alive"] == 1


def test_a_forked_child_shares_anonymous_memory() -> None:
    q = ring.Queue.anonymous(max_len=4, msg_size=1)
    child = multiprocessing.get_context("fork").Process(target=q.put, args=(b"child",))
    child.start()
    assert q.get(timeout=20) == padded(b"child")
    child.join(20)


def writer(args: Args) -> None:
    q, journal = ring.Queue.open(args["path"]), args.journal()
    args.ready()
    sequence = args["first"]
    while not args.stop_requested():
        message = payload.make(args["id"], sequence, 60)
        with journal.put(0, message):
            q.put(message)
        sequence += 1


def reader(args: Args) -> None:
    q, journal = ring.Queue.open(args["path"]), args.journal()
    args.ready()
    while not args.stop_requested():
        ticket = journal.attempt_get(0)
        try:
            journal.got(ticket, q.get(timeout=0.01), padded=True)
        except tailrace.QueueEmpty:
            journal.nothing(ticket)


def test_killed_python_workers_leave_a_ring_that_goes_on_and_counts(path: Path, directory: Path) -> None:
    scratch = directory / "scratch"
    scratch.mkdir()
    q = ring.Queue.create(path, max_len=64, msg_size=8)
    rounds = 200 if SOAK else 20
    rng = random.Random(4)
    with Workers(scratch) as workers, Watchdog("killed Python workers", 60 + rounds, workers):
        running = []
        ended = []
        for number in range(4):
            role = (writer, reader)[number % 2]
            running.append(workers.fork(role, journal=500_000, path=str(path), id=number, first=0))
        for number in range(rounds):
            victim = rng.randrange(4)
            running[victim].wait_ready()
            time.sleep(rng.uniform(0.001, 0.02))
            running[victim].kill()
            ended.append(running[victim])
            role = (writer, reader)[victim % 2]
            running[victim] = workers.fork(role, journal=500_000, path=str(path), id=10 + number, first=0)
        for worker in running:
            worker.wait_ready()
            worker.request_stop()
            worker.expect_success(20)
        counters = q.counters
        left = list(q)
        oracle = Oracle(Promise.exactly_once()._replace(losses=Losses.ANY, order=Order.ANY)).left(0, left)
        interrupted = 0
        for worker in ended + running:
            records = worker.records()
            oracle = oracle.journal(records)
            interrupted += sum(r.op == 2 and r.state == State.ATTEMPT for r in records)
        report = oracle.check()
        report.assert_ok("killed Python workers")
        unseen = counters["enqueued"] - report.got - len(left) - sum(counters[name] for name in COUNTERS)
        assert 0 <= unseen <= interrupted, (counters, str(report))
        assert report.acked <= counters["enqueued"] <= report.acked + report.attempted
        assert report.got > 0


@settings(max_examples=1000 if SOAK else 100, deadline=None)
@given(
    st.integers(1, 5),
    st.lists(
        st.one_of(st.binary(max_size=8), st.sampled_from(["get", "many", "arrow", "look", "latest"])), max_size=40
    ),
)
def test_a_ring_is_a_deque_with_a_limit(max_len: int, operations: list[bytes | str]) -> None:
    q = ring.Queue.anonymous(max_len=max_len, msg_size=1)
    model: deque[bytes] = deque(maxlen=max_len)
    for operation in operations:
        match operation:
            case bytes():
                q.enqueue(operation)
                model.append(padded(operation))
            case "get" if model:
                assert q.get(timeout=0) == model.popleft()
            case "many" if model:
                assert q.get_many(2) == [model.popleft() for _ in range(min(2, len(model)))]
            case "arrow" if model:
                assert q.get_arrow(3).to_pylist() == [model.popleft() for _ in range(min(3, len(model)))]
            case "look":
                assert q.peek_all() == list(model)
            case "latest":
                assert q.latest() == (model[-1] if model else None)
        assert (len(q), q.empty(), q.full()) == (len(model), not model, len(model) == max_len)
