"""All that can happen in a small decision process, put through credit and loss: the expected update, exactly.

Invariant: a group of trajectories counts with its probability, and is given credit by `assign` and a loss by
`policy_loss`, as a batch of a run is; nothing here knows what credit or loss an algorithm has.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations_with_replacement
from math import factorial, prod

import numpy as np
import torch

from strop.core.algorithm import Algorithm, Clip, Credit, NoClip, NoRatio, Ratio, SeqMeanTokenSum
from strop.core.metrics import Mean
from strop.credit.assign import assign
from strop.credit.outcome import Outcome
from strop.objective.columns import Columns, Totals
from strop.objective.objective import policy_loss
from strop.objective.parts import Places


@dataclass(frozen=True, slots=True)
class Path:
    """One trajectory that can happen.

    Args:
        logp: log-probability of each of its tokens, as a function of the parameters; [tokens], float64.
        reward: its return.
    """

    logp: torch.Tensor
    reward: float

    @property
    def chance(self) -> float:
        """Its probability."""
        return float(self.logp.detach().sum().exp())


def choice(logits: torch.Tensor, rewards: Sequence[float]) -> list[Path]:
    """One token, drawn from softmax(logits), and the reward of each."""
    logp = torch.log_softmax(logits, 0)
    return [Path(logp[i : i + 1], reward) for i, reward in enumerate(rewards)]


def bandit(theta: torch.Tensor, rewards: tuple[float, float]) -> list[Path]:
    """Two arms: the first with probability sigmoid(theta)."""
    signed = torch.stack([theta, -theta])
    return [
        Path(torch.nn.functional.logsigmoid(signed[i : i + 1]), reward) for i, reward in enumerate(rewards)
    ]  # fmt: skip


def two_steps(theta: torch.Tensor, rewards: tuple[float, float, float]) -> list[Path]:
    """Token 1 with probability sigmoid(theta_0); after it a second token, 1 with probability sigmoid(theta_1).

    Args:
        theta: [2].
        rewards: of the trajectories `0` (one token), `10` and `11`.
    """
    yes, no = torch.nn.functional.logsigmoid(theta), torch.nn.functional.logsigmoid(-theta)
    tokens = (no[:1], torch.stack([yes[0], no[1]]), torch.stack([yes[0], yes[1]]))
    return [Path(logp, reward) for logp, reward in zip(tokens, rewards, strict=True)]


def expectation(chances: Sequence[float], values: Sequence[float]) -> float:
    """Mean of the values, each counted with its chance."""
    total = Mean(0.0, 0.0)
    for chance, value in zip(chances, values, strict=True):
        total = total + Mean(chance * value, chance)
    return total.total / total.count


def success(paths: Sequence[Path]) -> float:
    """J: the expected return."""
    return expectation([path.chance for path in paths], [path.reward for path in paths])


def columns(
    logp: Sequence[torch.Tensor], behaviour: Sequence[torch.Tensor], credit: Sequence[Sequence[float]]
) -> tuple[Columns, Totals]:
    """Columns of trajectories that make up one group and one optimizer step, all tokens sampled in one turn."""
    lengths = torch.tensor([len(row) for row in logp])
    flat, old = torch.cat(list(logp)), torch.cat(list(behaviour))
    n = len(flat)
    batch = Columns(
        flat,
        None,
        torch.ones(n, dtype=torch.bool),
        old,
        torch.tensor([a for row in credit for a in row], dtype=torch.float64),
        torch.repeat_interleave(torch.arange(len(lengths)), lengths),
        lengths,
        order=torch.cat([torch.arange(len(row)) for row in logp]),
        turn=torch.zeros(n, dtype=torch.int64),
        group_tokens=torch.full((len(lengths),), n),
        anchor_logp=old,
    )
    return batch, Totals(n, len(lengths))


def places_of(batch: Columns) -> Places:
    """Where the tokens of such a batch stand."""
    return Places(batch.trajectory, batch.order, batch.turn, batch.trajectory_tokens)


OFF, FREE = NoRatio(), NoClip()


def plain(credit: Credit, ratio: Ratio = OFF, clip: Clip = FREE) -> Algorithm:
    """Policy gradient with this credit: no ratio and no clip unless given, token sums, mean over trajectories."""
    return Algorithm(credit, ratio, clip, SeqMeanTokenSum(), "the lecture")


def group_loss(algorithm: Algorithm, members: Sequence[Path]) -> torch.Tensor:
    """The loss of one group, by production code."""
    outcomes = [Outcome(np.zeros(1), m.reward, np.zeros(len(m.logp), dtype=np.int64)) for m in members]
    [advantages] = assign(algorithm.credit, [outcomes], {}).advantages
    logp = [member.logp for member in members]
    credit = [[] if a is None else a.tolist() for a in advantages]
    batch, totals = columns(logp, [row.detach() for row in logp], credit)
    return policy_loss(algorithm, batch, totals)[0]


def update(loss: torch.Tensor, theta: torch.Tensor) -> torch.Tensor:
    """The direction that descends a loss: minus its gradient in the parameters."""
    [gradient] = torch.autograd.grad(loss, theta, retain_graph=True)
    return -gradient


def expected_update(algorithm: Algorithm, paths: Sequence[Path], theta: torch.Tensor, size: int = 1) -> torch.Tensor:
    """Mean of the update over every group of `size` trajectories that can be drawn.

    Groups that differ in order only are taken once, with their number: size! / product of (times each was drawn)!.
    """
    total = torch.zeros((), dtype=torch.float64)
    for drawn in combinations_with_replacement(range(len(paths)), size):
        orders = factorial(size) / prod(factorial(times) for times in Counter(drawn).values())
        chance = orders * prod(paths[i].chance for i in drawn)
        total = total + chance * group_loss(algorithm, [paths[i] for i in drawn])
    return update(total, theta)


def true_gradient(paths: Sequence[Path], theta: torch.Tensor) -> torch.Tensor:
    """Gradient of J = sum of p(path) R(path), by differentiation of that sum."""
    return -update(torch.stack([path.logp.sum().exp() * path.reward for path in paths]).sum(), theta)


def token_pull(algorithm: Algorithm, ratios: Sequence[float], advantage: float) -> list[float]:
    """-dL/dlogp of single-token trajectories whose ratio to the old policy is given: how hard each is pulled up.

    The mean over trajectories is taken back, so that each number is that of one token.
    """
    old = [torch.tensor([-2.0], dtype=torch.float64) for _ in ratios]
    leaf = (torch.cat(old) + torch.tensor(list(ratios), dtype=torch.float64).log()).requires_grad_()
    batch, totals = columns(list(leaf.split(1)), old, [[advantage]] * len(ratios))
    return (update(policy_loss(algorithm, batch, totals)[0], leaf) * len(ratios)).tolist()
