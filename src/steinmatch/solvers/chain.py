"""Solvers one after another."""

import dataclasses
import time
from collections.abc import Callable

import numpy as np
from jaxtyping import Array, Float

from steinmatch.solvers.base import AbstractSolver, Budget, Counts, Iterate, Problem, Solution, joined


class Chain(AbstractSolver):
    """Each solver starts where the one before ended; an affine map found on the way serves all that follow.

    `Chain(Affine(), LevenbergMarquardt())` is what "auto" does for feature kernels.
    """

    solvers: tuple[AbstractSolver, ...]

    def __init__(self, *solvers: AbstractSolver):
        if not solvers or not all(isinstance(solver, AbstractSolver) for solver in solvers):
            raise TypeError("Chain: give one solver or more, such as Chain(Affine(), LevenbergMarquardt()).")
        self.solvers = solvers

    def solve(
        self,
        problem: Problem,
        particles: Float[Array, "n d"],
        budget: Budget,
        report: Callable[[Iterate], None],
    ) -> Solution:
        solutions: list[Solution] = []
        for place, solver in enumerate(self.solvers):
            started = time.monotonic()
            solution = solver.solve(problem, particles, budget.within(place), report)
            solutions.append(solution)
            particles = solution.particles
            budget = budget.minus(solution, time.monotonic() - started)
            if solution.frame is not None and solution.frame is not problem.frame:
                kernel = problem.kernel.reframe(solution.frame)
                problem = Problem(problem.target, kernel, problem.weights, solution.frame)
            if solution.interrupted or (solution.reason and budget.spent(Iterate(particles, problem.kernel, np.inf))):
                break
        return dataclasses.replace(
            solutions[-1],
            counts=sum((solution.counts for solution in solutions), Counts()),
            history=joined([solution.history for solution in solutions]),
        )
