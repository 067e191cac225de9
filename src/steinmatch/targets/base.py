"""A target: a density p on R^d known up to a constant, through log p or its score s(x) = grad log p(x)."""

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float

from steinmatch._checks import check_kind, check_size, positive_integer
from steinmatch._types import Scalar, Vector, float64
from steinmatch.targets.closures import with_own_arrays
from steinmatch.targets.host import on_host

Arrays = dict[str, np.ndarray]

# What JAX raises when a function asks a traced value for its number, as NumPy and SciPy functions do.
_NOT_TRACEABLE = (jax.errors.TracerArrayConversionError, jax.errors.ConcretizationTypeError)


class AbstractTarget(eqx.Module):
    """What the library needs of a target: `dim`, `score`, and, where there is one, `log_density`."""

    dim: eqx.AbstractVar[int]
    names: eqx.AbstractVar[tuple[str, ...] | None]  # of what users read; None for targets of the library's own making
    constrain: eqx.AbstractVar[Callable | None]
    differentiable: eqx.AbstractVar[bool]  # whether JAX can differentiate the score
    log_density: eqx.AbstractVar[Callable | None]
    score: eqx.AbstractVar[Callable]


class Gradient(eqx.Module):
    """grad f, equal for equal f, so that two targets of one function share their compiled code."""

    function: Callable

    def __call__(self, x: Vector) -> Vector:
        return jax.grad(self.function)(x)


class _Callback(eqx.Module):
    """A function that JAX cannot trace (NumPy, a compiled library), called on the host, one point at a time."""

    function: Callable
    shape: tuple[int, ...] = eqx.field(static=True)
    name: str = eqx.field(static=True)

    def __call__(self, x: Vector) -> Array:
        return on_host(lambda point: (self.function(point),), (self.shape,), x, name=self.name)[0]


class ModelInfo:
    """What a front end knows beyond the density.

    **Arguments:**

    - `dims`, `coords`: for ArviZ.
    - `predict`: (x, values, seed, data) -> predictions by name; x are unconstrained points (n, d), values the same by
      name on the model's own scale, (n, *shape) each, data what is new, by name.
    - `unconstrain`: values -> x.
    - `log_likelihood`: (x, values) -> that of the observations.
    - `observed`, `constant`: the data.
    - `prior`: (n, seed) -> draws of the prior, and of the observations under it.
    - `renewed`: (args, data) -> the same model's target with other data.
    """

    def __init__(
        self,
        dims: Mapping[str, Sequence[str]] | None = None,
        coords: Mapping[str, Sequence] | None = None,
        predict: Callable[[np.ndarray, Arrays, int, dict[str, Any]], Arrays] | None = None,
        unconstrain: Callable[[Arrays], np.ndarray] | None = None,
        log_likelihood: Callable[[np.ndarray, Arrays], Arrays] | None = None,
        observed: Mapping[str, Any] | None = None,
        constant: Mapping[str, Any] | None = None,
        prior: Callable[[int, int], Arrays] | None = None,
        renewed: Callable[[tuple, dict[str, Any]], "Target"] | None = None,
    ):
        self.dims, self.coords = dict(dims or {}), dict(coords or {})
        self.predict, self.unconstrain, self.log_likelihood = predict, unconstrain, log_likelihood
        self.observed, self.constant = dict(observed or {}), dict(constant or {})
        self.prior, self.renewed = prior, renewed

    # No part of what is compiled: targets that differ in this alone share their compiled code.
    def __eq__(self, other: object) -> bool:
        return isinstance(other, ModelInfo)

    def __hash__(self) -> int:
        return 0


MISSING = "this fit was loaded without its target: give it, steinmatch.load(path, target=target)."


class SavedTarget(AbstractTarget):
    """The target of a fit that was loaded from a file without its model: tables and pictures, no new densities."""

    dim: int = eqx.field(static=True)
    names: tuple[str, ...] | None = eqx.field(static=True)
    values: np.ndarray  # (n, k), the constrained values of the saved particles
    shapes: dict = eqx.field(static=True)  # of the constrained variables
    by_name: bool = eqx.field(static=True)  # whether they are a dict, or one vector
    differentiable: bool = eqx.field(static=True, default=False)
    constrain: Callable | None = None
    log_density: Callable | None = None
    info: ModelInfo | None = eqx.field(static=True, default=None)

    def score(self, x: Vector) -> Vector:
        raise ValueError(MISSING)


