"""mcp beside POSIX message queues and multiprocessing.Queue: messages between processes, one per call.

python benches/python/mcp.py [seconds per line]

Every line runs its writers and readers, each a process, for a while; the rate is that of the messages that were read.
The median of five such runs counts, the lines taking turns. Ratios are to the POSIX queue, whose default depth is 10.
"In memory" has a buffer for every message, "spilling" two buffers, so that nearly all go through the queue disk (a file
of the same directory, in memory here as well: what is measured is the work of spilling, not a disk).
"""

import multiprocessing
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from multiprocessing.queues import Queue
from pathlib import Path
from typing import Protocol

import posix_ipc

from tailrace import EndOfFile, mcp

RUNS = 5
BATCH = 100
CONTEXT = multiprocessing.get_context("fork")


class Line(Protocol):
    """One way to carry messages; made before the processes start."""

    def write_until(self, end: float, message: bytes) -> None:
        """Write as fast as possible, then say that this writer is done."""

    def read_all(self) -> tuple[int, float]:
        """Read until there is nothing to come; the number of messages, and when the last one came."""

    def finish(self, readers: int) -> None:
        """Tell the readers, when all writers are done."""

    def remove(self) -> None:
        """Leave nothing behind."""


class QueueFiles:
    """Queue files, one message per call or in batches. Readers see the end by themselves."""

    def __init__(self, directory: Path, size: int, max_messages: int, buffers: int, batch: int = 1) -> None:
        name = f"B{time.monotonic_ns() % 10**8}"
        self._parameters = mcp.FileParameters(name, max_messages, size, buffers)
        self._directory, self._batch = directory, batch
        # Keeps the queue, and keeps its end from coming before the first writer is there.
        self._keeper = self._parameters.open("output", directory)

    def write_until(self, end: float, message: bytes) -> None:
        """Write for a while."""
        with self._parameters.open("output", self._directory) as file:
            if self._batch > 1:
                messages, put_many = [message] * self._batch, file.put_many
                while time.monotonic() < end:
                    put_many(messages)
                return
            put = file.put
            while time.monotonic() < end:
                for _ in range(50):
                    put(message)

    def read_all(self) -> tuple[int, float]:
        """Read to the end."""
        count = 0
        with self._parameters.open("input", self._directory) as file:
            try:
                if self._batch > 1:
                    while True:
                        count += len(file.get_many(self._batch))
                get = file.get
                while True:
                    get()
                    count += 1
            except EndOfFile:
                return count, time.monotonic()

    def finish(self, readers: int) -> None:
        """All writers are done."""
        del readers
        self._keeper.close()

    def remove(self) -> None:
        """Leave nothing behind."""
        self._keeper.close()


class PosixQueue:
    """A POSIX message queue of the kernel; an empty message is the end."""

    def __init__(self, size: int) -> None:
        self._queue = posix_ipc.MessageQueue(
            f"/tailrace-{os.getpid()}-{time.monotonic_ns()}", posix_ipc.O_CREX, max_messages=10, max_message_size=size
        )

    def write_until(self, end: float, message: bytes) -> None:
        """Write for a while."""
        send = self._queue.send
        while time.monotonic() < end:
            for _ in range(50):
                send(message)

    def read_all(self) -> tuple[int, float]:
        """Read to the end."""
        receive, count = self._queue.receive, 0
        while receive()[0]:
            count += 1
        return count, time.monotonic()

    def finish(self, readers: int) -> None:
        """All writers are done."""
        for _ in range(readers):
            self._queue.send(b"")

    def remove(self) -> None:
        """Leave nothing behind."""
        self._queue.close()
        self._queue.unlink()


class StandardQueue:
    """multiprocessing.Queue; None is the end."""

    def __init__(self) -> None:
        self._queue: Queue[bytes | None] = CONTEXT.Queue(1000)

    def write_until(self, end: float, message: bytes) -> None:
        """Write for a while."""
        put = self._queue.put
        while time.monotonic() < end:
            for _ in range(50):
                put(message)

    def read_all(self) -> tuple[int, float]:
        """Read to the end."""
        get, count = self._queue.get, 0
        while get() is not None:
            count += 1
        return count, time.monotonic()

    def finish(self, readers: int) -> None:
        """All writers are done."""
        for _ in range(readers):
            self._queue.put(None)

    def remove(self) -> None:
        """Leave nothing behind."""
        self._queue.close()


def measure(line: Line, size: int, pairs: int, seconds: float) -> float:
    """Messages per second from so many writers to as many readers."""
    results = CONTEXT.SimpleQueue()
    started = CONTEXT.Barrier(2 * pairs + 1)
    message = b"x" * size

    def write() -> None:
        started.wait()
        line.write_until(time.monotonic() + seconds, message)

    def read() -> None:
        started.wait()
        results.put(line.read_all())

    writers = [CONTEXT.Process(target=write) for _ in range(pairs)]
    readers = [CONTEXT.Process(target=read) for _ in range(pairs)]
    for process in writers + readers:
        process.start()
    started.wait()
    begin = time.monotonic()
    for writer in writers:
        writer.join()
    line.finish(pairs)
    taken = [results.get() for _ in readers]
    for reader in readers:
        reader.join()
    line.remove()
    return sum(count for count, _ in taken) / (max(end for _, end in taken) - begin)


def main() -> None:
    """Measure every line in turn, five times around, and print the medians."""
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 0.4
    with tempfile.TemporaryDirectory(dir="/dev/shm") as name:
        directory = Path(name)
        for size in (64, 4096):
            lines: dict[str, Callable[[], Line]] = {
                "posix_ipc message queue, depth 10": lambda size=size: PosixQueue(size),
                "multiprocessing.Queue": StandardQueue,
                "mcp in memory, depth 10": lambda size=size: QueueFiles(directory, size, 10, 10),
                "mcp in memory, depth 1000": lambda size=size: QueueFiles(directory, size, 1000, 1000),
                "mcp spilling, depth 1000": lambda size=size: QueueFiles(directory, size, 1000, 2),
                "mcp in memory, batches of 100": lambda size=size: QueueFiles(directory, size, 1000, 1000, BATCH),
                "mcp spilling, batches of 100": lambda size=size: QueueFiles(directory, size, 1000, 2, BATCH),
            }
            for pairs in (1, 4):
                results: dict[str, list[float]] = {line: [] for line in lines}
                for _ in range(RUNS):
                    for line, make in lines.items():
                        results[line].append(measure(make(), size, pairs, seconds))
                base = statistics.median(results["posix_ipc message queue, depth 10"])
                print(f"{size} B, {pairs} -> {pairs}")
                for line, runs in results.items():
                    rate = statistics.median(runs)
                    print(f"  {line:36} {rate / 1e6:7.3f} M msg/s  {rate / base:5.2f}x")


if __name__ == "__main__":
    main()
