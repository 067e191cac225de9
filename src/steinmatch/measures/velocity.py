"""The SVGD velocity v(x) = sum_j w_j P_{x_j} k(x_j, x) at the particles, in five forms with one signature.

    direct      the definition, with autodiff: any kernel, O(n^2) memory times d
    matmul      radial kernels by matrix products, O(n^2) memory
    blocked     the same by blocks of rows, O(block n) memory
    features    V = Phi diag(c) G, O(n m d) time and O(n (m + d)) memory, never an n x n matrix
    fused       RBF in single precision on a GPU, in one kernel (`fused`)

`velocity_at` picks the fastest form that is exact for the kernel; the others are there to be compared with.
"""

from typing import Any, Protocol, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from steinmatch._checks import known_name
from steinmatch._linalg import (
    BLOCK_ENTRIES,
    covariance_root,
    map_row_blocks,
    normalised,
    rows_per_block,
    squared_distances,
)
from steinmatch._types import ArrayLike, Vector, float64, plain
from steinmatch.coordinates import AffineMap
from steinmatch.kernels import RBF, AbstractKernel, AbstractRadialKernel, Scaled, Sum, Whitened
from steinmatch.measures.stein import bound_at, features_at, residual_at
from steinmatch.targets import AbstractTarget, scores_at

T = TypeVar("T")
_WIDEST = 128  # dimensions that the fused kernel's tiles hold


class VelocityForm(Protocol):
    """The signature that all forms share; the kernel is held and the weights sum to one."""

    def __call__(
        self,
        kernel: AbstractKernel,
        particles: Float[Array, "n d"],
        scores: Float[Array, "n d"],
        weights: Float[Array, " n"],
    ) -> Float[Array, "n d"]: ...


def velocity_direct(
    kernel: AbstractKernel,
    particles: Float[Array, "n d"],
    scores: Float[Array, "n d"],
    weights: Float[Array, " n"],
) -> Float[Array, "n d"]:
    """The definition, v(x_i) = sum_j w_j [s_j k(x_j, x_i) + grad_{x_j} k(x_j, x_i)], by autodiff of the kernel."""

    def row(x: Vector) -> Vector:
        values, gradients = jax.vmap(lambda y: jax.value_and_grad(kernel)(y, x))(particles)
        return weights @ (values[:, None] * scores + gradients)

    n, d = particles.shape
    return map_row_blocks(jax.vmap(row), particles, rows=rows_per_block(n * d))


def _radial_rows(
    kernel: AbstractRadialKernel, rows: Array, particles: Array, scores: Array, weights: Array
) -> Float[Array, "b d"]:
    """With k = g(r), r = |x - y|^2: v(x) = sum_j w_j [g_j s_j + 2 g'_j (x_j - x)]."""
    squares = squared_distances(rows, particles)
    if isinstance(kernel, RBF):  # g' = rate g, so that one matrix product does
        rate = -0.5 / kernel._held_bandwidth() ** 2
        pull = weights[:, None] * (scores + 2.0 * rate * particles)
        product = jnp.exp(rate * squares) @ jnp.concatenate([pull, weights[:, None]], axis=1)
        return product[:, :-1] - 2.0 * rate * product[:, -1:] * rows
    g, first, _ = kernel.profiles(squares)
    repulsion = first @ jnp.concatenate([weights[:, None] * particles, weights[:, None]], axis=1)
    return g @ (weights[:, None] * scores) + 2.0 * (repulsion[:, :-1] - repulsion[:, -1:] * rows)


def _centred(particles: Float[Array, "n d"]) -> Float[Array, "n d"]:
    return particles - jnp.mean(particles, axis=0)[None, :]


def velocity_matmul(
    kernel: AbstractKernel,
    particles: Float[Array, "n d"],
    scores: Float[Array, "n d"],
    weights: Float[Array, " n"],
) -> Float[Array, "n d"]:
    """Radial kernels with whole n x n matrices."""
    assert isinstance(kernel, AbstractRadialKernel)
    centred = _centred(particles)
    return _radial_rows(kernel, centred, centred, scores, weights)


