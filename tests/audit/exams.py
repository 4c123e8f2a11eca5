"""Small audits in this process, of trusted functions."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from strop.audit.audit import ALL, audit
from strop.audit.finding import Finding, Report
from strop.audit.guarded import guarded
from strop.audit.local import Local

Judge = Callable[[Any, Any], Any]
SUMS = [{"id": f"s{k}", "prompt": f"{k} + {k}?", "reference": str(2 * k)} for k in range(12, 17)]


def exact(task: Any, answer: Any) -> float:
    """The sound verifier that others are held against."""
    return float(str(answer).strip() == task["reference"])


def examined(judge: Judge, tasks: Sequence[Any] = SUMS, tiers: Sequence[int] = (2, 3, 4, 6), **more: Any) -> Report:
    """The report of one function."""
    return asyncio.run(audit(Local("mine", tasks, judge, **more), tiers, 30.0))


def names(report: Report, kind: str = "confirmed") -> set[str]:
    """Names of the findings of a kind."""
    return {finding.name for finding in report.findings if finding.kind == kind}


def findings(name: str, tiers: tuple[int, ...] = ALL, seconds: float = 20.0) -> list[Finding]:
    """The findings on a subject `module:class`, in the sandbox."""

    async def attack() -> list[Finding]:
        subject = await guarded(name, 8)
        assert subject is not None
        subject.seconds = 5.0
        try:
            return list((await audit(subject, tiers, seconds)).findings)
        finally:
            await subject.close()

    return asyncio.run(attack())
