"""The annealing path between two targets."""

from collections.abc import Callable

import equinox as eqx
import numpy as np

from steinmatch._types import Scalar, Vector
from steinmatch.targets.base import AbstractTarget, check_target


class Tempered(AbstractTarget):
    """p_t ~ p0^(1 - t) p^t: score (1 - t) s0 + t s. The temperature is an array, so that one compilation serves all."""

    start: AbstractTarget
    end: AbstractTarget
    temperature: Scalar

    def __init__(self, start: AbstractTarget, end: AbstractTarget, temperature: Scalar):
        self.start, self.end, self.temperature = start, end, temperature

    @property
    def dim(self) -> int:
        return self.end.dim

    @property
    def names(self) -> tuple[str, ...] | None:
        return self.end.names

    @property
    def constrain(self) -> Callable | None:
        return self.end.constrain

    @property
    def differentiable(self) -> bool:
        return self.start.differentiable and self.end.differentiable

    @property
    def log_density(self) -> Callable | None:
        if self.start.log_density is None or self.end.log_density is None:
            return None
        return self._log_density

    def _log_density(self, x: Vector) -> Scalar:
        assert self.start.log_density is not None and self.end.log_density is not None
        t = self.temperature
        return (1.0 - t) * self.start.log_density(x) + t * self.end.log_density(x)

    def score(self, x: Vector) -> Vector:
        t = self.temperature
        return (1.0 - t) * self.start.score(x) + t * self.end.score(x)


def tempered(p0: AbstractTarget, p: AbstractTarget, t: float) -> Tempered:
    """The target p_t ~ p0^(1 - t) p^t, for t between 0 (p0) and 1 (p)."""
    for target in (p0, p):
        check_target(target, "tempered")
    if p0.dim != p.dim:
        raise ValueError(f"tempered: the two targets must have one dimension, got dim={p0.dim} and dim={p.dim}.")
    if eqx.is_array(t) or isinstance(t, int | float):
        if not eqx.is_array(t) and not 0.0 <= t <= 1.0:
            raise ValueError(f"tempered: t must lie between 0 and 1, got {t!r}.")
        return Tempered(p0, p, t if eqx.is_array(t) else np.asarray(t, np.float64))
    raise TypeError(f"tempered: t must be a number between 0 and 1, got {t!r:.80}.")
