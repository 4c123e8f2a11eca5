"""Trajectories to rows. Invariant: trained ids are the sampled ids, and the ids before them are the prompt that was seen.

A trajectory is one row as long as its context was only appended to; each turn whose history was rebuilt starts another.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from strop.core.trajectory import Group, Origin, Row, Trajectory, Turn


def rows_of(group: str, member: int, trajectory: Trajectory, advantages: npt.NDArray[np.float64] | None) -> list[Row]:
    """The rows of one trajectory.

    Args:
        group, member: where the trajectory stands.
        trajectory: what was played.
        advantages: one number per sampled token of the whole trajectory, in order; None leaves the column out.

    Example:
        context `P0 P1`, completion `A0 A1`, context `O0`, completion `A2` give tokens `P0 P1 A0 A1 O0 A2` with sampled
        `0 0 1 1 0 1`.
    """
    parts: list[list[tuple[int, Turn]]] = []
    for index, turn in enumerate(trajectory.turns):
        if turn.fresh or not parts:
            parts.append([])
        parts[-1].append((index, turn))
    rows = [_row(Origin(group, member, part), turns) for part, turns in enumerate(parts)]
    if advantages is None:
        return rows
    if len(advantages) != trajectory.sampled_tokens:
        raise ValueError(
            f"{group}/{member}: {len(advantages)} advantages for {trajectory.sampled_tokens} sampled tokens"
        )
    out: list[Row] = []
    used = 0
    for row in rows:
        column = np.zeros(len(row), dtype=np.float32)
        column[row.sampled] = advantages[used : used + row.trained]
        used += row.trained
        out.append(row.with_columns(advantage=column))
    return out


def _row(origin: Origin, turns: Sequence[tuple[int, Turn]]) -> Row:
    tokens, sampled, logps, versions, index = [], [], [], [], []
    for number, turn in turns:
        n, m = len(turn.context), len(turn.completion.tokens)
        tokens += [turn.context, turn.completion.tokens]
        sampled += [np.zeros(n, dtype=np.bool_), np.ones(m, dtype=np.bool_)]
        logps += [np.full(n, np.nan, dtype=np.float32), turn.completion.logprobs]
        versions += [np.full(n, -1, dtype=np.int32), turn.completion.versions]
        index.append(np.full(n + m, number, dtype=np.int32))
    return Row(
        np.concatenate(tokens).astype(np.int32),
        np.concatenate(sampled),
        np.concatenate(logps).astype(np.float32),
        np.concatenate(versions).astype(np.int32),
        np.concatenate(index),
        origin,
    )


def group_rows(group: Group, advantages: Sequence[npt.NDArray[np.float64] | None]) -> list[Row]:
    """Rows of all members that have credit; members without (unscored, failed, filtered) give none."""
    return [
        row
        for member, (trajectory, credit) in enumerate(zip(group.trajectories, advantages, strict=True))
        if credit is not None and trajectory.turns
        for row in rows_of(group.id, member, trajectory, credit)
    ]
