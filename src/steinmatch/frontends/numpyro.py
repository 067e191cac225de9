"""NumPyro models, through their own potential on the unconstrained space."""

import math
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import numpy as np
from numpyro.distributions import Unit
from numpyro.handlers import uncondition
from numpyro.infer import Predictive
from numpyro.infer import log_likelihood as log_likelihood_of
from numpyro.infer.util import constrain_fn, initialize_model, potential_energy, unconstrain_fn

from steinmatch._types import Vector, float64
from steinmatch.targets import ModelInfo, Target
from steinmatch.targets.closures import with_own_arrays


class _Unobserved(uncondition):
    """Observed sites are drawn anew, as many values as were observed, also where the model has no plate for them."""

    def process_message(self, msg: Any) -> None:
        if msg["type"] == "sample" and msg["is_observed"] and not isinstance(msg["fn"], Unit):
            fn = msg["fn"]
            observed = np.shape(msg["value"])
            batch = np.broadcast_shapes(observed[: len(observed) - fn.event_dim], fn.batch_shape)
            msg["fn"] = fn.expand(batch)
        super().process_message(msg)


def _as_leaf(value: Any) -> Any:
    """Arrays of floats in double precision; what is no array stays as it is, and is part of the compiled code."""
    if isinstance(value, np.ndarray | jax.Array):
        array = np.array(value)  # a copy: see targets.closures
        return array.astype(np.float64) if np.issubdtype(array.dtype, np.floating) else array
    return value


class _Sites(eqx.Module):
    """x in R^d as the dict of a model's unconstrained sites."""

    shapes: tuple[tuple[str, tuple[int, ...]], ...] = eqx.field(static=True)

    def __call__(self, x: Vector) -> dict[str, jax.Array]:
        found, start = {}, 0
        for name, shape in self.shapes:
            size = math.prod(shape)
            found[name] = x[start : start + size].reshape(shape)
            start += size
        return found


class _Density(eqx.Module):
    """The log density of a model: its data are leaves, so that other data of the same shape compile nothing."""

    model: Callable = eqx.field(static=True)
    args: tuple
    kwargs: dict
    sites: _Sites

    def __call__(self, x: Vector) -> jax.Array:
        return -potential_energy(self.model, self.args, self.kwargs, self.sites(x))  # type: ignore[return-value]


class _Constrained(eqx.Module):
    """All latent and deterministic sites of a model."""

    model: Callable = eqx.field(static=True)
    args: tuple
    kwargs: dict
    sites: _Sites

    def __call__(self, x: Vector) -> dict[str, jax.Array]:
        return dict(constrain_fn(self.model, self.args, self.kwargs, self.sites(x), return_deterministic=True))


@float64
def from_numpyro(model: Callable, *args: Any, **kwargs: Any) -> Target:
    """The posterior of a NumPyro model, called as `model(*args, **kwargs)`.

    `constrain` gives all its latent and deterministic sites; plates become dims. Models whose structure or supports
    depend on the values of other sites are not supported.
    """
    if not callable(model):
        raise TypeError(f"from_numpyro: model must be a NumPyro model, a function; got {model!r:.80}.")
    model = with_own_arrays(model)
    args, kwargs = jax.tree.map(_as_leaf, (args, kwargs))
    try:
        info = initialize_model(
            jax.random.key(0), model, model_args=args, model_kwargs=kwargs, dynamic_args=False, validate_grad=False
        )
    except Exception as error:
        raise ValueError(
            f"from_numpyro: the model failed when it was run: {type(error).__name__}: {error}. "
            "Check its data: from_numpyro(model, *args, **kwargs) calls model(*args, **kwargs)."
        ) from error
    start = {name: np.asarray(value, np.float64) for name, value in info.param_info.z.items()}
    if not start:
        raise ValueError("from_numpyro: the model has no latent sites.")
    sites = _Sites(tuple((name, tuple(value.shape)) for name, value in sorted(start.items())))
    dim = sum(value.size for value in start.values())

    def predict(values: dict[str, np.ndarray], seed: int) -> dict:
        latent = {name: value for name, value in values.items() if name in start}
        drawn = Predictive(_Unobserved(model), latent)(jax.random.key(seed), *args, **kwargs)
        return {name: value for name, value in drawn.items() if name not in factors}

    def unconstrain(values: dict[str, np.ndarray]) -> np.ndarray:
        def one(params: dict) -> jax.Array:
            free = unconstrain_fn(model, args, kwargs, params)
            return jax.numpy.concatenate([jax.numpy.ravel(free[name]) for name, _ in sites.shapes])

        with jax.enable_x64(True):
            return np.asarray(jax.vmap(one)({name: jax.numpy.asarray(values[name]) for name in start}))

    def log_likelihood(values: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        with jax.enable_x64(True):
            latent = {name: jax.numpy.asarray(value) for name, value in values.items() if name in start}
            found = log_likelihood_of(model, latent, *args, **kwargs)
        return {name: np.asarray(value) for name, value in found.items() if name not in factors}

    dims, coords, factors = {}, {}, set()
    for name, site in info.model_trace.items():
        if site["type"] == "sample" and isinstance(site["fn"], Unit):  # what numpyro.factor makes
            factors.add(name)
        elif site["type"] == "sample" and not site["is_observed"]:
            frames = sorted(site.get("cond_indep_stack", []), key=lambda frame: frame.dim)
            shape = np.shape(site["value"])
            if frames and len(shape) >= len(frames):
                extra = [f"{name}_dim_{i}" for i in range(len(shape) - len(frames))]
                dims[name] = [*(frame.name for frame in frames), *extra]
                coords |= {frame.name: list(range(frame.size)) for frame in frames}
    info = ModelInfo(dims, coords, predict, unconstrain, log_likelihood)
    return Target(
        _Density(model, args, kwargs, sites),
        dim=dim,
        constrain=_Constrained(model, args, kwargs, sites),
        info=info,
    )
