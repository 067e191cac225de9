"""What kernels answer about particles and their scores, in forms that suit any kernel: by autodiff, or from features.

    velocity      v(x_i) = sum_j w_j P_{x_j} k(x_j, x_i)
    Stein matrix  kappa_p(x, y) = s_x.s_y k + s_x.grad_y k + s_y.grad_x k + tr grad_x grad_y k
    pair sum      sum_ij w_i w_j kappa_p(x_i, x_j), the squared discrepancy
    residual      G_l = sum_i w_i (P phi_l)(x_i)

A kernel's own methods choose among them, or bring a closed form, which the tests compare with these.
"""

from functools import partial
from typing import Protocol, runtime_checkable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from steinmatch._linalg import map_row_blocks, rows_per_block
from steinmatch._types import Scalar, Vector


@runtime_checkable
class Kernel(Protocol):
    """What the forms ask of a kernel: to be a function of two points, or to have features."""

    def __call__(self, x: Vector, y: Vector) -> Scalar: ...

    def phi(self, x: Vector) -> Float[Array, " m"]: ...

    def feature_weights(self, dim: int) -> Float[Array, " m"]: ...

    def mean_gradient(self, particles: Float[Array, "n d"], weights: Float[Array, " n"]) -> Float[Array, "m d"]: ...

    def stein_matrix(
        self, x: Float[Array, "n d"], scores_x: Array, y: Float[Array, "k d"], scores_y: Array
    ) -> Float[Array, "n k"]: ...


def features_at(kernel: Kernel, particles: Float[Array, "n d"]) -> Float[Array, "n m"]:
    """Phi = [phi_l(x_i)], one row a particle."""
    return jax.vmap(kernel.phi)(particles)


def images_at(kernel: Kernel, points: Float[Array, "n d"], scores: Float[Array, "n d"]) -> Float[Array, "n m d"]:
    """(P phi_l)(x_i) for all particles and features."""
    return jax.vmap(lambda x, s: kernel.phi(x)[:, None] * s[None, :] + jax.jacfwd(kernel.phi)(x))(points, scores)


def residual_at(
    kernel: Kernel, particles: Float[Array, "n d"], scores: Float[Array, "n d"], weights: Float[Array, " n"]
) -> Float[Array, "m d"]:
    """G_l = sum_i w_i (P phi_l)(x_i) = (Phi^T W S + sum_i w_i grad phi(x_i)), in O(n m d) time."""
    features = features_at(kernel, particles)
    return features.T @ (weights[:, None] * scores) + kernel.mean_gradient(particles, weights)


def feature_velocity(
    kernel: Kernel, particles: Float[Array, "n d"], scores: Float[Array, "n d"], weights: Float[Array, " n"]
) -> Float[Array, "n d"]:
    """V = Phi diag(c) G: O(n m d) time and O(n (m + d)) memory, never an n x n matrix."""
    residual = residual_at(kernel, particles, scores, weights)
    factors = kernel.feature_weights(particles.shape[1]).astype(residual.dtype)
    return features_at(kernel, particles) @ (factors[:, None] * residual)


def direct_velocity(
    kernel: Kernel, particles: Float[Array, "n d"], scores: Float[Array, "n d"], weights: Float[Array, " n"]
) -> Float[Array, "n d"]:
    """The definition, v(x_i) = sum_j w_j [s_j k(x_j, x_i) + grad_{x_j} k(x_j, x_i)], by autodiff of the kernel."""

    def row(x: Vector) -> Vector:
        values, gradients = jax.vmap(lambda y: jax.value_and_grad(kernel)(y, x))(particles)
        return weights @ (values[:, None] * scores + gradients)

    n, d = particles.shape
    return map_row_blocks(jax.vmap(row), particles, rows=rows_per_block(n * d))


def stein_kernel(kernel: Kernel, x: Vector, score_x: Vector, y: Vector, score_y: Vector) -> Float[Array, ""]:
    """kappa_p(x, y), by autodiff of any kernel."""
    value = kernel(x, y)
    grad_x, grad_y = jax.grad(kernel, argnums=(0, 1))(x, y)
    mixed = jax.jacfwd(jax.grad(kernel, argnums=0), argnums=1)(x, y)
    return score_x @ score_y * value + score_x @ grad_y + score_y @ grad_x + jnp.trace(mixed)


def autodiff_stein_matrix(
    kernel: Kernel, x: Float[Array, "n d"], scores_x: Array, y: Float[Array, "k d"], scores_y: Array
) -> Float[Array, "n k"]:
    """[kappa_p(x_i, y_j)], pair by pair."""
    row = jax.vmap(partial(stein_kernel, kernel), in_axes=(None, None, 0, 0))
    return jax.vmap(row, in_axes=(0, 0, None, None))(x, scores_x, y, scores_y)


def feature_stein_matrix(
    kernel: Kernel, x: Float[Array, "n d"], scores_x: Array, y: Float[Array, "k d"], scores_y: Array
) -> Float[Array, "n k"]:
    """sum_l c_l (P phi_l)(x) . (P phi_l)(y)."""
    images_x, images_y = (images_at(kernel, points, s) for points, s in ((x, scores_x), (y, scores_y)))
    return jnp.einsum("nmd,kmd->nk", images_x * kernel.feature_weights(x.shape[1])[None, :, None], images_y)


def blocked_pair_sum(
    kernel: Kernel,
    particles: Float[Array, "n d"],
    scores: Float[Array, "n d"],
    weights: Float[Array, " n"],
    entries: int,
) -> Float[Array, ""]:
    """The pair sum by blocks of rows of the Stein matrix; one row takes so many entries of memory."""

    def rows(x: Array, s: Array) -> Array:
        return kernel.stein_matrix(x, s, particles, scores) @ weights

    return weights @ map_row_blocks(rows, particles, scores, rows=rows_per_block(entries))


def feature_pair_sum(
    kernel: Kernel, particles: Float[Array, "n d"], scores: Float[Array, "n d"], weights: Float[Array, " n"]
) -> Float[Array, ""]:
    """sum_l c_l |G_l|^2."""
    residual = residual_at(kernel, particles, scores, weights)
    return jnp.sum(kernel.feature_weights(particles.shape[1]) * jnp.sum(residual**2, axis=1))


def feature_spread(features: Float[Array, "n m"], weights: Float[Array, " n"]) -> Float[Array, " m"]:
    """The standard deviation of each feature over the particles; zero where it is at rounding level."""
    mean = weights @ features
    sd = jnp.sqrt(weights @ (features - mean[None, :]) ** 2)
    return jnp.where(sd > 1e-12 * jnp.abs(mean), sd, 0.0)
