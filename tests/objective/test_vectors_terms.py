"""KL, value, process and entropy terms against numbers that were made elsewhere, in float64 and to 1e-9.

Expectations are exact sums over a small vocabulary: the production loss is run on every token that can be drawn, weighted
by its chance. Numbers that must not come out (negative controls): k2 and k3 in the reward and k1 as a loss (kl.lecture_0223,
kl.three), the KL without its ratio on stale data (kl.offpolicy_ratio_weighted), the undetached teacher log-ratio
(opd.k1_as_loss_pitfall).
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from strop.config.rows import check
from strop.core.algorithm import (
    GAE,
    KL,
    Algorithm,
    Critic,
    Divergence,
    EntropyTarget,
    NoClip,
    NoRatio,
    RewardToGo,
    Term,
    TokenMean,
    TokenRatio,
    Zero,
)
from strop.core.errors import UsageError
from strop.credit.assign import assign
from strop.credit.outcome import Outcome
from strop.credit.process import solution_score
from strop.envs.guess import guess
from strop.model.divergence import divergence_of
from strop.objective.adaptive import coefficients, follow, start
from strop.objective.objective import Moment, loss
from strop.objective.terms import kl_estimate
from tests.objective.batches import VECTORS, algorithm, columns, run

TOLERANCE = 1e-9
ESTIMATORS = ("k1", "k2", "k3")
KLS = ("kl.lecture_0223", "kl.three")


def only(*terms: Term) -> Algorithm:
    """Nothing but terms."""
    return Algorithm(Zero(), NoRatio(), NoClip(), TokenMean(), "test", terms=terms)


def near(found: torch.Tensor | Sequence[float], expected: Sequence[float], tolerance: float = TOLERANCE) -> bool:
    return list(map(float, found)) == pytest.approx(list(expected), abs=tolerance)


def samples(
    parts: Algorithm,
    p: Sequence[float],
    drawn: Sequence[float] | None = None,
    reference: Sequence[float] | None = None,
    advantages: Sequence[float] | None = None,
) -> tuple[list[float], list[torch.Tensor]]:
    """Loss of each token that can be drawn, and its gradient in the logits.

    Args:
        parts: the algorithm.
        p: probabilities under the policy.
        drawn: under the policy that sampled; the policy itself if None.
        reference: under the reference policy.
        advantages: of each token.
    """
    logits = torch.tensor(p, dtype=torch.float64).log().requires_grad_()
    logp = logits.log_softmax(0)
    values, gradients = [], []
    for token in range(len(p)):
        behaviour = [[math.log((drawn or p)[token])]]
        batch, totals = columns([[logp[token].item()]], behaviour, None if advantages is None else [advantages[token]])
        if reference is not None:
            batch = replace(batch, reference_logp=torch.tensor([reference[token]], dtype=torch.float64).log())
        value, grad, _, _ = run(parts, batch, totals)
        values.append(value)
        gradients.append(torch.autograd.grad(logp[token], logits, grad[0], retain_graph=True)[0])
    return values, gradients


def mean(chances: Sequence[float], found: Sequence[Any]) -> Any:
    return sum(c * x for c, x in zip(chances, found, strict=True))


def variance(chances: Sequence[float], found: Sequence[torch.Tensor]) -> float:
    """Sum over coordinates of the variance."""
    centre = mean(chances, found)
    return float(mean(chances, [((g - centre) ** 2).sum() for g in found]))


# --- KL


@pytest.mark.parametrize("estimator", ESTIMATORS)
@pytest.mark.parametrize("name", KLS)
def test_estimates_have_the_known_values_means_and_variances(name: str, estimator: Any) -> None:
    inputs, expected = VECTORS[name]["inputs"], VECTORS[name]["expected"]
    p, q = inputs["p"], inputs["q"]
    values, _ = samples(only(KL(1.0, estimator)), p, reference=q)
    assert near(values, expected["per_action"][estimator])
    assert mean(p, values) == pytest.approx(expected["mean"][estimator], abs=TOLERANCE)
    spread = mean(p, [(v - mean(p, values)) ** 2 for v in values])
    assert spread == pytest.approx(expected["var"][estimator], abs=TOLERANCE)
    assert (mean(p, values) == pytest.approx(expected["reverse_kl"], abs=1e-6)) == (estimator != "k2")
    swapped, _ = samples(only(KL(1.0, estimator)), q, reference=p)
    assert near(values, swapped, 1e-2) == (estimator == "k2")  # the square alone forgets the direction


@pytest.mark.parametrize("estimator", ESTIMATORS)
@pytest.mark.parametrize("name", KLS)
def test_gradients_of_the_kl_as_a_loss_are_the_known_ones(name: str, estimator: Any) -> None:
    inputs, expected = VECTORS[name]["inputs"], VECTORS[name]["expected"]
    p, q = inputs["p"], inputs["q"]
    for weighted, table in ((False, "expected_grad_as_loss"), (True, "expected_grad_is_corrected_loss")):
        _, gradients = samples(only(KL(1.0, estimator, weighted=weighted)), p, reference=q)
        found = mean(p, gradients)
        assert near(found, expected[table][estimator])
        exact = weighted if estimator != "k2" else not weighted
        assert near(found, expected["grad_reverse_kl_logits"], 1e-6) == exact
        assert near(found, expected["grad_forward_kl_logits"], 1e-6) == (estimator == "k3" and not weighted)


@pytest.mark.parametrize("name", KLS)
def test_the_exact_kl_has_the_value_and_the_gradient_that_estimates_only_estimate(name: str) -> None:
    inputs, expected = VECTORS[name]["inputs"], VECTORS[name]["expected"]
    q = torch.tensor([inputs["q"]], dtype=torch.float64).log()
    for kind, value, gradient in (
        ("reverse", "reverse_kl", "grad_reverse_kl_logits"),
        ("forward", "forward_kl", "grad_forward_kl_logits"),
    ):
        logits = torch.tensor([inputs["p"]], dtype=torch.float64).log().requires_grad_()
        batch, totals = columns([[-1.0]])
        batch = replace(batch, reference_kl=divergence_of(kind, logits.log_softmax(-1), q))
        found, _ = loss(only(KL(1.0, "exact")), batch, totals, Moment())
        assert found.item() == pytest.approx(expected[value], abs=TOLERANCE)
        assert near(torch.autograd.grad(found, logits)[0][0], expected[gradient])
    assert expected["reverse_kl"] != pytest.approx(expected["forward_kl"], abs=1e-3)


@pytest.mark.parametrize("name", KLS)
def test_in_the_reward_k1_gives_the_gradient_and_the_others_are_refused(name: str) -> None:
    inputs, expected = VECTORS[name]["inputs"], VECTORS[name]["expected"]
    p, q = inputs["p"], inputs["q"]
    logp, reference = (torch.tensor(x, dtype=torch.float64).log() for x in (p, q))
    penalties = -kl_estimate("k1", logp, reference).numpy()
    members = [[Outcome(np.zeros(1), 0.0, np.array([0]), token_rewards=np.array([x]))] for x in penalties]
    advantages = [float(a[0]) for [a] in assign(RewardToGo(), members, {}).advantages if a is not None]
    found = mean(p, samples(algorithm(), p, advantages=advantages)[1])
    assert near(found, expected["expected_grad_in_reward"]["k1"])
    assert near(found, expected["grad_reverse_kl_logits"])
    for estimator in ("k2", "k3"):
        assert not near(found, expected["expected_grad_in_reward"][estimator], 1e-3)
        with pytest.raises(UsageError, match="in the reward use k1"):
            refused(replace(algorithm(), terms=(KL(0.1, estimator, "reward"),)))


def refused(parts: Algorithm) -> None:
    """The check that a run makes of its algorithm."""
    check("test", replace(parts, credit=RewardToGo()), 4, guess(4, 2), True, "stages.0")


def test_on_stale_data_only_the_weighted_kl_is_right() -> None:
    vector = VECTORS["kl.offpolicy_ratio_weighted"]
    inputs, expected = vector["inputs"], vector["expected"]
    pi, mu, ref = inputs["pi"], inputs["mu"], inputs["ref"]
    for estimator in ("k1", "k3"):
        values, gradients = samples(only(KL(1.0, estimator, weighted=True)), pi, mu, ref)  # type: ignore[arg-type]
        assert mean(mu, values) == pytest.approx(expected["true_kl"], abs=TOLERANCE)
        assert near(mean(mu, gradients), expected["true_grad"])
    assert mean(mu, values) == pytest.approx(expected["weighted_value"], abs=TOLERANCE)
    assert near(mean(mu, gradients), expected["weighted_grad"])
    values, gradients = samples(only(KL(1.0, "k3")), pi, mu, ref)
    assert mean(mu, values) == pytest.approx(expected["unweighted_value"], abs=TOLERANCE)
    assert near(mean(mu, gradients), expected["unweighted_grad"])
    assert expected["unweighted_value"] != pytest.approx(expected["true_kl"], abs=1e-3)
    assert not near(expected["unweighted_grad"], expected["true_grad"], 1e-2)


@pytest.mark.parametrize("k", range(3))
def test_the_kl_coefficient_follows_its_target_in_bounded_steps(k: int) -> None:
    inputs = VECTORS["kl.adaptive_controller"]["inputs"]
    known = VECTORS["kl.adaptive_controller"]["expected"]["next_coef"][k]
    term = KL(inputs["coef"][k], "k1", "reward", target=inputs["target"], horizon=float(inputs["horizon"]))
    parts = replace(algorithm(), terms=(term,))
    before = start(parts)
    assert coefficients(parts, before) == {"kl": inputs["coef"][k]}
    after = follow(parts, before, None, inputs["observed_kl"][k], inputs["n_steps"])
    assert coefficients(parts, after)["kl"] == pytest.approx(known, abs=TOLERANCE)
    assert before == start(parts)  # the state is a value: nothing moved under the caller
    unbounded = inputs["coef"][k] * (1 + (inputs["observed_kl"][k] / inputs["target"] - 1) * 256 / 10000)
    assert (unbounded == pytest.approx(known, abs=1e-6)) == (k == 1)
    assert follow(parts, before, None, None, inputs["n_steps"]) == before  # nothing was measured


# --- entropy


def test_the_entropy_bonus_of_an_update_is_decided_by_the_update_before() -> None:
    inputs, expected = VECTORS["entropy.adaptive"]["inputs"], VECTORS["entropy.adaptive"]["expected"]
    term = EntropyTarget(inputs["target"], inputs["delta"], inputs["coef_init"], inputs["min"], inputs["max"])
    parts = replace(algorithm(), terms=(term,))
    state, applied, after, eager = start(parts), [], [], []
    for entropy in inputs["entropies"]:
        applied.append(coefficients(parts, state)["entropy"])
        state = follow(parts, state, entropy, None, 1)
        after.append(state["entropy_alpha"])
        eager.append(coefficients(parts, state)["entropy"])
    assert near(applied, expected["applied_coef"])
    assert near(after, expected["coef_after"])
    assert not near(eager, expected["applied_coef"], 1e-3)  # the fault: the update's own entropy decides


@pytest.mark.parametrize("k", range(7))
def test_the_loss_pays_the_adaptive_coefficient_for_entropy(k: int) -> None:
    coefficient = VECTORS["entropy.adaptive"]["expected"]["applied_coef"][k]
    parts = only(EntropyTarget())
    batch, totals = columns([[-1.0, -2.0]])
    batch = replace(batch, entropy=torch.tensor([0.5, 0.7], dtype=torch.float64, requires_grad=True))
    value, _ = loss(parts, batch, totals, Moment(adaptive={"entropy": coefficient}))
    assert value.item() == pytest.approx(-coefficient * 0.6, abs=TOLERANCE)


# --- values


def valued(
    critic: Critic, value: torch.Tensor, old: Sequence[float], target: Sequence[float]
) -> tuple[float, torch.Tensor]:
    """The value loss alone, and its gradient in the values; as while a critic warms up."""
    batch, totals = columns([[-1.0] * len(value)])
    told = {"value_old": old, "value_target": target}
    batch = replace(batch, value=value, **{n: torch.tensor(x, dtype=torch.float64) for n, x in told.items()})
    parts = replace(algorithm(), credit=GAE(critic=critic))
    found, _ = loss(parts, batch, replace(totals, values=len(value)), Moment(policy=False))
    return found.item(), torch.autograd.grad(found, value, retain_graph=True)[0]


def test_the_value_loss_of_the_lecture_and_its_gradient() -> None:
    inputs, expected = VECTORS["seed.value_mse"]["inputs"], VECTORS["seed.value_mse"]["expected"]
    returns = [float(r) for r in inputs["returns"]]
    for coefficient, gradient in ((1.0, "grad_at_06_full_sq"), (0.5, "grad_at_06_half_sq")):
        at = torch.full((10,), inputs["prediction"], dtype=torch.float64, requires_grad=True)
        value, grad = valued(Critic(coefficient=coefficient), at, [0.0] * 10, returns)
        assert value == pytest.approx(coefficient * expected["mse"], abs=TOLERANCE)
        assert grad.sum().item() == pytest.approx(expected[gradient], abs=TOLERANCE)
    best = torch.full((10,), expected["argmin"], dtype=torch.float64, requires_grad=True)
    value, grad = valued(Critic(coefficient=1.0), best, [0.0] * 10, returns)
    assert value == pytest.approx(expected["mse_at_mean"], abs=TOLERANCE)
    assert grad.sum().item() == pytest.approx(0.0, abs=TOLERANCE)


def test_the_clipped_value_loss_takes_the_larger_square() -> None:
    inputs, expected = VECTORS["value.clipped"]["inputs"], VECTORS["value.clipped"]["expected"]
    at = torch.tensor(inputs["values"], dtype=torch.float64, requires_grad=True)
    cases = (
        (Critic(loss="squared", coefficient=0.5), "unclipped_half", "grad_unclipped"),
        (Critic(loss="clipped", coefficient=0.5, bound=inputs["clip"]), "clipped_half", "grad_clipped"),
    )
    for critic, value, gradient in cases:
        found, grad = valued(critic, at, inputs["old_values"], inputs["returns"])
        assert found == pytest.approx(expected[value], abs=TOLERANCE)
        assert near(grad, expected[gradient])
    whole, _ = valued(replace(cases[1][0], coefficient=1.0), at, inputs["old_values"], inputs["returns"])
    assert whole == pytest.approx(expected["slime_no_half"], abs=TOLERANCE)
    near_bound = replace(cases[1][0], bound=0.5)
    assert not near(valued(near_bound, at, inputs["old_values"], inputs["returns"])[1], expected["grad_clipped"], 1e-3)
    # a value that moved away from its target keeps its gradient
    away = torch.tensor([0.1], dtype=torch.float64, requires_grad=True)
    assert valued(cases[1][0], away, [0.5], [1.0])[1].item() == pytest.approx(-0.9, abs=TOLERANCE)


KINDS = ("separate", "stopgrad", "shared")


def toy(name: str) -> dict[str, float]:
    """Gradients of a policy and a value of one weight each, through the production loss."""
    i = VECTORS[f"critic.{name}"]["inputs"]
    w, u, c, own = (torch.tensor(i[k], dtype=torch.float64, requires_grad=True) for k in ("w", "u", "c", "w_value"))
    h = torch.tanh(w * i["x"])
    seen = {"separate": torch.tanh(own * i["x"]), "stopgrad": h.detach(), "shared": h}[name]
    batch, totals = columns([[-1.0]], advantages=[i["advantage"]])
    batch = replace(
        batch,
        logp=torch.nn.functional.logsigmoid(u * h)[None],
        value=(c * seen)[None],
        value_old=torch.zeros(1, dtype=torch.float64),
        value_target=torch.tensor([i["ret"]], dtype=torch.float64),
    )
    critic = Critic(name, coefficient=0.5 * i["vf_coef"])  # type: ignore[arg-type]
    value, _ = loss(replace(algorithm(), credit=GAE(critic=critic)), batch, replace(totals, values=1), Moment())
    grads = torch.autograd.grad(value, [w, u, c, own], allow_unused=True)
    return {f"grad_{k}": 0.0 if g is None else g.item() for k, g in zip(("w", "u", "c", "w_value"), grads, strict=True)}


@pytest.mark.parametrize("name", KINDS)
def test_policy_and_value_loss_are_added_with_the_known_gradients(name: str) -> None:
    found = toy(name)
    assert found == pytest.approx(VECTORS[f"critic.{name}"]["expected"], abs=TOLERANCE)
    for other in KINDS:
        agrees = found == pytest.approx(VECTORS[f"critic.{other}"]["expected"], abs=1e-6)
        assert agrees == (other == name)


# --- process scores


def scored(logits: torch.Tensor, labels: Sequence[float], counted: int) -> tuple[float, torch.Tensor]:
    batch, totals = columns([[-1.0] * len(labels)])
    batch = replace(batch, process=logits, process_label=torch.tensor(labels, dtype=torch.float64))
    value, _ = loss(only(), batch, replace(totals, labels=counted), Moment(policy=False))
    return value.item(), torch.autograd.grad(value, logits)[0]


def test_process_labels_are_learned_at_the_last_token_of_each_turn_only() -> None:
    inputs, expected = VECTORS["prm.bce"]["inputs"], VECTORS["prm.bce"]["expected"]
    steps, labels = inputs["step_logits"], [float(y) for y in inputs["labels"]]
    spread = [x for z in steps for x in (9.0, z)]  # each turn has a token before its last
    marked = [x for y in labels for x in (math.nan, y)]
    logits = torch.tensor(spread, dtype=torch.float64, requires_grad=True)
    value, grad = scored(logits, marked, 3)
    assert value == pytest.approx(expected["loss"], abs=TOLERANCE)
    assert near(grad[1::2], expected["grad_logits"])
    assert not grad[::2].any()
    per_token, _ = scored(logits, marked, 6)  # the fault: divided by tokens
    assert per_token != pytest.approx(expected["loss"], abs=0.1)
    everywhere, _ = scored(logits, [y for y in labels for _ in range(2)], 6)  # the fault: a label at every token
    assert everywhere != pytest.approx(expected["loss"], abs=0.1)


def test_a_solution_is_worth_the_product_or_the_least_of_its_steps() -> None:
    inputs, expected = VECTORS["prm.bce"]["inputs"], VECTORS["prm.bce"]["expected"]
    steps = torch.tensor(inputs["step_logits"], dtype=torch.float64).sigmoid().tolist()
    assert near(steps, expected["step_probs"])
    assert solution_score(steps, "product") == pytest.approx(expected["score_product"], abs=TOLERANCE)
    assert solution_score(steps, "min") == pytest.approx(expected["score_min"], abs=TOLERANCE)
    assert solution_score(steps, "min") != pytest.approx(expected["score_product"], abs=0.1)


# --- a teacher's log-ratio, as credit


def probabilities(logits: Sequence[float]) -> list[float]:
    return torch.tensor(logits, dtype=torch.float64).softmax(0).tolist()


def test_the_sampled_log_ratio_as_credit_is_the_full_reverse_kl_in_expectation() -> None:
    inputs, expected = VECTORS["opd.sampled.v5"]["inputs"], VECTORS["opd.sampled.v5"]["expected"]
    student, teacher = probabilities(inputs["student_logits"]), probabilities(inputs["teacher_logits"])
    own, theirs = (torch.tensor(p, dtype=torch.float64).log() for p in (student, teacher))
    credit = (-kl_estimate("k1", own, theirs)).tolist()
    assert near(credit, expected["advantage_per_token"], 1e-8)
    baseline = mean(student, credit)
    for shift, gradient, spread in (
        (0.0, "expected_loss_grad_logits", "total_variance"),
        (baseline, "expected_loss_grad_with_baseline", "total_variance_with_baseline"),
    ):
        advantages = [a - shift for a in credit]
        for parts in (algorithm(), algorithm(TokenRatio())):  # REINFORCE and importance sampling are one gradient here
            _, gradients = samples(parts, student, advantages=advantages)
            assert near(mean(student, gradients), expected[gradient], 1e-8)
            assert variance(student, gradients) == pytest.approx(expected[spread], abs=1e-8)
    logits = torch.tensor([inputs["student_logits"]], dtype=torch.float64, requires_grad=True)
    batch, totals = columns([[-1.0]])
    batch = replace(batch, divergence=divergence_of("reverse", logits.log_softmax(-1), theirs[None]))
    whole, _ = loss(only(Divergence(1.0, "reverse")), batch, totals, Moment())
    assert near(torch.autograd.grad(whole, logits)[0][0], expected["full_vocab_grad"], 1e-8)
    assert expected["total_variance"] != pytest.approx(expected["total_variance_with_baseline"], abs=1e-3)


def test_a_teachers_log_ratio_that_is_not_detached_teaches_nothing_and_is_refused() -> None:
    vector = VECTORS["opd.k1_as_loss_pitfall"]
    inputs, expected = vector["inputs"], vector["expected"]
    student, teacher = probabilities(inputs["student_logits"]), probabilities(inputs["teacher_logits"])
    _, gradients = samples(only(KL(1.0, "k1")), student, reference=teacher)
    assert near(gradients[0], expected["realised_grad_token0"])
    assert near(mean(student, gradients), expected["expected_grad_k1_loss"])
    assert not near(VECTORS["opd.sampled.v5"]["expected"]["full_vocab_grad"], expected["expected_grad_k1_loss"], 1e-2)
    with pytest.raises(UsageError, match="no expected gradient"):
        refused(replace(algorithm(), terms=(KL(1.0, "k1"),)))


def test_a_teachers_log_ratio_joins_the_credit_of_the_task_token_by_token() -> None:
    """Without discounting: each token gets its own log-ratio and the task's credit, no later token's."""
    inputs, expected = VECTORS["opd.combined"]["inputs"], VECTORS["opd.combined"]["expected"]
    own, theirs = (torch.tensor(inputs[f"logp_{who}"], dtype=torch.float64) for who in ("student", "teacher"))
    k1 = kl_estimate("k1", own, theirs)
    assert near(k1, expected["reverse_kl_k1"])
    member = Outcome(np.zeros(1), 0.0, np.zeros(3, dtype=np.int64), token_rewards=-inputs["coef"] * k1.numpy())
    for discount, right in ((0.0, True), (1.0, False)):
        credit = RewardToGo(-inputs["task_advantage"], discount, "token")
        [[found]] = assign(credit, [[member]], {}).advantages
        assert found is not None
        assert near(found.tolist(), expected["advantages"]) == right
