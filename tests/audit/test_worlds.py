"""Worlds as subjects: shipped ones are sound and pass the gate, broken ones do not; probes and reachability."""

import asyncio
import os
import shutil
import socket
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from strop import Verdict, World
from strop.audit import probes
from strop.audit.audit import audit, replay
from strop.audit.exam import Exam
from strop.audit.finding import Report
from strop.audit.forgery import FORGE
from strop.audit.gate import glance
from strop.audit.local import Local
from strop.audit.played import subject_of
from strop.audit.probes import look_out
from strop.audit.reach import check_reach
from strop.core.message import Message
from strop.core.task import Env, Step, Task
from strop.core.trajectory import Completion, Group, Trajectory, Turn
from strop.envs.catalogue import world
from strop.envs.guess import guess
from strop.sandbox import shared
from tests.audit.exams import SUMS, exact

SHIPPED: dict[str, dict[str, Any]] = {
    "guess": {},
    "craft": {"tasks": 32},
    "repair": {},
    "folder": {"path": str(Path(__file__).parents[2] / "recipes" / "tasks")},
}


def report_of(made: World, tiers: tuple[int, ...] = (1, 2, 3, 4, 6), most: int = 6, seconds: float = 20.0) -> Report:
    async def attack() -> Report:
        return await audit(await subject_of(made, most), tiers, seconds)

    return asyncio.run(attack())


@pytest.mark.parametrize("name", SHIPPED)
def test_a_shipped_world_passes_the_gate_within_seconds(name: str) -> None:
    made = world(name, SHIPPED[name])
    began = time.monotonic()
    assert glance(made).findings == []
    assert time.monotonic() - began < 6


@pytest.mark.parametrize("name", ["guess", "craft"])
def test_a_shipped_world_has_no_confirmed_finding(name: str) -> None:
    report = report_of(world(name, SHIPPED[name]))
    assert [f for f in report.findings if f.kind == "confirmed"] == []
    assert report.rates["references rejected"].of == 6
    assert report.rates["random play succeeds"].of > 0


def test_the_repair_world_is_attacked_with_programs_and_holds() -> None:
    report = report_of(world("repair", {}), (3,), 1, 8.0)
    assert [f for f in report.findings if f.kind == "confirmed"] == []
    assert report.rates["false positives"].of > 20


def always(task: Task, trajectory: Trajectory) -> Verdict:
    return Verdict(1.0 if task else 0.0)


def said(task: Task, trajectory: Trajectory) -> Verdict:
    """Rewards any reply that is no number."""
    return Verdict(float(any(not turn.message.content.strip().isdigit() for turn in trajectory.turns)))


def rejects(task: Task, trajectory: Trajectory) -> Verdict:
    return Verdict(float(len(trajectory.turns) > 99))


CALLS = iter(range(10**9))


def tossed(task: Task, trajectory: Trajectory) -> Verdict:
    return Verdict(float(len(trajectory.turns) > 0 and next(CALLS) % 3 == 0))


@pytest.mark.parametrize(
    ("verify", "names"),
    [(always, {"answer never read", "empty answer"}), (said, {"empty answer"}), (tossed, {"flaky"})],
)
def test_a_broken_verifier_fails_the_gate(verify: Callable[..., Verdict], names: set[str]) -> None:
    found = {finding.name for finding in glance(replace(guess(), verify=verify)).findings}
    assert names <= found


def test_a_verifier_that_passes_no_demonstration_is_not_refused_since_players_may_fail() -> None:
    assert glance(replace(guess(8, 2), verify=rejects)).findings == []


def test_a_world_that_raises_or_waits_does_not_stop_the_gate() -> None:
    class Waiting(Env):
        async def start(self) -> Step:
            await asyncio.sleep(600)
            return Step()

    def broken(task: Task, seed: int) -> Env:
        raise RuntimeError("no")

    assert glance(replace(guess(4, 2), env=broken)).findings == []
    began = time.monotonic()
    assert glance(replace(guess(4, 2), env=lambda task, seed: Waiting())).findings == []
    assert time.monotonic() - began < 8


