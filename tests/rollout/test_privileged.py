"""Twins: what the teacher is told, from whom, and that the student never sees it."""

import asyncio
from dataclasses import replace

import numpy as np
import pytest

from strop.codec.chat import ChatCodec
from strop.core.engine import Sampling
from strop.core.metrics import values
from strop.core.task import Task
from strop.core.trajectory import Group, Trajectory, Twin
from strop.core.world import World
from strop.engine.scripted import ScriptedEngine
from strop.envs.craft import craft
from strop.envs.guess import guess
from strop.model.tiny import tiny
from strop.rollout.group import Table, play_group
from strop.rollout.limits import Limits
from strop.rollout.privileged import other_success, solution_for, told_prompt, twin_of, with_twins
from strop.rollout.rows import rows_of

GAMES = ((8, 12, 10, 11), (4, 8, 12, 10), (16, 8, 11), (1, 2, 3, 4))
"""Against 11: members 0 and 2 win."""


def played(world: World, append_only: bool = True, context: int = 128) -> tuple[Table, Group]:
    """The four games as one group."""
    codec = ChatCodec(tiny(world.pieces, 8, 1, 2, closed=world.closed)[1])
    script = {f"train-000000/{i}": [codec.reply(str(n)).tolist() for n in game] for i, game in enumerate(GAMES)}
    table = Table(world, codec, Limits(turns=4, turn_tokens=4, context=context), append_only, 0)
    engine = ScriptedEngine(script)
    task = Task("secret-11", {"secret": 11, "numbers": 16})
    return table, asyncio.run(play_group(table, task, len(GAMES), engine, Sampling(4), "train", 0))


def words(codec: ChatCodec, ids: np.ndarray) -> list[str]:
    return [codec.tokenizer.decode([int(i)]) for i in ids]


# --- alignment


def test_the_tokens_of_a_game_and_of_its_twin_by_hand() -> None:
    world = guess(16, 4)
    table, group = played(world)
    [row] = rows_of(group.id, 0, group.trajectories[0], None)
    twin = twin_of(table.codec, row, group.trajectories[0], "11")
    own, its = words(table.codec, row.tokens), words(table.codec, twin.tokens)
    user, rules, end, agent = head = own[:4]
    assert rules.startswith("I am thinking")
    rest = ["8", end, user, "higher", end, agent, "12", end, user, "lower", end, agent, "10", end]
    rest += [user, "higher", end, agent, "11", end]
    assert own == [*head, *rest]
    assert its == [user, rules, "11", end, agent, *rest]
    marks = [word in ("8", "12", "10", "11") for word in rest]
    marks = [mark or (n > 0 and marks[n - 1]) for n, mark in enumerate(marks)]  # the end of a reply is sampled too
    assert row.sampled.tolist() == [False] * len(head) + marks
    assert twin.sampled.tolist() == [False] * (len(head) + 1) + marks


@pytest.mark.parametrize("append_only", [True, False])
def test_the_sampled_ids_of_twins_are_those_of_their_rows_over_all_turns(append_only: bool) -> None:
    table, group = played(guess(16, 4), append_only)
    rows = [row for i, t in enumerate(group.trajectories) for row in rows_of(group.id, i, t, None)]
    assert len(rows) == (4 if append_only else 15)
    found, _ = with_twins(table, rows, [group], "reference")
    for before, row in zip(rows, found, strict=True):
        assert row.twin is not None
        assert row.twin.tokens[row.twin.sampled].tolist() == before.tokens[before.sampled].tolist()
        assert len(row.twin.tokens) == len(before) + 1
        gone = words(table.codec, row.twin.tokens)  # the solution stands behind the rules, whatever turn the row is of
        assert gone.pop(2) == "11"
        assert gone == words(table.codec, before.tokens)


def test_a_twin_of_other_sampled_ids_is_refused() -> None:
    table, group = played(guess(16, 4))
    [row] = rows_of(group.id, 0, group.trajectories[0], None)
    twin = twin_of(table.codec, row, group.trajectories[0], "11")
    assert replace(row, twin=twin).twin is twin
    wrong = twin.tokens.copy()
    wrong[np.flatnonzero(twin.sampled)[0]] += 1
    with pytest.raises(ValueError, match="the sampled ids of its twin are not its own"):
        replace(row, twin=Twin(wrong, twin.sampled))
    late = np.roll(twin.sampled, 1)
    with pytest.raises(ValueError, match="the sampled ids of its twin are not its own"):
        replace(row, twin=Twin(twin.tokens, late))


def test_a_transcript_that_is_not_what_was_seen_is_refused() -> None:
    table, group = played(guess(16, 4))
    mine = group.trajectories[0]
    first = replace(mine.messages[0], content="lower")
    with pytest.raises(ValueError, match="does not give the prompt of turn 0"):
        told_prompt(table.codec, replace(mine, messages=(first, *mine.messages[1:])), 0, "11")


# --- what the student sees


