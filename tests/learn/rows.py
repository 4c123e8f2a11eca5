"""A tiny real model, and rows for it, for tests of the learner."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch

from strop.core.algorithm import GAE, KL, Algorithm, Divergence, Entropy, Observations
from strop.core.metrics import values
from strop.core.trajectory import Origin, Row, Twin
from strop.learn.learner import LocalLearner
from strop.learn.schedule import Optimisation
from strop.model.load import ModelSource, load
from strop.model.policy import Policy
from tests.objective.batches import TABLE


def warmed(algorithm: Algorithm) -> Algorithm:
    """The algorithm as it is once its critic has warmed up, so that one step trains the policy too."""
    if not isinstance(algorithm.credit, GAE):
        return algorithm
    return replace(algorithm, credit=replace(algorithm.credit, critic=replace(algorithm.credit.critic, warmup=0)))


ROWS: dict[str, Algorithm] = {name: warmed(algorithm) for name, algorithm in TABLE.items()}
ALGORITHMS: dict[str, Algorithm] = {
    **ROWS,
    "grpo with terms": replace(ROWS["grpo"], terms=(Entropy(0.05), Observations(0.1))),
    "ppo_shared with terms": replace(
        ROWS["ppo_shared"],
        terms=(Entropy(0.05), Observations(0.1, "answers"), KL(0.2), KL(0.1, "exact"), Divergence(0.3, "jsd")),
    ),
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
    """The rows as if the policy had just sampled them, give or take some noise, with what the learner's algorithm needs.

    Of the columns that credit and corrections would make, those that are not there hold random numbers.
    """
    draw = np.random.default_rng(7)
    wanted = learner.wanted
    names = ["logp", *(["reference_logp"] if wanted.reference else []), *(["value"] if wanted.critic else [])]
    out = []
    for row in learner.annotate(rows, names):
        n = len(row)
        made = {"random": draw.normal(size=n), "weight": draw.uniform(0.5, 1.5, n), "share": draw.uniform(size=n)}
        numbers = {name: np.where(row.sampled, x, np.nan).astype(np.float32) for name, x in made.items()}
        logp = row.columns["logp"] + noise * draw.normal(size=n).astype(np.float32)
        told: dict[str, np.ndarray] = {}
        if learner.algorithm is not None and learner.algorithm.correction is not None:
            told = {"proximal_logp": row.columns["logp"] + noise * numbers["random"], "correction": numbers["weight"]}
        if wanted.critic is not None and "value_target" not in row.columns:
            told["value_target"] = numbers["random"]
        if wanted.labels and "process_label" not in row.columns:
            last = row.sampled & (np.roll(row.turns, -1) != row.turns)
            told["process_label"] = np.where(last, numbers["share"], np.nan).astype(np.float32)
        out.append(replace(row, behaviour_logp=logp.astype(np.float32)).with_columns(**told))
    return with_some_twins(out) if wanted.divergence is not None and wanted.divergence.teacher == "self" else out


def with_some_twins(rows: Sequence[Row]) -> list[Row]:
    """The rows of every member but the second of the second group with a twin: one to four more ids in front."""
    out = []
    for row in rows:
        more = np.arange(1 + row.origin.member + row.origin.part + int(row.origin.group[-1]) % 2, dtype=np.int32)
        twin = Twin(np.concatenate([more, row.tokens]), np.concatenate([np.zeros(len(more), np.bool_), row.sampled]))
        out.append(row if row.origin.group.endswith("1") and row.origin.member == 1 else replace(row, twin=twin))
    return out


def learner_of(policy: Policy, algorithm: Algorithm, planned: int = 1, **settings: float) -> LocalLearner:
    """A learner that has begun: with a teacher where the algorithm asks for one, and heads that say something."""
    teacher = tiny_policy(seed=5, width=24) if algorithm.taught else None
    learner = LocalLearner(policy, 1.0, 0, teacher)
    learner.begin(algorithm, Optimisation(**settings), planned)  # type: ignore[arg-type]
    waken(learner)
    return learner


def waken(learner: LocalLearner) -> None:
    """Heads that do not give 0, so that their gradient reaches the bodies below them."""
    draw = torch.Generator().manual_seed(3)
    for net in (learner.models.critic, learner.models.process):
        if net is not None:
            with torch.no_grad():
                net.head.weight.normal_(generator=draw)


def weights(policy: Policy) -> list[torch.Tensor]:
    return [p.detach().clone() for p in policy.model.parameters()]


def equal(a: Sequence[torch.Tensor], b: Sequence[torch.Tensor]) -> bool:
    return len(a) == len(b) and all(torch.equal(x, y) for x, y in zip(a, b, strict=True))


def trained(learner: LocalLearner) -> list[torch.Tensor]:
    """All weights that the learner trains, of every model."""
    return [p for group in learner.optimizer.param_groups for p in group["params"]]


def gradient(learner: LocalLearner, rows: Sequence[Row]) -> tuple[torch.Tensor, dict[str, float | None]]:
    """The gradient that a step would apply, to all models, and its metrics; nothing is applied."""
    seen: list[torch.Tensor] = []

    def keep(norms: Sequence[float], lr: float) -> None:
        seen.extend(p.grad.flatten().double() for p in trained(learner) if p.grad is not None)
        learner._clear()

    learner._apply = keep  # type: ignore[method-assign]
    report = learner.step(rows)
    assert report.updates == 1
    return torch.cat(seen), values(report.metrics)


def distance(a: torch.Tensor, b: torch.Tensor) -> float:
    return ((a - b).norm() / b.norm()).item()
