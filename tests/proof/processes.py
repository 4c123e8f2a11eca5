"""Decision processes small enough to write down whole, and what is exactly true of them.

A policy is a table of logits, one row a state; token 0 of every row has logit 0, so that the parameters are the logits of
the others. Invariant: nothing here imports the code under test; probabilities, values and objectives are plain sums over
all paths, and their gradients are automatic differentiation of those sums.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property

import torch

torch.set_num_threads(1)

Logits = Mapping[str, tuple[float, ...]]


@dataclass(frozen=True, slots=True)
class Move:
    """One token: chosen by the policy in `state`, or drawn by the environment with `chance` where state is None."""

    token: int
    state: str | None
    turn: int = 0
    chance: float = 1.0


@dataclass(frozen=True, slots=True)
class Path:
    """One trajectory that can happen: its tokens, its score and what the environment pays for each turn."""

    moves: tuple[Move, ...]
    score: float
    turn_rewards: tuple[float, ...] = (0.0,)

    @property
    def actions(self) -> list[Move]:
        """The tokens that the policy chose."""
        return [move for move in self.moves if move.state is not None]

    @property
    def total(self) -> float:
        """The return."""
        return self.to_go(0)

    def to_go(self, turn: int) -> float:
        """All that is earned from the start of a turn on."""
        return self.score + sum(self.turn_rewards[turn:])


@dataclass(frozen=True, eq=False)
class Process:
    """Tasks with all their paths, and the tables of the policies.

    Args:
        name: as the page calls it.
        tasks: paths of each task; tasks are equally likely.
        policy: logits of the policy that is trained, at each state, of tokens 1, 2, ...
        stale: logits of the policy that sampled stale data; also the demonstrator.
        other: logits of the teacher; also the reference policy.
        about: a sentence for the page.
    """

    name: str
    tasks: tuple[tuple[Path, ...], ...]
    policy: Logits
    stale: Logits
    other: Logits
    about: str

    @cached_property
    def truth(self) -> "Truth":
        """What is exactly true of it."""
        return Truth(self)

    @property
    def parameters(self) -> list[str]:
        """Names of the parameters, in order: the state, and the token where a state has several."""
        return [s if len(z) == 1 else f"{s}{i + 1}" for s, z in self.policy.items() for i in range(len(z))]


class Truth:
    """Probabilities and means of a process, as graphs in `theta`, the parameters of the policy."""

    def __init__(self, process: Process) -> None:
        self.process = process
        self.theta = torch.tensor(
            [z for row in process.policy.values() for z in row], dtype=torch.float64, requires_grad=True
        )
        rows = self.theta.split([len(row) for row in process.policy.values()])
        self.now = {state: _normalised(row) for state, row in zip(process.policy, rows, strict=True)}
        self.stale, self.other = (
            {state: _normalised(torch.tensor(row, dtype=torch.float64)) for state, row in logits.items()}
            for logits in (process.stale, process.other)
        )
        self.chances = self._chances(self.now)
        self.stale_chances = self._chances(self.stale)

    def _chances(self, policy: Mapping[str, torch.Tensor]) -> list[torch.Tensor]:
        """Probability of each path of each task; [paths] each."""
        return [
            torch.stack([(log_chance(path, policy) + _luck(path)).exp() for path in task])
            for task in self.process.tasks
        ]

    def mean(self, number: Callable[[int, Path], torch.Tensor | float], stale: bool = False) -> torch.Tensor:
        """Mean of a number of (task, path) over the tasks, and over the paths as a policy draws them."""
        means = [
            torch.stack([p * number(k, path) for p, path in zip(ps, paths, strict=True)]).sum()
            for k, (ps, paths) in enumerate(
                zip(self.stale_chances if stale else self.chances, self.process.tasks, strict=True)
            )
        ]
        return torch.stack(means).mean()

    def value(self, task: int, path: Path, before: int) -> float:
        """V of the policy in the state before a move: the mean of what is earned from that move's turn on."""
        seen = [move.token for move in path.moves[:before]]
        total = weight = 0.0
        for other, chance in zip(self.process.tasks[task], self.chances[task].tolist(), strict=True):
            if len(other.moves) > before and [move.token for move in other.moves[:before]] == seen:
                total += chance * other.to_go(path.moves[before].turn)
                weight += chance
        return total / weight

    def success(self, task: int) -> float:
        """Mean return of one task."""
        return self.value(task, self.process.tasks[task][0], 0)

    def gradient(self, objective: torch.Tensor) -> torch.Tensor:
        """Gradient in the policy's parameters; [parameters]."""
        return torch.autograd.grad(objective, self.theta, retain_graph=True)[0]


