"""Divergences between two next-token distributions, in chunks of positions, recomputed in the backward pass.

Memory beyond the hidden states is a few [chunk, vocabulary]. Invariant: the gradient reaches the student only, and both
distributions are taken at the same temperature over the same ids.
"""

import torch
from torch.utils.checkpoint import checkpoint

from strop.core.errors import UsageError
from strop.model.forward import CHUNK
from strop.model.policy import Policy


def divergence_of(kind: str, student: torch.Tensor, teacher: torch.Tensor, beta: float = 0.5) -> torch.Tensor:
    """Divergence of each position, in nats; [N].

    forward: KL(T || S), gradient p_S - p_T in the student's logits. reverse: KL(S || T). jsd: beta KL(T || M) +
    (1 - beta) KL(S || M) with M = beta T + (1 - beta) S (GKD, 2306.13649, eq. 2): beta near 0 is beta x forward, near 1
    (1 - beta) x reverse.

    Args:
        kind: `forward`, `reverse` or `jsd`.
        student, teacher: log-probabilities; [N, vocabulary]. -inf stands for an id that cannot come.
        beta: weight of the teacher in the mixture.
    """
    match kind:
        case "forward":
            return _kl(teacher, student)
        case "reverse":
            return _kl(student, teacher)
        case "jsd":
            if not 0 < beta < 1:
                raise UsageError(f"beta is {beta}; jsd needs 0 < beta < 1. Use forward or reverse at the ends.")
            weights = torch.tensor([beta, 1 - beta], dtype=student.dtype, device=student.device).log()
            mixture = torch.logsumexp(torch.stack([teacher + weights[0], student + weights[1]]), 0)
            return beta * _kl(teacher, mixture) + (1 - beta) * _kl(student, mixture)
        case _:
            raise UsageError(f"divergence {kind!r} is unknown; known: forward, reverse, jsd")


def _kl(p: torch.Tensor, q: torch.Tensor) -> torch.Tensor:
    """KL(p || q) = sum over ids of p (log p - log q), with 0 log 0 = 0."""
    possible = p > -torch.inf
    gap = torch.where(possible, p, 0.0) - torch.where(possible, q, 0.0)
    return (torch.where(possible, p, -torch.inf).exp() * gap).sum(-1)


def log_distribution(policy: Policy, hidden: torch.Tensor, temperature: float) -> torch.Tensor:
    """Log-probabilities over the ids that may be sampled; [N, vocabulary], float32 at least."""
    z = policy.logits(hidden)
    z = z if z.dtype == torch.float64 else z.float()
    return torch.log_softmax(z / temperature, -1)


def divergence_column(
    policies: tuple[Policy, Policy],
    hidden: tuple[torch.Tensor, torch.Tensor],
    temperature: float,
    kind: str,
    beta: float = 0.5,
    chunk: int = CHUNK,
) -> torch.Tensor:
    """Divergence of each position from the hidden states of both; [N].

    Args:
        policies: student and teacher, of one vocabulary.
        hidden: their hidden states at the same positions; [N, width] each.
        temperature: of both.
        kind, beta: see `divergence_of`.
        chunk: positions per chunk.
    """
    (student, teacher), (h_student, h_teacher) = policies, hidden

    def piece(own: torch.Tensor, theirs: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            target = log_distribution(teacher, theirs, temperature)
        return divergence_of(kind, log_distribution(student, own, temperature), target, beta)

    parts = [
        checkpoint(piece, h_student[i : i + chunk], h_teacher[i : i + chunk], use_reentrant=False)
        for i in range(0, len(h_student), chunk)
    ]
    return torch.cat(parts) if parts else h_student.new_zeros(0)
