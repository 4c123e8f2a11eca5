"""Run files: every mistake is named, with what to do; every key has an effect; nothing heavy is imported for it."""

import copy
import json
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from strop.algorithms import ALGORITHMS
from strop.config.planning import plan_of
from strop.config.resolve import apply_sets, known_keys, read_file, resolve
from strop.config.rows import DATA, uses_process
from strop.config.stored import find_run, run_record, stored_plan
from strop.core.algorithm import (
    KL,
    Algorithm,
    Band,
    Constant,
    Entropy,
    GrowingClip,
    LeaveOneOut,
    NoClip,
    NoRatio,
    Observations,
    One,
    PrefixRatio,
    Rounds,
)
from strop.core.errors import UsageError
from strop.core.notation import written
from strop.core.selection import Kept
from strop.loop.plan import Demonstrating, Plan

BASE: dict[str, Any] = {
    "env": "guess",
    "model": {"preset": "tiny"},
    "stages": [{"kind": "warm_start", "steps": 3}, {"kind": "reinforce", "steps": 5}],
}


def with_changes(changes: Mapping[str, Any]) -> dict[str, Any]:
    """The base with flat changes; None takes a key away."""
    out = copy.deepcopy(BASE)
    for key, value in changes.items():
        *path, last = key.split(".")
        spot: Any = out
        for part in path:
            spot = spot[int(part)] if isinstance(spot, list) else spot.setdefault(part, {})
        if value is None:
            spot.pop(last, None)
        else:
            spot[last] = value
    return out


def plan(changes: Mapping[str, Any] | None = None) -> Plan:
    return plan_of(resolve(with_changes(changes or {}), {}))[0]


TAUGHT = {"model.teacher": "gpt2"}
SCORED = {"stages.0.kind": "reinforce", "stages.0.algorithm": "process_reward"}
"""A first stage that trains process scores."""


def terms(*texts: str) -> dict[str, Any]:
    return {"algorithm.terms": list(texts)}


