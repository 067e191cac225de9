"""Logistic regression on the breast cancer data (d = 31): the automatic fit beside NumPyro's NUTS, compile included.

python -m benchmarks.logistic

Errors are against the long NUTS run that is stored in tests/test_examples.py. Each runs in a process of its own.
"""

import importlib.util
import json
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

ROOT = Path(__file__).parents[1]


def module(path: Path):
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    found = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(found)
    return found


def by_steinmatch() -> tuple[tuple[np.ndarray, np.ndarray], int, float, str]:
    import steinmatch as sm

    target = module(ROOT / "examples" / "logistic.py").target
    started = time.monotonic()
    fit = sm.fit(target, progress=False)
    return (fit.mean, fit.sd), fit.n_gradients + 2 * fit.n_hvps, time.monotonic() - started, str(fit.converged)


def by_nuts() -> tuple[tuple[np.ndarray, np.ndarray], int, float, str]:
    import jax

    from benchmarks.posteriors import run_nuts

    jax.config.update("jax_enable_x64", True)
    draws, gradients, seconds = run_nuts(module(ROOT / "examples" / "logistic.py").log_density, 31)
    return (draws.mean(axis=0), draws.std(axis=0)), gradients, seconds, ""


METHODS = {"steinmatch": by_steinmatch, "NUTS, 1000 + 1000": by_nuts}


def main() -> None:
    if len(sys.argv) > 1:
        moments, gradients, seconds, converged = METHODS[sys.argv[1]]()
        print(json.dumps([*(moment.tolist() for moment in moments), gradients, seconds, converged]))
        return
    sys.path.insert(0, str(ROOT))
    from tests.test_examples import MEAN, SD

    table = Table(title="breast cancer, d = 31: largest errors, gradients (a Hessian-vector product counts as two)")
    for column in ("method", "mean (sds)", "sd (relative)", "gradients", "seconds", "converged"):
        table.add_column(column, justify="right")
    for name in METHODS:
        command = [sys.executable, "-m", "benchmarks.logistic", name]
        done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT)
        mean, sd, gradients, seconds, converged = json.loads(done.stdout.splitlines()[-1])
        errors = np.abs((np.array(mean) - MEAN) / SD).max(), np.abs(np.array(sd) / SD - 1.0).max()
        table.add_row(name, *(f"{e:.3f}" for e in errors), f"{gradients:,}", f"{seconds:.1f}", converged)
    Console(width=120).print(table)


if __name__ == "__main__":
    main()
