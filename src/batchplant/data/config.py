"""Plans in files: YAML as far as plans need it, TOML, JSON.

Of YAML, a plan may use names and values, parts below names, lists of ``- `` or ``[a, b]``, ``{a: b}`` in one
line, and comments. Everything else is an error with its line, never a guess.
"""

from __future__ import annotations

import json
import os
import re
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ..errors import AccessError, DataError, NotFoundError, OptionError

# A longer file is no plan, and one that is nested deeper neither.
MOST, DEEPEST = 1 << 20, 16
SUFFIXES = (".yaml", ".yml", ".toml", ".json")
WORDS = {"true": True, "false": False, "yes": True, "no": False, "null": None, "~": None}
NAME = re.compile(r"""(?P<name>[A-Za-z_0-9][\w.+/@-]*|"[^"]*"|'[^']*')\s*:(?:\s+(?P<value>.*))?""")
# What begins otherwise means something in YAML that plans do not need.
UNKNOWN = ("&", "*", "|", ">", "!", "%", "@", "`", "?")
Keys = tuple[str | int, ...]


class PlanFile:
    """What stands in a plan, and in which line each part of it."""

    def __init__(self, path: str, value: dict[str, Any], lines: dict[Keys, int]) -> None:
        self.path, self.value, self._lines = path, value, lines

    def place(self, *keys: str | int) -> str:
        """``line 3: `` of what these names lead to, or of what is around it; nothing if it is not known."""
        for end in range(len(keys), 0, -1):
            if keys[:end] in self._lines:
                return f"line {self._lines[keys[:end]]}: "
        return ""


def read(path: str | os.PathLike[str], missing: str = "there is no such plan") -> PlanFile:
    """The plan in a file, by its suffix."""
    where = os.fspath(path)
    suffix = Path(where).suffix.lower()
    if suffix not in SUFFIXES:
        raise OptionError(f"a plan ends in {', '.join(SUFFIXES)}", path=where)
    try:
        with open(where, "rb") as file:
            data = file.read(MOST + 1)
    except FileNotFoundError:
        raise NotFoundError(missing, path=where) from None
    except OSError as error:
        raise AccessError(error.strerror or str(error), path=where) from None
    if len(data) > MOST:
        raise OptionError("this is too long for a plan", path=where)
    lines: dict[Keys, int] = {}
    parse: Callable[[str], Any] = {".toml": tomllib.loads, ".json": json.loads}.get(
        suffix, lambda text: parse_yaml(text, lines)
    )
    try:
        found = parse(data.decode())
    except (ValueError, RecursionError) as error:
        raise DataError(f"it cannot be read: {error}", path=where) from None
    if not isinstance(found, dict):
        raise DataError("a plan is made of names and values", path=where)
    return PlanFile(where, found, lines)


def parse_yaml(text: str, lines: dict[Keys, int] | None = None) -> dict[str, Any]:
    """What a plan says; ``lines`` gets the line of every name and entry."""
    rows = []
    for number, line in enumerate(text.splitlines(), 1):
        plain = _without_comment(line).rstrip()
        if not plain.strip() or plain in ("---", "..."):
            continue
        indent = len(plain) - len(plain.lstrip(" "))
        if plain[indent] == "\t":
            raise ValueError(f"line {number}: indent with spaces, not with tabs")
        rows.append((number, indent, plain.strip()))
    if not rows:
        return {}
    found, rest = _Block(rows, {} if lines is None else lines).read(0, ())
    if rest < len(rows):
        raise ValueError(f"line {rows[rest][0]}: {rows[rest][2]!r} is indented as nothing before it")
    if not isinstance(found, dict):
        raise ValueError(f"line {rows[0][0]}: a plan is made of `name: value`")
    return found


