"""The fixed point equations F(z) = 0 in whitened coordinates x = mu + L z, and what their solvers need of them.

For m <= n features F = G L with row l divided by the spread of phi_l (Theorem 3.2: G = 0 at a fixed point of full
rank). For full-rank kernels, and for more features than particles, where G = 0 has no solution in general, F = V L, the
velocity.

F depends on the particles directly and through their scores, and the scores enter linearly. So its derivative needs the
slopes d s(x_i) / d z_i, d x d for each particle, once a step: exact ones by JAX, central differences for a score that
JAX cannot differentiate. Every product with the Jacobian after that is free of the target.
"""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from steinmatch._linalg import map_row_blocks, rows_per_block
from steinmatch._types import Vector
from steinmatch.coordinates import AffineMap
from steinmatch.kernels import AbstractKernel
from steinmatch.kernels.forms import feature_spread, features_at, residual_at
from steinmatch.measures.velocity import scaled_residual_at
from steinmatch.targets import AbstractTarget, scores_at
from steinmatch.targets.evaluations import point_by_point

# Step of the central differences: the cube root of the rounding error, for a relative accuracy of about 1e-10.
DIFFERENCE = 6e-6


class Equations(eqx.Module):
    """F(z) = 0 for a held kernel."""

    kernel: AbstractKernel
    weights: Float[Array, " n"]
    frame: AffineMap
    scale: Float[Array, " m"] | None  # of the rows of G; None for the velocity form

    def __call__(self, z: Float[Array, "n d"], scores: Float[Array, "n d"]) -> Float[Array, "rows d"]:
        particles = self.frame.colour(z)
        if self.scale is None:
            return self.kernel.velocity(particles, scores, self.weights) @ self.frame.root
        return residual_at(self.kernel, particles, scores, self.weights) @ self.frame.root / self.scale[:, None]

    def one_particle(self, z: Vector, score: Vector) -> Float[Array, "m d"]:
        """One particle's term r(x) = phi(x) s^T + grad phi(x) of n G, scaled likewise."""
        assert self.scale is not None
        x = self.frame.colour(z)
        term = self.kernel.phi(x)[:, None] * score[None, :] + jax.jacfwd(self.kernel.phi)(x)
        return term @ self.frame.root / self.scale[:, None]


def equations_at(
    kernel: AbstractKernel, z: Float[Array, "n d"], weights: Float[Array, " n"], frame: AffineMap
) -> Equations:
    """The equations of a held kernel, with the features' spread taken at z."""
    n, d = z.shape
    m = kernel.n_features(d)
    if m is None or m > n:
        return Equations(kernel, weights, frame, None)
    spread = feature_spread(features_at(kernel, frame.colour(z)), weights)
    return Equations(kernel, weights, frame, jnp.where(spread > 0.0, spread, 1.0))


def scores_in(target: AbstractTarget, frame: AffineMap, z: Float[Array, "n d"]) -> Float[Array, "n d"]:
    """The scores at x = mu + L z."""
    return scores_at(target, frame.colour(z))


def slopes_in(target: AbstractTarget, frame: AffineMap, z: Float[Array, "n d"]) -> Float[Array, "n d d"]:
    """d s(x_i) / d z_i = H_i L: column k is the change of the score along column k of L.

    Exact ones particle after particle: 6 ms against 18 ms by blocks on the paper's RBM with n = 200, the same on its
    mixture; and blocks of targets that call LAPACK made XLA wait for itself for ever (see `targets.evaluations`).
    """

    def exact(x: Vector) -> Float[Array, "d d"]:
        return jax.vmap(lambda v: jax.jvp(target.score, (x,), (v,))[1], out_axes=1)(frame.root.T)

    def one(x: Vector) -> Float[Array, "d d"]:
        def difference(v: Vector) -> Vector:
            change = target.score(x + DIFFERENCE * v) - target.score(x - DIFFERENCE * v)
            return change / (2.0 * DIFFERENCE)

        return jax.vmap(difference, out_axes=1)(frame.root.T)

    if target.differentiable:
        return point_by_point(exact, frame.colour(z))
    d = z.shape[1]
    return map_row_blocks(jax.vmap(one), frame.colour(z), rows=min(z.shape[0], rows_per_block(d * d)))


def slope_cost(target: AbstractTarget, n: int, d: int) -> tuple[int, int]:
    """(score evaluations, Hessian-vector products) of `slopes_in`."""
    return (0, n * d) if target.differentiable else (2 * n * d, 0)


