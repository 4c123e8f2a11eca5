"""The expected update of an algorithm: production code on every batch that can be drawn, weighted by its probability.

From trajectory to gradient it is all the code that trains: `outcome`, `assign`, `correction_weights`, `admitted`,
`rows_of`, `pack`, `count` and `loss`. Only the model is a table, and float columns are float64 where rows hold float32.
Invariant: every batch is counted with its probability under the policy that samples, and what stands at tokens that were
not sampled is garbage. A batch is a group of each task; where groups do not touch each other, one group of any task gives
the same mean, and where they are admitted by what they hold, that is how they are drawn.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import combinations_with_replacement, product
from math import factorial, prod
from typing import Literal

import numpy as np
import torch

from strop.core.algorithm import (
    Algorithm,
    BatchMean,
    GroupMean,
    MovingAverage,
    Observations,
    RewardToGo,
    SecondMoment,
    TokenMean,
)
from strop.core.message import Message
from strop.core.task import Task, Verdict
from strop.core.trajectory import Completion, Group, Row, Trajectory, Turn
from strop.credit.admission import admitted
from strop.credit.assign import assign
from strop.credit.correction import around_proximal, correction_weights
from strop.credit.outcome import Outcome, outcome
from strop.credit.teacher import Heard, signal
from strop.learn.pack import Pack, count, pack
from strop.model.divergence import divergence_of
from strop.objective.columns import Columns, Totals
from strop.objective.objective import Moment, loss, needs
from strop.rollout.rows import rows_of
from tests.proof.processes import Move, Path, Process

Member = tuple[int, int]
"""Task and path."""
Drawn = tuple[tuple[Member, ...], ...]
"""Members of each group of a batch."""

LEAVES = ("logp", "forward", "reverse", "jsd")
"""What a loss may reach."""
WHOLE = 1 << 30
GARBAGE = 7e5
WRONG = 0.9
"""What a wrong critic says everywhere."""


@dataclass(frozen=True, slots=True)
class Setting:
    """How data is drawn and what is known of it.

    Args:
        size: members of a group.
        stale: whether the stale policy sampled.
        critic: values and process scores are the true ones of the policy that is trained, or `WRONG` everywhere.
        mend: changes rows before they are packed, to plant faults.
        together: batches hold a group of each task, whatever the algorithm.
    """

    size: int = 4
    stale: bool = False
    critic: Literal["exact", "wrong"] = "exact"
    mend: Callable[[Row], Row] | None = None
    together: bool = False


def streams(algorithm: Algorithm) -> bool:
    """Whether the order of a batch's members matters."""
    return isinstance(algorithm.credit, RewardToGo) and isinstance(algorithm.credit.baseline, MovingAverage)


def touching(algorithm: Algorithm) -> bool:
    """Whether what a group teaches depends on the other groups of its batch."""
    credit, scale = algorithm.credit, isinstance(algorithm.credit, GroupMean) and algorithm.credit.scale == "batch"
    return (
        streams(algorithm)
        or scale
        or isinstance(credit, BatchMean)
        or isinstance(algorithm.aggregate, TokenMean)
        or isinstance(algorithm.correction, SecondMoment)
    )


@dataclass(frozen=True, slots=True)
class Update:
    """The expected ascent direction in the policy's parameters, and the largest gradient at an observation."""

    direction: torch.Tensor
    observed: float


@dataclass(frozen=True, slots=True)
class Packed:
    """What one batch is made of, whatever the algorithm.

    Args:
        micro, totals: as the learner packs and counts.
        token: place of each column token among all tokens of the process; [N].
        credit: place of each column token in the members' credit, end to end, the last place for none; [N].
    """

    micro: Pack
    totals: Totals
    token: torch.Tensor
    credit: torch.Tensor


def trajectory(path: Path) -> Trajectory:
    """The path as a rollout would have left it, after a prompt of one token."""
    last = path.moves[-1].turn
    turns: list[Turn] = []
    for k in range(last + 1):
        here = [move for move in path.moves if move.turn == k]
        seen = [*([9] if k == 0 else []), *(move.token for move in here if move.state is None)]
        said = [move.token for move in here if move.state is not None]
        completion = Completion(_ids(said), np.zeros(len(said), np.float32), _ids([0] * len(said)), "stop")
        turns.append(Turn(_ids(seen), completion, Message("assistant", ""), {"paid": path.turn_rewards[k]}))
    return Trajectory(Task("task"), tuple(turns), _ids([]), "done", (), verdict=Verdict(path.score))


def _ids(tokens: list[int]) -> np.ndarray:
    return np.array(tokens, dtype=np.int32)


