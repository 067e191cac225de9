"""What draws are worth: errors, and the families of equations that are used."""

import numpy as np
import pytest

from steinmatch.adaptive.verdict import Error, Verdict, _accepted, _Estimate, cautious, confirmed
from steinmatch.measures.images import FAMILIES
from steinmatch.measures.weights import Layout


def test_errors_grow_where_estimates_moved_more_than_they_allow():
    def verdict(mean, error):
        parts = Error(np.array([error]), np.array([error]))
        estimate = (np.array([mean]), np.array([1.0]))
        return Verdict(np.ones(1), 1.0, 0.0, "", parts, 0.0, True, True, estimate)

    before, steady, moved = verdict(0.0, 0.02), verdict(0.02, 0.01), verdict(1.0, 0.01)
    assert confirmed(steady, before, 32).error.largest == 0.01
    assert confirmed(moved, before, 32).error.largest > 0.05


@pytest.mark.parametrize(("shift", "families"), [(0.0, 3), (4.0, 2)])
def test_growing_control_variates_without_a_mean_of_zero_are_done_without(shift, families):
    """As those of an estimate that is better by its error, but four standard errors from zero."""
    rng, layout = np.random.default_rng(0), Layout(64, 32, 2)
    first, further = (part - part.mean(axis=0) for part in rng.normal(size=(2, layout.n, 2)))
    unit = (np.zeros(1), np.ones(1))
    controls = (0.0 * first, first, first + further + shift / np.sqrt(layout.n))
    estimates = [
        _Estimate(family, control, unit, np.full(2, error))
        for family, control, error in zip((None, FAMILIES[1], FAMILIES[2]), controls, (0.1, 0.05, 0.01), strict=True)
    ]
    assert len(_accepted(estimates, layout)) == families


def test_a_constant_moves_by_rounding_alone():
    """As the first entry of a Cholesky factor of a correlation matrix does: its sd is 1e-16, and so is its move."""

    def verdict(mean, sd, error):
        parts = Error(np.array([0.0, error]), np.array([0.0, error]))
        return Verdict(np.ones(1), 1.0, 0.0, "", parts, 0.0, True, True, (np.array([mean, 0.0]), np.array([sd, 1.0])))

    now, before = verdict(1.0, 1e-16, 0.01), verdict(1.0 - 1e-13, 3e-16, 0.02)
    assert confirmed(now, before, 32).error.largest == 0.01


def test_errors_cover_what_rare_values_hide():
    """Means of t3 draws: their plain standard errors are too small whenever the largest values are missing."""
    rng = np.random.default_rng(0)
    layout = Layout(8, 16, 1)
    off = []
    for _ in range(300):
        draws = rng.standard_t(3, size=(128, 1)) ** 2  # infinite variance
        off.append(float(np.abs(draws.mean() - 3.0) / cautious(draws, layout)[0]))
    assert np.mean(np.array(off) > 2.0) <= 0.05
