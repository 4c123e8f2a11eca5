"""Baselines, process scores, shaping, admission and corrections against numbers that were made elsewhere, to 1e-9.

Negative controls, numbers that no credit may give: adv.nemo_loo_std (a leave-one-out mean over a leave-one-out deviation,
whose single success stays undivided) and the whitening of centred returns in adv.batch_scale.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from itertools import chain
from typing import Any

import numpy as np
import pytest

from strop.core.algorithm import (
    BatchMean,
    Credit,
    Decoupled,
    GroupMean,
    LeaveOneOut,
    MonteCarlo,
    OffPolicyMask,
    Overlong,
    Potential,
    ProcessGroup,
    RewardToGo,
    SecondMoment,
    StepReward,
    TokenRatio,
)
from strop.core.message import Message
from strop.core.task import Task, Verdict
from strop.core.trajectory import Group, Trajectory
from strop.credit.admission import admitted, informative
from strop.credit.assign import assign
from strop.credit.correction import correction_weights, second_moment_mask
from strop.credit.outcome import Outcome, shaped
from strop.credit.process import hard_label, overlong_penalty, potential_rewards, soft_label
from strop.envs.guess import feasible, guess
from tests.objective.batches import VECTORS, algorithm, columns, finals, run

TOLERANCE = 1e-9


def vector(name: str) -> tuple[dict[str, Any], dict[str, Any]]:
    return VECTORS[name]["inputs"], VECTORS[name]["expected"]


def near(found: Sequence[float] | np.ndarray, expected: Sequence[float], tolerance: float = TOLERANCE) -> bool:
    return list(found) == pytest.approx(list(expected), abs=tolerance)


def of_groups(credit: Credit, groups: Sequence[Sequence[float]]) -> list[list[float]]:
    """One number per member."""
    given = assign(credit, [finals(group) for group in groups], {}).advantages
    return [[float(a[0]) for a in group if a is not None] for group in given]


# --- baselines


def test_the_deviation_of_the_batch_scales_credit_that_is_centred_in_its_group() -> None:
    inputs, expected = vector("adv.batch_scale")
    found = of_groups(GroupMean("batch"), inputs["groups"])
    for group, known in zip(found, expected["batch_scaled_eps0_raw_std"], strict=True):
        assert near(group, known)
    assert inputs["groups"][0][0] / expected["batch_std_sample"] == pytest.approx(
        found[0][0] - found[0][2], abs=TOLERANCE
    )
    for credit in (GroupMean("batch"), GroupMean("sample"), GroupMean("population"), GroupMean(), BatchMean()):
        flat = list(chain(*of_groups(credit, inputs["groups"])))
        assert not near(flat, expected["openrlhf_global_whiten_of_mean_only"], 1e-3)
        assert near(flat, list(chain(*found)), 1e-3) == (credit == GroupMean("batch"))


@pytest.mark.parametrize("size", [1, 2, 4, 8])
def test_the_mean_of_the_batch_does_not_ask_who_belongs_to_which_group(size: int) -> None:
    inputs, expected = vector("adv.reinforcepp_global")
    rewards = inputs["rewards"]
    groups = [rewards[i : i + size] for i in range(0, len(rewards), size)]
    assert near(list(chain(*of_groups(BatchMean(), groups))), expected["advantages"])
    assert np.mean(rewards) == pytest.approx(expected["mean"], abs=TOLERANCE)
    assert np.std(rewards) == pytest.approx(expected["std_population"], abs=TOLERANCE)
    by_group = list(chain(*of_groups(GroupMean("population"), groups)))
    assert near(by_group, expected["advantages"], 1e-3) == (size == 8)


def test_no_credit_leaves_out_the_member_from_its_own_deviation() -> None:
    inputs, expected = vector("adv.nemo_loo_std")
    others = [inputs["rewards"][:i] + inputs["rewards"][i + 1 :] for i in range(4)]
    assert near([np.mean(o) for o in others], expected["loo_baseline"])
    assert near([np.std(o, ddof=1) for o in others], expected["loo_std"])
    for credit in (LeaveOneOut(), GroupMean("sample"), GroupMean("population"), GroupMean(), GroupMean("batch")):
        [found] = of_groups(credit, [inputs["rewards"]])
        assert not near(found, expected["advantage"], 1e-3)
        assert sum(found) == pytest.approx(0.0, abs=TOLERANCE)
    assert sum(expected["advantage"]) != pytest.approx(0.0, abs=0.1)


@pytest.mark.parametrize("level", ["turn", "token"])
def test_discounting_tokens_makes_credit_depend_on_how_a_turn_was_tokenised(level: Any) -> None:
    inputs, expected = vector("rtg.turn_broadcast")
    member = Outcome(np.array(inputs["turn_rewards"]), 0.0, np.array(inputs["token_turn_ids"]))
    [[found]] = assign(RewardToGo(0.0, 0.9, level), [[member]], {}).advantages
    assert found is not None
    assert near(found, expected["token_level_g09"]) == (level == "token")
    assert near(found, expected["token_rtg_g09"]) == (level == "turn")
    [[plain]] = assign(RewardToGo(0.0, 1.0, level), [[member]], {}).advantages
    assert plain is not None
    assert near(plain, expected["token_rtg_g1"])


def play_guess(first: int, secret: int) -> tuple[float, list[float]]:
    """Score of a first guess, and the scores of the feasible second guesses, in the world itself (numbers 1 to 3)."""
    made = guess(3, 2)
    task = made.split("train")[secret - 1]

    async def play(guesses: Sequence[int]) -> float:
        env = made.env(task, 0)
        await env.start()
        for number in guesses:
            await env.step(Message("assistant", str(number)))
        over = Trajectory(task, (), np.zeros(0, np.int32), "done", (), dict(env.artefacts()))
        verdict = made.verify(task, over)
        assert isinstance(verdict, Verdict)
        return float(verdict.score or 0)

    low, high = feasible([first], secret, 3)
    alone = asyncio.run(play([first]))
    return alone, [] if alone else [asyncio.run(play([first, second])) for second in range(low, high + 1)]


def test_the_middle_guess_is_worth_more_than_the_lower_one() -> None:
    inputs, expected = vector("seed.guess_q")
    shift = inputs["candidates"][0] - 1  # 9, 10, 11 are 1, 2, 3 here
    played = {first: [play_guess(first, secret) for secret in (1, 2, 3)] for first in (1, 2, 3)}
    # value of the state after the first guess: all feasible second guesses are equally good
    after = {first: [score or float(np.mean(rest)) for score, rest in games] for first, games in played.items()}
    q = {first: float(np.mean(values)) for first, values in after.items()}
    assert {f"Q_guess{first + shift}": value for first, value in q.items()} == pytest.approx(
        {name: value for name, value in expected.items() if name.startswith("Q_")}, abs=TOLERANCE
    )
    v = float(np.mean(list(q.values())))
    assert v == pytest.approx(expected["V_uniform"], abs=TOLERANCE)
    for first, known in ((2, "A_guess10"), (3, "A_guess11")):
        credits = []
        for (won, _), value in zip(played[first], after[first], strict=True):
            turns = 1 if won else 2
            member = Outcome(np.zeros(turns), won, np.arange(turns), turn_values=np.array([v, value][:turns]))
            [[given]] = assign(MonteCarlo(lam=0.0), [[member]], {}).advantages
            assert given is not None
            credits.append(given[0])
        assert np.mean(credits) == pytest.approx(expected[known], abs=TOLERANCE)
    assert expected["A_guess10"] != pytest.approx(expected["A_guess11"], abs=0.1)


# --- process scores


def test_labels_of_continuations_are_their_share_or_whether_any_was_right() -> None:
    inputs, expected = vector("prm.mc_labels")
    assert near([soft_label(done) for done in inputs["completions_correct"]], expected["soft"])
    assert near([hard_label(done) for done in inputs["completions_correct"]], expected["hard"])
    assert not near(expected["soft"], expected["hard"], 0.1)


def test_process_scores_are_normalised_over_all_steps_of_the_group_and_summed_from_each_on() -> None:
    inputs, expected = vector("prm.grpo_process")
    # two tokens a step: credit stands at each token of its step
    members = [
        Outcome(np.zeros(len(s)), 1.0, np.repeat(np.arange(len(s)), 2), process=np.array(s))
        for s in inputs["step_rewards"]
    ]
    [given] = assign(ProcessGroup(), [members], {}).advantages
    found = [a[::2] for a in given if a is not None]
    for a, whole, known, normalised in zip(
        found, given, expected["step_advantages"], expected["normalised"], strict=True
    ):
        assert near(a, known)
        assert whole is not None
        assert near(a - np.append(a[1:], 0.0), normalised)
        assert (whole[::2] == whole[1::2]).all()
    alone = [assign(ProcessGroup(), [[m]], {}).advantages[0][0] for m in members]
    assert alone[0] is not None
    assert not near(alone[0][::2], expected["step_advantages"][0], 1e-2)  # the fault: statistics of one solution


def test_potentials_telescope_to_what_is_already_known_at_the_start() -> None:
    inputs, expected = vector("prm.potential_shaping")
    before = np.array(inputs["prm_values"])
    shaping = potential_rewards(np.zeros(3), before, inputs["gamma"])
    assert near(shaping, expected["shaped_rewards"])
    assert shaping.sum() + inputs["final_reward"] == pytest.approx(expected["sum"], abs=TOLERANCE)
    # in a run the score after a turn is the potential of the next, and the opening's is 0: the return stays what it was
    member = Outcome(np.zeros(3), inputs["final_reward"], np.arange(3), process=np.array([0.6, 0.4, 0.9]))
    with_potential = shaped(member, (Potential(inputs["gamma"]),))
    assert near(with_potential.turn_rewards[1:], expected["shaped_rewards"][1:])
    assert with_potential.reward == pytest.approx(member.reward, abs=TOLERANCE)
    assert shaped(member, (StepReward(),)).reward == pytest.approx(1.9, abs=TOLERANCE)  # a plain bonus changes it


@pytest.mark.parametrize("k", range(5))
def test_the_overlong_penalty_falls_inside_the_cache_and_stays_at_minus_1(k: int) -> None:
    inputs, expected = vector("dapo.overlong")
    tokens, known = inputs["lengths"][k], expected["penalty"][k]
    length, cache = inputs["L_max"], inputs["L_cache"]
    assert overlong_penalty(tokens, length, cache) == pytest.approx(known, abs=TOLERANCE)
    member = Outcome(np.zeros(1), 1.0, np.zeros(tokens, dtype=np.int64))
    assert shaped(member, (Overlong(length, cache),)).reward == pytest.approx(1.0 + known, abs=TOLERANCE)
    unscored = replace(member, final=None)
    assert shaped(unscored, (Overlong(length, cache),)).reward is None
    late = overlong_penalty(tokens, length + cache, cache)  # the fault: the cache begins at the limit
    assert (late == pytest.approx(known, abs=TOLERANCE)) == (k < 2)


# --- admission


def graded(name: str, scores: Sequence[float], style: Sequence[float] = ()) -> Group:
    def member(index: int, score: float) -> Trajectory:
        aux = {"style": style[index]} if style else {}
        return Trajectory(Task(name), (), np.zeros(0, np.int32), "done", (), verdict=Verdict(float(score), aux=aux))

    return Group(name, Task(name), tuple(member(i, s) for i, s in enumerate(scores)))


def test_dynamic_sampling_keeps_the_groups_that_have_both_outcomes() -> None:
    inputs, expected = vector("dynsample.slide44")
    groups = {name: graded(name, scores) for name, scores in inputs["groups"].items()}
    for rule in ("mixed", "varied"):
        assert [name for name, group in groups.items() if admitted(rule, group)] == expected["kept"]
        assert [name for name, group in groups.items() if not admitted(rule, group)] == expected["skipped"]
    assert all(admitted("all", group) for group in groups.values())
    assert len(expected["kept"]) == inputs["target_groups"]
    # a length penalty makes a group of successes vary; its outcomes are still the same
    penalised = graded("C", inputs["groups"]["C"], [0.0, 0.0, 0.0, -1.0])
    assert admitted("varied", penalised)
    assert not admitted("mixed", penalised)


def test_groups_without_signal_are_counted_by_group_and_by_token() -> None:
    inputs, expected = vector("dynsample.slide44")
    credits = assign(GroupMean(), [finals(scores) for scores in inputs["groups"].values()], {})
    assert credits.equal / len(inputs["groups"]) == expected["frac_zero_var_groups"]
    advantages = [float(a[0]) for group in credits.advantages for a in group if a is not None]
    batch, totals = columns([[-1.0]] * len(advantages), advantages=advantages)
    metrics = run(algorithm(TokenRatio()), batch, totals)[3]
    assert metrics["nonzero_advantage_tokens"].value == expected["frac_nonzero_adv_samples"]


@pytest.mark.parametrize("size", VECTORS["dynsample.prob_informative"]["inputs"]["G"])
@pytest.mark.parametrize("p", VECTORS["dynsample.prob_informative"]["inputs"]["p"])
def test_the_chance_that_a_group_teaches_is_that_of_both_outcomes(p: float, size: int) -> None:
    known = VECTORS["dynsample.prob_informative"]["expected"][f"p={p},G={size}"]
    assert informative(p, size) == pytest.approx(known, abs=TOLERANCE)
    if size == 4:
        assert 1 - p**size != pytest.approx(known, abs=1e-5)  # the fault: all wrong counted as a signal
        # every group that can be drawn, through the admission itself
        total = 0.0
        for wins in range(size + 1):
            ways = [1, 4, 6, 4, 1][wins]
            group = graded("g", [1.0] * wins + [0.0] * (size - wins))
            total += ways * p**wins * (1 - p) ** (size - wins) * admitted("mixed", group)
        assert total == pytest.approx(known, abs=TOLERANCE)


# --- stale data


def test_a_trajectory_that_went_stale_and_failed_is_left_out() -> None:
    """The vector's current policy is the proximal one: weights are made before the update, where both are the same."""
    inputs, expected = vector("opsm.deepseek_v32")
    proximal, behaviour = ([np.array(row) for row in inputs[name]] for name in ("logp", "old_or_rollout_logp"))
    credit = [np.full(len(row), a) for row, a in zip(proximal, inputs["advantages"], strict=True)]
    found = correction_weights(OffPolicyMask(inputs["delta"]), proximal, behaviour, credit)
    for weight, row, kept in zip(found, proximal, expected["keep"], strict=True):
        assert weight.tolist() == [kept] * len(row)
    for index, mean in enumerate(expected["seq_mean_log_ratio_old_over_theta"]):
        against = [-np.abs(a) for a in credit]  # all of them failed: the distance alone decides
        for delta, kept in ((mean - 1e-9, 0.0), (mean + 1e-9, 1.0)):
            weight = correction_weights(OffPolicyMask(delta), proximal, behaviour, against)[index]
            assert weight.tolist() == [kept] * len(weight)
    swapped = correction_weights(OffPolicyMask(inputs["delta"]), behaviour, proximal, credit)
    assert [w[0] for w in swapped] != expected["keep"]


