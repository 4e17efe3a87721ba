"""tailrace.mcp: the document's verbs, branches, families, waits and the life of its end of file."""

import math
import os
import queue
import threading

import numpy as np
import pytest

import tailrace
from mcp_programs import Programs, programs
from tailrace import mcp

__all__ = ["programs"]


# READ, WRITE and their branches


def test_a_record_for_each_kind_of_buffer(programs):
    reader, writer = programs.pair()
    for data in (b"bytes", bytearray(b"bytearray"), memoryview(b"view"), np.frombuffer(b"array", np.uint8), b""):
        assert writer.write(data) is True
    assert [reader.read() for _ in range(5)] == [b"bytes", b"bytearray", b"view", b"array", b""]
    for wrong in (None, "text", 7):
        with pytest.raises(TypeError):
            writer.write(wrong)


@pytest.mark.parametrize("timeout", [0, 0.03])
def test_incomplete_io_on_empty_and_full(programs, timeout):
    reader, writer = programs.pair(max_messages=2)
    with pytest.raises(tailrace.QueueEmpty, match=r"MY\.Q is empty"):
        reader.read(timeout=timeout)
    writer.write(b"1")
    writer.write(b"2", timeout=timeout)
    assert writer.full()
    with pytest.raises(tailrace.QueueFull, match="holds 2 messages, its limit"):
        writer.write(b"3", timeout=timeout)
    with pytest.raises(tailrace.QueueFull):
        writer.write_top(b"3", timeout=timeout)
    assert [reader.read(timeout=timeout), reader.read(timeout=timeout)] == [b"1", b"2"]
    with pytest.raises(queue.Empty):
        reader.get(timeout)


def test_arguments_are_judged_before_the_state(programs):
    reader, writer = programs.pair("MY.QFF", family_size=2, max_messages=1, record_size=10)
    writer.write(b"full", key=1)
    with pytest.raises(tailrace.MessageTooLarge) as info:
        writer.write(b"eleven byte", key=1, timeout=0)
    assert (info.value.size, info.value.limit) == (11, 10)
    with pytest.raises(tailrace.InvalidKey, match="1 to 2"):
        writer.write(b"x", key=3, timeout=0)
    with pytest.raises(ValueError, match="timeout"):
        reader.read(timeout=-1)
    with pytest.raises(ValueError, match="timeout"):
        reader.read(timeout=math.nan)
    with pytest.raises(ValueError, match="open for input, not for output"):
        reader.write(b"x", key=1)
    with pytest.raises(ValueError, match="open for output, not for input"):
        writer.read()


def test_write_to_top(programs):
    reader, writer = programs.pair(max_messages=5, buffers=2)
    for data in (b"2", b"3"):
        writer.write(data)
    assert writer.write(b"1", top=True)
    assert writer.write_top(b"0")
    assert [reader.read() for _ in range(4)] == [b"0", b"1", b"2", b"3"]


def test_use_for_q_empty_and_q_full(programs):
    reader, writer = programs.pair(max_messages=1)
    calls = []
    reader.use_for(q_empty=lambda: calls.append("empty") or "nothing there")
    writer.use_for(q_full=lambda: calls.append("full"))
    assert reader.read() == "nothing there"
    assert writer.write(b"1") is True
    assert writer.write(b"2") is False
    assert reader.read() == b"1"
    assert calls == ["empty", "full"]
    assert reader.read(timeout=0.01) == "nothing there", "with a timeout it waits first"
    writer.close()
    with pytest.raises(tailrace.EndOfFile):
        reader.read()
    reader.use_for()
    with pytest.raises(tailrace.EndOfFile):
        reader.read()

    def fail() -> None:
        raise RuntimeError("from the procedure")

    other, _ = programs.pair("OTHER")
    other.use_for(q_empty=fail)
    with pytest.raises(RuntimeError, match="from the procedure"):
        other.read()


# End of file


def test_the_life_of_an_end_of_file(programs):
    reader = programs.open()
    with pytest.raises(tailrace.QueueEmpty):
        reader.read(timeout=0)  # no writer yet is no end
    writer = programs.open(mode="output")
    writer.write(b"last")
    writer.close()
    assert reader.message_count() == 2, "the message and the end"
    assert reader.read() == b"last"
    assert (reader.message_count(), reader.insert_occurred, mcp.wait(0, reader)) == (1, True, 1)
    with pytest.raises(EOFError, match=r"last writer of MY\.Q is gone"):
        reader.read()
    assert (reader.message_count(), reader.insert_occurred, mcp.wait(0, reader)) == (0, False, 0)
    for _ in range(3):
        with pytest.raises(tailrace.EndOfFile):
            reader.read(timeout=0)
    assert not reader.abended
    # A new writer clears it.
    writer = programs.open(mode="output")
    with pytest.raises(tailrace.QueueEmpty):
        reader.read(timeout=0)
    writer.write(b"more")
    assert reader.read() == b"more"
    writer.close()
    with pytest.raises(tailrace.EndOfFile):
        reader.read()
    # And so does reopening.
    again = programs.open()
    reader.close()
    with pytest.raises(tailrace.QueueEmpty):
        again.read(timeout=0)


