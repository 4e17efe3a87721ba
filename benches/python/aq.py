"""aq between Python processes beside multiprocessing.Queue, pyzmq, posix_ipc, sockets: 1->1 and 4->1, 64 B and 4 KiB.

python benches/python/aq.py [seconds per run]

The ratios are to the best of the others on the same work in the same run: one message per call, then batches of 100.
"""

import os
import sys
from functools import partial
from pathlib import Path

from between import BATCH, Job, Line, directory, table
from peers import all_peers, drained, drained_batches, repeated, repeated_batches

from tailrace import aq


def share(job: Job) -> Path:
    """Make a queue with room for a thousand messages of 4 KiB."""
    path = job.directory / f"aq-{os.urandom(4).hex()}"
    aq.Queue.create(path, size=4 << 20).close()
    return path


SINGLE = [
    Line(
        "tailrace.aq put/get",
        share,
        lambda path, job: repeated(aq.Queue.open(path).put, job.messages),
        lambda path, _job: drained(aq.Queue.open(path).get),
        ours=True,
    ),
]

BATCHED = [
    Line(
        "tailrace.aq put_many/get_many",
        share,
        lambda path, job: repeated_batches(aq.Queue.open(path).put_many, job.messages),
        lambda path, _job: drained_batches(partial(aq.Queue.open(path).get_many, BATCH)),
        ours=True,
    ),
    Line(
        "tailrace.aq put_many/get_arrow",
        share,
        lambda path, job: repeated_batches(aq.Queue.open(path).put_many, job.messages),
        lambda path, _job: drained_batches(partial(aq.Queue.open(path).get_arrow, BATCH)),
        ours=True,
    ),
]


def main() -> None:
    """Measure and print the tables."""
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 0.5
    single, batched = all_peers()
    with directory() as path:
        for size, shown in ((64, "64 B"), (4096, "4 KiB")):
            for producers in (1, 4):
                job = Job(size, producers, path)
                table(f"{shown}, {producers} -> 1, one message per call", SINGLE + single, job, seconds)
                table(f"{shown}, {producers} -> 1, batches of {BATCH}", BATCHED + batched, job, seconds)


if __name__ == "__main__":
    main()
