"""Line plots as inline SVG: a legend, axes with round numbers, and marks where something happened."""

import math
from dataclasses import dataclass

from tailrace._html import escape

__all__ = ["Line", "Mark", "line_plot", "round_ticks"]

WIDTH, HEIGHT = 1040, 300
LEFT, RIGHT, TOP, BOTTOM = 70, 16, 30, 34
#: Told apart by colour-blind people too, on light and dark paper.
COLOURS = ("#2f7ed8", "#e0762f", "#2a9d6f", "#b455c4", "#8a8f98")
MARK_COLOUR = "#d4263e"


@dataclass(frozen=True)
class Line:
    """A named line of (x, y)."""

    name: str
    points: list[tuple[float, float]]


@dataclass(frozen=True)
class Mark:
    """A moment worth a vertical line."""

    x: float
    label: str


def round_ticks(top: float, count: int = 5) -> list[float]:
    """Give round numbers from 0 up to at least ``top``.

    >>> round_ticks(87)
    [0, 20, 40, 60, 80, 100]
    """
    if top <= 0:
        return [0, 1]
    rough = top / count
    power = 10 ** math.floor(math.log10(rough))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= rough)
    step = int(step) if step >= 1 else step
    return [index * step for index in range(math.ceil(top / step) + 1)]


def line_plot(title: str, lines: list[Line], marks: list[Mark], *, x_label: str = "seconds") -> str:
    """Draw lines over a common x axis that begins at 0."""
    x_end = max((x for line in lines for x, _ in line.points), default=1.0) or 1.0
    y_ticks = round_ticks(max((y for line in lines for _, y in line.points), default=1.0))
    y_end = y_ticks[-1]
    inner_width, inner_height = WIDTH - LEFT - RIGHT, HEIGHT - TOP - BOTTOM

    def x(value: float) -> float:
        return LEFT + inner_width * value / x_end

    def y(value: float) -> float:
        return TOP + inner_height * (1 - value / y_end)

    parts = [f'<svg class="plot" viewBox="0 0 {WIDTH} {HEIGHT}" width="100%" role="img" aria-label="{escape(title)}">']
    for tick in y_ticks:
        parts.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y(tick):.1f}" y2="{y(tick):.1f}"/>')
        parts.append(f'<text class="tick" x="{LEFT - 8}" y="{y(tick) + 4:.1f}" text-anchor="end">{_short(tick)}</text>')
    for tick in round_ticks(x_end, 10):
        if tick <= x_end:
            parts.append(
                f'<text class="tick" x="{x(tick):.1f}" y="{HEIGHT - 12}" text-anchor="middle">{_short(tick)}</text>'
            )
    parts.append(f'<text class="tick" x="{WIDTH - RIGHT}" y="{HEIGHT - 1}" text-anchor="end">{escape(x_label)}</text>')
    for index, line in enumerate(lines):
        colour = COLOURS[index % len(COLOURS)]
        points = " ".join(f"{x(a):.1f},{y(b):.1f}" for a, b in line.points)
        parts.append(f'<polyline class="line" data-name="{escape(line.name)}" stroke="{colour}" points="{points}"/>')
        place = LEFT + index * 190
        parts.append(f'<rect x="{place}" y="8" width="12" height="12" rx="2" fill="{colour}"/>')
        parts.append(f'<text class="legend" x="{place + 18}" y="18">{escape(line.name)}</text>')
    for index, mark in enumerate(marks):
        at = x(mark.x)
        parts.append(f'<line class="mark" x1="{at:.1f}" x2="{at:.1f}" y1="{TOP}" y2="{HEIGHT - BOTTOM}"/>')
        # Towards the middle, and one below the other, so that labels neither leave the picture nor cover each other.
        anchor, shift = ("end", -5) if mark.x > x_end / 2 else ("start", 5)
        parts.append(
            f'<text class="mark-label" x="{at + shift:.1f}" y="{TOP + 12 + 14 * index}" text-anchor="{anchor}">'
            f"{escape(mark.label)}</text>"
        )
    return "\n".join([*parts, "</svg>"])


def _short(value: float) -> str:
    """Write a tick: 20000 as 20k.

    >>> _short(20000), _short(1500000), _short(0.5)
    ('20k', '1.5M', '0.5')
    """
    for limit, suffix in ((1e6, "M"), (1e4, "k")):
        if value >= limit:
            return f"{value / (1e6 if suffix == 'M' else 1e3):g}{suffix}"
    return f"{value:g}"


STYLE = f"""
.plot {{ display: block; height: auto; }}
.plot .grid {{ stroke: var(--line); stroke-width: 1; }}
.plot .line {{ fill: none; stroke-width: 2; stroke-linejoin: round; }}
.plot .mark {{ stroke: {MARK_COLOUR}; stroke-width: 1.5; stroke-dasharray: 5 3; }}
.plot text {{ font: 12px system-ui, sans-serif; fill: var(--ink); }}
.plot .tick {{ fill: var(--soft); font-size: 11px; }}
.plot .mark-label {{ fill: {MARK_COLOUR}; font-weight: 600; }}
"""
