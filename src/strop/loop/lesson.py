"""From played groups to rows that a learner can learn from: rows, annotations, shaping, credit, corrections.

Invariant: the order is fixed and in this file: annotate, shape the rewards, KL in the reward, credit over groups, what a
teacher adds to it, weights for stale data. A member without credit gives no row.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from strop.core.algorithm import Algorithm, Credit, MonteCarlo, ProcessLabels
from strop.core.metrics import Mean, Metrics
from strop.core.trajectory import Group, Row, Trajectory
from strop.credit.assign import Credits, assign
from strop.credit.correction import correction_weights
from strop.credit.outcome import Outcome, outcome, shaped
from strop.credit.process import hard_label
from strop.loop.assemble import Parts
from strop.loop.taught import addressed, scored, taught
from strop.objective.objective import Needs, needs
from strop.rollout.branch import branch_values
from strop.rollout.privileged import with_twins
from strop.rollout.rows import TRUNCATED, rows_of, sampled_values, with_sampled, with_tail

Array = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Lesson:
    """What the learner is given.

    Args:
        rows: with the columns that the objective needs.
        credits: how they came about.
        metrics: what was measured on the way.
        tasks: id of each group's task.
    """

    rows: list[Row]
    credits: Credits
    metrics: Metrics
    tasks: dict[str, str]


@dataclass(slots=True)
class _Member:
    """One trajectory on its way: rows with annotations, and what credit sees of it."""

    group: Group
    trajectory: Trajectory
    rows: list[Row]
    outcome: Outcome


async def lesson(
    parts: Parts, algorithm: Algorithm, credit: Credit, groups: Sequence[Group], state: dict[str, float]
) -> Lesson:
    """Rows and credits of a batch.

    Args:
        parts: world, engine (for continuations) and learner (for annotations).
        algorithm: what is optimised.
        credit: its credit, or the filter of a round.
        groups: in launch order.
        state: moving averages.
    """
    wanted = needs(algorithm)
    tags = parts.teachers if algorithm.taught else ()
    members = [[_member(g, i, wanted, tags) for i in range(len(g.trajectories))] for g in groups]
    there = [m for group in members for m in group if m.rows]
    anchored = wanted.proximal or (algorithm.weighs and any(m.trajectory.guided for m in there))
    await _annotate(parts, replace(wanted, proximal=anchored), there)
    await _continue(parts, algorithm, credit, members)
    for group in members:
        for member in group:
            _see(parts, algorithm, wanted, member)
    credits = assign(credit, [[m.outcome for m in group] for group in members], state)
    credits, metrics = taught(wanted.sampled_divergence, credits, [[m.rows for m in group] for group in members])
    rows: list[Row] = []
    pairs: list[tuple[_Member, Array]] = []
    for index, group in enumerate(members):
        for place, member in enumerate(group):
            given = credits.advantages[index][place]
            if given is None or not member.rows:
                continue
            own = with_sampled(member.rows, 0.0, advantage=given)
            target = credits.targets[index][place] if credits.targets else None
            if target is not None:
                own = with_sampled(own, np.nan, value_target=target)
            member.rows = own
            pairs.append((member, given))
    if algorithm.correction is not None and pairs:
        metrics |= _correct(algorithm, pairs)
    for member, _ in pairs:
        rows += member.rows
    if wanted.divergence is not None and wanted.divergence.teacher == "self":
        rows, told = with_twins(parts.table, rows, groups, wanted.divergence.solution)
        metrics |= told
    return Lesson(rows, credits, metrics, {group.id: group.task.id for group in groups})


def _member(group: Group, index: int, wanted: Needs, teachers: Sequence[str]) -> _Member:
    trajectory = group.trajectories[index]
    rows: list[Row] = []
    if trajectory.turns and trajectory.error is None:
        rows = rows_of(group.id, index, trajectory, None)
        if wanted.critic is not None:
            rows = with_tail(rows, trajectory)
        rows = addressed(rows, trajectory.task, teachers)
    return _Member(group, trajectory, rows, outcome(trajectory))


async def _annotate(parts: Parts, wanted: Needs, members: Sequence[_Member]) -> None:
    """Add the columns that credit and terms need; one call for the whole batch."""
    asked = {
        "proximal_logp": wanted.proximal,
        "reference_logp": wanted.reference,
        "value": wanted.critic is not None,
        "process": wanted.process,
        "student_logp": wanted.sampled_divergence is not None,
        "teacher_logp": wanted.sampled_divergence is not None,
        "teacher_kl": wanted.sampled_divergence is not None and wanted.sampled_divergence.baseline,
    }
    served = parts.endpoint is not None and wanted.sampled_divergence is not None
    names = [name for name, on in asked.items() if on and not (served and name in ("student_logp", "teacher_logp"))]
    if served:
        names.append("logp")
    if not names:
        return
    rows = [row for member in members for row in member.rows]
    found = await parts.aside(lambda: parts.learner.annotate(rows, names))
    if parts.endpoint is not None and served:
        found = await scored(parts.endpoint, found)
    said = iter(found)
    for member in members:
        member.rows = [next(said) for _ in member.rows]


async def _continue(parts: Parts, algorithm: Algorithm, credit: Credit, members: Sequence[Sequence[_Member]]) -> None:
    """Values and labels that come from continuations, and labels that the world gives."""
    labels = next((t for t in algorithm.terms if isinstance(t, ProcessLabels)), None)
    sampled = labels is not None and labels.kind != "given"
    for group in members:
        if isinstance(credit, MonteCarlo):
            found = await _branch(parts, group[0].group, credit.count, credit.discount)
            for member, values in zip(group, found, strict=True):
                member.outcome = replace(member.outcome, turn_values=values)
        if labels is None:
            continue
        found = await _branch(parts, group[0].group, labels.count, 1.0) if sampled else None
        for index, member in enumerate(group):
            if member.rows and member.outcome.final is not None:
                values = _labels(parts, member, labels, None if found is None else found[index])
                member.rows = with_sampled(member.rows, np.nan, process_label=_at_ends(member.outcome.turns, values))


async def _branch(parts: Parts, group: Group, count: int, discount: float) -> list[Array]:
    found = await branch_values(parts.table, group, count, parts.engine, parts.sampling, discount)
    return [np.array([np.nan if v is None else v for v in values], dtype=np.float64) for values in found]


def _labels(parts: Parts, member: _Member, labels: ProcessLabels, values: Array | None) -> Array:
    """Label of the state after each turn: V of the next turn's start, the score after the last turn; [turns]."""
    if values is None:
        if parts.world.label is None:
            raise RuntimeError("process labels are `given`, but the world has no `label`")
        return np.array(parts.world.label(member.trajectory.task, member.trajectory), dtype=np.float64)
    after = np.append(values[1:], member.trajectory.score or 0.0)
    return np.array([hard_label([v]) for v in after]) if labels.kind == "hard" else after


