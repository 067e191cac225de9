"""What users read of a target: its parameters on their own (constrained) scale, by name."""

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from steinmatch._types import float64
from steinmatch.targets.base import AbstractTarget, SavedTarget, indexed, path_name
from steinmatch.targets.compiled import compiled


class ByName(dict[str, np.ndarray]):
    """Numbers of parameters by name. `numpy.asarray` of it is one vector, in the order of `target.names`, of which
    integers and slices are the entries.
    """

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return np.concatenate([np.ravel(value) for value in self.values()]).astype(dtype or np.float64)

    def __getitem__(self, name: Any) -> np.ndarray:
        if not isinstance(name, str):
            return np.asarray(self)[name]
        if name not in self:
            raise KeyError(f"there is no parameter {name!r}; there are {', '.join(self)}")
        return super().__getitem__(name)


@compiled
def _constrained(constrain: Callable, particles: Float[Array, "n d"]) -> Any:
    return jax.vmap(constrain)(particles)


@float64
def constrained_tree(target: AbstractTarget, particles: Float[np.ndarray, "n d"]) -> Any:
    """What `constrain` gives for every particle, with a leading axis; the particles themselves without one."""
    if isinstance(target, SavedTarget):
        return dict(by_name(target, target.values)) if target.by_name else target.values
    if target.constrain is None:
        return np.asarray(particles)
    return _constrained(target.constrain, jnp.asarray(particles))


def constrained_values(
    target: AbstractTarget, particles: Float[np.ndarray, "n d"]
) -> tuple[tuple[str, ...], Float[np.ndarray, "n k"]]:
    """Names and values of what the user reads: `constrain` of every particle, or the coordinates themselves."""
    n, d = particles.shape
    if isinstance(target, SavedTarget):
        return target.names or (), target.values
    if target.constrain is None:
        return target.names or indexed("x", (d,)), np.asarray(particles)
    columns, names = [], []
    for path, leaf in jax.tree_util.tree_leaves_with_path(constrained_tree(target, particles)):
        columns.append(np.asarray(leaf, np.float64).reshape(n, -1))
        names += indexed(path_name(path), leaf.shape[1:])
    values = np.concatenate(columns, axis=1)
    if target.names is not None and len(target.names) == values.shape[1]:
        names = target.names
    return tuple(names), values


def _shape_tree(constrain: Callable, dim: int) -> Any:
    with jax.enable_x64(True):
        return jax.eval_shape(constrain, jax.ShapeDtypeStruct((dim,), jnp.float64))


def shapes_of(target: AbstractTarget) -> dict[str, tuple[int, ...]]:
    """The constrained variables' shapes, by name."""
    if isinstance(target, SavedTarget):
        return target.shapes
    if target.constrain is None:
        unnamed = target.names is None or target.names == indexed("x", (target.dim,))
        return {"x": (target.dim,)} if unnamed else {name: () for name in target.names or ()}
    tree = _shape_tree(target.constrain, target.dim)
    return {path_name(path): tuple(leaf.shape) for path, leaf in jax.tree_util.tree_leaves_with_path(tree)}


def is_named(target: AbstractTarget) -> bool:
    """Whether the target's values are a dict by name, or one vector."""
    if isinstance(target, SavedTarget):
        return target.by_name
    if target.constrain is None:
        return False
    tree = _shape_tree(target.constrain, target.dim)
    return isinstance(tree, Mapping) or len(jax.tree.leaves(tree)) > 1


def by_name(target: AbstractTarget, values: Float[np.ndarray, "... k"]) -> ByName:
    """Constrained values, side by side on the last axis, as a dict of arrays by variable."""
    found, start = ByName(), 0
    for name, shape in shapes_of(target).items():
        size = int(np.prod(shape))
        found[name] = values[..., start : start + size].reshape((*values.shape[:-1], *shape))
        start += size
    return found


def in_form(target: AbstractTarget, values: Float[np.ndarray, "... k"]) -> ByName | np.ndarray:
    """As the target's `constrain` has them: by name, or one vector."""
    return by_name(target, values) if is_named(target) else values


def variables(target: AbstractTarget, particles: Float[np.ndarray, "n d"]) -> ByName:
    """The constrained values by variable, (n, *shape) each."""
    return by_name(target, constrained_values(target, particles)[1])
