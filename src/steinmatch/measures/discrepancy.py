"""Distances between particles and target: kernelized Stein discrepancy, its random-feature form, MMD."""

from typing import Any, Literal

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jaxtyping import Array, Float

from steinmatch._checks import as_particles, as_weights, positive_number
from steinmatch._linalg import map_row_blocks, normalised, rows_per_block, squared_distances
from steinmatch._types import ArrayLike, Scalar, float64
from steinmatch.kernels import IMQ, RBF, AbstractKernel
from steinmatch.kernels.bandwidths import AbstractBandwidth
from steinmatch.kernels.features import RandomFourier
from steinmatch.measures.stein import bound_at
from steinmatch.targets import AbstractAnalyticTarget, AbstractTarget, scores_at


@float64
def ksd_squared(
    target: AbstractTarget,
    particles: ArrayLike,
    kernel: AbstractKernel | None = None,
    weights: ArrayLike | None = None,
    statistic: Literal["v", "u"] = "v",
    seed: int = 0,
) -> Scalar:
    """KSD^2 = E[kappa_p(x, x')] over pairs of particles (Eq. 3 of the paper), with IMQ unless a kernel is given.

    statistic "v": all pairs, sum_ij w_i w_j kappa_ij, never negative. "u": pairs of distinct particles only,
    sum_{i != j} w_i w_j kappa_ij / (1 - sum_i w_i^2), unbiased for independent draws, so it may be negative.
    """
    if statistic not in ("v", "u"):
        raise ValueError(f'ksd: statistic must be "v" or "u", got {statistic!r}.')
    chosen = IMQ() if kernel is None else kernel
    particles, weights, bound = bound_at("ksd", target, chosen, particles, weights, seed)
    n = particles.shape[0]
    if statistic == "u" and n < 2:
        raise ValueError(f"ksd: the U-statistic needs two particles at least, got {n}; use statistic='v'.")
    return _number(_ksd_squared(target, bound, particles, weights, statistic == "u"))


def ksd(
    target: AbstractTarget,
    particles: ArrayLike,
    kernel: AbstractKernel | None = None,
    weights: ArrayLike | None = None,
    statistic: Literal["v", "u"] = "v",
    seed: int = 0,
) -> Scalar:
    """The kernelized Stein discrepancy, the root of `ksd_squared` (0 where a U-statistic is negative)."""
    return _root(ksd_squared(target, particles, kernel, weights, statistic, seed))


@float64
def ksd_random_features(
    target: AbstractTarget,
    particles: ArrayLike,
    n_features: int = 1000,
    bandwidth: AbstractBandwidth | float | None = None,
    weights: ArrayLike | None = None,
    seed: int = 0,
) -> Scalar:
    """Random-feature KSD (Eq. 7 of the paper): the root of the mean over w of |G(w)|^2, for random cosines.

    Its expectation over the features is KSD^2 under RBF of the same bandwidth, for any number of features.
    """
    return ksd(target, particles, RandomFourier(n_features, bandwidth), weights, seed=seed)


def _number(value: Any) -> Any:
    """A float; what JAX traces stays as it is."""
    return value if isinstance(value, Tracer) else float(value)


@float64
def _root(squared: Any) -> Any:
    """The root, 0 of a negative number and with a derivative of 0 there."""
    if not isinstance(squared, Tracer):
        return float(np.sqrt(max(squared, 0.0)))
    positive = squared > 0.0
    return jnp.where(positive, jnp.sqrt(jnp.where(positive, squared, 1.0)), 0.0)


@eqx.filter_jit
def _ksd_squared(
    target: AbstractTarget, kernel: AbstractKernel, particles: Array, weights: Array | None, distinct: bool
) -> Float[Array, ""]:
    weights = normalised(weights, particles.shape[0])
    kernel, scores = kernel.hold(particles), scores_at(target, particles)
    total = kernel.pair_sum(particles, scores, weights)
    if not distinct:
        return total
    diagonal = jax.lax.map(
        lambda pair: kernel.stein_matrix(*(p[None, :] for p in (*pair, *pair)))[0, 0],
        (particles, scores),
    )
    return (total - weights**2 @ diagonal) / (1.0 - jnp.sum(weights**2))


