"""Results of experiments, cell by cell: written atomically, found again by an interrupted or larger run."""

import csv
import dataclasses
import io
import json
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from steinmatch._files import write_whole

Row = dict[str, Any]


@dataclasses.dataclass(frozen=True)
class Cell:
    """The smallest unit of work: its name within the experiment, what it depends on, and how it is computed."""

    name: str
    settings: Row
    compute: Callable[[], list[Row]]


class Store:
    """Cells of one experiment under a folder. A cell counts as done only if its settings are those asked for."""

    def __init__(self, folder: Path):
        self.folder = folder

    def rows(self, cell: Cell) -> list[Row] | None:
        """The rows of a finished cell, or None."""
        try:
            record = json.loads(self._path(cell).read_text())
        except (OSError, ValueError):
            return None
        same = isinstance(record, dict) and record.get("settings") == json.loads(to_json(cell.settings))
        return record.get("rows") if same else None

    def write(self, cell: Cell, rows: list[Row]) -> None:
        write_whole(self._path(cell), to_json({"settings": cell.settings, "rows": rows}))

    def _path(self, cell: Cell) -> Path:
        return self.folder / f"{cell.name}.json"


def to_json(value: Any) -> str:
    """JSON, with NumPy's numbers as numbers."""
    return json.dumps(value, default=lambda x: x.item() if hasattr(x, "item") else str(x))


class Results:
    """Rows of an experiment, with medians over what is not asked for."""

    def __init__(self, rows: Iterable[Row]):
        self.rows = list(rows)

    def where(self, **wanted: Any) -> "Results":
        """The rows whose columns have these values; a callable is a condition on the value."""

        def fits(row: Row) -> bool:
            return all(
                want(row.get(name)) if callable(want) else row.get(name) == want for name, want in wanted.items()
            )

        return Results(row for row in self.rows if fits(row))

    def values(self, column: str) -> np.ndarray:
        """The numbers of a column, missing ones left out."""
        found = [row[column] for row in self.rows if row.get(column) is not None]
        return np.asarray(found, np.float64)

    def median(self, column: str, **wanted: Any) -> float:
        """nan where there is nothing."""
        values = self.where(**wanted).values(column)
        return float(np.median(values)) if len(values) else float("nan")

    def distinct(self, column: str) -> list:
        """The values of a column, sorted."""
        return sorted({row[column] for row in self.rows if row.get(column) is not None})

    def write_csv(self, path: Path, columns: Sequence[str]) -> None:
        """A tidy table: one row a measurement, all columns always there."""
        text = io.StringIO(newline="")
        writer = csv.DictWriter(text, columns, restval="", extrasaction="ignore")
        writer.writeheader()
        writer.writerows(self.rows)
        write_whole(path, text.getvalue())
