"""Starts bubblewrap: the command line, the user it runs as, and the one thread that starts it.

Invariant: what is started sees an empty environment and no descriptor that was not passed on purpose, runs as nobody's user
where the trainer is root, and dies with the trainer. Nothing is ever started unconfined.
"""

import contextlib
import os
import queue
import re
import shutil
import stat
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from itertools import count
from pathlib import Path

import strop.sandbox.kernel as kernel
import strop.sandbox.seccomp as seccomp
from strop.core.errors import UsageError
from strop.core.sandbox import Bounds, SandboxError

INSIDE = ("plain.py", "kernel.py", "seccomp.py", "driver.py", "inside.py")
HERE = Path(__file__).parent
FIRST_USER = 0x60000000  # far above what systems and containers give out
PRIVATE = ("/tmp", "/proc", "/dev", "/sys", "/sandbox")
LIBRARY = "/sandbox/library"
SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32")
SMALL = (
    "/etc/alternatives",
    "/etc/ld.so.cache",
    "/etc/ld.so.conf",
    "/etc/ld.so.conf.d",
    "/etc/localtime",
    "/nix/store",
)
USER = 1000  # inside
STAGE = "strop-sandbox-"
ACCOUNTS = b"root:x:0:0:root:/:/bin/false\ncode:x:1000:1000:code:/sandbox/home:/bin/sh\n"

ADVICE = (
    "Strop runs untrusted code in bubblewrap and never without it. Debian and Ubuntu: apt-get install bubblewrap; Fedora: "
    "dnf install bubblewrap. Where it is installed and fails, user namespaces are switched off: set the sysctls "
    "user.max_user_namespaces above 0, kernel.unprivileged_userns_clone=1 (Debian), "
    "kernel.apparmor_restrict_unprivileged_userns=0 (Ubuntu 24.04 and later), or start the container with "
    "--security-opt seccomp=unconfined. macOS and Windows have no bubblewrap: use a Linux virtual machine or container."
)

_serial = count()


@dataclass(frozen=True, slots=True)
class Wish:
    """What to start.

    Args:
        channel: descriptor of its end of the message channel.
        mounts: host directories by their place inside, read-only.
        warm: whether it waits for many programs.
        piped: whether its standard input and output are pipes to the trainer.
    """

    channel: int
    mounts: Mapping[str, str]
    warm: bool = False
    piped: bool = False


@dataclass(frozen=True, slots=True)
class Started:
    """A bubblewrap process and the file that it writes its complaints to."""

    process: subprocess.Popen[bytes]
    complaints: int

    def complaint(self) -> str:
        """The last that it said."""
        size = os.fstat(self.complaints).st_size
        return os.pread(self.complaints, 2000, max(0, size - 2000)).decode(errors="replace").strip()

    def end(self) -> None:
        """Kill it, and with it all that is inside, and wait until it is gone."""
        self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe:
                with contextlib.suppress(OSError):
                    pipe.close()
        os.close(self.complaints)


