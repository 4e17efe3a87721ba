"""tailrace.aq as people use it: one process, threads, several processes, kill -9, Ctrl-C, zero copy, pickle, Arrow."""

import ctypes
import mmap
import multiprocessing
import os
import pickle
import queue
import struct
import threading
from multiprocessing import shared_memory
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tailrace
from aq_queues import directory, path, q
from harness import Allocations, held
from tailrace import aq

__all__ = ["directory", "path", "q"]

SOAK = os.environ.get("TAILRACE_SOAK", "0") not in ("", "0")
GOLDEN = Path(__file__).parent.parent / "golden"

# The format


def fnv(data: bytes) -> int:
    value = 0xCBF29CE484222325
    for byte in data:
        value = (value ^ byte) * 0x100000001B3 & 0xFFFFFFFFFFFFFFFF
    return value


@pytest.mark.parametrize("place", ["file", "buffer"])
def test_the_golden_trace_gives_identical_bytes(path: Path, place: str) -> None:
    lines = (GOLDEN / "aq_trace.txt").read_text().splitlines()
    region: mmap.mmap | None = None
    for number, line in enumerate(lines):
        if line.startswith("T "):
            given = dict(part.split("=") for part in line[2:].split())
            size, bits = int(given["size"]), int(given["opts"])
            options = {"crc32": bool(bits & 1), "link_identifier": bool(bits & 2), "extendable": bool(bits & 4)}
            options |= {"page_size": 1 << int(given["shift"]), "commit_timeout": 3600}
            if place == "file":
                path.unlink(missing_ok=True)
                made = aq.Queue.create(path, size=size, **options)
                with path.open("r+b") as file:
                    region = mmap.mmap(file.fileno(), 0)
            else:
                region = mmap.mmap(-1, size)
                made = aq.Queue.over(region, **options)
            assert (made.page_count, made.memory_size) == (int(given["pageCount"]), size)
            writer, reader, claimed, retrieved, successes = made.writer(), made.reader(), [], [], 0
            continue
        operation, state = line.split(" | ")
        words = operation.split()[1:]
        match words[0]:
            case "claim":
                try:
                    item = writer.claim(int(words[1]))
                except tailrace.QueueFull:
                    assert words[3] == "0"
                else:
                    assert words[3] == "1"
                    if made.is_extendable:
                        assert item.write(bytes([65 + successes % 26]) * int(words[5])) == (words[7] == "1")
                    else:
                        view = memoryview(item)
                        view[:] = bytes([65 + successes % 26]) * int(words[1])
                        view.release()
                        if bits & 2:
                            item.link_identifier = 7 * (successes + 1)
                    successes += 1
                    claimed.append(item)
            case "commit":
                assert writer.commit(claimed.pop(int(words[1][1:]))) == (words[3] == "1")
            case "retrieve":
                item = reader.retrieve()
                if item is None:
                    assert words[2] == "none"
                else:
                    shown = dict(part.split("=") for part in words[2:])
                    assert (item.queue_identifier, len(item.segments)) == (int(shown["quid"]), int(shown["segs"]))
                    assert item.is_checksum_valid == (shown["crc"] == "1")
                    if item.size:
                        assert item.size == int(shown["size"])
                        assert bytes(item)[:1] == shown["first"].encode()
                    retrieved.append(item)
            case "release":
                assert reader.release(retrieved.pop(int(words[1][1:])))
        # Hashing in Python is slow: each state is compared by its references, every tenth by all its bytes.
        head, tail, whole = state.split()
        assert struct.unpack_from("<II", region, 44) == (int(head, 16), int(tail, 16)), line
        if number % 10 == 0 or SOAK:
            assert fnv(region[:size]) == int(whole, 16), line


def test_a_file_of_the_original_has_no_trailer_and_works(path: Path) -> None:
    with aq.Queue.create(path, size=4096) as source:
        source.put(b"old")
    # Closed means gone: no mapping is left that the truncation could hurt.
    os.truncate(path, 4096)
    with aq.Queue.open(path) as q:
        info = q.info()
        assert not info["trailer"]
        assert "timeout alone" in info["promises"][0]
        assert q.get(timeout=0) == b"old"
        q.put(b"new")
        assert q.get() == b"new"


# The habits of queue.Queue


