"""Frames in NumPy: places, log determinants and pulled-back scores of many points.

The same maps as in `coordinates`, which the tests compare them with. While a frame is sought its shape changes, and
compiling it anew each time took longer than all else; the walk alone is worth compiling.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import scipy.linalg
from jaxtyping import Float

from steinmatch.coordinates import AbstractFrame, AffineMap, Composed, LowRank, Order, Pair, Parent
from steinmatch.coordinates.plainly_pairs import pair_derivatives, placed_by_pair, unplaced_by_pair
from steinmatch.coordinates.plainly_splines import solved, spline_weights


class Placed(NamedTuple):
    """Points x = T(z), log |det T'|, and the function that pulls scores s(x) back."""

    x: Float[np.ndarray, "n d"]
    log_det: Float[np.ndarray, " n"]
    pull: Callable[[Float[np.ndarray, "n d"]], Float[np.ndarray, "n d"]]


def placed(frame: AbstractFrame, z: Float[np.ndarray, "n d"]) -> Placed:
    """x = T(z) for many points, with what belongs to it."""
    if isinstance(frame, AffineMap):
        shift, root = np.asarray(frame.shift), np.asarray(frame.root)
        log_det = float(np.sum(np.log(np.abs(np.diagonal(root)))))
        return Placed(z @ root.T + shift, np.full(len(z), log_det), lambda scores: scores @ root)
    if isinstance(frame, LowRank):
        return Placed(np.asarray(frame.colour(z)), np.full(len(z), float(frame.volume)), frame.pull)
    if isinstance(frame, Order):
        order = np.asarray(frame.order)
        x = np.empty_like(z)
        x[:, order] = z
        return Placed(x, np.zeros(len(z)), lambda scores: scores[:, order])
    if isinstance(frame, Parent):
        return _placed_by_parent(frame, z)
    if isinstance(frame, Pair):
        return Placed(*placed_by_pair(frame, z))
    assert isinstance(frame, Composed)
    total, pulls = np.zeros(len(z)), []
    for part in reversed(frame.maps):
        found = placed(part, z)
        total, z = total + found.log_det, found.x
        pulls.append((found, part))

    def pull(scores: Float[np.ndarray, "n d"]) -> Float[np.ndarray, "n d"]:
        for found, _ in reversed(pulls):
            scores = found.pull(scores)
        return scores

    return Placed(z, total, pull)


def derivatives(
    frame: AbstractFrame, z: Float[np.ndarray, "n d"]
) -> tuple[Float[np.ndarray, "n d d"], Float[np.ndarray, "n d"]]:
    """T'(z) and the Laplacian of T, coordinate by coordinate, at many points.

    Of T_1 o T_2, with J the derivative of T_2: T_1' J, and sum_i T_1''[J e_i, J e_i] + T_1' (Laplacian of T_2).
    """
    n, d = z.shape
    if isinstance(frame, AffineMap):
        return np.broadcast_to(np.asarray(frame.root), (n, d, d)), np.zeros((n, d))
    jacobian, laplacian = None, np.zeros((n, d))
    for part in (frame.parts if isinstance(frame, Composed) else (frame,))[::-1]:
        if isinstance(part, Order):
            places = np.argsort(np.asarray(part.order))
            jacobian = np.broadcast_to(np.eye(d), (n, d, d)) if jacobian is None else jacobian
            jacobian, laplacian = jacobian[:, places], laplacian[:, places]
        elif isinstance(part, Pair):
            assert jacobian is None, "a pair comes first"
            jacobian, laplacian = pair_derivatives(part, z)
        elif isinstance(part, AffineMap | LowRank):
            root = np.asarray(part.root if isinstance(part, AffineMap) else part.pull(np.eye(d)))
            jacobian = np.broadcast_to(root, (n, d, d)) if jacobian is None else root @ jacobian
            laplacian = laplacian @ root.T
        else:
            assert isinstance(part, Parent)
            jacobian, laplacian = _parent_derivatives(part, z, jacobian, laplacian)
        z = placed(part, z).x
    assert jacobian is not None
    return jacobian, laplacian