MEANINGLESS: list[tuple[dict[str, Any], list[str]]] = [
    # ratios
    ({"algorithm.ratio": "none"}, ["the clip of grpo has no effect", "clip = none"]),
    ({"algorithm.base": "rloo", "algorithm.clip": "soft"}, ["the clip of rloo has no effect", "set a ratio"]),
    ({"algorithm.base": "rloo", "algorithm.correction": "truncate"}, ["needs a ratio around it", "correction = none"]),
    (
        {"algorithm.ratio": "sequence", "algorithm.aggregate": "token_mean"},
        ["weighs sequences by their length", "sequence_mean"],
    ),
    ({"algorithm.credit": "one"}, ["no importance ratio", "ratio = none"]),
    ({"algorithm.credit": "zero"}, ["no importance ratio", "ratio = none"]),
    # ranges
    ({"algorithm.clip": "ppo(-0.1)"}, ["out of range: ppo's bounds"]),
    ({"algorithm.clip": "ppo(high=-0.1)"}, ["ppo's bounds"]),
    ({"algorithm.clip": "ppo(dual=1)"}, ["ppo's dual (above 1)"]),
    ({"algorithm.clip": "growing(-0.1)"}, ["growing's bounds"]),
    ({"algorithm.clip": "growing(dual=0)"}, ["growing's dual"]),
    ({"algorithm.clip": "weight(-1)"}, ["weight's bounds (0 <= low < high)"]),
    ({"algorithm.clip": "weight(2, 2)"}, ["weight's bounds"]),
    ({"algorithm.clip": "mask(-0.1)"}, ["mask's delta"]),
    ({"algorithm.clip": "soft(0)"}, ["soft's temperatures (above 0)"]),
    ({"algorithm.clip": "soft(negative=-1)"}, ["soft's temperatures (above 0)"]),
    ({"algorithm.correction": "truncate(0)"}, ["truncate's cap (above 0)"]),
    ({"algorithm.correction": "band(2, 2)"}, ["band's bounds (0 <= low < high)"]),
    ({"algorithm.correction": "band(-1)"}, ["band's bounds"]),
    ({"algorithm.correction": "second_moment(-1)"}, ["second_moment's tau"]),
    ({"algorithm.credit": "gae(1.5)"}, ["lam (0 to 1)"]),
    ({"algorithm.credit": "monte_carlo(lam=-0.1)"}, ["lam (0 to 1)"]),
    ({"algorithm.credit": "gae(discount=1.1)"}, ["discount (0 to 1)"]),
    ({"algorithm.credit": "monte_carlo(discount=-1)"}, ["discount (0 to 1)"]),
    ({"algorithm.credit": "reward_to_go(discount=2)"}, ["discount (0 to 1)"]),
    ({"algorithm.credit": "reward_to_go(moving_average(1.5))"}, ["moving_average's decay (0 to 1)"]),
    ({"algorithm.credit": "monte_carlo(0)"}, ["monte_carlo's count (at least 1)"]),
    ({"algorithm.credit": "gae(critic=critic(coefficient=-1))"}, ["critic's numbers (0 or more)"]),
    ({"algorithm.credit": "gae(critic=critic(warmup=-1))"}, ["critic's numbers (0 or more)"]),
    ({"algorithm.credit": "gae(critic=critic(rate=-1))"}, ["critic's numbers (0 or more)"]),
    ({"algorithm.credit": "gae(critic=critic(loss=clipped, bound=0))"}, ["critic's bound (above 0)"]),
    ({"algorithm.aggregate": "constant(0)"}, ["constant's length (above 0)"]),
    (terms("entropy(-0.1)"), ["the coefficient of a Entropy term (0 or more)"]),
    (terms("entropy(0.1, end=-0.1)"), ["entropy's end"]),
    (terms("kl(-0.1)"), ["the coefficient of a KL term"]),
    (terms("observations(-0.1)"), ["the coefficient of a Observations term"]),
    (terms("kl(0.1, target=0)"), ["kl's target and horizon (above 0)"]),
    (terms("kl(0.1, target=1, horizon=0)"), ["kl's target and horizon (above 0)"]),
    (terms("entropy_target(low=0.1)"), ["entropy_target's numbers (0 <= low <= start <= high)"]),
    (terms("entropy_target(high=0.001)"), ["entropy_target's numbers"]),
    ({**TAUGHT, **terms("divergence(-1)")}, ["the coefficient of a Divergence term"]),
    ({**TAUGHT, **terms("divergence(kind=jsd, beta=1)")}, ["divergence's beta (between 0 and 1)"]),
    ({**TAUGHT, **terms("divergence(top=0)")}, ["divergence's top (at least 1)"]),
    ({**TAUGHT, **terms("divergence(cap=0)")}, ["divergence's cap (above 0)"]),
    ({**TAUGHT, **terms("sampled_divergence(bound=0)")}, ["sampled_divergence's bound (above 0)"]),
    ({**TAUGHT, **terms("sampled_divergence(-1)")}, ["the coefficient of a SampledDivergence term"]),
    (terms("overlong(100, 0)"), ["overlong's cache (1 to length)"]),
    (terms("overlong(100, 101)"), ["overlong's cache (1 to length)"]),
    ({**SCORED, **terms("step_reward(-1)")}, ["the coefficient of a StepReward term"]),
    ({**SCORED, **terms("potential(1.5)")}, ["potential's discount (0 to 1)"]),
    (terms("process_labels(0)"), ["process_labels' count (at least 1)"]),
    (
        {"algorithm.clip": "ppo(-1)", "algorithm.aggregate": "constant(-1)", **terms("kl(-1)")},
        [
            "out of range: ppo's bounds (low 0 to 1, high from 0)",
            "constant's length (above 0), the coefficient of a KL term (0 or more)",
        ],
    ),
    ({"algorithm.clip": "ppo(1.5)"}, ["ppo's bounds (low 0 to 1"]),
    # terms
    (terms("process_labels"), ["process_labels trains the process reward model alone", "process_reward"]),
    (terms("kl(0.1, k2, target=1)", "kl(0.1, k1, reward, target=1)"), ["would share one coefficient"]),
    (terms("entropy(0.1)", "entropy(0.2)"), ["Entropy stands twice", "give it once"]),
    (terms("kl(0.1, k2)", "kl(0.1, k3)"), ["KL stands twice", "give it once"]),
    (terms("kl(0.1, k1, reward)", "kl(0.2, k1, reward)"), ["KL stands twice"]),
    ({**terms("observations(0.1)"), "stages.1.terms": ["observations(0.2)"]}, ["Observations stands twice"]),
    (terms("entropy(0.1)", "entropy_target"), ["both set the entropy bonus", "keep one"]),
    (terms("kl(0.1, k1)"), ["kl(k1) as a loss has no expected gradient", "place = reward"]),
    (terms("kl(0.1, k3, reward)"), ["kl(k3) in the reward has a wrong gradient", "use k1"]),
    (terms("kl(0.1, exact, reward)"), ["kl(exact) in the reward"]),
    (terms("divergence"), ["a divergence needs a teacher", "model.teacher"]),
    (terms("sampled_divergence"), ["a divergence needs a teacher", "model.teacher"]),
    ({**TAUGHT, **terms("sampled_divergence", "sampled_divergence")}, ["SampledDivergence stands twice"]),
    (
        {**TAUGHT, "stages.0.terms": ["sampled_divergence"]},
        ["weighs what the policy has just sampled", "divergence(kind"],
    ),
    ({**TAUGHT, **terms("divergence(tail=truncated)")}, ["tail = truncated has no effect without top"]),
    ({**TAUGHT, **terms("divergence(beta=0.3)")}, ["beta has no effect with kind = reverse"]),
    ({"stages.1.algorithm": "on_policy_distillation"}, ["a divergence needs a teacher"]),
    *(
        (
            {**SCORED, "stages.1.algorithm": "process_reward", "stages.1.terms": [text]},
            [f"{name} changes rewards, which this credit does not look at"],
        )
        for text, name in (
            ("step_reward", "StepReward"),
            ("potential", "Potential"),
            ("overlong(10, 5)", "Overlong"),
            ("kl(0.1, k1, reward)", "KL"),
        )
    ),
    (
        {**SCORED, "algorithm.base": "grpo_process", **terms("overlong(10, 5)")},
        ["Overlong changes rewards, which this credit does not look at"],
    ),
    (
        {
            "env": "tests.config.unlabelled:unlabelled",
            "algorithm.base": "process_reward",
            **terms("process_labels(kind=given)"),
        },
        ["process labels are `given`", "world 'unlabelled' has no `label`", "soft or hard"],
    ),
    # demonstrations and rounds
    ({"stages.1.demonstrations": "x.jsonl"}, ["stages.1.demonstrations has no effect in a reinforce stage"]),
    ({"stages.1.select": "kept"}, ["stages.1.select has no effect in a reinforce stage"]),
    (
        {"stages.1.kind": "rounds", "stages.1.select": "kept"},
        ["stages.1.select has no effect in a rounds stage", "algorithm.rounds"],
    ),
    ({"stages.0.demonstrated": 0.5}, ["stages.0.demonstrated has no effect in a warm_start stage"]),
    ({"stages.1.demonstrated": 1.0}, ["stages.1.demonstrated is 1.0", "less than 1"]),
    ({"stages.1.demonstrated": 0.5}, ["no behaviour log-probability", "on_policy_distillation"]),
    (
        {"stages.1.demonstrated": 0.5, "stages.1.algorithm": "opd_sampled", "model.teacher": "gpt2"},
        ["stages.1.demonstrated", "neither sampled_divergence nor a ratio can weigh them", "gkd"],
    ),
    (
        {**SCORED, "stages.0.demonstrated": 0.5},
        ["stages.0.demonstrated: process_labels and kl(weighted) are about what the policy sampled"],
    ),
    (
        {
            **TAUGHT,
            "stages.1.algorithm": "on_policy_distillation",
            "stages.1.demonstrated": 0.5,
            "stages.1.select": "kept",
        },
        ["stages.1.select sorts out saved episodes"],
    ),
    ({"stages.0.demonstrations": "teacher"}, ['stages.0.demonstrations is "teacher"', "set model.teacher"]),
    ({"stages.0.select": "kept(cap=0)"}, ["stages.0.select kept(cap=0)", "at least 1"]),
    ({"stages.0.select": "keep(0)"}, ["stages.0.select 'keep' is unknown", "did you mean kept?"]),
    ({"algorithm.rounds": "rounds(cap=2)"}, ["algorithm.rounds has no effect", "no rounds"]),
    *(
        ({"stages.1.kind": "rounds", "algorithm.base": "rest", "algorithm.rounds": f"rounds({text})"}, [what])
        for text, what in (
            ("[]", "thresholds (at least one, and rising)"),
            ("[0.5, 0.5]", "thresholds (at least one, and rising)"),
            ("cap=0", "cap (at least 1)"),
            ("[0.0, 0.5], decay=0.0", "decay (above 0, at most 1)"),
            ("decay=0.5", "no effect with a single threshold"),
        )
    ),
    (
        {
            "stages.1.kind": "rounds",
            "algorithm.base": "rest",
            "algorithm.rounds": "rounds([0.2])",
            "algorithm.credit": "one",
        },
        ["both say what a round keeps"],
    ),
    # what stages need of each other
    (
        {"stages.1.kind": "rounds", "algorithm.base": "rest", "algorithm.credit": "zero"},
        ["above a threshold", "above(0.5)"],
    ),
]


