"""Where a stage's batch comes from: demonstrations, or groups sampled in launch order. Invariant: every drawn task is
accounted for (trained, rejected or failed), and groups are consumed in the order in which they were launched.

Honeypots are played and measured like any task, and turned away: nothing is ever learned from an impossible twin.
"""

import asyncio
from collections import deque
from dataclasses import dataclass, field

from strop.core.algorithm import Admit
from strop.core.seeds import draw_order
from strop.core.trajectory import Group
from strop.credit.admission import admitted
from strop.loop.assemble import Parts
from strop.loop.plan import StagePlan
from strop.rollout.group import play_group
from strop.teach.demonstrations import demonstrations
from strop.watch.behaviour import HONEYPOT, is_honeypot

REJECTIONS = 20
"""A batch gives up after this many times its groups were rejected in a row."""


@dataclass(slots=True)
class Ledger:
    """What became of every drawn task, over the whole run."""

    drawn: int = 0
    trained: int = 0
    rejected: int = 0
    demonstrations: int = 0


@dataclass(slots=True)
class Batch:
    """Groups to train on, those that admission turned away (logged, never trained), and why the batch was given up."""

    groups: list[Group]
    rejected: list[Group] = field(default_factory=list[Group])
    failure: str | None = None


async def collect(parts: Parts, stage: StagePlan, ledger: Ledger) -> Batch:
    """The next batch of a stage; the ledger gives the draw numbers and is moved on."""
    if stage.kind == "warm_start":
        first = ledger.demonstrations
        ledger.demonstrations += stage.groups
        given = await demonstrations(parts.table, stage.groups, first, stage.split)
        honest = [group for group in given if not is_honeypot(group.task)]
        return Batch(honest, [group for group in given if is_honeypot(group.task)])
    return await _sampled(parts, stage, ledger)


async def _sampled(parts: Parts, stage: StagePlan, ledger: Ledger) -> Batch:
    tasks = parts.world.split(stage.split)
    pending: deque[asyncio.Task[Group]] = deque()
    batch = Batch([])
    in_a_row = 0
    try:
        while len(batch.groups) < stage.groups:
            while len(batch.groups) + len(pending) < stage.groups:
                task = tasks[draw_order(parts.table.seed, ledger.drawn, len(tasks))]
                playing = play_group(
                    parts.table, task, stage.group_size, parts.engine, parts.sampling, "train", ledger.drawn
                )
                pending.append(asyncio.create_task(playing))
                ledger.drawn += 1
            group = await pending.popleft()
            if not is_honeypot(group.task) and admitted(stage.algorithm.admit, group):
                batch.groups.append(group)
                ledger.trained += 1
                in_a_row = 0
            else:
                batch.rejected.append(group)
                ledger.rejected += 1
                in_a_row += 1
            if in_a_row > REJECTIONS * stage.groups:
                batch.failure = _exhausted(stage.algorithm.admit, in_a_row, group)
                break
    finally:
        for playing in pending:
            playing.cancel()
        await asyncio.gather(*pending, return_exceptions=True)
    return batch


def _exhausted(rule: Admit, rejected: int, group: Group) -> str:
    """Why a batch could not be filled, and what to do about it."""
    if is_honeypot(group.task):
        return (
            f"{rejected} groups in a row were turned away, the last one a {HONEYPOT}, which is never trained on. Give the "
            "split more tasks without that tag; then resume or start anew."
        )
    first = next((t.error or (t.verdict and t.verdict.invalid) for t in group.trajectories), None)
    if first is None and rule != "all":
        return (
            f"{rejected} groups in a row had equal rewards, so that admit = {rule} found nothing to learn from (last score: "
            f"{group.trajectories[0].score}). Start warm, take easier tasks, raise rollout.group_size, or set algorithm.admit "
            "= all; then resume or start anew."
        )
    return (
        f"{rejected} groups in a row could not be trained on (last reason: {first or 'no member has a score'}). Look at the "
        "episodes with `strop read`, mend the environment or the verifier, then resume."
    )
