"""The structs of a .beton file, with FFCV's names."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from .fields import BytesField, FloatField, IntField, JSONField, NDArrayField, RGBImageField, TorchTensorField
from .fields.base import Field

CURRENT_VERSION = 2

HeaderType = np.dtype(
    [
        ("version", "<u2"),
        ("num_fields", "<u2"),
        ("page_size", "<u4"),
        ("num_samples", "<u8"),
        ("alloc_table_ptr", "<u8"),
    ],
    align=True,
)
ALLOC_TABLE_TYPE = np.dtype([("sample_id", "<u8"), ("ptr", "<u8"), ("size", "<u8")])
FieldDescType = np.dtype(
    [("type_id", "<u1"), ("name", ("<u1", 16)), ("arguments", ("<u1", (1024,)))], align=True
)

CUSTOM = 255
TYPE_ID_HANDLER: dict[int, Any] = {
    CUSTOM: None,
    0: FloatField,
    1: IntField,
    2: RGBImageField,
    3: BytesField,
    4: NDArrayField,
    5: JSONField,
    6: TorchTensorField,
}


def get_handlers(field_descriptors: Any) -> list[Field | None]:
    """Return the field of every descriptor; None for a custom one."""
    handlers = [TYPE_ID_HANDLER[int(descriptor["type_id"])] for descriptor in field_descriptors]
    return [
        None if handler is None else handler.from_binary(descriptor["arguments"])
        for handler, descriptor in zip(handlers, field_descriptors, strict=True)
    ]


def get_metadata_type(handlers: Iterable[Field]) -> np.dtype[Any]:
    """Return the type of a sample's row in the table, all fields together."""
    return np.dtype([("", handler.metadata_type) for handler in handlers], align=True)
