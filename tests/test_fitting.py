"""fit with descent: exact moments, determinism, precision, compilation, what a Fit offers."""

import contextlib

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import steinmatch as sm
from steinmatch.targets import Gaussian

STANDARD = Gaussian([0.5, -1.0], [[1.0, 0.4], [0.4, 2.0]])


@contextlib.contextmanager
def counted_compilations():
    """The list of compilations that happen inside."""
    events, live = [], [True]

    def listen(name, *_args, **_kwargs):
        if live[0] and name == "/jax/core/compile/backend_compile_duration":
            events.append(name)

    jax.monitoring.register_event_duration_secs_listener(listen)
    yield events
    live[0] = False


def numpy_scaled_residual(fit, scores):
    """Linear features: G L / sd in NumPy, from the definition."""
    x, n = fit.particles, len(fit.particles)
    phi = np.column_stack([np.ones(n), x])
    gradient = np.vstack([np.zeros(x.shape[1]), np.eye(x.shape[1])])
    residual = phi.T @ scores / n + gradient
    sd = np.concatenate([[1.0], x.std(0)])
    return residual @ np.linalg.cholesky(np.cov(x.T, ddof=0)) / sd[:, None]


@pytest.fixture(scope="module")
def linear_fit():
    return sm.fit(STANDARD, 30, kernel=sm.Linear(), solver=sm.Descent(), progress=False)


def test_linear_kernel_reproduces_a_gaussian(linear_fit):
    assert linear_fit.converged and "below its tolerance" in linear_fit.reason
    np.testing.assert_allclose(linear_fit.mean, STANDARD.mean, atol=1e-6)
    np.testing.assert_allclose(linear_fit.cov, STANDARD.cov, atol=1e-6)


def test_one_dimensional_gaussian_to_five_digits():
    fit = sm.fit(Gaussian([1.0], [[4.0]]), 20, kernel=sm.Linear(), solver=sm.Descent())
    assert fit.mean[0] == pytest.approx(1.0, abs=1e-5) and fit.cov[0, 0] == pytest.approx(4.0, abs=1e-5)


@pytest.mark.parametrize("kernel", [sm.RBF(), sm.IMQ(), sm.Matern(2.5)], ids=["rbf", "imq", "matern"])
def test_one_particle_finds_the_mode(kernel):
    """n = 1 and grad k(x, x) = 0: SVGD is gradient ascent; the mode of 3 x - 2 exp(x) is log(3 / 2)."""

    def log_density(x):
        return jnp.sum(3.0 * x - 2.0 * jnp.exp(x))

    fit = sm.fit(sm.Target(log_density, dim=2), 1, kernel=kernel, solver=sm.Descent(n_steps=4000), seed=1)
    np.testing.assert_allclose(fit.mean, np.log(1.5), atol=1e-6)


def test_one_particle_of_the_linear_kernel_has_its_own_fixed_point():
    """k(x, y) = 1 + x y has a gradient at x = y: for N(1, 1) the fixed point solves (1 - x)(1 + x^2) + x = 0."""
    fit = sm.fit(Gaussian([1.0], [[1.0]]), 1, kernel=sm.Linear(), progress=False)
    x = fit.particles[0, 0]
    assert (1 - x) * (1 + x**2) + x == pytest.approx(0.0, abs=1e-6)


def test_reported_residual_is_the_definition(linear_fit):
    scores = -(linear_fit.particles - STANDARD.mean) @ np.linalg.inv(STANDARD.cov)
    want = np.max(np.abs(numpy_scaled_residual(linear_fit, scores)))
    assert linear_fit.residual == pytest.approx(want, rel=1e-3, abs=1e-13)
    start = sm.fit(STANDARD, 30, kernel=sm.Linear(), solver=sm.Descent(n_steps=1), progress=False)
    scores = -(start.particles - STANDARD.mean) @ np.linalg.inv(STANDARD.cov)
    assert start.residual == pytest.approx(np.max(np.abs(numpy_scaled_residual(start, scores))), rel=1e-9)


