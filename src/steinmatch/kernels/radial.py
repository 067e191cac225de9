"""Kernels of the distance, k(x, y) = g(|x - y|^2): RBF, IMQ, Matern; and any function of two points."""

import abc
import functools
import math
from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from steinmatch._linalg import BLOCK_ENTRIES, map_row_blocks, rows_per_block, squared_distances
from steinmatch._types import Scalar, Vector
from steinmatch.kernels.bandwidths import AbstractBandwidth, Fixed, Median, as_bandwidth
from steinmatch.kernels.base import AbstractKernel, check_output
from steinmatch.kernels.forms import blocked_pair_sum

_SMOOTHEST = 20.5
_WIDEST = 128  # dimensions that the fused kernel's tiles hold


class AbstractRadialKernel(AbstractKernel):
    """k(x, y) = g(r), r = |x - y|^2. The closed forms of its Stein operator need g and two derivatives."""

    bandwidth: eqx.AbstractVar[AbstractBandwidth]

    @abc.abstractmethod
    def profile(self, squares: Float[Array, "..."]) -> Float[Array, "..."]:
        """g(r) for squared distances r, entry by entry."""

    @abc.abstractmethod
    def profiles(self, squares: Float[Array, "..."]) -> tuple[Array, Array, Array]:
        """g(r), g'(r) and r g''(r) in closed form; the product r g'' is finite at r = 0 where g'' need not be."""

    def __call__(self, x: Vector, y: Vector) -> Scalar:
        return self.profile(jnp.sum((x - y) ** 2))

    def _held_bandwidth(self) -> Scalar:
        if not isinstance(self.bandwidth, Fixed):
            raise TypeError(
                f"{type(self).__name__}: its bandwidth is the rule {self.bandwidth}, which needs particles: "
                "kernel.hold(particles) gives a function of two points."
            )
        return self.bandwidth.bandwidth

    def velocity_of_rows(self, rows: Array, particles: Array, scores: Array, weights: Array) -> Float[Array, "b d"]:
        """With k = g(r), r = |x - y|^2: v(x) = sum_j w_j [g_j s_j + 2 g'_j (x_j - x)], at some of centred particles."""
        g, first, _ = self.profiles(squared_distances(rows, particles))
        repulsion = first @ jnp.concatenate([weights[:, None] * particles, weights[:, None]], axis=1)
        return g @ (weights[:, None] * scores) + 2.0 * (repulsion[:, :-1] - repulsion[:, -1:] * rows)

    def velocity(
        self, particles: Float[Array, "n d"], scores: Float[Array, "n d"], weights: Float[Array, " n"]
    ) -> Float[Array, "n d"]:
        """By matrix products: of whole n x n matrices, or by blocks of rows where these would be large."""
        centred = particles - jnp.mean(particles, axis=0)[None, :]
        n = len(particles)
        if n * n <= 2 * BLOCK_ENTRIES:
            return self.velocity_of_rows(centred, centred, scores, weights)
        return map_row_blocks(
            lambda rows: self.velocity_of_rows(rows, centred, scores, weights), centred, rows=rows_per_block(n)
        )

    def stein_matrix(
        self, x: Float[Array, "n d"], scores_x: Array, y: Float[Array, "k d"], scores_y: Array
    ) -> Float[Array, "n k"]:
        """With k = g(r), r = |x - y|^2: s_x.s_y g + 2 g' (s_y - s_x).(x - y) - 2 d g' - 4 r g''."""
        centre = jnp.mean(y, axis=0)[None, :]
        x, y = x - centre, y - centre
        g, first, second = self.profiles(squared_distances(x, y))
        drift = x @ scores_y.T + scores_x @ y.T
        drift = drift - jnp.sum(x * scores_x, axis=1)[:, None] - jnp.sum(y * scores_y, axis=1)[None, :]
        return (scores_x @ scores_y.T) * g + 2.0 * first * (drift - x.shape[1]) - 4.0 * second

    def pair_sum(
        self, particles: Float[Array, "n d"], scores: Float[Array, "n d"], weights: Float[Array, " n"]
    ) -> Float[Array, ""]:
        return blocked_pair_sum(self, particles, scores, weights, len(particles))


