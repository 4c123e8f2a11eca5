"""The lecture's numbers are what production code computes, and planted faults in production code change them.

The numbers were worked out apart, by hand formulas and by automatic differentiation of the exact objectives.
"""

import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from strop.credit import admission, baselines
from strop.credit import assign as credit_assign
from strop.envs.guess import solvable
from strop.learn.values import ValueNet
from strop.lecture.contents import ENTRIES
from strop.lecture.figure import WIDTH
from strop.model import divergence as model_divergence
from strop.model import forward as model_forward
from strop.objective import objective, parts, terms
from tests.lecture.shown import FIGURES, Rows, cells, figure, wrong

SD1000 = (3**0.5, -(3**-0.5), -(3**-0.5), -(3**-0.5))

EXACT: dict[str, Rows] = {
    "objective": [
        {"y_1": (0.3, 1.0, 0.15, 0.15), "y_2": (0.2, 1.0, 0.1, 0.1), "y_3": (0.25, 0.0, -0.125, -0.125)},
        {"expected return": (0.5,)},
    ],
    "bandit": [
        {
            "0": (0.75, 0.0, 0.1875, 0.3247595264191645),
            "0.5": (0.375, 0.125, 0.1875, 0.10825317547305482),
            "0.25": (0.5625, 0.0625, 0.1875, 0.21650635094610965),
            "0.75": (0.1875, 0.1875, 0.1875, 0.0),
        }
    ],
    "group": [
        {
            "group_mean(population)": (1.0, 1.0, -1.0, -1.0),
            "group_mean(sample)": (0.75**0.5, 0.75**0.5, -(0.75**0.5), -(0.75**0.5)),
            "group_mean": (0.5, 0.5, -0.5, -0.5),
            "leave_one_out": (2 / 3, 2 / 3, -2 / 3, -2 / 3),
        },
        {
            "group_mean(population)": SD1000,
            "group_mean(sample)": (1.5, -0.5, -0.5, -0.5),
            "group_mean": (0.75, -0.25, -0.25, -0.25),
            "leave_one_out": (1.0, -1 / 3, -1 / 3, -1 / 3),
        },
        {
            "group_mean(population)": tuple(-a for a in reversed(SD1000)),
            "group_mean": (0.25, 0.25, 0.25, -0.75),
        },
    ],
    "guess": [
        {
            "guess 9": (2 / 3, 7 / 9, -1 / 9),
            "guess 10": (1.0, 7 / 9, 2 / 9),
            "guess 11": (2 / 3, 7 / 9, -1 / 9),
        }
    ],
    "returns": [
        {
            "rewards 0 0 1, gamma 1": (1.0, 1.0, 1.0),
            "rewards 0.2 0 1, gamma 1": (1.2, 1.0, 1.0),
            "rewards 0.2 0 1, gamma 0.9": (1.01, 0.9, 1.0),
        }
    ],
    "value": [{"mean of 10": (0.3, 0.14491376746189438)}, {"0.6": (0.3, 0.6), "0.3": (0.21, 0.0)}],
    "gae": [{"TD error": (0.3, -0.2, -0.4), "GAE, lambda 0.5": (0.1, -0.4, -0.4)}],
    "telescope": [
        {"GAE, lambda 1": (-0.3, -0.6, -0.4), "R_t - V(h_t)": (-0.3, -0.6, -0.4), "R_t alone": (0.0, 0.0, 0.0)},
        {"GAE, lambda 1": (0.7, 0.4, 0.6), "R_t - V(h_t)": (0.7, 0.4, 0.6), "R_t alone": (1.0, 1.0, 1.0)},
    ],
    "partial": [
        {
            "success alone: group_mean": (0.0, 0.0, 0.0, 0.0),
            "success alone: group_mean(population)": (0.0, 0.0, 0.0, 0.0),
            "with checks: return": (0.0, 0.25, 0.5, 0.25),
            "with checks: group_mean": (-0.25, 0.0, 0.25, 0.0),
            "with checks: group_mean(population)": (-(2**0.5), 0.0, 2**0.5, 0.0),
        }
    ],
    "importance": [
        {"outcome 1": (0.4, 0.7, 1.0, 1.75), "outcome 2": (0.4, 0.2, 0.0, 0.5), "outcome 3": (0.2, 0.1, 0.0, 0.5)},
        {
            "E_mu[R], uncorrected": (0.4,),
            "E_mu[w R]": (0.7,),
            "E_pi[R]": (0.7,),
            "E_mu[w]": (1.0,),
            "effective share of the samples": (1 / 1.375,),  # E[w]^2 / E[w^2]
        },
    ],
    "product": [
        {
            "token": (1.05, 1.05, 1.05),
            "trajectory": (1.05, 1.628894626777442, 131.50125784630401),
            "prefix": (1.05, 1.628894626777442, 131.50125784630401),
            "sequence": (1.05, 1.05, 1.05),
        }
    ],
    "prefix": [
        {"token": (0.25, 1.0), "prefix": (0.25, 0.25), "trajectory": (0.25, 0.25), "sequence": (0.5, 0.5)},
    ],
    "clip": [
        {
            "0.5": (0.5, 0.8, 0.0, -0.8),
            "0.9": (0.9, 0.9, -0.9, -0.9),
            "1": (1.0, 1.0, -1.0, -1.0),
            "1.1": (1.1, 1.1, -1.1, -1.1),
            "1.25": (0.0, 1.2, -1.25, -1.2),
            "1.5": (0.0, 1.2, -1.5, -1.2),
            "4": (0.0, 1.2, -4.0, -1.2),
        }
    ],
    "cispo": [
        {
            "ppo": (0.5, 0.9, 1.0, 1.1, 0.0, 0.0, 0.0),
            "ppo(high=0.28)": (0.5, 0.9, 1.0, 1.1, 1.25, 0.0, 0.0),
            "ppo(dual=3.0)": (0.5, 0.9, 1.0, 1.1, 0.0, 0.0, 0.0),
            "weight(0.8, 1.2)": (0.8, 0.9, 1.0, 1.1, 1.2, 1.2, 1.2),
            "weight(high=1.2)": (0.5, 0.9, 1.0, 1.1, 1.2, 1.2, 1.2),
            "weight(high=5.0)": (0.5, 0.9, 1.0, 1.1, 1.25, 1.5, 4.0),
        },
        {
            "ppo": (0.0, -0.9, -1.0, -1.1, -1.25, -1.5, -4.0),
            "ppo(high=0.28)": (0.0, -0.9, -1.0, -1.1, -1.25, -1.5, -4.0),
            "ppo(dual=3.0)": (0.0, -0.9, -1.0, -1.1, -1.25, -1.5, 0.0),
            "weight(0.8, 1.2)": (-0.8, -0.9, -1.0, -1.1, -1.2, -1.2, -1.2),
            "weight(high=5.0)": (-0.5, -0.9, -1.0, -1.1, -1.25, -1.5, -4.0),
        },
    ],
    "collapse": [
        {
            "0.2 0.6 0.2": (0.9502705392332347, 0.13183347464017317, -0.26366694928034634, 0.13183347464017317),
            "0.01 0.98 0.01": (0.11190205689093073, 0.04493268129097162, -0.08986536258194311, 0.04493268129097162),
        }
    ],
    "divergence": [
        {
            "reverse, KL(S || T)": (0.22314355131420976,),
            "forward, KL(T || S)": (0.19274475702175753,),
            "mean of k1 over S": (0.22314355131420976,),
            "mean of k3 over S": (0.22314355131420976,),
        }
    ],
    "shrink": [{"leave_one_out": (1.0, 1.0, 1.0), "group_mean": (0.5, 0.75, 0.875)}],
    "critics": [
        {
            "separate: value loss": ("no", "yes", "yes"),
            "separate: policy loss": ("yes", "no", "no"),
            "stopgrad: value loss": ("no", "-", "yes"),
            "stopgrad: policy loss": ("yes", "-", "no"),
            "shared: value loss": ("yes", "-", "yes"),
            "shared: policy loss": ("yes", "-", "no"),
        }
    ],
}
"""Numbers to nine digits."""

