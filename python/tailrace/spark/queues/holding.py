"""What conq and mcp have in common as sources: messages stay in the queue, in the hands of the driver-side process.

That process takes messages into its hands without removing them, and the tasks copy them out of the queue by their
tokens. Spark's commit removes them. The offset of a micro-batch names its messages by numbers that no other message of
the queue has, so a micro-batch that is run again has the same messages, and what the last one before a restart had
done is removed then, not delivered again. When the process dies the queue gives the messages back. Every message is
delivered at least once; more than once only when somebody else reads the queue too, or a lease was lost.
"""

import time
from abc import abstractmethod
from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tailrace.errors import FormatError
from tailrace.spark.columns import Columns
from tailrace.spark.options import Options
from tailrace.spark.queues import Feed, Limits, Offset, Part
from tailrace.spark.queues.tokens import Tokens, among, none, numbers, pieces, runs, tokens_of

__all__ = ["HoldingFeed", "check_queue", "copied_parts", "read_copy"]

#: Messages of a micro-batch where the user sets no limit.
DEFAULT_ROWS = 50_000
#: Rows for which another task is worth while.
TASK_ROWS = 8_192
#: Bytes that travel with one task of a batch read.
TASK_BYTES = 64 << 20


class HoldingFeed(Feed):
    """Offsets are ``{"queue": name, "count": n, "ids": [[first, last], ...]}``.

    The ids are those of the micro-batch that ends there; the count is that of all messages up to there. ``done`` lists
    messages of earlier ones that an earlier life had in hand to its end: they are still to come back, to be removed.
    """

    def __init__(self, options: Options) -> None:
        super().__init__(options)
        self._forget()

    def _forget(self) -> None:
        self.hands: Tokens = none()
        self.done: Any = None
        self.last: Offset | None = None
        self.is_frozen = False

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "hands": none(), "done": None, "last": None, "is_frozen": False}

    def close(self) -> None:
        """The messages go back to the queue."""
        super().close()
        self._forget()

    # What a queue brings

    @abstractmethod
    def identity(self) -> str:
        """Name the queue, so that the offsets of another one are recognised."""

    @abstractmethod
    def take(self, limit: int) -> Tokens:
        """Take up to so many messages into our hands, without waiting."""

    @abstractmethod
    def wait(self, seconds: float) -> None:
        """Wait until there is something to take, but no longer than this."""

    @abstractmethod
    def let_go(self, tokens: Tokens) -> None:
        """Remove messages from the queue for good."""

    @abstractmethod
    def copy(self, tokens: Tokens) -> Iterator[tuple[Tokens, pa.BinaryArray]]:
        """Copy messages that the driver-side process has in hand; runs in a task."""

    @abstractmethod
    def waiting_count(self) -> int:
        """Messages that nobody has in hand; cheap."""

    @abstractmethod
    def patience(self) -> float:
        """Seconds after which what a dead driver had in hand is back, unless somebody else has finished it."""

    def members(self, tokens: Tokens) -> Any:
        """Which partition each message is of."""
        return np.zeros(len(tokens), dtype=np.int64)

    # What Spark asks for

    def read(self, part: Part, columns: Columns) -> Iterator[pa.RecordBatch]:
        """Copy the messages of a task."""
        if isinstance(part.extra, pa.Buffer):
            yield from read_copy(part, columns, self.options.batch_rows)
            return
        for tokens, values in self.copy(tokens_of(part.extra)):
            offsets = tokens["id"].astype(np.int64)
            yield columns.batch(values, partition=part.number, offsets=offsets, queue=part.queue)

    def initial(self) -> Offset:
        """Begin with whatever is first: nothing was removed that nobody has seen."""
        if self.options.starting_offsets != "earliest":
            raise ValueError(
                f"startingOffsets is {self.options.starting_offsets!r}, but {self.options.url!r} can only be read from "
                "the earliest message on: expected earliest"
            )
        return self._offset(0, [])

    def horizon(self) -> Offset:
        """So many messages could be read now."""
        last = self.last or self._offset(0, [])
        return self._offset(int(last["count"]) + len(self._behind(last)) + self.waiting_count(), [])

    def freeze(self) -> Offset:
        """Take everything that is there, and nothing afterwards."""
        self._take(1 << 62)
        self.is_frozen = True
        return self.horizon()

    def advance(self, start: Offset | None, horizon: Offset, limits: Limits) -> Offset:
        """End behind the messages in our hands, after taking more if few are left to plan."""
        begin = self.last or self._offset(0, []) if start is None else start
        self._check(begin)
        if self.done is None:
            # What was in hand when an earlier life ended, and was done by then.
            self.done = _done(begin)
            self._settle()
        rows = limits.rows or DEFAULT_ROWS
        waiting = self._behind(begin)
        if len(waiting) < rows and not self.is_frozen:
            self._take(rows - len(waiting))
            waiting = self._behind(begin)
        waiting = waiting[:rows]
        if limits.bytes is not None:
            fitting = int(np.searchsorted(np.cumsum(waiting["length"]), limits.bytes, side="right"))
            waiting = waiting[: max(1, fitting)]
        if len(waiting):
            self.last = self._offset(int(begin["count"]) + len(waiting), runs(waiting["id"]))
            if len(self.done):
                self.last["done"] = runs(self.done)
        else:
            self.last = begin
        return self.last

    def plan(self, start: Offset, end: Offset) -> list[Part]:
        """Give the messages of a micro-batch to tasks; one of an earlier life waits for what it had to come back."""
        for offset in (start, end):
            self._check(offset)
        is_first = self.done is None
        if is_first:
            # Spark had finished what ends at the start, and died before it could say so.
            self.done = _done(start)
            # One with availableNow has everything in hand before it is told.
            self._settle()
        self._recover(end["ids"], is_first)
        self.last = end
        ids = self.hands["id"]
        # Before Spark 4.2 an end is found without knowing the start, and may name what was done before it.
        chosen = self.hands[among(ids, end["ids"]) & ~among(ids, start["ids"])]
        members = self.members(chosen)
        parts = []
        for member in np.unique(members):
            own = chosen[members == member]
            count = max(1, min(self.options.min_partitions, -(-len(own) // TASK_ROWS)))
            for piece in np.array_split(own, count):
                first, last = int(piece["id"].min()), int(piece["id"].max())
                parts.append(Part(self.options.url, int(member), first, last + 1, piece.tobytes()))
        return parts

    def commit(self, end: Offset) -> None:
        """Remove what is done."""
        self._check(end)
        done = among(self.hands["id"], end["ids"])
        if done.any():
            # Batches are taken one after the other: what lies before this one is done, too.
            count = int(np.flatnonzero(done)[-1]) + 1
            over, self.hands = self.hands[:count], self.hands[count:]
            self.let_go(over)

    # Details

    def _offset(self, count: int, ids: Any) -> Offset:
        return {"queue": self.identity(), "count": count, "ids": ids}

    def _check(self, offset: Offset) -> None:
        if not isinstance(offset.get("ids"), list):
            raise FormatError(
                f"{offset!r} is no offset of {self.options.url!r}: the checkpoint belongs to another source"
            )
        check_queue(self.options.url, offset, self.identity())

    def _behind(self, offset: Offset) -> Tokens:
        """What is in hand behind a micro-batch."""
        planned = np.flatnonzero(among(self.hands["id"], offset["ids"]))
        return self.hands[planned[-1] + 1 :] if len(planned) else self.hands

    def _take(self, limit: int) -> int:
        taken = self.take(limit)
        if len(taken):
            # A message whose lease was lost and that came back to us is in hand once.
            mine = self.hands[~np.isin(self.hands["id"], taken["id"])] if len(self.hands) else self.hands
            self.hands = np.concatenate((mine, taken))
            self._settle()
        return len(taken)

    def _settle(self) -> None:
        if self.done is None or not len(self.done) or not len(self.hands):
            return
        over = np.isin(self.hands["id"], self.done)
        if over.any():
            finished, self.hands = self.hands[over], self.hands[~over]
            self.let_go(finished)
            self.done = np.setdiff1d(self.done, finished["id"])

    def _recover(self, wanted: Any, is_first: bool) -> None:
        """Have the messages of a micro-batch in hand. What does not come back somebody else has finished."""
        total = sum(last - first + 1 for first, last in wanted)
        deadline = time.monotonic() + self.patience()
        while int(among(self.hands["id"], wanted).sum()) < total:
            if self._take(DEFAULT_ROWS):
                continue
            left = deadline - time.monotonic()
            if left <= 0:
                break
            self.wait(min(left, 0.25))
        is_wanted = among(self.hands["id"], wanted)
        if not is_wanted[: int(is_wanted.sum())].all() and is_first:
            self.hands = np.concatenate((self.hands[is_wanted], self.hands[~is_wanted]))


def _done(offset: Offset) -> Any:
    """Give the numbers of all messages that are done where a micro-batch begins, and that may be in the queue still."""
    return numbers(offset["ids"], offset.get("done", []))


def check_queue(url: str, offset: Offset, identity: str) -> None:
    """Refuse the offset of another queue."""
    if offset.get("queue") != identity:
        raise FormatError(
            f"{url!r} is not the queue that this checkpoint was made with ({offset.get('queue')!r}, not {identity!r}): "
            "use a checkpoint of its own for each queue, or remove the old one to begin anew"
        )


def copied_parts(url: str, values: pa.BinaryArray, tokens: Tokens, members: Any, is_aq: bool = False) -> list[Part]:
    """Give a copy of a queue to the tasks of a batch read: it stays what it is, whatever happens to the queue."""
    parts = []
    for member in np.unique(members):
        place = np.flatnonzero(members == member)
        for piece in pieces(tokens["length"][place], 1 << 62, TASK_BYTES):
            rows = place[piece]
            columns = {"value": values.take(pa.array(rows)), "id": pa.array(tokens["id"][rows].astype(np.int64))}
            if is_aq:
                columns["committed"] = pa.array(tokens["first"][rows].astype(bool))
            ids = tokens["id"][rows]
            batch = pa.record_batch(columns)
            sink = pa.BufferOutputStream()
            with pa.ipc.new_stream(sink, batch.schema) as writer:
                writer.write_batch(batch)
            parts.append(Part(url, int(member), int(ids.min()), int(ids.max()) + 1, sink.getvalue()))
    return parts


def read_copy(part: Part, columns: Columns, rows: int) -> Iterator[pa.RecordBatch]:
    """Hand over the copy that came with a task."""
    whole = pa.ipc.open_stream(part.extra).read_next_batch()
    for piece in pieces(pc.binary_length(whole.column("value")).to_numpy(), rows):
        batch = whole.slice(piece.start, piece.stop - piece.start)
        committed = batch.column("committed") if "committed" in batch.schema.names else None
        yield columns.batch(
            batch.column("value"),
            partition=part.number,
            offsets=batch.column("id"),
            queue=part.queue,
            committed=committed,
        )
