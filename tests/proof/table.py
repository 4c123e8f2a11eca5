"""The page `docs/proof.md`: the verdict on every row of the table, made by `python -m tests.proof.table --write`.

Invariant: no verdict and no number of the page is written by hand.
"""

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path as File

import torch

from strop.algorithms import ALGORITHMS
from strop.core.algorithm import (
    GAE,
    KL,
    Algorithm,
    Band,
    Clip,
    Correction,
    Credit,
    Critic,
    GroupMean,
    LeaveOneOut,
    MonteCarlo,
    NoClip,
    NoRatio,
    One,
    PrefixRatio,
    ProcessGroup,
    Ratio,
    RewardToGo,
    SampledDivergence,
    SeqMeanTokenMean,
    SeqMeanTokenSum,
    SequenceRatio,
    TokenMean,
    TokenRatio,
    TrajectoryRatio,
    Truncate,
    TurnRatio,
    WeightClip,
)
from strop.core.notation import written
from tests.proof import objectives
from tests.proof.enumeration import Enumeration, Setting, streams
from tests.proof.processes import BINARY, GRADED, PROCESSES, TWO_TASKS, Process
from tests.proof.verdict import Verdict, judge
from tests.proof.words import text

PAGE = File(__file__).parents[2] / "docs" / "proof.md"
SIZES = (2, 4, 8, 16)
Objective = Callable[[Process], torch.Tensor]


@dataclass(frozen=True)
class Line:
    """One line of a table of verdicts: parts that one or several rows share, and what their critic says."""

    names: tuple[str, ...]
    algorithm: Algorithm
    critic: str = ""

    @property
    def label(self) -> str:
        """As the page names it."""
        said = "scores" if isinstance(self.algorithm.credit, ProcessGroup) else "V"
        told = {"exact": f", {said} exact", "wrong": f", {said} wrong"}.get(self.critic, "")
        return ", ".join(f"`{name}`" for name in self.names) + told


def lines() -> list[Line]:
    """Every row that is after the return, rows of the same parts on one line; critics exact and wrong."""
    found: dict[Algorithm, list[str]] = {}
    for name, algorithm in ALGORITHMS.items():
        if not isinstance(algorithm.credit, One) and not algorithm.taught:
            found.setdefault(bare(algorithm), []).append(name)
    out: list[Line] = []
    for algorithm, names in found.items():
        judged = isinstance(algorithm.credit, GAE | MonteCarlo | ProcessGroup)
        out += [Line(tuple(names), algorithm, critic) for critic in (("exact", "wrong") if judged else ("",))]
    return out


def bare(algorithm: Algorithm) -> Algorithm:
    """The parts that an expected update depends on."""
    credit = algorithm.credit
    credit = replace(credit, critic=Critic()) if isinstance(credit, GAE) else credit
    return Algorithm(
        credit,
        algorithm.ratio,
        algorithm.clip,
        algorithm.aggregate,
        "",
        correction=algorithm.correction,
        terms=algorithm.terms,
        admit=algorithm.admit,
        data="demonstrations" if algorithm.data == "demonstrations" else "on_policy",
    )


@cache
def enumeration(process: Process) -> Enumeration:
    """The enumeration of a process, made once."""
    return Enumeration(process)


def verdict(
    process: Process,
    algorithm: Algorithm,
    setting: Setting,
    objective: Objective = objectives.expected_return,
) -> Verdict:
    """The verdict on an algorithm: its expected update against the exact gradient of an objective."""
    found = enumeration(process).update(algorithm, setting)
    if found.observed:
        raise AssertionError(f"{process.name}: a policy loss reached the log-probability of an observation")
    return judge(found.direction, process.truth.gradient(objective(process)), process.parameters)


def setting_of(line: Line, stale: bool) -> Setting:
    """Groups of four; moving averages, where all orders count, in batches of two."""
    size = 2 if streams(line.algorithm) else 4
    return Setting(size, stale, "wrong" if line.critic == "wrong" else "exact")


@cache
def column(process: Process, stale: bool) -> list[Verdict]:
    """The verdicts of one column, in the order of `lines`."""
    return [verdict(process, line.algorithm, setting_of(line, stale)) for line in lines()]


# --- rows that state an objective of their own


@dataclass(frozen=True)
class Stated:
    """An algorithm against the objective that it states."""

    label: str
    algorithm: Algorithm
    objective: Objective
    told: str
    stale: bool = False


def _row(*names: str) -> tuple[str, Algorithm]:
    return ", ".join(f"`{name}`" for name in names), bare(ALGORITHMS[names[0]])


def _regularised(term: KL) -> tuple[str, Algorithm]:
    text = written(term) if term.estimator != "k3" else written(term).replace("kl(1.0", "kl(1.0, k3")
    return f"`reinforce` + `{text}`", replace(bare(ALGORITHMS["reinforce"]), terms=(term,))


def summed(term: SampledDivergence) -> Algorithm:
    """Row `opd_sampled` with the sum over tokens and this term."""
    return replace(bare(ALGORITHMS["opd_sampled"]), aggregate=SeqMeanTokenSum(), terms=(term,))


