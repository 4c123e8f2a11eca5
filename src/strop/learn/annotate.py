"""What models say of rows: the columns that credit and terms need, and the forward pass of a micro-batch.

Invariant: behaviour, proximal, reference and teacher log-probabilities come from four different policies; the behaviour's
is the engine's and never recomputed. Annotations carry no gradient.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from strop.core.algorithm import Algorithm, Critic
from strop.core.errors import UsageError
from strop.core.trajectory import Row
from strop.credit.correction import around_proximal
from strop.learn.pack import Pack, pack
from strop.learn.selftaught import twin_divergence
from strop.learn.teachers import divergences, heard, readings
from strop.learn.values import ValueNet, as_value
from strop.model.divergence import divergence_column
from strop.model.forward import token_columns
from strop.model.policy import Policy
from strop.objective.columns import Columns
from strop.objective.objective import Needs

NAMES = (
    *("logp", "entropy", "proximal_logp", "reference_logp", "value", "process"),
    *("student_logp", "teacher_logp", "teacher_kl"),
)
"""Columns that `annotated` can add. `logp` and `proximal_logp` are the same numbers under the name of their use; so is
`student_logp`, but over the ids that policy and teacher share."""


@dataclass(slots=True)
class Models:
    """The models of a stage beside the policy.

    Args:
        policy: the policy that is trained.
        reference: the policy at the start of the stage; with a solution in its prompt, the teacher of self-distillation.
        teacher: the policy to learn from.
        critic: values.
        process: the process reward model; it outlives stages.
        others: further teachers; rows that carry the number k in their column `teacher` ask the k-th, `teacher` is 0.
    """

    policy: Policy
    reference: Policy | None = None
    teacher: Policy | None = None
    critic: ValueNet | None = None
    process: ValueNet | None = None
    others: tuple[Policy, ...] = ()

    @property
    def teachers(self) -> tuple[Policy, ...]:
        """All teachers by their number."""
        return () if self.teacher is None else (self.teacher, *self.others)

    def tensors(self) -> dict[str, dict[str, torch.Tensor]]:
        """Weights by group and name, for checkpoints. The teacher is read from its own files."""
        out: dict[str, dict[str, torch.Tensor]] = {}
        if self.reference is not None:
            out["reference"] = dict(self.reference.model.state_dict())
        for name, net in (("critic", self.critic), ("process", self.process)):
            if net is not None:
                out[name] = net.tensors()
        return out

    def load(self, tensors: Mapping[str, Mapping[str, torch.Tensor]]) -> None:
        """Take back what `tensors` gave."""
        if self.reference is not None and "reference" in tensors:
            self.reference.model.load_state_dict(dict(tensors["reference"]))
        if "process" in tensors:
            self.process = self.process or ValueNet(self.policy, "separate")
            self.process.load(tensors["process"])
        if self.critic is not None and "critic" in tensors:
            self.critic.load(tensors["critic"])


@dataclass(frozen=True, slots=True)
class Forward:
    """What the models give for the column tokens of a micro-batch; [N] each, None where nothing asked for it.

    `capped` is the share of ids that the divergence's cap bounded, `judged` whether a teacher judges the token.
    """

    logp: torch.Tensor
    entropy: torch.Tensor | None
    reference_kl: torch.Tensor | None = None
    divergence: torch.Tensor | None = None
    value: torch.Tensor | None = None
    process: torch.Tensor | None = None
    capped: torch.Tensor | None = None
    judged: torch.Tensor | None = None


def forward(models: Models, micro: Pack, wanted: Needs, temperature: float) -> Forward:
    """One forward pass of each model that the objective needs."""
    policy = models.policy
    hidden = policy.hidden(micro.ids, micro.positions, micro.layout)
    chosen = hidden[micro.predictors]
    logp, entropy = token_columns(policy, chosen, micro.targets, temperature, wanted.entropy)
    value = process = None
    if models.critic is not None:
        value = models.critic.read(models.critic.hidden(micro, hidden)[micro.predictors])
    if wanted.labels and models.process is not None:
        process = models.process.read(models.process.hidden(micro, hidden)[micro.predictors + 1])

    reference_kl = divergence = capped = judged = None
    if wanted.reference_kl and models.reference is not None:
        with torch.no_grad():
            theirs = models.reference.hidden(micro.ids, micro.positions, micro.layout)
        both = (chosen[micro.sampled], theirs[micro.predictors[micro.sampled]])
        kl = divergence_column((policy, models.reference), both, temperature, "reverse")
        reference_kl = torch.zeros_like(logp, dtype=kl.dtype).masked_scatter(micro.sampled, kl)
    term = wanted.divergence
    if term is not None and term.teacher == "self" and models.reference is not None:
        divergence, capped, judged = twin_divergence((policy, models.reference), micro, chosen, temperature, term)
    elif term is not None and models.teachers:
        read = readings(policy, models.teachers, micro)
        divergence, capped = divergences(read, chosen, temperature, term)
        judged = torch.stack([r.tokens for r in read]).any(0)
    return Forward(logp, entropy, reference_kl, divergence, value, process, capped, judged)


def columns_of(micro: Pack, out: Forward, algorithm: Algorithm) -> Columns:
    """The columns of a micro-batch: what its rows carry and what the forward pass gave."""
    given: Mapping[str, Any] = micro.columns
    behaviour = micro.behaviour_logp
    if "proximal_logp" in given:  # nobody sampled the tokens of help: their ratio is around the start of the step
        behaviour = torch.where(behaviour.isnan(), given["proximal_logp"], behaviour)
    proximal = around_proximal(algorithm.correction) and "proximal_logp" in given
    return Columns(
        out.logp,
        out.entropy,
        micro.sampled,
        behaviour,
        micro.advantage,
        micro.trajectory,
        micro.trajectory_tokens,
        micro.order,
        micro.turn,
        micro.group_tokens,
        anchor_logp=given["proximal_logp"] if proximal else behaviour,
        correction=given.get("correction"),
        reference_logp=given.get("reference_logp"),
        reference_kl=out.reference_kl,
        divergence=out.divergence,
        divergence_capped=out.capped,
        judged=out.judged,
        value=out.value,
        value_old=given.get("value"),
        value_target=given.get("value_target"),
        process=out.process,
        process_label=given.get("process_label"),
    )


def annotated(
    models: Models,
    rows: Sequence[Row],
    names: Sequence[str],
    temperature: float,
    budget: int,
    algorithm: Algorithm | None,
) -> list[Row]:
    """Rows with columns by name (`NAMES`) at the sampled tokens, NaN elsewhere; without gradient.

    With `value`, a row whose `final_value` is NaN (asked for, not yet known) gets the value of the state after its last
    token. `process` stands at every sampled token and means something at the last of a turn.

    Args:
        models: who is asked.
        rows: rows; an advantage is not needed.
        names: columns to add.
        temperature: of log-probabilities and entropies.
        budget: tokens per micro-batch.
        algorithm: says what a value's number stands for.
    """
    out: dict[int, Row] = {}
    critic = Critic() if algorithm is None or algorithm.critic is None else algorithm.critic
    with torch.no_grad():
        for micro in pack([_with_advantage(row) for row in rows], budget, None, models.policy.device):
            columns, final = _said(models, micro, names, temperature, critic)
            for index, row in enumerate(micro.rows):
                chosen = micro.places[0] == index
                added: dict[str, np.ndarray] = {}
                for name, values in columns.items():
                    added[name] = np.full(len(row), np.nan, dtype=np.float32)
                    added[name][micro.places[1][chosen]] = values[chosen]
                new = row.with_columns(**added)
                if final is not None and row.final_value is not None:
                    new = replace(new, final_value=float(final[index]))
                out[id(row.tokens)] = new
    return [out.get(id(row.tokens), row) for row in rows]


def _said(
    models: Models, micro: Pack, names: Sequence[str], temperature: float, critic: Critic
) -> tuple[dict[str, np.ndarray], np.ndarray | None]:
    """Columns by name, and the value after each row."""
    said: dict[str, torch.Tensor] = {}
    final = None
    hidden = None
    taught = {"student_logp", "teacher_logp", "teacher_kl"} & set(names)
    if {"logp", "entropy", "proximal_logp"} & set(names) or {"value", "process"} & set(names) or taught:
        hidden = models.policy.hidden(micro.ids, micro.positions, micro.layout)
        logp, entropy = token_columns(
            models.policy, hidden[micro.predictors], micro.targets, temperature, "entropy" in names
        )
        said |= {"logp": logp, "proximal_logp": logp}
        if entropy is not None:
            said["entropy"] = entropy
    if "reference_logp" in names and models.reference is not None:
        theirs = models.reference.hidden(micro.ids, micro.positions, micro.layout)[micro.predictors]
        said["reference_logp"] = token_columns(models.reference, theirs, micro.targets, temperature, False)[0]
    if taught and hidden is not None:
        if not models.teachers:
            raise UsageError("sampled_divergence needs a teacher; give model.teacher")
        own = hidden[micro.predictors]
        read = readings(models.policy, models.teachers, micro)
        said |= heard(read, own, micro.targets, temperature, "teacher_kl" in names)
    if "value" in names and models.critic is not None:
        states = models.critic.hidden(micro, hidden)
        said["value"] = as_value(critic, models.critic.read(states[micro.predictors]))
        final = as_value(critic, models.critic.read(states[micro.last])).cpu().numpy()
    if "process" in names and models.process is not None:
        states = models.process.hidden(micro, hidden)
        said["process"] = torch.sigmoid(models.process.read(states[micro.predictors + 1]))
    return {name: values.cpu().numpy() for name, values in said.items() if name in names}, final


def _with_advantage(row: Row) -> Row:
    return row if "advantage" in row.columns else row.with_columns(advantage=np.zeros(len(row), dtype=np.float32))
