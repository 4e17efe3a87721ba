"""qewqew for Spark: a source that replays exactly, and a sink that publishes each micro-batch once.

Source. Offsets are the queue's absolute positions, so a micro-batch names the same bytes for ever. Tasks read ranges
of chunk files without a lock, from any host that sees them; producers go on meanwhile. Nothing is removed before
Spark's commit, which moves the consumer's cursor and then the queue's head (to the slowest of its consumers). A glob
is one source with the offset of each queue in it; queues that appear later join with all that is in them.

Sink. Tasks stage their messages in ``NAME.staged/``; the commit publishes them once under the query's id and the
number of the micro-batch (see :mod:`tailrace.spark.queues.publishing`). A repeated micro-batch is dropped.
"""

import functools
import glob
import stat
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path, PurePath
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa

from tailrace import qewqew
from tailrace._core import qewqew as native
from tailrace.errors import AlreadyOpen, CorruptQueue, FormatError, MessageNotFound, QueueError, QueueNotFound
from tailrace.spark.columns import Columns
from tailrace.spark.options import Options
from tailrace.spark.queues import Attempt, Drain, Feed, Limits, Offset, Part, Stamp, Written
from tailrace.spark.queues.cursor import Cursor, patiently, positions_of_others
from tailrace.spark.queues.publishing import Ledger
from tailrace.spark.queues.tokens import BATCH_BYTES

__all__ = ["make_drain", "make_feed"]

T = TypeVar("T")

#: A task is given this much at most, where chunks allow it: a lost one is not too much to read again.
TASK_BYTES = 256 << 20
#: Rows and bytes that are looked at at a time where only the sizes of messages count.
PLAN_ROWS, PLAN_BYTES = 1 << 20, 4 << 20
#: Bytes of a chunk where nobody says otherwise.
DEFAULT_CHUNK = 1 << 20
#: How often a glob is looked at for new queues.
LOOK_AGAIN = 1.0
#: So few bytes of a task are appended to the last chunk rather than becoming a chunk: ids of chunks are not endless.
SMALL, SMALL_SHARE = 64 << 10, 16
#: Staged files that nobody has published for so long are of jobs that are dead.
STALE = 24 * 3600.0


def make_feed(options: Options) -> Feed:
    """Read one queue, or all that a glob names."""
    return QewqewFeed(options)


def make_drain(options: Options) -> Drain:
    """Write to one queue."""
    if glob.has_magic(options.rest):
        raise ValueError(f"{options.url!r} names many queues: a sink writes to one")
    return QewqewDrain(options)


def _telling(method: Callable[..., T]) -> Callable[..., T]:
    """Let damage that a method meets say what to do about it."""

    @functools.wraps(method)
    def told(self: "QewqewFeed", *arguments: Any) -> T:
        try:
            return method(self, *arguments)
        except CorruptQueue as error:
            raise CorruptQueue(_damage(self.options.rest, error)) from None

    return told


