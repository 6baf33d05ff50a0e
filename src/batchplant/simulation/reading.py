"""Plans in files: YAML as far as plans need it, TOML, JSON."""

from __future__ import annotations

import json
import os
import re
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ..errors import AccessError, BatchplantError, DataError, NotFoundError, OptionError
from .plan import Plan

# A longer file is no plan.
MOST = 1 << 20
WORDS = {"true": True, "false": False, "yes": True, "no": False}
LINE = re.compile(r"(?P<name>[A-Za-z_][\w.-]*)\s*:(?:\s+(?P<value>.*))?")


def read_plan(path: str | os.PathLike[str]) -> Plan:
    """The plan in a file, by its suffix: .yaml, .yml, .toml, .json."""
    where = os.fspath(path)
    parse: dict[str, Callable[[str], Any]] = {
        ".yaml": parse_yaml,
        ".yml": parse_yaml,
        ".toml": tomllib.loads,
        ".json": json.loads,
    }
    suffix = Path(where).suffix.lower()
    if suffix not in parse:
        raise OptionError(f"a plan ends in {', '.join(parse)}", path=where)
    try:
        with open(where, "rb") as file:
            data = file.read(MOST + 1)
    except FileNotFoundError:
        raise NotFoundError(
            "there is no such plan; `batchplant simulate --example` shows one", path=where
        ) from None
    except OSError as error:
        raise AccessError(error.strerror or str(error), path=where) from None
    if len(data) > MOST:
        raise OptionError("this is too long for a plan", path=where)
    try:
        found = parse[suffix](data.decode())
    except (ValueError, RecursionError) as error:
        raise DataError(f"it cannot be read: {error}", path=where) from None
    if not isinstance(found, dict):
        raise DataError("a plan is made of parts, such as data and cluster", path=where)
    try:
        return Plan().but(**found)
    except BatchplantError as error:
        error.path = error.path or where
        raise


def parse_yaml(text: str) -> dict[str, Any]:
    """Parts, and below each its names and values: all of YAML that a plan needs."""
    found: dict[str, Any] = {}
    part: dict[str, Any] | None = None
    for number, line in enumerate(text.splitlines(), 1):
        plain = _without_comment(line).rstrip()
        if not plain.strip() or plain in ("---", "..."):
            continue
        if "\t" in line[: len(line) - len(line.lstrip())]:
            raise ValueError(f"line {number}: indent with spaces, not with tabs")
        inner = plain.startswith(" ")
        one = LINE.fullmatch(plain.strip())
        if one is None or (inner and (part is None or one["value"] is None)):
            raise ValueError(f"line {number}: {plain.strip()!r} is not `name: value` below a part")
        target = part if inner and part is not None else found
        if one["name"] in target:
            raise ValueError(f"line {number}: {one['name']} is there twice")
        if inner:
            target[one["name"]] = _value(one["value"], number)
        else:
            part = None
            found[one["name"]] = part = {} if one["value"] is None else _mapping(one["value"], number)
    return found


def _without_comment(line: str) -> str:
    return re.sub(r"(^|\s)#.*$", "", line)


def _mapping(text: str, number: int) -> dict[str, Any]:
    """{name: value, …} in one line."""
    inside = re.fullmatch(r"\{(.*)\}", text.strip())
    if inside is None:
        raise ValueError(f"line {number}: names and values stand below a part, indented")
    found = {}
    for item in filter(str.strip, inside[1].split(",")):
        one = LINE.fullmatch(item.strip())
        if one is None or one["value"] is None:
            raise ValueError(f"line {number}: {item.strip()!r} is not `name: value`")
        found[one["name"]] = _value(one["value"], number)
    return found


def _value(text: str, number: int) -> Any:
    quoted = re.fullmatch(r"""(["'])(.*)\1""", text.strip())
    if quoted:
        return quoted[2]
    if text.strip()[:1] in ("[", "{", "&", "*", "|", ">", "!"):
        raise ValueError(f"line {number}: a value of a plan is a number or a word")
    return WORDS.get(text.strip().lower(), text.strip())
