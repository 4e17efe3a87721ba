"""qewqew beside queuelib, plyvel and sqlite3, and beside what the disk can do.

python benches/python/qewqew.py [directory]

Every line puts N messages and then gets them all, in a directory of its own on the same disk; a round trip is one of
each. Five rounds, in which the lines take turns; medians count, and a ratio is the median of the rounds' ratios. The
limits are a file whose blocks were written before: one pwrite+fdatasync for a message, and two in order (the message,
then the pointer to it), which the format by itself would need; and one into blocks that are only allocated, as those
of a new chunk are. Needs the packages of the "bench" extra.
"""

import os
import shutil
import sqlite3
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import plyvel
import queuelib

from tailrace import qewqew

ROUNDS = 5
BATCH = 100
SIZES = {"64 B": 64, "1 KiB": 1024}

Work = tuple[Callable[[], None], Callable[[], None]]
Line = Callable[[Path, int, bytes], Work]


def ours(*, batch: int = 1, **options: object) -> Line:
    """Give a line of qewqew: messages one by one or in batches."""

    def line(directory: Path, count: int, message: bytes) -> Work:
        queue = qewqew.DurableQueue(directory / "q", **options)  # type: ignore[arg-type]

        def put() -> None:
            if batch > 1:
                messages = [message] * batch
                for _ in range(count // batch):
                    queue.enqueue_many(messages)
                return
            for _ in range(count):
                queue.enqueue(message)

        def get() -> None:
            if batch > 1:
                for _ in range(count // batch):
                    assert len(queue.dequeue_many(batch)) == batch
            else:
                for _ in range(count):
                    assert queue.dequeue() is not None
            assert queue.is_empty()
            queue.close()

        return put, get

    return line


def grouped(directory: Path, count: int, message: bytes) -> Work:
    """Give a line of qewqew in the mode "group": 100 enqueues share a sync()."""
    queue = qewqew.DurableQueue(directory / "q", sync="group")

    def put() -> None:
        for number in range(1, count + 1):
            queue.enqueue(message)
            if number % BATCH == 0:
                queue.sync()

    def get() -> None:
        for _ in range(count):
            assert queue.dequeue() is not None
        queue.close()

    return put, get


def disk_queue(directory: Path, count: int, message: bytes) -> Work:
    """Give a line of queuelib, which never syncs."""
    queue = queuelib.FifoDiskQueue(str(directory / "q"))

    def put() -> None:
        for _ in range(count):
            queue.push(message)

    def get() -> None:
        for _ in range(count):
            assert queue.pop() is not None
        queue.close()

    return put, get


def leveldb(*, sync: bool, batch: int = 1) -> Line:
    """Give a line of LevelDB: put under a counting key, take the first key and delete it."""

    def line(directory: Path, count: int, message: bytes) -> Work:
        db = plyvel.DB(str(directory / "q"), create_if_missing=True)
        keys = [number.to_bytes(8, "big") for number in range(count)]

        def put() -> None:
            for start in range(0, count, batch):
                with db.write_batch(sync=sync) as writes:
                    for key in keys[start : start + batch]:
                        writes.put(key, message)

        def get() -> None:
            for first in keys[::batch]:
                # From the first key on that is left: an iterator from the start would step over all that were deleted.
                with db.iterator(start=first) as entries, db.write_batch(sync=sync) as writes:
                    for (key, _value), _ in zip(entries, range(batch), strict=False):
                        writes.delete(key)
            db.close()

        return put, get

    return line


def database(*, synchronous: str, batch: int = 1) -> Line:
    """Give a line of sqlite3 with a write-ahead log: INSERT, and DELETE of the first rows RETURNING them."""

    def line(directory: Path, count: int, message: bytes) -> Work:
        db = sqlite3.connect(directory / "q", isolation_level=None)
        db.execute("PRAGMA journal_mode=WAL")
        db.execute(f"PRAGMA synchronous={synchronous}")
        db.execute("CREATE TABLE q (id INTEGER PRIMARY KEY, data BLOB)")
        take = f"DELETE FROM q WHERE id IN (SELECT id FROM q ORDER BY id LIMIT {batch}) RETURNING data"

        def put() -> None:
            for _ in range(0, count, batch):
                db.execute("BEGIN IMMEDIATE")
                db.executemany("INSERT INTO q (data) VALUES (?)", [(message,)] * batch)
                db.execute("COMMIT")

        def get() -> None:
            for _ in range(0, count, batch):
                assert len(db.execute(take).fetchall()) == batch
            db.close()

        return put, get

    return line


def limit(writes: int, batch: int = 1, *, new: bool = False) -> Line:
    """Give what the disk allows: so many ordered pwrite+fdatasync for a message, or for a batch of them."""

    def line(directory: Path, count: int, message: bytes) -> Work:
        size = (len(message) + 2) * batch
        file = os.open(directory / "limit", os.O_RDWR | os.O_CREAT)
        length = size * (count // batch) + 10
        if new:
            os.posix_fallocate(file, 0, length)
        else:
            os.pwrite(file, bytes(length), 0)
        os.fsync(file)
        data, pointer = b"x" * size, b"12345678"

        def put() -> None:
            at = 10
            for _ in range(count // batch):
                os.pwrite(file, data, at)
                os.fdatasync(file)
                if writes == 2:
                    os.pwrite(file, pointer, 0)
                    os.fdatasync(file)
                at += size

        return put, lambda: os.close(file)

    return line


ONE, TWO = "limit: one pwrite+fdatasync", "limit: two ordered ones"
NEW = "limit: one, into new blocks"
QUEUELIB, SQLITE = "queuelib FifoDiskQueue", "sqlite3 WAL, FULL, 100 per transaction"

# Of each table: the lines, how many messages, and which line the ratio is to (of the puts alone where it is a limit).
TABLES: dict[str, tuple[dict[str, tuple[Line, str | None]], int]] = {
    "no sync": (
        {
            QUEUELIB: (disk_queue, None),
            "plyvel (LevelDB)": (leveldb(sync=False), QUEUELIB),
            "sqlite3 WAL, OFF": (database(synchronous="OFF"), QUEUELIB),
            'qewqew sync="never"': (ours(sync="never"), QUEUELIB),
            'qewqew sync="never", crc=True': (ours(sync="never", crc=True), QUEUELIB),
            'qewqew sync="never", 100 a call': (ours(sync="never", batch=BATCH), QUEUELIB),
        },
        50_000,
    ),
    "a sync for each put": (
        {
            TWO: (limit(2), None),
            ONE: (limit(1), None),
            "plyvel (LevelDB), sync": (leveldb(sync=True), ONE),
            "sqlite3 WAL, FULL": (database(synchronous="FULL"), ONE),
            'qewqew sync="always"': (ours(sync="always"), ONE),
            'qewqew sync="always", crc=True': (ours(sync="always", crc=True), ONE),
        },
        400,
    ),
    "a sync for each 100 puts": (
        {
            TWO: (limit(2, BATCH), None),
            ONE: (limit(1, BATCH), None),
            NEW: (limit(1, BATCH, new=True), None),
            SQLITE: (database(synchronous="FULL", batch=BATCH), None),
            "plyvel (LevelDB), sync": (leveldb(sync=True, batch=BATCH), SQLITE),
            'qewqew sync="always", enqueue_many': (ours(sync="always", batch=BATCH), SQLITE),
            'qewqew sync="always", crc=True': (ours(sync="always", crc=True, batch=BATCH), SQLITE),
            'qewqew sync="group", sync() each 100': (grouped, SQLITE),
        },
        50_000,
    ),
}


def measure(line: Line, base: Path, count: int, message: bytes) -> tuple[float, float]:
    """Put and get once; messages per second of both."""
    directory = Path(tempfile.mkdtemp(dir=base))
    put, get = line(directory, count, message)
    started = time.perf_counter()
    put()
    between = time.perf_counter()
    get()
    ended = time.perf_counter()
    shutil.rmtree(directory)
    return count / (between - started), count / (ended - between)


def main() -> None:
    """Measure every table for both sizes and print it."""
    with tempfile.TemporaryDirectory(dir=sys.argv[1] if len(sys.argv) > 1 else ".") as base:
        for title, (lines, count) in TABLES.items():
            for size, length in SIZES.items():
                rounds: dict[str, list[tuple[float, float]]] = {name: [] for name in lines}
                for _ in range(ROUNDS):
                    for name, (line, _) in lines.items():
                        rounds[name].append(measure(line, Path(base), count, bytes(length)))
                print(f"{title}, {size}: thousands a second")
                for name, (_, beside) in lines.items():
                    put, get = (statistics.median(rates) for rates in zip(*rounds[name], strict=True))
                    text = f"  {name:42} put {put / 1e3:8.2f}"
                    if not name.startswith("limit"):
                        text += f"  get {get / 1e3:8.2f}  round trip {1 / (1 / put + 1 / get) / 1e3:8.2f}"
                    if beside is not None:
                        times = ratio(rounds[name], rounds[beside], puts=beside.startswith("limit"))
                        text += f"  {times:6.2f}x {beside}"
                    print(text)


def ratio(own: list[tuple[float, float]], other: list[tuple[float, float]], *, puts: bool) -> float:
    """Compare puts, or round trips, round by round."""

    def rate(line: tuple[float, float]) -> float:
        return line[0] if puts else 1 / (1 / line[0] + 1 / line[1])

    return statistics.median(rate(a) / rate(b) for a, b in zip(own, other, strict=True))


if __name__ == "__main__":
    main()
