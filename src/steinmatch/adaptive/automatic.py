"""The automatic fit: affine phase, then levels of more and more features, until means and sds stand still.

    affine   mu and L of x = mu + L z, where the evidence bound is highest
    level 1  all products of degree 2 of the whitened point, or those that matter
    level 2  degree 3, likewise
    level 3  degree 4, or more of what is violated

As in adaptive quadrature the change from one level to the next is the error estimate of the finer one, together with
what fresh features, those of the level after it, would change (`ahead`) and what the residual leaves open. Particles
of one level start the next: their displacement is a smooth function of where they started, and is carried over to more
points by regression.
"""

import dataclasses
import functools
import time
import warnings
from collections.abc import Callable
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
import scipy.special
import scipy.stats
from jaxtyping import Float

from steinmatch.adaptive.ahead import look_ahead
from steinmatch.adaptive.choice import first_features, next_features
from steinmatch.adaptive.level import SOLVED, Solved, Whitening, solve_level
from steinmatch.adaptive.monomials import Monomial, Monomials
from steinmatch.adaptive.starts import affine_starts, heavy_tails, valley
from steinmatch.kernels import AffineMap
from steinmatch.solvers import Budget
from steinmatch.targets import AbstractTarget, Evaluations, constrained_values

LEVELS = 3
_PARTICLES_A_FEATURE = 3
_LEAST_PARTICLES = 100
_LARGEST = 10**8  # entries of the scores' slopes, n d^2
_CHANGE_LEFT = 0.4  # the error of a level in units of its change from the level before
_AHEAD = 0.35  # ... and of what fresh features would change
_ACCEPTED = 0.02  # a level whose largest scaled residual is above this is not a fixed point


class Error(NamedTuple):
    """Stated errors, one entry a parameter: of the means in posterior sds, of the sds relative to them."""

    mean: Float[np.ndarray, " k"]
    sd: Float[np.ndarray, " k"]


@dataclasses.dataclass(frozen=True)
class Level:
    """What one level was, and what it changed."""

    name: str
    n_features: int
    n_particles: int
    residual: float  # largest entry of the scaled residual
    change: float  # largest change of a mean (in sds) or an sd (relative) since the level before
    seconds: float
    n_gradients: int
    n_hvps: int


@dataclasses.dataclass(frozen=True)
class Adapted:
    """The result of the automatic fit."""

    particles: Float[np.ndarray, "n d"]
    features: Monomials
    frame: AffineMap
    residual: float
    converged: bool
    reason: str
    error: Error
    levels: tuple[Level, ...]
    n_steps: int
    n_gradients: int
    n_hvps: int


class _Stage(NamedTuple):
    """A level that is done."""

    features: list[Monomial]
    start: np.ndarray  # the points z before they were moved
    solved: Solved
    particles: np.ndarray
    mean: np.ndarray  # of the constrained values
    sd: np.ndarray


