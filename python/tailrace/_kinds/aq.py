"""aq: one file, recognised by the cross-check word of its header."""

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tailrace._kinds.base import Option, boolean, size
from tailrace._kinds.one_file import OneFile
from tailrace.errors import FormatError

__all__ = ["Aq"]

#: Version, options, size, page size shift, page count, memory offset, commit timeout, cross-check.
HEADER = struct.Struct("<8I")


class Aq(OneFile):
    """The allocating queue."""

    scheme = "aq"
    options = (
        Option("size", size, 1 << 20, "bytes of the queue's memory"),
        Option("page_size", size, 64, "bytes of a page, a power of two"),
        Option("commit_timeout", float, 0.5, "seconds after which an uncommitted claim may be given out as incomplete"),
        Option("crc32", boolean, False, "a checksum with every item"),
        Option("link_identifier", boolean, False, "a number of the user's own with every item"),
        Option("extendable", boolean, False, "items can grow"),
    )

    def queue(self) -> Any:
        from tailrace import aq

        return aq.Queue

    def writer(self, rest: str) -> Any:
        # Any file can be opened, to be formatted: only a queue may be shown, filled or removed as one.
        queue = super().writer(rest)
        if not queue.is_formatted:
            queue.close()
            raise FormatError(f"{rest} is not formatted as an aq queue")
        return queue

    reader = writer

    def urls(self, path: Path) -> Iterator[str]:
        with path.open("rb") as file:
            head = file.read(HEADER.size)
        if len(head) < HEADER.size:
            return
        version, options, length, shift, pages, offset, _, check = HEADER.unpack(head)
        whole = (shift << 26 | offset << 14 | pages) & 0xFFFFFFFF
        if version == 1 and options < 8 and 2 <= pages <= 1 << 20 and whole == check and length <= path.stat().st_size:
            yield f"aq:{path}"

    def news(self, rest: str, after: int | None) -> tuple[int, list[bytes]]:
        with self.writer(rest) as queue:
            items = [item for item in queue.snapshot() if item.is_committed]
        # At first only what waits; later also what was released between two looks.
        if after is None:
            last = max((item.position for item in items), default=-1)
            return last, [bytes(item) for item in items if not item.is_released]
        fresh = [item for item in items if item.position > after]
        return max((item.position for item in fresh), default=after), [bytes(item) for item in fresh]
