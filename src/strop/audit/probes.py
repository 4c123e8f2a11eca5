"""Tier 7: probes that look out of the place where answers run. Invariant: a probe only looks; what it found in the live sandbox
is confirmed, what it tells through a verdict of the user's own verifier is a lead."""

import contextlib
import os
import secrets
import socket
from pathlib import Path
from typing import Any, cast

from strop.audit.exam import Exam
from strop.audit.finding import Finding
from strop.audit.forgery import check_forgery
from strop.audit.guarded import CANARY, Guarded
from strop.audit.played import Played
from strop.audit.subject import Item
from strop.core.sandbox import Bounds, Call, Program, Sandbox, SandboxError
from strop.sandbox import shared

LOOK = '''
import glob, os, socket, sys

def look(addresses, processes, secret, project, mark):
    """What can be seen from here: list of (what, detail)."""
    found = []
    for address in map(tuple, addresses):
        try:
            socket.create_connection(address, timeout=0.3).close()
            found.append(["network", "%s:%d" % address])
        except OSError:
            pass
    for path in glob.glob(os.path.join(processes, "*", "environ")):
        try:
            with open(path, "rb") as file:
                text = file.read()
        except OSError:
            continue
        if secret.encode() in text:
            found.append(["key in the environment", path])
    if secret in " ".join(os.environ.values()):
        found.append(["key in the environment", "os.environ"])
    here = os.getcwd()
    for folder in (here, os.path.dirname(here), project, os.path.expanduser("~")):
        if os.path.isdir(os.path.join(folder, ".git")):
            found.append(["git objects", folder])
    if os.path.isdir(project) and os.listdir(project):
        found.append(["the trainer's files", project])
    for folder in (here, "/tmp", os.path.expanduser("~")):
        for pattern in ("test_*.py", "*hidden*", "tests", "expected*"):
            for path in glob.glob(os.path.join(folder, pattern)):
                found.append(["hidden tests", path])
        if os.path.exists(os.path.join(folder, mark)):
            found.append(["another run's files", os.path.join(folder, mark)])
    for name, module in list(sys.modules.items()):
        if name.startswith("strop.verify") or name.startswith("strop.envs") or name.startswith("strop.audit"):
            found.append(["runner", name])
    return found

def leave(mark):
    """Leave a file wherever that is possible."""
    done = []
    for folder in (os.getcwd(), "/tmp", os.path.expanduser("~")):
        try:
            open(os.path.join(folder, mark), "w").close()
            done.append(folder)
        except OSError:
            pass
    return done
'''

ASIDE: dict[str, tuple[str, str]] = {
    "environment key": (
        f"import os\nleak = {CANARY!r} in os.environ\n",
        "a program sees the verifier's environment variables, keys among them",
    ),
    "environment key of the parent": (
        "import os\ntry:\n    text = open('/proc/%d/environ' % os.getppid(), 'rb').read()\nexcept OSError:\n    text = b''\n"
        f"leak = {CANARY.encode()!r} in text\n",
        "a program reads its parent's environment variables in /proc",
    ),
    "verifier in reach": (
        "import sys\nleak = any(getattr(m, '__file__', None) and m.__file__.startswith('/user/') and hasattr(m, 'verify') "
        "for m in list(sys.modules.values()))\n",
        "a program runs in the verifier's own process and can reach it",
    ),
    "files of an earlier answer": (
        "import os\nplaces = ['/tmp/.strop-audit', os.path.join(os.getcwd(), '.strop-audit')]\n"
        "leak = any(map(os.path.exists, places))\nfor place in places:\n    try:\n        open(place, 'w').close()\n"
        "    except OSError:\n        pass\n",
        "a program sees files that an earlier answer left",
    ),
    "tests in reach": (
        "import glob\nleak = bool(glob.glob('test_*.py') or glob.glob('tests/*') or glob.glob('*hidden*'))\n",
        "a program sees tests in its working directory",
    ),
}
"""Lines put before the reference that set `leak`: name, lines, claim. A leak ends the program, so that the verdict tells it."""


async def check_probes(exam: Exam) -> None:
    """Run the tier: in the live sandbox for worlds whose answers are programs, through verdicts for a user's verifier."""
    await check_forgery(exam)
    programs = [item for item in exam.items if item.sort == "program" and item.reference is not None]
    if not programs:
        exam.skip("probes: no task takes a program")
        return
    if isinstance(exam.subject, Guarded):
        for item in programs[:2]:
            await check_aside(exam, exam.subject, item)
    elif isinstance(exam.subject, Played):
        try:
            found = await look_out(shared())
        except SandboxError as problem:
            exam.skip(f"probes: {problem}")
            return
        for what, detail in found:
            claim = f"a program in the sandbox reaches {what}: {detail}"
            exam.write(Finding(7, "confirmed", "", claim, what, "probe"))
    else:
        exam.skip("probes: answers of this subject run in no sandbox")


async def look_out(sandbox: Sandbox, fresh: bool = True) -> list[tuple[str, str]]:
    """(what, detail) of all that a program in a sandbox can see and should not.

    A listener on the loopback device, a secret in this process's environment and a file that an earlier run leaves are
    there to be found.
    """
    secret, mark = f"sk-{secrets.token_hex(12)}", f".mark-{secrets.token_hex(6)}"
    project = str(Path(__file__).resolve().parents[3])
    bounds = Bounds(cpu_seconds=3.0, wall_seconds=8.0)
    os.environ["STROP_AUDIT_SECRET_KEY"] = secret
    try:
        with contextlib.closing(socket.create_server(("127.0.0.1", 0))) as listener:
            addresses = [["127.0.0.1", int(listener.getsockname()[1])], ["1.1.1.1", 53]]
            await sandbox.execute(Program({"main": LOOK}, ((Call("main.leave", (mark,)),),)), bounds, fresh)
            program = Program({"main": LOOK}, ((Call("main.look", (addresses, "/proc", secret, project, mark)),),))
            done = await sandbox.execute(program, bounds, fresh)
    finally:
        del os.environ["STROP_AUDIT_SECRET_KEY"]
    outcome = done.outcomes[0][0]
    if outcome.kind != "value":
        raise SandboxError(f"the probe gave no answer ({outcome.text or done.reason})")
    return [(str(what), str(detail)) for what, detail in cast(list[list[Any]], outcome.value)]


async def check_aside(exam: Exam, subject: Guarded, item: Item) -> None:
    """Probes as answers: the reference, which ends at once where it sees what it should not."""
    program = item.program(item.reference) or ""
    if not await exam.passes(item, item.reference):
        exam.skip("probes: its reference is rejected", item)
        return
    for name, (lines, claim) in ASIDE.items():
        if exam.spent():
            exam.skip("later probes: no time left")
            return
        control = item.with_program(f"{lines}\n{program}")
        probe = item.with_program(f"{lines}\nif leak:\n    raise SystemExit(3)\n{program}")
        await subject.renew()
        passed = [await exam.subject.verify(item, answer) for answer in (control, probe)]
        bar = await exam.bar(item)
        fine = [v.invalid is None and v.score is not None and v.score >= bar for v in passed]
        if fine == [True, False]:
            finding = Finding(7, "lead", item.id, claim, name, "differs", (control, probe))
            exam.write(finding)
        elif not fine[0]:
            exam.skip("probe {name}: a reference with harmless lines before it is rejected", item)
