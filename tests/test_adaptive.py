"""The automatic fit: its accuracy against closed forms and quadrature, its errors, and its verdicts on hard shapes."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats

import steinmatch as sm
from steinmatch.adaptive.conditional import NORMAL_GRID
from steinmatch.adaptive.frames import cloud, log_weights, normal_points
from steinmatch.adaptive.pairs import fit_pair
from steinmatch.adaptive.parents import _quantiles, fit_parent, likely_parents
from steinmatch.adaptive.slim import begin_slim, climb_slim
from steinmatch.coordinates import AffineMap, LowRank
from steinmatch.solvers.base import Budget, Problem
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


def funnel(x):
    return -0.5 * x[0] ** 2 - 0.5 * jnp.sum(x[1:] ** 2) * jnp.exp(-x[0]) - 0.5 * (x.shape[0] - 1) * x[0]


def worst(fit, mean, sd):
    """The largest error of a mean or an sd, and whether 3 stated errors cover all."""
    _, values = sm.targets.constrained_values(fit.target, fit.particles)
    found = fit.weights @ values
    spread = np.sqrt(fit.weights @ (values - found) ** 2)
    errors = np.abs(found - mean) / sd, np.abs(spread / sd - 1.0)
    covered = np.all(errors[0] <= 3.0 * fit.error.mean) and np.all(errors[1] <= 3.0 * fit.error.sd)
    return max(map(np.max, errors)), bool(covered)


@pytest.fixture(scope="module")
def skewed_fit():
    return sm.fit(sm.Target(skewed, dim=2))


def test_a_skewed_posterior_against_quadrature(skewed_fit):
    mean = by_quadrature(skewed, lambda x: x)
    sd = np.sqrt(by_quadrature(skewed, lambda x: x**2) - mean**2)
    error, covered = worst(skewed_fit, mean, sd)
    assert skewed_fit.converged and covered and error <= 0.02
    assert 2.0 * skewed_fit.error.largest <= 0.02
    np.testing.assert_allclose(skewed_fit.weights.sum(), 1.0)
    assert skewed_fit.weights.min() > 0.0


def test_rounds_and_summary_tell_the_story(skewed_fit):
    assert [found.name for found in skewed_fit.rounds[:2]] == ["round 1", "round 2"]
    assert skewed_fit.rounds[-1].n_draws == len(skewed_fit.particles)
    assert sum(found.n_gradients for found in skewed_fit.rounds) <= skewed_fit.n_gradients
    assert "error of mean" in str(skewed_fit.summary())
    assert skewed_fit.summary()["x[0]"]["error"] > 0.0
    np.testing.assert_allclose(skewed_fit.certificate.residual, 0.0, atol=1e-8)  # linear fields are solved exactly
    assert skewed_fit.certificate.rank_condition


def test_same_seed_same_particles(skewed_fit):
    again = sm.fit(sm.Target(skewed, dim=2))
    np.testing.assert_array_equal(again.particles, skewed_fit.particles)
    np.testing.assert_array_equal(again.weights, skewed_fit.weights)


@pytest.mark.parametrize("seed", [0, 1])
def test_a_gaussian_is_exact_and_soon(seed):
    target = sm.targets.Gaussian.random(jax.random.key(seed), 6, 50.0)
    fit = sm.fit(target, seed=seed)
    sd = np.sqrt(np.diagonal(np.asarray(target.cov)))
    assert fit.converged and fit.n_gradients < 6000
    np.testing.assert_allclose((fit.mean - np.asarray(target.mean)) / sd, 0.0, atol=1e-6)
    np.testing.assert_allclose(fit.sd / sd, 1.0, atol=1e-6)


@pytest.mark.parametrize("df", [5.0, 8.0])
def test_products_of_t_are_right_when_they_are_called_converged(df):
    """Levels of polynomial features called these converged with sds off by 5 to 12 %."""
    fit = sm.fit(sm.Target(lambda x: -(df + 1.0) / 2.0 * jnp.sum(jnp.log1p(x**2 / df)), dim=2))
    error, _ = worst(fit, np.zeros(2), np.full(2, np.sqrt(df / (df - 2.0))))
    assert fit.converged and error <= 0.02


@pytest.mark.parametrize(("shift", "sd"), [(100.0, 0.01), (1000.0, 0.1)])
def test_a_mean_ten_thousand_sds_away_is_reached(shift, sd):
    fit = sm.fit(sm.Target(lambda x: -0.5 * jnp.sum((x - shift) ** 2) / sd**2, dim=2))
    assert fit.converged and fit.n_gradients < 4000
    assert worst(fit, np.full(2, shift), np.full(2, sd))[0] < 1e-6


def test_a_funnel_has_its_parent_found():
    """x_0 ~ N(0, 1), the others N(0, exp(x_0)): sds exp(1/4)."""
    fit = sm.fit(sm.Target(funnel, dim=5))
    error, covered = worst(fit, np.zeros(5), np.concatenate([[1.0], np.full(4, np.exp(0.25))]))
    assert fit.converged and covered and error <= 0.02
    assert not isinstance(fit.walked.frame, AffineMap)


def test_the_frame_of_a_funnel_is_exact():
    """Given the parent the rest is normal, and the parent's marginal follows from the bounds: pi is N(0, I)."""
    evaluate = Evaluations(sm.Target(funnel, dim=5), 16)
    affine = AffineMap(jnp.zeros(5), jnp.diag(jnp.array([0.6, 1.0, 1.0, 1.0, 1.0])))
    z = normal_points(128, 5, 0)
    assert likely_parents(affine, cloud(evaluate, affine, z))[:1] == [0]
    frame = fit_parent(evaluate, affine, 0, 1)
    found = cloud(evaluate, frame, z)
    logs = found.log_densities + 0.5 * np.sum(z**2, axis=1)
    assert np.std(logs[np.abs(z[:, 0]) < 3.0]) < 0.02
    assert np.median(np.abs(found.scores + z)) < 0.02