class Launcher:
    """Starts processes from one thread that lives as long as the trainer.

    `--die-with-parent` means the thread that started it, so that a pool's thread will not do. Where the trainer is root the
    thread has a mount namespace of its own, in which directories below a closed one (`/root`) are bound to a place that the
    unprivileged user can reach; nothing of that is seen by the trainer or by others.
    """

    def __init__(self) -> None:
        if sys.platform != "linux":
            raise SandboxError(f"no sandbox on {sys.platform}. {ADVICE}")
        self.bwrap = _tool("bwrap", "bubblewrap")
        self.root = os.geteuid() == 0
        self.setpriv = _tool("setpriv", "util-linux") if self.root else ""
        self.choom = shutil.which("choom")
        self.closing = _close_namespaces(self.bwrap)
        self.stage = ""
        self.held = -1
        self.places: dict[tuple[str, int, int], str] = {}
        self.wishes: queue.SimpleQueue[tuple[Wish, Future[Started]] | None] = queue.SimpleQueue()
        self.thread = threading.Thread(target=self._work, name="strop-sandbox-launcher", daemon=True)
        self.thread.start()

    def start(self, wish: Wish) -> Started:
        """Start a waiter."""
        started: Future[Started] = Future()
        self.wishes.put((wish, started))
        return started.result()

    def close(self) -> None:
        """End the thread; what it started dies with it."""
        self.wishes.put(None)
        self.thread.join()
        if self.stage:
            with contextlib.suppress(OSError):
                os.rmdir(self.stage)
            os.close(self.held)

    def _work(self) -> None:
        if self.root:
            # Without the right to mount, what is reachable by everyone still works.
            with contextlib.suppress(OSError):
                self._make_stage()
        while item := self.wishes.get():
            wish, future = item
            try:
                future.set_result(self._start(wish))
            except BaseException as error:
                future.set_exception(error)

    def _make_stage(self) -> None:
        kernel.unshare(kernel.NEW_MOUNTS)
        kernel.mount("", "/", "", kernel.RECURSIVE | kernel.SLAVE)
        _sweep()
        for _ in range(9):
            stage = tempfile.mkdtemp(prefix=STAGE, dir="/tmp")
            # Before the mount hides it; held until the process ends. Another's sweep may have been faster.
            with contextlib.suppress(FileNotFoundError, BlockingIOError):
                self.held = _hold(stage)
                kernel.mount("tmpfs", stage, "tmpfs", kernel.NO_SUID | kernel.NO_DEVICES, "size=1m,mode=755")
                self.stage = stage
                return

    def _reachable(self, host: str) -> str:
        """A path of a host directory that the sandbox's user can reach."""
        host = os.path.realpath(host)
        if not self.root or not self.stage:
            return host
        state = os.stat(host)
        # By its identity, since another directory may later have the same path.
        key = (host, state.st_dev, state.st_ino)
        if key not in self.places:
            place = f"{self.stage}/{len(self.places)}"
            if stat.S_ISDIR(state.st_mode):
                os.mkdir(place, 0o755)
            else:
                os.close(os.open(place, os.O_CREAT | os.O_WRONLY, 0o644))
            kernel.mount(host, place, "", kernel.BIND | kernel.RECURSIVE)
            self.places[key] = place
        return self.places[key]

    def _start(self, wish: Wish) -> Started:
        user = _free_user() if self.root else os.getuid()
        texts = {f"{LIBRARY}/strop/sandbox/{name}": (HERE / name).read_bytes() for name in INSIDE}
        texts["/etc/passwd"] = ACCOUNTS
        files = {place: _memory(text) for place, text in texts.items()}
        complaints = os.memfd_create("complaints")
        command = [*self._become(user), self.bwrap, *self._arguments(wish.mounts, files)]
        begin = f"import sys; sys.path.insert(0, '{LIBRARY}'); from strop.sandbox.inside import main; "
        begin += f"main({wish.channel}, {Bounds().file_mb if wish.warm else 0})"
        command += ["--", _interpreter(), "-s", "-S", "-P", "-B", "-c", begin]
        stream = subprocess.PIPE if wish.piped else subprocess.DEVNULL
        try:
            process = subprocess.Popen(
                command,
                env={"PYTHONHASHSEED": "0", "LANG": "C.UTF-8"},
                cwd="/",
                stdin=stream,
                stdout=stream,
                stderr=complaints,
                pass_fds=(wish.channel, *files.values()),
            )
        except OSError as error:
            os.close(complaints)
            raise SandboxError(f"bubblewrap did not start: {error}. {ADVICE}") from error
        finally:
            for descriptor in files.values():
                os.close(descriptor)
        return Started(process, complaints)

    def _become(self, user: int) -> list[str]:
        if not self.root:
            return []
        # Where memory runs out, what is inside goes first; said with CAP_SYS_RESOURCE, it cannot be taken back.
        first = [self.choom, "-n", "1000", "--"] if self.choom else []
        return [
            *first,
            self.setpriv,
            f"--reuid={user}",
            f"--regid={user}",
            "--clear-groups",
            "--bounding-set=-all",
            "--",
        ]

    def _arguments(self, mounts: Mapping[str, str], files: Mapping[str, int]) -> list[str]:
        """What bubblewrap is told: namespaces, then the places inside, in order."""
        arguments = ["--unshare-user", "--unshare-pid", "--unshare-ipc", "--unshare-net", "--unshare-uts"]
        arguments += ["--unshare-cgroup-try", *self.closing, "--die-with-parent", "--new-session"]
        arguments += ["--hostname", "sandbox", "--uid", str(USER), "--gid", str(USER), "--cap-add", "CAP_SYS_ADMIN"]
        for path in SYSTEM:
            if os.path.islink(path):
                arguments += ["--symlink", os.readlink(path), path]
            elif os.path.isdir(path):
                arguments += ["--ro-bind", path, path]
        for path in SMALL:
            arguments += ["--ro-bind-try", path, path]
        if not _is_below(sys.base_prefix, ("/usr",)):
            if _is_below(sys.base_prefix, PRIVATE):
                raise SandboxError(f"Python lies in {sys.base_prefix}, which is private inside; install it elsewhere")
            arguments += ["--ro-bind", self._reachable(sys.base_prefix), sys.base_prefix]
        for folder in _packages():
            arguments += ["--tmpfs", folder]
        arguments += ["--dev", "/dev", "--proc", "/proc", "--dir", "/sandbox/home", "--dir", "/tmp"]
        for place, host in mounts.items():
            check_mount(place, host)
            arguments += ["--ro-bind", self._reachable(host), place]
        for place, descriptor in files.items():
            arguments += ["--perms", "0444", "--file", str(descriptor), place]
        for folder in (*_packages(), "/dev"):
            arguments += ["--remount-ro", folder]
        return [*arguments, "--remount-ro", "/", "--chdir", "/"]


