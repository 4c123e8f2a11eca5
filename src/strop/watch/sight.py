"""What the watch sees of one step: sums by group, shares of behaviours, and the episodes that show them.

Invariant: a sight does not depend on the order of episodes or groups; it holds numbers and ids, never a transcript.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from strop.core.task import Verdict
from strop.core.trajectory import Trajectory
from strop.core.world import World
from strop.watch.behaviour import actions, is_honeypot, is_invalid, phrases, regressed, repeats, touched
from strop.watch.sums import Shares, Sums, by_group, most_frequent

WITNESSES = 5
"""Episodes named for each thing seen, the first by their ids."""
KEPT = 16
"""Actions, phrases and auxiliary rewards that are followed, the most frequent (or the first by name) of a step."""
HELD_OUT = ("proxy_gap", "honeypot_passes", "tests_touched")
"""What is watched on held-out tasks; it is named `eval_proxy_gap` and so on."""


@dataclass(frozen=True, slots=True)
class Played:
    """One episode as the watch gets it.

    Args:
        id, group: its id (`train-000041/3`) and that of its group.
        trajectory: what was played and what the verifier said.
        second: what the independent verifier said, None where it was not asked.
    """

    id: str
    group: str
    trajectory: Trajectory
    second: Verdict | None = None


@dataclass(frozen=True, slots=True)
class Sight:
    """What was seen after one step.

    Args:
        step: its number.
        streams: sums by name: `success`, `proxy_gap`, `aux_NAME`, `turn_NAME`, `regressions`, `repeated_actions`,
            `invalid`, `independent_invalid`, `honeypot_passes`, `tests_touched`; only what could be told.
        shares: shares of each `action`, and of each `phrase` among the episodes that say any.
        witnesses: ids of episodes that show a stream, or `action NAME` and `phrase TEXT`.
        best: the best success that is possible, where the world knows it.
        ceiling: what an audit holds that the verifier caps success near: estimate, and its interval of 95 %.
    """

    step: int
    streams: Mapping[str, Sums]
    shares: Mapping[str, Shares] = field(default_factory=dict[str, Shares])
    witnesses: Mapping[str, tuple[str, ...]] = field(default_factory=dict[str, "tuple[str, ...]"])
    best: float | None = None
    ceiling: tuple[float, float, float] | None = None


@dataclass(slots=True)
class _Gathered:
    """Items of each stream, (group, numerator, denominator), and the ids that show it."""

    items: dict[str, list[tuple[str, float, float]]]
    shown: dict[str, list[str]]

    def note(self, stream: str, episode: Played, total: float, count: float = 1.0, shows: bool = False) -> None:
        self.items.setdefault(stream, []).append((episode.group, float(total), float(count)))
        if shows:
            self.shown.setdefault(stream, []).append(episode.id)


def see(world: World, step: int, episodes: Sequence[Played]) -> Sight:
    """The sight of a step's sampled episodes."""
    found = _Gathered({}, {})
    for episode in episodes:
        _conduct(found, episode)
        _verdict(found, episode)
    _turn_rewards(found, episodes)
    shares: dict[str, Shares] = {}
    for kind, named in (
        ("action", {e.id: Counter(actions(world, e.trajectory)) for e in episodes}),
        ("phrase", {e.id: Counter(phrases(e.trajectory)) for e in episodes}),
    ):
        seen, shown = _shares(kind, episodes, named)
        shares |= seen
        found.shown |= shown
    aux = sorted(name for name in found.items if name.startswith(("aux_", "turn_")))
    streams = {name: by_group(items) for name, items in found.items.items() if name not in aux[KEPT:]}
    shown = {name: _first(ids) for name, ids in found.shown.items()}
    return Sight(step, streams, shares, shown, world.best_possible)


def see_held_out(step: int, episodes: Sequence[Played]) -> Sight:
    """The sight of an evaluation: `eval_proxy_gap`, `eval_honeypot_passes`, `eval_tests_touched`.

    Evaluation episodes are not logged, so that tasks stand as witnesses.
    """
    found = _Gathered({}, {})
    for episode in episodes:
        _conduct(found, episode)
        _verdict(found, episode)
    tasks = {episode.id: f"task {episode.trajectory.task.id}" for episode in episodes}
    streams = {f"eval_{name}": by_group(found.items[name]) for name in HELD_OUT if name in found.items}
    shown = {f"eval_{name}": _first({tasks[i] for i in found.shown.get(name, ())}) for name in HELD_OUT}
    return Sight(step, streams, {}, shown)


def _conduct(found: _Gathered, episode: Played) -> None:
    """What the agent did, whatever it was worth."""
    trajectory = episode.trajectory
    again, pairs = repeats(trajectory)
    if pairs:
        found.note("repeated_actions", episode, again, pairs, again > 0)
    broken, meddled = regressed(trajectory), touched(trajectory)
    if broken is not None:
        found.note("regressions", episode, bool(broken), shows=bool(broken))
    if meddled is not None:
        found.note("tests_touched", episode, meddled, shows=meddled)


def _verdict(found: _Gathered, episode: Played) -> None:
    """What the judges said."""
    trajectory, second = episode.trajectory, episode.second
    verdict, score = trajectory.verdict, trajectory.score
    if verdict is None:
        return
    found.note("invalid", episode, is_invalid(verdict), shows=is_invalid(verdict))
    if score is None:
        return
    if is_honeypot(trajectory.task):
        found.note("honeypot_passes", episode, score > 0, shows=score > 0)
        return
    found.note("success", episode, score, shows=score <= 0)
    for name, value in verdict.aux.items():
        found.note(f"aux_{name}", episode, value, shows=value > 0 >= score)
    if second is None:
        return
    found.note("independent_invalid", episode, is_invalid(second), shows=is_invalid(second))
    if second.score is not None and second.invalid is None:
        found.note("proxy_gap", episode, score - second.score, shows=score > second.score)


def _turn_rewards(found: _Gathered, episodes: Sequence[Played]) -> None:
    """Sum of each turn reward in an episode; 0 where the environment gave none of that name."""
    scored = [e for e in episodes if e.trajectory.score is not None and not is_honeypot(e.trajectory.task)]
    names = {name for e in scored for turn in e.trajectory.turns for name in turn.rewards}
    for episode in scored:
        for name in sorted(names):
            total = sum(turn.rewards.get(name, 0.0) for turn in episode.trajectory.turns)
            found.note(f"turn_{name}", episode, total, shows=total > 0 >= (episode.trajectory.score or 0.0))


def _shares(
    kind: str, episodes: Sequence[Played], named: Mapping[str, Counter[str]]
) -> tuple[dict[str, Shares], dict[str, list[str]]]:
    """Shares of the names of one kind over a step, and who showed the kept ones; nothing where there are none."""
    total: Counter[str] = Counter()
    for counts in named.values():
        total.update(counts)
    if not total:
        return {}, {}
    acting = [episode for episode in episodes if named[episode.id]]
    groups = len({episode.group for episode in acting})
    of = sum(total.values()) if kind == "action" else len(acting)
    shares = most_frequent(groups, of, total, KEPT)
    shown = {f"{kind} {name}": [e.id for e in acting if name in named[e.id]] for name in shares.counts}
    return {kind: shares}, shown


def _first(ids: Iterable[str]) -> tuple[str, ...]:
    return tuple(sorted(ids)[:WITNESSES])
