"""Splines in NumPy, at many points."""

import numpy as np
from jaxtyping import Float

from steinmatch.coordinates.maps import Spline


def spline_weights(spline: Spline, x: Float[np.ndarray, " n"]) -> list[Float[np.ndarray, "n k"]]:
    """The spline's weights and their first and second derivatives."""
    knots, inverse = np.asarray(spline.knots), np.asarray(spline.inverse)
    over = np.maximum(x[:, None] - knots, 0.0)
    squares = over * over  # products: powers of arrays take ten times as long
    ones, none = np.ones_like(x), np.zeros_like(x)
    found = []
    for cubes, first in ((squares * over, (ones, x)), (3.0 * squares, (none, ones)), (6.0 * over, (none, none))):
        e = (cubes[:, :-1] - cubes[:, -1:]) / (knots[-1] - knots[:-1])
        found.append(np.concatenate([np.stack(first, axis=1), e[:, :-1] - e[:, -1:]], axis=1) @ inverse)
    return found


def solved(spline: Spline, tables: Float[np.ndarray, "n k"], x: Float[np.ndarray, " n"]) -> Float[np.ndarray, " n"]:
    """z with w(z) . table = x, for the increasing table of each point, as `Spline.solve`."""
    knots = np.asarray(spline.knots)
    cell = np.clip(np.sum(tables <= x[:, None], axis=1) - 1, 0, len(knots) - 2)[:, None]
    low, high = (np.take_along_axis(tables, cell + k, axis=1)[:, 0] for k in (0, 1))
    left, right = knots[cell[:, 0]], knots[cell[:, 0] + 1]
    z = left + (x - low) * (right - left) / (high - low)  # beyond the ends: in a straight line
    for _ in range(6):
        w, dw, _ = spline_weights(spline, z)
        z = z - (np.sum(tables * w, axis=1) - x) / np.sum(tables * dw, axis=1)
    return z
