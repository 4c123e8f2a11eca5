"""Groups that are sampled while others are learned from: the bound on lag, the order, the ledger, and faults."""

import asyncio
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import pytest

from strop.core.algorithm import Admit
from strop.core.engine import Sampling
from strop.core.errors import RunError
from strop.core.faults import Drop, Failed, Partial, Refill, Retry
from strop.core.message import Message
from strop.core.seeds import draw_order
from strop.core.task import Env, Step, Task, Verdict
from strop.core.trajectory import Group, Trajectory
from strop.engine.scripted import ScriptedEngine
from strop.loop.batch import Batch, Ledger, Rollouts
from strop.rollout.group import Table, play_group
from strop.rollout.limits import Limits
from strop.watch.run_folder import RunFolder
from tests.loop.clock import jumping
from tests.loop.runs import outcome, resume, start
from tests.rollout.worlds import CODEC, Scripted, say, world

LIMITS = Limits(turns=3, turn_tokens=4, tokens=12, context=200, seconds=1e6, step_seconds=1e6)
REPLY = CODEC.reply("a")


class Slow(Env):
    """Two answers, each after a time of its own."""

    def __init__(self, waits: tuple[float, float]) -> None:
        self.waits, self.turn = waits, 0

    async def start(self) -> Step:
        return say("hi")

    async def step(self, message: Message) -> Step:
        await asyncio.sleep(self.waits[self.turn])
        self.turn += 1
        return say("more", done=self.turn == 2)

    def artefacts(self) -> dict[str, Any]:
        return {"score": self.waits[0] > 1}


def judged(task: Task, trajectory: Trajectory) -> Verdict:
    return Verdict(float(trajectory.artefacts["score"]))


def waits(seed: int) -> tuple[float, float]:
    """Lognormal waits, sigma 1, median 1."""
    return tuple(np.random.default_rng(seed).lognormal(0, 1, 2))  # type: ignore[return-value]


def rollouts(
    groups: int, members: int, lag: int, steps: int, admit: Admit = "all", env: Callable[[Task, int], Env] | None = None
) -> Rollouts:
    tasks = [Task(f"t{i}") for i in range(50)]
    made = world(env or (lambda _, seed: Slow(waits(seed))), judged, tasks)
    parts: Any = SimpleNamespace(
        world=made,
        table=Table(made, CODEC, LIMITS, True, 0),
        engine=ScriptedEngine(lambda *_: REPLY, CODEC.stop_ids),
        sampling=Sampling(4),
    )
    stage: Any = SimpleNamespace(
        split="train", groups=groups, group_size=members, guide=None, algorithm=SimpleNamespace(admit=admit)
    )
    return Rollouts(parts, stage, Ledger(), steps, lag, 1.0)


@dataclass
class Seen:
    lags: list[int]
    drawn: list[int]
    ledger: Ledger
    trained: list[Group]


def train(given: Rollouts, steps: int, seed: int) -> Seen:
    """The learner's side: learning takes a random time, and gives a new version."""
    engine: ScriptedEngine = given.parts.engine  # type: ignore[assignment]
    rng = np.random.default_rng(seed)

    async def go() -> Seen:
        seen = Seen([], [], given.ledger, [])
        for step in range(steps):
            batch = await given.batch()
            assert batch.failure is None
            await asyncio.sleep(rng.lognormal(0, 1))
            for group in batch.groups:
                versions = [v for t in group.trajectories for turn in t.turns for v in turn.completion.versions]
                seen.lags.append(step - min(versions))
            seen.drawn += sorted(int(g.id.rsplit("-", 1)[1]) for g in (*batch.groups, *batch.rejected))
            seen.trained += batch.groups
            await engine.load(None, step + 1)
            given.release()
        assert not given.pending
        await given.close()
        return seen

    return jumping(go())


def one_run(seed: int, kind: type[Rollouts] = Rollouts) -> tuple[int, Seen]:
    rng = np.random.default_rng((7, seed))
    lag, groups = int(rng.integers(0, 5)), int(rng.integers(1, 6))
    made = rollouts(groups, 2, lag, 10, "mixed" if seed % 2 else "all")
    made.__class__ = kind
    return lag, train(made, 10, seed)


def test_no_group_is_ever_older_than_the_lag_that_was_asked_for() -> None:
    reached = Counter[int]()
    for seed in range(200):
        lag, seen = one_run(seed)
        assert max(seen.lags) <= lag
        reached[lag] += max(seen.lags) == lag
        assert seen.drawn == list(range(len(seen.drawn)))  # consumed in launch order, nothing lost, nothing twice
        assert seen.ledger.drawn == seen.ledger.settled == len(seen.drawn)  # and nothing launched in vain
        assert seen.ledger.trained == len(seen.trained)
    assert all(reached[lag] for lag in range(5))  # the bound is not idle


