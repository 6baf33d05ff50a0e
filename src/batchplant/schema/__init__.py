"""The data model: field kinds, and the schema that names them.

Every kind is a frozen dataclass; two schemas are equal when their fields are, in any order of keys but
the same order of names. A kind also fixes how its cells look inside :class:`~batchplant.Columns`:

=================================== ==============================================================
kind                                cells
=================================== ==============================================================
Int, Float, Bool                    an array of the dtype, one number per sample
Tensor, all of its shape known      an array of shape (samples, *shape)
Tensor, only the first size varies  ragged, the values' little-endian bytes
Tensor, other sizes vary            ragged, each cell a whole NPY file
Boxes, Keypoints, Labels            as a Tensor of their shape: ragged, the values' bytes
Time, Duration                      an array of int64: how many units
Bytes, Text, Json                   ragged, the bytes, UTF-8 text, JSON text
Decimal, Uuid                       ragged, their text: ``-12.50``
Sparse                              ragged, the numbers of the columns (int32), then the values
List, Struct, Polygons              ragged, JSON text of what is in them
Image, Audio, Video                 ragged, the encoded file; an image may also be raw pixels
any of them with optional=True      ragged, so that a cell can be missing
=================================== ==============================================================
"""

from __future__ import annotations

import reprlib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from ..errors import FieldNameError, SchemaError, brief, exceptions_as, no_such
from .kinds import (
    EVERY_KIND,
    Audio,
    Bool,
    Boxes,
    Bytes,
    Decimal,
    Duration,
    Field,
    Float,
    Image,
    Int,
    Json,
    Keypoints,
    Labels,
    List,
    Polygons,
    Sparse,
    Struct,
    Tensor,
    Text,
    Time,
    Uuid,
    Video,
    check_optional,
    checked_fields,
)
from .kinds import KINDS as KINDS
from .kinds import MOST_BYTES as MOST_BYTES
from .kinds import is_text as is_text

__all__ = [
    "EVERY_KIND", "Audio", "Bool", "Boxes", "Bytes", "Decimal", "Duration", "Field", "Float", "Image", "Int",
    "Json", "Keypoints", "Labels", "List", "Polygons", "Schema", "Sparse", "Struct", "Tensor", "Text", "Time",
    "Uuid", "Video",
]  # fmt: skip

_DTYPES = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
# Names of a field that stand for more than a kind: dtypes of numbers, and times in microseconds.
BARE_KINDS: dict[str, Field] = {
    **{name: Int(name) for name in _DTYPES},
    **{name: Float(name) for name in ("float16", "float32", "float64")},
    "date": Time("D"),
    "time": Time("us"),
    "datetime": Time("us"),
    "duration": Duration("us"),
    "str": Text(),
    "string": Text(),
}
# Kinds that a bare name does not describe, and how to write them.
NEEDS_MORE = {
    "tensor": '{"kind": "tensor", "dtype": "float32", "shape": [3]}',
    "decimal": '{"kind": "decimal", "precision": 12, "scale": 2}',
    "list": '{"kind": "list", "of": {"kind": "int"}}',
    "struct": '{"kind": "struct", "fields": [{"name": "x", "kind": "int"}]}',
    "sparse": '{"kind": "sparse", "shape": 20000, "dtype": "float32"}',
    "keypoints": '{"kind": "keypoints", "points": 17}',
}
# Nobody means more: a list in a list in a list, and so on.
DEEPEST = 64


def field_from_json(data: Any, depth: int = 0) -> Field:
    """The field that ``Field.to_json`` described; anything else is a SchemaError."""
    if not isinstance(data, dict) or str(data.get("kind")) not in KINDS or depth > DEEPEST:
        # Not repr, which goes as deep as the value does.
        raise SchemaError(f"not a field description: {reprlib.repr(data)[:80]}")
    kind: Any = KINDS[str(data["kind"])]
    arguments = {
        name: tuple(value) if isinstance(value, list) else value
        for name, value in data.items()
        if name != "kind"
    }
    with exceptions_as(SchemaError, "not a field description", TypeError, ValueError, OverflowError):
        if kind is List:
            arguments["of"] = field_from_json(data.get("of"), depth + 1)
        if kind is Struct:
            arguments["fields"] = _named(data.get("fields"), depth + 1)
        field: Field = kind(**arguments)
        check_optional(field)
        return field


