"""put_many, get_many and get_arrow of tailrace.ring: order, limits, what is in the way, threads, kill -9, Ctrl-C."""

import itertools
import multiprocessing
import os
import shutil
import signal
import struct
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pytest

import tailrace
from tailrace import ring

HEADER = 16
COUNTERS = ("overwritten", "abandoned", "lost_in_hands", "discarded")


@pytest.fixture
def path() -> Iterator[Path]:
    directory = Path(tempfile.mkdtemp(dir="/dev/shm", prefix="tailrace-test-"))
    yield directory / "ring"
    shutil.rmtree(directory)


def words(*numbers: int) -> list[bytes]:
    return [struct.pack("<Q", number) for number in numbers]


def lock(path: Path, place: int, word: int) -> None:
    with path.open("r+b") as file:
        file.seek(place)
        file.write(struct.pack("<Q", word))


def test_batches() -> None:
    q = ring.Queue.anonymous(max_len=1000, msg_size=2)
    messages = [struct.pack("<QQ", n, n * n) for n in range(1000)]
    q.put_many(messages)
    assert q.get_many(0) == []
    assert q.get_many(10) == messages[:10]
    array = q.get_arrow(500)
    assert isinstance(array, pa.BinaryArray)
    array.validate(full=True)
    assert array.to_pylist() == messages[10:510]
    assert q.get_many(10**9) == messages[510:]
    assert q.get_arrow(0).to_pylist() == []
    q.put_many(messages)
    assert len(q.get_arrow(10**12)) == 1000


@pytest.mark.parametrize("max_len", [1, 2, 3, 4, 8, 100])
@pytest.mark.parametrize("count", [1, 2, 7, 33, 1000])
def test_of_a_batch_larger_than_the_ring_the_end_stays(max_len: int, count: int) -> None:
    q = ring.Queue.anonymous(max_len=max_len, msg_size=1)
    messages = words(*range(count))
    assert q.put_many(messages) == count
    left = min(max_len, count)
    assert q.snapshot() == list(enumerate(messages))[-left:]
    assert (q.counters["enqueued"], q.counters["overwritten"]) == (count, count - left)
    assert q.get_many(count) == messages[-left:]
    assert q.put_many(messages[:3]) == min(count, 3)
    assert q.get_arrow(count).to_pylist() == messages[:3][-max_len:]


def test_an_arrow_array_goes_in_and_comes_out() -> None:
    q = ring.Queue.anonymous(max_len=64, msg_size=2)
    array = pa.array([b"one", b"", b"0123456789abcdef"] * 20, pa.binary())
    assert q.put_many(array[3:]) == 57
    padded = [message.as_py().ljust(16, b"\0") for message in array]
    assert q.get_arrow(50).to_pylist() == padded[3:53]
    assert q.get_many(50) == padded[53:]


def test_large_messages_come_as_they_are() -> None:
    q = ring.Queue.anonymous(max_len=16, msg_size=1 << 14)
    messages = [bytes([number]) * (1 << 17) for number in range(20)]
    q.put_many(messages)
    assert q.get_many(7) == messages[4:11]
    assert q.get_arrow(20).to_pylist() == messages[11:]


@pytest.mark.parametrize("call", [lambda q: q.get_many(9, timeout=0.05), lambda q: q.get_arrow(9, timeout=0.05)])
def test_a_batch_waits_for_the_first_only(call: Callable[[ring.Queue], object]) -> None:
    q = ring.Queue.anonymous(max_len=64, msg_size=1)
    with pytest.raises(tailrace.QueueEmpty):
        call(q)
    q.put_many(words(1, 2))
    began = time.monotonic()
    assert len(call(q)) == 2
    assert time.monotonic() - began < 20
    threading.Timer(0.05, q.put_many, [words(3, 4)]).start()
    assert q.get_many(9, timeout=20)[0] == words(3)[0]


def test_a_held_header_delays_a_batch_up_to_its_timeout(path: Path) -> None:
    q = ring.Queue.create(path, max_len=64, msg_size=1)
    lock(path, HEADER, 1)
    with pytest.raises(tailrace.QueueFull, match="header"):
        q.put_many(words(1, 2), timeout=0.05)
    with pytest.raises(tailrace.QueueFull, match="header"):
        q.put_many(words(1, 2), timeout=0)
    threading.Timer(0.2, lock, [path, HEADER, 0]).start()
    assert q.put_many(words(*range(100)), timeout=20) == 100
    assert q.get_many(100) == words(*range(36, 100))


