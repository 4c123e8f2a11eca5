"""What the watch saw of a run, read from its folder alone: alarms, and the curves they are about."""

import textwrap
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from strop.watch import guard
from strop.watch.alarms import ADVICE

Record = Mapping[str, Any]

CURVES = (
    "success",
    "reward",
    "independent_success",
    "proxy_gap",
    "eval_sampled_success",
    "eval_independent_success",
    "eval_proxy_gap",
    "aux_",
    "turn_",
    "check_",
    "regressions",
    "honeypot_passes",
    "tests_touched",
    "invalid",
    "independent_invalid",
    "repeated_actions",
    "tool_calls",
    "tool_",
)
"""The curves of the watch in the order in which they are shown; one that ends with _ stands for all that begin so."""


@dataclass(frozen=True, slots=True)
class Curve:
    """First and last value of a curve, warm starts left out."""

    name: str
    first: float
    last: float
    step: int


def alarms(records: Iterable[Record]) -> list[dict[str, Any]]:
    """The alarms of a run in order, each with the advice of its rule."""
    advice = {**ADVICE, **guard.ADVICE}
    return [{**record, "advice": advice.get(record["name"], "")} for record in records]


def curves(metrics: Iterable[Record]) -> list[Curve]:
    """First and last values of what the watch follows; what was never measured is left out."""
    found: dict[str, Curve] = {}
    for record in metrics:
        if record["stage"] == "warm_start":
            continue
        for name in record:
            value = record[name]
            if _place(name) < len(CURVES) and isinstance(value, int | float):
                first = found[name].first if name in found else value
                found[name] = Curve(name, first, value, record["step"])
    return sorted(found.values(), key=lambda curve: (_place(curve.name), curve.name))


def lines(told: Iterable[Mapping[str, Any]], shown: Iterable[Curve], width: int = 80) -> Iterator[str]:
    """Alarms with advice, then the curves, in lines of at most `width` characters."""
    given = list(told)
    for alarm in given:
        yield from textwrap.wrap(f"step {alarm['step']}  {alarm['name']}  {alarm['sentence']}", width)
        if alarm["episodes"]:
            yield from _indented(f"seen in: {', '.join(alarm['episodes'])}", width)
        yield from _indented(alarm["advice"], width)
        yield ""
    yield f"{len(given)} alarm{'' if len(given) == 1 else 's'}" if given else "no alarms"
    table = list(shown)
    if table:
        yield ""
        yield f"{'curve':40} {'first':>11} {'last':>11} {'step':>8}"
    for curve in table:
        yield f"{curve.name[:40]:40} {curve.first:11.4g} {curve.last:11.4g} {curve.step:8d}"


def _place(name: str) -> int:
    """Where a curve is shown; the number of curves for one that is not."""
    exact = (i for i, curve in enumerate(CURVES) if curve == name)
    whole = next(exact, None)
    begun = (i for i, curve in enumerate(CURVES) if curve.endswith("_") and name.startswith(curve))
    return next(begun, len(CURVES)) if whole is None else whole


def _indented(text: str, width: int) -> list[str]:
    return textwrap.wrap(text, width, initial_indent="    ", subsequent_indent="    ")
