"""Help for a group in which nobody succeeded, as frozen data. Invariant: help is added to a group; what the agent did itself
stays in it, and is what every success rate counts.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Demonstration:
    """`count` episodes of the world's scripted player join the group.

    Nobody sampled their tokens, so that they have no behaviour log-probability: their ratio is taken around the policy at the
    start of the step. Their term is advantage x grad log pi on text that is not the agent's: a push towards it that no
    weight corrects, as in imitation.
    """

    count: int = 1


@dataclass(frozen=True, slots=True)
class Hint:
    """The agent plays `count` more episodes with the task's solution in the opening.

    Learned from without the solution in front (`keep` false), their tokens have no behaviour log-probability, since they were
    sampled from another prompt; the estimator is that of a demonstration. With `keep` they are on-policy, for the prompt
    with the hint, and what is learned must carry over to the prompt without it.
    """

    count: int = 1
    keep: bool = False


Guide = Demonstration | Hint
