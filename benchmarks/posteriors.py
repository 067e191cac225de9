"""The automatic fit on real posteriors, beside NumPyro's NUTS and BlackJAX's SVGD, compile included on all sides.

python -m benchmarks.posteriors [--peers] [--out FILE] [name ...]      all posteriors by default

Reads the folder of reference posteriors ../shared/posteriors (or $STEINMATCH_POSTERIORS), which is not part of the
repository, and says so where it is missing. One process a posterior. Errors are the largest over the constrained
parameters: of means in reference sds, of sds relative; the references themselves carry noise of about 0.02. A
Hessian-vector product counts as two gradients.
"""

import argparse
import importlib
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

FOLDER = Path(os.environ.get("STEINMATCH_POSTERIORS", Path(__file__).parents[2] / "shared" / "posteriors"))
NOISE = 0.02


def library():
    sys.path.insert(0, str(FOLDER))
    import evaluate  # type: ignore[import-not-found]

    return evaluate


class Clock:
    """Seconds that JAX compiles, and that compiled functions of the target run: what is left is our own code's."""

    def __init__(self):
        import jax.monitoring

        self.spans: list[tuple[float, float]] = []  # of compiling, apart from each other, in order
        self.running = 0.0
        jax.monitoring.register_event_duration_secs_listener(self._compiled)
        functions = (
            ("targets.evaluations", "_values_and_scores"),
            ("targets.variables", "_constrained"), ("measures.images", "_values_at"),
            ("adaptive.walks", "_advance"), ("adaptive.walks", "begin"),
        )  # fmt: skip
        for name, function in functions:
            module = importlib.import_module(f"steinmatch.{name}")
            setattr(module, function, self._timed(getattr(module, function)))

    def _compiled(self, event: str, seconds: float, **_: object) -> None:
        """Functions are traced while others are: spans within this one are a part of it."""
        if event.startswith("/jax/core/compile/"):
            ended = time.monotonic()
            while self.spans and self.spans[-1][0] >= ended - seconds:
                self.spans.pop()
            began = max(ended - seconds, self.spans[-1][1]) if self.spans else ended - seconds
            self.spans.append((began, ended))

    @property
    def compiling(self) -> float:
        return sum(ended - began for began, ended in self.spans)

    def _timed(self, function):
        import jax

        def call(*args):
            started, compiling = time.monotonic(), self.compiling
            found = jax.block_until_ready(function(*args))
            self.running += max(time.monotonic() - started - (self.compiling - compiling), 0.0)
            return found

        return call


def by_steinmatch(name: str) -> dict:
    import steinmatch as sm

    clock = Clock()
    posteriors = library()
    model = posteriors.load(name)
    reference = json.loads((FOLDER / "reference.json").read_text())[name]
    clock.spans.clear()
    started = time.monotonic()
    target = sm.Target(model.log_density, dim=model.dim, constrain=model.constrain)
    fit = sm.fit(target, progress=False)
    seconds = time.monotonic() - started
    own = 1.0 - (clock.compiling + clock.running) / seconds
    _, values = sm.targets.constrained_values(target, fit.particles)
    mean, sd = np.array(reference["mean"]), np.array(reference["sd"])
    found = fit.weights @ values
    spread = np.sqrt(fit.weights @ (values - found) ** 2)
    true = np.concatenate([np.abs(found - mean) / sd, np.abs(spread / sd - 1.0)])
    assert fit.error is not None
    stated = np.concatenate([fit.error.mean, fit.error.sd])
    return {
        **errors(posteriors, name, fit.particles, fit.weights),
        "dim": model.dim,
        "converged": fit.converged,
        "stated": float(stated.max()),
        "covered": (true <= 2.0 * stated + NOISE).tolist(),
        "ratio": (stated / np.maximum(true, 1e-12)).tolist(),
        "gradients": fit.n_gradients + 2 * fit.n_hvps,
        "seconds": seconds,
        "own": own,
        "reason": fit.reason,
    }


