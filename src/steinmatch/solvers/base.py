"""One loop for all solvers: a solver says how a step is taken and when it is done; the loop does the rest.

The loop keeps the best particles, the history and the counts, watches the budget, shows progress, and turns Ctrl-C into
a result. A solve that fails is a result as well: `converged=False` and the reason.
"""

import abc
import dataclasses
import time
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import numpy as np
from jaxtyping import Array, Float

from steinmatch._faults import BudgetSpent, TargetError, cause_of, until
from steinmatch.coordinates import AffineMap
from steinmatch.kernels import AbstractKernel
from steinmatch.solvers.checkpoint import Checkpoint
from steinmatch.targets import AbstractTarget


class Problem(eqx.Module):
    """The fixed point equation: target, bound kernel, weights of the particles that sum to one.

    `frame` is the affine map x = mu + L z that an affine phase found: it makes the unknowns z and the residuals G L of
    the solvers scale-free, and never changes the kernel.
    """

    target: AbstractTarget
    kernel: AbstractKernel
    weights: Float[Array, " n"]
    frame: AffineMap | None = None


# Compiled once as they stand: called by themselves, each of their operations would be compiled on its own.
whitened = eqx.filter_jit(AffineMap.whiten)
coloured = eqx.filter_jit(AffineMap.colour)


@eqx.filter_jit
def whitening(particles: Float[Array, "n d"], weights: Float[Array, " n"]) -> tuple[AffineMap, Float[Array, "n d"]]:
    """The affine map of the particles' mean and covariance, and the particles in its coordinates."""
    frame = AffineMap.of_particles(particles, weights)
    return frame, frame.whiten(particles)


@dataclasses.dataclass(frozen=True)
class Counts:
    """What a solve has taken. Counts add up."""

    steps: int = 0
    gradients: int = 0  # score evaluations
    hvps: int = 0  # Hessian-vector products
    nonfinite: int = 0  # trials that met a non-finite score

    def __add__(self, other: "Counts") -> "Counts":
        return Counts(*(a + b for a, b in zip(dataclasses.astuple(self), dataclasses.astuple(other), strict=True)))

    @property
    def work(self) -> int:
        """Gradients, a Hessian-vector product being two."""
        return self.gradients + 2 * self.hvps


@dataclasses.dataclass(frozen=True)
class Iterate:
    """Where a solve stands after some steps."""

    particles: Any  # (n, d)
    kernel: AbstractKernel  # held at these particles
    residual: float  # largest entry of the scaled residual
    counts: Counts = Counts()
    converged: bool = False
    reason: str = ""  # why the solver ended; empty while it goes on
    frame: AffineMap | None = None
    history: dict[str, np.ndarray] = dataclasses.field(default_factory=dict)  # of the steps just taken
    memory: Any = None  # the solver's own
    weights: Any = None  # (n,), where the solver weighs its particles
    outcome: Any = None  # what the solver has to say beyond particles and weights
    latest: bool = False  # a later iterate is better, whatever its residual
    doing: str = ""  # what comes next, for those who wait


@dataclasses.dataclass(frozen=True)
class Solution:
    """What a solver returns: its best iterate, with the history of all steps."""

    particles: Any
    kernel: AbstractKernel
    residual: float
    converged: bool
    reason: str
    counts: Counts
    frame: AffineMap | None
    history: dict[str, np.ndarray]
    interrupted: bool = False  # by Ctrl-C
    weights: Any = None
    outcome: Any = None


