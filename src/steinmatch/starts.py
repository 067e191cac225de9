"""Where a fit begins, checked, and what becomes of its draws: as many as were asked for, their mean and spread."""

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from steinmatch._checks import as_particles, check_size, positive_integer
from steinmatch._linalg import one_thread
from steinmatch._types import plain
from steinmatch.adaptive import Error, Walk, Walked
from steinmatch.coordinates import AffineMap
from steinmatch.kernels.features import Linear
from steinmatch.measures.weights import systematic
from steinmatch.solvers.base import Budget, Problem
from steinmatch.targets import AbstractTarget, Evaluations, Target, constrained_values
from steinmatch.targets.base import Gradient
from steinmatch.targets.data import rows_of
from steinmatch.targets.files import Streamed

_LOOKED_AT = 16  # points at which a score is compared with differences of its log density
_COARSE = 0.2  # tolerance of a fit to a sample of the data, whose posterior is sds away from that of all


def first_particles(
    target: AbstractTarget, n_particles: int | None, init: Any, key: PRNGKeyArray, some: int = 0
) -> tuple[Float[Array, "n d"], int]:
    """The checked start: shapes, finite values, and finite log densities and scores, at all particles; or at some of
    them, which are evaluated in batches of this size. And how many gradients that took.
    """
    if isinstance(init, str | bytes | Mapping):
        raise TypeError(f"fit (init): give an array (n, d), a function (key, n) -> (n, d) or a fit; got {init!r:.80}.")
    n = 100 if n_particles is None else positive_integer(n_particles, "n_particles", "fit")
    check_size(n, target.dim, "fit")
    if init is None:
        particles = plain(jax.random.normal(key, (n, target.dim), jnp.float64))
    else:
        particles = as_particles(_called(init, key, n) if callable(init) else init, "fit (init)", target.dim)
        if n_particles is not None and particles.shape[0] != n:
            raise ValueError(f"fit: n_particles={n}, but init holds {particles.shape[0]} particles; give one of them.")
    if not some and len(particles) > 1 and (particles == particles[:1]).all():
        raise ValueError(
            f"fit (init): all {len(particles)} particles are the same point, and would stay together: no kernel tells "
            "them apart; give different ones."
        )
    evaluate = Evaluations(target, some or min(len(particles), 64))
    densities, scores = evaluate(np.asarray(particles))
    densities = np.zeros(len(particles)) if target.log_density is None else densities
    for values, name in ((densities, "log density"), (scores, "gradient of the log density")):
        bad = ~np.isfinite(values.reshape(len(particles), -1)).all(axis=1)
        if bad.all() if some else bad.any():
            i = int(np.argmax(bad))
            raise ValueError(
                f"fit: the {name} is not finite at {int(bad.sum())} of {len(particles)} starting particles; "
                f"particle {i}, x = {np.array2string(particles[i], precision=3, threshold=6)}, gives "
                f"{np.array2string(values[i], precision=3, threshold=6)}. Check the target there, or give init= where "
                "the density is positive."
            )
    if target.log_density is not None and not isinstance(target.score, Gradient):
        _check_gradient(evaluate, np.asarray(particles)[:_LOOKED_AT], densities, scores)
    return jnp.asarray(particles), evaluate.n_gradients


def from_a_sample(target: AbstractTarget, seed: int, budget: Budget) -> tuple[Walked | None, int]:
    """For data that are read in passes a walk from which the fit goes on: its frame is that of some of the rows, each
    counted as often as makes up for the others. And how many gradients that took, of all rows.
    """
    density = target.log_density
    if not isinstance(density, Streamed):
        return None, 0
    few = density.on_a_sample()
    sample = Target(few, dim=target.dim)
    particles = jax.device_put(np.random.default_rng(seed).normal(size=(_LOOKED_AT, target.dim)))
    problem = Problem(sample, Linear(), jax.device_put(np.full(_LOOKED_AT, 1.0 / _LOOKED_AT)))
    own = Budget(max_seconds=budget.max_seconds)
    with one_thread():
        found = Walk(_COARSE, seed=seed, centred=False).solve(problem, particles, own, lambda iterate: None)
    share = rows_of(few.data) / density.source.rows
    return found.outcome, int(np.ceil(share * found.counts.gradients))


