"""What a command of the lecture shows: tables of numbers, the code they come from, and curves to draw.

Invariant: numbers are kept as they were computed and rounded once, when they are printed; no line is wider than `WIDTH`.
"""

import textwrap
from dataclasses import dataclass

WIDTH = 80

Cell = float | int | str


@dataclass(frozen=True, slots=True)
class Table:
    """Rows of numbers.

    Args:
        head: names of the columns; the first is that of the label.
        rows: a label and its cells. Floats are printed with `digits` decimals, all else as it is.
        digits: decimals.
    """

    head: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    digits: int = 4

    def cell(self, row: Cell, column: str) -> Cell:
        """The cell of a row, by its label, and of a column, by its name."""
        [found] = [cells for cells in self.rows if cells[0] == row]
        return found[self.head.index(column)]

    def lines(self) -> list[str]:
        """The table as text: labels on the left, numbers on the right."""
        grid = [self.head, *(tuple(self._text(cell) for cell in row) for row in self.rows)]
        widths = [max(map(len, column)) for column in zip(*grid, strict=True)]
        lines: list[str] = []
        for row in grid:
            cells = (cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True))
            lines.append("  ".join((row[0].ljust(widths[0]), *cells)).rstrip())
        return lines

    def _text(self, cell: Cell) -> str:
        if not isinstance(cell, float):
            return str(cell)
        return f"{round(cell, self.digits) + 0.0:.{self.digits}f}"  # + 0.0: no "-0.0000"


@dataclass(frozen=True, slots=True)
class Curve:
    """A named line through points (x, y)."""

    name: str
    points: tuple[tuple[float, float], ...]


@dataclass(frozen=True, slots=True)
class Panel:
    """One pair of axes."""

    title: str
    x: str
    y: str
    curves: tuple[Curve, ...]


@dataclass(frozen=True, slots=True)
class Figure:
    """What one command shows.

    Args:
        tables: in order.
        code: the functions and classes that computed the numbers, as names below `strop`.
        panels: what is drawn, for those that can be drawn.
    """

    tables: tuple[Table, ...]
    code: tuple[str, ...]
    panels: tuple[Panel, ...] = ()

    def lines(self) -> list[str]:
        """The figure as text."""
        out: list[str] = []
        for table in self.tables:
            out += [*table.lines(), ""]
        return out + textwrap.wrap(f"from {', '.join(self.code)}", WIDTH, subsequent_indent="     ")
