"""Twins of rows: what a teacher reads that is told a solution of the task, for on-policy self-distillation.

Invariant: a twin is its row with another prompt, the opening told a solution; what follows the prompt is the row's own
ids. A solution is never made of the row's own episode, and no message or id of the row itself is changed.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

import numpy as np

from strop.core.engine import Codec
from strop.core.message import Message
from strop.core.metrics import Mean, Metrics
from strop.core.trajectory import Group, Row, Trajectory, Twin
from strop.core.world import World, told
from strop.rollout.group import Table

Source = Literal["success", "reference", "either"]


def other_success(group: Group, member: int) -> Trajectory | None:
    """The nearest success behind a member, counted round the group; never the member's own, nor one that says the same ids (a
    saved episode may fill several places). A success has score 1 or more."""
    own = _said(group.trajectories[member])
    others = [*group.trajectories[member + 1 :], *group.trajectories[:member]]
    return next((t for t in others if t.score is not None and t.score >= 1 and _said(t) != own), None)


def _said(trajectory: Trajectory) -> list[list[int]]:
    return [turn.completion.tokens.tolist() for turn in trajectory.turns]


def solution_for(world: World, group: Group, member: int, source: Source) -> tuple[str | None, bool]:
    """Words that give the task's solution away to a member's teacher, None if there are none; and whether they are those of
    a success of the group."""
    if world.solution is None:
        return None, False
    won = None if source == "reference" else other_success(group, member)
    if won is not None:
        return world.solution(group.task, won), True
    return (None if source == "success" else world.solution(group.task, None)), False


def told_prompt(codec: Codec, trajectory: Trajectory, turn: int, solution: str) -> np.ndarray:
    """Ids of the prompt of a turn that starts a row, as they are when the opening also tells the solution; int32 [n].

    Raises:
        ValueError: the transcript does not give the prompt that was seen, so that it cannot be told apart from a solution.
    """
    messages = trajectory.messages
    ends: list[int] = []  # where the message of each turn stands
    for played in trajectory.turns[: turn + 1]:
        start = ends[-1] + 1 if ends else 0
        ends.append(next((i for i in range(start, len(messages)) if messages[i] is played.message), len(messages)))
    opening, later = messages[: ends[0]], messages[ends[0] : ends[-1]]
    if not opening or not np.array_equal(codec.opening([*opening, *later]), trajectory.turns[turn].context):
        raise ValueError(f"task {trajectory.task.id}: the transcript does not give the prompt of turn {turn}")
    shown: list[Message] = [*told(opening, solution), *later]
    return codec.opening(shown)


def twin_of(codec: Codec, row: Row, trajectory: Trajectory, solution: str) -> Twin:
    """The row as a teacher sees it that is told the solution."""
    first = int(row.turns[0])
    prompt = told_prompt(codec, trajectory, first, solution)
    rest = len(trajectory.turns[first].context)
    return Twin(
        np.concatenate([prompt, row.tokens[rest:]]).astype(np.int32),
        np.concatenate([np.zeros(len(prompt), dtype=np.bool_), row.sampled[rest:]]),
    )


def with_twins(table: Table, rows: Sequence[Row], groups: Sequence[Group], source: Source) -> tuple[list[Row], Metrics]:
    """The rows, each with its twin where a solution is at hand that fits into the context; and what was at hand.

    This is the seam for any loss that wants the teacher's word on the sampled tokens: what it needs is in the twins.

    Args:
        table: world, codec and limits.
        rows: of these groups, in any order.
        groups: whose members gave the rows.
        source: which solutions count.

    Returns:
        The rows, and the metrics `told_rows` (rows with a twin), `told_successes` (of those, by a success of the group) and
        `told_too_long` (rows whose twin would not fit).
    """
    by_id = {group.id: group for group in groups}
    out: list[Row] = []
    twins = own = long = 0
    for row in rows:
        group = by_id[row.origin.group]
        solution, won = solution_for(table.world, group, row.origin.member, source)
        if solution is None:
            out.append(row)
            continue
        twin = twin_of(table.codec, row, group.trajectories[row.origin.member], solution)
        if len(twin.tokens) > table.limits.context:
            long += 1
            out.append(row)
            continue
        twins, own = twins + 1, own + won
        out.append(replace(row, twin=twin))
    counts = {"told_rows": (twins, len(rows)), "told_successes": (own, twins), "told_too_long": (long, len(rows))}
    return out, {name: Mean(float(total), float(count)) for name, (total, count) in counts.items()}