ROUNDED: dict[str, tuple[Rows, float]] = {
    "sampling": (
        [
            {
                "A": ("0 0 0 0", "skip", "0 of 4"),
                "B": ("0 1 0 1", "keep", "4 of 4"),
                "C": ("1 1 1 1", "skip", "0 of 4"),
                "D": ("0 0 1 0", "keep", "4 of 4"),
            },
            {
                "success 0.05": (0.1855, 0.3366, 0.5599),
                "success 0.5": (0.875, 0.9922, 1.0),
                "success 0.9": (0.3438, 0.5695, 0.8147),
            },
        ],
        5e-5,
    ),
    "scale": (
        [
            {
                "graded: true gradient": (0.00764323, 0.132737, 1.0),
                "graded: group_mean": (0.00573242, 0.0995526, 1.0),
                "graded: group_mean(population)": (-0.0846710, 0.284074, 0.94034),
            },
            {
                "success 0.05": (1.0, 1.7100060, 2.4730626, 4.588315),
                "success 0.25": (1.0, 1.6450318, 2.0261156, 2.309401),
                "success 0.5": (1.0, 1.6160254, 1.8556559, 2.0),
            },
        ],
        1e-5,
    ),
}
"""Numbers that are known to fewer digits, and to how many."""

EXPECTED: dict[str, tuple[Rows, float]] = {**{name: (rows, 1e-9) for name, rows in EXACT.items()}, **ROUNDED}


