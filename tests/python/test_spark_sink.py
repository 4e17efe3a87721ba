"""What the qewqew sink decides, without a Spark: staging, and publishing once wherever it is killed."""

import random
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark")

import pyarrow as pa

from spark_support import messages
from tailrace import CorruptQueue, MessageTooLarge, QueueError, QueueNotFound, qewqew
from tailrace._core import qewqew as native
from tailrace.spark.options import Options
from tailrace.spark.queues import Attempt, Stamp, drain_for
from tailrace.spark.queues.publishing import Ledger

pytestmark = pytest.mark.spark


def staged(url: str, count: int, batch: int, task: int = 0, first: int = 0, size: int = 0, chunk: int = 1000) -> Any:
    drain = drain_for(Options.parse({"url": url, "chunkSize": str(chunk), "sync": "never"}))
    stamp = Stamp("query", batch)
    array = pa.array([one.ljust(size, b".") for one in messages(first, count)], pa.binary())
    written = drain.write(iter([array]), Attempt(f"query-{batch}", 0, task, stamp))
    return drain, written, stamp


def content(path: Path) -> list[bytes]:
    with qewqew.DurableQueue(path, role="consumer", sync="never", chunk_size=1000) as durable:
        return durable.dequeue_many(100_000)


@pytest.mark.parametrize("size", [0, 40, 400])
def test_staged_files_hold_what_a_queue_will_hold_and_of_slices_too(tmp_path: Path, size: int) -> None:
    texts = [b"", b"a", *[one.ljust(size, b".") for one in messages(0, 100)], b"bc"]
    array = pa.array([b"skipped", *texts], pa.binary()).slice(1)
    stage = native._Stage(tmp_path / "staged", 1000, True)
    stage.add(array.slice(0, 50))
    stage.add(array.slice(50))
    files = stage.finish(500)
    assert all(str(file).endswith(".chunk") for file in files)
    with qewqew.DurableQueue(tmp_path / "q", sync="never", chunk_size=1000) as durable:
        durable.enqueue(b"before")
        assert [native._publish_chunk(durable, file) for file in files] == [True] * len(files)
        assert [native._publish_chunk(durable, file) for file in files] == [False] * len(files)
        durable.enqueue(b"behind")
        assert durable.qsize() == len(texts) + 2
        assert durable.verify()["problems"] == []
        assert durable.dequeue_many(1_000) == [b"before", *texts, b"behind"]


def test_positions_go_on_where_handles_have_chunks_of_different_sizes(tmp_path: Path) -> None:
    for turn in range(3):
        with qewqew.DurableQueue(tmp_path / "q", role="producer", sync="never", chunk_size=1_000) as durable:
            durable.enqueue_many([b"x" * 90] * 50)
        drain, written, stamp = staged(f"qewqew:{tmp_path / 'q'}", 50, turn, size=90, chunk=2_000)
        drain.commit([written], stamp)
        with qewqew.DurableQueue(tmp_path / "q", role="consumer", sync="never", chunk_size=3_000) as durable:
            assert durable.tail_position == (turn + 1) * 100 * 92, "no new epoch of positions"


def test_few_messages_are_appended_and_take_no_chunk(tmp_path: Path) -> None:
    stage = native._Stage(tmp_path / "staged", 1000, False)
    stage.add([b"one", b"two"])
    [file] = stage.finish(500)
    assert Path(file).read_bytes() == b"\0\3one\0\3two"
    with qewqew.DurableQueue(tmp_path / "q", sync="always", chunk_size=1000) as durable:
        assert durable.tail_position == 0
        framed = Path(file).read_bytes()
        for place in (0, 10):
            assert native._publish_framed(durable, framed, place)
            assert durable.count_chunks() == 1
            assert not native._publish_framed(durable, framed, place), "it does not end there any more"
        assert durable.dequeue_many(10) == [b"one", b"two"] * 2
        with pytest.raises(CorruptQueue, match="end in the middle"):
            native._publish_framed(durable, b"\0\5one", 20)


