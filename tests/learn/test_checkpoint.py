"""Checkpoints: killed at any write, full disks, damaged files; a complete checkpoint is always found.

Run as a program (`python test_checkpoint.py SCENARIO FOLDER`), this file is the process that gets killed: for n = 1, 2,
... it forks a child that kills itself with SIGKILL at its n-th write, fsync, rename or removal, until one gets through.
"""

import errno
import itertools
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors import SafetensorError

from strop.core.errors import RunError, UsageError
from strop.learn import checkpoint
from strop.learn.checkpoint import load, newest, retain, save, step_name


def contents(value: float) -> dict[str, dict[str, Any]]:
    return {
        "model": {"w": torch.full((3, 2), value, dtype=torch.bfloat16), "b": torch.arange(4)},
        "optimizer": {"w.exp_avg": torch.full((3, 2), value / 3)},
        "buffers": {"order": np.arange(5, dtype=np.int32)},
    }


def put(folder: Path, step: int, value: float) -> Path:
    return save(folder, contents(value), {"value": value}, step_name(step))


def found(folder: Path) -> tuple[int, float] | None:
    """(step, contents) of the newest complete checkpoint, read whole."""
    path, _ = newest(folder)
    if path is None:
        return None
    read = load(path)
    value = read.state["value"]
    for group, members in contents(value).items():
        for name, member in members.items():
            assert np.array_equal(np.asarray(read.tensors[group][name].tolist()), np.asarray(member.tolist()))
    return checkpoint.step_of(path), value


# --- the process that gets killed


def half_replaced(folder: Path) -> None:
    """A writer of step 2 was killed between naming the new one and taking the old one's name away."""
    put(folder, 2, 20.0)
    put(folder.with_suffix(".other"), 2, 22.0)
    os.rename(folder.with_suffix(".other") / step_name(2), folder / f"{step_name(2)}+new")
    (folder / ".tmp-step-00000002").mkdir()


def half_hidden(folder: Path) -> None:
    """... and between that and giving the name to the new one."""
    half_replaced(folder)
    os.rename(folder / step_name(2), folder / f".tmp-old-{step_name(2)}")


def naive_stand(folder: Path, temporary: Path, name: str) -> Path:
    """The fault: the good copy goes first."""
    if (folder / name).exists():
        shutil.rmtree(folder / name)
    os.rename(temporary, folder / name)
    return folder / name


def naive(folder: Path) -> None:
    checkpoint._stand = naive_stand
    put(folder, 2, 21.0)


def save_and_retain(folder: Path) -> None:
    put(folder, 4, 4.0)
    retain(folder, last=1, every=0, best=None)


SCENARIOS: dict[str, tuple[Callable[[Path], Any], Callable[[Path], Any], set[Any]]] = {
    # what stands before, what is killed, what may be found afterwards
    "first": (lambda folder: None, lambda folder: put(folder, 1, 1.0), {None, (1, 1.0)}),
    "next": (lambda folder: put(folder, 1, 1.0), lambda folder: put(folder, 2, 2.0), {(1, 1.0), (2, 2.0)}),
    "again": (lambda folder: put(folder, 2, 20.0), lambda folder: put(folder, 2, 21.0), {(2, 20.0), (2, 21.0)}),
    "half_replaced": (half_replaced, lambda folder: put(folder, 2, 21.0), {(2, 22.0), (2, 21.0)}),
    "half_hidden": (half_hidden, lambda folder: put(folder, 2, 21.0), {(2, 22.0), (2, 21.0)}),
    "retain": (lambda folder: [put(folder, n, float(n)) for n in (1, 2, 3)], save_and_retain, {(3, 3.0), (4, 4.0)}),
    "naive": (lambda folder: put(folder, 2, 20.0), naive, {(2, 20.0), (2, 21.0)}),
}


