"""From a checked run file to a plan: where the table, the world and the sections meet. Imports no torch.

Invariant: a combination that means nothing is refused here, with the reason and what to change, before a model loads.
"""

import math

from strop.config.guidance import guide_of
from strop.config.models import check_path as check_path
from strop.config.models import check_teachers, model_of, teachers_of
from strop.config.resolve import Resolved
from strop.config.rows import algorithm_of, check, stale_fault, trains_process, uses_process
from strop.config.sampling import sampler_of
from strop.config.sections import GuardSection, RunSection, StageSection
from strop.config.selfteacher import check_self_teacher
from strop.config.served import check_served
from strop.config.teaching import demonstrating
from strop.core.errors import UsageError
from strop.core.faults import Failed, Refill, Retry
from strop.core.guard import (
    DEFAULT,
    ClippedAbove,
    EffectiveBelow,
    LengthBelow,
    NoSuccess,
    RepetitionAbove,
    Rule,
    ShareAbove,
    SignalBelow,
)
from strop.core.notation import read, word, written
from strop.core.world import World
from strop.envs.catalogue import nearest, world
from strop.learn.schedule import Optimisation
from strop.loop.plan import Evaluating, Guarding, Keeping, Logging, Plan, Preflighting, StagePlan, Watching
from strop.rollout.limits import Limits
from strop.watch.alarms import NAMES

SHARES = (EffectiveBelow, ShareAbove, ClippedAbove, RepetitionAbove, LengthBelow, SignalBelow)
"""Rules of the guard whose limit is a share."""


def plan_of(resolved: Resolved) -> tuple[Plan, World]:
    """The plan of a run file and its world.

    Raises:
        UsageError: a value or a combination cannot work.
    """
    run = resolved.run
    made = world(run.env, run.world)
    made.split("train")
    r = run.rollout
    if made.turns is not None and r.turns < made.turns:
        raise UsageError(
            f"rollout.turns is {r.turns}, but an episode of {made.name!r} may take {made.turns}; raise rollout.turns to it"
        )
    limits = Limits(r.turns, r.turn_tokens, r.tokens, r.context, r.seconds, r.step_seconds)
    stages = tuple(_stage(run, stage, index, limits, made) for index, stage in enumerate(run.stages))
    _check_stages(run, stages)
    _check_lag(run, stages)
    if run.rollout.guide != "none" and not any(stage.guide for stage in stages):
        raise UsageError("rollout.guide has no effect: no stage is of kind reinforce. Remove it.")
    model = model_of(resolved)
    teachers = teachers_of(run, model)
    check_served(teachers, run.model.teacher_ids, r.temperature, stages)
    check_teachers(teachers, run.model.teacher_ids, stages, made)
    k, e, p = run.keep, run.evaluate, run.preflight
    plan = Plan(
        env=run.env,
        world=run.world,
        seed=run.seed,
        model=model,
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
        watching=_watching(run.watch.stop, made),
        guarding=_guarding(run.guard),
        teachers=teachers,
        teacher_ids=run.model.teacher_ids,
        max_lag=run.max_lag,
        in_flight=r.in_flight,
        engine=r.engine,
        failed=_failed(r.failed),
        sampler=sampler_of(run, stages, made),
        resolved={key: {"value": value, "source": source} for key, (value, source) in resolved.sources.items()},
    )
    return plan, made


def _watching(stop: list[str], made: World) -> Watching:
    """The alarms that stop the run."""
    for name in stop:
        if name not in NAMES:
            raise UsageError(f"watch.stop {name!r} is no alarm; {nearest(name, NAMES)}")
        if name == "proxy_gap" and made.independent is None:
            raise UsageError(
                f"watch.stop names proxy_gap, but world {made.name!r} has no independent verifier, so that it would never "
                "be raised. Give the World an `independent`, or remove it."
            )
    return Watching(tuple(stop))


def _failed(text: str) -> Failed:
    """What becomes of a group with a failed member."""
    rule: Failed = read("failed", text, "rollout.failed")
    number = rule.attempts if isinstance(rule, Retry) else rule.most if isinstance(rule, Refill) else 1
    if number < 1:
        raise UsageError(f"rollout.failed is {text}; its number must be at least 1. Use partial for none.")
    return rule


def _check_lag(run: RunSection, stages: tuple[StagePlan, ...]) -> None:
    """Lag needs a stage that can have it, and weights that are published after every step."""
    slow = next((index for index, stage in enumerate(stages) if stage.publish_every > 1), None)
    if run.rollout.engine == "process" and slow is not None:
        raise UsageError(
            f'rollout.engine is "process" and stages.{slow}.publish_every is {stages[slow].publish_every}; a checkpoint could '
            'not hold the older weights of another process. Use rollout.engine = "local", or max_lag for stale data.'
        )
    if not run.max_lag:
        if "in_flight" in run.rollout.model_fields_set:
            raise UsageError(
                "rollout.in_flight has no effect at max_lag = 0: nothing is in flight when weights change. Remove it, or raise "
                "max_lag."
            )
        return
    lagging = [(index, stage) for index, stage in enumerate(stages) if stage.kind == "reinforce"]
    if not lagging:
        raise UsageError(
            f"max_lag is {run.max_lag}, but no stage is of kind reinforce; the other kinds wait for nobody. Remove it."
        )
    for index, stage in lagging:
        if stage.publish_every > 1:
            raise UsageError(
                f"max_lag is {run.max_lag} and stages.{index}.publish_every is {stage.publish_every}; both make data stale, "
                "and the bound would hold for neither. Leave publish_every at 1, or max_lag at 0."
            )


