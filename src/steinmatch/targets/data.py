"""Targets of much data: log p(x) = log prior(x) + sum over rows of their log likelihood, in chunks of bounded memory.

The data are arguments of the compiled code, not constants in it: other data of the same shape compile nothing, and XLA
does not fold them. Rows are sliced where they lie, chunk after chunk; the gradient takes each chunk again instead of
keeping what it computed (`jax.checkpoint`), so that memory grows with a chunk and not with the data.
"""

from collections.abc import Callable, Mapping
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from steinmatch._checks import positive_integer
from steinmatch._types import Scalar, Vector
from steinmatch.targets.closures import with_own_arrays
from steinmatch.targets.parameters import Unflatten

_NUMBERS_A_CHUNK = 2**21  # 16 MiB in double precision
_ON_A_GPU = 2**26  # small chunks leave it idle


class OnData(eqx.Module):
    """The log density of a prior and of rows of data; x is handed on as a vector, or as named parameters."""

    log_prior: Callable
    log_likelihood: Callable
    data: Any  # arrays (rows, ...)
    chunk: int = eqx.field(static=True)
    unflatten: Unflatten | None = eqx.field(static=True)

    def __call__(self, x: Vector) -> Scalar:
        params, log_det = (x, jnp.zeros(())) if self.unflatten is None else self.unflatten(x)
        rows = _rows(self.data)
        whole = rows // self.chunk

        def likelihood(some: Any) -> Scalar:
            values = self.log_likelihood(params, jax.tree.map(_in_double, some))
            return jnp.sum(jnp.asarray(values, x.dtype))

        @jax.checkpoint
        def added(total: Scalar, i: Array) -> tuple[Scalar, None]:
            some = jax.tree.map(lambda leaf: jax.lax.dynamic_slice_in_dim(leaf, i * self.chunk, self.chunk), self.data)
            return total + likelihood(some), None

        total = jnp.asarray(self.log_prior(params), x.dtype) + log_det
        if whole <= 1 and rows == self.chunk:
            return total + likelihood(self.data)
        total, _ = jax.lax.scan(added, total, jnp.arange(whole))
        if rows > whole * self.chunk:
            total = total + likelihood(jax.tree.map(lambda leaf: leaf[whole * self.chunk :], self.data))
        return total


def _in_double(leaf: Array) -> Array:
    return leaf.astype(jnp.float64) if jnp.issubdtype(leaf.dtype, jnp.floating) else leaf


def _rows(data: Any) -> int:
    return jax.tree.leaves(data)[0].shape[0]


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
) -> OnData:
    """The log density of `Target.from_data`, which documents its arguments."""
    for function, name in ((log_prior, "log_prior"), (log_likelihood, "log_likelihood")):
        if not callable(function):
            raise TypeError(f"Target.from_data: {name} must be a function, got {function!r:.80}.")
    if (dim is None) == (parameters is None):
        raise ValueError(
            "Target.from_data: give dim=, the length of the vector that log_prior and log_likelihood take, or "
            "parameters=, as for Target.from_parameters."
        )
    own = _checked(data)
    rows = _rows(own)
    numbers = max(1, sum(leaf.size for leaf in jax.tree.leaves(own)) // rows)
    at_once = _NUMBERS_A_CHUNK if jax.default_backend() == "cpu" else _ON_A_GPU
    size = max(1, at_once // numbers) if chunk is None else positive_integer(chunk, "chunk", "from_data")
    unflatten = None if parameters is None else Unflatten(parameters)
    return OnData(with_own_arrays(log_prior), with_own_arrays(log_likelihood), own, min(size, rows), unflatten)


def with_data(density: OnData, args: tuple, new: dict[str, Any]) -> OnData:
    """The same with other data: all of them, or some by name."""
    if isinstance(density.data, dict) and not args:
        unknown = [name for name in new if name not in density.data]
        if unknown:
            raise ValueError(f"update: the data have no {unknown[0]!r}; they have {', '.join(density.data)}.")
        data = _checked({**density.data, **new})
    elif len(args) == 1 and not new:
        data = _checked(args[0])
    else:
        raise ValueError("update: give the new data, as Target.from_data took them.")
    return OnData(density.log_prior, density.log_likelihood, data, min(density.chunk, _rows(data)), density.unflatten)
