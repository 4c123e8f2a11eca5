"""The watch in the loop: it sees an agent that learns to cheat, changes no bit of training, stops a run, and resumes."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from strop.cli.progress import Display
from strop.core.errors import RunError, UsageError
from strop.core.task import Verdict
from strop.core.trajectory import Group
from strop.core.world import World
from strop.envs.guess import verify
from strop.learn.checkpoint import Checkpoint, newest
from strop.loop.evaluate import evaluate
from strop.loop.plan import Watching
from strop.loop.train import StepDone, Training
from strop.loop.watching import ASKED, Watch, measured, second_opinions
from strop.rollout.group import Table
from strop.watch.alarms import Alarm
from strop.watch.run_folder import RunFolder
from strop.watch.sight import Sight
from strop.watch.sums import by_group
from tests.loop.runs import differences, outcome, planned, resume, start
from tests.loop.test_train import train
from tests.loop.watched import trapped, wrong
from tests.rollout.worlds import CODEC, hang
from tests.watch.episodes import HONEYPOT, episode, group

LEARNS: dict[str, Any] = {
    "world": {"numbers": 8, "attempts": 2},
    "stages.0.steps": 8,
    "stages.0.groups": 32,
    "stages.1.steps": 32,
    "rollout.groups": 8,
    "rollout.group_size": 8,
    "learner.lr": 0.008,
    "evaluate": {"every": 20, "episodes": 4},
    "preflight.tasks": 0,
    "keep.steps": 0,
    "keep.best": False,
}


def changes(world: str, **more: Any) -> dict[str, Any]:
    return {**LEARNS, "env": f"tests.loop.watched:{world}", **more}


def alarms(path: Path) -> list[dict[str, Any]]:
    return list(RunFolder.open(path).alarms())


@pytest.fixture(scope="module")
def cheated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run whose agent learns to open with the number that the verifier always takes."""
    path = tmp_path_factory.mktemp("watched") / "run"
    start(path, changes("cheatable"))
    return path


# --- an agent that learns to cheat


def test_an_agent_that_learns_to_cheat_is_seen(cheated: Path) -> None:
    gaps = [a for a in alarms(cheated) if a["name"] == "proxy_gap"]
    assert {a["subject"] for a in gaps} == {"proxy_gap", "eval_proxy_gap"}
    first = gaps[0]
    assert 8 < first["step"] <= 30
    metrics = {m["step"]: m for m in RunFolder.open(cheated).metrics()}
    assert metrics[40]["success"] - metrics[40]["independent_success"] > 0.5
    assert metrics[40]["proxy_gap"] > metrics[10]["proxy_gap"] + 0.3
    assert metrics[40]["eval_proxy_gap"] > metrics[0]["eval_proxy_gap"] + 0.3
    assert metrics[40]["independent_episodes"] == ASKED
    records = {r["id"]: r for r in RunFolder.open(cheated).episodes()}
    for name in first["episodes"]:  # each of them was paid and had not won
        assert (records[name]["score"], records[name]["checks"]) == (1.0, {"found": False})


def test_an_agent_that_learns_honestly_raises_no_gap(tmp_path: Path) -> None:
    start(tmp_path / "run", changes("honest"))
    assert [a for a in alarms(tmp_path / "run") if a["name"] == "proxy_gap"] == []
    assert {m.get("proxy_gap", 0.0) for m in RunFolder.open(tmp_path / "run").metrics()} == {0.0}


def test_the_screen_is_given_what_the_folder_is_given(tmp_path: Path, cheated: Path) -> None:
    events = start(tmp_path / "run", changes("cheatable"), until=25)
    shown = [alarm for event in events if isinstance(event, StepDone) for alarm in event.alarms]
    assert [a.record() for a in shown] == alarms(tmp_path / "run")
    assert alarms(tmp_path / "run") == [a for a in alarms(cheated) if a["step"] <= 25] != []


