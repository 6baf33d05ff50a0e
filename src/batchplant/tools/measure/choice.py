"""Formats that are worth measuring for a schema, and reasons against the others."""

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
        name, *settings = text.split(":")
        format = get_format(name)
        writer_options = own_options(format.writer) if format.writer else {}
        options: dict[str, Any] = {}
        for setting in settings:
            option, equals, value = setting.partition("=")
            if not equals or not option:
                raise OptionError(f"{setting!r} of {text!r} is not NAME=VALUE")
            # The format knows the types of its own; those of create() are numbers and flags and words.
            options[option] = Typed(value) if option in writer_options else _value(value)
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
    return [format.name for format in _sorted() if _out(format, schema) is None]


def refusals(schema: Mapping[str, Field]) -> dict[str, str]:
    """Why each of the others is left out, in words."""
    reasons = {format.name: _out(format, schema) for format in _sorted()}
    return {name: reason for name, reason in reasons.items() if reason is not None}


def chosen(names: Iterable[str | Candidate] | None, schema: Schema, source: str = "") -> list[Candidate]:
    """The candidates to measure: those that are named, or the sensible ones and that of the source itself."""
    if names is None:
        names_known = candidates(schema)
        if (
            source not in names_known
            and source in all_formats()
            and refusal(get_format(source), schema) is None
        ):
            names_known.append(source)
        return [Candidate(name) for name in names_known]
    formats: list[Candidate] = []
    for name in names:
        if name == ALL:
            formats += [Candidate(format.name) for format in _sorted() if refusal(format, schema) is None]
        else:
            formats.append(name if isinstance(name, Candidate) else Candidate.parse(name))
    unique = list({candidate.label: candidate for candidate in formats}.values())
    if not unique:
        raise OptionError("there is no format to measure")
    return unique


def refusal(format: Format, schema: Mapping[str, Field]) -> str | None:
    """Why a format cannot be measured with these fields; None where it can."""
    if format.writer is None:
        return f"{format.name} is read only"
    try:
        format.check(Schema(schema))
    except SchemaError as error:
        extra = [name for name in schema if name not in format.fields]
        if format.only is not None or (format.fields and extra):
            # The whole list of its fields is advice for a conversion.
            lacks = (
                f"has no place for {listed(extra)}" if format.only is None else f"holds {format.holds} only"
            )
            return f"{format.name} {lacks}"
        return error.message.partition(";")[0]
    lacking = missing(format)
    if not lacking:
        return None
    return f'{", ".join(lacking)} is not installed: pip install "batchplant[{format.extra}]"'


def missing(format: Format) -> list[str]:
    """The packages that a format needs and that are not installed."""
    if format.extra is None:
        return []
    try:
        needed = importlib.metadata.requires("batchplant") or []
    except importlib.metadata.PackageNotFoundError:
        return []
    pattern = re.compile(rf"""extra\s*==\s*["']{re.escape(format.extra)}["']""")
    names = [
        re.split(r"[^\w.-]", requirement, maxsplit=1)[0]
        for requirement in needed
        if pattern.search(requirement)
    ]
    return [name for name in names if not _installed(name)]


def _installed(package: str) -> bool:
    try:
        importlib.metadata.distribution(package)
    except importlib.metadata.PackageNotFoundError:
        return False
    return True


def _out(format: Format, schema: Mapping[str, Field]) -> str | None:
    return refusal(format, schema) or _not_for_training(format, schema)


def _not_for_training(format: Format, schema: Mapping[str, Field]) -> str | None:
    """Why it is not measured unless it is named."""
    can = format.can
    if format.media is not None and not any(isinstance(field, format.media) for field in schema.values()):
        return f"a folder of {format.media.kind} files, and no field holds such"
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
    return sorted(all_formats().values(), key=lambda format: format.name)
