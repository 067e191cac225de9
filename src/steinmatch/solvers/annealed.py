"""Annealing along p_t ~ p0^(1 - t) p^t from a wide Gaussian p0, for targets with several modes.

Descent alone leaves as many particles in each mode as happened to fall there: between separated modes the score says
nothing about their masses. The log density does. So, where there is one, particles are drawn anew (systematic
resampling) by the ratio of successive p_t, a few at every temperature, and the descent steps spread the copies out.
"""

import dataclasses
import time
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float, PRNGKeyArray

from steinmatch._checks import positive_integer, positive_number
from steinmatch._faults import BudgetSpent, cause_of, until
from steinmatch.solvers.base import AbstractSolver, Budget, Counts, Iterate, Problem, Solution
from steinmatch.solvers.chain import Chain
from steinmatch.solvers.descent import Descent
from steinmatch.targets import Gaussian, Tempered, scores_at

_ADAGRAD = optax.adagrad(0.1)  # small: its first step at each temperature has this length, whatever the velocity
_TEMPERATURES_PER_CALL = 50
_MOST_STEPS = 10_000  # of one temperature, which is one compiled loop
_RESAMPLE_BELOW = 0.97  # of n: rarely enough that the noise of resampling does not add up


class Annealed(AbstractSolver):
    """p_t ~ p0^(1 - t) p^t from p0 = N(0, width^2 I) to p, some descent steps at each temperature, then a polish.

    **Arguments:**

    - `temperatures`: how many; the paper has 1000 of 20 steps each. Equally spaced in t, unless
    - `adaptive`: t is chosen so that the particles' effective sample size under the next p_t falls to `ess` of n (needs
      a log density); `temperatures` is then the most that are used.
    - `steps`: descent steps at each temperature, with the optax `rule`.
    - `width`: of p0.
    - `resample`: draw particles anew by the ratio of successive densities (needs a log density).
    - `polish`: the solver that finishes at t = 1; `Descent()` by default.
    """

    temperatures: int = eqx.field(static=True)
    steps: int = eqx.field(static=True)
    adaptive: bool = eqx.field(static=True)
    ess: float = eqx.field(static=True)
    width: float = eqx.field(static=True)
    resample: bool = eqx.field(static=True)
    rule: optax.GradientTransformation = eqx.field(static=True)
    polish: AbstractSolver

    def __init__(
        self,
        temperatures: int = 1000,
        steps: int = 20,
        *,
        adaptive: bool = False,
        ess: float = 0.9998,
        width: float = 10.0,
        resample: bool = True,
        rule: optax.GradientTransformation | None = None,
        polish: AbstractSolver | None = None,
    ):
        self.temperatures = positive_integer(temperatures, "temperatures", "Annealed")
        self.steps = positive_integer(steps, "steps", "Annealed")
        if self.steps > _MOST_STEPS:
            raise ValueError(f"Annealed: steps={steps}: at most {_MOST_STEPS:,} a temperature; use more temperatures.")
        self.width = positive_number(width, "width", "Annealed")
        if not 0.0 < ess < 1.0:
            raise ValueError(f"Annealed: ess must lie between 0 and 1, got {ess!r}.")
        self.adaptive, self.ess, self.resample = adaptive, ess, resample
        self.rule = _ADAGRAD if rule is None else rule
        self.polish = Descent() if polish is None else polish

    def solve(
        self,
        problem: Problem,
        particles: Float[Array, "n d"],
        budget: Budget,
        report: Callable[[Iterate], None],
    ) -> Solution:
        n, d = particles.shape
        has_density = problem.target.log_density is not None
        if self.adaptive and not has_density:
            raise ValueError("Annealed: an adaptive schedule needs the target's log density; use adaptive=False.")
        first = Gaussian(np.zeros(d), self.width**2 * np.eye(d))
        path = Tempered(first, problem.target, jnp.zeros(()))
        resample = self.resample and has_density
        # The start of the path: the given particles, standardised and spread like p0.
        centred = particles - jnp.mean(particles, axis=0)[None, :]
        sd = jnp.std(centred, axis=0)
        spread = self.width * centred / jnp.where(sd > 0.0, sd, 1.0)[None, :]
        budget = dataclasses.replace(budget, started=time.monotonic())
        moved, table, interrupted = self._along(problem, path, spread, resample, budget, report)
        lost = not bool(jnp.all(jnp.isfinite(moved)))
        if lost:
            interrupted = "particles became non-finite in annealing: use a smaller step in rule="
            moved = particles
        taken = np.concatenate(table) if table else np.zeros((0, 2))
        taken = taken[taken[:, 1] > 0]
        annealing = Solution(
            particles=moved,
            kernel=problem.kernel.hold(moved),
            residual=np.inf,
            converged=False,
            reason=interrupted,
            counts=self._counts(n, len(taken)),
            frame=problem.frame,
            history={"temperature": taken[:, 0]},
            interrupted=bool(interrupted),
        )
        if lost:
            return annealing
        # The polish says so where the budget is spent: it then takes no step.
        return Chain(_Done(annealing), self.polish).solve(problem, moved, budget, report)

    def _counts(self, n: int, temperatures: int) -> Counts:
        return Counts(self.steps * temperatures, n * (self.steps + 1) * temperatures)

    def _along(
        self,
        problem: Problem,
        path: Tempered,
        particles: Float[Array, "n d"],
        resample: bool,
        budget: Budget,
        report: Callable[[Iterate], None],
    ) -> tuple[Array, list[np.ndarray], str]:
        """Particles taken along the path, the temperatures on the way, and what stopped them."""
        n = len(particles)
        state = (particles, jnp.zeros(()), jnp.zeros(n))  # particles, t, log weights
        table, key, done = [], jax.random.key(0), 0
        a_call = _TEMPERATURES_PER_CALL if budget.max_seconds is None else 1
        interrupted = ""
        try:
            with until(budget.deadline):
                while done < self.temperatures and float(state[1]) < 1.0:
                    if budget.spent(Iterate(state[0], problem.kernel, np.nan, self._counts(n, done))):
                        break
                    rounds = min(a_call, self.temperatures - done)
                    state, rows = _anneal(self, problem, path, state, jax.random.fold_in(key, done), resample, rounds)
                    done += rounds
                    table.append(np.asarray(rows))
                    report(Iterate(state[0], problem.kernel, np.nan, self._counts(n, done)))
        except (KeyboardInterrupt, BudgetSpent, jax.errors.JaxRuntimeError, ValueError) as error:
            cause = cause_of(error)
            if not isinstance(cause, KeyboardInterrupt | BudgetSpent):
                raise cause from None
            interrupted = "" if isinstance(cause, BudgetSpent) else "interrupted by the user during annealing"
        return state[0], table, interrupted


