"""A fit taken further: features of one question added to its kernel; the same model with other data."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from steinmatch.answers.matching import MatchingSet
from steinmatch.answers.query import query_features
from steinmatch.kernels import Whitened
from steinmatch.kernels.features import Linear
from steinmatch.solvers import LevenbergMarquardt
from steinmatch.targets import AbstractTarget

_PARTICLES_A_FEATURE = 1.4  # at least: with hardly more particles than features a root may not exist


def refined(fitted: Any, f: Callable[[Any], Any], solve: Callable[..., Any]) -> Any:
    """`Fit.refine_for`: a `Fit` whose features also match f; `solve` is `fit`."""
    f, matching = fitted.on_points(f), fitted.matching_set
    dim = fitted.target.dim
    if fitted.kernel.n_features(dim) is None:
        matching = MatchingSet(fitted.target, Whitened(Linear()), fitted.particles, fitted.weights)
    before = float(np.max(matching.distance(f).relative))
    extra, _ = query_features(f, matching)
    if extra is None:
        reason = f"{fitted.reason}; the query needs no features beyond those matched"
        return dataclasses.replace(fitted, reason=reason)
    kernel = matching.kernel + extra
    n, m = fitted.particles.shape[0], kernel.n_features(dim)
    assert m is not None
    more = 0 if n >= _PARTICLES_A_FEATURE * m else int(np.ceil(_PARTICLES_A_FEATURE * m)) - n
    particles = np.concatenate([fitted.particles, matching.probes(more, seed=3)]) if more else fitted.particles
    found = solve(fitted.target, kernel=kernel, init=particles, solver=LevenbergMarquardt())
    after = float(np.max(found.matching_set.distance(f).relative))
    note = f"for the query, f was {before:.1e} sds from the matching set and is now {after:.1e}"
    return dataclasses.replace(found, reason=f"{found.reason}; {note}")


def with_data(target: AbstractTarget, args: tuple[Any, ...], data: Mapping[str, Any]) -> AbstractTarget:
    """The target of the same model with other data, as `Fit.update` takes them; or another target."""
    if len(args) == 1 and isinstance(args[0], AbstractTarget) and not data:
        return args[0]
    if len(args) == 1 and isinstance(args[0], Mapping):
        args, data = (), {**args[0], **data}
    renewed = getattr(getattr(target, "info", None), "renewed", None)
    if renewed is None or not (args or data):
        raise ValueError(
            "update: give new data by name for a model of NumPyro, PyMC or Stan; for other targets the new target, "
            "update(target)."
        )
    return renewed(args, dict(data))
