"""The demonstrations of a stage: from the world's player, from a teacher that plays, or saved ones.

Invariant: which demonstrations a batch has is a function of the seed, the draw numbers of the ledger and the source. Saved
episodes are copied into the run folder before the first step, so that a run that goes on learns from the same ones whatever
became of their source; and the teacher's engine starts anew with each batch, so that no state of it crosses a step.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from strop.core.algorithm import Divergence
from strop.core.engine import Engine
from strop.core.errors import UsageError
from strop.core.selection import Kept
from strop.core.task import Task
from strop.core.teacher import tag_of
from strop.core.trajectory import Group, Trajectory
from strop.engine.local import LocalEngine
from strop.loop.assemble import Parts
from strop.loop.batch import Batch, Ledger, too_many_failures
from strop.loop.plan import Plan, StagePlan
from strop.loop.saved import read_saved
from strop.rollout.rows import rows_of
from strop.teach.demonstrations import Demonstrator, demonstrations, replayed, saved, scripted, taught
from strop.teach.saved import encoded
from strop.teach.selection import Filter
from strop.watch.behaviour import is_honeypot
from strop.watch.dataset import read_groups, tasks_by_id, write_groups
from strop.watch.run_folder import RunFolder

ATTEMPTS = 20
"""A batch that is selected gives up after this many draws for each demonstration that it wants."""


class Demonstrations:
    """What a stage learns from that the policy did not play.

    Args:
        parts: who plays what.
        stage: the stage, number `index` of the run.
        folder: where saved episodes were copied to.

    Attributes:
        play: gives the group of a draw.
        world: the world for measures; saved episodes have none of its own, since their artefacts may be lacking.

    Raises:
        UsageError: the source gives nothing to learn from.
    """

    def __init__(self, parts: Parts, stage: StagePlan, index: int, folder: RunFolder) -> None:
        self.parts, self.stage = parts, stage
        self.tasks = parts.world.split(stage.split)
        self.world = parts.world
        self.rule = stage.demonstrating.select
        self.episodes: list[Trajectory] = []
        self._engines: dict[int, LocalEngine] = {}
        self._filter = Filter(None)
        self.play = self._source(index, folder)

    def _source(self, index: int, folder: RunFolder) -> Demonstrator:
        asked, table = self.stage.demonstrating, self.parts.table
        if asked.path is not None:
            copy = _copied(self.parts, self.stage, index, folder)
            self.world = replace(self.world, measures=None)
            self._filter = Filter(self.rule)
            self.episodes = [t for group in copy for t in group.trajectories if self._filter.takes(t)]
            if not self.episodes:
                raise UsageError(f"{asked.path} gives nothing to learn from: {nothing_kept(self._filter)}")
            _check_teachable(self.parts, self.stage, self.episodes)
            return saved(self.episodes, table.seed)
        if asked.source == "teacher":
            return taught(table, self._tutor, self.parts.sampling)
        return scripted(table)

    def _tutor(self, task: Task) -> Engine:
        """The engine of the task's teacher."""
        if self.parts.endpoint is not None:
            return self.parts.endpoint
        teachers, tags = self.parts.learner.models.teachers, self.parts.teachers
        if not teachers:
            raise UsageError('demonstrations = "teacher" needs model.teacher')
        number = tags.index(tag_of(task, tags)) if len(tags) > 1 else 0
        if number not in self._engines:
            stop = self.parts.table.codec.stop_ids
            self._engines[number] = LocalEngine(teachers[number], stop, slots=64, max_slots=4096)
        return self._engines[number]

    def renew(self) -> None:
        """Forget the teachers' engines: their buffers grow with what they were asked, and their shape can change last
        bits."""
        self._engines = {}

    async def batch(self, ledger: Ledger, max_failures: float) -> Batch:
        """The next batch of a warm start; the ledger gives the draw numbers and is moved on.

        With a selection, draws go on until enough are kept; what was turned away is among the rejected.
        """
        self.renew()
        wanted, batch, sieve = self.stage.groups, Batch([]), self._filter if self.episodes else Filter(self.rule)
        selects = self.rule is not None and not self.episodes
        left = wanted * (ATTEMPTS if selects else 1)
        while left and len(batch.groups) < wanted and batch.failure is None:
            count = min(wanted - len(batch.groups), left)
            draws = range(ledger.demonstrations, ledger.demonstrations + count)
            ledger.demonstrations, left = draws.stop, left - count
            for group in await self._draw(draws):
                kept = not is_honeypot(group.task) and (not selects or sieve.takes(group.trajectories[0]))
                (batch.groups if kept else batch.rejected).append(group)
            batch.failure = too_many_failures(batch, max_failures)
        if selects and not batch.groups and batch.failure is None:
            batch.failure = f"{self.stage.demonstrating.source} gave nothing to learn from: {nothing_kept(sieve)}"
        if self.rule is not None or self.episodes:
            batch.metrics = sieve.metrics()
        return batch

    async def _draw(self, draws: range) -> Sequence[Group]:
        seed = self.parts.table.seed
        if self.episodes:
            return replayed(self.episodes, seed, draws)
        return await demonstrations(self.play, self.tasks, seed, draws)


