"""Frame and walk of one small posterior, written for JAX alone, so that those of many data sets are one program.

What `Walk` does in NumPy, step by step, for one posterior is here a loop of fixed shape: the affine phase, chains at
points of its frame, trajectories of Hamiltonian Monte Carlo. `lone` says of which posteriors this is not enough: those
whose frame was not found, or where ascents from afar do not come home, as from other modes or along heavy tails.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, PRNGKeyArray

from steinmatch._types import Numbers, Scalar
from steinmatch.adaptive.conditional import NORMAL_GRID
from steinmatch.adaptive.frames import normal_points
from steinmatch.adaptive.leaps import CYCLE
from steinmatch.adaptive.walks import CAUTION, CHUNK, States, Stretch, transitions
from steinmatch.coordinates import AbstractFrame, AffineMap, Composed, Order, Parent, PulledBack
from steinmatch.coordinates.maps import Spline
from steinmatch.solvers.affine import CLIP, FAR, GROWTH, MOST_TRUST, START_SCALES
from steinmatch.targets import AbstractTarget

GROUPS, SIBLINGS = 32, 2
LARGEST = 64  # dimensions: above that one posterior fills the machine
_POINTS, _FRESH, _GIVEN = 64, 128, 32  # of the affine phase, at least; where chains begin; given a parent, at least
_SWEEPS, _SMALL_GAIN, _SHORTEST = 80, 1e-3, 1e-4  # most steps; nats and length of the last ones
_SWEEPS_GIVEN, _KNOTS, _MATRICES = 12, 21, 5  # of each affine phase given a parent; of the frame
_OUTWARDS = (0.7, 1.4, 2.1, 3.0, 4.2, 6.0, 9.0, 14.0)  # sds from the centre, to either side
_NEGLIGIBLE = 10.0  # nats below the top of the parent's marginal density
_SCOUTS, _REACH, _ASCENTS, _HOME = 16, (3.0, 10.0, 30.0), 60, 5.0  # how many; from how far; steps; sds beyond sqrt(d)
MOST_LEAPS = 32  # of a trajectory: one set of many must not keep the others waiting
WARM = 2 * CHUNK  # transitions that adapt the step
STRETCH = CYCLE * CHUNK  # transitions: trajectories, then leaps


class Framed(NamedTuple):
    """The frame of one posterior, and what finding it took."""

    frame: AbstractFrame
    sweeps: Scalar
    lone: Bool[Array, ""]


class _Climb(NamedTuple):
    """Where an affine phase stands."""

    shift: Float[Array, " d"]
    root: Float[Array, "d d"]
    log_det: Scalar
    bound: tuple[Array, Array, Array]  # value, gradient, curvature, as in `solvers.affine.Bound`
    length: Scalar
    trust: Scalar
    small: Scalar  # steps in a row that gained nothing that matters
    sweeps: Scalar


def points_of(d: int, seed: int) -> tuple[Float[np.ndarray, "n d"], Float[np.ndarray, "k d"], Float[np.ndarray, "m r"]]:
    """Points of the affine phase, fresh ones, and those of affine phases given a parent: the same for all data sets."""
    most = normal_points(max(_POINTS, 4 * d), d, seed)
    return most, normal_points(_FRESH, d, seed + 1), normal_points(max(_GIVEN, 2 * d), max(d - 1, 1), seed + 2)


def gradients_before(points: tuple[Numbers, ...], sweeps: int, parent: bool) -> int:
    """What frame, fresh points and scouts take of each data set, all of a block waiting for the last one's frame."""
    own, fresh, given = map(len, points)
    before = own * (len(START_SCALES) + sweeps) + fresh + _SCOUTS * _ASCENTS
    return before + given * (2 * len(_OUTWARDS) + 1 + _KNOTS) * _SWEEPS_GIVEN if parent else before


