"""conq for Spark: at least once.

The driver-side process leases messages and renews the leases until Spark's commit dequeues them. A query that is
stopped gives back what it has in hand; when the process dies it becomes readable again within ``leaseSeconds``, and a
query that is started again waits for the messages of its last micro-batch. A batch read shows every message that
nobody has finished, and leases none.
"""

import contextlib
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from tailrace import conq
from tailrace._core import conq as native
from tailrace._url import directory_and_name
from tailrace.errors import MessageNotFound, QueueError, QueueNotFound
from tailrace.spark.options import Options
from tailrace.spark.queues import Attempt, Drain, Feed, Part, Written, put_all
from tailrace.spark.queues.cursor import Lengths, identified
from tailrace.spark.queues.holding import HoldingFeed, copied_parts
from tailrace.spark.queues.tokens import Tokens, pieces, tokens_of

__all__ = ["make_drain", "make_feed"]


def make_feed(options: Options) -> Feed:
    """Read a conq queue."""
    return ConqFeed(options)


def make_drain(options: Options) -> Drain:
    """Write to a conq queue."""
    return ConqDrain(options)


def _open(options: Options) -> Any:
    directory, name = directory_and_name(options.rest)
    # Opening would make the files of a manager in any directory.
    if not any(Path(directory).glob("*.conq")):
        raise QueueNotFound(f"there are no queues in {directory}: create {name!r} there with QueueManager.open() first")
    try:
        return conq.QueueManager.open(directory).queue(name)
    except QueueNotFound:
        raise QueueNotFound(f"there is no queue {name!r} in {directory}: create it with create_queue() first") from None


#: The shortest lease there is.
AT_ONCE = 1e-6


class ConqFeed(HoldingFeed):
    """Numbers are the ids of messages."""

    def snapshot(self) -> list[Part]:
        """Every message that nobody has finished."""
        with _open(self.options) as queue:
            values, packed = native._look(queue)
        tokens = tokens_of(packed)
        return copied_parts(self.options.url, values, tokens, self.members(tokens))

    def identity(self) -> str:
        """Name the file, and the queue by what its manager gives to no other."""
        if "identity" not in self.handles:
            about = self._queue().info()
            self.handles["identity"] = f"{identified(about['path'])}, queue {about['id']}"
        return str(self.handles["identity"])

    def take(self, limit: int) -> Tokens:
        """Lease what is ready."""
        return tokens_of(native._lease(self._queue(), min(limit, (1 << 31) - 1), self.options.lease_seconds))

    def wait(self, seconds: float) -> None:
        """Wait for a message that is ready or comes back."""
        self._queue()._wait_readable(seconds)

    def let_go(self, tokens: Tokens) -> None:
        """Dequeue; one whose lease was lost all the same belongs to somebody else now."""
        native._dequeue(self._queue(), tokens.tobytes())

    def copy(self, tokens: Tokens) -> Iterator[tuple[Tokens, pa.BinaryArray]]:
        """Copy leased messages."""
        with _open(self.options) as queue:
            for piece in pieces(tokens["length"], self.options.batch_rows):
                try:
                    yield tokens[piece], native._copy(queue, tokens[piece].tobytes())
                except MessageNotFound as error:
                    raise QueueError(
                        f"{self.options.url!r}: {error}, since the driver did not renew it in time. Start the query "
                        "again, with more 'leaseSeconds' if this happens often"
                    ) from None

    def waiting_count(self) -> int:
        """All messages but those in hand."""
        count: int = self._queue().qsize() - len(self.hands)
        return max(0, count)

    def patience(self) -> float:
        """A lease that was renewed just before the driver died."""
        return self.options.lease_seconds + 1.0

    def plan(self, start: Any, end: Any) -> list[Part]:
        """Hand out only what is still leased: the rest comes again."""
        parts = super().plan(start, end)
        self.handles["renewal"].renew()
        return parts

    def _queue(self) -> Any:
        if "queue" not in self.handles:
            queue = self.handles["queue"] = _open(self.options)
            directory, name = directory_and_name(self.options.rest)
            files = [path for path in Path(directory).iterdir() if path.name in (f"{name}.conq", name)]
            self.handles["lengths"] = Lengths(self.options.url, files)
            self.handles["renewal"] = Renewal(queue, lambda: self.hands, self.options.lease_seconds)
        self.handles["lengths"].check()
        return self.handles["queue"]


class Renewal:
    """Renews leases in time, in a thread of its own, until it is closed or the process ends."""

    def __init__(self, queue: Any, hands: Callable[[], Tokens], seconds: float) -> None:
        self.queue, self.hands, self.seconds = queue, hands, seconds
        self.is_over = threading.Event()
        self.thread = threading.Thread(target=self._run, daemon=True, name="lease renewal")
        self.thread.start()

    def close(self) -> None:
        """Let the leases end now: the query is over, and others need not wait for what it had in hand."""
        self.is_over.set()
        self.thread.join()
        with contextlib.suppress(QueueError):
            self._renew(AT_ONCE)

    def renew(self) -> int:
        """Make all leases end later, and say how many are held."""
        return self._renew(self.seconds)

    def _renew(self, seconds: float) -> int:
        tokens = self.hands()
        held = native._extend(self.queue, tokens.tobytes(), seconds) if len(tokens) else b""
        return int(np.frombuffer(held, dtype=np.uint8).sum())

    def _run(self) -> None:
        while not self.is_over.wait(self.seconds / 3):
            self.renew()


class ConqDrain(Drain):
    """Enqueues in the task: at least once."""

    def write(self, messages: Iterator[pa.BinaryArray], attempt: Attempt) -> Written:
        """Write, or fail the task when there is no room for too long."""
        rows = 0
        with _open(self.options) as queue:
            for array in messages:
                rows += put_all(queue, array, self.options)
        return Written(rows, attempt)