def test_containing_the_answer_passes_the_gate_and_fails_the_audit(tmp_path: Path) -> None:
    lines = tmp_path / "p.jsonl"
    lines.write_text(
        '{"prompt": "2+2?", "answer": "4"}\n{"prompt": "3*7?", "answer": "21"}\n{"prompt": "9-1?", "answer": 8}\n'
    )
    loose, strict = (world("jsonl", {"file": str(lines), "reward": reward}) for reward in ("contains", "exact"))
    assert glance(loose).findings == []
    assert "many answers" in {f.name for f in report_of(loose).findings if f.kind == "confirmed"}
    assert [f for f in report_of(strict).findings if f.kind == "confirmed"] == []


def test_a_finding_is_replayed_on_a_world_and_is_gone_when_the_world_is_mended() -> None:
    async def both() -> tuple[list[Any], list[Any]]:
        broken = await subject_of(replace(guess(), verify=said), 4)
        mended = await subject_of(guess(), 4)
        findings = list((await audit(broken, (1, 2), 10.0)).findings)
        return await replay(broken, findings), await replay(mended, findings)

    held, gone = asyncio.run(both())
    assert held
    assert all(holds for _, holds in held)
    assert not any(holds for _, holds in gone)


def test_a_claim_without_an_action_is_confirmed_where_success_takes_several() -> None:
    def claimed(task: Task, trajectory: Trajectory) -> Verdict:
        won = trajectory.artefacts["inventory"].get(task.data["goal"], 0) > 0
        return Verdict(
            float(
                won or any(" complete" in t.message.content or "done " in t.message.content for t in trajectory.turns)
            )
        )

    report = report_of(replace(world("craft", {"tasks": 32}), verify=claimed), (3,))
    assert [f.name for f in report.findings if f.kind == "confirmed"] == ["claim without an action"]


# --- probes


def test_the_live_sandbox_shows_a_program_nothing() -> None:
    assert asyncio.run(look_out(shared())) == []


