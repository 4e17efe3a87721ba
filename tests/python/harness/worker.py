"""Real Python worker processes: a fresh interpreter (`spawn`) or a fork, with arguments and a mapped control file.

The handshake is a word in that file, never a pipe: nothing here can block a worker that is about to be killed.
"""

import faulthandler
import inspect
import json
import mmap
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from .journal import Journal, Record, read

_CONTROL_BYTES = 4096
_READY, _GO, _STOP, _USER = 0, 1, 2, 8
_USER_WORDS = 64
_READY_LIMIT = 30.0
#: A worker that nobody kills ends by itself, with its stacks in its stderr file.
_LIFETIME = 300
#: Exit code of a worker whose function raised.
RAISED = 101
#: Makes a worker write its stacks to its stderr file.
STACKS_SIGNAL = signal.SIGUSR2


class _Control:
    def __init__(self, path: Path) -> None:
        with path.open("r+b") as file:
            self._map = mmap.mmap(file.fileno(), _CONTROL_BYTES)
        self.words = memoryview(self._map).cast("Q")

    def close(self) -> None:
        self.words.release()
        self._map.close()


class Args:
    """What a worker was given, and its side of the handshake."""

    def __init__(self, values: dict[str, Any], base: Path, parent: int) -> None:
        self._values, self._base, self._parent = values, base, parent
        self._words = _Control(base.with_suffix(".control")).words

    def __getitem__(self, name: str) -> Any:
        return self._values[name]

    def journal(self) -> Journal:
        """This worker's journal; ask once."""
        return Journal(self._base.with_suffix(".journal"))

    def ready(self) -> None:
        """Tell the parent that set-up is over."""
        self._words[_READY] = 1

    def wait_go(self) -> None:
        """Wait for `Worker.go`."""
        while not self._words[_GO] and not self.stop_requested():
            time.sleep(0.0005)

    def stop_requested(self) -> bool:
        """True when the parent asked for the end, or is gone."""
        return bool(self._words[_STOP]) or os.getppid() != self._parent

    def set_word(self, index: int, value: int) -> None:
        """Store one of 64 words shared with the parent (progress counters, results)."""
        assert 0 <= index < _USER_WORDS
        self._words[_USER + index] = value


class Worker:
    """A running or ended worker; made by `Workers`."""

    def __init__(self, pid: int, name: str, base: Path) -> None:
        self.pid, self.name, self._base = pid, name, base
        self._control = _Control(base.with_suffix(".control"))
        #: None while it runs; else the exit code, or minus the signal.
        self.exit: int | None = None

    def wait_ready(self) -> None:
        """Wait for `Args.ready`; fail with the worker's stderr when it ends first."""
        deadline = time.monotonic() + _READY_LIMIT
        while not self._control.words[_READY]:
            ended = self.poll()
            assert ended is None or self._control.words[_READY], f"{self.name} ended with {ended}\n{self.stderr()}"
            assert time.monotonic() < deadline, f"{self.name} was not ready\n{self.stderr()}"
            time.sleep(0.0005)

    def go(self) -> None:
        """Let `Args.wait_go` return."""
        self._control.words[_GO] = 1

    def request_stop(self) -> None:
        """Make `Args.stop_requested` true."""
        self._control.words[_STOP] = 1

    def word(self, index: int) -> int:
        """The value of the worker's `Args.set_word`."""
        assert 0 <= index < _USER_WORDS
        return self._control.words[_USER + index]

    def send(self, number: signal.Signals) -> None:
        """Send a signal."""
        assert self.exit is None, f"{self.name} has already ended"
        os.kill(self.pid, number)

    def stop(self) -> None:
        """SIGSTOP; return when it has stopped."""
        self.send(signal.SIGSTOP)
        _, status = os.waitpid(self.pid, os.WUNTRACED)
        if not os.WIFSTOPPED(status):
            self.exit = os.waitstatus_to_exitcode(status)
            msg = f"{self.name} ended with {self.exit} instead of stopping\n{self.stderr()}"
            raise AssertionError(msg)

    def cont(self) -> None:
        """SIGCONT."""
        self.send(signal.SIGCONT)

    def kill(self) -> int:
        """kill -9 and reap; harmless when it has already ended."""
        if self.poll() is None:
            self.send(signal.SIGKILL)
            _, status = os.waitpid(self.pid, 0)
            self.exit = os.waitstatus_to_exitcode(status)
        assert self.exit is not None
        return self.exit

    def poll(self) -> int | None:
        """The exit code (minus the signal when killed), or None while it runs."""
        if self.exit is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.exit = os.waitstatus_to_exitcode(status)
        return self.exit

    def wait(self, limit: float) -> int:
        """Wait for its end; past the limit it is killed and the test fails: a hang is a failure."""
        deadline = time.monotonic() + limit
        while self.poll() is None:
            if time.monotonic() > deadline:
                stacks = self.stacks()
                self.kill()
                msg = f"{self.name} still ran after {limit} s\n{stacks}"
                raise AssertionError(msg)
            time.sleep(0.001)
        assert self.exit is not None
        return self.exit

    def expect_success(self, limit: float) -> None:
        """Wait for exit code 0."""
        ended = self.wait(limit)
        assert ended == 0, f"{self.name} ended with {ended}\n{self.stderr()}"

    def stderr(self) -> str:
        """What it wrote to stderr so far."""
        text = self._base.with_suffix(".stderr").read_text(errors="replace")
        return f"--- stderr of {self.name} (pid {self.pid}) ---\n{text}"

    def stacks(self) -> str:
        """What its Python threads are doing, written by faulthandler, which needs no GIL."""
        if self.poll() is None and self._control.words[_READY]:
            self.send(signal.SIGCONT)
            self.send(STACKS_SIGNAL)
            time.sleep(0.3)
        return self.stderr()

    def records(self) -> list[Record]:
        """Everything it journalled so far."""
        return read(self._base.with_suffix(".journal"))

    def close(self) -> None:
        """Kill it, and unmap its control file."""
        self.kill()
        self._control.close()


