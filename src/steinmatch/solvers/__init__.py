"""Solvers: how the fixed point is reached."""

from steinmatch.solvers.base import AbstractSolver, Budget, Iterate, Problem, Solution, solve
from steinmatch.solvers.descent import Descent

__all__ = ["AbstractSolver", "Budget", "Descent", "Iterate", "Problem", "Solution", "solve"]
