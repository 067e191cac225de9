"""Frames: invertible maps x = T(z) under which a target is nearly a standard normal, and targets seen through them.

A density p of x, pulled back, is pi(z) = p(T(z)) |det T'(z)|, with score T'^T s(T(z)) + grad log |det T'|. For any
vector field g, (P_pi . g)(z) = (P_p . h)(x) with h = T' g: Stein equations in z are Stein equations in x, so what is
exact in the one is exact in the other, whether or not the frame is a good one.

The sample-average evidence bound of a frame with parameters theta over fixed points z_i,

    B(theta) = mean_i [ log p(T(z_i)) + log |det T'(z_i)| ],

has as its gradient the mean Stein image of the field dT/dtheta o T^-1: raising B solves those Stein equations.
"""

import abc
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from steinmatch._linalg import covariance_root
from steinmatch._types import Scalar, Vector
from steinmatch.targets import AbstractTarget
from steinmatch.targets.base import Gradient


class AbstractFrame(eqx.Module):
    """x = T(z), written for one point."""

    @abc.abstractmethod
    def colour(self, z: Vector) -> Vector:
        """x = T(z)."""

    @abc.abstractmethod
    def whiten(self, x: Vector) -> Vector:
        """z = T^{-1}(x)."""

    @abc.abstractmethod
    def log_det(self, z: Vector) -> Scalar:
        """log |det T'(z)|."""


class AffineMap(AbstractFrame):
    """x = shift + root z, with root lower triangular; z are the whitened coordinates. Takes one point or many."""

    shift: Float[Array | np.ndarray, " d"]
    root: Float[Array | np.ndarray, "d d"]

    @staticmethod
    def of_particles(particles: Float[Array, "n d"], weights: Float[Array, " n"]) -> "AffineMap":
        """The particles' mean and a root of their covariance."""
        return AffineMap(weights @ particles, covariance_root(particles, weights))

    def whiten(self, x: Float[Array, "... d"]) -> Float[Array, "... d"]:
        """z = root^{-1} (x - shift), for one point or many."""
        centred = jnp.atleast_2d(x) - self.shift[None, :]
        z = jax.scipy.linalg.solve_triangular(self.root, centred.T, lower=True).T
        return z.reshape(x.shape)

    def colour(self, z: Float[Array, "... d"]) -> Float[Array, "... d"]:
        """x = shift + root z, for one point or many."""
        x = jnp.atleast_2d(z) @ self.root.T + self.shift[None, :]
        return x.reshape(z.shape)

    def log_det(self, z: Vector) -> Scalar:
        return jnp.sum(jnp.log(jnp.abs(jnp.diagonal(self.root))))


class Spline(eqx.Module):
    """Natural cubic splines over given knots, linear beyond them, as weights of the values at the knots.

    In the basis of truncated powers 1, x and e_k(x) - e_{K-1}(x), e_k(x) = ((x - t_k)_+^3 - (x - t_K)_+^3) /
    (t_K - t_k): a few products, where a search for the interval would take JAX longer to compile.
    """

    knots: Float[Array | np.ndarray, " k"]
    inverse: Float[Array | np.ndarray, "k k"]  # of the basis at the knots

    @staticmethod
    def over(knots: Float[np.ndarray, " k"]) -> "Spline":
        """The splines with these knots, at least three of them."""
        at = np.stack([_spline_basis(np, knot, knots) for knot in knots])
        return Spline(knots, np.linalg.inv(at))

    def weights(self, x: Scalar) -> Float[Array, " k"]:
        """w(x) with w(x) . y the spline through the values y."""
        return _spline_basis(jnp, x, self.knots) @ self.inverse

    def solve(self, places: Float[Array | np.ndarray, " k"], x: Scalar) -> Scalar:
        """z with w(z) . places = x, for increasing places: a start by interpolation, then Newton's method, whose
        derivative is that of the last step.
        """

        def g(z: Scalar) -> Scalar:
            return self.weights(z) @ places

        knots = self.knots
        slope = (places[-1] - places[-2]) / (knots[-1] - knots[-2])
        first = (places[1] - places[0]) / (knots[1] - knots[0])
        z = jnp.interp(x, places, knots)
        z = jnp.where(x > places[-1], knots[-1] + (x - places[-1]) / slope, z)
        z = jnp.where(x < places[0], knots[0] + (x - places[0]) / first, z)
        for _ in range(6):
            z = z - (g(z) - x) / jax.grad(g)(z)
        return z