def _bound(density: Callable[[Array], Array], shift: Array, root: Array, log_det: Array, z: Array) -> tuple:
    values, scores = jax.vmap(jax.value_and_grad(density))(z @ root.T + shift)
    product = z.T @ scores @ root / len(z)
    value = jnp.mean(values) + log_det
    gradient, curvature = root.T @ jnp.mean(scores, axis=0), -0.5 * (product + product.T)
    finite = jnp.isfinite(value) & jnp.all(jnp.isfinite(gradient)) & jnp.all(jnp.isfinite(curvature))
    return jnp.where(finite, value, -jnp.inf), jnp.nan_to_num(gradient), jnp.nan_to_num(curvature)


def _begin(density: Callable[[Array], Array], shift: Array, root: Array, log_det: Array, z: Array) -> _Climb:
    none = jnp.zeros((), int)
    bound = _bound(density, shift, root, log_det, z)
    return _Climb(shift, root, log_det, bound, jnp.ones(()), jnp.ones(()), none, none)


def _climbed(density: Callable[[Array], Array], first: _Climb, z: Array, most: int, gain_left: float) -> _Climb:
    """Steps of the affine phase (`solvers.affine`) over fixed points z, until two in a row gain less than this."""
    d = z.shape[1]

    def goes_on(state: _Climb) -> Array:
        return (state.sweeps < most) & (state.small < 2) & (state.length > _SHORTEST)

    def step(state: _Climb) -> _Climb:
        value, gradient, curvature = state.bound
        values, vectors = jnp.linalg.eigh(curvature)
        clip, far = CLIP * state.trust, FAR * np.sqrt(d) * state.trust
        sizes = jnp.clip(jnp.abs(values), 1.0 / clip, clip)
        shift = vectors @ ((vectors.T @ gradient) / sizes)
        distance = jnp.linalg.norm(shift)
        limited = (jnp.max(jnp.abs(values)) > clip) | (distance > far)
        shift = shift * jnp.minimum(1.0, far / jnp.maximum(distance, 1e-300))
        root = state.root @ ((vectors * sizes ** (-0.5 * state.length)) @ vectors.T)
        log_det = state.log_det - 0.5 * state.length * jnp.sum(jnp.log(sizes))
        moved = state.shift + state.length * (state.root @ shift)
        bound = _bound(density, moved, root, log_det, z)
        gain = bound[0] - value
        rises = gain > 1e-12 * (1.0 + jnp.abs(value))
        grown = jnp.minimum(GROWTH * state.trust, MOST_TRUST)
        wider = jnp.where(limited & (state.length == 1.0), grown, state.trust)
        shorter = jnp.where(state.trust > 1.0, state.length, 0.5 * state.length)
        new = _Climb(
            moved, root, log_det, bound, jnp.minimum(1.0, 2.0 * state.length), wider,
            jnp.where(gain < gain_left, state.small + 1, 0), state.sweeps,
        )  # fmt: skip
        old = state._replace(length=shorter, trust=jnp.maximum(1.0, state.trust / GROWTH))
        kept = jax.tree.map(lambda a, b: jnp.where(rises, a, b), new, old)
        return kept._replace(sweeps=state.sweeps + 1)

    return jax.lax.while_loop(goes_on, step, first)


def _lower(root: Array) -> Array:
    """The lower triangular root of the same covariance; not a number where there is none."""
    return jnp.linalg.cholesky(root @ root.T)


def framed(target: AbstractTarget, points: tuple[Numbers, ...], parent: int | None) -> Framed:
    """The affine frame, from the best of several scales; or that of a parent on top of it."""
    z, _, given = map(jnp.asarray, points)
    d = z.shape[1]
    density: Callable[[Array], Array] = target.log_density  # type: ignore[assignment]
    starts = [_begin(density, jnp.zeros(d), s * jnp.eye(d), jnp.asarray(d * np.log(s)), z) for s in START_SCALES]
    best = jnp.argmax(jnp.stack([start.bound[0] for start in starts]))
    first = jax.tree.map(lambda *parts: jnp.stack(parts)[best], *starts)
    last = _climbed(density, first, z, _SWEEPS, _SMALL_GAIN)
    root = _lower(last.root)
    lone = ~jnp.isfinite(last.bound[0]) | ~jnp.all(jnp.isfinite(root)) | (last.sweeps >= _SWEEPS)
    affine = AffineMap(last.shift, jnp.where(lone, jnp.eye(d), root))
    if parent is None:
        return Framed(affine, last.sweeps, lone)
    richer, failed = with_parent(density, affine, parent, given)
    return Framed(richer, last.sweeps, lone | failed)


