"""tailrace.aq between threads and processes: handles that travel, waits, Ctrl-C, kills."""

import multiprocessing
import os
import pickle
import queue
import random
import signal
import struct
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

import tailrace
from aq_queues import directory, path, q
from harness import Args, Oracle, Promise, Watchdog, Workers, payload
from tailrace import aq

__all__ = ["directory", "path", "q"]


SOAK = os.environ.get("TAILRACE_SOAK", "0") not in ("", "0")


# Other threads and processes


def test_handles_travel(q: aq.Queue) -> None:
    copy = pickle.loads(pickle.dumps(q))
    copy.put(b"travelled")
    assert q.get() == b"travelled"
    for made in (aq.Queue.anonymous(), aq.Queue.heap()):
        with pytest.raises(TypeError, match="cannot be pickled"):
            pickle.dumps(made)


def put_some(q: aq.Queue, count: int) -> None:
    for number in range(count):
        q.put(b"%d %d" % (os.getpid(), number))


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_processes(q: aq.Queue, method: str) -> None:
    context = multiprocessing.get_context(method)
    children = [context.Process(target=put_some, args=(q, 500)) for _ in range(3)]
    for child in children:
        child.start()
    seen: dict[bytes, int] = {}
    for _ in range(1500):
        pid, number = q.get(timeout=30).split()
        assert seen.get(pid, 0) == int(number)
        seen[pid] = int(number) + 1
    for child in children:
        child.join()
        assert child.exitcode == 0
    assert sorted(seen.values()) == [500, 500, 500]


def test_anonymous_memory_is_shared_with_forked_children() -> None:
    q = aq.Queue.anonymous(size=1 << 14)
    q.put(b"before")
    # The parent is the reader: the child is refused.
    assert q.get() == b"before"
    child = os.fork()
    if child == 0:
        code = 1
        try:
            q.put(b"from the child")
            with pytest.raises(tailrace.AlreadyOpen):
                q.get(timeout=0)
            code = 0
        finally:
            os._exit(code)
    assert q.get(timeout=20) == b"from the child"
    assert os.waitpid(child, 0)[1] == 0


def test_a_child_leaves_the_claims_of_its_parent_alone(q: aq.Queue) -> None:
    w = q.writer()
    item = w.claim(4)
    item.write(b"mine")
    child = os.fork()
    if child == 0:
        code = 1
        try:
            with pytest.raises(ValueError, match="fork"):
                w.commit(item)
            q.put(b"child")
            code = 0
        finally:
            os._exit(code)
    assert os.waitpid(child, 0)[1] == 0
    assert w.commit(item)
    assert sorted(q.get_many(5)) == [b"child", b"mine"]


def test_threads_wait_without_the_gil(q: aq.Queue) -> None:
    got: list[bytes] = []
    waiting = [threading.Thread(target=lambda: got.append(q.get(timeout=30))) for _ in range(4)]
    for thread in waiting:
        thread.start()
    turns, end = 0, time.monotonic() + 0.2
    while time.monotonic() < end:
        turns += 1
    assert turns > 1000
    q.put_many([b"1", b"2", b"3", b"4"])
    for thread in waiting:
        thread.join()
    assert sorted(got) == [b"1", b"2", b"3", b"4"]


def test_writers_in_threads(path: Path) -> None:
    q = aq.Queue.create(path, size=1 << 14)

    def write(number: int) -> None:
        for sequence in range(2000):
            q.put(struct.pack("<II", number, sequence))

    writers = [threading.Thread(target=write, args=(number,)) for number in range(4)]
    for thread in writers:
        thread.start()
    following = [0] * 4
    for _ in range(8000):
        number, sequence = struct.unpack("<II", q.get(timeout=30))
        assert following[number] == sequence
        following[number] += 1
    for thread in writers:
        thread.join()


@pytest.mark.parametrize("code", ["q.get()", "q.reader().retrieve(None)", "q.get_arrow(1)", "fill()"])
def test_ctrl_c_ends_a_wait(q: aq.Queue, code: str) -> None:
    program = f"""
import sys
from tailrace import aq
q = aq.Queue.open({str(q.path)!r})
def fill():
    while True:
        q.put(bytes(1000))
print("ready", flush=True)
try:
    {code}
except KeyboardInterrupt:
    sys.exit(7)
"""
    child = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE)
    assert child.stdout is not None
    child.stdout.readline()
    time.sleep(0.1)
    child.send_signal(signal.SIGINT)
    assert child.wait(10) == 7
    child.stdout.close()