class Target(AbstractTarget):
    """A target from the user's functions of one point x of shape (dim,).

    **Arguments:**

    - `log_density`: x -> log p(x) up to a constant. Its gradient is taken by JAX.
    - `score`: x -> grad log p(x), shape (dim,). Enough by itself. It may be a function that JAX cannot
      differentiate (a callback) or not even trace (plain NumPy); `differentiable` is then False and the solvers use
      differences of the score where they need its Jacobian.
    - `dim`: the dimension d.
    - `names`: names of the parameters: of the d coordinates or, with `constrain`, of its outputs.
    - `info`: what a front end adds, such as coordinates for ArviZ.
    - `constrain`: x -> the quantities that the user reads, a vector or a dict of arrays; tables are made of these.
    """

    log_density: Callable | None
    score: Callable
    constrain: Callable | None
    dim: int = eqx.field(static=True)
    names: tuple[str, ...] = eqx.field(static=True)
    differentiable: bool = eqx.field(static=True)
    info: ModelInfo | None = eqx.field(static=True)

    @float64
    def __init__(
        self,
        log_density: Callable[[Vector], Scalar] | None = None,
        *,
        score: Callable[[Vector], Vector] | None = None,
        dim: int,
        names: Sequence[str] | None = None,
        constrain: Callable[[Vector], Any] | None = None,
        info: ModelInfo | None = None,
    ):
        self.info = info
        self.dim = positive_integer(dim, "dim", "Target")
        check_size(64, self.dim, "Target")
        for function, name in ((log_density, "log_density"), (score, "score"), (constrain, "constrain")):
            if function is not None and not callable(function):
                raise TypeError(f"Target: {name} must be a function of one point, got {function!r:.80}.")
        if log_density is None and score is None:
            raise ValueError("Target: a target needs a gradient: give log_density (JAX takes its gradient) or score.")
        if log_density is not None:
            log_density = _apart(log_density, "log_density", (), self.dim)
        if score is not None:
            score = _apart(score, "score", (self.dim,), self.dim)
        constrain = with_own_arrays(constrain)
        variables = {} if constrain is None else _variables(constrain, self.dim)
        traced_density = None if log_density is None else _traceable(log_density, "log_density", (), self.dim)
        if score is None:
            if isinstance(traced_density, _Callback):
                raise ValueError(
                    "Target: a target without a gradient: JAX cannot trace log_density (it calls NumPy or reads "
                    "values), so it cannot differentiate it. Write it with jax.numpy, or also give score=."
                )
            score = Gradient(log_density)  # type: ignore[arg-type]
            _shape_of(score, "the gradient of log_density", (self.dim,), self.dim)
        self.log_density = traced_density
        self.score = _traceable(score, "score", (self.dim,), self.dim)
        self.differentiable = _has_jvp(self.score, self.dim)
        self.constrain = constrain
        n_names = self.dim if constrain is None else sum(int(np.prod(shape)) for shape in variables.values())
        if constrain is None:
            variables = {"x": (self.dim,)}
        own = [name for base, shape in variables.items() for name in indexed(base, shape)]
        self.names = tuple(own if names is None else map(str, names))
        for name in (*variables, *self.names):
            _check_name(name)
        if len(self.names) not in (self.dim, n_names):
            raise ValueError(
                f"Target: {len(self.names)} names were given for dim={self.dim}"
                + ("." if constrain is None else f" and {n_names} constrained values.")
            )
        if len(set(self.names)) != len(self.names):
            raise ValueError(f"Target: names must differ from each other, got {list(self.names)}.")

    @staticmethod
    @float64
    def from_parameters(
        parameters: Mapping[str, Any], log_density: Callable[[dict[str, Array]], Scalar], info: ModelInfo | None = None
    ) -> "Target":
        """A target over named parameters with constraints: `log_density` takes a dict of their constrained values.

            Target.from_parameters({"mu": (), "tau": sm.positive, "theta": (8,)}, log_density)

        A value is a shape (real numbers), or `real`, `positive`, `interval(a, b)` (called with a shape, if any),
        `ordered(n)`, `simplex(n)`, `cholesky_corr(n)`. The log determinants of the maps to the unconstrained space are
        added.
        """
        from steinmatch.targets.parameters import Constrained, OnParameters, Unflatten

        unflatten = Unflatten(parameters)
        info = ModelInfo(unconstrain=unflatten.inverse) if info is None else info
        info.unconstrain = info.unconstrain or unflatten.inverse
        density = OnParameters(log_density, unflatten)
        return Target(density, dim=unflatten.dim, constrain=Constrained(unflatten), info=info)

    @staticmethod
    @float64
    def from_pytree(log_density: Callable[[Any], Scalar], example: Any) -> "Target":
        """A target over any tree of unconstrained parameters (BlackJAX, Flax, ...), such as `example`.

        Target.from_pytree(log_density, {"w": jnp.zeros((3, 2)), "b": jnp.zeros(2)})
        """
        leaves = jax.tree.leaves(example)
        if not callable(log_density) or not leaves:
            raise TypeError(
                "Target.from_pytree: give a function of a tree of arrays, and an example of such a tree; got "
                f"{log_density!r:.80} and {example!r:.80}."
            )
        try:
            floats = jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.float64), example)
        except (TypeError, ValueError) as error:
            raise TypeError(f"Target.from_pytree: the example must be a tree of real arrays: {error}.") from error
        start, unravel = ravel_pytree(floats)
        info = ModelInfo(unconstrain=lambda values: _flattened(floats, values))
        return Target(_OnTree(log_density, unravel), dim=start.size, constrain=unravel, info=info)

    @staticmethod
    @float64
    def from_data(
        log_prior: Callable[[Any], Scalar],
        log_likelihood: Callable[[Any, Any], Any],
        data: Any,
        chunk: int | None = None,
        *,
        dim: int | None = None,
        parameters: Mapping[str, Any] | None = None,
        names: Sequence[str] | None = None,
        constrain: Callable[[Vector], Any] | None = None,
        dtype: Any = "float64",
    ) -> "Target":
        """A target of much data: log p(x) = log_prior(x) + sum of log_likelihood(x, rows), in chunks of rows.

            Target.from_data(log_prior, log_likelihood, {"X": X, "y": y}, dim=50)

        **Arguments:**

        - `log_prior`: x -> log of the prior's density.
        - `log_likelihood`: (x, rows) -> that of these rows: their sum, or one number a row.
        - `data`: an array, or a tree of arrays (memory maps too), with one row an observation; or the path of a Parquet
          or Arrow file, or a list of such, whose rows are a dict of columns. Single precision stays so in memory.
        - `chunk`: rows at a time; by default 16 MiB, and of files and maps, of which no more is in memory, 128 MiB.
        - `dim`: the length of x; or `parameters`, as for `from_parameters`: x is then a dict of their values.
        - `names`, `constrain`: as of `Target`.
        - `dtype`: "float32" computes the likelihood of each chunk in single precision; sums are double all the same.
        """
        from steinmatch.targets.large import density_of, with_data
        from steinmatch.targets.parameters import Constrained

        if parameters is not None and constrain is not None:
            raise ValueError("Target.from_data: parameters= have constraints of their own; leave constrain= out.")

        def made(density: Any) -> Target:
            named = density.unflatten
            info = ModelInfo(
                unconstrain=None if named is None else named.inverse,
                renewed=lambda args, new: made(with_data(density, args, new)),
            )
            shown, length = (constrain, dim) if named is None else (Constrained(named), named.dim)
            return Target(density, dim=length, names=names, constrain=shown, info=info)  # type: ignore[arg-type]

        return made(density_of(log_prior, log_likelihood, data, chunk, dim, parameters, dtype))


