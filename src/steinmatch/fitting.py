"""`fit`: from a target to particles whose averages can be trusted.

    target   what is known: log p or its score              (targets)
    kernel   what must be exact: features, or a kernel      (features, kernels)
    solver   how the fixed point is reached                 (solvers)

`fit` checks its input, draws the start, binds the kernel, runs the solver and hands back a `Fit`, a plain record.
Without a kernel it is automatic: a frame in which the target is nearly normal, a walk of many chains in it, and weights
that make Stein's equations exact, until the standard errors of means and sds are within a tolerance (adaptive).
"""

import dataclasses
import functools
import pickle
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PRNGKeyArray

from steinmatch._checks import check_process, positive_integer, positive_number, whole_seed
from steinmatch._devices import over, shared_out
from steinmatch._linalg import one_thread
from steinmatch._types import ArrayLike, float64, plain
from steinmatch.adaptive import BATCH, MOST_DRAWS, Evidence, Round, Walk, Walked, batch_of, log_evidence, modes_of, told
from steinmatch.answers.certificate import Certificate, certify
from steinmatch.answers.matching import MatchingSet
from steinmatch.answers.query import Query, answer, answer_from_draws, draws_of
from steinmatch.answers.sharpening import stein_weights
from steinmatch.choices import kernel_named, rank_of, solver_for, solver_named
from steinmatch.coordinates import AffineMap, PulledBack
from steinmatch.coordinates.plainly import unplaced
from steinmatch.kernels import RBF, AbstractKernel, Whitened
from steinmatch.kernels.features import Linear
from steinmatch.progress import progress_bar
from steinmatch.records.pages.report import write_report
from steinmatch.records.posterior import Posterior
from steinmatch.records.reporting import of_fit
from steinmatch.records.storage import saved_groups, write
from steinmatch.refining import refined, with_data
from steinmatch.solvers import AbstractSolver, Budget, Counts, Problem
from steinmatch.solvers.checkpoint import Checkpoint, identity_of
from steinmatch.starts import first_particles, from_a_sample, more_particles, resampled, spread_of
from steinmatch.targets import AbstractTarget, check_target

