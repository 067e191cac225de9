"""J J^T + lambda I factorised in single precision: the preconditioner of conjugate gradients that have become slow.

In the flat valleys of a target such as the paper's RBM (d = 100, m = n = 200, so 20,000 equations) thousands of plain
iterations do not solve one step. A factor in single precision, 4 bytes for each of the m d x m d entries, takes 75 s on
2 cores and serves many steps, with 5 to 90 iterations each: the residual of one such model fell from 4e-4 to 4e-6 in
three minutes, where ten minutes without it had ended at 5e-5.

The factorisation is by blocks and by hand because LAPACK's, through SciPy's OpenBLAS, crashed at 20,000 rows here; the
products of blocks that it is made of run at the machine's full speed.
"""

from collections.abc import Callable

import equinox as eqx
import jax.numpy as jnp
import numpy as np
import scipy.linalg
from jaxtyping import Array

from steinmatch.solvers.fixed_point import Equations, dense_jacobian

_BLOCK = 2000  # rows of the factor that are handled at once
_CHUNK = 2**25  # entries of the Jacobian that are formed at once
_LEAST_DAMPING = 1e-5  # below it single precision does not see the damping


class Factor:
    """A lower triangular factor of J J^T + lambda I, relative to the mean diagonal `unit` of J J^T."""

    def __init__(self, equations: Equations, z: Array, scores: Array, slopes: Array, damping: float):
        gram = _gram(equations, z, scores, slopes)
        self.unit = float(np.mean(np.diag(gram)))
        gram[np.diag_indices_from(gram)] += np.float32(max(damping, _LEAST_DAMPING) * self.unit)
        self.lower = cholesky_by_blocks(gram)

    def solve(self, right: np.ndarray) -> np.ndarray:
        """(J J^T + lambda I)^{-1} right, to single precision."""
        y = right.astype(np.float32)
        starts = range(0, len(y), _BLOCK)
        for a in starts:
            block = slice(a, a + _BLOCK)
            y[block] -= self.lower[block, :a] @ y[:a]
            y[block] = _triangular(self.lower[block, block], y[block], 0)
        for a in reversed(starts):
            block, below = slice(a, a + _BLOCK), slice(a + _BLOCK, None)
            y[block] -= self.lower[below, block].T @ y[below]
            y[block] = _triangular(self.lower[block, block], y[block], 1)
        return y.astype(np.float64)


def cholesky_by_blocks(matrix: np.ndarray, block: int = _BLOCK) -> np.ndarray:
    """The lower Cholesky factor, in the place of the matrix, of which only the lower triangle is read.

    What stands above the diagonal blocks is left as it was.
    """
    size = len(matrix)
    for a in range(0, size, block):
        b = min(a + block, size)
        matrix[a:b, a:b] = np.linalg.cholesky(matrix[a:b, a:b])
        matrix[b:, a:b] = _triangular(matrix[a:b, a:b], matrix[b:, a:b].T, 0).T
        for c in range(b, size, block):
            matrix[c:, c : c + block] -= matrix[c:, a:b] @ matrix[c : c + block, a:b].T
    return matrix


def preconditioned_conjugate_gradients(
    product: Callable[[np.ndarray], np.ndarray],
    precondition: Callable[[np.ndarray], np.ndarray],
    right: np.ndarray,
    tolerance: float,
    most: int,
) -> tuple[np.ndarray, int]:
    """y with |A y - right| <= tolerance |right|, or the y after `most` iterations; and how many there were.

    A loop in Python: each iteration reads the whole factor, beside which the loop costs nothing.
    """
    y, left = np.zeros_like(right), right.copy()
    direction = lifted = precondition(left)
    square = left @ lifted
    goal = tolerance * np.linalg.norm(right)
    for i in range(most):
        if np.linalg.norm(left) <= goal or not square > 0.0:
            return y, i
        image = product(direction)
        length = square / (direction @ image)
        y, left = y + length * direction, left - length * image
        lifted = precondition(left)
        before, square = square, left @ lifted
        direction = lifted + (square / before) * direction
    return y, most


def _gram(equations: Equations, z: Array, scores: Array, slopes: Array) -> np.ndarray:
    """The lower triangle of J J^T, summed over groups of particles."""
    assert equations.scale is not None
    n, d = z.shape
    size = equations.scale.shape[0] * d
    gram = np.zeros((size, size), np.float32)
    particles = max(1, min(n, _CHUNK // (size * d)))
    for first in range(0, n, particles):
        # The last group reaches back to have the same shape, its doubled particles without weight: one compilation.
        start = min(first, n - particles)
        group = slice(start, start + particles)
        weights = jnp.where(jnp.arange(start, start + particles) < first, 0.0, equations.weights[group])
        columns = np.asarray(_columns(equations, weights, z[group], scores[group], slopes[group]))
        for a in range(0, size, _BLOCK):
            gram[a : a + _BLOCK, : a + _BLOCK] += columns[a : a + _BLOCK] @ columns[: a + _BLOCK].T
    return gram


@eqx.filter_jit
def _columns(equations: Equations, weights: Array, z: Array, scores: Array, slopes: Array) -> Array:
    group = eqx.tree_at(lambda e: e.weights, equations, weights)
    return dense_jacobian(group, z, scores, slopes).astype(jnp.float32)


def _triangular(lower: np.ndarray, right: np.ndarray, transposed: int) -> np.ndarray:
    return scipy.linalg.solve_triangular(lower, right, lower=True, trans=transposed, check_finite=False)
