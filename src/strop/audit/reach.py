"""Tier 8, reachability: of K attempts of a model, which tasks all attempts solve, none, or some. Invariant: only mixed tasks
teach by comparison; of the others it is told why, as far as it can be."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from strop.audit.exam import Exam
from strop.audit.finding import Finding
from strop.audit.subject import Item
from strop.core.trajectory import Group, Trajectory

FULL = 1 - 1e-9
"""The score from which an attempt passed, where nobody says another."""
LIKE = 0.25
"""A task whose attempts have at most this share of different transcripts is not explored."""


@dataclass(frozen=True, slots=True)
class Reached:
    """What K attempts at one task came to.

    Args:
        task: id.
        passed, of: attempts that passed, and those with a score.
        different: share of different transcripts among the attempts.
        cause: of tasks that no attempt passed: `verifier`, `capability`, `exploration` or `unknown`; else empty.
        evidence: one sentence for people.
    """

    task: str
    passed: int
    of: int
    different: float
    cause: str = ""
    evidence: str = ""


def passed(trajectory: Trajectory, bar: float) -> bool:
    """Whether an attempt passed."""
    return trajectory.score is not None and trajectory.score >= bar


def all_failed(group: Group, bar: float = FULL) -> bool:
    """Whether there are attempts with a score, and none passed."""
    scored = [t for t in group.trajectories if t.score is not None]
    return bool(scored) and not any(passed(t, bar) for t in scored)


def transcript(trajectory: Trajectory) -> tuple[str, ...]:
    """What the agent said, turn by turn."""
    return tuple(turn.message.content.strip() for turn in trajectory.turns)


def check_reach(
    exam: Exam,
    groups: Sequence[Group],
    stronger: Sequence[Group] = (),
    bars: Mapping[str, float] | None = None,
) -> dict[str, Any]:
    """Sort tasks by what attempts came to; all-fail is triaged.

    Args:
        exam: the audit, whose findings about the verifier are evidence.
        groups: attempts of the model, a group of each task.
        stronger: attempts of a stronger model, where there are any.
        bars: score from which an attempt passed, by task; 1 where it is not said.
    """
    items = {item.id: item for item in exam.items}
    given = bars or {}

    def bar_of(group: Group) -> float:
        return given.get(group.task.id, FULL)

    strong = {group.task.id: any(passed(t, bar_of(group)) for t in group.trajectories) for group in stronger}
    found: list[Reached] = []
    for group in groups:
        scored = [t for t in group.trajectories if t.score is not None]
        won = sum(passed(t, bar_of(group)) for t in scored)
        different = len(set(map(transcript, scored))) / max(len(scored), 1)
        cause, evidence = ("", "")
        if all_failed(group, bar_of(group)):
            cause, evidence = triage(exam, items.get(group.task.id), group, different, strong.get(group.task.id))
        found.append(Reached(group.task.id, won, len(scored), different, cause, evidence))
    for reached in found:
        if reached.cause:
            claim = f"no attempt of {reached.of} passed; {reached.cause}: {reached.evidence}"
            exam.write(Finding(8, "lead", reached.task, claim, f"all fail, {reached.cause}", "static"))
    return summary(found)


def summary(found: Sequence[Reached]) -> dict[str, Any]:
    """Counts, and every task."""
    scored = [reached for reached in found if reached.of]
    return {
        "all_pass": sum(r.passed == r.of for r in scored),
        "mixed": sum(0 < r.passed < r.of for r in scored),
        "all_fail": sum(r.passed == 0 for r in scored),
        "unscored": len(found) - len(scored),
        "tasks": [asdict(reached) for reached in found],
    }


def triage(exam: Exam, item: Item | None, group: Group, different: float, strong: bool | None) -> tuple[str, str]:
    """(cause, evidence) of a task that no attempt passed."""
    rejects = [f for f in exam.findings.values() if f.task == group.task.id and f.tier in (2, 4) and f.holds == "fails"]
    if rejects:
        return "verifier", f"{rejects[0].claim}; {failing(group)}"
    able = strong or (item is not None and item.reference is not None)
    if different <= LIKE:
        return "exploration", f"the attempts hardly differ (share of different ones {different:.2f})"
    if able:
        who = "a stronger model" if strong else "the reference"
        return "capability", f"{who} passes, so it can be done; {failing(group)}"
    return "unknown", f"no reference and no stronger model is known to pass; {failing(group)}"


def failing(group: Group) -> str:
    """Which named checks the attempts fail, most frequent first, beside what the task asks for."""
    counts: dict[str, int] = {}
    for trajectory in group.trajectories:
        checks: Mapping[str, bool] = trajectory.verdict.checks if trajectory.verdict else {}
        for name, good in checks.items():
            counts[name] = counts.get(name, 0) + (not good)
    failed = sorted(((n, name) for name, n in counts.items() if n), reverse=True)[:4]
    shown = ", ".join(f"{name} ({n})" for n, name in failed) or "the verifier names no checks"
    asked = (
        next((m.content for m in group.trajectories[0].messages if m.role == "user"), "") if group.trajectories else ""
    )
    return f"failing checks: {shown}; asked: {asked[:160]!r}"
