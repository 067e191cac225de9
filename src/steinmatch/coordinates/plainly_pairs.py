"""`Pair` in NumPy, for `plainly`: places, pulled-back scores and derivatives of many points."""

from typing import NamedTuple

import numpy as np
import scipy.linalg
from jaxtyping import Float

from steinmatch.coordinates.pairs import Pair, Polyharmonic
from steinmatch.coordinates.plainly_splines import solved, spline_weights


class _Along(NamedTuple):
    """Parents, and how they and what depends on them change along one of their coordinates z_a."""

    first: Float[np.ndarray, "n 2"]  # du / dz_a
    second: Float[np.ndarray, "n 2"]  # d^2u / dz_a^2
    weights: Float[np.ndarray, "n k"]  # dw / dz_a
    bent: Float[np.ndarray, "n k"]  # d^2w / dz_a^2


class _Parents(NamedTuple):
    u: Float[np.ndarray, "n 2"]
    slopes: tuple[np.ndarray, np.ndarray]  # du_0 / dz_0 and du_1 / dz_1, and
    log_slopes: tuple[np.ndarray, np.ndarray]  # the derivatives of the sum of their logs by z_0 and z_1
    weights: Float[np.ndarray, "n k"]
    along: tuple[_Along, _Along]


def _parents(frame: Pair, z: Float[np.ndarray, "n d"]) -> _Parents:
    places, quantiles = np.asarray(frame.places), np.asarray(frame.quantiles)
    first, slope, bend = (weights @ places for weights in spline_weights(frame.first, z[:, 0]))
    tables = [weights @ quantiles for weights in spline_weights(frame.across, first)]
    here, by, twice = spline_weights(frame.second, z[:, 1])
    second, over, over_twice = (np.sum(table * here, axis=1) for table in tables)  # by u_0
    own, own_over = (np.sum(table * by, axis=1) for table in tables[:2])
    bent = np.sum(tables[0] * twice, axis=1)
    u, none = np.stack([first, second], axis=1), np.zeros(len(z))
    du = np.stack([slope, over * slope], axis=1), np.stack([none, own], axis=1)
    ddu = np.stack([bend, over_twice * slope**2 + over * bend], axis=1), np.stack([none, bent], axis=1)
    weights, along = _polyharmonic(frame.given, u, du, ddu)
    log_slopes = bend / slope + own_over * slope / own, bent / own
    return _Parents(u, (slope, own), log_slopes, weights, along)


def _polyharmonic(
    given: Polyharmonic, u: np.ndarray, du: tuple[np.ndarray, np.ndarray], ddu: tuple[np.ndarray, np.ndarray]
) -> tuple[np.ndarray, tuple[_Along, _Along]]:
    """w(u), and its first and second derivatives along curves with these velocities and accelerations."""
    knots, inverse = np.asarray(given.knots), np.asarray(given.inverse)
    off = u[:, None] - knots
    r = np.linalg.norm(off, axis=2)
    ones, none = np.ones((len(u), 1)), np.zeros((len(u), 1))
    weights = np.concatenate([r * r * r, ones, u], axis=1) @ inverse
    along = []
    for first, second in zip(du, ddu, strict=True):
        through, bent = (np.einsum("nka,na->nk", off, part) for part in (first, second))
        size = np.sum(first**2, axis=1, keepdims=True)
        curved = 3.0 * (r * size + through**2 / np.where(r > 0.0, r, 1.0) + r * bent)
        once = np.concatenate([3.0 * r * through, none, first], axis=1) @ inverse
        twice = np.concatenate([curved, none, second], axis=1) @ inverse
        along.append(_Along(first, second, once, twice))
    return weights, (along[0], along[1])


class _Rest:
    """Place and shears of the others."""

    def __init__(self, frame: Pair, weights: np.ndarray):
        self.means, self.scales, self.mixing, self.shears = (
            np.asarray(part) for part in (frame.means, frame.log_scales, frame.mixing, frame.shears)
        )
        self.r = self.means.shape[1]
        self.scale = np.exp(weights @ self.scales)
        self.mixture = weights @ self.mixing

    def sheared(self, mixture: np.ndarray, vector: np.ndarray) -> np.ndarray:
        products = (vector @ self.shears.reshape(-1, self.r).T).reshape(len(vector), -1, self.r)
        return np.einsum("ns,nsr->nr", mixture, products)


