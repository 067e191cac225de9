"""The verdict of `verdict.judge` in JAX, for one posterior, so that those of many are one program.

The same functions, errors and conditions; without cubic fields, and with uniform weights where those of the best family
cannot be had. Images that are not to be used are zero instead of left out.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.linalg import cho_factor, cho_solve
from jaxtyping import Array, Bool, Float

from steinmatch._types import Numbers, Scalar, Vector
from steinmatch.adaptive.verdict import (
    BETTER,
    DOUBT,
    FALSE_ALARM,
    LEAST_ESS,
    ROUNDING,
    agreeing,
    cautious,
    estimated,
    in_units,
    mixing,
    moment_functions,
    moments,
    positive,
    remembered,
)
from steinmatch.coordinates import AbstractFrame, AffineMap, Composed, Parent
from steinmatch.measures.images import (
    DRAWS_AN_EQUATION,
    FAMILIES,
    HEAVY,
    Family,
    Values,
    all_images,
    growing,
    value_terms,
)
from steinmatch.measures.weights import FLOOR, HOLDS, SOLVED, Layout, spread
from steinmatch.targets import AbstractTarget

_FOLDS, _STEPS, _RIDGE = 8, 40, 1e-10
_MOST_IMAGES = 200
_DRAWS = 2 * DRAWS_AN_EQUATION  # at least: with fewer a first verdict takes longer, and a second is needed anyway
_CLIPPED = 64  # draws at the floor of the weights that are reckoned with
_LENGTHS = (1.0, 0.5, 0.25, 0.06)  # of Newton's steps


class Judged(NamedTuple):
    """As `Verdict`, in arrays."""

    weights: Float[Numbers, " n"]
    ess: Scalar
    residual: Scalar
    family: Scalar  # of the families that were tried; 0 for uniform weights
    error: Float[Numbers, " f"]
    memory: Scalar
    mixed: Bool[Numbers, ""]
    agree: Bool[Numbers, ""]
    mean: Float[Numbers, " k"]
    sd: Float[Numbers, " k"]


class Draws(NamedTuple):
    """Points of a frame with their scores, both seen through it."""

    z: Float[Numbers, "n d"]
    scores: Float[Numbers, "n d"]


def families_of(n: int, d: int, k: int) -> list[Family]:
    """Those that n draws can bear well, of two: a verdict's time grows with the square of the equations, and that of a
    walk in a good frame is short.
    """
    found = [FAMILIES[i] for i in (1, 3) if _DRAWS * FAMILIES[i].size(d, k) <= n]
    return [family for family in found if family.size(d, k) <= _MOST_IMAGES] or [FAMILIES[0]]


def constrained(target: AbstractTarget, frame: AbstractFrame, draws: Draws) -> Values:
    """The constrained values of draws of a frame, and what their Stein images are made of."""

    def one(z: Vector, score: Vector) -> tuple[Array, ...]:
        return value_terms(target.constrain, frame.colour(z), *_derivatives(frame, z), score)

    return Values(*jax.vmap(one)(*draws))


def _derivatives(frame: AbstractFrame, z: Vector) -> tuple[Float[Array, "d d"], Vector]:
    """T'(z) and the Laplacian of T. That of a parent is linear in all other coordinates."""
    if isinstance(frame, AffineMap):
        return jnp.asarray(frame.root), jnp.zeros_like(z)
    assert isinstance(frame, Composed)
    order, parent = frame.maps
    assert isinstance(parent, Parent)
    first = jnp.zeros_like(z).at[0].set(1.0)

    def along(z: Vector) -> Vector:
        return jax.jvp(parent.colour, (z,), (first,))[1]

    column, laplacian = jax.jvp(along, (z,), (first,))
    others = jnp.concatenate([jnp.zeros((1, len(z) - 1)), parent.spread(z[0])])
    jacobian = jnp.concatenate([column[:, None], others], axis=1)
    return jax.vmap(order.colour, in_axes=1, out_axes=1)(jacobian), order.colour(laplacian)


