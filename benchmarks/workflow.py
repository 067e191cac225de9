"""Twelve everyday NumPyro models, beside NUTS: seconds, gradients, errors against a long run, verdicts.

python -m benchmarks.workflow [name-part ...]

Every fit runs in a process of its own, compile included. NUTS is NumPyro's, 1000 + 1000 draws; the truth is a run of
it with 2000 + 20,000 draws at target_accept_prob=0.95, whose own standard errors are allowed for: a converged fit is
wrong where it is off by more than twice its largest stated error and three times the truth's. Two models run in PyMC
and two in Stan as well, and must give what the same model in NumPyro does. The exit code is 1 where one is wrong, fewer
than ten of the twelve converge, or the median of our seconds is above half of NUTS's.
"""

import argparse
import json
import subprocess
import sys
import time

import numpy as np
from rich.console import Console
from rich.table import Table

_LEAST_CONVERGED, _MOST_SECONDS = 10, 0.5
IN_PYMC = ("Student-t regression", "Poisson mixed")


def by_steinmatch(model, data: dict) -> dict:
    import steinmatch as sm

    return _described(sm.fit(sm.from_numpyro(model, **data), progress=False))


def _described(fit) -> dict:
    mean = np.asarray(fit.mean)
    return {
        "names": list(fit.names),
        "mean": mean.tolist(),
        "sd": np.asarray(fit.sd).tolist(),
        "stated": [fit.error.mean.tolist(), fit.error.sd.tolist()],
        "converged": bool(fit.converged),
        "reason": fit.reason,
        "gradients": fit.n_gradients,
    }


def by_nuts(model, data: dict, warmup: int, draws: int, accept: float) -> dict:
    import arviz
    import jax
    from numpyro.infer import MCMC, NUTS

    jax.config.update("jax_enable_x64", True)
    mcmc = MCMC(NUTS(model, target_accept_prob=accept), num_warmup=warmup, num_samples=draws, progress_bar=False)
    mcmc.warmup(jax.random.key(0), extra_fields=("num_steps",), collect_warmup=True, **data)
    steps = int(np.sum(mcmc.get_extra_fields()["num_steps"]))
    assert mcmc.post_warmup_state is not None
    mcmc.run(mcmc.post_warmup_state.rng_key, extra_fields=("num_steps",), **data)
    steps += int(np.sum(mcmc.get_extra_fields()["num_steps"]))
    samples = {name: np.asarray(value) for name, value in sorted(mcmc.get_samples().items())}
    flat = np.concatenate([value.reshape(draws, -1) for value in samples.values()], axis=1)
    names = [
        f"{name}[{', '.join(map(str, i))}]" if value.ndim > 1 else name
        for name, value in samples.items()
        for i in np.ndindex(value.shape[1:])
    ]
    summary = arviz.summary({"x": flat[None]}, kind="diagnostics", round_to="none")
    return {
        "names": names,
        "mean": flat.mean(axis=0).tolist(),
        "sd": flat.std(axis=0).tolist(),
        "mcse": [summary["mcse_mean"].tolist(), summary["mcse_sd"].tolist()],
        "gradients": steps,
    }


def one(name: str, method: str) -> dict:
    started = time.monotonic()
    from benchmarks.everyday import STAN, everyday, in_pymc

    model, data = everyday()[name]
    if method == "steinmatch":
        row = by_steinmatch(model, data)
    elif method == "nuts":
        row = by_nuts(model, data, 1000, 1000, 0.8)
    elif method == "truth":
        row = by_nuts(model, data, 2000, 20_000, 0.95)
    elif method == "pymc":
        import steinmatch as sm

        row = _described(sm.fit(sm.from_pymc(in_pymc(name, data)), progress=False))
    else:
        import steinmatch as sm

        row = _described(sm.fit(sm.from_stan(STAN[name], {"N": len(data["y"]), **data}), progress=False))
    return {**row, "seconds": time.monotonic() - started}