class Enumeration:
    """All that a process can draw, and what its policies say of every token."""

    def __init__(self, process: Process) -> None:
        self.process = process
        self.trajectories = [[trajectory(path) for path in task] for task in process.tasks]
        self._packed: dict[Drawn, Packed] = {}
        self.moves = [
            (k, i, move) for k, task in enumerate(process.tasks) for i, p in enumerate(task) for move in p.moves
        ]
        self._starts: dict[Member, int] = {}
        for place, (k, i, _) in enumerate(self.moves):
            self._starts.setdefault((k, i), place)

    # --- what the policies say

    @cached_property
    def tables(self) -> dict[str, torch.Tensor]:
        """Numbers of each token of each path; [tokens of the process]. Those of the policy carry its graph."""
        t = self.process.truth

        def each(number: Callable[[Move], torch.Tensor]) -> torch.Tensor:
            garbage = torch.tensor(-GARBAGE, dtype=torch.float64)
            return torch.stack([garbage if move.state is None else number(move) for _, _, move in self.moves])

        def divergence(kind: str) -> torch.Tensor:
            return each(lambda m: divergence_of(kind, t.now[m.state][None], t.other[m.state][None])[0])  # type: ignore[index]

        return {
            "logp": each(lambda m: t.now[m.state][m.token]),  # type: ignore[index]
            "stale": each(lambda m: t.stale[m.state][m.token]),  # type: ignore[index]
            "other": each(lambda m: t.other[m.state][m.token]),  # type: ignore[index]
            "forward": divergence("forward"),
            "reverse": divergence("reverse"),
            "jsd": divergence("jsd"),
        }

    def seen(self, member: Member, critic: str) -> Outcome:
        """The outcome of a path, with what a critic, continuations and a process reward model say of it."""
        k, i = member
        path, truth = self.process.tasks[k][i], self.process.truth
        base = outcome(self.trajectories[k][i])
        before = [truth.value(k, path, n) for n, move in enumerate(path.moves) if move.state is not None]
        firsts = [int(np.flatnonzero(base.turns == turn)[0]) for turn in range(len(base.turn_rewards))]
        starts = [before[n] for n in firsts]
        told = {"values": before, "turn_values": starts, "process": [*starts[1:], path.score]}
        if critic == "wrong":
            told = {name: [WRONG] * len(numbers) for name, numbers in told.items()}
        return replace(base, **{name: np.array(numbers) for name, numbers in told.items()})

    # --- what can be drawn

    def drawn(self, algorithm: Algorithm, setting: Setting) -> list[tuple[Drawn, float]]:
        """Every batch and its probability.

        Order in a group matters to moving averages only; elsewhere a batch stands for all orders of its members.
        """
        groups = [list(self._groups(k, setting, streams(algorithm))) for k in range(len(self.process.tasks))]
        if setting.together or (touching(algorithm) and algorithm.admit == "all"):
            return [(tuple(g for g, _ in batch), prod(p for _, p in batch)) for batch in product(*groups)]
        kept = [((g,), p) for task in groups for g, p in task if self._admitted(algorithm, g)]
        total = sum(p for _, p in kept)
        return [(batch, p / total) for batch, p in kept]

    def _groups(self, task: int, setting: Setting, ordered: bool) -> Iterator[tuple[tuple[Member, ...], float]]:
        truth = self.process.truth
        chances = (truth.stale_chances if setting.stale else truth.chances)[task].tolist()
        members = [(task, i) for i in range(len(chances))]
        ways = (
            product(members, repeat=setting.size) if ordered else combinations_with_replacement(members, setting.size)
        )
        for group in ways:
            orders = 1 if ordered else factorial(setting.size) // prod(factorial(n) for n in Counter(group).values())
            yield group, orders * prod(chances[i] for _, i in group)

    def _admitted(self, algorithm: Algorithm, group: tuple[Member, ...]) -> bool:
        return admitted(
            algorithm.admit, Group("train-000000", Task("task"), tuple(self.trajectories[k][i] for k, i in group))
        )

    def _batch(self, groups: Drawn, mend: Callable[[Row], Row] | None) -> Packed:
        """Rows of all members, packed; kept, since they are the same for every algorithm."""
        if mend is None and groups in self._packed:
            return self._packed[groups]
        rows: list[Row] = []
        for number, group in enumerate(groups):
            for index, (k, i) in enumerate(group):
                rows += rows_of(f"train-{number:06d}", index, self.trajectories[k][i], None)
        rows = rows if mend is None else [mend(row) for row in rows]
        [micro] = pack(rows, WHOLE, Observations(1.0), torch.device("cpu"))
        starts: dict[tuple[str, int], tuple[int, int]] = {}
        used = 0
        for number, group in enumerate(groups):
            for index, (k, i) in enumerate(group):
                starts[f"train-{number:06d}", index] = self._starts[k, i], used
                used += len(self.process.tasks[k][i].actions)
        token: list[int] = []
        credit: list[int] = []
        for n, (row, place) in enumerate(zip(*micro.places, strict=True)):
            origin = micro.rows[int(row)].origin
            first, given = starts[origin.group, origin.member]
            token.append(first + int(place) - 1)  # the prompt's one token is no move
            credit.append(given + int(micro.order[n]) if micro.sampled[n] else used)
        packed = Packed(micro, count(rows, True), torch.tensor(token), torch.tensor(credit))
        if mend is None:
            self._packed[groups] = packed
        return packed

    # --- the expected update

    def update(self, algorithm: Algorithm, setting: Setting = Setting()) -> Update:
        """Expected ascent direction of the production loss over everything that can be drawn."""
        return self.over(algorithm, setting, self.drawn(algorithm, setting))

    def over(self, algorithm: Algorithm, setting: Setting, batches: Sequence[tuple[Drawn, float]]) -> Update:
        """Ascent direction of the production loss, summed over batches with their weights."""
        algorithm = algorithm.within(max(len(path.actions) for task in self.process.tasks for path in task))
        leaves = {name: self.tables[name].detach().clone().requires_grad_() for name in LEAVES}
        penalty = algorithm.kl("reward")
        outcomes = {
            member: self._penalised(member, self.seen(member, setting.critic), penalty.coefficient if penalty else 0.0)
            for member in self._starts
        }
        for groups, chance in batches:
            given = assign(algorithm.credit, [[outcomes[m] for m in group] for group in groups], {}).advantages
            given = [
                [self._taught(algorithm, m, a) for m, a in zip(*pair, strict=True)]
                for pair in zip(groups, given, strict=True)
            ]
            kept = tuple(
                tuple(m for m, a in zip(group, line, strict=True) if a is not None)
                for group, line in zip(groups, given, strict=True)
            )
            credits = [a for line in given for a in line if a is not None]
            if credits:
                columns, totals = self._columns(kept, credits, algorithm, setting, leaves)
                (chance * loss(algorithm, columns, totals, Moment())[0]).backward()
        own = torch.tensor([move.state is not None for _, _, move in self.moves])
        graphs = [(self.tables[name], leaf.grad) for name, leaf in leaves.items() if leaf.grad is not None]
        [direction] = torch.autograd.grad(
            [table[own] for table, _ in graphs],
            self.process.truth.theta,
            [-grad[own] for _, grad in graphs],
            retain_graph=True,
        )
        return Update(direction, max(float(grad[~own].abs().sum()) for _, grad in graphs))

    def _penalised(self, member: Member, seen: Outcome, coefficient: float) -> Outcome:
        """With the KL in the reward: -coefficient x (log pi - log reference) at each sampled token."""
        if not coefficient:
            return seen
        places = self._places(member)
        gap = self.tables["logp"].detach()[places] - self.tables["other"][places]
        return replace(seen, token_rewards=-coefficient * gap.numpy())

    def _taught(self, algorithm: Algorithm, member: Member, advantages: np.ndarray | None) -> np.ndarray | None:
        """With the teacher's part of the credit."""
        term, places = algorithm.sampled_divergence, self._places(member)
        if term is None or advantages is None:
            return advantages
        heard = [self.tables[name].detach()[places].numpy() for name in ("logp", "other", "reverse")]
        return advantages + signal(term, Heard(*heard))

    def _places(self, member: Member) -> list[int]:
        """Places of a path's sampled tokens among all tokens of the process."""
        moves = self.process.tasks[member[0]][member[1]].moves
        return [self._starts[member] + n for n, move in enumerate(moves) if move.state is not None]

    def _columns(
        self,
        groups: Drawn,
        credits: Sequence[np.ndarray],
        algorithm: Algorithm,
        setting: Setting,
        leaves: Mapping[str, torch.Tensor],
    ) -> tuple[Columns, Totals]:
        """What the objective sees of one batch."""
        packed = self._batch(groups, setting.mend)
        micro, token = packed.micro, packed.token
        now = self.tables["logp"].detach()
        behaviour = self.tables["stale"] if setting.stale else now
        correction = None
        if algorithm.correction is not None:
            places = [self._places(member) for group in groups for member in group]
            proximal, then = ([table[p].numpy() for p in places] for table in (now, behaviour))
            weights = correction_weights(algorithm.correction, proximal, then, credits)
            correction = _spread(weights, packed)
        taught = needs(algorithm).divergence
        unknown = algorithm.data == "demonstrations"  # nobody sampled: rows hold NaN
        columns = Columns(
            leaves["logp"][token],
            None,
            micro.sampled,
            torch.full_like(now[token], torch.nan) if unknown else behaviour[token],
            _spread(credits, packed),
            micro.trajectory,
            micro.trajectory_tokens,
            micro.order,
            micro.turn,
            micro.group_tokens,
            anchor_logp=(now if around_proximal(algorithm.correction) else behaviour)[token],
            correction=correction,
        )
        if taught is not None:
            columns = replace(columns, divergence=leaves[taught.kind][token])
        if algorithm.kl("loss") is not None:
            columns = replace(
                columns, reference_logp=self.tables["other"][token], reference_kl=leaves["reverse"][token]
            )
        return columns, packed.totals


def _spread(numbers: Sequence[np.ndarray], packed: Packed) -> torch.Tensor:
    """Numbers of the members' sampled tokens, at the column tokens; garbage at observations."""
    return torch.from_numpy(np.concatenate([*numbers, [GARBAGE]]))[packed.credit]
