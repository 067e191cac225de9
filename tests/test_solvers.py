"""Solvers: one registry of problems, the same laws for all; and what each one promises."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import steinmatch as sm
from steinmatch.solvers import levenberg_marquardt, preconditioner
from steinmatch.solvers.fixed_point import dense_jacobian, equations_at, linearised, scores_in, slopes_in
from steinmatch.solvers.preconditioner import cholesky_by_blocks
from steinmatch.solvers.rules import Effort
from steinmatch.solvers.trials import dense_trial, jacobian_and_gram, preconditioned_trial
from steinmatch.targets import GaussBernoulliRBM, Gaussian, GaussianMixture
from tests.problems import PROBLEMS, numpy_linear_residual, numpy_scores

SOLVERS = {
    "descent": sm.Descent(n_steps=300),
    "levenberg-marquardt": sm.LevenbergMarquardt(n_steps=60),
    "matrix-free": sm.LevenbergMarquardt(n_steps=60, dense_limit=0),
    "affine": sm.Affine(),
    "annealed": sm.Annealed(temperatures=40, steps=5, polish=sm.Descent(n_steps=200)),
    "chain": sm.Chain(sm.Descent(n_steps=50), sm.Affine(), sm.LevenbergMarquardt(n_steps=60)),
    "auto": "auto",
}
N = 12


@pytest.fixture(scope="module")
def fits():
    """Every solver on every problem, with linear features."""
    cache = {}

    def get(solver, problem):
        if (solver, problem) not in cache:
            target = PROBLEMS[problem]
            cache[solver, problem] = sm.fit(target, N, kernel=sm.Linear(), solver=SOLVERS[solver], progress=False)
        return cache[solver, problem]

    return get


@pytest.mark.parametrize("problem", PROBLEMS)
@pytest.mark.parametrize("solver", SOLVERS)
def test_laws(solver, problem, fits):
    fit, target = fits(solver, problem), PROBLEMS[problem]
    assert np.isfinite(fit.particles).all() and fit.reason
    # The reported residual is the definition, recomputed in NumPy.
    scores = np.asarray(jax.vmap(target.score)(fit.particles))
    np.testing.assert_allclose(scores, numpy_scores(target, fit.particles), rtol=1e-4, atol=1e-4 * np.abs(scores).max())
    root = np.linalg.cholesky(fit.cov) if fit.frame is None else np.asarray(fit.frame.root)
    # Rounding in G is that of its largest terms, scaled.
    rounding = 1e-11 * numpy_terms(fit.particles, scores, root)  # at condition 1e6 the scores round at 1e-10
    assert fit.residual == pytest.approx(numpy_linear_residual(fit.particles, scores, root), rel=1e-6, abs=rounding)
    # Never worse than the start, where the solver started from it.
    if solver in ("descent", "levenberg-marquardt", "matrix-free"):
        assert fit.residual <= fit.history["residual"][0]
    assert fit.converged == (fit.residual <= 1e-9) or solver in ("descent", "affine", "annealed")


def numpy_terms(particles, scores, root):
    spread = np.concatenate([[1.0], particles.std(axis=0)])
    phi = np.column_stack([np.ones(len(particles)), particles])
    return np.max(np.abs(phi[:, :, None] * (scores @ root)[:, None, :]) / spread[None, :, None])


@pytest.mark.parametrize("solver", ["levenberg-marquardt", "matrix-free", "affine", "annealed", "chain"])
def test_same_seed_same_bits(solver):
    first, second = (
        sm.fit(PROBLEMS["banana"], N, kernel=sm.Linear(), solver=SOLVERS[solver], seed=4, progress=False).particles
        for _ in range(2)
    )
    np.testing.assert_array_equal(first, second)


@pytest.mark.parametrize("problem", PROBLEMS)
def test_auto_solves_linear_features_everywhere(problem, fits):
    fit = fits("auto", problem)
    assert fit.converged and fit.residual < 1e-10


@pytest.mark.parametrize("problem", ["gaussian", "gaussian, condition 100", "gaussian, condition 1e6"])
def test_gaussian_moments_are_exact(problem, fits):
    fit, target = fits("auto", problem), PROBLEMS[problem]
    scale = np.sqrt(np.diagonal(target.cov))
    np.testing.assert_allclose((fit.mean - target.mean) / scale, 0.0, atol=1e-10)
    np.testing.assert_allclose(fit.cov / np.outer(scale, scale), target.cov / np.outer(scale, scale), atol=1e-9)


def jacobian_case(kernel, n=9):
    target = PROBLEMS["rbm"]
    frame = sm.Whitened(sm.Linear()).bind(jax.random.key(0), jnp.asarray(target.sample(jax.random.key(5), 30))).frame
    z = jax.random.normal(jax.random.key(1), (n, 3), jnp.float64)
    weights = jnp.full(n, 1 / n)
    held = kernel.bind(jax.random.key(2), frame.colour(z)).hold(frame.colour(z))
    equations = equations_at(held, z, weights, frame)
    return target, frame, z, equations


@pytest.mark.parametrize(
    "kernel",
    [sm.Linear(), sm.LinearRandom(), sm.RBF(), sm.Polynomial(2)],
    ids=["linear", "linear+random", "rbf", "more features than particles"],
)
def test_jacobians_are_autodiff_of_the_whole(kernel):
    target, frame, z, equations = jacobian_case(kernel)
    scores, slopes = scores_in(target, frame, z), slopes_in(target, frame, z)

    def whole(flat):
        z = flat.reshape(9, 3)
        return equations(z, scores_in(target, frame, z)).ravel()

    def products(z, scores, slopes, v):
        _, push, pull = linearised(equations, z, scores, slopes)
        return dense_jacobian(equations, z, scores, slopes), push(v), pull(push(v))

    want = np.asarray(jax.jit(jax.jacrev(whole))(z.ravel()))
    v = jax.random.normal(jax.random.key(3), z.shape, jnp.float64)
    dense, pushed, pulled = jax.jit(products)(z, scores, slopes, v)
    np.testing.assert_allclose(dense, want, atol=1e-12 * np.abs(want).max())
    np.testing.assert_allclose(pushed.ravel(), want @ v.ravel(), atol=1e-12 * np.abs(want).max() * 9)
    np.testing.assert_allclose(pulled.ravel(), want.T @ pushed.ravel(), atol=1e-11 * np.abs(want).max() * 9)


def test_slopes_of_a_callback_are_central_differences():
    target, frame, z, _ = jacobian_case(sm.Linear())
    host = sm.Target(score=lambda x: np.asarray(target.score(np.asarray(x))), dim=3)
    assert not host.differentiable
    np.testing.assert_allclose(slopes_in(host, frame, z), slopes_in(target, frame, z), atol=1e-8)


def test_callback_score_is_solved():
    host = sm.Target(score=lambda x: -np.asarray(x, np.float64) * np.array([1.0, 0.25]), dim=2)
    fit = sm.fit(host, 8, kernel=sm.Whitened(sm.Polynomial(1)), progress=False)
    assert fit.converged and fit.n_hvps == 0
    np.testing.assert_allclose(fit.cov, np.diag([1.0, 4.0]), atol=1e-9)


def test_dense_and_matrix_free_reach_the_same_moments():
    """Both take the least change that solves the equations, from one start: the particles end side by side."""
    results = [
        sm.fit(
            PROBLEMS["logistic"],
            20,
            kernel=sm.Whitened(sm.Polynomial(2)),
            solver=sm.Chain(sm.Affine(), sm.LevenbergMarquardt(dense_limit=limit)),
            progress=False,
        )
        for limit in (4000, 0)
    ]
    for fit in results:
        assert fit.converged and fit.residual < 1e-10
    np.testing.assert_allclose(results[0].mean, results[1].mean, atol=0.01 * results[0].sd.min())
    assert np.abs(results[0].particles - results[1].particles).max() < 0.3 * results[0].sd.min()


def test_cholesky_by_blocks_is_numpys():
    root = np.random.default_rng(0).normal(size=(23, 30))
    matrix = root @ root.T
    factor = np.tril(cholesky_by_blocks(np.tril(matrix), block=5))
    np.testing.assert_allclose(factor, np.linalg.cholesky(matrix), atol=1e-12)


def test_preconditioned_step_is_the_dense_one(monkeypatch):
    """One step at the same damping, by a factor of J J^T and by preconditioned conjugate gradients."""
    monkeypatch.setattr(preconditioner, "_BLOCK", 5)
    monkeypatch.setattr(preconditioner, "_CHUNK", 4 * 12 * 3)  # 4 particles at once, the last group reaching back
    target, frame, z, equations = jacobian_case(sm.Linear())
    at = (target, equations, z, scores_in(target, frame, z))
    jacobian, gram = jacobian_and_gram(*at)
    slopes = slopes_in(target, frame, z)
    factor = preconditioner.Factor(equations, z, at[-1], slopes, 1e-3)
    assert factor.unit == pytest.approx(float(np.trace(gram)) / len(gram), rel=1e-6)
    damped = np.asarray(gram) + 1e-3 * factor.unit * np.eye(len(gram))
    right = np.arange(12.0)
    np.testing.assert_allclose(factor.solve(right), np.linalg.solve(damped, right), rtol=1e-3)
    exact, iterations = preconditioner.preconditioned_conjugate_gradients(
        lambda y: damped @ y, factor.solve, right, 1e-12, 20
    )
    assert iterations <= 4  # single precision gains about six digits an iteration
    np.testing.assert_allclose(exact, np.linalg.solve(damped, right), rtol=1e-9)
    dense = dense_trial(*at, (jacobian, gram), np.asarray(1e-3))
    other = preconditioned_trial(*at, slopes, factor, 1e-3, 20)
    np.testing.assert_allclose(other[0], dense[0], atol=0.03 * np.abs(dense[0] - z).max())  # solved to 0.01
    assert float(other[3]) < float(other[2])


def test_slow_conjugate_gradients_are_preconditioned(monkeypatch):
    """With few iterations a step the factor is called for, and the fixed point is the one of the dense path."""
    made = []
    monkeypatch.setattr(levenberg_marquardt, "Factor", lambda *a: made.append(1) or preconditioner.Factor(*a))
    target = GaussBernoulliRBM.random(jax.random.key(0), 6, 3)
    solver = sm.Chain(sm.Affine(), sm.LevenbergMarquardt(dense_limit=0, inner_steps=3, effort=Effort(2, slow_inner=1)))
    fit = sm.fit(target, 16, kernel=sm.Linear(), solver=solver, progress=False)
    assert made and fit.converged and fit.residual <= 1e-10


@pytest.mark.slow
def test_linear_random_at_the_papers_dimension():
    target = Gaussian.random(jax.random.key(1), 100, 10.0)
    fit = sm.fit(target, 120, kernel=sm.LinearRandom(), progress=False)
    assert fit.converged
    assert np.mean((fit.mean - target.mean) ** 2) < 1e-24
    assert np.mean(((fit.particles**2).mean(0) / target.second_moment - 1) ** 2) < 1e-24


def test_more_features_than_particles_is_a_fixed_point_without_the_rank_condition():
    target = Gaussian(np.zeros(6), np.eye(6))
    fit = sm.fit(target, 4, kernel=sm.Linear(), progress=False)
    assert np.abs(sm.velocity(target, fit.kernel, fit.particles)).max() < 1e-10
    assert fit.converged and "the rank condition is not met: rank 4 of 7 features" in fit.reason


@pytest.mark.parametrize(
    ("problem", "kernel"),
    [("gaussian", sm.RBF()), ("banana", sm.RBF()), ("banana", sm.IMQ()), ("gaussian", sm.Matern(2.5))],
    ids=["rbf-gaussian", "rbf-banana", "imq-banana", "matern-gaussian"],
)
def test_full_rank_kernels_are_solved(problem, kernel):
    target = PROBLEMS[problem]
    fit = sm.fit(target, 20, kernel=kernel, progress=False)
    assert np.abs(sm.velocity(target, fit.kernel, fit.particles)).max() < 1e-7
    held = float(fit.kernel.bandwidth.bandwidth)
    assert held == pytest.approx(float(sm.Median()(jnp.asarray(fit.particles))), rel=0.01)


def test_one_particle_of_a_radial_kernel_is_the_mode():
    fit = sm.fit(PROBLEMS["logistic"], 1, kernel=sm.RBF(), progress=False)
    assert fit.converged and np.abs(PROBLEMS["logistic"].score(fit.particles[0])).max() < 1e-9


@pytest.mark.parametrize("n", [1, 2, 3])
def test_few_particles_are_defined(n):
    for kernel in (sm.Linear(), sm.LinearRandom(), sm.RBF()):
        fit = sm.fit(PROBLEMS["logistic"], n, kernel=kernel, progress=False, max_steps=300)
        assert np.isfinite(fit.particles).all() and np.isfinite(fit.residual)


def test_duplicated_particles_and_dependent_features_are_defined():
    start = np.repeat(np.asarray(PROBLEMS["gaussian"].sample(jax.random.key(0), 6)), 2, axis=0)
    fit = sm.fit(PROBLEMS["gaussian"], kernel=sm.Linear() + sm.Linear(), init=start, progress=False)
    assert np.isfinite(fit.particles).all() and fit.residual < 1e-10
    assert "rank 3 of 6 features" in fit.reason


def test_more_particles_on_request_when_the_rank_fails():
    def repeated(x):
        return jnp.stack([jnp.ones(()), x[0], x[0]])

    fit = sm.fit(Gaussian([0.0], [[1.0]]), 4, kernel=sm.FeatureKernel(repeated), ensure_rank=True, progress=False)
    assert len(fit.particles) == 13 and "ran again with n=6" in fit.reason and "ran again with n=13" in fit.reason


def test_whitened_kernel_takes_the_affine_frame():
    fit = sm.fit(PROBLEMS["logistic"], 40, kernel=sm.Whitened(sm.Polynomial(2)), progress=False)
    assert fit.converged
    np.testing.assert_array_equal(fit.kernel.frame.root, fit.frame.root)


def test_degree_is_accuracy():
    """Against quadrature on a grid: degrees 2 and 3 have less than a tenth of the error of degree 1."""
    line = jnp.linspace(-12.0, 16.0, 561)
    grid = jnp.stack(jnp.meshgrid(line, line, indexing="ij"), axis=-1).reshape(-1, 2)
    mass = jax.nn.softmax(jax.vmap(PROBLEMS["logistic"].log_density)(grid))
    mean = np.asarray(mass @ grid)
    variance = np.asarray(mass @ (grid - mean[None, :]) ** 2)

    def error(degree, seed):
        kernel = sm.Whitened(sm.Polynomial(degree))
        fit = sm.fit(PROBLEMS["logistic"], 100, kernel=kernel, seed=seed, progress=False)
        assert fit.converged
        return max(np.abs((fit.mean - mean) / np.sqrt(variance)).max(), np.abs(fit.sd**2 / variance - 1).max())

    # There are many fixed points: which one is found, and its error, depends on the start.
    errors = [np.median([error(degree, seed) for seed in range(3)]) for degree in (1, 2, 3)]
    assert max(errors[1:]) < 0.02 and max(errors[1:]) < 0.1 * errors[0]


def test_affine_does_not_rely_on_the_mode():
    """A hierarchical density whose mode is at log-scale -> -infinity: the bound is finite, and the phase finds it."""

    def log_density(x):
        return -0.5 * x[0] ** 2 / 4.0 - 0.5 * jnp.sum(x[1:] ** 2) * jnp.exp(-2 * x[0]) - 8 * x[0]

    fit = sm.fit(sm.Target(log_density, dim=9), 60, kernel=sm.Linear(), solver=sm.Affine(), progress=False)
    assert np.isfinite(fit.particles).all() and abs(fit.mean[0]) < 3.0


def test_affine_of_a_far_and_badly_scaled_gaussian():
    target = Gaussian([3000.0, -2.0], [[1e6, 10.0], [10.0, 1e-3]])
    fit = sm.fit(target, 10, kernel=sm.Linear(), progress=False)
    np.testing.assert_allclose(
        fit.mean / np.sqrt(np.diagonal(target.cov)), target.mean / np.sqrt(np.diagonal(target.cov))
    )
    np.testing.assert_allclose(fit.cov, target.cov, rtol=1e-8)


def test_affine_with_a_score_alone():
    fit = sm.fit(sm.Target(score=lambda x: -(x - 2.0) / 9.0, dim=3), 10, kernel=sm.Linear(), progress=False)
    np.testing.assert_allclose(fit.cov, 9.0 * np.eye(3), atol=1e-8)


def test_nonfinite_scores_are_survived_and_counted():
    """log x is nan left of zero, where part of any affine cloud lies."""

    def log_density(x):
        return jnp.sum(jnp.where(x > 0.0, 3.0 * jnp.log(x) - x, jnp.nan))

    start = 0.5 + np.asarray(jax.random.uniform(jax.random.key(0), (12, 1), jnp.float64)) * 6.0
    target = sm.Target(log_density, dim=1)
    fit = sm.fit(target, kernel=sm.Linear(), solver=sm.LevenbergMarquardt(), init=start, progress=False)
    assert np.isfinite(fit.particles).all() and fit.residual < 1e-8


def test_annealing_finds_the_masses_of_separated_modes():
    weights = np.array([0.1, 0.2, 0.3, 0.4])
    target = GaussianMixture([[-6.0, -6.0], [-6.0, 6.0], [6.0, -6.0], [6.0, 6.0]], weights=weights)
    for solver in (
        sm.Annealed(steps=4, polish=sm.Descent(n_steps=100)),
        sm.Annealed(steps=4, adaptive=True, polish=sm.Descent(n_steps=100)),
    ):
        fit = sm.fit(target, 150, kernel=sm.RBF(), solver=solver, progress=False)
        nearest = np.argmin(((fit.particles[:, None] - target.means[None]) ** 2).sum(-1), axis=1)
        assert np.abs(np.bincount(nearest, minlength=4) / 150 - weights).max() < 0.05
        temperatures = fit.history["temperature"]
        assert np.nanmax(temperatures) == 1.0 and (np.diff(temperatures[~np.isnan(temperatures)]) > 0).all()


def test_annealing_keeps_to_the_budget():
    solver = sm.Annealed(polish=sm.Descent(n_steps=300))
    fit = sm.fit(PROBLEMS["gaussian"], 5, kernel=sm.RBF(), solver=solver, max_steps=1000, progress=False)
    assert fit.n_steps == 1000 and not fit.converged and "max_steps=1000" in fit.reason


def test_small_rbm_beats_monte_carlo():
    target = GaussBernoulliRBM.random(jax.random.key(0), 10, 4)
    fit = sm.fit(target, 30, kernel=sm.LinearRandom(), progress=False)
    ours = np.mean(((fit.particles**2).mean(0) - target.second_moment) ** 2)
    draws = [target.sample(jax.random.key(i), 30) for i in range(20)]
    theirs = np.mean([np.mean(((x**2).mean(0) - target.second_moment) ** 2) for x in draws])
    assert fit.residual < 1e-5 and ours < theirs / 10


def test_stagnation_is_said_as_such():
    """x^2 = -1 has no solution: features (x^2 + 1) of a target whose score makes the residual positive everywhere."""
    target = sm.Target(score=lambda x: jnp.ones_like(x), dim=1)
    fit = sm.fit(target, 5, kernel=sm.FeatureKernel(lambda x: 1.0 + 0.1 * jnp.sin(x)), solver=sm.LevenbergMarquardt())
    assert not fit.converged and "stagnated" in fit.reason


def test_interrupted_chain_stops_there(monkeypatch):
    def interrupt(self, problem, iterate, budget):
        raise KeyboardInterrupt

    monkeypatch.setattr(sm.Affine, "step", interrupt)
    fit = sm.fit(PROBLEMS["gaussian"], 8, kernel=sm.Linear(), progress=False)
    assert "interrupted" in fit.reason and not fit.converged


def test_descent_takes_any_rule_inside_a_chain():
    solver = sm.Chain(sm.Descent(optax.sgd(0.1), n_steps=20), sm.LevenbergMarquardt())
    fit = sm.fit(PROBLEMS["gaussian"], 8, kernel=sm.Linear(), solver=solver, progress=False)
    assert fit.converged and len(fit.history["velocity"]) == len(fit.history["damping"])
