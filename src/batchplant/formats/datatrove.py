"""Token files of datatrove: ``NAME.ds`` and, beside it, ``NAME.ds.index``. Little-endian.

The file is tokens and nothing else, uint16 or uint32; the index has for each document the u64 number of
tokens up to its end. A sample is a document. ``NAME.ds.metadata`` names the tokenizer and the bytes of a
token (``gpt2|2``), then the number of tokens; it may be missing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np

from ..data.reader import Reader
from ..data.writer import WriteOptions
from ..errors import DamagedError, on_error
from ..schema import Field, Schema, Tensor
from ..schema.columns import I64, Columns, as_bytes
from ..storage import beside, open_source, read_beside
from ..storage.spans import Spans
from .base.format import Capabilities, Format
from .base.tokens import TOKENS, TokenWriter, check_runs, checked_dtype

INDEX, METADATA = "{name}.index", "{name}.metadata"
DTYPES = ("uint16", "uint32")
# As what other tokens are stored, if every one of them fits.
STORED = {"uint8": "uint16", "int16": "uint16", "int32": "uint32", "int64": "uint32", "uint64": "uint32"}


class DatatroveReader(Reader):
    """Reads .ds files."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._source = open_source(path)
        self._index = open_source(beside(path, INDEX))
        with on_error(self.close, path=path):
            self.length, remainder = divmod(self._index.size, 8)
            if remainder:
                raise DamagedError("it is no whole number of u64", path=self._index.path)
            tokens = int(self._index.array("<u8", self._index.size - 8, 1)[0]) if self.length else 0
            head = (read_beside(beside(path, METADATA)) or b"").partition(b"\n")[0]
            self._tokenizer, _, width = head.decode("utf-8", "replace").rpartition("|")
            widths = [size for size in (2, 4) if tokens * size == self._source.size]
            if not widths:
                raise DamagedError(f"{tokens} tokens do not take {self._source.size} bytes")
            self._width = int(width) if width in map(str, widths) else widths[0]
        self.schema = Schema({TOKENS: Tensor(f"uint{8 * self._width}", (None,))})

    def _runs(self, indices: I64) -> tuple[I64, I64]:
        ends = self._index.gather_rows(0, 8, 8, indices).view("<u8").reshape(-1)
        starts = np.zeros(len(indices), dtype=np.uint64)
        later = indices > 0
        starts[later] = self._index.gather_rows(0, 8, 8, indices[later] - 1).view("<u8").reshape(-1)
        wrong = (ends < starts) | (ends > self._source.size)
        if wrong.any():
            row = int(np.argmax(wrong))
            message = f"its tokens would be {starts[row]} to {ends[row]}"
            raise DamagedError(message, path=self.path, sample=int(indices[row]))
        first, size = starts.astype(np.int64), (ends - starts).astype(np.int64)
        check_runs(self, self._source, indices, first * self._width, size * self._width)
        return first * self._width, size * self._width

    def _read(self, indices: I64, fields: Sequence[str]) -> Columns:
        return Columns((name, self._source.gather(*self._runs(indices))) for name in fields)

    def _spans(self, field: str, indices: I64) -> Spans | None:
        return Spans([self._source], *self._runs(indices))

    def facts(self) -> dict[str, object]:
        return {"tokens": self._source.size // self._width, "tokenizer": self._tokenizer or "not known"}

    def close(self) -> None:
        self._source.close()
        self._index.close()


class DatatroveWriter(TokenWriter):
    """Writes .ds files. ``dtype``: as what tokens are stored; ``tokenizer``: its name, for the metadata."""

    side_cars: ClassVar[tuple[str, ...]] = (INDEX, METADATA)

    def __init__(
        self,
        path: str,
        schema: Schema,
        options: WriteOptions,
        *,
        dtype: str | None = None,
        tokenizer: str = "Unknown Tokenizer",
    ) -> None:
        field = schema[TOKENS]
        assert isinstance(field, Tensor)
        self._tokenizer = tokenizer
        name = dtype or STORED.get(field.dtype, field.dtype)
        super().__init__(path, schema, options, checked_dtype(name, DTYPES, path))

    @classmethod
    def refuses(cls, field: Field) -> str | None:
        if isinstance(field, Tensor) and field.dtype not in (*DTYPES, *STORED):
            return f"datatrove has no tokens of {field.dtype}"
        return super().refuses(field)

    def _begin(self, state: dict[str, Any] | None) -> None:
        self._file, self._ends = self.partial.spool("tokens"), self.partial.spool("ends")

    def _write(self, columns: Columns) -> None:
        tokens = columns.ragged(TOKENS)
        ends = (self._file.size + tokens.offsets[1:]) // self._stored.itemsize
        self._ends.write(as_bytes(ends.astype("<u8")))
        self._file.write(tokens.data)

    def _finish(self) -> str:
        count = self._file.size // self._stored.itemsize
        metadata = self.partial.spool("metadata")
        metadata.resize(0)
        metadata.write(f"{self._tokenizer}|{self._stored.itemsize}\n{count}\n{count} T".encode())
        return "tokens"

    def _beside(self) -> list[tuple[str, str]]:
        return [("ends", INDEX), ("metadata", METADATA)]


FORMAT = Format(
    name="datatrove",
    title="datatrove tokens",
    suffixes=(".ds",),
    spec="https://github.com/huggingface/datatrove",
    reader=DatatroveReader,
    writer=DatatroveWriter,
    kinds=(Tensor,),
    fields={TOKENS: Tensor("uint16", (None,))},
    notes="documents of uint16 or uint32 tokens and an index of their ends",
    can=Capabilities(
        random_access=True,
        memory_map=True,
        remote_ranges=True,
        streaming_write=True,
        splittable=True,
        ecosystem=("datatrove", "nanotron"),
    ),
)
