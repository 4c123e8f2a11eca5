"""Help for groups in which nobody succeeded: what `rollout.guide` may ask for.

Invariant: what a world cannot give is refused.
"""

from strop.core.algorithm import Algorithm, MonteCarlo, One, Zero
from strop.core.errors import UsageError
from strop.core.guide import Demonstration, Guide, Hint
from strop.core.notation import read, written
from strop.core.world import World


def guide_of(text: str, algorithm: Algorithm, world: World, where: str) -> Guide | None:
    """The help that `rollout.guide` names; None for `none`.

    Raises:
        UsageError: the world has no player or no solution, the credit would not see the difference, or a count below 1.
    """
    if text == "none":
        return None
    guide: Guide = read("guide", text, "rollout.guide")
    if guide.count < 1:
        raise UsageError(f"rollout.guide is {text}; its count must be at least 1. Use none for no help.")
    if isinstance(guide, Demonstration) and world.demonstrate is None:
        raise UsageError(
            f"rollout.guide is {text}, but world {world.name!r} has no scripted player. Give the World a `demonstrate`, or "
            "use hint."
        )
    if not isinstance(guide, Demonstration) and world.solution is None:
        raise UsageError(
            f"rollout.guide is {text}, but world {world.name!r} tells no solutions. Give the World a `solution`, or use "
            "demonstration."
        )
    if isinstance(algorithm.credit, One | Zero):
        raise UsageError(
            f"rollout.guide is {text}, but the credit of {where} ({written(algorithm.credit)}) does not ask who succeeded. "
            "Use a row that learns from rewards (grpo, rloo, ppo), or remove rollout.guide."
        )
    if isinstance(guide, Hint) and guide.keep and isinstance(algorithm.credit, MonteCarlo):
        raise UsageError(
            f"rollout.guide is {text}, but the continuations of {where} play from the plain opening, not from the hinted "
            "one. Use hint without keep, or demonstration."
        )
    return guide
