"""Several modes: each has a frame, a walk and weights of its own; its share of the mass is its evidence.

Space is divided by the modes' affine frames, each point belonging to the normal of highest density there. The walk of a
mode is confined to its part, outside of which the density is taken as zero; its draws then stand for the target in that
part, and its evidence (by bridge sampling) for the part's mass:

    E f = sum_k share_k E_k f,    share_k = Z_k / sum_l Z_l.
"""

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from steinmatch._types import Scalar, Vector
from steinmatch.adaptive.evidence import Evidence
from steinmatch.adaptive.verdict import Error
from steinmatch.coordinates import AffineMap
from steinmatch.targets import AbstractTarget

SAME = 1.0  # sds a dimension's root: frames nearer than this are of one mode


class Mode(NamedTuple):
    """One mode of a target: its share of the mass, and the mean and sd of the constrained parameters there."""

    share: float
    error: float  # standard error of the share
    mean: Float[np.ndarray, " k"]
    sd: Float[np.ndarray, " k"]


class Confined(AbstractTarget):
    """A target within one mode's part of space, and zero elsewhere."""

    target: AbstractTarget
    shifts: Float[Array, "modes d"]
    inverses: Float[Array, "modes d d"]  # of the frames' roots
    log_dets: Float[Array, " modes"]
    own: Array

    def __init__(self, target: AbstractTarget, frames: list[AffineMap], own: int):
        roots = np.stack([np.asarray(frame.root) for frame in frames])
        self.target, self.own = target, jnp.asarray(own)
        self.shifts = jnp.asarray(np.stack([np.asarray(frame.shift) for frame in frames]))
        self.inverses = jnp.asarray(np.linalg.inv(roots))
        self.log_dets = jnp.asarray(np.sum(np.log(np.abs(np.diagonal(roots, axis1=1, axis2=2))), axis=1))

    @property
    def dim(self) -> int:
        return self.target.dim

    @property
    def names(self) -> tuple[str, ...] | None:
        return self.target.names

    @property
    def constrain(self) -> Callable | None:
        return self.target.constrain

    @property
    def differentiable(self) -> bool:
        return self.target.differentiable

    @property
    def log_density(self) -> Callable | None:
        return self._log_density

    def _log_density(self, x: Vector) -> Scalar:
        assert self.target.log_density is not None
        z = jnp.einsum("kij,kj->ki", self.inverses, x[None, :] - self.shifts)
        logs = -0.5 * jnp.sum(z**2, axis=1) - self.log_dets
        inside = logs[self.own] >= jnp.max(logs)
        return jnp.where(inside, self.target.log_density(x), -jnp.inf)

    def score(self, x: Vector) -> Vector:  # type: ignore[override]
        return self.target.score(x)


@dataclasses.dataclass(frozen=True)
class Part:
    """One mode on its way: the confined problem, and where its walk stands."""

    problem: Any
    iterate: Any
    found: AffineMap  # as the search left it


class Combined(NamedTuple):
    weights: list[np.ndarray]  # of all draws, mode by mode
    error: Error
    modes: tuple[Mode, ...]
    share_error: float  # the part of the largest error that comes from the shares


def combined(
    values: list[Float[np.ndarray, "_ k"]],
    weights: list[Float[np.ndarray, "_"]],
    errors: list[Error],
    evidences: list[Evidence],
) -> Combined:
    """Shares, weights and errors of all modes together.

    A relative change e of Z_k changes E f by share_k (E_k f - E f) e; errors of the modes' own moments count by their
    shares.
    """
    logs = np.array([found.estimate for found in evidences])
    # Where one mode cuts a pocket out of another, and less than a draw's mass, no draw tells of it.
    relative = np.hypot([found.error for found in evidences], [1.0 / len(v) for v in values])
    shares = np.exp(logs - logs.max())
    shares = shares / shares.sum()
    means = np.stack([w @ v for w, v in zip(weights, values, strict=True)])
    variances = np.stack([w @ (v - m) ** 2 for w, v, m in zip(weights, values, means, strict=True)])
    mean = shares @ means
    variance = shares @ (variances + (means - mean) ** 2)
    unit = np.where(variance > 0.0, np.sqrt(variance), 1.0)
    away, sds = (means - mean) / unit, np.sqrt(variances) / unit
    second = 0.5 * (sds**2 + away**2 - 1.0) * (variance > 0.0)
    own_mean = np.stack([found.mean for found in errors]) * sds
    own_sd = np.hypot(np.stack([found.sd for found in errors]) * sds**2, away * own_mean)
    by_share = [np.sqrt(np.sum((shares * relative)[:, None] ** 2 * part**2, axis=0)) for part in (away, second)]
    own = [np.sqrt(np.sum(shares[:, None] ** 2 * part**2, axis=0)) for part in (own_mean, own_sd)]
    error = Error(*(np.hypot(a, b) for a, b in zip(own, by_share, strict=True)))
    turn = (np.eye(len(shares)) - shares[None, :]) * relative[None, :]  # d log share_k by log Z_l, times its error
    share_errors = shares * np.sqrt(np.sum(turn**2, axis=1))
    modes = tuple(
        Mode(float(s), float(e), m, np.sqrt(v))
        for s, e, m, v in zip(shares, share_errors, means, variances, strict=True)
    )
    return Combined(
        [s * w for s, w in zip(shares, weights, strict=True)], error, modes, float(max(map(np.max, by_share)))
    )
