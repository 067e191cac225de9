"""The Stein operator P f = s f + grad f, the Stein residual of a feature map, and the Stein kernel.

Stein's identity E_p[P f] = 0 is all that the library uses of a target. Batching over points happens here and in `svgd`.
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from steinmatch._checks import as_particles, as_weights, check_kind, whole_seed
from steinmatch._linalg import normalised, squared_distances
from steinmatch._types import ArrayLike, Scalar, Vector, float64, plain
from steinmatch.kernels import AbstractKernel, AbstractRadialKernel, Scaled, Sum, Whitened
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


def features_at(kernel: AbstractKernel, particles: Float[Array, "n d"]) -> Float[Array, "n m"]:
    """Phi = [phi_l(x_i)], one row a particle."""
    return jax.vmap(kernel.phi)(particles)


compiled_features_at = eqx.filter_jit(features_at)
compiled_scores_at = eqx.filter_jit(scores_at)


@eqx.filter_jit
def compiled_images_at(
    target: AbstractTarget, kernel: AbstractKernel, points: Float[Array, "n d"]
) -> Float[Array, "n m d"]:
    """(P phi_l)(x_i), scores included."""
    return images_at(kernel, points, scores_at(target, points))


def residual_at(
    kernel: AbstractKernel,
    particles: Float[Array, "n d"],
    scores: Float[Array, "n d"],
    weights: Float[Array, " n"],
) -> Float[Array, "m d"]:
    """G_l = sum_i w_i (P phi_l)(x_i) = (Phi^T W S + sum_i w_i grad phi(x_i)), in O(n m d) time."""
    features = features_at(kernel, particles)
    return features.T @ (weights[:, None] * scores) + kernel.mean_gradient(particles, weights)


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


def stein_kernel(kernel: AbstractKernel, x: Vector, score_x: Vector, y: Vector, score_y: Vector) -> Float[Array, ""]:
    """kappa_p(x, y) = s_x.s_y k + s_x.grad_y k + s_y.grad_x k + tr grad_x grad_y k, by autodiff of any kernel."""
    value = kernel(x, y)
    grad_x, grad_y = jax.grad(kernel, argnums=(0, 1))(x, y)
    mixed = jax.jacfwd(jax.grad(kernel, argnums=0), argnums=1)(x, y)
    return score_x @ score_y * value + score_x @ grad_y + score_y @ grad_x + jnp.trace(mixed)


def stein_kernel_matrix(
    kernel: AbstractKernel,
    x: Float[Array, "n d"],
    scores_x: Float[Array, "n d"],
    y: Float[Array, "k d"],
    scores_y: Float[Array, "k d"],
) -> Float[Array, "n k"]:
    """[kappa_p(x_i, y_j)] for a held kernel: closed forms for radial kernels and features, autodiff otherwise."""
    match kernel:
        case Sum():
            return sum(  # type: ignore[return-value]
                (stein_kernel_matrix(term, x, scores_x, y, scores_y) for term in kernel.terms),
                start=jnp.zeros((x.shape[0], y.shape[0])),
            )
        case Scaled():
            return kernel.factor * stein_kernel_matrix(kernel.kernel, x, scores_x, y, scores_y)
        case Whitened():
            # In coordinates z the score is L^T s; kappa is a function of the whitened pair up to L^{-1} L^{-T}, which
            # is not the identity, so autodiff takes it as it stands.
            return _autodiff_matrix(kernel, x, scores_x, y, scores_y)
        case AbstractRadialKernel():
            return _radial_matrix(kernel, x, scores_x, y, scores_y)
        case _ if kernel.n_features(x.shape[1]) is not None:
            images_x, images_y = (images_at(kernel, points, s) for points, s in ((x, scores_x), (y, scores_y)))
            weighted = images_x * kernel.feature_weights(x.shape[1])[None, :, None]
            return jnp.einsum("nmd,kmd->nk", weighted, images_y)
        case _:
            return _autodiff_matrix(kernel, x, scores_x, y, scores_y)


def images_at(
    kernel: AbstractKernel, points: Float[Array, "n d"], scores: Float[Array, "n d"]
) -> Float[Array, "n m d"]:
    """(P phi_l)(x_i) for all particles and features."""
    return jax.vmap(lambda x, s: kernel.phi(x)[:, None] * s[None, :] + jax.jacfwd(kernel.phi)(x))(points, scores)


def _autodiff_matrix(kernel: AbstractKernel, x: Array, scores_x: Array, y: Array, scores_y: Array) -> Array:
    row = jax.vmap(partial(stein_kernel, kernel), in_axes=(None, None, 0, 0))
    return jax.vmap(row, in_axes=(0, 0, None, None))(x, scores_x, y, scores_y)


def _radial_matrix(
    kernel: AbstractRadialKernel, x: Array, scores_x: Array, y: Array, scores_y: Array
) -> Float[Array, "n k"]:
    """With k = g(r), r = |x - y|^2: s_x.s_y g + 2 g' (s_y - s_x).(x - y) - 2 d g' - 4 r g''."""
    centre = jnp.mean(y, axis=0)[None, :]
    x, y = x - centre, y - centre
    g, first, second = kernel.profiles(squared_distances(x, y))
    drift = x @ scores_y.T + scores_x @ y.T
    drift = drift - jnp.sum(x * scores_x, axis=1)[:, None] - jnp.sum(y * scores_y, axis=1)[None, :]
    return (scores_x @ scores_y.T) * g + 2.0 * first * (drift - x.shape[1]) - 4.0 * second


def held_bandwidth(kernel: AbstractKernel) -> Scalar:
    """The first bandwidth of a held kernel, nan for a kernel without one."""
    match kernel:
        case Sum():
            found = [held_bandwidth(term) for term in kernel.terms]
            return next((h for h in found if not (isinstance(h, float) and np.isnan(h))), float("nan"))
        case Scaled() | Whitened():
            return held_bandwidth(kernel.kernel)
        case _:
            rule = getattr(kernel, "bandwidth", None)
            return getattr(rule, "bandwidth", float("nan"))
