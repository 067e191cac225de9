"""Targets: closed forms against autodiff, enumeration, and samples."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import steinmatch as sm
from steinmatch.targets import GaussBernoulliRBM, Gaussian, GaussianMixture

KEY = jax.random.key(0)
TARGETS = {
    "gaussian": Gaussian.random(KEY, dim=4, condition_number=20.0),
    "mixture": GaussianMixture.random(KEY, dim=3, alpha=3.0, components=5),
    "weighted mixture": GaussianMixture([[0.0, 1.0], [2.0, -1.0]], weights=[3.0, 1.0]),
    "rbm": GaussBernoulliRBM.random(KEY, dim=5, hidden=3),
}
every_target = pytest.mark.parametrize("name", TARGETS)


@every_target
def test_score_is_the_gradient_of_the_log_density(name):
    target = TARGETS[name]
    for x in target.sample(jax.random.key(1), 5):
        np.testing.assert_allclose(target.score(x), jax.grad(target.log_density)(x), rtol=1e-12, atol=1e-13)


@every_target
def test_moments_are_those_of_the_samples(name):
    target = TARGETS[name]
    draws = target.sample(jax.random.key(2), 200_000)
    error = np.sqrt(np.diagonal(target.cov) / len(draws))
    assert (np.abs(draws.mean(0) - target.mean) < 5 * error).all()
    np.testing.assert_allclose(np.cov(draws.T), target.cov, atol=0.02 * np.trace(target.cov))
    np.testing.assert_allclose(target.second_moment, target.mean**2 + np.diagonal(target.cov), rtol=1e-14)


@every_target
def test_mixture_form_is_the_density(name):
    """sum_c w_c N(x; m_c, C), in NumPy, has the target's log density up to a constant."""
    target = TARGETS[name]
    mixture = target.as_mixture()
    precision = np.linalg.inv(mixture.cov)
    differences = []
    for x in target.sample(jax.random.key(3), 6):
        centred = x - mixture.means
        terms = np.log(mixture.weights) - 0.5 * np.einsum("cd,de,ce->c", centred, precision, centred)
        differences.append(np.logaddexp.reduce(terms) - float(target.log_density(x)))
    np.testing.assert_allclose(differences, differences[0], rtol=0, atol=1e-10)


def test_rbm_moments_are_brute_force_enumeration():
    """By hand: p(x) = sum_h w_h N(x; b + B h, I), w_h ~ exp(c.h + |b + B h|^2 / 2), summed in a plain loop."""
    rbm = GaussBernoulliRBM.random(jax.random.key(5), dim=4, hidden=6)
    total, mean, second = 0.0, np.zeros(4), np.zeros(4)
    for hidden in itertools.product([-1, 1], repeat=6):
        centre = rbm.b + rbm.B @ np.array(hidden)
        weight = np.exp(rbm.c @ np.array(hidden) + 0.5 * centre @ centre)
        total += weight
        mean += weight * centre
        second += weight * (centre**2 + 1.0)
    np.testing.assert_allclose(rbm.mean, mean / total, rtol=1e-12)
    np.testing.assert_allclose(rbm.second_moment, second / total, rtol=1e-12)


@pytest.mark.parametrize("condition", [1.0, 10.0, 100.0, 1000.0])
def test_condition_number_is_exact(condition):
    target = Gaussian.random(jax.random.key(11), dim=100, condition_number=condition)
    values = np.linalg.eigvalsh(target.cov)
    assert values[-1] / values[0] == pytest.approx(condition, rel=1e-8)
    assert values[0] >= 1.0 - 1e-9
    assert (np.abs(target.mean) <= 3.0).all()


def test_draws_without_the_condition_number_are_redrawn():
    """In two dimensions the spectrum of most draws is too narrow for 1000; each result still has it."""
    for seed in range(5):
        values = np.linalg.eigvalsh(Gaussian.random(jax.random.key(seed), dim=2, condition_number=1000.0).cov)
        assert values[-1] / values[0] == pytest.approx(1000.0, rel=1e-8)


def test_random_models_are_the_papers():
    rbm = GaussBernoulliRBM.random(KEY)
    assert rbm.B.shape == (100, 10) and set(np.unique(np.abs(rbm.B))) == {0.1}
    mixture = GaussianMixture.random(KEY, alpha=2.0)
    assert mixture.means.shape == (15, 100) and mixture.means.min() >= 0 and mixture.means.max() <= 2.0
    np.testing.assert_allclose(mixture.weights, 1 / 15)


def test_tempered_interpolates_the_log_densities():
    p0, p = Gaussian(np.zeros(2), 100 * np.eye(2)), TARGETS["weighted mixture"]
    x = jnp.asarray([0.4, -0.3])
    for t in (0.0, 0.3, 1.0):
        path = sm.tempered(p0, p, t)
        want = (1 - t) * p0.log_density(x) + t * p.log_density(x)
        assert float(path.log_density(x)) == pytest.approx(float(want), rel=1e-14)
        np.testing.assert_allclose(path.score(x), jax.grad(path.log_density)(x), rtol=1e-12)


def test_a_score_alone_is_enough():
    target = sm.Target(score=lambda x: -x, dim=2)
    assert target.log_density is None and target.differentiable
    np.testing.assert_allclose(target.score(jnp.asarray([1.0, 2.0])), [-1.0, -2.0])


def test_a_callback_score_is_allowed_and_marked():
    def score(x):
        return jax.pure_callback(lambda x: -x, jax.ShapeDtypeStruct((2,), np.float64), x, vmap_method="sequential")

    assert not sm.Target(score=score, dim=2).differentiable


def test_a_numpy_score_is_called_on_the_host_and_marked():
    target = sm.Target(score=lambda x: -np.asarray(x, np.float64) / 4.0, dim=1)
    assert not target.differentiable
    fit = sm.fit(target, 10, kernel=sm.Linear(), solver=sm.Descent(n_steps=500))
    np.testing.assert_allclose(fit.cov, [[4.0]], atol=1e-4)


def test_two_targets_of_one_function_are_equal_to_the_compiler():
    def log_density(x):
        return -0.5 * jnp.sum(x**2)

    first, second = (jax.tree.flatten(sm.Target(log_density, dim=2)) for _ in range(2))
    assert first == second
