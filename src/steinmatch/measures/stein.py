"""The Stein operator P f = s f + grad f, and the Stein residual of a feature map.

Stein's identity E_p[P f] = 0 is all that the library uses of a target.
"""

from collections.abc import Callable, Mapping
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from steinmatch._checks import as_particles, as_weights, check_kind, whole_seed
from steinmatch._linalg import normalised
from steinmatch._types import ArrayLike, Vector, float64, plain
from steinmatch.kernels import AbstractKernel
from steinmatch.kernels.forms import features_at, images_at, residual_at
from steinmatch.targets import AbstractTarget, check_target, scores_at


def bound_at(
    place: str,
    target: AbstractTarget,
    kernel: AbstractKernel,
    particles: ArrayLike,
    weights: ArrayLike | None,
    seed: int,
) -> tuple[Array, Any, AbstractKernel]:
    """What the public functions of a target, a kernel and particles begin with: all checked, the kernel bound."""
    check_target(target, place)
    check_kind(kernel, AbstractKernel, "kernel", place, "a kernel such as RBF() or Polynomial(2)")
    points = jnp.asarray(as_particles(particles, place, target.dim))
    key = jax.random.key(whole_seed(seed, place))
    return points, as_weights(weights, points.shape[0], place), kernel.bind(key, points)


def stein_operator(f: Callable[[Vector], Array], target: AbstractTarget) -> Callable[[Vector], Array]:
    """P f, the function x -> s(x) f(x) + grad f(x).

    Of shape (d,) for a scalar function f, and (m, d), one row a component, for a function with m of them.
    """

    def image(x: Vector) -> Array:
        value = jnp.asarray(f(x))
        return jnp.multiply.outer(value, target.score(x)) + jax.jacfwd(f)(x)

    return image


def values_at(f: Callable[[Any], Any], points: Any, place: str = "query") -> Float[np.ndarray, "n ..."]:
    """f at all points, an array or a tree of arrays with a leading axis; a function that JAX cannot trace is called
    point by point.
    """
    if not callable(f):
        raise TypeError(f"{place}: f must be a function of one point, got {f!r:.80}.")
    try:
        try:
            found = jax.vmap(f)(points)
        except (jax.errors.TracerArrayConversionError, jax.errors.ConcretizationTypeError):
            rows = len(jax.tree.leaves(points)[0])
            single = (jax.tree.map(lambda leaf, i=i: np.asarray(leaf)[i], points) for i in range(rows))
            found = np.stack([np.asarray(f(x)) for x in single])
        if found is None or np.iscomplexobj(found):
            raise TypeError("nothing" if found is None else "complex numbers")
        return np.asarray(found, np.float64)
    except Exception as error:
        raise ValueError(
            f"{place}: f must return a number or an array of numbers, of one shape, for {_in_words(points)}; it gave "
            f"{type(error).__name__}: {str(error)[:200]}"
        ) from error


def _in_words(points: Any) -> str:
    if isinstance(points, Mapping):
        return f"a point, a dict of {', '.join(map(str, points))}"
    return f"a point of shape ({', '.join(map(str, np.shape(points)[1:]))},)"


compiled_features_at = eqx.filter_jit(features_at)
compiled_scores_at = eqx.filter_jit(scores_at)


@eqx.filter_jit
def compiled_images_at(
    target: AbstractTarget, kernel: AbstractKernel, points: Float[Array, "n d"]
) -> Float[Array, "n m d"]:
    """(P phi_l)(x_i), scores included."""
    return images_at(kernel, points, scores_at(target, points))


@float64
def stein_residual(
    target: AbstractTarget,
    kernel: AbstractKernel,
    particles: ArrayLike,
    weights: ArrayLike | None = None,
    seed: int = 0,
) -> Float[np.ndarray, "m d"] | Float[Array, "m d"]:
    """The Stein residual G of a feature kernel, G_l = (1/n) sum_i (P phi_l)(x_i), shape (m, d).

    Zero for every l exactly when the particles match all of span{P phi_l} (Theorem 3.2). Rows are those of the features
    without their kernel weights. An unbound kernel is bound with `seed`; bandwidth rules are taken at the particles.
    """
    particles, weights, bound = bound_at("stein_residual", target, kernel, particles, weights, seed)
    if bound.n_features(target.dim) is None:
        bound.phi(particles[0])  # raises, and says that the kernel has no features
    return plain(_residual(target, bound, particles, weights))


@eqx.filter_jit
def _residual(
    target: AbstractTarget, kernel: AbstractKernel, particles: Array, weights: Array | None
) -> Float[Array, "m d"]:
    scores = scores_at(target, particles)
    return residual_at(kernel.hold(particles), particles, scores, normalised(weights, particles.shape[0]))
