"""A finished or running run's policy, for evaluation, play and export."""

from pathlib import Path

from strop.core.errors import UsageError
from strop.core.world import World
from strop.learn import checkpoint
from strop.loop.assemble import Parts, assemble
from strop.loop.plan import Plan


def restored(plan: Plan, world: World, run: Path, best: bool = False) -> tuple[Parts, str]:
    """Live parts with the weights of the newest complete checkpoint (or the best one), and its name.

    Raises:
        UsageError: the run has no complete checkpoint.
    """
    newest, _ = checkpoint.newest(run / "checkpoints")
    if newest is None:
        raise UsageError(f"{run} has no complete checkpoint yet; train on with strop train --resume {run}")
    saved = checkpoint.load(newest)
    if best and saved.state["position"]["best"]:
        saved = checkpoint.load(run / "checkpoints" / saved.state["position"]["best"]["name"])
    parts = assemble(plan, world)
    parts.policy.model.load_state_dict(dict(saved.tensors["model"]))
    return parts, saved.path.name
