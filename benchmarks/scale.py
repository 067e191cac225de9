"""Large data, many posteriors, several processes, many dimensions, on a CPU.

python -m benchmarks.scale [--out FILE] [--rows N] [part ...]     all parts by default:

    memory       logistic regression of 10^6 rows and 50 columns: seconds, peak memory
    files        10^7 rows and 100 columns read from Parquet files in passes: seconds, memory beyond a small fit
    many         fit_many of 1,000 eight-schools-like posteriors, beside a loop of NUTS (extrapolated from 20)
    processes    two and four processes against one
    dimensions   d = 1,000: logistic regression of 10,000 rows and a hierarchical model, beside NUTS

Each measurement is a process of its own; seconds have the compilation in them. `--rows` makes the files shorter.
"""

import argparse
import datetime
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

LINES: list[str] = []
SIGMA = np.array([15.0, 10, 16, 11, 9, 11, 10, 18])


def tell(line: str) -> None:
    print(line, flush=True)
    LINES.append(line)


def memory_of(name: str) -> float:
    """VmHWM, the most memory that this process has had, or VmRSS, what it has now, in MiB. Not `getrusage`, whose
    figure a process inherits from the one that started it.
    """
    words = Path("/proc/self/status").read_text().split()
    return int(words[words.index(f"{name}:") + 1]) / 1024.0


def peak() -> float:
    return memory_of("VmHWM")


def log_prior(w):
    return -0.5 * jnp.sum(w**2)


def log_likelihood(w, rows):
    return jax.nn.log_sigmoid((2.0 * rows["y"].astype(w.dtype) - 1.0) * (rows["X"] @ w))


def simulated(rows: int, columns: int, seed: int, truth: np.ndarray) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((rows, columns), np.float32)
    return {"X": X, "y": (rng.random(rows) < 1.0 / (1.0 + np.exp(-X @ truth))).astype(np.int8)}


def truth_of(columns: int) -> np.ndarray:
    return np.random.default_rng(1).normal(size=columns) / np.sqrt(columns)


def school(data, x):
    """Eight schools, not centred: mu ~ N(0, 5), tau ~ half-Cauchy(5)."""
    y, sigma = data
    theta = 5.0 * x[0] + jnp.exp(x[1]) * x[2:]
    prior = -0.5 * x[0] ** 2 - jnp.log1p((jnp.exp(x[1]) / 5.0) ** 2) + x[1] - 0.5 * jnp.sum(x[2:] ** 2)
    return prior - 0.5 * jnp.sum(((y - theta) / sigma) ** 2)


def schools(x):
    return {"mu": 5.0 * x[0], "tau": jnp.exp(x[1]), "theta": 5.0 * x[0] + jnp.exp(x[1]) * x[2:]}


def school_target(one):
    import steinmatch as sm

    return sm.Target(jax.tree_util.Partial(school, (one["y"], one["sigma"])), dim=10, constrain=schools)


