"""NumPyro models, through their own potential on the unconstrained space."""

import dataclasses
import functools
import inspect
import math
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import numpy as np
from jax.core import Tracer
from numpyro.distributions import Unit, biject_to
from numpyro.handlers import seed, trace, uncondition
from numpyro.infer import Predictive
from numpyro.infer import log_likelihood as log_likelihood_of
from numpyro.infer.util import constrain_fn, potential_energy, unconstrain_fn

from steinmatch._types import Vector, float64
from steinmatch.targets import ModelInfo, Target
from steinmatch.targets.closures import with_own_arrays
from steinmatch.targets.compiled import is_array


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
    """Arrays of floats in double precision; what is no array stays as it is, and is part of the compiled code, and so
    are single whole numbers and truths, of which models make sizes and branches.
    """
    if isinstance(value, np.ndarray | np.generic | jax.Array):
        array = np.array(value)  # a copy: see targets.closures
        if array.ndim == 0 and array.dtype.kind in "biu":
            return array.item()
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


class _Unsupported(ValueError):
    """A model that has no density on R^d."""


def _check_sites(sites: dict[str, Any]) -> None:
    """ValueError for models that have no density on R^d: discrete latents, subsampled plates."""
    discrete = [
        name
        for name, site in sites.items()
        if site["type"] == "sample" and not site["is_observed"] and site["fn"].support.is_discrete
    ]
    if discrete:
        raise _Unsupported(
            f"from_numpyro: the model has discrete latent sites ({', '.join(discrete)}), which have no gradient: "
            "marginalise them out, or give steinmatch.Target the log density that funsor's enumeration makes "
            "(numpyro.contrib.funsor.config_enumerate and log_density)."
        )
    thinned = [name for name, site in sites.items() if site["type"] == "plate" and _is_thinned(site)]
    if thinned:
        raise _Unsupported(
            f"from_numpyro: plate {thinned[0]!r} is subsampled (subsample_size), so that the density is random; "
            "subsampling is not supported: give all the data, without subsample_size."
        )


def _sites_of(model: Callable, args: tuple, kwargs: dict) -> dict[str, Any]:
    """The sites of a model, whose values are there where they are observed: latent ones have a shape alone.

    Run by JAX's tracer, which compiles nothing; NumPyro's `initialize_model` evaluates density and gradient operation
    by operation, to find a start that is not needed here: 2 to 6 s.
    """
    try:  # with NumPy's arrays, of whose values a model may make its structure
        return _traced_sites(model, args, kwargs)
    except Exception:  # which cannot be indexed by what is traced
        return _traced_sites(model, *_of_jax(args, kwargs))


def _of_jax(args: tuple, kwargs: dict) -> tuple[tuple, dict]:
    return jax.tree.map(lambda leaf: jax.numpy.asarray(leaf) if _numbers(leaf) else leaf, (args, kwargs))


def _traced_sites(model: Callable, args: tuple, kwargs: dict) -> dict[str, Any]:
    found: dict[str, Any] = {}

    def observed(key: jax.Array) -> dict[str, Any]:
        with seed(rng_seed=key):
            found.update(trace(model).get_trace(*args, **kwargs))
        return {name: site["value"] for name, site in found.items() if site.get("is_observed")}

    seen = jax.eval_shape(observed, jax.random.key(0))
    sites = dict(found)
    if any(isinstance(sites[name]["value"], Tracer) for name in seen):  # computed within the model
        for name, value in jax.jit(observed)(jax.random.key(0)).items():
            sites[name]["value"] = value
    return sites


def _numbers(leaf: Any) -> bool:
    return isinstance(leaf, np.ndarray) and leaf.dtype.kind in "biufc"


def _with_data(model: Callable, args: tuple, kwargs: dict, sites: _Sites) -> tuple[Callable, tuple, dict]:
    """The model, and its data as leaves, which other data can take the place of; or, where the model makes its
    structure of the data's values (`np.unique(group)`), a model of these data alone.
    """
    ways = [(model, args, kwargs)]
    ways += [(functools.partial(model, *a, **k), (), {}) for a, k in ((args, kwargs), _of_jax(args, kwargs))]
    first: Exception | None = None
    for way in ways:
        arrays, static = eqx.partition(_Density(*way, sites), is_array)
        x = jax.ShapeDtypeStruct((sum(math.prod(shape) for _, shape in sites.shapes),), np.float64)
        try:
            jax.eval_shape(lambda arrays, x, static=static: eqx.combine(arrays, static)(x), arrays, x)
        except Exception as error:
            first = first or error
            continue
        return way
    assert first is not None
    raise first


