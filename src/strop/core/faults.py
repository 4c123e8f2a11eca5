"""What becomes of a group when an episode fails: it raised, hung beyond its limit, or its worker died.

Invariant: a failed episode is never trained on and never stands in a baseline; these rules only say what is played beside it.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Partial:
    """The group goes on without the failed members, if at least two of it are left (one, in groups of one)."""


@dataclass(frozen=True, slots=True)
class Retry:
    """A failed member is played again with the same random streams, `attempts` times at most; then as `Partial`.

    Unbiased only if failing does not depend on what the agent did (a lost connection, a dead worker).
    """

    attempts: int = 2


@dataclass(frozen=True, slots=True)
class Refill:
    """New members with streams of their own are played for failed ones, `most` of them at most; then as `Partial`.

    Where some actions make the world fail, the group then holds fewer of them than the policy would play.
    """

    most: int = 2


@dataclass(frozen=True, slots=True)
class Drop:
    """A group with a failed member is not trained on."""


Failed = Partial | Retry | Refill | Drop

PARTIAL = Partial()
"""The rule where none was asked for."""
