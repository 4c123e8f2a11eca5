"""An engine that says what a test tells it to. Invariant: it answers within the protocol (cap, stop ids) or raises.

A public test double: everything it was asked for can be read afterwards.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from strop.core.engine import Sampling
from strop.core.errors import EngineError
from strop.core.trajectory import Completion, Ints, Stop

Script = Callable[[Ints, str, int], Sequence[int] | Ints]
"""(prompt, session, turn) -> ids of the reply; the turn counts the session's earlier prompts."""


class ScriptedEngine:
    """Engine of scripted replies; implements `strop.core.engine.Engine`.

    A reply is cut after its first stop id and at `max_tokens`, as sampling would. Where stop ids are given, a reply
    must end with one or reach the cap; without stop ids a short reply counts as stopped.

    Args:
        script: function of (prompt, session, turn), or replies by session, one a turn.
        stop_ids: ids that end a reply.
        logprob: log-probability given to every token.

    Attributes:
        prompts: prompts by session, in order, kept after `end`.
        samplings, seeds: what came with them, by session.
        ended: sessions in the order in which they ended.
        loads: (weights, version) of every `load`.
        version: stamped on every token.

    Example:
        `ScriptedEngine({"train-0/0": [[5, 2], [7, 2]]}, stop_ids=frozenset({2}))`
    """

    def __init__(
        self,
        script: Script | Mapping[str, Sequence[Sequence[int]]],
        stop_ids: frozenset[int] = frozenset(),
        logprob: float = 0.0,
    ) -> None:
        self.script, self.stop_ids, self.logprob = script, stop_ids, logprob
        self.version = 0
        self.prompts: dict[str, list[Ints]] = {}
        self.samplings: dict[str, list[Sampling]] = {}
        self.seeds: dict[str, list[tuple[int, ...]]] = {}
        self.ended: list[str] = []
        self.loads: list[tuple[Any, int]] = []

    async def sample(self, prompt: Ints, sampling: Sampling, seed: Sequence[int], session: str) -> Completion:
        """See `strop.core.engine.Engine.sample`. Raises `EngineError` where the script has no fitting reply."""
        prompt = np.array(prompt, np.int32)
        if len(prompt) == 0 or sampling.max_tokens < 1:
            raise EngineError(
                f"session {session}: {len(prompt)} prompt ids, max_tokens={sampling.max_tokens}; at least 1 each"
            )
        turn = len(self.prompts.setdefault(session, []))
        self.prompts[session].append(prompt)
        self.samplings.setdefault(session, []).append(sampling)
        self.seeds.setdefault(session, []).append(tuple(seed))
        await asyncio.sleep(0)  # a real engine never answers at once
        tokens, stop = self._cut([int(i) for i in self._reply(prompt, session, turn)], sampling.max_tokens, session)
        n = len(tokens)
        return Completion(
            np.array(tokens, np.int32), np.full(n, self.logprob, np.float32), np.full(n, self.version, np.int32), stop
        )

    async def end(self, session: str) -> None:
        """Note that the session ended."""
        self.ended.append(session)

    async def load(self, weights: Any, version: int) -> None:
        """Note the weights and stamp the version on later tokens."""
        self.loads.append((weights, version))
        self.version = version

    def _reply(self, prompt: Ints, session: str, turn: int) -> Sequence[int] | Ints:
        if callable(self.script):
            return self.script(prompt, session, turn)
        replies = self.script.get(session, ())
        if turn >= len(replies):
            raise EngineError(f"session {session} asks for reply {turn}; the script has {len(replies)}")
        return replies[turn]

    def _cut(self, tokens: list[int], cap: int, session: str) -> tuple[list[int], Stop]:
        """The reply as an engine would have sampled it, and why it ends."""
        for at, token in enumerate(tokens[:cap]):
            if token in self.stop_ids:
                return tokens[: at + 1], "stop"
        if len(tokens) >= cap:
            return tokens[:cap], "length"
        if self.stop_ids or not tokens:
            raise EngineError(
                f"session {session}: the scripted reply {tokens} ends with no stop id ({sorted(self.stop_ids)}) and is "
                f"below the cap of {cap}; append a stop id"
            )
        return tokens, "stop"
