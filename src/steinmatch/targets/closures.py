"""Functions over copies of the NumPy arrays that they read.

JAX remembers, array by array, in which precision it has seen a NumPy array (jaxlib 0.10). Functions traced here in
double precision and elsewhere in single would come upon each other's arrays: `X @ jnp.ones(4)` would fail after a fit
whose log density reads the same X ("expected f32 but got f64"), or the fit after it. So a user's function is rebuilt
over copies of the arrays in its closure, its defaults and the globals that it names, and those of functions of its
module that it calls.
"""

import builtins
import types
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np

_REBUILT: weakref.WeakKeyDictionary[Callable, tuple[list, Callable]] = weakref.WeakKeyDictionary()


def with_own_arrays(function: Any) -> Any:
    """The function over copies of the arrays that it reads; itself where it reads none. The same one each time, as
    long as the arrays are the same, so that compiled code is shared.
    """
    if not isinstance(function, types.FunctionType):
        return function
    known = _REBUILT.get(function)
    if known is not None and all(np.array_equal(copy, source, equal_nan=_floating(copy)) for copy, source in known[0]):
        return known[1]
    copies: dict[int, tuple[np.ndarray, np.ndarray]] = {}
    rebuilt = _rebuilt(function, copies, {})
    if not copies:
        return function
    _REBUILT[function] = (list(copies.values()), rebuilt)
    return rebuilt


def _floating(array: np.ndarray) -> bool:
    return array.dtype.kind in "fc"


def _own(value: Any, home: dict, copies: dict, seen: dict) -> Any:
    """A value as the rebuilt function reads it."""
    if type(value) is np.ndarray and value.dtype.kind in "fiuc":
        if id(value) not in copies:
            copies[id(value)] = (value.copy(), value)
        return copies[id(value)][0]
    if type(value) in (list, tuple, dict):
        parts = value.values() if isinstance(value, dict) else value
        if any(type(part) is np.ndarray for part in parts):
            found = [_own(part, home, copies, seen) for part in parts]
            return dict(zip(value, found, strict=True)) if isinstance(value, dict) else type(value)(found)
    if isinstance(value, types.FunctionType) and value.__globals__ is home:
        return _rebuilt(value, copies, seen)
    return value


def _rebuilt(function: types.FunctionType, copies: dict, seen: dict) -> Callable:
    if function in seen:
        return seen[function]
    seen[function] = function  # for functions that call themselves
    before = len(copies)
    home = function.__globals__
    named = {name: home[name] for name in _names(function.__code__) if name in home}
    changed = {name: _own(value, home, copies, seen) for name, value in named.items()}
    changed = {name: value for name, value in changed.items() if value is not named[name]}
    cells, different = [], bool(changed)
    for cell in function.__closure__ or ():
        try:
            value = cell.cell_contents
        except ValueError:  # not filled yet
            cells.append(cell)
            continue
        own = _own(value, home, copies, seen)
        different |= own is not value
        cells.append(cell if own is value else types.CellType(own))
    defaults = tuple(_own(value, home, copies, seen) for value in function.__defaults__ or ())
    keywords = {name: _own(value, home, copies, seen) for name, value in (function.__kwdefaults__ or {}).items()}
    if not different and len(copies) == before:
        return function
    code = function.__code__
    # Of the globals only those that are named: a copy of all would keep the function itself, and its data, for ever.
    own_globals = {"__builtins__": builtins, "__name__": home.get("__name__"), **named, **changed}
    made = types.FunctionType(code, own_globals, function.__name__, defaults or None, tuple(cells) if cells else None)
    made.__kwdefaults__ = keywords or None
    made.__dict__.update(function.__dict__)
    made.__module__, made.__qualname__, made.__doc__ = function.__module__, function.__qualname__, function.__doc__
    seen[function] = made
    return made


def _names(code: types.CodeType) -> set[str]:
    """The globals that a function may read, those of functions within it among them."""
    names = set(code.co_names)
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            names |= _names(constant)
    return names
