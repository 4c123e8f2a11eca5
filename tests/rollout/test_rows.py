"""Rows: what is trained is what was sampled, behind the prompt that was seen, and nothing else."""

import asyncio
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from strop.codec.chat import ChatCodec
from strop.core.engine import Sampling
from strop.core.message import Message
from strop.core.task import Task
from strop.core.trajectory import Completion, Group, Origin, Row, Trajectory, Turn
from strop.engine.scripted import ScriptedEngine
from strop.envs.guess import guess
from strop.model.tiny import tiny
from strop.rollout.group import Table, play_group
from strop.rollout.limits import Limits
from strop.rollout.rows import group_rows, rows_of

SOME = settings(max_examples=100, deadline=None, database=None)


@st.composite
def trajectories(draw: st.DrawFn) -> Trajectory:
    """Turns with unlike ids everywhere, so that equal ids are the same token."""
    turns, used = [], 0
    for number in range(draw(st.integers(1, 5))):
        context, sampled = draw(st.integers(0 if number else 1, 4)), draw(st.integers(1, 4))
        ids = np.arange(used, used + context + sampled, dtype=np.int32)
        used += context + sampled
        completion = Completion(
            ids[context:], -ids[context:].astype(np.float32), np.full(sampled, number, np.int32), "stop"
        )
        fresh = bool(number) and context > 0 and draw(st.booleans())
        turns.append(Turn(ids[:context], completion, Message("assistant", ""), fresh=fresh))
    return Trajectory(Task("t"), tuple(turns), np.zeros(0, np.int32), "done", ())


def check(trajectory: Trajectory, rows: list[Row], advantages: np.ndarray) -> None:
    sampled = np.concatenate([turn.completion.tokens for turn in trajectory.turns])
    everything = np.concatenate([ids for turn in trajectory.turns for ids in (turn.context, turn.completion.tokens)])
    owner = {int(i): k for k, t in enumerate(trajectory.turns) for i in (*t.context, *t.completion.tokens)}
    assert np.array_equal(np.concatenate([row.tokens for row in rows]), everything)
    assert np.array_equal(np.concatenate([row.tokens[row.sampled] for row in rows]), sampled)
    assert np.array_equal(np.concatenate([row.columns["advantage"][row.sampled] for row in rows]), advantages)
    assert len(rows) == 1 + sum(turn.fresh for turn in trajectory.turns)
    for part, row in enumerate(rows):
        assert row.origin == Origin("g", 3, part)
        assert row.turns.tolist() == [owner[int(i)] for i in row.tokens]
        assert np.array_equal(row.behaviour_logp[row.sampled], -row.tokens[row.sampled].astype(np.float32))
        assert np.isnan(row.behaviour_logp[~row.sampled]).all()
        assert row.versions.tolist() == [
            owner[int(i)] if s else -1 for i, s in zip(row.tokens, row.sampled, strict=True)
        ]
        assert not row.columns["advantage"][~row.sampled].any()


@SOME
@given(trajectories())
def test_rows_hold_every_token_once_in_order_with_its_own_numbers(trajectory: Trajectory) -> None:
    advantages = np.arange(1, trajectory.sampled_tokens + 1, dtype=np.float64)
    rows = rows_of("g", 3, trajectory, advantages)
    check(trajectory, rows, advantages)
    bare = rows_of("g", 3, trajectory, None)
    assert [row.tokens.tolist() for row in bare] == [row.tokens.tolist() for row in rows]
    assert all("advantage" not in row.columns for row in bare)


