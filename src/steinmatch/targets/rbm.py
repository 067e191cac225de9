"""The Gauss-Bernoulli restricted Boltzmann machine, the paper's Figure 4."""

import itertools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, PRNGKeyArray

from steinmatch._checks import positive_integer
from steinmatch._types import ArrayLike, Scalar, Vector, float64, plain
from steinmatch.targets.gaussian import (
    AbstractAnalyticTarget,
    NormalMixture,
    exact_mixture_moments,
    sample_mixture,
)

_MOST_HIDDEN = 20  # 2^20 components are the most that are enumerated


class GaussBernoulliRBM(AbstractAnalyticTarget):
    """p(x) ~ sum over h in {-1, 1}^d' of exp(x^T B h + b^T x + c^T h - |x|^2 / 2), the hidden units summed out:

        log p(x) = b^T x - |x|^2 / 2 + sum_k log 2 cosh((B^T x + c)_k) + constant.

    It is a Gaussian mixture: component h has mean B h + b, covariance I, and weight ~ exp(c^T h + |B h + b|^2 / 2).
    Its moments are exact, by enumeration of the 2^d' components.
    """

    B: np.ndarray  # (d, d')
    b: np.ndarray  # (d,)
    c: np.ndarray  # (d',)
    mean: np.ndarray
    cov: np.ndarray
    constrain: None = eqx.field(static=True)
    differentiable: bool = eqx.field(static=True)

    def __init__(self, B: ArrayLike, b: ArrayLike, c: ArrayLike):
        self.B, self.b, self.c = (np.asarray(value, np.float64) for value in (B, b, c))
        if self.B.ndim != 2 or self.b.shape != self.B.shape[:1] or self.c.shape != self.B.shape[1:]:
            raise ValueError(
                "GaussBernoulliRBM: B must have shape (d, d'), b (d,) and c (d',); got "
                f"{self.B.shape}, {self.b.shape}, {self.c.shape}."
            )
        if self.B.shape[1] > _MOST_HIDDEN:
            raise ValueError(
                f"GaussBernoulliRBM: {self.B.shape[1]} hidden units would need 2^{self.B.shape[1]} components for the "
                f"exact moments; at most {_MOST_HIDDEN} are enumerated."
            )
        self.mean, self.cov = exact_mixture_moments(self.as_mixture())
        self.constrain = None
        self.differentiable = True

    @property
    def dim(self) -> int:
        return self.B.shape[0]

    @property
    def second_moment(self) -> np.ndarray:
        return self.mean**2 + np.diagonal(self.cov)

    def as_mixture(self) -> NormalMixture:
        hidden = np.array(list(itertools.product([-1.0, 1.0], repeat=self.B.shape[1])))
        means = hidden @ self.B.T + self.b
        log_weights = hidden @ self.c + 0.5 * np.sum(means**2, axis=1)
        weights = np.exp(log_weights - log_weights.max())
        return NormalMixture(weights / weights.sum(), means, np.eye(self.dim))

    @float64
    def log_density(self, x: Vector) -> Scalar:
        x = jnp.asarray(x)
        field = x @ self.B + self.c
        return self.b @ x - 0.5 * x @ x + jnp.sum(jnp.logaddexp(field, -field))

    @float64
    def score(self, x: Vector) -> Vector:
        x = jnp.asarray(x)
        return self.b - x + self.B @ jnp.tanh(x @ self.B + self.c)

    def sample(self, key: PRNGKeyArray, n: int) -> Float[np.ndarray, "n d"]:
        """n exact independent draws."""
        return sample_mixture(self.as_mixture(), key, n)

    @staticmethod
    @float64
    def random(key: PRNGKeyArray, dim: int = 100, hidden: int = 10) -> "GaussBernoulliRBM":
        """The paper's random model: b, c ~ N(0, I) and the entries of B uniform on {-0.1, 0.1}."""
        dim = positive_integer(dim, "dim", "GaussBernoulliRBM.random")
        hidden = positive_integer(hidden, "hidden", "GaussBernoulliRBM.random")
        coupling_key, b_key, c_key = jax.random.split(key, 3)
        coupling = 0.1 * jax.random.rademacher(coupling_key, (dim, hidden), jnp.float64)
        b = jax.random.normal(b_key, (dim,), jnp.float64)
        c = jax.random.normal(c_key, (hidden,), jnp.float64)
        return GaussBernoulliRBM(plain(coupling), plain(b), plain(c))
