"""Datasets of an HDF5 file that grow: new rows behind those that are there.

The library changes a file all over when it appends to it. It works on an :class:`~.sink.Overlay`, so that
what it changes is written by one change at the end, and a killed writer leaves the file as it was.
"""

from __future__ import annotations

import contextlib
import json
from abc import abstractmethod
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from ...data.reader import Reader
from ...data.writer import Writer
from ...schema import Field, Image, Json, Tensor, Text
from ...schema.columns import dense_of
from ...storage import Patch
from .sink import Overlay, Sink

RESERVED = "batchplant"
# Rows are handed to the library this many bytes at a time.
PART_BYTES = 16 << 20
HINT = "make it with resizable=True (--to-option resizable=true), so that more can follow"

# Type and shape of the rows of a dataset.
Rows = tuple[Any, tuple[int, ...]]


class GrowingWriter(Writer):
    """The half of the writer that appends."""

    appends: ClassVar[bool] = True
    _library: Any
    _sink: Sink

    @abstractmethod
    def _array(self, spool: str, dtype: np.dtype[Any], shape: tuple[int, ...] = ()) -> npt.NDArray[Any]:
        """A spool, mapped."""

    @abstractmethod
    def _add_varying(self, file: Any, where: str, name: str, field: Field) -> None:
        """The cells of varying length of a field, behind those that are there."""

    @abstractmethod
    def _write_note(self, file: Any, chunks: str) -> None: ...

    def _begin_append(self, base: Reader, state: dict[str, Any]) -> None:
        super()._begin_append(base, state)
        with self._opened(self.path, "r", locking=False) as file:
            # Files of others have no such datasets, and nothing in them is missing.
            self._noted = RESERVED in file.attrs
            reason = obstacle(file, {dataset: rows for dataset, _, rows in self._datasets()})
        if reason is not None:
            raise self.cannot_append(reason)

    @contextlib.contextmanager
    def _opened(self, what: Any, mode: str, **how: Any) -> Iterator[Any]:
        try:
            with self._library.File(what, mode, **how) as file:
                yield file
        except OSError as error:
            raise self.cannot_append(f"the library does not open it: {error}") from None

    def _datasets(self) -> Iterator[tuple[str, str, Rows]]:
        """Every dataset that grows, the spool of its rows, and what they are."""
        for name, field in self.schema.items():
            where, dense = name.replace(".", "/"), dense_of(field)
            if dense is not None:
                dtype = np.dtype(np.int64) if dense[0].kind in "mM" else dense[0]
                yield where, f"{name}/data", (dtype, dense[1])
            else:
                yield where, "", (varying_kind(self._library, field)[0], ())
            if field.optional and self._noted:
                yield f"{RESERVED}/valid/{where}", f"{name}/valid", (np.dtype("?"), ())
            if isinstance(field, Image) and self._noted:
                yield f"{RESERVED}/shape/{where}", f"{name}/shape", (np.dtype(np.int32), (3,))

    def _finish_append(self, tail: str) -> str:
        self._sink = sink = Overlay(Path(self.path), self.partial.folder / tail)
        with contextlib.closing(sink):
            with self._opened(sink, "r+", libver="v110") as file:
                for dataset, spool, (dtype, shape) in self._datasets():
                    if spool:
                        write_rows(file[dataset], self._array(spool, dtype, shape), sink.check)
                for name, field in self.schema.items():
                    if dense_of(field) is None:
                        self._add_varying(file, name.replace(".", "/"), name, field)
                if self._noted:
                    self._write_note(file, str(json.loads(bytes(file.attrs[RESERVED])).get("chunks", "")))
            sink.check()
            self._patches = patches(sink, self.partial.folder / tail, self.partial.name)
        return tail

    def _changes(self, name: str) -> tuple[list[Patch], list[tuple[str, str]]]:
        return self._patches, []


def varying_kind(library: Any, field: Field) -> tuple[Any, np.dtype[Any]]:
    """The type of cells of varying length, and that of what they are made of."""
    dtype: np.dtype[Any] = np.dtype(np.uint8)
    if isinstance(field, Tensor) and field.flat:
        dtype = np.dtype(field.dtype)
        dtype = np.dtype(np.int64) if dtype.kind in "mM" else dtype
    text = isinstance(field, Text | Json)
    return library.string_dtype() if text else library.vlen_dtype(dtype), dtype


def obstacle(file: Any, rows: dict[str, Rows]) -> str | None:
    """Why rows cannot be added to datasets; None where they can."""
    for name, (dtype, shape) in rows.items():
        found = file.get(name)
        if found is None or not hasattr(found, "maxshape"):
            return f"there is no dataset {name} that could grow; {HINT}"
        if not found.maxshape or found.maxshape[0] is not None:
            return f"the dataset {name} has a fixed size; {HINT}"
        if found.dtype != dtype or found.shape[1:] != shape:
            return f"the dataset {name} has rows of {found.dtype} {found.shape[1:]}, not of {dtype} {shape}"
    return None


def patches(overlay: Overlay, tail: Path, name: str) -> list[Patch]:
    """Changes to a file: overwritten and appended bytes."""
    result = [Patch(tail.name, name, overlay.before)]
    for number, (offset, data) in enumerate(overlay.edits()):
        edit = tail.with_name(f"edit-{number}")
        edit.write_bytes(data)
        result.append(Patch(edit.name, name, offset))
    return result


def grow(dataset: Any, rows: int) -> int:
    """Make room for more rows; the number of the first of them."""
    first = int(dataset.shape[0])
    dataset.resize(first + rows, axis=0)
    return first


def write_rows(dataset: Any, array: npt.NDArray[Any], check: Callable[[], None]) -> None:
    """Rows behind those that are there, some at a time."""
    first = grow(dataset, len(array))
    step = max(1, PART_BYTES // max(1, array.nbytes // max(1, len(array))))
    for start in range(0, len(array), step):
        part = array[start : start + step]
        dataset[first + start : first + start + len(part)] = part
        check()
