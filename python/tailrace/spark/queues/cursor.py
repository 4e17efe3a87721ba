"""A consumer's durable cursor beside a queue, ``NAME.consumer.<consumer>``, and the lock that one query holds.

The cursor is where a new checkpoint of this consumer begins. It is written when the consumer first appears (so that
the beginning of a query does not move when it crashes before its first commit) and then by every commit, each time as
a whole file that replaces the old one.
"""

import fcntl
import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from tailrace.errors import AlreadyOpen, CorruptQueue

__all__ = ["Cursor", "Lengths", "durably_replace", "identified", "patiently", "positions_of_others", "sync_directory"]

#: Seconds that the process of a stopped query is given to end.
PATIENCE = 15.0

T = TypeVar("T")


def durably_replace(path: Path, text: str) -> None:
    """Let ``path`` hold ``text``, or what it held before, whatever happens meanwhile."""
    temporary = path.with_name(f"{path.name}.{os.getpid()}.new")
    with temporary.open("w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
    sync_directory(path.parent)


def sync_directory(directory: Path) -> None:
    """Make what was created, renamed and removed in a directory survive a power cut."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


class Cursor:
    """Of one consumer of one queue, held by this process until it ends."""

    def __init__(self, queue: str, consumer: str) -> None:
        self.queue = queue
        self.consumer = consumer
        self.path = Path(f"{queue}.consumer.{consumer}")
        # The lock has a file of its own: the cursor's file is replaced.
        descriptor = os.open(f"{self.path}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            patiently(lambda: _lock(descriptor, queue, consumer))
        except BaseException:
            os.close(descriptor)
            raise
        self._lock = descriptor

    def close(self) -> None:
        """Let another query have it."""
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    def read(self) -> dict[str, Any] | None:
        """Give what was last noted; None for a consumer that was never here."""
        return _read(self.path)

    def write(self, uuid: str, position: int) -> None:
        """Note durably how far everything is done."""
        durably_replace(self.path, json.dumps({"queue": uuid, "position": position}))


class Lengths:
    """The lengths of mapped files: to touch memory behind the end of one would kill the process without a word."""

    def __init__(self, url: str, paths: list[Path]) -> None:
        self.url = url
        self.lengths = {path: path.stat().st_size for path in paths}

    def check(self) -> None:
        """Refuse to go on with a file that somebody has cut off."""
        for path, length in self.lengths.items():
            try:
                now = path.stat().st_size
            except FileNotFoundError:
                # Removed, which leaves the memory to those who have it.
                continue
            if now < length:
                raise CorruptQueue(
                    f"{self.url!r} was truncated under the running query: {path} has {now} bytes, it had {length}. Its "
                    "messages are lost. Remove the queue, create it again, and use a new checkpoint"
                )


def identified(path: Path) -> str:
    """Name a file so that one that was made in its place later has another name, where file numbers are not reused."""
    return f"{path.absolute()}, file {path.stat().st_ino}"


def _lock(descriptor: int, queue: str, consumer: str) -> None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise AlreadyOpen(
            f"another query reads {queue} as consumer {consumer!r}: stop it, or give this one a name of its own "
            "with .option('consumer', ...)"
        ) from None


def patiently(take: Callable[[], T]) -> T:
    """Take what only one process may have: that of a query that was just stopped may still be on its way out."""
    deadline = time.monotonic() + PATIENCE
    while True:
        try:
            return take()
        except AlreadyOpen:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)


def _read(path: Path) -> dict[str, Any] | None:
    try:
        text = path.read_text()
    except FileNotFoundError:
        return None
    try:
        noted = json.loads(text)
        return {"queue": str(noted["queue"]), "position": int(noted["position"])}
    except (ValueError, KeyError, TypeError):
        raise CorruptQueue(f"{path} is not a consumer's cursor: remove it to begin anew") from None


def positions_of_others(queue: str, consumer: str, uuid: str) -> list[int]:
    """Give how far the other consumers of a queue are."""
    own = Path(queue)
    prefix = f"{own.name}.consumer."
    positions = []
    for path in own.parent.iterdir():
        name = path.name.removeprefix(prefix)
        if name == path.name or name == consumer or name.endswith((".lock", ".new")):
            continue
        noted = _read(path)
        if noted is not None and noted["queue"] == uuid:
            positions.append(noted["position"])
    return positions
