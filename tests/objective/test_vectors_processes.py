"""Expected updates of a process small enough to enumerate, on fresh and on stale data, against exact gradients.

The process: u1 = 1 with probability sigmoid(a); if it is 1, u2 = 1 with probability sigmoid(b). Its trajectories are `0`,
`10` and `11`. The production loss is run on each, weighted by its probability under the policy that samples, and its
gradient in the log-probabilities is led to (a, b) by autograd. The vectors' estimators are ascent directions.

Of mdp.enumeration.offpolicy the estimators that are biased are negative controls too: what an algorithm computes is told
from what would be right. Left out of kl.sequence_gradient: `sequence_k2_loss`, a square of a whole sequence's log-ratio,
which no part stands for.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import numpy as np
import pytest
import torch

from strop.core.algorithm import (
    GAE,
    KL,
    Aggregate,
    Algorithm,
    Band,
    Correction,
    Credit,
    GroupMean,
    LeaveOneOut,
    MonteCarlo,
    NoClip,
    NoRatio,
    PrefixRatio,
    Ratio,
    RewardToGo,
    SeqMeanTokenMean,
    SeqMeanTokenSum,
    SequenceRatio,
    TokenRatio,
    TrajectoryRatio,
    Truncate,
    WeightClip,
    Zero,
)
from strop.credit.assign import assign
from strop.credit.correction import correction_weights
from strop.credit.outcome import Outcome
from strop.model.divergence import divergence_of
from strop.objective.objective import Moment, loss
from strop.objective.parts import Places, log_ratio, unit_log_ratio
from strop.objective.terms import kl_estimate
from tests.objective.batches import VECTORS, algorithm, columns, run

TOLERANCE = 1e-9
PATHS = ("0", "10", "11")
SUM = SeqMeanTokenSum()
ON, OFF = VECTORS["mdp.enumeration.onpolicy"], VECTORS["mdp.enumeration.offpolicy"]


@dataclass
class Process:
    """Log-probabilities of the tokens of each trajectory, with gradient to (a, b)."""

    theta: torch.Tensor
    tokens: dict[str, list[torch.Tensor]]

    def chance(self, path: str) -> float:
        return torch.stack(self.tokens[path]).sum().exp().item()

    def numbers(self, path: str) -> list[float]:
        return [t.item() for t in self.tokens[path]]

    def lead(self, path: str, grad: torch.Tensor) -> torch.Tensor:
        """A gradient in a trajectory's log-probabilities, as one in (a, b)."""
        return torch.autograd.grad(torch.stack(self.tokens[path]), self.theta, grad, retain_graph=True)[0]


def process(a: float, b: float) -> Process:
    theta = torch.tensor([a, b], dtype=torch.float64, requires_grad=True)
    one, zero = torch.nn.functional.logsigmoid(theta), torch.nn.functional.logsigmoid(-theta)
    return Process(theta, {"0": [zero[0]], "10": [one[0], zero[1]], "11": [one[0], one[1]]})


def exact(target: Process, rewards: dict[str, float]) -> tuple[float, torch.Tensor]:
    """J and its gradient, by summation."""
    j = torch.stack([torch.stack(target.tokens[path]).sum().exp() * rewards[path] for path in PATHS]).sum()
    return j.item(), torch.autograd.grad(j, target.theta, retain_graph=True)[0]


Numbers = torch.Tensor | Sequence[float]


def near(found: Numbers, expected: Numbers, tolerance: float = TOLERANCE) -> bool:
    return list(map(float, found)) == pytest.approx(list(map(float, expected)), abs=tolerance)


# --- stale data


def true_values(rewards: dict[str, float]) -> tuple[float, float]:
    """V of the root and V after a first 1, under the policy that is trained."""
    target = process(OFF["inputs"]["a"], OFF["inputs"]["b"])
    after = torch.sigmoid(target.theta[1]).item()
    v = after * rewards["11"] + (1 - after) * rewards["10"]
    p = torch.sigmoid(target.theta[0]).item()
    return p * v + (1 - p) * rewards["0"], v


