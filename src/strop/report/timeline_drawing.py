"""The timeline of a run as SVG text, by hand: a lane for each who works, idle time hatched by its cause, groups as bars below.

Invariant: the bars of a lane fill it without overlap; each is as long as its state took most of the time.
"""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any
from xml.sax.saxutils import escape

from strop.core.spans import Kind
from strop.report.timeline import (
    PLAIN,
    WORDS,
    Piece,
    Strip,
    figures,
    overlaps,
    rows_of_groups,
    slices,
    strip,
)
from strop.watch.timeline import AT_WORK, LANES, Lane, State, union

WIDTH, LEFT, RIGHT = 960, 96, 16
PLOT = WIDTH - LEFT - RIGHT
"""Pixels of the time axis: the resolution of the picture."""

TOP, LANE, THIN, GAP, BAR = 44, 26, 12, 6, 7
MOST_ROWS = 64
"""Rows of groups that are drawn; further ones are counted."""

COLOURS: Mapping[State, str] = {
    "annotate": "#d98a2b",
    "update": "#b5402a",
    "engine": "#1f5fa8",
    "environment": "#3c7a3c",
    "generation": "#1f5fa8",
    "tools": "#3c7a3c",
    "verifier": "#7a4a96",
    "learner": "#b5402a",
    "lag": "#a08a00",
    "publish": "#202020",
    "evaluate": "#2a8c8c",
    "rollout": "#808080",
    "loop": "#c0c0c0",
}
"""An idle lane is hatched in the colour of what it waits for."""

_PLAIN: Mapping[Kind, State] = {"verify": "verifier", "publish": "publish", "evaluate": "evaluate"}
_SPENT = (("generate", "#1f5fa8"), ("environment", "#3c7a3c"), ("verify", "#7a4a96"), ("waiting", "#dddddd"))
_AT_WORK = {state for own in AT_WORK.values() for state in own}


def drawn(records: Sequence[Mapping[str, Any]]) -> str:
    """The picture of some steps."""
    shown, found = strip(records), figures(records)
    rows = rows_of_groups(shown.groups)
    lanes: dict[Lane, list[State]] = {lane: slices(shown.states[lane], shown.length, PLOT) for lane in LANES}
    body: list[str] = []
    y = TOP
    for lane, states in lanes.items():
        body += [_text(8, y + 11, lane, 'font-weight="bold"'), _text(8, y + 23, f"{found.busy(lane):.1%} busy", "")]
        body += _bars(lane, states, shown.length, y)
        y += LANE + GAP
    for kind in PLAIN:
        if shown.plain[kind]:
            body.append(_text(8, y + 10, kind, ""))
            body += _plain(kind, shown, y)
            y += THIN + GAP
    bottom = y
    if rows:
        y += 6
        body.append(_text(8, y + 9, "groups", 'font-weight="bold"'))
        for row in rows[:MOST_ROWS]:
            body += [part for piece in row for part in _group(piece, shown, y)]
            y += BAR + 2
        bottom = y
        if len(rows) > MOST_ROWS:
            y += 12
            body.append(_text(LEFT, y, f"and {len(rows) - MOST_ROWS} more at one time", ""))
    body += _axis(shown, bottom)
    y += 44
    legend, y = _legend({state for states in lanes.values() for state in states}, bool(rows), y)
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{y}" viewBox="0 0 {WIDTH} {y}" '
        'font-family="sans-serif" font-size="11" fill="#222">'
    )
    title = f"steps {found.first} to {found.last}, {found.wall / 1e6:.3g} s"
    return "\n".join(
        [
            head,
            f"<title>{escape(title)}</title>",
            _hatches(),
            f'<rect width="{WIDTH}" height="{y}" fill="white"/>',
            _text(LEFT, 14, title, 'font-weight="bold"'),
            *body,
            *legend,
            "</svg>",
            "",
        ]
    )


def _bars(lane: str, states: Sequence[State], length: int, y: int) -> Iterator[str]:
    """The runs of equal slices of a lane as bars."""
    x = LEFT
    for state, run in itertools.groupby(states):
        width = len(list(run))
        fill = COLOURS[state] if state in _AT_WORK else f"url(#{state})"
        word = WORDS[state] if state in _AT_WORK else f"idle: {WORDS[state]}"
        tip = escape(f"{lane}, {word}, about {width * length / PLOT:.0f} ms")
        yield (
            f'<rect class="{lane} {state}" x="{x}" y="{y}" width="{width}" height="{LANE}" fill="{fill}">'
            f"<title>{tip}</title></rect>"
        )
        if state not in _AT_WORK and width >= 4 + 6 * len(WORDS[state]):
            yield _label(x + width / 2, y + LANE / 2 + 4, WORDS[state])
        x += width


