"""Frame, walk, weigh for the posteriors of many data sets at once: each step one compiled program for a block of them.

Rounds of chains go on for the data sets whose errors are not yet within `tol`. What comes out of it is converged, by
the same conditions as in `Walk`; all other data sets are left to the whole automatic fit.
"""

import contextvars
import dataclasses
import functools
import os
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import equinox as eqx
import jax
import numpy as np
from jaxtyping import Array, Float, Int

from steinmatch._linalg import one_thread
from steinmatch._types import Numbers, as_numpy
from steinmatch.adaptive.chains import Round, Walked, too_stiff
from steinmatch.adaptive.judging import Draws, Judged, constrained, families_of, judged
from steinmatch.adaptive.together import (
    GROUPS,
    MOST_LEAPS,
    SIBLINGS,
    STRETCH,
    begun,
    framed,
    gradients_before,
    points_of,
    walked,
)
from steinmatch.adaptive.verdict import Error, Verdict, confirmed
from steinmatch.adaptive.walks import States
from steinmatch.coordinates import AbstractFrame, Composed, Order
from steinmatch.coordinates.plainly import placed
from steinmatch.measures.weights import Layout
from steinmatch.targets import AbstractTarget
from steinmatch.targets.compiled import compiled, is_array

_TRANSITIONS = (12, 36)  # of all chains, at the end of each round
_WALKS = 7  # tries of a data set, each of new draws, before a fit of its own: rare values are in few of them
_CHAINS = GROUPS * SIBLINGS
_LEAST_BLOCK = 32  # data sets
_NUMBERS = 2**29  # of the Stein images of a block, 4 GiB; their cross products take several times as much


class Stack(eqx.Module):
    """A target whose arrays, or those of them that are data, have a leading axis of data sets."""

    target: AbstractTarget
    axes: tuple[bool, ...] = eqx.field(static=True)  # of which arrays

    def each(self, function: Callable[..., Any], *args: Any, in_turn: bool = False) -> Any:
        """function(target, *args) of every data set, all args with a leading axis; `in_turn` on a CPU one by one,
        for functions that call LAPACK in batches: batches of batches of such calls make XLA wait for itself for ever.
        """
        dynamic, static = eqx.partition(self.target, is_array)
        arrays, structure = jax.tree.flatten(dynamic)

        def one(varying: list[Array], *args: Any) -> Any:
            rest = iter(varying)
            own = [next(rest) if axis else leaf for leaf, axis in zip(arrays, self.axes, strict=True)]
            return function(eqx.combine(jax.tree.unflatten(structure, own), static), *args)

        varying = [leaf for leaf, axis in zip(arrays, self.axes, strict=True) if axis]
        if in_turn and jax.default_backend() == "cpu":
            return jax.lax.map(lambda given: one(*given), (varying, *args))
        return jax.vmap(one)(varying, *args)

    def some(self, rows: Int[np.ndarray, " b"]) -> "Stack":
        """Of some data sets."""
        dynamic, static = eqx.partition(self.target, is_array)
        arrays, structure = jax.tree.flatten(dynamic)
        own = [leaf[rows] if axis else leaf for leaf, axis in zip(arrays, self.axes, strict=True)]
        return Stack(eqx.combine(jax.tree.unflatten(structure, own), static), self.axes)