def stated() -> list[Stated]:
    """Rows, and KL terms beside a row, against what they are said to follow."""
    per_token = "E[(R - b) / n], n tokens, b = J of the task held fixed"
    nearer = "-KL(policy, teacher), summed over tokens, states held as visited"
    trajectories = "J - KL(policy, reference) of whole trajectories"
    o, rloo = objectives, bare(ALGORITHMS["rloo"])
    kls = [KL(1.0, "k1", "reward"), KL(1.0, "exact"), *(KL(1.0, k) for k in ("k2", "k3")), KL(1.0, "k3", weighted=True)]
    return [
        Stated("`rloo` + `sequence_mean`", replace(rloo, aggregate=SeqMeanTokenMean()), o.return_per_token, per_token),
        Stated(*_row("grpo", "gspo", "gspo_token", "ctpo"), o.return_per_token, per_token),
        Stated(*_row("rest", "rest_em", "expert_iteration"), o.success, "P(R > 0)"),
        Stated(*_row("unfiltered_rounds"), o.success, "P(R > 0)"),
        Stated(*_row("sft"), o.likelihood, "log-likelihood of the demonstrations", stale=True),
        Stated(
            "`sft` + `token_sum`",
            replace(bare(ALGORITHMS["sft"]), aggregate=SeqMeanTokenSum()),
            o.likelihood,
            "log-likelihood of the demonstrations",
            stale=True,
        ),
        Stated(*_row("distillation"), o.taught, "-KL(teacher, policy), summed over the demonstrations' tokens", True),
        Stated(
            *_row("on_policy_distillation", "opd_top_k"),
            o.taught_where_it_goes,
            nearer,
        ),
        Stated(*_row("opd_sampled"), o.taught_where_it_goes, nearer),
        *(
            Stated(f"`opd_sampled` + `token_sum`{told}", summed(term), o.taught_where_it_goes, nearer)
            for told, term in (("", SampledDivergence()), (", baseline", SampledDivergence(baseline=True)))
        ),
        Stated(*_row("gkd"), o.told_half_way, "-jsd(policy, teacher), summed over tokens, states held as visited"),
        Stated(*_row("on_policy_distillation"), o.nearness, "-KL(policy, teacher) of whole trajectories"),
        Stated(
            *_row("self_distillation"),
            o.told_forward,
            "-KL(teacher, policy), summed over tokens, states held as visited",
        ),
        Stated(
            *_row("self_distillation_own"),
            o.told_half_way,
            "-JSD(teacher, policy), summed over tokens, states held as visited",
        ),
        *(Stated(*_regularised(term), o.regularised, trajectories) for term in kls),
    ]


@cache
def stated_column(process: Process) -> list[Verdict]:
    """The verdicts of one column of the table of stated objectives."""
    return [verdict(process, s.algorithm, Setting(stale=s.stale), s.objective) for s in stated()]


# --- one part at a time, and larger groups


@dataclass(frozen=True)
class Case:
    """Parts put together for a lesson, on the graded process."""

    name: str
    algorithm: Algorithm
    setting: Setting


def made(
    credit: Credit,
    ratio: Ratio = NoRatio(),  # noqa: B008
    clip: Clip = NoClip(),  # noqa: B008
    aggregate: SeqMeanTokenSum | SeqMeanTokenMean | TokenMean = SeqMeanTokenSum(),  # noqa: B008
    correction: Correction | None = None,
) -> Algorithm:
    """An algorithm of these parts, the sum over tokens unless said otherwise."""
    return Algorithm(credit, ratio, clip, aggregate, "", correction)


def cases() -> list[Case]:
    """The estimators that lectures and papers argue about; `b` is J, `A` the true advantage."""
    fresh, stale = Setting(1), Setting(1, stale=True)
    mean = float(objectives.expected_return(GRADED).detach())
    plain, true = RewardToGo(), GAE(lam=0.0)
    both = [
        Case("R", made(plain), fresh),
        Case("R - 0.5", made(RewardToGo(0.5)), fresh),
        Case("R - V", made(GAE()), fresh),
        Case("the TD error of the true V", made(true), fresh),
    ]
    for size in (2, 4):
        both += [
            Case(f"leave one out, G = {size}", made(LeaveOneOut()), Setting(size)),
            Case(f"group mean, G = {size}", made(GroupMean()), Setting(size)),
            Case(f"group mean / deviation, G = {size}", made(GroupMean("population")), Setting(size)),
        ]
    return [
        *both,
        Case("(R - J) / n", made(RewardToGo(mean), aggregate=SeqMeanTokenMean()), fresh),
        Case("R / n", made(plain, aggregate=SeqMeanTokenMean()), fresh),
        Case("leave one out, token mean, G = 4", made(LeaveOneOut(), aggregate=TokenMean()), Setting(4)),
        Case("stale: whole ratio x R", made(plain, TrajectoryRatio(), WeightClip()), stale),
        Case("stale: turn ratio x R, one turn", made(plain, TurnRatio()), stale),
        Case("stale: prefix ratio x A", made(true, PrefixRatio()), stale),
        Case("stale: prefix ratio x R", made(plain, PrefixRatio()), stale),
        Case("stale: token ratio x A", made(true, TokenRatio()), stale),
        Case("stale: token ratio x R", made(plain, TokenRatio()), stale),
        Case("stale: mean ratio of the sequence x R", made(plain, SequenceRatio()), stale),
        Case("stale: whole ratio, at most 1, x R", made(plain, correction=Truncate(1.0, "sequence")), stale),
        Case("stale: whole ratio, 0 above 1, x R", made(plain, correction=Band(0.0, 1.0, "sequence")), stale),
        Case("stale: no ratio, R", made(plain), stale),
    ]


