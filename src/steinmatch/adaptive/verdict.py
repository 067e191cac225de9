"""What draws of many chains are worth: weights, standard errors, and whether to trust them.

    error^2 = (standard error)^2 + (what is left of the start)^2 + (weights of all draws against those of others)^2

Standard errors come from independent groups of chains, with control variates fitted on other chains. Chains of a group
began at one point; the covariance of their means (nested R-hat) says how much a chain remembers of its start: a
function u whose conditional mean given the start is rho u is off by rho |E_start u - E u|, rho^2 being that covariance
over the variance of u at the start.
"""

from typing import Any, NamedTuple

import numpy as np
import scipy.special
from jaxtyping import Float

from steinmatch._linalg import namespace
from steinmatch._types import Numbers
from steinmatch.measures.images import DRAWS_AN_EQUATION, Family, Values, affordable, all_images, too_heavy
from steinmatch.measures.weights import CrossFit, Layout, SingleFit, Spread, nearest_weights, spread

FALSE_ALARM = 1e-3  # probability, over all parameters, that draws without fault are called into question
DOUBT = 0.2  # probability that further control variates without fault are done without, which costs draws alone
_MEMORY = 0.05  # share of a parameter's variance that chains may remember of their start
# Of the weights, relative to the number of draws: m equations among n independent draws take a variance of m / n of the
# weights, at most one in five; twice that for draws of chains. More says that few draws carry the equations.
LEAST_ESS = 1.0 / (1.0 + 2.0 / DRAWS_AN_EQUATION)
ROUNDING = 1e-6  # sds: no smaller error is claimed, for sums in floating point over draws far from the origin
_UNSEEN = 5.0  # largest values that are missing from an average: tails at the edge of a finite variance
# m equations fitted to n draws take a share m / n of them, which more draws would give back. Those with as many draws
# an equation, whose errors are still larger by this factor, have little to gain.
_HOPELESS, _MANY = 1.0 / (1.0 - 1.0 / DRAWS_AN_EQUATION), 4 * DRAWS_AN_EQUATION
BETTER = 0.95  # a larger family must lower the largest error by this factor


class Error(NamedTuple):
    """Stated errors, one entry a parameter: of the means in posterior sds, of the sds relative to them."""

    mean: Float[np.ndarray, " k"]
    sd: Float[np.ndarray, " k"]

    @property
    def largest(self) -> float:
        return float(max(np.max(self.mean, initial=0.0), np.max(self.sd, initial=0.0)))


class Verdict(NamedTuple):
    """Weights of the draws, the errors of the weighted means and sds, and what speaks against them."""

    weights: Float[np.ndarray, " n"]
    ess: float  # of the weights
    residual: float  # largest Stein equation left
    family: str
    error: Error
    memory: float  # largest share of variance that chains remember: nested R-hat squared, less one
    mixed: bool
    agree: bool  # plain and weighted draws
    estimate: tuple[Float[np.ndarray, " k"], Float[np.ndarray, " k"]]  # weighted means and sds
    hopeless: tuple[Family, ...] = ()  # families that more draws of these chains would not help either


class _Estimate(NamedTuple):
    family: Family | None
    control: Float[np.ndarray, "n f"]  # of the functions in the draws' own units
    unit: tuple[np.ndarray, np.ndarray]  # estimated means, in the draws' sds, and sds, relative to theirs
    error: Float[np.ndarray, " f"]


class _System(NamedTuple):
    """Stein images of the largest family, in units of their size, and the regressions on them."""

    psi: Float[np.ndarray, "n m"]
    scale: Float[np.ndarray, " m"]
    columns: dict[Family, np.ndarray]
    fits: CrossFit
    singly: SingleFit | None = None

    def control_at(self, family: Family, images: Float[np.ndarray, "g m"]) -> Float[np.ndarray, "g f"]:
        """The control variates of a family, from images elsewhere."""
        own = self.columns[family]
        images = images / self.scale
        if family.single:
            assert self.singly is not None
            return self.singly.at(np.split(images[:, own], family.own, axis=1))
        return images[:, own] @ self.fits.coefficients(own)


