"""Running experiments: cells with a progress bar, then the table, the figures, the claims and the page."""

import dataclasses
import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from steinmatch._checks import known_name, positive_integer, whole_seed
from steinmatch._files import only_one, write_whole
from steinmatch.experiments.claims import Claim, markdown
from steinmatch.experiments.methods import (
    DESCENT_STEPS,
    EXACT,
    INNER_STEPS,
    NEWTON_STEPS,
    RATES,
    ROUGH,
    Settings,
)
from steinmatch.experiments.page import write_page
from steinmatch.experiments.store import Cell, Results, Row, Store, to_json
from steinmatch.experiments.workers import compute_cell, compute_in_processes

_SOLVERS = {"both": ("descent", "newton"), "descent": ("descent",), "newton": ("newton",)}


@dataclasses.dataclass(frozen=True)
class Experiment:
    """One experiment: its cells, the picture and the claims that its results decide."""

    name: str
    title: str
    columns: Sequence[str]  # of its table
    cells: Callable[[Settings], list[Cell]]
    draw: Callable[[Results, Path], None]
    claims: Callable[[Results], list[Claim]]
    caption: str  # what to see in its figures

    def run(self, out: str | Path, **options: Any) -> list[Claim]:
        """Run this experiment into the folder `out`; the options are those of `run_experiments`."""
        return run_experiments([self], out, **options)


def run_experiments(
    experiments: Sequence[Experiment],
    out: str | Path,
    *,
    trials: int = 20,
    seed: int = 0,
    quick: bool = False,
    solver: str = "both",
    annealed: bool = False,
    jobs: int = 1,
    progress: bool = True,
) -> list[Claim]:
    """Run what is not done yet under `out`, write all outputs, and return the claims.

    Ctrl-C keeps every finished cell: the same call goes on from there, and more trials add to it.

    **Arguments:**

    - `trials`: random models or starts of each setting.
    - `seed`: same seed, same numbers.
    - `quick`: one trial and small grids; the dimensions stay.
    - `solver`: "descent", "newton" (ours) or "both".
    - `annealed`: show annealed SVGD beside the others on the mixtures.
    - `jobs`: processes that compute cells, one core each; with more than one the calling script needs the usual
      `if __name__ == "__main__":`.
    - `progress`: show a bar where the output is a terminal.
    """
    settings = Settings(
        trials=1 if quick else positive_integer(trials, "trials", "run"),
        seed=whole_seed(seed, "run"),
        quick=quick,
        solvers=_SOLVERS[known_name(solver, _SOLVERS, "solver", "run")],
        annealed=annealed,
    )
    jobs = positive_integer(jobs, "jobs", "run")
    started, folder = time.monotonic(), Path(out)
    with only_one(folder, "run"):
        rows = _computed(experiments, settings, folder, jobs, progress)
        claims = _decided(experiments, rows, folder)
        solving = sum(float(row.get("seconds") or 0.0) for found in rows.values() for row in found)
        _write_pages(settings, folder, solving, time.monotonic() - started)
    return claims


def _counted(n: int, what: str) -> str:
    return f"{n} {what}" + ("" if n == 1 else "s")


def _computed(
    experiments: Sequence[Experiment], settings: Settings, out: Path, jobs: int, progress: bool
) -> dict[str, list[Row]]:
    """The rows of all cells, those that are missing computed with a bar."""
    cells = {experiment.name: experiment.cells(settings) for experiment in experiments}
    stores = {name: Store(out / "cells" / name) for name in cells}
    work = [(name, i) for name, found in cells.items() for i, cell in enumerate(found)]
    missing = [(name, i) for name, i in work if stores[name].rows(cells[name][i]) is None]
    console = Console(stderr=True)
    show = progress and (console.is_terminal or console.is_jupyter)
    parts = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*parts, console=console, disable=not show) as bar:
        task = bar.add_task(missing[0][0] if missing else "", total=len(work), completed=len(work) - len(missing))
        if jobs > 1 and len(missing) > 1:
            for name, _ in compute_in_processes(missing, settings, out, jobs):
                bar.update(task, advance=1, description=name)
        else:
            for name, i in missing:
                bar.update(task, description=name)
                compute_cell(stores[name], cells[name][i])
                bar.advance(task)
    return {name: [row for cell in found for row in stores[name].rows(cell) or []] for name, found in cells.items()}


def _decided(experiments: Sequence[Experiment], rows: dict[str, list[Row]], out: Path) -> list[Claim]:
    """Tables and figures, and the claims that the rows decide."""
    claims: list[Claim] = []
    for experiment in experiments:
        results = Results(rows[experiment.name])
        results.write_csv(out / f"{experiment.name}.csv", experiment.columns)
        experiment.draw(results, out)
        found = experiment.claims(results)
        record = {
            "title": experiment.title,
            "caption": experiment.caption,
            "claims": [dataclasses.asdict(claim) for claim in found],
        }
        write_whole(out / "cells" / f"{experiment.name}.claims.json", to_json(record))
        claims += found
    return claims


def _write_pages(settings: Settings, out: Path, solving: float, running: float) -> None:
    """The pages show all experiments that the folder holds, not only those of this run."""
    heading = "Claims of the paper" + (", quick run" if settings.quick else "")
    minutes = [_counted(round(seconds / 60.0), "minute") for seconds in (solving, running)]
    rates = ", ".join(f"{rate:g}" for rate in RATES)
    note = (
        f"\n{_counted(settings.trials, 'trial')}, seed {settings.seed}; descent: AdaGrad, {DESCENT_STEPS} steps, for "
        f"each panel and method the best rate of {rates}; our solver: at most {NEWTON_STEPS} steps of {INNER_STEPS} "
        f"inner iterations, down to a scaled residual of {EXACT:g} ({ROUGH:g} on RBMs and mixtures). {minutes[0]} of "
        f"solving, {minutes[1]} in this run.\n"
    )
    titles: dict[str, tuple[str, str]] = {}
    everything = []
    for path in sorted((out / "cells").glob("*.claims.json")):
        record = json.loads(path.read_text())
        titles[path.name.removesuffix(".claims.json")] = record["title"], record.get("caption", "")
        everything += [Claim(**claim) for claim in record["claims"]]
    write_whole(out / "claims.md", markdown(everything, heading) + note)
    write_page(out, titles, everything, note.strip())
