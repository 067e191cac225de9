"""One wanted expectation: its estimate with an error, and the features that would make it exact.

A query looks at the particles three ways: their plain average, the Stein equation over them, and the distance of f from
what they match. It never moves them; `query_features` says which features a new solve should match for f.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from steinmatch._types import Vector, float64
from steinmatch.answers.certificate import EXACT
from steinmatch.answers.equation import stein_equation
from steinmatch.answers.matching import Distance, MatchingSet
from steinmatch.coordinates import AffineMap
from steinmatch.kernels import IMQ, RBF, AbstractKernel, Whitened
from steinmatch.kernels.bandwidths import Fixed
from steinmatch.kernels.features import FeatureKernel, Polynomial
from steinmatch.measures.stein import compiled_features_at, values_at

_MOST_PARTICLES = 2000  # above this the Stein equation is solved with features alone, no n x n systems
_FEWEST_PARTICLES = 3
_MOST_IMAGES = 12_000  # columns of a candidate's Stein equation in `query_features`
_NEAR = 1e-8  # a relative distance up to here counts as membership


@dataclasses.dataclass(frozen=True)
class Query:
    """The answer to E_p f. Arrays have the shape of f's value; prints as a sentence or a few."""

    estimate: np.ndarray  # the average where f is matched exactly, else the Stein-equation estimate
    error: np.ndarray  # of the estimate: about a standard error
    exact: bool | np.ndarray  # f lies in the matching set and the particles are at its fixed point
    average: np.ndarray  # the particles' plain average
    stein_estimate: np.ndarray  # b of the Stein equation over the particles
    distance: np.ndarray  # from the matching set, in sds of f
    bound: np.ndarray  # 2 eps, the paper's bound, with eps measured over probe points

    def __str__(self) -> str:
        rows = zip(*(np.ravel(np.asarray(x)) for x in (self.estimate, self.error, self.exact)), strict=True)
        kinds = {True: "exact: f lies in the matching set", False: "not exact"}
        return "\n".join(f"{value:.6g} +- {error:.1g} ({kinds[bool(exact)]})" for value, error, exact in rows)


@float64
def answer(f: Callable[[Vector], Any], matching: MatchingSet, residual: float) -> Query:
    """Estimate E_p f from the particles of a matching set, which have this scaled residual.

    The Stein equation is solved with several features: linear ones with a smooth kernel of the whitened point, and the
    kernel's own. The answer is that of the least posterior sd; its error adds that sd, how far the other good answers
    lie from it, and a tenth of what the Stein equation changed.
    """
    target, kernel, particles, weights = matching.target, matching.kernel, matching.particles, matching.weights
    values = values_at(f, jnp.asarray(particles))
    average = np.asarray(np.tensordot(weights, values, axes=1))
    distance = matching.distance(f)
    exact = (distance.relative <= _NEAR) & (residual <= EXACT)
    if len(particles) >= _FEWEST_PARTICLES:
        candidates = _candidates(kernel, *particles.shape)
        solutions = [stein_equation(values, target, features, particles, weights) for features in candidates]
        estimates, sds = (np.stack([getattr(s, name) for s in solutions]) for name in ("b", "error"))
        best = np.argmin(sds, axis=0)[None]
        estimate, sd = (np.take_along_axis(x, best, axis=0)[0] for x in (estimates, sds))
        spread = np.sqrt(np.mean((estimates - estimate) ** 2, axis=0, where=sds <= 4.0 * sd))
        error = sd + spread + 0.1 * np.abs(estimate - average)
    else:  # nothing to tell an error from
        estimate, error = average, np.full_like(average, np.inf)
    size = np.max(np.abs(values), axis=0)
    rounding = np.abs(average - distance.solution.b) + 1e-14 * size
    return Query(
        estimate=np.where(exact, average, estimate),
        error=np.where(exact, rounding, error),
        exact=bool(exact) if exact.shape == () else exact,
        average=average,
        stein_estimate=np.asarray(estimate),
        distance=distance.relative,
        bound=distance.bound,
    )


def _candidates(kernel: AbstractKernel, n: int, dim: int) -> list[AbstractKernel]:
    """The features that the Stein equation over n particles is solved with."""
    own = [kernel] if kernel.n_features(dim) is not None else []
    if n > _MOST_PARTICLES:
        return [*own, Whitened(Polynomial(1))]
    width = np.sqrt(dim)
    smooth: list[AbstractKernel] = [RBF(Fixed(4.0 * width)), RBF(Fixed(2.0 * width)), IMQ(Fixed(4.0 * width))]
    linear = Polynomial(1)
    if 3 * linear.n_features(dim) * dim <= n:
        smooth = [linear + k for k in smooth]
    return [*own, *(Whitened(k) for k in smooth)]


class Combination(eqx.Module):
    """x -> A phi(x): combinations of the features of a held kernel."""

    kernel: AbstractKernel
    matrix: Any  # (r, m)

    def __call__(self, x: Vector) -> Float[Array, " r"]:
        return self.matrix @ self.kernel.phi(x)


@float64
def query_features(f: Callable[[Vector], Any], matching: MatchingSet) -> tuple[FeatureKernel | None, Distance]:
    """The features to add for f: the components of the vector field phi of its Stein equation f = P . phi + b.

    Solved over probe points with whitened polynomials of growing degree, until f is met or they get too many; the best
    then stands. Components that the matching set has already are left out; None where nothing is left.
    """
    dim = matching.target.dim
    frame = AffineMap.of_particles(jnp.asarray(matching.particles), jnp.asarray(matching.weights))
    nearest: Distance | None = None
    for degree in range(1, 8):
        candidate = Whitened(Polynomial(degree), frame)
        if nearest is not None and Polynomial(degree).n_features(dim) * dim > _MOST_IMAGES:
            break
        distance = matching.distance_from(candidate, f)
        if nearest is None or np.max(distance.relative) < np.max(nearest.relative):
            nearest = distance
        if np.all(nearest.relative <= _NEAR):
            break
    assert nearest is not None
    best = nearest.solution
    assert best.coefficients is not None and best.features is not None
    field = best.coefficients.reshape(best.coefficients.shape[0], -1).T  # (d k, m): one row a component of phi
    probes = jnp.asarray(matching.probes(2 * (field.shape[1] + matching.n_functions // dim)))
    new = np.asarray(compiled_features_at(best.features, probes)) @ field.T
    old = np.asarray(compiled_features_at(matching.features, probes))
    left = new - old @ np.linalg.lstsq(old, new, rcond=None)[0]
    _, sizes, directions = np.linalg.svd(left, full_matrices=False)
    kept = sizes > 1e-6 * np.linalg.norm(new)
    if not kept.any():
        return None, nearest
    matrix = directions[kept] @ field / (sizes[kept][:, None] / np.sqrt(len(probes)))
    return FeatureKernel(Combination(best.features, matrix)), nearest
