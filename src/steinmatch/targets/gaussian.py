"""Gaussian targets, and the normal mixture form that gives the analytic targets their closed forms."""

from collections.abc import Callable
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, PRNGKeyArray

from steinmatch._checks import positive_integer
from steinmatch._types import ArrayLike, Scalar, Vector, float64, plain
from steinmatch.targets.base import AbstractTarget, indexed


class NormalMixture(NamedTuple):
    """sum_c weights_c N(means_c, cov), one covariance for all components."""

    weights: np.ndarray  # (c,)
    means: np.ndarray  # (c, d)
    cov: np.ndarray  # (d, d)


class AbstractAnalyticTarget(AbstractTarget):
    """A target with exact moments, an exact sampler, and a form as a normal mixture."""

    mean: eqx.AbstractVar[np.ndarray]  # E[x], (d,)
    second_moment: eqx.AbstractVar[np.ndarray]  # E[x_i^2], (d,)
    cov: eqx.AbstractVar[np.ndarray]  # (d, d)
    sample: eqx.AbstractVar[Callable]  # (key, n) -> n exact draws, (n, d)
    as_mixture: eqx.AbstractVar[Callable]  # () -> NormalMixture

    @property
    def names(self) -> tuple[str, ...]:
        return indexed("x", (self.dim,))


class Gaussian(AbstractAnalyticTarget):
    """N(mean, cov) on R^d: log p(x) = -1/2 (x - mean)^T cov^{-1} (x - mean) - 1/2 log det(2 pi cov)."""

    mean: np.ndarray
    cov: np.ndarray
    precision: np.ndarray
    root: np.ndarray  # lower triangular, root root^T = cov
    constrain: None = eqx.field(static=True)
    differentiable: bool = eqx.field(static=True)

    def __init__(self, mean: ArrayLike, cov: ArrayLike):
        mean, cov = np.asarray(mean, np.float64), np.asarray(cov, np.float64)
        if mean.ndim != 1 or cov.shape != (mean.size, mean.size):
            raise ValueError(f"Gaussian: mean must have shape (d,) and cov (d, d), got {mean.shape} and {cov.shape}.")
        if not np.isfinite(mean).all() or not np.allclose(cov, cov.T, rtol=1e-10, atol=0.0):
            raise ValueError("Gaussian: mean must be finite and cov symmetric.")
        try:
            root = np.linalg.cholesky(cov)
        except np.linalg.LinAlgError as error:
            least = np.linalg.eigvalsh(cov)[0]
            raise ValueError(
                f"Gaussian: cov must be positive definite, its smallest eigenvalue is {least:.3g}."
            ) from error
        inverse_root = np.linalg.solve(root, np.eye(mean.size))
        self.mean, self.cov, self.root = mean, cov, root
        self.precision = inverse_root.T @ inverse_root
        self.constrain = None
        self.differentiable = True

    @property
    def dim(self) -> int:
        return self.mean.shape[0]

    @property
    def second_moment(self) -> np.ndarray:
        return self.mean**2 + np.diagonal(self.cov)

    @float64
    def log_density(self, x: Vector) -> Scalar:
        centred = jnp.asarray(x) - self.mean
        log_det = jnp.sum(jnp.log(jnp.diagonal(jnp.asarray(self.root))))
        return -0.5 * centred @ self.precision @ centred - log_det - 0.5 * self.dim * jnp.log(2 * jnp.pi)

    @float64
    def score(self, x: Vector) -> Vector:
        return -self.precision @ (jnp.asarray(x) - self.mean)

    @float64
    def sample(self, key: PRNGKeyArray, n: int) -> Float[np.ndarray, "n d"]:
        """n exact independent draws."""
        noise = jax.random.normal(key, (n, self.dim), jnp.float64)
        return plain(self.mean[None, :] + noise @ self.root.T)

    def as_mixture(self) -> NormalMixture:
        return NormalMixture(np.ones(1), self.mean[None, :], self.cov)

    @staticmethod
    @float64
    def random(key: PRNGKeyArray, dim: int = 100, condition_number: float = 10.0) -> "Gaussian":
        """The paper's random Gaussian: mean ~ Unif[-3, 3], cov = I + a A A^T with A_ij ~ N(0, 1).

        a is set so that the condition number is the one asked for, exactly: a = (c - 1) / (l_max - c l_min) for the
        extreme eigenvalues l of A A^T; a draw with l_max <= c l_min cannot give it and is redrawn.
        """
        dim = positive_integer(dim, "dim", "Gaussian.random")
        if not 1.0 <= condition_number < np.inf:
            raise ValueError(f"Gaussian.random: condition_number must be at least 1, got {condition_number!r}.")
        mean_key, root_key = jax.random.split(key)
        mean = jax.random.uniform(mean_key, (dim,), jnp.float64, -3.0, 3.0)
        if condition_number == 1.0:
            return Gaussian(mean, np.eye(dim))
        if dim == 1:
            raise ValueError("Gaussian.random: dim=1 has condition number 1 only; use dim >= 2.")
        for attempt in range(1000):
            draw = jax.random.normal(jax.random.fold_in(root_key, attempt), (dim, dim), jnp.float64)
            values, vectors = np.linalg.eigh(np.asarray(draw @ draw.T))
            values = np.maximum(values, 0.0)
            if values[-1] > condition_number * values[0]:
                a = (condition_number - 1.0) / (values[-1] - condition_number * values[0])
                cov = (vectors * (1.0 + a * values)) @ vectors.T
                return Gaussian(mean, 0.5 * (cov + cov.T))
        raise ValueError(
            f"Gaussian.random: no draw out of 1000 in dim={dim} could give condition number {condition_number}; "
            "ask for a smaller one."
        )


def exact_mixture_moments(mixture: NormalMixture) -> tuple[np.ndarray, np.ndarray]:
    """Mean and covariance of a normal mixture."""
    mean = mixture.weights @ mixture.means
    centred = mixture.means - mean
    return mean, mixture.cov + (mixture.weights[:, None] * centred).T @ centred


@float64
def sample_mixture(mixture: NormalMixture, key: PRNGKeyArray, n: int) -> Float[np.ndarray, "n d"]:
    """n exact draws from a normal mixture with identity covariance."""
    which_key, noise_key = jax.random.split(key)
    which = jax.random.choice(which_key, len(mixture.weights), (n,), p=jnp.asarray(mixture.weights))
    noise = jax.random.normal(noise_key, (n, mixture.means.shape[1]), jnp.float64)
    return plain(jnp.asarray(mixture.means)[which] + noise)
