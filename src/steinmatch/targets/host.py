"""Functions that JAX cannot trace (NumPy, a compiled library), called on the host from compiled code."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from steinmatch._faults import TargetError, check_time, keep
from steinmatch._types import Vector


def _at(point: np.ndarray) -> str:
    text = np.array2string(np.atleast_2d(point)[0], precision=4, threshold=8)
    return f"at x = {text}" if point.ndim == 1 else f"at {len(point)} points, the first x = {text}"


def on_host(
    function: Callable[[np.ndarray], tuple[Any, ...]],
    shapes: tuple[tuple[int, ...], ...],
    x: Vector,
    many: bool = False,
    name: str = "the target's function",
) -> tuple[Array, ...]:
    """`function(x)`, a tuple of float64 arrays of these shapes; with `many` it takes leading axes of points.

    Numbers travel as pairs of 32-bit words: JAX hands callbacks to a thread of its own, where the user's precision
    rules and float64 would be cut to float32.
    """

    def call(words: Any) -> tuple[np.ndarray, ...]:
        point = np.ascontiguousarray(words, dtype=np.uint32).view(np.float64)[..., 0]
        check_time()
        try:
            values = function(point)
        except KeyboardInterrupt as error:
            raise keep(error) from None
        except BaseException as error:
            raise keep(TargetError(f"{name} raised {type(error).__name__}: {error}; {_at(point)}")) from error
        found = []
        for value, shape in zip(values, shapes, strict=True):
            try:
                array = np.asarray(value, dtype=np.float64).reshape((*point.shape[:-1], *shape))
            except (TypeError, ValueError) as error:
                what = f"{name} must return numbers of shape {shape}, it gave {value!r:.80}; {_at(point)}"
                raise keep(TargetError(what)) from error
            found.append(np.ascontiguousarray(array[..., None]).view(np.uint32))
        return tuple(found)

    results = tuple(jax.ShapeDtypeStruct((*shape, 2), jnp.uint32) for shape in shapes)
    method = "broadcast_all" if many else "sequential"

    @jax.custom_jvp
    def through_words(x: Vector) -> tuple[Array, ...]:
        words = jax.lax.bitcast_convert_type(jnp.asarray(x, jnp.float64), jnp.uint32)
        found = jax.pure_callback(call, results, words, vmap_method=method)
        return tuple(jax.lax.bitcast_convert_type(part, jnp.float64) for part in found)

    @through_words.defjvp
    def _(primals: tuple, tangents: tuple) -> tuple:  # JAX would take the words' derivative to be zero
        raise TypeError("a function that is called on the host has no derivative")

    return through_words(x)
