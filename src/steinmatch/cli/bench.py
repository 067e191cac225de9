"""`steinmatch bench`: this library beside its peers, on this machine, in one run.

Posteriors of normal hierarchical models, whose moments are known by a sum over one parameter: the automatic fit beside
NumPyro's NUTS, and NUTS's own draws after `sharpen`. One step of SVGD beside BlackJAX's and NumPyro's. Compiling is
counted on all sides, but for the step.
"""

import importlib.metadata
import platform
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from steinmatch._types import float64
from steinmatch.answers.sharpening import sharpen
from steinmatch.fitting import fit
from steinmatch.frontends.numpyro import from_numpyro
from steinmatch.kernels import RBF
from steinmatch.records.pages.report import escaped, paragraphs, rows_of, style_sheet
from steinmatch.targets import AbstractTarget, Gaussian, constrained_values, scores_at

_SCHOOLS = (np.array([28.0, 8, -3, 7, -1, 1, 18, 12]), np.array([15.0, 10, 16, 11, 9, 11, 10, 18]))
_RATE, _DIM = 0.1, 100


class Row(NamedTuple):
    """One way on one problem."""

    problem: str
    by: str
    error: float  # largest, of means (in sds) and of sds (relative); nan for a step
    gradients: int
    seconds: float
    converged: bool | None = None