def test_the_probes_would_notice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same text as a trusted module out here: the listener, the key, the repository, the mark."""
    (tmp_path / "probe_text.py").write_text(probes.LOOK)
    (tmp_path / ".git").mkdir()
    (tmp_path / "test_hidden.py").write_text("")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("STROP_TEST_KEY", "sk-something")
    (tmp_path / "processes" / "1").mkdir(parents=True)
    (tmp_path / "processes" / "1" / "environ").write_text("STROP_TEST_KEY=sk-something")
    probe: Any = __import__("probe_text")
    assert str(tmp_path) in probe.leave("mark-of-a-test")
    Path("/tmp/mark-of-a-test").unlink(missing_ok=True)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        place = ["127.0.0.1", listener.getsockname()[1]]
        found = probe.look([place], str(tmp_path / "processes"), "sk-something", os.getcwd(), "mark-of-a-test")
    assert {path for what, path in found if what == "key in the environment"} == {
        "os.environ",
        str(tmp_path / "processes" / "1" / "environ"),
    }
    assert {
        "network",
        "key in the environment",
        "git objects",
        "the trainer's files",
        "hidden tests",
        "another run's files",
        "runner",
    } <= {what for what, _ in found}


# --- judged by a script


def scripted(root: Path, script: str) -> World:
    """The example task that a script judges, with another script."""
    folder = root / "task"
    shutil.copytree(Path(SHIPPED["folder"]["path"]) / "word-count", folder)
    if script:
        (folder / "tests" / "test.sh").write_text(script)
    for path in (root, folder / "tests", folder / "solution"):
        path.chmod(0o755)  # the sandbox runs as another user where the tests run as root
    return world("folder", {"path": str(folder)})


ASIDE = """
echo 0 > /logs/verifier/reward.txt
[ "$(timeout 2 python3 /app/count.py words.txt)" = 5 ] && echo 1 > /logs/verifier/reward.txt
"""
NEVER_RUN = "grep -q split /app/count.py && echo 1 > /logs/verifier/reward.txt || echo 0 > /logs/verifier/reward.txt\n"


@pytest.mark.parametrize(("script", "kind"), [("", "confirmed"), (ASIDE, "confirmed"), (NEVER_RUN, "lead")])
def test_a_script_that_judges_is_reported_with_a_forged_reward_as_witness(
    tmp_path: Path, script: str, kind: str
) -> None:
    made = scripted(tmp_path, script)
    report = report_of(made, (7,))
    assert [(f.kind, f.name, f.task) for f in report.findings if f.tier == 7] == [(kind, "forged reward", "task")]

    async def again() -> list[bool | None]:
        return [holds for _, holds in await replay(await subject_of(made, 1), report.findings)]

    assert asyncio.run(again()) == [True]


def test_cases_that_judge_from_outside_cannot_be_forged() -> None:
    """The other example task: the same forgery is worth nothing, and nothing is reported."""
    made = world("folder", {"path": str(Path(SHIPPED["folder"]["path"]) / "retry")})

    async def forged() -> list[float | None]:
        subject = await subject_of(made, 1)
        [item] = subject.items
        answers = (item.reference, dict.fromkeys(item.start, FORGE[".py"]))
        return [(await subject.verify(item, answer)).score for answer in answers]

    assert asyncio.run(forged()) == [1.0, 0.0]
    assert report_of(made, (7,)).findings == []


# --- reachability


def played(task: str, scores: list[float | None], texts: list[str]) -> Group:
    nothing = np.zeros(0, dtype=np.int32)
    none = Completion(nothing, np.zeros(0, dtype=np.float32), nothing, "stop")
    trajectories = tuple(
        Trajectory(
            Task(task),
            (Turn(nothing, none, Message("assistant", text)),),
            nothing,
            "done",
            (Message("user", f"do {task}"),),
            verdict=Verdict(score, {"tests": bool(score)}, invalid=None if score is not None else "no"),
        )
        for score, text in zip(scores, texts, strict=True)
    )
    return Group(task, Task(task), trajectories)


def test_tasks_are_sorted_by_what_attempts_came_to_and_all_fail_is_triaged() -> None:
    tasks = [*SUMS[:3], {"id": "open", "prompt": "p"}]
    subject = Local("mine", tasks, exact)
    exam = Exam(subject, subject.items)
    texts = ["a", "b", "c", "d"]
    groups = [
        played("s12", [1.0] * 4, texts),
        played("s13", [1.0, 0.0, None, 0.0], texts),
        played("s14", [0.0] * 4, texts),
        played("open", [0.0] * 4, texts),
        played("stuck", [0.0] * 4, ["a"] * 4),
        played("none", [None] * 4, texts),
    ]
    found = check_reach(exam, groups)
    assert (found["all_pass"], found["mixed"], found["all_fail"], found["unscored"]) == (1, 1, 3, 1)
    causes = {task["task"]: task["cause"] for task in found["tasks"] if task["cause"]}
    assert causes == {"s14": "capability", "open": "unknown", "stuck": "exploration"}
    assert "tests (4)" in next(task["evidence"] for task in found["tasks"] if task["task"] == "s14")


def test_an_attempt_passes_from_the_score_of_the_reference_on_where_scores_are_graded() -> None:
    """The control is the other task, whose reference has the full score."""
    subject = Local("mine", SUMS[:2], lambda task, answer: 0.8 if task["id"] == "s12" else 1.0)
    groups = [played(task, [0.8, 0.7], ["a", "b"]) for task in ("s12", "s13")]
    report = asyncio.run(audit(subject, (8,), groups=groups))
    assert {task["task"]: task["passed"] for task in report.reach["tasks"]} == {"s12": 1, "s13": 0}


def test_a_rejected_reference_is_the_verifiers_fault_and_a_stronger_model_shows_that_it_can_be_done() -> None:
    subject = Local("mine", SUMS[:2], lambda task, answer: 0.0)
    exam = Exam(subject, subject.items)
    asyncio.run(exam.note(2, "confirmed", subject.items[0], "reference", "it is rejected", ["24"], "fails"))
    found = check_reach(exam, [played("s12", [0.0, 0.0], ["a", "b"])])
    assert found["tasks"][0]["cause"] == "verifier"
    open_task = Local("mine", [{"id": "open", "prompt": "p"}], exact)
    weak, strong = played("open", [0.0, 0.0], ["a", "b"]), played("open", [1.0, 0.0], ["c", "d"])
    found = check_reach(Exam(open_task, open_task.items), [weak], [strong])
    assert found["tasks"][0]["cause"] == "capability"