@pytest.mark.parametrize("name", EXPECTED)
def test_production_code_gives_the_lectures_numbers(name: str) -> None:
    assert wrong(figure(name), *EXPECTED[name]) == []


def test_every_figure_of_the_lecture_has_its_numbers_checked() -> None:
    assert {*EXPECTED, "growth"} == set(FIGURES) == set(ENTRIES) - {"symbols"}


def test_a_number_that_is_off_in_the_ninth_digit_is_noticed() -> None:
    assert wrong(figure("gae"), [{"TD error": (0.3, -0.2, -0.4 + 2e-9)}]) != []
    assert wrong(figure("critics"), [{"shared: value loss": ("no", "-", "yes")}]) != []


# --- the corrections


def test_the_variance_of_the_log_weight_grows_like_n_and_not_like_its_root() -> None:
    measured, bounds = figure("growth").tables
    variance = {n: float(measured.cell(f"n={n}", "variance")) for n in (1, 4, 25, 100)}
    for n, found in variance.items():
        assert found == pytest.approx(0.0025 * n, rel=0.07)
        assert measured.cell(f"n={n}", "std") == pytest.approx(0.05 * n**0.5, rel=0.035)
        assert measured.cell(f"n={n}", "variance, one coin") == pytest.approx(0.0025 * n**2, rel=0.01)
    assert variance[100] / variance[1] != pytest.approx(100**0.5, rel=0.5)  # what the notes say
    for t, high in ((1, 1.0512710963760241), (4, 1.1051709180756477), (100, 1.6487212707001282), (2500, 12.1824939607)):
        assert bounds.cell(f"t={t}", "upper") == pytest.approx(high, abs=1e-9)
        assert bounds.cell(f"t={t}", "lower") == pytest.approx(1 / high, abs=1e-9)


def test_at_lambda_one_more_than_the_final_reward_remains() -> None:
    for table in figure("telescope").tables:
        assert cells(table, "GAE, lambda 1") == pytest.approx(cells(table, "R_t - V(h_t)"), abs=1e-12)
        assert cells(table, "GAE, lambda 1") != pytest.approx(cells(table, "R_t alone"), abs=0.2)


def test_the_deviation_rescales_binary_rewards_and_turns_graded_ones() -> None:
    table = figure("scale").tables[0]

    def cosine(row: str) -> Any:
        return table.cell(row, "cosine")

    for kind in ("group_mean", "group_mean(population)"):
        assert cosine(f"binary: {kind}") == pytest.approx(1.0, abs=1e-12)
    assert cosine("graded: group_mean") == pytest.approx(1.0, abs=1e-12)
    assert cosine("graded: group_mean(population)") < 0.95


# --- it is production code that computes


def called(run: Callable[[], object]) -> set[str]:
    """Names below `strop` of all functions and methods of Strop that a call runs through."""
    seen: set[str] = set()

    def watch(frame: Any, event: str, _: object) -> None:
        module = frame.f_globals.get("__name__", "")
        if event == "call" and module.startswith("strop."):
            seen.add(f"{module.removeprefix('strop.')}.{frame.f_code.co_qualname}")

    sys.setprofile(watch)
    try:
        run()
    finally:
        sys.setprofile(None)
    return seen


