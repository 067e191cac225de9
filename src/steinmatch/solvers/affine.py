"""The affine phase: particles x = mu + L z with z fixed, and mu, L such that the linear-kernel equations hold.

With mean z = 0 and mean z z^T = I, the fixed point equations of the linear kernel are E[s] = 0 and E[z s^T] L = -I.
They are the stationary points of the sample-average evidence bound with z held fixed,

    B(mu, L) = mean_i log p(mu + L z_i) + log |det L|,

which serves as the merit function: a step is taken only if it raises B. It does not depend on the mode, which in a
hierarchical model lies at infinity. In whitened coordinates the curvature of -log p, averaged over the particles, is
M = -sym(E[z s^T] L), and the steps L <- L M^{-t/2}, mu <- mu + t L M^{-1} L^T E[s] are Newton's for a Gaussian target:
exact at t = 1. Eigenvalues of M are taken by their absolute values and clipped, so that indefinite curvature does no
harm; t is halved until B rises. A bound of -inf or nan is no rise, so non-finite scores only shrink the step.

First L is diagonal, from several starts, of which the best bound goes on; then L is full.
"""

import dataclasses
import functools
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from steinmatch._checks import positive_integer, positive_number
from steinmatch.kernels import AffineMap
from steinmatch.solvers.base import AbstractStepSolver, Budget, Iterate, Problem, whitening
from steinmatch.svgd import scaled_residual_at
from steinmatch.targets import AbstractTarget, scores_at

_CLIP = 16.0  # a step changes a scale by at most the root of this, and by more only where the bound goes on rising
_HALVINGS = 12
_START_SCALES = (1.0, 0.1, 10.0, 0.01)
_NO_GAINS: tuple[float, ...] = ()
_START_STEPS = 4  # diagonal steps of each start before the best one is chosen


class _Bound(NamedTuple):
    """The bound and its derivatives at (mu, L), in whitened coordinates."""

    value: Array  # B; nan where there is no log density
    gradient: Array  # L^T E[s]
    curvature: Array  # M = -sym(E[z s^T] L)


@dataclasses.dataclass(frozen=True)
class _Memory:
    z: Array  # (k, d), mean 0 and covariance I: the bound's points
    own: Array  # (n, d), the particles in the same coordinates; z itself where n > d
    frame: AffineMap
    bound: _Bound
    diagonal: bool
    length: float
    gains: tuple[float, ...]


