"""ring between two Python processes, 64 B, beside iceoryx2 with safe overflow, multiprocessing.Queue, pyzmq and others.

python benches/python/ring.py [seconds per run]

A ring overwrites: with 1,024 slots the consumer gets what it is fast enough for, and the table counts what came. So
does iceoryx2 with safe overflow and the same depth. The other queues lose nothing, nor does the ring with room for all.
"""

import ctypes
import importlib.util
import os
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

from between import BATCH, Consume, Job, Line, Produce, directory, table
from peers import all_peers, drained, drained_batches, repeated, repeated_batches

from tailrace import ring

DEPTH = 1_024
#: The most messages of a run in which nothing is overwritten.
ROOM = 1 << 21
END = b"e" * 64


def share(job: Job, max_len: int = DEPTH) -> Path:
    """Make a ring."""
    path = job.directory / f"ring-{os.urandom(4).hex()}"
    ring.Queue.create(path, max_len=max_len, msg_size=job.size // 8).close()
    return path


def share_room(job: Job) -> Path:
    """Make a ring that nothing is overwritten in. Only one at a time: it is large."""
    for old in job.directory.glob("ring-*"):
        old.unlink()
    return share(job, ROOM)


def ended(produce: Produce, put: Any) -> Produce:
    """Say at the end that it was the end."""

    def with_end(count: int) -> None:
        produce(count)
        put(END)

    return with_end


def until_end(get: Any) -> Consume:
    """Give a function that counts messages up to the end."""

    def consume(_count: int) -> int:
        came = 0
        while get() != END:
            came += 1
        return came

    return consume


def until_end_batches(get: Any) -> Consume:
    """As until_end, whatever comes with each call."""

    def consume(_count: int) -> int:
        came = 0
        while (messages := get())[-1] != END:
            came += len(messages)
        return came + len(messages) - 1

    return consume


def put_one_by_one(path: Path, job: Job) -> Produce:
    """One message per call."""
    q = ring.Queue.open(path)
    return ended(repeated(q.put, job.messages), q.put)


def put_batches(path: Path, job: Job) -> Produce:
    """Batches of 100."""
    q = ring.Queue.open(path)
    return ended(repeated_batches(q.put_many, job.messages), q.put)


SINGLE = [
    Line(
        "tailrace.ring, 1,024 slots",
        share,
        put_one_by_one,
        lambda path, _job: until_end(ring.Queue.open(path).get),
        ours=True,
    ),
    Line(
        "tailrace.ring, nothing overwritten",
        share_room,
        lambda path, job: repeated(ring.Queue.open(path).put, job.messages),
        lambda path, _job: drained(ring.Queue.open(path).get),
        ours=True,
        most=ROOM,
    ),
]

BATCHED = [
    Line(
        "tailrace.ring, 1,024 slots, batches",
        share,
        put_batches,
        lambda path, _job: until_end_batches(partial(ring.Queue.open(path).get_many, BATCH)),
        ours=True,
    ),
    Line(
        "tailrace.ring, nothing overwritten, batches",
        share_room,
        lambda path, job: repeated_batches(ring.Queue.open(path).put_many, job.messages),
        lambda path, _job: drained_batches(partial(ring.Queue.open(path).get_many, BATCH)),
        ours=True,
        most=ROOM,
    ),
]


def iceoryx() -> Line:
    """Publish and subscribe with safe overflow: a full buffer drops its oldest, as a ring does."""
    import iceoryx2 as iox

    iox.set_log_level(iox.LogLevel.Fatal)

    def service(name: str) -> tuple[Any, Any]:
        node = iox.NodeBuilder.new().create(iox.ServiceType.Ipc)
        made = (
            node.service_builder(iox.ServiceName.new(name))
            .publish_subscribe(iox.Slice[ctypes.c_uint8])
            .enable_safe_overflow(True)
            .subscriber_max_buffer_size(DEPTH)
            .open_or_create()
        )
        return node, made

    def producer(name: str, job: Job) -> Produce:
        node, made = service(name)
        publisher = made.publisher_builder().initial_max_slice_len(job.size).create()
        messages = [ctypes.create_string_buffer(message, job.size) for message in (*job.messages, END)]

        def put(message: Any) -> None:
            # It can reach nobody although somebody is there.
            delivered = 0
            while delivered == 0:
                sample = publisher.loan_slice_uninit(job.size)
                ctypes.memmove(sample.payload_ptr, message, job.size)
                delivered = sample.assume_init().send()

        produce = repeated(put, messages[:BATCH])

        def with_end(count: int, _keep: Any = node) -> None:
            while made.dynamic_config.number_of_subscribers == 0:
                time.sleep(0.001)
            produce(count)
            put(messages[BATCH])

        return with_end

    def consumer(name: str, job: Job) -> Consume:
        node, made = service(name)
        subscriber = made.subscriber_builder().buffer_size(DEPTH).create()

        def get(_keep: Any = node) -> bytes:
            while True:
                sample = subscriber.receive()
                if sample is not None:
                    return ctypes.string_at(sample.payload_ptr, job.size)

        return until_end(get)

    return Line("iceoryx2, safe overflow, 1,024 deep", lambda _job: f"bench/{os.urandom(6).hex()}", producer, consumer)


def main() -> None:
    """Measure and print the tables."""
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 0.5
    single, batched = all_peers()
    if importlib.util.find_spec("iceoryx2"):
        single.insert(0, iceoryx())
    with directory() as path:
        job = Job(64, 1, path)
        table("64 B, 1 -> 1, one message per call", SINGLE + single, job, seconds)
        table(f"64 B, 1 -> 1, batches of {BATCH}", BATCHED + batched, job, seconds)


if __name__ == "__main__":
    main()