def with_parent(
    density: Callable[[Array], Array], affine: AffineMap, v: int, z: Float[Array, "m r"]
) -> tuple[AbstractFrame, Array]:
    """The frame with coordinate v as the parent of all others, as `parents.fit_parent` makes it, with evenly spaced
    knots where the parent has mass; and whether that failed.
    """
    d = len(affine.shift)
    others = np.delete(np.arange(d), v)
    covariance = jnp.asarray(affine.root) @ jnp.asarray(affine.root).T
    centre, sd = affine.shift[v], jnp.sqrt(covariance[v, v])
    own = covariance[np.ix_(others, others)] - jnp.outer(covariance[others, v], covariance[v, others]) / sd**2
    root = jnp.linalg.cholesky(own)

    def solved(place: Array, shift: Array, root: Array, log_det: Array) -> _Climb:
        def given(rest: Array) -> Array:
            return density(jnp.zeros(d).at[others].set(rest).at[v].set(place))

        return _climbed(given, _begin(given, shift, root, log_det, z), z, _SWEEPS_GIVEN, _SMALL_GAIN)

    def outwards(carry: tuple, place: Array) -> tuple:
        found = solved(place, *carry)
        usable = jnp.isfinite(found.bound[0])
        carry = tuple(jnp.where(usable, new, old) for new, old in zip(found[:3], carry, strict=True))
        return carry, (place, found.bound[0], *carry)

    middle = outwards((affine.shift[others], root, jnp.sum(jnp.log(jnp.diagonal(root)))), centre)
    steps = sd * jnp.asarray(_OUTWARDS)
    sides = [jax.lax.scan(outwards, middle[0], centre + side * steps)[1] for side in (-1.0, 1.0)]
    rows = zip(sides[0], middle[1], sides[1], strict=True)
    places, logs, *states = (jnp.concatenate([below[::-1], here[None], above]) for below, here, above in rows)
    inside = logs >= jnp.max(logs) - _NEGLIGIBLE
    low, high = jnp.min(jnp.where(inside, places, jnp.inf)), jnp.max(jnp.where(inside, places, -jnp.inf))
    width = high - low
    grid = np.linspace(0.0, 1.0, _KNOTS)

    def at(place: Array) -> tuple:
        nearest = jnp.argmin(jnp.where(jnp.isfinite(logs), jnp.abs(places - place), jnp.inf))
        found = solved(place, *(part[nearest] for part in states))
        return found.bound[0], found.shift, _lower(found.root)

    knots = low + width * grid
    marginal, means, roots = jax.lax.map(at, knots) if jax.default_backend() == "cpu" else jax.vmap(at)(knots)
    quantiles, falls = _quantiles(marginal, low, width)
    scales = jnp.diagonal(roots, axis1=1, axis2=2)
    mixing, shears = _mixtures(jnp.tril(roots / scales[:, None, :], -1), scales)
    # The spline's basis over low + width * grid is a linear map of that over the grid: 1, low + width u, width^2 e(u).
    back = jnp.diag(jnp.concatenate([jnp.ones(1), 1.0 / width[None], jnp.full(_KNOTS - 2, width**-2.0)]))
    given_parent = Spline(knots, back.at[0, 1].set(-low / width) @ Spline.over(grid).inverse)
    arrays = (quantiles, given_parent, means, jnp.log(scales), mixing, shears)
    frame = Composed((Order(np.concatenate([[v], others])), Parent(Spline.over(NORMAL_GRID), *arrays)))
    finite = jnp.all(jnp.isfinite(marginal)) & jnp.all(jnp.isfinite(roots)) & jnp.all(jnp.isfinite(quantiles))
    return frame, ~(finite & falls)