def kill_at(n: int) -> None:
    """Let this process die at its n-th point: before an fsync or a rename, half-way through a write or a removal."""
    points = itertools.count(1)

    def before(function: Callable[..., Any], half: Callable[..., None] | None = None) -> Callable[..., Any]:
        def killing(*args: Any, **kwargs: Any) -> Any:
            if next(points) == n:
                if half is not None:
                    half(*args)
                os.kill(os.getpid(), signal.SIGKILL)
            return function(*args, **kwargs)

        return killing

    write = checkpoint.write_file

    def half_write(path: Path, content: Any) -> None:
        points_left = itertools.count(-10_000)  # the fsync inside is no point of its own here
        nonlocal points
        points = points_left
        write(path, content)
        os.truncate(path, path.stat().st_size // 2)

    def half_removal(path: Path, **_: Any) -> None:
        for file in sorted(path.iterdir())[:1]:
            file.unlink()

    checkpoint.write_file = before(write, half_write)
    os.fsync = before(os.fsync)
    os.rename = before(os.rename)
    shutil.rmtree = before(shutil.rmtree, half_removal)


def die_at_every_point(scenario: str, root: Path) -> None:
    prepare, act, _ = SCENARIOS[scenario]
    for n in itertools.count(1):
        folder = root / f"{n:03d}" / "checkpoints"
        prepare(folder)
        pid = os.fork()
        if pid == 0:
            kill_at(n)
            act(folder)
            os._exit(0)
        _, status = os.waitpid(pid, 0)
        if os.waitstatus_to_exitcode(status) == 0:
            return
        assert os.waitstatus_to_exitcode(status) == -signal.SIGKILL, status


if __name__ == "__main__":
    die_at_every_point(sys.argv[1], Path(sys.argv[2]))
    sys.exit(0)


def run_scenario(scenario: str, root: Path) -> list[Path]:
    """Folders by the point of the kill; the last one was not killed."""
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    subprocess.run([sys.executable, __file__, scenario, str(root)], check=True, timeout=240, env=env)
    return [folder / "checkpoints" for folder in sorted(root.iterdir())]


@pytest.mark.parametrize("scenario", [name for name in SCENARIOS if name != "naive"])
def test_whenever_a_writer_is_killed_a_complete_checkpoint_is_found(scenario: str, tmp_path: Path) -> None:
    *killed, finished = run_scenario(scenario, tmp_path)
    allowed = SCENARIOS[scenario][2]
    outcomes = [found(folder) for folder in killed]
    assert len(killed) >= 13  # 5 files, each a write and an fsync; then fsync, rename, fsync of folders
    assert set(outcomes) == allowed  # both the old and the new were seen, and nothing else
    assert found(finished) == outcomes[-1]  # the kill at the last point of all came after all that counts
    for folder in (*killed, finished):
        put(folder, 5, 5.0)
        assert found(folder) == (5, 5.0)
        left = sorted(path.name for path in folder.iterdir())
        assert all(name.removeprefix("step-").isdigit() for name in left), left
        assert all(newest_reason is None for newest_reason in map(complete_reason, folder.iterdir()))


def complete_reason(path: Path) -> str | None:
    try:
        load(path)
    except UsageError as error:
        return str(error)
    return None


def test_the_kill_test_sees_a_writer_that_deletes_first(tmp_path: Path) -> None:
    assert None in {found(folder) for folder in run_scenario("naive", tmp_path)}


# --- what is saved is loaded


def test_every_bit_comes_back_with_its_type_and_kind(tmp_path: Path) -> None:
    tied = torch.randn(4, 3)
    model = {
        "bf16": torch.randn(5, 7).to(torch.bfloat16),
        "transposed": torch.randn(4, 3, dtype=torch.float64).T,
        "tied": tied,
        "tied_again": tied,
        "view": tied[1:3],
        "scalar": torch.tensor(3.5),
        "f8": torch.randn(4).to(torch.float8_e4m3fn),
        "flags": torch.tensor([True, False]),
        "empty": torch.empty(0, 4),
    }
    arrays = {"every_second": np.arange(10, dtype=np.int64)[::2], "scalar": np.array(2.5), "nan": np.array([np.nan])}
    state = {"step": 3, "big": 2**127 + 1, "x": 0.1, "nested": [{"a": None}], "text": "ü"}
    read = load(save(tmp_path, {"model": model, "data": arrays, "none": {}}, state, step_name(3)))
    assert read.state == state
    assert set(read.tensors) == {"model", "data", "none"}
    assert set(read.tensors["model"]) == set(model)
    for name, tensor in model.items():
        back = read.tensors["model"][name]
        assert isinstance(back, torch.Tensor) and back.dtype == tensor.dtype and back.shape == tensor.shape
        assert (
            back.contiguous().flatten().view(torch.uint8).tolist()
            == tensor.contiguous().flatten().view(torch.uint8).tolist()
        )
    for name, array in arrays.items():
        back = read.tensors["data"][name]
        assert isinstance(back, np.ndarray) and back.dtype == array.dtype and back.shape == array.shape
        assert back.tobytes() == array.tobytes()


def test_loaded_tensors_survive_the_removal_of_their_checkpoint(tmp_path: Path) -> None:
    read = load(put(tmp_path, 1, 1.5))
    put(tmp_path, 1, 9.0)
    put(tmp_path, 2, 2.0)
    assert retain(tmp_path, 1, 0, None) == [step_name(1)]
    assert read.tensors["model"]["w"].tolist() == [[1.5, 1.5]] * 3


# --- damage is seen


def test_any_flipped_byte_in_any_file_is_refused(tmp_path: Path) -> None:
    path = put(tmp_path, 1, 1.0)
    for file in sorted(path.iterdir()):
        whole = file.read_bytes()
        for place in range(0, len(whole), 1 if file.suffix == ".json" else 7):
            file.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
            with pytest.raises(UsageError, match="cannot be used"):
                load(path)
        file.write_bytes(whole)
    assert found(tmp_path) == (1, 1.0)


@pytest.mark.parametrize("file", ["model.safetensors", "state.json", "manifest.json"])
def test_a_missing_or_shortened_file_is_named_and_the_one_before_is_taken(file: str, tmp_path: Path) -> None:
    put(tmp_path, 1, 1.0)
    path = put(tmp_path, 2, 2.0)
    assert newest(tmp_path) == (path, [])
    whole = (path / file).read_bytes()
    (path / file).write_bytes(whole[:-1])
    shortened, said = newest(tmp_path)
    assert shortened == tmp_path / step_name(1)
    assert [name for name, _ in said] == [step_name(2)] and file in said[0][1]
    (path / file).unlink()
    missing, said = newest(tmp_path)
    assert missing == tmp_path / step_name(1) and file in said[0][1]
    with pytest.raises(UsageError, match=file):
        load(path)


def test_without_a_complete_checkpoint_there_is_none_and_the_reason_is_said(tmp_path: Path) -> None:
    assert newest(tmp_path / "nowhere") == (None, [])
    (tmp_path / ".tmp-step-00000001").mkdir()
    (tmp_path / step_name(2)).mkdir()
    path, skipped = newest(tmp_path)
    assert path is None
    assert [name for name, _ in skipped] == [".tmp-step-00000001", step_name(2)]
    with pytest.raises(UsageError, match="no such folder"):
        load(tmp_path / step_name(7))


def test_a_damaged_replacement_does_not_drive_out_the_good_one(tmp_path: Path) -> None:
    folder = tmp_path / "checkpoints"
    half_replaced(folder)
    file = folder / f"{step_name(2)}+new" / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-1] + b"\xff")
    assert found(folder) == (2, 20.0)
    put(folder, 3, 3.0)
    shutil.rmtree(folder / step_name(3))
    assert found(folder) == (2, 20.0)


