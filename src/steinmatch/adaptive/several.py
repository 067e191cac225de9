"""The automatic fit of a target with several modes: the same steps for each of them, then their shares."""

import dataclasses
from typing import Any

import numpy as np

from steinmatch.adaptive.chains import Memory, Walked
from steinmatch.adaptive.evidence import evidence
from steinmatch.adaptive.frames import Cloud, batch_of, batched, cloud, log_frame_density, log_weights, normal_points
from steinmatch.adaptive.leaks import TOLERATED, leak
from steinmatch.adaptive.modes import SAME, Confined, Part, combined
from steinmatch.adaptive.parents import GOOD, frame_varies
from steinmatch.coordinates import AffineMap
from steinmatch.coordinates.plainly import placed
from steinmatch.kernels import Whitened
from steinmatch.kernels.features import Linear
from steinmatch.solvers.affine import first_bound
from steinmatch.solvers.base import Budget, Counts, Iterate, Problem
from steinmatch.targets import Evaluations, constrained_values

_NO_Z = np.zeros((0, 0))


def begin_parts(problem: Problem, memory: Memory, frames: tuple[AffineMap, ...], seed: int) -> tuple[Part, ...]:
    """One part for each mode, whose affine phase goes on from where the search has left it."""
    d = problem.target.dim
    z = normal_points(batched(d), d, seed)
    parts = []
    for frame in frames:
        evaluate = Evaluations(problem.target, batch_of(d))
        state = first_bound(evaluate, z, z, np.asarray(frame.shift), np.ones(d), (1.0,), False, frame)
        memory.evaluate.n_gradients += evaluate.n_gradients
        own = Memory(
            evaluate,
            "climb",
            np.asarray(frame.shift),
            np.ones(d),
            climbing=state,
            clock=memory.clock,
            surveyed=True,
        )
        particles = np.asarray(frame.shift)[None]
        parts.append(Part(problem, Iterate(particles, problem.kernel, np.inf, memory=own), frame))
    return tuple(parts)


def step_parts(solver: Any, problem: Problem, memory: Memory, iterate: Iterate, budget: Budget) -> Iterate:
    """One step of the first part that has more to do; at the end, all of them together."""
    parts = list(memory.parts)
    for phases in (("climb", "parent"), ("begin", "walk")):
        for i, part in enumerate(parts):
            if part.iterate.reason or part.iterate.memory.phase not in phases:
                continue
            if phases[0] == "begin" and not isinstance(part.problem.target, Confined):
                whole = next((one for one in parts if all(_describes(one, other) for other in parts)), None)
                if whole is not None:  # there is one mode, of which others saw slices
                    own = whole.iterate.memory
                    found = dataclasses.replace(memory, frame=own.frame, points=own.points, phase="begin")
                    return _going_on(found, iterate, [])
                confined = _confine(problem, memory, parts)
                return _going_on(memory, iterate, confined)
            count = part.iterate.memory.evaluate
            count.n_gradients = memory.evaluate.n_gradients
            following = solver.step(part.problem, part.iterate, budget)
            memory.evaluate.n_gradients = following.memory.evaluate.n_gradients
            parts[i] = dataclasses.replace(part, iterate=following)
            return _going_on(memory, iterate, parts)
    return _together(solver, problem, memory, iterate, parts)


def _going_on(memory: Memory, iterate: Iterate, parts: list[Part]) -> Iterate:
    memory = dataclasses.replace(memory, parts=tuple(parts))
    counts = Counts(sum(part.iterate.counts.steps for part in parts), memory.evaluate.n_gradients)
    return dataclasses.replace(iterate, counts=counts, history={}, memory=memory)


def _describes(one: Part, other: Part) -> bool:
    """Whether one part's frame knows the density at the other's points too: their log weights are as constant there."""
    own, its = one.iterate.memory, other.iterate.memory
    if own.points is None or its.points is None or frame_varies(own.points):
        return False
    there = placed(its.frame, its.points.z)
    logs = its.points.log_densities - there.log_det - log_frame_density(own.frame, there.x)
    off = logs - np.mean(log_weights(own.points))
    return bool(np.mean(off**2) < GOOD)


