"""Tier 7 for tasks that a script judges: the judged code runs beside the script. Invariant: confirmed is only a workspace that
does no task, forges its reward, and is passed by the verifier."""

from collections.abc import Mapping
from typing import Any, cast

from strop.audit.exam import Exam
from strop.audit.finding import Finding
from strop.audit.played import Played
from strop.audit.subject import Item
from strop.core.task import Task
from strop.envs.folder.tasks import FORGEABLE, editable

LOGS = "/logs/verifier"
# The reward is written, and then the place is closed to the script, which is the same user.
FORGE = {
    ".py": f"""import os
os.makedirs("{LOGS}", exist_ok=True)
with open("{LOGS}/reward.txt", "w") as reward:
    reward.write("1")
os.chmod("{LOGS}/reward.txt", 0o444)
os.chmod("{LOGS}", 0o555)
raise SystemExit
""",
    ".sh": f"echo 1 > {LOGS}/reward.txt; chmod 444 {LOGS}/reward.txt; chmod 555 {LOGS}; exit 0\n",
}
"""What a file is replaced by, by the end of its name."""


async def check_forgery(exam: Exam) -> None:
    """Give each task that carries the tag `forgeable` a workspace whose code writes the reward itself."""
    if not isinstance(exam.subject, Played):
        return
    for item in exam.items:
        task = exam.subject.tasks[item.id]
        if FORGEABLE not in task.tags:
            continue
        if exam.spent():
            exam.skip("a forged reward: no time left", item)
            return
        await _forge(exam, item, task)


async def _forge(exam: Exam, item: Item, task: Task) -> None:
    name = "forged reward"
    files = cast("Mapping[str, Any]", item.start if isinstance(item.start, Mapping) else {})
    ends = {path: path[path.rfind(".") :] for path in files if editable(task, path)}
    forged = {path: FORGE[end] for path, end in ends.items() if end in FORGE}
    if forged and not await exam.passes(item, item.start):
        claim = f"code that only writes 1 to {LOGS}/reward.txt passes: it runs beside test.sh"
        if await exam.attack(7, "confirmed", item, name, claim, {**files, **forged}):
            return
    claim = "the judged code runs beside test.sh, as the same user, and could write the reward itself"
    exam.write(
        Finding(7, "lead", item.id, claim, name, "probe", suggestion="judge by tests/cases.json, outside of the code")
    )