def _spline_basis(np: Any, x: Any, knots: Any) -> Any:
    """The basis at x, with the functions of NumPy or of jax.numpy."""
    last = knots[-1]
    cubes = np.maximum(x - knots, 0.0) ** 3
    e = (cubes[:-1] - cubes[-1:]) / (last - knots[:-1])
    return np.concatenate([np.stack([np.ones_like(x), x]), e[:-1] - e[-1:]])


class Parent(AbstractFrame):
    """The first coordinate, a parent, sets the place, scale and shear of all others, as in funnels and hierarchies:

        x_0 = g(z_0),    x_R = m(x_0) + U(x_0) exp(D(x_0)) z_R,

    with g, m, D and the unit lower triangular U splines. The knots of the last three are values of x_0 at which an
    affine phase of the others was solved; g is the quantile function of x_0 that their evidence bounds imply.
    """

    quantiles: Spline
    places: Float[Array | np.ndarray, " q"]  # g at its knots
    given: Spline
    means: Float[Array | np.ndarray, "k r"]
    log_scales: Float[Array | np.ndarray, "k r"]
    mixing: Float[Array | np.ndarray, "k s"]
    shears: Float[Array | np.ndarray, "s r r"]  # strictly lower triangular; mixed, those of U at the knots

    @staticmethod
    def over(
        quantiles: tuple[Float[np.ndarray, " q"], Float[np.ndarray, " q"]],
        knots: Float[np.ndarray, " k"],
        means: Float[np.ndarray, "k r"],
        roots: Float[np.ndarray, "k r r"],
        tolerance: float = 0.0,
    ) -> "Parent":
        """The frame with the given knots and values of g, and places and lower triangular roots of the others at values
        of the parent; the shears by as few matrices as there must be for a divergence of at most `tolerance` nats.
        """
        scales = np.abs(np.diagonal(roots, axis1=1, axis2=2))
        mixing, shears = mixtures(
            np.tril(roots / np.diagonal(roots, axis1=1, axis2=2)[:, None, :], -1), scales, tolerance
        )
        normal, places = quantiles
        arrays = map(jax.device_put, (means, np.log(scales), mixing, shears))  # jnp.asarray compiles each new shape
        return Parent(Spline.over(normal), places, Spline.over(knots), *arrays)

    @staticmethod
    def unsheared(
        quantiles: tuple[Float[np.ndarray, " q"], Float[np.ndarray, " q"]],
        knots: Float[np.ndarray, " k"],
        means: Float[np.ndarray, "k r"],
        scales: Float[np.ndarray, "k r"],
    ) -> "Parent":
        """The frame without shears: given the parent, each of the others by itself."""
        none = np.zeros((len(knots), 0)), np.zeros((0, means.shape[1], means.shape[1]))
        arrays = map(jax.device_put, (means, np.log(scales), *none))
        return Parent(Spline.over(quantiles[0]), quantiles[1], Spline.over(knots), *arrays)

    def _rest(self, x: Scalar) -> tuple[Float[Array, " r"], Float[Array, " r"], Float[Array, " s"]]:
        w = self.given.weights(x)
        return w @ self.means, w @ self.log_scales, w @ self.mixing

    def colour(self, z: Vector) -> Vector:
        x = self.quantiles.weights(z[0]) @ self.places
        mean, log_scale, mixture = self._rest(x)
        scaled = jnp.exp(log_scale) * z[1:]
        sheared = mixture @ (self.shears @ scaled) if len(self.shears) else 0.0
        return jnp.concatenate([x[None], mean + scaled + sheared])

    def spread(self, first: Scalar) -> Float[Array, "r r"]:
        """The derivative of the others by their own coordinates, given the parent's."""
        _, log_scale, mixture = self._rest(self.quantiles.weights(first) @ self.places)
        return self._unit(mixture) * jnp.exp(log_scale)

    def _unit(self, mixture: Float[Array, " s"]) -> Float[Array, "r r"]:
        return jnp.eye(self.shears.shape[1]) + jnp.tensordot(mixture, self.shears, 1)

    def whiten(self, x: Vector) -> Vector:
        mean, log_scale, mixture = self._rest(x[0])
        rest = x[1:] - mean
        if len(self.shears):
            rest = jax.scipy.linalg.solve_triangular(self._unit(mixture), rest, lower=True, unit_diagonal=True)
        return jnp.concatenate([self.quantiles.solve(self.places, x[0])[None], jnp.exp(-log_scale) * rest])

    def log_det(self, z: Vector) -> Scalar:
        x, slope = jax.value_and_grad(lambda t: self.quantiles.weights(t) @ self.places)(z[0])
        return jnp.log(slope) + jnp.sum(self.given.weights(x) @ self.log_scales)


