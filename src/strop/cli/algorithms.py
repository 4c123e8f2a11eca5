"""`strop algorithms`: the table."""

import json
import textwrap
from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated

import typer

from strop.algorithms import ALGORITHMS
from strop.core.algorithm import GAE, Algorithm, Critic, MonteCarlo
from strop.core.notation import written


def as_row(name: str, algorithm: Algorithm) -> dict[str, str | int]:
    """One row as plain data."""
    credit, critic = algorithm.credit, ""
    if isinstance(credit, GAE):
        critic = written(credit.critic)
        credit = replace(credit, critic=Critic())  # told in its own column
    elif isinstance(credit, MonteCarlo):
        critic = "continuations"
    return {
        "name": name,
        "credit": written(credit),
        "critic": critic,
        "ratio": written(algorithm.ratio),
        "clip": written(algorithm.clip),
        "correction": "" if algorithm.correction is None else written(algorithm.correction),
        "aggregate": written(algorithm.aggregate),
        "admit": algorithm.admit,
        "terms": ", ".join(written(term) for term in algorithm.terms),
        "data": written(algorithm.rounds) if algorithm.data == "rounds" else algorithm.data,
        "updates": algorithm.updates,
        "source": algorithm.source,
    }


def algorithms(
    as_json: Annotated[bool, typer.Option("--json", help="A JSON list of objects on stdout.")] = False,
    as_markdown: Annotated[bool, typer.Option("--markdown", help="The text of docs/algorithms.md.")] = False,
) -> None:
    """Print the table of algorithms: each is credit x ratio x clip x aggregation."""
    rows = [as_row(name, algorithm) for name, algorithm in ALGORITHMS.items()]
    if as_json:
        print(json.dumps(rows, indent=1))
    elif as_markdown:
        print(markdown(rows), end="")
    else:
        print("\n".join(lines(rows)))


HEADS = {"credit": "reward weight", "aggregate": "aggregation", "admit": "admits"}
SHOWN = (("name", "credit", "critic"), ("ratio", "clip", "aggregate"))


def lines(rows: Sequence[dict[str, str | int]]) -> list[str]:
    """Three lines a row, so that 80 columns hold them; the third has the source and what few rows have."""
    named: list[dict[str, str | int]] = [{c: HEADS.get(c, c) for c in rows[0]}, *rows]
    widths = {c: max(len(str(row[c])) for row in named) for columns in SHOWN for c in columns}
    out: list[str] = []
    for row in named:
        for indent, columns in zip(("", "    "), SHOWN, strict=True):
            out.append(indent + " ".join(str(row[c]).ljust(widths[c]) for c in columns).rstrip())
        more = [str(row["source"])]
        if row is not named[0]:
            more += [str(row[c]) for c in ("correction", "terms") if row[c]]
            more += [f"{row['admit']} groups"] if row["admit"] != "all" else []
            more += [str(row["data"])] if row["data"] != "on_policy" else []
            more += [f"{row['updates']} updates"] if row["updates"] != 1 else []
        out += textwrap.wrap("; ".join(more), 79, initial_indent="    ", subsequent_indent="      ")
    return out


def markdown(rows: Sequence[dict[str, str | int]]) -> str:
    """The table as a page: made by `strop algorithms --markdown`, never by hand."""
    columns = {c: HEADS.get(c, c) for c in rows[0]}
    head = f"| {' | '.join(columns.values())} |\n|{'---|' * len(columns)}\n"
    cells = [[str(row[c]).replace("|", "\\|") for c in columns] for row in rows]  # a bare | would begin another cell
    body = "".join(f"| {' | '.join(row)} |\n" for row in cells)
    return f"""# The table of algorithms

Made by `strop algorithms --markdown > docs/algorithms.md`; a test keeps it fresh. A row is credit x ratio x clip x
aggregation, plus terms. Each part is written as a run file takes it, defaults left out: `[algorithm] base = "grpo"` and
`clip = "ppo(0.2, 0.28)"` replaces one part of a row. Any credit goes with any ratio, clip and aggregation; what means
nothing is refused with the reason. `docs/proof.md` says what each row's expected gradient is.

{head}{body}"""
