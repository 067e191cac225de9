"""Stein weights: positive weights, nearest to uniform, under which Stein equations hold exactly.

    minimise  sum_i (n w_i - 1)^2   with   sum_i w_i = 1,   sum_i w_i psi_i = 0,   w_i >= floor / n

where psi are Stein images, of mean zero under the target. Without the floor, sum_i w_i f_i is the regression estimate
of E f with the psi as control variates; it is consistent for every f, since the plain average is. The tilted weights
w ~ exp(lambda . psi) agree to first order; but images of unbounded fields have heavy tails, for which the exponential
puts all weight on one draw (measured: log-normal and noncentred eight schools), so the quadratic form is used.

How many equations draws can bear is decided by cross-validation: coefficients fitted on other chains, errors from the
spread of the chains' own means.
"""

import dataclasses
from typing import NamedTuple

import numpy as np
import scipy.linalg
from jaxtyping import Float, Int

from steinmatch._linalg import namespace
from steinmatch._types import Numbers

FLOOR = 0.01  # of n w_i
_STEPS = 60
SOLVED = 1e-11
HOLDS = 1e-7  # left of an equation, images having a mean square of one, where others nearly say the same


class Layout(NamedTuple):
    """Draws in the order (transition, group, sibling): groups of chains that began at one point are independent."""

    transitions: int
    groups: int
    siblings: int

    @property
    def n(self) -> int:
        return self.transitions * self.groups * self.siblings

    def folds(self, count: int = 8) -> Int[np.ndarray, " n"]:
        """The fold of each draw; groups stay together."""
        fold = np.repeat(np.arange(self.groups) % min(count, self.groups), self.siblings)
        return np.tile(fold, self.transitions)


class Spread(NamedTuple):
    """What the chains' means say of an average."""

    mean: Float[Numbers, " f"]
    error: Float[Numbers, " f"]  # standard error of the mean
    between: Float[Numbers, " f"]  # variance between groups: what chains remember of their start; may be negative
    chains: Float[Numbers, " f"]  # variance of one chain's mean


def spread(values: Float[Numbers, "n f"], layout: Layout) -> Spread:
    """Means and standard errors from independent groups of chains, in NumPy or in JAX.

    With m_gs the mean of chain s of group g, V their variance and C the covariance of siblings, the variance of the
    average over K groups of M is (V + (M - 1) C) / (K M), C >= 0.
    """
    t, k, m = layout
    means = values.reshape(t, k, m, -1).mean(axis=0)
    mean, xp = means.mean(axis=(0, 1)), namespace(means)
    centred = means - mean
    variance = xp.sum(centred**2, axis=(0, 1)) / max(k * m - 1, 1)
    if m == 1:
        return Spread(mean, xp.sqrt(variance / k), xp.zeros_like(mean), variance)
    pairs = xp.sum(xp.sum(centred, axis=1) ** 2 - xp.sum(centred**2, axis=1), axis=0) / (k * m * (m - 1))
    error = xp.sqrt((variance + (m - 1) * xp.maximum(pairs, 0.0)) / (k * m))
    return Spread(mean, error, pairs, variance)


def ridge_solve(gram: Float[np.ndarray, "m m"], right: Float[np.ndarray, "m f"]) -> Float[np.ndarray, "m f"]:
    """gram^-1 right for a positive semidefinite matrix, with a ridge at rounding level for dependent equations. Not by
    eigenvalues: with 2000 equations they take ten times as long.
    """
    size = float(np.max(np.diagonal(gram), initial=1e-300))
    for ridge in (1e-11, 1e-9, 1e-7):
        try:
            factor = scipy.linalg.cho_factor(gram + ridge * size * np.eye(len(gram)), check_finite=False)
        except np.linalg.LinAlgError:
            continue
        return scipy.linalg.cho_solve(factor, right, check_finite=False)
    return np.linalg.lstsq(gram, right, rcond=1e-10)[0]


class CrossFit:
    """Regressions of functions on images, with coefficients for each draw from the folds of other draws."""

    def __init__(
        self, functions: Float[np.ndarray, "n f"], psi: Float[np.ndarray, "n m"], folds: Int[np.ndarray, " n"]
    ):
        self.rows = [np.nonzero(folds == k)[0] for k in range(int(folds.max()) + 1)]
        self.parts = [np.concatenate([np.ones((len(row), 1)), psi[row]], axis=1) for row in self.rows]
        self.grams = [part.T @ part for part in self.parts]
        self.rights = [part.T @ functions[row] for part, row in zip(self.parts, self.rows, strict=True)]
        self.gram, self.right = np.sum(self.grams, axis=0), np.sum(self.rights, axis=0)

    def control(self, columns: Int[np.ndarray, " c"]) -> Float[np.ndarray, "n f"]:
        """psi_i . beta over some images: control variates of the functions, of mean zero under the target."""
        found = np.empty((sum(map(len, self.rows)), self.right.shape[1]))
        with_one = np.concatenate([[0], 1 + columns])
        square = np.ix_(with_one, with_one)
        whole = self.gram[square]
        upto = int(with_one[-1]) + 1
        for row, part, gram, right in zip(self.rows, self.parts, self.grams, self.rights, strict=True):
            beta = np.zeros((upto, self.right.shape[1]))
            beta[columns + 1] = ridge_solve(whole - gram[square], (self.right - right)[with_one])[1:]
            found[row] = part[:, :upto] @ beta
        return found

    def coefficients(self, columns: Int[np.ndarray, " c"]) -> Float[np.ndarray, "c f"]:
        """beta from all draws."""
        with_one = np.concatenate([[0], 1 + columns])
        return ridge_solve(self.gram[np.ix_(with_one, with_one)], self.right[with_one])[1:]


