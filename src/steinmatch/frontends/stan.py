"""Stan programs: stanc and the headers come with httpstan's wheel, a small C++ shim and g++ do the rest.

The compiled model is kept by the hash of all that it was made of; gradients reach JAX through a callback over batches.
"""

import ctypes
import hashlib
import importlib.metadata
import importlib.util
import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np

from steinmatch._types import Vector, float64
from steinmatch.targets import Target
from steinmatch.targets.host import on_host

_SHIM = Path(__file__).with_name("shim.cpp")
_FLAGS = (
    "-std=c++14", "-O2", "-shared", "-fPIC", "-w", "-DSTAN_THREADS", "-D_REENTRANT", "-DBOOST_DISABLE_ASSERTS",
    "-DBOOST_PHOENIX_NO_VARIADIC_EXPRESSION", "-D_GLIBCXX_USE_CXX11_ABI=0",
)  # fmt: skip
_TEXT = 1 << 20


@float64
def from_stan(program: str | Path, data: Mapping[str, Any] | str | Path | None = None) -> Target:
    """The posterior of a Stan program (its code, or the path of a .stan file) with data (a dict, or a JSON file).

    Compiling takes about half a minute, once for each program; compiled models are kept in $STEINMATCH_CACHE, or the
    user's cache folder. `constrain` gives parameters and transformed parameters.
    """
    code = _code(program)
    library = ctypes.CDLL(str(_compiled(code)))
    library.sm_create.restype = ctypes.c_void_p
    for name in ("sm_dim", "sm_shapes", "sm_log_density", "sm_constrain"):
        getattr(library, name).argtypes = None
    model = ctypes.c_void_p(_created(library, data))
    d = int(library.sm_dim(model))
    text = ctypes.create_string_buffer(_TEXT)
    library.sm_shapes(model, text, _TEXT)
    lines = [line.split() for line in text.value.decode().splitlines()]
    shapes = {name: tuple(map(int, sizes)) for name, *sizes in lines}
    if d == 0:
        raise ValueError("from_stan: the program has no parameters.")
    k = sum(int(np.prod(shape)) for shape in shapes.values())

    def evaluate(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        points = np.ascontiguousarray(np.asarray(x, np.float64).reshape(-1, d))
        values, gradients = np.empty(len(points)), np.empty_like(points)
        library.sm_log_density(model, _pointer(points), len(points), d, _pointer(values), _pointer(gradients))
        return values.reshape(x.shape[:-1]), gradients.reshape(x.shape)

    def constrained(x: np.ndarray) -> np.ndarray:
        points = np.ascontiguousarray(np.asarray(x, np.float64).reshape(-1, d))
        out = np.empty((len(points), k))
        library.sm_constrain(model, _pointer(points), len(points), d, k, _pointer(out))
        return out.reshape(*x.shape[:-1], k)

    def constrain(x: Vector) -> dict:
        (flat,) = on_host(lambda points: (constrained(points),), ((k,),), x, many=True)
        values, start = {}, 0
        for name, shape in shapes.items():
            size = int(np.prod(shape))
            values[name] = flat[start : start + size].reshape(shape, order="F")  # Stan's order: the first index first
            start += size
        return values

    return Target(_with_gradient(evaluate, d), dim=d, constrain=constrain)


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


def _created(library: Any, data: Mapping[str, Any] | str | Path | None) -> int:
    given: Any = data
    if isinstance(data, str | Path):
        try:
            given = json.loads(Path(data).read_text())
        except (OSError, ValueError) as error:
            raise ValueError(f"from_stan: cannot read data from {data}: {error}") from error
    plain = {name: np.asarray(value).tolist() for name, value in (given or {}).items()}
    error = ctypes.create_string_buffer(4096)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "data.json"
        path.write_text(json.dumps(plain))
        model = library.sm_create(str(path).encode(), 1, error, 4096)
    if not model:
        raise ValueError(f"from_stan: the program does not accept these data: {error.value.decode()}")
    return model


def _compiled(code: str) -> Path:
    """The shared library of the program, compiled unless it is in the cache."""
    spec = importlib.util.find_spec("httpstan")
    if spec is None or not spec.submodule_search_locations:
        raise ImportError(
            "from_stan needs httpstan, which brings stanc and Stan's headers: pip install 'steinmatch[stan]'."
        )
    package = Path(next(iter(spec.submodule_search_locations)))
    version = importlib.metadata.version("httpstan")
    key = hashlib.sha256("\0".join([code, _SHIM.read_text(), version, *_FLAGS]).encode()).hexdigest()[:24]
    base = (
        os.environ.get("STEINMATCH_CACHE")
        or Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "steinmatch"
    )
    cache = Path(base)
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
        (Path(folder) / "model.cpp").write_text(translated.stdout + "\n" + _SHIM.read_text())
        libraries = ["-lsundials_cvodes", "-lsundials_idas", "-lsundials_kinsol", "-lsundials_nvecserial", "-ltbb"]
        lib = package / "lib"
        command = [compiler, *_FLAGS, f"-I{package / 'include'}", str(Path(folder) / "model.cpp"), "-o", str(out)]
        built = _run([*command, f"-L{lib}", *libraries, f"-Wl,-rpath,{lib}"])
        if built.returncode:
            raise RuntimeError(f"from_stan: {compiler} failed: {built.stderr[-2000:]}")
        os.replace(out, library)
    return library


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
