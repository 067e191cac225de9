"""The automatic fit on targets with exact truth: is it right when it says converged, and do its errors hold?

python -m benchmarks.zoo [--seeds N] [name-part ...]        all targets, seed 0, by default
python -m benchmarks.zoo --hierarchical                     simulated hierarchical models, beside NUTS in one run

Reads ../shared/zoo (or $STEINMATCH_ZOO), which is not part of the repository, and says so where it is missing. An error
above 0.04, twice the default tol, with `converged` counts as wrong.
"""

import argparse
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

FOLDER = Path(os.environ.get("STEINMATCH_ZOO", Path(__file__).parents[2] / "shared" / "zoo"))
SIZES = (10, 30, 100, 300)


def library() -> Any:
    sys.path.insert(0, str(FOLDER))
    import zoo  # type: ignore[import-not-found]

    return zoo


def measured(zoo, case, fit) -> dict:
    """What `check` of the zoo says, with true over stated errors of all means and sds."""
    import steinmatch as sm

    _, values = sm.targets.constrained_values(case.target(), fit.particles)
    mean = fit.weights @ values
    sd = np.sqrt(fit.weights @ (values - mean) ** 2)
    with np.errstate(all="ignore"):
        true = np.concatenate([np.abs(mean - case.mean) / case.sd, np.abs(sd / case.sd - 1.0)])
        ratio = true / np.concatenate(fit.error)
    return {**zoo.check(case, fit), "ratio": ratio[np.isfinite(ratio)].tolist()}


def run(names: list[str], seeds: int) -> None:
    import steinmatch as sm

    zoo = library()
    rows = []
    for seed in range(seeds):
        for case in zoo.cases():
            if names and not any(name in case.name for name in names):
                continue
            started = time.monotonic()
            row = measured(zoo, case, sm.fit(case.target(), seed=seed, progress=False))
            row["seconds"] = time.monotonic() - started
            rows.append({**row, "name": case.name})
            word = "WRONG" if row["wrong"] else "right" if row["converged"] else "refused"
            about = f"{seed} {case.name:27s} d={case.dim:3d} {'fair' if case.fair else '    '} {word:8s}"
            numbers = f"true {row['true']:7.4f} stated {row['stated']:.4f} gradients {row['gradients']:8,}"
            why = "" if row["converged"] else row["reason"][:100]
            print(about, numbers, f"{row['seconds']:5.1f} s", why, flush=True)
    fair = [row for row in rows if row["fair"]]
    ratios = np.concatenate([row["ratio"] for row in fair])
    print(f"\nconverged and wrong: {sum(row['wrong'] for row in rows)} of {len(rows)}")
    print(f"fair ones right: {sum(row['converged'] and not row['wrong'] for row in fair)} of {len(fair)}")
    print(f"longest: {max(row['seconds'] for row in rows):.1f} s")
    print(
        f"true errors within 2 stated (fair): {np.mean(ratios <= 2.0):.1%} of {len(ratios)}; "
        f"median stated / true {np.median(1.0 / np.maximum(ratios, 1e-12)):.2f}"
    )
    unfair([row for row in rows if not row["fair"]])


def unfair(rows: list[dict]) -> None:
    """Those that no finite number of draws is promised to get right: how often they came out right, and why not."""
    table = Table(title="targets without a promise", show_lines=True)
    for column in ("target", "right", "refused", "wrong", "largest error when right", "reason of the first refusal"):
        table.add_column(column)
    for name in dict.fromkeys(row["name"] for row in rows):
        own = [row for row in rows if row["name"] == name]
        right = [row["true"] for row in own if row["converged"] and not row["wrong"]]
        refused = [row["reason"] for row in own if not row["converged"]]
        wrong = sum(row["wrong"] for row in own)
        counts = [f"{n} of {len(own)}" if n else "" for n in (len(right), len(refused), wrong)]
        table.add_row(name, *counts, f"{max(right):.3f}" if right else "", refused[0][:300] if refused else "")
    Console(width=150).print(table)


def simulated(groups: int, strong: bool, centred: bool):
    """A hierarchical model of the zoo with data simulated from it."""
    rng = np.random.default_rng(groups)
    noise = 1.0 if strong else 3.0
    tau = 3.0 if strong else 1.0
    y = 1.0 + tau * rng.normal(size=groups) + noise * rng.normal(size=groups)
    name = f"J={groups} {'strong' if strong else 'weak'} {'centred' if centred else 'noncentred'}"
    return library().hierarchical(name, y, noise, centred=centred)


def one(groups: int, strong: bool, centred: bool, method: str) -> dict:
    case = simulated(groups, strong, centred)
    started = time.monotonic()
    if method == "nuts":
        import jax

        from benchmarks.posteriors import run_nuts

        draws, gradients, seconds = run_nuts(case.log_density, case.dim)
        leaves = jax.tree.leaves(jax.vmap(case.constrain)(draws))
        values = np.concatenate([np.asarray(leaf).reshape(len(draws), -1) for leaf in leaves], axis=1)
        mean, sd = values.mean(axis=0), values.std(axis=0)
        error = max(np.max(np.abs(mean - case.mean) / case.sd), np.max(np.abs(sd / case.sd - 1.0)))
        return {"true": float(error), "gradients": gradients, "seconds": seconds}
    import steinmatch as sm

    row = measured(library(), case, sm.fit(case.target(), progress=False))
    return {**row, "seconds": time.monotonic() - started}


def hierarchical() -> None:
    table = Table(title="simulated hierarchical models: largest error, gradients, seconds (compile included)")
    for column in ("model", "converged", "error", "stated", "gradients", "s", "NUTS error", "gradients", "s"):
        table.add_column(column, justify="right")
    for groups in SIZES:
        for strong in (True, False):
            for centred in (True, False):
                found = {}
                for method in ("steinmatch", "nuts"):
                    words = [str(groups), str(int(strong)), str(int(centred)), method]
                    command = [sys.executable, "-m", "benchmarks.zoo", "--one", *words]
                    done = subprocess.run(command, capture_output=True, text=True, check=False)
                    if done.returncode:
                        print(done.stderr[-500:])
                        continue
                    found[method] = json.loads(done.stdout.splitlines()[-1])
                own, nuts = found["steinmatch"], found["nuts"]
                row = [
                    f"J={groups} {'strong' if strong else 'weak'} {'centred' if centred else 'noncentred'}",
                    "yes" if own["converged"] else "no",
                    f"{own['true']:.3f}", f"{own['stated']:.3f}", f"{own['gradients']:,}", f"{own['seconds']:.1f}",
                    f"{nuts['true']:.3f}", f"{nuts['gradients']:,}", f"{nuts['seconds']:.1f}",
                ]  # fmt: skip
                print(*row, flush=True)
                table.add_row(*row)
    Console(width=130).print(table)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--hierarchical", action="store_true")
    parser.add_argument("--one", action="store_true")
    parser.add_argument("names", nargs="*")
    options = parser.parse_args()
    if not (FOLDER / "zoo.py").exists():
        print("benchmarks.zoo: the folder of targets is missing; nothing to measure.")
    elif options.one:
        groups, strong, centred, method = options.names
        print(json.dumps(one(int(groups), strong == "1", centred == "1", method)))
    elif options.hierarchical:
        hierarchical()
    else:
        run(options.names, options.seeds)


if __name__ == "__main__":
    main()
