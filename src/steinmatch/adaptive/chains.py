"""What the automatic fit keeps on its way: chains, rounds, and what its solver asks of them."""

import dataclasses
import time
from typing import Any

import numpy as np
from jaxtyping import Float

from steinmatch._types import float64
from steinmatch.adaptive.evidence import Evidence, evidence, in_all
from steinmatch.adaptive.frames import FRESH, Cloud, batch_of, normal_points
from steinmatch.adaptive.modes import Mode, Part
from steinmatch.adaptive.slim import MOST_DENSE, SlimState
from steinmatch.adaptive.survey import Rays
from steinmatch.adaptive.verdict import Error, Verdict
from steinmatch.adaptive.walks import ACCEPTANCE, CAUTION, CHUNK, States, Stretch
from steinmatch.coordinates import AbstractFrame, PulledBack
from steinmatch.coordinates.plainly import placed
from steinmatch.measures.images import Values
from steinmatch.measures.weights import Layout
from steinmatch.solvers.affine import AffineState
from steinmatch.solvers.base import Solution
from steinmatch.targets import AbstractTarget, Evaluations, SavedTarget, constrained_values, passes_over


@dataclasses.dataclass(frozen=True)
class Round:
    """What one round of the automatic fit did, and where it left the errors."""

    name: str
    n_draws: int
    error: float  # largest stated error of a mean (in sds) or an sd (relative)
    family: str  # the Stein equations that the weights solve
    ess: float  # of the weights
    memory: float  # share of variance that chains remember of their start
    acceptance: float
    trajectories: int  # the other draws are leaps
    stiff: float  # share of trajectories whose steps were too long for where they went
    shortened: bool  # so that steps were shortened, and the draws given up
    n_gradients: int
    seconds: float


@dataclasses.dataclass(frozen=True)
class Walked:
    """What a walk leaves behind: enough to judge it, and to go on."""

    error: Error
    rounds: tuple[Round, ...]
    frame: AbstractFrame
    layout: Layout | None
    z: Float[np.ndarray, "n d"]
    scores: Float[np.ndarray, "n d"]  # pulled back
    log_densities: Float[np.ndarray, " n"]
    notes: tuple[str, ...] = ()
    chains: Any = None  # as they stand
    verdict: Verdict | None = None
    modes: tuple[Mode, ...] = ()  # where there are several
    evidences: tuple[Evidence, ...] = ()  # of these


@dataclasses.dataclass(frozen=True)
class Chains:
    """Chains on their way."""

    target: PulledBack
    states: States
    log_step: float
    start: tuple[np.ndarray, np.ndarray, Values]
    stretches: tuple[Stretch, ...] = ()
    values: tuple[Values, ...] = ()
    transitions: int = 0
    wanted: int = 0  # transitions of the next verdict
    leaping: bool = False
    boldness: float = 1.0  # factor of the steps of most trajectories


@dataclasses.dataclass(frozen=True)
class Memory:
    """Where an automatic fit stands."""

    evaluate: Evaluations
    phase: str
    centre: np.ndarray
    scale: np.ndarray
    climbing: AffineState | SlimState | None = None
    frame: AbstractFrame | None = None
    points: Cloud | None = None  # fresh points of the frame
    chains: Chains | None = None
    notes: tuple[str, ...] = ()
    rounds: tuple[Round, ...] = ()
    clock: float = 0.0
    counted: int = 0
    surveyed: bool = False
    again: bool = False  # begun from the frame of an earlier fit
    rays: Rays | None = None
    verdict: Verdict | None = None  # of the last round
    parts: tuple[Part, ...] = ()  # of several modes
    plain: bool = False  # no Stein weights: at an edge with density Stein's identities fail, and plain averages do not
    restarts: int = 0
    framed: int = 0  # gradients that the frame has taken
    reframed: int = 0  # draws from which a frame was last sought
    past_rounds: int = 0  # in an earlier frame
    others: tuple[str, ...] = ()  # said of other modes before the fit began anew in a better one


def tolerated(tol: float) -> float:
    """The share of trajectories that may fail. Where a part of mass e cannot be entered, about e / 2 fail at its edge;
    at three sds from the centre it would shift a mean by 3 e, which must be within tol / 3.
    """
    return tol / 18.0


def too_stiff(last: Round, tol: float) -> bool:
    """Whether more trajectories failed than is tolerated, beyond chance."""
    expected = last.trajectories * tolerated(tol)
    return bool(last.trajectories * last.stiff > expected + 2.0 * np.sqrt(expected) + 1.0)


