"""tailrace.mcp: the habits of queue.Queue, and opening, closing and looking at queue files."""

import pickle
import signal
import threading
import time
from pathlib import Path

import pyarrow as pa
import pytest

import tailrace
from mcp_programs import programs
from tailrace import mcp

__all__ = ["programs"]


# The habits of queue.Queue


def test_put_and_get(programs):
    q = programs.open(mode="input_output", max_messages=3)
    assert (q.empty(), q.full(), q.qsize(), len(q), bool(q)) == (True, False, 0, 0, True)
    assert q.put(b"a") is None
    q.put(b"b", timeout=0)
    assert (q.empty(), q.qsize(), len(q)) == (False, 2, 2)
    assert q.get() == b"a"
    assert q.get(timeout=0) == b"b"
    family = programs.open("MY.QFF", "input_output", family_size=2)
    family.put(b"x", key=2)
    assert family.get(key=2) == b"x"
    family.put_many([b"y", b"z"], key=1)
    assert (family.get_many(9, key=1), family.qsize()) == ([b"y", b"z"], 0)


def test_many_at_once(programs):
    q = programs.open(mode="input_output", max_messages=64, buffers=8)
    q.put_many(bytes([n]) for n in range(50))
    assert q.get_many(10) == [bytes([n]) for n in range(10)]
    array = q.get_arrow(30)
    assert isinstance(array, pa.BinaryArray)
    assert array.to_pylist() == [bytes([n]) for n in range(10, 40)]
    assert q.get_many(1000, timeout=0) == [bytes([n]) for n in range(40, 50)]
    q.put_many(pa.array([b"from", b"arrow"], pa.binary()))
    assert q.get_arrow(2).to_pylist() == [b"from", b"arrow"]
    for drain in (q.get_many, q.get_arrow):
        for timeout in (0, 0.02):
            with pytest.raises(tailrace.QueueEmpty):
                drain(5, timeout=timeout)
        assert len(drain(0)) == 0
        with pytest.raises(tailrace.InvalidKey):
            drain(0, key=1)
    with pytest.raises(tailrace.QueueFull, match="64 of 100 records were written"):
        q.put_many([b"x"] * 100, timeout=0)
    with pytest.raises(tailrace.MessageTooLarge):
        q.put_many([b"x", b"y" * 81])
    with pytest.raises(TypeError):
        q.put_many([b"x", "y"])
    q.put_many([])
    assert q.qsize() == 64
    reader, writer = programs.pair("END")
    writer.close()
    for drain in (reader.get_many, reader.get_arrow):
        with pytest.raises(tailrace.EndOfFile):
            drain(5)


@pytest.mark.parametrize("size", [64, 4096, 100_000])
def test_every_length_in_memory_and_on_disk(programs, size):
    q = programs.open(mode="input_output", max_messages=20, buffers=3, record_size=size)
    records = [bytes([n]) * max(0, size - n) for n in range(20)]
    q.put_many(records)
    counters = q.counters
    assert (counters["messages"], counters["in_memory"], counters["spills"]) == (20, 2, 18)
    assert [q.read() for _ in range(10)] == records[:10]
    assert q.get_many(20) == records[10:]
    assert q.counters["read"] == 20


def test_a_closed_file_is_closed(programs):
    reader, writer = programs.pair()
    with reader as same:
        assert same is reader
        assert not reader.closed
    reader.close()
    assert reader.closed
    assert repr(reader) == f'<QueueFile "MY.Q" closed in "{programs.system}">'
    calls = [
        *(reader.read, reader.get, reader.qsize, reader.empty, reader.full, reader.message_count, reader.hold),
        *(reader.info, reader.forget, lambda: reader.get_many(1), lambda: reader.get_arrow(1)),
        *(lambda: mcp.wait(0, reader), lambda: reader.insert_occurred, lambda: reader.abended),
        *(lambda: reader.counters, lambda: next(reader), lambda: reader.acknowledge([])),
        lambda: reader.message_count_field(24),
    ]
    for call in calls:
        with pytest.raises(tailrace.QueueClosed):
            call()
    writer.close()
    for call in (lambda: writer.write(b"x"), lambda: writer.put(b"x"), lambda: writer.put_many([b"x"])):
        with pytest.raises(tailrace.QueueClosed):
            call()
    assert mcp.queues(programs.system) == [], "it went with its last user"


