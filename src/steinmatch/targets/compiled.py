"""Compiled functions of a target that are given up again.

What `jax.jit` has compiled it keeps as long as the function lives, some 2 MB for a log density. A process that fits one
model after another would grow by that much each time. So functions of a target are compiled for each kind of target by
itself (other data of the same model are the same kind), and those not used for long are dropped.
"""

import functools
import weakref
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import numpy as np

_KEPT = 24  # compiled functions: several of each of the targets that are in use together
_COMPILED: OrderedDict[Hashable, Callable] = OrderedDict()


class _Split(NamedTuple):
    """A target's arrays, and all else of it: what is compiled into code."""

    arrays: list[Any]
    structure: Any  # of the arrays
    static: Any
    kind: Hashable


_SPLITS: dict[int, tuple[weakref.ref, _Split]] = {}


def is_array(leaf: Any) -> bool:
    return isinstance(leaf, jax.Array | np.ndarray | np.generic)


def _split(target: Any) -> _Split:
    """Of a target that has been seen before, which does not change, it is known: taking a model apart takes longer than
    many a gradient.
    """
    place = id(target)
    if place in _SPLITS and _SPLITS[place][0]() is target:
        return _SPLITS[place][1]
    dynamic, static = eqx.partition(target, is_array)
    arrays, structure = jax.tree.flatten(dynamic)
    rest, form = jax.tree.flatten(static)
    found = _Split(arrays, structure, static, (structure, form, tuple(rest)))
    if isinstance(target, eqx.Module):
        _SPLITS[place] = weakref.ref(target, lambda _: _SPLITS.pop(place, None)), found
    return found


def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """`function` of a target and arrays, with arrays as its results, compiled."""

    @functools.wraps(function)
    def call(target: Any, *args: Any) -> Any:
        arrays, structure, static, kind = _split(target)
        key = (function, kind)
        found = _COMPILED.get(key)
        if found is None:

            def run(arrays: list[Any], *args: Any) -> Any:  # keeps no arrays of this target
                return function(eqx.combine(jax.tree.unflatten(structure, arrays), static), *args)

            found = jax.jit(run)
            _COMPILED[key] = found
            while len(_COMPILED) > _KEPT:
                _COMPILED.popitem(last=False)
        _COMPILED.move_to_end(key)
        return found(arrays, *args)

    return call
