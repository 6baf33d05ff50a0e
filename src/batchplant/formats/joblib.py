"""Joblib, Python objects with large arrays.

A pickle in which the bytes of an array follow right behind its description, aligned, so that they can be
mapped; or such a file compressed as a whole (zlib, gzip, bz2, lzma, xz, lz4). Loading one can run any code,
as with every pickle: it is done only with ``allow_pickle=True``.

What is read as a dataset, and what we write, is the same as with pickle: a dict of columns, which
``joblib.load`` gives as it is. Columns of numbers are arrays that are mapped, and used in place.
"""

from __future__ import annotations

import contextlib
import importlib
import io
from collections.abc import Iterable
from typing import Any, BinaryIO

import numpy as np

from ..data.writer import WriteOptions
from ..errors import DamagedError, needs
from ..schema import EVERY_KIND, Schema
from ..schema.columns import I64
from ..storage import MappedSource, limits
from ..storage.spans import Spans
from .base.format import Capabilities, Format, Probe
from .base.objects import ObjectReader, ObjectWriter, read_note
from .base.records import Note

MARK = b"joblib.numpy_pickle"
# What our files begin with: PROTO 4, the mark as a text, POP.
START = b"\x80\x04\x8c" + bytes([len(MARK)]) + MARK + b"0"
# How a compressed file begins, and the class of joblib that knows how.
COMPRESSIONS = {
    "zlib": (b"x", "ZlibCompressorWrapper"),
    "gzip": (b"\x1f\x8b", "GzipCompressorWrapper"),
    "bz2": (b"BZ", "BZ2CompressorWrapper"),
    "lzma": (b"\x5d\x00", "LZMACompressorWrapper"),
    "xz": (b"\xfd7zXZ", "XZCompressorWrapper"),
    "lz4": (b"\x04\x22\x4d\x18", "LZ4CompressorWrapper"),
}


def _joblib(part: str = "") -> Any:
    with needs("this needs joblib", "joblib"):
        return importlib.import_module(f"joblib{part}")


class _Unpacked(io.RawIOBase):
    """Decompress a file of ``stored`` bytes, as far as the limit allows."""

    def __init__(self, file: Any, stored: int) -> None:
        self._file, self._stored, self._done = file, stored, 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        data = self._file.read(len(buffer))
        self._done += len(data)
        if self._done > limits.allowed(self._stored):
            raise DamagedError(limits.too_large("the file", None, self._stored))
        buffer[: len(data)] = data
        return len(data)


class JoblibReader(ObjectReader):
    """Reads files of joblib, with ``allow_pickle=True`` only: loading one can run any code that is in it.

    ``fields``: only these columns.
    """

    def __init__(
        self,
        path: str,
        *,
        allow_pickle: bool = False,
        fields: Iterable[str] | None = None,
    ) -> None:
        self._open(path, allow_pickle, fields)

    def _note(self) -> Note | None:
        head = self._source.view(0, min(8, self._source.size)).tobytes()
        self._kind = next((kind for kind, (magic, _) in COMPRESSIONS.items() if head.startswith(magic)), None)
        content = self._content()
        return read_note(content) if content.read(len(START)) == START else None

    def _load(self) -> list[Any]:
        joblib = _joblib()
        if self._kind is None and isinstance(self._source, MappedSource):
            # More arrays than Linux maps for one process (OSError) are read instead.
            with contextlib.suppress(OSError):
                return [joblib.load(self.path, mmap_mode="r")]
        return [joblib.load(self._content())]

    def _content(self) -> io.BufferedReader:
        file = self._source.file()
        if self._kind is None:
            return file
        compressor = getattr(_joblib(".compressor"), COMPRESSIONS[self._kind][1])()
        return io.BufferedReader(_Unpacked(compressor.decompressor_file(file), self._source.size))

    def _spans(self, field: str, indices: I64) -> Spans | None:
        values = self._values[field]
        plain = isinstance(values, np.memmap) and values.flags.c_contiguous and values.dtype.isnative
        if not plain or self.schema[field].cell is None:
            return None
        assert isinstance(values, np.memmap)
        size = values.dtype.itemsize * int(np.prod(values.shape[1:]))
        starts = values.offset + indices * size
        return Spans([self._source], starts, np.full(len(indices), size, dtype=np.int64))

    def facts(self) -> dict[str, object]:
        arrays = sum(isinstance(values, np.memmap) for values in self._values.values())
        return {**super().facts(), "compression": self._kind or "none", "mapped columns": arrays}


class JoblibWriter(ObjectWriter):
    """Writes one dict of columns, not compressed, so that its arrays can be mapped."""

    def __init__(self, path: str, schema: Schema, options: WriteOptions) -> None:
        self._library = _joblib(".numpy_pickle")
        super().__init__(path, schema, options)

    def _dump(self, table: dict[str, Any], note: bytes, file: BinaryIO) -> None:
        file.write(START + note)
        pickler = self._library.NumpyPickler(file)
        # Without the memory of every value that it has written.
        pickler.fast = True
        pickler.dump(table)


def sniff(probe: Probe) -> bool:
    """Not compressed, with an array in its beginning, or ours. Nothing is loaded."""
    head = probe.head
    return len(head) > 2 and head[0] == 0x80 and 2 <= head[1] <= 5 and MARK in head


FORMAT = Format(
    name="joblib",
    title="Joblib",
    suffixes=(".joblib",),
    spec="https://joblib.readthedocs.io/en/stable/persistence.html",
    reader=JoblibReader,
    writer=JoblibWriter,
    sniff=sniff,
    kinds=EVERY_KIND,
    optional=True,
    extra="joblib",
    notes="loading can run code: opened only with allow_pickle; arrays that are not compressed are mapped",
    can=Capabilities(
        memory_map=True,
        keeps_schema=True,
        ecosystem=("joblib", "scikit-learn"),
    ),
)
