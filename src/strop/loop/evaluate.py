"""Evaluation: greedy and sampled success with intervals, beside the best possible.

Invariant: evaluation draws from its own random streams and its own engine, so having it or not changes no bit of training.
"""

import math
from dataclasses import dataclass

from strop.core.engine import Engine, Sampling
from strop.core.metrics import Mean, Metrics, combine, values
from strop.core.seeds import Domain
from strop.core.trajectory import Group
from strop.rollout.group import Table, play_groups
from strop.watch.measure import measure_groups


@dataclass(frozen=True, slots=True)
class Evaluation:
    """Result over the evaluation tasks.

    Args:
        greedy_success, sampled_success: success over the episodes that were judged; None if none was.
        greedy_interval, sampled_interval: 95 % Wilson intervals (over episodes; a greedy policy in a world without chance
            has no sampling error, the interval then speaks of the tasks).
        limit: best possible success, None where it is not known.
        episodes: episodes played, both kinds.
        invalid: episodes without a verdict, listed apart and left out of the rates.
        measures: the sampled episodes' other metrics.
        of_world: those of them that the world itself names.
    """

    greedy_success: float | None
    greedy_interval: tuple[float, float]
    sampled_success: float | None
    sampled_interval: tuple[float, float]
    limit: float | None
    episodes: int
    invalid: int
    measures: dict[str, float | None]
    of_world: dict[str, float | None]


def wilson(successes: float, n: int, z: float = 1.96) -> tuple[float, float]:
    """Wilson's score interval of a rate (Wilson 1927); (0, 1) when nothing was counted."""
    if n == 0:
        return 0.0, 1.0
    p = successes / n
    centre = (p + z * z / (2 * n)) / (1 + z * z / n)
    half = z * math.sqrt(p * (1 - p) / n + z * z / (4 * n * n)) / (1 + z * z / n)
    return max(0.0, centre - half), min(1.0, centre + half)


async def evaluate(
    table: Table, engine: Engine, temperature: float, episodes: int, domain: Domain = "eval"
) -> Evaluation:
    """Play every evaluation task greedily once and `episodes` times sampled.

    Args:
        table: world, codec, limits, seed.
        engine: holds the weights to be judged.
        temperature: of the sampled episodes.
        episodes: sampled episodes per task.
        domain: names the random streams.
    """
    tasks = table.world.split("eval")
    most = table.limits.turn_tokens
    n = 2 * len(tasks)
    greedy = await play_groups(table, tasks, 1, engine, Sampling(most, 0.0), (domain, range(0, n, 2)))
    warm = Sampling(most, temperature)
    sampled = await play_groups(table, tasks, episodes, engine, warm, (domain, range(1, n, 2)))
    (g, g_sum, g_n), (s, s_sum, s_n) = _success(greedy), _success(sampled)
    played = sum(len(group.trajectories) for group in (*greedy, *sampled))
    measures = values(combine([measure_groups(table.world, sampled)]))
    own: set[str] = set()
    if table.world.measures is not None:
        scored = [t for group in sampled for t in group.trajectories if t.score is not None]
        own = {name for t in scored for name in table.world.measures(t.task, t)}
    return Evaluation(
        greedy_success=g,
        greedy_interval=wilson(g_sum, g_n),
        sampled_success=s,
        sampled_interval=wilson(s_sum, s_n),
        limit=table.world.best_possible,
        episodes=played,
        invalid=played - g_n - s_n,
        measures=measures,
        of_world={name: value for name, value in measures.items() if name in own},
    )


def _success(groups: list[Group]) -> tuple[float | None, float, int]:
    scores = [t.score for group in groups for t in group.trajectories if t.score is not None]
    total: Metrics = combine([{"success": Mean(score)} for score in scores])
    return (values(total)["success"] if scores else None), sum(scores), len(scores)
