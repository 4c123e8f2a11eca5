"""Task folders: read strictly, worked on without a way out, judged by cases or by a script."""

import asyncio
import json
import os
import re
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from strop.core.errors import UsageError
from strop.core.message import Message
from strop.core.task import Task, Verdict
from strop.core.trajectory import Trajectory
from strop.core.world import World
from strop.envs.catalogue import world
from strop.envs.folder.bench import REFUSAL, Action, Bench, read_reply
from strop.envs.folder.script import read_reward
from strop.envs.folder.tasks import FORGEABLE, LONGEST_FILE, modules_of, read_splits
from strop.envs.folder.world import grade, judged_files, player, reference_of
from strop.envs.repair.desk import LIMIT, Edit
from strop.sandbox.bubblewrap import shared

RECIPES = Path(__file__).parents[2] / "recipes" / "tasks"
CASES = '{"module": "main", "function": "f", "cases": [[[[1]], {"value": 2, "visible": true}], [[[3]], {"value": 6}]]}'
START = "def f(x):\n    return x\n"
RIGHT = "def f(x):\n    return 2 * x[0]\n"
FILES = {
    "task.toml": 'version = "1.0"\n[strop]\neditable = ["main.py", "more/*"]\n',
    "instruction.md": "Double it.\n",
    "environment/main.py": START,
    "environment/data.txt": "seven\n",
    "tests/cases.json": CASES,
    "solution/main.py": RIGHT,
}


def made(root: Path, changes: dict[str, str | None] | None = None, name: str = "one") -> Path:
    """A task folder that works, with some files changed or (None) left out."""
    for path, text in {**FILES, **(changes or {})}.items():
        if text is not None:
            file = root / name / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)
    return root / name


def task_at(folder: Path) -> Task:
    return read_splits(str(folder))["train"][0]


def graded(task: Task, **files: str) -> Verdict:
    return asyncio.run(
        grade(shared(), task, {**task.data["files"], **{k.replace("_py", ".py"): v for k, v in files.items()}})
    )


def play(task: Task, *replies: str, calls: bool = False) -> tuple[list[str], Bench]:
    bench = Bench(task, shared(), calls)

    async def through() -> list[str]:
        await bench.start()
        steps = [await bench.step(Message("assistant", reply)) for reply in replies]
        return [m.content for step in steps for m in step.messages]

    return asyncio.run(through()), bench


# --- reading


def test_the_example_tasks_fail_as_they_stand_and_pass_as_solved() -> None:
    async def scores() -> list[Any]:
        out: list[Any] = []
        for task in read_splits(str(RECIPES))["train"]:
            solved = await reference_of(task)
            assert solved is not None
            verdicts = [await grade(shared(), task, files) for files in (task.data["files"], solved)]
            out.append((task.id, [v.score for v in verdicts], FORGEABLE in task.tags))
        return out

    assert asyncio.run(scores()) == [("retry", [0.0, 1.0], False), ("word-count", [0.0, 1.0], True)]


def test_folders_of_folders_are_splits(tmp_path: Path) -> None:
    made(tmp_path, name="a")
    made(tmp_path / "eval", name="a")
    splits = read_splits(str(tmp_path))
    assert {name: [task.id for task in tasks] for name, tasks in splits.items()} == {"train": ["a"], "eval": ["eval/a"]}