def off_policy_credit(kind: str, path: str) -> list[float]:
    """Credit of each token: the raw return, or the true Q or A of the policy that is trained."""
    rewards = OFF["inputs"]["rewards"]
    root, after = true_values(rewards)
    q = [rewards["0"]] if path == "0" else [after, rewards[path]]
    values = [root, after][: len(q)]
    if kind == "A":  # through production: GAE with the true values, lambda 0, is the TD error Q - V
        member = Outcome(np.zeros(1), rewards[path], np.zeros(len(q), dtype=np.int64), values=np.array(values))
        [[given]] = assign(GAE(lam=0.0), [[member]], {}).advantages
        assert given is not None
        assert given.tolist() == pytest.approx([x - v for x, v in zip(q, values, strict=True)], abs=1e-12)
        return given.tolist()
    return q if kind == "Q" else [rewards[path]] * len(q)


# name: (ratio, clip, correction, credit)
OFF_POLICY: dict[str, tuple[Ratio, Any, Correction | None, str]] = {
    "full_trajectory_ratio": (TrajectoryRatio(), WeightClip(), None, "R"),
    "no_correction": (NoRatio(), NoClip(), None, "R"),
    "tis_full_C1": (NoRatio(), NoClip(), Truncate(1.0, "sequence"), "R"),
    "mis_full_C1": (NoRatio(), NoClip(), Band(0.0, 1.0, "sequence"), "R"),
    "cumulative_ratio_true_Q": (PrefixRatio(), NoClip(), None, "Q"),
    "cumulative_ratio_true_A": (PrefixRatio(), NoClip(), None, "A"),
    "token_ratio_true_A": (TokenRatio(), NoClip(), None, "A"),
    "no_correction_true_A": (NoRatio(), NoClip(), None, "A"),
    "cumulative_ratio_raw_return": (PrefixRatio(), NoClip(), None, "R"),
    "token_ratio_raw_return": (TokenRatio(), NoClip(), None, "R"),
    "gspo_ratio_raw_return": (SequenceRatio(), NoClip(), None, "R"),
}
UNBIASED = ("full_trajectory_ratio", "cumulative_ratio_true_Q", "cumulative_ratio_true_A")


def off_policy_update(ratio: Ratio, clip: Any, correction: Correction | None, credit: str) -> torch.Tensor:
    """Expected ascent direction of the production loss over trajectories drawn from the stale policy."""
    i = OFF["inputs"]
    target, stale = process(i["a"], i["b"]), process(i["mu_a"], i["mu_b"])
    update = torch.zeros(2, dtype=torch.float64)
    for path in PATHS:
        now, then = target.numbers(path), stale.numbers(path)
        batch, totals = columns([now], [then])
        given = off_policy_credit(credit, path)
        batch = replace(batch, advantage=torch.tensor(given, dtype=torch.float64))
        if correction is not None:
            [weight] = correction_weights(correction, [np.array(now)], [np.array(then)], [np.array(given)])
            batch = replace(batch, correction=torch.tensor(weight))
        _, grad, _, _ = run(algorithm(ratio, clip, SUM), batch, totals)
        update -= stale.chance(path) * target.lead(path, grad)
    return update


@pytest.mark.parametrize("name", OFF_POLICY)
def test_expected_updates_on_stale_data_are_the_known_ones(name: str) -> None:
    expected = OFF["expected"]
    found = off_policy_update(*OFF_POLICY[name])
    assert near(found, expected["estimators"][name])
    j, truth = exact(process(OFF["inputs"]["a"], OFF["inputs"]["b"]), OFF["inputs"]["rewards"])
    assert j == pytest.approx(expected["J"], abs=TOLERANCE)
    assert near(truth, expected["true_grad"])
    assert near(found, truth, 1e-6) == (name in UNBIASED)
    shares = [x / t for x, t in zip(found.tolist(), truth.tolist(), strict=True)]
    assert shares == pytest.approx(expected["ratios_to_true"][name], abs=1e-9)


