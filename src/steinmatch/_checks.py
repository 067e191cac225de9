"""What bad input gets: a sentence with the value, the place and the remedy."""

import difflib
import os
from collections.abc import Iterable
from typing import Any

import numpy as np
from jax.core import Tracer

from steinmatch._types import ArrayLike

_LARGEST = 1e100  # of a coordinate: its cube stays finite


def as_particles(value: ArrayLike, place: str, dim: int | None = None) -> Any:
    """`value` as a float64 array (n, d) of finite numbers; ValueError otherwise. What JAX traces is checked for its
    shape alone.
    """
    if isinstance(value, Tracer):
        array: Any = value.astype(np.float64)
    else:
        array = _as_numbers(value, place)
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
    if isinstance(value, Tracer):
        return array
    bad = ~(np.abs(array) < _LARGEST)
    if bad.any():
        row, column = np.argwhere(bad)[0]
        raise ValueError(
            f"{place}: particles must be finite, below {_LARGEST:g}, but entry [{row}, {column}] is "
            f"{array[row, column]} ({int(bad.any(axis=1).sum())} of {array.shape[0]} particles affected)."
        )
    return array


def _as_numbers(value: ArrayLike, place: str) -> np.ndarray:
    """`value` as a float64 array; complex numbers and masks are not dropped in silence."""
    if isinstance(value, np.ma.MaskedArray) and np.ma.is_masked(value):
        raise ValueError(
            f"{place}: {int(np.ma.count_masked(value))} values are masked; give particles without them, such as "
            "np.ma.compress_rows(x)."
        )
    try:
        if np.iscomplexobj(value):
            raise TypeError("complex numbers")
        return np.asarray(value, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"{place}: particles must be an array of numbers of shape (n, d), got {value!r:.80}"
        ) from error


def as_weights(value: ArrayLike | None, n: int, place: str) -> Any:
    """`value` as non-negative float64 weights (n,) with a positive sum; None stays None."""
    if value is None:
        return None
    if isinstance(value, Tracer):
        return value
    array = _as_numbers(value, place)
    if array.shape != (n,):
        raise ValueError(f"{place}: weights must have shape ({n},), one per particle; got shape {array.shape}.")
    with np.errstate(over="ignore"):
        total = array.sum()
    if not np.isfinite(array).all() or (array < 0).any() or not (total > 0 and np.isfinite(total)):
        raise ValueError(
            f"{place}: weights must have a finite sum, be non-negative and not all zero; got values from "
            f"{array.min()} to {array.max()}."
        )
    return array


def positive_integer(value: Any, name: str, place: str) -> int:
    """`value` as an int of at least one."""
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < 1:
        raise ValueError(f"{place}: {name} must be a whole number of at least 1, got {value!r}.")
    return int(value)


def whole_seed(value: Any, place: str) -> int:
    """`value` as a seed: a whole number from 0 to 2^63 - 1."""
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or not 0 <= value < 2**63:
        raise ValueError(f"{place}: seed must be a whole number from 0 to 2**63 - 1, got {value!r:.80}.")
    return int(value)


def check_kind(value: Any, kind: type, name: str, place: str, remedy: str) -> None:
    """TypeError unless `value` is an object of this kind."""
    if isinstance(value, type) and issubclass(value, kind):
        raise TypeError(f"{place}: {name} must be an object, got the class {value.__name__}; write {value.__name__}().")
    if not isinstance(value, kind):
        raise TypeError(f"{place}: {name} must be {remedy}; got {value!r:.80}.")


def check_size(n: int, d: int, place: str) -> None:
    """ValueError where so many particles do not fit into this machine's memory."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") if hasattr(os, "sysconf") else 2**40
    if 8 * n * d > memory // 4:
        raise ValueError(
            f"{place}: {n:,} particles of dimension {d:,} take {8e-9 * n * d:,.0f} GB, more than a quarter of the "
            f"{1e-9 * memory:.0f} GB of this machine; ask for fewer."
        )


def positive_number(value: Any, name: str, place: str) -> float:
    """`value` as a positive float whose square is neither zero nor infinite."""
    try:
        number = float(value)
    except (TypeError, ValueError):
        number = float("nan")
    if not 1.0 / _LARGEST <= number <= _LARGEST:
        raise ValueError(
            f"{place}: {name} must be a positive number, got {value!r} (from {1.0 / _LARGEST:g} to {_LARGEST:g})."
        )
    return number


def known_name(value: str, known: Iterable[str], kind: str, place: str) -> str:
    """`value` if it is known; ValueError with the nearest known name otherwise."""
    names = sorted(known)
    if isinstance(value, str) and value in names:
        return value
    if not isinstance(value, str):
        raise TypeError(f"{place}: {kind} must be one of {', '.join(names)}; got {value!r:.80}.")
    near = difflib.get_close_matches(value.lower(), names, n=1, cutoff=0.4)
    hint = f" Did you mean {near[0]!r}?" if near else ""
    raise ValueError(f"{place}: unknown {kind} {value!r}.{hint} Known: {', '.join(names)}.")


class _Process:
    """Whether this process was forked from one that has used JAX, whose threads a child does not have."""

    used = False
    forked = False

    @classmethod
    def after_fork(cls) -> None:
        cls.forked = cls.used


os.register_at_fork(after_in_child=_Process.after_fork)


def check_process(place: str) -> None:
    """RuntimeError in a forked child, where JAX would wait for ever."""
    if _Process.forked:
        raise RuntimeError(
            f"{place}: this process was forked from one that has used JAX, and would hang: JAX's threads are not "
            'in it. Use multiprocessing.get_context("spawn"), or fork before the first fit.'
        )
    _Process.used = True
