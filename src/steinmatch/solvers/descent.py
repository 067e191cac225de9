"""SVGD as it is usually run: small steps along the velocity, with any optax rule."""

import time
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float

from steinmatch._checks import positive_integer, positive_number
from steinmatch.measures.velocity import scaled_residual_at
from steinmatch.solvers.base import AbstractStepSolver, Budget, Counts, Iterate, Problem
from steinmatch.targets import scores_at

_ADAGRAD = optax.adagrad(0.5)  # one object, so that all default descents share their compiled code
_HISTORY = ("velocity", "residual", "bandwidth", "spread")


class Descent(AbstractStepSolver):
    """x_i <- x_i + rule(v(x_i)), the bandwidth following its rule at every step.

    **Arguments:**

    - `rule`: any optax gradient transformation; Adagrad with step 0.5 by default.
    - `n_steps`: the most steps taken.
    - `rtol`: done when the root mean square velocity has fallen to this fraction of what it was at the start, ...
    - `atol`: ... or when the largest entry of the scaled residual is below this.
    - `chunk`: steps that are compiled into one loop; between chunks progress is shown and Ctrl-C heard.

    The history has one row a step: `velocity` (root mean square), `residual` (largest scaled entry), `bandwidth` (nan
    for kernels without one) and `spread` (root of the mean variance of the particles).
    """

    rule: optax.GradientTransformation = eqx.field(static=True)
    n_steps: int = eqx.field(static=True)
    rtol: float = eqx.field(static=True)
    atol: float = eqx.field(static=True)
    chunk: int = eqx.field(static=True)

    def __init__(
        self,
        rule: optax.GradientTransformation | None = None,
        n_steps: int = 2000,
        rtol: float = 1e-8,
        atol: float = 1e-10,
        chunk: int = 200,
    ):
        self.rule = _ADAGRAD if rule is None else rule
        if not (hasattr(self.rule, "init") and hasattr(self.rule, "update")):
            raise TypeError(f"Descent: rule must be an optax rule such as optax.adam(0.05), got {rule!r:.80}.")
        self.n_steps = positive_integer(n_steps, "n_steps", "Descent")
        self.chunk = positive_integer(chunk, "chunk", "Descent")
        self.rtol = positive_number(rtol, "rtol", "Descent")
        self.atol = positive_number(atol, "atol", "Descent")

    def init(self, problem: Problem, particles: Float[Array, "n d"]) -> Iterate:
        particles = jnp.asarray(particles)
        velocity, measures = _evaluate(problem, particles)
        return Iterate(
            particles=particles,
            kernel=_held(problem, particles),
            residual=float(measures[1]),
            counts=Counts(gradients=particles.shape[0]),
            frame=problem.frame,
            history=_as_history(np.asarray(measures)[None, :]),
            memory=(self.rule.init(particles), velocity, measures[0], 0.0),
        )

    def step(self, problem: Problem, iterate: Iterate, budget: Budget) -> Iterate:
        rule_state, velocity, first, seconds_a_step = iterate.memory
        n = iterate.particles.shape[0]
        steps = min(self.chunk, self.n_steps - iterate.counts.steps)
        left = budget.steps_left(iterate, n, seconds_a_step)
        steps = steps if left is None else min(steps, left)
        tolerances = (np.asarray(self.rtol * float(first)), np.asarray(self.atol))
        start = (iterate.particles, rule_state, velocity)
        began = time.monotonic()
        state, table, taken = _chunk(self.rule, self.chunk, problem, start, np.asarray(steps), tolerances)
        table = np.asarray(table)[: int(taken)]
        particles, rule_state, velocity = state
        converged, reason = False, ""
        if not np.isfinite(table).all(where=[True, True, False, True]):
            reason = "the particles became non-finite: the step size is too large for this target"
            particles, table = iterate.particles, table[:0]
        elif table[-1, 0] <= tolerances[0] or table[-1, 1] <= tolerances[1]:
            converged, reason = True, "the velocity is below its tolerance"
            if n > 1 and not table[-1, 3] > 0.0:
                converged, reason = False, "all particles are the same point: no kernel tells them apart"
        elif iterate.counts.steps + len(table) >= self.n_steps:
            reason = f"the velocity was still above its tolerance after n_steps={self.n_steps} steps"
        return Iterate(
            particles=particles,
            kernel=_held(problem, particles),
            residual=float(table[-1, 1]) if len(table) else iterate.residual,
            counts=iterate.counts + Counts(len(table), n * int(taken)),
            converged=converged,
            reason=reason,
            frame=problem.frame,
            history=_as_history(table),
            memory=(rule_state, velocity, first, (time.monotonic() - began) / max(len(table), 1)),
        )


def _as_history(table: np.ndarray) -> dict[str, np.ndarray]:
    return {name: table[:, i] for i, name in enumerate(_HISTORY)}


@eqx.filter_jit
def _held(problem: Problem, particles: Array):
    return problem.kernel.hold(particles)


def _measure(problem: Problem, particles: Array) -> tuple[Array, Array]:
    """The velocity, and the row (velocity, residual, bandwidth, spread) of the history."""
    kernel, scores = problem.kernel.hold(particles), scores_at(problem.target, particles)
    velocity = kernel.velocity(particles, scores, problem.weights)
    root = None if problem.frame is None else problem.frame.root
    residual = scaled_residual_at(kernel, particles, scores, problem.weights, root)
    mean = problem.weights @ particles
    variance = problem.weights @ (particles - mean[None, :]) ** 2
    row = [
        jnp.sqrt(jnp.mean(velocity**2)),
        jnp.max(jnp.abs(residual)),
        jnp.asarray(kernel.length_scale(), jnp.float64),
        jnp.sqrt(jnp.mean(variance)),
    ]
    return velocity, jnp.stack(row)


_evaluate = eqx.filter_jit(_measure)


@eqx.filter_jit
def _chunk(
    rule: optax.GradientTransformation,
    rows: int,
    problem: Problem,
    start: tuple,
    steps: Any,
    tolerances: tuple[Any, Any],
) -> tuple[tuple, Float[Array, "rows 4"], Array]:
    """Up to `steps` descent steps in one compiled loop that ends early at the tolerances or at non-finite values."""

    def going(carry: tuple) -> Array:
        _, _, taken, done = carry
        return (taken < steps) & ~done

    def body(carry: tuple) -> tuple:
        (particles, rule_state, velocity), table, taken, _ = carry
        updates, rule_state = rule.update(-velocity, rule_state, particles)
        particles = jnp.asarray(optax.apply_updates(particles, updates))
        velocity, row = _measure(problem, particles)
        done = (row[0] <= tolerances[0]) | (row[1] <= tolerances[1]) | ~jnp.isfinite(row[0] + row[3])
        return (particles, rule_state, velocity), table.at[taken].set(row), taken + 1, done

    carry = (start, jnp.zeros((rows, len(_HISTORY))), jnp.zeros((), steps.dtype), jnp.zeros((), bool))
    state, table, taken, _ = jax.lax.while_loop(going, body, carry)
    return state, table, taken
