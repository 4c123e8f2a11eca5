"""Task folders, read. Invariant: what is read is plain text of bounded size behind no link, and nothing of tests/ or solution/
is among the files of the workspace."""

import os
from collections.abc import Iterator, Mapping
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from strop.core.errors import UsageError
from strop.core.task import Task
from strop.envs.folder.cases import CaseFile, read_cases
from strop.envs.folder.container import PLACE, read_dockerfile
from strop.envs.folder.paths import FILES, clash, path_fault
from strop.envs.folder.settings import Settings, read_settings
from strop.envs.repair.desk import LIMIT
from strop.sandbox.launch import check_mount

LONGEST_FILE = 100_000
"""Characters of a file; an answer shows `LIMIT` of them, and a reply writes as many."""
FORGEABLE = "forgeable"
"""The tag of tasks whose judged code could write its own reward, since it runs beside the script that judges."""

CASE_SECONDS, SCRIPT_SECONDS = 10.0, 60.0
_LAYOUT = "a task is a folder with task.toml, instruction.md, environment/, tests/ and perhaps solution/"


def read_splits(path: str) -> dict[str, list[Task]]:
    """Tasks by split.

    Args:
        path: a task folder (one task in `train`), or a folder of them (`train`); a folder in it that holds task folders and
            is none itself is a split of its name.

    Raises:
        UsageError: there is no task, or one cannot be used; the text names file and key.
    """
    root = Path(path)
    if not root.is_dir():
        raise UsageError(f"{path} is no folder; give world.path a task folder or a folder of them ({_LAYOUT})")
    if (root / "task.toml").is_file():
        return {"train": [read_task(root, root.resolve().name, "train")]}
    splits: dict[str, list[Task]] = {}
    for child in _folders(root):
        if (child / "task.toml").is_file():
            splits.setdefault("train", []).append(read_task(child, child.name, "train"))
            continue
        for inner in _folders(child):
            if (inner / "task.toml").is_file():
                found = read_task(inner, f"{child.name}/{inner.name}", child.name)
                splits.setdefault(child.name, []).append(found)
    if not splits.get("train"):
        known = ", ".join(splits) or "none"
        raise UsageError(
            f"{path} has no tasks to train on (splits found: {known}); {_LAYOUT}, in {path} or {path}/train"
        )
    return splits


def _folders(root: Path) -> list[Path]:
    return sorted(child for child in root.iterdir() if child.is_dir() and not child.name.startswith("."))


def read_task(folder: Path, name: str, split: str) -> Task:
    """The task of a folder.

    Its data: `prompt`; `files` (the workspace, texts by path) and `editable`; `judge`, `cases` or `script`; `module`,
    `function` and `cases` of the hidden cases; `visible`, a file of cases that the agent may run, or None; `reference`, the
    workspace after solution/, None where it needs solution/solve.sh (`solve`) or there is none; `folder`, `place`, `seconds`,
    `memory_mb`.

    Args:
        folder: the task's folder.
        name: the task's id.
        split: where it belongs.
    """
    settings = read_settings(folder / "task.toml")
    if (folder / "steps").exists():
        raise UsageError(f"{folder}: tasks of several steps (steps/) are not supported; bring a World in Python")
    prompt = _read_text(folder / "instruction.md").strip()
    if not prompt or len(prompt) > LIMIT:
        raise UsageError(f"{folder}/instruction.md has {len(prompt)} characters; allowed: 1 to {LIMIT}")
    files, place = _workspace(folder, settings)
    hidden, visible = _cases(folder)
    script = hidden is None
    solve = (folder / "solution" / "solve.sh").is_file()
    for used, place_inside in ((script, "tests"), (solve, "solution")):
        if used:
            _check_readable(folder / place_inside)
    data: dict[str, Any] = {
        "prompt": prompt,
        "files": files,
        "editable": list(settings.editable),
        "judge": "script" if script else "cases",
        "visible": visible,
        "reference": None if solve else _solution(folder, files, settings),
        "solve": solve,
        "folder": str(folder.resolve()),
        "place": place,
        "seconds": settings.seconds or (SCRIPT_SECONDS if script else CASE_SECONDS),
        "memory_mb": settings.memory_mb,
    }
    if hidden is not None:
        data |= {"kind": "program", "module": hidden.module, "function": hidden.function, "cases": hidden.cases}
        data["answer_file"] = _file_of(hidden.module, files)
    return Task(name, data, ("folder", split, *((FORGEABLE,) if script else ())))


def editable(task: Task, path: str) -> bool:
    """Whether a path is the agent's to write."""
    return any(fnmatchcase(path, pattern) for pattern in task.data["editable"])


def modules_of(files: Mapping[str, str]) -> dict[str, str]:
    """The Python modules of a workspace: texts by dotted name."""
    names = {path.removesuffix(".py"): text for path, text in files.items() if path.endswith(".py")}
    packages = {name.removesuffix("/__init__"): text for name, text in names.items() if name.endswith("/__init__")}
    plain = {name: text for name, text in names.items() if not name.endswith("/__init__")}
    return {name.replace("/", "."): text for name, text in {**plain, **packages}.items() if "." not in name}


