"""KSD and MMD against closed forms and large samples."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import steinmatch as sm
from steinmatch.targets import GaussBernoulliRBM, Gaussian, GaussianMixture

KEY = jax.random.key(0)


def test_ksd_of_one_point_under_rbf():
    """One point x, N(0, 1), RBF h: kappa(x, x) = s^2 + 1 / h^2 with s = -x."""
    target = Gaussian([0.0], [[1.0]])
    got = sm.ksd_squared(target, [[1.5]], kernel=sm.RBF(bandwidth=0.7))
    assert got == pytest.approx(1.5**2 + 1 / 0.49, rel=1e-13)


def test_u_statistic_is_unbiased_for_exact_draws():
    """Mean zero over repetitions, within four standard errors, and the V-statistic is not."""
    target = Gaussian.random(KEY, dim=3, condition_number=5.0)
    values = np.array(
        [sm.ksd_squared(target, target.sample(jax.random.key(i), 50), sm.IMQ(1.0), statistic="u") for i in range(60)]
    )
    assert abs(values.mean()) < 4 * values.std() / np.sqrt(60)
    assert sm.ksd_squared(target, target.sample(KEY, 50), sm.IMQ(1.0)) > 5 * abs(values.mean())


def test_ksd_default_is_imq():
    target = Gaussian([0.0, 0.0], np.eye(2))
    x = target.sample(KEY, 30)
    assert sm.ksd(target, x) == sm.ksd(target, x, kernel=sm.IMQ())


def test_blocked_ksd_is_the_whole(monkeypatch):
    target = GaussianMixture.random(KEY, dim=3)
    x = target.sample(KEY, 101)
    whole = sm.ksd_squared(target, x, kernel=sm.Matern(2.5))
    monkeypatch.setattr("steinmatch._linalg.BLOCK_ENTRIES", 700)
    jax.clear_caches()
    assert sm.ksd_squared(target, x, kernel=sm.Matern(2.5)) == pytest.approx(whole, rel=1e-13)


def test_random_feature_ksd_tends_to_the_kernels():
    """Its mean over features is KSD^2 under RBF: four standard errors over 40 seeds of 50 features."""
    target = Gaussian.random(KEY, dim=2, condition_number=3.0)
    x = target.sample(jax.random.key(1), 40) + 0.3
    exact = sm.ksd_squared(target, x, kernel=sm.RBF(bandwidth=1.2))
    values = np.array([sm.ksd_random_features(target, x, 50, bandwidth=1.2, seed=i) ** 2 for i in range(40)])
    assert abs(values.mean() - exact) < 4 * values.std() / np.sqrt(40)
    assert values.std() / np.sqrt(40) < 0.1 * exact


def test_mmd_of_one_point_in_one_dimension_by_hand():
    """x = 0, p = N(0, s^2), k = exp(-r^2 / 2 h^2): with a = s^2 / h^2,

    MMD^2 = 1 - 2 E k(0, Y) + E k(Y, Y') = 1 - 2 / sqrt(1 + a) + 1 / sqrt(1 + 2 a).
    """
    variance, h = 4.0, 1.5
    a = variance / h**2
    want = np.sqrt(1 - 2 / np.sqrt(1 + a) + 1 / np.sqrt(1 + 2 * a))
    assert sm.mmd(Gaussian([0.0], [[variance]]), [[0.0]], bandwidth=h) == pytest.approx(want, rel=1e-13)


@pytest.mark.parametrize(
    "target",
    [
        Gaussian.random(KEY, dim=3, condition_number=30.0),
        GaussianMixture([[0.0, 1.0], [3.0, -1.0]], weights=[0.3, 0.7]),
        GaussBernoulliRBM.random(KEY, dim=4, hidden=3),
    ],
    ids=["gaussian", "mixture", "rbm"],
)
def test_closed_form_mmd_is_that_of_a_large_sample(target):
    """The sample form carries (1 - E k) / m of bias in MMD^2, and noise of about the same size, at m draws."""
    particles = target.sample(jax.random.key(5), 25) + 0.4
    h = float(np.sqrt(np.trace(target.cov)))
    closed = sm.mmd(target, particles)
    estimates = [sm.mmd(target.sample(jax.random.key(i), 5000), particles, bandwidth=h) for i in range(6)]
    error = np.std(estimates) / np.sqrt(6) + 0.5 / 5000 / closed
    assert abs(np.mean(estimates) - closed) < 4 * error
    assert error < 0.05 * closed


def test_mmd_weights_are_repetitions():
    target = GaussBernoulliRBM.random(KEY, dim=3, hidden=2)
    x = target.sample(KEY, 6)
    counts = np.array([1, 2, 3, 1, 2, 3])
    repeated = sm.mmd(target, np.repeat(x, counts, axis=0))
    assert sm.mmd(target, x, weights=counts.astype(float)) == pytest.approx(repeated, rel=1e-12)


def test_mmd_default_bandwidth_depends_on_the_target_alone():
    target = Gaussian.random(KEY, dim=3, condition_number=4.0)
    x = target.sample(KEY, 9)
    assert sm.mmd(target, x) == sm.mmd(target, x, bandwidth=float(np.sqrt(np.trace(target.cov))))


def test_exact_draws_have_smaller_discrepancies_than_shifted_ones():
    target = GaussBernoulliRBM.random(KEY, dim=5, hidden=3)
    x = target.sample(KEY, 200)
    for measure in (sm.ksd, sm.mmd, sm.ksd_random_features):
        assert measure(target, x) < 0.5 * measure(target, x + 1.0)


def test_user_target_has_no_closed_form_mmd():
    target = sm.Target(lambda x: -0.5 * jnp.sum(x**2), dim=1)
    with pytest.raises(TypeError, match="neither a closed form nor exact draws"):
        sm.mmd(target, [[0.0]])


MEASURES = {
    "velocity": lambda target, x: sm.velocity(target, sm.RBF(), x),
    "stein_residual": lambda target, x: sm.stein_residual(target, sm.Linear(), x),
    "ksd": lambda target, x: sm.ksd(target, x),
    "mmd": lambda target, x: sm.mmd(target, x),
}


@pytest.mark.parametrize("name", MEASURES)
def test_measures_are_functions_that_jax_can_transform(name):
    """jit and vmap against the plain call, grad against central differences."""
    target = sm.targets.Gaussian(np.zeros(2), np.eye(2))
    x = np.random.default_rng(0).normal(size=(6, 2))
    measure = lambda x: MEASURES[name](target, x)  # noqa: E731
    np.testing.assert_allclose(jax.jit(measure)(x), measure(x), rtol=1e-12)
    np.testing.assert_allclose(jax.vmap(measure)(np.stack([x, 2.0 * x]))[1], measure(2.0 * x), rtol=1e-12)
    step = np.zeros_like(x)
    step[2, 1] = 1e-6
    total = lambda x: jnp.sum(jnp.asarray(measure(x)))  # noqa: E731
    difference = (total(x + step) - total(x - step)) / 2e-6
    np.testing.assert_allclose(jax.grad(total)(jnp.asarray(x))[2, 1], difference, rtol=1e-6, atol=1e-8)


def test_weights_that_overflow_complex_numbers_and_masks_are_refused():
    target = sm.targets.Gaussian(np.zeros(2), np.eye(2))
    x = np.zeros((3, 2))
    with pytest.raises(ValueError, match="weights must have a finite sum"):
        sm.ksd(target, x, weights=np.full(3, 1e308))
    with pytest.raises(ValueError, match="must be an array of numbers"):
        sm.ksd(target, x + 1j)
    with pytest.raises(ValueError, match="1 values are masked"):
        sm.ksd(target, np.ma.masked_array(x, mask=np.array([[0, 0], [0, 1], [0, 0]], bool)))