class Workers:
    """Starts workers; a context manager that leaves none behind."""

    def __init__(self, scratch: Path) -> None:
        self._scratch = scratch
        self.all: list[Worker] = []

    def spawn(self, function: Callable[[Args], None], *, journal: int = 100_000, **values: object) -> Worker:
        """Run a module-level function in a fresh interpreter; the values travel as JSON."""
        base = self._prepare(function.__name__, journal)
        base.with_suffix(".stderr").touch()
        source = inspect.getsourcefile(function)
        spec = json.dumps([source, function.__qualname__, str(base), os.getpid(), values])
        actions = [
            (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
            (os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0),
            (os.POSIX_SPAWN_OPEN, 2, str(base.with_suffix(".stderr")), os.O_WRONLY | os.O_APPEND, 0),
        ]
        command = [sys.executable, str(Path(__file__).with_name("worker_main.py")), spec]
        return self._started(os.posix_spawn(sys.executable, command, os.environ, file_actions=actions), function, base)

    def fork(self, function: Callable[[Args], None], *, journal: int = 100_000, **values: object) -> Worker:
        """Run a function in a forked copy of this process, as multiprocessing's fork does."""
        base, parent = self._prepare(function.__name__, journal), os.getpid()
        pid = os.fork()
        if pid == 0:
            code = RAISED
            try:
                log = os.open(base.with_suffix(".stderr"), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
                os.dup2(log, 2)
                code = run(function, values, base, parent)
            finally:
                os._exit(code)
        base.with_suffix(".stderr").touch()
        return self._started(pid, function, base)

    def _prepare(self, name: str, journal: int) -> Path:
        base = self._scratch / f"{name}-{os.getpid()}-{len(self.all)}"
        with base.with_suffix(".control").open("xb") as file:
            file.truncate(_CONTROL_BYTES)
        Journal.create(base.with_suffix(".journal"), journal)
        return base

    def _started(self, pid: int, function: Callable[[Args], None], base: Path) -> Worker:
        worker = Worker(pid, function.__name__, base)
        self.all.append(worker)
        return worker

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        for worker in self.all:
            worker.close()
            if error is not None:
                error.add_note(worker.stderr())


def run(function: Callable[[Args], None], values: dict[str, Any], base: Path, parent: int) -> int:
    """The life of a worker, in the worker; returns its exit code."""
    # Descriptor 2 itself: sys.stderr of a forked child is pytest's.
    faulthandler.enable(file=2)
    faulthandler.register(STACKS_SIGNAL, file=2)
    # Not dump_traceback_later: in a fork it waits for a thread that stayed behind in the parent.
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    faulthandler.register(signal.SIGALRM, file=2, chain=True)
    signal.alarm(_LIFETIME)
    try:
        function(Args(values, base, parent))
    except BaseException:
        os.write(2, traceback.format_exc().encode())
        return RAISED
    return 0