def judged(draws: Draws, values: Values, start: Draws, started: Values, layout: Layout, tol: Scalar) -> Judged:
    """Weights and errors of draws in the order of `layout`; `start` are the points where the groups began. Weights,
    half of the work, are uniform where the control variates' own errors are above the tolerance already.
    """
    n, d = draws.z.shape
    k = values.value.shape[1]
    mean, sd = jnp.mean(values.value, axis=0), positive(jnp.std(values.value, axis=0))
    functions = moment_functions(values.value, mean, sd)
    families = families_of(n, d, k)
    used = np.nonzero(families[-1].columns(d, k))[0]
    columns = [np.nonzero(family.columns(d, k)[used])[0] for family in families]
    psi = all_images(families[-1], *draws, values, mean, sd)[:, used]
    scale = jnp.sqrt(jnp.mean(psi**2, axis=0))
    squares = (psi / positive(scale)) ** 2
    light = jnp.mean(squares**2, axis=0) <= HEAVY * n
    usable = jnp.isfinite(scale) & (scale > 0.0) & (light | ~growing(d, k)[used])
    scale = jnp.where(usable, scale, jnp.inf)
    psi = jnp.where(usable, psi / scale, 0.0)
    fits = _CrossFit(functions, psi, layout)
    index, controls, agree = _best(families, columns, fits, functions, layout)
    index = jnp.where(agree, index, 0)
    index, control, own, weights, ess, residual = _weighed(
        columns, fits, psi, index, controls, (functions, layout, tol)
    )
    unit, _ = estimated(functions - control, layout)
    rest = in_units(functions - control, unit)
    seen = spread(rest, layout)
    begun = moment_functions(started.value, mean, sd)
    images = jnp.where(own, all_images(families[-1], *start, started, mean, sd)[:, used] / scale, 0.0)
    begun = begun - images @ fits.coefficients(own)
    parts = (
        cautious(rest, layout),
        weights @ in_units(functions, unit) - seen.mean,
        remembered(in_units(begun, unit), seen),
    )
    error = jnp.sqrt(sum(part**2 for part in parts) + ROUNDING**2)
    constant = jnp.std(values.value, axis=0) == 0.0
    memory, mixed = mixing(functions, layout)
    return Judged(
        weights, ess, residual, index,
        jnp.where(jnp.concatenate([constant, constant]), 0.0, error), memory, mixed, agree,
        *moments(values.value, weights),
    )  # fmt: skip


def _best(
    families: list[Family], columns: list[np.ndarray], fits: "_CrossFit", functions: Array, layout: Layout
) -> tuple[Array, list[Array], Array]:
    """The last of the estimates by larger and larger families, each better than the one before and agreeing with it;
    the control variates of each; and whether the best one agrees with plain draws.
    """
    error = jnp.max(estimated(functions, layout)[1])
    index, control = jnp.zeros((), int), jnp.zeros_like(functions)
    best, best_error, controls = control, error, []
    for i, family in enumerate(families):
        tried = fits.control(columns[i])
        controls.append(tried)
        least = jnp.max(estimated(functions - tried, layout)[1])
        least = jnp.where(jnp.isfinite(least), least, jnp.inf)
        wins = least < BETTER * best_error
        best, best_error = jnp.where(wins, tried, best), jnp.where(wins, least, best_error)
        level = DOUBT if family.grows else FALSE_ALARM
        wins = (least < BETTER * error) & agreeing(tried - control, layout, level)
        index = jnp.where(wins, i + 1, index)
        control, error = jnp.where(wins, tried, control), jnp.where(wins, least, error)
    return index, controls, agreeing(best, layout)


def _weighed(
    columns: list[np.ndarray],
    fits: "_CrossFit",
    psi: Array,
    index: Array,
    controls: list[Array],
    wanted: tuple[Array, Layout, Scalar],
) -> tuple[Array, ...]:
    """Weights for the equations of the chosen family, or of the next smaller one that has them, or uniform ones; where
    the chosen family's errors are within the tolerance.
    """
    functions, layout, tol = wanted
    n, m = psi.shape
    none, uniform = jnp.zeros(m, bool), jnp.full(n, 1.0 / n)
    found: tuple[Array, ...] = (
        jnp.zeros((), int), jnp.zeros_like(controls[0]), none, uniform, jnp.asarray(float(n)), jnp.zeros(()),
    )  # fmt: skip
    none_yet = jnp.ones((), bool)
    for i in reversed(range(len(columns))):
        own = np.zeros(m, bool)
        own[columns[i]] = True

        def solve(i: int = i, own: np.ndarray = own, larger: tuple = found) -> tuple[tuple, Array]:
            def with_weights() -> tuple[Array, Array, Array, Array]:
                ratio, residual, good = _nearest(jnp.where(own, psi, 0.0), fits.gram_of(jnp.asarray(own)))
                ess = n / jnp.mean(ratio**2)
                return ratio / n, ess, residual, good & (ess >= LEAST_ESS * n)

            def without() -> tuple[Array, Array, Array, Array]:
                return uniform, jnp.asarray(float(n)), jnp.zeros(()), jnp.ones((), bool)

            within = 2.0 * jnp.max(estimated(functions - controls[i], layout)[1]) <= tol
            weights, ess, residual, good = jax.lax.cond(within, with_weights, without)
            here = (jnp.asarray(i + 1), controls[i], jnp.asarray(own), weights, ess, residual)
            return jax.tree.map(lambda new, old: jnp.where(good, new, old), here, larger), ~good

        found, missing = jax.lax.cond(none_yet & (index > i), solve, lambda larger=found: (larger, jnp.ones((), bool)))
        none_yet = none_yet & missing
    return found


