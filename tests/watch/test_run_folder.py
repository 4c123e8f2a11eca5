"""Run folders: one writer, every record in one place whatever is killed, nothing void shown, sizes kept.

Run as a program (`python test_run_folder.py VERB FOLDER`), this file is the other process: it holds a lock, or gets
killed.
"""

import gzip
import itertools
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from strop.core.errors import RunError, UsageError
from strop.watch import jsonl, run_folder
from strop.watch.run_folder import Keep, RunFolder

SMALL = Keep(episodes_mb=0.04, samples_share=0.3, samples_mb=0.01)  # parts of 5 kB
SIZE = 600


def episode(number: int, step: int, note: str = "") -> dict[str, Any]:
    """An episode that hardly compresses."""
    text = random.Random(f"{number}{note}").randbytes(SIZE).hex()
    return {"id": f"g{number:04d}{note}/0", "step": step, "text": text}


def play(folder: RunFolder, steps: range, note: str = "") -> None:
    for step in steps:
        folder.log_step(step, "rl", {"reward": step / 10, "note": note})
        folder.log_episodes(step, [episode(2 * step, step, note), episode(2 * step + 1, step, note)])


def identities(folder: RunFolder) -> list[str]:
    return [record["id"] for record in folder.episodes()]


# --- the other process


def hold(path: Path, fork: bool, careless: bool) -> None:
    """Hold the lock until killed; with `fork`, a worker that lives on; `careless` forgets what the child must close."""
    with RunFolder.open(path).lock():
        if careless:
            run_folder._held.clear()
        if not fork:
            print("held", flush=True)
        elif os.fork() == 0:
            print(os.getpid(), flush=True)  # by the worker itself: now it is as it will stay
            time.sleep(60)
            os._exit(0)
        time.sleep(60)


def die_at_every_point(root: Path) -> None:
    """Like the one of the checkpoints: a child per point, which kills itself there while it logs and rotates."""
    for n in itertools.count(1):
        folder = RunFolder.create(root / f"{n:03d}", keep=Keep(episodes_mb=1, samples_share=1, samples_mb=0.01))
        pid = os.fork()
        if pid == 0:
            kill_at(n)
            with folder.lock():
                for number in range(6):
                    folder.log_episodes(number, [episode(number, number)])
                    if number % 3 == 2:
                        folder._rotate(0)
            os._exit(0)
        _, status = os.waitpid(pid, 0)
        if os.waitstatus_to_exitcode(status) == 0:
            return
        assert os.waitstatus_to_exitcode(status) == -signal.SIGKILL, status