def _mixtures(shears: Float[Array, "k r r"], scales: Float[Array, "k r"]) -> tuple[Array, Array]:
    """The few matrices of which all shears are very nearly mixtures, as `coordinates.maps.mixtures`."""
    k, r, _ = shears.shape
    unit = jnp.exp(jnp.mean(jnp.log(scales), axis=0))
    left, values, right = jnp.linalg.svd((shears * unit / unit[:, None]).reshape(k, r * r), full_matrices=False)
    some = min(_MATRICES, len(right))
    return left[:, :some] * values[:some], right[:some].reshape(some, r, r) * unit[:, None] / unit


def _quantiles(marginal: Float[Array, " k"], low: Array, width: Array) -> tuple[Float[Array, " q"], Array]:
    """The parent's quantile function at normal scores from its log marginal density at evenly spaced knots, in straight
    lines beyond them; and whether the density falls at both ends.
    """
    spline, grid = Spline.over(np.linspace(0.0, 1.0, _KNOTS)), np.linspace(-1.5, 2.5, 4001)
    logs = jax.vmap(spline.weights)(jnp.asarray(grid)) @ marginal
    density = jnp.exp(jnp.minimum(logs - jnp.max(marginal), 1.0))
    mass = jnp.concatenate([jnp.zeros(1), jnp.cumsum(0.5 * (density[1:] + density[:-1]))])
    mass = mass / mass[-1] + 1e-13 * grid
    places = low + width * jnp.interp(jax.scipy.special.ndtr(jnp.asarray(NORMAL_GRID)), mass, grid)
    falls = jnp.maximum(logs[0], logs[-1]) < jnp.max(marginal) - _NEGLIGIBLE
    return places, falls & jnp.all(jnp.diff(places) > 0.0)


class Begun(NamedTuple):
    """Chains of one posterior at points of its frame, after a warm-up."""

    states: States
    log_step: Scalar
    start: tuple[Float[Array, "g d"], Float[Array, "g d"]]  # where the groups began, and the scores there
    leaps: Scalar  # of each chain
    lone: Bool[Array, ""]


def begun(target: AbstractTarget, found: Framed, fresh: Float[Array, "n d"], key: PRNGKeyArray) -> Begun:
    """Chains at fresh points drawn by their importance; `lone` where scouts from afar do not come home."""
    pulled = PulledBack(target, found.frame)
    d = fresh.shape[1]
    start_key, walk_key = jax.random.split(key)
    densities, scores = jax.vmap(jax.value_and_grad(pulled.log_density))(fresh)
    logs = densities + 0.5 * jnp.sum(fresh**2, axis=1)
    logs = jnp.where(jnp.isfinite(logs) & jnp.all(jnp.isfinite(scores), axis=1), logs, -jnp.inf)
    weights = jnp.exp(logs - jnp.max(logs))
    weights = jnp.minimum(weights, np.sqrt(len(fresh)) * jnp.mean(weights))
    comb = (jnp.arange(GROUPS) + jax.random.uniform(start_key, dtype=jnp.float64)) / GROUPS
    chosen = jnp.minimum(jnp.searchsorted(jnp.cumsum(weights / jnp.sum(weights)), comb), len(fresh) - 1)
    states = States(*(jnp.repeat(part[chosen], SIBLINGS, axis=0) for part in (fresh, densities, scores)))
    gains = jnp.asarray(1.0 / np.sqrt(1.0 + np.arange(WARM)))
    log_step = jnp.asarray(np.log(1.2 * d**-0.25))
    states, log_step, rows = transitions(pulled, states, walk_key, log_step, gains, _factors(WARM), MOST_LEAPS)
    lone = found.lone | ~jnp.any(jnp.isfinite(logs)) | _astray(pulled, fresh)
    return Begun(states, log_step, (fresh[chosen], scores[chosen]), jnp.sum(rows[-1]), lone)


