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


def test_a_block_that_raises_with_a_memoryview_in_use_gives_the_claim_up(q: aq.Queue) -> None:
    w = q.writer()
    views = []

    def fail() -> None:
        with w.claim(3) as item:
            views.append(memoryview(item))
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    for refused in (lambda: views[0].obj.write(b"x"), lambda: w.commit(views[0].obj)):
        with pytest.raises(ValueError, match="given up"):
            refused()
    q.put(b"next")
    # The view can still write: nobody else is given its memory.
    assert q.get() == b"next"
    views[0][:] = b"no!"
    views.clear()
    assert q.reap() == 0
    assert q.incomplete_count == 0
    first = q.snapshot()[0]
    assert (bytes(first), first.is_committed, first.is_released) == (b"no!", False, True)


def test_a_block_that_raises_keeps_a_retrieved_item_that_is_looked_at(q: aq.Queue) -> None:
    q.put(b"read me")
    r = q.reader()
    item = r.retrieve()
    assert item is not None
    view = None

    def fail() -> None:
        nonlocal view
        with item:
            view = memoryview(item)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert view is not None
    assert bytes(view) == b"read me"
    assert not item.is_released
    view.release()
    assert r.release(item)


def test_a_block_that_raises_after_close_says_what_it_raised(q: aq.Queue) -> None:
    def fail() -> None:
        with q.writer().claim(3):
            q.close()
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()


@pytest.mark.parametrize("page_size", [8, 4096])
def test_items_of_an_earlier_format_are_refused(path: Path, page_size: int) -> None:
    q = aq.Queue.create(path, size=1 << 16, page_size=8)
    w, r = q.writer(), q.reader()
    q.put(b"retrieve")
    claims = [w.claim(8) for _ in range(200)]
    got, shown = r.retrieve(), q.snapshot()[0]
    assert got is not None
    view = memoryview(claims[-1])
    with pytest.raises(BufferError, match="1 memoryview"):
        q.format(page_size=page_size)
    assert bytes(got) == b"retrieve"
    view.release()
    q.format(page_size=page_size)
    q.put(b"of today")
    for item in (claims[0], claims[-1]):
        for attempt in (
            lambda item=item: item.write(b"scribble"),
            lambda item=item: item.printf("scribble"),
            lambda item=item: w.commit(item),
            lambda item=item: bytes(item),
            lambda item=item: memoryview(item),
        ):
            with pytest.raises(ValueError, match="formatted anew"):
                attempt()
    for attempt in (lambda: r.release(got), lambda: bytes(got), lambda: memoryview(got)):
        with pytest.raises(ValueError, match="formatted anew"):
            attempt()
    assert bytes(shown) == b"retrieve"
    del claims, item
    assert q.get() == b"of today"


def test_claims_of_an_earlier_format_keep_no_pages(path: Path) -> None:
    q = aq.Queue.create(path, page_size=64)
    earlier = q.writer().claim(64)
    q.format(page_size=64, commit_timeout=0)
    everything = q.available_size
    # In the same place, with the same size, and its owner is known to be done with it.
    q.writer().claim(64)
    assert q.reap() == 0
    time.sleep(0.01)
    assert q.reap() == 1
    assert q.available_size == everything
    assert earlier.size == 64


def test_a_format_is_seen_through_other_handles(path: Path) -> None:
    with aq.Queue.create(path, commit_timeout=0.5) as q, aq.Queue.open(path) as other:
        assert other.commit_timeout == 0.5
        q.format(commit_timeout=5)
        assert other.commit_timeout == 5
    with aq.Queue.open(path) as q, aq.Queue.open(path) as other, other.reader():
        q.put(b"kept")
        got = memoryview(q.writer().claim(4))
        got.release()
        with pytest.raises(tailrace.AlreadyOpen):
            q.format()
        assert other.get() == b"kept"


def test_items_of_another_queue_object_are_refused_and_stay_as_they_are(q: aq.Queue) -> None:
    with aq.Queue.anonymous(size=1 << 16) as other:
        theirs = other.writer().claim(4)
        theirs.write(b"mine")
        with pytest.raises(ValueError, match="belongs to another queue object"):
            q.writer().commit(theirs)
        assert other.writer().commit(theirs)
        with other.reader() as owner, q.reader() as stranger:
            item = owner.retrieve(timeout=1)
            assert item is not None
            with pytest.raises(ValueError, match="belongs to another queue object"):
                stranger.release(item)
            assert bytes(item) == b"mine"
            assert owner.release(item)


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
