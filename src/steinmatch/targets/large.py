"""What `Target.from_data` makes of its arguments: densities of arrays in memory, or of rows that are read in passes."""

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from steinmatch._checks import positive_integer
from steinmatch._types import Scalar
from steinmatch.targets.closures import with_own_arrays
from steinmatch.targets.data import OnData, at_once, rows_of
from steinmatch.targets.files import Streamed, rows_at_once, source_of

_PRECISIONS = ("float32", "float64")


def _checked(data: Any) -> Any:
    """The data as arrays of JAX's own, with as many rows each; numbers keep their type, and so their memory."""
    leaves = jax.tree.leaves(data)
    if not leaves:
        raise ValueError("Target.from_data: the data are empty; give an array, or a dict of arrays, with rows.")
    lengths = set()
    for leaf in leaves:
        if np.ndim(leaf) < 1 or not np.shape(leaf)[0] or np.asarray(leaf).dtype.kind not in "biuf":
            raise ValueError(
                "Target.from_data: all data must be arrays of real numbers with one row an observation; got "
                f"{leaf!r:.80}. Numbers that hold for all rows belong into the functions."
            )
        lengths.add(np.shape(leaf)[0])
    if len(lengths) > 1:
        raise ValueError(f"Target.from_data: all data must have the same number of rows, got {sorted(lengths)}.")
    return jax.tree.map(jnp.array, data)


def density_of(
    log_prior: Callable[[Any], Scalar],
    log_likelihood: Callable[[Any, Any], Any],
    data: Any,
    chunk: int | None,
    dim: int | None,
    parameters: Mapping[str, Any] | None,
    dtype: Any,
) -> OnData | Streamed:
    """The log density of `Target.from_data`, which documents its arguments."""
    for function, name in ((log_prior, "log_prior"), (log_likelihood, "log_likelihood")):
        if not callable(function):
            raise TypeError(f"Target.from_data: {name} must be a function, got {function!r:.80}.")
    if (dim is None) == (parameters is None):
        raise ValueError(
            "Target.from_data: give dim=, the length of the vector that log_prior and log_likelihood take, or "
            "parameters=, as for Target.from_parameters."
        )
    wanted = None if chunk is None else positive_integer(chunk, "chunk", "from_data")
    if str(np.dtype(dtype)) not in _PRECISIONS:
        raise ValueError(f'Target.from_data: dtype must be "float32" or "float64", got {dtype!r}.')
    unflatten = None
    if parameters is not None:
        from steinmatch.targets.parameters import Unflatten  # which brings NumPyro

        unflatten = Unflatten(parameters)
    functions = with_own_arrays(log_prior), with_own_arrays(log_likelihood)
    return _density(*functions, data, wanted, unflatten, str(np.dtype(dtype)))


def _density(
    log_prior: Callable,
    log_likelihood: Callable,
    data: Any,
    wanted: int | None,
    unflatten: Callable | None,
    dtype: str,
) -> OnData | Streamed:
    source = source_of(data)
    if source is not None:
        size = rows_at_once(source, wanted)
        if size < source.rows:
            return Streamed(log_prior, log_likelihood, unflatten, source, size, dtype)
        data = source.whole()
    own = _checked(data)
    rows = rows_of(own)
    numbers = max(1, sum(leaf.size for leaf in jax.tree.leaves(own)) // rows)
    size = at_once(numbers) if wanted is None else wanted
    return OnData(log_prior, log_likelihood, own, min(size, rows), unflatten, dtype)


def with_data(density: OnData | Streamed, args: tuple, new: dict[str, Any]) -> OnData | Streamed:
    """The same with other data: all of them, or some by name."""
    data = density.data if isinstance(density, OnData) else None
    if isinstance(data, dict) and not args:
        unknown = [name for name in new if name not in data]
        if unknown:
            raise ValueError(f"update: the data have no {unknown[0]!r}; they have {', '.join(data)}.")
        given: Any = {**data, **new}
    elif len(args) == 1 and not new:
        given = args[0]
    else:
        raise ValueError("update: give the new data, as Target.from_data took them.")
    functions = density.log_prior, density.log_likelihood
    return _density(*functions, given, density.chunk, density.unflatten, density.dtype)
