"""Advantages from values against numbers that were worked out by hand and elsewhere, to 1e-9.

Negative controls, numbers that must not come out: in gae.token.obs the mask ignored and values masked without skipping, in
gae.reward_on_obs_lost the reward that is dropped. Left out of vine.mc_value: the standard error, which nothing computes.
"""

import asyncio
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from strop.core.algorithm import GAE, MonteCarlo
from strop.core.engine import Sampling
from strop.core.task import Step, Task, Verdict
from strop.core.trajectory import Origin, Row, Trajectory
from strop.credit.assign import assign
from strop.credit.gae import bilevel, gae
from strop.credit.outcome import Outcome
from strop.engine.scripted import ScriptedEngine
from strop.rollout.branch import branch_values
from strop.rollout.group import Table, play_group
from strop.rollout.limits import Limits
from strop.rollout.rows import sampled_values
from tests.objective.batches import VECTORS
from tests.rollout.worlds import CODEC, Scripted, say, world

TOLERANCE = 1e-9


def vector(name: str) -> tuple[dict[str, Any], dict[str, Any]]:
    return VECTORS[name]["inputs"], VECTORS[name]["expected"]


def near(found: Sequence[float] | np.ndarray | None, expected: Sequence[float], tolerance: float = TOLERANCE) -> bool:
    assert found is not None
    return list(found) == pytest.approx(list(expected), abs=tolerance)


def seen(values: Sequence[float], mask: Sequence[int]) -> np.ndarray:
    """Values at the sampled tokens of a row, as credit gets them: an observation's are nowhere to be seen."""
    n = len(values)
    sampled = np.array(mask, dtype=np.bool_)
    nothing = np.zeros(n, dtype=np.int32)
    row = Row(nothing, sampled, np.zeros(n, np.float32), nothing, nothing, Origin("g", 0))
    return sampled_values([row.with_columns(value=np.array(values))], "value")


def test_the_lectures_temporal_differences_and_their_sums() -> None:
    inputs, expected = vector("seed.td_gae")
    rewards, values = np.array(inputs["rewards"], dtype=np.float64), np.array(inputs["values"])
    member = Outcome(rewards, 0.0, np.arange(3), values=values, bootstrap=inputs["bootstrap"], turn_values=values)
    known = {inputs["lam"]: "advantages", 1.0: "advantages_lam1", 0.0: "advantages_lam0"}
    for lam, name in known.items():
        assert near(gae(rewards, values, inputs["bootstrap"], inputs["gamma"], lam), expected[name])
        for credit in (GAE(lam), GAE(lam, level="turn"), MonteCarlo(lam=lam)):
            credits = assign(credit, [[member]], {})
            assert near(credits.advantages[0][0], expected[name])
            if isinstance(credit, GAE):
                assert near(credits.targets[0][0], (np.array(expected[name]) + values).tolist())
    assert near(gae(rewards, values, 0.0, 1.0, 0.0), expected["td_errors"])
    assert not near(gae(rewards, values, 0.0, 1.0, 1.0), [0.0] * 3, 0.1)  # the fault: the bare final reward


def test_observations_neither_discount_nor_add() -> None:
    inputs, expected = vector("gae.token.obs")
    mask, values = inputs["mask"], inputs["values"]
    turns = np.array([0, 0, 1, 1])
    credit = GAE(inputs["lam"], inputs["gamma"])
    # the reward of token 1 is that of its turn, the last one the final score
    member = Outcome(np.array([0.1, 0.0]), 1.0, turns, values=seen(values, mask), bootstrap=inputs["bootstrap"])
    credits = assign(credit, [[member]], {})
    assert near(credits.advantages[0][0], expected["correct_action_tokens"])
    assert near(credits.targets[0][0], expected["returns"])
    cut = Outcome(np.array([0.1, 0.0]), 1.0, turns, values=seen(values, mask), bootstrap=0.6)
    assert near(assign(credit, [[cut]], {}).advantages[0][0], expected["truncated_bootstrap_06"])
    # the faults, which the same formula makes of the wrong arrays
    chosen = np.flatnonzero(mask)
    rewards, everywhere = np.array(inputs["rewards"]), np.array(values)
    for wrong, name in ((everywhere, "wrong_ignore_mask"), (everywhere * mask, "wrong_zero_values_no_skip")):
        found = gae(rewards, wrong, 0.0, inputs["gamma"], inputs["lam"])[chosen]
        assert near(found, expected[name])
        assert not near(credits.advantages[0][0], found.tolist(), 1e-2)


def test_a_reward_that_comes_with_an_observation_belongs_to_the_turn_that_earned_it() -> None:
    inputs, expected = vector("gae.reward_on_obs_lost")
    values = seen(inputs["values"], inputs["mask"])
    credit = GAE(inputs["lam"], inputs["gamma"])
    for earned, name in ((0.1, "moved_to_last_action_token"), (0.0, "dropped")):
        member = Outcome(np.array([earned, 0.0]), 1.0, np.array([0, 0, 1, 1]), values=values)
        assert near(assign(credit, [[member]], {}).advantages[0][0], expected[name])
    assert not near(expected["moved_to_last_action_token"], expected["dropped"], 1e-2)


