"""Kernels: written for two points, with sums, scalings and whitening; a kernel may also have a feature map.

A kernel passes three stages, each an immutable pytree, and it can be used at any of them by `velocity`, `ksd`, `fit`:

    spec     RandomFourier(100)              what the user writes
    bound    spec.bind(key, particles)       random parameters drawn once, sizes known
    held     bound.hold(particles)           bandwidth rules replaced by their values at these particles

Only a held kernel is a function k(x, y).
"""

import abc
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from steinmatch._checks import check_kind, positive_number
from steinmatch._linalg import normalised
from steinmatch._types import Scalar, Vector
from steinmatch.coordinates import AbstractFrame, AffineMap, whiten_all


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


class AbstractKernel(eqx.Module):
    """A positive definite kernel k(x, y) of two points of shape (d,).

    A new kernel needs `__call__` alone: its derivatives are taken by JAX. A feature kernel needs `phi` alone (see
    `AbstractFeatureKernel`). What a class overrides beyond that is a closed form, tested against autodiff.
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

        d = particles.shape[1]
        return jax.lax.map(lambda e: jax.jvp(mean_features, (jnp.zeros(d),), (e,))[1], jnp.eye(d)).T

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


class Whitened(AbstractKernel):
    """k(z_x, z_y) with z = L^{-1} (x - mu): a kernel pulled back through a frame, a different kernel than k(x, y).

    mu and L are those of the affine phase or, without one, the mean and a Cholesky root of the covariance of the
    particles at binding; or z = T^{-1}(x) of the `frame`
    that is given, which need not be affine.
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
