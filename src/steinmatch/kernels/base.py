"""Kernels: written for two points, with sums, scalings and whitening; a kernel may also have a feature map.

A kernel passes three stages, each an immutable pytree, and it can be used at any of them by `velocity`, `ksd`, `fit`:

    spec     RandomFourier(100)              what the user writes
    bound    spec.bind(key, particles)       random parameters drawn once, sizes known
    held     bound.hold(particles)           bandwidth rules replaced by their values at these particles

Only a held kernel is a function k(x, y).
"""

import abc
from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from steinmatch._checks import check_kind, positive_number
from steinmatch._linalg import normalised
from steinmatch._types import Scalar, Vector
from steinmatch.coordinates import AbstractFrame, AffineMap, whiten_all
from steinmatch.kernels.forms import (
    autodiff_stein_matrix,
    blocked_pair_sum,
    direct_velocity,
    feature_pair_sum,
    feature_stein_matrix,
    feature_velocity,
)


def check_output(
    function: Callable, shape: tuple[int | None, ...], points: int, dim: int, name: str
) -> tuple[int, ...]:
    """The shape of what a user's function of so many points returns; ValueError unless it is `shape`, None standing for
    any length, of real numbers.
    """
    point = jax.ShapeDtypeStruct((dim,), jnp.float64)
    try:
        found = jax.eval_shape(function, *[point] * points)
        length, kind = tuple(found.shape), found.dtype
    except Exception as error:
        raise ValueError(
            f"{name}: the function failed on points of shape ({dim},): {type(error).__name__}: {str(error)[:200]}. It "
            "must be written with jax.numpy and return an array."
        ) from error
    right = len(length) == len(shape) and all(want in (None, size) for want, size in zip(shape, length, strict=True))
    if not right or length[:1] == (0,) or not jnp.issubdtype(kind, jnp.floating):
        wanted = "a number" if shape == () else "a vector of m features"
        raise ValueError(
            f"{name}: the function must return {wanted}, real, for points of shape ({dim},); got {kind} of shape "
            f"{length}."
        )
    return length


class Part(NamedTuple):
    """A term of a kernel: factor k(z_x, z_y), with z the coordinates of an affine map."""

    kernel: "AbstractKernel"
    frame: AffineMap
    factor: Any


