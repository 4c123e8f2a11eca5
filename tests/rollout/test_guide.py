"""Help for a group in which nobody succeeded: who joins, with which tokens, and what it leaves alone."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from random import Random

import numpy as np
import pytest

from strop.core.engine import Sampling
from strop.core.guide import Demonstration, Guide, Hint
from strop.core.message import Message
from strop.core.task import Env, Step, Task, Verdict
from strop.core.trajectory import Group, Trajectory
from strop.core.world import World
from strop.engine.scripted import ScriptedEngine
from strop.rollout.group import Table, play_group
from strop.rollout.guide import TRIES, all_failed, guided
from strop.rollout.limits import Limits
from tests.rollout.worlds import CODEC, say

LIMITS = Limits(turns=2, turn_tokens=4, tokens=8, context=64)
HELP = [Demonstration(), Demonstration(2), Hint(), Hint(2), Hint(keep=True)]


class Word(Env):
    """A word has to be said in the second of two turns."""

    def __init__(self) -> None:
        self.said: list[str] = []

    async def start(self) -> Step:
        return say("say")

    async def step(self, message: Message) -> Step:
        self.said.append(message.content)
        return say("go", done=len(self.said) == 2)

    def artefacts(self) -> dict[str, list[str]]:
        return {"said": list(self.said)}


def verify(task: Task, trajectory: Trajectory) -> Verdict:
    return Verdict(float(trajectory.artefacts["said"][-1:] == [task.data["word"]]))


def made(right: bool = True) -> World:
    def demonstrate(task: Task, stream: Random):  # type: ignore[no-untyped-def]
        return lambda messages: task.data["word"] if right else "z"

    return World(
        "word",
        {"train": [Task("t", {"word": "k"})]},
        env=lambda task, seed: Word(),
        verify=verify,
        demonstrate=demonstrate,
        solution=lambda task, won: "=" + task.data["word"],
    )


def table(world: World) -> Table:
    return Table(world, CODEC, LIMITS, True, 0)


def engine(answers: bool, always: str = "a") -> ScriptedEngine:
    """Says `always`; after an opening that tells the word, it says the word if `answers`."""

    def reply(prompt: Sequence[int], *_: object) -> np.ndarray:
        hinted = CODEC.opening([Message("user", "say=k")]).tolist()
        return CODEC.reply("k" if answers and list(prompt)[: len(hinted)] == hinted else always)

    return ScriptedEngine(reply, CODEC.stop_ids)


def played(guide: Guide, world: World, of: ScriptedEngine, members: int = 3) -> Group:
    async def go() -> Group:
        task, sampling = world.split("train")[0], Sampling(4)
        playing = play_group(table(world), task, members, of, sampling, "train", 5)
        return await guided(table(world), playing, guide, of, sampling, 5)

    return asyncio.run(go())


@pytest.mark.parametrize("guide", HELP, ids=str)
def test_a_group_of_failures_becomes_mixed_and_its_own_members_stay(guide: Guide) -> None:
    group, alone = played(guide, made(), engine(True)), played(Demonstration(), made(right=False), engine(False))
    assert all_failed(alone) and alone.own is alone
    assert [t.score for t in group.trajectories] == [0.0] * 3 + [1.0] * guide.count
    assert [bool(t.guided) for t in group.trajectories] == [False] * 3 + [True] * guide.count
    assert [t.messages for t in group.own.trajectories] == [t.messages for t in alone.trajectories]


@pytest.mark.parametrize("guide", HELP, ids=str)
def test_a_group_with_a_success_is_left_alone(guide: Guide) -> None:
    group = played(guide, made(), engine(False, always="k"))
    assert len(group.trajectories) == 3 and not any(t.guided for t in group.trajectories)


@pytest.mark.parametrize("guide", [Demonstration(2), Hint(2), Hint(2, keep=True)], ids=str)
def test_help_that_fails_does_not_join(guide: Guide) -> None:
    world, of = made(right=False), engine(False)
    group = played(guide, world, of)
    assert len(group.trajectories) == 3
    assert TRIES > 1


def test_nobody_sampled_the_tokens_of_a_demonstration() -> None:
    helped = played(Demonstration(), made(), engine(False)).trajectories[-1]
    assert helped.guided == "demonstration"
    for turn in helped.turns:
        assert np.isnan(turn.completion.logprobs).all() and (turn.completion.versions == -1).all()


def test_a_hint_is_taken_out_again_and_the_replies_stay_behind_the_plain_opening() -> None:
    kept, taken = (played(hint, made(), engine(True)).trajectories[-1] for hint in (Hint(keep=True), Hint()))
    own = played(Hint(), made(), engine(True)).trajectories[0]
    assert kept.messages[0].content == "say=k" and taken.messages[0].content == "say"
    assert taken.turns[0].context.tolist() == own.turns[0].context.tolist() != kept.turns[0].context.tolist()
    assert [t.completion.tokens.tolist() for t in taken.turns] == [t.completion.tokens.tolist() for t in kept.turns]
    assert taken.turns[1].context.tolist() == kept.turns[1].context.tolist()
    assert all(np.isnan(t.completion.logprobs).all() and (t.completion.versions == -1).all() for t in taken.turns)
    assert not any(np.isnan(t.completion.logprobs).any() for t in kept.turns)


def test_a_task_without_a_solution_gets_no_hint() -> None:
    world = replace(made(), solution=lambda task, won: None)
    assert len(played(Hint(), world, engine(True)).trajectories) == 3


def test_unscored_members_are_no_failures() -> None:
    unscored = Trajectory(Task("t"), (), np.zeros(0, np.int32), "done", (), verdict=Verdict(None, invalid="broke"))
    assert not all_failed(Group("g", Task("t"), (unscored, unscored)))
    assert all_failed(Group("g", Task("t"), (unscored, unscored.judged(Verdict(0.0)))))
