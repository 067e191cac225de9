"""Figure 1: the standard Gaussian in 100 dimensions, over the number of particles."""

from pathlib import Path

import numpy as np

from steinmatch.experiments.claims import Claim
from steinmatch.experiments.figures import panels, save
from steinmatch.experiments.methods import LINEAR, LINEAR_RANDOM, RBF_SVGD, SVGD, Settings
from steinmatch.experiments.runner import Experiment
from steinmatch.experiments.store import Cell, Results
from steinmatch.experiments.sweep import COLUMNS, best_solver, ratio_to_monte_carlo, sweep
from steinmatch.targets import Gaussian

TITLE = "Figure 1: standard Gaussian, d = 100"
DIM = 100
GRID = (10, 50, 75, 100, 101, 102, 150, 200, 250)
QUICK_GRID = (50, 120)
columns = COLUMNS


def cells(settings: Settings) -> list[Cell]:
    """All methods over n."""
    grid = QUICK_GRID if settings.quick else GRID
    target = Gaussian(np.zeros(DIM), np.eye(DIM))
    return sweep("gaussian", "n", grid, lambda n, trial: target, int, settings)


def draw(results: Results, folder: Path) -> None:
    """The four panels of the figure."""
    wanted = [("gaussian", column) for column in ("mse_mean", "mse_second", "mmd", "variance")]
    save(panels(results, wanted, "number of particles n", mark=DIM + 1), folder, "gaussian")


def claims(results: Results) -> list[Claim]:
    """Claims 1 to 6."""
    ratios = {
        (method, solver): ratio_to_monte_carlo(results, "mse_mean", method, solver).min()
        for method in SVGD
        for solver in results.where(method=method).distinct("solver")
    }
    worst = min(ratios, key=lambda key: ratios[key])
    residual = results.median("residual", method=worst[0], solver=worst[1])
    found = [
        Claim(
            1,
            "every SVGD variant estimates means far better than Monte Carlo (Gaussian, all n)",
            f"MSE of E[x] at least {ratios[worst]:.1f} times smaller ({worst[0]}, {worst[1]})",
            bool(ratios[worst] >= 10.0),
            why=f"{worst[0]} by {worst[1]} is not at its fixed point: median scaled residual {residual:.0e}.",
        )
    ]
    return found + second_moment_claims(results, (2, 3, 4, 5, 6), "mse_second", "")


def second_moment_claims(results: Results, numbers: tuple[int, ...], column: str, where: str) -> list[Claim]:
    """Claims 2 to 6 for a Gaussian of any condition number (claim 7 repeats them)."""
    grid = results.distinct("value")
    below = [n for n in grid if n < DIM + 1]
    above = [n for n in grid if n >= DIM + 1]
    linear = {method: best_solver(results, method) for method in (LINEAR, LINEAR_RANDOM)}
    falls = {
        m: results.median(column, value=below[0], method=m, solver=s)
        / max(results.median(column, value=above[0], method=m, solver=s), 1e-300)
        for m, s in linear.items()
    }
    left = {m: max(results.median(column, value=n, method=m, solver=s) for n in above) for m, s in linear.items()}
    rbf = results.median("variance", value=grid[-1], method=RBF_SVGD)
    largest = max(
        results.median("variance", value=n, method=m, solver=s)
        for n in below
        for m in SVGD
        for s in results.where(method=m).distinct("solver")
    )
    exact = max(
        abs(v - 1.0)
        for v in results.where(method=LINEAR, solver=linear[LINEAR], value=above.__contains__).values("variance")
    )
    return [
        Claim(
            numbers[0],
            f"second-moment errors of linear and linear+random fall quickly as n nears d + 1{where}",
            f"from n = {below[0]:g} to n = {above[0]:g} by factors of at least {min(falls.values()):.0e}",
            min(falls.values()) >= 100.0,
        ),
        Claim(
            numbers[1],
            f"only numerical error is left for n >= d + 1, by our solver{where}",
            ", ".join(f"{m}: MSE of E[x²] at most {v:.1e}" for m, v in left.items()),
            max(left.values()) <= 1e-20,
        ),
        Claim(
            numbers[2],
            f"the RBF kernel does not recover the variance{where}",
            f"estimated / true variance {rbf:.2f} at n = {grid[-1]:g}",
            rbf < 0.9,
        ),
        Claim(
            numbers[3],
            f"all variants underestimate the variance for n < d + 1{where}",
            f"largest estimated / true variance {largest:.3f}",
            largest < 1.0,
        ),
        Claim(
            numbers[4],
            f"linear features give the variance (nearly) exactly for n >= d + 1{where}",
            f"estimated / true variance off by at most {exact:.1e}",
            exact <= 1e-6,
        ),
    ]


EXPERIMENT = Experiment("gaussian", TITLE, columns, cells, draw, claims)
run = EXPERIMENT.run
