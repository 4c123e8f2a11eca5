"""Running untrusted code: what it may use, and what came out. Invariant: data goes in and data comes out; whoever judges
sits outside and compares data, so nothing that the code prints, returns as an exit code or patches is a verdict."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from strop.core.errors import StropError

Ending = Literal["exited", "signal", "cpu_time", "wall_time", "output", "broken"]
"""How a run ended: by itself, by a signal (memory limits end so too), at a limit, or `broken`: the sandbox itself failed, so
that nothing can be said about the code (an invalid verdict, never a score of 0). A run that is lost is done once more; one
that is lost twice after its code had begun counts as `signal`, so that taking the sandbox down is no way out of a score."""


class SandboxError(StropError, RuntimeError):
    """There is no working sandbox here; the text says what to install. Code is then not run at all."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """What one run may use.

    Args:
        cpu_seconds: processor time of each process, seconds, rounded up to whole ones.
        wall_seconds: time by the clock for the whole run, seconds.
        memory_mb: address space of each process, MiB (a limit per process, not for their sum).
        processes: processes and threads at once.
        open_files: open files of each process.
        file_mb: size of a file that is written, MiB; also that of each private place (/tmp, the home, /dev/shm).
        output_kb: bytes kept of standard output and of standard error, KiB each; more ends the run.
    """

    cpu_seconds: float = 2.0
    wall_seconds: float = 5.0
    memory_mb: int = 256
    processes: int = 16
    open_files: int = 64
    file_mb: int = 8
    output_kb: int = 64


@dataclass(frozen=True, slots=True)
class Ran:
    """What a command left behind.

    Args:
        ended: how it ended.
        code: exit status, or the signal's number where `ended` is `signal`; None if it was killed at a limit.
        stdout, stderr: what it wrote, up to the bound.
        files: contents of the files that were asked for and exist, by path.
        seconds: time by the clock.
        reason: one sentence for people where it did not exit by itself.
    """

    ended: Ending
    code: int | None
    stdout: bytes = b""
    stderr: bytes = b""
    files: Mapping[str, bytes] = field(default_factory=dict[str, bytes])
    seconds: float = 0.0
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Call:
    """One call of a function of the program: dotted name (`main.retry_count`), arguments as plain values.

    Plain values are None, bool, int, float, str, bytes and lists, tuples, sets and dicts of them.
    """

    function: str
    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict[str, Any])


@dataclass(frozen=True, slots=True)
class Program:
    """Modules and calls. Each case is a list of calls on freshly executed modules, so that state lives inside a case only.

    A case has a process of its own: what dies or runs out of processor time in one leaves the others alone. A module is
    executed when a call or another module first needs it. The code of one case may find the arguments of the others in its
    memory; what they must give is to stay outside.

    Example:
        `Program({"main": "def f(x):\\n    return x + 1\\n"}, ((Call("main.f", (1,)),),))`
    """

    modules: Mapping[str, str]
    cases: tuple[tuple[Call, ...], ...]


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one call gave: a plain value of exactly its type, an exception (type and message), or nothing.

    `value` is meaningful for kind `value` alone; `text` is its repr or the exception, cut to a bound. `missing` is what the
    program never answered: it died, ran out of time, or its module did not load.
    """

    kind: Literal["value", "raised", "not_plain", "missing"]
    value: Any = None
    text: str = ""


@dataclass(frozen=True, slots=True)
class Executed:
    """Outcomes by case and call, in the program's shape; how the first case ended that did not exit by itself, and a
    sentence about it."""

    outcomes: tuple[tuple[Outcome, ...], ...]
    ended: Ending
    reason: str = ""


class Service:
    """A trusted program that goes on running inside the sandbox and answers JSON lines (a user's verifier, for example)."""

    async def ask(self, request: Mapping[str, Any], seconds: float) -> Mapping[str, Any]:
        """Answer of one request. Raises `SandboxError` when the service died or took longer than `seconds`."""
        raise NotImplementedError

    async def close(self) -> None:
        """Kill it as a tree and wait until it is gone."""
        raise NotImplementedError


class Sandbox:
    """A place where untrusted code runs: no network, private /tmp and home, a read-only system, its own processes."""

    async def run(
        self,
        command: Sequence[str],
        files: Mapping[str, bytes],
        bounds: Bounds = Bounds(),
        collect: Sequence[str] = (),
        mounts: Mapping[str, str] | None = None,
    ) -> Ran:
        """Run a command in a fresh sandbox whose working directory holds `files`, and no trace of earlier runs.

        A case of `UsageError`: a path that is not below the working directory, a mount that cannot be.

        Args:
            command: program and arguments, as seen inside; the base interpreter is on the path.
            files: contents by path, relative to the working directory.
            bounds: limits.
            collect: paths whose contents are wanted back.
            mounts: host directories by their place inside, read-only; not below /tmp, /proc, /dev, /sys or /sandbox.
        """
        raise NotImplementedError

    async def execute(self, program: Program, bounds: Bounds = Bounds(), fresh: bool = True) -> Executed:
        """Execute modules and calls.

        Args:
            program: what to run.
            bounds: limits; the whole program is one run.
            fresh: nothing writable is shared with any other run (for grading). False shares a /tmp with other runs of
                this kind on the same worker, and nothing else.
        """
        raise NotImplementedError

    async def serve(self, command: Sequence[str], mounts: Mapping[str, str], bounds: Bounds = Bounds()) -> Service:
        """Start a service. Limits of time do not apply to it: requests have their own."""
        raise NotImplementedError