def test_a_weight_and_a_ratio_of_the_whole_trajectory_are_one_estimator() -> None:
    full = off_policy_update(TrajectoryRatio(), WeightClip(), None, "R")
    assert near(off_policy_update(TrajectoryRatio(), NoClip(), None, "R"), full)
    assert near(off_policy_update(NoRatio(), NoClip(), Truncate(1e6, "sequence"), "R"), full)
    capped = off_policy_update(TrajectoryRatio(), WeightClip(high=1.0), None, "R")
    assert near(capped, OFF["expected"]["estimators"]["tis_full_C1"])
    assert not near(capped, full, 1e-3)


def test_cutting_weights_can_only_lower_the_estimate_of_a_return_that_is_never_negative() -> None:
    i, expected = OFF["inputs"], OFF["expected"]
    target, stale = process(i["a"], i["b"]), process(i["mu_a"], i["mu_b"])
    parts: dict[str, Correction | None] = {
        "full": Truncate(1e6, "sequence"),
        "tis_C1": Truncate(1.0, "sequence"),
        "mis_C1": Band(0.0, 1.0, "sequence"),
        "no_correction": None,
    }
    sums = dict.fromkeys(parts, 0.0)
    for path in PATHS:
        now, then = np.array(target.numbers(path)), np.array(stale.numbers(path))
        log_r = log_ratio(torch.tensor(now), torch.tensor(then))
        one = torch.zeros(len(now), dtype=torch.int64)
        at = Places(one, torch.arange(len(now)), one, torch.tensor([len(now)]))
        weights = unit_log_ratio(TrajectoryRatio(), log_r, at).exp().tolist()
        assert weights == pytest.approx([expected["trajectory_ratios"][path]] * len(now), abs=TOLERANCE)
        for name, part in parts.items():
            weight = 1.0 if part is None else correction_weights(part, [now], [then], [np.zeros(len(now))])[0][0]
            sums[name] += stale.chance(path) * weight * i["rewards"][path]
    assert sums == pytest.approx(expected["J_estimates"], abs=TOLERANCE)
    assert sums["mis_C1"] < sums["tis_C1"] < sums["full"]


def test_token_by_token_the_states_stay_those_of_the_stale_policy() -> None:
    share = OFF["expected"]["ratios_to_true"]["token_ratio_true_A"]
    i = OFF["inputs"]
    visits = torch.sigmoid(torch.tensor([i["mu_a"], i["a"]], dtype=torch.float64)).tolist()
    assert share == pytest.approx([1.0, visits[0] / visits[1]], abs=TOLERANCE)


# --- fresh data: what the older vectors' test has not


def on_policy_update(credit: Credit, aggregate: Aggregate, values: Sequence[float] = ()) -> torch.Tensor:
    """Expected ascent direction, one trajectory at a time; `values` are V of the root and after a first 1."""
    i = ON["inputs"]
    target = process(i["a"], i["b"])
    update = torch.zeros(2, dtype=torch.float64)
    for path in PATHS:
        n = len(path)
        v = np.array(values[:n]) if values else None
        member = Outcome(np.zeros(n), i["rewards"][path], np.arange(n), values=v, turn_values=v)
        [[given]] = assign(credit, [[member]], {}).advantages
        assert given is not None
        batch, totals = columns([target.numbers(path)])
        batch = replace(batch, advantage=torch.tensor(given))
        _, grad, _, _ = run(algorithm(aggregate=aggregate), batch, totals)
        update -= target.chance(path) * target.lead(path, grad)
    return update


@pytest.mark.parametrize("lam", [0.0, 0.3, 1.0])
@pytest.mark.parametrize("level", ["token", "turn"])
def test_any_lambda_is_unbiased_with_the_true_values(level: Any, lam: float) -> None:
    expected = ON["expected"]
    values = (expected["V_root"], expected["V_after_1"])
    found = on_policy_update(GAE(lam, level=level), SUM, values)
    known = expected["estimators"]["value_baseline" if lam == 1.0 else "gae_true_values_lam0"]
    assert near(found, known)
    assert near(found, expected["true_grad"])
    assert near(on_policy_update(MonteCarlo(lam=lam), SUM, values), expected["true_grad"])
    # values that are wrong leave lambda 1 unbiased, and no other
    wrong = on_policy_update(GAE(lam, level=level), SUM, (0.9, -0.4))
    assert near(wrong, expected["true_grad"], 1e-6) == (lam == 1.0)
    later = on_policy_update(GAE(lam, level=level), SUM, (expected["V_after_1"], expected["V_root"]))
    assert near(later, expected["true_grad"], 1e-6) == (lam == 1.0)  # the fault: values one place off


