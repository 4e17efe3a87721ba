"""tailrace.conq: the document's API, what it does better, and the habits of queue.Queue."""

import pickle
import queue
import signal
import threading
import time
from collections import deque
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

import tailrace
from conq_managers import SMALL, manager, q
from tailrace import conq

__all__ = ["manager", "q"]


def test_every_method_on_one_queue(manager):
    jobs = manager.create_queue("jobs", **SMALL)
    assert jobs.isdigit()
    assert manager.get_queue("jobs") == jobs
    for data in (b"one", bytearray(b"two"), memoryview(b"three")):
        assert manager.enqueue(jobs, data) is None
    one, two, three = (manager.read(jobs, timeout=0.15) for _ in range(3))
    assert [m.data for m in (one, two, three)] == [b"one", b"two", b"three"]
    assert (one.id, one.queue_id, one.delivery) == ("0", jobs, 1)
    assert manager.read(jobs, 0.15) is None
    manager.dequeue(jobs, one)
    manager.dequeue(jobs, two)
    time.sleep(0.16)
    with pytest.raises(conq_error("MessageNotFound")):
        manager.dequeue(jobs, three)
    again = manager.read(jobs, 30)
    assert (again.data, again.id, again.delivery) == (b"three", "2", 2)
    assert again != three
    manager.dequeue(jobs, again)
    with pytest.raises(LookupError):
        manager.dequeue(jobs, again)
    manager.delete_queue(jobs)
    with pytest.raises(tailrace.QueueNotFound):
        manager.delete_queue(jobs)
    assert manager.create_queue("jobs", **SMALL) != jobs


def conq_error(name: str) -> type[Exception]:
    return getattr(tailrace, name)


def test_two_queues_stay_apart(manager):
    a, b = manager.create_queue("a", **SMALL), manager.create_queue("b", **SMALL)
    assert manager.names() == ["a", "b"]
    manager.enqueue(a, b"a")
    manager.enqueue(b, b"b")
    from_a, from_b = manager.read(a, 30), manager.read(b, 30)
    with pytest.raises(tailrace.MessageNotFound, match="one of queue"):
        manager.dequeue(a, from_b)
    manager.dequeue(b, from_b)
    manager.dequeue(a, from_a)


def test_errors_name_the_value_and_the_limit(manager):
    with pytest.raises(tailrace.QueueNotFound, match="nothing"):
        manager.get_queue("nothing")
    jobs = manager.create_queue("jobs", **SMALL)
    with pytest.raises(tailrace.QueueExists, match="jobs"):
        manager.create_queue("jobs")
    for timeout in (0, 0.0, -1, float("nan")):
        with pytest.raises(ValueError, match="more than 0 seconds"):
            manager.read(jobs, timeout)
    with pytest.raises(TypeError):
        manager.read(jobs, None)
    with pytest.raises(ValueError, match="more than 0"):  # arguments before state
        manager.read("999", 0)
    with pytest.raises(tailrace.MessageTooLarge) as info:
        manager.enqueue(jobs, b"x" * 1001)
    assert (info.value.size, info.value.limit) == (1001, 1000)
    for bad in ("999", "", "abc", "-1", "+1", "1 ", "99999999999999999999999"):
        with pytest.raises(tailrace.QueueNotFound):
            manager.enqueue(bad, b"x")
    for wrong in (None, 1, b"0"):
        with pytest.raises(TypeError):
            manager.enqueue(wrong, b"x")
    for wrong in (None, "text", 7):
        with pytest.raises(TypeError):
            manager.enqueue(jobs, wrong)
    limits = {"max_messages": (0, 1 << 40), "max_message_size": (0, 1 << 40), "max_bytes": (1, 1 << 63)}
    for name, values in limits.items():
        for value in values:
            with pytest.raises(ValueError, match=f"{name} must be between .* not {value}"):
                manager.create_queue("other", **{name: value})
    with pytest.raises(ValueError, match="belong together"):
        manager.create_queue("other", max_deliveries=3)
    for _ in range(64):
        manager.enqueue(jobs, b"x")
    with pytest.raises(queue.Full, match="64 messages"):
        manager.enqueue(jobs, b"x")