def mixtures(
    shears: Float[np.ndarray, "k r r"], scales: Float[np.ndarray, "k r"], tolerance: float
) -> tuple[Float[np.ndarray, "k s"], Float[np.ndarray, "s r r"]]:
    """Few matrices of which all k are mixtures, by a singular value decomposition in units of the scales. A row that is
    off by e, in these units, has its mean off by that many sds: |e|^2 / 2 nats.
    """
    k, r, _ = shears.shape
    unit = np.exp(np.mean(np.log(scales), axis=0))
    left, values, right = np.linalg.svd((shears * unit / unit[:, None]).reshape(k, r * r), full_matrices=False)
    lost = 0.5 * np.cumsum(((left * values) ** 2)[:, ::-1], axis=1).max(axis=0)[::-1]  # without this one and the rest
    some = max(int(np.sum(lost > tolerance)), 1)
    matrices = right[:some].reshape(some, r, r) * unit[:, None] / unit
    return left[:, :some] * values[:some], matrices


class Order(AbstractFrame):
    """A permutation: coordinate order[k] of x is coordinate k of z."""

    order: Int[Array | np.ndarray, " d"]

    def colour(self, z: Vector) -> Vector:
        return jnp.zeros_like(z).at[self.order].set(z)

    def whiten(self, x: Vector) -> Vector:
        return x[self.order]

    def log_det(self, z: Vector) -> Scalar:
        return jnp.zeros((), z.dtype)


class Composed(AbstractFrame):
    """T = T_1 o T_2 o ...: the last map is applied to z first."""

    maps: tuple[AbstractFrame, ...]

    @property
    def parts(self) -> tuple[AbstractFrame, ...]:
        """The maps, those of compositions among them one by one."""
        return tuple(part for frame in self.maps for part in (frame.parts if isinstance(frame, Composed) else (frame,)))

    def colour(self, z: Vector) -> Vector:
        for frame in reversed(self.maps):
            z = frame.colour(z)
        return z

    def whiten(self, x: Vector) -> Vector:
        for frame in self.maps:
            x = frame.whiten(x)
        return x

    def log_det(self, z: Vector) -> Scalar:
        total = jnp.zeros((), z.dtype)
        for frame in reversed(self.maps):
            total = total + frame.log_det(z)
            z = frame.colour(z)
        return total


@eqx.filter_jit
def colour_all(frame: AbstractFrame, z: Float[Array, "n d"]) -> Float[Array, "n d"]:
    """x = T(z) for many points."""
    return frame.colour(z) if isinstance(frame, AffineMap) else jax.vmap(frame.colour)(z)


@eqx.filter_jit
def whiten_all(frame: AbstractFrame, x: Float[Array, "n d"]) -> Float[Array, "n d"]:
    """z = T^{-1}(x) for many points."""
    return frame.whiten(x) if isinstance(frame, AffineMap) else jax.vmap(frame.whiten)(x)


@eqx.filter_jit
def log_dets(frame: AbstractFrame, z: Float[Array, "n d"]) -> Float[Array, " n"]:
    """log |det T'(z)| for many points."""
    return jax.vmap(frame.log_det)(z)


