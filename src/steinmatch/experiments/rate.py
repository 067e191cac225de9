"""Theorems 3.5 and 3.6: the discrepancy and single-function errors of random-feature fixed points against m.

The bandwidth stays fixed while m varies, and so does n, held large: with n growing beside m independent draws would
pass as well, and their line, flat in m, is drawn. The particles start evenly in a cube, whose shape is no target's, so
that only the features can make them good. The bounds (Eq. 15, and that of Theorem 3.6) are up to their universal
constant, with eps from the residual reached and M, R estimated over the particles. Beside them, for claim 15, fixed
points of random features and of RBF with n = 2 m particles.
"""

import time
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import matplotlib.figure
import numpy as np
from jaxtyping import Array, Float

from steinmatch._types import float64
from steinmatch.experiments.claims import TWOFOLD, Claim, Interval, over_trials
from steinmatch.experiments.figures import save
from steinmatch.experiments.methods import COLOURS, LINEAR, LINEAR_RANDOM, MONTE_CARLO, RBF_SVGD, Settings, trial_key
from steinmatch.experiments.runner import Experiment
from steinmatch.experiments.store import Cell, Results, Row
from steinmatch.fitting import fit
from steinmatch.kernels import RBF
from steinmatch.kernels.features import RandomFourier
from steinmatch.measures.discrepancy import ksd, mmd
from steinmatch.measures.stein import compiled_images_at, stein_operator
from steinmatch.solvers import Affine, Chain, Descent, LevenbergMarquardt
from steinmatch.targets import AbstractTarget, Gaussian, GaussianMixture, Target

TITLE = "Theorems 3.5 and 3.6: the random-feature rate"
GRID, QUICK_GRID = (8, 16, 32, 64, 128), (8, 32)
PARTICLES, QUICK_PARTICLES = 512, 128  # four times the most features
WIDE = 3.0  # half the side of the cube in which particles of a fixed n start
FIXED, DRAWS, BESIDE, OWN = "random features", "Monte Carlo", "random features, n = 2 m", "RBF, n = 2 m"
STEPS, FIXED_STEPS = 30, 60  # of Levenberg-Marquardt with random features: residuals far below the bounds' eps
BANDWIDTH = 1.0
FULL_RANK_STEPS = 60  # of Levenberg-Marquardt with the RBF kernel
DELTA = 0.05
columns = (
    "target", "dim", "method", "m", "n", "trial", "ksd", "single", "epsilon", "M", "R", "bound_ksd", "bound_single",
    "mse_mean", "mse_second", "mmd", "residual", "converged", "seconds",
)  # fmt: skip


def _banana(x: Any) -> Any:
    return -0.5 * x[0] ** 2 - 2.0 * (x[1] - 0.5 * x[0] ** 2) ** 2


@float64
def targets() -> dict[str, AbstractTarget]:
    """Several targets, of low dimension so that the many solves take seconds."""
    return {
        "Gaussian, d = 2": Gaussian(np.zeros(2), np.array([[1.0, 0.5], [0.5, 1.0]])),
        "Gaussian, d = 4": Gaussian.random(jax.random.key(7), 4, 4.0),
        "mixture, d = 2": GaussianMixture(np.array([[-1.0, 0.0], [1.0, 0.5]]), weights=np.array([0.6, 0.4])),
        "banana, d = 2": Target(_banana, dim=2),
    }


def cells(settings: Settings) -> list[Cell]:
    """For each target, m and trial: a fixed point of random features with n held fixed, as many independent draws, and
    fixed points of random features and of RBF with n = 2 m.
    """
    chosen = list(targets().items())[: 1 if settings.quick else None]
    found = []
    for name, target in chosen:
        for m in QUICK_GRID if settings.quick else GRID:
            for trial in range(max(settings.trials, 3)):
                for method in (FIXED, DRAWS, BESIDE, OWN):
                    found.append(_cell(name, target, m, trial, method, settings))
    return found


