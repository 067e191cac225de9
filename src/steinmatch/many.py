"""Many posteriors of one model: one for each of many data sets, each with its own verdict."""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from steinmatch._types import float64, plain
from steinmatch.adaptive import LARGEST, Together, Walk, error_in_words, modes_of, stacked, usual_parent, walk_together
from steinmatch.coordinates import AffineMap
from steinmatch.fitting import Fit, fit
from steinmatch.kernels import Whitened
from steinmatch.kernels.features import Linear
from steinmatch.progress import counted_bar
from steinmatch.solvers import Counts
from steinmatch.starts import spread_of
from steinmatch.targets import AbstractTarget, constrained_values, in_form
from steinmatch.targets.base import Gradient

_TOGETHER = 16  # data sets: fewer are fitted in less time than their one program is compiled
_SHOWN = 4  # of them have a fit of their own before


class Fits(Sequence[Fit]):
    """The fits of many data sets, in their order. Those that were walked together become a `Fit` when asked for."""

    def __init__(self, parts: Sequence["Fit | _Deferred"]):
        self._parts = list(parts)

    def __len__(self) -> int:
        return len(self._parts)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return Fits(self._parts[index])
        part = self._parts[index]
        if isinstance(part, _Deferred):
            self._parts[index] = part = part.fit()
        return part

    def __iter__(self) -> Iterator[Fit]:
        return (self[i] for i in range(len(self)))

    @property
    def converged(self) -> np.ndarray:
        """Of each data set."""
        return np.array([part.converged for part in self._parts])

    @property
    def mean(self) -> Any:
        """Posterior means, as `Fit.mean` gives them, with a leading axis of data sets."""
        return self._stacked("mean")

    @property
    def sd(self) -> Any:
        """Posterior sds, as `Fit.sd` gives them, with a leading axis of data sets."""
        return self._stacked("sd")

    @property
    def reasons(self) -> list[str]:
        """Of each data set."""
        return [part.reason for part in self._parts]

    @property
    def n_gradients(self) -> int:
        """Of all together."""
        return sum(part.n_gradients for part in self._parts)

    def _stacked(self, name: str) -> Any:
        found = [getattr(part, name) for part in self._parts]
        if isinstance(found[0], np.ndarray):
            return np.stack(found)
        return {key: np.stack([np.asarray(one[key]) for one in found]) for key in found[0]}

    def __repr__(self) -> str:
        return f"Fits({len(self)} data sets, {int(self.converged.sum())} converged, {self.n_gradients:,} gradients)"


class _Call(NamedTuple):
    """What was asked for, and a target like those of all data sets."""

    like: AbstractTarget
    tol: float
    seed: int


class _Deferred:
    """A walk of one data set, as a fit when it is asked for: a target of its own takes longer to make than to walk."""

    converged = True

    def __init__(self, make: Callable[[Any], AbstractTarget], one: Any, found: Together, call: "_Call"):
        self.make, self.one, self.found, self.like = make, one, found, call.like
        self.tol, self.seed, self.n_gradients = call.tol, call.seed, found.n_gradients

    @property
    def mean(self) -> Any:
        return in_form(self.like, self.found.walked.verdict.estimate[0])  # type: ignore[union-attr]

    @property
    def sd(self) -> Any:
        return in_form(self.like, self.found.walked.verdict.estimate[1])  # type: ignore[union-attr]

    @property
    def reason(self) -> str:
        walked = self.found.walked
        assert walked.verdict is not None and walked.layout is not None
        chains = walked.layout.groups * walked.layout.siblings
        return error_in_words(walked.verdict, walked.layout.n, chains, self.tol)

    @float64
    def fit(self) -> Fit:
        walked = self.found.walked
        assert walked.verdict is not None and walked.layout is not None
        affine = isinstance(walked.frame, AffineMap)
        spread = spread_of(self.found.x, walked.verdict.weights)
        return Fit(
            target=self.make(self.one),
            kernel=plain(Whitened(Linear(), walked.frame if affine else spread, given=True)),
            particles=self.found.x,
            weights=walked.verdict.weights,
            converged=True,
            reason=self.reason,
            residual=walked.verdict.residual,
            counts=Counts(walked.layout.transitions, self.n_gradients),
            seconds=self.found.seconds,
            history={"error": np.array([found.error for found in walked.rounds])},
            frame=plain(walked.frame) if affine else None,
            seed=self.seed,
            error=walked.error,
            layout=walked.layout,
            rounds=walked.rounds,
            walked=walked,
            modes=modes_of(walked),
            tol=self.tol,
        )


