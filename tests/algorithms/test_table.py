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
    BatchMean,
    Clip,
    Correction,
    Credit,
    GroupMean,
    GrowingClip,
    LeaveOneOut,
    MaskClip,
    MovingAverage,
    NoClip,
    NoRatio,
    PPOClip,
    PrefixRatio,
    Ratio,
    RewardToGo,
    SequenceRatio,
    SoftGate,
    Term,
    TokenRatio,
    TrajectoryRatio,
    TurnRatio,
    WeightClip,
    Zero,
)
from strop.core.engine import Sampling
from strop.core.metrics import values
from strop.core.trajectory import Group, Row
from strop.credit.assign import assign
from strop.credit.outcome import Outcome, outcome
from strop.engine.local import LocalEngine
from strop.engine.scripted import ScriptedEngine
from strop.envs.guess import guess
from strop.learn.annotate import Forward, columns_of
from strop.learn.learner import LocalLearner
from strop.learn.pack import count, pack
from strop.learn.schedule import Optimisation
from strop.loop.assemble import Parts
from strop.loop.lesson import Lesson, lesson
from strop.model.load import ModelSource, load
from strop.model.policy import Policy
from strop.model.tiny import END
from strop.objective.objective import Moment, loss
from strop.rollout.group import Table, play_group
from strop.rollout.limits import Limits
from strop.rollout.rows import group_rows, with_sampled
from tests.learn.rows import ALGORITHMS as WITH_TERMS
from tests.learn.rows import ROWS, equal, fresh, learner_of, some_rows, tiny_policy, trained, waken, weights

GAMES = ((8, 12, 10, 11), (4, 8, 12, 11), (16, 8, 9, 10), (1, 2, 3, 4))
SECRET = 11
LIMITS = Limits(turns=4, turn_tokens=8, context=512)
C = float(LIMITS.longest)


WARMED = {name: replace(row, aggregate=ALGORITHMS[name].aggregate).within(C) for name, row in ROWS.items()}
"""The table as a run of these games uses it, critics warmed up."""


def lecture(seed: int = 0) -> tuple[Policy, ChatCodec, Group]:
    """The lecture's four games against secret 11, played as one group."""
    world = guess(16, 4)
    policy = load(ModelSource(preset="tiny", width=16, layers=1, heads=2, pieces=world.pieces, seed=seed))
    codec = ChatCodec(policy.tokenizer)
    script = {f"train-000000/{i}": [codec.reply(str(n)).tolist() for n in game] for i, game in enumerate(GAMES)}
    engine = ScriptedEngine(script, codec.stop_ids, logprob=-1.5)
    task = world.split("train")[SECRET - 1]
    return policy, codec, asyncio.run(play_group(table_of(codec), task, 4, engine, Sampling(8), "train", 0))


def table_of(codec: ChatCodec) -> Table:
    return Table(guess(16, 4), codec, LIMITS, codec.append_only, 0)


def begun(policy: Policy, algorithm: Algorithm, **settings: float) -> LocalLearner:
    """A learner of the lecture's games; where a teacher is needed it is another model of the same tokens."""
    learner = LocalLearner(policy, 1.0, 0, lecture(seed=1)[0])
    learner.begin(algorithm, Optimisation(**settings), 1)  # type: ignore[arg-type]
    waken(learner)
    return learner


def estimated(member: Outcome) -> Outcome:
    """The outcome with estimates that know nothing but who won."""
    won = float(member.reward or 0.0)
    turns = len(member.turn_rewards)
    return replace(
        member,
        values=np.full(len(member.turns), 0.5),
        turn_values=np.full(turns, 0.5),
        process=np.full(turns, 0.25 + 0.5 * won),
    )


def rows_for(algorithm: Algorithm, group: Group) -> list[Row]:
    """Rows with credit, and with what the critic should say where there is one."""
    credits = assign(algorithm.credit, [[estimated(outcome(t)) for t in group.trajectories]], {})
    rows = group_rows(group, credits.advantages[0])
    if not credits.targets:
        return rows
    return [
        row
        for member, target in enumerate(credits.targets[0])
        if target is not None
        for row in with_sampled([r for r in rows if r.origin.member == member], np.nan, value_target=target)
    ]


