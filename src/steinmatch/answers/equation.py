"""The Stein equation f = P . phi + b, solved for one wanted expectation: if it holds, E_p f = b.

Stein's identity gives E_p[P . phi] = 0 for every vector field phi, so the constant b of the best approximation of f by
Stein images estimates E_p f, from points of any origin. What the field phi is made of decides which method it is:

    features (polynomials)     phi = sum_l theta_l phi_l       zero-variance control variates
    a full-rank kernel         phi = sum_i a_i P k(., x_i)     control functionals
    features + kernel          both, features unpenalised      the semi-exact combination

Ridge penalties are chosen by leave-one-out cross-validation, which has a closed form here.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float
from scipy.sparse.linalg import lsmr

from steinmatch._checks import as_particles
from steinmatch._types import ArrayLike, Vector, float64, plain
from steinmatch.coordinates import AffineMap
from steinmatch.kernels import AbstractKernel, Scaled, Sum, Whitened
from steinmatch.kernels.forms import images_at
from steinmatch.measures.stein import (
    bound_at,
    compiled_images_at,
    compiled_scores_at,
    values_at,
)
from steinmatch.targets import AbstractTarget

_GRID = 10.0 ** np.arange(-12.0, 2.5, 0.5)  # ridges tried, relative to the mean diagonal of the Gram matrix
_DENSE_LIMIT, _ITERATIONS = 1500, 400  # least-norm systems above this size go to LSMR
_RCOND = 1e-11  # directions below this share of the largest singular value are not resolved


@dataclasses.dataclass(frozen=True)
class SteinSolution:
    """f = P . phi + b, solved over points. Arrays end with the shape of f's value, () for a scalar f."""

    b: np.ndarray  # the estimate of E_p f
    coefficients: np.ndarray | None  # (m, d, ...): phi(x) = sum_l coefficients[l] phi_l(x); None without features
    kernel_coefficients: np.ndarray | None  # (N, ...): weights of the Stein-kernel sections; None without a kernel
    residual: np.ndarray  # rms of f - P . phi - b over the points
    prediction_error: np.ndarray  # rms of the leave-one-out errors; inf without spare points, nan for large ridge=0
    error: np.ndarray  # of b: its sd under the regression model and the standard error of the left-out errors
    ridge: np.ndarray  # relative to the mean diagonal of the Gram matrix
    condition: float  # of the system that was solved
    average: np.ndarray  # the plain average of f, for comparison
    features: AbstractKernel | None  # bound and held

    @float64
    def approximation(self, target: AbstractTarget, points: ArrayLike) -> np.ndarray:
        """P . phi + b at other points, for a solution without a kernel part."""
        if self.features is None or self.coefficients is None or self.kernel_coefficients is not None:
            raise TypeError("approximation: only a solution with features alone can be evaluated at other points.")
        points = jnp.asarray(as_particles(points, "approximation", target.dim))
        images = np.asarray(compiled_images_at(target, self.features, points))
        return self.b + np.tensordot(images, self.coefficients, axes=2)


