"""NumPyro models, through their own potential on the unconstrained space."""

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jax.flatten_util import ravel_pytree
from numpyro.distributions import Unit
from numpyro.handlers import uncondition
from numpyro.infer import Predictive
from numpyro.infer.util import initialize_model, unconstrain_fn

from steinmatch._types import Vector, float64
from steinmatch.targets import ModelInfo, Target


class _Unobserved(uncondition):
    """Observed sites are drawn anew, as many values as were observed, also where the model has no plate for them."""

    def process_message(self, msg: Any) -> None:
        if msg["type"] == "sample" and msg["is_observed"] and not isinstance(msg["fn"], Unit):
            fn = msg["fn"]
            observed = np.shape(msg["value"])
            batch = np.broadcast_shapes(observed[: len(observed) - fn.event_dim], fn.batch_shape)
            msg["fn"] = fn.expand(batch)
        super().process_message(msg)


@float64
def from_numpyro(model: Callable, *args: Any, **kwargs: Any) -> Target:
    """The posterior of a NumPyro model, called as `model(*args, **kwargs)`.

    `constrain` gives all its latent and deterministic sites; plates become dims. Models whose structure or supports
    depend on the values of other sites are not supported.
    """
    if not callable(model):
        raise TypeError(f"from_numpyro: model must be a NumPyro model, a function; got {model!r:.80}.")
    try:
        info = initialize_model(
            jax.random.key(0), model, model_args=args, model_kwargs=kwargs, dynamic_args=False, validate_grad=False
        )
    except Exception as error:
        raise ValueError(
            f"from_numpyro: the model failed when it was run: {type(error).__name__}: {error}. "
            "Check its data: from_numpyro(model, *args, **kwargs) calls model(*args, **kwargs)."
        ) from error
    start = {name: np.asarray(value, np.float64) for name, value in info.param_info.z.items()}
    if not start:
        raise ValueError("from_numpyro: the model has no latent sites.")
    flat, unflatten = ravel_pytree(start)

    def log_density(x: Vector) -> jax.Array:
        return -info.potential_fn(unflatten(x))

    def constrain(x: Vector) -> dict:
        return dict(info.postprocess_fn(unflatten(x)))

    def predict(values: dict[str, np.ndarray], seed: int) -> dict:
        latent = {name: value for name, value in values.items() if name in start}
        drawn = Predictive(_Unobserved(model), latent)(jax.random.key(seed), *args, **kwargs)
        return {name: value for name, value in drawn.items() if name not in factors}

    def unconstrain(values: dict[str, np.ndarray]) -> np.ndarray:
        def one(params: dict) -> jax.Array:
            return ravel_pytree({k: unconstrain_fn(model, args, kwargs, params)[k] for k in start})[0]

        with jax.enable_x64(True):
            return np.asarray(jax.vmap(one)({name: jax.numpy.asarray(values[name]) for name in start}))

    dims, coords, factors = {}, {}, set()
    for name, site in info.model_trace.items():
        if site["type"] == "sample" and isinstance(site["fn"], Unit):  # what numpyro.factor makes
            factors.add(name)
        elif site["type"] == "sample" and not site["is_observed"]:
            frames = sorted(site.get("cond_indep_stack", []), key=lambda frame: frame.dim)
            shape = np.shape(site["value"])
            if frames and len(shape) >= len(frames):
                extra = [f"{name}_dim_{i}" for i in range(len(shape) - len(frames))]
                dims[name] = [*(frame.name for frame in frames), *extra]
                coords |= {frame.name: list(range(frame.size)) for frame in frames}
    return Target(log_density, dim=flat.size, constrain=constrain, info=ModelInfo(dims, coords, predict, unconstrain))