def _cell(name: str, target: AbstractTarget, m: int, trial: int, method: str, settings: Settings) -> Cell:
    most = QUICK_PARTICLES if settings.quick else PARTICLES
    n = most if method in (FIXED, DRAWS) else 2 * m
    labels: Row = {"target": name, "method": method, "m": m, "n": n, "trial": trial}

    def compute() -> list[Row]:
        started = time.monotonic()
        seed = settings.seed + 1000 * trial
        if method == DRAWS:
            particles = _draws(target, trial_key(settings, trial, m), n)
            row = {**labels, "dim": target.dim, **discrepancies(target, particles), **_bound_parts(0.0, m)}
            return [{**row, "seconds": time.monotonic() - started}]
        # Limited by counts: same seed, same numbers.
        full = LevenbergMarquardt(n_steps=FULL_RANK_STEPS, shakes=2)
        way = {
            FIXED: LevenbergMarquardt(n_steps=FIXED_STEPS),
            BESIDE: Chain(Affine(), LevenbergMarquardt(n_steps=STEPS)),
            OWN: Chain(Affine(), Descent(n_steps=1000), full),
        }[method]
        kernel = RBF(BANDWIDTH) if method == OWN else RandomFourier(m, BANDWIDTH)
        cube = np.random.default_rng(seed).uniform(-WIDE, WIDE, (n, target.dim))
        init = cube if method == FIXED else None
        result = fit(target, n, kernel=kernel, solver=way, init=init, seed=seed, progress=False)
        row = {**labels, "dim": target.dim, **discrepancies(target, result.particles)}
        if method == FIXED:
            row |= bounds(target, result.kernel, result.particles, m)
        row |= {"residual": result.residual, "converged": result.converged, "seconds": time.monotonic() - started}
        return [row]

    slug = f"{name}-{m}-{method}-{trial}".replace(" ", "").replace(",", "_").replace("=", "")
    limits = [BANDWIDTH, FULL_RANK_STEPS, STEPS, FIXED_STEPS, WIDE]
    return Cell(slug, {**labels, "seed": settings.seed, "limits": limits}, compute)


def _draws(target: AbstractTarget, key: Any, n: int) -> np.ndarray:
    """Independent draws of a target of this experiment."""
    if isinstance(target, Gaussian | GaussianMixture):
        return np.asarray(target.sample(key, n))
    z = np.asarray(jax.random.normal(key, (n, 2)))
    return np.stack([z[:, 0], 0.5 * z[:, 0] ** 2 + 0.5 * z[:, 1]], axis=1)  # of the banana


@float64
def discrepancies(target: AbstractTarget, particles: np.ndarray) -> Row:
    """KSD of the RBF kernel; |average of f| for f the first component of P k(., y) at fixed y, where E_p f = 0; and
    moments and MMD where the target knows its own.
    """
    kernel = RBF(BANDWIDTH)
    row: Row = {
        "ksd": float(ksd(target, particles, kernel)),
        "single": float(abs(_average(target, kernel, jnp.asarray(particles)))),
    }
    if isinstance(target, Gaussian | GaussianMixture):
        row["mse_mean"] = float(np.mean((particles.mean(axis=0) - np.asarray(target.mean)) ** 2))
        row["mse_second"] = float(np.mean(((particles**2).mean(axis=0) - np.asarray(target.second_moment)) ** 2))
        row["mmd"] = float(mmd(target, particles))
    return row


@eqx.filter_jit
def _average(target: AbstractTarget, kernel: RBF, particles: Float[Array, "n d"]) -> Float[Array, ""]:
    held = kernel.bind(jax.random.key(0), particles).hold(particles)
    f = stein_operator(lambda x: held(x, jnp.full(target.dim, 0.5)), target)
    return jnp.mean(jax.vmap(f)(particles)[:, 0])


