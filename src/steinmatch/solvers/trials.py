"""Trial steps of Levenberg-Marquardt: the least change of z that solves the damped linearised equations.

By a Cholesky factor of J J^T + lambda I where J fits into memory, by conjugate gradients otherwise, preconditioned with
a factor in single precision where they have become slow.
"""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from steinmatch.solvers.fixed_point import (
    Equations,
    balanced,
    dense_jacobian,
    largest_residual,
    linearised,
    scores_in,
    slopes_in,
)
from steinmatch.solvers.preconditioner import Factor, preconditioned_conjugate_gradients
from steinmatch.solvers.rules import Effort
from steinmatch.targets import AbstractTarget

# Relative residuals of the inner solves: a step is inexact by less than what is nonlinear in it, a correction by more.
_STEP_TOLERANCE, _CORRECTION_TOLERANCE = 0.01, 0.05
_UNACCELERATED = Effort().first  # inner iterations


@eqx.filter_jit
def jacobian_and_gram(target: AbstractTarget, equations: Equations, z: Array, scores: Array) -> tuple[Array, Array]:
    """J and J J^T."""
    jacobian = dense_jacobian(equations, z, scores, slopes_in(target, equations.frame, z))
    return jacobian, jacobian @ jacobian.T


@eqx.filter_jit
def dense_trial(
    target: AbstractTarget, equations: Equations, z: Array, scores: Array, system: tuple[Array, Array], damping: Any
) -> tuple[Array, Array, Array, Array, Array, Array]:
    """A damped step from a Cholesky factor, with geodesic acceleration.

    Returns the new z and scores, the norms of F before and after, and the largest scaled residual after.
    """
    jacobian, gram = system
    value = equations(z, scores)
    unit = jnp.trace(gram) / gram.shape[0]
    factor = jax.scipy.linalg.cho_factor(gram + damping * unit * jnp.eye(gram.shape[0]), lower=True)

    def least_change(right: Array) -> Array:
        return -(jacobian.T @ jax.scipy.linalg.cho_solve(factor, right.ravel())).reshape(z.shape)

    step = least_change(value)
    image = (jacobian @ step.ravel()).reshape(value.shape)

    def residual(z: Array) -> Array:
        return equations(z, scores_in(target, equations.frame, z))

    step = _accelerated(residual, z, value, step, image, least_change)
    return *_evaluated(target, equations, z, step, value), jnp.zeros((), int)


@eqx.filter_jit
def score_slopes(target: AbstractTarget, equations: Equations, z: Array, scores: Array) -> Array:
    """The slopes of the scores, all that the Jacobian products need."""
    return slopes_in(target, equations.frame, z)


@eqx.filter_jit
def krylov_trial(
    target: AbstractTarget,
    equations: Equations,
    z: Array,
    scores: Array,
    slopes: Array,
    damping: Any,
    inner_steps: Any,
) -> tuple[Array, Array, Array, Array, Array, Array]:
    """A damped step by conjugate gradients on (J J^T + lambda I) y = F, solved the more exactly the smaller F is."""
    raw, push, pull = linearised(equations, z, scores, slopes)
    change = balanced(equations, pull, z.shape[1])
    change_back = jax.linear_transpose(change, raw)
    value = change(raw)

    def jacobian(v: Array) -> Array:
        return change(push(v))

    def transpose(u: Array) -> Array:
        return pull(change_back(u)[0])

    norm = jnp.linalg.norm(value)
    probe = jax.random.normal(jax.random.key(0), value.shape, jnp.float64)
    unit = jnp.sum(transpose(probe) ** 2) / value.size  # an estimate of the mean diagonal of J J^T

    def least_change(right: Array, tolerance: Any) -> tuple[Array, Array]:
        def product(y: Array) -> Array:
            return jacobian(transpose(y)) + damping * unit * y

        solution, iterations = conjugate_gradients(product, right, tolerance, inner_steps)
        return -transpose(solution), iterations

    step, iterations = least_change(value, jnp.clip(norm / np.sqrt(value.size), 1e-8, 0.1))

    def residual(z: Array) -> Array:
        return change(equations(z, scores_in(target, equations.frame, z)))

    def accelerate(step: Array) -> Array:
        correct = lambda right: least_change(right, _CORRECTION_TOLERANCE)[0]  # noqa: E731
        return _accelerated(residual, z, value, step, jacobian(step), correct)

    step = jax.lax.cond(inner_steps > _UNACCELERATED, accelerate, lambda step: step, step)
    return *_evaluated(target, equations, z, step, raw, change), iterations