def test_a_repeated_micro_batch_is_dropped(tmp_path: Path) -> None:
    url = f"qewqew:{tmp_path / 'q'}"
    for task in range(3):
        drain, written, stamp = staged(url, 100, 0, task)
        drain.commit([written], stamp)
    drain, written, stamp = staged(url, 50, 1, first=100)
    drain.commit([written], stamp)
    assert content(tmp_path / "q") == messages(0, 150)


def test_the_files_of_dead_attempts_are_swept(tmp_path: Path) -> None:
    url = f"qewqew:{tmp_path / 'q'}"
    staged(url, 10, 0, task=1)
    staged(url, 10, 0, task=2)
    drain, written, stamp = staged(url, 10, 0, task=3)
    drain.commit([written], stamp)
    assert list((tmp_path / "q.staged").iterdir()) == []
    drain, written, stamp = staged(url, 10, 1)
    drain.abort([written], stamp)
    assert list((tmp_path / "q.staged").iterdir()) == []


class Killed(BaseException):
    """Stands for the end of the process."""


class Dying:
    """The native side of publishing, which ends the process before or after its nth step."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, steps: int, is_done: bool) -> None:
        self.steps, self.is_done = steps, is_done
        for name in ("_publish_framed", "_publish_chunk"):
            monkeypatch.setattr(f"tailrace.spark.queues.publishing.native.{name}", self.dying(getattr(native, name)))

    def dying(self, step: Any) -> Any:
        def run(*arguments: Any) -> Any:
            self.steps -= 1
            if self.steps > 0 or self.is_done:
                step(*arguments)
            if self.steps == 0:
                raise Killed

        return run


def publish(path: Path, written: list[Any], stamp: Stamp, drain: Any) -> None:
    files = [str(Path(f"{path}.staged") / name) for one in written for name in one.staged]
    with drain._open() as durable:
        Ledger(str(path), drain.options.chunk_size).publish(durable, stamp.query, stamp.batch, files)


@pytest.mark.parametrize(("size", "steps"), [(0, 1), (300, 1), (300, 2), (300, 34)])
@pytest.mark.parametrize("is_done", [False, True])
@pytest.mark.parametrize("meanwhile", ["nothing", "consumed", "stranger"])
def test_a_batch_that_was_begun_is_completed_wherever_it_was_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int, steps: int, is_done: bool, meanwhile: str
) -> None:
    url, path = f"qewqew:{tmp_path / 'q'}", tmp_path / "q"
    # So few and short ones are appended as entries, the others become chunks.
    count, chunk = (100, 1_000) if size else (20, 10_000)
    drain, written, stamp = staged(url, 20, 0, size=30, chunk=chunk)
    drain.commit([written], stamp)
    drain, written, stamp = staged(url, count, 1, first=20, size=size, chunk=chunk)
    assert all(name.endswith(".chunk" if size else ".rows") for name in written.staged)
    with monkeypatch.context() as patched:
        Dying(patched, steps, is_done)
        with pytest.raises(Killed):
            publish(path, [written], stamp, drain)
    taken: list[bytes] = []
    if meanwhile == "consumed":
        with qewqew.DurableQueue(path, role="consumer", sync="never", chunk_size=chunk) as consumer:
            taken = consumer.dequeue_many(60)
    if meanwhile == "stranger":
        with qewqew.DurableQueue(path, role="producer", sync="never", chunk_size=chunk) as stranger:
            stranger.enqueue_many([b"stranger", *messages(20, 1)])
    # Spark runs the micro-batch again, with another attempt.
    drain, again, stamp = staged(url, count, 1, task=7, first=20, size=size, chunk=chunk)
    drain.commit([again], stamp)
    found = taken + content(path)
    if meanwhile == "stranger":
        found.remove(b"stranger")
        found.remove(messages(20, 1)[0])
    expected = [one.ljust(30, b".") for one in messages(0, 20)]
    expected += [one.ljust(size, b".") for one in messages(20, count)]
    assert sorted(found) == sorted(expected)
    assert list((tmp_path / "q.staged").iterdir()) == []


#: Run by a process of its own: publishes micro-batches from the first that Spark would run again, small and large ones.
PUBLISHING = """
import sys
import pyarrow as pa
from tailrace.spark.options import Options
from tailrace.spark.queues import Attempt, Stamp, drain_for
url, first, task = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
drain = drain_for(Options.parse({"url": url, "chunkSize": "4000", "sync": "never"}))
for batch in range(first, 60):
    stamp = Stamp("query", batch, "run")
    written = []
    for part in range(2):
        texts = [b"%d/%d/%d" % (batch, part, row) for row in range(10 if batch % 3 else 1_500)]
        written.append(drain.write(iter([pa.array(texts, pa.binary())]), Attempt(f"query-{batch}", part, task, stamp)))
    print(batch, flush=True)
    drain.commit(written, stamp)