def stacked(targets: Sequence[AbstractTarget], data: Sequence[Any]) -> Callable[[Sequence[Any]], Stack] | None:
    """What makes a stack of data sets like these, whose targets are known: None where targets differ in more than the
    arrays that are data. Which ones they are is seen by comparing them.
    """
    parts = [eqx.partition(target, is_array) for target in targets]
    flat = [jax.tree.flatten(dynamic) for dynamic, _ in parts]
    if not all(eqx.tree_equal(static, parts[0][1]) is True for _, static in parts):
        return None
    if any(structure != flat[0][1] for _, structure in flat):
        return None
    columns = [jax.tree.leaves(one) for one in data]
    sources: list[int | None] = []
    for j, first in enumerate(flat[0][0]):
        leaves = [np.asarray(arrays[j]) for arrays, _ in flat]
        same = [i for i in range(len(columns[0])) if all(map(_equal, leaves, (column[i] for column in columns)))]
        if not same and not all(_equal(leaf, first) for leaf in leaves):
            return None
        sources.append(same[0] if same else None)
    if not any(source is not None for source in sources):
        return None

    def make(sets: Sequence[Any]) -> Stack:
        rows = list(zip(*(jax.tree.leaves(one) for one in sets), strict=True))
        own = [
            leaf if i is None else np.stack([np.asarray(row) for row in rows[i]]).astype(leaf.dtype)
            for leaf, i in zip(flat[0][0], sources, strict=True)
        ]
        dynamic = jax.tree.unflatten(flat[0][1], own)
        return Stack(eqx.combine(dynamic, parts[0][1]), tuple(i is not None for i in sources))

    return make


def _equal(a: Any, b: Any) -> bool:
    return np.shape(a) == np.shape(b) and bool(np.array_equal(np.asarray(a, float), np.asarray(b, float)))


def usual_parent(frames: Sequence[AbstractFrame]) -> int | None:
    """The coordinate that is the parent in most frames of the same model; None where most have none."""
    parents = [
        int(np.asarray(frame.maps[0].order)[0])
        if isinstance(frame, Composed) and isinstance(frame.maps[0], Order)
        else -1
        for frame in frames
    ]
    most = max(set(parents), key=parents.count, default=-1)
    return None if most < 0 else most


class Together(NamedTuple):
    """What a walk together has found of one data set."""

    walked: Walked
    x: Float[np.ndarray, "n d"]
    n_gradients: int
    seconds: float


@dataclasses.dataclass
class _Set:
    """One data set on its way."""

    frame: AbstractFrame
    start: tuple[np.ndarray, np.ndarray]
    states: States
    log_step: float
    n_gradients: int
    parts: list[tuple[np.ndarray, ...]] = dataclasses.field(default_factory=list)  # rows of its stretches
    rounds: tuple[Round, ...] = ()
    verdict: Verdict | None = None
    seconds: float = 0.0


@compiled
def _begun(stack: Stack, parent: Any, points: tuple[Numbers, ...], keys: Array) -> tuple:
    def one(target: AbstractTarget, key: Array) -> tuple:
        found = framed(target, points, None if parent is None else len(parent))
        return found, begun(target, found, points[1], key)

    return stack.each(one, keys, in_turn=True)


@compiled
def _walked(stack: Stack, frames: Any, states: States, log_steps: Array, keys: Array) -> tuple:
    def one(target: AbstractTarget, frame: AbstractFrame, states: States, log_step: Array, key: Array) -> tuple:
        return walked(target, frame, states, log_step, key)

    return stack.each(one, frames, states, log_steps, keys)


