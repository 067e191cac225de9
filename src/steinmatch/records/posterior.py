"""What weighted particles say of a target: means, intervals, expectations, predictions, on the model's own scale.

A target's own scale is what its `constrain` gives: a dict of arrays by name (models of NumPyro, PyMC and Stan, targets
from parameters), or one vector. Answers come in the same form, and functions that are asked about take one point of it.
"""

import dataclasses
import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from steinmatch._checks import whole_seed
from steinmatch._files import as_path, write_whole
from steinmatch._types import Vector, float64
from steinmatch.adaptive import Error, Mode
from steinmatch.measures.stein import values_at
from steinmatch.measures.weights import Layout
from steinmatch.records.cmdstan import as_cmdstan
from steinmatch.records.inferencedata import as_inference_data, groups_of, model_groups, resampled_draws
from steinmatch.records.moments import Draws, Intervals, Probability, interval, probability, quantile
from steinmatch.records.plots import PICTURES, plot_particles
from steinmatch.records.summary import Summary, selected, summarise
from steinmatch.targets import AbstractTarget, SavedTarget, constrained_tree, constrained_values, in_form, variables
from steinmatch.targets.base import MISSING


class Unconstrained(NamedTuple):
    """Moments of x in R^d, ddof 0."""

    mean: Float[np.ndarray, " d"]
    sd: Float[np.ndarray, " d"]
    cov: Float[np.ndarray, "d d"]


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class Posterior:
    """Weighted particles of a target, and what they answer."""

    target: AbstractTarget
    particles: Float[np.ndarray, "n d"]  # unconstrained
    weights: Float[np.ndarray, " n"]  # sum to one
    seed: int = 0
    error: Error | None = None  # of means and sds of the constrained parameters, in posterior sds (automatic fit)
    layout: Layout | None = None  # the chains that the particles are draws of
    modes: tuple[Mode, ...] = ()  # shares of the mass, and moments

    @functools.cached_property
    def _named_values(self) -> tuple[tuple[str, ...], Float[np.ndarray, "n k"]]:
        return constrained_values(self.target, self.particles)

    @property
    def names(self) -> tuple[str, ...]:
        """Of all parameters, one a number."""
        return self._named_values[0]

    @property
    def mean(self) -> Any:
        """E of every parameter."""
        return in_form(self.target, self.weights @ self._named_values[1])

    @property
    def sd(self) -> Any:
        """The standard deviation of every parameter, ddof 0."""
        values = self._named_values[1]
        return in_form(self.target, np.sqrt(self.weights @ (values - self.weights @ values) ** 2))

    @property
    def unconstrained(self) -> Unconstrained:
        """Mean, sd and covariance of the unconstrained x."""
        mean = self.weights @ self.particles
        centred = self.particles - mean
        cov = (self.weights[:, None] * centred).T @ centred
        return Unconstrained(mean, np.sqrt(np.diagonal(cov)), cov)

    @property
    def cov(self) -> Float[np.ndarray, "d d"]:
        """The covariance of the unconstrained x, ddof 0."""
        return self.unconstrained.cov

    @property
    def draws_layout(self) -> Layout | None:
        """The chains, if the particles are all of their draws."""
        return self.layout if self.layout is not None and self.layout.n == len(self.particles) else None

    @functools.cached_property
    def _draws(self) -> Draws:
        shares = max((mode.error for mode in self.modes), default=0.0)
        return Draws(self._named_values[1], self.weights, self.draws_layout, shares, self.error is not None)

    def quantile(self, q: Any) -> Any:
        """Quantiles of every parameter: at one level, or at several, on a leading axis."""
        return quantile(self.target, self._draws, q)

    def interval(self, level: float = 0.9, kind: str = "equal-tailed") -> Intervals:
        """Intervals of every parameter that hold a share `level` of the probability, with standard errors of their
        ends: "equal-tailed", or "hdi", the shortest.
        """
        return interval(self.target, self._draws, level, kind)

    @float64
    def expectation(self, f: Callable[[Any], Any]) -> np.ndarray:
        """E f, f being a function of one point's parameters with values of any shape: the particles' average."""
        return np.tensordot(self.weights, self._values_of(f, "expectation"), axes=1)

    @float64
    def probability(self, f: Callable[[Any], Any]) -> Probability:
        """The probability that f, a function of one point's parameters, is true; its `error` is a standard error.

        fit.probability(lambda p: p["nu"] > 10)
        """
        truths = self._values_of(f, "probability")
        if truths.ndim != 1 or not np.isin(truths, (0.0, 1.0)).all():
            raise ValueError("probability: f must return one truth value for a point, such as p['nu'] > 10.")
        return probability(self._draws, truths)

    def _values_of(self, f: Callable[[Any], Any], place: str) -> Float[np.ndarray, "n ..."]:
        return values_at(f, constrained_tree(self.target, self.particles), place)

    def on_points(self, f: Callable[[Any], Any]) -> Callable[[Vector], Any]:
        """f, a function of one point's parameters, as a function of the unconstrained x."""
        if isinstance(self.target, SavedTarget):
            raise ValueError(MISSING)
        constrain = self.target.constrain
        if constrain is None or not callable(f):
            return f
        return lambda x: f(constrain(x))

    def summary(self, var_names: str | list[str] | None = None, filter_vars: str | None = None) -> Summary:
        """Mean, sd, quantiles and errors of the parameters; of some, as ArviZ selects them."""
        names, values = self._named_values
        chosen = selected(names, var_names, filter_vars, "summary")
        error = None if self.error is None else Error(self.error.mean[chosen], self.error.sd[chosen])
        return summarise(tuple(names[i] for i in chosen), values[:, chosen], self.weights, self._verdict(), error)

    def plot(self, parameters: str | Path | list[str] | None = None, path: str | Path | list[str] | None = None) -> Any:
        """The particles in pairs of parameters, with their marginals; written to `path` where one is given. Scalars
        come first, and "b" stands for all of b: `plot()`, `plot("b")`, `plot("pairs.png")`, `plot("b", "pairs.png")`;
        a name that ends like a picture's file, .png, .pdf, .svg or .jpg, is the path.
        """
        if isinstance(parameters, Path) or (isinstance(parameters, str) and Path(parameters).suffix in PICTURES):
            parameters, path = path, parameters
        return plot_particles(*self._named_values, self.weights, parameters, path)

    def predict(
        self, fn: Callable[[Any], Any] | None = None, *, seed: int = 0, resample: bool = False, **data: Any
    ) -> Any:
        """The particles pushed through `fn`, a function of one point's parameters. Without one, through the model's own
        posterior predictive: of the data that it was made with or, where given, of new data, by name as the model has
        them (NumPyro's arguments, PyMC's `pm.Data`; Stan's generated quantities take those of the program).

        One prediction a particle, of the particle's weight: `fit.weights @ y` is their mean. With `resample` particles
        are drawn by weight first, so that the predictions have equal weights.
        """
        seed = whole_seed(seed, "predict")
        if resample:
            return self._resampled().predict(fn, seed=seed, **data)
        if fn is not None:
            if not callable(fn):
                raise TypeError(f"predict: fn must be a function of one point's constrained values, got {fn!r:.80}.")
            if data:
                raise ValueError(
                    f"predict: fn takes one point's values alone, and cannot be given {', '.join(data)}; write "
                    "predict(lambda p: fn(p, X)), or leave fn out for the model's own predictions."
                )
            return self._pushed(fn)
        info = getattr(self.target, "info", None)
        if info is None or info.predict is None:
            raise ValueError(
                "predict: this target has no posterior predictive of its own; give a function, predict(fn)."
            )
        return info.predict(self.particles, variables(self.target, self.particles), seed, data)

    def _resampled(self) -> "Posterior":
        """Particles of equal weight, drawn by weight."""
        chosen = resampled_draws(np.asarray(self.weights), self.draws_layout, self.seed)
        target, n = self.target, len(chosen)
        if isinstance(target, SavedTarget):
            target = dataclasses.replace(target, values=target.values[chosen])
        return Posterior(
            target=target, particles=self.particles[chosen], weights=np.full(n, 1.0 / n), seed=self.seed,
            layout=self.draws_layout,
        )  # fmt: skip

    def to_arviz(
        self, *, resample: bool = False, posterior_predictive: bool = False, prior: bool = False, seed: int = 0
    ) -> Any:
        """An ArviZ InferenceData (a DataTree from ArviZ 1 on): the draws in their chains, weights and log densities in
        sample_stats; data and log likelihoods where the model has them; predictions and prior on request. With
        `resample`, draws of equal weight, for functions that know of no weights.
        """
        seed, layout = whole_seed(seed, "to_arviz"), self.draws_layout
        shown = self._resampled() if resample else self
        target, particles, weights = shown.target, shown.particles, np.asarray(shown.weights)
        groups = groups_of(target, particles, weights, layout)
        groups["posterior"].attrs.update(inference_library="steinmatch", verdict=self._verdict())
        return as_inference_data(groups | model_groups(target, particles, layout, posterior_predictive, prior, seed))

    def write_csv(self, path: str | Path) -> None:
        """Draws of equal weight on the model's own scale, as CmdStan writes them."""
        path = as_path(path, "write_csv")
        found = self.to_arviz(resample=True)
        posterior = {str(k): np.asarray(v).reshape(-1, *v.shape[2:]) for k, v in found.posterior.items()}
        n = len(self.particles)
        logs = np.asarray(found.sample_stats["lp"]).ravel() if "lp" in found.sample_stats else np.full(n, np.nan)
        write_whole(path, as_cmdstan(posterior, logs, f"steinmatch: {self._verdict()}"))

    @float64
    def _pushed(self, fn: Callable[[Any], Any]) -> Any:
        try:
            tree = constrained_tree(self.target, self.particles)
            found = jax.tree.map(np.asarray, jax.jit(jax.vmap(fn))(jax.tree.map(jnp.asarray, tree)))
        except Exception as error:
            raise ValueError(
                f"predict: fn must return numbers and be written with jax.numpy; {type(error).__name__}: {error}"
            ) from error
        if not jax.tree.leaves(found):
            raise ValueError("predict: fn must return numbers; it returned nothing.")
        return found

    def _verdict(self) -> str:
        return f"{len(self.particles)} particles"