NO_PRESET = {"model.preset": None}
WRONG: list[tuple[dict[str, Any], list[str]]] = [
    # unknown, misplaced and misspelt keys
    ({"learner.learnng_rate": 1e-3}, ["unknown key 'learner.learnng_rate'"]),
    ({"learner.lrr": 1e-3}, ["unknown key 'learner.lrr'", "did you mean 'learner.lr'"]),
    ({"rollout.lr": 1e-3}, ["unknown key 'rollout.lr'", "did you mean 'learner.lr'"]),
    ({"lr": 1e-3}, ["unknown key 'lr'", "did you mean 'learner.lr'"]),
    ({"algorithm.temperature": 1.0}, ["unknown key 'algorithm.temperature'", "did you mean 'rollout.temperature'"]),
    ({"rollout.group-size": 4}, ["unknown key 'rollout.group-size'", "did you mean 'rollout.group_size'"]),
    ({"rolout.turns": 4}, ["unknown key 'rolout'", "did you mean 'rollout"]),
    ({"stages.1.step": 3}, ["unknown key 'stages.1.step'", "did you mean 'stages.*.steps'"]),
    ({"stages.0.publish-every": 3}, ["unknown key 'stages.0.publish-every'", "did you mean 'stages.*.publish_every'"]),
    ({"numbers": 8}, ["unknown key 'numbers'"]),
    ({"zzz": 8}, ["unknown key 'zzz'"]),
    # wrong types and ranges
    ({"learner.lr": "fast"}, ["learner.lr is 'fast'", "number"]),
    ({"rollout.turns": 2.5}, ["rollout.turns is 2.5", "integer"]),
    ({"rollout.turns": "4"}, ["rollout.turns is '4'", "integer"]),
    ({"rollout.turns": True}, ["rollout.turns is True", "integer"]),
    ({"keep.best": 1}, ["keep.best is 1", "boolean"]),
    ({"guard.rules": ["rato(10)"]}, ["guard.rules 'rato' is unknown", "did you mean ratio?"]),
    ({"guard.rules": ["kl(1.0, skip)"]}, ["kl.action is skip", "note, stop, rollback"]),
    ({"guard.rules": ["ratio(10, cap)"]}, ["ratio.action is cap", "note, skip, stop, rollback"]),
    ({"guard.rules": ["share(1.0)"]}, ["guard.rules share(1.0)", "between 0 and 1"]),
    ({"guard.rules": ["ratio(0)"]}, ["guard.rules ratio(0.0)", "above 0"]),
    ({"guard.rules": ["no_success(0)"]}, ["the limit of no_success must be above 0"]),
    ({"guard.rules": ["kl(1.0)", "kl(2.0, stop)"]}, ["guard.rules has kl twice"]),
    ({"guard.rollbacks": 3}, ["guard.rollbacks has no effect: no rule goes back"]),
    ({"guard.rules": ["kl(1.0)"], "guard.rollbacks": 3}, ["guard.rollbacks has no effect: no rule goes back"]),
    ({"rollout.turns": 0}, ["rollout.turns is 0", "greater than or equal to 1"]),
    ({"rollout.temperature": 0}, ["rollout.temperature is 0", "greater than or equal to 0.001"]),
    ({"rollout.turns": 3}, ["rollout.turns is 3", "may take 4", "raise rollout.turns"]),
    ({"rollout.top_p": 0.9}, ["rollout.top_p is not offered", "log-probabilities", "temperature"]),
    ({"rollout.max_failures": 1.5}, ["rollout.max_failures is 1.5", "less than or equal to 1"]),
    ({"learner.lr": float("nan")}, ["learner.lr is nan"]),
    ({"learner.lr": float("inf")}, ["learner.lr is inf"]),
    ({"model.dtype": "float16"}, ["model.dtype is 'float16'", "'float32' or 'bfloat16'"]),
    ({"model.preset": "tiny(30)"}, ["model.preset tiny(30) cannot be built", "multiple of 8", "tiny(64, 2, 4)"]),
    ({"model.preset": "tiny(0)"}, ["tiny(0) cannot be built"]),
    ({"model.preset": "tiny(64, 0)"}, ["tiny(64, 0) cannot be built", "layers at least 1"]),
    ({"model.preset": "tiny(64, 2, 0)"}, ["tiny(64, 2, 0) cannot be built"]),
    ({"model.preset": "tiny(64.0)"}, ["model.preset: tiny.width is 64.0", "a whole number"]),
    ({"model.preset": "tny"}, ["model.preset 'tny' is unknown", "did you mean tiny?"]),
    ({"model.width": 32}, ["unknown key 'model.width'"]),
    ({"stages.1.kind": "train"}, ["stages.1.kind is 'train'", "'warm_start', 'reinforce' or 'rounds'"]),
    ({"stages": 3}, ["stages is 3", "list"]),
    ({"stages": []}, ["stages is []"]),
    ({"env": None}, ["'env' is missing"]),
    ({"stages.1.steps": None}, ["'stages.1.steps' is missing"]),
    ({"model": 3}, ["model is 3"]),
    # combinations
    (
        {"rollout.group_size": 1},
        ["stages.1: group_size is 1", "group mean (grpo) needs at least 2", "rollout.group_size"],
    ),
    ({"stages.1.group_size": 1, "algorithm.base": "rloo"}, ["group_size is 1", "leave-one-out (rloo)", "at least 2"]),
    ({"stages.0.steps": 0, "stages.1.steps": 0}, ["0 steps planned", "steps above 0"]),
    (
        {"stages.1.publish_every": 2, "algorithm.base": "reinforce"},
        ["stages.1.publish_every is 2", "reinforce has no importance ratio", "grpo"],
    ),
    ({"stages.0.publish_every": 1}, ["stages.0.publish_every has no effect in a warm_start stage"]),
    ({"stages.0.group_size": 4}, ["stages.0.group_size has no effect in a warm_start stage"]),
    ({"algorithm.base": "grp0"}, ["algorithm.base 'grp0'", "did you mean 'grpo'"]),
    ({"stages.1.algorithm": "drgrpo"}, ["stages.1.algorithm 'drgrpo'", "did you mean 'dr_grpo'"]),
    ({"stages.1.algorithm": "zzz"}, ["stages.1.algorithm 'zzz'", "known: sft, rest"]),
    ({"algorithm.clip": "ppoo(0.2)"}, ["algorithm.clip 'ppoo'", "did you mean ppo?"]),
    ({"algorithm.correction": "decoupeld"}, ["algorithm.correction 'decoupeld'", "did you mean decoupled?"]),
    ({"algorithm.terms": ["kl(k3)"]}, ["algorithm.terms: kl.coefficient is k3", "a number"]),
    ({"stages.1.terms": ["observation(1)"]}, ["stages.1.terms 'observation'", "did you mean observations?"]),
    ({"algorithm.terms": "kl(0.1)"}, ["algorithm.terms is 'kl(0.1)'", "list"]),
    ({"algorithm.admit": "some"}, ["algorithm.admit is 'some'", "'all', 'mixed' or 'varied'"]),
    ({"algorithm.base": "sft"}, ["stages.1 is a reinforce stage", "sft learns from demonstrations", "warm_start"]),
    ({"algorithm.base": "expert_iteration"}, ["expert_iteration learns from rounds", '"rounds"', "grpo, "]),
    (
        {"stages.0.algorithm": "grpo"},
        ["stages.0 is a warm_start stage", "grpo learns from on-policy", "sft, distillation"],
    ),
    ({"stages.1.algorithm": "rest"}, ["stages.1 is a reinforce stage", "rest learns from rounds"]),
    ({"stages.1.algorithm": "rloo", "algorithm.base": "grpo"}, ["[algorithm] has no effect", "by grpo"]),
    ({"stages.1.algorithm": "rloo", "algorithm.clip": "ppo"}, ["[algorithm] has no effect", "Remove it"]),
    ({"stages.1.kind": "rounds", "algorithm.admit": "mixed"}, ["[algorithm] has no effect"]),
    ({"stages.1.algorithm": "rloo", "algorithm.base": "rest"}, ["[algorithm] has no effect", "by rest"]),
    (NO_PRESET, ["model.path", "model.preset"]),
    ({"model.path": "/absent"}, ["model.path", "model.preset", "not both"]),
    ({**NO_PRESET, "model.path": "/absent"}, ["model.path /absent does not exist"]),
    ({"model.preset": "tiny(24, 2, 5)"}, ["tiny(24, 2, 5) cannot be built", "heads"]),
    ({"model.preset": "tiny(24, 2, 8)"}, ["tiny(24, 2, 8) cannot be built"]),  # rotary positions need even heads
    ({"model.preset": "tiny(64, 1)", "model.checkpointing": True}, ["model.checkpointing", "one layer"]),
    ({"model.teacher": "/absent"}, ["model.teacher /absent does not exist"]),
    ({"model.teacher": "gpt2"}, ["model.teacher has no effect", "divergence"]),
    ({"model.teacher": {}}, ["model.teacher is an empty table"]),
    ({"model.teacher": "", **terms("divergence")}, ["model.teacher  does not exist"]),
    ({"model.teacher": {"*": "/absent"}, **terms("divergence")}, ["model.teacher.* /absent does not exist"]),
    ({"model.teacher_ids": 10}, ["model.teacher_ids has no effect without model.teacher"]),
    (
        {**TAUGHT, "model.teacher_ids": 10, **terms("sampled_divergence")},
        ["would teach the student to leave the shared ids", "sampled_divergence(baseline=True)"],
    ),
    (
        {"model.teacher": "gpt2", "stages.1.algorithm": "gkd", "stages.1.publish_every": 2}
        | {"stages.1.terms": ["sampled_divergence"]},
        ["stages.1.publish_every is 2", "gkd has no importance ratio"],
    ),
    (
        {"max_lag": 1, "stages.1.publish_every": 2},
        ["max_lag is 1", "stages.1.publish_every is 2", "both make data stale"],
    ),
    ({"max_lag": 1, "stages.1.kind": "rounds", "stages.1.algorithm": "rest"}, ["max_lag is 1", "kind reinforce"]),
    ({"max_lag": 1, "algorithm.base": "reinforce"}, ["max_lag is 1", "reinforce has no importance ratio"]),
    ({"rollout.engine": "process", "stages.1.publish_every": 2}, ['rollout.engine is "process"', "publish_every is 2"]),
    ({"rollout.in_flight": "keep"}, ["rollout.in_flight has no effect at max_lag = 0"]),
    ({"rollout.failed": "retry(0)"}, ["rollout.failed is retry(0)", "at least 1"]),
    ({"rollout.guide": "hint(0)"}, ["rollout.guide is hint(0)", "at least 1"]),
    ({"rollout.guide": "teacher"}, ["rollout.guide", "'teacher' is unknown", "hint"]),
    (
        {"rollout.guide": "hint", "stages.1.kind": "rounds", "stages.1.algorithm": "rest"},
        ["rollout.guide has no effect"],
    ),
    (
        {
            "rollout.guide": "demonstration",
            "algorithm.credit": "one",
            "algorithm.ratio": "none",
            "algorithm.clip": "none",
        },
        ["rollout.guide is demonstration", "does not ask who succeeded"],
    ),
    (
        {"rollout.guide": "hint(keep=True)", "algorithm.base": "vine_ppo"},
        ["rollout.guide is hint(keep=True)", "continuations"],
    ),
    ({"rollout.failed": "ignore"}, ["rollout.failed", "'ignore' is unknown", "partial"]),
    # which tasks are drawn
    ({"rollout.sampler": "learnabel"}, ["rollout.sampler 'learnabel'", "did you mean learnable?"]),
    ({"rollout.sampler": "learnable(1.0)"}, ["rollout.sampler is learnable(1.0)", "floor (0 to below 1)"]),
    ({"rollout.sampler": "failing(-0.1)"}, ["floor (0 to below 1)"]),
    ({"rollout.sampler": "failing(decay=0)"}, ["decay (above 0, at most 1)"]),
    ({"rollout.sampler": "target(1.0)"}, ["level (between 0 and 1)"]),
    (
        {"rollout.sampler": "target(eta=0, alpha=0, nearest=0)"},
        ["eta (above 0", "alpha (above 0)", "nearest (at least 1)"],
    ),
    ({"rollout.sampler": "easy_to_hard([])"}, ["steps (some, above 0, rising)"]),
    ({"rollout.sampler": "easy_to_hard([0, 5])"}, ["steps (some, above 0, rising)"]),
    ({"rollout.sampler": "easy_to_hard([5, 5])"}, ["steps (some, above 0, rising)"]),
    ({"rollout.sampler": "easy_to_hard(earlier=1)"}, ["earlier (0 to below 1)"]),
    ({"rollout.sampler": "retire(1.5, 0)"}, ["solved (above 0, at most 1)", "revisit (between 0 and 1)"]),
    ({"rollout.sampler": "retire(decay=1.01)"}, ["decay (above 0, at most 1)"]),
    ({"rollout.sampler": "target"}, ["'guess' does not say how difficult a task is", "`difficulty`", "learnable"]),
    ({"rollout.sampler": "easy_to_hard"}, ["'guess' does not say how difficult a task is"]),
    ({"env": "craft", "rollout.sampler": "target", "world.depth": 2}, ["split 'train' are equally difficult"]),
    ({"stages.1.steps": 0, "rollout.sampler": "learnable"}, ["no stage of kind reinforce or rounds has steps"]),
    (
        {"env": "craft", "stages.1.split": "eval", "rollout.sampler": "learnable"},
        ["draws from the split eval", "Give the stage another split"],
    ),
    (
        {"env": "craft", "rollout.sampler": "target(nearest=9000)"},
        ["its nearest 9000 are all of them", "Lower it: target(nearest="],
    ),
    (
        {"env": "craft", "stages.1.steps": 30, "rollout.sampler": "easy_to_hard"},
        ["the run samples 30 batches", "never be drawn", "easy_to_hard([10, 20])"],
    ),
    ({"rollout.sampler": "retire", "watch.stop": ["plateau"]}, ["watch.stop names plateau", "harder tasks"]),
    ({"rollout.sampler": "retire", "watch.stop": ["reward_fell"]}, ["watch.stop names reward_fell"]),
    ({"learner.minibatches": 40}, ["minibatches is 40", "32 groups", "Lower minibatches"]),
    ({"stages.1.minibatches": 5, "stages.1.groups": 4}, ["minibatches is 5", "stages.1 has 4 groups"]),
    # parts that mean nothing together
    *MEANINGLESS,
    # what stages need of each other
    *(
        (
            {"stages.1.algorithm": name, **changes},
            ["stages.1 ", f"({name}) needs a process reward model", '"process_reward"'],
        )
        for name, changes in (
            ("grpo_process", {}),
            ("rloo", {"stages.1.terms": ["step_reward"]}),
            ("rloo", {"stages.1.terms": ["potential"]}),
        )
    ),
    ({"algorithm.credit": "gae(critic=critic(start=process))"}, ["(grpo) needs a process reward model"]),
    # the world's own options
    ({"env": "gess"}, ["env 'gess' is unknown", "did you mean 'guess'"]),
    ({"world.number": 4}, ["world.number is no option", "did you mean 'numbers'"]),
    ({"world.numbers": 0}, ["numbers is 0"]),
    ({"env": "jsonl", "world.file": "absent.jsonl"}, ["absent.jsonl does not exist"]),
]