def _parent_derivatives(
    frame: Parent,
    z: Float[np.ndarray, "n d"],
    inner: Float[np.ndarray, "n d d"] | None,
    inner_laplacian: Float[np.ndarray, "n d"],
) -> tuple[np.ndarray, np.ndarray]:
    """Those of the parent's map after one whose derivative is `inner`, by default the identity's. Its second
    derivatives are those by the parent twice, and by the parent and another.
    """
    places, means, scales, mixing, shears = _arrays(frame)
    n, d = z.shape
    x, slope, bend = (weights @ places for weights in spline_weights(frame.quantiles, z[:, 0]))
    w, dw, ddw = spline_weights(frame.given, x)
    scale, rate = np.exp(w @ scales), dw @ scales
    scaled, change = scale * z[:, 1:], rate * scale * z[:, 1:]
    turn = (ddw @ scales) * scaled + rate * change
    mixes = [weights @ mixing for weights in (w, dw, ddw)]
    stacked = shears.reshape(-1, d - 1).T

    def times(vector: np.ndarray, *orders: int) -> list[np.ndarray]:
        """The shear at each point, or its derivatives of these orders, times a vector: never a matrix for a point."""
        products = (vector @ stacked).reshape(n, -1, d - 1)
        return [np.einsum("ns,nsr->nr", mixes[order], products) for order in orders]

    (once, bent), (moved, shifted), (turned,) = times(scaled, 1, 2), times(change, 0, 1), times(turn, 0)
    first = dw @ means + change + once + moved
    second = ddw @ means + turn + bent + 2.0 * shifted + turned
    shear = (mixes[0] @ shears.reshape(len(shears), (d - 1) ** 2)).reshape(n, d - 1, d - 1)
    jacobian = np.zeros((n, d, d))
    jacobian[:, 0, 0] = slope
    jacobian[:, 1:, 0] = slope[:, None] * first
    shear[:, np.arange(d - 1), np.arange(d - 1)] += 1.0
    np.multiply(shear, scale[:, None, :], out=jacobian[:, 1:, 1:])
    twice = np.concatenate([bend[:, None], bend[:, None] * first + slope[:, None] ** 2 * second], axis=1)
    if inner is None:
        return jacobian, twice
    parent = inner[:, 0]
    both = scale * np.einsum("nij,nj->ni", inner[:, 1:], parent)
    mixed = slope[:, None] * (times(both, 1)[0] + rate * both + times(rate * both, 0)[0])
    laplacian = np.sum(parent**2, axis=1, keepdims=True) * twice
    laplacian += np.einsum("nij,nj->ni", jacobian, inner_laplacian)
    laplacian[:, 1:] += 2.0 * mixed
    return jacobian @ inner, laplacian


def unplaced(frame: AbstractFrame, x: Float[np.ndarray, "n d"]) -> Float[np.ndarray, "n d"]:
    """z = T^{-1}(x) for many points."""
    if isinstance(frame, AffineMap):
        centred = (x - np.asarray(frame.shift)).T
        return scipy.linalg.solve_triangular(np.asarray(frame.root), centred, lower=True).T
    if isinstance(frame, LowRank):
        return np.asarray(frame.whiten(x))
    if isinstance(frame, Order):
        return x[:, np.asarray(frame.order)]
    if isinstance(frame, Parent):
        return _unplaced_by_parent(frame, x)
    if isinstance(frame, Pair):
        return unplaced_by_pair(frame, x)
    assert isinstance(frame, Composed)
    for part in frame.maps:
        x = unplaced(part, x)
    return x


def _arrays(frame: Parent) -> tuple[np.ndarray, ...]:
    parts = (frame.places, frame.means, frame.log_scales, frame.mixing, frame.shears)
    return tuple(np.asarray(part) for part in parts)


def _placed_by_parent(frame: Parent, z: Float[np.ndarray, "n d"]) -> Placed:
    places, means, scales, mixing, shears = _arrays(frame)
    n, r = len(z), z.shape[1] - 1
    x, slope, bend = (weights @ places for weights in spline_weights(frame.quantiles, z[:, 0]))
    w, dw, _ = spline_weights(frame.given, x)
    scaled = np.exp(w @ scales) * z[:, 1:]
    products = (scaled @ shears.reshape(-1, r).T).reshape(n, -1, r)
    rest = w @ means + scaled + np.einsum("ns,nsr->nr", w @ mixing, products)

    def pull(scores: Float[np.ndarray, "n d"]) -> Float[np.ndarray, "n d"]:
        own, others = scores[:, 0], scores[:, 1:]
        back = (others @ shears.transpose(1, 0, 2).reshape(r, -1)).reshape(n, -1, r)
        through = others + np.einsum("ns,nsr->nr", w @ mixing, back)
        change = (dw @ scales) * scaled
        sheared = np.sum(np.einsum("ns,nsr->nr", dw @ mixing, back) * scaled, axis=1)
        along = own + np.sum(others * (dw @ means), axis=1) + np.sum(through * change, axis=1) + sheared
        first = slope * (along + np.sum(dw @ scales, axis=1)) + bend / slope
        return np.concatenate([first[:, None], np.exp(w @ scales) * through], axis=1)

    log_det = np.log(slope) + np.sum(w @ scales, axis=1)
    return Placed(np.concatenate([x[:, None], rest], axis=1), log_det, pull)


