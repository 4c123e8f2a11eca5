"""The watch in the loop: second opinions on a few episodes, and sights handed to the rules.

Invariant: looking changes nothing that is trained. The independent verifier is asked after the batch is complete, draws
from no random stream, and what it says goes to metrics and alarms only.
"""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from strop.core.metrics import Metrics
from strop.core.task import Verdict
from strop.core.trajectory import Group, Trajectory
from strop.loop.plan import Watching
from strop.rollout.episode import judge
from strop.rollout.group import Table
from strop.watch.alarms import Alarm, look
from strop.watch.behaviour import is_honeypot
from strop.watch.measure import measure_second
from strop.watch.memory import memory_of
from strop.watch.run_folder import RunFolder
from strop.watch.sight import Played, Sight, see

ASKED = 32
"""Training episodes of a step about which the independent verifier is asked, and evaluation episodes at one time."""

Opinions = Mapping[str, tuple[float, Verdict]]
"""By the id of an episode: the verifier's score, and what the independent verifier says."""


async def second_opinions(table: Table, groups: Sequence[Group], most: int | None = None) -> Opinions:
    """Ask the independent verifier about episodes that the verifier could judge, honeypots aside; nothing without one.

    It is given the trajectory without the verifier's verdict. One that raises or takes too long is invalid.

    Args:
        table: its world has the independent verifier, its limits the time that one answer may take.
        groups: what was played.
        most: ask about so many at most, spread over the groups: first members first.
    """
    independent = table.world.independent
    if independent is None:
        return {}
    other = replace(table.world, verify=independent)
    candidates = [
        (member, group.id, trajectory)
        for group in groups
        if not is_honeypot(group.task)
        for member, trajectory in enumerate(group.trajectories)
        if trajectory.score is not None
    ]
    chosen = sorted(candidates, key=lambda item: item[:2])[:most]
    unjudged = [replace(trajectory, verdict=None) for _, _, trajectory in chosen]
    judged: list[Trajectory] = []
    for first in range(0, len(unjudged), ASKED):
        some = (judge(other, trajectory, table.limits.seconds) for trajectory in unjudged[first : first + ASKED])
        judged += await asyncio.gather(*some)
    found: dict[str, tuple[float, Verdict]] = {}
    for (member, group, trajectory), seen in zip(chosen, judged, strict=True):
        if trajectory.score is not None and seen.verdict is not None:
            found[f"{group}/{member}"] = trajectory.score, seen.verdict
    return found


def measured(opinions: Opinions) -> Metrics:
    """The metrics of second opinions; none without any."""
    if not opinions:
        return {}
    scores, verdicts = zip(*opinions.values(), strict=True)
    return measure_second(scores, verdicts)


def played(groups: Sequence[Group], opinions: Opinions) -> list[Played]:
    """Episodes as the watch gets them."""

    def one(group: Group, member: int, trajectory: Trajectory) -> Played:
        name = f"{group.id}/{member}"
        return Played(name, group.id, trajectory, opinions[name][1] if name in opinions else None)

    return [one(group, m, trajectory) for group in groups for m, trajectory in enumerate(group.trajectories)]


@dataclass(slots=True)
class Watch:
    """The watch of one run: sights in, alarms out to the folder.

    Args:
        settings: which alarms stop the run.
        table: what is played.
        folder: where alarms are written.
        raised: alarms that were raised and not yet told.
        ceiling: what the audit that `run.json` tells of holds of the verifier, see `Sight`.
    """

    settings: Watching
    table: Table
    folder: RunFolder
    raised: list[Alarm]
    ceiling: tuple[float, float, float] | None = field(init=False)

    def __post_init__(self) -> None:
        found: Mapping[str, Any] = self.folder.run().get("audit", {}).get("ceiling") or {}
        self.ceiling = (found["rate"], found["low"], found["high"]) if found else None

    async def step(
        self, record: Mapping[str, Any], number: int, groups: Sequence[Group]
    ) -> tuple[dict[str, Any], Metrics]:
        """Look at a training step.

        Returns:
            The record of the memory after it, and the metrics of the independent verifier.
        """
        opinions = await second_opinions(self.table, groups, ASKED)
        return self.look(record, see(self.table.world, number, played(groups, opinions))), measured(opinions)

    def look(self, record: Mapping[str, Any], sight: Sight) -> dict[str, Any]:
        """Look at a sight: alarms are written at once, and the record of the new memory is returned."""
        memory, alarms = look(memory_of(record), replace(sight, ceiling=self.ceiling))
        for alarm in alarms:
            told = alarm.record()
            self.folder.log_alarm(told.pop("step"), told.pop("name"), told)
        self.raised += alarms
        return memory.record()

    def tell(self) -> tuple[Alarm, ...]:
        """The alarms since this was last asked."""
        told, self.raised = tuple(self.raised), []
        return told

    def reason_to_stop(self, alarms: Sequence[Alarm]) -> str | None:
        """Why the run must stop now, None if it need not."""
        alarm = next((a for a in alarms if a.name in self.settings.stop), None)
        if alarm is None:
            return None
        return (
            f"alarm {alarm.name} in step {alarm.step}: {alarm.sentence} (watch.stop stops the run here; the checkpoint is "
            f"written). Look with strop watch {self.folder.path}; strop train --resume {self.folder.path} goes on all the same."
        )