def _free_shapes(sites: dict[str, Any]) -> dict[str, tuple[int, ...]]:
    """The shapes of latent sites on the unconstrained space."""
    latent = [name for name, site in sites.items() if site["type"] == "sample" and not site["is_observed"]]
    return {
        name: tuple(biject_to(sites[name]["fn"].support).inverse_shape(np.shape(sites[name]["value"])))
        for name in sorted(latent)
    }


def _is_thinned(site: dict) -> bool:
    size, kept = site["args"]
    return kept is not None and kept != size


def _bound(model: Callable, args: tuple, kwargs: dict, place: str) -> dict[str, Any]:
    """All arguments by name."""
    try:
        signature = inspect.signature(model)
        found = dict(signature.bind(*args, **kwargs).arguments)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{place}: the model's arguments have no names to give new data by: {error}.") from error
    for name, parameter in signature.parameters.items():
        if parameter.kind is parameter.VAR_POSITIONAL and found.pop(name, ()):
            raise ValueError(f"{place}: the model takes *{name}, which has no names to give new data by.")
        if parameter.kind is parameter.VAR_KEYWORD:
            found |= found.pop(name, {})
    return found


def _known(model: Callable, data: dict[str, Any], place: str) -> dict[str, Any]:
    """New data, whose names the model must know."""
    parameters = inspect.signature(model).parameters
    unknown = [name for name in data if name not in parameters]
    if unknown and not any(p.kind is p.VAR_KEYWORD for p in parameters.values()):
        raise ValueError(f"{place}: the model has no argument {unknown[0]!r}; it has {', '.join(parameters)}.")
    return data


def _with_new(model: Callable, args: tuple, kwargs: dict, data: dict[str, Any], observed: dict) -> dict[str, Any]:
    """The model's arguments with new data; those that were observed, and are not given, are None: arrays that stand at
    an observed site as they are, or whose default is None, as is usual for observations.
    """
    own, parameters = _bound(model, args, kwargs, "predict"), inspect.signature(model).parameters
    seen = [np.asarray(value, float) for value in observed.values() if np.size(value)]

    def is_observed(name: str, value: Any) -> bool:
        if not _numbers(value):
            return False
        optional = name in parameters and parameters[name].default is None
        return optional or any(np.array_equal(value.astype(float), other, equal_nan=True) for other in seen)

    kept = {name: None if is_observed(name, value) else value for name, value in own.items()}
    return {**kept, **_known(model, data, "predict")}


