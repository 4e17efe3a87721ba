"""What a worker was doing: a private mapped file, written before and after every call, readable after its kill -9.

The layout is that of tests/common/journal.rs: 64 bytes of header, then records of six words (meta, sequence, crc|len,
started, ended, tag), so that one oracle can judge Rust and Python workers of the same run.
"""

import mmap
import time
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from typing import NamedTuple

from . import payload

_HEADER_WORDS = 8
_RECORD_WORDS = 6


class Op(IntEnum):
    """The kind of call."""

    PUT = 1
    GET = 2
    ACK = 3


class State(IntEnum):
    """How far the call got."""

    ATTEMPT = 1
    ACKNOWLEDGED = 2
    GOT = 3
    FAILED = 4
    CORRUPT = 5


class Record(NamedTuple):
    """One call as read back by the parent."""

    op: Op
    state: State
    queue: int
    producer: int
    sequence: int
    crc: int
    length: int
    started_ns: int
    ended_ns: int
    tag: int


@dataclass(frozen=True, slots=True)
class Ticket:
    """A call that has started."""

    index: int
    op: Op
    queue: int
    producer: int


class Journal:
    """The writing end, one per worker."""

    def __init__(self, path: Path) -> None:
        with path.open("r+b") as file:
            self._map = mmap.mmap(file.fileno(), 0)
        # A word of a cast view is stored at once; struct.pack_into goes byte by byte, and a kill could fall between.
        self._words = memoryview(self._map).cast("Q")
        self._capacity = (len(self._words) - _HEADER_WORDS) // _RECORD_WORDS
        self._next = next((i for i in range(self._capacity) if not self._words[_at(i)]), self._capacity)

    @staticmethod
    def create(path: Path, capacity: int) -> None:
        """Make an empty, sparse journal for `capacity` calls."""
        with path.open("xb") as file:
            file.truncate((_HEADER_WORDS + capacity * _RECORD_WORDS) * 8)

    def close(self) -> None:
        """Unmap."""
        self._words.release()
        self._map.close()

    def attempt_put(self, queue: int, message: bytes) -> Ticket:
        """Note that a put of a `payload.make` message starts."""
        return self._attempt(Op.PUT, queue, payload.parse(message))

    def attempt_get(self, queue: int) -> Ticket:
        """Note that a get starts."""
        return self._attempt(Op.GET, queue, None)

    def attempt_ack(self, queue: int, message: payload.Identity) -> Ticket:
        """Note that the call starts which makes this delivery final."""
        return self._attempt(Op.ACK, queue, message)

    def acknowledged(self, ticket: Ticket) -> None:
        """Note that the put or ack returned."""
        self._mark(ticket, State.ACKNOWLEDGED, None)

    def failed(self, ticket: Ticket) -> None:
        """Note that the call raised."""
        self._mark(ticket, State.FAILED, None)

    def nothing(self, ticket: Ticket) -> None:
        """Take back a get that found nothing, so that polling does not fill the journal."""
        assert ticket.op == Op.GET
        assert ticket.index + 1 == self._next
        self._words[_at(ticket.index)] = 0
        self._next = ticket.index

    def got(self, ticket: Ticket, data: bytes, *, padded: bool = False) -> payload.Identity | None:
        """Note what the get returned; None when no producer made it."""
        assert ticket.op == Op.GET
        try:
            identity = payload.parse(data, padded=padded)
        except payload.Torn:
            self._mark(ticket, State.CORRUPT, payload.Identity(0, 0, zlib.crc32(data), len(data)))
            return None
        self._mark(ticket, State.GOT, identity)
        return identity

    @contextmanager
    def put(self, queue: int, message: bytes) -> Iterator[None]:
        """Journal the put in the block: acknowledged, or failed when it raises."""
        with self._call(self.attempt_put(queue, message)):
            yield

    @contextmanager
    def ack(self, queue: int, message: payload.Identity) -> Iterator[None]:
        """Journal the ack in the block: acknowledged, or failed when it raises."""
        with self._call(self.attempt_ack(queue, message)):
            yield

    @contextmanager
    def _call(self, ticket: Ticket) -> Iterator[None]:
        try:
            yield
        except Exception:
            self.failed(ticket)
            raise
        self.acknowledged(ticket)

    def _attempt(self, op: Op, queue: int, message: payload.Identity | None) -> Ticket:
        if self._next >= self._capacity:
            msg = f"journal full after {self._next} calls: give this worker a larger one"
            raise RuntimeError(msg)
        index, self._next = self._next, self._next + 1
        if message is not None:
            self._identify(index, message)
        self._words[_at(index) + 3] = time.monotonic_ns()
        self._words[_at(index) + 4] = 0
        ticket = Ticket(index, op, queue, message.producer if message else 0)
        self._words[_at(index)] = _meta(op, State.ATTEMPT, queue, ticket.producer)
        return ticket

    def _mark(self, ticket: Ticket, state: State, message: payload.Identity | None) -> None:
        if message is not None:
            self._identify(ticket.index, message)
        self._words[_at(ticket.index) + 4] = time.monotonic_ns()
        producer = ticket.producer if message is None else message.producer
        self._words[_at(ticket.index)] = _meta(ticket.op, state, ticket.queue, producer)

    def _identify(self, index: int, message: payload.Identity) -> None:
        self._words[_at(index) + 1] = message.sequence
        self._words[_at(index) + 2] = message.crc | message.length << 32


def read(path: Path) -> list[Record]:
    """Every record, in call order. The worker may be dead or alive; it may be a Rust worker."""
    records: list[Record] = []
    with (
        path.open("rb") as file,
        mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as mapped,
        memoryview(mapped) as view,
        view.cast("Q") as words,
    ):
        for start in range(_HEADER_WORDS, len(words) - _RECORD_WORDS + 1, _RECORD_WORDS):
            with words[start : start + _RECORD_WORDS] as record:
                meta, sequence, crc_length, started, ended, tag = record.tolist()
            if not meta:
                break
            op, state = Op(meta & 0xFF), State(meta >> 8 & 0xFF)
            crc, length = crc_length & 0xFFFFFFFF, crc_length >> 32
            producer, queue = meta >> 32, meta >> 16 & 0xFFFF
            records.append(Record(op, state, queue, producer, sequence, crc, length, started, ended, tag))
    return records


def _at(index: int) -> int:
    return _HEADER_WORDS + index * _RECORD_WORDS


def _meta(op: Op, state: State, queue: int, producer: int) -> int:
    return op | state << 8 | queue << 16 | producer << 32
