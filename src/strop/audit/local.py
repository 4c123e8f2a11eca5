"""Subjects whose code may run in this process: trusted graders and plain objects. Invariant: nothing that the verifier does
with an answer ends the audit; what it raises is an invalid verdict."""

import asyncio
import copy
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from strop.audit.subject import Answer, Item, Place, Subject, read_item, verdict_of
from strop.core.errors import UsageError
from strop.core.task import Verdict


class Local(Subject):
    """Tasks and a function, called here.

    Example:
        `Local("mine", [{"id": "a", "prompt": "2 + 2", "reference": "4"}], lambda task, answer: answer == "4")`
    """

    def __init__(
        self,
        name: str,
        tasks: Sequence[Any],
        judge: Callable[[Mapping[str, Any], Answer], Any],
        source: str | None = None,
        threshold: float | None = None,
    ) -> None:
        self.name, self.judge, self.source, self.threshold = name, judge, source, threshold
        self.items = tuple(read_item(task, index) for index, task in enumerate(tasks))
        check_items(name, self.items)
        self.verifier = Place(getattr(judge, "__name__", "verify"))

    async def verify(self, item: Item, answer: Answer, changes: Mapping[str, Any] | None = None) -> Verdict:
        """Call the function with a copy of the answer; see `Subject.verify`."""
        task = {**item.data, **changes} if changes else item.data
        try:
            async with asyncio.timeout(self.seconds):
                given = self.judge(task, copy.deepcopy(answer))
                return verdict_of(await given if inspect.isawaitable(given) else given)
        except TimeoutError:
            return Verdict(None, invalid=f"slow: no verdict within {self.seconds:g} s")
        except (Exception, SystemExit) as problem:
            return Verdict(None, invalid=f"raised {type(problem).__name__}: {problem}")


def check_items(name: str, items: Sequence[Item]) -> None:
    """Refuse a subject without tasks, and ids that stand twice (findings and replays go by id)."""
    if not items:
        raise UsageError(f"{name} has no tasks; `tasks` must hold at least one mapping with `id` and `prompt`")
    seen: set[str] = set()
    for item in items:
        if item.id in seen:
            raise UsageError(f"{name}: the task id {item.id!r} stands twice; ids must be distinct")
        seen.add(item.id)
