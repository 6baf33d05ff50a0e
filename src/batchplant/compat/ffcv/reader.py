"""Reader: the tables of a .beton file."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import numpy as np

from ...errors import DamagedError, OptionError
from .fields.base import Field
from .source import IDS, FfcvSource
from .types import (
    ALLOC_TABLE_TYPE,
    CURRENT_VERSION,
    CUSTOM,
    FieldDescType,
    HeaderType,
    get_handlers,
    get_metadata_type,
)


class Reader:
    """Header, fields, table and allocations of a file. The tables stay in the file's mapping."""

    def __init__(self, fname: Any, custom_handlers: Mapping[str, Any] = {}) -> None:
        self._fname = str(fname)
        self._custom_handlers = custom_handlers
        self.read_header()
        self.read_field_descriptors()
        self.read_metadata()
        self.read_allocation_table()

    @property
    def file_name(self) -> str:
        return self._fname

    def _table(self, dtype: np.dtype[Any], offset: int, count: int) -> Any:
        if not count:
            return np.empty(0, dtype=dtype)
        return np.asarray(np.memmap(self._fname, dtype, mode="r", offset=offset, shape=(count,)))

    def read_header(self) -> None:
        # FFCV's own files are checked here, before any table of theirs is believed.
        try:
            header = self._table(HeaderType, 0, 1)[0]
        except ValueError:
            raise DamagedError("the file has no whole header", path=self._fname) from None
        if header["version"] != CURRENT_VERSION:
            raise DamagedError(
                f"version {header['version']} is not FFCV's version {CURRENT_VERSION}", path=self._fname
            )
        self.header = header
        self.num_samples, self.page_size = int(header["num_samples"]), int(header["page_size"])
        self.num_fields = int(header["num_fields"])

    def read_field_descriptors(self) -> None:
        found = self._table(FieldDescType, HeaderType.itemsize, self.num_fields)
        self.field_descriptors = found
        stored = [one["name"].tobytes().rstrip(b"\0").decode("latin-1") for one in found]
        custom: dict[str, Field] = {
            name: self._custom_handlers[name].from_binary(one["arguments"])
            for name, one in zip(stored, found, strict=True)
            if name in self._custom_handlers
        }
        for name, one in zip(stored, found, strict=True):
            if one["type_id"] == CUSTOM and name not in custom:
                raise OptionError(
                    f"the field {name!r} is of a custom kind; say which with "
                    f"custom_fields={{{name!r}: ItsField}}",
                    path=self._fname,
                )
        self.source = FfcvSource(
            self._fname, members={name: field.metadata_type for name, field in custom.items()}
        )
        self.field_names = [name for name in self.source.schema if name != IDS]
        handlers = get_handlers(found)
        self.handlers: dict[str, Any] = {
            name: custom.get(short, handler)
            for name, short, handler in zip(self.field_names, stored, handlers, strict=True)
        }
        # Those that a user's own field describes.
        self.custom = {name for name, short in zip(self.field_names, stored, strict=True) if short in custom}
        self.metadata_type = get_metadata_type(self.handlers.values())

    def read_metadata(self) -> None:
        offset = HeaderType.itemsize + self.field_descriptors.nbytes
        self.metadata = self._table(self.metadata_type, offset, self.num_samples)

    def read_allocation_table(self) -> None:
        offset = int(self.header["alloc_table_ptr"])
        room = os.path.getsize(self._fname) - offset
        self.alloc_table = self._table(ALLOC_TABLE_TYPE, offset, room // ALLOC_TABLE_TYPE.itemsize)
