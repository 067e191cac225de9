"""Bandwidth rules against NumPy, and the median against NumPy's."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import steinmatch as sm
from steinmatch._linalg import median
from tests.registry import numpy_median_bandwidth

jitted_median = jax.jit(median)


@given(st.lists(st.floats(-1e6, 1e6), min_size=16, max_size=16), st.integers(1, 16))
def test_median_is_numpys(values, kept):
    mask = np.arange(16) < kept
    got = float(jitted_median(jnp.asarray(values), jnp.asarray(mask)))
    assert got == pytest.approx(float(np.median(np.array(values)[mask])), rel=1e-15, abs=1e-300)


@given(st.lists(st.integers(0, 3), min_size=12, max_size=12))
def test_median_with_ties(values):
    got = float(jitted_median(jnp.asarray(values, jnp.float64), jnp.ones(12, bool)))
    assert got == np.median(values)


@pytest.mark.parametrize("n", [2, 3, 40])
def test_median_rule(n):
    x = np.asarray(jax.random.normal(jax.random.key(n), (n, 3))) + 5.0
    assert float(sm.Median()(jnp.asarray(x))) == pytest.approx(numpy_median_bandwidth(x), rel=1e-12)


def test_median_rule_of_many_points_takes_a_fixed_subsample():
    x = np.asarray(jax.random.normal(jax.random.key(0), (3000, 2)))
    chosen = x[np.linspace(0, 2999, 1000).astype(int)]
    squares = np.sum((chosen[:, None] - chosen[None]) ** 2, -1)[np.triu_indices(1000, 1)]
    want = np.sqrt(np.median(squares) / (2 * np.log(3001)))
    assert float(sm.Median()(jnp.asarray(x))) == pytest.approx(want, rel=1e-12)


def test_median_rule_of_one_point_and_of_coinciding_points_is_positive():
    assert float(sm.Median()(jnp.ones((1, 4)))) == 1.0
    assert float(sm.Median()(jnp.full((7, 2), 3.3))) == 1.0
    mostly = jnp.concatenate([jnp.zeros((20, 2)), 1e-3 * jnp.ones((2, 2))])
    assert 0.0 < float(sm.Median()(mostly)) < 1e-3


def test_fixed():
    assert float(sm.Fixed(0.3)(jnp.ones((5, 2)))) == 0.3
