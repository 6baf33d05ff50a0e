"""A .beton file as FFCV sees it, for batchplant's Loader."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ...errors import OptionError
from ...formats.beton.layout import CUSTOM, MEMBERS
from ...formats.beton.reader import BetonReader
from ...schema import Bytes, Field, Int, Schema
from ...schema.columns import I64, Columns

# A field that every file has: the samples' own numbers, for decoders that read by themselves. No field of
# a file has this name, for names there hold no line break.
IDS = "sample\nnumbers"


class FfcvSource(BetonReader):
    """The fields of FFCV's types alone, whatever else we noted; custom fields by the size of their entry."""

    def __init__(self, path: str, *, members: Mapping[str, np.dtype[Any]] | None = None) -> None:
        self._members = dict(members or {})
        super().__init__(path)
        self.schema = Schema({**self.schema, IDS: Int()})

    def _fields(self, descriptors: Any, custom: dict[str, Field]) -> tuple[Schema, list[int]]:
        names = [one["name"].decode("latin-1") for one in descriptors]
        lacking = [
            name
            for name, one in zip(names, descriptors, strict=True)
            if one["type"] == CUSTOM and name not in self._members
        ]
        if lacking:
            raise OptionError(
                f"the field {lacking[0]!r} is of a custom kind; say which with custom_fields="
                f"{{{lacking[0]!r}: ItsField}}",
                path=self.path,
            )
        self._entries = [self._members.get(name) for name in names]
        fields, types = super()._fields(descriptors, dict.fromkeys(self._members, Bytes()))
        # The text of JSON, as FFCV gives it.
        fields = Schema((name, Bytes() if one.kind == "json" else one) for name, one in fields.items())
        return fields, [
            CUSTOM if name in self._members else kind for name, kind in zip(names, types, strict=True)
        ]

    def _row_dtype(self) -> np.dtype[Any]:
        entries = [
            entry if entry is not None else MEMBERS[kind]
            for entry, kind in zip(self._entries, self.types, strict=True)
        ]
        return np.dtype([(f"f{number}", entry) for number, entry in enumerate(entries)], align=True)

    def _noted(self, at: int) -> Schema | None:
        """Only the names, which may be longer than FFCV's."""
        found = super()._noted(at) if CUSTOM not in self.types else None
        return None if found is None else Schema(zip(found, self.schema.values(), strict=True))

    def _read(self, indices: I64, fields: Sequence[str]) -> Columns:
        found = super()._read(indices, [name for name in fields if name != IDS])
        if IDS in fields:
            found[IDS] = indices.astype(np.int64)
        return found