def present(memory: Memory, seed: int) -> np.ndarray | None:
    """Points of the frame as it is, for a fit that ends before its walk."""
    frame = memory.frame or (None if memory.climbing is None else memory.climbing.frame)
    if frame is None:
        return None
    z = normal_points(FRESH, memory.evaluate.target.dim, seed) if memory.points is None else memory.points.z
    return placed(frame, z).x


def starting_points(points: Cloud, groups: int, seed: int) -> np.ndarray:
    """Indices of points, drawn by importance: by the density of the target over that of the frame's normal."""
    finite = np.isfinite(points.scores).all(axis=1)
    if np.isfinite(points.log_densities).any():
        logs = points.log_densities + 0.5 * np.sum(points.z**2, axis=1)
        logs = np.where(np.isfinite(logs) & finite, logs, -np.inf)
        weights = np.exp(logs - logs.max())
        weights = np.minimum(weights, np.sqrt(len(weights)) * weights.mean())
        if points.z.shape[1] > MOST_DENSE:  # log weights vary with the dimension, and a few points would have them all
            weights = np.where(logs >= np.median(logs), 1.0, 0.0)
    else:
        off = np.where(finite, np.linalg.norm(points.scores + points.z, axis=1), np.inf)
        weights = (off <= np.median(off)).astype(float)
    weights = weights / weights.sum()
    comb = (np.arange(groups) + np.random.default_rng(seed).uniform()) / groups
    return np.minimum(np.searchsorted(np.cumsum(weights), comb), len(weights) - 1)


def step_factors(chains: Chains) -> np.ndarray:
    """Of the trajectories of the next stretch: one in eight is cautious or, where most are bold, as many usual as take
    half of all gradients.
    """
    factors, turn = np.full(CHUNK, chains.boldness), chains.transitions // CHUNK
    if chains.boldness > 1.0:
        factors[0] = 1.0 if turn % max(round(chains.boldness / CHUNK), 1) == 0 else chains.boldness
    elif turn % 2 == 0:
        factors[0] = CAUTION
    return factors


def usual(chains: Chains, name: str) -> np.ndarray:
    """A statistic of each transition by trajectories with steps of the usual length."""
    values, factors = _statistic(chains, name)
    return values[factors == 1.0]


def cautious_fail(chains: Chains) -> bool:
    """Whether steps were too long even for cautious trajectories; they keep entering what the usual ones cannot."""
    values, factors = _statistic(chains, "stiff")
    gentle = values[(factors > 0.0) & (factors < 1.0)]
    return not gentle.size or bool(np.any(gentle > 0.0))


def _statistic(chains: Chains, name: str) -> tuple[np.ndarray, np.ndarray]:
    values, factors = (
        np.concatenate([np.asarray(getattr(s, part)) for s in chains.stretches]) for part in (name, "factors")
    )
    return values, factors


def recorded(memory: Memory, verdict: Verdict, layout: Layout) -> Memory:
    """With a record of the round that has just been judged."""
    assert memory.chains is not None
    now = time.monotonic()
    gradients = memory.evaluate.n_gradients
    stiff, acceptance = usual(memory.chains, "stiff"), usual(memory.chains, "acceptance")
    found = Round(
        name=f"round {len(memory.rounds) + 1}",
        n_draws=layout.n,
        error=verdict.error.largest,
        family=verdict.family,
        ess=verdict.ess,
        memory=verdict.memory,
        acceptance=float(acceptance.mean()) if acceptance.size else ACCEPTANCE,
        trajectories=stiff.size * layout.groups * layout.siblings,
        stiff=float(stiff.mean()) if stiff.size else 0.0,
        shortened=False,
        n_gradients=gradients - memory.counted,
        seconds=now - memory.clock,
    )
    return dataclasses.replace(memory, rounds=(*memory.rounds, found), clock=now, counted=gradients)


def in_words(memory: Memory, verdict: Verdict, n: int, tol: float) -> str:
    """The verdict in words, from what was measured."""
    assert memory.chains is not None
    words = [error_in_words(verdict, n, len(memory.chains.states.z), tol)]
    if not verdict.mixed:
        words.append(
            f"the chains have not forgotten where they began: {verdict.memory:.0%} of a parameter's variance is "
            "between groups of chains that began apart"
        )
    if memory.plain:
        words.append("the density has an edge, so that the weights are uniform")
    if too_stiff(memory.rounds[-1], tol):
        words.append(
            f"{memory.rounds[-1].stiff:.1%} of the trajectories came to where the density is too stiff for their "
            "steps, such as the neck of a funnel: mass there may be missing; a non-centred parametrisation helps"
        )
    if not verdict.agree:
        words.append(
            "plain and weighted draws disagree: Stein's identity fails, as for a density with a jump or an edge, "
            "or the chains are not yet stationary; the weights are uniform"
        )
    return "; ".join([*memory.notes, *words])


