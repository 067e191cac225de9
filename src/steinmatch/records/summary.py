"""The table that users read: means, sds and quantiles on the scale of their own parameters."""

import dataclasses
import html
import re
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float
from rich.markup import escape
from rich.table import Table

from steinmatch._files import write_whole
from steinmatch._shown import Shown

LEVELS = (0.05, 0.5, 0.95)
COLUMNS = ("mean", "sd", "5%", "50%", "95%")


@dataclasses.dataclass(frozen=True, repr=False)
class Summary(Shown):
    """Moments and quantiles of each parameter, and a sentence on how they were reached. Prints as a table."""

    names: tuple[str, ...]
    values: Float[np.ndarray, "k 5"]  # columns mean, sd, 5%, 50%, 95%
    verdict: str
    error: Float[np.ndarray, " k"] | None = None  # of the means, in their own units
    sd_error: Float[np.ndarray, " k"] | None = None  # of the sds

    @property
    def columns(self) -> tuple[str, ...]:
        return (*COLUMNS, *(() if self.error is None else ("error", "sd_error")))

    def __getitem__(self, name: str) -> dict[str, float]:
        """The row of one parameter."""
        if name not in self.names:
            raise KeyError(f"there is no parameter {name!r}; there are {', '.join(self.names)}")
        i = self.names.index(name)
        row: dict[str, float] = dict(zip(COLUMNS, map(float, self.values[i]), strict=True))
        if self.error is None or self.sd_error is None:
            return row
        return {**row, "error": float(self.error[i]), "sd_error": float(self.sd_error[i])}

    def to_frame(self) -> Any:
        """A pandas DataFrame, one row a parameter."""
        import pandas

        return pandas.DataFrame([self[name] for name in self.names], index=list(self.names), columns=self.columns)

    def _repr_html_(self) -> str:
        """For notebooks."""
        head = "".join(f"<th>{html.escape(column)}</th>" for column in ("", *map(_heading, self.columns)))
        rows = "".join(
            f"<tr><th>{html.escape(name)}</th>"
            + "".join(f"<td>{value:{_digits(column)}}</td>" for column, value in self[name].items())
            + "</tr>"
            for name in self.names
        )
        return f"<table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table><p>{html.escape(self.verdict)}</p>"

    def write_csv(self, path: Path) -> None:
        """One row a parameter."""
        lines = [",".join(("parameter", *self.columns))]
        for name in self.names:
            quoted = '"' + name.replace('"', '""') + '"'
            lines.append(",".join((quoted, *(repr(value) for value in self[name].values()))))
        write_whole(path, "\n".join(lines) + "\n")

    def __rich__(self) -> Table:
        table = Table(caption=escape(self.verdict), caption_justify="left")
        table.add_column("")
        for column in self.columns:
            table.add_column(_heading(column), justify="right")
        for name in self.names:
            table.add_row(escape(name), *(f"{value:{_digits(column)}}" for column, value in self[name].items()))
        return table


def _heading(column: str) -> str:
    return {"error": "error of mean", "sd_error": "of sd"}.get(column, column)


def _digits(column: str) -> str:
    return ".1g" if "error" in column else ".4g"


def selected(
    names: tuple[str, ...], var_names: str | list[str] | None, filter_vars: str | None, place: str
) -> list[int]:
    """The parameters that are asked for, as ArviZ has it: whole variables ("b" is all of b) or single entries, "~b" all
    but b; `filter_vars` "like" for a part of the name, "regex" for a regular expression.
    """
    if var_names is None:
        return list(range(len(names)))
    if filter_vars not in (None, "like", "regex"):
        raise ValueError(f'{place}: filter_vars must be None, "like" or "regex", got {filter_vars!r:.80}.')
    asked = [var_names] if isinstance(var_names, str) else list(var_names)
    if not all(isinstance(name, str) for name in asked):
        raise TypeError(f"{place}: give names of parameters, got {var_names!r:.80}.")
    but = bool(asked) and all(name.startswith("~") and name not in names for name in asked)
    found: list[int] = []
    for name in (name[1:] for name in asked) if but else asked:
        try:
            hits = [i for i, own in enumerate(names) if _matches(own, name, filter_vars)]
        except re.error as error:
            raise ValueError(f"{place}: {name!r} is no regular expression: {error}.") from error
        if not hits:
            raise ValueError(f"{place}: no parameter {name!r}; there are {', '.join(names)}.")
        found += [i for i in hits if i not in found]
    return [i for i in range(len(names)) if i not in found] if but else found


def _matches(own: str, name: str, filter_vars: str | None) -> bool:
    base = own.split("[")[0]
    if filter_vars == "like":
        return name in base
    if filter_vars == "regex":
        return re.search(name, base) is not None
    return name in (own, base)


def summarise(
    names: tuple[str, ...],
    values: Float[np.ndarray, "n k"],
    weights: Float[np.ndarray, " n"],
    verdict: str,
    error: tuple[Float[np.ndarray, " k"], Float[np.ndarray, " k"]] | None = None,
) -> Summary:
    """Weighted means, sds (ddof 0) and quantiles of the columns of `values`; errors of means and sds in sds."""
    mean = weights @ values
    sd = np.sqrt(weights @ (values - mean) ** 2)
    quantiles = np.array([weighted_quantiles(column, weights, LEVELS) for column in values.T]).reshape(-1, len(LEVELS))
    absolute = (None, None) if error is None else (error[0] * sd, error[1] * sd)
    return Summary(names, np.column_stack([mean, sd, quantiles]), verdict, *absolute)


def weighted_quantiles(
    values: Float[np.ndarray, " n"], weights: Float[np.ndarray, " n"], levels: tuple[float, ...]
) -> Float[np.ndarray, " q"]:
    """Quantiles by linear interpolation between the midpoints of the cumulative weights."""
    order = np.argsort(values)
    cumulative = np.cumsum(weights[order])
    return np.interp(levels, cumulative - 0.5 * weights[order], values[order])
