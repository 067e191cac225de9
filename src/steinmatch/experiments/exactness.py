"""Lemma 3.1 and Theorems 3.2 and 3.3: what must be exact, and how exact it is; the rank condition at n = m."""

import time
from collections.abc import Callable
from pathlib import Path

import jax.numpy as jnp
import matplotlib.figure
import numpy as np

from steinmatch._linalg import numerical_rank
from steinmatch._types import float64
from steinmatch.answers.matching import MatchingSet
from steinmatch.experiments.claims import Claim
from steinmatch.experiments.figures import save
from steinmatch.experiments.methods import Settings, trial_key
from steinmatch.experiments.runner import Experiment
from steinmatch.experiments.store import Cell, Results, Row
from steinmatch.fitting import Fit, fit
from steinmatch.kernels import RBF
from steinmatch.kernels.features import Linear, LinearRandom, RandomFourier
from steinmatch.measures.stein import compiled_features_at
from steinmatch.targets import AbstractTarget, GaussBernoulliRBM, Gaussian

TITLE = "Lemma 3.1, Theorems 3.2 and 3.3: exactness"
LEMMA, FEATURES, MOMENTS, RANK = "Lemma 3.1", "Theorem 3.2", "Theorem 3.3", "rank condition"
columns = ("statement", "case", "trial", "n", "m", "residual", "error", "outside", "rank", "rank_condition", "seconds")


def cells(settings: Settings) -> list[Cell]:
    """Fixed points of several kernels and targets, each trial with another model and start."""

    def gaussian(trial: int) -> Gaussian:
        return Gaussian.random(trial_key(settings, trial), 10, 10.0)

    def rbm(trial: int) -> GaussBernoulliRBM:
        return GaussBernoulliRBM.random(trial_key(settings, trial), 10, 5)

    def plane(trial: int) -> Gaussian:
        return Gaussian.random(trial_key(settings, trial), 2, 4.0)

    cases: list[tuple[str, str, Callable[[int], AbstractTarget], Callable, int, int]] = [
        (LEMMA, "RBF, Gaussian, d = 2", plane, RBF, 30, settings.trials),
        (FEATURES, "linear+random, Gaussian, d = 10", gaussian, LinearRandom, 30, settings.trials),
        (FEATURES, "linear+random, RBM, d = 10", rbm, LinearRandom, 30, settings.trials),
        (MOMENTS, "linear, Gaussian, d = 10", gaussian, Linear, 11, settings.trials),
        (RANK, "linear+random, Gaussian, d = 10, n = m", gaussian, LinearRandom, 30, 4 * settings.trials),
        (RANK, "linear, Gaussian, d = 10, n = m", gaussian, Linear, 11, 4 * settings.trials),
        (RANK, "linear+random, RBM, d = 10, n = m", rbm, LinearRandom, 30, 2 * settings.trials),
    ]
    return [_cell(*case[:5], trial, settings) for case in cases for trial in range(case[5])]


def _cell(
    statement: str,
    case: str,
    model: Callable[[int], AbstractTarget],
    kernel: Callable,
    n: int,
    trial: int,
    settings: Settings,
) -> Cell:
    labels: Row = {"statement": statement, "case": case, "trial": trial, "n": n}

    @float64
    def compute() -> list[Row]:
        started = time.monotonic()
        target = model(trial)
        result = fit(target, n, kernel=kernel(), seed=settings.seed + trial, progress=False)
        row = {**labels, "residual": result.residual}
        m = result.kernel.n_features(target.dim)
        if m is not None:
            rank = numerical_rank(np.asarray(compiled_features_at(result.kernel, jnp.asarray(result.particles))))
            row |= {"m": m, "rank": rank, "rank_condition": rank == m}
        if statement in (LEMMA, FEATURES):
            row |= _averages(result, settings.seed + trial)
        if statement == MOMENTS:
            assert isinstance(target, Gaussian)
            off = np.abs(result.cov - np.asarray(target.cov)).max(), np.abs(result.mean - np.asarray(target.mean)).max()
            row["error"] = float(max(off) / np.abs(target.cov).max())
        return [{**row, "seconds": time.monotonic() - started}]

    slug = f"{statement}-{case}-{trial}".replace(" ", "").replace(",", "_").replace("=", "").replace("+", "_")
    return Cell(slug, {**labels, "seed": settings.seed}, compute)


