"""How fast messages get from one process to another on this machine: our queues, and whatever peers are installed."""

import contextlib
import functools
import importlib.util
import multiprocessing
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from tailrace._kinds import KINDS

__all__ = ["measure", "subjects"]

#: Seconds after which a peer that does not answer is given up.
PATIENCE = 60.0


def subjects() -> dict[str, Callable[[Path, int, int], float]]:
    """Give what can be measured here: a function of directory, messages and bytes that gives seconds."""
    found: dict[str, Callable[[Path, int, int], float]] = {}
    for scheme in ("aq", "ring", "mcp", "conq", "qewqew"):
        found[f"tailrace {scheme}"] = functools.partial(_ours, scheme)
    found["multiprocessing.Queue"] = _multiprocessing_queue
    found["multiprocessing.Pipe"] = _multiprocessing_pipe
    if importlib.util.find_spec("zmq"):
        found["zmq PUSH/PULL ipc"] = _zmq
    if importlib.util.find_spec("posix_ipc"):
        found["posix_ipc.MessageQueue"] = _posix_ipc
    return found


def measure(name: str, count: int, size: int) -> dict[str, Any]:
    """Move ``count`` messages of ``size`` bytes from one process to another, and say how fast that was."""
    memory = "/dev/shm" if Path("/dev/shm").is_dir() else None
    with tempfile.TemporaryDirectory(prefix="tailrace-bench-", dir=memory) as directory:
        seconds = subjects()[name](Path(directory), count, size)
    return {
        "queue": name,
        "messages": count,
        "bytes": size,
        "seconds": round(seconds, 4),
        "per_second": round(count / seconds),
        "mib_per_second": round(count * size / seconds / (1 << 20), 1),
    }


def _url(scheme: str, directory: Path) -> str:
    return f"{directory}#BENCH" if scheme in ("conq", "mcp") else str(directory / "queue")


def _ours(scheme: str, directory: Path, count: int, size: int) -> float:
    kind, rest = KINDS[scheme], _url(scheme, directory)
    given = {"aq": {"size": "16M"}, "ring": {"max_len": str(count), "msg_size": str(-(-size // 8))}}.get(scheme, {})
    kind.create(rest, kind.parse(given))
    with kind.reader(rest) as queue:

        def take() -> int:
            return len(queue.get_many(512, timeout=PATIENCE))

        return _timed(_put_ours, (scheme, rest, count, size), take, count)


def _put_ours(start: Any, scheme: str, rest: str, count: int, size: int) -> None:
    with KINDS[scheme].writer(rest) as queue:
        start.wait(PATIENCE)
        for _ in range(count // 512):
            queue.put_many([b"x" * size] * 512)
        queue.put_many([b"x" * size] * (count % 512))


def _timed(put: Callable[..., None], arguments: tuple[Any, ...], take: Callable[[], int], count: int) -> float:
    """Start the producer, let it get ready, and time from its start to the last message."""
    context = multiprocessing.get_context("spawn")
    start = context.Event()
    producer = context.Process(target=put, args=(start, *arguments), daemon=True)
    producer.start()
    # The time to start an interpreter is nobody's speed.
    time.sleep(0.5)
    begin = time.perf_counter()
    start.set()
    taken = 0
    try:
        while taken < count:
            taken += take()
        return time.perf_counter() - begin
    finally:
        producer.join(PATIENCE)
        with contextlib.suppress(ValueError):
            producer.kill()


def _messages(count: int, size: int) -> Iterator[bytes]:
    message = b"x" * size
    for _ in range(count):
        yield message


def _multiprocessing_queue(_: Path, count: int, size: int) -> float:
    queue: Any = multiprocessing.get_context("spawn").Queue()
    return _timed(_put_queue, (queue, count, size), lambda: len([queue.get(timeout=PATIENCE)]), count)


def _put_queue(start: Any, queue: Any, count: int, size: int) -> None:
    start.wait(PATIENCE)
    for message in _messages(count, size):
        queue.put(message)


def _multiprocessing_pipe(_: Path, count: int, size: int) -> float:
    reader, writer = multiprocessing.get_context("spawn").Pipe(duplex=False)
    return _timed(_put_pipe, (writer, count, size), lambda: len([reader.recv_bytes()]), count)


def _put_pipe(start: Any, writer: Any, count: int, size: int) -> None:
    start.wait(PATIENCE)
    for message in _messages(count, size):
        writer.send_bytes(message)


def _zmq(directory: Path, count: int, size: int) -> float:
    import zmq

    with zmq.Context() as context, context.socket(zmq.PULL) as socket:
        address = f"ipc://{directory}/zmq"
        socket.bind(address)
        return _timed(_put_zmq, (address, count, size), lambda: len([socket.recv()]), count)


def _put_zmq(start: Any, address: str, count: int, size: int) -> None:
    import zmq

    with zmq.Context() as context, context.socket(zmq.PUSH) as socket:
        socket.connect(address)
        start.wait(PATIENCE)
        for message in _messages(count, size):
            socket.send(message)


def _posix_ipc(directory: Path, count: int, size: int) -> float:
    import posix_ipc

    name = f"/{directory.name}"
    queue = posix_ipc.MessageQueue(name, posix_ipc.O_CREX, max_messages=10, max_message_size=max(size, 1))
    try:
        return _timed(_put_posix_ipc, (name, count, size), lambda: len([queue.receive(PATIENCE)]), count)
    finally:
        queue.close()
        queue.unlink()


def _put_posix_ipc(start: Any, name: str, count: int, size: int) -> None:
    import posix_ipc

    queue = posix_ipc.MessageQueue(name)
    start.wait(PATIENCE)
    for message in _messages(count, size):
        queue.send(message)
    queue.close()
