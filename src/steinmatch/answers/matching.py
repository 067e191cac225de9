"""Stein matching sets: the functions whose particle average equals E_p f at a fixed point.

    Lemma 3.1      any kernel                                 span{P k(., x_i)} + constants
    Theorem 3.2    m features, Phi = [phi_l(x_i)] of rank m   span{P phi_l} + constants

A function within eps of the set, in the sup norm, is integrated with an error of at most 2 eps (paper, section 3.1).
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from steinmatch._checks import as_particles, check_size, positive_integer, whole_seed
from steinmatch._linalg import normalised, numerical_rank
from steinmatch._types import ArrayLike, Vector, float64, plain
from steinmatch.answers.equation import SteinSolution, stein_equation
from steinmatch.coordinates import AffineMap
from steinmatch.kernels import AbstractKernel
from steinmatch.kernels.features import FeatureKernel
from steinmatch.measures.discrepancy import ksd
from steinmatch.measures.stein import (
    bound_at,
    compiled_features_at,
    compiled_images_at,
    compiled_scores_at,
    values_at,
)
from steinmatch.targets import AbstractTarget, scores_at

_MANY_FUNCTIONS = 3000  # above this many basis functions the images of a Gaussian target are taken to depend
_MOST_ENTRIES = 6e7  # of the matrix of basis functions at the probes: half a GiB
_FRESH = 400  # probe points on which the approximation is judged


class Sections(eqx.Module):
    """x -> (k(x, y_1), ..., k(x, y_n)), the sections of a held kernel at given points."""

    kernel: AbstractKernel
    points: Any  # (n, d)

    def __call__(self, x: Vector) -> Float[Array, " n"]:
        return jax.vmap(lambda y: self.kernel(x, y))(self.points)


@dataclasses.dataclass(frozen=True)
class Distance:
    """How far a function is from a matching set. Arrays have the shape of f's value."""

    error: np.ndarray  # rms of f minus its best approximation, over fresh probe points
    relative: np.ndarray  # the same in sds of f
    eps: np.ndarray  # largest |f - approximation| over fresh probes and particles
    solution: SteinSolution
    n_probes: int
    measured: str  # how eps was measured

    @property
    def bound(self) -> np.ndarray:
        """2 eps, the paper's bound on the error of the particles' average, as far as the probes tell eps."""
        return np.asarray(2.0 * self.eps)

    def __float__(self) -> float:
        """The largest relative distance."""
        return float(np.max(self.relative))

    @property
    def coefficients(self) -> np.ndarray:
        """Of the best approximation sum_l c_l . P phi_l + b: shape (m, d, ...)."""
        assert self.solution.coefficients is not None
        return self.solution.coefficients