def judge(
    z: Float[np.ndarray, "n d"],
    scores: Float[np.ndarray, "n d"],
    values: Values,
    layout: Layout,
    start: tuple[Float[np.ndarray, "g d"], Float[np.ndarray, "g d"], Values] | None = None,
    families: list[Family] | None = None,
    hopeless: tuple[Family, ...] = (),
) -> Verdict:
    """Weights and errors of draws in the order of `layout`; `start` holds the points where the groups began.

    `families` limits the equations that are tried; all that the draws can bear by default, but for `hopeless` ones,
    which an earlier verdict has found to be of no use.
    """
    n, d = z.shape
    k = values.value.shape[1]
    mean, sd = values.value.mean(axis=0), positive(values.value.std(axis=0))
    functions = moment_functions(values.value, mean, sd)
    tried = affordable(n, d, k) if families is None else families
    tried = [family for family in tried if family not in hopeless]
    estimates, system = _estimates(tried, z, scores, values, functions, layout)
    best = estimates[0]
    for estimate in estimates[1:]:
        best = estimate if estimate.error.max() < BETTER * best.error.max() else best
    agree = agreeing(best.control, layout)
    candidates = _accepted(estimates, layout) if agree else estimates[:1]
    estimate, weights, ess, residual = _weighed(candidates, system)
    rest = in_units(functions - estimate.control, estimate.unit)
    seen = spread(rest, layout)
    # Of values each by its own fields, weights that serve all at once vary by more than these fits know of.
    wide = np.sqrt(len(z) / ess) if estimate.family is not None and estimate.family.single else 1.0
    parts = [wide * cautious(rest, layout), weights @ in_units(functions, estimate.unit) - seen.mean]
    if start is not None:
        begun = moment_functions(start[2].value, mean, sd)
        if estimate.family is not None:
            assert system is not None
            begun = begun - system.control_at(estimate.family, all_images(tried[-1], *start, mean, sd))
        parts.append(remembered(in_units(begun, estimate.unit), seen))
    error = np.sqrt(sum(part**2 for part in parts) + ROUNDING**2)
    memory, mixed = mixing(functions, layout)
    constant = values.value.std(axis=0) == 0.0
    return Verdict(
        weights=weights,
        ess=ess,
        residual=residual,
        family="uniform weights" if estimate.family is None else estimate.family.name,
        error=Error(np.where(constant, 0.0, error[:k]), np.where(constant, 0.0, error[k:])),
        memory=float(memory),
        mixed=bool(mixed),
        agree=bool(agree),
        estimate=moments(values.value, weights),
        hopeless=(*hopeless, *_hopeless(estimates, system)),
    )


def _hopeless(estimates: list[_Estimate], system: _System | None) -> list[Family]:
    """Families larger than the best one that more draws of these chains would not help. Smaller ones cost little, and
    what larger ones add is judged beside them.
    """
    if system is None:
        return []
    best = min(estimates, key=lambda estimate: estimate.error.max())
    least, size = best.error.max(), 0 if best.family is None else len(system.columns[best.family])
    worse = [e.family for e in estimates if e.family is not None and not e.error.max() <= _HOPELESS * least]
    return [family for family in worse if size < len(system.columns[family]) <= len(system.psi) / _MANY]


def confirmed(verdict: Verdict, before: Verdict | None, groups: int) -> Verdict:
    """The verdict with errors made larger where estimates have moved, since fewer of the same draws, by more than the
    errors allow: the difference of nested averages has the variance e_before^2 - e^2.
    """
    if before is None:
        return verdict
    (mean, sd), (old_mean, old_sd) = verdict.estimate, before.estimate
    unit = positive(sd)
    moved = np.concatenate([np.abs(mean - old_mean) / unit, np.abs(old_sd / unit - 1.0) * (sd > 0.0)])
    error, old = (np.concatenate(found.error) for found in (verdict, before))
    moved = np.where(error > 0.0, moved, 0.0)  # a constant moves by rounding alone
    allowed = np.sqrt(np.maximum(old**2 - error**2, 0.25 * old**2))
    ratio = float(np.max(moved / np.maximum(allowed, ROUNDING), initial=0.0)) / quantile(len(moved), groups)
    if not ratio > 1.0:
        return verdict
    return verdict._replace(error=Error(*(ratio * part for part in verdict.error)))


