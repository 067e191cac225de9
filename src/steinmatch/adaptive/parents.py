"""Parents: coordinates that set place and scale of the rest, as the scale of a hierarchical model does, or a funnel's.

A parent v shows in regressions of the scores: in a good frame s(z) = -z, and in one that lacks the parent

    s_r = b - (1 + 2 delta) z_r + p z_v + 2 a z_v z_r + c (z_v^2 - 1) + ...

with a the log scale and c the curved shift that z_v would give to z_r. For a normal target these coefficients are known
without noise from a few points, where the moments E[z_v (z_r s_r + 1)] of the same points are far off.

The frame with a parent is made of affine phases of the other coordinates, given the parent at some values, from the
middle outwards; their bounds are the parent's log marginal density. In a hierarchical model the others given the scale
are nearly normal, so each takes a step or two. It is kept only if the bound rises on fresh points. A further parent is
one of the target as it is seen through that frame, and its frame is composed with it.
"""

import numpy as np
import scipy.interpolate
import scipy.linalg
import scipy.special
from jaxtyping import Float

from steinmatch.adaptive.conditional import GIVEN_ERROR, NORMAL_GRID, Given, carried, conditional
from steinmatch.adaptive.frames import FRESH, Cloud, Seen, batched, begin_points, cloud, log_weights, normal_points
from steinmatch.adaptive.pairs import fit_pair
from steinmatch.coordinates import AbstractFrame, AffineMap, Composed, Order, Parent
from steinmatch.solvers.affine import AffineState, Evaluate
from steinmatch.targets import Evaluations

_BOTH = 15  # dimensions up to which the second likely parent is tried as well
_FURTHER = 2  # parents besides the first
_PAIR_PAYS = 1.0  # variance of log weights from which on a pair, some 30 affine phases, pays in many dimensions
_WORTH, _SHARE = 0.05, 0.2  # nats that a further parent must promise, and of all that the frame lacks
GOOD = 0.05  # variance of log weights, about twice the divergence from the frame's normal in nats
_NOISE = 3.0
_MOST_PLACES = 12  # of a parent, to each side
_NEGLIGIBLE = 12.0  # nats below the top of its marginal density: 5 sds of a normal
_MOST_BETWEEN, _MISS = 10, 0.05  # further places between, and by how many nats the marginal may be off
_TRIES = 4  # of them: then no place has been missed by half of that, or it is no use
_NEAREST = 0.25  # sds between places: what affine phases leave open, over less than that, is a frame that wiggles
_SMALL_DROP, _LARGE_DROP = 1.0, 3.5  # of the log marginal between two places: then the next is further, or nearer
_LOOKED_AT = 32  # coordinates as parents: each takes d^3 operations


def with_parents(
    evaluate: Evaluations, affine: AffineMap, seed: int, draws: Cloud | None = None
) -> tuple[AbstractFrame, Cloud]:
    """The affine frame, or a richer one with parents whose bound is higher on fresh points; and these points. Draws of
    the target, where there are some, show parents better than points of a frame that is not yet good.
    """
    d = affine.shift.shape[0]
    z = normal_points(FRESH, d, seed + 1)
    frame: AbstractFrame = affine
    first = points = cloud(evaluate, affine, z)
    likely = likely_parents(affine, first) if draws is None else likely_parents(affine, draws, noise=0.0)
    for v in ranked(Seen(evaluate, affine), affine, likely, d, seed + 3):
        richer = fit_parent(evaluate, affine, v, seed + 2)
        there = None if richer is None else cloud(evaluate, richer, z)
        if there is not None and rises(first, there) and (points is first or rises(points, there)):
            assert richer is not None
            frame, points = richer, there
            if d > _BOTH:
                break
    if points is first or not np.isfinite(points.log_densities).all():
        return frame, points
    whole = AffineMap(np.zeros(d), np.eye(d))
    for further in range(_FURTHER):
        likely = likely_parents(whole, points, least=max(_WORTH, 0.5 * _SHARE * _varying(points)))
        if not likely:
            break
        if not further and d >= 3 and (d <= _BOTH or _varying(points) > _PAIR_PAYS):
            order = _order(frame)
            pair = fit_pair(evaluate, affine, frame, points, (order[0], order[likely[0]]), seed + 4)
            there = None if pair is None else cloud(evaluate, pair, z)
            if pair is not None and there is not None and rises(points, there):
                return pair, there
        richer = fit_parent(Seen(evaluate, frame), whole, likely[0], seed + 2)
        composed = None if richer is None else Composed((frame, richer))
        there = None if composed is None else cloud(evaluate, composed, z)
        if composed is None or there is None or not rises(points, there):
            break
        frame, points = composed, there
    return frame, points