@pytest.mark.parametrize(
    ("path", "text", "said"),
    [
        (
            "task.toml",
            "[verifier]\ntimeout = 3\n",
            "verifier.timeout is not supported here; allowed in [verifier]: timeout_sec",
        ),
        ("task.toml", "[verifier.env]\nKEY = '1'\n", "verifier.env is not supported"),
        ("task.toml", "[verifier]\ntimeout_sec = 0\n", "above 0 and up to 600"),
        ("task.toml", "[verifier]\ntimeout_sec = true\n", "above 0 and up to 600"),
        ("task.toml", "[environment]\nallow_internet = true\n", "there is no network"),
        ("task.toml", "[environment]\ndocker_image = 'ubuntu:24.04'\n", "there is no container here"),
        ("task.toml", "[environment]\nmemory_mb = 1\n", "MiB from 64"),
        ("task.toml", "[environment]\nmemory = '2G'\n", "environment.memory is not supported"),
        ("task.toml", "[strop]\neditable = []\n", "a list of patterns"),
        ("task.toml", "[strop]\nother = 1\n", "allowed in [strop]: editable"),
        ("task.toml", "version = '2.0'\n", '"1.0" or another "1.N"'),
        ("task.toml", "seed = 1\n", "seed is not supported here; allowed: version, schema_version, [metadata]"),
        ("task.toml", "agent = 1\n", "must be a table, [agent]"),
        ("task.toml", "[x\n", "not TOML"),
        ("instruction.md", None, "must be a file and no link"),
        ("instruction.md", "\n", "allowed: 1 to"),
        ("tests/cases.json", None, "neither cases.json nor test.sh"),
        ("tests/cases.json", "{}", '"module": "main"'),
        ("tests/cases.json", CASES.replace('"main"', '"a b"'), "a name in Python"),
        ("tests/cases.json", CASES.replace('{"value": 6}', '{"value": 6, "raises": "KeyError"}'), "case 2"),
        ("tests/cases.json", CASES.replace('"visible": true', '"visible": 1'), "case 1"),
        ("tests/cases.json", CASES.replace("6}", "[" * 40 + "]" * 40 + "}"), "case 2: it is too large or too deep"),
        ("environment/tests/a.py", "", "are the task's own"),
        ("environment/.hidden", "", "none of them hidden"),
        ("environment/Main.py", "", "in the way of"),
        ("environment/main.py", "#" * LONGEST_FILE, "more than 100000 characters"),
        ("environment/nul.txt", "\0", "a NUL"),
        ("environment/docker-compose.yaml", "", "several containers"),
        (
            "environment/Dockerfile",
            "FROM python:3.12\nRUN pip install x\n",
            "line 2: 'RUN pip install x' cannot be done",
        ),
        ("environment/Dockerfile", "FROM ubuntu:24.04\n", "line 1"),
        ("environment/Dockerfile", "FROM python:3.12\nWORKDIR /usr\n", "line 2"),
        ("environment/Dockerfile", "FROM python:3.12\nWORKDIR /app\nCOPY main.py other.py\n", "line 3"),
        ("environment/Dockerfile", "FROM python:3.12\nWORKDIR /app\nCOPY --from=a main.py .\n", "line 3"),
        ("environment/Dockerfile", "FROM python:3.12\nWORKDIR /app\nCOPY ../tests .\n", "line 3"),
        ("environment/Dockerfile", "WORKDIR /app\n", "no FROM"),
        ("solution/data.txt", "eight\n", "is not editable"),
        ("steps/one.md", "", "several steps"),
    ],
)
def test_what_cannot_be_done_here_is_refused_with_the_reason(
    tmp_path: Path, path: str, text: str | None, said: str
) -> None:
    folder = made(tmp_path, {path: text})
    with pytest.raises(UsageError) as refused:
        read_splits(str(folder))
    assert said in str(refused.value) and str(folder) in str(refused.value)


def test_the_supported_keys_of_a_harbor_task_are_taken(tmp_path: Path) -> None:
    toml = (
        'schema_version = "1.3"\n[task]\nname = "me/one"\nkeywords = ["x"]\n[metadata]\nanything = [1, {a = 2}]\n'
        "[verifier]\ntimeout_sec = 7\n[agent]\ntimeout_sec = 9.5\n[environment]\nbuild_timeout_sec = 600.0\ncpus = 1\n"
        "memory_mb = 300\nstorage_mb = 10240\ndocker_image = 'python:3.12-slim'\nallow_internet = false\n"
    )
    data = task_at(made(tmp_path, {"task.toml": toml})).data
    assert (data["seconds"], data["memory_mb"], data["editable"]) == (7.0, 300, ["*"])


def test_a_link_in_a_task_is_refused(tmp_path: Path) -> None:
    folder = made(tmp_path)
    os.symlink("/etc/passwd", folder / "environment" / "secret.txt")
    with pytest.raises(UsageError, match="is a link"):
        read_splits(str(folder))


def test_a_dockerfile_says_which_files_are_there_and_where(tmp_path: Path) -> None:
    docker = "# syntax\nFROM python:3.12-slim\nWORKDIR /work\nCOPY main.py .\nCOPY lib/ /work/lib/\n"
    data = task_at(made(tmp_path, {"environment/Dockerfile": docker, "environment/lib/a.py": "x = 1\n"})).data
    assert (set(data["files"]), data["place"]) == ({"main.py", "lib/a.py"}, "/work")


