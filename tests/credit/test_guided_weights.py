"""Corrections of batches in which some trajectories were sampled by nobody."""

import numpy as np
import pytest

from strop.core.algorithm import Band, Correction, Decoupled, OffPolicyMask, SecondMoment, Truncate
from strop.credit.correction import correction_weights

CORRECTIONS: list[Correction] = [
    Decoupled(),
    Truncate(0.5),
    Truncate(2.0, "sequence"),
    Band(1.5, 5.0),
    SecondMoment(0.001),
    OffPolicyMask(-1.0),
]


@pytest.mark.parametrize("correction", CORRECTIONS, ids=str)
def test_what_nobody_sampled_weighs_one_and_changes_no_other_weight(correction: Correction) -> None:
    rng = np.random.default_rng(0)
    proximal = [-rng.random(n) - 0.1 for n in (3, 4, 2)]
    behaviour = [p + rng.normal(0, 0.3, len(p)) for p in proximal]
    advantages = [np.full(len(p), a) for p, a in zip(proximal, (-1.0, 1.0, -0.5), strict=True)]
    alone = correction_weights(correction, proximal, behaviour, advantages)
    nobody = np.full(4, np.nan)
    mixed = correction_weights(
        correction,
        [proximal[0], np.array([-0.1, -2.0, -3.0, -0.4]), *proximal[1:]],
        [behaviour[0], nobody, *behaviour[1:]],
        [advantages[0], np.full(4, -2.0), *advantages[1:]],
    )
    assert mixed[1].tolist() == [1.0] * 4
    assert all((a == b).all() for a, b in zip(alone, [mixed[0], *mixed[2:]], strict=True))
    assert any((w != 1).any() for w in alone)  # these corrections do something here


def test_a_hole_in_what_was_sampled_still_shows() -> None:
    behaviour = np.array([-1.0, np.nan])
    [weight] = correction_weights(Decoupled(), [np.array([-1.0, -1.0])], [behaviour], [np.ones(2)])
    assert np.isnan(weight[1])
