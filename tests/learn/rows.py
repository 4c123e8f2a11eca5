"""A tiny real model, and rows for it, for tests of the learner."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch

from strop.core.algorithm import Algorithm, CrossEntropy, Entropy, Schedule
from strop.core.metrics import values
from strop.core.trajectory import Origin, Row
from strop.learn.learner import LocalLearner
from strop.learn.schedule import Optimisation
from strop.model.load import ModelSource, load
from strop.model.policy import Policy
from tests.objective.batches import TABLE

ALGORITHMS: dict[str, Algorithm] = {
    **TABLE,
    "grpo with terms": replace(TABLE["grpo"], terms=(Entropy(Schedule(0.05, 0.05)), CrossEntropy(0.1))),
}


def tiny_policy(seed: int = 0, dtype: str = "float32", checkpointing: bool = False, width: int = 16) -> Policy:
    return load(
        ModelSource(preset="tiny", width=width, layers=2, heads=2, seed=seed, dtype=dtype, checkpointing=checkpointing)
    )


def some_rows(policy: Policy, seed: int = 0, groups: int = 3, members: int = 2) -> list[Row]:
    """Ragged rows with two turns each; the second member of each group is stored in two rows."""
    draw = np.random.default_rng(seed)
    rows = []
    for group in range(groups):
        for member in range(members):
            advantage = float(draw.normal())
            for part in range(1 + member % 2):
                spans = draw.integers(1, 5, 4)
                mask = np.repeat([False, True, False, True], spans)
                n = len(mask)
                rows.append(
                    Row(
                        tokens=draw.integers(0, policy.vocabulary, n).astype(np.int32),
                        sampled=mask,
                        behaviour_logp=np.where(mask, -5.0 + draw.normal(size=n), np.nan).astype(np.float32),
                        versions=np.where(mask, 0, -1).astype(np.int32),
                        turns=np.repeat([0, 0, 1, 1], spans).astype(np.int32),
                        origin=Origin(f"train-{group:06d}", member, part),
                        columns={"advantage": np.where(mask, advantage, 0).astype(np.float32)},
                    )
                )
    return rows


def fresh(learner: LocalLearner, rows: Sequence[Row], noise: float = 0.0) -> list[Row]:
    """The rows as if the policy had just sampled them, give or take some noise."""
    draw = np.random.default_rng(7)
    out = []
    for row in learner.annotate(rows, ["logp"]):
        logp = row.columns["logp"] + noise * draw.normal(size=len(row)).astype(np.float32)
        out.append(replace(row, behaviour_logp=logp.astype(np.float32)))
    return out


def learner_of(policy: Policy, algorithm: Algorithm, planned: int = 1, **settings: float) -> LocalLearner:
    learner = LocalLearner(policy, 1.0, 0)
    learner.begin(algorithm, Optimisation(**settings), planned)  # type: ignore[arg-type]
    return learner


def weights(policy: Policy) -> list[torch.Tensor]:
    return [p.detach().clone() for p in policy.model.parameters()]


def equal(a: Sequence[torch.Tensor], b: Sequence[torch.Tensor]) -> bool:
    return len(a) == len(b) and all(torch.equal(x, y) for x, y in zip(a, b, strict=True))


def gradient(learner: LocalLearner, rows: Sequence[Row]) -> tuple[torch.Tensor, dict[str, float | None]]:
    """The gradient that a step would apply, and its metrics; nothing is applied."""
    seen: list[torch.Tensor] = []

    def keep(norm: float, lr: float) -> None:
        seen.extend(m.grad.flatten().double() for m in learner.masters if m.grad is not None)
        learner._clear()

    learner._apply = keep  # type: ignore[method-assign]
    report = learner.step(rows)
    assert report.updates == 1
    return torch.cat(seen), values(report.metrics)


def distance(a: torch.Tensor, b: torch.Tensor) -> float:
    return ((a - b).norm() / b.norm()).item()