def test_a_share_of_the_length_is_biased_even_with_the_best_constant() -> None:
    expected = ON["expected"]
    found = on_policy_update(RewardToGo(expected["J"]), SeqMeanTokenMean())
    assert near(found, expected["estimators"]["seq_len_normalised_1_over_y"])
    assert not near(found, expected["true_grad"], 1e-3)
    assert near(on_policy_update(RewardToGo(expected["J"]), SUM), expected["true_grad"])


def group_update(credit: Credit, size: int, rewards: dict[str, float]) -> torch.Tensor:
    """Expected ascent direction over all groups of a size, with the sum over tokens."""
    target = process(ON["inputs"]["a"], ON["inputs"]["b"])
    update = torch.zeros(2, dtype=torch.float64)
    for drawn in product(PATHS, repeat=size):
        members = [Outcome(np.zeros(1), rewards[path], np.zeros(len(path), dtype=np.int64)) for path in drawn]
        [given] = assign(credit, [members], {}).advantages
        batch, totals = columns(
            [target.numbers(path) for path in drawn], advantages=[float(a[0]) for a in given if a is not None]
        )
        _, grad, _, _ = run(algorithm(aggregate=SUM), batch, totals)
        for path, part in zip(drawn, grad.split([len(p) for p in drawn]), strict=True):
            update -= float(np.prod([target.chance(p) for p in drawn])) * target.lead(path, part)
    return update


def test_the_deviation_only_scales_the_gradient_of_binary_returns_and_turns_that_of_graded_ones() -> None:
    graded = ON["inputs"]["rewards"]
    binary = {"0": 0.0, "10": 0.0, "11": 1.0}
    for rewards, turned in ((binary, False), (graded, True)):
        _, truth = exact(process(ON["inputs"]["a"], ON["inputs"]["b"]), rewards)
        found = group_update(GroupMean("population"), 3, rewards)
        cosine = float(torch.nn.functional.cosine_similarity(found, truth, 0))
        assert (cosine < 1 - 1e-6) == turned
        plain = group_update(GroupMean(), 3, rewards)
        assert near(plain, truth * (1 - 1 / 3))
        assert near(group_update(LeaveOneOut(), 3, rewards), truth)


# --- the KL of whole sequences


@dataclass
class Against:
    """The process and its reference, with what the KL is and where it falls."""

    target: Process
    reference: Process

    def k1(self, path: str) -> np.ndarray:
        now, then = (torch.tensor(p.numbers(path), dtype=torch.float64) for p in (self.target, self.reference))
        return kl_estimate("k1", now, then).numpy()


def against() -> Against:
    i = VECTORS["kl.sequence_gradient"]["inputs"]
    return Against(process(i["a"], i["b"]), process(i["ref_a"], i["ref_b"]))


def of_loss(pair: Against, estimator: Any) -> torch.Tensor:
    """Expected gradient of a KL term in the loss."""
    parts = Algorithm(Zero(), NoRatio(), NoClip(), SUM, "test", terms=(KL(1.0, estimator),))
    update = torch.zeros(2, dtype=torch.float64)
    for path in PATHS:
        batch, totals = columns([pair.target.numbers(path)])
        told = torch.tensor(pair.reference.numbers(path), dtype=torch.float64)
        if estimator == "exact":
            update += pair.target.chance(path) * exact_gradient(pair, path, parts)
            continue
        _, grad, _, _ = run(parts, replace(batch, reference_logp=told), totals)
        update += pair.target.chance(path) * pair.target.lead(path, grad)
    return update


