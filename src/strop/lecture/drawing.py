"""Line charts as SVG text, by hand: panels side by side on common axes. Invariant: a point is drawn where `place` says."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, floor
from xml.sax.saxutils import escape

from strop.lecture.figure import Panel

PANEL, HEIGHT = 380, 320
LEFT, RIGHT, TOP, BOTTOM = 48, 12, 32, 72
COLOURS = ("#b5402a", "#1f5fa8", "#3c7a3c", "#7a4a96")
DASHES = ("", "6 3", "2 2", "8 3 2 3")
"""Curves differ by dash, too, so that nobody needs the colours."""


@dataclass(frozen=True, slots=True)
class Axes:
    """Ranges of both axes, common to all panels."""

    low: tuple[float, float]
    high: tuple[float, float]

    def place(self, panel: int, x: float, y: float) -> tuple[float, float]:
        """Where a point stands in the picture, in pixels from its top left corner."""
        across = (x - self.low[0]) / (self.high[0] - self.low[0])
        up = (y - self.low[1]) / (self.high[1] - self.low[1])
        left, bottom = panel * PANEL + LEFT, HEIGHT - BOTTOM
        return left + across * (PANEL - LEFT - RIGHT), bottom - up * (bottom - TOP)


def axes(panels: Sequence[Panel]) -> Axes:
    """The smallest whole numbers that hold every point."""
    points = [point for panel in panels for curve in panel.curves for point in curve.points]
    xs, ys = zip(*points, strict=True)
    return Axes((float(floor(min(xs))), float(floor(min(ys)))), (float(ceil(max(xs))), float(ceil(max(ys)))))


def drawn(panels: Sequence[Panel]) -> str:
    """The panels as one SVG picture."""
    frame = axes(panels)
    width = PANEL * len(panels)
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{HEIGHT}" viewBox="0 0 {width} {HEIGHT}" '
        'font-family="sans-serif" font-size="12">',
        f'<rect width="{width}" height="{HEIGHT}" fill="white"/>',
    ]
    for number, panel in enumerate(panels):
        out += _panel(number, panel, frame)
    return "\n".join([*out, "</svg>", ""])


def _panel(number: int, panel: Panel, frame: Axes) -> list[str]:
    left, bottom = frame.place(number, *frame.low)
    right, top = frame.place(number, *frame.high)
    middle = (left + right) / 2
    out = [
        f'<rect x="{left:g}" y="{top:g}" width="{right - left:g}" height="{bottom - top:g}" fill="none" stroke="#888"/>',
        _text(middle, top - 10, panel.title, 'text-anchor="middle" font-weight="bold"'),
        _text(middle, bottom + 32, panel.x, 'text-anchor="middle"'),
        _text(
            left - 34,
            (top + bottom) / 2,
            panel.y,
            f'text-anchor="middle" transform="rotate(-90 {left - 34:g} {(top + bottom) / 2:g})"',
        ),
    ]
    for x in range(int(frame.low[0]), int(frame.high[0]) + 1):
        out.append(_text(frame.place(number, x, 0)[0], bottom + 16, str(x), 'text-anchor="middle"'))
    for y in range(int(frame.low[1]), int(frame.high[1]) + 1):
        height = frame.place(number, 0, y)[1]
        out.append(f'<path d="M{left:g} {height:.2f}H{right:g}" stroke="#ddd"/>')
        out.append(_text(left - 6, height + 4, str(y), 'text-anchor="end"'))
    for i, curve in enumerate(panel.curves):
        places = (frame.place(number, *point) for point in curve.points)
        style = f'stroke="{COLOURS[i]}" stroke-width="2" stroke-dasharray="{DASHES[i]}"'
        line = " ".join(f"{x:.2f},{y:.2f}" for x, y in places)
        out.append(f'<polyline points="{line}" fill="none" {style}/>')
        start, height = left + i * (right - left) / len(panel.curves), bottom + 56
        out.append(f'<path d="M{start:g} {height - 4:g}h24" {style}/>')
        out.append(_text(start + 30, height, curve.name, ""))
    return out


def _text(x: float, y: float, words: str, style: str) -> str:
    return f'<text x="{x:.2f}" y="{y:.2f}" {style}>{escape(words)}</text>'
