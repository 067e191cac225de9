"""Claims that can fail: each holds on a table made to fulfil it, and fails on a planted false one."""

import numpy as np
import pytest

from steinmatch.experiments import EXPERIMENTS, exactness, rate
from steinmatch.experiments.claims import Claim, markdown, over_trials
from steinmatch.experiments.store import Results
from steinmatch.targets import GaussBernoulliRBM
from tests.planted import FALSE, TRUE, decided


@pytest.mark.parametrize("name", list(TRUE))
def test_claims_hold_on_a_true_result(name):
    held = {claim.text: (claim.measured, claim.holds) for claim in decided(name)}
    assert all(holds for _, holds in held.values()), held


@pytest.mark.parametrize(("name", "text", "where", "values"), FALSE)
def test_each_claim_fails_on_a_planted_false_result(name, text, where, values):
    verdicts = [claim.holds for claim in decided(name, where, values) if text in claim.text]
    assert verdicts and not any(verdicts)


def test_every_claim_has_a_planted_false_result():
    assert set(TRUE) == set(EXPERIMENTS)
    for name in TRUE:
        own = [text for other, text, *_ in FALSE if other == name]
        for claim in decided(name):
            assert any(text in claim.text for text in own), claim.text


def test_slopes_are_those_of_a_power_law():
    rows = [{"m": m, "ksd": 3.0 * m**-0.7, "bound": m**-0.2, "target": "t"} for m in (4, 8, 16, 32)]
    found = rate.slope(Results(rows), "ksd", target="t")
    assert found.mean == pytest.approx(-0.7, abs=1e-12) and found.high - found.low < 1e-10
    assert rate.slope(Results(rows), "ksd", "bound").mean == pytest.approx(-0.5, abs=1e-12)


def test_intervals_over_trials():
    """Mean 2, sd 1, n = 3: the half width is 4.3027 / sqrt(3)."""
    found = over_trials([1.0, 2.0, 3.0])
    assert found.mean == 2.0 and found.high - 2.0 == pytest.approx(4.302653 / np.sqrt(3.0), rel=1e-6)
    assert over_trials([5.0]) == (5.0, 5.0, 5.0)


def test_quadrature_knows_moments():
    target = GaussBernoulliRBM(np.array([[0.8, -0.8], [0.8, 0.8]]), np.array([0.3, -0.5]), np.array([0.2, 0.1]))
    nodes, weights = exactness._quadrature(target)
    np.testing.assert_allclose(weights @ nodes, target.mean, rtol=1e-10)
    np.testing.assert_allclose(weights @ nodes**2, target.second_moment, rtol=1e-10)


def test_failed_claims_are_explained():
    text = markdown([Claim(3, "a", "1e-3", False, "because"), Claim(1, "b", "2", True)], "Claims")
    assert text.index("| 1 |") < text.index("| 3 |") and "**does not hold**" in text and "(3) a: because" in text
