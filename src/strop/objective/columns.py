"""What terms see: one number per token, rank 1. Invariant: only tokens that some term needs are here, nothing is padded."""

from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True)
class Columns:
    """Per-token columns of one micro-batch; every tensor is [N] unless said otherwise.

    Args:
        logp: log-probability under the policy being trained, at the sampling temperature (carries the gradient).
        entropy: entropy of the policy's distribution at the token, or None when no term needs it (carries gradient).
        sampled: True for trained tokens, False for observation tokens that the observation loss asked for.
        behaviour_logp: log-probability when sampled; anything at tokens that were not sampled.
        advantage: credit; anything at tokens that were not sampled.
        trajectory: index of the trajectory in the micro-batch.
        trajectory_tokens: trained tokens of each trajectory in the micro-batch; [trajectories]. A trajectory is never
            split over micro-batches, so this is the trajectory's own count.
        order: number of a trained token in its trajectory, from 0, over all its rows; anything elsewhere.
        turn: index of the turn in its trajectory.
        group_tokens: trained tokens of the trajectory's group over the whole optimizer step; [trajectories].
        anchor_logp: log-probability that the ratio divides by: proximal with a correction, else behaviour.
        correction: weight for stale data, detached; None for 1.
        reference_logp: log-probability under the reference policy, where a KL term needs it.
        reference_kl: exact KL(policy || reference) (carries the gradient).
        divergence: divergence to the teacher (carries the gradient).
        divergence_capped: share of the ids whose part of the divergence its cap bounded.
        judged: whether the teacher judges the token; None for all.
        value: what the critic says now (carries the gradient): V, or its logit for the bce loss.
        value_old: V at the start of the step.
        value_target: what V should be; NaN where the critic is not trained.
        process: logit of the process reward model (carries the gradient).
        process_label: its label, at the last token of each turn; NaN elsewhere.
    """

    logp: torch.Tensor
    entropy: torch.Tensor | None
    sampled: torch.Tensor
    behaviour_logp: torch.Tensor
    advantage: torch.Tensor
    trajectory: torch.Tensor
    trajectory_tokens: torch.Tensor
    order: torch.Tensor
    turn: torch.Tensor
    group_tokens: torch.Tensor
    anchor_logp: torch.Tensor
    correction: torch.Tensor | None = None
    reference_logp: torch.Tensor | None = None
    reference_kl: torch.Tensor | None = None
    divergence: torch.Tensor | None = None
    value: torch.Tensor | None = None
    value_old: torch.Tensor | None = None
    value_target: torch.Tensor | None = None
    process: torch.Tensor | None = None
    process_label: torch.Tensor | None = None
    divergence_capped: torch.Tensor | None = None
    judged: torch.Tensor | None = None


@dataclass(frozen=True, slots=True)
class Totals:
    """Counts over the whole optimizer step, passed down: no denominator is ever local to a micro-batch.

    Args:
        tokens: trained tokens.
        trajectories: trajectories with a trained token.
        observations: observation tokens (the denominator of the observation loss).
        groups: groups with a trained token.
        values: tokens at which the critic is trained.
        labels: turns at which the process reward model is trained.
        taught: trained tokens of rows with a twin.
    """

    tokens: int
    trajectories: int
    observations: int = 0
    groups: int = 1
    values: int = 0
    labels: int = 0
    taught: int = 0