def test_turns_as_steps_take_the_value_before_the_turn() -> None:
    inputs, expected = vector("gae.turn")
    first = inputs["turn_values"]
    values = np.array([first[0], 7.0, first[1], -7.0])  # what stands inside a turn plays no part
    rewards = np.array(inputs["turn_rewards"])
    member = Outcome(rewards, 0.0, np.array([0, 0, 1, 1]), values=values, bootstrap=inputs["bootstrap"])
    credits = assign(GAE(inputs["lam"], inputs["gamma"], "turn"), [[member]], {})
    assert near(credits.advantages[0][0], expected["broadcast"])
    target = credits.targets[0][0]
    assert target is not None
    assert near(target[::2], [a + v for a, v in zip(expected["turn_advantages"], first, strict=True)])
    assert np.isnan(target[1::2]).all()
    plain = assign(GAE(1.0, 1.0, "turn"), [[member]], {}).advantages[0][0]
    assert plain is not None
    assert near(plain[::2], expected["turn_advantages_gamma1_lam1"])
    # the final score is with the last turn, wherever it is written
    late = Outcome(np.array([rewards[0], 0.0]), float(rewards[1]), np.array([0, 0, 1, 1]), values=values)
    assert near(
        assign(GAE(inputs["lam"], inputs["gamma"], "turn"), [[late]], {}).advantages[0][0], expected["broadcast"]
    )
    by_token = assign(GAE(inputs["lam"], inputs["gamma"]), [[member]], {}).advantages[0][0]
    assert not near(by_token, expected["broadcast"], 1e-2)
    sampled = Outcome(rewards, 0.0, np.array([0, 0, 1, 1]), turn_values=np.array(first))
    given = assign(MonteCarlo(lam=inputs["lam"], discount=inputs["gamma"]), [[sampled]], {}).advantages[0][0]
    assert near(given, expected["broadcast"])


@pytest.mark.parametrize("at", ["last", "first"])
@pytest.mark.parametrize("lam", ["1.0", "0.9"])
def test_both_levels_agree_on_what_a_turn_was_worth(at: str, lam: str) -> None:
    inputs, expected = vector(f"gae.bilevel.{at}_token_values.lam{lam}")
    assert inputs["gamma_token"] == 1.0
    places = inputs["turns"]
    values = np.array(inputs["values"])
    end = -1 if at == "last" else 0
    states = values[[turn[end] for turn in places]]
    per_turn = gae(np.array(inputs["turn_rewards"]), states, 0.0, inputs["gamma_turn"], inputs["lam_turn"])
    assert near(per_turn, expected["turn_advantages"])
    chosen = [t for turn in places for t in turn]
    turns = np.array([k for k, turn in enumerate(places) for _ in turn])
    found = bilevel(per_turn, states, values[chosen], turns, inputs["lam_token"])
    assert near(found, expected["token_advantages"])
    if inputs["lam_token"] == 1.0:
        assert near(found, (per_turn + states)[turns] - values[chosen])
    # the faults: the turn's value left out of the last token's target, and a carry over the turn's end
    assert not near(
        bilevel(per_turn, states * 0, values[chosen], turns, inputs["lam_token"]), expected["token_advantages"], 1e-2
    )
    joined = bilevel(per_turn[-1:], states[-1:], values[chosen], turns * 0, inputs["lam_token"])
    assert not near(joined, expected["token_advantages"], 1e-2)


def test_a_value_from_continuations_is_their_mean_return() -> None:
    inputs, expected = vector("vine.mc_value")
    returns = inputs["returns"]

    def script(prompt: Any, session: str, turn: int) -> list[int]:
        won = 1 if "@" not in session else returns[int(session.rsplit("/", 1)[1])]
        return CODEC.reply(str(won)).tolist()

    def verify(task: Task, trajectory: Trajectory) -> Verdict:
        return Verdict(float(trajectory.artefacts["heard"][-1]))

    made = world(lambda task, seed: Scripted(say("?"), Step(done=True)), verify)
    table = Table(made, CODEC, Limits(turns=2, turn_tokens=8, context=200), CODEC.append_only, 0)
    engine = ScriptedEngine(script, CODEC.stop_ids)

    async def values(count: int) -> list[list[float | None]]:
        played = await play_group(table, made.split("train")[0], 1, engine, Sampling(8), "train", 3)
        assert [t.reward for t in played.trajectories] == [1.0]
        return await branch_values(table, played, count, engine, Sampling(8))

    assert asyncio.run(values(len(returns))) == [[pytest.approx(expected["value"], abs=TOLERANCE)]]
    assert asyncio.run(values(3)) == [[pytest.approx(2 / 3, abs=TOLERANCE)]]  # fewer continuations, another mean
