"""The loop: what a step logs, when a run stops, what is kept, and that something is learned."""

import asyncio
import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import strop.loop.lesson as lessons
from strop.core.errors import RunError
from strop.core.metrics import wilson
from strop.core.task import Env, Task, Verdict
from strop.core.trajectory import Group, Trajectory
from strop.core.world import World
from strop.credit.assign import Credits, assign
from strop.envs.guess import verify as judge_guess
from strop.learn import checkpoint
from strop.loop.assemble import assemble
from strop.loop.preflight import Preflight, read
from strop.loop.train import StepDone, Training
from strop.watch.run_folder import RunFolder
from tests.loop.runs import drive, outcome, planned, start
from tests.rollout.worlds import Scripted, say


def train(
    path: Path, changes: Mapping[str, Any] | None = None, world: Callable[[World], World] = lambda w: w
) -> Training:
    """A run to its end; `world` changes the world of the plan."""
    plan, made = planned(changes)
    folder = RunFolder.create(path)
    training = Training(plan, assemble(plan, world(made)), folder)
    drive(training, folder, None, lambda: False)
    return training


def steps(path: Path) -> list[Mapping[str, Any]]:
    return [record for record in RunFolder.open(path).metrics() if record["stage"] != "start"]


# --- stale data


def test_data_of_unpublished_weights_is_stale_and_says_so(tmp_path: Path) -> None:
    start(tmp_path / "run", {"algorithm.base": "grpo", "stages.1.publish_every": 2})
    found = steps(tmp_path / "run")[4:]
    assert [r["lag"] for r in found] == [0.0, 1.0, 0.0, 1.0]
    assert [r["log_ratio_abs_max"] < 1e-5 for r in found] == [True, False, True, False]
    assert all(abs(r["ratio"] - 1) > 1e-4 for r in found[1::2])


def test_data_of_the_published_weights_has_ratio_one(tmp_path: Path) -> None:
    start(tmp_path / "run", {"algorithm.base": "grpo"})
    found = steps(tmp_path / "run")[4:]
    assert [r["lag"] for r in found] == [0.0] * 4
    assert max(r["log_ratio_abs_max"] for r in found) < 1e-5
    assert min(r["gradient_norm"] for r in found) > 0


def test_a_second_pass_over_a_batch_is_off_policy(tmp_path: Path) -> None:
    start(tmp_path / "run", {"algorithm.base": "grpo", "learner.epochs": 2})
    assert all(r["log_ratio_abs_max"] > 1e-4 for r in steps(tmp_path / "run")[4:])


def test_the_versions_of_a_record_are_those_that_sampled_it(tmp_path: Path) -> None:
    start(tmp_path / "run", {"algorithm.base": "grpo", "stages.1.publish_every": 3})
    versions: dict[int, set[int]] = {}
    for record in RunFolder.open(tmp_path / "run").episodes():
        for turn in record["turns"]:
            versions.setdefault(record["step"], set()).update(turn["versions"])
    assert versions == {1: {-1}, 2: {-1}, 3: {-1}, 4: {-1}, 5: {4}, 6: {4}, 7: {4}, 8: {7}}


# --- steps that teach nothing

PLAIN: dict[str, Any] = {"algorithm": {"base": "dr_grpo"}}


def last_steps(path: Path, changes: Mapping[str, Any]) -> list[StepDone]:
    return [event for event in start(path, changes) if isinstance(event, StepDone)]


def test_a_step_of_equal_rewards_is_a_step_and_says_so(tmp_path: Path) -> None:
    done = last_steps(tmp_path / "run", {**PLAIN, "stages.0.steps": 0, "env": "tests.loop.hopeless:hopeless"})
    assert [event.sentence for event in done] == ["the rewards taught nothing: all groups have equal rewards"] * 4
    found = steps(tmp_path / "run")
    assert [r["step"] for r in found] == [1, 2, 3, 4]
    assert [r["gradient_norm"] for r in found] == [0.0] * 4
    assert [r["zero_variance_groups"] for r in found] == [1.0] * 4
    assert [r["nonzero_advantage"] for r in found] == [0.0] * 4


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"stages.1.lr": 0.0}, "nothing was learned: the learning rate is 0"),
        ({}, None),
    ],
)
def test_the_reason_is_the_true_one(changes: dict[str, Any], sentence: str | None, tmp_path: Path) -> None:
    done = last_steps(tmp_path / "run", {**PLAIN, **changes})
    assert done[-4].sentence == sentence


# --- non-finite


