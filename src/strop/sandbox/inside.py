"""What waits inside the sandbox and starts each run: it forks a supervisor in new namespaces, which forks the code.

    bubblewrap > waiter (process 1 of its namespace) > supervisor (process 1 of the run's) > the code of one case

All three are there before a request is: the supervisor forks the process of the first case ahead, confined and waiting.

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
import stat
import sys
import time
from collections.abc import Mapping, Sequence
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
REHEARSALS = 20
FINISHED = 77  # exit status of a supervisor after which there will be no other
STREAMS = {"execute": {1: 0, 2: 0, 3: 1}, "command": {1: 0, 2: 1}, "serve": {2: 0}}  # descriptor: which of the pipes
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

    def __init__(self, channel: int) -> None:
        self.channel = channel

    def send(self, kind: str, index: int = 0, data: bytes = b"") -> None:
        """Send data in as many messages as it needs, at least one."""
        for start in range(0, max(len(data), 1), CHUNK):
            os.write(self.channel, kind.encode() + index.to_bytes(4, "big") + data[start : start + CHUNK])

    def report(self, index: int, ending: Mapping[str, Any], answers: bytes = b"", last: bool = False) -> None:
        """What became of a case, in one message where that suffices: each wakes the trainer."""
        if len(answers) > CHUNK:
            self.send("D", index, answers[:-1])
            answers = answers[-1:]
        kind = b"Q" if last else b"S"
        os.write(self.channel, kind + index.to_bytes(4, "big") + json.dumps(ending).encode() + b"\n" + answers)

    def tell(self, kind: str, index: int, fact: Any) -> None:
        """Send one JSON value."""
        self.send(kind, index, json.dumps(fact).encode())

    def receive(self, lengths: list[int]) -> list[bytes]:
        """The parts of a request."""
        body = bytearray()
        while len(body) < sum(lengths):
            piece = os.read(self.channel, 2 * CHUNK)
            if not piece:
                raise EOFError("the trainer is gone")
            body += piece
        ends = [sum(lengths[: n + 1]) for n in range(len(lengths))]
        return [bytes(body[end - length : end]) for end, length in zip(ends, lengths, strict=True)]


def main(descriptor: int, ahead: int) -> None:
    """Wait for requests until the trainer is gone.

    Args:
        descriptor: the message channel.
        ahead: MiB of the private places of the programs that will come, so that all can be made ahead of them; 0 where
            one request of any kind will come.
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
    if ahead:
        driver.preload()
        # Often enough that the interpreter has adapted its instructions, which each run would do anew in its copy.
        for _ in range(REHEARSALS):
            driver.rehearse()
    # Collected objects would be copied, page by page, in every run.
    gc.collect()
    gc.freeze()
    link = Link(descriptor)
    kernel.mount("tmpfs", "/tmp", "tmpfs", kernel.NO_SUID | kernel.NO_DEVICES, _size(SHARED_MB))
    own = os.open("/proc/self/ns/pid", os.O_RDONLY)
    others = _count_processes()
    link.tell("H", 0, {"python": sys.version.split()[0], "others": others})
    last, now = 0, ahead
    while True:
        # Made ahead of its request, so that a request does not wait for it.
        kernel.enter(own, kernel.NEW_PROCESSES)
        kernel.unshare(kernel.NEW_PROCESSES)
        begun, begin = os.pipe()
        child = os.fork()
        if not child:
            _supervise(link, others, begin, now)
        os.close(begin)
        if last:
            os.waitpid(last, 0)
        # One byte when the code begins, one when all is reported: its end then need not be waited for.
        said = os.read(begun, 1)
        now = 0 if said == b"?" else ahead
        if said == b"!" and os.read(begun, 1):
            last = child
            os.close(begun)
            continue
        last = 0
        os.close(begun)
        if said == b"?":
            # Gone with its waiting process before the code begins, whose processes are counted.
            os.waitpid(child, 0)
            continue
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