@pytest.mark.parametrize(("changes", "texts"), WRONG, ids=lambda value: str(value)[:60])
def test_a_mistake_is_named_with_what_to_do(changes: dict[str, Any], texts: list[str]) -> None:
    with pytest.raises(UsageError) as told:
        plan(changes)
    assert [text for text in texts if text not in str(told.value)] == [], str(told.value)
    assert "\n" not in str(told.value)


def test_the_base_of_these_mistakes_is_none() -> None:
    assert plan().steps == 8


def with_all_it_needs(name: str, path: Path) -> dict[str, Any]:
    """Changes of the base that make its last stage one of this row."""
    kind = next(kind for kind, data in DATA.items() if data == ALGORITHMS[name].data)
    changes: dict[str, Any] = {"stages.1.kind": kind, "stages.1.algorithm": name}
    if uses_process(ALGORITHMS[name]):
        changes |= SCORED
    if ALGORITHMS[name].taught:
        changes["model.teacher"] = str(path)
    return changes


@pytest.mark.parametrize("name", ALGORITHMS)
def test_every_row_of_the_table_can_be_planned(name: str, tmp_path: Path) -> None:
    made = plan(with_all_it_needs(name, tmp_path))
    stage = made.stages[1]
    assert (stage.name, stage.algorithm) == (name, ALGORITHMS[name].within(float(made.limits.longest)))
    assert stage.optimisation.minibatches == ALGORITHMS[name].updates
    assert stage.updates == 5 * ALGORITHMS[name].updates * len(ALGORITHMS[name].rounds.thresholds)
    assert stage.group_size == (1 if stage.kind == "warm_start" else 8)


