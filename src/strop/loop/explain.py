"""What an update does, token by token, and what other rows of the table would do with the same batch.

Invariant: weights are dL/dlogp of the production loss on the recorded columns; nothing is computed a second way.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import torch

from strop.core.algorithm import GAE, Algorithm, MonteCarlo, ProcessGroup
from strop.core.trajectory import Group, Row
from strop.credit.assign import assign
from strop.credit.correction import around_proximal, correction_weights
from strop.credit.outcome import outcome
from strop.learn.annotate import Forward, columns_of
from strop.learn.pack import Pack, count, pack
from strop.model.forward import token_columns
from strop.model.policy import Policy
from strop.objective.columns import Columns
from strop.objective.objective import policy_loss
from strop.objective.parts import Places, importance_ratio, surrogate, unit_advantage
from strop.rollout.rows import sampled_values, with_sampled

WHOLE = 1 << 40
"""A budget that holds every batch in one pack."""


@dataclass(frozen=True, slots=True)
class TokenView:
    """One trained token of an update: log-probabilities under the policies that saw it, ratio as the algorithm uses it,
    advantage, whether clipping took or bounded it, and dL/dlogp."""

    row: Row
    index: int
    behaviour: float
    proximal: float
    current: float
    ratio: float
    advantage: float
    clipped: bool
    weight: float


def explained(algorithm: Algorithm, rows: Sequence[Row]) -> list[TokenView]:
    """Every trained token of a recorded batch, in the order of its rows.

    Args:
        algorithm: what the batch was trained with.
        rows: with `current_logp` and `weight` as the learner traced them.
    """
    micro, columns = _columns(algorithm, rows)
    ratio, clipped, advantage = _ratios(algorithm, columns)
    views: list[TokenView] = []
    for n, (row_index, index) in enumerate(zip(*micro.places, strict=True)):
        row = micro.rows[int(row_index)]
        known = row.columns.get("proximal_logp")
        views.append(
            TokenView(
                row,
                int(index),
                float(row.behaviour_logp[index]),
                float("nan") if known is None else float(known[index]),
                float(row.columns["current_logp"][index]),
                float(ratio[n]),
                float(advantage[n]),
                bool(clipped[n]),
                float(row.columns["weight"][index]),
            )
        )
    place = {id(row): n for n, row in enumerate(rows)}
    return sorted(views, key=lambda view: (place[id(view.row)], view.index))


def shares(rows: Sequence[Row]) -> list[tuple[str, int, float]]:
    """(group, member, share of the update) of each trajectory, largest first: its part of the sum of |dL/dlogp|."""
    sums: dict[tuple[str, int], float] = {}
    for row in rows:
        key = (row.origin.group, row.origin.member)
        sums[key] = sums.get(key, 0.0) + float(np.nansum(np.abs(row.columns["weight"])))
    total = sum(sums.values()) or 1.0
    return sorted(((g, m, s / total) for (g, m), s in sums.items()), key=lambda entry: -entry[2])


def _columns(algorithm: Algorithm, rows: Sequence[Row]) -> tuple[Pack, Columns]:
    """The whole batch as one pack, with the recorded current log-probabilities as a leaf."""
    micro = pack(rows, WHOLE, None, torch.device("cpu"))[0]
    current = np.concatenate([row.columns["current_logp"] for row in micro.rows])
    chosen = np.concatenate(
        [np.flatnonzero(row.sampled) + start for row, start in zip(micro.rows, _starts(micro), strict=True)]
    )
    logp = torch.tensor(current[chosen], dtype=torch.float64, requires_grad=True)
    columns = columns_of(micro, Forward(logp, None), algorithm)
    return micro, replace(
        columns, behaviour_logp=columns.behaviour_logp.double(), anchor_logp=columns.anchor_logp.double()
    )


def _starts(micro: Pack) -> npt.NDArray[np.int64]:
    lengths = np.array([len(row) for row in micro.rows])
    return np.cumsum(lengths) - lengths


def _ratios(algorithm: Algorithm, columns: Columns) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    places = Places(columns.trajectory, columns.order, columns.turn, columns.trajectory_tokens.clamp(min=1))
    advantage = unit_advantage(algorithm.ratio, columns.advantage.double(), places)
    ratio = importance_ratio(algorithm.ratio, columns.logp, columns.anchor_logp, places)
    _, clipped = surrogate(algorithm.clip, ratio, columns.logp, advantage, columns.order, columns.anchor_logp)
    shown = torch.ones_like(columns.logp) if ratio is None else ratio
    return shown.detach(), clipped, advantage


@dataclass(frozen=True, slots=True)
class Comparison:
    """One row of the table on a recorded batch.

    Args:
        name: of the row.
        weights: dL/dlogp of each trained token; [tokens], in one order for all rows.
        clipped: share of tokens that clipping took or bounded.
        note: what stands in for something that was not recorded.
    """

    name: str
    weights: npt.NDArray[np.float64]
    clipped: float
    note: str


def compared(table: Mapping[str, Algorithm], rows: Sequence[Row], groups: Sequence[Group]) -> list[Comparison]:
    """Token weights of a recorded batch under every on-policy row of the table.

    Values of critics and continuations were not recorded for other rows: the group's mean return stands in for them, and
    for process scores the member's return; the note says so.

    Args:
        table: rows by name.
        rows: the recorded rows; all members of the groups that have a row.
        groups: the groups they came from.
    """
    out: list[Comparison] = []
    members = {(g.id, i): outcome(t) for g in groups for i, t in enumerate(g.trajectories)}
    for name, algorithm in table.items():
        if algorithm.data != "on_policy" or any(
            type(t).__name__ in ("ProcessLabels", "Divergence", "SampledDivergence") for t in algorithm.terms
        ):
            continue
        seen, note = _stand_in(algorithm, groups, members)
        credits = assign(algorithm.credit, seen, {})
        given = {(g.id, i): a for g, line in zip(groups, credits.advantages, strict=True) for i, a in enumerate(line)}
        own = [row for key, parts in _trajectories(rows).items() for row in _credited(parts, given.get(key))]
        out.append(_weighed(name, _corrected(algorithm, own), algorithm, note))
    return out


def _stand_in(
    algorithm: Algorithm, groups: Sequence[Group], members: Mapping[tuple[str, int], Any]
) -> tuple[list[list[Any]], str]:
    seen = [[members[g.id, i] for i in range(len(g.trajectories))] for g in groups]
    if not isinstance(algorithm.credit, GAE | MonteCarlo | ProcessGroup):
        return seen, ""
    out: list[list[Any]] = []
    for line in seen:
        returns = [m.reward for m in line if m.reward is not None]
        mean = float(np.mean(returns)) if returns else 0.0
        out.append(
            [
                replace(
                    m,
                    values=np.full(len(m.turns), mean),
                    turn_values=np.full(len(m.turn_rewards), mean),
                    process=np.full(len(m.turn_rewards), m.reward or 0.0),
                )
                for m in line
            ]
        )
    return out, "process = return" if isinstance(algorithm.credit, ProcessGroup) else "V = group mean"


def _trajectories(rows: Sequence[Row]) -> dict[tuple[str, int], list[Row]]:
    found: dict[tuple[str, int], list[Row]] = {}
    for row in rows:
        found.setdefault((row.origin.group, row.origin.member), []).append(row)
    return found


def _credited(parts: Sequence[Row], advantages: npt.NDArray[np.float64] | None) -> list[Row]:
    n = sum(row.trained for row in parts)
    return with_sampled(parts, 0.0, advantage=np.zeros(n) if advantages is None else advantages)


def _corrected(algorithm: Algorithm, rows: Sequence[Row]) -> list[Row]:
    """Rows with the correction's weights; the recorded proximal policy, or the behaviour's where none was recorded."""
    if algorithm.correction is None:
        return list(rows)
    out: list[Row] = []
    for parts in _trajectories(rows).values():
        behaviour = np.concatenate([row.behaviour_logp[row.sampled] for row in parts]).astype(np.float64)
        if "proximal_logp" not in parts[0].columns:
            parts = with_sampled(parts, np.nan, proximal_logp=behaviour)
        proximal, advantage = sampled_values(parts, "proximal_logp"), sampled_values(parts, "advantage")
        [weight] = correction_weights(algorithm.correction, [proximal], [behaviour], [advantage])
        out += with_sampled(parts, 0.0, correction=weight)
    return out


def _weighed(name: str, rows: Sequence[Row], algorithm: Algorithm, note: str) -> Comparison:
    micro, columns = _columns(algorithm, rows)
    if not around_proximal(algorithm.correction):
        columns = replace(columns, anchor_logp=columns.behaviour_logp)
    value, _ = policy_loss(algorithm, columns, count(rows, False))
    [weights] = torch.autograd.grad(value, columns.logp)
    _, clipped, _ = _ratios(algorithm, columns)
    order = np.lexsort((micro.places[1], np.array([_rank(rows, micro.rows[i]) for i in micro.places[0]])))
    return Comparison(name, weights.numpy()[order], float(clipped.double().mean()), note)


def _rank(rows: Sequence[Row], row: Row) -> int:
    origin = row.origin
    return hash_order(origin.group, origin.member, origin.part)


def hash_order(group: str, member: int, part: int) -> int:
    """A number that orders rows by group, member and part, whatever order they came in."""
    return (int(group.rsplit("-", 1)[1]) * 100_000 + member) * 100_000 + part


def gradients(
    policy: Policy, rows: Sequence[Row], comparisons: Sequence[Comparison], temperature: float
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Gradient geometry of each comparison on a policy: cosine with the first one, and variance.

    The gradient of a row is the sum of weight x d logp / d theta at the policy's present weights. The variance is the
    trace of the covariance of the batch gradient, estimated from its groups, over its squared length.

    Returns:
        cosines [rows of the table], variances [rows of the table].
    """
    ordered = sorted(rows, key=lambda row: hash_order(row.origin.group, row.origin.member, row.origin.part))
    parameters = [p for p in policy.model.parameters() if p.requires_grad]
    by_group: dict[str, list[Row]] = {}
    for row in ordered:
        by_group.setdefault(row.origin.group, []).append(row)
    start = 0
    found: list[npt.NDArray[np.float64]] = []  # [groups][comparisons, parameters]
    for members in by_group.values():
        micro = pack(members, WHOLE, None, policy.device)[0]
        hidden = policy.hidden(micro.ids, micro.positions, micro.layout)[micro.predictors]
        logp, _ = token_columns(policy, hidden, micro.targets, temperature, False)
        order = np.lexsort((micro.places[1], np.array([_rank(members, micro.rows[i]) for i in micro.places[0]])))
        logp = logp[torch.as_tensor(order, device=logp.device)]
        stop = start + len(order)
        found.append(np.stack([_pulled(logp, parameters, c.weights[start:stop]) for c in comparisons]))
        start = stop
    every = np.stack(found)
    total = every.sum(0)
    norms = np.linalg.norm(total, axis=1)
    cosines = total @ total[0] / np.maximum(norms * norms[0], 1e-30)
    variance = every.var(0, ddof=1 if len(found) > 1 else 0).sum(1) * len(found)
    return cosines, variance / np.maximum(norms**2, 1e-30)


def distance(weights: npt.NDArray[np.float64], others: npt.NDArray[np.float64]) -> float:
    """|w - w'| of two vectors of token weights scaled to length 1: 0 for one direction, up to 2 for opposite ones."""
    a, b = (w / max(float(np.linalg.norm(w)), 1e-30) for w in (weights, others))
    return float(np.linalg.norm(a - b))


def _pulled(
    logp: torch.Tensor, parameters: Sequence[torch.Tensor], weights: npt.NDArray[np.float64]
) -> npt.NDArray[np.float64]:
    pull = torch.as_tensor(weights, dtype=logp.dtype, device=logp.device)
    found: Any = torch.autograd.grad(logp, parameters, pull, retain_graph=True, allow_unused=True)
    parts = cast("tuple[torch.Tensor | None, ...]", found)
    flat = [torch.zeros_like(p).flatten() if g is None else g.flatten() for p, g in zip(parameters, parts, strict=True)]
    return torch.cat(flat).double().cpu().numpy()