# --- what must not be written


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16, torch.float8_e5m2, np.float32])
def test_non_finite_weights_are_refused_and_the_old_checkpoint_stays(bad: float, kind: Any, tmp_path: Path) -> None:
    put(tmp_path, 1, 1.0)
    good = torch.tensor([1.0, 2.0]).to(kind) if isinstance(kind, torch.dtype) else np.array([1.0, 2.0], kind)
    broken = torch.tensor([1.0, bad]).to(kind) if isinstance(kind, torch.dtype) else np.array([1.0, bad], kind)
    with pytest.raises(RunError, match=r"not finite \(layer\.w\)"):
        save(tmp_path, {"model": {"layer.w": broken}}, {}, step_name(2))
    assert [path.name for path in tmp_path.iterdir()] == [step_name(1)]
    save(
        tmp_path, {"model": {"layer.w": good}, "other": {"w": broken}}, {}, step_name(2)
    )  # only weights must be finite
    assert newest(tmp_path)[0] == tmp_path / step_name(2)


@pytest.mark.parametrize(
    ("tensors", "state", "name", "says"),
    [
        ({}, {}, "best", "step_name"),
        ({}, {}, "step-00000001+new", "step_name"),
        ({"../x": {}}, {}, step_name(1), "file name"),
        ({"a": {"t": torch.ones(1), "n": np.ones(1)}}, {}, step_name(1), "mixes"),
        ({}, {"a": {"b": {1: 2}}}, step_name(1), r"state\.a\.b has the key 1"),
        ({}, {"a": [{2: 1}]}, step_name(1), "key 2"),
        ({}, {"a": float("nan")}, step_name(1), "NaN"),
        ({}, {"a": np.ones(1)}, step_name(1), "JSON"),
    ],
)
def test_what_could_not_be_read_back_is_refused(tensors: Any, state: Any, name: str, says: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=says):
        save(tmp_path, tensors, state, name)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("kind", ["python", "rust"])
