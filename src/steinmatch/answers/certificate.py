"""What particles are worth: rank condition, Stein residual, what is matched, and a check on features nobody fitted.

A certificate reports about particles of any origin; it never moves them.
"""

import dataclasses
import io

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float
from rich.console import Console
from rich.table import Table

from steinmatch._checks import as_particles, as_weights, positive_integer
from steinmatch._linalg import covariance_root, normalised, singular_values
from steinmatch._types import ArrayLike, float64
from steinmatch.coordinates import AffineMap
from steinmatch.kernels import IMQ, AbstractKernel
from steinmatch.kernels.features import Polynomial, RandomFourier
from steinmatch.kernels.forms import images_at, residual_at
from steinmatch.measures.discrepancy import ksd
from steinmatch.measures.stein import bound_at, compiled_features_at
from steinmatch.measures.velocity import scaled_residual_at
from steinmatch.targets import AbstractTarget, Gaussian, check_target, scores_at

_PAIRS = 5000  # points of the discrepancy, at most
EXACT = 1e-8  # a scaled residual up to here counts as zero in words
_ESS_FEATURES = 1000
_ESS_KEY = 20_180  # of the fresh features: the same for all particles, so that certificates compare
_SUBSAMPLE, _SUBFEATURES = 300, 200  # for the degrees of freedom of stein_ess


@dataclasses.dataclass(frozen=True)
class SteinESS:
    """How many independent draws the particles are worth on random features that were not fitted."""

    value: float
    interval: tuple[float, float]  # 90 %, as it would be for independent draws
    shift: float  # largest mean score in whitened units: 0 by Stein's identity; the mean's error for a Gaussian target
    variance_ratio: float  # -E[(x - mu) . s] / d: 1 by Stein's identity; the ratio of variances for a Gaussian target

    def __float__(self) -> float:
        return self.value


@dataclasses.dataclass(frozen=True)
class Certificate:
    """What is exact about particles, and how exact. Prints as a table."""

    n_particles: int
    dim: int
    n_features: int | None  # None for a full-rank kernel
    rank: int | None  # of Phi = [phi_l(x_i)], columns scaled to length one
    rank_tolerance: float | None  # singular values above this count
    singular_values: tuple[float, float] | None  # smallest and largest
    rank_condition: bool  # rank = n_features (Theorem 3.2); False for a full-rank kernel, where Lemma 3.1 holds instead
    residual: float  # largest entry of the scaled residual
    residual_rms: float
    velocity: float  # largest entry of the SVGD velocity at the particles
    matched: str
    shift: float  # as in SteinESS
    variance_ratio: float  # as in SteinESS
    ksd: float  # kernelized Stein discrepancy, IMQ kernel
    stein_ess: float
    stein_ess_interval: tuple[float, float]

    def __rich__(self) -> Table:
        table = Table(title="certificate", show_header=False, title_justify="left")
        table.add_column(style="bold")
        table.add_column(overflow="fold")
        features = "full-rank kernel" if self.n_features is None else f"{self.n_features} features"
        table.add_row("particles", f"{self.n_particles} in {self.dim} dimensions, {features}")
        if self.rank is not None and self.singular_values is not None:
            low, high = self.singular_values
            state = "met" if self.rank_condition else "NOT met"
            table.add_row(
                "rank condition",
                f"{state}: rank {self.rank} of {self.n_features}; singular values {low:.2g} to {high:.2g}, "
                f"tolerance {self.rank_tolerance:.1g}",
            )
        table.add_row("scaled residual", f"largest {self.residual:.1e}, rms {self.residual_rms:.1e}")
        table.add_row("velocity", f"largest {self.velocity:.1e}")
        table.add_row("matched", self.matched)
        table.add_row(
            "linear identities",
            f"mean score {self.shift:.2g} (0 for exact particles), -E[(x - mean) . score] / d = "
            f"{self.variance_ratio:.4g} (1 for exact particles)",
        )
        table.add_row("KSD (IMQ)", f"{self.ksd:.4g}")
        low, high = self.stein_ess_interval
        table.add_row(
            "stein_ess",
            f"these {self.n_particles} particles are worth about {self.stein_ess:,.0f} independent draws "
            f"({low:,.0f} to {high:,.0f}) on functions that were not fitted",
        )
        return table

    def __str__(self) -> str:
        console = Console(file=io.StringIO(), width=100)
        console.print(self)
        return console.file.getvalue()  # type: ignore[attr-defined]