# Death


def claim_and_die(args: Args) -> None:
    q = aq.Queue.open(args["path"])
    item = q.writer().claim(100)
    item.write(b"what I was doing")
    args.ready()
    time.sleep(1000)


def test_what_a_killed_writer_was_doing_stays_readable(path: Path, tmp_path: Path) -> None:
    q = aq.Queue.create(path, size=1 << 14, commit_timeout=3600)
    r = q.reader()
    with Workers(tmp_path) as workers, Watchdog("aq", 60, workers):
        worker = workers.spawn(claim_and_die, path=str(path))
        worker.wait_ready()
        q.put(b"other")
        other = r.retrieve(timeout=1)
        assert other is not None
        assert bytes(other) == b"other"
        assert r.retrieve(timeout=0.1) is None
        worker.kill()
        item = r.retrieve(timeout=10)
    assert item is not None
    assert (item.is_committed, bytes(item)[:16]) == (False, b"what I was doing")
    r.release(item)
    r.release(other)
    assert r.retrieve() is None
    assert q.info()["participants"]["dead"] == 1


def test_reap(path: Path, tmp_path: Path) -> None:
    q = aq.Queue.create(path, size=1 << 14, commit_timeout=3600)
    with Workers(tmp_path) as workers, Watchdog("aq", 60, workers):
        worker = workers.spawn(claim_and_die, path=str(path))
        worker.wait_ready()
        assert q.reap() == 0
        worker.kill()
        end = time.monotonic() + 10
        while q.incomplete_count == 0 and time.monotonic() < end:
            q.reap()
    assert q.incomplete_count == 1
    assert q.snapshot()[0].is_released


def produce(args: Args) -> None:
    q, journal = aq.Queue.open(args["path"]), args.journal()
    args.ready()
    for sequence in range(args["most"]):
        message = payload.make(args["id"], sequence, 20 + sequence * 37 % 300)
        ticket = journal.attempt_put(0, message)
        q.put(message)
        journal.acknowledged(ticket)
        if sequence % 8 == 0:
            time.sleep(0)
    time.sleep(1000)


def consume(args: Args) -> None:
    q, journal = aq.Queue.open(args["path"]), args.journal()
    r = q.reader()
    args.ready()
    while True:
        ticket = journal.attempt_get(0)
        item = r.retrieve(timeout=0.05)
        if item is None or not item.is_committed:
            journal.nothing(ticket)
            if item is not None:
                r.release(item)
            continue
        identity = journal.got(ticket, bytes(item))
        ticket = journal.attempt_ack(0, identity)
        r.release(item)
        journal.acknowledged(ticket)


@pytest.mark.timeout(1200)
def test_random_kills_lose_nothing(path: Path, tmp_path: Path) -> None:
    kills, generator = (200 if SOAK else 12), random.Random(5)
    q = aq.Queue.create(path, size=1 << 15, commit_timeout=3600)
    journals = []
    with Workers(tmp_path) as workers, Watchdog("aq kills", 1000, workers):
        number = 0

        def producer():
            nonlocal number
            number += 1
            return workers.fork(produce, journal=60_000, path=str(path), id=number, most=60_000)

        def consumer():
            return workers.fork(consume, journal=600_000, path=str(path))

        alive = [producer(), producer(), producer(), producer(), consumer()]
        for _ in range(kills):
            time.sleep(generator.random() * 0.05)
            victim = generator.randrange(5)
            alive[victim].kill()
            journals.append(alive[victim].records())
            alive[victim] = consumer() if victim == 4 else producer()
            before, end = q.commit_counter, time.monotonic() + 5
            while q.commit_counter == before:
                assert time.monotonic() < end, "nothing moves after a kill"
                time.sleep(0.001)
        for worker in alive:
            worker.kill()
            journals.append(worker.records())
    left = []
    end = time.monotonic() + 5
    while True:
        try:
            left.append(q.get(timeout=0.3))
        except queue.Empty:
            break
        except tailrace.AlreadyOpen:
            assert time.monotonic() < end
    oracle = Oracle(Promise.until_acked())
    for records in journals:
        oracle.journal(records)
    oracle.left(0, left)
    oracle.check().assert_ok(f"{kills} kills")
