"""What abuse gets: a clear sentence, or a result; never a bare error, a hang, or a number that is silently wrong.

python -m benchmarks.faults [--tries N] [--seed K] [campaign ...]        10,000 tries by default

Campaigns: input (bad values to every public function), faults (targets that raise, change shape or turn non-finite),
signals (Ctrl-C at random times), files (bits flipped, cut, edited), disks (no space left), commands (the command line).
A try is bad when it ends in an error that does not come from this library's own checks, in a result that is not finite
or has no reason, or in the file of another fit.
"""

import argparse
import collections
import contextlib
import io
import json
import resource
import signal
import sys
import tempfile
import time
import traceback
import types
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np

import steinmatch as sm

CLEAR = (ValueError, TypeError, FileNotFoundError, IsADirectoryError, PermissionError, OSError, RuntimeError, KeyError)
SHARES = {"input": 0.57, "faults": 0.02, "signals": 0.03, "files": 0.31, "disks": 0.04, "commands": 0.03}
LONGEST = 20.0  # seconds of one try
Try = tuple[str, Callable[[], Any]]


# -- what is tried -----------------------------------------------------------------------------------------------------


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


def faulty_targets(n: int, rng: np.random.Generator) -> Iterator[Try]:
    """NumPy scores that fail at a random call in one of several ways."""
    ways: dict[str, Callable[[np.ndarray], Any]] = {
        "raises": lambda x: 1 / 0, "exits": lambda x: sys.exit(3), "None": lambda x: None, "text": lambda x: "a",
        "long": lambda x: np.zeros(3), "nan": lambda x: np.full(2, np.nan), "inf": lambda x: np.full(2, np.inf),
        "complex": lambda x: 1j * x, "memory": lambda x: (_ for _ in ()).throw(MemoryError("none left")),
        "interrupt": lambda x: (_ for _ in ()).throw(KeyboardInterrupt()),
    }  # fmt: skip
    solvers = ({}, {}, {"kernel": "linear", "n_particles": 8}, {"kernel": "rbf", "n_particles": 8, "solver": "descent"})
    for i in range(n):
        way, when = list(ways)[i % len(ways)], int(10 ** rng.uniform(0.0, 3.2))
        how, always = solvers[rng.integers(len(solvers))], bool(rng.uniform() < 0.5)

        def tried(way: str = way, when: int = when, how: Any = how, always: bool = always) -> sm.Fit:
            count = 0

            def score(x: Any) -> Any:
                nonlocal count
                x = np.asarray(x)
                count += 1
                return ways[way](x) if count == when or (always and count > when) else -x

            return sm.fit(sm.Target(score=score, dim=2), progress=False, max_seconds=3.0, seed=when, **how)

        yield f"score {way} at call {when} {how}", tried


def interrupted(n: int, rng: np.random.Generator) -> Iterator[Try]:
    """Ctrl-C at a random time of a fit, in this process."""
    solvers = ({}, {"kernel": "linear", "n_particles": 50}, {"kernel": "rbf", "n_particles": 50, "solver": "descent"})

    def density(x: Any) -> Any:
        return -jnp.sum(jnp.logaddexp(x, -x)) - 0.1 * jnp.sum(x**4)

    target = sm.Target(density, dim=5)
    for how in solvers:
        sm.fit(target, progress=False, **how)
    for _ in range(n):
        how, after = solvers[rng.integers(len(solvers))], float(10 ** rng.uniform(-3.0, -0.5))

        def tried(how: Any = how, after: float = after) -> sm.Fit:
            signal.signal(signal.SIGINT, signal.default_int_handler)
            signal.signal(signal.SIGALRM, lambda *_: signal.raise_signal(signal.SIGINT))
            signal.setitimer(signal.ITIMER_REAL, after)
            try:
                return sm.fit(target, progress=False, tol=1e-3, max_seconds=5.0, **how)
            finally:
                signal.setitimer(signal.ITIMER_REAL, 0.0)

        yield f"Ctrl-C after {after:.3f} s {how}", tried