class Affine(AbstractStepSolver):
    """mu and L of x = mu + L z, for any target; after it the solvers work in whitened coordinates.

    **Arguments:**

    - `tol`: done when the largest entry of E[s]^T L and of E[z s^T] L + I (symmetric part) is below this.
    - `n_steps`: the most steps.

    The z are the whitened starting particles where n > d, so that for a Gaussian target the particles then have its
    mean and covariance exactly; with n <= d they are 2 d + 2 antithetic points of its own.
    """

    tol: float = eqx.field(static=True)
    n_steps: int = eqx.field(static=True)

    def __init__(self, tol: float = 1e-9, n_steps: int = 200):
        self.tol = positive_number(tol, "tol", "Affine")
        self.n_steps = positive_integer(n_steps, "n_steps", "Affine")

    def init(self, problem: Problem, particles: Float[Array, "n d"]) -> Iterate:
        n, d = particles.shape
        start, own = whitening(particles, problem.weights)
        z = own if n > d else _antithetic_points(2 * d + 2, d)
        sd = np.sqrt(np.sum(np.asarray(start.root) ** 2, axis=1))
        n_gradients = 0
        candidates = []
        for scale in _START_SCALES:
            frame = AffineMap(start.shift, jnp.asarray(np.diag(scale * sd)))
            memory = _Memory(z, own, frame, _bound(problem.target, frame, z), True, 1.0, _NO_GAINS)
            n_gradients += z.shape[0]
            for _ in range(_START_STEPS):
                if not _usable(memory.bound):
                    break
                memory, spent = _step(problem.target, memory)
                n_gradients += spent
            candidates.append(memory)
        usable = [memory for memory in candidates if _usable(memory.bound)]
        best = max(usable, key=_merit) if usable else candidates[0]
        reason = "" if usable else "the log density or its gradient is not finite around any of the starts: give init="
        return self._iterate(problem, best, Iterate(particles, problem.kernel, np.inf), n_gradients, reason)

    def step(self, problem: Problem, iterate: Iterate, budget: Budget) -> Iterate:
        memory: _Memory = iterate.memory
        following, spent = _step(problem.target, memory)
        error = _error(following.bound, following.diagonal)
        reason, converged = "", False
        stalled = following.length == 0.0 or (len(following.gains) >= 8 and max(following.gains[-8:]) < 1e-10)
        if memory.diagonal:
            # A diagonal L only prepares the full one: it ends when the bound rises slowly.
            if error <= self.tol or stalled or len(following.gains) >= 40 or min(following.gains) < 0.02:
                full = memory.frame.shift.shape[0] > 1
                following = dataclasses.replace(following, diagonal=not full, length=1.0, gains=_NO_GAINS)
                converged = not full and error <= self.tol
                reason = "" if full else self._closing(error)
        elif error <= self.tol or stalled:
            converged, reason = error <= self.tol, self._closing(error)
        if not reason and iterate.n_steps + 1 >= self.n_steps:
            reason = f"the affine equations were still off by {error:.1e} after n_steps={self.n_steps} steps"
        return self._iterate(problem, following, iterate, spent, reason, converged, steps=1)

    def _closing(self, error: float) -> str:
        if error <= self.tol:
            return f"the affine equations hold to {self.tol:.0e}"
        return f"the evidence bound rises no more; the affine equations are off by {error:.1e}"

    def _iterate(
        self,
        problem: Problem,
        memory: _Memory,
        past: Iterate,
        gradients: int,
        reason: str,
        converged: bool = False,
        steps: int = 0,
    ) -> Iterate:
        kernel = problem.kernel.reframe(memory.frame)
        particles, held, residual = _report(problem.target, kernel, memory.own, problem.weights, memory.frame)
        return Iterate(
            particles=particles,
            kernel=held,
            residual=float(residual),
            n_steps=past.n_steps + steps,
            n_gradients=past.n_gradients + gradients,
            converged=converged,
            reason=reason,
            frame=memory.frame,
            history={"residual": np.array([float(residual)]), "bound": np.array([float(memory.bound.value)])},
            memory=memory,
        )


@eqx.filter_jit
def _report(target: AbstractTarget, kernel: Any, own: Array, weights: Array, frame: AffineMap) -> tuple:
    """The particles, the held kernel and its largest scaled residual."""
    particles = frame.colour(own)
    held = kernel.hold(particles)
    residual = scaled_residual_at(held, particles, scores_at(target, particles), weights, frame.root)
    return particles, held, jnp.max(jnp.abs(residual))


