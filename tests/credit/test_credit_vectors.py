"""Credit against numbers that were worked out by hand and by automatic differentiation elsewhere."""

from dataclasses import replace
from itertools import product

import numpy as np
import pytest
import torch

from strop.core.algorithm import (
    Above,
    Credit,
    GroupMean,
    LeaveOneOut,
    MovingAverage,
    One,
    RewardToGo,
    SeqMeanTokenMean,
    SeqMeanTokenSum,
    TokenMean,
)
from strop.credit.assign import assign
from strop.credit.outcome import Outcome
from tests.objective.batches import AGGREGATES, VECTORS, algorithm, columns, finals, run

LECTURE = ("adv.lecture_1100", "adv.lecture_1000", "adv.lecture_1110", "adv.lecture_slide8")
GROUPS = (*LECTURE, "adv.zero_var", "adv.partial_slide45")


def of_group(credit: Credit, rewards: list[float]) -> list[float]:
    """One number per member, through production code."""
    return [a[0] for a in assign(credit, [finals(rewards)], {}).advantages[0] if a is not None]


@pytest.mark.parametrize("name", GROUPS)
def test_group_advantages_are_the_lectures(name: str) -> None:
    inputs, expected = VECTORS[name]["inputs"], VECTORS[name]["expected"]
    assert of_group(GroupMean(), inputs["rewards"]) == pytest.approx(expected["mean_only"], abs=1e-9)
    assert of_group(GroupMean("population"), inputs["rewards"]) == pytest.approx(
        expected["grpo_population_eps0"], abs=1e-9
    )
    assert of_group(LeaveOneOut(), inputs["rewards"]) == pytest.approx(expected["rloo"], abs=1e-9)
    sample = [a / (expected["std_sample"] or 1.0) for a in expected["mean_only"]]
    assert of_group(GroupMean("sample"), inputs["rewards"]) == pytest.approx(sample, abs=1e-9)


@pytest.mark.parametrize("name", LECTURE)
def test_the_sample_deviation_does_not_give_the_lectures_numbers(name: str) -> None:
    rewards, expected = VECTORS[name]["inputs"]["rewards"], VECTORS[name]["expected"]["grpo_population_eps0"]
    assert of_group(GroupMean("sample"), rewards) != pytest.approx(expected, abs=1e-2)


def test_the_moving_average_is_used_before_the_return_is_folded_in() -> None:
    inputs, expected = VECTORS["baseline.ema"]["inputs"], VECTORS["baseline.ema"]["expected"]
    credit = RewardToGo(MovingAverage(inputs["decay"], inputs["init"]))
    state: dict[str, float] = {}
    advantages, after = [], []
    for reward in inputs["rewards"]:
        credits = assign(credit, [finals([reward])], state)
        state = dict(credits.state)
        advantages += [float(a[0]) for a in credits.advantages[0] if a is not None]
        after.append(state[""])
    assert advantages == pytest.approx(expected["advantages"], abs=1e-12)
    assert after == pytest.approx(expected["baseline_after"], abs=1e-12)
    folded = [r - b for r, b in zip(inputs["rewards"], after, strict=True)]  # the fault: baseline after the update
    assert folded != pytest.approx(expected["advantages"], abs=1e-2)


def test_the_moving_average_over_one_batch_is_that_over_many() -> None:
    inputs, expected = VECTORS["baseline.ema"]["inputs"], VECTORS["baseline.ema"]["expected"]
    credits = assign(RewardToGo(MovingAverage(0.95)), [finals([r]) for r in inputs["rewards"]], {})
    assert [float(a[0]) for [a] in credits.advantages if a is not None] == pytest.approx(expected["advantages"])
    assert credits.state[""] == pytest.approx(expected["baseline_after"][-1], abs=1e-12)


