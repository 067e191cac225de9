"""Sweeps: every method over a grid of one variable and over trials; what Figures 1 to 4 share."""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from steinmatch.experiments.claims import Interval, over_trials
from steinmatch.experiments.methods import (
    DESCENT_STEPS,
    INNER_STEPS,
    LINEAR,
    LINEAR_RANDOM,
    MONTE_CARLO,
    NEWTON_STEPS,
    RATES,
    RBF_SVGD,
    SVGD,
    Settings,
    measure,
    tuned_rate,
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
    "rate",
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
    Up to n = d + 1 linear+random is the linear kernel. Descent's rate is tuned at the middle value and at the last.
    """
    cells = []
    known: dict[tuple, Row] = {}
    sizes = [(value, particles(value)) for value in dict.fromkeys((values[len(values) // 2], values[-1]))]

    @functools.cache
    def rate(method: str) -> float:
        return tuned_rate(make_target, sizes, method, settings)

    for value in values:
        n = particles(value)
        for trial in range(settings.trials):
            labels: Row = {"panel": panel, "variable": variable, "value": value, "n": n, "trial": trial}
            if settings.solvers != ("annealed",):
                cells.append(
                    _cell(labels | {"method": MONTE_CARLO, "solver": "exact draws"}, make_target, settings, known, rate)
                )
            for method in methods:
                for solver in settings.solvers:
                    if method == RBF_SVGD and solver == "newton" and "descent" in settings.solvers:
                        continue
                    cells.append(
                        _cell(labels | {"method": method, "solver": solver}, make_target, settings, known, rate)
                    )
    return cells


def _cell(
    labels: Row,
    make_target: Callable[[float, int], Any],
    settings: Settings,
    known: dict[tuple, Row],
    rate: Callable[[str], float],
) -> Cell:
    value, n, method, solver, trial = (labels[name] for name in ("value", "n", "method", "solver", "trial"))

    def compute() -> list[Row]:
        target = make_target(value, trial)
        by = "descent" if method == RBF_SVGD and solver == "newton" else solver
        same = LINEAR if method == LINEAR_RANDOM and n <= target.dim + 1 else method
        if (value, same, by, trial) not in known:
            steps = same != MONTE_CARLO and (by != "newton" or settings.polish or n < target.dim + 1)
            given = {"rate": rate(same)} if steps else {}
            known[value, same, by, trial] = measure(target, same, by, n, settings, trial, **given)
        return [{**labels, "dim": target.dim, **known[value, same, by, trial]}]

    name = f"{labels['panel']}-{value:g}-n{n}-{method}-{solver}-{trial}".replace(" ", "_").replace("+", "_")
    limits: dict = {
        "descent": [list(RATES), DESCENT_STEPS],
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


def paired(results: Results, column: str, over: dict[str, Any], under: dict[str, Any]) -> Interval:
    """The log of one error over another in the same trial, over trials."""
    found = []
    for trial in results.distinct("trial"):
        two = [results.median(column, trial=trial, **wanted) for wanted in (over, under)]
        if np.isfinite(two).all():
            found.append(float(np.log(max(two[0], 1e-300) / max(two[1], 1e-300))))
    return over_trials(found)