@functools.partial(jax.jit, static_argnums=(0, 1))
def _antithetic_points(n: int, d: int) -> Float[Array, "n d"]:
    """n points z and -z with mean 0 and covariance I exactly, from a fixed key."""
    half = jax.random.normal(jax.random.key(0), (n // 2, d), jnp.float64)
    points = jnp.concatenate([half, -half])
    return AffineMap(jnp.zeros(d), jnp.linalg.cholesky(points.T @ points / n)).whiten(points)


@eqx.filter_jit
def _bound(target: AbstractTarget, frame: AffineMap, z: Array) -> _Bound:
    particles = frame.colour(z)
    if target.log_density is None:
        value = jnp.nan * jnp.zeros(())
        scores = scores_at(target, particles)
    else:
        value = jnp.mean(jax.vmap(target.log_density)(particles))
        scores = scores_at(target, particles)
    value = value + jnp.sum(jnp.log(jnp.abs(jnp.diagonal(frame.root))))
    product = z.T @ scores @ frame.root / z.shape[0]
    return _Bound(value, frame.root.T @ jnp.mean(scores, axis=0), -0.5 * (product + product.T))


def _usable(bound: _Bound) -> bool:
    return bool(np.isfinite(bound.gradient).all() and np.isfinite(bound.curvature).all()) and not np.isposinf(
        float(bound.value)
    )


def _merit(memory: _Memory) -> float:
    """The bound; without a log density, how nearly the equations hold."""
    value = float(memory.bound.value)
    return -_error(memory.bound, memory.diagonal) if np.isnan(value) else value


def _error(bound: _Bound, diagonal: bool) -> float:
    """By how much the affine equations fail."""
    curvature = np.asarray(bound.curvature)
    off = np.diagonal(curvature) - 1.0 if diagonal else curvature - np.eye(len(curvature))
    return float(max(np.abs(bound.gradient).max(), np.abs(off).max()))


@eqx.filter_jit
def _moved(frame: AffineMap, bound: _Bound, length: Any, diagonal: Any) -> tuple[AffineMap, Array, Array, Array]:
    """The frame after a step of this length, the rotation Q of z that keeps L triangular (x = L Q^T z), and the step
    itself (shift, log of the stretch) in the new coordinates.
    """
    curvature = jnp.where(diagonal, jnp.diag(jnp.diagonal(bound.curvature)), bound.curvature)
    values, vectors = jnp.linalg.eigh(curvature)
    values = jnp.clip(jnp.abs(values), 1.0 / _CLIP, _CLIP)
    shift = vectors @ ((vectors.T @ bound.gradient) / values)
    # A step far outside of the particles' own spread is only trusted for its direction.
    shift = shift * jnp.minimum(1.0, 3.0 * np.sqrt(shift.shape[0]) / jnp.linalg.norm(shift))
    log_scale = vectors @ (-0.5 * jnp.log(values)[:, None] * vectors.T)
    stretch = vectors @ (values[:, None] ** (-0.5 * length) * vectors.T)
    rotation, upper = jnp.linalg.qr((frame.root @ stretch).T)
    signs = jnp.where(jnp.diagonal(upper) < 0.0, -1.0, 1.0)
    rotation, root = rotation * signs[None, :], (upper * signs[:, None]).T
    moved = AffineMap(frame.shift + length * (frame.root @ shift), root)
    return moved, rotation, rotation.T @ shift, rotation.T @ log_scale @ rotation


@jax.jit
def _rotated(z: Array, rotation: Array) -> Array:
    return z @ rotation


def _step(target: AbstractTarget, memory: _Memory) -> tuple[_Memory, int]:
    """One step, halved until the bound rises; the gradients spent. Length 0 where no step rises."""
    length, k = min(1.0, 2.0 * memory.length), memory.z.shape[0]
    for tries in range(1, _HALVINGS + 1):
        frame, rotation, shift, log_scale = _moved(
            memory.frame, memory.bound, np.asarray(length), np.asarray(memory.diagonal)
        )
        z = _rotated(memory.z, rotation)
        bound = _bound(target, frame, z)
        gain = _gain(memory.bound, bound, rotation, shift, log_scale, length)
        # Near the solution the rise of B drowns in its rounding; the equations themselves then decide.
        rounding = 1e-12 * (1.0 + abs(float(np.nan_to_num(memory.bound.value))))
        closer = abs(gain) <= rounding and _error(bound, memory.diagonal) < _error(memory.bound, memory.diagonal)
        if _usable(bound) and (gain > rounding or closer):
            own = z if memory.own is memory.z else _rotated(memory.own, rotation)
            return _Memory(z, own, frame, bound, memory.diagonal, length, (*memory.gains, gain)), tries * k
        length *= 0.5
    return dataclasses.replace(memory, length=0.0, gains=(*memory.gains, 0.0)), _HALVINGS * k


def _gain(before: _Bound, after: _Bound, rotation: Array, shift: Array, log_scale: Array, length: float) -> float:
    """How much the bound rose; without a log density by the trapezoidal rule on its derivative along the step."""
    if not np.isnan(float(before.value)):
        return float(after.value) - float(before.value)

    def slope(bound: _Bound, shift: Array, log_scale: Array) -> float:
        d = log_scale.shape[0]
        return float(bound.gradient @ shift + jnp.sum((jnp.eye(d) - bound.curvature) * log_scale))

    old = slope(before, rotation @ shift, rotation @ log_scale @ rotation.T)
    return 0.5 * length * (old + slope(after, shift, log_scale))
