"""A frame anew, from draws.

The affine phase raises the evidence bound, and of a posterior that is far from normal it finds the widest normal that
fits within: a thin slice of it. Draws of a walk in that frame know the whole. Where many more of them are needed, a
frame with their mean and covariance, and parents that their scores show, is sought once more, and kept if it gives the
draws a higher density:

    mean of log q(x),   q(T(z)) |det T'(z)| = N(z; 0, I)

or, where the draws cannot tell, if the bound on fresh points rises.
"""

import numpy as np
from jaxtyping import Float

from steinmatch.adaptive.chains import Memory, drawn
from steinmatch.adaptive.frames import Cloud, cloud, log_frame_density
from steinmatch.adaptive.parents import frame_varies, rises, with_parents
from steinmatch.adaptive.verdict import Verdict
from steinmatch.adaptive.walks import CHUNK
from steinmatch.coordinates import AbstractFrame, AffineMap
from steinmatch.coordinates.plainly import placed, unplaced
from steinmatch.measures.weights import Layout, spread

_DRAWS_A_NUMBER = 8  # draws for each mean and covariance: less than an eighth of a nat is lost by their noise
_SEEN = 512  # draws whose scores show parents
_AGAIN = 4  # times as many draws know twice as well whether a frame is better
_WORTH = 4.0  # times the gradients of the first frame that the walk would still take


def worth_a_frame(memory: Memory, verdict: Verdict, tol: float) -> bool:
    """Whether what is left of the walk is so long that another frame may pay, and draws know enough for it."""
    assert memory.chains is not None
    points, spent = memory.points, memory.evaluate.n_gradients
    settled = not memory.plain and not memory.notes and verdict.mixed
    if not settled or points is None or not memory.framed:
        return False
    n, d = CHUNK * len(memory.chains.stretches) * len(memory.chains.states.z), points.z.shape[1]
    if (
        n < max(_DRAWS_A_NUMBER * d * (d + 3) // 2, _AGAIN * memory.reframed)
        or not np.isfinite(points.log_densities).all()
    ):
        return False
    left = (spent - memory.framed) * ((2.0 * verdict.error.largest / tol) ** 2 - 1.0)
    return bool(left > _WORTH * memory.framed and frame_varies(points))


def from_draws(memory: Memory, layout: Layout, seed: int) -> tuple[AbstractFrame, Cloud] | None:
    """The frame of the draws, with fresh points of it; none where the draws are better seen through the old one."""
    chains, evaluate = memory.chains, memory.evaluate
    assert chains is not None
    z, _, _ = drawn(chains)
    x = placed(chains.target.frame, z).x
    root = _root(x)
    if root is None:
        return None
    affine = AffineMap(x.mean(axis=0), root)
    some = np.random.default_rng(seed).choice(len(x), min(_SEEN, len(x)), replace=False)
    frame, points = with_parents(evaluate, affine, seed, cloud(evaluate, affine, unplaced(affine, x[some])))
    gain = spread((log_frame_density(frame, x) - log_frame_density(chains.target.frame, x))[:, None], layout)
    fitted = 0.5 * x.shape[1] * (x.shape[1] + 3) / len(x)  # what as many numbers, fitted to the draws, gain by chance
    surely, gained = 2.0 * gain.error[0], gain.mean[0] - fitted
    assert memory.points is not None
    better = gained > surely or (gained > -surely and rises(memory.points, points))
    return (frame, points) if better else None


def _root(x: Float[np.ndarray, "n d"]) -> Float[np.ndarray, "d d"] | None:
    """Of the draws' covariance; none where they vary too little or too much in some direction."""
    covariance = np.atleast_2d(np.cov(x.T))
    if not np.isfinite(covariance).all():
        return None
    try:
        return np.linalg.cholesky(covariance)
    except np.linalg.LinAlgError:
        return None
