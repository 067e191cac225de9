"""Kernels programmed from feature maps, written for one point: k(x, y) = sum_l c_l phi_l(x) phi_l(y)."""

import abc
import functools
import itertools
import math
from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from steinmatch._checks import check_size, positive_integer
from steinmatch._linalg import hermite
from steinmatch._types import Scalar, Vector
from steinmatch.kernels.bandwidths import AbstractBandwidth, Fixed, Median, as_bandwidth
from steinmatch.kernels.base import AbstractKernel, Scaled, Sum, check_output

_WIDEST = 128  # dimensions that the fused kernel's tiles hold


class AbstractFeatureKernel(AbstractKernel):
    """A kernel of finitely many features: a subclass needs `phi` and `n_features`."""

    @abc.abstractmethod
    def n_features(self, dim: int) -> int:
        """m, for points of so many dimensions."""

    @abc.abstractmethod
    def phi(self, x: Vector) -> Float[Array, " m"]:
        """The features of one point."""

    def __call__(self, x: Vector, y: Vector) -> Scalar:
        return jnp.sum(self.feature_weights(x.shape[0]) * self.phi(x) * self.phi(y))

    def feature_weights(self, dim: int) -> Float[Array, " m"]:
        return jnp.ones(self.n_features(dim))


class Linear(AbstractFeatureKernel):
    """Features (1, x): k(x, y) = 1 + x . y. Exact mean and covariance for Gaussian targets (Theorem 3.3)."""

    def n_features(self, dim: int) -> int:
        return dim + 1

    def phi(self, x: Vector) -> Float[Array, " m"]:
        return jnp.concatenate([jnp.ones(1, x.dtype), x])

    def mean_gradient(self, particles: Float[Array, "n d"], weights: Float[Array, " n"]) -> Float[Array, "m d"]:
        d, kind = particles.shape[1], weights.dtype
        return jnp.sum(weights) * jnp.concatenate([jnp.zeros((1, d), kind), jnp.eye(d, dtype=kind)])

    def describe(self) -> str:
        return "linear"

    def polynomial_degree(self) -> int:
        return 1

    def linear_rows(self, dim: int) -> int:
        return 1


class Polynomial(AbstractFeatureKernel):
    """All products of normalised Hermite polynomials of total degree at most `degree`.

    phi(x) = prod_j He_{a_j}(x_j) / sqrt(a_j!), orthonormal under N(0, I). They span all polynomials of that degree;
    for a Gaussian target the particles then match all polynomials of one degree more. `Whitened(Polynomial(p))` takes
    them of the whitened point, where they are well scaled.
    """

    degree: int = eqx.field(static=True)

    def __init__(self, degree: int):
        self.degree = positive_integer(degree, "degree", "Polynomial")

    def bind(self, key: PRNGKeyArray, particles: Float[Array, "n d"]) -> "Polynomial":
        check_size(particles.shape[0], self.n_features(particles.shape[1]), f"Polynomial({self.degree})")
        return self

    def n_features(self, dim: int) -> int:
        return math.comb(dim + self.degree, self.degree)

    def phi(self, x: Vector) -> Float[Array, " m"]:
        degrees, variables = _monomials(x.shape[0], self.degree)
        return jnp.prod(jnp.stack(hermite(x, self.degree))[degrees, variables], axis=1)

    def describe(self) -> str:
        return f"polynomial (degree {self.degree})"

    def polynomial_degree(self) -> int:
        return self.degree


@functools.cache
def _monomials(dim: int, degree: int) -> tuple[np.ndarray, np.ndarray]:
    """The monomials of total degree <= degree, ordered by degree: for each, `degree` factors (exponent, variable).

    Unused factors have exponent 0 and so the value 1.
    """
    exponents, variables = [], []
    for total in range(degree + 1):
        for combination in itertools.combinations_with_replacement(range(dim), total):
            counts = [(combination.count(j), j) for j in sorted(set(combination))]
            counts += [(0, 0)] * (degree - len(counts))
            exponents.append([count for count, _ in counts])
            variables.append([variable for _, variable in counts])
    return np.array(exponents, dtype=np.int32), np.array(variables, dtype=np.int32)