def moments(values: Float[Numbers, "n k"], weights: Float[Numbers, " n"]) -> tuple[Any, Any]:
    mean = weights @ values
    return mean, namespace(values).sqrt(weights @ (values - mean) ** 2)


def cautious(rest: Float[Numbers, "n f"], layout: Layout) -> Float[Numbers, " f"]:
    """Standard errors, with what they do not know of themselves.

    A variance estimated from n values of kurtosis k has a relative sd of sqrt((k - 1) / n); two of those are added. And
    where rare values are large, those beyond the largest are missing from mean and variance alike: with tails r^-a the
    sd of what they would add is sqrt(a / (a - 2)) times the largest value over n, 5 for a = 2.08.
    """
    xp, centred = namespace(rest), rest - rest.mean(axis=0)
    squares = centred * centred
    variance = positive(squares.mean(axis=0))
    kurtosis = xp.einsum("nf,nf->f", squares, squares) / len(rest) / variance**2
    factor = xp.sqrt(1.0 + 2.0 * xp.sqrt(xp.maximum(kurtosis - 1.0, 0.0) / len(rest)))
    unseen = _UNSEEN * xp.sqrt(squares.max(axis=0)) / len(rest)
    return xp.hypot(spread(rest, layout).error * factor, unseen)


def moment_functions(
    values: Float[Numbers, "n k"], mean: Float[Numbers, " k"], sd: Float[Numbers, " k"]
) -> Float[Numbers, "n f"]:
    """(v - m) / s, whose mean is the error of m in sds, and ((v - m)^2 / s^2 - 1) / 2, the relative error of s."""
    scaled = (values - mean) / sd
    return namespace(values).concatenate([scaled, 0.5 * (scaled**2 - 1.0)], axis=1)


def in_units(functions: Float[Numbers, "n f"], unit: tuple[Any, Any]) -> Float[Numbers, "n f"]:
    """Moment functions standardised by the estimated moments instead of the draws'; less constants."""
    shift, stretch = unit
    xp = namespace(functions)
    first, second = xp.split(functions, 2, axis=1)
    return xp.concatenate([first / stretch, (second - shift * first) / stretch**2], axis=1)


def _estimate(family: Family | None, control: np.ndarray, functions: np.ndarray, layout: Layout) -> _Estimate:
    return _Estimate(family, control, *estimated(functions - control, layout))


def estimated(rest: Float[Numbers, "n f"], layout: Layout) -> tuple[tuple[Any, Any], Float[Numbers, " f"]]:
    """The moments that moment functions less control variates imply, and the errors of those."""
    xp = namespace(rest)
    shift, second = xp.split(spread(rest, layout).mean, 2)
    unit = (shift, xp.sqrt(xp.maximum(1.0 + 2.0 * second - shift**2, 1e-4)))
    return unit, cautious(in_units(rest, unit), layout)


