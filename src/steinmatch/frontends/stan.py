"""Stan programs: stanc and the headers come with httpstan's wheel, a small C++ shim and g++ do the rest.

The compiled model is kept by the hash of all that it was made of; gradients reach JAX through a callback over batches.
"""

import ctypes
import hashlib
import importlib.metadata
import importlib.util
import json
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import jax
import numpy as np
from rich.console import Console

from steinmatch._files import cache_folder
from steinmatch._types import Vector, float64
from steinmatch.targets import ModelInfo, Target
from steinmatch.targets.host import on_host

_SHIM, _BASE = Path(__file__).with_name("shim.cpp"), Path(__file__).with_name("model_base.hpp")
_FLAGS = (
    "-std=c++14", "-O1", "-shared", "-fPIC", "-w", "-DSTAN_THREADS", "-D_REENTRANT", "-DBOOST_DISABLE_ASSERTS",
    "-DBOOST_PHOENIX_NO_VARIADIC_EXPRESSION", "-D_GLIBCXX_USE_CXX11_ABI=0",
)  # fmt: skip
_TEXT = 1 << 20
_LOG_LIKELIHOODS = ("log_lik", "log_likelihood")
_REPEATED = ("_rep", "_pred", "_tilde", "_hat", "_new")  # what generated quantities are called that repeat the data
# Solvers of differential and algebraic equations: a fifth of the headers, and left out where a program has none.
_SOLVERS = re.compile(r"ode_|integrate_|algebra_solver|solve_newton|solve_powell|\bdae|wiener|hcubature")
_SOLVER_HEADERS = (
    "prim/functor/coupled_ode_system", "prim/functor/hcubature", "prim/functor/integrate_1d",
    "prim/functor/integrate_ode_rk45", "prim/functor/integrate_ode_std_vector_interface_adapter",
    "prim/functor/ode_ckrk", "prim/functor/ode_rk45", "prim/functor/ode_store_sensitivities",
    "prim/prob/wiener_full_lpdf", "rev/functor/algebra_solver_fp", "rev/functor/algebra_system",
    "rev/functor/coupled_ode_system", "rev/functor/cvodes_integrator", "rev/functor/cvodes_integrator_adjoint",
    "rev/functor/cvodes_utils", "rev/functor/dae", "rev/functor/dae_system", "rev/functor/idas_integrator",
    "rev/functor/idas_service", "rev/functor/integrate_1d", "rev/functor/integrate_ode_adams",
    "rev/functor/integrate_ode_bdf", "rev/functor/kinsol_data", "rev/functor/kinsol_solve", "rev/functor/ode_adams",
    "rev/functor/ode_adjoint", "rev/functor/ode_bdf", "rev/functor/ode_store_sensitivities",
    "rev/functor/solve_newton", "rev/functor/solve_powell",
)  # fmt: skip


@float64
def from_stan(program: str | Path, data: Mapping[str, Any] | str | Path | None = None) -> Target:
    """The posterior of a Stan program (its code, or the path of a .stan file) with data (a dict, or a JSON file).

    Compiling takes about half a minute, once for each program; compiled models are kept in $STEINMATCH_CACHE, or the
    user's cache folder. `constrain` gives parameters and transformed parameters; `predict` the generated quantities, of
    which `log_lik` is known as the observations' log likelihood.
    """
    code, given = _code(program), _given(data)
    library = _loaded(code)
    model = _Model(library, given)
    if model.dim == 0:
        raise ValueError("from_stan: the program has no parameters.")

    def constrain(x: Vector) -> dict:
        (flat,) = on_host(lambda points: (model.values(points),), ((model.size,),), x, many=True)
        return _by_name(flat, model.shapes)

    def generated(x: np.ndarray, seed: int, new: Mapping[str, Any]) -> dict[str, np.ndarray]:
        used = _Model(library, {**given, **new}) if new else model
        if used.dim != model.dim:
            raise ValueError(f"predict: with these data the program has {used.dim} parameters, not {model.dim}.")
        known = used.parameters if new else used.shapes  # with new data transformed parameters are others too
        return {k: v for k, v in _by_name(used.generated(x, seed), used.all_shapes).items() if k not in known}

    def predict(x: np.ndarray, values: dict, seed: int, new: dict[str, Any]) -> dict[str, np.ndarray]:
        found = generated(x, seed, new)
        if not found:
            raise ValueError("predict: the program has no generated quantities.")
        return {name: value for name, value in found.items() if name not in _LOG_LIKELIHOODS}

    def log_likelihood(x: np.ndarray, values: dict) -> dict[str, np.ndarray]:
        return {name: value for name, value in generated(x, 0, {}).items() if name in _LOG_LIKELIHOODS}

    def renewed(args: tuple, new: dict[str, Any]) -> Target:
        if args:
            raise ValueError("update: give new data by name, as the program's data block has them.")
        return from_stan(code, {**given, **new})

    arrays = {name: np.asarray(value) for name, value in given.items()}
    repeated = {name for name in arrays if any(f"{name}{end}" in model.all_shapes for end in _REPEATED)}
    info = ModelInfo(
        predict=predict,
        unconstrain=model.unconstrained,
        log_likelihood=log_likelihood if any(name in model.all_shapes for name in _LOG_LIKELIHOODS) else None,
        observed={name: value for name, value in arrays.items() if name in repeated},
        constant={name: value for name, value in arrays.items() if name not in repeated and name not in model.shapes},
        renewed=renewed,
    )
    return Target(_with_gradient(model.evaluate, model.dim), dim=model.dim, constrain=constrain, info=info)