class AbstractKernel(eqx.Module):
    """A positive definite kernel k(x, y) of two points of shape (d,).

    A new kernel needs `__call__` alone: all else is derived from it by JAX. A feature kernel needs `phi` and
    `n_features` (see `AbstractFeatureKernel`). What a class overrides beyond that is a closed form, tested against
    autodiff.
    """

    @abc.abstractmethod
    def __call__(self, x: Vector, y: Vector) -> Scalar:
        """k(x, y), for a held kernel."""

    def bind(self, key: PRNGKeyArray, particles: Float[Array, "n d"]) -> "AbstractKernel":
        """Draw random parameters and fix sizes, once, at the start of a fit."""
        return self

    def hold(self, particles: Float[Array, "n d"]) -> "AbstractKernel":
        """The kernel with its bandwidths held at their values for these particles."""
        return self

    def reframe(self, frame: "AffineMap") -> "AbstractKernel":
        """The kernel with the affine map of its whitened parts replaced, where the user left that map open."""
        return self

    def n_features(self, dim: int) -> int | None:
        """m for a kernel of m features, k(x, y) = sum_l c_l phi_l(x) phi_l(y); None for a full-rank kernel."""
        return None

    def phi(self, x: Vector) -> Float[Array, " m"]:
        """The features (phi_1(x), ..., phi_m(x)) of one point."""
        raise TypeError(f"{self!r:.60} is a full-rank kernel without a feature map; use features, e.g. RandomFourier.")

    def feature_weights(self, dim: int) -> Float[Array, " m"]:
        """The weights c_l > 0 of the features in the kernel."""
        raise TypeError(f"{self!r:.60} is a full-rank kernel without a feature map; use features, e.g. RandomFourier.")

    def mean_gradient(self, particles: Float[Array, "n d"], weights: Float[Array, " n"]) -> Float[Array, "m d"]:
        """sum_i w_i grad phi_l(x_i), by forward differentiation of a common shift of all particles: O(n m) memory."""

        def mean_features(shift: Vector) -> Float[Array, " m"]:
            return weights @ jax.vmap(lambda x: self.phi(x + shift))(particles)

        d, kind = particles.shape[1], particles.dtype
        return jax.lax.map(lambda e: jax.jvp(mean_features, (jnp.zeros(d, kind),), (e,))[1], jnp.eye(d, dtype=kind)).T

    # -- what a held kernel answers about particles; the weights sum to one --------------------------------------------

    def velocity(
        self, particles: Float[Array, "n d"], scores: Float[Array, "n d"], weights: Float[Array, " n"]
    ) -> Float[Array, "n d"]:
        """v(x_i) = sum_j w_j P_{x_j} k(x_j, x_i), in the fastest form that is exact."""
        form = direct_velocity if self.n_features(particles.shape[1]) is None else feature_velocity
        return form(self, particles, scores, weights)

    def stein_matrix(
        self, x: Float[Array, "n d"], scores_x: Array, y: Float[Array, "k d"], scores_y: Array
    ) -> Float[Array, "n k"]:
        """[kappa_p(x_i, y_j)]."""
        form = autodiff_stein_matrix if self.n_features(x.shape[1]) is None else feature_stein_matrix
        return form(self, x, scores_x, y, scores_y)

    def pair_sum(
        self, particles: Float[Array, "n d"], scores: Float[Array, "n d"], weights: Float[Array, " n"]
    ) -> Float[Array, ""]:
        """sum_ij w_i w_j kappa_p(x_i, x_j): from the residual for features, by blocks of rows otherwise."""
        n, d = particles.shape
        if self.n_features(d) is not None:
            return feature_pair_sum(self, particles, scores, weights)
        return blocked_pair_sum(self, particles, scores, weights, n * d * d)

    # -- what it says of itself ----------------------------------------------------------------------------------------

    def describe(self) -> str:
        """The kernel in words, such as linear+random Fourier."""
        return type(self).__name__

    def polynomial_degree(self) -> int | None:
        """The degree up to which the features hold all polynomials; None where they do not hold the linear ones."""
        return None

    def linear_rows(self, dim: int) -> int | None:
        """The place among the features of x_1, followed by those of x_2 ... x_d; None without linear features."""
        return None

    def length_scale(self) -> Scalar:
        """The (first) bandwidth of a held kernel, nan for a kernel without one."""
        return getattr(getattr(self, "bandwidth", None), "bandwidth", float("nan"))

    def parts(self, frame: AffineMap, factor: Any = 1.0) -> list[Part]:
        """The terms of a held kernel that are no sums, scalings or whitenings, of points in the coordinates `frame`."""
        return [Part(self, frame, factor)]

    def __add__(self, other: "AbstractKernel") -> "Sum":
        if not isinstance(other, AbstractKernel):
            return NotImplemented
        terms = [term for kernel in (self, other) for term in (kernel.terms if isinstance(kernel, Sum) else (kernel,))]
        return Sum(tuple(terms))

    def __mul__(self, factor: Any) -> "Scaled":
        if isinstance(factor, AbstractKernel):
            return NotImplemented
        if not eqx.is_array(factor):
            factor = np.asarray(positive_number(factor, "the factor of a kernel", type(self).__name__))
        return Scaled(self, factor)

    __rmul__ = __mul__


