"""The affine phase: particles x = mu + L z with z fixed, and mu, L such that the linear-kernel equations hold.

With mean z = 0 and mean z z^T = I, the fixed point equations of the linear kernel are E[s] = 0 and E[z s^T] L = -I.
They are the stationary points of the sample-average evidence bound with z held fixed,

    B(mu, L) = mean_i log p(mu + L z_i) + log |det L|,

which serves as the merit function: a step is taken only if it raises B. It does not depend on the mode, which in a
hierarchical model lies at infinity. In whitened coordinates the curvature of -log p, averaged over the particles, is
M = -sym(E[z s^T] L), and the steps L <- L M^{-t/2}, mu <- mu + t L M^{-1} L^T E[s] are Newton's for a Gaussian target:
exact at t = 1. Eigenvalues of M are taken by their absolute values and clipped, so that indefinite curvature does no
harm, and shifts are limited to some sds: a trust region, which grows fourfold with every step that it limited and that
raised B, so that a mean ten thousand sds away is reached in ten steps; t is halved until B rises. A bound of -inf or
nan is no rise, so non-finite scores only shrink the step.

It begins from the best of several scales, with a diagonal L where there are too few points for a full one.
"""

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax.numpy as jnp
import numpy as np
import scipy.special
from jaxtyping import Array, Float

from steinmatch._checks import positive_integer, positive_number
from steinmatch.coordinates import AffineMap
from steinmatch.measures.velocity import scaled_residual_at
from steinmatch.solvers.base import AbstractStepSolver, Budget, Counts, Iterate, Problem, whitening
from steinmatch.targets import AbstractTarget, Evaluations, scores_at

CLIP = 16.0  # a step of the first trust region changes a scale by at most the root of this
FAR = 3.0  # ... and a mean by at most this times sqrt(d), in sds
GROWTH, MOST_TRUST = 4.0, 1e8  # of the trust region
_HALVINGS = 14
_SLOW = 0.05  # nats a dimension: a diagonal step that gains less makes way for full ones, which gain more a gradient
START_SCALES = (1.0, 0.1, 10.0, 0.01)
_NO_GAINS: tuple[float, ...] = ()
_NOWHERE = "the log density or its gradient is not finite around any of the starts: give init="


Evaluate = Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]]  # points (n, d) to log densities and scores


class Bound(NamedTuple):
    """The bound and its derivatives at (mu, L), in whitened coordinates."""

    value: float  # B; nan where there is no log density
    gradient: np.ndarray  # L^T E[s]
    curvature: np.ndarray  # M = -sym(E[z s^T] L)


@dataclasses.dataclass(frozen=True)
class AffineState:
    """Where an affine phase stands."""

    z: np.ndarray  # (k, d), mean 0 and covariance I: the bound's points
    own: np.ndarray  # (n, d), the particles in the same coordinates; z itself where n > d
    frame: AffineMap
    bound: Bound
    diagonal: bool
    length: float  # of the last step, at most 1
    gains: tuple[float, ...]
    trust: float = 1.0  # size of the trust region


class Affine(AbstractStepSolver):
    """mu and L of x = mu + L z, for any target; after it the solvers work in whitened coordinates.

    **Arguments:**

    - `tol`: done when the largest entry of E[s]^T L and of E[z s^T] L + I (symmetric part) is below this.
    - `n_steps`: the most steps.

    The z are the whitened starting particles where n > d, so that for a Gaussian target the particles then have its
    mean and covariance exactly; with n <= d they are 2 d + 2 antithetic points of its own.
    """

    tol: float = eqx.field(static=True)
    n_steps: int = eqx.field(static=True)

    def __init__(self, tol: float = 1e-9, n_steps: int = 200):
        self.tol = positive_number(tol, "tol", "Affine")
        self.n_steps = positive_integer(n_steps, "n_steps", "Affine")

    def init(self, problem: Problem, particles: Float[Array, "n d"]) -> Iterate:
        n, d = particles.shape
        start, own = whitening(particles, problem.weights)
        own = np.asarray(own)
        z = own if n > d else normal_points(2 * d + 2, d, 0)
        evaluate = Evaluations(problem.target)
        sd = np.sqrt(np.sum(np.asarray(start.root) ** 2, axis=1))
        best = first_bound(evaluate, z, own, np.asarray(start.shift), sd)
        reason = "" if usable(best.bound) else _NOWHERE
        return self._iterate(problem, best, Counts(gradients=evaluate.n_gradients), reason)

    def step(self, problem: Problem, iterate: Iterate, budget: Budget) -> Iterate:
        evaluate = Evaluations(problem.target)
        following, error, done = raise_bound(evaluate, iterate.memory, self.tol)
        reason = ""
        if done and error <= self.tol:
            reason = f"the affine equations hold to {self.tol:.0e}"
        elif done:
            reason = f"the evidence bound rises no more; the affine equations are off by {error:.1e}"
        elif iterate.counts.steps + 1 >= self.n_steps:
            reason = f"the affine equations were still off by {error:.1e} after n_steps={self.n_steps} steps"
        converged = done and error <= self.tol
        counts = iterate.counts + Counts(1, evaluate.n_gradients)
        return self._iterate(problem, following, counts, reason, converged)

    def _iterate(
        self,
        problem: Problem,
        memory: AffineState,
        counts: Counts,
        reason: str,
        converged: bool = False,
    ) -> Iterate:
        kernel = problem.kernel.reframe(memory.frame)
        own = jnp.asarray(memory.own)
        particles, held, residual = _report(problem.target, kernel, own, problem.weights, memory.frame)
        return Iterate(
            particles=particles,
            kernel=held,
            residual=float(residual),
            counts=counts,
            converged=converged,
            reason=reason,
            frame=memory.frame,
            history={"residual": np.array([float(residual)]), "bound": np.array([memory.bound.value])},
            memory=memory,
        )


