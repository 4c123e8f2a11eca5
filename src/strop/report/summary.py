"""The summary of a run, read from its folder alone."""

from collections.abc import Iterable, Mapping
from typing import Any

Record = Mapping[str, Any]


def evaluations(metrics: Iterable[Record]) -> list[Record]:
    """The records that hold an evaluation: the first of the run, and the last of every stage."""
    kept: dict[tuple[Any, Any], Record] = {}
    for record in metrics:
        if record.get("eval_episodes") is not None:
            kept[(record.get("stage_index"), record["stage"])] = record
    return list(kept.values())


def rows(found: Iterable[Record]) -> list[tuple[str, ...]]:
    """Table of evaluations: after what, step, greedy, sampled with its interval, share of the best possible."""
    out: list[tuple[str, ...]] = []
    for record in found:
        name = "start" if record["stage"] == "start" else f"after {record['stage'].replace('_', ' ')}"
        out.append(
            (name, str(record["step"]), rate(record.get("eval_greedy_success")), _sampled(record), _limit(record))
        )
    return out


def rate(value: float | None) -> str:
    """A rate as text; a dash where nothing was judged."""
    return "-" if value is None else f"{value:.4f}"


def _sampled(record: Record) -> str:
    low, high = record.get("eval_sampled_low"), record.get("eval_sampled_high")
    value = rate(record.get("eval_sampled_success"))
    return value if low is None or high is None else f"{value} ({low:.2f}-{high:.2f})"


def _limit(record: Record) -> str:
    return rate(record.get("eval_limit"))
