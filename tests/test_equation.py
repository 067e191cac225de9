"""The Stein equation: exact where theory says so, and better than averages where it is not."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import steinmatch as sm
from steinmatch.answers.equation import _System
from steinmatch.targets import Gaussian


def gaussian(d):
    return Gaussian([1.0], [[2.0]]) if d == 1 else Gaussian.random(jax.random.key(d), d, 5.0)


@pytest.mark.parametrize("d", [1, 3, 10])
def test_quadratics_of_a_gaussian_from_arbitrary_points(d):
    """(d+1)(d+2)/2 points in general position fix a quadratic, so b = E[x_i x_j] = cov + mean mean^T, whatever p is."""
    target = gaussian(d)
    points = 1.0 + 2.0 * np.random.default_rng(d).normal(size=((d + 1) * (d + 2) // 2, d))
    solution = sm.stein_equation(lambda x: jnp.outer(x, x), target, sm.Linear(), points, ridge=0.0)
    truth = np.asarray(target.cov) + np.outer(target.mean, target.mean)
    np.testing.assert_allclose(solution.b, truth, atol=1e-8)
    assert solution.coefficients.shape == (d + 1, d, d, d)
    assert solution.residual.max() < 1e-10


def test_the_solution_reproduces_f():
    """f = P . phi + b for a known field: phi = (x_0, 0) gives f = s_0 x_0 + 1, so b = 0 for f - 1 + 1."""
    target = gaussian(3)
    score = target.score
    points = np.random.default_rng(0).normal(size=(60, 3))
    solution = sm.stein_equation(lambda x: 4.0 + score(x)[0] * x[0] + 1.0, target, sm.Linear(), points, ridge=0.0)
    np.testing.assert_allclose(solution.b, 4.0, atol=1e-9)
    fresh = np.random.default_rng(1).normal(size=(9, 3))
    expected = [5.0 + float(score(x)[0] * x[0]) for x in fresh]
    np.testing.assert_allclose(solution.approximation(target, fresh), expected, atol=1e-8)


@pytest.mark.parametrize("kind", ["few columns", "many columns", "gram"])
def test_leave_one_out_errors_are_those_of_refitting(kind):
    """The closed form of the left-out errors, against leaving each point out and solving the normal equations again."""
    rng = np.random.default_rng(0)
    fixed = np.column_stack([np.ones(15), rng.normal(size=15)])
    root = rng.normal(size=(15, 6 if kind == "few columns" else 40))
    gram, y = root @ root.T, rng.normal(size=(15, 1))
    system = _System(fixed, None, gram) if kind == "gram" else _System(fixed, root, None)
    ridge = 0.05
    penalty = ridge * np.trace(gram) / 15
    solved = system.solve(y, ridge)

    def predict(i):
        rest = np.arange(15) != i
        block = np.block(
            [[gram[np.ix_(rest, rest)] + penalty * np.eye(14), fixed[rest]], [fixed[rest].T, np.zeros((2, 2))]]
        )
        solution = np.linalg.solve(block, np.concatenate([y[rest], np.zeros((2, 1))]))
        return gram[i, rest] @ solution[:14] + fixed[i] @ solution[14:]

    np.testing.assert_allclose(solved.left_out, [y[i] - predict(i) for i in range(15)], rtol=1e-9)
    # The sd of the constant, against generalised least squares: (P^T C^-1 P)^-1 times y^T M y / (n - r).
    inverse = np.linalg.inv(gram + penalty * np.eye(15))
    information = fixed.T @ inverse @ fixed
    projected = inverse - inverse @ fixed @ np.linalg.solve(information, fixed.T @ inverse)
    variance = np.linalg.inv(information)[0, 0] * (y.T @ projected @ y) / 13
    np.testing.assert_allclose(solved.error, np.sqrt(variance[0]), rtol=1e-9)
    beta = np.linalg.solve(information, fixed.T @ inverse @ y)
    np.testing.assert_allclose(solved.fixed, beta, rtol=1e-9)


def test_values_and_functions_and_shapes_agree():
    target = gaussian(3)
    points = np.random.default_rng(0).normal(size=(50, 3))
    f = lambda x: jnp.stack([jnp.exp(0.3 * x[0]), x[1] * x[2]])  # noqa: E731
    values = np.stack([np.asarray(f(jnp.asarray(x))) for x in points])
    by_function = sm.stein_equation(f, target, sm.Polynomial(2), points)
    by_values = sm.stein_equation(values, target, sm.Polynomial(2), points)
    one = sm.stein_equation(lambda x: x[1] * x[2], target, sm.Polynomial(2), points)
    np.testing.assert_allclose(by_function.b, by_values.b, rtol=1e-12)
    np.testing.assert_allclose(by_function.b[1], one.b, rtol=1e-12)
    assert one.b.shape == () and by_function.b.shape == (2,)


def test_large_least_norm_systems_agree_with_the_direct_ones(monkeypatch):
    from steinmatch.answers import equation

    target = gaussian(4)
    points = np.random.default_rng(0).normal(size=(90, 4))
    f = lambda x: x[0] ** 2 + jnp.sin(x[1])  # noqa: E731
    direct = sm.stein_equation(f, target, sm.Polynomial(2), points, ridge=0.0)
    monkeypatch.setattr(equation, "_DENSE_LIMIT", 10)
    iterative = sm.stein_equation(f, target, sm.Polynomial(2), points, ridge=0.0)
    np.testing.assert_allclose(iterative.b, direct.b, atol=1e-7)
    np.testing.assert_allclose(np.asarray(iterative.coefficients), np.asarray(direct.coefficients), atol=1e-5)


@pytest.fixture(scope="module")
def logistic_draws():
    """20 sets of 200 draws of a skewed 2-D logistic posterior from a fine grid, and its mean by quadrature."""
    x = np.asarray(jax.random.normal(jax.random.key(4), (12, 2)))
    y = (x @ np.array([2.0, -1.0]) + np.linspace(-1.0, 1.0, 12) > 0).astype(float)

    def log_density(w):
        logits = jnp.asarray(x) @ w
        return jnp.sum(jnp.asarray(y) * logits - jnp.logaddexp(0.0, logits)) - 0.5 * jnp.sum(w**2) / 9.0

    line = np.linspace(-12.0, 16.0, 701)
    grid = np.stack(np.meshgrid(line, line, indexing="ij"), axis=-1).reshape(-1, 2)
    mass = np.asarray(jax.nn.softmax(jax.vmap(log_density)(jnp.asarray(grid))))
    rng = np.random.default_rng(0)
    draws = [grid[rng.choice(len(grid), 200, p=mass)] + rng.uniform(-0.02, 0.02, (200, 2)) for _ in range(20)]
    return sm.Target(log_density, dim=2), draws, mass @ grid


@pytest.mark.parametrize("features", [sm.Polynomial(1) + sm.RBF(), sm.Whitened(sm.Polynomial(2) + sm.IMQ())])
def test_semi_exact_estimates_beat_averages_fivefold(logistic_draws, features):
    target, draws, mean = logistic_draws
    solutions = [sm.stein_equation(lambda x: x, target, features, x) for x in draws]
    estimates = np.array([solution.b for solution in solutions]) - mean
    averages = np.array([x.mean(axis=0) for x in draws]) - mean
    ratio = np.sqrt(np.mean(averages**2, axis=0) / np.mean(estimates**2, axis=0))
    assert ratio.min() > 5.0
    stated = np.array([solution.error for solution in solutions])
    assert np.mean(np.abs(estimates) < 2.0 * stated) > 0.7  # and the stated error tells


def test_the_constant_of_a_kernel_fit_is_well_determined(logistic_draws):
    """A wide kernel makes a nearly singular system; the constant must not be lost in it."""
    target, draws, mean = logistic_draws
    wide = sm.Whitened(sm.Polynomial(1) + sm.RBF(6.0))
    estimates = np.array([sm.stein_equation(lambda x: x, target, wide, x).b for x in draws[:5]])
    assert np.abs(estimates - mean).max() < 0.05


def test_zero_variance_control_variates_of_a_gaussian_are_exact():
    """Linear features on exact draws: x and x x^T have no variance left."""
    target = gaussian(3)
    draws = target.sample(jax.random.key(0), 40)
    solution = sm.stein_equation(lambda x: jnp.outer(x, x), target, sm.Linear(), draws)
    truth = np.asarray(target.cov) + np.outer(target.mean, target.mean)
    np.testing.assert_allclose(solution.b, truth, atol=1e-8)
    assert np.abs(solution.average - truth).max() > 0.05
