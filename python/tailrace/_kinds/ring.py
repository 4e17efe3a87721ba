"""ring: one file, recognised by its magic number."""

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tailrace._kinds.base import Option, count
from tailrace._kinds.one_file import OneFile

__all__ = ["Ring"]

MAGIC = struct.pack("<Q", 0x576F726B20697320)


class Ring(OneFile):
    """The ring of fixed slots."""

    scheme = "ring"
    pads = True
    options = (
        Option("max_len", count, 1024, "messages that it holds"),
        Option("msg_size", count, 8, "words of 8 bytes that every message has"),
    )

    def queue(self) -> Any:
        from tailrace import ring

        return ring.Queue

    def urls(self, path: Path) -> Iterator[str]:
        with path.open("rb") as file:
            if file.read(len(MAGIC)) == MAGIC:
                yield f"ring:{path}"

    def news(self, rest: str, after: int | None) -> tuple[int, list[bytes]]:
        with self.writer(rest) as queue:
            numbered = queue.snapshot()
        seen = -1 if after is None else after
        # A message from a foreign program has no number: it is shown once, at first.
        fresh = [(number, data) for number, data in numbered if (after is None if number is None else number > seen)]
        numbers = [number for number, _ in fresh if number is not None]
        return max(numbers, default=seen), [data for _, data in fresh]
