"""Theorems 3.5 and 3.6: the discrepancy and single-function errors of random-feature fixed points against m.

The bandwidth stays fixed while m varies; the particles are a fixed point of m random cosines with n = 2 m. The bounds
are printed up to their universal constant, with eps from the residual reached and M, R estimated over the particles.
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
from steinmatch.experiments.claims import Claim
from steinmatch.experiments.figures import save
from steinmatch.experiments.methods import COLOURS, LINEAR_RANDOM, RBF_SVGD, Settings
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
    """For each target, m and trial: a fixed point of random features, and one of RBF with as many particles."""
    chosen = list(targets().items())[: 1 if settings.quick else None]
    found = []
    for name, target in chosen:
        for m in QUICK_GRID if settings.quick else GRID:
            for trial in range(max(settings.trials, 3)):
                for method in ("random features", "RBF"):
                    found.append(_cell(name, target, m, trial, method, settings))
    return found


def _cell(name: str, target: AbstractTarget, m: int, trial: int, method: str, settings: Settings) -> Cell:
    labels: Row = {"target": name, "method": method, "m": m, "n": 2 * m, "trial": trial}

    def compute() -> list[Row]:
        started = time.monotonic()
        kernel = RandomFourier(m, BANDWIDTH) if method == "random features" else RBF(BANDWIDTH)
        seed = settings.seed + 1000 * trial
        # Limited by counts: same seed, same numbers.
        full = LevenbergMarquardt(n_steps=FULL_RANK_STEPS, shakes=2)
        way = "auto" if method == "random features" else Chain(Affine(), Descent(n_steps=1000), full)
        result = fit(target, 2 * m, kernel=kernel, solver=way, seed=seed, progress=False)
        row = {**labels, "dim": target.dim, **discrepancies(target, result.particles)}
        if method == "random features":
            row |= bounds(target, result.kernel, result.particles, m)
        row |= {"residual": result.residual, "converged": result.converged, "seconds": time.monotonic() - started}
        return [row]

    slug = f"{name}-{m}-{method}-{trial}".replace(" ", "").replace(",", "_").replace("=", "")
    return Cell(slug, {**labels, "seed": settings.seed, "bandwidth": BANDWIDTH, "limit": FULL_RANK_STEPS}, compute)


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
        "epsilon": epsilon,
        "M": float(np.sqrt(np.sum(largest**2))),
        "R": float(np.sqrt(np.sum(rademacher**2))),
        "bound_ksd": float(np.sqrt((epsilon**2 + np.log(m) ** 3 + np.log(1.0 / DELTA)) / m)),
        "bound_single": float((1.0 + epsilon + np.sqrt(2.0 * np.log(1.0 / DELTA))) / np.sqrt(m)),
    }


def slope(results: Results, column: str, **wanted: Any) -> tuple[float, float]:
    """The slope of log(column) against log(m) over all trials, by least squares, and half of its 95 % interval."""
    rows = [row for row in results.where(**wanted).rows if row.get(column)]
    x, y = (np.log([float(row[name]) for row in rows]) for name in ("m", column))
    x = x - x.mean()
    b = float(x @ y / (x @ x))
    left = y - y.mean() - b * x
    return b, float(1.96 * np.sqrt(left @ left / max(len(x) - 2, 1) / (x @ x)))


def draw(results: Results, folder: Path) -> None:
    """KSD and single-function error against m, for each target, beside the RBF kernel and the slope -1/2."""
    names = list(dict.fromkeys(row["target"] for row in results.rows))
    figure = matplotlib.figure.Figure(figsize=(3.4 * len(names) + 0.6, 6.6), layout="constrained")
    axes = figure.subplots(2, len(names), squeeze=False, sharex=True)
    for j, name in enumerate(names):
        for i, (column, label) in enumerate((("ksd", "KSD"), ("single", "|average of f|"))):
            axis = axes[i, j]
            for method, colour in (("random features", COLOURS[LINEAR_RANDOM]), ("RBF", COLOURS[RBF_SVGD])):
                chosen = results.where(target=name, method=method)
                ms = np.array(chosen.distinct("m"), float)
                low, middle, high = (
                    np.array([np.percentile(chosen.where(m=m).values(column), q) for m in ms]) for q in (25, 50, 75)
                )
                b, half = slope(results, column, target=name, method=method)
                axis.plot(ms, middle, "o-", color=colour, markersize=3, label=f"{method}: slope {b:.2f} ± {half:.2f}")
                axis.fill_between(ms, np.maximum(low, 1e-17), high, color=colour, alpha=0.15, linewidth=0)
                if method == "random features":
                    axis.plot(ms, middle[0] * (ms / ms[0]) ** -0.5, ":", color="0.5", label="slope -1/2")
            axis.set_xscale("log", base=2)
            axis.set_yscale("log")
            axis.legend(fontsize=7, frameon=False)
            axis.set_ylabel(label if j == 0 else "")
            axis.set_title(name if i == 0 else "", fontsize=10)
            axis.grid(True, linewidth=0.3, color="0.85")
            axis.spines[["top", "right"]].set_visible(False)
        axes[1, j].set_xlabel("features m (particles 2 m)")
    save(figure, folder, "rate")


def claims(results: Results) -> list[Claim]:
    """Claims 15 and 16."""
    names = list(dict.fromkeys(row["target"] for row in results.rows))
    features = results.where(method="random features")
    slopes = {name: slope(features, "ksd", target=name) for name in names}
    singles = {name: slope(features, "single", target=name) for name in names}
    said = ", ".join(f"{name}: {b:.2f} ± {half:.2f}" for name, (b, half) in slopes.items())
    largest = max(features.distinct("m"))
    ratios: dict[str, list[float]] = {}
    for column in ("ksd", "mse_mean", "mse_second", "mmd"):
        for name in names:
            pair = [results.median(column, target=name, m=largest, method=k) for k in ("random features", "RBF")]
            if np.isfinite(pair).all():
                ratios.setdefault(column, []).append(pair[0] / max(pair[1], 1e-300))
    worst = {column: max(values) for column, values in ratios.items()}
    found = [
        Claim(
            15,
            f"random features do as well as the original RBF kernel with as many particles (m = {largest})",
            "largest ratio of medians, random features over RBF: "
            + ", ".join(f"{c} {v:.2g}" for c, v in worst.items()),
            max(worst.values()) <= 2.0,
            why="the RBF fixed point with n = 2 m particles zeroes the Stein images of all 2 m kernel sections, of the "
            "very kernel that the KSD measures; m random features zero half as many equations.",
        ),
        Claim(
            16,
            "KSD falls like m^(-1/2) or faster: slope at most -0.4",
            said,
            max(b for b, _ in slopes.values()) <= -0.4,
        ),
        Claim(
            16,
            "single-function errors fall like m^(-1/2) or faster: slope at most -0.4",
            ", ".join(f"{name}: {b:.2f} ± {half:.2f}" for name, (b, half) in singles.items()),
            max(b for b, _ in singles.values()) <= -0.4,
            why="the error of one function is one number a run, often small by luck, so that slopes over few trials "
            "have wide intervals; the KSD, an average over functions, shows the rate.",
        ),
    ]
    constant = max(row["ksd"] / row["bound_ksd"] for row in features.rows)
    other = max(row["single"] / row["bound_single"] for row in features.rows)
    m_value, r_value = features.median("M"), features.median("R")
    found.append(
        Claim(
            16,
            "the bounds of Theorems 3.5 and 3.6 hold with a constant that does not grow with m",
            f"least constants C: {constant:.2g} and {other:.2g} (median eps {features.median('epsilon'):.1e}, "
            f"M {m_value:.1f}, R {r_value:.1f}, delta {DELTA})",
            _not_growing(features, "ksd", "bound_ksd") and _not_growing(features, "single", "bound_single"),
        )
    )
    return found


def _not_growing(features: Results, column: str, bound: str) -> bool:
    """Whether the largest ratio to the bound at the largest m is no larger than at the smallest m."""
    ms = features.distinct("m")
    first, last = (max(row[column] / row[bound] for row in features.where(m=m).rows) for m in (ms[0], ms[-1]))
    return last <= first


EXPERIMENT = Experiment("rate", TITLE, columns, cells, draw, claims)
run = EXPERIMENT.run
