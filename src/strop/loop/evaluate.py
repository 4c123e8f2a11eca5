"""Evaluation: greedy and sampled success with intervals, beside the best possible.

Invariant: evaluation draws from its own random streams and its own engine, so having it or not changes no bit of training.
"""

from dataclasses import dataclass
from typing import Any

from strop.core.engine import Engine, Sampling
from strop.core.metrics import Mean, Metrics, combine, values, wilson
from strop.core.seeds import Domain
from strop.core.trajectory import Group
from strop.loop.watching import Opinions, measured, played, second_opinions
from strop.rollout.group import Table, play_groups
from strop.watch.behaviour import is_honeypot
from strop.watch.measure import measure_groups
from strop.watch.sight import Sight, see_held_out


@dataclass(frozen=True, slots=True)
class Evaluation:
    """Result over the evaluation tasks.

    Args:
        greedy_success, sampled_success: success over the episodes that were judged; None if none was.
        greedy_interval, sampled_interval: 95 % Wilson intervals (over episodes; a greedy policy in a world without chance
            has no sampling error, the interval then speaks of the tasks).
        limit: best possible success, None where it is not known.
        episodes: episodes played, both kinds.
        invalid: episodes without a verdict, listed apart and left out of the rates. Honeypots are in no rate either.
        measures: the sampled episodes' other metrics.
        of_world: those of them that the world itself names.
        independent_success: of the independent verifier over the sampled episodes that both could judge; None without one.
        proxy_gap: the verifier's success minus the independent one's, over the same episodes.
        independent_episodes, independent_invalid: how many these are, and how many the independent one could not judge.
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
    independent_success: float | None = None
    proxy_gap: float | None = None
    independent_episodes: int | None = None
    independent_invalid: int | None = None


async def evaluate(
    table: Table, engine: Engine, temperature: float, episodes: int, domain: Domain = "eval"
) -> Evaluation:
    """Play every evaluation task greedily once and `episodes` times sampled; see `evaluate_watched`."""
    result, _ = await evaluate_watched(table, engine, temperature, episodes, domain)
    return result


async def evaluate_watched(
    table: Table, engine: Engine, temperature: float, episodes: int, domain: Domain = "eval", step: int = 0
) -> tuple[Evaluation, Sight]:
    """Play every evaluation task greedily once and `episodes` times sampled; the result, and what the watch sees of it.

    The independent verifier, where the world has one, is asked about the sampled episodes.

    Args:
        table: world, codec, limits, seed.
        engine: holds the weights to be judged.
        temperature: of the sampled episodes.
        episodes: sampled episodes per task.
        domain: names the random streams.
        step: of the training, for the watch.
    """
    tasks = table.world.split("eval")
    most = table.limits.turn_tokens
    n = 2 * len(tasks)
    greedy = await play_groups(table, tasks, 1, engine, Sampling(most, 0.0), (domain, range(0, n, 2)))
    warm = Sampling(most, temperature)
    sampled = await play_groups(table, tasks, episodes, engine, warm, (domain, range(1, n, 2)))
    (g, g_sum, g_n), (s, s_sum, s_n) = _success(greedy), _success(sampled)
    everything = [t for group in (*greedy, *sampled) for t in group.trajectories]
    opinions = await second_opinions(table, sampled)
    measures = values(combine([measure_groups(table.world, sampled)]))
    own: set[str] = set()
    if table.world.measures is not None:
        honest = [group for group in sampled if not is_honeypot(group.task)]
        scored = [t for group in honest for t in group.trajectories if t.score is not None]
        own = {name for t in scored for name in table.world.measures(t.task, t)}
    result = Evaluation(
        greedy_success=g,
        greedy_interval=wilson(g_sum, g_n),
        sampled_success=s,
        sampled_interval=wilson(s_sum, s_n),
        limit=table.world.best_possible,
        episodes=len(everything),
        invalid=sum(t.score is None for t in everything),
        measures=measures,
        of_world={name: value for name, value in measures.items() if name in own},
        **_second(opinions),
    )
    return result, see_held_out(step, played(sampled, opinions))


def _second(opinions: Opinions) -> dict[str, Any]:
    """The independent fields of an evaluation."""
    if not opinions:
        return {}
    read = values(measured(opinions))
    number = int(read["independent_episodes"] or 0)
    return {
        "independent_success": read.get("independent_success"),
        "proxy_gap": read.get("proxy_gap"),
        "independent_episodes": number,
        "independent_invalid": len(opinions) - number,
    }


def _success(groups: list[Group]) -> tuple[float | None, float, int]:
    honest = [group for group in groups if not is_honeypot(group.task)]
    scores = [t.score for group in honest for t in group.trajectories if t.score is not None]
    total: Metrics = combine([{"success": Mean(score)} for score in scores])
    return (values(total)["success"] if scores else None), sum(scores), len(scores)