def run_nuts(log_density, dim: int, seed: int = 0) -> tuple[np.ndarray, int, float]:
    """1000 + 1000 draws of NumPyro's NUTS: the draws, gradients and seconds, compile included."""
    import jax

    jax.config.update("jax_enable_x64", True)
    from numpyro.infer import MCMC, NUTS

    started = time.monotonic()
    kernel = NUTS(potential_fn=lambda z: -log_density(z))
    mcmc = MCMC(kernel, num_warmup=1000, num_samples=1000, progress_bar=False)
    init = jax.random.uniform(jax.random.key(seed + 1), (dim,), minval=-2.0, maxval=2.0)
    mcmc.warmup(jax.random.key(seed), init_params=init, extra_fields=("num_steps",), collect_warmup=True)
    warm = int(np.sum(mcmc.get_extra_fields()["num_steps"]))
    assert mcmc.post_warmup_state is not None
    mcmc.run(mcmc.post_warmup_state.rng_key, extra_fields=("num_steps",))
    draws = np.asarray(mcmc.get_samples())
    return draws, warm + int(np.sum(mcmc.get_extra_fields()["num_steps"])), time.monotonic() - started


def by_nuts(name: str) -> dict:
    import jax

    jax.config.update("jax_enable_x64", True)
    posteriors = library()
    model = posteriors.load(name)
    draws, gradients, seconds = run_nuts(model.log_density, model.dim)
    return {**errors(posteriors, name, draws), "gradients": gradients, "seconds": seconds}


def by_sharpening(name: str) -> list[dict]:
    """1000 NUTS draws, before and after `sharpen`, for several seeds: one run's error is mostly chance."""
    import jax

    import steinmatch as sm

    jax.config.update("jax_enable_x64", True)
    posteriors = library()
    model = posteriors.load(name)
    target = sm.Target(model.log_density, dim=model.dim, constrain=model.constrain)
    results = []
    for seed in range(SEEDS):
        draws, _, _ = run_nuts(model.log_density, model.dim, seed)
        started = time.monotonic()
        found = sm.sharpen(draws, target)
        seconds = time.monotonic() - started
        before, after = (errors(posteriors, name, draws, weights) for weights in (None, np.asarray(found.weights)))
        results.append(
            {
                "before": max(before.values()),
                "after": max(after.values()),
                "stated": found.after.error.largest,
                "family": found.family,
                "seconds": seconds,
            }
        )
    return results


def sharpening(names: list[str]) -> None:
    table = Table(
        title=f"1000 NUTS draws, largest error of means and sds, before and after Stein weights; {SEEDS} seeds"
    )
    for column in ("posterior", "before", "after", "ratios", "stated", "equations", "s"):
        table.add_column(column)
    ratios, typical, longest = [], [], 0.0
    for name in names:
        found = in_process("sharpen", name)
        own = [one["before"] / one["after"] for one in found]
        ratios += own
        typical.append(np.median(own))
        longest = max(longest, *(one["seconds"] for one in found))
        numbers = [f"{np.median([one[key] for one in found]):.3f}" for key in ("before", "after")]
        stated, seconds = (np.median([one[key] for one in found]) for key in ("stated", "seconds"))
        words = " ".join(f"{ratio:.1f}" for ratio in own)
        table.add_row(name, *numbers, words, f"{stated:.3f}", found[0]["family"], f"{seconds:.1f}")
        print(name, words, flush=True)
    Console(width=150).print(table)
    print(
        f"before / after: median over posteriors {np.median(typical):.1f}, over all runs {np.median(ratios):.1f}, "
        f"least {min(ratios):.2f}; at most {longest:.1f} s"
    )


def by_svgd(name: str) -> dict:
    import blackjax
    import jax
    import optax

    jax.config.update("jax_enable_x64", True)
    posteriors = library()
    model = posteriors.load(name)
    started = time.monotonic()
    algorithm: Any = blackjax.svgd(jax.grad(model.log_density), optax.adam(0.05))
    state = algorithm.init(jax.random.normal(jax.random.key(0), (100, model.dim)))
    step = jax.jit(algorithm.step)
    for _ in range(2000):
        state = step(state)
    particles = np.asarray(state.particles)
    return {**errors(posteriors, name, particles), "gradients": 200_000, "seconds": time.monotonic() - started}


