"""Frames of many dimensions: a scale for each coordinate, and the directions in which that is not enough.

A full root of d coordinates takes d^2 numbers, 2 d + 2 gradients a sweep of its affine phase and d^3 operations. Above
`MOST_DENSE` dimensions the frame is x = shift + diag(scale) (I + left right^T) z instead (`coordinates.lowrank`). A
diagonal affine phase takes a few dozen points. What it lacks shows in the curvature of the target as it is seen through
it, M = -E[grad s(z)], whose products with vectors are differences of scores: block Lanczos finds the directions v with
v^T M v = lambda farthest from one, and a stretch of lambda^(-1/2) along each raises the bound by

    (lambda - 1 - log lambda) / 2

to second order. Diagonal sweeps and directions take turns until neither gains what matters.

A parent is one coordinate of the frame, with a place and a scale of each of the others given it.
"""

import dataclasses

import numpy as np
from jaxtyping import Float

from steinmatch.adaptive.frames import FRESH, Cloud, Seen, begin_climb, begin_points, cloud, normal_points
from steinmatch.adaptive.parents import fit_parent, likely_parents, ranked, rises
from steinmatch.coordinates import AbstractFrame, Composed, LowRank
from steinmatch.solvers.affine import AffineState, Evaluate, first_bound, raise_diagonal, usable
from steinmatch.targets import Evaluations

MOST_DENSE = 500  # dimensions of a full root: 2 MB, and 1000 gradients a sweep
_PROBES, _BLOCKS = 16, 4  # of the Krylov space: 4 x 16 directions, for 256 gradients
_SLOW = 0.002  # nats a dimension: a sweep that gains less is the last, 6 % of each scale
_LITTLE = 0.05  # nats of a direction that is left out
_WORTH, _ALONE = (
    0.005,
    0.3,
)  # nats a dimension, or of one direction (half or twice as wide), that are worth another turn
_TURNS = 8
_MOST_SWEEPS = 64  # before a turn: directions that are sought too soon are those of wrong scales
_CLIP = 1e4  # of lambda
_SHARE = 4  # the rank is at most a fourth of d


@dataclasses.dataclass(frozen=True)
class SlimState:
    """Where the search for a frame of many dimensions stands."""

    base: LowRank
    local: AffineState  # a diagonal phase in the coordinates of the base
    turns: int = 0
    sweeps: int = 0

    @property
    def frame(self) -> LowRank:
        local = self.local.frame
        return self.base.stretched(np.asarray(local.shift), np.diagonal(np.asarray(local.root)))


def begin_slim(
    evaluate: Evaluate, centre: Float[np.ndarray, " d"], scale: Float[np.ndarray, " d"], seed: int
) -> SlimState:
    return SlimState(LowRank.identity(len(centre)), begin_climb(evaluate, centre, scale, seed))


def climb_slim(evaluate: Evaluations, state: SlimState, seed: int) -> tuple[SlimState, bool]:
    """One diagonal sweep, or a turn of the frame where sweeps gain no more; and whether it is done."""
    d = state.local.z.shape[1]
    local, stalled = raise_diagonal(Seen(evaluate, state.base), state.local)
    state = dataclasses.replace(state, local=local, sweeps=state.sweeps + 1)
    if not stalled and local.gains[-1] > _SLOW * d and state.sweeps < _MOST_SWEEPS:
        return state, False
    if state.turns >= _TURNS or state.base.left.shape[1] > d // _SHARE - _PROBES * _BLOCKS:
        return state, True
    turned = _turned(evaluate, state, seed)
    return (state, True) if turned is None else (turned, False)


def _turned(evaluate: Evaluations, state: SlimState, seed: int) -> SlimState | None:
    """The state after stretches along directions, from where sweeps go on; none where they are not worth it."""
    d, frame = state.local.z.shape[1], state.frame
    found = _directions(Seen(evaluate, frame), d, np.random.default_rng([seed % 2**32, state.turns]))
    if found is None:
        return None
    values, vectors = found
    gains = 0.5 * (values - 1.0 - np.log(values))
    if gains.sum() < _WORTH * d and gains.max() < _ALONE:
        return None
    there = frame.turned(vectors * (values**-0.5 - 1.0), vectors)
    z = normal_points(begin_points(d), d, seed + 1 + state.turns)
    before, after = (_begun(Seen(evaluate, one), z) for one in (frame, there))
    rose = usable(after.bound) and not after.bound.value <= before.bound.value
    return SlimState(there, after, state.turns + 1, 0) if rose else None


def _begun(seen: Seen, z: Float[np.ndarray, "n d"]) -> AffineState:
    d = z.shape[1]
    return first_bound(seen, z, z, np.zeros(d), np.ones(d), (1.0,), True)


def _directions(seen: Seen, d: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray] | None:
    """Curvatures and orthonormal directions that are worth a stretch, by block Lanczos on M at a point and its mirror
    image; none where there are none, or scores are not finite.
    """
    base = rng.normal(size=(1, d))
    base = np.concatenate([base, -base])

    def product(q: Float[np.ndarray, "d m"]) -> Float[np.ndarray, "d m"]:
        ahead, behind = ((base[:, None] + side * q.T[None]).reshape(-1, d) for side in (1.0, -1.0))
        _, scores = seen(np.concatenate([ahead, behind]))
        ahead, behind = scores.reshape(2, len(base), -1, d).mean(axis=1)
        return 0.5 * (behind - ahead).T

    space, images = np.zeros((d, 0)), np.zeros((d, 0))
    block = rng.normal(size=(d, _PROBES))
    for _ in range(_BLOCKS):
        for _ in range(2):  # twice is enough
            block = np.linalg.qr(block - space @ (space.T @ block))[0]
        image = product(block)
        if not np.isfinite(image).all():
            return None
        space, images = np.concatenate([space, block], axis=1), np.concatenate([images, image], axis=1)
        block = image
    inner = space.T @ images
    values, vectors = np.linalg.eigh(0.5 * (inner + inner.T))
    values = np.clip(np.abs(values), 1.0 / _CLIP, _CLIP)
    some = 0.5 * (values - 1.0 - np.log(values)) > _LITTLE
    return (values[some], space @ vectors[:, some]) if some.any() else None


def with_slim_parent(evaluate: Evaluations, frame: LowRank, seed: int) -> tuple[AbstractFrame, Cloud]:
    """The frame, or one with a parent whose bound is higher on fresh points; and these points."""
    d = len(frame.shift)
    z = normal_points(FRESH, d, seed + 1)
    points = cloud(evaluate, frame, z)
    likely = likely_parents(None, points)
    for v in ranked(Seen(evaluate, frame), None, likely, d, seed + 3)[:1]:
        alone = frame.without(v)
        richer = fit_parent(Seen(evaluate, alone), None, v, seed + 2, d)
        composed = None if richer is None else Composed((alone, richer))
        there = None if composed is None else cloud(evaluate, composed, z)
        if composed is not None and there is not None and rises(points, there):
            return composed, there
    return frame, points
