"""The desk at which an agent repairs a file: view, edit, test, submit. Invariant: every reply is answered, with bounded text
that depends on the reply and the file only; hidden cases are not here, and no text of the agent runs outside the sandbox."""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from strop.codec.parse import ToolCall, tool_calls
from strop.core.message import Message
from strop.core.sandbox import Bounds, Sandbox
from strop.core.task import Env, Step, Task
from strop.verify.program import Checked, check_cases

REFUSAL = "Reply with view, edit N LINE, test or submit."
LIMIT = 4000
"""Characters of a file, of an edit and of an answer; what is longer is cut or refused."""
BOUNDS = Bounds(cpu_seconds=1.0, wall_seconds=3.0)

TOOLS = (
    {"name": "view", "parameters": {}},
    {"name": "edit", "parameters": {"first": "integer", "last": "integer", "text": "string"}, "optional": ["last"]},
    {"name": "test", "parameters": {}},
    {"name": "submit", "parameters": {}},
)
"""What chat models may call, in the manner of function schemas."""

_EDIT = re.compile(r"edit ([0-9]{1,4})(?:-([0-9]{1,4}))? (.*)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Edit:
    """Put `text` in the place of lines `first` to `last`, counted from 1."""

    first: int
    last: int
    text: str


Action = Edit | str
"""An edit, or `view`, `test` or `submit`."""


def read_text(reply: str) -> Action | None:
    """The action of a plain reply, None if it is none. Spaces at the end do not count; those before a line of code do.

    Example:
        `read_text("edit 2     return 3") == Edit(2, 2, "    return 3")`
    """
    word = reply.strip()
    if word in ("view", "test", "submit"):
        return word
    found = _EDIT.fullmatch(reply.rstrip())
    if found is None or len(reply) > LIMIT:
        return None
    first = int(found[1])
    return Edit(first, int(found[2] or first), found[3])


def read_call(call: ToolCall) -> Action | str:
    """The action of a tool call, or `error: ` and what is wrong with it."""
    names = [str(tool["name"]) for tool in TOOLS]
    if call.invalid is not None:
        return f"error: {call.invalid}"
    if call.name not in names:
        return f"error: unknown tool; known: {', '.join(names)}"
    if call.name != "edit":
        return call.name
    first, text = call.arguments.get("first"), call.arguments.get("text")
    last = call.arguments.get("last", first)
    if type(first) is not int or type(last) is not int or not isinstance(text, str) or len(text) > LIMIT:
        return "error: edit needs first (integer) and text (string); last (integer) may be left out"
    return Edit(first, last, text)


def edited(file: str, edit: Edit, most: int = LIMIT) -> str | None:
    """The file after an edit; None if its lines do not exist or the file would have more than `most` characters."""
    lines = file.split("\n")[:-1]
    if not 1 <= edit.first <= edit.last <= len(lines):
        return None
    after = "\n".join([*lines[: edit.first - 1], edit.text, *lines[edit.last :]]) + "\n"
    return after if len(after) <= most else None


def numbered(file: str) -> str:
    """The file with line numbers."""
    return "\n".join(f"{n} {line}" for n, line in enumerate(file.split("\n")[:-1], 1))[:LIMIT]


def told(function: str, checked: Checked) -> str:
    """What visible tests say: `pass`, or the first failure as `fail f(2) got 3 want 2`."""
    for case in checked.cases:
        if not case.passed:
            args = ", ".join(map(repr, case.args))
            return f"fail {function}({args}) got {case.got} want {case.want}"[:400]
    return "pass"


class Desk(Env):
    """One file under repair.

    Args:
        task: see `tasks.task_of`.
        sandbox: where visible tests run.
        calls: actions are JSON tool calls of chat models, not plain text.
    """

    def __init__(self, task: Task, sandbox: Sandbox, calls: bool = False) -> None:
        self.task, self.sandbox, self.calls = task, sandbox, calls
        self.file: str = task.data["start"]
        self.actions: list[str] = []
        self.submitted = False

    async def start(self) -> Step:
        """The statement; for chat models the tools before it."""
        statement = Message("user", self.task.data["statement"])
        if not self.calls:
            return Step((statement,))
        tools = "\n".join(json.dumps(tool) for tool in TOOLS)
        form = "<tool_call>{...}</tool_call> with name and arguments"
        system = f"Repair the file. Call one tool at a time, as {form}:\n{tools}"
        return Step((Message("system", system), statement))

    async def step(self, message: Message) -> Step:
        """Do what the reply asks for. Everything but `submit` is answered; a reply without an action is refused."""
        if not self.calls:
            action = read_text(message.content)
            answer = await self._do(action) if action is not None else self._refuse()
            return Step(done=True) if self.submitted else Step((Message("user", answer),))
        calls = tool_calls(message.content)
        if not calls:
            return Step((Message("user", self._refuse()),))
        answers = [Message("tool", await self._call(call), tool_call_id=str(n)) for n, call in enumerate(calls)]
        return Step(tuple(answers), done=self.submitted)

    def artefacts(self) -> Mapping[str, Any]:
        """The file, whether it was submitted, the actions in order, and whether tests could be touched (there are none)."""
        return {
            "files": {"main.py": self.file},
            "submitted": self.submitted,
            "actions": list(self.actions),
            "tests_touched": False,
        }

    def _refuse(self) -> str:
        self.actions.append("unreadable")
        return REFUSAL

    async def _call(self, call: ToolCall) -> str:
        action = read_call(call)
        if isinstance(action, str) and action.startswith("error"):
            self.actions.append("unreadable")
            return action
        return await self._do(action)

    async def _do(self, action: Action) -> str:
        self.actions.append("edit" if isinstance(action, Edit) else action)
        if isinstance(action, Edit):
            after = edited(self.file, action)
            self.file = self.file if after is None else after
            return "ok" if after is not None else "bad"
        if action == "submit":
            self.submitted = True
            return "submitted"
        if action == "view":
            return numbered(self.file)
        cases = cast("Sequence[Any]", self.task.data["visible"])
        function = str(self.task.data["function"])
        checked = await check_cases(self.sandbox, {"main": self.file}, f"main.{function}", cases, BOUNDS)
        return told(function, checked)
