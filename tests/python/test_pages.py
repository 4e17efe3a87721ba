"""The pages that we draw, in a browser: not that a file exists, but what is seen in it."""

import re
import subprocess
import sys

import pytest

from browser import Picture, drawn, needs_chromium
from tailrace import aq
from tailrace._plot import round_ticks
from tailrace.cli.pagemap import COLOURS, PageMap, page_of
from tailrace.demo.compare import Verdict
from tailrace.demo.record import QUEUES, STAGES, Kill, Record, Sample
from tailrace.demo.report import report


def rgb(colour: str) -> tuple[int, int, int]:
    return tuple(bytes.fromhex(colour.removeprefix("#")))


def css(colour: str) -> str:
    return "rgb({}, {}, {})".format(*rgb(colour))


def a_run(verdict: Verdict) -> Record:
    samples = [
        Sample(
            second / 2,
            dict.fromkeys(STAGES, 100 * second),
            {queue: (second * place) % 50 for place, queue in enumerate(QUEUES)},
        )
        for second in range(41)
    ]
    kills = [Kill(5.0, "producer-1", 4711, 1000), Kill(15.0, "worker-1", 4712, 3000)]
    return Record(4000, "Arrow", samples, kills, {"collector": 1, "spooler": 2}, 1, verdict)


@needs_chromium
def test_the_report_draws_lines_kills_and_the_verdict(tmp_path):
    html = report(a_run(Verdict(4000, 4000)))
    lines = drawn(html, ".plot .line", tmp_path)
    assert [line["name"] for line in lines] == [*STAGES, *QUEUES]
    plots = drawn(html, ".plot", tmp_path)
    assert len(plots) == 2
    for plot in plots:
        assert plot["width"] > 800
        assert plot["height"] > 200
    # A rate of 200 flights a second all the time is a line across the whole plot; depths go up and down.
    rates, depths = lines[: len(STAGES)], lines[len(STAGES) :]
    assert all(line["width"] > 0.85 * plots[0]["width"] for line in rates)
    assert max(line["height"] for line in depths) > 100
    assert len({line["stroke"] for line in rates}) == len(STAGES)

    marks = drawn(html, ".plot .mark", tmp_path)
    assert len(marks) == 4
    assert all(mark["dash"] != "none" and mark["height"] > 150 for mark in marks)
    # The kills were after a quarter and three quarters of the run.
    left, width = rates[0]["x"], rates[0]["width"]
    assert [(mark["x"] - left) / width for mark in marks[:2]] == pytest.approx([0.25, 0.75], abs=0.03)
    labels = [label["text"] for label in drawn(html, ".plot .mark-label", tmp_path)]
    assert labels == ["kill -9 producer-1", "kill -9 worker-1"] * 2

    [verdict] = drawn(html, "#verdict", tmp_path)
    assert "all 4,000 rows arrived" in verdict["text"]
    assert verdict["background"] == css("#1d7a4f")
    cells = [cell["text"] for cell in drawn(html, "td", tmp_path)]
    assert cells.count("4,000") == len(STAGES)


@needs_chromium
def test_the_report_of_a_loss_is_red(tmp_path):
    html = report(a_run(Verdict(4000, 3999, missing=[17])))
    [verdict] = drawn(html, "#verdict", tmp_path)
    assert "1 missing (row 17)" in verdict["text"]
    assert verdict["background"] == css("#b3202f")
    x, y = verdict["x"] + verdict["width"] - 20, verdict["y"] + verdict["height"] / 2
    assert Picture(html, tmp_path)[x, y] == rgb("#b3202f")


def a_queue(path):
    """Every state that a page can have: released, waiting, claimed and abandoned, waste and never used."""
    queue = aq.Queue.create(path, size=2048, page_size=64)
    writer = queue.writer()
    for letter in b"AB":
        with writer.claim(100) as item:
            item.write(bytes([letter]) * 100)
    reader = queue.reader()
    reader.release(reader.retrieve())
    return queue, writer, writer.claim(60)


