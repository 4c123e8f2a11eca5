"""Protocols of the engine and the codec. Invariant: an engine sees token ids only, a codec only ever appends."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from strop.core.errors import UsageError
from strop.core.message import Message
from strop.core.trajectory import Completion, Ints

InFlight = Literal["recompute", "keep", "drain"]
"""What new weights do to completions under way: go on with keys and values computed anew, with the old ones, or come first."""

Place = Literal["local", "process"]
"""Where an engine computes: in the trainer's process, or in one of its own."""


@dataclass(frozen=True, slots=True)
class Sampling:
    """How to sample.

    Args:
        max_tokens: cap on new ids.
        temperature: divides the logits; 0 is greedy (evaluation only).
        top_p, top_k: truncated sampling; only the neutral values are accepted where data is trained on.
    """

    max_tokens: int
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0

    def check_trainable(self) -> None:
        """Refuse settings under which recorded log-probabilities do not describe the sampled distribution."""
        if self.temperature <= 0:
            raise UsageError(
                f"temperature is {self.temperature}; training needs a temperature above 0, since a greedy policy has no "
                "log-probability to learn from. Use greedy decoding for evaluation only."
            )
        if self.top_p < 1 or self.top_k > 0:
            raise UsageError(
                f"top_p={self.top_p}, top_k={self.top_k}: a truncated distribution gives log-probabilities that training "
                "would not reproduce (ratios are off from the first step). Leave top_p=1 and top_k=0, lower temperature."
            )


class Engine(Protocol):
    """Token ids in, token ids out, with a log-probability and a policy version for each."""

    async def sample(self, prompt: Ints, sampling: Sampling, seed: Sequence[int], session: str) -> Completion:
        """Sample one completion.

        Args:
            prompt: the whole prompt; int32 [n]. Within a session it extends what was sent and sampled before.
            sampling: how to sample.
            seed: names the random stream; the same seed gives the same uniforms whoever shares the batch.
            session: names the trajectory; its keys and values may be kept until `end`.
        """
        ...

    async def end(self, session: str) -> None:
        """Forget a session."""
        ...

    async def load(self, weights: Any, version: int) -> None:
        """Take new weights (None: they are shared and have already changed) and forget everything cached."""
        ...


class Codec(Protocol):
    """Between messages and ids."""

    @property
    def stop_ids(self) -> frozenset[int]:
        """Ids that end a turn: the union of generation config, template terminator and the user's."""
        ...

    @property
    def keeps_prefix(self) -> bool:
        """Whether the template is proven to be append-only."""
        ...

    def opening(self, messages: Sequence[Message]) -> Ints:
        """Ids of a whole conversation up to and including the header of the agent's next turn."""
        ...

    def extension(self, messages: Sequence[Message], last: Completion) -> Ints:
        """Ids to append after a completion: the rest of its turn, the new messages, the header of the next turn."""
        ...

    def reply(self, text: str) -> Ints:
        """Ids of an agent's turn written by a script: the text and the terminator."""
        ...

    def text(self, completion: Completion) -> str:
        """Text of a completion, without its stop id."""
        ...
