"""A bandit with two arms: what baselines do to mean and spread of the gradient, and groups to its size, through production.

Of the vector `bandit.two_arm`: success 0.25, the mean gradient is 0.1875 with any constant baseline, its deviation 0.325
without one and 0.108 with 0.5. Of `bandit.group_bias`: by what each group credit multiplies the gradient.
"""

from math import log

import pytest

from strop.core.algorithm import Credit, GroupMean, LeaveOneOut, RewardToGo
from tests.objective.batches import VECTORS
from tests.proof.enumeration import Enumeration, Setting
from tests.proof.objectives import expected_return
from tests.proof.processes import Move, Path, Process
from tests.proof.table import made
from tests.proof.verdict import judge

PICTURE, BIAS = VECTORS["bandit.two_arm"], VECTORS["bandit.group_bias"]


def bandit(p: float) -> Process:
    """Token 1 wins, token 0 does not; the policy says 1 with probability p."""
    theta = {"a": (log(p / (1 - p)),)}
    return Process("bandit", (tuple(Path((Move(u, "a"),), float(u)) for u in (0, 1)),), theta, theta, theta, "")


@pytest.mark.parametrize("baseline", PICTURE["inputs"]["baselines"])
def test_a_baseline_keeps_the_mean_gradient_and_changes_its_spread(baseline: float) -> None:
    p, expected = PICTURE["inputs"]["p"], PICTURE["expected"][f"b={float(baseline)}"]
    everything = Enumeration(bandit(p))
    lose, win = (
        everything.over(made(RewardToGo(baseline)), Setting(1), [((((0, arm),),), 1.0)]).direction.item()
        for arm in (0, 1)
    )
    assert win == pytest.approx(expected["grad_A"], abs=1e-9)
    assert lose == pytest.approx(expected["grad_B"], abs=1e-9)
    mean = p * win + (1 - p) * lose
    deviation = (p * (win - mean) ** 2 + (1 - p) * (lose - mean) ** 2) ** 0.5
    assert mean == pytest.approx(expected["mean"], abs=1e-9) == 0.1875
    assert deviation == pytest.approx(expected["std"], abs=1e-9)
    assert everything.update(made(RewardToGo(baseline)), Setting(1)).direction.item() == pytest.approx(mean, abs=1e-12)


def test_the_lecture_s_baseline_cuts_the_spread_to_a_third_and_the_best_one_to_nothing() -> None:
    spread = {b: numbers["std"] for b, numbers in PICTURE["expected"].items()}
    assert round(spread["b=0.0"], 3) == 0.325
    assert round(spread["b=0.5"], 3) == 0.108
    assert spread["b=0.5"] < spread["b=0.25"] < spread["b=0.0"]  # V = 0.25 is not the best constant
    assert spread["b=0.75"] == 0


CREDITS: dict[str, Credit] = {
    "rloo": LeaveOneOut(),
    "group_mean": GroupMean(),
    "grpo_pop_std": GroupMean("population"),
}


@pytest.mark.parametrize("name", CREDITS)
@pytest.mark.parametrize("case", BIAS["expected"])
def test_a_group_credit_multiplies_the_gradient_of_a_bandit(case: str, name: str) -> None:
    p, size = (float(part.split("=")[1]) for part in case.split(","))
    process = bandit(p)
    found = Enumeration(process).update(made(CREDITS[name]), Setting(int(size)))
    said = judge(found.direction, process.truth.gradient(expected_return(process)), ["a"])
    known = BIAS["expected"][case][name]
    assert said.factor == pytest.approx(known, abs=1e-9)
    assert said.kind == ("unbiased" if known == pytest.approx(1.0, abs=1e-12) else "rescaled")
