"""Messages between processes: so many producers, one consumer, the same work for every queue in the same run.

A line of a table gives three functions. `share` makes, before the fork, what both sides know; `producer` and `consumer`
connect to it in their own process and give back the function that is measured. A first batch from every producer, which
does not count, shows that all are connected and warm; then the clock of the consumer runs to the last message.
Producers stay until the consumer is done: those of some libraries lose messages otherwise. The queues take turns, and
the median of the runs counts.
"""

import contextlib
import multiprocessing
import os
import shutil
import signal
import statistics
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Any

BATCH = 100
RUNS = 5
#: Seconds after which a run counts as hung.
LIMIT = 60

Produce = Callable[[int], None]
Consume = Callable[[int], int]

context = multiprocessing.get_context("fork")


@dataclass(frozen=True)
class Job:
    """What is to be done."""

    size: int
    producers: int
    directory: Path

    @property
    def messages(self) -> list[bytes]:
        """A batch of different messages: pickle writes an object that it has met before only once."""
        return [b"%08d" % number + b"x" * (self.size - 8) for number in range(BATCH)]


@dataclass(frozen=True)
class Line:
    """A queue in a table. `consumer` gets the count to expect and says how many came; a run has at most `most`."""

    name: str
    share: Callable[[Job], Any]
    producer: Callable[[Any, Job], Produce]
    consumer: Callable[[Any, Job], Consume]
    ours: bool = False
    most: int = 1 << 40


def measure(line: Line, job: Job, count: int) -> tuple[float, float]:
    """Messages per second of one run: sent, and received."""
    shared = line.share(job)
    each = max(1, count // job.producers // BATCH) * BATCH
    barrier = context.Barrier(job.producers + 1)
    done = context.Event()
    elapsed, received = context.Value("d", 0.0), context.Value("q", 0)

    def produce() -> None:
        send = line.producer(shared, job)
        send(BATCH)
        barrier.wait(LIMIT)
        send(each)
        done.wait(LIMIT)
        # Without the threads and sockets that some libraries would wait for.
        os._exit(0)

    def consume() -> None:
        take = line.consumer(shared, job)
        take(BATCH * job.producers)
        barrier.wait(LIMIT)
        started = perf_counter()
        came = take(each * job.producers)
        elapsed.value, received.value = perf_counter() - started, came
        done.set()

    processes = [context.Process(target=produce) for _ in range(job.producers)]
    consumer = context.Process(target=consume)
    for process in (consumer, *processes):
        process.start()
    consumer.join(LIMIT)
    hung = consumer.exitcode != 0
    for process in (consumer, *processes):
        if hung:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process.pid, signal.SIGKILL)
        process.join()
    for part in shared if isinstance(shared, tuple) else (shared,):
        if hasattr(part, "close"):
            part.close()
    if hung:
        raise RuntimeError("the consumer did not finish")
    return each * job.producers / elapsed.value, received.value / elapsed.value


def calibrated(line: Line, job: Job, seconds: float) -> int:
    """How many messages take about so long."""
    count = 10_000
    while count < line.most:
        rate, _ = measure(line, job, count)
        if count / rate > seconds / 4:
            return min(int(rate * seconds), line.most)
        count *= 4
    return line.most


def table(title: str, lines: Sequence[Line], job: Job, seconds: float) -> None:
    """Measure the lines in turn and print them with their ratios to the best that is not ours."""
    counts: dict[str, int] = {}
    rates: dict[str, list[tuple[float, float]]] = {}
    for line in lines:
        try:
            counts[line.name] = calibrated(line, job, seconds)
            rates[line.name] = []
        except (OSError, RuntimeError, ValueError) as error:
            print(f"  {line.name}: {error}")
    for _ in range(RUNS):
        for line in lines:
            if line.name in counts:
                rates[line.name].append(measure(line, job, counts[line.name]))
    medians = {
        name: (statistics.median(sent for sent, _ in runs), statistics.median(came for _, came in runs))
        for name, runs in rates.items()
    }
    best = max((medians[line.name][1] for line in lines if line.name in medians and not line.ours), default=0.0)
    print(title)
    for line in lines:
        if line.name not in medians:
            continue
        sent, came = medians[line.name]
        note = f"  ({sent / 1e6:.3f} M/s sent)" if abs(sent - came) > 0.01 * sent else ""
        ratio = f"{came / best:6.2f}x" if best else ""
        print(f"  {line.name:44} {came / 1e6:8.3f} M msg/s {came * job.size / 1e6:9.1f} MB/s {ratio}{note}")


@contextlib.contextmanager
def directory() -> Any:
    """Give a directory in memory."""
    path = Path(tempfile.mkdtemp(dir="/dev/shm", prefix="tailrace-bench-"))
    try:
        yield path
    finally:
        shutil.rmtree(path)