class _Done(AbstractSolver):
    """A solution that is already there, as the first link of a chain."""

    solution: Any = eqx.field(static=True)

    def solve(self, problem: Problem, particles: Any, budget: Budget, report: Any) -> Solution:
        return self.solution


@eqx.filter_jit
def _anneal(
    solver: Annealed,
    problem: Problem,
    path: Tempered,
    state: tuple[Array, Array, Array],
    key: PRNGKeyArray,
    resample: bool,
    rounds: int,
) -> tuple[tuple[Array, Array, Array], Float[Array, "rounds 2"]]:
    """`rounds` temperatures, compiled: the next t, resampling, descent steps at t. Idle once t = 1."""

    def log_ratio(particles: Array) -> Array:
        assert path.start.log_density is not None and path.end.log_density is not None
        ratios = jax.vmap(path.end.log_density)(particles) - jax.vmap(path.start.log_density)(particles)
        return jnp.where(jnp.isfinite(ratios), ratios, -jnp.inf)

    def one(state: tuple[Array, Array, Array], key: PRNGKeyArray) -> tuple[tuple[Array, Array, Array], Array]:
        particles, t, log_weights = state
        finished = t >= 1.0
        step = 1.0 / solver.temperatures
        if solver.adaptive:
            step = _next_step(log_ratio(particles), solver.ess, 1.0 - t)
        following = jnp.minimum(t + step, 1.0)
        following = jnp.where(following > 1.0 - 1e-9, 1.0, following)
        if resample:
            log_weights = log_weights + (following - t) * log_ratio(particles)
            wanted = (_relative_size(log_weights) < _RESAMPLE_BELOW) | (following >= 1.0)
            particles, log_weights = jax.lax.cond(
                wanted,
                lambda: (_resampled(key, particles, log_weights), jnp.zeros_like(log_weights)),
                lambda: (particles, log_weights),
            )
        target = Tempered(path.start, path.end, following)

        def descend(carry: tuple, _: None) -> tuple[tuple, None]:
            particles, rule_state = carry
            kernel = problem.kernel.hold(particles)
            velocity = kernel.velocity(particles, scores_at(target, particles), problem.weights)
            updates, rule_state = solver.rule.update(-velocity, rule_state, particles)
            return (optax.apply_updates(particles, updates), rule_state), None

        (moved, _), _ = jax.lax.scan(descend, (particles, solver.rule.init(particles)), None, length=solver.steps)
        row = jnp.stack([following, jnp.where(finished, 0.0, 1.0)])
        reached = (moved, following, log_weights)
        return jax.tree.map(lambda old, new: jnp.where(finished, old, new), state, reached), row

    return jax.lax.scan(one, state, jax.random.split(key, rounds))