class MatchingSet:
    """The Stein matching set of particles: span{P phi_l} + constants where the rank condition holds (Theorem 3.2), else
    span{P k(., x_i)} + constants (Lemma 3.1). What it holds is exact at a fixed point, and only there.

    **Arguments:** `target`, `kernel` and `particles` as in `velocity`; `weights` of the particles; `seed` of an unbound
    kernel's random features.
    """

    @float64
    def __init__(
        self,
        target: AbstractTarget,
        kernel: AbstractKernel,
        particles: ArrayLike,
        weights: ArrayLike | None = None,
        seed: int = 0,
    ):
        points, given, bound = bound_at("MatchingSet", target, kernel, particles, weights, seed)
        self.target = target
        self.particles = plain(points)
        self.weights = plain(normalised(given, points.shape[0]))
        self.kernel: AbstractKernel = plain(bound.hold(points))
        m = self.kernel.n_features(target.dim)
        self.by_features = m is not None and m <= points.shape[0] and self._rank() == m
        self.features = self.kernel if self.by_features else FeatureKernel(Sections(self.kernel, self.particles))

    def _finite(self, points: Float[np.ndarray, "n d"]) -> Float[np.ndarray, "k d"]:
        """The points where the score is finite."""
        return points[np.isfinite(compiled_scores_at(self.target, jnp.asarray(points))).all(axis=1)]

    def _rank(self) -> int:
        return numerical_rank(np.asarray(compiled_features_at(self.kernel, self.particles)))

    @property
    def n_functions(self) -> int:
        """The number of basis functions, the constant among them: m d + 1, or n d + 1."""
        m = self.features.n_features(self.target.dim)
        assert m is not None
        return m * self.target.dim + 1

    @float64
    def basis(self, points: ArrayLike) -> Float[np.ndarray, "k functions"]:
        """The basis functions at the points: the constant 1, then (P phi_l)_j with j running fastest."""
        points = jnp.asarray(as_particles(points, "MatchingSet.basis", self.target.dim))
        images = np.asarray(compiled_images_at(self.target, self.features, points))
        return np.concatenate([np.ones((len(images), 1)), images.reshape(len(images), -1)], axis=1)

    @float64
    def probes(self, n: int, seed: int = 1) -> Float[np.ndarray, "n d"]:
        """Points that are not the particles: normal draws with the particles' mean and covariance."""
        n, seed = positive_integer(n, "n", "MatchingSet.probes"), whole_seed(seed, "MatchingSet.probes")
        check_size(n, self.target.dim, "MatchingSet.probes")
        frame = AffineMap.of_particles(jnp.asarray(self.particles), jnp.asarray(self.weights))
        normal = jax.random.normal(jax.random.key(seed), (n, self.target.dim), jnp.float64)
        return plain(frame.colour(normal))

    def distance(self, f: Callable[[Vector], Any], probes: ArrayLike | None = None) -> Distance:
        """The best approximation of f in the set over `probes`, judged on fresh ones that it has not seen.

        By default normal points with the particles' mean and covariance, half as many again as there are functions;
        for more than 3000 functions fewer than functions, which suffices where their Stein images depend on each other,
        as for a Gaussian target, and makes the distance an upper bound otherwise.
        """
        return self.distance_from(self.features, f, probes)

    @float64
    def distance_from(
        self, features: AbstractKernel, f: Callable[[Vector], Any], probes: ArrayLike | None = None
    ) -> Distance:
        """The same for span{P phi_l} + constants of any held features, whether the particles match them or not."""
        if probes is None:
            k = (features.n_features(self.target.dim) or 0) * self.target.dim + 1
            fitted = self.probes(int((1.5 if k <= _MANY_FUNCTIONS else min(0.75, _MOST_ENTRIES / k**2)) * k) + 20)
        else:
            fitted = as_particles(probes, "MatchingSet.distance", self.target.dim)
        judged = self.probes(_FRESH, seed=2)
        fitted, judged = (self._finite(points) for points in (fitted, judged))
        solution = stein_equation(f, self.target, features, fitted, ridge=0.0)
        everywhere = np.concatenate([judged, self.particles])
        values = values_at(f, jnp.asarray(everywhere))
        miss = values - solution.approximation(self.target, everywhere)
        error = np.sqrt(np.mean(miss[: len(judged)] ** 2, axis=0))
        sd = np.std(values[: len(judged)], axis=0)
        scale = np.where(sd > 0.0, sd, 1.0)
        measured = (
            f"largest difference over {len(judged)} normal probe points (particles' mean and covariance) and the "
            f"{len(self.particles)} particles; a bound only as far as these points show the sup norm"
        )
        error, relative, eps = (np.asarray(x) for x in (error, error / scale, np.max(np.abs(miss), axis=0)))
        return Distance(error, relative, eps, solution, len(fitted), measured)

    def contains(self, f: Callable[[Vector], Any], rtol: float = 1e-8) -> bool | np.ndarray:
        """Whether f lies in the set, to `rtol` of its sd over probe points; an array for a vector-valued f."""
        inside = self.distance(f).relative <= rtol
        return bool(inside) if inside.shape == () else inside

    @float64
    def norm(self, points: ArrayLike, coefficients: ArrayLike) -> float:
        """The RKHS norm of f = sum_j c_j kappa_p(., y_j), a combination of Stein-kernel sections: sqrt(c^T K c)."""
        points = jnp.asarray(as_particles(points, "MatchingSet.norm", self.target.dim))
        c = np.asarray(coefficients, np.float64)
        if c.shape != (points.shape[0],):
            raise ValueError(
                f"MatchingSet.norm: {points.shape[0]} coefficients are needed, one a point; got shape {c.shape}."
            )
        matrix = np.asarray(_stein_matrix(self.target, self.kernel, points))
        return float(np.sqrt(max(c @ matrix @ c, 0.0)))

    def worst_case(self, points: ArrayLike, coefficients: ArrayLike) -> float:
        """The bound |average of f - E_p f| <= |f| KSD for f = sum_j c_j kappa_p(., y_j)."""
        return self.norm(points, coefficients) * ksd(self.target, self.particles, self.kernel, self.weights)

    def __repr__(self) -> str:
        basis = "P phi_l (Theorem 3.2)" if self.by_features else "P k(., x_i) (Lemma 3.1)"
        return f"MatchingSet({self.n_functions} functions: 1 and {basis})"


@eqx.filter_jit
def _stein_matrix(target: AbstractTarget, kernel: AbstractKernel, points: Array) -> Array:
    scores = scores_at(target, points)
    return kernel.stein_matrix(points, scores, points, scores)
