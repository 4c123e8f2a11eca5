"""The progress of a run on the screen: one live line on a terminal, plain lines otherwise."""

import sys
import time
from types import TracebackType
from typing import Any

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from strop.loop.plan import Plan
from strop.loop.preflight import Preflight
from strop.loop.train import StepDone

PLAIN_SECONDS = 15.0
"""Without a terminal, at most one line in this time, evaluations aside."""


class Display:
    """Shows events of a training run; use it as a context."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.live: Progress | None = None
        self.task: Any = None
        self.last = 0.0
        self.sentence: str | None = None

    def __enter__(self) -> "Display":
        if sys.stdout.isatty():
            self.live = Progress(
                TextColumn("{task.description}"), BarColumn(bar_width=None), MofNCompleteColumn(), TimeRemainingColumn()
            )
            self.live.start()
            self.task = self.live.add_task("starting", total=self.plan.steps)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.live is not None:
            self.live.stop()

    def show(self, event: "StepDone | Preflight") -> None:
        """Show one event."""
        if isinstance(event, Preflight):
            for text in preflight_lines(event):
                self._say(text)
            return
        if event.sentence is not None and event.sentence != self.sentence:
            self._say(f"step {event.step}: {event.sentence}")
        self.sentence = event.sentence
        if event.evaluation is not None:
            e = event.evaluation
            limit = "" if e.limit is None else f", best possible {e.limit:.4f}"
            greedy, sampled = ("-" if x is None else f"{x:.4f}" for x in (e.greedy_success, e.sampled_success))
            self._say(f"step {event.step} ({event.stage[1]}): greedy {greedy}, sampled {sampled}{limit}")
        for alarm in event.alarms:
            self._say(f"step {alarm.step}: ALARM {alarm.name}: {alarm.sentence}")
        if self.live is not None:
            self.live.update(self.task, completed=event.step, description=line(event))
        elif time.monotonic() - self.last > PLAIN_SECONDS:
            self.last = time.monotonic()
            self._say(f"step {event.step}/{event.steps} {line(event)}")

    def _say(self, text: str) -> None:
        if self.live is not None:
            self.live.console.print(text, highlight=False, markup=False)
        else:
            print(text, flush=True)


def line(event: StepDone) -> str:
    """One short line about a step."""
    v = event.values
    parts = [event.stage[1]]
    for name, key, form in (
        ("success", "success", "{:.2f}"),
        ("entropy", "entropy", "{:.2f}"),
        ("nll", "nll", "{:.2f}"),
        ("tasks", "sampler_tasks", "{:.0f}"),  # these two only where a sampler draws
        ("target", "sampler_target", "{:.1f}"),
        ("tok/s", "rollout_tokens_per_second", "{:.0f}"),
        ("learn/s", "learner_tokens_per_second", "{:.0f}"),
    ):
        value = v.get(key)
        if value is not None:
            parts.append(f"{name} {form.format(value)}")
    return " ".join(parts)


def preflight_lines(found: Preflight) -> list[str]:
    """What the look before training found, in words."""
    success = "unknown" if found.success is None else f"{found.success:.2f}"
    useful = ", ".join(f"{size}: {share:.2f}" for size, share in found.useful.items())
    return [
        f"preflight: {found.tasks} tasks x {found.members}: {found.all_fail} all-fail, {found.all_pass} all-pass, "
        f"{found.mixed} mixed, {found.unscored} unscored; success {success}",
        f"  expected share of useful groups by group size: {useful}",
        f"  engine against learner before any update: largest |ratio - 1| {found.ratio_error:.1e}, KL {found.kl:.1e}, "
        f"clipped {found.clipped:.2f}",
        f"  {found.advice}",
    ]
