"""Metrics of played groups. Invariant: every number is a sum and a count; unscored episodes are in no reward average.

Honeypots leave the averages of success and rewards as well: nobody can pass one honestly, so that a pass is counted apart.
"""

from collections import Counter
from collections.abc import Sequence

import numpy as np

from strop.core.metrics import Mean, Metrics, Peak, Total, combine
from strop.core.task import Verdict
from strop.core.trajectory import Group, Trajectory
from strop.core.world import World
from strop.watch.behaviour import actions, is_honeypot, is_invalid, regressed, repeats, touched
from strop.watch.sums import most_frequent

ENDS = ("done", "turns", "length", "context", "timeout", "truncated", "error")
ACTIONS = 16
"""Actions whose share is logged, the most frequent ones of a step."""


def measure_groups(world: World, groups: Sequence[Group]) -> Metrics:
    """All metrics of some groups."""
    return combine(
        [_group(group) for group in groups]
        + [_trajectory(world, trajectory) for group in groups for trajectory in group.trajectories]
        + [_actions(world, groups), _repetition(groups)]
    )


def measure_guidance(groups: Sequence[Group]) -> Metrics:
    """Share of the groups that help joined, and its tokens; nothing where none did."""
    helped = [[t for t in group.trajectories if t.guided] for group in groups]
    if not any(helped):
        return {}
    return {
        "guided_groups": Mean(sum(map(bool, helped)), len(groups)),
        "guided_tokens": Total(sum(t.sampled_tokens for each in helped for t in each)),
    }


def measure_second(proxy: Sequence[float], second: Sequence[Verdict]) -> Metrics:
    """What an independent judge said of episodes, beside the scores of the verifier that trains.

    `proxy_gap` is the verifier's success minus the independent one's, over the episodes that both could judge; what the
    independent judge could not tell is counted in `independent_invalid` and is in neither mean.

    Args:
        proxy: the verifier's scores; [episodes].
        second: the independent verdicts on the same episodes; [episodes].
    """
    pairs = [(p, v.score) for p, v in zip(proxy, second, strict=True) if v.score is not None and not is_invalid(v)]
    out: Metrics = {
        "independent_episodes": Total(len(pairs)),
        "independent_invalid": Mean(len(second) - len(pairs), len(second)),
    }
    if pairs:
        out["independent_success"] = Mean(sum(mine for _, mine in pairs), len(pairs))
        out["proxy_gap"] = Mean(sum(p - mine for p, mine in pairs), len(pairs))
    return out


def _actions(world: World, groups: Sequence[Group]) -> Metrics:
    """Shares of the actions and actions an episode, over all episodes; nothing where nobody acts."""
    played = [actions(world, trajectory) for group in groups for trajectory in group.trajectories]
    counts = Counter(name for names in played for name in names)
    if not counts:
        return {}
    number = sum(counts.values())
    shares = most_frequent(len(groups), number, counts, ACTIONS)
    return {
        "tool_calls": Mean(number, len(played)),
        **{f"tool_{name}": Mean(count, number) for name, count in shares.counts.items()},
    }


def _repetition(groups: Sequence[Group]) -> Metrics:
    """Share of the most frequent sampled token, tokens that ended a turn left out; nothing where no token is left."""
    parts = [
        turn.completion.tokens[:-1] if turn.completion.stop == "stop" else turn.completion.tokens
        for group in groups
        for trajectory in group.trajectories
        for turn in trajectory.turns
    ]
    tokens = np.concatenate(parts) if parts else np.zeros(0, np.int32)
    return {"sampled_token_top": Mean(float(np.bincount(tokens).max()), len(tokens))} if len(tokens) else {}


def _group(group: Group) -> Metrics:
    actions = {
        tuple(tuple(turn.completion.tokens.tolist()) for turn in trajectory.turns) for trajectory in group.trajectories
    }
    rewards = [reward for reward in group.rewards() if reward is not None]
    out: Metrics = {"groups": Total(1), "distinct_sequences": Mean(len(actions), len(group.trajectories))}
    if len(rewards) > 1 and not is_honeypot(group.task):
        out["zero_variance_groups"] = Mean(float(min(rewards) == max(rewards)))
        out["all_fail_groups"] = Mean(float(max(rewards) <= 0))
        out["all_pass_groups"] = Mean(float(min(rewards) >= 1))
    return out


def _trajectory(world: World, trajectory: Trajectory) -> Metrics:
    tokens = trajectory.sampled_tokens
    stops = Counter(turn.completion.stop for turn in trajectory.turns)
    out: Metrics = {
        "episodes": Total(1),
        "sampled_tokens": Total(tokens),
        "episode_tokens": Mean(tokens),
        "episode_tokens_max": Peak(tokens),
        "turns": Mean(len(trajectory.turns)),
        "cut_turns": Mean(stops["length"], len(trajectory.turns)),
        "failed": Mean(float(trajectory.error is not None)),
        "retries": Total(trajectory.attempt),
        "unscored": Mean(float(trajectory.score is None)),
    }
    for end in ENDS:
        out[f"end_{end}"] = Mean(float(trajectory.end == end))
    if trajectory.verdict is not None:
        out["invalid"] = Mean(float(is_invalid(trajectory.verdict)))
    out |= _behaviour(trajectory)
    if trajectory.score is None or trajectory.reward is None or trajectory.verdict is None:
        return out
    if is_honeypot(trajectory.task):
        out["honeypot_passes"] = Mean(float(trajectory.score > 0))
    else:
        out["success"] = Mean(trajectory.score)
        out["reward"] = Mean(trajectory.reward)
        for name, value in trajectory.verdict.aux.items():
            out[f"aux_{name}"] = Mean(value)
        for name, value in trajectory.verdict.info.items():
            out[f"judge_{name}"] = Mean(value)
        for name, passed in trajectory.verdict.checks.items():
            out[f"check_{name}"] = Mean(float(passed))
        for turn in trajectory.turns:
            for name, value in turn.rewards.items():
                key = f"turn_{name}"
                out[key] = out.get(key, Mean(0.0)) + Mean(value, 0.0)  # type: ignore[operator]  # always Mean here
        if world.measures is not None:
            for name, (total, count) in world.measures(trajectory.task, trajectory).items():
                out[name] = Mean(total, count)
    return out


def _behaviour(trajectory: Trajectory) -> Metrics:
    """What the episode shows whatever it was worth; only what can be told of it."""
    out: Metrics = {}
    again, pairs = repeats(trajectory)
    if pairs:
        out["repeated_actions"] = Mean(again, pairs)
    broken, meddled = regressed(trajectory), touched(trajectory)
    if broken is not None:
        out["regressions"] = Mean(float(bool(broken)))
    if meddled is not None:
        out["tests_touched"] = Mean(float(meddled))
    return out