def kill_at(n: int) -> None:
    points = itertools.count(1)

    def before(function: Any, half: Any = None) -> Any:
        def killing(*args: Any, **kwargs: Any) -> Any:
            if next(points) == n:
                if half:
                    half(*args)
                os.kill(os.getpid(), signal.SIGKILL)
            return function(*args, **kwargs)

        return killing

    os.fsync, os.replace, os.rename = before(os.fsync), before(os.replace), before(os.rename)
    Path.unlink = before(Path.unlink)
    write = jsonl.write_line
    jsonl.write_line = before(write, lambda handle, line: handle.write(line[: len(line) // 2]))


if __name__ == "__main__":
    verb, target = sys.argv[1], Path(sys.argv[2])
    die_at_every_point(target) if verb == "die" else hold(target, "fork" in verb, "careless" in verb)
    sys.exit(0)


def other(verb: str, path: Path) -> "subprocess.Popen[str]":
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    return subprocess.Popen([sys.executable, __file__, verb, str(path)], stdout=subprocess.PIPE, text=True, env=env)


# --- one run, one writer


def test_a_folder_with_a_run_is_not_overwritten_and_one_without_is_not_opened(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"no run\.json"):
        RunFolder.open(tmp_path)
    folder = RunFolder.create(tmp_path / "deep" / "run", {"recipe": "guess"})
    with pytest.raises(UsageError, match="holds a run already"):
        RunFolder.create(folder.path)
    assert RunFolder.open(folder.path).run() == {"recipe": "guess"}
    (tmp_path / "file").write_text("x")
    with pytest.raises(UsageError, match="cannot be a run folder"):
        RunFolder.create(tmp_path / "file")


def test_a_second_process_is_refused_by_name_until_the_first_is_killed(tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path)
    with other("hold", tmp_path) as process:
        assert process.stdout is not None and process.stdout.readline()
        with (
            pytest.raises(UsageError, match=rf"in use by process {process.pid} on .*kill {process.pid}"),
            folder.lock(),
        ):
            pass
        process.send_signal(signal.SIGKILL)
        process.wait()
        with folder.lock():
            folder.log_step(1, "rl", {})
    assert list(folder.metrics()) == [{"step": 1, "stage": "rl"}]


@pytest.mark.parametrize("verb", ["fork", "fork-careless"])
def test_a_worker_that_outlives_a_killed_run_does_not_keep_its_lock(verb: str, tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path)
    with other(verb, tmp_path) as process:
        assert process.stdout is not None
        worker = int(process.stdout.readline())
        try:
            process.send_signal(signal.SIGKILL)
            process.wait()
            if verb == "fork":
                with folder.lock():
                    pass
            else:  # without the care, it does
                with pytest.raises(UsageError, match="in use"), folder.lock():
                    pass
        finally:
            os.kill(worker, signal.SIGKILL)


def test_nothing_is_written_without_the_lock(tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path)
    for write in (lambda: folder.log_step(1, "rl", {}), lambda: folder.resumed(0), lambda: folder.log_event(1, "x")):
        with pytest.raises(UsageError, match="is not locked"):
            write()
    with folder.lock():
        folder.log_step(1, "rl", {})
    with pytest.raises(UsageError, match="is not locked"):
        folder.log_step(2, "rl", {})


def test_a_name_that_each_line_has_is_refused(tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path)
    with folder.lock(), pytest.raises(UsageError, match="step cannot be the name"):
        folder.log_step(1, "rl", {"step": 3})


# --- reading during the run


def test_the_run_can_be_read_while_it_goes_on(tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path, keep=SMALL)
    with folder.lock():
        for step in range(1, 8):
            play(folder, range(step, step + 1))
            reader = RunFolder.open(tmp_path)
            assert [record["step"] for record in reader.metrics()] == list(range(1, step + 1))
            assert identities(reader) == [f"g{n:04d}/0" for n in range(2, 2 * step + 2)]


def test_a_reader_that_began_before_a_rotation_reads_to_the_end_of_what_was_there(tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path, keep=SMALL)
    with folder.lock():
        play(folder, range(1, 4))
        reader = folder.episodes()
        first = next(reader)["id"]
        play(folder, range(4, 60))
        assert folder.kept()["dropped_parts"] > 0
        assert [first, *(record["id"] for record in reader)] == [f"g{n:04d}/0" for n in range(2, 8)]


def test_a_rotation_between_looking_and_opening_hides_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = RunFolder.create(tmp_path)
    really_open, rotations = run_folder._open_read, iter(range(3))

    def open_late(path: Path) -> Any:
        if path.name == "episodes.jsonl" and next(rotations, None) is not None:
            folder._rotate(0)
            folder.log_episodes(9, [episode(9, 9, str(time.monotonic_ns()))])
        return really_open(path)

    with folder.lock():
        folder.log_episodes(1, [episode(1, 1)])
        monkeypatch.setattr(run_folder, "_open_read", open_late)
        there = identities(folder)
    assert there[0] == "g0001/0" and len(there) == 4 == len(set(there))


# --- resuming


def test_superseded_steps_are_dropped_in_every_log_and_across_rotated_files(tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path, keep=Keep(episodes_mb=0.1, samples_share=0.5))
    with folder.lock():
        play(folder, range(1, 31))
        folder.log_event(3, "skipped", {"why": "nothing to train"})
        folder.log_event(9, "alarm")
    with folder.lock():
        folder.resumed(5)
        play(folder, range(6, 16), "b")
        folder.resumed(10)
        play(folder, range(11, 13), "c")
    assert folder.kept()["parts"] >= 3 and folder.kept()["dropped_parts"] == 0
    notes = [""] * 5 + ["b"] * 5 + ["c"] * 2
    assert [(record["step"], record["note"]) for record in folder.metrics()] == list(
        zip(range(1, 13), notes, strict=True)
    )
    assert identities(folder) == [
        f"g{n:04d}{note}/0" for step, note in enumerate(notes, 1) for n in (2 * step, 2 * step + 1)
    ]
    chosen = [identity for identity in identities(folder) if run_folder._hash_share(identity) < 0.5]
    assert [record["id"] for record in folder.samples()] == chosen and 0 < len(chosen) < 24
    assert list(folder.events()) == [
        {"step": 3, "event": "skipped", "why": "nothing to train"},
        {"resumed": 5},
        {"resumed": 10},
    ]
    raw = gzip.decompress((tmp_path / "episodes-00001.jsonl.gz").read_bytes())
    assert b"g0020/0" in raw or any(b"g0020/0" in gzip.decompress(p.read_bytes()) for p in tmp_path.glob("*.gz"))


def test_a_line_torn_at_any_byte_is_cut_off_before_the_resume_is_noted(tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path)
    with folder.lock():
        play(folder, range(1, 4))
    whole = {name: (tmp_path / f"{name}.jsonl").read_bytes() for name in ("metrics", "episodes")}
    cut = len(whole["metrics"].splitlines(keepends=True)[-1])
    for torn in range(1, cut + 1):
        for name, content in whole.items():
            (tmp_path / f"{name}.jsonl").write_bytes(content[:-torn])
        with folder.lock():
            folder.resumed(2)
            play(folder, range(3, 4), "b")
        assert [(record["step"], record["note"]) for record in folder.metrics()] == [(1, ""), (2, ""), (3, "b")]
        assert identities(folder) == ["g0002/0", "g0003/0", "g0004/0", "g0005/0", "g0006b/0", "g0007b/0"]


# --- kills and damage


def test_whenever_a_writer_is_killed_every_episode_is_in_exactly_one_place(tmp_path: Path) -> None:
    with other("die", tmp_path) as process:
        assert process.wait(240) == 0
    everything = [f"g{n:04d}/0" for n in range(6)]
    *killed, finished = [RunFolder.open(path, Keep(1, 1, 0.01)) for path in sorted(tmp_path.iterdir())]
    lengths: list[int] = []
    for folder in killed:
        there = identities(folder)
        assert there == everything[: len(there)]
        sampled = [record["id"] for record in folder.samples()]
        assert sampled in (there, there[:-1])  # the sample is written after the episode
        lengths.append(len(there))
        with folder.lock():
            assert identities(folder) == there
            folder.log_episodes(9, [episode(9, 9)])
        assert identities(folder) == [*there, "g0009/0"]
        names = {path.name for path in folder.path.glob("*episodes*")}
        assert all(name == "episodes.jsonl" or name.endswith(".gz") for name in names), names
        assert not list(folder.path.glob(".tmp-*"))
    assert lengths == sorted(lengths) and lengths[0] == 0 and lengths[-1] == 6 and len(lengths) > 20
    assert identities(finished) == everything


def test_a_part_that_stands_twice_is_read_once(tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path)
    with folder.lock():
        folder.log_episodes(1, [episode(1, 1)])
        folder._rotate(0)
    packed = tmp_path / "episodes-00001.jsonl.gz"
    (tmp_path / "episodes-00001.jsonl").write_bytes(gzip.decompress(packed.read_bytes()))
    assert identities(folder) == ["g0001/0"]
    (tmp_path / "episodes-00002.jsonl").write_bytes(gzip.decompress(packed.read_bytes()))
    assert identities(folder) == ["g0001/0", "g0001/0"]  # another number is another part


def test_a_damaged_part_is_named(tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path)
    with folder.lock():
        folder.log_episodes(1, [episode(1, 1)])
        folder._rotate(0)
    packed = tmp_path / "episodes-00001.jsonl.gz"
    packed.write_bytes(packed.read_bytes()[:-20])
    with pytest.raises(UsageError, match="a part of episodes is damaged"):
        identities(folder)


def test_a_full_disk_during_compression_loses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = RunFolder.create(tmp_path)

    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    with folder.lock():
        folder.log_episodes(1, [episode(1, 1)])
        with monkeypatch.context() as patch, pytest.raises(RunError, match="free some space"):
            patch.setattr(run_folder.shutil, "copyfileobj", full)
            folder._rotate(0)
    assert identities(folder) == ["g0001/0"]
    with folder.lock():
        assert identities(folder) == ["g0001/0"]
        assert (tmp_path / "episodes-00001.jsonl.gz").exists()


# --- sizes


def test_the_episodes_stay_within_their_limit_and_the_newest_are_kept(tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path, keep=SMALL)
    assert folder.kept()["first_step"] is None
    with folder.lock():
        for step in range(1, 80):
            play(folder, range(step, step + 1))
            assert sum(path.stat().st_size for path in tmp_path.glob("episodes*")) <= 40_000 + 2 * SIZE + 100
    kept = folder.kept()
    there = identities(folder)
    assert 20_000 < kept["bytes"] <= 40_000 + 2 * SIZE + 100
    assert kept["dropped_parts"] > 0 and kept["parts"] == len(list(tmp_path.glob("*.gz")))
    assert there == [f"g{n:04d}/0" for n in range(160 - len(there), 160)] and 30 < len(there) < 150
    assert kept["first_step"] == (160 - len(there)) // 2
    assert [record["step"] for record in folder.metrics()] == list(range(1, 80))


def test_the_sample_is_what_the_share_in_force_would_have_chosen_from_the_start(tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path, keep=SMALL)
    with folder.lock():
        play(folder, range(1, 40))
    with folder.lock():  # as by a resumed process
        play(folder, range(40, 80))
    share = folder.kept()["samples_share"]
    assert share in (0.3 / 2, 0.3 / 4, 0.3 / 8, 0.3 / 16)
    expected = [f"g{n:04d}/0" for n in range(2, 160) if run_folder._hash_share(f"g{n:04d}/0") < share]
    assert [record["id"] for record in folder.samples()] == expected
    assert (
        0 < len(expected) < 10_000 / SIZE and expected[0] < identities(folder)[0]
    )  # older than what is left otherwise
    other_share = [f"g{n:04d}/0" for n in range(2, 160) if run_folder._hash_share(f"g{n:04d}/0") < 2 * share]
    assert other_share != expected


def test_a_lower_share_thins_and_a_higher_one_does_not_pretend(tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path, keep=Keep(samples_share=0.5))
    with folder.lock():
        play(folder, range(1, 20))
    before = [record["id"] for record in folder.samples()]
    for share, in_force in ((0.9, 0.5), (0.2, 0.2), (0.5, 0.2)):
        folder = RunFolder.open(tmp_path, Keep(samples_share=share))
        with folder.lock():
            folder.log_episodes(19, [])
            folder.resumed(19)
        assert folder.kept()["samples_share"] == in_force
        assert [r["id"] for r in folder.samples()] == [i for i in before if run_folder._hash_share(i) < in_force]


def test_one_giant_episode_does_not_drive_out_the_sample(tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path, keep=Keep(samples_share=1, samples_mb=0.02))
    with folder.lock():
        folder.log_episodes(1, [episode(1, 1), {"id": "giant", "text": "x" * 30_000}])
    assert [record["id"] for record in folder.samples()] == ["g0001/0"]
    assert identities(folder) == ["g0001/0", "giant"]


def test_limits_that_cannot_be_kept_are_refused() -> None:
    for wrong in ({"episodes_mb": 0}, {"samples_share": 1.5}, {"updates": -1}, {"samples_mb": float("nan")}):
        with pytest.raises(UsageError):
            Keep(**wrong)


# --- updates


def test_the_last_updates_and_those_to_be_kept_stay_and_void_ones_go(tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path, keep=Keep(updates=2))
    columns = {"logp": np.arange(6, dtype=np.float32)[::2], "sampled": np.array([True, False, True])}
    with folder.lock():
        for step in range(1, 8):
            folder.save_update(step, columns, keep=step == 2)
    assert [step for step, _ in folder.updates()] == [2, 6, 7]
    assert folder.updates()[0][1].name == "step-000002.safetensors"
    read = folder.update(7)
    assert read["logp"].tolist() == [0, 2, 4] and read["sampled"].tolist() == [True, False, True]
    with folder.lock():
        folder.resumed(6)
        assert [step for step, _ in folder.updates()] == [2, 6]
        folder.save_update(7, {"logp": np.zeros(1)})
    assert [step for step, _ in folder.updates()] == [2, 6, 7] and folder.update(7)["logp"].tolist() == [0]
    with pytest.raises(UsageError, match="no update of step 5; there are: 2, 6, 7"):
        folder.update(5)
