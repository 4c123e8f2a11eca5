"""What terms see: one number per token, rank 1. Invariant: only tokens that some term needs are here, nothing is padded."""

from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True)
class Columns:
    """Per-token columns of one micro-batch; every tensor is [N].

    Args:
        logp: log-probability under the policy being trained, at the sampling temperature (carries the gradient).
        entropy: entropy of the policy's distribution at the token, or None when no term needs it (carries gradient).
        sampled: True for trained tokens, False for observation tokens that a cross-entropy term asked for.
        behaviour_logp: log-probability when sampled; anything at tokens that were not sampled.
        advantage: credit; anything at tokens that were not sampled.
        trajectory: index of the trajectory in the micro-batch.
        trajectory_tokens: trained tokens of each trajectory in the micro-batch; [trajectories]. A trajectory is never
            split over micro-batches, so this is the trajectory's own count.
    """

    logp: torch.Tensor
    entropy: torch.Tensor | None
    sampled: torch.Tensor
    behaviour_logp: torch.Tensor
    advantage: torch.Tensor
    trajectory: torch.Tensor
    trajectory_tokens: torch.Tensor


@dataclass(frozen=True, slots=True)
class Totals:
    """Counts over the whole optimizer step, passed down: no denominator is ever local to a micro-batch.

    Args:
        tokens: trained tokens.
        trajectories: trajectories with a trained token.
        observations: observation tokens (the denominator of the observation loss).
    """

    tokens: int
    trajectories: int
    observations: int
