"""What is audited: tasks and a verifier behind one small protocol. Invariant: a subject never says whether an answer is right,
it only hands answers to the verifier."""

import ast
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, cast

from strop.core.errors import UsageError
from strop.core.task import Verdict

Answer = Any
"""A JSON value: text; a script of replies (list of texts) for a world of several turns; for programs the text of the file
or a mapping of paths to texts; for tools a list of calls or {"calls": [...], "text": ...}."""
Sort = Literal["text", "program", "tools", "turns"]
SORTS: tuple[Sort, ...] = ("text", "program", "tools", "turns")


@dataclass(frozen=True, slots=True)
class Item:
    """A task as the audit sees it.

    Args:
        id, prompt: as the user gave them.
        sort: what kind of answer it takes.
        reference: a known-good answer, None where there is none.
        negatives, equivalents: answers that must fail, and that must pass, declared by the user.
        start: the untouched start of a program, in the form of the reference.
        data: the whole task.
        declared: the reference was called one; not so for an `answer` that may stand in another form.
        behaviour: the task declares that only the program's behaviour counts.
    """

    id: str
    prompt: str
    sort: Sort
    reference: Answer = None
    negatives: tuple[Answer, ...] = ()
    equivalents: tuple[Answer, ...] = ()
    start: Answer = None
    data: Mapping[str, Any] = field(default_factory=dict[str, Any])
    declared: bool = True
    behaviour: bool = False

    def program(self, answer: Answer) -> str | None:
        """The text of the program in an answer: the text itself, or that of the answer's file."""
        if isinstance(answer, str):
            return answer
        if isinstance(answer, Mapping):
            found = cast(Mapping[str, Any], answer).get(self.file)
            return found if isinstance(found, str) else None
        return None

    def with_program(self, text: str) -> Answer:
        """The answer whose program is this text, in the form of the reference."""
        if isinstance(self.reference, Mapping):
            return {**cast(Mapping[str, Any], self.reference), self.file: text}
        return text

    @property
    def file(self) -> str:
        """Path of the file that the program stands in."""
        named = self.data.get("answer_file")
        if isinstance(named, str):
            return named
        paths: list[str] = (
            sorted(cast(Mapping[str, Any], self.reference)) if isinstance(self.reference, Mapping) else []
        )
        return next((p for p in paths if p.endswith(".py") and not is_test(p)), paths[0] if paths else "main.py")


def is_test(path: str) -> bool:
    """Whether a path looks like that of a test or of a test runner's configuration."""
    name = path.rsplit("/", 1)[-1]
    return name.startswith("test_") or name.endswith("_test.py") or name == "conftest.py" or path.startswith("tests/")


@dataclass(frozen=True, slots=True)
class Place:
    """A function in a text: its name, its first line (0: unknown), and the class of the object that it was taken from."""

    name: str = "verify"
    line: int = 0
    owner: str = ""


class Subject:
    """Tasks and a verifier. Subclasses give `verify`; the rest has defaults that say "there is none"."""

    name: str = ""
    options: Mapping[str, Any] = {}
    items: Sequence[Item] = ()
    source: str | None = None
    """Text of the verifier's module, where it is known; tier 1 reads it."""
    verifier: Place = Place()
    """Where the verifier stands in `source`."""
    threshold: float | None = None
    """Score from which an answer counts as passed; None: that of the reference, or 1."""
    facts: Mapping[str, Any] = {}
    """What the subject declares of where it runs: `network`, `writable`, `environment`."""
    seconds: float = 10.0
    """Longest time that one verdict may take."""

    async def verify(self, item: Item, answer: Answer, changes: Mapping[str, Any] | None = None) -> Verdict:
        """Judge an answer. What goes wrong is an invalid verdict whose text begins with `raised` or `slow` or `died`.

        Args:
            item: the task.
            answer: a JSON value.
            changes: values of the task to replace before judging; refused by subjects that cannot.
        """
        raise NotImplementedError

    async def again(self) -> "Subject | None":
        """The same subject in a fresh process; None where that cannot be had."""
        return None

    async def demonstrations(self, item: Item, kind: str, count: int) -> Sequence[Answer]:
        """Scripts of a player: `reference` (the world's own) or `random`; empty where there is none."""
        return ()

    async def renew(self) -> None:
        """Forget what answers may have done to the verifier's process, where it has one of its own."""

    async def close(self) -> None:
        """Free what the subject holds."""