def poison(monkeypatch: pytest.MonkeyPatch, at: range) -> None:
    """NaN in one row's advantage at some steps of the run."""
    count = iter(range(1, 1000))

    def poisoned(*args: Any) -> Credits:
        credits = assign(*args)
        if next(count) in at:
            given = next(a for group in credits.advantages for a in group if a is not None)
            given[0] = math.nan
        return credits

    monkeypatch.setattr(lessons, "assign", poisoned)


def test_one_step_of_nan_is_skipped_with_weights_and_optimizer_untouched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    poison(monkeypatch, range(6, 7))
    start(tmp_path / "run", {"keep.steps": 1, "keep.last": 20, "keep.updates": 1})
    kept = [checkpoint.load(tmp_path / f"run/checkpoints/step-{n:08d}") for n in (5, 6, 7)]
    for group in ("model", "optimizer"):
        before, after, later = (saved.tensors[group] for saved in kept)
        assert all(torch.equal(before[name], after[name]) for name in before)  # type: ignore[arg-type]
        assert not all(torch.equal(after[name], later[name]) for name in after)  # type: ignore[arg-type]
    found = {r["step"]: r for r in steps(tmp_path / "run")}
    assert [found[n]["skipped_updates"] for n in (5, 6, 7)] == [0.0, 1.0, 0.0]
    assert found[7]["learning_rate"] < found[5]["learning_rate"]  # a skipped step is a step of the schedule
    folder = RunFolder.open(tmp_path / "run")
    assert [n for n, _ in folder.updates()] == [6, 8]  # the rows of the bad step stay
    assert np.isnan(folder.update(6)["advantage"]).sum() == 1
    assert {"step": 6, "event": "skipped_updates", "count": 1, "reason": "non-finite"} in list(folder.events())


def test_a_streak_of_nan_stops_the_run_with_finite_weights_and_the_good_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    poison(monkeypatch, range(7, 1000))
    with pytest.raises(RunError, match="5 steps in a row gave no finite gradient"):
        start(tmp_path / "run", {"stages.1.steps": 20, "keep.steps": 1, "keep.last": 20})
    assert [r["step"] for r in steps(tmp_path / "run")] == list(range(1, 12))
    good, last = (checkpoint.load(tmp_path / f"run/checkpoints/step-{n:08d}") for n in (6, 11))
    for name, tensor in last.tensors["model"].items():
        assert torch.isfinite(tensor).all()  # type: ignore[arg-type]
        assert torch.equal(tensor, good.tensors["model"][name])  # type: ignore[arg-type]


def test_a_streak_that_is_broken_does_not_stop_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    count = iter(range(1, 1000))

    def poisoned(*args: Any) -> Credits:
        credits = assign(*args)
        if (n := next(count)) > 4 and n % 5:
            next(a for group in credits.advantages for a in group if a is not None)[0] = math.nan
        return credits

    monkeypatch.setattr(lessons, "assign", poisoned)
    start(tmp_path / "run", {"stages.1.steps": 11})
    assert len(steps(tmp_path / "run")) == 15


# --- failures


def failing(share: Callable[[int], bool], kind: str) -> Callable[[World], World]:
    """The world with an environment or a verifier that fails for some episodes, told by their running number."""
    count = iter(range(10**6))

    def change(world: World) -> World:
        def env(task: Task, seed: int) -> Env:
            if kind == "env" and share(next(count)):
                return Scripted(say("go"), ConnectionError("the server is down"))
            return world.env(task, seed)

        def verify(task: Task, trajectory: Trajectory) -> Verdict:
            if kind == "verify" and share(next(count)):
                raise ConnectionError("the judge is down")
            return judge_guess(task, trajectory)

        return replace(world, env=env, verify=verify, measures=None)

    return change


QUIET = {"preflight.tasks": 0, "stages.0.steps": 1, "evaluate.every": 0}


def test_a_few_failures_are_counted_and_left_out(tmp_path: Path) -> None:
    training = train(tmp_path / "run", QUIET, failing(lambda n: n % 5 == 0, "env"))
    found = steps(tmp_path / "run")
    assert len(found) == 5
    for record in found[1:]:
        assert 0 < record["failed"] <= 0.25
        assert record["failed"] == record["unscored"] == record["end_error"]
        assert record["trained_rows"] == 16 * (1 - record["failed"])
    assert training.position.ledger.drawn == 16
    records = list(RunFolder.open(tmp_path / "run").episodes())
    assert {r["error"] for r in records} == {None, "ConnectionError: the server is down"}
    assert [r["score"] for r in records if r["error"]] == [None] * sum(bool(r["error"]) for r in records)


