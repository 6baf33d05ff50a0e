"""How a dataset was made: which methods with which arguments, so that a snapshot knows whose it is.

Functions count by their code, defaults, and the values that they refer to. What a function does with files,
or with objects that it changes, cannot be seen, as in TensorFlow.
"""

from __future__ import annotations

import functools
import hashlib
import os
import types
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import numpy as np

F = TypeVar("F", bound=Callable[..., Any])
PLAIN = (type(None), bool, int, float, complex, str, bytes)


def recorded(function: F) -> F:
    """A method whose result remembers that it was called, and with what."""

    @functools.wraps(function)
    def wrapper(*args: Any, **options: Any) -> Any:
        made = function(*args, **options)
        if not any(made is one for one in args):
            made._recipe = (function.__name__, args, options)
        return made

    return wrapper  # type: ignore[return-value]


def remember(kind: type[Any]) -> None:
    """Make all methods of a class that give datasets remember it."""
    for name, method in list(vars(kind).items()):
        if name.startswith("_") or name in ("save", "options"):
            continue
        if isinstance(method, staticmethod | classmethod):
            setattr(kind, name, type(method)(recorded(method.__func__)))
        elif isinstance(method, types.FunctionType):
            setattr(kind, name, recorded(method))


def fingerprint(value: Any) -> str:
    """The same for what was made in the same way, in this process or another."""
    return _digest(value, {}).hex()[:32]


def _digest(value: Any, known: dict[int, tuple[Any, bytes]]) -> bytes:
    """``known``: what was met already, by its address, and held, so that nothing else gets that address."""
    if id(value) in known:
        return known[id(value)][1]
    found = hashlib.sha256(f"{type(value).__module__}.{type(value).__qualname__} ".encode())
    if isinstance(value, PLAIN):
        found.update(repr(value).encode())
        return found.digest()
    # Should it refer to itself.
    known[id(value)] = value, b"itself"
    for part in _parts(value):
        found.update(_digest(part, known))
    known[id(value)] = value, found.digest()
    return found.digest()


def _parts(value: Any) -> list[Any]:
    """What a value is made of."""
    if hasattr(value, "_recipe"):
        return [value._recipe]
    if isinstance(value, np.ndarray | np.generic):
        array = np.asarray(value)
        content = array.reshape(-1).tolist() if array.dtype.kind == "O" else array.tobytes()
        return [str(array.dtype), array.shape, content]
    if isinstance(value, Mapping):
        return [part for pair in value.items() for part in pair]
    if isinstance(value, tuple | list):
        return list(value)
    if isinstance(value, set | frozenset):
        return sorted(value, key=repr)
    if isinstance(value, range | slice):
        return [value.start, value.stop, value.step]
    if isinstance(value, functools.partial):
        return [value.func, value.args, value.keywords]
    if isinstance(value, types.MethodType):
        return [value.__func__, value.__self__]
    if isinstance(value, types.CodeType):
        return [value.co_code, value.co_names, value.co_consts, value.co_freevars]
    if isinstance(value, types.FunctionType):
        cells = [cell.cell_contents for cell in value.__closure__ or () if _is_filled(cell)]
        return [value.__code__, value.__defaults__, value.__kwdefaults__, cells, _globals(value)]
    if isinstance(value, type | types.ModuleType | types.BuiltinFunctionType) or hasattr(value, "__next__"):
        return [getattr(value, "__module__", None), getattr(value, "__qualname__", None)]
    return [os.fspath(value) if isinstance(value, os.PathLike) else _state(value)]


def _state(value: Any) -> Any:
    try:
        return value.__getstate__()
    # Whatever an object says that does not want to be copied.
    except Exception:
        return None


def _is_filled(cell: Any) -> bool:
    try:
        cell.cell_contents  # noqa: B018
    except ValueError:
        return False
    return True


def _globals(function: types.FunctionType) -> list[Any]:
    """The values of the names outside of it that a function uses; of other modules only who they are."""
    names: list[str] = []
    codes = [function.__code__]
    while codes:
        code = codes.pop()
        names += code.co_names
        codes += [one for one in code.co_consts if isinstance(one, types.CodeType)]
    used = [(name, function.__globals__[name]) for name in sorted(set(names)) if name in function.__globals__]
    return [(name, one) for name, one in used if _is_own(one, function.__module__)]


def _is_own(value: Any, module: str) -> bool:
    if isinstance(value, types.FunctionType):
        return value.__module__ == module
    return isinstance(value, (*PLAIN, tuple, list, dict, np.ndarray, np.generic))