@cache
def case_updates() -> list[torch.Tensor]:
    """The expected update of each case."""
    return [enumeration(GRADED).update(case.algorithm, case.setting).direction for case in cases()]


def growing() -> list[tuple[str, Process, Algorithm, Objective]]:
    """What changes, and what does not, as groups grow."""
    deviation, mean, one_out = made(GroupMean("population")), objectives.expected_return, LeaveOneOut()
    taught = bare(ALGORITHMS["on_policy_distillation"])
    return [
        ("group mean, graded", GRADED, made(GroupMean()), mean),
        ("group mean / deviation, binary", BINARY, deviation, mean),
        ("group mean / deviation, two tasks", TWO_TASKS, deviation, mean),
        ("group mean / deviation, graded", GRADED, deviation, mean),
        ("leave one out, token mean, graded", GRADED, made(one_out, aggregate=TokenMean()), mean),
        ("leave one out, 1 / n, graded", GRADED, made(one_out, aggregate=SeqMeanTokenMean()), mean),
        ("`on_policy_distillation`, states held, graded", GRADED, taught, objectives.taught_where_it_goes),
    ]


@cache
def grown() -> list[list[Verdict]]:
    """Verdicts of each line of `growing` at each size."""
    return [
        [verdict(p, algorithm, Setting(size), objective) for size in SIZES] for _, p, algorithm, objective in growing()
    ]


# --- the page


def markdown(head: Sequence[str], body: Sequence[Sequence[str]]) -> str:
    """A table."""
    rows = [list(head), ["---"] * len(head), *map(list, body)]
    return "\n".join("| " + " | ".join(row) + " |" for row in rows)


def verdict_table(stale: bool) -> str:
    """Rows by processes, on fresh or stale data."""
    columns = [column(process, stale) for process in PROCESSES.values()]
    body = [[line.label, *map(str, cells)] for line, *cells in zip(lines(), *columns, strict=True)]
    return markdown(["row", *PROCESSES], body)


def stated_table() -> str:
    """Stated objectives by processes."""
    columns = [stated_column(process) for process in PROCESSES.values()]
    body = [[s.label, s.told, *map(str, cells)] for s, *cells in zip(stated(), *columns, strict=True)]
    return markdown(["row", "objective", *PROCESSES], body)


def case_table() -> str:
    """Both components of each case."""
    truth = GRADED.truth.gradient(objectives.expected_return(GRADED))
    body = [["the gradient of J", *_numbers(truth), ""]]
    for case, found in zip(cases(), case_updates(), strict=True):
        body.append([case.name, *_numbers(found), str(judge(found, truth, GRADED.parameters))])
    return markdown(["estimator", "d/da", "d/db", "verdict"], body)


def _numbers(found: torch.Tensor) -> list[str]:
    return [f"{round(x, 9) + 0.0:.5f}" for x in found.tolist()]


def growth_table() -> str:
    """Verdicts by group size."""
    body = [[name, *map(str, cells)] for (name, *_), cells in zip(growing(), grown(), strict=True)]
    return markdown(["estimator", *(f"G = {size}" for size in SIZES)], body)


def page() -> str:
    """The whole page."""
    return text(
        about="\n".join(f"- **{p.name}**: {p.about}." for p in PROCESSES.values()),
        fresh=verdict_table(False),
        stale=verdict_table(True),
        stated=stated_table(),
        cases=case_table(),
        growth=growth_table(),
        **numbers(),
    )


def numbers() -> dict[str, str]:
    """The numbers that the notes name."""
    truth = GRADED.truth
    ratios = (truth.chances[0] / truth.stale_chances[0]).tolist()
    two = enumeration(TWO_TASKS).update(made(GroupMean("population")), Setting(SIZES[-1])).direction
    shares = (two / TWO_TASKS.truth.gradient(objectives.expected_return(TWO_TASKS))).tolist()
    then, now = (policy["a"][1].exp().item() for policy in (truth.stale, truth.now))
    return {
        "ratios": f"{ratios[0]:.2f}, {ratios[1]:.2f} and {ratios[2]:.2f}",
        "hard": f"{shares[0]:.2f}",
        "easy": f"{shares[2]:.2f}",
        "reached": f"{then / now:.3f}",
    }


if __name__ == "__main__":
    if sys.argv[1:] == ["--write"]:
        PAGE.write_text(page())
    else:
        print(page(), end="")
