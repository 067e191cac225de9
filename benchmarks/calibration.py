"""Are the stated errors true? Simulated data sets of eight model families, each fitted with the defaults.

python -m benchmarks.calibration [--sets N] [family ...]        30 data sets a family by default

Truth comes from closed forms or quadrature. For each fit that says converged: how often a true error of a mean or sd is
above two stated ones; and how often the parameter that made the data lies within the central 90 % interval, which over
data sets drawn from the prior is 90 % of the time (simulation-based calibration).
"""

import argparse
import time
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import scipy.special
import scipy.stats
from rich.console import Console
from rich.table import Table

import steinmatch as sm
from steinmatch.records.summary import weighted_quantiles


class Case(NamedTuple):
    """A posterior of one simulated data set: mean and sd of the constrained values, and those that made the data."""

    target: sm.Target
    mean: np.ndarray
    sd: np.ndarray
    made_by: np.ndarray


def on_grid(log_density: Callable, values: Callable, *axes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Means and sds of functions of few coordinates, on a grid."""
    points = np.stack(np.meshgrid(*axes, indexing="ij"), axis=-1).reshape(-1, len(axes))
    with jax.enable_x64(True):
        logs = np.asarray(jax.vmap(log_density)(jnp.asarray(points)))
        found = np.asarray(jax.vmap(values)(jnp.asarray(points)))
    weights = np.exp(logs - logs.max())
    weights /= weights.sum()
    mean = weights @ found
    return mean, np.sqrt(weights @ (found - mean) ** 2)


def regression(rng: np.random.Generator) -> Case:
    """Linear regression with known noise: conjugate."""
    x, b = rng.normal(size=(20, 6)), rng.normal(size=6)
    y = x @ b + rng.normal(size=20)
    covariance = np.linalg.inv(np.eye(6) + x.T @ x)
    target = sm.Target(lambda b: -0.5 * jnp.sum((y - x @ b) ** 2) - 0.5 * jnp.sum(b**2), dim=6)
    return Case(target, covariance @ x.T @ y, np.sqrt(np.diagonal(covariance)), b)


def normal_sample(rng: np.random.Generator) -> Case:
    """Mean and scale of a normal sample, conjugate: sigma^2 ~ IG(3, 3), mu ~ N(0, sigma^2); unconstrained log sigma."""
    variance = 1.0 / rng.gamma(3.0, 1.0 / 3.0)
    mu = np.sqrt(variance) * rng.normal()
    y = mu + np.sqrt(variance) * rng.normal(size=8)

    def log_density(z):
        v = jnp.exp(2.0 * z[1])
        scale = -(8 + 1) * z[1] - (2 * 3.0 + 2.0) * z[1] - 3.0 / v + 2.0 * z[1]
        return -0.5 * (jnp.sum((y - z[0]) ** 2) + z[0] ** 2) / v + scale

    def values(z):
        return jnp.stack([z[0], jnp.exp(z[1])])

    a, n = 3.0 + 4.0, 9.0
    centre = y.sum() / n
    b = 3.0 + 0.5 * (np.sum(y**2) - n * centre**2)
    sd_mu = np.sqrt(b / n / a * (2 * a) / (2 * a - 2))
    sigma = np.sqrt(b) * np.exp(scipy.special.gammaln(a - 0.5) - scipy.special.gammaln(a))
    mean, sd = np.array([centre, sigma]), np.array([sd_mu, np.sqrt(b / (a - 1) - sigma**2)])
    return Case(sm.Target(log_density, dim=2, constrain=values), mean, sd, np.array([mu, np.sqrt(variance)]))


def counts(rng: np.random.Generator) -> Case:
    """Gamma-Poisson rates, each with its own data: conjugate, skewed."""
    rates = rng.gamma(2.0, size=5)
    y = rng.poisson(rates * 2.0)
    target = sm.Target(lambda z: jnp.sum((y + 2.0) * z - 3.0 * jnp.exp(z)), dim=5, constrain=jnp.exp)
    return Case(target, (y + 2.0) / 3.0, np.sqrt(y + 2.0) / 3.0, rates)


def proportions(rng: np.random.Generator) -> Case:
    """Beta-binomial proportions."""
    p = rng.beta(1.0, 3.0, size=4)
    y = rng.binomial(6, p)
    a, b = 1.0 + y, 3.0 + 6 - y
    target = sm.Target(
        lambda z: jnp.sum(a * jax.nn.log_sigmoid(z) + b * jax.nn.log_sigmoid(-z)), dim=4, constrain=jax.nn.sigmoid
    )
    return Case(target, a / (a + b), np.sqrt(a * b / (a + b) ** 2 / (a + b + 1.0)), p)


def logistic(rng: np.random.Generator) -> Case:
    """Logistic regression of few observations, by quadrature."""
    x, b = rng.normal(size=(12, 2)), 1.5 * rng.normal(size=2)
    y = (rng.uniform(size=12) < scipy.special.expit(x @ b)).astype(float)

    def log_density(b):
        eta = x @ b
        return jnp.sum(y * eta - jnp.logaddexp(0.0, eta)) - 0.5 * jnp.sum(b**2) / 1.5**2

    line = np.linspace(-10.0, 10.0, 401)
    mean, sd = on_grid(log_density, lambda b: b, line, line)
    return Case(sm.Target(log_density, dim=2), mean, sd, b)


def robust(rng: np.random.Generator) -> Case:
    """Location of a t_3 sample, by quadrature."""
    mu = 3.0 * rng.normal()
    y = mu + rng.standard_t(3.0, size=6)

    def log_density(z):
        return jnp.sum(-2.0 * jnp.log1p((y - z[0]) ** 2 / 3.0)) - 0.5 * z[0] ** 2 / 9.0

    mean, sd = on_grid(log_density, lambda z: z, np.linspace(-20.0, 20.0, 20001))
    return Case(sm.Target(log_density, dim=1), mean, sd, np.array([mu]))


def groups(rng: np.random.Generator, centred: bool = True) -> Case:
    """Eight groups with a scale of their own, y_j ~ N(theta_j, 1), theta_j ~ N(0, tau): tau by quadrature, given which
    the others are normal.
    """
    tau = np.exp(0.7 * rng.normal())
    theta = tau * rng.normal(size=8)
    y = theta + rng.normal(size=8)

    def log_density(z):
        scale = jnp.exp(z[0])
        place = z[1:] if centred else scale * z[1:]
        prior = -0.5 * jnp.sum(z[1:] ** 2) / scale**2 - 8.0 * z[0] if centred else -0.5 * jnp.sum(z[1:] ** 2)
        return prior - 0.5 * jnp.sum((y - place) ** 2) - 0.5 * (z[0] / 0.7) ** 2

    def values(z):
        scale = jnp.exp(z[0])
        return jnp.concatenate([scale[None], z[1:] if centred else scale * z[1:]])

    u = np.linspace(-5.0, 5.0, 8001)
    v = np.exp(2.0 * u)
    logs = -0.5 * (u / 0.7) ** 2 - 4.0 * np.log(1.0 + v) - 0.5 * np.sum(y**2) / (1.0 + v)
    weights = np.exp(logs - logs.max())
    weights /= weights.sum()
    shrink = v / (1.0 + v)
    mean = np.concatenate([[weights @ np.exp(u)], (weights @ shrink) * y])
    second = np.concatenate([[weights @ v], weights @ shrink + (weights @ shrink**2) * y**2])
    return Case(
        sm.Target(log_density, dim=9, constrain=values), mean, np.sqrt(second - mean**2), np.array([tau, *theta])
    )


def noncentred(rng: np.random.Generator) -> Case:
    """The same in non-centred form."""
    return groups(rng, centred=False)


FAMILIES = (regression, normal_sample, counts, proportions, logistic, robust, groups, noncentred)


def measured(case: Case, seed: int) -> dict:
    fit = sm.fit(case.target, seed=seed, progress=False)
    _, values = sm.targets.constrained_values(case.target, fit.particles)
    assert fit.error is not None
    mean = fit.weights @ values
    sd = np.sqrt(fit.weights @ (values - mean) ** 2)
    true = np.concatenate([np.abs(mean - case.mean) / case.sd, np.abs(sd / case.sd - 1.0)])
    low, high = np.stack([weighted_quantiles(column, fit.weights, (0.05, 0.95)) for column in values.T]).T
    return {
        "converged": fit.converged,
        "largest": float(true.max()),
        "beyond": true > 2.0 * np.concatenate(fit.error),
        "inside": (case.made_by > low) & (case.made_by < high),
        "gradients": fit.n_gradients,
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("families", nargs="*")
    parser.add_argument("--sets", type=int, default=30)
    arguments = parser.parse_args()
    table = Table(title="stated errors and intervals over simulated data sets")
    for column in (
        "family",
        "converged",
        "wrong (> 0.04)",
        "P(true > 2 stated)",
        "90 % interval covers",
        "gradients",
        "s",
    ):
        table.add_column(column, justify="left" if column == "family" else "right")
    beyond, inside, wrong = [], [], 0
    for family in FAMILIES:
        if arguments.families and family.__name__ not in arguments.families:
            continue
        started = time.monotonic()
        number = FAMILIES.index(family)
        rows = [measured(family(np.random.default_rng([number, k])), k) for k in range(arguments.sets)]
        good = [row for row in rows if row["converged"]]
        bad = sum(row["largest"] > 0.04 for row in good)
        mine = np.concatenate([row["beyond"] for row in good]) if good else np.zeros(0)
        covers = np.concatenate([row["inside"] for row in good]) if good else np.zeros(0)
        beyond, inside, wrong = [*beyond, mine], [*inside, covers], wrong + bad
        table.add_row(
            family.__name__,
            f"{len(good)} of {len(rows)}",
            str(bad),
            f"{np.mean(mine):.1%}" if len(mine) else "-",
            f"{np.mean(covers):.1%} of {len(covers)}" if len(covers) else "-",
            f"{np.median([row['gradients'] for row in rows]):,.0f}",
            f"{time.monotonic() - started:.0f}",
        )
    console = Console()
    console.print(table)
    every, cover = np.concatenate(beyond), np.concatenate(inside)
    console.print(f"P(true > 2 stated | converged): {np.mean(every):.1%} of {len(every)}; converged and wrong: {wrong}")
    console.print(f"90 % intervals cover {np.mean(cover):.1%} of {len(cover)}")


if __name__ == "__main__":
    main()
