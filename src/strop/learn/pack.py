"""Rows to micro-batches: flat tensors without padding. Invariant: a trajectory is never split over micro-batches.

Rows are sorted by length, so that attention runs over rows of like length, and a micro-batch holds at most a budget of
tokens (one trajectory alone may exceed it).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from strop.core.algorithm import Observations
from strop.core.trajectory import Row
from strop.model.attention import RowsLayout
from strop.objective.columns import Totals

OPTIONAL = ("proximal_logp", "reference_logp", "correction", "value", "value_target", "process_label")
LABELS = ("value_target", "process_label")
"""Columns that rows may carry besides `advantage`; labels are NaN where there is none."""


@dataclass(frozen=True, slots=True)
class Pack:
    """One micro-batch.

    Args:
        ids, positions: tokens and their positions in their own rows; int64 [T].
        layout: attention inside rows.
        predictors: index of the token before each column token; int64 [N].
        targets: id of each column token; int64 [N].
        sampled, behaviour_logp, advantage, trajectory, order, turn: columns of the tokens; [N]. `order` numbers the trained
            tokens of a trajectory over all its rows.
        trajectory_tokens: trained tokens of each trajectory; [trajectories].
        group_tokens: trained tokens of each trajectory's group in the whole optimizer step; [trajectories].
        columns: optional columns by name; [N] each.
        rows: the rows, in the order of the pack.
        places: (row in the pack, index in the row) of each column token; [N] each, for logs.
        last: index of the last token of each row; [rows].
    """

    ids: torch.Tensor
    positions: torch.Tensor
    layout: RowsLayout
    predictors: torch.Tensor
    targets: torch.Tensor
    sampled: torch.Tensor
    behaviour_logp: torch.Tensor
    advantage: torch.Tensor
    trajectory: torch.Tensor
    order: torch.Tensor
    turn: torch.Tensor
    trajectory_tokens: torch.Tensor
    group_tokens: torch.Tensor
    columns: Mapping[str, torch.Tensor]
    rows: tuple[Row, ...]
    places: tuple[np.ndarray, np.ndarray]
    last: torch.Tensor


def count(rows: Sequence[Row], observations: bool) -> Totals:
    """Totals of an optimizer step over its rows."""
    trained = [row for row in rows if row.trained]
    given = {name: [row.columns[name][row.sampled] for row in trained if name in row.columns] for name in LABELS}
    labels = {name: sum(int((~np.isnan(c)).sum()) for c in columns) for name, columns in given.items()}
    return Totals(
        tokens=sum(row.trained for row in trained),
        trajectories=len({(row.origin.group, row.origin.member) for row in trained}),
        observations=sum(len(row) - 1 - row.trained for row in rows) if observations else 0,
        groups=len({row.origin.group for row in trained}),
        values=labels["value_target"],
        labels=labels["process_label"],
        taught=sum(row.trained for row in trained if row.twin is not None),
    )


def pack(rows: Sequence[Row], budget: int, observations: Observations | None, device: torch.device) -> list[Pack]:
    """Split rows into micro-batches of at most `budget` tokens.

    Args:
        rows: all rows of the optimizer step, with a column `advantage`; rows without a trained token are left out unless
            observations are wanted.
        budget: tokens per micro-batch.
        observations: also give columns for the tokens that this term predicts.
        device: where the tensors go.
    """
    trajectories: dict[tuple[str, int], list[Row]] = {}
    groups: dict[str, int] = {}
    for row in rows:
        groups[row.origin.group] = groups.get(row.origin.group, 0) + row.trained
        if row.trained or observations is not None:
            trajectories.setdefault((row.origin.group, row.origin.member), []).append(row)
    order = sorted(trajectories.values(), key=lambda parts: (-max(map(len, parts)), -sum(map(len, parts))))
    packs: list[Pack] = []
    batch: list[list[Row]] = []
    used = 0
    for parts in order:
        size = sum(map(len, parts))
        if batch and used + size > budget:
            packs.append(_build(batch, groups, observations, device))
            batch, used = [], 0
        batch.append(parts)
        used += size
    if batch:
        packs.append(_build(batch, groups, observations, device))
    return packs


def _build(
    batch: Sequence[Sequence[Row]], groups: Mapping[str, int], observations: Observations | None, device: torch.device
) -> Pack:
    numbered: list[tuple[int, int, Row]] = []  # trajectory, trained tokens before this row, row
    for index, parts in enumerate(batch):
        before = 0
        for row in sorted(parts, key=lambda row: row.origin.part):
            numbered.append((index, before, row))
            before += row.trained
    numbered.sort(key=lambda entry: -len(entry[2]))
    rows = [row for _, _, row in numbered]
    lengths = np.array([len(row) for row in rows])
    ends = np.cumsum(lengths)
    ids = np.concatenate([row.tokens for row in rows])
    within = np.arange(len(ids)) - np.repeat(ends - lengths, lengths)
    sampled = np.concatenate([row.sampled for row in rows])
    if (sampled & (within == 0)).any():
        raise ValueError("a row starts with a sampled token; its context is missing, so nothing predicts that token")
    turns = np.concatenate([row.turns for row in rows])
    seen = np.zeros(len(ids), dtype=np.bool_)
    if observations is not None:
        seen = (within > 0) & ((turns > 0) | (observations.select == "all"))
    chosen = np.flatnonzero(sampled | seen)
    owner = np.repeat(np.array([index for index, _, _ in numbered]), lengths)
    order = np.concatenate([before - 1 + np.cumsum(row.sampled) for _, before, row in numbered])

    def column(name: str) -> np.ndarray:
        missing = np.nan if name in LABELS else 0.0
        parts = [row.columns.get(name, np.full(len(row), missing, dtype=np.float32)) for row in rows]
        return np.concatenate(parts)[chosen]

    def tensor(array: np.ndarray, dtype: torch.dtype) -> torch.Tensor:
        return torch.as_tensor(array, device=device).to(dtype)

    present = [name for name in OPTIONAL if any(name in row.columns for row in rows)]
    return Pack(
        ids=tensor(ids, torch.int64),
        positions=tensor(within, torch.int64),
        layout=RowsLayout(lengths.tolist(), device),
        predictors=tensor(chosen - 1, torch.int64),
        targets=tensor(ids[chosen], torch.int64),
        sampled=tensor(sampled[chosen], torch.bool),
        behaviour_logp=tensor(np.concatenate([row.behaviour_logp for row in rows])[chosen], torch.float32),
        advantage=tensor(column("advantage"), torch.float32),
        trajectory=tensor(owner[chosen], torch.int64),
        order=tensor(order[chosen], torch.int64),
        turn=tensor(turns[chosen], torch.int64),
        trajectory_tokens=tensor(np.bincount(owner[sampled], minlength=len(batch)), torch.int64),
        group_tokens=tensor(np.array([groups[parts[0].origin.group] for parts in batch]), torch.int64),
        columns={name: tensor(column(name), torch.float32) for name in present},
        rows=tuple(rows),
        places=(np.repeat(np.arange(len(rows)), lengths)[chosen], within[chosen]),
        last=tensor(ends - 1, torch.int64),
    )
