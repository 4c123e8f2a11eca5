"""From a plan to live parts. Invariant: engine and learner share one set of weights exactly when no data is stale."""

import asyncio
import copy
import gc
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import torch

from strop.codec.chat import ChatCodec, with_default_template
from strop.core.engine import Sampling
from strop.core.guard import OnUpdate
from strop.core.source import ModelSource
from strop.core.spans import Spans
from strop.core.world import World
from strop.engine.endpoint import TokenEndpoint
from strop.engine.local import LocalEngine
from strop.engine.process import ProcessEngine
from strop.learn.learner import LocalLearner
from strop.loop.plan import History, Plan
from strop.loop.teachers import load_teachers
from strop.model.load import generation_stop_ids, load
from strop.model.policy import Policy
from strop.rollout.group import MAX_SESSIONS, Table

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Parts:
    """The live parts of a run.

    Args:
        world, policy, table: what is played, by whom, and the shared facts of all episodes.
        engine: samples training data.
        examiner: an engine of its own for evaluation and preflight, so that they change no bit of training.
        learner: trains the policy.
        shared: whether the engine reads the learner's weights, at its side or when they are published.
        sampling: how training data is sampled.
        notes: what was assumed, to be said aloud.
        overlapping: whether rollouts go on while the learner works (`max_lag` above 0).
        teachers: tags of the learner's teachers, in their order.
        endpoint: the served teacher, if that is who teaches.
    """

    world: World
    policy: Policy
    table: Table
    engine: LocalEngine | ProcessEngine
    examiner: LocalEngine
    learner: LocalLearner
    shared: bool
    sampling: Sampling
    notes: tuple[str, ...]
    overlapping: bool = False
    teachers: tuple[str, ...] = ()
    endpoint: TokenEndpoint | None = None

    async def aside(self, work: Callable[[], T]) -> T:
        """Do the learner's work: beside the event loop where rollouts go on meanwhile, else right here."""
        return await asyncio.to_thread(work) if self.overlapping else work()

    def close(self) -> None:
        """End what runs in processes of its own, and leave those that are served."""
        if isinstance(self.engine, ProcessEngine):
            self.engine.close()
        if self.endpoint is not None:
            self.endpoint.close()


def source_of(plan: Plan, world: World) -> ModelSource:
    """The plan's model with the world's pieces filled in (a model built from nothing gets a token for each)."""
    return replace(plan.model, pieces=world.pieces, closed=world.closed) if plan.model.preset else plan.model


def chat(policy: Policy, stop: tuple[str, ...], history: History) -> tuple[Policy, ChatCodec, tuple[str, ...]]:
    """The policy with a chat template for sure, its codec, and what has to be said about them."""
    tokenizer, note = with_default_template(policy.tokenizer)
    codec = ChatCodec(tokenizer, generation_stop_ids(policy), stop, history)
    notes = (*policy.notes, note, *codec.notes, codec.prefix_note)
    return replace(policy, tokenizer=tokenizer), codec, tuple(n for n in notes if n)


def assemble(plan: Plan, world: World) -> Parts:
    """Load the model and connect the parts."""
    torch.set_num_threads(plan.threads)
    policy, codec, notes = chat(load(source_of(plan, world)), plan.stop, plan.history)
    limits = plan.limits
    if policy.window is not None and policy.window < limits.context:
        limits = replace(limits, context=policy.window)
    spans = Spans()
    table = Table(world, codec, limits, codec.append_only, plan.seed, plan.failed, spans)
    sampling = Sampling(limits.turn_tokens, plan.temperature)
    sampling.check_trainable()
    alone = plan.engine == "process"
    shared = alone or (all(stage.publish_every == 1 for stage in plan.stages) and not plan.max_lag)
    sampled_from = policy if shared else replace(policy, model=copy.deepcopy(policy.model))
    most = max(stage.groups * stage.group_size for stage in plan.stages) * (plan.max_lag + 1)
    slots = max(MAX_SESSIONS, most)
    teachers = load_teachers(plan, policy, codec.stop_ids)
    early = tuple(rule for rule in plan.guarding.rules if isinstance(rule, OnUpdate))
    parts = Parts(
        world,
        policy,
        table,
        ProcessEngine(policy, codec.stop_ids, plan.threads, spans=spans, max_slots=slots, in_flight=plan.in_flight)
        if alone
        else LocalEngine(sampled_from, codec.stop_ids, max_slots=slots, in_flight=plan.in_flight, spans=spans),
        LocalEngine(policy, codec.stop_ids),
        LocalLearner(
            policy, plan.temperature, plan.seed, next(iter(teachers.policies), None), early, teachers.policies[1:]
        ),
        shared,
        sampling,
        (*notes, *teachers.notes),
        plan.max_lag > 0,
        tuple(plan.teachers),
        teachers.endpoint,
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
