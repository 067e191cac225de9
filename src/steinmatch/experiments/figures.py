"""Panels like the paper's: medians with quartile bars, one colour a method; our solver filled, descent hollow."""

import io
from collections.abc import Sequence
from pathlib import Path

import matplotlib.figure
import numpy as np

from steinmatch._files import write_whole
from steinmatch.experiments.methods import COLOURS, MARKS, STYLES
from steinmatch.experiments.store import Results

LABELS = {
    "mse_mean": "MSE of E[x]",
    "mse_second": "MSE of E[x²]",
    "relative_second": "relative MSE of E[x²]",
    "mmd": "MMD",
    "variance": "estimated / true variance",
}
FLOOR = 1e-32  # where a squared error of rounding size is drawn


def panels(
    results: Results, columns: Sequence[tuple[str, str]], xlabel: str, log_x: bool = False, mark: float | None = None
) -> matplotlib.figure.Figure:
    """One axis for each (panel, column); lines for every method and solver; a dotted line at `mark`."""
    across = 3 if len(columns) == 3 else 2
    rows = -(-len(columns) // across)
    figure = matplotlib.figure.Figure(figsize=(4.2 * across + 2.1, 3.6 * rows + 0.8), layout="constrained")
    axes = figure.subplots(rows, across, squeeze=False)
    for axis, (panel, column) in zip(axes.flat, columns, strict=False):
        if log_x:
            axis.set_xscale("log")
        _lines(axis, results.where(panel=panel), column)
        axis.set_xlabel(xlabel)
        axis.set_ylabel(LABELS[column])
        if len({panel for panel, _ in columns}) > 1:
            axis.set_title(panel, fontsize=10)
        if column != "variance":
            axis.set_yscale("log")
        if mark is not None:
            axis.axvline(mark, color="0.6", linewidth=0.8, linestyle=":")
        axis.grid(True, which="major", linewidth=0.3, color="0.85")
        axis.spines[["top", "right"]].set_visible(False)
    handles, labels = axes.flat[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=3, frameon=False, fontsize=9)
    return figure


def _lines(axis, results: Results, column: str) -> None:
    shown = [(m, s) for m in COLOURS for s in results.where(method=m).distinct("solver")]
    for k, (method, solver) in enumerate(shown):
        chosen = results.where(method=method, solver=solver)
        xs = np.array(chosen.distinct("value"), float)
        values = [chosen.where(value=x).values(column) for x in xs]
        low, middle, high = (np.array([np.percentile(v, q) for v in values]) for q in (25, 50, 75))
        if column != "variance":
            low, middle, high = (np.maximum(v, FLOOR) for v in (low, middle, high))
        label = method if method == "Monte Carlo" else f"{method}, {'our solver' if solver == 'newton' else solver}"
        apart = (k - 0.5 * (len(shown) - 1)) * 0.006  # so that lines on top of each other can be seen
        span = np.ptp(xs) if len(xs) > 1 else 1.0
        at = xs * (1.0 + 3.0 * apart) if axis.get_xscale() == "log" else xs + apart * span
        axis.errorbar(
            at, middle, yerr=[middle - low, high - middle], fmt=STYLES.get(solver, "-."), color=COLOURS[method],
            marker=MARKS[method], markersize=4.5, markerfacecolor="white" if solver == "descent" else COLOURS[method],
            linewidth=1.2, elinewidth=0.9, capsize=2, label=label,
        )  # fmt: skip


def save(figure: matplotlib.figure.Figure, folder: Path, name: str) -> None:
    """name.png and name.svg, each written whole."""
    for kind in ("png", "svg"):
        content = io.BytesIO()
        figure.savefig(content, dpi=150, format=kind)
        write_whole(folder / f"{name}.{kind}", content.getvalue())
