"""The page map of an aq: what the document draws for its example, of a real queue.

Pointers, index, control, user data, snapshot and available size of every page, each state in a colour of its own. The
words are read from the region as the format documents them; a map is taken again when the head moved meanwhile.
"""

import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tailrace._html import escape, page

__all__ = ["Page", "PageMap", "page_of"]

HEADER = struct.Struct("<13I")
INDEX = (1 << 20) - 1
CLAIM, COMMIT, DISCARD = 1 << 31, 1 << 30, 1 << 29
#: Looks until the head stands still; the last one is taken as it is.
LOOKS = 20
#: Pages in one line of the map.
LINE = 16

#: By the flags of a control word: name of the state, what the document calls it.
STATES = {
    0: ("unused", "unused"),
    CLAIM: ("claimed", "claim"),
    CLAIM | COMMIT: ("committed", "claim commit"),
    CLAIM | COMMIT | DISCARD: ("released", "claim commit release"),
    COMMIT: ("freed", "commit released"),
    CLAIM | DISCARD: ("incomplete", "claim released"),
    COMMIT | DISCARD: ("waste", "waste"),
    DISCARD: ("waste", "waste"),
}

COLOURS = {
    "unused": "#eef1f4",
    "claimed": "#f6c453",
    "committed": "#6cc08b",
    "released": "#7fb2e5",
    "freed": "#c9d6e2",
    "incomplete": "#ef8f8f",
    "waste": "#b9b2a6",
    "snapshot": "#d9c8f0",
    "available": "#bfe8cf",
}


@dataclass(frozen=True)
class Page:
    """One page, or rather what the map says about it."""

    index: int
    state: str
    control: str
    #: Where the item that it belongs to starts, and how many pages that has.
    start: int
    span: int
    data: bytes
    #: The place of its item in the snapshot, and what the snapshot says of it.
    snapshot: int | None
    note: str
    available: bool


@dataclass(frozen=True)
class PageMap:
    """A queue at one moment."""

    pages: list[Page]
    head: int
    tail: int
    page_size: int
    items: list[dict[str, Any]]

    @classmethod
    def of(cls, queue: Any) -> "PageMap":
        """Take the map of an open ``aq.Queue`` that has a file."""
        path = Path(queue.path)
        for _ in range(LOOKS):
            region, items = path.read_bytes(), queue.snapshot()
            with path.open("rb") as file:
                still = HEADER.unpack(file.read(HEADER.size))[11:13] == HEADER.unpack_from(region)[11:13]
            if still:
                break
        return cls.read(region, items)

    @classmethod
    def read(cls, region: bytes, snapshot: Any = ()) -> "PageMap":
        """Read the map from the bytes of a region and the items of a snapshot."""
        _, _, _, shift, count, offset, _, _, _, _, _, head, tail = HEADER.unpack_from(region)
        head, tail = head & INDEX, tail & INDEX
        words = struct.unpack_from(f"<{count}I", region, HEADER.size)
        found = _snapshot_pages(snapshot, 1 << shift)
        free = (tail - head - 1) % count
        pages: list[Page] = []
        while len(pages) < count:
            start = len(pages)
            word = words[start]
            span = ((word & INDEX) + (1 << shift) - 1) >> shift
            state, text = STATES[word & (CLAIM | COMMIT | DISCARD)]
            if state == "unused" or not 0 < span <= count - start:
                state, text, span = "unused", "unused", 1
            control = text if state in ("unused", "waste") else f"{span} page{'s' if span > 1 else ''} {text}"
            for index in range(start, start + span):
                at = offset + (index << shift)
                place, note = found.get(index, (None, ""))
                pages.append(
                    Page(
                        index,
                        state,
                        control,
                        start,
                        span,
                        region[at : at + (1 << shift)],
                        place,
                        note,
                        (index - head) % count < free,
                    )
                )
        return cls(pages, head, tail, 1 << shift, _item_rows(snapshot, 1 << shift))


def _note(item: Any) -> str:
    notes = ([] if item.is_committed else ["incomplete"]) + (["released"] if item.is_released else [])
    return " ".join(notes)


