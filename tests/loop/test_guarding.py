"""The guard in real runs: rules that act, runs that go back and on, and runs that it does not touch."""

import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from strop.config.planning import plan_of
from strop.config.resolve import resolve
from strop.core.errors import RunError
from strop.core.task import Task, Verdict
from strop.core.trajectory import Row, Trajectory
from strop.core.world import World
from strop.learn import checkpoint
from strop.learn.learner import LocalLearner
from strop.loop import guarding
from strop.loop.assemble import assemble
from strop.loop.guarding import SLOWER
from strop.loop.train import StepDone, Training
from strop.watch.run_folder import RunFolder
from tests.loop.runs import differences, drive, outcome, planned, resume, start, tables

Changes = dict[str, Any]
OFF: Changes = {"guard.rules": []}
EVERY: Changes = {"keep.steps": 1, "keep.last": 30, "evaluate.every": 0, "preflight.tasks": 0}
STAGE = 4
"""Steps of the warm start, after which the reinforcement begins."""


def plant(monkeypatch: pytest.MonkeyPatch, at: Mapping[int, float]) -> None:
    """At draws of the run that have these numbers (of the first group of a batch), one token counts so many times.

    So a batch is harmful for what is in it, as a real one is, not for the time at which it comes.
    """
    right = LocalLearner.step

    def step(self: LocalLearner, rows: list[Row]) -> Any:
        first = int(rows[0].origin.group.rsplit("-", 1)[1])
        if first in at and not math.isnan(rows[0].behaviour_logp[rows[0].sampled][0]):
            logp = rows[0].behaviour_logp.copy()
            logp[np.flatnonzero(rows[0].sampled)[0]] -= math.log(at[first])
            rows = [replace(rows[0], behaviour_logp=logp), *rows[1:]]
        return right(self, rows)

    monkeypatch.setattr(LocalLearner, "step", step)


FREE: Changes = {
    **EVERY,
    "algorithm": {"base": "grpo", "clip": "none", "ratio": "token", "credit": "reward_to_go(0.5)"},
    "stages.1.steps": 8,
}
"""Four groups of four a step, draws 0, 4, 8, ...; every trajectory has credit, so that what is planted moves the update."""
THIRD = 8
"""The first draw of the third batch: step 7."""


def steps(path: Path) -> dict[int, Mapping[str, Any]]:
    return {r["step"]: r for r in RunFolder.open(path).metrics() if r["stage"] != "start"}


def weights(path: Path, step: int) -> dict[str, Any]:
    return dict(checkpoint.load(path / f"checkpoints/step-{step:08d}").tensors["model"])


def same(a: Mapping[str, Any], b: Mapping[str, Any]) -> bool:
    return all(torch.equal(a[name], b[name]) for name in a)


# --- an update is left out


def test_a_planted_weight_is_left_out_told_kept_and_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch, {THIRD: 1e4})
    done = [e for e in start(tmp_path / "run", {**FREE, "keep.updates": 1}) if isinstance(e, StepDone)]
    assert same(weights(tmp_path / "run", 6), weights(tmp_path / "run", 7))
    assert not same(weights(tmp_path / "run", 7), weights(tmp_path / "run", 8))
    folder = RunFolder.open(tmp_path / "run")
    [alarm] = [a for a in folder.alarms() if a["name"] == "guard_ratio"]
    assert (alarm["step"], alarm["episodes"]) == (7, ["train-000008/0"])
    assert alarm["value"] == pytest.approx(1e4, rel=1e-3)
    assert next(a.name for e in done for a in e.alarms if e.step == 7) == "guard_ratio"
    events = {e["event"]: e for e in folder.events() if e.get("step") == 7}
    assert events["skipped_updates"] | {"step": 0} == {
        "step": 0, "event": "skipped_updates", "count": 1, "reason": "guard_ratio",
    }  # fmt: skip
    told = events["guard"]
    assert (told["rule"], told["action"], told["group"], told["member"]) == ("ratio", "skip", "train-000008", 0)
    update = folder.update(7)  # kept, though only the newest would stay
    assert [number for number, _ in folder.updates()] == [7, 12]
    pull = np.abs(update["weight"][update["sampled"] == 1])
    assert int(np.argmax(pull)) == 0  # the planted token, the first of its row
    assert pull[0] > 1000 * np.sort(pull)[-2]
    assert steps(tmp_path / "run")[7]["skipped_updates"] == 1.0
    assert done[6].sentence is not None
    assert done[6].sentence.startswith("nothing was learned: the guard left out every update (ratio: token ")
    assert done[5].sentence is None


