"""Many posteriors of one model: one for each of many data sets, each with its own verdict."""

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import numpy as np

from steinmatch._types import float64
from steinmatch.fitting import Fit, fit
from steinmatch.progress import counted_bar
from steinmatch.targets import AbstractTarget


@dataclasses.dataclass(frozen=True)
class Fits(Sequence[Fit]):
    """The fits of many data sets, in their order."""

    fits: tuple[Fit, ...]

    def __len__(self) -> int:
        return len(self.fits)

    def __getitem__(self, index: Any) -> Any:
        return Fits(self.fits[index]) if isinstance(index, slice) else self.fits[index]

    def __iter__(self) -> Iterator[Fit]:
        return iter(self.fits)

    @property
    def converged(self) -> np.ndarray:
        """Of each data set."""
        return np.array([one.converged for one in self.fits])

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
        return [one.reason for one in self.fits]

    def _stacked(self, name: str) -> Any:
        found = [getattr(one, name) for one in self.fits]
        if isinstance(found[0], np.ndarray):
            return np.stack(found)
        return {key: np.stack([np.asarray(one[key]) for one in found]) for key in found[0]}

    def __repr__(self) -> str:
        gradients = sum(one.n_gradients for one in self.fits)
        return f"Fits({len(self)} data sets, {int(self.converged.sum())} converged, {gradients:,} gradients)"


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

    All share one compiled program. After Ctrl-C the fits that are done are returned.
    """
    sets = _data_sets(data)
    make = _maker(target)
    fits: list[Fit] = []
    with counted_bar(progress, "data sets", len(sets)) as advance:
        for one in sets:
            found = fit(
                make(one), tol=tol, seed=seed, max_seconds=max_seconds, max_gradients=max_gradients, progress=False
            )
            if found.reason.startswith("interrupted"):
                break
            fits.append(found)
            advance()
    return Fits(tuple(fits))


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
