"""The durable queue from Python."""

import multiprocessing
import os
import pickle
import queue
import signal
import threading
import time
from pathlib import Path

import pytest

import tailrace
from tailrace import qewqew


@pytest.fixture
def path(tmp_path):
    return tmp_path / "q"


@pytest.fixture(params=["always", "group", "never"])
def durable(request, path):
    with qewqew.DurableQueue(path, chunk_size=4096, sync=request.param) as d:
        yield d


def files(path):
    return sorted(file.name for file in path.parent.iterdir())


def test_a_message_goes_in_and_comes_out(durable):
    assert durable.is_empty()
    assert durable.peek() is None
    assert durable.dequeue() is None
    durable.enqueue(b"one")
    durable.enqueue_many([b"two", bytearray(b"three"), memoryview(b"four")])
    assert durable.qsize() == 4
    assert durable.peek() == b"one"
    assert [durable.dequeue() for _ in range(5)] == [b"one", b"two", b"three", b"four", None]


def test_a_batch_goes_over_the_borders_of_chunks(durable):
    messages = [b"%d" % number * (number % 7) for number in range(5000)]
    durable.enqueue_many(messages)
    assert durable.count_chunks() > 10
    taken = []
    # Fewer than lie in a chunk, more than one holds, and more than there are.
    for n in [1, 2, 40, 700, 3000, 9000]:
        batch = durable.dequeue_many(n)
        assert len(batch) == min(n, len(messages) - len(taken))
        taken += batch
    assert taken == messages
    assert durable.dequeue_many(1) == []


def test_a_large_batch_comes_whole(path):
    messages = [bytes([number % 251]) * 50_000 for number in range(60)]
    with qewqew.DurableQueue(path, sync="never") as d:
        d.enqueue_many(messages)
        assert d.get_many(100) == messages


def test_a_damaged_message_ends_a_batch_in_front_of_it(path):
    messages = [b"%03d" % number for number in range(10)]
    with qewqew.DurableQueue(path, crc=True) as d:
        d.enqueue_many(messages)
    damaged = bytearray((chunk := path.with_name("q.1")).read_bytes())
    damaged[damaged.index(b"006")] ^= 1
    chunk.write_bytes(damaged)
    with qewqew.DurableQueue(path, crc=True) as d:
        assert d.dequeue_many(10) == messages[:6]
        with pytest.raises(tailrace.CorruptQueue, match="offset 40"):
            d.dequeue_many(10)


def test_an_empty_queue_leaves_no_file(path):
    d = qewqew.DurableQueue(path)
    d.enqueue(b"x")
    assert files(path) == ["q", "q.1", "q.signal"]
    d.close()
    assert files(path) == ["q", "q.1"]
    with qewqew.DurableQueue(path) as d:
        assert d.dequeue() == b"x"
    assert files(path) == []


def test_the_plumbing_of_queue_queue(durable):
    durable.put(b"a")
    durable.put_many([b"b", b"c", b"d"])
    assert not durable.empty()
    assert not durable.full()
    assert durable.get() == b"a"
    assert durable.get_many(2) == [b"b", b"c"]
    assert durable.get_many(0) == []
    assert durable.get_many(9) == [b"d"]
    with pytest.raises(queue.Empty):
        durable.get(timeout=0)
    with pytest.raises(tailrace.QueueEmpty):
        durable.get_many(3, timeout=0.01)
    assert durable.dequeue_many(3) == []


def test_arrow(durable):
    pa = pytest.importorskip("pyarrow")
    messages = [bytes([i]) * i for i in range(50)]
    durable.enqueue_many(messages)
    array = durable.get_arrow(20)
    assert array.type == pa.binary()
    assert array.to_pylist() == messages[:20]
    assert durable.get_arrow(1000).to_pylist() == messages[20:]
    assert len(durable.get_arrow(0)) == 0
    with pytest.raises(tailrace.QueueEmpty):
        durable.get_arrow(1, timeout=0)


