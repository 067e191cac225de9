"""Affine phases of some coordinates, given the others: what frames with parents are made of."""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float

from steinmatch.coordinates import AffineMap
from steinmatch.solvers.affine import (
    AffineState,
    Evaluate,
    bound_error,
    first_bound,
    raise_bound,
    raise_diagonal,
    usable,
)

NORMAL_GRID = np.linspace(-5.0, 5.0, 41)  # normal scores at which parents have their quantiles
GIVEN_ERROR = 0.02  # by how much the affine equations may fail: 2e-4 nats a coordinate
_SWEEPS, _GAIN = 20, 0.01  # at most; nats of a sweep that is the last


class Given:
    """The target of all coordinates but some, given those; scores and densities as `Evaluations` gives them."""

    def __init__(self, evaluate: Evaluate, parents: Sequence[int], values: Sequence[float] | np.ndarray):
        self.evaluate, self.parents, self.values = evaluate, list(parents), values

    def __call__(self, rest: Float[np.ndarray, "n r"]) -> tuple[Float[np.ndarray, " n"], Float[np.ndarray, "n r"]]:
        d = rest.shape[1] + len(self.parents)
        others = np.delete(np.arange(d), self.parents)
        x = np.empty((len(rest), d))
        x[:, others], x[:, self.parents] = rest, self.values
        values, scores = self.evaluate(x)
        return values, scores[:, others]


def carried(path: list[tuple[float, AffineState]], there: float) -> AffineMap:
    """Where the next conditional affine phase begins: what the last two were, continued in a straight line."""
    place, frame = path[-1][0], path[-1][1].frame
    if len(path) < 2:
        return frame
    share = (there - place) / (place - path[-2][0])
    last = path[-2][1].frame
    shift = np.asarray(frame.shift)
    ratio = np.abs(np.diagonal(np.asarray(frame.root)) / np.diagonal(np.asarray(last.root)))
    root = np.asarray(frame.root) * np.clip(ratio**share, 0.2, 5.0)[None, :]
    return AffineMap(shift + share * (shift - np.asarray(last.shift)), root)


def conditional(
    evaluate: Given, begun: AffineMap, z: Float[np.ndarray, "k r"], diagonal: bool = False
) -> AffineState | None:
    """An affine phase of the other coordinates, to where it matters no more."""
    state = first_bound(evaluate, z, z, np.asarray(begun.shift), np.ones(z.shape[1]), (1.0,), diagonal, begun)
    for _ in range(_SWEEPS):
        if not usable(state.bound):
            return None
        if bound_error(state) < GIVEN_ERROR:
            break
        if diagonal:
            state, done = raise_diagonal(evaluate, state)
        else:
            state, _, done = raise_bound(evaluate, state, GIVEN_ERROR)
        if done or state.gains[-1] < _GAIN:
            break
    return state if usable(state.bound) else None