def _plain(kind: Kind, shown: Strip, y: int) -> Iterator[str]:
    """A lane of one kind: darker where it was at work for more of the pixel, and a hairline at least where it was at all."""
    pairs, colour = shown.plain[kind], COLOURS[_PLAIN[kind]]
    taken = overlaps(union(pairs), shown.length, PLOT)
    touched = {min(PLOT - 1, start * PLOT // shown.length) for start, _ in pairs}
    whole = shown.length / PLOT
    levels = [max(round(4 * time / whole), int(time > 0 or i in touched)) for i, time in enumerate(taken)]
    x = LEFT
    for level, run in itertools.groupby(levels):
        width = len(list(run))
        if level:
            yield (
                f'<rect class="{kind}" x="{x}" y="{y}" width="{width}" height="{THIN}" fill="{colour}" '
                f'fill-opacity="{min(1.0, 0.25 + 0.1875 * level):g}"/>'
            )
        x += width


def _group(piece: Piece, shown: Strip, y: int) -> Iterator[str]:
    """A group from its first start to its last end, divided as the seconds of its members are (not in order of time)."""
    x = LEFT + piece.start * PLOT / shown.length
    width = max(1.0, (piece.end - piece.start) * PLOT / shown.length)
    whole = sum(piece.spent)
    parts = [time / whole for time in piece.spent] if whole > 0 else [0.0, 0.0, 0.0, 1.0]
    tip = ", ".join(f"{name} {part:.0%}" for (name, _), part in zip(_SPENT, parts, strict=True))
    yield f"<g><title>{escape(f'{piece.group}, {piece.members} members: {tip}')}</title>"
    for (name, colour), part in zip(_SPENT, parts, strict=True):
        if part > 0:
            yield (
                f'<rect class="group {name}" x="{x:.2f}" y="{y}" width="{part * width:.2f}" height="{BAR}" fill="{colour}"/>'
            )
        x += part * width
    yield "</g>"


def _axis(shown: Strip, bottom: int) -> Iterator[str]:
    """Where steps begin, where time is missing, and seconds below."""
    previous = -100.0
    for start, step in shown.marks:
        x = LEFT + start * PLOT / shown.length
        broken = start in shown.breaks
        style = 'stroke="#b5402a" stroke-dasharray="4 3"' if broken else 'stroke="#999"'
        yield f'<path d="M{x:.2f} {TOP - 8}V{bottom}" {style}/>'
        if x - previous > 40:
            yield _text(x + 2, TOP - 12, f"step {step}" + (" (time is missing before it)" if broken else ""), "")
            previous = x
    unit = next(n for n in (m * 10**k for k in range(9) for m in (1, 2, 5)) if shown.length / n <= 10)
    for moment in range(0, shown.length + 1, unit):
        x = LEFT + moment * PLOT / shown.length
        yield f'<path d="M{x:.2f} {bottom}v5" stroke="#222"/>'
        yield _text(x, bottom + 17, f"{moment / 1000:g} s", 'text-anchor="middle"')
    yield f'<path d="M{LEFT} {bottom}h{PLOT}" stroke="#222"/>'


def _legend(signs: set[State], groups: bool, y: int) -> tuple[list[str], int]:
    """What the colours mean, and the height behind it."""
    names = [
        (state, COLOURS[state], f"{'' if state in ('annotate', 'update') else state + ' '}{WORDS[state]}")
        for state in WORDS
    ]
    work = [(colour, word) for state, colour, word in names if state in _AT_WORK and state in signs]
    idle = [(f"url(#{state})", WORDS[state]) for state in WORDS if state not in _AT_WORK and state in signs]
    lines = [("at work:", work), ("idle because of:", idle)]
    if groups:
        lines.append(("time of a group's members:", [(colour, name) for name, colour in _SPENT]))
    out: list[str] = []
    for title, entries in lines:
        if not entries:
            continue
        out.append(_text(8, y, title, ""))
        x = 170.0
        for fill, word in entries:
            out.append(
                f'<rect x="{x:g}" y="{y - 9}" width="16" height="10" fill="{fill}" stroke="#999" stroke-width="0.5"/>'
            )
            out.append(_text(x + 21, y, word, ""))
            x += 34 + 6.5 * len(word)
        y += 18
    return out, y


def _hatches() -> str:
    """A pattern for each cause: thin slanted lines in its colour on a pale ground."""
    patterns = [
        f'<pattern id="{state}" width="5" height="5" patternUnits="userSpaceOnUse" patternTransform="rotate(45)">'
        f'<rect width="5" height="5" fill="{COLOURS[state]}" fill-opacity="0.1"/>'
        f'<path d="M0 0V5" stroke="{COLOURS[state]}" stroke-width="2" stroke-opacity="0.55"/></pattern>'
        for state in WORDS
        if state not in _AT_WORK
    ]
    return f"<defs>{''.join(patterns)}</defs>"


def _label(x: float, y: float, words: str) -> str:
    """Text in the middle of a hatched bar, with a white edge so that it can be read."""
    return _text(x, y, words, 'text-anchor="middle" stroke="white" stroke-width="3" paint-order="stroke"')


def _text(x: float, y: float, words: str, style: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" {style}>{escape(words)}</text>'
