"""`strop masks`: every token of a row, and whether it is trained."""

import sys
from typing import Annotated

import typer

from strop.cli.read import chosen
from strop.config.stored import find_run, stored_plan
from strop.core.trajectory import Row


def masks(
    run: Annotated[str, typer.Argument(help="Folder of a run.")],
    episode: Annotated[str | None, typer.Option("--episode", help="Id of an episode; the newest by default.")] = None,
) -> None:
    """Print the tokens of an episode: trained ones are green (or marked with *), with turn, log-probability, version."""
    path = find_run(run)
    [record] = chosen(run, episode, 1, False)[-1:]
    from strop.watch.run_folder import RunFolder

    _, plan, world = stored_plan(RunFolder.open(path).run())
    from strop.loop.assemble import source_of
    from strop.model.load import load_tokenizer
    from strop.rollout.rows import rows_of
    from strop.watch.records import trajectory_from_record

    tokenizer = load_tokenizer(source_of(plan, world))
    group, member, trajectory = trajectory_from_record(record)
    for row in rows_of(group, member, trajectory, None):
        print(f"{record['id']} part {row.origin.part}: {row.trained} of {len(row)} tokens are trained")
        pieces = [str(tokenizer.decode([int(token)])) for token in row.tokens]
        print("\n".join(lines(row, pieces, sys.stdout.isatty())))


def lines(row: Row, pieces: list[str], colour: bool) -> list[str]:
    """One line per token: mark, index, turn, id, text, log-probability, version."""
    out = ["    index turn     id      logp version text"]
    for i, piece in enumerate(pieces):
        trained = bool(row.sampled[i])
        known = trained and row.behaviour_logp[i] == row.behaviour_logp[i]
        logp = f"{row.behaviour_logp[i]:9.4f}" if known else " " * 9
        version = f"{row.versions[i]:7d}" if row.versions[i] >= 0 else " " * 7
        text = f"{'*' if trained else ' '} {i:7d} {row.turns[i]:4d} {row.tokens[i]:6d} {logp} {version} {piece!r}"
        out.append(f"\x1b[32m{text}\x1b[0m" if colour and trained else text)
    return out
