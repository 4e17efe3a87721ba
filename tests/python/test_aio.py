"""asyncio on every queue: waiting tasks, order, cancellation that loses nothing, no busy loops."""

import asyncio
import contextlib
import threading
import time

import pytest

import tailrace
from tailrace import aq, conq, mcp, qewqew, ring


@pytest.fixture(params=["aq", "conq", "mcp", "qewqew", "ring"])
def queue(request, tmp_path):
    makers = {
        "aq": lambda: aq.Queue.create(tmp_path / "aq", size=1 << 16),
        "conq": lambda: _conq(tmp_path),
        "mcp": lambda: mcp.QueueFile.open("Q", "input_output", system=tmp_path, max_messages=100, record_size=64),
        "qewqew": lambda: qewqew.DurableQueue(tmp_path / "qewqew", sync="never"),
        "ring": lambda: ring.Queue.create(tmp_path / "ring", max_len=100, msg_size=1),
    }
    with makers[request.param]() as queue:
        yield queue


def _conq(tmp_path):
    manager = conq.QueueManager.open(tmp_path / "conq")
    manager.create_queue("jobs")
    return manager.queue("jobs")


def number(data):
    return int(data.rstrip(b"\0"))


def test_a_message_that_is_there_is_taken_at_once(queue):
    async def main():
        await queue.put_async(b"1")
        return await queue.get_async()

    assert number(asyncio.run(main())) == 1


def test_a_waiting_task_gets_what_another_puts_while_the_loop_goes_on(queue):
    async def main():
        ticks = 0

        async def tick():
            nonlocal ticks
            while True:
                ticks += 1
                await asyncio.sleep(0.005)

        ticking = asyncio.create_task(tick())
        getting = asyncio.create_task(queue.get_async())
        await asyncio.sleep(0.2)
        assert not getting.done()
        assert ticks >= 5
        await queue.put_async(b"7")
        data = await asyncio.wait_for(getting, 20)
        ticking.cancel()
        return data

    assert number(asyncio.run(main())) == 7


def test_all_messages_reach_several_tasks_once(queue):
    async def main():
        taken = []

        async def take():
            while len(taken) < 90:
                taken.append(number(await queue.get_async(timeout=20)))
                await asyncio.sleep(0)

        tasks = [asyncio.create_task(take()) for _ in range(3)]
        for index in range(90):
            await queue.put_async(b"%d" % index)
            if index % 7 == 0:
                await asyncio.sleep(0.001)
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED, timeout=60)
        for task in tasks:
            task.cancel()
        return taken

    assert sorted(asyncio.run(main())) == list(range(90))


def test_a_cancelled_get_loses_nothing(queue):
    """Cancels at random moments around the arrival of each message: whoever does not get it leaves it in the queue."""
    rounds = 60

    async def main():
        taken = []
        for index in range(rounds):
            getting = asyncio.create_task(queue.get_async())
            await asyncio.sleep(0.001 * (index % 4))
            putter = threading.Thread(target=queue.put, args=(b"%d" % index,))
            putter.start()
            await asyncio.sleep(0.0005 * (index % 7))
            getting.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                taken.append(number(await getting))
            await asyncio.to_thread(putter.join)
        while True:
            try:
                taken.append(number(await queue.get_async(timeout=0)))
            except tailrace.QueueEmpty:
                return taken

    assert sorted(asyncio.run(main())) == list(range(rounds))


def test_the_time_is_up(queue):
    async def main():
        with pytest.raises(tailrace.QueueEmpty):
            await queue.get_async(timeout=0)
        with pytest.raises(tailrace.QueueEmpty):
            await queue.get_async(timeout=0.05)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(queue.get_async(), 0.05)
        with pytest.raises(ValueError, match="-1"):
            await queue.get_async(timeout=-1)

    asyncio.run(main())


def test_waiting_takes_no_processor_time_and_leaves_no_thread(queue):
    async def main():
        tasks = [asyncio.create_task(queue.get_async()) for _ in range(20)]
        await asyncio.sleep(0.1)
        before = time.process_time()
        await asyncio.sleep(1)
        spent = time.process_time() - before
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        return spent

    # A busy loop would take the whole second.
    assert asyncio.run(main()) < 0.5
    end = time.monotonic() + 20
    while any(thread.name == "tailrace-asyncio" for thread in threading.enumerate()):
        assert time.monotonic() < end
        time.sleep(0.01)


def test_async_for_takes_message_after_message(queue):
    async def main():
        taken = []
        for index in range(5):
            await queue.put_async(b"%d" % index)
        async for data in queue:
            taken.append(number(data))
            if len(taken) == 5:
                break
        return taken

    assert asyncio.run(main()) == list(range(5))


def test_put_waits_for_room_and_a_cancelled_one_adds_nothing(tmp_path):
    async def main():
        with mcp.QueueFile.open("Q", "input_output", system=tmp_path, max_messages=1, record_size=8) as queue:
            await queue.put_async(b"1")
            with pytest.raises(tailrace.QueueFull):
                await queue.put_async(b"2", timeout=0.05)
            cancelled = asyncio.create_task(queue.put_async(b"3"))
            waiting = asyncio.create_task(queue.put_async(b"4"))
            await asyncio.sleep(0.05)
            cancelled.cancel()
            assert await queue.get_async() == b"1"
            await asyncio.wait_for(waiting, 20)
            assert await queue.get_async() == b"4"
            assert queue.empty()

    asyncio.run(main())


def test_async_for_ends_at_the_end_of_file(tmp_path):
    async def main():
        with mcp.QueueFile.open("Q", "input", system=tmp_path, max_messages=9) as reader:
            writer = mcp.QueueFile.open("Q", "output", system=tmp_path)
            writer.put_many([b"1", b"2"])

            async def close():
                await asyncio.sleep(0.1)
                writer.close()

            closing = asyncio.create_task(close())
            messages = [data async for data in reader]
            await closing
            return messages

    assert asyncio.run(main()) == [b"1", b"2"]


def test_a_queue_that_is_closed_says_so_to_those_who_wait(tmp_path):
    async def main():
        queue = aq.Queue.create(tmp_path / "queue", size=1 << 16)
        waiting = [asyncio.create_task(queue.get_async()) for _ in range(2)]
        await asyncio.sleep(0.05)
        queue.close()
        return await asyncio.gather(*waiting, return_exceptions=True)

    assert [type(error) for error in asyncio.run(main())] == [tailrace.QueueClosed] * 2
