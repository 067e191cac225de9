"""Compiled functions of a target that are given up again.

What `jax.jit` has compiled it keeps as long as the function lives, some 2 MB for a log density. A process that fits one
model after another would grow by that much each time. So functions of a target are compiled for each kind of target by
itself (other data of the same model are the same kind), and those not used for long are dropped.
"""

import functools
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Any

import equinox as eqx
import jax
import numpy as np

_KEPT = 24  # compiled functions: several of each of the targets that are in use together
_COMPILED: OrderedDict[Hashable, Callable] = OrderedDict()


def _is_array(leaf: Any) -> bool:
    return isinstance(leaf, jax.Array | np.ndarray | np.generic)


def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """`function` of targets and arrays, with arrays as its results, compiled."""

    @functools.wraps(function)
    def call(*args: Any) -> Any:
        dynamic, static = eqx.partition(args, _is_array)
        leaves, structure = jax.tree.flatten(static)
        key = (function, structure, tuple(leaves))
        found = _COMPILED.get(key)
        if found is None:
            found = jax.jit(lambda arrays: function(*eqx.combine(arrays, static)))
            _COMPILED[key] = found
            while len(_COMPILED) > _KEPT:
                _COMPILED.popitem(last=False)
        _COMPILED.move_to_end(key)
        return found(dynamic)

    return call