def _estimates(
    tried: list[Family],
    z: Float[np.ndarray, "n d"],
    scores: Float[np.ndarray, "n d"],
    values: Values,
    functions: Float[np.ndarray, "n f"],
    layout: Layout,
) -> tuple[list[_Estimate], _System | None]:
    """The estimates without and with the control variates of each family."""
    plain = _estimate(None, np.zeros_like(functions), functions, layout)
    if not tried:
        return [plain], None
    d, k = z.shape[1], values.value.shape[1]
    psi = all_images(tried[-1], z, scores, values, values.value.mean(axis=0), positive(values.value.std(axis=0)))
    scale = np.sqrt(np.mean(psi**2, axis=0))
    scale = np.where(np.isfinite(scale) & (scale > 0.0), scale, np.inf)
    psi = psi / scale
    heavy = too_heavy(psi, d, k)
    columns = {family: _columns(family, d, k, heavy) for family in tried}
    joint = [family for family in tried if not family.single]
    upto = max((int(columns[family].max(initial=-1)) for family in joint), default=-1) + 1
    fits, singly = CrossFit(functions, psi[:, :upto], layout.folds()), None
    found = [_estimate(family, fits.control(columns[family]), functions, layout) for family in joint]
    if len(joint) < len(tried):
        singly = SingleFit(functions, np.split(psi[:, columns[tried[-1]]], tried[-1].own, axis=1), layout.folds())
        found.append(_estimate(tried[-1], singly.control(), functions, layout))
    return [plain, *found], _System(psi, scale, columns, fits, singly)


def _columns(family: Family, d: int, k: int, heavy: np.ndarray) -> np.ndarray:
    found = np.nonzero(family.columns(d, k))[0]
    return found[~heavy[found]]


def positive(values: Any) -> Any:
    return namespace(values).where(values > 0.0, values, 1.0)


def _weighed(
    estimates: list[_Estimate], system: _System | None
) -> tuple[_Estimate, Float[np.ndarray, " n"], float, float]:
    """Positive weights for the last estimate's equations, or for those of the next smaller family that has them."""
    n = len(estimates[0].control)
    for estimate in estimates[:0:-1]:
        assert estimate.family is not None and system is not None
        found = nearest_weights(system.psi[:, system.columns[estimate.family]], LEAST_ESS)
        if found is not None and found.ess >= LEAST_ESS * n:
            return estimate, found.weights, found.ess, found.residual
    return estimates[0], np.full(n, 1.0 / n), float(n), 0.0


def quantile(count: int, groups: int, level: float = FALSE_ALARM) -> float:
    return float(-scipy.special.stdtrit(max(groups - 1, 1), 0.5 * level / count))


def _accepted(estimates: list[_Estimate], layout: Layout) -> list[_Estimate]:
    """The estimates by larger and larger families, each of them better than the last. Further control variates that
    grow faster than the moments asked for must have a mean of zero as far as can be seen: where rare values are missing
    they have not, and would take that over to the moments.
    """
    found = estimates[:1]
    for estimate in estimates[1:]:
        assert estimate.family is not None
        level = DOUBT if estimate.family.grows else FALSE_ALARM
        better = estimate.error.max() < BETTER * found[-1].error.max()
        if better and agreeing(estimate.control - found[-1].control, layout, level):
            found.append(estimate)
    return found


def agreeing(control: Float[Numbers, "n f"], layout: Layout, level: float = FALSE_ALARM) -> Any:
    """Whether control variates, whose mean is zero by Stein's identity, have a mean of zero over plain draws, but for
    what happens by chance with a probability of `level`.
    """
    seen = spread(control, layout)
    limit = quantile(len(seen.mean), layout.groups, level)
    return namespace(control).all(abs(seen.mean) <= limit * seen.error + 1e-12)


def mixing(functions: Float[Numbers, "n f"], layout: Layout) -> tuple[Any, Any]:
    """What chains remember, as a share of the variance, and whether it is within what may be by chance."""
    seen, xp = spread(functions, layout), namespace(functions)
    variance = positive(functions.var(axis=0))
    share = seen.between / variance
    noise = quantile(len(share), layout.groups) * seen.chains / variance / np.sqrt(layout.groups)
    return xp.maximum(share.max(), 0.0), xp.all(share <= _MEMORY + noise)


def remembered(start: Float[Numbers, "g f"], seen: Spread) -> Float[Numbers, " f"]:
    """rho |E_start u - E u|."""
    xp = namespace(start)
    rho = xp.sqrt(xp.clip(seen.between, 0.0, None) / positive(start.var(axis=0)))
    return xp.minimum(rho, 1.0) * abs(start.mean(axis=0) - seen.mean)
