"""Stein weights for the draws of any sampler: the same draws, worth more.

Draws x_i with scores s(x_i) get weights under which Stein equations of the target hold exactly. Estimates
sum_i w_i f(x_i) are consistent for every f, since the plain averages are, and their errors are often several times
smaller.
"""

import dataclasses
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float
from rich.markup import escape
from rich.table import Table

from steinmatch._checks import as_particles
from steinmatch._shown import Shown
from steinmatch._types import ArrayLike, float64
from steinmatch.adaptive.verdict import Error, Verdict, judge
from steinmatch.coordinates import AffineMap, PulledBack
from steinmatch.coordinates.plainly import placed, unplaced
from steinmatch.kernels import AbstractKernel
from steinmatch.kernels.forms import features_at
from steinmatch.measures.images import FAMILIES, Values, all_images, values_at
from steinmatch.measures.weights import Layout, nearest_weights
from steinmatch.records.foreign import ForeignDraws, read_foreign
from steinmatch.records.inferencedata import as_inference_data, groups_of
from steinmatch.records.pages.report import write_report
from steinmatch.records.reporting import of_sharpened
from steinmatch.targets import AbstractTarget, Evaluations, check_target, constrained_values

_BATCHES = 32  # of draws, for standard errors: many enough to be steady, long enough to be nearly independent
_CHAINS = 16  # with so many chains, each is a batch
_SHARES = (0.9, 0.75, 0.5, 0.25, 0.1)  # of the equations' right-hand side, where they cannot all be solved


class SteinWeights(np.ndarray):
    """Weights (n,) that sum to one: a NumPy array with `ess`, `residual` (largest equation left) and `family`."""

    ess: float
    residual: float
    family: str

    def __array_finalize__(self, other: Any) -> None:
        for name, default in (("ess", float("nan")), ("residual", float("nan")), ("family", "")):
            setattr(self, name, getattr(other, name, default))


def _weights(values: np.ndarray, ess: float, residual: float, family: str) -> SteinWeights:
    found = np.asarray(values, np.float64).view(SteinWeights)
    found.ess, found.residual, found.family = ess, residual, family
    return found


@float64
def stein_weights(
    target: AbstractTarget,
    draws: ArrayLike,
    features: AbstractKernel | int | None = None,
    scores: ArrayLike | None = None,
) -> SteinWeights:
    """Positive weights nearest to uniform under which Stein equations hold exactly at unconstrained draws (n, d).

    **Arguments:**

    - `features`: which equations. A feature kernel: those of its features, sum_i w_i (s phi_l + grad phi_l)(x_i) = 0. A
      degree 1, 2 or 3: constant, linear or cubic fields of the whitened point. None: chosen by cross-validation.
    - `scores`: s(x_i), where they are known.

    Where more equations are asked for than positive weights can solve, they are solved in part, as far as they can be:
    see `residual` of the result, and its `ess`, the effective sample size.
    """
    check_target(target, "stein_weights")
    x = as_particles(draws, "stein_weights", target.dim)
    n, d = x.shape
    s = _scores(target, x, scores, "stein_weights")
    if isinstance(features, AbstractKernel):
        held = features.bind(jax.random.key(0), jnp.asarray(x)).hold(jnp.asarray(x))
        phi = np.asarray(features_at(held, jnp.asarray(x)))
        slopes = np.asarray(jax.jit(jax.vmap(jax.jacfwd(held.phi)))(jnp.asarray(x)))
        psi = (phi[:, :, None] * s[:, None, :] + slopes).reshape(n, -1)
        return _solved(psi, type(features).__name__)
    pulled, z, pulled_scores = _in_frame(target, x, s, "stein_weights")
    if features is None:
        layout, order = _layout(n, 1)
        found = judge(z[order], pulled_scores[order], values_at(pulled, z[order], pulled_scores[order]), layout)
        weights = np.zeros(n)
        weights[order] = found.weights  # draws that fill no batch have none
        return _weights(weights, found.ess, found.residual, found.family)
    values = values_at(pulled, z, pulled_scores)
    if features not in (1, 2, 3):
        raise ValueError(
            f"stein_weights: features must be a kernel, a degree 1, 2 or 3, or None; got {features!r:.80}."
        )
    family = dataclasses.replace(FAMILIES[-1], linear=features > 1, cubic=features > 2, own=0)
    mean, sd = values.value.mean(axis=0), values.value.std(axis=0)
    k = values.value.shape[1]
    psi = all_images(family, z, pulled_scores, values, mean, np.where(sd > 0.0, sd, 1.0))
    columns = family.columns(d, k)[: psi.shape[1]]
    return _solved(psi[:, columns], f"degree {features}")


