"""What stands where in an .idx file, read entry by entry: an index of a billion sequences is never copied."""

from __future__ import annotations

import numpy as np

from ...columns import I64, U8
from ...errors import DamagedError
from ...storage import MappedSource, Source

MAGIC = b"MMIDIDX\0\0"
VERSION = 1
# Where the arrays begin.
ARRAYS = 34
IDX, BIN = "{stem}.idx", "{stem}.bin"
DOCUMENT, MODE = "document", "mode"
CODES = {
    "uint8": 1, "int8": 2, "int16": 3, "int32": 4, "int64": 5, "float64": 6, "float32": 7, "uint16": 8
}  # fmt: skip
DTYPES = {code: name for name, code in CODES.items()}
# Entries that are taken one by one out of a mapped index.
FEW = 64
# An index on a server that is no longer than this is fetched as a whole.
WHOLE = 64 << 20


class Index:
    """The arrays of an .idx file; the header is checked, what the arrays say is not."""

    def __init__(self, source: Source) -> None:
        self.source = source
        head = source.view(0, min(ARRAYS, source.size)).tobytes()
        if not head.startswith(MAGIC):
            raise DamagedError("it does not begin with MMIDIDX: it is no index of Megatron's", offset=0)
        if len(head) < ARRAYS:
            raise DamagedError("it ends inside of its header", offset=len(head))
        version, code = int.from_bytes(head[9:17], "little"), head[17]
        if version != VERSION:
            raise DamagedError(f"it has version {version}, and only {VERSION} is known", offset=9)
        if code not in DTYPES:
            raise DamagedError(f"{code} is no code of a dtype", offset=17)
        self.dtype = np.dtype(DTYPES[code]).newbyteorder("<")
        self.sequences = int.from_bytes(head[18:26], "little")
        self.entries = int.from_bytes(head[26:34], "little")
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
        self._bytes: U8 | None = None

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
        """Where an entry of the documents stands."""
        return self._documents + 8 * entry

    def modes(self, rows: I64) -> I64:
        return self._some("i1", self._modes, rows)

    def document_of(self, rows: I64) -> I64:
        """The last document that begins at or before each sequence; damaged lists give anything."""
        low, high = np.zeros(len(rows), dtype=np.int64), np.full(len(rows), self.entries, dtype=np.int64)
        # A search of our own: NumPy's would copy the whole array, as it is not aligned.
        for _ in range(self.entries.bit_length() + 1):
            middle = (low + high) // 2
            before = self.documents(np.minimum(middle, self.entries - 1)) <= rows
            low, high = np.where(before & (low < high), middle + 1, low), np.where(before, high, middle)
        return low - 1

    def _some(self, dtype: str, start: int, rows: I64) -> I64:
        kind = np.dtype(dtype)
        mapped = isinstance(self.source, MappedSource) and len(rows) < FEW
        if not mapped and (isinstance(self.source, MappedSource) or self.source.size > WHOLE):
            found = self.source.gather_rows(start, kind.itemsize, kind.itemsize, rows).reshape(-1).view(kind)
            return found.astype(np.int64)
        count = self.entries if start == self._documents else self.sequences
        if mapped:
            # Of a mixture of thousands of files, each is asked for a few.
            entries = self.source.view(start, kind.itemsize * count).view(kind)
        else:
            if self._bytes is None:
                self._bytes = self.source.view(0, self.source.size)
            entries = self._bytes[start : start + kind.itemsize * count].view(kind)
        return entries[rows].astype(np.int64)
