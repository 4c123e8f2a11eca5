"""What an expected update is, against an exact gradient. Invariant: a verdict is computed, and printed with so few digits
that last bits do not matter."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch

UNBIASED, PARALLEL = 1e-9, 1e-12
"""Relative error below which an update is the gradient, and 1 - cosine below which it has the gradient's direction."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """One update against one gradient.

    Args:
        kind: `unbiased`, `rescaled` (the direction is the gradient's), `biased`, or `none` for an update that is 0.
        factor: best multiple: factor x gradient is as near as can be.
        error: |update - gradient| / |gradient|.
        cosine: of the angle between both.
        where: what the bias does to the parameters, in words; empty unless biased.
    """

    kind: Literal["unbiased", "rescaled", "biased", "none"]
    factor: float
    error: float
    cosine: float
    where: str

    def __str__(self) -> str:
        match self.kind:
            case "unbiased":
                return "unbiased"
            case "none":
                return "no update"
            case "rescaled":
                return f"x {_rounded(self.factor):.3g}"
            case "biased":
                factor = round(self.factor, 2) + 0.0
                return f"biased {_rounded(self.error):.2f}, x {factor:.2f}, {_angle(self.cosine)}, {self.where}"


def _rounded(x: float) -> float:
    return round(x, 9)  # so that what lies on the edge of two printed numbers is printed the same everywhere


def _angle(cosine: float) -> str:
    """The cosine; near 1 what it lacks, so that what is not 1 is not printed as 1."""
    if cosine < 0.999:
        return f"cos {_rounded(cosine):.3f}"
    return f"cos 1 - {1 - cosine:.0e}".replace("e-0", "e-")


def judge(found: torch.Tensor, truth: torch.Tensor, names: Sequence[str]) -> Verdict:
    """The verdict on an expected update.

    Args:
        found: ascent direction; [parameters].
        truth: the exact gradient, not 0.
        names: of the parameters.
    """
    size = float(truth.norm())
    error = float((found - truth).norm()) / size
    if float(found.norm()) < 1e-12 * size:
        return Verdict("none", 0.0, 1.0, 0.0, "")
    factor = float(found @ truth) / size**2
    cosine = float(found @ truth) / size / float(found.norm())
    if error < UNBIASED:
        return Verdict("unbiased", factor, error, cosine, "")
    if cosine > 1 - PARALLEL:
        return Verdict("rescaled", factor, error, cosine, "")
    return Verdict("biased", factor, error, cosine, _where(found, truth, factor, cosine, names))


def _where(found: torch.Tensor, truth: torch.Tensor, factor: float, cosine: float, names: Sequence[str]) -> str:
    """Where to: signs that flip, else the parameter that gets most too much or too little of what the others get."""
    if cosine < 0:
        return "points away"
    tiny = 1e-9 * float(truth.norm())
    flipped = [n for n, f, t in zip(names, found.tolist(), truth.tolist(), strict=True) if f * t < 0 and abs(f) > tiny]
    if flipped:
        return "flips " + " ".join(flipped)
    gaps = (found - factor * truth).abs()
    worst = int((gaps > (1 - 1e-9) * gaps.max()).nonzero()[0])
    if abs(float(found[worst])) < tiny:
        return f"nothing for {names[worst]}"
    return ("more " if float(found[worst] / truth[worst]) > factor else "less ") + names[worst]