def test_a_shifted_mask_or_a_lost_token_would_be_noticed() -> None:
    nothing = np.zeros(0, np.int32)
    completion = Completion(np.array([2, 3], np.int32), np.array([-2, -3], np.float32), np.zeros(2, np.int32), "stop")
    turn = Turn(np.array([0, 1], np.int32), completion, Message("assistant", ""))
    later = Completion(np.array([5], np.int32), np.array([-5], np.float32), np.ones(1, np.int32), "length")
    again = Turn(np.array([4], np.int32), later, Message("assistant", ""), fresh=True)
    trajectory = Trajectory(Task("t"), (turn, again), nothing, "done", ())
    advantages = np.array([1.0, 1.0, 2.0])
    rows = rows_of("g", 3, trajectory, advantages)
    check(trajectory, rows, advantages)
    for spoilt in (
        [replace(rows[0], sampled=np.roll(rows[0].sampled, -1)), rows[1]],
        [replace(rows[0], versions=np.zeros(4, np.int32)), rows[1]],
        [rows[0], replace(rows[1], origin=Origin("g", 3, 0))],
        rows[:1],
    ):
        with pytest.raises(AssertionError):
            check(trajectory, spoilt, advantages)


def test_a_wrong_number_of_advantages_is_refused() -> None:
    completion = Completion(np.array([1, 2], np.int32), np.zeros(2, np.float32), np.zeros(2, np.int32), "stop")
    turn = Turn(np.array([0], np.int32), completion, Message("assistant", ""))
    trajectory = Trajectory(Task("t"), (turn,), np.zeros(0, np.int32), "done", ())
    assert len(rows_of("g", 0, trajectory, np.ones(2))) == 1
    for wrong in (1, 3):
        with pytest.raises(ValueError, match=f"{wrong} numbers of advantage for 2 sampled tokens"):
            rows_of("g", 0, trajectory, np.ones(wrong))


def test_members_without_credit_give_no_rows_and_keep_their_numbers() -> None:
    completion = Completion(np.array([1, 2], np.int32), np.zeros(2, np.float32), np.zeros(2, np.int32), "stop")
    turn = Turn(np.array([0], np.int32), completion, Message("assistant", ""))
    played = Trajectory(Task("t"), (turn,), np.zeros(0, np.int32), "done", ())
    failed = Trajectory(Task("t"), (), np.zeros(0, np.int32), "error", (), error="no")
    group = Group("train-000001", Task("t"), (played, failed, played, played))
    rows = group_rows(group, [None, np.zeros(0), np.full(2, 0.5), np.full(2, -0.5)])
    assert [(row.origin.group, row.origin.member) for row in rows] == [("train-000001", 2), ("train-000001", 3)]
    assert [row.columns["advantage"].tolist() for row in rows] == [[0, 0.5, 0.5], [0, -0.5, -0.5]]


@pytest.mark.parametrize("append_only", [True, False])
def test_the_ids_before_a_reply_are_the_prompt_that_the_engine_saw(append_only: bool) -> None:
    world = guess(16, 4)
    _, tokenizer = tiny(world.pieces, width=8, layers=1, heads=2)
    codec = ChatCodec(tokenizer)
    # "12" is one token of the world; here the policy spells it out, as no encoder would
    spelled = [*tokenizer.convert_tokens_to_ids(["1", "2"]), codec.terminator]
    script = {"train-000005/0": [spelled, codec.reply("nonsense").tolist(), [spelled[0], spelled[1]]]}
    engine = ScriptedEngine(script, codec.stop_ids)
    table = Table(world, codec, Limits(turns=3, turn_tokens=9, tokens=14), append_only, 0)
    group = asyncio.run(play_group(table, world.split("train")[0], 1, engine, Sampling(9), "train", 5))
    [trajectory] = group.trajectories
    assert trajectory.error is None
    rows = group_rows(group, [np.ones(trajectory.sampled_tokens)])
    assert len(rows) == (1 if append_only else 3)
    prompts = engine.prompts["train-000005/0"]
    for number, (prompt, turn) in enumerate(zip(prompts, trajectory.turns, strict=True)):
        [row] = [r for r in rows if number in r.turns[r.sampled]]
        first = int(np.flatnonzero(row.sampled & (row.turns == number))[0])
        assert row.tokens[:first].tolist() == prompt.tolist()
        assert row.tokens[first : first + len(turn.completion.tokens)].tolist() == turn.completion.tokens.tolist()
    assert rows[0].tokens[rows[0].sampled][:3].tolist() == spelled
    assert codec.reply("12").tolist() != spelled  # re-encoding the reply would have trained another token