def _supervise(link: Link, others: int, begin: int, ahead: int) -> None:
    """The supervisor of one run: build the walls, wait for the request, start the code, report.

    Walls that were built ahead do not fit every request. Then this says so, and another builds them for that request.
    """
    request: dict[str, Any] = {}
    try:
        os.setpgid(0, 0)
        kernel.unshare(kernel.NEW_MOUNTS | kernel.NEW_IPC)
        kernel.mount("proc", "/proc", "proc", kernel.NO_SUID | kernel.NO_DEVICES | kernel.NO_PROGRAMS)
        if not ahead:
            request = _look(link)
        size = ahead or request["file_mb"] + request["extra_mb"]
        for place in (*PLACES, "/tmp") if ahead or request["fresh"] else PLACES:
            kernel.mount("tmpfs", place, "tmpfs", kernel.NO_SUID | kernel.NO_DEVICES, _size(size))
        _confine()
        os.chdir(HOME)
        first = First(others, bool(ahead))
        if ahead:
            request = _look(link)
            if not request["fresh"] or request["file_mb"] + request["extra_mb"] != ahead:
                os.write(begin, b"?")
                os._exit(0)
        os.read(link.channel, 2 * CHUNK)
        parts = link.receive(request["lengths"])
        os.write(begin, b"!")
        run = Run(link, request, others, first)
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


def _look(link: Link) -> dict[str, Any]:
    """What is asked for, left where it is. Ends this process where the trainer is gone."""
    json.loads(json.dumps(({"ready": [1, 0.5, None, True]}, [])))  # so that these pages are there when time counts
    head = kernel.peek(link.channel, 2 * CHUNK)
    if not head:
        os._exit(FINISHED)
    return json.loads(head)


def _confine() -> None:
    """Give up for good what the code must not have: capabilities, new namespaces, much of the kernel."""
    kernel.drop_capabilities()
    try:
        kernel.unshare(kernel.NEW_NAMES)
    except PermissionError:
        pass
    else:
        raise OSError("capabilities were dropped and still are there")
    seccomp.install_filter()


class First:
    """The process of the first case, forked ahead of the request. It waits to be told what to do.

    Args:
        others: processes of this user namespace that are not the code's.
        warm: whether it will execute a program, so that preparing for one pays.
    """

    def __init__(self, others: int, warm: bool) -> None:
        self.pipes = [os.pipe() for _ in range(3)]
        source, self.sink = os.pipe()
        self.process = os.fork()
        if not self.process:
            try:
                os.close(self.sink)
                if warm:
                    driver.rehearse()
                self._wait(source, others)
            finally:
                os._exit(126)
        os.close(source)

    def _wait(self, source: int, others: int) -> None:
        with open(source, "rb") as told:
            request, lengths = json.loads(told.readline())
            parts = [told.read(length) for length in lengths]
        _become(request, others, self.pipes, parts)

    def begin(self, request: Mapping[str, Any], parts: Sequence[bytes]) -> None:
        """Tell it what to do; see `_become`."""
        head = json.dumps((request, [len(part) for part in parts])).encode()
        with open(self.sink, "wb") as told:
            told.write(b"".join((head, b"\n", *parts)))


