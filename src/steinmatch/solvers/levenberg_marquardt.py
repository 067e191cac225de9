"""Levenberg-Marquardt on the fixed point equations F(z) = 0, to machine precision.

A step solves for the smallest change of the whitened particles, dz = -J^T (J J^T + lambda I)^{-1} F. It is written by
hand because the libraries' least-squares solvers do not serve: optimistix.LevenbergMarquardt differentiates through
the whole batch (n times the work of `dense_jacobian`) for the least-squares step, not the least change; and lineax.CG
measures each entry of its residual against that entry of F, too strict for a solve that is inexact on purpose.

What was measured (2 cores, float64, d = 100, LinearRandom, n = m = 250, so 25,000 equations):

- conjugate gradients on J J^T + lambda I, unpreconditioned in whitened coordinates with rows divided by the features'
  spread (a diagonal preconditioner): 10 steps and 12 s to a residual of 1e-15 at condition number 10, 11 steps and 16 s
  to 5e-14 at 1000;
- with a Kronecker preconditioner (Phi^T Phi / n) x I on top: stalls at 1e-2, since J J^T is singular where it is not;
  with the gradients' Gram matrix added it takes half of the iterations while lambda is large, and twice as many after.
- with seven dampings at once from one Krylov space (multi-shift conjugate gradients), so that no trial fails: a tenth
  sooner on these, and 5e-5 after 71 s instead of 84 s on the paper's RBM with m = n = 200, whose fixed points lie in a
  long flat valley; not worth its code;
- with a factor of J J^T in single precision, where conjugate gradients have become slow (`preconditioner`): what solves
  the RBM, from 4e-4 to 4e-6 in three minutes. Sooner, it costs more than it saves.

For full-rank kernels F is the velocity, and the fixed points lie in long curved valleys with many nearly neutral
directions. Plain Levenberg-Marquardt and implicit Euler steps (pseudo-transient continuation) were left between 1e-4
and 1e-7. Geodesic acceleration, a second-order correction from one more residual, got to between 1e-7 and 1e-13. Where
it ends in a valley without a fixed point, the particles are shaken a little and the solve goes on.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from steinmatch._checks import positive_integer, positive_number
from steinmatch.coordinates import AffineMap
from steinmatch.kernels import AbstractKernel
from steinmatch.solvers.base import AbstractStepSolver, Budget, Counts, Iterate, Problem, coloured, whitened, whitening
from steinmatch.solvers.fixed_point import Equations, equations_at, largest_residual, scores_in, slope_cost
from steinmatch.solvers.preconditioner import Factor
from steinmatch.solvers.rules import Damping, Effort, Patience
from steinmatch.solvers.trials import (
    dense_trial,
    jacobian_and_gram,
    krylov_trial,
    preconditioned_trial,
    score_slopes,
)
from steinmatch.targets import AbstractTarget


@dataclasses.dataclass(frozen=True)
class _Memory:
    """What a solve keeps between steps."""

    z: Array
    scores: Array
    frame: AffineMap
    damping: float
    rounds: int  # bandwidths held so far
    shakes: int
    inner: int  # conjugate gradient iterations allowed at present
    residuals: tuple[float, ...]  # of the steps since the bandwidth was last held or the particles shaken
    factored: bool | None = False  # conjugate gradients have become slow: precondition them; None: cannot be
    factor: Factor | None = None
    fresh: int = 0  # inner iterations of the factor's first step


def _checked(check: Callable[[Any, str, str], Any], name: str) -> Callable[[Any], Any]:
    return lambda value: check(value, name, "LevenbergMarquardt")


class LevenbergMarquardt(AbstractStepSolver):
    """The fixed point, solved: G = 0 for feature kernels, V = 0 for full-rank ones and for more features than n.

    **Arguments:**

    - `tol`: done when the largest entry of the scaled residual is below this.
    - `n_steps`: the most steps.
    - `dense_limit`: with at most this many equations the Jacobian is a matrix and its systems are factorised; above,
      they are solved by conjugate gradients with Jacobian products alone. The answer is the same.
    - `factor_limit`: with at most this many equations, conjugate gradients that have become slow are preconditioned by
      a factor of J J^T in single precision, 4 bytes for the square of their number.
    - `inner_steps`: the most conjugate gradient iterations of one step. It starts with fewer, and is allowed more where
      steps with fewer do not lower the residual well.
    - `rounds`: the most times that the bandwidth is held anew at its rule's value, until both stand still.
    - `shakes`: how often a solve that has stalled is shaken and goes on (velocity form only).
    - `damping`, `patience`, `effort`: what it goes by (`solvers.rules`).
    """

    tol: float = eqx.field(static=True, default=1e-10, converter=_checked(positive_number, "tol"))
    n_steps: int = eqx.field(static=True, default=2000, converter=_checked(positive_integer, "n_steps"))
    dense_limit: int = eqx.field(static=True, default=4000, converter=int)
    factor_limit: int = eqx.field(static=True, default=25_000, converter=int)
    inner_steps: int = eqx.field(static=True, default=3000, converter=_checked(positive_integer, "inner_steps"))
    rounds: int = eqx.field(static=True, default=10, converter=_checked(positive_integer, "rounds"))
    shakes: int = eqx.field(static=True, default=30, converter=int)
    damping: Damping = eqx.field(static=True, default=Damping())
    patience: Patience = eqx.field(static=True, default=Patience())
    effort: Effort = eqx.field(static=True, default=Effort())

    def init(self, problem: Problem, particles: Float[Array, "n d"]) -> Iterate:
        frame = problem.frame
        if frame is None:
            frame, whitened_particles = whitening(particles, problem.weights)
        else:
            whitened_particles = whitened(frame, particles)
        n = particles.shape[0]
        z, scores, pulled = _finite_start(problem.target, frame, whitened_particles)
        kernel, residual, row = _open(problem, frame, z, scores)
        memory = _Memory(
            z, scores, frame, self._first_damping(kernel, n, z.shape[1]), 1, 0, self.effort.first, (float(residual),)
        )
        return self._iterate(
            coloured(frame, z),
            kernel,
            float(residual),
            memory,
            Counts(gradients=n, nonfinite=pulled),
            row,
        )

    def step(self, problem: Problem, iterate: Iterate, budget: Budget) -> Iterate:
        memory: _Memory = iterate.memory
        n, d = memory.z.shape
        equations = _equations(iterate.kernel, memory.z, problem.weights, memory.frame)
        counts = iterate.counts + Counts(0, *slope_cost(problem.target, n, d))
        damping, inner = memory.damping, min(memory.inner, self.inner_steps)
        dense = self._is_dense(iterate.kernel, n, d)
        at = (problem.target, equations, memory.z, memory.scores)
        system: Any = (jacobian_and_gram if dense else score_slopes)(*at)
        factored, factor, fresh = memory.factored, memory.factor, memory.fresh
        if factored and factor is None:
            factor, fresh = _factorised(equations, memory, system, damping), 0
            factored = True if factor is not None else None
        # Once below tol, one more trial at a time, for as long as each still gains a digit.
        for _ in range(1 if memory.residuals[-1] <= self.tol else self.patience.trials):
            trial = _trial(at, system, dense, factor, damping, inner)
            z, scores, before, after, residual, iterations = trial
            counts += Counts(gradients=2 * n, nonfinite=int(not np.isfinite(after)))
            if float(after) < float(before):
                break
            damping = self.damping.raised(damping, dense or factor is not None)
        else:
            return self._stalled(problem, iterate, memory, counts)
        if factor is not None:
            fresh = fresh or int(iterations)
            factor = None if self.effort.is_stale(int(iterations), fresh) else factor
        elif int(iterations) >= inner and float(after) > self.effort.slow * float(before):
            few = equations.scale is not None and equations.scale.shape[0] * d <= self.factor_limit
            factored = True if factored is False and few and inner >= self.effort.slow_inner else factored
            inner = min(2 * inner, self.inner_steps)
        failed = damping > memory.damping and not dense
        lowered = self.damping.after(damping, float(after) / float(before), failed)
        residuals = (*memory.residuals, float(residual))
        found = {"z": z, "scores": scores, "damping": lowered, "inner": inner, "residuals": residuals}
        following = dataclasses.replace(memory, **found, factored=factored, factor=factor, fresh=fresh)
        row = _row(iterate.kernel, memory.frame, z)
        moved = coloured(memory.frame, z)
        following_iterate = self._iterate(
            moved, iterate.kernel, float(residual), following, counts + Counts(steps=1), row
        )
        if self.patience.done(residuals, self.tol):
            return self._readapted(problem, following_iterate, following)
        if self.patience.stalled(residuals):
            return self._stalled(problem, following_iterate, following, following_iterate.counts)
        if following_iterate.counts.steps >= self.n_steps:
            reason = f"the residual was still {residuals[-1]:.1e}, above tol={self.tol:.0e}, after {self.n_steps} steps"
            return dataclasses.replace(following_iterate, reason=reason)
        return following_iterate

    def _is_dense(self, kernel: AbstractKernel, n: int, d: int) -> bool:
        m = kernel.n_features(d)
        equations = d * (n if m is None or m > n else m)
        return equations <= self.dense_limit and equations * n * d <= 10**8

    def _first_damping(self, kernel: AbstractKernel, n: int, d: int) -> float:
        return self.damping.first(self._is_dense(kernel, n, d))

    def _iterate(
        self,
        particles: Array,
        kernel: AbstractKernel,
        residual: float,
        memory: _Memory,
        counts: Counts,
        row: Any,
    ) -> Iterate:
        row = np.asarray(row)
        converged = residual <= self.tol
        return Iterate(
            particles=particles,
            kernel=kernel,
            residual=residual,
            counts=counts,
            converged=converged,
            reason=f"the scaled residual is below tol={self.tol:.0e}" if converged and counts.steps == 0 else "",
            frame=memory.frame,
            history={
                "residual": np.array([residual]),
                "damping": np.array([memory.damping]),
                "bandwidth": row[:1],
                "spread": row[1:],
            },
            memory=memory,
        )

    def _readapted(self, problem: Problem, iterate: Iterate, memory: _Memory) -> Iterate:
        """Solved at the held bandwidth: done if the rule agrees with it, else held anew and on."""
        kernel, residual, _ = _open(problem, memory.frame, memory.z, memory.scores)
        held, ruled = _bandwidths(problem, iterate.kernel, memory)
        if np.isnan(held) or abs(ruled / held - 1.0) <= self.patience.bandwidth or memory.rounds >= self.rounds:
            note = "" if np.isnan(held) else f"; held bandwidth {held:.4g}, its rule now says {ruled:.4g}"
            return dataclasses.replace(iterate, reason=f"the scaled residual is below tol={self.tol:.0e}{note}")
        if memory.rounds >= self.patience.swings:
            kernel = jax.tree.map(_halfway, iterate.kernel, kernel)
            residual = _residual(kernel, problem.weights, memory.frame, memory.z, memory.scores)
        again = dataclasses.replace(memory, damping=1e-6, rounds=memory.rounds + 1, residuals=(float(residual),))
        return dataclasses.replace(iterate, kernel=kernel, residual=float(residual), converged=False, memory=again)

    def _stalled(self, problem: Problem, iterate: Iterate, memory: _Memory, counts: Counts) -> Iterate:
        """No more progress: at rounding level, or in a valley without a fixed point, out of which it may be shaken."""
        iterate = dataclasses.replace(iterate, counts=counts, history={})
        if memory.residuals[-1] <= self.tol:
            return self._readapted(problem, iterate, memory)
        m = iterate.kernel.n_features(memory.z.shape[1])
        velocity_form = m is None or m > memory.z.shape[0]
        held, ruled = _bandwidths(problem, iterate.kernel, memory)
        patience = self.patience
        near = memory.residuals[-1] <= patience.near and not abs(ruled / held - 1.0) > patience.near_bandwidth
        if velocity_form and not near and memory.shakes < self.shakes:
            noise = jax.random.normal(jax.random.key(memory.shakes), memory.z.shape, jnp.float64)
            z, scores, _ = _finite_start(problem.target, memory.frame, memory.z + patience.shake * noise)
            kernel, residual, _ = _open(problem, memory.frame, z, scores)
            damping = self._first_damping(kernel, *z.shape)
            again = _Memory(
                z, scores, memory.frame, damping, memory.rounds, memory.shakes + 1, memory.inner, (float(residual),)
            )
            return dataclasses.replace(
                iterate,
                particles=coloured(memory.frame, z),
                kernel=kernel,
                residual=float(residual),
                counts=counts + Counts(gradients=z.shape[0]),
                memory=again,
            )
        reason = (
            f"stagnated at a scaled residual of {memory.residuals[-1]:.1e}, above tol={self.tol:.0e}. "
            "Likely (a) these features ask for more than this many particles can give: use more particles or fewer "
            "features; (b) the start was poor: run Affine() or Descent() first; (c) the target is not smooth"
        )
        return dataclasses.replace(iterate, reason=reason)


def _bandwidths(problem: Problem, kernel: AbstractKernel, memory: _Memory) -> tuple[float, float]:
    """The held bandwidth, and the one that its rule gives for the present particles."""
    _, _, row = _open(problem, memory.frame, memory.z, memory.scores)
    return float(kernel.length_scale()), float(np.asarray(row)[0])


def _trial(at: tuple, system: Any, dense: bool, factor: Factor | None, damping: float, inner: int) -> tuple:
    """One damped step: by the factor of an earlier Jacobian, by the Jacobian itself, or by conjugate gradients."""
    target, equations, z, scores = at
    strength = np.asarray(damping)  # an array: a number would be compiled in
    if factor is not None:
        return preconditioned_trial(target, equations, z, scores, system, factor, damping, inner)
    if dense:
        return dense_trial(target, equations, z, scores, system, strength)
    return krylov_trial(target, equations, z, scores, system, strength, np.asarray(inner))


def _factorised(equations: Equations, memory: _Memory, slopes: Array, damping: float) -> Factor | None:
    """A factor for dampings from a third of the present one; none where rounding makes the matrix indefinite."""
    try:
        return Factor(equations, memory.z, memory.scores, slopes, damping / 3.0)
    except np.linalg.LinAlgError:
        return None


def _finite_start(target: AbstractTarget, frame: AffineMap, z: Array) -> tuple[Array, Array, int]:
    """z and its scores, particles with non-finite scores pulled towards the centre; how many those were."""
    z, scores, pulled = _pull_in(target, frame, z)
    return z, scores, int(pulled)


@eqx.filter_jit
def _pull_in(target: AbstractTarget, frame: AffineMap, z: Array) -> tuple[Array, Array, Array]:
    def bad(scores: Array) -> Array:
        return ~jnp.all(jnp.isfinite(scores), axis=1)

    def unfinished(state: tuple) -> Array:
        return jnp.any(bad(state[1])) & (state[2] < 40)

    def halve(state: tuple) -> tuple:
        z, scores, rounds = state
        z = jnp.where(bad(scores)[:, None], 0.7 * z, z)
        return z, scores_in(target, frame, z), rounds + 1

    scores = scores_in(target, frame, z)
    z, final, _ = jax.lax.while_loop(unfinished, halve, (z, scores, 0))
    return z, final, jnp.sum(bad(scores))


@eqx.filter_jit
def _open(
    problem: Problem, frame: AffineMap, z: Array, scores: Array
) -> tuple[AbstractKernel, Array, Float[Array, " 2"]]:
    """The kernel held at z, its largest residual there, and the history's (bandwidth, spread)."""
    kernel = problem.kernel.hold(frame.colour(z))
    equations = equations_at(kernel, z, problem.weights, frame)
    return kernel, largest_residual(equations, z, scores), _row(kernel, frame, z)


@eqx.filter_jit
def _row(kernel: AbstractKernel, frame: AffineMap, z: Array) -> Float[Array, " 2"]:
    spread = jnp.sqrt(jnp.mean(jnp.var(frame.colour(z), axis=0)))
    return jnp.stack([jnp.asarray(kernel.length_scale(), jnp.float64), spread])


@eqx.filter_jit
def _residual(kernel: AbstractKernel, weights: Array, frame: AffineMap, z: Array, scores: Array) -> Array:
    return largest_residual(equations_at(kernel, z, weights, frame), z, scores)


def _halfway(old: Any, new: Any) -> Any:
    return 0.5 * (old + new) if eqx.is_inexact_array(new) else new


_equations = eqx.filter_jit(equations_at)
