"""tailrace.mcp between programs: the document's figures, children, kills and the end that everybody sees."""

import multiprocessing
import os
import random
import signal
import threading
import time
from pathlib import Path

import pytest

import tailrace
from harness import Args, Oracle, Promise, Watchdog, Workers, payload
from tailrace import mcp

#: The programs of figure 1, as their cards say.
MY_Q = mcp.FileParameters.from_card("?FI MY.Q QUEUE Q.MAX.MESSAGES=20 BUFFERS=3 RECORD.SIZE=80;")
MY_QFF = mcp.FileParameters.from_card("?FILE MY.QFF QUEUE Q.MAX.MESSAGES=10 Q.FAMILY.SIZE=3 BUFFERS=2 RECORD.SIZE=80")


def _figure_1_writer(args: Args) -> None:
    with MY_Q.open("output", system=args["system"]) as file:
        args.ready()
        for text in ("MESSAGE 1", "MESSAGE 2", "MESSAGE 3"):
            file.write(text.encode())
        args.set_word(0, 1)
        args.wait_go()


def _figure_1_reader(args: Args) -> None:
    with MY_Q.open("input", system=args["system"]) as file:
        args.ready()
        args.wait_go()
        with Path(args["out"]).open("wb") as out:
            for record in file:
                out.write(record + b"\n")


def test_figure_1_two_programs_and_a_queue_of_three_messages(tmp_path):
    system, out = tmp_path / "system", tmp_path / "out"
    with Workers(tmp_path) as workers, Watchdog("figure 1", 60, workers):
        reader = workers.spawn(_figure_1_reader, system=str(system), out=str(out))
        writer = workers.spawn(_figure_1_writer, system=str(system))
        reader.wait_ready()
        writer.wait_ready()
        while not writer.word(0):
            time.sleep(0.001)
        [queue] = mcp.queues(system)
        assert (queue["name"], queue["messages"], queue["users"]) == ("MY.Q", 3, 2)
        assert (queue["writers"], queue["readers"], queue["in_memory"]) == (1, 1, 2), "the third is on its disk"
        writer.go()
        writer.expect_success(20)
        reader.go()
        reader.expect_success(20)
    assert out.read_bytes() == b"MESSAGE 1\nMESSAGE 2\nMESSAGE 3\n"
    assert mcp.queues(system) == []


def _member_writer(args: Args) -> None:
    with MY_QFF.open("output", system=args["system"]) as file:
        args.ready()
        for number in range(25):
            file.write(b"%d of member %d" % (number, args["key"]), key=args["key"])


def test_figure_2_a_family_of_three_members(tmp_path):
    system = tmp_path / "system"
    reader = MY_QFF.open("input", system=system)
    assert [q["name"] for q in mcp.queues(system)] == [f"MY.QFF/###0000000{key}" for key in (1, 2, 3)]
    with Workers(tmp_path) as workers, Watchdog("figure 2", 60, workers):
        writers = [workers.spawn(_member_writer, system=str(system), key=key) for key in (1, 2, 3)]
        for writer in writers:
            writer.wait_ready()
        got = list(reader)  # unspecific reads, to the end of all members
        for writer in writers:
            writer.expect_success(20)
    assert len(got) == 75
    for key in (1, 2, 3):
        mine = [record for record in got if record.endswith(b"member %d" % key)]
        assert mine == [b"%d of member %d" % (number, key) for number in range(25)]
    assert reader.message_count() == [0, 0, 0]
    reader.close()


def _burst(args: Args) -> None:
    with mcp.QueueFile.open("MY.QFF", "output", args["system"], sdl_keys=True) as file:
        args.ready()
        args.wait_go()
        for key, count in enumerate(args["counts"]):
            file.put_many([b"for %d" % key] * count, key=key)
        args.set_word(0, 1)
        while not args.stop_requested():
            time.sleep(0.001)


