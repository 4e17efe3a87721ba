"""`tailrace.open`: which URLs it takes, which module gets them, and what it says to the rest."""

import re
import sys
import types

import pytest

import tailrace
from tailrace import _url, aq, conq, mcp, qewqew, ring

SCHEMES = ("aq", "conq", "mcp", "qewqew", "ring")


@pytest.fixture
def opened(monkeypatch):
    """Stand-in queue modules; the list of what they were asked to open."""
    calls = []
    for scheme in SCHEMES:
        module = types.ModuleType(f"tailrace.{scheme}")
        module._open_url = lambda rest, _scheme=scheme, **options: calls.append((_scheme, rest, options)) or _scheme
        monkeypatch.setitem(sys.modules, f"tailrace.{scheme}", module)
    return calls


@pytest.mark.parametrize(
    ("url", "scheme", "rest"),
    [
        ("aq:/dev/shm/events", "aq", "/dev/shm/events"),
        ("aq:relative name", "aq", "relative name"),
        ("ring:/tmp/a:b#c", "ring", "/tmp/a:b#c"),
        ("qewqew:/data/é", "qewqew", "/data/é"),
        ("conq:/dev/shm/work#jobs", "conq", "/dev/shm/work#jobs"),
        ("mcp:/dev/shm/mcp###00000001", "mcp", "/dev/shm/mcp###00000001"),
    ],
)
def test_the_module_of_the_scheme_gets_the_rest_and_the_options(opened, url, scheme, rest):
    assert tailrace.open(url, timeout=3) == scheme
    assert opened == [(scheme, rest, {"timeout": 3})]


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("", "expected aq:PATH"),
        ("/dev/shm/events", "expected aq:PATH"),
        ("rabbit:/x", "not one of aq, conq, mcp, qewqew, ring"),
        ("AQ:/x", "unknown scheme 'AQ'"),
        (" aq:/x", "unknown scheme ' aq'"),
        (":/x", "unknown scheme ''"),
        ("aq:", "no path: expected aq:PATH"),
        ("ring:", "no path: expected ring:PATH"),
        ("aq:/x\0y", "null character"),
        ("conq:/dir", "no '#'"),
        ("conq:", "no '#'"),
        ("mcp:#NAME", "no directory: expected mcp:DIR#NAME"),
        ("mcp:/dir#", "no queue name after '#'"),
    ],
)
def test_a_wrong_url_is_named_with_what_was_expected(opened, url, reason):
    with pytest.raises(ValueError, match=re.escape(reason)) as caught:
        tailrace.open(url)
    assert repr(url) in str(caught.value)
    assert opened == []


@pytest.mark.parametrize("url", [None, 7, b"aq:/x"])
def test_a_url_is_text(url):
    with pytest.raises(TypeError, match="must be a str"):
        tailrace.open(url)


def test_the_name_begins_after_the_first_number_sign():
    assert _url.directory_and_name("/dev/shm/mcp###00000001") == ("/dev/shm/mcp", "##00000001")
    with pytest.raises(ValueError, match="no '#'"):
        _url.directory_and_name("/dev/shm")


@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_url_opens_the_queue_that_was_made_there(scheme, tmp_path):
    makers = {
        "aq": lambda: (aq.Queue.create(tmp_path / "q", size=1 << 14), f"aq:{tmp_path / 'q'}"),
        "conq": lambda: (conq_queue(tmp_path), f"conq:{tmp_path}#jobs"),
        "mcp": lambda: (mcp.QueueFile.open("MY.Q", "output", system=tmp_path), f"mcp:{tmp_path}#MY.Q"),
        "qewqew": lambda: (qewqew.DurableQueue(tmp_path / "q", role="producer"), f"qewqew:{tmp_path / 'q'}"),
        "ring": lambda: (ring.Queue.create(tmp_path / "q", max_len=4, msg_size=1), f"ring:{tmp_path / 'q'}"),
    }
    made, url = makers[scheme]()
    options = {"mcp": {"mode": "input"}, "qewqew": {"role": "consumer"}}.get(scheme, {})
    with made, tailrace.open(url, **options) as opened:
        made.put(b"12345678")
        assert opened.get(timeout=5) == b"12345678"


def conq_queue(directory):
    manager = conq.QueueManager.open(directory)
    manager.create_queue("jobs")
    return manager.queue("jobs")


@pytest.mark.parametrize("url", ["aq:/no/such/queue", "ring:/no/such/queue"])
def test_a_queue_that_is_not_there_is_named(url):
    with pytest.raises((tailrace.QueueNotFound, OSError), match="no/such"):
        tailrace.open(url)
