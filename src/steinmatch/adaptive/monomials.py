"""Stein equations of Hermite products in whitened coordinates, linearised by hand in NumPy.

Each feature phi_l(z) = prod_r He_{a_r}(z_{v_r}) / sqrt(a_r!) has at most four factors, so that its gradient and its
second derivative are sparse: a product with the Jacobian costs O(n m (d + 16)), not O(n m d^2). Written without JAX
because every level has another number of features and of particles: compiling took 3 to 4 s a level, the arithmetic
0.1 s.
"""

import dataclasses
import functools
import math

import numpy as np
import scipy.sparse
from jaxtyping import Float

Monomial = tuple[tuple[int, int], ...]  # (variable, exponent) of each factor; () for the constant


class Monomials:
    """A set of Hermite products."""

    def __init__(self, monomials: list[Monomial], dim: int):
        self.monomials, self.dim = monomials, dim
        factors = max([1, *map(len, monomials)])
        self.exponents = np.zeros((factors, len(monomials)), int)
        self.variables = np.zeros((factors, len(monomials)), int)
        for column, monomial in enumerate(monomials):
            for row, (variable, exponent) in enumerate(monomial):
                self.variables[row, column], self.exponents[row, column] = variable, exponent

    def __len__(self) -> int:
        return len(self.monomials)

    @functools.cached_property
    def places(self) -> list[scipy.sparse.csr_matrix]:
        """For each factor the (d, m) matrix that sums features by their variable."""
        ones, columns, shape = np.ones(len(self)), np.arange(len(self)), (self.dim, len(self))
        return [scipy.sparse.csr_matrix((ones, (row, columns)), shape=shape) for row in self.variables]

    def values(self, z: Float[np.ndarray, "n d"]) -> Float[np.ndarray, "m n"]:
        """phi_l(z_i)."""
        return _product(self._factors(z)[0])

    def gradients(self, z: Float[np.ndarray, "n d"]) -> tuple[np.ndarray, list[np.ndarray]]:
        """phi, and for each factor r the derivative of phi_l along its variable v_r; all (m, n)."""
        factors, lowered, _ = self._factors(z)
        first = [_product(factors, {r}) * lowered[r] for r in range(len(factors))]
        return _product(factors), first

    def second(self, z: Float[np.ndarray, "n d"]) -> dict[tuple[int, int], np.ndarray]:
        """Second derivatives along the variables of two factors."""
        factors, lowered, twice = self._factors(z)
        pairs = [(r, j) for r in range(len(factors)) for j in range(r, len(factors))]
        return {(r, j): _product(factors, {r, j}) * (twice[r] if r == j else lowered[r] * lowered[j]) for r, j in pairs}

    def residual(self, z: Float[np.ndarray, "n d"], scores: Float[np.ndarray, "n d"]) -> Float[np.ndarray, "m d"]:
        """G_l = mean_i (phi_l s + grad phi_l)(z_i)."""
        return self._residual(*self.gradients(z), scores)

    def _residual(self, phi: np.ndarray, first: list[np.ndarray], scores: np.ndarray) -> np.ndarray:
        g = phi @ scores / len(scores)
        for variables, derivative in zip(self.variables, first, strict=True):
            g[np.arange(len(self)), variables] += derivative.mean(axis=1)
        return g

    def _factors(self, z: np.ndarray) -> tuple[list[np.ndarray], list[np.ndarray], list[np.ndarray]]:
        x = np.ascontiguousarray(z.T)
        table = [np.ones_like(x), x]
        for k in range(1, int(self.exponents.max(initial=1))):
            table.append((x * table[k] - math.sqrt(k) * table[k - 1]) / math.sqrt(k + 1))
        hermite = np.stack(table)
        at = list(zip(self.exponents, self.variables, strict=True))
        factors = [hermite[a, v] for a, v in at]
        lowered = [hermite[np.maximum(a - 1, 0), v] * np.sqrt(a)[:, None] for a, v in at]
        twice = [hermite[np.maximum(a - 2, 0), v] * np.sqrt(a * np.maximum(a - 1, 0))[:, None] for a, v in at]
        return factors, lowered, twice


def _product(factors: list[np.ndarray], skip: set[int] = frozenset()) -> np.ndarray:  # type: ignore[assignment]
    kept = [factor for r, factor in enumerate(factors) if r not in skip]
    return functools.reduce(np.multiply, kept) if kept else np.ones_like(factors[0])


@dataclasses.dataclass
class Linearised:
    """F(z + v) ~ F + J v at z, for F = G with row l divided by scale_l; `slopes` (n, d, d) are those of the scores."""

    features: Monomials
    z: np.ndarray
    scores: np.ndarray
    slopes: np.ndarray  # [i, j, k]: the change of score k along z_j
    scale: np.ndarray

    def __post_init__(self) -> None:
        self.phi, self.first = self.features.gradients(self.z)
        self.pairs = self.features.second(self.z)
        self.value = self.features._residual(self.phi, self.first, self.scores) / self.scale[:, None]

    def push(self, v: Float[np.ndarray, "n d"]) -> Float[np.ndarray, "m d"]:
        """J v."""
        variables, rows = self.features.variables, np.arange(len(self.features))
        x = np.ascontiguousarray(v.T)
        along = [x[variable] for variable in variables]
        change = sum(first * a for first, a in zip(self.first, along, strict=True))
        out = change @ self.scores + self.phi @ np.einsum("nij,ni->nj", self.slopes, v)
        for r, variable in enumerate(variables):
            out[rows, variable] += sum(
                np.einsum("mn,mn->m", self.pairs[min(r, j), max(r, j)], a) for j, a in enumerate(along)
            )
        return out / (len(v) * self.scale[:, None])

    def pull(self, u: Float[np.ndarray, "m d"]) -> Float[np.ndarray, "n d"]:
        """J^T u."""
        variables, rows = self.features.variables, np.arange(len(self.features))
        u = u / (len(self.z) * self.scale[:, None])
        through = u @ self.scores.T
        own = [u[rows, variable][:, None] for variable in variables]
        out = np.einsum("nij,nj->ni", self.slopes, self.phi.T @ u).T
        for r, place in enumerate(self.features.places):
            terms = self.first[r] * through
            for j, entries in enumerate(own):
                terms += self.pairs[min(r, j), max(r, j)] * entries
            out = out + place @ terms
        return out.T

    def least_change(self, damping: float, iterations: int, tolerance: float) -> Float[np.ndarray, "n d"]:
        """-J^T (J J^T + lambda)^{-1} F by conjugate gradients; lambda in units of the mean diagonal of J J^T."""
        probe = np.random.default_rng(0).normal(size=self.value.shape)
        unit = np.sum(self.pull(probe) ** 2) / probe.size
        y, left = np.zeros_like(self.value), self.value
        direction, square = left, float(np.vdot(left, left))
        goal = tolerance**2 * square
        for _ in range(iterations):
            if square <= goal:
                break
            image = self.push(self.pull(direction)) + damping * unit * direction
            length = square / float(np.vdot(direction, image))
            y, left = y + length * direction, left - length * image
            following = float(np.vdot(left, left))
            direction, square = left + (following / square) * direction, following
        return -self.pull(y)
