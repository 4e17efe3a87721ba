"""Messages that stay in their queue, named by tokens; a process that has the tokens copies the messages.

The native layer packs tokens into bytes, and numpy looks at them as they are: nothing here has a Python object for a
single message.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np

__all__ = ["BATCH_BYTES", "TOKEN", "Runs", "Tokens", "among", "none", "numbers", "pieces", "runs", "tokens_of"]

#: As ``src/python/tokens.rs`` lays them out: a number that no other message of the queue has, and the queue's own.
TOKEN = np.dtype([("id", "<u8"), ("first", "<u4"), ("second", "<u4"), ("length", "<u8")])

Tokens = Any
#: Numbers as pairs of the first and last of each run, as they stand in offsets.
Runs = list[list[int]]

#: About so many bytes of messages go into an Arrow batch, however many rows that is: still in the processor's cache
#: when Spark reads it from the socket. Four times as much took a quarter longer for rows of 64 B, half as long again
#: for 4 KiB.
BATCH_BYTES = 1 << 20


def tokens_of(packed: bytes) -> Tokens:
    """Look at packed tokens.

    >>> len(tokens_of(bytes(48)))
    2
    """
    return np.frombuffer(packed, dtype=TOKEN)


def none() -> Tokens:
    """No tokens."""
    return np.empty(0, dtype=TOKEN)


def runs(numbers: Any) -> Runs:
    """Write numbers as runs.

    >>> runs(np.array([7, 3, 4, 5], dtype=np.uint64))
    [[3, 5], [7, 7]]
    """
    if not len(numbers):
        return []
    ordered = np.unique(np.asarray(numbers, dtype=np.uint64))
    breaks = np.flatnonzero(np.diff(ordered) != 1)
    firsts = ordered[np.concatenate(([0], breaks + 1))]
    lasts = ordered[np.concatenate((breaks, [len(ordered) - 1]))]
    return np.stack((firsts, lasts), axis=1).tolist()  # type: ignore[no-any-return]


def numbers(*some: Runs) -> Any:
    """Write runs out as the numbers in them.

    >>> numbers([[3, 5], [7, 7]], [[4, 4]]).tolist()
    [3, 4, 5, 7]
    """
    pieces = [np.arange(first, last + 1, dtype=np.uint64) for runs in some for first, last in runs]
    return np.unique(np.concatenate(pieces)) if pieces else np.empty(0, dtype=np.uint64)


def among(numbers: Any, wanted: Runs) -> Any:
    """Say of each number whether it is in the runs.

    >>> among(np.array([2, 4, 7], dtype=np.uint64), [[3, 5], [7, 7]]).tolist()
    [False, True, True]
    """
    if not wanted or not len(numbers):
        return np.zeros(len(numbers), dtype=bool)
    ends = np.array(wanted, dtype=np.uint64)
    place = np.searchsorted(ends[:, 0], numbers, side="right")
    return (place > 0) & (numbers <= ends[np.maximum(place, 1) - 1, 1])


def pieces(lengths: Any, rows: int, size: int = BATCH_BYTES) -> Iterator[slice]:
    """Cut messages of these lengths into batches of so many rows and bytes, one message at least.

    >>> [(one.start, one.stop) for one in pieces(np.array([5, 5, 5, 50]), rows=2, size=20)]
    [(0, 2), (2, 3), (3, 4)]
    """
    ends = np.cumsum(lengths, dtype=np.int64)
    start = 0
    while start < len(ends):
        used = ends[start - 1] if start else 0
        stop = int(np.searchsorted(ends, used + size, side="right"))
        stop = max(start + 1, min(stop, start + rows))
        yield slice(start, stop)
        start = stop
