"""One wanted expectation: its estimate with an error, and the features that would make it exact.

A query looks at the particles three ways: their plain average, the Stein equation over them, and the distance of f from
what they match. It never moves them; `query_features` says which features a new solve should match for f. Of draws of
chains the Stein equation is a regression on Stein images, as for the automatic fit's own errors (`adaptive.verdict`).
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from steinmatch._types import Vector, float64
from steinmatch.adaptive import Mode, Walked
from steinmatch.adaptive.verdict import agreeing, cautious
from steinmatch.answers.certificate import EXACT
from steinmatch.answers.equation import stein_equation
from steinmatch.answers.matching import Distance, MatchingSet
from steinmatch.coordinates import AffineMap
from steinmatch.kernels import IMQ, RBF, AbstractKernel, Whitened
from steinmatch.kernels.bandwidths import Fixed
from steinmatch.kernels.features import FeatureKernel, Polynomial
from steinmatch.measures.images import FAMILIES, Family, Values, affordable, all_images
from steinmatch.measures.stein import compiled_features_at, values_at
from steinmatch.measures.weights import CrossFit, Layout

_MOST_PARTICLES = 2000  # above this the Stein equation is solved with features alone, no n x n systems
_FEWEST_PARTICLES = 3
_MOST_IMAGES = 12_000  # columns of a candidate's Stein equation in `query_features`
_NEAR = 1e-8  # a relative distance up to here counts as membership
_MOST_WORK = 4 * 10**9  # products of images, of one query of draws: a fifth of a second on two cores


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


@dataclasses.dataclass(frozen=True)
class WeighedDraws:
    """Weighted draws, as far as it is known where they come from."""

    weights: Float[np.ndarray, " n"]
    layout: Layout | None  # the chains; without it every draw is taken for itself
    z: Float[np.ndarray, "n d"] | None = None  # in a frame, with pulled-back scores: only together
    scores: Float[np.ndarray, "n d"] | None = None
    linear: bool = False  # whether the weights solve the linear fields' equations
    shares: float = 0.0  # error of the shares of modes, relative to the root of their product


def draws_of(
    walked: Walked | None, weights: Float[np.ndarray, " n"], layout: Layout | None, modes: tuple[Mode, ...]
) -> WeighedDraws:
    """The draws of an automatic fit, with their scores where the weights are those of the walk."""
    spread = [mode.error / np.sqrt(max(mode.share * (1.0 - mode.share), 1e-300)) for mode in modes if mode.share < 1.0]
    draws = WeighedDraws(weights, layout, shares=max(spread, default=0.0))
    if walked is None or walked.verdict is None or layout is None or len(modes) > 1:
        return draws
    family = next((family for family in FAMILIES if family.name == walked.verdict.family), None)
    linear = family is not None and family.linear
    return dataclasses.replace(draws, z=walked.z, scores=walked.scores, linear=linear)


def answer_from_draws(values: Float[np.ndarray, "n ..."], draws: WeighedDraws, residual: float) -> Query:
    """E_p f from the values of f at draws of chains: the average less control variates, the Stein images of constant,
    linear and cubic fields, whose coefficients come from other chains; of those the one with the least standard error.
    """
    shape = values.shape[1:]
    flat = values.reshape(len(values), -1)
    average = draws.weights @ flat
    sd = np.sqrt(draws.weights @ (flat - average) ** 2)
    constant = sd <= _NEAR * np.abs(average)
    functions = (flat - average) / np.where(constant, 1.0, sd)
    relative, largest = np.sqrt(np.mean(functions**2, axis=0)), np.max(np.abs(functions), axis=0)
    shift, error, exact = np.zeros(len(sd)), _weighted_error(functions, draws), constant
    for family, control, inside in _controls(functions, draws):
        assert draws.layout is not None
        rest = functions - control
        found = cautious(rest, draws.layout)
        better = (found < error) & agreeing(control, draws.layout)
        shift, error = np.where(better, rest.mean(axis=0), shift), np.where(better, found, error)
        if not family.cubic:  # of what the weights make exact
            relative, largest = np.sqrt(np.mean(rest**2, axis=0)), np.max(np.abs(rest), axis=0)
            exact = exact | inside & (draws.linear | (not family.linear))
    exact = exact & (residual <= EXACT)
    stein = average + shift * sd
    rounding = 1e-14 * np.max(np.abs(flat), axis=0) + residual * sd
    answers = np.where(exact, average, stein), np.where(exact, rounding, np.hypot(error, draws.shares) * sd)
    estimate, stated, average, stein, relative, bound = (
        np.reshape(part, shape) for part in (*answers, average, stein, relative, 2.0 * largest * sd)
    )
    inside = bool(exact[0]) if shape == () else exact.reshape(shape)
    return Query(estimate, stated, inside, average, stein, relative, bound)


def _weighted_error(functions: Float[np.ndarray, "n q"], draws: WeighedDraws) -> Float[np.ndarray, " q"]:
    """The standard error of weighted averages, without control variates."""
    weighted = draws.weights[:, None] * functions
    if draws.layout is None:
        return np.sqrt(np.sum(weighted**2, axis=0))
    return cautious(len(functions) * weighted, draws.layout)


def _controls(functions: Float[np.ndarray, "n q"], draws: WeighedDraws) -> list[tuple[Family, np.ndarray, np.ndarray]]:
    """For each family of fields that the draws can bear its control variates, and which functions they make up."""
    if draws.z is None or draws.scores is None or draws.layout is None:
        return []
    n, d = draws.z.shape
    families = {family.size(d, 0): family for family in affordable(n, d, 0) if n * family.size(d, 0) ** 2 <= _MOST_WORK}
    if not families:
        return []
    none = np.zeros((n, 0))
    psi = all_images(families[max(families)], draws.z, draws.scores, Values(none, none, none, none), none[0], none[0])
    scale = np.sqrt(np.mean(psi**2, axis=0))
    psi = psi / np.where(np.isfinite(scale) & (scale > 0.0), scale, np.inf)
    fits = CrossFit(functions, psi, draws.layout.folds())
    found = []
    for family in families.values():
        columns = np.nonzero(family.columns(d, 0)[: psi.shape[1]])[0]
        beta = fits.coefficients(columns)
        left = functions - psi[:, columns] @ beta
        inside = np.std(left, axis=0) <= _NEAR
        found.append((family, fits.control(columns), inside))
    return found


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
