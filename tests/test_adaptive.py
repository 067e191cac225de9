"""The automatic fit: its equations against autodiff, its accuracy against quadrature, its verdicts on hard shapes."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import steinmatch as sm
from steinmatch.adaptive.automatic import normal_points
from steinmatch.adaptive.choice import first_features, next_features, of_degree
from steinmatch.adaptive.level import secant
from steinmatch.adaptive.monomials import Linearised, Monomials
from steinmatch.features import Polynomial, Products
from steinmatch.targets import Evaluations


def skewed(x):
    """A 2-D logistic regression of few observations."""
    rows = jnp.array([[1.0, 2.0], [1.0, -1.0], [0.5, 1.5], [-1.0, 0.3], [2.0, 0.1]])
    return jnp.sum(jax.nn.log_sigmoid(rows @ x)) - 0.125 * jnp.sum(x**2)


def by_quadrature(log_density, f, width=12.0, points=401):
    """E_p f on a fine grid."""
    axis = np.linspace(-width, width, points)
    grid = np.stack(np.meshgrid(axis, axis, indexing="ij"), axis=-1).reshape(-1, 2)
    logs = np.asarray(jax.vmap(log_density)(jnp.asarray(grid)))
    weights = np.exp(logs - logs.max())
    return (weights / weights.sum()) @ np.asarray(f(grid))


@pytest.fixture(scope="module")
def monomials():
    return Monomials(first_features(3) + of_degree(3, 2) + of_degree(3, 3) + [((1, 4),)], 3)


def test_monomials_are_the_features_of_the_kernel(monomials):
    z = np.random.default_rng(0).normal(size=(7, 3))
    kernel = Products(monomials.exponents, monomials.variables)
    expected = jax.vmap(kernel.phi)(jnp.asarray(z))
    np.testing.assert_allclose(monomials.values(z).T, expected, rtol=1e-12, atol=1e-12)
    full = Monomials([m for k in range(4) for m in of_degree(3, k)], 3)
    np.testing.assert_allclose(full.values(z).T, jax.vmap(Polynomial(3).phi)(jnp.asarray(z)), rtol=1e-12, atol=1e-12)


def test_residual_and_jacobian_agree_with_autodiff(monomials):
    rng = np.random.default_rng(1)
    z, scores, v = rng.normal(size=(3, 7, 3))
    slopes = rng.normal(size=(7, 3, 3))
    scale = rng.uniform(0.5, 2.0, size=len(monomials))
    kernel = Products(monomials.exponents, monomials.variables)

    def equations(step):
        points, s = z + step, scores + jnp.einsum("nij,ni->nj", slopes, step)
        phi, gradient = jax.vmap(kernel.phi)(points), jax.vmap(jax.jacfwd(kernel.phi))(points)
        return (phi.T @ s + gradient.sum(axis=0)) / 7 / scale[:, None]

    value, change = jax.jvp(equations, (jnp.zeros((7, 3)),), (jnp.asarray(v),))
    here = Linearised(monomials, z, scores, slopes, scale)
    np.testing.assert_allclose(here.value, value, rtol=1e-10, atol=1e-12)
    np.testing.assert_allclose(here.push(v), change, rtol=1e-10, atol=1e-12)
    u = rng.normal(size=value.shape)
    np.testing.assert_allclose(np.vdot(here.pull(u), v), np.vdot(u, here.push(v)), rtol=1e-10)


def test_least_change_solves_the_damped_system(monomials):
    rng = np.random.default_rng(2)
    z, scores = rng.normal(size=(2, 40, 3))
    here = Linearised(monomials, z, scores, -np.broadcast_to(np.eye(3), (40, 3, 3)), np.ones(len(monomials)))
    step = here.least_change(1e-6, 5000, 1e-12)
    np.testing.assert_allclose(here.push(step), -here.value, atol=1e-3 * np.abs(here.value).max())


def test_secant_explains_the_last_move():
    rng = np.random.default_rng(3)
    slopes, step, change = rng.normal(size=(5, 3, 3)), rng.normal(size=(5, 3)), rng.normal(size=(5, 3))
    updated = secant(slopes, step, change)
    np.testing.assert_allclose(np.einsum("nij,ni->nj", updated, step), change, rtol=1e-12)


def test_hessians_exact_and_by_differences():
    target = sm.Target(skewed, dim=2)
    x = np.random.default_rng(4).normal(size=(70, 2))
    exact = Evaluations(target)
    expected = jax.vmap(jax.hessian(skewed))(jnp.asarray(x))
    np.testing.assert_allclose(exact.hessians(x), expected, rtol=1e-10, atol=1e-12)
    assert exact.n_hvps == 140
    gradient = jax.jit(jax.grad(skewed))
    blind = Evaluations(sm.Target(score=lambda x: np.asarray(gradient(np.asarray(x))), dim=2))
    np.testing.assert_allclose(blind.hessians(x), expected, rtol=1e-6, atol=1e-8)
    assert blind.n_hvps == 0 and blind.n_gradients == 280


def test_points_have_mean_zero_and_covariance_one_exactly():
    z = normal_points(61, 5, 0)
    assert z.shape == (62, 5)
    np.testing.assert_allclose(z.mean(axis=0), 0.0, atol=1e-14)
    np.testing.assert_allclose(z.T @ z / 62, np.eye(5), atol=1e-12)


def test_features_of_large_targets_are_those_that_matter():
    """A funnel of 40 variables: the scale's products with all others come first."""
    rng = np.random.default_rng(5)
    z = rng.normal(size=(400, 40))
    scores = -z.copy()
    scores[:, 1:] *= (1.0 + 0.5 * z[:, :1]) ** 2
    chosen = next_features(first_features(40), 1, z, scores)
    pairs = {m for m in chosen if len(m) == 2}
    assert pairs >= {((0, 1), (i, 1)) for i in range(1, 40)}
    assert len(chosen) < 250