def _next_step(ratios: Float[Array, " n"], ess: float, most: Array) -> Array:
    """The largest step in t that leaves the effective sample size at `ess` of n, by bisection."""

    def halve(_: Any, bracket: tuple[Array, Array]) -> tuple[Array, Array]:
        low, high = bracket
        middle = 0.5 * (low + high)
        enough = _relative_size(middle * ratios) >= ess
        return jnp.where(enough, middle, low), jnp.where(enough, high, middle)

    low, _ = jax.lax.fori_loop(0, 50, halve, (jnp.zeros(()), most))
    return jnp.where(_relative_size(most * ratios) >= ess, most, jnp.maximum(low, 1e-6))


def _relative_size(log_weights: Float[Array, " n"]) -> Array:
    """The effective sample size over n."""
    weights = jax.nn.softmax(log_weights)
    return 1.0 / (log_weights.shape[0] * jnp.sum(weights**2))


def _resampled(
    key: PRNGKeyArray, particles: Float[Array, "n d"], log_weights: Float[Array, " n"]
) -> Float[Array, "n d"]:
    """Systematic resampling; each further copy of a particle is moved by a third of the particles' spacing.

    In the order of a random projection, in which separated modes are contiguous: each mode then keeps its mass to
    within one particle.
    """
    n, d = particles.shape
    offset_key, noise_key, order_key = jax.random.split(key, 3)
    order = jnp.argsort(particles @ jax.random.normal(order_key, (d,), jnp.float64))
    particles, log_weights = particles[order], log_weights[order]
    positions = (jnp.arange(n, dtype=jnp.float64) + jax.random.uniform(offset_key, (), jnp.float64)) / n
    chosen = jnp.searchsorted(jnp.cumsum(jax.nn.softmax(log_weights)), positions)
    chosen = jnp.minimum(chosen, n - 1)
    repeated = jnp.concatenate([jnp.zeros(1, bool), chosen[1:] == chosen[:-1]])
    spacing = jnp.std(particles, axis=0) / n ** (1.0 / particles.shape[1])
    noise = 0.3 * spacing[None, :] * jax.random.normal(noise_key, particles.shape, jnp.float64)
    return particles[chosen] + jnp.where(repeated[:, None], noise, 0.0)
