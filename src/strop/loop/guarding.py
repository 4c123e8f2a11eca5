"""The guard in the loop: trips of an update and rules on a step become alarms and events, stop the run or take it back.

Invariant: without a trip nothing that is trained changes by one bit. What the guard remembers is the record `Position.guard`
(memory, name of the newest good checkpoint, rollbacks done, factor of the learning rate), so that a resumed run acts alike.

A checkpoint is good if no rule whose action is more than a note stood tripped when it was written: weights of a run that
already went wrong are no place to go back to. A rollback takes everything from it but the ledger: the tasks after it are
new ones, since the same batch would do the same harm again.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from strop.core.errors import RunError
from strop.core.guard import Rule, Trip
from strop.core.learner import StepReport
from strop.core.notation import word
from strop.learn import checkpoint
from strop.loop.plan import Guarding
from strop.watch.alarms import Alarm
from strop.watch.guard import Values, alarm, guarded_of, judge, tell
from strop.watch.run_folder import RunFolder

SLOWER = 0.5
"""What a rollback multiplies the learning rate with."""


@dataclass(slots=True)
class Guard:
    """The guard of one run.

    Args:
        settings: rules and rollbacks.
        folder: where alarms and events are written, and where checkpoints are.
        acting: the trip of the last step that stops the run or takes it back.
    """

    settings: Guarding
    folder: RunFolder
    acting: Trip | None = field(default=None)

    def look(
        self, record: Mapping[str, Any], step: int, stage: tuple[int, str], values: Values, report: StepReport
    ) -> tuple[dict[str, Any], tuple[Alarm, ...]]:
        """Hold a step against the rules. Alarms are written once, events of what was done each time.

        Args:
            record: what the guard remembers.
            step: the step that was done.
            stage: index and kind of its stage.
            values: what is logged of it.
            report: what the learner did.

        Returns:
            The record after it, and the alarms that were raised.
        """
        memory, late = judge(self.settings.rules, guarded_of(record.get("memory", {})), stage, values)
        trips = [*report.trips, *late]
        memory, raised = tell(memory, step, trips)
        for told in raised:
            self._log(told)
        for trip in trips:
            if trip.action != "note":
                self.folder.log_event(step, "guard", _event(trip))
        strong = ("rollback", "stop")
        self.acting = max((t for t in trips if t.action in strong), key=lambda t: strong.index(t.action), default=None)
        return {**record, "memory": memory.record()}, tuple(raised)

    def _log(self, told: Alarm) -> None:
        entry = told.record()
        self.folder.log_alarm(entry.pop("step"), entry.pop("name"), entry)

    @property
    def takes_back(self) -> bool:
        """Whether the last step has to be taken back."""
        return self.acting is not None and self.acting.action == "rollback"

    def reason_to_stop(self) -> str | None:
        """Why the run must stop now, None if it need not."""
        if self.acting is None or self.acting.action != "stop":
            return None
        return (
            f"guard rule {self.acting.rule}: {self.acting.sentence} (guard.rules stops the run here; the checkpoint is "
            f"written). Look with strop watch {self.folder.path}; strop train --resume {self.folder.path} goes on all the same."
        )

    def remember(self, record: Mapping[str, Any], name: str) -> dict[str, Any]:
        """The record with the checkpoint that is about to be written, if it is good and some rule may go back to it."""
        acts = {word(rule) for rule in self.settings.rules if rule.action != "note"}
        standing = guarded_of(record.get("memory", {})).standing
        if not goes_back(self.settings.rules) or acts & standing.keys():
            return dict(record)
        return {**record, "good": name}

    def take_back(self, record: Mapping[str, Any], ledger: object, step: int) -> checkpoint.Checkpoint:
        """The checkpoint to go on from, written anew with the ledger of now and a lower rate; later ones are removed.

        Args:
            record: what the guard remembers now.
            ledger: what became of every drawn task until now, a dataclass; it goes on.
            step: the step that is taken back, with all since the checkpoint.

        Raises:
            RunError: all rollbacks are used up, or there is no good checkpoint.
        """
        trip, done, good = self.acting, int(record.get("rollbacks", 0)), record.get("good")
        if trip is None:
            raise RuntimeError("nothing has tripped that takes the run back")
        why = f"guard rule {trip.rule} in step {step}: {trip.sentence}"
        if done >= self.settings.rollbacks:
            raise RunError(
                f"{why}; the run was taken back {done} times already (guard.rollbacks allows {self.settings.rollbacks}). Look "
                f"with strop watch {self.folder.path}; start anew with a lower learner.lr, or another limit in guard.rules."
            )
        if good is None:
            raise RunError(
                f"{why}; there is no good checkpoint to go back to. Lower learner.lr, or set keep.steps lower."
            )
        saved = checkpoint.load(self.folder.checkpoints / good)
        position: dict[str, Any] = saved.state["position"]
        rate = float(record.get("rate", 1.0)) * SLOWER
        position["ledger"] = asdict(ledger)  # type: ignore[call-overload]  # a dataclass
        position["guard"] = {**position["guard"], "good": good, "rollbacks": done + 1, "rate": rate}
        checkpoint.forget_after(self.folder.checkpoints, int(position["total"]))
        self.folder.resumed(int(position["total"]))
        self._log(_taken_back(trip, step, int(position["total"]), rate))
        told = {**_event(trip), "from_step": step, "rate": rate, "rollbacks": done + 1}
        self.folder.log_event(int(position["total"]), "rollback", told)
        self.folder.sync()
        checkpoint.save(self.folder.checkpoints, saved.tensors, saved.state, good)
        self.acting = None
        return saved


def goes_back(rules: Sequence[Rule]) -> bool:
    """Whether some rule takes the run back."""
    return any(rule.action == "rollback" for rule in rules)


def _event(trip: Trip) -> dict[str, Any]:
    """A trip as JSON values."""
    told = {k: v for k, v in asdict(trip).items() if k not in ("origin", "position")}
    if trip.origin is not None:
        told |= {"group": trip.origin.group, "member": trip.origin.member, "part": trip.origin.part}
        told["token"] = trip.position
    return told


def _taken_back(trip: Trip, step: int, to: int, rate: float) -> Alarm:
    """The alarm once more, at the step from which the run goes on: what was written of later steps is void."""
    told = alarm(trip, to)
    sentence = f"{trip.sentence} in step {step}; the run went back to step {to}, with {rate:g} of the learning rate"
    return Alarm(to, told.name, told.subject, told.value, told.limit, sentence, told.episodes)