@compiled
def _judged(stack: Stack, frames: Any, draws: Draws, starts: Draws, tol: Any) -> Judged:
    def one(target: AbstractTarget, frame: AbstractFrame, draws: Draws, start: Draws) -> Judged:
        layout = Layout(len(draws.z) // _CHAINS, GROUPS, SIBLINGS)
        values, started = (constrained(target, frame, some) for some in (draws, start))
        return judged(draws, values, start, started, layout, tol)

    return stack.each(one, frames, draws, starts, in_turn=True)


def walk_together(
    stack: Stack, count: int, k: int, parent: int | None, tol: float, seed: int, advance: Callable[[], None]
) -> list[Together | None]:
    """The walks of `count` data sets with k constrained parameters each, in affine frames or in those of a parent; None
    for data sets that are left to `fit`. Where a walk does not converge the chains go on to another, judged by itself,
    as `fit` would begin anew: a rare value that spoils the regressions of some thousand draws is in few of them.
    """
    size = _block(count, families_of(_CHAINS * _TRANSITIONS[-1], stack.target.dim, k)[-1].size(stack.target.dim, k))
    found: list[Together | None] = [None] * count
    waiting: dict[int, _Set] = {}

    def begin(rows: np.ndarray) -> None:
        waiting.update(_chains(stack, rows, size, parent, seed))

    def go_on(walk: int, i: int, rows: np.ndarray) -> None:
        _next_round(stack, rows, size, [waiting[row] for row in rows], (walk, i), tol, seed)
        for row in rows:
            if i > 0 and _converged(waiting[row], tol):
                found[row] = _result(waiting.pop(row), stack.target.dim)
                advance()

    # BLAS on one thread: with more, blocks side by side wait for each other, and take twice as long.
    with one_thread():
        _in_blocks(begin, np.arange(count), size)
        for walk in range(_WALKS):
            for one in waiting.values():
                one.parts, one.rounds, one.verdict = [], (), None
            for i in range(len(_TRANSITIONS)):
                _in_blocks(functools.partial(go_on, walk, i), np.array(sorted(waiting), int), size)
    return found


def _block(count: int, images: int) -> int:
    """How many data sets at once: on a CPU, where most is done in turn, a sixteenth; elsewhere what memory bears."""
    if jax.default_backend() == "cpu":
        return min(count, max(_LEAST_BLOCK, -(-count // 16)))
    return int(np.clip(_NUMBERS // (_CHAINS * _TRANSITIONS[-1] * images), 1, count))


def _in_blocks(step: Callable[[np.ndarray], None], rows: np.ndarray, size: int) -> None:
    """A step of blocks of rows, on as many threads as there are cores; the first alone, since it compiles."""
    first, *others = [rows[i : i + size] for i in range(0, len(rows), size)] or [rows]
    if len(first):
        _with_double(functools.partial(step, first))
    if others:
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        with ThreadPoolExecutor(cores if jax.default_backend() == "cpu" else 1) as pool:
            jobs = [functools.partial(step, block) for block in others]
            for job in [pool.submit(contextvars.copy_context().run, _with_double, job) for job in jobs]:
                job.result()


def _with_double(job: Callable[[], None]) -> None:
    """JAX's precision is each thread's own."""
    with jax.enable_x64(True), as_numpy():
        job()


def _given(stack: Stack, filled: np.ndarray, parent: int | None, seed: int) -> tuple:
    """What `_begun` takes, but for keys."""
    points = points_of(stack.target.dim, seed)
    return stack.some(filled), None if parent is None else np.zeros(parent), points


def _filled(rows: np.ndarray, size: int) -> np.ndarray:
    """As many rows as are compiled for."""
    return np.concatenate([rows, np.repeat(rows[:1], size - len(rows))])


def _keys(rows: np.ndarray, seed: int, turn: int) -> Array:
    key = jax.random.fold_in(jax.random.key(seed), turn)
    return jax.vmap(lambda row: jax.random.fold_in(key, row))(rows)


def _chains(stack: Stack, rows: np.ndarray, size: int, parent: int | None, seed: int) -> dict[int, _Set]:
    """Frames and chains of a block, of those data sets that can be walked together."""
    started, filled = time.monotonic(), _filled(rows, size)
    own, given, points = _given(stack, filled, parent, seed)
    found, chains = jax.tree.map(np.asarray, _begun(own, given, points, _keys(filled, seed, 0)))
    before = gradients_before(points, int(found.sweeps.max()), parent is not None)
    before += _CHAINS * int(chains.leaps.max())
    seconds = (time.monotonic() - started) / len(rows)
    return {
        int(row): _Set(
            frame=_row(found.frame, j), start=_row(chains.start, j), states=_row(chains.states, j),
            log_step=_row(chains.log_step, j), n_gradients=before, seconds=seconds,
        )
        for j, row in enumerate(rows)
        if not chains.lone[j]
    }  # fmt: skip


def _next_round(
    stack: Stack, rows: np.ndarray, size: int, sets: list[_Set], turn: tuple[int, int], tol: float, seed: int
) -> None:
    """Further draws of these data sets, and the verdict on all of those of this walk; `turn`: which walk and round."""
    started, filled, (walk, i) = time.monotonic(), _filled(rows, size), turn
    own = stack.some(filled)
    every = [*sets, *sets[:1] * (size - len(sets))]
    frames, states, starts, steps = (
        _stacked_up([getattr(one, name) for one in every]) for name in ("frame", "states", "start", "log_step")
    )
    before = walk * _TRANSITIONS[-1]
    for at in range(_TRANSITIONS[i - 1] if i else 0, _TRANSITIONS[i], STRETCH):
        keys = _keys(filled, seed, before + at + 1)
        states, stretches = jax.tree.map(np.asarray, _walked(own, frames, states, steps, keys))
        leaps = int(stretches.leaps.max(axis=0).sum())
        for j, one in enumerate(sets):
            one.parts.append(_row(tuple(stretches[2:]), j))
            one.n_gradients += _CHAINS * leaps
    for j, one in enumerate(sets):
        one.states = _row(states, j)
    d = stack.target.dim
    draws = Draws(*(np.stack([_joined(one, part).reshape(-1, d) for one in every]) for part in (0, 1)))
    verdicts = jax.tree.map(np.asarray, _judged(own, frames, draws, Draws(*starts), tol))
    seconds = (time.monotonic() - started) / len(sets)
    for j, one in enumerate(sets):
        _record(one, _row(verdicts, j), d, seconds)


def _row(tree: Any, j: int) -> Any:
    return jax.tree.map(lambda leaf: leaf[j], tree)


def _stacked_up(trees: list[Any]) -> Any:
    return jax.tree.map(lambda *leaves: np.stack(leaves), *trees)


def _joined(one: _Set, part: int) -> np.ndarray:
    return np.concatenate([rows[part] for rows in one.parts])


def _record(one: _Set, judged: Judged, d: int, seconds: float) -> None:
    """The verdict of a round, and what was measured in it."""
    n, k = len(judged.weights), len(judged.mean)
    families = ["uniform weights", *(family.name for family in families_of(n, d, k))]
    verdict = Verdict(
        weights=judged.weights,
        ess=float(judged.ess),
        residual=float(judged.residual),
        family=families[int(judged.family)],
        error=Error(judged.error[:k], judged.error[k:]),
        memory=float(judged.memory),
        mixed=bool(judged.mixed),
        agree=bool(judged.agree),
        estimate=(judged.mean, judged.sd),
    )
    acceptance, factors, stiff = (_joined(one, part) for part in (3, 4, 5))
    usual = factors == 1.0
    before = sum(found.n_gradients for found in one.rounds)
    one.verdict = confirmed(verdict, one.verdict, GROUPS)
    one.rounds = (
        *one.rounds,
        Round(
            name=f"round {len(one.rounds) + 1}", n_draws=n, error=one.verdict.error.largest, family=verdict.family,
            ess=verdict.ess, memory=verdict.memory, acceptance=float(acceptance[usual].mean()),
            trajectories=int(usual.sum()) * _CHAINS, stiff=float(stiff[usual].mean()), shortened=False,
            n_gradients=one.n_gradients - before, seconds=seconds,
        ),
    )  # fmt: skip
    one.seconds += seconds


def _converged(one: _Set, tol: float) -> bool:
    """As in `Walk`; and with steps whose trajectories were not cut short."""
    verdict = one.verdict
    assert verdict is not None
    good = 2.0 * verdict.error.largest <= tol and verdict.mixed and verdict.agree
    whole = bool(np.all(_joined(one, 7) < MOST_LEAPS))
    return bool(good and whole and not too_stiff(one.rounds[-1], tol))


def _result(one: _Set, d: int) -> Together:
    z, scores = (_joined(one, part).reshape(-1, d) for part in (0, 1))
    assert one.verdict is not None
    found = Walked(
        error=one.verdict.error,
        rounds=one.rounds,
        frame=one.frame,
        layout=Layout(len(z) // _CHAINS, GROUPS, SIBLINGS),
        z=z,
        scores=scores,
        log_densities=_joined(one, 2).ravel(),
        verdict=one.verdict,
    )
    return Together(found, placed(one.frame, z).x, one.n_gradients, one.seconds)
