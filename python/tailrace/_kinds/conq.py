"""conq: a directory with one file per queue, ``NAME.conq``."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from tailrace._kinds.base import Kind, Option, behind, count, size
from tailrace._url import directory_and_name
from tailrace.errors import QueueNotFound

__all__ = ["Conq"]

MAGIC = b"tr-conq\0"


class Conq(Kind):
    """Named queues whose unfinished messages come back."""

    scheme = "conq"
    options = (
        Option("max_messages", count, 1_000_000, "messages that it holds"),
        Option("max_message_size", size, 65_536, "bytes of the longest message"),
        Option("max_bytes", size, 1 << 30, "bytes of all messages together"),
    )

    def create(self, rest: str, options: Mapping[str, Any]) -> None:
        from tailrace import conq

        directory, name = directory_and_name(rest)
        conq.QueueManager.open(directory).create_queue(name, **options)

    def writer(self, rest: str) -> Any:
        directory, name = directory_and_name(rest)
        return self._manager(directory).queue(name)

    reader = writer

    def news(self, rest: str, after: int | None) -> tuple[int, list[bytes]]:
        from tailrace._core import conq as native

        with self.writer(rest) as queue:
            return behind(native._look(queue), after)

    def remove(self, rest: str) -> None:
        directory, name = directory_and_name(rest)
        manager = self._manager(directory)
        manager.delete_queue(manager.get_queue(name))

    def files(self, rest: str) -> list[Path]:
        directory, _name = directory_and_name(rest)
        return [path for path in Path(directory).glob("*.conq") if f"conq:{rest}" in self.urls(path)]

    def urls(self, path: Path) -> Iterator[str]:
        if path.suffix != ".conq" or path.name == ".conq":
            return
        with path.open("rb") as file:
            if file.read(len(MAGIC)) == MAGIC:
                yield f"conq:{path.parent}#{path.stem}"

    @staticmethod
    def _manager(directory: str) -> Any:
        from tailrace import conq

        # Opening would make the directory, and the files of a manager in any directory.
        if not any(Path(directory).glob("*.conq")):
            raise QueueNotFound(f"there are no queues in the directory {directory!r}")
        return conq.QueueManager.open(directory)
