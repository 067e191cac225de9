"""The evidence Z = int p(x) dx of an unnormalised density, by bridge sampling in the frame (warp bridge sampling).

With w(z) = pi(z) / N(z; 0, I), pi the pulled-back density, normal points z_j and draws z_i of the walk, Meng and Wong's
optimal bridge solves

    Z = mean_j [ w_j / (a w_j + b Z) ] / mean_i [ 1 / (a w_i + b Z) ],     a, b the shares of draws and normal points.

Its variance falls with the distance between frame and target, so a good frame makes it exact: for a Gaussian target
all w are equal. The standard error comes from the normal points, which are independent, and from groups of chains.
"""

from typing import NamedTuple

import numpy as np
from jaxtyping import Float
from scipy.special import logsumexp

from steinmatch.adaptive.frames import FRESH, Cloud, cloud, log_weights, normal_points
from steinmatch.coordinates import AbstractFrame
from steinmatch.measures.weights import Layout, spread
from steinmatch.targets import Evaluations

FIRST, MOST = 512, 32768  # normal points
_GOOD = 0.01  # standard error of log Z at which no more are asked for


class Evidence(NamedTuple):
    """log Z of the density as it is given, constants included, and the standard error of log Z."""

    estimate: float
    error: float


def bridge(
    normal: Float[np.ndarray, " m"], drawn: Float[np.ndarray, " n"], layout: Layout, steps: int = 100
) -> Evidence:
    """log Z from log w at normal points and at draws, the latter in the order of `layout`."""
    m, n = len(normal), len(drawn)
    centre = float(np.median(drawn))
    log_a, log_b = np.log(n / (n + m)), np.log(m / (n + m))
    normal, drawn = np.where(np.isfinite(normal), normal, -np.inf) - centre, drawn - centre
    log_z = 0.0
    top, under = np.zeros(m), np.zeros(n)
    if not (np.isfinite(normal).any() and np.isfinite(drawn).all()):
        return Evidence(centre, np.inf)
    for _ in range(steps):
        top = normal - np.logaddexp(log_a + normal, log_b + log_z)
        under = -np.logaddexp(log_a + drawn, log_b + log_z)
        following = float(np.asarray(logsumexp(top)) - np.asarray(logsumexp(under)) + np.log(n / m))
        done = abs(following - log_z) < 1e-10
        log_z = following
        if done:
            break
    ratio = np.exp(top - np.asarray(logsumexp(top)) + np.log(m))
    ours = spread(np.exp(under - np.asarray(logsumexp(under)) + np.log(n))[:, None], layout).error[0]
    return Evidence(log_z + centre, float(np.hypot(np.std(ratio) / np.sqrt(m), ours)))


def evidence(evaluate: Evaluations, frame: AbstractFrame, draws: Cloud, layout: Layout, seed: int) -> Evidence:
    """Bridge sampling with as many normal points as the error asks for, at most as many as would double the work."""
    d = draws.z.shape[1]
    constant = 0.5 * d * np.log(2.0 * np.pi)
    rng = np.random.default_rng([seed % 2**32, 7])
    weights = np.zeros(0)
    drawn, wanted = log_weights(draws) + constant, FIRST
    while True:
        fresh = cloud(evaluate, frame, rng.normal(size=(wanted - len(weights), d)))
        weights = np.concatenate([weights, log_weights(fresh) + constant])
        found = bridge(weights, drawn, layout)
        wanted *= 2
        if found.error <= _GOOD or wanted > MOST or wanted > max(4 * FIRST, 8 * len(drawn)):
            return found


def evidence_bound(evaluate: Evaluations, frame: AbstractFrame, seed: int) -> Evidence:
    """E_q[log p - log q], q the frame's density: below log Z by the divergence of q from the posterior."""
    fresh = cloud(evaluate, frame, normal_points(FRESH, evaluate.target.dim, seed, antithetic=False))
    logs = log_weights(fresh) + 0.5 * evaluate.target.dim * np.log(2.0 * np.pi)
    return Evidence(float(np.mean(logs)), float(np.std(logs) / np.sqrt(len(logs))))


def in_all(parts: list[Evidence]) -> Evidence:
    """The evidence of disjoint parts together."""
    logs = np.array([part.estimate for part in parts])
    total = float(np.asarray(logsumexp(logs)))
    return Evidence(total, float(np.linalg.norm(np.exp(logs - total) * [part.error for part in parts])))