class _Model:
    """A compiled program with data."""

    def __init__(self, library: Any, data: Mapping[str, Any]):
        self.library, self.pointer = library, ctypes.c_void_p(_created(library, data))
        self.dim = int(library.sm_dim(self.pointer))
        self.parameters, self.shapes, self.all_shapes = (self._shapes(*asked) for asked in ((0, 0), (1, 0), (1, 1)))
        self.size = _size(self.shapes)

    def _shapes(self, transformed: int, generated: int) -> dict[str, tuple[int, ...]]:
        text = ctypes.create_string_buffer(_TEXT)
        self.library.sm_shapes(self.pointer, transformed, generated, text, _TEXT)
        lines = [line.split() for line in text.value.decode().splitlines()]
        return {name: tuple(map(int, sizes)) for name, *sizes in lines}

    def evaluate(self, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        points = self._points(x)
        values, gradients = np.empty(len(points)), np.empty_like(points)
        self.library.sm_log_density(
            self.pointer, _pointer(points), len(points), self.dim, _pointer(values), _pointer(gradients)
        )
        return values.reshape(x.shape[:-1]), gradients.reshape(x.shape)

    def values(self, x: np.ndarray) -> np.ndarray:
        """Parameters and transformed parameters."""
        return self._written(x, self.size, 0, 0).reshape(*x.shape[:-1], self.size)

    def generated(self, x: np.ndarray, seed: int) -> np.ndarray:
        """These, and the generated quantities."""
        return self._written(x, _size(self.all_shapes), 1, seed)

    def unconstrained(self, values: dict[str, np.ndarray]) -> np.ndarray:
        flat = [
            np.asarray(values[name], np.float64)
            .reshape(len(values[name]), *shape)
            .transpose(0, *range(len(shape), 0, -1))
            for name, shape in self.parameters.items()
        ]
        rows = np.ascontiguousarray(np.concatenate([part.reshape(len(part), -1) for part in flat], axis=1))
        out = np.empty((len(rows), self.dim))
        self.library.sm_unconstrain(self.pointer, _pointer(rows), len(rows), self.dim, rows.shape[1], _pointer(out))
        return out

    def _written(self, x: np.ndarray, k: int, generated: int, seed: int) -> np.ndarray:
        points = self._points(x)
        out = np.empty((len(points), k))
        self.library.sm_constrain(
            self.pointer, _pointer(points), len(points), self.dim, k, generated, seed % 2**32, _pointer(out)
        )
        return out

    def _points(self, x: np.ndarray) -> np.ndarray:
        return np.ascontiguousarray(np.asarray(x, np.float64).reshape(-1, self.dim))


def _size(shapes: Mapping[str, tuple[int, ...]]) -> int:
    return sum(int(np.prod(shape)) for shape in shapes.values())


def _by_name(flat: Any, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, Any]:
    """Values side by side on the last axis, by name; Stan's order has the first index first."""
    values, start = {}, 0
    for name, shape in shapes.items():
        size = int(np.prod(shape))
        part = flat[..., start : start + size].reshape((*flat.shape[:-1], *shape[::-1]))
        lead = flat.ndim - 1
        values[name] = part.transpose((*range(lead), *range(lead + len(shape) - 1, lead - 1, -1)))
        start += size
    return values


def _with_gradient(evaluate: Callable, d: int) -> Callable[[Vector], jax.Array]:
    """A log density for JAX whose value and gradient come from one call."""

    def both(x: Vector) -> tuple[jax.Array, jax.Array]:
        value, gradient = on_host(evaluate, ((), (d,)), x, many=True)
        return value, gradient

    @jax.custom_vjp
    def log_density(x: Vector) -> jax.Array:
        return both(x)[0]

    log_density.defvjp(both, lambda gradient, g: (g * gradient,))
    return log_density


def _pointer(array: np.ndarray) -> Any:
    return array.ctypes.data_as(ctypes.c_void_p)


def _code(program: str | Path) -> str:
    if isinstance(program, Path) or (isinstance(program, str) and "\n" not in program and "{" not in program):
        path = Path(program)
        if not path.is_file():
            raise FileNotFoundError(f"from_stan: there is no file {path}. Give the path of a .stan file, or the code.")
        return path.read_text()
    return program


def _given(data: Mapping[str, Any] | str | Path | None) -> dict[str, Any]:
    if isinstance(data, str | Path):
        try:
            data = json.loads(Path(data).read_text())
        except (OSError, ValueError) as error:
            raise ValueError(f"from_stan: cannot read data from {data}: {error}") from error
    if data is not None and not isinstance(data, Mapping):
        raise TypeError(f"from_stan: data must be a dict by name, or a JSON file; got {data!r:.80}.")
    return {str(name): np.asarray(value).tolist() for name, value in (data or {}).items()}


def _created(library: Any, data: Mapping[str, Any]) -> int:
    plain = {name: np.asarray(value).tolist() for name, value in data.items()}
    error = ctypes.create_string_buffer(4096)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "data.json"
        path.write_text(json.dumps(plain))
        model = library.sm_create(str(path).encode(), 1, error, 4096)
    if not model:
        raise ValueError(f"from_stan: the program does not accept these data: {error.value.decode()}")
    return model


def _loaded(code: str) -> Any:
    library = ctypes.CDLL(str(_compiled(code)))
    library.sm_create.restype = ctypes.c_void_p
    return library


def _compiled(code: str) -> Path:
    """The shared library of the program, compiled unless it is in the cache."""
    spec = importlib.util.find_spec("httpstan")
    if spec is None or not spec.submodule_search_locations:
        raise ImportError(
            "from_stan needs httpstan, which brings stanc and Stan's headers: pip install 'steinmatch[stan]'."
        )
    package = Path(next(iter(spec.submodule_search_locations)))
    version = importlib.metadata.version("httpstan")
    key = hashlib.sha256(
        "\0".join([code, _BASE.read_text(), _SHIM.read_text(), version, *_FLAGS]).encode()
    ).hexdigest()[:24]
    cache = cache_folder()
    library = cache / f"stan_{key}.so"
    if library.exists():
        _check_owner(library)
        return library
    compiler = shutil.which(os.environ.get("CXX", "g++"))
    if compiler is None:
        raise RuntimeError("from_stan: a C++ compiler is needed to compile a Stan program: install g++, or set CXX.")
    cache.mkdir(parents=True, exist_ok=True, mode=0o700)
    _check_owner(cache)
    with tempfile.TemporaryDirectory(dir=cache) as folder:
        source, out = Path(folder) / "model.stan", Path(folder) / "model.so"
        source.write_text(code)
        translated = _run([str(package / "stanc"), "--name", "model", "--print-cpp", str(source)])
        if translated.returncode:
            raise ValueError(f"from_stan: stanc says: {translated.stderr.replace(str(source), 'the program').strip()}")
        model = Path(folder) / "model.cpp"
        model.write_text("\n".join([_BASE.read_text(), translated.stdout, _SHIM.read_text()]))
        libraries = ["-lsundials_cvodes", "-lsundials_idas", "-lsundials_kinsol", "-lsundials_nvecserial", "-ltbb"]
        lib = package / "lib"
        command = [compiler, *_FLAGS, f"-I{package / 'include'}", str(model), "-o", str(out), f"-L{lib}", *libraries]
        unused = [] if _SOLVERS.search(translated.stdout) else _guards(package / "include" / "stan" / "math")
        with _saying("compiling the Stan program, once: about half a minute"):
            built = _run([*command, f"-Wl,-rpath,{lib}", *unused])
            if built.returncode and unused:
                built = _run([*command, f"-Wl,-rpath,{lib}"])
        if built.returncode:
            raise RuntimeError(f"from_stan: {compiler} failed: {built.stderr[-2000:]}")
        os.replace(out, library)
    return library


def _guards(folder: Path) -> list[str]:
    """Definitions under which the headers of solvers are taken for included."""
    files = [folder / f"{name}.hpp" for name in _SOLVER_HEADERS]
    found = [re.search(r"#ifndef (\w+)", path.read_text()) for path in files if path.is_file()]
    return [f"-D{guard.group(1)}" for guard in found if guard]


@contextmanager
def _saying(text: str) -> Iterator[None]:
    """What is being waited for, where somebody can see it."""
    console = Console(stderr=True)
    if console.is_terminal or console.is_jupyter:
        with console.status(text):
            yield
    else:
        yield


def _check_owner(path: Path) -> None:
    """Compiled code is run: what another user could have put there is not loaded."""
    found = path.stat()
    if found.st_uid != os.getuid() or found.st_mode & 0o002:
        raise PermissionError(
            f"from_stan: {path} is not yours alone (owner {found.st_uid}, mode {found.st_mode & 0o777:o}), so compiled "
            "models in it are not loaded: set STEINMATCH_CACHE to a folder of your own."
        )


def _run(command: list[str]) -> subprocess.CompletedProcess:
    return subprocess.run(command, capture_output=True, text=True, check=False)
