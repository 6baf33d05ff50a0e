"""Layout of .idx files, read entry by entry: an index of a billion sequences is never copied."""

from __future__ import annotations

import functools
import struct

import numpy as np

from ...errors import DamagedError
from ...schema.columns import I64, U8
from ...storage import MappedSource, Source

MAGIC = b"MMIDIDX\0\0"
VERSION = 1
# Magic, version, code of the dtype, sequences, entries of documents; then the arrays begin.
HEADER = struct.Struct("<9sQBQQ")
ARRAYS = HEADER.size
# Offset and length of a sequence.
LAST = struct.Struct("<qi")
IDX, BIN = "{stem}.idx", "{stem}.bin"
DOCUMENT, MODE = "document", "mode"
CODES = {
    "uint8": 1, "int8": 2, "int16": 3, "int32": 4, "int64": 5, "float64": 6, "float32": 7, "uint16": 8
}  # fmt: skip
DTYPES = {code: np.dtype(name).newbyteorder("<") for name, code in CODES.items()}
# Entries of the documents that are looked at when it is opened, at either end.
LOOKED_AT = 1 << 9
COUNT = np.arange(LOOKED_AT, dtype="<i8")
# Entries that are taken one by one out of a mapped index.
FEW = 64
# An index on a server that is no longer than this is fetched as a whole.
WHOLE = 64 << 20


class Index:
    """The arrays of an .idx file; the header is checked, what the arrays say is not."""

    sequences: int
    entries: int

    def __init__(self, source: Source) -> None:
        self.source = source
        head = source.peek([(0, min(ARRAYS, source.size))])
        if not head.startswith(MAGIC):
            raise DamagedError("it does not begin with MMIDIDX: it is no index of Megatron's", offset=0)
        if len(head) < ARRAYS:
            raise DamagedError("it ends inside of its header", offset=len(head))
        _, version, code, self.sequences, self.entries = HEADER.unpack(head)
        if version != VERSION:
            raise DamagedError(f"it has version {version}, and only {VERSION} is known", offset=9)
        if code not in DTYPES:
            raise DamagedError(f"{code} is no code of a dtype", offset=17)
        self.dtype = DTYPES[code]
        self._lengths = ARRAYS
        self._offsets = self._lengths + 4 * self.sequences
        self._documents = self._offsets + 8 * self.sequences
        self._modes = self._documents + 8 * self.entries
        if source.size not in (self._modes, self._modes + self.sequences):
            raise DamagedError(
                f"{self.sequences} sequences and {self.entries} entries of documents do not take "
                f"{source.size} bytes",
                offset=18,
            )
        self.has_modes = source.size > self._modes

    def lengths(self, rows: I64) -> I64:
        """In tokens."""
        return self._some("<i4", self._lengths, rows)

    def offsets(self, rows: I64) -> I64:
        """In bytes of the .bin."""
        return self._some("<i8", self._offsets, rows)

    def documents(self, rows: I64) -> I64:
        """With which sequence documents begin."""
        return self._some("<i8", self._documents, rows)

    def documents_at(self, entry: int) -> int:
        """Offset of an entry of the documents."""
        return self._documents + 8 * entry

    def modes(self, rows: I64) -> I64:
        return self._some("i1", self._modes, rows)

    def ends(self) -> tuple[bool, int, int]:
        """True if documents are one sequence each, as far as number and ends of their list tell; offset and
        length of the last sequence, 0 where there is none. All that opening needs, in one read."""
        few, some = min(LOOKED_AT, self.entries), min(self.sequences, 1)
        behind, last = self.entries - few, self.sequences - some
        runs = [
            (self._documents, 8 * few), (self._documents + 8 * behind, 8 * few),
            (self._offsets + 8 * last, 8 * some), (self._lengths + 4 * last, 4 * some),
        ]  # fmt: skip
        if self._is_gathered:
            data = self.source.peek(runs)
        else:
            data = b"".join(self._whole[start : start + size].tobytes() for start, size in runs)
        listed = COUNT[:few].tobytes() + (COUNT[:few] + behind).tobytes()
        one_each = self.entries == self.sequences + 1 and data[: len(listed)] == listed
        return one_each, *(LAST.unpack_from(data, len(listed)) if some else (0, 0))

    def document_of(self, rows: I64) -> I64:
        """The last document that begins at or before each sequence; damaged lists give anything."""
        low, high = np.zeros(len(rows), dtype=np.int64), np.full(len(rows), self.entries, dtype=np.int64)
        # A search of our own: NumPy's would copy the whole array, as it is not aligned.
        for _ in range(self.entries.bit_length() + 1):
            middle = (low + high) // 2
            before = self.documents(np.minimum(middle, self.entries - 1)) <= rows
            low, high = np.where(before & (low < high), middle + 1, low), np.where(before, high, middle)
        return low - 1

    @property
    def _is_gathered(self) -> bool:
        """True if what is asked for is read; else all of it is fetched once."""
        return isinstance(self.source, MappedSource) or self.source.size > WHOLE

    @functools.cached_property
    def _whole(self) -> U8:
        return self.source.view(0, self.source.size)

    def _some(self, dtype: str, start: int, rows: I64) -> I64:
        kind = np.dtype(dtype)
        count = self.entries if start == self._documents else self.sequences
        if not self._is_gathered:
            entries = self._whole[start : start + kind.itemsize * count].view(kind)
        elif len(rows) < FEW and isinstance(self.source, MappedSource):
            # Of a mixture of thousands of files, each is asked for a few.
            entries = self.source.array(kind, start, count)
        else:
            found = self.source.gather_rows(start, kind.itemsize, kind.itemsize, rows).reshape(-1).view(kind)
            return found.astype(np.int64)
        return entries[rows].astype(np.int64)