@float64
def certify(
    target: AbstractTarget,
    kernel: AbstractKernel,
    particles: ArrayLike,
    weights: ArrayLike | None = None,
    seed: int = 0,
    frame: AffineMap | None = None,
) -> Certificate:
    """The certificate of particles from anywhere, for the features of `kernel`.

    **Arguments:** `target`, `kernel`, `particles`, `weights` and `seed` as in `velocity`; `frame`: the affine map in
    whose units residuals are scaled, by default the particles' mean and covariance.
    """
    points, given, bound = bound_at("certify", target, kernel, particles, weights, seed)
    n, d = points.shape
    w = normalised(given, n)
    held, residual, speed = _measure(target, bound, points, w, None if frame is None else jnp.asarray(frame.root))
    m = held.n_features(d)
    rank, tolerance, extremes = None, None, None
    if m is not None:
        sizes, tolerance = singular_values(np.asarray(compiled_features_at(held, points)))
        rank = int(np.sum(sizes > tolerance))
        extremes = (0.0 if n < m else float(sizes[-1]), float(sizes[0]))
    ess = stein_ess(target, points, w)
    largest = float(np.max(np.abs(residual)))
    return Certificate(
        n_particles=n,
        dim=d,
        n_features=m,
        rank=rank,
        rank_tolerance=tolerance,
        singular_values=extremes,
        rank_condition=m is not None and rank == m,
        residual=largest,
        residual_rms=float(np.sqrt(np.mean(np.asarray(residual) ** 2))),
        velocity=float(np.max(np.abs(speed))),
        matched=_matched(target, held, n, rank, largest),
        shift=ess.shift,
        variance_ratio=ess.variance_ratio,
        ksd=_ksd_of_some(target, points, w),
        stein_ess=ess.value,
        stein_ess_interval=ess.interval,
    )


def _ksd_of_some(target: AbstractTarget, points: Array, weights: Array) -> float:
    """The discrepancy, a sum over pairs, of at most so many points, evenly chosen."""
    some = np.linspace(0, len(points) - 1, min(len(points), _PAIRS)).astype(int)
    return float(ksd(target, points[some], IMQ(), weights[some]))


@eqx.filter_jit
def _measure(
    target: AbstractTarget, kernel: AbstractKernel, points: Array, weights: Array, root: Array | None
) -> tuple[AbstractKernel, Array, Array]:
    """The held kernel, the scaled residual, the velocity."""
    held, scores = kernel.hold(points), scores_at(target, points)
    residual = scaled_residual_at(held, points, scores, weights, root)
    return held, residual, held.velocity(points, scores, weights)


def _matched(target: AbstractTarget, kernel: AbstractKernel, n: int, rank: int | None, residual: float) -> str:
    """What the particles match, in words."""
    d = target.dim
    m = kernel.n_features(d)
    if m is not None and rank == m:
        what = f"the Stein images of {m} {kernel.describe()} features"
        degree = kernel.polynomial_degree()
        if isinstance(target, Gaussian) and degree is not None:
            what = f"all polynomials of degree <= {degree + 1} of a Gaussian target"
            what += "" if m == Polynomial(degree).n_features(d) else f", and {m} features' Stein images in all"
    else:
        why = "" if m is None else f" (rank {rank} of {m} features: the rank condition is not met)"
        what = f"the Stein images of the {n} kernel sections k(., x_i) of the {kernel.describe()} kernel{why}"
    if residual <= EXACT:
        return f"{what}, to a scaled residual of {residual:.0e}"
    level = "approximately" if residual <= 1e-2 else "NOT matched:"
    return f"{level} {what}; the scaled residual is {residual:.1e}"