def _file_of(module: str, files: Mapping[str, str]) -> str:
    package = module.replace(".", "/") + "/__init__.py"
    return package if package in files else module.replace(".", "/") + ".py"


def _read_text(file: Path) -> str:
    if file.is_symlink() or not file.is_file():
        raise UsageError(f"{file} must be a file and no link; {_LAYOUT}")
    if file.stat().st_size > 4 * LONGEST_FILE:
        raise UsageError(f"{file} has more than {LONGEST_FILE} characters; tasks here are made of small texts")
    try:
        text = file.read_text(encoding="utf-8")
    except UnicodeDecodeError as problem:
        raise UsageError(
            f"{file} is not UTF-8 text (byte {problem.start}); tasks here are made of small texts"
        ) from None
    if "\0" in text or len(text) + (not text.endswith("\n")) > LONGEST_FILE:
        raise UsageError(f"{file} has a NUL or more than {LONGEST_FILE} characters; tasks here are made of small texts")
    return text


def _below(folder: Path) -> Iterator[tuple[str, Path]]:
    """Files below a folder by their relative paths, sorted; a link or a special file is refused."""
    if not folder.is_dir():
        return
    for here, folders, names in os.walk(folder):
        folders.sort()
        for name in sorted([*names, *folders]):
            path = Path(here) / name
            if path.is_symlink() or not (path.is_file() or path.is_dir()):
                raise UsageError(f"{path} is a link or no plain file; put a copy in its place")
            if path.is_file():
                yield path.relative_to(folder).as_posix(), path


def _texts(folder: Path, found: Mapping[str, Path], settings: Settings) -> dict[str, str]:
    if len(found) > FILES:
        raise UsageError(f"{folder} has {len(found)} files; at most {FILES} are supported")
    texts: dict[str, str] = {}
    for path, file in found.items():
        fault = path_fault(path) or clash(path, found)
        if fault:
            raise UsageError(f"{file} cannot be a file of a workspace: {fault}; rename it")
        text = _read_text(file)
        texts[path] = text if not text or text.endswith("\n") else text + "\n"
    if sum(map(len, texts.values())) > 2 * LONGEST_FILE:
        raise UsageError(
            f"{folder} has more than {2 * LONGEST_FILE} characters in all; tasks here are made of small texts"
        )
    return texts


def _workspace(folder: Path, settings: Settings) -> tuple[dict[str, str], str]:
    """(files of the workspace, where tests find it)."""
    environment = folder / "environment"
    if not environment.is_dir():
        raise UsageError(f"{environment} does not exist; {_LAYOUT}")
    found = dict(_below(environment))
    found.pop(".dockerignore", None)
    docker = found.pop("Dockerfile", None)
    composed = sorted(path for path in found if Path(path).suffix in (".yaml", ".yml") and "compose" in path)
    if composed:
        raise UsageError(
            f"{environment}/{composed[0]}: several containers are not supported, there is none here; remove it"
        )
    place = PLACE
    if docker is not None:
        image = read_dockerfile(str(docker), _read_text(docker), found)
        found, place = {path: file for path, file in found.items() if path in image.copied}, image.place
    return _texts(environment, found, settings), place


def _solution(folder: Path, files: Mapping[str, str], settings: Settings) -> dict[str, str] | None:
    """The workspace with the files of solution/ in it, None where there are none."""
    found = _texts(folder / "solution", dict(_below(folder / "solution")), settings)
    for path in found:
        if not any(fnmatchcase(path, pattern) for pattern in settings.editable):
            raise UsageError(
                f"{folder}/solution/{path} is not editable; add it to [strop] editable in {folder}/task.toml"
            )
        if clash(path, files):
            raise UsageError(f"{folder}/solution/{path}: {clash(path, files)}; rename it")
    return {**files, **found} if found else None


def _cases(folder: Path) -> tuple[CaseFile | None, dict[str, Any] | None]:
    """(hidden cases, None where tests/test.sh judges; visible cases as data, None where there are none)."""
    tests = folder / "tests"
    hidden = read_cases(tests / "cases.json") if (tests / "cases.json").is_file() else None
    if hidden is None and not (tests / "test.sh").is_file():
        raise UsageError(
            f"{tests} has neither cases.json nor test.sh, so nothing can judge the task; write one of them"
        )
    if (tests / "visible.json").is_file():
        shown = read_cases(tests / "visible.json")
        return hidden, {"module": shown.module, "function": shown.function, "cases": shown.cases}
    if hidden is not None and hidden.visible:
        return hidden, {"module": hidden.module, "function": hidden.function, "cases": hidden.visible}
    return hidden, None


def _check_readable(folder: Path) -> None:
    """Refuse a folder that the sandbox's user could not read: its script would fail for everybody."""
    check_mount("/" + folder.name, str(folder))
    for _, path in _below(folder):
        for part in (path, path.parent):
            wanted = 0o005 if part.is_dir() else 0o004
            if os.geteuid() == 0 and part.stat().st_mode & wanted != wanted:
                raise UsageError(f"{part} is closed to the user that the sandbox runs as; chmod -R o+rX {folder}")