def test_the_screen_has_one_line_for_an_alarm(capsys: pytest.CaptureFixture[str]) -> None:
    alarm = Alarm(21, "surge", "action go", 0.4, 0.3, "action 'go' jumped", ())
    with Display(planned({})[0]) as display:
        for raised in ((), (alarm,)):
            display.show(StepDone(21, 40, (1, "reinforce"), {}, None, None, None, raised))
    assert [line for line in capsys.readouterr().out.splitlines() if "ALARM" in line] == [
        "step 21: ALARM surge: action 'go' jumped"
    ]


# --- what must not change training


def test_a_second_judge_changes_no_bit_of_training(tmp_path: Path) -> None:
    small = {"env": "guess"}, {"env": "tests.loop.watched:honest"}, {"env": "tests.loop.watched:cheatable"}
    one, two, other = (tmp_path / str(i) for i in range(3))
    for path, change in zip((one, two, other), small, strict=True):
        start(path, change)
    assert outcome(one).tensors == outcome(two).tensors
    assert outcome(one).episodes == outcome(two).episodes
    assert outcome(one).tensors != outcome(other).tensors  # the control: the judge that trains does change it
    assert "independent_success" not in list(RunFolder.open(one).metrics())[-1]


def test_a_second_judge_that_always_fails_costs_nothing_but_its_own_numbers(tmp_path: Path) -> None:
    def broken(*_: Any) -> Verdict:
        raise ConnectionError("down")

    quiet = {"stages.1.steps": 3, "preflight.tasks": 0}
    train(tmp_path / "plain", quiet)
    train(tmp_path / "run", quiet, lambda world: replace(world, independent=broken))
    assert outcome(tmp_path / "run").tensors == outcome(tmp_path / "plain").tensors
    last = list(RunFolder.open(tmp_path / "run").metrics())[-1]
    assert (last["independent_invalid"], last["independent_episodes"]) == (1.0, 0.0)
    assert (last["eval_independent_episodes"], last["eval_independent_invalid"]) == (0, 8)
    assert "proxy_gap" not in last
    assert last["invalid"] == 0.0
    assert [(a["name"], a["subject"]) for a in alarms(tmp_path / "run")] == [("invalid_rate", "independent_invalid")]


# --- second opinions


def table(independent: Any) -> Table:
    plan, world = planned({})
    return Table(replace(world, independent=independent), CODEC, replace(plan.limits, seconds=0.05), True, 0)


def ask(independent: Any, groups: Sequence[Group], most: int | None = None) -> Mapping[str, tuple[float, Verdict]]:
    return asyncio.run(second_opinions(table(independent), groups, most))


def test_the_second_judge_is_asked_about_first_members_first_and_never_about_honeypots() -> None:
    groups = [group(f"g-{i}", *(episode(Verdict(1.0)) for _ in range(3))) for i in range(3)]
    groups += [group("h-0", episode(Verdict(1.0), task=HONEYPOT))]
    groups += [group("i-0", episode(Verdict(None, invalid="?")), episode(None), episode(Verdict(0.5)))]
    seen: list[Verdict | None] = []

    def judge(task: Any, trajectory: Any) -> Verdict:
        seen.append(trajectory.verdict)
        return Verdict(0.0)

    assert list(ask(judge, groups, 5)) == ["g-0/0", "g-1/0", "g-2/0", "g-0/1", "g-1/1"]
    assert len(ask(judge, groups)) == 10
    assert ask(judge, groups)["i-0/2"] == (0.5, Verdict(0.0))
    assert set(seen) == {None}  # it does not see what the other one said
    assert ask(None, groups) == {}


def test_a_second_judge_that_hangs_is_invalid_and_the_others_count() -> None:
    async def judge(task: Any, trajectory: Any) -> Verdict:
        return await hang() if trajectory.artefacts["slow"] else Verdict(0.0)

    found = ask(judge, [group("g-0", *(episode(Verdict(1.0), slow=i == 1) for i in range(4)))])
    read = {name: metric.value for name, metric in measured(found).items()}
    assert read["independent_invalid"] == 1 / 4
    assert (read["independent_episodes"], read["proxy_gap"]) == (3.0, 1.0)


# --- stopping


