"""The sandbox's ordinary use: programs, commands, services, and what happens when it is missing or breaks."""

import asyncio
import os
import signal
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from strop.core.errors import UsageError
from strop.core.sandbox import Bounds, Call, Executed, Outcome, Program, Ran, SandboxError
from strop.sandbox import launch, shared
from strop.sandbox.bubblewrap import Bubblewrap

PYTHON = f"python{sys.version_info.major}.{sys.version_info.minor}"
LONG = Bounds(cpu_seconds=4.0, wall_seconds=8.0)


def execute(sandbox: Bubblewrap, modules: dict[str, str], *cases: tuple[Call, ...], **more: Any) -> Executed:
    return asyncio.run(sandbox.execute(Program(modules, cases), LONG, **more))


def run(sandbox: Bubblewrap, *command: str, files: dict[str, bytes] | None = None, **more: Any) -> Ran:
    return asyncio.run(sandbox.run(command, files or {}, LONG, **more))


COUNTER = "count = 0\ndef step(by=1):\n    global count\n    count += by\n    return count\n"


@pytest.mark.parametrize("fresh", [True, False])
def test_state_lives_inside_a_case_only(sandbox: Bubblewrap, fresh: bool) -> None:
    step = Call("main.step")
    ran = execute(
        sandbox, {"main": COUNTER}, (step, step), (step,), (Call("main.step", (5,)), Call("main.step", (), {"by": 2}))
    )
    assert [[o.value for o in case] for case in ran.outcomes] == [[1, 2], [1], [5, 7]]
    assert (ran.ended, ran.reason) == ("exited", "")


def test_modules_import_each_other_and_go_before_the_library(sandbox: Bubblewrap) -> None:
    modules = {
        "main": "import json\nfrom pack.deep import tool\nfrom pack import deep\ndef f(): return json.mine, tool.g(), __name__",
        "pack.deep.tool": "from . import other\ndef g(): return other.h()",
        "pack.deep.other": "def h(): return 'h'",
        "json": "mine = 'yes'",
    }
    ran = execute(sandbox, modules, (Call("main.f"), Call("pack.deep.tool.g")))
    assert [o.value for o in ran.outcomes[0]] == [("yes", "h", "main"), "h"]


def test_a_method_and_a_class_can_be_called(sandbox: Bubblewrap) -> None:
    text = "class C:\n    @staticmethod\n    def m(x): return [x]\n"
    ran = execute(sandbox, {"main": text}, (Call("main.C.m", (b"\x00",)), Call("main.C"), Call("nowhere.f")))
    assert ran.outcomes == (
        (
            Outcome("value", [b"\x00"], "[b'\\x00']"),
            Outcome("not_plain", None, "a C is not a plain value"),
            Outcome("missing", None, "nowhere.f: the program has no such module"),
        ),
    )


def test_a_module_that_does_not_load_is_missing_and_says_why(sandbox: Bubblewrap) -> None:
    ran = execute(sandbox, {"main": "def f(:"}, (Call("main.f"),))
    assert ran.outcomes[0][0].kind == "missing"
    assert ran.outcomes[0][0].text.startswith("did not load: SyntaxError: ")


def test_a_case_that_dies_takes_no_other_with_it(sandbox: Bubblewrap) -> None:
    text = "import os\ndef f(n):\n    if n == 1: os.kill(os.getpid(), 11)\n    return n\n"
    ran = execute(sandbox, {"main": text}, *[(Call("main.f", (n,)),) for n in range(3)])
    assert [case[0].kind for case in ran.outcomes] == ["value", "missing", "value"]
    assert ran.ended == "signal"


def test_cases_after_the_end_of_time_are_missing(sandbox: Bubblewrap) -> None:
    text = "import time\ndef f(n):\n    time.sleep(99 if n == 1 else 0)\n    return n\n"
    cases = tuple((Call("main.f", (n,)),) for n in range(4))
    ran = asyncio.run(sandbox.execute(Program({"main": text}, cases), Bounds(wall_seconds=1.0)))
    assert [case[0].kind for case in ran.outcomes] == ["value", "missing", "missing", "missing"]
    assert ran.ended == "wall_time"


def test_no_cases_and_no_calls_are_no_trouble(sandbox: Bubblewrap) -> None:
    assert execute(sandbox, {"main": ""}) == Executed((), "exited")
    assert execute(sandbox, {"main": ""}, ()) == Executed(((),), "exited")


def test_large_programs_and_arguments_arrive_whole(sandbox: Bubblewrap) -> None:
    text = f"x = {'y' * 300_000!r}\ndef f(s): return len(x), len(s)"
    ran = execute(sandbox, {"main": text}, (Call("main.f", ("z" * 200_000,)),))
    assert ran.outcomes[0][0].value == (300_000, 200_000)


def test_an_argument_that_is_not_plain_is_the_callers_mistake(sandbox: Bubblewrap) -> None:
    with pytest.raises(UsageError, match="use plain values"):
        execute(sandbox, {"main": ""}, (Call("main.f", (object(),)),))


