"""Transitions of chains in NumPy, over batches of points for which the target has been compiled already.

Leaps are independent proposals from the frame's own normal, accepted by Metropolis and Hastings:

    z' ~ N(0, I),   accepted with probability min(1, w(z') / w(z)),   w(z) = pi(z) / N(z; 0, I)

Where the frame is good most of them are accepted, and a draw that has forgotten the last costs one gradient, not a
trajectory of them. Alone they would take for ever to enter tails heavier than a normal's, so that trajectories of
Hamiltonian Monte Carlo come between; both leave the target invariant. BlackJAX's independent proposals (`irmh`) carry
no scores, which the Stein weights need.

Chains of a frame that is not affine also take trajectories in the affine one now and then (`stroll`).

`stride` is what `walks.advance` does with BlackJAX's kernel, which must be compiled for each target and frame: 2 to 5 s
of a fit of 4 to 10 s (measured on two cores), for less than a second of walking. So short walks are done here, and long
ones, and those of scores without a log density, there.
"""

import numpy as np
from jaxtyping import Bool, Float

from steinmatch.adaptive.frames import Cloud, cloud, log_weights
from steinmatch.adaptive.walks import (
    ACCEPTANCE,
    CHUNK,
    FIRST_STEP,
    MOST_LEAPS,
    REACH,
    STIFF,
    TRAJECTORY,
    States,
    Stretch,
)
from steinmatch.coordinates import AbstractFrame, AffineMap
from steinmatch.coordinates.plainly import placed, unplaced
from steinmatch.targets import Evaluations

CYCLE = 3  # stretches: trajectories, then leaps
_STUCK = 0.01  # acceptance at a draw that would be repeated by a hundred leaps, were it not for trajectories
_THROWN = 1e6  # sds: a trajectory that stiff forces have thrown so far is not accepted, and cannot be mapped
_OFTEN = 0.6  # acceptance: a trajectory takes two or three gradients, so that leaps are then worth more


def leaping(points: Cloud, draws: Cloud | None = None) -> bool:
    """Whether leaps from points of a frame, weighed by their importance, would often be accepted; and none of the draws
    that there are is one that only very many leaps would leave.
    """
    logs = log_weights(points)
    if not np.isfinite(logs).any():
        return False
    logs = np.where(np.isfinite(logs), logs, -np.inf)
    top = logs.max()
    weights = np.exp(logs - top)

    def left(at: Float[np.ndarray, " k"]) -> Float[np.ndarray, " k"]:
        with np.errstate(over="ignore"):
            return np.mean(np.minimum(1.0, weights[None, :] / np.maximum(np.exp(at - top), 1e-300)[:, None]), axis=1)

    often = weights @ left(logs) / weights.sum() >= _OFTEN
    return bool(often and (draws is None or left(np.max(log_weights(draws), keepdims=True))[0] >= _STUCK))


def leap(
    evaluate: Evaluations, frame: AbstractFrame, states: States, log_step: float, rng: np.random.Generator
) -> Stretch:
    """A stretch of leaps of all chains."""
    chains, d = states.z.shape
    proposed = cloud(evaluate, frame, rng.normal(size=(CHUNK * chains, d)))
    finite = np.isfinite(proposed.log_densities) & np.isfinite(proposed.scores).all(axis=1)
    logs = np.where(finite, log_weights(proposed), -np.inf).reshape(CHUNK, chains)
    uniform = np.log(rng.uniform(size=(CHUNK, chains)))
    parts = [part.reshape(CHUNK, chains, *part.shape[1:]) for part in proposed]
    rows, accepted = [], []
    for t in range(CHUNK):
        moves = uniform[t] < logs[t] - log_weights(Cloud(*states))
        states = _moved(states, States(*(part[t] for part in parts)), moves)
        rows.append(states)
        accepted.append(moves.mean())
    zeros = np.zeros(CHUNK)
    return _stretch(rows, log_step, np.array(accepted), zeros, zeros, zeros, zeros + 1.0)