def taught(learner: LocalLearner, codec: ChatCodec, group: Group) -> Lesson:
    """What the loop makes of the group: annotations, continuations by a real engine, credit, corrections."""
    assert learner.algorithm is not None
    engine = LocalEngine(learner.policy, codec.stop_ids)
    parts = Parts(
        guess(16, 4), learner.policy, table_of(codec), engine, engine, learner, True, Sampling(8), ()
    )  # fmt: skip
    return asyncio.run(lesson(parts, learner.algorithm, learner.algorithm.credit, [group], {}))


def gradient(policy: Policy, algorithm: Algorithm, rows: Sequence[Row]) -> torch.Tensor:
    """Gradient of the loss in the weights of the policy, or in those of the process reward model that is trained."""
    learner = learner_of(policy, algorithm)
    observed = learner.wanted.observations
    totals = count(rows, observed is not None)
    for micro in pack(rows, 60, observed, policy.device):
        learner._loss(micro, totals, learner._moment())
    of = trained(learner) if learner.wanted.labels else learner.parameters
    found = torch.cat([p.grad.flatten() for p in of if p.grad is not None])
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
    assert row.correction is None or type(row.correction) in get_args(Correction)
    assert all(type(term) in get_args(Term) for term in row.terms)
    assert len(row.source.split()) > 2
    assert row.updates >= 1
    assert not isinstance(row.ratio, NoRatio) or isinstance(row.clip, NoClip)  # a clip without a ratio does nothing
    assert row == ALGORITHMS[name]


def test_no_two_rows_are_the_same_algorithm() -> None:
    parts = [replace(row, source="") for row in ALGORITHMS.values()]
    assert len(set(parts)) == len(parts)
    assert len({*parts, replace(ALGORITHMS["rloo"], source="")}) == len(parts)


RATIOS = (TokenRatio(), TurnRatio(), PrefixRatio(), TrajectoryRatio(), SequenceRatio(), SequenceRatio("token"))
CLIPS = (PPOClip(0.2, 0.2), WeightClip(), GrowingClip(), MaskClip(), SoftGate())


@pytest.mark.parametrize("name", ALGORITHMS)
def test_on_fresh_data_rows_with_one_credit_and_one_aggregation_have_one_gradient(name: str) -> None:
    policy = tiny_policy()
    algorithm = WARMED[name]
    learner = learner_of(policy, algorithm)
    rows = fresh(learner, some_rows(policy))
    stale = fresh(learner, some_rows(policy), noise=0.5)
    base = gradient(policy, algorithm, rows)
    assert base.norm() > 1e-3
    enough = 1e-3 if algorithm.critic is not None and algorithm.critic.kind == "shared" else 1e-2  # its values pull too
    on_old = gradient(policy, replace(algorithm, ratio=NoRatio(), clip=NoClip()), stale)
    assert distance(on_old, base) < 1e-6
    for ratio, clip in (*((ratio, NoClip()) for ratio in RATIOS), *((TokenRatio(), clip) for clip in CLIPS)):
        twin = replace(algorithm, ratio=ratio, clip=clip)
        assert distance(gradient(policy, twin, rows), base) < 1e-5
        moved = distance(gradient(policy, twin, stale), on_old)
        assert (moved > enough) == algorithm.credited


@pytest.mark.parametrize("name", WITH_TERMS)
def test_every_row_takes_a_finite_step_on_a_recorded_batch(name: str) -> None:
    policy, codec, group = lecture()
    algorithm = WARMED[name] if name in WARMED else WITH_TERMS[name]
    learner = begun(policy, algorithm, lr=0.01)
    given = taught(learner, codec, group)
    before, all_before = weights(policy), [p.detach().clone() for p in trained(learner)]
    report = learner.step(given.rows)
    assert (report.updates, dict(report.skipped)) == (1, {})
    assert equal(before, weights(policy)) == learner.wanted.labels  # these train another model
    assert not equal(all_before, trained(learner))
    assert all(torch.isfinite(w).all() for w in trained(learner))
    assert all(v is not None and np.isfinite(v) for v in values({**report.metrics, **given.metrics}).values())
    assert (values(report.metrics)["gradient_norm"] > 0) == (not learner.wanted.labels)


