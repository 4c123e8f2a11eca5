"""What of a Dockerfile can be true without a container. Invariant: an instruction that would change what runs here is refused
and never skipped."""

import re
from collections.abc import Collection
from dataclasses import dataclass
from posixpath import join, normpath

from strop.core.errors import UsageError

PLACE = "/app"
"""Where tests find the workspace unless WORKDIR says otherwise."""
ALLOWED = "FROM python:TAG, WORKDIR /NAME, COPY of files to their own names"
IMAGE = re.compile(r"python:[A-Za-z0-9_.-]+")

_PLACE = re.compile(r"/[a-z][a-z0-9_-]*")
_TAKEN = (
    *(
        "/bin",
        "/boot",
        "/dev",
        "/etc",
        "/lib",
        "/lib32",
        "/lib64",
        "/libx32",
        "/logs",
        "/media",
        "/mnt",
        "/nix",
        "/opt",
    ),
    *("/proc", "/root", "/run", "/sandbox", "/sbin", "/solution", "/sys", "/tests", "/tmp", "/usr", "/var"),
)


@dataclass(frozen=True, slots=True)
class Image:
    """Where the workspace stands, and which files of environment/ it holds."""

    place: str
    copied: frozenset[str]


def read_dockerfile(file: str, text: str, paths: Collection[str]) -> Image:
    """What a Dockerfile says of the workspace.

    Args:
        file: its name, for errors.
        text: its text.
        paths: files beside it.

    Raises:
        UsageError: it holds an instruction that would change what runs here.
    """
    place, copied, based = "", set[str](), False
    for number, line in enumerate(text.splitlines(), 1):
        words = line.split()
        if not words or words[0].startswith("#"):
            continue
        match [words[0].upper(), *words[1:]]:
            case ["FROM", image] if IMAGE.fullmatch(image) and not based:
                based = True
            case ["WORKDIR", where] if _PLACE.fullmatch(where) and where not in _TAKEN and not place and not copied:
                place = where
            case ["COPY", *sources, target] if sources and place:
                found = [_copied(source, target, len(sources) > 1, place, paths) for source in sources]
                if not all(found):
                    raise _refusal(file, number, line)
                copied.update(*found)
            case _:
                raise _refusal(file, number, line)
    if not based:
        raise UsageError(f"{file}: it has no FROM; allowed: {ALLOWED}")
    return Image(place or PLACE, frozenset(copied))


def _refusal(file: str, number: int, line: str) -> UsageError:
    return UsageError(
        f"{file}, line {number}: {line.strip()[:80]!r} cannot be done. There is no container here: code runs in a sandbox with "
        f"this machine's /usr and without the network. Allowed: {ALLOWED} (behind WORKDIR). Put the files into environment/ "
        "and use the standard library, or leave the Dockerfile out."
    )


def _copied(source: str, target: str, several: bool, place: str, paths: Collection[str]) -> set[str]:
    """Files that a COPY brings to their own places; empty if it brings none or brings them elsewhere."""
    here = normpath(source)
    into = normpath(join(place, target))
    if here.startswith(("/", "..", "-")):
        return set()
    if here in paths:
        folder = target.endswith("/") or target == "." or several or into == place
        wanted = normpath(join(place, here))
        return {here} if (join(into, here.rsplit("/", 1)[-1]) if folder else into) == wanted else set()
    inside = {path for path in paths if here == "." or path.startswith(here + "/")}
    return inside if into == normpath(join(place, here)) and not several else set()
