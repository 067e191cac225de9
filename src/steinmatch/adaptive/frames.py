"""Finding a frame: the affine phase from the start, then a parent that sets place and scale of the rest, if any does.

The affine phase raises the evidence bound over a few fixed points (solvers.affine). A parent v shows in regressions of
the scores: in a good frame s(z) = -z, and in one that lacks the parent

    s_r = b - (1 + 2 delta) z_r + p z_v + 2 a z_v z_r + c (z_v^2 - 1) + ...

with a the log scale and c the curved shift that z_v would give to z_r. For a normal target these coefficients are known
without noise from a few points, where the moments E[z_v (z_r s_r + 1)] of the same points are far off.

The frame with a parent is made of affine phases of the other coordinates, given the parent at some values, from the
middle outwards; their bounds are the parent's log marginal density. In a hierarchical model the others given the scale
are nearly normal, so each takes a step or two. It is kept only if the bound rises on fresh points.
"""

import warnings
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
import scipy.interpolate
import scipy.special
import scipy.stats
from jaxtyping import Float

from steinmatch.coordinates import AbstractFrame, AffineMap, Composed, Order, Parent, Spline
from steinmatch.plainly import placed
from steinmatch.solvers.affine import START_SCALES, AffineState, Evaluate, bound_error, first_bound, raise_bound, usable
from steinmatch.targets import Evaluations

BATCH = 16  # numbers of points are multiples of this, so that no evaluation is padding
FRESH = 128  # points on which a frame is judged
_DIAGONAL_POINTS = 32  # of the first, diagonal stage, where a full L needs more
_SMALL_GAIN = 0.02  # nats a sweep: the walk does the rest
_CLIMB_STEPS = 80
_GOOD = 0.05  # variance of log weights, about twice the divergence from the frame's normal in nats
_NOISE = 3.0
_MOST_PLACES = 9  # of a parent, to each side
_NEGLIGIBLE = 8.0  # nats below the top of its marginal density: 4 sds of a normal
_SMALL_DROP, _LARGE_DROP = 1.0, 3.5  # of the log marginal between two places: then the next is further, or nearer
_GIVEN_SWEEPS, _GIVEN_ERROR, _GIVEN_GAIN = 6, 0.05, 0.05
_NORMAL_GRID = np.linspace(-5.0, 5.0, 41)


class Cloud(NamedTuple):
    """Points of a frame with their pulled-back log densities and scores; log densities are nan for a score alone."""

    z: Float[np.ndarray, "n d"]
    log_densities: Float[np.ndarray, " n"]
    scores: Float[np.ndarray, "n d"]