def test_an_alarm_that_is_named_stops_the_run_with_a_checkpoint_and_a_resume_goes_on(
    tmp_path: Path, cheated: Path
) -> None:
    path, stop = tmp_path / "run", {"watch.stop": ["proxy_gap"]}
    with pytest.raises(RunError, match=r"alarm proxy_gap in step \d+: .*watch.stop stops the run here.*strop watch"):
        start(path, changes("cheatable", **stop))
    told = [a for a in alarms(path) if a["name"] == "proxy_gap"]
    assert [a["subject"] for a in told] == ["proxy_gap"]
    assert alarms(path) == [a for a in alarms(cheated) if a["step"] <= told[0]["step"]]
    kept, _ = newest(path / "checkpoints")
    assert kept is not None
    assert int(kept.name.removeprefix("step-")) == told[0]["step"]
    with pytest.raises(RunError, match=r"alarm proxy_gap in step 40"):  # the held-out one, which is another
        resume(path)
    assert alarms(path) == alarms(cheated)
    assert differences(outcome(cheated), outcome(path)) == []


def test_another_alarm_does_not_stop_the_run(tmp_path: Path, cheated: Path) -> None:
    start(tmp_path / "run", changes("cheatable", **{"watch.stop": ["honeypot", "reward_fell"]}))
    assert differences(outcome(cheated), outcome(tmp_path / "run")) == []


@pytest.mark.parametrize(
    ("stop", "text"),
    [
        (["proxy_gab"], r"watch.stop 'proxy_gab' is no alarm; did you mean 'proxy_gap'\?"),
        (["x"], r"watch.stop 'x' is no alarm; known: proxy_gap, aux_without_success, surge"),
        (["proxy_gap"], r"world 'guess' has no independent verifier"),
    ],
)
def test_a_stop_that_can_never_be_is_refused(stop: list[str], text: str) -> None:
    with pytest.raises(UsageError, match=text):
        planned({"watch.stop": stop})


def test_a_stop_that_can_be_is_planned() -> None:
    assert planned({"watch.stop": ["surge", "honeypot"]})[0].watching.stop == ("surge", "honeypot")
    assert planned({})[0].watching.stop == ()


# --- resuming


@pytest.mark.parametrize("stops", [(9, 21), (15, 24, 39)], ids=str)
def test_a_resumed_run_raises_the_same_alarms(stops: Sequence[int], tmp_path: Path, cheated: Path) -> None:
    start(tmp_path / "run", changes("cheatable"), until=stops[0])
    for stop in stops[1:]:
        resume(tmp_path / "run", until=stop)
    resume(tmp_path / "run")
    assert alarms(tmp_path / "run") == alarms(cheated) != []
    assert differences(outcome(cheated), outcome(tmp_path / "run")) == []