def _hold(folder: str) -> int:
    """Lock a folder as one that is in use; raises BlockingIOError where another process has."""
    import fcntl  # not there on every system that imports this module

    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def _sweep() -> None:
    """Remove the empty folders that trainers which were killed left behind: nobody holds them."""
    for folder in Path("/tmp").glob(f"{STAGE}*"):
        with contextlib.suppress(OSError):
            descriptor = _hold(str(folder))
            try:
                folder.rmdir()
            finally:
                os.close(descriptor)


def _tool(name: str, package: str) -> str:
    found = shutil.which(name)
    if not found:
        raise SandboxError(f"{name} is not installed (package {package}). {ADVICE}")
    return found


def _python() -> str:
    return f"python{sys.version_info.major}.{sys.version_info.minor}"


def _close_namespaces(bwrap: str) -> list[str]:
    """What forbids new user namespaces inside: bubblewrap's own switch, or before version 0.8 the filter alone."""
    said = subprocess.run([bwrap, "--version"], capture_output=True, text=True, env={}, check=False).stdout
    version = re.search(r"(\d+)\.(\d+)", said)
    if version and (int(version[1]), int(version[2])) < (0, 8):
        if not seccomp.FILTER:
            raise SandboxError(f"{said.strip()} is too old for this processor: 0.8 or later is needed. {ADVICE}")
        return []
    return ["--disable-userns"]


def _interpreter() -> str:
    """The base interpreter's program; that of a virtual environment would bring its packages along."""
    usual = f"{sys.base_prefix}/bin/{_python()}"
    return usual if os.path.exists(usual) else os.path.realpath(sys.executable)


def _memory(content: bytes) -> int:
    descriptor = os.memfd_create("file")
    os.write(descriptor, content)
    os.lseek(descriptor, 0, os.SEEK_SET)
    return descriptor


def _packages() -> list[str]:
    """Folders of installed packages that the mounted system would bring along."""
    library = f"{sys.base_prefix}/lib/{_python()}"
    places = [f"{library}/site-packages", "/usr/lib/python3/dist-packages", f"/usr/local/lib/{_python()}/dist-packages"]
    return [place for place in dict.fromkeys(places) if os.path.isdir(place)]


def _is_below(path: str, places: Sequence[str]) -> bool:
    return any(path == place or path.startswith(place + "/") for place in places)


def check_mount(place: str, host: str) -> None:
    """Refuse a mount that cannot work with `UsageError`."""
    if os.path.normpath(place) != place or not place.startswith("/") or place == "/":
        raise UsageError(f"a mount's place inside must be an absolute path below /, not {place!r}")
    if _is_below(place, PRIVATE):
        raise UsageError(f"mount {place}: {', '.join(PRIVATE)} are private inside the sandbox; choose another place")
    if not os.path.exists(host):
        raise UsageError(f"mount {place}: the host has no {host}")
    wanted = 0o005 if os.path.isdir(host) else 0o004
    if os.geteuid() == 0 and os.stat(host).st_mode & wanted != wanted:
        raise UsageError(f"mount {place}: {host} is closed to the user that the sandbox runs as; chmod -R o+rX {host}")


def _free_user() -> int:
    """A user id that nobody has, another one for each sandbox of each trainer."""
    with open("/proc/self/uid_map") as file:
        start, _, length = map(int, file.readlines()[-1].split())
    number = next(_serial) % 64
    wanted = FIRST_USER + (os.getpid() << 6) + number
    return wanted if start <= wanted < start + length else start + length - 1000 - number
