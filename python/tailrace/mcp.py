"""Queue files as in Burroughs MCPII 5.1 (1976): named, bounded queues between programs, with an end that everyone sees.

Any number of processes open a queue file by name in a *queue system* (a directory) and write to it or read from it:

>>> import tempfile
>>> from tailrace import mcp
>>> d = tempfile.TemporaryDirectory()
>>> reader = mcp.QueueFile.open("MY.Q", "input", system=d.name, max_messages=20, buffers=3, record_size=80)
>>> with mcp.QueueFile.open("MY.Q", "output", system=d.name) as writer:
...     writer.write(b"second")
...     writer.write(b"first", top=True)
True
True
>>> for record in reader:
...     print(record)
b'first'
b'second'
>>> reader.close()
>>> d.cleanup()

- **Open** links to the queue of that name, or creates it; the first opener binds the parameters. The queue lives while
  somebody has it open, with ``keep=True`` until the next boot.
- **Read and write** wait; ``timeout=0`` is the INCOMPLETE.IO branch (:class:`~tailrace.QueueEmpty`,
  :class:`~tailrace.QueueFull`).
- **End of file**: when the last writer closes (or is killed: ``abended``) and the queue is empty, every reader gets
  :class:`~tailrace.EndOfFile`, again and again, until it opens the file anew or a new writer comes. Who opens the file
  after somebody has taken the end waits for the next writer.
- **Families**: ``family_size=3`` makes three queues under one name, keys 1 to 3; key 0 reads from the first that is
  not empty.
- **Disk**: at most ``buffers`` messages of a queue are in memory, the others wait on its queue disk.
- **Holding**: :meth:`QueueFile.hold` takes messages in hand until they are acknowledged; a killed holder's come back.
- :func:`wait` waits on time and on any number of files; :class:`FileParameters` reads ?FILE cards, SDL, COBOL and FPBs.

A killed process takes nothing with it but, at most, the one message that a plain read was returning: messages it held
go back to their places, messages it was writing were never there, and its locks are taken over. Nothing survives a
reboot.
"""

from typing import Any

from tailrace import _aio
from tailrace._core import mcp as _native
from tailrace._url import directory_and_name

FileParameters = _native.FileParameters
HeldMessage = _native.HeldMessage
QueueFile = _native.QueueFile
counters = _native.counters
create_system = _native.create_system
default_system = _native.default_system
queues = _native.queues
reclaim = _native.reclaim
wait = _native.wait

__all__ = [
    "FileParameters",
    "HeldMessage",
    "QueueFile",
    "counters",
    "create_system",
    "default_system",
    "queues",
    "reclaim",
    "wait",
]

_aio.attach(QueueFile, readable=lambda file, timeout: wait(timeout, file) != 0, room=_native)


def _open_url(rest: str, mode: str = "input_output", **options: Any) -> QueueFile:
    """Open ``DIR#NAME``; for a pipe say ``mode="input"`` or ``mode="output"``, so that its end can be seen."""
    directory, name = directory_and_name(rest)
    return QueueFile.open(name, mode, system=directory, **options)
