"""Gaussian mixtures with identity covariance, the paper's Figure 3."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, PRNGKeyArray

from steinmatch._checks import as_particles, as_weights, positive_integer
from steinmatch._types import ArrayLike, Scalar, Vector, float64, plain
from steinmatch.targets.gaussian import (
    AbstractAnalyticTarget,
    NormalMixture,
    exact_mixture_moments,
    sample_mixture,
)


class GaussianMixture(AbstractAnalyticTarget):
    """p(x) = sum_c weights_c N(x; means_c, I), equal weights unless given."""

    means: np.ndarray
    weights: np.ndarray
    mean: np.ndarray
    cov: np.ndarray
    constrain: None = eqx.field(static=True)
    differentiable: bool = eqx.field(static=True)

    def __init__(self, means: ArrayLike, weights: ArrayLike | None = None):
        self.means = as_particles(means, "GaussianMixture (means, one row a component)")
        n_components = self.means.shape[0]
        weights = np.ones(n_components) if weights is None else weights
        checked = as_weights(weights, n_components, "GaussianMixture")
        assert checked is not None
        self.weights = checked / checked.sum()
        self.mean, self.cov = exact_mixture_moments(self.as_mixture())
        self.constrain = None
        self.differentiable = True

    @property
    def dim(self) -> int:
        return self.means.shape[1]

    @property
    def second_moment(self) -> np.ndarray:
        return self.mean**2 + np.diagonal(self.cov)

    def as_mixture(self) -> NormalMixture:
        return NormalMixture(self.weights, self.means, np.eye(self.dim))

    @float64
    def log_density(self, x: Vector) -> Scalar:
        squares = jnp.sum((jnp.asarray(x)[None, :] - self.means) ** 2, axis=1)
        constant = 0.5 * self.dim * jnp.log(2 * jnp.pi)
        return jax.nn.logsumexp(jnp.log(self.weights) - 0.5 * squares) - constant

    @float64
    def score(self, x: Vector) -> Vector:
        """sum_c r_c(x) (means_c - x) with r the components' posterior probabilities at x."""
        x = jnp.asarray(x)
        squares = jnp.sum((x[None, :] - self.means) ** 2, axis=1)
        responsibilities = jax.nn.softmax(jnp.log(self.weights) - 0.5 * squares)
        return responsibilities @ self.means - x

    def sample(self, key: PRNGKeyArray, n: int) -> Float[np.ndarray, "n d"]:
        """n exact independent draws."""
        return sample_mixture(self.as_mixture(), key, n)

    @staticmethod
    @float64
    def random(key: PRNGKeyArray, dim: int = 100, alpha: float = 1.0, components: int = 15) -> "GaussianMixture":
        """The paper's random mixture: equal weights, means alpha * Unif[0, 1]^d."""
        dim = positive_integer(dim, "dim", "GaussianMixture.random")
        components = positive_integer(components, "components", "GaussianMixture.random")
        uniform = jax.random.uniform(key, (components, dim), jnp.float64)
        return GaussianMixture(plain(alpha * uniform))
