"""Attacks on the sandbox, each with what must come of it. The programs stand in attacks.py; nothing here runs them outside,
but for the harmless ones of the control."""

import ast
import asyncio
import errno
import os
import select
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from strop.core.sandbox import Bounds, Call, Executed, Outcome, Program
from strop.sandbox import launch
from strop.sandbox.bubblewrap import Bubblewrap
from tests.sandbox.attacks import DENIED, HARMLESS, PRELUDE, SECRETS, program

PYTHON = f"python{sys.version_info.major}.{sys.version_info.minor}"
SHORT = Bounds(cpu_seconds=1.0, wall_seconds=8.0)
QUICK = Bounds(cpu_seconds=1.0, wall_seconds=1.5)
LONG = Bounds(cpu_seconds=4.0, wall_seconds=8.0)
GOOD = Program({"main": "def f(x):\n    return [x, x * 2]\n"}, ((Call("main.f", (21,)),),))
FINE = Executed(((Outcome("value", [21, 42], "[21, 42]"),),), "exited")


def attacked(sandbox: Bubblewrap, text: str, told: Any = None, fresh: bool = True, bounds: Bounds = LONG) -> Executed:
    """The attack, and then a good program on the same workers, which must not have noticed."""

    async def both() -> Executed:
        ran = await sandbox.execute(Program({"main": text}, ((Call("main.attack", (told,)),),)), bounds, fresh)
        assert await sandbox.execute(GOOD, LONG, fresh) == FINE
        return ran

    return asyncio.run(both())


def value(ran: Executed) -> Any:
    assert ran.outcomes[0][0].kind == "value", ran
    return ran.outcomes[0][0].value


def by_command(sandbox: Bubblewrap, text: str, told: Any, bounds: Bounds = LONG) -> Any:
    """The same attack as a command of a cold sandbox."""
    text += f"\nprint(repr(attack({told!r})))\n"
    ran = asyncio.run(sandbox.run([PYTHON, "-S", "main.py"], {"main.py": text.encode()}, bounds))
    assert (ran.ended, ran.code, ran.stderr) == ("exited", 0, b"")
    return ast.literal_eval(ran.stdout.decode())


@pytest.mark.parametrize("how", ["fresh", "shared", "command"])
@pytest.mark.parametrize("name", DENIED)
def test_an_attack_comes_back_with_nothing(sandbox: Bubblewrap, told: dict[str, Any], name: str, how: str) -> None:
    body, expected = DENIED[name]
    text = program(body)
    got = by_command(sandbox, text, told) if how == "command" else value(attacked(sandbox, text, told, how == "fresh"))
    assert got == expected


@pytest.mark.parametrize("name", HARMLESS)
def test_the_same_probe_outside_would_notice(told: dict[str, Any], name: str) -> None:
    body, expected = DENIED[name]
    text = program(body) + "import ast\nprint(repr(attack(ast.literal_eval(sys.argv[1]))))\n"
    # The listeners have to answer this time, and are emptied by it.
    out = subprocess.run([sys.executable, "-I", "-c", text, repr(told)], capture_output=True, text=True, check=True)
    assert ast.literal_eval(out.stdout) != expected


@pytest.mark.parametrize("how", ["fresh", "shared", "command"])
def test_a_secret_of_the_trainers_environment_is_found_nowhere(sandbox: Bubblewrap, how: str) -> None:
    text = f"{PRELUDE}\ndef attack(told):{SECRETS}"
    got = by_command(sandbox, text, 0) if how == "command" else value(attacked(sandbox, text, 0, how == "fresh"))
    assert b"PYTHONHASHSEED" in got
    assert os.environ["STROP_TEST_SECRET"].encode() not in got


def test_the_search_for_the_secret_finds_it_outside() -> None:
    text = f"{PRELUDE}\ndef attack(told):{SECRETS}\nprint(repr(attack(0)))"
    out = subprocess.run([sys.executable, "-I", "-c", text], env={"S": "hunter2"}, capture_output=True, check=True)
    assert b"hunter2" in out.stdout