def test_a_for_loop_reads_to_the_end(programs):
    reader, writer = programs.pair(max_messages=2, buffers=2)
    with writer:
        thread = threading.Thread(target=lambda: [writer.write(b"%d" % n) for n in range(100)])
        thread.start()
        got = [next(reader) for _ in range(100)]
        thread.join()
    assert got == [b"%d" % n for n in range(100)]
    assert list(reader) == []
    with pytest.raises(StopIteration):
        next(reader)


def test_an_old_queue_file_gives_end_of_file_for_empty(programs):
    old = programs.open(device=62)
    new, _writer = programs.pair()
    with pytest.raises(tailrace.EndOfFile, match="old queue file"):
        old.read()
    with pytest.raises(tailrace.QueueEmpty):
        new.read(timeout=0)
    assert (old.parameters.device, new.parameters.device) == (62, 61)
    with pytest.raises(ValueError, match=r"61 \(new\) or 62 \(old\), not 60"):
        programs.open(device=60)


# Families


def test_a_family_is_keyed_from_one(programs):
    reader, writer = programs.pair("MY.QFF", family_size=3, max_messages=10, buffers=2)
    for key in (3, 2, 3):
        writer.write(b"to %d" % key, key=key)
    assert reader.message_count() == [0, 1, 2]
    assert reader.read(key=0) == b"to 2", "the first member that is not empty"
    assert reader.read() == b"to 3"
    with pytest.raises(tailrace.QueueEmpty):
        reader.read(key=1, timeout=0)
    assert reader.read(key=3) == b"to 3"
    for key in (4, -1, 2**40):
        with pytest.raises(tailrace.InvalidKey, match="1 to 3"):
            reader.read(key=key)
    for key in (0, None, 4):
        with pytest.raises(KeyError):
            writer.write(b"x", key=key)
    assert [q["name"] for q in mcp.queues(programs.system)] == [f"MY.QFF/###0000000{n}" for n in (1, 2, 3)]
    single, _ = programs.pair()
    with pytest.raises(tailrace.InvalidKey, match="single queue has no keys"):
        single.read(key=1)


def test_the_end_of_a_family(programs):
    reader, writer = programs.pair("MY.QFF", family_size=2)
    writer.write(b"x", key=2)
    writer.close()
    assert reader.message_count() == [1, 2]
    with pytest.raises(tailrace.EndOfFile):
        reader.read(key=1)
    assert reader.message_count() == [0, 2]
    assert reader.read(key=0) == b"x", "not all members are at their end"
    with pytest.raises(tailrace.EndOfFile):
        reader.read(key=0)
    assert reader.message_count() == [0, 0]


def test_sdl_keys_count_from_zero(programs):
    reader, writer = programs.pair("MY.QFF", family_size=3, sdl_keys=True)
    writer.write(b"first", key=0)
    writer.write(b"last", key=2)
    assert programs.open("MY.QFF").message_count() == [1, 0, 1], "the external names still count from 1"
    assert reader.read(key=2) == b"last"
    assert reader.read(key=-1) == b"first"
    writer.write(b"again", key=1)
    assert reader.read(key=0xFFFFFF) == b"again", "the complement of a 24-bit zero"
    for key in (3, -2):
        with pytest.raises(tailrace.InvalidKey, match="0 to 2"):
            reader.read(key=key)
    with pytest.raises(tailrace.InvalidKey):
        writer.write(b"x", key=-1)


def test_message_count_as_the_result_field(programs):
    reader, writer = programs.pair("MY.QFF", family_size=3, max_messages=300, buffers=300)
    writer.put_many([b"x"] * 258, key=1)
    writer.put(b"y", key=3)
    assert reader.message_count_field(72) == bytes([0, 1, 2, 0, 0, 0, 0, 0, 1])
    assert reader.message_count_field(72, decimal=True) == b"258000001"
    assert reader.message_count_field(24, decimal=True) == b"258"
    assert reader.message_count_field(12) == bytes([0, 0]), "cut within a count"
    assert reader.message_count_field(23) == bytes([0, 1, 2])
    assert reader.message_count_field(0) == b""
    assert reader.message_count_field(1000) == reader.message_count_field(72)