def test_too_many_failures_stop_the_run_and_name_the_first(tmp_path: Path) -> None:
    with pytest.raises(
        RunError, match=r"12 of 16 rollouts of a batch failed .*First error: ConnectionError: the server is down"
    ):
        train(tmp_path / "run", QUIET, failing(lambda n: n > 40 and n % 4 != 0, "env"))
    assert [r["step"] for r in steps(tmp_path / "run")] == [1]
    assert {r["step"] for r in RunFolder.open(tmp_path / "run").episodes()} == {1, 2}  # all that was played is there


def test_a_share_that_is_allowed_does_not_stop_the_run(tmp_path: Path) -> None:
    train(tmp_path / "run", {**QUIET, "rollout.max_failures": 0.9}, failing(lambda n: n > 40 and n % 4 > 1, "env"))
    assert len(steps(tmp_path / "run")) == 5


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("env", "16 of 16 rollouts of a batch failed .*the server is down"),
        ("verify", "81 groups in a row could not be trained on .last reason: .*the judge is down"),
    ],
)
def test_when_all_fail_the_run_ends_instead_of_trying_for_ever(kind: str, text: str, tmp_path: Path) -> None:
    with pytest.raises(RunError, match=text):
        train(tmp_path / "run", {**QUIET, "stages.0.steps": 0}, failing(lambda n: True, kind))


def test_every_drawn_task_is_trained_or_rejected_and_logged(tmp_path: Path) -> None:
    """Groups in which nobody could be judged are replaced; all of them are in the logs."""

    def deaf(world: World) -> World:
        def verify(task: Task, trajectory: Trajectory) -> Verdict:
            hears = task.id != "secret-2"
            return judge_guess(task, trajectory) if hears else Verdict(None, invalid="no judge for this one")

        return replace(world, verify=verify)

    ledger = train(tmp_path / "run", QUIET, deaf).position.ledger
    assert ledger.trained == 16
    assert ledger.rejected > 0
    assert ledger.drawn == ledger.trained + ledger.rejected
    assert ledger.demonstrations == 16
    records = [r for r in RunFolder.open(tmp_path / "run").episodes() if r["stage"] == "reinforce"]
    groups = list(dict.fromkeys(r["group"] for r in records))
    assert sorted(groups) == [f"train-{n:06d}" for n in range(ledger.drawn)]
    rejected = {r["group"] for r in records if r["task"] == "secret-2"}
    assert len(rejected) == ledger.rejected
    for record in steps(tmp_path / "run")[1:]:
        share = sum(r["step"] == record["step"] and r["member"] == 0 and r["group"] in rejected for r in records)
        assert record["rejected_groups"] == share / (4 + share)
        scored = [r["score"] for r in records if r["step"] == record["step"] and r["score"] is not None]
        assert record["success"] == pytest.approx(sum(scored) / len(scored), abs=1e-12)
        assert record["trained_rows"] == 16


# --- metrics

SHARES = [
    *("distinct_sequences", "zero_variance_groups", "all_fail_groups", "all_pass_groups", "cut_turns", "failed"),
    *("unscored", "success", "infeasible_guesses", "unreadable_guesses", "nonzero_advantage", "clipped_up"),
    *("nonzero_advantage_tokens", "clipped_down", "singleton_groups", "rejected_groups", "skipped_updates"),
    *("end_done", "end_turns", "end_length", "end_context", "end_timeout", "end_truncated", "end_error"),
    *("eval_greedy_success", "eval_sampled_success"),
]


@pytest.mark.parametrize("changes", [{}, {"algorithm.base": "grpo", "learner.epochs": 3, "learner.minibatches": 4}])
def test_shares_are_between_zero_and_one_and_ends_add_up(changes: dict[str, Any], tmp_path: Path) -> None:
    start(tmp_path / "run", changes)
    found = steps(tmp_path / "run")
    seen = {name for record in found for name in SHARES if name in record}
    assert seen == set(SHARES)
    for record in found:
        assert [n for n in SHARES if record.get(n) is not None and not 0 <= record[n] <= 1] == []
        assert sum(value for name, value in record.items() if name.startswith("end_")) == pytest.approx(1, abs=1e-9)


