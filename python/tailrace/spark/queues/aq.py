"""aq for Spark: at least once, and exactly once into an idempotent sink while the region survives.

The driver-side process is the queue's one reader. Retrieved items stay in the region until Spark's commit releases
them, and tasks copy them by their absolute positions, which are the offsets: a new driver finds the same items under
the same numbers. A micro-batch ends before the first item that some writer has claimed and not committed, so nothing
comes late. A writer's unfinished item (it died, or took too long) is a row with ``committed`` false; should the writer
commit it after all, it comes once more, with ``committed`` true.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from tailrace import aq
from tailrace._core import aq as native
from tailrace.errors import AlreadyOpen, FormatError, QueueError, QueueNotFound
from tailrace.spark.columns import Columns
from tailrace.spark.options import Options
from tailrace.spark.queues import Attempt, Drain, Feed, Limits, Offset, Part, Written, put_all
from tailrace.spark.queues.cursor import Lengths, identified, patiently
from tailrace.spark.queues.holding import DEFAULT_ROWS, TASK_ROWS, check_queue, copied_parts, read_copy
from tailrace.spark.queues.tokens import Tokens, none, pieces, tokens_of

__all__ = ["make_drain", "make_feed"]

#: Behind every position.
END = (1 << 64) - 1


def make_feed(options: Options) -> Feed:
    """Read an aq queue."""
    return AqFeed(options)


def make_drain(options: Options) -> Drain:
    """Write to an aq queue."""
    return AqDrain(options)


def _open(options: Options) -> aq.Queue:
    if not Path(options.rest).exists():
        raise QueueNotFound(f"there is no aq queue at {options.rest}: create it with aq.Queue.create() first")
    queue = aq.Queue.open(options.rest)
    if not queue.is_formatted:
        raise FormatError(f"{options.rest} is no aq queue, or nobody has formatted it yet")
    return queue


class AqFeed(Feed):
    """Offsets are ``{"queue": identity, "position": end}``.

    ``incomplete`` lists earlier items that were shown unfinished and are not released yet; ``late`` those of them that
    come once more in this micro-batch.
    """

    def __init__(self, options: Options) -> None:
        super().__init__(options)
        self._forget()

    def _forget(self) -> None:
        self.tokens: Tokens = none()
        self.frontier = self.head = 0
        self.began = self.is_frozen = False
        self.incomplete: set[int] = set()
        self.late: set[int] = set()
        self.last: Offset | None = None

    def __getstate__(self) -> dict[str, Any]:
        fresh = AqFeed(self.options)
        return {**self.__dict__, **fresh.__dict__}

    def close(self) -> None:
        """Everything that was not released is there for the next reader."""
        super().close()
        self._forget()

    # In a task

    def read(self, part: Part, columns: Columns) -> Iterator[pa.RecordBatch]:
        """Copy the items of a range of positions."""
        if isinstance(part.extra, pa.Buffer):
            yield from read_copy(part, columns, self.options.batch_rows)
            return
        with _open(self.options) as queue:
            values, packed = native._look(queue, part.start, part.end)
        tokens = tokens_of(packed)
        committed = tokens["first"].astype(bool)
        if int(committed.sum()) < part.extra:
            raise QueueError(
                f"{int(part.extra - committed.sum())} items of {self.options.url!r} from position {part.start} on are "
                "gone while the query had them in hand: another program has formatted or released them. Start again "
                "with a new checkpoint"
            )
        for piece in pieces(tokens["length"], self.options.batch_rows):
            yield columns.batch(
                values[piece],
                partition=0,
                offsets=tokens["id"][piece].astype(np.int64),
                queue=part.queue,
                committed=pa.array(committed[piece]),
            )

    # In the planner of a batch

    def snapshot(self) -> list[Part]:
        """Everything in the region that nobody has released."""
        with _open(self.options) as queue:
            values, packed = native._look(queue, 0, END)
        tokens = tokens_of(packed)
        return copied_parts(self.options.url, values, tokens, np.zeros(len(tokens)), is_aq=True)

    # In the driver-side process of a stream

    def initial(self) -> Offset:
        """Begin with the first item: nothing was released that nobody has seen."""
        if self.options.starting_offsets != "earliest":
            raise ValueError(
                f"startingOffsets is {self.options.starting_offsets!r}, but {self.options.url!r} can only be read from "
                "the earliest item on: expected earliest"
            )
        return self._offset(0)

    def horizon(self) -> Offset:
        """As far as items were claimed."""
        self._take(0)
        return self._offset(self.head)

    def freeze(self) -> Offset:
        """Take everything that is there, and nothing afterwards."""
        self._take(1 << 62)
        self.is_frozen = True
        return self._offset(self.frontier)

    def advance(self, start: Offset | None, horizon: Offset, limits: Limits) -> Offset:
        """End before the first item that may still come, within the limits."""
        # Before Spark 4.2 the start is not told: everything that can be read, then, and plan() knows where from.
        rows = 1 << 62 if start is None else limits.rows or DEFAULT_ROWS
        begin = self.last or self._offset(0) if start is None else start
        position = self._position(begin)
        if not self.is_frozen:
            self._take(max(0, rows - int((self.tokens["id"] >= position).sum())))
        if not self.began:
            self._begin(begin)
        waiting = self.tokens[self.tokens["id"] >= position]
        chosen = waiting[:rows]
        if limits.bytes is not None:
            fitting = int(np.searchsorted(np.cumsum(chosen["length"]), limits.bytes, side="right"))
            chosen = chosen[: max(1, fitting)]
        late = sorted(self.late & set(self._committed_before(position)))
        if not len(chosen) and not late:
            self.last = begin
            return begin
        end = position
        if len(chosen):
            end = int(waiting["id"][len(chosen)]) if len(chosen) < len(waiting) else max(position, self.frontier)
        self.incomplete |= set(chosen["id"][chosen["first"] == 0].tolist())
        self.last = self._offset(end, late)
        return self.last

    def plan(self, start: Offset, end: Offset) -> list[Part]:
        """Cut a range of positions into tasks; items of an earlier life are still where they were."""
        first, stop = self._position(start), self._position(end)
        if self.began:
            tokens = self.tokens
        else:
            with _open(self.options) as queue:
                tokens = tokens_of(native._look(queue, 0, END)[1])
        self.last = end
        chosen = tokens[(tokens["id"] >= first) & (tokens["id"] < stop)]
        ranges = [[late, late + 1] for late in end.get("late", [])]
        if len(chosen):
            count = max(1, min(self.options.min_partitions, -(-len(chosen) // TASK_ROWS)))
            firsts = [int(piece["id"][0]) for piece in np.array_split(chosen, count)]
            ranges += [list(pair) for pair in zip(firsts, [*firsts[1:], stop], strict=True)]
        return [Part(self.options.url, 0, low, high, _committed(tokens, low, high)) for low, high in ranges]

    def commit(self, end: Offset) -> None:
        """Release what is done. An unfinished item that was committed since is kept, to come again."""
        position = self._position(end)
        self.late -= set(end.get("late", []))
        late = self._in_hand().release(position, self.late)
        self.late |= set(late)
        self.incomplete = {place for place in self.incomplete if place >= position} | self.late
        self.tokens = self.tokens[self.tokens["id"] >= position]

    # Details

    def _begin(self, start: Offset) -> None:
        position = self._position(start)
        if position > self.head:
            raise FormatError(
                f"{self.options.url!r} has not come to position {position}: it is not the queue that this checkpoint "
                "was made with. Use a checkpoint of its own for each queue, or remove the old one to begin anew"
            )
        self.began = True
        self.incomplete = set(start.get("incomplete", []))
        # They were shown unfinished, and their writers have finished them after all.
        self.late = self.incomplete & set(self._committed_before(position)) - set(start.get("late", []))

    def _committed_before(self, position: int) -> list[int]:
        before = self.tokens[(self.tokens["id"] < position) & (self.tokens["first"] != 0)]
        return before["id"].tolist()  # type: ignore[no-any-return]

    def _offset(self, position: int, late: list[int] | None = None) -> Offset:
        offset: Offset = {"queue": self._identity(), "position": position}
        if self.incomplete:
            offset["incomplete"] = sorted(self.incomplete)
        if late:
            offset["late"] = late
        return offset

    def _position(self, offset: Offset) -> int:
        if not isinstance(offset.get("position"), int):
            raise FormatError(
                f"{offset!r} is no offset of {self.options.url!r}: the checkpoint belongs to another source"
            )
        check_queue(self.options.url, offset, self._identity())
        return int(offset["position"])

    def _identity(self) -> str:
        if "identity" not in self.handles:
            with _open(self.options):
                self.handles["identity"] = identified(Path(self.options.rest))
        return str(self.handles["identity"])

    def _take(self, limit: int) -> None:
        packed, self.frontier, self.head = self._in_hand().take(min(limit, 1 << 62))
        self.tokens = tokens_of(packed)

    def _in_hand(self) -> Any:
        if "hand" not in self.handles:
            queue = _open(self.options)
            if not queue.info()["trailer"]:
                raise FormatError(
                    f"{self.options.url!r} has no trailer, so its items have no lasting positions: it is no stream "
                    "source"
                )
            try:
                reader = patiently(queue.reader)
            except AlreadyOpen as error:
                raise AlreadyOpen(
                    f"{self.options.url!r} has a reader already, and can have one only: {error}"
                ) from None
            lengths = Lengths(self.options.url, [Path(self.options.rest)])
            self.handles |= {"hand": native._InHand(reader), "reader": reader, "queue": queue, "lengths": lengths}
        self.handles["lengths"].check()
        return self.handles["hand"]


def _committed(tokens: Tokens, low: int, high: int) -> int:
    own = tokens[(tokens["id"] >= low) & (tokens["id"] < high)]
    return int((own["first"] != 0).sum())


class AqDrain(Drain):
    """Puts in the task, with a bounded wait for room: at least once."""

    def write(self, messages: Iterator[pa.BinaryArray], attempt: Attempt) -> Written:
        """Write, or fail the task when there is no room for too long."""
        rows = 0
        with _open(self.options) as queue:
            for array in messages:
                rows += put_all(queue, array, self.options)
        return Written(rows, attempt)
