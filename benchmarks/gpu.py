"""Steps, solves and fits on one GPU, beside plain XLA forms and NumPyro; run where JAX sees one.

python -m benchmarks.gpu [--out FILE]

Seconds are medians of five warm calls, waited for (of random features also of ten calls in a row, as steps are made);
errors of velocities are relative, over 200 particles, to double precision.
"""

import argparse
import datetime
import functools
import importlib.metadata
import platform
import time
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax

import steinmatch as sm
from benchmarks._common import median_seconds, queued_seconds
from benchmarks.scale import school_data, school_target, together, wrongly_converged
from steinmatch.kernels import AbstractRadialKernel
from steinmatch.kernels.forms import feature_velocity
from steinmatch.measures.velocity import in_single

DIM, RATE = 100, 0.1
LINES: list[str] = []


def tell(line: str) -> None:
    print(line, flush=True)
    LINES.append(line)


def normal(n: int) -> tuple:
    x = jax.random.normal(jax.random.key(0), (n, DIM), jnp.float32)
    return x, -x, jnp.full(n, 1.0 / n, jnp.float32)


def exact_rows(kernel: sm.RBF, x, s, w, rows: np.ndarray) -> np.ndarray:
    """The velocity of some particles, in double precision."""
    x, s, w = (jnp.asarray(np.asarray(part, np.float64)) for part in (x, s, w))
    h2 = float(kernel._held_bandwidth()) ** 2
    some = x[rows]
    squares = jnp.sum(some**2, axis=1)[:, None] + jnp.sum(x**2, axis=1)[None] - 2.0 * some @ x.T
    k = jnp.exp(-0.5 * squares / h2)
    return np.asarray(k @ (w[:, None] * (s - x / h2)) + some / h2 * (k @ w)[:, None])


def rbf_steps(sizes: tuple[int, ...]) -> None:
    tell(f"\nRBF step, median rule, AdaGrad, d = {DIM}, single precision, ms (relative error of the velocity)")
    for n in sizes:
        x, s, w = normal(n)
        rule = optax.adagrad(RATE)
        state = rule.init(x)

        def step(form, x, state, s=s, w=w, rule=rule):
            velocity = form(in_single(sm.RBF().hold(x)), x, s, w)
            updates, state = rule.update(-velocity, state, x)
            return optax.apply_updates(x, updates), state, velocity

        kernel = sm.RBF().hold(x)
        rows = np.arange(0, n, n // 200)[:200]
        truth = exact_rows(kernel, x, s, w, rows)
        forms = {"fused": sm.RBF.velocity, "XLA, float32": AbstractRadialKernel.velocity}
        cells = []
        for name, form in forms.items():
            run = jax.jit(lambda x, state, form=form: step(form, x, state))
            off = np.asarray(run(x, state)[2], np.float64)[rows] - truth
            seconds = median_seconds(functools.partial(run, x, state))
            cells.append(f"{name} {1e3 * seconds:.2f} ({np.linalg.norm(off) / np.linalg.norm(truth):.1e})")
        if n <= 20_000:
            cells.append(f"NumPyro {1e3 * numpyro_step(n):.1f}")
            cells.append(f"BlackJAX {1e3 * blackjax_step(n):.1f}")
        tell(f"  n = {n:>7,}: " + ", ".join(cells))


def numpyro_step(n: int) -> float:
    import numpyro
    import numpyro.distributions as dist
    from numpyro.contrib.einstein import SVGD, RBFKernel

    def model():
        numpyro.sample("x", dist.Normal(jnp.zeros(DIM), 1.0).to_event(1))

    svgd = SVGD(model, numpyro.optim.Adagrad(RATE), RBFKernel(), num_stein_particles=n)
    state = svgd.init(jax.random.key(0))
    step = jax.jit(lambda state: svgd.update(state)[0])
    return median_seconds(lambda: step(state).optim_state)


def blackjax_step(n: int) -> float:
    import blackjax
    from blackjax.vi.svgd import rbf_kernel, update_median_heuristic

    svgd: Any = blackjax.svgd(lambda x: -x, optax.adagrad(RATE), rbf_kernel, update_median_heuristic)
    state = svgd.init(jax.random.normal(jax.random.key(0), (n, DIM), jnp.float32))
    step = jax.jit(lambda state: svgd.step(state))
    return median_seconds(lambda: step(state))


def feature_step(n: int = 10**6, m: int = 1024) -> None:
    x, s, w = normal(n)
    kernel = in_single(sm.RandomFourier(m).bind(jax.random.key(1), x[:1000].astype(jnp.float64)).hold(x))
    some = x[:20_000], s[:20_000], jnp.full(20_000, 1.0 / 20_000, jnp.float32)
    doubled = jax.tree.map(lambda a: a.astype(jnp.float64) if eqx.is_inexact_array(a) else a, (kernel, *some))
    truth = eqx.filter_jit(feature_velocity)(*doubled)
    forms = {"fused": (lambda *parts: kernel.velocity(*parts), "default")}
    for precision in ("default", "BF16_BF16_F32_X3", "highest"):
        forms[f"XLA, {precision}"] = (lambda *parts: feature_velocity(kernel, *parts), precision)
    for name, (form, precision) in forms.items():
        with jax.default_matmul_precision(precision):
            run = jax.jit(form)
            call = functools.partial(run, x, s, w)
            seconds = median_seconds(call), queued_seconds(call)
            off = float(jnp.linalg.norm(run(*some) - truth) / jnp.linalg.norm(truth))
        tell(
            f"random features, n = {n:,}, m = {m}, {name}: {1e3 * seconds[0]:.2f} ms alone, {1e3 * seconds[1]:.2f} ms "
            f"each of ten in a row ({off:.1e})"
        )


def levenberg_marquardt() -> None:
    for n in (250, 1000):
        target = sm.targets.Gaussian(np.zeros(DIM), np.eye(DIM))
        times = []
        for seed in (0, 1, 2):
            started = time.monotonic()
            fit = sm.fit(target, n, kernel=sm.LinearRandom(), seed=seed, progress=False)
            times.append(time.monotonic() - started)
        error = float(np.mean((np.mean(fit.particles**2, axis=0) - 1.0) ** 2))
        tell(
            f"LinearRandom, d = {DIM}, n = {n}, float64: first {times[0]:.1f} s, warm {np.median(times[1:]):.2f} s, "
            f"squared error of E[x^2] {error:.0e}, converged {fit.converged}"
        )


def logistic(rows: int = 10**6, columns: int = 50) -> None:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(rows, columns)).astype(np.float32)
    w = rng.normal(size=columns) / np.sqrt(columns)
    y = rng.random(rows) < 1.0 / (1.0 + np.exp(-X @ w))
    signed = np.where(y, 1.0, -1.0).astype(np.float32)[:, None] * X

    def log_likelihood(w, rows):
        return jax.nn.log_sigmoid(rows @ w)

    times = []
    for flip in (1.0, -1.0):  # other data of the same shape
        started = time.monotonic()
        target = sm.Target.from_data(lambda w: -0.5 * jnp.sum(w**2), log_likelihood, flip * signed, dim=columns)
        fit = sm.fit(target, progress=False)
        times.append(time.monotonic() - started)
    off = np.max(np.abs(fit.mean + w) / fit.sd)
    _say_logistic(fit, times, off, rows, columns)
    for name, run in (("NUTS, 300 + 700", logistic_by_nuts), ("SVI, AutoMultivariateNormal", logistic_by_svi)):
        started = time.monotonic()
        mean, sd = run(jnp.asarray(-signed))
        seconds = time.monotonic() - started
        errors = np.max(np.abs(mean - fit.mean) / fit.sd), np.max(np.abs(sd / fit.sd - 1.0))
        tell(f"  NumPyro, {name}: {seconds:.1f} s; off by {errors[0]:.3f} sds in a mean, {errors[1]:.3f} in an sd")