def test_the_updates_of_a_row_are_bounded_by_its_groups_and_given_way_to_what_is_asked() -> None:
    dapo = {"algorithm.base": "dapo"}
    asked = [
        {},
        {"rollout.groups": 5},
        {"learner.minibatches": 4},
        {"stages.1.minibatches": 2, "learner.minibatches": 4},
    ]
    assert [plan({**dapo, **more}).stages[1].optimisation.minibatches for more in asked] == [16, 5, 4, 2]
    assert plan(dapo).stages[0].optimisation.minibatches == 1  # a warm start has its own row


def test_the_parts_of_the_run_replace_those_of_its_row_and_of_no_other() -> None:
    changes = {
        "algorithm.base": "dapo",
        "algorithm.credit": "leave_one_out",
        "algorithm.ratio": "prefix",
        "algorithm.clip": "growing(0.1, 0.2)",
        "algorithm.correction": "band(0.5, 2)",
        "algorithm.aggregate": "constant",
        "algorithm.admit": "varied",
        "algorithm.terms": ["entropy(0.1, end=0.0)", "kl(0.1, k2)"],
        "stages.1.terms": ["observations(0.3, answers)"],
        "stages": [*copy.deepcopy(BASE["stages"]), {"kind": "reinforce", "steps": 1, "algorithm": "grpo"}],
    }
    made = plan({"stages": changes.pop("stages"), **changes})
    longest = float(made.limits.longest)
    assert made.stages[1].algorithm == Algorithm(
        LeaveOneOut(),
        PrefixRatio(),
        GrowingClip(0.1, 0.2),
        Constant(longest),
        ALGORITHMS["dapo"].source,
        correction=Band(0.5, 2.0),
        terms=(Entropy(0.1, 0.0), KL(0.1, "k2"), Observations(0.3, "answers")),
        admit="varied",
        updates=16,
    )
    assert [made.stages[i].algorithm for i in (0, 2)] == [ALGORITHMS["sft"], ALGORITHMS["grpo"]]


