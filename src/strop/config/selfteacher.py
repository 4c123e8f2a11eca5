"""What self-distillation needs of a run, and what would mean nothing with it. Imports no torch.

Invariant: a stage whose teacher could never be told a solution is refused here, with the reason and what to change.
"""

from strop.core.algorithm import Algorithm, Divergence, SampledDivergence
from strop.core.errors import UsageError
from strop.core.world import HINTED, World


def needs_other(algorithm: Algorithm) -> bool:
    """Whether a term learns from a teacher of its own files (`model.teacher`)."""
    return any(
        isinstance(t, SampledDivergence) or (isinstance(t, Divergence) and t.teacher == "other")
        for t in algorithm.terms
    )


def check_self_teacher(algorithm: Algorithm, world: World, size: int, split: str, where: str) -> None:
    """Refuse a divergence to the policy itself where its teacher knows no more than the student.

    Args:
        algorithm: of the stage.
        world: that may give solutions.
        size: members of a group.
        split: the tasks that are played.
        where: `stages.1`.
    """
    for term in algorithm.terms:
        fault = _fault(term, world, size, split) if isinstance(term, Divergence) else None
        if fault is not None:
            raise UsageError(f"{where}: {fault}")


def _fault(term: Divergence, world: World, size: int, split: str) -> str | None:
    if term.teacher == "other":
        if term.solution == "either":
            return None
        return f"solution = {term.solution} has no effect: an other teacher is told nothing. Set teacher = self."
    if world.solution is None:
        return (
            f"teacher = self needs a solution to tell, but world {world.name!r} has no `solution`. Give the World one, or "
            "learn from another model: teacher = other with model.teacher."
        )
    if split == HINTED:
        return (
            f"the tasks of split {HINTED} tell the student the solution too, so that teacher = self would know no more; play "
            "another split"
        )
    if term.solution == "success" and size < 2:
        return (
            f"group_size is {size}, so that no other member can have a success; raise rollout.group_size, or use solution = "
            "reference"
        )
    if term.solution == "reference" and all(world.solution(task, None) is None for task in world.split(split)):
        return f"no task of split {split!r} has a reference solution; use solution = success"
    return None
