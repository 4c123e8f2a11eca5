"""tests/test.sh and solution/solve.sh in the sandbox. Invariant: a script's reward is a number from 0 to 1 in its file, or
there is no verdict; it is never taken from an exit code or from what was printed.

The judged code runs beside test.sh, as the same user in the same sandbox. It can write the reward itself, before or after the
script does, and no check from outside can tell. Tasks judged so carry the tag `forgeable`; cases.json has no such hole.
"""

import json
import math
import os
import tempfile
from collections.abc import Iterable, Mapping
from functools import cache
from typing import Any, cast

from strop.core.errors import UsageError
from strop.core.sandbox import Bounds, Ran, Sandbox, SandboxError
from strop.core.task import Task, Verdict
from strop.envs.folder.paths import FILES, path_fault

WORK = "/sandbox/home"
"""Working directory of a command inside; it holds the workspace."""
LOGS = ".strop/verifier"
"""Where /logs/verifier really stands, below the working directory."""
REWARDS = (f"{LOGS}/reward.json", f"{LOGS}/reward.txt")
PACKED = ".strop/workspace.json"

# Names of files with their texts, as one JSON object; what is hidden or no text is left out.
_PACK = f"""
import json, os
found = {{}}
for here, folders, names in os.walk("."):
    folders[:] = [f for f in folders if not f.startswith(".") and f != "__pycache__"]
    for name in names:
        path = os.path.relpath(os.path.join(here, name), ".")
        try:
            if not os.path.islink(path):
                found[path] = open(path, encoding="utf-8").read()
        except UnicodeDecodeError:
            pass
json.dump(found, open("{PACKED}", "w"))
"""


async def judge_by_script(sandbox: Sandbox, task: Task, files: Mapping[str, str]) -> Verdict:
    """The verdict of tests/test.sh on a workspace, in a fresh sandbox.

    Args:
        sandbox: where it runs.
        task: a task with `judge` = `script`.
        files: the workspace as it is to be judged.
    """
    ran = await _run(sandbox, task, files, ["bash", "/tests/test.sh"], "tests", REWARDS)
    if ran.ended == "broken":
        return Verdict(None, invalid=f"the sandbox broke: {ran.reason}")
    if ran.ended != "exited":
        return Verdict(None, invalid=f"test.sh did not end by itself: {ran.reason or ran.ended}")
    try:
        reward, others = read_reward(ran.files)
    except ValueError as problem:
        said = ran.stderr.decode(errors="replace").strip()[-200:]
        return Verdict(None, invalid=f"{problem} (exit status {ran.code}; it said: {said or 'nothing'})")
    reason = f"test.sh gave {reward:g}; the judged code ran beside it and could have forged that"
    return Verdict(reward, {"full_reward": reward == 1.0}, reason=reason, info=others)


def read_reward(files: Mapping[str, bytes]) -> tuple[float, dict[str, float]]:
    """The reward and the other numbers beside it.

    `reward.txt` is one number. `reward.json` is a number, or an object of numbers with the key `reward` or with one key only.
    Where both stand there, they must say the same.

    Raises:
        ValueError: there is none, or it is no number from 0 to 1; the text says what.

    Example:
        `read_reward({".strop/verifier/reward.txt": b"0.5"}) == (0.5, {})`
    """
    found: list[float] = []
    others: dict[str, float] = {}
    for path in REWARDS:
        if path not in files:
            continue
        name = path.rsplit("/", 1)[-1]
        text = files[path][:10_000].decode(errors="replace").strip()
        if path.endswith("json"):
            number, others = _from_json(text)
        else:
            number = _number(text)
        if number is None or not 0 <= number <= 1:
            raise ValueError(f"{name} holds {text[:60]!r}, not a number from 0 to 1")
        found.append(number)
    if not found:
        raise ValueError("test.sh wrote neither /logs/verifier/reward.txt nor reward.json")
    if found[0] != found[-1]:
        raise ValueError(f"reward.json says {found[0]:g}, reward.txt {found[-1]:g}")
    return found[0], others


