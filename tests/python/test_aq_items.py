"""Items of tailrace.aq: the memory itself, claims in with blocks, growing ones, links and checksums."""

import time
from pathlib import Path

import numpy as np
import pytest

import tailrace
from aq_queues import directory, path, q
from tailrace import aq

__all__ = ["directory", "path", "q"]


def test_a_claim_is_the_memory_of_the_queue(q: aq.Queue, path: Path) -> None:
    w, r = q.writer(), q.reader()
    item = w.claim(11)
    assert (item.size, item.capacity, len(item), item.is_committed) == (11, 11, 11, False)
    view = memoryview(item)
    view[:] = b"hello world"
    assert b"hello world" in path.read_bytes()
    with pytest.raises(BufferError):
        w.commit(item)
    with pytest.raises(BufferError):
        q.close()
    view.release()
    assert bytes(item) == b"hello world"
    assert w.commit(item)
    assert item.is_committed
    for attempt in (lambda: memoryview(item), lambda: item.write(b"x"), lambda: w.commit(item), lambda: bytes(item)):
        with pytest.raises(ValueError, match=r"committed|claim"):
            attempt()
    got = r.retrieve()
    assert got is not None
    assert got.queue_identifier == item.queue_identifier
    seen = memoryview(got)
    assert (seen.readonly, bytes(seen)) == (True, b"hello world")
    with pytest.raises(TypeError):
        seen[0] = 1
    array = np.frombuffer(got, dtype=np.uint8)
    assert array[0] == ord("h")
    with pytest.raises(BufferError):
        r.release(got)
    del array
    seen.release()
    assert r.release(got)
    assert got.is_released
    with pytest.raises(ValueError, match="released"):
        memoryview(got)
    with pytest.raises(ValueError, match="released"):
        r.release(got)


def test_write_rules(q: aq.Queue) -> None:
    w, r = q.writer(), q.reader()
    item = w.claim(8)
    assert item.write(b"abc")
    assert item.write(b"gh", offset=6)
    assert item.write(b"def", 3)
    assert not item.write(b"x")
    assert not item.write(b"", 8)
    assert item.printf("%s-%d", "n", 7, offset=0) == 3
    assert item.printf("%04d", 12, offset=6) == ~2
    with pytest.raises(TypeError):
        item.printf(None)  # type: ignore[arg-type]
    w.commit(item)
    got = r.retrieve()
    assert got is not None
    assert bytes(got) == b"n-7def00"
    for size in (0, -1, 0x100000):
        with pytest.raises(ValueError, match=r"1048575|-1"):
            w.claim(size)


def test_a_claim_in_a_with_block(q: aq.Queue) -> None:
    w = q.writer()
    with w.claim(3) as item:
        item.write(b"yes")
    item = w.claim(3)

    def fail() -> None:
        with item:
            item.write(b"no!")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    q.put(b"next")
    assert q.get_many(5) == [b"yes", b"next"]
    assert q.incomplete_count == 0
    states = [(bytes(item), item.is_committed, item.is_released) for item in q.snapshot()]
    assert states == [(b"yes", True, True), (b"no!", False, True), (b"next", True, True)]
    with q.reader() as r:
        q.put(b"read me")
        with r.retrieve(timeout=1) as got:
            assert bytes(got) == b"read me"
        assert got.is_released


def test_a_lost_claim_is_never_reported_as_success(path: Path) -> None:
    q = aq.Queue.create(path, size=1024, page_size=16, commit_timeout=0.01)
    w, r = q.writer(), q.reader()
    item = w.claim(700)
    assert r.retrieve() is None
    time.sleep(0.03)
    late = r.retrieve()
    assert late is not None
    assert not late.is_committed
    assert r.release(late)
    # Quarantine: its pages are not reused while it can write to them.
    assert q.available_size < 100
    item.write(b"scribble")
    with pytest.raises(tailrace.MessageNotFound), item:
        pass
    assert r.retrieve() is None
    assert q.available_size > 300


def test_extendable_items(path: Path) -> None:
    q = aq.Queue.create(path, size=1 << 14, page_size=16, extendable=True)
    w, r = q.writer(), q.reader()
    assert q.is_extendable
    item = w.claim(0)
    assert (item.size, item.capacity) == (0, 16)
    for number in range(10):
        assert item.write(b"%05d" % number)
    assert w.commit(item)
    got = r.retrieve()
    assert got is not None
    expected = b"".join(b"%05d" % number for number in range(10))
    assert bytes(got) == bytes(memoryview(got)) == expected
    assert b"".join(bytes(part) for part in got.segments) == expected
    assert len(got.segments) > 1
    view = memoryview(got.segments[0])
    with pytest.raises(BufferError):
        r.release(got)
    view.release()
    r.release(got)
    [shown] = q.snapshot()
    assert (bytes(shown), shown.is_released) == (expected, True)
    with pytest.raises(ValueError, match="link_identifier 7"):
        w.claim(1).link_identifier = 7


def test_links_and_checksums(path: Path) -> None:
    q = aq.Queue.create(path, size=4096, crc32=True, link_identifier=True)
    w, r = q.writer(), q.reader()
    item = w.claim(5)
    assert item.link_identifier == 0xFFFFFFFF
    item.link_identifier = 12345
    item.write(b"hello")
    w.commit(item)
    got = r.retrieve()
    assert got is not None
    assert (got.link_identifier, got.is_checksum_valid) == (12345, True)
    r.release(got)
    q.put(b"damaged")
    with path.open("r+b") as file:
        data = file.read()
        file.seek(data.index(b"damaged"))
        file.write(b"D")
    q.put(b"good")
    assert q.get() == b"good"
    assert q.corrupt_count == 1