@pytest.mark.parametrize("budget", [17, 40, 100])
def test_metrics_do_not_depend_on_the_size_of_micro_batches(budget: int, tmp_path: Path) -> None:
    """The first step of each stage learns from the same rows; later ones may differ by rounding."""
    for name, tokens in (("whole", 16384), ("cut", budget)):
        changes = {"learner.token_budget": tokens, "stages.0.steps": 1, "stages.1.steps": 1, "stages.0.lr": 1e-9}
        start(tmp_path / name, changes)
    for whole, cut in zip(steps(tmp_path / "whole"), steps(tmp_path / "cut"), strict=True):
        for key, value in whole.items():
            if not key.endswith(("_seconds", "_per_second")) and isinstance(value, float):
                assert cut[key] == pytest.approx(value, rel=1e-4, abs=1e-5), key


# --- what is kept


def test_the_best_checkpoint_stays_and_is_the_best_by_the_metrics(tmp_path: Path) -> None:
    start(tmp_path / "run", {"evaluate.every": 1, "evaluate.episodes": 4, "keep.last": 1, "keep.steps": 1})
    rates = {r["step"]: r["eval_sampled_success"] for r in steps(tmp_path / "run")}
    best = max(rates, key=lambda n: (rates[n], -n))
    assert best != 8  # else it would stay as the newest
    kept = sorted(path.name for path in (tmp_path / "run/checkpoints").iterdir())
    assert kept == [f"step-{best:08d}", "step-00000008"]
    assert outcome(tmp_path / "run").state["position"]["best"] == {"name": kept[0], "value": rates[best]}


def test_without_best_only_the_newest_stay(tmp_path: Path) -> None:
    start(tmp_path / "run", {"evaluate.every": 1, "keep.last": 2, "keep.steps": 1, "keep.best": False, "keep.every": 3})
    kept = sorted(path.name for path in (tmp_path / "run/checkpoints").iterdir())
    assert kept == [f"step-{n:08d}" for n in (3, 6, 7, 8)]


def test_a_stop_that_is_asked_for_between_two_checkpoints_gets_one(tmp_path: Path) -> None:
    """Asked for after a step has ended without a checkpoint, it ends the run one step later, with one."""
    plan, world = planned({"keep.steps": 0, "keep.best": False, "evaluate.every": 0})
    folder = RunFolder.create(tmp_path / "run")
    training = Training(plan, assemble(plan, world), folder)
    late = [False]

    async def until() -> None:
        async for event in training.run(lambda: late[0]):
            if isinstance(event, StepDone) and event.step == 6:
                late[0] = True

    with folder.lock():
        asyncio.run(until())
    newest, _ = checkpoint.newest(folder.checkpoints)
    assert newest is not None
    assert newest.name == "step-00000007"


# --- rounds


def test_a_round_learns_from_its_successes_only(tmp_path: Path) -> None:
    start(tmp_path / "run", {"stages.1.kind": "rounds", "keep.updates": 10})
    folder = RunFolder.open(tmp_path / "run")
    records = list(folder.episodes())
    sizes: list[int] = []
    for record in steps(tmp_path / "run")[4:]:
        won = [(r["group"], r["member"]) for r in records if r["step"] == record["step"] and r["score"] == 1]
        update = folder.update(record["step"])
        rows = zip(update["row_draw"].tolist(), update["row_member"].tolist(), strict=True)
        assert [(f"train-{draw:06d}", member) for draw, member in rows] == won
        assert record["trained_rows"] == len(won)
        assert set(update["advantage"][update["sampled"] == 1].tolist()) == {1.0}
        sizes.append(len(won))
    assert min(sizes) > 0
    assert max(sizes) < 16


# --- preflight


def groups(*scores: list[float | None]) -> list[Group]:
    def judged(score: float | None) -> Trajectory:
        none = np.zeros(0, np.int32)
        return Trajectory(Task("a"), (), none, "done", (), verdict=Verdict(score))

    return [Group(f"g-{n}", Task("a"), tuple(judged(s) for s in group)) for n, group in enumerate(scores)]


def test_the_findings_before_training_by_hand() -> None:
    found = read(groups([0, 0, 0, 0], [1, 1, 1, 1], [1, 0, 0, 0], [1, None, 0, None], [None] * 4), 4)
    assert (found.all_fail, found.all_pass, found.mixed, found.unscored) == (1, 1, 2, 1)
    assert found.success == (0 + 4 + 1 + 1) / 14
    for size in (4, 8, 16, 32):
        quarter, half = 1 - 0.25**size - 0.75**size, 1 - 2 * 0.5**size
        assert found.useful[size] == pytest.approx((quarter + half) / 4, abs=1e-12)
    assert found.useful[4] == pytest.approx((0.6796875 + 0.875) / 4, abs=1e-12)
    assert not found.hopeless


