"""Worlds by name. Invariant: a wrong name or option is told with the nearest known one, before any model is loaded."""

import difflib
import importlib
import inspect
import sys
from collections.abc import Callable, Mapping
from typing import Any, cast

from strop.core.errors import UsageError
from strop.core.world import World
from strop.envs.craft import craft
from strop.envs.folder.world import folder
from strop.envs.guess import guess
from strop.envs.prompts import REWARDS, Reward, prompts
from strop.envs.repair.world import hacked, repair


def jsonl(file: str, reward: str = "exact") -> World:
    """The world of a file of prompts; `reward` is a known name or `module:attribute`."""
    found: Any = REWARDS.get(reward) or attribute(reward, "reward", tuple(REWARDS))
    if not callable(found):
        raise UsageError(f"reward {reward!r} must be a function of (reply, line), not {type(found).__name__}")
    return prompts(file, cast(Reward, found))


WORLDS: dict[str, Callable[..., World]] = {
    "guess": guess,
    "jsonl": jsonl,
    "craft": craft,
    "repair": repair,
    "hacked": hacked,
    "folder": folder,
}


def nearest(word: str, known: tuple[str, ...]) -> str:
    """`; did you mean ...?` for a word that is close to a known one, else the list of known ones."""
    close = difflib.get_close_matches(word, known, n=1)
    return f"did you mean {close[0]!r}?" if close else f"known: {', '.join(known)}"


def attribute(name: str, what: str, known: tuple[str, ...]) -> Any:
    """Import `module:attribute`, with the working directory on the path as `python -m` has it."""
    module, colon, member = name.partition(":")
    if not (colon and module and member):
        raise UsageError(f"{what} {name!r} is unknown; {nearest(name, known)} Or give 'module:attribute' of your own.")
    if "" not in sys.path:
        sys.path.insert(0, "")
    try:
        found = importlib.import_module(module)
    except ModuleNotFoundError as problem:
        raise UsageError(
            f"{what} {name!r}: cannot import {problem.name!r}; run from its folder or install it"
        ) from None
    except Exception as problem:  # the user's module, not ours
        raise UsageError(
            f"{what} {name!r}: importing {module!r} raised {type(problem).__name__}: {problem}"
        ) from problem
    if not hasattr(found, member):
        raise UsageError(f"{what} {name!r}: module {module!r} has no attribute {member!r}")
    return getattr(found, member)


def world(name: str, options: Mapping[str, Any]) -> World:
    """The world of a name (`guess`, `jsonl`) or of `module:attribute` (a `World` or a function that returns one)."""
    made = WORLDS[name] if name in WORLDS else attribute(name, "env", tuple(WORLDS))
    if isinstance(made, World):
        if options:
            raise UsageError(
                f"env {name!r} is a ready World and takes no options; remove [world]: {', '.join(options)}"
            )
        return made
    if not callable(made):
        raise UsageError(f"env {name!r} must be a World or a function that returns one, not {type(made).__name__}")
    parameters = inspect.signature(made).parameters
    for key, value in options.items():
        if key not in parameters:
            raise UsageError(f"world.{key} is no option of env {name!r}; {nearest(key, tuple(parameters))}")
        wanted = parameters[key].annotation
        fits = {int: int, float: (int, float), str: str, bool: bool}.get(wanted)
        if fits and (not isinstance(value, fits) or (isinstance(value, bool) and wanted is not bool)):
            raise UsageError(f"world.{key} is {value!r}; it must be of type {wanted.__name__}")
    missing = [k for k, p in parameters.items() if p.default is p.empty and k not in options]
    if missing:
        raise UsageError(f"env {name!r} needs world.{missing[0]}; set it under [world]")
    built = made(**options)
    if not isinstance(built, World):
        raise UsageError(f"env {name!r} returned {type(built).__name__}; it must return a World")
    return built
