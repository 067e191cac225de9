"""Models side by side: evidence, Bayes factors and, where log likelihoods are known, leave-one-out cross-validation."""

import dataclasses
import io
import warnings
from collections.abc import Mapping
from typing import Any

import numpy as np
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from steinmatch.fitting import Fit


@dataclasses.dataclass(frozen=True)
class Comparison:
    """Models from the highest evidence to the lowest. Prints as a table."""

    names: tuple[str, ...]
    log_evidence: np.ndarray
    error: np.ndarray  # standard errors of the log evidences
    log_bayes_factor: np.ndarray  # of the first model against each
    probability: np.ndarray  # of the models, if all were equally probable before
    loo: Any = None  # ArviZ's table of PSIS-LOO, where all fits have a log likelihood

    def __getitem__(self, name: str) -> dict[str, float]:
        """The row of one model."""
        i = self.names.index(name)
        columns = ("log_evidence", "error", "log_bayes_factor", "probability")
        return {column: float(getattr(self, column)[i]) for column in columns}

    def __rich__(self) -> Table:
        table = Table(caption="log evidence of the densities as they are given, constants included")
        for column in ("", "log evidence", "error", "log Bayes factor of the first", "probability"):
            table.add_column(column, justify="left" if column == "" else "right")
        for i, name in enumerate(self.names):
            numbers = (self.log_evidence[i], self.error[i], self.log_bayes_factor[i], self.probability[i])
            table.add_row(
                escape(name), *(f"{value:.{digits}f}" for value, digits in zip(numbers, (3, 3, 3, 4), strict=True))
            )
        return table

    def __str__(self) -> str:
        console = Console(file=io.StringIO(), width=100)
        console.print(self)
        return console.file.getvalue() + ("" if self.loo is None else f"\n{self.loo}\n")  # type: ignore[attr-defined]


def compare(fits: Any) -> Comparison:
    """Fits of several models to the same data: Bayes factors Z_a / Z_b from their evidences; and PSIS-LOO by ArviZ,
    where every fit has the log likelihood of its observations.
    """
    if not isinstance(fits, Mapping) or not fits:
        raise TypeError(f'compare: give fits by name, compare({{"a": fit_a, "b": fit_b}}); got {fits!r:.80}.')
    for name, fit in fits.items():
        if not isinstance(fit, Fit):
            raise TypeError(f"compare: {name!r} must be a Fit, got {fit!r:.80}.")
    found = {str(name): fit.log_evidence for name, fit in fits.items()}
    names = tuple(sorted(found, key=lambda name: -found[name].estimate))
    logs = np.array([found[name].estimate for name in names])
    errors = np.array([found[name].error for name in names])
    probability = np.exp(logs - logs.max())
    return Comparison(names, logs, errors, logs[0] - logs, probability / probability.sum(), _loo(fits))


def _loo(fits: Mapping[str, Fit]) -> Any:
    if not all(getattr(getattr(fit.target, "info", None), "log_likelihood", None) for fit in fits.values()):
        return None
    import arviz

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return arviz.compare({str(name): fit.to_arviz(resample=True) for name, fit in fits.items()}, ic="loo")
