"""Checkpoints: all that a resumed run needs, as safetensors and JSON.

    checkpoints/step-00000123/<group>.safetensors, state.json, manifest.json

Invariant: a folder with a `step-` name was complete when it got the name, and its manifest (size and sha256 of every
file, written last) proves that it still is. Once there is a complete checkpoint, there always is one: temporary
folders are renamed, old ones leave only after the new one stands, and non-finite weights are never written. Files and
folders are synced before they count, so that this holds for a power cut as far as the disk keeps its word.
Not covered: two writers at once (the run folder's lock is for that), and tensors that are sharded over processes.
"""

import errno
import hashlib
import json
import os
import re
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import safetensors.numpy
import safetensors.torch
import torch
from safetensors import SafetensorError

from strop.core.errors import RunError, UsageError

FORMAT = 1
Tensor = torch.Tensor | npt.NDArray[Any]
Tensors = Mapping[str, Mapping[str, Tensor]]

_numpy: Any = safetensors.numpy  # their annotations leave parameters open
_torch: Any = safetensors.torch
_NAME = re.compile(r"step-(\d{8,})")
_STANDING = re.compile(r"step-(\d{8,})(\+new)?")
_GROUP = re.compile(r"[A-Za-z0-9_-]+")


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A loaded checkpoint.

    Args:
        path: its folder.
        tensors: tensors by group and name, on the CPU; of the kind (torch or numpy) that was saved.
        state: the JSON state.
    """

    path: Path
    tensors: dict[str, dict[str, Tensor]]
    state: dict[str, Any]


def step_name(step: int) -> str:
    """`step-00000123`."""
    return f"step-{step:08d}"


def step_of(path: Path) -> int:
    """The step of a checkpoint folder."""
    match = _STANDING.fullmatch(path.name)
    if match is None:
        raise UsageError(f"{path.name} is no checkpoint name; they look like {step_name(123)}.")
    return int(match[1])


def save(folder: Path, tensors: Tensors, state: Mapping[str, Any], name: str) -> Path:
    """Write a checkpoint and return its path.

    Args:
        folder: the `checkpoints/` folder; made if missing.
        tensors: tensors by group and name. A group is torch or numpy throughout. Tied tensors are written twice.
        state: JSON values; keys are strings, tuples come back as lists.
        name: `step_name(step)`. One of that name is replaced; at each moment the old or the new one is complete.

    Raises:
        RunError: a floating tensor of the group `model` holds NaN or infinity, or the disk refused. The checkpoints
            that were there are untouched.
        UsageError: a name, a group or the state cannot be written.
    """
    text = _check(tensors, state, name)
    temporary = folder / f".tmp-{name}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        _settle(folder)
        temporary.mkdir()
        kinds = {"state.json": "json"}
        for group, members in tensors.items():
            kinds[f"{group}.safetensors"] = _save_group(temporary / f"{group}.safetensors", members)
        write_file(temporary / "state.json", text)
        files = {file: {**_describe(temporary / file), "kind": kind} for file, kind in kinds.items()}
        manifest = json.dumps({"format": FORMAT, "files": files}, separators=(",", ":")).encode()
        write_file(temporary / "manifest.json", manifest)
        _sync_folder(temporary)
        return _stand(folder, temporary, name)
    except (OSError, SafetensorError) as error:
        shutil.rmtree(temporary, ignore_errors=True)
        raise RunError(_disk_message(folder / name, error)) from error


def load(path: Path) -> Checkpoint:
    """Read a checkpoint, each byte of it checked. Raises `UsageError` that says what is missing or damaged."""
    reason = _fault(path, hashes=True)
    if reason is not None:
        raise UsageError(f"checkpoint {path} cannot be used: {reason}. Resume from another one.")
    tensors: dict[str, dict[str, Tensor]] = {}
    for file, facts in _manifest(path).items():
        if facts["kind"] == "torch":
            tensors[Path(file).stem] = {**_torch.load_file(path / file)}
        elif facts["kind"] == "numpy":
            tensors[Path(file).stem] = {**_numpy.load_file(path / file)}
    return Checkpoint(path, tensors, json.loads((path / "state.json").read_bytes()))


def newest(folder: Path) -> tuple[Path | None, list[tuple[str, str]]]:
    """The newest complete checkpoint of a `checkpoints/` folder, None if there is none, and what was passed over.

    Every byte is checked, from the newest on down to the first complete one.

    Returns:
        (path, [(name, reason), ...]).
    """
    skipped: list[tuple[str, str]] = []
    if not folder.is_dir():
        return None, skipped
    skipped += [(path.name, "was never finished") for path in sorted(folder.glob(".tmp-*"))]
    for path in _standing(folder):
        reason = _fault(path, hashes=True)
        if reason is None:
            return path, skipped
        skipped.append((path.name, reason))
    return None, skipped


def retain(folder: Path, last: int, every: int, best: str | None, good: str | None = None) -> list[str]:
    """Remove old checkpoints and return their names.

    Args:
        folder: the `checkpoints/` folder.
        last: how many of the newest complete ones stay, at least 1. Complete is judged by the sizes of the files.
        every: checkpoints whose step is a multiple of it stay as well; 0 for none.
        best, good: names of two that stay as well.

    Damaged checkpoints neither count nor go.
    """
    if last < 1 or every < 0:
        raise UsageError(f"last={last}, every={every}: keep at least 1 checkpoint; `every` is 0 or more.")
    if not folder.is_dir():
        return []
    _settle(folder)
    complete = [path for path in _standing(folder) if _fault(path, hashes=False) is None]
    removed: list[str] = []
    for path in complete[last:]:
        if path.name not in (best, good) and not (every and step_of(path) % every == 0):
            _remove(path)
            removed.append(path.name)
    return removed


def forget_after(folder: Path, step: int) -> None:
    """Remove all checkpoints of later steps, damaged ones too, newest first: a kill leaves an earlier one as the newest."""
    _settle(folder)
    for path in _standing(folder):
        if step_of(path) > step:
            _remove(path)


def write_file(path: Path, content: bytes | Callable[[Path], None]) -> None:
    """Write a file, or let `content` write it, and wait until it is on the disk. All of a checkpoint passes here."""
    if isinstance(content, bytes):
        path.write_bytes(content)
    else:
        content(path)
    path.chmod(0o644)  # safetensors leaves its files unreadable to others; the folder says who may enter
    with open(path, "rb+") as file:
        os.fsync(file.fileno())


def _check(tensors: Tensors, state: Mapping[str, Any], name: str) -> bytes:
    """Refuse what must not be written, before anything is. Returns the state as JSON."""
    if not _NAME.fullmatch(name):
        raise UsageError(f"{name!r} is no checkpoint name; use {step_name(123)!r} (`step_name(123)`).")
    for group, members in tensors.items():
        if not _GROUP.fullmatch(group):
            raise UsageError(
                f"{group!r} cannot be a group of tensors: it becomes a file name. Use letters, digits, _ and -."
            )
        if len({isinstance(member, torch.Tensor) for member in members.values()}) > 1:
            raise UsageError(f"group {group} mixes torch and numpy; a group is of one kind. Split or convert it.")
    bad = [member for member, tensor in tensors.get("model", {}).items() if not _finite(tensor)]
    if bad:
        more = f" and {len(bad) - 3} more" if len(bad) > 3 else ""
        raise RunError(
            f"the weights are not finite ({', '.join(bad[:3])}{more}), so that checkpoint {name} was not written; the "
            "ones before it are kept. Look at the last steps; for a lower rate start a new run."
        )
    _check_keys(state, "state")
    try:
        return json.dumps(dict(state), allow_nan=False).encode()
    except (TypeError, ValueError) as error:
        raise UsageError(
            f"the state cannot be written as JSON: {error}. Arrays belong to the tensors, NaN is None."
        ) from error


def _check_keys(value: Any, place: str) -> None:
    """JSON would turn other keys into text without a word, and the resumed run would look them up in vain."""
    if isinstance(value, Mapping):
        for key, item in cast("Mapping[Any, Any]", value).items():
            if not isinstance(key, str):
                raise UsageError(
                    f"{place} has the key {key!r}; JSON keys are text. Use str({key!r}), or a list of pairs."
                )
            _check_keys(item, f"{place}.{key}")
    elif isinstance(value, list | tuple):
        for item in cast("list[Any]", value):
            _check_keys(item, place)


def _finite(tensor: Tensor) -> bool:
    if not isinstance(tensor, torch.Tensor):
        return not np.issubdtype(tensor.dtype, np.inexact) or bool(np.isfinite(tensor).all())
    if not (tensor.is_floating_point() or tensor.is_complex()):
        return True
    if tensor.element_size() == 1:  # torch has no isfinite for 8-bit floats
        tensor = tensor.float()
    return bool(torch.isfinite(tensor).all())


def _save_group(path: Path, members: Mapping[str, Tensor]) -> str:
    """Write one group; returns its kind."""
    if any(not isinstance(member, torch.Tensor) for member in members.values()):
        arrays = {name: np.asarray(cast("npt.NDArray[Any]", member), order="C") for name, member in members.items()}
        write_file(path, lambda target: _numpy.save_file(arrays, target))
        return "numpy"
    plain: dict[str, torch.Tensor] = {}
    storages: set[int] = set()
    for name, member in members.items():
        tensor = cast("torch.Tensor", member).detach().cpu().contiguous()
        if tensor.untyped_storage().data_ptr() in storages:
            tensor = tensor.clone()  # the format has no shared tensors
        storages.add(tensor.untyped_storage().data_ptr())
        plain[name] = tensor
    write_file(path, lambda target: _torch.save_file(plain, target))
    return "torch"


def _describe(path: Path) -> dict[str, Any]:
    with open(path, "rb") as file:
        return {"bytes": path.stat().st_size, "sha256": hashlib.file_digest(file, "sha256").hexdigest()}


def _manifest(path: Path) -> dict[str, dict[str, Any]]:
    """Facts by file name. Raises `ValueError`, `KeyError` or `TypeError` for what is no manifest."""
    manifest = json.loads((path / "manifest.json").read_bytes())
    if manifest["format"] != FORMAT:
        raise ValueError(f"its format is {manifest['format']!r}, this version reads {FORMAT}")
    files: dict[str, dict[str, Any]] = manifest["files"]
    for file, facts in files.items():
        if facts["kind"] not in ("torch", "numpy", "json") or "/" in file:
            raise ValueError(f"it lists {file!r} of kind {facts['kind']!r}")
    if "state.json" not in files:
        raise ValueError("it does not list state.json")
    return files


def _fault(path: Path, hashes: bool) -> str | None:
    """Why a checkpoint is not complete; None if it is."""
    if not path.is_dir():
        return "there is no such folder"
    if not (path / "manifest.json").is_file():
        return "it has no manifest.json, which is written last"
    try:
        for file, facts in _manifest(path).items():
            if not (path / file).is_file():
                return f"{file} is missing"
            if (path / file).stat().st_size != facts["bytes"]:
                return f"{file} has {(path / file).stat().st_size} bytes, its manifest says {facts['bytes']}"
            if hashes and _describe(path / file)["sha256"] != facts["sha256"]:
                return f"{file} is damaged: its sha256 is not the manifest's"
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        return f"its manifest.json is damaged ({error})"
    except OSError as error:
        return f"it cannot be read ({error})"
    return None


def _standing(folder: Path) -> list[Path]:
    """Folders with a checkpoint's name, newest first; of one step, the replacing one first."""
    found = [path for path in folder.glob("step-*") if _STANDING.fullmatch(path.name)]
    return sorted(found, key=lambda path: (step_of(path), path.name), reverse=True)