def settled(points: Cloud, states: States, rng: np.random.Generator) -> States:
    """Chains that have been offered points of the frame that are known already, each once: a warm-up for nothing."""
    order = rng.permutation(len(points.z))
    for some in order[: len(order) // len(states.z) * len(states.z)].reshape(-1, len(states.z)):
        there = Cloud(*(part[some] for part in points))
        finite = np.isfinite(there.log_densities) & np.isfinite(there.scores).all(axis=1)
        logs = np.where(finite, log_weights(there), -np.inf)
        moves = np.log(rng.uniform(size=len(some))) < logs - log_weights(Cloud(*states))
        states = _moved(states, States(*there), moves)
    return states


def stride(
    evaluate: Evaluations,
    frame: AbstractFrame,
    states: States,
    log_step: float,
    gains: Float[np.ndarray, " t"],
    factors: Float[np.ndarray, " t"],
    rng: np.random.Generator,
) -> Stretch:
    """Trajectories of Hamiltonian Monte Carlo, as in `walks.advance`."""
    rows, statistics = [], []
    for gain, factor in zip(gains, factors, strict=True):
        length, usual = TRAJECTORY * rng.uniform(0.5, 1.5), np.exp(log_step)
        leaps = int(np.clip(np.ceil(length / (max(factor, 1.0) * usual)), 1, MOST_LEAPS))
        there, acceptance = _trajectory(evaluate, frame, Cloud(*states), factor * usual, leaps, rng)
        with np.errstate(all="ignore"):
            edge = (there.log_densities == -np.inf) & (np.linalg.norm(there.z, axis=1) <= REACH)
        states = _moved(states, States(*there), rng.uniform(size=len(acceptance)) < acceptance)
        rows.append(states)
        accepted = float(acceptance[~edge].mean()) if not edge.all() else 0.0
        statistics.append((accepted, factor, np.mean((acceptance < STIFF) & ~edge), np.mean(edge), float(leaps)))
        log_step = log_step + (gain * (accepted - ACCEPTANCE) if factor == 1.0 else 0.0)
    return _stretch(rows, log_step, *np.array(statistics).T)


def stroll(
    evaluate: Evaluations,
    frame: AbstractFrame,
    affine: AffineMap,
    states: States,
    log_step: float,
    rng: np.random.Generator,
) -> Stretch:
    """Trajectories in the coordinates of the affine frame, for chains of a frame that bends: along a curved ridge the
    bent frame may leave out a part that is near in these. Their steps are not adapted but drawn, between a third of a
    normal's and the whole of it; what they say of steps is not about those of the frame.
    """
    d = states.z.shape[1]
    rows, statistics = [], []
    for _ in range(CHUNK):
        step = FIRST_STEP * d**-0.25 * 10.0 ** (-0.5 * rng.uniform())
        leaps = int(np.clip(np.ceil(TRAJECTORY * rng.uniform(0.5, 1.5) / step), 1, MOST_LEAPS))
        with np.errstate(all="ignore"):
            here = cloud(evaluate, affine, unplaced(affine, placed(frame, states.z).x))
            there, acceptance = _trajectory(evaluate, affine, here, step, leaps, rng)
            near = np.abs(np.nan_to_num(there.z, nan=np.inf)).max(axis=1) <= _THROWN
            ends = np.where(near[:, None], there.z, here.z)
            moved = cloud(evaluate, frame, unplaced(frame, placed(affine, ends).x))
            known = near & np.isfinite(moved.z).all(axis=1) & np.isfinite(moved.scores).all(axis=1)
        moves = known & np.isfinite(moved.log_densities) & (rng.uniform(size=len(acceptance)) < acceptance)
        states = _moved(states, States(*moved), moves)
        rows.append(states)
        statistics.append((moves.mean(), 0.0, 0.0, 0.0, float(leaps + 2)))
    return _stretch(rows, log_step, *np.array(statistics).T)


def _trajectory(
    evaluate: Evaluations, frame: AbstractFrame, here: Cloud, step: float, leaps: int, rng: np.random.Generator
) -> tuple[Cloud, Float[np.ndarray, " c"]]:
    """Where a trajectory of each chain ends, and with which probability it is accepted."""
    momentum, there = rng.normal(size=here.z.shape), here
    energy = 0.5 * np.sum(momentum**2, axis=1) - here.log_densities
    with np.errstate(all="ignore"):
        for _ in range(leaps):
            momentum = momentum + 0.5 * step * there.scores
            there = cloud(evaluate, frame, there.z + step * momentum)
            momentum = momentum + 0.5 * step * there.scores
        lost = 0.5 * np.sum(momentum**2, axis=1) - there.log_densities - energy
        return there, np.where(np.isfinite(lost), np.exp(-np.maximum(lost, 0.0)), 0.0)


def _moved(old: States, new: States, moves: Bool[np.ndarray, " c"]) -> States:
    return States(*(np.where(moves.reshape(-1, *[1] * (a.ndim - 1)), b, a) for a, b in zip(old, new, strict=True)))


def _stretch(rows: list[States], log_step: float, *statistics: Float[np.ndarray, " t"]) -> Stretch:
    z, densities, scores = (np.stack(part) for part in zip(*rows, strict=True))
    return Stretch(rows[-1], float(log_step), z, scores, densities, *statistics)