def test_reward_to_go_is_the_sum_of_what_is_still_to_come() -> None:
    plain, shaped = VECTORS["seed.reward_to_go"], VECTORS["seed.reward_to_go_shaped"]
    turns = np.arange(3)

    def to_go(rewards: list[float], discount: float) -> list[float]:
        # the environment's reward may come with its turn or, for the last, as the final score: the same
        [[early]] = assign(RewardToGo(0.0, discount), [[Outcome(np.array(rewards), 0.0, turns)]], {}).advantages
        late = Outcome(np.array([*rewards[:-1], 0.0]), rewards[-1], turns)
        [[at_end]] = assign(RewardToGo(0.0, discount), [[late]], {}).advantages
        assert early is not None
        assert at_end is not None
        assert early.tolist() == at_end.tolist()
        return early.tolist()

    assert to_go(plain["inputs"]["rewards"], 1.0) == plain["expected"]["reward_to_go"]
    assert to_go(shaped["inputs"]["rewards"], 0.9) == pytest.approx(shaped["expected"]["reward_to_go"], abs=1e-12)
    assert to_go(shaped["inputs"]["rewards"], 1.0) == pytest.approx(shaped["expected"]["gamma1"], abs=1e-12)
    assert to_go(shaped["inputs"]["rewards"], 1.0) != pytest.approx(shaped["expected"]["reward_to_go"], abs=1e-2)


def test_discounts_count_turns_and_not_tokens() -> None:
    inputs, expected = VECTORS["rtg.turn_broadcast"]["inputs"], VECTORS["rtg.turn_broadcast"]["expected"]
    turns = np.array(inputs["token_turn_ids"])
    for discount, name in ((1.0, "token_rtg_g1"), (0.9, "token_rtg_g09")):
        member = Outcome(np.array(inputs["turn_rewards"]), 0.0, turns)
        [[advantage]] = assign(RewardToGo(0.0, discount), [[member]], {}).advantages
        assert advantage is not None
        assert advantage.tolist() == pytest.approx(expected[name], abs=1e-12)
    by_token = [0.8361, 0.929, 0.81, 0.9, 1.0]  # the fault: discounted once per token
    assert by_token != pytest.approx(expected["token_rtg_g09"], abs=1e-2)


def test_a_return_on_the_threshold_is_dropped() -> None:
    inputs, expected = VECTORS["rest.thresholds"]["inputs"], VECTORS["rest.thresholds"]["expected"]
    rewards = [*inputs["rewards"], *inputs["thresholds"]]
    for threshold, kept in zip(inputs["thresholds"], expected["kept"], strict=True):
        [advantages] = assign(Above(threshold), [finals(rewards)], {}).advantages
        found = [i for i, a in enumerate(advantages) if a is not None]
        assert [i for i in found if i < len(inputs["rewards"])] == kept
        assert rewards.index(threshold) not in found
        assert all(a.tolist() == [1.0] for a in advantages if a is not None)


def test_auxiliary_rewards_let_no_failure_through_a_filter() -> None:
    failed = Outcome(np.array([0.4]), 0.3, np.zeros(1, dtype=np.int64), score=0.0)
    assert failed.reward == pytest.approx(0.7)
    won = replace(failed, final=0.8, score=0.5)
    unjudged = replace(failed, final=None, score=None)
    [advantages] = assign(Above(0.0), [[failed, won, unjudged]], {}).advantages
    assert [a is not None for a in advantages] == [False, True, False]


def test_a_baseline_changes_the_spread_of_the_two_armed_bandit_and_not_its_mean() -> None:
    inputs, expected = VECTORS["bandit.two_arm"]["inputs"], VECTORS["bandit.two_arm"]["expected"]
    chance = {"A": inputs["p"], "B": 1 - inputs["p"]}
    for b in inputs["baselines"]:
        ascent = {}
        for arm, reward in inputs["rewards"].items():
            theta = torch.tensor(inputs["theta"], dtype=torch.float64, requires_grad=True)
            logp = torch.nn.functional.logsigmoid(theta if arm == "A" else -theta)
            [[advantage]] = assign(RewardToGo(b), [finals([reward])], {}).advantages
            assert advantage is not None
            batch, totals = columns([[logp.item()]], advantages=[float(advantage[0])])
            _, grad, _, _ = run(algorithm(aggregate=SeqMeanTokenSum()), batch, totals)
            ascent[arm] = -grad.item() * torch.autograd.grad(logp, theta)[0].item()
        mean = sum(chance[arm] * g for arm, g in ascent.items())
        std = sum(chance[arm] * (g - mean) ** 2 for arm, g in ascent.items()) ** 0.5
        want = expected[f"b={float(b)}"]
        assert [ascent["A"], ascent["B"], mean] == pytest.approx([want["grad_A"], want["grad_B"], 0.1875], abs=1e-9)
        assert std == pytest.approx(want["std"], abs=1e-7)


