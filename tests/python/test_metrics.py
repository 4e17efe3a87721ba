"""`tailrace.metrics`: the same names for all five, by handle and by URL."""

import json

import pytest

import tailrace
from tailrace import aq, conq, mcp, qewqew, ring


def make(kind, directory):
    if kind == "conq":
        manager = conq.QueueManager.open(directory / "conq")
        manager.create_queue("jobs")
        return manager.queue("jobs"), f"conq:{directory}/conq#jobs"
    if kind == "mcp":
        file = mcp.QueueFile.open("Q", "input_output", system=directory, max_messages=9)
        return file, f"mcp:{directory}#Q"
    path = directory / "queue"
    makers = {
        "aq": lambda: aq.Queue.create(path, size=1 << 16),
        "qewqew": lambda: qewqew.DurableQueue(path, sync="never", role="producer"),
        "ring": lambda: ring.Queue.create(path, max_len=9),
    }
    return makers[kind](), f"{kind}:{path}"


@pytest.mark.parametrize("kind", ["aq", "conq", "mcp", "qewqew", "ring"])
def test_by_handle_and_by_url(kind, tmp_path):
    queue, url = make(kind, tmp_path)
    with queue:
        for count in range(3):
            by_handle, by_url = tailrace.metrics(queue), tailrace.metrics(url)
            assert by_handle["depth"] == by_url["depth"] == count
            queue.put(b"x")
        assert by_handle.keys() == by_url.keys()
        assert by_url["kind"] == by_handle["kind"] == kind
        assert by_url["url"] == url
        assert by_url["bytes"] > 0
        assert by_url["users_alive"] >= 1
        assert by_url["users_dead"] == 0
        assert by_url["counters"]
        assert all(type(value) in (int, float) for value in by_url["counters"].values())
        assert json.loads(json.dumps(by_url)) == by_url


def test_what_is_no_queue_is_refused(tmp_path):
    with pytest.raises(TypeError, match="takes a queue or its URL, not 7"):
        tailrace.metrics(7)
    with pytest.raises(ValueError, match="unknown scheme"):
        tailrace.metrics("rabbit:x")
    with pytest.raises(tailrace.QueueNotFound):
        tailrace.metrics(f"aq:{tmp_path}/missing")
    assert list(tmp_path.iterdir()) == []