@float64
def fit_many(
    target: AbstractTarget | Callable[[Any], AbstractTarget],
    data: Any,
    *,
    tol: float = 0.02,
    seed: int = 0,
    max_seconds: float | None = None,
    max_gradients: int | None = None,
    progress: bool = True,
) -> Fits:
    """The automatic fit for each of many data sets: `data` is an array, or a tree of arrays, whose first axis they are.

        target = sm.from_numpyro(model, sigma=sigma[0], y=y[0])
        fits = sm.fit_many(target, {"sigma": sigma, "y": y})   # sigma, y: (1000, 8)

    **Arguments:**

    - `target`: a target of a front end or of `Target.from_data`, whose data are replaced by each data set in turn (by
      name, where the data are a dict); or a function that makes a target of one data set.
    - `tol`, `seed`, `max_seconds`, `max_gradients`, `progress`: as of `fit`; the budgets are those of one data set.

    Frames, walks and verdicts of all data sets are one compiled program each. Those for which that is not enough, and
    all of them where there are few or where budgets are given, get a `fit` of their own. After Ctrl-C the fits that are
    done are returned.
    """
    tol, seed = Walk(tol, seed=seed).tol, Walk(tol, seed=seed).seed
    sets = _data_sets(data)
    make = _maker(target)
    parts: list[Fit | _Deferred | None] = [None] * len(sets)
    with counted_bar(progress, "data sets", len(sets)) as advance, contextlib.suppress(KeyboardInterrupt):
        if len(sets) >= _TOGETHER and max_seconds is None and max_gradients is None:
            parts = _walked_together(make, sets, tol, seed, advance)
        for i, one in enumerate(sets):
            if parts[i] is not None:
                continue
            with _on_the_host():
                found = fit(
                    make(one), tol=tol, seed=seed, max_seconds=max_seconds, max_gradients=max_gradients, progress=False
                )
            if found.reason.startswith("interrupted"):
                break
            parts[i] = found
            advance()
    return Fits([part for part in parts if part is not None])


def _on_the_host() -> Any:
    """One small posterior keeps no other device busy: each of its many short steps would wait for the way there."""
    return jax.default_device(jax.devices("cpu")[0])


def _walked_together(
    make: Callable[[Any], AbstractTarget], sets: list[Any], tol: float, seed: int, advance: Callable[..., None]
) -> list[Fit | _Deferred | None]:
    """Of each data set the walk that has converged, or None. A few have a fit of their own first, which shows what
    frame the model asks for.
    """
    parts: list[Fit | _Deferred | None] = [None] * len(sets)
    probes = np.linspace(0, len(sets) - 1, _TOGETHER).astype(int)
    targets = [make(sets[i]) for i in probes]
    first = targets[0]
    if first.dim > LARGEST or first.log_density is None or not isinstance(first.score, Gradient):
        return parts
    stack = stacked(targets, [sets[i] for i in probes])
    if stack is None:
        return parts
    for i, one in list(zip(probes, targets, strict=True))[:: _TOGETHER // _SHOWN]:
        with _on_the_host():
            parts[i] = fit(one, tol=tol, seed=seed, progress=False)
        advance()
    parent = usual_parent([part.walked.frame for part in parts if isinstance(part, Fit) and part.walked is not None])
    k = constrained_values(first, np.zeros((1, first.dim)))[1].shape[1]
    rest = [i for i, part in enumerate(parts) if part is None]
    found = walk_together(stack([sets[i] for i in rest]), len(rest), k, parent, tol, seed, advance)
    for i, walk in zip(rest, found, strict=True):
        parts[i] = None if walk is None else _Deferred(make, sets[i], walk, _Call(first, tol, seed))
    return parts


def _data_sets(data: Any) -> list[Any]:
    leaves, structure = jax.tree.flatten(data)
    sizes = {np.shape(leaf)[0] if np.ndim(leaf) else 0 for leaf in leaves}
    if len(sizes) != 1 or 0 in sizes:
        raise ValueError(
            "fit_many: data must be arrays whose first axis, of the same length, counts the data sets; got shapes "
            f"{[np.shape(leaf) for leaf in leaves]}."
        )
    return [jax.tree.unflatten(structure, [np.asarray(leaf)[i] for leaf in leaves]) for i in range(sizes.pop())]


def _maker(target: Any) -> Callable[[Any], AbstractTarget]:
    renewed = getattr(getattr(target, "info", None), "renewed", None)
    if renewed is not None:
        return lambda one: renewed((), one) if isinstance(one, dict) else renewed((one,), {})
    if not isinstance(target, AbstractTarget) and callable(target):
        made: Callable[[Any], Any] = target
        return made
    raise TypeError(
        "fit_many: target must be a target of a front end (from_numpyro, from_pymc, from_stan) or of Target.from_data, "
        f"whose data can be replaced, or a function that makes a target of one data set; got {target!r:.80}."
    )
