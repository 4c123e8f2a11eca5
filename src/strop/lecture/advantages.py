"""Figures of credit: groups, returns, values and which groups are worth training on.

Invariant: every advantage comes from `credit.assign.assign`, from outcomes as a run makes them.
"""

from collections.abc import Callable, Mapping, Sequence
from statistics import fmean

import numpy as np

from strop.core.algorithm import GAE, Credit, GroupMean, LeaveOneOut, MonteCarlo, RewardToGo
from strop.core.message import Message
from strop.core.notation import written
from strop.core.task import Task, Verdict
from strop.core.trajectory import Completion, Group, Trajectory, Turn
from strop.credit.admission import admitted, informative
from strop.credit.assign import assign
from strop.credit.outcome import Outcome, outcome
from strop.envs.guess import feasible, solvable
from strop.lecture.figure import Cell, Figure, Table


def _finals(rewards: Sequence[float]) -> list[Outcome]:
    """Outcomes of one token each, with only a final reward."""
    return [Outcome(np.zeros(1), reward, np.zeros(1, dtype=np.int64)) for reward in rewards]


def _credit(credit: Credit, members: Sequence[Outcome]) -> list[list[float]]:
    """Advantages of one group's tokens, by member."""
    return [[] if a is None else a.tolist() for a in assign(credit, [members], {}).advantages[0]]


def group() -> Figure:
    """What a member's return is worth beside those of its group, by each of the group credits."""
    kinds = (GroupMean("population"), GroupMean("sample"), GroupMean(), LeaveOneOut())
    tables: list[Table] = []
    for rewards in ((1.0, 1.0, 0.0, 0.0), (1.0, 0.0, 0.0, 0.0), (1.0, 1.0, 1.0, 0.0)):
        head = ("returns " + " ".join(f"{r:.0f}" for r in rewards), "A_1", "A_2", "A_3", "A_4")
        rows = [(written(kind), *(a for [a] in _credit(kind, _finals(rewards)))) for kind in kinds]
        tables.append(Table(head, tuple(rows), 2))
    return Figure(tuple(tables), ("credit.baselines.group_mean", "credit.baselines.leave_one_out"))


def guess() -> Figure:
    """Guess 10 or 11, when 9, 10 and 11 are left and two guesses.

    The state comes from the real game: from 1 to 11 with three guesses, and the answer to 8 was `higher`.
    """
    numbers, guesses = 11, 2
    low, high = feasible([8], numbers, numbers)
    secrets = range(low, high + 1)

    def after(first: int, secret: int) -> float:
        """V of the state behind a wrong guess, if the rest is played as well as can be."""
        left = feasible([8, first], secret, numbers)
        count = left[1] - left[0] + 1
        return solvable(count, guesses - 1) / count

    def q(first: int) -> float:
        return fmean(1.0 if first == secret else after(first, secret) for secret in secrets)

    value = fmean(q(first) for first in secrets)

    def advantage(first: int) -> float:
        """Mean, over the secrets, of the TD error of the turn in which the guess is made."""
        errors: list[float] = []
        for secret in secrets:
            won = first == secret
            states = [value] if won else [value, after(first, secret)]
            played = Outcome(
                np.zeros(len(states)), float(won), np.arange(len(states)), turn_values=np.array(states)
            )  # fmt: skip
            errors.append(_credit(MonteCarlo(), [played])[0][0])
        return fmean(errors)

    rows = [(f"guess {first}", q(first), value, advantage(first)) for first in secrets]
    code = ("envs.guess.feasible", "envs.guess.solvable", "credit.gae.gae")
    return Figure((Table(("9, 10 or 11 is left", "Q", "V", "A"), tuple(rows)),), code)


def returns() -> Figure:
    """Rewards to go, undiscounted and discounted."""
    turns = np.arange(3)

    def to_go(rewards: Sequence[float], discount: float) -> list[float]:
        played = Outcome(np.array([*rewards[:-1], 0.0]), rewards[-1], turns)
        return _credit(RewardToGo(discount=discount), [played])[0]

    cases = (((0.0, 0.0, 1.0), 1.0), ((0.2, 0.0, 1.0), 1.0), ((0.2, 0.0, 1.0), 0.9))
    rows = [(f"rewards {' '.join(f'{r:g}' for r in rs)}, gamma {g:g}", *to_go(rs, g)) for rs, g in cases]
    return Figure((Table(("", "R_1", "R_2", "R_3"), tuple(rows), 2),), ("credit.returns.reward_to_go",))


VALUES = (0.3, 0.6, 0.4)
"""The lecture's V(h_3), V(h_4), V(h_5)."""


def _played(final: float) -> Outcome:
    return Outcome(np.zeros(3), final, np.arange(3), values=np.array(VALUES))


