"""Matching sets: what they hold averages exactly at a fixed point, and what they do not hold does not."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import steinmatch as sm
from steinmatch.targets import GaussBernoulliRBM, Gaussian


@pytest.fixture(scope="module")
def linear_fit():
    return sm.fit(Gaussian.random(jax.random.key(1), 4, 10.0), 20, kernel=sm.Linear())


def test_basis_is_the_stein_operator(linear_fit):
    matching, x = linear_fit.matching_set, np.array([[0.3, -1.0, 0.5, 2.0]])
    image = sm.stein_operator(sm.Linear().phi, linear_fit.target)(jnp.asarray(x[0]))
    np.testing.assert_allclose(matching.basis(x)[0], np.concatenate([[1.0], np.ravel(image)]), rtol=1e-12)
    assert matching.n_functions == 5 * 4 + 1 and matching.by_features


def test_quadratics_are_contained_and_cubics_are_not(linear_fit):
    matching = linear_fit.matching_set
    a = np.random.default_rng(0).normal(size=(4, 4))
    assert matching.contains(lambda x: x @ a @ x + x[0] - 3.0)
    assert not matching.contains(lambda x: x[0] ** 3)
    both = matching.contains(lambda x: jnp.stack([x[0] * x[1], x[0] ** 3]))
    np.testing.assert_array_equal(both, [True, False])


def test_distance_and_its_bound(linear_fit):
    """f = x_0^2 + 0.01 sin(5 x_1) is at most 0.01 from the set; its average is then off by at most 2 eps."""
    matching, target = linear_fit.matching_set, linear_fit.target
    f = lambda x: x[0] ** 2 + 0.01 * jnp.sin(5.0 * x[1])  # noqa: E731
    distance = matching.distance(f)
    assert 1e-4 < distance.error <= 0.0101 and float(distance) == distance.relative
    assert "probe" in distance.measured and distance.coefficients.shape == (5, 4)
    mean, cov = np.asarray(target.mean), np.asarray(target.cov)
    # E sin(5 x) = sin(5 m) exp(-25 v / 2) for x ~ N(m, v)
    truth = cov[0, 0] + mean[0] ** 2 + 0.01 * np.sin(5.0 * mean[1]) * np.exp(-12.5 * cov[1, 1])
    assert abs(linear_fit.expectation(f) - truth) <= distance.bound


def test_lemma_3_1_at_an_rbf_fixed_point():
    """Averages of P k(., x_i), and of any combination of them, vanish at the level of the velocity."""
    fit = sm.fit(Gaussian([0.0, 1.0], [[1.0, 0.3], [0.3, 2.0]]), 20, kernel=sm.RBF())
    matching = fit.matching_set
    assert not matching.by_features and fit.residual < 1e-7
    averages = matching.basis(fit.particles).mean(axis=0)
    assert averages[0] == 1.0 and np.abs(averages[1:]).max() <= 10.0 * fit.residual
    a = np.random.default_rng(0).normal(size=(len(averages) - 1, 10))
    assert np.abs(averages[1:] @ a).max() <= 100.0 * fit.residual
    section = lambda x: sm.stein_operator(lambda y: fit.kernel(y, fit.particles[3]), fit.target)(x)[1]  # noqa: E731
    assert matching.contains(section)


@pytest.mark.parametrize(
    "target", [Gaussian.random(jax.random.key(2), 6, 5.0), GaussBernoulliRBM.random(jax.random.key(3), 6, 3)]
)
def test_theorem_3_2_and_the_identity_under_p(target):
    """Combinations of P phi_l average to 0 over the particles at the residual reached, and over 10^6 draws of p to
    within their standard error; a function outside does not.
    """
    fit = sm.fit(target, 40, kernel=sm.LinearRandom(), max_seconds=60.0)
    matching = fit.matching_set
    a = np.random.default_rng(0).normal(size=(matching.n_functions - 1, 5))
    values = matching.basis(fit.particles)[:, 1:] @ a
    assert np.abs(values.mean(axis=0)).max() <= 1e3 * max(fit.residual, 1e-15)
    total, squares, n = np.zeros(5), np.zeros(5), 10**6
    for block in np.array_split(np.asarray(target.sample(jax.random.key(9), n)), 20):
        images = matching.basis(block)[:, 1:] @ a
        total, squares = total + images.sum(axis=0), squares + (images**2).sum(axis=0)
    assert (np.abs(total / n) <= 4.5 * np.sqrt(squares) / n).all()
    outside = lambda x: jnp.exp(0.5 * x[0]) * x[1] ** 3  # noqa: E731
    assert not matching.contains(outside)


def test_the_norm_bound_holds():
    """|average of sum_j c_j kappa(., y_j)| <= norm * KSD, since E_p kappa(., y) = 0; and the norm is sqrt(c^T K c)."""
    target = Gaussian([0.0, 0.0], np.eye(2))
    rng = np.random.default_rng(0)
    matching = sm.MatchingSet(target, sm.RBF(1.0), rng.normal(size=(30, 2)))
    points, c = rng.normal(size=(4, 2)), rng.normal(size=4)

    def section(x, y):  # kappa_p for N(0, I) and an RBF kernel of bandwidth 1, derived by hand: s = -x
        r = x - y
        return np.exp(-0.5 * r @ r) * (x @ y + x @ -r + y @ r + 2.0 - r @ r)

    gram = np.array([[section(x, y) for y in points] for x in points])
    np.testing.assert_allclose(matching.norm(points, c), np.sqrt(c @ gram @ c), rtol=1e-10)
    average = np.mean([sum(cj * section(x, y) for cj, y in zip(c, points, strict=True)) for x in matching.particles])
    assert abs(average) <= matching.worst_case(points, c)


def test_more_features_than_particles_fall_back_to_the_sections():
    matching = sm.MatchingSet(
        Gaussian(np.zeros(3), np.eye(3)), sm.Linear(), np.random.default_rng(0).normal(size=(2, 3))
    )
    assert not matching.by_features and matching.n_functions == 2 * 3 + 1
    assert "Lemma 3.1" in repr(matching)
