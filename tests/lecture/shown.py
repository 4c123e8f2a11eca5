"""The lecture's figures, computed once a session, and a look at their numbers."""

from collections.abc import Callable, Mapping, Sequence
from functools import cache

import torch

from strop.lecture import advantages, models, ratios, updates
from strop.lecture.figure import Figure, Table

torch.set_num_threads(1)

FIGURES: Mapping[str, Callable[[], Figure]] = {
    **advantages.FIGURES,
    **updates.FIGURES,
    **ratios.FIGURES,
    **models.FIGURES,
}

Rows = Sequence[Mapping[str, Sequence[float | str]]]
"""For each table of a figure: the cells of some of its rows, by label."""


@cache
def figure(name: str) -> Figure:
    return FIGURES[name]()


def cells(table: Table, label: str) -> tuple[object, ...]:
    [found] = [row[1:] for row in table.rows if row[0] == label]
    return found


def wrong(shown: Figure, expected: Rows, tolerance: float = 1e-9) -> list[str]:
    """Every cell that is not as expected; numbers within the tolerance."""
    out: list[str] = []
    for table, rows in zip(shown.tables, expected, strict=True):
        for label, want in rows.items():
            have = cells(table, label)
            assert len(have) == len(want), (label, have)
            for a, b in zip(have, want, strict=True):
                same = a == b if isinstance(b, str) else isinstance(a, float) and abs(a - b) <= tolerance
                if not same:
                    out.append(f"{label}: {a} instead of {b}")
    return out
