"""What the queues have in common that are one file each."""

from abc import abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tailrace._kinds.base import Kind

__all__ = ["OneFile"]


class OneFile(Kind):
    """A queue in a file of its own."""

    @abstractmethod
    def queue(self) -> Any:
        """Give the class, which is imported when somebody asks for it."""

    def create(self, rest: str, options: Mapping[str, Any]) -> None:
        self.queue().create(rest, **options).close()

    def writer(self, rest: str) -> Any:
        return self.queue().open(rest)

    reader = writer

    def remove(self, rest: str) -> None:
        # What is no such queue is refused before anything is removed.
        self.writer(rest).close()
        Path(rest).unlink()

    def files(self, rest: str) -> list[Path]:
        return [Path(rest)]
