"""Matching sets, Stein equations and query errors, against closed forms.

python -m benchmarks.queries
"""

import dataclasses
import time
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import scipy.special
from rich.console import Console
from rich.markup import escape
from rich.table import Table

import steinmatch as sm
from benchmarks._common import print_versions
from benchmarks.solvers import banana, logistic
from steinmatch.targets import GaussBernoulliRBM, Gaussian, GaussianMixture

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


def exact_queries() -> None:
    """1. Quadratics and cubics of a Gaussian, linear and quadratic features, and a fit refined for a cubic."""
    target = Gaussian.random(jax.random.key(1), 20, 10.0)
    mean, cov = np.asarray(target.mean), np.asarray(target.cov)
    rng = np.random.default_rng(0)
    a, b, t = rng.normal(size=(20, 20)), rng.normal(size=20), rng.normal(size=(20, 20, 20))
    quadratic = lambda x: x @ a @ x + b @ x  # noqa: E731
    cubic = lambda x: jnp.einsum("ijk,i,j,k", t, x, x, x)  # noqa: E731
    third = np.einsum("i,j,k", mean, mean, mean) + sum(
        np.einsum(form, mean, cov) for form in ("i,jk->ijk", "j,ik->ijk", "k,ij->ijk")
    )
    truths = {
        "quadratic": float(np.sum(a * (cov + np.outer(mean, mean))) + b @ mean),
        "cubic": float(np.sum(t * third)),
    }
    table = Table(title="1. Gaussian, d = 20")
    for column in ("fit", "n", "query", "exact", "relative error", "stated", "distance (sds)", "seconds"):
        table.add_column(column, justify="right")

    def add(label, fit, name, f):
        start = time.perf_counter()
        query = fit.query(f)
        seconds = time.perf_counter() - start
        size = abs(truths[name])
        cells = (abs(query.estimate - truths[name]) / size, query.error / size, query.distance)
        table.add_row(
            label,
            str(len(fit.particles)),
            name,
            str(query.exact),
            *(f"{float(c):.1e}" for c in cells),
            f"{seconds:.1f}",
        )

    linear = sm.fit(target, 60, kernel=sm.Linear())
    add("Linear", linear, "quadratic", quadratic)
    add("Linear", linear, "cubic", cubic)
    add("refined for the cubic", linear.refine_for(cubic), "cubic", cubic)
    polynomial = sm.fit(target, 400, kernel=sm.Whitened(sm.Polynomial(2)), max_seconds=120)
    add("Polynomial(2), whitened", polynomial, "cubic", cubic)
    CONSOLE.print(table)


def identities() -> None:
    """2 and 3. Lemma 3.1 and Theorem 3.2: what must average to zero, and what need not."""
    table = Table(title="2, 3. averages over the particles of random combinations, in their rms")
    for column in ("target", "kernel", "n", "scaled residual", "matched", "outside", "matched, 10^6 draws", "(noise)"):
        table.add_column(column, justify="right")
    rows = [
        ("Gaussian, d = 2", Gaussian.random(jax.random.key(1), 2, 5.0), sm.RBF(), 100),
        ("Gaussian, d = 20", Gaussian.random(jax.random.key(1), 20, 10.0), sm.LinearRandom(), 60),
        ("RBM, d = 20", GaussBernoulliRBM.random(jax.random.key(0), 20, 10), sm.LinearRandom(), 60),
    ]
    for name, target, kernel, n in rows:
        fit = sm.fit(target, n, kernel=kernel, max_seconds=120)
        matching = fit.matching_set
        a = np.random.default_rng(0).normal(size=(matching.n_functions - 1, 20))
        values = matching.basis(fit.particles)[:, 1:] @ a
        inside = np.abs(values.mean(0)).max() / np.sqrt(np.mean(values**2))
        waves = sm.RandomFourier(20, np.sqrt(target.dim)).bind(jax.random.key(5), jnp.asarray(fit.particles))
        other = sm.MatchingSet(target, waves, fit.particles).basis(fit.particles)[:, 1:]
        outside = np.abs(other.mean(0)).max() / np.sqrt(np.mean(other**2))
        total, squares = 0.0, 0.0
        for block in np.array_split(np.asarray(target.sample(jax.random.key(9), 10**6)), 50):
            images = matching.basis(block)[:, 1:] @ a
            total, squares = total + images.sum(0), squares + (images**2).sum(0)
        scale = np.sqrt(np.mean(squares / 10**6))
        cells = (fit.residual, inside, outside, np.abs(total / 10**6).max() / scale, 1e-3)
        table.add_row(name, type(kernel).__name__, str(n), *(f"{c:.1e}" for c in cells))
    CONSOLE.print(table)