def _number(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        number = float(value)
    except (ValueError, OverflowError):
        return None
    return number if math.isfinite(number) else None


def _from_json(text: str) -> tuple[float | None, dict[str, float]]:
    try:
        read: Any = json.loads(text)
    except (ValueError, RecursionError):
        return None, {}
    if not isinstance(read, dict):
        return (None if isinstance(read, str) else _number(read)), {}
    numbers: dict[str, float] = {}
    for name, value in cast("dict[str, Any]", read).items():
        number = None if isinstance(value, str) else _number(value)
        if number is None:
            return None, {}
        numbers[name[:40]] = number
    if "reward" in numbers:
        return numbers.pop("reward"), dict(list(numbers.items())[:16])
    return (next(iter(numbers.values())), {}) if len(numbers) == 1 else (None, {})


async def solve(sandbox: Sandbox, task: Task) -> dict[str, str]:
    """The workspace that solution/solve.sh leaves: text files with plain names.

    Raises:
        UsageError: the script fails, or leaves what is no workspace.
        SandboxError: the sandbox broke.
    """
    command = ["sh", "-c", f"bash /solution/solve.sh && python3 -c '{_PACK}'"]
    ran = await _run(sandbox, task, task.data["files"], command, "solution", (PACKED,))
    if ran.ended == "broken":
        raise SandboxError(ran.reason)
    where = f"{task.data['folder']}/solution/solve.sh"
    if ran.code != 0 or ran.ended != "exited" or PACKED not in ran.files:
        said = ran.stderr.decode(errors="replace").strip()[-300:]
        raise UsageError(f"{where} failed ({ran.reason or f'exit status {ran.code}'}): {said or 'it said nothing'}")
    found = cast("dict[str, str]", json.loads(ran.files[PACKED]))
    wrong = [path for path in found if path_fault(path)]
    if wrong or len(found) > FILES:
        raise UsageError(
            f"{where} leaves {len(found)} files (at most {FILES}); not plain paths: {', '.join(wrong) or 'none'}"
        )
    return {path: text if not text or text.endswith("\n") else text + "\n" for path, text in found.items()}


async def _run(
    sandbox: Sandbox, task: Task, files: Mapping[str, str], command: list[str], mounted: str, collect: Iterable[str]
) -> Ran:
    """Run a script on a workspace, with a folder of the task read-only beside it."""
    data = task.data
    literal = [pattern for pattern in data["editable"] if path_fault(pattern) is None]
    top = {path.split("/")[0] for path in (*data["files"], *(data["reference"] or ()), *literal)}
    mounts = {
        f"/{mounted}": f"{data['folder']}/{mounted}",
        "/logs": links((("verifier", f"{WORK}/{LOGS}"),)),
        data["place"]: links(tuple((name, f"{WORK}/{name}") for name in sorted(top))),
    }
    contents = {path: text.encode() for path, text in files.items()} | {f"{LOGS}/.keep": b""}
    seconds = float(data["seconds"])
    bounds = Bounds(seconds, seconds, data["memory_mb"], processes=32, open_files=256, output_kb=256)
    return await sandbox.run(command, contents, bounds, tuple(collect), mounts)


@cache
def _store() -> tempfile.TemporaryDirectory[str]:
    store = tempfile.TemporaryDirectory(prefix="strop-links-")
    os.chmod(store.name, 0o755)
    return store


@cache
def links(targets: tuple[tuple[str, str], ...]) -> str:
    """A host directory of links (name, target), made once: mounted read-only, it leads to writable places inside.

    A sandbox has no writable place but its own; a link that leads there from /logs and from the workspace's place in the
    container makes scripts find what they expect.
    """
    folder = tempfile.mkdtemp(dir=_store().name)
    os.chmod(folder, 0o755)
    for name, target in targets:
        os.symlink(target, os.path.join(folder, name))
    return folder
