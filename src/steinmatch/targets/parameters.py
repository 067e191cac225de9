"""Targets over a dict of named, constrained parameters; the maps to the unconstrained space are NumPyro's bijectors."""

import dataclasses
import math
from collections.abc import Callable, Mapping
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array
from numpyro.distributions import constraints
from numpyro.distributions.transforms import biject_to

from steinmatch._checks import positive_integer
from steinmatch._types import Scalar, Vector

Shape = tuple[int, ...]


@dataclasses.dataclass(frozen=True)
class Parameter:
    """A constraint and a shape. Calling it gives the same constraint with another shape: `positive(8)`."""

    constraint: Any
    shape: Shape = ()  # of the constrained value

    def __call__(self, *shape: int) -> "Parameter":
        return dataclasses.replace(self, shape=tuple(shape))


real = Parameter(constraints.real)
positive = Parameter(constraints.positive)


def interval(low: float, high: float) -> Parameter:
    """Between two numbers; `interval(0, 1)(8)` for eight of them."""
    try:
        low, high = float(low), float(high)
    except (TypeError, ValueError):
        low = high = float("nan")
    if not low < high or not math.isfinite(high - low):
        raise ValueError(f"interval: give two finite numbers, the lower one first; got {low!r:.80} and {high!r:.80}.")
    return Parameter(constraints.interval(low, high))


def ordered(n: int) -> Parameter:
    """An increasing vector."""
    return Parameter(constraints.ordered_vector, (positive_integer(n, "n", "ordered"),))


def simplex(n: int) -> Parameter:
    """n positive numbers that sum to one."""
    return Parameter(constraints.simplex, (positive_integer(n, "n", "simplex"),))


def cholesky_corr(n: int) -> Parameter:
    """The Cholesky factor of an n x n correlation matrix."""
    size = positive_integer(n, "n", "cholesky_corr")
    return Parameter(constraints.corr_cholesky, (size, size))


class Unflatten:
    """x in R^d as the dict of constrained parameters, and the log determinant of that map."""

    def __init__(self, parameters: Mapping[str, Any]):
        if not isinstance(parameters, Mapping) or not all(isinstance(name, str) for name in parameters):
            raise TypeError(
                "Target.from_parameters: give parameters by name, a dict such as {'mu': (), 'tau': sm.positive}; "
                f"got {parameters!r:.80}."
            )
        if not parameters:
            raise ValueError("Target.from_parameters: give at least one parameter, such as {'mu': ()}.")
        self.parts: list[tuple[str, Any, Shape, int]] = []
        self.specs: list[tuple[str, Any, Shape]] = []
        for name, spec in parameters.items():
            if isinstance(spec, tuple | int):
                spec = real(*((spec,) if isinstance(spec, int) else spec))
            if not isinstance(spec, Parameter):
                raise TypeError(
                    f"Target.from_parameters: {name!r} must be a shape such as () or (8,), or a constraint such as "
                    f"steinmatch.positive; got {spec!r:.80}."
                )
            self.specs.append((name, spec.constraint, spec.shape))
            if not all(isinstance(size, int) and size >= 1 for size in spec.shape):
                raise ValueError(
                    f"Target.from_parameters: the shape of {name!r} must be whole numbers, got {spec.shape}."
                )
            bijector = biject_to(spec.constraint)
            free = bijector.inverse_shape(spec.shape)
            self.parts.append((name, bijector, free, math.prod(free)))
        self.dim = sum(size for *_, size in self.parts)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Unflatten) and self.specs == other.specs

    def __hash__(self) -> int:
        return hash(tuple((name, shape) for name, _, shape in self.specs))

    def __call__(self, x: Vector) -> tuple[dict[str, Array], Scalar]:
        values, log_det, start = {}, jnp.zeros((), x.dtype), 0
        for name, bijector, shape, size in self.parts:
            free = jax.lax.slice(x, (start,), (start + size,)).reshape(shape)
            value = bijector(free)
            log_det = log_det + jnp.sum(bijector.log_abs_det_jacobian(free, value))
            values[name], start = value, start + size
        return values, log_det

    def inverse(self, values: dict[str, np.ndarray]) -> np.ndarray:
        """Unconstrained points (n, d) of constrained values (n, *shape)."""
        with jax.enable_x64(True):
            free = [
                np.asarray(jax.vmap(bijector.inv)(jnp.asarray(values[name], jnp.float64)))
                for name, bijector, _, _ in self.parts
            ]
        return np.concatenate([part.reshape(len(part), -1) for part in free], axis=1)


class OnParameters(eqx.Module):
    """A log density of named parameters, on the unconstrained space."""

    log_density: Callable[[dict[str, Array]], Scalar]
    unflatten: Unflatten = eqx.field(static=True)

    def __call__(self, x: Vector) -> Scalar:
        values, log_det = self.unflatten(x)
        return jnp.asarray(self.log_density(values), x.dtype) + log_det


class Constrained(eqx.Module):
    """The dict of constrained parameters."""

    unflatten: Unflatten = eqx.field(static=True)

    def __call__(self, x: Vector) -> dict[str, Array]:
        return self.unflatten(x)[0]
