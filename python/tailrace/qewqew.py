"""QewQew: a durable first-in-first-out queue in plain files, for messages that outlive the process and the power cut.

The files are those of the original QewQew, byte for byte: a two-byte head file and a chain of chunk files, each of
which is removed when all its messages are consumed. An empty queue leaves no file behind.

>>> import os, tempfile
>>> from tailrace import qewqew
>>> path = os.path.join(tempfile.mkdtemp(), "jobs")
>>> with qewqew.DurableQueue(path) as d:
...     d.enqueue(b"first")
...     d.enqueue_many([b"second", b"third"])       # one sync for all of them
...     d.dequeue()
b'first'
>>> with qewqew.DurableQueue(path) as d:            # another day, another process
...     [message for message in d]                  # takes until the queue is empty
[b'second', b'third']
>>> os.listdir(os.path.dirname(path))
[]

**What an enqueue that returned survives**: with ``sync="always"`` (the default) a power cut; with ``"group"`` the
death of any process at once, and a power cut as of the last :meth:`DurableQueue.sync` or group commit (many threads
share one; there is one at least every 128 KiB and whenever the consumer catches up); with ``"never"`` the death of
any process. Dequeues are never lost to a killed process; after a power cut the last ones may be delivered again. An
enqueue that raised ``OSError`` for the disk may still arrive: its message can wait for the next commit.

**Who may open it**: one consumer (``role="consumer"`` or ``"both"``) and any number of producers, in any processes,
at the same time. A second consumer gets :class:`tailrace.AlreadyOpen`, and so does everybody while the original has
the queue open, and the original while anybody of us has.

**After a kill or a power cut** let one of us open the queue before the original does: with ``sync="group"`` messages
may still wait in ``NAME.signal``, with ``crc=True`` the log may have messages that are not in their chunk yet, and
after a power cut the pointer to the end of the last chunk may be one commit behind the messages. Opening puts all of
them where the original looks for them, and a :class:`RangeReader`. What the original has appended before that may be
overwritten by them, or reported as damage, since nobody noted how the chunk was left.

**Reading without consuming**: positions are absolute and stay valid whatever others do. ``read_range`` needs no lock,
so any process that sees the files can read, and only ``commit`` consumes:

>>> d = qewqew.DurableQueue(path, sync="never")
>>> start = d.tail_position                         # from here on positions are kept (NAME.positions)
>>> d.enqueue_many([b"a", b"b", b"c"])
>>> end = d.tail_position
>>> reader = qewqew.RangeReader(path)               # here or in another process
>>> reader.read_range(start, end)
[b'a', b'b', b'c']
>>> d.commit(end)
>>> d.is_empty()
True
>>> d.close()

**Damage**: the format has no checksum. ``crc=True`` keeps a CRC32C of each message in a side file, and every dequeue
checks it: a message that does not have its checksum, or has none and should, raises :class:`tailrace.CorruptQueue`, and
so do pointers and references that changed while nobody wrote. What another program appended meanwhile is taken as it
is. ``verify()`` reports, ``repair()`` steps over what is damaged and puts it aside, never silently.

**Limits**: a message has at most 65,535 bytes and at most ``chunk_size - 12``; 65,534 chunks at a time. ``max_bytes``
bounds the unread bytes; ``when_full="refuse"`` raises :class:`tailrace.QueueFull`, ``"wait"`` waits for the consumer.
Network file systems need ``network=True``: nothing is mapped, there is one producer, and consumers elsewhere see
complete chunks only.
"""

from pathlib import Path
from typing import Any

from tailrace import _aio
from tailrace._core import qewqew as _qewqew

__all__ = ["DurableQueue", "RangeReader"]

DurableQueue = _qewqew.DurableQueue
RangeReader = _qewqew.RangeReader

_aio.attach(DurableQueue, disk=True)


def _open_url(rest: str, **options: Any) -> DurableQueue:
    """Open ``qewqew:PATH``; an emptied queue has no files, so a missing one is created unless ``create=False``."""
    return DurableQueue(rest, **options)


def _reopen(path: Path, options: dict[str, Any]) -> DurableQueue:
    """Open a pickled handle."""
    return DurableQueue(path, **options)
