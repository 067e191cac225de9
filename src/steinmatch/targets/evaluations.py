"""Log densities and scores of many points, in batches of one size: compiled once, whatever the number."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from steinmatch._devices import gathered, shared_out
from steinmatch._faults import BudgetSpent
from steinmatch._linalg import BLOCK_ENTRIES
from steinmatch.targets.base import AbstractTarget, Gradient
from steinmatch.targets.compiled import compiled
from steinmatch.targets.files import Streamed

BATCH = 64


class Evaluations:
    """A target seen from NumPy, with the count of what was evaluated: batches are filled up, and that counts too."""

    def __init__(self, target: AbstractTarget, batch: int = BATCH):
        self.target = target
        self.batch = batch
        self.n_gradients = 0
        self.n_hvps = 0
        self.spent: Callable[[int], bool] = lambda n_gradients: False  # asked before every batch

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "spent"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state, spent=lambda n_gradients: False)

    def __call__(self, x: Float[np.ndarray, "n d"]) -> tuple[Float[np.ndarray, " n"], Float[np.ndarray, "n d"]]:
        """log p (nan where the target has none) and the scores."""
        size, n = self.batch, len(x)
        padded = np.concatenate([x, np.repeat(x[:1], -n % size, axis=0)])  # the last batch is filled up
        if isinstance(self.target.log_density, Streamed):  # all points in one pass over the data
            self._ask()
            values, scores = self.target.log_density.values_and_scores(padded)
            self.n_gradients += len(padded)
            return values[:n], scores[:n]
        parts = []
        for i in range(0, len(padded), size):
            self._ask()
            parts.append([gathered(part) for part in _values_and_scores(self.target, shared_out(padded[i : i + size]))])
            self.n_gradients += size
        values, scores = (np.concatenate(found)[:n] for found in zip(*parts, strict=True))
        return values, scores

    def _ask(self) -> None:
        if self.spent(self.n_gradients):
            raise BudgetSpent(self.n_gradients)


@compiled
def _values_and_scores(target: AbstractTarget, x: Float[Array, "n d"]) -> tuple[Array, Array]:
    if target.log_density is None:
        return jnp.full(x.shape[0], jnp.nan), jax.vmap(target.score)(x)
    if isinstance(target.score, Gradient):
        return jax.vmap(jax.value_and_grad(target.log_density))(x)
    return jax.vmap(target.log_density)(x), jax.vmap(target.score)(x)


def point_by_point(function: Callable[[Array], Array], x: Float[Array, "n d"]) -> Array:
    """A function of one point at all of them, one after another on a CPU: as fast as all at once, which made XLA wait
    for itself for ever on a Gaussian process, whose Hessians call LAPACK in batches of batches (jaxlib 0.10.2, 2 cores,
    one call in a hundred). On other devices in blocks.
    """
    rows = max(1, BLOCK_ENTRIES // x.shape[1] ** 2)
    return jax.lax.platform_dependent(
        x, cpu=lambda x: jax.lax.map(function, x), default=lambda x: jax.lax.map(function, x, batch_size=rows)
    )
