"""From a checked run file to a plan: where the table, the world and the sections meet. Imports no torch.

Invariant: a combination that means nothing is refused here, with the reason and what to change, before a model loads.
"""

from dataclasses import replace
from pathlib import Path

from strop.algorithms import ALGORITHMS
from strop.config.resolve import Resolved
from strop.config.sections import RunSection, StageSection
from strop.core.algorithm import (
    Algorithm,
    Constant,
    CrossEntropy,
    Entropy,
    GroupMean,
    LeaveOneOut,
    NoRatio,
    Schedule,
    Term,
)
from strop.core.errors import UsageError
from strop.core.source import ModelSource
from strop.core.world import World
from strop.envs.catalogue import nearest, world
from strop.learn.schedule import Optimisation
from strop.loop.plan import Evaluating, Keeping, Logging, Plan, Preflighting, StagePlan
from strop.rollout.limits import Limits


def plan_of(resolved: Resolved) -> tuple[Plan, World]:
    """The plan of a run file and its world.

    Raises:
        UsageError: a value or a combination cannot work.
    """
    run = resolved.run
    if run.max_lag:
        raise UsageError(
            f"max_lag is {run.max_lag}; only 0 (synchronous) is built so far. Use stages.*.publish_every for stale data."
        )
    made = world(run.env, run.world)
    made.split("train")
    r = run.rollout
    if made.turns is not None and r.turns < made.turns:
        raise UsageError(
            f"rollout.turns is {r.turns}, but an episode of {made.name!r} may take {made.turns}; raise rollout.turns to it"
        )
    _check_algorithm(run)
    limits = Limits(r.turns, r.turn_tokens, r.tokens, r.context, r.seconds)
    stages = tuple(_stage(run, stage, index, limits, made) for index, stage in enumerate(run.stages))
    k, e, p = run.keep, run.evaluate, run.preflight
    plan = Plan(
        env=run.env,
        world=run.world,
        seed=run.seed,
        model=_model(resolved),
        threads=run.model.threads,
        stop=tuple(run.model.stop),
        history=r.history,
        temperature=r.temperature,
        limits=limits,
        max_failures=r.max_failures,
        stages=stages,
        evaluating=Evaluating(e.every, e.episodes),
        keeping=Keeping(k.steps, k.last, k.every, k.best),
        preflighting=Preflighting(p.tasks, p.members, p.block),
        logging=Logging(k.episodes_mb, k.updates, k.samples),
        resolved={key: {"value": value, "source": source} for key, (value, source) in resolved.sources.items()},
    )
    return plan, made


def _check_algorithm(run: RunSection) -> None:
    """[algorithm] must name a row, and must be used by some stage if it says anything."""
    if run.algorithm.base not in ALGORITHMS:
        raise UsageError(
            f"algorithm.base {run.algorithm.base!r} is not in the table; {nearest(run.algorithm.base, tuple(ALGORITHMS))}"
        )
    if run.algorithm.model_fields_set and not any(stage.kind == "reinforce" for stage in run.stages):
        raise UsageError("[algorithm] has no effect: no stage is of kind reinforce. Remove it or add such a stage.")


def _model(resolved: Resolved) -> ModelSource:
    m = resolved.run.model
    if (m.path is None) == (m.preset is None):
        raise UsageError('give model.path (a directory or hub id) or model.preset = "tiny", and not both')
    if m.path is not None:
        check_path(m.path)
        for key in ("width", "layers", "heads"):
            if resolved.sources[f"model.{key}"][1] != "default":
                raise UsageError(f"model.{key} has no effect with model.path; it sizes the preset. Remove it.")
    elif m.checkpointing and m.layers < 2:
        raise UsageError("model.checkpointing saves nothing in a model of one layer; remove it")
    if m.width % (2 * m.heads):
        raise UsageError(
            f"model.width {m.width} is no multiple of twice model.heads {m.heads}; choose, for example, {m.heads * 16}"
        )
    return ModelSource(
        path=m.path,
        preset=m.preset,
        width=m.width,
        layers=m.layers,
        heads=m.heads,
        context=resolved.run.rollout.context,
        dtype=m.dtype,
        device=m.device,
        seed=resolved.run.seed,
        checkpointing=m.checkpointing,
    )