# What a program says of itself: text of the module, outcome of attack(told).
CLAIMS = {
    "exit status 0": ("import os\ndef attack(told): os._exit(0)", ("missing", None)),
    "exit status 0 at import": ("import os\nos._exit(0)\ndef attack(told): return 1", ("missing", None)),
    "sys.exit(0)": ("import sys\ndef attack(told): sys.exit(0)", ("raised", "SystemExit: 0")),
    "exit()": ("def attack(told): exit(0)", ("raised", "SystemExit: 0")),
    "sys.exit(0) at import": ("import sys\nsys.exit(0)", ("missing", "did not load: SystemExit: 0")),
    "no function": ("def other(): pass", ("raised", "AttributeError: module 'main' has no attribute 'attack'")),
    "always equal": (
        "class E:\n    def __eq__(self, other): return True\n    __hash__ = None\ndef attack(told): return E()",
        ("not_plain", "a E is not a plain value"),
    ),
    "always equal, inside": (
        "class E:\n    def __eq__(self, other): return True\ndef attack(told): return [1, {2: (E(),)}]",
        ("not_plain", "a E is not a plain value"),
    ),
    "a str of its own": (
        "class S(str): pass\ndef attack(told): return S('a')",
        ("not_plain", "a S is not a plain value"),
    ),
    "an int of its own": (
        "class I(int): pass\ndef attack(told): return I(1)",
        ("not_plain", "a I is not a plain value"),
    ),
    "a lying class": (
        "class L:\n    __class__ = int\n    def __int__(self): return 42\ndef attack(told): return L()",
        ("not_plain", "a L is not a plain value"),
    ),
    "a bool": ("def attack(told): return True", ("value", True)),
    "verdict on stdout": (
        'def attack(told):\n    print(\'["value", "42"]\', flush=True)\n    return 1',
        ("value", 1),
    ),
    "patched json": (
        'import json\njson.dumps = lambda *a, **k: \'["value", "42"]\'\njson.JSONEncoder.encode = json.dumps\n'
        "def attack(told): return 1",
        ("value", 42),  # a claim about itself, as if it had returned it
    ),
    "patched builtins": (
        "import builtins\nfor n in ('print', 'len', 'repr', 'isinstance', 'getattr'):\n"
        "    setattr(builtins, n, lambda *a, **k: 42)\n"
        "def attack(told): return 1",
        ("missing", None),  # it breaks the driver, to no avail
    ),
    "a trace function": (
        "import sys\ndef t(frame, event, arg):\n    frame.f_locals['value'] = 42\n    return t\nsys.settrace(t)\n"
        "def attack(told): return 1",
        ("value", 42),  # a claim, too
    ),
    "at exit": (
        'import atexit, os\natexit.register(lambda: os.write(3, b\'["value", "42"]\\n\'))\ndef attack(told): return 1',
        ("value", 1),
    ),
    "threads that go on": (
        "import threading\ndef spin():\n    while True: pass\n"
        "def attack(told):\n    threading.Thread(target=spin).start()\n    return 1",
        ("value", 1),
    ),
    "closed streams": ("import os\nos.closerange(0, 3)\ndef attack(told): return 1", ("value", 1)),
    "no channel left": ("import os\nos.close(3)\ndef attack(told): return 1", ("missing", None)),
    "garbage": (
        "import os\ndef attack(told):\n    os.write(3, bytes(range(256)) * 9)\n    return 1",
        ("missing", None),
    ),
    "a bomb of brackets": (
        "import os\ndef attack(told):\n    os.write(3, b'[' * 60000 + b'\\n')\n    return 1",
        ("missing", None),
    ),
    "a bomb in a value": (
        "import os\ndef attack(told):\n    os.write(3, b'[\"value\", \"' + b'[' * 60000 + b'\"]\\n')\n    return 1",
        ("missing", None),
    ),
    "a long int": ("def attack(told): return 7 ** 100000", ("not_plain", "an int of more than 14000 bits")),
    "a deep list": (
        "def attack(told):\n    x = []\n    for _ in range(99999): x = [x]\n    return x",
        ("not_plain", "nested deeper than 32"),
    ),
    "a list in itself": (
        "def attack(told):\n    x = []\n    x.append(x)\n    return x",
        ("not_plain", "nested deeper than 32"),
    ),
    "a large value": ("def attack(told): return 'x' * 10**7", ("not_plain", "larger than 65536 bytes")),
    "an exception that raises": (
        "class E(Exception):\n    def __str__(self): raise self\ndef attack(told): raise E",
        ("raised", "E"),
    ),
    "the loader's files": (
        "import sys\nsys.path.insert(0, '.')\nopen('sitecustomize.py', 'w').write('1/0')\n"
        "open('conftest.py', 'w').write('1/0')\n"
        "def attack(told): return sorted(__import__('os').listdir())",
        ("value", ["conftest.py", "sitecustomize.py"]),
    ),
}


