"""Teachers from their sources to live, frozen policies that read the policy's ids.

Invariant: no id means two things. What an id means is compared when a teacher is loaded, and a teacher of other ids is
refused, or cut where the run file says so.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from strop.core.errors import UsageError
from strop.core.teacher import TeacherSource
from strop.engine.endpoint import TokenEndpoint
from strop.learn import checkpoint
from strop.loop.plan import Plan
from strop.model.load import load
from strop.model.policy import Policy


@dataclass(frozen=True, slots=True)
class Teachers:
    """Who teaches.

    Args:
        policies: the loaded ones, in the order of the plan's tags.
        endpoint: the served one, which is then the only one.
        notes: what has to be said about them.
    """

    policies: tuple[Policy, ...] = ()
    endpoint: TokenEndpoint | None = None
    notes: tuple[str, ...] = ()


def load_teachers(plan: Plan, policy: Policy, spoken: Iterable[int]) -> Teachers:
    """The teachers of a plan; none where no term that weighs anything asks one and none plays.

    Args:
        plan: the plan.
        policy: who is taught.
        spoken: ids that every episode holds: the ends of turns.

    Raises:
        UsageError: an id means another token to a teacher, the numbers of ids differ, a run has no such checkpoint, or nobody
            answers at an address.
    """
    if not any(stage.algorithm.taught or stage.demonstrating.source == "teacher" for stage in plan.stages):
        return Teachers()
    only = next(iter(plan.teachers.values()))
    if only.served:
        return Teachers(endpoint=_served(only.path, policy, spoken))
    loaded: dict[TeacherSource, Policy] = {}
    notes: list[str] = []
    for source in plan.teachers.values():
        if source not in loaded:
            teacher, note = _loaded(source)
            _check_window(source.path, teacher, min(plan.limits.context, policy.window or plan.limits.context))
            loaded[source] = matched(teacher, policy, plan.teacher_ids, source.path, spoken)
            notes += [note] if note else []
    return Teachers(tuple(loaded[source] for source in plan.teachers.values()), notes=tuple(notes))


def _check_window(path: str, teacher: Policy, longest: int) -> None:
    if teacher.window is not None and teacher.window < longest:
        raise UsageError(
            f"the teacher {path} reads {teacher.window} tokens at most, and episodes may have {longest} (rollout.context): "
            "it could not judge the long ones. Lower rollout.context, or choose another teacher."
        )


def _served(url: str, policy: Policy, spoken: Iterable[int]) -> TokenEndpoint:
    """The endpoint at an address, if each id of the policy's tokenizer has the same text there."""
    endpoint = TokenEndpoint(url, spoken)
    stranger = endpoint.stranger(
        sorted(policy.tokenizer.get_vocab().values()), lambda ids: str(policy.tokenizer.decode(ids))
    )
    if stranger is not None:
        endpoint.close()
        index, text = stranger
        raise UsageError(
            f"the teacher at {url} reads id {index} as {text!r}, the policy as {policy.tokenizer.decode([index])!r}. "
            "Distillation on tokens needs one vocabulary; serve a model of the same family."
        )
    return endpoint


def _loaded(source: TeacherSource) -> tuple[Policy, str]:
    """A frozen teacher, and which checkpoint it is."""
    if source.model is None:
        raise RuntimeError("a served teacher is not loaded")
    try:
        teacher, note = load(source.model), ""
    except UsageError as problem:
        raise UsageError(f"model.teacher: {problem}") from None
    if source.run is not None:
        path = _checkpoint(Path(source.run), source.checkpoint)
        teacher.model.load_state_dict(dict(checkpoint.load(path).tensors["model"]))
        note = f"the teacher {source.path} is its checkpoint {path.name}"
    for parameter in teacher.model.parameters():
        parameter.requires_grad_(False)
    return teacher, note


def _checkpoint(run: Path, name: str | None) -> Path:
    folder = run / "checkpoints"
    if name is not None and name != "best":
        return folder / name
    newest, _ = checkpoint.newest(folder)
    if newest is None:
        raise UsageError(f"the teacher {run} is a run without a complete checkpoint; train it first, or name a model")
    if name is None:
        return newest
    best = checkpoint.load(newest).state["position"]["best"]
    if not best:
        raise UsageError(f"the run {run} keeps no best checkpoint; name another, or the run itself for its newest")
    return folder / best["name"]


def matched(teacher: Policy, policy: Policy, cut: int | None, name: str, spoken: Iterable[int] = ()) -> Policy:
    """The teacher over the ids that it shares with the policy.

    Heads may be padded to different sizes: ids beyond the tokenizers are nobody's, and masked in both.

    Args:
        teacher, policy: loaded.
        cut: how many ids are shared, from 0 on; None for all.
        name: of the teacher, for messages.
        spoken: ids that the cut must leave in, beside the policy's special tokens.

    Raises:
        UsageError: an id means another token to the teacher, or the numbers of ids differ and nothing was said.
    """
    mine, theirs = policy.tokenizer.get_vocab(), teacher.tokenizer.get_vocab()
    different = sorted(index for token, index in mine.items() if theirs.get(token) != index)
    common = min(different[0] if different else policy.vocabulary, policy.vocabulary, teacher.vocabulary)
    sizes = f"the teacher {name} has {teacher.vocabulary} ids and the policy {policy.vocabulary}"
    if cut is None:
        if common < policy.vocabulary or policy.vocabulary != teacher.vocabulary:
            usable = common and not _lost(policy, common, spoken)
            hint = f" (or set model.teacher_ids = {common}: only ids below it are compared)" if usable else ""
            raise UsageError(
                f"{sizes}; {len(different)} tokens differ. Distillation on tokens needs one vocabulary; choose a teacher of "
                f"the same family{hint}."
            )
        return teacher
    if cut > common:
        raise UsageError(f"model.teacher_ids is {cut}, but {sizes}, and they agree on the first {common}; lower it")
    lost = _lost(policy, cut, spoken)
    if lost:
        tokens = ", ".join(map(repr, policy.tokenizer.convert_ids_to_tokens(lost)))
        raise UsageError(
            f"model.teacher_ids is {cut}, which cuts off {tokens}: every episode holds them, and the teacher could judge "
            "nothing that follows. Choose a teacher of the same family."
        )
    return replace(teacher, vocabulary=cut)


def _lost(policy: Policy, cut: int, spoken: Iterable[int]) -> list[int]:
    """Ids that every episode holds and a cut would leave out."""
    return sorted(i for i in {*policy.tokenizer.all_special_ids, *spoken} if cut <= i < policy.vocabulary)
