"""Bad input: every public function with arguments that are right, of which one or two are replaced by nasty ones."""

import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np

import steinmatch as sm

Try = tuple[str, Callable[[], Any]]


def normal(x: Any) -> Any:
    return -0.5 * jnp.sum(x**2)


TARGET = sm.Target(normal, dim=2)
RNG = np.random.default_rng(0)
POINTS = RNG.normal(size=(12, 2))
DRAWS = RNG.normal(size=(64, 2))
NASTY: tuple[Any, ...] = (
    None, True, "a", "", b"x", -1, 0, 1, 2, 1.5, -0.5, float("nan"), float("inf"), 2**64, 10**12, 1e300, [], {}, (),
    [None], object(), lambda: None, lambda x: None, lambda x: "a", lambda x: x, lambda x, y: 0.0, sm.RBF, sm.RBF(),
    sm.Linear(), TARGET, sm.Target, Path("x"), np.zeros(0), np.zeros(2), np.zeros((2, 0)), np.zeros((0, 2)),
    np.zeros((3, 3)), np.zeros((2, 2, 2)), np.full((4, 2), np.nan), np.full((4, 2), np.inf), 1e308 * np.ones((4, 2)),
    1j * np.ones((4, 2)), np.array([["a", "b"]]), np.array([[None, 1]]), np.ma.masked_equal(np.eye(2), 0.0),
    np.ones((4, 2), bool), np.ones((5, 2)), np.ones((1, 2)), iter([1.0]), {"x": 1}, {"x": np.ones((3, 2))}, range(3),
    slice(None), np.float32(2), np.int8(3), np.datetime64("2020"), "rbf", "linear", types, {1, 2}, 1e-300,
)  # fmt: skip


def fitted() -> sm.Fit:
    return sm.fit(TARGET, progress=False)


def with_kernel(make: Callable) -> Callable:
    return lambda **v: sm.ksd(TARGET, POINTS, make(**v))


def with_solver(make: Callable) -> Callable:
    def used(*args: Any, **values: Any) -> sm.Fit:
        solver = make(*args, **values)
        kernel = None if isinstance(solver, sm.Walk) else "linear"
        return sm.fit(TARGET, 8, kernel=kernel, solver=solver, max_gradients=200, max_seconds=2.0, progress=False)

    return used


def with_target(make: Callable) -> Callable:
    def used(**values: Any) -> Any:
        target = make(**values)
        return sm.ksd(target, np.random.default_rng(0).normal(size=(6, target.dim)))

    return used


def with_parameter(make: Callable) -> Callable:
    def used(**values: Any) -> Any:
        target = sm.Target.from_parameters({"a": make(**values)}, lambda p: -jnp.sum(p["a"] ** 2))
        return sm.targets.constrained_values(target, np.zeros((3, target.dim)))

    return used


