"""tailrace.conq between threads and processes: exact counts, children, kills."""

import multiprocessing
import os
import random
import threading
import time

import pytest

import tailrace
from conq_managers import manager, q
from harness import Args, Oracle, Promise, Watchdog, Workers, payload
from tailrace import conq

__all__ = ["manager", "q"]


# Threads and processes


def test_threads_on_one_queue(manager):
    jobs = manager.create_queue("jobs", max_messages=100_000)
    producers, each = 8, 500
    seen: list[bytes] = []

    def produce(number: int) -> None:
        for sequence in range(each):
            manager.enqueue(jobs, b"%d %d" % (number, sequence))

    def consume() -> None:
        for _ in range(each):
            while (message := manager.read(jobs, 60)) is None:
                time.sleep(0)
            manager.dequeue(jobs, message)
            seen.append(message.data)

    threads = [threading.Thread(target=produce, args=(n,)) for n in range(producers)]
    threads += [threading.Thread(target=consume) for _ in range(producers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(seen) == len(set(seen)) == producers * each


def test_a_blocked_get_lets_other_threads_run(q):
    waiter = threading.Thread(target=lambda: q.get(timeout=10))
    waiter.start()
    started = time.monotonic()
    sum(range(10**6))
    assert time.monotonic() - started < 5
    q.put(b"x")
    waiter.join(10)
    assert not waiter.is_alive()


def _double(q: conq.Queue, answers: conq.Queue) -> None:
    for _ in range(100):
        with q.lease(30.0) as message:
            answers.put(message.data * 2)


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_multiprocessing_children(tmp_path, method):
    manager = conq.QueueManager.open(tmp_path)
    for name in ("jobs", "answers"):
        manager.create_queue(name)
    jobs, answers = manager.queue("jobs"), manager.queue("answers")
    child = multiprocessing.get_context(method).Process(target=_double, args=(jobs, answers))
    child.start()
    jobs.put_many(b"%d" % n for n in range(100))
    got = [answers.get(timeout=30) for _ in range(100)]
    child.join(30)
    assert child.exitcode == 0
    assert got == [b"%d" % n * 2 for n in range(100)]


def test_a_forked_child_starts_with_an_empty_process_manager():
    manager = conq.QueueManager()
    jobs = manager.create_queue("parent's")
    child = os.fork()
    if child == 0:
        try:
            manager.enqueue(jobs, b"x")
        except tailrace.QueueNotFound:
            os._exit(0 if manager.names() == [] else 1)
        os._exit(2)
    assert os.waitpid(child, 0)[1] == 0
    assert manager.stats(jobs).ready == 0
    manager.delete_queue(jobs)


def _produce(args: Args) -> None:
    q, journal = tailrace.open(args["url"]), args.journal()
    args.ready()
    sequence = 0
    while not args.stop_requested():
        if q.qsize() > 500:
            time.sleep(0)
            continue
        message = payload.make(args["id"], sequence, 100)
        with journal.put(0, message):
            q.enqueue(message)
        sequence += 1


def _consume(args: Args) -> None:
    q, journal = tailrace.open(args["url"]), args.journal()
    args.ready()
    while not args.stop_requested():
        ticket = journal.attempt_get(0)
        message = q.read(0.2)
        if message is None:
            journal.nothing(ticket)
            time.sleep(0)
            continue
        who = journal.got(ticket, message.data)
        ticket = journal.attempt_ack(0, who)
        try:
            q.dequeue(message)
        except tailrace.MessageNotFound:
            journal.failed(ticket)
        else:
            journal.acknowledged(ticket)


@pytest.mark.timeout(300)
def test_killed_workers_lose_nothing(tmp_path, is_soak):
    manager = conq.QueueManager.open(tmp_path / "queues")
    manager.create_queue("jobs", max_messages=2000)
    url = f"conq:{tmp_path / 'queues'}#jobs"
    dice = random.Random(5)
    kills = 200 if is_soak else 25
    with Workers(tmp_path) as workers, Watchdog("killed conq workers", 280, workers):
        alive = []
        everybody = []

        def start(place: int) -> None:
            body = (_produce, _consume)[place % 2]
            worker = workers.fork(body, journal=400_000, url=url, id=len(everybody))
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
        for worker in alive:
            worker.request_stop()
        for worker in alive:
            worker.expect_success(20)
        time.sleep(0.25)
        q = manager.queue("jobs")
        left = []
        while (message := q.read(60)) is not None:
            q.dequeue(message)
            left.append(message.data)
        oracle = Oracle(Promise.until_acked()).left(0, left)
        for worker in everybody:
            oracle.journal(worker.records())
        oracle.check().assert_ok(f"{kills} kills")
        assert q.qsize() == 0