@dataclasses.dataclass(frozen=True)
class _Asked:
    """What a posterior asks of its model beside the density."""

    given: Callable  # as the user wrote it
    model: Callable  # with arrays of its own
    args: tuple
    kwargs: dict
    sites: _Sites
    observed: dict[str, np.ndarray]
    factors: frozenset[str]  # sites of numpyro.factor: no draws

    def predict(self, x: np.ndarray, values: dict[str, np.ndarray], seed: int, data: dict[str, Any]) -> dict:
        key, latent = jax.random.key(seed), self._latent(values)
        if not data:
            return self._shown(Predictive(_Unobserved(self.model), latent)(key, *self.args, **self.kwargs))
        anew = _with_new(self.given, self.args, self.kwargs, data, self.observed)
        try:
            return self._shown(Predictive(self.given, latent)(key, **anew))
        except Exception as error:
            raise ValueError(
                f"predict: the model failed with the new data: {type(error).__name__}: {error}. Observations that "
                "are not given are passed as None, as for numpyro.infer.Predictive."
            ) from error

    def prior(self, n: int, seed: int) -> dict[str, np.ndarray]:
        drawn = Predictive(_Unobserved(self.model), num_samples=n)
        return self._shown(drawn(jax.random.key(seed), *self.args, **self.kwargs))

    def renewed(self, args: tuple, data: dict[str, Any]) -> Target:
        if args:
            return from_numpyro(self.given, *args, **data)
        own = _bound(self.given, self.args, self.kwargs, "update")
        return from_numpyro(self.given, **{**own, **_known(self.given, data, "update")})

    def unconstrain(self, values: dict[str, np.ndarray]) -> np.ndarray:
        def one(params: dict) -> jax.Array:
            free = unconstrain_fn(self.model, self.args, self.kwargs, params)
            return jax.numpy.concatenate([jax.numpy.ravel(free[name]) for name, _ in self.sites.shapes])

        with jax.enable_x64(True):
            return np.asarray(jax.vmap(one)({k: jax.numpy.asarray(values[k]) for k, _ in self.sites.shapes}))

    def log_likelihood(self, x: np.ndarray, values: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        with jax.enable_x64(True):
            latent = {name: jax.numpy.asarray(value) for name, value in self._latent(values).items()}
            return self._shown(log_likelihood_of(self.model, latent, *self.args, **self.kwargs))

    def constants(self) -> dict[str, np.ndarray]:
        """Arrays among the arguments that are no observations."""
        try:
            named = _bound(self.given, self.args, self.kwargs, "from_numpyro")
        except ValueError:  # a callable without a signature
            named = self.kwargs
        others = (*self.observed, *dict(self.sites.shapes))
        return {
            name: value
            for name, value in named.items()
            if isinstance(value, np.ndarray)
            and not any(np.array_equal(value, seen) for seen in self.observed.values())
            and name not in others
        }

    def _latent(self, values: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        return {name: value for name, value in values.items() if name in dict(self.sites.shapes)}

    def _shown(self, drawn: dict[str, Any]) -> dict[str, np.ndarray]:
        return {name: np.asarray(value) for name, value in drawn.items() if name not in self.factors}


def _plates(found: dict[str, Any]) -> tuple[dict[str, list[str]], dict[str, list]]:
    """Plates as dims and coords."""
    dims, coords = {}, {}
    for name, site in found.items():
        if site["type"] != "sample" or isinstance(site["fn"], Unit):
            continue
        frames = sorted(site.get("cond_indep_stack", []), key=lambda frame: frame.dim)
        shape = np.shape(site["value"])
        if frames and len(shape) >= len(frames):
            extra = [f"{name}_dim_{i}" for i in range(len(shape) - len(frames))]
            dims[name] = [*(frame.name for frame in frames), *extra]
            coords |= {frame.name: list(range(frame.size)) for frame in frames}
    return dims, coords


@float64
def from_numpyro(model: Callable, *args: Any, **kwargs: Any) -> Target:
    """The posterior of a NumPyro model, called as `model(*args, **kwargs)`.

    `constrain` gives all its latent and deterministic sites; plates become dims. Models whose structure or supports
    depend on the values of other sites are not supported.
    """
    if not callable(model):
        raise TypeError(f"from_numpyro: model must be a NumPyro model, a function; got {model!r:.80}.")
    given, model = model, with_own_arrays(model)
    args, kwargs = jax.tree.map(_as_leaf, (args, kwargs))
    try:
        found = _sites_of(model, args, kwargs)
        _check_sites(found)
        start = _free_shapes(found)
        sites = _Sites(tuple(start.items()))
        density = _with_data(model, args, kwargs, sites) if start else (model, args, kwargs)
    except _Unsupported:
        raise
    except Exception as error:
        raise ValueError(
            f"from_numpyro: the model failed when it was run: {type(error).__name__}: {error}. "
            "Check its data: from_numpyro(model, *args, **kwargs) calls model(*args, **kwargs)."
        ) from error
    if not start:
        raise ValueError("from_numpyro: the model has no latent sites.")
    drawn = {name: site for name, site in found.items() if site["type"] == "sample"}
    factors = frozenset(name for name, site in drawn.items() if isinstance(site["fn"], Unit))
    observed = {k: np.asarray(site["value"]) for k, site in drawn.items() if site["is_observed"] and k not in factors}
    asked = _Asked(given, model, args, kwargs, sites, observed, factors)
    info = ModelInfo(
        *_plates(found),
        asked.predict,
        asked.unconstrain,
        asked.log_likelihood,
        observed,
        asked.constants(),
        asked.prior,
        asked.renewed,
    )
    return Target(
        _Density(*density, sites),
        dim=sum(math.prod(shape) for shape in start.values()),
        constrain=_Constrained(*density, sites),
        info=info,
    )
