"""PyMC models, through their own log density translated to JAX."""

import dataclasses
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np

from steinmatch._types import Vector, float64
from steinmatch.targets import ModelInfo, Target


def _own_data(model: Any) -> dict[str, np.ndarray]:
    """The model's pm.Data."""
    return {v.name: v.get_value() for v in model.data_vars if hasattr(v, "get_value")}


def _values_of(variable: Any) -> np.ndarray:
    return np.asarray(variable.get_value() if hasattr(variable, "get_value") else variable.data)


def _set_data(model: Any, data: Mapping[str, Any], coords: Mapping[str, Any], place: str) -> None:
    """New pm.Data, and coords. A dim that has labels and gets another length counts them, where none are given."""
    import pymc

    known = _own_data(model)
    for name in data:
        if name not in known:
            raise ValueError(
                f"{place}: the model has no pm.Data {name!r}; it has {', '.join(known) or 'none'}. Write "
                f"{name} = pm.Data({name!r}, values) in the model for what is to be replaced."
            )
    given = dict(coords)
    for name, values in data.items():
        for dim, size in zip(model.named_vars_to_dims.get(name, ()), np.shape(values), strict=False):
            labels = model.coords.get(dim)
            if labels is not None and len(labels) != size and dim not in given:
                given[dim] = np.arange(size)
    with model:
        pymc.set_data(dict(data), coords=given)


@contextmanager
def _data_set(model: Any, data: Mapping[str, Any], place: str) -> Iterator[None]:
    """With other data for a while; `coords` among them are labels of dims."""
    coords = data.get("coords", {}) if "coords" not in _own_data(model) else {}
    data = {name: value for name, value in data.items() if not (name == "coords" and coords)}
    before = {name: value for name, value in _own_data(model).items() if name in data}
    labels = {dim: found for dim, found in model.coords.items() if found is not None and dim in _dims_of(model, data)}
    try:
        if data:
            _set_data(model, data, coords, place)
        yield
    finally:
        if before:
            _set_data(model, before, labels, place)


def _used(dim: str, variables: Mapping[str, tuple]) -> bool:
    return any(dim in dims for dims, _ in variables.values())


def _dims_of(model: Any, names: Iterable[str]) -> set[str]:
    return {dim for name in names for dim in model.named_vars_to_dims.get(name, ())}


