"""`strop algorithms`: the table."""

import json
from typing import Annotated

import typer

from strop.algorithms import ALGORITHMS
from strop.core.algorithm import Algorithm
from strop.core.notation import written


def as_row(name: str, algorithm: Algorithm) -> dict[str, str | int]:
    """One row as plain data."""
    return {
        "name": name,
        "credit": written(algorithm.credit),
        "ratio": written(algorithm.ratio),
        "clip": written(algorithm.clip),
        "aggregate": written(algorithm.aggregate),
        "terms": ", ".join(written(term) for term in algorithm.terms),
        "data": algorithm.data,
        "updates": algorithm.updates,
        "source": algorithm.source,
    }


def algorithms(
    as_json: Annotated[bool, typer.Option("--json", help="A JSON list of objects on stdout.")] = False,
) -> None:
    """Print the table of algorithms: each is credit x ratio x clip x aggregation."""
    rows = [as_row(name, algorithm) for name, algorithm in ALGORITHMS.items()]
    if as_json:
        print(json.dumps(rows, indent=1))
        return
    heads: dict[str, str | int] = {name: name for name in rows[0]}
    widths = {name: max(len(str(row[name])) for row in (heads, *rows)) for name in heads}
    for row in (heads, *rows):  # two lines each, so that 80 columns hold them
        for indent, columns in (("", ("name", "credit", "ratio", "clip")), ("    ", ("aggregate", "source"))):
            print(indent + "  ".join(str(row[c]).ljust(widths[c]) for c in columns).rstrip())
