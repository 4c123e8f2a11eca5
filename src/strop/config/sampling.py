"""The sampler of a run file: read, within its ranges, and with all that it needs.

Invariant: a sampler that would do nothing in this run, or that lacks what it draws by, is refused with the reason.
"""

import math

from strop.config.sections import RunSection
from strop.core.errors import UsageError
from strop.core.notation import read
from strop.core.sampler import EasyToHard, Failing, Learnable, Retire, Sampler, Target, Uniform
from strop.core.world import World
from strop.loop.plan import StagePlan

DRAWN = ("reward_fell", "plateau")
"""Alarms about the success of the tasks that are drawn: it changes with the draw, whatever the agent can do."""


def sampler_of(run: RunSection, stages: tuple[StagePlan, ...], made: World) -> Sampler:
    """What tasks are drawn by.

    Raises:
        UsageError: no such sampler, a number out of range, no stage that it has an effect in, or nothing to draw by.
    """
    sampler: Sampler = read("sampler", run.rollout.sampler, "rollout.sampler")
    if isinstance(sampler, Uniform):
        return sampler
    where = f"rollout.sampler is {run.rollout.sampler}"
    _check_numbers(sampler, where)
    drawing = {stage.split for stage in stages if stage.kind != "warm_start" and stage.steps}
    if not drawing:
        raise UsageError(
            f"{where}, but no stage of kind reinforce or rounds has steps; demonstrations need none. Remove it."
        )
    if "eval" in drawing:
        raise UsageError(
            f"{where}, and a stage draws from the split eval; no sampler touches the tasks of the evaluation. Give the "
            "stage another split."
        )
    for name in DRAWN:
        if name in run.watch.stop:
            raise UsageError(
                f"{where}, and watch.stop names {name}, which looks at the success of the tasks that are drawn: harder tasks "
                "would stop the run. Remove it from watch.stop."
            )
    if isinstance(sampler, Target | EasyToHard):
        for split in sorted(drawing):
            _check_difficulty(made, split, where)
    if isinstance(sampler, Target):
        fewest = min(drawing, key=lambda split: len(made.split(split)))
        if sampler.nearest >= (count := len(made.split(fewest))):
            raise UsageError(
                f"{where}, but split {fewest!r} has {count} tasks: its nearest {sampler.nearest} are all of them, so that "
                f"it has no effect. Lower it: target(nearest={max(count // 4, 1)})."
            )
    if isinstance(sampler, EasyToHard):
        batches = sum(stage.steps for stage in stages if stage.kind != "warm_start")
        if sampler.steps[-1] >= batches:
            raise UsageError(
                f"{where}, but the run samples {batches} batches, so that the hardest tasks would never be drawn. Lower its "
                f"steps, such as easy_to_hard([{batches / 3:g}, {batches * 2 / 3:g}])."
            )
    return sampler


def _check_numbers(sampler: Sampler, where: str) -> None:
    """Each number of a sampler within its range."""
    wrong: list[str] = []
    match sampler:
        case Learnable() | Failing():
            wrong += [] if 0 <= sampler.floor < 1 else ["floor (0 to below 1)"]
        case Target():
            wrong += [] if 0 < sampler.level < 1 else ["level (between 0 and 1)"]
            wrong += [] if 0 < sampler.eta <= 1 else ["eta (above 0, at most 1: a share of the range)"]
            wrong += [] if sampler.alpha > 0 else ["alpha (above 0)"]
            wrong += [] if sampler.nearest >= 1 else ["nearest (at least 1)"]
        case EasyToHard():
            rising = list(sampler.steps) == sorted(set(sampler.steps))
            wrong += [] if sampler.steps and rising and sampler.steps[0] > 0 else ["steps (some, above 0, rising)"]
            wrong += [] if 0 <= sampler.earlier < 1 else ["earlier (0 to below 1)"]
        case Retire():
            wrong += [] if 0 < sampler.solved <= 1 else ["solved (above 0, at most 1)"]
            wrong += [] if 0 < sampler.revisit < 1 else ["revisit (between 0 and 1)"]
        case _:
            pass
    if isinstance(sampler, Learnable | Failing | Retire) and not 0 < sampler.decay <= 1:
        wrong.append("decay (above 0, at most 1)")
    if wrong:
        raise UsageError(f"{where}; out of range: {', '.join(wrong)}")


def _check_difficulty(made: World, split: str, where: str) -> None:
    """Whether the tasks of a split differ in a difficulty that the world tells."""
    if made.difficulty is None:
        raise UsageError(
            f"{where}, but world {made.name!r} does not say how difficult a task is. Give the World a `difficulty`, or use a "
            "sampler that needs none: learnable, failing, retire."
        )
    found = {float(made.difficulty(task)) for task in made.split(split)}
    if not all(map(math.isfinite, found)):
        raise UsageError(f"{where}, but a difficulty of split {split!r} is not finite; mend the World's `difficulty`")
    if len(found) == 1:
        raise UsageError(f"{where}, but all tasks of split {split!r} are equally difficult, so that it has no effect")