def _guarding(given: GuardSection) -> Guarding:
    """The rules of the guard, each within its range and given once."""
    texts = given.rules
    rules: tuple[Rule, ...] = DEFAULT if texts is None else tuple(read("guard", text, "guard.rules") for text in texts)
    for index, rule in enumerate(rules):
        limit = rule.steps if isinstance(rule, NoSuccess) else rule.limit
        most = 1.0 if isinstance(rule, SHARES) else math.inf
        if not 0 < limit < most:
            above = "above 0" if most == math.inf else "between 0 and 1"
            raise UsageError(f"guard.rules {written(rule)}: the limit of {word(rule)} must be {above}")
        if any(type(rule) is type(other) for other in rules[:index]):
            raise UsageError(f"guard.rules has {word(rule)} twice; give it once")
    if "rollbacks" in given.model_fields_set and all(rule.action != "rollback" for rule in rules):
        raise UsageError('guard.rollbacks has no effect: no rule goes back. Give one, such as "kl(1.0, rollback)".')
    return Guarding(rules, given.rollbacks)


def _check_stages(run: RunSection, stages: tuple[StagePlan, ...]) -> None:
    """What stages need of each other and of the run, and what nobody uses."""
    if run.algorithm.model_fields_set and all(stage.name != run.algorithm.base for stage in stages):
        raise UsageError(
            f"[algorithm] has no effect: no stage learns by {run.algorithm.base}. Remove it or add such a stage."
        )
    trained = False
    for index, stage in enumerate(stages):
        if uses_process(stage.algorithm) and not trained:
            raise UsageError(
                f"stages.{index} ({stage.name}) needs a process reward model, and no stage before it trains one. Put a stage "
                'with algorithm = "process_reward" before it.'
            )
        trained = trained or trains_process(stage.algorithm)


def _stage(run: RunSection, stage: StageSection, index: int, limits: Limits, made: World) -> StagePlan:
    """One stage of the plan, its overrides filled in."""
    where = f"stages.{index}"
    size = 1 if stage.kind == "warm_start" else stage.group_size or run.rollout.group_size
    _refuse_without_effect(stage, where)
    name, algorithm = algorithm_of(run, stage, where, limits)
    check(name, algorithm, size, made, run.model.teacher is not None, where)
    taught = demonstrating(stage, algorithm, made, run.model.teacher is not None, where)
    lag = run.max_lag if stage.kind == "reinforce" else 0
    if (stage.publish_every > 1 or lag) and stale_fault(algorithm) and run.algorithm.ratio != "none":
        stale = f"max_lag is {lag}" if lag else f"{where}.publish_every is {stage.publish_every}"
        raise UsageError(
            f"{stale}, so the data of {where} is stale, but {name} has no importance ratio. Use an algorithm with one (grpo, "
            'dr_grpo), fresh data (max_lag = 0, publish_every = 1), or ask for it: algorithm.ratio = "none".'
        )
    groups = stage.groups or run.rollout.groups
    chosen = {key: getattr(stage, key) for key in ("lr", "epochs", "minibatches")}
    base = run.learner.model_dump()
    settings = {**base, **{k: v for k, v in chosen.items() if v is not None}}
    if settings["minibatches"] is None:
        settings["minibatches"] = min(algorithm.updates, groups)
    optimisation = Optimisation(**settings)
    if optimisation.minibatches > groups:
        raise UsageError(
            f"minibatches is {optimisation.minibatches} but a batch of {where} has {groups} groups; a minibatch holds whole "
            "groups. Lower minibatches or raise groups."
        )
    made.split(stage.split)
    check_self_teacher(algorithm, made, size, stage.split, where)
    helped = guide_of(run.rollout.guide, algorithm, made, where) if stage.kind == "reinforce" else None
    return StagePlan(
        stage.kind,
        name,
        algorithm,
        stage.steps,
        groups,
        size,
        optimisation,
        stage.publish_every,
        stage.split,
        helped,
        taught,
    )


def _refuse_without_effect(stage: StageSection, where: str) -> None:
    """Options that would do nothing in this kind of stage."""
    given = stage.model_fields_set
    for key, kinds in (("group_size", ("warm_start",)), ("publish_every", ("warm_start",))):
        if key in given and stage.kind in kinds:
            raise UsageError(f"{where}.{key} has no effect in a {stage.kind} stage; remove it")
