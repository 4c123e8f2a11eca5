"""Groups: members are played side by side, share nothing, and fail alone."""

import asyncio
from typing import Any

import pytest

from strop.algorithms import ALGORITHMS
from strop.core.engine import Sampling
from strop.core.message import Message
from strop.core.seeds import stream_key
from strop.core.task import Env, Step, Task, Verdict
from strop.core.trajectory import Group, Trajectory
from strop.core.world import World
from strop.credit.assign import assign
from strop.credit.outcome import outcome
from strop.engine.scripted import ScriptedEngine
from strop.rollout.group import Table, hash_key, play_group
from strop.rollout.limits import Limits
from strop.rollout.rows import group_rows
from strop.watch.measure import measure_groups
from tests.rollout.worlds import CODEC, Scripted, hang, say, world

LIMITS = Limits(turns=20, turn_tokens=16, tokens=400, context=1000, seconds=0.2)


def engine() -> ScriptedEngine:
    return ScriptedEngine(lambda *_: CODEC.reply("go").tolist(), CODEC.stop_ids)


def group(made: World, members: int, with_engine: ScriptedEngine | None = None) -> Group:
    table = Table(made, CODEC, LIMITS, CODEC.append_only, seed=7)
    playing = play_group(table, Task("a"), members, with_engine or engine(), Sampling(16), "train", 41)
    return asyncio.run(playing)


class Counter(Env):
    """Counts its own calls and says the count; the world keeps nothing."""

    def __init__(self, seed: int) -> None:
        self.calls, self.seed = 0, seed

    async def start(self) -> Step:
        return say("count")

    async def step(self, message: Message) -> Step:
        await asyncio.sleep(0)
        self.calls += 1
        return say(str(self.calls), done=self.calls == 3)

    def artefacts(self) -> dict[str, Any]:
        return {"calls": self.calls, "seed": self.seed}


def test_eight_rollouts_at_once_each_count_from_one() -> None:
    running = {"now": 0, "most": 0}

    class Busy(Counter):
        async def step(self, message: Message) -> Step:
            running["now"] += 1
            running["most"] = max(running.values())
            step = await super().step(message)
            running["now"] -= 1
            return step

    played = group(world(lambda task, seed: Busy(seed)), 8)
    assert [[m.content for m in t.messages if m.role == "user"] for t in played.trajectories] == [
        ["count", "1", "2", "3"]
    ] * 8
    assert running["most"] == 8  # they did run at once, so that shared state would have been seen


def test_a_shared_counter_would_be_seen() -> None:
    """Negative control: one environment for all members counts to more than three."""
    shared = Counter(0)
    played = group(world(lambda task, seed: shared), 4)
    told = [[m.content for m in t.messages if m.role == "user"] for t in played.trajectories]
    assert told != [["count", "1", "2", "3"]] * 4


def test_every_member_has_its_own_seed_session_and_stream() -> None:
    asked = engine()
    played = group(world(lambda task, seed: Counter(seed)), 8, asked)
    assert played.id == "train-000041"
    seeds = [t.artefacts["seed"] for t in played.trajectories]
    assert seeds == [hash_key(stream_key(7, "train", 41, member)[:-1]) for member in range(8)]
    assert len(set(seeds)) == 8
    assert sorted(asked.seeds) == [f"train-000041/{member}" for member in range(8)]
    for member in range(8):
        wanted = [stream_key(7, "train", 41, member, turn) for turn in range(3)]
        assert asked.seeds[f"train-000041/{member}"] == wanted
    assert sorted(asked.ended) == sorted(asked.seeds)


BAD: dict[str, Any] = {
    "start": lambda: Scripted(RuntimeError("no start")),
    "step": lambda: Scripted(say("hi"), say("more"), RuntimeError("no step")),
    "close": lambda: Scripted(say("hi"), Step(done=True), close=RuntimeError("no close")),
    "artefacts": lambda: Scripted(say("hi"), Step(done=True), artefacts=RuntimeError("no artefacts")),
    "construction": None,
}


@pytest.mark.parametrize("kind", BAD)
def test_a_member_that_fails_leaves_the_group_and_nothing_else(kind: str) -> None:
    made: list[Scripted] = []

    def env(task: Task, seed: int) -> Env:
        if len(made) == 2 and BAD[kind] is None:
            made.append(Scripted(None))
            made[-1].closed = 1
            raise RuntimeError("no construction")
        made.append(BAD[kind]() if len(made) == 2 else Scripted(say("hi"), say("more"), Step(done=True)))
        return made[-1]

    asked = engine()
    played = group(world(env, score_by_place(made)), 4, asked)
    errors = [t.error for t in played.trajectories]
    assert errors[2] is not None
    assert f"no {kind}" in errors[2]
    assert errors[:2] + errors[3:] == [None] * 3
    assert [t.end for t in played.trajectories] == ["done", "done", "error", "done"]
    assert [e.closed for e in made] == [1] * 4
    assert sorted(asked.ended) == [f"train-000041/{m}" for m in range(4)]
    # Credit and rows over the three that are left: the mean of 1, 0, 0 and not of 1, 0, x, 0.
    assert played.rewards() == [1.0, 0.0, None, 0.0]
    credits = assign(ALGORITHMS["dr_grpo"].credit, [[outcome(t) for t in played.trajectories]], {})
    found = [None if a is None else a.tolist() for a in credits.advantages[0]]
    assert found == [[1 - 1 / 3] * 6, [-1 / 3] * 6, None, [-1 / 3] * 6]
    rows = group_rows(played, credits.advantages[0])
    assert [row.origin.member for row in rows] == [0, 1, 3]
    metrics = measure_groups(world(env), [played])
    assert (metrics["failed"].value, metrics["unscored"].value) == (0.25, 0.25)
    assert metrics["success"].value == 1 / 3


