"""Mass in none of several modes: what chains that are not confined reach from the modes' draws.

Each mode's walk is confined to its part of space. Where such a part has mass that hangs together with another mode, and
not with its own, as along a ridge that winds, its chains never come there, and evidences do not know of it. From draws
of each mode chains walk a little without bounds. A place that they reach is known to the mode in whose part it lies if
it is as near to that mode's draws as these are to one another.
"""

import numpy as np
from jaxtyping import Bool, Float

from steinmatch.adaptive.frames import cloud, log_frame_density
from steinmatch.adaptive.leaps import stroll
from steinmatch.adaptive.modes import Part
from steinmatch.adaptive.walks import States
from steinmatch.coordinates.plainly import placed, unplaced
from steinmatch.targets import Evaluations

TOLERATED = 0.25  # of the tolerance: a share of the mass as far away as four sds moves a mean by the whole of it
_CHAINS = 64
_DRAWS, _OTHERS = 4096, 1024  # of each mode, and those whose distances to them are the measure
_FARTHER = 2.0  # times the largest of these


def leak(evaluate: Evaluations, parts: list[Part], shares: Float[np.ndarray, " modes"], seed: int) -> float:
    """The share of the places reached from all modes that none of them knows."""
    frames = [part.found for part in parts]
    draws = [np.asarray(part.iterate.particles) for part in parts]
    visited = [_Visited(x) for x in draws]
    found = 0.0
    for k, frame in enumerate(frames):
        states = States(*cloud(evaluate, frame, unplaced(frame, _some(draws[k], _CHAINS))))
        stretch = stroll(evaluate, frame, frame, states, 0.0, np.random.default_rng([seed % 2**32, k]))
        x = placed(frame, stretch.z.reshape(-1, draws[k].shape[1])).x
        owner = np.argmax([log_frame_density(other, x) for other in frames], axis=0)
        unknown = [visited[j].far(x[owner == j]) for j in range(len(frames))]
        found += float(shares[k] * np.mean(np.concatenate(unknown)))
    return found


def _some(x: Float[np.ndarray, "n d"], count: int, first: int = 0) -> Float[np.ndarray, "m d"]:
    return x[np.linspace(first, len(x) - 1, min(count, len(x) - first)).astype(int)]


class _Visited:
    """Where the draws of a mode are, and how near they are to one another, in their own sds."""

    def __init__(self, draws: Float[np.ndarray, "n d"]):
        self.mean, sd = draws.mean(axis=0), draws.std(axis=0)
        self.sd = np.where(sd > 0.0, sd, 1.0)
        half = max(len(draws) // 2, 1)  # later draws are measured by earlier ones
        self.draws = self._scaled(_some(draws[:half], _DRAWS))
        self.reach = _FARTHER * float(np.max(self._nearest(self._scaled(_some(draws, _OTHERS, half))), initial=0.0))

    def far(self, x: Float[np.ndarray, "n d"]) -> Bool[np.ndarray, " n"]:
        return self._nearest(self._scaled(x)) > self.reach

    def _scaled(self, x: Float[np.ndarray, "n d"]) -> Float[np.ndarray, "n d"]:
        return (x - self.mean) / self.sd

    def _nearest(self, x: Float[np.ndarray, "n d"]) -> Float[np.ndarray, " n"]:
        squares = np.sum(x**2, axis=1)[:, None] + np.sum(self.draws**2, axis=1) - 2.0 * x @ self.draws.T
        return np.sqrt(np.maximum(np.min(squares, axis=1, initial=np.inf), 0.0))