def errors(posteriors, name: str, draws: np.ndarray, weights: np.ndarray | None = None) -> dict:
    found = posteriors.evaluate(name, draws, weights)
    return {"mean": found["max_mean_err_sd"], "sd": found["max_sd_rel_err"]}


def scaling() -> None:
    """Gaussian and logistic posteriors of growing dimension: seconds, compile included, and peak memory."""
    table = Table(title="scaling; each in a process of its own")
    for column in ("target", "d", "first round s", "total s", "peak GiB", "gradients", "converged", "largest error"):
        table.add_column(column, justify="right")
    for kind in ("gaussian", "logistic"):
        for dim in (10, 30, 100, 300):
            command = [sys.executable, "-m", "benchmarks.posteriors", "--one", "scaling", kind, str(dim)]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            row = ["failed"] if done.returncode else json.loads(done.stdout.splitlines()[-1])
            table.add_row(kind, str(dim), *row)
    Console(width=120).print(table)


def one_size(kind: str, dim: int) -> list[str]:
    import resource

    import jax
    import jax.numpy as jnp

    import steinmatch as sm

    rng = np.random.default_rng(0)
    if kind == "gaussian":
        target = sm.targets.Gaussian.random(jax.random.key(0), dim, 100.0)
    else:
        rows = rng.normal(size=(10 * dim, dim))
        signs = np.where(
            rng.random(10 * dim) < 1.0 / (1.0 + np.exp(-rows @ rng.normal(size=dim) / np.sqrt(dim))), 1.0, -1.0
        )
        target = sm.Target(
            lambda w: jnp.sum(jax.nn.log_sigmoid(jnp.asarray(signs) * (jnp.asarray(rows) @ w))) - 0.5 * jnp.sum(w**2),
            dim=dim,
        )
    fit = sm.fit(target, progress=False)
    error = "unknown"
    if kind == "gaussian":
        sd = np.sqrt(np.diagonal(np.asarray(target.cov)))
        error = f"{max(np.abs((fit.mean - np.asarray(target.mean)) / sd).max(), np.abs(fit.sd / sd - 1.0).max()):.1e}"
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    seconds = [f"{fit.rounds[0].seconds:.1f}" if fit.rounds else "", f"{fit.seconds:.1f}"]
    return [*seconds, f"{peak:.2f}", f"{fit.n_gradients:,}", str(fit.converged), error]


SEEDS = 4  # of NUTS, to be sharpened
METHODS = {"steinmatch": by_steinmatch, "nuts": by_nuts, "svgd": by_svgd}
ALONE = {**METHODS, "sharpen": by_sharpening}


def in_process(method: str, name: str) -> Any:
    command = [sys.executable, "-m", "benchmarks.posteriors", "--one", method, name]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        return {"mean": np.inf, "sd": np.inf, "gradients": 0, "seconds": np.nan, "failed": done.stderr[-500:]}
    return json.loads(done.stdout.splitlines()[-1])


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--one", choices=[*ALONE, "scaling"])
    parser.add_argument("--scaling", action="store_true", help="Gaussian and logistic posteriors of growing dimension")
    parser.add_argument("--peers", action="store_true", help="run NUTS and SVGD as well")
    parser.add_argument("--sharpen", action="store_true", help="Stein weights for 1000 NUTS draws, before and after")
    parser.add_argument("--out", type=Path, help="a JSON file that results are added to, and that peers are read from")
    parser.add_argument("names", nargs="*")
    options = parser.parse_args()
    if options.one == "scaling":
        print(json.dumps(one_size(options.names[0], int(options.names[1]))))
        return
    if options.scaling:
        scaling()
        return
    if not (FOLDER / "reference.json").exists():
        print("benchmarks.posteriors: the folder of reference posteriors is missing; nothing to measure.")
        return
    if options.one:
        print(json.dumps(ALONE[options.one](options.names[0])))
        return
    if options.sharpen:
        sharpening(options.names or library().list_posteriors())
        return
    results = json.loads(options.out.read_text()) if options.out and options.out.exists() else {}
    for name in options.names or library().list_posteriors():
        for method in METHODS if options.peers else ["steinmatch"]:
            if method == "steinmatch" or f"{method}/{name}" not in results:
                results[f"{method}/{name}"] = in_process(method, name)
                print(
                    method, name, {k: v for k, v in results[f"{method}/{name}"].items() if np.isscalar(v)}, flush=True
                )
                if options.out:
                    options.out.write_text(json.dumps(results))
    report(results)


