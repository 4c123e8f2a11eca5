"""Limits of an episode, each its own number. Invariant: how an episode ended is recorded when it ends, never guessed."""

from dataclasses import dataclass

from strop.core.errors import UsageError


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds of one episode.

    Args:
        turns: completions of the agent.
        turn_tokens: sampled tokens per turn.
        tokens: sampled tokens of the whole episode.
        context: tokens of prompt and completion together (the model's window).
        seconds: wall time of the whole episode.
        step_seconds: wall time of one call of the environment; a call that takes longer has failed, and its late answer
            changes nothing.
    """

    turns: int = 16
    turn_tokens: int = 256
    tokens: int = 4096
    context: int = 4096
    seconds: float = 600.0
    step_seconds: float = 120.0

    def __post_init__(self) -> None:
        for name in ("turns", "turn_tokens", "tokens", "context", "seconds", "step_seconds"):
            if getattr(self, name) <= 0:
                raise UsageError(f"rollout.{name} is {getattr(self, name)}; it must be above 0")

    @property
    def longest(self) -> int:
        """The most tokens that one trajectory may sample."""
        return min(self.turns * self.turn_tokens, self.tokens)

    def room(self, sampled: int, prompt: int) -> tuple[int, str]:
        """Tokens that the next turn may sample, and which limit stands when that is 0 (`length` or `context`)."""
        rest, window = self.tokens - sampled, self.context - prompt
        if window <= 0:
            return 0, "context"
        if rest <= 0:
            return 0, "length"
        return min(self.turn_tokens, rest, window), ""
