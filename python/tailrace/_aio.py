"""asyncio for every queue: ``await q.get_async()``, ``await q.put_async(data)`` and ``async for message in q``.

The loop's own thread makes every attempt, without waiting, so a message is taken in the very step in which the
coroutine returns it: a cancelled ``get_async`` has taken nothing. Only when an attempt finds the queue empty (or full)
does a thread sleep on its behalf, one per queue and direction whatever the number of waiting tasks; it takes nothing,
it only says that another attempt is worth while. The thread ends when nobody waits any more.
"""

import contextlib
import os
import threading
from collections import deque
from collections.abc import AsyncIterator, Callable
from typing import Any

from tailrace.errors import EndOfFile, QueueEmpty, QueueFull

__all__ = ["attach"]

#: Seconds after which a sleeping thread looks whether anybody still waits: after a cancel it lives no longer than that.
TURN = 0.1
#: Turns after which everybody tries again in any case.
LOOK_AFTER = 10
#: Pauses after an attempt that failed although the queue was ready, because another process was quicker; doubled.
FIRST_PAUSE, LAST_PAUSE = 0.001, 0.025


class _Sleeper:
    """Tasks that wait for one queue in one direction, and the thread that sleeps for all of them."""

    def __init__(self, key: tuple[int, str], wait: Callable[["_Waiter"], bool]) -> None:
        self._key = key
        self._wait = wait
        self._lock = threading.Lock()
        self._waiting: deque[_Waiter] = deque()
        self._thread: threading.Thread | None = None

    def join(self, mark: Any, size: int) -> "_Waiter":
        waiter = _Waiter(mark, size)
        with self._lock:
            self._waiting.append(waiter)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="tailrace-asyncio", daemon=True)
                self._thread.start()
        return waiter

    def leave(self, waiter: "_Waiter") -> None:
        with self._lock, contextlib.suppress(ValueError):
            self._waiting.remove(waiter)
        waiter.tried.set()

    def _run(self) -> None:
        turns = 0
        while True:
            with self._lock:
                if not self._waiting:
                    self._thread = None
                    if _sleepers.get(self._key) is self:
                        del _sleepers[self._key]
                    return
                first = self._waiting[0]
            turns += 1
            try:
                ready = self._wait(first)
            except Exception:
                # Whatever is wrong with the queue, the next attempt of each task says it in that task.
                self._wake_all()
                continue
            if ready and self._key[1] == "get":
                self._wake_one()
            elif ready or turns >= LOOK_AFTER:
                # Room may be enough for another message than the first; and the dead leave room that nobody announces.
                self._wake_all()
                turns = 0

    def _wake_one(self) -> None:
        with self._lock:
            if not self._waiting:
                return
            waiter = self._waiting.popleft()
        # Until it has tried, the queue stays ready: the thread would spin.
        if waiter.wake():
            waiter.tried.wait(TURN)

    def _wake_all(self) -> None:
        with self._lock:
            waiters, self._waiting = list(self._waiting), deque()
        for waiter in waiters:
            waiter.wake()


class _Waiter:
    def __init__(self, mark: Any, size: int) -> None:
        import asyncio

        #: What the queue's count of freed room was before the attempt that failed, and the bytes that found none.
        self.mark, self.size = mark, size
        self.loop = asyncio.get_running_loop()
        self.future: asyncio.Future[None] = self.loop.create_future()
        #: Set when the task has made its attempt, or will not make it.
        self.tried = threading.Event()

    def wake(self) -> bool:
        try:
            self.loop.call_soon_threadsafe(self._resolve)
        except RuntimeError:
            # The loop was closed while the task waited.
            return False
        return True

    def _resolve(self) -> None:
        if not self.future.done():
            self.future.set_result(None)


_sleepers: dict[tuple[int, str], _Sleeper] = {}
#: The native modules of the queues that can be full.
_rooms: dict[type, Any] = {}
_owner = os.getpid()


def _sleeper(queue: Any, direction: str) -> _Sleeper:
    global _owner
    if os.getpid() != _owner:
        # A forked child has none of its parent's threads.
        _sleepers.clear()
        _owner = os.getpid()
    key = (id(queue), direction)
    sleeper = _sleepers.get(key)
    if sleeper is None:
        # It refers to the queue, so its number is not used again while the entry lives.
        sleeper = _sleepers[key] = _Sleeper(key, _ways_to_wait(queue)[direction])
    return sleeper


