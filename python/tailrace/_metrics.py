"""``tailrace.metrics``: the numbers of any queue as a plain dict, under the same names for all five."""

from typing import Any

from tailrace.errors import FormatError

__all__ = ["metrics"]

#: Where each kind tells how many messages wait in it.
_DEPTH = ("messages", "message_count", "queued")


def metrics(queue: Any) -> dict[str, Any]:
    """Give the numbers of a queue, or of the queue at a URL, as a plain dict.

    ``depth`` is the number of messages that wait, ``bytes`` the space that the files take (None without files),
    ``users_alive`` and ``users_dead`` count the participants (without the one who asks, when that is by URL), and
    ``counters`` has what else the kind counts.

    >>> import tailrace
    >>> from tailrace import aq
    >>> q = aq.Queue.anonymous()
    >>> q.put(b"hello")
    >>> tailrace.metrics(q)["depth"]
    1
    """
    if isinstance(queue, str):
        # Not everybody who imports tailrace asks for numbers.
        from tailrace._kinds import find

        kind, rest = find(queue)
        info = kind.describe(rest)
        found = of_info(info)
        found["url"] = queue
        found["bytes"] = sum(path.stat().st_blocks * 512 for path in kind.files(rest) if path.exists())
        if found["users_alive"]:
            found["users_alive"] -= 1
        return found
    if not callable(getattr(queue, "info", None)):
        raise TypeError(f"metrics() takes a queue or its URL, not {queue!r}")
    return of_info(queue.info())


def of_info(info: dict[str, Any]) -> dict[str, Any]:
    """Make metrics of what ``info()`` of a queue says."""
    counters = _numbers(info.get("counters", info))
    participants = info["participants"]
    alive = participants["alive"]
    if info["kind"] == "mcp":
        # Its participants are those of the whole system; the open files of this queue are its users.
        alive = int(counters["users"])
    return {
        "kind": info["kind"],
        "url": info.get("url"),
        "depth": _depth(counters, info),
        "bytes": None,
        "users_alive": alive,
        "users_dead": participants["dead"],
        "counters": counters,
    }


def _depth(counters: dict[str, int | float], info: dict[str, Any]) -> int:
    if info["kind"] == "conq":
        return int(counters["ready"] + counters["expired"])
    for name in _DEPTH:
        if name in counters:
            return int(counters[name])
    raise FormatError(f"{info['kind']} does not tell its depth: it is not formatted")


def _numbers(given: dict[str, Any]) -> dict[str, int | float]:
    """Keep what is a number: no truth values, no text, nothing that is not known."""
    return {
        name: value for name, value in given.items() if isinstance(value, int | float) and not isinstance(value, bool)
    }
