"""Looking around: tails too heavy for moments, and other modes.

Along the coordinates' axes and some other rays the density of a target with one mode falls and its score points back.
Where it does not, and from points spread widely, the density is climbed in the coordinates of the frame, in which the
target is nearly a standard normal; what ends elsewhere, beyond a valley, gets an affine phase of its own, and its
evidence bound is compared.
"""

from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from steinmatch.adaptive.frames import BATCH, Cloud, Seen, begin_climb, begin_points
from steinmatch.coordinates import AbstractFrame, AffineMap, LowRank
from steinmatch.coordinates.plainly import derivatives, placed, rows, unplaced
from steinmatch.solvers.affine import AffineState, bound_error, raise_bound, usable
from steinmatch.targets import AbstractTarget, Evaluations

RADII = (4.0, 8.0, 16.0, 32.0, 100.0, 300.0)  # sds along a ray; the last two tell of the tails
_AXES = 16  # at most
_SPREAD = (5.0, 15.0, 30.0)  # of the points that are climbed from, in sds and in units of the start
_FARTHEST = 1e6  # sds from the centre of points that are climbed from
_CLIMBS = 14  # steps of a point up the density
_RANGE = 30.0  # nats below the frame's usual density at which a point is no mode of mass
_DIP = 0.5  # nats of a valley between two modes
_DEEP, _NEAR, _WITHIN = 4.0, 0.7, 0.2  # nats of one that chains cross rarely; how near its sides may be, their scale
_OTHER_SWEEPS = 25  # of the affine phase of another mode
_SLOW_RISE = 0.05  # nats a sweep
_SETTLED = 0.5  # by how much the affine equations of a mode may fail
_NEARLY = 0.25  # ... and are not raised further, since the bound of a small mode may rise on towards a large one
_APART = 3.0  # sds between modes
_MOST = 7  # other modes
_NARROW = 4.0  # nats by which a peak is above what a normal has at its mode, or a mode smaller than another
_FAR, _MATTERS = 8.0, 0.02  # sds at which a normal has no mass; what may be added to a variance
_TUBE, _CONE = 3.0, 2.0  # the variance is finite if a > 3 in a tube around an axis, if a > d + 2 in a cone


class Rays(NamedTuple):
    """What rays from the centre of an affine frame show."""

    notes: tuple[str, ...]  # what stands in the way of convergence
    suspects: Float[np.ndarray, "n d"]  # points where the density rises outwards
    wide: float | None  # the radius, in sds, at which there is mass that the frame's normal does not have


class Modes(NamedTuple):
    """What a search for other modes found."""

    notes: tuple[str, ...]
    better: Float[np.ndarray, " d"] | None  # the centre of a mode with a higher bound than the frame's own
    frames: tuple[AffineMap, ...] = ()  # of all modes whose mass is not negligible, where there are several


def look_along_rays(evaluate: Evaluations, frame: AffineMap | LowRank, seed: int) -> Rays:
    """Tails and rises along axes and some other rays."""
    shift = np.asarray(frame.shift)
    d = len(shift)
    rng = np.random.default_rng(seed)
    which = np.sort(rng.permutation(d)[:_AXES])
    axes = np.zeros((len(which), d))
    axes[np.arange(len(which)), which] = np.sqrt(rows(frame, shift[None], shift[None]).squares[0, which])
    rays = rng.normal(size=(8, d))
    rays = placed(frame, rays / np.linalg.norm(rays, axis=1, keepdims=True)).x - shift
    rays = np.concatenate([axes, -axes, rays])
    points = shift + np.asarray(RADII)[:, None, None] * rays[None]
    with np.errstate(all="ignore"):
        values, scores = evaluate(np.concatenate([points.reshape(-1, d), shift[None]]))
        centre = float(values[-1])
        values, scores = (part[:-1].reshape(len(RADII), len(rays), -1) for part in (values, scores))
        inward = -np.sum(scores * (points - shift), axis=2)  # the power a of a tail r^-a
        rising = np.diff(values[:, :, 0], axis=0, prepend=np.inf) > 1e-9
        # The mass at radius r, in a tube around an axis or in a cone, times r^2: what it adds to a variance.
        power = np.where(np.arange(len(rays)) < 2 * len(axes), 1.0, d)
        added = values[:, :, 0] - centre + (power + 2.0) * np.log(RADII)[:, None]
        far = (added > np.log(_MATTERS)) & (np.asarray(RADII) >= _FAR)[:, None]
    reach = np.asarray(RADII)[far.any(axis=1)]
    wide = float(reach.max()) if len(reach) else None
    return Rays(
        _tails(inward, [_name(evaluate.target, int(i)) for i in which], d), points[(inward < 0.0) | rising], wide
    )