# WAIT


def test_wait_gives_the_place_of_the_event(programs):
    one, to_one = programs.pair("ONE")
    two, to_two = programs.pair("TWO")
    assert mcp.wait(0, one, two) == 0
    assert mcp.wait(0.03, one, two) == 0
    to_two.write(b"x")
    assert mcp.wait(10, one, two) == 2
    assert mcp.wait(None, two, one) == 1
    to_one.write(b"x")
    assert mcp.wait(10.0, one, two) == 1, "the first in the list wins"
    two.read()
    to_two.close()
    assert mcp.wait(0, two) == 1, "the end is an event until it is taken"
    for wrong in ((), (None,), ("MY.Q",)):
        with pytest.raises((TypeError, ValueError)):
            mcp.wait(0, *wrong)
    with pytest.raises(ValueError, match="timeout"):
        mcp.wait(-1, one)


def test_wait_wakes_for_an_insert_into_any_system(programs, tmp_path):
    here, _ = programs.pair()
    elsewhere = Programs(tmp_path / "elsewhere")
    there, writer = elsewhere.pair()
    timer = threading.Timer(0.05, writer.write, [b"x"])
    timer.start()
    assert mcp.wait(20, here, there) == 2
    timer.join()
    for file in elsewhere.files:
        file.close()


# Holding


def test_held_messages_are_acknowledged_or_given_back(programs):
    reader, writer = programs.pair(max_messages=4, buffers=4)
    other = programs.open()
    writer.put_many([b"1", b"2", b"3", b"4"])
    held = reader.hold(3)
    assert [bytes(h) for h in held] == [h.data for h in held] == [b"1", b"2", b"3"]
    assert [(len(h), h.member) for h in held] == [(1, 1)] * 3
    assert repr(held[0]) == "<HeldMessage of 1 bytes from member 1>"
    assert (reader.message_count(), reader.counters["held"]) == (1, 3)
    with pytest.raises(tailrace.QueueFull):
        writer.write(b"5", timeout=0)  # they still take up room
    with pytest.raises(tailrace.MessageNotFound):
        other.acknowledge(held[0])
    with pytest.raises(tailrace.MessageNotFound, match="message 2 of 2"):
        reader.acknowledge([held[0].token, (0, 9, 9)])
    assert reader.counters["held"] == 3, "all or none"
    reader.acknowledge(held[1])
    reader.give_back([held[2], held[0].token])
    assert [other.read() for _ in range(3)] == [b"1", b"3", b"4"], "in their old order"
    with pytest.raises(tailrace.MessageNotFound):
        reader.acknowledge(held[1])
    with pytest.raises(TypeError, match="HeldMessage or its token"):
        reader.acknowledge(["nothing"])
    with pytest.raises(ValueError, match="named twice"):
        reader.give_back([held[0], held[0]])
    with pytest.raises(tailrace.QueueEmpty):
        reader.hold(timeout=0)
    writer.write(b"5")
    [last] = reader.hold(10, timeout=1)
    writer.close()
    with pytest.raises(tailrace.QueueEmpty):
        other.read(timeout=0)  # not at its end while somebody holds a message
    reader.acknowledge(last)
    with pytest.raises(tailrace.EndOfFile):
        reader.hold()
    assert reader.hold(0) == []
    reader.close()
    with pytest.raises(ValueError, match="named twice"):
        reader.acknowledge([held[0], held[0]])


def test_an_error_in_the_middle_leaves_nothing_in_unknown_hands(programs):
    file = programs.open(mode="input_output", max_messages=10, buffers=2, record_size=180)
    texts = [bytes([n]) * 180 for n in range(10)]
    file.put_many(texts)
    os.truncate(file.info()["parameters"]["disk"], 5 * 180)  # the first is in memory, so the last four are damaged
    held = file.hold(10, timeout=0)
    assert [h.data for h in held] == texts[:6]
    assert (file.qsize(), file.counters["held"]) == (4, 6)
    for _ in range(2):
        with pytest.raises(OSError, match="reading the queue disk"):
            file.hold(10, timeout=0)
    file.give_back(held)
    assert file.get_many(10, timeout=0) == texts[:6]
    with pytest.raises(OSError, match="reading the queue disk"):
        file.get_many(10, timeout=0)
    assert file.qsize() == 4


def test_closing_gives_back_what_is_held(programs):
    reader, writer = programs.pair()
    writer.put_many([b"1", b"2"])
    reader.hold(2)
    other = programs.open()
    reader.close()
    assert other.get_many(9) == [b"1", b"2"]
    assert other.counters["given_back"] == 2
