"""Rows to micro-batches: flat tensors without padding. Invariant: a trajectory is never split over micro-batches.

Rows are sorted by length, so that attention runs over rows of like length, and a micro-batch holds at most a budget of
tokens (one trajectory alone may exceed it).
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from strop.core.trajectory import Row
from strop.model.attention import RowsLayout
from strop.objective.columns import Totals


@dataclass(frozen=True, slots=True)
class Pack:
    """One micro-batch.

    Args:
        ids, positions: tokens and their positions in their own rows; int64 [T].
        layout: attention inside rows.
        predictors: index of the token before each column token; int64 [N].
        targets: id of each column token; int64 [N].
        sampled, behaviour_logp, advantage, trajectory: columns of the tokens; [N].
        trajectory_tokens: trained tokens of each trajectory; [trajectories].
        rows: the rows, in the order of the pack.
        places: (row in the pack, index in the row) of each column token; [N] each, for logs.
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
    trajectory_tokens: torch.Tensor
    rows: tuple[Row, ...]
    places: tuple[np.ndarray, np.ndarray]


def count(rows: Sequence[Row], observations: bool) -> Totals:
    """Totals of an optimizer step over its rows."""
    trained = [row for row in rows if row.trained]
    return Totals(
        tokens=sum(row.trained for row in trained),
        trajectories=len({(row.origin.group, row.origin.member) for row in trained}),
        observations=sum(len(row) - 1 - row.trained for row in rows) if observations else 0,
    )


def pack(rows: Sequence[Row], budget: int, observations: bool, device: torch.device) -> list[Pack]:
    """Split rows into micro-batches of at most `budget` tokens.

    Args:
        rows: rows with a column `advantage`; rows without a trained token are left out unless observations are wanted.
        budget: tokens per micro-batch.
        observations: also give columns for tokens that were not sampled.
        device: where the tensors go.
    """
    trajectories: dict[tuple[str, int], list[Row]] = {}
    for row in rows:
        if row.trained or observations:
            trajectories.setdefault((row.origin.group, row.origin.member), []).append(row)
    order = sorted(trajectories.values(), key=lambda parts: (-max(map(len, parts)), -sum(map(len, parts))))
    packs: list[Pack] = []
    batch: list[list[Row]] = []
    used = 0
    for parts in order:
        size = sum(map(len, parts))
        if batch and used + size > budget:
            packs.append(_build(batch, observations, device))
            batch, used = [], 0
        batch.append(parts)
        used += size
    if batch:
        packs.append(_build(batch, observations, device))
    return packs


def _build(batch: Sequence[Sequence[Row]], observations: bool, device: torch.device) -> Pack:
    numbered = [(index, row) for index, parts in enumerate(batch) for row in parts]
    numbered.sort(key=lambda pair: -len(pair[1]))
    rows = [row for _, row in numbered]
    lengths = np.array([len(row) for row in rows])
    starts = np.concatenate([[0], np.cumsum(lengths)[:-1]])
    ids = np.concatenate([row.tokens for row in rows])
    within = np.arange(len(ids)) - np.repeat(starts, lengths)
    sampled = np.concatenate([row.sampled for row in rows])
    if (sampled & (within == 0)).any():
        raise ValueError("a row starts with a sampled token; its context is missing, so nothing predicts that token")
    chosen = np.flatnonzero((within > 0) if observations else sampled)
    owner = np.repeat(np.array([index for index, _ in numbered]), lengths)
    counts = np.bincount(owner[sampled], minlength=len(batch))

    def column(name: str) -> np.ndarray:
        return np.concatenate([row.columns[name] for row in rows])[chosen]

    def tensor(array: np.ndarray, dtype: torch.dtype) -> torch.Tensor:
        return torch.as_tensor(array, device=device).to(dtype)

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
        trajectory_tokens=tensor(counts, torch.int64),
        rows=tuple(rows),
        places=(np.repeat(np.arange(len(rows)), lengths)[chosen], within[chosen]),
    )