def _at_ends(turns: npt.NDArray[np.int64], values: Array) -> Array:
    """Values of turns at the last sampled token of each, NaN elsewhere; [sampled tokens]."""
    out = np.full(len(turns), np.nan)
    for k in np.unique(turns):
        out[np.flatnonzero(turns == k)[-1]] = values[k]
    return out


def _see(parts: Parts, algorithm: Algorithm, wanted: Needs, member: _Member) -> None:
    """Let credit see the annotations, and shape the rewards."""
    if not member.rows or member.outcome.final is None:
        return
    seen = member.outcome
    if wanted.critic is not None:
        last = member.rows[-1].final_value
        bootstrap = 0.0 if last is None or member.trajectory.end not in TRUNCATED else last
        seen = replace(seen, values=sampled_values(member.rows, "value"), bootstrap=bootstrap)
    if wanted.process:
        scores = sampled_values(member.rows, "process")
        ends = np.searchsorted(seen.turns, np.arange(len(seen.turn_rewards)), side="right") - 1
        seen = replace(seen, process=scores[np.maximum(ends, 0)])
    term = algorithm.kl("reward")
    if term is not None:
        d = sampled_values(member.rows, "proximal_logp") - sampled_values(member.rows, "reference_logp")
        seen = replace(seen, token_rewards=-parts.learner.coefficient("kl", term.coefficient) * d)
    member.outcome = shaped(seen, algorithm.terms)


def _correct(algorithm: Algorithm, pairs: Sequence[tuple[_Member, Array]]) -> Metrics:
    """Add the column `correction`."""
    if algorithm.correction is None:
        return {}
    proximal = [sampled_values(member.rows, "proximal_logp") for member, _ in pairs]
    behaviour = [np.concatenate([r.behaviour_logp[r.sampled] for r in m.rows]).astype(np.float64) for m, _ in pairs]
    weights = correction_weights(algorithm.correction, proximal, behaviour, [a for _, a in pairs])
    for (member, _), weight in zip(pairs, weights, strict=True):
        member.rows = with_sampled(member.rows, 0.0, correction=weight)
    flat = np.concatenate(weights)
    return {
        "correction": Mean(float(flat.sum()), len(flat)),
        "correction_dropped": Mean(float((flat == 0).sum()), len(flat)),
    }
