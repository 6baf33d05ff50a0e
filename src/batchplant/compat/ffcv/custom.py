"""Files with fields that users wrote: their ``encode`` needs pointers at once, so it runs in one thread."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Self

import numpy as np

from ...errors import BatchplantError, EncodeError
from ...formats.beton.layout import short_names
from ...storage import Partial
from .fields import Field
from .types import (
    ALLOC_TABLE_TYPE,
    CURRENT_VERSION,
    CUSTOM,
    TYPE_ID_HANDLER,
    FieldDescType,
    HeaderType,
    get_metadata_type,
)
from .utils import align_to_page


class _PageFullError(MemoryError):
    """What FFCV raises too: fields may catch a MemoryError of their ``malloc`` and must raise it again."""


class CustomWriter:
    """Writes a .beton file of a known number of samples, with FFCV's interface to fields."""

    def __init__(self, path: str, fields: Mapping[str, Field], page_size: int, length: int) -> None:
        self.path, self.fields, self._page_size = path, fields, page_size
        self._rows = np.zeros(length, dtype=get_metadata_type(fields.values()))
        self._table_at = HeaderType.itemsize + len(fields) * FieldDescType.itemsize
        self._start = align_to_page(self._table_at + self._rows.nbytes, page_size)
        self._page = np.zeros(page_size, dtype=np.uint8)
        self._pages = self._used = self._written = 0
        self._allocations: list[tuple[int, int, int]] = []
        self._partial = Partial(path, overwrite=True)
        self._file = self._partial.spool("file")

    def append(self, sample: Mapping[str, Any]) -> None:
        """Write one sample: all of it in the page that is being filled, or all of it in a new one."""
        used, known = self._used, len(self._allocations)
        try:
            self._encode(sample)
        except _PageFullError:
            self._page[used:] = 0
            self._used = used
            del self._allocations[known:]
            self._flush()
            try:
                self._encode(sample)
            except _PageFullError as error:
                raise EncodeError(str(error), sample=self._written, path=self.path) from None
        self._written += 1

    def _encode(self, sample: Mapping[str, Any]) -> None:
        if self._written >= len(self._rows):
            raise EncodeError(f"there are more samples than the {len(self._rows)} that were counted")
        for number, (name, field) in enumerate(self.fields.items()):
            place = self._rows[f"f{number}"][self._written : self._written + 1]
            try:
                field.encode(place, sample[name], self._malloc)
            except _PageFullError:
                raise
            except BatchplantError as error:
                raise error.at(path=self.path, sample=self._written, field=name) from None
            # Whatever a user's code raises.
            except Exception as error:
                raise EncodeError(
                    f"{type(error).__name__}: {error}", path=self.path, sample=self._written, field=name
                ) from error

    def _malloc(self, size: int) -> tuple[int, Any]:
        size = int(size)
        if self._used + size > self._page_size:
            raise _PageFullError(
                f"the sample needs more than a page of {self._page_size} bytes: raise page_size"
            )
        first, self._used = self._used, self._used + size
        ptr = self._start + self._pages * self._page_size + first
        self._allocations.append((self._written, ptr, size))
        return ptr, self._page[first : self._used]

    def _flush(self) -> None:
        if self._used:
            self._file.write_at(self._page, self._start + self._pages * self._page_size)
            self._pages, self._used = self._pages + 1, 0
            self._page[:] = 0

    def close(self) -> None:
        """Complete the file and give it its name."""
        try:
            if self._written != len(self._rows):
                raise EncodeError(
                    f"{len(self._rows)} samples were promised and {self._written} came", path=self.path
                )
            self._flush()
            end = self._start + self._pages * self._page_size
            self._file.resize(end)
            header = (CURRENT_VERSION, len(self.fields), self._page_size, self._written, end)
            self._file.write_at(np.array([header], dtype=HeaderType), 0)
            self._file.write_at(self._descriptors(), HeaderType.itemsize)
            self._file.write_at(self._rows, self._table_at)
            self._file.write_at(np.array(self._allocations, dtype=ALLOC_TABLE_TYPE), end)
            self._partial.commit("file")
        except BaseException:
            self.abort()
            raise

    def _descriptors(self) -> Any:
        types = {kind: number for number, kind in TYPE_ID_HANDLER.items()}
        found = np.zeros(len(self.fields), dtype=FieldDescType)
        for row, name, field in zip(found, short_names(self.fields), self.fields.values(), strict=True):
            row["type_id"] = types.get(type(field), CUSTOM)
            row["name"][: len(name)] = np.frombuffer(name, dtype=np.uint8)
            row["arguments"][:] = field.to_binary()[0]
        return found

    def abort(self) -> None:
        """Stop and leave nothing."""
        self._partial.discard()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self.close()
        else:
            self.abort()