def damaged_files(n: int, rng: np.random.Generator) -> Iterator[Try]:
    fit = fitted().walk(64, progress=False)
    with tempfile.TemporaryDirectory() as folder:
        whole, other = Path(folder) / "fit.nc", Path(folder) / "damaged.nc"
        fit.save(whole)
        content = whole.read_bytes()

        def loaded() -> sm.Fit:
            found = sm.load(other)
            same = np.array_equal(found.particles, fit.particles) and np.array_equal(found.weights, fit.weights)
            if not same or found.reason != fit.reason or found.converged != fit.converged:
                raise AssertionError("loaded as another fit")
            return found

        for _ in range(n):
            damaged = bytearray(content)
            way = rng.choice(["bits", "bits", "cut", "zeros", "shuffled", "foreign"])
            if way == "bits":
                for _ in range(int(rng.integers(1, 20))):
                    damaged[rng.integers(len(damaged))] ^= 1 << int(rng.integers(8))
            elif way == "cut":
                damaged = damaged[: rng.integers(len(damaged))]
            else:
                start = int(rng.integers(len(damaged)))
                size = int(rng.integers(1, 4000))
                part = np.frombuffer(bytes(damaged[start : start + size]), np.uint8)
                new = {"zeros": np.zeros_like(part), "shuffled": rng.permutation(part)}.get(str(way))
                damaged[start : start + size] = (
                    rng.integers(256, size=len(part), dtype=np.uint8) if new is None else new
                ).tobytes()

            def tried(damaged: bytes = bytes(damaged)) -> sm.Fit:
                other.write_bytes(damaged)
                return loaded()

            yield f"file {way}", tried


def full_disks(n: int, rng: np.random.Generator) -> Iterator[Try]:
    """No more than so many bytes can be written; what was there before must stay."""
    fit = fitted()
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "fit.nc"
        fit.save(path)
        before = path.read_bytes()
        for _ in range(n):
            room = int(rng.integers(1, 2 * len(before)))
            picture = bool(rng.uniform() < 0.1)

            def tried(room: int = room, picture: bool = picture) -> None:
                limits = resource.getrlimit(resource.RLIMIT_FSIZE)
                resource.setrlimit(resource.RLIMIT_FSIZE, (room, limits[1]))
                try:
                    fit.plot(Path(folder) / "fit.png") if picture else fit.save(path)
                finally:
                    resource.setrlimit(resource.RLIMIT_FSIZE, limits)
                    left = [p.name for p in Path(folder).iterdir() if p.name.endswith(".part")]
                    same = len(path.read_bytes()) == len(before) and np.array_equal(
                        sm.load(path).particles, fit.particles
                    )
                    if left or not same:
                        raise AssertionError(f"left {left}, the old file is {'whole' if same else 'lost'}")

            yield f"disk with {room} bytes", tried


def commands(n: int, rng: np.random.Generator) -> Iterator[Try]:
    from typer.testing import CliRunner

    from steinmatch.cli import app

    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        (place / "good.py").write_text(
            "import jax.numpy as jnp, steinmatch as sm\ntarget = sm.Target(lambda x: -0.5 * jnp.sum(x**2), dim=2)\n"
        )
        bodies = ("", "import sys; sys.exit(0)", "raise RuntimeError('x')", "target = 3", "def model(): pass", "x = (",
                  "\x00", "target = None", "import no_such_module", "model = lambda: 1 / 0", "quit()")  # fmt: skip
        for i, body in enumerate(bodies):
            (place / f"bad{i}.py").write_text(body)
        (place / "bad.stan").write_text("parameters {")
        (place / "draws.csv").write_text("a,b\n1,2\n")
        (place / "text.nc").write_text("no file")
        np.save(place / "draws.npy", DRAWS)
        np.save(place / "wide.npy", np.ones((50, 3)))
        np.save(place / "same.npy", np.ones((50, 2)))
        np.save(place / "objects.npy", np.array([{}], dtype=object), allow_pickle=True)
        (place / "read-only").write_text("a file, not a folder")
        models = [
            "good.py",
            "good.py:target",
            "good.py:none",
            "none.py",
            ".",
            "",
            "bad.stan",
            *(f"bad{i}.py" for i in range(len(bodies))),
        ]
        draws = ["draws.npy", "wide.npy", "same.npy", "objects.npy", "draws.csv", "text.nc", "none.npy", ".", "good.py"]
        options = [[], ["--tol", "0"], ["--tol", "nan"], ["--seed", "-1"], ["--kernel", "none"], ["--solver", "x"],
                   ["--particles", "0"], ["--max-seconds", "-1"], ["--data", "none.json"], ["--json"],
                   ["--out", "read-only"], ["--particles", "9" * 30]]  # fmt: skip
        for _ in range(n):
            command = str(rng.choice(["fit", "assess", "sharpen", "reproduce"], p=[0.5, 0.2, 0.2, 0.1]))
            model = str(place / str(rng.choice(models)))
            if command == "fit":
                words = [model, "--max-seconds", "1", "--out", str(place / "out"), *options[rng.integers(len(options))]]
            elif command == "reproduce":
                words = [str(rng.choice(["none", "", "gaussian "])), "--out", str(place / "read-only")]
            else:
                words = [str(place / str(rng.choice(draws))), "--target", model]
            words = [str(place / word) if word in ("read-only", "none.json") else word for word in words]

            def tried(words: list[str] = [command, *words]) -> str:  # noqa: B006
                done = CliRunner().invoke(app, words)
                if done.exit_code not in (0, 2, 3) or (done.exit_code and "Traceback" in done.output):
                    raise AssertionError(f"exit code {done.exit_code}: {done.exception!r} {done.output[-300:]}")
                if done.exit_code == 2 and not done.output.strip() and not done.stderr.strip():
                    raise AssertionError("exit code 2 without a word")
                return done.output

            yield f"steinmatch {' '.join([command, *(Path(w).name or w for w in words)])}", tried


