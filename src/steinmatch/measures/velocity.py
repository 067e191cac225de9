"""The SVGD velocity v(x) = sum_j w_j P_{x_j} k(x_j, x) at the particles, and the residual that stop rules look at.

The forms that velocities take are the kernels' own (`kernels.base`, `kernels.forms`, `kernels.radial`).
"""

from typing import Any, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from steinmatch._checks import known_name
from steinmatch._linalg import covariance_root, normalised
from steinmatch._types import ArrayLike, float64, plain
from steinmatch.kernels import AbstractKernel
from steinmatch.kernels.forms import feature_spread, features_at
from steinmatch.measures.stein import bound_at
from steinmatch.targets import AbstractTarget, scores_at

T = TypeVar("T")


@float64
def velocity(
    target: AbstractTarget,
    kernel: AbstractKernel,
    particles: ArrayLike,
    weights: ArrayLike | None = None,
    seed: int = 0,
    dtype: str | None = None,
) -> Float[np.ndarray, "n d"] | Float[Array, "n d"]:
    """The SVGD direction at the particles, v(x_i) = (1/n) sum_j [s(x_j) k(x_j, x_i) + grad_{x_j} k(x_j, x_i)].

    Zero at every particle is the fixed point equation (Eq. 9 of the paper). An unbound kernel is bound with `seed`;
    bandwidth rules are taken at the particles. With `dtype="float32"` sums over the particles are in single precision,
    to a relative error of 1e-4: on a GPU many times faster (RBF in a fused kernel). Scores are in double all the same.
    """
    wanted = known_name("float64" if dtype is None else str(dtype), _PRECISIONS, "dtype", "velocity")
    particles, weights, bound = bound_at("velocity", target, kernel, particles, weights, seed)
    return plain(_velocity(target, bound, particles, weights, wanted == "float32"))


_PRECISIONS = ("float32", "float64")


@eqx.filter_jit
def _velocity(
    target: AbstractTarget, kernel: AbstractKernel, particles: Array, weights: Array | None, single: bool
) -> Float[Array, "n d"]:
    weights = normalised(weights, particles.shape[0])
    given = (kernel.hold(particles), particles, scores_at(target, particles), weights)
    kernel, *at = in_single(given) if single else given
    return kernel.velocity(*at).astype(jnp.float32 if single else jnp.float64)


def in_single(tree: T) -> T:
    """The arrays of a tree in single precision."""

    def cast(leaf: Any) -> Any:
        array = isinstance(leaf, jax.Array | np.ndarray | np.generic) and jnp.issubdtype(leaf.dtype, jnp.floating)
        return jnp.asarray(leaf, jnp.float32) if array else leaf

    return jax.tree.map(cast, tree)


def scaled_residual_at(
    kernel: AbstractKernel,
    particles: Float[Array, "n d"],
    scores: Float[Array, "n d"],
    weights: Float[Array, " n"],
    root: Float[Array | np.ndarray, "d d"] | None = None,
) -> Float[Array, "rows d"]:
    """The scale-free residual that stop rules and certificates use.

    For m <= n features: G L, with row l divided by the standard deviation of phi_l over the particles (by 1 for a
    constant). For full-rank kernels and for m > n, where G = 0 has no solution in general: V L, the velocity in
    whitened coordinates. L is `root`, or else a square root of the particles' covariance.
    """
    n, d = particles.shape
    root = covariance_root(particles, weights) if root is None else root
    m = kernel.n_features(d)
    if m is None or m > n:
        return kernel.velocity(particles, scores, weights) @ root
    features = features_at(kernel, particles)
    gradient = kernel.mean_gradient(particles, weights)
    spread = feature_spread(features, weights)
    # A spread at rounding level is either a constant feature (no gradient) or collapsed particles, whose spread is
    # then read off the gradient, so that they show a residual near 1.
    slope = jnp.sqrt(jnp.sum((gradient @ root) ** 2, axis=1))
    scale = jnp.where(spread > 0.0, spread, jnp.where(slope > 0.0, slope, 1.0))
    residual = features.T @ (weights[:, None] * scores) + gradient
    return residual @ root / scale[:, None]