def test_a_path_without_tasks_is_refused(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "none"):
        with pytest.raises(UsageError, match=r"task\.toml"):
            read_splits(str(path))


# --- the bench


@pytest.mark.parametrize(
    ("reply", "action"),
    [
        (" list\n", Action("list")),
        ("view a/b.py", Action("view", "a/b.py")),
        ("edit a.py 2     return 3\n", Action("edit", "a.py", Edit(2, 2, "    return 3"))),
        ("edit a.py 2-3 x\ny", Action("edit", "a.py", Edit(2, 3, "x\ny"))),
        ("write a.py\n    x\ny\n", Action("write", "a.py", None, "    x\ny")),
        ("view a.py 12", Action("view", "a.py", lines=(12, None))),
        ("view a.py 12-30 ", Action("view", "a.py", lines=(12, 30))),
        ("view a.py 12 30", None),
        ("view", None),
        ("view a b", None),
        ("edit a.py x", None),
        ("write a.py", None),
        ("write a.py " + "x" * LIMIT, None),
        ("please list", None),
    ],
)
def test_a_reply_is_read_as_its_action(reply: str, action: Action | None) -> None:
    assert read_reply(reply) == action


def test_an_episode_lists_views_edits_tests_and_submits(tmp_path: Path) -> None:
    task = task_at(made(tmp_path))
    said, bench = play(
        task,
        "list",
        "view main.py",
        "test",
        "edit main.py 2     return 2 * x[0]",
        "test",
        "write more/a.py y = 1",
        "submit",
    )
    assert said == [
        "data.txt\nmain.py",
        "1 def f(x):\n2     return x",
        "fail f([1]) got [1] want 2",
        "ok",
        "pass",
        "ok",
    ]
    files = bench.artefacts()["files"]
    assert files == {"main.py": RIGHT, "data.txt": "seven\n", "more/a.py": "y = 1\n"}
    assert bench.artefacts()["submitted"] and not bench.artefacts()["tests_touched"]


def test_tool_calls_do_the_same(tmp_path: Path) -> None:
    def call(name: str, **arguments: Any) -> str:
        return f"<tool_call>{json.dumps({'name': name, 'arguments': arguments})}</tool_call>"

    said, bench = play(
        task_at(made(tmp_path)),
        call("list") + call("edit", file="main.py", first=2, text="    return 2 * x[0]") + call("test"),
        call("view") + call("write", file="main.py") + call("fly") + call("edit", file="main.py", first="2", text=""),
        call("write", file="more/a.py", text="\ud800") + call("submit") + call("write", file="main.py", text="late"),
        calls=True,
    )
    assert said[:3] == ["data.txt\nmain.py", "ok", "pass"]
    assert [text.split(" ")[0] for text in said[3:7]] == ["error:"] * 4
    assert said[7:] == ["bad", "submitted"]
    assert bench.files == {"main.py": RIGHT, "data.txt": "seven\n"}


LONG = "".join(f"y{n} = {n}  # {'-' * (n % 90)}\n" + "\n" * (n % 7 == 3) for n in range(1500))


def test_a_long_file_is_seen_page_by_page_and_changed_in_its_middle(tmp_path: Path) -> None:
    """What the pages show, put together, is the file; every answer keeps the bound."""
    task = task_at(made(tmp_path, {"environment/more/long.py": LONG}))
    lines = LONG.split("\n")[:-1]
    ask, seen = "view more/long.py", list[str]()
    while ask:
        [answer] = play(task, ask)[0]
        assert len(answer) <= LIMIT
        note = re.search(r"\n\(up to line (\d+) of (\d+); (view more/long.py \d+) goes on\)$", answer)
        seen += answer[: note.start() if note else None].split("\n")
        assert note is None or (int(note[1]), int(note[2])) == (len(seen), len(lines))
        ask = note[3] if note else ""
    assert seen == [f"{n} {line}" for n, line in enumerate(lines, 1)]
    said, bench = play(task, "view more/long.py 700-701", "edit more/long.py 700 new", "view more/long.py 700")
    assert said[0] == f"700 {lines[699]}\n701 {lines[700]}"
    assert said[1:] == ["ok", play(task, "edit more/long.py 700 new", "view more/long.py 700")[0][1]]
    assert said[2].startswith(f"700 new\n701 {lines[700]}\n")
    assert bench.files["more/long.py"] == LONG.replace(lines[699] + "\n", "new\n")
    outside = play(task, "view more/long.py 9999", "view more/long.py 3-2", "view more/long.py 0", "view main.py 2-99")
    assert outside[0] == ["bad", "bad", "bad", "2     return x"]


