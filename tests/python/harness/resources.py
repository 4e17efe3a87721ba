"""What a process uses: descriptors and mappings of a file, and what Python allocates."""

import contextlib
import ctypes
import os
import subprocess
from collections.abc import Callable
from pathlib import Path

SOURCE = Path(__file__).parents[2] / "c" / "count_allocations.c"


class Allocations:
    """Counts the allocations of a call, what is freed at once too, by a few lines of C under the interpreter."""

    def __init__(self, directory: Path) -> None:
        """Compile the C part into `directory`."""
        library = directory / "count_allocations.so"
        compiler = os.environ.get("CC", "cc")
        subprocess.run(
            [compiler, "-std=c11", "-O2", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", "-o", library, SOURCE],
            check=True,
        )
        self._library = ctypes.PyDLL(str(library))
        self._library.stop_counting.restype = ctypes.c_size_t

    def during(self, call: Callable[[], object]) -> int:
        """Count the allocations of one call."""
        self._library.start_counting()
        try:
            call()
        finally:
            count = self._library.stop_counting()
        return int(count)


def held(path: Path) -> tuple[int, int]:
    """How many descriptors and mappings of a file this process has, by whatever name it was opened."""
    file = path.stat()
    device = f"{os.major(file.st_dev):02x}:{os.minor(file.st_dev):02x}"
    descriptors = 0
    for descriptor in Path("/proc/self/fd").iterdir():
        # That of the directory itself is gone by now.
        with contextlib.suppress(FileNotFoundError):
            found = descriptor.stat()
            descriptors += (found.st_dev, found.st_ino) == (file.st_dev, file.st_ino)
    mappings = [line.split() for line in Path("/proc/self/maps").read_text().splitlines()]
    return descriptors, sum(line[3:5] == [device, str(file.st_ino)] for line in mappings)
