"""Certificates: what they say of exact draws, of fixed points, and of wrong and collapsed particles."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import steinmatch as sm
from steinmatch.targets import Gaussian

TARGET = Gaussian.random(jax.random.key(10), 10, 10.0)
SD, MEAN = np.sqrt(np.diag(TARGET.cov)), np.asarray(TARGET.mean)


@pytest.fixture(scope="module")
def draws():
    return np.asarray(TARGET.sample(jax.random.key(0), 1000))


def test_stein_ess_of_independent_draws_is_their_number():
    """Ratio of means over 50 repetitions: E|G|^2 = E|P phi|^2 / n, so the mean of 1 / ess is 1 / n."""
    inverse, inside = [], []
    for seed in range(50):
        ess = sm.stein_ess(TARGET, TARGET.sample(jax.random.key(seed), 200))
        inverse.append(1.0 / ess.value)
        inside.append(ess.interval[0] < 200 < ess.interval[1])
    assert 1.0 / np.mean(inverse) == pytest.approx(200, rel=0.2)
    assert np.mean(inside) >= 0.75  # of a 90 % interval


def test_stein_ess_of_a_fixed_point_is_larger(draws):
    fit = sm.fit(TARGET, 60, kernel=sm.LinearRandom())
    assert fit.certificate.stein_ess > 120
    assert fit.certificate.stein_ess == pytest.approx(sm.stein_ess(TARGET, fit.particles).value, rel=1e-9)


@pytest.mark.parametrize("spread", [0.0, 1e-6, 1e-3])
def test_collapsed_particles_are_worth_one_draw(draws, spread):
    certificate = sm.certify(TARGET, sm.Linear(), MEAN + spread * (draws - MEAN))
    assert certificate.stein_ess == pytest.approx(1.0, abs=0.1)
    assert certificate.residual == pytest.approx(1.0, abs=0.05)
    assert "NOT matched" in certificate.matched
    assert np.isfinite([certificate.residual_rms, certificate.velocity, *certificate.stein_ess_interval]).all()


def test_particles_at_one_point_off_the_mode_are_worth_exactly_one_draw():
    """There |G(w)|^2 = |P phi_w|^2 for every w, so the closed form of the latter must meet the residual."""
    ess = sm.stein_ess(TARGET, np.tile(MEAN + SD * np.linspace(-2.0, 2.0, 10), (30, 1)))
    assert ess.value == pytest.approx(1.0, abs=1e-9)


def test_the_table_claims_no_moments_of_a_target_that_is_not_gaussian():
    target = sm.Target(lambda x: jnp.sum(1.5 * x - jnp.exp(x)), dim=2)
    text = str(sm.fit(target, 20, kernel=sm.Linear()).certificate)
    assert "linear identities" in text and "mean off" not in text and "Gaussian target" not in text


def test_wrong_draws_show(draws):
    right = sm.certify(TARGET, sm.Linear(), draws)
    shifted = sm.certify(TARGET, sm.Linear(), draws + 0.2 * SD)
    wide = sm.certify(TARGET, sm.Linear(), MEAN + np.sqrt(1.2) * (draws - MEAN))
    assert right.stein_ess > 700 and right.residual < 0.15
    assert shifted.stein_ess < 200 and shifted.residual > 0.3 and shifted.shift > 0.3
    assert wide.residual > right.residual + 0.1
    assert right.variance_ratio == pytest.approx(1.0, abs=0.05)
    assert wide.variance_ratio == pytest.approx(1.2, abs=0.06)


def test_a_fixed_point_of_a_gaussian_is_certified():
    fit = sm.fit(TARGET, 30, kernel=sm.Linear())
    certificate = fit.certificate
    assert certificate.rank_condition and certificate.rank == certificate.n_features == 11
    assert certificate.residual == pytest.approx(fit.residual, rel=0.5, abs=1e-14)
    assert certificate.matched.startswith("all polynomials of degree <= 2 of a Gaussian target")
    phi = np.column_stack([np.ones(30), fit.particles])
    values = np.linalg.svd(phi / np.linalg.norm(phi, axis=0), compute_uv=False)
    np.testing.assert_allclose(np.array(certificate.singular_values), values[[-1, 0]], rtol=1e-10)
    text = str(certificate)
    for part in ("rank condition", "met", "scaled residual", "matched", "KSD", "independent draws"):
        assert part in text


def test_gaussianity_is_claimed_only_where_it_is_known():
    density = sm.Target(lambda x: -0.5 * jnp.sum(x**2), dim=3)
    certificate = sm.fit(density, 12, kernel=sm.Linear()).certificate
    assert "Gaussian target" not in certificate.matched
    assert certificate.matched.startswith("the Stein images of 4 linear features")
    both = sm.fit(Gaussian(np.zeros(3), np.eye(3)), 12, kernel=sm.LinearRandom()).certificate
    assert both.n_features == 12 and "degree <= 2 of a Gaussian target" in both.matched


def test_failed_rank_condition_and_full_rank_kernels():
    x = np.random.default_rng(0).normal(size=(4, 10))
    certificate = sm.certify(TARGET, sm.Linear(), x)
    assert not certificate.rank_condition and certificate.rank == 4 and "not met" in certificate.matched
    assert "NOT met" in str(certificate)
    full = sm.certify(TARGET, sm.RBF(), x)
    assert full.rank is None and full.n_features is None and "kernel sections" in full.matched


def test_weights_count(draws):
    """Weights 2 and 0 on pairs are the same particles as the first half twice."""
    weights = np.r_[np.ones(500), np.zeros(500)]
    weighted, half = sm.certify(TARGET, sm.Linear(), draws, weights), sm.certify(TARGET, sm.Linear(), draws[:500])
    assert weighted.residual == pytest.approx(half.residual, rel=1e-10)
    assert weighted.stein_ess == pytest.approx(half.stein_ess, rel=1e-10)
    assert weighted.ksd == pytest.approx(half.ksd, rel=0.2)  # its bandwidth is a median over all particles
