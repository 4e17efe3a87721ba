"""mcp for Spark: at least once, bounded by the end of file; family members are partitions.

The driver-side process opens the queue for input and holds messages in place, marked as in its hands; tasks copy them
there, and Spark's commit acknowledges them. When it dies the marks revert in order. At the end of file (all writers
have closed) a stream has nothing more to read, and one with availableNow ends. A batch read shows every message that
is in the queue and holds none.

The sink opens the queue for output in its tasks. A queue whose last writer closes gives its readers the end of file,
which must not happen between micro-batches: somebody has to keep the file open from the first micro-batch to the end
of the query. In sessions of :func:`tailrace.spark.session` a listener in the user's own process does that for every
query that writes to mcp (see :mod:`tailrace.spark.ending`), and readers get the end of file when the query ends, not
before. In other sessions each worker process keeps what it has opened, and the end of file comes when Spark ends its
workers.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa

from tailrace import mcp
from tailrace._core import mcp as native
from tailrace._url import directory_and_name
from tailrace.errors import MessageNotFound, QueueError, QueueNotFound
from tailrace.spark import ending
from tailrace.spark.options import Options
from tailrace.spark.queues import Attempt, Drain, Feed, Part, Stamp, Written, put_all
from tailrace.spark.queues.cursor import Lengths, identified
from tailrace.spark.queues.holding import HoldingFeed, copied_parts
from tailrace.spark.queues.tokens import Tokens, none, pieces, tokens_of

__all__ = ["make_drain", "make_feed", "open_file"]

#: Messages held in one call.
GULP = 4096

_writers: dict[tuple[str, str], Any] = {}


def make_feed(options: Options) -> Feed:
    """Read a queue file."""
    return McpFeed(options)


def make_drain(options: Options) -> Drain:
    """Write to a queue file."""
    return McpDrain(options)


def open_file(options: Options, mode: str) -> Any:
    """Open the queue file of a URL; one that is not there is not created, since nobody says with what parameters."""
    directory, name = directory_and_name(options.rest)
    # The members of a family have names of their own behind its name.
    found = next(
        (one for one in mcp.queues(directory) if one["name"] == name or one["name"].startswith(f"{name}/###")), None
    )
    if found is None:
        raise QueueNotFound(
            f"there is no queue file {name!r} in {directory}: open it first, with its sizes and keep=True"
        )
    members = found["family_size"]
    if options.key is not None and options.key > max(1, members):
        raise ValueError(
            f"option 'key' is {options.key}, but {options.url!r} has "
            + (f"{members} members: expected 1 to {members}" if members else "no members: leave it out")
        )
    return mcp.QueueFile.open(name, mode, system=directory, family_size=members, keep=found["keep"])


class McpFeed(HoldingFeed):
    """Numbers count the messages of the whole queue system."""

    def snapshot(self) -> list[Part]:
        """Every message of the queue."""
        with open_file(self.options, "input") as file:
            values, packed = native._look(file)
        tokens = tokens_of(packed)
        if self.options.key is not None:
            wanted = tokens["first"] == self.options.key - 1
            values, tokens = values.filter(pa.array(wanted)), tokens[wanted]
        return copied_parts(self.options.url, values, tokens, self.members(tokens))

    def identity(self) -> str:
        """Name the file of the system as it is in this boot, and the queue in it: its numbers are the system's."""
        if "identity" not in self.handles:
            systems = self._file().path.glob("mcp-*.system")
            present = max(systems, key=lambda path: path.stat().st_mtime)
            self.handles["identity"] = f"{identified(present)}#{directory_and_name(self.options.rest)[1]}"
        return str(self.handles["identity"])

    def take(self, limit: int) -> Tokens:
        """Hold what is there."""
        held = none()
        while len(held) < limit:
            more = tokens_of(native._hold(self._file(), min(GULP, limit - len(held)), self.options.key))
            if not len(more):
                break
            held = np.concatenate((held, more))
        return held

    def wait(self, seconds: float) -> None:
        """Wait for a message that comes, or comes back."""
        mcp.wait(seconds, self._file())

    def let_go(self, tokens: Tokens) -> None:
        """Acknowledge."""
        native._acknowledge(self._file(), tokens.tobytes())

    def copy(self, tokens: Tokens) -> Iterator[tuple[Tokens, pa.BinaryArray]]:
        """Copy messages in the hands of the driver-side process."""
        with open_file(self.options, "input") as file:
            for piece in pieces(tokens["length"], self.options.batch_rows):
                try:
                    yield tokens[piece], native._copy(file, tokens[piece].tobytes())
                except MessageNotFound as error:
                    raise QueueError(
                        f"{self.options.url!r}: {error}, so the driver that held it is gone. Start the query again"
                    ) from None

    def waiting_count(self) -> int:
        """Messages that can be read."""
        count: int = self._file().qsize()
        return count

    def patience(self) -> float:
        """The death of a holder is noticed by whoever looks around next."""
        return 5.0

    def members(self, tokens: Tokens) -> Any:
        """The family member, counted from 1."""
        return tokens["first"].astype(np.int64) + 1

    def _file(self) -> Any:
        if "file" not in self.handles:
            file = open_file(self.options, "input")
            if not file.info()["parameters"]["keep"]:
                file.close()
                raise ValueError(
                    f"{self.options.url!r} was opened without keep=True: it and its messages would vanish with its "
                    "last user. Open it with keep=True to read it as a stream"
                )
            self.handles["file"] = file
            mapped = [path for path in file.path.iterdir() if path.is_file() and path.stat().st_size]
            self.handles["lengths"] = Lengths(self.options.url, mapped)
        self.handles["lengths"].check()
        return self.handles["file"]


class McpDrain(Drain):
    """Writes in the task: at least once."""

    def write(self, messages: Iterator[pa.BinaryArray], attempt: Attempt) -> Written:
        """Write, or fail the task when there is no room for too long."""
        place = directory_and_name(self.options.rest)
        if self.options.eof == "driver" or ending.keep(_run(attempt), self.options.url):
            # Somebody has the file open for the length of the query.
            with open_file(self.options, "output") as file:
                return Written(self._put(file, messages), attempt)
        if place not in _writers:
            _writers[place] = open_file(self.options, "output")
        return Written(self._put(_writers[place], messages), attempt)

    def commit(self, written: list[Written], stamp: Stamp | None) -> None:
        """A batch is over; a stream goes on until its query ends."""
        if stamp is None and written:
            ending.end(_run(written[0].attempt))

    def abort(self, written: list[Written], stamp: Stamp | None) -> None:
        """A batch that failed is over, too."""
        self.commit(written, stamp)

    def _put(self, file: Any, messages: Iterator[pa.BinaryArray]) -> int:
        rows = 0
        for array in messages:
            rows += put_all(
                file, array, self.options, **({} if self.options.key is None else {"key": self.options.key})
            )
        return rows


def _run(attempt: Attempt) -> str:
    """Name what the file is to be kept open for: this run of a query, or the job of a batch."""
    return attempt.stamp.run if attempt.stamp else attempt.job
