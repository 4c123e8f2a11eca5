"""KL and value losses per token, as pure functions. Invariant: values and gradients are those that the names promise.

Of d = log pi - log ref at a token drawn from pi: k1 = d, k2 = d^2 / 2, k3 = exp(-d) - 1 + d. E k1 = E k3 = KL(pi || ref).
As a loss, with samples fixed, the expected gradient of k1 is 0, of k2 that of KL(pi || ref), of k3 that of KL(ref || pi);
with the ratio pi / old in front, k1 and k3 follow KL(pi || ref), also on stale data (2506.09477; 2510.01555).
"""

import torch

from strop.core.algorithm import KL, Critic
from strop.core.metrics import Explained, Mean, Metrics
from strop.objective.columns import Columns, Totals
from strop.objective.parts import log_ratio

MAX_LOG = 20.0


def kl_estimate(estimator: str, logp: torch.Tensor, reference_logp: torch.Tensor) -> torch.Tensor:
    """k1, k2 or k3 per token (Schulman's note), in nats, with the gradient through `logp`; [N]."""
    d = (logp - reference_logp).clamp(-MAX_LOG, MAX_LOG)
    match estimator:
        case "k1":
            return d
        case "k2":
            return d * d / 2
        case "k3":
            return (-d).exp() - 1 + d
        case _:
            raise ValueError(f"estimator {estimator!r} is unknown; known: k1, k2, k3")


def kl_loss(term: KL, columns: Columns) -> torch.Tensor:
    """The KL term at each trained token; [N]."""
    chosen = columns.sampled
    if term.estimator == "exact":
        if columns.reference_kl is None:
            raise RuntimeError("an exact KL needs the reference's distribution; ask the forward for it")
        return columns.reference_kl[chosen]
    if columns.reference_logp is None:
        raise RuntimeError("a KL term needs the column reference_logp; annotate the rows")
    logp = columns.logp[chosen]
    k = kl_estimate(term.estimator, logp, columns.reference_logp[chosen])
    return log_ratio(logp, columns.behaviour_logp[chosen]).exp() * k if term.weighted else k


def value_error(critic: Critic, value: torch.Tensor, old: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """Value loss per token: (V - G)^2, its clipped form, or cross-entropy of sigmoid(value) and G; [N].

    Clipped: max((V - G)^2, (clip(V, V_old - bound, V_old + bound) - G)^2) (PPO's code). A coefficient of 0.5 gives the
    half square.

    Args:
        critic: which loss.
        value: V now, its logit for `bce`.
        old: V at the start of the step.
        target: G, detached.
    """
    match critic.loss:
        case "squared":
            return (value - target) ** 2
        case "clipped":
            near = old + (value - old).clamp(-critic.bound, critic.bound)
            return torch.maximum((value - target) ** 2, (near - target) ** 2)
        case "bce":
            return torch.nn.functional.binary_cross_entropy_with_logits(value, target.clamp(0.0, 1.0), reduction="none")


def value_loss(critic: Critic, columns: Columns, totals: Totals) -> tuple[torch.Tensor, Metrics]:
    """coefficient x mean value loss over the tokens that have a target.

    The explained variance is that of the values before the update.
    """
    if columns.value is None or columns.value_target is None or columns.value_old is None:
        raise RuntimeError("a critic needs the columns value, value_old and value_target; annotate the rows")
    chosen = ~columns.value_target.isnan() & columns.sampled
    target, old = columns.value_target[chosen], columns.value_old[chosen]
    error = value_error(critic, columns.value[chosen], old, target).sum()
    n = float(chosen.sum())
    gap = target - old
    squares = (gap * gap).sum().item(), target.sum().item(), (target * target).sum().item()
    return critic.coefficient * error / max(totals.values, 1), {
        "value_loss": Mean(error.item(), n),
        "value_mean": Mean(old.sum().item(), n),
        "explained_variance": Explained(gap.sum().item(), *squares, n),
    }


def process_loss(columns: Columns, totals: Totals) -> tuple[torch.Tensor, Metrics]:
    """Cross-entropy of the process reward model over the labelled turns: the last sampled token of each (2305.20050).

    -mean over turns of y log sigmoid(z) + (1 - y) log(1 - sigmoid(z)); the gradient in z is (sigmoid(z) - y) / turns.
    """
    if columns.process is None or columns.process_label is None:
        raise RuntimeError("process labels need the columns process and process_label")
    chosen = ~columns.process_label.isnan() & columns.sampled
    z, y = columns.process[chosen], columns.process_label[chosen]
    error = torch.nn.functional.binary_cross_entropy_with_logits(z, y, reduction="sum")
    n = float(chosen.sum())
    return error / max(totals.labels, 1), {
        "process_loss": Mean(error.item(), n),
        "process_label": Mean(y.sum().item(), n),
        "process_score": Mean(torch.sigmoid(z.detach()).sum().item(), n),
    }
