"""The processes of the demo: ``python -m tailrace.demo.stages STAGE JSON``. Each may be killed at any moment.

Why nothing is lost: a producer's rows count when aq has committed them, and its replacement goes on behind the last
one that it noted; the collector releases an item of aq only when conq has it; a worker finishes a message of conq only
when mcp has the result; the spooler is there until mcp says that all writers are gone, and qewqew keeps what it gets.

Why nothing is doubled: what a killed process had passed on but not noted comes again, and is recognised by its row
number: by the collector (rows of a producer only grow) and by the spooler (it has seen every row at most once).
"""

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tailrace import aq, conq, mcp, qewqew, ring
from tailrace.demo.data import Flights, finish, number_of
from tailrace.demo.progress import Progress
from tailrace.errors import EndOfFile, MessageNotFound

__all__ = ["Places", "main"]

#: Seconds for which a worker has a message to itself; a killed one's message comes back after them.
LEASE = 2.0
BATCH = 256
#: Longest line that a worker writes is 134 bytes.
RECORD = 256


class Places:
    """Where the queues and counters of a run are."""

    def __init__(self, directory: Path, spool: Path) -> None:
        self.directory = directory
        self.aq = str(directory / "flights.aq")
        self.conq = str(directory / "conq")
        self.mcp = str(directory / "mcp")
        self.ring = str(directory / "latest.ring")
        self.qewqew = str(spool)

    def progress(self, who: str) -> Progress:
        """Give the counters of a process, made if need be."""
        return Progress(self.directory / f"{who}.progress")

    def create(self) -> None:
        """Make the queues."""
        aq.Queue.create(self.aq, size=1 << 20, page_size=64).close()
        ring.Queue.create(self.ring, max_len=64, msg_size=RECORD // 8).close()
        conq.QueueManager.open(self.conq).create_queue("flights", max_messages=20_000, max_bytes=16 << 20)

    def pipe(self, mode: str) -> Any:
        """Open the pipe from the workers to the spooler."""
        return mcp.QueueFile.open("RESULTS", mode, system=self.mcp, max_messages=4000, buffers=4000, record_size=RECORD)


def produce(
    places: Places, who: str, patience: int, limit: int | None, first: int, last: int, drop: int | None = None
) -> None:
    """Send rows ``first`` up to ``last`` into aq, from behind the last one that a killed predecessor noted."""
    progress = places.progress(who)
    messages = Flights(limit).messages()
    with aq.Queue.open(places.aq) as queue:
        for row in range(first + progress["handled"], last):
            # A fault planted by the tests: a demo that cannot fail proves nothing.
            if row != drop:
                queue.put(messages[row])
            progress["handled"] = row - first + 1
            if row - first == patience:
                progress.wait_for_the_kill()
    progress["done"] = 1


def collect(places: Places, shares: list[list[int]]) -> None:
    """Be the one reader of aq: hand every row on to conq, once."""
    progress = places.progress("collector")
    ends = {last: first for first, last in shares}
    newest = dict.fromkeys(ends, -1)
    producers = [places.progress(f"producer-{index}") for index in range(len(shares))]
    queue = aq.Queue.open(places.aq)
    jobs = conq.QueueManager.open(places.conq).queue("flights")
    with queue, jobs, queue.reader() as reader:
        while True:
            # Asked before the look into the queue, so that nothing can come behind the last look.
            finished = all(producer["done"] for producer in producers)
            item = reader.retrieve(timeout=0.1)
            if item is None:
                if finished:
                    break
                continue
            if not item.is_committed:
                progress["incomplete"] += 1
            else:
                data = bytes(item)
                row = number_of(data)
                share = next(last for last in ends if ends[last] <= row < last)
                if row <= newest[share]:
                    progress["repeats"] += 1
                else:
                    jobs.put(data)
                    newest[share] = row
                    progress["handled"] += 1
            reader.release(item)
    progress["done"] = 1


def work(places: Places, who: str, patience: int) -> None:
    """Finish flights: read from conq, write the result into mcp and the ring, and only then say that it is done."""
    progress = places.progress(who)
    collector = places.progress("collector")
    airlines = Flights().airlines()
    jobs = conq.QueueManager.open(places.conq).queue("flights")
    with jobs, ring.Queue.open(places.ring) as latest, places.pipe("output") as results:
        while True:
            finished = collector["done"]
            job = jobs.read(timeout=LEASE)
            if job is None:
                stats = jobs.stats()
                if finished and not (stats.ready or stats.leased or stats.expired):
                    break
                time.sleep(0.005)
                continue
            result = finish(job.data, airlines)
            results.write(result)
            latest.enqueue(result)
            try:
                jobs.dequeue(job)
            except MessageNotFound:
                # Slower than the lease: somebody else has it, and the spooler will see it twice.
                progress["incomplete"] += 1
            progress["handled"] += 1
            if progress["handled"] == patience:
                progress.wait_for_the_kill()
    progress["done"] = 1


def spool(places: Places, rows: int) -> None:
    """Read mcp up to its end and keep every row, once, in the durable queue."""
    progress = places.progress("spooler")
    seen = bytearray(rows)
    with places.pipe("input") as results, qewqew.DurableQueue(places.qewqew, sync="group", role="producer") as durable:
        while True:
            try:
                batch = results.get_many(BATCH)
            except EndOfFile:
                break
            fresh = []
            for message in batch:
                row = number_of(message)
                if seen[row]:
                    progress["repeats"] += 1
                else:
                    seen[row] = 1
                    fresh.append(message)
            if fresh:
                durable.put_many(fresh)
            progress["handled"] += len(fresh)
        durable.sync()
    progress["done"] = 1


def main(arguments: list[str]) -> None:
    """Run one stage."""
    stage, text = arguments
    given = json.loads(text)
    places = Places(Path(given.pop("directory")), Path(given.pop("spool")))
    if stage == "sink":
        from tailrace.demo.sinks import drain

        drain(places, **given)
    else:
        stages: dict[str, Callable[..., None]] = {"produce": produce, "collect": collect, "work": work, "spool": spool}
        stages[stage](places, **given)


if __name__ == "__main__":
    main(sys.argv[1:])