def hierarchy(centred):
    """Eight schools, unknowns log tau, mu, and theta or (theta - mu) / tau; the truth by quadrature over tau."""
    y, s = np.array([28.0, 8, -3, 7, -1, 1, 18, 12]), np.array([15.0, 10, 16, 11, 9, 11, 10, 18])
    grid = np.linspace(-12.0, 4.0, 20001)
    tau = np.exp(grid)[:, None]
    v = tau**2 + s**2
    precision = (1 / v).sum(1) + 1 / 25.0
    m = (y / v).sum(1) / precision
    logs = -0.5 * np.log(v).sum(1) - 0.5 * (y**2 / v).sum(1) + 0.5 * m**2 * precision - 0.5 * np.log(precision)
    logs = logs - 0.5 * np.exp(2 * grid) / 25.0 + grid
    p = np.exp(logs - logs.max())
    p /= p.sum()
    mean = np.array([p @ m, p @ tau[:, 0]])
    second = np.array([p @ (m**2 + 1 / precision), p @ tau[:, 0] ** 2])

    def log_density(x):
        t, mu = jnp.exp(x[0]), x[1]
        theta = x[2:] if centred else mu + t * x[2:]
        own = -0.5 * jnp.sum(((theta - mu) / t) ** 2) - 8.0 * x[0] if centred else -0.5 * jnp.sum(x[2:] ** 2)
        return own - 0.5 * jnp.sum(((y - theta) / s) ** 2) - 0.5 * mu**2 / 25.0 - 0.5 * t**2 / 25.0 + x[0]

    target = sm.Target(log_density, dim=10, constrain=lambda x: {"mu": x[1], "tau": jnp.exp(x[0])})
    return target, mean, np.sqrt(second - mean**2)


@pytest.mark.parametrize("centred", [True, False])
def test_hierarchical_models_are_right_in_both_forms(centred):
    target, mean, sd = hierarchy(centred)
    fit = sm.fit(target)
    error, covered = worst(fit, mean, sd)
    assert fit.converged and covered and error <= 0.025
    assert fit.n_gradients < 80_000


def test_a_score_is_enough(skewed_fit):
    fit = sm.fit(sm.Target(score=jax.grad(skewed), dim=2))
    assert fit.converged
    apart = np.abs(fit.mean - skewed_fit.mean) / fit.sd
    assert np.all(apart <= 3.0 * np.hypot(fit.error.mean, skewed_fit.error.mean))