def _flattened(example: Any, values: Arrays) -> np.ndarray:
    """Values by name, (n, *shape) each, side by side in the order of a tree's leaves."""
    paths = [path_name(path) for path, _ in jax.tree_util.tree_leaves_with_path(example)]
    return np.concatenate([np.asarray(values[name]).reshape(len(values[name]), -1) for name in paths], axis=1)


class _OnTree(eqx.Module):
    """A function of a tree of parameters as one of a vector."""

    function: Callable
    unravel: Callable = eqx.field(static=True)

    def __call__(self, x: Vector) -> Any:
        return self.function(self.unravel(x))


def check_target(value: Any, place: str) -> None:
    """TypeError unless `value` is a target."""
    remedy = "a Target; for a log density write Target(log_density, dim=d)"
    if type(value).__module__.startswith("pymc"):
        remedy = "a Target; for a PyMC model write from_pymc(model)"
    elif callable(value) and not isinstance(value, type):
        remedy += ", for a NumPyro model from_numpyro(model, *args, **kwargs)"
    elif isinstance(value, str | os.PathLike):
        remedy = "a Target; for a Stan program write from_stan(program, data)"
    check_kind(value, AbstractTarget, "target", place, remedy)


def _point(dim: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct((dim,), jnp.float64)


def _apart(function: Callable, name: str, shape: tuple[int, ...], dim: int) -> Callable:
    """A function that JAX traces over copies of the arrays that it reads; one called on the host as it is."""
    own = with_own_arrays(function)
    if own is function or isinstance(_traceable(own, name, shape, dim), _Callback):
        return function
    return own


def _traceable(function: Callable, name: str, shape: tuple[int, ...], dim: int) -> Callable:
    """`function` itself if JAX can trace it, else a host callback; its output shape checked either way."""
    try:
        _shape_of(function, name, shape, dim)
    except _NOT_TRACEABLE:
        return _Callback(function, shape, name)
    return function


def _shape_of(function: Callable, name: str, shape: tuple[int, ...], dim: int) -> None:
    try:
        result = jax.eval_shape(function, _point(dim))
    except _NOT_TRACEABLE:
        raise
    except Exception as error:
        raise ValueError(
            f"Target: {name} failed on a point of shape ({dim},): {type(error).__name__}: {error}. "
            f"Check that dim={dim} is the length of the vector that it expects."
        ) from error
    found = getattr(result, "shape", None)
    if found != shape:
        wanted = "a scalar" if shape == () else f"a vector of shape {shape}"
        raise ValueError(
            f"Target: {name} must return {wanted} for a point of shape ({dim},), got "
            f"{'no array' if found is None else f'shape {found}'}. It is written for one point; "
            "the library batches it."
        )
    if not jnp.issubdtype(result.dtype, jnp.floating):
        raise ValueError(f"Target: {name} must return real floating point numbers, got {result.dtype}.")


def _has_jvp(score: Callable, dim: int) -> bool:
    try:
        jax.eval_shape(lambda x: jax.jvp(score, (x,), (x,))[1], _point(dim))
    except Exception:  # whatever a user's function raises here means: no derivative
        return False
    return True


def _variables(constrain: Callable, dim: int) -> dict[str, tuple[int, ...]]:
    """The shapes of what `constrain` gives, by name."""
    try:
        leaves = jax.tree_util.tree_leaves_with_path(jax.eval_shape(constrain, _point(dim)))
    except Exception as error:
        raise ValueError(
            f"Target: constrain failed on a point of shape ({dim},): {type(error).__name__}: {error}. It must return "
            "an array, or a dict of arrays, and be written with jax.numpy."
        ) from error
    found = {path_name(path): tuple(leaf.shape) for path, leaf in leaves}
    if not found or not all(jnp.issubdtype(leaf.dtype, jnp.number) or leaf.dtype == bool for _, leaf in leaves):
        raise ValueError("Target: constrain must return numbers, an array or a dict of arrays; got none.")
    if any(jnp.issubdtype(leaf.dtype, jnp.complexfloating) for _, leaf in leaves):
        raise ValueError("Target: constrain must return real numbers; got complex ones.")
    if len(found) < len(leaves):
        raise ValueError(f"Target: two of the values of constrain have the same name; there are {', '.join(found)}.")
    return found


def _check_name(name: str) -> None:
    """Names that tables, files or ArviZ cannot bear are refused at once, not after the fit."""
    if not name or name in ("chain", "draw") or any(ord(c) < 32 or 0xD800 <= ord(c) < 0xE000 for c in name):
        raise ValueError(
            f"Target: {name!r} cannot name a parameter: names are not empty, have no control characters or surrogates, "
            'and are not "chain" or "draw", which ArviZ uses; rename it.'
        )


def path_name(path: tuple) -> str:
    """The name of a leaf of what `constrain` gives."""
    return ".".join(str(getattr(entry, "key", getattr(entry, "idx", entry))) for entry in path) or "x"


def scores_at(target: AbstractTarget, particles: Float[Array, "n d"]) -> Float[Array, "n d"]:
    """s(x_i) for all particles."""
    return jax.vmap(target.score)(particles)


def indexed(base: str, shape: tuple[int, ...]) -> tuple[str, ...]:
    """The names of an array's entries."""
    return tuple(f"{base}[{', '.join(map(str, index))}]" if shape else base for index in np.ndindex(shape))
