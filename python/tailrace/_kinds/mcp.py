"""mcp: the queue system of a directory, with its queues inside ``mcp-BOOT.system``."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from tailrace._kinds.base import Kind, Option, behind, count, size
from tailrace._url import directory_and_name
from tailrace.errors import QueueExists, QueueNotFound

__all__ = ["Mcp"]

MAGIC = b"TRMCPQS1"


class Mcp(Kind):
    """Queue files. Those made here outlive their users, for a command is a short-lived user."""

    scheme = "mcp"
    options = (
        Option("max_messages", count, 1000, "messages that it holds"),
        Option("buffers", count, 1000, "of those, how many in memory; the rest goes to disk"),
        Option("record_size", size, 65_536, "bytes of the longest message"),
        Option("family_size", count, 0, "members, each a queue of its own; 0 is a single queue"),
    )

    def create(self, rest: str, options: Mapping[str, Any]) -> None:
        from tailrace import mcp

        directory, name = directory_and_name(rest)
        if self._members(directory, name):
            raise QueueExists(f"there is a queue {name!r} in {directory!r} already")
        mcp.QueueFile.open(name, "input", system=directory, keep=True, **options).close()

    def writer(self, rest: str) -> Any:
        return self._open(rest, "output")

    def reader(self, rest: str) -> Any:
        return self._open(rest, "input")

    def news(self, rest: str, after: int | None) -> tuple[int, list[bytes]]:
        from tailrace._core import mcp as native

        with self.reader(rest) as file:
            return behind(native._look(file), after)

    def describe(self, rest: str) -> dict[str, Any]:
        # A writer's close could be the last one, which readers take for the end.
        with self._open(rest, "input") as file:
            info: dict[str, Any] = file.info()
        return info

    def remove(self, rest: str) -> None:
        with self._open(rest, "input") as file:
            file.forget()

    def files(self, rest: str) -> list[Path]:
        directory, _ = directory_and_name(rest)
        return sorted(Path(directory).glob("mcp-*"))

    def urls(self, path: Path) -> Iterator[str]:
        if not (path.name.startswith("mcp-") and path.suffix == ".system"):
            return
        with path.open("rb") as file:
            if file.read(len(MAGIC)) != MAGIC:
                return
        from tailrace import mcp

        for queue in mcp.queues(str(path.parent)):
            if queue["member"] <= 1:
                yield f"mcp:{path.parent}#{_file_name(queue)}"

    def _open(self, rest: str, mode: str) -> Any:
        from tailrace import mcp

        directory, name = directory_and_name(rest)
        # Opening would make the directory and the queue.
        if not (members := self._members(directory, name)):
            raise QueueNotFound(f"there is no queue {name!r} in {directory!r}")
        return mcp.QueueFile.open(name, mode, system=directory, family_size=members[0]["family_size"])

    @staticmethod
    def _members(directory: str, name: str) -> list[dict[str, Any]]:
        from tailrace import mcp

        # Names have two parts of ten characters; without a slash the first ten are the first part.
        wanted = name if "/" in name or len(name) <= 10 else f"{name[:10].rstrip()}/{name[10:]}"
        return [queue for queue in mcp.queues(directory) if _file_name(queue) == wanted]


def _file_name(queue: Mapping[str, Any]) -> str:
    """Give the name under which a queue is opened: all members of a family have the same."""
    name: str = queue["name"]
    return name.rpartition("/")[0] if queue["member"] else name