def _check_teachable(parts: Parts, stage: StagePlan, episodes: Sequence[Trajectory]) -> None:
    """Whether somebody can teach each saved episode, where a stage asks a teacher.

    Raises:
        UsageError: a task has no teacher, or is none of the world's where a solution has to be told.
    """
    told = any(isinstance(t, Divergence) and t.teacher == "self" and t.coefficient for t in stage.algorithm.terms)
    known = tasks_by_id(parts.world, stage.split)
    for task in {episode.task.id: episode.task for episode in episodes}.values():
        if stage.algorithm.taught and len(parts.teachers) > 1:
            tag_of(task, parts.teachers)
        if told and task.id not in known:
            raise UsageError(
                f"{stage.demonstrating.path}: task {task.id} is none of world {parts.world.name!r}, which could "
                "tell the teacher no solution of it. Name the tasks of its lines, or learn from them by another row."
            )


def copy_sources(plan: Plan, parts: Parts, folder: RunFolder) -> None:
    """Copy what the stages learn from into the run folder, so that a fault is told before the first step."""
    for index, stage in enumerate(plan.stages):
        if stage.demonstrating.path is not None:
            Demonstrations(parts, stage, index, folder)


def nothing_kept(seen: Filter) -> str:
    """Why nothing was kept, and what to do about it."""
    if not seen.sampled:
        return "no episode could be used. Give another source"
    rule = seen.rule if seen.rule is not None else Kept()
    best = "none was scored" if seen.best is None else f"the best score is {seen.best:g}"
    return (
        f"of {seen.sampled} episodes none has a score above {rule.threshold:g} ({best}; {seen.unscored} unscored). Lower the "
        "threshold of stages.*.select, take easier tasks (stages.*.split), or give a better source"
    )


def _copied(parts: Parts, stage: StagePlan, index: int, folder: RunFolder) -> list[Group]:
    """The saved episodes of a stage, as they stand in the run folder; copied there the first time."""
    copy = folder.path / "data" / f"stage-{index}.jsonl"
    tasks = tasks_by_id(parts.world, stage.split)
    if not copy.is_file():
        groups, left = _usable(parts, stage)
        if not groups:
            why = ", ".join(f"{count} {reason}" for reason, count in left.items()) or "it holds no episode"
            raise UsageError(
                f"{stage.demonstrating.path} gives nothing to learn from: {why}. Give another file, or raise rollout.context "
                "for long ones."
            )
        write_groups(copy, groups, 0, stage.kind)
        said = {"stage_index": index, "path": stage.demonstrating.path, "episodes": len(groups), "left_out": dict(left)}
        folder.log_event(0, "demonstrations", said)
    return read_groups(copy, tasks)


def _unknown(parts: Parts, episode: Trajectory) -> bool:
    """Whether a reply holds the id for what the tokenizer does not know: to imitate it would teach to say nothing."""
    tokenizer = parts.policy.tokenizer
    unknown = tokenizer.get_vocab().get(str(tokenizer.unk_token or "<unk>"))  # the preset has one and does not name it
    said = [turn.completion.tokens for turn in episode.turns]
    return unknown is not None and any((tokens == unknown).any() for tokens in said)


def _usable(parts: Parts, stage: StagePlan) -> tuple[list[Group], Counter[str]]:
    """The saved episodes that can be learned from, encoded, and how many others there are of each kind."""
    table = parts.table
    mine = {task.id for task in parts.world.split(stage.split)}
    every = tasks_by_id(parts.world, stage.split)
    groups: list[Group] = []
    left: Counter[str] = Counter()
    for where, given in read_saved(Path(str(stage.demonstrating.path))):
        task = every.get(given.task.id, given.task)
        if given.error is not None or not given.turns:
            left["failed"] += 1
        elif is_honeypot(task):
            left["impossible on purpose"] += 1
        elif given.task.id in every and given.task.id not in mine:
            left["of tasks of other splits"] += 1
        else:
            try:
                episode = encoded(replace(given, task=task), table.codec, table.append_only)
            except UsageError as problem:
                raise UsageError(f"{where}: {problem}") from None
            if _unknown(parts, episode):
                left["with words that the tokenizer does not know"] += 1
            elif max(map(len, rows_of("", 0, episode, None))) > table.limits.context:
                left["longer than rollout.context"] += 1
            else:
                groups.append(Group(f"saved-{len(groups):06d}", task, (episode,)))
    return groups, left