def test_the_solution_is_in_no_token_and_no_message_of_the_student() -> None:
    """The told word is one that nothing else says, so that a search for its id is a proof."""
    world = replace(guess(16, 4), pieces=(*guess(16, 4).pieces, "sesame"), solution=lambda task, won: "sesame")
    table, group = played(world)
    secret = int(table.codec.reply("sesame")[0])
    rows = [row for i, t in enumerate(group.trajectories) for row in rows_of(group.id, i, t, None)]
    found, _ = with_twins(table, rows, [group], "reference")
    for row in found:
        assert row.twin is not None
        assert secret in row.twin.tokens  # else the search would find nothing anywhere
        assert secret not in row.tokens
    assert [row.tokens.tolist() for row in found] == [row.tokens.tolist() for row in rows]
    assert all("sesame" not in m.content for t in group.trajectories for m in t.messages)
    assert all(secret not in turn.context for t in group.trajectories for turn in t.turns)


# --- whose success


def test_an_own_success_is_never_the_rows_own() -> None:
    _, group = played(guess(16, 4))
    assert [t.score for t in group.trajectories] == [1, 0, 1, 0]
    wins = [group.trajectories[0], group.trajectories[2]]
    assert [other_success(group, i) for i in range(4)] == [wins[1], wins[1], wins[0], wins[0]]
    alone = replace(group, trajectories=(wins[0], *group.trajectories[1:2], group.trajectories[3]))
    assert [other_success(alone, i) for i in range(3)] == [None, wins[0], wins[0]]


def test_a_copy_of_the_own_episode_is_no_other_success() -> None:
    _, group = played(guess(16, 4))
    won, other = group.trajectories[0], group.trajectories[2]
    copies = replace(group, trajectories=(won, replace(won, attempt=1), won))
    assert [other_success(copies, i) for i in range(3)] == [None] * 3
    assert other_success(replace(group, trajectories=(won, won, other)), 0) is other


def test_the_three_sources_of_a_solution() -> None:
    world, seen = guess(16, 4), list[Trajectory | None]()

    def solution(task: Task, won: Trajectory | None) -> str:
        seen.append(won)
        return "own" if won is not None else "reference"

    world = replace(world, solution=solution)
    _, group = played(guess(16, 4))
    losers = replace(group, trajectories=(group.trajectories[1], group.trajectories[3]))
    for given, expected in (
        (group, {"success": ("own", True), "reference": ("reference", False), "either": ("own", True)}),
        (losers, {"success": (None, False), "reference": ("reference", False), "either": ("reference", False)}),
    ):
        assert {
            source: solution_for(world, given, 0, source) for source in ("success", "reference", "either")
        } == expected
    assert seen == [group.trajectories[2], None, group.trajectories[2], None, None]
    assert solution_for(replace(world, solution=None), group, 0, "either") == (None, False)


def test_a_group_without_success_has_no_twin_by_success_and_is_counted() -> None:
    table, group = played(guess(16, 4))
    losers = replace(group, trajectories=(group.trajectories[1], group.trajectories[3]))
    rows = [row for i, t in enumerate(losers.trajectories) for row in rows_of(group.id, i, t, None)]
    found, metrics = with_twins(table, rows, [losers], "success")
    assert [row.twin for row in found] == [None, None]
    assert values(metrics) == {"told_rows": 0.0, "told_successes": None, "told_too_long": 0.0}
    _, metrics = with_twins(table, rows, [losers], "either")
    assert values(metrics) == {"told_rows": 1.0, "told_successes": 0.0, "told_too_long": 0.0}
    rows = [row for i, t in enumerate(group.trajectories) for row in rows_of(group.id, i, t, None)]
    _, metrics = with_twins(table, rows, [group], "either")
    assert values(metrics) == {"told_rows": 1.0, "told_successes": 1.0, "told_too_long": 0.0}


def test_a_twin_that_does_not_fit_into_the_context_is_left_out_and_counted() -> None:
    table, group = played(guess(16, 4))
    rows = [row for i, t in enumerate(group.trajectories) for row in rows_of(group.id, i, t, None)]
    longest = max(map(len, rows))
    tight = replace(table, limits=replace(table.limits, context=longest))
    found, metrics = with_twins(tight, rows, [group], "reference")
    assert [row.twin is None for row in found] == [len(row) == longest for row in rows]
    assert values(metrics)["told_too_long"] == sum(len(row) == longest for row in rows) / len(rows)
    assert 0 < values(metrics)["told_too_long"] < 1


def test_a_plan_of_many_words_is_told_whole() -> None:
    world = craft(tasks=16)
    codec = ChatCodec(tiny(world.pieces, 8, 1, 2, closed=world.closed)[1])
    task = world.split("train")[3]
    assert world.solution is not None
    plan = task.data["plan"]
    opening = asyncio.run(world.env(task, 0).start()).messages
    hinted = next(t for t in world.split("hinted") if t.id == f"{task.id}-hinted")
    seen = asyncio.run(world.env(hinted, 0).start()).messages
    assert seen[-1].content == opening[-1].content + "".join(plan)
    assert len(codec.opening(seen)) == len(codec.opening(opening)) + 2 * len(plan)  # a verb and an item each