def report(results: dict) -> None:
    names = [key.split("/", 1)[1] for key in results if key.startswith("steinmatch/")]
    table = Table(title="largest errors, mean (sds) / sd (relative); gradients; seconds, compile included")
    for column in (
        "posterior", "d", "steinmatch", "stated", "conv.", "gradients", "s", "NUTS", "gradients", "s", "SVGD",
    ):  # fmt: skip
        table.add_column(column)
    for name in names:
        own, nuts, svgd = (results.get(f"{method}/{name}", {}) for method in METHODS)
        peers = [""] * 3
        if nuts:
            peers = [f"{nuts['mean']:.3f} / {nuts['sd']:.3f}", f"{nuts['gradients']:,}", f"{nuts['seconds']:.1f}"]
        table.add_row(
            name.split("-", 1)[1][:28],
            str(own.get("dim")),
            f"{own['mean']:.3f} / {own['sd']:.3f}",
            f"{own.get('stated', np.inf):.3f}",
            "yes" if own.get("converged") else "no",
            f"{own['gradients']:,}",
            f"{own['seconds']:.1f}",
            *peers,
            f"{svgd['mean']:.2f} / {svgd['sd']:.2f}" if svgd else "",
        )
    Console(width=170).print(table)
    _say_own([results[f"steinmatch/{name}"] for name in names])
    both = [(results[f"steinmatch/{n}"], results[f"nuts/{n}"]) for n in names if f"nuts/{n}" in results]
    if both:
        _say_beside_nuts(both)


def _say_own(own: list[dict]) -> None:
    within = [r["mean"] <= 0.05 and r["sd"] <= 0.05 for r in own]
    false = [r for r in own if r.get("converged") and max(r["mean"], r["sd"]) > 0.15]
    covered = [c for r in own for c in r.get("covered", [])]
    ratios = [c for r in own for c in r.get("ratio", []) if np.isfinite(c)]
    shares = np.array([r.get("own", np.nan) for r in own])
    print(
        f"time in our own Python and NumPy code: median {np.median(shares):.0%}, at most {np.max(shares):.0%}; under "
        f"30 % on {np.sum(shares < 0.3)} of {len(own)}"
    )
    print(f"both errors at most 0.05: {sum(within)} of {len(own)}")
    print(f"converged: {sum(bool(r.get('converged')) for r in own)} of {len(own)}; falsely: {len(false)}")
    print(
        f"stated error covers (2x, noise {NOISE}): {np.mean(covered):.1%}; median stated / true {np.median(ratios):.2f}"
    )


def _say_beside_nuts(both: list[tuple[dict, dict]]) -> None:
    accurate = sum(a["mean"] < b["mean"] and a["sd"] < b["sd"] for a, b in both)
    fewer = [b["gradients"] / max(a["gradients"], 1) for a, b in both]
    sooner = sum(a["seconds"] <= b["seconds"] for a, b in both)
    print(f"more accurate than NUTS (both errors): {accurate} of {len(both)}")
    small = [a["gradients"] for a, _ in both if a.get("dim", 99) <= 13]
    print(f"gradients for d <= 13: median {np.median(small):,.0f}")
    print(f"fewer gradients: {sum(f > 1 for f in fewer)} of {len(both)}, median ratio {np.median(fewer):.1f}")
    print(f"no slower: {sooner} of {len(both)}; median seconds {np.median([a['seconds'] for a, _ in both]):.1f}")
    # NUTS's error falls with the root of its draws.
    same = [b["gradients"] * (max(b["mean"], b["sd"]) / max(a["mean"], a["sd"])) ** 2 / a["gradients"] for a, b in both]
    print(f"gradients that NUTS would need for the same error, as a multiple: median {np.median(same):.0f}")


if __name__ == "__main__":
    main()