def equations() -> None:
    """4. The Stein equation from arbitrary points and from draws."""
    rng = np.random.default_rng(0)
    for d in (1, 3, 10):
        target = Gaussian([1.0], [[2.0]]) if d == 1 else Gaussian.random(jax.random.key(d), d, 5.0)
        points = 1.0 + 2.0 * rng.normal(size=((d + 1) * (d + 2) // 2, d))
        solution = sm.stein_equation(lambda x: jnp.outer(x, x), target, sm.Linear(), points, ridge=0.0)
        off = np.abs(solution.b - np.asarray(target.cov) - np.outer(target.mean, target.mean)).max()
        CONSOLE.print(f"4. E x x^T of a Gaussian, d = {d}, from {len(points)} arbitrary points: off by {off:.1e}")
    target, mean, _ = logistic()
    line = np.linspace(-10.0, 20.0, 1501)
    grid = np.stack(np.meshgrid(line, line, indexing="ij"), axis=-1).reshape(-1, 2)
    mass = np.asarray(jax.nn.softmax(jax.vmap(target.log_density)(jnp.asarray(grid))))
    draws = [grid[rng.choice(len(grid), 200, p=mass)] + rng.uniform(-0.01, 0.01, (200, 2)) for _ in range(20)]
    plain = np.sqrt(np.mean([(x.mean(0) - mean) ** 2 for x in draws], axis=0))
    for label, features in {
        "control variates, Polynomial(2)": sm.Polynomial(2),
        "control functionals, RBF": sm.RBF(),
        "semi-exact, Polynomial(1) + RBF": sm.Polynomial(1) + sm.RBF(),
        "semi-exact, whitened, wide RBF": sm.Whitened(sm.Polynomial(1) + sm.RBF(4.0 * np.sqrt(2.0))),
    }.items():
        off = [(sm.stein_equation(lambda x: x, target, features, x).b - mean) ** 2 for x in draws]
        ratio = plain / np.sqrt(np.mean(off, axis=0))
        CONSOLE.print(
            f"4. logistic, 200 draws, {label}: RMSE of the mean {ratio[0]:.1f} and {ratio[1]:.1f} times smaller"
        )
    CONSOLE.print()


def certificates() -> None:
    """5 and 7. stein_ess of draws, fixed points, collapsed and wrong particles."""
    table = Table(title="5, 7. certificates for linear features")
    columns = ("target", "particles", "n", "stein_ess", "interval", "scaled residual", "shift", "variance ratio")
    for column in columns:
        table.add_column(column, justify="right")
    for d in (10, 30):
        target = Gaussian.random(jax.random.key(d), d, 10.0)
        mean, sd = np.asarray(target.mean), np.sqrt(np.diag(target.cov))
        ess = [sm.stein_ess(target, target.sample(jax.random.key(j), 300)).value for j in range(50)]
        number = f"{1.0 / np.mean(1.0 / np.array(ess)):.0f}"
        table.add_row(f"Gaussian, d = {d}", "exact draws, 50 repetitions", "300", number, "", "", "", "")
        draws = np.asarray(target.sample(jax.random.key(99), 1000))
        for label, x in {
            "exact draws": draws,
            "mean off by 0.2 sd": draws + 0.2 * sd,
            "variance 20 % too large": mean + np.sqrt(1.2) * (draws - mean),
            "variance 20 % too small": mean + np.sqrt(0.8) * (draws - mean),
            "collapsed to 0.1 %": mean + 1e-3 * (draws - mean),
            "fixed point, LinearRandom": sm.fit(target, 3 * d, kernel=sm.LinearRandom()).particles,
        }.items():
            c = sm.certify(target, sm.Linear(), x)
            interval = f"{c.stein_ess_interval[0]:.0f} to {c.stein_ess_interval[1]:.0f}"
            cells = (f"{c.residual:.2g}", f"{c.shift:.2g}", f"{c.variance_ratio:.3f}")
            table.add_row("", label, str(len(x)), f"{c.stein_ess:,.0f}", interval, *cells)
    CONSOLE.print(table)


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


def main() -> None:
    jax.config.update("jax_enable_x64", True)
    print_versions("jax")
    for section in (exact_queries, identities, equations, certificates, calibration):
        section()


if __name__ == "__main__":
    main()
