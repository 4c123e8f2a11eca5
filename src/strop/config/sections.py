"""The sections of a run file, as closed models. Invariant: every key has an effect somewhere, or it is refused."""

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field


class Section(BaseModel):
    """A section of a run file: closed, strict."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)


class ModelSection(Section):
    """[model] which weights, and where they compute."""

    path: str | None = None
    preset: str | None = None
    teacher: str | dict[str, str] | None = None
    teacher_ids: int | None = Field(default=None, ge=1)
    dtype: Literal["float32", "bfloat16"] = "float32"
    device: Literal["cpu", "cuda", "mps"] = "cpu"
    threads: int = Field(default=1, ge=1)
    checkpointing: bool = False
    stop: list[str] = []


class RolloutSection(Section):
    """[rollout] how episodes are played."""

    groups: int = Field(default=32, ge=1)
    group_size: int = Field(default=8, ge=1)
    temperature: float = Field(default=1.0, ge=1e-3)
    turns: int = Field(default=16, ge=1)
    turn_tokens: int = Field(default=256, ge=1)
    tokens: int = Field(default=4096, ge=1)
    context: int = Field(default=4096, ge=2)
    seconds: float = Field(default=600.0, gt=0)
    step_seconds: float = Field(default=120.0, gt=0)
    failed: str = "partial"
    guide: str = "none"
    in_flight: Literal["recompute", "keep", "drain"] = "recompute"
    engine: Literal["local", "process"] = "local"
    sampler: str = "uniform"
    history: Literal["keep", "as_template"] = "as_template"
    max_failures: float = Field(default=0.5, ge=0, le=1)


class AlgorithmSection(Section):
    """[algorithm] a row of the table, and parts that replace its own, in the notation of `strop algorithms`."""

    base: str = "grpo"
    credit: str | None = None
    ratio: str | None = None
    clip: str | None = None
    correction: str | None = None
    aggregate: str | None = None
    admit: Literal["all", "mixed", "varied"] | None = None
    terms: list[str] | None = None
    rounds: str | None = None


class LearnerSection(Section):
    """[learner] the optimizer."""

    lr: float = Field(default=5e-4, ge=0)
    lr_end: float = Field(default=0.1, ge=0, le=1)
    warmup: int = Field(default=0, ge=0)
    weight_decay: float = Field(default=0.0, ge=0)
    clip_norm: float = Field(default=1.0, ge=0)
    epochs: int = Field(default=1, ge=1)
    minibatches: int | None = Field(default=None, ge=1)  # the row's updates per batch
    token_budget: int = Field(default=16384, ge=1)


class StageSection(Section):
    """[[stages]] one stage; what is not given here comes from [rollout], [algorithm] and [learner]."""

    kind: Literal["warm_start", "reinforce", "rounds"]
    steps: int = Field(ge=0)
    groups: int | None = Field(default=None, ge=1)
    group_size: int | None = Field(default=None, ge=1)
    lr: float | None = Field(default=None, ge=0)
    epochs: int | None = Field(default=None, ge=1)
    minibatches: int | None = Field(default=None, ge=1)
    algorithm: str | None = None
    terms: list[str] = []
    publish_every: int = Field(default=1, ge=1)
    split: str = "train"
    demonstrations: str = "player"
    select: str | None = None
    demonstrated: float = Field(default=0.0, ge=0, lt=1)


class EvaluateSection(Section):
    """[evaluate] how often and how much."""

    every: int = Field(default=50, ge=0)
    episodes: int = Field(default=8, ge=1)


class KeepSection(Section):
    """[keep] checkpoints and logs."""

    steps: int = Field(default=50, ge=0)
    last: int = Field(default=2, ge=1)
    every: int = Field(default=0, ge=0)
    best: bool = True
    episodes_mb: float = Field(default=64.0, gt=0)
    updates: int = Field(default=3, ge=0)
    samples: float = Field(default=0.002, ge=0, le=1)


class PreflightSection(Section):
    """[preflight] the look before training."""

    tasks: int = Field(default=8, ge=0)
    members: int = Field(default=8, ge=2)
    block: bool = False


class WatchSection(Section):
    """[watch] what is looked for while training."""

    stop: list[str] = []


class GuardSection(Section):
    """[guard] what an update and a step are held against; without `rules`, the default ones."""

    rules: list[str] | None = None
    rollbacks: int = Field(default=2, ge=0)


class RunSection(Section):
    """A whole run file."""

    env: str
    seed: int = Field(default=0, ge=0)
    max_lag: int = Field(default=0, ge=0)
    world: dict[str, Any] = {}
    model: ModelSection = ModelSection()
    rollout: RolloutSection = RolloutSection()
    algorithm: AlgorithmSection = AlgorithmSection()
    learner: LearnerSection = LearnerSection()
    stages: list[StageSection] = Field(min_length=1)
    evaluate: EvaluateSection = EvaluateSection()
    keep: KeepSection = KeepSection()
    preflight: PreflightSection = PreflightSection()
    watch: WatchSection = WatchSection()
    guard: GuardSection = GuardSection()
