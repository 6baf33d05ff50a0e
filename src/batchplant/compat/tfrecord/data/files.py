"""Datasets of files: records, lines, pieces of one length."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from ....errors import OptionError
from ....storage import open_source
from ..listing import texts
from ..records import compression_of, read_records
from ..values import String, as_text
from . import iterate
from .base import AUTOTUNE
from .dataset import Dataset
from .threads import cycle_length


class _Files(Dataset):
    """What one function reads from each file, one file after the other or several in turn."""

    def __init__(self, filenames: Any, read: Callable[[str], Iterator[Any]], parallel: Any = None) -> None:
        names: Callable[[], Iterator[Any]]
        if isinstance(filenames, Dataset):
            names = filenames._make
        else:
            listed = [String(one.encode()) for one in texts(filenames)]

            def names() -> Iterator[Any]:
                return iter(listed)

        cycle = 1
        if parallel is not None:
            cycle = cycle_length(AUTOTUNE) if int(parallel) == AUTOTUNE else int(parallel)
            if cycle < 1:
                raise OptionError(f"num_parallel_reads must be at least 1, not {cycle}")

        def make() -> Iterator[Any]:
            # Reading is quick enough for one thread; what is mirrored is the order.
            def open_one(name: Any) -> Iterator[Any]:
                return read(as_text(name))

            return iterate.interleave(names(), open_one, cycle, 1)

        super().__init__(make, light=True)
        self._recipe = (type(self).__name__, filenames, read, cycle)


class TFRecordDataset(_Files):
    """The records of TFRecord files; with ``num_parallel_reads`` of so many files in turn."""

    def __init__(
        self,
        filenames: Any,
        compression_type: Any = None,
        buffer_size: Any = None,
        num_parallel_reads: Any = None,
        name: Any = None,
    ) -> None:
        compression = compression_of(compression_type)
        super().__init__(filenames, lambda path: read_records(path, compression), num_parallel_reads)


class TextLineDataset(_Files):
    """The lines of text files, without their ends."""

    def __init__(
        self,
        filenames: Any,
        compression_type: Any = None,
        buffer_size: Any = None,
        num_parallel_reads: Any = None,
        name: Any = None,
    ) -> None:
        if compression_of(compression_type):
            raise OptionError("compressed text files are not mirrored")
        super().__init__(filenames, _lines, num_parallel_reads)


def _lines(path: str) -> Iterator[String]:
    source = open_source(path)
    try:
        with source.file() as file:
            for line in file:
                yield String(line.removesuffix(b"\n").removesuffix(b"\r"))
    finally:
        source.close()


class FixedLengthRecordDataset(_Files):
    """Pieces of one length out of binary files."""

    def __init__(
        self,
        filenames: Any,
        record_bytes: Any,
        header_bytes: Any = None,
        footer_bytes: Any = None,
        buffer_size: Any = None,
        compression_type: Any = None,
        num_parallel_reads: Any = None,
        name: Any = None,
    ) -> None:
        if compression_of(compression_type):
            raise OptionError("compressed files of pieces are not mirrored")
        size, head, foot = int(record_bytes), int(header_bytes or 0), int(footer_bytes or 0)
        if size < 1 or head < 0 or foot < 0:
            raise OptionError("record_bytes must be at least 1, header_bytes and footer_bytes at least 0")

        def read(path: str) -> Iterator[String]:
            source = open_source(path)
            try:
                room = source.size - head - foot
                if room < 0 or room % size:
                    raise OptionError(f"{source.size} bytes are not a whole number of records", path=path)
                for at in range(head, head + room, size):
                    yield String(source.view(at, size))
            finally:
                source.close()

        super().__init__(filenames, read, num_parallel_reads)
