"""What waits inside the sandbox and starts each run: it forks a supervisor in new namespaces, which forks the code.

    bubblewrap > waiter (process 1 of its namespace) > supervisor (process 1 of the run's) > the code of one case

Invariant: waiter and supervisor run no line of the code that they start, the waiter never reads a program or an answer (its
memory is inherited by all later runs), the code holds no descriptor but its own three streams and one pipe, and whatever it
started is dead before its case is reported. The code cannot see the waiter, nor kill, trace or write to the supervisor: it
has no capability, the supervisor is process 1, is not dumpable and installs no signal handler. Standard library only.
"""

import gc
import json
import math
import os
import resource
import select
import signal
import socket
import stat
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any

import strop.sandbox.driver as driver
import strop.sandbox.kernel as kernel
import strop.sandbox.seccomp as seccomp

CHUNK = 32_768  # bytes of a message's data
SHARED_MB = 64  # of the /tmp that runs without `fresh` share
INODES = 4_096  # files of a private place
ANSWERS = 1 << 20  # bytes of all answers of a case
TAIL = 4_096  # bytes kept of a service's standard error
HOME = "/sandbox/home"
FINISHED = 77  # exit status of a supervisor after which there will be no other
PLACES = (HOME, "/dev/shm")
ENVIRON = {
    "PATH": f"{sys.base_prefix}/bin:/usr/local/bin:/usr/bin:/bin",
    "HOME": HOME,
    "TMPDIR": "/tmp",
    "LANG": "C.UTF-8",
    "PYTHONHASHSEED": "0",
}


class Link:
    """Messages to the trainer: one byte of kind, four of index, data."""

    def __init__(self, channel: socket.socket) -> None:
        self.channel = channel

    def send(self, kind: str, index: int = 0, data: bytes = b"") -> None:
        """Send data in as many messages as it needs, at least one."""
        for start in range(0, max(len(data), 1), CHUNK):
            self.channel.send(kind.encode() + index.to_bytes(4, "big") + data[start : start + CHUNK])

    def report(self, index: int, ending: Mapping[str, Any], answers: bytes = b"", last: bool = False) -> None:
        """What became of a case, in one message where that suffices: each wakes the trainer."""
        if len(answers) > CHUNK:
            self.send("D", index, answers[:-1])
            answers = answers[-1:]
        self.channel.send(
            ("Q" if last else "S").encode() + index.to_bytes(4, "big") + json.dumps(ending).encode() + b"\n" + answers
        )

    def tell(self, kind: str, index: int, fact: Any) -> None:
        """Send one JSON value."""
        self.send(kind, index, json.dumps(fact).encode())

    def receive(self, lengths: list[int]) -> list[bytes]:
        """The parts of a request."""
        body = bytearray()
        while len(body) < sum(lengths):
            piece = self.channel.recv(2 * CHUNK)
            if not piece:
                raise EOFError("the trainer is gone")
            body += piece
        ends = [sum(lengths[: n + 1]) for n in range(len(lengths))]
        return [bytes(body[end - length : end]) for end, length in zip(ends, lengths, strict=True)]


