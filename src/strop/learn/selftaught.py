"""The divergence to a teacher that reads the twins of a micro-batch's rows: the target of self-distillation.

Invariant: the k-th sampled token of a row is held against the k-th of its twin, and no id of a twin reaches the policy:
twins are read by the frozen reference alone, without gradient, in a pack of their own.
"""

from dataclasses import dataclass

import numpy as np
import torch

from strop.core.algorithm import Divergence
from strop.learn.pack import Pack
from strop.model.attention import RowsLayout
from strop.model.divergence import measured_columns
from strop.model.policy import Policy


@dataclass(frozen=True, slots=True)
class TwinPack:
    """The twins of a micro-batch's rows, in the order of its rows.

    A twin is longer than its row, so that this pack may exceed the token budget; nothing of it is kept for a gradient.

    Args:
        ids, positions: tokens and their positions in their own twins; int64 [T].
        layout: attention inside twins.
        predictors: index of the token before each sampled one; int64 [M].
        targets: id of each sampled token; int64 [M].
        taught: column tokens of the micro-batch that have such a partner, in the same order; bool [N], M of them True.
    """

    ids: torch.Tensor
    positions: torch.Tensor
    layout: RowsLayout
    predictors: torch.Tensor
    targets: torch.Tensor
    taught: torch.Tensor


def pack_twins(micro: Pack) -> TwinPack | None:
    """The twins of a micro-batch, packed; None where no row has one."""
    twins = [row.twin for row in micro.rows if row.twin is not None]
    if not twins:
        return None
    device = micro.ids.device
    lengths = np.array([len(twin.tokens) for twin in twins])
    ids = np.concatenate([twin.tokens for twin in twins]).astype(np.int64)
    within = np.arange(len(ids)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    chosen = np.flatnonzero(np.concatenate([twin.sampled for twin in twins]))
    told = np.array([row.twin is not None for row in micro.rows])[micro.places[0]]
    return TwinPack(
        torch.as_tensor(ids, device=device),
        torch.as_tensor(within, device=device),
        RowsLayout(lengths.tolist(), device),
        torch.as_tensor(chosen - 1, device=device),
        torch.as_tensor(ids[chosen], device=device),
        torch.as_tensor(told, device=device) & micro.sampled,
    )


def twin_hidden(reference: Policy, pack: TwinPack) -> torch.Tensor:
    """Hidden states of the teacher that predict each sampled token of the twins, without gradient; [M, width]."""
    with torch.no_grad():
        return reference.hidden(pack.ids, pack.positions, pack.layout)[pack.predictors]


def twin_divergence(
    policies: tuple[Policy, Policy], micro: Pack, hidden: torch.Tensor, temperature: float, term: Divergence
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Divergence of each column token to the teacher that reads the twin, the share of ids that its cap bounded, and
    where there is a twin; [N] each, 0 where there is none.

    Args:
        policies: the policy, and its frozen copy.
        micro: the micro-batch.
        hidden: the policy's hidden states that predict the column tokens; [N, width].
        temperature: of both.
        term: which divergence.
    """
    empty = torch.zeros(len(hidden), dtype=torch.float32, device=hidden.device)
    pack = pack_twins(micro)
    if pack is None:
        return empty, empty, torch.zeros_like(micro.sampled)
    if not torch.equal(micro.targets[pack.taught], pack.targets):
        raise RuntimeError("the sampled tokens of rows and twins differ, so that targets would stand at wrong tokens")
    both = (hidden[pack.taught], twin_hidden(policies[1], pack))
    found = measured_columns(policies, both, temperature, term)
    column, capped = (empty.to(new.dtype).masked_scatter(pack.taught, new) for new in found)
    return column, capped, pack.taught
