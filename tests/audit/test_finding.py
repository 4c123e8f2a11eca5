"""Intervals against known values, and findings there and back."""

import json

import pytest

from strop.audit.finding import Finding, ceiling, rate, read_finding
from strop.core.metrics import wilson


@pytest.mark.parametrize(
    ("hits", "of", "low", "high"),
    [(0, 10, 0.0, 0.27753), (10, 10, 0.72247, 1.0), (5, 10, 0.23659, 0.76341), (1, 20, 0.00888, 0.23613)],
)
def test_the_wilson_interval_has_the_known_ends(hits: int, of: int, low: float, high: float) -> None:
    assert wilson(hits, of) == pytest.approx((low, high), abs=1e-4)


@pytest.mark.parametrize(("hits", "of"), [(1, 0), (3, 2), (-1, 4)])
def test_what_is_no_proportion_is_refused(hits: int, of: int) -> None:
    with pytest.raises(ValueError, match="no proportion"):
        wilson(hits, of)


def test_the_ceiling_is_the_rate_of_right_answers_that_pass() -> None:
    found = ceiling(rate(2, 10))
    assert found is not None
    assert found.rate == 0.8
    assert (found.low, found.high) == wilson(8, 10)
    assert ceiling(rate(0, 0)) is None


def test_a_finding_comes_back_from_json_as_it_was() -> None:
    finding = Finding(3, "confirmed", "t", "it passes", "a", "passes", ("x", {"f": "y"}), 2, "add", {"answer": "5"})
    assert read_finding(json.loads(json.dumps(finding.as_json()))) == finding
    with pytest.raises(KeyError):
        read_finding({"tier": 1})
