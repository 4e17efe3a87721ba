"""The Python test machinery on trial: each check must fail when it should."""

import os
import signal
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

from harness import (
    Args,
    Delivery,
    Hang,
    Journal,
    Losses,
    Op,
    Oracle,
    Order,
    Promise,
    Record,
    Report,
    State,
    Watchdog,
    Worker,
    Workers,
    payload,
    read,
)

# The same constants are in tests/testkit_selftest.rs: make(3, 99, 37), and the first words of its put on queue 5.
RUST_MESSAGE = "25000000030000006300000000000000196b2f500e35b9fab0b4775ae4c4689af14fd87c6d"
RUST_RECORD = "01020500030000006300000000000000196b2f5025000000"

Start = Callable[[Workers], Callable[..., Worker]]
both_ways = pytest.mark.parametrize("start", [lambda w: w.spawn, lambda w: w.fork], ids=["spawn", "fork"])


@pytest.fixture
def scratch(tmp_path: Path) -> Path:
    path = tmp_path / "scratch"
    path.mkdir()
    return path


def counter(args: Args) -> None:
    journal = args.journal()
    args.ready()
    args.wait_go()
    sequence = 0
    while not args.stop_requested():
        with journal.put(0, payload.make(args["id"], sequence, 64)):
            args.set_word(0, sequence + 1)
        sequence += 1


def raises(args: Args) -> None:
    args.ready()
    msg = f"planted error {args['why']}"
    raise ValueError(msg)


def hangs_here(args: Args) -> None:
    args.ready()
    time.sleep(120)


@both_ways
def test_a_killed_worker_leaves_its_journal_behind(start: Start, scratch: Path) -> None:
    with Workers(scratch) as workers, Watchdog("killed worker", 60, workers):
        for round_number in range(3):
            worker = start(workers)(counter, id=round_number)
            worker.wait_ready()
            worker.go()
            while worker.word(0) < 50:
                time.sleep(0.001)
            assert worker.kill() == -signal.SIGKILL
            records = worker.records()
            acked = sum(r.state is State.ACKNOWLEDGED for r in records)
            attempted = sum(r.state is State.ATTEMPT for r in records)
            assert attempted <= 1
            assert acked <= worker.word(0) <= acked + attempted
            assert all(r[:1] + r[3:5] == (Op.PUT, round_number, i) for i, r in enumerate(records))


@both_ways
def test_stop_continue_and_a_clean_end(start: Start, scratch: Path) -> None:
    with Workers(scratch) as workers, Watchdog("stopped worker", 60, workers):
        worker = start(workers)(counter, id=1)
        worker.wait_ready()
        worker.go()
        while worker.word(0) < 5:
            time.sleep(0.001)
        worker.stop()
        frozen = worker.word(0)
        time.sleep(0.05)
        assert worker.word(0) == frozen
        worker.cont()
        while worker.word(0) == frozen:
            time.sleep(0.001)
        worker.request_stop()
        worker.expect_success(20)


@both_ways
def test_an_error_in_a_worker_shows_its_traceback(start: Start, scratch: Path) -> None:
    with Workers(scratch) as workers:
        worker = start(workers)(raises, why="on purpose")
        assert worker.wait(20) == 101
        assert "ValueError: planted error on purpose" in worker.stderr()
        with pytest.raises(AssertionError, match="planted error"):
            worker.expect_success(1)


@both_ways
def test_the_watchdog_turns_a_hang_into_stacks(start: Start, scratch: Path) -> None:
    with Workers(scratch) as workers:
        worker = start(workers)(hangs_here)
        worker.wait_ready()
        with pytest.raises(Hang) as caught, Watchdog("deliberate hang", 0.3, workers):
            time.sleep(60)
        text = str(caught.value)
        assert "deliberate hang still ran after 0.3 s" in text
        assert "in hangs_here" in text
        assert "in test_the_watchdog_turns_a_hang_into_stacks" in text
        assert worker.wait(5) == -signal.SIGKILL


def test_a_watchdog_that_is_not_needed_does_nothing(scratch: Path) -> None:
    before = threading.active_count()
    with Workers(scratch) as workers, Watchdog("quick", 30, workers):
        pass
    time.sleep(0.05)
    assert threading.active_count() == before