def _snapshot_pages(snapshot: Any, page_size: int) -> dict[int, tuple[int, str]]:
    found = {}
    for place, item in enumerate(snapshot):
        for segment in item.segments or (item,):
            first = segment.queue_identifier & INDEX
            for index in range(first, first + max(1, -(-segment.capacity // page_size))):
                found[index] = (place, _note(item))
    return found


def _item_rows(snapshot: Any, page_size: int) -> list[dict[str, Any]]:
    return [
        {
            "index": place,
            "page": item.queue_identifier & INDEX,
            "pages": max(1, -(-item.capacity // page_size)),
            "bytes": len(item),
            "state": _note(item) or "waiting",
            "data": preview(bytes(item), 40),
        }
        for place, item in enumerate(snapshot)
    ]


def preview(data: bytes, limit: int) -> str:
    r"""Show the beginning of some bytes: text as it is, what cannot be shown as dots.

    >>> preview(b"hello\x00world", 8)
    'hello·wo…'
    """
    text = "".join(chr(byte) if 32 <= byte < 127 else "·" for byte in data[:limit])
    return text + ("…" if len(data) > limit else "")


_STYLE = """
.map { overflow-x: auto; } .map table { width: 100%; table-layout: fixed; margin-bottom: 1rem; }
.map th { width: 6.5rem; font-weight: 600; color: var(--soft); }
.map td { border: 1px solid var(--paper); text-align: center; padding: .2rem .15rem; font-size: 11px; overflow: hidden;
  color: #1c2733; overflow-wrap: anywhere; }
.map td.none, .map td.pointer, .map td.index { color: var(--ink); background: none; }
.map td.pointer { font-weight: 700; } .map td.index { color: var(--soft); }
.map td.data { font-family: ui-monospace, monospace; white-space: pre-wrap; }
.key span { display: inline-block; margin: 0 .6rem .3rem 0; padding: .1rem .5rem; border-radius: .2rem;
  color: #1c2733; }
""" + "\n".join(f".{name} {{ background: {colour}; }}" for name, colour in COLOURS.items())


def page_of(pages: PageMap, title: str) -> str:
    """Draw a map as a self-contained web page."""
    count = len(pages.pages)
    free = sum(one.available for one in pages.pages)
    key = "".join(f'<span class="{name}">{name}</span>' for name in COLOURS)
    body = [
        f"<h1>{escape(title)}</h1>",
        f'<p class="soft">{count:,} pages of {pages.page_size} bytes; head at {pages.head}, tail at {pages.tail}; '
        f"{free:,} pages available; {len(pages.items):,} items in the snapshot</p>",
        f'<p class="key">{key}</p>',
        '<div class="map">',
        *_lines(pages),
        "</div>",
    ]
    return page(f"tailrace: {title}", "\n".join(body), _STYLE)


def _lines(pages: PageMap) -> list[str]:
    lines: list[str] = []
    skipped: list[Page] = []
    for begin in range(0, len(pages.pages), LINE):
        line = pages.pages[begin : begin + LINE]
        plain = all(one.state == "unused" and one.snapshot is None for one in line)
        pointed = any(one.index in (pages.head, pages.tail) for one in line)
        if plain and not pointed:
            skipped += line
            continue
        lines += _skipped(skipped)
        skipped = []
        lines.append(_line(pages, line))
    return lines + _skipped(skipped)


def _skipped(run: list[Page]) -> list[str]:
    if not run:
        return []
    return [f'<p class="soft skipped">pages {run[0].index:,} to {run[-1].index:,}: unused</p>']


def _line(pages: PageMap, line: list[Page]) -> str:
    pointers = {pages.head: "Head", pages.tail: "Tail"}
    if pages.head == pages.tail:
        pointers = {pages.head: "Head Tail"}
    rows: list[tuple[str, list[tuple[str, str, Any]]]] = [
        (
            "Pointers",
            [("pointer" if one.index in pointers else "none", pointers.get(one.index, ""), one.index) for one in line],
        ),
        ("Index", [("index", str(one.index), one.index) for one in line]),
        ("Control", [(one.state, one.control, one.start) for one in line]),
        ("User Data", [(f"data {one.state}", preview(one.data, 12), one.index) for one in line]),
        ("Snapshot", [_snapshot_cell(one) for one in line]),
        (
            "Available",
            [("available" if one.available else "none", "free" if one.available else "", None) for one in line],
        ),
    ]
    body = "".join(f"<tr><th>{name}</th>{_cells(cells)}</tr>" for name, cells in rows)
    return f'<table data-from="{line[0].index}">{body}</table>'


def _snapshot_cell(one: Page) -> tuple[str, str, object]:
    if one.snapshot is None:
        return "none", "", ("none", one.index)
    return "snapshot", f"index {one.snapshot} {one.note}".strip(), one.snapshot


def _cells(cells: list[tuple[str, str, Any]]) -> str:
    """Draw cells; neighbours that belong together become one."""
    drawn: list[list[Any]] = []
    for kind, text, group in cells:
        if drawn and drawn[-1][:3] == [kind, text, group]:
            drawn[-1][3] += 1
        else:
            drawn.append([kind, text, group, 1])
    return "".join(
        f'<td class="{kind}" colspan="{span}" title="{escape(text)}">{escape(text)}</td>'
        for kind, text, _, span in drawn
    )
