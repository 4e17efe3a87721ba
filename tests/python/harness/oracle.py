"""The judge of tests/common/oracle.rs: from journals and what is left, what was lost, invented, repeated or damaged."""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

from . import payload
from .journal import Op, Record, State


class Delivery(Enum):
    """How often a message may be delivered."""

    ONCE = "once"
    UNTIL_ACKED = "until acked"
    REPEATABLE = "repeatable"


class Losses(Enum):
    """What a death may take with it; a number in its place allows that many losses."""

    NEVER = "never"
    IN_HANDS = "one for each interrupted get"
    ANY = "any"


class Order(Enum):
    """What a consumer sees of one producer."""

    PER_PRODUCER = "rising, and what is left follows what was got"
    FIRST_DELIVERY = "rising among messages delivered once; an interrupted get excuses one straggler"
    ANY = "any"


class Promise(NamedTuple):
    """What a queue promises."""

    delivery: Delivery
    losses: Losses | int
    order: Order

    @staticmethod
    def exactly_once() -> "Promise":
        """Nothing lost, nothing twice, in order."""
        return Promise(Delivery.ONCE, Losses.NEVER, Order.PER_PRODUCER)

    @staticmethod
    def at_most_once() -> "Promise":
        """A killed consumer takes at most the one message in its hands with it."""
        return Promise(Delivery.ONCE, Losses.IN_HANDS, Order.PER_PRODUCER)

    @staticmethod
    def until_acked() -> "Promise":
        """Unacked messages come back, acked ones never."""
        return Promise(Delivery.UNTIL_ACKED, Losses.NEVER, Order.FIRST_DELIVERY)


class Key(NamedTuple):
    """One message."""

    queue: int
    producer: int
    sequence: int

    def __str__(self) -> str:
        return f"queue {self.queue} producer {self.producer} sequence {self.sequence}"


@dataclass(slots=True)
class _History:
    put: Record | None = None
    gets: list[Record] = field(default_factory=list)
    acks: list[Record] = field(default_factory=list)
    left: list[int] = field(default_factory=list)

    @property
    def deliveries(self) -> int:
        return len(self.gets) + len(self.left)


@dataclass(slots=True)
class Report:
    """Counts first, offences after; an offence list is empty when the promise was kept."""

    acked: int = 0
    attempted: int = 0
    failed: int = 0
    got: int = 0
    left: int = 0
    interrupted_gets: int = 0
    redelivered: int = 0
    missing: list[str] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)
    unexpected: list[str] = field(default_factory=list)
    duplicates: list[str] = field(default_factory=list)
    reordered: list[str] = field(default_factory=list)
    corrupt: list[str] = field(default_factory=list)
    wrong_crc: list[str] = field(default_factory=list)

    def offences(self) -> dict[str, list[str]]:
        """The kinds of offence that occurred."""
        kinds = ("lost", "unexpected", "duplicates", "reordered", "corrupt", "wrong_crc")
        return {kind: found for kind in kinds if (found := getattr(self, kind))}

    def assert_ok(self, context: str) -> None:
        """Fail with the first offending messages of each kind."""
        assert not self.offences(), f"{context}\n{self}"

    def __str__(self) -> str:
        counts = ("acked", "attempted", "failed", "got", "left", "interrupted_gets", "redelivered")
        lines = [", ".join(f"{name} {getattr(self, name)}" for name in counts) + f", missing {len(self.missing)}"]
        for kind, found in self.offences().items():
            lines += [f"{kind}: {len(found)}", *(f"  {text}" for text in found[:5])]
        return "\n".join(lines)