def test_the_order_of_a_set_is_the_same_in_every_run(sandbox: Bubblewrap) -> None:
    text = "def f(): return list({'a', 'b', 'c', 'd', 'e', 'f'})"
    other = Bubblewrap()
    try:
        assert execute(sandbox, {"main": text}, (Call("main.f"),)) == execute(other, {"main": text}, (Call("main.f"),))
    finally:
        other.close()


def test_many_calls_at_once_wait_for_their_turn(sandbox: Bubblewrap) -> None:
    async def play() -> list[Any]:
        programs = [Program({"main": "def f(x): return x"}, ((Call("main.f", (n,)),),)) for n in range(80)]
        return [ran.outcomes[0][0].value for ran in await asyncio.gather(*[sandbox.execute(p, LONG) for p in programs])]

    assert asyncio.run(play()) == list(range(80))


def test_it_works_from_any_thread_and_the_starting_thread_may_end() -> None:
    found: list[Any] = []

    def work() -> None:
        found.append(Bubblewrap())
        found.append(execute(found[0], {"main": COUNTER}, (Call("main.step"),)))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    try:
        assert execute(found[0], {"main": COUNTER}, (Call("main.step"),)) == found[1]
        assert found[1].outcomes[0][0].value == 1
    finally:
        found[0].close()


def test_a_lost_worker_is_replaced_and_the_run_done_again() -> None:
    sandbox = Bubblewrap()
    try:
        (worker,) = sandbox.workers
        os.kill(worker.started.process.pid, signal.SIGKILL)
        worker.started.process.wait()
        for _ in range(2):
            assert execute(sandbox, {"main": COUNTER}, (Call("main.step"),)).outcomes[0][0].value == 1
        assert worker not in sandbox.workers
    finally:
        sandbox.close()


def test_a_closed_sandbox_answers_that_it_broke() -> None:
    sandbox = Bubblewrap()

    async def play() -> Executed:
        text = "import time\ndef f(): time.sleep(99)"
        task = asyncio.create_task(
            sandbox.execute(Program({"main": text}, ((Call("main.f"),),)), Bounds(wall_seconds=99))
        )
        while sandbox.spare:
            await asyncio.sleep(0)
        await asyncio.to_thread(sandbox.close)
        return await task

    ran = asyncio.run(play())
    assert (ran.ended, ran.outcomes[0][0].kind) == ("broken", "missing")


def test_shared_is_one_and_comes_back_after_its_end() -> None:
    first = shared()
    assert shared() is first
    first.close()
    second = shared()
    try:
        assert second is not first
        assert execute(second, {"main": COUNTER}, (Call("main.step"),)).outcomes[0][0].value == 1
    finally:
        second.close()


def test_a_command_gets_files_and_gives_files_back(sandbox: Bubblewrap) -> None:
    text = "cat a/in.txt; echo oops >&2; mkdir out; tr a-z A-Z < a/in.txt > out/up; ln -s /etc/passwd link; mkfifo pipe; exit 3"
    ran = run(
        sandbox, "sh", "-c", text, files={"a/in.txt": b"text\n"}, collect=["out/up", "link", "pipe", "out", "nothing"]
    )
    assert (ran.ended, ran.code, ran.stdout, ran.stderr) == ("exited", 3, b"text\n", b"oops\n")
    assert ran.files == {"out/up": b"TEXT\n"}


def test_large_files_go_in_and_come_out(sandbox: Bubblewrap) -> None:
    content = os.urandom(3 << 20)
    ran = asyncio.run(sandbox.run(["cp", "x", "y"], {"x": content}, Bounds(wall_seconds=8.0), collect=["y"]))
    assert ran.files == {"y": content}


def test_a_command_that_is_not_there_says_so(sandbox: Bubblewrap) -> None:
    ran = run(sandbox, "no-such-program")
    assert (ran.ended, ran.code) == ("exited", 127)
    assert ran.stderr == b"no-such-program: No such file or directory\n"


@pytest.mark.parametrize("path", ["/etc/x", "../x", "a/../../x", "./x", "a//x", ""])
def test_a_path_outside_the_working_directory_is_refused(sandbox: Bubblewrap, path: str) -> None:
    with pytest.raises(UsageError, match="working directory"):
        run(sandbox, "true", files={path: b""})
    with pytest.raises(UsageError, match="working directory"):
        run(sandbox, "true", collect=[path])


