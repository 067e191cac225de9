"""The table that users read: means, sds and quantiles on the scale of their own parameters."""

import dataclasses
import io
from pathlib import Path

import numpy as np
from jaxtyping import Float
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from steinmatch._files import write_whole

LEVELS = (0.05, 0.5, 0.95)
COLUMNS = ("mean", "sd", "5%", "50%", "95%")


@dataclasses.dataclass(frozen=True)
class Summary:
    """Moments and quantiles of each parameter, and a sentence on how they were reached. Prints as a table."""

    names: tuple[str, ...]
    values: Float[np.ndarray, "k 5"]  # columns mean, sd, 5%, 50%, 95%
    verdict: str
    error: Float[np.ndarray, " k"] | None = None  # of the means, in their own units

    def __getitem__(self, name: str) -> dict[str, float]:
        """The row of one parameter."""
        i = self.names.index(name)
        row: dict[str, float] = dict(zip(COLUMNS, map(float, self.values[i]), strict=True))
        return row if self.error is None else {**row, "error": float(self.error[i])}

    def write_csv(self, path: Path) -> None:
        """One row a parameter."""
        columns = (*COLUMNS, *(() if self.error is None else ("error",)))
        lines = [",".join(("parameter", *columns))]
        for name in self.names:
            quoted = '"' + name.replace('"', '""') + '"'
            lines.append(",".join((quoted, *(repr(value) for value in self[name].values()))))
        write_whole(path, "\n".join(lines) + "\n")

    def __rich__(self) -> Table:
        table = Table(caption=escape(self.verdict), caption_justify="left")
        table.add_column("")
        for column in COLUMNS:
            table.add_column(column, justify="right")
        if self.error is not None:
            table.add_column("error of mean", justify="right")
        for i, (name, row) in enumerate(zip(self.names, self.values, strict=True)):
            error = [] if self.error is None else [f"{self.error[i]:.1g}"]
            table.add_row(escape(name), *(f"{value:.4g}" for value in row), *error)
        return table

    def __str__(self) -> str:
        console = Console(file=io.StringIO(), width=100)
        console.print(self)
        return console.file.getvalue()  # type: ignore[attr-defined]


def summarise(
    names: tuple[str, ...],
    values: Float[np.ndarray, "n k"],
    weights: Float[np.ndarray, " n"],
    verdict: str,
    error: Float[np.ndarray, " k"] | None = None,
) -> Summary:
    """Weighted means, sds (ddof 0) and quantiles of the columns of `values`; `error` in units of the sds."""
    mean = weights @ values
    sd = np.sqrt(weights @ (values - mean) ** 2)
    quantiles = np.stack([weighted_quantiles(column, weights, LEVELS) for column in values.T])
    absolute = None if error is None else error * sd
    return Summary(names, np.column_stack([mean, sd, quantiles]), verdict, absolute)


def weighted_quantiles(
    values: Float[np.ndarray, " n"], weights: Float[np.ndarray, " n"], levels: tuple[float, ...]
) -> Float[np.ndarray, " q"]:
    """Quantiles by linear interpolation between the midpoints of the cumulative weights."""
    order = np.argsort(values)
    cumulative = np.cumsum(weights[order])
    return np.interp(levels, cumulative - 0.5 * weights[order], values[order])