def read_item(value: Any, index: int) -> Item:
    """An item of a user's task: a mapping, or a `Task` (its `data` with its `id`).

    Raises:
        UsageError: it is neither, or a key has a value that cannot be used.
    """
    if not isinstance(value, Mapping) and hasattr(value, "id") and isinstance(getattr(value, "data", None), Mapping):
        value = {"id": value.id, **value.data}
    if not isinstance(value, Mapping):
        raise UsageError(f"task {index} is {type(value).__name__}; each task must be a mapping with `id` and `prompt`")
    data: dict[str, Any] = {str(k): v for k, v in cast(Mapping[Any, Any], value).items()}
    reference = data.get("reference")
    declared = reference is not None
    sort = data.get("kind")
    if sort is not None and sort not in SORTS:
        raise UsageError(f"task {data.get('id', index)!r} has kind {sort!r}; known: {', '.join(SORTS)}")
    return Item(
        str(data.get("id", f"task-{index}")),
        prompt_text(data.get("prompt", "")),
        sort or guess_sort(reference),
        reference,
        _answers(data, "negatives"),
        _answers(data, "equivalents"),
        _start(data, reference),
        data,
        declared,
        sort == "program" or bool(data.get("behaviour")),
    )


def _answers(data: Mapping[str, Any], key: str) -> tuple[Answer, ...]:
    found = data.get(key) or ()
    if isinstance(found, str) or not isinstance(found, Sequence):
        raise UsageError(f"task {data.get('id')!r}: {key} must be a list of answers, not {type(found).__name__}")
    return tuple(cast(Sequence[Any], found))


def _start(data: Mapping[str, Any], reference: Answer) -> Answer:
    if "start" in data:
        return data["start"]
    files = data.get("files")
    if not isinstance(files, Mapping):
        return None
    start = dict(cast(Mapping[str, Any], files))
    return start if isinstance(reference, Mapping) else start.get(str(data.get("answer_file")))


def prompt_text(prompt: Any) -> str:
    """The text of a prompt: itself, or the contents of its messages."""
    if isinstance(prompt, str):
        return prompt
    if isinstance(prompt, Sequence):
        parts = cast(Sequence[Any], prompt)
        return "\n".join(str(cast(Mapping[str, Any], m).get("content", "")) for m in parts if isinstance(m, Mapping))
    return str(prompt)


def guess_sort(reference: Answer) -> Sort:
    """What a reference looks like: code that defines a function is a program, a list of calls is tools, else text."""
    if isinstance(reference, Mapping):
        return "tools" if "calls" in reference else "program"
    if isinstance(reference, str):
        return "program" if defines(reference) else "text"
    if isinstance(reference, Sequence) and reference:
        return "tools" if all(isinstance(part, Mapping) for part in cast(Sequence[Any], reference)) else "turns"
    return "text"


def defines(text: str) -> tuple[str, ...]:
    """Names of the functions at the top of a program; empty for what is no program."""
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return ()
    return tuple(node.name for node in tree.body if isinstance(node, ast.FunctionDef))


def verdict_of(given: Any) -> Verdict:
    """The verdict in what a user's verifier returned: a number, a truth value, or a `Verdict`; else an invalid one."""
    if isinstance(given, Verdict):
        if given.score is not None and not math.isfinite(given.score):
            return Verdict(None, invalid=f"raised: the score is {given.score}, which is no number")
        return given
    if isinstance(given, bool | int | float):
        number = float(given)
        if math.isfinite(number):
            return Verdict(number)
        return Verdict(None, invalid=f"raised: the score is {number}, which is no number")
    return Verdict(None, invalid=f"raised: the verifier returned {type(given).__name__}, not a number or a Verdict")