@eqx.filter_jit
def _report(target: AbstractTarget, kernel: Any, own: Array, weights: Array, frame: AffineMap) -> tuple:
    """The particles, the held kernel and its largest scaled residual."""
    particles = frame.colour(own)
    held = kernel.hold(particles)
    residual = scaled_residual_at(held, particles, scores_at(target, particles), weights, frame.root)
    return particles, held, jnp.max(jnp.abs(residual))


def normal_points(n: int, d: int, seed: int, antithetic: bool = True) -> Float[np.ndarray, "n d"]:
    """Stratified normal points, a Latin hypercube; antithetic ones have mean 0 and, if there are enough, covariance I
    exactly. By hand: importing SciPy's `stats` for the three lines took a third of a small fit's time.
    """
    rng = np.random.default_rng(seed)
    half = -(-n // 2) if antithetic else n
    strata = rng.permuted(np.tile(np.arange(half)[:, None], (1, d)), axis=0)
    z = scipy.special.ndtri(np.clip((strata + rng.uniform(size=(half, d))) / half, 1e-10, 1.0 - 1e-10))
    if not antithetic:
        return z
    z = np.concatenate([z, -z])
    if len(z) <= 2 * d:
        return z / np.sqrt(np.mean(z**2, axis=0))
    return np.linalg.solve(np.linalg.cholesky(z.T @ z / len(z)), z.T).T


def first_bound(
    evaluate: Evaluate,
    z: np.ndarray,
    own: np.ndarray,
    shift: np.ndarray,
    sd: np.ndarray,
    scales: tuple[float, ...] = START_SCALES,
    diagonal: bool = True,
    begun: AffineMap | None = None,
) -> AffineState:
    """The best of several scales around `shift`; or the one frame where it is to begin."""
    candidates = []
    for scale in scales:
        frame = AffineMap(shift, np.diag(scale * sd)) if begun is None else begun
        state = AffineState(z, own, frame, _bound(evaluate, frame, z, diagonal), diagonal, 1.0, _NO_GAINS)
        candidates.append(state)
    finite = [state for state in candidates if usable(state.bound)]
    return max(finite, key=_merit) if finite else candidates[0]


def raise_bound(evaluate: Evaluate, state: AffineState, tol: float) -> tuple[AffineState, float, bool]:
    """One step; by how much the affine equations then fail; and whether there is no more to gain."""
    following = _step(evaluate, state)
    error = _error(following.bound, following.diagonal)
    stalled = following.length == 0.0 or (len(following.gains) >= 8 and max(following.gains[-8:]) < 1e-10)
    if not state.diagonal:
        return following, error, error <= tol or stalled
    # A diagonal L only prepares the full one: it ends when the bound rises slowly.
    slow = min(following.gains, default=0.0) < _SLOW * state.z.shape[1]
    ends = error <= tol or stalled or len(following.gains) >= 40 or slow
    if ends and state.z.shape[1] > 1:
        return dataclasses.replace(following, diagonal=False, length=1.0, gains=_NO_GAINS), error, False
    return following, error, ends


def raise_diagonal(evaluate: Evaluate, state: AffineState) -> tuple[AffineState, bool]:
    """One step of a diagonal frame that is to remain one, and whether there is no more to gain."""
    following = _step(evaluate, state)
    return following, following.length == 0.0


def bound_error(state: AffineState) -> float:
    """By how much the affine equations fail."""
    return _error(state.bound, state.diagonal)


def _bound(evaluate: Evaluate, frame: AffineMap, z: np.ndarray, diagonal: bool) -> Bound:
    root = np.asarray(frame.root)
    scale = np.diagonal(root)
    values, scores = evaluate((z * scale if diagonal else z @ root.T) + np.asarray(frame.shift))
    with np.errstate(all="ignore"):
        value = float(np.mean(values) + np.sum(np.log(np.abs(scale))))
        product, mean = z.T @ scores / len(z), np.mean(scores, axis=0)
        product, gradient = (product * scale, scale * mean) if diagonal else (product @ root, root.T @ mean)
        return Bound(value, gradient, -0.5 * (product + product.T))


def usable(bound: Bound) -> bool:
    return bool(np.isfinite(bound.gradient).all() and np.isfinite(bound.curvature).all()) and not np.isposinf(
        bound.value
    )


def _merit(state: AffineState) -> float:
    """The bound; without a log density, how nearly the equations hold."""
    return -_error(state.bound, state.diagonal) if np.isnan(state.bound.value) else state.bound.value


def _error(bound: Bound, diagonal: bool) -> float:
    """By how much the affine equations fail."""
    off = np.diagonal(bound.curvature) - 1.0 if diagonal else bound.curvature - np.eye(len(bound.curvature))
    return float(max(np.abs(bound.gradient).max(), np.abs(off).max()))


def _moved(
    frame: AffineMap, bound: Bound, length: float, trust: float, diagonal: bool
) -> tuple[AffineMap, np.ndarray | None, np.ndarray, np.ndarray, bool]:
    """The frame after a step of this length, the rotation Q of z that keeps L triangular (x = L Q^T z; none of a
    diagonal one), the step itself (shift, log of the stretch) in the new coordinates, and whether the trust region
    limited it.
    """
    root, centre = np.asarray(frame.root), np.asarray(frame.shift)
    vectors = None
    if diagonal:
        values = np.diagonal(bound.curvature)
    else:
        values, vectors = np.linalg.eigh(bound.curvature)
    clip, far = CLIP * trust, FAR * np.sqrt(len(values)) * trust
    limited = bool(np.abs(values).max() > clip)
    values = np.clip(np.abs(values), 1.0 / clip, clip)
    shift = bound.gradient / values if vectors is None else vectors @ ((vectors.T @ bound.gradient) / values)
    # A step far outside of the particles' own spread is only trusted for its direction.
    distance = float(np.linalg.norm(shift))
    limited = limited or bool(distance > far)
    shift = shift * min(1.0, far / max(distance, 1e-300))
    if vectors is None:
        scale = np.diagonal(root)
        moved = AffineMap(centre + length * scale * shift, np.diag(scale * values ** (-0.5 * length)))
        return moved, None, shift, np.diag(-0.5 * np.log(values)), limited
    log_scale = vectors @ (-0.5 * np.log(values)[:, None] * vectors.T)
    stretch = vectors @ (values[:, None] ** (-0.5 * length) * vectors.T)
    rotation, upper = np.linalg.qr((root @ stretch).T)
    signs = np.where(np.diagonal(upper) < 0.0, -1.0, 1.0)
    rotation, lower = rotation * signs[None, :], (upper * signs[:, None]).T
    moved = AffineMap(centre + length * (root @ shift), lower)
    return moved, rotation, rotation.T @ shift, rotation.T @ log_scale @ rotation, limited


def _step(evaluate: Evaluate, state: AffineState) -> AffineState:
    """One step, halved until the bound rises. Length 0 where no step rises."""
    length, trust = min(1.0, 2.0 * state.length), state.trust
    for _ in range(_HALVINGS):
        frame, rotation, shift, log_scale, limited = _moved(state.frame, state.bound, length, trust, state.diagonal)
        z = state.z if rotation is None else state.z @ rotation
        bound = _bound(evaluate, frame, z, state.diagonal)
        gain = _gain(state.bound, bound, rotation, shift, log_scale, length)
        # Near the solution the rise of B drowns in its rounding; the equations themselves then decide.
        rounding = 1e-12 * (1.0 + abs(float(np.nan_to_num(state.bound.value))))
        closer = abs(gain) <= rounding and _error(bound, state.diagonal) < _error(state.bound, state.diagonal)
        if usable(bound) and (gain > rounding or closer):
            own = z if state.own is state.z else state.own if rotation is None else state.own @ rotation
            wider = min(GROWTH * trust, MOST_TRUST) if limited and length == 1.0 else trust
            return AffineState(z, own, frame, bound, state.diagonal, length, (*state.gains, gain), wider)
        if trust > 1.0:
            trust = max(1.0, trust / GROWTH)
        else:
            length *= 0.5
    return dataclasses.replace(state, length=0.0, gains=(*state.gains, 0.0))


def _gain(
    before: Bound,
    after: Bound,
    rotation: np.ndarray | None,
    shift: np.ndarray,
    log_scale: np.ndarray,
    length: float,
) -> float:
    """How much the bound rose; without a log density by the trapezoidal rule on its derivative along the step."""
    if not np.isnan(before.value):
        return after.value - before.value

    def slope(bound: Bound, shift: np.ndarray, log_scale: np.ndarray) -> float:
        return float(bound.gradient @ shift + np.sum((np.eye(len(shift)) - bound.curvature) * log_scale))

    back = (shift, log_scale) if rotation is None else (rotation @ shift, rotation @ log_scale @ rotation.T)
    return 0.5 * length * (slope(before, *back) + slope(after, shift, log_scale))