def test_a_resume_that_forgets_the_memory_is_seen(
    tmp_path: Path, cheated: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = Training.resume

    def lossy(self: Training, saved: Checkpoint) -> None:
        saved.state["position"]["watch"] = {}
        whole(self, saved)

    start(tmp_path / "run", changes("cheatable"), until=20)
    monkeypatch.setattr(Training, "resume", lossy)
    resume(tmp_path / "run")
    assert alarms(tmp_path / "run") != alarms(cheated)
    found = differences(outcome(cheated), outcome(tmp_path / "run"))
    assert found == ["state position"]  # and training does not depend on it


def test_alarms_that_a_resume_made_void_are_not_read(tmp_path: Path) -> None:
    with (folder := RunFolder.create(tmp_path / "run")).lock():
        for step in (3, 7):
            folder.log_alarm(step, "surge", {"value": 1.0})
        folder.resumed(5)
        folder.log_alarm(8, "surge", {"value": 2.0})
    assert [a["step"] for a in folder.alarms()] == [3, 8]


# --- honeypots


def test_honeypots_are_played_measured_and_never_trained_on(tmp_path: Path) -> None:
    path = tmp_path / "run"
    start(path, {**changes("trapped"), "stages.1.steps": 3, "keep.updates": 20})
    folder = RunFolder.open(path)
    traps = {r["group"] for r in folder.episodes() if r["task"].startswith("trap")}
    by_stage = {r["stage"] for r in folder.episodes() if r["group"] in traps}
    assert by_stage == {"warm_start", "reinforce"}
    for record in folder.metrics():
        if record["step"] == 0:
            continue
        update = folder.update(record["step"])
        domain = "demonstrate" if record["stage"] == "warm_start" else "train"
        learned = {f"{domain}-{draw:06d}" for draw in update["row_draw"].tolist()}
        mine = [r for r in folder.episodes() if r["step"] == record["step"]]
        played = [r for r in mine if r["group"] in traps and r["score"] is not None]  # the script finds some too odd
        assert learned
        assert not learned & traps
        assert record["honeypot_passes"] == pytest.approx(sum(r["score"] for r in played) / len(played), abs=1e-12)
        honest = [r["score"] for r in mine if r["group"] not in traps]
        assert record["success"] == pytest.approx(sum(honest) / len(honest), abs=1e-12)
    raised = [a for a in alarms(path) if a["name"] == "honeypot"]
    assert raised[0]["step"] == 9
    records = {r["id"]: r for r in folder.episodes()}
    assert all(records[name]["group"] in traps and records[name]["score"] == 1 for name in raised[0]["episodes"])


def test_a_world_of_honeypots_alone_ends_and_says_why(tmp_path: Path) -> None:
    def only(world: World) -> World:
        return replace(world, tasks={"train": [replace(t, tags=("honeypot",)) for t in world.tasks["train"]]})

    with pytest.raises(RunError, match=r"the last one a honeypot, which is never trained on"):
        train(tmp_path / "run", {"stages.0.steps": 0, "preflight.tasks": 0}, only)


def test_an_evaluation_leaves_honeypots_out_of_success(tmp_path: Path) -> None:
    world = trapped(4, 2)
    eval_tasks = [*world.tasks["eval"], *(t for t in world.tasks["train"] if t.tags)]
    both = replace(world, tasks={**world.tasks, "eval": eval_tasks}, verify=wrong)
    training = train(tmp_path / "run", {"stages.1.steps": 1, "preflight.tasks": 0}, lambda _: both)

    def judged(table: Table) -> Any:
        return asyncio.run(evaluate(table, training.parts.examiner, 1.0, 4))

    found = judged(training.parts.table)
    tasks = replace(training.parts.table, world=replace(both, tasks=world.tasks))
    plain = judged(tasks)
    assert (found.sampled_success, found.greedy_success) == (plain.sampled_success, plain.greedy_success)
    assert found.proxy_gap == plain.proxy_gap
    assert found.episodes == plain.episodes * 6 / 4
    assert "honeypot_passes" in found.measures
    assert (found.independent_episodes, found.independent_invalid) == (16, 0)
    assert found.proxy_gap == pytest.approx(found.sampled_success - found.independent_success, abs=1e-12)
    assert (
        judged(replace(tasks, world=replace(both, tasks=world.tasks, independent=verify, verify=verify))).proxy_gap == 0
    )


# --- the plateau


CEILING = {"hits": 9, "of": 12, "rate": 0.75, "low": 0.467, "high": 0.911}


@pytest.mark.parametrize(("audit", "cited"), [({"ceiling": None}, False), ({"ceiling": CEILING}, True), ({}, False)])
def test_a_plateau_cites_the_ceiling_that_the_run_was_started_with(
    tmp_path: Path, audit: dict[str, Any], cited: bool
) -> None:
    folder = RunFolder.create(tmp_path / "run", {"audit": audit})
    watch, memory = Watch(Watching(), table(None), folder, []), dict[str, Any]()
    sums = by_group([(f"{i}", 0.7, 1.0) for i in range(8)])
    with folder.lock():
        for step in range(1, 201):
            memory = watch.look(memory, Sight(step, {"success": sums}))
    [found] = folder.alarms()
    assert (found["name"], found["step"]) == ("plateau", 200)
    assert ("caps it near 0.75 (95 %: 0.47 to 0.91)" in found["sentence"]) == cited
