"""Checkpoints: what a solve has reached, in one file, written whole or not at all; the same call goes on from there.

Steps do not depend on the clock, so a solve that was stopped and goes on ends where it would have ended. The target is
not stored, nor are functions of the user's: they are those of the call that goes on. As the rest is a pickle, only
classes of this library and of the packages that it stands on are read.
"""

import io
import pickle
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from steinmatch._files import as_path, write_whole
from steinmatch.measures.stein import compiled_scores_at
from steinmatch.targets import AbstractTarget

_FORMAT = "steinmatch checkpoint 1"
_SELDOM = 20.0  # times as long between two files as a file takes
_ROOTS = {"steinmatch", "numpy", "jax", "jaxlib", "equinox", "optax", "blackjax", "collections", "copyreg", "ml_dtypes"}
_BUILTINS = {"tuple", "list", "dict", "set", "frozenset", "slice", "complex", "bytearray", "object", "range"}


class Checkpoint:
    """The states of one fit's solvers, by the name of the part."""

    def __init__(self, path: Any, identity: dict[str, Any], given: tuple[Any, ...]):
        self.path, self.identity = as_path(path, "fit: checkpoint"), identity
        self.given = list(_functions(given, set()))
        self.part_name = "0"
        self._parts: dict[str, bytes] = {}
        self._written, self._cost = -np.inf, 0.0
        if self.path.exists():
            self._parts = self._read()

    def part(self, name: Any) -> "Checkpoint":
        """The same file, for one of several solvers."""
        other = object.__new__(Checkpoint)
        other.__dict__ = {**self.__dict__, "part_name": f"{self.part_name}.{name}"}
        return other

    def restored(self) -> Any | None:
        """What was kept of this part; None if nothing was."""
        found = self._parts.get(self.part_name)
        return None if found is None else _Unpickler(io.BytesIO(found), self.given).load()

    def keep(self, state: Any, last: bool) -> None:
        """Write the state, now if it is the last one, or else seldom enough to cost little."""
        now = time.monotonic()
        if jax.process_index() > 0:  # all processes of a mesh reach the same states, and one of them writes
            return
        if not last and now - self._written < _SELDOM * self._cost:
            return
        buffer = io.BytesIO()
        try:
            _Pickler(buffer, self.given).dump(state)
        except (pickle.PicklingError, AttributeError, TypeError) as error:
            raise ValueError(f"fit: this solve cannot be written to checkpoint={str(self.path)!r}: {error}.") from error
        self._parts[self.part_name] = buffer.getvalue()
        record = {"format": _FORMAT, "identity": self.identity, "parts": self._parts}
        write_whole(self.path, pickle.dumps(record))
        self._cost, self._written = time.monotonic() - now, time.monotonic()

    def _read(self) -> dict[str, bytes]:
        remedy, record = "give another path, or delete it", {}
        try:
            record = _Unpickler(io.BytesIO(Path(self.path).read_bytes()), []).load()
            known = record["format"] == _FORMAT
        except (pickle.UnpicklingError, EOFError, KeyError, TypeError, ValueError, IndexError, AttributeError):
            known = False
        if not known:
            raise ValueError(f"fit: checkpoint={str(self.path)!r} is no checkpoint of this version; {remedy}.")
        for name, own in self.identity.items():
            stored = record["identity"].get(name)
            same = np.allclose(stored, own, rtol=1e-6) if isinstance(own, list) else stored == own
            if not same:
                raise ValueError(
                    f"fit: checkpoint={str(self.path)!r} belongs to another fit: its {name} was {stored!r:.60}, now it "
                    f"is {own!r:.60}; {remedy}."
                )
        return record["parts"]


def identity_of(target: AbstractTarget, **asked: Any) -> dict[str, Any]:
    """What a checkpoint must have been made with: the same call, and the same target as far as one point shows."""
    there = np.asarray(compiled_scores_at(target, jnp.full((1, target.dim), 0.1)))
    plainly = {name: v if isinstance(v, str | int | float | None) else type(v).__name__ for name, v in asked.items()}
    return {"dim": target.dim, **plainly, "score": np.nan_to_num(there[0]).tolist()}


def _functions(value: Any, seen: set[int]) -> Iterator[Any]:
    """Targets and functions within what a fit was given, in the order of their places."""
    if id(value) in seen:
        return
    seen.add(id(value))
    if isinstance(value, eqx.Module):
        if hasattr(value, "log_density") and hasattr(value, "score"):
            yield value
        for name in value.__dataclass_fields__:
            yield from _functions(getattr(value, name, None), seen)
    elif isinstance(value, tuple | list):
        for part in value:
            yield from _functions(part, seen)
    elif isinstance(value, Callable) and not isinstance(value, type):
        yield value


class _Pickler(pickle.Pickler):
    def __init__(self, file: io.BytesIO, given: list[Any]):
        super().__init__(file, protocol=5)
        self.places = {id(value): i for i, value in enumerate(given)}

    def persistent_id(self, obj: Any) -> int | None:
        return self.places.get(id(obj))


class _Unpickler(pickle.Unpickler):
    def __init__(self, file: io.BytesIO, given: list[Any]):
        super().__init__(file)
        self.given = given

    def persistent_load(self, pid: Any) -> Any:
        return self.given[pid]

    def find_class(self, module: str, name: str) -> Any:
        if module.split(".")[0] in _ROOTS or (module == "builtins" and name in _BUILTINS):
            return super().find_class(module, name)
        raise pickle.UnpicklingError(f"{module}.{name} is not read from a checkpoint")