class RBF(AbstractRadialKernel):
    """k(x, y) = exp(-|x - y|^2 / (2 h^2))."""

    bandwidth: AbstractBandwidth

    def __init__(self, bandwidth: AbstractBandwidth | Scalar | None = None):
        self.bandwidth = as_bandwidth(Median() if bandwidth is None else bandwidth)

    def hold(self, particles: Float[Array, "n d"]) -> "RBF":
        return RBF(Fixed(self.bandwidth(particles)))

    def profile(self, squares: Float[Array, "..."]) -> Float[Array, "..."]:
        return jnp.exp(squares * (-0.5 / self._held_bandwidth() ** 2))

    def profiles(self, squares: Float[Array, "..."]) -> tuple[Array, Array, Array]:
        rate = -0.5 / self._held_bandwidth() ** 2
        g = jnp.exp(rate * squares)
        return g, rate * g, rate**2 * squares * g

    def velocity_of_rows(self, rows: Array, particles: Array, scores: Array, weights: Array) -> Float[Array, "b d"]:
        """Of this kernel g' = rate g, so that one matrix product does."""
        rate = -0.5 / self._held_bandwidth() ** 2
        pull = weights[:, None] * (scores + 2.0 * rate * particles)
        k = jnp.exp(rate * squared_distances(rows, particles))
        product = k @ jnp.concatenate([pull, weights[:, None]], axis=1)
        return product[:, :-1] - 2.0 * rate * product[:, -1:] * rows

    def velocity(
        self, particles: Float[Array, "n d"], scores: Float[Array, "n d"], weights: Float[Array, " n"]
    ) -> Float[Array, "n d"]:
        """On a GPU, in single precision, in one fused kernel."""
        if particles.dtype == jnp.float32 and particles.shape[1] < _WIDEST and jax.default_backend() == "gpu":
            from steinmatch.kernels.fused import rbf_velocity  # imported when used: Pallas takes a while

            return rbf_velocity(particles, scores, weights, self._held_bandwidth())
        return AbstractRadialKernel.velocity(self, particles, scores, weights)


class IMQ(AbstractRadialKernel):
    """The inverse multiquadric k(x, y) = (1 + |x - y|^2 / h^2)^(-exponent), exponent in (0, 1), 1/2 by default."""

    bandwidth: AbstractBandwidth
    exponent: float = eqx.field(static=True)

    def __init__(self, bandwidth: AbstractBandwidth | Scalar | None = None, exponent: float = 0.5):
        self.bandwidth = as_bandwidth(Median() if bandwidth is None else bandwidth)
        if not 0.0 < exponent < 1.0:
            raise ValueError(f"IMQ: exponent must lie between 0 and 1, got {exponent!r}.")
        self.exponent = float(exponent)

    def hold(self, particles: Float[Array, "n d"]) -> "IMQ":
        return IMQ(Fixed(self.bandwidth(particles)), self.exponent)

    def profile(self, squares: Float[Array, "..."]) -> Float[Array, "..."]:
        return (1.0 + squares / self._held_bandwidth() ** 2) ** -self.exponent

    def profiles(self, squares: Float[Array, "..."]) -> tuple[Array, Array, Array]:
        rate = 1.0 / self._held_bandwidth() ** 2
        base = 1.0 + rate * squares
        g = base**-self.exponent
        first = -self.exponent * rate * g / base
        return g, first, -(self.exponent + 1.0) * rate * squares * first / base


