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
from ...storage import side_car
from ...storage.compressed import WBITS
from ..base.records import RAW, SCHEMA_SIDE_CAR, RecordWriter
from .reader import TfRecordReader
from .scan import HEAD, TAIL

DALI_SIDE_CAR = "{name}.idx"
PACKED_BYTES = 4 << 20


class TfRecordWriter(RecordWriter):
    """Writes TFRecord files.

    ``records``: "example", or "raw": the bytes of the only field ``data``, or else packed samples.
    ``compression``: "none", "gzip" or "zlib" (default: gzip where the name ends with .gz).
    ``dali_index``: also write DALI's index, ``NAME.idx``.
    """

    side_cars: ClassVar[tuple[str, ...]] = (SCHEMA_SIDE_CAR, DALI_SIDE_CAR)
    appends: ClassVar[bool] = True
    growing: ClassVar[tuple[str, ...]] = (DALI_SIDE_CAR,)

    def __init__(
        self,
        path: str,
        schema: Schema,
        options: WriteOptions,
        *,
        records: str = "example",
        compression: str = "auto",
        dali_index: bool = False,
    ) -> None:
        if records not in ("example", "raw"):
            raise OptionError(f"records is example or raw, not {records!r}", path=path)
        if compression not in ("auto", "none", *WBITS):
            raise OptionError(f"compression is none, gzip or zlib, not {compression!r}", path=path)
        packed = "gzip" if str(path).lower().endswith(".gz") else "none"
        self._compression = packed if compression == "auto" else compression
        if dali_index and self._compression != "none":
            raise OptionError("DALI reads no compressed files, so there is no index for them", path=path)
        self._examples = records == "example"
        self._dali_index = dali_index
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
        self._index = self.partial.spool("index") if self._dali_index else None

    def _check_base(self, base: TfRecordReader) -> None:
        """The file says how its records are written."""
        if base.compression == "zlib":
            raise self.cannot_append("it is packed with zlib, which ends once; gzip can go on")
        self._compression = base.compression
        if base.features is not None:
            self._features = base.features
        self._examples = base.features is not None
        self._dali_index = side_car(self.path, DALI_SIDE_CAR).exists()

    def _unfit(self, columns: Columns) -> dict[int, BatchplantError]:
        return {} if self._examples else super()._unfit(columns)

    def _write(self, columns: Columns) -> None:
        if not self._examples:
            super()._write(columns)
            return
        self._write_records(example.write(self._features, columns))

    def _write_records(self, records: Ragged) -> None:
        sizes = records.sizes
        if self._index is not None:
            lengths = sizes + HEAD + TAIL
            offsets = self.end + self._file.size + np.cumsum(lengths) - lengths
            lines = (
                f"{offset} {length}\n"
                for offset, length in zip(offsets.tolist(), lengths.tolist(), strict=True)
            )
            self._index.write("".join(lines).encode())
        self._file.write(_native.tfrecord_frame(records.data, np.ascontiguousarray(records.starts), sizes))

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

    def _beside(self) -> list[tuple[str, str]]:
        return [*super()._beside(), *([("index", DALI_SIDE_CAR)] if self._index is not None else [])]
