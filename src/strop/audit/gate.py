"""What training asks of a verifier first: tiers 1 and 2 of the audit on a few tasks, within seconds.

Invariant: only confirmed findings stop it, and what cannot be checked in the time does not; no model and no state of
training is involved, and what the world prints meanwhile is not shown. What came out stands in `run.json` under `audit`.
"""

import asyncio
import contextlib
import io
import json
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from strop.audit.anchors import check_anchors
from strop.audit.equivalents import check_equivalents
from strop.audit.exam import Exam
from strop.audit.finding import Finding, Rate, ceiling, rate
from strop.audit.played import subject_of
from strop.audit.static import check_static
from strop.core.errors import UsageError
from strop.core.world import World

TASKS, SECONDS = 6, 4.0
TIERS = (1, 2)


@dataclass(frozen=True, slots=True)
class Glance:
    """What the gate saw of a verifier.

    Args:
        findings: confirmed ones of tiers 1 and 2.
        ceiling: what the verifier caps the score near, as far as time was left for right answers in other forms; None
            where none was tried.
    """

    findings: Sequence[Finding]
    ceiling: Rate | None


def require_sound(name: str, world: World, unaudited: bool = False, report: str | Path | None = None) -> dict[str, Any]:
    """Refuse to train on a verifier that fails tiers 1 and 2.

    Args:
        name: of the world, as the run names it.
        world: whose verifier is looked at.
        unaudited: whether to go on without a look.
        report: a file that `strop audit ENV --json` wrote; its ceiling is taken, since it looked at more.

    Returns:
        What stands in `run.json`: `unaudited`, `tiers`, `ceiling` (see `Rate`, or None), and `report`, what it was of.

    Raises:
        UsageError: the verifier fails, or the report cannot be read.
    """
    given = {} if report is None else _read(Path(report))
    seen = Glance((), None) if unaudited else glance(world)
    if seen.findings:
        claims = "; ".join(f"{finding.task or 'its text'}: {finding.claim}" for finding in seen.findings[:3])
        raise UsageError(
            f"the verifier of {name!r} fails its audit ({claims}). Mend it (strop audit {name}), or train all the same with "
            "--unaudited (unaudited=True in strop.run), which is written into the run."
        )
    found = {"ceiling": None if seen.ceiling is None else asdict(seen.ceiling), **given}
    return {"unaudited": unaudited, "tiers": [] if unaudited else list(TIERS), **found}


def _read(path: Path) -> dict[str, Any]:
    """The ceiling of a report of one subject, counted anew from its numbers, and that subject."""
    try:
        value: Any = json.loads(path.read_text(encoding="utf-8"))
        cap: Any = value["ceiling"]
        counted = None if cap is None else asdict(rate(int(cap["hits"]), int(cap["of"])))
        return {"ceiling": counted, "report": str(value["subject"])}
    except (OSError, ValueError, TypeError, KeyError):
        raise UsageError(f"{path} is no audit of one world; give what `strop audit ENV --json` printed") from None


def glance(world: World) -> Glance:
    """Look at a world's verifier for a few seconds. An environment that waits or raises is not at fault here."""
    with contextlib.redirect_stdout(io.StringIO()):
        return asyncio.run(_glance(world))


async def _glance(world: World) -> Glance:
    found: list[Finding] = []
    rates: dict[str, Rate] = {}
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(SECONDS):
            subject = await subject_of(world, TASKS, SECONDS / 3)
            exam = Exam(subject, subject.items)
            try:
                await check_static(exam)
                exam.until = time.monotonic() + SECONDS / 2
                await check_anchors(exam)
                exam.until = time.monotonic() + SECONDS / 4
                await check_equivalents(exam)
            finally:
                found = [f for f in exam.findings.values() if f.kind == "confirmed" and f.tier in TIERS]
                rates = exam.rates()
    return Glance(found, ceiling(rates["false negatives"]) if "false negatives" in rates else None)
