"""A model behind a token endpoint: vLLM's `/v1/completions`, ids in and ids out. It samples and it scores; it is never trained.

Invariant: what was scored is what was sent, id by id. Log-probabilities of an endpoint are those at temperature 1, whatever
it sampled at; so what `sample` returns carries none (NaN, version -1), as a demonstration, and cannot be weighed by mistake.
"""

import asyncio
import math
import os
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx2
import numpy as np

from strop.core.engine import Sampling
from strop.core.errors import EngineError, EngineLost, UsageError
from strop.core.seeds import generator
from strop.core.trajectory import Completion, Floats, Ints

KEY = "STROP_ENDPOINT_KEY"
"""Environment variable with the endpoint's key, if it asks for one; it is written nowhere."""

PARALLEL = 32
"""Requests at one time."""

TRIES = 4
PAUSE = 0.5
"""Seconds before the second try; each further pause is twice as long."""

CHUNK = 512
"""Ids in one request for their text."""


class TokenEndpoint:
    """Engine of a served model. See `strop.core.engine.Engine` for `sample`; `load` is refused.

    Args:
        url: base of the API, such as `http://127.0.0.1:8000/v1`; `#NAME` at its end chooses among several models.
        stop_ids: ids that end a turn.
        timeout: seconds for one answer.

    Raises:
        UsageError: nobody answers there, or no model of this name is served.
    """

    def __init__(self, url: str, stop_ids: Iterable[int] = (), timeout: float = 600.0) -> None:
        base, _, name = url.partition("#")
        self.url = base.rstrip("/")
        self.stop_ids = sorted(stop_ids)
        key = os.environ.get(KEY)
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        self._client = httpx2.Client(headers=headers, timeout=httpx2.Timeout(timeout, connect=10.0))
        self._threads = ThreadPoolExecutor(PARALLEL, "endpoint")
        self.model = self._chosen(name)

    def _chosen(self, name: str) -> str:
        try:
            served = [str(entry["id"]) for entry in self._ask("GET", f"{self.url}/models", None)["data"]]
        except (EngineError, LookupError, TypeError) as problem:
            raise UsageError(
                f"{self.url} does not answer as a token endpoint: {problem}. Start one (vllm serve MODEL), give the base of "
                f"its API (http://127.0.0.1:8000/v1), and its key, if it has one, in the environment variable {KEY}."
            ) from None
        if not name and len(served) != 1:
            raise UsageError(f"{self.url} serves {', '.join(served) or 'no model'}; name one: {self.url}#NAME")
        if name and name not in served:
            raise UsageError(f"{self.url} serves no model {name}; it serves {', '.join(served) or 'none'}")
        return name or served[0]

    async def sample(self, prompt: Ints, sampling: Sampling, seed: Sequence[int], session: str) -> Completion:
        """Sample one completion; its log-probabilities are NaN. Sessions mean nothing here: a server has its own cache."""
        limit = np.iinfo(np.int32).max
        choice = await self._complete(
            {
                "prompt": prompt.tolist(),
                "max_tokens": sampling.max_tokens,
                "temperature": sampling.temperature,
                "top_p": sampling.top_p,
                "top_k": sampling.top_k or -1,
                "seed": int(generator(tuple(seed)).integers(limit)),
                "stop_token_ids": self.stop_ids,
                "skip_special_tokens": False,
                "return_token_ids": True,
            }
        )
        ids = choice.get("token_ids")
        if not isinstance(ids, list) or not ids or len(ids) > sampling.max_tokens:
            raise EngineError(
                f"{self.url} gave no `token_ids`; a server is needed that knows `return_token_ids` (vLLM does)"
            )
        tokens = np.array(ids, dtype=np.int32)
        blank = np.full(len(tokens), np.nan, np.float32), np.full(len(tokens), -1, np.int32)
        return Completion(tokens, *blank, "stop" if choice.get("finish_reason") == "stop" else "length")

    async def score(self, ids: Ints) -> Floats:
        """log p(ids[i] | ids[:i]) at temperature 1 for each id, NaN for the first; float32 [n].

        Raises:
            EngineError: the endpoint refuses the ids, or scores others.
            EngineLost: it does not answer any more.
        """
        choice = await self._complete(
            {"prompt": ids.tolist(), "max_tokens": 1, "temperature": 1.0, "prompt_logprobs": 1}
        )
        said = choice.get("prompt_logprobs")
        if not isinstance(said, list) or len(said) != len(ids):
            raise EngineError(
                f"{self.url} gave no `prompt_logprobs` for {len(ids)} ids; a server is needed that knows them (vLLM does)"
            )
        out = np.full(len(ids), np.nan, np.float32)
        for place in range(1, len(ids)):
            entry = (said[place] or {}).get(str(ids[place]))
            value = entry.get("logprob") if isinstance(entry, dict) else entry
            if not isinstance(value, int | float) or math.isnan(value) or value > 1e-3:
                raise EngineError(
                    f"{self.url} gave no log-probability for id {ids[place]} at place {place}, but {entry}"
                )
            out[place] = value
        return out

    async def end(self, session: str) -> None:
        """Nothing to forget."""

    async def load(self, weights: Any, version: int) -> None:
        """Refused: a served model is not trained from here."""
        raise EngineError(f"{self.url} is a served model; it takes no weights")

    def stranger(self, ids: Sequence[int], text: Callable[[list[int]], str]) -> tuple[int, str] | None:
        """The first id that means another text there, and which; None if all are the same.

        Args:
            ids: to compare.
            text: decodes ids here.
        """
        for start in range(0, len(ids), CHUNK):
            low, high = start, min(start + CHUNK, len(ids))
            if self._text(ids[low:high]) == text(list(ids[low:high])):
                continue
            while high - low > 1:  # halve: the first half that differs holds the first stranger
                middle = (low + high) // 2
                same = self._text(ids[low:middle]) == text(list(ids[low:middle]))
                low, high = (middle, high) if same else (low, middle)
            return ids[low], self._text(ids[low:high])
        return None

    def _text(self, ids: Sequence[int]) -> str:
        root = self.url.removesuffix("/v1")
        said = self._ask("POST", f"{root}/detokenize", {"model": self.model, "tokens": list(ids)})
        return str(said.get("prompt"))

    async def _complete(self, body: dict[str, Any]) -> dict[str, Any]:
        asked = {"model": self.model, **body}
        where = f"{self.url}/completions"
        said = await asyncio.get_running_loop().run_in_executor(self._threads, self._ask, "POST", where, asked)
        choices = said.get("choices")
        if not isinstance(choices, list) or not choices:
            raise EngineError(f"{self.url} answered without `choices`")
        return choices[0]

    def _ask(self, method: str, url: str, body: dict[str, Any] | None) -> dict[str, Any]:
        """One answer. What may pass (no connection, 429, 5xx) is tried again, what does not is refused at once."""
        problem = ""
        for attempt in range(TRIES):
            if attempt:
                time.sleep(PAUSE * 2 ** (attempt - 1))
            try:
                answer = self._client.request(method, url, json=body)
            except httpx2.TransportError as fault:
                problem = f"{type(fault).__name__}: {fault}"
                continue
            if answer.status_code == 429 or answer.status_code >= 500:
                problem = f"status {answer.status_code}: {answer.text[:200]}"
                continue
            if answer.status_code >= 400:
                raise EngineError(f"{url} refused a request (status {answer.status_code}): {answer.text[:200]}")
            try:
                said = answer.json()
            except ValueError:
                raise EngineError(f"{url} answered with something else than JSON: {answer.text[:200]!r}") from None
            if not isinstance(said, dict):
                raise EngineError(f"{url} answered with something else than a JSON object")
            return said
        raise EngineLost(f"{url} did not answer in {TRIES} tries ({problem})")

    def close(self) -> None:
        """Give up connections and threads."""
        self._threads.shutdown(wait=False, cancel_futures=True)
        self._client.close()
