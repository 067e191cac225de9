"""Quantiles, intervals and probabilities of weighted draws, with standard errors.

The draws of chains are not independent, but groups of chains are: the error of a probability comes from the spread of
the groups' own averages, and that of a quantile from the quantiles at the levels p - e and p + e, e being the error of
the probability p below it. Stein weights make means and sds exact, which are smooth; indicators gain little from them.
"""

import dataclasses
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float

from steinmatch._checks import known_name
from steinmatch.measures.weights import Layout, spread
from steinmatch.records.summary import weighted_quantiles
from steinmatch.targets import AbstractTarget, in_form

_REPLICATES = 64  # of the bootstrap over groups of chains
_KINDS = ("equal-tailed", "hdi")


class Draws(NamedTuple):
    """Weighted values of all parameters, side by side."""

    values: Float[np.ndarray, "n k"]
    weights: Float[np.ndarray, " n"]
    layout: Layout | None  # None: every draw is taken for itself
    shares: float = 0.0  # error of the shares of modes
    random: bool = True  # draws of chains; the particles of a fixed point have no standard errors

    @property
    def ess(self) -> float:
        return float(1.0 / np.sum(self.weights**2))


class Probability(float):
    """A probability; `error` is its standard error, None for the particles of a fixed point."""

    error: float | None

    def __new__(cls, value: float, error: float | None) -> "Probability":
        made = super().__new__(cls, value)
        made.error = error
        return made

    def __str__(self) -> str:
        return f"{float(self):.4g}" + ("" if self.error is None else f" ± {self.error:.1g}")


@dataclasses.dataclass(frozen=True)
class Intervals:
    """Intervals of all parameters. `low, high = fit.interval()`, or `fit.interval()["tau"]`, which is [low, high]."""

    level: float
    kind: str
    low: Any  # by name, or a vector
    high: Any
    error: tuple[Any, Any] | None  # standard errors of both ends; None for the particles of a fixed point

    def __iter__(self) -> Iterator[Any]:
        return iter((self.low, self.high))

    def __getitem__(self, name: str) -> np.ndarray:
        return np.stack([self.low[name], self.high[name]], axis=-1)


def probability(draws: Draws, truths: Float[np.ndarray, " n"]) -> Probability:
    """The weight of the draws where `truths` is 1."""
    value = float(np.clip(draws.weights @ truths, 0.0, 1.0))
    return Probability(value, float(_indicator_errors(draws, truths[:, None])[0]) if draws.random else None)


def quantile(target: AbstractTarget, draws: Draws, levels: Any) -> Any:
    """Quantiles of every parameter at one level, or at several on the leading axis."""
    asked = np.asarray(levels, np.float64)
    if asked.ndim > 1 or asked.size == 0 or not np.all((asked >= 0.0) & (asked <= 1.0)):
        raise ValueError(f"quantile: levels must be one number between 0 and 1, or several; got {levels!r:.80}.")
    found = _quantiles(draws, np.atleast_1d(asked))
    return in_form(target, found if asked.ndim else found[0])


def interval(target: AbstractTarget, draws: Draws, level: float, kind: str) -> Intervals:
    """Equal-tailed or highest-density intervals of every parameter."""
    known_name(kind, _KINDS, "kind", "interval")
    if not isinstance(level, int | float | np.number) or not 0.0 < level < 1.0:
        raise ValueError(f"interval: level must lie between 0 and 1, got {level!r:.80}.")
    if kind == "equal-tailed":
        tails = np.array([0.5 - 0.5 * level, 0.5 + 0.5 * level])
        ends = _quantiles(draws, tails)
        errors = _quantile_errors(draws, tails, ends) if draws.random else None
    else:
        order = np.argsort(draws.values, axis=0)
        ends = _densest(draws.values, order, draws.weights, float(level))
        errors = None
        if draws.random:
            copies = [_densest(draws.values, order, w, float(level)) for w in _replicates(draws)]
            errors = np.std(copies, axis=0)
    low, high = (in_form(target, end) for end in ends)
    error = None if errors is None else (in_form(target, errors[0]), in_form(target, errors[1]))
    return Intervals(float(level), kind, low, high, error)


def _quantiles(draws: Draws, levels: Float[np.ndarray, " q"]) -> Float[np.ndarray, "q k"]:
    return np.stack([weighted_quantiles(column, draws.weights, tuple(levels)) for column in draws.values.T], axis=1)


def _indicator_errors(draws: Draws, truths: Float[np.ndarray, "n f"]) -> Float[np.ndarray, " f"]:
    """Standard errors of weighted averages of zeros and ones; an event that no draw has seen may have one in ess."""
    value = draws.weights @ truths
    if draws.layout is None:
        error = np.sqrt(np.clip(value * (1.0 - value), 0.0, None) / draws.ess)
    else:
        error = spread(len(truths) * draws.weights[:, None] * (truths - value), draws.layout).error
    return np.sqrt(error**2 + draws.ess**-2.0 + draws.shares**2)


def _quantile_errors(
    draws: Draws, levels: Float[np.ndarray, " q"], found: Float[np.ndarray, "q k"]
) -> Float[np.ndarray, "q k"]:
    errors = np.empty_like(found)
    for i, level in enumerate(levels):
        off = _indicator_errors(draws, (draws.values <= found[i]).astype(float))
        for j, column in enumerate(draws.values.T):
            reach = tuple(np.clip([level - off[j], level + off[j]], 0.0, 1.0))
            errors[i, j] = 0.5 * np.ptp(weighted_quantiles(column, draws.weights, reach))
    return errors


def _replicates(draws: Draws) -> Iterator[Float[np.ndarray, " n"]]:
    """Weights of the bootstrap: groups of chains, or single draws, drawn with replacement."""
    rng, n = np.random.default_rng(0), len(draws.weights)
    for _ in range(_REPLICATES):
        if draws.layout is None:
            counts = rng.multinomial(n, np.full(n, 1.0 / n)).astype(float)
        else:
            t, groups, siblings = draws.layout
            counts = np.tile(np.repeat(rng.multinomial(groups, np.full(groups, 1.0 / groups)), siblings), t)
        weights = draws.weights * counts
        yield weights / weights.sum()


def _densest(
    values: Float[np.ndarray, "n k"], order: np.ndarray, weights: Float[np.ndarray, " n"], level: float
) -> Float[np.ndarray, "2 k"]:
    """The shortest interval of each column that holds a share `level` of the weight."""
    ends = np.empty((2, values.shape[1]))
    for j, rank in enumerate(order.T):
        column, cumulative = values[rank, j], np.cumsum(weights[rank])
        before = np.concatenate([[0.0], cumulative[:-1]])
        last = np.searchsorted(cumulative, before + level * cumulative[-1] - 1e-12)
        inside = last < len(column)
        widths = np.where(inside, column[np.minimum(last, len(column) - 1)] - column, np.inf)
        first = int(np.argmin(widths))
        ends[:, j] = column[first], column[min(last[first], len(column) - 1)]
    return ends
