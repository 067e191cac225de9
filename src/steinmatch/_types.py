"""Array aliases and the precision rule: float64 inside, the user's JAX setting restored after."""

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

import jax
import numpy as np
from jax.core import Tracer
from jaxtyping import Array, Float

from steinmatch._faults import cause_of

__all__ = ["ArrayLike", "Numbers", "Scalar", "Vector", "as_numpy", "float64", "plain"]

ArrayLike = Any
if TYPE_CHECKING:  # JAX arrays, NumPy arrays and floats alike; at run time the tests check kind and shape
    Scalar = Any
    Vector = Any
    Numbers = Any
else:
    Numbers = Array | np.ndarray  # of functions for either
    Scalar = Float[Array, ""] | Float[np.ndarray, ""] | float
    Vector = Float[Array, " d"] | Float[np.ndarray, " d"]

P = ParamSpec("P")
T = TypeVar("T")


def float64(function: Callable[P, T]) -> Callable[P, T]:
    """Run `function` with JAX in float64, whatever the user's setting, which is restored after."""

    @functools.wraps(function)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> T:
        with jax.enable_x64(True):
            try:
                return function(*args, **kwargs)
            except (jax.errors.JaxRuntimeError, ValueError) as error:
                cause = cause_of(error)
                if cause is error:
                    raise
                raise cause from None

    return wrapped


@contextlib.contextmanager
def as_numpy() -> Iterator[None]:
    """JAX with NumPy's rules for ranks and types, whatever the user's, for functions that are written for either."""
    with jax.numpy_rank_promotion("allow"), jax.numpy_dtype_promotion("standard"):
        yield


def plain(tree: Any) -> Any:
    """JAX arrays of a result as NumPy arrays, which keep float64 outside of this library; tracers stay."""

    def convert(leaf: Any) -> Any:
        if isinstance(leaf, jax.Array) and not isinstance(leaf, Tracer):
            return np.asarray(leaf)
        return leaf

    return jax.tree.map(convert, tree)
