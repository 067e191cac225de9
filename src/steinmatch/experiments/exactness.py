"""Lemma 3.1 and Theorems 3.2 and 3.3: what must be exact, and how exact it is; the rank condition at n = m.

Averages of fresh functions over the particles are compared with their expectations by quadrature, which knows nothing
of Stein's identity: random combinations of the matching set, which must agree, and random cosines, which are outside of
it and must not.
"""

import time
from collections.abc import Callable
from pathlib import Path

import jax.numpy as jnp
import matplotlib.figure
import numpy as np

from steinmatch._linalg import numerical_rank
from steinmatch._types import float64
from steinmatch.experiments.claims import Claim
from steinmatch.experiments.figures import save
from steinmatch.experiments.methods import Settings, trial_key
from steinmatch.experiments.runner import Experiment
from steinmatch.experiments.store import Cell, Results, Row
from steinmatch.fitting import Fit, fit
from steinmatch.kernels import RBF, AbstractKernel
from steinmatch.kernels.features import Linear, LinearRandom, RandomFourier
from steinmatch.measures.stein import compiled_features_at
from steinmatch.targets import AbstractTarget, GaussBernoulliRBM, Gaussian

TITLE = "Lemma 3.1, Theorems 3.2 and 3.3: exactness"
LEMMA, FEATURES, MOMENTS, RANK = "Lemma 3.1", "Theorem 3.2", "Theorem 3.3", "rank condition"
_NODES = 60  # of the rule in each dimension: exact to rounding for what is asked here
_EXACT = 1e-8  # relative: residuals of 1e-10 and rounding of sums over functions of very different size
_CONTROL = 1e4  # times: a function outside of the matching set must be off by so much more
columns = ("statement", "case", "trial", "n", "m", "residual", "error", "outside", "rank", "rank_condition", "seconds")


def cells(settings: Settings) -> list[Cell]:
    """Fixed points of several kernels and targets, each trial with another model and start."""

    def gaussian(trial: int) -> Gaussian:
        return Gaussian.random(trial_key(settings, trial), 10, 10.0)

    def rbm(trial: int) -> GaussBernoulliRBM:
        return GaussBernoulliRBM.random(trial_key(settings, trial), 10, 5)

    def plane(trial: int) -> Gaussian:
        return Gaussian.random(trial_key(settings, trial), 2, 4.0)

    def small_rbm(trial: int) -> GaussBernoulliRBM:
        rng = np.random.default_rng([settings.seed, trial])  # couplings that bend it visibly
        return GaussBernoulliRBM(rng.choice([-0.8, 0.8], size=(2, 3)), rng.normal(size=2), 0.3 * rng.normal(size=3))

    def fifteen() -> AbstractKernel:  # fewer than particles: in two dimensions there need be no root at n = m
        return Linear() + RandomFourier(12)

    cases: list[tuple[str, str, Callable[[int], AbstractTarget], Callable, int, int]] = [
        (LEMMA, "RBF, Gaussian, d = 2", plane, RBF, 30, settings.trials),
        (FEATURES, "15 features, Gaussian, d = 2", plane, fifteen, 120, settings.trials),
        (FEATURES, "15 features, RBM, d = 2", small_rbm, fifteen, 120, settings.trials),
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
    """Largest error of the averages of 20 fresh combinations of the matching set's functions, and the median error of
    20 random cosines: against expectations by quadrature, relative to the functions' standard deviations.
    """
    target = result.target
    assert isinstance(target, Gaussian | GaussBernoulliRBM)
    nodes, weights = _quadrature(target)
    rng = np.random.default_rng(seed)
    combinations = rng.normal(size=(result.matching_set.n_functions, 20))
    directions, phases = rng.normal(size=(target.dim, 20)), rng.uniform(0.0, 2.0 * np.pi, 20)
    functions = (
        lambda x: result.matching_set.basis(x) @ combinations,
        lambda x: np.cos(x @ directions + phases),
    )
    errors = []
    for f in functions:
        there = f(nodes)
        exact = weights @ there
        spread = np.sqrt(weights @ (there - exact) ** 2)
        errors.append(np.abs(f(result.particles).mean(axis=0) - exact) / spread)
    return {"error": float(errors[0].max()), "outside": float(np.median(errors[1]))}


def _quadrature(target: Gaussian | GaussBernoulliRBM) -> tuple[np.ndarray, np.ndarray]:
    """Points and weights whose sums are expectations: Gauss and Hermite's rule at every component of a mixture."""
    mixture = target.as_mixture()
    at, own = np.polynomial.hermite_e.hermegauss(_NODES)
    own = own / own.sum()
    grid = np.stack(np.meshgrid(*[at] * target.dim, indexing="ij"), axis=-1).reshape(-1, target.dim)
    product = np.prod(np.stack(np.meshgrid(*[own] * target.dim, indexing="ij"), axis=-1), axis=-1).ravel()
    root = np.linalg.cholesky(np.asarray(mixture.cov))
    nodes = np.asarray(mixture.means)[:, None] + grid @ root.T
    weights = np.asarray(mixture.weights)[:, None] * product
    return nodes.reshape(-1, target.dim), weights.ravel()


def draw(results: Results, folder: Path) -> None:
    """Errors of what must be exact and of what need not be, case by case."""
    cases = [
        c for c in dict.fromkeys(row["case"] for row in results.rows) if results.where(case=c).values("error").size
    ]
    figure = matplotlib.figure.Figure(figsize=(8.5, 0.55 * len(cases) + 1.6), layout="constrained")
    axis = figure.subplots()
    marks = (("error", "o", "#0072B2", "matched: must be exact"), ("outside", "s", "#D55E00", "outside: the control"))
    for column, mark, colour, label in marks:
        for i, case in enumerate(cases):
            values = results.where(case=case).values(column)
            if len(values):
                low, middle, high = np.percentile(np.maximum(values, 1e-18), (0, 50, 100))
                bar = [[middle - low], [high - middle]]
                axis.errorbar(
                    middle, i, xerr=bar, fmt=mark, color=colour, markersize=5, capsize=3, label="" if i else label
                )
    labels = [f"{results.where(case=case).rows[0]['statement']}: {case}" for case in cases]
    axis.set_yticks(range(len(cases)), labels)
    axis.set_ylim(-0.6, len(cases) - 0.4)
    axis.set_xscale("log")
    axis.set_xlim(1e-18, 10.0)
    axis.set_xlabel("error of an average, in sds (median and range over trials)")
    axis.spines[["top", "right"]].set_visible(False)
    figure.legend(loc="outside lower center", ncols=2, frameon=False, fontsize=9)
    save(figure, folder, "exactness")


def claims(results: Results) -> list[Claim]:
    """The statements themselves, and claim 14."""
    found = []
    for number, statement, text in (
        (14, LEMMA, "Lemma 3.1: averages of fresh combinations of P k(., x_i) are exact at RBF fixed points"),
        (14, FEATURES, "Theorem 3.2: averages of fresh combinations of P phi_l are exact"),
    ):
        chosen = results.where(statement=statement)
        worst, control = chosen.values("error").max(), chosen.values("outside").min()
        found.append(
            Claim(
                number,
                f"{text}, and those of functions outside are not",
                f"largest error {worst:.1e}, random cosines at least {control:.1e}",
                bool(worst <= _EXACT and control >= _CONTROL * max(worst, 1e-16)),
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


CAPTION = "Averages of functions of the matching set are exact to rounding; those of others are not."
EXPERIMENT = Experiment("exactness", TITLE, columns, cells, draw, claims, CAPTION)
run = EXPERIMENT.run
