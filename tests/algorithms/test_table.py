"""The whole table of algorithms at once, and the lecture's four games through every part of the library."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import get_args

import numpy as np
import pytest
import torch

from strop.algorithms import ALGORITHMS
from strop.codec.chat import ChatCodec
from strop.core.algorithm import (
    Aggregate,
    Algorithm,
    Clip,
    Constant,
    Credit,
    MovingAverage,
    NoClip,
    NoRatio,
    PPOClip,
    Ratio,
    RewardToGo,
    TokenRatio,
)
from strop.core.engine import Sampling
from strop.core.metrics import values
from strop.core.trajectory import Group, Row
from strop.credit.assign import assign, outcome
from strop.engine.scripted import ScriptedEngine
from strop.envs.guess import guess
from strop.learn.learner import LocalLearner
from strop.learn.pack import count, pack
from strop.learn.schedule import Optimisation
from strop.model.load import ModelSource, load
from strop.model.policy import Policy
from strop.model.tiny import END
from strop.objective.columns import Columns
from strop.objective.objective import loss, needs
from strop.rollout.group import Table, play_group
from strop.rollout.limits import Limits
from strop.rollout.rows import group_rows
from tests.learn.rows import ALGORITHMS as WITH_TERMS
from tests.learn.rows import equal, fresh, some_rows, tiny_policy, weights

GAMES = ((8, 12, 10, 11), (4, 8, 12, 11), (16, 8, 9, 10), (1, 2, 3, 4))
SECRET = 11
LIMITS = Limits(turns=4, turn_tokens=8, context=512)
C = float(LIMITS.longest)


def filled(algorithm: Algorithm) -> Algorithm:
    return replace(algorithm, aggregate=Constant(C)) if algorithm.aggregate == Constant() else algorithm


def lecture() -> tuple[Policy, ChatCodec, Group]:
    """The lecture's four games against secret 11, played as one group."""
    world = guess(16, 4)
    policy = load(ModelSource(preset="tiny", width=16, layers=1, heads=2, pieces=world.pieces))
    codec = ChatCodec(policy.tokenizer)
    script = {f"train-000000/{i}": [codec.reply(str(n)).tolist() for n in game] for i, game in enumerate(GAMES)}
    engine = ScriptedEngine(script, codec.stop_ids, logprob=-1.5)
    table = Table(world, codec, LIMITS, codec.append_only, 0)
    task = world.split("train")[SECRET - 1]
    return policy, codec, asyncio.run(play_group(table, task, 4, engine, Sampling(8), "train", 0))


def rows_for(algorithm: Algorithm, group: Group) -> list[Row]:
    [advantages] = assign(algorithm.credit, [[outcome(t) for t in group.trajectories]], {}).advantages
    return group_rows(group, advantages)


def gradient(policy: Policy, algorithm: Algorithm, rows: Sequence[Row]) -> torch.Tensor:
    """Gradient of the loss with respect to all weights."""
    learner = LocalLearner(policy, 1.0, 0)
    learner.begin(algorithm, Optimisation(), 1)
    totals = count(rows, needs(algorithm).observations)
    for micro in pack(rows, 60, needs(algorithm).observations, policy.device):
        value, _ = learner._loss(micro, needs(algorithm), totals, 0.0)
        value.backward()
    found = torch.cat([p.grad.flatten() for p in policy.model.parameters() if p.grad is not None])
    learner._clear()
    return found


def distance(a: torch.Tensor, b: torch.Tensor) -> float:
    return ((a - b).norm() / b.norm()).item()


# --- the table


@pytest.mark.parametrize("name", ALGORITHMS)
def test_every_row_is_made_of_known_parts_and_names_its_source(name: str) -> None:
    row = ALGORITHMS[name]
    for found, kinds in ((row.credit, Credit), (row.ratio, Ratio), (row.clip, Clip), (row.aggregate, Aggregate)):
        assert type(found) in get_args(kinds)
    assert len(row.source.split()) > 2
    assert row.updates >= 1
    assert isinstance(row.ratio, TokenRatio) or isinstance(row.clip, NoClip)  # a clip without a ratio does nothing
    assert row == ALGORITHMS[name]