def test_a_close_ends_a_wait_in_another_thread(programs):
    reader, _writer = programs.pair()
    found = []

    def read() -> None:
        try:
            reader.read()
        except tailrace.QueueClosed as error:
            found.append(error)

    thread = threading.Thread(target=read)
    thread.start()
    time.sleep(0.05)
    reader.close()
    thread.join(20)
    assert len(found) == 1


def test_ctrl_c_ends_a_wait(programs):
    reader, writer = programs.pair(max_messages=1)
    writer.write(b"full")
    empty, _ = programs.pair("EMPTY")
    for call in (lambda: empty.read(), lambda: writer.write(b"x"), lambda: mcp.wait(30, empty), lambda: empty.hold()):
        timer = threading.Timer(0.05, signal.raise_signal, [signal.SIGINT])
        timer.start()
        with pytest.raises(KeyboardInterrupt):
            call()
        timer.join()
    assert reader.read() == b"full", "and nothing was taken"


def test_a_blocked_read_lets_other_threads_run(programs):
    reader, writer = programs.pair()
    got = []
    thread = threading.Thread(target=lambda: got.append(reader.read()))
    thread.start()
    sum(range(10**6))  # would not end if the reader slept with the GIL
    writer.write(b"x")
    thread.join(20)
    assert got == [b"x"]


# Opening, parameters and what there is to see


def test_the_first_opener_binds(programs):
    first = programs.open(max_messages=7, buffers=3, record_size=50)
    second = programs.open(mode="output", max_messages=1, buffers=1, record_size=1, family_size=0)
    assert second.parameters == first.parameters == mcp.FileParameters("MY.Q", 7, 50, 3)
    assert (first.name, first.mode, first.path) == ("MY.Q", "input", programs.system)
    with pytest.raises(ValueError, match="255 in strict mode, not 256"):
        programs.open("OTHER", max_messages=256, strict=True)
    with pytest.raises(ValueError, match="mode must be"):
        programs.open("OTHER", "append")
    for name in ("", "TWENTY.ONE.CHARACTERS", "A/B/C"):
        with pytest.raises(ValueError, match="name"):
            programs.open(name)


def test_a_kept_queue_waits_for_its_readers(programs):
    with programs.open(mode="output", keep=True) as writer:
        writer.put_many([b"1", b"2"])
    assert [(q["messages"], q["users"], q["keep"]) for q in mcp.queues(programs.system)] == [(2, 0, True)]
    reader = programs.open()
    assert list(reader) == [b"1", b"2"]
    reader.forget()
    reader.close()
    assert mcp.queues(programs.system) == []


def test_queue_disk_elsewhere(programs, tmp_path):
    disk = tmp_path / "disk"
    disk.mkdir()
    q = programs.open(mode="input_output", max_messages=4, buffers=1, record_size=200, disk=disk)
    [file] = disk.iterdir()
    assert file.stat().st_size == 4 * 2 * 180
    q.write(b"on disk")
    assert b"on disk" in file.read_bytes()
    assert Path(q.info()["parameters"]["disk"]) == file
    q.close()
    assert list(disk.iterdir()) == [], "it is returned"
    with pytest.raises(OSError, match="missing"):
        programs.open(disk=tmp_path / "missing")


