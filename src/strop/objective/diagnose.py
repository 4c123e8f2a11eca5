"""Metrics of the trained tokens of one micro-batch, as sums and counts.

Invariant: which metric a token enters depends on that token (or its trajectory) alone, so that the split into
micro-batches changes nothing; the ratio is reported whether or not the algorithm uses it.
"""

import torch

from strop.core.metrics import EffectiveShare, Mean, Metrics, Peak
from strop.objective.parts import MAX_LOG_RATIO, log_ratio

BELOW, ABOVE = (0.5, 0.8), (1.2, 2.0, 5.0)
"""Token ratios are counted beyond these bounds: shares add over micro-batches, quantiles would not."""


def policy_metrics(
    logp: torch.Tensor,
    behaviour: torch.Tensor,
    advantage: torch.Tensor,
    ratio: torch.Tensor | None,
    clipped: torch.Tensor,
) -> Metrics:
    """Diagnostics of the trained tokens.

    `ratio` is pi / behaviour per token, `unit_ratio` the ratio that the algorithm uses (prefix, sequence, ...), raw, and
    `unit_ratio_max_unclipped` its maximum over the tokens that clipping left alone. `unit_ratio_clamped` is the share that
    stands at the clamp e^+-20: such ratios are all alike, so that `unit_effective_tokens` looks best where it means least.

    Args:
        logp, behaviour, advantage: columns of the trained tokens; [N].
        ratio: the algorithm's ratio, or None.
        clipped: whether clipping took or bounded the token; [N].
    """
    n = float(len(logp))
    metrics: Metrics = {
        "nonzero_advantage_tokens": Mean(float((advantage != 0).sum()), n),
        "clipped_up": Mean(float((clipped & (advantage > 0)).sum()), n),
        "clipped_down": Mean(float((clipped & (advantage < 0)).sum()), n),
    }
    known = ~behaviour.isnan()
    if bool(known.any()):
        log_r = log_ratio(logp[known], behaviour[known])
        r = log_r.exp()
        m = float(known.sum())
        metrics["ratio"] = Mean(r.sum().item(), m)
        metrics["effective_tokens"] = EffectiveShare(r.sum().item(), (r * r).sum().item(), m)
        metrics["ratio_max"] = Peak(r.max().item())
        metrics["log_ratio_abs_max"] = Peak(log_r.abs().max().item())
        metrics["ratio_clamped"] = Mean(float((log_r.abs() >= MAX_LOG_RATIO).sum()), m)
        # k3 of KL(behaviour || current): the tokens were drawn from the behaviour policy.
        metrics["kl_behaviour"] = Mean((r - 1 - log_r).sum().item(), m)
        metrics |= {f"ratio_below_{bound}": Mean(float((r < bound).sum()), m) for bound in BELOW}
        metrics |= {f"ratio_above_{bound}": Mean(float((r > bound).sum()), m) for bound in ABOVE}
    if ratio is not None and len(ratio):
        used = ratio.detach()
        metrics["unit_ratio"] = Mean(used.sum().item(), n)
        metrics["unit_ratio_max"] = Peak(used.max().item())
        metrics["unit_ratio_clamped"] = Mean(float((used.log().abs() > MAX_LOG_RATIO - 1e-5).sum()), n)
        if not bool(clipped.all()):
            metrics["unit_ratio_max_unclipped"] = Peak(used[~clipped].max().item())
        metrics["unit_effective_tokens"] = EffectiveShare(used.sum().item(), (used * used).sum().item(), n)
    if not bool(known.all()):
        metrics["nll"] = Mean(-logp[~known].sum().item(), n - float(known.sum()))
    return metrics
