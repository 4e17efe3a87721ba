"""Turns a hang into a failure with stacks: past the deadline, dump, kill the workers, interrupt the test.

A main thread stuck in native code does not hear the interrupt; then the timer of conftest.py, which needs no GIL, ends
the process.
"""

import faulthandler
import signal
import tempfile
import threading
from types import TracebackType
from typing import Self

from .worker import Workers


class Hang(AssertionError):
    """The test was still running when its time was up."""


class Watchdog:
    """`with Watchdog("name", 30, workers): ...`, in the main thread."""

    def __init__(self, name: str, limit: float, workers: Workers) -> None:
        self._name, self._limit, self._workers = name, limit, workers
        self._timer = threading.Timer(limit, self._bite)
        self._timer.daemon = True
        self._lock = threading.Lock()
        self._stacks: str | None = None
        self._over = False

    def __enter__(self) -> Self:
        assert threading.current_thread() is threading.main_thread()
        self._timer.start()
        return self

    def _bite(self) -> None:
        stacks = [worker.stacks() for worker in self._workers.all if worker.exit is None]
        with tempfile.TemporaryFile() as file:
            faulthandler.dump_traceback(file=file)
            file.seek(0)
            stacks.append(f"--- the test itself ---\n{file.read().decode(errors='replace')}")
        with self._lock:
            if self._over:
                return
            self._stacks = "\n".join(stacks)
            for worker in self._workers.all:
                if worker.exit is None:
                    # Not reaped here: the main thread may be waiting for it at this moment.
                    worker.send(signal.SIGKILL)
            main = threading.main_thread().ident
            assert main is not None
            signal.pthread_kill(main, signal.SIGINT)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        with self._lock:
            self._over = True
        self._timer.cancel()
        if self._stacks is not None:
            msg = f"{self._name} still ran after {self._limit} s\n{self._stacks}"
            raise Hang(msg) from error
