"""The sources of aq, conq and mcp, whose messages stay in the hands of the driver until Spark commits."""

import dataclasses
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark")

import pyarrow as pa

from spark_support import eventually, feed, messages, rows, through_json
from tailrace import (
    FormatError,
    aq,
    conq,
    mcp,
    ring,
)
from tailrace.spark.columns import Columns, offered
from tailrace.spark.queues import Limits

pytestmark = pytest.mark.spark


@pytest.fixture(params=["aq", "conq", "mcp"])
def held(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[str, Any]]:
    """A queue whose messages stay in the hands of the driver, and a way to put some."""
    if request.param == "aq":
        with aq.Queue.create(tmp_path / "aq", size=1 << 16) as queue:
            yield f"aq:{tmp_path / 'aq'}", queue
    elif request.param == "conq":
        manager = conq.QueueManager.open(tmp_path / "system")
        manager.create_queue("jobs")
        yield f"conq:{tmp_path / 'system'}#jobs", manager.queue("jobs")
    else:
        opened = {"system": tmp_path / "system", "max_messages": 2_000, "record_size": 80, "keep": True}
        with mcp.QueueFile.open("MY.Q", "output", **opened) as file:
            yield f"mcp:{tmp_path / 'system'}#MY.Q", file


def brief(url: str) -> Any:
    """Give a reader whose leases are shorter than users may have them."""
    reader = feed(url)
    reader.options = dataclasses.replace(reader.options, lease_seconds=1.0)
    return reader


def die(reader: Any) -> None:
    """Be gone as a killed process is: nobody says anything to the queue, and its files are closed."""
    renewal = reader.handles.pop("renewal", None)
    if renewal is not None:
        renewal.is_over.set()
        renewal.thread.join()
    reader.close()


def test_messages_in_hand_are_removed_by_the_commit_alone(held: tuple[str, Any]) -> None:
    url, queue = held
    queue.put_many(pa.array(messages(0, 100), pa.binary()))
    reader = feed(url)
    start = reader.initial()
    end = through_json(reader.advance(start, reader.horizon(), Limits(rows=60)))
    parts = reader.plan(start, end)
    assert rows(reader, parts) == messages(0, 60)
    assert rows(reader, reader.plan(start, end)) == messages(0, 60), "as often as Spark likes"
    following = through_json(reader.advance(end, reader.horizon(), Limits()))
    reader.commit(end)
    assert rows(reader, reader.plan(end, following)) == messages(60, 40)
    assert reader.advance(following, reader.horizon(), Limits()) == following
    reader.commit(following)
    assert queue.qsize() == 0


def test_an_available_now_query_ends_though_producers_go_on(held: tuple[str, Any]) -> None:
    url, queue = held
    queue.put_many(messages(0, 10))
    reader = feed(url)
    start, stop = reader.initial(), reader.freeze()
    end = reader.advance(start, stop, Limits(rows=6))
    queue.put_many(messages(10, 10))
    last = reader.advance(end, stop, Limits(rows=6))
    assert rows(reader, reader.plan(start, end)) == messages(0, 6)
    assert rows(reader, reader.plan(end, last)) == messages(6, 4)
    assert reader.advance(last, stop, Limits()) == last


def test_a_new_driver_gets_what_the_dead_one_had_in_hand(held: tuple[str, Any]) -> None:
    url, queue = held
    queue.put_many(messages(0, 50))
    dead = brief(url)
    start = dead.initial()
    end = through_json(dead.advance(start, dead.horizon(), Limits(rows=30)))
    dead.plan(start, end)
    if url.startswith("conq:"):
        time.sleep(1.5)
        assert queue.stats().leased == 30, "renewed"
    die(dead)
    if url.startswith("conq:"):
        eventually(lambda: queue.stats().ready + queue.stats().expired == 50, 10)
    heir = brief(url)
    assert rows(heir, heir.plan(start, end)) == messages(0, 30)
    last = heir.advance(end, heir.horizon(), Limits())
    heir.commit(end)
    assert rows(heir, heir.plan(end, last)) == messages(30, 20)