class SingleFit:
    """Regressions of functions on few images of their own, function j on the j-th column of each part; several
    functions may take turns over the columns. Coefficients for each draw from the folds of other draws.
    """

    def __init__(
        self, functions: Float[np.ndarray, "n f"], parts: list[Float[np.ndarray, "n k"]], folds: Int[np.ndarray, " n"]
    ):
        self.rows = [np.nonzero(folds == fold)[0] for fold in range(int(folds.max()) + 1)]
        self.parts, self.turns = parts, functions.shape[1] // parts[0].shape[1]
        grams, rights = zip(
            *(self._sums(functions[row], [part[row] for part in parts]) for row in self.rows), strict=True
        )
        gram, right = np.sum(grams, axis=0), np.sum(rights, axis=0)
        self.all = self._solved(gram, right)
        self.others = [self._solved(gram - g, right - r) for g, r in zip(grams, rights, strict=True)]

    def _sums(self, functions: np.ndarray, parts: list[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
        """Of products of images, (k, m + 1, m + 1), and with functions, (k, m + 1, turns); a constant comes first."""
        basis = np.stack([np.ones_like(parts[0]), *parts])
        several = functions.reshape(len(functions), self.turns, -1)
        return np.einsum("anj,bnj->jab", basis, basis), np.einsum("anj,ntj->jat", basis, several)

    def _solved(self, gram: np.ndarray, right: np.ndarray) -> np.ndarray:
        size = np.einsum("jaa->j", gram)[:, None, None]
        return np.linalg.solve(gram + 1e-11 * np.maximum(size, 1e-300) * np.eye(gram.shape[1]), right)[:, 1:]

    def _times(self, parts: list[np.ndarray], beta: np.ndarray) -> np.ndarray:
        return np.einsum("anj,jat->ntj", np.stack(parts), beta).reshape(len(parts[0]), -1)

    def control(self) -> Float[np.ndarray, "n f"]:
        found = np.empty((len(self.parts[0]), self.turns * self.parts[0].shape[1]))
        for row, beta in zip(self.rows, self.others, strict=True):
            found[row] = self._times([part[row] for part in self.parts], beta)
        return found

    def at(self, parts: list[Float[np.ndarray, "g k"]]) -> Float[np.ndarray, "g f"]:
        """The control variates elsewhere, with coefficients from all draws."""
        return self._times(parts, self.all)


@dataclasses.dataclass(frozen=True)
class Nearest:
    """Weights, their effective sample size, and the largest equation left (images of mean square one)."""

    weights: Float[np.ndarray, " n"]
    ess: float
    residual: float


def nearest_weights(psi: Float[np.ndarray, "n m"], least_ess: float = 0.0) -> Nearest | None:
    """The weights nearest to uniform with sum_i w_i psi_i = 0; None where there are none above the floor, or none whose
    effective sample size, as a share of n, is `least_ess`.

    The dual is a convex problem in theta = (mu, lambda): n w_i = max(floor, 1 + mu + lambda . psi_i), solved by
    Newton's method, whose first step is the regression. Every value D of it bounds what can be: n / ess >= 2 - 2 D, so
    that weights which are not good enough need not be found.
    """
    n = len(psi)
    if psi.shape[1] == 0:
        return Nearest(np.full(n, 1.0 / n), float(n), 0.0)
    basis = np.concatenate([np.ones((n, 1)), psi], axis=1)
    goal = np.zeros(basis.shape[1])
    goal[0] = 1.0

    def at(theta: np.ndarray) -> tuple[float, np.ndarray, np.ndarray]:
        free = 1.0 + basis @ theta
        ratio = np.maximum(free, FLOOR)
        value = np.mean(np.where(free > FLOOR, 0.5 * free**2, FLOOR * free - 0.5 * FLOOR**2)) - theta @ goal
        return float(value), ratio, basis.T @ ratio / n - goal

    theta = np.zeros(basis.shape[1])
    value, ratio, gradient = at(theta)
    for _ in range(_STEPS):
        if np.abs(gradient).max() <= SOLVED:
            break
        if (2.0 - 2.0 * value) * least_ess > 1.0:
            return None
        active = basis[ratio > FLOOR]
        step = -ridge_solve(active.T @ active / n, gradient[:, None])[:, 0]
        length = 1.0
        while True:
            trial = at(theta + length * step)
            if (
                trial[0] <= value + 1e-4 * length * (gradient @ step)
                or np.abs(trial[2]).max() < 0.5 * np.abs(gradient).max()
            ):
                break
            length *= 0.5
            if length < 1e-8:
                break
        if length < 1e-8:
            break
        before = np.abs(gradient).max()
        theta = theta + length * step
        value, ratio, gradient = trial
        if 0.5 * before < np.abs(gradient).max() <= HOLDS:
            break  # the ridge of dependent equations keeps the rest
    if np.abs(gradient).max() > HOLDS:
        return None
    weights = ratio / ratio.sum()
    return Nearest(weights, float(1.0 / np.sum(weights**2)), float(np.abs(weights @ psi).max()))


def systematic(weights: Float[np.ndarray, " n"], count: int, seed: int) -> np.ndarray:
    """Indices of `count` equally weighted draws out of weighted ones, by systematic (low variance) resampling."""
    comb = (np.arange(count) + np.random.default_rng(seed).uniform()) / count
    return np.minimum(np.searchsorted(np.cumsum(weights), comb), len(weights) - 1)