@float64
def stein_ess(
    target: AbstractTarget, particles: ArrayLike, weights: ArrayLike | None = None, n_features: int = _ESS_FEATURES
) -> SteinESS:
    """(mean over w and particles of |P phi_w|^2) / (mean over w of |G(w)|^2), over fresh random cosines phi_w.

    For n independent draws of p it is about n, for collapsed particles 1. The cosines are of the whitened point with
    h = sqrt(d), from a fixed key. The whitening is the scale that the target asks for: with L a root of the covariance
    of the particles, Stein's identity E[(x - mu) s^T] = -I fails by M = -sym(E[z s^T] L), and L M^(-1/2) repairs it,
    so that collapsed particles are not mistaken for a narrow target.
    """
    check_target(target, "stein_ess")
    points = jnp.asarray(as_particles(particles, "stein_ess", target.dim))
    n = points.shape[0]
    w = normalised(as_weights(weights, n, "stein_ess"), n)
    count = positive_integer(n_features, "n_features", "stein_ess")
    kernel = RandomFourier(count, np.sqrt(target.dim)).bind(jax.random.key(_ESS_KEY), points).hold(points)
    spread, discrepancy, shift, ratio, z, s = _stein_ess(target, kernel, points, w)
    # |G|^2 of independent draws is a weighted sum of chi-squares with nu = tr(C)^2 / tr(C^2) degrees of freedom, C the
    # covariance of (P phi_w)(x) over all w; pairs of particles give it, and a few features and a subsample suffice.
    few = RandomFourier(min(count, _SUBFEATURES), np.sqrt(target.dim)).bind(jax.random.key(_ESS_KEY), points)
    gram = np.asarray(_gram(few.hold(points), z[:: -(-n // _SUBSAMPLE)], s[:: -(-n // _SUBSAMPLE)]))
    pairs = gram[~np.eye(len(gram), dtype=bool)]
    nu = np.trace(gram) ** 2 / len(gram) ** 2 / np.mean(pairs**2) if len(pairs) and np.any(pairs) else 1.0
    value = float(spread / discrepancy) if discrepancy > 0.0 else float("inf")
    low, high = (value * max(1.0 - 2.0 / (9.0 * nu) + z * np.sqrt(2.0 / (9.0 * nu)), 0.0) ** 3 for z in (-1.645, 1.645))
    return SteinESS(value, (float(low), float(high)), float(shift), float(ratio))


@eqx.filter_jit
def _stein_ess(
    target: AbstractTarget, kernel: AbstractKernel, points: Array, weights: Array
) -> tuple[Array, Array, Array, Array, Array, Array]:
    scores = scores_at(target, points)
    centred = points - (weights @ points)[None, :]
    ratio = -(weights @ jnp.sum(centred * scores, axis=1)) / points.shape[1]
    root = target_root(points, scores, weights)
    z = jnp.linalg.solve(root, centred.T).T
    s = scores @ root
    residual = residual_at(kernel, z, s, weights)
    waves, phases = kernel._waves()  # type: ignore[attr-defined]
    angles = z @ waves.T + phases[None, :]
    cosines, sines = jnp.sqrt(2.0) * jnp.cos(angles), jnp.sqrt(2.0) * jnp.sin(angles)
    # |P phi_w|^2 = cos^2 |s|^2 - 2 cos sin (w . s) + sin^2 |w|^2
    squares = cosines**2 * jnp.sum(s**2, axis=1)[:, None] - 2.0 * cosines * sines * (s @ waves.T)
    squares = squares + sines**2 * jnp.sum(waves**2, axis=1)[None, :]
    spread = jnp.mean(weights @ squares)
    return spread, jnp.mean(jnp.sum(residual**2, axis=1)), jnp.max(jnp.abs(weights @ s)), ratio, z, s


@eqx.filter_jit
def _gram(kernel: AbstractKernel, z: Array, s: Array) -> Array:
    images = images_at(kernel, z, s).reshape(z.shape[0], -1)
    return images @ images.T


def target_root(points: Array, scores: Array, weights: Array) -> Float[Array, "d d"]:
    """A root of the covariance that the scores at the particles ask for, see `stein_ess`."""
    root = covariance_root(points, weights)
    centred = points - (weights @ points)[None, :]
    z = jax.scipy.linalg.solve_triangular(root, centred.T, lower=True).T
    moment = -(weights[:, None] * z).T @ (scores @ root)
    sizes, axes = jnp.linalg.eigh(0.5 * (moment + moment.T))
    if points.shape[0] <= points.shape[1]:  # too few particles for directions: each coordinate by itself
        sizes, axes = jnp.diagonal(moment), jnp.eye(points.shape[1])
    usable = jnp.clip(jnp.abs(sizes), 1e-12, 1e12)
    # The symmetric root: near a fixed point all sizes are 1, and the axes by themselves are arbitrary.
    return root @ ((axes / jnp.sqrt(usable)[None, :]) @ axes.T)
