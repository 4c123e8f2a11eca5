"""What is kept of a data set of episodes, as frozen data. Invariant: it says what; `teach/selection.py` says how.

It is written in a run file as it is printed: `select = "kept(0.0, cap=4, distinct=true)"` (`core/notation.py`).
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Kept:
    """Rejection sampling: D = {(x, y): R(x, y) > threshold} (2308.01825; ReST's F, 2308.08998).

    Args:
        threshold: an episode is kept if its score is strictly above it; an unscored one is not kept.
        cap: most episodes of one task, the first ones in draw order; None for no cap. Without one, a task that is passed
            with probability p gives p x its draws, so that easy tasks fill the data.
        distinct: episodes of a task with the same ids are kept once, the first of them; it does not count towards the cap.
    """

    threshold: float = 0.0
    cap: int | None = None
    distinct: bool = False