def adapt(
    target: AbstractTarget,
    tol: float,
    seed: int,
    budget: Budget,
    report: Callable[[Level], None],
    centre: Float[np.ndarray, " d"] | None = None,
    scale: Float[np.ndarray, " d"] | None = None,
    n_particles: int | None = None,
) -> Adapted:
    """Particles whose means and sds (of the constrained values) are within `tol` posterior sds, if all goes well."""
    d = target.dim
    evaluate = Evaluations(target)
    started = clock = time.monotonic()

    def spent() -> bool:
        gradients = evaluate.n_gradients + 2 * evaluate.n_hvps
        out_of_gradients = budget.max_gradients is not None and gradients >= budget.max_gradients
        return out_of_gradients or (budget.max_seconds is not None and time.monotonic() - started >= budget.max_seconds)

    levels: list[Level] = []
    stages: list[_Stage] = []
    limits: list[str] = []
    used = (0, 0)

    def record(name: str, stage: _Stage) -> None:
        nonlocal clock, used
        change = _largest(_changes(stages[-1].mean, stages[-1].sd, stage)) if stages else np.inf
        now, counts = time.monotonic(), (evaluate.n_gradients, evaluate.n_hvps)
        level = Level(
            name, len(stage.features), len(stage.particles), stage.solved.residual, change, now - clock,
            counts[0] - used[0], counts[1] - used[1],
        )  # fmt: skip
        clock, used = now, counts
        levels.append(level)
        stages.append(stage)
        report(level)

    @functools.cache
    def ahead(k: int) -> Error:
        """What fresh features would change at stage k."""
        stage = stages[k]
        features = next_features(stage.features, k + 1, stage.solved.z, stage.solved.scores)
        moved = look_ahead(stage.solved, stage.start, len(stage.features), features)
        return _changes(*_moments(target, whitening.colour(moved)), stage)

    many, few = (normal_points(max(2 * d + 2, least), d, seed) for least in (max(min(5 * d, 64), 32), 16))
    found = affine_starts(evaluate, many, few, seed, spent, centre, scale)
    whitening = Whitening(evaluate, found.shift, found.root)
    points = normal_points(_enough(n_particles, d + 1), d, seed)
    scores = whitening.scores(points)
    finite = np.isfinite(scores).all(axis=1)
    affine = first_features(d)
    kept, kept_scores = points[finite], scores[finite]
    residual = float(np.abs(Monomials(affine, d).residual(kept, kept_scores)).max()) if finite.any() else np.inf
    record("affine", _stage(target, affine, points, Solved(kept, kept_scores, residual, found.n_steps), whitening))
    interrupted = False
    try:
        while len(levels) <= LEVELS and not spent() and finite.any():
            last = stages[-1]
            features = next_features(last.features, len(levels), last.solved.z, last.solved.scores)
            n = _enough(n_particles, len(features))
            if len(features) == len(last.features) or n < 1.2 * len(features):
                break
            if n * d * d > _LARGEST:
                limits.append(f"the next level, {len(features)} features and {n} particles, does not fit into memory")
                break
            start = normal_points(n, d, seed)
            solved = solve_level(whitening, Monomials(features, d), _carried(last, start, d), spent)
            record(f"level {len(levels)}", _stage(target, features, start, solved, whitening))
            if solved.residual > _ACCEPTED:  # more features would ask for more than these could give
                break
            still = _largest(_stated(last, stages[-1])) <= tol  # the look ahead takes a while: only if it decides
            if still and _largest(_stated(last, stages[-1], ahead(len(stages) - 1))) <= tol:
                break
    except KeyboardInterrupt:
        interrupted = True
    chosen = _best(stages)
    error = _unknown(chosen)
    if chosen is not stages[0]:
        k = stages.index(chosen)
        error = _stated(stages[k - 1], chosen, ahead(k))
    largest = _largest(error)
    solved = chosen.solved
    notes = [*found.notes, *heavy_tails(whitening), *valley(whitening, solved.z), *limits]
    converged = largest <= tol and solved.residual <= _ACCEPTED and not notes and not interrupted
    reason = _reason(tol, largest, solved, converged, interrupted, spent(), budget, notes)
    return Adapted(
        particles=chosen.particles,
        features=Monomials(chosen.features, d),
        frame=AffineMap(jnp.asarray(found.shift), jnp.asarray(found.root)),
        residual=solved.residual,
        converged=converged,
        reason=reason,
        error=error,
        levels=tuple(levels),
        n_steps=sum(stage.solved.n_steps for stage in stages),
        n_gradients=evaluate.n_gradients,
        n_hvps=evaluate.n_hvps,
    )


