"""Going on from an earlier fit: its frame and, for the same target, its draws.

Of another target, other data of the same model as a rule, the frame is judged on fresh points. A good one begins its
chains at once; one that is nearly good too, but walks with more care; one that is not is where the affine phase begins.
"""

import dataclasses

import numpy as np

from steinmatch.adaptive.chains import Chains, Memory, Walked
from steinmatch.adaptive.frames import BATCH, FRESH, Cloud, begin_again, cloud, log_weights, normal_points
from steinmatch.adaptive.walks import CHUNK
from steinmatch.coordinates import AffineMap, PulledBack
from steinmatch.coordinates.plainly import placed
from steinmatch.solvers.affine import usable
from steinmatch.targets import AbstractTarget

_REUSABLE = 2.0  # variance of the log weights of a frame that serves another target


def resumed(walked: Walked, target: AbstractTarget, memory: Memory, n_chains: int, least: int, seed: int) -> Memory:
    """The memory of a fit that goes on from an earlier one, towards at least so many draws."""
    frame, evaluate = walked.frame, memory.evaluate
    chains: Chains | None = walked.chains
    if chains is not None and len(chains.states.z) == n_chains and _unchanged(walked, target, memory):
        wanted = CHUNK * -(-least // (n_chains * CHUNK))
        return dataclasses.replace(
            memory,
            frame=frame,
            chains=dataclasses.replace(chains, target=PulledBack(target, frame), wanted=wanted),
            notes=walked.notes,
            rounds=walked.rounds,
            verdict=walked.verdict,
            phase="walk",
        )
    memory = dataclasses.replace(memory, again=True)
    z = normal_points(FRESH, target.dim, seed + 1)
    some = cloud(evaluate, frame, z[: 2 * BATCH])
    if _varies(some) < _REUSABLE:
        others = cloud(evaluate, frame, z[2 * BATCH :])
        points = Cloud(*(np.concatenate(parts) for parts in zip(some, others, strict=True)))
        if _varies(points) < _REUSABLE:
            return dataclasses.replace(memory, frame=frame, points=points, notes=walked.notes, phase="begin")
    if isinstance(frame, AffineMap):
        state = begin_again(evaluate, frame, seed)
        if usable(state.bound):
            return dataclasses.replace(memory, climbing=state)
    x = placed(frame, some.z).x
    return dataclasses.replace(memory, centre=x.mean(axis=0), scale=x.std(axis=0))


def _varies(points: Cloud) -> float:
    return float(np.var(log_weights(points))) if np.isfinite(points.log_densities).all() else np.inf


def _unchanged(walked: Walked, target: AbstractTarget, memory: Memory) -> bool:
    """Whether the target is the one that was walked, at some of the draws."""
    some = np.linspace(0, len(walked.z) - 1, min(BATCH, len(walked.z))).astype(int)
    here = cloud(memory.evaluate, walked.frame, walked.z[some])
    unchanged = np.allclose(here.scores, walked.scores[some], rtol=1e-8, atol=1e-8)
    if target.log_density is not None:
        unchanged &= np.allclose(here.log_densities, walked.log_densities[some], rtol=1e-10, atol=1e-8)
    return bool(unchanged)
