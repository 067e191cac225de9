"""Array aliases and the precision rule: float64 inside, the user's JAX setting restored after."""

import functools
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

import jax
import numpy as np
from jaxtyping import Array, Float

__all__ = ["ArrayLike", "Particles", "Residual", "Scalar", "Vector", "Weights", "float64", "plain"]

ArrayLike = Any
Scalar = Float[Array, ""] | Float[np.ndarray, ""] | float
Vector = Float[Array, " d"] | Float[np.ndarray, " d"]
Particles = Float[Array, "n d"] | Float[np.ndarray, "n d"]
Residual = Float[Array, "m d"] | Float[np.ndarray, "m d"]
Weights = Float[Array, " n"] | Float[np.ndarray, " n"] | None

P = ParamSpec("P")
T = TypeVar("T")


def float64(function: Callable[P, T]) -> Callable[P, T]:
    """Run `function` with JAX in float64, whatever the user's setting, which is restored after."""

    @functools.wraps(function)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> T:
        with jax.enable_x64(True):
            return function(*args, **kwargs)

    return wrapped


def plain(tree: Any) -> Any:
    """JAX arrays of a result as NumPy arrays, which keep float64 outside of this library; tracers stay."""

    def convert(leaf: Any) -> Any:
        if isinstance(leaf, jax.Array) and not isinstance(leaf, jax.core.Tracer):
            return np.asarray(leaf)
        return leaf

    return jax.tree.map(convert, tree)
