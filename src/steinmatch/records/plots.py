"""Pictures of particles. Plain records in, a matplotlib figure out."""

import collections
import io
import warnings
from typing import Any

import numpy as np
from jaxtyping import Float

from steinmatch._files import as_path, write_whole
from steinmatch.records.summary import selected

_COLOUR = "#0072B2"
_MOST_PARAMETERS = 5
_MOST_AXES = 20
_MOST_POINTS = 1000

PICTURES = (".png", ".pdf", ".svg", ".jpg", ".jpeg")


def plot_particles(
    names: tuple[str, ...],
    values: Float[np.ndarray, "n k"],
    weights: Float[np.ndarray, " n"],
    parameters: Any = None,
    path: Any = None,
) -> Any:
    """A matrix of scatter plots with smoothed marginals on the diagonal, of `parameters` or of the five that matter:
    scalars before short vectors, and these before long ones, since they are the scales and top levels of a model.
    """
    chosen = selected(names, parameters, None, "plot") if parameters else foremost(names, values)
    if len(chosen) > _MOST_AXES:
        raise ValueError(f"plot: {len(chosen)} parameters are more than a picture can show, {_MOST_AXES}; choose some.")
    columns = [(names[i], values[:, i]) for i in chosen]
    weights = np.asarray(weights)
    n = len(weights)
    whole = n <= _MOST_POINTS and np.ptp(weights) == 0.0
    shown = np.arange(n) if whole else drawn_by_weight(weights, _MOST_POINTS)
    k = len(columns)
    from matplotlib.figure import Figure  # imported when used

    figure = Figure(figsize=(1.2 + 1.9 * k, 1.0 + 1.9 * k), layout="constrained")
    axes = figure.subplots(k, k, squeeze=False, sharex="col")
    for row, (row_name, y) in enumerate(columns):
        for column, (column_name, x) in enumerate(columns):
            axis = axes[row, column]
            axis.spines[["top", "right"]].set_visible(False)
            axis.tick_params(labelsize=7)
            if row < column:
                axis.set_visible(False)
            elif row == column:
                _draw_marginal(axis, x, weights, shown)
                axis.set_title(
                    f"{row_name}: {weights @ x:.3g} ± {np.sqrt(weights @ (x - weights @ x) ** 2):.2g}",
                    fontsize=8,
                    parse_math=False,
                )
            else:
                axis.scatter(x[shown], y[shown], s=9, alpha=0.6, color=_COLOUR, linewidths=0)
            if row == k - 1:
                axis.set_xlabel(column_name, fontsize=9, parse_math=False)
            if column == 0 and row > 0:
                axis.set_ylabel(row_name, fontsize=9, parse_math=False)
    if path is not None:
        path = as_path(path, "plot")
        content = io.BytesIO()
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="Glyph")  # of names in letters that the font has not
            figure.savefig(content, dpi=130, format=path.suffix[1:] or "png")
        write_whole(path, content.getvalue())
    return figure


def foremost(names: tuple[str, ...], values: Float[np.ndarray, "n k"]) -> list[int]:
    """The first five parameters, by the size of the variables that they are of; constants last."""
    sizes = collections.Counter(name.split("[")[0] for name in names)
    constant = np.ptp(values, axis=0) == 0.0
    order = sorted(range(len(names)), key=lambda i: (bool(constant[i]), sizes[names[i].split("[")[0]]))
    return order[:_MOST_PARAMETERS]


def drawn_by_weight(weights: Float[np.ndarray, " n"], most: int) -> np.ndarray:
    """So many of weighted particles that a picture of them shows their density."""
    n = len(weights)
    comb = (np.arange(min(n, most)) + 0.5) / min(n, most)
    return np.minimum(np.searchsorted(np.cumsum(weights) / np.sum(weights), comb), n - 1)


def _draw_marginal(axis, x: np.ndarray, weights: np.ndarray, shown: np.ndarray) -> None:
    """A kernel density estimate with the normal reference bandwidth, and ticks for the particles."""
    mean = weights @ x
    sd = float(np.sqrt(weights @ (x - mean) ** 2))
    axis.set_yticks([])
    axis.spines["left"].set_visible(False)
    axis.plot(x[shown], np.zeros(len(shown)), "|", color=_COLOUR, markersize=5, alpha=0.6)
    if sd > 0:
        width = 1.06 * sd * len(x) ** -0.2
        bins = np.linspace(x.min() - 3 * width, x.max() + 3 * width, 401)
        grid = 0.5 * (bins[1:] + bins[:-1])
        mass, _ = np.histogram(x, bins, weights=weights)
        density = np.exp(-0.5 * ((grid[:, None] - grid[None, :]) / width) ** 2) @ mass / (width * np.sqrt(2 * np.pi))
        axis.fill_between(grid, density, color=_COLOUR, alpha=0.3, linewidth=0)
        axis.axvline(mean, color="black", linewidth=0.8)
