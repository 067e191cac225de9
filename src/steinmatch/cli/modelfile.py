"""Targets out of files, for the command line: Python with a target or a model, Stan programs; draws of samplers."""

import importlib.util
import json
import sys
import types
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from steinmatch.records.cmdstan import is_cmdstan
from steinmatch.targets import AbstractTarget

_NAMES = ("target", "model")


class BadFile(ValueError):
    """A file that holds no usable model or draws; the message says why."""


def read_target(where: str, data: Path | None) -> AbstractTarget:
    """The target of FILE or FILE:NAME."""
    file, _, name = where.partition(":")
    path = Path(file)
    if not path.is_file():
        raise BadFile(f"there is no file {path}.")
    if path.suffix == ".stan":
        from steinmatch.frontends import from_stan

        return _built(lambda: from_stan(path, data), where)
    if path.suffix != ".py":
        raise BadFile(f"{path} is neither a Python file (.py) nor a Stan program (.stan).")
    module = _module(path)
    names = [name] if name else [known for known in _NAMES if hasattr(module, known)]
    if not names or not hasattr(module, names[0]):
        found = ", ".join(n for n in vars(module) if not n.startswith("_"))
        raise BadFile(f"{path} has no {name or 'target or model'}; it defines: {found or 'nothing'}. Write FILE:NAME.")
    return _built(lambda: as_target(getattr(module, names[0]), module, data), where)


def as_target(value: Any, module: types.ModuleType, data: Path | None) -> AbstractTarget:
    """A target as it is, a PyMC model, or a NumPyro model; a NumPyro model is called with the data file's entries,
    or with the module's `args` and `kwargs` where it has them.
    """
    if isinstance(value, AbstractTarget):
        return value
    if type(value).__module__.startswith("pymc"):
        from steinmatch.frontends import from_pymc

        return from_pymc(value)
    if callable(value):
        from steinmatch.frontends import from_numpyro

        entries = {} if data is None else json.loads(data.read_text())
        given = {k: np.asarray(v) if isinstance(v, list) else v for k, v in entries.items()}
        return from_numpyro(value, *getattr(module, "args", ()), **{**getattr(module, "kwargs", {}), **given})
    raise BadFile(f"a Target, a NumPyro model or a PyMC model is needed, got {type(value).__name__}.")


def _built(build: Callable[[], AbstractTarget], where: str) -> AbstractTarget:
    try:
        return build()
    except (Exception, SystemExit) as error:
        raise BadFile(f"{where}: {error if str(error) else type(error).__name__}") from error


def _module(path: Path) -> types.ModuleType:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.path.insert(0, str(path.parent.resolve()))
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:  # a model file that exits is no model
        raise BadFile(f"{path} failed when it was read: {type(error).__name__}: {error}") from error
    finally:
        sys.path.pop(0)
    return module


def read_draws(path: Path, target: AbstractTarget) -> np.ndarray:
    """Unconstrained draws (n, d) from .npy or .csv (one column a coordinate, a header if any)."""
    if not path.is_file():
        raise BadFile(f"there is no file {path}.")
    try:
        draws = _READERS[path.suffix](path)
    except KeyError as error:
        raise BadFile(f"{path}: draws are read from {', '.join((*_READERS, '.nc'))} files.") from error
    except Exception as error:
        raise BadFile(f"{path} cannot be read as draws: {error}") from error
    draws = np.atleast_2d(np.asarray(draws, np.float64))
    if draws.shape[1] != target.dim:
        raise BadFile(
            f"{path} has {draws.shape[1]} columns, but the target has {target.dim} unconstrained coordinates. "
            "Draws are taken on the unconstrained space, in the target's order."
        )
    if not np.isfinite(draws).all():
        raise BadFile(f"{path} holds {int((~np.isfinite(draws)).sum())} values that are not finite.")
    return draws


def read_named_draws(path: Path, target: AbstractTarget) -> Any:
    """Draws of any sampler: an InferenceData from a .nc file or CmdStan's CSV, known by name; else as `read_draws`."""
    if path.suffix == ".csv" and path.is_file() and is_cmdstan(path):
        return str(path)
    if path.suffix != ".nc" or not path.is_file():
        return read_draws(path, target)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import arviz

        try:
            data: Any = arviz.from_netcdf(str(path), engine="h5netcdf")
            data.load()
            data.close()
        except Exception as error:
            raise BadFile(f"{path} cannot be read as draws: {error}") from error
    return data


def _from_csv(path: Path) -> np.ndarray:
    with path.open() as file:
        first = file.readline().strip().split(",")
    try:
        [float(entry) for entry in first]
        skip = 0
    except ValueError:
        skip = 1
    return np.loadtxt(path, delimiter=",", skiprows=skip, ndmin=2)


_READERS: dict[str, Callable[[Path], np.ndarray]] = {".npy": np.load, ".csv": _from_csv}