class QewqewFeed(Feed):
    """All the queues of a URL; offsets are ``{path: {"queue": uuid, "position": number}}``."""

    # In a task

    def read(self, part: Part, columns: Columns) -> Iterator[pa.RecordBatch]:
        """Copy a range, a batch of rows at a time."""
        try:
            yield from self._read(part, columns)
        except CorruptQueue as error:
            raise CorruptQueue(_damage(part.queue, error)) from None

    def _read(self, part: Part, columns: Columns) -> Iterator[pa.RecordBatch]:
        ranges = self._ranges(part.queue)
        _check_identity(part.queue, part.extra, ranges.uuid)
        for start, values in self._batches(part, ranges):
            places = functools.partial(_places, start, values)
            yield columns.batch(values, partition=part.number, offsets=places, queue=part.queue)

    def _batches(self, part: Part, ranges: Any) -> Iterable[tuple[int, pa.BinaryArray]]:
        limits = (self.options.batch_rows, BATCH_BYTES)
        try:
            found: Iterable[Any] = ranges._batches(part.start, part.end, *limits)
        except MessageNotFound as error:
            if self.options.fail_on_data_loss:
                raise QueueError(_loss(part.queue, error)) from None
            # Chunks leave from the front only, so what is gone is what comes first.
            start = max(part.start, ranges.head_position)
            found = ranges._batches(start, part.end, *limits) if start < part.end else ()
        return found

    # In the planner of a batch

    @_telling
    def snapshot(self) -> list[Part]:
        """Cut what is in the queues now; positions are begun if nobody has."""
        parts: list[Part] = []
        paths = self._paths()
        if not paths:
            # A stream waits for the first one; to a batch it would look like queues without messages.
            raise QueueNotFound(f"there is no qewqew queue that {self.options.rest!r} names")
        for number, path in enumerate(paths):
            ranges = self._ranges(path)
            parts += self._cut(number, path, ranges, ranges.head_position, ranges.tail_position)
        return parts

    # In the driver-side process of a stream

    @_telling
    def initial(self) -> Offset:
        """Begin where the consumer is, or where startingOffsets says; noted durably before anybody hears of it."""
        return {path: self._begin(path, self.options.starting_offsets) for path in self._paths()}

    @_telling
    def horizon(self) -> Offset:
        """The ends of all queues."""
        now = {}
        for path in self._paths():
            queue = self._consumer(path)
            now[path] = {"queue": self._identity(path), "position": queue.tail_position}
        return now

    @_telling
    def advance(self, start: Offset | None, horizon: Offset, limits: Limits) -> Offset:
        """Go on in each queue by its share of the limits."""
        if start is None:
            for path in horizon:
                self._begin(path, self.options.starting_offsets)
            return horizon
        end = self._there(start)
        waiting = []
        for path, goal in horizon.items():
            begin = end[path] = end.get(path) or self._begin(path)
            if goal["position"] > begin["position"]:
                waiting.append((path, begin["position"], goal["position"]))
        rows, size = limits.rows, limits.bytes
        for left, (path, begin_at, goal_at) in zip(range(len(waiting), 0, -1), waiting, strict=True):
            reached = goal_at
            if rows is not None or size is not None:
                share = [None if limit is None else -(-limit // left) for limit in (rows, size)]
                if 0 in share:
                    break
                reached, took, used = _limited(self._ranges(path), self._kept(path, begin_at), goal_at, *share)
                rows = None if rows is None else max(0, rows - took)
                size = None if size is None else max(0, size - used)
            end[path] = {"queue": self._identity(path), "position": reached}
        return end

    @_telling
    def plan(self, start: Offset, end: Offset) -> list[Part]:
        """Cut the ranges of a micro-batch at chunks."""
        parts: list[Part] = []
        starts = self._there(start)
        for number, (path, goal) in enumerate(sorted(self._there(end).items())):
            begin = starts.get(path) or self._begin(path)
            if begin["position"] < goal["position"]:
                kept = self._kept(path, begin["position"])
                parts += self._cut(number, path, self._ranges(path), kept, goal["position"])
        return parts

    @_telling
    def commit(self, end: Offset) -> None:
        """Move the cursors, then the heads; again and again if Spark says so."""
        for path, place in self._there(end).items():
            cursor, uuid = self._cursor(path), self._identity(path)
            noted = cursor.read()
            if noted is None or noted["queue"] != uuid or noted["position"] < place["position"]:
                cursor.write(uuid, place["position"])
            queue = self._consumer(path)
            done = min([place["position"], *positions_of_others(path, self.options.consumer, uuid)])
            if done > queue.head_position:
                queue.commit(done)

    # Details

    def _paths(self) -> list[str]:
        if not glob.has_magic(self.options.rest):
            path = str(Path(self.options.rest).absolute())
            if path not in self.handles and not _exists(path):
                raise QueueNotFound(f"there is no qewqew queue at {path}")
            return [path]
        known, looked = self.handles.get("", ([], 0.0))
        if time.monotonic() - looked > LOOK_AGAIN or not known:
            pattern = str(Path(self.options.rest).absolute())
            # An empty queue that was closed has no head file; its positions stay.
            found = {path for path in glob.glob(pattern) if _is_head(path)}  # noqa: PTH207
            found |= {path.removesuffix(".positions") for path in glob.glob(f"{pattern}.positions")}  # noqa: PTH207
            known = sorted({*known, *found})
            self.handles[""] = (known, time.monotonic())
        return list(known)

    def _ranges(self, path: str) -> Any:
        try:
            return qewqew.RangeReader(path, network=self.options.network)
        except QueueNotFound:
            if not _exists(path):
                raise QueueNotFound(f"there is no qewqew queue at {path}") from None
        # It keeps no positions yet, and only its consumer may begin to.
        try:
            with self._open(path) as queue:
                queue.head_position  # noqa: B018
        except AlreadyOpen as error:
            raise AlreadyOpen(
                f"{path} keeps no positions yet, and another program is its consumer: let it ask for head_position "
                f"once, or stop it ({error})"
            ) from None
        return qewqew.RangeReader(path, network=self.options.network)

    def _open(self, path: str) -> Any:
        given = {"chunk_size": self.options.chunk_size, "sync": self.options.sync}
        known: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
        return qewqew.DurableQueue(path, role="consumer", network=self.options.network, **known)

    def _cursor(self, path: str) -> Cursor:
        cursor: Cursor = self._held(("cursor", path), lambda: Cursor(path, self.options.consumer))
        return cursor

    def _consumer(self, path: str) -> Any:
        def opened() -> Any:
            self._cursor(path)
            try:
                return patiently(lambda: self._open(path))
            except AlreadyOpen as error:
                raise AlreadyOpen(
                    f"{path} cannot be read as a stream while another program consumes it: {error}"
                ) from None

        return self._held(("queue", path), opened)

    def _identity(self, path: str) -> str:
        return str(self._held(("uuid", path), lambda: self._ranges_of_consumer(path).uuid))

    def _ranges_of_consumer(self, path: str) -> Any:
        self._consumer(path).head_position  # noqa: B018
        return self._ranges(path)

    def _held(self, name: Any, make: Any) -> Any:
        if name not in self.handles:
            self.handles[name] = make()
        return self.handles[name]

    def _begin(self, path: str, wanted: str | dict[str, Any] = "earliest") -> dict[str, Any]:
        return dict(self._held(("begin", path), lambda: self._find_beginning(path, wanted)))

    def _find_beginning(self, path: str, wanted: str | dict[str, Any]) -> dict[str, Any]:
        cursor, queue, uuid = self._cursor(path), self._consumer(path), self._identity(path)
        noted = cursor.read()
        if noted is not None and noted["queue"] == uuid:
            return noted
        if isinstance(wanted, dict):
            if path not in wanted:
                raise ValueError(f"startingOffsets names {', '.join(wanted) or 'no queue'}, but not {path}")
            position = self._wanted(path, wanted[path])
        else:
            position = queue.tail_position if wanted == "latest" else queue.head_position
        cursor.write(uuid, position)
        return {"queue": uuid, "position": position}

    def _wanted(self, path: str, place: Any) -> int:
        """Check a place that the user has named: the cursor would keep a wrong one."""
        self._check(path, place)
        position, tail = self._kept(path, place["position"]), self._consumer(path).tail_position
        if position > tail:
            raise ValueError(f"startingOffsets is at {position} in {path}, which ends at {tail}")
        # Fails where no message begins.
        next(self._ranges(path)._batches(position, tail, 1, 1), None)
        return position

    def _there(self, offset: Offset) -> Offset:
        """Give the places of an offset in queues that are still there, all of which the URL must name."""
        pattern = str(Path(self.options.rest).absolute())
        there: Offset = {}
        for path, place in offset.items():
            if path != pattern and not (glob.has_magic(pattern) and PurePath(path).match(pattern)):
                raise FormatError(
                    f"the checkpoint was made with {path!r}, which {self.options.url!r} does not name: use a "
                    "checkpoint of its own for each queue, or remove the old one to begin anew"
                )
            if ("queue", path) in self.handles or _exists(path):
                self._check(path, place)
                there[path] = place
            elif self.options.fail_on_data_loss:
                raise QueueNotFound(
                    f"there is no qewqew queue at {path} any more, and the checkpoint has a place in it: set "
                    "failOnDataLoss to false to go on without it"
                )
        return there

    def _check(self, path: str, place: Any) -> None:
        if not isinstance(place, dict) or not isinstance(place.get("position"), int):
            raise ValueError(f"{place!r} is no offset of {path}: the checkpoint belongs to another source")
        _check_identity(path, str(place.get("queue")), self._identity(path))

    def _kept(self, path: str, position: int) -> int:
        head: int = self._consumer(path).head_position
        if position >= head:
            return position
        if self.options.fail_on_data_loss:
            raise QueueError(_loss(path, f"the query is at {position}, the queue begins at {head}"))
        return head

    def _cut(self, number: int, path: str, ranges: Any, start: int, end: int) -> list[Part]:
        if start >= end:
            return []
        pieces = ranges.chunk_ranges(start, end)
        target = max(1, min(TASK_BYTES, -(-(end - start) // self.options.min_partitions)))
        parts: list[Part] = []
        begin = start
        for _, stop in pieces:
            if stop - begin >= target or stop == end:
                parts.append(Part(path, number, begin, stop, ranges.uuid))
                begin = stop
        return parts


def _places(start: int, values: pa.BinaryArray) -> "np.ndarray[Any, np.dtype[np.int64]]":
    """Give the position of each of the messages, of which the first is at ``start``."""
    return _ends(start, values)[:-1]


def _ends(start: int, values: pa.BinaryArray) -> "np.ndarray[Any, np.dtype[np.int64]]":
    """Give the same with the position behind the last one."""
    sizes = np.frombuffer(values.buffers()[1], dtype=np.int32, count=len(values) + 1, offset=4 * values.offset)
    # In front of each message is its length, in two bytes.
    places = np.arange(start, start + 2 * len(values) + 1, 2, dtype=np.int64)
    places += sizes
    return places if sizes[0] == 0 else places - sizes[0]


def _limited(ranges: Any, start: int, end: int, rows: int | None, size: int | None) -> tuple[int, int, int]:
    """Say where a part of a range with so many rows and bytes ends, how many rows it has and how many bytes."""
    took = used = 0
    for first, values in ranges._batches(start, end, PLAN_ROWS, PLAN_BYTES):
        places = _ends(first, values)
        count = len(places) - 1
        if rows is not None:
            count = min(count, rows - took)
        if size is not None:
            # Every message counts with the bytes of its length; the first one is taken whatever its size.
            count = min(count, int(np.searchsorted(places, first + size - used, side="right")) - 1)
            count = max(count, 0 if took else 1)
        took, used = took + count, used + int(places[count]) - first
        if count < len(places) - 1:
            return int(places[count]), took, used
    return end, took, used


def _check_identity(path: str, wanted: str, found: str) -> None:
    if wanted != found:
        raise FormatError(
            f"{path} is not the queue that this checkpoint was made with ({wanted}, now {found}): use a checkpoint "
            "of its own for each queue, or remove the old one to begin anew"
        )


def _damage(path: str, why: object) -> str:
    return (
        f"{path} was truncated or damaged under the query ({why}): 'tailrace verify qewqew:{path}' says where, "
        f"'tailrace repair qewqew:{path}' puts what is damaged aside. Then start the query again, with "
        "failOnDataLoss false"
    )


def _loss(path: str, why: object) -> str:
    return (
        f"messages of {path} that this query has not finished are gone ({why}): another program has consumed or "
        "replaced them. Set failOnDataLoss to false to go on behind them"
    )


def _is_head(path: str) -> bool:
    try:
        about = Path(path).lstat()
    except FileNotFoundError:
        return False
    return stat.S_ISREG(about.st_mode) and about.st_size == 2


def _exists(path: str) -> bool:
    if Path(f"{path}.positions").exists() or _is_head(path):
        return True
    if Path(path).exists():
        raise FormatError(f"{path} is not the head file of a qewqew queue: that has 2 bytes")
    return False


class QewqewDrain(Drain):
    """Stages in tasks, publishes in the driver."""

    def __init__(self, options: Options) -> None:
        super().__init__(options)
        self.path = str(Path(options.rest).absolute())
        self.staging = Path(f"{self.path}.staged")

    def write(self, messages: Iterator[pa.BinaryArray], attempt: Attempt) -> Written:
        """Write files under names that no other attempt has."""
        try:
            self.staging.mkdir(mode=0o700, exist_ok=True)
        except FileNotFoundError:
            raise QueueNotFound(
                f"{self.options.url!r} cannot be written to: there is no directory {self.staging.parent}, make it first"
            ) from None
        prefix = self.staging / f"{attempt.job}.{attempt.partition}.{attempt.task}"
        stage = native._Stage(prefix, self.options.chunk_size or DEFAULT_CHUNK, self.options.sync != "never")
        rows = 0
        for array in messages:
            stage.add(array)
            rows += len(array)
        return Written(rows, attempt, [Path(path).name for path in stage.finish(self._small())])

    def commit(self, written: list[Written], stamp: Stamp | None) -> None:
        """Publish all files of a job in the order of its tasks, unless that was done before."""
        ordered = sorted((one for one in written if one.staged), key=lambda one: one.attempt.partition)
        job = written[0].attempt.job
        application, number = (stamp.query, stamp.batch) if stamp else (job, 0)
        if ordered:
            files = [str(self.staging / name) for one in ordered for name in one.staged]
            ledger = Ledger(self.path, self.options.chunk_size or DEFAULT_CHUNK, self.options.sync != "never")
            with ledger.held(), self._open() as queue:
                ledger.publish(queue, application, number, files)
        self._sweep(job, stamp)

    def abort(self, written: list[Written], stamp: Stamp | None) -> None:
        """Remove what was staged; files of attempts that failed are found by their names."""
        if written:
            self._sweep(written[0].attempt.job, stamp)

    def _small(self) -> int:
        return min(SMALL, (self.options.chunk_size or DEFAULT_CHUNK) // SMALL_SHARE)

    def _open(self) -> Any:
        given = {"chunk_size": self.options.chunk_size, "sync": self.options.sync}
        known: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
        known["network"] = self.options.network
        if not Path(f"{self.path}.positions").exists():
            # Publishing needs positions, and only a consumer may begin to keep them.
            try:
                with qewqew.DurableQueue(self.path, role="consumer", **known) as queue:
                    queue.tail_position  # noqa: B018
            except AlreadyOpen as error:
                raise AlreadyOpen(
                    f"{self.path} keeps no positions yet, and another program is its consumer: let it ask for "
                    f"head_position once, or stop it ({error})"
                ) from None
        return qewqew.DurableQueue(self.path, role="producer", **known)

    def _sweep(self, job: str, stamp: Stamp | None) -> None:
        """Remove the files of this job, of earlier micro-batches of the query, and of jobs that died long ago."""
        oldest = time.time() - STALE
        for path in self.staging.glob("*"):
            owner = path.name.partition(".")[0]
            query, _, batch = owner.rpartition("-")
            is_earlier = stamp is not None and query == stamp.query and batch.isdigit() and int(batch) <= stamp.batch
            try:
                if owner == job or is_earlier or path.stat().st_mtime < oldest:
                    path.unlink()
            except FileNotFoundError:
                continue
