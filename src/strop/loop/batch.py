"""Where the batches of sampled data come from: groups that are sampled while others are learned from.

Invariants: groups are launched in the order in which tasks are drawn and consumed in the order in which they were
launched, so that slow tasks are trained in the proportion in which they were drawn. A group that is trained in batch n
was launched when at least n - lag batches were learned from and published. Every drawn task is accounted for: trained,
rejected, failed, or pending; after a stop the pending ones are drawn again.

A share of the groups may be demonstrations in place of the policy's own; which draws are is a function of seed and number.
Honeypots are played and measured like any task, and turned away: nothing is ever learned from an impossible twin.
"""

import asyncio
import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from strop.core.algorithm import Admit
from strop.core.errors import UsageError
from strop.core.faults import Drop
from strop.core.guide import Hint
from strop.core.metrics import Mean, Metric, Metrics
from strop.core.seeds import draw_order, generator, stream_key
from strop.core.task import Task
from strop.core.trajectory import Group
from strop.credit.admission import admitted
from strop.loop.assemble import Parts
from strop.loop.plan import StagePlan
from strop.rollout.group import GRACE, play_group
from strop.rollout.guide import guided
from strop.teach.demonstrations import Demonstrator, is_demonstration
from strop.watch.behaviour import HONEYPOT, is_honeypot

REJECTIONS = 20
"""A batch gives up after this many times its groups were rejected in a row."""


@dataclass(slots=True)
class Ledger:
    """What became of every drawn task, over the whole run; those drawn and not yet settled are pending."""

    drawn: int = 0
    trained: int = 0
    rejected: int = 0
    failed: int = 0
    demonstrations: int = 0

    @property
    def settled(self) -> int:
        """Tasks whose groups were trained on, rejected or failed: always the first ones drawn."""
        return self.trained + self.rejected + self.failed

    def without_pending(self) -> "Ledger":
        """The ledger of a run that goes on from here in another process: what is pending is drawn again."""
        return replace(self, drawn=self.settled)


@dataclass(slots=True)
class Batch:
    """Groups to train on, those that were turned away (logged, never trained), and why the batch was given up."""

    groups: list[Group]
    rejected: list[Group] = field(default_factory=list[Group])
    failure: str | None = None
    metrics: Metrics = field(default_factory=dict[str, Metric])

    @property
    def own(self) -> list[Group]:
        """What the policy itself played without help, rejected groups included: what others played says nothing of it."""
        return [group.own for group in (*self.groups, *self.rejected) if not is_demonstration(group)]