RELATIVE = [name for name, row in WARMED.items() if isinstance(row.credit, GroupMean | LeaveOneOut | BatchMean)]


@pytest.mark.parametrize("name", RELATIVE)
def test_a_step_on_equal_returns_teaches_nothing_to_group_methods(name: str) -> None:
    policy, codec, group = lecture()
    losers = replace(group, trajectories=(group.trajectories[2],) * 4)
    before = weights(policy)
    learner = begun(policy, WARMED[name], lr=0.01)
    learner.step(taught(learner, codec, losers).rows)
    assert equal(before, weights(policy))
    learner.step(taught(learner, codec, group).rows)
    assert not equal(before, weights(policy))


@pytest.mark.parametrize("name", [name for name, row in WARMED.items() if not isinstance(row.credit, Zero)])
def test_a_step_makes_winning_games_likelier(name: str) -> None:
    policy, _, group = lecture()
    algorithm = WARMED[name]
    learner = begun(policy, algorithm, lr=1e-3)

    def chance(members: tuple[int, ...]) -> float:
        rows = [row for row in rows_for(ALGORITHMS["sft"], group) if row.origin.member in members]
        return sum(float(row.columns["logp"][row.sampled].sum()) for row in learner.annotate(rows, ["logp"]))

    before, failures = chance((0, 1)), chance((2, 3))
    learner.step(fresh(learner, rows_for(algorithm, group)))
    assert chance((0, 1)) > before
    if isinstance(algorithm.credit, RewardToGo) and algorithm.credit.baseline == 0.5:
        assert chance((2, 3)) - failures < chance((0, 1)) - before


@pytest.mark.parametrize("name", [name for name, row in WARMED.items() if not row.credited])
def test_a_row_without_credit_follows_its_term(name: str) -> None:
    """A student comes nearer to its teacher; process scores come nearer to their labels and leave the policy alone."""
    policy, codec, group = lecture()
    learner = begun(policy, WARMED[name], lr=1e-3)
    rows = taught(learner, codec, group).rows
    before = weights(policy)
    told = [values(learner.step(rows).metrics) for _ in range(3)]
    measure = "process_loss" if learner.wanted.labels else "teacher_divergence"
    found = [metrics[measure] for metrics in told]
    assert found[0] > found[1] > found[2] > 0
    assert equal(before, weights(policy)) == learner.wanted.labels


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
    [micro] = pack(rows, 10_000, None, torch.device("cpu"))
    logp = micro.behaviour_logp.double().requires_grad_()
    columns = columns_of(micro, Forward(logp, None), algorithm)
    value, _ = loss(algorithm, columns, count(rows, False), Moment())
    value.backward()
    assert logp.grad is not None
    owners = [micro.rows[i].origin.member for i in micro.places[0]]
    return {m: [float(g) for g, o in zip(logp.grad, owners, strict=True) if o == m] for m in sorted(set(owners))}


def test_dr_grpo_pushes_every_token_by_half_over_the_constant() -> None:
    _, _, group = lecture()
    found = token_gradients(WARMED["dr_grpo"], rows_for(ALGORITHMS["dr_grpo"], group))
    for member, sign in enumerate((-1, -1, 1, 1)):
        assert found[member] == pytest.approx([sign * 0.5 / C / 4] * 8, abs=1e-12)
    grpo = token_gradients(ALGORITHMS["grpo"], rows_for(ALGORITHMS["grpo"], group))
    for member, sign in enumerate((-1, -1, 1, 1)):
        assert grpo[member] == pytest.approx([sign / 8 / 4] * 8, abs=1e-12)
        assert grpo[member] != pytest.approx(found[member], abs=1e-3)
