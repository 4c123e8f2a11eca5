"""`strop lecture`: the numbers of the lecture, computed by the code that trains."""

import difflib
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from strop.core.errors import UsageError
from strop.lecture.contents import ENTRIES, Entry
from strop.lecture.figure import WIDTH

if TYPE_CHECKING:
    from strop.lecture.figure import Figure


def lecture(
    name: Annotated[str | None, typer.Argument(help="A number or figure; without it, the list of them.")] = None,
    svg: Annotated[Path | None, typer.Option("--svg", help="Draw the curves into this file (clip).")] = None,
    write: Annotated[Path | None, typer.Option("--write", help="Make the blocks of this document anew.")] = None,
) -> None:
    """Print numbers of the lecture (RL for LLM agents, CMU 11-768, lectures 9 and 11), from the code that trains."""
    if write is not None:
        _write(write)
    if name is not None:
        entry = _entry(name)
        lines, found = _shown(name, entry)
        if svg is not None:
            _draw(name, found, svg)
        print("\n".join([entry.title, "", *textwrap.wrap(entry.text, WIDTH), "", *lines]))
    elif svg is not None:
        raise UsageError("--svg needs a figure; try: strop lecture clip --svg clip.svg")
    elif write is None:
        width = max(map(len, ENTRIES))
        for known, entry in ENTRIES.items():
            told = textwrap.wrap(entry.title, WIDTH - width - 2)
            print("\n".join((known if not i else "").ljust(width) + "  " + line for i, line in enumerate(told)))


def _entry(name: str) -> Entry:
    if name not in ENTRIES:
        close = difflib.get_close_matches(name, ENTRIES, n=1, cutoff=0.0)
        raise UsageError(f"the lecture has no {name!r}; did you mean {close[0]}? `strop lecture` lists all names")
    return ENTRIES[name]


def _shown(name: str, entry: Entry) -> "tuple[list[str], Figure | None]":
    """What a command prints below its text, and the figure behind it. Modules are loaded as they are needed: some want
    torch, some a model."""
    match entry.module:
        case "symbols":
            from strop.lecture.symbols import symbol_lines

            return symbol_lines(), None
        case "advantages":
            from strop.lecture.advantages import FIGURES
        case "updates":
            from strop.lecture.updates import FIGURES
        case "ratios":
            from strop.lecture.ratios import FIGURES
        case _:
            from strop.lecture.models import FIGURES
    figure = FIGURES[name]()
    return figure.lines(), figure


def _draw(name: str, figure: "Figure | None", path: Path) -> None:
    if figure is None or not figure.panels:
        raise UsageError(f"{name} has no curves to draw; try: strop lecture clip --svg {path}")
    from strop.lecture.drawing import drawn

    try:
        path.write_text(drawn(figure.panels))
    except OSError as problem:
        raise UsageError(f"cannot write {path}: {problem.strerror}; choose another file") from problem


def _write(path: Path) -> None:
    from strop.lecture.document import block, rewritten

    def block_of(name: str) -> str:
        entry = _entry(name)
        return block(name, entry, _shown(name, entry)[0])

    try:
        text = path.read_text()
        path.write_text(rewritten(text, block_of))
    except OSError as problem:
        raise UsageError(f"cannot rewrite {path}: {problem.strerror}; name a document with blocks") from problem