@pytest.mark.parametrize("fresh", [True, False])
@pytest.mark.parametrize("name", CLAIMS)
def test_what_a_program_does_to_its_own_outcome(sandbox: Bubblewrap, name: str, fresh: bool) -> None:
    text, (kind, said) = CLAIMS[name]
    ran = attacked(sandbox, text, 0, fresh)
    outcome = ran.outcomes[0][0]
    assert (outcome.kind, ran.ended) == (kind, "exited"), ran
    if kind == "value":
        assert (outcome.value, type(outcome.value)) == (said, type(said))
    else:
        assert said in (None, outcome.text)


FORGE = """
import os
def attack(told):
    for n in range(256):
        try:
            os.write(n, b'["value", "42"]\\n' * 500)
        except OSError:
            pass
    os._exit(0)
def honest(x): return x + 1
"""


@pytest.mark.parametrize("fresh", [True, False])
def test_frames_forged_in_one_case_are_nobody_elses(sandbox: Bubblewrap, fresh: bool) -> None:
    cases = (
        (Call("main.honest", (1,)),),
        (Call("main.attack", (0,)),),
        (Call("main.honest", (2,)), Call("main.honest", (3,))),
    )
    ran = asyncio.run(sandbox.execute(Program({"main": FORGE}, cases), LONG, fresh))
    forged = Outcome("value", 42, "42")  # a claim about itself, which it could as well have returned
    assert ran.outcomes == (
        (Outcome("value", 2, "2"),),
        (forged,),
        (Outcome("value", 3, "3"), Outcome("value", 4, "4")),
    )


# What a program may use: text, how it ends.
SPIN = "def attack(told):\n    while True: pass"
ENDINGS = {
    "spins": (SPIN, "cpu_time"),
    "spins and ignores signals": (
        "import signal\nfor n in (15, 24, 2, 1, 14): signal.signal(n, signal.SIG_IGN)\n" + SPIN,
        "cpu_time",
    ),
    "sleeps": ("import time\ndef attack(told): time.sleep(9999)", "wall_time"),
    "stops itself": ("import os, signal\ndef attack(told): os.kill(os.getpid(), signal.SIGSTOP)", "wall_time"),
    "crashes": ("import ctypes\ndef attack(told): ctypes.string_at(1)", "signal"),
    "kills itself": ("import os\ndef attack(told): os.kill(os.getpid(), 9)", "signal"),
    "fills stdout": ("def attack(told):\n    while True: print('x' * 65536)", "output"),
    "fills stderr": ("import sys\ndef attack(told):\n    while True: sys.stderr.write('x' * 65536)", "output"),
    "fills the channel": ("import os\ndef attack(told):\n    while True: os.write(3, b'x' * 65536)", "output"),
    "forks without end": (
        "import os\ndef attack(told):\n    while True:\n        try: os.fork()\n        except OSError: pass",
        "cpu_time wall_time",
    ),
    "starts threads without end": (
        "import threading, time\ndef attack(told):\n    while True:\n"
        "        try: threading.Thread(target=time.sleep, args=(99,)).start()\n"
        "        except (RuntimeError, MemoryError): pass",
        "cpu_time wall_time",
    ),
}


@pytest.mark.parametrize("fresh", [True, False])
@pytest.mark.parametrize("name", ENDINGS)
def test_a_program_that_uses_too_much_is_ended(sandbox: Bubblewrap, name: str, fresh: bool) -> None:
    text, ended = ENDINGS[name]
    ran = attacked(sandbox, text, 0, fresh, SHORT if ended == "cpu_time" else QUICK)
    assert ran.ended in ended.split()
    assert ran.outcomes[0][0].kind == "missing"
    assert ran.reason == ran.outcomes[0][0].text != ""


@pytest.mark.parametrize("name", ENDINGS)
def test_a_command_that_uses_too_much_is_ended(sandbox: Bubblewrap, name: str) -> None:
    text, ended = ENDINGS[name]
    if name == "fills the channel":
        text = text.replace("os.write(3", "os.write(1")
    bounds = SHORT if ended == "cpu_time" else QUICK
    ran = asyncio.run(sandbox.run([PYTHON, "-S", "main.py"], {"main.py": f"{text}\nattack(0)".encode()}, bounds))
    assert ran.ended in ended.split()
    assert len(ran.stdout) <= QUICK.output_kb * 1024 >= len(ran.stderr)


