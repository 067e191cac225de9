"""Fits as NetCDF files, which ArviZ reads too: plain records in, plain records out."""

import dataclasses
import hashlib
import io
import json
import warnings
from pathlib import Path
from typing import Any

import numpy as np

from steinmatch._files import as_path, write_whole
from steinmatch.measures.weights import Layout
from steinmatch.records.inferencedata import from_chains, groups_of
from steinmatch.records.trees import NotBuiltIn, taken_apart
from steinmatch.targets import (
    ModelInfo,
    SavedTarget,
    constrained_values,
    is_named,
    variables,
)

FORMAT = 4
_SAVED = (
    "converged", "reason", "residual", "n_steps", "n_gradients", "n_hvps", "n_nonfinite", "seconds", "seed", "tol",
)  # fmt: skip
_FOREIGN = "a file that steinmatch saved"


def saved_groups(fit: Any) -> dict[str, Any]:
    """A fit's posterior and sample_stats, the verdict in the attributes; and what is needed to give the fit back."""
    layout = fit.draws_layout
    groups = groups_of(fit.target, fit.particles, np.asarray(fit.weights), layout)
    info: ModelInfo = getattr(fit.target, "info", None) or ModelInfo()
    groups["posterior"].attrs.update({name: _plain(value) for name, value in _attributes(fit, info).items()})
    own = {name: (tuple(f"{name}_{i}" for i in range(value.ndim)), value) for name, value in _arrays(fit).items()}
    groups["unconstrained"] = groups["unconstrained"].assign(own)
    return groups


def _attributes(fit: Any, info: ModelInfo) -> dict[str, Any]:
    """The verdict, the certificate where it was computed, and what `read` needs to give the fit back."""
    names, _ = constrained_values(fit.target, fit.particles)
    return {
        "steinmatch_format": FORMAT,
        "inference_library": "steinmatch",
        "names": list(names),
        "by_name": is_named(fit.target),
        "variables": list(variables(fit.target, fit.particles)),
        "dims": {name: list(dims) for name, dims in info.dims.items()},
        "coords": {name: [str(value) for value in values] for name, values in info.coords.items()},
        "rounds": [dataclasses.asdict(found) for found in fit.rounds],
        "modes": [[mode.share, mode.error, mode.mean.tolist(), mode.sd.tolist()] for mode in fit.modes],
        "log_evidence": list(vars(fit)["log_evidence"]) if "log_evidence" in vars(fit) else [],
        "layout": [] if fit.draws_layout is None else list(fit.draws_layout),
        "automatic": fit.walked is not None,
        "frame": _frame(fit)[0],
        "kernel": _kernel(fit)[0],
        "certificate": str(fit.certificate) if "certificate" in vars(fit) else "",
        **{name: getattr(fit, name) for name in _SAVED},
    }


def _arrays(fit: Any) -> dict[str, np.ndarray]:
    """What is saved of the frame, the kernel, the stated errors and the history."""
    found: dict[str, np.ndarray] = {**_frame(fit)[1], **_kernel(fit)[1]}
    if fit.error is not None:
        found |= {"error_mean": fit.error.mean, "error_sd": fit.error.sd}
    return found | {f"history_{name}": np.asarray(values) for name, values in fit.history.items()}


def _frame(fit: Any) -> tuple[Any, dict[str, np.ndarray]]:
    return taken_apart(fit.frame if fit.walked is None else fit.walked.frame, "frame")


def _kernel(fit: Any) -> tuple[Any, dict[str, np.ndarray]]:
    """The kernel taken apart; its name alone where it is the user's own."""
    try:
        return taken_apart(fit.kernel, "kernel")
    except NotBuiltIn:
        return type(fit.kernel).__name__, {}


def _plain(value: Any) -> Any:
    return value if isinstance(value, str | int | float) and not isinstance(value, bool) else json.dumps(value)


def write(groups: dict[str, Any], path: str | Path) -> None:
    """NetCDF, made in memory and then written whole or not at all."""
    path = as_path(path, "save")
    content = io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for i, (group, dataset) in enumerate(groups.items()):
            dataset = dataset.rename({n: _filed(n) for n in {*dataset.variables, *dataset.dims} if _filed(n) != n})
            dataset.to_netcdf(content, group=group, mode="a" if i else "w", engine="h5netcdf")
    write_whole(path, content.getvalue() + _seal(content.getvalue()))


def _seal(content: bytes) -> bytes:
    """What follows a file's content: HDF5 reads past it, and damage is found before HDF5, which may hang on it."""
    return b"steinmatch" + hashlib.sha256(content).digest()


def _filed(name: Any) -> str:
    """A variable's name in a file, where a slash would be a group."""
    return str(name).replace("/", "\N{DIVISION SLASH}")


def read(path: str | Path) -> tuple[dict[str, np.ndarray], dict[str, Any], SavedTarget]:
    """Arrays and attributes of a saved fit, and a stand-in for its target."""
    path = as_path(path, "load")
    if not path.is_file():
        raise FileNotFoundError(f"load: there is no file {path}.")
    try:
        content = path.read_bytes()
        if content[-42:] != _seal(content[:-42]):
            raise ValueError("its checksum is not that of its content")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            data = {name: _read_group(content, name) for name in ("posterior", "sample_stats", "unconstrained")}
        attributes = {name: _parsed(value) for name, value in data["posterior"].attrs.items()}
        version = attributes["steinmatch_format"]
        if version != FORMAT:
            raise ValueError(f"it has format {version}, this version of steinmatch reads format {FORMAT}")
        layout = Layout(*attributes["layout"]) if attributes["layout"] else None
        arrays = {str(name): np.asarray(value) for name, value in data["unconstrained"].items()}
        arrays["x"] = from_chains(arrays["x"], layout)
        arrays["weights"] = from_chains(np.asarray(data["sample_stats"]["weight"]), layout)
        posterior = {str(name): from_chains(np.asarray(value), layout) for name, value in data["posterior"].items()}
        shapes = {name: tuple(posterior[_filed(name)].shape[1:]) for name in attributes["variables"]}
        columns = [posterior[_filed(name)].reshape(len(arrays["x"]), -1) for name in shapes]
        values = np.concatenate(columns, axis=1)
        info = ModelInfo(attributes["dims"], attributes["coords"])
        names = tuple(attributes["names"])
    except Exception as error:
        raise ValueError(
            f"load: {path} is not {_FOREIGN}, or it is damaged ({type(error).__name__}: {str(error)[:200]})."
        ) from error
    target = SavedTarget(  # type: ignore[call-arg]
        dim=arrays["x"].shape[1],
        names=names,
        values=values,
        shapes=shapes,
        by_name=bool(attributes["by_name"]),
        info=info,
    )
    return arrays, attributes, target


def _read_group(content: bytes, name: str) -> Any:
    import xarray

    with xarray.open_dataset(io.BytesIO(content), group=name, engine="h5netcdf") as found:
        return found.load()


def _parsed(value: Any) -> Any:
    if not isinstance(value, str):
        return value.item() if isinstance(value, np.generic) else value
    try:
        return json.loads(value)
    except ValueError:
        return value
