"""Counters that a process of the demo shares with its supervisor, and that outlive its death: a small mapped file."""

import mmap
import time
from pathlib import Path

__all__ = ["Progress"]


class Progress:
    """Named counters in a file; one process writes them, others read ("spared" is the supervisor's).

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp(), "worker")
    >>> mine = Progress(path)
    >>> mine["handled"] = 7
    >>> Progress(path)["handled"]
    7
    """

    NAMES = ("handled", "repeats", "incomplete", "done", "spared")

    def __init__(self, path: Path) -> None:
        if not path.exists():
            path.write_bytes(bytes(8 * len(self.NAMES)))
        with path.open("r+b") as file:
            # Whole words, each read and written at once: struct goes byte by byte, and a kill or a look in between
            # would find half of a number.
            self._words = memoryview(mmap.mmap(file.fileno(), 0)).cast("Q")

    def wait_for_the_kill(self) -> None:
        """Stay here until somebody of this role was killed, perhaps this process."""
        while not self["spared"]:
            time.sleep(0.001)

    def __getitem__(self, name: str) -> int:
        return self._words[self.NAMES.index(name)]

    def __setitem__(self, name: str, value: int) -> None:
        self._words[self.NAMES.index(name)] = value