def _name(target: AbstractTarget, i: int) -> str:
    """What the user calls an unconstrained coordinate."""
    own = target.constrain is None and target.names is not None
    return target.names[i] if own and target.names is not None else f"x[{i}]"


def _tails(inward: Float[np.ndarray, "radii rays"], names: list[str], d: int) -> tuple[str, ...]:
    """Remarks where the density falls like r^-a, with an a that the variance does not survive. The first rays go along
    the named axes, there and back.
    """
    first, second = inward[-2], inward[-1]
    axes = len(names)
    with np.errstate(all="ignore"):
        # A power law keeps its exponent from one radius to the other; lighter tails grow.
        power = np.isfinite(first) & np.isfinite(second) & (np.abs(second - first) < 0.2 * np.abs(second) + 0.05)
    least = np.where(np.arange(len(second)) < 2 * axes, _TUBE, d + _CONE) + 0.05
    flat = power & (np.abs(second) < 0.05)
    heavy = power & (second < least) & ~flat
    notes = []
    ways = np.stack([flat[:axes], flat[axes : 2 * axes]])
    if ways.any():
        along = ", ".join(names[i] for i in np.nonzero(ways.any(axis=0))[0])
        notes.append(
            f"improper in {along}: the density does not fall along "
            + ("it" if ways.any(axis=0).sum() == 1 else "them")
            + f", as far as {RADII[-1]:.0f} sds; give a prior there"
        )
    if heavy.any():
        notes.append(
            f"heavy tails: along {int(heavy.sum())} of {len(second)} rays the density falls only like r^-"
            f"{float(np.min(second[heavy])):.1f}, so that variances are infinite and moments cannot be matched; ask "
            "for quantiles of a transformed parameter instead"
        )
    return tuple(notes)


def look_for_modes(
    evaluate: Evaluations,
    frame: AbstractFrame,
    points: Cloud,
    rays: Rays,
    centre: Float[np.ndarray, " d"],
    scale: Float[np.ndarray, " d"],
    seed: int,
) -> Modes:
    """Other modes of a target, one of which the frame describes; `points` are some of the frame's own."""
    d = len(centre)
    seen = Seen(evaluate, frame)
    ends, tops = _ascend(seen, _begun(frame, rays, centre, scale, np.random.default_rng(seed)))
    bound = float(np.mean(points.log_densities))
    usual = bound + 0.5 * d  # log pi at the mode of a normal is d / 2 above its mean
    high = ~(tops < usual - d - _RANGE)
    candidates = [(z, 1.0) for z in _distinct(ends[high], ends[0]) if _dip(seen, z, ends[0]) > _DIP]
    # A frame that lies across two modes is none of them.
    across = [z for z in _distinct(ends[high], ends[0], _NEAR, [ends[0]]) if _dip(seen, z, ends[0]) > _DEEP]
    if across:
        candidates = [(z, _WITHIN) for z in (ends[0], *across)]
    peak = int(np.argmax(np.where(np.isfinite(tops), tops, -np.inf)))
    if tops[peak] - usual > _NARROW + 0.5 * d:
        candidates.insert(0, (ends[peak], 0.01))
    if rays.wide is not None:
        candidates.insert(0, (np.zeros(d), 0.5 * rays.wide))
    rivals = _rivals(seen, candidates, bool(across), seed)
    home = not across or len(rivals) < 2
    if across and home:
        rivals = []
    best = max(rivals, key=lambda rival: rival.bound.value, default=None)
    better = best is not None and (not home or best.bound.value > bound + 0.5)
    top = best.bound.value if better and best is not None else bound
    # A mode with a share exp(-g) of the mass at r sds changes the variance by r^2 exp(-g).
    apart = [(rival, max(float(np.linalg.norm(np.asarray(rival.frame.shift))), 1.0)) for rival in rivals]
    matter = [(rival, r) for rival, r in apart if not top - rival.bound.value > np.log(r * r / 0.02) + 1.0]
    if not matter:
        return Modes((), None)
    others = len(matter) - (not home)
    notes = (
        ()
        if not others
        else (
            f"the target has several modes: {others} besides the one described here, "
            f"{', '.join(f'{r:.0f}' for _, r in matter)} sds away, whose mass is not negligible and is not weighed",
        )
    )
    place = placed(frame, np.asarray(best.frame.shift)[None]).x[0] if better and best is not None else None
    frames = [_outside(frame, rival.frame) for rival, _ in matter]
    if home and not top - bound > np.log(max(r for _, r in matter) ** 2 / 0.02) + 1.0:
        frames.insert(0, _outside(frame, AffineMap(np.zeros(d), np.eye(d))))
    return Modes(notes, place, tuple(frames))


