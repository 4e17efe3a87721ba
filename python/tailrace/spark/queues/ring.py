"""ring for Spark: the latest messages, lossy by design, with every gap counted.

Offsets are sequence numbers. Nothing is taken out: a stream looks at the slots, so what was overwritten before it
came by is gone. ``failOnDataLoss`` decides whether that stops the query; otherwise ``lost`` in the offsets (shown in
the progress) counts what the planning missed, and the column ``offset`` shows each gap.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tailrace import ring
from tailrace.errors import FormatError, QueueError, QueueNotFound
from tailrace.spark.columns import Columns
from tailrace.spark.options import Options
from tailrace.spark.queues import Attempt, Drain, Feed, Limits, Offset, Part, Written
from tailrace.spark.queues.cursor import Lengths, identified
from tailrace.spark.queues.holding import check_queue
from tailrace.spark.queues.tokens import pieces

__all__ = ["make_drain", "make_feed"]


def make_feed(options: Options) -> Feed:
    """Read a ring."""
    return RingFeed(options)


def make_drain(options: Options) -> Drain:
    """Write to a ring."""
    return RingDrain(options)


class RingFeed(Feed):
    """Offsets are ``{"queue": identity, "sequence": number, "lost": count}``."""

    def read(self, part: Part, columns: Columns) -> Iterator[pa.RecordBatch]:
        """Copy the slots of a range of numbers that are still there."""
        with _open(part.queue) as queue:
            values, numbers = _look(queue)
        wanted = np.flatnonzero((numbers >= part.start) & (numbers < part.end))
        missing = part.end - part.start - len(wanted)
        if missing and part.extra and self.options.fail_on_data_loss:
            raise QueueError(_loss(part.queue, missing))
        lengths = pc.binary_length(values).to_numpy()
        for piece in pieces(lengths[wanted], self.options.batch_rows):
            rows = wanted[piece]
            taken = values.take(pa.array(rows))
            yield columns.batch(taken, partition=0, offsets=numbers[rows], queue=part.queue)

    def snapshot(self) -> list[Part]:
        """Everything that is in the slots when a task comes by."""
        return [Part(self._path(), 0, 0, self._queue().counters["enqueued"], False)]

    def initial(self) -> Offset:
        """Begin with the oldest message that is there, or behind the newest."""
        wanted = self.options.starting_offsets
        if isinstance(wanted, dict):
            return self._offset(self._number(wanted))
        counters = self._queue().counters
        newest = counters["enqueued"]
        return self._offset(newest if wanted == "latest" else newest - counters["queued"])

    def horizon(self) -> Offset:
        """The number of the next message."""
        return self._offset(self._queue().counters["enqueued"])

    def advance(self, start: Offset | None, horizon: Offset, limits: Limits) -> Offset:
        """Step over what is overwritten, count it, and go on within the limits."""
        if start is None:
            return horizon
        begin, end, lost = self._number(start), self._number(horizon), int(start.get("lost", 0))
        if begin > self._queue().counters["enqueued"]:
            raise QueueError(
                f"{self._path()} has not come to message {begin}: it is not the ring that this checkpoint was made with"
            )
        oldest = max(0, self._queue().counters["enqueued"] - self._queue().max_len)
        if begin < oldest:
            if self.options.fail_on_data_loss:
                raise QueueError(_loss(self._path(), oldest - begin))
            lost += oldest - begin
        if begin >= end:
            return start
        rows = limits.rows
        if limits.bytes is not None:
            fitting = max(1, limits.bytes // self._queue().message_bytes)
            rows = fitting if rows is None else min(rows, fitting)
        reached = end if rows is None else min(end, max(begin, oldest) + rows)
        return self._offset(max(reached, begin), lost)

    def plan(self, start: Offset, end: Offset) -> list[Part]:
        """One task: a look at a ring is short."""
        begin, stop = self._number(start), self._number(end)
        return [Part(self._path(), 0, begin, stop, True)] if begin < stop else []

    def commit(self, end: Offset) -> None:
        """Nothing is held, so there is nothing to let go of."""

    def _offset(self, sequence: int, lost: int = 0) -> Offset:
        return {"queue": self._identity(), "sequence": sequence, "lost": lost}

    def _number(self, offset: Offset) -> int:
        if not isinstance(offset.get("sequence"), int):
            raise FormatError(
                f"{offset!r} is no offset of {self.options.url!r}: the checkpoint belongs to another source"
            )
        check_queue(self.options.url, offset, self._identity())
        return int(offset["sequence"])

    def _identity(self) -> str:
        self._queue()
        return str(self.handles["identity"])

    def _path(self) -> str:
        return str(Path(self.options.rest).absolute())

    def _queue(self) -> ring.Queue:
        if "ring" not in self.handles:
            self.handles["ring"] = _open(self._path())
            self.handles["lengths"] = Lengths(self.options.url, [Path(self._path())])
            self.handles["identity"] = identified(Path(self._path()))
        self.handles["lengths"].check()
        queue: ring.Queue = self.handles["ring"]
        return queue


def _open(path: str) -> ring.Queue:
    try:
        return ring.Queue.open(path)
    except QueueNotFound:
        raise QueueNotFound(f"there is no ring at {path}: create it with ring.Queue.create() first") from None
    except FormatError as error:
        raise FormatError(f"{path} cannot be opened as a ring: {error}") from None


def _look(queue: ring.Queue) -> tuple[pa.BinaryArray, Any]:
    values, numbers = queue.snapshot_arrow()
    return values, np.frombuffer(numbers, dtype=np.int64)


def _loss(path: str, count: int) -> str:
    return (
        f"{count} messages of {path} were overwritten, or dequeued by others, before this query came to them: make "
        "the ring longer, the triggers shorter, or set failOnDataLoss to false to go on behind them"
    )


class RingDrain(Drain):
    """Enqueues in the task: at least once, since a task that is tried again writes again."""

    def write(self, messages: Iterator[pa.BinaryArray], attempt: Attempt) -> Written:
        """Write; a ring is never full."""
        rows = 0
        with _open(self.options.rest) as queue:
            for array in messages:
                rows += queue.put_many(array, timeout=self.options.timeout)
        return Written(rows, attempt)