class Rollouts:
    """The groups of one stage on their way to the learner.

    At most `groups * (lag + 1)` of them are under way or in hand; a group is in hand from the moment it is taken until
    the batch that holds it was learned from and the weights were published. Hence the bound: when a group is launched,
    fewer than `groups * (lag + 1)` are before it, so that at most `lag` batches are learned from before its own
    (AReaL 2505.24298, section 5, counts the same and leaves out those in hand).

    Args:
        parts: who plays.
        stage: what is played.
        ledger: gives the draw numbers, and is moved on.
        steps: batches that the stage still takes; no group is launched beyond them.
        lag: batches that may be learned from between the launch of a group and its own. 0 is synchronous.
        max_failures: a batch is given up when a larger share of its episodes failed.
        draw: the task of a draw number; without it each epoch has every task once, in its own order.
        teacher: plays the draws that are demonstrations, where the stage has a share of them.
    """

    def __init__(
        self,
        parts: Parts,
        stage: StagePlan,
        ledger: Ledger,
        steps: int,
        lag: int,
        max_failures: float,
        draw: Callable[[int], Task] | None = None,
        teacher: Demonstrator | None = None,
    ) -> None:
        self.parts, self.stage, self.ledger, self.lag, self.max_failures = parts, stage, ledger, lag, max_failures
        self.teacher = teacher
        self.tasks = parts.world.split(stage.split)
        if isinstance(stage.guide, Hint) and not stage.guide.keep and not parts.table.append_only:
            raise UsageError(
                "rollout.guide is a hint that is taken out again, but the chat template rebuilds the history, so that it "
                "stands in later prompts too. Use hint(keep=True), or demonstration."
            )
        self.draw = draw or self.in_order
        self.left = steps * stage.groups
        self.held = 0
        self.pending: deque[asyncio.Task[Group]] = deque()

    async def batch(self) -> Batch:
        """The next batch, in launch order. Its groups are in hand until `release`."""
        stage, ledger, batch = self.stage, self.ledger, Batch([])
        in_a_row = 0
        while len(batch.groups) < stage.groups:
            self.launch()
            group = await self.pending.popleft()
            if _unusable(self.parts, group, stage.group_size):
                ledger.failed += 1
            elif not is_honeypot(group.task) and (is_demonstration(group) or admitted(stage.algorithm.admit, group)):
                batch.groups.append(group)
                ledger.trained += 1
                self.held += 1
                self.left -= 1
                in_a_row = 0
                continue
            else:
                ledger.rejected += 1
            batch.rejected.append(group)
            in_a_row += 1
            if len(batch.groups) + len(batch.rejected) >= stage.groups and self._fails(batch):
                break
            if in_a_row > REJECTIONS * stage.groups:
                batch.failure = _exhausted(stage.algorithm.admit, in_a_row, group)
                break
        self._fails(batch)
        if self.teacher is not None:
            others = sum(map(is_demonstration, batch.groups))
            batch.metrics = {"demonstrated_groups": Mean(others, len(batch.groups))}
        return batch

    def _fails(self, batch: Batch) -> bool:
        batch.failure = batch.failure or too_many_failures(batch, self.max_failures)
        return batch.failure is not None

    def launch(self) -> None:
        """Start groups up to the bound."""
        parts, stage, ledger = self.parts, self.stage, self.ledger
        most = stage.groups * (self.lag + 1) - self.held
        while len(self.pending) < min(most, self.left):
            task = self.draw(ledger.drawn)
            by = (parts.engine, parts.sampling)
            if self.teacher is not None and is_shared(parts.table.seed, ledger.drawn, stage.demonstrating.share):
                playing = self.teacher(task, "train", ledger.drawn, stage.group_size)
            else:
                playing = play_group(parts.table, task, stage.group_size, *by, "train", ledger.drawn)
                if stage.guide is not None and not is_honeypot(task):
                    playing = guided(parts.table, playing, stage.guide, *by, ledger.drawn)
            self.pending.append(asyncio.create_task(playing))
            ledger.drawn += 1

    def in_order(self, number: int) -> Task:
        """The task of a draw where no sampler chooses."""
        return self.tasks[draw_order(self.parts.table.seed, number, len(self.tasks))]

    def release(self) -> None:
        """The batch in hand was learned from and the weights are published: with lag, the next groups start at once."""
        self.held = 0
        if self.lag:
            self.launch()

    async def close(self) -> None:
        """Cancel what is pending; an episode that does not stop is left behind after a while."""
        pending = list(self.pending)
        self.pending.clear()
        for playing in pending:
            playing.cancel()
        if pending:
            done, _ = await asyncio.wait(pending, timeout=2 * GRACE)
            for playing in done:
                if not playing.cancelled():
                    playing.exception()


def is_shared(seed: int, draw: int, share: float) -> bool:
    """Whether a draw is a demonstration: floor((n + 1) share + u) > floor(n share + u), with u in [0, 1) by the seed.

    So of any n draws in a row n x share are, give or take one.
    """
    phase = float(generator(stream_key(seed, "demonstrate", -1)).random())
    return math.floor((draw + 1) * share + phase) > math.floor(draw * share + phase)


def too_many_failures(batch: Batch, allowed: float) -> str | None:
    """Why a batch is given up whose episodes failed too often; None if they did not."""
    members = [t for group in (*batch.groups, *batch.rejected) for t in group.trajectories]
    failed = [t for t in members if t.error is not None]
    if len(failed) <= allowed * len(members):
        return None
    return (
        f"{len(failed)} of {len(members)} rollouts of a batch failed (rollout.max_failures allows a share of {allowed}). First "
        f"error: {failed[0].error}"
    )


def _unusable(parts: Parts, group: Group, members: int) -> bool:
    """Whether failed episodes leave too little of a group."""
    good = sum(trajectory.error is None for trajectory in group.trajectories)
    if isinstance(parts.table.failed, Drop):
        return good < len(group.trajectories)
    return good < len(group.trajectories) and good < min(2, members)


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