def normal_points(n: int, d: int, seed: int) -> Float[np.ndarray, "n d"]:
    """Antithetic quasi-random normal points with mean 0 and covariance I exactly."""
    half = -(-n // 2)
    with warnings.catch_warnings():  # Sobol' points prefer powers of two
        warnings.simplefilter("ignore")
        uniform = scipy.stats.qmc.Sobol(d, scramble=True, rng=np.random.default_rng(seed)).random(half)
    z = scipy.special.ndtri(np.clip(uniform, 1e-10, 1.0 - 1e-10))
    z = np.concatenate([z, -z])
    covariance = z.T @ z / len(z)
    if len(z) <= d:
        return z
    return np.linalg.solve(np.linalg.cholesky(covariance), z.T).T


def _enough(n_particles: int | None, n_features: int) -> int:
    """How many particles: the user's number, or a few times the number of features."""
    if n_particles is not None:
        return n_particles
    return max(_LEAST_PARTICLES, (_PARTICLES_A_FEATURE if n_features <= 200 else 2) * n_features)


def _carried(stage: _Stage, start: np.ndarray, d: int) -> np.ndarray:
    """New points, moved as the particles of the last level were."""
    if len(start) == len(stage.start) == len(stage.solved.z):
        return stage.solved.z
    if len(stage.solved.z) != len(stage.start):
        return start
    features = Monomials(stage.features, d)
    phi = features.values(stage.start)
    gram = phi @ phi.T / phi.shape[1] + 1e-3 * np.eye(len(phi))
    coefficients = np.linalg.solve(gram, phi @ (stage.solved.z - stage.start) / phi.shape[1])
    move = features.values(start).T @ coefficients
    length = np.linalg.norm(move, axis=1, keepdims=True)
    return start + move * np.minimum(1.0, 3.0 / np.maximum(length, 1e-12))


def _stage(
    target: AbstractTarget, features: list[Monomial], start: np.ndarray, solved: Solved, whitening: Whitening
) -> _Stage:
    particles = whitening.colour(solved.z)
    return _Stage(features, start, solved, particles, *_moments(target, particles))


def _moments(target: AbstractTarget, particles: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Means and sds of the constrained values."""
    _, values = constrained_values(target, particles)
    return values.mean(axis=0), values.std(axis=0)


def _changes(mean: np.ndarray, sd: np.ndarray, stage: _Stage) -> Error:
    unit = np.maximum(stage.sd, 1e-300)
    return Error(np.abs(stage.mean - mean) / unit, np.abs(sd / unit - 1.0))


def _stated(before: _Stage, stage: _Stage, ahead: Error | None = None) -> Error:
    """The last change, what fresh features would change, and what n particles and an unsolved residual leave open."""
    changes = _changes(before.mean, before.sd, stage)
    floor = 0.05 / np.sqrt(len(stage.particles)) + 0.3 * max(stage.solved.residual - SOLVED, 0.0)
    share = _CHANGE_LEFT if stage.solved.residual <= _ACCEPTED else 1.0
    known = [np.hypot(share * change, floor) for change in changes]
    if ahead is not None:
        known = [np.hypot(error, _AHEAD * more) for error, more in zip(known, ahead, strict=True)]
    return Error(*known)


def _unknown(stage: _Stage) -> Error:
    return Error(*(np.full(len(stage.mean), np.inf) for _ in range(2)))


def _largest(error: Error) -> float:
    return float(max(np.max(error.mean, initial=0.0), np.max(error.sd, initial=0.0)))


def _best(stages: list[_Stage]) -> _Stage:
    """The last level that is a fixed point; without one, the level with the least residual beyond the affine one."""
    accepted = [stage for stage in stages[1:] if stage.solved.residual <= _ACCEPTED]
    if accepted:
        return accepted[-1]
    return min(stages[1:] or stages, key=lambda stage: stage.solved.residual)


def _reason(
    tol: float,
    largest: float,
    solved: Solved,
    converged: bool,
    interrupted: bool,
    spent: bool,
    budget: Budget,
    notes: list[str],
) -> str:
    if converged:
        return f"the estimated error of means and sds is {largest:.2g}, below tol={tol:g}"
    parts = list(notes)
    if interrupted:
        parts.append("interrupted by the user; the best level so far")
    elif spent:
        limits = {"max_seconds": budget.max_seconds, "max_gradients": budget.max_gradients}
        parts.append("stopped by " + ", ".join(f"{k}={v:g}" for k, v in limits.items() if v is not None))
    if solved.residual > _ACCEPTED:
        parts.append(
            f"the features cannot follow this target: their largest residual stays at {solved.residual:.2g}. Likely a "
            "funnel (a scale that changes by orders of magnitude over the posterior) or a sharp boundary; a "
            "non-centred or smoother parametrisation helps"
        )
    elif largest > tol:
        parts.append(f"the estimated error is {largest:.2g}, above tol={tol:g}")
    return "; ".join(parts)
