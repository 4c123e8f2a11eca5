"""The loop. There is no other: warm start, reinforcement and rounds are stages over the same rollout, rows and learner.

Invariant: what step n + 1 does is a function of the checkpoint after step n. All state that crosses a step is in
`Position`, the learner, the weights and the engine's shape, and all of it is saved. With `max_lag` above 0 groups cross
steps too, and how they meet the learner depends on the clock: a run that goes on draws the tasks of pending groups again.
"""

import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, cast

import numpy as np
import torch

from strop.core.errors import RunError
from strop.core.learner import StepReport
from strop.core.metrics import Mean, Metrics, Peak, Total, combine, values
from strop.core.notation import written
from strop.core.trajectory import Group, Row
from strop.learn import checkpoint
from strop.loop.account import flat, sampled_tokens, update_columns, why_nothing
from strop.loop.assemble import Parts, weights_for_engine
from strop.loop.batch import Batch, Ledger, Rollouts
from strop.loop.demonstrating import Demonstrations, copy_sources
from strop.loop.drawing import drawing
from strop.loop.evaluate import Evaluation, evaluate_watched
from strop.loop.guarding import Guard
from strop.loop.lesson import Lesson, lesson
from strop.loop.plan import Plan, StagePlan
from strop.loop.preflight import Preflight, preflight
from strop.loop.rounds import Grown, empty, learn_round, passes
from strop.loop.watching import Watch
from strop.watch.alarms import Alarm
from strop.watch.guard import Values
from strop.watch.measure import measure_groups, measure_guidance
from strop.watch.records import episode_record
from strop.watch.run_folder import RunFolder
from strop.watch.timeline import timeline_record

Tensors = dict[str, dict[str, torch.Tensor]]

STREAK = 5
"""Steps in a row without a finite update that stop the run."""


@dataclass(slots=True)
class Position:
    """Where a run stands: steps done in all and in the current stage, and the state that crosses steps.

    `version` is that of the engine's weights: the steps done when they were published. So lag is counted in batches.
    `watch` is the memory of the watch, as `strop.watch.memory` writes it, `guard` that of the guard (`strop.loop.guarding`),
    `sampler` what was seen of the tasks (`strop.teach.curriculum`).
    """

    total: int = 0
    stage: int = 0
    step: int = 0
    version: int = 0
    streak: int = 0
    ledger: Ledger = field(default_factory=Ledger)
    credit: dict[str, float] = field(default_factory=dict[str, float])
    best: dict[str, Any] = field(default_factory=dict[str, Any])
    watch: dict[str, Any] = field(default_factory=dict[str, Any])
    guard: dict[str, Any] = field(default_factory=dict[str, Any])
    sampler: dict[str, Any] = field(default_factory=dict[str, Any])


@dataclass(frozen=True, slots=True)
class StepDone:
    """What one step did.

    Args:
        step, steps: number of the step, from 1, and steps planned in all.
        stage: index and name of its stage.
        values: all metrics, divided.
        evaluation: the evaluation after it, if there was one.
        sentence: why nothing was learned, in plain words, if so.
        checkpoint: name of the checkpoint written after it, if one was.
        alarms: what the watch and the guard raised.
    """

    step: int
    steps: int
    stage: tuple[int, str]
    values: dict[str, float | None]
    evaluation: Evaluation | None
    sentence: str | None
    checkpoint: str | None
    alarms: tuple[Alarm, ...] = ()