class Matern(AbstractRadialKernel):
    """The Matern kernel of smoothness nu = 3/2, 5/2, 7/2, ..., with u = sqrt(2 nu) |x - y| / h:

        k = M_nu(u) = 2^(1 - nu) / Gamma(nu) u^nu K_nu(u),

    an exponential times a polynomial for these orders. The Stein operator needs nu > 1.
    """

    nu: float = eqx.field(static=True)
    bandwidth: AbstractBandwidth

    def __init__(self, nu: float = 2.5, bandwidth: AbstractBandwidth | Scalar | None = None):
        if not (1 < nu <= _SMOOTHEST and float(nu - 0.5).is_integer()):
            raise ValueError(
                f"Matern: nu must be one of 1.5, 2.5, 3.5, ..., {_SMOOTHEST} (above 1, for a Stein kernel to exist; "
                f"a half integer, so that the kernel has a closed form; above, it is an RBF kernel), got {nu!r}."
            )
        self.nu = float(nu)
        self.bandwidth = as_bandwidth(Median() if bandwidth is None else bandwidth)

    def hold(self, particles: Float[Array, "n d"]) -> "Matern":
        return Matern(self.nu, Fixed(self.bandwidth(particles)))

    def profile(self, squares: Float[Array, "..."]) -> Float[Array, "..."]:
        return _matern(self.nu, squares * (2.0 * self.nu / self._held_bandwidth() ** 2))

    def profiles(self, squares: Float[Array, "..."]) -> tuple[Array, Array, Array]:
        # With v = u^2: dM_nu/dv = -M_{nu-1} / (4 (nu - 1)).
        rate = 2.0 * self.nu / self._held_bandwidth() ** 2
        v = rate * squares
        first = -rate * _matern(self.nu - 1.0, v) / (4.0 * (self.nu - 1.0))
        if self.nu == 1.5:
            second = rate * jnp.sqrt(v) * jnp.exp(-jnp.sqrt(v)) / 4.0
        else:
            second = rate * v * _matern(self.nu - 2.0, v) / (16.0 * (self.nu - 1.0) * (self.nu - 2.0))
        return _matern(self.nu, v), first, second


@functools.partial(jax.custom_jvp, nondiff_argnums=(0,))
def _matern(nu: float, v: Float[Array, "..."]) -> Float[Array, "..."]:
    """M_nu(u) of v = u^2 for a half-integer nu >= 1/2; differentiable in v, also at v = 0 where nu > 1."""
    p = round(nu - 0.5)
    u = jnp.sqrt(v)
    polynomial = jnp.zeros_like(u)
    for i in range(p + 1):
        coefficient = math.factorial(p) * math.factorial(p + i) / math.factorial(2 * p)
        coefficient /= math.factorial(i) * math.factorial(p - i)
        polynomial = polynomial + coefficient * (2.0 * u) ** (p - i)
    return jnp.exp(-u) * polynomial


@_matern.defjvp
def _matern_jvp(nu: float, primals: tuple[Array], tangents: tuple[Array]) -> tuple[Array, Array]:
    (v,), (dv,) = primals, tangents
    if nu == 0.5:  # a kink at v = 0, where the derivative is taken as 0
        u = jnp.sqrt(jnp.where(v > 0.0, v, 1.0))
        slope = jnp.where(v > 0.0, -0.5 * jnp.exp(-u) / u, 0.0)
    else:
        slope = -_matern(nu - 1.0, v) / (4.0 * (nu - 1.0))
    return _matern(nu, v), slope * dv


class PairKernel(AbstractKernel):
    """Any positive definite function k(x, y) of two points, differentiated by JAX."""

    function: Callable[[Vector, Vector], Scalar]

    def __check_init__(self) -> None:
        if not callable(self.function):
            raise TypeError(f"PairKernel: function must be k(x, y) of two points, got {self.function!r:.80}.")

    def bind(self, key: PRNGKeyArray, particles: Float[Array, "n d"]) -> "PairKernel":
        check_output(self.function, (), 2, particles.shape[1], "PairKernel")
        return self

    def __call__(self, x: Vector, y: Vector) -> Scalar:
        return self.function(x, y)
