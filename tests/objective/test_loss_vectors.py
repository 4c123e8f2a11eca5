"""Losses and their gradients against numbers from automatic differentiation elsewhere, all in float64."""

import pytest
import torch

from strop.core.algorithm import Constant, GroupMean, NoClip, NoRatio, PPOClip, SeqMeanTokenSum, TokenMean, TokenRatio
from strop.credit.assign import assign
from strop.model.forward import token_columns
from tests.objective.batches import AGGREGATES, VECTORS, algorithm, columns, finals, head_policy, rows_as_lists, run

METHODS = {
    "reinforce": (NoRatio(), NoClip()),
    "is_token": (TokenRatio(), NoClip()),
    "ppo_clip": (TokenRatio(), PPOClip(0.2, 0.2)),
}


def close(flat: torch.Tensor, expected: list[list[float]]) -> bool:
    """Whether ragged gradients agree to 1e-9."""
    got = rows_as_lists(flat, [len(row) for row in expected])
    return all(row == pytest.approx(want, abs=1e-9) for row, want in zip(got, expected, strict=True))


@pytest.mark.parametrize("mode", AGGREGATES)
def test_ppo_clip_has_the_known_loss_and_gradient_under_every_aggregation(mode: str) -> None:
    vector = VECTORS[f"ppo.clip.{mode}"]
    inputs, expected = vector["inputs"], vector["expected"]
    assert inputs["C"] == 8.0
    batch, totals = columns(inputs["logp"], inputs["old_logp"], inputs["advantages"])
    rule = algorithm(TokenRatio(), PPOClip(inputs["eps_low"], inputs["eps_high"]), AGGREGATES[mode])
    value, grad, _, metrics = run(rule, batch, totals)
    assert value == pytest.approx(expected["loss"], abs=1e-9)
    assert close(grad, expected["grad_logp"])
    assert metrics["clipped_up"].value == pytest.approx(2 / 10)  # ratios 1.25 and 6.5 with positive advantage
    assert metrics["clipped_down"].value == pytest.approx(2 / 10)  # ratios 0.75 and 0.5 with negative advantage
    unclipped = run(algorithm(TokenRatio(), NoClip(), AGGREGATES[mode]), batch, totals)
    assert not close(unclipped[1], expected["grad_logp"])
    tight = run(algorithm(TokenRatio(), PPOClip(0.2, 0.3), AGGREGATES[mode]), batch, totals)
    assert not close(tight[1], expected["grad_logp"])


@pytest.mark.parametrize("name", ["reinforce.token-mean", "is.token.noclip"])
def test_losses_without_a_clip_are_the_known_ones(name: str) -> None:
    inputs, expected = VECTORS[name]["inputs"], VECTORS[name]["expected"]
    batch, totals = columns(inputs["logp"], inputs["old_logp"], inputs["advantages"])
    ratio = NoRatio() if name.startswith("reinforce") else TokenRatio()
    value, grad, _, _ = run(algorithm(ratio, NoClip(), TokenMean()), batch, totals)
    assert value == pytest.approx(expected["loss"], abs=1e-9)
    assert close(grad, expected["grad_logp"])
    other = TokenRatio() if name.startswith("reinforce") else NoRatio()
    assert not close(run(algorithm(other, NoClip(), TokenMean()), batch, totals)[1], expected["grad_logp"])


def test_dr_grpo_divides_by_its_constant_and_never_by_a_deviation() -> None:
    inputs, expected = VECTORS["drgrpo.const"]["inputs"], VECTORS["drgrpo.const"]["expected"]
    for credit, right in ((GroupMean(), True), (GroupMean("population"), False)):
        [given] = assign(credit, [finals(inputs["rewards"])], {}).advantages
        advantages = [float(a[0]) for a in given if a is not None]
        assert (advantages == inputs["advantages"]) == right
        batch, totals = columns(inputs["logp"], inputs["old_logp"], advantages)
        rule = algorithm(TokenRatio(), PPOClip(inputs["eps_low"], inputs["eps_high"]), Constant(inputs["C"]))
        value, grad, _, _ = run(rule, batch, totals)
        assert (value == pytest.approx(expected["loss"], abs=1e-9)) == right
        assert close(grad, expected["grad_logp"]) == right


def test_the_constant_aggregation_without_its_constant_is_an_error() -> None:
    batch, totals = columns([[-1.0]])
    with pytest.raises(ValueError, match="no length"):
        run(algorithm(aggregate=Constant()), batch, totals)


@pytest.mark.parametrize("mode", AGGREGATES)
@pytest.mark.parametrize("method", VECTORS["equivalence.onpolicy"]["expected"]["methods"])
def test_on_fresh_data_every_method_has_the_same_gradient(method: str, mode: str) -> None:
    inputs, expected = VECTORS["equivalence.onpolicy"]["inputs"], VECTORS["equivalence.onpolicy"]["expected"]
    batch, totals = columns(inputs["logp"], inputs["old_logp"], inputs["advantages"])
    ratio, clip = METHODS[method]
    _, grad, _, metrics = run(algorithm(ratio, clip, AGGREGATES[mode]), batch, totals)
    assert close(grad, expected["grad_logp"][mode])
    assert metrics["ratio_max"].value == 1.0
    assert metrics["clipped_up"].value == metrics["clipped_down"].value == metrics["kl_behaviour"].value == 0.0
    others = [expected["grad_logp"][other] for other in AGGREGATES if other != mode]
    assert not any(close(grad, other) for other in others)


