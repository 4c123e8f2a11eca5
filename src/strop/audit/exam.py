"""The state of one audit: verdicts asked so far, findings, rates, time. Invariant: a finding about a verdict is written down
only after the verdict was seen twice."""

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from random import Random
from typing import Any

from strop.audit.finding import Finding, Holds, Kind, Rate, rate
from strop.audit.subject import Answer, Item, Subject
from strop.core.seeds import python_random
from strop.core.task import Verdict

ALMOST = 1e-9
HURRIED = 1.0
"""Seconds that later verdicts may take once one did not come in its time."""
PASSED = 0.5
"""A reference below this is rejected, where the subject declares no threshold."""


class Exam:
    """One audit of one subject, while it runs.

    Args:
        subject: what is audited.
        items: the tasks that are looked at.
        seed: names the random streams of the attacks.
    """

    def __init__(self, subject: Subject, items: Sequence[Item], seed: int = 0) -> None:
        self.subject, self.items, self.seed = subject, tuple(items), seed
        self.until = float("inf")
        self.findings: dict[tuple[int, Kind, str], Finding] = {}
        self.counts: dict[str, list[int]] = {}
        self._skipped: dict[str, list[str]] = {}
        self.accepted: list[tuple[Item, str, str]] = []
        """(task, name of the attack, program): programs that the verifier passed though nobody said they are right."""
        self.sound: dict[str, list[str]] = {}
        """By task: programs that behave as the reference does."""
        self._tasks: dict[tuple[int, Kind, str], set[str]] = {}
        self._known: dict[tuple[str, str], Verdict] = {}

    # --- time

    def spent(self) -> bool:
        """Whether the time of this tier is used up."""
        return time.monotonic() >= self.until

    def left(self) -> float:
        """Seconds left for this tier."""
        return max(0.0, self.until - time.monotonic())

    def skip(self, text: str, item: Item | None = None) -> None:
        """Write down, once, what was not checked and why; the tasks that it is true of are named together."""
        tasks = self._skipped.setdefault(text, [])
        if item is not None and item.id not in tasks:
            tasks.append(item.id)

    @property
    def not_checked(self) -> list[str]:
        """What was not checked, and why."""
        out: list[str] = []
        for text, tasks in self._skipped.items():
            more = f" and {len(tasks) - 3} more" if len(tasks) > 3 else ""
            out.append(f"{text} (task {', '.join(tasks[:3])}{more})" if tasks else text)
        return out

    def stream(self, *name: Any) -> Random:
        """A random stream by name."""
        return python_random((self.seed, *[sum(str(part).encode()) for part in name], len(name)))

    # --- verdicts

    async def judge(self, item: Item, answer: Answer) -> Verdict:
        """The verdict of an answer; the same answer is asked once."""
        key = (item.id, json.dumps(answer, sort_keys=True, default=repr))
        if key not in self._known:
            verdict = self._known[key] = await self.subject.verify(item, answer)
            if str(verdict.invalid or "").startswith("slow") and self.subject.seconds > HURRIED:
                claim = f"the verifier gives no verdict on this answer within {self.subject.seconds:g} s"
                self.write(Finding(2, "lead", item.id, claim, "no verdict in time", "slow", (answer,)))
                self.skip(f"verdicts that take longer than {HURRIED:g} s, after one that did not come")
                self.subject.seconds = HURRIED
        return self._known[key]

    async def bar(self, item: Item) -> float:
        """The score from which an answer passes: what is declared, else the reference's own, else 1."""
        if self.subject.threshold is not None:
            return self.subject.threshold - ALMOST
        if item.reference is not None:
            verdict = await self.judge(item, item.reference)
            if valid(verdict) and score(verdict) >= PASSED:
                return score(verdict) - ALMOST
        return 1 - ALMOST

    async def passes(self, item: Item, answer: Answer) -> bool:
        """Whether the verifier accepts an answer."""
        verdict = await self.judge(item, answer)
        return valid(verdict) and score(verdict) >= await self.bar(item)

    async def solvable(self, item: Item) -> bool:
        """Whether the reference, where there is one, passes: attacks on a task that nothing passes say nothing."""
        return item.reference is None or await self.passes(item, item.reference)

    # --- results

    def count(self, name: str, hit: bool) -> None:
        """Count one trial of a rate."""
        counted = self.counts.setdefault(name, [0, 0])
        counted[0] += hit
        counted[1] += 1

    def rates(self) -> dict[str, Rate]:
        """All rates with their intervals."""
        return {name: rate(hits, of) for name, (hits, of) in self.counts.items()}

    def write(self, finding: Finding) -> None:
        """Write a finding down. The same fault in another task is counted, not repeated."""
        key = (finding.tier, finding.kind, finding.name)
        old, tasks = self.findings.get(key), self._tasks.setdefault(key, set())
        tasks.add(finding.task)
        self.findings[key] = replace(old or finding, tasks=len(tasks))

    async def note(
        self,
        tier: int,
        kind: Kind,
        item: Item,
        name: str,
        claim: str,
        answers: Sequence[Answer],
        holds: Holds = "passes",
    ) -> bool:
        """Write a finding about verdicts down, if it is seen once more; whether it was."""
        finding = Finding(tier, kind, item.id, claim, name, holds, tuple(answers))
        if not await still(self.subject, item, finding, await self.bar(item)):
            return False
        self.write(finding)
        return True

    async def attack(self, tier: int, kind: Kind, item: Item, name: str, claim: str, answer: Answer) -> bool:
        """Give an answer that should fail; if it passes, that is a finding. Counts towards the false positives."""
        passed = await self.passes(item, answer)
        self.count("false positives" if kind == "confirmed" else "suspicious answers accepted", passed)
        if passed:
            await self.note(tier, kind, item, name, claim, [answer])
        return passed


def valid(verdict: Verdict) -> bool:
    """Whether a verdict holds a score."""
    return verdict.invalid is None and verdict.score is not None


def score(verdict: Verdict) -> float:
    """The score of a valid verdict."""
    return float(verdict.score) if verdict.score is not None else float("nan")


def told(verdict: Verdict) -> str:
    """A verdict for people."""
    return f"score {score(verdict):g}" if valid(verdict) else f"no score ({verdict.invalid or 'none was given'})"


def same(one: Verdict, other: Verdict) -> bool:
    """Whether two verdicts say the same; two invalid ones do, whatever their reasons."""
    return one.score == other.score if valid(one) and valid(other) else valid(one) == valid(other)


async def still(subject: Subject, item: Item, finding: Finding, bar: float) -> bool:
    """Whether a finding about verdicts is seen (again) when its answers are given in their order."""
    changes: Mapping[str, Any] | None = finding.changes or None
    verdicts = [await subject.verify(item, answer, changes) for answer in finding.answers]
    last = verdicts[-1]
    match finding.holds:
        case "passes":
            return valid(last) and score(last) >= bar
        case "fails":
            return not (valid(last) and score(last) >= bar)
        case "raises":
            return str(last.invalid or "").startswith(("raised", "died"))
        case "slow":
            return str(last.invalid or "").startswith("slow")
        case "differs":
            return not all(same(verdicts[0], verdict) for verdict in verdicts)
        case _:
            return True
