"""conq beside a hand-written lock+deque+dict+heap queue and queue.Queue: cycles of enqueue, read, dequeue.

python benches/python/conq.py [seconds per line]

Every line runs its cycles for a while in 1 and in 8 threads; the median of five such runs counts. The ratios are to the
hand-written queue, which is the only other one here with a timeout for unfinished messages.
"""

import heapq
import queue
import statistics
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable

from tailrace import conq

MESSAGE = b"x" * 64
LEASE = 60.0
RUNS = 5
BATCH = 100

Cycle = Callable[[], None]


class HandWritten:
    """What people write themselves: a lock, a deque for the waiting, a dict for the leased, a heap for the timeouts."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._ready: deque[tuple[int, bytes]] = deque()
        self._leased: dict[int, tuple[float, bytes]] = {}
        self._expiries: list[tuple[float, int]] = []
        self._next = 0

    def enqueue(self, data: bytes) -> None:
        """Add a message."""
        with self._lock:
            self._ready.append((self._next, data))
            self._next += 1

    def _maintain(self, now: float) -> None:
        while self._expiries and self._expiries[0][0] < now:
            deadline, key = heapq.heappop(self._expiries)
            leased = self._leased.get(key)
            if leased is not None and leased[0] == deadline:
                del self._leased[key]
                self._ready.appendleft((key, leased[1]))

    def read(self, timeout: float) -> tuple[int, bytes] | None:
        """Take a message until the timeout."""
        now = time.monotonic()
        with self._lock:
            self._maintain(now)
            if not self._ready:
                return None
            key, data = self._ready.popleft()
            self._leased[key] = (now + timeout, data)
            heapq.heappush(self._expiries, (now + timeout, key))
            return key, data

    def dequeue(self, key: int) -> bytes:
        """Finish a message."""
        with self._lock:
            self._maintain(time.monotonic())
            data = self._leased.pop(key)[1]
            # Entries of the finished would pile up for the length of a lease.
            while self._expiries and self._expiries[0][1] not in self._leased:
                heapq.heappop(self._expiries)
            return data


def hand_written() -> Cycle:
    """Give a cycle on a new hand-written queue."""
    q = HandWritten()

    def cycle() -> None:
        q.enqueue(MESSAGE)
        taken = q.read(LEASE)
        if taken is not None:
            q.dequeue(taken[0])

    return cycle


def standard() -> Cycle:
    """Give a cycle on a new queue.Queue: put, get, task_done; without timeouts."""
    q: queue.Queue[bytes] = queue.Queue()

    def cycle() -> None:
        q.put(MESSAGE)
        q.get()
        q.task_done()

    return cycle


def managed(manager: conq.QueueManager) -> Cycle:
    """Give a cycle on a new conq queue, by its id."""
    jobs = manager.create_queue(f"bench-{time.monotonic_ns()}")
    enqueue, read, dequeue = manager.enqueue, manager.read, manager.dequeue

    def cycle() -> None:
        enqueue(jobs, MESSAGE)
        message = read(jobs, LEASE)
        if message is not None:
            dequeue(jobs, message)

    return cycle


def by_name(manager: conq.QueueManager) -> Cycle:
    """Give a cycle on a new conq queue, through its own object."""
    name = f"bench-{time.monotonic_ns()}"
    manager.create_queue(name)
    q = manager.queue(name)
    enqueue, read, dequeue = q.enqueue, q.read, q.dequeue

    def cycle() -> None:
        enqueue(MESSAGE)
        message = read(LEASE)
        if message is not None:
            dequeue(message)

    return cycle


def batched(manager: conq.QueueManager) -> Cycle:
    """Give a cycle of 100 messages through put_many and get_many."""
    name = f"bench-{time.monotonic_ns()}"
    manager.create_queue(name)
    q = manager.queue(name)
    messages = [MESSAGE] * BATCH

    def cycle() -> None:
        q.put_many(messages)
        q.get_many(BATCH)

    return cycle


def measure(cycle: Cycle, threads: int, seconds: float) -> float:
    """Count cycles per second of so many threads on one queue."""
    over = False
    counts = [0] * threads

    def work(place: int) -> None:
        done = 0
        while not over:
            for _ in range(200):
                cycle()
            done += 200
        counts[place] = done

    workers = [threading.Thread(target=work, args=(place,)) for place in range(threads)]
    started = time.perf_counter()
    for worker in workers:
        worker.start()
    time.sleep(seconds)
    over = True
    for worker in workers:
        worker.join()
    return sum(counts) / (time.perf_counter() - started)


def main() -> None:
    """Measure every line in turn, five times around, and print the medians."""
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 0.5
    with tempfile.TemporaryDirectory(dir="/dev/shm") as directory:
        process, host = conq.QueueManager(), conq.QueueManager.open(directory)
        lines: dict[str, tuple[Callable[[], Cycle], int]] = {
            "hand-written lock+deque+dict+heap": (hand_written, 1),
            "queue.Queue put/get/task_done (no timeouts)": (standard, 1),
            "conq, this process, by id": (lambda: managed(process), 1),
            "conq, this process, queue object": (lambda: by_name(process), 1),
            "conq, host-wide, by id": (lambda: managed(host), 1),
            "conq, host-wide, queue object": (lambda: by_name(host), 1),
            "conq, this process, put_many/get_many of 100": (lambda: batched(process), BATCH),
        }
        for threads in (1, 8):
            results: dict[str, list[float]] = {line: [] for line in lines}
            for _ in range(RUNS):
                for line, (make, per_cycle) in lines.items():
                    results[line].append(per_cycle * measure(make(), threads, seconds))
            base = statistics.median(results["hand-written lock+deque+dict+heap"])
            print(f"{threads} thread(s)")
            for line, runs in results.items():
                rate = statistics.median(runs)
                print(f"  {line:46} {rate / 1e6:7.3f} M cycles/s  {1e9 / rate:7.0f} ns  {rate / base:5.1f}x")


if __name__ == "__main__":
    main()
