"""Weighted draws as ArviZ has them: groups of xarray datasets, an InferenceData or, from ArviZ 1 on, a DataTree.

Chains are chains. The weights stand in sample_stats; functions that know of none take resampled draws.
"""

import warnings
from collections.abc import Mapping
from typing import Any

import numpy as np
from jaxtyping import Float, Shaped

from steinmatch._types import float64
from steinmatch.measures.weights import Layout, systematic
from steinmatch.targets import AbstractTarget, Evaluations, ModelInfo, SavedTarget, variables

_PRIOR_DRAWS = 500
_LEAST_SHOWN = 100  # draws of a chain


def in_chains(values: Shaped[np.ndarray, "n ..."], layout: Layout | None) -> Shaped[np.ndarray, "chain draw ..."]:
    """Draws in the order of a layout, or one chain without one, with the axes chain and draw. Short chains are joined
    end to end, as R-hat of a dozen draws says nothing.
    """
    if layout is None:
        return values[None]
    chains = np.swapaxes(values.reshape(layout.transitions, -1, *values.shape[1:]), 0, 1)
    return chains.reshape(_shown_chains(layout), -1, *values.shape[1:])


def from_chains(values: Shaped[np.ndarray, "chain draw ..."], layout: Layout | None) -> Shaped[np.ndarray, "n ..."]:
    """The inverse of `in_chains`."""
    if layout is None:
        return values[0]
    chains = values.reshape(-1, layout.transitions, *values.shape[2:])
    return np.swapaxes(chains, 0, 1).reshape(-1, *values.shape[2:])


def _shown_chains(layout: Layout) -> int:
    """As many chains as can have so many draws each, but four if there are as many."""
    chains = layout.n // layout.transitions
    whole = [c for c in range(chains, 0, -1) if chains % c == 0 and (c <= 4 or layout.n // c >= _LEAST_SHOWN)]
    return whole[0]


def resampled_draws(weights: Float[np.ndarray, " n"], layout: Layout | None, seed: int) -> np.ndarray:
    """Indices of as many draws of equal weight; chain after chain, so that those of a chain stay together."""
    order = in_chains(np.arange(len(weights)), layout).ravel()
    chosen = order[systematic(weights[order], len(weights), seed)]
    return chosen[np.argsort(order)]


def groups_of(
    target: AbstractTarget,
    particles: Float[np.ndarray, "n d"],
    weights: Float[np.ndarray, " n"],
    layout: Layout | None = None,
) -> dict[str, Any]:
    """posterior, sample_stats and the unconstrained draws, as xarray datasets."""
    import xarray

    info: ModelInfo = getattr(target, "info", None) or ModelInfo()
    posterior = {name: in_chains(value, layout) for name, value in variables(target, particles).items()}
    stats = {"weight": in_chains(weights, layout)}
    if not isinstance(target, SavedTarget) and target.log_density is not None:
        stats["lp"] = in_chains(float64(Evaluations(target))(particles)[0], layout)
    return {
        "posterior": dataset(posterior, info, ("chain", "draw")),
        "sample_stats": xarray.Dataset({name: (("chain", "draw"), value) for name, value in stats.items()}),
        "unconstrained": xarray.Dataset({"x": (("chain", "draw", "dimension"), in_chains(particles, layout))}),
    }


def dataset(values: Mapping[str, np.ndarray], info: ModelInfo, leading: tuple[str, ...]) -> Any:
    """Variables with the model's dims and coords, after the leading ones."""
    import xarray

    data, used = {}, set()
    for name, value in values.items():
        own = value.ndim - len(leading)
        dims = [f"{dim}_dim" if dim in values else dim for dim in info.dims.get(name, ())]  # no dim as a variable
        if len(dims) != own:
            dims = [f"{name}_dim_{i}" for i in range(own)]
        used |= set(dims)
        data[name] = ((*leading, *dims), value)
    coords = {name: list(labels) for name, labels in info.coords.items() if name in used}
    sizes = {dim: size for dims, value in data.values() for dim, size in zip(dims, value.shape, strict=True)}
    coords = {name: labels for name, labels in coords.items() if len(labels) == sizes[name]}
    every = {dim: np.arange(size) for dim, size in sizes.items() if dim not in coords}
    return xarray.Dataset(data, coords={**every, **coords})


def model_groups(
    target: AbstractTarget,
    particles: Float[np.ndarray, "n d"],
    layout: Layout | None,
    predictive: bool,
    prior: bool,
    seed: int,
) -> dict[str, Any]:
    """What the model adds: data, log likelihoods and, where asked for, predictions and draws of the prior."""
    info: ModelInfo = getattr(target, "info", None) or ModelInfo()
    found = {}
    for name, given in (("observed_data", info.observed), ("constant_data", info.constant)):
        if given:
            found[name] = dataset({key: np.asarray(value) for key, value in given.items()}, info, ())
    values = variables(target, particles) if info.log_likelihood is not None or predictive else {}

    def draws(arrays: Mapping[str, np.ndarray]) -> Any:
        chains = {key: in_chains(np.asarray(value), layout) for key, value in arrays.items()}
        return dataset(chains, info, ("chain", "draw"))

    if info.log_likelihood is not None:
        found["log_likelihood"] = draws(info.log_likelihood(particles, values))
    if predictive:
        if info.predict is None:
            raise ValueError("to_arviz: posterior_predictive: this target has no posterior predictive of its own.")
        predicted = info.predict(particles, values, seed, {})
        found["posterior_predictive"] = draws({k: v for k, v in predicted.items() if k not in values})
    if prior:
        if info.prior is None:
            raise ValueError("to_arviz: prior: this target has no prior of its own to draw from.")
        drawn = {key: np.asarray(value)[None] for key, value in info.prior(_PRIOR_DRAWS, seed).items()}
        seen = set(info.observed)
        found["prior"] = dataset({k: v for k, v in drawn.items() if k not in seen}, info, ("chain", "draw"))
        if any(k in seen for k in drawn):
            predicted = {k: v for k, v in drawn.items() if k in seen}
            found["prior_predictive"] = dataset(predicted, info, ("chain", "draw"))
    return found


def as_inference_data(groups: dict[str, Any]) -> Any:
    """ArviZ's own kind of record."""
    with warnings.catch_warnings():  # ArviZ announces its next version
        warnings.simplefilter("ignore")
        import arviz

        if hasattr(arviz, "InferenceData"):
            return arviz.InferenceData(**groups, warn_on_custom_groups=False)
        import xarray

        return xarray.DataTree.from_dict(groups)
