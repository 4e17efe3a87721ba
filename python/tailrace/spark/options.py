"""The options of ``format("tailrace")``, checked before anything is opened.

| option | for | meaning |
|---|---|---|
| ``url`` | all | ``aq:PATH``, ``conq:DIR#NAME``, ``mcp:DIR#NAME``, ``qewqew:PATH-OR-GLOB``, ``ring:PATH`` |
| ``batchRows`` | reading | the most rows in one Arrow batch, which also ends at about 1 MiB (default 16384) |
| ``minPartitions`` | reading | so many tasks at least, where data can be split (default: processors of the driver) |
| ``startingOffsets`` | streams | where a new checkpoint begins: ``earliest`` (default), or for qewqew and ring also \
``latest`` or an offset as a query's progress shows it; a qewqew ``consumer`` that is known goes on where it was |
| ``maxRowsPerTrigger``, ``maxBytesPerTrigger`` | streams | the most that one micro-batch takes (Spark 4.2 or later) |
| ``failOnDataLoss`` | qewqew and ring streams | ``true`` (default): stop when messages are gone; ``false``: go on \
behind them |
| ``consumer`` | qewqew streams | the name of the cursor (default ``spark``): one query at a time has it |
| ``leaseSeconds`` | conq streams | how soon messages are back when the driver has died (default 60); a query that is \
stopped gives them back |
| ``timeout`` | writing | seconds to wait for room in a full queue before the task fails (default 30) |
| ``key`` | mcp | the family member (default: all for reading) |
| ``eof`` | writing to mcp | ``query`` (default): it ends with the query; ``driver``: whoever started it has it open |
| ``chunkSize``, ``sync``, ``network`` | qewqew | as in :class:`tailrace.qewqew.DurableQueue` |

With the trigger ``availableNow`` a query takes what is readable when it begins. What a dead driver still has
leased from conq is not: a query that is started at once leaves it to the next one.
"""

import difflib
import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from tailrace._url import split

__all__ = ["Options"]

#: What Spark itself puts among the options of a source or sink.
SPARKS_OWN = frozenset({"path", "checkpointlocation", "queryname", "outputmode"})

T = TypeVar("T")


@dataclass(frozen=True)
class Options:
    """The options of one read or write.

    >>> Options.parse({"url": "ring:/dev/shm/latest", "batchRows": "1000"}).batch_rows
    1000
    """

    url: str
    scheme: str
    rest: str
    batch_rows: int = 16_384
    min_partitions: int = field(default_factory=lambda: os.cpu_count() or 1)
    starting_offsets: str | dict[str, Any] = "earliest"
    max_rows_per_trigger: int | None = None
    max_bytes_per_trigger: int | None = None
    fail_on_data_loss: bool = True
    consumer: str = "spark"
    lease_seconds: float = 60.0
    timeout: float = 30.0
    key: int | None = None
    eof: str = "query"
    chunk_size: int | None = None
    sync: str | None = None
    network: bool = False

    @classmethod
    def parse(cls, given: Mapping[str, str]) -> "Options":
        """Check what the user has said; every error names the option, its value and what is expected."""
        lowered = {name.lower(): value for name, value in given.items()}
        for name in lowered:
            if name not in PARSERS and name not in SPARKS_OWN and name != "url":
                near = difflib.get_close_matches(name, PARSERS, n=1)
                hint = (
                    f": did you mean {NAMES[near[0]]!r}?"
                    if near
                    else f"; known are {', '.join(sorted(NAMES.values()))}"
                )
                raise ValueError(f"format('tailrace') has no option {name!r}{hint}")
        url = lowered.get("url") or lowered.get("path")
        if not url:
            raise ValueError("format('tailrace') needs a queue: .option('url', 'qewqew:/data/events') or .load(URL)")
        scheme, rest = split(url)
        values: dict[str, Any] = {}
        for name, (attribute, parser) in PARSERS.items():
            if (text := lowered.get(name)) is not None:
                try:
                    values[attribute] = parser(text)
                except ValueError as error:
                    raise ValueError(f"option {NAMES[name]!r} is {text!r}: {error}") from None
        for name, schemes in ONLY_FOR.items():
            if name in lowered and scheme not in schemes:
                raise ValueError(f"option {NAMES[name]!r} is for {' and '.join(schemes)} queues, not for {url!r}")
        return cls(url=url, scheme=scheme, rest=rest, **values)


def _count(text: str) -> int:
    try:
        number = int(text)
    except ValueError:
        raise ValueError("expected a whole number") from None
    if not 1 <= number < 1 << 63:
        raise ValueError("expected a whole number from 1 to 2^63 - 1")
    return number


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        raise ValueError("expected a number of seconds") from None
    if not 0 <= seconds <= 86_400:
        raise ValueError("expected 0 to 86400 seconds")
    return seconds


def _lease(text: str) -> float:
    seconds = _seconds(text)
    if seconds < 3:
        raise ValueError("expected at least 3 seconds: a lease is renewed in time only if there is time")
    return seconds


def _flag(text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise ValueError("expected true or false")
    return text.lower() == "true"


def _one_of(*words: str) -> Callable[[str], str]:
    def parse(text: str) -> str:
        if text not in words:
            raise ValueError(f"expected {' or '.join(words)}")
        return text

    return parse


def _offsets(text: str) -> str | dict[str, Any]:
    if text in ("earliest", "latest"):
        return text
    try:
        value = json.loads(text)
    except json.JSONDecodeError:
        value = None
    if not isinstance(value, dict):
        raise ValueError("expected earliest, latest, or an offset in JSON as a query's progress shows it")
    return value


def _name(text: str) -> str:
    if not text or len(text) > 100 or not all(c.isalnum() or c in "-_." for c in text) or text[0] == ".":
        raise ValueError("expected a name of up to 100 letters, digits, '-', '_' and '.', not beginning with '.'")
    if text.endswith((".lock", ".new")):
        raise ValueError("expected a name that does not end with .lock or .new, as files beside a cursor do")
    return text


#: By name in lower case: the attribute and how its text is read.
PARSERS: dict[str, tuple[str, Callable[[str], Any]]] = {
    "batchrows": ("batch_rows", _count),
    "minpartitions": ("min_partitions", _count),
    "startingoffsets": ("starting_offsets", _offsets),
    "maxrowspertrigger": ("max_rows_per_trigger", _count),
    "maxbytespertrigger": ("max_bytes_per_trigger", _count),
    "failondataloss": ("fail_on_data_loss", _flag),
    "consumer": ("consumer", _name),
    "leaseseconds": ("lease_seconds", _lease),
    "timeout": ("timeout", _seconds),
    "key": ("key", _count),
    "eof": ("eof", _one_of("query", "driver")),
    "chunksize": ("chunk_size", _count),
    "sync": ("sync", _one_of("always", "group", "never")),
    "network": ("network", _flag),
}

#: As people write them.
NAMES = {
    name.lower(): name
    for name in (
        *("batchRows", "minPartitions", "startingOffsets", "maxRowsPerTrigger", "maxBytesPerTrigger", "failOnDataLoss"),
        *("consumer", "leaseSeconds", "timeout", "key", "eof", "chunkSize", "sync", "network"),
    )
}

ONLY_FOR = {
    # What the others hold is held back until it is done: it cannot be gone.
    "failondataloss": ("qewqew", "ring"),
    "consumer": ("qewqew",),
    "leaseseconds": ("conq",),
    "key": ("mcp",),
    "eof": ("mcp",),
    "chunksize": ("qewqew",),
    "sync": ("qewqew",),
    "network": ("qewqew",),
}
