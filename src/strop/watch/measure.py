"""Metrics of played groups. Invariant: every number is a sum and a count; unscored episodes are in no reward average."""

from collections import Counter
from collections.abc import Sequence

from strop.core.metrics import Mean, Metrics, Peak, Total, combine
from strop.core.trajectory import Group, Trajectory
from strop.core.world import World

ENDS = ("done", "turns", "length", "context", "timeout", "truncated", "error")


def measure_groups(world: World, groups: Sequence[Group]) -> Metrics:
    """All metrics of some groups."""
    return combine(
        [_group(group) for group in groups]
        + [_trajectory(world, trajectory) for group in groups for trajectory in group.trajectories]
    )


def _group(group: Group) -> Metrics:
    actions = {
        tuple(tuple(turn.completion.tokens.tolist()) for turn in trajectory.turns) for trajectory in group.trajectories
    }
    rewards = [reward for reward in group.rewards() if reward is not None]
    out: Metrics = {"groups": Total(1), "distinct_sequences": Mean(len(actions), len(group.trajectories))}
    if len(rewards) > 1:
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
        "unscored": Mean(float(trajectory.score is None)),
    }
    for end in ENDS:
        out[f"end_{end}"] = Mean(float(trajectory.end == end))
    if trajectory.score is not None and trajectory.reward is not None and trajectory.verdict is not None:
        out["success"] = Mean(trajectory.score)
        out["reward"] = Mean(trajectory.reward)
        for name, value in trajectory.verdict.aux.items():
            out[f"aux_{name}"] = Mean(value)
        for turn in trajectory.turns:
            for name, value in turn.rewards.items():
                key = f"turn_{name}"
                out[key] = out.get(key, Mean(0.0)) + Mean(value, 0.0)  # type: ignore[operator]  # always Mean here
        if world.measures is not None:
            for name, (total, count) in world.measures(trajectory.task, trajectory).items():
                out[name] = Mean(total, count)
    return out