@float64
def stein_equation(
    f: Callable[[Vector], Any] | ArrayLike,
    target: AbstractTarget,
    features: AbstractKernel,
    points: ArrayLike,
    weights: ArrayLike | None = None,
    ridge: float | None = None,
    seed: int = 0,
) -> SteinSolution:
    """Solve f = P . phi + b by regularised least squares over the points; then E_p f is about b (paper, section 3).

    **Arguments:**

    - `f`: a function of one point with values of any shape, or its values at the points, one row a point.
    - `target`: gives the scores at the points.
    - `features`: where phi lies: a feature kernel (`Polynomial(2)`, `Whitened(Polynomial(2))`), a full-rank kernel
      (`RBF()`), or a sum of both, in which the features are fitted without penalty.
    - `points`: (N, d). They need not be draws of p.
    - `weights`: of the points; equal by default.
    - `ridge`: the penalty, relative to the mean diagonal of the Gram matrix; 0 for the least-norm solution; by default
      the one with the least leave-one-out error, for each component of f.
    - `seed`: of random features that are not bound yet.
    """
    points, checked, bound = bound_at("stein_equation", target, features, points, weights, seed)
    n = points.shape[0]
    w = np.full(n, 1.0 / n) if checked is None else checked / checked.sum()
    _check_ridge(ridge)
    values, shape = _values(f, points)
    held = bound.hold(points)
    scores = np.asarray(compiled_scores_at(target, points))
    _check_finite(scores, "the score of the target")
    maps, kernels = _parts(held, target.dim)
    columns = [np.asarray(_scaled_images(part, frame, points, scores)).reshape(n, -1) for part, frame in maps]
    design = np.concatenate([np.zeros((n, 0)), *columns], axis=1)
    lengths = np.sqrt(w @ design**2)
    lengths[lengths == 0.0] = 1.0
    root_weights = np.sqrt(w)[:, None]
    constant, scaled, y = root_weights, root_weights * design / lengths, root_weights * values
    system = _System(constant, scaled, None)
    if kernels:
        gram = sum(np.asarray(_stein_matrix(part, frame, points, scores)) for part, frame in kernels)
        system = _semi_exact(np.concatenate([constant, scaled], axis=1), root_weights * gram * root_weights.T)
    solved = system.least_norm(y) if ridge == 0.0 and not kernels else system.solve(y, ridge)
    beta, theta = solved.fixed, solved.coefficients
    flat = (beta[1:] if kernels else theta) / lengths[:, None]
    coefficients = _outside(flat, maps, [c.shape[1] for c in columns], (target.dim, *shape)) if columns else None
    spread = np.where(root_weights > 0.0, root_weights, 1.0)
    left, loo = solved.left / spread, solved.left_out / spread
    return SteinSolution(
        b=beta[0].reshape(shape),
        coefficients=coefficients,
        kernel_coefficients=(root_weights * theta).reshape(n, *shape) if kernels else None,
        residual=np.sqrt(w @ left**2).reshape(shape),
        prediction_error=np.sqrt(w @ loo**2).reshape(shape),
        error=np.hypot(solved.error, np.sqrt(w**2 @ loo**2)).reshape(shape),
        ridge=solved.ridge.reshape(shape),
        condition=solved.condition,
        average=(w @ values).reshape(shape),
        features=plain(Sum(tuple(Whitened(part, frame) for part, frame in maps))) if maps else None,
    )


def _outside(
    flat: Float[np.ndarray, "m k"], maps: list, sizes: list[int], shape: tuple[int, ...]
) -> Float[np.ndarray, "l ..."]:
    """Coefficients of features in whitened coordinates as those of fields in the target's own."""
    blocks = [
        np.einsum("ab,lbk->lak", frame.root, block.reshape(-1, len(frame.root), flat.shape[1]))
        for (_, frame), block in zip(maps, np.split(flat, np.cumsum(sizes)[:-1]), strict=True)
    ]
    return np.concatenate(blocks).reshape(-1, *shape)


def _semi_exact(fixed: Float[np.ndarray, "n m"], gram: Float[np.ndarray, "n n"]) -> "_System":
    """Features without a penalty beside a kernel with one."""
    n, m = fixed.shape
    if m >= n:
        raise ValueError(
            f"stein_equation: the semi-exact form fits its {m - 1} feature images without a penalty, "
            f"and needs more points than that; got {n}. Use fewer features, more points, or features alone."
        )
    return _System(fixed, None, gram)


def _values(f: Any, points: Array) -> tuple[Float[np.ndarray, "n k"], tuple[int, ...]]:
    """f at the points, flattened to (n, k), and the shape of one value."""
    values = values_at(f, points) if callable(f) else np.asarray(f, np.float64)
    if values.shape[:1] != (points.shape[0],):
        raise ValueError(
            f"stein_equation: f must be a function of one point or its values at the {points.shape[0]} points, "
            f"got an array of shape {values.shape}."
        )
    _check_finite(values, "f")
    return values.reshape(values.shape[0], -1), values.shape[1:]


def _check_ridge(ridge: float | None) -> None:
    if ridge is not None and not (np.isfinite(ridge) and ridge >= 0.0):
        raise ValueError(f"stein_equation: ridge must be a number >= 0, got {ridge!r}; leave it out to have it chosen.")


