"""Combinations of a teacher's terms that mean nothing. Imports no torch.

Invariant: what is refused is refused with the reason and what to change; a coefficient of 0 asks for no teacher.
"""

from strop.core.algorithm import Algorithm, Divergence, SampledDivergence, Term


def teacher_ranges(term: Term) -> list[tuple[bool, str]]:
    """Whether each number of a teacher's term is in its range, and what it is called with its range."""
    match term:
        case Divergence(kind=kind, beta=beta, top=top, cap=cap):
            return [
                (kind != "jsd" or 0 < beta < 1, "divergence's beta (between 0 and 1)"),
                (top is None or top >= 1, "divergence's top (at least 1)"),
                (cap is None or cap > 0, "divergence's cap (above 0)"),
            ]
        case SampledDivergence(bound=bound):
            return [(bound is None or bound > 0, "sampled_divergence's bound (above 0)")]
        case _:
            return []


def teacher_fault(a: Algorithm, teacher: bool) -> str | None:
    """What is wrong with the terms that ask a teacher, or None.

    Args:
        a: what a stage optimises.
        teacher: whether the run has one.
    """
    if a.taught and not teacher:
        return "a divergence needs a teacher; set model.teacher to its path"
    for term in a.terms:
        match term:
            case Divergence(top=None, tail=tail) if tail != "bucket":
                return f"divergence's tail = {tail} has no effect without top; give top, or leave tail out"
            case Divergence(kind=kind, beta=beta) if kind != "jsd" and beta != 0.5:
                return f"divergence's beta has no effect with kind = {kind}; use kind = jsd, or leave beta out"
            case SampledDivergence() if a.data != "on_policy":
                return (
                    f"sampled_divergence weighs what the policy has just sampled, and this row learns from {a.data}. Use "
                    "divergence(kind=forward), or a row of on-policy data."
                )
            case _:
                pass
    return None
