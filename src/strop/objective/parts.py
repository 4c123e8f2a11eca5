"""Ratio, clip and aggregation: the three parts of the policy-gradient term, as pure functions on rank-1 tensors.

Invariant: exponents are bounded before they are taken, and denominators come from `Totals`.
"""

import torch

from strop.core.algorithm import (
    Aggregate,
    Clip,
    Constant,
    NoClip,
    NoRatio,
    PPOClip,
    Ratio,
    SeqMeanTokenMean,
    SeqMeanTokenSum,
    TokenMean,
    TokenRatio,
)
from strop.objective.columns import Totals

MAX_LOG_RATIO = 20.0
"""Log-ratios are clamped to +- this before exp: e^89 overflows float32."""


def log_ratio(logp: torch.Tensor, behaviour_logp: torch.Tensor) -> torch.Tensor:
    """log pi - log mu per token, clamped to +-20 (a NaN at a trained token stays visible and stops the step).

    Args:
        logp: current policy; [N].
        behaviour_logp: policy that sampled; [N].
    """
    return (logp - behaviour_logp).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)


def importance_ratio(ratio: Ratio, logp: torch.Tensor, behaviour_logp: torch.Tensor) -> torch.Tensor | None:
    """The importance ratio of each token; [N], or None for no ratio."""
    match ratio:
        case NoRatio():
            return None
        case TokenRatio():
            return log_ratio(logp, behaviour_logp).exp()


def surrogate(
    clip: Clip, ratio: torch.Tensor | None, logp: torch.Tensor, advantage: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Per-token loss and whether clipping took the token's gradient; both [N].

    Without a ratio: -A log pi (Williams 1992). With a ratio: -A r. PPO's clip: max(-A r, -A clip(r, 1 - low, 1 + high))
    (1707.06347, eq. 7), which takes the gradient of tokens that moved too far in the direction of A.
    """
    if ratio is None:
        return -advantage * logp, torch.zeros_like(advantage, dtype=torch.bool)
    plain = -advantage * ratio
    match clip:
        case NoClip():
            return plain, torch.zeros_like(advantage, dtype=torch.bool)
        case PPOClip(low, high):
            bounded = -advantage * ratio.clamp(1 - low, 1 + high)
            return torch.maximum(plain, bounded), bounded > plain


def token_weights(
    aggregate: Aggregate,
    trajectory: torch.Tensor,
    trajectory_tokens: torch.Tensor,
    totals: Totals,
    dtype: torch.dtype = torch.float32,
) -> torch.Tensor:
    """Weight of each trained token in the sum that is the loss; [N], computed in the precision of the loss.

    token mean 1/N, mean over trajectories of token means 1/(B n_i), of token sums 1/B, constant 1/(B C), where N and B are
    tokens and trajectories of the whole optimizer step and n_i the tokens of the trajectory, over all its rows.
    """
    ones = torch.ones(len(trajectory), dtype=dtype, device=trajectory.device)
    match aggregate:
        case TokenMean():
            return ones / max(totals.tokens, 1)
        case SeqMeanTokenMean():
            return ones / (max(totals.trajectories, 1) * trajectory_tokens[trajectory].clamp(min=1))
        case SeqMeanTokenSum():
            return ones / max(totals.trajectories, 1)
        case Constant(length):
            if length is None:
                raise ValueError("the constant aggregation has no length; give Constant(most tokens of a trajectory)")
            return ones / (max(totals.trajectories, 1) * length)
