"""Divergences between two next-token distributions, in chunks of positions, recomputed in the backward pass.

Memory beyond the hidden states is a few [chunk, vocabulary]. Invariant: the gradient reaches the student only, and both
distributions are taken at the same temperature over the same ids.
"""

import torch
from torch.utils.checkpoint import checkpoint

from strop.core.algorithm import Divergence
from strop.core.errors import UsageError
from strop.model.forward import CHUNK
from strop.model.likeliest import likeliest, shortened
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
    return entries_of(kind, student, teacher, beta).sum(-1)


def entries_of(kind: str, student: torch.Tensor, teacher: torch.Tensor, beta: float = 0.5) -> torch.Tensor:
    """What each id adds to `divergence_of`; [N, vocabulary].

    Those of a KL may be negative, those of jsd never: x log x is convex.
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
            never = (teacher == -torch.inf) & (student == -torch.inf)  # where the gradient of a logsumexp is no number
            pair = torch.stack([teacher + weights[0], student + weights[1]]).masked_fill(never, 0.0)
            mixture = torch.logsumexp(pair, 0).masked_fill(never, -torch.inf)
            return beta * _kl(teacher, mixture) + (1 - beta) * _kl(student, mixture)
        case _:
            raise UsageError(f"divergence {kind!r} is unknown; known: forward, reverse, jsd")


def _kl(p: torch.Tensor, q: torch.Tensor) -> torch.Tensor:
    """p (log p - log q) of each id, with 0 log 0 = 0; their sum is KL(p || q)."""
    possible = p > -torch.inf
    gap = torch.where(possible, p, 0.0) - torch.where(possible, q, 0.0)
    return torch.where(possible, p, -torch.inf).exp() * gap


def measured(term: Divergence, student: torch.Tensor, teacher: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Divergence of each position as the term takes it, and the share of the ids that its cap bounded; [N] each.

    Args:
        term: its kind, the ids it keeps (`forward` the teacher's likeliest, else those of either), its tail and cap.
        student, teacher: log-probabilities; [N, vocabulary].
    """
    ids = torch.tensor(student.shape[-1])
    if term.top is not None and term.top < student.shape[-1]:
        kept = likeliest(student, teacher, term.top, "teacher" if term.kind == "forward" else "either")
        student, teacher = (shortened(logp, kept, term.tail) for logp in (student, teacher))
        ids = kept.sum(-1) + (term.tail == "bucket")
    entries = entries_of(term.kind, student, teacher, term.beta)
    if term.cap is None:
        return entries.sum(-1), torch.zeros_like(entries[:, 0])
    bounded = (entries > term.cap).sum(-1) / ids
    return entries.clamp(max=term.cap).sum(-1), bounded.to(entries.dtype)


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
    """Divergence of each position from the hidden states of both, over all ids; [N]. See `measured_columns`."""
    term = Divergence(1.0, kind, beta)  # type: ignore[arg-type]  # `entries_of` refuses an unknown kind
    return measured_columns(policies, hidden, temperature, term, chunk)[0]


def measured_columns(
    policies: tuple[Policy, Policy],
    hidden: tuple[torch.Tensor, torch.Tensor],
    temperature: float,
    term: Divergence,
    chunk: int = CHUNK,
) -> tuple[torch.Tensor, torch.Tensor]:
    """`measured` of each position from the hidden states of both: divergence and share of ids bounded; [N] each.

    Args:
        policies: student and teacher, of one vocabulary.
        hidden: their hidden states at the same positions; [N, width] each.
        temperature: of both.
        term: which divergence.
        chunk: positions per chunk.
    """
    (student, teacher), (h_student, h_teacher) = policies, hidden

    def piece(own: torch.Tensor, theirs: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        with torch.no_grad():
            target = log_distribution(teacher, theirs, temperature)
        return measured(term, log_distribution(student, own, temperature), target)

    parts = [
        checkpoint(piece, h_student[i : i + chunk], h_teacher[i : i + chunk], use_reentrant=False)
        for i in range(0, len(h_student), chunk)
    ]
    if not parts:
        return h_student.new_zeros(0), h_student.new_zeros(0)
    return torch.cat([value for value, _ in parts]), torch.cat([bounded for _, bounded in parts])
