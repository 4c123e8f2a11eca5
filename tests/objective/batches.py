"""Batches for tests of credit and objective: numbers per trajectory in, columns and results out."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
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
    Entropy,
    EntropyTarget,
    NoClip,
    NoRatio,
    One,
    Ratio,
    SeqMeanTokenMean,
    SeqMeanTokenSum,
    TokenMean,
)
from strop.core.metrics import Metric, Metrics, combine
from strop.credit.outcome import Outcome
from strop.model.policy import Policy
from strop.objective.columns import Columns, Totals
from strop.objective.objective import Moment, loss, needs

torch.set_num_threads(1)

VECTORS: dict[str, dict[str, Any]] = json.loads((Path(__file__).parents[1] / "vectors.json").read_text())

C = 8.0
AGGREGATES: dict[str, Aggregate] = {
    "token-mean": TokenMean(),
    "seq-mean-token-mean": SeqMeanTokenMean(),
    "seq-mean-token-sum": SeqMeanTokenSum(),
    "seq-mean-token-sum-norm": Constant(C),
}


TABLE = {name: algorithm.within(C) for name, algorithm in ALGORITHMS.items()}
"""The rows with their constant filled in, as a run does."""


def algorithm(ratio: Ratio = NoRatio(), clip: Clip = NoClip(), aggregate: Aggregate = TokenMean()) -> Algorithm:  # noqa: B008
    return Algorithm(One(), ratio, clip, aggregate, "test")


def finals(rewards: Sequence[float | None], tokens: int = 1) -> list[Outcome]:
    """Outcomes of one turn each with only a final reward."""
    return [Outcome(np.zeros(1), r, np.zeros(tokens, dtype=np.int64), score=r) for r in rewards]


def columns(
    logp: Sequence[Sequence[float]],
    old: Sequence[Sequence[float]] | None = None,
    advantages: Sequence[float] | None = None,
    sampled: Sequence[Sequence[bool]] | None = None,
    groups: Sequence[int] | None = None,
) -> tuple[Columns, Totals]:
    """Columns of ragged trajectories in float64, logp a leaf with gradient, and the totals of this batch alone.

    The ratio is around `old`; each trajectory is one turn; `groups` says whose group each trajectory is (one for all).
    """
    lengths = [len(row) for row in logp]
    trajectory = torch.repeat_interleave(torch.arange(len(lengths)), torch.tensor(lengths))
    masks = sampled or [[True] * n for n in lengths]
    mask = torch.tensor([m for row in masks for m in row], dtype=torch.bool)
    flat = torch.tensor([x for row in logp for x in row], dtype=torch.float64, requires_grad=True)
    behaviour = torch.tensor([x for row in (old or logp) for x in row], dtype=torch.float64)
    advantage = torch.tensor(advantages or [1.0] * len(lengths), dtype=torch.float64)[trajectory]
    counts = torch.bincount(trajectory[mask], minlength=len(lengths))
    owner = torch.tensor(groups or [0] * len(lengths))
    batch = Columns(
        flat,
        None,
        mask,
        behaviour,
        advantage,
        trajectory,
        counts,
        order=torch.tensor([sum(row[:i]) for row in masks for i in range(len(row))]),
        turn=torch.zeros_like(trajectory),
        group_tokens=torch.zeros(int(owner.max()) + 1, dtype=torch.int64).index_add_(0, owner, counts)[owner],
        anchor_logp=behaviour,
    )
    return batch, totals_of(batch)


def totals_of(batch: Columns) -> Totals:
    """Totals of a batch that is the whole optimizer step."""

    def told(column: torch.Tensor | None) -> int:
        return 0 if column is None else int((~column.isnan() & batch.sampled).sum())

    shares = batch.trajectory_tokens / batch.group_tokens.clamp(min=1)  # of each trajectory in its group
    return Totals(
        int(batch.sampled.sum()),
        int((batch.trajectory_tokens > 0).sum()),
        int((~batch.sampled).sum()),
        groups=round(float(shares.sum())),
        values=told(batch.value_target),
        labels=told(batch.process_label),
    )


CARRYING = ("logp", "entropy", "reference_kl", "divergence", "value", "process")
"""Columns through which a gradient can flow."""


def fitted(algorithm: Algorithm, batch: Columns, seed: int = 0) -> Columns:
    """The batch with random finite columns for all that the algorithm needs; every third label is missing."""
    wanted, n = needs(algorithm), len(batch.logp)
    draw = torch.Generator().manual_seed(seed)

    def some(centre: float = 0.0) -> torch.Tensor:
        return centre + 0.5 * torch.randn(n, dtype=torch.float64, generator=draw)

    def labels() -> torch.Tensor:
        return some().sigmoid().masked_fill(torch.arange(n) % 3 == 2, float("nan"))

    given: dict[str, torch.Tensor] = {}
    if algorithm.correction is not None:
        given |= {"anchor_logp": batch.behaviour_logp + 0.2 * some(), "correction": some().exp()}
    if wanted.reference:
        given["reference_logp"] = batch.logp.detach() + some()
    if wanted.reference_kl:
        given["reference_kl"] = some().abs()
    if wanted.divergence is not None:
        given["divergence"] = some().abs()
    if wanted.critic is not None:
        given |= {"value": some(), "value_old": some(), "value_target": labels()}
    if wanted.labels:
        given |= {"process": some(), "process_label": labels()}
    if any(isinstance(term, Entropy | EntropyTarget) for term in algorithm.terms) and batch.entropy is None:
        given["entropy"] = some().abs()
    return replace(batch, **given)


@dataclass(frozen=True)
class Step:
    """What the loss says of one micro-batch: value, gradients by column, metrics."""

    value: float
    gradients: Mapping[str, torch.Tensor]
    metrics: Metrics


def step(algorithm: Algorithm, batch: Columns, totals: Totals, moment: Moment = Moment(0.5)) -> Step:  # noqa: B008
    """The loss and its gradients in every column that carries one."""
    leaves = {
        name: column.detach().clone().requires_grad_()
        for name in CARRYING
        if (column := getattr(batch, name)) is not None
    }
    value, metrics = loss(algorithm, replace(batch, **leaves), totals, moment)
    if value.requires_grad:
        value.backward()
    gradients = {name: torch.zeros_like(leaf) if leaf.grad is None else leaf.grad for name, leaf in leaves.items()}
    return Step(value.item(), gradients, metrics)


def run(algorithm: Algorithm, batch: Columns, totals: Totals) -> tuple[float, torch.Tensor, torch.Tensor, Metrics]:
    """Loss, its gradients with respect to logp and entropy, and the metrics."""
    found = step(algorithm, batch, totals)
    logp = found.gradients["logp"]
    return found.value, logp, found.gradients.get("entropy", torch.zeros_like(logp)), found.metrics


def per_token(batch: Columns) -> dict[str, torch.Tensor]:
    """The columns that hold one number for each token."""
    by_trajectory = ("trajectory_tokens", "group_tokens")
    columns = {field.name: getattr(batch, field.name) for field in fields(batch) if field.name not in by_trajectory}
    return {name: column for name, column in columns.items() if column is not None}


def part(batch: Columns, members: Sequence[int]) -> Columns:
    """The micro-batch of some trajectories, numbered anew."""
    chosen = torch.tensor([int(t) in members for t in batch.trajectory], dtype=torch.bool)
    number = {member: i for i, member in enumerate(members)}
    cut = {name: column[chosen] for name, column in per_token(batch).items()}
    cut["trajectory"] = torch.tensor([number[int(t)] for t in batch.trajectory[chosen]], dtype=torch.int64)
    own = list(members)
    return replace(batch, **cut, trajectory_tokens=batch.trajectory_tokens[own], group_tokens=batch.group_tokens[own])


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
