"""Metadata of ours in an index: the schema, and the column that flags missing cells."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, NamedTuple

from ....errors import DamagedError
from ....schema import Schema

NOTE = "batchplant"
# A sample's flags of the optional fields, one byte each: 1 where it is missing.
MISSING = "__missing__"


class Note(NamedTuple):
    """``said``: as it stands in the index; ``missing``: the column of the flags."""

    schema: Schema
    missing: str | None
    said: Any

    @classmethod
    def of(cls, schema: Schema) -> Note:
        """The one of a dataset of our own."""
        missing = missing_name(schema)
        return cls(schema, missing, {"schema": schema.to_json(), "missing": missing})

    @classmethod
    def parse(cls, said: Any, columns: Collection[str]) -> Note:
        """DamagedError where it names other fields than there are columns; any error where it is no note."""
        content = cls(Schema.from_json(said["schema"]), said["missing"], said)
        flagged = isinstance(content.missing, str) and content.missing in columns
        if (
            set(columns) - {content.missing} != set(content.schema)
            or (content.missing is not None) != flagged
        ):
            raise DamagedError(OTHERS)
        return content


OTHERS = "its note names other fields than its columns are"


def optional_fields(schema: Schema) -> list[str]:
    return [name for name, field in schema.items() if field.optional]


def missing_name(schema: Schema) -> str | None:
    """Name of the column of flags; None if no cell can be missing."""
    if not optional_fields(schema):
        return None
    name = MISSING
    while name in schema:
        name += "_"
    return name
