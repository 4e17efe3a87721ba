"""info, ls, top and snapshot."""

import time
from collections import deque
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.live import Live
from rich.table import Table

from tailrace import _metrics
from tailrace._kinds import find, queues_in
from tailrace.cli.making import Url
from tailrace.cli.output import AsJson, add_row, complain, console, print_json, print_pairs, print_table

__all__ = ["COMMANDS"]


def info(url: Url, json: AsJson = False) -> None:
    """Show format, parameters, counters, participants and the promises that hold for a queue."""
    kind, rest = find(url)
    found = {"url": url, **kind.describe(rest), "files": [str(path) for path in kind.files(rest)]}
    if json:
        print_json(found)
    else:
        print_pairs(found)


COLUMNS = {
    "url": "queue",
    "kind": "kind",
    "depth": "depth",
    "bytes": "bytes",
    "users_alive": "alive",
    "users_dead": "dead",
    "error": "",
}


def ls(
    directory: Annotated[
        Path, typer.Argument(metavar="[DIR]", help="Where to look; queues in memory are in /dev/shm.")
    ] = Path("/dev/shm"),
    depth: Annotated[int, typer.Option("--depth", "-d", min=0, help="Directories below that are looked into.")] = 2,
    json: AsJson = False,
) -> None:
    """List the queues in a directory: kind, depth, size, users alive and dead."""
    rows = []
    for url in queues_in(directory, depth):
        row: dict[str, Any] = dict.fromkeys(COLUMNS)
        row.update(url=url, kind=url.partition(":")[0])
        try:
            numbers = _metrics.metrics(url)
            row.update({name: numbers[name] for name in ("depth", "bytes", "users_alive", "users_dead")})
        except Exception as error:
            # One queue that cannot be read must not hide the others.
            row["error"] = str(error)
        rows.append(row)
    if json:
        print_json(rows)
        return
    if not rows:
        complain(f"there are no queues in {directory}")
        return
    columns = COLUMNS if any(row["error"] for row in rows) else {k: v for k, v in COLUMNS.items() if v}
    print_table(columns, [{**row, "error": row["error"] or ""} for row in rows])


def top(
    urls: Annotated[list[str], typer.Argument(metavar="URL...", help="The queues to watch.")],
    interval: Annotated[float, typer.Option("--interval", "-i", min=0.05, help="Seconds between two looks.")] = 1.0,
    count: Annotated[int | None, typer.Option("--count", "-n", min=1, help="Looks; without it until Ctrl-C.")] = None,
    json: AsJson = False,
) -> None:
    """Watch depth, rates and the age of the oldest message of several queues."""
    watches = [_Watch(url) for url in urls]
    looks = 0
    if json or not console().is_terminal:
        # A pipe gets each look as it comes: what is drawn over itself would arrive at the end, if it comes.
        while count is None or looks < count:
            time.sleep(interval if looks else 0)
            now = [watch.look() for watch in watches]
            if json:
                print_json(now)
            else:
                console().print(_top_table(now))
            looks += 1
        return
    with Live(_top_table([watch.look() for watch in watches]), console=console(), auto_refresh=False) as live:
        while count is None or looks + 1 < count:
            time.sleep(interval)
            live.update(_top_table([watch.look() for watch in watches]), refresh=True)
            looks += 1


#: What each kind counts when a message comes in.
_ARRIVED = {"aq": "commit_counter", "conq": "enqueued", "mcp": "written", "qewqew": "appended", "ring": "enqueued"}


class _Watch:
    """One queue of ``top``: what it counted at each look since its oldest message came."""

    def __init__(self, url: str) -> None:
        find(url)
        self.url = url
        self.before: tuple[float, int, int] | None = None
        #: Times, and how many messages had come by then.
        self.arrivals: deque[tuple[float, int]] = deque(maxlen=100_000)
        self.arrived = 0

    def look(self) -> dict[str, Any]:
        now = time.monotonic()
        numbers = _metrics.metrics(self.url)
        depth, counters = numbers["depth"], numbers["counters"]
        arrived = int(counters.get(_ARRIVED[numbers["kind"]], 0))
        put = got = None
        came = 0
        if self.before is not None:
            then, arrived_then, depth_then = self.before
            # The counters of an aq have 32 bits.
            came = (arrived - arrived_then) % (1 << 32)
            put = came / (now - then)
            got = (came - (depth - depth_then)) / (now - then)
        self.before = (now, arrived, depth)
        oldest_age = counters.get("oldest_age")
        if oldest_age is None:
            oldest_age = self._watched_age(now, came, depth)
        return {
            "url": self.url,
            "depth": depth,
            "put_per_second": put and round(put, 1),
            "taken_per_second": got and round(got, 1),
            "oldest_age": oldest_age and round(oldest_age, 3),
            "users_alive": numbers["users_alive"],
            "users_dead": numbers["users_dead"],
        }

    def _watched_age(self, now: float, came: int, depth: int) -> float | None:
        """Say how long the oldest message was seen to wait, at least: only conq writes down when each one came."""
        self.arrived += came
        self.arrivals.append((now, self.arrived))
        # The oldest message is the one behind all that were taken.
        taken = self.arrived - depth
        while len(self.arrivals) > 1 and self.arrivals[0][1] <= taken:
            self.arrivals.popleft()
        return now - self.arrivals[0][0] if depth else None


def _top_table(rows: list[dict[str, Any]]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    heads = ("queue", "depth", "put/s", "taken/s", "oldest, s", "alive", "dead")
    for head in heads:
        table.add_column(head, justify="left" if head == "queue" else "right")
    for row in rows:
        add_row(table, row.values())
    return table


def snapshot(
    url: Url,
    html: Annotated[Path | None, typer.Option("--html", help="Write the coloured page map to this file (aq).")] = None,
    json: AsJson = False,
) -> None:
    """Show what is in an aq queue without touching it: every item, released ones too, and the map of its pages."""
    kind, rest = find(url)
    if kind.scheme != "aq":
        raise ValueError(f"{url!r} has no snapshot of pages: only aq queues are made of pages (tail shows messages)")
    from tailrace import aq
    from tailrace.cli import pagemap

    with aq.Queue.open(rest) as queue:
        pages = pagemap.PageMap.of(queue)
        items = pages.items
    if html:
        html.write_text(pagemap.page_of(pages, url))
    if json:
        print_json({"url": url, "head": pages.head, "tail": pages.tail, "pages": len(pages.pages), "items": items})
    elif not html:
        columns = {
            "index": "item",
            "page": "page",
            "pages": "pages",
            "bytes": "bytes",
            "state": "state",
            "data": "data",
        }
        print_table(columns, items)


COMMANDS = (info, ls, top, snapshot)
