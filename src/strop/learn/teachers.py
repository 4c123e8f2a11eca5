"""What teachers say of a micro-batch: each reads the rows that name it, at their sampled tokens, without gradient.

Invariant: a teacher is compared over the ids that it shares with the policy, which are those below its `vocabulary`. Where
it has fewer (an explicit cut), both distributions are renormalised over them, and a token whose history holds another
id is not judged: the teacher cannot read it.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch

from strop.core.algorithm import Divergence
from strop.learn.pack import Pack
from strop.model.attention import RowsLayout
from strop.model.divergence import divergence_column, measured_columns
from strop.model.forward import token_columns
from strop.model.policy import Policy

TEACHER = "teacher"
"""Column of a row: the number of its teacher, the same at every token; 0 where it is missing."""


@dataclass(frozen=True, slots=True)
class Reading:
    """One teacher's pass over the rows that ask it.

    Args:
        teacher: who read.
        student: the policy, seen over the teacher's ids.
        tokens: column tokens that it judges: sampled ones whose history it can read; bool [N].
        hidden: its hidden states at their predictors; [judged tokens, width].
    """

    teacher: Policy
    student: Policy
    tokens: torch.Tensor
    hidden: torch.Tensor


def readings(policy: Policy, teachers: Sequence[Policy], micro: Pack) -> list[Reading]:
    """A reading by each teacher that a row of the micro-batch names; no forward by the others."""
    asked = np.array([int(row.columns[TEACHER][0]) if TEACHER in row.columns else 0 for row in micro.rows])
    return [_reading(policy, teachers[k], micro, asked == k) for k in sorted(set(asked.tolist()))]


def _reading(policy: Policy, teacher: Policy, micro: Pack, rows: np.ndarray) -> Reading:
    device = micro.ids.device
    lengths = np.array([len(row) for row in micro.rows])
    inside = torch.as_tensor(np.repeat(rows, lengths), device=device)
    tokens = micro.sampled & (inside & _readable(micro, teacher.vocabulary))[micro.predictors]
    ids = micro.ids.where(micro.ids < teacher.vocabulary, 0)  # nothing is judged after what 0 stands for
    place = (inside.cumsum(0) - 1)[micro.predictors[tokens]]
    layout = micro.layout if rows.all() else RowsLayout(lengths[rows].tolist(), device)
    with torch.no_grad():
        hidden = teacher.hidden(ids[inside], micro.positions[inside], layout)[place]
    student = policy if teacher.vocabulary == policy.vocabulary else replace(policy, vocabulary=teacher.vocabulary)
    return Reading(teacher, student, tokens, hidden)


def _readable(micro: Pack, known: int) -> torch.Tensor:
    """Whether a row up to and with each token holds only ids below `known`; bool [T]."""
    unknown = (micro.ids >= known).long()
    before = (unknown.cumsum(0) - unknown)[micro.positions == 0]  # in the rows before each row
    row = (micro.positions == 0).long().cumsum(0) - 1
    return unknown.cumsum(0) == before[row]


def divergences(
    found: Sequence[Reading], hidden: torch.Tensor, temperature: float, term: Divergence
) -> tuple[torch.Tensor, torch.Tensor]:
    """Divergence to its teacher at each column token, and the share of ids that the cap bounded; [N], 0 elsewhere.

    Args:
        found: the readings, one at least.
        hidden: the policy's hidden states at the predictors, with their graph; [N, width].
        temperature: of both.
        term: which divergence.
    """
    out: list[torch.Tensor] = []
    for r in found:
        both = measured_columns((r.student, r.teacher), (hidden[r.tokens], r.hidden), temperature, term)
        if not out:
            out = [torch.zeros(len(hidden), dtype=both[0].dtype, device=hidden.device)] * 2
        out = [column.masked_scatter(r.tokens, new) for column, new in zip(out, both, strict=True)]
    return out[0], out[1]


def heard(
    found: Sequence[Reading], hidden: torch.Tensor, targets: torch.Tensor, temperature: float, kl: bool
) -> dict[str, torch.Tensor]:
    """`student_logp`, `teacher_logp` and, if asked, `teacher_kl` (KL(student || teacher) of the history); [N] each.

    NaN where no teacher judges: also where the sampled id itself is beyond its ids.

    Args:
        found: the readings.
        hidden: the policy's hidden states at the predictors; [N, width].
        targets: sampled ids; [N].
        temperature: of both.
        kl: whether `teacher_kl` is asked.
    """
    names = ("student_logp", "teacher_logp", "teacher_kl")[: 3 if kl else 2]
    out = {name: torch.full((len(hidden),), torch.nan, device=hidden.device) for name in names}
    for r in found:
        known = targets[r.tokens] < r.teacher.vocabulary
        tokens = r.tokens.masked_scatter(r.tokens, known)
        own, theirs, ids = hidden[tokens], r.hidden[known], targets[tokens]
        out["student_logp"][tokens] = token_columns(r.student, own, ids, temperature, False)[0].float()
        out["teacher_logp"][tokens] = token_columns(r.teacher, theirs, ids, temperature, False)[0].float()
        if kl:
            out["teacher_kl"][tokens] = divergence_column(
                (r.student, r.teacher), (own, theirs), temperature, "reverse"
            ).float()
    return out