def test_iteration_takes_until_empty(durable):
    messages = [str(i).encode() for i in range(300)]
    durable.enqueue_many(messages)
    assert list(durable) == messages
    assert durable.is_empty()


def test_dequeue_if(durable):
    durable.enqueue_many([b"1", b"2"])
    assert durable.dequeue_if(lambda m: m == b"2") is None
    assert durable.dequeue_if(lambda m: m == b"1") == b"1"

    def broken(message):
        raise RuntimeError(message)

    with pytest.raises(RuntimeError):
        durable.dequeue_if(broken)
    assert durable.dequeue_if(lambda m: durable.peek() == m) == b"2", "the predicate may use the queue"
    assert durable.dequeue_if(lambda m: True, timeout=0.01) is None
    with pytest.raises(TypeError):
        durable.dequeue_if("no function")


def test_waiting_ends_with_a_message_or_with_the_time(durable):
    begun = time.monotonic()
    assert durable.dequeue(timeout=0.2) is None
    assert time.monotonic() - begun >= 0.2
    threading.Timer(0.05, durable.enqueue, [b"late"]).start()
    assert durable.peek(timeout=30) == b"late"
    assert durable.get(timeout=30) == b"late"


def test_ctrl_c_ends_a_wait(durable):
    threading.Timer(0.1, os.kill, [os.getpid(), signal.SIGINT]).start()
    begun = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        durable.get()
    assert time.monotonic() - begun < 20


def test_other_threads_run_while_one_waits(durable):
    got = []
    thread = threading.Thread(target=lambda: got.append(durable.get(timeout=30)))
    thread.start()
    for _ in range(100):
        assert durable.is_empty() or got
    durable.put(b"x")
    thread.join(30)
    assert got == [b"x"]


def test_clear(durable):
    assert durable.clear() is False
    durable.enqueue_many([b"x" * 1000] * 10)
    assert durable.count_chunks() > 1
    assert durable.clear() is True
    assert durable.count_chunks() == 0
    durable.enqueue(b"after")
    assert durable.dequeue() == b"after"


def test_limits(path):
    with qewqew.DurableQueue(path, chunk_size=100) as d:
        assert (d.chunk_size, d.max_element_size) == (100, 88)
        with pytest.raises(tailrace.MessageTooLarge) as caught:
            d.enqueue(bytes(89))
        assert (caught.value.size, caught.value.limit) == (89, 88)
        with pytest.raises(TypeError):
            d.enqueue("text")
        with pytest.raises(TypeError):
            d.enqueue_many([b"x", 7])
        assert d.is_empty()
    for wrong in ({"chunk_size": 11}, {"sync": "sometimes"}, {"role": "king"}, {"max_bytes": 0}, {"when_full": "cry"}):
        with pytest.raises(ValueError, match=str(next(iter(wrong.values())))):
            qewqew.DurableQueue(path, **wrong)


def test_a_bound_refuses_or_waits(path):
    with qewqew.DurableQueue(path, sync="never", max_bytes=30) as d:
        d.enqueue_many([bytes(8)] * 3)
        assert d.full()
        with pytest.raises(queue.Full):
            d.enqueue(b"")
        with pytest.raises(tailrace.QueueFull):
            d.put(b"x", timeout=0.02)
        d.get()
        assert not d.full()
        with pytest.raises(queue.Full):
            d.enqueue_many([b"12345678", b"9"])
        assert d.qsize() == 2, "all or none"
        d.clear()
    with qewqew.DurableQueue(path, sync="never", max_bytes=30, when_full="wait") as d:
        producer = threading.Thread(target=d.enqueue_many, args=([bytes([i]) * 8 for i in range(20)],))
        producer.start()
        assert [d.get(timeout=30) for _ in range(20)] == [bytes([i]) * 8 for i in range(20)]
        producer.join()


