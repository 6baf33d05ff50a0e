"""Plans in files: YAML (by PyYAML), TOML and JSON, with the line of every value."""

from __future__ import annotations

import json
import os
import re
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ..errors import AccessError, DataError, MissingLibraryError, NotFoundError, OptionError, needs

MAX_PLAN_BYTES = 1 << 20
MAX_YAML_DEPTH = 16
# Aliases can make a short text expand without end; no plan of MAX_PLAN_BYTES needs as many values.
MAX_YAML_NODES = 1 << 18
SUFFIXES = (".yaml", ".yml", ".toml", ".json")
_TAG = "tag:yaml.org,2002:"
# Plain values of YAML 1.2, besides yes and no. PyYAML follows YAML 1.1, where 1e6 is text and 1:30 is 90.
_PLAIN_VALUES = [
    (_TAG + "null", re.compile(r"(?i:null|~|)\Z")),
    (_TAG + "bool", re.compile(r"(?i:true|false|yes|no)\Z")),
    (_TAG + "int", re.compile(r"[-+]?\d[\d_]*\Z")),
    (_TAG + "float", re.compile(r"(?i:[-+]?(\d[\d_]*(\.\d*)?|\.\d+)(e[-+]?\d+)?|[-+]?\.inf|\.nan)\Z")),
]
KeyPath = tuple[str | int, ...]


class PlanFile:
    """The names and values of a plan, and the line of each."""

    def __init__(self, path: str, value: dict[str, Any], lines: dict[KeyPath, int]) -> None:
        self.path, self.value, self._lines = path, value, lines

    def line_prefix(self, *keys: str | int) -> str:
        """Return ``line 3: `` for the value at these keys or its nearest parent; empty for TOML and JSON."""
        for end in range(len(keys), 0, -1):
            if keys[:end] in self._lines:
                return f"line {self._lines[keys[:end]]}: "
        return ""


def read(path: str | os.PathLike[str], missing: str = "there is no such plan") -> PlanFile:
    """Read a plan; the suffix names its language."""
    path = os.fspath(path)
    suffix = Path(path).suffix.lower()
    if suffix not in SUFFIXES:
        raise OptionError(f"a plan ends in {', '.join(SUFFIXES)}", path=path)
    try:
        with open(path, "rb") as file:
            data = file.read(MAX_PLAN_BYTES + 1)
    except FileNotFoundError:
        raise NotFoundError(missing, path=path) from None
    except OSError as error:
        raise AccessError(error.strerror or str(error), path=path) from None
    if len(data) > MAX_PLAN_BYTES:
        raise OptionError("this is too long for a plan", path=path)
    lines: dict[KeyPath, int] = {}
    parsers: dict[str, Callable[[str], object]] = {".toml": tomllib.loads, ".json": json.loads}
    try:
        if suffix in parsers:
            value = parsers[suffix](data.decode())
        else:
            value = parse_yaml(data.decode("utf-8-sig"), lines)
    except (ValueError, RecursionError) as error:
        raise DataError(f"it cannot be read: {error}", path=path) from None
    except MissingLibraryError as error:
        raise error.at(path=path) from None
    if not isinstance(value, dict):
        raise DataError("a plan is made of names and values", path=path)
    return PlanFile(path, value, lines)


def parse_yaml(text: str, lines: dict[KeyPath, int] | None = None) -> dict[str, Any]:
    """Parse the names and values of a YAML document; ``lines`` gets the line of every name and list entry.

    Reads text, numbers, booleans, null, lists and mappings; refuses other tags, and names that stand twice.
    Names are text even where they look like numbers, as in TOML and JSON. Raises ValueErrors that begin with
    the line.
    """
    with needs("YAML files need PyYAML", "yaml"):
        import yaml
    loader = None
    try:
        # It refuses characters that no text has as soon as it is made.
        loader = yaml.SafeLoader(text)
        loader.yaml_implicit_resolvers = {None: _PLAIN_VALUES}
        root = loader.get_single_node()
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        raise ValueError(
            f"line {mark.line + 1}: {' '.join(filter(None, (error.context, error.problem)))}"
        ) from None
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        raise ValueError(f"line {line}: {chr(error.character)!r} is no character of YAML") from None
    finally:
        if loader is not None:
            loader.dispose()
    if root is None:
        return {}
    if root.id != "mapping":
        raise ValueError(f"line {_line(root)}: a plan is made of `name: value`")
    mapping = _NodeConverter({} if lines is None else lines).convert(root, ())
    assert isinstance(mapping, dict)
    return mapping


class _NodeConverter:
    """Converts YAML nodes to values, and notes their lines."""

    def __init__(self, lines: dict[KeyPath, int]) -> None:
        self._lines = lines
        self._nodes = 0

    def convert(self, node: Any, keys: KeyPath) -> object:
        self._nodes += 1
        if self._nodes > MAX_YAML_NODES:
            raise ValueError(f"line {_line(node)}: there are too many values; aliases repeat them")
        # An alias inside of its own anchor has no end either.
        if len(keys) > MAX_YAML_DEPTH:
            raise ValueError(f"line {_line(node)}: this is nested too deeply")
        if node.tag == _TAG + "seq" and node.id == "sequence":
            return self._list(node, keys)
        if node.tag == _TAG + "map" and node.id == "mapping":
            return self._mapping(node, keys)
        if node.id == "scalar":
            return _scalar(node)
        raise _unknown_tag(node)

    def _list(self, node: Any, keys: KeyPath) -> list[object]:
        for number, entry in enumerate(node.value):
            self._lines[*keys, number] = _line(entry)
        return [self.convert(entry, (*keys, number)) for number, entry in enumerate(node.value)]

    def _mapping(self, node: Any, keys: KeyPath) -> dict[str, object]:
        mapping: dict[str, object] = {}
        for name_node, value_node in node.value:
            if name_node.id != "scalar":
                raise ValueError(f"line {_line(name_node)}: a name is text, not a list or a mapping")
            name = str(name_node.value)
            if name in mapping:
                raise ValueError(f"line {_line(name_node)}: {name} is there twice")
            self._lines[*keys, name] = _line(name_node)
            mapping[name] = self.convert(value_node, (*keys, name))
        return mapping


def _scalar(node: Any) -> object:
    """Convert a node of text, a number, a boolean or null."""
    text = node.value
    try:
        match node.tag.removeprefix(_TAG):
            case "str":
                return text
            case "null":
                return None
            case "bool":
                return text.lower() in ("true", "yes")
            case "int":
                return int(text.replace("_", ""))
            case "float":
                return float(text.replace("_", "").lower().replace(".inf", "inf").replace(".nan", "nan"))
    except ValueError as error:
        raise ValueError(f"line {_line(node)}: {error}") from None
    raise _unknown_tag(node)


def _unknown_tag(node: Any) -> ValueError:
    return ValueError(f"line {_line(node)}: {node.tag!r} is no kind of value that a plan has")


def _line(node: Any) -> int:
    return int(node.start_mark.line) + 1
