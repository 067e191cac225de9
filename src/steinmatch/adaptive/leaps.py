"""Leaps: independent proposals from the frame's own normal, accepted by Metropolis and Hastings.

    z' ~ N(0, I),   accepted with probability min(1, w(z') / w(z)),   w(z) = pi(z) / N(z; 0, I)

Where the frame is good most of them are accepted, and a draw that has forgotten the last costs one gradient, not a
trajectory of them. Alone they would take for ever to enter tails heavier than a normal's, so that trajectories of
Hamiltonian Monte Carlo come between; both leave the target invariant. By hand, since BlackJAX's independent proposals
(`irmh`) carry no scores, which the Stein weights need; and since the target has already been compiled for such points.
"""

import jax.numpy as jnp
import numpy as np
from blackjax.mcmc.hmc import HMCState
from jaxtyping import Array, Float

from steinmatch.adaptive.frames import Cloud, cloud, log_weights
from steinmatch.coordinates import AbstractFrame
from steinmatch.targets import Evaluations
from steinmatch.walks import CHUNK, Stretch

CYCLE = 3  # stretches: trajectories, then leaps
_STUCK = 0.01  # acceptance at a draw that would be repeated by a hundred leaps, were it not for trajectories
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
    evaluate: Evaluations, frame: AbstractFrame, states: HMCState, log_step: Array, rng: np.random.Generator
) -> Stretch:
    """A stretch of leaps of all chains."""
    z, densities, scores = (np.asarray(part) for part in states)
    chains, d = z.shape
    proposed = cloud(evaluate, frame, rng.normal(size=(CHUNK * chains, d)))
    finite = np.isfinite(proposed.log_densities) & np.isfinite(proposed.scores).all(axis=1)
    logs = np.where(finite, log_weights(proposed), -np.inf).reshape(CHUNK, chains)
    uniform = np.log(rng.uniform(size=(CHUNK, chains)))
    parts = [part.reshape(CHUNK, chains, *part.shape[1:]) for part in proposed]
    rows, accepted = [], []
    now = (z, densities, scores)
    for t in range(CHUNK):
        moves = uniform[t] < logs[t] - log_weights(Cloud(*now))
        now = tuple(
            np.where(moves.reshape(-1, *[1] * (old.ndim - 1)), new[t], old) for old, new in zip(now, parts, strict=True)
        )
        rows.append(now)
        accepted.append(moves.mean())
    drawn = [jnp.asarray(np.stack(part)) for part in zip(*rows, strict=True)]
    zeros = jnp.zeros(CHUNK)
    states = HMCState(*map(jnp.asarray, now))  # type: ignore[arg-type]
    return Stretch(states, log_step, drawn[0], drawn[2], drawn[1], jnp.asarray(accepted), zeros, zeros, zeros + 1)
