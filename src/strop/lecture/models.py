"""Figures of whole distributions and of critics: what needs logits or a model.

Invariant: entropies and divergences are those that training logs and differentiates, on the lecture's probabilities.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import numpy as np
import torch

from strop.core.algorithm import GAE, Algorithm, Critic, NoClip, NoRatio, SeqMeanTokenSum
from strop.core.trajectory import Origin, Row
from strop.learn.annotate import Models, columns_of, forward
from strop.learn.pack import count, pack
from strop.learn.values import ValueNet
from strop.lecture.enumeration import expectation
from strop.lecture.figure import Cell, Figure, Table
from strop.model.divergence import divergence_of
from strop.model.forward import token_columns
from strop.model.load import prepare
from strop.model.policy import Policy
from strop.model.tiny import tiny
from strop.objective.objective import needs, policy_loss
from strop.objective.terms import kl_estimate, value_loss


class _Logits(torch.nn.Module):
    """A model whose hidden state is its logits."""

    def __init__(self, ids: int) -> None:
        super().__init__()
        self.head = torch.nn.Linear(ids, ids, bias=False, dtype=torch.float64)
        torch.nn.init.eye_(self.head.weight)

    def get_output_embeddings(self) -> torch.nn.Linear:
        return self.head


def _entropy(probabilities: Sequence[float]) -> tuple[float, list[float]]:
    """Entropy of a next-token distribution, and its slope in the logits."""
    ids = len(probabilities)
    policy = Policy(cast(Any, _Logits(ids)), cast(Any, None), ids)
    z = torch.tensor([probabilities], dtype=torch.float64).log().requires_grad_()
    _, found = token_columns(policy, z, torch.tensor([0]), 1.0, True)
    if found is None:
        raise RuntimeError("token_columns was asked for the entropy and gave none")
    [slope] = torch.autograd.grad(found.sum(), z)
    return found.item(), slope[0].tolist()


def collapse() -> Figure:
    """A distribution before and after exploration has collapsed."""
    rows: list[tuple[Cell, ...]] = []
    for probabilities in ((0.2, 0.6, 0.2), (0.01, 0.98, 0.01)):
        h, slope = _entropy(probabilities)
        rows.append((" ".join(f"{p:g}" for p in probabilities), h, *slope))
    head = ("probabilities", "H (nats)", "dH/dz_1", "dH/dz_2", "dH/dz_3")
    return Figure((Table(head, tuple(rows)),), ("model.forward.token_columns",))


def divergence() -> Figure:
    """Both directions of the KL between a student and a teacher, and what samples of the student say of it."""
    student, teacher = (torch.tensor([p], dtype=torch.float64).log() for p in ((0.5, 0.5), (0.8, 0.2)))
    chances = student[0].exp().tolist()
    rows: list[tuple[Cell, ...]] = [
        ("reverse, KL(S || T)", divergence_of("reverse", student, teacher).item()),
        ("forward, KL(T || S)", divergence_of("forward", student, teacher).item()),
    ]
    for k in ("k1", "k2", "k3"):
        rows.append((f"mean of {k} over S", expectation(chances, kl_estimate(k, student[0], teacher[0]).tolist())))
    code = ("model.divergence.divergence_of", "objective.terms.kl_estimate")
    return Figure((Table(("S = (0.5, 0.5), T = (0.8, 0.2)", "nats"), tuple(rows)),), code)


def _reached(kind: str) -> list[tuple[Cell, ...]]:
    """Which weights the value loss and the policy loss reach, with a critic of this kind on a tiny real model."""
    policy = prepare(*tiny(("a", "b"), width=8, layers=1, heads=1, context=8, closed=True))
    critic = Critic(cast(Any, kind))
    algorithm = Algorithm(GAE(critic=critic), NoRatio(), NoClip(), SeqMeanTokenSum(), "the lecture")
    net = ValueNet(policy, kind)
    torch.nn.init.ones_(net.head.weight)  # a new head is 0 and would let nothing through
    sampled = np.array([False, True, True])
    numbers = np.where(sampled, 1.0, np.nan).astype(np.float32)
    row = Row(
        np.array([7, 8, 7], dtype=np.int32),
        sampled,
        -numbers,
        np.zeros(3, dtype=np.int32),
        np.zeros(3, dtype=np.int32),
        Origin("train-000000", 0),
        {"advantage": numbers, "value": 0 * numbers, "value_target": numbers},
    )
    [micro] = pack([row], 8, None, policy.device)
    batch = columns_of(micro, forward(Models(policy, critic=net), micro, needs(algorithm), 1.0), algorithm)
    totals = count([row], False)
    losses = {"value": value_loss(critic, batch, totals)[0], "policy": policy_loss(algorithm, batch, totals)[0]}
    body = list(cast(Any, policy.model.base_model).parameters())
    head = list(net.head.parameters())
    own = [p for p in net.parameters if all(p is not h for h in head)]
    return [
        (f"{kind}: {name} loss", *(_moves(loss, weights) for weights in (body, own, head)))
        for name, loss in losses.items()
    ]


def _moves(loss: torch.Tensor, weights: Sequence[torch.nn.Parameter]) -> str:
    """Whether a loss has a gradient in any of the weights; a dash where there are none."""
    if not weights:
        return "-"
    for weight in weights:
        weight.grad = None
    loss.backward(retain_graph=True)
    return "yes" if any(w.grad is not None and bool((w.grad != 0).any()) for w in weights) else "no"


def critics() -> Figure:
    """Whose weights the value loss and the policy loss reach, by kind of critic."""
    rows = [row for kind in ("separate", "stopgrad", "shared") for row in _reached(kind)]
    head = ("reaches", "the policy's body", "the critic's body", "the value head")
    code = ("learn.values.ValueNet", "objective.terms.value_loss", "objective.objective.policy_loss")
    return Figure((Table(head, tuple(rows)),), code)


FIGURES: Mapping[str, Callable[[], Figure]] = {
    "collapse": collapse,
    "divergence": divergence,
    "critics": critics,
}
"""By the name of the command."""
