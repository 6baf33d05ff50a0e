"""FileReader and FileWriter, on top of batchplant's reader and writer of the format."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from ...data.writer import WriteOptions
from ...errors import NotFoundError, OptionError, SampleIndexError
from ...formats.base.records import RAW
from ...formats.ffrecord import FFRecordReader, FFRecordWriter
from ...schema.columns import I64, U8, AnyArray, Columns, Ragged, as_bytes

Name = str | os.PathLike[str]
# A writer buffers at most this much.
MAX_BUFFER_BYTES, MAX_BUFFER_SAMPLES = 4 << 20, 4096


def _names(fname: Name | Sequence[Name]) -> list[str]:
    if isinstance(fname, str | os.PathLike):
        folder = Path(fname)
        return sorted(map(str, folder.glob("*.ffr"))) if folder.is_dir() else [os.fspath(fname)]
    if isinstance(fname, list | tuple):
        return [os.fspath(name) for name in fname]
    raise TypeError(f"fname is a path or a list of paths, not {type(fname).__name__}")


class FileReader:
    """One file, or the files of a list or a folder one after another. May be read from many threads.

    ``check_data``: compare the checksums of headers and samples.
    """

    def __init__(self, fname: Name | Sequence[Name], check_data: bool = True) -> None:
        self.fnames = _names(fname)
        if not self.fnames:
            raise NotFoundError("at least one .ffr file is needed", path=fname)
        self.check_data = bool(check_data)
        # The caller interprets the bytes; a schema beside the file is ignored.
        self._readers = [FFRecordReader(name, check=self.check_data, schema=RAW) for name in self.fnames]
        self._ends: I64 = np.cumsum([len(reader) for reader in self._readers])
        self.n = int(self._ends[-1])

    def __len__(self) -> int:
        return self.n

    def read(self, indices: Sequence[int] | I64) -> list[U8]:
        """Return the bytes of these samples, each an array of uint8; samples read together share memory.

        Negative numbers count from the end.
        """
        rows = self._rows(indices)
        if len(self._readers) == 1:
            return _cells(self._readers[0], rows)
        return gather_parts(self._ends, rows, lambda file, local: _cells(self._readers[file], local))

    def read_one(self, index: int) -> U8:
        """Return the bytes of one sample."""
        return self.read([index])[0]

    def _rows(self, indices: Sequence[int] | I64) -> I64:
        numbers: AnyArray = np.asarray(indices)
        if numbers.ndim != 1 or (numbers.size and numbers.dtype.kind not in "iu"):
            raise TypeError("indices is a list of integers")
        rows = numbers.astype(np.int64)
        if rows.size and (rows.min() < 0 or rows.max() >= self.n or numbers.dtype == np.uint64):
            is_outside = (numbers >= self.n) | (rows < -self.n)
            if is_outside.any():
                number = int(numbers[int(np.argmax(is_outside))])
                raise SampleIndexError(
                    f"there is no sample {number}; there are {self.n}", path=self.fnames[0]
                )
            rows = np.where(rows < 0, rows + self.n, rows)
        return rows

    def validate(self) -> None:
        """Compare the checksums of the headers, whatever ``check_data`` is; a wrong one is a DamagedError."""
        for reader in self._readers:
            reader.check_header()

    def get_offsets(self, file_index: int) -> I64:
        """Return the offsets at which the samples of a file begin, and the end of the last one."""
        return self._readers[file_index].offsets

    def get_checksums(self, file_index: int) -> npt.NDArray[np.uint32]:
        """Return the CRC-32 of each sample of a file."""
        return self._readers[file_index].sums

    def close(self) -> None:
        for reader in self._readers:
            reader.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __reduce__(self) -> tuple[Callable[..., FileReader], tuple[list[str], bool]]:
        return FileReader, (self.fnames, self.check_data)


def gather_parts(ends: I64, rows: I64, read: Callable[[int, I64], Sequence[Any]]) -> list[Any]:
    """Samples of several parts in the order of the rows; part n ends before row ``ends[n]``."""
    parts = np.searchsorted(ends, rows, side="right")
    samples: list[Any] = [None] * len(rows)
    for part in np.unique(parts).tolist():
        positions = np.flatnonzero(parts == part)
        local = rows[positions] - (ends[part - 1] if part else 0)
        for position, sample in zip(positions.tolist(), read(part, local), strict=True):
            samples[position] = sample
    return samples


def _cells(reader: FFRecordReader, rows: I64) -> list[U8]:
    records = reader.gather(rows)
    data = records.data
    return [data[start:end] for start, end in pairwise(records.offsets.tolist())]


class FileWriter:
    """Writes a file of exactly ``n`` samples. It appears under its name when it is closed, complete."""

    def __init__(self, fname: Name, n: int) -> None:
        if not isinstance(fname, str | os.PathLike):
            raise TypeError(f"fname is a path, not {type(fname).__name__}")
        if n < 0:
            raise OptionError(f"n is the number of samples, not {n}", path=fname)
        self.n = int(n)
        self.count = 0
        self._buffer: list[bytes] = []
        self._buffer_bytes = 0
        options = WriteOptions(overwrite=True, length=self.n, workers=1)
        self._writer = FFRecordWriter(os.fspath(fname), RAW, options)

    def write_one(self, data: Any) -> None:
        """Append a sample: bytes, or anything that holds contiguous bytes."""
        if self.count >= self.n:
            raise OptionError(f"there are {self.n} samples already", path=self._writer.path)
        self._buffer.append(data if isinstance(data, bytes) else as_bytes(data).tobytes())
        self.count += 1
        self._buffer_bytes += len(self._buffer[-1])
        if self._buffer_bytes >= MAX_BUFFER_BYTES or len(self._buffer) >= MAX_BUFFER_SAMPLES:
            self._flush()

    def _flush(self) -> None:
        if self._buffer:
            self._writer.append(Columns(data=Ragged.from_cells(self._buffer)))
            self._buffer, self._buffer_bytes = [], 0

    def close(self) -> None:
        """Complete the file. With fewer than ``n`` samples that is an error, and there is no file."""
        if self._writer._closed:
            return
        if self.count != self.n:
            self._writer.abort()
            raise OptionError(f"{self.count} samples came, {self.n} were promised", path=self._writer.path)
        self._flush()
        self._writer.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, error_type: type[BaseException] | None, *_: object) -> None:
        if error_type is None:
            self.close()
        else:
            self._writer.abort()

    def __del__(self) -> None:
        writer = getattr(self, "_writer", None)
        if writer is not None and not writer._closed:
            if self.count == self.n:
                self.close()
            else:
                writer.abort()
