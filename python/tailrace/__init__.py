"""Five crash-proof queues over mapped memory, for moving bytes between processes and onward into Spark.

Every queue has a module of its own; :func:`open` finds the right one by URL:

>>> import tailrace
>>> tailrace.open("events")
Traceback (most recent call last):
...
ValueError: 'events' is not a queue URL: expected aq:PATH, conq:DIR#NAME, mcp:DIR#NAME, qewqew:PATH or ring:PATH
"""

import sys

if sys.platform != "linux":
    raise ImportError(
        f"tailrace runs on Linux only, not on {sys.platform!r}: it needs futexes, open file description locks and memfd"
    )

from tailrace import errors
from tailrace._core import __version__
from tailrace._metrics import metrics
from tailrace._url import open
from tailrace.errors import (
    AlreadyOpen,
    CorruptQueue,
    EndOfFile,
    FormatError,
    InvalidKey,
    MessageNotFound,
    MessageTooLarge,
    QueueClosed,
    QueueEmpty,
    QueueError,
    QueueExists,
    QueueFull,
    QueueNotFound,
    WaitTimeout,
)

__all__ = [
    "AlreadyOpen",
    "CorruptQueue",
    "EndOfFile",
    "FormatError",
    "InvalidKey",
    "MessageNotFound",
    "MessageTooLarge",
    "QueueClosed",
    "QueueEmpty",
    "QueueError",
    "QueueExists",
    "QueueFull",
    "QueueNotFound",
    "WaitTimeout",
    "__version__",
    "errors",
    "metrics",
    "open",
]