def error_in_words(verdict: Verdict, n: int, chains: int, tol: float) -> str:
    error = verdict.error.largest
    within = "within" if 2.0 * error <= tol else "above"
    return (
        f"the largest standard error of a mean or sd is {error:.2g}, twice that {within} tol={tol:g} "
        f"({n:,} draws of {chains} chains, {verdict.family}, worth {verdict.ess:,.0f})"
    )


def doing(memory: Memory, tol: float) -> str:
    """What comes next, for those who wait: the phase, or how far the error is from where it must be, and how long that
    will take if it goes on falling with the root of the draws.
    """
    if memory.phase != "walk" or not memory.rounds:
        return {
            "climb": "the frame",
            "reframe": "a frame from the draws",
            "parent": "parents",
            "modes": "modes",
            "begin": "chains",
        }.get(memory.phase, "walk")
    last, before = memory.rounds[-1], memory.rounds[-2].n_draws if len(memory.rounds) > 1 else 0
    new = last.n_draws - before if last.n_draws > before else last.n_draws
    left = last.seconds / new * last.n_draws * max((2.0 * last.error / tol) ** 2 - 1.0, 0.25)
    return (
        f"round {len(memory.rounds)}: {last.n_draws:,} draws, error {last.error:.2g} of {0.5 * tol:.2g}, "
        f"about {left:,.0f} s to go"
    )


def drawn(chains: Chains) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    d = chains.states.z.shape[1]
    z, scores = (np.concatenate([np.asarray(getattr(s, name)) for s in chains.stretches]) for name in ("z", "scores"))
    densities = np.concatenate([np.asarray(s.log_densities) for s in chains.stretches])
    return z.reshape(-1, d), scores.reshape(-1, d), densities.ravel()


def left_behind(memory: Memory, error: Error, verdict: Verdict | None) -> Walked | None:
    chains = memory.chains
    if verdict is None or chains is None:
        return None
    z, scores, densities = drawn(chains)
    n_chains, groups = len(chains.states.z), len(chains.start[0])
    return Walked(
        error=error,
        rounds=memory.rounds,
        frame=chains.target.frame,
        layout=Layout(len(z) // n_chains, groups, n_chains // groups),
        z=z,
        scores=scores,
        log_densities=densities,
        notes=memory.notes,
        chains=chains,
        verdict=verdict,
    )


def told(target: AbstractTarget, found: Solution, tol: float) -> tuple[str, Error]:
    """Why a walk ended, and its errors; unknown ones where it ended before its first verdict."""
    walked: Walked | None = found.outcome
    if walked is None:
        unknown = np.full(constrained_values(target, np.asarray(found.particles)[:1])[1].shape[1], np.inf)
        return found.reason, Error(unknown, unknown)
    reason = found.reason
    if not found.converged and walked.rounds and walked.rounds[-1].error > 0.0 and "standard error" not in reason:
        reason += f"; the largest standard error of a mean or sd is {walked.error.largest:.2g}, tol={tol:g}"
        reason = "; ".join([*walked.notes, reason])
    passes = passes_over(target)
    return reason if passes is None else f"{reason}; {passes} passes over the data", walked.error


def modes_of(walked: Walked | None) -> tuple[Mode, ...]:
    """The modes that a walk weighed, one as a rule."""
    if walked is None or walked.modes or walked.verdict is None:
        return () if walked is None else walked.modes
    return (Mode(1.0, 0.0, *walked.verdict.estimate),)


@float64
def log_evidence(target: AbstractTarget, walked: Walked | None, seed: int) -> Evidence:
    """The evidence that a walk has found, over all modes."""
    if walked is None:
        raise ValueError("log_evidence: only an automatic fit, fit(target) without a kernel, has an evidence.")
    if isinstance(target, SavedTarget):
        raise ValueError("log_evidence: it was not asked for before the fit was saved; give load(path, target=target).")
    if target.log_density is None:
        raise ValueError("log_evidence: the target has a score alone, and no log density to integrate.")
    if walked.modes:
        return in_all(list(walked.evidences))
    if walked.layout is None:
        raise ValueError("log_evidence: this fit was saved without its evidence and its chains; fit again.")
    draws = Cloud(walked.z, walked.log_densities, walked.scores)
    return evidence(Evaluations(target, batch_of(target.dim)), walked.frame, draws, walked.layout, seed)
