"""The folder of one run: all that happened, as files that can be read while the run goes on.

    run.json                      what runs: written whole
    metrics.jsonl, events.jsonl   one line a step; resumes, skips, notes
    alarms.jsonl                  what the watch saw
    episodes.jsonl                trajectories; full parts become episodes-00001.jsonl.gz ..., the oldest of them go
    samples.jsonl                 a random share of the episodes that stays for the whole run
    timeline.jsonl                who was at work when: the first steps and the newest
    updates/step-000123.safetensors, checkpoints/, lock
    data/                         episodes that are learned from again (`watch/dataset.py`)

Invariant: only the process that holds the lock writes. A kill at any moment leaves every record in exactly one place,
but for a torn last line, which readers skip and the next writer cuts off. Readers never see what a resume made void.
Not covered: lines are handed to the kernel but not synced, so that a power cut may lose the newest ones; call `sync`
before a checkpoint that must not be ahead of them.
"""

import fcntl
import gzip
import hashlib
import io
import itertools
import os
import re
import shutil
import socket
import zlib
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, cast

import numpy as np
import numpy.typing as npt
import orjson
import safetensors
import safetensors.numpy

from strop.core.errors import RunError, UsageError
from strop.watch import jsonl

MB = 1_000_000
LOGS = ("metrics", "episodes", "samples", "events", "alarms", "timeline")
PART = re.compile(r"episodes-(\d{5,})\.jsonl(\.gz)?")
UPDATE = re.compile(r"step-(\d{6,})\.safetensors")

_safetensors: Any = safetensors  # its annotations leave parameters open
_numpy: Any = safetensors.numpy
_held: set[int] = set()  # descriptors of the locks that this process holds


def _let_go_in_child() -> None:
    """A forked worker must not keep the lock alive after its parent was killed."""
    while _held:
        os.close(_held.pop())


os.register_at_fork(after_in_child=_let_go_in_child)


@dataclass(frozen=True, slots=True)
class Keep:
    """How much of a run stays on disk.

    Args:
        episodes_mb: limit of `episodes*`, in 10^6 bytes; they are cut into parts of an eighth of it, at most 64 MB.
            One part more may stand for the moment of its compression.
        samples_share: share of the episodes in `samples.jsonl`, chosen by the hash of their ids.
        samples_mb: limit of `samples.jsonl`; when it is reached, the share is halved, for the past as well. An episode
            above an eighth of it is never sampled.
        updates: how many of the newest saved updates stay, those saved with `keep` not counted.
        timeline_mb: limit of `timeline.jsonl`; when it is reached, steps from its middle go, so that half of it is left.
    """

    episodes_mb: float = 1000.0
    samples_share: float = 0.02
    samples_mb: float = 64.0
    updates: int = 3
    timeline_mb: float = 8.0

    def __post_init__(self) -> None:
        sizes = (self.episodes_mb, self.samples_mb, self.timeline_mb)
        if not (all(size > 0 for size in sizes) and 0 <= self.samples_share <= 1 and self.updates >= 0):
            raise UsageError(f"{self}: sizes must be above 0, samples_share within 0 to 1, updates 0 or more.")


