"""Claims of the paper, each with the number that decides it: computed, never typed.

Where trials differ, a claim is decided by the end of an interval over them, not by a point: `over_trials`.
"""

import dataclasses
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
import scipy.stats

TENFOLD = 10.0  # a squared error that ten times as many independent draws would have: "far better than Monte Carlo"
TWOFOLD = 2.0  # ... and twice as many: less than this is no difference that matters
MACHINE = 1e-20  # a squared error of rounding size, in problems of condition 1000: (1e-13 * 1000)^2


class Interval(NamedTuple):
    """A mean over trials with its 95 % interval, by Student's t; the mean alone of one trial."""

    mean: float
    low: float
    high: float

    def exp(self) -> "Interval":
        """Of logs, as factors."""
        return Interval(*np.exp(self))

    def __str__(self) -> str:
        return f"{self.mean:.3g} ({self.low:.3g} to {self.high:.3g})"


def over_trials(values: Iterable[float]) -> Interval:
    """The mean of what was found in each trial, with its interval."""
    found = np.asarray(list(values), float)
    mean, half = float(found.mean()), 0.0
    if len(found) > 1:
        half = float(scipy.stats.t.ppf(0.975, len(found) - 1) * found.std(ddof=1) / np.sqrt(len(found)))
    return Interval(mean, mean - half, mean + half)


@dataclasses.dataclass(frozen=True)
class Claim:
    """One claim: what is measured, and whether it holds. `why` is shown where it does not."""

    number: int
    text: str
    measured: str
    holds: bool
    why: str = ""


def markdown(claims: Iterable[Claim], heading: str) -> str:
    """claims.md: a table, and below it what was found about claims that do not hold."""
    ordered = sorted(claims, key=lambda claim: (claim.number, claim.text))
    lines = [f"# {heading}", "", "| | claim | measured | |", "|---|---|---|---|"]
    for claim in ordered:
        state = "holds" if claim.holds else "**does not hold**"
        lines.append(f"| {claim.number} | {claim.text} | {claim.measured} | {state} |")
    failed = [claim for claim in ordered if not claim.holds]
    if failed:
        lines += ["", "## Where a claim does not hold", ""]
        lines += [f"- ({claim.number}) {claim.text}: {claim.why or 'not yet explained.'}" for claim in failed]
    return "\n".join(lines) + "\n"