def test_no_two_rows_are_the_same_algorithm() -> None:
    parts = [replace(row, source="") for row in ALGORITHMS.values()]
    assert len(set(parts)) == len(parts)
    assert len({*parts, replace(ALGORITHMS["rloo"], source="")}) == len(parts)


@pytest.mark.parametrize("name", ALGORITHMS)
def test_on_fresh_data_rows_with_one_credit_and_one_aggregation_have_one_gradient(name: str) -> None:
    policy = tiny_policy()
    algorithm = filled(ALGORITHMS[name])
    learner = LocalLearner(policy, 1.0, 0)
    rows = fresh(learner, some_rows(policy))
    stale = fresh(learner, some_rows(policy), noise=0.5)
    base = gradient(policy, algorithm, rows)
    assert base.norm() > 1e-3
    for ratio, clip in ((NoRatio(), NoClip()), (TokenRatio(), NoClip()), (TokenRatio(), PPOClip(0.2, 0.2))):
        twin = replace(algorithm, ratio=ratio, clip=clip)
        assert distance(gradient(policy, twin, rows), base) < 1e-5
        if ratio == NoRatio():
            on_old = gradient(policy, twin, stale)
            assert distance(on_old, base) < 1e-6
        else:
            assert distance(gradient(policy, twin, stale), on_old) > 1e-2


@pytest.mark.parametrize("name", [*ALGORITHMS, "grpo with terms"])
def test_every_row_takes_a_finite_step_on_a_recorded_batch(name: str) -> None:
    policy, _, group = lecture()
    algorithm = filled(WITH_TERMS[name])
    rows = rows_for(algorithm, group)
    before = weights(policy)
    learner = LocalLearner(policy, 1.0, 0)
    learner.begin(algorithm, Optimisation(lr=0.01), 1)
    report = learner.step(rows)
    assert (report.updates, dict(report.skipped)) == (1, {})
    assert not equal(before, weights(policy))
    assert all(torch.isfinite(w).all() for w in weights(policy))
    assert all(v is not None and np.isfinite(v) for v in values(report.metrics).values())
    assert values(report.metrics)["gradient_norm"] > 0


def test_a_step_on_equal_returns_teaches_nothing_to_group_methods() -> None:
    policy, _, group = lecture()
    losers = replace(group, trajectories=(group.trajectories[2],) * 4)
    for name in ("rloo", "grpo", "dr_grpo", "group_reinforce"):
        before = weights(policy)
        learner = LocalLearner(policy, 1.0, 0)
        learner.begin(filled(ALGORITHMS[name]), Optimisation(lr=0.01), 1)
        learner.step(rows_for(ALGORITHMS[name], losers))
        assert equal(before, weights(policy))
        learner.step(rows_for(ALGORITHMS[name], group))
        assert not equal(before, weights(policy))


@pytest.mark.parametrize("name", ALGORITHMS)
def test_a_step_makes_winning_games_likelier(name: str) -> None:
    policy, _, group = lecture()
    algorithm = filled(ALGORITHMS[name])
    learner = LocalLearner(policy, 1.0, 0)
    learner.begin(algorithm, Optimisation(lr=1e-3), 1)

    def chance(members: tuple[int, ...]) -> float:
        rows = [row for row in rows_for(ALGORITHMS["sft"], group) if row.origin.member in members]
        return sum(float(row.columns["logp"][row.sampled].sum()) for row in learner.annotate(rows, ["logp"]))

    before, failures = chance((0, 1)), chance((2, 3))
    learner.step(fresh(learner, rows_for(algorithm, group)))
    assert chance((0, 1)) > before
    if isinstance(algorithm.credit, RewardToGo) and algorithm.credit.baseline == 0.5:
        assert chance((2, 3)) - failures < chance((0, 1)) - before


