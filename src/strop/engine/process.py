"""The engine in a process of its own: the trainer's side.

What a `LocalEngine` would do happens in a child (`serve.py`, or any other server that speaks `docs/engine.md`), while the
trainer's process learns, plays environments and judges. Invariant: same weights, ids and seeds give the same tokens as in
this process; weights travel as whole files in a private folder that is gone when the engine is; and the loss of the child is
never taken for an answer (`EngineLost`).
"""

import asyncio
import os
import shutil
import tempfile
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save_file

from strop.core.engine import Sampling
from strop.core.errors import EngineError, EngineLost
from strop.core.spans import OFF, Spans
from strop.core.trajectory import Completion, Ints
from strop.engine.child import SERVER, Child, environment
from strop.engine.frames import PROTOCOL, Frame
from strop.engine.request import Counts
from strop.model.load import save
from strop.model.policy import Policy

SHARED_MEMORY = Path("/dev/shm")


@dataclass(slots=True)
class _Seen:
    """What the child last said of itself."""

    version: int = 0
    counts: Counts = field(default_factory=Counts)
    shape: tuple[int, int] = (0, 0)
    spans: Spans = OFF

    def take(self, frame: Frame) -> None:
        """Look into a frame before it is answered."""
        if frame.kind == "loaded":
            self.version = int(frame.fields["version"])
        if "counts" in frame.fields:
            slots, length = frame.fields["shape"]
            self.counts, self.shape = Counts(**frame.fields["counts"]), (slots, length)
            for start, end in frame.fields.get("steps", ()):
                self.spans.note("engine", start, end)


class ProcessEngine:
    """Engine on a copy of a policy in another process; implements `strop.core.engine.Engine`.

    It is used as a `LocalEngine` is, from any event loop, with these differences: `version` is set by `load` alone; `counts`
    and `shape` are as of the last answer; a cancelled request's tokens count with the next one. `load(None, version)` sends
    the weights that `policy` has at that moment; the child never sees them change by themselves.

    Args:
        policy: whose weights and tokenizer the child starts from. It stays the caller's.
        stop_ids: ids that end a completion.
        threads: of torch, in the child.
        folder: where the private folder is made; shared memory where that has room, else the system's temporary place.
        command: the server to start; the default serves a `LocalEngine`.
        patience: seconds that it may take to load the model.
        spans: where the child's steps are noted.
        options: of the `LocalEngine` in the child (`slots`, `length`, `prefill`, `max_slots`, `in_flight`).

    Raises:
        EngineLost: the server did not come up; what it wrote is in the text.
        EngineError: it serves another vocabulary, window or protocol, or the model cannot be written.

    Example:
        `engine = ProcessEngine(policy, codec.stop_ids, threads=2)`, and `engine.close()` when all is done.
    """

    def __init__(
        self,
        policy: Policy,
        stop_ids: frozenset[int],
        threads: int = 1,
        folder: Path | None = None,
        command: Sequence[str] = SERVER,
        patience: float = 300.0,
        spans: Spans = OFF,
        **options: int | str,
    ) -> None:
        self.policy = policy
        self._sampling: set[str] = set()
        self._serial = count()
        self._seen = _Seen(spans=spans)
        self._folder = Path(tempfile.mkdtemp(prefix="strop-engine-", dir=folder or _place(_size(policy))))
        try:
            save(policy, self._folder / "model")
            self._child = Child((*command, str(self._folder)), environment(threads), self._seen.take)
        except BaseException as error:
            shutil.rmtree(self._folder, ignore_errors=True)
            if isinstance(error, OSError):
                raise EngineError(f"the model cannot be written to {self._folder}: {error}. Name a folder.") from error
            raise
        self._close = weakref.finalize(self, _clear, self._child, self._folder)
        try:
            self._greet(stop_ids, threads, patience, options)
        except BaseException:
            self.close()
            raise
        shutil.rmtree(self._folder / "model", ignore_errors=True)

    @property
    def version(self) -> int:
        """Version of the weights that the child took last."""
        return self._seen.version

    @property
    def counts(self) -> Counts:
        """What the child did, as of its last answer."""
        return self._seen.counts

    @property
    def shape(self) -> tuple[int, int]:
        """Shape of the child's buffers, (slots, length), as of its last answer."""
        return self._seen.shape

    @property
    def pid(self) -> int:
        """The child's process id."""
        assert self._child.process is not None
        return self._child.process.pid

    def resize(self, slots: int, length: int) -> None:
        """Give the child's buffers this shape; waits for its answer. Raises `EngineError` while requests are in flight."""
        self._child.ask("resize", {"slots": slots, "length": length}).result()

    def close(self) -> None:
        """End the child within 3 seconds or so and remove the folder. Who still waits gets `EngineLost`."""
        self._close()

    async def sample(self, prompt: Ints, sampling: Sampling, seed: Sequence[int], session: str) -> Completion:
        """See `strop.core.engine.Engine.sample`. A cancelled call ends its session and disturbs nobody else.

        Raises:
            EngineLost: the child is gone.
            EngineError: the request cannot be served.
        """
        if session in self._sampling:
            raise EngineError(f"session {session} is sampling already; a session has one request at a time")
        fields = {
            "session": session,
            "seed": [int(part) for part in seed],
            "max_tokens": sampling.max_tokens,
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "top_k": sampling.top_k,
        }
        future = self._child.ask("sample", fields, {"prompt": np.ascontiguousarray(prompt, np.int32)})
        self._sampling.add(session)
        try:
            answer = await asyncio.wrap_future(future)
        except EngineError:
            raise
        except BaseException:  # cancelled, also by the end of its event loop
            self._child.tell("cancel", {"session": session})
            raise
        finally:
            self._sampling.discard(session)
        return _completion(answer)

    async def end(self, session: str) -> None:
        """Free the session's slot. Raises `EngineError` while it samples. A child that is gone has nothing to free."""
        if session in self._sampling:
            raise EngineError(f"session {session} is sampling; cancel or await its request before `end`")
        self._child.tell("end", {"session": session})

    async def load(self, weights: Mapping[str, torch.Tensor] | None, version: int) -> None:
        """Have the child take new weights; what it does to requests in flight is its `in_flight`.

        They are written before this yields for the first time: the caller may change them after that. A call that is
        cancelled is still carried out by the child.

        Args:
            weights: state dict; None for what `policy` has now.
            version: stamped on every token that the child samples from then on.

        Raises:
            EngineLost: the child is gone.
            EngineError: the weights do not fit (nothing has changed then), or cannot be written.
        """
        self._child.check()
        given: Mapping[str, torch.Tensor] = self.policy.model.state_dict() if weights is None else weights
        path = self._folder / f"weights-{version:06d}-{next(self._serial)}.safetensors"
        try:
            write_weights(given, path)
            future = self._child.ask("load", {"path": str(path), "version": version})
        except BaseException:
            path.unlink(missing_ok=True)
            raise
        future.add_done_callback(lambda _: path.unlink(missing_ok=True))
        await asyncio.shield(asyncio.wrap_future(future))

    def _greet(self, stop_ids: frozenset[int], threads: int, patience: float, options: Mapping[str, int | str]) -> None:
        """Tell the child what to serve, and hold what it says of itself against what the policy says."""
        wanted = {
            "protocol": PROTOCOL,
            "vocabulary": self.policy.vocabulary,
            "window": self.policy.window,
            "stop_ids": sorted(stop_ids),
        }
        dtype = str(next(self.policy.model.parameters()).dtype).removeprefix("torch.")
        model = {"model": str(self._folder / "model"), "dtype": dtype, "device": self.policy.device.type}
        future = self._child.ask("hello", {**wanted, **model, "threads": threads, "options": dict(options)})
        try:
            facts = future.result(patience).fields
        except TimeoutError as error:
            raise EngineLost(f"the engine's process gave no sign in {patience:g} s; raise `patience`") from error
        different = {name: facts.get(name) for name, value in wanted.items() if facts.get(name) != value}
        if different:
            raise EngineError(
                f"the engine's process serves {different}; the policy needs {wanted}. Start a server for it."
            )


