r"""Ring: the latest N messages of any number of writers, in fixed slots of shared memory.

A full ring overwrites its oldest message, so writers never wait. Any number of processes and threads read and write
the same file; each message goes to one reader, and :meth:`Queue.snapshot` or :meth:`Queue.latest` look without taking.

>>> import os, tempfile
>>> from tailrace import ring
>>> path = os.path.join(tempfile.mkdtemp(dir="/dev/shm"), "prices")
>>> q = ring.Queue.create(path, max_len=3, msg_size=1)      # three slots of one 8-byte word
>>> for price in (b"100", b"101", b"102", b"103"):
...     q.enqueue(price)                                    # the fourth overwrites the first
>>> q.latest()
b'103\x00\x00\x00\x00\x00'
>>> q.dequeue_with_sequence()                               # number 0 is missing: this reader was one message late
(1, b'101\x00\x00\x00\x00\x00')
>>> q.counters["overwritten"]
1

What survives a ``kill -9`` at any instruction: the ring and everything in it. The message that a killed writer had in
hand is skipped and counted as ``abandoned``; the one that a killed reader had in hand is gone and counted as
``lost_in_hands``. A call for many messages (``put_many``, ``get_many``, ``get_arrow``) has up to 32 of them in hand,
and never more than a quarter of the ring. Nothing is ever delivered torn. The ring lives in memory: it does not promise
to survive a power cut.
"""

from typing import Any

from tailrace import _aio
from tailrace._core import ring as _ring

__all__ = ["Queue"]

Queue = _ring.Queue

_aio.attach(Queue)


def _open_url(rest: str, **options: Any) -> Queue:
    """Open ``ring:PATH``."""
    return Queue.open(rest, **options)
