"""The automatic fit as a solver: a frame in which the target is nearly normal, a walk in it, weights, a verdict.

    climb     the affine phase, a few sweeps a step
    parent    a coordinate that sets place and scale of the rest, where regressions of the scores show one; tails
    modes     a search for other modes
    walk      rounds of chains; after each: Stein weights, standard errors, a verdict

Each is a step of the one loop of all solvers, so budget, progress and Ctrl-C are heard between them.
"""

import dataclasses
import time
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from steinmatch._checks import positive_integer, positive_number, whole_seed
from steinmatch._faults import BudgetSpent
from steinmatch.adaptive.chains import (
    Chains,
    Memory,
    Walked,
    doing,
    drawn,
    in_words,
    left_behind,
    present,
    recorded,
    starting_points,
    step_factors,
    tolerated,
    too_stiff,
)
from steinmatch.adaptive.frames import (
    Cloud,
    batch_of,
    begin_climb,
    climb,
)
from steinmatch.adaptive.leaps import CYCLE, leap, leaping, settled, stride, stroll
from steinmatch.adaptive.parents import frame_varies, with_parents
from steinmatch.adaptive.reframing import from_draws, worth_a_frame
from steinmatch.adaptive.resuming import resumed
from steinmatch.adaptive.rounds import LEAST_MORE, further, most_draws
from steinmatch.adaptive.several import begin_parts, step_parts
from steinmatch.adaptive.slim import MOST_DENSE, SlimState, begin_slim, climb_slim, with_slim_parent
from steinmatch.adaptive.survey import look_along_rays, look_for_modes
from steinmatch.adaptive.verdict import Error, Verdict, confirmed, judge
from steinmatch.adaptive.walks import (
    CHUNK,
    FIRST_STEP,
    MOST_LEAPS,
    TRAJECTORY,
    States,
    Stretch,
    advance,
    begin,
)
from steinmatch.coordinates import AffineMap, LowRank, PulledBack
from steinmatch.coordinates.plainly import placed
from steinmatch.kernels import Whitened
from steinmatch.kernels.features import Linear
from steinmatch.measures.images import Values, values_at
from steinmatch.measures.weights import Layout
from steinmatch.solvers.base import AbstractStepSolver, Budget, Counts, Iterate, Problem
from steinmatch.targets import AbstractTarget, Evaluations, passes_over

_SWEEPS = 5  # of one step
MOST_GRADIENTS = 2**22  # a sampler whose trajectories have a thousand leaps spends as many on 4 chains of 1000 draws
_ENOUGH_TO_SHOW = 4096  # draws of a fit that cannot converge
_WARM = 2  # stretches before the first that counts
_RESTARTS = 2  # in a mode with all but nothing of the mass
_LONG = 2500  # leaps of all chains, a millisecond each, from which on compiling them pays: it takes 2 to 5 s
_STROLL = 4  # of 12 stretches the one in which chains of a bent frame go in the affine one