CAMPAIGNS: dict[str, Callable[[int, np.random.Generator], Iterator[Try]]] = {
    "input": bad_input, "faults": faulty_targets, "signals": interrupted, "files": damaged_files,
    "disks": full_disks, "commands": commands,
}  # fmt: skip


# -- how it ended ------------------------------------------------------------------------------------------------------


def own_sentence(error: BaseException) -> bool:
    """Whether an error was raised by this library's own code, with words."""
    frames = traceback.extract_tb(error.__traceback__)
    inside = bool(frames) and "steinmatch" in Path(frames[-1].filename).parts
    return isinstance(error, CLEAR) and len(str(error)) >= 20 and (inside or isinstance(error, OSError))


def fault_of(found: Any) -> str:
    """What is wrong with a result; empty where nothing is."""
    if isinstance(found, sm.Fit):
        if not found.reason:
            return "a fit without a reason"
        if not np.isfinite(found.particles).all() or not np.isfinite(found.weights).all():
            return "particles or weights that are not finite"
        if found.error is not None and np.isnan(np.concatenate(found.error)).any():
            return "an error that is not a number"
        if found.converged and not (
            np.isfinite(found.residual) and (len(found.particles) == 1 or found.sd.min() > 0.0)
        ):
            return "converged without spread or residual"
    if isinstance(found, float | np.floating) and not np.isfinite(found):
        return "a measure that is not finite"
    return ""


class TooLong(BaseException):
    """A try that takes longer than it may."""


def _too_long(*_: Any) -> None:
    raise TooLong("longer than it may take")


def outcome(campaign: str, tried: Callable[[], Any]) -> tuple[str, str]:
    if campaign != "signals":
        signal.signal(signal.SIGALRM, _too_long)
        signal.setitimer(signal.ITIMER_REAL, LONGEST)
    try:
        return _outcome(campaign, tried)
    except TooLong:
        return "bad", f"longer than {LONGEST:.0f} s"
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)


def _outcome(campaign: str, tried: Callable[[], Any]) -> tuple[str, str]:
    try:
        with warnings.catch_warnings(), contextlib.redirect_stderr(io.StringIO()):
            warnings.simplefilter("ignore")
            found = tried()
    except KeyboardInterrupt:
        return ("clear", "") if campaign in ("signals", "faults") else ("bad", "KeyboardInterrupt")
    except TooLong:
        raise
    except BaseException as error:
        if own_sentence(error):
            return "clear", ""
        last = traceback.extract_tb(error.__traceback__)[-1]
        return "bad", f"{type(error).__name__}: {str(error)[:200]} ({Path(last.filename).name}:{last.lineno})"
    fault = fault_of(found)
    return ("bad", fault) if fault else ("fine", "")


def run(tries: int, seed: int, chosen: list[str]) -> dict:
    rng = np.random.default_rng(seed)
    counts: dict[str, collections.Counter] = {}
    total = sum(SHARES[name] for name in chosen)
    bad: list[str] = []
    for name in chosen:
        started, count = time.monotonic(), collections.Counter()
        for words, tried in CAMPAIGNS[name](max(1, round(tries * SHARES[name] / total)), rng):
            word, why = outcome(name, tried)
            count[word] += 1
            if word == "bad":
                bad.append(f"{name}: {words}: {why}")
                print(bad[-1], flush=True)
        counts[name] = count
        print(
            f"{name:9s} tried {count.total():6,}  fine {count['fine']:6,}  clear sentence {count['clear']:6,}  "
            f"bad {count['bad']:4,}  {time.monotonic() - started:.0f} s", flush=True,
        )  # fmt: skip
    return {"tried": sum(c.total() for c in counts.values()), "bad": len(bad), "list": bad}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--tries", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("campaigns", nargs="*")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        found = run(options.tries, options.seed, options.campaigns or list(CAMPAIGNS))
    print(json.dumps(found) if options.json else f"tried {found['tried']:,}, bad {found['bad']:,}")


if __name__ == "__main__":
    main()
