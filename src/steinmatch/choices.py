"""Kernels and solvers by name, and the solver that "auto" stands for."""

from collections.abc import Callable
from typing import Any

import numpy as np

from steinmatch._checks import check_kind, known_name
from steinmatch._linalg import numerical_rank
from steinmatch.adaptive import Walk
from steinmatch.kernels import IMQ, RBF, AbstractKernel, Matern
from steinmatch.kernels.features import Linear, LinearRandom
from steinmatch.measures.stein import compiled_features_at
from steinmatch.solvers import AbstractSolver, Affine, Annealed, Chain, Descent, LevenbergMarquardt, Problem, Solution

_KERNELS: dict[str, Callable[[], AbstractKernel]] = {
    "imq": IMQ,
    "linear": Linear,
    "linear+random": LinearRandom,
    "matern": Matern,
    "rbf": RBF,
}
_SOLVERS: dict[str, Callable[[], AbstractSolver]] = {
    "affine": Affine,
    "annealed": Annealed,
    "descent": Descent,
    "levenberg-marquardt": LevenbergMarquardt,
    "walk": Walk,
}


def kernel_named(value: Any) -> AbstractKernel:
    """A kernel as it is; a name as the kernel it stands for."""
    return _named(value, AbstractKernel, _KERNELS, "kernel")


def solver_named(value: Any) -> AbstractSolver | None:
    """A solver as it is, a name as the solver it stands for; None for "auto", which depends on the problem."""
    return None if isinstance(value, str) and value == "auto" else _named(value, AbstractSolver, _SOLVERS, "solver")


def solver_for(problem: Problem, n: int) -> AbstractSolver:
    """The solver that "auto" stands for."""
    m = problem.kernel.n_features(problem.target.dim)
    if m is None or m > n:
        return Chain(Affine(), Descent(n_steps=1000), LevenbergMarquardt())
    return Chain(Affine(), LevenbergMarquardt())


def _named(value: Any, kind: type, known: dict[str, Callable], what: str) -> Any:
    """An object as it is; a name as the object it stands for."""
    if isinstance(value, str):
        return known[known_name(value, {*known, "auto"} if what == "solver" else known, what, "fit")]()
    check_kind(value, kind, what, "fit", f"a {what} or one of {', '.join(sorted(known))}")
    return value


def rank_of(solution: Solution) -> tuple[int, int | None]:
    """The rank of Phi and its number m of features; None for a full-rank kernel."""
    m = solution.kernel.n_features(solution.particles.shape[1])
    if m is None:
        return 0, None
    return numerical_rank(np.asarray(compiled_features_at(solution.kernel, solution.particles))), m
