"""The audit: tiers in order, each within its time, and replays. Invariant: what did not run is listed as not checked, so that a
short audit never reads like a clean one."""

import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from strop.audit.anchors import check_anchors
from strop.audit.equivalents import check_equivalents
from strop.audit.exam import Exam, still
from strop.audit.finding import TIERS, Finding, Rate, Report, ceiling, rate
from strop.audit.fuzz import check_fuzz
from strop.audit.positives import check_positives
from strop.audit.probes import check_probes
from strop.audit.programs import check_programs
from strop.audit.reach import check_reach
from strop.audit.static import check_static
from strop.audit.subject import Item, Subject
from strop.audit.twins import check_twins
from strop.core.trajectory import Group

ALL: tuple[int, ...] = (1, 2, 3, 4, 5, 6, 7)
"""Tiers that need no model."""
SHARES: dict[int, float] = {1: 1, 2: 5, 3: 8, 4: 4, 5: 3, 6: 1, 7: 2}
"""Parts of the time, by tier; what a tier leaves over goes to those after it."""
MOST = 24
"""Tasks that an audit looks at."""
PROGRAM_SECONDS = 5.0


async def _positives(exam: Exam) -> None:
    end = exam.until
    now = time.monotonic()
    if any(item.sort == "program" for item in exam.items) and end < float("inf"):
        exam.until = now + (end - now) * (0.1 if all(item.sort == "program" for item in exam.items) else 0.5)
    await check_positives(exam)
    exam.until = end
    await check_programs(exam)


CHECKS: dict[int, Callable[[Exam], Awaitable[None]]] = {
    1: check_static,
    2: check_anchors,
    3: _positives,
    4: check_equivalents,
    5: check_fuzz,
    6: check_twins,
    7: check_probes,
}


async def audit(
    subject: Subject,
    tiers: Sequence[int] = ALL,
    seconds: float = 60.0,
    seed: int = 0,
    groups: Sequence[Group] = (),
    stronger: Sequence[Group] = (),
) -> Report:
    """Attack a verifier.

    Args:
        subject: what is audited; it is not closed.
        tiers: which tiers, see `TIERS`; 8 needs `groups`.
        seconds: time for all tiers together. A verdict that is being waited for is not cut short.
        seed: names the random streams of the attacks.
        groups: attempts of a model, for tier 8.
        stronger: attempts of a stronger model, for the triage of tier 8.
    """
    began = time.monotonic()
    exam = Exam(subject, fewer(subject.items, seconds), seed)
    if len(exam.items) < len(subject.items):
        exam.skip(
            f"{len(subject.items) - len(exam.items)} of the subject's tasks: programs take time; give more --seconds"
        )
    for tier, what in TIERS.items():
        if tier not in tiers:
            exam.skip(
                f"tier {tier} ({what}): not asked for" + (" (it needs a model: --model RUN)" if tier == 8 else "")
            )
    left = [tier for tier in ALL if tier in tiers]
    while left:
        tier = left[0]
        time_left = max(0.0, began + seconds - time.monotonic())
        exam.until = time.monotonic() + time_left * SHARES[tier] / sum(SHARES[t] for t in left)
        await CHECKS[tier](exam)
        left = left[1:]
    reach: Mapping[str, Any] = {}
    if 8 in tiers and groups:
        bars = {item.id: await exam.bar(item) for item in exam.items}
        reach = check_reach(exam, groups, stronger, bars)
    return report(exam, tiers, time.monotonic() - began, reach)


def fewer(items: Sequence[Item], seconds: float) -> Sequence[Item]:
    """The tasks for which the time is enough: a program takes about `PROGRAM_SECONDS`."""
    most = max(4, int(min(seconds, 1e6) // PROGRAM_SECONDS))
    if len(items) <= most or not all(item.sort == "program" for item in items):
        return items
    return [items[k * len(items) // most] for k in range(most)]


def report(exam: Exam, tiers: Sequence[int], seconds: float, reach: Mapping[str, Any]) -> Report:
    """The report of a finished exam."""
    findings = sorted(exam.findings.values(), key=lambda f: (f.kind != "confirmed", f.tier, f.name))
    rates = exam.rates()
    negatives: Rate = rates.get("false negatives", rate(0, 0))
    return Report(
        exam.subject.name,
        exam.subject.options,
        findings,
        rates,
        ceiling(negatives),
        exam.not_checked,
        sorted(tiers),
        seconds,
        reach,
    )


async def replay(subject: Subject, findings: Sequence[Finding], seed: int = 0) -> list[tuple[Finding, bool | None]]:
    """Whether each finding still holds; None where that cannot be told (the task is gone, or a model would be needed).

    What was read or looked for (static, probes, order, a fresh process) is looked for again by its whole tier.
    """
    items = {item.id: item for item in subject.items}
    exam = Exam(subject, subject.items, seed)
    again = {f.tier for f in findings if f.holds in ("static", "probe") and f.tier in (1, 2, 7)}
    for tier in sorted(again):
        await CHECKS[tier](exam)
    seen = {(f.tier, f.name) for f in exam.findings.values()}
    out: list[tuple[Finding, bool | None]] = []
    for finding in findings:
        if finding.holds in ("static", "probe"):
            out.append((finding, (finding.tier, finding.name) in seen if finding.tier in again else None))
        elif finding.task not in items:
            out.append((finding, None))
        else:
            item = items[finding.task]
            await subject.renew()
            out.append((finding, await still(subject, item, finding, await exam.bar(item))))
    return out