@pytest.mark.parametrize("timeout", [0.001, 1, 2**31, 2**63, 2**64, 10**400, 1e300, float("inf")])
def test_any_positive_timeout_is_a_lease(manager, timeout):
    jobs = manager.create_queue("jobs", **SMALL)
    manager.enqueue(jobs, b"x")
    manager.enqueue(jobs, b"y")
    assert manager.read(jobs, timeout).data == b"x"
    short = manager.read(jobs, 0.01)
    time.sleep(0.02)
    # A lease without end never keeps others from ending.
    seen = {manager.read(jobs, 30).data for _ in range(manager.stats(jobs).expired)}
    assert short.data in seen


def test_extend_release_and_stats(manager):
    jobs = manager.create_queue("jobs", **SMALL)
    manager.enqueue(jobs, b"long")
    manager.enqueue(jobs, b"next")
    message = manager.read(jobs, 0.2)
    manager.extend(message, 60)
    time.sleep(0.25)
    stats = manager.stats(jobs)
    assert (stats.ready, stats.leased, stats.expired) == (1, 1, 0)
    assert 0.2 < stats.oldest_age < 60
    manager.release(message)
    with pytest.raises(tailrace.MessageNotFound):
        manager.extend(message, 60)
    assert "expired=1" in repr(manager.stats(jobs))
    again = manager.read(jobs, 30)
    assert (again.data, again.delivery) == (b"long", 2)
    with pytest.raises(AttributeError):
        again.data = b"other"


def test_dead_letters(manager):
    jobs = manager.create_queue("jobs", max_deliveries=2, dead_letter="dead")
    dead = manager.create_queue("dead")
    manager.enqueue(jobs, b"poison")
    for _ in range(2):
        manager.release(manager.read(jobs, 30))
    assert manager.read(jobs, 30) is None
    assert manager.read(dead, 30).data == b"poison"
    assert manager.queue("jobs").info()["parameters"]["dead_letter"] == "dead"


def test_the_manager_of_a_process_is_one():
    one, other = conq.QueueManager(), conq.QueueManager()
    jobs = one.create_queue("only one")
    assert other.get_queue("only one") == jobs
    other.delete_queue(jobs)


def test_messages_travel_as_pickles(manager):
    jobs = manager.create_queue("jobs", **SMALL)
    manager.enqueue(jobs, b"work")
    message = pickle.loads(pickle.dumps(manager.read(jobs, 30)))
    assert (message.data, bytes(message), len(message)) == (b"work", b"work", 4)
    assert repr(message) == f"<Message id='0' queue_id='{jobs}' delivery=1 of 4 bytes>"
    pickle.loads(pickle.dumps(manager)).dequeue(jobs, message)
    assert manager.stats(jobs).leased == 0


# The habits of queue.Queue


def test_put_and_get(q):
    assert q.empty()
    assert not q.full()
    q.put(b"a")
    q.put(np.arange(3, dtype=np.uint8), timeout=0)
    assert q.qsize() == 2
    assert not q.empty()
    assert q.get() == b"a"
    assert q.get(timeout=0) == b"\x00\x01\x02"
    for timeout in (0, 0.03):
        with pytest.raises(queue.Empty):
            q.get(timeout=timeout)
    for _ in range(64):
        q.put(b"x", timeout=0)
    assert q.full()
    for timeout in (0, 0.03):
        with pytest.raises(queue.Full):
            q.put(b"y", timeout=timeout)
    with pytest.raises(ValueError, match="timeout"):
        q.get(timeout=-1)


