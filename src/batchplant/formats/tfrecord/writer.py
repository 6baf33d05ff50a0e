"""TfRecordWriter."""

from __future__ import annotations

import zlib
from typing import Any, ClassVar

import numpy as np

from ... import _native
from ...codecs import example
from ...codecs.example import BYTES
from ...codecs.media.image_rules import ImageTarget
from ...data.writer import WriteOptions
from ...errors import BatchplantError, OptionError
from ...schema import Float, Image, Schema, Tensor
from ...schema.columns import Columns, Ragged
from ...storage.compressed import WBITS
from ..base.records import RAW, SCHEMA_SIDE_CAR, RecordWriter
from .reader import TfRecordReader

# Of NVIDIA DALI, beside files that it reads: it is of no use once they are written anew.
DALI_INDEX = "{name}.idx"
PACKED_BYTES = 4 << 20


class TfRecordWriter(RecordWriter):
    """Writes TFRecord files.

    ``records``: "example", or "raw": the bytes of the only field ``data``, or else packed samples.
    ``compression``: "none", "gzip" or "zlib" (default: gzip where the name ends with .gz).
    """

    side_cars: ClassVar[tuple[str, ...]] = (SCHEMA_SIDE_CAR, DALI_INDEX)
    appends: ClassVar[bool] = True

    def __init__(
        self,
        path: str,
        schema: Schema,
        options: WriteOptions,
        *,
        records: str = "example",
        compression: str = "auto",
    ) -> None:
        if records not in ("example", "raw"):
            raise OptionError(f"records is example or raw, not {records!r}", path=path)
        if compression not in ("auto", "none", *WBITS):
            raise OptionError(f"compression is none, gzip or zlib, not {compression!r}", path=path)
        packed = "gzip" if str(path).lower().endswith(".gz") else "none"
        self._compression = packed if compression == "auto" else compression
        self._examples = records == "example"
        self._features = example.features_of(schema)
        super().__init__(path, schema, options)

    @property
    def raw(self) -> bool:
        return not self._examples and self.schema == RAW

    @classmethod
    def image_target(cls, field: Image) -> ImageTarget:
        # No other reader would know raw pixels in an Example.
        return ImageTarget()

    def remarks(self) -> list[str]:
        if not self._examples:
            return []
        names = [
            name
            for name, feature in self._features.items()
            if isinstance(feature.field, Float | Tensor) and feature.kind == BYTES
        ]
        message = (
            "TFRecord has no type for these values, so they are stored as their bytes (tf.io.decode_raw)"
        )
        return [f"{', '.join(names)}: {message}"] if names else []

    def _begin(self, state: dict[str, Any] | None) -> None:
        if self.base is not None:
            assert isinstance(self.base, TfRecordReader)
            self._check_base(self.base)
        self._file = self.partial.spool("records")

    def _check_base(self, base: TfRecordReader) -> None:
        """The file says how its records are written."""
        if base.compression == "zlib":
            raise self.cannot_append("it is packed with zlib, which ends once; gzip can go on")
        self._compression = base.compression
        if base.features is not None:
            self._features = base.features
        self._examples = base.features is not None

    def _unfit(self, columns: Columns) -> dict[int, BatchplantError]:
        return {} if self._examples else super()._unfit(columns)

    def _write(self, columns: Columns) -> None:
        if not self._examples:
            super()._write(columns)
            return
        self._write_records(example.write(self._features, columns))

    def _write_records(self, records: Ragged) -> None:
        starts = np.ascontiguousarray(records.starts)
        self._file.write(_native.tfrecord_frame(records.data, starts, records.sizes))

    def _finish(self) -> str:
        if self._compression == "none":
            return "records"
        # Packed at the end, and not as it comes, so that a resumed writer need not pick up inside of it.
        pack = zlib.compressobj(6, zlib.DEFLATED, WBITS[self._compression])
        with open(self.partial.folder / "packed", "wb") as out:
            for offset in range(0, self._file.size, PACKED_BYTES):
                out.write(pack.compress(self._file.read_at(PACKED_BYTES, offset)))
            out.write(pack.flush())
        return "packed"
