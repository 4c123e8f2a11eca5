"""A recorded step, read back from a run folder: its rows, its groups and its stage.

Invariant: nothing is sampled or trained here; what an update was made of is what was saved with it.
"""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from strop.core.errors import UsageError
from strop.core.trajectory import Group, Origin, Row
from strop.loop.plan import Plan, StagePlan
from strop.watch.records import trajectory_from_record
from strop.watch.run_folder import RunFolder

COLUMNS = (
    "advantage",
    "current_logp",
    "weight",
    "proximal_logp",
    "reference_logp",
    "correction",
    "value",
    "value_target",
)


@dataclass(frozen=True, slots=True)
class Recorded:
    """One step of a run.

    Args:
        step: its number.
        stage: the stage it belonged to.
        rows: what the learner was given, with the columns that were saved (`COLUMNS`).
        groups: the groups they came from, as far as their episodes are still kept.
    """

    step: int
    stage: StagePlan
    rows: list[Row]
    groups: list[Group]


def recorded(folder: RunFolder, plan: Plan, step: int | None) -> Recorded:
    """The step of that number, or the newest whose columns are kept.

    Raises:
        UsageError: the columns of the step are not kept.
    """
    kept = [number for number, _ in folder.updates()]
    step = (kept[-1] if kept else 0) if step is None else step
    if step not in kept:
        known = ", ".join(map(str, kept)) or "none"
        raise UsageError(
            f"the columns of step {step} are not kept (kept: {known}); keep.updates in the run file says how many are"
        )
    metrics = next((m for m in folder.metrics() if m["step"] == step), None)
    if metrics is None:
        raise UsageError(f"step {step} is not in metrics.jsonl of {folder.path}; choose one of {kept}")
    stage = plan.stages[int(metrics["stage_index"])]
    by_group: dict[str, list[tuple[int, Any]]] = {}
    for record in folder.episodes():
        if record["step"] == step:
            group, member, trajectory = trajectory_from_record(record)
            by_group.setdefault(group, []).append((member, trajectory))
    groups = [
        Group(name, members[0][1].task, tuple(t for _, t in sorted(members, key=lambda pair: pair[0])))
        for name, members in by_group.items()
    ]
    domain = next(iter(by_group), "train-0").rsplit("-", 1)[0]
    return Recorded(step, stage, _rows(folder.update(step), domain), groups)


def sampled_only(found: Recorded) -> Recorded:
    """The step without demonstrations: nobody knows how likely the policy found their tokens, so that no ratio is one.

    Raises:
        UsageError: nothing is left.
    """
    rows = [row for row in found.rows if not np.isnan(row.behaviour_logp[row.sampled]).any()]
    own = {(row.origin.group, row.origin.member) for row in rows}
    known = {(row.origin.group, row.origin.member) for row in found.rows}
    if not rows:
        raise UsageError(f"step {found.step} has demonstrations only, which no ratio can weigh; choose another --step")
    groups = [
        group
        for group in found.groups
        if all((group.id, m) in own or (group.id, m) not in known for m in range(len(group.trajectories)))
    ]
    left = {group.id for group in groups}
    return replace(found, rows=[row for row in rows if row.origin.group in left], groups=groups)


def _rows(columns: dict[str, Any], domain: str) -> list[Row]:
    """Rows from the flat columns of an update."""
    ends = np.cumsum(columns["row_length"])
    parts: dict[tuple[int, int], int] = {}
    rows: list[Row] = []
    for index, end in enumerate(ends):
        cut = slice(int(end - columns["row_length"][index]), int(end))
        key = int(columns["row_draw"][index]), int(columns["row_member"][index])
        part = parts[key] = parts.get(key, -1) + 1
        rows.append(
            Row(
                columns["tokens"][cut],
                columns["sampled"][cut].astype(np.bool_),
                columns["behaviour_logp"][cut],
                columns["versions"][cut],
                columns["turns"][cut],
                Origin(f"{domain}-{key[0]:06d}", key[1], part),
                {name: columns[name][cut] for name in COLUMNS if name in columns},
            )
        )
    return rows