def velocity_blocked(
    kernel: AbstractKernel,
    particles: Float[Array, "n d"],
    scores: Float[Array, "n d"],
    weights: Float[Array, " n"],
) -> Float[Array, "n d"]:
    """Radial kernels by blocks of rows: memory O(block n)."""
    assert isinstance(kernel, AbstractRadialKernel)
    centred = _centred(particles)
    rows = rows_per_block(particles.shape[0])
    return map_row_blocks(lambda block: _radial_rows(kernel, block, centred, scores, weights), centred, rows=rows)


def velocity_features(
    kernel: AbstractKernel,
    particles: Float[Array, "n d"],
    scores: Float[Array, "n d"],
    weights: Float[Array, " n"],
) -> Float[Array, "n d"]:
    """Feature kernels: V = Phi diag(c) G."""
    residual = residual_at(kernel, particles, scores, weights)
    return features_at(kernel, particles) @ (kernel.feature_weights(particles.shape[1])[:, None] * residual)


def velocity_at(
    kernel: AbstractKernel,
    particles: Float[Array, "n d"],
    scores: Float[Array, "n d"],
    weights: Float[Array, " n"],
) -> Float[Array, "n d"]:
    """The velocity of a held kernel, in the fastest form that is exact for it."""
    n, d = particles.shape
    if kernel.n_features(d) is not None:
        return velocity_features(kernel, particles, scores, weights)
    match kernel:
        case Sum():
            parts = [velocity_at(term, particles, scores, weights) for term in kernel.terms]
            return jnp.sum(jnp.stack(parts), axis=0)
        case Scaled():
            return kernel.factor * velocity_at(kernel.kernel, particles, scores, weights)
        case Whitened() if isinstance(frame := kernel._frame(), AffineMap):
            # In z = L^{-1} (x - mu) the score is L^T s, and gradients in x are L^{-T} times those in z.
            inner = velocity_at(kernel.kernel, frame.whiten(particles), scores @ frame.root, weights)
            return jax.scipy.linalg.solve_triangular(frame.root, inner.T, lower=True, trans="T").T
        case RBF() if particles.dtype == jnp.float32 and d < _WIDEST and jax.default_backend() == "gpu":
            from steinmatch.measures.fused import rbf_velocity  # imported when used: Pallas takes a while

            return rbf_velocity(particles, scores, weights, kernel._held_bandwidth())
        case AbstractRadialKernel():
            form = velocity_matmul if n * n <= 2 * BLOCK_ENTRIES else velocity_blocked
            return form(kernel, particles, scores, weights)
        case _:
            return velocity_direct(kernel, particles, scores, weights)


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

    Zero at every particle is the fixed point equation (Eq. 8 of the paper). An unbound kernel is bound with `seed`;
    bandwidth rules are taken at the particles. With `dtype="float32"` sums over the particles are in single precision,
    to a relative error of 1e-4, where the kernel is radial: on a GPU many times faster (RBF in a fused kernel). Scores
    are in double all the same.
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
    if single and isinstance(kernel, AbstractRadialKernel):
        return velocity_at(*in_single(given))
    return velocity_at(*given).astype(jnp.float32 if single else jnp.float64)


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
        return velocity_at(kernel, particles, scores, weights) @ root
    features = features_at(kernel, particles)
    gradient = kernel.mean_gradient(particles, weights)
    mean = weights @ features
    sd = jnp.sqrt(weights @ (features - mean[None, :]) ** 2)
    # A spread at rounding level is either a constant feature (no gradient) or collapsed particles, whose spread is
    # then read off the gradient, so that they show a residual near 1.
    slope = jnp.sqrt(jnp.sum((gradient @ root) ** 2, axis=1))
    scale = jnp.where(sd > 1e-12 * jnp.abs(mean), sd, jnp.where(slope > 0.0, slope, 1.0))
    residual = features.T @ (weights[:, None] * scores) + gradient
    return residual @ root / scale[:, None]
