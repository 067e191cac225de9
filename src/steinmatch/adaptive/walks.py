"""Walks: many short chains of Hamiltonian Monte Carlo on a target seen through a frame, all in one compiled scan.

The chains leave the target invariant; the frame only makes them short. In a frame where the target is standard normal a
trajectory of length pi / 2 ends at a point independent of its start, so that is the mean length; lengths are jittered
by half of it, since a fixed one can resonate. The step size is adapted, over the first transitions only, to a mean
acceptance of 0.8 over all chains. The kernel is BlackJAX's `hmc`. Each state carries its log density and score, so
Stein weights need no further gradients.

Mean lengths of .8, pi / 2, 3.1 and 6 were measured in affine frames: 19, 27, 23, 10 effective draws of the slowest
parameter per 1000 gradients on radon, 68, 109, 92, 25 on rats, 8, 8, 10, 7 on a Poisson Gaussian process. So there is
nothing for an adaptation of lengths (ChEES) to find; a better frame is what helps.
"""

from functools import cache
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from steinmatch._devices import gathered, shared_out
from steinmatch.coordinates import PulledBack
from steinmatch.targets.compiled import compiled

CHUNK = 4  # transitions of one compiled scan
TRAJECTORY = 0.5 * np.pi
ACCEPTANCE = 0.8
CAUTION = 0.25  # factor of the steps of some trajectories
STIFF = 1e-3  # acceptance: at a mean of 0.8 the energy error is .06 +- .35, and this is 20 of its sds away
MOST_LEAPS = 256  # of one trajectory
FIRST_STEP = 1.2  # times d^(-1/4): the largest stable leapfrog step of a normal, and its scaling
REACH = 100.0  # sds: a trajectory that went further was thrown off by stiff forces, to where densities overflow


class States(NamedTuple):
    """Where chains stand."""

    z: Any  # (c, d)
    log_densities: Any
    scores: Any


class Stretch(NamedTuple):
    """Some transitions of all chains."""

    states: States  # after the last one
    log_step: float
    z: Float[np.ndarray, "t c d"]
    scores: Float[np.ndarray, "t c d"]  # of the pulled-back density
    log_densities: Float[np.ndarray, "t c"]
    acceptance: Float[np.ndarray, " t"]
    factors: Float[np.ndarray, " t"]  # of the step
    stiff: Float[np.ndarray, " t"]  # share of trajectories that left the energy by so much: their steps were too long
    edges: Float[np.ndarray, " t"]  # share of those that ended where the density is zero: this says nothing of steps
    leaps: Float[np.ndarray, " t"]  # gradients of each chain


@cache
def _hmc() -> Any:
    """BlackJAX's, imported when used."""
    from blackjax.mcmc import hmc

    return hmc, hmc.build_kernel()


@compiled
def begin(target: PulledBack, z: Float[Array, "c d"]) -> States:
    """The states of chains that start at z: one gradient each."""
    hmc, _ = _hmc()
    return States(*jax.vmap(lambda point: hmc.init(point, target.log_density))(z))


def advance(
    target: PulledBack, states: States, key: PRNGKeyArray, log_step: float, gains: np.ndarray, factors: np.ndarray
) -> Stretch:
    """As many transitions as there are `gains`; the step size follows the acceptance by these gains, 0 being none.

    `factors` multiply the steps. Those below one shorten the trajectories too: chains that have come to where the
    density is stiff, and where long steps are all rejected, get away from there.
    """
    given = (States(*map(shared_out, states)), key, jnp.asarray(log_step), jnp.asarray(gains), jnp.asarray(factors))
    states, last_step, rows = _advance(target, *given)
    z, scores, *others = (gathered(row) for row in rows)
    return Stretch(States(*map(gathered, states)), float(last_step), z, scores, *others)


def transitions(
    target: PulledBack,
    states: States,
    key: PRNGKeyArray,
    log_step: Float[Array, ""],
    gains: Float[Array, " t"],
    factors: Float[Array, " t"],
    most_leaps: int = MOST_LEAPS,
) -> tuple[States, Array, tuple]:
    """What `advance` compiles; the last are rows of a `Stretch`."""
    hmc, kernel = _hmc()
    chains, d = states.z.shape
    metric = jnp.ones(d, jnp.float64)

    def transition(carry: tuple, inputs: tuple) -> tuple:
        states, log_step = carry
        key, gain, factor = inputs
        jitter_key, chain_key = jax.random.split(key)
        step = jnp.exp(log_step)
        length = TRAJECTORY * jax.random.uniform(jitter_key, dtype=jnp.float64, minval=0.5, maxval=1.5)
        leaps = jnp.clip(jnp.ceil(length / (jnp.maximum(factor, 1.0) * step)), 1, most_leaps).astype(jnp.int32)

        def one(key: PRNGKeyArray, state: Any) -> tuple:
            return kernel(key, state, target.log_density, factor * step, metric, leaps)

        moved, info = jax.vmap(one)(jax.random.split(chain_key, chains), states)
        near = jnp.linalg.norm(info.proposal.position, axis=1) <= REACH
        edge = (info.proposal.logdensity == -jnp.inf) & near
        inside = jnp.maximum(jnp.sum(jnp.where(edge, 0.0, 1.0)), 1.0)
        accepted = jnp.sum(jnp.where(edge, 0.0, jnp.nan_to_num(info.acceptance_rate))) / inside
        stiff = jnp.mean(jnp.where((info.acceptance_rate >= STIFF) | edge, 0.0, 1.0))
        row = (
            moved.position,
            moved.logdensity_grad,
            moved.logdensity,
            accepted,
            factor,
            stiff,
            jnp.mean(jnp.where(edge, 1.0, 0.0)),
            leaps,
        )
        follow = jnp.where(factor == 1.0, gain, 0.0)
        return (moved, log_step + follow * (accepted - ACCEPTANCE)), row

    keys = jax.random.split(key, gains.shape[0])
    (moved, log_step), rows = jax.lax.scan(transition, (hmc.HMCState(*states), log_step), (keys, gains, factors))
    return States(*moved), log_step, rows


_advance = compiled(transitions)