@float64
def bounds(target: AbstractTarget, kernel: Any, particles: np.ndarray, m: int) -> Row:
    """eps, M, R of Assumption 3.4 at these particles, and the bounds of the theorems without their constant.

    eps_j = sqrt(m) max_l |G_lj|; M_j = max |(P phi)_j| over particles and features, an estimate of the supremum; R_j:
    the Rademacher average sqrt(m) E max_x |(1/m) sum_l sigma_l (P phi_l)_j(x)| with 50 sign vectors.
    """
    points = jnp.asarray(particles)
    images = np.asarray(compiled_images_at(target, kernel, points))  # (n, m, d)
    eps = np.sqrt(m) * np.abs(images.mean(axis=0)).max(axis=0)
    largest = np.abs(images).max(axis=(0, 1))
    signs = np.random.default_rng(0).choice([-1.0, 1.0], size=(50, m))
    averages = np.einsum("sm,nmd->snd", signs, images) / m
    rademacher = np.sqrt(m) * np.abs(averages).max(axis=1).mean(axis=0)
    epsilon = float(np.sqrt(np.sum(eps**2)))
    return {
        "M": float(np.sqrt(np.sum(largest**2))),
        "R": float(np.sqrt(np.sum(rademacher**2))),
        **_bound_parts(epsilon, m),
    }


def _bound_parts(epsilon: float, m: int) -> Row:
    return {
        "epsilon": epsilon,
        "bound_ksd": float(np.sqrt((epsilon**2 + np.log(m) ** 3 + np.log(1.0 / DELTA)) / m)),
        "bound_single": float((1.0 + epsilon + np.sqrt(2.0 * np.log(1.0 / DELTA))) / np.sqrt(m)),
    }


def slope(results: Results, column: str, over: str | None = None, **wanted: Any) -> Interval:
    """The slope of log(column), or of its ratio to another, against log(m) over all trials, with its 95 % interval."""
    rows = [row for row in results.where(**wanted).rows if row.get(column)]
    x = np.log([float(row["m"]) for row in rows])
    y = np.log([float(row[column]) / (float(row[over]) if over else 1.0) for row in rows])
    x = x - x.mean()
    b = float(x @ y / (x @ x))
    left = y - y.mean() - b * x
    half = float(1.96 * np.sqrt(left @ left / max(len(x) - 2, 1) / (x @ x)))
    return Interval(b, b - half, b + half)


_LOOKS = {
    FIXED: (COLOURS[LINEAR_RANDOM], "o-"),
    DRAWS: (COLOURS[MONTE_CARLO], "s-"),
    BESIDE: (COLOURS[LINEAR], "^--"),
    OWN: (COLOURS[RBF_SVGD], "v--"),
}


def draw(results: Results, folder: Path) -> None:
    """KSD and single-function error against m, for each target, beside independent draws and the RBF kernel."""
    names = list(dict.fromkeys(row["target"] for row in results.rows))
    figure = matplotlib.figure.Figure(figsize=(3.6 * len(names) + 0.6, 7.2), layout="constrained")
    axes = figure.subplots(2, len(names), squeeze=False, sharex=True)
    for j, name in enumerate(names):
        for i, (column, label) in enumerate((("ksd", "KSD"), ("single", "|average of f|"))):
            axis = axes[i, j]
            for k, (method, (colour, style)) in enumerate(_LOOKS.items()):
                chosen = results.where(target=name, method=method)
                ms = np.array(chosen.distinct("m"), float)
                low, middle, high = (
                    np.array([np.percentile(chosen.where(m=m).values(column), q) for m in ms]) for q in (25, 50, 75)
                )
                b = slope(results, column, target=name, method=method)
                n = "" if "n =" in method else f", n = {chosen.rows[0]['n']}"
                floor = np.maximum(low, 1e-17)
                axis.errorbar(
                    ms * 1.03**k, middle, yerr=[middle - floor, high - middle], fmt=style, color=colour, markersize=4,
                    capsize=2, linewidth=1.2, label=f"{method}{n}: {b.mean:.2f} ± {b.high - b.mean:.2f}",
                )  # fmt: skip
            axis.set_xscale("log", base=2)
            axis.set_yscale("log")
            axis.legend(fontsize=6.5, frameon=False, title="slope", title_fontsize=7)
            axis.set_ylabel(label if j == 0 else "")
            axis.set_title(name if i == 0 else "", fontsize=10)
            axis.grid(True, linewidth=0.3, color="0.85")
            axis.spines[["top", "right"]].set_visible(False)
        axes[1, j].set_xlabel("features m")
    save(figure, folder, "rate")