def test_a_score_in_numpy_is_enough(skewed_fit):
    rows = np.array([[1.0, 2.0], [1.0, -1.0], [0.5, 1.5], [-1.0, 0.3], [2.0, 0.1]])

    def density(x):
        return float(-np.sum(np.log1p(np.exp(-rows @ np.asarray(x)))) - 0.125 * np.sum(np.asarray(x) ** 2))

    def score(x):
        return rows.T @ (1.0 / (1.0 + np.exp(rows @ np.asarray(x)))) - 0.25 * np.asarray(x)

    fit = sm.fit(sm.Target(density, score=score, dim=2))
    assert fit.converged
    np.testing.assert_allclose(fit.mean, skewed_fit.mean, atol=0.02)


def test_a_constant_value_has_no_error():
    fit = sm.fit(sm.Target(skewed, dim=2, constrain=lambda x: {"a": x, "one": jnp.ones(())}))
    assert fit.converged and fit.error.mean[-1] == 0.0


@pytest.mark.parametrize(
    "means",
    [
        np.array([[-8.0, -8.0], [-8.0, 8.0], [8.0, -8.0], [8.0, 8.0]]),
        np.concatenate([np.zeros((1, 10)), 8.0 * np.eye(1, 10)]),
    ],
)
def test_separate_modes_are_right(means):
    fit = sm.fit(sm.targets.GaussianMixture(means))
    assert len(fit.modes) == len(means)
    error, covered = worst(fit, means.mean(axis=0), np.sqrt(1.0 + means.var(axis=0)))
    assert fit.converged and error < 0.01 and covered


def test_a_spike_in_a_slab_is_right():
    def log_density(x):
        slab, spike = (-0.5 * jnp.sum(x**2) / s**2 - 2.0 * jnp.log(s) for s in (1.0, 0.01))
        return jnp.logaddexp(slab, spike)

    fit = sm.fit(sm.Target(log_density, dim=2))
    error, covered = worst(fit, np.zeros(2), np.full(2, np.sqrt(0.5 * (1.0 + 1e-4))))
    assert fit.converged and error < 0.03 and covered


def test_cauchy_tails_are_named():
    fit = sm.fit(sm.Target(lambda x: -jnp.sum(jnp.log1p(x**2)), dim=2))
    assert not fit.converged
    assert "heavy tails" in fit.reason
    fit = sm.fit(sm.Target(lambda x: -2.0 * jnp.log1p(jnp.sum(x**2)), dim=3))  # multivariate: r^-4 where r^-5 is needed
    assert not fit.converged and "heavy tails" in fit.reason


def test_a_flat_direction_is_named():
    fit = sm.fit(sm.Target(lambda x: -0.5 * x[0] ** 2, dim=2))
    assert not fit.converged
    assert "improper" in fit.reason


def test_a_jump_does_not_bend_the_estimates():
    """p ~ N(0, 1) with e^2 more mass above zero: Stein weights would be wrong, and are found out."""
    from scipy.stats import norm

    up, down = np.exp(2.0) * 0.5, 0.5
    mean = (up - down) * norm.pdf(0.0) * 2.0 / (up + down)
    fit = sm.fit(sm.Target(lambda x: -0.5 * x[0] ** 2 + jnp.where(x[0] > 0.0, 2.0, 0.0), dim=1), max_gradients=300_000)
    assert "uniform weights" in fit.reason or "disagree" in fit.reason or fit.rounds[-1].family == "uniform weights"
    np.testing.assert_allclose(fit.mean[0], mean, atol=0.03)


def test_the_budget_bounds_the_work():
    for limit in (500, 2000):
        fit = sm.fit(sm.Target(funnel, dim=5), max_gradients=limit)
        assert not fit.converged and f"max_gradients={limit}" in fit.reason
        assert fit.n_gradients < limit + 3000 and np.isfinite(fit.particles).all()


def test_an_interrupted_fit_returns_its_best():
    def stop(iterate):
        if iterate.counts.steps >= 12:
            raise KeyboardInterrupt

    target = sm.Target(funnel, dim=5)
    problem = Problem(target, sm.Linear(), jnp.ones(1))
    found = sm.Walk(centred=False).solve(problem, jnp.zeros((1, 5)), Budget(), stop)
    assert found.interrupted and not found.converged and "interrupted" in found.reason
    assert len(found.particles) == len(found.weights) > 0