def normal_points(n: int, d: int, seed: int, antithetic: bool = True) -> Float[np.ndarray, "n d"]:
    """Quasi-random normal points; antithetic ones have mean 0 and, if there are enough, covariance I exactly."""
    half = -(-n // 2) if antithetic else n
    with warnings.catch_warnings():  # Sobol' points prefer powers of two
        warnings.simplefilter("ignore")
        uniform = scipy.stats.qmc.Sobol(d, scramble=True, rng=np.random.default_rng(seed)).random(half)
    z = scipy.special.ndtri(np.clip(uniform, 1e-10, 1.0 - 1e-10))
    if not antithetic:
        return z
    z = np.concatenate([z, -z])
    if len(z) <= 2 * d:
        return z / np.sqrt(np.mean(z**2, axis=0))
    return np.linalg.solve(np.linalg.cholesky(z.T @ z / len(z)), z.T).T


def batched(n: int) -> int:
    """The next multiple of the batch."""
    return -(-n // BATCH) * BATCH


def begin_points(d: int) -> int:
    """How many points an affine phase begins with."""
    return min(_DIAGONAL_POINTS, batched(2 * d + 2))


def begin_climb(
    evaluate: Evaluate, centre: Float[np.ndarray, " d"], sd: Float[np.ndarray, " d"], seed: int, scaled: bool = False
) -> AffineState:
    """The first state of an affine phase around `centre`; of several scales, or of `sd` alone where it is known."""
    d = len(centre)
    few = begin_points(d) < 2 * d + 2
    z = normal_points(begin_points(d), d, seed)
    return first_bound(evaluate, z, z, centre, sd, (1.0,) if scaled else START_SCALES, few)


def climb(evaluate: Evaluate, state: AffineState, seed: int) -> tuple[AffineState, bool]:
    """One sweep, and whether the bound rises no more by amounts that matter."""
    was_diagonal = state.diagonal
    following, _, done = raise_bound(evaluate, state, 1e-2)
    if was_diagonal and not following.diagonal:  # the full L needs more points
        d = state.z.shape[1]
        z = normal_points(batched(2 * d + 2), d, seed)
        frame = following.frame
        sd = np.sqrt(np.sum(np.asarray(frame.root) ** 2, axis=1))
        return first_bound(evaluate, z, z, np.asarray(frame.shift), sd, (1.0,), diagonal=False), False
    gains = following.gains
    slow = len(gains) >= 2 and max(gains[-2:]) < _SMALL_GAIN
    return following, not following.diagonal and (done or slow or len(gains) >= _CLIMB_STEPS)


def cloud(evaluate: Evaluations, frame: AbstractFrame, z: Float[np.ndarray, "n d"]) -> Cloud:
    """The target at points of a frame."""
    with np.errstate(all="ignore"):
        there = placed(frame, z)
        values, scores = evaluate(there.x)
        return Cloud(z, values + there.log_det, there.pull(scores))


def promised_gains(frame: AffineMap, points: Cloud) -> Float[np.ndarray, " d"]:
    """By how much the bound would rise, to second order, with each coordinate as a parent: |a|^2 + |c|^2 / 2.

    A log scale a z_v of another coordinate has the curvature E[2 z_v^2 z_r^2] = 2, so it gains a^2; a curved shift
    c (z_v^2 - 1) has the curvature E[(z_v^2 - 1)^2] / 2 = 1, so it gains c^2 / 2.
    """
    root = np.asarray(frame.root)
    covariance, d = root @ root.T, len(root)
    steady = _steadiness(points)
    gains = np.zeros(d)
    for v in range(d):
        order = np.concatenate([[v], np.delete(np.arange(d), v)])
        lower = np.linalg.cholesky(covariance[np.ix_(order, order)])
        rotation = np.linalg.solve(lower, root[order])
        z, scores = points.z @ rotation.T, points.scores @ rotation.T
        log_scales, shifts = _lacking(z, scores, steady)
        gains[v] = np.sum(log_scales**2) + 0.5 * np.sum(shifts**2)
    return gains


def likely_parents(frame: AffineMap, points: Cloud) -> list[int]:
    """At most two coordinates to try as parents, the best first; none in a frame that is good without.

    A frame is good if log pi(z) + |z|^2 / 2, a constant for a normal, varies little over its points. A parent must
    promise more than most coordinates do, which is noise.
    """
    d = points.z.shape[1]
    logs = points.log_densities + 0.5 * np.sum(points.z**2, axis=1)
    logs = np.sort(logs[np.isfinite(logs)])
    if d < 2 or (len(logs) and float(np.var(logs[len(logs) // 16 :])) < _GOOD):
        return []
    gains = promised_gains(frame, points)
    least = max(_NOISE * float(np.median(gains)) * (d > 4), 0.3 * float(gains.max()))
    return [int(v) for v in np.argsort(-gains) if gains[v] > least][:2]


class _Given:
    """The target of all coordinates but one, given that one; scores and densities as `Evaluations` gives them."""

    def __init__(self, evaluate: Evaluations, v: int, value: float):
        self.evaluate, self.v, self.value = evaluate, v, value

    def __call__(self, rest: Float[np.ndarray, "n r"]) -> tuple[Float[np.ndarray, " n"], Float[np.ndarray, "n r"]]:
        values, scores = self.evaluate(np.insert(rest, self.v, self.value, axis=1))
        return values, np.delete(scores, self.v, axis=1)


def fit_parent(evaluate: Evaluations, frame: AffineMap, v: int, seed: int) -> AbstractFrame | None:
    """The frame with coordinate v as the parent of all others; None where it cannot be solved for."""
    d = frame.shift.shape[0]
    order = np.concatenate([[v], np.delete(np.arange(d), v)]).astype(int)
    root = np.asarray(frame.root)
    lower = np.linalg.cholesky((root @ root.T)[np.ix_(order, order)])
    centre = np.asarray(frame.shift)[order]
    z = normal_points(batched(2 * d), d - 1, seed)
    first = _conditional(
        _Given(evaluate, v, centre[0]), AffineMap(jnp.asarray(centre[1:]), jnp.asarray(lower[1:, 1:])), z
    )
    if first is None:
        return None
    known = [(float(centre[0]), first)]
    for side in (1.0, -1.0):
        known = _outwards(evaluate, v, known, side * float(lower[0, 0]), z)
    if len(known) < 4:
        return None
    knots = np.array([place for place, _ in known])
    means = np.stack([np.asarray(state.frame.shift) for _, state in known])
    roots = np.stack([np.asarray(state.frame.root) for _, state in known])
    scales = np.diagonal(roots, axis1=1, axis2=2)
    quantiles = _quantiles(knots, np.array([state.bound.value for _, state in known]), centre[0], lower[0, 0])
    parent = Parent(
        Spline.over(_NORMAL_GRID),
        jnp.asarray(quantiles),
        Spline.over(knots),
        jnp.asarray(means),
        jnp.asarray(np.log(np.abs(scales))),
        jnp.asarray(np.tril(roots / scales[:, None, :], -1)),
    )
    return Composed((Order(jnp.asarray(order)), parent))


def _outwards(
    evaluate: Evaluations, v: int, known: list[tuple[float, AffineState]], step: float, z: Float[np.ndarray, "k r"]
) -> list[tuple[float, AffineState]]:
    """Further values of the parent to one side, until its marginal density is negligible; sorted by value."""
    side = 1 if step > 0.0 else -1
    path = known[::side]
    top = max(state.bound.value for _, state in path)
    for _ in range(_MOST_PLACES):
        place, state = path[-1]
        there = place + step
        following = _conditional(_Given(evaluate, v, there), _carried(path, there), z)
        if following is None:
            break
        path.append((there, following))
        top = max(top, following.bound.value)
        drop = state.bound.value - following.bound.value
        if np.isnan(drop):  # a score alone: as far as the affine frame reaches
            if len(path) > 4:
                break
        elif top - following.bound.value > _NEGLIGIBLE:
            break
        elif drop < _SMALL_DROP:
            step *= 2.0
        elif drop > _LARGE_DROP:
            step *= 0.6
    return path[::side]


def _carried(path: list[tuple[float, AffineState]], there: float) -> AffineMap:
    """Where the next conditional affine phase begins: what the last two were, continued in a straight line."""
    place, frame = path[-1][0], path[-1][1].frame
    if len(path) < 2:
        return frame
    share = (there - place) / (place - path[-2][0])
    last = path[-2][1].frame
    ratio = np.abs(np.diagonal(np.asarray(frame.root)) / np.diagonal(np.asarray(last.root)))
    root = np.asarray(frame.root) * np.clip(ratio**share, 0.2, 5.0)[None, :]
    return AffineMap(frame.shift + share * (frame.shift - last.shift), jnp.asarray(root))


def _conditional(evaluate: _Given, begun: AffineMap, z: Float[np.ndarray, "k r"]) -> AffineState | None:
    """An affine phase of the other coordinates, to where it matters no more."""
    state = first_bound(evaluate, z, z, np.asarray(begun.shift), np.ones(z.shape[1]), (1.0,), False, begun)
    for _ in range(_GIVEN_SWEEPS):
        if not usable(state.bound):
            return None
        if bound_error(state) < _GIVEN_ERROR:
            break
        state, _, done = raise_bound(evaluate, state, _GIVEN_ERROR)
        if done or state.gains[-1] < _GIVEN_GAIN:
            break
    return state if usable(state.bound) else None


def _quantiles(
    knots: Float[np.ndarray, " k"], log_marginal: Float[np.ndarray, " k"], centre: float, sd: float
) -> Float[np.ndarray, " q"]:
    """The quantile function of the parent at normal scores, from its log marginal density at the knots; a normal one
    where that density is not known, or does not fall at both ends.
    """
    normal = centre + sd * _NORMAL_GRID
    slopes = np.diff(log_marginal) / np.diff(knots)
    if not np.isfinite(log_marginal).all() or not (slopes[0] > 0.1 / sd and slopes[-1] < -0.1 / sd):
        return normal
    reach = 30.0 / min(slopes[0], -slopes[-1])
    grid = np.linspace(knots[0] - min(reach, 20.0 * sd), knots[-1] + min(reach, 20.0 * sd), 8001)
    logs = scipy.interpolate.CubicSpline(knots, log_marginal, bc_type="natural")(np.clip(grid, knots[0], knots[-1]))
    logs = logs + slopes[0] * np.minimum(grid - knots[0], 0.0) + slopes[-1] * np.maximum(grid - knots[-1], 0.0)
    density = np.exp(logs - logs.max())
    mass = np.concatenate([[0.0], np.cumsum(0.5 * (density[1:] + density[:-1]))])
    increasing = np.concatenate([[True], np.diff(mass) > 1e-14 * mass[-1]])
    places = np.interp(scipy.special.ndtr(_NORMAL_GRID), mass[increasing] / mass[-1], grid[increasing])
    return places if np.all(np.diff(places) > 0.0) else normal


def _steadiness(points: Cloud) -> Float[np.ndarray, " n"]:
    """Weights of points in regressions: less for those where the frame is far off, after Huber."""
    off = np.linalg.norm(points.scores + points.z, axis=1)
    off = np.where(np.isfinite(off), off, np.inf)
    with np.errstate(all="ignore"):
        weights = np.minimum(1.0, 3.0 * np.median(off) / np.maximum(off, 1e-300))
    return np.where(np.isfinite(off), weights, 0.0)


def _lacking(z: np.ndarray, scores: np.ndarray, steady: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The coefficients a and c of all other coordinates, the first being the parent."""
    n, d = z.shape
    parent, finite = z[:, :1], np.where(np.isfinite(scores), scores, 0.0)
    log_scales, shifts = np.zeros(d - 1), np.zeros(d - 1)
    for r in range(1, d):
        own = z[:, [r]]
        design = np.concatenate([np.ones((n, 1)), own, parent, parent * own, parent**2 - 1.0], axis=1)
        product = (design * steady[:, None]).T
        found = np.linalg.solve(product @ design + 1e-9 * n * np.eye(5), product @ finite[:, r])
        log_scales[r - 1], shifts[r - 1] = 0.5 * found[3], found[4]
    return log_scales, shifts