class _CrossFit:
    """Regressions on images with coefficients from the folds of other draws, as `weights.CrossFit`."""

    def __init__(self, functions: Array, psi: Array, layout: Layout):
        t, groups, siblings = layout
        self.shape = (t, groups // _FOLDS, _FOLDS, siblings)
        self.parts = self._folded(jnp.concatenate([jnp.ones((len(psi), 1)), psi], axis=1))
        self.grams = jnp.einsum("kni,knj->kij", self.parts, self.parts)
        self.rights = jnp.einsum("kni,knf->kif", self.parts, self._folded(functions))
        self.gram, self.right = jnp.sum(self.grams, axis=0), jnp.sum(self.rights, axis=0)

    def _folded(self, x: Array) -> Array:
        return jnp.moveaxis(x.reshape(*self.shape, -1), 2, 0).reshape(_FOLDS, -1, x.shape[1])

    def control(self, columns: np.ndarray) -> Array:
        whole = len(columns) + 1 == len(self.gram)
        with_one = slice(None) if whole else np.concatenate([[0], 1 + columns])
        grams = self.gram[with_one][:, with_one] - self.grams[:, with_one][:, :, with_one]
        rights = (self.right - self.rights)[:, with_one]
        if jax.default_backend() == "cpu":
            beta = jax.lax.map(lambda part: _solved(*part), (grams, rights))
        else:
            beta = jax.vmap(_solved)(grams, rights)
        found = jnp.einsum("kni,kif->knf", self.parts[:, :, with_one], beta.at[:, 0].set(0.0))
        t, q, folds, siblings = self.shape
        return jnp.moveaxis(found.reshape(folds, t, q, siblings, -1), 0, 2).reshape(t * q * folds * siblings, -1)

    def gram_of(self, own: Bool[Array, " m"]) -> Array:
        """Of the equations of some images, from all draws; those of others are zero."""
        with_one = jnp.concatenate([jnp.ones(1, bool), own])
        return jnp.where(with_one[:, None] & with_one[None, :], self.gram, 0.0)

    def coefficients(self, own: Bool[Array, " m"]) -> Array:
        """From all draws, for some images; zero for others."""
        with_one = jnp.concatenate([jnp.ones(1, bool), own])
        return _solved(self.gram_of(own), jnp.where(with_one[:, None], self.right, 0.0))[1:]


def _solved(gram: Array, right: Array) -> Array:
    """gram^-1 right, with a ridge for dependent equations and those that are zero."""
    ridge = _RIDGE * jnp.max(jnp.diagonal(gram))
    return cho_solve(cho_factor(gram + ridge * jnp.eye(len(gram)), lower=True), right)


def _nearest(psi: Float[Array, "n m"], gram: Float[Array, "m1 m1"]) -> tuple[Array, Array, Array]:
    """n times the weights nearest to uniform with sum_i w_i psi_i = 0, the largest equation left, and whether they were
    found: Newton's method, as in `weights.nearest_weights`. Its matrix is `gram` less what the lowest draws, where they
    are at the floor, have in it: there are few of them, or no weights worth having.
    """
    n = len(psi)
    basis = jnp.concatenate([jnp.ones((n, 1)), psi], axis=1)
    goal = jnp.zeros(basis.shape[1]).at[0].set(1.0)

    def left(free: Array) -> Array:
        return jnp.maximum(free, FLOOR) @ basis / n - goal

    def goes_on(state: tuple) -> Array:
        _, gradient, count, before = state
        size = jnp.max(jnp.abs(gradient))
        return (size > SOLVED) & (count < _STEPS) & (size < before)

    def step(state: tuple) -> tuple:
        free, gradient, count, _ = state
        lowest = jax.lax.top_k(-free, min(_CLIPPED, n))[1]
        clipped = jnp.where(free[lowest] <= FLOOR, 1.0, 0.0)[:, None] * basis[lowest]
        move = -basis @ _solved(gram - clipped.T @ clipped, n * gradient)
        trials = free + jnp.asarray(_LENGTHS)[:, None] * move
        sizes = jnp.max(jnp.abs(jax.vmap(left)(trials)), axis=1)
        best = jnp.argmin(jnp.where(jnp.isfinite(sizes), sizes, jnp.inf))
        return trials[best], left(trials[best]), count + 1, jnp.max(jnp.abs(gradient))

    free = jnp.ones(n)
    state = (free, left(free), jnp.zeros((), int), jnp.asarray(jnp.inf))
    free, gradient, *_ = jax.lax.while_loop(goes_on, step, state)
    ratio = jnp.maximum(free, FLOOR)
    ratio = ratio / jnp.mean(ratio)
    return ratio, jnp.max(jnp.abs(ratio @ psi)) / n, jnp.max(jnp.abs(gradient)) <= HOLDS
