"""Which formats are worth measuring for a schema, and why the others are not."""

from __future__ import annotations

import ast
import dataclasses
import importlib.metadata
import re
from collections.abc import Iterable, Mapping
from typing import Any

from ...errors import OptionError, SchemaError, listed
from ...formats.base.format import Format
from ...formats.base.options import Typed, own_options
from ...formats.registry import all_formats, get_format
from ...schema import Field, Schema

ALL = "all"


@dataclasses.dataclass(frozen=True)
class Candidate:
    """A format and the options that it is written with: those of :func:`batchplant.create`.

    ``suffix``: of its files, where it says how they are compressed (None: the format's first).
    """

    format: str
    options: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    suffix: str | None = None

    @property
    def label(self) -> str:
        return ":".join(
            [self.format + (self.suffix or ""), *(f"{name}={value}" for name, value in self.options.items())]
        )

    @classmethod
    def parse(cls, text: str) -> Candidate:
        """``parquet:compression=zstd``: the format, then its options, with colons between."""
        name, *given = text.split(":")
        found = get_format(name)
        own = own_options(found.writer) if found.writer else {}
        options: dict[str, Any] = {}
        for one in given:
            option, equals, value = one.partition("=")
            if not equals or not option:
                raise OptionError(f"{one!r} of {text!r} is not NAME=VALUE")
            # The format knows the types of its own; those of create() are numbers and flags and words.
            options[option] = Typed(value) if option in own else _value(value)
        return cls(name, options)


def _value(text: str) -> Any:
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text


def candidates(schema: Mapping[str, Field]) -> list[str]:
    """The formats that hold these fields, are installed and make sense for training, by name."""
    return [one.name for one in _sorted() if _out(one, schema) is None]


def refusals(schema: Mapping[str, Field]) -> dict[str, str]:
    """Why each of the others is left out, in words."""
    found = {one.name: _out(one, schema) for one in _sorted()}
    return {name: reason for name, reason in found.items() if reason is not None}


def chosen(names: Iterable[str | Candidate] | None, schema: Schema, source: str = "") -> list[Candidate]:
    """The candidates to measure: those that are named, or the sensible ones and that of the source itself."""
    if names is None:
        known = candidates(schema)
        if source not in known and source in all_formats() and refusal(get_format(source), schema) is None:
            known.append(source)
        return [Candidate(name) for name in known]
    found: list[Candidate] = []
    for one in names:
        if one == ALL:
            found += [Candidate(each.name) for each in _sorted() if refusal(each, schema) is None]
        else:
            found.append(one if isinstance(one, Candidate) else Candidate.parse(one))
    unique = list({one.label: one for one in found}.values())
    if not unique:
        raise OptionError("there is no format to measure")
    return unique


def refusal(found: Format, schema: Mapping[str, Field]) -> str | None:
    """Why a format cannot be measured with these fields; None where it can."""
    if found.writer is None:
        return f"{found.name} is read only"
    try:
        found.check(Schema(schema))
    except SchemaError as error:
        extra = [name for name in schema if name not in found.fields]
        if found.only is not None or (found.fields and extra):
            # The whole list of its fields is advice for a conversion.
            lacks = f"has no place for {listed(extra)}" if found.only is None else f"holds {found.holds} only"
            return f"{found.name} {lacks}"
        return error.message.partition(";")[0]
    lacking = missing(found)
    if not lacking:
        return None
    return f'{", ".join(lacking)} is not installed: pip install "batchplant[{found.extra}]"'


def missing(found: Format) -> list[str]:
    """The packages that a format needs and that are not installed."""
    if found.extra is None:
        return []
    try:
        needed = importlib.metadata.requires("batchplant") or []
    except importlib.metadata.PackageNotFoundError:
        return []
    wanted = re.compile(rf"""extra\s*==\s*["']{re.escape(found.extra)}["']""")
    names = [re.split(r"[^\w.-]", one, maxsplit=1)[0] for one in needed if wanted.search(one)]
    return [name for name in names if not _installed(name)]


def _installed(package: str) -> bool:
    try:
        importlib.metadata.distribution(package)
    except importlib.metadata.PackageNotFoundError:
        return False
    return True


def _out(found: Format, schema: Mapping[str, Field]) -> str | None:
    return refusal(found, schema) or _not_for_training(found, schema)


def _not_for_training(found: Format, schema: Mapping[str, Field]) -> str | None:
    """Why it is not measured unless it is named."""
    can = found.can
    if found.media is not None and not any(isinstance(one, found.media) for one in schema.values()):
        return f"a folder of {found.media.kind} files, and no field holds such"
    if can.human_readable:
        return "text, which is parsed at every reading"
    if can.time_travel:
        return "a table with versions, made for analysis"
    if not can.random_access:
        return "no access to single samples"
    if not can.streaming_write:
        return "held in memory while it is written"
    return None


def _sorted() -> list[Format]:
    return sorted(all_formats().values(), key=lambda one: one.name)