class Run:
    """One run: starts its processes, enforces what the kernel does not, reports.

    Args:
        link: to the trainer.
        request: kind and bounds.
        others: processes of this user namespace that are not the code's.
        first: the process that does the first thing.
    """

    def __init__(self, link: Link, request: Mapping[str, Any], others: int, first: First) -> None:
        self.link, self.request, self.others = link, request, others
        self.first: First | None = first
        seconds = request["seconds"]
        self.deadline = math.inf if seconds is None else time.monotonic() + seconds

    def execute(self, parts: list[bytes]) -> None:
        """Each case in a process of its own, one after the other."""
        modules, *cases = parts
        for number, case in enumerate(cases):
            if time.monotonic() >= self.deadline:
                self.link.report(number, {"ended": "wall_time", "code": None}, last=True)
                break
            output = Stream(1024 * self.request["output_kb"])
            answers = Stream(ANSWERS)
            ended = self.start((modules, case), (output, answers))
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
        ended = self.start(parts[:1], (err,) if serving else (out, err))
        self.link.send("O", 0, bytes(out.data))
        self.link.send("E", 0, bytes(err.data))
        for number, path in enumerate(what["collect"]):
            content = _read(path, (self.request["file_mb"] + self.request["extra_mb"]) << 20)
            if content is not None:
                self.link.send("F", number, content)
        self.link.report(0, ended, last=True)

    def start(self, parts: Sequence[bytes], streams: Sequence["Stream"]) -> dict[str, Any]:
        """Let a process work, and see all that it started dead.

        Args:
            parts: what it works on, see `_become`.
            streams: where to put what it writes, in the order of `STREAMS`.
        """
        if self.first:
            pipes, child = self.first.pipes, self.first.process
            self.first.begin(self.request, parts)
            self.first = None
        else:
            pipes = [os.pipe() for _ in streams]
            child = os.fork()
            if not child:
                _become(self.request, self.others, pipes, parts)
        for _, write in pipes:
            os.close(write)
        for stream, (read, _) in zip(streams, pipes, strict=False):
            os.set_blocking(read, False)
            stream.descriptor = read
        ending = self._follow(child, streams)
        _kill_all()
        _, status, usage = os.wait4(child, 0)
        _reap()
        for stream in streams:
            while stream.take():
                pass
            os.close(stream.descriptor)
        if not ending and any(stream.full for stream in streams):
            ending = "output"
        if ending:
            return {"ended": ending, "code": None}
        code = os.waitstatus_to_exitcode(status)
        if code == -signal.SIGKILL and usage.ru_utime + usage.ru_stime >= 0.5 * _cpu(self.request):
            return {"ended": "cpu_time", "code": None}
        return {"ended": "signal" if code < 0 else "exited", "code": abs(code)}

    def _follow(self, child: int, streams: Sequence["Stream"]) -> str:
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
                    if descriptor == self.link.channel:
                        os._exit(FINISHED)
                    if not by_descriptor[descriptor].take():
                        poll.unregister(descriptor)
                    if by_descriptor[descriptor].full:
                        return "output"
        finally:
            os.close(handle)


def _become(request: Mapping[str, Any], others: int, pipes: Sequence[tuple[int, int]], parts: Sequence[bytes]) -> None:
    """The child: streams in place, nothing else open, limits on, then the work. Never comes back.

    Args:
        request: kind and bounds.
        others: processes of this user namespace that are not the code's.
        pipes: what it may write to, in the order of `STREAMS`.
        parts: modules and calls of a case, or what the command is.
    """
    status = 126
    try:
        os.setpgid(0, 0)
        os.umask(0o022)
        streams = STREAMS[request["kind"]]
        # Out of the way of the numbers that are about to be taken.
        moved = {number: os.dup2(pipes[which][1], 100 + number) for number, which in streams.items()}
        if request["kind"] != "serve":
            os.dup2(os.open("/dev/null", os.O_RDWR), 0)
        for number, source in moved.items():
            os.dup2(source, number)
        os.closerange(4 if 3 in moved else 3, 1 << 20)
        _limit(request, others)
        kernel.control(kernel.SET_DUMPABLE, 1)
        # Where memory runs out, the code goes first.
        score = os.open("/proc/self/oom_score_adj", os.O_WRONLY)
        os.write(score, b"1000")
        os.close(score)
        if request["kind"] == "execute":
            driver.execute(parts[0], parts[1], 3)
        else:
            _replace(json.loads(parts[0])["command"])
        status = 0
    except BaseException as error:
        os.write(2, f"{type(error).__name__}: {error}\n".encode())
    finally:
        # Whatever was raised, by hostile code too: this process must not go on as a supervisor.
        os._exit(status)


def _limit(request: Mapping[str, Any], others: int) -> None:
    limits = {
        resource.RLIMIT_AS: request["memory_mb"] << 20,
        resource.RLIMIT_NPROC: others + request["processes"],
        resource.RLIMIT_NOFILE: request["open_files"],
        resource.RLIMIT_FSIZE: request["file_mb"] << 20,
        resource.RLIMIT_CORE: 0,
        resource.RLIMIT_MEMLOCK: 0,
        resource.RLIMIT_MSGQUEUE: 0,
    }
    if request["cpu_seconds"] is not None:
        limits[resource.RLIMIT_CPU] = int(_cpu(request))
    for which, limit in limits.items():
        resource.setrlimit(which, (limit, limit))


def _cpu(request: Mapping[str, Any]) -> float:
    seconds = request["cpu_seconds"]
    return math.inf if seconds is None else max(1, math.ceil(seconds))


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