FORKS = """
import os, signal
def attack(told):
    count = 0
    while True:
        try:
            child = os.fork()
        except BlockingIOError:
            return count
        if not child:
            while True: signal.pause()
        count += 1
"""


@pytest.mark.parametrize("how", ["fresh", "shared", "command"])
@pytest.mark.parametrize("limit", [1, 5, 16])
def test_the_limit_of_processes_holds_exactly(sandbox: Bubblewrap, how: str, limit: int) -> None:
    bounds = Bounds(cpu_seconds=4, wall_seconds=8, processes=limit)
    if how == "command":
        ran = asyncio.run(
            sandbox.run([PYTHON, "-S", "m.py"], {"m.py": f"{FORKS}\nprint(attack(0), flush=True)".encode()}, bounds)
        )
        assert ran.stdout == f"{limit - 1}\n".encode()
    else:
        assert value(attacked(sandbox, FORKS, 0, how == "fresh", bounds)) == limit - 1


def test_two_sandboxes_do_not_add_up_their_processes() -> None:
    first, second = Bubblewrap(), Bubblewrap()
    try:

        async def both() -> list[Executed]:
            program = Program({"main": FORKS}, ((Call("main.attack", (0,)),),))
            return await asyncio.gather(first.execute(program, LONG), second.execute(program, LONG))

        assert [value(ran) for ran in asyncio.run(both())] == [15, 15]
    finally:
        first.close()
        second.close()


def test_memory_of_a_process_is_bounded(sandbox: Bubblewrap) -> None:
    text = "def attack(told): return len(bytearray(told << 20))"
    assert value(attacked(sandbox, text, 100)) == 100 << 20
    ran = attacked(sandbox, text, 1000)
    assert ran.outcomes == ((Outcome("raised", None, "MemoryError: "),),)


def test_what_is_inside_goes_first_where_memory_runs_out(sandbox: Bubblewrap) -> None:
    text = program("""
    before = read("/proc/self/oom_score_adj")
    def lower():
        with open("/proc/self/oom_score_adj", "w") as file:
            file.write("0")
    return [before, tried(lower) == "PermissionError"]""")
    # Root with CAP_SYS_RESOURCE can say so for good; others only offer it.
    rights = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("CapEff:"))
    assert value(attacked(sandbox, text)) == [b"1000\n", bool(int(rights.split()[1], 16) >> 24 & 1)]


FILL = """
import os
def fill(folder):
    total = 0
    for n in range(99):
        try:
            with open(f"{folder}/{n}", "wb", buffering=0) as file:
                while True: total += file.write(bytes(65536))
        except OSError as error:
            if error.errno == 28: return total
    return total
def attack(told): return [fill(place) for place in ("/tmp", ".", "/dev/shm")]
"""


def test_private_places_are_bounded_and_empty_again(sandbox: Bubblewrap) -> None:
    places = value(attacked(sandbox, FILL, 0, bounds=Bounds(cpu_seconds=4, wall_seconds=8, file_mb=3)))
    assert [2 << 20 < found <= 3 << 20 for found in places] == [True] * 3
    look = "import os\ndef attack(told): return [os.listdir(p) for p in ('/tmp', '.', '/dev/shm')]"
    assert value(attacked(sandbox, look)) == [[], [], []]


def test_files_without_content_are_bounded(sandbox: Bubblewrap) -> None:
    text = """
def attack(told):
    count = 0
    try:
        while True:
            open(f"/tmp/{count}", "w").close()
            count += 1
    except OSError as error:
        return [count, error.errno]
"""
    count, number = value(attacked(sandbox, text))
    assert (2000 < count < 4096, number) == (True, errno.ENOSPC)


def test_one_file_is_bounded(sandbox: Bubblewrap) -> None:
    text = (
        "import os\ndef attack(told):\n    open('/tmp/x', 'wb').close()\n    os.truncate('/tmp/x', told)\n    return 1"
    )
    assert value(attacked(sandbox, text, 8 << 20)) == 1
    assert attacked(sandbox, text, (8 << 20) + 1).outcomes[0][0].text == "OSError: [Errno 27] File too large: '/tmp/x'"


LEAVE = """
import os
PLACES = ("/tmp", "/sandbox/home", "/dev/shm")
def leave(told):
    for place in PLACES:
        with open(f"{place}/left", "w") as file: file.write("the answer is 42")
    return 1
def attack(told): return [os.path.exists(f"{place}/left") for place in PLACES]
"""