def test_the_tokens_that_moved_most_are_dropped_until_the_second_moment_is_small() -> None:
    inputs, expected = vector("m2po.second_moment")
    logs = np.array(inputs["log_ratio"])
    keep = second_moment_mask(logs, inputs["threshold"])
    assert keep.tolist() == expected["keep"]
    assert (logs**2).mean() == pytest.approx(expected["second_moment_all"], abs=TOLERANCE)
    assert (logs[keep > 0] ** 2).mean() == pytest.approx(expected["second_moment_kept"], abs=TOLERANCE)
    assert second_moment_mask(logs, expected["second_moment_all"] + 1e-9).all()
    assert not second_moment_mask(logs, expected["second_moment_all"] - 1e-9).all()
    zero = np.zeros(5)
    # over all trajectories of the batch at once, and the weight of a kept token is its ratio
    parts = [logs[:2], logs[2:]]
    still = [zero[:2], zero[2:]]
    weights = correction_weights(SecondMoment(inputs["threshold"]), parts, still, still)
    assert near(np.concatenate(weights), np.exp(logs) * expected["keep"])
    alone = [
        correction_weights(SecondMoment(inputs["threshold"]), [p], [s], [s])[0]
        for p, s in zip(parts, still, strict=True)
    ]
    assert not near(np.concatenate(alone), np.exp(logs) * expected["keep"], 1e-3)
    whole = np.concatenate(correction_weights(Decoupled(), parts, still, still))
    assert near(whole, np.exp(logs))
