"""`strop read`: transcripts of episodes."""

from collections import deque
from collections.abc import Iterable, Mapping
from typing import Annotated, Any

import typer

from strop.config.stored import find_run
from strop.core.errors import UsageError

Record = Mapping[str, Any]


def read(
    run: Annotated[str, typer.Argument(help="Folder of a run.")],
    episode: Annotated[str | None, typer.Option("--episode", help="Id of an episode, such as train-000003/0.")] = None,
    last: Annotated[int, typer.Option("--last", min=1, help="How many of the newest episodes.")] = 3,
    samples: Annotated[bool, typer.Option("--samples", help="The sample that is kept for the whole run.")] = False,
) -> None:
    """Print transcripts of a run's episodes."""
    for record in chosen(run, episode, last, samples):
        print("\n".join(transcript(record)), end="\n\n")


def chosen(run: str, episode: str | None, last: int, samples: bool) -> list[Record]:
    """The episodes asked for; none is a `UsageError` that says what there is."""
    from strop.watch.run_folder import RunFolder

    folder = RunFolder.open(find_run(run))
    records: Iterable[Record] = folder.samples() if samples else folder.episodes()
    if episode is None:
        found: list[Record] = list(deque(records, maxlen=last))
    else:
        found = [r for r in records if r["id"] == episode]
        if not found and not samples:
            found = [r for r in folder.samples() if r["id"] == episode]
    if not found:
        kept = folder.kept()
        what = f"no episode {episode!r}" if episode else "no episodes"
        raise UsageError(
            f"{run} keeps {what} (kept from step {kept.get('first_step')} on); try strop read {run} --samples"
        )
    return found


def transcript(record: Record) -> list[str]:
    """An episode as lines of text."""
    score = "unscored" if record["score"] is None else f"score {record['score']:g}"
    head = f"== {record['id']}  step {record['step']} ({record['stage']})  task {record['task']}  {score}  end: {record['end']}"
    lines = [head]
    lines += [f"{message['role']:>9}: {message['content']}" for message in record["messages"]]
    for key in ("reason", "invalid", "error"):
        if record.get(key):
            lines.append(f"{key:>9}: {record[key]}")
    return lines
