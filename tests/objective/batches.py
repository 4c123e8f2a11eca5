"""Batches for tests of credit and objective: numbers per trajectory in, columns and results out."""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from strop.algorithms import ALGORITHMS
from strop.core.algorithm import (
    Aggregate,
    Algorithm,
    Clip,
    Constant,
    NoClip,
    NoRatio,
    One,
    Ratio,
    SeqMeanTokenMean,
    SeqMeanTokenSum,
    TokenMean,
)
from strop.core.metrics import Metric, Metrics, combine
from strop.credit.assign import Outcome
from strop.model.policy import Policy
from strop.objective.columns import Columns, Totals
from strop.objective.objective import loss

torch.set_num_threads(1)

VECTORS: dict[str, dict[str, Any]] = json.loads((Path(__file__).parents[1] / "vectors.json").read_text())

C = 8.0
AGGREGATES: dict[str, Aggregate] = {
    "token-mean": TokenMean(),
    "seq-mean-token-mean": SeqMeanTokenMean(),
    "seq-mean-token-sum": SeqMeanTokenSum(),
    "seq-mean-token-sum-norm": Constant(C),
}


def filled(algorithm: Algorithm) -> Algorithm:
    """The row with its constant filled in, as a run does."""
    return replace(algorithm, aggregate=Constant(C)) if algorithm.aggregate == Constant() else algorithm


TABLE = {name: filled(algorithm) for name, algorithm in ALGORITHMS.items()}


def algorithm(ratio: Ratio = NoRatio(), clip: Clip = NoClip(), aggregate: Aggregate = TokenMean()) -> Algorithm:  # noqa: B008
    return Algorithm(One(), ratio, clip, aggregate, "test")


def finals(rewards: Sequence[float | None], tokens: int = 1) -> list[Outcome]:
    """Outcomes of one turn each with only a final reward."""
    return [Outcome(np.zeros(1), r, np.zeros(tokens, dtype=np.int64)) for r in rewards]


def columns(
    logp: Sequence[Sequence[float]],
    old: Sequence[Sequence[float]] | None = None,
    advantages: Sequence[float] | None = None,
    sampled: Sequence[Sequence[bool]] | None = None,
) -> tuple[Columns, Totals]:
    """Columns of ragged trajectories in float64, logp a leaf with gradient, and the totals of this batch alone."""
    lengths = [len(row) for row in logp]
    trajectory = torch.repeat_interleave(torch.arange(len(lengths)), torch.tensor(lengths))
    mask = torch.tensor([m for row in sampled for m in row]) if sampled else torch.ones(sum(lengths), dtype=torch.bool)
    flat = torch.tensor([x for row in logp for x in row], dtype=torch.float64, requires_grad=True)
    behaviour = torch.tensor([x for row in (old or logp) for x in row], dtype=torch.float64)
    advantage = torch.tensor(advantages or [1.0] * len(lengths), dtype=torch.float64)[trajectory]
    counts = torch.bincount(trajectory[mask], minlength=len(lengths))
    batch = Columns(flat, None, mask, behaviour, advantage, trajectory, counts)
    return batch, totals_of(batch)


def totals_of(batch: Columns) -> Totals:
    """Totals of a batch that is the whole optimizer step."""
    return Totals(int(batch.sampled.sum()), int((batch.trajectory_tokens > 0).sum()), int((~batch.sampled).sum()))


def run(algorithm: Algorithm, batch: Columns, totals: Totals) -> tuple[float, torch.Tensor, torch.Tensor, Metrics]:
    """Loss, its gradients with respect to logp and entropy, and the metrics."""
    logp = batch.logp.detach().clone().requires_grad_()
    entropy = None if batch.entropy is None else batch.entropy.detach().clone().requires_grad_()
    value, metrics = loss(algorithm, replace(batch, logp=logp, entropy=entropy), totals, 0.5)
    if value.requires_grad:
        value.backward()
    zero = torch.zeros_like(logp)
    grad_entropy = zero if entropy is None or entropy.grad is None else entropy.grad
    return value.item(), zero if logp.grad is None else logp.grad, grad_entropy, metrics


def part(batch: Columns, members: Sequence[int]) -> Columns:
    """The micro-batch of some trajectories, numbered anew."""
    chosen = torch.tensor([int(t) in members for t in batch.trajectory], dtype=torch.bool)
    number = {member: i for i, member in enumerate(members)}
    trajectory = torch.tensor([number[int(t)] for t in batch.trajectory[chosen]], dtype=torch.int64)
    entropy = None if batch.entropy is None else batch.entropy[chosen]
    return Columns(
        batch.logp[chosen],
        entropy,
        batch.sampled[chosen],
        batch.behaviour_logp[chosen],
        batch.advantage[chosen],
        trajectory,
        batch.trajectory_tokens[list(members)],
    )


def merged(parts: Sequence[Metrics]) -> dict[str, Metric]:
    return dict(combine(parts))


def rows_as_lists(flat: torch.Tensor, lengths: Sequence[int]) -> list[list[float]]:
    return [row.tolist() for row in flat.split(list(lengths))]


def head_policy(weight: torch.Tensor, bias: torch.Tensor | None, vocabulary: int | None = None) -> Policy:
    """A policy that is only an output layer."""
    head = SimpleNamespace(weight=weight, bias=bias)
    model: Any = SimpleNamespace(get_output_embeddings=lambda: head)
    tokenizer: Any = None
    return Policy(model, tokenizer, len(weight) if vocabulary is None else vocabulary)
