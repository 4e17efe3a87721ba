"""What is asked of a kind of queue."""

import struct
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

__all__ = ["Kind", "Option", "behind", "boolean", "count", "size"]

#: As ``src/python/tokens.rs`` lays them out: the number of a message, and what tail does not need.
TOKEN = struct.Struct("<QQQ")


@dataclass(frozen=True)
class Option:
    """A parameter that a new queue can have."""

    name: str
    parse: Callable[[str], Any]
    default: Any
    help: str


_SUFFIXES = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30}


def size(text: str) -> int:
    """Read a number of bytes, with K, M or G for powers of 1024.

    >>> size("4K"), size("1MiB"), size("100")
    (4096, 1048576, 100)
    """
    lowered = text.strip().lower()
    digits = lowered.rstrip("bikmg")
    suffix = lowered[len(digits) :].removesuffix("b").removesuffix("i")
    if not digits.isdigit() or suffix not in _SUFFIXES:
        raise ValueError(f"{text!r} is not a size such as 65536, 64K or 1M")
    return int(digits) * _SUFFIXES[suffix]


def count(text: str) -> int:
    """Read a whole number.

    >>> count("16")
    16
    """
    number = int(text) if text.strip().isdecimal() else -1
    if not 0 <= number < 1 << 32:
        raise ValueError(f"{text!r} is not a whole number from 0 to {(1 << 32) - 1}")
    return number


def boolean(text: str) -> bool:
    """Read yes or no.

    >>> boolean("yes"), boolean("0")
    (True, False)
    """
    if text.lower() in ("yes", "true", "1", "on"):
        return True
    if text.lower() in ("no", "false", "0", "off"):
        return False
    raise ValueError(f"{text!r} is neither yes nor no")


def behind(looked: tuple[Any, bytes], after: int | None) -> tuple[int, list[bytes]]:
    """Choose the messages with numbers behind ``after`` from what a native ``_look`` gives: an array, and tokens."""
    values, tokens = looked
    numbers = [number for number, _, _ in TOKEN.iter_unpack(tokens)]
    fresh = [(number, value) for number, value in zip(numbers, values.to_pylist(), strict=True)]
    fresh = [one for one in fresh if after is None or one[0] > after]
    last = max((number for number, _ in fresh), default=-1 if after is None else after)
    return last, [value for _, value in fresh]


class Kind(ABC):
    """One kind of queue. ``rest`` is what follows the scheme in a URL."""

    scheme: ClassVar[str]
    options: ClassVar[tuple[Option, ...]] = ()
    #: Whether every message has the same size, so that shorter ones come back with null bytes behind them.
    pads: ClassVar[bool] = False

    @abstractmethod
    def create(self, rest: str, options: Mapping[str, Any]) -> None:
        """Create a queue that does not exist yet."""

    @abstractmethod
    def writer(self, rest: str) -> Any:
        """Open an existing queue to put messages into it."""

    @abstractmethod
    def reader(self, rest: str) -> Any:
        """Open an existing queue to take messages out of it."""

    def describe(self, rest: str) -> dict[str, Any]:
        """Give the ``info()`` of an existing queue, without a role that others could want."""
        with self.writer(rest) as queue:
            info: dict[str, Any] = queue.info()
        return info

    @abstractmethod
    def remove(self, rest: str) -> None:
        """Remove a queue and its files."""

    @abstractmethod
    def files(self, rest: str) -> list[Path]:
        """Name the files that the queue consists of now."""

    @abstractmethod
    def urls(self, path: Path) -> Iterator[str]:
        """Give the URLs of the queues whose main file is ``path``; none when it is not of this kind."""

    @abstractmethod
    def news(self, rest: str, after: int | None) -> tuple[int, list[bytes]]:
        """Copy the messages behind place ``after``, or all, and leave them; give the place of the last one, too."""

    def parse(self, given: Mapping[str, str]) -> dict[str, Any]:
        """Read the parameters of a new queue; what is not given has its default.

        >>> from tailrace._kinds import KINDS
        >>> KINDS["ring"].parse({"max_len": "16"})
        {'max_len': 16, 'msg_size': 8}
        """
        known = {option.name: option for option in self.options}
        for name in given:
            if name not in known:
                raise ValueError(f"{self.scheme} queues have no option {name!r}, only {', '.join(known)}")
        values = {}
        for name, option in known.items():
            if name not in given:
                values[name] = option.default
                continue
            try:
                values[name] = option.parse(given[name])
            except ValueError as error:
                raise ValueError(f"option {name}: {error}") from None
        return values
