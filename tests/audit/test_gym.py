"""The adapter of reasoning-gym, with a package of the same shape (the real one is optional): two data sets, one broken."""

import asyncio
import sys
from types import ModuleType
from typing import Any

import pytest

from strop.audit.audit import audit
from strop.audit.gym import gym, names
from strop.core.errors import UsageError


class Sums:
    """Entries and a grader with part of a score, as the package has them."""

    def __init__(self, broken: bool) -> None:
        self.broken = broken

    def __getitem__(self, k: int) -> dict[str, Any]:
        return {"question": f"{k + 20} + {k + 20}?", "answer": str(2 * (k + 20)), "metadata": {}}

    def score_answer(self, answer: str | None, entry: dict[str, Any]) -> float:
        print("noise")
        if answer is None or (self.broken and not answer.strip().isdigit()):
            return float(self.broken)
        return 1.0 if answer.strip() == entry["answer"] else 0.6


@pytest.fixture(autouse=True)
def package(monkeypatch: pytest.MonkeyPatch) -> None:
    top, factory = ModuleType("reasoning_gym"), ModuleType("reasoning_gym.factory")
    made = {"sums": Sums(False), "loose_sums": Sums(True)}
    factory.DATASETS = {**made, "composite": None}  # type: ignore[attr-defined]
    top.create_dataset = lambda name, size, seed: made[name]  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "reasoning_gym", top)
    monkeypatch.setitem(sys.modules, "reasoning_gym.factory", factory)


def confirmed(name: str) -> set[str]:
    report = asyncio.run(audit(gym(name), (2, 3, 4, 6), 20.0))
    return {finding.name for finding in report.findings if finding.kind == "confirmed"}


def test_part_of_a_score_is_no_pass_and_a_grader_that_rewards_words_is_found(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert confirmed("sums") == set()
    assert {"empty answer", "refusal", "echo"} <= confirmed("loose_sums")
    assert capsys.readouterr().out == ""


def test_the_expected_answer_of_an_entry_can_be_flipped() -> None:
    report = asyncio.run(audit(gym("sums"), (6,), 20.0))
    assert (report.rates["impossible twins passed"].hits, report.rates["impossible twins passed"].of) == (0, 4)


def test_names_are_those_of_the_package_without_the_compound_and_an_unknown_one_is_told() -> None:
    assert names() == ["loose_sums", "sums"]
    with pytest.raises(UsageError, match="known: loose_sums, sums"):
        gym("zork")
