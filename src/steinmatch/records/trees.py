"""The library's own objects (kernels, frames) as plain text and arrays, and back: no code is stored or run."""

import dataclasses
from typing import Any

import equinox as eqx
import jax
import numpy as np

from steinmatch import coordinates, kernels
from steinmatch.kernels import bandwidths, features


class NotBuiltIn(TypeError):
    """An object that holds a function or a class of the user's own."""


_KNOWN: dict[str, type] = {
    cls.__name__: cls
    for module in (bandwidths, coordinates, features, kernels)
    for cls in vars(module).values()
    if isinstance(cls, type) and issubclass(cls, eqx.Module) and cls.__module__.startswith("steinmatch.")
}


def taken_apart(value: Any, prefix: str) -> tuple[Any, dict[str, np.ndarray]]:
    """A structure of dicts, lists and numbers, and the arrays that it names."""
    arrays: dict[str, np.ndarray] = {}

    def plain(value: Any) -> Any:
        if value is None or isinstance(value, bool | int | float | str):
            return value
        if isinstance(value, np.ndarray | np.generic | jax.Array):
            name = f"{prefix}_{len(arrays)}"
            arrays[name] = np.asarray(value)
            return {"array": name}
        if isinstance(value, tuple):
            return [plain(part) for part in value]
        if _KNOWN.get(type(value).__name__) is type(value):
            fields = {field.name: plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
            return {"kind": type(value).__name__, "fields": fields}
        raise NotBuiltIn(f"{type(value).__name__} is not one of the library's own")

    return plain(value), arrays


def put_together(structure: Any, arrays: dict[str, np.ndarray]) -> Any:
    """The object again."""
    if isinstance(structure, list):
        return tuple(put_together(part, arrays) for part in structure)
    if not isinstance(structure, dict):
        return structure
    if "array" in structure:
        return jax.numpy.asarray(arrays[structure["array"]])
    made = object.__new__(_KNOWN[structure["kind"]])
    for name, value in structure["fields"].items():
        object.__setattr__(made, name, put_together(value, arrays))
    return made