def check_path(path: str) -> None:
    """Refuse a model path that looks local and does not exist; a hub id (`name` or `owner/name`) is left to the hub."""
    local = path.startswith((".", "/", "~")) or path.endswith(".gguf") or path.count("/") > 1
    if local and not Path(path).expanduser().exists():
        raise UsageError(f"model.path {path} does not exist; give a model directory, a .gguf file or a hub id")


def _stage(run: RunSection, stage: StageSection, index: int, limits: Limits, made: World) -> StagePlan:
    """One stage of the plan, its overrides filled in."""
    where = f"stages.{index}"
    size = 1 if stage.kind == "warm_start" else stage.group_size or run.rollout.group_size
    _refuse_without_effect(stage, where)
    if stage.kind == "warm_start" and made.demonstrate is None:
        raise UsageError(
            f"{where} is a warm_start, but world {made.name!r} has no scripted player. Remove the stage, or give the World "
            "a `demonstrate`."
        )
    name = {"warm_start": "sft", "rounds": "expert_iteration"}.get(stage.kind, run.algorithm.base)
    algorithm = _algorithm(run, stage, name, where, limits)
    _check_group(algorithm, name, size, where)
    if stage.publish_every > 1 and isinstance(algorithm.ratio, NoRatio):
        raise UsageError(
            f"{where}.publish_every is {stage.publish_every}, so its data is stale, but {name} has no importance ratio. "
            "Use an algorithm with one (grpo, dr_grpo) or publish_every = 1."
        )
    groups = stage.groups or run.rollout.groups
    chosen = {key: getattr(stage, key) for key in ("lr", "lr_end", "warmup", "epochs", "minibatches")}
    base = run.learner.model_dump()
    optimisation = Optimisation(**{**base, **{k: v for k, v in chosen.items() if v is not None}})
    if optimisation.minibatches > groups:
        raise UsageError(
            f"minibatches is {optimisation.minibatches} but a batch of {where} has {groups} groups; a minibatch holds whole "
            "groups. Lower minibatches or raise groups."
        )
    return StagePlan(stage.kind, name, algorithm, stage.steps, groups, size, optimisation, stage.publish_every)


def _refuse_without_effect(stage: StageSection, where: str) -> None:
    """Options that would do nothing in this kind of stage."""
    given = stage.model_fields_set
    for key, kinds in (("group_size", ("warm_start",)), ("publish_every", ("warm_start",))):
        if key in given and stage.kind in kinds:
            raise UsageError(f"{where}.{key} has no effect in a {stage.kind} stage; remove it")


def _algorithm(run: RunSection, stage: StageSection, name: str, where: str, limits: Limits) -> Algorithm:
    row = ALGORITHMS[name]
    expected = {"warm_start": "demonstrations", "rounds": "rounds"}.get(stage.kind, "on_policy")
    if row.data != expected:
        fitting = [n for n, a in ALGORITHMS.items() if a.data == expected]
        kind = {"demonstrations": "warm_start", "rounds": "rounds"}.get(row.data, "reinforce")
        raise UsageError(
            f"{where} is a {stage.kind} stage, but {name} learns from {row.data.replace('_', '-')} data. Use kind = "
            f'"{kind}", or one of {", ".join(fitting)}.'
        )
    terms: list[Term] = list(row.terms)
    if stage.kind == "reinforce":
        a = run.algorithm
        if a.length is not None and not isinstance(row.aggregate, Constant):
            raise UsageError(f"algorithm.length has no effect on {name}, which is not divided by a constant; remove it")
        if a.entropy_end is not None and not a.entropy:
            raise UsageError(
                "algorithm.entropy_end has no effect while algorithm.entropy is 0; set algorithm.entropy too"
            )
        if a.entropy:
            terms.append(Entropy(Schedule(a.entropy, a.entropy if a.entropy_end is None else a.entropy_end)))
        if isinstance(row.aggregate, Constant):
            row = replace(row, aggregate=Constant(a.length or float(limits.longest)))
    if stage.observations:
        terms.append(CrossEntropy(stage.observations))
    return replace(row, terms=tuple(terms))


def _check_group(algorithm: Algorithm, name: str, size: int, where: str) -> None:
    credit = algorithm.credit
    what = "a group mean" if isinstance(credit, GroupMean) else "leave-one-out"
    if isinstance(credit, GroupMean | LeaveOneOut) and size < 2:
        raise UsageError(
            f"group_size is {size} in {where}; {what} ({name}) needs at least 2. Use reinforce or raise rollout.group_size."
        )