def score_by_place(made: list[Scripted]) -> Any:
    """1 for the first member, 0 for the others, told by how many were judged before."""
    judged: list[str] = []

    def verify(task: Task, trajectory: Trajectory) -> Verdict:
        judged.append(task.id)
        return Verdict(1.0 if len(judged) == 1 else 0.0)

    return verify


def test_members_that_hang_time_out_alone() -> None:
    made: list[Scripted] = []

    def env(task: Task, seed: int) -> Env:
        made.append(Scripted(say("hi"), hang if len(made) % 2 else Step(done=True)))
        return made[-1]

    played = group(world(env), 4)
    assert [t.end for t in played.trajectories] == ["done", "timeout", "done", "timeout"]
    assert [e.closed for e in made] == [1] * 4


@pytest.mark.parametrize("verdict", [RuntimeError("down"), Verdict(float("nan")), Verdict(None), None])
def test_an_unscored_member_is_in_no_mean_and_never_zero(verdict: Any) -> None:
    asked: list[int] = []

    def verify(task: Task, trajectory: Trajectory) -> Any:
        asked.append(1)
        if len(asked) == 3:
            if isinstance(verdict, BaseException):
                raise verdict
            return verdict
        return Verdict([-1.0, -1.0, 0.0, -0.5][len(asked) - 1])

    played = group(world(lambda *_: Scripted(say("hi"), Step(done=True)), verify), 4)
    assert played.rewards() == [-1.0, -1.0, None, -0.5]
    credits = assign(ALGORITHMS["dr_grpo"].credit, [[outcome(t) for t in played.trajectories]], {})
    got = [None if a is None else round(float(a[0]), 3) for a in credits.advantages[0]]
    assert got == [-0.167, -0.167, None, 0.333]
    metrics = measure_groups(world(lambda *_: Scripted(None)), [played])
    assert metrics["reward"].value == -2.5 / 3
    assert metrics["unscored"].value == 0.25
    assert "success" in metrics
    assert metrics["failed"].value == 0.0


def test_a_group_of_failures_has_no_rewards_and_no_rows() -> None:
    played = group(world(lambda *_: Scripted(RuntimeError("down"))), 3)
    assert played.rewards() == [None] * 3
    credits = assign(ALGORITHMS["dr_grpo"].credit, [[outcome(t) for t in played.trajectories]], {})
    assert group_rows(played, credits.advantages[0]) == []
    assert credits.unscored == 3


def test_a_cancelled_group_ends_its_sessions_and_closes_its_environments() -> None:
    made: list[Scripted] = []

    def env(task: Task, seed: int) -> Env:
        made.append(Scripted(say("hi"), hang))
        return made[-1]

    asked = engine()

    async def cancelled() -> None:
        table = Table(world(env), CODEC, Limits(context=1000), True, 0)
        playing = asyncio.create_task(play_group(table, Task("a"), 3, asked, Sampling(9), "train", 0))
        while [len(e.heard) for e in made] != [1, 1, 1]:
            await asyncio.sleep(0)
        playing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await playing
        await asyncio.sleep(0)

    asyncio.run(cancelled())
    assert [e.closed for e in made] == [1, 1, 1]
    assert sorted(asked.ended) == [f"train-000000/{m}" for m in range(3)]


def test_neighbouring_names_of_streams_give_different_seeds() -> None:
    keys = [stream_key(s, "train", d, m)[:-1] for s in range(4) for d in range(60) for m in range(16)]
    found = [hash_key(key) for key in keys]
    assert len(set(found)) == len(keys)
    assert all(0 <= seed < 2**31 for seed in found)


def test_a_group_that_was_played_alone_is_the_same_beside_others() -> None:
    """Ids, seeds and sessions depend on the draw alone, not on what else is played."""

    async def both() -> tuple[Group, list[Group]]:
        table = Table(world(lambda task, seed: Counter(seed)), CODEC, LIMITS, True, 7)
        alone = await play_group(table, Task("a"), 2, engine(), Sampling(16), "train", 3)
        shared = engine()
        beside = [play_group(table, Task("a"), 2, shared, Sampling(16), "train", d) for d in (2, 3, 4)]
        return alone, list(await asyncio.gather(*beside))

    alone, beside = asyncio.run(both())
    same, other = beside[1], beside[2]
    assert alone.id == same.id
    assert [t.artefacts for t in alone.trajectories] == [t.artefacts for t in same.trajectories]
    assert [t.artefacts for t in alone.trajectories] != [t.artefacts for t in other.trajectories]