def _begun(
    frame: AbstractFrame,
    rays: Rays,
    centre: Float[np.ndarray, " d"],
    scale: Float[np.ndarray, " d"],
    rng: np.random.Generator,
) -> Float[np.ndarray, "n d"]:
    """A batch of points to climb from, in the frame: the middle, suspects, and points spread widely."""
    d = len(centre)
    chosen = rays.suspects[rng.permutation(len(rays.suspects))[: BATCH // 2]]
    spreads = np.resize(_SPREAD, BATCH)[:, None] * rng.normal(size=(BATCH, d))
    far = np.concatenate([chosen, centre + spreads[::2] * scale])
    with np.errstate(all="ignore"):
        far = unplaced(frame, far)
        far = far[np.max(np.abs(far), axis=1) < _FARTHEST]
    middle = rng.normal(size=(1, d)) / (2.0 * np.sqrt(d))  # the centre itself may be a saddle between two modes
    starts = np.concatenate([middle, far, spreads[1::2]])[:BATCH]
    if len(starts) < BATCH:
        starts = np.concatenate([starts, np.resize(spreads, (BATCH - len(starts), d))])
    return starts


def _rivals(seen: Seen, candidates: list[tuple[np.ndarray, float]], across: bool, seed: int) -> list[AffineState]:
    """Affine phases of candidates, each with a scale, that end in modes of their own."""
    d = len(candidates[0][0]) if candidates else 0
    few = begin_points(d) < 2 * d + 2
    rivals: list[AffineState] = []
    for z, scale_there in candidates:
        if len(rivals) >= _MOST:
            break
        local, done = begin_climb(seen, z, np.full(d, scale_there), seed, scale_there > 1.0), False
        for _ in range(_OTHER_SWEEPS):
            if not usable(local.bound) or not (across or _other(local, rivals, 0.5)):
                break
            local, error, done = raise_bound(seen, local, 1e-2)
            slow = len(local.gains) > 1 and local.gains[-1] < _SLOW_RISE
            done = done or error < _NEARLY or (error < _SETTLED and slow)
            if done or (few and not local.diagonal):  # in many dimensions a diagonal frame must do
                done = True
                break
        known = np.isfinite(local.bound.value) or seen.evaluate.target.log_density is None
        settled = done and usable(local.bound) and (few or bound_error(local) < _SETTLED)
        if settled and known and (_apart(local, rivals) if across else _other(local, rivals)):
            rivals.append(local)
    return rivals


def _outside(frame: AbstractFrame, local: AffineMap) -> AffineMap:
    """A mode's affine frame in the target's own coordinates; to first order where the frame is not affine."""
    centre = np.asarray(local.shift)[None]
    root = derivatives(frame, centre)[0][0] @ np.asarray(local.root)
    lower = np.linalg.qr(root.T)[1].T
    lower = lower * np.where(np.diagonal(lower) < 0.0, -1.0, 1.0)[None, :]
    return AffineMap(placed(frame, centre).x[0], lower)


def _ascend(seen: Seen, z: Float[np.ndarray, "n d"]) -> tuple[Float[np.ndarray, "n d"], Float[np.ndarray, " n"]]:
    """Points moved up the density, each with a step length of its own, and the log density there."""
    with np.errstate(all="ignore"):
        values, scores = seen(z)
        length = np.ones(len(z))
        for _ in range(_CLIMBS):
            move = length[:, None] * np.where(np.isfinite(scores), scores, 0.0)
            size = np.linalg.norm(move, axis=1, keepdims=True)
            move *= np.minimum(1.0, (1.0 + 0.3 * np.linalg.norm(z, axis=1, keepdims=True)) / np.maximum(size, 1e-300))
            there = z + move
            trial_values, trial_scores = seen(there)
            rise = trial_values - values
            # Without a log density: the rise by the trapezoidal rule.
            rise = np.where(np.isnan(rise), 0.5 * np.sum(move * (scores + trial_scores), axis=1), rise)
            better = (rise > 0.0) & np.isfinite(trial_scores).all(axis=1)
            z = np.where(better[:, None], there, z)
            values, scores = np.where(better, trial_values, values), np.where(better[:, None], trial_scores, scores)
            length = np.where(better, 2.0 * length, 0.25 * length)
    return z, values


def _dip(seen: Seen, one: Float[np.ndarray, " d"], other: Float[np.ndarray, " d"]) -> float:
    """By how many nats the density dips between two points, by the path integral of its score along their segment."""
    steps = np.linspace(0.0, 1.0, BATCH)[:, None]
    with np.errstate(all="ignore"):
        _, scores = seen((1.0 - steps) * one + steps * other)
        slopes = scores @ (other - one)
    rise = np.concatenate([[0.0], np.cumsum(0.5 * (slopes[1:] + slopes[:-1]) / (BATCH - 1))])
    return float(min(rise[0], rise[-1]) - rise.min()) if np.isfinite(rise).all() else np.inf


def _distinct(
    ends: Float[np.ndarray, "n d"],
    home: Float[np.ndarray, " d"],
    least: float = _APART,
    known: list[np.ndarray] | None = None,
) -> list[np.ndarray]:
    """End points that are neither at home nor near one another."""
    known = [home, np.zeros_like(home)] if known is None else known
    found: list[np.ndarray] = []
    for z in ends:
        if np.isfinite(z).all() and all(np.linalg.norm(z - other) > least for other in (*known, *found)):
            found.append(z)
    return found


def _other(state: AffineState, rivals: list[AffineState], share: float = 1.0) -> bool:
    """Whether a mode is neither the frame's own, a standard normal, nor known: elsewhere, or far smaller or larger."""
    d = state.z.shape[1]
    shift, root = np.asarray(state.frame.shift), np.asarray(state.frame.root)
    volume = float(np.sum(np.log(np.abs(np.diagonal(root)))))
    home = min(np.linalg.norm(shift), np.linalg.norm(np.linalg.solve(root, shift)))
    if home <= share * _APART and abs(volume) <= share * (_NARROW + 0.5 * d):
        return False
    return _apart(state, rivals, share)


def _apart(state: AffineState, rivals: list[AffineState], share: float = 1.0) -> bool:
    """Whether a mode is none of those known."""
    shift, root = np.asarray(state.frame.shift), np.asarray(state.frame.root)
    gaps = [np.linalg.norm(np.linalg.solve(root, shift - np.asarray(rival.frame.shift))) for rival in rivals]
    return all(gap > share * _APART for gap in gaps)