def _check_finite(values: np.ndarray, name: str) -> None:
    bad = ~np.isfinite(values.reshape(values.shape[0], -1)).all(axis=1)
    if bad.any():
        raise ValueError(
            f"stein_equation: {name} is not finite at {int(np.sum(bad))} of {values.shape[0]} points, the first of "
            f"them point {int(np.argmax(bad))}. Leave such points out."
        )


def _parts(
    kernel: AbstractKernel, dim: int
) -> tuple[list[tuple[AbstractKernel, AffineMap]], list[tuple[AbstractKernel, AffineMap]]]:
    """(feature terms, full-rank terms) of a held kernel, each with the affine map of the coordinates it is written in.

    A whitened term is taken in its own coordinates z, with vector fields in z as well: the same span for features, and
    for full-rank kernels the form that does not depend on the scale of x.
    """
    features, full_rank = [], []
    for part in kernel.parts(AffineMap(jnp.zeros(dim), jnp.eye(dim))):
        if part.kernel.n_features(dim) is not None:
            features.append((part.kernel, part.frame))
        else:
            full_rank.append((Scaled(part.kernel, jnp.asarray(part.factor, jnp.float64)), part.frame))
    return features, full_rank


@eqx.filter_jit
def _scaled_images(kernel: AbstractKernel, frame: AffineMap, points: Array, scores: Any) -> Array:
    return images_at(kernel, frame.whiten(points), scores @ frame.root)


@eqx.filter_jit
def _stein_matrix(kernel: AbstractKernel, frame: AffineMap, points: Array, scores: Any) -> Array:
    z, s = frame.whiten(points), scores @ frame.root
    return kernel.stein_matrix(z, s, z, s)


@dataclasses.dataclass(frozen=True)
class _Solved:
    fixed: np.ndarray  # (r, k) unpenalised coefficients, the constant first
    coefficients: np.ndarray  # penalised ones: of the design's columns, or of the Gram matrix's sections
    left: np.ndarray  # (n, k) residuals
    left_out: np.ndarray  # (n, k) leave-one-out errors
    error: np.ndarray  # (k,) sd of the constant
    ridge: np.ndarray  # (k,)
    condition: float


