"""Trajectories to rows. Invariant: trained ids are the sampled ids, and the ids before them are the prompt that was seen.

A trajectory is one row as long as its context was only appended to; each turn whose history was rebuilt starts another.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from strop.core.trajectory import Group, Origin, Row, Trajectory, Turn

TRUNCATED = ("turns", "length", "context", "timeout", "truncated")
"""Ends that are a limit and not the task's own end: the value of the last state goes on counting."""


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
    return with_sampled(rows, 0.0, advantage=advantages)


def with_sampled(rows: Sequence[Row], elsewhere: float, **columns: npt.NDArray[np.float64]) -> list[Row]:
    """The rows of one trajectory with more columns, given as one number per sampled token of the whole trajectory.

    Args:
        rows: in order.
        elsewhere: what stands at tokens that were not sampled.
        columns: by name; [sampled tokens].
    """
    out = list(rows)
    total = sum(row.trained for row in rows)
    for name, values in columns.items():
        if len(values) != total:
            raise ValueError(f"{rows[0].origin}: {len(values)} numbers of {name} for {total} sampled tokens")
        used = 0
        for index, row in enumerate(out):
            column = np.full(len(row), elsewhere, dtype=np.float32)
            column[row.sampled] = values[used : used + row.trained]
            used += row.trained
            out[index] = row.with_columns(**{name: column})
    return out


def sampled_values(rows: Sequence[Row], name: str) -> npt.NDArray[np.float64]:
    """A column of the rows of one trajectory at its sampled tokens, in order; [sampled tokens]."""
    parts = [row.columns[name][row.sampled] for row in rows]
    return np.concatenate(parts).astype(np.float64)


def with_tail(rows: Sequence[Row], trajectory: Trajectory) -> list[Row]:
    """Rows whose last one ends with the trajectory's last state and asks for its value, if the episode was truncated."""
    if trajectory.end not in TRUNCATED:
        return list(rows)
    last, n = rows[-1], len(trajectory.tail)
    extended = Row(
        np.concatenate([last.tokens, trajectory.tail]).astype(np.int32),
        np.concatenate([last.sampled, np.zeros(n, dtype=np.bool_)]),
        np.concatenate([last.behaviour_logp, np.full(n, np.nan, dtype=np.float32)]),
        np.concatenate([last.versions, np.full(n, -1, dtype=np.int32)]),
        np.concatenate([last.turns, np.full(n, last.turns[-1] + 1, dtype=np.int32)]),
        last.origin,
        final_value=float("nan"),
    )
    return [*rows[:-1], extended]


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
