"""What credit needs to know of one trajectory, and what shaping adds to its rewards before any baseline is taken.

Invariant: the order is fixed: rewards, then overlong and process shaping, then the KL in the reward, then statistics over
groups. An unscored trajectory stays unscored whatever is added.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from strop.core.algorithm import Overlong, Potential, StepReward, Term
from strop.core.trajectory import Trajectory
from strop.credit.process import overlong_penalty, potential_rewards

Array = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Outcome:
    """One trajectory, as credit sees it.

    Args:
        turn_rewards: the environment's reward of each turn; [turns].
        final: score plus auxiliary rewards; None when unscored.
        turns: turn index of each sampled token, in order; [sampled tokens].
        family: moving averages are kept apart by it (the task's first tag).
        values: V before each sampled token (a critic); [sampled tokens].
        turn_values: V before each turn (Monte-Carlo); [turns].
        bootstrap: V of the last state; 0 where the episode terminated.
        process: process score after each turn; [turns].
        token_rewards: reward of each sampled token (the KL penalty); [sampled tokens].
        score: the verifier's alone, for filters: no auxiliary reward makes a failure a success.
    """

    turn_rewards: Array
    final: float | None
    turns: npt.NDArray[np.int64]
    family: str = ""
    values: Array | None = None
    turn_values: Array | None = None
    bootstrap: float = 0.0
    process: Array | None = None
    token_rewards: Array | None = None
    score: float | None = None

    @property
    def reward(self) -> float | None:
        """The return: final plus the sums of turn and token rewards."""
        if self.final is None:
            return None
        penalty = 0.0 if self.token_rewards is None else float(self.token_rewards.sum())
        return self.final + float(self.turn_rewards.sum()) + penalty


def outcome(trajectory: Trajectory) -> Outcome:
    """The outcome of a trajectory, before anything is annotated."""
    lengths = [len(turn.completion.tokens) for turn in trajectory.turns]
    rewards = np.array([sum(turn.rewards.values()) for turn in trajectory.turns], dtype=np.float64)
    final = None
    if trajectory.score is not None and trajectory.verdict is not None:
        final = trajectory.score + sum(trajectory.verdict.aux.values())
    tags = trajectory.task.tags
    turns = np.repeat(np.arange(len(lengths)), lengths)
    return Outcome(rewards, final, turns, tags[0] if tags else "", score=trajectory.score)


def shaped(member: Outcome, terms: Sequence[Term]) -> Outcome:
    """The outcome with overlong penalty, step rewards and potentials added, as the terms say."""
    for term in terms:
        match term:
            case Overlong(length, cache) if member.final is not None:
                member = replace(member, final=member.final + overlong_penalty(len(member.turns), length, cache))
            case StepReward(coefficient) if member.process is not None:
                member = replace(member, turn_rewards=member.turn_rewards + coefficient * member.process)
            case Potential(discount) if member.process is not None:
                before = np.concatenate([np.zeros(1), member.process])[: len(member.process)]
                member = replace(member, turn_rewards=potential_rewards(member.turn_rewards, before, discount))
            case _:
                pass
    return member
