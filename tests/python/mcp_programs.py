"""What the tests of queue files share: programs that open files of one system."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tailrace import mcp


class Programs:
    """Opens queue files of one system, and closes them with the test."""

    def __init__(self, system: Path) -> None:
        self.system = system
        self.files: list[mcp.QueueFile] = []

    def open(self, name: str = "MY.Q", mode: str = "input", **options) -> mcp.QueueFile:
        self.files.append(mcp.QueueFile.open(name, mode, self.system, **options))
        return self.files[-1]

    def pair(self, name: str = "MY.Q", **options) -> tuple[mcp.QueueFile, mcp.QueueFile]:
        """A reader and a writer."""
        return self.open(name, "input", **options), self.open(name, "output", **options)


@pytest.fixture
def programs(tmp_path: Path) -> Iterator[Programs]:
    made = Programs(tmp_path / "system")
    yield made
    for file in made.files:
        file.close()