def not_called(claimed: tuple[str, ...], seen: set[str]) -> list[str]:
    return [name for name in claimed if not any(s == name or s.startswith(f"{name}.") for s in seen)]


@pytest.mark.parametrize("name", FIGURES)
def test_a_figure_runs_through_the_code_that_it_names(name: str) -> None:
    claimed = figure(name).code
    solvable.cache_clear()  # or it would answer without being called
    seen = called(FIGURES[name])
    assert claimed and not_called(claimed, seen) == []
    assert not_called(("credit.gae.bilevel", *claimed), seen) == ["credit.gae.bilevel"]  # nothing here calls it


def no_decay(rewards: Any, values: Any, bootstrap: float, discount: float, lam: float) -> Any:
    following = np.append(values[1:], bootstrap)
    return np.cumsum((rewards + discount * following - values)[::-1])[::-1]


def sample_deviation(returns: Any, scale: Any, batch: Any = None) -> Any:
    return baselines.group_mean(returns, "sample" if scale == "population" else scale, batch)


def final_only(turn_rewards: Any, final: float, discount: float) -> Any:
    return np.append(np.zeros(len(turn_rewards) - 1), final)


def without_prefix(log_r: torch.Tensor, places: Any) -> torch.Tensor:
    return log_r


def without_clip(clip: Any, ratio: Any, logp: Any, advantage: Any, order: Any, anchor: Any) -> Any:
    return -advantage * (logp if ratio is None else ratio), torch.zeros_like(advantage, dtype=torch.bool)


def swapped(p: torch.Tensor, q: torch.Tensor) -> torch.Tensor:
    return q.exp() * (q - p)


def own_included(returns: Any) -> Any:
    return baselines.group_mean(returns, None)


def token_mean(aggregate: Any, places: Any, totals: Any, group_tokens: Any, dtype: Any = torch.float32) -> Any:
    return torch.full((len(places.trajectory),), 1 / totals.tokens, dtype=dtype)


FAULTS: list[tuple[str, Any, str, Any]] = [
    ("gae", credit_assign, "gae", no_decay),
    ("guess", credit_assign, "gae", lambda rewards, *_: rewards),
    ("group", credit_assign, "group_mean", sample_deviation),
    ("group", credit_assign, "leave_one_out", own_included),
    ("shrink", credit_assign, "leave_one_out", own_included),
    ("partial", credit_assign, "group_mean", sample_deviation),
    ("returns", credit_assign, "reward_to_go", final_only),
    ("telescope", credit_assign, "reward_to_go", final_only),
    ("objective", credit_assign, "reward_to_go", lambda *_: np.zeros(1)),
    ("bandit", credit_assign, "reward_to_go", lambda *_: np.zeros(1)),
    ("prefix", parts, "_prefix_sums", without_prefix),
    ("product", parts, "_prefix_sums", without_prefix),
    ("importance", parts, "log_ratio", lambda logp, old: old - logp),
    ("clip", objective, "surrogate", without_clip),
    ("cispo", objective, "surrogate", without_clip),
    ("divergence", model_divergence, "_kl", swapped),
    ("divergence", terms, "MAX_LOG", 0.1),
    ("collapse", model_forward, "_logits", lambda hidden, weight, *_: hidden @ weight.t() / 2),
    ("critics", ValueNet, "hidden", lambda net, micro, own: own),
    ("sampling", admission, "all_equal", lambda scores: False),
    ("sampling", credit_assign, "group_mean", lambda returns, *_: [1.0 for _ in returns]),
    ("scale", objective, "token_weights", token_mean),
]


@pytest.mark.parametrize(("name", "module", "part", "fault"), FAULTS, ids=lambda v: v if isinstance(v, str) else "")
def test_a_fault_in_production_code_changes_the_lectures_numbers(
    name: str, module: Any, part: str, fault: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, part, fault)
    assert wrong(FIGURES[name](), *EXPECTED[name]) != []


# --- the text


@pytest.mark.parametrize("name", FIGURES)
def test_a_printed_figure_fits_the_screen(name: str) -> None:
    lines = figure(name).lines()
    assert max(map(len, lines)) <= WIDTH == 80
    assert not [line for line in lines if "-0.0000" in line.split() or "nan" in line]