def test_nobody_waits_for_room_that_cannot_come(path):
    with qewqew.DurableQueue(path, max_bytes=10, when_full="wait") as d:
        for call in (d.enqueue, d.put, lambda m: d.put_many([b"", m]), lambda m: d.enqueue_many([b"", m])):
            with pytest.raises(tailrace.MessageTooLarge) as caught:
                call(b"123456789")
            assert caught.value.limit == 8
        assert d.is_empty(), "all or none"


def test_the_time_of_dequeue_if_is_one_for_all_of_it(durable):
    durable.enqueue(b"gone")

    def take(message):
        time.sleep(0.3)
        return durable.dequeue() == message

    begun = time.monotonic()
    assert durable.dequeue_if(take, timeout=0.4) is None
    assert time.monotonic() - begun < 0.65


def test_a_batch_ends_in_front_of_damage(path):
    pytest.importorskip("pyarrow")
    messages = [b"%030d" % number for number in range(8)]
    for take in (qewqew.DurableQueue.get_many, lambda d, n: d.get_arrow(n).to_pylist()):
        taken = []

        def take_all(d, take=take, taken=taken):
            while True:
                taken.extend(take(d, 100))

        with qewqew.DurableQueue(path, chunk_size=100, sync="never") as d:
            d.enqueue_many(messages)
        third = path.with_name("q.3")
        third.rename(path.with_name("kept"))
        with qewqew.DurableQueue(path, chunk_size=100, sync="never") as d:
            with pytest.raises(tailrace.CorruptQueue, match="missing"):
                take_all(d)
            assert len(taken) in (2, 3), "the one that leads to what is missing stays with it"
        path.with_name("kept").rename(third)
        with qewqew.DurableQueue(path, chunk_size=100, sync="never") as d:
            assert taken + d.get_many(100) == messages


def test_roles(path):
    consumer = qewqew.DurableQueue(path, role="consumer", sync="never")
    for role in ("consumer", "both"):
        with pytest.raises(tailrace.AlreadyOpen):
            qewqew.DurableQueue(path, role=role)
    producers = [qewqew.DurableQueue(path, role="producer", sync="never") for _ in range(3)]
    for i, producer in enumerate(producers):
        producer.put(bytes([i]))
    assert consumer.get_many(9) == [b"\0", b"\1", b"\2"]
    with pytest.raises(ValueError, match="consumer"):
        consumer.enqueue(b"x")
    with pytest.raises(ValueError, match="producer"):
        producers[0].dequeue()
    assert consumer.info()["participants"] == {"alive": 4, "dead": 0}


def test_close_frees_descriptors_and_mappings_at_once(tmp_path):
    def held():
        maps = Path("/proc/self/maps").read_text().count(str(tmp_path))
        links = [entry.readlink() for entry in Path("/proc/self/fd").iterdir() if entry.is_symlink()]
        return maps, sum(link.is_relative_to(tmp_path) for link in links)

    d = qewqew.DurableQueue(tmp_path / "q", chunk_size=100, crc=True)
    for _ in range(5):
        d.enqueue(b"x" * 60)
    d.dequeue()
    assert min(held()) > 0
    d.close()
    assert held() == (0, 0)
    assert d.path == tmp_path / "q"
    assert "DurableQueue" in repr(d)


def test_closed(durable):
    durable.close()
    durable.close()
    for call in (
        durable.peek,
        durable.dequeue,
        durable.qsize,
        durable.sync,
        durable.is_empty,
        durable.full,
        durable.info,
    ):
        with pytest.raises(tailrace.QueueClosed):
            call()
    with pytest.raises(tailrace.QueueClosed):
        durable.enqueue(b"x")


def _produce(producer, first, count):
    for i in range(first, first + count):
        producer.enqueue(i.to_bytes(4, "little"))
    producer.close()