def _run(name: str, method: str) -> dict | None:
    command = [sys.executable, "-m", "benchmarks.workflow", "--one", name, method]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        print(name, method, done.stderr[-400:])
        return None
    return json.loads(done.stdout.splitlines()[-1])


def _compared(row: dict, truth: dict) -> tuple[np.ndarray, np.ndarray]:
    """Errors of means in sds and of sds, relative; and what the truth itself does not know."""
    order = [truth["names"].index(name) for name in row["names"] if name in truth["names"]]
    own = [i for i, name in enumerate(row["names"]) if name in truth["names"]]
    mean, sd = (np.array(row[key])[own] for key in ("mean", "sd"))
    true_mean, true_sd = (np.array(truth[key])[order] for key in ("mean", "sd"))
    moving = true_sd > 0.0
    unit = np.where(moving, true_sd, 1.0)
    error = np.concatenate([np.abs(mean - true_mean) / unit, np.abs(sd / unit - 1.0) * moving])
    unknown = np.concatenate([np.array(part)[order] / unit * moving for part in truth["mcse"]])
    return error, np.nan_to_num(unknown)


def run(names: list[str]) -> bool:
    """Whether something is not as it must be."""
    from benchmarks.everyday import STAN, everyday

    table = Table(title="everyday models: largest error of a mean (sds) or sd (relative), gradients, seconds")
    for column in ("model", "converged", "error", "stated", "gradients", "s", "NUTS error", "gradients", "s"):
        table.add_column(column, justify="left" if column == "model" else "right")
    wrong = converged = total = failed = 0
    ratios, others = [], []
    for name in everyday():
        if names and not any(part in name for part in names):
            continue
        own, nuts, truth = (_run(name, method) for method in ("steinmatch", "nuts", "truth"))
        if own is None or nuts is None or truth is None:
            failed += 1
            continue
        error, unknown = _compared(own, truth)
        k = len(own["names"])
        stated = np.concatenate([np.array(part) for part in own["stated"]])
        off = bool(np.any(error > 2.0 * stated.max() + 3.0 * unknown))
        assert len(stated) == 2 * k
        total, converged = total + 1, converged + own["converged"]
        wrong += own["converged"] and off
        ratios.append(own["seconds"] / nuts["seconds"])
        row = [
            name, ("WRONG" if off else "yes") if own["converged"] else "no", f"{error.max():.3f}",
            f"{stated.max():.3f}", f"{own['gradients']:,}", f"{own['seconds']:.1f}",
            f"{_compared(nuts, truth)[0].max():.3f}", f"{nuts['gradients']:,}", f"{nuts['seconds']:.1f}",
        ]  # fmt: skip
        print(
            *row, "" if own["converged"] else own["reason"][:200], f"(truth known to {unknown.max():.3f})", flush=True
        )
        table.add_row(*row)
        for method in ("pymc", "stan"):
            if (method == "stan" and name in STAN) or (method == "pymc" and name in IN_PYMC):
                others.append((name, method, own, _run(name, method)))
    Console(width=140).print(table)
    print(f"converged {converged} of {total}, of these wrong by more than two stated errors: {wrong}")
    print(f"seconds over those of NUTS: median {np.median(ratios):.2f}")
    apart = 0
    for name, method, own, other in others:
        if other is None:
            apart += 1
            continue
        error, _ = _compared(other, {**own, "mcse": own["stated"]})
        allowed = 2.0 * sum(np.max(row["stated"]) for row in (own, other))
        apart += bool(error.max() > allowed)
        print(
            f"{name} in {method}: off the same model in NumPyro by {error.max():.4f}, {allowed:.4f} allowed; "
            f"{other['seconds']:.1f} s"
        )
    whole = not names
    return bool(
        wrong or apart or failed or (whole and (converged < _LEAST_CONVERGED or np.median(ratios) > _MOST_SECONDS))
    )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--one", action="store_true")
    parser.add_argument("names", nargs="*")
    options = parser.parse_args()
    if options.one:
        print(json.dumps(one(*options.names)))
    else:
        sys.exit(int(run(options.names)))


if __name__ == "__main__":
    main()
