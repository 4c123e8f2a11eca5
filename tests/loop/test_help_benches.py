"""What the benches of help and of exposure force, count and choose."""

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from benchmarks.allfail import TASKS, chosen, hard, quarters
from benchmarks.exposure import PLACES, forced, guess_moves, no_edit, repair_moves, ruled_out
from strop.core.message import Message
from strop.core.seeds import python_random
from strop.core.task import Task
from strop.core.trajectory import Trajectory
from strop.core.world import World
from strop.envs.craft import craft
from strop.envs.guess import guess
from strop.envs.repair.world import repair
from strop.rollout.episode import Agent, play, player_agent
from strop.rollout.limits import Limits
from tests.rollout.worlds import CODEC

LIMITS = Limits(turns=6, turn_tokens=80, tokens=400, context=4000)


def halver(messages: Sequence[Message]) -> str:
    """The middle of what the answers leave."""
    low, high = 1, 16
    for said, answer in zip(messages[1::2], messages[2::2], strict=True):
        number = int(said.content)
        low, high = (max(low, number + 1), high) if answer.content == "higher" else (low, min(high, number - 1))
    return str((low + high) // 2)


def played(world: World, task: Task, first: Sequence[str], then: Agent) -> Trajectory:
    return asyncio.run(play(world.env(task, 0), task, forced(first, CODEC, then), CODEC, LIMITS, True))


@pytest.mark.parametrize("name", ["free", "right", "wrong"])
def test_halving_on_from_a_forced_move_wins_what_is_best_from_there(name: str) -> None:
    world, won = guess(), []
    for task in world.split("train"):
        first = guess_moves(task, name)
        if first is None:
            continue
        got = played(world, task, first, player_agent(halver, CODEC))
        assert [m.content for m in got.messages if m.role == "assistant"][: len(first)] == list(first)
        assert not ruled_out(got, len(first))
        won.append(task.data["secret"] in got.artefacts["guesses"])
    assert np.mean(won) == PLACES["guess"].best[name]


def test_a_forced_reply_was_sampled_by_nobody_and_the_agent_sees_it_in_its_prompt() -> None:
    world, seen = guess(), []
    scripted = player_agent(lambda messages: "12", CODEC)

    async def then(prompt, messages, turn, most):  # type: ignore[no-untyped-def]
        seen.append((turn, prompt.tolist()))
        return await scripted(prompt, messages, turn, most)

    task = world.split("train")[11]
    got = played(world, task, ("8", "2"), then)
    ids = [i for turn in got.turns[:2] for i in (*turn.context, *turn.completion.tokens)]
    assert seen == [(2, [*ids, *got.turns[2].context])]
    assert all(np.isnan(turn.completion.logprobs).all() for turn in got.turns[:2])


def test_a_guess_that_the_answers_rule_out_is_astray_only_after_the_forced_ones() -> None:
    world = guess()
    task = world.split("train")[15]

    def after(*guesses: str) -> Trajectory:
        said = iter(guesses)
        return played(world, task, ("8", "2"), player_agent(lambda messages: next(said), CODEC))

    assert ruled_out(after("9", "3"), 2) and ruled_out(after("x", "9"), 2)
    assert not ruled_out(after("9", "10"), 2) and ruled_out(after("9", "10"), 1)


def test_a_wrong_fix_is_forced_after_which_the_task_can_still_be_won_or_lost() -> None:
    world = repair(tasks=1)
    task = world.split("eval")[0]
    fix = f"edit {task.data['line']} {task.data['fix']}"

    async def judged(*then: str) -> tuple[float | None, bool]:
        said, first = iter(then), repair_moves(task, "wrong")
        assert first is not None
        agent = forced(first, CODEC, player_agent(lambda messages: next(said), CODEC))
        got = await play(world.env(task, 0), task, agent, CODEC, LIMITS, True)
        assert got.error is None
        return (await world.verify(task, got)).score, no_edit(got, 2)  # type: ignore[misc]

    assert asyncio.run(judged(fix, "submit")) == (1.0, False)
    assert asyncio.run(judged("test", "submit")) == (0.0, True)


def test_the_hard_world_has_the_tasks_alone_that_were_never_solved_and_are_long_enough(tmp_path: Path) -> None:
    every = craft(tasks=TASKS).split("train")
    counts = {task.id: n % 2 for n, task in enumerate(every)}
    (tmp_path / "counts.json").write_text(json.dumps(counts))
    for least in (2, 7):
        world = hard(str(chosen(tmp_path, least, 10) / "ids.json"))
        assert list(world.split("train")) == [t for t in every[::2] if t.data["shortest"] >= least]
        assert world.split("eval") == world.split("train")


def test_the_player_of_the_hard_world_is_as_good_as_asked(tmp_path: Path) -> None:
    task = craft(tasks=TASKS).split("train")[6]
    (tmp_path / "ids.json").write_text(json.dumps([task.id]))
    said = {}
    for skill in (0.0, 1.0):
        world = hard(str(tmp_path / "ids.json"), skill)
        assert world.demonstrate is not None
        said[skill] = [world.demonstrate(task, python_random((n,)))([]) == task.data["plan"][0] for n in range(20)]
    assert all(said[1.0]) and not all(said[0.0])


def test_quarters_are_of_the_reinforcement_alone_and_count_mixed_groups() -> None:
    def step(number: int, stage: str, same: float) -> dict[str, object]:
        return {
            "step": number,
            "stage": stage,
            "zero_variance_groups": same,
            "all_fail_groups": same,
            "engine_tokens": 10**number,
        }

    start: dict[str, object] = {"step": 0, "stage": "start"}
    steps = [start, step(1, "warm_start", 0.0), *(step(n, "reinforce", 1.0) for n in range(2, 9))]
    steps.append(step(9, "reinforce", 0.25) | {"guided_groups": 0.5})
    steps[-2] = steps[-2] | {"zero_variance_groups": 0.75}
    found = quarters(steps)
    assert found["steps"] == 8 and found["until"] == sum(10**n for n in range(1, 8))
    assert quarters(steps[:6])["until"] == sum(10**n for n in range(1, 6))  # no mixed group
    assert found["first"] == {"mixed": 0.0, "all_fail": 1.0, "helped": 0.0}
    assert found["last"] == {"mixed": 0.5, "all_fail": 0.625, "helped": 0.25}