@float64
def mmd(
    target: AbstractTarget | ArrayLike,
    particles: ArrayLike,
    bandwidth: float | None = None,
    weights: ArrayLike | None = None,
) -> Scalar:
    """The maximum mean discrepancy between the particles and the target under RBF(bandwidth).

    Closed form for Gaussian, GaussianMixture and GaussBernoulliRBM targets, which are normal mixtures:
    E k(x, Y) = det(I + C / h^2)^(-1/2) exp(-(x - m)^T (C + h^2 I)^{-1} (x - m) / 2) for Y ~ N(m, C). For other targets
    pass an array of their draws (k, d) instead. The default bandwidth depends on the target alone: h^2 = the trace of
    its covariance.
    """
    if isinstance(target, AbstractAnalyticTarget):
        particles = jnp.asarray(as_particles(particles, "mmd", target.dim))
        trace = np.trace(target.cov)
    elif isinstance(target, AbstractTarget):
        raise TypeError(
            f"mmd: {type(target).__name__} has neither a closed form nor exact draws. Pass draws of the target, "
            "mmd(draws, particles), or use ksd, which needs only the score."
        )
    else:
        target = jnp.asarray(as_particles(target, "mmd (draws of the target)"))
        particles = jnp.asarray(as_particles(particles, "mmd", target.shape[1]))
        trace = np.sum(np.var(target, axis=0))
    weights = as_weights(weights, particles.shape[0], "mmd")
    scale = np.sqrt(trace) if bandwidth is None else bandwidth
    scale = np.asarray(positive_number(scale, "bandwidth", "mmd"))
    if isinstance(target, AbstractAnalyticTarget):
        mixture = tuple(target.as_mixture())
        squared = _mmd_squared_mixture(mixture, particles, scale, weights)
    else:
        squared = _mmd_squared_draws(target, particles, scale, weights)
    return _root(_number(squared))


def _mean_kernel(
    x: Float[Array, "n d"],
    w: Float[Array, " n"],
    y: Float[Array, "k d"],
    v: Float[Array, " k"],
    scale: Scalar,
) -> Float[Array, ""]:
    """sum_ij w_i v_j exp(-|x_i - y_j|^2 / (2 scale^2)), by row blocks."""
    kernel = RBF(scale)
    rows = rows_per_block(y.shape[0])
    return w @ map_row_blocks(lambda block: kernel.profile(squared_distances(block, y)) @ v, x, rows=rows)


@eqx.filter_jit
def _mmd_squared_draws(draws: Array, particles: Array, scale: Scalar, weights: Array | None) -> Array:
    centre = jnp.mean(draws, axis=0)[None, :]
    x, y = particles - centre, draws - centre
    w, v = normalised(weights, x.shape[0]), normalised(None, y.shape[0])
    return _mean_kernel(x, w, x, w, scale) - 2.0 * _mean_kernel(x, w, y, v, scale) + _mean_kernel(y, v, y, v, scale)


@eqx.filter_jit
def _mmd_squared_mixture(
    mixture: tuple[Array, Array, Array], particles: Array, scale: Scalar, weights: Array | None
) -> Array:
    component_weights, means, cov = mixture
    w = normalised(weights, particles.shape[0])
    centre = (component_weights @ means)[None, :]
    variances, vectors = jnp.linalg.eigh(cov)
    x, means = (particles - centre) @ vectors, (means - centre) @ vectors

    def smoothed(a: Array, u: Array, b: Array, v: Array, copies: float) -> Array:
        """sum u_i v_j E k over Gaussian noise of covariance copies * C: a unit RBF in scaled coordinates."""
        lengths = jnp.sqrt(copies * variances + scale**2)[None, :]
        determinant = jnp.prod(scale / lengths)
        return determinant * _mean_kernel(a / lengths, u, b / lengths, v, jnp.ones(()))

    return (
        _mean_kernel(x, w, x, w, scale)
        - 2.0 * smoothed(x, w, means, component_weights, 1.0)
        + smoothed(means, component_weights, means, component_weights, 2.0)
    )