def test_a_held_slot_ends_a_batch_where_it_is(path: Path) -> None:
    q = ring.Queue.create(path, max_len=64, msg_size=1)
    fifth = 32 + 4 * 16
    lock(path, fifth, 1)
    with pytest.raises(tailrace.QueueFull, match="slot 4"):
        q.put_many(words(*range(10)), timeout=0.05)
    assert q.peek_all() == words(0, 1, 2, 3)
    threading.Timer(0.1, lock, [path, fifth, 0]).start()
    assert q.put_many(words(*range(4, 10)), timeout=20) == 6
    assert q.get_arrow(64).to_pylist() == words(*range(10))


@pytest.mark.parametrize(
    "call",
    [lambda q: q.put_many(words(1, 2)), lambda q: q.get_many(2), lambda q: q.get_arrow(2)],
    ids=["put_many", "get_many", "get_arrow"],
)
def test_ctrl_c_and_closing_end_the_wait_of_a_batch(path: Path, call: Callable[[ring.Queue], object]) -> None:
    q = ring.Queue.create(path, max_len=2, msg_size=1)
    lock(path, HEADER, 1)
    threading.Timer(0.1, os.kill, [os.getpid(), signal.SIGINT]).start()
    with pytest.raises(KeyboardInterrupt):
        call(q)
    threading.Timer(0.1, q.close).start()
    with pytest.raises(tailrace.QueueClosed):
        call(q)
    with pytest.raises(tailrace.QueueClosed):
        call(q)


def test_damage_is_an_error_of_the_first_message(path: Path) -> None:
    q = ring.Queue.create(path, max_len=64, msg_size=1)
    q.put_many(words(1, 2))
    lock(path, 24, 2**64 - 1)
    for call in (lambda: q.put_many(words(3)), lambda: q.get_many(2), lambda: q.get_arrow(2)):
        with pytest.raises(tailrace.FormatError, match="START_IDX"):
            call()


def test_threads_share_batches_and_lose_nothing() -> None:
    q = ring.Queue.anonymous(max_len=1 << 14, msg_size=1)
    got: list[list[bytes]] = [[], []]

    def writer(base: int) -> None:
        for first in range(base, base + 3000, 60):
            q.put_many(words(*range(first, first + 60)), timeout=20)

    def reader(mine: list[bytes], *, arrow: bool) -> None:
        while True:
            messages = q.get_arrow(70, timeout=20).to_pylist() if arrow else q.get_many(70, timeout=20)
            mine.extend(message for message in messages if message != bytes(8))
            if bytes(8) in messages:
                return

    writers = [threading.Thread(target=writer, args=[base]) for base in (10_000, 20_000)]
    readers = [threading.Thread(target=reader, args=[got[n]], kwargs={"arrow": n == 1}) for n in (0, 1)]
    for thread in writers + readers:
        thread.start()
    for thread in writers:
        thread.join()
    for thread in readers:
        # One end each: who has seen it takes no more.
        while thread.is_alive():
            q.put(bytes(8))
            thread.join(0.05)
    left = [message for message in q if message != bytes(8)]
    numbers = [struct.unpack("<Q", message)[0] for message in itertools.chain(*got, left)]
    assert sorted(numbers) == [*range(10_000, 13_000), *range(20_000, 23_000)]
    for mine in got:
        for base in (10_000, 20_000):
            part = [n for n in (struct.unpack("<Q", message)[0] for message in mine) if base <= n < base + 3000]
            assert part == sorted(part)


def _put_for_ever(path: Path) -> None:
    q = ring.Queue.open(path)
    for first in itertools.count(0, 100):
        q.put_many([struct.pack("<QQ", number, number) for number in range(first, first + 100)])


def _get_for_ever(path: Path) -> None:
    q = ring.Queue.open(path)
    while True:
        q.get_many(100)


def test_killed_batches_are_counted_and_hold_up_nobody(path: Path) -> None:
    q = ring.Queue.create(path, max_len=256, msg_size=2)
    context = multiprocessing.get_context("fork")
    for turn in range(10):
        children = [context.Process(target=role, args=[path]) for role in (_put_for_ever, _get_for_ever)]
        for child in children:
            child.start()
        before = q.counters["enqueued"]
        while q.counters["enqueued"] < before + 2000:
            time.sleep(0.001)
        for child in children[:: 1 if turn % 2 else -1]:
            child.kill()
            child.join()
        counters = q.counters
        assert max(counters["abandoned"], counters["lost_in_hands"]) <= 32 * (turn + 1)
        messages = q.snapshot()
        assert all(data[:8] == data[8:] for _, data in messages)
        # The places of abandoned messages are queued until they are skipped or overwritten.
        assert len(messages) <= counters["queued"]
        assert len(messages) <= counters["enqueued"] - sum(counters[name] for name in COUNTERS)
        q.put_many(words(*range(300)))
        assert [data[:8] for data in q.get_many(1000)] == words(*range(44, 300))