def school_data(count: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    mu, tau = 5.0 * rng.normal(size=(count, 1)), np.clip(np.abs(5.0 * rng.standard_cauchy((count, 1))), 0.5, 20.0)
    y = mu + tau * rng.normal(size=(count, 8)) + SIGMA * rng.normal(size=(count, 8))
    return {"y": y, "sigma": np.tile(SIGMA, (count, 1))}


def school_truth(one: dict) -> tuple[np.ndarray, np.ndarray]:
    """Means and sds of mu, tau, theta by quadrature over log tau, given which all else is normal."""
    y, sigma = one["y"], one["sigma"]
    log_tau = np.linspace(-14.0, 7.0, 8001)
    tau = np.exp(log_tau)[:, None]
    spread = tau**2 + sigma**2
    precision = 1.0 / 25.0 + np.sum(1.0 / spread, axis=1)
    mean = np.sum(y / spread, axis=1) / precision
    logs = -0.5 * np.sum(np.log(spread) + y**2 / spread, axis=1) - 0.5 * np.log(precision) + 0.5 * precision * mean**2
    logs += log_tau - np.log1p((tau[:, 0] / 5.0) ** 2)
    weights = np.exp(logs - logs.max())
    weights /= weights.sum()
    shrink = sigma**2 / spread
    theta = shrink * mean[:, None] + (1.0 - shrink) * y
    theta_var = (1.0 - shrink) * sigma**2 + shrink**2 / precision[:, None]
    means = np.concatenate([mean[:, None], tau, theta], axis=1)
    variances = np.concatenate([1.0 / precision[:, None], 0.0 * tau, theta_var], axis=1)
    first = weights @ means
    return first, np.sqrt(weights @ (variances + means**2) - first**2)


def memory() -> dict:
    """10^6 x 50 in memory."""
    import steinmatch as sm

    truth = truth_of(50)
    data = simulated(10**6, 50, 0, truth)
    started = time.monotonic()
    fit = sm.fit(sm.Target.from_data(log_prior, log_likelihood, data, dim=50), progress=False)
    away = float(np.max(np.abs(fit.mean - truth) / fit.sd))
    return {"seconds": time.monotonic() - started, "peak": peak(), "converged": fit.converged, "away": away}


def files(folder: str) -> dict:
    """Rows read from Parquet files in passes; what a small fit takes before is no part of it."""
    import steinmatch as sm

    columns = 100
    small = simulated(1000, columns, 9, truth_of(columns))
    sm.fit(sm.Target.from_data(log_prior, log_likelihood, small, dim=columns), progress=False)
    before = memory_of("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
    started = time.monotonic()
    paths = sorted(Path(folder).glob("*.parquet"))
    target = sm.Target.from_data(log_prior, log_likelihood, paths, CHUNK_ROWS, dim=columns, dtype="float32")
    fit = sm.fit(target, progress=False)
    return {
        "seconds": time.monotonic() - started,
        "beyond": peak() - before,
        "chunk": CHUNK_ROWS * (4 * columns + 1) / 2**20,
        "converged": fit.converged,
        "away": float(np.max(np.abs(fit.mean - truth_of(columns)) / fit.sd)),
        "reason": fit.reason,
        "gradients": fit.n_gradients,
    }


CHUNK_ROWS = 2 * 10**6


def many(count: int = 1000) -> dict:
    import steinmatch as sm

    data = school_data(count)
    started = time.monotonic()
    fits = sm.fit_many(school_target, data, progress=False)
    seconds = time.monotonic() - started
    return {
        "seconds": seconds, "converged": int(fits.converged.sum()), "wrong": wrongly_converged(fits, data),
        "count": count, "together": together(fits), "gradients": fits.n_gradients,
    }  # fmt: skip


def together(fits) -> int:
    """How many were not left to a fit of their own."""
    import steinmatch as sm

    return sum(not isinstance(part, sm.Fit) for part in fits._parts)


def wrongly_converged(fits, data: dict[str, np.ndarray]) -> int:
    """Of those that say so, how many have an error above 0.04, twice the tolerance."""
    wrong, mean, sd = 0, fits.mean, fits.sd
    for i in np.nonzero(fits.converged)[0]:
        first, second = school_truth({name: part[i] for name, part in data.items()})
        means, sds = (np.concatenate([found[key][i].ravel() for key in ("mu", "tau", "theta")]) for found in (mean, sd))
        wrong += bool(max(np.max(np.abs(means - first) / second), np.max(np.abs(sds / second - 1.0))) > 0.04)
    return wrong


def many_by_nuts(count: int = 20) -> dict:
    """NUTS, 1000 + 1000 draws, for each of some data sets; compiled once."""
    jax.config.update("jax_enable_x64", True)
    from numpyro.infer import MCMC, NUTS

    data = school_data(1000)

    def run(y, key):
        kernel = NUTS(potential_fn=lambda x: -school((y, jnp.asarray(SIGMA)), x))
        mcmc = MCMC(kernel, num_warmup=1000, num_samples=1000, progress_bar=False, jit_model_args=False)
        mcmc.run(key, init_params=jnp.zeros(10))
        return mcmc.get_samples()

    sampled = jax.jit(run)
    started = time.monotonic()
    for i in range(count):
        jax.block_until_ready(sampled(jnp.asarray(data["y"][i]), jax.random.key(i)))
    return {"seconds": time.monotonic() - started, "count": count}


TOGETHER = """
import sys
import numpy as np, jax, jax.numpy as jnp
address, n, i, path = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
jax.config.update("jax_cpu_collectives_implementation", "gloo")
jax.distributed.initialize(address, n, i)
import steinmatch as sm
from benchmarks.scale import log_likelihood, log_prior, simulated, truth_of
target = sm.Target.from_data(log_prior, log_likelihood, simulated(20_000, 10, 0, truth_of(10)), dim=10)
mesh = jax.make_mesh((jax.device_count(),), ("points",))
fit = sm.fit(target, mesh=mesh, progress=False)
features = sm.fit(sm.targets.Gaussian(np.ones(3), np.eye(3)), 24, kernel=sm.LinearRandom(), mesh=mesh, progress=False)
if i == 0:
    np.savez(path, mean=fit.mean, sd=fit.sd, particles=features.particles)
"""


def processes() -> None:
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        for n in (1, 2, 4):
            with socket.socket() as one:
                one.bind(("localhost", 0))
                address = f"localhost:{one.getsockname()[1]}"
            path = str(Path(folder) / f"{n}.npz")
            command = [sys.executable, "-c", TOGETHER, address, str(n)]
            started = time.monotonic()
            running = [subprocess.Popen([*command, str(i), path]) for i in range(n)]
            codes = [process.wait() for process in running]
            if any(codes):
                tell(f"processes: {n} ended with {codes}")
                return
            found[n] = {**np.load(path), "seconds": time.monotonic() - started}
    for n in (2, 4):
        off = max(float(np.max(np.abs(found[n][name] - found[1][name]))) for name in ("mean", "sd", "particles"))
        tell(
            f"processes: {n} against one: largest difference of means, sds and particles {off:.1e}; "
            f"{found[n]['seconds']:.1f} s on these cores (one: {found[1]['seconds']:.1f})"
        )


def wide_logistic(x, X, y):
    return jnp.sum(jax.nn.log_sigmoid(y * (X @ x))) - 0.5 * jnp.sum(x**2)


def wide_hierarchical(x, y):
    """999 normal means, not centred, around zero with a scale of their own."""
    scale = jnp.exp(x[0])
    return -0.5 * jnp.sum(x**2) - 0.5 * jnp.sum((y - scale * x[1:]) ** 2)


def wide(name: str):
    rng = np.random.default_rng(3)
    if name == "logistic":
        X = rng.normal(size=(10_000, 1000)) / np.sqrt(1000.0)
        y = np.where(rng.random(10_000) < 1.0 / (1.0 + np.exp(-X @ (2.0 * rng.normal(size=1000)))), 1.0, -1.0)
        return jax.tree_util.Partial(lambda data, x: wide_logistic(x, *data), (X, y))
    return jax.tree_util.Partial(
        lambda y, x: wide_hierarchical(x, y), 1.5 * rng.normal(size=999) + rng.normal(size=999)
    )


def dimensions(name: str) -> dict:
    import steinmatch as sm

    started = time.monotonic()
    fit = sm.fit(sm.Target(wide(name), dim=1000), progress=False, max_seconds=400.0)
    return {
        "seconds": time.monotonic() - started, "peak": peak(), "converged": fit.converged, "reason": fit.reason[:200],
        "gradients": fit.n_gradients, "mean": fit.mean.tolist(), "sd": fit.sd.tolist(),
        "stated": 0.0 if fit.error is None else fit.error.largest,
    }  # fmt: skip


def dimensions_by_nuts(name: str) -> dict:
    from benchmarks.posteriors import run_nuts

    jax.config.update("jax_enable_x64", True)
    draws, gradients, seconds = run_nuts(wide(name), 1000)
    return {
        "seconds": seconds, "peak": peak(), "gradients": gradients,
        "mean": draws.mean(axis=0).tolist(), "sd": draws.std(axis=0).tolist(),
    }  # fmt: skip


# -- the run -----------------------------------------------------------------------------------------------------------


def alone(function: Callable, *args: object) -> dict:
    """The result of a function of this module in a process of its own."""
    command = [sys.executable, "-m", "benchmarks.scale", "--alone", function.__name__, *map(str, args)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=Path(__file__).parents[1])
    if done.returncode:
        tell(f"{function.__name__} {args}: failed: {done.stderr.strip().splitlines()[-1:]}")
        return {}
    return json.loads(done.stdout.splitlines()[-1])


def say_memory() -> None:
    found = alone(memory)
    if found:
        tell(
            f"memory: logistic 1,000,000 x 50: {found['seconds']:.1f} s, peak {found['peak'] / 1024:.2f} GB, converged "
            f"{found['converged']}, truth at most {found['away']:.1f} sds away"
        )


def say_files(rows: int) -> None:
    try:
        import pyarrow as pa
        from pyarrow import parquet
    except ImportError:
        tell("files: pyarrow is not installed; nothing to measure")
        return
    with tempfile.TemporaryDirectory() as folder:
        part = min(rows, 10**6)
        for i in range(rows // part):
            data = simulated(part, 100, i, truth_of(100))
            X = pa.FixedSizeListArray.from_arrays(data["X"].ravel(), 100)
            parquet.write_table(
                pa.table({"X": X, "y": data["y"]}),
                Path(folder) / f"{i:03}.parquet",
                compression="none",
                row_group_size=100_000,
            )
        found = alone(files, folder)
    if found:
        tell(
            f"files: logistic {rows:,} x 100 from Parquet ({rows * 401 / 2**30:.1f} GB): {found['seconds']:.0f} s, "
            f"{found['beyond']:.0f} MiB more than a small fit, chunks of {found['chunk']:.0f} MiB; "
            f"{found['gradients']:,} gradients, converged {found['converged']}, truth at most {found['away']:.1f} sds "
            f"away; {found['reason']}"
        )


def say_many() -> None:
    found, nuts = alone(many), alone(many_by_nuts)
    if found:
        tell(
            f"many: {found['count']:,} eight schools: {found['seconds']:.1f} s ({found['together']} walked together), "
            f"converged {found['converged']}, of these wrong (above 0.04) {found['wrong']}; "
            f"{found['gradients']:,} gradients"
        )
    if nuts:
        each = nuts["seconds"] / nuts["count"]
        tell(f"many: a loop of NUTS, 1000 + 1000: {1000 * each:.0f} s for 1,000, from {nuts['count']}")


def say_dimensions() -> None:
    for name in ("logistic", "hierarchical"):
        own, nuts = alone(dimensions, name), alone(dimensions_by_nuts, name)
        for label, found in (("steinmatch", own), ("NUTS 1000 + 1000", nuts)):
            if found:
                words = f"d = 1,000 {name}, {label}: {found['seconds']:.1f} s, {found['gradients']:,} gradients, peak "
                words += f"{found['peak'] / 1024:.2f} GB"
                if "converged" in found:
                    words += f", converged {found['converged']}, stated error {found['stated']:.3f}: {found['reason']}"
                tell(words)
        if own and nuts:
            mean, sd, other, spread = (np.array(part) for part in (own["mean"], own["sd"], nuts["mean"], nuts["sd"]))
            tell(
                f"d = 1,000 {name}: they differ by {np.max(np.abs(mean - other) / sd):.2f} sds in a mean at most, "
                f"{np.sqrt(np.mean(((mean - other) / sd) ** 2)):.3f} in the root mean square; sds by "
                f"{np.sqrt(np.mean((spread / sd - 1.0) ** 2)):.3f}"
            )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path)
    parser.add_argument("--rows", type=int, default=10**7)
    parser.add_argument("--alone", nargs="+")
    parser.add_argument("parts", nargs="*")
    options = parser.parse_args()
    if options.alone:
        name, *args = options.alone
        print(json.dumps(globals()[name](*args)))
        return
    tell(f"{datetime.date.today()}, {len(os.sched_getaffinity(0))} cores, jax {jax.__version__}")
    parts = {
        "memory": say_memory,
        "files": lambda: say_files(options.rows),
        "many": say_many,
        "processes": processes,
        "dimensions": say_dimensions,
    }
    for part in options.parts or parts:
        parts[part]()
    if options.out:
        options.out.write_text("\n".join(LINES) + "\n")


if __name__ == "__main__":
    main()