def test_another_beginning_than_the_earliest_is_refused(held: tuple[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"startingOffsets is 'latest', but '.*' can only be read from the earliest"):
        feed(held[0], startingOffsets="latest").initial()


def test_batch_reads_leave_everything_where_it_is(held: tuple[str, Any]) -> None:
    url, queue = held
    queue.put_many(messages(0, 20))
    reader = feed(url)
    parts = reader.snapshot()
    assert rows(reader, parts) == messages(0, 20)
    assert queue.qsize() == 20
    stream = feed(url)
    start = stream.initial()
    end = stream.advance(start, stream.horizon(), Limits(rows=7))
    assert rows(reader, reader.snapshot()) == messages(0, 20), "those in hand, too"
    assert rows(stream, stream.plan(start, end)) == messages(0, 7), "and they stay in hand"
    stream.commit(end)
    assert rows(reader, reader.snapshot()) == messages(7, 13)
    assert rows(reader, parts) == messages(0, 20), "a snapshot stays what it is"


def test_what_the_last_micro_batch_had_done_does_not_come_again(held: tuple[str, Any]) -> None:
    url, queue = held
    queue.put_many(messages(0, 50))
    first = brief(url)
    start = first.initial()
    end = through_json(first.advance(start, first.horizon(), Limits(rows=30)))
    assert rows(first, first.plan(start, end)) == messages(0, 30)
    # The query ends without a commit, as every availableNow does.
    first.close()
    if url.startswith("conq:"):
        assert queue.stats().leased == 0, "given back at once"
    second = brief(url)
    last = through_json(second.advance(end, second.horizon(), Limits()))
    assert rows(second, second.plan(end, last)) == messages(30, 20)
    second.commit(last)
    assert queue.qsize() == 0


def test_what_is_done_is_known_over_several_short_lives(held: tuple[str, Any]) -> None:
    """As of a query that is run again and again with availableNow, faster than leases end."""
    url, queue = held
    offset, found = feed(url).initial(), []
    for life in range(3):
        queue.put_many(messages(10 * life, 10))
        reader = brief(url)
        end = through_json(reader.advance(offset, reader.horizon(), Limits()))
        found += rows(reader, reader.plan(offset, end))
        offset = end
        die(reader)
    assert found == messages(0, 30)
    if url.startswith("conq:"):
        assert offset["done"] == [[0, 19]]
        eventually(lambda: queue.stats().ready + queue.stats().expired == 30, 10)
    last = brief(url)
    assert last.advance(offset, last.horizon(), Limits()) == offset
    assert queue.qsize() == 0 or url.startswith("aq:")


def test_a_driver_that_died_before_it_said_what_was_done_leaves_nothing_to_come_again(held: tuple[str, Any]) -> None:
    url, queue = held
    queue.put_many(messages(0, 50))
    dead = brief(url)
    start = dead.initial()
    done = through_json(dead.advance(start, dead.horizon(), Limits(rows=20)))
    # Spark has noted where the next one ends, and was killed before it let go of the one before.
    end = through_json(dead.advance(done, dead.horizon(), Limits(rows=20)))
    die(dead)
    if url.startswith("conq:"):
        eventually(lambda: queue.stats().ready + queue.stats().expired == 50, 10)
    heir = brief(url)
    assert rows(heir, heir.plan(done, end)) == messages(20, 20)
    last = through_json(heir.advance(end, heir.horizon(), Limits()))
    heir.commit(end)
    assert rows(heir, heir.plan(end, last)) == messages(40, 10)
    heir.commit(last)
    assert queue.qsize() == 0


def test_an_available_now_query_knows_what_was_done_before_the_micro_batch_that_it_replays(
    held: tuple[str, Any],
) -> None:
    url, queue = held
    queue.put_many(messages(0, 50))
    dead = brief(url)
    start = dead.initial()
    done = through_json(dead.advance(start, dead.horizon(), Limits(rows=20)))
    end = through_json(dead.advance(done, dead.horizon(), Limits(rows=20)))
    die(dead)
    if url.startswith("conq:"):
        eventually(lambda: queue.stats().ready + queue.stats().expired == 50, 10)
    heir = brief(url)
    # It takes everything before it hears of the micro-batches.
    horizon = heir.freeze()
    assert rows(heir, heir.plan(done, end)) == messages(20, 20)
    last = through_json(heir.advance(end, horizon, Limits()))
    heir.commit(end)
    assert rows(heir, heir.plan(end, last)) == messages(40, 10)
    heir.commit(last)
    assert queue.qsize() == 0 or url.startswith("aq:")


def test_a_replayed_micro_batch_has_its_own_messages_though_others_come_first(held: tuple[str, Any]) -> None:
    url, queue = held
    queue.put_many(messages(0, 20))
    dead = brief(url)
    start = dead.initial()
    end = through_json(dead.advance(start, dead.horizon(), Limits(rows=20)))
    # Its hands are empty when it is gone; with conq, what is new can be read before what it had comes back.
    die(dead)
    queue.put_many(messages(20, 20))
    heir = brief(url)
    assert rows(heir, heir.plan(start, end)) == messages(0, 20)
    last = heir.advance(end, heir.horizon(), Limits())
    heir.commit(end)
    assert rows(heir, heir.plan(end, last)) == messages(20, 20)


def test_spark_before_4_2_does_not_tell_the_start(held: tuple[str, Any]) -> None:
    url, queue = held
    queue.put_many(messages(0, 10))
    reader = brief(url)
    start = reader.initial()
    end = through_json(reader.advance(None, reader.horizon(), Limits()))
    assert rows(reader, reader.plan(start, end)) == messages(0, 10)
    assert reader.advance(None, reader.horizon(), Limits()) == end, "nothing new is no micro-batch"
    queue.put_many(messages(10, 5))
    following = through_json(reader.advance(None, reader.horizon(), Limits()))
    assert rows(reader, reader.plan(end, following)) == messages(10, 5)
    reader.close()
    queue.put_many(messages(15, 5))
    if url.startswith("conq:"):
        eventually(lambda: queue.stats().ready + queue.stats().expired == 20, 10)
    heir = brief(url)
    last = through_json(heir.advance(None, heir.horizon(), Limits()))
    again = rows(heir, heir.plan(following, last))
    assert set(messages(15, 5)) <= set(again)
    assert not set(messages(10, 5)) & set(again), "the start of the plan tells what was done"


def test_the_checkpoint_of_another_queue_is_refused(held: tuple[str, Any]) -> None:
    url, _ = held
    reader = feed(url)
    other = reader.initial() | {"queue": "/elsewhere"}
    with pytest.raises(FormatError, match="use a checkpoint of its own for each queue"):
        reader.advance(other, reader.horizon(), Limits())
    with pytest.raises(FormatError, match="the checkpoint belongs to another source"):
        reader.advance({"sequence": 4}, reader.horizon(), Limits())


@pytest.mark.parametrize("kind", ["aq", "conq", "mcp", "ring"])
def test_a_queue_that_was_made_anew_in_its_place_is_not_taken_for_the_old_one(kind: str, tmp_path: Path) -> None:
    """Its numbers begin again: what it holds would be taken for done."""
    place = tmp_path / "place"
    url = f"{kind}:{place}" + {"conq": "#jobs", "mcp": "#MY.Q"}.get(kind, "")

    def made(first: int) -> Any:
        if kind == "aq":
            queue: Any = aq.Queue.create(place, size=1 << 16)
        elif kind == "ring":
            queue = ring.Queue.create(place, max_len=100, msg_size=1)
        elif kind == "conq":
            manager = conq.QueueManager.open(place)
            manager.create_queue("jobs")
            queue = manager.queue("jobs")
        else:
            queue = mcp.QueueFile.open("MY.Q", "output", system=place, max_messages=100, record_size=80, keep=True)
        queue.put_many(messages(first, 10))
        return queue

    old, reader = made(0), feed(url)
    start = reader.initial()
    end = through_json(reader.advance(start, reader.horizon(), Limits()))
    reader.close()
    if kind == "conq":
        manager = conq.QueueManager.open(place)
        manager.delete_queue(manager.get_queue("jobs"))
    else:
        # Under another name its number is not given to the new one.
        place.rename(tmp_path / "old")
    new = made(10)
    with pytest.raises(FormatError, match="is not the queue that this checkpoint was made with"):
        feed(url).advance(end, feed(url).horizon(), Limits())
    with pytest.raises(FormatError, match="use a checkpoint of its own for each queue"):
        feed(url).plan(start, end)
    assert new.qsize() == 10, "and nothing is lost"
    del old


def test_an_aq_micro_batch_ends_before_an_item_that_is_being_written(tmp_path: Path) -> None:
    with aq.Queue.create(tmp_path / "aq", size=1 << 16) as queue:
        queue.put_many(messages(0, 5))
        writer = queue.writer()
        item = writer.claim(8)
        queue.put_many(messages(6, 5))
        reader = feed(f"aq:{tmp_path / 'aq'}")
        start = reader.initial()
        end = through_json(reader.advance(start, reader.horizon(), Limits()))
        assert rows(reader, reader.plan(start, end)) == messages(0, 5)
        assert reader.advance(end, reader.horizon(), Limits()) == end
        item.write(messages(5, 1)[0])
        assert writer.commit(item)
        following = through_json(reader.advance(end, reader.horizon(), Limits()))
        reader.commit(end)
        assert rows(reader, reader.plan(end, following)) == messages(5, 6)
        reader.commit(following)
        assert queue.qsize() == 0


def test_an_aq_item_that_was_shown_unfinished_comes_again_when_it_is_committed(tmp_path: Path) -> None:
    url = f"aq:{tmp_path / 'aq'}"
    with aq.Queue.create(tmp_path / "aq", size=4096, commit_timeout=0.01) as queue:
        writer = queue.writer()
        item = writer.claim(8)
        item.write(b"the late")
        # Little room: the document lets expired claims be handed out.
        while not queue.full():
            queue.put(b"x" * 60, timeout=0)
        reader = feed(url)
        start = reader.initial()
        eventually(lambda: reader.advance(start, reader.horizon(), Limits())["position"] > 0, 10)
        end = through_json(reader.advance(start, reader.horizon(), Limits()))
        columns = Columns("aq", offered("aq"))
        batches = [batch for part in reader.plan(start, end) for batch in reader.read(part, columns)]
        shown = [row for batch in batches for row in batch.to_pylist()]
        assert [row["committed"] for row in shown] == [False] + [True] * (len(shown) - 1)
        assert end["incomplete"] == [0]
        # Its writer was only slow.
        assert writer.commit(item)
        reader.commit(end)
        following = through_json(reader.advance(end, reader.horizon(), Limits()))
        assert following["late"] == [0]
        assert rows(reader, reader.plan(end, following)) == [b"the late"]
        reader.close()
        heir = feed(url)
        assert rows(heir, heir.plan(end, following)) == [b"the late"], "a new driver, too"
        last = heir.advance(following, heir.horizon(), Limits())
        heir.commit(following)
        assert last["position"] == following["position"]
        assert queue.qsize() == 0
