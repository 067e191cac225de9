"""Targets of much data: log p(x) = log prior(x) + sum over rows of their log likelihood, in chunks of bounded memory.

The data are arguments of the compiled code, not constants in it: other data of the same shape compile nothing, and XLA
does not fold them. Rows are sliced where they lie, chunk after chunk; the gradient takes each chunk again instead of
keeping what it computed (`jax.checkpoint`), so that memory grows with a chunk and not with the data.
"""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array

from steinmatch._types import Scalar, Vector

_NUMBERS_A_CHUNK = 2**21  # 16 MiB in double precision
_ON_A_GPU = 2**26  # small chunks leave it idle


class OnData(eqx.Module):
    """The log density of a prior and of rows of data; x is handed on as a vector, or as named parameters."""

    log_prior: Callable
    log_likelihood: Callable
    data: Any  # arrays (rows, ...)
    chunk: int = eqx.field(static=True)
    unflatten: Callable | None = eqx.field(static=True)
    dtype: str = eqx.field(static=True)  # of the likelihood within a chunk; chunks are added up in double precision

    def __call__(self, x: Vector) -> Scalar:
        return self.prior(x) + self.likelihood(x)

    def prior(self, x: Vector) -> Scalar:
        params, log_det = (x, jnp.zeros(())) if self.unflatten is None else self.unflatten(x)
        return jnp.asarray(self.log_prior(params), x.dtype) + log_det

    def likelihood(self, x: Vector) -> Scalar:
        params = jax.tree.map(self._cast, x if self.unflatten is None else self.unflatten(x)[0])
        rows = rows_of(self.data)
        whole = rows // self.chunk

        def of(some: Any) -> Scalar:
            values = self.log_likelihood(params, jax.tree.map(self._cast, some))
            return jnp.sum(jnp.asarray(values, x.dtype))

        @jax.checkpoint
        def added(total: Scalar, i: Array) -> tuple[Scalar, None]:
            some = jax.tree.map(lambda leaf: jax.lax.dynamic_slice_in_dim(leaf, i * self.chunk, self.chunk), self.data)
            return total + of(some), None

        if whole <= 1 and rows == self.chunk:
            return of(self.data)
        total, _ = jax.lax.scan(added, jnp.zeros((), x.dtype), jnp.arange(whole))
        if rows > whole * self.chunk:
            total = total + of(jax.tree.map(lambda leaf: leaf[whole * self.chunk :], self.data))
        return total

    def _cast(self, leaf: Array) -> Array:
        return leaf.astype(self.dtype) if jnp.issubdtype(leaf.dtype, jnp.floating) else leaf


def rows_of(data: Any) -> int:
    return jax.tree.leaves(data)[0].shape[0]


def at_once(numbers: int) -> int:
    """Rows of a chunk, of so many numbers each."""
    return max(1, (_NUMBERS_A_CHUNK if jax.default_backend() == "cpu" else _ON_A_GPU) // numbers)
