"""`strop explain`: what an update did, token by token. `strop compare`: what other rows of the table would have done."""

import json
from typing import Annotated

import typer

from strop.algorithms import ALGORITHMS
from strop.config.stored import find_run, stored_plan
from strop.core.errors import UsageError


def explain(
    run: Annotated[str, typer.Argument(help="Folder of a run.")],
    step: Annotated[int | None, typer.Option("--step", help="Step whose update is explained; the newest kept.")] = None,
    episode: Annotated[str | None, typer.Option("--episode", help="Only this one: train-000041/3.")] = None,
    most: Annotated[int, typer.Option("--most", min=1, help="Trajectories to print, largest share first.")] = 3,
) -> None:
    """Print, for each trained token of an update, who gave it which log-probability and what weight it had.

    `weight` is dL/dlogp: negative raises the token's probability. The share of a trajectory is its part of the sum of
    |weight| over the update.
    """
    path = find_run(run)
    from strop.watch.run_folder import RunFolder

    folder = RunFolder.open(path)
    _, plan, world = stored_plan(folder.run())
    from strop.loop.assemble import source_of
    from strop.loop.explain import explained, shares
    from strop.loop.replay import recorded
    from strop.model.load import load_tokenizer

    found = recorded(folder, plan, step)
    tokenizer = load_tokenizer(source_of(plan, world))
    views = explained(found.stage.algorithm, found.rows)
    ranked = shares(found.rows)
    wanted = [(g, m) for g, m, _ in ranked[:most]] if episode is None else [_parse(episode)]
    if episode is not None and wanted[0] not in {(g, m) for g, m, _ in ranked}:
        raise UsageError(f"episode {episode} had no trained token in step {found.step}; see `strop explain {run}`")
    print(f"step {found.step}, {found.stage.name}: {len(ranked)} trajectories, {len(views)} trained tokens")
    for group, member in wanted:
        share = next(s for g, m, s in ranked if (g, m) == (group, member))
        print(f"\n{group}/{member}: {share:.1%} of the update")
        print("turn  behaviour  proximal   current    ratio  advantage clip     weight  text")
        for view in views:
            if (view.row.origin.group, view.row.origin.member) == (group, member):
                text = repr(str(tokenizer.decode([int(view.row.tokens[view.index])])))
                proximal = "         " if view.proximal != view.proximal else f"{view.proximal:9.4f}"
                print(
                    f"{view.row.turns[view.index]:4d}  {view.behaviour:9.4f} {proximal} {view.current:9.4f} "
                    f"{view.ratio:8.4f}  {view.advantage:9.4f}  {'*' if view.clipped else ' '}  {view.weight:10.2e}  {text}"
                )


def _parse(episode: str) -> tuple[str, int]:
    group, slash, member = episode.rpartition("/")
    if not slash or not member.isdigit():
        raise UsageError(f"--episode {episode!r}: write it as group/member, for example train-000041/3")
    return group, int(member)


def compare(
    run: Annotated[str, typer.Argument(help="Folder of a run.")],
    step: Annotated[int | None, typer.Option("--step", help="Step whose batch is taken; the newest kept.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="A JSON list of objects on stdout.")] = False,
) -> None:
    """Put one recorded batch through every on-policy row: token weights, gradients, clipped share.

    `distance` is |w - w'| between the row's token weights and grpo's, both scaled to length 1. Cosine and variance
    are of gradients at the newest checkpoint; the variance is relative to the squared length of the row's own gradient.
    """
    path = find_run(run)
    from strop.watch.run_folder import RunFolder

    folder = RunFolder.open(path)
    _, plan, world = stored_plan(folder.run())
    from strop.loop.explain import compared, distance, gradients
    from strop.loop.replay import recorded, sampled_only
    from strop.loop.restore import restored

    found = recorded(folder, plan, step)
    if found.stage.algorithm.data != "on_policy" or not found.groups:
        raise UsageError(f"step {found.step} is no reinforcement step whose episodes are kept; choose another --step")
    found = sampled_only(found)
    longest = float(plan.limits.longest)
    table = {name: row.within(longest) for name, row in {"grpo": ALGORITHMS["grpo"], **ALGORITHMS}.items()}
    comparisons = compared(table, found.rows, found.groups)
    parts, _ = restored(plan, world, path)
    cosines, variances = gradients(parts.policy, found.rows, comparisons, plan.temperature)
    rows = [
        {
            "name": c.name,
            "clipped": c.clipped,
            "distance": distance(c.weights, comparisons[0].weights),
            "cosine": float(cosine),
            "variance": float(variance),
            "note": c.note,
        }
        for c, cosine, variance in zip(comparisons, cosines, variances, strict=True)
    ]
    if as_json:
        print(json.dumps(rows, indent=1))
        return
    print(f"step {found.step}, trained with {found.stage.name}: {len(found.rows)} rows that the policy sampled")
    print(f"{'row':24s} clipped  distance  cosine  variance")
    for row in rows:
        numbers = f"{row['clipped']:7.3f}  {row['distance']:8.3f}  {row['cosine']:6.3f}  {row['variance']:8.3g}"
        print(f"{row['name']:24s} {numbers}  {row['note']}")
