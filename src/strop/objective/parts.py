"""Ratio, clip and aggregation: the three parts of the policy-gradient term, as pure functions on rank-1 tensors.

Invariant: exponents are bounded before they are taken, denominators come from `Totals`, and the gradient of a ratio
flows through the log-probability of its own token only: d ratio_t / d logp_t = ratio_t. For a turn, a sequence or a
trajectory as one action this is the gradient of the product, since all its tokens carry the same ratio and credit.
"""

from dataclasses import dataclass

import torch

from strop.core.algorithm import (
    Aggregate,
    Clip,
    Constant,
    GroupTokenMean,
    GrowingClip,
    MaskClip,
    NoClip,
    NoRatio,
    PPOClip,
    PrefixRatio,
    Ratio,
    SeqMeanTokenMean,
    SeqMeanTokenSum,
    SequenceRatio,
    SoftGate,
    TokenMean,
    TokenRatio,
    TrajectoryRatio,
    TurnRatio,
    WeightClip,
)
from strop.objective.columns import Totals

MAX_LOG_RATIO = 20.0
"""Log-ratios, of tokens and of products, are clamped to +- this before exp: e^89 overflows float32."""


@dataclass(frozen=True, slots=True)
class Places:
    """Where the trained tokens of a micro-batch stand; every tensor is [N].

    Args:
        trajectory: index of the trajectory.
        order: number of the token in its trajectory, from 0.
        turn: index of the turn in its trajectory.
        lengths: trained tokens of each trajectory; [trajectories].
    """

    trajectory: torch.Tensor
    order: torch.Tensor
    turn: torch.Tensor
    lengths: torch.Tensor


def log_ratio(logp: torch.Tensor, anchor_logp: torch.Tensor) -> torch.Tensor:
    """log pi - log old per token, clamped to +-20 (a NaN at a trained token stays visible and stops the step).

    Args:
        logp: current policy; [N].
        anchor_logp: policy that the ratio divides by; [N].
    """
    return (logp - anchor_logp).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)


def unit_log_ratio(ratio: Ratio, log_r: torch.Tensor, places: Places) -> torch.Tensor:
    """Logarithm of the importance ratio at each token, from the token log-ratios; [N], no gradient.

    token log r_t; turn: sum over the turn's tokens; prefix: sum up to t (2605.07331); trajectory: sum over all; sequence:
    mean over all (2507.18071, eq. 7). Sums are taken in float64, since a running sum in float32 loses what late tokens
    add. The token clamp comes first, that of the product when it is exponentiated.
    """
    log_r = log_r.detach()
    match ratio:
        case NoRatio():
            return torch.zeros_like(log_r)
        case TokenRatio():
            return log_r
        case PrefixRatio():
            return _prefix_sums(log_r, places)
        case TrajectoryRatio():
            return _sums(log_r, places.trajectory)
        case SequenceRatio():
            return (_sums(log_r.double(), places.trajectory) / places.lengths[places.trajectory]).to(log_r.dtype)
        case TurnRatio():
            stride = int(places.turn.max()) + 1 if len(log_r) else 1
            _, unit = torch.unique(places.trajectory * stride + places.turn, return_inverse=True)
            return _sums(log_r, unit)


def _sums(log_r: torch.Tensor, unit: torch.Tensor) -> torch.Tensor:
    """Each token gets the sum over its unit."""
    count = int(unit.max()) + 1 if len(unit) else 0
    total = torch.zeros(count, dtype=torch.float64, device=log_r.device).index_add_(0, unit, log_r.double())
    return total[unit].to(log_r.dtype)


def _prefix_sums(log_r: torch.Tensor, places: Places) -> torch.Tensor:
    """Each token gets the sum over the trained tokens of its trajectory up to itself."""
    stride = int(places.order.max()) + 1 if len(log_r) else 1
    sequence = torch.argsort(places.trajectory * stride + places.order)
    running = log_r[sequence].double().cumsum(0)
    owner = places.trajectory[sequence]
    first = torch.ones_like(owner, dtype=torch.bool)
    first[1:] = owner[1:] != owner[:-1]
    before = torch.where(first, running - log_r[sequence].double(), torch.zeros_like(running))
    start = before[first][torch.cumsum(first, 0) - 1]
    out = torch.empty_like(log_r)
    out[sequence] = (running - start).to(log_r.dtype)
    return out


def importance_ratio(
    ratio: Ratio, logp: torch.Tensor, anchor_logp: torch.Tensor, places: Places
) -> torch.Tensor | None:
    """The importance ratio of each token; [N], or None for no ratio."""
    if isinstance(ratio, NoRatio):
        return None
    unit = unit_log_ratio(ratio, log_ratio(logp, anchor_logp), places).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)
    known = logp.detach()
    own = torch.where(known.isinf(), torch.zeros_like(logp), logp - known)  # 0, with the gradient of log pi
    return unit.exp() * own.exp()