class _Block:
    """Lines as (number, indent, text)."""

    def __init__(self, rows: list[tuple[int, int, str]], lines: dict[Keys, int]) -> None:
        self.rows, self.lines = rows, lines

    def read(self, at: int, keys: Keys) -> tuple[Any, int]:
        """The list, or the names and values, that begins in a row; and the row after it."""
        if len(keys) > DEEPEST:
            raise ValueError(f"line {self.rows[at][0]}: this is nested too deeply")
        indent, first = self.rows[at][1], self.rows[at][2]
        listed = first == "-" or first.startswith("- ")
        found: Any = [] if listed else {}
        while at < len(self.rows) and self.rows[at][1] == indent:
            number, _, text = self.rows[at]
            entry = text == "-" or text.startswith("- ")
            if listed and not entry:
                # A list may stand right below its name; then the next name ends it.
                return found, at
            if entry and not listed:
                raise ValueError(f"line {number}: {text!r} is not `name: value`")
            at = (self._entry if listed else self._name)(at, found, keys)
        if at < len(self.rows) and self.rows[at][1] > indent:
            number, _, text = self.rows[at]
            raise ValueError(
                f"line {number}: {text!r} is indented, and no `name:` without a value is above it"
            )
        return found, at

    def _entry(self, at: int, found: list[Any], keys: Keys) -> int:
        number, indent, text = self.rows[at]
        own = (*keys, len(found))
        self.lines[own] = number
        inner = text[1:].strip()
        if inner and NAME.fullmatch(inner) and not inner.startswith(("{", "[")):
            # `- name: value` begins names and values of its own, as far right as the name stands.
            self.rows[at] = (number, indent + text.index(inner, 1), inner)
            value, at = self.read(at, own)
        elif inner:
            value, at = _flow(inner, number), at + 1
        else:
            value, at = self._below(at, own)
        found.append(value)
        return at

    def _name(self, at: int, found: dict[str, Any], keys: Keys) -> int:
        number, _, text = self.rows[at]
        one = NAME.fullmatch(text)
        if one is None:
            raise ValueError(f"line {number}: {text!r} is not `name: value`")
        name = one["name"].strip("\"'")
        if name in found:
            raise ValueError(f"line {number}: {name} is there twice")
        own = (*keys, name)
        self.lines[own] = number
        if one["value"]:
            found[name] = _flow(one["value"], number)
            return at + 1
        found[name], at = self._below(at, own)
        return at

    def _below(self, at: int, keys: Keys) -> tuple[Any, int]:
        """What is indented below a row; None where nothing is. A list may stand right below its name."""
        after, indent = at + 1, self.rows[at][1]
        if after < len(self.rows):
            deeper = self.rows[after][1] > indent
            right_below = self.rows[after][1] == indent and self.rows[after][2].startswith("- ")
            if deeper or (right_below and not self.rows[at][2].startswith("-")):
                return self.read(after, keys)
        return None, after


def _without_comment(line: str) -> str:
    """Up to a # that stands alone or after a space, outside of quotes."""
    quote = ""
    for place, letter in enumerate(line):
        if quote:
            quote = "" if letter == quote else quote
        elif letter in "\"'" and (not place or line[place - 1] in " :,[{-"):
            quote = letter
        elif letter == "#" and (not place or line[place - 1] in " \t"):
            return line[:place]
    return line


def _flow(text: str, number: int, depth: int = 0) -> Any:
    """A value in one line: a word, a number, [a, b], {a: b}."""
    text = text.strip()
    if depth > DEEPEST:
        raise ValueError(f"line {number}: this is nested too deeply")
    if text[:1] == "[" and text[-1:] == "]":
        return [_flow(one, number, depth + 1) for one in _parts(text[1:-1], number)]
    if text[:1] == "{" and text[-1:] == "}":
        found: dict[str, Any] = {}
        for item in _parts(text[1:-1], number):
            one = NAME.fullmatch(item)
            if one is None or one["value"] is None:
                raise ValueError(f"line {number}: {item!r} is not `name: value`")
            name = one["name"].strip("\"'")
            if name in found:
                raise ValueError(f"line {number}: {name} is there twice")
            found[name] = _flow(one["value"], number, depth + 1)
        return found
    quoted = re.fullmatch(r"""(["'])(.*)\1""", text)
    if quoted:
        return quoted[2]
    if text[:1] in ("[", "{", "]", "}", *UNKNOWN):
        raise ValueError(f"line {number}: {text!r} is no value of a plan; quote it if it is text")
    return _plain(text)


def _parts(text: str, number: int) -> list[str]:
    """What stands between commas that are not inside of brackets or quotes."""
    found, depth, quote, began = [], 0, "", 0
    for place, letter in enumerate(text):
        if quote:
            quote = "" if letter == quote else quote
        elif letter in "\"'":
            quote = letter
        elif letter in "[{":
            depth += 1
        elif letter in "]}":
            depth -= 1
        elif letter == "," and not depth:
            found.append(text[began:place])
            began = place + 1
    if quote or depth:
        raise ValueError(f"line {number}: a bracket or a quote is not closed")
    found.append(text[began:])
    return [one.strip() for one in found if one.strip()]


def _plain(text: str) -> Any:
    if text.lower() in WORDS:
        return WORDS[text.lower()]
    if re.fullmatch(r"[-+]?\d[\d_]*", text):
        return int(text.replace("_", ""))
    if re.fullmatch(r"[-+]?(\d[\d_]*)?\.?\d*([eE][-+]?\d+)?", text) and any(one.isdigit() for one in text):
        return float(text.replace("_", ""))
    return text