class Training:
    """One run, from a position on.

    Args:
        plan: what to do.
        parts: the live parts.
        folder: where all that happens is written.
    """

    def __init__(self, plan: Plan, parts: Parts, folder: RunFolder) -> None:
        self.plan, self.parts, self.folder = plan, parts, folder
        self.position = Position()
        self.spans = parts.table.spans
        self.watch = Watch(plan.watching, parts.table, folder, [])
        self.rollouts: Rollouts | None = None
        self.source: Demonstrations | None = None
        self.grown: Grown | None = None
        self._for_engine: Mapping[str, torch.Tensor] | None = None
        self.guard = Guard(plan.guarding, folder)
        self.drawing = drawing(plan.sampler, parts.world, plan.seed)

    async def run(self, stop: Callable[[], bool] = lambda: False) -> AsyncIterator[StepDone | Preflight]:
        """Train from the current position to the end, or until `stop()` is true after a step; yields what happens.

        A run starts with an evaluation, and its first stage of sampled data with a preflight.

        Raises:
            RunError: the run had to stop (see `_guard`), or an alarm that `watch.stop` names was raised, or a rule of the
                guard that stops.
        """
        try:
            async for event in self._run(stop):
                yield event
        finally:
            await self._close()

    async def _run(self, stop: Callable[[], bool]) -> AsyncIterator[StepDone | Preflight]:
        at = self.position
        if self._for_engine is not None:
            await self._restore_engine()
        if at.total == 0:
            copy_sources(self.plan, self.parts, self.folder)
            first = await self.examine()
            self.folder.log_step(0, "start", flat(first))
            self._log_timeline("start")
        fresh = at.step == 0
        while at.stage < len(self.plan.stages):
            stage = self.plan.stages[at.stage]
            if fresh:
                self._begin(stage)
                if stage.kind != "warm_start" and stage.steps and self.plan.preflighting.tasks:
                    yield await self._preflight()
            fresh = True
            await self._close()
            self._open(stage)
            while at.step < stage.steps:
                done = await self._step(stage, stop)
                yield done
                if (reason := self.watch.reason_to_stop(done.alarms) or self.guard.reason_to_stop()) is not None:
                    raise RunError(reason)
                if self.guard.takes_back:
                    await self._close()
                    self.resume(self.guard.take_back(at.guard, at.ledger, at.total))
                    await self._restore_engine()
                    at, fresh = self.position, False
                    break
                if done.checkpoint is not None and stop():  # asked for after the checkpoint was due: one step more
                    return
            else:
                at.stage, at.step = at.stage + 1, 0

    def resume(self, saved: checkpoint.Checkpoint) -> None:
        """Take the state of a checkpoint: weights, optimizer, engine shape, position."""
        state = saved.state
        position: dict[str, Any] = dict(state["position"])
        position["ledger"] = Ledger(**position["ledger"])
        self.position = Position(**position)
        self.parts.policy.model.load_state_dict(dict(saved.tensors["model"]))
        self.parts.learner.rate = self.position.guard.get("rate", 1.0)
        self._for_engine = cast("Tensors", saved.tensors).get("engine", {})
        self._engine_shape = tuple(state["engine_shape"])
        if self.position.step:
            self._begin(self.plan.stages[self.position.stage])
            self.parts.learner.restore(state["learner"], cast("Tensors", saved.tensors))
        elif "process" in saved.tensors:
            self.parts.learner.models.load({"process": cast("Tensors", saved.tensors)["process"]})

    async def _restore_engine(self) -> None:
        """Give the engine what a checkpoint has for it: weights of its own, if they differed, version and shape."""
        engine, weights = self.parts.engine, self._for_engine or weights_for_engine(self.parts, self.position.version)
        await engine.load(weights, self.position.version)
        engine.resize(*self._engine_shape)
        self._for_engine = None

    async def _close(self) -> None:
        """Leave nobody at play, and say what became of every drawn task."""
        rollouts, self.rollouts = self.rollouts, None
        if rollouts is None:
            return
        pending = len(rollouts.pending)
        await rollouts.close()
        if pending:
            at = self.position
            self.folder.log_event(at.total, "pending", {**asdict(at.ledger), "pending": pending})
            at.ledger.drawn = at.ledger.settled

    def _open(self, stage: StagePlan) -> None:
        """Make what gives the batches of a stage: rollouts, demonstrations, the data set that its rounds grew so far."""
        at = self.position
        self.source = self.grown = None
        if stage.steps and (stage.kind == "warm_start" or stage.demonstrating.share):
            self.source = Demonstrations(self.parts, stage, at.stage, self.folder)
        if stage.kind != "warm_start":
            lag = self.plan.max_lag if stage.kind == "reinforce" else 0
            play = None if self.source is None else self.source.play
            left = stage.steps - at.step
            draw = self.drawing and self.drawing.draws(stage.split, lambda: self.position.sampler)
            self.rollouts = Rollouts(self.parts, stage, at.ledger, left, lag, self.plan.max_failures, draw, play)
        if stage.algorithm.rounds.union:
            self.grown = Grown(self.folder.path / "data", stage, self.parts.world)
            self.grown.load(range(at.total - at.step + 1, at.total + 1))

    def _begin(self, stage: StagePlan) -> None:
        self.parts.learner.begin(stage.algorithm, stage.optimisation, stage.updates)

    async def _step(self, stage: StagePlan, stop: Callable[[], bool]) -> StepDone:
        at = self.position
        began, before = time.perf_counter(), self.parts.engine.counts.sampled
        batch = await self._batch(at.ledger)
        sampled = time.perf_counter()
        if batch.failure is not None:
            self._log_episodes(stage, batch, at.total + 1)
            raise RunError(batch.failure)
        lessons, report = await self._learn(stage, batch)
        credits, rows = lessons[0].credits, [row for each in lessons for row in each.rows]
        learned = time.perf_counter()
        at.total, at.step = at.total + 1, at.step + 1
        if at.step % stage.publish_every == 0 or at.step == stage.steps:
            at.version = at.total
            with self.spans.during("publish"):
                await self.parts.engine.load(weights_for_engine(self.parts, at.version), at.version)
        drawn: Metrics = {}
        if self.rollouts is not None:
            if self.drawing is not None:  # before the release: with lag it draws
                at.sampler, drawn = self.drawing.step(at.sampler, stage.split, batch.own)
            self.rollouts.release()
        metrics = self._metrics(batch, lessons, rows, report) | drawn
        metrics["engine_tokens"] = Total(self.parts.engine.counts.sampled - before)
        metrics["rollout_seconds"] = Mean(sampled - began)
        metrics["learner_seconds"] = Mean(learned - sampled)
        metrics["rollout_tokens_per_second"] = Mean(sampled_tokens(batch.groups), sampled - began)
        metrics["learner_tokens_per_second"] = Mean(sum(map(len, rows)) * stage.optimisation.epochs, learned - sampled)
        at.streak = at.streak + 1 if report.skipped.get("non-finite") and not report.updates else 0
        self._log(stage, batch, rows, report)
        if stage.kind != "warm_start":  # what a script plays says nothing about the agent
            with self.spans.during("evaluate"):
                at.watch, second = await self.watch.step(at.watch, at.total, batch.own)
            metrics |= second
        evaluation = await self._evaluate(stage)
        read = values(metrics)
        if evaluation is not None:
            read |= flat(evaluation)
        self.folder.log_step(at.total, stage.kind, {"stage_index": at.stage, **read})
        self._log_timeline(stage.kind)  # before the checkpoint: a run that goes on from it has all steps
        alarms = (*self.watch.tell(), *self._hold(stage, read, rows, report))
        reason = self.watch.reason_to_stop(alarms) or self.guard.reason_to_stop()
        name = None if self.guard.takes_back else self._checkpoint(evaluation, stop() or reason is not None)
        self._guard()
        sentence = why_nothing(stage, credits, rows, report)
        return StepDone(at.total, self.plan.steps, (at.stage, stage.kind), read, evaluation, sentence, name, alarms)

    async def _batch(self, ledger: Ledger) -> Batch:
        if self.source is not None:
            if self.rollouts is None:
                return await self.source.batch(ledger, self.plan.max_failures)
            self.source.renew()
        if self.rollouts is None:
            raise RuntimeError("_open() must make what gives the batches before the first step of a stage")
        return await self.rollouts.batch()

    def _hold(self, stage: StagePlan, read: Values, rows: Sequence[Row], report: StepReport) -> tuple[Alarm, ...]:
        """Hold the step against the guard; the rows of a step that raises an alarm are kept."""
        at = self.position
        if not stage.algorithm.rewarded:  # a teacher goes on teaching whoever fails
            read = {name: value for name, value in read.items() if name not in ("success", "nonzero_advantage")}
        at.guard, raised = self.guard.look(at.guard, at.total, (at.stage, stage.kind), read, report)
        if raised and rows:
            self.folder.save_update(at.total, update_columns(self.parts.learner.traced(rows)), keep=True)
        return raised

    async def _learn(self, stage: StagePlan, batch: Batch) -> tuple[list[Lesson], StepReport]:
        """One lesson, or one for each threshold of a round."""
        at, learner, algorithm = self.position, self.parts.learner, stage.algorithm
        if algorithm.data != "rounds":
            with self.spans.during("annotate"):
                given = await lesson(self.parts, algorithm, algorithm.credit, batch.groups, at.credit)
            at.credit = dict(given.credits.state)
            with self.spans.during("update"):
                return [given], await self.parts.aside(lambda: learner.step(given.rows))
        groups: Sequence[Group] = batch.groups
        if self.grown is not None:
            self.grown.add(at.total + 1, batch.groups)
            groups = self.grown.groups
        lessons, report = await learn_round(self.parts, algorithm, groups, at.credit)
        if not any(given.rows for given in lessons):
            self._log_episodes(stage, batch, at.total + 1)
            raise RunError(empty(algorithm, groups or batch.groups))
        for credit, given in zip(passes(algorithm), lessons, strict=True):
            if not given.rows:
                self.folder.log_event(at.total + 1, "pass_skipped", {"nothing_passed": written(credit)})
        return lessons, report

    def _metrics(self, batch: Batch, lessons: Sequence[Lesson], rows: Sequence[Row], report: StepReport) -> Metrics:
        credits = lessons[0].credits
        given = [a for group in credits.advantages for a in group if a is not None]
        members = sum(len(group) for group in credits.advantages)
        versions = [row.versions[row.sampled] for row in rows]
        learned = self.position.total - 1  # batches before this one
        lags = [learned - int(v.min()) for v in versions if len(v) and v.min() >= 0]
        extra: Metrics = {
            "nonzero_advantage": Mean(sum(bool(np.any(a)) for a in given), members),
            "singleton_groups": Mean(credits.singletons, len(batch.groups)),
            "rejected_groups": Mean(len(batch.rejected), len(batch.groups) + len(batch.rejected)),
            "trained_rows": Mean(len(rows)),
            "skipped_updates": Mean(sum(report.skipped.values()), report.updates + sum(report.skipped.values())),
        }
        if lags:
            extra["lag"] = Mean(sum(lags), len(lags))
            extra["lag_max"] = Peak(max(lags))
        extra |= measure_guidance([*batch.groups, *batch.rejected])
        measured = [lesson.metrics for lesson in lessons]
        played = self._measure(batch)
        return combine([played, report.metrics, batch.metrics, *measured, extra])

    def _measure(self, batch: Batch) -> Metrics:
        """What was played: by the policy alone where it played at all."""
        if self.rollouts is not None or self.source is None:
            return measure_groups(self.parts.world, batch.own)
        return measure_groups(self.source.world, [*batch.groups, *batch.rejected])

    def _log(self, stage: StagePlan, batch: Batch, rows: Sequence[Row], report: StepReport) -> None:
        step = self.position.total
        self._log_episodes(stage, batch, step)
        if rows:
            traced = self.parts.learner.traced(rows)
            self.folder.save_update(step, update_columns(traced), keep="non-finite" in report.skipped)
        for reason, count in report.skipped.items():
            self.folder.log_event(step, "skipped_updates", {"count": count, "reason": reason})

    def _log_episodes(self, stage: StagePlan, batch: Batch, step: int) -> None:
        records = [
            episode_record(group, member, trajectory, step, stage.kind)
            for group in (*batch.groups, *batch.rejected)
            for member, trajectory in enumerate(group.trajectories)
        ]
        self.folder.log_episodes(step, records)

    def _log_timeline(self, stage: str) -> None:
        """Write who was at work when since this was last called; a run that is taken up again counts from a new origin."""
        if self.spans.on:
            said = {"origin": round(self.spans.began, 3)}
            said |= timeline_record(self.spans.take(), self.spans.origin, self.plan.max_lag)
            self.folder.log_timeline(self.position.total, stage, said)

    async def _evaluate(self, stage: StagePlan) -> Evaluation | None:
        at, every = self.position, self.plan.evaluating.every
        if at.step != stage.steps and not (every and at.total % every == 0):
            return None
        return await self.examine()

    async def examine(self) -> Evaluation:
        await self.parts.examiner.load(None, self.position.version)
        at, episodes = self.position, self.plan.evaluating.episodes
        with self.spans.during("evaluate"):
            found, sight = await evaluate_watched(
                self.parts.table, self.parts.examiner, self.plan.temperature, episodes, step=at.total
            )
        at.watch = self.watch.look(at.watch, sight)
        return found

    async def _preflight(self) -> Preflight:
        await self.parts.examiner.load(None, self.position.version)
        with self.spans.during("evaluate"):
            found = await preflight(self.parts, self.plan.preflighting, self.plan.seed)
        self.folder.log_event(self.position.total, "preflight", {"advice": found.advice, "hopeless": found.hopeless})
        if found.hopeless and self.plan.preflighting.block:
            raise RunError(f"preflight: {found.advice} (preflight.block stops the run here)")
        return found

    def _checkpoint(self, evaluation: Evaluation | None, stopping: bool) -> str | None:
        at, keeping = self.position, self.plan.keeping
        name = f"step-{at.total:08d}"
        value = None if evaluation is None else evaluation.sampled_success
        better = keeping.best and value is not None and value > at.best.get("value", -1.0)
        due = bool(keeping.steps) and at.total % keeping.steps == 0
        if not (due or better or stopping or at.total == self.plan.steps):
            return None
        if better:
            at.best = {"name": name, "value": value}
        at.guard = self.guard.remember(at.guard, name)
        learner = self.parts.learner.state()
        tensors = {"model": self.parts.policy.model.state_dict(), **learner["tensors"]}
        if at.version != at.total:  # the engine's weights are older ones, and lie in this process
            tensors["engine"] = self.parts.engine.policy.model.state_dict()
        shape = list(self.parts.engine.shape)
        position = asdict(replace(at, ledger=at.ledger.without_pending()))
        state = {"position": position, "learner": learner["counters"], "engine_shape": shape}
        self.folder.sync()  # what a checkpoint continues from is on disk before it
        checkpoint.save(self.folder.checkpoints, tensors, state, name)
        checkpoint.retain(
            self.folder.checkpoints, keeping.last, keeping.every, at.best.get("name"), at.guard.get("good")
        )
        return name

    def _guard(self) -> None:
        at = self.position
        if at.streak >= STREAK:
            raise RunError(
                f"{at.streak} steps in a row gave no finite gradient; the weights are those of the last good step. The "
                f"rows are in {self.folder.path}/updates. Look at the rewards; for a lower rate, "
                "start a new run from `strop export` with model.path."
            )
