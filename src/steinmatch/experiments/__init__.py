"""Every experiment of the paper: `experiments.run("gaussian", out, trials=5)`, or `steinmatch reproduce` in a shell."""

from collections.abc import Sequence
from pathlib import Path

from steinmatch._checks import known_name
from steinmatch.experiments import condition, exactness, gaussian, mixture, rate, rbm
from steinmatch.experiments.claims import Claim
from steinmatch.experiments.runner import run_experiments, settings_for

__all__ = ["EXPERIMENTS", "Claim", "condition", "exactness", "gaussian", "mixture", "rate", "rbm", "run"]

EXPERIMENTS = {m.EXPERIMENT.name: m.EXPERIMENT for m in (gaussian, condition, mixture, rbm, rate, exactness)}


def run(
    names: str | Sequence[str],
    out: str | Path,
    *,
    trials: int = 20,
    seed: int = 0,
    quick: bool = False,
    solver: str = "both",
    annealed: bool = False,
    progress: bool = True,
) -> list[Claim]:
    """Run experiments, or "all" of them, and write figures, tables, claims.md and index.html into `out`.

    What `out` holds from an earlier or interrupted run with the same settings is not run again; more trials add to it.
    `quick` keeps the dimensions and runs one trial over small grids; `solver` is "descent", "newton" or "both".
    `annealed` shows annealed SVGD beside the others on the mixtures.
    """
    wanted = [names] if isinstance(names, str) else list(names)
    chosen = list(EXPERIMENTS) if "all" in wanted else [known_name(n, EXPERIMENTS, "experiment", "run") for n in wanted]
    settings = settings_for(trials, seed, quick, solver, annealed)
    return run_experiments([EXPERIMENTS[name] for name in chosen], Path(out), settings, progress)
