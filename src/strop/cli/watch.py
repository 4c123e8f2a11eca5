"""`strop watch`: what the watch saw of a run."""

import json
from dataclasses import asdict
from typing import Annotated

import typer

from strop.config.stored import find_run


def watch(
    run: Annotated[str, typer.Argument(help="Folder of a run, also of one that goes on.")],
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object on stdout.")] = False,
) -> None:
    """Print the alarms of a run with what to do about them, and the curves they are about."""
    path = find_run(run)
    from strop.report.alarms import alarms, curves, lines
    from strop.watch.run_folder import RunFolder

    folder = RunFolder.open(path)
    told, shown = alarms(folder.alarms()), curves(folder.metrics())
    if as_json:
        print(json.dumps({"run": run, "alarms": told, "curves": [asdict(curve) for curve in shown]}))
        return
    print("\n".join(lines(told, shown)))