def test_collapsed_particles_show_a_residual_near_one():
    from steinmatch.measures.velocity import scaled_residual_at

    weights = jnp.full(12, 1 / 12)
    for spread in (1e-6, 0.0):
        x = spread * jax.random.normal(jax.random.key(0), (12, 2))
        residual = scaled_residual_at(sm.Linear(), x, -x, weights)
        assert float(jnp.max(jnp.abs(residual))) == pytest.approx(1.0, rel=1e-3)


def test_history_and_counts(linear_fit):
    history = linear_fit.history
    assert set(history) == {"velocity", "residual", "bandwidth", "spread"}
    assert {len(column) for column in history.values()} == {linear_fit.n_steps + 1}
    assert linear_fit.n_gradients == 30 * (linear_fit.n_steps + 1) and linear_fit.n_hvps == 0
    assert np.isnan(history["bandwidth"]).all()
    assert history["spread"][-1] == pytest.approx(np.sqrt(np.mean(linear_fit.sd**2)), rel=1e-12)
    assert linear_fit.residual == history["residual"][-1]


def test_bandwidth_follows_the_median_rule():
    fit = sm.fit(STANDARD, 25, kernel=sm.RBF(), solver=sm.Descent(n_steps=7), progress=False)
    assert fit.history["bandwidth"][-1] == pytest.approx(float(sm.Median()(jnp.asarray(fit.particles))), rel=1e-12)
    assert float(fit.kernel.bandwidth.bandwidth) == pytest.approx(fit.history["bandwidth"][-1], rel=1e-12)


@pytest.mark.parametrize("kernel", [sm.RBF(), sm.LinearRandom()], ids=["rbf", "linear+random"])
def test_same_seed_same_bits_and_other_seed_other_particles(kernel):
    def run(seed):
        return sm.fit(STANDARD, 12, kernel=kernel, solver=sm.Descent(n_steps=20), seed=seed, progress=False).particles

    np.testing.assert_array_equal(run(3), run(3))
    assert np.abs(run(3) - run(4)).max() > 1e-3


def log_density_for_counting(x):
    return -0.5 * jnp.sum(x**2) - 0.1 * jnp.sum(x**4)


def test_second_fit_compiles_nothing():
    def run(seed):
        target = sm.Target(log_density_for_counting, dim=3)  # a new Target of the same function
        return sm.fit(target, 15, kernel=sm.LinearRandom(), seed=seed, max_steps=50, progress=False)

    with counted_compilations() as first:
        run(0)
    with counted_compilations() as second:
        run(1)
    assert len(first) > 0 and len(second) == 0


def test_float64_inside_and_the_users_setting_after():
    with jax.enable_x64(False):
        target = sm.Target(lambda x: -0.5 * jnp.sum(x**2) / 4.0, dim=2)
        fit = sm.fit(target, 10, kernel=sm.Linear(), progress=False)
        assert not jax.config.jax_enable_x64
        assert fit.particles.dtype == np.float64 and fit.residual < 1e-7
        np.testing.assert_allclose(fit.cov, 4.0 * np.eye(2), atol=1e-6)
        assert sm.velocity(target, sm.RBF(), fit.particles).dtype == np.float64
        assert Gaussian([0.0], [[1.0]]).score(np.array([1 / 3])).dtype == np.float64


def test_any_optax_rule():
    with jax.numpy_dtype_promotion("standard"):  # optax's Adam multiplies floats by its step count
        fit = sm.fit(STANDARD, 20, kernel=sm.Linear(), solver=sm.Descent(optax.adam(0.05), n_steps=3000))
    np.testing.assert_allclose(fit.cov, STANDARD.cov, atol=1e-4)