def test_many_at_once(q):
    assert q.put_many(bytes([n]) for n in range(50)) == 50
    assert q.get_many(10) == [bytes([n]) for n in range(10)]
    array = q.get_arrow(30)
    assert isinstance(array, pa.BinaryArray)
    assert array.to_pylist() == [bytes([n]) for n in range(10, 40)]
    assert q.get_many(1000, timeout=0) == [bytes([n]) for n in range(40, 50)]
    for drain in (q.get_many, q.get_arrow):
        with pytest.raises(tailrace.QueueEmpty):
            drain(5, timeout=0)
        with pytest.raises(ValueError, match="at least 1"):
            drain(0)
    assert q.put_many([]) == 0
    assert q.put_many([b"x"] * 100, timeout=0) == 64
    with pytest.raises(tailrace.QueueFull):
        q.put_many([b"x"], timeout=0.02)
    with pytest.raises(tailrace.MessageTooLarge):
        q.put_many([b"x", b"y" * 1001])
    with pytest.raises(TypeError):
        q.put_many([b"x", "y"])


def test_a_lease_block_finishes_or_gives_back(q):
    q.put(b"work")

    def fail() -> None:
        with q.lease(30.0) as message:
            raise RuntimeError(f"no luck with delivery {message.delivery}")

    with pytest.raises(RuntimeError, match="no luck with delivery 1"):
        fail()
    with q.lease(30.0) as message:
        assert (message.data, message.delivery) == (b"work", 2)
        assert q.stats().leased == 1
    assert q.qsize() == 0
    with pytest.raises(queue.Empty), q.lease(30.0, wait=0):
        pass
    q.put(b"slow")
    with pytest.raises(tailrace.MessageNotFound), q.lease(0.01) as message:
        time.sleep(0.05)


def test_waiters_wake(q):
    got: list[bytes] = []
    waiter = threading.Thread(target=lambda: got.append(q.get()))
    waiter.start()
    time.sleep(0.05)
    q.put(b"here")
    waiter.join(10)
    assert got == [b"here"]
    # A lease that ends wakes nobody by itself; the sleeper knows when.
    q.put(b"back")
    q.read(0.1)
    assert q.get(timeout=10) == b"back"


def test_ctrl_c_ends_a_wait(q):
    threading.Timer(0.1, signal.raise_signal, [signal.SIGINT]).start()
    started = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        q.get(timeout=20)
    assert time.monotonic() - started < 5


@pytest.mark.parametrize("call", ["get", "get_many", "get_arrow", "lease", "put", "put_many"])
def test_a_close_ends_a_wait_in_another_thread(q, call):
    if call.startswith("put"):
        q.put_many([b"x"] * 64)
    calls = {
        "get": q.get,
        "get_many": lambda: q.get_many(2),
        "get_arrow": lambda: q.get_arrow(2),
        "lease": lambda: q.lease(1.0).__enter__(),
        "put": lambda: q.put(b"x"),
        "put_many": lambda: q.put_many([b"x", b"x"]),
    }
    found = []

    def wait() -> None:
        try:
            calls[call]()
        except tailrace.QueueClosed as error:
            found.append(error)

    thread = threading.Thread(target=wait, daemon=True)
    thread.start()
    time.sleep(0.05)
    q.close()
    thread.join(20)
    assert len(found) == 1


def test_arguments_are_judged_before_the_state(manager, q):
    large = b"x" * 1001
    calls = (lambda: q.put(large), lambda: q.enqueue(large), lambda: q.put_many([b"x", large]))
    again = manager.queue(q.name)
    q.put_many([b"x"] * 64)
    assert q.full()
    for state in (lambda: None, lambda: manager.delete_queue(q.id), q.close):
        state()
        for call in calls:
            with pytest.raises(tailrace.MessageTooLarge) as info:
                call()
            assert (info.value.size, info.value.limit) == (1001, 1000)
    for call in (again.qsize, again.full, again.empty, again.stats, again.get):
        with pytest.raises(tailrace.QueueNotFound, match="was deleted"):
            call()


