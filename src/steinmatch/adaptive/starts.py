"""Where the automatic fit begins: the affine phase from several starts, and what they tell about the target's shape."""

import dataclasses
from collections.abc import Callable

import numpy as np
from jaxtyping import Float

from steinmatch.adaptive.level import Whitening
from steinmatch.solvers.affine import START_SCALES, AffineState, first_bound, raise_bound
from steinmatch.targets import Evaluations

_TOL = 1e-2  # of the affine equations: the levels do the rest
_STEPS, _OTHER_STEPS = 150, 30
# Further starts, in turn: so many sds around the mode that was found, so many units around the centre.
_SPREADS = ((5.0, None), (None, 3.0), (15.0, None), (None, 10.0), (30.0, None), (None, 30.0))
_APART = 4.0  # sds between separate modes
_COMPARABLE = 4.0  # a mode with exp(-4) of the mass of the best one still matters
_DEEP = 2.0  # of a valley, in log density
_FAR = (100.0, 300.0)  # sds from the centre, where tails are looked at
_FINITE_VARIANCE = 3.05  # a tail r^-a has a finite variance for a > 3


@dataclasses.dataclass(frozen=True)
class Found:
    """The affine map x = shift + root z, and remarks that stand in the way of convergence."""

    shift: np.ndarray
    root: np.ndarray
    n_steps: int
    notes: list[str]


def affine_starts(
    evaluate: Evaluations,
    z: Float[np.ndarray, "k d"],
    few: Float[np.ndarray, "j d"],
    seed: int,
    spent: Callable[[], bool],
    centre: np.ndarray | None = None,
    scale: np.ndarray | None = None,
) -> Found:
    """The affine phase from `centre` with the points z, then with fewer points from others spread around; the highest
    bound wins.
    """
    d = z.shape[1]
    centre, scale = np.zeros(d) if centre is None else centre, np.ones(d) if scale is None else scale
    best, n_steps, _ = _climb(evaluate, z, centre, scale, _STEPS, spent)
    rng = np.random.default_rng(seed)
    others = 6 if d <= 5 else 4 if d <= 20 else 2 if d <= 50 else 1
    modes = [best]
    for local, spread in _SPREADS[:others]:
        if spent():
            break
        shift, root = _arrays(best)
        direction = rng.normal(size=d)
        away = centre + spread * scale * direction if local is None else shift + root @ (local * direction)
        sd = np.sqrt(np.sum(root**2, axis=1))
        near = [_arrays(mode) for mode in modes]
        state, steps, seen = _climb(evaluate, few, away, sd, _OTHER_STEPS, spent, near)
        n_steps += steps
        if not seen:
            modes.append(state)
            if state.bound.value > best.bound.value + 0.5:
                best = state
    if best is not modes[0]:  # a better mode was found in few steps: finish there
        finished, steps, _ = _climb(evaluate, z, *_centre(best), _STEPS, spent)
        best = max(modes[0], finished, key=lambda mode: mode.bound.value)
        n_steps += steps
    shift, root = _arrays(best)
    rivals = [
        mode
        for mode in modes
        if mode is not best
        and mode.bound.value > best.bound.value - _COMPARABLE
        and _distance(_arrays(mode)[0], (shift, root)) > _APART
    ]
    notes = []
    if rivals:
        notes.append(
            f"the target looks multimodal: {len(rivals)} of {others + 1} starts ended in other modes of comparable "
            f"mass, {', '.join(f'{_distance(_arrays(m)[0], (shift, root)):.0f}' for m in rivals)} sds away. These "
            'particles describe one mode; try solver="annealed" with a kernel'
        )
    return Found(shift, root, n_steps, notes)


def valley(whitening: Whitening, z: Float[np.ndarray, "n d"]) -> list[str]:
    """A remark where the density at the particles' mean is far below that at the particles: they surround a valley."""
    at = np.concatenate([z.mean(axis=0, keepdims=True), z])
    values, _ = whitening.evaluate(whitening.colour(at))
    depth = float(np.median(values[1:]) - values[0])
    if not depth > _DEEP:
        return []
    return [
        f"the target looks multimodal: the density at the particles' mean is exp(-{depth:.0f}) of that at them, "
        'so that they lie around a valley. Shares of separate modes may be wrong; try solver="annealed" with a kernel'
    ]


def heavy_tails(whitening: Whitening) -> list[str]:
    """A remark where the density falls like r^-a with a <= 3 along an axis: then the variance is infinite."""
    d = len(whitening.shift)
    axes = np.concatenate([np.eye(d), -np.eye(d)])[: 2 * min(d, 50)]
    powers = []
    for radius in _FAR:
        z = radius * axes
        with np.errstate(all="ignore"):
            powers.append(-np.sum(z * whitening.scores(z), axis=1))
    first, second = powers
    # A power law keeps its exponent from one radius to the other; lighter tails grow.
    with np.errstate(all="ignore"):
        heavy = np.isfinite(first) & np.isfinite(second) & (second < _FINITE_VARIANCE) & (second > 0.5)
        heavy &= np.abs(second - first) < 0.2 * np.abs(second)
    if not heavy.any():
        return []
    return [
        f"heavy tails: along {int(heavy.sum())} of {len(axes)} half-axes the density falls only like r^-"
        f"{float(np.min(second[heavy])):.1f}, so that variances are infinite and moments cannot be matched; ask for "
        "quantiles of a transformed parameter instead"
    ]


def _climb(
    evaluate: Evaluations,
    z: np.ndarray,
    shift: np.ndarray,
    sd: np.ndarray,
    steps: int,
    spent: Callable[[], bool],
    known: list[tuple[np.ndarray, np.ndarray]] | None = None,
) -> tuple[AffineState, int, bool]:
    """The affine phase from one start: its state, steps, and whether it came to one of the known modes and gave up."""
    state = first_bound(evaluate, z, z, shift, sd, (1.0,) if known else START_SCALES)
    for k in range(steps):
        if known and any(_distance(np.asarray(state.frame.shift), frame) < _APART / 2.0 for frame in known):
            return state, k, True
        if spent() or not np.isfinite(state.bound.gradient).all():
            return state, k, False
        state, _, done = raise_bound(evaluate, state, _TOL)
        if done:
            return state, k + 1, False
    return state, steps, False


def _arrays(state: AffineState) -> tuple[np.ndarray, np.ndarray]:
    return np.asarray(state.frame.shift), np.asarray(state.frame.root)


def _centre(state: AffineState) -> tuple[np.ndarray, np.ndarray]:
    shift, root = _arrays(state)
    return shift, np.sqrt(np.sum(root**2, axis=1))


def _distance(point: np.ndarray, frame: tuple[np.ndarray, np.ndarray]) -> float:
    """In sds, per coordinate the largest."""
    shift, root = frame
    return float(np.max(np.abs(np.linalg.solve(root, point - shift))))
