"""A plan: everything that a run will do, as frozen data. Invariant: a plan is complete and was checked; it has no defaults
left to guess at run time."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from strop.core.algorithm import Algorithm
from strop.core.engine import InFlight, Place
from strop.core.errors import UsageError
from strop.core.faults import PARTIAL, Failed
from strop.core.guard import Rule
from strop.core.guide import Guide
from strop.core.sampler import UNIFORM, Sampler
from strop.core.selection import Kept
from strop.core.source import ModelSource
from strop.core.teacher import TeacherSource
from strop.learn.schedule import Optimisation
from strop.rollout.limits import Limits

Kind = Literal["warm_start", "reinforce", "rounds"]
History = Literal["keep", "as_template"]


@dataclass(frozen=True, slots=True)
class Demonstrating:
    """Where the demonstrations of a stage come from.

    Args:
        source: `player` (the world's script), `teacher` (the policy of `model.teacher` plays), or a path: a run folder, a
            file of its episodes, or conversations as JSON lines.
        select: which of them are learned from; None for all.
        share: share of the groups of a reinforce stage that are demonstrations (GKD's 1 - lambda, 2306.13649).
    """

    source: str = "player"
    select: Kept | None = None
    share: float = 0.0

    @property
    def path(self) -> str | None:
        """The place of saved episodes, if they are saved ones."""
        return None if self.source in ("player", "teacher") else self.source


@dataclass(frozen=True, slots=True)
class StagePlan:
    """One stage.

    Args:
        kind: `warm_start` (demonstrations), `reinforce` (on-policy groups) or `rounds` (grow, filter, imitate; a step is
            one round).
        name: name of the algorithm in the table, for logs.
        algorithm: what is optimised.
        steps: batches.
        groups: groups per batch (demonstrations per batch in a warm start).
        group_size: episodes per group.
        optimisation: learning rate and the like.
        publish_every: steps between two publications of weights to the engine; above 1 the data is stale on purpose.
        split: which of the world's splits the tasks are drawn from.
        guide: help for groups in which nobody succeeded.
        demonstrating: where demonstrations come from, in a warm start or as a share of a reinforce stage.
    """

    kind: Kind
    name: str
    algorithm: Algorithm
    steps: int
    groups: int
    group_size: int
    optimisation: Optimisation
    publish_every: int = 1
    split: str = "train"
    guide: Guide | None = None
    demonstrating: Demonstrating = Demonstrating()

    @property
    def updates(self) -> int:
        """Optimizer steps planned."""
        passes = len(self.algorithm.rounds.thresholds) if self.algorithm.data == "rounds" else 1
        return self.steps * self.optimisation.epochs * self.optimisation.minibatches * passes


@dataclass(frozen=True, slots=True)
class Evaluating:
    """Evaluation: every `every` steps (0: at the end only), `episodes` sampled episodes per task beside the greedy one."""

    every: int = 50
    episodes: int = 8


@dataclass(frozen=True, slots=True)
class Keeping:
    """Checkpoints: written every `steps` steps; the newest `last` stay, every `every`-th (0: none), and the best."""

    steps: int = 50
    last: int = 2
    every: int = 0
    best: bool = True


@dataclass(frozen=True, slots=True)
class Preflighting:
    """A look before training: `tasks` tasks (0: none) with `members` episodes each; `block` refuses hopeless runs."""

    tasks: int = 8
    members: int = 8
    block: bool = False


@dataclass(frozen=True, slots=True)
class Logging:
    """Logs: total size of the episodes kept (MB), updates whose columns are kept, share of episodes kept readable."""

    episodes_mb: float = 64.0
    updates: int = 3
    samples: float = 0.002


@dataclass(frozen=True, slots=True)
class Watching:
    """The watch: the alarms that stop the run, by the names of their rules."""

    stop: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Guarding:
    """The guard: its rules, and how often they may take the run back."""

    rules: tuple[Rule, ...] = ()
    rollbacks: int = 2


@dataclass(frozen=True, slots=True)
class Plan:
    """A whole run.

    `max_lag` bounds, in batches, how old the weights may be that a trained group was sampled with; 0 is synchronous.
    `in_flight` says what new weights do to completions under way, `engine` in which process they are sampled, `failed`
    what becomes of a group with a failed member, and `sampler` which tasks are drawn where rollouts are sampled.
    `teachers` stand by the tag of their tasks, and are compared with the policy over the ids below `teacher_ids`, None for all.
    """

    env: str
    world: Mapping[str, Any]
    seed: int
    model: ModelSource
    threads: int
    stop: tuple[str, ...]
    history: History
    temperature: float
    limits: Limits
    max_failures: float
    stages: tuple[StagePlan, ...]
    evaluating: Evaluating
    keeping: Keeping
    preflighting: Preflighting
    logging: Logging
    watching: Watching = Watching()
    guarding: Guarding = Guarding()
    teachers: Mapping[str, TeacherSource] = field(default_factory=dict[str, TeacherSource])
    teacher_ids: int | None = None
    max_lag: int = 0
    in_flight: InFlight = "recompute"
    engine: Place = "local"
    failed: Failed = PARTIAL
    sampler: Sampler = UNIFORM
    resolved: Mapping[str, Any] = field(default_factory=dict[str, Any])

    def __post_init__(self) -> None:
        if not self.stages or not any(stage.steps for stage in self.stages):
            raise UsageError("the run has 0 steps planned; give it a stage with steps above 0")

    @property
    def steps(self) -> int:
        """Batches of all stages."""
        return sum(stage.steps for stage in self.stages)