def _named(entries: Any, depth: int = 0) -> list[tuple[str, Field]]:
    """Fields by name, as :meth:`Schema.to_json` and a Struct describe them."""
    if not isinstance(entries, list) or not all(
        isinstance(entry, dict) and "name" in entry for entry in entries
    ):
        raise SchemaError("not a schema: a list of field descriptions is needed")
    if len({str(entry["name"]) for entry in entries}) < len(entries):
        raise SchemaError("not a schema: two fields have one name")
    return [
        (str(entry["name"]), field_from_json({k: v for k, v in entry.items() if k != "name"}, depth))
        for entry in entries
    ]


def as_field(kind: Field | str) -> Field:
    """Return a field, or the one that a kind's bare name means: ``"bytes"``, ``"time"``, ``"float32"``."""
    if isinstance(kind, Field):
        return kind
    kind_class = BARE_KINDS.get(str(kind).lower()) if isinstance(kind, str) else None
    if kind_class is not None:
        return kind_class
    if kind in NEEDS_MORE:
        raise SchemaError(f"{kind} alone does not say enough; write {NEEDS_MORE[kind]}")
    if kind not in KINDS:
        known_names = sorted({*KINDS, *BARE_KINDS})
        raise SchemaError(no_such("kind", kind, known_names))
    return field_from_json({"kind": kind})


class Schema(Mapping[str, Field]):
    """The named fields of a dataset, in order: ``Schema({"image": Image(), "label": Int()})``."""

    __slots__ = ("_fields",)

    def __init__(
        self, fields: Mapping[str, Field] | Iterable[tuple[str, Field]] = (), **named_fields: Field
    ) -> None:
        try:
            named = dict(fields, **named_fields)
        except (TypeError, ValueError):
            raise SchemaError(f"a schema is a dict, as {{'label': Int()}}, not {fields!r}") from None
        self._fields = checked_fields(named)

    def __getitem__(self, name: str) -> Field:
        try:
            return self._fields[name]
        except KeyError:
            raise self._unknown(name) from None

    def __contains__(self, name: object) -> bool:
        return name in self._fields

    def __iter__(self) -> Iterator[str]:
        return iter(self._fields)

    def __len__(self) -> int:
        return len(self._fields)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Schema):
            return NotImplemented
        return self is other or list(self._fields.items()) == list(other._fields.items())

    def __hash__(self) -> int:
        return hash(tuple(self._fields.items()))

    def __repr__(self) -> str:
        return "Schema(" + ", ".join(f"{brief(name)}={field}" for name, field in self.items()) + ")"

    def _unknown(self, name: object) -> FieldNameError:
        return FieldNameError(no_such("field", name, self._fields))

    def select(self, names: Iterable[str]) -> Schema:
        """Return the schema of only these fields, in this order.

        Raises: FieldNameError where there is no such field.
        """
        if isinstance(names, str):
            names = [names]
        return Schema([(name, self[name]) for name in names])

    def rename(self, names: Mapping[str, str]) -> Schema:
        """Return the schema with new names, by old name; fields that are not mentioned keep theirs.

        Raises: FieldNameError where there is no such field; SchemaError where two fields get one name.
        """
        for old in names:
            if old not in self._fields:
                raise self._unknown(old)
        renamed = [names.get(name, name) for name in self]
        if len(set(renamed)) < len(renamed):
            raise SchemaError(f"renaming gives two fields one name: {', '.join(renamed)}")
        return Schema(zip(renamed, (field.renamed(names) for field in self.values()), strict=True))

    def to_json(self) -> list[dict[str, Any]]:
        """Return the fields as objects of JSON, which ``from_json`` reads."""
        return [{"name": name, **field.to_json()} for name, field in self.items()]

    @classmethod
    def from_json(cls, data: Any) -> Schema:
        """Return the schema that ``to_json`` wrote.

        Raises: SchemaError where it is no such list.
        """
        return cls(_named(data))