def test_parts_of_a_row_can_be_taken_away() -> None:
    made = plan({"algorithm.base": "decoupled_ppo", "algorithm.correction": "none", "algorithm.terms": []}).stages[1]
    assert made.algorithm == replace(ALGORITHMS["decoupled_ppo"], correction=None)
    bare = {"algorithm.ratio": "none", "algorithm.clip": "none"}
    assert plan(bare).stages[1].algorithm == replace(ALGORITHMS["grpo"], ratio=NoRatio(), clip=NoClip())


def test_the_threshold_of_the_credit_is_that_of_the_rounds() -> None:
    changes = {"stages.1.kind": "rounds", "algorithm.base": "rest_em", "algorithm.credit": "above(0.5)"}
    assert plan(changes).stages[1].algorithm.rounds == Rounds((0.5,), restart=True, cap=10)
    assert plan({**changes, "algorithm.credit": None}).stages[1].algorithm.rounds == Rounds(restart=True, cap=10)


def test_rounds_are_written_as_one_part_and_credit_one_keeps_everything() -> None:
    changes = {"stages.1.kind": "rounds", "algorithm.base": "rest", "algorithm.rounds": "rounds(cap=4, distinct=true)"}
    assert plan(changes).stages[1].algorithm.rounds == Rounds(cap=4, distinct=True)
    unfiltered = plan({**changes, "algorithm.rounds": None, "algorithm.credit": "one"}).stages[1]
    assert unfiltered.algorithm.rounds == Rounds(union=True)
    assert (unfiltered.algorithm.credit, unfiltered.updates) == (One(), 5)
    assert plan({**changes, "algorithm.rounds": None}).stages[1].updates == 10


def test_a_teacher_keeps_its_successes_and_a_file_everything_unless_a_rule_is_given(tmp_path: Path) -> None:
    taught = {"stages.0.demonstrations": "teacher", "model.teacher": str(tmp_path)}
    assert plan(taught).stages[0].demonstrating == Demonstrating("teacher", Kept(0.0))
    asked = {**taught, "stages.0.select": "kept(0.5, cap=4, distinct=true)"}
    assert plan(asked).stages[0].demonstrating.select == Kept(0.5, 4, True)
    assert plan({"stages.0.demonstrations": "some.jsonl"}).stages[0].demonstrating == Demonstrating("some.jsonl")
    assert plan().stages[0].demonstrating == Demonstrating()
    mixed = {
        "stages.1.algorithm": "on_policy_distillation",
        "model.teacher": str(tmp_path),
        "stages.1.demonstrated": 0.5,
    }
    given = plan({**mixed, "stages.1.demonstrations": "teacher"}).stages[1].demonstrating
    assert given == Demonstrating("teacher", None, 0.5)  # a share is taken as it is


def test_stale_data_without_a_ratio_is_taken_where_it_is_asked_for() -> None:
    asked = {"stages.1.publish_every": 2, "algorithm.base": "rloo", "algorithm.ratio": "none"}
    assert plan(asked).stages[1].publish_every == 2
    with pytest.raises(UsageError, match=r'algorithm\.ratio = "none"'):
        plan({**asked, "algorithm.ratio": None})


def test_a_kl_may_stand_in_the_loss_and_in_the_reward_at_once() -> None:
    both = (KL(0.1, "k1", "reward"), KL(0.2, "k1", weighted=True))
    assert plan({"algorithm.terms": [written(term) for term in both]}).stages[1].algorithm.terms == both


@pytest.mark.parametrize("algorithm", ["reinforce", "reinforce_constant", "reinforce_ema"])
def test_groups_of_one_are_allowed_where_nothing_is_compared(algorithm: str) -> None:
    assert plan({"rollout.group_size": 1, "algorithm.base": algorithm}).stages[1].group_size == 1


