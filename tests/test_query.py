"""Queries: exact answers are known as exact, others carry an error that tells, and refining makes them exact."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import steinmatch as sm
from steinmatch.targets import Gaussian

TARGET = Gaussian.random(jax.random.key(1), 20, 10.0)
MEAN, COV = np.asarray(TARGET.mean), np.asarray(TARGET.cov)


@pytest.fixture(scope="module")
def fit():
    return sm.fit(TARGET, 60, kernel=sm.Linear())


def cubic(rng, d, mean, cov):
    """A random cubic and its mean: E[x_i x_j x_k] = m_i m_j m_k + m_i C_jk + m_j C_ik + m_k C_ij."""
    t = rng.normal(size=(d, d, d)) / d
    third = np.einsum("i,j,k", mean, mean, mean)
    third += np.einsum("i,jk->ijk", mean, cov) + np.einsum("j,ik->ijk", mean, cov) + np.einsum("k,ij->ijk", mean, cov)
    return lambda x: jnp.einsum("ijk,i,j,k", jnp.asarray(t), x, x, x), float(np.sum(t * third))


def test_quadratics_are_exact(fit):
    rng = np.random.default_rng(0)
    a, b = rng.normal(size=(3, 20, 20)), rng.normal(size=(3, 20))
    query = fit.query(lambda x: jnp.einsum("qij,i,j->q", jnp.asarray(a), x, x) + jnp.asarray(b) @ x)
    truth = np.einsum("qij,ij->q", a, COV + np.outer(MEAN, MEAN)) + b @ MEAN
    assert query.exact.all()
    np.testing.assert_allclose(query.estimate, truth, rtol=1e-10)
    assert (np.abs(query.estimate - truth) <= query.error).all() and (query.error <= 1e-9 * np.abs(truth)).all()
    assert "exact" in str(query)


@pytest.mark.slow
def test_a_cubic_is_not_exact_until_the_fit_is_refined_for_it(fit):
    f, truth = cubic(np.random.default_rng(1), 20, MEAN, COV)
    query = fit.query(f)
    assert not query.exact and query.distance > 0.01
    assert abs(query.estimate - truth) <= 3.0 * query.error
    refined = fit.refine_for(f)
    assert refined.converged and "for the query" in refined.reason
    better = refined.query(f)
    assert better.exact
    assert better.estimate == pytest.approx(truth, abs=1e-8 * abs(float(query.error)) + 1e-8)
    assert np.abs(refined.mean - MEAN).max() < 1e-8  # what was matched before still is


def test_cubics_are_exact_with_quadratic_features():
    target = Gaussian.random(jax.random.key(2), 3, 5.0)
    polynomial = sm.fit(target, 40, kernel=sm.Whitened(sm.Polynomial(2)))
    f, truth = cubic(np.random.default_rng(2), 3, np.asarray(target.mean), np.asarray(target.cov))
    query = polynomial.query(f)
    assert query.exact and query.estimate == pytest.approx(truth, rel=1e-9, abs=1e-9)


def test_refining_what_is_matched_changes_nothing(fit):
    same = fit.refine_for(lambda x: x[0] * x[1])
    assert same.particles is fit.particles and "no features beyond" in same.reason


def test_refining_a_full_rank_fit_replaces_its_kernel():
    target = Gaussian([0.0, 1.0], [[1.0, 0.3], [0.3, 2.0]])
    rbf = sm.fit(target, 25, kernel=sm.RBF(), max_steps=1200)
    refined = rbf.refine_for(lambda x: x[0] ** 4)
    query = refined.query(lambda x: x[0] ** 4)
    assert query.exact and query.estimate == pytest.approx(3.0, rel=1e-9)  # E x^4 = 3 for N(0, 1)


def test_smooth_queries_of_a_skewed_target_gain_from_the_stein_equation():
    """log of gamma variables of shapes 1.5 and 3: E x^2 = trigamma(a) + digamma(a)^2, E exp(x / 2) by gammas."""
    shapes = jnp.array([1.5, 3.0])
    target = sm.Target(lambda x: jnp.sum(shapes * x - jnp.exp(x)), dim=2)
    fit = sm.fit(target, 80, kernel=sm.Whitened(sm.Polynomial(2)))
    query = fit.query(lambda x: jnp.stack([x[0] ** 2, jnp.exp(0.5 * x[1]), jnp.exp(x[0])]))
    truth = np.array([0.9348022005446793 + 0.03648997397857652**2, 3.3233509704478426 / 2.0, 1.5])
    off, average_off = np.abs(query.estimate - truth), np.abs(query.average - truth)
    assert (off <= 2.0 * query.error).all()
    assert (off[:2] < 0.5 * average_off[:2]).all()
    np.testing.assert_array_equal(query.exact, [False, False, True])  # exp(x_0) = 1.5 - s_0 is a Stein image


def test_discontinuous_queries_get_an_honest_error(fit):
    query = fit.query(lambda x: jnp.where(x[0] > MEAN[0] + 0.5 * np.sqrt(COV[0, 0]), 1.0, 0.0))
    assert not query.exact
    assert abs(query.estimate - 0.30853754) <= 2.0 * query.error  # 1 - Phi(1/2)
    assert 0.01 < query.error < 0.3


def test_too_few_particles_to_tell_an_error():
    single = sm.fit(Gaussian([0.0, 1.0], np.eye(2)), 1, kernel=sm.RBF(1.0))
    query = single.query(lambda x: x[0] ** 2)
    assert not query.exact and query.error == np.inf and query.estimate == query.average