_MOST_IN_EQUATIONS = 400  # draws: a query then takes a few tenths of a second


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class Fit(Posterior):
    """Particles that stand for the target, what they answer (`Posterior`), and how they were reached."""

    kernel: AbstractKernel  # bound, its bandwidth held at the particles
    converged: bool
    reason: str
    residual: float  # largest entry of the scaled residual
    counts: Counts  # of steps, gradients, Hessian-vector products and trials that met a non-finite score
    seconds: float
    history: dict[str, np.ndarray]
    frame: AffineMap | None  # x = mu + L z of the affine phase, where there was one
    rounds: tuple[Round, ...] = ()  # of the automatic fit
    walked: Walked | None = dataclasses.field(default=None, repr=False)  # what the automatic fit can go on from
    tol: float | None = None  # that was asked for

    @property
    def n_steps(self) -> int:
        """Steps of the solver; transitions of the chains."""
        return self.counts.steps

    @property
    def n_gradients(self) -> int:
        """Score evaluations."""
        return self.counts.gradients

    @property
    def n_hvps(self) -> int:
        """Hessian-vector products."""
        return self.counts.hvps

    @property
    def n_nonfinite(self) -> int:
        """Trials that met a non-finite score."""
        return self.counts.nonfinite

    @functools.cached_property
    def certificate(self) -> Certificate:
        """What is exact about the particles, and how exact: computed when it is first asked for.

        Where the automatic fit used a frame that is not affine, of the target as it is seen through that frame.
        """
        if self.walked is not None and not isinstance(self.walked.frame, AffineMap):
            return certify(
                PulledBack(self.target, self.walked.frame),
                Linear(),
                unplaced(self.walked.frame, self.particles),
                self.weights,
            )
        return certify(self.target, self.kernel, self.particles, self.weights, frame=self.frame)

    @functools.cached_property
    def log_evidence(self) -> Evidence:
        """log of the integral of the density, with its standard error: (estimate, error), by bridge sampling between
        the frame's normal and the draws. Computed when it is first asked for, with some hundred gradients.

        It is that of the density as the target gives it: the log marginal likelihood if priors and likelihood are
        normalised, as NumPyro's and PyMC's are; Stan's `~` statements leave constants out, `target +=` does not.
        """
        return log_evidence(self.target, self.walked, self.seed)

    @functools.cached_property
    def matching_set(self) -> MatchingSet:
        """The functions whose averages over the particles are exact at the fixed point.

        Of a long walk so many draws as a dense Stein equation can bear, with weights of their own.
        """
        if self.error is None or len(self.particles) <= _MOST_IN_EQUATIONS:
            return MatchingSet(self.target, self.kernel, self.particles, self.weights)
        some = self.particles[np.linspace(0, len(self.particles) - 1, _MOST_IN_EQUATIONS).astype(int)]
        return MatchingSet(self.target, self.kernel, some, stein_weights(self.target, some, self.kernel))

    def query(self, f: Callable[[Any], Any]) -> Query:
        """E f with an error, f being a function of one point's parameters with values of any shape."""
        if self.error is None:
            return answer(self.on_points(f), self.matching_set, self.residual)
        draws = draws_of(self.walked, self.weights, self.draws_layout, self.modes)
        with one_thread():
            return answer_from_draws(self._values_of(f, "query"), draws, self.residual)

    def refine_for(self, f: Callable[[Any], Any], *, max_seconds: float | None = None, progress: bool = True) -> "Fit":
        """Query-specific inference: a new fit whose features also match f, as far as its Stein equation can be solved.

        The vector field phi of f = P . phi + b, in polynomials of the whitened point, is added to the features, and the
        fixed point is solved again from these particles, with more of them where the features need them. A full-rank
        kernel is replaced by linear features. The `reason` of the new fit says how near f came to the matching set.
        """
        return refined(self, f, functools.partial(fit, seed=self.seed, max_seconds=max_seconds, progress=progress))

    def walk(
        self, n: int, *, tol: float | None = None, max_seconds: float | None = None, progress: bool = True
    ) -> "Fit":
        """A new fit with at least n further draws: the chains of this one go on. Of an automatic fit only."""
        if self.walked is None:
            raise ValueError("walk: this fit has no chains to go on from; fit(target), without a kernel, has.")
        if len(self.modes) > 1:
            raise ValueError(
                f"walk: this fit has {len(self.modes)} modes with chains of their own; fit again with a smaller tol=."
            )
        more = len(self.walked.z) + positive_integer(n, "n", "walk")
        solver = Walk(self.tol or 0.02 if tol is None else tol, least_draws=more, seed=self.seed, resume=self.walked)
        return fit(self.target, solver=solver, seed=self.seed, max_seconds=max_seconds, progress=progress)

    def update(
        self,
        *args: Any,
        tol: float | None = None,
        max_seconds: float | None = None,
        progress: bool = True,
        **data: Any,
    ) -> "Fit":
        """A fit of the same model with other data, from the present frame. Data are given as the model takes them
        (NumPyro's arguments, PyMC's `pm.Data`, Stan's data), by name or in a dict; what is not given stays. Or a fit of
        another target, `update(target)`. The tolerance is that of this fit, unless given.
        """
        if self.tol is None:
            raise ValueError("update: this fit is of a kernel; write fit(target, kernel=..., init=this_fit).")
        target = with_data(self.target, args, data)
        tol = self.tol if tol is None else tol
        return fit(target, init=self, tol=tol, seed=self.seed, max_seconds=max_seconds, progress=progress)

    def __getstate__(self) -> dict[str, Any]:
        try:
            pickle.dumps(self.target)
        except Exception as error:
            raise TypeError(
                "a Fit whose target holds functions that pickle cannot store: use fit.save(path), and "
                "steinmatch.load(path, target=target)."
            ) from error
        return vars(self)

    def save(self, path: str | Path) -> None:
        """A NetCDF file that `steinmatch.load` and ArviZ read; written whole or not at all."""
        write(saved_groups(self), path)

    def report(self, path: str | Path, *, title: str = "Posterior", call: str = "") -> None:
        """One HTML page that needs nothing beside it; `call` is shown there as what made the fit."""
        write_report(of_fit(self, title, call), path)

    def _verdict(self) -> str:
        state = "converged" if self.converged else "NOT converged"
        hvps = f" and {self.n_hvps:,} Hessian-vector products" if self.n_hvps else ""
        return (
            f"{self.particles.shape[0]} particles, {state}: {self.reason}. Scaled residual {self.residual:.1e}, "
            f"{self.n_steps} steps, {self.n_gradients:,} gradients{hvps}, {self.seconds:.1f} s."
        )

    def __repr__(self) -> str:
        n, d = self.particles.shape
        return f"Fit(n={n}, d={d}, converged={self.converged}, residual={self.residual:.1e}, reason={self.reason!r})"


