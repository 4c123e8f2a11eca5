"""A next-token distribution cut down to the ids that matter, and what becomes of the rest.

Invariant: both distributions of a divergence are cut to the same ids, with the same tail. Nothing is saved by it here,
where both are computed in full: it is the objective of those who get a teacher's likeliest ids only.
"""

from typing import Literal

import torch

Whose = Literal["teacher", "student", "either"]


def likeliest(student: torch.Tensor, teacher: torch.Tensor, top: int, whose: Whose) -> torch.Tensor:
    """Which ids are kept: the `top` likeliest of one distribution, or of either; bool [N, vocabulary].

    Args:
        student, teacher: log-probabilities; [N, vocabulary].
        top: ids of each distribution, at most the vocabulary.
        whose: whose likeliest ids.
    """
    asked = {"teacher": [teacher], "student": [student], "either": [teacher, student]}[whose]
    kept = torch.zeros_like(teacher, dtype=torch.bool)
    for logp in asked:
        kept = kept.scatter(-1, logp.detach().topk(top, -1).indices, True)
    return kept


def shortened(logp: torch.Tensor, kept: torch.Tensor, tail: str) -> torch.Tensor:
    """Log-probabilities over the kept ids, -inf elsewhere; [N, vocabulary], with one more id for a bucket.

    Args:
        logp: [N, vocabulary].
        kept: bool [N, vocabulary].
        tail: `bucket` (the others together are one more id), `renormalised` (the kept ones sum to 1) or `truncated` (they
            keep the chance that they had).
    """
    inside = logp.masked_fill(~kept, -torch.inf)
    match tail:
        case "bucket":
            return torch.cat([inside, _together(logp.masked_fill(kept, -torch.inf))[:, None]], -1)
        case "renormalised":
            return inside - _together(inside)[:, None]
        case "truncated":
            return inside
        case _:
            raise ValueError(f"tail {tail!r} is unknown; known: bucket, renormalised, truncated")


def _together(logp: torch.Tensor) -> torch.Tensor:
    """Logarithm of the sum of the chances, -inf and without gradient where there are none; [N]."""
    none = (logp == -torch.inf).all(-1)
    return logp.masked_fill(none[:, None], 0.0).logsumexp(-1).masked_fill(none, -torch.inf)
