"""The engine in a process of its own: the child's side (`python -m strop.engine.serve FOLDER DESCRIPTOR`).

Serves a `LocalEngine` over a socket; `docs/engine.md` has the messages. Invariant: requests start in the order in which they
came, and a cancelled one is over before the next message is looked at; the process ends when the trainer does, whatever it is
doing, and takes the folder of weights along.
"""

import asyncio
import contextlib
import gc
import os
import shutil
import signal
import socket
import sys
import threading
import traceback
from collections.abc import Callable, Coroutine
from dataclasses import asdict, replace
from typing import Any

import torch
from safetensors.torch import load_file

import strop.sandbox.kernel as kernel
from strop.core.engine import Sampling
from strop.core.errors import EngineError, StropError
from strop.core.source import ModelSource
from strop.core.spans import Spans
from strop.engine.frames import PROTOCOL, Frame, FrameError, encode, read
from strop.engine.local import LocalEngine
from strop.model.load import load

Send = Callable[[Frame], None]


class Service:
    """A `LocalEngine` that is asked by frames.

    Args:
        engine: who samples.
        send: gives a frame to the trainer.
    """

    def __init__(self, engine: LocalEngine, send: Send) -> None:
        self.engine, self.send = engine, send
        self._samples: dict[str, asyncio.Task[None]] = {}  # by session
        self._loads: set[asyncio.Task[None]] = set()

    async def take(self, frame: Frame) -> None:
        """Act on one message; what takes time goes on as a task."""
        fields = frame.fields
        match frame.kind:
            case "sample":
                task = asyncio.create_task(self._answer(frame.number, self._sample(frame)), name=fields["session"])
                self._samples[fields["session"]] = task
                task.add_done_callback(self._forget)
            case "cancel":
                if task := self._samples.get(fields["session"]):
                    task.cancel()
                    await asyncio.wait({task})
                await self.engine.end(fields["session"])  # also where the completion was on its way already
            case "end":
                await self.engine.end(fields["session"])
            case "load":
                task = asyncio.create_task(self._answer(frame.number, self._load(fields["path"], fields["version"])))
                self._loads.add(task)
                task.add_done_callback(self._loads.discard)
            case "resize":
                await self._answer(frame.number, self._resize(fields["slots"], fields["length"]))
            case "counts":
                await self._answer(frame.number, self._count())
            case _:
                raise FrameError(f"no message is called {frame.kind!r}; see docs/engine.md")

    def report(self) -> dict[str, Any]:
        """What every answer says of the engine: counts, shape, and when it was at work since the last answer."""
        steps = [[span.start, span.end] for span in self.engine.spans.take().spans]
        return {"counts": asdict(self.engine.counts), "shape": self.engine.shape, "steps": steps}

    def _forget(self, task: asyncio.Task[None]) -> None:
        if self._samples.get(task.get_name()) is task:
            del self._samples[task.get_name()]

    async def _answer(self, number: int, work: Coroutine[Any, Any, Frame]) -> None:
        """Send what the work gives, or why it gives nothing."""
        try:
            done = await work
            reply = replace(done, number=number, fields={**done.fields, **self.report()})
        except Exception as error:
            text = str(error) if isinstance(error, StropError) else f"{type(error).__name__}: {error}"
            reply = Frame("error", number, {"text": text, **self.report()})
        self.send(reply)

    async def _sample(self, frame: Frame) -> Frame:
        fields = frame.fields
        sampling = Sampling(fields["max_tokens"], fields["temperature"], fields["top_p"], fields["top_k"])
        made = await self.engine.sample(frame.arrays["prompt"], sampling, fields["seed"], fields["session"])
        arrays = {"tokens": made.tokens, "logprobs": made.logprobs, "versions": made.versions}
        return Frame("completion", 0, {"stop": made.stop}, arrays)

    async def _load(self, path: str, version: int) -> Frame:
        await self.engine.load(load_file(path), version)
        return Frame("loaded", 0, {"version": version})

    async def _resize(self, slots: int, length: int) -> Frame:
        self.engine.resize(slots, length)
        return Frame("counts")

    async def _count(self) -> Frame:
        return Frame("counts")


def build(hello: Frame) -> LocalEngine:
    """The engine that a trainer's `hello` asks for."""
    facts = hello.fields
    if facts["protocol"] != PROTOCOL:
        raise EngineError(f"the trainer speaks protocol {facts['protocol']}, this server {PROTOCOL}; use one version")
    torch.set_num_threads(facts["threads"])
    policy = load(ModelSource(path=facts["model"], dtype=facts["dtype"], device=facts["device"]))
    # Memory of its own: loaded tensors may lie in the mapped file, which would stay, and where their alignment differs from
    # that of other tensors, last bits do too.
    with torch.no_grad():
        for parameter in policy.model.parameters():
            parameter.data = parameter.data.clone()
    engine = LocalEngine(policy, frozenset(facts["stop_ids"]), spans=Spans(), **facts["options"])
    gc.collect()
    gc.freeze()
    return engine


def describe(engine: LocalEngine, stop_ids: list[int]) -> dict[str, Any]:
    """The facts of the child's `hello`."""
    policy = engine.policy
    facts = {"vocabulary": policy.vocabulary, "window": policy.window, "stop_ids": stop_ids}
    return {"protocol": PROTOCOL, "server": "strop", **facts}


def leave(folder: str, code: int = 0) -> None:
    """End this process at once; nothing of it is worth saving."""
    shutil.rmtree(folder, ignore_errors=True)
    os._exit(code)


def listen(link: socket.socket, deliver: Callable[[Frame], Any], folder: str) -> None:
    """Deliver frames until the trainer says stop or is gone; then leave. Run in a thread, so that no step delays it."""
    try:
        with link.makefile("rb") as stream:
            while (frame := read(stream)) and frame.kind != "stop":
                deliver(frame)
    except OSError:
        pass
    except Exception:
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)
    leave(folder)


async def converse(link: socket.socket, folder: str) -> None:
    """Serve the trainer at the other end of a socket."""
    inbox: asyncio.Queue[Frame] = asyncio.Queue()
    loop = asyncio.get_running_loop()

    def deliver(frame: Frame) -> None:
        loop.call_soon_threadsafe(inbox.put_nowait, frame)

    def send(frame: Frame) -> None:
        with contextlib.suppress(OSError):  # the thread notices
            link.sendall(encode(frame))

    threading.Thread(target=listen, args=(link, deliver, folder), daemon=True).start()
    hello = await inbox.get()
    if hello.kind != "hello":
        raise FrameError(f"the first message is hello, not {hello.kind!r}")
    engine = build(hello)
    service = Service(engine, send)
    send(Frame("hello", hello.number, {**describe(engine, hello.fields["stop_ids"]), **service.report()}))
    while True:
        await service.take(await inbox.get())


def main() -> None:
    """Serve until the trainer is done with it or gone."""
    folder, descriptor = sys.argv[1], int(sys.argv[2])
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the trainer ends in order and says when to stop

    def terminated(number: int, _: Any) -> None:
        leave(folder, 128 + number)

    signal.signal(signal.SIGTERM, terminated)
    if sys.platform == "linux":
        kernel.control(kernel.SET_PARENT_DEATH_SIGNAL, signal.SIGTERM)  # a second way to learn it, if the first is slow
    asyncio.run(converse(socket.socket(fileno=descriptor), folder))


if __name__ == "__main__":
    main()
