"""The allocating queue: many producers, one consumer, and the items live in the queue's own memory.

Any number of threads and processes claim memory in a ring, write into it and commit it; one reader retrieves the items
and releases them. Nobody ever waits for a lock. What a killed writer was doing is handed out as an incomplete item, and
a snapshot shows everything that is in the ring, released items included.

The short way, with the habits of :class:`queue.Queue`:

>>> from tailrace import aq
>>> q = aq.Queue.anonymous(size=1 << 16)
>>> q.put(b"hello")
>>> q.get()
b'hello'
>>> q.put_many([b"a", b"b", b"c"])
3
>>> q.get_many(10)
[b'a', b'b', b'c']

The document's verbs, without a copy: the memoryview of an item is the queue's memory.

>>> w = q.writer()
>>> with w.claim(5) as item:
...     view = memoryview(item)
...     view[:] = b"world"
...     view.release()
>>> r = q.reader()
>>> item = r.retrieve()
>>> bytes(item), item.is_committed
(b'world', True)
>>> r.release(item)
True

Queues for other processes are files; ``/dev/shm`` keeps them in memory:

>>> import os, tempfile
>>> path = os.path.join(tempfile.mkdtemp(), "events")
>>> with aq.Queue.create(path, size=1 << 16) as q, aq.Queue.open(path) as other:
...     other.put(b"from another process")
...     q.get(timeout=1)
b'from another process'
"""

from typing import Any

from tailrace import _aio
from tailrace._core import aq as _native

__all__ = ["Item", "Queue", "Reader", "Writer"]

Item = _native.Item
Queue = _native.Queue
Reader = _native.Reader
Writer = _native.Writer

_aio.attach(Queue, room=_native)


def _open_url(rest: str, **options: Any) -> Queue:
    """Open the queue file of an ``aq:PATH`` URL."""
    return Queue.open(rest, **options)
