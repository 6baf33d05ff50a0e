"""Writing .rec files, and the .idx file beside them."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

from ... import _native
from ...codecs.media.image_rules import ImageTarget
from ...codecs.msgpack import gathered
from ...data.writer import WriteOptions
from ...errors import BatchplantError, EncodeError, OptionError, SchemaError
from ...schema import Image, Int, Schema, Tensor
from ...schema.columns import Columns, Ragged, column_runs, starts_of
from ..base.records import SCHEMA_SIDE_CAR, RecordWriter
from .layout import HEADER, KEYS, MOST_BYTES, NUMBERS, image_field
from .reader import RecordIOReader

KINDS = ("auto", "image", "packed")
# More than the names, kinds and lengths of a packed cell take.
CELL_ROOM = 4096
# Every whole number up to here is one of float32.
EXACT = 1 << 24


class RecordIOWriter(RecordWriter):
    """Writes .rec files and their .idx files. ``records``: ``image`` records, ``packed`` samples, or
    ``auto``: image records where an image, a label, id and id2 are all there is."""

    side_cars: ClassVar[tuple[str, ...]] = (SCHEMA_SIDE_CAR, KEYS)
    # There is a key for each.
    count_inside: ClassVar[bool] = True
    appends: ClassVar[bool] = True
    growing: ClassVar[tuple[str, ...]] = (KEYS,)

    def __init__(self, path: str, schema: Schema, options: WriteOptions, *, records: str = "auto") -> None:
        if records not in KINDS:
            raise OptionError(f"records is one of {', '.join(KINDS)}, not {records!r}", path=path)
        self._image = None if records == "packed" else image_field(schema)
        if records == "image" and self._image is None:
            raise SchemaError(
                "an image record holds one image, and at most a label (Int, Float of 32 bits, or a Tensor "
                "of those with one axis) and id and id2 (Int of uint64)",
                path=path,
            )
        rest = [name for name in schema if name != self._image and name not in NUMBERS]
        self._label = rest[0] if self._image is not None and rest else None
        super().__init__(path, schema, options)

    @classmethod
    def image_target(cls, field: Image) -> ImageTarget:
        # Whoever reads image records expects an encoded file.
        return ImageTarget()

    def remarks(self) -> list[str]:
        if self._label is not None and isinstance(self.schema[self._label], Int):
            return [f"{self._label} is stored as float32, as MXNet and DALI read it"]
        return []

    def _begin(self, state: dict[str, Any] | None) -> None:
        if self.base is not None:
            assert isinstance(self.base, RecordIOReader)
            if self.base.image is None:
                self._image = self._label = None
            if self.base.image != self._image:
                raise self.cannot_append("its records have headers, and no images behind them")
        self._file = self.partial.spool("records")
        self._keys = self.partial.spool("keys")

    def _unfit(self, columns: Columns) -> dict[int, BatchplantError]:
        problems = super()._unfit(columns)
        sizes = np.zeros(columns.rows, dtype=np.int64)
        for column in columns.values():
            sizes += column_runs(column)[2].clip(0) + (0 if self.raw else CELL_ROOM)
        for row in np.flatnonzero(sizes > MOST_BYTES).tolist():
            problems.setdefault(row, EncodeError(f"a record of RecordIO has at most {MOST_BYTES} bytes"))
        if self._label is not None:
            for row in self._unfit_labels(columns):
                problems.setdefault(row, self._unfit_label(columns, row))
        return problems

    def _unfit_labels(self, columns: Columns) -> list[int]:
        assert self._label is not None
        column, field = columns[self._label], self.schema[self._label]
        if isinstance(column, Ragged):
            return np.flatnonzero(column.sizes == 0).tolist()
        if not isinstance(field, Int):
            return []
        fits = (column <= EXACT) if column.dtype.kind == "u" else (column <= EXACT) & (column >= -EXACT)
        return np.flatnonzero(~fits).tolist()

    def _unfit_label(self, columns: Columns, row: int) -> BatchplantError:
        assert self._label is not None
        column = columns[self._label]
        what = "an empty list" if isinstance(column, Ragged) else str(column[row])
        return EncodeError(
            f"{what} is no label of an image record, which has float32; write it with records=packed",
            field=self._label,
        )

    def _write(self, columns: Columns) -> None:
        if self._image is None:
            super()._write(columns)
        else:
            self._write_records(self._image_records(self._image, columns))

    def _image_records(self, image: str, columns: Columns) -> Ragged:
        """Header, labels where there are several, and the image."""
        rows = columns.rows
        headers = np.zeros(rows, dtype=HEADER)
        headers["id"] = columns["id"] if "id" in columns else self.before + self.written + np.arange(rows)
        headers["id2"] = columns.get("id2", 0)
        several = []
        if self._label is not None:
            labels = columns[self._label]
            if isinstance(self.schema[self._label], Tensor):
                data, starts, sizes = column_runs(labels)
                if isinstance(labels, Ragged):
                    # A single label among several stands in the header itself.
                    single = sizes == 4
                    headers["label"][single] = gathered(data, starts[single], sizes[single]).data.view("<f4")
                    sizes = np.where(single, 0, sizes)
                several = [(data, starts, sizes)]
                headers["flag"] = sizes // 4
            else:
                headers["label"] = labels
        parts = [column_runs(headers), *several, column_runs(columns[image])]
        offsets = starts_of(sum((sizes for _, _, sizes in parts), np.zeros(rows, dtype=np.int64)))
        out, at = np.empty(offsets[-1], dtype=np.uint8), offsets[:-1].copy()
        for data, starts, sizes in parts:
            _native.copy_runs(data, np.ascontiguousarray(starts), np.ascontiguousarray(sizes), out, at)
            at += sizes
        return Ragged(out, offsets)

    def _write_records(self, records: Ragged) -> None:
        framed, places = _native.recordio_frame(
            records.data, np.ascontiguousarray(records.starts), records.sizes
        )
        first, places = self.before + self.written, places + self.end + self._file.size
        lines = (f"{first + row}\t{place}\n" for row, place in enumerate(places.tolist()))
        self._keys.write("".join(lines).encode())
        self._file.write(framed)

    def _finish(self) -> str:
        return "records"

    def _beside(self) -> list[tuple[str, str]]:
        return [*super()._beside(), ("keys", KEYS)]