@pytest.mark.parametrize("size", VECTORS["bandit.group_bias"]["inputs"]["G"])
def test_each_group_baseline_scales_the_true_gradient_by_its_known_factor(size: int) -> None:
    credits = {"rloo": LeaveOneOut(), "group_mean": GroupMean(), "grpo_pop_std": GroupMean("population")}
    outcomes = list(product((0.0, 1.0), repeat=size))
    for name, credit in credits.items():
        given = [of_group(credit, list(rewards)) for rewards in outcomes]
        for p in VECTORS["bandit.group_bias"]["inputs"]["p"]:
            update = 0.0
            for rewards, advantages in zip(outcomes, given, strict=True):
                chance = p ** sum(rewards) * (1 - p) ** (size - sum(rewards))
                update += chance * sum(a * (r - p) for a, r in zip(advantages, rewards, strict=True)) / size
            factor = update / (p * (1 - p))
            assert factor == pytest.approx(VECTORS["bandit.group_bias"]["expected"][f"p={p},G={size}"][name], abs=1e-9)
    assert VECTORS["bandit.group_bias"]["expected"]["p=0.05,G=4"]["grpo_pop_std"] != pytest.approx(1.0, abs=0.5)


def test_four_trajectories_give_the_lectures_objective_and_its_gradient() -> None:
    inputs, expected = VECTORS["seed.objective_four"]["inputs"], VECTORS["seed.objective_four"]["expected"]
    members = finals(inputs["rewards"])
    exact = sum(p * (m.reward or 0.0) for p, m in zip(inputs["probs"], members, strict=True))
    assert exact == pytest.approx(expected["J"], abs=1e-12)
    singles = [[m] for m in members]
    centred = [float(a[0]) for [a] in assign(RewardToGo(exact), singles, {}).advantages if a is not None]
    assert centred == pytest.approx(expected["advantage_with_b_J"], abs=1e-12)
    logits = torch.tensor(inputs["probs"], dtype=torch.float64).log().requires_grad_()
    (truth,) = torch.autograd.grad(logits.softmax(0) @ torch.tensor(inputs["rewards"], dtype=torch.float64), logits)
    expected_update = torch.zeros(4, dtype=torch.float64)
    for arm, (p, advantage) in enumerate(zip(inputs["probs"], centred, strict=True)):
        logp = logits.log_softmax(0)[arm]
        batch, totals = columns([[logp.item()]], advantages=[advantage])
        _, grad, _, _ = run(algorithm(aggregate=SeqMeanTokenSum()), batch, totals)
        expected_update -= p * grad.item() * torch.autograd.grad(logp, logits)[0]
    assert torch.allclose(expected_update, truth, atol=1e-12)


def test_dividing_by_the_length_spares_the_long_wrong_answer() -> None:
    inputs, expected = VECTORS["length_bias.bandit"]["inputs"], VECTORS["length_bias.bandit"]["expected"]
    mean = sum(p * r for p, r in zip(inputs["probs"], inputs["rewards"], strict=True))
    singles = [[m] for m in finals(inputs["rewards"])]
    advantages = [float(a[0]) for [a] in assign(RewardToGo(mean), singles, {}).advantages if a is not None]
    modes = {"update_1_over_len": SeqMeanTokenMean(), "update_constant_C": AGGREGATES["seq-mean-token-sum-norm"]}
    logits = torch.zeros(3, dtype=torch.float64, requires_grad=True)
    first = logits.log_softmax(0)
    logps = [[first[arm].item(), *[0.0] * (n - 1)] for arm, n in enumerate(inputs["lengths"])]
    starts = np.cumsum([0, *inputs["lengths"][:-1]])
    for name, aggregate in modes.items():
        batch, totals = columns(logps, advantages=advantages)
        _, grad, _, _ = run(algorithm(aggregate=aggregate), batch, totals)
        scale = 8.0 / inputs["C"] if name == "update_constant_C" else 1.0  # the constant of AGGREGATES is 8
        (update,) = torch.autograd.grad(first, logits, -grad[starts] * scale, retain_graph=True)
        assert update.tolist() == pytest.approx(expected[name], abs=1e-9)


