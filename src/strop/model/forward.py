"""Log-probabilities and entropies of chosen tokens, in chunks of positions, recomputed in the backward pass.

Memory beyond the hidden states is one chunk of [chunk, vocabulary], two with entropy, whatever the number of tokens.
Invariant: the values and gradients are those of `log_softmax(head(hidden) / temperature)`, only never all at once.
"""

from typing import Any

import torch

from strop.model.attention import Layout
from strop.model.policy import Policy

CHUNK = 512
"""Positions whose logits exist at one time."""


class _ChunkedHead(torch.autograd.Function):
    """(hidden, weight, bias) -> (logp of the targets, entropy), both [N], with hand-written gradients.

    With p = softmax(z / T): d logp(u) / dz_v = (1[v = u] - p_v) / T and dH / dz_v = -p_v (log p_v + H) / T.
    """

    @staticmethod
    def forward(
        ctx: Any,
        hidden: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        targets: torch.Tensor,
        settings: tuple[float, bool, int],
    ) -> tuple[torch.Tensor, torch.Tensor]:
        temperature, want_entropy, chunk = settings
        n = len(hidden)
        logp = torch.empty(n, dtype=torch.float32, device=hidden.device)
        entropy = torch.zeros(n, dtype=torch.float32, device=hidden.device)
        norm = torch.empty(n, dtype=torch.float32, device=hidden.device)
        if hidden.dtype == torch.float64:  # exact tests run in double precision
            logp, entropy, norm = logp.double(), entropy.double(), norm.double()
        for start in range(0, n, chunk):
            part = slice(start, min(start + chunk, n))
            z = _logits(hidden[part], weight, bias, temperature)
            picked = z.gather(1, targets[part, None]).squeeze(1)
            top = z.amax(1)
            z.sub_(top[:, None])
            if want_entropy:
                e = z.exp()
                mass = e.sum(1)
                entropy[part] = mass.log() - e.mul_(z).sum(1) / mass
                del e
            else:
                mass = z.exp_().sum(1)
            norm[part] = top + mass.log()
            logp[part] = picked - norm[part]
            del z  # or it would live until the next chunk's logits are there
        ctx.set_materialize_grads(False)  # an entropy that is only logged costs nothing in the backward pass
        ctx.save_for_backward(hidden, weight, bias, targets, norm, entropy)
        ctx.settings = settings
        return logp, entropy

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> tuple[torch.Tensor | None, ...]:
        grad_logp, grad_entropy = grads
        hidden, weight, bias, targets, norm, entropy = ctx.saved_tensors
        temperature, _, chunk = ctx.settings
        grad_logp = torch.zeros_like(norm) if grad_logp is None else grad_logp
        grad_hidden = torch.empty_like(hidden)
        grad_weight = torch.zeros_like(weight) if ctx.needs_input_grad[1] else None
        grad_bias = torch.zeros_like(bias) if bias is not None and ctx.needs_input_grad[2] else None
        for start in range(0, len(hidden), chunk):
            part = slice(start, min(start + chunk, len(hidden)))
            z = _logits(hidden[part], weight, bias, temperature).sub_(norm[part, None])  # log p
            if grad_entropy is not None:
                p = z.exp()
                z.add_(entropy[part, None]).mul_(-grad_entropy[part, None]).sub_(grad_logp[part, None]).mul_(p)
                del p
            else:
                z.exp_().mul_(-grad_logp[part, None])
            z.scatter_add_(1, targets[part, None], grad_logp[part, None])
            z = z.div_(temperature).to(weight.dtype)
            grad_hidden[part] = (z @ weight).to(hidden.dtype)
            if grad_weight is not None:
                grad_weight.addmm_(z.t(), hidden[part].to(weight.dtype))
            if grad_bias is not None:
                grad_bias.add_(z.sum(0))
            del z
        return grad_hidden, grad_weight, grad_bias, None, None


def _logits(hidden: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, temperature: float) -> torch.Tensor:
    """Tempered logits of one chunk, float32 at least; [chunk, vocabulary]."""
    z = torch.nn.functional.linear(hidden, weight, bias)
    z = z if z.dtype == torch.float64 else z.float()
    return z if temperature == 1.0 else z.div_(temperature)


def token_columns(
    policy: Policy,
    hidden: torch.Tensor,
    targets: torch.Tensor,
    temperature: float,
    entropy: bool,
    chunk: int = CHUNK,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Log-probability of each target, and the entropy of the distribution it came from.

    Args:
        policy: the model whose head is used; ids beyond `policy.vocabulary` take no part.
        hidden: hidden state that predicts each target; [N, width].
        targets: ids; int64 [N].
        temperature: divides the logits, for policy and entropy alike.
        entropy: whether the entropy is wanted.
        chunk: positions per chunk.

    Returns:
        logp [N] and entropy [N] (or None), float32, in nats.
    """
    head = policy.head
    weight = head.weight[: policy.vocabulary]
    bias = None if head.bias is None else head.bias[: policy.vocabulary]  # type: ignore[redundant-expr]
    logp, h = _ChunkedHead.apply(hidden, weight, bias, targets, (temperature, entropy, chunk))  # type: ignore[misc]
    return logp, h if entropy else None


def packed_hidden(
    policy: Policy, ids: torch.Tensor, positions: torch.Tensor, layout: Layout, predictors: torch.Tensor
) -> torch.Tensor:
    """Hidden states at the positions that predict the chosen tokens.

    Args:
        ids, positions: the pack; [T].
        layout: who attends to whom.
        predictors: index of the token before each chosen one; [N]. This is the only shift in Strop.

    Returns:
        [N, width].
    """
    return policy.hidden(ids, positions, layout)[predictors]
