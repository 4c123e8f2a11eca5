"""`strop export`: a directory that plain `transformers` loads."""

from pathlib import Path
from typing import Annotated

import typer

from strop.config.stored import find_run, stored_plan
from strop.core.errors import UsageError


def export(
    run: Annotated[str, typer.Argument(help="Folder of a run.")],
    directory: Annotated[str, typer.Argument(help="Where to write the model; must not hold files.")],
    best: Annotated[bool, typer.Option("--best", help="The best checkpoint instead of the newest.")] = False,
) -> None:
    """Write a run's model, tokenizer and chat template as a plain model directory."""
    path, target = find_run(run), Path(directory)
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise UsageError(f"{directory} is not an empty directory; nothing was written. Give a new one.")
    from strop.watch.run_folder import RunFolder

    _, plan, world = stored_plan(RunFolder.open(path).run())
    from strop.loop.restore import restored
    from strop.model.load import save

    parts, name = restored(plan, world, path, best)
    try:
        save(parts.policy, target)
    except OSError as problem:
        raise UsageError(f"{directory} cannot be written: {problem.strerror or problem}. Give another place.") from None
    print(f"exported {name} of {run} to {directory}; load it with AutoModelForCausalLM.from_pretrained({directory!r})")