@float64
def fit(
    target: AbstractTarget,
    n_particles: int | None = None,
    *,
    kernel: AbstractKernel | str | None = None,
    solver: AbstractSolver | str = "auto",
    init: "ArrayLike | Callable[[PRNGKeyArray, int], ArrayLike] | Fit | None" = None,
    seed: int = 0,
    tol: float = 0.02,
    max_steps: int | None = None,
    max_seconds: float | None = None,
    max_gradients: int | None = None,
    progress: bool = True,
    ensure_rank: bool = False,
    checkpoint: str | Path | None = None,
    mesh: jax.sharding.Mesh | None = None,
) -> Fit:
    """Particles whose averages can be trusted.

    `fit(target)` is automatic: weighted draws of chains, with a standard error of every mean and sd. It goes on until
    twice those errors are within `tol` posterior sds, or says why not. `fit(target, n, kernel=...)` solves for a fixed
    point of SVGD with that kernel, v(x_i) = 0 for all i.

    **Arguments:**

    - `target`: a `Target`, or one of `steinmatch.targets`.
    - `n_particles`: n; the automatic fit chooses it (a number given here is drawn from its weighted draws), with a
      kernel it is 100 unless given here or by `init`.
    - `kernel`: what the particles must match; a kernel, or the name of one with its defaults. Without one the fit is
      automatic; with a solver but no kernel it is RBF.
    - `solver`: how the fixed point is reached. "auto": the affine phase and Levenberg-Marquardt for feature kernels;
      the affine phase, descent and Levenberg-Marquardt for full-rank kernels.
    - `init`: the start: an array (n, d), or a function (key, n) -> (n, d) such as the `sample` of a target; standard
      normal draws by default. Or an earlier fit: the automatic fit starts from its frame and, for the same target, goes
      on from its draws; with a kernel its particles are the start.
    - `seed`: of the start and of random features. Same seed, same result.
    - `tol`: of the automatic fit: twice the largest standard error of means, in posterior sds, and of sds, relative.
    - `max_steps`, `max_seconds`, `max_gradients`: the budget; the best particles so far are returned.
    - `progress`: show a bar where the output is a terminal.
    - `ensure_rank`: where the features' rank condition (Theorem 3.2) fails although n >= m, run again with half as many
      particles more, up to three times; the reason says so.
    - `checkpoint`: a file for what has been reached, written on the way: the same call goes on from there, and ends
      where it would have ended. A finished fit is read from it.
    - `mesh`: a `jax.sharding.Mesh` of devices over which points and chains are shared out.

    A solve that does not converge returns its best particles with `converged=False` and the `reason`; so does Ctrl-C.
    """
    check_process("fit")
    started = time.monotonic()
    check_target(target, "fit")
    seed = whole_seed(seed, "fit")
    accuracy = positive_number(tol, "tol", "fit")
    chosen_kernel = RBF() if kernel is None else kernel_named(kernel)
    chosen_solver = solver_named(solver)
    budget = Budget(
        None if max_steps is None else positive_integer(max_steps, "max_steps", "fit"),
        None if max_seconds is None else positive_number(max_seconds, "max_seconds", "fit"),
        None if max_gradients is None else positive_integer(max_gradients, "max_gradients", "fit"),
    )
    if isinstance(chosen_solver, Walk) and kernel is not None:
        raise ValueError("fit: Walk weighs draws and has no use for a kernel; leave kernel= out.")
    if checkpoint is not None:
        identity = identity_of(target, seed=seed, tol=accuracy, n_particles=n_particles, kernel=kernel, solver=solver)
        kept = Checkpoint(checkpoint, identity, (target, chosen_kernel, chosen_solver))
        budget = dataclasses.replace(budget, checkpoint=kept)
    automatic = kernel is None and (chosen_solver is None or isinstance(chosen_solver, Walk))
    call = _Call(target, n_particles, chosen_kernel, chosen_solver, init, seed, accuracy, budget, progress, ensure_rank)
    with over(mesh):
        return _automatic(call, started) if automatic else _solved(call, started)


class _Call(NamedTuple):
    """What `fit` was asked for, checked."""

    target: AbstractTarget
    n_particles: int | None
    kernel: AbstractKernel
    solver: AbstractSolver | None
    init: Any
    seed: int
    tol: float
    budget: Budget
    progress: bool
    ensure_rank: bool