@pytest.mark.parametrize("seed", [0, 1])
def test_a_gaussian_is_exact_and_soon(seed):
    target = sm.targets.Gaussian.random(jax.random.key(seed), 6, 50.0)
    fit = sm.fit(target, seed=seed)
    sd = np.sqrt(np.diagonal(np.asarray(target.cov)))
    assert fit.converged and fit.error is not None and len(fit.levels) == 2
    np.testing.assert_allclose((fit.mean - np.asarray(target.mean)) / sd, 0.0, atol=0.005)
    np.testing.assert_allclose(fit.sd / sd, 1.0, atol=0.005)


@pytest.fixture(scope="module")
def skewed_fit():
    return sm.fit(sm.Target(skewed, dim=2))


def test_a_skewed_posterior_against_quadrature(skewed_fit):
    mean = by_quadrature(skewed, lambda x: x)
    sd = np.sqrt(by_quadrature(skewed, lambda x: x**2) - mean**2)
    error = np.abs(skewed_fit.mean - mean) / sd, np.abs(skewed_fit.sd / sd - 1.0)
    assert skewed_fit.converged
    assert max(map(np.max, error)) <= 0.02
    assert np.all(error[0] <= 2.0 * skewed_fit.error.mean) and np.all(error[1] <= 2.0 * skewed_fit.error.sd)


def test_levels_and_summary_tell_the_story(skewed_fit):
    assert [level.name for level in skewed_fit.levels[:2]] == ["affine", "level 1"]
    assert skewed_fit.levels[-1].residual <= 0.02
    assert "error of mean" in str(skewed_fit.summary())
    assert skewed_fit.summary()["x[0]"]["error"] > 0.0
    assert skewed_fit.certificate.rank_condition
    np.testing.assert_allclose(skewed_fit.certificate.residual, skewed_fit.residual, rtol=0.5)


def test_same_seed_same_particles(skewed_fit):
    again = sm.fit(sm.Target(skewed, dim=2))
    np.testing.assert_array_equal(again.particles, skewed_fit.particles)


def test_a_score_is_enough(skewed_fit):
    fit = sm.fit(sm.Target(score=jax.grad(skewed), dim=2))
    np.testing.assert_allclose(fit.mean, skewed_fit.mean, atol=0.02)


def test_four_separate_modes_are_called_multimodal():
    means = np.array([[-8.0, -8.0], [-8.0, 8.0], [8.0, -8.0], [8.0, 8.0]])
    fit = sm.fit(sm.targets.GaussianMixture(means))
    assert not fit.converged
    assert "multimodal" in fit.reason


def test_a_funnel_is_not_called_converged():
    def funnel(x):
        return -(x[0] ** 2) / 18.0 - 0.5 * jnp.sum(x[1:] ** 2) * jnp.exp(-x[0]) - 0.5 * (x.shape[0] - 1) * x[0]

    fit = sm.fit(sm.Target(funnel, dim=5))
    assert not fit.converged
    assert "funnel" in fit.reason
    assert np.isfinite(fit.particles).all()


def test_cauchy_tails_are_named():
    fit = sm.fit(sm.Target(lambda x: -jnp.sum(jnp.log1p(x**2)), dim=2))
    assert not fit.converged
    assert "heavy tails" in fit.reason


def test_light_tails_are_not_called_heavy():
    fit = sm.fit(sm.Target(lambda x: -3.0 * jnp.sum(jnp.log1p(x**2 / 5.0)), dim=2))
    assert "heavy" not in fit.reason


def test_the_budget_bounds_the_work():
    fit = sm.fit(sm.Target(skewed, dim=2), max_gradients=500)
    assert not fit.converged and "max_gradients=500" in fit.reason
    assert fit.n_gradients < 1500 and np.isfinite(fit.particles).all()


def test_a_start_without_a_finite_density_is_an_error():
    with pytest.raises(ValueError, match="not finite"):
        sm.fit(sm.Target(lambda x: jnp.log(-1.0 - jnp.sum(x**2)), dim=2))


def test_the_tolerance_is_checked():
    with pytest.raises(ValueError, match="tol"):
        sm.fit(sm.Target(skewed, dim=2), tol=-1.0)
