"""The methods that the paper compares, by small steps and by our solver, and the errors that it plots."""

import dataclasses
import time
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
import optax

from steinmatch.experiments.store import Row
from steinmatch.fitting import fit
from steinmatch.kernels import RBF
from steinmatch.kernels.features import Linear, LinearRandom
from steinmatch.measures.discrepancy import mmd
from steinmatch.solvers import AbstractSolver, Affine, Annealed, Chain, Descent, LevenbergMarquardt

MONTE_CARLO, RBF_SVGD, LINEAR, LINEAR_RANDOM = "Monte Carlo", "SVGD RBF", "SVGD linear", "SVGD linear+random"
SVGD = (RBF_SVGD, LINEAR, LINEAR_RANDOM)
KERNELS = {RBF_SVGD: RBF, LINEAR: Linear, LINEAR_RANDOM: LinearRandom}
# Okabe and Ito's palette, which colour-blind readers can tell apart; one colour a method, everywhere.
COLOURS = {MONTE_CARLO: "#000000", RBF_SVGD: "#D55E00", LINEAR: "#0072B2", LINEAR_RANDOM: "#009E73"}
MARKS = {MONTE_CARLO: "s", RBF_SVGD: "v", LINEAR: "o", LINEAR_RANDOM: "D"}
STYLES = {"exact draws": "-", "newton": "-", "descent": "--", "annealed": ":"}

# AdaGrad with an accumulating sum of squares. For each panel and method the best of these rates is used, on models
# and starts of their own.
RATES, DESCENT_STEPS = (0.05, 0.1, 0.2, 0.5, 1.0, 2.0), 2000
TUNING_TRIAL = 10_000  # a trial that no run has
# Our solver is limited by counts, not by seconds: same seed, same numbers. These are enough for machine precision on
# the Gaussians. On RBMs and mixtures the moments no longer change below a scaled residual of 5e-3: 1e-4 is asked for.
NEWTON_STEPS, INNER_STEPS = 20, 300
EXACT, ROUGH = 1e-10, 1e-4


@dataclasses.dataclass(frozen=True)
class Settings:
    """What a run of the experiments was asked for."""

    trials: int = 20
    seed: int = 0
    quick: bool = False
    solvers: tuple[str, ...] = ("descent", "newton")
    annealed: bool = False  # whether mixtures are also annealed
    tol: float = EXACT  # of our solver's scaled residual
    polish: bool = False  # whether our solver starts from the particles of descent, not from the affine phase


def trial_key(settings: Settings, trial: int, what: int = 0) -> Any:
    """The key of a trial's model or draws, the same whatever else runs."""
    return jax.random.fold_in(jax.random.fold_in(jax.random.key(settings.seed), trial), what)


def moment_errors(target: Any, particles: np.ndarray) -> Row:
    """Mean over the dimensions of the squared errors of E[x] and E[x^2], as they are and relative; the MMD; and the
    estimated variance in units of the true one.
    """
    mean, second = particles.mean(axis=0), (particles**2).mean(axis=0)
    true_mean, true_second = np.asarray(target.mean), np.asarray(target.second_moment)
    variance = np.asarray(np.diagonal(target.cov))
    return {
        "mse_mean": float(np.mean((mean - true_mean) ** 2)),
        "mse_second": float(np.mean((second - true_second) ** 2)),
        "relative_second": float(np.mean((second / true_second - 1.0) ** 2)),
        "mmd": float(mmd(target, particles)),
        "variance": float(np.mean(particles.var(axis=0) / variance)),
    }


def tuned_rate(
    make_target: Callable[[float, int], Any], sizes: Sequence[tuple[float, int]], method: str, settings: Settings
) -> float:
    """The rate with the least product of squared errors of E[x] and E[x^2] over some values, given with their n."""
    if len(RATES) == 1:
        return RATES[0]
    seed, losses = settings.seed + 1000 * TUNING_TRIAL, []
    for rate in RATES:
        loss = 0.0
        for value, n in sizes:
            target = make_target(value, TUNING_TRIAL)
            way = Descent(optax.adagrad(rate), n_steps=DESCENT_STEPS)
            result = fit(target, n, kernel=KERNELS[method](), solver=way, seed=seed, progress=False)
            errors = moment_errors(target, result.particles)
            found = errors["mse_mean"] * errors["mse_second"]
            loss += float(np.log(max(found, 1e-60))) if np.isfinite(found) else np.inf
        losses.append(loss)
    return RATES[int(np.argmin(losses))]


def measure(
    target: Any, method: str, solver: str, n: int, settings: Settings, trial: int, rate: float = RATES[3]
) -> Row:
    """One method on one target: its errors, and how it went; descent with this rate."""
    if method == MONTE_CARLO:
        started = time.monotonic()
        particles = np.asarray(target.sample(trial_key(settings, trial, 1), n))
        return {**moment_errors(target, particles), "seconds": time.monotonic() - started}
    kernel = KERNELS[method]()
    seed = settings.seed + 1000 * trial
    way = _way(solver, settings, method != RBF_SVGD and n >= target.dim + 1, rate)
    result = fit(target, n, kernel=kernel, solver=way, seed=seed, progress=False)
    return {
        **moment_errors(target, result.particles),
        "rate": None if solver == "newton" and not settings.polish else rate,
        "residual": result.residual,
        "converged": result.converged,
        "seconds": result.seconds,
    }


def _way(solver: str, settings: Settings, full_rank: bool, rate: float) -> AbstractSolver:
    """The solver of this name. The affine phase finds one mode: on mixtures our solver polishes what descent found."""
    by_steps = Descent(optax.adagrad(rate), n_steps=DESCENT_STEPS)
    newton = LevenbergMarquardt(settings.tol, n_steps=NEWTON_STEPS, inner_steps=INNER_STEPS)
    if solver == "descent":
        return by_steps
    if solver == "annealed":
        return Annealed(polish=by_steps)  # the paper's temperatures
    if settings.polish:
        return Chain(by_steps, newton)
    return Chain(Affine(), newton) if full_rank else Chain(Affine(), by_steps, newton)