def main(descriptor: int, warm: bool) -> None:
    """Wait for requests until the trainer is gone.

    Args:
        descriptor: the message channel.
        warm: whether many programs will come, so that preparing for them pays.
    """
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    kernel.control(kernel.SET_DUMPABLE, 0)
    # Namespaces that belong to this user namespace, so that the waiter may mount, and come back to them after each run.
    kernel.unshare(kernel.NEW_PROCESSES | kernel.NEW_MOUNTS)
    child = os.fork()
    if child:
        os.close(descriptor)
        os._exit(os.waitpid(child, 0)[1] != 0)
    os.umask(0o077)
    if warm:
        driver.preload()
    # Collected objects would be copied, page by page, in every run.
    gc.collect()
    gc.freeze()
    link = Link(socket.socket(fileno=descriptor))
    kernel.mount("tmpfs", "/tmp", "tmpfs", kernel.NO_SUID | kernel.NO_DEVICES, _size(SHARED_MB))
    own = os.open("/proc/self/ns/pid", os.O_RDONLY)
    others = _count_processes()
    link.tell("H", 0, {"python": sys.version.split()[0], "others": others})
    last = 0
    while True:
        # Made ahead of its request, so that a request does not wait for it.
        kernel.enter(own, kernel.NEW_PROCESSES)
        kernel.unshare(kernel.NEW_PROCESSES)
        begun, begin = os.pipe()
        child = os.fork()
        if not child:
            _supervise(link, others, begin)
        os.close(begin)
        if last:
            os.waitpid(last, 0)
        # One byte when the code begins, one when all is reported: its end then need not be waited for.
        said = os.read(begun, 1)
        if said and os.read(begun, 1):
            last = child
            os.close(begun)
            continue
        last = 0
        os.close(begun)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        if code == FINISHED:
            break
        link.tell("Z", 0, {"ready": bool(said)})


def _size(mebibytes: int) -> str:
    return f"size={mebibytes}m,nr_inodes={INODES},mode=700"


