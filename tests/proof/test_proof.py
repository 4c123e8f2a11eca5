"""The page `docs/proof.md` is true: every verdict on it is computed again, and faults planted in the code turn verdicts.

The known numbers are those of the vectors `mdp.enumeration.*`, which were made apart from this code.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from strop.algorithms import ALGORITHMS
from strop.core.algorithm import (
    GAE,
    BatchMean,
    Credit,
    Decoupled,
    GroupMean,
    GroupTokenMean,
    LeaveOneOut,
    MonteCarlo,
    PrefixRatio,
    RewardToGo,
    SeqMeanTokenMean,
    TokenMean,
    TokenRatio,
    TrajectoryRatio,
    TurnRatio,
    WeightClip,
)
from strop.core.trajectory import Row
from strop.credit import assign as credit_module
from strop.objective import objective as objective_module
from tests.objective.batches import VECTORS
from tests.proof import enumeration as enumeration_module
from tests.proof.enumeration import Enumeration, Setting, Update
from tests.proof.objectives import expected_return
from tests.proof.processes import BINARY, GRADED, OBSERVATION, PROCESSES, TWO_TASKS, Process, two_tokens
from tests.proof.table import (
    PAGE,
    bare,
    case_updates,
    cases,
    column,
    grown,
    lines,
    made,
    page,
    stated,
    stated_column,
    verdict,
)
from tests.proof.verdict import Verdict, judge

SECTIONS = {False: "Fresh data", True: "Stale data"}
AGAIN = "run `make proof` and look at what changed in docs/proof.md"


def written(section: str, name: str) -> list[str]:
    """One column of a table of the page."""
    body = PAGE.read_text().split(f"## {section}\n")[1].split("\n## ")[0]
    rows = [
        [cell.strip() for cell in line.strip("| \n").split(" | ")] for line in body.splitlines() if line.startswith("|")
    ]
    return [row[rows[0].index(name)] for row in rows[2:]]


# --- the page


@pytest.mark.parametrize("stale", [False, True], ids=["fresh", "stale"])
@pytest.mark.parametrize("name", PROCESSES)
def test_the_verdicts_on_a_process_are_those_of_the_page(name: str, stale: bool) -> None:
    assert [str(v) for v in column(PROCESSES[name], stale)] == written(SECTIONS[stale], name), AGAIN


@pytest.mark.parametrize("name", PROCESSES)
def test_the_verdicts_against_stated_objectives_are_those_of_the_page(name: str) -> None:
    found = [str(v) for v in stated_column(PROCESSES[name])]
    assert found == written("Rows that state another objective", name), AGAIN


def test_the_verdicts_on_larger_groups_are_those_of_the_page() -> None:
    for size, verdicts in zip((2, 4, 8, 16), zip(*grown(), strict=True), strict=True):
        assert [str(v) for v in verdicts] == written("Larger groups", f"G = {size}"), AGAIN


def test_the_page_is_what_the_code_says() -> None:
    assert page() == PAGE.read_text(), AGAIN


def test_every_row_of_the_table_is_judged() -> None:
    labels = [line.label for line in lines()] + [s.label for s in stated()]
    assert [name for name in ALGORITHMS if not any(f"`{name}`" in label for label in labels)] == []


def test_every_credit_that_needs_values_is_judged_with_true_ones_and_with_wrong_ones() -> None:
    critics = {name: [line.critic for line in lines() if name in line.names] for name in ALGORITHMS}
    assert critics["ppo"] == critics["vine_ppo"] == critics["grpo_process"] == ["exact", "wrong"]
    assert critics["rloo"] == [""]


# --- what is known apart from this code

KNOWN = {
    "R": "reinforce",
    "R - 0.5": "const_baseline_0.5",
    "R - V": "value_baseline",
    "the TD error of the true V": "gae_true_values_lam0",
    "leave one out, G = 2": "rloo_G2",
    "group mean, G = 2": "group_mean_G2",
    "group mean / deviation, G = 2": "grpo_popstd_G2",
    "leave one out, G = 4": "rloo_G4",
    "group mean, G = 4": "group_mean_G4",
    "group mean / deviation, G = 4": "grpo_popstd_G4",
    "(R - J) / n": "seq_len_normalised_1_over_y",
    "R / n": "length_norm_no_baseline",
    "leave one out, token mean, G = 4": "token_mean_rloo_G4",
    "stale: whole ratio x R": "full_trajectory_ratio",
    "stale: prefix ratio x A": "cumulative_ratio_true_A",
    "stale: prefix ratio x R": "cumulative_ratio_raw_return",
    "stale: token ratio x A": "token_ratio_true_A",
    "stale: token ratio x R": "token_ratio_raw_return",
    "stale: mean ratio of the sequence x R": "gspo_ratio_raw_return",
    "stale: whole ratio, at most 1, x R": "tis_full_C1",
    "stale: whole ratio, 0 above 1, x R": "mis_full_C1",
    "stale: no ratio, R": "no_correction",
}


@pytest.mark.parametrize("name", KNOWN)
def test_expected_updates_are_the_known_ones(name: str) -> None:
    source = VECTORS["mdp.enumeration.offpolicy" if name.startswith("stale") else "mdp.enumeration.onpolicy"]
    [found] = [u for case, u in zip(cases(), case_updates(), strict=True) if case.name == name]
    known = source["expected"]["estimators"][KNOWN[name]]
    assert found.tolist() == pytest.approx(known, abs=1e-9)
    assert (found * 1.001).tolist() != pytest.approx(known, abs=1e-9)


def test_every_known_estimator_is_on_the_page_but_those_that_no_part_gives() -> None:
    estimators = {
        name
        for which in ("onpolicy", "offpolicy")
        for name in VECTORS[f"mdp.enumeration.{which}"]["expected"]["estimators"]
    }
    assert estimators - set(KNOWN.values()) == {"cumulative_ratio_true_Q", "no_correction_true_A"}


def test_the_truth_is_the_known_one_and_that_of_the_closed_form() -> None:
    known = VECTORS["mdp.enumeration.onpolicy"]["expected"]
    assert expected_return(GRADED).item() == pytest.approx(known["J"], abs=1e-12)
    assert GRADED.truth.gradient(expected_return(GRADED)).tolist() == pytest.approx(known["true_grad"], abs=1e-12)
    for process in PROCESSES.values():  # central differences of a sum that knows no graph
        exact = process.truth.gradient(expected_return(process)).tolist()
        assert exact == pytest.approx(differences(process), abs=1e-8)


def differences(process: Process, step: float = 1e-5) -> list[float]:
    """Gradient of J by moving each logit."""
    out = []
    for state, row in process.policy.items():
        for n in range(len(row)):
            ends = [[z + move * (i == n) for i, z in enumerate(row)] for move in (step, -step)]
            high, low = (mean_return(process, {**process.policy, state: tuple(end)}) for end in ends)
            out.append((high - low) / (2 * step))
    return out


def mean_return(process: Process, policy: dict[str, tuple[float, ...]]) -> float:
    chances = {s: np.exp([0.0, *row]) / np.exp([0.0, *row]).sum() for s, row in policy.items()}
    total = 0.0
    for task in process.tasks:
        for path in task:
            p = [chances[m.state][m.token] if m.state is not None else m.chance for m in path.moves]
            total += float(np.prod(p)) * (path.score + sum(path.turn_rewards)) / len(process.tasks)
    return total


@pytest.mark.parametrize("name", PROCESSES)
def test_true_values_are_unbiased_at_any_lambda_and_wrong_ones_at_lambda_1_only(name: str) -> None:
    process, exact, wrong = PROCESSES[name], Setting(1), Setting(1, critic="wrong")
    for lam in (0.0, 0.4, 1.0):
        assert verdict(process, made(GAE(lam)), exact).kind == "unbiased"
        assert verdict(process, made(MonteCarlo(lam=lam)), exact).kind == "unbiased"
        assert (verdict(process, made(GAE(lam)), wrong).kind == "unbiased") == (lam == 1.0)
        one_turn = process is not OBSERVATION  # there the value of the only turn is a constant
        assert (verdict(process, made(MonteCarlo(lam=lam)), wrong).kind == "unbiased") == (one_turn or lam == 1.0)


@pytest.mark.parametrize("name", PROCESSES)
def test_a_turn_is_one_action(name: str) -> None:
    process, stale = PROCESSES[name], Setting(1, stale=True)
    turn, whole, token = (
        Enumeration(process).update(made(RewardToGo(), ratio), stale).direction.tolist()
        for ratio in (TurnRatio(), TrajectoryRatio(), TokenRatio())
    )
    alone = process is OBSERVATION  # each turn is one token there, elsewhere one turn is all
    assert turn == pytest.approx(token if alone else whole, abs=1e-12)
    assert turn != pytest.approx(whole if alone else token, abs=1e-3)


@pytest.mark.parametrize("name", PROCESSES)
def test_the_prefix_ratio_is_unbiased_with_true_advantages_only(name: str) -> None:
    stale = Setting(1, stale=True)
    assert verdict(PROCESSES[name], made(GAE(lam=0.0), PrefixRatio()), stale).kind == "unbiased"
    assert verdict(PROCESSES[name], made(RewardToGo(), PrefixRatio()), stale).kind == "biased"


def test_the_deviation_of_binary_returns_has_one_factor_for_all_tasks_in_groups_of_two_and_three_only() -> None:
    deviation = made(GroupMean("population"))
    said = [str(verdict(TWO_TASKS, deviation, Setting(size))) for size in (2, 3, 4)]
    assert said[:2] == ["unbiased", f"x {2**0.5:.3g}"]
    assert said[2].startswith("biased")


# --- the enumeration is complete, and its short cuts are exact


@pytest.mark.parametrize("name", PROCESSES)
@pytest.mark.parametrize("stale", [False, True], ids=["fresh", "stale"])
def test_all_batches_together_are_certain(name: str, stale: bool) -> None:
    setting = Setting(2, stale)
    for algorithm in (bare(ALGORITHMS[row]) for row in ("rloo", "dapo", "reinforce_pp", "reinforce_ema")):
        chances = [p for _, p in Enumeration(PROCESSES[name]).drawn(algorithm, setting)]
        assert sum(chances) == pytest.approx(1.0, abs=1e-12)
        assert sum(chances[:-1]) < 1 - 1e-4


def test_a_multiset_stands_for_all_orders_but_for_moving_averages() -> None:
    everything = Enumeration(GRADED)
    for name in ("grpo", "decoupled_ppo", "rloo"):
        algorithm = bare(ALGORITHMS[name])
        ordered = everything.drawn(bare(ALGORITHMS["reinforce_ema"]), Setting(3, stale=True))
        assert len(ordered) == 27
        literal = everything.over(algorithm, Setting(3, stale=True), ordered).direction.tolist()
        assert everything.update(algorithm, Setting(3, stale=True)).direction.tolist() == pytest.approx(
            literal, abs=1e-12
        )
    average = bare(ALGORITHMS["reinforce_ema"])
    first = everything.over(average, Setting(2), [((((0, 0), (0, 2)),), 1.0)]).direction.tolist()
    second = everything.over(average, Setting(2), [((((0, 2), (0, 0)),), 1.0)]).direction.tolist()
    assert first != pytest.approx(second, abs=1e-3)


def test_groups_that_do_not_touch_each_other_may_be_drawn_alone() -> None:
    everything = Enumeration(TWO_TASKS)
    for aggregate in (SeqMeanTokenMean(), GroupTokenMean()):
        algorithm = made(GroupMean("population"), aggregate=aggregate)  # type: ignore[arg-type]
        alone = everything.update(algorithm, Setting(3)).direction.tolist()
        assert everything.update(algorithm, Setting(3, together=True)).direction.tolist() == pytest.approx(
            alone, abs=1e-12
        )
    for algorithm in (made(GroupMean("population"), aggregate=TokenMean()), made(BatchMean())):
        alone = torch.stack([Enumeration(one).update(algorithm, Setting(3)).direction for one in apart()])
        both = everything.update(algorithm, Setting(3)).direction.tolist()
        assert (alone.flatten() / 2).tolist() != pytest.approx(both, abs=1e-3)


def apart() -> list[Process]:
    """Each of the two tasks as a process of its own."""
    halves = (("a", "b"), ("c", "d"))
    tables = (TWO_TASKS.policy, TWO_TASKS.stale, TWO_TASKS.other)
    return [
        Process("one", (task,), *({s: table[s] for s in states} for table in tables), "")  # type: ignore[misc]
        for task, states in zip(TWO_TASKS.tasks, halves, strict=True)
    ]


# --- verdicts

TRUTH = torch.tensor([0.3, -0.4], dtype=torch.float64)


@pytest.mark.parametrize(
    ("found", "text"),
    [
        ([0.3, -0.4], "unbiased"),
        ([0.3 + 1e-11, -0.4], "unbiased"),
        ([0.225, -0.3], "x 0.75"),
        ([-0.3, 0.4], "biased 2.00, x -1.00, cos -1.000, points away"),
        ([0.3, -0.4 + 1e-5], "biased 0.00, x 1.00, cos 1 - 7e-11, more a"),
        ([0.0, 0.0], "no update"),
        ([0.0, -0.4], "biased 0.60, x 0.64, cos 0.800, nothing for a"),
        ([-0.1, -0.4], "biased 0.80, x 0.52, cos 0.631, flips a"),
        ([0.3, -0.5], "biased 0.20, x 1.16, cos 0.995, less a"),
        ([0.6, -0.4], "biased 0.60, x 1.36, cos 0.943, more a"),
    ],
)
def test_a_verdict_says_what_an_update_is(found: list[float], text: str) -> None:
    assert str(judge(torch.tensor(found, dtype=torch.float64), TRUTH, ["a", "b"])) == text


# --- planted faults: each must turn a verdict


def mask_one_late(row: Row) -> Row:
    return replace(row, sampled=np.concatenate([[False], row.sampled[:-1]]))


@pytest.mark.parametrize("process", [GRADED, OBSERVATION], ids=lambda p: p.name)
def test_a_mask_that_is_one_late_is_seen(process: Process) -> None:
    rloo = bare(ALGORITHMS["rloo"])
    assert verdict(process, rloo, Setting(2)).kind == "unbiased"
    wrong = Enumeration(process).update(rloo, Setting(2, mend=mask_one_late))
    assert judged(wrong, process).kind in ("biased", "none")
    # where there are observations, it is them that it trains
    assert (wrong.observed > 0.1) == (process is OBSERVATION)


def judged(found: Update, process: Process) -> Verdict:
    return judge(found.direction, process.truth.gradient(expected_return(process)), process.parameters)


def changed(process: Process, name: str, setting: Setting, plant: Callable[[], None]) -> tuple[str, str]:
    """The verdict on a row before and after a fault is planted."""
    algorithm = bare(ALGORITHMS[name])
    before = verdict(process, algorithm, setting)
    plant()
    return str(before), str(verdict(process, algorithm, setting))


def test_members_of_another_task_in_the_group_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    rewards = (0.3, 0.0, 1.0)
    process = replace(TWO_TASKS, tasks=(two_tokens("a", "b", rewards), two_tokens("c", "d", rewards)))
    everything, right = Enumeration(process), enumeration_module.assign
    in_order = everything.drawn(
        bare(ALGORITHMS["reinforce_ema"]), Setting(2)
    )  # the fault tells first members from others
    assert len(in_order) == 81

    def mixed(credit: Any, groups: Any, state: Any) -> Any:
        (a, *own), (b, *others) = groups
        credits = right(credit, [[b, *own], [a, *others]], state)
        (first, *rest), (second, *more) = credits.advantages
        return replace(credits, advantages=[[second, *rest], [first, *more]])

    def said(credit: Credit) -> str:
        return str(judged(everything.over(made(credit), Setting(2), in_order), process))

    before = said(GroupMean("population"))
    assert before == str(verdict(process, made(GroupMean("population")), Setting(2)))
    assert said(LeaveOneOut()) == "unbiased"
    monkeypatch.setattr(enumeration_module, "assign", mixed)
    assert said(GroupMean("population")) != before
    # strangers are an unbiased baseline, since they know nothing of the member's own actions
    assert said(LeaveOneOut()) == "unbiased"


def test_the_sample_deviation_in_place_of_the_population_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    right = credit_module.group_mean

    def sample(rewards: Any, scale: Any, batch: Any) -> Any:
        return right(rewards, "sample" if scale == "population" else scale, batch)

    before, after = changed(
        BINARY, "group_reinforce", Setting(4), lambda: monkeypatch.setattr(credit_module, "group_mean", sample)
    )
    assert before == "x 1.66"
    assert after == f"x {1.6589 * 0.75**0.5:.3g}"


def test_the_ratio_of_the_next_token_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    right = objective_module.importance_ratio

    def next_one(ratio: Any, logp: torch.Tensor, anchor: torch.Tensor, places: Any) -> Any:
        return right(ratio, logp, logp.detach() + torch.roll(anchor - logp.detach(), -1), places)

    def plant() -> None:
        monkeypatch.setattr(objective_module, "importance_ratio", next_one)

    assert changed(GRADED, "full_ratio", Setting(2, stale=True), plant)[0] == "unbiased"
    assert verdict(GRADED, bare(ALGORITHMS["full_ratio"]), Setting(2, stale=True)).kind == "biased"


def test_a_correction_that_is_counted_twice_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    setting = Setting(2, stale=True)
    algorithm = made(RewardToGo(), TrajectoryRatio(), WeightClip(), correction=Decoupled())
    before = verdict(GRADED, algorithm, setting)
    monkeypatch.setattr(enumeration_module, "around_proximal", lambda correction: False)
    assert str(verdict(GRADED, algorithm, setting)) != str(before)


def test_the_baseline_of_the_group_with_the_member_in_it_is_told_from_that_without() -> None:
    assert str(verdict(GRADED, made(GroupMean()), Setting(4))) == "x 0.75"
    assert str(verdict(GRADED, made(LeaveOneOut()), Setting(4))) == "unbiased"