class Sum(AbstractKernel):
    """k1 + k2 + ...; of feature kernels: the concatenation of their features."""

    terms: tuple[AbstractKernel, ...]

    def __call__(self, x: Vector, y: Vector) -> Scalar:
        return sum(term(x, y) for term in self.terms)  # type: ignore[return-value]

    def bind(self, key: PRNGKeyArray, particles: Float[Array, "n d"]) -> "Sum":
        keys = jax.random.split(key, len(self.terms))
        return Sum(tuple(term.bind(k, particles) for term, k in zip(self.terms, keys, strict=True)))

    def hold(self, particles: Float[Array, "n d"]) -> "Sum":
        return Sum(tuple(term.hold(particles) for term in self.terms))

    def reframe(self, frame: "AffineMap") -> "Sum":
        return Sum(tuple(term.reframe(frame) for term in self.terms))

    def n_features(self, dim: int) -> int | None:
        total = 0
        for term in self.terms:
            m = term.n_features(dim)
            if m is None:
                return None
            total += m
        return total

    def phi(self, x: Vector) -> Float[Array, " m"]:
        return jnp.concatenate([term.phi(x) for term in self.terms])

    def feature_weights(self, dim: int) -> Float[Array, " m"]:
        return jnp.concatenate([term.feature_weights(dim) for term in self.terms])

    def mean_gradient(self, particles: Float[Array, "n d"], weights: Float[Array, " n"]) -> Float[Array, "m d"]:
        return jnp.concatenate([term.mean_gradient(particles, weights) for term in self.terms])

    def velocity(
        self, particles: Float[Array, "n d"], scores: Float[Array, "n d"], weights: Float[Array, " n"]
    ) -> Float[Array, "n d"]:
        return _total([term.velocity(particles, scores, weights) for term in self.terms])

    def stein_matrix(
        self, x: Float[Array, "n d"], scores_x: Array, y: Float[Array, "k d"], scores_y: Array
    ) -> Float[Array, "n k"]:
        return _total([term.stein_matrix(x, scores_x, y, scores_y) for term in self.terms])

    def pair_sum(
        self, particles: Float[Array, "n d"], scores: Float[Array, "n d"], weights: Float[Array, " n"]
    ) -> Float[Array, ""]:
        return _total([term.pair_sum(particles, scores, weights) for term in self.terms])

    def describe(self) -> str:
        return "+".join(term.describe() for term in self.terms)

    def polynomial_degree(self) -> int | None:
        degrees = [degree for term in self.terms if (degree := term.polynomial_degree()) is not None]
        return max(degrees, default=None)

    def linear_rows(self, dim: int) -> int | None:
        before = 0
        for term in self.terms:
            if (row := term.linear_rows(dim)) is not None:
                return before + row
            before += term.n_features(dim) or 0
        return None

    def length_scale(self) -> Scalar:
        found = [term.length_scale() for term in self.terms]
        return next((h for h in found if not (isinstance(h, float) and np.isnan(h))), float("nan"))

    def parts(self, frame: AffineMap, factor: Any = 1.0) -> list[Part]:
        return [part for term in self.terms for part in term.parts(frame, factor)]


def _total(parts: list[Array]) -> Array:
    return jnp.sum(jnp.stack(parts), axis=0)


class Scaled(AbstractKernel):
    """a k(x, y) for a factor a > 0: the same features, with weights a c_l."""

    kernel: AbstractKernel
    factor: Scalar

    def __call__(self, x: Vector, y: Vector) -> Scalar:
        return self.factor * self.kernel(x, y)

    def bind(self, key: PRNGKeyArray, particles: Float[Array, "n d"]) -> "Scaled":
        return Scaled(self.kernel.bind(key, particles), self.factor)

    def hold(self, particles: Float[Array, "n d"]) -> "Scaled":
        return Scaled(self.kernel.hold(particles), self.factor)

    def reframe(self, frame: "AffineMap") -> "Scaled":
        return Scaled(self.kernel.reframe(frame), self.factor)

    def n_features(self, dim: int) -> int | None:
        return self.kernel.n_features(dim)

    def phi(self, x: Vector) -> Float[Array, " m"]:
        return self.kernel.phi(x)

    def feature_weights(self, dim: int) -> Float[Array, " m"]:
        return self.factor * self.kernel.feature_weights(dim)

    def mean_gradient(self, particles: Float[Array, "n d"], weights: Float[Array, " n"]) -> Float[Array, "m d"]:
        return self.kernel.mean_gradient(particles, weights)

    def velocity(
        self, particles: Float[Array, "n d"], scores: Float[Array, "n d"], weights: Float[Array, " n"]
    ) -> Float[Array, "n d"]:
        return self.factor * self.kernel.velocity(particles, scores, weights)

    def stein_matrix(
        self, x: Float[Array, "n d"], scores_x: Array, y: Float[Array, "k d"], scores_y: Array
    ) -> Float[Array, "n k"]:
        return self.factor * self.kernel.stein_matrix(x, scores_x, y, scores_y)

    def pair_sum(
        self, particles: Float[Array, "n d"], scores: Float[Array, "n d"], weights: Float[Array, " n"]
    ) -> Float[Array, ""]:
        return self.factor * self.kernel.pair_sum(particles, scores, weights)

    def describe(self) -> str:
        return self.kernel.describe()

    def polynomial_degree(self) -> int | None:
        return self.kernel.polynomial_degree()

    def linear_rows(self, dim: int) -> int | None:
        return self.kernel.linear_rows(dim)

    def length_scale(self) -> Scalar:
        return self.kernel.length_scale()

    def parts(self, frame: AffineMap, factor: Any = 1.0) -> list[Part]:
        return self.kernel.parts(frame, factor * self.factor)