@dataclasses.dataclass(frozen=True)
class Budget:
    """How much work a solve may do, None being no limit, and what earlier solvers of a chain have used of it."""

    max_steps: int | None = None
    max_seconds: float | None = None
    max_gradients: int | None = None
    used_steps: int = 0
    used_seconds: float = 0.0
    used_gradients: int = 0
    started: float = dataclasses.field(default_factory=time.monotonic)  # of the present solver
    checkpoint: Checkpoint | None = None

    def within(self, name: Any) -> "Budget":
        """The same budget for one of several solvers, whose checkpoints lie side by side."""
        if self.checkpoint is None:
            return self
        return dataclasses.replace(self, checkpoint=self.checkpoint.part(name))

    def exhausted(self, n_gradients: int) -> bool:
        """Whether time or gradients are used up, in the midst of a step."""
        seconds = self.used_seconds + time.monotonic() - self.started
        return (self.max_gradients is not None and self.used_gradients + n_gradients >= self.max_gradients) or (
            self.max_seconds is not None and seconds >= self.max_seconds
        )

    @property
    def deadline(self) -> float:
        """When the time is up, on the monotonic clock."""
        return np.inf if self.max_seconds is None else self.started + self.max_seconds - self.used_seconds

    def minus(self, solution: "Solution", seconds: float) -> "Budget":
        """The budget after a solve."""
        return dataclasses.replace(
            self,
            used_steps=self.used_steps + solution.counts.steps,
            used_seconds=self.used_seconds + seconds,
            used_gradients=self.used_gradients + solution.counts.work,
            started=time.monotonic(),
        )

    def steps_left(self, iterate: Iterate, gradients_a_step: int, seconds_a_step: float = 0.0) -> int | None:
        """How many steps of so many gradients and seconds there are left; None for no limit."""
        limits = []
        if self.max_steps is not None:
            limits.append(self.max_steps - self.used_steps - iterate.counts.steps)
        if self.max_gradients is not None:
            left = self.max_gradients - self.used_gradients - iterate.counts.work
            limits.append(max(1, -(-left // gradients_a_step)))
        if self.max_seconds is not None:
            seconds = self.max_seconds - self.used_seconds - (time.monotonic() - self.started)
            limits.append(max(1, int(seconds / seconds_a_step)) if seconds_a_step > 0.0 else 1)
        return min(limits, default=None)

    def spent(self, iterate: Iterate) -> str:
        """Which limit is reached, in words; empty while there is budget."""
        if self.max_steps is not None and self.used_steps + iterate.counts.steps >= self.max_steps:
            return f"stopped after max_steps={self.max_steps} steps"
        if self.max_gradients is not None and self.used_gradients + iterate.counts.work >= self.max_gradients:
            return f"stopped after max_gradients={self.max_gradients} gradients"
        if self.max_seconds is not None and self.used_seconds + time.monotonic() - self.started >= self.max_seconds:
            return f"stopped after max_seconds={self.max_seconds:g} seconds"
        return ""


class AbstractSolver(eqx.Module):
    """How a fixed point is reached."""

    @abc.abstractmethod
    def solve(
        self,
        problem: Problem,
        particles: Float[Array, "n d"],
        budget: Budget,
        report: Callable[[Iterate], None],
    ) -> Solution:
        """The best particles within the budget; `report` is told of every iterate."""


class AbstractStepSolver(AbstractSolver):
    """A solver in steps. Steps are compiled; a step may stand for many small ones."""

    def solve(
        self,
        problem: Problem,
        particles: Float[Array, "n d"],
        budget: Budget,
        report: Callable[[Iterate], None],
    ) -> Solution:
        return iterate_steps(self, problem, particles, budget, report)

    @abc.abstractmethod
    def init(self, problem: Problem, particles: Float[Array, "n d"]) -> Iterate:
        """The iterate before the first step."""

    @abc.abstractmethod
    def step(self, problem: Problem, iterate: Iterate, budget: Budget) -> Iterate:
        """The next iterate; with a `reason` where the solver ends by itself."""


def iterate_steps(
    solver: AbstractStepSolver,
    problem: Problem,
    particles: Float[Array, "n d"],
    budget: Budget,
    report: Callable[[Iterate], None],
) -> Solution:
    """Run the solver to its end, the end of the budget, or Ctrl-C."""
    budget = dataclasses.replace(budget, started=time.monotonic())
    iterate = best = Iterate(particles, problem.kernel, np.inf, weights=problem.weights)
    histories, interrupted = [], False
    try:
        with until(budget.deadline):
            kept = None if budget.checkpoint is None else budget.checkpoint.restored()
            if kept is None:
                iterate = best = solver.init(problem, particles)
                histories.append(iterate.history)
            else:
                iterate, best, histories = kept
            while not iterate.reason:
                spent = budget.spent(iterate)
                if spent:
                    iterate = dataclasses.replace(iterate, reason=spent)
                    break
                iterate = solver.step(problem, iterate, budget)
                histories.append(iterate.history)
                if not best.residual <= iterate.residual or iterate.converged or iterate.latest:
                    best = dataclasses.replace(iterate, memory=None)  # which may be large
                report(iterate)
                if budget.checkpoint is not None:
                    budget.checkpoint.keep((iterate, best, histories), bool(iterate.reason))
    except (KeyboardInterrupt, BudgetSpent, jax.errors.JaxRuntimeError, ValueError) as error:
        iterate, interrupted = _ended(error, iterate, budget, len(histories) > 1)
    reason = iterate.reason
    if best.counts.steps != iterate.counts.steps:
        reason += f"; the particles are those of step {best.counts.steps}, where the residual was least"
    return Solution(
        particles=best.particles,
        kernel=best.kernel,
        residual=best.residual,
        converged=best.converged,
        reason=reason,
        counts=iterate.counts,
        frame=best.frame,
        history=joined(histories),
        interrupted=interrupted,
        weights=best.weights,
        outcome=best.outcome,
    )


def _ended(error: BaseException, iterate: Iterate, budget: Budget, moved: bool) -> tuple[Iterate, bool]:
    """The last iterate of a solve that ends from within, and whether by Ctrl-C; other errors are raised again."""
    cause = cause_of(error)
    if isinstance(cause, KeyboardInterrupt):
        return dataclasses.replace(iterate, reason="interrupted by the user; the best particles so far"), True
    if isinstance(cause, BudgetSpent):
        most = max(cause.n_gradients, iterate.counts.gradients)
        counted = dataclasses.replace(iterate, counts=dataclasses.replace(iterate.counts, gradients=most))
        return dataclasses.replace(counted, reason=budget.spent(counted) or str(cause)), False
    if isinstance(cause, TargetError) and moved:
        return dataclasses.replace(iterate, reason=f"{cause}; the best particles so far"), False
    raise cause


def joined(histories: list[dict[str, np.ndarray]]) -> dict[str, np.ndarray]:
    """One history after another; a column that one of them lacks is nan there."""
    names = {name: None for history in histories for name in history}
    lengths = [max((len(column) for column in history.values()), default=0) for history in histories]
    parts = list(zip(histories, lengths, strict=True))
    return {name: np.concatenate([h.get(name, np.full(rows, np.nan)) for h, rows in parts]) for name in names}
