"""A teacher's part of a lesson: which teacher a row asks, and what it adds to the credit.

Invariant: the teacher's number joins the credit after it was given, so that no baseline and no normalisation sees it; a
member without credit stays without.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from strop.core.algorithm import SampledDivergence
from strop.core.metrics import Metrics
from strop.core.task import Task
from strop.core.teacher import tag_of
from strop.core.trajectory import Row
from strop.credit.assign import Credits
from strop.credit.teacher import Heard, signal, teacher_metrics
from strop.engine.endpoint import TokenEndpoint
from strop.learn.teachers import TEACHER
from strop.rollout.rows import sampled_values


def addressed(rows: Sequence[Row], task: Task, tags: Sequence[str]) -> list[Row]:
    """Rows that carry the number of their teacher; as they are where there is only one.

    Args:
        rows: of one trajectory of the task.
        task: what was played.
        tags: the entries of `model.teacher`, in the order of the teachers.
    """
    if len(tags) < 2:
        return list(rows)
    number = tags.index(tag_of(task, tags))
    return [row.with_columns(**{TEACHER: np.full(len(row), number, dtype=np.int32)}) for row in rows]


async def scored(endpoint: TokenEndpoint, rows: Sequence[Row]) -> list[Row]:
    """Rows with `teacher_logp` by a served teacher, and the policy's `logp` as `student_logp`: all ids are shared.

    Args:
        endpoint: reads every row whole.
        rows: with their column `logp`.
    """
    said = await asyncio.gather(*(endpoint.score(row.tokens) for row in rows))
    return [
        row.with_columns(teacher_logp=np.where(row.sampled, logp, np.float32(np.nan)), student_logp=row.columns["logp"])
        for row, logp in zip(rows, said, strict=True)
    ]


def taught(
    term: SampledDivergence | None, credits: Credits, rows: Sequence[Sequence[Sequence[Row]]]
) -> tuple[Credits, Metrics]:
    """Credits with the teacher's part, and what the teacher said.

    Args:
        term: None changes nothing.
        credits: of the task.
        rows: of each member of each group, annotated; none for a member that failed.
    """
    if term is None:
        return credits, {}
    every: list[Heard] = []
    advantages = [list(line) for line in credits.advantages]
    for line, group in zip(advantages, rows, strict=True):
        for place, own in enumerate(group):
            given = line[place]
            if given is None or not own:
                continue
            heard = Heard(
                sampled_values(own, "student_logp"),
                sampled_values(own, "teacher_logp"),
                sampled_values(own, "teacher_kl") if term.baseline else None,
            )
            line[place] = given + signal(term, heard)
            every.append(heard)
    return replace(credits, advantages=advantages), teacher_metrics(term, every) if every else {}