def test_without_the_guard_the_same_step_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Negative control."""
    plant(monkeypatch, {THIRD: 1e4})
    start(tmp_path / "run", {**FREE, **OFF})
    assert not same(weights(tmp_path / "run", 6), weights(tmp_path / "run", 7))
    assert list(RunFolder.open(tmp_path / "run").alarms()) == []


def test_rules_that_trip_on_nothing_and_no_rules_are_one_run_bit_for_bit(tmp_path: Path) -> None:
    guarded = {"algorithm.base": "grpo", "stages.1.steps": 12, "learner.minibatches": 2, "stages.0.minibatches": 1}
    start(tmp_path / "off", {**guarded, **OFF})
    start(tmp_path / "on", {**guarded, "guard.rules": ["ratio(1000, skip)", "gradient(1000, skip)", "share(0.5, cap)"]})
    off, on = outcome(tmp_path / "off"), outcome(tmp_path / "on")
    assert off.tensors == on.tensors
    assert off.episodes == on.episodes
    assert "guard_gradient" in on.metrics[-1]
    assert not any(name.startswith("guard_") for record in off.metrics for name in record)


# --- a run stops


def test_a_rule_that_stops_the_run_does_so_after_a_checkpoint_and_a_resume_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch, {THIRD: 1e4})
    with pytest.raises(
        RunError, match=r"guard rule ratio: token \d+ of train-000008/0 has an importance weight of 1e\+04"
    ):
        start(tmp_path / "run", {**FREE, "keep.steps": 0, "keep.best": False, "guard.rules": ["ratio(1000, stop)"]})
    assert list(steps(tmp_path / "run")) == list(range(1, 8))
    assert [p.name for p in (tmp_path / "run/checkpoints").iterdir()] == ["step-00000007"]
    assert [e.step for e in resume(tmp_path / "run") if isinstance(e, StepDone)] == [8, 9, 10, 11, 12]


def test_a_rule_on_steps_stops_a_run(tmp_path: Path) -> None:
    hopeless = {**EVERY, "env": "tests.loop.hopeless:hopeless", "stages.0.steps": 0, "stages.1.steps": 9}
    with pytest.raises(RunError, match="guard rule no_success: no episode has succeeded for 4 steps"):
        start(tmp_path / "run", {**hopeless, "guard.rules": ["no_success(3, stop)"]})
    assert list(steps(tmp_path / "run")) == [1, 2, 3, 4]
    start(tmp_path / "noted", {**hopeless, "guard.rules": ["no_success(3)"]})
    assert len(steps(tmp_path / "noted")) == 9
    assert [a["step"] for a in RunFolder.open(tmp_path / "noted").alarms()] == [4]


def test_a_stage_that_learns_nothing_from_rewards_is_not_held_against_success(tmp_path: Path) -> None:
    hopeless = {**EVERY, "env": "tests.loop.hopeless:hopeless", "stages.0.steps": 0, "stages.1.steps": 6}
    rules = {"guard.rules": ["no_success(3)", "signal(0.02)"]}
    told = {"algorithm": {"base": "on_policy_distillation"}, "model.teacher": str(tmp_path / "teacher")}
    start(tmp_path / "teacher", {"stages.0.steps": 1, "stages.1.steps": 0})
    start(tmp_path / "taught", {**hopeless, **rules, **told})
    assert steps(tmp_path / "taught")[6]["success"] == 0
    assert list(RunFolder.open(tmp_path / "taught").alarms()) == []
    start(tmp_path / "rewarded", {**hopeless, **rules})
    assert [a["name"] for a in RunFolder.open(tmp_path / "rewarded").alarms()] == ["guard_no_success"]


# --- a run goes back

BACK: Changes = {**FREE, "keep.steps": 2, "guard.rules": ["ratio(1000, rollback)"]}


def test_a_rollback_goes_on_from_the_last_good_weights_with_half_the_rate_and_new_tasks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch, {THIRD: 1e4})
    seen: list[dict[str, Any]] = []
    resumed = Training.resume

    def watch(self: Training, saved: checkpoint.Checkpoint) -> None:
        resumed(self, saved)
        seen.append({name: t.detach().clone() for name, t in self.parts.policy.model.state_dict().items()})

    monkeypatch.setattr(Training, "resume", watch)
    done = [e for e in start(tmp_path / "run", BACK) if isinstance(e, StepDone)]
    assert [e.step for e in done] == [1, 2, 3, 4, 5, 6, 7, 7, 8, 9, 10, 11, 12]
    assert same(weights(tmp_path / "run", 6), seen[0])
    found = steps(tmp_path / "run")
    assert list(found) == list(range(1, 13))
    start(tmp_path / "straight", {**BACK, **OFF})  # the planted step is taken there
    straight = steps(tmp_path / "straight")
    assert found[6]["learning_rate"] == straight[6]["learning_rate"]
    assert [found[n]["learning_rate"] for n in range(7, 13)] == [
        straight[n]["learning_rate"] * SLOWER for n in range(7, 13)
    ]
    folder = RunFolder.open(tmp_path / "run")
    drawn = [r["group"] for r in folder.episodes() if r["stage"] == "reinforce" and r["member"] == 0]
    assert drawn == [
        f"train-{n:06d}" for n in [*range(8), *range(12, 36)]
    ]  # 8 to 11 did the harm and are not played again
    [event] = [e for e in folder.events() if e.get("event") == "rollback"]
    assert (event["step"], event["from_step"], event["rate"], event["rollbacks"]) == (6, 7, SLOWER, 1)
    [alarm] = folder.alarms()
    assert (alarm["step"], alarm["name"], alarm["episodes"]) == (6, "guard_ratio", ["train-000008/0"])
    assert "in step 7; the run went back to step 6" in alarm["sentence"]
    state = outcome(tmp_path / "run").state["position"]
    assert state["ledger"]["drawn"] == 36
    assert (state["guard"]["rollbacks"], state["guard"]["rate"]) == (1, SLOWER)


def test_a_run_stopped_anywhere_after_a_rollback_resumes_to_the_straight_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch, {THIRD: 1e4, 16: 1e5})
    changes = {**BACK, "keep.steps": 1, "guard.rollbacks": 3}
    start(tmp_path / "straight", changes)
    expected = outcome(tmp_path / "straight")
    assert expected.state["position"]["guard"]["rate"] == SLOWER**2
    for stop in (7, 9):
        path = tmp_path / str(stop)
        start(path, changes, until=stop)
        resume(path)
        assert differences(expected, outcome(path)) == [], f"stopped after step {stop}"
        assert [e for e in RunFolder.open(path).events() if "event" in e] == [
            e for e in RunFolder.open(tmp_path / "straight").events() if "event" in e
        ]


@pytest.mark.parametrize("lost", ["rate", "rollbacks", "memory"])
def test_a_resume_that_forgets_what_the_guard_knows_is_seen(
    lost: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Negative controls of the above."""
    plant(monkeypatch, {THIRD: 1e4})
    start(tmp_path / "straight", BACK)
    start(tmp_path / "run", BACK, until=8)
    whole = Training.resume

    def lossy(self: Training, saved: checkpoint.Checkpoint) -> None:
        saved.state["position"]["guard"].pop(lost)
        whole(self, saved)

    monkeypatch.setattr(Training, "resume", lossy)
    resume(tmp_path / "run")
    wanted = {"rate": "tensors model.safetensors", "rollbacks": "state position", "memory": "state position"}[lost]
    assert wanted in differences(outcome(tmp_path / "straight"), outcome(tmp_path / "run"))