MDP = {
    "reinforce": (RewardToGo(), SeqMeanTokenSum(), 1),
    "const_baseline_0.5": (RewardToGo(0.5), SeqMeanTokenSum(), 1),
    "length_norm_no_baseline": (RewardToGo(), SeqMeanTokenMean(), 1),
    "rloo_G2": (LeaveOneOut(), SeqMeanTokenSum(), 2),
    "group_mean_G2": (GroupMean(), SeqMeanTokenSum(), 2),
    "grpo_popstd_G2": (GroupMean("population"), SeqMeanTokenSum(), 2),
    "rloo_G4": (LeaveOneOut(), SeqMeanTokenSum(), 4),
    "group_mean_G4": (GroupMean(), SeqMeanTokenSum(), 4),
    "grpo_popstd_G4": (GroupMean("population"), SeqMeanTokenSum(), 4),
    "token_mean_rloo_G4": (LeaveOneOut(), TokenMean(), 4),
}


@pytest.mark.parametrize("name", MDP)
def test_expected_updates_of_the_enumerated_process_are_the_known_ones(name: str) -> None:
    inputs, expected = VECTORS["mdp.enumeration.onpolicy"]["inputs"], VECTORS["mdp.enumeration.onpolicy"]["expected"]
    credit, aggregate, size = MDP[name]
    theta = torch.tensor([inputs["a"], inputs["b"]], dtype=torch.float64, requires_grad=True)
    on, off = torch.nn.functional.logsigmoid(theta), torch.nn.functional.logsigmoid(-theta)
    paths = {"0": [off[0]], "10": [on[0], off[1]], "11": [on[0], on[1]]}
    chance = {key: torch.stack(tokens).sum().exp() for key, tokens in paths.items()}
    exact = sum(chance[key] * inputs["rewards"][key] for key in paths)
    (truth,) = torch.autograd.grad(exact, theta, retain_graph=True)
    assert truth.tolist() == pytest.approx(expected["true_grad"], abs=1e-9)
    update = torch.zeros(2, dtype=torch.float64)
    for drawn in product(paths, repeat=size):
        members = [finals([inputs["rewards"][key]], len(paths[key]))[0] for key in drawn]
        [advantages] = assign(credit, [members], {}).advantages
        tokens = [token for key in drawn for token in paths[key]]
        logps = [[t.item() for t in paths[key]] for key in drawn]
        batch, totals = columns(logps, advantages=[float(a[0]) for a in advantages if a is not None])
        _, grad, _, _ = run(algorithm(aggregate=aggregate), batch, totals)
        (ascent,) = torch.autograd.grad(torch.stack(tokens), theta, -grad, retain_graph=True)
        update += float(np.prod([chance[key].item() for key in drawn])) * ascent
    assert update.tolist() == pytest.approx(expected["estimators"][name], abs=1e-9)
    unbiased = name in ("reinforce", "const_baseline_0.5", "rloo_G2", "rloo_G4")
    assert (update.tolist() == pytest.approx(truth.tolist(), abs=1e-9)) == unbiased


def test_imitation_gives_every_token_the_credit_one_whatever_the_return() -> None:
    credits = assign(One(), [finals([0.0, 1.0, None], 3)], {})
    assert [a.tolist() for a in credits.advantages[0] if a is not None] == [[1.0] * 3] * 3
