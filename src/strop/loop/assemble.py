"""From a plan to live parts. Invariant: engine and learner share one set of weights exactly when no data is stale."""

import copy
import gc
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch

from strop.codec.chat import ChatCodec, with_default_template
from strop.core.engine import Sampling
from strop.core.errors import UsageError
from strop.core.guard import OnUpdate
from strop.core.source import ModelSource
from strop.core.world import World
from strop.engine.local import LocalEngine
from strop.learn.learner import LocalLearner
from strop.loop.plan import History, Plan
from strop.model.load import generation_stop_ids, load
from strop.model.policy import Policy
from strop.rollout.group import MAX_SESSIONS, Table


@dataclass(frozen=True, slots=True)
class Parts:
    """The live parts of a run.

    Args:
        world, policy, table: what is played, by whom, and the shared facts of all episodes.
        engine: samples training data.
        examiner: an engine of its own for evaluation and preflight, so that they change no bit of training.
        learner: trains the policy.
        shared: whether engine and learner share weights.
        sampling: how training data is sampled.
        notes: what was assumed, to be said aloud.
    """

    world: World
    policy: Policy
    table: Table
    engine: LocalEngine
    examiner: LocalEngine
    learner: LocalLearner
    shared: bool
    sampling: Sampling
    notes: tuple[str, ...]


def source_of(plan: Plan, world: World) -> ModelSource:
    """The plan's model with the world's pieces filled in (a model built from nothing gets a token for each)."""
    return replace(plan.model, pieces=world.pieces, closed=world.closed) if plan.model.preset else plan.model


def chat(policy: Policy, stop: tuple[str, ...], history: History) -> tuple[Policy, ChatCodec, tuple[str, ...]]:
    """The policy with a chat template for sure, its codec, and what has to be said about them."""
    tokenizer, note = with_default_template(policy.tokenizer)
    codec = ChatCodec(tokenizer, generation_stop_ids(policy), stop, history)
    notes = (*policy.notes, note, *codec.notes, codec.prefix_note)
    return replace(policy, tokenizer=tokenizer), codec, tuple(n for n in notes if n)


def teacher_of(plan: Plan, policy: Policy) -> Policy | None:
    """The teacher, frozen, if the plan names one; its vocabulary must be the policy's.

    Raises:
        UsageError: an id means another token to the teacher, or the numbers of ids differ.
    """
    if plan.teacher is None:
        return None
    teacher = load(replace(plan.model, path=plan.teacher, preset=None))
    mine, theirs = policy.tokenizer.get_vocab(), teacher.tokenizer.get_vocab()
    different = [token for token, index in mine.items() if theirs.get(token) != index]
    if different or policy.vocabulary != teacher.vocabulary:
        raise UsageError(
            f"the teacher {plan.teacher} has {teacher.vocabulary} ids and the policy {policy.vocabulary}; {len(different)} "
            "tokens differ. Distillation on tokens needs one vocabulary; choose a teacher of the same family."
        )
    for parameter in teacher.model.parameters():
        parameter.requires_grad_(False)
    return teacher


def assemble(plan: Plan, world: World) -> Parts:
    """Load the model and connect the parts."""
    torch.set_num_threads(plan.threads)
    policy, codec, notes = chat(load(source_of(plan, world)), plan.stop, plan.history)
    limits = plan.limits
    if policy.window is not None and policy.window < limits.context:
        limits = replace(limits, context=policy.window)
    table = Table(world, codec, limits, codec.append_only, plan.seed)
    sampling = Sampling(limits.turn_tokens, plan.temperature)
    sampling.check_trainable()
    shared = all(stage.publish_every == 1 for stage in plan.stages)
    sampled_from = policy if shared else replace(policy, model=copy.deepcopy(policy.model))
    most = max(stage.groups * stage.group_size for stage in plan.stages)
    early = tuple(rule for rule in plan.guarding.rules if isinstance(rule, OnUpdate))
    parts = Parts(
        world,
        policy,
        table,
        LocalEngine(sampled_from, codec.stop_ids, max_slots=max(MAX_SESSIONS, most)),
        LocalEngine(policy, codec.stop_ids),
        LocalLearner(policy, plan.temperature, plan.seed, teacher_of(plan, policy), early),
        shared,
        sampling,
        notes,
    )
    # What is loaded stays for the whole run: keep it out of the garbage collector's full rounds. What an earlier run in
    # this process left behind goes first.
    gc.unfreeze()
    gc.collect()
    gc.freeze()
    return parts


def weights_for_engine(parts: Parts, version: int) -> Mapping[str, Any] | None:
    """What the engine loads at a publication: nothing where weights are shared."""
    return None if parts.shared else parts.learner.publish(version)
