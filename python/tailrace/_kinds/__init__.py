"""The five kinds of queue behind one small face, for the command line and metrics.

The queues keep five contracts, so this is no common queue class: it only knows how each kind is created with sensible
parameters, opened to put, to get or just to look, recognised on disk and removed.
"""

import stat
from collections.abc import Iterator
from pathlib import Path

from tailrace._kinds.aq import Aq
from tailrace._kinds.base import Kind, Option
from tailrace._kinds.conq import Conq
from tailrace._kinds.mcp import Mcp
from tailrace._kinds.qewqew import Qewqew
from tailrace._kinds.ring import Ring
from tailrace._url import split

__all__ = ["KINDS", "Kind", "Option", "find", "queues_in"]

#: By scheme. Those whose files begin with a magic number are asked first when a file is to be recognised.
KINDS: dict[str, Kind] = {kind.scheme: kind for kind in (Conq(), Mcp(), Ring(), Aq(), Qewqew())}


def find(url: str) -> tuple[Kind, str]:
    """Give the kind of a URL, and the rest of the URL.

    >>> kind, rest = find("ring:/dev/shm/latest")
    >>> kind.scheme, rest
    ('ring', '/dev/shm/latest')
    """
    scheme, rest = split(url)
    return KINDS[scheme], rest


def queues_in(directory: Path, depth: int = 1) -> Iterator[str]:
    """Give the URLs of all queues in a directory and, up to ``depth``, below it."""
    for path in sorted(directory.iterdir()):
        try:
            mode = path.lstat().st_mode
            if stat.S_ISDIR(mode) and depth > 0:
                yield from queues_in(path, depth - 1)
            elif stat.S_ISREG(mode):
                yield from _recognised(path)
        except (PermissionError, FileNotFoundError):
            # Not ours to look at, or gone while we looked.
            continue


def _recognised(path: Path) -> Iterator[str]:
    for kind in KINDS.values():
        urls = list(kind.urls(path))
        if urls:
            yield from urls
            return