@pytest.mark.parametrize("method", ["spawn", "fork"])
def test_handles_travel_to_other_processes(path, method):
    context = multiprocessing.get_context(method)
    consumer = qewqew.DurableQueue(path, role="consumer", sync="never")
    producer = qewqew.DurableQueue(path, role="producer", sync="never")
    children = [context.Process(target=_produce, args=(producer, n * 1000, 100)) for n in range(3)]
    for child in children:
        child.start()
    got = [int.from_bytes(consumer.get(timeout=60), "little") for _ in range(300)]
    for child in children:
        child.join(60)
        assert child.exitcode == 0
    for n in range(3):
        assert [i for i in got if i // 1000 == n] == list(range(n * 1000, n * 1000 + 100))


def test_pickle_keeps_the_options(path):
    producer = qewqew.DurableQueue(path, chunk_size=5000, role="producer", sync="group", max_bytes=70, when_full="wait")
    other = pickle.loads(pickle.dumps(producer))
    assert (other.path, other.chunk_size) == (path, 5000)
    assert other.info()["parameters"] == producer.info()["parameters"]
    other.put(b"x")
    assert producer.qsize() == 1


def test_positions_and_ranges(path):
    with qewqew.DurableQueue(path, chunk_size=200, sync="never") as d:
        d.enqueue_many([b"before"] * 3)
        start = d.head_position
        messages = [bytes([i]) * 30 for i in range(40)]
        d.enqueue_many(messages)
        end = d.tail_position
        assert d.read_range(start, end) == [b"before"] * 3 + messages
        reader = pickle.loads(pickle.dumps(d.ranges()))
        pieces = reader.chunk_ranges(start, end)
        assert len(pieces) == d.count_chunks()
        assert [m for piece in pieces for m in reader.read_range(*piece)] == [b"before"] * 3 + messages
        assert reader.read_range_arrow(start, end).to_pylist() == [b"before"] * 3 + messages
        assert reader.read_range(end, end) == []
        middle = pieces[3][0]
        d.commit(middle)
        assert reader.head_position == middle
        assert d.peek() == reader.read_range(middle, end)[0]
        with pytest.raises(tailrace.MessageNotFound):
            reader.read_range(start, end)
        with pytest.raises(ValueError, match="no message"):
            reader.read_range(middle + 1, end)
        with pytest.raises(tailrace.MessageNotFound):
            d.commit(end + 1)
        d.commit(end)
        assert d.is_empty()
        later = d.tail_position
        assert later == end
    assert files(path) == ["q.positions"]
    with qewqew.DurableQueue(path, chunk_size=200) as d:
        assert d.head_position == end, "positions outlive an empty queue"
        d.enqueue(b"next")
        assert d.read_range(end, d.tail_position) == [b"next"]


def test_verify_and_repair(path):
    with qewqew.DurableQueue(path, crc=True) as d:
        d.enqueue_many([b"good one", b"bad one!", b"good two"])
        report = d.verify()
        assert (report["messages"], report["checked"], report["problems"]) == (3, 3, [])
    chunk = path.with_name("q.1")
    raw = bytearray(chunk.read_bytes())
    raw[raw.index(b"bad one!") + 2] ^= 1
    chunk.write_bytes(raw)
    with qewqew.DurableQueue(path, crc=True) as d:
        assert d.dequeue() == b"good one"
        with pytest.raises(tailrace.CorruptQueue, match="checksum"):
            d.dequeue()
        [problem] = d.verify()["problems"]
        assert problem["chunk"] == 1
        report = d.repair()
        assert len(report["problems"]) == 1
        assert [p.name for p in report["put_aside"]] == ["q.1.damaged"]
        assert list(d) == [b"good two"]


def test_open_by_url(path):
    with tailrace.open(f"qewqew:{path}", sync="never") as d:
        assert isinstance(d, qewqew.DurableQueue)
        info = d.info()
        assert info["kind"] == "qewqew"
        assert info["parameters"]["sync"] == "never"
    with pytest.raises(tailrace.QueueNotFound):
        tailrace.open(f"qewqew:{path}", create=False)