def gae() -> Figure:
    """TD errors, and their sums by GAE, for the lecture's three values and no reward."""
    rows: list[tuple[Cell, ...]] = [("V(h_t)", *VALUES)]
    for label, lam in (("TD error", 0.0), ("GAE, lambda 0.5", 0.5)):
        rows.append((label, *_credit(GAE(lam), [_played(0.0)])[0]))
    return Figure((Table(("", "t=3", "t=4", "t=5"), tuple(rows), 2),), ("credit.gae.gae",))


def telescope() -> Figure:
    """GAE at lambda 1 beside the return minus the value."""
    tables: list[Table] = []
    for final in (0.0, 1.0):
        [rest] = _credit(RewardToGo(), [_played(final)])
        rows: list[tuple[Cell, ...]] = [
            ("GAE, lambda 1", *_credit(GAE(1.0), [_played(final)])[0]),
            ("R_t - V(h_t)", *(r - v for r, v in zip(rest, VALUES, strict=True))),
            ("R_t alone", *rest),
        ]
        tables.append(Table((f"final reward {final:.0f}", "t=3", "t=4", "t=5"), tuple(rows), 2))
    return Figure(tuple(tables), ("credit.gae.gae", "credit.returns.reward_to_go"))


def _trajectory(score: float, aux: Mapping[str, float]) -> Trajectory:
    """One turn of one token, judged."""
    completion = Completion(
        np.zeros(1, dtype=np.int32), np.zeros(1, dtype=np.float32), np.zeros(1, dtype=np.int32), "stop"
    )  # fmt: skip
    turn = Turn(np.zeros(1, dtype=np.int32), completion, Message("assistant", ""))
    nothing = np.zeros(0, dtype=np.int32)
    return Trajectory(Task("task"), (turn,), nothing, "done", (), verdict=Verdict(score, aux=aux))


def _group(name: str, scores: Sequence[float], partial: Sequence[float] | None = None) -> Group:
    added = [0.0] * len(scores) if partial is None else partial
    members = [_trajectory(score, {"checks": aux}) for score, aux in zip(scores, added, strict=True)]
    return Group(name, Task("task"), tuple(members))


GROUPS = {
    "A": (0.0, 0.0, 0.0, 0.0),
    "B": (0.0, 1.0, 0.0, 1.0),
    "C": (1.0, 1.0, 1.0, 1.0),
    "D": (0.0, 0.0, 1.0, 0.0),
}
"""The lecture's groups: scores of four trajectories each."""


def sampling() -> Figure:
    """Which of four groups say anything, and how often a group does."""
    groups = [_group(name, scores) for name, scores in GROUPS.items()]
    credits = assign(GroupMean("population"), [[outcome(t) for t in g.trajectories] for g in groups], {})
    rows: list[tuple[Cell, ...]] = []
    for drawn, given in zip(groups, credits.advantages, strict=True):
        moving = sum(bool(a is not None and (a != 0).any()) for a in given)
        scores = " ".join(f"{s:.0f}" for s in GROUPS[drawn.id])
        rows.append((drawn.id, scores, "keep" if admitted("mixed", drawn) else "skip", f"{moving} of 4"))
    kept = Table(("group", "scores", "mixed", "trajectories with credit"), tuple(rows))
    sizes = (4, 8, 16)
    chances = [(f"success {p:g}", *(informative(p, size) for size in sizes)) for p in (0.05, 0.5, 0.9)]
    often = Table(("P(informative)", *(f"G={size}" for size in sizes)), tuple(chances))
    return Figure((kept, often), ("credit.admission.admitted", "credit.admission.informative", "credit.assign.assign"))


def partial() -> Figure:
    """Four failures that passed 0, 1, 2 and 1 of the checks, a quarter of a point each."""
    scores, aux = (0.0,) * 4, (0.0, 0.25, 0.5, 0.25)
    rows: list[tuple[Cell, ...]] = []
    for label, drawn in (("success alone", _group("S", scores)), ("with checks", _group("P", scores, aux))):
        members = [outcome(t) for t in drawn.trajectories]
        rows.append((f"{label}: return", *(m.reward or 0.0 for m in members)))
        for kind in (GroupMean(), GroupMean("population")):
            rows.append((f"{label}: {written(kind)}", *(a for [a] in _credit(kind, members))))
    table = Table(("", "y_1", "y_2", "y_3", "y_4"), tuple(rows), 2)
    return Figure((table,), ("credit.outcome.outcome", "credit.baselines.group_mean"))


FIGURES: Mapping[str, Callable[[], Figure]] = {
    "group": group,
    "guess": guess,
    "returns": returns,
    "gae": gae,
    "telescope": telescope,
    "sampling": sampling,
    "partial": partial,
}
"""By the name of the command."""
