"""The learner on one device: rows in, optimizer steps out.

Invariant: weights and optimizer state change only by a finite gradient; what was skipped is a step too, so that counters
and schedules never depend on luck. Optimizer and schedule start anew with each stage.
"""

import copy
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from strop.core.algorithm import Algorithm
from strop.core.errors import UsageError
from strop.core.guard import OnUpdate, Trip
from strop.core.learner import StepReport
from strop.core.metrics import Mean, Metrics, Peak, Total, combine
from strop.core.seeds import generator, stream_key
from strop.core.trajectory import Origin, Row
from strop.learn.annotate import Models, annotated, columns_of, forward
from strop.learn.inspect import Carried, carried, inspect, jumped, remembered, scaled, together
from strop.learn.pack import Pack, count, pack
from strop.learn.schedule import Optimisation, learning_rate
from strop.learn.values import ValueNet
from strop.model.policy import Policy
from strop.objective.adaptive import coefficients, follow, start
from strop.objective.columns import Columns, Totals
from strop.objective.objective import Moment, Needs, loss, needs


class LocalLearner:
    """Learns from rows on one device. See `strop.core.learner.Learner` for the protocol.

    Args:
        policy: the policy that is trained, in place; an engine may share it.
        temperature: sampling temperature, which every log-probability uses.
        seed: seed of the order of minibatches.
        teacher: the policy to learn from, where a term asks for one.
        rules: the guard's rules on updates; see `strop.learn.inspect`.
        others: further teachers, for rows that name them.

    `rate` multiplies the schedule's learning rate, the critic's too; a rollback lowers it.
    """

    def __init__(
        self,
        policy: Policy,
        temperature: float,
        seed: int,
        teacher: Policy | None = None,
        rules: Sequence[OnUpdate] = (),
        others: Sequence[Policy] = (),
    ) -> None:
        self.policy = policy
        self.temperature = temperature
        self.seed = seed
        self.parameters = [p for p in policy.model.parameters() if p.requires_grad]
        # bf16 weights lose small updates, so float32 masters are trained and copied back.
        self.separate = any(torch.finfo(p.dtype).bits < 32 for p in self.parameters)
        self.masters = [p.detach().float().clone() for p in self.parameters] if self.separate else self.parameters
        self.models = Models(policy, teacher=teacher, others=tuple(others))
        self.traces: dict[Origin, dict[str, Any]] = {}
        self.rules = tuple(rules)
        self.rate = 1.0
        self.trips: list[Trip] = []
        self.first = 0  # update in which the step began
        self.begin(None, Optimisation(), 1)

    def begin(self, algorithm: Algorithm | None, settings: Optimisation, planned: int) -> None:
        """Start a stage: its algorithm, its settings, a fresh optimizer, and the number of updates planned.

        The reference policy is the policy at this moment, and a critic starts anew. A process reward model stays.
        """
        self.algorithm = algorithm
        self.settings = settings
        self.planned = planned
        self.update = self.began = 0
        self.steps = 0
        self.norms: list[float] = []
        self.wanted = Needs() if algorithm is None else needs(algorithm)
        self.adaptive = {} if algorithm is None else start(algorithm)
        self._prepare(algorithm)
        groups: list[dict[str, Any]] = [{"params": self.masters, "rate": 1.0}]
        if self.models.critic is not None and algorithm is not None and algorithm.critic is not None:
            groups.append({"params": self.models.critic.parameters, "rate": algorithm.critic.rate})
        if self.wanted.labels and self.models.process is not None:
            groups.append({"params": self.models.process.parameters, "rate": 1.0})
        self.optimizer = torch.optim.AdamW(
            groups, lr=settings.lr, betas=(0.9, 0.999), weight_decay=settings.weight_decay, fused=True
        )

    def _prepare(self, algorithm: Algorithm | None) -> None:
        """The other models of the stage: reference, critic, process reward model, teacher."""
        wanted, models = self.wanted, self.models
        restart = algorithm is not None and algorithm.rounds.restart
        told = wanted.divergence is not None and wanted.divergence.teacher == "self"
        models.reference = self._frozen() if wanted.reference or wanted.reference_kl or restart or told else None
        if wanted.divergence is not None and not told and models.teacher is None:
            raise UsageError("a divergence needs a teacher; give model.teacher")
        if (wanted.process or wanted.labels) and models.process is None:
            models.process = ValueNet(self.policy, "separate")
        models.critic = None
        if algorithm is not None and algorithm.critic is not None:
            models.critic = ValueNet(self.policy, algorithm.critic.kind)
            if algorithm.critic.start == "process" and models.process is not None:
                models.critic.load(models.process.tensors())

    def _frozen(self) -> Policy:
        model = copy.deepcopy(self.policy.model)
        for parameter in model.parameters():
            parameter.requires_grad_(False)
        return Policy(model, self.policy.tokenizer, self.policy.vocabulary)

    def annotate(self, rows: Sequence[Row], needs: Sequence[str]) -> list[Row]:
        """Add columns by name at the sampled tokens, NaN elsewhere; see `strop.learn.annotate.annotated`."""
        return annotated(self.models, rows, needs, self.temperature, self.settings.token_budget, self.algorithm)

    def step(self, rows: Sequence[Row]) -> StepReport:
        """Learn from one batch: `epochs` passes of `minibatches` optimizer steps over whole groups."""
        parts: list[Metrics] = []
        skipped: dict[str, int] = {}
        taken = 0
        self.traces = {}
        self.trips, self.first = [], self.update
        for epoch in range(self.settings.epochs):
            for batch in self._minibatches(rows, epoch):
                metrics, reason = self._update(batch)
                parts.append(metrics)
                if reason is None:
                    taken += 1
                else:
                    skipped[reason] = skipped.get(reason, 0) + 1
        self.steps += 1
        if "log_ratio_abs_max" in parts[0]:  # before any update of the step: on fresh data, engine against learner
            parts.append({"first_log_ratio_abs_max": parts[0]["log_ratio_abs_max"]})
        return StepReport(combine(parts), taken, skipped, tuple(self.trips))

    def publish(self, version: int) -> Mapping[str, torch.Tensor]:
        """A snapshot of the weights for an engine that does not share them."""
        return {name: tensor.detach().clone() for name, tensor in self.policy.model.state_dict().items()}

    def rewind(self) -> None:
        """Go back to the weights that the stage started from (rounds that restart), and to the start of the schedule."""
        if self.models.reference is None:
            raise RuntimeError("only an algorithm whose rounds restart keeps the weights of the stage's start")
        self.policy.model.load_state_dict(self.models.reference.model.state_dict())
        with torch.no_grad():
            for parameter, master in zip(self.parameters, self.masters, strict=True):
                if self.separate:
                    master.copy_(parameter)
        self.optimizer.state.clear()
        self.began = self.update

    def traced(self, rows: Sequence[Row]) -> list[Row]:
        """Rows with `current_logp` and `weight` (dL/dlogp) of their last update in the last step; NaN elsewhere."""
        out: list[Row] = []
        for row in rows:
            trace = self.traces.get(row.origin)
            if trace is not None:
                columns = {name: np.full(len(row), np.nan, dtype=np.float32) for name in ("current_logp", "weight")}
                for name, column in columns.items():
                    column[trace["places"]] = trace[name]
                row = row.with_columns(**columns)
            out.append(row)
        return out

    def coefficient(self, name: str, otherwise: float) -> float:
        """The adaptive coefficient of a term for the next update, or the fixed one."""
        return otherwise if self.algorithm is None else coefficients(self.algorithm, self.adaptive).get(name, otherwise)

    def state(self) -> dict[str, Any]:
        """`counters` are JSON; `tensors` are by group and name: optimizer, masters and the models of the stage."""
        moments: dict[str, torch.Tensor] = {}
        for index, entry in self.optimizer.state_dict()["state"].items():
            for name, tensor in entry.items():
                moments[f"{index}.{name}"] = tensor
        masters = {str(i): m.detach() for i, m in enumerate(self.masters)} if self.separate else {}
        tensors = {"optimizer": moments, "masters": masters, **self.models.tensors()}
        counters = {"update": self.update, "steps": self.steps, "adaptive": self.adaptive, "norms": self.norms}
        return {"counters": counters, "tensors": {group: named for group, named in tensors.items() if named}}

    def restore(self, counters: Mapping[str, Any], tensors: Mapping[str, Mapping[str, torch.Tensor]]) -> None:
        """Take back what `state` gave; `begin` comes first."""
        self.update, self.steps = counters["update"], counters["steps"]
        self.adaptive = dict(counters["adaptive"])
        self.norms = list(counters.get("norms", []))
        entries: dict[int, dict[str, torch.Tensor]] = {}
        for key, tensor in tensors.get("optimizer", {}).items():
            index, name = key.split(".", 1)
            entries.setdefault(int(index), {})[name] = tensor
        self.optimizer.load_state_dict({**self.optimizer.state_dict(), "state": entries})
        with torch.no_grad():
            for index, master in tensors.get("masters", {}).items():
                self.masters[int(index)].copy_(master)
        self.models.load(tensors)

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
        parts = [order[i::n] for i in range(n)]
        return [[row for i in part for row in groups[names[i]]] for part in parts]

    def _update(self, rows: Sequence[Row]) -> tuple[Metrics, str | None]:
        """One optimizer step; returns its metrics and why it was not taken, if so."""
        if self.algorithm is None:
            raise RuntimeError("begin() must give the learner an algorithm before its first step")
        totals = count(rows, self.wanted.observations is not None)
        lr = learning_rate(self.settings, self.update - self.began, self._span()) * self.rate
        moment = self._moment()
        self.update += 1
        if totals.tokens == 0:
            return {"policy_loss": Mean(0.0, 0.0)}, "nothing to train"
        parts, tokens, finite = self._backward(rows, totals, moment)
        metrics = combine([*parts, {"policy_loss": Mean(0.0, 1.0), "updates": Total(1), "learning_rate": Mean(lr)}])
        norms = [self._norm(group["params"]) for group in self.optimizer.param_groups]
        refused = None
        if finite and all(map(math.isfinite, norms)) and tokens is not None:
            norms, refused = self._inspect(rows, tokens, (totals, moment), norms, metrics)
        metrics["gradient_norm"] = Mean(norms[0])
        metrics["gradient_norm_max"] = Peak(norms[0])
        if not (finite and all(map(math.isfinite, norms))):
            refused = "non-finite"
        if refused is not None:
            self._clear()
            return metrics, refused
        self._apply(norms, lr)
        self._adapt(metrics, totals)
        return metrics, None

    def _span(self) -> int:
        """Updates of the schedule: those of the stage, or of one round where each starts anew."""
        if self.algorithm is None or not self.algorithm.rounds.restart:
            return self.planned
        return self.settings.epochs * self.settings.minibatches * len(self.algorithm.rounds.thresholds)

    def _backward(
        self, rows: Sequence[Row], totals: Totals, moment: Moment
    ) -> tuple[list[Metrics], Carried | None, bool]:
        """The gradient of an update: metrics of its micro-batches, what its tokens carry (with rules), and whether its
        loss is finite."""
        self._clear()
        parts: list[Metrics] = []
        tokens: list[Carried] = []
        finite = True
        for micro in pack(rows, self.settings.token_budget, self.wanted.observations, self.policy.device):
            value, metrics, columns = self._loss(micro, totals, moment)
            parts.append(metrics)
            finite = finite and math.isfinite(value.item())
            if self.rules and self.algorithm is not None:
                tokens.append(carried(self.algorithm, micro, columns))
        return parts, together(tokens) if tokens else None, finite

    def _inspect(
        self, rows: Sequence[Row], tokens: Carried, of: tuple[Totals, Moment], norms: list[float], metrics: Metrics
    ) -> tuple[list[float], str | None]:
        """Hold the update against the rules; what is capped goes backward once more, with scaled advantages.

        Returns:
            The norms of the gradient to apply, and why it must not be applied, if so. `metrics` gets what was compared.
        """
        number = self.update - 1 - self.first
        found = inspect(self.rules, tokens, number)
        if found.factors and found.refused is None:
            self._backward(scaled(rows, found.factors), *of)
            norms = [self._norm(group["params"]) for group in self.optimizer.param_groups]
        jump = jumped(self.rules, norms[0], self.norms, number)
        self.norms = remembered(self.norms, norms[0])
        metrics |= {**found.metrics, **jump.metrics}
        self.trips += [*found.trips, *jump.trips]
        return norms, found.refused or jump.refused

    def _moment(self) -> Moment:
        critic = None if self.algorithm is None else self.algorithm.critic
        return Moment(
            progress=self.update / max(self.planned - 1, 1),
            policy=not self.wanted.labels and (critic is None or self.update >= critic.warmup),
            adaptive={} if self.algorithm is None else coefficients(self.algorithm, self.adaptive),
        )

    def _adapt(self, metrics: Metrics, totals: Totals) -> None:
        if self.algorithm is None or not self.adaptive:
            return
        entropy = metrics.get("entropy")
        kl = metrics.get("kl_reference_k1", metrics.get("kl_reference"))  # the latter alone where the KL is exact
        mean_kl = kl.total / max(totals.trajectories, 1) if isinstance(kl, Mean) else None
        mean_entropy = None if entropy is None else entropy.value
        self.adaptive = follow(self.algorithm, self.adaptive, mean_entropy, mean_kl, totals.trajectories)
        metrics |= {f"{name}_coefficient": Mean(value) for name, value in self.adaptive.items() if value < 1e9}

    @staticmethod
    def _norm(parameters: Sequence[torch.Tensor]) -> float:
        gradients = [p.grad for p in parameters if p.grad is not None]
        return torch.nn.utils.get_total_norm(gradients).item() if gradients else 0.0

    def _apply(self, norms: Sequence[float], lr: float) -> None:
        """Clip each group of weights by its own norm, and step."""
        for group, norm in zip(self.optimizer.param_groups, norms, strict=True):
            group["lr"] = lr * group["rate"]
            if self.settings.clip_norm and norm > self.settings.clip_norm:
                for parameter in group["params"]:
                    if parameter.grad is not None:
                        parameter.grad.mul_(self.settings.clip_norm / norm)
        self.optimizer.step()
        self._clear()
        if self.separate:
            with torch.no_grad():
                for parameter, master in zip(self.parameters, self.masters, strict=True):
                    parameter.copy_(master)

    def _clear(self) -> None:
        own = [p for group in self.optimizer.param_groups for p in group["params"]]
        for tensor in (*own, *self.parameters):
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

    def _loss(self, micro: Pack, totals: Totals, moment: Moment) -> tuple[torch.Tensor, Metrics, Columns]:
        """Forward and backward of one micro-batch: its loss, its metrics, and the columns, with their gradient."""
        if self.algorithm is None:
            raise RuntimeError("begin() must give the learner an algorithm before its first step")
        if self.policy.model.is_activation_checkpointing:
            self.policy.model.train()  # an engine on the same weights sets eval; layers are recomputed in training mode only
        out = forward(self.models, micro, self.wanted, self.temperature)
        columns = columns_of(micro, out, self.algorithm)
        if columns.logp.requires_grad:
            columns.logp.retain_grad()
        value, metrics = loss(self.algorithm, columns, totals, moment)
        if value.requires_grad:
            value.backward()  # type: ignore[no-untyped-call]
        self._gather()
        self._trace(micro, columns.logp)
        return value.detach(), metrics, columns

    def _trace(self, micro: Pack, logp: torch.Tensor) -> None:
        """Remember, for each row, log-probability and dL/dlogp of its tokens in the last update that held it."""
        weight = torch.zeros_like(logp) if logp.grad is None else logp.grad
        chosen = micro.sampled.cpu().numpy()
        row, place = (index[chosen] for index in micro.places)
        numbers = {"current_logp": logp.detach(), "weight": weight}
        flat = {name: t.float().cpu().numpy()[chosen] for name, t in numbers.items()}
        order = row.argsort(kind="stable")
        bounds = row[order].searchsorted(range(len(micro.rows) + 1))
        for index, source in enumerate(micro.rows):
            mine = order[bounds[index] : bounds[index + 1]]
            self.traces[source.origin] = {"places": place[mine], **{n: v[mine] for n, v in flat.items()}}
