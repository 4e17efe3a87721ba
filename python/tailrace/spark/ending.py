"""When a queue file that Spark writes to comes to its end: with the query, not between its micro-batches.

Tasks open and close an mcp queue all the time, and the last writer's close is what its readers see as the end of
file. So somebody must have it open for the length of the query. :func:`tailrace.spark.session` starts a
:class:`Keeper` in the user's own process and tells Spark's processes where it listens; a task that writes asks it to
open the queue, too, before the task itself closes it. A streaming query ends when Spark's listener says so, a batch
when its writer commits or aborts. When the user's process dies the kernel closes the queue, and readers get the end of
file then.
"""

import atexit
import contextlib
import json
import os
import shutil
import socket
import tempfile
import threading
from pathlib import Path
from typing import Any

__all__ = ["ENVIRONMENT", "Keeper", "end", "keep", "keeper"]

#: Where Spark's processes find the socket of the keeper.
ENVIRONMENT = "TAILRACE_KEEPER"
#: Seconds in which a living keeper answers.
PATIENCE = 10.0

_keeper: "Keeper | None" = None


class Keeper:
    """Has queue files open for output while the queries last that write to them."""

    def __init__(self) -> None:
        self._files: dict[str, dict[str, Any]] = {}
        self._lock = threading.Lock()
        directory = tempfile.mkdtemp(prefix="tailrace-keeper-")
        atexit.register(shutil.rmtree, directory, ignore_errors=True)
        self.path = str(Path(directory) / "socket")
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.bind(self.path)
        self._socket.listen(64)
        threading.Thread(target=self._serve, name="tailrace-keeper", daemon=True).start()

    def keep(self, run: str, url: str) -> None:
        """Have a queue open until the run ends."""
        from tailrace.spark.options import Options
        from tailrace.spark.queues.mcp import open_file

        with self._lock:
            files = self._files.setdefault(run, {})
            if url not in files:
                files[url] = open_file(Options.parse({"url": url}), "output")

    def end(self, run: str) -> None:
        """Close what a run had open; readers get the end of file if nobody else writes."""
        with self._lock:
            files = self._files.pop(run, {})
        for file in files.values():
            file.close()

    @property
    def runs(self) -> list[str]:
        """Whose queues are open."""
        with self._lock:
            return list(self._files)

    def _serve(self) -> None:
        while True:
            connection, _ = self._socket.accept()
            with connection, contextlib.suppress(OSError):
                connection.settimeout(PATIENCE)
                try:
                    with connection.makefile("r") as lines:
                        asked = json.loads(lines.readline())
                    if asked["verb"] == "keep":
                        self.keep(asked["run"], asked["url"])
                    else:
                        self.end(asked["run"])
                    answer = "done"
                except Exception as error:
                    # The task that asked is the one to say it.
                    answer = f"{type(error).__name__}: {error}"
                connection.sendall(answer.encode())


def keeper() -> Keeper:
    """Give the keeper of this process, and let processes that are started from now on find it."""
    global _keeper
    if _keeper is None:
        _keeper = Keeper()
        os.environ[ENVIRONMENT] = _keeper.path
    return _keeper


def keep(run: str, url: str) -> bool:
    """Ask the keeper to have a queue open; False when there is none that this process could ask."""
    return _ask({"verb": "keep", "run": run, "url": url})


def end(run: str) -> bool:
    """Tell the keeper that a run is over."""
    return _ask({"verb": "end", "run": run})


def _ask(what: dict[str, str]) -> bool:
    path = os.environ.get(ENVIRONMENT)
    if path is None:
        return False
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(PATIENCE)
        try:
            connection.connect(path)
        except (FileNotFoundError, ConnectionRefusedError):
            # Another host, or the user's process is gone.
            return False
        connection.sendall(f"{json.dumps(what)}\n".encode())
        answer = b""
        while more := connection.recv(4096):
            answer += more
    if answer != b"done":
        raise RuntimeError(f"the keeper of the session could not open {what.get('url')}: {answer.decode()}")
    return True
