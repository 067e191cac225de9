"""Solvers: how the fixed point is reached."""

from steinmatch.solvers.affine import Affine
from steinmatch.solvers.annealed import Annealed
from steinmatch.solvers.base import AbstractSolver, Budget, Counts, Iterate, Problem, Solution
from steinmatch.solvers.chain import Chain
from steinmatch.solvers.descent import Descent
from steinmatch.solvers.levenberg_marquardt import LevenbergMarquardt

__all__ = [
    "AbstractSolver",
    "Affine",
    "Annealed",
    "Budget",
    "Chain",
    "Counts",
    "Descent",
    "Iterate",
    "LevenbergMarquardt",
    "Problem",
    "Solution",
]
