"""What the local engine keeps of each request, what it counts, and how one id is sampled.

Invariant: an id is a function of its logits and one uniform number; companions in the batch have no part in it.
"""

import asyncio
from dataclasses import dataclass, field

import numpy as np
import torch

from strop.core.engine import Sampling
from strop.core.errors import EngineError
from strop.core.trajectory import Completion, Floats, Ints
from strop.engine.cache import tensor


@dataclass(slots=True)
class Counts:
    """What an engine did since it was made.

    Args:
        sampled, prefilled: tokens. A prompt shared by a group counts once.
        steps: packed forwards.
        seconds: time spent in them.
        peak_live: most requests that sampled in one step.
    """

    sampled: int = 0
    prefilled: int = 0
    steps: int = 0
    seconds: float = 0.0
    peak_live: int = 0


@dataclass(slots=True, eq=False)
class Request:
    """One call of `sample` under way. `leader` is the request whose prefill it shares, `followers` the reverse."""

    prompt: Ints
    sampling: Sampling
    stream: np.random.Generator
    session: str
    future: asyncio.Future[Completion]
    slot: int = -1
    leader: "Request | None" = None
    followers: "list[Request]" = field(default_factory=list["Request"])


def refuse(request: Request, error: BaseException) -> None:
    """Answer a request with an `EngineError` of its own: callers that raise one object would mix their tracebacks."""
    if not request.future.done():
        failure = EngineError(
            str(error) if isinstance(error, EngineError) else f"a step of the engine failed: {error!r}"
        )
        failure.__cause__ = error
        request.future.set_exception(failure)


def pick(logits: torch.Tensor, uniform: Floats, temperature: Floats) -> tuple[torch.Tensor, torch.Tensor]:
    """Sample one id a row by inverse CDF.

    Args:
        logits: fp32 [n, vocabulary].
        uniform: in [0, 1); [n].
        temperature: 0 takes the most probable id and gives its log-probability at temperature 1; [n].

    Returns:
        (ids, log-probabilities), [n] each. An id of probability 0 is never taken; NaN logits give NaN.
    """
    device, last = logits.device, logits.shape[1] - 1
    greedy = temperature == 0
    if (temperature != 1).any():
        logits = logits / tensor(np.where(greedy, np.float32(1), temperature), device)[:, None]
    probabilities = torch.softmax(logits, -1)
    cumulative = probabilities.cumsum(-1)
    total = cumulative[:, -1:]
    # The first id whose CDF exceeds the threshold has a probability above 0, also at threshold 0. Rounding must not
    # lift the threshold to the total: there would be no such id.
    below = total.nextafter(torch.zeros_like(total))
    threshold = torch.minimum(tensor(uniform, device)[:, None] * total, below)
    ids = torch.searchsorted(cumulative, threshold, right=True).clamp_(max=last)  # beyond `last` for NaN only
    if greedy.any():
        ids = torch.where(tensor(greedy, device)[:, None], logits.argmax(-1, keepdim=True), ids)
    return ids[:, 0], probabilities.gather(1, ids).log()[:, 0]