def _confine(problem: Problem, memory: Memory, parts: list[Part]) -> list[Part]:
    """Each part with the target that is zero outside of it. A frame that has moved off to another mode on its way, or
    become wide enough to hold others, is the one that the search found.
    """
    ends = [part.iterate.memory.climbing.frame for part in parts]
    stayed = [_same(part.found, end) for part, end in zip(parts, ends, strict=True)]
    frames = [end if stays else part.found for part, end, stays in zip(parts, ends, stayed, strict=True)]
    confined = []
    for k, part in enumerate(parts):
        target = Confined(problem.target, frames, k)
        own: Memory = part.iterate.memory
        evaluate = Evaluations(target, own.evaluate.batch)
        frame = own.frame if stayed[k] else frames[k]
        assert frame is not None and own.points is not None
        points = cloud(evaluate, frame, own.points.z)
        memory.evaluate.n_gradients += evaluate.n_gradients
        # At an edge with density Stein's identities do not hold, and plain averages do.
        plain = bool(np.any(points.log_densities == -np.inf))
        own = dataclasses.replace(own, evaluate=evaluate, frame=frame, points=points, plain=plain, phase="begin")
        problem_there = Problem(target, problem.kernel, problem.weights)
        confined.append(Part(problem_there, dataclasses.replace(part.iterate, memory=own), frames[k]))
    return confined


def _same(one: AffineMap, other: AffineMap) -> bool:
    """Whether two frames are of one mode: near, in sds of either, and of like size."""
    roots = [np.asarray(frame.root) for frame in (one, other)]
    apart = np.asarray(one.shift) - np.asarray(other.shift)
    volumes = [float(np.sum(np.log(np.abs(np.diagonal(root))))) for root in roots]
    gaps = [float(np.linalg.norm(np.linalg.solve(root, apart))) for root in roots]
    return bool(max(gaps) <= SAME * np.sqrt(len(apart)) and abs(volumes[0] - volumes[1]) <= 0.5 * len(apart))


def _together(solver: Any, problem: Problem, memory: Memory, iterate: Iterate, parts: list[Part]) -> Iterate:
    """Shares by evidence, and draws of all modes with weights in proportion."""
    walks: list[Walked] = [part.iterate.outcome for part in parts]
    evidences = []
    for part, walked in zip(parts, walks, strict=True):
        assert walked.layout is not None
        count = Evaluations(part.problem.target, memory.evaluate.batch)
        draws = Cloud(walked.z, walked.log_densities, walked.scores)
        evidences.append(evidence(count, walked.frame, draws, walked.layout, solver.seed))
        memory.evaluate.n_gradients += count.n_gradients
    draws = [np.asarray(part.iterate.particles) for part in parts]
    values = [constrained_values(problem.target, x)[1] for x in draws]
    whole = combined(values, [part.iterate.weights for part in parts], [walked.error for walked in walks], evidences)
    particles, weights = np.concatenate(draws), np.concatenate(whole.weights)
    largest = whole.error.largest
    ended = all(part.iterate.converged for part in parts)
    count = Evaluations(problem.target, memory.evaluate.batch)
    outside = leak(count, parts, np.array([mode.share for mode in whole.modes]), solver.seed)
    memory.evaluate.n_gradients += count.n_gradients
    converged = bool(ended and 2.0 * largest <= solver.tol and outside <= TOLERATED * solver.tol)
    shares = ", ".join(f"{mode.share:.3g} +- {mode.error:.1g}" for mode in whole.modes)
    words = [
        f"{len(parts)} modes with shares {shares}",
        f"the largest standard error of a mean or sd is {largest:.2g}, twice that "
        + ("within" if 2.0 * largest <= solver.tol else "above")
        + f" tol={solver.tol:g} ({len(particles):,} draws)",
    ]
    if 2.0 * whole.share_error > solver.tol:
        words.append(f"of which {whole.share_error:.2g} comes from the modes' shares")
    if outside > TOLERATED * solver.tol:
        words.append(
            f"{outside:.1%} of what chains reach from the modes is known to none of them: the modes hang together, and "
            "mass between them may be missing"
        )
    words += [f"mode {k + 1}: {part.iterate.reason}" for k, part in enumerate(parts) if not part.iterate.converged]
    mean = weights @ particles
    centred = np.sqrt(weights)[:, None] * (particles - mean)
    root = np.linalg.cholesky(centred.T @ centred + 1e-12 * np.diag(np.sum(centred**2, axis=0)))
    frame = AffineMap(mean, root)
    rounds = tuple(found for walked in walks for found in walked.rounds)
    outcome = Walked(
        whole.error, rounds, frame, None, _NO_Z, _NO_Z, np.zeros(0), modes=whole.modes, evidences=tuple(evidences)
    )
    following = _going_on(memory, iterate, parts)
    return dataclasses.replace(
        following,
        particles=particles,
        weights=weights,
        kernel=Whitened(Linear(), frame, given=True),
        residual=max(part.iterate.residual for part in parts),
        converged=converged,
        reason="; ".join(words),
        frame=frame,
        history={"error": np.array([largest])},
        outcome=outcome,
        latest=True,
    )