def test_no_worker_is_left_behind(scratch: Path) -> None:
    started: list[Worker] = []

    def fails() -> None:
        with Workers(scratch) as workers:
            started.append(workers.fork(hangs_here))
            started[0].wait_ready()
            raise KeyError

    with pytest.raises(KeyError):
        fails()
    with pytest.raises(ProcessLookupError):
        os.kill(started[0].pid, 0)


def test_payloads_and_journals_are_those_of_the_rust_side(scratch: Path) -> None:
    message = payload.make(3, 99, 37)
    assert message.hex() == RUST_MESSAGE
    path = scratch / "journal"
    Journal.create(path, 1)
    journal = Journal(path)
    with journal.put(5, message):
        pass
    journal.close()
    assert path.read_bytes()[64:88].hex() == RUST_RECORD


def test_payloads_show_damage() -> None:
    for length in (20, 21, 28, 100):
        good = payload.make(3, 99, length)
        assert payload.parse(good)[:2] == (3, 99)
        for bit in range(length * 8):
            bad = bytearray(good)
            bad[bit // 8] ^= 1 << bit % 8
            with pytest.raises(payload.Torn):
                payload.parse(bytes(bad))
        assert payload.parse(good + bytes(9), padded=True).length == length
        with pytest.raises(payload.Torn):
            payload.parse(good + bytes(9))
        with pytest.raises(payload.Torn):
            payload.parse(good + b"\0\1", padded=True)


def message(sequence: int) -> bytes:
    return payload.make(1, sequence, 40)


def messages(sequences: Iterable[int]) -> list[bytes]:
    return [message(sequence) for sequence in sequences]


def journal_of(path: Path, act: Callable[[Journal], None]) -> list[Record]:
    Journal.create(path, 100)
    journal = Journal(path)
    act(journal)
    journal.close()
    return read(path)


def producer_records(scratch: Path, acked: int = 10) -> list[Record]:
    def act(journal: Journal) -> None:
        for sequence in range(acked):
            with journal.put(0, message(sequence)):
                pass
        journal.attempt_put(0, message(acked))

    return journal_of(scratch / "producer", act)


def consumer_records(path: Path, got: Iterable[bytes], *, interrupted: bool = False) -> list[Record]:
    def act(journal: Journal) -> None:
        for data in got:
            journal.got(journal.attempt_get(0), data)
        if interrupted:
            journal.attempt_get(0)

    return journal_of(path, act)


def judge(
    scratch: Path,
    promise: Promise,
    got: Iterable[bytes],
    left: Iterable[bytes] = (),
    *,
    interrupted: bool = False,
) -> Report:
    for old in scratch.iterdir():
        old.unlink()
    oracle = Oracle(promise).journal(producer_records(scratch))
    return oracle.journal(consumer_records(scratch / "consumer", got, interrupted=interrupted)).left(0, left).check()


def only(report: Report, kind: str) -> None:
    assert list(report.offences()) == [kind], str(report)
    with pytest.raises(AssertionError, match=kind):
        report.assert_ok("planted")


def test_journal_takes_back_empty_polls_and_refuses_overflow(scratch: Path) -> None:
    path = scratch / "journal"
    Journal.create(path, 2)
    journal = Journal(path)
    for _ in range(100):
        journal.nothing(journal.attempt_get(0))
    with pytest.raises(KeyError), journal.put(3, message(0)):
        raise KeyError
    journal.got(journal.attempt_get(3), b"garbage")
    with pytest.raises(RuntimeError, match="full after 2"):
        journal.attempt_get(0)
    journal.close()
    assert [r[:3] for r in read(path)] == [(Op.PUT, State.FAILED, 3), (Op.GET, State.CORRUPT, 3)]


def test_oracle_passes_clean_histories(scratch: Path) -> None:
    for last in (10, 11):
        report = judge(scratch, Promise.exactly_once(), messages(range(6)), messages(range(6, last)))
        report.assert_ok("clean")
        assert (report.acked, report.attempted, report.got) == (10, 1, 6)


def test_oracle_finds_losses(scratch: Path) -> None:
    got = messages([0, 1, 2, 4, 5, 6, 7, 8, 9])
    only(judge(scratch, Promise.exactly_once(), got), "lost")
    only(judge(scratch, Promise.at_most_once(), got), "lost")
    judge(scratch, Promise.at_most_once(), got, interrupted=True).assert_ok("excused")
    only(judge(scratch, Promise.at_most_once(), got[1:], interrupted=True), "lost")
    judge(scratch, Promise.exactly_once()._replace(losses=2), got[1:]).assert_ok("two allowed")
    only(judge(scratch, Promise.exactly_once()._replace(losses=1), got[1:]), "lost")


def test_oracle_finds_duplicates(scratch: Path) -> None:
    twice = messages([0, 1, 2, 3, 3, 4, 5, 6, 7, 8, 9])
    only(judge(scratch, Promise.exactly_once(), twice), "duplicates")
    only(judge(scratch, Promise.exactly_once(), messages(range(8)), messages(range(7, 10))), "duplicates")
    report = judge(scratch, Promise.exactly_once()._replace(delivery=Delivery.REPEATABLE), twice)
    report.assert_ok("repeats allowed")
    assert report.redelivered == 1


def test_oracle_finds_reordering(scratch: Path) -> None:
    swapped, rest = messages([0, 1, 3, 2, 4, 5]), messages(range(6, 10))
    only(judge(scratch, Promise.exactly_once(), swapped, rest), "reordered")
    only(judge(scratch, Promise.exactly_once(), messages(range(6)), messages([7, 6, 8, 9])), "reordered")
    only(judge(scratch, Promise.exactly_once(), messages([0, 1, 2, 3, 4, 6]), messages([5, 7, 8, 9])), "reordered")
    judge(scratch, Promise.exactly_once()._replace(order=Order.ANY), swapped, rest).assert_ok("any order")
    first = Promise.exactly_once()._replace(order=Order.FIRST_DELIVERY)
    only(judge(scratch, first, swapped, rest), "reordered")
    judge(scratch, first, swapped, rest, interrupted=True).assert_ok("one straggler excused")


def test_oracle_finds_inventions_and_damage(scratch: Path) -> None:
    only(judge(scratch, Promise.exactly_once(), [*messages(range(10)), message(77)]), "unexpected")
    forgiving = Promise.exactly_once()._replace(losses=Losses.ANY)
    damaged = bytearray(message(9))
    damaged[30] ^= 1
    only(judge(scratch, forgiving, [*messages(range(9)), bytes(damaged)]), "corrupt")
    only(judge(scratch, forgiving, messages(range(9)), [bytes(damaged)]), "corrupt")
    only(judge(scratch, Promise.exactly_once(), [*messages(range(9)), payload.make(1, 9, 41)]), "wrong_crc")
    records = journal_of(scratch / "fails", lambda journal: journal.failed(journal.attempt_put(0, message(0))))
    only(Oracle(Promise.exactly_once()).journal(records).left(0, messages([0])).check(), "unexpected")


def test_until_acked_allows_redelivery_before_the_ack_and_never_after(scratch: Path) -> None:
    def acking(name: str, first: int, last: int) -> list[Record]:
        def act(journal: Journal) -> None:
            for sequence in range(first, last + 1):
                identity = journal.got(journal.attempt_get(0), message(sequence))
                assert identity is not None
                if sequence < last:
                    with journal.ack(0, identity):
                        pass

        return journal_of(scratch / name, act)

    put, first = producer_records(scratch), acking("first", 0, 5)

    def oracle() -> Oracle:
        return Oracle(Promise.until_acked()).journal(put).journal(first)

    oracle().left(0, messages(range(5, 10))).check().assert_ok("5 was not acked and is left")
    oracle().journal(acking("second", 5, 9)).left(0, messages([9])).check().assert_ok("5 came back")
    only(oracle().left(0, messages(range(6, 10))).check(), "lost")
    only(oracle().left(0, messages(range(4, 10))).check(), "duplicates")
    only(oracle().journal(acking("third", 4, 9)).left(0, messages([9])).check(), "duplicates")


def test_long_lists_that_differ_are_told_in_a_few_lines(request: pytest.FixtureRequest) -> None:
    def told(left: object, right: object) -> str:
        answers = request.config.hook.pytest_assertrepr_compare(config=request.config, op="==", left=left, right=right)
        return "\n".join(answers[0])

    rows = [b"%064d" % number for number in range(20_000)]
    text = told([*rows[:5_000], *rows[5_001:]], rows)
    assert "19999 and 20000 elements" in text
    assert f"first difference at 5000: {rows[5_001]!r} and {rows[5_000]!r}" in text
    assert f"only on the left: 0, such as []\nonly on the right: 1, such as [{rows[5_000]!r}]" in text
    assert len(told(rows[::-1], rows)) < 2_000
