"""Figures of expected updates: objective, baselines, groups and values, over all that can happen.

Invariant: the truth is the derivative of the exact objective; what it is compared with went through credit and loss.
"""

from collections.abc import Callable, Mapping, Sequence
from math import log, sqrt
from typing import Literal

import torch

from strop.core.algorithm import Critic, GroupMean, LeaveOneOut, RewardToGo
from strop.core.notation import written
from strop.credit.process import soft_label
from strop.lecture.enumeration import (
    Path,
    bandit,
    choice,
    expectation,
    expected_update,
    group_loss,
    plain,
    success,
    true_gradient,
    two_steps,
    update,
)
from strop.lecture.figure import Cell, Figure, Table
from strop.objective.terms import value_error

CODE = ("credit.assign.assign", "objective.objective.policy_loss")


def _leaf(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64, requires_grad=True)


def objective() -> Figure:
    """The objective of four trajectories, and which way it pushes each of them."""
    logits = _leaf(*(log(p) for p in (0.3, 0.2, 0.25, 0.25)))
    paths = choice(logits, (1.0, 1.0, 0.0, 0.0))
    j = success(paths)
    push = expected_update(plain(RewardToGo(j)), paths, logits).tolist()
    truth = true_gradient(paths, logits).tolist()
    rows = [
        (f"y_{i}", path.chance, path.reward, dj, found)
        for i, (path, dj, found) in enumerate(zip(paths, truth, push, strict=True), 1)
    ]
    table = Table(("", "pi(y)", "R", "dJ/dlogit", "expected update"), tuple(rows), 3)
    total = Table(("", "J"), (("expected return", j),), 3)
    return Figure((table, total), ("core.metrics.Mean", *CODE))


def two_arms() -> Figure:
    """One draw of two arms: what a baseline does to the mean and to the spread of the update."""
    theta = _leaf(-log(3.0))
    paths = bandit(theta[0], (1.0, 0.0))
    rows: list[tuple[Cell, ...]] = []
    for baseline in (0.0, 0.5, 0.25, 0.75):
        algorithm = plain(RewardToGo(baseline))
        drawn = [update(group_loss(algorithm, [path]), theta).item() for path in paths]
        chances = [path.chance for path in paths]
        mean = expectation(chances, drawn)
        spread = sqrt(expectation(chances, [(g - mean) ** 2 for g in drawn]))
        rows.append((f"{baseline:g}", *drawn, mean, spread))
    return Figure((Table(("baseline", "A drawn", "B drawn", "mean", "std"), tuple(rows)),), CODE)


def value() -> Figure:
    """The value of a state from ten continuations, and the squared error of two predictions of it."""
    returns = (1.0, 0.0, 1.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0, 0.0)
    found = soft_label(returns)
    target = torch.tensor(returns, dtype=torch.float64)

    def error(v: float) -> tuple[float, float]:
        """Mean squared error, and its slope."""
        leaf = _leaf(*([v] * len(returns)))
        mean = value_error(Critic(), leaf, leaf.detach(), target).mean()
        return mean.item(), -update(mean, leaf).sum().item()

    estimate = Table(("", "V", "standard error"), (("mean of 10", found, sqrt(error(found)[0] / len(returns))),))
    errors = Table(
        ("predicted", "squared error", "slope"), tuple((f"{v:g}", *error(v)) for v in (0.6, found)), 2
    )  # fmt: skip
    return Figure((estimate, errors), ("credit.process.soft_label", "objective.terms.value_error"))


def _multiple(credit: GroupMean | LeaveOneOut, p: float, size: int) -> float:
    """The expected update of a group on two arms, as a multiple of the true gradient."""
    theta = _leaf(log(p / (1 - p)))
    paths = bandit(theta[0], (1.0, 0.0))
    return (expected_update(plain(credit), paths, theta, size) / true_gradient(paths, theta)).item()


SIZES = (2, 4, 8)


def shrink() -> Figure:
    """How long the expected update is when the baseline is the group's own mean."""
    rows = [(written(kind), *(_multiple(kind, 0.25, size) for size in SIZES)) for kind in (LeaveOneOut(), GroupMean())]
    head = ("expected update / true gradient", *(f"G={size}" for size in SIZES))
    return Figure((Table(head, tuple(rows)),), CODE)


def _rotation(label: str, rewards: tuple[float, float, float]) -> list[tuple[Cell, ...]]:
    """True gradient and expected updates of a process of two steps; cosine with the truth."""
    theta = _leaf(0.4, -0.7)
    paths: list[Path] = two_steps(theta, rewards)
    truth = true_gradient(paths, theta)
    rows: list[tuple[Cell, ...]] = [(f"{label}: true gradient", *truth.tolist(), 1.0)]
    scales: Sequence[Literal["population"] | None] = (None, "population")
    for scale in scales:
        found = expected_update(plain(GroupMean(scale)), paths, theta, 4)
        cosine = torch.nn.functional.cosine_similarity(found, truth, dim=0).item()
        rows.append((f"{label}: {written(GroupMean(scale))}", *found.tolist(), cosine))
    return rows


def scale() -> Figure:
    """What dividing by the group's deviation does: binary rewards, graded rewards, tasks of different difficulty."""
    rows = _rotation("binary", (0.0, 0.0, 1.0)) + _rotation("graded", (0.3, 0.0, 1.0))
    turned = Table(("two steps, G=4", "d/da", "d/db", "cosine"), tuple(rows))
    kind = GroupMean("population")
    weights = [
        (f"success {p:g}", *(_multiple(kind, p, size) for size in SIZES), 1 / sqrt(p * (1 - p)))
        for p in (0.05, 0.25, 0.5)
    ]
    head = (f"weight of a task, {written(kind)}", *(f"G={size}" for size in SIZES), "limit")
    tasks = Table(head, tuple(weights))
    return Figure((turned, tasks), CODE)


FIGURES: Mapping[str, Callable[[], Figure]] = {
    "objective": objective,
    "bandit": two_arms,
    "value": value,
    "shrink": shrink,
    "scale": scale,
}
"""By the name of the command."""
