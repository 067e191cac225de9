"""Two parents at once: coordinates that together set place, scale and shear of all others.

A frame with one parent after another has the others normal given the first parent alone, and the second a part of them.
Where the others are nearly normal only given both, as the latent values of a Gaussian process given its length scale
and its size, or random effects given two scales, both are parents of one frame:

    u_0 = g(z_0),   u_1 = q(u_0, z_1),   (x_0, x_1) = shift + root u,   x_R = m(u) + U(u) exp(D(u)) z_R

with g and q quantile functions, and m, D and the unit lower triangular U interpolated between scattered places.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from steinmatch._types import Scalar, Vector
from steinmatch.coordinates.maps import AbstractFrame, Spline, mixtures


class Polyharmonic(eqx.Module):
    """Interpolation between places t_k in the plane by |u - t_k|^3 and linear functions, of least bending energy.
    In one dimension these are natural cubic splines.
    """

    knots: Float[Array | np.ndarray, "k 2"]
    inverse: Float[Array | np.ndarray, "b k"]  # of the basis at the knots, with the side conditions

    @staticmethod
    def over(knots: Float[np.ndarray, "k 2"]) -> "Polyharmonic":
        """Through these places, at least three and not in one line."""
        k = len(knots)
        cubes = np.linalg.norm(knots[:, None] - knots[None], axis=2) ** 3
        linear = np.concatenate([np.ones((k, 1)), knots], axis=1)
        system = np.block([[cubes, linear], [linear.T, np.zeros((3, 3))]])
        return Polyharmonic(knots, np.linalg.inv(system)[:, :k])

    def weights(self, u: Float[Array, "2"]) -> Float[Array, " k"]:
        """w(u) with w(u) . y the interpolant of the values y."""
        squares = jnp.sum((u[None, :] - self.knots) ** 2, axis=1)
        return jnp.concatenate([squares**1.5, jnp.ones(1, u.dtype), u]) @ self.inverse


class Pair(AbstractFrame):
    """The first two coordinates are parents of all others."""

    shift: Float[Array | np.ndarray, "2"]
    root: Float[Array | np.ndarray, "2 2"]  # lower triangular
    first: Spline
    places: Float[Array | np.ndarray, " q"]  # g at its knots
    across: Spline  # over values of u_0
    second: Spline
    quantiles: Float[Array | np.ndarray, "a q"]  # of u_1 given these values, at the knots of `second`
    given: Polyharmonic
    means: Float[Array | np.ndarray, "k r"]
    log_scales: Float[Array | np.ndarray, "k r"]
    mixing: Float[Array | np.ndarray, "k s"]
    shears: Float[Array | np.ndarray, "s r r"]

    @staticmethod
    def over(
        plane: tuple[Float[np.ndarray, "2"], Float[np.ndarray, "2 2"]],
        grid: Float[np.ndarray, " q"],
        places: Float[np.ndarray, " q"],
        across: Float[np.ndarray, " a"],
        quantiles: Float[np.ndarray, "a q"],
        knots: Float[np.ndarray, "k 2"],
        means: Float[np.ndarray, "k r"],
        roots: Float[np.ndarray, "k r r"],
        tolerance: float = 0.0,
    ) -> "Pair":
        """The frame with g and q given at a grid of normal scores and at values `across` of u_0, and places and lower
        triangular roots of the others at knots u; the shears as in `Parent.over`.
        """
        scales = np.abs(np.diagonal(roots, axis1=1, axis2=2))
        units = np.tril(roots / np.diagonal(roots, axis1=1, axis2=2)[:, None, :], -1)
        mixing, shears = mixtures(units, scales, tolerance)
        spline = Spline.over(grid)
        parts = (means, np.log(scales), mixing, shears)
        return Pair(
            *plane,
            spline,
            places,
            Spline.over(across),
            spline,
            quantiles,
            Polyharmonic.over(knots),
            *parts,
        )

    def _parents(self, z: Vector) -> Float[Array, "2"]:
        first = self.first.weights(z[0]) @ self.places
        return jnp.stack([first, (self.across.weights(first) @ self.quantiles) @ self.second.weights(z[1])])

    def _rest(self, u: Float[Array, "2"]) -> tuple[Float[Array, " r"], Float[Array, " r"], Float[Array, " s"]]:
        w = self.given.weights(u)
        return w @ self.means, w @ self.log_scales, w @ self.mixing

    def colour(self, z: Vector) -> Vector:
        u = self._parents(z)
        mean, log_scale, mixture = self._rest(u)
        scaled = jnp.exp(log_scale) * z[2:]
        rest = mean + scaled + mixture @ (self.shears @ scaled)
        return jnp.concatenate([self.shift + self.root @ u, rest])

    def whiten(self, x: Vector) -> Vector:
        u = jax.scipy.linalg.solve_triangular(self.root, x[:2] - self.shift, lower=True)
        first = self.first.solve(self.places, u[0])
        second = self.second.solve(self.across.weights(u[0]) @ self.quantiles, u[1])
        mean, log_scale, mixture = self._rest(u)
        unit = jnp.eye(mean.shape[0]) + jnp.tensordot(mixture, self.shears, 1)
        rest = jax.scipy.linalg.solve_triangular(unit, x[2:] - mean, lower=True, unit_diagonal=True)
        return jnp.concatenate([jnp.stack([first, second]), jnp.exp(-log_scale) * rest])

    def log_det(self, z: Vector) -> Scalar:
        first, slope = jax.value_and_grad(lambda t: self.first.weights(t) @ self.places)(z[0])
        table = self.across.weights(first) @ self.quantiles
        second, other = jax.value_and_grad(lambda t: self.second.weights(t) @ table)(z[1])
        scales = jnp.sum(self.given.weights(jnp.stack([first, second])) @ self.log_scales)
        return jnp.log(slope) + jnp.log(other) + jnp.sum(jnp.log(jnp.abs(jnp.diagonal(self.root)))) + scales
