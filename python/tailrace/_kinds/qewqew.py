"""qewqew: a head file of two bytes and chunk files beside it.

A queue that was emptied has no files, so one that is missing is empty.
"""

import re
import struct
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

from tailrace._kinds.base import Kind, Option, size
from tailrace.errors import QueueExists

__all__ = ["Qewqew"]

#: Head pointer, tail pointer, next chunk.
CHUNK = struct.Struct(">iiH")
POSITIONS = ".positions"
PARTS = re.compile(r"\.(\d+|\d+\.crc|signal|positions)$")


class Qewqew(Kind):
    """The durable queue."""

    scheme = "qewqew"
    options = (Option("chunk_size", size, 1 << 20, "bytes of a chunk file; the longest message has 12 less"),)

    def create(self, rest: str, options: Mapping[str, Any]) -> None:
        if self.files(rest):
            raise QueueExists(f"there is a queue at {rest!r} already")
        with self._open(rest, "both", **options) as queue:
            # Positions outlive emptiness; without them the empty queue would leave no file behind.
            _ = queue.tail_position

    def writer(self, rest: str) -> Any:
        return self._open(rest, "producer", create=True)

    def reader(self, rest: str) -> Any:
        return self._open(rest, "consumer", create=True)

    def describe(self, rest: str) -> dict[str, Any]:
        with self._open(rest, "producer", create=bool(self.files(rest))) as queue:
            info: dict[str, Any] = queue.info()
        return info

    def remove(self, rest: str) -> None:
        with self._open(rest, "both", create=bool(self.files(rest))) as queue:
            queue.clear()
        for path in self.files(rest):
            path.unlink(missing_ok=True)

    def files(self, rest: str) -> list[Path]:
        head = Path(rest)
        beside = [path for path in head.parent.glob(f"{_literal(head.name)}.*") if _is_part(path, head)]
        return ([head] if head.is_file() else []) + sorted(beside)

    def urls(self, path: Path) -> Iterator[str]:
        if path.name.endswith(POSITIONS) and not path.with_name(path.name.removesuffix(POSITIONS)).exists():
            yield f"qewqew:{path.with_name(path.name.removesuffix(POSITIONS))}"
        elif path.stat().st_size == 2 and self._is_head(path):
            yield f"qewqew:{path}"

    def news(self, rest: str, after: int | None) -> tuple[int, list[bytes]]:
        with self._open(rest, "producer", create=bool(self.files(rest))) as queue:
            head, tail = queue.head_position, queue.tail_position
            messages: list[bytes] = queue.read_range(max(head, after or 0), tail)
        return tail, messages

    def _is_head(self, path: Path) -> bool:
        first = int.from_bytes(path.read_bytes(), "big")
        if first == 0:
            return path.with_name(path.name + POSITIONS).exists() or path.with_name(path.name + ".signal").exists()
        try:
            with path.with_name(f"{path.name}.{first % 65535}").open("rb") as chunk:
                head, tail, _ = CHUNK.unpack(chunk.read(CHUNK.size))
        except (OSError, struct.error):
            return False
        return bool(CHUNK.size <= head <= tail)

    @staticmethod
    def _open(rest: str, role: Literal["both", "producer", "consumer"], **options: Any) -> Any:
        from tailrace import qewqew

        return qewqew.DurableQueue(rest, role=role, **options)


def _is_part(path: Path, head: Path) -> bool:
    return PARTS.fullmatch(path.name[len(head.name) :]) is not None


def _literal(name: str) -> str:
    return re.sub(r"([*?\[])", r"[\1]", name)
