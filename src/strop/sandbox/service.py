"""A service inside the sandbox, one JSON line a request. Invariant: an answer is one bounded line in bounded time that is a
JSON object; anything else ends the service."""

import asyncio
import json
import os
import select
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, cast

from strop.core.sandbox import SandboxError, Service
from strop.sandbox.worker import Worker

LINE = 1 << 20  # bytes of an answer


class Lines(Service):
    """A running service. Requests wait for each other.

    Args:
        worker: a worker that was started for it, with pipes.
        request, parts: what starts it.
        gone: called once when it has ended.
    """

    def __init__(
        self, worker: Worker, request: Mapping[str, Any], parts: Sequence[bytes], gone: Callable[[], None]
    ) -> None:
        process = worker.started.process
        if process.stdin is None or process.stdout is None:
            raise SandboxError("a service needs pipes")
        self.worker, self.gone = worker, gone
        self.to, self.back = process.stdin.fileno(), process.stdout.fileno()
        os.set_blocking(self.to, False)
        os.set_blocking(self.back, False)
        self.rest = bytearray()
        self.thread = ThreadPoolExecutor(1, "strop-sandbox-service")
        worker.send(request, parts)

    async def ask(self, request: Mapping[str, Any], seconds: float) -> Mapping[str, Any]:
        """Answer of one request; see `Service.ask`."""
        line = json.dumps(request).encode() + b"\n"
        return await asyncio.get_running_loop().run_in_executor(self.thread, self._ask, line, seconds)

    async def close(self) -> None:
        """Kill it as a tree and wait until it is gone."""
        await asyncio.get_running_loop().run_in_executor(None, self._close)

    def _close(self) -> None:
        self.thread.shutdown(cancel_futures=True)
        self.gone()

    def _ask(self, line: bytes, seconds: float) -> Mapping[str, Any]:
        deadline = time.monotonic() + seconds
        try:
            if not self.worker.alive:
                raise SandboxError("the service has ended")
            self._write(line, deadline)
            answer: Any = json.loads(self._read(deadline))
            if not isinstance(answer, dict):
                raise ValueError("it is no JSON object")
            return cast("dict[str, Any]", answer)
        except (OSError, ValueError, RecursionError) as error:
            said = self.worker.last_words(0.5) if self.worker.alive else ""
            self.gone()
            raise SandboxError(f"the service gave no answer: {error}. {said}".rstrip()) from error

    def _wait(self, descriptor: int, event: int, deadline: float) -> None:
        poll = select.poll()
        poll.register(descriptor, event)
        if not poll.poll(max(0.0, 1000 * (deadline - time.monotonic()))):
            raise TimeoutError("it took too long")

    def _write(self, line: bytes, deadline: float) -> None:
        while line:
            self._wait(self.to, select.POLLOUT, deadline)
            line = line[os.write(self.to, line) :]

    def _read(self, deadline: float) -> bytes:
        while b"\n" not in self.rest:
            if len(self.rest) > LINE:
                raise ValueError(f"a line of more than {LINE} bytes")
            self._wait(self.back, select.POLLIN, deadline)
            piece = os.read(self.back, 65_536)
            if not piece:
                raise ConnectionError("it ended")
            self.rest += piece
        line, _, rest = bytes(self.rest).partition(b"\n")
        self.rest.clear()
        if rest:
            raise ValueError("it answered more than one line")
        return line
