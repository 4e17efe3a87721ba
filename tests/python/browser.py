"""Debian's Chromium without a window: what a page really draws, after styles and layout."""

import json
import re
import shutil
import struct
import subprocess
import zlib
from html import unescape
from pathlib import Path

import pytest

CHROMIUM = shutil.which("chromium")
needs_chromium = pytest.mark.skipif(CHROMIUM is None, reason="there is no chromium to draw the page")

#: No proxy, no background traffic: the page must do without a network.
OPTIONS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--hide-scrollbars",
    "--force-color-profile=srgb",
    "--host-resolver-rules=MAP * ~NOTFOUND",
    "--virtual-time-budget=5000",
]

#: Runs inside the page and leaves what it found in the document, where --dump-dom shows it.
PROBE = """
<script>
const found = [...document.querySelectorAll(%s)].map(e => {
  const box = e.getBoundingClientRect(), style = getComputedStyle(e);
  return {tag: e.tagName, name: e.getAttribute("data-name"), text: e.textContent, class: e.getAttribute("class"),
          span: e.colSpan || 1, x: box.x, y: box.y, width: box.width, height: box.height,
          background: style.backgroundColor, colour: style.color, stroke: style.stroke, dash: style.strokeDasharray};
});
const out = document.createElement("pre");
out.id = "probe";
out.textContent = JSON.stringify({found, requests: performance.getEntriesByType("resource").map(e => e.name)});
document.body.append(out);
</script>
"""


def run(page: Path, *arguments: str) -> bytes:
    profile = page.parent / "profile"
    command = [CHROMIUM, *OPTIONS, f"--user-data-dir={profile}", *arguments, page.as_uri()]
    return subprocess.run(command, capture_output=True, timeout=90, check=True).stdout


def drawn(html: str, selector: str, directory: Path) -> list[dict]:
    """The elements that a selector finds, with their computed places and colours. Checks that no network was asked."""
    page = directory / "probed.html"
    page.write_text(html.replace("</body>", PROBE % json.dumps(selector) + "</body>"))
    dom = run(page, "--dump-dom", "--window-size=1200,2000").decode()
    answer = json.loads(unescape(re.search(r'<pre id="probe">(.*?)</pre>', dom, re.S)[1]))
    assert answer["requests"] == []
    return answer["found"]


class Picture:
    """The pixels of a page."""

    def __init__(self, html: str, directory: Path) -> None:
        page, png = directory / "pictured.html", directory / "picture.png"
        page.write_text(html)
        run(page, f"--screenshot={png}", "--window-size=1200,2000")
        self.width, self.rows = _decoded(png.read_bytes())

    def __getitem__(self, place: tuple[float, float]) -> tuple[int, int, int]:
        x, y = (round(part) for part in place)
        size = len(self.rows[0]) // self.width
        return tuple(self.rows[y][x * size : x * size + 3])


def _decoded(png: bytes) -> tuple[int, list[bytes]]:
    """The rows of an 8-bit RGB or RGBA picture; enough for Chromium's, and no imaging library is needed."""
    at, data, head = 8, b"", None
    while at < len(png):
        length, kind = struct.unpack_from(">I4s", png, at)
        body = png[at + 8 : at + 8 + length]
        at += 12 + length
        if kind == b"IHDR":
            head = struct.unpack(">IIBBBBB", body)
        elif kind == b"IDAT":
            data += body
    width, height, depth, colours, *_ = head
    assert (depth, colours) in ((8, 2), (8, 6))
    size = 3 if colours == 2 else 4
    raw, stride, before, rows = zlib.decompress(data), width * size, bytes(width * size), []
    for row in range(height):
        start = row * (stride + 1)
        before = _unfiltered(raw[start], bytearray(raw[start + 1 : start + 1 + stride]), before, size)
        rows.append(before)
    return width, rows


def _unfiltered(kind: int, line: bytearray, above: bytes, size: int) -> bytes:
    if kind == 0:
        return bytes(line)
    if kind == 2:
        return bytes((a + b) & 255 for a, b in zip(line, above, strict=True))
    for i in range(len(line)):
        left = line[i - size] if i >= size else 0
        corner = above[i - size] if i >= size else 0
        if kind == 1:
            guess = left
        elif kind == 3:
            guess = (left + above[i]) // 2
        else:
            estimate = left + above[i] - corner
            guess = min((left, above[i], corner), key=lambda value: abs(estimate - value))
        line[i] = (line[i] + guess) & 255
    return bytes(line)
