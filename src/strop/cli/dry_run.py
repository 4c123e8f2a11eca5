"""`--dry-run`: what a run would do: resolved values, planned updates, memory, and the first prompt token by token."""

import asyncio

from strop.cli.masks import lines
from strop.core.world import World
from strop.loop.plan import Plan


def describe(plan: Plan, world: World) -> None:
    """Print it all; loads the model (for the first prompt), trains nothing, writes nothing."""
    for key, entry in plan.resolved.items():
        print(f"{key} = {entry['value']!r}   # {entry['source']}")
    print()
    for index, stage in enumerate(plan.stages):
        episodes = stage.steps * stage.groups * stage.group_size
        print(
            f"stage {index} {stage.kind}: {stage.name}, {stage.steps} steps, {stage.updates} updates, {episodes} episodes"
        )
    from strop.loop.assemble import assemble

    parts = assemble(plan, world)
    for note in parts.notes:
        print(f"note: {note}")
    print(
        memory(
            plan, parts.policy.model.num_parameters(), parts.policy.vocabulary, parts.policy.model.config.hidden_size
        )
    )
    from strop.rollout.group import play_group
    from strop.rollout.rows import rows_of

    group = asyncio.run(play_group(parts.table, world.split("train")[0], 1, parts.examiner, parts.sampling, "play", 0))
    print(f"\nfirst task {group.task.id}: what the untrained model sees and samples (* is trained)")
    for row in rows_of(group.id, 0, group.trajectories[0], None):
        print("\n".join(lines(row, [str(parts.policy.tokenizer.decode([int(t)])) for t in row.tokens], False)))


def memory(plan: Plan, parameters: int, vocabulary: int, width: int) -> str:
    """An estimate of memory: weights, gradients, AdamW's two moments, activations of a micro-batch, logits of two chunks."""
    from strop.model.forward import CHUNK

    item = 2 if plan.model.dtype == "bfloat16" else 4
    fixed = parameters * (item + 4 * (3 if item == 4 else 4))
    budget = max(stage.optimisation.token_budget for stage in plan.stages)
    logits = 2 * CHUNK * vocabulary * 4
    hidden = budget * width * item * 40
    return (
        f"memory, estimated: {parameters:,} parameters; weights, gradients, optimizer {fixed / 1e6:.0f} MB; activations of "
        f"{budget} tokens about {hidden / 1e6:.0f} MB a layer block; logits {logits / 1e6:.0f} MB (two chunks of {CHUNK})"
    )
