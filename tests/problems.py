"""One registry of problems that every solver faces."""

import jax
import jax.numpy as jnp
import numpy as np

import steinmatch as sm
from steinmatch.targets import GaussBernoulliRBM, Gaussian, GaussianMixture

_X = jnp.asarray(np.asarray(jax.random.normal(jax.random.key(2), (12, 2))))
_Y = jnp.asarray((np.asarray(_X) @ np.array([2.0, -1.0]) + np.linspace(-1.0, 1.0, 12) > 0).astype(float))


def logistic(w):
    logits = _X @ w
    return jnp.sum(_Y * logits - jnp.logaddexp(0.0, logits)) - 0.5 * jnp.sum(w**2) / 9.0


def banana(x):
    return -0.5 * x[0] ** 2 - 2.0 * (x[1] - 0.5 * x[0] ** 2) ** 2


def funnel(x):
    """A mild funnel: the spread of x_1 is exp(x_0 / 2), with x_0 ~ N(0, 1/2)."""
    return -(x[0] ** 2) - 0.5 * x[1] ** 2 * jnp.exp(-x[0]) - 0.5 * x[0]


PROBLEMS = {
    "gaussian": Gaussian([0.5, -1.0], [[1.0, 0.4], [0.4, 2.0]]),
    "gaussian, condition 100": Gaussian.random(jax.random.key(0), 3, 100.0),
    "gaussian, condition 1e6": Gaussian.random(jax.random.key(3), 3, 1e6),
    "banana": sm.Target(banana, dim=2),
    "logistic": sm.Target(logistic, dim=2),
    "funnel": sm.Target(funnel, dim=2),
    "mixture": GaussianMixture([[0.0, 0.0], [2.0, 1.0]], weights=[0.6, 0.4]),
    "rbm": GaussBernoulliRBM.random(jax.random.key(1), 3, 2),
}


def numpy_scores(target, particles):
    """Scores by complex-free central differences of the log density, for an independent residual."""
    step, d = 1e-5, target.dim
    density = jax.jit(jax.vmap(target.log_density))
    columns = []
    for j in range(d):
        shift = np.zeros(d)
        shift[j] = step
        columns.append((np.asarray(density(particles + shift)) - np.asarray(density(particles - shift))) / (2 * step))
    return np.column_stack(columns)


def numpy_linear_residual(particles, scores, root):
    """The scaled residual of features (1, x), by its definition in a loop: G L, rows over the features' spread."""
    n, d = particles.shape
    total = np.zeros((d + 1, d))
    for x, s in zip(particles, scores, strict=True):
        phi = np.concatenate([[1.0], x])
        gradient = np.vstack([np.zeros(d), np.eye(d)])
        total += np.outer(phi, s) + gradient
    spread = np.concatenate([[1.0], particles.std(axis=0)])
    return np.max(np.abs((total / n) @ root / spread[:, None]))
