"""The objective: a weighted sum of terms, each with its own mask and normaliser.

Invariant: adding a term with coefficient 0 changes no bit, and what stands at tokens outside a term's mask changes
neither its value nor its gradient: tokens are selected before anything is computed from them.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch

from strop.core.algorithm import (
    KL,
    Algorithm,
    Critic,
    Divergence,
    Entropy,
    EntropyTarget,
    Observations,
    Potential,
    ProcessGroup,
    ProcessLabels,
    SampledDivergence,
    StepReward,
)
from strop.core.metrics import Mean, Metrics
from strop.objective.columns import Columns, Totals
from strop.objective.diagnose import policy_metrics
from strop.objective.parts import Places, importance_ratio, surrogate, token_weights, unit_advantage
from strop.objective.terms import kl_loss, process_loss, value_loss


@dataclass(frozen=True, slots=True)
class Needs:
    """What must be known of the rows and what the model's forward must give for an algorithm.

    Args:
        entropy: entropy of the policy (always: it is logged; its gradient is computed only where a term uses it).
        observations: log-probabilities of observation tokens.
        proximal: log-probabilities at the start of the step.
        reference: log-probabilities under the reference policy.
        reference_kl: exact KL to the reference policy.
        divergence: divergence to a teacher.
        sampled_divergence: what a teacher says of the sampled tokens, as a part of their credit.
        critic: values, and their training.
        process: process scores.
        labels: the process reward model is trained.
    """

    entropy: bool = True
    observations: Observations | None = None
    proximal: bool = False
    reference: bool = False
    reference_kl: bool = False
    divergence: Divergence | None = None
    critic: Critic | None = None
    process: bool = False
    labels: bool = False
    sampled_divergence: SampledDivergence | None = None


def needs(algorithm: Algorithm) -> Needs:
    """What the algorithm's parts and terms ask for; a term with coefficient 0 asks for nothing."""
    kls = [t for t in algorithm.terms if isinstance(t, KL) and (t.coefficient or t.target)]
    observed = (t for t in algorithm.terms if isinstance(t, Observations) and t.coefficient)
    taught = (t for t in algorithm.terms if isinstance(t, Divergence) and t.coefficient)
    critic = algorithm.critic
    return Needs(
        observations=next(observed, None),
        proximal=algorithm.correction is not None or any(t.place == "reward" for t in kls),
        reference=any(t.estimator != "exact" for t in kls),
        reference_kl=any(t.estimator == "exact" for t in kls),
        divergence=next(taught, None),
        critic=critic,
        process=any(isinstance(t, StepReward | Potential) for t in algorithm.terms)
        or isinstance(algorithm.credit, ProcessGroup),
        labels=any(isinstance(t, ProcessLabels) for t in algorithm.terms),
        sampled_divergence=algorithm.sampled_divergence,
    )


@dataclass(frozen=True, slots=True)
class Moment:
    """Where a run stands, as far as coefficients depend on it.

    Args:
        progress: share of the stage that is done.
        policy: whether the policy is trained; False while a critic warms up.
        adaptive: coefficients of adaptive terms, by the term's name.
    """

    progress: float = 0.0
    policy: bool = True
    adaptive: Mapping[str, float] = field(default_factory=dict[str, float])


def loss(algorithm: Algorithm, columns: Columns, totals: Totals, moment: Moment) -> tuple[torch.Tensor, Metrics]:
    """The loss of one micro-batch and its metrics as sums and counts.

    L = sum over trained tokens of weight x correction x surrogate + sum over terms of coefficient x term. Sums of
    micro-batch losses are the loss of the optimizer step, because every denominator comes from `totals`.

    Args:
        algorithm: the parts and terms.
        columns: the micro-batch.
        totals: counts over the whole optimizer step.
        moment: scheduled and adaptive coefficients.
    """
    chosen = columns.sampled
    value, metrics = torch.zeros((), dtype=columns.logp.dtype, device=columns.logp.device), Metrics()
    if moment.policy:
        policy, metrics = policy_loss(algorithm, columns, totals)
        value = value + policy
        terms, more = _terms(algorithm, columns, totals, moment)
        value = value + terms
        metrics |= more
    if algorithm.critic is not None and columns.value is not None:
        critic, more = value_loss(algorithm.critic, columns, totals)
        value = value + critic
        metrics |= more
    if columns.process is not None:
        process, more = process_loss(columns, totals)
        value = value + process
        metrics |= more
    if columns.entropy is not None:
        metrics["entropy"] = Mean(columns.entropy[chosen].sum().item(), float(chosen.sum()))
    return value, metrics


