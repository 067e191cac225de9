"""PyMC models, through their own log density translated to JAX."""

from typing import Any

import numpy as np

from steinmatch._types import Vector, float64
from steinmatch.targets import ModelInfo, Target


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
    sizes = [int(np.prod(shape)) for shape in shapes]
    bounds = np.cumsum([0, *sizes])
    logp = get_jaxified_logp(model)
    shown = [variable for variable in model.unobserved_value_vars if variable not in model.value_vars]
    shown += [
        variable
        for variable in model.value_vars
        if variable in model.unobserved_value_vars and not any(str(other.name) == str(variable.name) for other in shown)
    ]
    names = {variable.name for variable in model.free_RVs} | {variable.name for variable in model.deterministics}
    shown = [variable for variable in shown if variable.name in names]
    outputs = get_jaxified_graph(inputs=model.value_vars, outputs=shown)

    def split(x: Vector) -> list:
        parts = zip(bounds[:-1], bounds[1:], shapes, strict=True)
        return [x[a:b].reshape(shape) for a, b, shape in parts]

    def log_density(x: Vector) -> Any:
        return logp(split(x))

    def constrain(x: Vector) -> dict:
        return dict(zip([variable.name for variable in shown], outputs(*split(x)), strict=True))

    def posterior(values: dict[str, np.ndarray]) -> Any:
        """With the model's dims and coords: variables whose coords differ PyMC would draw anew from the prior."""
        import arviz

        given = {name: value[None] for name, value in values.items()}
        return arviz.from_dict(posterior=given, dims={k: v for k, v in dims.items() if k in given}, coords=coords)

    def predict(values: dict[str, np.ndarray], seed: int) -> dict:
        drawn = pymc.sample_posterior_predictive(posterior(values), model=model, random_seed=seed, progressbar=False)
        return {name: np.asarray(value)[0] for name, value in drawn["posterior_predictive"].items()}

    def unconstrain(values: dict[str, np.ndarray]) -> np.ndarray:
        from pytensor.compile.function import function

        free = []
        for variable in model.free_RVs:
            transform = model.rvs_to_transforms[variable]
            given = np.asarray(values[variable.name], np.float64)
            if transform is not None:
                placeholder = variable.type(name=variable.name)
                forward = function([placeholder], transform.forward(placeholder, *variable.owner.inputs))
                given = np.stack([np.asarray(forward(value.astype(variable.dtype))) for value in given])
            free.append(given.reshape(len(given), -1))
        return np.concatenate(free, axis=1)

    def log_likelihood(values: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        found = pymc.compute_log_likelihood(
            posterior(values), model=model, extend_inferencedata=False, progressbar=False
        )
        return {str(name): np.asarray(value)[0] for name, value in found.items()}

    dims = {name: [str(dim) for dim in found] for name, found in model.named_vars_to_dims.items()}
    coords = {name: list(values) for name, values in model.coords.items() if values is not None}
    info = ModelInfo(dims, coords, predict, unconstrain, log_likelihood)
    return Target(log_density, dim=int(bounds[-1]), constrain=constrain, info=info)
