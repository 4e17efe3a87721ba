"""The exceptions of tailrace: one family under :class:`QueueError`.

Each also derives from the built-in class that a caller would expect, so code written for :mod:`queue` works unchanged:

>>> import queue, tailrace
>>> issubclass(tailrace.QueueEmpty, queue.Empty) and issubclass(tailrace.QueueEmpty, tailrace.QueueError)
True

What the operating system refuses stays an :class:`OSError`, a wrong argument is a :class:`ValueError` or
:class:`TypeError`.
"""

import queue

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
]


class QueueError(Exception):
    """The base of everything that a queue can refuse."""


class QueueEmpty(QueueError, queue.Empty):
    """There is no message to take now, or none came within the timeout."""


class QueueFull(QueueError, queue.Full):
    """There is no room for another message now, or none came free within the timeout."""


class WaitTimeout(QueueError, TimeoutError):
    """The time given to a waiting call is up."""


class EndOfFile(QueueError, EOFError):
    """The last writer has closed and nothing is left to read."""


class InvalidKey(QueueError, KeyError):
    """The key names no member of the family.

    ``key`` is the refused key, where it is known.
    """

    def __init__(self, message: str = "", key: int | None = None) -> None:
        super().__init__(message)
        self.key = key

    # KeyError would show the repr of the message.
    __str__ = Exception.__str__


class QueueClosed(QueueError):
    """The handle was closed."""


class AlreadyOpen(QueueError):
    """A role that only one participant may have is taken."""


class QueueNotFound(QueueError, LookupError):
    """No queue has this name or path."""


class QueueExists(QueueError):
    """A queue of this name or path exists already."""


class MessageNotFound(QueueError, LookupError):
    """The message is not, or no longer, in the hands of the caller."""


class MessageTooLarge(QueueError, ValueError):
    """The message can never fit.

    ``size`` and ``limit`` are the bytes of the message and the most that it may have, where they are known.
    """

    def __init__(self, message: str = "", size: int | None = None, limit: int | None = None) -> None:
        super().__init__(message)
        self.size = size
        self.limit = limit


class FormatError(QueueError, ValueError):
    """The bytes are not a queue of this kind and version."""


class CorruptQueue(FormatError):
    """The bytes are a queue of this kind, but damaged."""