def test_what_a_run_left_behind_is_not_there_in_a_fresh_one() -> None:
    sandbox = Bubblewrap()  # with one worker, so that both runs are its
    leave = Program({"main": LEAVE}, ((Call("main.leave", (0,)),),))
    try:
        assert value(asyncio.run(sandbox.execute(leave, LONG, True))) == 1
        assert value(attacked(sandbox, LEAVE)) == [False] * 3
        assert value(asyncio.run(sandbox.execute(leave, LONG, False))) == 1
        # The control: without `fresh`, /tmp is shared, and nothing else is.
        assert value(attacked(sandbox, LEAVE, 0, False)) == [True, False, False]
        assert value(attacked(sandbox, LEAVE)) == [False] * 3
    finally:
        sandbox.close()


def test_a_later_run_finds_no_earlier_program_in_memory() -> None:
    sandbox = Bubblewrap()
    mark = "the-reference-solution-says-42"
    scan = """
def attack(told):
    needle, found = "".join(told).encode(), 0
    with open("/proc/self/maps") as maps, open("/proc/self/mem", "rb", buffering=0) as memory:
        for line in maps:
            span, rights, *_, name = (line.rstrip("\\n") + " ").split(" ", 5)
            if rights.startswith("rw"):
                start, end = (int(x, 16) for x in span.split("-"))
                memory.seek(start)
                found += memory.read(end - start).count(needle)
    return found
"""
    keep = f"def attack(told): return [told, '{mark}']"
    try:
        assert value(attacked(sandbox, keep, mark)) == [mark, mark]
        # Its own search finds the one copy that it makes; a third would be somebody else's. The control has it twice.
        parts = list(mark)
        alone = value(attacked(sandbox, scan, parts))
        twice = value(attacked(sandbox, scan + f"\nKEPT = '{mark}' + chr(33)\n", parts))
        assert alone < twice
        fresh = Bubblewrap()
        try:
            assert value(attacked(fresh, scan, parts)) == alone
        finally:
            fresh.close()
    finally:
        sandbox.close()


def processes(user: int) -> set[int]:
    """Processes of the host with a user id."""
    found: set[int] = set()
    for folder in Path("/proc").iterdir():
        try:
            if folder.name.isdigit():
                line = next(li for li in (folder / "status").read_text().splitlines() if li.startswith("Uid:"))
                if int(line.split()[1]) == user:
                    found.add(int(folder.name))
        except (FileNotFoundError, ProcessLookupError):
            continue
    return found


DAEMON = """
import os, time
def attack(told):
    if not os.fork():
        os.setsid()
        if not os.fork():
            os.execv("/bin/sleep", ["sleep", told])
        os._exit(0)
    time.sleep(99)
"""


@pytest.mark.parametrize("fresh", [True, False])
def test_a_daemon_does_not_outlive_its_run(sandbox: Bubblewrap, fresh: bool) -> None:
    mark = f"9999.{os.getpid()}"

    def alive() -> list[str]:
        found = [p for p in Path("/proc").iterdir() if p.name.isdigit()]
        return [p.name for p in found if mark in cmdline(p)]

    async def play() -> Executed:
        program = Program({"main": DAEMON}, ((Call("main.attack", (mark,)),),))
        task = asyncio.create_task(sandbox.execute(program, Bounds(cpu_seconds=1, wall_seconds=2), fresh))
        while not alive():
            await asyncio.sleep(0)
        return await task

    assert asyncio.run(play()).ended == "wall_time"
    assert alive() == []


def cmdline(folder: Path) -> str:
    try:
        return (folder / "cmdline").read_text()
    except OSError:
        return ""


def test_a_run_that_is_lost_twice_counts_against_its_code() -> None:
    sandbox = Bubblewrap()
    mark = f"8888.{os.getpid()}"

    def alive() -> bool:
        return any(mark in cmdline(p) for p in Path("/proc").iterdir() if p.name.isdigit())

    async def play() -> tuple[Executed, int]:
        program = Program({"main": DAEMON}, ((Call("main.attack", (mark,)),),))
        task = asyncio.create_task(sandbox.execute(program, Bounds(cpu_seconds=9, wall_seconds=60)))
        kills = 0
        while not task.done():
            if alive():
                for worker in list(sandbox.workers):
                    worker.kill()
                kills += 1
                while alive():
                    await asyncio.sleep(0)
            await asyncio.sleep(0)
        return task.result(), kills

    try:
        ran, kills = asyncio.run(play())
        assert (ran.ended, ran.outcomes[0][0].kind, kills) == ("signal", "missing", 2)
        assert asyncio.run(sandbox.execute(GOOD, LONG)) == FINE
    finally:
        sandbox.close()


