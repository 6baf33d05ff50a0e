"""The kinds of fields, each a frozen dataclass. Everybody may import them, from ``schema``.

A kind may be a narrower form of another: a Time is an Int, a Decimal a Text, a List a Json, Boxes a Tensor.
Its cells are those of the wider kind, so what is done with the cells of that is right for it, too; the values
differ.
"""

from __future__ import annotations

from .base import (
    KINDS,
    MOST_BYTES,
    Audio,
    Bool,
    Bytes,
    Decimal,
    Field,
    Float,
    Image,
    Int,
    Json,
    List,
    Sparse,
    Struct,
    Tensor,
    Text,
    Uuid,
    Video,
    check_optional,
    checked_fields,
    is_text,
)
from .places import BOX_FORMATS, Boxes, Keypoints, Labels, Polygons
from .times import Duration, Time

for _helper in [name for name in KINDS if name.startswith("_")]:
    del KINDS[_helper]

# What a format that leaves nothing out says it holds.
EVERY_KIND: tuple[type[Field], ...] = tuple(KINDS.values())

__all__ = [
    "BOX_FORMATS", "EVERY_KIND", "KINDS", "MOST_BYTES", "Audio", "Bool", "Boxes", "Bytes", "Decimal",
    "Duration", "Field", "Float", "Image", "Int", "Json", "Keypoints", "Labels", "List", "Polygons", "Sparse",
    "Struct", "Tensor", "Text", "Time", "Uuid", "Video", "check_optional", "checked_fields", "is_text",
]  # fmt: skip