class Whitened(AbstractKernel):
    """k(z_x, z_y) with z = L^{-1} (x - mu): a kernel pulled back through a frame, a different kernel than k(x, y).

    mu and L are those of the affine phase or, without one, the mean and a Cholesky root of the covariance of the
    particles at binding; or z = T^{-1}(x) of the `frame` that is given, which need not be affine.
    """

    kernel: AbstractKernel
    frame: AbstractFrame | None
    given: bool = eqx.field(static=True)  # the user gave the frame: it stays

    def __init__(self, kernel: AbstractKernel, frame: AbstractFrame | None = None, given: bool | None = None):
        check_kind(kernel, AbstractKernel, "kernel", "Whitened", "a kernel such as Polynomial(2)")
        if frame is not None:
            check_kind(frame, AbstractFrame, "frame", "Whitened", "a frame such as AffineMap(shift, root)")
        self.kernel, self.frame = kernel, frame
        self.given = frame is not None if given is None else given

    def _frame(self) -> AbstractFrame:
        if self.frame is None:
            raise TypeError("Whitened: bind the kernel first, kernel.bind(key, particles), so that it knows its scale.")
        return self.frame

    def __call__(self, x: Vector, y: Vector) -> Scalar:
        frame = self._frame()
        return self.kernel(frame.whiten(x), frame.whiten(y))

    def bind(self, key: PRNGKeyArray, particles: Float[Array, "n d"]) -> "Whitened":
        frame = self.frame
        if frame is None:
            frame = AffineMap.of_particles(particles, normalised(None, particles.shape[0]))
        return Whitened(self.kernel.bind(key, whiten_all(frame, particles)), frame, self.given)

    def hold(self, particles: Float[Array, "n d"]) -> "Whitened":
        frame = self._frame()
        return Whitened(self.kernel.hold(whiten_all(frame, particles)), frame, self.given)

    def reframe(self, frame: AffineMap) -> "Whitened":
        return self if self.given else Whitened(self.kernel, frame, self.given)

    def n_features(self, dim: int) -> int | None:
        return self.kernel.n_features(dim)

    def phi(self, x: Vector) -> Float[Array, " m"]:
        return self.kernel.phi(self._frame().whiten(x))

    def feature_weights(self, dim: int) -> Float[Array, " m"]:
        return self.kernel.feature_weights(dim)

    def mean_gradient(self, particles: Float[Array, "n d"], weights: Float[Array, " n"]) -> Float[Array, "m d"]:
        frame = self._frame()
        if not isinstance(frame, AffineMap):
            return AbstractKernel.mean_gradient(self, particles, weights)
        gradient = self.kernel.mean_gradient(frame.whiten(particles), weights)
        return jax.scipy.linalg.solve_triangular(frame.root, gradient.T, lower=True, trans="T").T

    def velocity(
        self, particles: Float[Array, "n d"], scores: Float[Array, "n d"], weights: Float[Array, " n"]
    ) -> Float[Array, "n d"]:
        frame = self._frame()
        if self.n_features(particles.shape[1]) is not None or not isinstance(frame, AffineMap):
            return AbstractKernel.velocity(self, particles, scores, weights)
        # In z = L^{-1} (x - mu) the score is L^T s, and gradients in x are L^{-T} times those in z.
        inner = self.kernel.velocity(frame.whiten(particles), scores @ frame.root, weights)
        return jax.scipy.linalg.solve_triangular(frame.root, inner.T, lower=True, trans="T").T

    def describe(self) -> str:
        return f"whitened {self.kernel.describe()}"

    def polynomial_degree(self) -> int | None:
        return self.kernel.polynomial_degree()

    def length_scale(self) -> Scalar:
        return self.kernel.length_scale()

    def parts(self, frame: AffineMap, factor: Any = 1.0) -> list[Part]:
        inner = self._frame()
        if not isinstance(inner, AffineMap):
            return [Part(self, frame, factor)]
        joined = AffineMap(frame.shift + frame.root @ inner.shift, frame.root @ inner.root)
        return self.kernel.parts(joined, factor)
