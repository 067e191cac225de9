"""`load`: a saved fit back from its file."""

from pathlib import Path
from typing import Any

import equinox as eqx
import numpy as np

from steinmatch._types import float64, plain
from steinmatch.adaptive import Error, Evidence, Mode, Round, Walked
from steinmatch.coordinates import AffineMap
from steinmatch.coordinates.plainly import unplaced
from steinmatch.fitting import Fit
from steinmatch.kernels import AbstractKernel
from steinmatch.measures.weights import Layout
from steinmatch.records import storage
from steinmatch.records.trees import put_together
from steinmatch.solvers import Counts
from steinmatch.targets import AbstractTarget, check_target


class MissingKernel(AbstractKernel):
    """The stand-in for a kernel of the user's own, of which a file has the name alone."""

    name: str = eqx.field(static=True)

    def _missing(self, *_: Any, **__: Any) -> Any:
        raise ValueError(
            f"this fit was saved with a kernel of your own, {self.name}, which is not in the file: give it, "
            "steinmatch.load(path, target=target, kernel=kernel)."
        )

    __call__ = bind = hold = n_features = phi = feature_weights = _missing  # type: ignore[assignment]


@float64
def load(path: str | Path, target: AbstractTarget | None = None, kernel: AbstractKernel | None = None) -> Fit:
    """A fit that was saved. With its `target` all methods work; without, those that need no new densities.

    The library's own kernels are in the file; a kernel of your own is given anew.
    """
    if target is not None:
        check_target(target, "load")
    arrays, attributes, stand_in = storage.read(path)
    particles = arrays["x"]
    if target is not None and target.dim != particles.shape[1]:
        raise ValueError(
            f"load: {path} holds particles of dimension {particles.shape[1]}, the target has {target.dim}."
        )
    frame = put_together(attributes["frame"], arrays)
    error = Error(arrays["error_mean"], arrays["error_sd"]) if "error_mean" in arrays else None
    rounds = tuple(Round(**found) for found in attributes["rounds"])
    walked = None
    if attributes["automatic"] and frame is not None and error is not None:
        z = unplaced(frame, particles)
        unknown = np.full_like(z, np.nan)
        walked = Walked(error, rounds, frame, None, z, unknown, unknown[:, 0])
    if kernel is None:
        saved = attributes["kernel"]
        kernel = MissingKernel(saved) if isinstance(saved, str) else put_together(saved, arrays)
    modes = tuple(
        Mode(share, spread, np.array(mean), np.array(sd)) for share, spread, mean, sd in attributes.get("modes", [])
    )
    fit = Fit(
        target=stand_in if target is None else target,
        kernel=plain(kernel),
        particles=particles,
        weights=arrays["weights"],
        converged=bool(attributes["converged"]),
        reason=str(attributes["reason"]),
        residual=float(attributes["residual"]),
        counts=Counts(*(int(attributes[f"n_{name}"]) for name in ("steps", "gradients", "hvps", "nonfinite"))),
        seconds=float(attributes["seconds"]),
        history={name.removeprefix("history_"): np.asarray(arrays[name]) for name in arrays if "history_" in name},
        frame=plain(frame) if isinstance(frame, AffineMap) else None,
        seed=int(attributes["seed"]),
        error=error,
        rounds=rounds,
        walked=walked,
        layout=Layout(*attributes["layout"]) if attributes["layout"] else None,
        modes=modes,
        tol=attributes.get("tol"),
    )
    if attributes.get("log_evidence"):
        vars(fit)["log_evidence"] = Evidence(*attributes["log_evidence"])
    return fit