def test_an_earlier_fit_is_gone_on_from(skewed_fit):
    again = sm.fit(skewed_fit.target, init=skewed_fit)
    assert again.converged and again.n_gradients < skewed_fit.n_gradients / 3
    more = 3 * len(skewed_fit.particles)  # which halves errors, known to a tenth of themselves
    longer = skewed_fit.walk(more)
    assert len(longer.particles) >= len(skewed_fit.particles) + more
    assert longer.converged and longer.error.largest < 0.8 * skewed_fit.error.largest
    moved = sm.fit(sm.Target(lambda x: skewed(x - 0.3), dim=2), init=skewed_fit)
    assert moved.converged
    np.testing.assert_allclose(moved.mean, skewed_fit.mean + 0.3, atol=0.03)


def test_the_number_of_particles_can_be_chosen():
    fit = sm.fit(sm.Target(skewed, dim=2), 100)
    assert fit.particles.shape == (100, 2) and np.all(fit.weights == 0.01)
    assert fit.error.largest > 0.0
    more = sm.fit(sm.Target(skewed, dim=2), 3000)
    assert len(more.particles) == 3000


def _logistic(data, b):
    rows, signs = data
    return jnp.sum(jax.nn.log_sigmoid(signs * (rows @ b))) - 0.5 * jnp.sum(b**2)


def test_other_data_of_the_same_shape_compile_nothing():
    rng = np.random.default_rng(0)

    def target():
        data = (rng.normal(size=(50, 3)), np.where(rng.uniform(size=50) < 0.5, 1.0, -1.0))
        return sm.Target(jax.tree_util.Partial(_logistic, data), dim=3)

    sm.fit(target())
    compiled = []
    jax.monitoring.register_event_duration_secs_listener(
        lambda event, *_, **__: compiled.append(event) if "backend_compile" in event else None
    )
    try:
        fit = sm.fit(target())
    finally:
        jax.monitoring.clear_event_listeners()
    assert fit.converged and not compiled


def test_a_start_without_a_finite_density_is_an_error():
    with pytest.raises(ValueError, match="not finite"):
        sm.fit(sm.Target(lambda x: jnp.log(-1.0 - jnp.sum(x**2)), dim=2))


@pytest.mark.parametrize("arguments", [{"tol": -1.0}, {"groups": 2}, {"siblings": 1}, {"least_draws": 0}])
def test_bad_walks(arguments):
    with pytest.raises(ValueError, match=next(iter(arguments))):
        sm.Walk(**arguments)


def test_the_tolerance_is_checked():
    with pytest.raises(ValueError, match="tol"):
        sm.fit(sm.Target(skewed, dim=2), tol=-1.0)


def test_the_quantiles_of_a_parent_whose_affine_frame_is_a_thin_slice():
    """log tau of tau = |N(0, 1)|, known at knots that begin from an affine sd of 0.07: the closed form."""
    steps = 0.07 * 2.0 ** np.arange(8)
    knots = -1.5 + np.concatenate([-steps[::-1], [0.0], steps[:5], [1.6, 2.0, 2.3, 2.6, 2.9]])
    found = _quantiles(knots, knots - 0.5 * np.exp(2.0 * knots), -1.5, 0.07)
    exact = np.log(scipy.stats.norm.ppf(0.5 + 0.5 * scipy.stats.norm.cdf(NORMAL_GRID)))
    usual = np.abs(NORMAL_GRID) <= 2.0
    np.testing.assert_allclose(found[usual], exact[usual], atol=0.1)