def more_particles(target: AbstractTarget, particles: Float[Array, "n d"], init: Any, n: int, key: PRNGKeyArray) -> Any:
    """A start of n particles for a fit that needs more than it was given: the function's, or the given ones and as many
    normal draws about them as are missing.
    """
    if init is None or callable(init):
        return first_particles(target, n, init, key)[0]
    held = np.asarray(particles)
    spread = np.maximum(held.std(axis=0), 1e-3)
    extra = held.mean(axis=0) + spread * np.asarray(jax.random.normal(key, (n - len(held), held.shape[1]), float))
    return first_particles(target, None, np.concatenate([held, extra]), key)[0]


def _called(init: Callable[..., Any], key: Any, n: int) -> Any:
    """What a function that draws the start gives; an error of its own says where it came from."""
    try:
        return init(key, n)
    except Exception as error:
        raise ValueError(
            f"fit (init): {type(error).__name__}: {error}. A function must take a key and n and return an array "
            "(n, d), as the `sample` of a target does."
        ) from error


def _check_gradient(evaluate: Evaluations, x: np.ndarray, densities: np.ndarray, scores: np.ndarray) -> None:
    """A score of the user's own must be the gradient of the log density: differences along random directions."""
    n, d = x.shape
    along = np.random.default_rng(0).normal(size=(n, d))
    along /= np.linalg.norm(along, axis=1, keepdims=True)
    h = 1e-3 * (1.0 + np.abs(x).max(axis=1))[:, None]
    ends, _ = evaluate(np.concatenate([x + h * along, x - h * along]))
    found, said = (ends[:n] - ends[n:]) / (2.0 * h[:, 0]), np.sum(scores[:n] * along, axis=1)
    with np.errstate(invalid="ignore"):
        # Of curved densities the difference is off by h^2; log densities in single precision by 1e-6 of themselves.
        allowed = 0.05 * (np.abs(found) + np.abs(said)) + 1e-3 + 1e-6 * np.abs(densities[:n]) / h[:, 0]
        off = np.abs(found - said) > allowed
    if np.sum(off) > 0.5 * n:
        i = int(np.argmax(off))
        raise ValueError(
            f"fit: score is not the gradient of log_density: at x = {np.array2string(x[i], precision=3, threshold=6)} "
            f"the log density changes by {found[i]:.4g} a unit along a direction where the score says {said[i]:.4g}. "
            "Mend one of them, or leave out score= and let JAX differentiate log_density."
        )


def spread_of(particles: np.ndarray, weights: np.ndarray) -> AffineMap:
    """Mean and root of the covariance: `AffineMap.of_particles`, without compiling it."""
    mean = weights @ particles
    centred = np.sqrt(weights)[:, None] * (particles - mean)
    try:
        return AffineMap(jnp.asarray(mean), jnp.asarray(np.linalg.cholesky(centred.T @ centred)))
    except np.linalg.LinAlgError:
        return AffineMap.of_particles(jnp.asarray(particles), jnp.asarray(weights))


def resampled(
    target: AbstractTarget, particles: np.ndarray, weights: np.ndarray, error: Error, n: int, seed: int
) -> tuple[np.ndarray, np.ndarray, Error]:
    """n of the weighted draws, by systematic resampling: equal weights, and errors with what that adds."""
    chosen = particles[systematic(weights, n, seed)]
    (_, before), (_, after) = constrained_values(target, particles), constrained_values(target, chosen)
    mean = weights @ before
    sd = np.sqrt(weights @ (before - mean) ** 2)
    unit = np.where(sd > 0.0, sd, 1.0)
    more = (after.mean(axis=0) - mean) / unit, after.std(axis=0) / unit - (sd > 0.0)
    return chosen, np.full(n, 1.0 / n), Error(*(np.hypot(a, b) for a, b in zip(error, more, strict=True)))