def test_imitation_divides_by_all_tokens_of_the_step() -> None:
    vector = VECTORS["sft.aggregation"]
    first, second = vector["inputs"]["nll"], vector["expected"]["example2"]["nll"]
    for nll, expected in ((first, vector["expected"]["token_mean"]), (second, 1.75)):
        logps = [[-x for x in row] for row in nll]
        batch, totals = columns(logps)
        assert run(algorithm(), batch, totals)[0] == pytest.approx(expected, abs=1e-9)
        singles = [columns([row])[0] for row in logps]
        assert sum(run(algorithm(), single, totals)[0] for single in singles) == pytest.approx(expected, abs=1e-9)
    # the fault: each micro-batch divided by its own tokens, then averaged
    local = [columns([[-x for x in row]]) for row in second]
    mean_of_means = sum(run(algorithm(), *one)[0] for one in local) / len(local)
    assert mean_of_means == pytest.approx(vector["expected"]["example2"]["mean_of_micro_means"], abs=1e-9)


def test_only_sampled_tokens_are_trained_and_the_turn_end_is_one_of_them() -> None:
    inputs, expected = VECTORS["mask.turn_end"]["inputs"], VECTORS["mask.turn_end"]["expected"]
    mask = [bool(m) for m in inputs["mask"]]
    batch, totals = columns([inputs["logp"]], sampled=[mask])
    value, grad, _, metrics = run(algorithm(aggregate=SeqMeanTokenSum()), batch, totals)
    assert totals.tokens == expected["n_loss_tokens"]
    assert value == pytest.approx(expected["loss"], abs=1e-9)
    assert grad.tolist() == expected["grad_logp"]
    assert metrics["ratio"].value == 1.0
    without_end = [m and token != "<|im_end|>" for m, token in zip(mask, inputs["tokens"], strict=True)]
    batch, totals = columns([inputs["logp"]], sampled=[without_end])
    value, grad, _, _ = run(algorithm(aggregate=SeqMeanTokenSum()), batch, totals)
    assert value != pytest.approx(expected["loss"], abs=0.1)
    assert grad.tolist() != expected["grad_logp"]


def test_log_probabilities_are_those_of_the_tempered_distribution() -> None:
    inputs, expected = VECTORS["temperature.logp"]["inputs"], VECTORS["temperature.logp"]["expected"]
    bias = torch.tensor(inputs["logits"], dtype=torch.float64, requires_grad=True)
    policy = head_policy(torch.zeros(3, 1, dtype=torch.float64), bias)
    hidden, target = torch.zeros(1, 1, dtype=torch.float64), torch.tensor([inputs["token"]])
    raw, _ = token_columns(policy, hidden, target, 1.0, False)
    tempered, _ = token_columns(policy, hidden, target, inputs["T"], False)
    (grad,) = torch.autograd.grad(tempered.sum(), bias)
    assert raw.item() == pytest.approx(expected["logp_T1"], abs=1e-9)
    assert tempered.item() == pytest.approx(expected["logp_T"], abs=1e-9)
    assert grad.tolist() == pytest.approx(expected["dlogp_dlogits_T"], abs=1e-9)
    # the fault: a trainer that forgets the temperature sees this ratio on fresh data
    batch, totals = columns([[raw.item()]], [[tempered.item()]])
    metrics = run(algorithm(TokenRatio()), batch, totals)[3]
    assert metrics["ratio"].value == pytest.approx(expected["ratio_if_trainer_forgets_T"], abs=1e-9)


@pytest.mark.parametrize("name", ["entropy.seed_before", "entropy.seed_after"])
def test_entropy_and_its_gradient_are_the_lectures(name: str) -> None:
    inputs, expected = VECTORS[name]["inputs"], VECTORS[name]["expected"]
    bias = torch.tensor(inputs["probs"], dtype=torch.float64).log().requires_grad_()
    policy = head_policy(torch.zeros(3, 1, dtype=torch.float64), bias)
    _, entropy = token_columns(policy, torch.zeros(1, 1, dtype=torch.float64), torch.tensor([0]), 1.0, True)
    assert entropy is not None
    (grad,) = torch.autograd.grad(entropy.sum(), bias)
    assert entropy.item() == pytest.approx(expected["entropy"], abs=1e-9)
    assert grad.tolist() == pytest.approx(expected["grad_logits"], abs=1e-9)
    assert grad.tolist() != pytest.approx([0.0] * 3, abs=1e-2)


@pytest.mark.parametrize(
    ("advantage", "ratio", "value", "gradient"),
    [(1, 10, -1.2, 0), (1, 0.5, -0.5, -0.5), (-1, 1.5, 1.5, 1.5), (-1, 0.5, 0.8, 0), (1, 1.25, -1.2, 0)],
)
def test_the_clip_takes_the_minimum_after_the_advantage_is_multiplied_in(
    advantage: float, ratio: float, value: float, gradient: float
) -> None:
    batch, totals = columns([[torch.tensor(ratio, dtype=torch.float64).log().item()]], [[0.0]], [advantage])
    got, grad, _, _ = run(algorithm(TokenRatio(), PPOClip(0.2, 0.2)), batch, totals)
    assert (got, grad.item()) == pytest.approx((value, gradient), abs=1e-12)


def test_the_upper_bound_is_its_own_number() -> None:
    batch, totals = columns([[torch.tensor(1.25, dtype=torch.float64).log().item()]], [[0.0]])
    assert run(algorithm(TokenRatio(), PPOClip(0.2, 0.28)), batch, totals)[1].item() == pytest.approx(-1.25)
    assert run(algorithm(TokenRatio(), PPOClip(0.28, 0.2)), batch, totals)[1].item() == 0.0
