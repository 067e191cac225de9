"""Affine frames of many dimensions: a scale for each coordinate, and a few directions that are wider or narrower.

    x = shift + diag(scale) (I + left right^T) z

with `left` and `right` of k columns: d (2 k + 2) numbers, and as many operations for a point, where a full root takes
d^2 of both. Such maps are closed under composition: with stretches and shifts of coordinates, and with each other.
"""

import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from steinmatch._types import Numbers, Scalar, Vector
from steinmatch.coordinates.maps import AbstractFrame


class LowRank(AbstractFrame):
    """x = shift + diag(scale) (I + left right^T) z. Takes one point or many, in JAX or in NumPy."""

    shift: Float[Numbers, " d"]
    scale: Float[Numbers, " d"]
    left: Float[Numbers, "d k"]
    right: Float[Numbers, "d k"]
    inverse: Float[Numbers, "k k"]  # of I + right^T left, of which Woodbury's formula makes z of x
    volume: Float[Numbers, ""]  # log |det| of the whole

    @staticmethod
    def over(
        shift: Float[Numbers, " d"],
        scale: Float[Numbers, " d"],
        left: Float[Numbers, "d k"],
        right: Float[Numbers, "d k"],
    ) -> "LowRank":
        core = np.eye(left.shape[1]) + right.T @ left
        volume = np.sum(np.log(np.abs(scale))) + np.linalg.slogdet(core)[1]
        return LowRank(shift, scale, left, right, np.linalg.inv(core), np.asarray(volume))

    @staticmethod
    def identity(d: int) -> "LowRank":
        return LowRank.over(np.zeros(d), np.ones(d), np.zeros((d, 0)), np.zeros((d, 0)))

    def stretched(self, shift: Float[np.ndarray, " d"], scale: Float[np.ndarray, " d"]) -> "LowRank":
        """This map after z -> shift + scale z."""
        left, right = np.asarray(self.left) / scale[:, None], np.asarray(self.right) * scale[:, None]
        return LowRank.over(self.colour(shift), self.scale * scale, left, right)

    def turned(self, left: Float[np.ndarray, "d j"], right: Float[np.ndarray, "d j"]) -> "LowRank":
        """This map after z -> (I + left right^T) z."""
        both = left + self.left @ (self.right.T @ left)
        lefts, rights = np.concatenate([self.left, both], axis=1), np.concatenate([self.right, right], axis=1)
        return LowRank.over(self.shift, self.scale, lefts, rights)

    def without(self, v: int) -> "LowRank":
        """The map whose coordinate v depends on no other one, nor any other on it."""
        left, right = np.array(self.left), np.array(self.right)
        left[v] = right[v] = 0.0
        return LowRank.over(self.shift, self.scale, left, right)

    def colour(self, z: Float[Numbers, "... d"]) -> Float[Numbers, "... d"]:
        return self.shift + self.scale * (z + (z @ self.right) @ self.left.T)

    def whiten(self, x: Float[Numbers, "... d"]) -> Float[Numbers, "... d"]:
        y = (x - self.shift) / self.scale
        return y - ((y @ self.right) @ self.inverse.T) @ self.left.T

    def log_det(self, z: Vector) -> Scalar:
        return jnp.asarray(self.volume)

    def pull(self, scores: Float[Numbers, "... d"]) -> Float[Numbers, "... d"]:
        """The scores of z from those of x: diag(scale) (I + left right^T), transposed, times them."""
        scaled = self.scale * scores
        return scaled + (scaled @ self.left) @ self.right.T

    def row_squares(self, squares: Float[np.ndarray, "n d"] | None = None) -> Float[np.ndarray, "n d"]:
        """|row|^2 of the root, each coordinate's variance in the frame; or of root diag(s), from s^2."""
        left, right, scale = (np.asarray(part) for part in (self.left, self.right, self.scale))
        squares = np.ones((1, len(scale))) if squares is None else squares
        k = left.shape[1]
        outer = (right[:, :, None] * right[:, None, :]).reshape(len(right), k * k)
        gram = (squares @ outer).reshape(len(squares), k, k)
        across = np.einsum("dk,nkj,dj->nd", left, gram, left, optimize=True)
        return scale**2 * (squares * (1.0 + 2.0 * np.sum(left * right, axis=1)) + across)