def _unplaced_by_parent(frame: Parent, x: Float[np.ndarray, "n d"]) -> Float[np.ndarray, "n d"]:
    places = np.asarray(frame.places)
    first = solved(frame.quantiles, np.broadcast_to(places, (len(x), len(places))), x[:, 0])
    w, _, _ = spline_weights(frame.given, x[:, 0])
    centred = x[:, 1:] - w @ np.asarray(frame.means)
    if not len(frame.shears):
        return np.concatenate([first[:, None], np.exp(-w @ np.asarray(frame.log_scales)) * centred], axis=1)
    shear, rest = np.tensordot(w @ np.asarray(frame.mixing), np.asarray(frame.shears), 1), centred.copy()
    for i in range(1, rest.shape[1]):  # unit lower triangular; points beyond all measure may overflow, and then say so
        rest[:, i] -= np.einsum("nj,nj->n", shear[:, i, :i], rest[:, :i])
    return np.concatenate([first[:, None], np.exp(-w @ np.asarray(frame.log_scales)) * rest], axis=1)


class Rows(NamedTuple):
    """What the derivatives of single coordinates x_j of x = T(z) along all of z add up to."""

    squares: Float[np.ndarray, "n d"]  # |grad_z x_j|^2
    along: Float[np.ndarray, "n d"]  # grad_z x_j . v for given vectors v
    laplacian: Float[np.ndarray, "n d"]


def rows(frame: AbstractFrame, z: Float[np.ndarray, "n d"], v: Float[np.ndarray, "n d"]) -> Rows:
    """These sums; without a matrix for each point where the frame is of low rank, or has a parent and no shears."""
    n, d = z.shape
    if isinstance(frame, AffineMap):
        root = np.asarray(frame.root)
        return Rows(np.broadcast_to(np.sum(root**2, axis=1), (n, d)), v @ root.T, np.zeros((n, d)))
    parts = frame.parts if isinstance(frame, Composed) else (frame,)
    base = parts[0] if isinstance(parts[0], LowRank) else LowRank.identity(d)
    rest = parts[1:] if isinstance(parts[0], LowRank) else parts
    if not rest:
        return Rows(np.broadcast_to(base.row_squares(), (n, d)), _turned(base, v), np.zeros((n, d)))
    if len(rest) == 2 and isinstance(rest[0], Order) and isinstance(rest[1], Parent) and not len(rest[1].shears):
        return _rows_of_parent(base, rest[0], rest[1], z, v)
    jacobian, laplacian = derivatives(frame, z)
    return Rows(np.sum(jacobian**2, axis=2), np.einsum("nij,nj->ni", jacobian, v), laplacian)


def _turned(base: LowRank, v: Float[np.ndarray, "n d"]) -> Float[np.ndarray, "n d"]:
    return np.asarray(base.colour(v) - base.shift)


def _rows_of_parent(base: LowRank, order: Order, parent: Parent, z: np.ndarray, v: np.ndarray) -> Rows:
    """With T' = A (diag(s) + f e^T), e the parent's direction: row j has |A_j s|^2 + 2 A_je s_e (A f)_j + (A f)_j^2."""
    places, means, scales, _, _ = _arrays(parent)
    n, d = z.shape
    x, slope, bend = (weights @ places for weights in spline_weights(parent.quantiles, z[:, 0]))
    w, dw, ddw = spline_weights(parent.given, x)
    scale, rate = np.exp(w @ scales), dw @ scales
    scaled = scale * z[:, 1:]
    first = dw @ means + rate * scaled
    second = ddw @ means + (ddw @ scales + rate**2) * scaled
    back = np.argsort(np.asarray(order.order))  # from the frame's order to the target's

    def there(own: np.ndarray, others: np.ndarray) -> np.ndarray:
        return np.concatenate([own[:, None], others], axis=1)[:, back]

    stretch, shift = there(slope, scale), there(np.zeros(n), slope[:, None] * first)
    moved = _turned(base, shift)
    e = np.zeros((1, d))
    e[0, int(np.asarray(order.order)[0])] = 1.0
    squares = base.row_squares(stretch**2) + 2.0 * slope[:, None] * _turned(base, e) * moved + moved**2
    along = _turned(base, stretch * v[:, back] + shift * v[:, :1])
    twice = there(bend, bend[:, None] * first + slope[:, None] ** 2 * second)
    return Rows(squares, along, _turned(base, twice))