def test_a_file_does_not_grow_beyond_its_bound(tmp_path: Path) -> None:
    task = task_at(made(tmp_path, {"environment/more/long.py": "x" * (LONGEST_FILE - 10) + "\n"}))
    assert play(task, "edit more/long.py 1-1 " + "y" * 30)[0] == ["ok"]
    full = "\n".join("x" * 99 for _ in range(LONGEST_FILE // 100))
    task = task_at(made(tmp_path, {"environment/more/long.py": full[:-1] + "\n"}))
    assert play(task, "edit more/long.py 1 " + "x" * 99, "edit more/long.py 1 " + "x" * 101)[0] == ["ok", "bad"]


@pytest.mark.parametrize("calls", [False, True])
def test_a_player_writes_a_long_solution_in_pieces(tmp_path: Path, calls: bool) -> None:
    task = task_at(made(tmp_path, {"solution/main.py": LONG + RIGHT}))
    play_on, bench = player(task, task.data["reference"], calls), Bench(task, shared(), calls)

    async def through() -> list[str]:
        messages = list((await bench.start()).messages)
        while not bench.submitted and len(messages) < 100:
            messages.append(Message("assistant", play_on(messages)))
            messages += (await bench.step(messages[-1])).messages
        return [m.content for m in messages if m.role in ("user", "tool")][1:]

    assert set(asyncio.run(through())) - {"submitted"} == {"ok", "pass"}
    assert bench.files["main.py"] == LONG + RIGHT
    assert len(bench.actions) > 10


ELSEWHERE = (
    *(
        "../main.py",
        "/etc/passwd",
        "more/../main.py",
        "more//a.py",
        "./main.py",
        "more/",
        "MAIN.py",
        "main.py/a",
        "more\\a",
    ),
    *(
        "main\0.py",
        "more/" + "a" * 60,
        ".strop/verifier/reward.txt",
        "more/.a",
        "mоre/a",
        "~/a",
        "-rf",
        "data.txt",
        "new.py",
    ),
    *(
        "tests/cases.json",
        "Tests/cases.json",
        "solution/main.py",
        "SOLUTION/x",
        "logs/verifier/reward.txt",
        "Dockerfile",
    ),
)


@pytest.mark.parametrize("path", ELSEWHERE)
def test_no_path_leads_out_of_the_workspace_or_to_what_is_not_the_agent_s(tmp_path: Path, path: str) -> None:
    task = task_at(made(tmp_path))
    said, bench = play(task, f"write {path} x", f"edit {path} 1 x", f"view {path}")
    assert said[:2] == ["bad", "bad"]
    assert said[2] == ("bad" if path != "data.txt" else "1 seven")
    assert bench.files == task.data["files"]
    # With every path editable, what is refused is refused for its name; the control is the path that is not.
    free = task_at(made(tmp_path / "free", {"task.toml": ""}))
    said, _ = play(free, f"write {path} x", "write more/a.py x")
    assert said == ["ok" if path in ("data.txt", "new.py") else "bad", "ok"]


def test_trying_to_write_what_is_not_its_own_is_noted(tmp_path: Path) -> None:
    task = task_at(made(tmp_path))
    for reply, noted in (
        ("write tests/a x", True),
        ("edit data.txt 1 x", True),
        ("write more/a x", False),
        ("view tests/a", False),
    ):
        assert play(task, reply)[1].artefacts()["tests_touched"] == noted, reply


def test_a_workspace_stays_small(tmp_path: Path) -> None:
    task = task_at(made(tmp_path))
    said, bench = play(task, *(f"write more/f{n} x" for n in range(70)), "list")
    assert said.count("ok") == 62 and len(bench.files) == 64 and len(said[-1]) <= LIMIT


@given(st.text(max_size=200))
@settings(max_examples=40, deadline=None)
def test_any_reply_is_answered_with_bounded_text(text: str) -> None:
    task = read_splits(str(RECIPES / "retry"))["train"][0]
    reply = text if text.strip() not in ("test", "submit") else "x"
    for answer in play(task, reply, f"view {text}")[0] + play(task, f"<tool_call>{reply}</tool_call>", calls=True)[0]:
        assert 0 < len(answer) <= LIMIT


def test_hidden_cases_and_the_solution_are_in_no_message(tmp_path: Path) -> None:
    secret = CASES.replace('"value": 6', '"value": "4711"')
    task = task_at(made(tmp_path, {"tests/cases.json": secret, "solution/main.py": "# 4712\n" + RIGHT}))

    async def opening() -> str:
        steps = [await Bench(task, shared(), calls).start() for calls in (False, True)]
        return " ".join(m.content for step in steps for m in step.messages)

    text = asyncio.run(opening()) + " ".join(play(task, "list", "view main.py", "test", "view tests/cases.json")[0])
    assert "4711" not in text and "4712" not in text and "Double it." in text


# --- judging


def test_cases_are_judged_outside_of_the_sandbox(tmp_path: Path) -> None:
    task = task_at(made(tmp_path))
    assert graded(task, main_py=RIGHT).score == 1.0
    forged = (
        "import os\nos.makedirs('.strop/verifier', exist_ok=True)\nopen('.strop/verifier/reward.txt', 'w').write('1')\n"
    )
    for wrong in (START, forged + START, "class A:\n    __eq__ = lambda s, o: True\nf = lambda x: A()\n", ""):
        assert graded(task, main_py=wrong).score == 0.0


def test_what_is_not_the_agent_s_is_put_back_before_judging(tmp_path: Path) -> None:
    task = task_at(made(tmp_path))
    files = {"main.py": RIGHT, "data.txt": "changed", "conftest.py": "x", "more/a.py": "y"}
    assert judged_files(task, files) == {"main.py": RIGHT, "data.txt": "seven\n", "more/a.py": "y"}
    assert judged_files(task, {}) == {"data.txt": "seven\n"}


def test_an_answer_that_is_no_workspace_is_worth_nothing(tmp_path: Path) -> None:
    task = task_at(made(tmp_path))
    for files in ({"more/../a": "x"}, {"main.py": 1}, {"main.py": "\ud800"}, {"more/A": "", "more/a": ""}):
        verdict = asyncio.run(grade(shared(), task, files))
        assert verdict.score == 0.0 and "no workspace" in verdict.reason


def test_modules_are_named_by_their_paths() -> None:
    files = {"a.py": "1", "a/__init__.py": "2", "b/c.py": "3", "d.txt": "4", "e.f.py": "5"}
    assert modules_of(files) == {"a": "2", "b.c": "3"}


def scripted(root: Path, script: str, name: str = "one", toml: str = FILES["task.toml"]) -> Task:
    changes = {"tests/cases.json": None, "tests/test.sh": script, "tests/secret.txt": "s\n", "task.toml": toml}
    return task_at(made(root, changes, name))


def test_a_script_finds_workspace_tests_and_logs_where_harbor_has_them(tmp_path: Path) -> None:
    script = (
        "mkdir -p /logs/verifier && cat /tests/secret.txt >/dev/null && [ $(cat /app/data.txt) = seven ] && cd /app && "
        'python3 -c "import main; print(main.f([1]) / 4)" > /logs/verifier/reward.txt\n'
    )
    task = scripted(tmp_path, script)
    verdict = graded(task, main_py=RIGHT)
    assert (verdict.score, verdict.invalid) == (0.5, None) and "could have forged" in verdict.reason
    assert FORGEABLE in task.tags and FORGEABLE not in task_at(made(tmp_path, name="safe")).tags


def test_the_hole_of_scripts_is_there_as_the_tag_says(tmp_path: Path) -> None:
    script = "python3 -c 'import main' ; grep -q . /logs/verifier/reward.txt || echo 0 > /logs/verifier/reward.txt\n"
    task = scripted(tmp_path, script)
    forged = "open('/logs/verifier/reward.txt', 'w').write('1')\n"
    assert (graded(task, main_py=START).score, graded(task, main_py=forged).score) == (0.0, 1.0)
    # Neither the tests nor the host can be changed from there.
    broken = "for p in ('/tests/secret.txt', '/tests/new'):\n    open(p, 'w')\n"
    graded(task, main_py=broken)
    assert (tmp_path / "one/tests/secret.txt").read_text() == "s\n" and not (tmp_path / "one/tests/new").exists()


@pytest.mark.parametrize(
    ("script", "said"),
    [
        ("exit 0", "wrote neither"),
        ("echo 1; exit 3", "exit status 3"),
        ("echo good > /logs/verifier/reward.txt", "not a number from 0 to 1"),
        ("echo 1.5 > /logs/verifier/reward.txt", "not a number from 0 to 1"),
        ("ln -s /tests/one /sandbox/home/.strop/verifier/reward.txt", "wrote neither"),
        ("echo 1 > /logs/verifier/reward.txt; sleep 60", "did not end by itself"),
        ("echo 1 > /logs/verifier/reward.txt; kill -9 $$", "did not end by itself"),
    ],
)
def test_without_a_reward_there_is_no_verdict(tmp_path: Path, script: str, said: str) -> None:
    verdict = graded(scripted(tmp_path, script + "\n", toml="[verifier]\ntimeout_sec = 1.5\n"))
    assert verdict.score is None and said in str(verdict.invalid)


@pytest.mark.parametrize(
    ("text", "json_text", "reward"),
    [
        (b"0.25\n", None, (0.25, {})),
        (None, b'{"reward": 1, "style": 0.5}', (1.0, {"style": 0.5})),
        (None, b'{"only": 0.75}', (0.75, {})),
        (None, b"1", (1.0, {})),
        (b"1", b'{"reward": 1.0}', (1.0, {})),
        (b"1", b'{"reward": 0}', None),
        (None, b'{"a": 1, "b": 1}', None),
        (None, b'{"reward": "1"}', None),
        (None, b'{"reward": true}', None),
        (None, b"{}", None),
        (None, b"[" * 3000, None),
        (b"nan", None, None),
        (b"-0.1", None, None),
        (b"1e400", None, None),
        (b"\xff", None, None),
        (b"", None, None),
        (None, None, None),
    ],
)
def test_a_reward_is_one_number_from_0_to_1(text: bytes | None, json_text: bytes | None, reward: Any) -> None:
    files = {".strop/verifier/reward.txt": text, ".strop/verifier/reward.json": json_text}
    given_files = {path: content for path, content in files.items() if content is not None}
    if reward is None:
        with pytest.raises(ValueError):
            read_reward(given_files)
    else:
        assert read_reward(given_files) == reward


def test_a_solution_that_fails_is_told(tmp_path: Path) -> None:
    task = task_at(made(tmp_path, {"solution/solve.sh": "echo no >&2; exit 4\n", "solution/main.py": None}))
    with pytest.raises(UsageError, match=r"solve\.sh failed \(exit status 4\): no"):
        asyncio.run(reference_of(task))


# --- the world


def played(found: World, task: Task) -> Trajectory:
    assert found.demonstrate is not None
    player, bench = found.demonstrate(task, Random(0)), found.env(task, 0)

    async def through() -> dict[str, Any]:
        messages = list((await bench.start()).messages)
        for _ in range(8):
            messages.append(Message("assistant", player(messages)))
            step = await bench.step(messages[-1])
            messages += step.messages
            if step.done:
                break
        return {"artefacts": dict(bench.artefacts()), "messages": tuple(messages)}

    return Trajectory(task, (), np.zeros(0, np.int32), "done", **asyncio.run(through()))


@pytest.mark.parametrize("tools", ["text", "json"])
def test_the_player_s_episodes_are_judged_right(tools: str) -> None:
    found = world("folder", {"path": str(RECIPES), "tools": tools})
    for task in found.tasks["train"]:
        trajectory = played(found, task)
        verdict = asyncio.run(found.verify(task, trajectory))  # type: ignore[arg-type]  # a coroutine function
        assert verdict.score == 1.0 and trajectory.artefacts["submitted"]
        names = [found.actions(m) for m in trajectory.messages if m.role == "assistant" and found.actions]
        assert names == (["write", "test", "submit"] if task.id == "retry" else ["write", "submit"])


def test_a_task_without_a_solution_has_no_player_and_a_wrong_option_is_refused(tmp_path: Path) -> None:
    folder = str(made(tmp_path, {"solution/main.py": None}))
    assert world("folder", {"path": folder}).demonstrate is None
    with pytest.raises(UsageError, match="text or json"):
        world("folder", {"path": folder, "tools": "xml"})


def test_a_refused_reply_says_what_is_allowed(tmp_path: Path) -> None:
    assert play(task_at(made(tmp_path)), "hello")[0] == [REFUSAL]