def linearised(
    equations: Equations, z: Float[Array, "n d"], scores: Float[Array, "n d"], slopes: Float[Array, "n d d"]
) -> tuple[Array, Callable[[Array], Array], Callable[[Array], Array]]:
    """F(z), and the products v -> J v and u -> J^T u."""
    value, push = jax.linearize(equations, z, scores)
    pull = jax.linear_transpose(push, z, scores)

    def jacobian(v: Float[Array, "n d"]) -> Array:
        return push(v, jnp.einsum("nij,nj->ni", slopes, v))

    def transpose(u: Array) -> Float[Array, "n d"]:
        direct, through_scores = pull(u)
        return direct + jnp.einsum("nij,ni->nj", slopes, through_scores)

    return value, jacobian, transpose


def balanced(equations: Equations, transpose: Callable[[Array], Array], d: int) -> Callable[[Array], Array]:
    """A change of the equations, F -> T F, that makes those of a linear block equally strong.

    Linear features give the d x d equations E[z_i s_j] = -delta_ij. For a Gaussian target those of (i, j) and (j, i)
    coincide; for a nearly Gaussian one their differences are weak equations, of a size eps that its departure from
    Gaussianity sets. T is the identity but for the antisymmetric part of that block, multiplied by 1 / eps, with eps
    measured from two random probes of J^T. It is meant for the paper's RBM, which is nearly Gaussian.
    """
    first = equations.kernel.linear_rows(d)
    if first is None or equations.scale is None:
        return lambda value: value
    rows = slice(first, first + d)
    scale = equations.scale[rows][:, None]
    root = equations.frame.root

    def change(value: Array, strength: Any) -> Array:
        block = jax.scipy.linalg.solve_triangular(root, value[rows] * scale, lower=True)
        block = 0.5 * (block + block.T) + strength * 0.5 * (block - block.T)
        return value.at[rows].set(block)

    def size(block: Float[Array, "d d"]) -> Array:
        placed = jnp.zeros((equations.scale.shape[0], d)).at[rows].set(block)  # type: ignore[union-attr]
        (pulled,) = jax.linear_transpose(lambda value: change(value, 1.0), placed)(placed)
        return jnp.linalg.norm(transpose(pulled)) / jnp.linalg.norm(block)

    probe = jax.random.normal(jax.random.key(0), (d, d), jnp.float64)
    eps = size(probe - probe.T) / size(probe + probe.T)
    # A target that is Gaussian to rounding has no such equations: nothing to strengthen.
    strength = jnp.where(eps > 1e-8, 1.0 / jnp.clip(eps, 1e-3, 1.0), 1.0)
    return lambda value: change(value, strength)


def dense_jacobian(
    equations: Equations, z: Float[Array, "n d"], scores: Float[Array, "n d"], slopes: Float[Array, "n d d"]
) -> Float[Array, "rows columns"]:
    """J as a matrix, particle by particle for the residual form, whose J is a row of n blocks."""
    n, d = z.shape
    if equations.scale is None:
        _, jacobian, _ = linearised(equations, z, scores, slopes)
        basis = jnp.eye(n * d).reshape(n * d, n, d)
        columns = jax.lax.map(lambda v: jacobian(v).ravel(), basis, batch_size=64)
        return columns.T

    def block(z: Vector, score: Vector, slope: Float[Array, "d d"], weight: Array) -> Float[Array, "rows d"]:
        def term(step: Vector) -> Array:
            return weight * equations.one_particle(z + step, score + slope @ step).ravel()

        return jax.jacfwd(term)(jnp.zeros(d))

    entries = equations.scale.shape[0] * d * d
    blocks = map_row_blocks(
        jax.vmap(block), z, scores, slopes, equations.weights, rows=min(n, rows_per_block(entries))
    )  # (n, m d, d)
    return blocks.transpose(1, 0, 2).reshape(-1, n * d)


def largest_residual(equations: Equations, z: Float[Array, "n d"], scores: Float[Array, "n d"]) -> Float[Array, ""]:
    """The number that stop rules and reports use: the largest entry of the scaled residual at z."""
    particles = equations.frame.colour(z)
    residual = scaled_residual_at(equations.kernel, particles, scores, equations.weights, equations.frame.root)
    return jnp.max(jnp.abs(residual))
