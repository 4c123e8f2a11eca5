"""The objective: a weighted sum of terms, each with its own mask and normaliser.

Invariant: adding a term with coefficient 0 changes no bit, and what stands at tokens outside a term's mask changes
neither its value nor its gradient: tokens are selected before anything is computed from them.
"""

from dataclasses import dataclass

import torch

from strop.core.algorithm import Algorithm, CrossEntropy, Entropy
from strop.core.metrics import Mean, Metrics, Peak
from strop.objective.columns import Columns, Totals
from strop.objective.parts import importance_ratio, log_ratio, surrogate, token_weights


@dataclass(frozen=True, slots=True)
class Needs:
    """What the model's forward must give for an algorithm."""

    entropy: bool
    observations: bool


def needs(algorithm: Algorithm) -> Needs:
    """Columns that the algorithm's terms ask for."""
    return Needs(
        entropy=True,  # always logged; its gradient is computed only where a term uses it
        observations=any(isinstance(term, CrossEntropy) and term.coefficient for term in algorithm.terms),
    )


def loss(algorithm: Algorithm, columns: Columns, totals: Totals, progress: float) -> tuple[torch.Tensor, Metrics]:
    """The loss of one micro-batch and its metrics as sums and counts.

    L = sum over trained tokens of weight x surrogate + sum over terms of coefficient x term. Sums of micro-batch losses
    are the loss of the optimizer step, because every denominator comes from `totals`.

    Args:
        algorithm: the parts and terms.
        columns: the micro-batch.
        totals: counts over the whole optimizer step.
        progress: share of the stage that is done, for scheduled coefficients.
    """
    chosen = columns.sampled
    logp, behaviour = columns.logp[chosen], columns.behaviour_logp[chosen]
    advantage = columns.advantage[chosen].to(logp.dtype)
    ratio = importance_ratio(algorithm.ratio, logp, behaviour)
    per_token, clipped = surrogate(algorithm.clip, ratio, logp, advantage)
    weight = token_weights(
        algorithm.aggregate, columns.trajectory[chosen], columns.trajectory_tokens, totals, logp.dtype
    )
    total = (weight * per_token).sum()
    metrics = _policy_metrics(logp.detach(), behaviour, advantage, clipped)
    metrics["policy_loss"] = Mean(total.item(), 0.0)
    for term in algorithm.terms:
        match term:
            case Entropy(coefficient):
                if columns.entropy is None:
                    raise RuntimeError("an entropy term needs the entropy column; ask the forward for it")
                bonus = columns.entropy[chosen].sum() / max(totals.tokens, 1)
                total = total - coefficient.at(progress) * bonus
            case CrossEntropy(coefficient):
                if coefficient:
                    observed = columns.logp[~chosen]
                    total = total - coefficient * observed.sum() / max(totals.observations, 1)
                    metrics["observation_nll"] = Mean(-observed.sum().item(), len(observed))
    if columns.entropy is not None:
        metrics["entropy"] = Mean(columns.entropy[chosen].sum().item(), len(logp))
    return total, metrics


def _policy_metrics(
    logp: torch.Tensor, behaviour: torch.Tensor, advantage: torch.Tensor, clipped: torch.Tensor
) -> Metrics:
    """Diagnostics of the trained tokens; the ratio is reported whether or not the algorithm uses it.

    Which metric a token enters depends on that token alone, so that the split into micro-batches changes nothing.
    """
    n = float(len(logp))
    metrics: Metrics = {
        "nonzero_advantage_tokens": Mean(float((advantage != 0).sum()), n),
        "clipped_up": Mean(float((clipped & (advantage > 0)).sum()), n),
        "clipped_down": Mean(float((clipped & (advantage < 0)).sum()), n),
    }
    known = ~behaviour.isnan()
    if bool(known.any()):
        log_r = log_ratio(logp[known], behaviour[known])
        m = float(known.sum())
        metrics["ratio"] = Mean(log_r.exp().sum().item(), m)
        metrics["ratio_max"] = Peak(log_r.exp().max().item())
        metrics["log_ratio_abs_max"] = Peak(log_r.abs().max().item())
        # k3 of KL(behaviour || current): the tokens were drawn from the behaviour policy.
        metrics["kl_behaviour"] = Mean((log_r.exp() - 1 - log_r).sum().item(), m)
    if not bool(known.all()):
        metrics["nll"] = Mean(-logp[~known].sum().item(), n - float(known.sum()))
    return metrics
