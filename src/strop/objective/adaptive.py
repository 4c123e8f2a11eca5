"""Coefficients that follow a measurement. Invariant: a coefficient used in an update depends on earlier updates only, and
all its state is in a dictionary of numbers that goes into the checkpoint."""

from collections.abc import Mapping

from strop.core.algorithm import KL, Algorithm, EntropyTarget

State = Mapping[str, float]


def start(algorithm: Algorithm) -> dict[str, float]:
    """State before the first update: `entropy_alpha` and `entropy_last`, `kl`."""
    state: dict[str, float] = {}
    for term in algorithm.terms:
        if isinstance(term, EntropyTarget):
            state |= {"entropy_alpha": term.start, "entropy_last": 1e9}
        if isinstance(term, KL) and term.target is not None:
            state["kl"] = term.coefficient
    return state


def coefficients(algorithm: Algorithm, state: State) -> dict[str, float]:
    """Coefficients of the adaptive terms for the next update, by the term's name."""
    out: dict[str, float] = {}
    for term in algorithm.terms:
        if isinstance(term, EntropyTarget):
            out["entropy"] = state["entropy_alpha"] if state["entropy_last"] <= term.target else 0.0
        if isinstance(term, KL) and term.target is not None:
            out["kl"] = state["kl"]
    return out


def follow(algorithm: Algorithm, state: State, entropy: float | None, kl: float | None, n: int) -> dict[str, float]:
    """State after an update.

    Entropy: alpha moves by delta, up where the entropy was at most the target, within its bounds (Skywork-OR1, as in TRL).
    KL: beta <- beta (1 + clip(KL / target - 1, -0.2, 0.2) n / horizon) (Ziegler 2019, section 2.2).

    Args:
        algorithm: whose terms are adaptive.
        state: before.
        entropy: mean entropy of the update's tokens, None where it is not known.
        kl: mean KL of a trajectory to the reference, in nats.
        n: trajectories of the update.
    """
    after = dict(state)
    for term in algorithm.terms:
        if isinstance(term, EntropyTarget) and entropy is not None:
            step = term.delta if entropy <= term.target else -term.delta
            after["entropy_alpha"] = min(max(after["entropy_alpha"] + step, term.low), term.high)
            after["entropy_last"] = entropy
        if isinstance(term, KL) and term.target is not None and kl is not None:
            error = min(max(kl / term.target - 1, -0.2), 0.2)
            after["kl"] *= 1 + error * n / term.horizon
    return after