class Oracle:
    """Collects the evidence: `Oracle(promise).journal(records).left(queue, messages).check()`."""

    def __init__(self, promise: Promise) -> None:
        self._promise = promise
        self._journals: list[list[Record]] = []
        self._left: list[tuple[int, bytes]] = []

    def journal(self, records: Iterable[Record]) -> "Oracle":
        """Add one worker's journal. A worker is one consumer: its order is judged."""
        self._journals.append(list(records))
        return self

    def left(self, queue: int, messages: Iterable[bytes]) -> "Oracle":
        """Add what the test drained at the end, in the order it came."""
        self._left += [(queue, bytes(message)) for message in messages]
        return self

    def check(self) -> Report:
        """Judge."""
        report = Report()
        histories: defaultdict[Key, _History] = defaultdict(_History)
        for journal in self._journals:
            for record in journal:
                _gather(record, histories, report)
        left = self._identify_left(histories, report)
        for key in sorted(histories):
            _judge_origin(key, histories[key], report)
            _judge_deliveries(key, histories[key], self._promise.delivery, report)
        self._judge_losses(histories, report)
        self._judge_order(histories, left, report)
        return report

    def _identify_left(self, histories: dict[Key, _History], report: Report) -> list[Key]:
        keys: list[Key] = []
        for place, (queue, data) in enumerate(self._left):
            report.left += 1
            try:
                identity = payload.parse(data, padded=True)
            except payload.Torn as torn:
                report.corrupt.append(f"queue {queue}: left message {place}: {torn}")
                continue
            keys.append(Key(queue, identity.producer, identity.sequence))
            histories[keys[-1]].left.append(identity.crc)
        return keys

    def _judge_losses(self, histories: dict[Key, _History], report: Report) -> None:
        for key, history in sorted(histories.items()):
            if self._promise.delivery is Delivery.UNTIL_ACKED:
                settled = any(ack.state is not State.FAILED for ack in history.acks)
            else:
                settled = bool(history.gets)
            if history.put and history.put.state is State.ACKNOWLEDGED and not history.left and not settled:
                report.missing.append(f"{key}{', got but never acked and not left' if history.gets else ''}")
        match self._promise.losses:
            case Losses.NEVER:
                allowed = 0
            case Losses.IN_HANDS:
                allowed = report.interrupted_gets
            case Losses.ANY:
                allowed = len(report.missing)
            case int(limit):
                allowed = limit
        if len(report.missing) > allowed:
            report.lost = list(report.missing)

    def _judge_order(self, histories: dict[Key, _History], left: list[Key], report: Report) -> None:
        if self._promise.order is Order.ANY:
            return
        strict = self._promise.order is Order.PER_PRODUCER
        found: list[str] = []
        highest_got: dict[tuple[int, int], int] = {}
        for consumer, journal in enumerate(self._journals):
            last: dict[tuple[int, int], int] = {}
            for record in journal:
                if record.op is not Op.GET or record.state is not State.GOT:
                    continue
                key = Key(record.queue, record.producer, record.sequence)
                # A message that came back is out of order by right.
                if strict or histories[key].deliveries == 1:
                    _rising(last, key, f"consumer {consumer}", found)
                highest_got[key[:2]] = max(key.sequence, highest_got.get(key[:2], 0))
        last = highest_got if strict else {}
        for key in left:
            if strict or histories[key].deliveries == 1:
                _rising(last, key, "left", found)
        if len(found) > (0 if strict else report.interrupted_gets):
            report.reordered = found


def _gather(record: Record, histories: dict[Key, _History], report: Report) -> None:
    key = Key(record.queue, record.producer, record.sequence)
    match record.op, record.state:
        case Op.PUT, state:
            assert histories[key].put is None, f"the test put {key} twice: sequences must be unique"
            histories[key].put = record
            report.acked += state is State.ACKNOWLEDGED
            report.attempted += state is State.ATTEMPT
            report.failed += state is State.FAILED
        case Op.GET, State.GOT:
            report.got += 1
            histories[key].gets.append(record)
        case Op.GET, State.CORRUPT:
            report.got += 1
            text = f"a get returned {record.length} bytes that no producer made, CRC {record.crc:#010x}"
            report.corrupt.append(f"queue {record.queue}: {text}")
        case Op.GET, State.ATTEMPT:
            report.interrupted_gets += 1
        case Op.ACK, _:
            histories[key].acks.append(record)


def _judge_origin(key: Key, history: _History, report: Report) -> None:
    if history.put is None:
        if history.deliveries:
            report.unexpected.append(f"{key}, which nobody put")
        return
    if history.put.state is State.FAILED and history.deliveries:
        report.unexpected.append(f"{key}, whose put raised")
    for crc in [get.crc for get in history.gets] + history.left:
        if crc != history.put.crc:
            report.wrong_crc.append(f"{key}: put with CRC {history.put.crc:#010x}, seen with {crc:#010x}")


def _judge_deliveries(key: Key, history: _History, delivery: Delivery, report: Report) -> None:
    report.redelivered += max(0, history.deliveries - 1)
    if delivery is Delivery.ONCE and history.deliveries > 1:
        report.duplicates.append(f"{key}: got {len(history.gets)} times, left {len(history.left)}")
    acked_at = min((ack.ended_ns for ack in history.acks if ack.state is State.ACKNOWLEDGED), default=None)
    if delivery is Delivery.UNTIL_ACKED and acked_at is not None:
        if history.left:
            report.duplicates.append(f"{key}: left although its ack returned")
        if any(get.started_ns > acked_at for get in history.gets):
            report.duplicates.append(f"{key}: delivered by a get that began after its ack had returned")


def _rising(last: dict[tuple[int, int], int], key: Key, place: str, found: list[str]) -> None:
    highest = last.get(key[:2], key.sequence)
    if key.sequence < highest:
        found.append(f"{place}: {key} after sequence {highest}")
    last[key[:2]] = max(highest, key.sequence)
