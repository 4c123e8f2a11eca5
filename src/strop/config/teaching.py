"""What a run file says of demonstrations and of rounds. Invariant: what is accepted has an effect; the rest is refused with
the reason and what to change.
"""

from dataclasses import replace
from itertools import pairwise

from strop.config.sections import StageSection
from strop.core.algorithm import KL, Above, Algorithm, Credit, NoRatio, One, ProcessLabels, Rounds, Zero
from strop.core.errors import UsageError
from strop.core.notation import read, written
from strop.core.selection import Kept
from strop.core.world import World
from strop.loop.plan import Demonstrating


def demonstrating(stage: StageSection, algorithm: Algorithm, made: World, teacher: bool, where: str) -> Demonstrating:
    """Where the demonstrations of a stage come from, checked.

    Args:
        stage: its section.
        algorithm: what it optimises.
        made: the world.
        teacher: whether the run has a teacher.
        where: `stages.1`, for messages.
    """
    mixed = stage.demonstrated > 0
    if stage.kind != "warm_start" and not mixed:
        _refuse(stage, ("demonstrations", "select"), f"a {stage.kind} stage", where)
    if stage.kind != "reinforce":
        _refuse(stage, ("demonstrated",), f"a {stage.kind} stage", where)
        if stage.kind == "rounds":
            return Demonstrating()
    elif not mixed:
        return Demonstrating()
    else:
        _check_mixture(algorithm, where)
    source = stage.demonstrations
    saved = source not in ("player", "teacher")
    if source == "player" and made.demonstrate is None:
        raise UsageError(
            f"{where} is a {stage.kind}{' with demonstrations' if mixed else ''}, but world {made.name!r} has no scripted "
            'player. Remove the stage, give the World a `demonstrate`, or set demonstrations to "teacher" or a file.'
        )
    if source == "teacher" and not teacher:
        raise UsageError(f'{where}.demonstrations is "teacher", but the run has none; set model.teacher to its path')
    return Demonstrating(source, _selection(stage, mixed, saved, where), stage.demonstrated)


def _selection(stage: StageSection, mixed: bool, saved: bool, where: str) -> Kept | None:
    if stage.select is None:
        return Kept() if stage.demonstrations == "teacher" and not mixed else None
    if mixed and not saved:
        raise UsageError(
            f"{where}.select sorts out saved episodes; a share of demonstrations that are played as the stage goes on is taken "
            "as it is. Remove it, or save the episodes in a stage of their own and name its run folder."
        )
    rule: Kept = read("select", stage.select, f"{where}.select")
    if rule.cap is not None and rule.cap < 1:
        raise UsageError(f"{where}.select {written(rule)}: the cap of kept must be at least 1, or none")
    return rule


def _refuse(stage: StageSection, keys: tuple[str, ...], what: str, where: str) -> None:
    for key in keys:
        if key in stage.model_fields_set:
            more = "; what rounds keep stands in algorithm.rounds" if key == "select" and stage.kind == "rounds" else ""
            raise UsageError(f"{where}.{key} has no effect in {what}{more}; remove it")


def _check_mixture(algorithm: Algorithm, where: str) -> None:
    """A demonstration has no log-probability of who sampled it, so only what asks for none can learn from both."""
    if not isinstance(algorithm.credit, One | Zero):
        raise UsageError(
            f"{where}.demonstrated mixes demonstrations in, and they have no behaviour log-probability: credit that weighs "
            "what the policy sampled cannot use them. Use a row of credit zero or one (on_policy_distillation), or a "
            "warm_start stage."
        )
    if algorithm.sampled_divergence is not None or not isinstance(algorithm.ratio, NoRatio):
        raise UsageError(
            f"{where}.demonstrated mixes demonstrations in, and nobody sampled their tokens: neither sampled_divergence nor a "
            "ratio can weigh them. Use a row that follows the whole distribution (on_policy_distillation, gkd)."
        )
    if any(isinstance(term, ProcessLabels) or (isinstance(term, KL) and term.weighted) for term in algorithm.terms):
        raise UsageError(
            f"{where}.demonstrated: process_labels and kl(weighted) are about what the policy sampled; leave them out, or set "
            "demonstrated = 0."
        )


def rounds_of(row: Algorithm, credit: Credit, text: str | None, asked: bool) -> Rounds:
    """The rounds of a row with parts replaced.

    Args:
        row: of the table.
        credit: the credit of the run: `above` is a round of one threshold, `one` a single pass over everything.
        text: `algorithm.rounds`.
        asked: whether the run names a credit.
    """
    if text is not None and row.data != "rounds":
        raise UsageError("algorithm.rounds has no effect: the algorithm learns from no rounds. Remove it.")
    if row.data != "rounds":
        return row.rounds
    rounds: Rounds = row.rounds if text is None else read("rounds", text, "algorithm.rounds")
    _check_rounds(rounds)
    if not asked:
        return rounds
    if text is not None and rounds.thresholds != Rounds().thresholds:
        raise UsageError(
            "algorithm.credit and algorithm.rounds both say what a round keeps; say it in one of them. With credit = one a "
            "round keeps everything."
        )
    if isinstance(credit, Above):
        return replace(rounds, thresholds=(credit.threshold,), decay=1.0)
    return replace(rounds, thresholds=Rounds().thresholds, decay=1.0) if isinstance(credit, One) else rounds


def _check_rounds(rounds: Rounds) -> None:
    rising = all(a < b for a, b in pairwise(rounds.thresholds))
    checks = (
        (bool(rounds.thresholds) and rising, "thresholds (at least one, and rising)"),
        (rounds.cap is None or rounds.cap >= 1, "cap (at least 1)"),
        (0 < rounds.decay <= 1, "decay (above 0, at most 1)"),
        (
            rounds.decay == 1 or len(rounds.thresholds) > 1,
            "decay (it has no effect with a single threshold: leave it out)",
        ),
    )
    bad = [what for fine, what in checks if not fine]
    if bad:
        raise UsageError(f"algorithm.rounds {written(rounds)} is out of range: {', '.join(bad)}")