def _averages(result: Fit, seed: int) -> Row:
    """Largest average of 20 random combinations of the matching set's functions, and of the Stein images of 20 fresh
    random cosines, which nobody matched: each relative to its root mean square over the particles.
    """
    functions = result.matching_set.basis(result.particles)[:, 1:]
    combinations = functions @ np.random.default_rng(seed).normal(size=(functions.shape[1], 20))
    fresh = RandomFourier(20, np.sqrt(result.target.dim))
    outside = MatchingSet(result.target, fresh, result.particles, seed=seed + 1).basis(result.particles)[:, 1:]
    errors = [np.abs(f.mean(axis=0)) / np.sqrt((f**2).mean(axis=0)) for f in (combinations, outside)]
    return {"error": float(errors[0].max()), "outside": float(errors[1].max())}


def draw(results: Results, folder: Path) -> None:
    """Errors of what must be exact, case by case."""
    cases = [
        c for c in dict.fromkeys(row["case"] for row in results.rows) if results.where(case=c).values("error").size
    ]
    figure = matplotlib.figure.Figure(figsize=(8.5, 0.45 * len(cases) + 1.2), layout="constrained")
    axis = figure.subplots()
    for i, case in enumerate(cases):
        errors = np.maximum(results.where(case=case).values("error"), 1e-18)
        axis.plot(errors, np.full(len(errors), i), "o", color="#0072B2", markersize=4, alpha=0.6)
        residuals = np.maximum(results.where(case=case).values("residual"), 1e-18)
        axis.plot(residuals, np.full(len(residuals), i - 0.2), "|", color="#D55E00", markersize=7)
    labels = [f"{results.where(case=case).rows[0]['statement']}: {case}" for case in cases]
    axis.set_yticks(range(len(cases)), labels)
    axis.set_xscale("log")
    axis.set_xlim(1e-18, 1.0)
    axis.set_xlabel("error (dots), scaled residual (bars)")
    axis.spines[["top", "right"]].set_visible(False)
    save(figure, folder, "exactness")


def claims(results: Results) -> list[Claim]:
    """The statements themselves, and claim 14."""
    found = []
    for number, statement, text in (
        (14, LEMMA, "Lemma 3.1: averages of P k(., x_i) vanish at RBF fixed points, at the level of the residual"),
        (14, FEATURES, "Theorem 3.2: averages of P phi_l vanish, at the level of the residual"),
    ):
        chosen = results.where(statement=statement)
        factor = max(row["error"] / max(row["residual"], 1e-15) for row in chosen.rows)
        worst = chosen.values("error").max()
        found.append(
            Claim(
                number, text, f"largest relative average {worst:.1e}, at most {factor:.1f} residuals", factor <= 100.0
            )
        )
    moments = results.where(statement=MOMENTS).values("error").max()
    found.append(
        Claim(
            14,
            "Theorem 3.3: mean and covariance of a Gaussian are exact at n = d + 1",
            f"relative error {moments:.1e}",
            moments <= 1e-9,
        )
    )
    for case in dict.fromkeys(row["case"] for row in results.where(statement=RANK).rows):
        met = [row["rank_condition"] for row in results.where(case=case).rows]
        found.append(
            Claim(
                14,
                f"the rank condition holds in practice at n = m ({case})",
                f"{sum(met)} of {len(met)} runs",
                all(met),
            )
        )
    return found


EXPERIMENT = Experiment("exactness", TITLE, columns, cells, draw, claims)
run = EXPERIMENT.run
