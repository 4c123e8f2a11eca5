"""Which teacher a task has, and where it comes from, as plain data. Invariant: a task has one teacher or none can be named:
what is not covered, and what is covered twice, is refused before anything is loaded."""

from collections.abc import Sequence
from dataclasses import dataclass

from strop.core.errors import UsageError
from strop.core.source import ModelSource
from strop.core.task import Task

ANY = "*"
"""The entry of `model.teacher` for tasks that no other entry covers."""


@dataclass(frozen=True, slots=True)
class TeacherSource:
    """A teacher to load.

    Args:
        path: as it stands in the run file.
        model: the model, or the one that the run at `path` trains; None for a served one.
        run: folder of that run; None for a model.
        checkpoint: name of its checkpoint, `best` for its best one; None for its newest.
    """

    path: str
    model: ModelSource | None
    run: str | None = None
    checkpoint: str | None = None

    @property
    def served(self) -> bool:
        """Whether `path` is the address of a token endpoint."""
        return self.model is None


def tag_of(task: Task, tags: Sequence[str]) -> str:
    """The entry of `model.teacher` that a task falls under: the one of its own tags, else `*`.

    Args:
        task: with its tags.
        tags: the entries.

    Raises:
        UsageError: no entry covers the task, or two do.
    """
    own = [tag for tag in dict.fromkeys(task.tags) if tag in tags and tag != ANY]
    if len(own) > 1:
        raise UsageError(
            f"task {task.id} has the tags {' and '.join(own)}, and model.teacher names a teacher for each; let the tags that "
            "choose a teacher exclude each other"
        )
    if not own and ANY not in tags:
        raise UsageError(
            f"task {task.id} (tags: {', '.join(task.tags) or 'none'}) has no teacher: model.teacher covers "
            f'{", ".join(tags)}. Add one of its tags, or "*" for all other tasks.'
        )
    return own[0] if own else ANY