def policy_loss(algorithm: Algorithm, columns: Columns, totals: Totals) -> tuple[torch.Tensor, Metrics]:
    """The policy-gradient term: credit x ratio x clip x correction x aggregation."""
    chosen = columns.sampled
    logp, behaviour, anchor = columns.logp[chosen], columns.behaviour_logp[chosen], columns.anchor_logp[chosen]
    places = Places(
        columns.trajectory[chosen], columns.order[chosen], columns.turn[chosen], columns.trajectory_tokens.clamp(min=1)
    )
    advantage = unit_advantage(algorithm.ratio, columns.advantage[chosen].to(logp.dtype), places)
    ratio = importance_ratio(algorithm.ratio, logp, anchor, places)
    per_token, clipped = surrogate(algorithm.clip, ratio, logp, advantage, places.order, anchor)
    if columns.correction is not None:
        per_token = per_token * columns.correction[chosen].to(logp.dtype)
    weight = token_weights(algorithm.aggregate, places, totals, columns.group_tokens, logp.dtype)
    metrics = policy_metrics(logp.detach(), behaviour, advantage, ratio, clipped)
    if not algorithm.credited:
        return logp.sum() * 0.0, metrics
    total = (weight * per_token).sum()
    metrics["policy_loss"] = Mean(total.item(), 0.0)
    return total, metrics


def _terms(algorithm: Algorithm, columns: Columns, totals: Totals, moment: Moment) -> tuple[torch.Tensor, Metrics]:
    """The terms of the loss; those of the reward have done their work before."""
    chosen = columns.sampled
    value = torch.zeros((), dtype=columns.logp.dtype, device=columns.logp.device)
    metrics: Metrics = {}
    for term in algorithm.terms:
        match term:
            case Entropy() | EntropyTarget():
                if columns.entropy is None:
                    raise RuntimeError("an entropy term needs the entropy column; ask the forward for it")
                now = term.at(moment.progress) if isinstance(term, Entropy) else moment.adaptive["entropy"]
                value = value - now * (columns.entropy[chosen].sum() / max(totals.tokens, 1))
            case Observations(coefficient):
                if coefficient:
                    observed = columns.logp[~chosen]
                    value = value - coefficient * observed.sum() / max(totals.observations, 1)
                    metrics["observation_nll"] = Mean(-observed.sum().item(), float(len(observed)))
            case KL(coefficient, place="loss"):
                now = moment.adaptive["kl"] if term.target is not None else coefficient
                if coefficient or term.target is not None:
                    per_token = kl_loss(term, columns)
                    at, dtype = _places(columns), per_token.dtype
                    weight = token_weights(algorithm.aggregate, at, totals, columns.group_tokens, dtype)
                    value = value + now * (weight * per_token).sum()
            case Divergence(coefficient):
                if coefficient:
                    if columns.divergence is None:
                        raise RuntimeError("a divergence needs a teacher; give the learner one")
                    divergence = columns.divergence[chosen].sum()  # 0 where nobody judges
                    told = term.teacher == "self" and columns.judged is not None
                    tokens = totals.taught if told else totals.tokens
                    value = value + coefficient * divergence / max(tokens, 1)
                    metrics |= divergence_metrics(term, columns, divergence.item())
            case _:
                pass
    return value, metrics | reference_metrics(columns)


def divergence_metrics(term: Divergence, columns: Columns, total: float) -> Metrics:
    """The divergence over the tokens that the teacher judges, the share of tokens that it does not, and, with a cap, the
    share of ids that it bounded."""
    chosen = columns.sampled
    judged = chosen if columns.judged is None else chosen & columns.judged
    n = float(judged.sum())
    metrics: Metrics = {"teacher_divergence": Mean(total, n)}
    if columns.judged is not None:
        metrics["teacher_silent"] = Mean(float(chosen.sum()) - n, float(chosen.sum()))
    if term.cap is not None and columns.divergence_capped is not None:
        metrics["teacher_capped"] = Mean(columns.divergence_capped[judged].sum().item(), n)
    return metrics


def reference_metrics(columns: Columns) -> Metrics:
    """KL to the reference over the trained tokens: k1, k3 (never negative) and, where it is known, the exact value."""
    chosen = columns.sampled
    n = float(chosen.sum())
    metrics: Metrics = {}
    if columns.reference_logp is not None:
        d = (columns.logp.detach() - columns.reference_logp)[chosen].clamp(-20, 20)
        metrics["kl_reference_k1"] = Mean(d.sum().item(), n)
        metrics["kl_reference"] = Mean(((-d).exp() - 1 + d).sum().item(), n)
    if columns.reference_kl is not None:
        metrics["kl_reference"] = Mean(columns.reference_kl[chosen].sum().item(), n)
    return metrics


def _places(columns: Columns) -> Places:
    chosen = columns.sampled
    return Places(
        columns.trajectory[chosen], columns.order[chosen], columns.turn[chosen], columns.trajectory_tokens.clamp(min=1)
    )