print("done", flush=True)
"""

#: A producer that knows nothing of Spark and appends all the while.
STRANGER = """
import sys, time
from tailrace import qewqew
with qewqew.DurableQueue(sys.argv[1], role="producer", sync="never", chunk_size=4000) as queue:
    for number in range(100_000):
        queue.enqueue(b"stranger %d" % number)
        print(number, flush=True)
        time.sleep(0.002)
"""


@pytest.mark.timeout(600)
def test_a_killed_sink_publishes_each_micro_batch_once_beside_another_producer(tmp_path: Path, is_soak: bool) -> None:
    path = tmp_path / "q"
    with qewqew.DurableQueue(path, sync="never", chunk_size=4000) as queue:
        queue.head_position  # noqa: B018
    chance = random.Random(4)
    stranger = subprocess.Popen([sys.executable, "-c", STRANGER, path], stdout=subprocess.PIPE, text=True)
    begun, kills, is_done = 0, 0, False
    try:
        while not is_done:
            arguments = [f"qewqew:{path}", str(begun), str(kills)]
            sink = subprocess.Popen([sys.executable, "-c", PUBLISHING, *arguments], stdout=subprocess.PIPE, text=True)
            assert sink.stdout is not None
            try:
                last = begun + chance.randrange(1, 4 if is_soak else 12)
                for line in sink.stdout:
                    is_done = line == "done\n"
                    # What is printed is staged and about to be published: Spark would run it again.
                    begun = begun if is_done else int(line)
                    if begun >= last:
                        break
                if not is_done:
                    time.sleep(chance.random() * 0.004)
            finally:
                sink.kill()
                sink.wait()
                sink.stdout.close()
            kills += not is_done
    finally:
        stranger.kill()
        appended = stranger.communicate()[0].splitlines()
    assert kills >= 4
    found = content(path)
    strange = [one for one in found if one.startswith(b"stranger")]
    # The one that it was killed in may be there or not.
    assert strange[: len(appended)] == [b"stranger %s" % number.encode() for number in appended]
    expected = [
        b"%d/%d/%d" % (batch, part, row)
        for batch in range(60)
        for part in range(2)
        for row in range(10 if batch % 3 else 1_500)
    ]
    assert Counter(one for one in found if not one.startswith(b"stranger")) == Counter(expected)


def test_what_nobody_can_tell_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    url, path = f"qewqew:{tmp_path / 'q'}", tmp_path / "q"
    drain, written, stamp = staged(url, 20, 0, chunk=10_000)
    with monkeypatch.context() as patched:
        Dying(patched, 1, False)
        with pytest.raises(Killed):
            publish(path, [written], stamp, drain)
    with qewqew.DurableQueue(path, sync="never", chunk_size=1000) as stranger:
        stranger.enqueue_many([*messages(500, 30), *[b"x" * 900] * 3])
        assert len(stranger.dequeue_many(32)) == 32
    drain, written, stamp = staged(url, 20, 0, task=1, chunk=10_000)
    with pytest.raises(QueueError, match="cannot be told: the queue has grown"):
        drain.commit([written], stamp)


def test_a_directory_that_is_missing_is_named(tmp_path: Path) -> None:
    with pytest.raises(QueueNotFound, match=r"there is no directory .*/missing, make it first"):
        staged(f"qewqew:{tmp_path / 'missing' / 'q'}", 1, 0)


def test_a_message_too_large_fails_its_task(tmp_path: Path) -> None:
    with pytest.raises(MessageTooLarge, match=r"2000 bytes.*988"):
        staged(f"qewqew:{tmp_path / 'q'}", 1, 0, size=2_000)