def test_the_bound_fails_where_groups_in_hand_are_not_counted() -> None:
    class Forgetful(Rollouts):
        async def batch(self) -> Batch:
            batch = await super().batch()
            self.held = 0
            self.launch()  # while its batch is being learned from
            return batch

    assert any(max(seen.lags) > lag for lag, seen in (one_run(seed, Forgetful) for seed in range(20)))


def test_slow_tasks_are_trained_in_the_proportion_in_which_they_were_drawn() -> None:
    finished: list[str] = []

    class Timed(Slow):
        def __init__(self, task: Task) -> None:
            self.task = task
            super().__init__((30.0, 30.0) if int(task.id[1:]) % 2 else (0.1, 0.1))

        async def close(self) -> None:
            finished.append(self.task.id)

    made = rollouts(4, 2, 3, 25, env=lambda task, _: Timed(task))
    seen = train(made, 25, 1)
    slow = [int(group.task.id[1:]) % 2 for group in seen.trained]
    drawn = [i % 2 for i in (int(made.tasks[n].id[1:]) for n in order(100))]
    assert slow == drawn
    assert abs(np.mean(slow) - 0.5) < 0.1
    half = [int(task[1:]) % 2 for task in finished[: len(finished) // 2]]
    assert np.mean(half) < np.mean(slow)  # who trains on what is finished first, trains on fewer slow ones


def order(n: int) -> list[int]:
    return [draw_order(0, i, 50) for i in range(n)]


def test_without_lag_nothing_is_launched_before_the_weights_are_published() -> None:
    made = rollouts(3, 2, 0, 5)

    async def go() -> None:
        await made.batch()
        assert made.ledger.drawn == 3
        made.release()
        assert made.ledger.drawn == 3 and not made.pending

    jumping(go())


def test_a_hopeless_batch_ends_with_its_reason_and_leaves_nobody_at_play() -> None:
    made = rollouts(2, 2, 3, 5, env=lambda *_: Scripted(RuntimeError("no such place")))

    async def go() -> str | None:
        batch = await made.batch()
        await made.close()
        assert len(asyncio.all_tasks()) == 1
        return batch.failure

    failure = jumping(go())
    assert failure is not None and "no such place" in failure
    assert made.ledger.failed == made.ledger.settled and made.ledger.drawn > made.ledger.settled  # the rest is pending


def test_an_episode_that_swallows_its_cancellation_is_left_behind() -> None:
    freed = asyncio.Event()
    deaf: list[Env] = []

    class Deaf(Env):
        async def start(self) -> Step:
            deaf.append(self)
            while not freed.is_set():
                try:
                    await freed.wait()
                except asyncio.CancelledError:
                    continue
            deaf.remove(self)
            return say("hi", done=True)

        async def step(self, message: Message) -> Step:
            raise AssertionError

    made = world(lambda *_: Deaf())
    table = Table(made, CODEC, replace(LIMITS, seconds=3.0), True, 0)
    engine = ScriptedEngine(lambda *_: REPLY, CODEC.stop_ids)

    async def go() -> Group:
        loop = asyncio.get_running_loop()
        group = await play_group(table, Task("a"), 2, engine, Sampling(4), "train", 0)
        assert loop.time() < 30
        abandoned = asyncio.all_tasks() - {asyncio.current_task()}
        assert (
            not abandoned and len(deaf) == 2
        )  # still at it, and neither we nor the end of `asyncio.run` waits for them
        freed.set()
        while deaf:
            await asyncio.sleep(0)
        return group

    group = jumping(go())
    assert all("did not stop" in (t.error or "") and t.verdict is None for t in group.trajectories)


# --- failed members


class Flaky(Env):
    """Fails the first `times` times that this member is played."""

    played: ClassVar[Counter[int]] = Counter()

    def __init__(self, seed: int, times: dict[int, int]) -> None:
        self.fails = Flaky.played[seed] < times.get(seed, 0)
        Flaky.played[seed] += 1

    async def start(self) -> Step:
        if self.fails:
            raise ConnectionError("the tool server is gone")
        return say("hi")

    async def step(self, message: Message) -> Step:
        return Step(done=True)


def flaky(rule: Failed, times: tuple[int, ...]) -> tuple[Group, ScriptedEngine]:
    """A group of four whose members fail so many times each."""
    Flaky.played = Counter()
    seeds: list[int] = []
    fails: dict[int, int] = {}

    def env(task: Task, seed: int) -> Env:
        if seed not in seeds:
            seeds.append(seed)
            fails[seed] = times[len(seeds) - 1] if len(seeds) <= len(times) else 0
        return Flaky(seed, fails)

    engine = ScriptedEngine(lambda *_: REPLY, CODEC.stop_ids)
    table = Table(world(env), CODEC, LIMITS, True, 0, rule)
    return jumping(play_group(table, Task("a"), 4, engine, Sampling(4), "train", 0)), engine


def test_a_retried_member_has_the_streams_of_its_first_attempt_and_a_session_of_its_own() -> None:
    group, engine = flaky(Retry(2), (0, 1, 2, 5))
    assert [t.attempt for t in group.trajectories] == [0, 1, 2, 2]
    assert [t.error is None for t in group.trajectories] == [True, True, True, False]
    calm, control = flaky(Retry(2), ())
    assert engine.seeds["train-000000/1#1"] == control.seeds["train-000000/1"]
    assert "train-000000/1" not in engine.seeds
    assert all(t.error is None and t.attempt == 0 for t in calm.trajectories)


def test_a_failed_member_is_refilled_by_one_with_streams_of_its_own() -> None:
    group, engine = flaky(Refill(2), (0, 1, 1, 1))
    assert [t.error is None for t in group.trajectories] == [True, False, False, False, True, True]
    assert {"train-000000/4", "train-000000/5"} <= set(engine.seeds)
    group, _ = flaky(Refill(3), (1, 0, 0, 0, 1, 1))
    assert [t.error is None for t in group.trajectories] == [False, True, True, True, False, False, True]


def test_a_group_goes_on_without_failed_members_while_two_are_left_or_is_dropped() -> None:
    def kept(rule: Failed, times: tuple[int, ...]) -> tuple[int, int]:
        Flaky.played = Counter()
        order: list[int] = []

        def env(task: Task, seed: int) -> Env:
            order.append(seed)
            first = {seed: times[i] for i, seed in enumerate(order[:4])}
            return Flaky(seed, first)

        made = rollouts(1, 4, 0, 1, env=env)
        made.parts.table = replace(made.parts.table, failed=rule, world=replace(made.parts.world, verify=won))  # type: ignore[misc]
        jumping(made.batch())
        return made.ledger.trained, made.ledger.failed

    assert kept(Partial(), (1, 1, 0, 0)) == (1, 0)
    assert kept(Partial(), (1, 1, 1, 0)) == (1, 1)
    assert kept(Drop(), (1, 0, 0, 0)) == (1, 1)
    assert kept(Drop(), (0, 0, 0, 0)) == (1, 0)


def won(task: Task, trajectory: Trajectory) -> Verdict:
    return Verdict(1.0)


def test_a_late_answer_of_the_environment_changes_nothing() -> None:
    """The call is given up after its limit; that it answers later is seen by nobody."""
    answered: list[str] = []

    async def late(message: Message) -> Step:
        try:
            await asyncio.sleep(50)
        finally:
            answered.append(message.content)
        return Step(done=True)

    def group(seconds: float, rule: Failed) -> Group:
        table = Table(
            world(lambda *_: Scripted(say("hi"), late)), CODEC, replace(LIMITS, step_seconds=seconds), True, 0, rule
        )
        engine = ScriptedEngine(lambda *_: REPLY, CODEC.stop_ids)
        return jumping(play_group(table, Task("a"), 2, engine, Sampling(4), "train", 0))

    given_up = group(10, Retry(1))
    assert all("no answer within 10 s" in (t.error or "") and t.attempt == 1 for t in given_up.trajectories)
    assert all(t.verdict is None for t in given_up.trajectories)
    assert all(t.error is None and t.end == "done" for t in group(60, Retry(1)).trajectories)


def test_an_answer_that_comes_after_a_swallowed_cancellation_comes_too_late() -> None:
    async def deaf(message: Message) -> Step:
        try:
            await asyncio.sleep(50)
        except asyncio.CancelledError:
            await asyncio.sleep(1)
        return Step(done=True)

    def played(seconds: float) -> Trajectory:
        table = Table(
            world(lambda *_: Scripted(say("hi"), deaf)), CODEC, replace(LIMITS, step_seconds=seconds), True, 0
        )
        engine = ScriptedEngine(lambda *_: REPLY, CODEC.stop_ids)
        return jumping(play_group(table, Task("a"), 1, engine, Sampling(4), "train", 0)).trajectories[0]

    assert "no answer within 10 s" in (played(10).error or "")
    assert played(60).error is None


def test_a_start_that_hangs_has_failed_after_the_limit_of_one_call() -> None:
    async def hangs(message: Message) -> Step:
        await asyncio.sleep(50)
        return say("hi", done=True)

    def played(seconds: float) -> Trajectory:
        table = Table(world(lambda *_: Scripted(hangs)), CODEC, replace(LIMITS, step_seconds=seconds), True, 0)
        engine = ScriptedEngine(lambda *_: REPLY, CODEC.stop_ids)
        return jumping(play_group(table, Task("a"), 1, engine, Sampling(4), "train", 0)).trajectories[0]

    assert "no answer within 10 s" in (played(10).error or "")
    assert played(60).error is None


def test_a_cancellation_that_a_world_lets_escape_is_the_episodes_error() -> None:
    async def leaky(message: Message) -> Step:
        inner = asyncio.ensure_future(asyncio.sleep(50))
        inner.cancel()
        await inner
        raise AssertionError

    table = Table(world(lambda *_: Scripted(say("hi"), leaky)), CODEC, LIMITS, True, 0)
    engine = ScriptedEngine(lambda *_: REPLY, CODEC.stop_ids)
    group = jumping(play_group(table, Task("a"), 2, engine, Sampling(4), "train", 0))
    assert [t.error for t in group.trajectories] == ["the episode was cancelled from within"] * 2


# --- the whole loop

LAGGING = {"max_lag": 2, "stages.1.steps": 8}


def drawn(path: Path) -> list[tuple[str, int]]:
    return sorted((e["group"], e["member"]) for e in RunFolder.open(path).episodes() if e["stage"] == "reinforce")


def test_a_run_with_lag_trains_every_drawn_task_once_also_when_it_is_interrupted(tmp_path: Path) -> None:
    start(tmp_path / "straight", LAGGING)
    start(tmp_path / "stopped", LAGGING, until=7)
    pending = [e for e in RunFolder.open(tmp_path / "stopped").events() if e.get("event") == "pending"]
    assert pending and pending[-1]["pending"] > 0 and pending[-1]["drawn"] > pending[-1]["trained"]
    resume(tmp_path / "stopped")
    wanted = [(f"train-{n:06d}", m) for n in range(8 * 4) for m in range(4)]
    assert drawn(tmp_path / "straight") == wanted
    assert drawn(tmp_path / "stopped") == wanted
    for name in ("straight", "stopped"):
        lags = [m["lag_max"] for m in RunFolder.open(tmp_path / name).metrics() if m["stage"] == "reinforce"]
        assert max(lags) <= 2 and max(lags) > 0


def test_a_learner_that_raises_ends_the_run_with_its_own_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from strop.learn.learner import LocalLearner

    learn = LocalLearner.step

    def broken(self: LocalLearner, rows: Any) -> Any:
        if self.steps == 2 and self.algorithm is not None and self.algorithm.data == "on_policy":
            raise MemoryError("the learner is out of memory")
        return learn(self, rows)

    monkeypatch.setattr(LocalLearner, "step", broken)
    with pytest.raises(MemoryError, match="out of memory") as raised:
        start(tmp_path / "run", LAGGING)
    assert any(frame.name == "broken" for frame in raised.traceback)
    pending = [e for e in RunFolder.open(tmp_path / "run").events() if e.get("event") == "pending"]
    assert pending[-1]["pending"] > 0


def test_failing_rollouts_end_a_run_with_lag_as_they_do_without(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from strop.envs.guess import Guess

    async def broken(self: Any) -> Step:
        raise OSError("no more processes")

    start(tmp_path / "run", {**LAGGING, "rollout.max_failures": 0.2}, until=4)
    monkeypatch.setattr(Guess, "start", broken)
    with pytest.raises(RunError, match="no more processes"):
        resume(tmp_path / "run")


def test_two_runs_without_lag_are_equal_bit_for_bit_and_lag_changes_them(tmp_path: Path) -> None:
    start(tmp_path / "a", {"stages.1.steps": 8})
    start(tmp_path / "b", {"stages.1.steps": 8})
    start(tmp_path / "c", LAGGING)
    assert outcome(tmp_path / "a").tensors == outcome(tmp_path / "b").tensors
    assert outcome(tmp_path / "a").tensors != outcome(tmp_path / "c").tensors
    assert drawn(tmp_path / "a") == drawn(tmp_path / "c")