def _order(frame: AbstractFrame) -> list[int]:
    """The coordinates of a frame with a parent, which comes first."""
    assert isinstance(frame, Composed) and isinstance(frame.maps[0], Order)
    return [int(i) for i in np.asarray(frame.maps[0].order)]


def rises(before: Cloud, after: Cloud) -> bool:
    """Whether the bound rises from one frame to another, on the same points: by more than chance, or with log weights
    that vary half as much, since the bound of a frame with a bad tail is itself known badly.
    """
    rise = after.log_densities - before.log_densities
    if not np.isfinite(after.scores).all() or not np.mean(rise) > 0.0:
        return False
    varying = [float(np.var(log_weights(points))) for points in (before, after)]
    return bool(np.mean(rise) > 2.0 * np.std(rise) / np.sqrt(len(rise)) or varying[1] < 0.5 * varying[0])


def promised_gains(frame: AffineMap | None, points: Cloud) -> Float[np.ndarray, " d"]:
    """By how much the bound would rise, to second order, with each coordinate as a parent: |a|^2 + |c|^2 / 2; zero for
    those not looked at. Without a frame the coordinates are those of the points themselves.

    A log scale a z_v of another coordinate has the curvature E[2 z_v^2 z_r^2] = 2, so it gains a^2; a curved shift
    c (z_v^2 - 1) has the curvature E[(z_v^2 - 1)^2] / 2 = 1, so it gains c^2 / 2.
    """
    d, root = points.z.shape[1], None if frame is None else np.asarray(frame.root)
    covariance = None if root is None else root @ root.T
    steady = _steadiness(points)
    gains = np.zeros(d)
    for v in _most_likely(root, points, steady):
        order = np.concatenate([[v], np.delete(np.arange(d), v)])
        if root is None or covariance is None:
            z, scores = points.z[:, order], points.scores[:, order]
        else:
            lower = np.linalg.cholesky(covariance[np.ix_(order, order)])
            rotation = scipy.linalg.solve_triangular(lower, root[order], lower=True, check_finite=False)
            z, scores = points.z @ rotation.T, points.scores @ rotation.T
        log_scales, shifts = _lacking(z, scores, steady)
        gains[v] = np.sum(log_scales**2) + 0.5 * np.sum(shifts**2)
    return gains


def _most_likely(root: np.ndarray | None, points: Cloud, steady: np.ndarray) -> np.ndarray:
    """The coordinates v to look at: all, or of very many those with the largest E[(u_v . z)(z_r s_r + 1)] over the
    coordinates r of the frame, which is zero for a normal, and as many others; u_v is the direction of v.
    """
    d = points.z.shape[1]
    if d <= 4 * _LOOKED_AT:
        return np.arange(d)
    along = points.z if root is None else points.z @ (root / np.linalg.norm(root, axis=1, keepdims=True)).T
    products = np.where(np.isfinite(points.scores), points.z * points.scores + 1.0, 0.0)
    found = np.sum(((along * steady[:, None]).T @ products) ** 2, axis=1)
    order = np.argsort(-found)
    others = np.linspace(_LOOKED_AT, d - 1, _LOOKED_AT).astype(int)
    return order[np.concatenate([np.arange(_LOOKED_AT), others])]


def likely_parents(frame: AffineMap | None, points: Cloud, least: float = 0.0, noise: float = _NOISE) -> list[int]:
    """At most two coordinates to try as parents, the best first; none in a frame that is good without.

    A frame is good if log pi(z) + |z|^2 / 2, a constant for a normal, varies little over its points. A parent must
    promise more than most coordinates do, `noise` times, and more than `least`.
    """
    d = points.z.shape[1]
    if d < 2 or not frame_varies(points):
        return []
    gains = promised_gains(frame, points)
    typical = float(np.median(gains[gains > 0.0])) if gains.any() else 0.0
    least = max(least, noise * typical * (d > 4), 0.3 * float(gains.max()))
    return [int(v) for v in np.argsort(-gains) if gains[v] > least][:2]


def ranked(evaluate: Evaluate, frame: AffineMap | None, likely: list[int], d: int, seed: int) -> list[int]:
    """Likely parents of which one alone will be tried, by what they promise on other points."""
    if len(likely) < 2 or d <= _BOTH:
        return likely
    z = normal_points(2 * FRESH, d, seed)
    gains = promised_gains(frame, Cloud(z, *evaluate(z)))
    return sorted(likely, key=lambda v: -gains[v])


def frame_varies(points: Cloud) -> bool:
    """Whether a frame is so far from good that parents are sought."""
    return _varying(points) >= GOOD