def test_the_message_count_example_of_section_8(tmp_path):
    """OPEN, WAIT (TIME.TENTHS(..), Q.INSERT.OCCURRED (MY.QFF)), CASE X, MESSAGE.COUNT into Q.MSG.COUNT(5) BIT(24)."""
    system = tmp_path / "system"
    parameters = mcp.FileParameters.from_sdl("FILE MY.QFF (DEVICE=QUEUE(10) FAMILY (5)\n ,BUFFERS=2, RECORDS=80);")
    counts = [2, 0, 3, 0, 1]
    taken: list[bytes] = []
    with Workers(tmp_path) as workers, Watchdog("section 8", 60, workers):
        my_qff = parameters.open("input", system=system, sdl_keys=True)
        writer = workers.spawn(_burst, system=str(system), counts=counts)
        writer.wait_ready()
        cases = []

        def time_out_procedure() -> None:
            cases.append("time out")
            writer.go()
            while not writer.word(0):
                time.sleep(0.001)

        def process_messages() -> None:
            cases.append("messages")
            put_it_here = my_qff.message_count_field(5 * 24)
            q_msg_count = [int.from_bytes(put_it_here[at : at + 3], "big") for at in range(0, 15, 3)]
            assert q_msg_count == my_qff.message_count() == counts
            for key, count in enumerate(q_msg_count):
                taken.extend(my_qff.read(key=key, timeout=0) for _ in range(count))

        for tenths in (1, 100):
            x = mcp.wait(tenths / 10, my_qff)
            (time_out_procedure, process_messages)[x]()
        assert cases == ["time out", "messages"]
        assert taken == [b"for %d" % key for key, count in enumerate(counts) for _ in range(count)]
        writer.request_stop()
        writer.expect_success(20)
        assert mcp.wait(100 / 10, my_qff) == 1, "the last writer's close is an event, too"
        assert my_qff.message_count() == [1] * 5
        with pytest.raises(tailrace.EndOfFile):
            my_qff.read(key=-1)
        my_qff.close()


def _double(jobs: mcp.QueueFile, answers: mcp.QueueFile) -> None:
    assert isinstance(jobs.message_count(), int)  # a user of both from here on
    answers.put(b"ready")
    for record in jobs:
        answers.put(record * 2)
    answers.close()


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_a_pipeline_of_children_ends_by_itself(tmp_path, method):
    def opened(name: str, mode: str) -> mcp.QueueFile:
        return mcp.QueueFile.open(name, mode, tmp_path, max_messages=5)

    jobs, answers = opened("JOBS", "output"), opened("ANSWERS", "input")
    ends = opened("JOBS", "input"), opened("ANSWERS", "output")
    context = multiprocessing.get_context(method)
    children = [context.Process(target=_double, args=ends) for _ in range(2)]
    for child in children:
        child.start()
    assert [answers.get(timeout=60) for _ in children] == [b"ready"] * 2
    for file in ends:
        file.close()

    def feed() -> None:
        with jobs:
            for n in range(100):
                jobs.put(b"%03d" % n)

    feeder = threading.Thread(target=feed)
    feeder.start()
    assert sorted(answers) == [b"%03d" % n * 2 for n in range(100)], (
        "to the end, which both children must have closed for"
    )
    feeder.join(20)
    for child in children:
        child.join(20)
        assert child.exitcode == 0
    assert not answers.abended
    answers.close()


def test_a_forked_child_is_a_user_of_its_own(tmp_path):
    reader = mcp.QueueFile.open("MY.Q", "input", tmp_path)
    writer = mcp.QueueFile.open("MY.Q", "output", tmp_path)
    up, down = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(down)
        writer.write(b"from the child")
        os.read(up, 1)  # until the parent has closed
        writer.write(b"again")
        os._exit(0)  # and dies without closing
    assert reader.read(timeout=20) == b"from the child"
    assert reader.counters["writers"] == 2
    writer.close()
    os.close(down)
    assert reader.read(timeout=20) == b"again", "the parent's close is not the end"
    with pytest.raises(tailrace.EndOfFile):
        reader.read(timeout=20)
    assert os.waitpid(child, 0)[1] == 0
    assert reader.abended
    reader.close()


def _write_for_ever(args: Args) -> None:
    file = MY_Q.open("output", system=args["system"])
    args.ready()
    number = 0
    while True:
        file.write(b"%d" % number)
        number += 1


