"""One sandbox process as the trainer sees it: requests in, messages out, always in bounded time.

Invariant: whatever the inside says or does not say, a request ends at its deadline; messages are data that `answers` checks,
and a worker that did anything unexpected is ended, never used again.
"""

import contextlib
import json
import os
import select
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from strop.core.sandbox import Bounds, Ending, SandboxError
from strop.sandbox.launch import ADVICE, Launcher, Wish

CHUNK = 32_768  # bytes of a message
GRACE = 5.0  # seconds that the inside gets beyond its own deadline before it is ended from outside
START = 20.0  # seconds to start


@dataclass(slots=True)
class Heard:
    """What came out of one run.

    Args:
        ready: whether the code had begun when the run was lost, as far as one can tell.
        parts: bytes by kind of message and index.
        states: how each case or command ended.
        broken: what went wrong with the sandbox itself.
    """

    ready: bool = False
    parts: dict[tuple[str, int], bytearray] = field(default_factory=dict[tuple[str, int], bytearray])
    states: dict[int, tuple[Ending, int | None]] = field(default_factory=dict[int, tuple[Ending, int | None]])
    broken: str = ""

    def state(self, index: int) -> tuple[Ending, int | None]:
        """How a case or command ended. Nothing is known of the cases after one at which the time was over."""
        if self.broken:
            return "broken", None
        return self.states.get(index, ("wall_time" if self.states else "signal", None))


class Worker:
    """A bubblewrap process with a waiter inside. Used by one thread at a time."""

    def __init__(self, launcher: Launcher, mounts: Mapping[str, str], warm: bool = False, piped: bool = False) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.channel = ours
        self.alive = True
        self.inner = -1
        self.lock = threading.Lock()
        try:
            with theirs:
                self.started = launcher.start(Wish(theirs.fileno(), mounts, warm, piped))
        except BaseException:
            ours.close()
            raise
        try:
            kind, _, _ = self._receive(time.monotonic() + START)
        except (OSError, ValueError) as error:
            kind, why = "", str(error)
        else:
            why = f"it began with {kind!r}"
        if kind != "H":
            with contextlib.suppress(OSError):
                self.started.process.wait(1.0)
            complaint = self.started.complaint()
            self.end()
            raise SandboxError(f"bubblewrap does not work here ({complaint or why}). {ADVICE}")
        self.inner = _open_inner(self.started.process.pid)

    def ask(self, request: Mapping[str, Any], parts: Sequence[bytes]) -> Heard:
        """Have one request done. Whatever happens, the answer says it."""
        heard = Heard()
        seconds = request["seconds"]
        deadline = None if seconds is None else time.monotonic() + seconds + GRACE
        try:
            self.send(request, parts)
            heard.ready = True
            while True:
                kind, index, data = self._receive(deadline)
                self._note(heard, kind, index, data)
                if kind in "QZ":
                    break
        except (OSError, ValueError) as error:
            heard.broken = heard.broken or f"the worker was lost: {error}"
            self.end()
        if heard.broken:
            self.end()
        return heard

    def last_words(self, seconds: float) -> str:
        """What bubblewrap and, where it has ended, the service wrote to standard error at last."""
        heard = Heard()
        with contextlib.suppress(OSError, ValueError):
            deadline = time.monotonic() + seconds
            while True:
                kind, index, data = self._receive(deadline)
                self._note(heard, kind, index, data)
                if kind in "QZ":
                    break
        said = bytes(heard.parts.get(("E", 0), b"")).decode(errors="replace")
        return f"{self.started.complaint()} {heard.broken} {said}".strip()

    def send(self, request: Mapping[str, Any], parts: Sequence[bytes]) -> None:
        """Send a request and its parts."""
        self.channel.settimeout(GRACE)
        self.channel.send(json.dumps({**request, "lengths": [len(part) for part in parts]}).encode())
        body = b"".join(parts)
        for start in range(0, len(body), CHUNK):
            self.channel.send(body[start : start + CHUNK])

    def _receive(self, deadline: float | None) -> tuple[str, int, bytes]:
        left = None if deadline is None else deadline - time.monotonic()
        if left is not None and left <= 0:
            raise TimeoutError("no answer in time")
        self.channel.settimeout(left)
        message = self.channel.recv(2 * CHUNK)
        if len(message) < 5:
            raise ConnectionError("the channel closed")
        return message[:1].decode("ascii", "replace"), int.from_bytes(message[1:5], "big"), message[5:]

    def _note(self, heard: Heard, kind: str, index: int, data: bytes) -> None:
        if kind in "SQ":
            ending, _, data = data.partition(b"\n")
            state = json.loads(ending)
            heard.states[index] = (state["ended"], state["code"])
            heard.parts.setdefault(("D", index), bytearray()).extend(data)
        elif kind == "X":
            heard.broken = str(json.loads(data))
        elif kind == "Z":
            heard.ready = json.loads(data)["ready"]
            heard.broken = heard.broken or "its supervisor died" if heard.ready else "the run did not start"
        else:
            heard.parts.setdefault((kind, index), bytearray()).extend(data)

    def kill(self) -> None:
        """Kill it as a tree; any thread may. Who uses it notices, and ends it."""
        with self.lock:
            if not self.alive:
                return
            # Process 1 first: bubblewrap then reaps it and ends by itself.
            if self.inner < 0:
                self.started.process.kill()
            else:
                with contextlib.suppress(ProcessLookupError):
                    signal.pidfd_send_signal(self.inner, signal.SIGKILL)

    def end(self) -> None:
        """Kill it as a tree and wait until it is gone."""
        self.kill()
        with self.lock:
            if not self.alive:
                return
            self.alive = False
            if self.inner >= 0:
                # Process 1 is gone when all others of its namespace are.
                poll = select.poll()
                poll.register(self.inner, select.POLLIN)
                poll.poll(1000 * GRACE)
                os.close(self.inner)
                with contextlib.suppress(subprocess.TimeoutExpired):
                    self.started.process.wait(GRACE)
            self.channel.close()
            self.started.end()


def _open_inner(pid: int) -> int:
    """A handle of process 1 inside, the only child of bubblewrap; -1 where the kernel does not tell."""
    try:
        with open(f"/proc/{pid}/task/{pid}/children") as file:
            return os.pidfd_open(int(file.read().split()[0]))
    except (OSError, IndexError):
        return -1


def bounded(kind: str, bounds: Bounds, fresh: bool, extra: int = 0) -> dict[str, Any]:
    """A request's kind and limits.

    Args:
        kind: execute, command or serve.
        bounds: limits of the run.
        fresh: whether /tmp is its own.
        extra: bytes of given files, for which private places get room.
    """
    serving = kind == "serve"
    return {
        "kind": kind,
        "fresh": fresh,
        "seconds": None if serving else bounds.wall_seconds,
        "cpu_seconds": None if serving else bounds.cpu_seconds,
        "memory_mb": bounds.memory_mb,
        "processes": bounds.processes,
        "open_files": bounds.open_files,
        "file_mb": bounds.file_mb,
        "extra_mb": -(-extra >> 20),
        "output_kb": bounds.output_kb,
    }
