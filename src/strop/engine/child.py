"""A child process that speaks frames: its start, its socket, its end.

One thread starts the process and reads what it says, another writes what it is told, so that requests work from any event
loop, and from none. Invariant: every request gets exactly one end, an answer or an exception of its own; when the process is
gone, all that wait learn it at once, and so does everybody who asks later.
"""

import contextlib
import os
import queue
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from itertools import count
from pathlib import Path
from typing import Any

from strop.core.errors import EngineError, EngineLost
from strop.engine.frames import Frame, encode, read

LAST = 4000
"""Bytes of the process's own words that an error repeats."""

GRACE = 0.5
"""Seconds that a process whose socket is closed has to end by itself."""

SERVER = (sys.executable, "-P", "-m", "strop.engine.serve")
"""Starts a server of a `LocalEngine`; a folder and a descriptor follow."""

SOURCE = Path(__file__).parents[2]


def environment(threads: int) -> dict[str, str]:
    """This process's environment, for a child with this very Strop and so many threads."""
    path = os.pathsep.join(filter(None, (str(SOURCE), os.environ.get("PYTHONPATH"))))
    number = {name: str(threads) for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")}
    quiet = {"TOKENIZERS_PARALLELISM": "false", "HF_HUB_DISABLE_PROGRESS_BARS": "1"}
    return {**os.environ, **number, **quiet, "PYTHONPATH": path}


class Child:
    """A process at the other end of a socket.

    Args:
        command: program and arguments; the descriptor of its end of the socket is given behind them.
        environment: of the process.
        hear: called with every frame before its answer is given, in the reading thread.
    """

    def __init__(
        self, command: Sequence[str], environment: Mapping[str, str], hear: Callable[[Frame], None] = lambda _: None
    ) -> None:
        self.process: subprocess.Popen[bytes] | None = None
        self._command, self._environment, self._hear = command, environment, hear
        self._mine, self._theirs = socket.socketpair()
        self._words = tempfile.TemporaryFile()  # noqa: SIM115  # lives as long as the process
        self._lock = threading.RLock()  # a collected engine may be closed from any of these threads, at any point
        self._pending: dict[int, Future[Frame]] = {}
        self._lost: tuple[str, str] | None = None  # what happened, and its last words
        self._numbers = count(1)
        self._outbox: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._born = threading.Event()
        self._closing = threading.Lock()
        self._closed = False
        # The thread that starts the process lives as long as it: Linux tells a child of the death of its parent's thread.
        self._reader = threading.Thread(target=self._live, name="strop-engine-reader", daemon=True)
        self._writer = threading.Thread(target=self._write, name="strop-engine-writer", daemon=True)
        self._reader.start()
        self._writer.start()

    def ask(self, kind: str, fields: Mapping[str, Any], arrays: Mapping[str, Any] | None = None) -> Future[Frame]:
        """Send a request. The future gives the frame that answers it, or raises `EngineError`; it can be cancelled.

        Raises:
            EngineLost: the process is gone.
            EngineError: the request cannot be sent.
        """
        number = next(self._numbers)
        data = encode(Frame(kind, number, fields, arrays or {}))
        future: Future[Frame] = Future()
        with self._lock:
            self.check()
            self._pending[number] = future
        future.add_done_callback(lambda _: self._pending.pop(number, None))
        self._outbox.put(data)
        return future

    def tell(self, kind: str, fields: Mapping[str, Any]) -> None:
        """Send what has no answer; nothing happens where the process is gone."""
        if self._lost is None:
            self._outbox.put(encode(Frame(kind, 0, fields)))

    def check(self) -> None:
        """Raise `EngineLost` if the process is gone."""
        if self._lost is not None:
            raise EngineLost(*self._lost)

    def close(self, patience: float = 2.0) -> None:
        """End the process and wait until it is gone: ask it, after `patience` seconds terminate it, after one more kill it."""
        with self._closing:
            if self._closed:
                return
            self._closed = True
            self._lose("the engine was closed")
            self._born.wait()
            if self.process is not None:
                self._outbox.put(encode(Frame("stop")))
                for end, seconds in ((self.process.terminate, patience), (self.process.kill, 1.0)):
                    try:
                        self.process.wait(seconds)
                    except subprocess.TimeoutExpired:
                        end()
                self.process.wait()
            self._outbox.put(None)
            with contextlib.suppress(OSError):
                self._mine.shutdown(socket.SHUT_RDWR)  # wakes both threads
            for thread in (self._reader, self._writer):
                if thread is not threading.current_thread():
                    thread.join()
            self._mine.close()
            self._words.close()

    def _live(self) -> None:
        """Start the process, read until it ends, and say so to all that wait."""
        try:
            with self._theirs:
                end = self._theirs.fileno()
                self.process = subprocess.Popen(
                    [*self._command, str(end)],
                    env=dict(self._environment),
                    stdin=subprocess.DEVNULL,
                    stdout=self._words,
                    stderr=self._words,
                    pass_fds=(end,),
                    process_group=0,  # Ctrl-C in a terminal is for the trainer
                )
        except OSError as error:
            self._lose(f"the engine's process did not start: {error}")
            return
        finally:
            self._born.set()
        fault = ""
        try:
            with self._mine.makefile("rb") as stream:
                while frame := read(stream):
                    self._take(frame)
        except Exception as error:  # whoever breaks the protocol cannot be trusted with the next request either
            fault = "" if isinstance(error, OSError) else f"; its last frame was broken ({error!r})"
        self._lose(f"the engine's process {self.process.pid} {self._end()}{fault}", self._last_words())

    def _take(self, frame: Frame) -> None:
        self._hear(frame)
        with self._lock:
            future = self._pending.pop(frame.number, None)
        if future is None or not future.set_running_or_notify_cancel():
            return
        if frame.kind == "error":
            future.set_exception(EngineError(str(frame.fields.get("text"))))
        else:
            future.set_result(frame)

    def _write(self) -> None:
        while (data := self._outbox.get()) is not None:
            try:
                self._mine.sendall(data)
            except OSError:  # the reader tells everybody
                return

    def _end(self) -> str:
        """See to it that the process is gone; how it ended."""
        assert self.process is not None
        try:
            code = self.process.wait(GRACE)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            return "stopped talking and was killed"
        if code >= 0:
            return f"ended with exit code {code}"
        name = signal.Signals(-code).name if -code in {s.value for s in signal.Signals} else f"signal {-code}"
        return f"was ended by {name}" + (" (out of memory looks like this)" if name == "SIGKILL" else "")

    def _last_words(self) -> str:
        try:
            place = self._words.fileno()
        except ValueError:  # closed meanwhile: nobody asks
            return ""
        size = os.fstat(place).st_size
        return os.pread(place, LAST, max(0, size - LAST)).decode(errors="replace").strip()

    def _lose(self, text: str, last: str = "") -> None:
        """From now on the process counts as gone; the first reason stays."""
        with self._lock:
            self._lost = self._lost or (text, last)
            waiting, self._pending = list(self._pending.values()), {}
        for future in waiting:
            if future.set_running_or_notify_cancel():
                future.set_exception(EngineLost(*self._lost))
