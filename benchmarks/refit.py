"""Fits that go on from an earlier one: other data of the same shape, from the earlier frame, and the same target again.

python -m benchmarks.refit

Data are leaves of the targets, so that a second fit compiles nothing. Five data sets a model, simulated from the same
parameters; a model's first fit compiles. Columns: gradients of a fit from nothing and of one with `init=`, medians over
the data sets, and its share; seconds of a warm fit from nothing; compilations in all but the first fit.
"""

import time

import jax
import jax.numpy as jnp
import numpy as np
from rich.console import Console
from rich.table import Table

import steinmatch as sm

DATA_SETS = 5


def _logistic(data, b):
    rows, signs = data
    return jnp.sum(jax.nn.log_sigmoid(signs * (rows @ b))) - 0.5 * jnp.sum(b**2)


def _poisson(data, b):
    rows, counts = data
    return jnp.sum(counts * (rows @ b) - jnp.exp(rows @ b)) - 0.5 * jnp.sum(b**2)


def _linear(data, x):
    rows, y = data
    b, log_sigma = x[:-1], x[-1]
    return (
        -0.5 * jnp.sum((y - rows @ b) ** 2) * jnp.exp(-2.0 * log_sigma)
        - (len(y) * log_sigma)
        - 0.5 * jnp.sum(b**2)
        - 0.5 * log_sigma**2
    )


def _schools(data, x):
    y, sigma = data
    mu, tau, theta = x[0], jnp.exp(x[1]), x[2:]
    prior = -0.5 * (mu / 5.0) ** 2 - jnp.log1p((tau / 5.0) ** 2) + x[1] - 8.0 * x[1]
    return prior - 0.5 * jnp.sum(((theta - mu) / tau) ** 2 + ((y - theta) / sigma) ** 2)


def models():
    """The log density of each model, its dimension, and what draws a data set."""
    rows = np.random.default_rng(1).normal(size=(100, 3))
    b = np.array([0.5, -0.5, 1.0])
    sigma = np.array([15.0, 10, 16, 11, 9, 11, 10, 18])
    return {
        "logistic regression": (
            _logistic, 3, lambda rng: (rows, np.where(rng.uniform(size=100) < 1 / (1 + np.exp(-rows @ b)), 1.0, -1.0)),
        ),
        "Poisson regression": (_poisson, 3, lambda rng: (rows, rng.poisson(np.exp(rows @ b)).astype(float))),
        "linear regression": (_linear, 4, lambda rng: (rows, rows @ b + 0.7 * rng.normal(size=100))),
        "eight schools, centred": (
            _schools, 10, lambda rng: (3.0 + 4.0 * rng.normal(size=8) + sigma * rng.normal(size=8), sigma),
        ),
    }  # fmt: skip


def main() -> None:
    table = Table(title=f"{DATA_SETS} data sets a model; medians")
    for column in (
        "model",
        "d",
        "gradients",
        "with init=",
        "share",
        "same target again",
        "s warm",
        "compilations",
        "ok",
    ):
        table.add_column(column, justify="left" if column == "model" else "right")
    compiled: list[str] = []
    jax.monitoring.register_event_duration_secs_listener(
        lambda event, *_, **__: compiled.append(event) if "backend_compile" in event else None
    )
    for name, (density, dim, draw) in models().items():
        rng = np.random.default_rng(0)
        targets = [sm.Target(jax.tree_util.Partial(density, draw(rng)), dim=dim) for _ in range(DATA_SETS + 1)]
        first = sm.fit(targets[0], progress=False)
        compiled.clear()
        fresh, again, seconds, ok = [], [], [], first.converged
        for target in targets[1:]:
            started = time.monotonic()
            alone = sm.fit(target, progress=False)
            seconds.append(time.monotonic() - started)
            follows = sm.fit(target, init=first, progress=False)
            ok = ok and alone.converged and follows.converged
            off = np.abs(np.asarray(alone.mean) - np.asarray(follows.mean)) / np.asarray(alone.sd)
            ok = ok and bool(np.all(off <= 4.0 * np.hypot(alone.error.mean, follows.error.mean) + 1e-3))
            fresh.append(alone.n_gradients)
            again.append(follows.n_gradients)
        same = sm.fit(targets[0], init=first, progress=False).n_gradients
        counts = [f"{np.median(found):,.0f}" for found in (fresh, again)]
        share = f"{np.median(np.array(again) / np.array(fresh)):.2f}"
        row = [name, str(dim), *counts, share, str(same), f"{np.median(seconds):.2f}", str(len(compiled)), str(ok)]
        print(*row, again, flush=True)
        table.add_row(*row)
    Console(width=130).print(table)


if __name__ == "__main__":
    main()
