"""What a step says of itself: the columns of an update, an evaluation as flat metrics, why nothing was learned.

Invariant: pure functions of what was played and learned; nothing here changes a run.
"""

from collections.abc import Sequence
from dataclasses import asdict

import numpy as np

from strop.core.algorithm import Zero
from strop.core.learner import StepReport
from strop.core.metrics import Mean
from strop.core.trajectory import Group, Row
from strop.credit.assign import Credits
from strop.loop.evaluate import Evaluation
from strop.loop.plan import StagePlan


def update_columns(rows: Sequence[Row]) -> dict[str, np.ndarray]:
    """What an update was made of, as flat columns over all tokens of all rows; `row_*` hold one number per row."""
    flat = {
        "tokens": [row.tokens for row in rows],
        "sampled": [row.sampled.astype(np.uint8) for row in rows],
        "behaviour_logp": [row.behaviour_logp for row in rows],
        "versions": [row.versions for row in rows],
        "turns": [row.turns for row in rows],
        "advantage": [row.columns["advantage"] for row in rows],
    }
    for name in ("current_logp", "weight", "proximal_logp", "reference_logp", "correction", "value", "value_target"):
        if any(name in row.columns for row in rows):
            flat[name] = [row.columns.get(name, np.full(len(row), np.nan, dtype=np.float32)) for row in rows]
    out: dict[str, np.ndarray] = {name: np.concatenate(parts) for name, parts in flat.items()}
    out["row_length"] = np.array([len(row) for row in rows], dtype=np.int32)
    out["row_draw"] = np.array([int(row.origin.group.rsplit("-", 1)[1]) for row in rows], dtype=np.int64)
    out["row_member"] = np.array([row.origin.member for row in rows], dtype=np.int32)
    return out


def why_nothing(stage: StagePlan, credits: Credits, rows: Sequence[Row], report: StepReport) -> str | None:
    """One plain sentence when a step taught nothing, with the true reason; None otherwise."""
    members = sum(len(group) for group in credits.advantages)
    if credits.unscored == members and not rows:
        return "nothing was learned: no episode could be judged"
    if not rows:
        return "nothing was learned: no episode passed the filter"
    if report.skipped.get("non-finite"):
        return "an update was skipped: its loss or gradient was not finite (its rows are kept in updates/)"
    left_out = [
        trip for trip in report.trips if f"guard_{trip.rule}" in report.skipped and trip.action not in ("note", "cap")
    ]
    if left_out and not report.updates:
        return f"nothing was learned: the guard left out every update ({left_out[0].rule}: {left_out[0].sentence})"
    if "nothing to train" in report.skipped:
        return "nothing was learned: no token was there to train"
    rate = report.metrics.get("learning_rate")
    if rate is not None and rate.value == 0:
        return "nothing was learned: the learning rate is 0"
    if stage.algorithm.credited and not any(np.any(row.columns["advantage"]) for row in rows):
        why = "all groups have equal rewards" if credits.equal else "all advantages are 0"
        return f"the rewards taught nothing: {why}"
    said = report.metrics.get("teacher_divergence")
    if isinstance(stage.algorithm.credit, Zero) and isinstance(said, Mean) and not said.count:
        return "nothing was learned: no row had a solution that its teacher could be told"
    if all("correction" in row.columns and not np.any(row.columns["correction"][row.sampled]) for row in rows):
        return "the rewards taught nothing: the correction for stale data left out every token"
    return None


def flat(evaluation: Evaluation) -> dict[str, float | None]:
    """An evaluation as flat metrics."""
    read: dict[str, float | None] = {
        f"eval_{k}": v for k, v in asdict(evaluation).items() if isinstance(v, int | float)
    }
    read |= {f"eval_{name}": value for name, value in evaluation.of_world.items()}
    read["eval_sampled_low"], read["eval_sampled_high"] = evaluation.sampled_interval
    return read


def sampled_tokens(groups: Sequence[Group]) -> int:
    """Ids that were sampled in all turns of some groups."""
    return sum(trajectory.sampled_tokens for group in groups for trajectory in group.trajectories)
