"""The queues that people would use instead, as lines of a table: one message per call, and batches of 100."""

import importlib.util
import multiprocessing
import os
import pickle
import shutil
import socket
from typing import Any

from between import BATCH, Consume, Job, Line, Produce


def repeated(put: Any, messages: list[bytes]) -> Produce:
    """Give a function that puts so many messages, one per call."""

    def produce(count: int) -> None:
        for _ in range(count // BATCH):
            for message in messages:
                put(message)

    return produce


def repeated_batches(put: Any, messages: list[bytes]) -> Produce:
    """Give a function that puts so many messages, a batch per call."""

    def produce(count: int) -> None:
        for _ in range(count // BATCH):
            put(messages)

    return produce


def drained(get: Any) -> Consume:
    """Give a function that gets so many messages, one per call."""

    def consume(count: int) -> int:
        for _ in range(count):
            get()
        return count

    return consume


def drained_batches(get: Any) -> Consume:
    """Give a function that gets so many messages, whatever comes with each call."""

    def consume(count: int) -> int:
        left = count
        while left > 0:
            left -= len(get())
        return count

    return consume


def multiprocessing_queue() -> list[Line]:
    """The queue of the standard library."""

    def share(_job: Job) -> Any:
        return multiprocessing.get_context("fork").Queue()

    return [
        Line(
            "multiprocessing.Queue",
            share,
            lambda q, job: repeated(q.put, job.messages),
            lambda q, _job: drained(q.get),
        ),
        Line(
            "multiprocessing.Queue, lists of 100",
            share,
            lambda q, job: repeated_batches(q.put, job.messages),
            lambda q, _job: drained_batches(q.get),
        ),
    ]


def zmq_ipc() -> list[Line]:
    """PUSH and PULL over a Unix socket; a batch is one multipart message."""
    import zmq

    def share(job: Job) -> str:
        return f"ipc://{job.directory}/zmq-{os.urandom(4).hex()}"

    def pull(address: str) -> Any:
        s = zmq.Context().socket(zmq.PULL)
        s.bind(address)
        return s

    def push(address: str) -> Any:
        s = zmq.Context().socket(zmq.PUSH)
        s.connect(address)
        return s

    def send_batches(address: str, job: Job) -> Produce:
        send = push(address).send_multipart
        return repeated_batches(lambda messages: send(messages, copy=True), job.messages)

    return [
        Line(
            "pyzmq ipc PUSH/PULL",
            share,
            lambda address, job: repeated(push(address).send, job.messages),
            lambda address, _job: drained(pull(address).recv),
        ),
        Line(
            "pyzmq ipc PUSH/PULL, multipart of 100",
            share,
            send_batches,
            lambda address, _job: drained_batches(pull(address).recv_multipart),
        ),
        Line(
            "pyzmq ipc PUSH/PULL, pickled lists of 100",
            share,
            lambda address, job: repeated_batches(push(address).send_pyobj, job.messages),
            lambda address, _job: drained_batches(pull(address).recv_pyobj),
        ),
    ]


def posix_queue() -> list[Line]:
    """The kernel's message queue, as deep as users without rights may make it; batches are pickled lists that fit."""
    import posix_ipc

    largest = 8192

    def share(_job: Job) -> Any:
        q = posix_ipc.MessageQueue(None, posix_ipc.O_CREX, max_messages=10, max_message_size=largest)
        # Its descriptor is inherited; the name is not needed.
        q.unlink()
        return q

    def share_batches(job: Job) -> Any:
        if (size := len(pickle.dumps(job.messages))) > largest:
            raise ValueError(f"a batch has {size} bytes, a message at most {largest}")
        return share(job)

    def batches(q: Any, job: Job) -> Produce:
        return repeated_batches(lambda messages: q.send(pickle.dumps(messages)), job.messages)

    return [
        Line(
            "posix_ipc.MessageQueue",
            share,
            lambda q, job: repeated(q.send, job.messages),
            lambda q, _job: drained(q.receive),
        ),
        Line(
            "posix_ipc.MessageQueue, pickled lists of 100",
            share_batches,
            batches,
            lambda q, _job: drained_batches(lambda: pickle.loads(q.receive()[0])),
        ),
    ]


def sequenced_sockets() -> list[Line]:
    """A pair of SEQPACKET sockets."""

    def share(_job: Job) -> tuple[socket.socket, socket.socket]:
        pair = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        for end in pair:
            for option in (socket.SO_SNDBUF, socket.SO_RCVBUF):
                end.setsockopt(socket.SOL_SOCKET, option, 1 << 20)
        return pair

    return [
        Line(
            "socket.socketpair SEQPACKET",
            share,
            lambda pair, job: repeated(pair[0].send, job.messages),
            lambda pair, job: drained(lambda: pair[1].recv(job.size)),
        ),
    ]


def quick_queue() -> list[Line]:
    """A multiprocessing.Queue that carries lists and is used as if it carried messages."""
    from quick_queue import QQueue

    return [
        Line(
            "quick-queue, lists of 100",
            lambda _job: QQueue(size_bucket_list=BATCH),
            lambda q, job: repeated_batches(q.put_iterable, job.messages),
            lambda q, _job: drained(q.get),
        ),
    ]


def mmapq_batches() -> list[Line]:
    """A log in mapped files with batches that are committed whole. Nothing is deleted from it, so a run is short."""
    from mmapq import IndexedBatchQueue, NextMove, PollResult

    def share(job: Job) -> str:
        for old in job.directory.glob("mmapq-*"):
            shutil.rmtree(old)
        place = job.directory / f"mmapq-{os.urandom(4).hex()}"
        place.mkdir()
        IndexedBatchQueue.create(str(place), "log").close()
        return str(place)

    def producer(place: str, job: Job) -> Produce:
        q = IndexedBatchQueue.create(place, "log")
        appender = q.create_appender()

        def put(messages: list[bytes], _keep: Any = q) -> None:
            with appender.start_batch() as batch:
                for message in messages:
                    batch.append(message)
                batch.commit()

        return repeated_batches(put, job.messages)

    def consumer(place: str, _job: Job) -> Consume:
        q = IndexedBatchQueue.create(place, "log")
        poller = q.create_poller()
        came: list[bytes] = []

        def handler(_index: int, messages: list[bytes]) -> Any:
            came[:] = messages
            return NextMove.ADVANCE

        def get(_keep: Any = q) -> list[bytes]:
            while poller.poll(handler) == PollResult.END_OF_STREAM:
                pass
            return came

        return drained_batches(get)

    return [Line("mmapq.IndexedBatchQueue, batches of 100", share, producer, consumer, most=1 << 18)]


def all_peers() -> tuple[list[Line], list[Line]]:
    """Give all that are installed: one message per call, and in batches."""
    found = multiprocessing_queue() + sequenced_sockets()
    if importlib.util.find_spec("zmq"):
        found += zmq_ipc()
    if importlib.util.find_spec("posix_ipc"):
        found += posix_queue()
    if importlib.util.find_spec("quick_queue"):
        found += quick_queue()
    if importlib.util.find_spec("mmapq"):
        found += mmapq_batches()
    batches = [line for line in found if "100" in line.name]
    return [line for line in found if line not in batches], batches