def unit_advantage(ratio: Ratio, advantage: torch.Tensor, places: Places) -> torch.Tensor:
    """Credit as the ratio's unit takes it: GSPO's sequence is one action, with the mean of its tokens' credit."""
    if isinstance(ratio, SequenceRatio) and ratio.form == "sequence":
        return _sums(advantage, places.trajectory) / places.lengths[places.trajectory].to(advantage.dtype)
    return advantage


def surrogate(
    clip: Clip,
    ratio: torch.Tensor | None,
    logp: torch.Tensor,
    advantage: torch.Tensor,
    order: torch.Tensor,
    anchor_logp: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Per-token loss and whether clipping took, or bounded, the token's gradient; both [N].

    Without a ratio: -A log pi (Williams 1992). With a ratio: -A r, clipped as the part says; see its docstring.

    Args:
        clip: the part.
        ratio: importance ratio, or None.
        logp: current policy.
        advantage: credit.
        order: number of the token in its trajectory, from 0.
        anchor_logp: policy that the ratio divides by.
    """
    if ratio is None:
        return -advantage * logp, torch.zeros_like(advantage, dtype=torch.bool)
    plain = -advantage * ratio
    match clip:
        case NoClip():
            return plain, torch.zeros_like(advantage, dtype=torch.bool)
        case PPOClip(low, high, dual):
            return _clipped(plain, ratio, advantage, (1 - low, 1 + high), dual)
        case GrowingClip(low, high, power, dual):
            width = (order.to(ratio.dtype) + 1) ** power
            bounds = torch.exp(-low * width), torch.exp(high * width)
            return _clipped(plain, ratio, advantage, bounds, None if dual is None else torch.exp(dual * width))
        case WeightClip(low, high):
            weight = ratio.detach().clamp(low, high)
            return -weight * advantage * logp, weight != ratio
        case MaskClip(delta):
            moved = logp.detach().exp() - anchor_logp.exp()
            dropped = ((advantage > 0) & (moved > delta)) | ((advantage < 0) & (moved < -delta))
            return torch.where(dropped, plain.detach(), plain), dropped
        case SoftGate(positive, negative):
            tau = torch.full_like(ratio, negative).masked_fill(advantage > 0, positive)
            return -advantage * torch.sigmoid(tau * (ratio - 1)) * 4 / tau, torch.zeros_like(ratio, dtype=torch.bool)


def _clipped(
    plain: torch.Tensor,
    ratio: torch.Tensor,
    advantage: torch.Tensor,
    bounds: tuple[float, float] | tuple[torch.Tensor, torch.Tensor],
    dual: float | torch.Tensor | None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """max(-A r, -A clip(r)), then min with -A dual where A < 0."""
    bounded = -advantage * torch.clamp(ratio, *bounds)  # type: ignore[arg-type]  # both numbers or both tensors
    out, clipped = torch.maximum(plain, bounded), bounded > plain
    if dual is None:
        return out, clipped
    ceiling = -advantage * dual
    beyond = (advantage < 0) & (out > ceiling)
    return torch.where(beyond, ceiling, out), clipped | beyond


def token_weights(
    aggregate: Aggregate,
    places: Places,
    totals: Totals,
    group_tokens: torch.Tensor,
    dtype: torch.dtype = torch.float32,
) -> torch.Tensor:
    """Weight of each trained token in the sum that is the loss; [N], computed in the precision of the loss.

    token mean 1/N, mean over groups of token means 1/(G N_g), mean over trajectories of token means 1/(B n_i), of token
    sums 1/B, constant 1/(B C), where N, G and B are tokens, groups and trajectories of the whole optimizer step, N_g the
    tokens of the group and n_i those of the trajectory, over all its rows.
    """
    trajectory = places.trajectory
    ones = torch.ones(len(trajectory), dtype=dtype, device=trajectory.device)
    match aggregate:
        case TokenMean():
            return ones / max(totals.tokens, 1)
        case GroupTokenMean():
            return ones / (max(totals.groups, 1) * group_tokens[trajectory].clamp(min=1))
        case SeqMeanTokenMean():
            return ones / (max(totals.trajectories, 1) * places.lengths[trajectory].clamp(min=1))
        case SeqMeanTokenSum():
            return ones / max(totals.trajectories, 1)
        case Constant(length):
            if length is None:
                raise ValueError("the constant aggregation has no length; give Constant(most tokens of a trajectory)")
            return ones / (max(totals.trajectories, 1) * length)
