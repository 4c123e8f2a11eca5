"""Learning-rate schedule in optimizer steps. Invariant: the rate is a function of the update's number only."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Optimisation:
    """How one stage is optimised.

    Args:
        lr: peak learning rate of AdamW.
        lr_end: share of `lr` that is left at the last update (linear decay).
        warmup: updates over which the rate rises linearly from 0.
        weight_decay: AdamW's decoupled decay.
        clip_norm: the gradient's norm is cut to this; 0 for no cut.
        epochs: passes over each batch.
        minibatches: optimizer steps per pass, each of whole groups.
        token_budget: tokens per micro-batch (memory, not mathematics).
    """

    lr: float = 5e-4
    lr_end: float = 0.1
    warmup: int = 0
    weight_decay: float = 0.0
    clip_norm: float = 1.0
    epochs: int = 1
    minibatches: int = 1
    token_budget: int = 16384


def learning_rate(settings: Optimisation, update: int, planned: int) -> float:
    """Rate of an update.

    Args:
        settings: the stage's settings.
        update: number of the update in its stage, from 0; skipped updates are counted too.
        planned: updates planned for the stage.
    """
    if update < settings.warmup:
        return settings.lr * (update + 1) / settings.warmup
    span = max(planned - settings.warmup - 1, 1)
    done = min((update - settings.warmup) / span, 1.0)
    return settings.lr * (1.0 - (1.0 - settings.lr_end) * done)