def test_a_warm_start_needs_a_player(tmp_path: Path) -> None:
    (tmp_path / "p.jsonl").write_text('{"prompt": "a", "answer": "b"}\n')
    with pytest.raises(UsageError, match=r"stages.0 is a warm_start, but world 'p' has no scripted player"):
        plan({"env": "jsonl", "world.file": str(tmp_path / "p.jsonl")})


def test_a_world_without_training_tasks_is_refused(tmp_path: Path) -> None:
    (tmp_path / "p.jsonl").write_text("\n")
    with pytest.raises(UsageError, match=r"world p has no tasks in split 'train'"):
        plan({"env": "jsonl", "world.file": str(tmp_path / "p.jsonl")})


# --- files


@pytest.mark.parametrize(
    ("content", "texts"),
    [
        (b'env = "guess\n', ["is not valid TOML", "line 1"]),
        (b"env = 'a'\nenv = 'b'\n", ["is not valid TOML"]),
        (b'env = "\xff"\n', ["is not valid TOML"]),
        (b"[[stages]]\n[stages.x\n", ["is not valid TOML"]),
    ],
)
def test_a_broken_file_is_told_with_the_place(content: bytes, texts: list[str], tmp_path: Path) -> None:
    (tmp_path / "r.toml").write_bytes(content)
    with pytest.raises(UsageError) as told:
        read_file(tmp_path / "r.toml")
    assert [text for text in ["r.toml", *texts] if text not in str(told.value)] == []
    assert "\n" not in str(told.value)


def test_a_missing_file_is_told(tmp_path: Path) -> None:
    for path in (tmp_path / "absent.toml", tmp_path):
        with pytest.raises(UsageError, match=r"does not exist; give the path of a TOML file"):
            read_file(path)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("learner.lr", r"write it as key=value"),
        ("=3", r"write it as key=value"),
        ("stages.7.steps=3", r"there is no stage 7; stages are numbered 0 to 1"),
        ("stages.x.steps=3", r"there is no stage x"),
        ("stages.steps=3", r"name a key of the stage"),
        ("stages.0=3", r"name a key of the stage"),
        ("env.x=3", r"'env' is not a section"),
        ("env.x.y=3", r"'x' is not inside a section"),
        ("learner.lr.x=3", r"'lr' is not a section"),
    ],
)
def test_a_set_that_fits_nowhere_is_told(text: str, told: str) -> None:
    tables = with_changes({"learner.lr": 1e-3})
    with pytest.raises(UsageError, match=told):
        apply_sets(tables, [text])


def test_a_set_has_the_spelling_and_the_types_of_the_file() -> None:
    tables = with_changes({})
    sets = ["learner.lr=1e-3", "keep.best=false", "algorithm.base=dr_grpo", 'model.stop=["x"]', "stages.1.steps=7"]
    run = resolve(tables, apply_sets(tables, sets)).run
    assert (run.learner.lr, run.keep.best, run.algorithm.base, run.model.stop) == (1e-3, False, "dr_grpo", ["x"])
    assert run.stages[1].steps == 7
    tables = with_changes({})
    done = apply_sets(tables, ["learner.learning_rate=1e-3"])
    with pytest.raises(UsageError, match=r"unknown key 'learner.learning_rate'"):
        resolve(tables, done)


def test_every_value_knows_where_it_came_from() -> None:
    tables = with_changes({"learner.lr": 1e-3, "world.numbers": 8, "stages.1.lr": 2e-3, "learner.epochs": 1})
    resolved = resolve(tables, apply_sets(tables, ["rollout.turns=5", "learner.epochs=2", "stages.0.steps=4"]))
    wanted = {
        "env": ("guess", "file"),
        "seed": (0, "default"),
        "world.numbers": (8, "file"),
        "learner.lr": (1e-3, "file"),
        "learner.epochs": (2, "--set"),
        "learner.warmup": (0, "default"),
        "rollout.turns": (5, "--set"),
        "rollout.groups": (32, "default"),
        "stages.0.steps": (4, "--set"),
        "stages.1.steps": (5, "file"),
        "stages.1.lr": (2e-3, "file"),
        "stages.0.lr": (None, "default"),
    }
    assert {key: resolved.sources[key] for key in wanted} == wanted
    generic = {".".join("*" if p.isdigit() else p for p in key.split(".")) for key in resolved.sources}
    assert {key for key in known_keys() if key != "world.*"} <= generic


# --- all keys

EFFECTS: dict[str, Any] = {
    "env": None,  # another world; see below
    "seed": 1,
    "max_lag": 1,
    "world.*": None,
    "model.path": None,  # excludes the preset
    "model.preset": "tiny(32)",
    "model.teacher": None,
    "model.teacher_ids": None,
    "model.dtype": "bfloat16",
    "model.device": "cuda",
    "model.threads": 2,
    "model.checkpointing": True,
    "model.stop": ["!"],
    "rollout.groups": 5,
    "rollout.group_size": 5,
    "rollout.temperature": 0.5,
    "rollout.turns": 5,
    "rollout.turn_tokens": 5,
    "rollout.tokens": 5,
    "rollout.context": 50,
    "rollout.seconds": 5.0,
    "rollout.step_seconds": 5.0,
    "rollout.failed": "drop",
    "rollout.guide": "hint",
    "rollout.in_flight": None,  # needs max_lag; see below
    "rollout.engine": "process",
    "rollout.sampler": "learnable",
    "rollout.history": "keep",
    "rollout.max_failures": 0.1,
    "algorithm.base": "rloo",
    "algorithm.credit": "leave_one_out",
    "algorithm.ratio": "turn",
    "algorithm.clip": "ppo(0.3)",
    "algorithm.correction": "decoupled",
    "algorithm.aggregate": "token_mean",
    "algorithm.admit": "mixed",
    "algorithm.terms": ["entropy(0.1)"],
    "algorithm.rounds": None,  # of a stage of rounds; see below
    "learner.lr": 0.1,
    "learner.lr_end": 0.2,
    "learner.warmup": 2,
    "learner.weight_decay": 0.1,
    "learner.clip_norm": 2.0,
    "learner.epochs": 2,
    "learner.minibatches": 2,
    "learner.token_budget": 100,
    "stages.*.kind": "rounds",
    "stages.*.steps": 6,
    "stages.*.groups": 6,
    "stages.*.group_size": 6,
    "stages.*.lr": 0.3,
    "stages.*.epochs": 3,
    "stages.*.minibatches": 3,
    "stages.*.algorithm": "rloo",
    "stages.*.terms": ["observations(0.3)"],
    "stages.*.publish_every": 3,
    "stages.*.split": None,  # guess has one split; see below
    "stages.*.demonstrations": None,  # of a warm start, or with a share of them; see below
    "stages.*.select": None,
    "stages.*.demonstrated": None,
    "evaluate.every": 3,
    "evaluate.episodes": 3,
    "keep.steps": 3,
    "keep.last": 3,
    "keep.every": 3,
    "keep.best": False,
    "keep.episodes_mb": 3.0,
    "keep.updates": 4,
    "keep.samples": 0.5,
    "preflight.tasks": 3,
    "preflight.members": 3,
    "preflight.block": True,
    "watch.stop": ["reward_fell"],
    "guard.rules": ["ratio(10, stop)"],
    "guard.rollbacks": None,  # has an effect with a rule that goes back only; see below
}
VALUED = [key for key, value in EFFECTS.items() if value is not None]


