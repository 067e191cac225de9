"""Pictures of particles. Plain records in, a matplotlib figure out."""

from pathlib import Path

import matplotlib.figure
import numpy as np
from jaxtyping import Float

_COLOUR = "#0072B2"
_MOST_PARAMETERS = 5


def plot_particles(
    names: tuple[str, ...],
    values: Float[np.ndarray, "n k"],
    weights: Float[np.ndarray, " n"],
    parameters: list[str] | None = None,
    path: str | Path | None = None,
) -> matplotlib.figure.Figure:
    """A matrix of scatter plots with smoothed marginals on the diagonal, of `parameters` or of the first five."""
    unknown = [name for name in parameters or [] if name not in names]
    if unknown:
        raise ValueError(f"plot: no parameter {unknown[0]!r}; there are {', '.join(names)}.")
    chosen = [names.index(name) for name in parameters] if parameters else range(min(len(names), _MOST_PARAMETERS))
    columns = [(names[i], values[:, i]) for i in chosen]
    k = len(columns)
    figure = matplotlib.figure.Figure(figsize=(1.2 + 1.9 * k, 1.0 + 1.9 * k), layout="constrained")
    axes = figure.subplots(k, k, squeeze=False, sharex="col")
    for row, (row_name, y) in enumerate(columns):
        for column, (column_name, x) in enumerate(columns):
            axis = axes[row, column]
            axis.spines[["top", "right"]].set_visible(False)
            axis.tick_params(labelsize=7)
            if row < column:
                axis.set_visible(False)
            elif row == column:
                _draw_marginal(axis, x, weights)
                axis.set_title(
                    f"{row_name}: {weights @ x:.3g} ± {np.sqrt(weights @ (x - weights @ x) ** 2):.2g}",
                    fontsize=8,
                )
            else:
                axis.scatter(x, y, s=9, alpha=0.6, color=_COLOUR, linewidths=0)
            if row == k - 1:
                axis.set_xlabel(column_name, fontsize=9)
            if column == 0 and row > 0:
                axis.set_ylabel(row_name, fontsize=9)
    if path is not None:
        figure.savefig(path, dpi=130)
    return figure


def _draw_marginal(axis, x: np.ndarray, weights: np.ndarray) -> None:
    """A kernel density estimate with the normal reference bandwidth, and ticks for the particles."""
    mean = weights @ x
    sd = float(np.sqrt(weights @ (x - mean) ** 2))
    axis.set_yticks([])
    axis.spines["left"].set_visible(False)
    axis.plot(x, np.zeros_like(x), "|", color=_COLOUR, markersize=5, alpha=0.6)
    if sd > 0:
        width = 1.06 * sd * len(x) ** -0.2
        grid = np.linspace(x.min() - 3 * width, x.max() + 3 * width, 200)
        density = np.exp(-0.5 * ((grid[:, None] - x[None, :]) / width) ** 2) @ weights / (width * np.sqrt(2 * np.pi))
        axis.fill_between(grid, density, color=_COLOUR, alpha=0.3, linewidth=0)
        axis.axvline(mean, color="black", linewidth=0.8)