def placed_by_pair(frame: Pair, z: Float[np.ndarray, "n d"]) -> tuple:
    """x, log |det T'| and the function that pulls scores back."""
    found = _parents(frame, z)
    rest = _Rest(frame, found.weights)
    root = np.asarray(frame.root)
    scaled = rest.scale * z[:, 2:]
    others = found.weights @ rest.means + scaled + rest.sheared(rest.mixture, scaled)
    x = np.concatenate([np.asarray(frame.shift) + found.u @ root.T, others], axis=1)
    log_det = np.log(found.slopes[0]) + np.log(found.slopes[1]) + np.sum(np.log(np.abs(np.diagonal(root))))
    log_det = log_det + np.sum(found.weights @ rest.scales, axis=1)

    def pull(scores: Float[np.ndarray, "n d"]) -> Float[np.ndarray, "n d"]:
        own, others = scores[:, :2] @ root, scores[:, 2:]
        back = (others @ rest.shears.transpose(1, 0, 2).reshape(rest.r, -1)).reshape(len(z), -1, rest.r)
        through = others + np.einsum("ns,nsr->nr", rest.mixture, back)
        columns = []
        for along, log_slope in zip(found.along, found.log_slopes, strict=True):
            change = along.weights @ rest.scales
            sheared = np.einsum("ns,nsr->nr", along.weights @ rest.mixing, back)
            slope = np.sum(own * along.first, axis=1) + np.sum(others * (along.weights @ rest.means), axis=1)
            slope += np.sum((through * change + sheared) * scaled, axis=1)
            columns.append(slope + log_slope + np.sum(change, axis=1))
        return np.concatenate([np.stack(columns, axis=1), rest.scale * through], axis=1)

    return x, log_det, pull


def pair_derivatives(frame: Pair, z: Float[np.ndarray, "n d"]) -> tuple[np.ndarray, np.ndarray]:
    """T'(z) and the Laplacian of T; as in `plainly.derivatives`, of a map that comes first."""
    n, d = z.shape
    found = _parents(frame, z)
    rest = _Rest(frame, found.weights)
    root = np.asarray(frame.root)
    scaled = rest.scale * z[:, 2:]
    jacobian, laplacian = np.zeros((n, d, d)), np.zeros((n, d))
    for a, along in enumerate(found.along):
        rate, bent = along.weights @ rest.scales, along.bent @ rest.scales
        change, turn = rate * scaled, (bent + rate**2) * scaled
        mixed, mixed_twice = along.weights @ rest.mixing, along.bent @ rest.mixing
        jacobian[:, :2, a] = along.first @ root.T
        jacobian[:, 2:, a] = along.weights @ rest.means + change
        jacobian[:, 2:, a] += rest.sheared(rest.mixture, change) + rest.sheared(mixed, scaled)
        laplacian[:, :2] += along.second @ root.T
        laplacian[:, 2:] += along.bent @ rest.means + turn + rest.sheared(rest.mixture, turn)
        laplacian[:, 2:] += 2.0 * rest.sheared(mixed, change) + rest.sheared(mixed_twice, scaled)
    shear = (rest.mixture @ rest.shears.reshape(len(rest.shears), -1)).reshape(n, d - 2, d - 2) + np.eye(d - 2)
    np.multiply(shear, rest.scale[:, None, :], out=jacobian[:, 2:, 2:])
    return jacobian, laplacian


def unplaced_by_pair(frame: Pair, x: Float[np.ndarray, "n d"]) -> Float[np.ndarray, "n d"]:
    """z = T^{-1}(x) for many points."""
    centred = (x[:, :2] - np.asarray(frame.shift)).T
    u = scipy.linalg.solve_triangular(np.asarray(frame.root), centred, lower=True, check_finite=False).T
    first = solved(frame.first, np.broadcast_to(np.asarray(frame.places), (len(x), len(frame.places))), u[:, 0])
    second = solved(frame.second, spline_weights(frame.across, u[:, 0])[0] @ np.asarray(frame.quantiles), u[:, 1])
    none = np.zeros_like(u)
    weights, _ = _polyharmonic(frame.given, u, (none, none), (none, none))
    rest = _Rest(frame, weights)
    shear = (rest.mixture @ rest.shears.reshape(len(rest.shears), -1)).reshape(len(x), rest.r, rest.r)
    others = x[:, 2:] - weights @ rest.means
    for i in range(1, rest.r):  # unit lower triangular; points beyond all measure may overflow, and then say so
        others[:, i] -= np.einsum("nj,nj->n", shear[:, i, :i], others[:, :i])
    return np.concatenate([first[:, None], second[:, None], others / rest.scale], axis=1)