class _System:
    """y = fixed beta + design theta (penalised), or y = fixed beta + gram alpha with the penalty of its own norm.

    Both are one: with e, U the eigenpairs of the projected Gram matrix, the residual of penalty lambda is
    M y = U diag(lambda / (e + lambda)) U^T y on the complement of `fixed`, and leave-one-out errors are (M y) / diag M.
    """

    def __init__(self, fixed: np.ndarray, design: np.ndarray | None, gram: np.ndarray | None):
        self.fixed, self.design, self.gram = fixed, design, gram

    def least_norm(self, y: np.ndarray) -> _Solved:
        """Without a penalty: the least-norm least-squares solution."""
        assert self.design is not None
        matrix = np.concatenate([self.fixed, self.design], axis=1)
        if min(matrix.shape) > _DENSE_LIMIT:
            return self._least_norm_iterative(matrix, y)
        left_vectors, sizes, right = np.linalg.svd(matrix, full_matrices=False)
        kept = sizes > _RCOND * sizes[0]
        u = left_vectors[:, kept]
        solution = right[kept].T @ ((u.T @ y) / sizes[kept][:, None])
        left = y - matrix @ solution
        share = 1.0 - np.sum(u**2, axis=1)
        spare = share > 1e-9
        left_out = np.where(spare[:, None], left / np.where(spare, share, 1.0)[:, None], np.inf)
        r = self.fixed.shape[1]
        condition = float(sizes[0] / sizes[kept][-1])
        # Ordinary least squares: the constant's row of the pseudo-inverse times the noise.
        spare_points = matrix.shape[0] - int(kept.sum())
        noise = np.sqrt(np.sum(left**2, axis=0) / spare_points) if spare_points else np.full(y.shape[1], np.inf)
        error = noise * np.linalg.norm(right[kept][:, 0] / sizes[kept])
        return _Solved(solution[:r], solution[r:], left, left_out, error, np.zeros(y.shape[1]), condition)

    def _least_norm_iterative(self, matrix: np.ndarray, y: np.ndarray) -> _Solved:
        """The same by LSMR, where a factorisation would take minutes: no leave-one-out errors, and no sd."""
        runs = [lsmr(matrix, column, atol=1e-14, btol=1e-14, conlim=1e12, maxiter=_ITERATIONS) for column in y.T]
        solution = np.stack([run[0] for run in runs], axis=1)
        unknown = np.full(y.shape, np.nan)
        r = self.fixed.shape[1]
        return _Solved(
            solution[:r],
            solution[r:],
            y - matrix @ solution,
            unknown,
            unknown[0],
            np.zeros(y.shape[1]),
            float(max(run[6] for run in runs)),
        )

    def solve(self, y: np.ndarray, ridge: float | None) -> _Solved:
        """With the given ridge, or for each column of y the one that predicts best."""
        n = y.shape[0]
        gram = np.zeros((0, 0)) if self.gram is None else self.gram
        vectors, sizes, _ = np.linalg.svd(self.fixed, full_matrices=self.design is None)
        r = int(np.sum(sizes > _RCOND * sizes[0]))
        q = vectors[:, :r]
        if self.design is not None:
            u, s, right = np.linalg.svd(self.design - q @ (q.T @ self.design), full_matrices=False)
            inside = s > 1e-14 * s.max(initial=0.0)  # the others are rounding, and may point into `fixed`
            u, e, right = u[:, inside], s[inside] ** 2, right[inside]
            unit = float(np.sum(self.design**2)) / n
        else:
            complement = vectors[:, r:]
            e, inner = np.linalg.eigh(complement.T @ gram @ complement)
            u, e, right = complement @ inner, np.maximum(e, 0.0), np.zeros((0, 0))
            unit = float(np.trace(gram)) / n
        complete = u.shape[1] == n - q.shape[1]
        coordinates = u.T @ y
        rest = np.zeros_like(y) if complete else y - q @ (q.T @ y) - u @ coordinates
        rest_share = 0.0 if complete else 1.0 - np.sum(q**2, axis=1) - np.sum(u**2, axis=1)
        unit = unit if unit > 0.0 else 1.0
        grid = _GRID if ridge is None else np.array([max(ridge, 1e-14)])
        left, left_out = np.empty((len(grid), *y.shape)), np.empty((len(grid), *y.shape))
        for i, lam in enumerate(grid * unit):
            keep = lam / (e + lam)
            left[i] = u @ (keep[:, None] * coordinates) + rest
            share = u**2 @ keep + rest_share
            left_out[i] = left[i] / np.where(share > 0.0, share, np.inf)[:, None]
        best = np.argmin(np.sum(left_out**2, axis=1), axis=0)
        lam = grid[best] * unit
        k = np.arange(y.shape[1])
        if self.design is not None:
            weights = np.sqrt(e)[:, None] / (e[:, None] + lam[None, :])
            coefficients = right.T @ (weights * coordinates)
            explained = self.design @ coefficients
        else:
            coefficients = u @ (coordinates / (e[:, None] + lam[None, :]))
            explained = gram @ coefficients
        fixed, *_ = np.linalg.lstsq(self.fixed, y - explained, rcond=_RCOND)
        # The constant is linear in y, with weights a; its variance if y has the covariance scale (K + lambda I).
        a = np.linalg.pinv(self.fixed, rcond=_RCOND)[0]
        section = self.design @ (self.design.T @ a) if self.design is not None else gram @ a
        seen = (u.T @ section) ** 2
        variance = np.maximum(a @ section - seen @ (1.0 / (e[:, None] + lam[None, :])), 0.0) + lam * (a @ a)
        scale = np.sum(coordinates**2 / (e[:, None] + lam[None, :]), axis=0) + np.sum(rest**2, axis=0) / lam
        error = np.sqrt(variance * scale / (n - q.shape[1])) if n > q.shape[1] else np.full(y.shape[1], np.inf)
        condition = float((e.max(initial=0.0) + lam.max()) / (e.min(initial=0.0) + lam.min()))
        return _Solved(fixed, coefficients, left[best, :, k].T, left_out[best, :, k].T, error, grid[best], condition)