class Walk(AbstractStepSolver):
    """Posterior moments to a tolerance: frame, walk, weigh.

    **Arguments:**

    - `tol`: done when twice the standard errors of all means (in posterior sds) and sds (relative) are within this, the
      chains are mixed, and weighted and plain draws agree.
    - `groups`, `siblings`: chains; those of a group begin at one point, so that they tell what they remember of it.
    - `least_draws`: go on until there are at least so many.
    - `seed`: of the points and chains.

    `resume` is the `Walked` of an earlier fit, whose frame and, for the same target, draws are used.
    """

    tol: float = eqx.field(static=True)
    groups: int = eqx.field(static=True)
    siblings: int = eqx.field(static=True)
    least_draws: int = eqx.field(static=True)
    seed: int = eqx.field(static=True)
    centred: bool = eqx.field(static=True)  # begin where the given particles are, not at the origin
    resume: Any = eqx.field(static=True)

    def __init__(
        self,
        tol: float = 0.02,
        groups: int = 32,
        siblings: int = 2,
        least_draws: int = 1,
        seed: int = 0,
        *,
        centred: bool = True,
        resume: Walked | None = None,
    ):
        self.tol = positive_number(tol, "tol", "Walk")
        self.groups = positive_integer(groups, "groups", "Walk")
        self.siblings = positive_integer(siblings, "siblings", "Walk")
        if self.groups < 8 or self.siblings < 2:
            raise ValueError(
                f"Walk: groups={groups} and siblings={siblings}: at least 8 groups of 2 are needed for standard errors."
            )
        self.least_draws = positive_integer(least_draws, "least_draws", "Walk")
        self.seed, self.centred, self.resume = whole_seed(seed, "Walk"), bool(centred), resume

    # -- the loop ------------------------------------------------------------------------------------------------------

    def init(self, problem: Problem, particles: Float[Array, "n d"]) -> Iterate:
        x = np.asarray(particles)
        d = x.shape[1]
        evaluate = Evaluations(problem.target, batch_of(d))
        centre, scale = np.zeros(d), np.ones(d)
        if self.centred:
            centre = x.mean(axis=0)
            scale = np.maximum(x.std(axis=0), 1e-3) if len(x) > 1 else scale
        memory = Memory(evaluate, "climb", centre, scale, clock=time.monotonic())
        if self.resume is not None:
            chains = self.groups * self.siblings
            memory = resumed(self.resume, problem.target, memory, chains, self.least_draws, self.seed)
        return self._iterate(problem, memory, x, None, Iterate(x, problem.kernel, np.inf))

    def step(self, problem: Problem, iterate: Iterate, budget: Budget) -> Iterate:
        memory: Memory = iterate.memory
        if memory.parts:
            return step_parts(self, problem, memory, iterate, budget)
        memory.evaluate.spent = budget.exhausted
        if memory.phase == "climb":
            memory = self._climb(memory)
        elif memory.phase == "parent":
            memory = self._parent(memory)
        elif memory.phase == "modes":
            memory = self._modes(problem, memory)
        elif memory.phase == "begin":
            memory = self._begin(problem.target, memory)
        elif memory.phase == "reframe":
            memory = self._reframe(problem.target, memory)
            counts = dataclasses.replace(iterate.counts, gradients=memory.evaluate.n_gradients)
            return dataclasses.replace(iterate, memory=memory, counts=counts, history={})
        else:
            return self._round(problem, memory, iterate)
        particles = present(memory, self.seed)
        return self._iterate(problem, memory, iterate.particles if particles is None else particles, None, iterate)

    def _iterate(
        self,
        problem: Problem,
        memory: Memory,
        particles: np.ndarray,
        verdict: Verdict | None,
        past: Iterate,
        reason: str = "",
        converged: bool = False,
    ) -> Iterate:
        n = len(particles)
        k = 1 if verdict is None else len(verdict.error.mean)
        frame = memory.frame or (None if memory.climbing is None else memory.climbing.frame)
        error = Error(np.full(k, np.inf), np.full(k, np.inf)) if verdict is None else verdict.error
        kernel = problem.kernel if frame is None else Whitened(Linear(), frame, given=True)
        return Iterate(
            particles=particles,
            kernel=kernel,
            residual=np.inf if verdict is None else verdict.residual,
            counts=Counts(0 if memory.chains is None else memory.chains.transitions, memory.evaluate.n_gradients),
            converged=converged,
            reason=reason,
            frame=frame if isinstance(frame, AffineMap) else None,
            history={"error": np.array([error.largest])} if verdict is not None else {},
            memory=memory,
            weights=np.full(n, 1.0 / n) if verdict is None else verdict.weights,
            outcome=left_behind(memory, error, verdict),
            latest=True,
            doing=doing(memory, self.tol),
        )

    # -- the frame -----------------------------------------------------------------------------------------------------

    def _climb(self, memory: Memory) -> Memory:
        begin = begin_climb if len(memory.centre) <= MOST_DENSE else begin_slim
        state = memory.climbing or begin(memory.evaluate, memory.centre, memory.scale, self.seed)
        for _ in range(_SWEEPS):
            bound = state.local.bound if isinstance(state, SlimState) else state.bound
            if not np.isfinite(bound.gradient).all():
                raise ValueError(
                    "fit: the log density or its gradient is not finite around the start; give init= where the density "
                    "is positive."
                )
            if isinstance(state, SlimState):
                state, done = climb_slim(memory.evaluate, state, self.seed)
            else:
                state, done = climb(memory.evaluate, state, self.seed)
            if done:
                return dataclasses.replace(memory, climbing=state, phase="parent")
        return dataclasses.replace(memory, climbing=state)

    def _parent(self, memory: Memory) -> Memory:
        assert memory.climbing is not None
        evaluate, affine = memory.evaluate, memory.climbing.frame
        rays = look_along_rays(evaluate, affine, self.seed)
        if isinstance(affine, LowRank):
            frame, points = with_slim_parent(evaluate, affine, self.seed)
        else:
            frame, points = with_parents(evaluate, affine, self.seed)
        phase = "begin" if memory.surveyed else "modes"
        return dataclasses.replace(
            memory, frame=frame, points=points, notes=(*memory.others, *rays.notes), rays=rays, phase=phase
        )

    def _modes(self, problem: Problem, memory: Memory) -> Memory:
        assert memory.frame is not None and memory.points is not None and memory.rays is not None
        seen = look_for_modes(
            memory.evaluate, memory.frame, memory.points, memory.rays, memory.centre, memory.scale, self.seed
        )
        memory = dataclasses.replace(memory, surveyed=True, phase="begin")
        if len(seen.frames) == 1 and seen.better is not None and memory.restarts < _RESTARTS:
            # All but nothing of the mass is here: begin anew there, and look around once more.
            return dataclasses.replace(
                memory,
                centre=seen.better,
                climbing=None,
                frame=None,
                points=None,
                surveyed=False,
                restarts=memory.restarts + 1,
                phase="climb",
            )
        if len(seen.frames) > 1 and problem.target.log_density is not None and not memory.notes:
            return dataclasses.replace(memory, parts=begin_parts(problem, memory, seen.frames, self.seed))
        if seen.better is None:
            return dataclasses.replace(memory, notes=(*memory.notes, *seen.notes))
        # A mode with more mass: begin anew there, and keep in mind that there are several.
        return dataclasses.replace(
            memory, centre=seen.better, climbing=None, frame=None, points=None, others=seen.notes, phase="climb"
        )

    # -- the walk ------------------------------------------------------------------------------------------------------

    def _begin(self, target: AbstractTarget, memory: Memory) -> Memory:
        """Chains at points of the frame, drawn by their importance, and transitions that adapt the step size."""
        assert memory.frame is not None and memory.points is not None
        pulled = PulledBack(target, memory.frame)
        chosen = starting_points(memory.points, self.groups, self.seed)
        points = Cloud(*(np.repeat(part[chosen], self.siblings, axis=0) for part in memory.points))
        d = points.z.shape[1]
        states = States(*points)
        if target.log_density is None:
            states = States(*map(np.asarray, begin(pulled, jnp.asarray(points.z))))
            memory.evaluate.n_gradients += len(points.z) * pulled.gradients_a_value
        start = (points.z[:: self.siblings], points.scores[:: self.siblings])
        log_step = float(np.log(FIRST_STEP * d**-0.25))
        values = values_at(pulled, *start, CHUNK * len(points.z))
        chains = Chains(pulled, states, log_step, (*start, values), leaping=leaping(memory.points))
        if chains.leaping:
            states = settled(memory.points, states, np.random.default_rng([self.seed % 2**32, 2**31]))
            # Trajectories come first, but in a good frame of a model whose trajectories an earlier fit has seen.
            chains = dataclasses.replace(chains, states=states, transitions=CHUNK * (2 if _known(memory) else 1))
        framed = memory.framed or memory.evaluate.n_gradients
        return dataclasses.replace(memory, chains=self._warmed(memory, chains), phase="walk", framed=framed)

    def _warmed(self, memory: Memory, chains: Chains) -> Chains:
        """Transitions that adapt the step size and let the chains forget where they began."""
        for k in range(0 if chains.leaping else _WARM):
            gains = 1.0 / np.sqrt(1.0 + k * CHUNK + np.arange(CHUNK))
            stretch = self._advanced(memory, chains, gains)
            chains = dataclasses.replace(
                chains, states=stretch.states, log_step=stretch.log_step, transitions=chains.transitions + CHUNK
            )
        least = -(-self.least_draws // (self.groups * self.siblings))
        first = 2 if chains.leaping and not _known(memory) else 1
        return dataclasses.replace(chains, wanted=CHUNK * max(first, -(-least // CHUNK)))

    def _advanced(self, memory: Memory, chains: Chains, gains: np.ndarray) -> Stretch:
        """One stretch of all chains, counted: leaps, or trajectories, some of which have shorter steps than most."""
        turn, frame = chains.transitions // CHUNK, chains.target.frame
        rng = np.random.default_rng([self.seed % 2**32, turn])
        affine = None if memory.climbing is None or isinstance(frame, AffineMap) else memory.climbing.frame
        known = memory.evaluate.target.log_density is not None
        if isinstance(affine, AffineMap) and known and turn % (4 * CYCLE) == _STROLL:
            return stroll(memory.evaluate, frame, affine, chains.states, chains.log_step, rng)
        if chains.leaping and turn % CYCLE != 1:
            return leap(memory.evaluate, frame, chains.states, chains.log_step, rng)
        factors = step_factors(chains)
        leaps = np.minimum(TRAJECTORY / (np.exp(chains.log_step) * np.maximum(factors, 1.0)), MOST_LEAPS)
        target = chains.target.target
        if passes_over(target) is not None or (
            chains.wanted * leaps.mean() <= _LONG and target.log_density is not None
        ):
            return stride(memory.evaluate, frame, chains.states, chains.log_step, gains, factors, rng)
        stretch = advance(chains.target, chains.states, self._key(chains), chains.log_step, gains, factors)
        leaps = int(np.sum(stretch.leaps))
        memory.evaluate.n_gradients += leaps * stretch.z.shape[1] * chains.target.gradients_a_value
        return stretch

    def _key(self, chains: Chains) -> Array:
        return jax.random.fold_in(jax.random.key(self.seed), chains.transitions)

    def _round(self, problem: Problem, memory: Memory, iterate: Iterate) -> Iterate:
        chains = memory.chains
        assert chains is not None
        before = len(chains.stretches)
        while CHUNK * len(chains.stretches) < chains.wanted:
            try:
                stretch = self._advanced(memory, chains, np.zeros(CHUNK))
            except BudgetSpent:
                if len(chains.stretches) == before:
                    raise
                break  # what there is is judged
            d = stretch.z.shape[2]
            z, scores = np.asarray(stretch.z).reshape(-1, d), np.asarray(stretch.scores).reshape(-1, d)
            chains = dataclasses.replace(
                chains,
                states=stretch.states,
                stretches=(*chains.stretches, stretch),
                values=(*chains.values, values_at(chains.target, z, scores)),
                transitions=chains.transitions + CHUNK,
            )
        edges = float(np.mean(np.concatenate([stretch.edges for stretch in chains.stretches])))
        memory = dataclasses.replace(memory, chains=chains, plain=memory.plain or edges > tolerated(self.tol))
        z, scores, _ = drawn(chains)
        layout = Layout(CHUNK * len(chains.stretches), self.groups, self.siblings)
        families = [] if memory.plain else None
        before = memory.verdict
        useless = () if before is None else before.hopeless
        verdict = judge(z, scores, Values.joined(list(chains.values)), layout, chains.start, families, useless)
        verdict = confirmed(verdict, before, layout.groups)
        memory = dataclasses.replace(recorded(memory, verdict, layout), verdict=verdict)
        enough = len(z) >= self.least_draws
        smooth = not too_stiff(memory.rounds[-1], self.tol)
        good = 2.0 * verdict.error.largest <= self.tol and verdict.mixed and verdict.agree and smooth
        good = good and before is not None  # one round has nothing to be confirmed by
        converged = bool(good and enough and not memory.notes)
        reason = ""
        if good and enough:
            reason = in_words(memory, verdict, len(z), self.tol)
        elif memory.notes and len(z) >= max(_ENOUGH_TO_SHOW, self.least_draws):
            reason = in_words(memory, verdict, len(z), self.tol)  # more draws would not change it
        elif LEAST_MORE * len(z) > most_draws(z.shape[1]):
            reason = f"stopped at {len(z):,} draws; " + in_words(memory, verdict, len(z), self.tol)
        elif memory.evaluate.n_gradients > MOST_GRADIENTS:
            reason = f"stopped after {memory.evaluate.n_gradients:,} gradients; "
            reason += in_words(memory, verdict, len(z), self.tol)
        particles = placed(chains.target.frame, z).x
        following = self._iterate(problem, memory, particles, verdict, iterate, reason, converged)
        going_on = further(memory, verdict, self.tol)
        if worth_a_frame(going_on, verdict, self.tol):
            going_on = dataclasses.replace(going_on, phase="reframe")
        return dataclasses.replace(following, memory=going_on)

    def _reframe(self, target: AbstractTarget, memory: Memory) -> Memory:
        """A frame from the draws, and as many draws again in it before anything is said of them; or all as it was."""
        chains = memory.chains
        assert chains is not None
        have = len(chains.stretches)
        found = from_draws(memory, Layout(CHUNK * have, self.groups, self.siblings), self.seed)
        memory = dataclasses.replace(memory, reframed=CHUNK * have * len(chains.states.z), phase="walk")
        if found is None:
            return memory
        begun = dataclasses.replace(
            memory, frame=found[0], points=found[1], verdict=None, past_rounds=len(memory.rounds)
        )
        memory = self._begin(target, begun)
        assert memory.chains is not None
        wanted = max(memory.chains.wanted, CHUNK * have)
        return dataclasses.replace(memory, chains=dataclasses.replace(memory.chains, wanted=wanted))


def _known(memory: Memory) -> bool:
    """Whether the fit began from an earlier one, and its frame is good."""
    return memory.again and memory.points is not None and not frame_varies(memory.points)
