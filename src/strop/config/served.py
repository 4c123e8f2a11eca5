"""What a served teacher can be asked for. Imports no torch.

Invariant: a token endpoint tells the log-probability of the sampled token at temperature 1, and plays; what needs more is
refused before anybody is asked.
"""

from collections.abc import Mapping, Sequence

from strop.core.algorithm import Divergence
from strop.core.errors import UsageError
from strop.core.teacher import TeacherSource
from strop.loop.plan import StagePlan


def check_served(
    teachers: Mapping[str, TeacherSource], cut: int | None, temperature: float, stages: Sequence[StagePlan]
) -> None:
    """Refuse what a served teacher cannot give; loaded ones pass.

    Args:
        teachers: by tag.
        cut: `model.teacher_ids`.
        temperature: of the run.
        stages: of the plan.

    Raises:
        UsageError: as it says.
    """
    url = next((source.path for source in teachers.values() if source.served), None)
    if url is None:
        return
    if len(teachers) > 1:
        raise UsageError(
            f"model.teacher names {url} beside other teachers; a served teacher must be the only one. Load the models from "
            "directories, or serve one for all tasks."
        )
    if cut is not None:
        raise UsageError(f"model.teacher_ids has no effect: the ids of {url} are compared one by one. Remove it.")
    for index, stage in enumerate(stages):
        for term in stage.algorithm.terms:
            if isinstance(term, Divergence) and term.teacher == "other" and term.coefficient:
                raise UsageError(
                    f"stages.{index}: divergence needs the teacher's whole distribution, and {url} tells it for the sampled "
                    "token only. Use sampled_divergence (row opd_sampled), or give model.teacher a directory."
                )
        term = stage.algorithm.sampled_divergence
        if term is not None and term.baseline:
            raise UsageError(
                f"stages.{index}: sampled_divergence(baseline=True) needs the teacher's whole distribution, and {url} tells it "
                "for the sampled token only. Leave the baseline out."
            )
        if term is not None and temperature != 1:
            raise UsageError(
                f"rollout.temperature is {temperature:g}, but {url} tells log-probabilities at temperature 1. Set it to 1, "
                "or give model.teacher a directory."
            )