class RunFolder:
    """One run's folder. Write inside `with folder.lock():`; reading needs no lock and works during the run.

    Example:
        with (folder := RunFolder.create(path, {"recipe": "guess"})).lock():
            folder.log_step(1, "rl", {"reward": 0.5})
    """

    def __init__(self, path: Path, keep: Keep) -> None:
        self.path = path
        self.keep = keep
        self._lock: int | None = None
        self._logs: dict[str, io.FileIO] = {}
        self._share = keep.samples_share

    @classmethod
    def create(cls, path: Path | str, run: Mapping[str, Any] | None = None, keep: Keep | None = None) -> "RunFolder":
        """Make a new run folder. Raises `UsageError` if there is a run already."""
        folder = cls(Path(path), keep or Keep())
        try:
            folder.path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UsageError(f"{path} cannot be a run folder: {error}. Choose another path.") from error
        with folder.lock():  # of two that create at once, one gets it
            cls.check_free(path)
            for name in ("checkpoints", "updates"):
                (folder.path / name).mkdir(exist_ok=True)
            folder.write_run(run or {})
        return folder

    @staticmethod
    def check_free(path: Path | str) -> None:
        """Raise `UsageError` if a new run cannot be made in this place; nothing is written."""
        if Path(path).exists() and not Path(path).is_dir():
            raise UsageError(f"{path} cannot be a run folder: it is a file. Choose another path.")
        if any((Path(path) / name).exists() for name in ("run.json", *(f"{log}.jsonl" for log in LOGS))):
            raise UsageError(f"{path} holds a run already. Resume it, or choose another folder for a new run.")

    @classmethod
    def open(cls, path: Path | str, keep: Keep | None = None) -> "RunFolder":
        """Open an existing run, to resume or to read it. Raises `UsageError` if there is none."""
        if not (Path(path) / "run.json").is_file():
            raise UsageError(
                f"{path} is no run folder: it has no run.json. Give the folder that a run was started with."
            )
        return cls(Path(path), keep or Keep())

    @property
    def checkpoints(self) -> Path:
        """Where checkpoints go."""
        return self.path / "checkpoints"

    # --- the right to write

    @contextmanager
    def lock(self) -> Generator[None]:
        """Be the only writer; the kernel frees the lock when the process ends, however it ends.

        Raises `UsageError` that names the process which holds it.
        """
        descriptor = os.open(self.path / "lock", os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            pid, _, host = os.pread(descriptor, 200, 0).decode().strip().partition("\n")
            os.close(descriptor)
            if not isinstance(error, BlockingIOError):
                raise UsageError(
                    f"{self.path} cannot be locked: {error}. Put the run on a disk with file locks."
                ) from error
            raise UsageError(
                f"{self.path} is in use by process {pid or 'unknown'} on {host or 'this machine'}. Wait for it, stop "
                f"it (kill {pid or 'PID'}), or use another folder."
            ) from None
        os.truncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()}\n{socket.gethostname()}\n".encode(), 0)
        _held.add(descriptor)
        self._lock = descriptor
        try:
            self._settle()
            yield
        finally:
            self._lock = None
            for name in list(self._logs):
                self._logs.pop(name).close()
            if descriptor in _held:  # not in a forked child, which has closed it and may have used the number again
                _held.discard(descriptor)
                os.close(descriptor)

    def _settle(self) -> None:
        """Finish what a killed writer left half done."""
        for place in (self.path, self.path / "updates"):
            for left in place.glob(".tmp-*"):
                left.unlink()
        for part in self._parts():
            twin = part.with_suffix("")
            if part.suffix != ".gz":
                _compress(part)
            elif twin.exists():  # compressed, but not yet removed
                twin.unlink()

    def _log(self, name: str) -> io.FileIO:
        if self._lock is None:
            raise UsageError(f"{self.path} is not locked; write to a run folder inside `with folder.lock():`.")
        if name not in self._logs:
            self._logs[name] = jsonl.open_append(self.path / f"{name}.jsonl")
            if name == "samples":
                self._open_samples()
        return self._logs[name]

    # --- writing

    def write_run(self, run: Mapping[str, Any]) -> None:
        """Replace `run.json` in one moment."""
        write_whole(self.path / "run.json", jsonl.encode(run))

    def log_step(self, step: int, stage: str, values: Mapping[str, Any]) -> None:
        """Append `{"step", "stage", **values}` to the metrics."""
        self._write("metrics", {"step": step, "stage": stage}, values)

    def log_event(self, step: int, event: str, values: Mapping[str, Any] | None = None) -> None:
        """Append `{"step", "event", **values}` to the events: skipped steps, notes."""
        self._write("events", {"step": step, "event": event}, values or {})

    def log_alarm(self, step: int, name: str, values: Mapping[str, Any]) -> None:
        """Append `{"step", "name", **values}` to the alarms."""
        self._write("alarms", {"step": step, "name": name}, values)

    def log_timeline(self, step: int, stage: str, values: Mapping[str, Any]) -> None:
        """Append `{"step", "stage", **values}` to the timeline, which keeps its size (see `Keep`)."""
        self._write("timeline", {"step": step, "stage": stage}, values)
        if self._log("timeline").tell() > self.keep.timeline_mb * MB:
            self._thin_timeline()

    def _write(self, name: str, head: Mapping[str, Any], values: Mapping[str, Any]) -> None:
        if taken := sorted(head.keys() & values.keys()):
            raise UsageError(
                f"{name}: {', '.join(taken)} cannot be the name of a logged value, since each line has one."
            )
        jsonl.append(self._log(name), {**head, **values})

    def log_episodes(self, step: int, records: Iterable[Mapping[str, Any]]) -> None:
        """Append the episodes of a step (each has its own `id`; see `records.episode_record`), and sample from them."""
        full = min(64 * MB, int(self.keep.episodes_mb * MB) // 8)
        for record in records:
            line = jsonl.encode({"id": record["id"], **record, "step": step})
            jsonl.write_line(self._log("episodes"), line)
            if _hash_share(record["id"]) < self._sample_share():
                self._sample(line)
            if self._log("episodes").tell() >= full:
                self._rotate(full)

    def resumed(self, step: int) -> None:
        """Say in every log that the run goes on from `step`: what was written of later steps is void."""
        for name in LOGS:
            jsonl.write_line(self._log(name), jsonl.marker(step))
        for later, path in self._updates():
            if later > step and not _is_kept(path):
                path.unlink()

    def sync(self) -> None:
        """Wait until all that was logged is on the disk."""
        for handle in self._logs.values():
            os.fsync(handle.fileno())
        _sync_folder(self.path)

    def save_update(self, step: int, columns: Mapping[str, npt.NDArray[Any]], keep: bool = False) -> Path:
        """Save the packed columns of an update, named arrays of any shape, and remove old ones.

        Args:
            step: its step; an update of the same step is replaced.
            columns: arrays by name.
            keep: never remove it (a step that went wrong).
        """
        path = self.path / "updates" / f"step-{step:06d}.safetensors"
        arrays = {name: np.asarray(column, order="C") for name, column in columns.items()}
        write_whole(path, _numpy.save(arrays, {"keep": "yes" if keep else "no"}))
        passing = [old for _, old in self._updates() if not _is_kept(old)]
        for old in passing[: max(0, len(passing) - self.keep.updates)]:
            old.unlink()
        return path

    # --- reading

    def run(self) -> dict[str, Any]:
        """What `run.json` says."""
        return orjson.loads((self.path / "run.json").read_bytes())

    def metrics(self) -> Iterator[dict[str, Any]]:
        """Metrics of the steps that hold, in order."""
        return self._current("metrics")

    def events(self) -> Iterator[dict[str, Any]]:
        """Events of the steps that hold, in order, and every `{"resumed": step}`."""
        return self._current("events", markers=True)

    def alarms(self) -> Iterator[dict[str, Any]]:
        """Alarms of the steps that hold, in order."""
        return self._current("alarms")

    def timeline(self) -> Iterator[dict[str, Any]]:
        """Timelines of the steps that hold and are still kept, in order."""
        return self._current("timeline")

    def episodes(self) -> Iterator[dict[str, Any]]:
        """The episodes that hold and are still kept, in order; one is in memory at a time."""
        return self._current("episodes")

    def samples(self) -> Iterator[dict[str, Any]]:
        """The sampled episodes that hold, in order."""
        return (record for record in self._current("samples") if "id" in record)

    def updates(self) -> list[tuple[int, Path]]:
        """(step, file) of the saved updates by step, those with `keep` of steps that a resume made void included."""
        return self._updates()

    def update(self, step: int) -> dict[str, npt.NDArray[Any]]:
        """The columns of a saved update. Raises `UsageError` if it is not kept (any more)."""
        path = dict(self._updates()).get(step)
        if path is None:
            there = ", ".join(str(number) for number, _ in self._updates()) or "none"
            raise UsageError(f"{self.path} has no update of step {step}; there are: {there}.")
        return _numpy.load_file(path)

    def kept(self) -> dict[str, Any]:
        """What is kept of the episodes.

        `bytes` on disk, `parts` compressed, `dropped_parts` that the limit took, `first_step` of which an episode is
        left (None without episodes; that step may have lost its first ones), and `samples_share`, the share in force.
        """
        parts = self._parts()
        first = next(self.episodes(), None)
        shares = [record["share"] for record in self._current("samples") if "share" in record]
        return {
            "bytes": sum(path.stat().st_size for path in self._files("episodes")),
            "parts": len(parts),
            "dropped_parts": _number(parts[0]) - 1 if parts else 0,
            "first_step": None if first is None else first["step"],
            "samples_share": shares[-1] if shares else self.keep.samples_share,
        }

    def _current(self, name: str, markers: bool = False) -> Iterator[dict[str, Any]]:
        with ExitStack() as stack:
            try:
                yield from jsonl.read_current(self._open_files(name, stack), markers)
            except (gzip.BadGzipFile, EOFError, zlib.error) as error:
                raise UsageError(
                    f"{self.path}: a part of {name} is damaged ({error}). Remove it to read the rest."
                ) from error

    def _open_files(self, name: str, stack: ExitStack) -> list[tuple[str, IO[bytes]]]:
        """The files of a log, all as they were at one moment, though a running writer may turn one into another."""
        while True:
            with ExitStack() as attempt:
                try:
                    paths = self._files(name)
                    files = [(path.name, attempt.enter_context(_open_read(path))) for path in paths]
                    opened = [os.fstat(file.fileno()).st_ino for _, file in files]
                    same = opened == [path.stat().st_ino for path in paths]
                except FileNotFoundError:
                    continue
                if same and paths == self._files(name):
                    stack.push(attempt.pop_all())
                    return files

    def _files(self, name: str) -> list[Path]:
        plain = self.path / f"{name}.jsonl"
        return [*(self._parts() if name == "episodes" else []), *([plain] if plain.exists() else [])]

    def _parts(self) -> list[Path]:
        """Full parts of the episodes, oldest first; where a part stands twice, the compressed one."""
        parts: dict[int, Path] = {}
        for path in sorted(self.path.glob("episodes-*")):  # x.jsonl stands before x.jsonl.gz, which replaces it
            if PART.fullmatch(path.name):
                parts[_number(path)] = path
        return [parts[number] for number in sorted(parts)]

    def _updates(self) -> list[tuple[int, Path]]:
        found = ((UPDATE.fullmatch(path.name), path) for path in (self.path / "updates").glob("step-*"))
        return sorted((int(match[1]), path) for match, path in found if match)

    # --- keeping the size

    def _rotate(self, full: int) -> None:
        """Make the plain file a compressed part; remove the oldest parts that leave no room for the next plain file."""
        parts = self._parts()
        number = _number(parts[-1]) + 1 if parts else 1
        part = self.path / f"episodes-{number:05d}.jsonl"
        self._logs.pop("episodes").close()
        os.rename(self.path / "episodes.jsonl", part)  # from here on, the part is what readers read
        _compress(part)
        parts = self._parts()
        room = int(self.keep.episodes_mb * MB) - full - sum(path.stat().st_size for path in parts)
        for old in parts:
            if room >= 0:
                break
            room += old.stat().st_size
            old.unlink()

    def _sample_share(self) -> float:
        self._log("samples")  # opening it reads the share in force
        return self._share

    def _open_samples(self) -> None:
        """Take up the share that the file was left with; the configured one may only lower it."""
        path = self.path / "samples.jsonl"
        shares = [record["share"] for record in jsonl.read(path) if "share" in record]
        self._share = min([self.keep.samples_share, *shares[-1:]])
        if not shares:
            jsonl.append(self._logs["samples"], {"share": self._share})
        elif self._share < shares[-1]:
            self._thin_samples(self._share)

    def _sample(self, line: bytes) -> None:
        if len(line) > self.keep.samples_mb * MB / 8:  # one giant must not drive out the whole sample
            return
        jsonl.write_line(self._log("samples"), line)
        while self._log("samples").tell() > self.keep.samples_mb * MB and self._share > 1e-9:
            self._thin_samples(self._share / 2)

    def _thin_samples(self, share: float) -> None:
        """Keep of the samples what a run with this share from the start would have kept."""
        path = self.path / "samples.jsonl"
        lines = [jsonl.encode({"share": share})]
        for record in jsonl.read(path):
            if "share" not in record and ("id" not in record or _hash_share(record["id"]) < share):
                lines.append(jsonl.encode(record))
        self._logs.pop("samples").close()
        write_whole(path, b"".join(lines))
        self._logs["samples"] = jsonl.open_append(path)
        self._share = share

    def _thin_timeline(self) -> None:
        """Keep the first steps (an eighth of the limit) and the newest (three eighths); what is void goes, too."""
        lines = [jsonl.encode(record) for record in self.timeline()]
        room = int(self.keep.timeline_mb * MB) // 8
        first = _fitting(lines, room)
        newest = _fitting(lines[first:][::-1], 3 * room)
        path = self.path / "timeline.jsonl"
        self._logs.pop("timeline").close()
        write_whole(path, b"".join([*lines[:first], *lines[len(lines) - newest :]]))
        self._logs["timeline"] = jsonl.open_append(path)


def _fitting(lines: Sequence[bytes], room: int) -> int:
    """How many of the lines, from the first on, have room."""
    sizes = itertools.accumulate(map(len, lines))
    return sum(1 for _ in itertools.takewhile(lambda size: size <= room, sizes))


def _number(part: Path) -> int:
    match = PART.fullmatch(part.name)
    assert match is not None
    return int(match[1])


def _hash_share(identity: str) -> float:
    """A number in [0, 1) that depends on the id alone, evenly spread."""
    return int.from_bytes(hashlib.sha256(identity.encode("utf-8", "replace")).digest()[:6]) / 2**48


def _is_kept(path: Path) -> bool:
    with _safetensors.safe_open(path, "numpy") as file:
        metadata: dict[str, str] = file.metadata() or {}
    return metadata.get("keep") == "yes"


def _open_read(path: Path) -> IO[bytes]:
    return cast("IO[bytes]", gzip.open(path, "rb")) if path.suffix == ".gz" else open(path, "rb")


def _compress(part: Path) -> None:
    """Turn `x.jsonl` into `x.jsonl.gz`; at each moment one of them is whole, and readers prefer the compressed one."""
    whole = part.with_name(f"{part.name}.gz")
    with open(part, "rb") as source, _replacing(whole) as target, gzip.GzipFile("", "wb", 2, target) as packed:
        shutil.copyfileobj(source, packed, 1 << 20)
    part.unlink()


def write_whole(path: Path, content: bytes) -> None:
    """Replace a file in one moment."""
    with _replacing(path) as file:
        file.write(content)


@contextmanager
def _replacing(path: Path) -> Generator[IO[bytes]]:
    """A temporary file that takes the place of `path` when all is written and on the disk: fsync, rename, fsync."""
    temporary = path.with_name(f".tmp-{path.name}")
    try:
        with open(temporary, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
        _sync_folder(path.parent)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise RunError(
            f"{path} could not be written: {error}. What was there is kept; free some space and resume."
        ) from error


def _sync_folder(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
