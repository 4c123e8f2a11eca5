"""The learner on one device: rows in, optimizer steps out.

Invariant: weights and optimizer state change only by a finite gradient; what was skipped is a step too, so that counters
and schedules never depend on luck. Optimizer and schedule start anew with each stage.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from strop.core.algorithm import Algorithm
from strop.core.learner import StepReport
from strop.core.metrics import Mean, Metrics, Peak, Total, combine
from strop.core.seeds import generator, stream_key
from strop.core.trajectory import Row
from strop.learn.pack import Pack, count, pack
from strop.learn.schedule import Optimisation, learning_rate
from strop.model.forward import packed_hidden, token_columns
from strop.model.policy import Policy
from strop.objective.columns import Columns, Totals
from strop.objective.objective import Needs, loss, needs


class LocalLearner:
    """Learns from rows on one device. See `strop.core.learner.Learner` for the protocol.

    Args:
        policy: the policy that is trained, in place; an engine may share it.
        temperature: sampling temperature, which every log-probability uses.
        seed: seed of the order of minibatches.
    """

    def __init__(self, policy: Policy, temperature: float, seed: int) -> None:
        self.policy = policy
        self.temperature = temperature
        self.seed = seed
        self.parameters = [p for p in policy.model.parameters() if p.requires_grad]
        # bf16 weights lose small updates, so float32 masters are trained and copied back.
        self.separate = any(p.dtype != torch.float32 for p in self.parameters)
        self.masters = [p.detach().float().clone() for p in self.parameters] if self.separate else self.parameters
        self.begin(None, Optimisation(), 1)

    def begin(self, algorithm: Algorithm | None, settings: Optimisation, planned: int) -> None:
        """Start a stage: its algorithm, its settings, a fresh optimizer, and the number of updates planned."""
        self.algorithm = algorithm
        self.settings = settings
        self.planned = planned
        self.update = 0
        self.steps = 0
        self.optimizer = torch.optim.AdamW(
            self.masters, lr=settings.lr, betas=(0.9, 0.999), weight_decay=settings.weight_decay, fused=True
        )

    def annotate(self, rows: Sequence[Row], needs: Sequence[str]) -> list[Row]:
        """Add columns `logp` and, if asked for, `entropy` of the current policy at the sampled tokens; NaN elsewhere."""
        out: dict[int, Row] = {}
        with torch.no_grad():
            for micro in pack(
                [_with_advantage(row) for row in rows], self.settings.token_budget, False, self.policy.device
            ):
                logp, entropy = self._forward(micro, Needs("entropy" in needs, False))
                for index, row in enumerate(micro.rows):
                    chosen = micro.places[0] == index
                    columns: dict[str, np.ndarray] = {}
                    for name, values in (("logp", logp), ("entropy", entropy)):
                        if name in needs and values is not None:
                            columns[name] = np.full(len(row), np.nan, dtype=np.float32)
                            columns[name][micro.places[1][chosen]] = values.cpu().numpy()[chosen]
                    out[id(row.tokens)] = row.with_columns(**columns)
        return [out.get(id(row.tokens), row) for row in rows]

    def step(self, rows: Sequence[Row]) -> StepReport:
        """Learn from one batch: `epochs` passes of `minibatches` optimizer steps over whole groups."""
        parts: list[Metrics] = []
        skipped: dict[str, int] = {}
        taken = 0
        for epoch in range(self.settings.epochs):
            for batch in self._minibatches(rows, epoch):
                metrics, reason = self._update(batch)
                parts.append(metrics)
                if reason is None:
                    taken += 1
                else:
                    skipped[reason] = skipped.get(reason, 0) + 1
        self.steps += 1
        return StepReport(combine(parts), taken, skipped)

    def publish(self, version: int) -> Mapping[str, torch.Tensor]:
        """A snapshot of the weights for an engine that does not share them."""
        return {name: tensor.detach().clone() for name, tensor in self.policy.model.state_dict().items()}

    def state(self) -> dict[str, Any]:
        """Counters and optimizer state: `counters` is JSON, `optimizer` and `masters` are tensors by name."""
        moments: dict[str, torch.Tensor] = {}
        for index, entry in self.optimizer.state_dict()["state"].items():
            for name, tensor in entry.items():
                moments[f"{index}.{name}"] = tensor
        masters = {str(i): m for i, m in enumerate(self.masters)} if self.separate else {}
        return {"counters": {"update": self.update, "steps": self.steps}, "optimizer": moments, "masters": masters}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Take back what `state` gave; `begin` comes first."""
        self.update, self.steps = state["counters"]["update"], state["counters"]["steps"]
        entries: dict[int, dict[str, torch.Tensor]] = {}
        for key, tensor in state["optimizer"].items():
            index, name = key.split(".", 1)
            entries.setdefault(int(index), {})[name] = tensor
        self.optimizer.load_state_dict({**self.optimizer.state_dict(), "state": entries})
        for index, master in state["masters"].items():
            self.masters[int(index)].copy_(master)

    def _minibatches(self, rows: Sequence[Row], epoch: int) -> list[list[Row]]:
        """Whole groups, dealt in a random order that depends on the step and the epoch only."""
        n = self.settings.minibatches
        if n == 1:
            return [list(rows)]
        groups: dict[str, list[Row]] = {}
        for row in rows:
            groups.setdefault(row.origin.group, []).append(row)
        names = list(groups)
        order = generator((*stream_key(self.seed, "order", self.steps, epoch), 1)).permutation(len(names))
        return [[row for i in part for row in groups[names[i]]] for part in np.array_split(order, n)]

    def _update(self, rows: Sequence[Row]) -> tuple[Metrics, str | None]:
        """One optimizer step; returns its metrics and why it was not taken, if so."""
        if self.algorithm is None:
            raise RuntimeError("begin() must give the learner an algorithm before its first step")
        wanted = needs(self.algorithm)
        totals = count(rows, wanted.observations)
        lr = learning_rate(self.settings, self.update, self.planned)
        progress = self.update / max(self.planned - 1, 1)
        self.update += 1
        if totals.tokens == 0:
            return {"policy_loss": Mean(0.0, 0.0)}, "nothing to train"
        self._clear()
        parts: list[Metrics] = []
        finite = True
        for micro in pack(rows, self.settings.token_budget, wanted.observations, self.policy.device):
            value, metrics = self._loss(micro, wanted, totals, progress)
            parts.append(metrics)
            finite = finite and math.isfinite(value.item())
            value.backward()  # type: ignore[no-untyped-call]
            self._gather()
        metrics = combine([*parts, {"policy_loss": Mean(0.0, 1.0), "updates": Total(1), "learning_rate": Mean(lr)}])
        norm = torch.nn.utils.get_total_norm([m.grad for m in self.masters if m.grad is not None]).item()
        metrics["gradient_norm"] = Mean(norm)
        metrics["gradient_norm_max"] = Peak(norm)
        if not (finite and math.isfinite(norm)):
            self._clear()
            return metrics, "non-finite"
        self._apply(norm, lr)
        return metrics, None

    def _apply(self, norm: float, lr: float) -> None:
        if self.settings.clip_norm and norm > self.settings.clip_norm:
            for master in self.masters:
                if master.grad is not None:
                    master.grad.mul_(self.settings.clip_norm / norm)
        for group in self.optimizer.param_groups:
            group["lr"] = lr
        self.optimizer.step()
        self._clear()
        if self.separate:
            with torch.no_grad():
                for parameter, master in zip(self.parameters, self.masters, strict=True):
                    parameter.copy_(master)

    def _clear(self) -> None:
        for tensor in (*self.masters, *self.parameters):
            tensor.grad = None

    def _gather(self) -> None:
        """Move low-precision gradients of a micro-batch into the float32 masters."""
        if not self.separate:
            return
        for parameter, master in zip(self.parameters, self.masters, strict=True):
            if parameter.grad is not None:
                grad = parameter.grad.float()
                master.grad = grad if master.grad is None else master.grad + grad
                parameter.grad = None

    def _forward(self, micro: Pack, wanted: Needs) -> tuple[torch.Tensor, torch.Tensor | None]:
        hidden = packed_hidden(self.policy, micro.ids, micro.positions, micro.layout, micro.predictors)
        return token_columns(self.policy, hidden, micro.targets, self.temperature, wanted.entropy)

    def _loss(self, micro: Pack, wanted: Needs, totals: Totals, progress: float) -> tuple[torch.Tensor, Metrics]:
        if self.algorithm is None:
            raise RuntimeError("begin() must give the learner an algorithm before its first step")
        if self.policy.model.is_activation_checkpointing:
            self.policy.model.train()  # an engine on the same weights sets eval; layers are recomputed in training mode only
        logp, entropy = self._forward(micro, wanted)
        columns = Columns(
            logp,
            entropy,
            micro.sampled,
            micro.behaviour_logp,
            micro.advantage,
            micro.trajectory,
            micro.trajectory_tokens,
        )
        return loss(self.algorithm, columns, totals, progress)


def _with_advantage(row: Row) -> Row:
    return row if "advantage" in row.columns else row.with_columns(advantage=np.zeros(len(row), dtype=np.float32))