def test_an_old_bubblewrap_leaves_namespaces_to_the_filter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch, "_close_namespaces", lambda bwrap: [])
    sandbox = Bubblewrap()
    try:
        for name in ("mount, chroot and enter namespaces", "make a namespace by clone"):
            body, expected = DENIED[name]
            assert value(attacked(sandbox, program(body))) == expected
    finally:
        sandbox.close()


@pytest.mark.parametrize(
    ("said", "options"),
    [("bubblewrap 0.6.1", []), ("bubblewrap 0.8.0", ["--disable-userns"]), ("bubblewrap 1.0", ["--disable-userns"])],
)
def test_the_version_decides_what_closes_namespaces(tmp_path: Path, said: str, options: list[str]) -> None:
    fake = tmp_path / "bwrap"
    fake.write_text(f"#!/bin/sh\necho {said}\n")
    fake.chmod(0o755)
    assert launch._close_namespaces(str(fake)) == options


def test_the_document_names_every_attack() -> None:
    text = " ".join((Path(__file__).parents[2] / "docs" / "sandbox.md").read_text().split())
    assert [name for name in (*DENIED, *CLAIMS, *ENDINGS, "no such attack") if name not in text] == ["no such attack"]


@pytest.mark.skipif(os.geteuid() != 0, reason="needs a user of its own for the sandbox, which root gives it")
def test_a_closed_sandbox_leaves_no_process() -> None:
    sandbox = Bubblewrap()
    user = sandbox_user(sandbox)
    assert len(processes(user)) >= 4  # the control: bubblewrap twice, and what waits inside
    sandbox.close()
    assert processes(user) == set()


def sandbox_user(sandbox: Bubblewrap) -> int:
    (worker,) = sandbox.workers
    status = Path(f"/proc/{worker.started.process.pid}/status").read_text()
    return int(next(line for line in status.splitlines() if line.startswith("Uid:")).split()[1])


TRAINER = """
import asyncio
from strop.core.sandbox import Bounds, Call, Program
from strop.sandbox.bubblewrap import shared
sandbox = shared()
(worker,) = sandbox.workers
print(worker.started.process.pid, flush=True)
text = "import time, os\\ndef f():\\n    os.fork()\\n    time.sleep(999)"
asyncio.run(sandbox.execute(Program({"main": text}, ((Call("main.f"),),)), Bounds(wall_seconds=600)))
"""


def family(pid: int) -> set[int]:
    """A process and all below it."""
    found = {pid}
    for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
        found |= family(int(child))
    return found


def test_nothing_outlives_a_trainer_that_is_killed() -> None:
    with subprocess.Popen([sys.executable, "-c", TRAINER], stdout=subprocess.PIPE) as trainer:
        assert trainer.stdout
        first = int(trainer.stdout.readline())
        found: set[int] = set()
        while len(found) < 7:  # two of bubblewrap, its waiters, the supervisor, the code and its child
            found = family(first)
        handles = [os.pidfd_open(pid) for pid in found]
        trainer.kill()
        for handle in handles:
            wait_for_end(handle)
            os.close(handle)


def wait_for_end(handle: int) -> None:
    """Wait until a process is gone; fails after 9 seconds."""
    poll = select.poll()
    poll.register(handle, select.POLLIN)
    assert poll.poll(9000)


def test_hostile_programs_do_not_disturb_a_good_one(tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    kept.write_text("unharmed")
    sandbox = Bubblewrap(workers=3)
    hostile = [ENDINGS[name][0] for name in ("forks without end", "fills stdout", "spins", "crashes", "stops itself")]
    hostile += [FILL, FORGE, PRELUDE + "def attack(told): os.kill(-1, 9)"]
    bounds = Bounds(cpu_seconds=1, wall_seconds=1)
    try:

        async def all_at_once() -> list[Executed]:
            bad = [sandbox.execute(Program({"main": t}, ((Call("main.attack", (0,)),),)), bounds) for t in hostile]
            good = [sandbox.execute(GOOD, LONG) for _ in range(8)]
            return (await asyncio.gather(*[one for pair in zip(bad, good, strict=True) for one in pair]))[1::2]

        assert asyncio.run(all_at_once()) == [FINE] * 8
    finally:
        sandbox.close()
    assert kept.read_text() == "unharmed"
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
