"""Safetensors, named tensors behind a JSON header.

The file is eight bytes with the length of the header, the header, and the values of all tensors one after
another, without gaps. The header is a JSON object: name → ``dtype``, ``shape``, ``data_offsets`` (from the
end of the header on); ``__metadata__`` is text about the model. There are no checksums. We check, as the
reference does, that the tensors cover the file exactly.

A model in several files has a ``model.safetensors.index.json`` beside them; open that one.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from typing import Any, ClassVar

from ..data.tensors import TENSORS
from ..data.writer import WriteOptions
from ..errors import DamagedError, SchemaError, exceptions_as, located
from ..schema import Schema
from ..storage import Source, open_source
from .base.format import Capabilities, Format, Probe
from .base.tensors import BITS, Entry, TensorReader, TensorWriter, indexed, read_parts

INDEX = ".safetensors.index.json"
METADATA = "__metadata__"
# The reference reads no longer header.
MAX_HEADER_BYTES = 100_000_000
# How a JSON object begins.
OBJECT = re.compile(rb"\{\s*[\"}]")
COPIED_BYTES = 16 << 20
DTYPES = {
    "BOOL": "bool", "U8": "uint8", "U16": "uint16", "U32": "uint32", "U64": "uint64",
    "I8": "int8", "I16": "int16", "I32": "int32", "I64": "int64",
    "F16": "float16", "BF16": "bfloat16", "F32": "float32", "F64": "float64", "C64": "complex64",
    "F8_E4M3": "float8_e4m3fn", "F8_E5M2": "float8_e5m2", "F8_E8M0": "float8_e8m0fnu",
    "F8_E4M3FNUZ": "float8_e4m3fnuz", "F8_E5M2FNUZ": "float8_e5m2fnuz",
    "F6_E2M3": "float6_e2m3fn", "F6_E3M2": "float6_e3m2fn", "F4": "float4_e2m1fn",
}  # fmt: skip
NAMES = {name: theirs for theirs, name in DTYPES.items()}


class SafetensorsReader(TensorReader):
    """Reads .safetensors files, and models in several of them by their .safetensors.index.json."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.metadata = {}
        sources: list[Source] = []

        def read_part(file: str) -> list[Entry]:
            sources.append(open_source(file))
            entries, metadata = read_header(sources[-1])
            self.metadata = {**metadata, **self.metadata}
            return entries

        entries = read_parts(path, read_part) if path.endswith(INDEX) else read_part(path)
        self._accept(path, entries, sources)

    def facts(self) -> dict[str, object]:
        facts = super().facts()
        if self.path.endswith(INDEX):
            facts["files"] = len(self._sources)
        return facts | ({"metadata": dict(self.metadata)} if self.metadata else {})


def read_header(source: Source) -> tuple[list[Entry], Mapping[str, str]]:
    """The tensors of one file, and its metadata; DamagedError unless they cover it exactly."""
    with located(path=source.path):
        return _read_header(source)


def _read_header(source: Source) -> tuple[list[Entry], Mapping[str, str]]:
    size = int.from_bytes(source.view(0, 8).tobytes(), "little")
    if size > MAX_HEADER_BYTES:
        raise DamagedError(
            f"it promises a header of {size} bytes, and {MAX_HEADER_BYTES} is the most", offset=0
        )
    text = source.view(8, size).tobytes()
    if text[:1] != b"{":
        raise DamagedError("the header is no JSON object", offset=8)
    with exceptions_as(DamagedError, "the header is damaged", ValueError, RecursionError, offset=8):
        header = json.loads(text.decode(), object_pairs_hook=_unique)
    metadata = header.pop(METADATA, {})
    if metadata is None:
        metadata = {}
    if not isinstance(metadata, dict) or not all(isinstance(value, str) for value in metadata.values()):
        raise DamagedError("the metadata is not text by name", offset=8)
    first = 8 + size
    entries = [_entry(source.path, name, description, first) for name, description in header.items()]
    offset = first
    for entry in sorted(entries, key=lambda entry: (entry.where[1], entry.where[2])):  # type: ignore[index]
        assert isinstance(entry.where, tuple)
        if entry.where[1] != offset:
            fault = "overlap" if entry.where[1] < offset else "leave a gap"
            raise DamagedError(f"the tensors {fault} before {entry.name!r}", offset=offset)
        offset += entry.where[2]
    if offset != source.size:
        raise DamagedError(f"the tensors end here, and the file at {source.size}", offset=offset)
    return entries, metadata


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) < len(pairs):
        raise ValueError("a name stands in it twice")
    return result