def test_info_counters_and_reclaim(programs):
    reader, writer = programs.pair(max_messages=4, buffers=4)
    writer.put_many([b"x", b"y"])
    info = reader.info()
    assert (info["kind"], info["name"], Path(info["path"])) == ("mcp", "MY.Q", programs.system)
    assert info["parameters"]["max_messages"] == 4
    assert info["counters"] == reader.counters
    assert (info["message_count"], info["abended"]) == (2, False)
    assert info["participants"] == {"alive": 1, "dead": 0}
    assert info["promises"]
    counters = reader.counters
    assert (counters["writers"], counters["readers"], counters["users"], counters["written"]) == (1, 1, 2, 2)
    assert mcp.reclaim(programs.system) == 2
    whole = mcp.counters(programs.system)
    assert (whole["roll_outs"], whole["buffers_in_use"], whole["descriptor_blocks"]) == (2, 0, 1)
    assert info["system"].keys() == whole.keys()
    assert reader.get_many(2) == [b"x", b"y"]
    assert repr(reader) == f'<QueueFile "MY.Q" input in "{programs.system}">'


def test_a_system_of_other_sizes(tmp_path):
    mcp.create_system(tmp_path, queues=2, users=2, participants=2, messages=10, memory=4096, memory_limit=4096)
    with mcp.QueueFile.open("ONE", "output", tmp_path, record_size=1000, max_messages=100, buffers=100) as one:
        with mcp.QueueFile.open("TWO", "output", tmp_path):
            with pytest.raises(tailrace.AlreadyOpen, match="2 open queue files"):
                mcp.QueueFile.open("ONE", "input", tmp_path)
            with pytest.raises(tailrace.QueueFull, match="can hold 2"):
                mcp.QueueFile.open("THREE", "input", tmp_path)
        with pytest.raises(tailrace.QueueFull, match="10 of 12 records were written"):
            one.put_many([b"x" * 1000] * 12, timeout=0.02)
        for timeout in (0, 0.02):
            with pytest.raises(tailrace.QueueFull, match="10 messages"):
                one.write(b"x", timeout=timeout)
    with pytest.raises(ValueError, match="queues must be 1"):
        mcp.create_system(tmp_path / "other", queues=0)
    assert mcp.default_system().name == "mcp"


def test_a_write_waits_for_memory_that_other_queues_have(tmp_path):
    mcp.create_system(tmp_path, queues=2, users=4, messages=10)
    other = mcp.QueueFile.open("OTHER", "input_output", tmp_path)
    with other, mcp.QueueFile.open("ONE", "input_output", tmp_path) as one:
        for call in (lambda: one.write(b"x"), lambda: one.put_many([b"x"])):
            other.put_many([b"taken"] * 10)
            timer = threading.Timer(0.05, other.get)
            timer.start()
            call()
            timer.join()
            assert (one.get(), other.get_many(10)) == (b"x", [b"taken"] * 9)


def test_urls_and_pickles_open_the_same_queue(programs):
    q = tailrace.open(f"mcp:{programs.system}#MY.Q", record_size=9)
    assert (q.mode, q.parameters.record_size) == ("input_output", 9)
    pickle.loads(pickle.dumps(q)).put(b"x")
    assert q.get(timeout=0) == b"x"
    reader = tailrace.open(f"mcp:{programs.system}#MY.Q", mode="input")
    assert reader.mode == "input"
    family = programs.open("MY.QFF", "input_output", family_size=2, sdl_keys=True, keep=True, device=62)
    copy = pickle.loads(pickle.dumps(family))
    assert (copy.mode, copy.parameters) == ("input_output", family.parameters)
    copy.write(b"y", key=0)
    assert family.read(key=0) == b"y"
    family.forget()
    for file in (q, reader, copy):
        file.close()


def test_to_look_for_queues_where_there_is_no_system_makes_none(tmp_path: Path) -> None:
    for place in (tmp_path, tmp_path / "missing"):
        assert mcp.queues(place) == []
        assert mcp.reclaim(place) == 0
    assert not list(tmp_path.iterdir())
