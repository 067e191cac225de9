"""The affine frame of the automatic fit: the evidence bound raised over a few fixed points (`solvers.affine`) until it
rises by nothing that matters; and clouds of points, the target as it is seen through a frame.
"""

from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from steinmatch.coordinates import AbstractFrame, AffineMap
from steinmatch.coordinates.plainly import placed, unplaced
from steinmatch.solvers.affine import START_SCALES, AffineState, Evaluate, first_bound, normal_points, raise_bound
from steinmatch.targets import Evaluations

BATCH = 16  # points, or twice as many: numbers of points are multiples, so that no evaluation is padding
FRESH = 128  # points on which a frame is judged
_DIAGONAL_POINTS = 32  # of the first, diagonal stage, where a full L needs more
_SMALL_GAIN = 0.02  # nats a sweep: the walk does the rest
_CLIMB_STEPS = 80


class Cloud(NamedTuple):
    """Points of a frame with their pulled-back log densities and scores; log densities are nan for a score alone."""

    z: Float[np.ndarray, "n d"]
    log_densities: Float[np.ndarray, " n"]
    scores: Float[np.ndarray, "n d"]


def batch_of(d: int) -> int:
    """How many points of a target of d dimensions are evaluated at once: all chains are a multiple of it."""
    return BATCH if 2 * d + 2 <= BATCH else 2 * BATCH


def batched(d: int) -> int:
    """At least 2 d + 2 points, in whole batches."""
    return -(-(2 * d + 2) // batch_of(d)) * batch_of(d)


def begin_points(d: int) -> int:
    """How many points an affine phase begins with."""
    return min(_DIAGONAL_POINTS, batched(d))


def begin_climb(
    evaluate: Evaluate, centre: Float[np.ndarray, " d"], sd: Float[np.ndarray, " d"], seed: int, scaled: bool = False
) -> AffineState:
    """The first state of an affine phase around `centre`; of several scales, or of `sd` alone where it is known."""
    d = len(centre)
    few = begin_points(d) < 2 * d + 2
    z = normal_points(begin_points(d), d, seed)
    return first_bound(evaluate, z, z, centre, sd, (1.0,) if scaled else START_SCALES, few)


def begin_again(evaluate: Evaluate, frame: AffineMap, seed: int) -> AffineState:
    """The first state of an affine phase from the frame of an earlier one."""
    d = frame.shift.shape[0]
    z = normal_points(batched(d), d, seed)
    return first_bound(evaluate, z, z, np.asarray(frame.shift), np.ones(d), (1.0,), False, frame)


def climb(evaluate: Evaluate, state: AffineState, seed: int) -> tuple[AffineState, bool]:
    """One sweep, and whether the bound rises no more by amounts that matter."""
    was_diagonal = state.diagonal
    following, _, done = raise_bound(evaluate, state, 1e-2)
    if was_diagonal and not following.diagonal:  # the full L needs more points
        d = state.z.shape[1]
        z = normal_points(batched(d), d, seed)
        frame = following.frame
        sd = np.sqrt(np.sum(np.asarray(frame.root) ** 2, axis=1))
        return first_bound(evaluate, z, z, np.asarray(frame.shift), sd, (1.0,), diagonal=False), False
    gains = following.gains
    # Small twice, or small and falling by half and more, so that all that is left is less than that.
    slow = len(gains) >= 2 and gains[-1] < _SMALL_GAIN and (gains[-2] < _SMALL_GAIN or gains[-1] < 0.5 * gains[-2])
    return following, not following.diagonal and (done or slow or len(gains) >= _CLIMB_STEPS)


def cloud(evaluate: Evaluations, frame: AbstractFrame, z: Float[np.ndarray, "n d"]) -> Cloud:
    """The target at points of a frame."""
    with np.errstate(all="ignore"):
        there = placed(frame, z)
        values, scores = evaluate(there.x)
        return Cloud(z, values + there.log_det, there.pull(scores))


def log_weights(points: Cloud) -> Float[np.ndarray, " n"]:
    """log pi(z) + |z|^2 / 2: the target's density over that of the frame's normal, but for a constant."""
    return points.log_densities + 0.5 * np.sum(points.z**2, axis=1)


def log_frame_density(frame: AbstractFrame, x: Float[np.ndarray, "n d"]) -> Float[np.ndarray, " n"]:
    """log q(x), but for a constant; very low where the frame does not reach."""
    with np.errstate(all="ignore"):
        z = unplaced(frame, x)
        logs = -0.5 * np.sum(z**2, axis=1) - placed(frame, z).log_det
    return np.where(np.isfinite(logs), logs, -1e6)


class Seen:
    """The target as it is seen through a frame: an `Evaluations` in the frame's coordinates."""

    def __init__(self, evaluate: Evaluations, frame: AbstractFrame):
        self.evaluate, self.frame = evaluate, frame

    def __call__(self, z: Float[np.ndarray, "n d"]) -> tuple[Float[np.ndarray, " n"], Float[np.ndarray, "n d"]]:
        found = cloud(self.evaluate, self.frame, z)
        return found.log_densities, found.scores
