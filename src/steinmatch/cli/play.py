"""What the play page shows: solvers at work on a target of two dimensions, step by step, computed by the library."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from steinmatch._checks import known_name
from steinmatch._types import float64
from steinmatch.adaptive.frames import normal_points
from steinmatch.answers.sharpening import stein_weights
from steinmatch.coordinates import AffineMap
from steinmatch.coordinates.plainly import placed
from steinmatch.fitting import fit
from steinmatch.kernels import RBF, AbstractKernel
from steinmatch.kernels.features import Linear, LinearRandom
from steinmatch.records.pages.play import Frame, Play, Run
from steinmatch.solvers import Budget, Descent, Iterate, LevenbergMarquardt, Problem
from steinmatch.targets import AbstractTarget, Target

SIZES = (20, 100)
_KERNELS: dict[str, Callable[[], AbstractKernel]] = {"linear": Linear, "linear+random": LinearRandom, "RBF": RBF}
_GRID = 96  # of the picture
_SHOWN = (0, 1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)  # steps of descent


class _Case(NamedTuple):
    words: str
    log_density: Callable
    low: tuple[float, float]
    high: tuple[float, float]
    mean: tuple[float, float]
    sd: tuple[float, float]


def _gaussian(x: Any) -> Any:
    return -0.5 * (x[0] ** 2 - 1.6 * x[0] * x[1] + x[1] ** 2) / (1.0 - 0.64)


def _banana(x: Any) -> Any:
    return -0.5 * x[0] ** 2 - 2.0 * (x[1] - 0.5 * x[0] ** 2 + 0.5) ** 2


def _funnel(x: Any) -> Any:
    return -0.5 * x[0] ** 2 - 0.5 * x[1] ** 2 * jnp.exp(-1.5 * x[0]) - 0.75 * x[0]


def _mixture(x: Any) -> Any:
    left = -0.5 * ((x[0] + 1.5) ** 2 + x[1] ** 2) / 0.6
    return jnp.logaddexp(left, -0.5 * ((x[0] - 1.5) ** 2 + (x[1] - 0.5) ** 2) / 0.6)


TARGETS = {
    "gaussian": _Case("a Gaussian with correlation 0.8", _gaussian, (-4.0, -4.0), (4.0, 4.0), (0.0, 0.0), (1.0, 1.0)),
    "banana": _Case(
        "a banana: y follows the square of x", _banana, (-4.0, -3.0), (4.0, 7.0), (0.0, 0.0), (1.0, np.sqrt(0.75))
    ),
    "funnel": _Case(
        "a funnel: the spread of y grows with x", _funnel, (-4.0, -12.0), (4.0, 12.0), (0.0, 0.0), (1.0, np.exp(0.5625))
    ),
    "mixture": _Case(
        "two overlapping modes", _mixture, (-5.0, -4.0), (5.0, 4.5), (0.0, 0.25), (np.sqrt(2.85), np.sqrt(0.6625))
    ),
}


@float64
def played(name: str, seed: int, advance: Callable[[], None] = lambda: None) -> Play:
    """All runs of one target; `advance` is called after each, of which there are `n_runs()`."""
    case = TARGETS[known_name(name, TARGETS, "target", "play")]
    target = Target(case.log_density, dim=2, names=("x", "y"))
    truth = np.array(case.mean), np.array(case.sd)
    runs = []
    for n in SIZES:
        for kernel in _KERNELS:
            for solver in ("descent", "levenberg-marquardt"):
                runs.append(Run(solver, kernel, n, _solved(target, solver, kernel, n, seed, truth)))
                advance()
        runs.append(Run("frame, walk, weigh", "", n, _walked(target, n, seed, truth)))
        advance()
    across, up = (np.linspace(case.low[i], case.high[i], _GRID) for i in (0, 1))
    logs = _grid_logs(case, across, up)
    return Play(name, case.words, case.low, case.high, np.exp(logs - logs.max()), truth, runs)


def n_runs() -> int:
    return len(SIZES) * (2 * len(_KERNELS) + 1)


def _grid_logs(case: _Case, across: np.ndarray, up: np.ndarray) -> Float[np.ndarray, "up across"]:
    points = np.stack(np.meshgrid(across, up), axis=-1).reshape(-1, 2)
    logs = jax.jit(jax.vmap(case.log_density))(jnp.asarray(points))
    return np.asarray(logs).reshape(len(up), len(across))


def _frame(
    words: str, particles: Any, truth: tuple[np.ndarray, np.ndarray], gradients: int, weights: np.ndarray | None = None
) -> Frame:
    x = np.asarray(particles)
    w = np.full(len(x), 1.0 / len(x)) if weights is None else np.asarray(weights)
    mean = w @ x
    sd = np.sqrt(w @ (x - mean) ** 2)
    off = max(float(np.max(np.abs(mean - truth[0]) / truth[1])), 0.0)
    return Frame(words, x, w * len(x), off, float(np.max(np.abs(sd / truth[1] - 1.0))), gradients)


def _solved(
    target: AbstractTarget, solver: str, name: str, n: int, seed: int, truth: tuple[np.ndarray, np.ndarray]
) -> list[Frame]:
    """A fixed point of SVGD, step by step."""
    start_key, kernel_key = jax.random.split(jax.random.key(seed))
    particles = jax.random.normal(start_key, (n, 2), jnp.float64)
    problem = Problem(target, _KERNELS[name]().bind(kernel_key, particles), jnp.full(n, 1.0 / n))
    frames = [_frame("the start", particles, truth, 0)]
    if solver == "descent":
        method = Descent(n_steps=_SHOWN[-1])
        iterate = method.init(problem, particles)
        for step in _SHOWN[1:]:
            if iterate.reason:
                break
            while iterate.counts.steps < step and not iterate.reason:
                iterate = method.step(problem, iterate, Budget(max_steps=step))
            frames.append(_frame(f"step {iterate.counts.steps}", iterate.particles, truth, iterate.counts.gradients))
        return frames

    def seen(iterate: Iterate) -> None:
        words = f"step {iterate.counts.steps}, residual {iterate.residual:.0e}"
        frames.append(_frame(words, iterate.particles, truth, iterate.counts.work))

    LevenbergMarquardt(n_steps=40).solve(problem, particles, Budget(), seen)
    return frames


def _walked(target: AbstractTarget, n: int, seed: int, truth: tuple[np.ndarray, np.ndarray]) -> list[Frame]:
    """Points of the frame, draws of the walk as they are, and weighed."""
    found = fit(target, seed=seed, progress=False)
    z = normal_points(n, 2, seed)
    frame = AffineMap(jnp.zeros(2), jnp.eye(2)) if found.walked is None else found.walked.frame
    some = found.particles[np.linspace(0, len(found.particles) - 1, n).astype(int)]
    weights = stein_weights(target, some)
    return [
        _frame("points of a standard normal", z, truth, 0),
        _frame(
            "the same points in the frame, found with the first draws",
            placed(frame, z).x,
            truth,
            found.rounds[0].n_gradients,
        ),
        _frame(f"{n} draws of the walk, of equal weight", some, truth, found.n_gradients),
        _frame(f"the same {n} draws with Stein weights", some, truth, found.n_gradients + n, np.asarray(weights)),
    ]