def test_all_keys_are_listed_here_and_they_are_bounded() -> None:
    assert known_keys() == list(EFFECTS)
    assert len(known_keys()) <= 75


def content(changes: Mapping[str, Any]) -> Plan:
    """A plan without its note of where values came from."""
    return replace(plan(changes), resolved={})


@pytest.mark.parametrize("key", VALUED)
def test_every_key_changes_the_plan(key: str) -> None:
    before, after = content({}), content({key.replace("*", "1"): EFFECTS[key]})
    assert before != after
    assert before == content({})  # and a plan is a function of its file


def test_the_keys_without_a_value_above_have_an_effect_too(tmp_path: Path) -> None:
    (tmp_path / "p.jsonl").write_text('{"prompt": "a", "answer": "b"}\n')
    only = {"stages": [{"kind": "reinforce", "steps": 1}]}
    assert content({**only, "env": "jsonl", "world.file": str(tmp_path / "p.jsonl")}) != content(only)
    assert content({"world.numbers": 8}) != content({})
    assert content({**NO_PRESET, "model.path": str(tmp_path)}).model.path == str(tmp_path)
    taught = {"stages.1.terms": ["divergence"], "model.teacher": str(tmp_path)}
    assert content(taught).teachers["*"].path == str(tmp_path)
    assert content({**taught, "model.teacher_ids": 9}) != content(taught)
    repair = {"env": "repair", "world.tasks": 10, "rollout.turns": 6}
    assert content({**repair, "stages.0.split": "drill"}) != content(repair)
    assert content({"max_lag": 1, "rollout.in_flight": "drain"}) != content({"max_lag": 1})
    grown = {"stages.1.kind": "rounds", "algorithm.base": "rest"}
    assert content({**grown, "algorithm.rounds": "rounds(cap=2)"}) != content(grown)
    assert content({"stages.0.demonstrations": "some.jsonl"}) != content({})
    assert content({"stages.0.select": "kept(0.5)"}) != content({})
    mixed = {"stages.1.algorithm": "on_policy_distillation", "model.teacher": str(tmp_path)}
    assert content({**mixed, "stages.1.demonstrated": 0.5}) != content(mixed)
    back = {"guard.rules": ["kl(1.0, rollback)"]}
    assert content({**back, "guard.rollbacks": 3}) != content(back)


@pytest.mark.parametrize("recipe", sorted(Path("recipes").glob("*.toml")), ids=str)
def test_every_recipe_is_a_plan(recipe: Path) -> None:
    made, _ = plan_of(resolve(read_file(recipe), {}))
    assert made.steps > 0


# --- what a run folder remembers


def stored(changes: Mapping[str, Any]) -> dict[str, Any]:
    return json.loads(json.dumps(run_record(resolve(with_changes(changes), {}))))


@pytest.mark.parametrize("key", VALUED)
def test_a_stored_run_is_planned_again_as_it_was(key: str) -> None:
    changes = {key.replace("*", "1"): EFFECTS[key]}
    _, again, _ = stored_plan(stored(changes))
    assert replace(again, resolved={}) == content(changes)


@pytest.mark.parametrize(
    "text",
    [
        "stages.1.steps=9",
        "evaluate.every=2",
        "keep.last=5",
        "stages.0.steps=0",
        'watch.stop=["surge"]',
        "guard.rules=[]",
    ],
)
def test_a_resumed_run_may_change_how_long_it_is_and_how_it_is_watched(text: str) -> None:
    key, _, value = text.partition("=")
    resolved, _, _ = stored_plan(stored({}), [text])
    assert resolved.sources[key] == (json.loads(value), "--set")


@pytest.mark.parametrize(
    "text", ["learner.lr=1e-4", "seed=3", "stages.1.lr=1e-4", "stages.1.kind=rounds", "world.numbers=8", "env=jsonl"]
)
def test_a_resumed_run_may_change_nothing_else(text: str) -> None:
    with pytest.raises(UsageError, match=r"a resumed run may change only .*Start a new run"):
        stored_plan(stored({}), [text])


def test_a_folder_that_is_no_run_is_told(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"is no run folder \(it has no run.json\)"):
        find_run(str(tmp_path))


def test_a_run_file_is_answered_without_importing_torch() -> None:
    program = (
        "import sys\n"
        "from strop.cli.main import main\n"
        "from strop.config.planning import plan_of\n"
        "from strop.config.resolve import resolve\n"
        "plan_of(resolve({'env': 'guess', 'model': {'preset': 'tiny'}, 'stages': [{'kind': 'reinforce', 'steps': 1}]}, {}))\n"
        "print([name for name in ('torch', 'transformers') if name in sys.modules])\n"
        "import torch\n"
        "print([name for name in ('torch',) if name in sys.modules])\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["[]", "['torch']"]  # the second line: such an import would be seen