def _solved(call: _Call, started: float) -> Fit:
    """A fixed point of SVGD with the kernel of the call."""
    target, init, budget = call.target, call.init, call.budget
    if isinstance(init, Fit):
        init = init.particles
    start_key, kernel_key = jax.random.split(jax.random.key(call.seed))
    particles, _ = first_particles(target, call.n_particles, init, start_key)
    started_from, reruns = particles, ""
    attempt = 0
    while True:
        attempt += 1
        n = particles.shape[0]
        problem = Problem(target, call.kernel.bind(kernel_key, particles), jnp.full(n, 1.0 / n))
        used = solver_for(problem, n) if call.solver is None else call.solver
        with progress_bar(call.progress, f"{type(used).__name__}, {n} particles", budget.max_steps) as report:
            solution = used.solve(problem, jnp.asarray(shared_out(particles)), budget.within(attempt), report)
        rank, m = rank_of(solution)
        if not call.ensure_rank or m is None or m > n or rank >= m or attempt > 3:
            break
        more = n + max(1, n // 2)
        reruns += f"; the features had rank {rank} of {m} at n={n}, so it ran again with n={more}"
        particles = more_particles(target, started_from, init, more, start_key)
    short = "" if m is None or rank >= m else f"; the rank condition is not met: rank {rank} of {m} features"
    return Fit(
        target=target,
        kernel=plain(solution.kernel),
        particles=plain(solution.particles),
        weights=np.full(n, 1.0 / n),
        converged=solution.converged,
        reason=solution.reason + short + reruns,
        residual=solution.residual,
        counts=solution.counts,
        seconds=time.monotonic() - started,
        history=solution.history,
        frame=plain(solution.frame),
        seed=call.seed,
    )


def _automatic(call: _Call, started: float) -> Fit:
    """The automatic fit: `Walk`, run by the loop of all solvers."""
    target, init, seed, budget = call.target, call.init, call.seed, call.budget
    n = None if call.n_particles is None else positive_integer(call.n_particles, "n_particles", "fit")
    if n is not None and n > MOST_DRAWS:
        raise ValueError(f"fit: n_particles={n:,}: the automatic fit has at most {MOST_DRAWS:,} draws; give kernel=.")
    earlier, starts = None, 0
    if isinstance(init, Fit):
        earlier, init = None if len(init.modes) > 1 else init.walked, init.particles
    elif init is None:
        earlier, starts = from_a_sample(target, seed, budget)
    solver = call.solver
    if not isinstance(solver, Walk):
        solver = Walk(call.tol, least_draws=n or 1, seed=seed, centred=init is not None, resume=earlier)
    if solver.resume is None:
        start = np.random.default_rng(seed).normal(size=(BATCH, target.dim)) if init is None else init
        count = None if init is None or earlier is not None else n
        particles, starts = first_particles(target, count, start, jax.random.key(seed), batch_of(target.dim))
    else:
        particles = solver.resume.z[:1]
    particles = jax.device_put(np.asarray(particles, np.float64))  # jnp.asarray would compile each new shape
    problem = Problem(target, Linear(), jax.device_put(np.full(len(particles), 1.0 / len(particles))))
    with one_thread():
        with progress_bar(call.progress, "automatic fit", None) as report:
            found = solver.solve(problem, particles, budget, report)
        walked: Walked | None = found.outcome
        reason, error = told(target, found, solver.tol)
        weights, particles = found.weights, np.asarray(found.particles)
        if n is not None and len(particles) > n:
            particles, weights, error = resampled(target, particles, weights, error, n, seed)
            reason += f"; {n:,} of them were drawn by weight, which leaves an error of {error.largest:.2g}"
        # Of a frame that is not affine: linear features of the particles' own spread.
        own = walked is not None and found.frame is None
        kernel = Whitened(Linear(), spread_of(particles, weights)) if own else found.kernel
    return Fit(
        target=target,
        kernel=plain(kernel),
        particles=particles,
        weights=weights,
        converged=found.converged and 2.0 * error.largest <= solver.tol,
        reason=reason,
        residual=found.residual,
        counts=found.counts + Counts(gradients=starts),
        seconds=time.monotonic() - started,
        history=found.history,
        frame=plain(found.frame),
        seed=seed,
        error=error,
        layout=None if walked is None else walked.layout,
        rounds=() if walked is None else walked.rounds,
        walked=walked,
        modes=modes_of(walked),
        tol=solver.tol,
    )