@pytest.mark.parametrize(
    ("scores", "text", "hopeless"),
    [
        ([[0, 0], [0, 0]], "every group failed", True),
        ([[1, 1], [1, 1]], "every group passed", True),
        ([[None, None]], "no episode could be judged", True),
        ([[0, 0]] * 9 + [[1, 0]], "most groups failed", False),
        ([[1, 1]] * 9 + [[1, 0]], "most groups passed", False),
        ([[1, 0], [None, None]], "some groups could not be judged", False),
        ([[1, 0], [0, 0]], "mixed groups", False),
    ],
)
def test_the_advice_before_training_names_the_case(scores: list[list[float | None]], text: str, hopeless: bool) -> None:
    found = read(groups(*scores), 2)
    assert found.advice.startswith(text)
    assert found.hopeless is hopeless


def test_engine_and_learner_agree_before_training(tmp_path: Path) -> None:
    events = start(tmp_path / "run", {"preflight.tasks": 4, "preflight.members": 8})
    [found] = [event for event in events if isinstance(event, Preflight)]
    assert (found.tasks, found.members) == (4, 8)
    assert found.all_fail + found.all_pass + found.mixed == 4
    assert found.ratio_error < 1e-5
    assert (found.clipped, abs(found.kl) < 1e-9) == (0.0, True)


@pytest.mark.parametrize("temperature", [0.5, 2.0])
def test_engine_and_learner_agree_at_every_temperature(temperature: float, tmp_path: Path) -> None:
    start(tmp_path / "run", {"rollout.temperature": temperature, "algorithm.base": "grpo"})
    assert max(r["log_ratio_abs_max"] for r in steps(tmp_path / "run")[4:]) < 1e-5


def test_another_temperature_in_the_learner_would_be_seen(tmp_path: Path) -> None:
    """Negative control of the two above."""
    plan, world = planned({"algorithm.base": "grpo"})
    parts = assemble(plan, world)
    parts.learner.temperature = 0.9
    folder = RunFolder.create(tmp_path / "run")
    events = drive(Training(plan, parts, folder), folder, None, lambda: False)
    [found] = [event for event in events if isinstance(event, Preflight)]
    assert found.ratio_error > 1e-3


def test_a_hopeless_run_is_blocked_only_when_asked(tmp_path: Path) -> None:
    hopeless = {**PLAIN, "stages.0.steps": 0}
    start(tmp_path / "advised", hopeless)
    with pytest.raises(RunError, match="preflight: every group failed"):
        start(tmp_path / "blocked", {**hopeless, "preflight.block": True})


# --- evaluation


@pytest.mark.parametrize(
    ("successes", "n", "low", "high"),
    [(0, 10, 0.0, 0.2775), (5, 10, 0.2366, 0.7634), (8, 10, 0.4902, 0.9433), (10, 10, 0.7225, 1.0), (0, 0, 0.0, 1.0)],
)
def test_wilson_intervals_are_the_published_ones(successes: int, n: int, low: float, high: float) -> None:
    assert wilson(successes, n) == (pytest.approx(low, abs=5e-5), pytest.approx(high, abs=5e-5))


def test_an_evaluation_plays_each_task_greedily_once_and_sampled_as_often_as_asked(tmp_path: Path) -> None:
    judged: list[str] = []

    def some(world: World) -> World:
        def verify(task: Task, trajectory: Trajectory) -> Verdict:
            judged.append(task.id)
            if task.id == "secret-2":
                return Verdict(None, invalid="no judge")
            return Verdict(1.0 if task.id == "secret-3" else 0.0)

        return replace(world, verify=verify)

    changes = {**QUIET, "stages": [{"kind": "warm_start", "steps": 1, "groups": 4}], "evaluate.episodes": 3}
    train(tmp_path / "run", changes, some)
    first, last = RunFolder.open(tmp_path / "run").metrics()
    for record in (first, last):
        assert record["eval_episodes"] == 4 * (1 + 3)
        assert record["eval_invalid"] == 1 + 3
        assert record["eval_greedy_success"] == 1 / 3
        assert record["eval_sampled_success"] == 3 / 9
        assert (record["eval_sampled_low"], record["eval_sampled_high"]) == wilson(3, 9)
        assert record["eval_limit"] == 0.75
    assert len(judged) == 16 + 4 + 16


def test_evaluations_come_when_they_are_due_and_at_the_end_of_each_stage(tmp_path: Path) -> None:
    start(tmp_path / "run", {"evaluate.every": 3})
    at = [r["step"] for r in RunFolder.open(tmp_path / "run").metrics() if r.get("eval_episodes") is not None]
    assert at == [0, 3, 4, 6, 8]


# --- learning