def test_put_and_get(q: aq.Queue) -> None:
    assert q.empty()
    assert not q.full()
    assert bool(q)
    q.put(b"one")
    q.put(bytearray(b"two"))
    q.put(memoryview(b"three"))
    q.put(np.arange(3, dtype=np.uint8))
    assert (q.qsize(), len(q)) == (4, 4)
    assert [q.get(), q.get(), q.get(timeout=0), q.get(0)] == [b"one", b"two", b"three", b"\0\1\2"]
    with pytest.raises(queue.Empty):
        q.get(timeout=0)
    with pytest.raises(tailrace.QueueEmpty):
        q.get(timeout=0.01)
    assert q.put_many([b"a", b"b", b"c"]) == 3
    assert list(q) == [b"a", b"b", b"c"]


def test_full_queues(path: Path) -> None:
    q = aq.Queue.create(path, size=1024, page_size=16)
    most = (q.page_count - 1) * 16
    with pytest.raises(tailrace.MessageTooLarge) as caught:
        q.put(bytes(most + 1))
    assert (caught.value.size, caught.value.limit) == (most + 1, most)
    q.put(bytes(most))
    assert q.full()
    for timeout in (0, 0.01):
        with pytest.raises(queue.Full):
            q.put(b"x", timeout=timeout)
        with pytest.raises(tailrace.QueueFull, match="100 bytes were asked for, 0 bytes"):
            q.writer().claim(100, timeout=timeout)
    with pytest.raises(tailrace.QueueFull):
        q.put_many([b"x"], timeout=0)
    q.get()
    # Not all of them fit: those that did are counted.
    assert q.put_many([bytes(most // 4)] * 5, timeout=0) in (3, 4)
    assert len(q.get_many(10)) in (3, 4)


def test_a_message_as_large_as_the_ring_fits_wherever_head_and_tail_are(path: Path) -> None:
    q = aq.Queue.create(path, size=1024, page_size=16)
    most = (q.page_count - 1) * 16
    for small in range(1, 48):
        q.put(bytes(small * 5))
        q.get()
        got: list[bytes] = []
        thread = threading.Thread(target=lambda: got.append(q.get(timeout=10)))  # noqa: B023
        thread.start()
        q.put(b"x" * most, timeout=10)
        thread.join()
        assert got == [b"x" * most]


@pytest.mark.parametrize("crc32", [False, True])
@pytest.mark.parametrize("extendable", [False, True])
def test_batches_come_whole_and_in_order(crc32: bool, extendable: bool) -> None:
    q = aq.Queue.anonymous(size=1 << 20, page_size=32, crc32=crc32, extendable=extendable)
    messages = [bytes([number % 256]) * (1 + number * 7 % 300) for number in range(1000)]
    assert q.put_many(messages) == 1000
    assert q.get_many(10) == messages[:10]
    array = q.get_arrow(490)
    assert isinstance(array, pa.BinaryArray)
    assert array.to_pylist() == messages[10:500]
    assert q.get_many(10_000, timeout=1) == messages[500:]
    assert q.get_many(0) == []
    assert len(q.get_arrow(0)) == 0
    for attempt in (q.get_many, q.get_arrow):
        with pytest.raises(tailrace.QueueEmpty):
            attempt(5, timeout=0.01)
    assert q.put_many(pa.array(messages[:5], pa.binary())) == 5
    assert q.get_many(5) == messages[:5]


def test_get_arrow_allocates_no_python_object_per_message(tmp_path: Path) -> None:
    allocations = Allocations(tmp_path)
    q = aq.Queue.anonymous(size=64 << 20)
    q.put(b"the first call imports pyarrow")
    q.get_arrow(1)
    counts = {}
    for count in (1_000, 100_000):
        q.put_many([b"x" * 64] * count)
        arrays = []
        counts[count] = allocations.during(lambda n=count, arrays=arrays: arrays.append(q.get_arrow(n)))
        assert [len(array) for array in arrays] == [count]
    assert counts[100_000] == counts[1_000]
    assert counts[1_000] < 200
    # The counter counts: one object and more for every message.
    q.put_many([b"x" * 64] * 1_000)
    assert allocations.during(lambda: q.get_many(1_000)) > 1_000


@settings(max_examples=60, deadline=None)
@given(st.lists(st.one_of(st.binary(min_size=1, max_size=300), st.none()), max_size=120), st.booleans())
def test_it_is_a_fifo(steps: list[bytes | None], extendable: bool) -> None:
    q = aq.Queue.heap(size=2048, page_size=16, extendable=extendable)
    model: list[bytes] = []
    for data in steps:
        if data is None:
            if model:
                assert q.get(timeout=0) == model.pop(0)
            else:
                with pytest.raises(queue.Empty):
                    q.get(timeout=0)
        else:
            try:
                q.put(data, timeout=0)
                model.append(data)
            except queue.Full:
                assert q.available_size < len(data)
        assert q.qsize() == len(model)
    assert [q.get(timeout=0) for _ in model] == model


# Memory of other kinds


def test_a_buffer_of_the_caller(path: Path) -> None:
    memory = bytearray(146)
    q = aq.Queue.over(memory)
    assert not q.is_formatted
    assert (q.page_size, q.page_count) == (0, 0)
    for attempt in (q.writer, q.reader, q.snapshot, lambda: q.put(b"x")):
        with pytest.raises(tailrace.FormatError, match="not formatted"):
            attempt()
    q.format(page_size=2, commit_timeout=0.5)
    assert (q.page_size, q.page_count, q.memory_size, q.commit_timeout) == (2, 15, 146, 0.5)
    assert memory[28:32] == bytes.fromhex("0f001c04")
    q.put(b"AB")
    assert b"AB" in memory
    with pytest.raises(BufferError):
        memory.extend(b"x")
    other = aq.Queue.over(memory)
    assert other.is_formatted
    assert [bytes(item) for item in other.snapshot()] == [b"AB"]
    for bad, error in ((b"read-only", BufferError), (bytearray(), ValueError), (7, TypeError)):
        with pytest.raises(error):
            aq.Queue.over(bad)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="multiple of 4"):
        aq.Queue.over(memoryview(bytearray(200))[1:], page_size=2)
    with pytest.raises(TypeError, match="cannot be pickled"):
        pickle.dumps(q)
    for small in (bytearray(40), bytearray(60)):
        with pytest.raises(ValueError, match="no room for two pages"):
            aq.Queue.over(small, page_size=4)


def put_into_shared_memory(name: str) -> None:
    memory = shared_memory.SharedMemory(name)
    q = aq.Queue.over(memory.buf)
    q.put(b"from a child")
    q.close()
    memory.close()


def test_multiprocessing_shared_memory() -> None:
    memory = shared_memory.SharedMemory(create=True, size=4096)
    try:
        q = aq.Queue.over(memory.buf, page_size=16)
        child = multiprocessing.get_context("fork").Process(target=put_into_shared_memory, args=(memory.name,))
        child.start()
        assert q.get(timeout=20) == b"from a child"
        child.join()
        item = q.writer().claim(5)
        q.close()
        assert item.capacity == 5
    finally:
        memory.close()
        memory.unlink()


def test_bad_arguments_come_before_everything_else(path: Path) -> None:
    for arguments, match in (
        ({"page_size": 3}, "power of two.*not 3"),
        ({"page_size": 0}, "power of two.*not 0"),
        ({"size": 60}, "60 bytes"),
        ({"size": 1 << 33}, "32 bits"),
        ({"commit_timeout": -1}, "commit_timeout.*not -1"),
        ({"commit_timeout": float("nan")}, "commit_timeout"),
    ):
        with pytest.raises(ValueError, match=match):
            aq.Queue.create(path, **arguments)  # type: ignore[arg-type]
        assert not path.exists()
    with pytest.raises(tailrace.QueueNotFound):
        aq.Queue.open(path)
    q = aq.Queue.create(path)
    with pytest.raises(tailrace.QueueExists):
        aq.Queue.create(path)
    for timeout in (-1, float("nan"), "x"):
        with pytest.raises((ValueError, TypeError), match="timeout"):
            q.get(timeout=timeout)  # type: ignore[arg-type]
    for data in ("text", None, 7):
        with pytest.raises(TypeError, match="bytes-like"):
            q.put(data)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="1 to 1048575 bytes"):
        q.put(b"")
    path.with_name("other").write_bytes(bytes(5000))
    with pytest.raises(tailrace.FormatError):
        aq.Queue.open(path.with_name("other")).put(b"x")


def test_the_largest_message_of_an_extendable_queue_is_named(path: Path) -> None:
    # One claim has at most 1,048,575 bytes, in whole pages.
    q = aq.Queue.create(path, size=8 << 20, page_size=4096, extendable=True)
    limit = 255 * 4096
    q.put(bytes(limit))
    assert len(q.get()) == limit
    for size in (limit + 1, 1 << 20, 2 << 20, 9 << 20):
        for put in (lambda size=size: q.put(bytes(size)), lambda size=size: q.put_many([b"x", bytes(size)])):
            with pytest.raises(tailrace.MessageTooLarge, match=f"{size} bytes.*{limit} bytes") as caught:
                put()
            assert (caught.value.size, caught.value.limit) == (size, limit)
    assert q.empty()
    item = q.writer().claim(0)
    assert all(item.write(bytes(1_000_000)) for _ in range(3))
    q.writer().commit(item)
    assert len(q.get()) == 3_000_000


def test_closing(q: aq.Queue) -> None:
    other = aq.Queue.open(q.path)
    r = q.reader()
    with pytest.raises(tailrace.AlreadyOpen):
        q.reader()
    with pytest.raises(tailrace.AlreadyOpen):
        other.reader()
    with pytest.raises(tailrace.AlreadyOpen):
        other.get(timeout=0)
    r.close()
    with pytest.raises(tailrace.QueueClosed):
        r.retrieve()
    with other.reader():
        pass
    other.close()
    other.close()
    for attempt in (lambda: other.put(b"x"), lambda: other.get(timeout=0), other.info, other.writer, other.reader):
        with pytest.raises(tailrace.QueueClosed):
            attempt()
    q.put(b"still works")
    assert q.get() == b"still works"


def test_closing_gives_memory_and_descriptors_back_while_the_objects_live(path: Path) -> None:
    q = aq.Queue.create(path)
    w, r = q.writer(), q.reader()
    claimed = w.claim(5)
    q.put(b"waits")
    retrieved = r.retrieve()
    assert retrieved is not None
    view = memoryview(retrieved)
    with pytest.raises(BufferError, match="still in use by 1 memoryview"):
        q.close()
    assert view == b"waits"
    view.release()
    assert min(held(path)) > 0
    q.close()
    assert held(path) == (0, 0)
    # Their memory may be somebody else's by now.
    for attempt in (
        lambda: w.commit(claimed),
        lambda: r.release(retrieved),
        lambda: claimed.write(b"x"),
        lambda: memoryview(claimed),
        lambda: memoryview(retrieved),
        lambda: bytes(claimed),
        lambda: bytes(retrieved),
    ):
        with pytest.raises(tailrace.QueueClosed):
            attempt()
    # The claim was left behind by a participant that is gone.
    with aq.Queue.open(path) as other:
        assert other.get(timeout=10) == b"waits"
    assert held(path) == (0, 0)


def test_closing_wakes_the_waiting(path: Path) -> None:
    q = aq.Queue.create(path)
    threading.Timer(0.05, q.close).start()
    with pytest.raises(tailrace.QueueClosed):
        q.get()
    assert held(path) == (0, 0)


def test_info_and_url(q: aq.Queue) -> None:
    q.put_many([b"a", b"b"])
    with tailrace.open(f"aq:{q.path}") as other:
        info = other.info()
    expected = {"kind": "aq", "path": str(q.path), "page_size": 64, "message_count": 2, "commit_counter": 2}
    assert expected.items() <= info.items()
    assert info["participants"]["alive"] == 2
    assert info["trailer"]
    assert "at once" in info["promises"][0]


def test_the_header_is_where_c_programs_expect_it(path: Path) -> None:
    names = "version options size shift pages offset timeout xref contention commits frees head tail"
    fields = [(name, ctypes.c_uint32) for name in names.split()]
    Header = type("Header", (ctypes.LittleEndianStructure,), {"_fields_": fields})  # noqa: N806
    q = aq.Queue.create(path, size=2048, page_size=128, commit_timeout=1.5)
    q.put(b"x")
    header = Header.from_buffer_copy(path.read_bytes())
    shown = (header.version, header.options, header.size, header.shift, header.pages, header.timeout, header.commits)
    assert shown == (1, 0, 2048, 7, 15, 1500, 1)
    assert header.xref == (7 << 26 | header.offset << 14 | 15)