def test_a_killed_writer_is_the_end_of_file(tmp_path, is_soak):
    system = tmp_path / "system"
    reader = MY_Q.open("input", system=system)
    worst = 0.0
    with Workers(tmp_path) as workers, Watchdog("killed writers", 280, workers):
        for _ in range(200 if is_soak else 15):
            writer = workers.fork(_write_for_ever, journal=1, system=str(system))
            writer.wait_ready()
            expected = 0
            for record in [reader.read(timeout=20) for _ in range(50)]:
                assert record == b"%d" % expected
                expected += 1
            assert not reader.abended, "the new writer begins in good order"
            writer.kill()
            killed = time.monotonic()
            for record in reader:
                assert record == b"%d" % expected
                expected += 1
            worst = max(worst, time.monotonic() - killed)
            assert reader.abended
    assert worst < 10, "a hang limit, not a measurement"
    assert mcp.counters(system)["users"] == 1, "no user is left over"
    reader.close()


def _produce(args: Args) -> None:
    q, journal = tailrace.open(args["url"], mode="output", **args["shape"]), args.journal()
    args.ready()
    sequence = 0
    while not args.stop_requested():
        message = payload.make(args["id"], sequence, (60, 300, 5000)[sequence % 3])
        ticket = journal.attempt_put(0, message)
        try:
            q.put(message, timeout=0.05)
        except tailrace.QueueFull:
            journal.failed(ticket)
        else:
            journal.acknowledged(ticket)
        sequence += 1


def _consume(args: Args) -> None:
    q, journal = tailrace.open(args["url"], mode="input", **args["shape"]), args.journal()
    args.ready()
    while not args.stop_requested():
        ticket = journal.attempt_get(0)
        try:
            held = q.hold(3, timeout=0.05)
        except (tailrace.QueueEmpty, tailrace.EndOfFile):
            journal.nothing(ticket)
            continue
        journal.nothing(ticket)
        for message in held:
            who = journal.got(journal.attempt_get(0), message.data)
            ticket = journal.attempt_ack(0, who)
            q.acknowledge(message)
            journal.acknowledged(ticket)


@pytest.mark.timeout(300)
def test_killed_writers_and_holders_lose_nothing(tmp_path, is_soak):
    url, shape = (
        f"mcp:{tmp_path / 'system'}#JOBS",
        {"max_messages": 30, "buffers": 6, "record_size": 5000, "keep": True},
    )
    dice = random.Random(6)
    kills = 200 if is_soak else 25
    with Workers(tmp_path) as workers, Watchdog("killed mcp workers", 280, workers):
        alive, everybody = [], []

        def start(place: int) -> None:
            body = (_produce, _consume)[place % 2]
            worker = workers.fork(body, journal=400_000, url=url, id=len(everybody), shape=shape)
            worker.wait_ready()
            everybody.append(worker)
            alive[place : place + 1] = [worker]

        for place in range(4):
            start(place)
        for _ in range(kills):
            time.sleep(dice.uniform(0, 0.02))
            place = dice.randrange(4)
            alive[place].kill()
            start(place)
        # Opened while there are writers: whoever else takes the end of file, it stays for this reader.
        with tailrace.open(url, mode="input") as q:
            for worker in alive:
                worker.request_stop()
            for worker in alive:
                worker.expect_success(20)
            left = list(q)
            with pytest.raises(tailrace.EndOfFile):
                q.read(timeout=0)
            # Opened after the end was taken: this reader waits for the next writer.
            with tailrace.open(url, mode="input") as late:
                assert late.message_count() == 0
                with pytest.raises(tailrace.QueueEmpty):
                    late.read(timeout=0)
            q.forget()
        oracle = Oracle(Promise.until_acked()).left(0, left)
        for worker in everybody:
            oracle.journal(worker.records())
        oracle.check().assert_ok(f"{kills} kills")
    assert mcp.queues(tmp_path / "system") == []


def _wait_for_ever(args: Args) -> None:
    file = MY_Q.open("input", system=args["system"])
    args.ready()
    try:
        file.read()
    except KeyboardInterrupt:
        args.set_word(0, 1)


def test_ctrl_c_ends_a_waiting_program(tmp_path):
    with Workers(tmp_path) as workers, Watchdog("ctrl-c", 60, workers):
        reader = workers.spawn(_wait_for_ever, system=str(tmp_path / "system"))
        reader.wait_ready()
        time.sleep(0.05)
        reader.send(signal.SIGINT)
        reader.expect_success(20)
        assert reader.word(0) == 1
