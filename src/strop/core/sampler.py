"""Which task is drawn next, as frozen data. Invariant: a sampler says how; what was seen of the tasks is in no sampler.

`strop.teach.curriculum` has the formulas, `strop.loop.drawing` draws by them. The floor of a sampler is the share of draws
that is uniform over all tasks: it is what keeps a task from being given up for ever.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Uniform:
    """Every task once an epoch, each epoch in an order of its own."""


@dataclass(frozen=True, slots=True)
class Learnable:
    """w = E[p (1 - p)] of the task's success rate p under Beta(1 + successes, 1 + failures); 2502.12272.

    p (1 - p) is the variance of a 0/1 reward; the mean square of a group-mean advantage is (1 - 1/G) of it.

    Args:
        floor: share of draws that is uniform.
        decay: what a batch leaves of all older counts; 1 forgets nothing.
    """

    floor: float = 0.1
    decay: float = 0.99


@dataclass(frozen=True, slots=True)
class Failing:
    """w = E[1 - p], p as in `Learnable`: prioritised sampling of Kimi k1.5, 2501.12599."""

    floor: float = 0.1
    decay: float = 0.99


@dataclass(frozen=True, slots=True)
class Target:
    """The tasks whose difficulty is nearest to a target T that follows success: AdaRFT, 2504.05520.

    After each batch T' = clip(T + eta (high - low) tanh(alpha (success - level)), low, high), low and high the least and
    the greatest difficulty. T begins at low. The paper has eta 0.5 (50 of 100) and alpha 2.

    Args:
        level: the success rate that is aimed at.
        eta: the farthest step of T, as a share of the range of difficulties.
        alpha: how soon a step is that far.
        nearest: how many tasks are drawn from, in equal shares; all that are as near as the last of them are in it.
    """

    level: float = 0.5
    eta: float = 0.1
    alpha: float = 2.0
    nearest: int = 64


@dataclass(frozen=True, slots=True)
class EasyToHard:
    """Levels of difficulty that open one after the other: level k after `steps[k - 1]` batches.

    The tasks fall into `len(steps) + 1` levels of about equal size by their rank in difficulty.

    Args:
        steps: batches after which the next level opens, rising.
        earlier: share of draws from all earlier levels together.
    """

    steps: tuple[float, ...] = (100.0, 200.0)
    earlier: float = 0.2


@dataclass(frozen=True, slots=True)
class Retire:
    """Tasks that are solved make room for the others, until their counts are forgotten.

    Args:
        solved: the success rate from which on a task is solved.
        revisit: share of draws from all solved tasks together.
        decay: as in `Learnable`.
    """

    solved: float = 0.9
    revisit: float = 0.1
    decay: float = 0.99


Sampler = Uniform | Learnable | Failing | Target | EasyToHard | Retire

UNIFORM = Uniform()
"""The sampler where none was asked for."""
