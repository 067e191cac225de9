"""The report page: one HTML file with a verdict, a table and charts, which needs nothing beside it.

Names are the user's: they are escaped wherever they come into the page, also within its numbers (JSON).
"""

import html
import importlib.metadata
import json
import math
import platform
from collections.abc import Callable, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float

from steinmatch._files import as_path, write_whole
from steinmatch.records.plots import drawn_by_weight, foremost

_BINS = 40
_MOST_DRAWN = 400  # draws in the scatter plot
_MOST_NUMBERS = 400_000  # of these: about 3 MB of page
_DIGITS = 5
_CITE = (
    "Q. Liu and D. Wang. Stein Variational Gradient Descent as Moment Matching. Advances in Neural Information "
    "Processing Systems 31, 2018."
)


class Column(NamedTuple):
    """A column of the table: a heading, a number for each parameter, and its error."""

    heading: str
    values: Float[np.ndarray, " k"]
    errors: Float[np.ndarray, " k"] | None = None


class Report(NamedTuple):
    """What a page tells. The first column's values are marked in the marginals."""

    title: str
    headline: str
    good: bool
    warnings: Sequence[str]
    names: tuple[str, ...]
    columns: Sequence[Column]
    values: Float[np.ndarray, "n k"]
    weights: Float[np.ndarray, " n"]
    log_densities: Callable[[np.ndarray], Float[np.ndarray, " s"]] | None = None  # of the draws with given indices
    rounds: Sequence[tuple[int, float]] = ()  # draws or steps, and errors
    rounds_over: str = "draws"
    rounds_of: str = "largest standard error"
    goal: float | None = None
    sections: Sequence[tuple[str, str]] = ()  # headings and HTML that has been escaped
    call: str = ""


def escaped(text: Any) -> str:
    return html.escape(str(text), quote=True)


def paragraphs(*texts: str) -> str:
    """Plain text as HTML."""
    return "".join(f"<p>{escaped(text)}</p>" for text in texts if text)


def rows_of(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A small table of plain text."""
    head = "".join(f"<th>{escaped(heading)}</th>" for heading in headings)
    body = "".join("<tr>" + "".join(f"<td>{escaped(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    return f'<div class="wide"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


def write_report(report: Report, path: str | Path) -> None:
    """The page, written whole or not at all."""
    write_whole(as_path(path, "report"), page(report))


def style_sheet(name: str = "report.css") -> str:
    """A style sheet or script of the pages."""
    return files("steinmatch.records.pages").joinpath(name).read_text("utf-8")


def page(report: Report) -> str:
    """The page as text."""
    style, script = style_sheet(), style_sheet("report.js")
    state = "verdict" if report.good else "verdict not"
    warnings = "".join(f"<li>{escaped(text)}</li>" for text in report.warnings)
    drawn = _numbers(report)
    colours = ", yellow where the density is highest" if drawn["densities"] else ""
    charts = [
        ("marginal", '<span id="marginal-words"></span>. Click a row of the table for another parameter.'),
        ("pairs", f"{len(drawn['draws'])} draws, by weight{colours}."),
    ]
    if drawn["rounds"]:
        goal = "; dashed: where it must be" if report.goal else ""
        charts.append(("rounds", f"The {escaped(report.rounds_of)} over the {escaped(report.rounds_over)}{goal}."))
    figures = "".join(
        f'<figure><svg id="{name}" viewBox="0 0 430 300" role="img" aria-label="{name}"></svg>'
        f"<figcaption>{words}</figcaption></figure>"
        for name, words in charts
    )
    sections = "".join(f"<h2>{escaped(heading)}</h2>{content}" for heading, content in report.sections)
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>{escaped(report.title)}</title><style>{style}</style></head>
<body><h1>{escaped(report.title)}</h1>
<div class="{state}"><strong>{escaped(report.headline)}</strong>{f"<ul>{warnings}</ul>" if warnings else ""}</div>
<h2>Parameters</h2>
<div class="tools"><input id="search" type="search" placeholder="Find a parameter" aria-label="Find a parameter">
<span id="counted" class="soft"></span><button id="more" type="button" hidden>Show all</button></div>
<div class="wide">{_table(report)}</div>
<h2>Pictures</h2>
<div class="tools"><label>across <select id="across"></select></label><label>up <select id="up"></select></label></div>
<div class="charts">{figures}</div>
{sections}
<h2>How it was made</h2>
{f"<pre>{escaped(report.call)}</pre>" if report.call else ""}
<p class="soft">{escaped(_versions())}</p>
<p class="soft">To cite the software: steinmatch {escaped(importlib.metadata.version("steinmatch"))}, by the steinmatch
developers. To cite the method: {escaped(_CITE)}</p>
<script type="application/json" id="data">{safe_json(drawn)}</script>
<script>{script}</script>
</body></html>
"""


def _table(report: Report) -> str:
    head = "".join(
        f'<th scope="col"><button type="button">{escaped(heading)}</button></th>'
        for heading in ("parameter", *(column.heading for column in report.columns))
    )
    rows = []
    for i, name in enumerate(report.names):
        cells = "".join(f'<td data-v="{float(c.values[i])!r}">{_number(c, i)}</td>' for c in report.columns)
        rows.append(f'<tr data-i="{i}"><td>{escaped(name)}</td>{cells}</tr>')
    return f'<table id="parameters"><thead><tr>{head}</tr></thead><tbody>{"".join(rows)}</tbody></table>'


def _number(column: Column, i: int) -> str:
    shown = f"{column.values[i]:.4g}"
    return shown if column.errors is None else f"{shown} ± {column.errors[i]:.1g}"


def _numbers(report: Report) -> dict[str, Any]:
    """What the charts are drawn from."""
    values, weights = report.values, np.asarray(report.weights)
    histograms = []
    for column in values.T:
        finite = np.isfinite(column)
        low, high = (float(column[finite].min()), float(column[finite].max())) if finite.any() else (0.0, 0.0)
        reach = (low, high if high > low else low + 1.0)
        counts, _ = np.histogram(column[finite], _BINS, reach, weights=weights[finite])
        histograms.append([low, high, [_rounded(count) for count in counts]])
    shown = drawn_by_weight(weights, max(min(_MOST_DRAWN, _MOST_NUMBERS // max(values.shape[1], 1)), 20))
    densities = None
    if report.log_densities is not None:
        logs = report.log_densities(shown)
        ranks = np.argsort(np.argsort(logs)) / max(len(logs) - 1, 1)
        densities = [_rounded(rank) for rank in ranks]
    return {
        "names": list(report.names),
        "histograms": histograms,
        "draws": [[_rounded(x) for x in row] for row in values[shown]],
        "densities": densities,
        "foremost": foremost(report.names, values),
        "rounds": [[int(n), _rounded(e)] for n, e in report.rounds if math.isfinite(e)],
        "rounds_over": report.rounds_over,
        "rounds_of": report.rounds_of,
        "goal": report.goal,
        "sd_column": next((i for i, column in enumerate(report.columns, 1) if column.heading == "sd"), 1),
    }


def _rounded(x: float) -> float | None:
    return float(f"{float(x):.{_DIGITS}g}") if math.isfinite(x) else None


def safe_json(value: Any) -> str:
    """JSON that cannot end its script element."""
    text = json.dumps(value, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _versions() -> str:
    found = [f"{name} {importlib.metadata.version(name)}" for name in ("steinmatch", "jax", "numpy")]
    return ", ".join([*found, f"Python {platform.python_version()}"]) + "."