def claims(results: Results) -> list[Claim]:
    """Claims 15 and 16."""
    return [_beside(results), *_rates(results)]


def _beside(results: Results) -> Claim:
    """Claim 15, at the largest m."""
    largest = max(results.where(method=BESIDE).distinct("m"))
    ratios: dict[str, list[float]] = {}
    for column in ("ksd", "mse_mean", "mse_second", "mmd"):
        for name in results.distinct("target"):
            pair = [results.median(column, target=name, m=largest, method=k) for k in (BESIDE, OWN)]
            if np.isfinite(pair).all():
                ratios.setdefault(column, []).append(pair[0] / max(pair[1], 1e-300))
    worst = {column: max(values) for column, values in ratios.items()}
    return Claim(
        15,
        f"random features do as well as the original RBF kernel with as many particles (m = {largest})",
        "largest ratio of medians, random features over RBF: " + ", ".join(f"{c} {v:.2g}" for c, v in worst.items()),
        max(worst.values()) <= TWOFOLD,
        why="the RBF fixed point with n = 2 m particles zeroes the Stein images of all 2 m kernel sections, of the "
        "very kernel that the KSD measures; m random features zero half as many equations.",
    )


def _rates(results: Results) -> list[Claim]:
    """Claim 16: at a fixed n errors fall with m no slower than the bounds do, which independent draws do not."""
    names, found = results.distinct("target"), []
    for column, theorem in (
        ("ksd", "Theorem 3.5: the KSD falls"),
        ("single", "Theorem 3.6: single functions' errors fall"),
    ):
        own = {name: slope(results, column, f"bound_{column}", target=name, method=FIXED) for name in names}
        plain = {name: slope(results, column, target=name, method=FIXED) for name in names}
        draws = {name: slope(results, column, target=name, method=DRAWS) for name in names}
        said = ", ".join(
            f"{name}: {b} (alone {plain[name]}, independent draws {draws[name]})" for name, b in own.items()
        )
        found.append(
            Claim(
                16,
                f"{theorem} with m, at fixed n, no slower than the bound; independent draws do not",
                f"slope of log(error / bound) on log m: {said}",
                bool(all(own[name].high <= 0.0 and plain[name].high < draws[name].low for name in names)),
                why="the upper end of an interval is above zero, or not below that of independent draws: with few "
                "trials, or where the error left is that of the particles' number.",
            )
        )
    constants = {column: _constants(results.where(method=FIXED), column) for column in ("ksd", "single")}
    grows = {column: over_trials(np.log(last / first)).exp() for column, (first, last) in constants.items()}
    chosen = results.where(method=FIXED)
    found.append(
        Claim(
            16,
            "the bounds of Theorems 3.5 and 3.6 hold with one constant for all m",
            "least constant at the largest m over that at the smallest: "
            + ", ".join(f"{column} {factor}" for column, factor in grows.items())
            + "; largest constants "
            + ", ".join(f"{max(first.max(), last.max()):.2g}" for first, last in constants.values())
            + f" (median eps {chosen.median('epsilon'):.1e}, M {chosen.median('M'):.1f}, R {chosen.median('R'):.1f}, "
            f"delta {DELTA})",
            bool(max(factor.high for factor in grows.values()) <= 1.0),
        )
    )
    return found


def _constants(chosen: Results, column: str) -> tuple[np.ndarray, np.ndarray]:
    """Over all targets the least constant with which the bound holds in each trial, at the smallest and largest m."""
    grid = chosen.distinct("m")
    first, last = (
        np.array(
            [
                max(row[column] / row[f"bound_{column}"] for row in chosen.where(m=m, trial=trial).rows)
                for trial in chosen.distinct("trial")
            ]
        )
        for m in (grid[0], grid[-1])
    )
    return first, last


CAPTION = "At fixed n the discrepancy of random-feature fixed points falls with m; that of independent draws is flat."
EXPERIMENT = Experiment("rate", TITLE, columns, cells, draw, claims, CAPTION)
run = EXPERIMENT.run