def test_a_kill_in_the_middle_of_a_rollback_loses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Wherever it comes, the resumed run goes back again and is the straight one."""
    plant(monkeypatch, {THIRD: 1e4})
    start(tmp_path / "straight", BACK)
    expected = outcome(tmp_path / "straight")

    class Killed(BaseException):
        pass

    def killed(*args: Any) -> Any:
        raise Killed

    for index, (owner, name) in enumerate([(RunFolder, "resumed"), (guarding.Guard, "_log")]):
        path = tmp_path / str(index)
        take_back = guarding.Guard.take_back

        def dying(self: guarding.Guard, *args: Any, owner: Any = owner, name: str = name, go: Any = take_back) -> Any:
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(owner, name, killed)
                return go(self, *args)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(guarding.Guard, "take_back", dying)
            with pytest.raises(Killed):
                start(path, BACK)
        resume(path)
        assert differences(expected, outcome(path)) == [], name


def test_a_run_that_trips_again_and_again_stops_when_its_rollbacks_are_used_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch, dict.fromkeys(range(THIRD, 400, 4), 10000.0))
    with pytest.raises(RunError, match=r"the run was taken back 2 times already \(guard.rollbacks allows 2\)"):
        start(tmp_path / "run", BACK)
    assert len([e for e in RunFolder.open(tmp_path / "run").events() if e.get("event") == "rollback"]) == 2
    with pytest.raises(RunError, match="taken back 0 times already"):
        start(tmp_path / "none", {**BACK, "guard.rollbacks": 0})


def test_a_run_without_a_good_checkpoint_stops(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch, {THIRD: 1e4})
    with pytest.raises(RunError, match="there is no good checkpoint to go back to"):
        start(tmp_path / "run", {**BACK, "keep.steps": 0, "keep.best": False})


def test_a_checkpoint_of_a_step_in_trouble_is_not_gone_back_to_and_the_good_one_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A rule that acted in step 7 stands in step 11, whose rollback goes to step 6, though keep.last would not hold it."""
    plant(monkeypatch, {THIRD: 500.0, 24: 1e4})
    rules = ["ratio(1000, rollback)", "ess(0.2, skip)"]
    changes = {**BACK, "keep.steps": 1, "keep.last": 1, "keep.best": False, "guard.rules": rules}
    start(tmp_path / "run", changes)
    [event] = [e for e in RunFolder.open(tmp_path / "run").events() if e.get("event") == "rollback"]
    assert (event["from_step"], event["step"]) == (11, 6)