def exact_gradient(pair: Against, path: str, parts: Algorithm) -> torch.Tensor:
    """The full sum over both outcomes of each token, states as they were visited."""
    theirs = pair.reference.theta.detach()[: len(path)]
    own = pair.target.theta[: len(path)]
    both = [
        torch.stack([torch.nn.functional.logsigmoid(t), torch.nn.functional.logsigmoid(-t)], -1) for t in (own, theirs)
    ]
    batch, totals = columns([pair.target.numbers(path)])
    value, _ = loss(parts, replace(batch, reference_kl=divergence_of("reverse", *both)), totals, Moment())
    return torch.autograd.grad(value, pair.target.theta, retain_graph=True)[0]


def of_reward(pair: Against, credit: Credit, size: int) -> torch.Tensor:
    """Expected gradient of k1 in the reward: descent on the KL."""
    update = torch.zeros(2, dtype=torch.float64)
    for drawn in product(PATHS, repeat=size):
        members = [
            Outcome(np.zeros(1), 0.0, np.zeros(len(path), dtype=np.int64), token_rewards=-pair.k1(path))
            for path in drawn
        ]
        [given] = assign(credit, [members], {}).advantages
        batch, totals = columns([pair.target.numbers(path) for path in drawn])
        batch = replace(batch, advantage=torch.tensor(np.concatenate([a for a in given if a is not None])))
        _, grad, _, _ = run(algorithm(aggregate=SUM), batch, totals)
        chance = float(np.prod([pair.target.chance(path) for path in drawn]))
        for path, part in zip(drawn, grad.split([len(p) for p in drawn]), strict=True):
            update += chance * pair.target.lead(path, part)
    return update


def test_the_kl_of_sequences_and_its_gradient_are_the_known_ones() -> None:
    pair, expected = against(), VECTORS["kl.sequence_gradient"]["expected"]
    chances = torch.stack([torch.stack(pair.target.tokens[path]).sum() for path in PATHS])
    theirs = torch.stack([torch.stack(pair.reference.tokens[path]).sum().detach() for path in PATHS])
    kl = (chances.exp() * (chances - theirs)).sum()
    assert kl.item() == pytest.approx(expected["kl"], abs=TOLERANCE)
    assert near(torch.autograd.grad(kl, pair.target.theta)[0], expected["true_grad"])
    assert sum(pair.target.chance(p) * pair.k1(p).sum() for p in PATHS) == pytest.approx(expected["kl"], abs=TOLERANCE)


@pytest.mark.parametrize(
    ("credit", "size", "known"),
    [
        (RewardToGo(), 1, "k1_reward_to_go"),
        (RewardToGo(level="token"), 1, "k1_reward_to_go"),
        (LeaveOneOut(), 2, "k1_full_sum"),  # its return is the sum over the sequence; the other's is a baseline
        (LeaveOneOut(), 3, "k1_full_sum"),
        (RewardToGo(level="token", discount=0.0), 1, "k1_discount0_or_token_k2_loss"),
    ],
)
def test_k1_in_the_reward_follows_the_kl_of_the_sequence(credit: Credit, size: int, known: str) -> None:
    expected = VECTORS["kl.sequence_gradient"]["expected"]
    found = of_reward(against(), credit, size)
    assert near(found, expected["estimators"][known])
    assert near(found, expected["true_grad"], 1e-6) == (known != "k1_discount0_or_token_k2_loss")


@pytest.mark.parametrize(
    ("estimator", "known"),
    [
        ("k1", "token_k1_loss"),
        ("k2", "k1_discount0_or_token_k2_loss"),
        ("exact", "k1_discount0_or_token_k2_loss"),
        ("k3", "token_k3_loss"),
    ],
)
def test_a_kl_in_the_loss_leaves_out_what_a_token_does_to_later_ones(estimator: str, known: str) -> None:
    expected = VECTORS["kl.sequence_gradient"]["expected"]
    found = of_loss(against(), estimator)
    assert near(found, expected["estimators"][known])
    assert not near(found, expected["true_grad"], 1e-3)