def preconditioned_trial(
    target: AbstractTarget,
    equations: Equations,
    z: Array,
    scores: Array,
    slopes: Array,
    factor: Factor,
    damping: float,
    inner_steps: int,
) -> tuple[Array, Array, Array, Array, Array, int]:
    """A damped step by conjugate gradients with the factor as preconditioner, with geodesic acceleration."""
    at = (equations, z, scores, slopes)
    value = _value(equations, z, scores)

    def product(y: np.ndarray) -> np.ndarray:
        image = np.asarray(_gram_product(*at, y.reshape(value.shape))).ravel()
        return image + damping * factor.unit * y

    def least_change(right: Array, tolerance: float) -> tuple[Array, int]:
        flat = np.asarray(right).ravel()
        y, iterations = preconditioned_conjugate_gradients(product, factor.solve, flat, tolerance, inner_steps)
        return -_pulled(*at, y.reshape(value.shape)), iterations

    def residual(z: Array) -> Array:
        return _value_at(target, equations, z)

    step, iterations = least_change(value, _STEP_TOLERANCE)
    correct = lambda right: least_change(right, _CORRECTION_TOLERANCE)[0]  # noqa: E731
    step = _accelerated(residual, z, value, step, _pushed(*at, step), correct)
    return *_evaluated_from(target, equations, z, step, value), iterations


@eqx.filter_jit
def _value(equations: Equations, z: Array, scores: Array) -> Array:
    return equations(z, scores)


@eqx.filter_jit
def _value_at(target: AbstractTarget, equations: Equations, z: Array) -> Array:
    return equations(z, scores_in(target, equations.frame, z))


@eqx.filter_jit
def _pushed(equations: Equations, z: Array, scores: Array, slopes: Array, v: Array) -> Array:
    return linearised(equations, z, scores, slopes)[1](v)


@eqx.filter_jit
def _pulled(equations: Equations, z: Array, scores: Array, slopes: Array, u: Any) -> Array:
    return linearised(equations, z, scores, slopes)[2](u)


@eqx.filter_jit
def _gram_product(equations: Equations, z: Array, scores: Array, slopes: Array, u: Any) -> Array:
    _, push, pull = linearised(equations, z, scores, slopes)
    return push(pull(u))


def conjugate_gradients(
    product: Callable[[Array], Array], right: Array, tolerance: Any, most: Any
) -> tuple[Array, Array]:
    """y with |A y - right| <= tolerance |right| for a positive semidefinite A, or the y after `most` iterations."""
    square = jnp.vdot(right, right)
    goal = tolerance**2 * square

    def going(state: tuple) -> Array:
        *_, square, i = state
        return (square > goal) & (i < most)

    def improve(state: tuple) -> tuple:
        y, left, direction, square, i = state
        image = product(direction)
        length = square / jnp.vdot(direction, image)
        left = left - length * image
        following = jnp.vdot(left, left)
        return y + length * direction, left, left + (following / square) * direction, following, i + 1

    y, *_, iterations = jax.lax.while_loop(
        going, improve, (jnp.zeros_like(right), right, right, square, jnp.zeros((), int))
    )
    return y, iterations


def _accelerated(
    residual: Callable[[Array], Array],
    z: Array,
    value: Array,
    step: Array,
    image: Array,
    least_change: Callable[[Array], Array],
) -> Array:
    """The step with its geodesic acceleration: half of the least change that undoes F'' along the step.

    F'' comes from one difference of F. A correction that is large beside the step is cut down.
    """
    h = 0.1
    correction = least_change((2.0 / h) * ((residual(z + h * step) - value) / h - image))
    ratio = 2.0 * jnp.linalg.norm(correction) / jnp.linalg.norm(step)
    share = jnp.where(ratio < 0.75, 0.5, 0.5 * 0.75 / ratio)
    return step + jnp.where(jnp.isfinite(ratio), share * jnp.nan_to_num(correction), 0.0)


def _evaluated(
    target: AbstractTarget,
    equations: Equations,
    z: Array,
    step: Array,
    value: Array,
    change: Callable[[Array], Array] = lambda value: value,
) -> tuple[Array, Array, Array, Array, Array]:
    """The trial: z and scores after the step, the norms of F (changed by T) before and after, the largest residual."""
    moved = z + step
    scores = scores_in(target, equations.frame, moved)
    before, after = (jnp.linalg.norm(change(f)) for f in (value, equations(moved, scores)))
    return moved, scores, before, after, largest_residual(equations, moved, scores)


_evaluated_from = eqx.filter_jit(_evaluated)
