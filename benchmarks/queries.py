"""Matching sets, Stein equations and query errors, against closed forms.

python -m benchmarks.queries
"""

import dataclasses
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import scipy.special
from rich.console import Console
from rich.markup import escape
from rich.table import Table

import steinmatch as sm
from steinmatch.targets import Gaussian, GaussianMixture

CONSOLE = Console(width=150)


@dataclasses.dataclass(frozen=True)
class Case:
    """A target with a kernel to fit it by, and queries with their true answers."""

    name: str
    target: sm.targets.AbstractTarget
    kernel: object
    n: int
    queries: dict[str, tuple[Callable, float]]


def normal_mixture_queries(means, cov, weights) -> dict[str, tuple[Callable, float]]:
    """Queries of a mixture of normals with one covariance, all closed form."""
    means, weights = np.atleast_2d(means), np.asarray(weights)
    mean = weights @ means
    second = np.einsum("k,ki->i", weights, means**2) + np.diag(cov)
    sd = np.sqrt(second - mean**2)
    d = len(mean)

    def above(j, c):
        return float(weights @ scipy.special.ndtr((means[:, j] - c) / np.sqrt(cov[j, j])))

    def exponential(a):
        return float(weights @ np.exp(means @ a + 0.5 * a @ cov @ a))

    a = np.zeros(d)
    a[0] = 0.7 / sd[0]
    b = np.full(d, 0.4) / sd / np.sqrt(d)
    c = [mean[0] + 0.5 * sd[0], mean[1], mean[-1] - sd[-1]]
    return {
        "E[x0]": (lambda x: x[0], float(mean[0])),
        "E[x1]": (lambda x: x[1], float(mean[1])),
        "E[x0^2]": (lambda x: x[0] ** 2, float(second[0])),
        "E[x1^2]": (lambda x: x[1] ** 2, float(second[1])),
        "P(x0 > m + sd/2)": (lambda x: (x[0] > c[0]) * 1.0, above(0, c[0])),
        "P(x1 > m)": (lambda x: (x[1] > c[1]) * 1.0, above(1, c[1])),
        "E exp(.7 x0/sd)": (lambda x: jnp.exp(x @ a), exponential(a)),
        "E exp(b.x)": (lambda x: jnp.exp(x @ b), exponential(b)),
    }


def grid_queries(target, low, high) -> dict[str, tuple[Callable, float]]:
    """The same kinds of queries of a 2-D target, by quadrature on a fine grid (exact to 1e-5 for the probabilities)."""
    lines = [jnp.linspace(a, b, 2001) for a, b in zip(low, high, strict=True)]
    grid = jnp.stack(jnp.meshgrid(*lines, indexing="ij"), axis=-1).reshape(-1, 2)
    mass = jax.nn.softmax(jax.vmap(target.log_density)(grid))
    mean = np.asarray(mass @ grid)
    sd = np.sqrt(np.asarray(mass @ (grid - mean[None, :]) ** 2))
    queries = {
        "E[x0]": lambda x: x[0],
        "E[x1]": lambda x: x[1],
        "E[x0^2]": lambda x: x[0] ** 2,
        "E[x1^2]": lambda x: x[1] ** 2,
        "P(x0 > m + sd/2)": lambda x: (x[0] > mean[0] + 0.5 * sd[0]) * 1.0,
        "P(x1 > m)": lambda x: (x[1] > mean[1]) * 1.0,
        "E exp(.7 x0/sd)": lambda x: jnp.exp(0.7 * (x[0] - mean[0]) / sd[0]),
        "E exp(-.4 x1/sd)": lambda x: jnp.exp(-0.4 * (x[1] - mean[1]) / sd[1]),
    }
    return {name: (f, float(mass @ jax.vmap(f)(grid))) for name, f in queries.items()}


