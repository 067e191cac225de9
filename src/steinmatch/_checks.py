"""What bad input gets: a sentence with the value, the place and the remedy."""

import difflib
from collections.abc import Iterable
from typing import Any

import numpy as np

from steinmatch._types import ArrayLike


def as_particles(value: ArrayLike, place: str, dim: int | None = None) -> np.ndarray:
    """`value` as a float64 array (n, d) of finite numbers; ValueError otherwise."""
    try:
        array = np.asarray(value, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"{place}: particles must be an array of numbers of shape (n, d), got {value!r:.80}"
        ) from error
    if array.ndim != 2:
        raise ValueError(
            f"{place}: particles must have shape (n, d), one row a particle; got shape {array.shape}. "
            "For d = 1 pass x[:, None], for a single point x[None, :]."
        )
    if array.shape[0] < 1 or array.shape[1] < 1:
        raise ValueError(f"{place}: at least one particle and one dimension are needed, got shape {array.shape}.")
    if dim is not None and array.shape[1] != dim:
        raise ValueError(
            f"{place}: particles of shape {array.shape} have dimension {array.shape[1]}, but the target has dim={dim}."
        )
    bad = ~np.isfinite(array)
    if bad.any():
        row, column = np.argwhere(bad)[0]
        raise ValueError(
            f"{place}: particles must be finite, but entry [{row}, {column}] is {array[row, column]} "
            f"({int(bad.any(axis=1).sum())} of {array.shape[0]} particles affected)."
        )
    return array


def as_weights(value: ArrayLike | None, n: int, place: str) -> np.ndarray | None:
    """`value` as non-negative float64 weights (n,) with a positive sum; None stays None."""
    if value is None:
        return None
    array = np.asarray(value, dtype=np.float64)
    if array.shape != (n,):
        raise ValueError(f"{place}: weights must have shape ({n},), one per particle; got shape {array.shape}.")
    if not np.isfinite(array).all() or (array < 0).any() or not array.sum() > 0:
        raise ValueError(
            f"{place}: weights must be finite, non-negative and not all zero; got values from {array.min()} to "
            f"{array.max()}."
        )
    return array


def positive_integer(value: Any, name: str, place: str) -> int:
    """`value` as an int of at least one."""
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < 1:
        raise ValueError(f"{place}: {name} must be a whole number of at least 1, got {value!r}.")
    return int(value)


def positive_number(value: Any, name: str, place: str) -> float:
    """`value` as a finite positive float."""
    try:
        number = float(value)
    except (TypeError, ValueError):
        number = float("nan")
    if not (number > 0 and np.isfinite(number)):
        raise ValueError(f"{place}: {name} must be a positive number, got {value!r}.")
    return number


def known_name(value: str, known: Iterable[str], kind: str, place: str) -> str:
    """`value` if it is known; ValueError with the nearest known name otherwise."""
    names = sorted(known)
    if value in names:
        return value
    near = difflib.get_close_matches(value.lower(), names, n=1, cutoff=0.4)
    hint = f" Did you mean {near[0]!r}?" if near else ""
    raise ValueError(f"{place}: unknown {kind} {value!r}.{hint} Known: {', '.join(names)}.")
