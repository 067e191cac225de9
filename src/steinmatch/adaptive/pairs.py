"""Two parents at once: the frame `Pair` from affine phases of the other coordinates, given both parents at places.

The places are a lattice in the plane of the parents, in units of their spread, filled outwards from the middle until
their marginal density, which the bounds of the affine phases are, has all but ended. Neighbours begin where the last
ended, so each takes a step or two. The marginal is a normal one times what interpolation between the places adds; its
quantiles, of the first parent and of the second given the first, are those of the frame.
"""

from typing import NamedTuple

import numpy as np
import scipy.special
from jaxtyping import Float

from steinmatch.adaptive.conditional import NORMAL_GRID, Given, carried, conditional
from steinmatch.adaptive.frames import Cloud, batched, log_weights, normal_points
from steinmatch.coordinates import AbstractFrame, AffineMap, Composed, Order, Pair, Polyharmonic
from steinmatch.coordinates.plainly import placed
from steinmatch.solvers.affine import AffineState
from steinmatch.targets import Evaluations

_STEP = 1.25  # of the lattice, in sds
_EDGE = 5.0  # nats below the top where the lattice is filled no further: its last places are then at four sds
_MOST_PLACES = 64
_FEWEST = 9  # places, to know a marginal by
_STRETCH = 4.0  # by how much the spread of points may be off
_BEYOND = 2.0  # sds around the places over which the marginal is integrated
_CELLS = 181  # of that, to each side
_ACROSS = np.linspace(-4.0, 4.0, 11)  # normal scores of the first parent at which the second has its quantiles
_TILT = 0.25  # power of the density by which places count in the normal part of the marginal
_TOLERANCE = 0.002  # nats that the mixtures of shears may lose


class _Place(NamedTuple):
    u: Float[np.ndarray, "2"]
    state: AffineState


class _Plane:
    """The parents' plane: x_P = shift + root u, and the affine phases of the others at places of it."""

    def __init__(self, evaluate: Evaluations, parents: tuple[int, int], dim: int, seed: int):
        self.evaluate, self.parents = evaluate, parents
        self.rest = np.delete(np.arange(dim), parents)
        self.z = normal_points(batched(dim - 2), dim - 2, seed)
        self.shift, self.root = np.zeros(2), np.eye(2)

    def solve(self, u: Float[np.ndarray, "2"], begun: AffineMap) -> _Place | None:
        given = Given(self.evaluate, self.parents, self.shift + self.root @ u)
        state = conditional(given, begun, self.z)
        return None if state is None or not np.isfinite(state.bound.value) else _Place(u, state)

    def centre(self, x: np.ndarray, weights: np.ndarray, affine: AffineMap) -> _Place | None:
        """The plane's units by weighted points, and the first place."""
        own = x[:, self.parents]
        self.shift = weights @ own
        spread = (weights[:, None] * (own - self.shift)).T @ (own - self.shift)
        order = np.concatenate([self.parents, self.rest]).astype(int)
        root = np.asarray(affine.root)
        lower = np.linalg.cholesky((root @ root.T)[np.ix_(order, order)])
        self.root = np.linalg.cholesky(spread + 1e-6 * lower[:2, :2] @ lower[:2, :2].T)
        shift = np.asarray(affine.shift)
        off = np.linalg.solve(lower[:2, :2], self.shift - shift[list(self.parents)])
        begun = AffineMap(shift[self.rest] + lower[2:, :2] @ off, lower[2:, 2:])
        return self.solve(np.zeros(2), begun)

    def rescale(self, middle: _Place) -> list[_Place] | None:
        """Units in which the marginal density falls from the middle as a standard normal's does, along both axes; with
        the places that told, in them.
        """
        found, units = [middle], np.ones(2)
        for k in range(2):
            sides = [self.solve(sign * np.eye(2)[k], middle.state.frame) for sign in (1.0, -1.0)]
            known = [side for side in sides if side is not None]
            if len(known) < 2:
                return None
            curvature = 2.0 * middle.state.bound.value - sum(side.state.bound.value for side in known)
            units[k] = np.clip(1.0 / np.sqrt(max(curvature, 1e-300)), 1.0 / _STRETCH, _STRETCH)
            found += known
        self.root = self.root * units
        return [_Place(place.u / units, place.state) for place in found]


def fit_pair(
    evaluate: Evaluations, affine: AffineMap, current: AbstractFrame, points: Cloud, parents: tuple[int, int], seed: int
) -> AbstractFrame | None:
    """The frame with two coordinates as parents of all others; None where it cannot be solved for. `points` of the
    current frame say where the parents are, weighted by their importance.
    """
    d = len(affine.shift)
    logs = log_weights(points)
    if d < 3 or not np.isfinite(logs).any():
        return None
    weights = np.exp(np.where(np.isfinite(logs), logs, -np.inf) - logs[np.isfinite(logs)].max())
    weights = np.minimum(weights, np.sqrt(len(weights)) * weights.mean())
    plane = _Plane(evaluate, parents, d, seed)
    try:
        middle = plane.centre(placed(current, points.z).x, weights / weights.sum(), affine)
    except np.linalg.LinAlgError:
        return None
    begun = None if middle is None else plane.rescale(middle)
    places = None if begun is None else _filled(plane, begun)
    if places is None or len(places) < _FEWEST:
        return None
    knots = np.stack([place.u for place in places])
    logs = np.array([place.state.bound.value for place in places])
    means = np.stack([np.asarray(place.state.frame.shift) for place in places])
    roots = np.stack([np.asarray(place.state.frame.root) for place in places])
    quantiles = _quantiles(knots, logs)
    if quantiles is None:
        return None
    order = np.concatenate([parents, plane.rest]).astype(int)
    pair = Pair.over((plane.shift, plane.root), NORMAL_GRID, *quantiles, knots, means, roots, _TOLERANCE)
    return Composed((Order(order), pair))