def _solved(psi: Float[np.ndarray, "n m"], name: str) -> SteinWeights:
    scale = np.sqrt(np.mean(psi**2, axis=0))
    psi = psi / np.where(scale > 0.0, scale, 1.0)
    found = nearest_weights(psi)
    for share in _SHARES:
        if found is not None:
            break
        found = nearest_weights(psi - (1.0 - share) * psi.mean(axis=0))
    n = len(psi)
    if found is None:
        return _weights(np.full(n, 1.0 / n), float(n), float(np.abs(psi.mean(axis=0)).max()), "uniform weights")
    return _weights(found.weights, found.ess, float(np.abs(found.weights @ psi).max()), name)


@dataclasses.dataclass(frozen=True)
class Estimates:
    """Means and sds of the constrained values, with standard errors: of means in sds, of sds relative."""

    mean: Float[np.ndarray, " k"]
    sd: Float[np.ndarray, " k"]
    error: Error


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Sharpened(Shown):
    """Draws with Stein weights, and what they say before and after. Prints as a table."""

    target: AbstractTarget
    draws: Float[np.ndarray, "n d"]  # unconstrained
    n_chains: int
    names: tuple[str, ...]
    weights: Float[np.ndarray, " n"]
    ess: float  # of the weights
    family: str  # the equations that they solve
    before: Estimates
    after: Estimates
    agree: bool  # plain and weighted draws, within their errors
    n_gradients: int

    def to_arviz(self) -> Any:
        """An ArviZ InferenceData of the draws, chains as they were, with the weights in sample_stats."""
        return as_inference_data(self.groups())

    def groups(self) -> dict[str, Any]:
        """The datasets of `to_arviz`."""
        each = Layout(len(self.draws) // self.n_chains, self.n_chains, 1)
        order = np.swapaxes(np.arange(len(self.draws)).reshape(self.n_chains, -1), 0, 1).ravel()
        return groups_of(self.target, self.draws[order], np.asarray(self.weights)[order], each)

    def report(self, path: str | Path, *, title: str = "Sharpened draws", call: str = "") -> None:
        """One HTML page that needs nothing beside it: means and sds before and after."""
        write_report(of_sharpened(self, title, call), path)

    def as_dict(self) -> dict:
        """Plain numbers."""
        return {
            "n_draws": len(self.draws),
            "ess": self.ess,
            "equations": self.family,
            "agree": self.agree,
            "n_gradients": self.n_gradients,
            "parameters": {
                name: {
                    f"{when}_{what}": float(values[i])
                    for when, found in (("before", self.before), ("after", self.after))
                    for what, values in (
                        ("mean", found.mean),
                        ("sd", found.sd),
                        ("mean_error", found.error.mean * found.sd),
                        ("sd_error", found.error.sd * found.sd),
                    )
                }
                for i, name in enumerate(self.names)
            },
        }

    def __rich__(self) -> Table:
        caption = (
            f"{len(self.draws):,} draws; weights that solve {self.family}, worth {self.ess:,.0f}. "
            f"Largest standard error {self.before.error.largest:.2g} before, {self.after.error.largest:.2g} after."
        )
        if not self.agree:
            caption += " Plain and weighted draws DISAGREE: the draws are not from this target, or it has an edge."
        table = Table(caption=escape(caption), caption_justify="left")
        for column in ("", "mean", "± error", "sharpened", "± error", "sd", "sharpened sd", "± error"):
            table.add_column(column, justify="left" if not column else "right")
        for i, name in enumerate(self.names):
            b, a = self.before, self.after
            table.add_row(
                escape(name), f"{b.mean[i]:.4g}", f"{b.error.mean[i] * b.sd[i]:.1g}", f"{a.mean[i]:.4g}",
                f"{a.error.mean[i] * a.sd[i]:.1g}", f"{b.sd[i]:.4g}", f"{a.sd[i]:.4g}",
                f"{a.error.sd[i] * a.sd[i]:.1g}",
            )  # fmt: skip
        return table


@float64
def sharpen(draws: Any, target: Any = None, *, scores: ArrayLike | None = None) -> Sharpened:
    """Stein weights for the draws of any sampler, with estimates and standard errors before and after.

    **Arguments:**

    - `draws`: an array of unconstrained draws, (n, d) or (chains, n, d); a dict or an ArviZ InferenceData of
      constrained values by name, with or without chains (PyMC, nutpie); a NumPyro `MCMC` that has run; or the path of a
      CSV file of CmdStan, or those of several chains.
    - `target`: the posterior that they were drawn from: a target, or a PyMC model; a NumPyro `MCMC` knows its own.
    - `scores`: of the unconstrained draws, in their order, where they are known; else one gradient a draw is spent.
    """
    target = _target_of(draws, target)
    found: ForeignDraws = read_foreign(draws, target, "sharpen")
    x, chains = found.x, found.n_chains
    n, d = x.shape
    if n <= max(2 * d, 16):
        raise ValueError(f"sharpen: {n} draws are too few for {d} dimensions; give more than {max(2 * d, 16)}.")
    s = _scores(target, x, scores, "sharpen")
    layout, order = _layout(n, chains)
    pulled, z, pulled_scores = _in_frame(target, x, s, "sharpen")
    values = values_at(pulled, z[order], pulled_scores[order])
    parts = (z[order], pulled_scores[order], values, layout)
    before, after = judge(*parts, families=[]), judge(*parts)
    weights = np.zeros(n)
    weights[order] = after.weights  # draws that fill no batch have none
    names, _ = constrained_values(target, x[:1])
    return Sharpened(
        target=target,
        draws=x,
        n_chains=chains if n % chains == 0 else 1,
        names=names,
        weights=_weights(weights, after.ess, after.residual, after.family),
        ess=after.ess,
        family=after.family,
        before=_estimates(values, before),
        after=_estimates(values, after),
        agree=after.agree,
        n_gradients=0 if scores is not None else n + -n % 64,
    )


def _target_of(draws: Any, target: Any) -> AbstractTarget:
    """The target as it is, of a PyMC model, or of the model that a NumPyro MCMC has run."""
    if target is None:
        model = getattr(getattr(draws, "sampler", None), "model", None)
        if model is None:
            raise TypeError("sharpen: give the target that the draws are from, sharpen(draws, target).")
        from steinmatch.frontends import from_numpyro

        return from_numpyro(model, *getattr(draws, "_args", ()), **getattr(draws, "_kwargs", {}))
    if type(target).__module__.startswith("pymc"):
        from steinmatch.frontends import from_pymc

        return from_pymc(target)
    check_target(target, "sharpen")
    return target


def _estimates(values: Values, verdict: Verdict) -> Estimates:
    mean = verdict.weights @ values.value
    return Estimates(mean, np.sqrt(verdict.weights @ (values.value - mean) ** 2), verdict.error)


def _layout(n: int, chains: int) -> tuple[Layout, np.ndarray]:
    """Batches of neighbouring draws as independent groups, and the draws' order (place in batch, batch)."""
    each = n // chains
    batches = 1 if chains >= _CHAINS else max(1, min(-(-_BATCHES // chains), each // 4))
    length = each // batches
    starts = (np.arange(chains)[:, None] * each + np.arange(batches)[None, :] * length).ravel()
    order = (np.arange(length)[:, None] + starts[None, :]).ravel()
    return Layout(length, len(starts), 1), order


def _scores(target: AbstractTarget, x: np.ndarray, given: ArrayLike | None, place: str) -> Float[np.ndarray, "n d"]:
    if given is None:
        s = Evaluations(target)(x)[1]
    else:
        s = np.asarray(given, np.float64)
        if s.shape != x.shape:
            raise ValueError(f"{place}: scores must have the shape of the draws, {x.shape}; got {s.shape}.")
    bad = ~np.isfinite(s).all(axis=1)
    if bad.any():
        i = int(np.argmax(bad))
        raise ValueError(
            f"{place}: the score is not finite at {int(bad.sum())} of {len(x)} draws, first at draw {i}. Are these "
            "unconstrained draws of this target?"
        )
    return s


def _in_frame(
    target: AbstractTarget, x: np.ndarray, s: np.ndarray, place: str
) -> tuple[PulledBack, np.ndarray, np.ndarray]:
    """The target seen through the draws' mean and covariance, the draws and their scores."""
    mean, spread = x.mean(axis=0), x.std(axis=0)
    if (spread == 0.0).any():
        raise ValueError(f"{place}: coordinate {int(np.argmin(spread))} is the same in all draws.")
    covariance = np.cov(x.T, ddof=0).reshape(x.shape[1], -1)
    if len(x) <= 2 * x.shape[1]:
        covariance = np.diag(np.diagonal(covariance))
    root = np.linalg.cholesky(covariance + 1e-12 * np.diag(np.diagonal(covariance)))
    frame = AffineMap(jnp.asarray(mean), jnp.asarray(root))
    z = unplaced(frame, x)
    return PulledBack(target, frame), z, placed(frame, z).pull(s)