@eqx.filter_jit
def push_scores(frame: AbstractFrame, z: Float[Array, "n d"], scores: Float[Array, "n d"]) -> Float[Array, "n d"]:
    """The scores s at x = T(z) from the pulled-back ones: what `pull_scores` undoes."""

    def one(z: Vector, score: Vector) -> Vector:
        _, pull = jax.vjp(frame.whiten, frame.colour(z))
        return pull(score - jax.grad(frame.log_det)(z))[0]

    return jax.vmap(one)(z, scores)


@eqx.filter_jit
def pull_scores(frame: AbstractFrame, z: Float[Array, "n d"], scores: Float[Array, "n d"]) -> Float[Array, "n d"]:
    """The pulled-back scores T'^T s + grad log |det T'| from the scores s at x = T(z)."""

    def one(z: Vector, score: Vector) -> Vector:
        _, pull = jax.vjp(frame.colour, z)
        return pull(score)[0] + jax.grad(frame.log_det)(z)

    return jax.vmap(one)(z, scores)


PATH_POINTS = 16  # of the Gauss-Legendre rule: exact for scores of degree up to 31 along the path


def _path_rule() -> tuple[np.ndarray, np.ndarray]:
    nodes, weights = np.polynomial.legendre.leggauss(PATH_POINTS)
    return 0.5 * (nodes + 1.0), 0.5 * weights


class PulledBack(AbstractTarget):
    """A target seen through a frame: pi(z) = p(T(z)) |det T'(z)|.

    Where p has a score alone, `log_density` is its path integral from z = 0: enough for ratios of densities.
    """

    target: AbstractTarget
    frame: AbstractFrame
    differentiable: bool = eqx.field(static=True)
    dim: int = eqx.field(static=True)
    names: tuple[str, ...] | None = eqx.field(static=True)

    def __init__(self, target: AbstractTarget, frame: AbstractFrame):
        self.target, self.frame = target, frame
        self.dim, self.names, self.differentiable = target.dim, None, target.differentiable

    def constrain(self, z: Vector) -> object:  # type: ignore[override]
        """The target's constrained values at x = T(z), or x itself."""
        x = self.frame.colour(z)
        return x if self.target.constrain is None else self.target.constrain(x)

    def score(self, z: Vector) -> Vector:  # type: ignore[override]
        """T'^T s(T(z)) + grad log |det T'(z)|."""
        x, pull = jax.vjp(self.frame.colour, z)
        return pull(self.target.score(x))[0] + jax.grad(self.frame.log_det)(z)

    def log_density(self, z: Vector) -> Scalar:  # type: ignore[override]
        """log pi(z); its gradient is `score`, also where log p and its score are two functions of the user's."""
        return _value_with_score(self, z)

    def value(self, z: Vector) -> Scalar:
        """log pi(z), without the promise on its gradient."""
        if self.target.log_density is None:
            nodes, weights = (jnp.asarray(part) for part in _path_rule())
            return jnp.sum(weights * jax.vmap(lambda t: self.score(t * z) @ z)(nodes))
        return self.target.log_density(self.frame.colour(z)) + self.frame.log_det(z)

    @property
    def gradients_a_value(self) -> int:
        """How many scores one value and its gradient cost."""
        return 1 if self.target.log_density is not None else 1 + PATH_POINTS


@eqx.filter_custom_jvp
def _with_score(target: PulledBack, z: Vector) -> Scalar:
    return target.value(z)


@_with_score.def_jvp
def _with_score_jvp(primals: tuple, tangents: tuple) -> tuple:
    target, z = primals
    _, dz = tangents
    return target.value(z), target.score(z) @ (jnp.zeros_like(z) if dz is None else dz)


def _value_with_score(target: PulledBack, z: Vector) -> Scalar:
    """The log density as JAX differentiates it, where the score is its gradient by construction; else a function
    whose derivative is said to be the score.
    """
    if isinstance(target.target.score, Gradient) and target.target.log_density is not None:
        return target.value(z)
    return _with_score(target, z)
