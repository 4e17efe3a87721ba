"""What Spark needs of a queue, and the one place that knows which class gives it.

A :class:`Feed` reads, a :class:`Drain` writes. Both travel to other processes by pickle, so they open nothing before a
method is called, and whatever they hold open stays behind.
"""

import importlib
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import InputPartition, WriterCommitMessage

from tailrace.errors import QueueFull
from tailrace.spark.columns import Columns
from tailrace.spark.options import Options

__all__ = [
    "Attempt",
    "Drain",
    "Feed",
    "Limits",
    "Offset",
    "Part",
    "Stamp",
    "Written",
    "drain_for",
    "feed_for",
    "put_all",
]

#: A place in a stream as Spark keeps it in the checkpoint: JSON. What is in it is the feed's own affair.
Offset = dict[str, Any]


@dataclass(frozen=True)
class Limits:
    """The most that a micro-batch may take; None is no limit."""

    rows: int | None = None
    bytes: int | None = None


@dataclass
class Part(InputPartition):
    """What one task reads: messages ``start`` to ``end`` (exclusive) of a queue."""

    queue: str
    number: int
    start: int
    end: int
    extra: Any = None

    # InputPartition has an __init__ with one argument; a dataclass replaces it.


class Feed(ABC):
    """Reads a queue for Spark."""

    def __init__(self, options: Options) -> None:
        self.options = options
        self.handles: dict[Any, Any] = {}

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "handles": {}}

    def close(self) -> None:
        """Let go of everything that is open here; what dies without this leaves nothing locked either."""
        # What was opened last may need what was opened before it.
        for handle in reversed(self.handles.values()):
            if hasattr(handle, "close"):
                handle.close()
        self.handles.clear()

    # In a task

    @abstractmethod
    def read(self, part: Part, columns: Columns) -> Iterator[pa.RecordBatch]:
        """Copy the messages of a part; any number of times, with the same result for a part of a stream."""

    # In the planner of a batch

    @abstractmethod
    def snapshot(self) -> list[Part]:
        """All messages that are there now, to be read without taking them."""

    # In the driver-side process of a stream, which lives as long as the query

    @abstractmethod
    def initial(self) -> Offset:
        """Where a new stream begins: the same answer until the first commit, also after a crash."""

    @abstractmethod
    def horizon(self) -> Offset:
        """As far as a stream could read at this moment. Cheap: an idle query asks every 12 ms."""

    def freeze(self) -> Offset:
        """Where a query ends that takes only what is there at its start (AvailableNow)."""
        return self.horizon()

    @abstractmethod
    def advance(self, start: Offset | None, horizon: Offset, limits: Limits) -> Offset:
        """Where a micro-batch from ``start`` ends: within the limits, one message at least if there is one.

        Spark 4.0 and 4.1 do not tell the start, and know no limits.
        """

    @abstractmethod
    def plan(self, start: Offset, end: Offset) -> list[Part]:
        """Cut a micro-batch into tasks; both offsets may come from a checkpoint of an earlier life."""

    @abstractmethod
    def commit(self, end: Offset) -> None:
        """Let go of everything before ``end``. Spark calls this late, twice, or never."""


@dataclass(frozen=True)
class Stamp:
    """Which micro-batch of which query: what makes writing it twice harmless."""

    query: str
    batch: int
    #: Of the query's present life; a restarted one has another.
    run: str = ""


@dataclass(frozen=True)
class Attempt:
    """Who writes: an attempt at a task of a job. ``stamp`` is there for streams only."""

    job: str
    partition: int
    task: int
    stamp: Stamp | None = None


@dataclass
class Written(WriterCommitMessage):
    """What a task tells the driver about what it wrote."""

    rows: int
    attempt: Attempt
    staged: Any = None


class Drain(ABC):
    """Writes to a queue for Spark."""

    def __init__(self, options: Options) -> None:
        self.options = options

    @abstractmethod
    def write(self, messages: Iterator[pa.BinaryArray], attempt: Attempt) -> Written:
        """Write, or stage, the messages of one task."""

    def commit(self, written: list[Written], stamp: Stamp | None) -> None:  # noqa: B027
        """Publish what all tasks of a batch have staged."""

    def abort(self, written: list[Written], stamp: Stamp | None) -> None:  # noqa: B027
        """Throw away what the tasks that succeeded have staged."""


def put_all(queue: Any, messages: pa.BinaryArray, options: Options, **how: Any) -> int:
    """Put all messages, or fail the task when there is no room for too long."""
    try:
        put = queue.put_many(messages, timeout=options.timeout, **how)
    except QueueFull:
        put = 0
    # Those that do not count raise when they cannot put all.
    if put is not None and put < len(messages):
        raise QueueFull(
            f"{options.url!r} was full for {options.timeout} seconds: is somebody reading it? The option "
            "'timeout' sets how long to wait"
        )
    return len(messages)


def feed_for(options: Options) -> Feed:
    """Give the reader for a URL."""
    feed: Feed = _module(options).make_feed(options)
    return feed


def drain_for(options: Options) -> Drain:
    """Give the writer for a URL."""
    drain: Drain = _module(options).make_drain(options)
    return drain


def _module(options: Options) -> Any:
    return importlib.import_module(f"tailrace.spark.queues.{options.scheme}")
