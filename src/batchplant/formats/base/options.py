"""The options of a format's reader or writer: checked, and made of what was typed, by their annotations."""

from __future__ import annotations

import collections.abc
import contextlib
import datetime
import inspect
import json
import numbers
import operator
import os
import types
import typing
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from ...errors import BatchplantError, OptionError, exceptions_as, listed, near
from ...schema import Field, Schema
from ...storage.settings import NAMES as STORAGE
from .records import given_schema

TRUE, FALSE = ("true", "yes", "on", "1"), ("false", "no", "off", "0")
NONE = ("none", "null")
# What a value is that fits none of an option's types.
NOT = object()


class Typed(str):
    """An option's value as it was typed on a command line, whatever type it is to have."""

    __slots__ = ()


def own_options(factory: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    """The named options of a format's reader or writer."""
    parameters = inspect.signature(factory.__init__).parameters
    return {
        name: parameter for name, parameter in parameters.items() if parameter.kind is parameter.KEYWORD_ONLY
    }


def accept(owner: str, factory: Callable[..., Any], options: Mapping[str, Any]) -> dict[str, Any]:
    """The options that a reader or writer takes, each of its type; an OptionError names one that is not."""
    if not options:
        return {}
    options_of_factory = own_options(factory)
    hints = typing.get_type_hints(factory.__init__)
    accepted = {}
    for name, value in options.items():
        if name not in options_of_factory:
            meant = near(name, [*options_of_factory, *STORAGE])
            if name in ("fields", "columns"):
                meant = f" ({name} are chosen with select([…]) of what is opened)"
            raise OptionError(
                f"{owner} has no option {name!r}{meant}; its options are: {listed(options_of_factory)}"
            )
        kinds = _kinds(hints.get(name, Any))
        fitting = _typed(name, str(value), kinds) if isinstance(value, Typed) else _first(value, kinds)
        if fitting is NOT:
            raise OptionError(f"the option {name} of {owner} is {_words(kinds)}, not {_short(value)}")
        accepted[name] = fitting
    return accepted


def expected(factory: Callable[..., Any]) -> dict[str, str]:
    """Describe the values of each option of a reader or writer in words."""
    hints = typing.get_type_hints(factory.__init__)
    return {name: _words(_kinds(hints.get(name, Any))) for name in own_options(factory)}


def _short(value: Any) -> str:
    text = repr(str(value)) if isinstance(value, Typed) else repr(value)
    return text if len(text) <= 80 else text[:80] + " …"


def _kinds(hint: Any) -> tuple[Any, ...]:
    """The parts of a union, or the one type."""
    union = typing.get_origin(hint) in (typing.Union, types.UnionType)
    return typing.get_args(hint) if union else (hint,)


def _first(value: Any, kinds: tuple[Any, ...]) -> Any:
    """The value as the first of the types that it fits."""
    return next((result for result in (_as(value, kind) for kind in kinds) if result is not NOT), NOT)


def _as(value: Any, kind: Any) -> Any:
    """The value where it is of this kind, as Python's own type; else NOT."""
    if kind is Any:
        return value
    if kind is types.NoneType:
        return None if value is None else NOT
    if kind is bool:
        return bool(value) if isinstance(value, bool | np.bool_) else NOT
    if kind is int:
        is_integer = isinstance(value, numbers.Integral) and not isinstance(value, bool | np.bool_)
        # No size, count or level is larger, and no library takes more.
        return operator.index(value) if is_integer and abs(value) < 1 << 63 else NOT
    if kind is float:
        return float(value) if isinstance(value, numbers.Real) and not isinstance(value, bool) else NOT
    if kind is str:
        # A path is as good as its text.
        return str(value) if isinstance(value, str | os.PathLike) else NOT
    inner = typing.get_args(kind)
    kind = typing.get_origin(kind) or kind
    if not isinstance(kind, type):
        return value
    if kind is Schema and isinstance(value, list):
        # As JSON has it.
        return value
    if not isinstance(value, kind):
        return NOT
    if (
        inner == (str,)
        and isinstance(value, list | tuple)
        and not all(isinstance(element, str) for element in value)
    ):
        return NOT
    if isinstance(value, Mapping) and not isinstance(value, Schema):
        plain = [
            kind_option
            for kind_option in inner[1:]
            if kind_option is str or typing.get_origin(kind_option) is collections.abc.Mapping
        ]
        if not all(isinstance(key, str) for key in value):
            return NOT
        if any(_as(element, kind_option) is NOT for kind_option in plain for element in value.values()):
            return NOT
    return value


def _typed(name: str, text: str, kinds: tuple[Any, ...]) -> Any:
    """Parse a text for an option of these types; NOT if it does not fit."""
    if any(map(_describes_fields, kinds)):
        return _schema(name, text, kinds)
    if types.NoneType in kinds and text.lower() in NONE:
        return None
    if bool in kinds and text.lower() in TRUE + FALSE:
        return text.lower() in TRUE
    if int in kinds:
        with contextlib.suppress(ValueError):
            return _as(int(text), int)
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        value = NOT
    # Text needs no quotes, but may have them: "\t".
    if isinstance(value, str) and str in kinds:
        return value
    other_kinds = tuple(kind for kind in kinds if kind is not str)
    converted = NOT if value is NOT or isinstance(value, str) else _first(value, other_kinds)
    if converted is not NOT:
        return converted
    if str in kinds:
        return text
    lists = [kind for kind in kinds if typing.get_args(kind) == (str,)]
    # Names need no brackets either.
    return text.split(",") if lists and value is NOT else [value] if lists and isinstance(value, str) else NOT


def _describes_fields(kind: Any) -> bool:
    return kind is Schema or any(Field in _kinds(argument) for argument in typing.get_args(kind)[1:])


def _schema(name: str, text: str, kinds: tuple[Any, ...]) -> Any:
    if types.NoneType in kinds and text.lower() in NONE:
        return None
    with exceptions_as(
        OptionError, f"the option {name} is fields and their kinds, as name=kind,… or JSON", BatchplantError
    ):
        return given_schema(text)


def _words(kinds: tuple[Any, ...]) -> str:
    return " or ".join(dict.fromkeys(map(_word, kinds)))


def _word(kind: Any) -> str:
    """Return the name of a type for messages."""
    words = {
        types.NoneType: "none", bool: "true or false", int: "a whole number", float: "a number", str: "text",
        datetime.datetime: "a date",
    }  # fmt: skip
    if kind is Any:
        return "anything"
    if kind in words:
        return words[kind]
    if _describes_fields(kind):
        return "fields and their kinds"
    origin = typing.get_origin(kind) or kind
    if origin is os.PathLike:
        return "a path"
    if issubclass(origin, Mapping):
        return "text by name" if typing.get_args(kind)[1:] == (str,) else "a mapping"
    numbers = typing.get_args(kind)[:1] == (int,)
    return "a list of numbers" if numbers else "a list of names"
