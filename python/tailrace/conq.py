"""Named queues whose unfinished messages come back: enqueue, read with a timeout, dequeue.

A message that was read is in the reader's hands until its timeout. If it was not dequeued by then, it is read again,
before anything new. So work is finished by somebody, or it stays in the queue:

>>> from tailrace import conq
>>> manager = conq.QueueManager()               # of this process; QueueManager.open(directory): of this host
>>> jobs = manager.create_queue("jobs")
>>> manager.enqueue(jobs, b"resize cat.jpg")
>>> message = manager.read(jobs, timeout=30.0)
>>> message.data, message.delivery
(b'resize cat.jpg', 1)
>>> manager.read(jobs, timeout=30.0) is None    # it is in our hands
True
>>> manager.dequeue(jobs, message)              # done
>>> manager.stats(jobs)
<Stats ready=0 leased=0 expired=0 oldest_age=None>

``manager.queue(name)`` has the habits of :class:`queue.Queue`, and a block that finishes what it reads:

>>> queue = manager.queue("jobs")
>>> queue.put(b"resize dog.jpg")
>>> with queue.lease(30.0) as message:          # dequeued at the end, released if the block raises
...     print(message.data)
b'resize dog.jpg'
>>> manager.delete_queue(jobs)

Kill any process at any instruction: every message whose enqueue returned is still delivered, and nobody waits for the
dead. Timeouts run on the boot clock: setting the wall clock changes nothing, and after a reboot all of them are over.
"""

from typing import Any

from tailrace import _aio
from tailrace._core import conq as _conq
from tailrace._url import directory_and_name

__all__ = ["Delivery", "Message", "Queue", "QueueManager", "Stats"]

Delivery = _conq.Delivery
Message = _conq.Message
Queue = _conq.Queue
QueueManager = _conq.QueueManager
Stats = _conq.Stats


def _message(*parts: Any) -> Message:
    """Give back a message that travelled as a pickle."""
    return _conq._message(*parts)


_aio.attach(Queue, room=_conq)


def _queue(manager: QueueManager, name: str) -> Queue:
    """Open a queue that travelled as a pickle."""
    return manager.queue(name)


def _open_url(rest: str, **options: Any) -> Queue:
    """Open ``DIR#NAME`` for :func:`tailrace.open`."""
    if options:
        raise TypeError(f"conq queues are opened without options, not with {', '.join(sorted(options))}")
    directory, name = directory_and_name(rest)
    return QueueManager.open(directory).queue(name)
