"""`strop timeline`: who was at work when in a run, and what the others waited for."""

import json
import shutil
from pathlib import Path
from typing import Annotated

import typer

from strop.config.stored import find_run
from strop.core.errors import UsageError


def timeline(
    run: Annotated[str, typer.Argument(help="Folder of a run, also of one that goes on.")],
    steps: Annotated[
        str | None, typer.Option("--steps", help="10:14 (both included), 10:, :14 or 10; the newest.")
    ] = None,
    svg: Annotated[Path | None, typer.Option("--svg", help="Write the picture to this file, with groups.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="The figures as one JSON object on stdout.")] = False,
) -> None:
    """Show when learner, engine and environments were at work, and for what they were idle."""
    path = find_run(run)
    from strop.report.timeline import as_json as figures_as_json
    from strop.report.timeline import chosen, lines
    from strop.report.timeline_drawing import drawn
    from strop.watch.run_folder import RunFolder

    records = chosen(run, RunFolder.open(path).timeline(), steps)
    if svg is not None:
        try:
            svg.write_text(drawn(records), encoding="utf-8")
        except OSError as error:
            raise UsageError(
                f"--svg {svg} cannot be written: {error}. Give a file in a folder that is there."
            ) from error
    if as_json:
        print(json.dumps({"run": run, **figures_as_json(records)}))
        return
    print("\n".join(lines(records, min(200, shutil.get_terminal_size((80, 24)).columns))))
