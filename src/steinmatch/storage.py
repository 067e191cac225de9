"""Fits as ArviZ InferenceData and as NetCDF files: plain records in, plain records out."""

import json
import os
import tempfile
import warnings
from pathlib import Path
from typing import Any

import numpy as np

from steinmatch.targets import AbstractTarget, ModelInfo, SavedTarget, constrained_values

FORMAT = 1
_FOREIGN = "a file that steinmatch saved"


def variables(target: AbstractTarget, particles: np.ndarray) -> dict[str, np.ndarray]:
    """The constrained values by variable, (n, *shape) each."""
    names, values = constrained_values(target, particles)
    if isinstance(target, SavedTarget):
        shapes = target.shapes
    elif target.constrain is None and target.names is None:
        return {"x": values}
    elif target.constrain is None:
        return {name: values[:, i] for i, name in enumerate(names)}
    else:
        shapes = _shapes(target)
    found, start = {}, 0
    for name, shape in shapes.items():
        size = int(np.prod(shape))
        found[name] = values[:, start : start + size].reshape(-1, *shape)
        start += size
    return found


def _shapes(target: AbstractTarget) -> dict[str, tuple[int, ...]]:
    import jax
    import jax.numpy as jnp

    assert target.constrain is not None
    with jax.enable_x64(True):
        tree = jax.eval_shape(target.constrain, jax.ShapeDtypeStruct((target.dim,), jnp.float64))
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    return {
        ".".join(str(getattr(entry, "key", getattr(entry, "idx", entry))) for entry in path) or "x": tuple(leaf.shape)
        for path, leaf in leaves
    }


def inference_data(
    target: AbstractTarget,
    particles: np.ndarray,
    weights: np.ndarray,
    log_density: np.ndarray | None,
    attributes: dict[str, Any],
    extra: dict[str, np.ndarray] | None = None,
) -> Any:
    """One chain whose draws are the particles, not resampled: groups posterior, sample_stats and unconstrained."""
    with warnings.catch_warnings():  # ArviZ announces its next version
        warnings.simplefilter("ignore")
        import arviz
        import xarray
    info: ModelInfo = getattr(target, "info", None) or ModelInfo()
    posterior = {name: value[None] for name, value in variables(target, particles).items()}
    dims = {
        name: dims for name, dims in info.dims.items() if name in posterior and posterior[name].ndim == 2 + len(dims)
    }
    used = {dim for found in dims.values() for dim in found}
    coords = {name: values for name, values in info.coords.items() if name in used}
    stats = {"weight": weights[None]}
    if log_density is not None:
        stats["lp"] = log_density[None]
    attrs = {name: _plain(value) for name, value in attributes.items()}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        data: Any = arviz.from_dict(posterior=posterior, sample_stats=stats, dims=dims, coords=coords)
        data.posterior.attrs.update(attrs)
        own = {"x": (("draw", "dimension"), particles), **{
            name: (tuple(f"{name}_{i}" for i in range(value.ndim)), value) for name, value in (extra or {}).items()
        }}  # fmt: skip
        data.add_groups({"unconstrained": xarray.Dataset(own)}, warn_on_custom_groups=False)
    return data


def _plain(value: Any) -> Any:
    return value if isinstance(value, str | int | float) and not isinstance(value, bool) else json.dumps(value)


def write(data: Any, path: str | Path) -> None:
    """NetCDF, written beside the file and then put in its place: whatever happens, the old file or the new one."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, part = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".part")
    os.close(handle)
    try:
        data.to_netcdf(part, engine="h5netcdf", compress=False)
        with open(part, "rb") as file:
            os.fsync(file.fileno())
        os.replace(part, path)
    finally:
        Path(part).unlink(missing_ok=True)


def read(path: str | Path) -> tuple[dict[str, np.ndarray], dict[str, Any], SavedTarget]:
    """Arrays and attributes of a saved fit, and a stand-in for its target."""
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"load: there is no file {path}.")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            import arviz

            data: Any = arviz.from_netcdf(str(path), engine="h5netcdf")
            data.load()
            data.close()
        attributes = {name: _parsed(value) for name, value in data.posterior.attrs.items()}
        arrays = {str(name): np.asarray(value) for name, value in data.unconstrained.items()}
        arrays["weights"] = np.asarray(data.sample_stats["weight"])[0]
        posterior = {str(name): np.asarray(value)[0] for name, value in data.posterior.items()}
        version = int(attributes["steinmatch_format"])
    except Exception as error:
        raise ValueError(
            f"load: {path} is not {_FOREIGN}, or it is damaged ({type(error).__name__}: {str(error)[:200]})."
        ) from error
    if version > FORMAT:
        raise ValueError(f"load: {path} has format {version}, this version of steinmatch reads up to {FORMAT}.")
    order = attributes["variables"]
    shapes = {name: tuple(posterior[name].shape[1:]) for name in order}
    values = np.concatenate([posterior[name].reshape(len(posterior[name]), -1) for name in order], axis=1)
    info = ModelInfo(attributes["dims"], attributes["coords"])
    names = tuple(attributes["names"])
    target = SavedTarget(dim=arrays["x"].shape[1], names=names, values=values, shapes=shapes, info=info)  # type: ignore[call-arg]
    return arrays, attributes, target


def _parsed(value: Any) -> Any:
    if not isinstance(value, str):
        return value.item() if isinstance(value, np.generic) else value
    try:
        return json.loads(value)
    except ValueError:
        return value