def write_weights(weights: Mapping[str, torch.Tensor], path: Path) -> None:
    """Write a state dict as a safetensors file that is there whole or not at all; tied tensors are written once.

    Raises:
        EngineError: no room, or no such folder.
    """
    once: dict[tuple[int, torch.Size], str] = {}
    for name, tensor in weights.items():
        once.setdefault((tensor.data_ptr(), tensor.shape), name)
    tensors = {name: weights[name].detach().cpu().contiguous() for name in once.values()}
    unfinished = path.with_suffix(".unfinished")
    try:
        save_file(tensors, unfinished)
        os.replace(unfinished, path)
    except Exception as error:  # safetensors has an error of its own for what the system refuses
        unfinished.unlink(missing_ok=True)
        raise EngineError(f"weights cannot be written to {path.parent}: {error}. Name a folder with room.") from error


def _completion(answer: Frame) -> Completion:
    arrays = answer.arrays
    return Completion(arrays["tokens"], arrays["logprobs"], arrays["versions"], answer.fields["stop"])


def _size(policy: Policy) -> int:
    """Bytes of the weights."""
    return sum(p.numel() * p.element_size() for p in policy.model.parameters())


def _place(size: int) -> Path | None:
    """Shared memory where it has room for two copies of this many bytes (None: the system's choice)."""
    try:
        room = shutil.disk_usage(SHARED_MEMORY).free
    except OSError:
        return None
    return SHARED_MEMORY if room > 2 * size + 2**26 and os.access(SHARED_MEMORY, os.W_OK) else None


def _clear(child: Child, folder: Path) -> None:
    child.close()
    shutil.rmtree(folder, ignore_errors=True)
