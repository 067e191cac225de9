"""What happens to good input: targets that fail, signals, damaged files, full disks, wrong commands."""

import resource
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np

import steinmatch as sm
from benchmarks.abuse_input import DRAWS, Try, fitted


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