def _filled(plane: _Plane, begun: list[_Place]) -> list[_Place] | None:
    """The places of a lattice around the middle, the densest first; None where the density does not end."""
    found: dict[tuple[int, int], _Place] = {(0, 0): begun[0]}
    seen, waiting = {(0, 0)}, [(0, 0)]
    while waiting:
        at = max(waiting, key=lambda key: found[key].state.bound.value)
        waiting.remove(at)
        top = max(place.state.bound.value for place in found.values())
        if found[at].state.bound.value < top - _EDGE:
            break
        for step in ((1, 0), (-1, 0), (0, 1), (0, -1)):
            key = (at[0] + step[0], at[1] + step[1])
            if key in seen:
                continue
            if len(seen) >= _MOST_PLACES:
                return None
            seen.add(key)
            behind = found.get((at[0] - step[0], at[1] - step[1]))
            path = [(float(k), place.state) for k, place in ((-1, behind), (0, found[at])) if place is not None]
            place = plane.solve(_STEP * np.array(key, float), carried(path, 1.0))
            if place is not None:
                found[key] = place
                waiting.append(key)
    lattice = list(found.values())
    apart = [p for p in begun[1:] if min(np.linalg.norm(p.u - q.u) for q in lattice) > 0.25 * _STEP]
    return [*lattice, *apart]


def _quantiles(
    knots: Float[np.ndarray, "k 2"], logs: Float[np.ndarray, " k"]
) -> tuple[np.ndarray, np.ndarray, np.ndarray] | None:
    """From the log marginal density at the knots: quantiles of u_0 at the normal grid; values of u_0 across, and the
    quantiles of u_1 given these.
    """
    quadratic = _quadratic(knots, logs)
    if quadratic is None:
        return None
    left = logs - _products(knots) @ quadratic
    bend = Polyharmonic.over(knots)
    ends = knots.min(axis=0) - _BEYOND, knots.max(axis=0) + _BEYOND
    first, second = (np.linspace(ends[0][k], ends[1][k], _CELLS) for k in range(2))
    u = np.stack(np.meshgrid(first, second, indexing="ij"), axis=-1).reshape(-1, 2)
    cubes = np.linalg.norm(u[:, None] - knots, axis=2) ** 3
    linear = np.concatenate([np.ones((len(u), 1)), u], axis=1)
    found = _products(u) @ quadratic + np.concatenate([cubes, linear], axis=1) @ (np.asarray(bend.inverse) @ left)
    density = np.exp(found - found.max()).reshape(_CELLS, _CELLS)
    places = _at_normal_scores(first, density.sum(axis=1), NORMAL_GRID)
    across = _at_normal_scores(first, density.sum(axis=1), _ACROSS)
    if places is None or across is None:
        return None
    rows = []
    for u0 in across:
        i = int(np.clip(np.searchsorted(first, u0) - 1, 0, _CELLS - 2))
        share = (u0 - first[i]) / (first[i + 1] - first[i])
        rows.append(_at_normal_scores(second, (1.0 - share) * density[i] + share * density[i + 1], NORMAL_GRID))
    return None if any(row is None for row in rows) else (places, across, np.stack(rows))


def _products(u: Float[np.ndarray, "n 2"]) -> Float[np.ndarray, "n 6"]:
    a, b = u.T
    return np.stack([np.ones_like(a), a, b, a * a, a * b, b * b], axis=1)


def _quadratic(knots: Float[np.ndarray, "k 2"], logs: Float[np.ndarray, " k"]) -> Float[np.ndarray, "6"] | None:
    """A normal log density near the marginal's; None where it falls in no direction of the plane."""
    root = np.sqrt(np.exp(_TILT * (logs - logs.max())))
    found = np.linalg.lstsq(root[:, None] * _products(knots), root * logs, rcond=None)[0]
    hessian = np.array([[2.0 * found[3], found[4]], [found[4], 2.0 * found[5]]])
    return found if np.linalg.eigvalsh(hessian).max() < 0.0 else None


def _at_normal_scores(
    grid: Float[np.ndarray, " c"], density: Float[np.ndarray, " c"], scores: Float[np.ndarray, " q"]
) -> Float[np.ndarray, " q"] | None:
    """The quantiles at normal scores of a density given on a grid; None where they do not increase."""
    mass = np.concatenate([[0.0], np.cumsum(0.5 * (density[1:] + density[:-1]))])
    increasing = np.concatenate([[True], np.diff(mass) > 1e-14 * mass[-1]])
    # Half a cell's curve is lost by straight lines between the cells; a spline of the scores themselves is smooth.
    levels = np.clip(mass[increasing] / mass[-1], 1e-300, 1.0)
    inside = (levels > 1e-9) & (levels < 1.0 - 1e-9)
    at, places = scipy.special.ndtri(levels[inside]), grid[increasing][inside]
    if len(at) < 4:
        return None
    slopes = (places[1] - places[0]) / (at[1] - at[0]), (places[-1] - places[-2]) / (at[-1] - at[-2])
    found = np.interp(scores, at, places)
    found = found + slopes[0] * np.minimum(scores - at[0], 0.0) + slopes[1] * np.maximum(scores - at[-1], 0.0)
    return found if np.all(np.diff(found) > 0.0) else None
