"""The sandbox in a process that is not root, for test_unprivileged.py: prints what came out, as one JSON object.

    python -m tests.sandbox.unprivileged [off]

As root it becomes nobody first (setpriv), in a mount namespace of its own in which nobody can reach interpreter and source.
With `off` it forbids user namespaces to itself before that; nothing outside of this process changes.
"""

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import strop.sandbox.kernel as kernel
from strop.core.sandbox import Bounds, Call, Program, SandboxError
from strop.sandbox.bubblewrap import Bubblewrap

NOBODY = 65534
NEW_USER = 0x10000000
BECOME = ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups", "--inh-caps=-all"]
WALLS = [
    *("bwrap", "--unshare-user", "--ro-bind", "/usr", "/usr", "--symlink", "usr/bin", "/bin"),
    *("--symlink", "usr/lib", "/lib"),
]
WALLS += ["--symlink", "usr/lib64", "/lib64", "/bin/true"]
BOUNDS = Bounds(cpu_seconds=1.0, wall_seconds=6.0, processes=5)
ATTACK = """
import os, signal
def who(): return os.getuid()
def spin():
    while True: pass
def hoard(): return len(bytearray(1 << 30))
def forks():
    count = 0
    while True:
        try:
            child = os.fork()
        except OSError:
            return count
        if not child:
            while True: signal.pause()
        count += 1
def shadow(): return open("/etc/shadow").read()
def connect():
    import socket
    socket.create_connection(("1.1.1.1", 53), 1)
def kill():
    os.kill(1, signal.SIGKILL)
    return "went on"
"""


def open_ways(paths: Iterable[str]) -> None:
    """In a mount namespace of its own, make directories below closed ones reachable for everyone, at their own paths."""
    kernel.unshare(kernel.NEW_MOUNTS)
    kernel.mount("", "/", "", kernel.RECURSIVE | kernel.SLAVE)
    closed: dict[Path, list[Path]] = {}
    for path in map(Path, paths):
        shut = next((p for p in reversed((path, *path.parents)) if not p.stat().st_mode & 0o001), None)
        if shut is not None:
            closed.setdefault(shut, []).append(path)
    kernel.mount("tmpfs", "/mnt", "tmpfs", 0, "mode=755")
    for number, (shut, below) in enumerate(closed.items()):
        places = [Path(f"/mnt/{number}-{k}") for k in range(len(below))]
        for place, path in zip(places, below, strict=True):
            place.mkdir()
            kernel.mount(str(path), str(place), "", kernel.BIND | kernel.RECURSIVE)
        kernel.mount("tmpfs", str(shut), "tmpfs", 0, "mode=755")
        for place, path in zip(places, below, strict=True):
            path.mkdir(parents=True, exist_ok=True)
            kernel.mount(str(place), str(path), "", kernel.BIND | kernel.RECURSIVE)


def become_nobody(arguments: list[str]) -> None:
    """Start this module anew, as another user."""
    root = str(Path(__file__).parents[2])
    library = str(Path(kernel.__file__).parents[2])
    open_ways(dict.fromkeys([sys.base_prefix, sys.prefix, root, library]))
    os.chdir(root)
    os.environ["PYTHONPATH"] = f"{library}:{root}"
    command = [sys.executable, "-B", "-m", "tests.sandbox.unprivileged", *arguments]
    os.execvp(BECOME[0], [*BECOME, *command])


async def try_all(sandbox: Bubblewrap) -> dict[str, Any]:
    """What each function of the program came to, and a command."""
    names = [line.split("(")[0].removeprefix("def ") for line in ATTACK.splitlines() if line.startswith("def ")]
    found: dict[str, Any] = {}
    for name in names:
        ran = await sandbox.execute(Program({"main": ATTACK}, ((Call(f"main.{name}"),),)), BOUNDS)
        outcome = ran.outcomes[0][0]
        found[name] = [ran.ended, outcome.value if outcome.kind == "value" else outcome.text.split(":")[0]]
    done = await sandbox.run(["sh", "-c", "id -u; cat given"], {"given": b"text"}, BOUNDS)
    return {**found, "command": [done.ended, done.stdout.decode()]}


def main(arguments: list[str]) -> None:
    """See the module."""
    if os.geteuid() == 0:
        become_nobody(arguments)
    if arguments == ["off"]:
        kernel.unshare(NEW_USER)
        Path("/proc/sys/user/max_user_namespaces").write_text("0")
    said: dict[str, Any] = {"user": os.getuid(), "walls": subprocess.run(WALLS, check=False).returncode == 0}
    try:
        sandbox = Bubblewrap()
    except SandboxError as problem:
        said["refused"] = str(problem)
    else:
        said |= asyncio.run(try_all(sandbox))
        sandbox.close()
    print(json.dumps(said))


if __name__ == "__main__":
    main(sys.argv[1:])
