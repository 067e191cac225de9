"""Threads of BLAS, pairwise distances, the median without a sort, sums over row blocks, square roots of covariances."""

import functools
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

# A block of rows of an n x n matrix holds about this many entries (16 MiB in float64). Measured on 2 cores, n = 8000,
# d = 20: 189, 147, 168 and 209 ms for 2^18, 2^20, 2^21 and 2^22 entries.
BLOCK_ENTRIES = 2**21


def namespace(x: Any) -> Any:
    """The functions for x: those of `jax.numpy` for JAX's arrays, traced ones among them, else NumPy's."""
    return jnp if isinstance(x, jax.Array) else np


@functools.cache
def _blas() -> Any:
    import scipy.linalg  # noqa: F401 - its BLAS is another one than NumPy's, and both must be there to be found
    from threadpoolctl import ThreadpoolController

    return ThreadpoolController()


def one_thread() -> AbstractContextManager:
    """BLAS with one thread. Between calls its threads spin, and take the cores from XLA: automatic fits of 10 to 90
    dimensions took 1.1 to 2.7 s with one thread on two cores, 1.7 to 4.5 s with two.
    """
    return _blas().limit(limits=1, user_api="blas")


def hermite(x: Float[Array | np.ndarray, "..."], degree: int) -> list[Float[Array | np.ndarray, "..."]]:
    """He_k(x) / sqrt(k!) for k = 0 ... degree: orthonormal under a standard normal."""
    found = [namespace(x).ones_like(x), x]
    for k in range(1, degree):
        found.append((x * found[k] - np.sqrt(k) * found[k - 1]) / np.sqrt(k + 1.0))
    return found[: degree + 1]


def squared_distances(x: Float[Array, "n d"], y: Float[Array, "k d"]) -> Float[Array, "n k"]:
    """|x_i - y_j|^2 by one matrix product. Centre the points first: the error is about eps * max |x|^2.

    Distances at rounding level are set to 0, so that a point is at distance 0 from itself.
    """
    lengths = jnp.sum(x * x, axis=1)[:, None] + jnp.sum(y * y, axis=1)[None, :]
    squares = lengths - 2.0 * (x @ y.T)
    return jnp.where(squares > 1e-15 * lengths, squares, 0.0)


def distinct_pairs(n: int) -> Bool[Array, "n n"]:
    """Mask of the pairs i < j."""
    return jnp.arange(n)[:, None] < jnp.arange(n)[None, :]


def median(values: Float[Array, " n"], mask: Bool[Array, " n"] | None = None) -> Float[Array, ""]:
    """The median of the values under the mask (mean of the middle two for an even count), exactly.

    Bisection on counts, until a threshold separates the wanted order statistic from the next. For the 499,500 distances
    among 1000 points it takes 6 ms on 2 cores, where XLA's sort takes 113 ms.
    """
    mask = jnp.ones(values.shape, bool) if mask is None else mask
    total = jnp.sum(mask)
    low_values, high_values = jnp.where(mask, values, jnp.inf), jnp.where(mask, values, -jnp.inf)
    rank = (total + 1) // 2  # of the lower middle element, counted from one

    def unfinished(state: tuple) -> Bool[Array, ""]:
        low, high, count = state
        middle = 0.5 * (low + high)
        return (count != rank) & (low < middle) & (middle < high)

    def bisect(state: tuple) -> tuple:
        low, high, count = state
        middle = 0.5 * (low + high)
        below = jnp.sum(low_values <= middle)
        enough = below >= rank
        return (
            jnp.where(enough, low, middle),
            jnp.where(enough, middle, high),
            jnp.where(enough, below, count),
        )

    least = jnp.min(low_values)
    at_least = jnp.sum(low_values <= least)
    start = (least, jnp.max(high_values), total)
    _, threshold, count = jax.lax.while_loop(unfinished, bisect, start)
    threshold = jnp.where(at_least >= rank, least, threshold)
    count = jnp.where(at_least >= rank, at_least, count)
    lower = jnp.max(jnp.where(high_values <= threshold, high_values, -jnp.inf))
    upper = jnp.where(count > rank, lower, jnp.min(jnp.where(low_values > threshold, low_values, jnp.inf)))
    return jnp.where(total % 2 == 1, lower, 0.5 * (lower + upper))


def map_row_blocks(function: Callable[..., Array], *arrays: Float[Array, "n ..."], rows: int) -> Float[Array, "n ..."]:
    """function(block, ...) over blocks of `rows` rows of the arrays, one after another; results joined by rows."""
    n = arrays[0].shape[0]
    n_blocks = -(-n // rows)
    padding = n_blocks * rows - n

    def blocks(array: Array) -> Array:
        # Padded rows repeat the last one, so that they hold ordinary values; their results are dropped.
        padded = jnp.concatenate([array, jnp.repeat(array[-1:], padding, axis=0)]) if padding else array
        return padded.reshape(n_blocks, rows, *array.shape[1:])

    result = jax.lax.map(lambda block: function(*block), tuple(blocks(array) for array in arrays))
    return result.reshape(n_blocks * rows, *result.shape[2:])[:n]


def rows_per_block(n: int) -> int:
    """Rows in a block, so that block x n matrices stay at BLOCK_ENTRIES."""
    return max(1, min(n, BLOCK_ENTRIES // n))


def covariance(particles: Float[Array, "n d"], weights: Float[Array, " n"]) -> Float[Array, "d d"]:
    """Weighted covariance, ddof 0, for weights that sum to one."""
    centred = particles - (weights @ particles)[None, :]
    return (weights[:, None] * centred).T @ centred


def covariance_root(particles: Float[Array, "n d"], weights: Float[Array, " n"]) -> Float[Array, "d d"]:
    """A lower triangular L with L L^T = the particles' covariance; diagonal when n <= d.

    Always invertible: directions without spread are floored, and particles that all coincide, which have no scale, get
    the identity.
    """
    n, d = particles.shape
    cov = covariance(particles, weights)
    largest = jnp.max(jnp.diagonal(cov))
    sd = jnp.sqrt(jnp.maximum(jnp.diagonal(cov), 1e-16 * largest))
    sd = jnp.where(largest > 0.0, sd, 1.0)
    if n <= d:
        return jnp.diag(sd)
    correlation = cov / (sd[:, None] * sd[None, :]) + 1e-14 * jnp.eye(d)
    root = sd[:, None] * jnp.linalg.cholesky(correlation)
    return jnp.where(jnp.all(jnp.isfinite(root)), root, jnp.diag(sd))


def normalised(weights: Any, n: int) -> Float[Array, " n"]:
    """Weights that sum to one; equal ones for None."""
    return jnp.full(n, 1.0 / n) if weights is None else jnp.asarray(weights) / jnp.sum(weights)


def singular_values(matrix: Float[np.ndarray, "n m"]) -> tuple[Float[np.ndarray, " k"], float]:
    """The singular values for columns scaled to length one, and the level below which they are rounding.

    By NumPy: XLA's SVD gives nan for some matrices of equal rows, the features of particles that coincide.
    """
    lengths = np.linalg.norm(matrix, axis=0)
    values = np.linalg.svd(matrix / np.where(lengths > 0.0, lengths, 1.0), compute_uv=False)
    return values, float(max(matrix.shape) * np.finfo(np.float64).eps * values[0])


def numerical_rank(matrix: Float[np.ndarray, "n m"]) -> int:
    """The number of singular values above rounding."""
    values, tolerance = singular_values(matrix)
    return int(np.sum(values > tolerance))