def _ways_to_wait(queue: Any) -> dict[str, Callable[[_Waiter], bool]]:
    ways: dict[str, Callable[[_Waiter], bool]] = {"get": lambda _: queue._wait_readable(TURN)}
    if (room := _rooms.get(type(queue))) is not None:
        ways["put"] = lambda waiter: room._wait_room(queue, waiter.mark, waiter.size, TURN)
    return ways


async def _until_possible(
    queue: Any, direction: str, attempt: Callable[[], Any], timeout: float | None, size: int = 0
) -> Any:
    # Whoever has a loop has it imported; for all others it would take longer than the rest of tailrace.
    import asyncio

    refused = QueueEmpty if direction == "get" else QueueFull
    room = _rooms.get(type(queue)) if direction == "put" else None
    if timeout is not None and timeout < 0:
        raise ValueError(f"timeout must be 0 seconds or more, or None to wait for ever, not {timeout!r}")
    # Noted before the attempt: room that comes free during it is not slept through.
    mark = room and room._room_mark(queue)
    with contextlib.suppress(refused):
        return attempt()
    if timeout == 0:
        return attempt()
    try:
        async with asyncio.timeout(timeout):
            pause = FIRST_PAUSE
            while True:
                sleeper = _sleeper(queue, direction)
                waiter = sleeper.join(mark, size)
                try:
                    await waiter.future
                    mark = room and room._room_mark(queue)
                    return attempt()
                except refused:
                    pass
                finally:
                    sleeper.leave(waiter)
                if room is None:
                    # Somebody else was quicker.
                    await asyncio.sleep(pause)
                    pause = min(2 * pause, LAST_PAUSE)
    except TimeoutError:
        # The last word is the queue's own: a message that came with the end of the time is still taken.
        return attempt()


async def get_async(self: Any, timeout: float | None = None) -> bytes:
    """Take the next message, waiting without holding up the loop; :class:`~tailrace.QueueEmpty` when the time is up.

    Cancelling it loses nothing: the message is taken in the step that returns it.
    """
    message: bytes = await _until_possible(self, "get", lambda: self.get(timeout=0), timeout)
    return message


async def put_async(self: Any, data: bytes, timeout: float | None = None) -> None:
    """Add a message, waiting for room without holding up the loop; :class:`~tailrace.QueueFull` when the time is up.

    Cancelled while it waits, it has added nothing.
    """
    await _until_possible(self, "put", lambda: self.put(data, timeout=0), timeout, len(data))


async def put_to_disk_async(self: Any, data: bytes, timeout: float | None = None) -> None:
    """Add a message; a thread waits for the disk.

    Cancelled while the message is on its way to the disk, it ends when the message is there.
    """
    import asyncio

    writing = asyncio.ensure_future(asyncio.to_thread(self.put, data, timeout=timeout))
    try:
        await asyncio.shield(writing)
    except asyncio.CancelledError:
        await asyncio.wait({writing})
        writing.exception()
        raise


async def messages(self: Any) -> AsyncIterator[bytes]:
    """Take message after message; ends where the queue has an end of file."""
    while True:
        try:
            message = await get_async(self)
        except EndOfFile:
            return
        yield message


def attach(
    queue_class: type,
    *,
    disk: bool = False,
    readable: Callable[[Any, float], bool] | None = None,
    room: Any = None,
) -> None:
    """Give a queue class ``get_async``, ``put_async`` and ``async for``.

    With ``disk``, adding a message waits for a disk and is left to a thread. ``readable`` waits so many seconds until
    there is something to take, and takes nothing. ``room`` is the native module of a queue that can be full: its
    ``_room_mark`` counts how often room came free, and its ``_wait_room`` sleeps until it does.
    """
    attributes = {
        "get_async": get_async,
        "put_async": put_to_disk_async if disk else put_async,
        "__aiter__": messages,
    }
    if room is not None:
        _rooms[queue_class] = room
    if readable is not None:
        attributes["_wait_readable"] = readable
    for name, function in attributes.items():
        setattr(queue_class, name, function)
