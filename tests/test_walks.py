"""Transitions of chains leave the target invariant, whichever way they are computed."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.special

import steinmatch as sm
from steinmatch.adaptive.frames import Cloud, cloud, normal_points
from steinmatch.adaptive.leaps import leap, leaping, stride
from steinmatch.adaptive.walks import States, advance
from steinmatch.coordinates import AffineMap, PulledBack
from steinmatch.targets import Evaluations

CHAINS = 20_000
TARGET = sm.Target(lambda x: 3.0 * x[0] - jnp.exp(x[0]), dim=1)  # the logarithm of a gamma variable of shape 3
FRAME = AffineMap(jnp.array([0.7]), jnp.array([[0.9]]))
FACTORS = np.array([0.25, 1.0, 1.1, 0.9])


def by_leaps(evaluate, states):
    return leap(evaluate, FRAME, states, 0.0, np.random.default_rng(1))


def by_strides(evaluate, states):
    return stride(evaluate, FRAME, states, float(np.log(1.4)), np.zeros(4), FACTORS, np.random.default_rng(2))


def by_blackjax(evaluate, states):
    return advance(PulledBack(TARGET, FRAME), states, jax.random.key(3), float(np.log(1.4)), np.zeros(4), FACTORS)


@pytest.mark.parametrize("moved_by", [by_leaps, by_strides, by_blackjax])
def test_exact_draws_stay_exact(moved_by):
    """Moments of a log-gamma variable, from chains that begin at exact draws, after steps so long that many fail."""
    x = np.log(np.random.default_rng(0).gamma(3.0, size=(CHAINS, 1)))
    evaluate = Evaluations(TARGET, CHAINS)
    start = cloud(evaluate, FRAME, (x - 0.7) / 0.9)
    stretch = moved_by(evaluate, States(*start))
    assert 0.3 < np.mean(np.asarray(stretch.acceptance)) < 0.95
    end = 0.7 + 0.9 * np.asarray(stretch.z)[-1]
    assert np.mean(end != x) > 0.5
    assert np.mean(end) == pytest.approx(scipy.special.digamma(3.0), abs=4.0 * 0.63 / np.sqrt(CHAINS))
    assert np.var(end) == pytest.approx(scipy.special.polygamma(1, 3.0), abs=4.0 * 0.7 / np.sqrt(CHAINS))
    again = cloud(evaluate, FRAME, np.asarray(stretch.z)[-1])
    np.testing.assert_allclose(stretch.states.log_densities, again.log_densities, rtol=1e-10, atol=1e-10)
    np.testing.assert_allclose(stretch.states.scores, again.scores, rtol=1e-9, atol=1e-9)


def test_leaps_are_for_good_frames():
    good = cloud(Evaluations(TARGET, 128), FRAME, normal_points(128, 1, 0))
    narrow = AffineMap(jnp.array([0.7]), jnp.array([[0.2]]))
    bad = cloud(Evaluations(TARGET, 128), narrow, normal_points(128, 1, 0))
    assert leaping(good) and not leaping(bad)
    stuck = Cloud(np.array([[0.0]]), good.log_densities[:1] + 20.0, np.zeros((1, 1)))
    assert not leaping(good, stuck)