def test_a_moving_average_of_the_table_is_the_papers() -> None:
    assert ALGORITHMS["reinforce_ema"].credit == RewardToGo(MovingAverage(0.95))


# --- the lecture's four games


def trained_tokens(codec: ChatCodec, row: Row) -> list[str]:
    return [codec.tokenizer.decode([int(i)]) for i in row.tokens[row.sampled]]


def test_the_lectures_games_are_won_and_lost_as_in_the_lecture() -> None:
    _, _, group = lecture()
    assert [t.reward for t in group.trajectories] == [1.0, 1.0, 0.0, 0.0]
    assert [t.end for t in group.trajectories] == ["done"] * 4
    answers = [[m.content for m in t.messages if m.role == "user"][1:] for t in group.trajectories]
    assert answers[0] == ["higher", "lower", "higher"]
    assert answers[2] == ["lower", "higher", "higher"]


def test_the_numbers_and_the_ends_that_were_sampled_are_trained_and_nothing_else() -> None:
    _, codec, group = lecture()
    rows = rows_for(ALGORITHMS["group_reinforce"], group)
    assert [row.origin.member for row in rows] == [0, 1, 2, 3]
    for row, game in zip(rows, GAMES, strict=True):
        assert trained_tokens(codec, row) == [token for number in game for token in (str(number), END)]
        rest = codec.tokenizer.decode(row.tokens[~row.sampled])
        assert rest.count(END) == 4  # those of the user's messages
        assert rest.count("<|assistant|>") == 4
        one_late = replace(row, sampled=np.concatenate([[False], row.sampled[:-1]]))
        assert trained_tokens(codec, one_late) != trained_tokens(codec, row)
    assert codec.tokenizer.decode(rows[0].tokens).endswith("<|assistant|>11<|end|>")


@pytest.mark.parametrize("name", ["group_reinforce", "grpo"])
def test_the_lectures_advantages_are_plus_one_and_minus_one(name: str) -> None:
    _, _, group = lecture()
    rows = rows_for(ALGORITHMS[name], group)
    for row, advantage in zip(rows, (1.0, 1.0, -1.0, -1.0), strict=True):
        assert row.columns["advantage"][row.sampled].tolist() == [advantage] * 8
        assert not row.columns["advantage"][~row.sampled].any()
    wrong = rows_for(ALGORITHMS["rloo"], group)[0]
    assert wrong.columns["advantage"][wrong.sampled].tolist() != [1.0] * 8


def token_gradients(algorithm: Algorithm, rows: Sequence[Row]) -> dict[int, list[float]]:
    """d loss / d log-probability of each trained token, by member, on fresh data."""
    [micro] = pack(rows, 10_000, False, torch.device("cpu"))
    logp = micro.behaviour_logp.double().requires_grad_()
    columns = Columns(
        logp,
        None,
        micro.sampled,
        micro.behaviour_logp.double(),
        micro.advantage,
        micro.trajectory,
        micro.trajectory_tokens,
    )
    value, _ = loss(algorithm, columns, count(rows, False), 0.0)
    value.backward()
    assert logp.grad is not None
    owners = [micro.rows[i].origin.member for i in micro.places[0]]
    return {m: [float(g) for g, o in zip(logp.grad, owners, strict=True) if o == m] for m in sorted(set(owners))}


def test_dr_grpo_pushes_every_token_by_half_over_the_constant() -> None:
    _, _, group = lecture()
    found = token_gradients(filled(ALGORITHMS["dr_grpo"]), rows_for(ALGORITHMS["dr_grpo"], group))
    for member, sign in enumerate((-1, -1, 1, 1)):
        assert found[member] == pytest.approx([sign * 0.5 / C / 4] * 8, abs=1e-12)
    grpo = token_gradients(ALGORITHMS["grpo"], rows_for(ALGORITHMS["grpo"], group))
    for member, sign in enumerate((-1, -1, 1, 1)):
        assert grpo[member] == pytest.approx([sign / 8 / 4] * 8, abs=1e-12)
        assert grpo[member] != pytest.approx(found[member], abs=1e-3)
