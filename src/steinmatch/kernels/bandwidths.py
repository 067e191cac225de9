"""Bandwidth rules: pure functions of the particles that give the length h of a kernel."""

import abc

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from steinmatch._checks import positive_number
from steinmatch._linalg import distinct_pairs, median, squared_distances
from steinmatch._types import Scalar

_SMALLEST = 1e-60  # of a bandwidth: fourth powers of its inverse stay finite
_SUBSAMPLE = 1000  # the median is taken over the pairs of at most this many points


class AbstractBandwidth(eqx.Module):
    """particles (n, d) -> h > 0. A length: kernels divide squared distances by its square."""

    @abc.abstractmethod
    def __call__(self, particles: Float[Array, "n d"]) -> Float[Array, ""]: ...


class Fixed(AbstractBandwidth):
    """h itself, whatever the particles."""

    bandwidth: Scalar

    def __init__(self, bandwidth: Scalar):
        # An array, so that kernels of different bandwidths share their compiled code.
        if isinstance(bandwidth, jax.Array) or (isinstance(bandwidth, np.ndarray) and bandwidth.shape == ()):
            self.bandwidth = bandwidth
            return
        number = positive_number(bandwidth, "bandwidth", "Fixed")
        if not _SMALLEST < number < 1.0 / _SMALLEST:
            raise ValueError(
                f"Fixed: bandwidth must lie between {_SMALLEST:g} and {1.0 / _SMALLEST:g}, got {number:g}."
            )
        self.bandwidth = np.asarray(number)

    def __call__(self, particles: Float[Array, "n d"]) -> Float[Array, ""]:
        return jnp.asarray(self.bandwidth)


class Median(AbstractBandwidth):
    """The median rule: h^2 = median of |x_i - x_j|^2 over the distinct pairs / (2 log(n + 1)).

    Above n = 1000 the median is that of 1000 points, evenly spaced in the particles' order, always the same ones.
    h = 1 for a single particle. Where more than half of the pairs coincide, the mean of the squared distances stands
    in for their median, and h = 1 where all of them do: h is positive always.
    """

    def __call__(self, particles: Float[Array, "n d"]) -> Float[Array, ""]:
        n = particles.shape[0]
        if n == 1:
            return jnp.ones((), particles.dtype)
        if n > _SUBSAMPLE:
            particles = particles[np.linspace(0, n - 1, _SUBSAMPLE).astype(int)]
        centred = particles - jnp.mean(particles, axis=0)[None, :]
        squares = squared_distances(centred, centred)
        pairs = distinct_pairs(particles.shape[0])
        typical = median(squares.ravel(), pairs.ravel())
        # Distances below rounding of the matrix product count as none.
        rounding = 1e-14 * jnp.max(jnp.sum(centred * centred, axis=1))
        mean = jnp.mean(jnp.sum(centred * centred, axis=1)) * 2.0
        typical = jnp.where(typical > rounding, typical, mean)
        bandwidth_sq = typical / (2.0 * np.log(n + 1.0))
        return jnp.sqrt(jnp.where(bandwidth_sq > 0.0, bandwidth_sq, 1.0))


def as_bandwidth(value: AbstractBandwidth | Scalar) -> AbstractBandwidth:
    """A rule as it is; a positive number h as Fixed(h)."""
    return value if isinstance(value, AbstractBandwidth) else Fixed(value)
