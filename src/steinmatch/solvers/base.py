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
import numpy as np
from jaxtyping import Array, Float

from steinmatch.kernels import AbstractKernel
from steinmatch.targets import AbstractTarget


class Problem(eqx.Module):
    """The fixed point equation: target, bound kernel, and weights of the particles that sum to one."""

    target: AbstractTarget
    kernel: AbstractKernel
    weights: Float[Array, " n"]


@dataclasses.dataclass(frozen=True)
class Iterate:
    """Where a solve stands after some steps."""

    particles: Any  # (n, d)
    kernel: AbstractKernel  # held at these particles
    residual: float  # largest entry of the scaled residual
    n_steps: int = 0
    n_gradients: int = 0
    n_hvps: int = 0
    converged: bool = False
    reason: str = ""  # why the solver ended; empty while it goes on
    history: dict[str, np.ndarray] = dataclasses.field(default_factory=dict)  # of the steps just taken
    memory: Any = None  # the solver's own


@dataclasses.dataclass(frozen=True)
class Solution:
    """What a solver returns: its best iterate, with the history of all steps."""

    particles: Any
    kernel: AbstractKernel
    residual: float
    converged: bool
    reason: str
    n_steps: int
    n_gradients: int
    n_hvps: int
    history: dict[str, np.ndarray]


@dataclasses.dataclass(frozen=True)
class Budget:
    """How much work a solve may do; None is no limit."""

    max_steps: int | None = None
    max_seconds: float | None = None
    max_gradients: int | None = None

    def spent(self, iterate: Iterate, started: float) -> str:
        """Which limit is reached, in words; empty while there is budget."""
        if self.max_steps is not None and iterate.n_steps >= self.max_steps:
            return f"stopped after max_steps={self.max_steps} steps"
        if self.max_gradients is not None and iterate.n_gradients >= self.max_gradients:
            return f"stopped after max_gradients={self.max_gradients} gradients"
        if self.max_seconds is not None and time.monotonic() - started >= self.max_seconds:
            return f"stopped after max_seconds={self.max_seconds:g} seconds"
        return ""


class AbstractSolver(eqx.Module):
    """How a fixed point is reached. Steps are compiled; a step may stand for many small ones."""

    @abc.abstractmethod
    def init(self, problem: Problem, particles: Float[Array, "n d"]) -> Iterate:
        """The iterate before the first step."""

    @abc.abstractmethod
    def step(self, problem: Problem, iterate: Iterate, budget: Budget) -> Iterate:
        """The next iterate; with a `reason` where the solver ends by itself."""


def solve(
    solver: AbstractSolver,
    problem: Problem,
    particles: Float[Array, "n d"],
    budget: Budget,
    report: Callable[[Iterate], None] = lambda iterate: None,
) -> Solution:
    """Run the solver to its end, the end of the budget, or Ctrl-C."""
    started = time.monotonic()
    iterate = best = solver.init(problem, particles)
    histories = [iterate.history]
    try:
        while not iterate.reason:
            spent = budget.spent(iterate, started)
            if spent:
                iterate = dataclasses.replace(iterate, reason=spent)
                break
            iterate = solver.step(problem, iterate, budget)
            histories.append(iterate.history)
            if not best.residual <= iterate.residual or iterate.converged:
                best = iterate
            report(iterate)
    except KeyboardInterrupt:
        iterate = dataclasses.replace(iterate, reason="interrupted by the user; the best particles so far")
    reason = iterate.reason
    if best is not iterate and best.n_steps != iterate.n_steps:
        reason += f"; the particles are those of step {best.n_steps}, where the residual was least"
    return Solution(
        particles=best.particles,
        kernel=best.kernel,
        residual=best.residual,
        converged=best.converged,
        reason=reason,
        n_steps=iterate.n_steps,
        n_gradients=iterate.n_gradients,
        n_hvps=iterate.n_hvps,
        history=_joined(histories),
    )


def _joined(histories: list[dict[str, np.ndarray]]) -> dict[str, np.ndarray]:
    names = {name: None for history in histories for name in history}
    return {name: np.concatenate([history[name] for history in histories if name in history]) for name in names}