@needs_chromium
def test_the_page_map_shows_every_page_in_its_colour(tmp_path):
    path = tmp_path / "queue"
    queue, _writer, _claimed = a_queue(path)
    command = [sys.executable, "-m", "tailrace.cli", "snapshot", f"aq:{path}", "--html", str(tmp_path / "map.html")]
    subprocess.run(command, check=True, timeout=60)
    html = (tmp_path / "map.html").read_text()
    assert not re.search(r"https?:|<script|<link|url\(", html)

    cells = drawn(html, ".map td", tmp_path)
    rows = {}
    for cell in cells:
        rows.setdefault(cell["y"], []).append(cell)
    pointers, index, control, data, snapshot, available = list(rows.values())[:6]
    assert [cell["text"] for cell in index] == [str(number) for number in range(len(index))]
    assert [(cell["text"], cell["x"]) for cell in pointers if cell["text"]] == [
        ("Tail", index[2]["x"]),
        ("Head", index[5]["x"]),
    ]
    assert [(cell["text"], cell["span"]) for cell in control[:4]] == [
        ("2 pages commit released", 2),
        ("2 pages claim commit", 2),
        ("1 page claim", 1),
        ("unused", 1),
    ]
    assert [cell["background"] for cell in control[:4]] == [
        css(COLOURS[state]) for state in ("freed", "committed", "claimed", "unused")
    ]
    # An item is as wide as its pages.
    assert control[0]["width"] == pytest.approx(2 * index[0]["width"], rel=0.1)
    assert data[0]["text"] == "AAAAAAAAAAAA…"
    assert data[2]["text"] == "BBBBBBBBBBBB…"
    assert [cell["text"] for cell in snapshot[:3]] == ["index 0 released", "index 1", "index 2 incomplete"]
    free = [cell for cell in available if cell["text"] == "free"]
    assert free
    assert all(cell["background"] == css(COLOURS["available"]) for cell in free)
    # And in the picture itself, at the edge of each cell where no letter stands.
    picture = Picture(html, tmp_path)
    for cell, state in zip(control[:4], ("freed", "committed", "claimed", "unused"), strict=True):
        assert picture[cell["x"] + 3, cell["y"] + 3] == rgb(COLOURS[state])
    queue.close()


def test_the_page_map_of_the_document_s_example():
    """Fifteen pages of two bytes in the state that the document draws first."""
    import struct

    claim, commit, discard = 1 << 31, 1 << 30, 1 << 29
    words = [0] * 15
    words[0], words[2], words[4] = commit | 4, claim | discard | 4, claim | commit | 2
    words[5], words[7], words[9] = claim | commit | discard | 4, claim | commit | 4, claim | 2
    words[10], words[11], words[14] = claim | commit | 2, commit | 6, commit | discard | 2
    head, tail = 11, 4
    region = struct.pack("<13I", 1, 0, 146, 1, 15, 112, 500, 0, 0, 0, 0, head, tail) + struct.pack("<15I", *words)
    region += b"BBBBccccDDEEEEFFFFggHHAAAAAA\0\0"
    pages = PageMap.read(region)
    assert (pages.head, pages.tail, pages.page_size) == (11, 4, 2)
    assert [page.state for page in pages.pages] == [
        *["freed"] * 2,
        *["incomplete"] * 2,
        "committed",
        *["released"] * 2,
        *["committed"] * 2,
        "claimed",
        "committed",
        *["freed"] * 3,
        "waste",
    ]
    # The document's last line: three pages at the start, four at the end.
    assert [page.index for page in pages.pages if page.available] == [0, 1, 2, 11, 12, 13, 14]
    html = page_of(pages, "<example> & more")
    assert "&lt;example&gt; &amp; more" in html
    assert html.count('class="available"') >= 2


def test_ticks_are_round_and_cover_all():
    for top in (0.3, 1, 7, 99, 1234, 5e6):
        ticks = round_ticks(top)
        assert ticks[0] == 0
        assert ticks[-2] < top <= ticks[-1]