def calls(fit: sm.Fit) -> dict[str, tuple[Callable, dict[str, Any]]]:
    """Every public function with arguments that are right."""
    quick = {"max_seconds": 1.0, "progress": False}
    matching = fit.matching_set
    at = {"target": TARGET, "kernel": sm.Linear(), "particles": POINTS, "weights": None, "seed": 0}
    return {
        "Target": (sm.Target, {"log_density": normal, "score": None, "dim": 2, "names": None, "constrain": None}),
        "from_parameters": (sm.Target.from_parameters, {"parameters": {"a": ()}, "log_density": lambda p: -p["a"]}),
        "fit": (sm.fit, {"target": TARGET, "n_particles": None, "solver": "auto", "init": None, "seed": 0, "tol": 0.02,
                         "max_steps": None, "max_gradients": 500, "ensure_rank": False, **quick}),
        "fit kernel": (sm.fit, {"target": TARGET, "n_particles": 8, "kernel": "linear", "solver": "affine",
                                "init": None, "seed": 0, "max_steps": 3, "max_gradients": 500, **quick}),
        "velocity": (sm.velocity, at), "stein_residual": (sm.stein_residual, at), "certify": (sm.certify, at),
        "MatchingSet": (sm.MatchingSet, at),
        "ksd": (sm.ksd, {**at, "statistic": "v"}), "ksd_squared": (sm.ksd_squared, {**at, "statistic": "u"}),
        "ksd_random_features": (sm.ksd_random_features, {"target": TARGET, "particles": POINTS, "n_features": 5,
                                                         "bandwidth": None, "weights": None, "seed": 0}),
        "mmd": (sm.mmd, {"target": DRAWS, "particles": POINTS, "bandwidth": None, "weights": None}),
        "stein_ess": (sm.stein_ess, {"target": TARGET, "particles": POINTS, "weights": None, "n_features": 20}),
        "stein_equation": (sm.stein_equation, {"f": lambda x: x[0], "target": TARGET, "features": sm.Linear(),
                                               "points": POINTS, "weights": None, "ridge": None, "seed": 0}),
        "stein_weights": (sm.stein_weights, {"target": TARGET, "draws": DRAWS, "features": None, "scores": None}),
        "sharpen": (sm.sharpen, {"draws": DRAWS, "target": TARGET, "scores": None}),
        "compare": (sm.compare, {"fits": {"a": fit}}), "load": (sm.load, {"path": "no.nc", "target": None}),
        "expectation": (fit.expectation, {"f": lambda x: x}), "query": (fit.query, {"f": lambda x: x[0]}),
        "predict": (fit.predict, {"fn": lambda x: x, "seed": 0}),
        "walk": (fit.walk, {"n": 64, "tol": None, **quick}), "save": (fit.save, {"path": Path(".") / "fit.nc"}),
        "plot": (fit.plot, {"path": None, "parameters": None}),
        "report": (fit.report, {"path": Path(".") / "report.html", "title": "a title", "call": ""}),
        "quantile": (fit.quantile, {"q": 0.5}), "probability": (fit.probability, {"f": lambda x: x[0] > 0.0}),
        "intervals": (fit.interval, {"level": 0.9, "kind": "hdi"}),
        "summary": (fit.summary, {"var_names": None, "filter_vars": None}),
        "to_arviz": (fit.to_arviz, {"resample": False, "seed": 0}),
        "write_csv": (fit.write_csv, {"path": Path(".") / "draws.csv"}),
        "update": (lambda data: fit.update(data, max_seconds=1.0, progress=False), {"data": TARGET}),
        "from_pytree": (sm.Target.from_pytree, {"log_density": lambda p: -jnp.sum(p["a"] ** 2),
                                                "example": {"a": np.zeros(2)}}),
        "probes": (matching.probes, {"n": 3, "seed": 1}), "basis": (matching.basis, {"points": POINTS}),
        "tempered": (sm.tempered, {"p0": TARGET, "p": TARGET, "t": 0.5}),
        **{k.__name__: (with_kernel(k), {"bandwidth": None}) for k in (sm.RBF, sm.IMQ, sm.LinearRandom)},
        "Matern": (with_kernel(sm.Matern), {"nu": 1.5, "bandwidth": None}),
        "IMQ exponent": (with_kernel(sm.IMQ), {"exponent": 0.5}),
        "Polynomial": (with_kernel(sm.Polynomial), {"degree": 2}),
        "RandomFourier": (with_kernel(sm.RandomFourier), {"n_features": 5, "bandwidth": None}),
        "Fixed": (lambda **v: with_kernel(sm.RBF)(bandwidth=sm.Fixed(**v)), {"bandwidth": 1.0}),
        "Whitened": (with_kernel(sm.Whitened), {"kernel": sm.Linear(), "frame": None}),
        "FeatureKernel": (with_kernel(sm.FeatureKernel), {"function": lambda x: x}),
        "PairKernel": (with_kernel(sm.PairKernel), {"function": lambda x, y: jnp.exp(-jnp.sum((x - y) ** 2))}),
        "Walk": (with_solver(sm.Walk), {"tol": 0.02, "groups": 32, "siblings": 2, "least_draws": 1, "seed": 0}),
        "Descent": (with_solver(sm.Descent), {"n_steps": 5, "rtol": 1e-3, "atol": 1e-3}),
        "Annealed": (with_solver(sm.Annealed), {"temperatures": 5, "steps": 2, "width": 1.0, "ess": 0.9}),
        "Chain": (lambda a, b: with_solver(sm.Chain)(a, b), {"a": sm.Affine(), "b": sm.Affine()}),
        "LevenbergMarquardt": (with_solver(sm.LevenbergMarquardt), {"tol": 1e-6}),
        "Gaussian": (with_target(sm.targets.Gaussian), {"mean": [0.0, 0.0], "cov": np.eye(2)}),
        "interval": (with_parameter(sm.interval), {"low": 0.0, "high": 1.0}),
        "ordered": (with_parameter(sm.ordered), {"n": 3}), "simplex": (with_parameter(sm.simplex), {"n": 3}),
        "cholesky_corr": (with_parameter(sm.cholesky_corr), {"n": 3}),
    }  # fmt: skip


def bad_input(n: int, rng: np.random.Generator) -> Iterator[Try]:
    functions = calls(fitted())
    slow = {"fit", "fit kernel", "walk", "certify", "query", "sharpen", "stein_weights", "plot", "MatchingSet"}
    names = [name for name in functions if functions[name][1]]
    odds = np.array([(0.3 if name in slow else 1.0) * len(functions[name][1]) for name in names])
    for _ in range(n):
        name = names[rng.choice(len(names), p=odds / odds.sum())]
        function, given = functions[name]
        changed = rng.choice(list(given), size=min(len(given), 1 + int(rng.uniform() < 0.3)), replace=False)
        values = {str(key): NASTY[rng.integers(len(NASTY))] for key in changed}
        words = ", ".join(f"{key}={value!r:.60}" for key, value in values.items())
        yield f"{name}({words})", lambda f=function, v={**given, **values}: f(**v)