def problems(quick: bool) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Observations and their standard errors, one a group."""
    found = {"eight schools": _SCHOOLS}
    for groups in () if quick else (30, 100):
        rng = np.random.default_rng(groups)
        errors = rng.uniform(5.0, 15.0, size=groups)
        found[f"{groups} groups"] = (rng.normal(3.0, 6.0, size=groups) + errors * rng.normal(size=groups), errors)
    return found


def model(y: Any, sigma: Any) -> None:
    """Group means with a common mean and spread, centred."""
    import numpyro
    import numpyro.distributions as dist

    mu = numpyro.sample("mu", dist.Normal(0.0, 5.0))
    tau = numpyro.sample("tau", dist.HalfCauchy(5.0))
    with numpyro.plate("group", len(y)):
        theta = numpyro.sample("theta", dist.Normal(mu, tau))
        numpyro.sample("y", dist.Normal(theta, sigma), obs=y)


def truth(y: np.ndarray, sigma: np.ndarray) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Means and sds: given tau all is normal, and tau is summed over."""
    s = np.linspace(-14.0, 9.0, 4001)  # log tau
    tau = np.exp(s)[:, None]
    precision = 1.0 / (sigma**2 + tau**2)
    mu_variance = 1.0 / (1.0 / 25.0 + precision.sum(axis=1))
    mu_mean = mu_variance * (precision * y).sum(axis=1)
    logs = 0.5 * np.log(precision).sum(axis=1) - 0.5 * (precision * y**2).sum(axis=1) + 0.5 * np.log(mu_variance)
    logs += 0.5 * mu_mean**2 / mu_variance - np.log1p((tau[:, 0] / 5.0) ** 2) + s
    w = np.exp(logs - logs.max())
    w /= w.sum()
    shrunk = tau**2 / (tau**2 + sigma**2)  # theta given mu and tau has the mean shrunk y + (1 - shrunk) mu
    theta_mean = shrunk * y + (1.0 - shrunk) * mu_mean[:, None]
    theta_variance = shrunk * sigma**2 + (1.0 - shrunk) ** 2 * mu_variance[:, None]

    def moments(mean: np.ndarray, variance: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        average = np.tensordot(w, mean, 1)
        return average, np.sqrt(np.tensordot(w, variance + (mean - average) ** 2, 1))

    zero = np.zeros(len(s))
    return {
        "mu": moments(mu_mean, mu_variance),
        "tau": moments(tau[:, 0], zero),
        "theta": moments(theta_mean, theta_variance),
    }


def _largest(target: AbstractTarget, x: np.ndarray, weights: np.ndarray, exact: dict) -> float:
    names, values = constrained_values(target, x)
    mean = weights @ values
    sd = np.sqrt(weights @ (values - mean) ** 2)
    wanted = [np.concatenate([np.atleast_1d(exact[name][i]) for name in exact]) for i in (0, 1)]
    order = np.concatenate([np.flatnonzero([n.split("[")[0] == name for n in names]) for name in exact])
    return float(max(np.max(np.abs(mean[order] - wanted[0]) / wanted[1]), np.max(np.abs(sd[order] / wanted[1] - 1.0))))


@float64
def posterior_rows(name: str, y: np.ndarray, sigma: np.ndarray, seed: int) -> list[Row]:
    """The automatic fit, NUTS, and NUTS's draws sharpened."""
    from numpyro.infer import MCMC, NUTS

    exact = truth(y, sigma)
    started = time.monotonic()
    target = from_numpyro(model, y, sigma)
    found = fit(target, seed=seed, progress=False)
    rows = [
        Row(
            name,
            "steinmatch",
            _largest(target, found.particles, found.weights, exact),
            found.n_gradients + 2 * found.n_hvps,
            time.monotonic() - started,
            found.converged,
        )
    ]
    started = time.monotonic()
    mcmc = MCMC(NUTS(model), num_warmup=1000, num_samples=1000, progress_bar=False)
    fields = ("num_steps",)
    mcmc.warmup(jax.random.key(seed), y, sigma, extra_fields=fields, collect_warmup=True)
    gradients = int(np.sum(mcmc.get_extra_fields()["num_steps"]))
    mcmc.run(mcmc.post_warmup_state.rng_key, y, sigma, extra_fields=fields)  # type: ignore[union-attr]
    gradients += int(np.sum(mcmc.get_extra_fields()["num_steps"]))
    seconds = time.monotonic() - started
    started = time.monotonic()
    sharpened = sharpen(mcmc, target)
    even = np.full(len(sharpened.draws), 1.0 / len(sharpened.draws))
    rows.append(
        Row(name, "NumPyro NUTS, 1000 + 1000", _largest(target, sharpened.draws, even, exact), gradients, seconds)
    )
    sharp = _largest(target, sharpened.draws, np.asarray(sharpened.weights), exact)
    rows.append(Row(name, "the same draws, sharpened", sharp, len(even), time.monotonic() - started))
    return rows


@float64
def step_rows(n: int) -> list[Row]:
    """One step of SVGD with the RBF kernel and the median rule, compiled: bandwidth, velocity, AdaGrad."""
    name = f"SVGD step, n = {n}, d = {_DIM}"
    steps = {"steinmatch": _own_step, "BlackJAX": _blackjax_step, "NumPyro": _numpyro_step}
    return [Row(name, by, np.nan, n, _median(step(n))) for by, step in steps.items()]


def _median(call: Callable[[], Any]) -> float:
    jax.block_until_ready(call())
    times = []
    for _ in range(5):
        started = time.perf_counter()
        jax.block_until_ready(call())
        times.append(time.perf_counter() - started)
    return float(np.median(times))


def _own_step(n: int) -> Callable[[], Any]:
    target, rule, kernel = Gaussian(np.zeros(_DIM), np.eye(_DIM)), optax.adagrad(_RATE), RBF()
    particles = jax.random.normal(jax.random.key(0), (n, _DIM))
    weights, state = jnp.full(n, 1.0 / n), rule.init(particles)

    @jax.jit
    def step(particles: Any, state: Any) -> Any:
        velocity = kernel.hold(particles).velocity(particles, scores_at(target, particles), weights)
        updates, state = rule.update(-velocity, state, particles)
        return optax.apply_updates(particles, updates), state

    return lambda: step(particles, state)


def _blackjax_step(n: int) -> Callable[[], Any]:
    import blackjax
    from blackjax.vi.svgd import rbf_kernel, update_median_heuristic

    svgd: Any = blackjax.svgd(
        jax.grad(lambda x: -0.5 * jnp.sum(x**2)), optax.adagrad(_RATE), rbf_kernel, update_median_heuristic
    )
    state = svgd.init(jax.random.normal(jax.random.key(0), (n, _DIM)))
    step = jax.jit(lambda state: svgd.step(state))
    return lambda: step(state)


def _numpyro_step(n: int) -> Callable[[], Any]:
    import numpyro
    import numpyro.distributions as dist
    from numpyro.contrib.einstein import SVGD, RBFKernel

    def target() -> None:
        numpyro.sample("x", dist.Normal(jnp.zeros(_DIM), 1.0).to_event(1))

    svgd = SVGD(target, numpyro.optim.Adagrad(_RATE), RBFKernel(), num_stein_particles=n)
    state = svgd.init(jax.random.key(0))
    step = jax.jit(lambda state: svgd.update(state)[0])
    return lambda: step(state).optim_state


def about() -> str:
    """The machine and the versions."""
    packages = ("steinmatch", "jax", "numpyro", "blackjax")
    versions = ", ".join(f"{package} {importlib.metadata.version(package)}" for package in packages)
    return f"{versions}; Python {platform.python_version()}, {platform.machine()}, {jax.device_count()} device(s)."


def shown(row: Row) -> tuple[str, ...]:
    """A row as text."""
    error = "" if np.isnan(row.error) else f"{row.error:.3f}"
    verdict = "" if row.converged is None else ("converged" if row.converged else "not converged")
    seconds = f"{row.seconds:.1f}" if row.seconds >= 1.0 else f"{row.seconds:.4f}"
    return row.problem, row.by, error, f"{row.gradients:,}", seconds, verdict


HEADINGS = ("problem", "by", "largest error", "gradients", "s", "")


def bench_page(rows: list[Row]) -> str:
    """One page with the table."""
    words = paragraphs(
        "Largest error: of means in posterior sds, of sds relative, over all parameters, against exact moments. "
        "Gradients are evaluations of the score for one point. Seconds include compiling, but for the SVGD step.",
        about(),
    )
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escaped('steinmatch beside its peers')}</title><style>{style_sheet()}</style></head><body>"
        f"<h1>steinmatch beside its peers</h1>{rows_of(HEADINGS, [shown(row) for row in rows])}{words}</body></html>\n"
    )
