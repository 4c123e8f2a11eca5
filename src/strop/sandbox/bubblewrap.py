"""The sandbox: warm workers for programs, a new one for each command and service.

Invariant: code runs inside bubblewrap or not at all; a run that the sandbox itself broke is tried once more in a new sandbox
and is then `broken`, which says nothing about the code.
"""

import asyncio
import atexit
import json
import os
import threading
import time
from collections.abc import Mapping, Sequence, Sized
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

from strop.core.errors import UsageError
from strop.core.sandbox import Bounds, Ending, Executed, Outcome, Program, Ran, Sandbox, SandboxError, Service
from strop.sandbox.answers import read_outcomes
from strop.sandbox.launch import Launcher, check_mount
from strop.sandbox.plain import NotPlainError, encode
from strop.sandbox.service import Lines
from strop.sandbox.worker import Heard, Worker, bounded

COLD = 2  # commands at once
PARTS = 4_000  # cases or files of a run

REASONS: dict[Ending, str] = {
    "exited": "",
    "signal": "it was ended by a signal (memory limits end so too)",
    "cpu_time": "it used more than its processor time",
    "wall_time": "it took longer than its time",
    "output": "it wrote more than its bound",
    "broken": "the sandbox broke",
}

USUAL = Bounds()


class Bubblewrap(Sandbox):
    """A sandbox made of bubblewrap, Linux namespaces and limits.

    Args:
        workers: programs at once; more calls wait for their turn.

    Raises:
        SandboxError: there is no working bubblewrap; the text says what to do.
    """

    def __init__(self, workers: int = 1) -> None:
        self.launcher = Launcher()
        self.local = threading.local()
        self.lock = threading.Lock()
        self.workers: set[Worker] = set()
        self.warm = ThreadPoolExecutor(workers, "strop-sandbox-warm")
        self.cold = ThreadPoolExecutor(COLD, "strop-sandbox-cold")
        self.closed = False
        try:
            # A sandbox that does not work says so now, not at the first episode.
            self.spare: list[Worker] = [self._start({}, True)]
        except BaseException:
            self.close()
            raise

    async def run(
        self,
        command: Sequence[str],
        files: Mapping[str, bytes],
        bounds: Bounds = USUAL,
        collect: Sequence[str] = (),
        mounts: Mapping[str, str] | None = None,
    ) -> Ran:
        """Run a command in a fresh sandbox; see `Sandbox.run`."""
        for path in (*files, *collect):
            _check_path(path)
        if not command or not command[0]:
            raise UsageError("a command needs at least the program's name")
        _check_count(files)
        for place, host in (mounts or {}).items():
            check_mount(place, host)
        what = {"command": list(command), "files": list(files), "collect": list(collect)}
        parts = [json.dumps(what).encode(), *files.values()]
        request = bounded("command", bounds, True, sum(map(len, files.values())))
        began = time.monotonic()
        loop = asyncio.get_running_loop()
        heard = await loop.run_in_executor(self.cold, self._run, request, parts, dict(mounts or {}))
        ended, code = heard.state(0)
        found = {path: bytes(heard.parts[("F", n)]) for n, path in enumerate(collect) if ("F", n) in heard.parts}
        out, err = (bytes(heard.parts.get((kind, 0), b"")) for kind in ("O", "E"))
        return Ran(ended, code, out, err, found, time.monotonic() - began, heard.broken or REASONS[ended])

    async def execute(self, program: Program, bounds: Bounds = USUAL, fresh: bool = True) -> Executed:
        """Execute modules and calls in a warm worker; see `Sandbox.execute`."""
        parts = self.parts_of(program)
        if not program.cases:
            return Executed((), "exited")
        request = bounded("execute", bounds, fresh)
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self.warm, self._execute, program, request, parts)

    def parts_of(self, program: Program) -> list[bytes]:
        """A program as a request carries it: modules, then each case, so that a case's process decodes its own alone."""
        _check_count(program.cases)
        parts = [json.dumps(dict(program.modules)).encode()]
        for case in program.cases:
            try:
                calls = [(call.function, encode(call.args), encode(dict(call.kwargs))) for call in case]
            except NotPlainError as error:
                raise UsageError(f"an argument of a call: {error}; use plain values") from None
            parts.append(json.dumps(calls).encode())
        return parts

    async def serve(self, command: Sequence[str], mounts: Mapping[str, str], bounds: Bounds = USUAL) -> Service:
        """Start a service in a sandbox of its own; see `Sandbox.serve`."""
        for place, host in mounts.items():
            check_mount(place, host)
        what = {"command": list(command), "files": [], "collect": []}
        request = bounded("serve", bounds, True)
        loop = asyncio.get_running_loop()
        worker = await loop.run_in_executor(self.cold, self._start, dict(mounts), False, True)
        try:
            return Lines(worker, request, [json.dumps(what).encode()], lambda: self._end(worker))
        except BaseException:
            self._end(worker)
            raise

    def close(self) -> None:
        """End everything that runs and wait until it is gone. Running calls give `broken`."""
        with self.lock:
            if self.closed:
                return
            self.closed = True
            workers = list(self.workers)
        # Who uses a worker ends it; here only its process is killed, which any thread may.
        for worker in workers:
            worker.kill()
        self.warm.shutdown(cancel_futures=True)
        self.cold.shutdown(cancel_futures=True)
        for worker in list(self.workers):
            self._end(worker)
        self.launcher.close()

    def _start(self, mounts: Mapping[str, str], warm: bool = False, piped: bool = False) -> Worker:
        worker = Worker(self.launcher, mounts, warm, piped)
        with self.lock:
            self.workers.add(worker)
            if self.closed:
                worker.kill()
        return worker

    def _end(self, worker: Worker) -> None:
        worker.end()
        with self.lock:
            self.workers.discard(worker)

    def ask_cold(self, request: Mapping[str, Any], parts: Sequence[bytes], mounts: Mapping[str, str]) -> Heard:
        """One request in a sandbox that is started for it and ended after it; blocks."""
        try:
            worker = self._start(mounts)
        except (SandboxError, OSError) as error:
            return Heard(broken=str(error))
        try:
            return worker.ask(request, parts)
        finally:
            self._end(worker)

    def _ask_warm(self, request: Mapping[str, Any], parts: Sequence[bytes]) -> Heard:
        """One worker for each thread of the pool."""
        worker: Worker | None = getattr(self.local, "worker", None)
        if worker is None or not worker.alive:
            try:
                with self.lock:
                    worker = self.spare.pop() if self.spare else None
                worker = self.local.worker = worker or self._start({}, True)
            except (SandboxError, OSError) as error:
                return Heard(broken=str(error))
        heard = worker.ask(request, parts)
        if not worker.alive:
            self._end(worker)
        return heard

    def _insist(
        self, heard: Heard, request: Mapping[str, Any], parts: Sequence[bytes], mounts: Mapping[str, str]
    ) -> Heard:
        """What was heard, or a second try in a new sandbox where the first was lost."""
        if not heard.broken or self.closed:
            return heard
        again = self.ask_cold(request, parts, mounts)
        if again.broken and heard.ready and again.ready and not self.closed:
            # Lost twice, each time after the code had begun: that is what the code does, and it shall not pay.
            return replace(again, broken="", states={})
        return again

    def _run(self, request: Mapping[str, Any], parts: Sequence[bytes], mounts: Mapping[str, str]) -> Heard:
        return self._insist(self.ask_cold(request, parts, mounts), request, parts, mounts)

    def _execute(self, program: Program, request: Mapping[str, Any], parts: Sequence[bytes]) -> Executed:
        heard = self._insist(self._ask_warm(request, parts), request, parts, {})
        ended, reason = "exited", ""
        outcomes: list[tuple[Outcome, ...]] = []
        for number, case in enumerate(program.cases):
            state, code = heard.state(number)
            why = heard.broken or REASONS[state] or f"it exited with {code} before it answered"
            if state != "exited" and ended == "exited":
                ended, reason = state, why
            outcomes.append(read_outcomes(bytes(heard.parts.get(("D", number), b"")), len(case), why))
        return Executed(tuple(outcomes), ended, reason)


def _check_count(parts: Sized) -> None:
    if len(parts) > PARTS:
        raise UsageError(f"{len(parts)} cases or files are more than {PARTS} in one run; split them over several runs")


def _check_path(path: str) -> None:
    if os.path.isabs(path) or os.path.normpath(path) != path or path.split("/")[0] in ("..", "."):
        raise UsageError(f"a file is named by a path below the working directory, not {path!r}")


_shared: dict[int, Bubblewrap] = {}
_sharing = threading.Lock()


def shared() -> Bubblewrap:
    """The sandbox of this process, made at the first call and closed at its end.

    Raises:
        SandboxError: there is no working bubblewrap here.
    """
    with _sharing:
        # A forked child has no threads of its parent, so none of its sandboxes.
        found = _shared.get(os.getpid())
        if found is None or found.closed:
            found = _shared[os.getpid()] = Bubblewrap()
        return found


@atexit.register
def _close_shared() -> None:
    found = _shared.get(os.getpid())
    if found:
        found.close()