class RandomFourier(AbstractFeatureKernel):
    """m random cosines, phi(x, w) = sqrt(2) cos(w1 . x / h + w0) with w1 ~ N(0, I), w0 ~ U[0, 2 pi], weight 1/m.

    As m grows the kernel tends to RBF of the same bandwidth (paper, section 2). The w are drawn at binding and kept;
    the bandwidth follows its rule.
    """

    n: int = eqx.field(static=True)
    bandwidth: AbstractBandwidth
    frequencies: Float[Array | np.ndarray, "m d"] | None
    phases: Float[Array | np.ndarray, " m"] | None

    def __init__(
        self,
        n_features: int,
        bandwidth: AbstractBandwidth | Scalar | None = None,
        frequencies: Float[Array | np.ndarray, "m d"] | None = None,
        phases: Float[Array | np.ndarray, " m"] | None = None,
    ):
        self.n = positive_integer(n_features, "n_features", "RandomFourier")
        self.bandwidth = as_bandwidth(Median() if bandwidth is None else bandwidth)
        self.frequencies, self.phases = frequencies, phases

    def bind(self, key: PRNGKeyArray, particles: Float[Array, "n d"]) -> "RandomFourier":
        if self.frequencies is not None:
            return self
        check_size(self.n, sum(particles.shape), f"RandomFourier({self.n})")
        frequency_key, phase_key = jax.random.split(key)
        frequencies = jax.random.normal(frequency_key, (self.n, particles.shape[1]), jnp.float64)
        phases = jax.random.uniform(phase_key, (self.n,), jnp.float64, 0.0, 2.0 * np.pi)
        return RandomFourier(self.n, self.bandwidth, frequencies, phases)

    def hold(self, particles: Float[Array, "n d"]) -> "RandomFourier":
        return RandomFourier(self.n, Fixed(self.bandwidth(particles)), self.frequencies, self.phases)

    def n_features(self, dim: int) -> int:
        return self.n

    def feature_weights(self, dim: int) -> Float[Array, " m"]:
        return jnp.full(self.n, 1.0 / self.n)

    def _waves(self) -> tuple[Float[Array | np.ndarray, "m d"], Float[Array | np.ndarray, " m"]]:
        if self.frequencies is None or self.phases is None:
            raise TypeError("RandomFourier: bind the kernel first, kernel.bind(key, particles), to draw its features.")
        if not isinstance(self.bandwidth, Fixed):
            raise TypeError("RandomFourier: hold the bandwidth first, kernel.hold(particles).")
        return self.frequencies / self.bandwidth.bandwidth, self.phases

    def phi(self, x: Vector) -> Float[Array, " m"]:
        waves, phases = self._waves()
        return math.sqrt(2.0) * jnp.cos(waves @ x + phases)

    def mean_gradient(self, particles: Float[Array, "n d"], weights: Float[Array, " n"]) -> Float[Array, "m d"]:
        waves, phases = self._waves()
        return -math.sqrt(2.0) * (weights @ jnp.sin(particles @ waves.T + phases[None, :]))[:, None] * waves

    def velocity(
        self, particles: Float[Array, "n d"], scores: Float[Array, "n d"], weights: Float[Array, " n"]
    ) -> Float[Array, "n d"]:
        """On a GPU, in single precision, in fused kernels."""
        if particles.dtype == jnp.float32 and particles.shape[1] <= _WIDEST and jax.default_backend() == "gpu":
            from steinmatch.kernels.fused_waves import waves_velocity  # imported when used: Pallas takes a while

            (_, phases), h = self._waves(), self.bandwidth.bandwidth  # type: ignore[attr-defined]
            assert self.frequencies is not None
            return waves_velocity(particles, scores, weights, self.frequencies, phases, h)
        return AbstractFeatureKernel.velocity(self, particles, scores, weights)

    def describe(self) -> str:
        return "random Fourier"


class LinearRandom(AbstractKernel):
    """The paper's kernel: alpha (1 + x . y) + beta sum over n - d - 1 random cosines, as many features as particles.

    alpha = 1 / (d + 1), beta = 1 / (n - d - 1); for n <= d + 1 exactly 1 + x . y. A specification: `bind` gives
    the kernel.
    """

    bandwidth: AbstractBandwidth

    def __init__(self, bandwidth: AbstractBandwidth | Scalar | None = None):
        self.bandwidth = as_bandwidth(Median() if bandwidth is None else bandwidth)

    def bind(self, key: PRNGKeyArray, particles: Float[Array, "n d"]) -> AbstractKernel:
        n, d = particles.shape
        if n <= d + 1:
            return Linear()
        random = RandomFourier(n - d - 1, self.bandwidth).bind(key, particles)
        # RandomFourier carries its weight 1 / (n - d - 1), which is beta.
        return Sum((Scaled(Linear(), np.asarray(1.0 / (d + 1))), random))

    def __call__(self, x: Vector, y: Vector) -> Scalar:
        raise TypeError("LinearRandom: bind the kernel first, kernel.bind(key, particles): it needs n, d and a key.")


class FeatureKernel(AbstractFeatureKernel):
    """The features of any function phi: x -> (m,) of one point, differentiated by JAX; weight 1 each."""

    function: Callable[[Vector], Float[Array, " m"]]

    def __check_init__(self) -> None:
        if not callable(self.function):
            raise TypeError(f"FeatureKernel: function must be phi(x) of one point, got {self.function!r:.80}.")

    def n_features(self, dim: int) -> int:
        return check_output(self.function, (None,), 1, dim, "FeatureKernel")[0]

    def phi(self, x: Vector) -> Float[Array, " m"]:
        return self.function(x)

    def describe(self) -> str:
        return "user's"