def test_a_closed_handle_is_closed_and_the_queue_stays(manager, q):
    with q as same:
        assert same is q
        q.put(b"stays")
    for call in (q.get, q.qsize, q.empty, q.full, q.info, lambda: q.put(b"x")):
        with pytest.raises(tailrace.QueueClosed):
            call()
    assert manager.queue("q").get(timeout=0) == b"stays"


def test_info_tells_everything(manager, q):
    q.put(b"x")
    info = q.info()
    assert info["kind"] == "conq"
    assert info["parameters"]["max_messages"] == 64
    assert info["counters"]["ready"] == 1
    assert info["participants"] == {"alive": 1, "dead": 0}
    assert info["promises"]
    if manager.directory is None:
        assert info["path"] is None
    else:
        assert Path(info["path"]) == manager.directory / "q.conq"
        assert tailrace.open(info["url"]).get(timeout=0) == b"x"


def test_urls_and_pickles_open_the_same_queue(tmp_path):
    manager = conq.QueueManager.open(tmp_path)
    manager.create_queue("jobs", **SMALL)
    q = tailrace.open(f"conq:{tmp_path}#jobs")
    pickle.loads(pickle.dumps(q)).put(b"x")
    assert q.get(timeout=0) == b"x"
    assert repr(q) == f'QueueManager.open("{tmp_path}").queue("jobs")'
    with pytest.raises(tailrace.QueueNotFound):
        tailrace.open(f"conq:{tmp_path}#nothing")
    with pytest.raises(TypeError, match="without options"):
        tailrace.open(f"conq:{tmp_path}#jobs", size=1)


class AgainstAModel(RuleBasedStateMachine):
    """Everything but time, which the Rust tests move; leases here are long or given back."""

    def __init__(self) -> None:
        super().__init__()
        self.manager = conq.QueueManager()
        self.id = self.manager.create_queue("model", max_messages=5, max_message_size=100, max_bytes=1 << 16)
        self.ready: deque[bytes] = deque()
        self.back: deque[tuple[bytes, int]] = deque()
        self.held: list[tuple[conq.Message, bytes, int]] = []

    def teardown(self) -> None:
        self.manager.delete_queue(self.id)

    def count(self) -> int:
        return len(self.ready) + len(self.back) + len(self.held)

    @rule(data=st.binary(max_size=100))
    def enqueue(self, data: bytes) -> None:
        if self.count() == 5:
            with pytest.raises(tailrace.QueueFull):
                self.manager.enqueue(self.id, data)
            return
        self.manager.enqueue(self.id, data)
        self.ready.append(data)

    @rule()
    def read(self) -> None:
        message = self.manager.read(self.id, 1000)
        if self.back:
            data, delivery = self.back.popleft()
        elif self.ready:
            data, delivery = self.ready.popleft(), 0
        else:
            assert message is None
            return
        assert (message.data, message.delivery) == (data, delivery + 1)
        self.held.append((message, data, delivery + 1))

    @precondition(lambda self: self.held)
    @rule(which=st.integers(0, 4))
    def dequeue(self, which: int) -> None:
        message, _, _ = self.held.pop(which % len(self.held))
        self.manager.dequeue(self.id, message)
        with pytest.raises(tailrace.MessageNotFound):
            self.manager.dequeue(self.id, message)

    @precondition(lambda self: self.held)
    @rule(which=st.integers(0, 4))
    def release(self, which: int) -> None:
        message, data, delivery = self.held.pop(which % len(self.held))
        self.manager.release(message)
        self.back.append((data, delivery))

    @invariant()
    def counts(self) -> None:
        stats = self.manager.stats(self.id)
        assert (stats.ready, stats.leased, stats.expired) == (len(self.ready), len(self.held), len(self.back))


TestAgainstAModel = AgainstAModel.TestCase
TestAgainstAModel.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
