"""The bench at which an agent works on several files: list, view, edit, write, test, submit.

Invariant: files are texts in memory and never touch the host's disk; every reply is answered with bounded text; only paths of
the workspace exist here, so tests and solution cannot be named.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from strop.codec.parse import ToolCall, tool_calls
from strop.core.message import Message
from strop.core.sandbox import Bounds, Sandbox, SandboxError
from strop.core.task import Env, Step, Task
from strop.envs.folder.paths import FILES, RESERVED, clash, path_fault
from strop.envs.folder.tasks import CASE_SECONDS, LONGEST_FILE, editable, modules_of
from strop.envs.repair.desk import LIMIT, Edit, edited, read_call, read_text, told
from strop.verify.program import check_cases

REFUSAL = "Reply with list, view FILE [N[-M]], edit FILE N[-M] TEXT, write FILE TEXT, test or submit."

TOOLS = (
    {"name": "list", "parameters": {}},
    {
        "name": "view",
        "parameters": {"file": "string", "first": "integer", "last": "integer"},
        "optional": ["first", "last"],
    },
    {
        "name": "edit",
        "parameters": {"file": "string", "first": "integer", "last": "integer", "text": "string"},
        "optional": ["last"],
    },
    {"name": "write", "parameters": {"file": "string", "text": "string"}},
    {"name": "test", "parameters": {}},
    {"name": "submit", "parameters": {}},
)
"""What chat models may call, in the manner of function schemas."""

_LINES = re.compile(r"([0-9]{1,5})(?:-([0-9]{1,5}))?")
NOTE = 128
"""Characters kept for saying where the rest of a file is."""
_REPLY = re.compile(r"(view|edit|write) (\S+)(?:[ \n](.*))?", re.DOTALL)

Name = Literal["list", "view", "edit", "write", "test", "submit"]


@dataclass(frozen=True, slots=True)
class Action:
    """What to do: `view` takes a file and perhaps lines, `edit` a file and an edit, `write` a file and its new text."""

    name: Name
    file: str = ""
    edit: Edit | None = None
    text: str = ""
    lines: tuple[int, int | None] = (1, None)


def read_reply(reply: str) -> Action | None:
    """The action of a plain reply, None if it is none. Spaces at the end do not count; those before a line of code do.

    Example:
        `read_reply("edit main.py 2     return 3") == Action("edit", "main.py", Edit(2, 2, "    return 3"))`
    """
    word = reply.strip()
    if word == "list" or word == "test" or word == "submit":
        return Action(word)
    found = _REPLY.fullmatch(reply.rstrip())
    if found is None or len(reply) > LIMIT:
        return None
    name, file, rest = found[1], found[2], found[3]
    if name == "view":
        lines = _LINES.fullmatch(rest.strip()) if rest is not None else None
        if rest is None or lines is None:
            return Action("view", file) if rest is None else None
        return Action("view", file, lines=(int(lines[1]), int(lines[2]) if lines[2] else None))
    if rest is None:
        return None
    if name == "write":
        return Action("write", file, None, rest)
    edit = read_text(f"edit {rest}")
    return Action("edit", file, edit) if isinstance(edit, Edit) else None


def read_tool_call(call: ToolCall) -> Action | str:
    """The action of a tool call, or `error: ` and what is wrong with it."""
    if call.invalid is not None:
        return f"error: {call.invalid}"
    match call.name:
        case "list" | "test" | "submit":
            return Action(call.name)
        case "view" | "edit" | "write":
            file = call.arguments.get("file")
        case _:
            return f"error: unknown tool; known: {', '.join(str(tool['name']) for tool in TOOLS)}"
    if not isinstance(file, str):
        return f"error: {call.name} needs file (string)"
    if call.name == "view":
        first, last = call.arguments.get("first", 1), call.arguments.get("last")
        if type(first) is not int or (last is not None and type(last) is not int):
            return "error: view needs file (string); first and last (integers) may be left out"
        return Action("view", file, lines=(first, last))
    if call.name == "edit":
        edit = read_call(call)
        return Action("edit", file, edit) if isinstance(edit, Edit) else str(edit)
    text = call.arguments.get("text")
    if not isinstance(text, str) or len(text) > LIMIT:
        return "error: write needs file (string) and text (string)"
    return Action("write", file, None, text)


def viewed(name: str, text: str, first: int = 1, last: int | None = None) -> str:
    """Lines of a file with their numbers, as many as an answer holds, and how to see the others.

    Args:
        name: the file's.
        text: what is in it.
        first, last: which lines, from 1; None is the last one.
    """
    lines = text.split("\n")[:-1]
    end = len(lines) if last is None else min(last, len(lines))
    if not lines and (first, last) == (1, None):
        return "empty"
    if not 1 <= first <= end:
        return "bad"
    shown = [f"{n} {line}" for n, line in enumerate(lines[first - 1 : end], first)]
    if len(whole := "\n".join(shown)) <= LIMIT:
        return whole
    kept, room = 0, LIMIT - NOTE
    while kept < len(shown) and len(shown[kept]) < room:
        room -= len(shown[kept]) + 1
        kept += 1
    if not kept:
        return f"{shown[0][: LIMIT - NOTE]}\n(line {first} of {len(lines)} is cut)"
    more = first + kept
    return "\n".join(shown[:kept]) + f"\n(up to line {more - 1} of {len(lines)}; view {name} {more} goes on)"


def action_name(message: Message) -> str | None:
    """The name of the first action of a message, None for one that has none."""
    plain = read_reply(message.content)
    if plain is not None:
        return plain.name
    for call in tool_calls(message.content):
        found = read_tool_call(call)
        if isinstance(found, Action):
            return found.name
    return None


class Bench(Env):
    """A workspace.

    Args:
        task: see `tasks.read_task`.
        sandbox: where visible tests run.
        calls: actions are JSON tool calls of chat models, not plain text.
    """

    def __init__(self, task: Task, sandbox: Sandbox, calls: bool = False) -> None:
        self.task, self.sandbox, self.calls = task, sandbox, calls
        self.files: dict[str, str] = dict(task.data["files"])
        self.actions: list[str] = []
        self.submitted = self.meddled = False

    async def start(self) -> Step:
        """The instruction, with the names of the files; for chat models the tools before it."""
        prompt = f"{self.task.data['prompt']}\n\nFiles:\n{self._list()}"
        if not self.calls:
            return Step((Message("user", f"{prompt}\n\n{REFUSAL}"),))
        tools = "\n".join(json.dumps(tool) for tool in TOOLS)
        system = (
            "Work on the files. Call one tool at a time, as <tool_call>{...}</tool_call> with name and arguments; lines count "
            f"from 1, paths are relative:\n{tools}"
        )
        return Step((Message("system", system), Message("user", prompt)))

    async def step(self, message: Message) -> Step:
        """Do what the reply asks for. Everything but `submit` is answered; a reply without an action is refused."""
        if not self.calls:
            action = read_reply(message.content)
            answer = self._refuse() if action is None else await self._do(action)
            return Step(done=True) if self.submitted else Step((Message("user", answer),))
        calls = tool_calls(message.content)
        if not calls:
            return Step((Message("user", self._refuse()),))
        answers: list[Message] = []
        for number, call in enumerate(calls):
            action = read_tool_call(call)
            said = self._refuse(action) if isinstance(action, str) else await self._do(action)
            answers.append(Message("tool", said, tool_call_id=str(number)))
            if self.submitted:
                break
        return Step(tuple(answers), done=self.submitted)

    def artefacts(self) -> Mapping[str, Any]:
        """The files, whether they were submitted, the actions in order, and whether the agent tried to write what is not its
        own (`tests_touched`; the try is refused)."""
        return {
            "files": dict(self.files),
            "submitted": self.submitted,
            "actions": list(self.actions),
            "tests_touched": self.meddled,
        }

    def _refuse(self, said: str = REFUSAL) -> str:
        self.actions.append("unreadable")
        return said

    async def _do(self, action: Action) -> str:
        self.actions.append(action.name)
        match action.name:
            case "list":
                return self._list()
            case "view":
                found = self.files.get(action.file)
                return "bad" if found is None else viewed(action.file, found, *action.lines)
            case "edit" | "write":
                return self._change(action)
            case "test":
                return await self._test()
            case "submit":
                self.submitted = True
                return "submitted"

    def _list(self) -> str:
        return "\n".join(sorted(self.files)) or "none"

    def _change(self, action: Action) -> str:
        path = action.file
        if not self._may_write(path):
            return "bad"
        if action.edit is not None:
            after = edited(self.files[path], action.edit, LONGEST_FILE) if path in self.files else None
        else:
            after = action.text if action.text.endswith("\n") else action.text + "\n"
        if after is None or not _is_plain(after):
            return "bad"
        self.files[path] = after
        return "ok"

    def _may_write(self, path: str) -> bool:
        meddling = path.lower().split("/")[0] in RESERVED or (path in self.files and not editable(self.task, path))
        self.meddled = self.meddled or meddling
        new = path not in self.files
        if meddling or path_fault(path) or not editable(self.task, path):
            return False
        return not new or (len(self.files) < FILES and clash(path, self.files) is None)

    async def _test(self) -> str:
        visible = self.task.data["visible"]
        if visible is None:
            return "no visible tests"
        seconds = min(float(self.task.data["seconds"]), CASE_SECONDS)
        bounds = Bounds(cpu_seconds=seconds, wall_seconds=seconds, memory_mb=self.task.data["memory_mb"])
        name = f"{visible['module']}.{visible['function']}"
        checked = await check_cases(self.sandbox, modules_of(self.files), name, visible["cases"], bounds)
        if checked.ended == "broken":
            raise SandboxError(f"the sandbox broke: {checked.reason}")
        return told(visible["function"], checked)


def _is_plain(text: str) -> bool:
    """Whether a text can be a file: no NUL, no half of a surrogate pair."""
    return "\0" not in text and not any("\ud800" <= letter <= "\udfff" for letter in text)
