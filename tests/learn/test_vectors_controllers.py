"""Adaptive coefficients in a real learner: they follow what its own updates measured, by the vectors' rules.

The rules themselves have their numbers in tests/objective/test_vectors_terms.py (kl.adaptive_controller, entropy.adaptive).
"""

from dataclasses import replace
from typing import Any

import pytest
import torch

from strop.core.algorithm import KL, EntropyTarget
from strop.core.metrics import Mean
from strop.learn.learner import LocalLearner
from tests.learn.rows import fresh, learner_of, some_rows, tiny_policy
from tests.objective.batches import TABLE, VECTORS

RULE = VECTORS["kl.adaptive_controller"]["inputs"]


def moved(learner: LocalLearner) -> LocalLearner:
    """The learner after its policy has gone away from the reference."""
    draw = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for parameter in learner.policy.model.parameters():
            parameter.add_(0.05 * torch.randn(parameter.shape, generator=draw))
    return learner


@pytest.mark.parametrize("estimator", ["k2", "k3", "exact"])
def test_the_kl_coefficient_of_a_learner_follows_the_kl_of_its_trajectories(estimator: Any) -> None:
    term = KL(0.2, estimator, target=0.01, horizon=100.0)
    learner = moved(learner_of(tiny_policy(), replace(TABLE["grpo"], terms=(term,)), planned=3, lr=1e-4))
    rows = fresh(learner, some_rows(learner.policy))
    for _ in range(3):
        before = learner.coefficient("kl", 9.0)
        metrics = learner.step(rows).metrics
        # the exact KL is the mean of k1, and k1 is what is measured where only samples are known
        total = metrics["kl_reference" if estimator == "exact" else "kl_reference_k1"]
        assert isinstance(total, Mean)
        assert total.value != 0
        error = min(max(total.total / 6 / term.target - 1, -0.2), 0.2)  # type: ignore[operator]
        assert learner.coefficient("kl", 9.0) == pytest.approx(before * (1 + error * 6 / term.horizon), rel=1e-12)
        assert learner.coefficient("kl", 9.0) != before
    fixed = moved(learner_of(tiny_policy(), replace(TABLE["grpo"], terms=(replace(term, target=None),)), lr=1e-4))
    fixed.step(rows)
    assert fixed.coefficient("kl", 0.2) == 0.2


def test_the_entropy_coefficient_of_an_update_is_that_of_the_entropy_before_it() -> None:
    rule = VECTORS["entropy.adaptive"]["inputs"]
    for target, right in ((50.0, True), (1e-6, False)):  # far above and far below any entropy of this vocabulary
        term = EntropyTarget(target, rule["delta"], rule["coef_init"])
        learner = learner_of(tiny_policy(), replace(TABLE["grpo"], terms=(term,)), planned=3, lr=1e-4)
        rows = fresh(learner, some_rows(learner.policy))
        applied = []
        for _ in range(3):
            applied.append(learner.coefficient("entropy", 9.0))
            learner.step(rows)
        steps = [0.0, rule["coef_init"] + rule["delta"], rule["coef_init"] + 2 * rule["delta"]]
        assert applied == pytest.approx(steps if right else [0.0] * 3, abs=1e-12)