def test_a_mount_is_there_and_read_only(sandbox: Bubblewrap, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("from the host")
    tmp_path.chmod(0o755)
    ran = run(sandbox, "sh", "-c", "cat /data/file; echo x > /data/file", mounts={"/data": str(tmp_path)})
    assert (ran.stdout, ran.code) == (b"from the host", 2)
    assert b"Read-only file system" in ran.stderr
    assert (tmp_path / "file").read_text() == "from the host"
    assert run(sandbox, "cat", "/data/file").code == 1  # the control: without the mount it is not there


@pytest.mark.parametrize("place", ["data", "/", "/tmp/x", "/proc", "/sandbox/home", "/a/../b"])
def test_a_mount_at_an_impossible_place_is_refused(sandbox: Bubblewrap, tmp_path: Path, place: str) -> None:
    with pytest.raises(UsageError):
        run(sandbox, "true", mounts={place: str(tmp_path)})


def test_a_mount_of_nothing_is_refused(sandbox: Bubblewrap, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="the host has no"):
        run(sandbox, "true", mounts={"/data": str(tmp_path / "nothing")})


@pytest.mark.skipif(os.geteuid() != 0, reason="as root the sandbox runs as another user, else as this one")
def test_a_mount_that_its_user_cannot_read_is_refused(sandbox: Bubblewrap, tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    with pytest.raises(UsageError, match="chmod"):
        run(sandbox, "true", mounts={"/data": str(tmp_path)})


ECHO = """
import json, os, sys
for line in sys.stdin:
    print(json.dumps({"got": json.loads(line), "pid": os.getpid()}), flush=True)
"""


def service(sandbox: Bubblewrap, folder: Path, text: str, requests: list[dict[str, Any]], seconds: float = 8.0) -> Any:
    (folder / "service.py").write_text(text)
    folder.chmod(0o755)

    async def play() -> list[Any]:
        found = await sandbox.serve([PYTHON, "-S", "/verifier/service.py"], {"/verifier": str(folder)})
        try:
            return [await found.ask(request, seconds) for request in requests]
        finally:
            await found.close()

    return asyncio.run(play())


def test_a_service_answers_request_after_request(sandbox: Bubblewrap, tmp_path: Path) -> None:
    first, second = service(sandbox, tmp_path, ECHO, [{"a": 1}, {"b": "x" * 100_000}])
    assert (first["got"], second["got"]) == ({"a": 1}, {"b": "x" * 100_000})
    assert first["pid"] == second["pid"]


@pytest.mark.parametrize(
    ("text", "seconds", "said"),
    [
        ("1/0", 8.0, "ZeroDivisionError"),
        ("import time\ntime.sleep(99)", 0.3, "too long"),
        ("print('no json', flush=True)\ninput()\ninput()", 8.0, "Expecting value"),
        ("print([1], flush=True)\ninput()\ninput()", 8.0, "no JSON object"),
        ("import sys\nwhile True: sys.stdout.write('x' * 65536)", 8.0, "a line of more than"),
        ("print('{}\\n{}', flush=True)\ninput()\ninput()", 8.0, "more than one line"),
    ],
)
def test_a_service_that_does_not_answer_is_an_error_that_says_why(
    sandbox: Bubblewrap, tmp_path: Path, text: str, seconds: float, said: str
) -> None:
    with pytest.raises(SandboxError, match=said):
        service(sandbox, tmp_path, text, [{}], seconds)


def test_a_service_sees_no_trace_of_the_host(sandbox: Bubblewrap, tmp_path: Path) -> None:
    text = """
import json, os
there = os.path.exists(json.loads(input())["path"])
print(json.dumps({"env": sorted(os.environ), "there": there}))
"""
    (answer,) = service(sandbox, tmp_path, text, [{"path": str(tmp_path)}])
    assert answer == {"env": ["HOME", "LANG", "PATH", "PYTHONHASHSEED", "TMPDIR"], "there": False}


def test_without_bubblewrap_there_is_an_error_with_advice(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(
        SandboxError, match=r"bwrap is not installed .package bubblewrap.*apt-get install bubblewrap.*macOS"
    ):
        Bubblewrap()


def test_a_bubblewrap_that_fails_is_an_error_with_its_words(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "bwrap").write_text("#!/bin/sh\necho 'No permissions to create new namespace' >&2\nexit 1\n")
    (tmp_path / "bwrap").chmod(0o755)
    os.chmod(tmp_path, 0o755)
    monkeypatch.setattr(
        launch, "_tool", lambda name, _: str(tmp_path / name) if name == "bwrap" else f"/usr/bin/{name}"
    )
    with pytest.raises(
        SandboxError, match=r"does not work here .*(No permissions|Permission denied).*max_user_namespaces"
    ):
        Bubblewrap()


def test_another_system_is_an_error_with_advice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    with pytest.raises(SandboxError, match=r"no sandbox on darwin.*Linux virtual machine"):
        Bubblewrap()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root needs the folder")
def test_folders_that_killed_trainers_left_are_swept_and_those_in_use_are_not() -> None:
    left = Path(f"/tmp/{launch.STAGE}left-{os.getpid()}")
    left.mkdir()
    first = Bubblewrap()
    try:
        stage = Path(first.launcher.stage)
        assert not left.exists() and stage.exists()
        second = Bubblewrap()
        second.close()
        assert stage.exists() and not Path(second.launcher.stage).exists()
        assert execute(first, {"main": COUNTER}, (Call("main.step"),)).outcomes[0][0].value == 1
    finally:
        first.close()
    assert not stage.exists()
