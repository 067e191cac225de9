"""Side by side: models, by evidence and leave-one-out cross-validation; or a fit and another sampler's draws."""

import dataclasses
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any, overload

import numpy as np
import scipy.special
from rich.markup import escape
from rich.table import Table

from steinmatch._shown import Shown
from steinmatch.answers.sharpening import Sharpened, sharpen
from steinmatch.fitting import Fit
from steinmatch.records.pages.report import Column, paragraphs, write_report
from steinmatch.records.reporting import of_fit


@dataclasses.dataclass(frozen=True, repr=False)
class Comparison(Shown):
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
        return super().__str__() + ("" if self.loo is None else f"\n{self.loo}\n")


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Beside(Shown):
    """A fit and another sampler's draws of the same posterior, side by side. Prints as a table."""

    fit: Fit
    draws: Sharpened  # theirs: as they are (`before`) and with Stein weights (`after`)

    @property
    def names(self) -> tuple[str, ...]:
        return self.draws.names

    @property
    def apart(self) -> np.ndarray:
        """(k, 2): how far means and sds are apart, in standard errors of their difference."""
        found = []
        for theirs, ours, error in (
            (self.draws.before.mean, self._moments[0], "mean"),
            (self.draws.before.sd, self._moments[1], "sd"),
        ):
            scale = self._moments[1]
            both = [np.asarray(getattr(e, error)) for e in (self.draws.before.error, self.fit.error)]
            with np.errstate(all="ignore"):
                gap = np.abs(theirs - ours) / scale / np.hypot(*both)
            found.append(np.where(theirs == ours, 0.0, gap))
        return np.stack(found, axis=1)

    @property
    def agree(self) -> bool:
        """Whether no difference is larger than chance allows, one time in a thousand over all parameters."""
        limit = float(scipy.special.ndtri(1.0 - 0.0005 / max(self.apart.size, 1)))
        return bool(np.all(self.apart <= limit))

    @property
    def _moments(self) -> tuple[np.ndarray, np.ndarray]:
        found = self.fit.summary().values
        return found[:, 0], found[:, 1]

    def __rich__(self) -> Table:
        theirs, (mean, sd), far = self.draws.before, self._moments, self.apart
        words = "agree" if self.agree else "DISAGREE"
        table = Table(
            caption=f"fit: {self.fit.n_gradients:,} gradients; {len(self.draws.draws):,} draws beside it: they {words}"
        )
        for column in ("", "mean", "± error", "of the draws", "± error", "sd", "of the draws", "largest gap in errors"):
            table.add_column(column, justify="left" if column == "" else "right")
        assert self.fit.error is not None
        for i, name in enumerate(self.names):
            table.add_row(
                escape(name), f"{mean[i]:.4g}", f"{self.fit.error.mean[i] * sd[i]:.1g}", f"{theirs.mean[i]:.4g}",
                f"{theirs.error.mean[i] * theirs.sd[i]:.1g}", f"{sd[i]:.4g}", f"{theirs.sd[i]:.4g}",
                f"{far[i].max():.1f}",
            )  # fmt: skip
        return table

    def report(self, path: str | Path, *, title: str = "Posterior", call: str = "") -> None:
        """The fit's report page with the draws' moments in its table."""
        page, theirs = of_fit(self.fit, title, call), self.draws.before
        columns = (
            Column("mean of the draws", theirs.mean, theirs.error.mean * theirs.sd),
            Column("sd of the draws", theirs.sd, theirs.error.sd * theirs.sd),
            Column("largest gap in errors", self.apart.max(axis=1)),
        )
        words = (
            f"{len(self.draws.draws):,} draws of another sampler stand beside the fit: they "
            + ("agree." if self.agree else "DISAGREE by more than their standard errors allow.")
            + " Their largest standard error of a mean or sd is "
            + f"{theirs.error.largest:.2g}; with Stein weights it would be {self.draws.after.error.largest:.2g}."
        )
        warnings = page.warnings if self.agree else [words, *page.warnings]
        added = page._replace(
            good=page.good and self.agree,
            warnings=warnings,
            columns=[*page.columns, *columns],
            sections=[("Beside another sampler", paragraphs(words)), *page.sections],
        )
        write_report(added, path)


@overload
def compare(fits: Mapping[str, Fit]) -> Comparison: ...
@overload
def compare(fits: Fit, draws: Any) -> Beside: ...
def compare(fits: Any, draws: Any = None) -> Any:
    """Several models, or one posterior by two samplers.

    `compare({"a": fit_a, "b": fit_b})`: fits of several models to the same data: Bayes factors Z_a / Z_b from their
    evidences; and PSIS-LOO by ArviZ, where every fit has the log likelihood of its observations.

    `compare(fit, draws)`: a fit beside the draws of another sampler in any form that `sharpen` takes; `report(path)` of
    the result adds them to the fit's page.
    """
    if isinstance(fits, Fit) and draws is not None:
        if fits.error is None:
            raise ValueError("compare: only an automatic fit, fit(target) without a kernel, has errors to compare by.")
        return Beside(fits, sharpen(draws, fits.target))
    if not isinstance(fits, Mapping) or not fits or draws is not None:
        raise TypeError(
            'compare: give fits by name, compare({"a": fit_a, "b": fit_b}), or a fit and draws of another sampler, '
            f"compare(fit, draws); got {fits!r:.80}."
        )
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
        # From ArviZ 1 on there is no other criterion to choose.
        criterion: Any = {"ic": "loo"} if hasattr(arviz, "InferenceData") else {}
        return arviz.compare({str(name): fit.to_arviz(resample=True) for name, fit in fits.items()}, **criterion)