def _regression(signed):
    import numpyro
    import numpyro.distributions as dist

    w = numpyro.sample("w", dist.Normal(0.0, 1.0).expand([signed.shape[1]]).to_event(1))
    numpyro.factor("likelihood", jnp.sum(jax.nn.log_sigmoid(signed @ w)))


def logistic_by_nuts(signed) -> tuple[np.ndarray, np.ndarray]:
    from numpyro.infer import MCMC, NUTS

    mcmc = MCMC(NUTS(_regression), num_warmup=300, num_samples=700, progress_bar=False)
    mcmc.run(jax.random.key(0), signed)
    draws = np.asarray(mcmc.get_samples()["w"])
    return draws.mean(axis=0), draws.std(axis=0)


def logistic_by_svi(signed) -> tuple[np.ndarray, np.ndarray]:
    from numpyro.infer import SVI, Trace_ELBO
    from numpyro.infer.autoguide import AutoMultivariateNormal
    from numpyro.optim import Adam

    guide = AutoMultivariateNormal(_regression, init_scale=1e-3)
    svi = SVI(_regression, guide, Adam(1e-3), Trace_ELBO())
    found = svi.run(jax.random.key(0), 5000, signed, progress_bar=False)
    posterior = guide.get_posterior(found.params)
    return np.asarray(posterior.mean), np.sqrt(np.diagonal(np.asarray(posterior.covariance_matrix)))


def _say_logistic(fit: sm.Fit, times: list[float], off: float, rows: int, columns: int) -> None:
    assert fit.error is not None
    tell(
        f"logistic regression {rows:,} x {columns}: first {times[0]:.1f} s, warm {times[1]:.2f} s, {fit.n_gradients:,} "
        f"gradients, converged {fit.converged}, stated error {fit.error.largest:.1e}; truth at most {off:.1f} sds away"
    )


def many(count: int = 1000) -> None:
    for turn in ("first", "warm, other data"):
        data = school_data(count) if turn == "first" else {k: v[::-1].copy() for k, v in school_data(count).items()}
        started = time.monotonic()
        fits = sm.fit_many(school_target, data, progress=False)
        seconds = time.monotonic() - started
        wrong = wrongly_converged(fits, data)
        tell(
            f"fit_many, {count:,} eight schools, {turn}: {seconds:.1f} s, converged {int(fits.converged.sum())}, of "
            f"these wrong {wrong}; {together(fits)} walked together, {fits.n_gradients:,} gradients"
        )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path)
    parser.add_argument("parts", nargs="*", help="steps, features, solves, fits, many; all by default")
    options = parser.parse_args()
    out = options.out
    if jax.default_backend() != "gpu":
        print("benchmarks.gpu: JAX sees no GPU here; nothing to measure.")
        return
    jax.config.update("jax_enable_x64", True)
    versions = ", ".join(f"{name} {importlib.metadata.version(name)}" for name in ("jax", "numpyro", "blackjax"))
    tell(f"{datetime.date.today()}, {jax.devices()[0].device_kind}, {versions}, Python {platform.python_version()}")
    parts = {
        "steps": lambda: rbf_steps((10_000, 131_072, 262_144)),
        "step": lambda: rbf_steps((10_000,)),
        "features": feature_step,
        "solves": levenberg_marquardt,
        "fits": logistic,
        "many": many,
    }
    for name in options.parts or [part for part in parts if part != "step"]:
        try:
            parts[name]()
        except Exception as error:
            tell(f"failed: {type(error).__name__}: {str(error)[:300]}")
    if out:
        out.write_text("\n".join(LINES) + "\n")


if __name__ == "__main__":
    main()