def test_budget_ends_the_solve_with_a_reason():
    fit = sm.fit(STANDARD, 10, kernel=sm.RBF(), max_steps=13, progress=False)
    assert fit.n_steps == 13 and not fit.converged and "max_steps=13" in fit.reason
    descent = sm.Descent()
    fit = sm.fit(STANDARD, 10, kernel=sm.RBF(), solver=descent, max_gradients=95, progress=False)
    assert fit.n_gradients == 100 and "max_gradients=95" in fit.reason
    fit = sm.fit(STANDARD, 10, kernel=sm.RBF(), max_seconds=1e-9, progress=False)
    assert fit.n_steps == 0 and "max_seconds" in fit.reason


def test_divergence_is_a_result():
    fit = sm.fit(STANDARD, 10, kernel=sm.Linear(), solver=sm.Descent(optax.sgd(1e3)), progress=False)
    assert not fit.converged and "step size is too large" in fit.reason
    assert np.isfinite(fit.particles).all() and np.isfinite(fit.residual)


def test_interrupt_returns_the_best_so_far(monkeypatch):
    original, calls = sm.Descent.step, []

    def interrupted(self, problem, iterate, budget):
        calls.append(1)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return original(self, problem, iterate, budget)

    monkeypatch.setattr(sm.Descent, "step", interrupted)
    fit = sm.fit(STANDARD, 10, kernel=sm.RBF(), solver=sm.Descent(chunk=5), progress=False)
    assert fit.n_steps == 10 and not fit.converged and "interrupted" in fit.reason


def test_start_from_an_array_or_a_sampler():
    start = STANDARD.sample(jax.random.key(9), 14)
    fit = sm.fit(STANDARD, kernel=sm.Linear(), init=start, max_steps=1, progress=False)
    assert fit.particles.shape == (14, 2)
    fit = sm.fit(STANDARD, 6, kernel=sm.Linear(), init=STANDARD.sample, max_steps=1, progress=False)
    assert fit.particles.shape == (6, 2)


def test_expectation(linear_fit):
    want = (linear_fit.particles[:, 0] * linear_fit.particles[:, 1]).mean()
    assert linear_fit.expectation(lambda x: x[0] * x[1]) == pytest.approx(want, rel=1e-13)
    np.testing.assert_allclose(linear_fit.expectation(lambda x: x), linear_fit.mean, rtol=1e-13)
    assert linear_fit.expectation(lambda x: float(np.asarray(x)[0] > 0)) == pytest.approx(
        (linear_fit.particles[:, 0] > 0).mean()
    )


def test_summary_is_on_the_constrained_scale():
    def constrain(x):
        return {"tau": jnp.exp(x[0]), "theta": x}

    target = sm.Target(lambda x: -0.5 * jnp.sum(x**2), dim=2, constrain=constrain)
    fit = sm.fit(target, 40, kernel=sm.Linear(), progress=False)
    summary = fit.summary()
    assert summary.names == ("tau", "theta[0]", "theta[1]")
    assert summary["tau"]["mean"] == pytest.approx(np.exp(fit.particles[:, 0]).mean(), rel=1e-12)
    assert summary["theta[1]"]["sd"] == pytest.approx(fit.sd["theta"][1], rel=1e-12)
    ordered = np.sort(fit.particles[:, 1])
    assert ordered[1] <= summary["theta[1]"]["5%"] <= ordered[2]
    text = str(summary)
    assert "tau" in text and "converged" in text


def test_plot_is_written(linear_fit, tmp_path):
    linear_fit.plot(tmp_path / "pairs.png")
    assert (tmp_path / "pairs.png").read_bytes()[:4] == b"\x89PNG"
    with pytest.raises(ValueError, match="no parameter 'z'"):
        linear_fit.plot(parameters=["z"])


def test_progress_bar_draws_on_a_terminal(monkeypatch, capsys):
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    sm.fit(STANDARD, 5, kernel=sm.Linear(), max_steps=3)
    assert "residual" in capsys.readouterr().err