def walked(
    target: AbstractTarget, frame: AbstractFrame, states: States, log_step: Scalar, key: PRNGKeyArray
) -> tuple[States, Stretch]:
    """A stretch of all chains: trajectories, then leaps, as `leaps` says of both."""
    pulled = PulledBack(target, frame)
    walk_key, leap_key = jax.random.split(key)
    gains, factors = jnp.zeros(CHUNK), _factors(CHUNK)
    states, log_step, rows = transitions(pulled, states, walk_key, log_step, gains, factors, MOST_LEAPS)
    states, others = _leaps(pulled, states, leap_key, STRETCH - CHUNK)
    rows = jax.tree.map(lambda first, second: jnp.concatenate([first, second]), rows, others)
    return states, Stretch(states, log_step, *rows)


def _leaps(target: PulledBack, states: States, key: PRNGKeyArray, count: int) -> tuple[States, tuple]:
    """So many independent proposals for each chain, as `leaps.leap`; the last are rows of a `Stretch`."""
    propose_key, accept_key = jax.random.split(key)
    z = jax.random.normal(propose_key, (count, *states.z.shape), jnp.float64)
    densities, scores = jax.vmap(jax.vmap(jax.value_and_grad(target.log_density)))(z)
    finite = jnp.isfinite(densities) & jnp.all(jnp.isfinite(scores), axis=-1)
    proposed = States(z, jnp.where(finite, densities, -jnp.inf), jnp.nan_to_num(scores))
    uniform = jnp.log(jax.random.uniform(accept_key, (count, len(states.z)), jnp.float64))

    def weight(at: States) -> Array:
        return at.log_densities + 0.5 * jnp.sum(at.z**2, axis=-1)

    def one(here: States, given: tuple) -> tuple:
        there, uniform = given
        moves = uniform < weight(there) - weight(here)
        here = States(
            *(jnp.where(moves.reshape(-1, *[1] * (a.ndim - 1)), b, a) for a, b in zip(here, there, strict=True))
        )
        return here, (here, jnp.mean(moves))

    last, (rows, accepted) = jax.lax.scan(one, states, (proposed, uniform))
    none = jnp.zeros(count)
    return last, (rows.z, rows.scores, rows.log_densities, accepted, none, none, none, jnp.ones(count, jnp.int32))


def _factors(count: int) -> Float[Array, " t"]:
    """Some trajectories are cautious, as in `chains.step_factors`."""
    return jnp.where(jnp.arange(count) % (2 * CHUNK) == 0, CAUTION, 1.0)


def _astray(target: PulledBack, fresh: Float[Array, "n d"]) -> Array:
    """Whether ascents from far away end elsewhere. A step is as long as the score says, and at least a tenth of the way
    home, so that slowly falling tails do not pass for modes.
    """
    d = fresh.shape[1]
    z = fresh[:_SCOUTS] * jnp.asarray(np.resize(_REACH, _SCOUTS))[:, None]

    def ascend(_: Array, z: Array) -> Array:
        scores = jnp.nan_to_num(jax.vmap(target.score)(z))
        size = jnp.linalg.norm(scores, axis=1, keepdims=True)
        away = jnp.linalg.norm(z, axis=1, keepdims=True)
        length = jnp.clip(0.7 * size, jnp.where(away > 3.0, 0.1 * away, 0.0), 0.5 * away + 1.0)
        return z + length * scores / jnp.maximum(size, 1e-300)

    z = jax.lax.fori_loop(0, _ASCENTS, ascend, z)
    return ~jnp.all(jnp.linalg.norm(z, axis=1) <= np.sqrt(d) + _HOME)
