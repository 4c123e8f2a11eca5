"""A teacher and saved games for the small runs of `tests/loop/runs.py`."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from strop.config.stored import stored_plan
from strop.envs.guess import opening
from strop.loop.restore import restored
from strop.model.load import save
from strop.watch.run_folder import RunFolder
from tests.loop.runs import start


def taught(folder: Path) -> tuple[Path, Path]:
    """(a model directory, the run that made it): a short imitation of the player of the small game."""
    run, model = folder / "made", folder / "model"
    start(run, {"stages": [{"kind": "warm_start", "steps": 6, "groups": 16, "lr": 0.08}], "seed": 5})
    _, plan, world = stored_plan(RunFolder.open(run).run())
    parts, _ = restored(plan, world, run)
    save(parts.policy, model)
    return model, run


def game(secret: int, guesses: Sequence[int], **more: Any) -> dict[str, Any]:
    """A game of 4 numbers as a line of text: `messages`, and what else is given."""
    messages = [{"role": "user", "content": opening(4, 2)}]
    for guess in guesses:
        messages.append({"role": "assistant", "content": str(guess)})
        if guess != secret:
            messages.append({"role": "user", "content": "higher" if secret > guess else "lower"})
    return {"messages": messages, **more}


def written(path: Path, records: Sequence[Any]) -> Path:
    """A file of JSON lines."""
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path
