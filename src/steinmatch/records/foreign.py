"""Draws of other samplers, in whatever form they come: arrays, dicts, ArviZ, NumPyro's MCMC, CmdStan's CSV."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from jaxtyping import Float

from steinmatch._checks import as_particles
from steinmatch._files import as_path
from steinmatch._types import float64
from steinmatch.records.cmdstan import read_cmdstan
from steinmatch.targets import AbstractTarget, constrained_values, shapes_of

_NEWTON = 60


class ForeignDraws(NamedTuple):
    """Unconstrained draws, chain after chain."""

    x: Float[np.ndarray, "n d"]
    n_chains: int


def read_foreign(draws: Any, target: AbstractTarget, place: str) -> ForeignDraws:
    """The draws as unconstrained points."""
    files = _files(draws, place)
    if files:
        return _by_name(read_cmdstan(files), target, place)
    if hasattr(draws, "get_samples"):  # a NumPyro MCMC
        found = draws.get_samples(group_by_chain=True)
        return _from_array(found, target, place) if not isinstance(found, Mapping) else _by_name(found, target, place)
    if hasattr(draws, "groups") or hasattr(draws, "posterior"):  # InferenceData or DataTree
        groups = _groups(draws)
        if "unconstrained" in groups and "x" in draws["unconstrained"]:
            return _from_array(np.asarray(draws["unconstrained"]["x"]), target, place)
        if "posterior" not in groups:
            raise ValueError(
                f"{place}: the InferenceData has no posterior group; it has {', '.join(groups) or 'none'}."
            )
        return _by_name({str(k): np.asarray(v) for k, v in draws["posterior"].items()}, target, place)
    if isinstance(draws, Mapping):
        return _by_name(draws, target, place)
    return _from_array(draws, target, place)


def _files(draws: Any, place: str) -> list[Path]:
    """The paths, if draws are given as the path of a file, or those of several."""
    paths = [draws] if isinstance(draws, str | os.PathLike) else draws
    if not isinstance(paths, list | tuple) or not all(isinstance(path, str | os.PathLike) for path in paths):
        return []
    files = [as_path(path, place) for path in paths]
    missing = [path for path in files if not path.is_file()]
    if missing:
        raise FileNotFoundError(f"{place}: there is no file {missing[0]}.")
    return files


def _groups(data: Any) -> list[str]:
    found = data.groups() if callable(getattr(data, "groups", None)) else getattr(data, "groups", ())
    return [str(name).strip("/") for name in found] or [str(name) for name in getattr(data, "children", ())]


def _from_array(draws: Any, target: AbstractTarget, place: str) -> ForeignDraws:
    array = np.asarray(draws, np.float64)
    chains = 1
    if array.ndim == 3:
        chains, array = array.shape[0], array.reshape(-1, array.shape[2])
    return ForeignDraws(as_particles(array, place, target.dim), chains)


@float64
def _by_name(draws: Mapping[str, Any], target: AbstractTarget, place: str) -> ForeignDraws:
    """Constrained values by name, (chains, n, *shape) or (n, *shape), back on the unconstrained space."""
    shapes = shapes_of(target)
    known = {str(name): np.asarray(value, np.float64) for name, value in draws.items() if str(name) in shapes}
    missing = [name for name in shapes if name not in known]
    info = getattr(target, "info", None)
    inverse = None if info is None else info.unconstrain
    if (missing and inverse is None) or not known:
        raise ValueError(
            f"{place}: the draws have no variable {missing[0]!r}; the target's are {', '.join(shapes)}, the draws' "
            f"{', '.join(map(str, draws))}."
        )
    name, first = next(iter(known.items()))
    leading = first.ndim - len(shapes[name])
    if leading not in (1, 2) or any(v.shape[leading:] != shapes[k] for k, v in known.items()):
        wrong = next((k for k, v in known.items() if v.shape[v.ndim - len(shapes[k]) :] != shapes[k]), name)
        raise ValueError(
            f"{place}: draws of {wrong!r} must have shape (n, *{shapes[wrong]}) or (chains, n, *{shapes[wrong]}), got "
            f"{known[wrong].shape}."
        )
    chains = first.shape[0] if leading == 2 else 1
    flat = {k: v.reshape(-1, *shapes[k]) for k, v in known.items()}
    if inverse is not None:
        try:
            x = inverse(flat)
        except KeyError as error:
            raise ValueError(f"{place}: the draws have no variable {error}.") from error
    else:
        x = _solved(
            target, np.concatenate([flat[k].reshape(len(first.reshape(-1, *shapes[name])), -1) for k in shapes], axis=1)
        )
    x = as_particles(x, place, target.dim)
    _, back = constrained_values(target, x[:64])
    order = [k for k in shapes if k in flat]
    given = np.concatenate([flat[k][:64].reshape(len(x[:64]), -1) for k in order], axis=1)
    columns = np.concatenate([np.full(int(np.prod(shapes[k])), k in flat) for k in shapes])
    if not np.allclose(back[:, columns], given, rtol=1e-3, atol=1e-5):
        raise ValueError(
            f"{place}: the draws could not be brought to the unconstrained space: `constrain` does not give them back. "
            "Give unconstrained draws, an array (n, d)."
        )
    return ForeignDraws(x, chains)


def _solved(target: AbstractTarget, values: Float[np.ndarray, "n k"]) -> Float[np.ndarray, "n d"]:
    """x with constrain(x) = values, by damped Gauss-Newton steps from zero, for targets without an inverse."""
    if target.constrain is None:
        return values
    constrain = target.constrain

    def flat(x: Any) -> Any:
        leaves = jax.tree.leaves(constrain(x))
        return jax.numpy.concatenate([jax.numpy.ravel(jax.numpy.asarray(leaf)) for leaf in leaves])

    scale = np.maximum(np.abs(values).mean(axis=0), 1e-8)

    def one(goal: Any) -> Any:
        def off(x: Any) -> Any:
            return (flat(x) - goal) / scale

        def step(_: Any, state: tuple) -> tuple:
            x, damping = state
            jacobian, value = jax.jacfwd(off)(x), off(x)
            gram = jacobian.T @ jacobian
            move = -jax.numpy.linalg.solve(gram + damping * jax.numpy.eye(len(x)), jacobian.T @ value)
            move = move * jax.numpy.minimum(1.0, 2.0 / jax.numpy.maximum(jax.numpy.linalg.norm(move), 1e-300))
            better = jax.numpy.sum(off(x + move) ** 2) < jax.numpy.sum(value**2)
            return jax.numpy.where(better, x + move, x), jax.numpy.where(better, 0.1 * damping, 10.0 * damping)

        return jax.lax.fori_loop(0, _NEWTON, step, (jax.numpy.zeros(target.dim), 1e-3))[0]

    return np.asarray(jax.jit(jax.vmap(one))(jax.numpy.asarray(values)))
