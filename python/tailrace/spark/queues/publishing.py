"""Publishing a batch of messages to a qewqew queue once, however often it is tried and wherever it is killed.

Tasks stage their messages in files: chunk files, which become part of the queue as they are, or a file of bare entries
where there are few. ``NAME.sink`` says which batch of which query was published last, and which one is being
published, with its files. Whoever publishes next first completes a batch that was begun. So a batch is published from
the moment that ``NAME.sink`` names it, and never twice; other producers may append all the while:

- A chunk is moved to its place under the queue's append lock and then linked by one store. If its file is still under
  its staged name it was not published; if it is not, it was, or lies in its place and is linked now.
- Bare entries are appended by one step, at the place where the queue ended when ``NAME.sink`` was written; where
  others have appended since, they become a chunk. If the queue has grown, and has exactly these entries there, they
  were appended; otherwise they were not. Only when somebody has consumed that place before anybody could look, and
  others have appended as well, nobody can tell: that is an error and not a guess.

A lock lets one sink publish at a time.
"""

import fcntl
import json
import os
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tailrace._core import qewqew as native
from tailrace.errors import CorruptQueue, MessageNotFound, QueueError
from tailrace.spark.queues.cursor import durably_replace

__all__ = ["Ledger"]

#: How many queries are remembered; the oldest are forgotten first.
REMEMBERED = 10_000
#: Bytes in front of the entries of a chunk.
HEADER = 10


class Ledger:
    """``NAME.sink``, in the hands of this process."""

    def __init__(self, queue: str, chunk_size: int, is_durable: bool = True) -> None:
        self.queue = queue
        self.chunk_size = chunk_size
        self.is_durable = is_durable
        self.path = Path(f"{queue}.sink")

    @contextmanager
    def held(self) -> Iterator["Ledger"]:
        """Let nobody else publish meanwhile."""
        descriptor = os.open(f"{self.path}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield self
        finally:
            os.close(descriptor)

    def read(self) -> dict[str, Any]:
        """Give what is published and what is begun."""
        try:
            noted = json.loads(self.path.read_text())
            return {"published": dict(noted["published"]), "begun": noted["begun"]}
        except FileNotFoundError:
            return {"published": {}, "begun": None}
        except (ValueError, KeyError, TypeError):
            raise CorruptQueue(f"{self.path} is not a sink's ledger") from None

    def publish(self, durable: Any, query: str, batch: int, files: list[str]) -> bool:
        """Append the messages of staged files to an open queue, unless that was done; says whether it did."""
        noted = self.read()
        if noted["begun"] is not None:
            noted = self._complete(durable, noted)
        if noted["published"].get(query, -1) >= batch:
            return False
        # What a killed producer left unlinked comes before this batch, not into it.
        native._adopt(durable)
        noted["begun"] = {"query": query, "batch": batch, "files": files, "from": durable.tail_position, "step": 0}
        self._write(noted)
        self._complete(durable, noted, is_new=True)
        return True

    def _complete(self, durable: Any, noted: dict[str, Any], *, is_new: bool = False) -> dict[str, Any]:
        begun = noted["begun"]
        native._adopt(durable)
        self._append_entries(durable, noted, is_new)
        for name in begun["files"]:
            if name.endswith(".chunk"):
                native._publish_chunk(durable, name)
        published = {name: number for name, number in noted["published"].items() if name != begun["query"]}
        published[begun["query"]] = begun["batch"]
        noted = {"published": dict(list(published.items())[-REMEMBERED:]), "begun": None}
        self._write(noted)
        return noted

    def _append_entries(self, durable: Any, noted: dict[str, Any], is_new: bool) -> None:
        """Append the bare entries of a batch, or make chunks of them while others are appending all the time."""
        begun = noted["begun"]
        for step, framed in enumerate(self._pieces(begun["files"])):
            if step < begun["step"]:
                continue
            if step > begun["step"]:
                begun |= {"step": step, "from": durable.tail_position}
                self._write(noted)
            elif not is_new and self._is_appended(durable, begun, framed):
                continue
            if native._publish_framed(durable, framed, begun["from"]):
                continue
            rest = list(self._pieces(begun["files"]))[step:]
            names = [name for name in begun["files"] if name.endswith(".rows")]
            # Of this attempt only: a killed one may have left some under the same names.
            prefix = f"{names[0].removesuffix('.rows')}.{uuid.uuid4().hex}"
            stage = native._Stage(prefix, self.chunk_size, self.is_durable)
            for piece in rest:
                stage.add(native._unframed(piece))
            chunks = [str(name) for name in stage.finish(0)]
            begun["files"] = chunks + [name for name in begun["files"] if name not in names]
            self._write(noted)
            return

    def _pieces(self, files: list[str]) -> Iterator[bytes]:
        """Put bare entries together that fit into one chunk."""
        piece = b""
        for name in files:
            if not name.endswith(".rows"):
                continue
            more = Path(name).read_bytes()
            if piece and HEADER + len(piece) + len(more) > self.chunk_size:
                yield piece
                piece = b""
            piece += more
        if piece:
            yield piece

    def _is_appended(self, durable: Any, begun: dict[str, Any], framed: bytes) -> bool:
        start, tail = begun["from"], durable.tail_position
        end = start + len(framed)
        if tail < end:
            return False
        try:
            return bool(durable.ranges().read_range_arrow(start, end).equals(native._unframed(framed)))
        except ValueError:
            # Somebody else's entries end elsewhere.
            return False
        except MessageNotFound:
            # Consumed meanwhile. Where nobody else appended the length tells.
            if tail == end:
                return True
        raise QueueError(
            f"whether micro-batch {begun['batch']} of query {begun['query']} is in {self.queue} cannot be told: the "
            f"queue has grown from {start} to {tail}, other programs have appended to it, and what was there is "
            f"consumed. The messages are in {', '.join(begun['files'])}: put them into the queue if its consumer has "
            f'not seen them, and set "begun" in {self.path} to null'
        )

    def _write(self, noted: dict[str, Any]) -> None:
        durably_replace(self.path, json.dumps(noted))
