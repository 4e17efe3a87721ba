"""What the tests of aq share: a directory in memory, a path in it, a queue there."""

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tailrace import aq


@pytest.fixture
def directory() -> Iterator[Path]:
    path = Path(tempfile.mkdtemp(dir="/dev/shm", prefix="tailrace-test-"))
    yield path
    shutil.rmtree(path)


@pytest.fixture
def path(directory: Path) -> Path:
    return directory / "queue"


@pytest.fixture
def q(path: Path) -> Iterator[aq.Queue]:
    with aq.Queue.create(path, size=1 << 16) as made:
        yield made