def _normalised(logits: torch.Tensor) -> torch.Tensor:
    """Log-probabilities of all tokens from the logits of all but the first; [tokens]."""
    return torch.cat([torch.zeros(1, dtype=torch.float64), logits]).log_softmax(0)


def log_chance(path: Path, policy: Mapping[str, torch.Tensor]) -> torch.Tensor:
    """Log-probability of the path's actions."""
    return torch.stack([policy[move.state][move.token] for move in path.actions]).sum()  # type: ignore[index]


def _luck(path: Path) -> torch.Tensor:
    return torch.tensor([move.chance for move in path.moves], dtype=torch.float64).log().sum()


# --- the processes of the page


def two_tokens(first: str, second: str, rewards: tuple[float, float, float]) -> tuple[Path, ...]:
    """u1 is 0 or 1; if it is 1, u2 follows, 0 or 1: the paths 0, 10 and 11. One turn."""
    go = Move(1, first)
    paths = (Move(0, first),), (go, Move(0, second)), (go, Move(1, second))
    return tuple(Path(moves, reward) for moves, reward in zip(paths, rewards, strict=True))


def _asked(answer: int, chance: float, state: str, scores: tuple[float, float]) -> list[Path]:
    ask, said = Move(1, "a"), Move(answer, None, 1, chance)
    return [Path((ask, said, Move(u, state, 1)), score, (-0.1, 0.0)) for u, score in enumerate(scores)]


P, STALE, OTHER = {"a": (0.4,), "b": (-0.7,)}, {"a": (-0.2,), "b": (-1.5,)}, {"a": (0.1,), "b": (0.2,)}

BINARY = Process(
    "binary",
    (two_tokens("a", "b", (0.0, 0.0, 1.0)),),
    P,
    STALE,
    OTHER,
    "one or two tokens, paths `0`, `10`, `11`, of which only `11` is right: rewards 0, 0, 1",
)
GRADED = Process("graded", (two_tokens("a", "b", (0.3, 0.0, 1.0)),), P, STALE, OTHER, "the same with rewards 0.3, 0, 1")
TWO_TASKS = Process(
    "two tasks",
    (two_tokens("a", "b", (0.0, 0.0, 1.0)), two_tokens("c", "d", (0.0, 0.0, 1.0))),
    {"a": (-1.0,), "b": (-1.5,), "c": (0.4,), "d": (0.8,)},
    {"a": (-1.4,), "b": (-1.1,), "c": (0.1,), "d": (0.3,)},
    {"a": (-0.5,), "b": (-0.6,), "c": (0.0,), "d": (0.2,)},
    "twice the binary one, a hard task (a, b) and an easy one (c, d), one group of each in a batch",
)
OBSERVATION = Process(
    "observation",
    (
        (
            Path((Move(0, "a"),), 0.4),
            *_asked(0, 0.6, "b", (0.0, 1.0)),
            *_asked(1, 0.4, "c", (1.0, 0.0)),
        ),
    ),
    {"a": (0.3,), "b": (-0.5,), "c": (0.6,)},
    {"a": (-0.3,), "b": (0.4,), "c": (-0.2,)},
    {"a": (0.0,), "b": (0.5,), "c": (-0.4,)},
    "stop with 0.4, or pay 0.1 and ask: the environment answers by chance, and a second turn must fit the answer",
)
THREE = Process(
    "three tokens",
    (
        (
            Path((Move(0, "a"),), 0.2),
            Path((Move(2, "a"),), 0.5),
            *(Path((Move(1, "a"), Move(u, "b")), score) for u, score in enumerate((0.0, 1.0, 0.6))),
        ),
    ),
    {"a": (0.5, -0.3), "b": (-0.4, 0.7)},
    {"a": (-0.1, 0.4), "b": (0.3, -0.2)},
    {"a": (0.2, 0.1), "b": (0.0, 0.3)},
    "a vocabulary of three: 0 and 2 end the turn, 1 goes on to a second token; rewards 0.2, 0.5 and 0, 1, 0.6",
)
PROCESSES = {p.name: p for p in (BINARY, GRADED, TWO_TASKS, OBSERVATION, THREE)}
