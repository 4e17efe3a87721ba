"""What the tests of conq share: both kinds of manager, and a small queue."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tailrace import conq

SMALL = {"max_messages": 64, "max_message_size": 1000, "max_bytes": 1 << 18}


@pytest.fixture(params=["process", "host"])
def manager(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[conq.QueueManager]:
    if request.param == "host":
        yield conq.QueueManager.open(tmp_path / "queues")
        return
    made = conq.QueueManager()
    yield made
    for name in made.names():
        made.delete_queue(made.get_queue(name))


@pytest.fixture
def q(manager) -> conq.Queue:
    manager.create_queue("q", **SMALL)
    return manager.queue("q")