def _entry(file: str, name: str, description: Any, first: int) -> Entry:
    try:
        dtype, shape, (start, end) = description["dtype"], description["shape"], description["data_offsets"]
        good = isinstance(shape, list) and all(
            type(size) is int and size >= 0 for size in (*shape, start, end)
        )
    except (TypeError, KeyError, ValueError):
        good = False
    if not good or not isinstance(dtype, str) or end < start:
        raise DamagedError(
            f"the header does not say where {name[:200]!r} is: {str(description)[:200]}", offset=8
        )
    if dtype not in DTYPES:
        raise SchemaError(f"tensor {name[:200]!r} has the dtype {dtype[:40]!r}, which is not known here")
    if math.prod(shape) * BITS[DTYPES[dtype]] % 8:
        raise DamagedError(f"tensor {name[:200]!r}: {dtype} {shape} does not fill its last byte")
    return Entry(name, DTYPES[dtype], tuple(shape), (file, first + start, end - start))


class SafetensorsWriter(TensorWriter):
    """Writes one .safetensors file. ``metadata``: text by name, for the header."""

    dtypes = tuple(NAMES)
    max_header_bytes: ClassVar[int] = MAX_HEADER_BYTES
    elsewhere: ClassVar[str] = "npz and pytorch hold other dtypes"

    def __init__(
        self,
        path: str,
        schema: Schema,
        options: WriteOptions,
        *,
        metadata: Mapping[str, str] | None = None,
    ) -> None:
        self._metadata = self._checked_metadata(path, metadata)
        super().__init__(path, schema, options)

    def _check(self, name: str, dtype: str, shape: tuple[int, ...]) -> None:
        if name == METADATA:
            raise SchemaError(f"a tensor cannot be called {METADATA}")
        if math.prod(shape) * BITS[dtype] % 8:
            raise SchemaError(f"tensor {name!r}: {dtype} {list(shape)} does not fill its last byte")

    def _finish(self) -> str:
        # Wide values first: then everything is aligned, though there are no gaps.
        order = sorted(self.entries, key=lambda entry: -BITS[entry.dtype])
        starts, offset = {}, 0
        for entry in order:
            starts[entry.name] = offset
            offset += entry.size
        header: dict[str, Any] = {METADATA: self._metadata} if self._metadata else {}
        for entry in self.entries:
            start = starts[entry.name]
            header[entry.name] = {
                "dtype": NAMES[entry.dtype],
                "shape": entry.shape,
                "data_offsets": [start, start + entry.size],
            }
        text = json.dumps(header, ensure_ascii=False, separators=(",", ":")).encode()
        text += b" " * (-len(text) % 8)
        if len(text) > self.max_header_bytes:
            raise SchemaError(
                f"the header would have {len(text)} bytes, and {self.max_header_bytes} is the most",
                path=self.path,
            )
        out = self.partial.spool("safetensors")
        out.resize(0)
        out.write(len(text).to_bytes(8, "little") + text)
        for entry in order:
            for done in range(0, entry.size, COPIED_BYTES):
                out.write(self._data.read_at(min(COPIED_BYTES, entry.size - done), entry.start + done))
        return "safetensors"


def sniff(probe: Probe) -> bool:
    """A header of JSON, as long as it says; or an index by its name."""
    head = probe.head
    if probe.path.endswith(INDEX):
        return head.lstrip()[:1] == b"{"
    size = int.from_bytes(head[:8], "little")
    return 2 <= size <= min(MAX_HEADER_BYTES, probe.size - 8) and OBJECT.match(head, 8) is not None


FORMAT = Format(
    name="safetensors",
    title="Safetensors",
    suffixes=(".safetensors", ".safetensors.index.json"),
    spec="https://huggingface.co/docs/safetensors/index",
    reader=SafetensorsReader,
    writer=SafetensorsWriter,
    sniff=sniff,
    only=TENSORS,
    parts=indexed(INDEX),
    notes="named tensors, used in place; models in several files open by their index",
    can=Capabilities(
        random_access=True,
        memory_map=True,
        column_pruning=True,
        remote_ranges=True,
        keeps_schema=True,
        streaming_write=True,
        splittable=True,
        max_size="100 MB of names and shapes",
        metadata=True,
        ecosystem=("safetensors", "Transformers", "Diffusers", "PyTorch", "JAX"),
    ),
)
