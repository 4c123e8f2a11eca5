"""The in-process engine: continuous batching on an unmodified `transformers` model.

Each step is one packed forward of every live decode token and about `prefill` tokens of waiting prompts; there is no
padding and no switch between prefill and decode. A session keeps its slot, with the keys and values of all it was sent
and sampled, until `end`. Invariant: what a request samples depends on its ids, its seed and the weights only;
companions in the batch change results by rounding at most.
"""

import asyncio
import heapq
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from strop.core.engine import InFlight, Sampling
from strop.core.errors import EngineError
from strop.core.seeds import generator
from strop.core.spans import OFF, Spans, clock
from strop.core.trajectory import Completion, Floats, Ints, Stop
from strop.engine.cache import Cache, Chunk, Indices, StepLayout, tensor
from strop.engine.request import Counts, Request, pick, refuse
from strop.model.policy import Policy

BLOCK = 64
"""Uniforms drawn at a time for a request; a stream does not depend on it."""

COLDEST = 1e-3
"""Lowest temperature above 0: below it tempered logits may overflow, which would stop everybody's step."""

SETTLE = 8
"""Rounds of the event loop after a step that finished requests: the episodes it woke can send their next turn."""


class LocalEngine:
    """Engine on a policy in this process; implements `strop.core.engine.Engine`.

    Log-probabilities are natural logs of softmax(logits / temperature) over the ids below `policy.vocabulary`, in fp32.
    At temperature 0 the most probable id is taken and its log-probability is the one at temperature 1. Truncated
    sampling (top_p, top_k) is not offered.

    Args:
        policy: the model; with `load(None, version)` its weights are shared with a learner.
        stop_ids: ids that end a completion; the id itself is part of it.
        slots, length: first shape of the buffers, sessions x positions; both double when they are too small.
        prefill: prompt tokens taken into a step; a whole prompt is never cut below this.
        max_slots: most sessions that hold keys and values at once; further ones wait in launch order.
        in_flight: what `load` does to requests in flight. `recompute`: they go on with the new weights, their keys and
            values computed anew from their ids, so that each log-probability is exactly that of the weights of its
            version. `keep`: they go on over the old keys and values (cheaper; what is recorded is what was sampled from,
            which no single version would repeat). `drain`: they are completed first, and further ones wait.
        spans: where each step notes its time.

    Example:
        `completion = await LocalEngine(policy, codec.stop_ids).sample(prompt, Sampling(16), (0, 1), "train-0/3")`
    """

    def __init__(
        self,
        policy: Policy,
        stop_ids: frozenset[int],
        slots: int = 256,
        length: int = 256,
        prefill: int = 1024,
        max_slots: int = 1024,
        in_flight: InFlight = "recompute",
        spans: Spans = OFF,
    ) -> None:
        if min(slots, length, prefill, max_slots) < 1:
            raise EngineError(f"{slots=}, {length=}, {prefill=}, {max_slots=}: all must be at least 1")
        self.policy = policy
        self.spans = spans
        self.version = 0
        self.counts = Counts()
        self._stop = np.zeros(policy.vocabulary, np.bool_)
        self._stop[[i for i in stop_ids if 0 <= i < policy.vocabulary]] = True
        embedding: Any = policy.model.get_input_embeddings()
        self._embedded = int(embedding.weight.shape[0])
        self.whole = policy.device.type != "cpu"  # see StepLayout
        self._prefill, self._max_slots = prefill, max_slots
        self._in_flight: InFlight = in_flight
        self._drained: asyncio.Future[None] | None = None  # while a `load` waits for what is under way
        self._requests: dict[str, Request] = {}  # by session, from `sample` to its answer
        self._pump: asyncio.Task[None] | None = None
        self.cache = Cache(policy.model.config.num_hidden_layers, 0, 0)
        self._reshape(min(slots, max_slots), length)

    @property
    def shape(self) -> tuple[int, int]:
        """Shape of the buffers, (slots, length): `resize` to it makes a resumed run equal bit for bit."""
        return self.cache.slots, self.cache.length

    def resize(self, slots: int, length: int) -> None:
        """Give the buffers this shape and forget all sessions. Raises `EngineError` while requests are in flight."""
        self._refuse_in_flight("resize")
        if slots > self._max_slots:
            raise EngineError(f"resize to {slots} slots; at most {self._max_slots} are allowed. Raise max_slots.")
        self._reshape(slots, length)

    async def sample(self, prompt: Ints, sampling: Sampling, seed: Sequence[int], session: str) -> Completion:
        """See `strop.core.engine.Engine.sample`.

        A prompt that does not extend what the session holds (a rebuilt history) starts the session anew. A cancelled
        call ends its session and disturbs nobody else.

        Raises:
            EngineError: the request cannot be served, or a step failed.
        """
        prompt = np.ascontiguousarray(prompt, np.int32)
        self._check(prompt, sampling, session)
        future: asyncio.Future[Completion] = asyncio.get_running_loop().create_future()
        request = Request(prompt, sampling, generator(tuple(seed)), session, future)
        self._requests[session] = request
        self._waiting.append(request)
        self._wake()
        try:
            return await request.future
        except asyncio.CancelledError:
            self._withdraw(request)
            raise

    async def end(self, session: str) -> None:
        """Free the session's slot. Raises `EngineError` while it samples."""
        if session in self._requests:
            raise EngineError(f"session {session} is sampling; cancel or await its request before `end`")
        self._release(session)
        if self._waiting:
            self._wake()

    async def load(self, weights: Mapping[str, torch.Tensor] | None, version: int) -> None:
        """Take new weights. Every key and value is forgotten, unless requests are in flight and were to `keep` them.

        Args:
            weights: state dict to copy into the model; None when a learner that shares the module has changed it.
            version: stamped on every token sampled from now on.

        Raises:
            EngineError: the weights do not fit (nothing has changed then), or a `load` is under way.
        """
        if self._drained is not None:
            raise EngineError("load while another one waits for requests in flight; await it first")
        if self._in_flight == "drain" and self._requests:
            self._drained = asyncio.get_running_loop().create_future()
            self._wake()
            try:
                await self._drained
            finally:
                self._drained = None
                self._wake()
        if weights is not None:
            self._copy_weights(weights)
        self.version = version
        if self._in_flight == "keep" and self._requests:
            return
        if self._requests:
            self._start_over()
        else:
            self._forget()

    # requests: arriving, getting a slot, leaving

    def _check(self, prompt: Ints, sampling: Sampling, session: str) -> None:
        """Refuse what cannot be served before it can disturb a step of others."""
        window, who, n, cap = self.policy.window, f"session {session}", len(prompt), sampling.max_tokens
        if session in self._requests:
            raise EngineError(f"{who} is sampling already; a session has one request at a time")
        if prompt.ndim != 1 or n == 0:
            raise EngineError(f"{who}: the prompt has shape {prompt.shape}; at least one id in one dimension is needed")
        if prompt.min() < 0 or prompt.max() >= self._embedded:
            raise EngineError(f"{who}: ids {prompt.min()}..{prompt.max()}; the model embeds 0..{self._embedded - 1}")
        if cap < 1:
            raise EngineError(f"{who}: max_tokens is {cap}; at least 1 token can be sampled")
        heat = sampling.temperature
        if heat != 0 and not COLDEST <= heat < float("inf"):
            raise EngineError(f"{who}: temperature is {heat}; 0 (greedy) or at least {COLDEST} is allowed")
        if sampling.top_p < 1 or sampling.top_k > 0:
            raise EngineError(
                f"top_p={sampling.top_p}, top_k={sampling.top_k}: the local engine does not offer truncated sampling "
                "yet. Leave top_p=1 and top_k=0."
            )
        if window is not None and n + cap > window:
            raise EngineError(
                f"{who}: {n} prompt ids and max_tokens={cap} exceed the model's window of {window}. Shorten the history "
                "or lower max_tokens."
            )

    def _admit(self) -> None:
        """Give waiting requests a slot, in launch order; a session that has one goes on without waiting."""
        if self._drained is not None:
            return
        waiting: list[Request] = []
        for request in self._waiting:
            slot = self._sessions.get(request.session, -1)
            if slot >= 0:
                known = self._known[slot]
                if len(request.prompt) < known or (request.prompt[:known] != self._ids[slot, :known]).any():
                    self._release(request.session)
                    slot = -1
            if slot < 0:
                if not self._free and self.cache.slots < self._max_slots:
                    self._grow(min(2 * self.cache.slots, self._max_slots), self.cache.length)
                if not self._free:
                    waiting.append(request)
                    continue
                slot = self._sessions[request.session] = heapq.heappop(self._free)
            self._place(request, slot)
        self._waiting = waiting

    def _place(self, request: Request, slot: int) -> None:
        """Fill a slot's row of state and queue the prefill, or follow a request that has the same prompt under way."""
        n, end = len(request.prompt), len(request.prompt) + request.sampling.max_tokens
        if end > self.cache.length:
            length = self.cache.length
            while length < end:
                length *= 2
            self._grow(self.cache.slots, length)
        request.slot = slot
        self._owner[slot] = request
        self._ids[slot, :n] = request.prompt
        self._known[slot] = self._start[slot] = n
        self._end[slot] = end
        self._temperature[slot] = request.sampling.temperature
        self._uniforms[slot] = request.stream.random(BLOCK, np.float32)
        if self._cached[slot] == 0:
            leader = self._leaders.setdefault(request.prompt.tobytes(), request)
            if leader is not request:
                request.leader = leader
                leader.followers.append(request)
                return
        self._prefilling.append(request)

    def _withdraw(self, request: Request) -> None:
        """Take a cancelled request out, wherever it stands; if others share its prefill, the first of them leads on."""
        if self._requests.get(request.session) is request:
            del self._requests[request.session]
        if request in self._waiting:
            self._waiting.remove(request)
        if request.leader is not None:
            request.leader.followers.remove(request)
        if request in self._prefilling:
            at = self._prefilling.index(request)
            key = request.prompt.tobytes()
            led = self._leaders.get(key) is request
            if led:
                del self._leaders[key]
            if request.followers:
                heir, *rest = request.followers
                heir.leader, heir.followers = None, rest
                for follower in rest:
                    follower.leader = heir
                self._leaders[key] = self._prefilling[at] = heir
            else:
                del self._prefilling[at]
        self._release(request.session)

    def _release(self, session: str) -> None:
        """Free a session's slot, if it has one."""
        slot = self._sessions.pop(session, None)
        if slot is not None:
            self._owner[slot] = None
            self._decoding[slot] = False
            self._cached[slot] = self._known[slot] = 0
            heapq.heappush(self._free, slot)

    # the pump and its step

    def _wake(self) -> None:
        """See to it that the pump runs in this event loop."""
        loop = asyncio.get_running_loop()
        if self._pump is None or self._pump.done() or self._pump.get_loop() is not loop:
            self._pump = loop.create_task(self._run())

    async def _run(self) -> None:
        """Step until nothing can be done (who waits for a slot needs an `end`); a failure reaches every caller."""
        rounds = SETTLE
        try:
            while True:
                for _ in range(rounds):
                    await asyncio.sleep(0)
                self._admit()
                if not self._prefilling and not self._decoding.any():
                    return  # `finally` lets a `load` in that waited for this
                rounds = SETTLE if self._step() else 1
        except asyncio.CancelledError as error:  # between steps, when an event loop closes: what is cached stays sound
            for request in list(self._requests.values()):
                self._withdraw(request)
                refuse(request, error)
            raise
        except BaseException as error:
            for request in self._requests.values():
                refuse(request, error)
            self._requests.clear()
            self._reshape(*self.shape)  # a failed step may have left anything in the buffers
            if not isinstance(error, Exception):
                raise
        finally:
            if self._drained is not None and not self._drained.done():
                self._drained.set_result(None)

    @torch.inference_mode()
    def _step(self) -> bool:
        """One packed forward and one sampled id for every row that is ready; whether a request finished."""
        began = clock()
        if self.policy.model.training:
            self.policy.model.eval()
        decode = np.flatnonzero(self._decoding)
        lengths = self._known[decode]
        chunks, ready = self._take_chunks()
        device = self.policy.device
        layout = StepLayout(self.cache, decode, lengths, chunks, device, self.whole)
        ids = np.concatenate(
            [self._ids[decode, lengths - 1], *(self._ids[c.slot, c.first : c.first + c.count] for c in chunks)]
        )
        positions = tensor(layout.positions, device)
        hidden = self.policy.hidden(tensor(ids, device), positions, layout)
        self._cached[decode] = lengths
        for chunk in chunks:
            self._cached[chunk.slot] += chunk.count
        rows, spread, targets = self._rows(decode, chunks, ready)
        finished = False
        if len(targets):
            logits = self.policy.logits(hidden[tensor(rows, device)]).float()
            if len(rows) != len(targets):
                logits = logits[tensor(spread, device)]
            finished = self._record(targets, *self._sample(logits, targets))
        self.counts.steps += 1
        self.counts.prefilled += sum(c.count for c in chunks)
        self.counts.peak_live = max(self.counts.peak_live, len(targets))
        self.counts.seconds += self.spans.note("engine", began)
        return finished

    def _take_chunks(self) -> tuple[list[Chunk], list[Request | None]]:
        """Prefill pieces of this step, in launch order, and beside each the request that it completes."""
        chunks: list[Chunk] = []
        ready: list[Request | None] = []
        room, queue = self._prefill, self._prefilling
        taken = 0
        for request in queue:
            if room <= 0:
                break
            first, whole = int(self._cached[request.slot]), int(self._known[request.slot])
            count = min(whole - first, self._prefill)  # the last piece may exceed the room: cutting costs another step
            chunks.append(Chunk(request.slot, first, count))
            done = first + count == whole
            ready.append(request if done else None)
            room -= count
            if not done:
                break
            taken += 1
        self._prefilling = queue[taken:]
        return chunks, ready

    def _rows(
        self, decode: Indices, chunks: list[Chunk], ready: list[Request | None]
    ) -> tuple[Indices, Indices, Indices]:
        """Rows of the pack that give logits, which of them each target samples from, and the targets' slots.

        Followers get their leader's keys, values and logits here, and all ready requests start to decode.
        """
        n = len(decode)
        rows, spread, targets = list(range(n)), list(range(n)), decode.tolist()
        at = n
        for chunk, request in zip(chunks, ready, strict=True):
            at += chunk.count
            if request is None:
                continue
            key = request.prompt.tobytes()
            if self._leaders.get(key) is request:
                del self._leaders[key]
            slots = [follower.slot for follower in request.followers]
            if slots:
                self.cache.copy(request.slot, slots, len(request.prompt))
                self._cached[slots] = len(request.prompt)
                for follower in request.followers:
                    follower.leader = None
                request.followers = []
            spread += [len(rows)] * (1 + len(slots))
            targets += [request.slot, *slots]
            rows.append(at - 1)
        placed = np.array(targets, np.int64)
        self._decoding[placed] = True
        return np.array(rows, np.int64), np.array(spread, np.int64), placed

    def _sample(self, logits: torch.Tensor, slots: Indices) -> tuple[Indices, Floats]:
        """Ids and log-probabilities, [n] each, for fp32 logits [n, vocabulary] of these slots."""
        uniform = self._uniforms[slots, (self._known[slots] - self._start[slots]) % BLOCK]
        tokens, logprobs = (x.cpu().numpy() for x in pick(logits, uniform, self._temperature[slots]))
        if not np.isfinite(logprobs).all():
            raise EngineError(f"the logits of version {self.version} are not finite; the weights are broken")
        return tokens, logprobs

    def _record(self, slots: Indices, tokens: Indices, logprobs: Floats) -> bool:
        """Write sampled ids into their rows and answer the requests that are complete; whether there were any."""
        at = self._known[slots]
        self._ids[slots, at] = tokens
        self._logprobs[slots, at] = logprobs
        self._versions[slots, at] = self.version
        known = at + 1
        self._known[slots] = known
        self.counts.sampled += len(slots)
        stopped = self._stop[tokens]
        done = stopped | (known == self._end[slots])
        spent = ((known - self._start[slots]) % BLOCK == 0) & ~done
        for slot in (int(i) for i in slots[spent]):
            owner = self._owner[slot]
            assert owner is not None
            self._uniforms[slot] = owner.stream.random(BLOCK, np.float32)
        if not done.any():
            return False
        self._decoding[slots[done]] = False
        for i in np.flatnonzero(done):
            self._answer(int(slots[i]), "stop" if stopped[i] else "length")
        return True

    def _answer(self, slot: int, stop: Stop) -> None:
        """Complete the request of a slot; the session keeps the slot."""
        request = self._owner[slot]
        assert request is not None
        self._owner[slot] = None
        span = slice(self._start[slot], self._known[slot])
        tokens, logprobs = self._ids[slot, span].astype(np.int32), self._logprobs[slot, span].copy()
        completion = Completion(tokens, logprobs, self._versions[slot, span].copy(), stop)
        if self._requests.get(request.session) is request:
            del self._requests[request.session]
        if not request.future.done():
            request.future.set_result(completion)

    # state

    def _refuse_in_flight(self, what: str) -> None:
        if self._requests:
            names = ", ".join(list(self._requests)[:3])
            raise EngineError(f"{what} while {len(self._requests)} requests are in flight ({names}); await them first")

    def _copy_weights(self, weights: Mapping[str, torch.Tensor]) -> None:
        """Copy a state dict into the model; all or nothing."""
        own: dict[str, torch.Tensor] = self.policy.model.state_dict()
        unknown = sorted(set(weights) - set(own))
        given = {own[name].data_ptr() for name in weights if name in own}
        missing = sorted(
            name for name, tensor in own.items() if tensor.data_ptr() not in given
        )  # tied names share data
        shapes = sorted(name for name in weights if name in own and weights[name].shape != own[name].shape)
        if unknown or missing or shapes:
            raise EngineError(
                f"weights do not fit the model: unknown {unknown}, missing {missing}, other shape {shapes}"
            )
        with torch.no_grad():
            for name, tensor in weights.items():
                own[name].copy_(tensor)

    def _reshape(self, slots: int, length: int) -> None:
        """New buffers and new rows of state, nothing in them."""
        self.cache.reset(slots, length)
        self._ids = np.zeros((slots, length), np.int64)
        self._logprobs = np.zeros((slots, length), np.float32)
        self._versions = np.zeros((slots, length), np.int32)
        self._uniforms = np.zeros((slots, BLOCK), np.float32)
        self._known = np.zeros(slots, np.int64)  # ids known of the slot's session
        self._cached = np.zeros(
            slots, np.int64
        )  # how many of them have keys and values; all but the last while decoding
        self._start = np.zeros(slots, np.int64)  # where the completion under way starts
        self._end = np.zeros(slots, np.int64)  # where it ends at the latest
        self._temperature = np.ones(slots, np.float32)
        self._decoding = np.zeros(slots, np.bool_)
        self._forget()

    def _start_over(self) -> None:
        """Have the keys and values of all sessions computed anew, completions under way from their ids so far."""
        self._cached[:] = 0
        self._decoding[:] = False
        self._prefilling = [r for r in self._requests.values() if r.slot >= 0 and r.leader is None]

    def _forget(self) -> None:
        """Forget all sessions; the free slots are handed out lowest first again."""
        slots = self.cache.slots
        self._sessions: dict[str, int] = {}
        self._free = list(range(slots))  # a heap
        self._owner: list[Request | None] = [None] * slots
        self._waiting: list[Request] = []
        self._prefilling: list[Request] = []
        self._leaders: dict[bytes, Request] = {}  # prompts being prefilled from their first id
        self._known[:] = 0
        self._cached[:] = 0
        self._decoding[:] = False

    def _grow(self, slots: int, length: int) -> None:
        """Enlarge buffers and state, keeping all sessions."""
        old_slots, old_length = self.shape
        self.cache.grow(slots, length, self._sessions.values())
        rows, columns = (0, slots - old_slots), (0, length - old_length)
        for name in ("_ids", "_logprobs", "_versions"):
            setattr(self, name, np.pad(getattr(self, name), (rows, columns)))
        self._uniforms = np.pad(self._uniforms, (rows, (0, 0)))
        for name in ("_known", "_cached", "_start", "_end", "_temperature", "_decoding"):
            setattr(self, name, np.pad(getattr(self, name), rows))
        self._owner += [None] * (slots - old_slots)
        for slot in range(old_slots, slots):
            heapq.heappush(self._free, slot)