@pytest.mark.parametrize("at", range(1, 6))
def test_a_full_disk_leaves_the_old_checkpoint(
    at: int, kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(tmp_path, 1, 1.0)
    write, calls = checkpoint.write_file, itertools.count(1)

    def full(path: Path, content: Any) -> None:
        write(path, content)
        if next(calls) == at:
            os.truncate(path, path.stat().st_size // 2)
            if kind == "rust":
                raise SafetensorError("Error while serializing: I/O error: No space left on device (os error 28)")
            raise OSError(errno.ENOSPC, "No space left on device")

    for step in (1, 2):
        calls = itertools.count(1)
        monkeypatch.setattr(checkpoint, "write_file", full)
        with pytest.raises(RunError, match=r"disk is full.*Free some space"):
            put(tmp_path, step, 7.0)
        monkeypatch.setattr(checkpoint, "write_file", write)
        assert [path.name for path in tmp_path.iterdir()] == [step_name(1)]
        assert found(tmp_path) == (1, 1.0)
    put(tmp_path, 2, 7.0)
    assert found(tmp_path) == (2, 7.0)


# --- retention


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_the_last_the_multiples_and_the_best_stay(tmp_path: Path) -> None:
    for step in range(1, 11):
        put(tmp_path, step, float(step))
    removed = retain(tmp_path, last=2, every=4, best=step_name(3))
    assert sorted(removed) == [step_name(n) for n in (1, 2, 5, 6, 7)]
    assert names(tmp_path) == [step_name(n) for n in (3, 4, 8, 9, 10)]
    assert retain(tmp_path, last=1, every=0, best="step-99999999") == [step_name(n) for n in (9, 8, 4, 3)]
    assert found(tmp_path) == (10, 10.0)


def test_damaged_checkpoints_do_not_count_so_that_the_last_good_one_stays(tmp_path: Path) -> None:
    for step in range(1, 5):
        put(tmp_path, step, float(step))
    (tmp_path / step_name(4) / "model.safetensors").unlink()
    (tmp_path / step_name(3) / "manifest.json").write_text(json.dumps({"format": 99, "files": {}}))
    assert retain(tmp_path, last=1, every=0, best=None) == [step_name(1)]
    assert found(tmp_path) == (2, 2.0)
    with pytest.raises(UsageError, match="at least 1"):
        retain(tmp_path, last=0, every=0, best=None)