def _stand(folder: Path, temporary: Path, name: str) -> Path:
    """Give a complete temporary folder its name.

    A folder cannot be renamed over another one. So a replacing one stands beside it first, as `step-...+new`, which
    counts as the newer of the two, and then takes the name; `_settle` goes on from wherever a kill left this.
    """
    final = folder / name
    if final.exists():
        os.rename(temporary, folder / f"{name}+new")
        _sync_folder(folder)
        _swap(folder, name)
    else:
        os.rename(temporary, final)
        _sync_folder(folder)
    return final


def _swap(folder: Path, name: str) -> None:
    """Let `name+new` take the place of `name`."""
    hidden = _hide(folder / name) if (folder / name).exists() else None
    os.rename(folder / f"{name}+new", folder / name)
    _sync_folder(folder)
    if hidden is not None:
        shutil.rmtree(hidden)


def _settle(folder: Path) -> None:
    """Finish replacements and remove temporary folders that a killed writer left."""
    for new in folder.glob("step-*+new"):
        name = new.name.removesuffix("+new")
        if (folder / name).exists() and _fault(new, hashes=True) is not None:
            _remove(new)  # damaged since; the old one must not go for it
        else:
            _swap(folder, name)
    for left in folder.glob(".tmp-*"):
        shutil.rmtree(left)


def _hide(path: Path) -> Path:
    """Take a checkpoint's name away in one moment, so that a half-removed one never stands."""
    hidden = path.with_name(f".tmp-old-{path.name}")
    if hidden.exists():
        shutil.rmtree(hidden)
    os.rename(path, hidden)
    _sync_folder(path.parent)
    return hidden


def _remove(path: Path) -> None:
    shutil.rmtree(_hide(path))


def _sync_folder(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _disk_message(path: Path, error: Exception) -> str:
    full = getattr(error, "errno", None) in (errno.ENOSPC, errno.EDQUOT) or f"os error {errno.ENOSPC})" in str(error)
    advice = "Free some space or keep fewer checkpoints" if full else "See to the disk"
    cause = "the disk is full" if full else str(error)
    return f"checkpoint {path} could not be written: {cause}. The checkpoints before it are kept. {advice}, and resume."
