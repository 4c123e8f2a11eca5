"""What an audit says: findings that can be replayed, and rates with intervals. Invariant: a finding is confirmed only with
a witness that proves the fault whatever the task means; everything else is a lead."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from strop.core.metrics import wilson

Kind = Literal["confirmed", "lead"]
Holds = Literal["passes", "fails", "raises", "differs", "slow", "static", "probe"]
"""What must be seen again for a finding to still hold: the last answer passes, or fails, or makes the verifier raise; the
verdicts of the answers differ from each other; the verifier gives no verdict in time; the static tier, or a probe, says
the same again."""

TIERS: dict[int, str] = {
    1: "static",
    2: "anchors",
    3: "false positives",
    4: "false negatives",
    5: "fuzzing",
    6: "impossible twins",
    7: "probes",
    8: "reachability",
}


@dataclass(frozen=True, slots=True)
class Finding:
    """One fault, or one suspicion.

    Args:
        tier: 1 to 8, see `TIERS`.
        kind: `confirmed` or `lead`.
        task: id of the task that shows it; empty where it is about the verifier as a whole.
        claim: one sentence for people.
        name: short name of the attack, the same for the same fault in other tasks.
        holds: what must be seen again, see `Holds`.
        answers: answers to give in this order; JSON values.
        tasks: number of tasks in which the same was seen.
        suggestion: what to do, such as a test that tells the two programs apart.
        changes: values of the task that are replaced before asking (impossible twins).
    """

    tier: int
    kind: Kind
    task: str
    claim: str
    name: str
    holds: Holds = "static"
    answers: tuple[Any, ...] = ()
    tasks: int = 1
    suggestion: str = ""
    changes: Mapping[str, Any] = field(default_factory=dict[str, Any])

    def as_json(self) -> dict[str, Any]:
        """The finding as the command prints it; `replay` holds all that a replay needs."""
        replay = {"name": self.name, "holds": self.holds, "answers": list(self.answers), "changes": dict(self.changes)}
        head = {"tier": self.tier, "kind": self.kind, "task": self.task, "claim": self.claim}
        return {**head, "tasks": self.tasks, "suggestion": self.suggestion, "replay": replay}


def read_finding(value: Mapping[str, Any]) -> Finding:
    """The finding of what `as_json` gave. Raises KeyError or TypeError where it is none."""
    replay = value["replay"]
    return Finding(
        int(value["tier"]),
        value["kind"],
        str(value["task"]),
        str(value["claim"]),
        str(replay["name"]),
        replay["holds"],
        tuple(replay["answers"]),
        int(value.get("tasks", 1)),
        str(value.get("suggestion", "")),
        dict(replay.get("changes", {})),
    )


@dataclass(frozen=True, slots=True)
class Rate:
    """`hits` of `of`, with the Wilson interval of 95 %; without any trial all numbers but `of` are None."""

    hits: int
    of: int
    rate: float | None
    low: float | None
    high: float | None


def rate(hits: int, of: int) -> Rate:
    """The rate of hits with its interval."""
    if not of:
        return Rate(0, 0, None, None, None)
    low, high = wilson(hits, of)
    return Rate(hits, of, hits / of, low, high)


@dataclass(frozen=True, slots=True)
class Report:
    """The result of an audit.

    Args:
        subject: what was audited, as it was named.
        options: options of the world, where it has some.
        findings: confirmed ones first, then leads, each by tier.
        rates: by name: `false positives`, `false negatives` and others.
        ceiling: the highest score that the estimated false-negative rate lets an always-right agent reach, with its
            interval; None where no known-good answer was tried.
        not_checked: what was not checked, and why.
        tiers: tiers that ran.
        reach: tier 8: how many tasks are all-pass, all-fail, mixed, and the triage of all-fail.
    """

    subject: str
    options: Mapping[str, Any]
    findings: Sequence[Finding]
    rates: Mapping[str, Rate]
    ceiling: Rate | None
    not_checked: Sequence[str]
    tiers: Sequence[int]
    seconds: float
    reach: Mapping[str, Any] = field(default_factory=dict[str, Any])

    def as_json(self) -> dict[str, Any]:
        """The report as one JSON object."""
        return {
            "subject": self.subject,
            "options": dict(self.options),
            "findings": [finding.as_json() for finding in self.findings],
            "rates": {name: asdict(value) for name, value in self.rates.items()},
            "ceiling": None if self.ceiling is None else asdict(self.ceiling),
            "not_checked": list(self.not_checked),
            "tiers": list(self.tiers),
            "seconds": round(self.seconds, 2),
            "reach": dict(self.reach),
        }


def ceiling(false_negatives: Rate) -> Rate | None:
    """What the verifier caps the score near: 1 - (rate of rejected known-good answers), with the interval turned over."""
    if not false_negatives.of:
        return None
    return rate(false_negatives.of - false_negatives.hits, false_negatives.of)