@dataclasses.dataclass(frozen=True)
class _Asked:
    """What a posterior asks of its model beside the density."""

    model: Any
    own: dict[str, np.ndarray]  # its pm.Data as they were: `update` gives the model others for a while
    dims: dict[str, list[str]]
    coords: dict[str, list]

    def posterior(self, values: dict[str, np.ndarray]) -> Any:
        """With the model's dims, coords and data: variables whose coords differ, or that depend on data which are not
        known to be the same, PyMC would draw anew from the prior.
        """
        import arviz
        import xarray

        given = {name: value[None] for name, value in values.items()}
        dims = {name: found for name, found in self.dims.items() if name in given}
        found = arviz.from_dict(posterior=given, dims=dims, coords=self.coords)
        own = {
            name: (self.dims.get(name, [f"{name}_dim_{i}" for i in range(value.ndim)]), value)
            for name, value in self.own.items()
        }
        found.add_groups(constant_data=xarray.Dataset(own, {k: v for k, v in self.coords.items() if _used(k, own)}))
        return found

    def predict(self, x: np.ndarray, values: dict[str, np.ndarray], seed: int, data: dict[str, Any]) -> dict:
        import pymc

        with _data_set(self.model, {**self.own, **data}, "predict"):
            drawn: Any = pymc.sample_posterior_predictive(
                self.posterior(values), model=self.model, random_seed=seed, progressbar=False, predictions=False
            )
        return {name: np.asarray(value)[0] for name, value in drawn["posterior_predictive"].items()}

    def prior(self, n: int, seed: int) -> dict[str, np.ndarray]:
        import pymc

        with _data_set(self.model, self.own, "to_arviz"):
            drawn: Any = pymc.sample_prior_predictive(draws=n, model=self.model, random_seed=seed)
        groups = [drawn[name] for name in ("prior", "prior_predictive") if name in drawn.groups()]
        return {str(name): np.asarray(value)[0] for group in groups for name, value in group.items()}

    def renewed(self, args: tuple, data: dict[str, Any]) -> Target:
        if args:
            raise ValueError("update: give new data by name, as the model's pm.Data have them.")
        with _data_set(self.model, {**self.own, **data}, "update"):
            return from_pymc(self.model)

    def unconstrain(self, values: dict[str, np.ndarray]) -> np.ndarray:
        from pytensor.compile.function import function

        free = []
        for variable in self.model.free_RVs:
            transform = self.model.rvs_to_transforms[variable]
            given = np.asarray(values[variable.name], np.float64)
            if transform is not None:
                placeholder = variable.type(name=variable.name)
                forward = function([placeholder], transform.forward(placeholder, *variable.owner.inputs))
                given = np.stack([np.asarray(forward(value.astype(variable.dtype))) for value in given])
            free.append(given.reshape(len(given), -1))
        return np.concatenate(free, axis=1)

    def log_likelihood(self, x: np.ndarray, values: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        import pymc

        with _data_set(self.model, self.own, "to_arviz"):
            found = pymc.compute_log_likelihood(
                self.posterior(values), model=self.model, extend_inferencedata=False, progressbar=False
            )
        return {str(name): np.asarray(value)[0] for name, value in found.items()}


def _shown(model: Any) -> list:
    """The free variables on their own scale, and the deterministics."""
    shown = [variable for variable in model.unobserved_value_vars if variable not in model.value_vars]
    shown += [
        variable
        for variable in model.value_vars
        if variable in model.unobserved_value_vars and not any(str(other.name) == str(variable.name) for other in shown)
    ]
    names = {variable.name for variable in (*model.free_RVs, *model.deterministics)}
    return [variable for variable in shown if variable.name in names]


@float64
def from_pymc(model: Any) -> Target:
    """The posterior of a PyMC model: its free variables, deterministics and coords."""
    try:
        import pymc
        from pymc.sampling.jax import get_jaxified_graph, get_jaxified_logp
    except ImportError as error:
        raise ImportError("from_pymc needs PyMC: pip install 'steinmatch[pymc]'.") from error
    if not isinstance(model, pymc.Model):
        raise TypeError(f"from_pymc: model must be a pymc.Model, got {model!r:.80}.")
    if model.discrete_value_vars:
        names = ", ".join(str(variable) for variable in model.discrete_value_vars)
        raise ValueError(f"from_pymc: the model has discrete variables ({names}): marginalise them out first.")
    point = model.initial_point()
    shapes = [np.shape(point[variable.name]) for variable in model.value_vars]
    bounds = np.cumsum([0, *(int(np.prod(shape)) for shape in shapes)])
    shown = _shown(model)
    try:
        logp = get_jaxified_logp(model)
        outputs = get_jaxified_graph(inputs=model.value_vars, outputs=shown)
    except NotImplementedError as error:
        raise ValueError(
            f"from_pymc: PyMC's JAX backend cannot translate this model: {error}. Write the operation with others, or "
            "give steinmatch.Target a log density and its gradient in NumPy."
        ) from error

    def split(x: Vector) -> list:
        parts = zip(bounds[:-1], bounds[1:], shapes, strict=True)
        return [x[a:b].reshape(shape) for a, b, shape in parts]

    def log_density(x: Vector) -> Any:
        return logp(split(x))

    def constrain(x: Vector) -> dict:
        return dict(zip([variable.name for variable in shown], outputs(*split(x)), strict=True))

    asked = _Asked(
        model,
        _own_data(model),
        {
            name: [f"{name}_dim_{i}" if dim is None else str(dim) for i, dim in enumerate(found)]
            for name, found in model.named_vars_to_dims.items()
        },
        {name: list(values) for name, values in model.coords.items() if values is not None},
    )
    observed = {str(v.name): _values_of(model.rvs_to_values[v]) for v in model.observed_RVs}
    info = ModelInfo(
        asked.dims,
        asked.coords,
        asked.predict,
        asked.unconstrain,
        asked.log_likelihood,
        observed,
        {name: np.asarray(value) for name, value in asked.own.items() if name not in observed},
        asked.prior,
        asked.renewed,
    )
    return Target(log_density, dim=int(bounds[-1]), constrain=constrain, info=info)