def log_gamma_case() -> Case:
    """Independent logarithms of gamma variables: skewed, everything closed form."""
    shapes = np.array([1.5, 2.0, 3.0, 6.0])
    target = sm.Target(lambda x: jnp.sum(shapes * x - jnp.exp(x)), dim=4)
    mean, variance = scipy.special.digamma(shapes), scipy.special.polygamma(1, shapes)
    c = mean[0] + 0.5 * np.sqrt(variance[0])
    queries = {
        "E[x0]": (lambda x: x[0], float(mean[0])),
        "E[x3]": (lambda x: x[3], float(mean[3])),
        "E[x0^2]": (lambda x: x[0] ** 2, float(variance[0] + mean[0] ** 2)),
        "E[x3^2]": (lambda x: x[3] ** 2, float(variance[3] + mean[3] ** 2)),
        "P(x0 > m + sd/2)": (lambda x: (x[0] > c) * 1.0, float(scipy.special.gammaincc(1.5, np.exp(c)))),
        "P(x1 > m)": (lambda x: (x[1] > mean[1]) * 1.0, float(scipy.special.gammaincc(2.0, np.exp(mean[1])))),
        "E exp(x0)": (lambda x: jnp.exp(x[0]), 1.5),
        "E exp(x2/2)": (
            lambda x: jnp.exp(0.5 * x[2]),
            float(scipy.special.gamma(3.5) / scipy.special.gamma(3.0)),
        ),
    }
    return Case("log-gamma, d = 4", target, sm.Whitened(sm.Polynomial(2)), 200, queries)


def cases() -> list[Case]:
    from benchmarks.solvers import banana, logistic

    gaussian = Gaussian.random(jax.random.key(1), 6, 10.0)
    means = 0.6 * jax.random.normal(jax.random.key(2), (3, 5), jnp.float64)
    shares = jnp.array([0.5, 0.3, 0.2])
    mixture = GaussianMixture(means, shares)
    logit, *_ = logistic()
    return [
        Case("Gaussian, d = 6", gaussian, sm.Linear(), 60, normal_mixture_queries(gaussian.mean, gaussian.cov, [1.0])),
        Case("logistic, d = 2", logit, sm.Whitened(sm.Polynomial(2)), 100, grid_queries(logit, (-8, -14), (20, 8))),
        Case("banana, d = 2", banana(), sm.Whitened(sm.Polynomial(3)), 150, grid_queries(banana(), (-7, -3), (7, 20))),
        Case("mixture, d = 5", mixture, sm.LinearRandom(), 150, normal_mixture_queries(means, np.eye(5), shares)),
        log_gamma_case(),
    ]


def calibration() -> None:
    """6. Stated against true errors."""
    table = Table(title="6. queries: true and stated errors")
    for column in ("target", "query", "truth", "average off by", "estimate off by", "stated", "stated / true", "exact"):
        table.add_column(column, justify="right")
    ratios, covered = [], []
    for case in cases():
        fit = sm.fit(case.target, case.n, kernel=case.kernel, max_seconds=60)
        for name, (f, truth) in case.queries.items():
            query = fit.query(f)
            off = abs(float(query.estimate) - truth)
            reference = 1e-6 * max(1.0, abs(truth))  # quadrature on a grid is no better than that
            covered.append(off <= 2.0 * float(query.error) + reference)
            # An exact answer has neither error; a ratio of two rounding errors says nothing.
            if not query.exact:
                ratios.append(float(query.error) / max(off, reference))
            table.add_row(
                case.name,
                escape(name),
                f"{truth:.4f}",
                f"{float(query.average) - truth:.1e}",
                f"{float(query.estimate) - truth:.1e}",
                f"{float(query.error):.1e}",
                "" if query.exact else f"{ratios[-1]:.1f}",
                "yes" if query.exact else "",
            )
    CONSOLE.print(table)
    CONSOLE.print(
        f"   below twice the stated error: {np.mean(covered):.1%} of {len(covered)}; "
        f"median stated / true {np.median(ratios):.1f}\n"
    )


if __name__ == "__main__":
    jax.config.update("jax_enable_x64", True)
    calibration()