def _varying(points: Cloud) -> float:
    """The variance of the log weights, but for the few lowest, which a bad tail has; inf for a score alone."""
    logs = log_weights(points)
    logs = np.sort(logs[np.isfinite(logs)])
    return float(np.var(logs[len(logs) // 16 :])) if len(logs) else np.inf


def fit_parent(
    evaluate: Evaluate, frame: AffineMap | None, v: int, seed: int, d: int | None = None
) -> AbstractFrame | None:
    """The frame with coordinate v as the parent of all others; None where it cannot be solved for. Without a frame that
    of d standard normal coordinates, each of which has a place and a scale given the parent, and no shears.
    """
    d = frame.shift.shape[0] if frame is not None else d
    assert d is not None
    order = np.concatenate([[v], np.delete(np.arange(d), v)]).astype(int)
    if frame is None:
        place, scale, begun = 0.0, 1.0, AffineMap(np.zeros(d - 1), np.eye(d - 1))
        z = normal_points(begin_points(d - 1), d - 1, seed)
    else:
        root = np.asarray(frame.root)
        lower = np.linalg.cholesky((root @ root.T)[np.ix_(order, order)])
        centre = np.asarray(frame.shift)[order]
        place, scale, begun = float(centre[0]), float(lower[0, 0]), AffineMap(centre[1:], lower[1:, 1:])
        z = normal_points(batched(d - 1), d - 1, seed)
    first = conditional(Given(evaluate, (v,), (place,)), begun, z, frame is None)
    if first is None:
        return None
    known = [(place, first)]
    for side in (1.0, -1.0):
        known = _outwards(evaluate, v, known, side * scale, z)
    if len(known) < 4:
        return None
    known = _refined(evaluate, v, known, z)
    knots = np.array([place for place, _ in known])
    means = np.stack([np.asarray(state.frame.shift) for _, state in known])
    quantiles = NORMAL_GRID, _quantiles(knots, np.array([state.bound.value for _, state in known]), place, scale)
    if frame is None:
        scales = np.stack([np.diagonal(np.asarray(state.frame.root)) for _, state in known])
        return Composed((Order(order), Parent.unsheared(quantiles, knots, means, scales)))
    roots = np.stack([np.asarray(state.frame.root) for _, state in known])
    return Composed((Order(order), Parent.over(quantiles, knots, means, roots, 0.1 * GIVEN_ERROR)))


def _outwards(
    evaluate: Evaluate, v: int, known: list[tuple[float, AffineState]], step: float, z: Float[np.ndarray, "k r"]
) -> list[tuple[float, AffineState]]:
    """Further values of the parent to one side, until its marginal density is negligible; sorted by value."""
    side = 1 if step > 0.0 else -1
    path = known[::side]
    top = max(state.bound.value for _, state in path)
    for _ in range(_MOST_PLACES):
        place, state = path[-1]
        there = place + step
        if not np.isfinite(there) or there == place:  # a density without end, whose scale has come to nothing
            break
        following = conditional(Given(evaluate, (v,), (there,)), carried(path, there), z, state.diagonal)
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


def _refined(
    evaluate: Evaluate, v: int, known: list[tuple[float, AffineState]], z: Float[np.ndarray, "k r"]
) -> list[tuple[float, AffineState]]:
    """Further values of the parent where its marginal density, between those that are known, is not: a cubic spline
    through all but one of them misses that one, by so many nats times the root of the density there. Not between
    places that are near to each other already; and not at all where further places do not help.
    """
    before, largest = known, []
    for _ in range(_MOST_BETWEEN):
        places, logs = np.array([place for place, _ in known]), np.array([state.bound.value for _, state in known])
        if not np.isfinite(logs).all():
            break
        misses = np.zeros(len(places))
        for k in range(1, len(places) - 1):
            spline = scipy.interpolate.CubicSpline(np.delete(places, k), np.delete(logs, k), bc_type="natural")
            misses[k] = abs(float(spline(places[k])) - logs[k]) * np.exp(0.5 * (logs[k] - logs.max()))
        gaps = np.diff(places)
        wider = np.concatenate([[0.0], np.maximum(gaps[:-1], gaps[1:]), [0.0]])  # of the two beside a place
        misses = np.where(wider > 2.0 * _NEAREST * _extent(places, logs), misses, 0.0)
        k = int(np.argmax(misses))
        if misses[k] < _MISS:
            break
        largest.append(misses[k])
        if len(largest) > _TRIES and min(largest[-_TRIES:]) > 0.5 * largest[-_TRIES - 1]:
            return before  # what is missed is no curve between places but what affine phases leave open
        left = k - 1 if gaps[k - 1] > gaps[k] else k
        there = 0.5 * (places[left] + places[left + 1])
        nearest = known[left if logs[left] > logs[left + 1] else left + 1][1]
        following = conditional(Given(evaluate, (v,), (there,)), nearest.frame, z, nearest.diagonal)
        if following is None:
            break
        known = [*known[: left + 1], (there, following), *known[left + 1 :]]
    return known


def _extent(places: Float[np.ndarray, " k"], logs: Float[np.ndarray, " k"]) -> float:
    """The sd of the parent: half the half-width at two nats below the top."""
    grid = np.linspace(places[0], places[-1], 401)
    inside = grid[np.interp(grid, places, logs) >= logs.max() - 2.0]
    return 0.25 * float(inside[-1] - inside[0])


def _quantiles(
    knots: Float[np.ndarray, " k"], log_marginal: Float[np.ndarray, " k"], centre: float, sd: float
) -> Float[np.ndarray, " q"]:
    """The quantile function of the parent at normal scores, from its log marginal density at the knots; a normal one
    where that density is not known, or does not fall at both ends.
    """
    normal, top = centre + sd * NORMAL_GRID, log_marginal.max()
    slopes, extent = np.diff(log_marginal) / np.diff(knots), knots[-1] - knots[0]
    falls = np.array([slopes[0], -slopes[-1]])
    # Ends that fall by a nat over what is known, and lie below the top; not over an sd of the affine frame, which may
    # be a thin slice of a wide marginal.
    if (
        not np.isfinite(log_marginal).all()
        or not (falls * extent > 1.0).all()
        or log_marginal[[0, -1]].max() > top - 1.0
    ):
        return normal
    reach = np.minimum(30.0 / falls, 10.0 * extent)
    grid = np.linspace(knots[0] - reach[0], knots[-1] + reach[1], 8001)
    logs = scipy.interpolate.CubicSpline(knots, log_marginal, bc_type="natural")(np.clip(grid, knots[0], knots[-1]))
    logs = logs + slopes[0] * np.minimum(grid - knots[0], 0.0) + slopes[-1] * np.maximum(grid - knots[-1], 0.0)
    density = np.exp(logs - logs.max())
    mass = np.concatenate([[0.0], np.cumsum(0.5 * (density[1:] + density[:-1]))])
    increasing = np.concatenate([[True], np.diff(mass) > 1e-14 * mass[-1]])
    places = np.interp(scipy.special.ndtr(NORMAL_GRID), mass[increasing] / mass[-1], grid[increasing])
    return places if np.all(np.diff(places) > 0.0) else normal


def _steadiness(points: Cloud) -> Float[np.ndarray, " n"]:
    """Weights of points in regressions: less for those where the frame is far off, after Huber; in many dimensions,
    where the norm concentrates and a few such points would choose the parent by themselves, all but none.
    """
    off = np.linalg.norm(points.scores + points.z, axis=1)
    off = np.where(np.isfinite(off), off, np.inf)
    with np.errstate(all="ignore"):
        ratio = np.median(off) / np.maximum(off, 1e-300)
        weights = np.minimum(1.0, (2.0 * ratio) ** 4 if points.z.shape[1] > _BOTH else 3.0 * ratio)
    return np.where(np.isfinite(off), weights, 0.0)


def _lacking(z: np.ndarray, scores: np.ndarray, steady: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The coefficients a and c of all other coordinates, the first being the parent."""
    n = len(z)
    parent, own = z[:, 0], z[:, 1:]
    finite = np.where(np.isfinite(scores[:, 1:]), scores[:, 1:], 0.0)
    # The design of each coordinate r: 1, z_r, p, p z_r, p^2 - 1, as products of powers of p with 1 or z_r.
    powers = np.stack([np.ones(n), parent, parent**2 - 1.0])
    plain, mixed = [0, 2, 4], [1, 3]
    weighted = steady * powers
    gram, right = np.zeros((own.shape[1], 5, 5)), np.zeros((own.shape[1], 5))
    gram[:, np.ix_(plain, plain)[0], np.ix_(plain, plain)[1]] = weighted @ powers.T
    for a, i in enumerate(mixed):
        between = (weighted * powers[a]) @ own  # with 1, p and p^2 - 1
        gram[:, i, plain] = gram[:, plain, i] = between.T
        for b, j in enumerate(mixed):
            gram[:, i, j] = (steady * powers[a] * powers[b]) @ own**2
        right[:, i] = (steady * powers[a]) @ (own * finite)
    right[:, plain] = (weighted @ finite).T
    found = np.linalg.solve(gram + 1e-9 * n * np.eye(5), right[:, :, None])[:, :, 0]
    return 0.5 * found[:, 3], found[:, 4]