def test_a_rollback_over_the_border_of_a_stage_begins_the_next_stage_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch, {0: 1e4})
    changes = {**BACK, "keep.steps": 4}
    done = [e for e in start(tmp_path / "run", changes) if isinstance(e, StepDone)]
    assert [(e.step, e.stage[0]) for e in done[3:7]] == [(4, 0), (5, 1), (5, 1), (6, 1)]
    found = steps(tmp_path / "run")
    assert list(found) == list(range(1, 13))
    assert found[5]["learning_rate"] == 0.004 * SLOWER
    start(tmp_path / "stopped", changes, until=6)
    resume(tmp_path / "stopped")
    assert differences(outcome(tmp_path / "run"), outcome(tmp_path / "stopped")) == []


def test_stale_weights_of_the_engine_go_back_as_well(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch, {THIRD + 8: 1e4})
    changes = {**BACK, "stages.1.publish_every": 3, "guard.rules": ["ratio(5000, rollback)"]}
    start(tmp_path / "run", changes)
    [event] = [e for e in RunFolder.open(tmp_path / "run").events() if e.get("event") == "rollback"]
    assert (event["from_step"], event["step"]) == (9, 8)
    versions = {r["step"]: r["turns"][0]["versions"][0] for r in RunFolder.open(tmp_path / "run").episodes()}
    assert [versions[n] for n in range(5, 13)] == [4, 4, 4, 7, 7, 7, 10, 10]


# --- nothing was learned, and why


def invalid(world: World) -> World:
    def verify(task: Task, trajectory: Trajectory) -> Verdict:
        return Verdict(None, invalid="no judge")

    return replace(world, verify=verify)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        (
            {"env": "tests.loop.hopeless:hopeless", "stages.0.steps": 0},
            "the rewards taught nothing: all groups have equal rewards",
        ),
        (
            {"algorithm.base": "grpo", "algorithm.correction": "band(2.0, 5.0)"},
            "the rewards taught nothing: the correction for stale data left out every token",
        ),
        ({"stages.1.lr": 0.0}, "nothing was learned: the learning rate is 0"),
        ({"learner.lr_end": 0.0}, "nothing was learned: the learning rate is 0"),  # in the last step
        (
            {"guard.rules": ["gradient(0.0001, skip)"], "stages.1.steps": 12},
            "nothing was learned: the guard left out every update (gradient: ",
        ),
        ({"algorithm.base": "grpo"}, None),
    ],
    ids=["equal", "masked", "rate", "rate at the end", "guard", "control"],
)  # fmt: skip
def test_when_nothing_was_learned_one_sentence_says_why(changes: Changes, sentence: str | None, tmp_path: Path) -> None:
    given = {**EVERY, "algorithm": {"base": "dr_grpo"}, "keep.steps": 0, **changes}
    done = [e for e in start(tmp_path / "run", given) if isinstance(e, StepDone)]
    told = done[-1].sentence
    if sentence is None:
        assert told is None
        assert abs(done[-1].values["policy_loss"] or 0.0) < 1e-6  # a loss of about 0 is no reason
        assert (done[-1].values["gradient_norm"] or 0.0) > 1e-4
    else:
        assert told is not None
        assert told.startswith(sentence)


def test_a_batch_that_nobody_could_judge_says_so(tmp_path: Path) -> None:
    stages = [{"kind": "warm_start", "steps": 1, "groups": 4}]
    asking = resolve({**tables({**EVERY, "stages": stages}), "algorithm": {"base": "sft", "credit": "above(0.0)"}}, {})
    plan, world = plan_of(asking)
    folder = RunFolder.create(tmp_path / "run")
    training = Training(plan, assemble(plan, invalid(world)), folder)
    [done] = [e for e in drive(training, folder, None, lambda: False) if isinstance(e, StepDone)]
    assert done.sentence == "nothing was learned: no episode could be judged"
    plan, world = planned({**EVERY, "stages": stages})  # imitation asks for no judgement
    training = Training(plan, assemble(plan, invalid(world)), RunFolder.create(tmp_path / "imitation"))
    [done] = [e for e in drive(training, training.folder, None, lambda: False) if isinstance(e, StepDone)]
    assert done.sentence is None
