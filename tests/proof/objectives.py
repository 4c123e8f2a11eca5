"""Exact objectives: the return, and those that some rows state in its place. Invariant: each is a sum over all paths and
knows no estimator."""

from collections.abc import Mapping, Sequence

import torch

from tests.proof.processes import Path, Process, log_chance


def expected_return(process: Process) -> torch.Tensor:
    """J, the mean return."""
    return process.truth.mean(lambda _, path: path.total)


def return_per_token(process: Process) -> torch.Tensor:
    """E[(R - b) / n], n the tokens of a trajectory and b the task's mean return, held fixed."""
    means = [process.truth.success(k) for k in range(len(process.tasks))]
    return process.truth.mean(lambda k, path: (path.total - means[k]) / len(path.actions))


def success(process: Process) -> torch.Tensor:
    """P(R > 0)."""
    return process.truth.mean(lambda _, path: float(path.total > 0))


def likelihood(process: Process) -> torch.Tensor:
    """E over the demonstrator's trajectories of log pi."""
    return process.truth.mean(lambda _, path: log_chance(path, process.truth.now), stale=True)


def _kl(p: torch.Tensor, q: torch.Tensor) -> torch.Tensor:
    return (p.exp() * (p - q)).sum()


def _per_state(
    process: Process, path: Path, p: Mapping[str, torch.Tensor], q: Mapping[str, torch.Tensor]
) -> torch.Tensor:
    return torch.stack([_kl(p[str(move.state)], q[str(move.state)]) for move in path.actions]).sum()


def taught(process: Process) -> torch.Tensor:
    """-E over the demonstrator's trajectories of the sum over tokens of KL(teacher || policy)."""
    t = process.truth
    return -t.mean(lambda _, path: _per_state(process, path, t.other, t.now), stale=True)


def taught_where_it_goes(process: Process) -> torch.Tensor:
    """-E of the sum over tokens of KL(policy || teacher), the states held as they are visited now."""
    t = process.truth
    return _held(process, [[_per_state(process, path, t.now, t.other) for path in task] for task in process.tasks])


def halfway_where_it_goes(process: Process) -> torch.Tensor:
    """-E of the sum over tokens of the mean of both KLs to the mixture of policy and teacher, the states held."""
    t = process.truth
    middle = {state: (logp.exp() / 2 + t.other[state].exp() / 2).log() for state, logp in t.now.items()}
    pairs = [
        [_per_state(process, p, t.now, middle) / 2 + _per_state(process, p, t.other, middle) / 2 for p in task]
        for task in process.tasks
    ]
    return _held(process, pairs)


def _held(process: Process, divergences: Sequence[Sequence[torch.Tensor]]) -> torch.Tensor:
    """Minus the mean over tasks and paths, the chances held."""
    t = process.truth
    means = [
        torch.stack([p * d for p, d in zip(chances.detach(), ds, strict=True)]).sum()
        for chances, ds in zip(t.chances, divergences, strict=True)
    ]
    return -torch.stack(means).mean()


def nearness(process: Process) -> torch.Tensor:
    """-KL(policy || reference) of whole trajectories."""
    t = process.truth
    return -t.mean(lambda _, path: log_chance(path, t.now) - log_chance(path, t.other).detach())


def regularised(process: Process) -> torch.Tensor:
    """J - KL(policy || reference) of whole trajectories."""
    return expected_return(process) + nearness(process)