def test_two_parents_at_once_where_only_both_make_the_rest_normal():
    """v ~ N(0, 1), w | v ~ N(0, exp(v / 2)^2) and three normal others of mean v w / 2 and sd exp((v + w) / 4): exactly
    normal given both. The frame's densities at fresh points are the target's, and the moments are right.
    """

    def log_density(x):
        v, w, rest = x[0], x[1], x[2:]
        inner = -0.5 * v**2 - 0.5 * w**2 * jnp.exp(-v) - 0.5 * v
        scale = 0.25 * (v + w)
        return inner - 0.5 * jnp.sum((rest - 0.5 * v * w) ** 2) * jnp.exp(-2.0 * scale) - 3.0 * scale

    target = sm.Target(log_density, dim=5)
    evaluate = Evaluations(target)
    rng = np.random.default_rng(0)
    v = rng.normal(size=256)
    w = np.exp(0.5 * v) * rng.normal(size=256)
    rest = (0.5 * v * w + np.exp(0.25 * (v + w)) * rng.normal(size=(3, 256))).T
    affine = AffineMap(np.zeros(5), np.eye(5))
    points = cloud(evaluate, affine, np.concatenate([v[:, None], w[:, None], rest], axis=1))
    points = points._replace(log_densities=-0.5 * np.sum(points.z**2, axis=1))  # draws: all of the same importance
    pair = fit_pair(evaluate, affine, affine, points, (0, 1), seed=0)
    assert pair is not None
    fresh = cloud(evaluate, pair, normal_points(256, 5, 7))
    assert np.var(log_weights(fresh)) < 0.02
    assert np.var(log_weights(cloud(evaluate, affine, normal_points(256, 5, 7)))) > 1.0


def test_no_pair_where_the_marginal_does_not_end():
    target = sm.Target(lambda x: -0.5 * jnp.sum(x[1:] ** 2) + 0.0 * x[0], dim=4)
    affine = AffineMap(np.zeros(4), np.eye(4))
    evaluate = Evaluations(target)
    points = cloud(evaluate, affine, normal_points(64, 4, 0))
    assert fit_pair(evaluate, affine, affine, points, (0, 1), seed=0) is None


def test_the_frame_of_many_dimensions_of_a_gaussian():
    """Scales over four decades, three wide and three narrow directions: found with few gradients."""
    d, rng = 300, np.random.default_rng(0)
    scales, directions = 10.0 ** rng.uniform(-2.0, 2.0, size=d), np.linalg.qr(rng.normal(size=(d, 6)))[0]
    stretch = np.array([8.0, 4.0, 3.0, 0.3, 0.2, 0.1])
    root = scales[:, None] * (np.eye(d) + (directions * (stretch - 1.0)) @ directions.T)
    mean = 5.0 * scales * rng.normal(size=d)
    target = sm.targets.Gaussian(mean, root @ root.T)
    evaluate = Evaluations(target, 32)
    state, done = begin_slim(evaluate, np.zeros(d), np.ones(d), 0), False
    while not done:
        state, done = climb_slim(evaluate, state, 0)
    own = state.frame.pull(np.eye(d))  # the root
    whitened = np.linalg.solve(root, own)
    assert evaluate.n_gradients < 20 * d
    assert np.linalg.cond(whitened) < 3.0  # from 80 with scales alone; the rest is noise of few points
    assert np.max(np.abs(np.linalg.solve(root, np.asarray(state.frame.shift) - mean))) < 0.5


def test_a_hierarchical_model_of_many_dimensions_is_right():
    """y_i ~ N(scale x_i, 1), 520 of them, with a scale of its own; truth by quadrature over the scale."""
    rng = np.random.default_rng(3)
    y = 1.5 * rng.normal(size=520) + rng.normal(size=520)

    def log_density(x):
        return -0.5 * jnp.sum(x**2) - 0.5 * jnp.sum((y - jnp.exp(x[0]) * x[1:]) ** 2)

    fit = sm.fit(sm.Target(log_density, dim=521), tol=0.05, progress=False)
    logs = np.linspace(-5.0, 3.0, 4001)
    square = 1.0 + np.exp(2.0 * logs)
    weights = -0.5 * logs**2 - 0.5 * len(y) * np.log(square) - 0.5 * np.sum(y**2) / square
    weights = np.exp(weights - weights.max())
    weights /= weights.sum()
    slope = np.exp(logs) / square
    mean = np.concatenate([[weights @ logs], (weights @ slope) * y])
    spread = weights @ slope**2 - (weights @ slope) ** 2
    sd = np.sqrt(np.concatenate([[weights @ (logs - mean[0]) ** 2], weights @ (1.0 / square) + spread * y**2]))
    assert fit.converged, fit.reason
    assert np.max(np.abs(fit.mean - mean) / sd) < 0.05 and np.max(np.abs(fit.sd / sd - 1.0)) < 0.05
    assert isinstance(fit.walked.frame.maps[0], LowRank) and fit.n_gradients < 60_000
