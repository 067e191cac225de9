"""Every experiment of the paper: `experiments.run("gaussian", out, trials=5)`, or `steinmatch reproduce` in a shell."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from steinmatch._checks import known_name
from steinmatch.experiments import condition, exactness, gaussian, mixture, rate, rbm
from steinmatch.experiments.claims import Claim
from steinmatch.experiments.runner import run_experiments

__all__ = ["EXPERIMENTS", "Claim", "condition", "exactness", "gaussian", "mixture", "rate", "rbm", "run"]

EXPERIMENTS = {m.EXPERIMENT.name: m.EXPERIMENT for m in (gaussian, condition, mixture, rbm, rate, exactness)}


def run(names: str | Sequence[str], out: str | Path, **options: Any) -> list[Claim]:
    """Run experiments, or "all" of them, and write figures, tables, claims.md and index.html into `out`.

    The options, with their defaults: `trials=20`, `seed=0`, `quick=False`, `solver="both"`, `annealed=False`,
    `jobs=1`, `progress=True`; see `runner.run_experiments`.
    """
    wanted = [names] if isinstance(names, str) else list(names)
    chosen = list(EXPERIMENTS) if "all" in wanted else [known_name(n, EXPERIMENTS, "experiment", "run") for n in wanted]
    return run_experiments([EXPERIMENTS[name] for name in chosen], out, **options)
