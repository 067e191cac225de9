"""Sweeps: every method over a grid of one variable and over trials; what Figures 1 to 4 share."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from steinmatch.experiments.methods import (
    DESCENT_RATE,
    DESCENT_STEPS,
    INNER_STEPS,
    LINEAR,
    LINEAR_RANDOM,
    MONTE_CARLO,
    NEWTON_STEPS,
    RBF_SVGD,
    SVGD,
    Settings,
    measure,
)
from steinmatch.experiments.store import Cell, Results, Row

COLUMNS = (
    "panel",
    "variable",
    "value",
    "n",
    "dim",
    "method",
    "solver",
    "trial",
    "mse_mean",
    "mse_second",
    "relative_second",
    "mmd",
    "variance",
    "residual",
    "converged",
    "seconds",
)


def sweep(
    panel: str,
    variable: str,
    values: Sequence[float],
    make_target: Callable[[float, int], Any],
    particles: Callable[[float], int],
    settings: Settings,
    methods: Sequence[str] = SVGD,
) -> list[Cell]:
    """Cells for every value, method, solver and trial. `make_target(value, trial)` gives the model.

    RBF runs by descent alone: in 100 dimensions its fixed point equations have n d unknowns and no structure to use.
    Up to n = d + 1 linear+random is the linear kernel.
    """
    cells = []
    known: dict[tuple, Row] = {}
    for value in values:
        n = particles(value)
        for trial in range(settings.trials):
            if settings.solvers != ("annealed",):
                cells.append(
                    _cell(panel, variable, value, n, make_target, MONTE_CARLO, "exact draws", settings, trial, known)
                )
            for method in methods:
                for solver in settings.solvers:
                    if method == RBF_SVGD and solver == "newton" and "descent" in settings.solvers:
                        continue
                    cells.append(_cell(panel, variable, value, n, make_target, method, solver, settings, trial, known))
    return cells


def _cell(
    panel: str,
    variable: str,
    value: float,
    n: int,
    make_target: Callable[[float, int], Any],
    method: str,
    solver: str,
    settings: Settings,
    trial: int,
    known: dict[tuple, Row],
) -> Cell:
    labels: Row = {
        "panel": panel,
        "variable": variable,
        "value": value,
        "n": n,
        "method": method,
        "solver": solver,
        "trial": trial,
    }

    def compute() -> list[Row]:
        target = make_target(value, trial)
        by = "descent" if method == RBF_SVGD and solver == "newton" else solver
        same = LINEAR if method == LINEAR_RANDOM and n <= target.dim + 1 else method
        if (value, same, by, trial) not in known:
            known[value, same, by, trial] = measure(target, same, by, n, settings, trial)
        return [{**labels, "dim": target.dim, **known[value, same, by, trial]}]

    name = f"{panel}-{value:g}-n{n}-{method}-{solver}-{trial}".replace(" ", "_").replace("+", "_")
    limits: dict = {
        "descent": [DESCENT_RATE, DESCENT_STEPS],
        "newton": [NEWTON_STEPS, INNER_STEPS, settings.tol, settings.polish],
    }
    return Cell(name, {**labels, "seed": settings.seed, "limits": limits}, compute)


def ratio_to_monte_carlo(results: Results, column: str, method: str, solver: str, **wanted: Any) -> np.ndarray:
    """For each value of the variable: the median error of Monte Carlo over that of a method."""
    chosen = results.where(**wanted)
    return np.array(
        [
            chosen.median(column, value=value, method=MONTE_CARLO)
            / max(chosen.median(column, value=value, method=method, solver=solver), 1e-300)
            for value in chosen.distinct("value")
        ]
    )


def best_solver(results: Results, method: str) -> str:
    """The solver that a method's claims are judged by: ours where it ran."""
    solvers = results.where(method=method).distinct("solver")
    return "newton" if "newton" in solvers else solvers[0]
