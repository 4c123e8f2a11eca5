"""Names of files in a workspace. Invariant: a path that passes is plain ASCII below the workspace, on every file system the
same file or none, and never one of the task's tests or its solution."""

import re
from collections.abc import Iterable, Iterator

LONGEST = 60
"""Characters of a path."""
FILES = 64
"""Files of a workspace; all their names fit into one answer."""
RESERVED = ("tests", "solution", "logs", "dockerfile")
"""First parts that a workspace's path may not have, in any case: they belong to the task."""

_PART = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")


def path_fault(path: str) -> str | None:
    """Why this is no path of a workspace, None if it is one.

    Example:
        `path_fault("pkg/main.py") is None and path_fault("../main.py") is not None`
    """
    if len(path) > LONGEST:
        return f"it is longer than {LONGEST} characters"
    parts = path.split("/")
    if not all(_PART.fullmatch(part) for part in parts):
        return "it must be names of letters, digits, `_`, `-` and `.` joined by `/`, none of them hidden"
    if parts[0].lower() in RESERVED:
        return f"{', '.join(RESERVED)} are the task's own"
    return None


def clash(path: str, files: Iterable[str]) -> str | None:
    """Why a path cannot stand beside these files, None if it can: the same name in another case, or a file and a folder."""
    for other in files:
        if other == path:
            continue
        for mine in _prefixes(path):
            for theirs in _prefixes(other):
                if mine.lower() == theirs.lower() and (mine != theirs or path == mine or other == theirs):
                    return f"it is in the way of {other}"
    return None


def _prefixes(path: str) -> Iterator[str]:
    parts = path.split("/")
    return ("/".join(parts[:n]) for n in range(1, len(parts) + 1))