def _count_processes() -> int:
    """Processes that count for the limit and are not the code's: found by trying, since the kernel tells nobody."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NPROC)
    try:
        for count in range(1, 32):
            resource.setrlimit(resource.RLIMIT_NPROC, (count, hard))
            try:
                child = os.fork()
            except BlockingIOError:
                continue
            if not child:
                os._exit(0)
            os.waitpid(child, 0)
            # With the forked child, `count` processes fitted. In a run that child is the supervisor.
            return count
    finally:
        resource.setrlimit(resource.RLIMIT_NPROC, (soft, hard))
    raise OSError("the limit of processes does not hold here")


def _supervise(link: Link, others: int, begin: int) -> None:
    """The supervisor of one run: wait for the request, build the walls, start the code, report."""
    try:
        os.setpgid(0, 0)
        kernel.unshare(kernel.NEW_MOUNTS | kernel.NEW_IPC)
        flags = kernel.NO_SUID | kernel.NO_DEVICES
        kernel.mount("proc", "/proc", "proc", flags | kernel.NO_PROGRAMS)
        json.loads('{"ready": [1, 0.5, null, true]}')  # so that the pages of the parser are there when time counts
        head = link.channel.recv(2 * CHUNK)
        if not head:
            os._exit(FINISHED)
        request: dict[str, Any] = json.loads(head)
        run = Run(link, request, others)
        for place in (*PLACES, "/tmp") if request["fresh"] else PLACES:
            kernel.mount("tmpfs", place, "tmpfs", flags, _size(request["file_mb"] + request["extra_mb"]))
        kernel.drop_capabilities()
        try:
            kernel.unshare(kernel.NEW_NAMES)
        except PermissionError:
            pass
        else:
            raise OSError("capabilities were dropped and still are there")
        seccomp.install_filter()
        os.chdir(HOME)
        parts = link.receive(request["lengths"])
        os.write(begin, b"!")
        if request["kind"] == "execute":
            run.execute(parts)
        else:
            run.command(parts)
        if request["kind"] != "serve":
            os.write(begin, b"!")
    except BaseException as error:
        link.tell("X", 0, f"{type(error).__name__}: {error}"[:500])
        os._exit(1)
    os._exit(FINISHED if request["kind"] == "serve" else 0)


class Run:
    """One run: starts its processes, enforces what the kernel does not, reports.

    Args:
        link: to the trainer.
        request: kind and bounds.
        others: processes of this user namespace that are not the code's.
    """

    def __init__(self, link: Link, request: Mapping[str, Any], others: int) -> None:
        self.link, self.request, self.others = link, request, others
        seconds = request["seconds"]
        self.deadline = math.inf if seconds is None else time.monotonic() + seconds
        self.null = os.open("/dev/null", os.O_RDWR)

    def execute(self, parts: list[bytes]) -> None:
        """Each case in a process of its own, one after the other."""
        modules, *cases = parts
        for number, case in enumerate(cases):
            if time.monotonic() >= self.deadline:
                self.link.report(number, {"ended": "wall_time", "code": None}, last=True)
                break

            def work(out: int, case: bytes = case) -> None:
                driver.execute(modules, case, out)

            output = Stream(1024 * self.request["output_kb"])
            answers = Stream(ANSWERS)
            ended = self.start(work, {1: output, 2: output, 3: answers})
            self.link.report(number, ended, bytes(answers.data), number + 1 == len(cases))

    def command(self, parts: list[bytes]) -> None:
        """A command in a directory of its files, and the files that are wanted afterwards."""
        what: dict[str, Any] = json.loads(parts[0])
        for path, content in zip(what["files"], parts[1:], strict=True):
            os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
            with open(path, "wb") as file:
                file.write(content)
            os.chmod(path, 0o755)
        serving = self.request["kind"] == "serve"
        limit = 1024 * self.request["output_kb"]
        out, err = Stream(limit), Stream(limit, keep=TAIL if serving else 0)

        def work(_: int) -> None:
            _replace(what["command"])

        ended = self.start(work, {2: err} if serving else {1: out, 2: err})
        self.link.send("O", 0, bytes(out.data))
        self.link.send("E", 0, bytes(err.data))
        for number, path in enumerate(what["collect"]):
            content = _read(path, (self.request["file_mb"] + self.request["extra_mb"]) << 20)
            if content is not None:
                self.link.send("F", number, content)
        self.link.report(0, ended, last=True)

    def start(self, work: Callable[[int], None], streams: Mapping[int, "Stream"]) -> dict[str, Any]:
        """Fork, let the child work, and see all that it started dead.

        Args:
            work: what the child does; gets the descriptor for answers (3).
            streams: where to put what it writes, by its descriptor.
        """
        pipes = {stream: os.pipe() for stream in set(streams.values())}
        child = os.fork()
        if not child:
            self._become({number: pipes[stream][1] for number, stream in streams.items()}, work)
        for stream, (read, write) in pipes.items():
            os.close(write)
            os.set_blocking(read, False)
            stream.descriptor = read
        ending = self._follow(child, list(pipes))
        _kill_all()
        _, status, usage = os.wait4(child, 0)
        _reap()
        for stream in pipes:
            while stream.take():
                pass
            os.close(stream.descriptor)
        if not ending and any(stream.full for stream in pipes):
            ending = "output"
        if ending:
            return {"ended": ending, "code": None}
        code = os.waitstatus_to_exitcode(status)
        if code == -signal.SIGKILL and usage.ru_utime + usage.ru_stime >= 0.5 * self._cpu():
            return {"ended": "cpu_time", "code": None}
        return {"ended": "signal" if code < 0 else "exited", "code": abs(code)}

    def _cpu(self) -> float:
        seconds = self.request["cpu_seconds"]
        return math.inf if seconds is None else max(1, math.ceil(seconds))

    def _follow(self, child: int, streams: list["Stream"]) -> str:
        """Read until the child ends. Returns how it has to end, or nothing when it ended by itself."""
        handle = os.pidfd_open(child)
        poll = select.poll()
        poll.register(handle, select.POLLIN)
        poll.register(self.link.channel, select.POLLHUP)
        by_descriptor = {stream.descriptor: stream for stream in streams}
        for descriptor in by_descriptor:
            poll.register(descriptor, select.POLLIN)
        try:
            while True:
                left = self.deadline - time.monotonic()
                if left <= 0:
                    return "wall_time"
                for descriptor, _ in poll.poll(None if left == math.inf else math.ceil(1000 * left)):
                    if descriptor == handle:
                        return ""
                    if descriptor == self.link.channel.fileno():
                        os._exit(FINISHED)
                    if not by_descriptor[descriptor].take():
                        poll.unregister(descriptor)
                    if by_descriptor[descriptor].full:
                        return "output"
        finally:
            os.close(handle)

    def _become(self, streams: Mapping[int, int], work: Callable[[int], None]) -> None:
        """The child: streams in place, nothing else open, limits on, then the work. Never comes back."""
        status = 126
        try:
            os.setpgid(0, 0)
            os.umask(0o022)
            # Out of the way of the numbers that are about to be taken.
            moved = {number: os.dup2(source, 100 + number) for number, source in streams.items()}
            if self.request["kind"] != "serve":
                os.dup2(self.null, 0)
            for number, source in moved.items():
                os.dup2(source, number)
            os.closerange(4 if 3 in moved else 3, 1 << 20)
            self._limit()
            kernel.control(kernel.SET_DUMPABLE, 1)
            # Where memory runs out, the code goes first.
            score = os.open("/proc/self/oom_score_adj", os.O_WRONLY)
            os.write(score, b"1000")
            os.close(score)
            work(3)
            status = 0
        except BaseException as error:
            os.write(2, f"{type(error).__name__}: {error}\n".encode())
        finally:
            # Whatever was raised, by hostile code too: this process must not go on as a supervisor.
            os._exit(status)

    def _limit(self) -> None:
        request = self.request
        limits = {
            resource.RLIMIT_AS: request["memory_mb"] << 20,
            resource.RLIMIT_NPROC: self.others + request["processes"],
            resource.RLIMIT_NOFILE: request["open_files"],
            resource.RLIMIT_FSIZE: request["file_mb"] << 20,
            resource.RLIMIT_CORE: 0,
            resource.RLIMIT_MEMLOCK: 0,
            resource.RLIMIT_MSGQUEUE: 0,
        }
        if request["cpu_seconds"] is not None:
            limits[resource.RLIMIT_CPU] = int(self._cpu())
        for which, limit in limits.items():
            resource.setrlimit(which, (limit, limit))


class Stream:
    """What comes out of a pipe, bounded. With `keep`, the last bytes of any amount instead."""

    def __init__(self, limit: int, keep: int = 0) -> None:
        self.limit, self.keep, self.data, self.full, self.descriptor = limit, keep, bytearray(), False, -1

    def take(self) -> bool:
        """Read once. Returns whether more may come."""
        try:
            piece = os.read(self.descriptor, CHUNK)
        except BlockingIOError:
            return False
        self.data += piece
        if self.keep:
            del self.data[: -self.keep]
        elif len(self.data) > self.limit:
            del self.data[self.limit :]
            self.full = True
        return bool(piece)


def _kill_all() -> None:
    """Kill every process of the namespace but this one, which is its process 1."""
    if os.getpid() != 1:
        raise OSError("the supervisor is not process 1")
    try:
        os.kill(-1, signal.SIGKILL)
    except ProcessLookupError:
        return


def _reap() -> None:
    while True:
        try:
            os.waitpid(-1, 0)
        except ChildProcessError:
            return


def _replace(command: list[str]) -> None:
    for number in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_DFL)
    try:
        os.execvpe(command[0], command, ENVIRON)
    except OSError as error:
        os.write(2, f"{command[0]}: {error.strerror}\n".encode())
        os._exit(127)


def _read(path: str, limit: int) -> bytes | None:
    """Content of a regular file below the working directory, no link followed; None where there is none."""
    *folders, name = path.split("/")
    here = os.open(".", os.O_PATH | os.O_DIRECTORY)
    try:
        for folder in folders:
            below = os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=here)
            os.close(here)
            here = below
        file = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=here)
    except OSError:
        return None
    finally:
        os.close(here)
    try:
        state = os.fstat(file)
        if not stat.S_ISREG(state.st_mode) or state.st_size > limit:
            return None
        with open(file, "rb", closefd=False) as stream:
            return stream.read(limit)
    finally:
        os.close(file)
