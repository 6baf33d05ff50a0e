"""GGUF, the models of llama.cpp: named tensors behind a header of typed keys. Read only. Little-endian.

``GGUF``, u32 version (2 or 3), u64 tensors, u64 keys. A key is its name, u32 type and value. Of a tensor
there is its name, u32 axes, u64 sizes (the innermost first), u32 type, u64 offset from the first tensor. A
string is u64 bytes and UTF-8. Tensors begin at multiples of ``general.alignment``, one after another.

Quantised tensors are stored in blocks of 32 to 256 values. They are read as they are: as uint8, with the
bytes of a row for the innermost axis, as gguf's own reader has them. ``types`` and ``shapes`` of the reader
name the types and the sizes in values; the keys are its ``metadata``, as text.
"""

from __future__ import annotations

import json
import math
import struct
from collections import Counter
from typing import Any

from ..data.tensors import TENSORS
from ..errors import DamagedError, SchemaError, exceptions_as, on_error, shortened
from ..storage import Source, open_source
from .base.format import Capabilities, Format, Probe
from .base.tensors import BITS, Entry, TensorReader

MAGIC = b"GGUF"
VERSIONS = (2, 3)
MAX_HEADER_BYTES = 256 << 20
# Read at a time: first few bytes, then as many as before.
MIN_PART_BYTES, MAX_PART_BYTES = 16 << 10, 1 << 20
MAX_AXES = 8
# Arrays within arrays.
MAX_DEPTH = 4
ALIGNMENT = "general.alignment"
# Values of keys, by the number of their type.
SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
STRING, ARRAY = 8, 9
# Least bytes of a value: a string has a length, an array a type and a length.
MIN_BYTES = {kind: struct.calcsize(code) for kind, code in SCALARS.items()} | {STRING: 8, ARRAY: 12}
DTYPES = {
    0: "float32", 1: "float16", 24: "int8", 25: "int16", 26: "int32", 27: "int64", 28: "float64",
    30: "bfloat16",
}  # fmt: skip
# Types in blocks: name, values and bytes of a block.
QUANTISED = {
    2: ("Q4_0", 32, 18), 3: ("Q4_1", 32, 20), 6: ("Q5_0", 32, 22), 7: ("Q5_1", 32, 24), 8: ("Q8_0", 32, 34),
    9: ("Q8_1", 32, 40), 10: ("Q2_K", 256, 84), 11: ("Q3_K", 256, 110), 12: ("Q4_K", 256, 144),
    13: ("Q5_K", 256, 176), 14: ("Q6_K", 256, 210), 15: ("Q8_K", 256, 292), 16: ("IQ2_XXS", 256, 66),
    17: ("IQ2_XS", 256, 74), 18: ("IQ3_XXS", 256, 98), 19: ("IQ1_S", 256, 50), 20: ("IQ4_NL", 32, 18),
    21: ("IQ3_S", 256, 110), 22: ("IQ2_S", 256, 82), 23: ("IQ4_XS", 256, 136), 29: ("IQ1_M", 256, 56),
    34: ("TQ1_0", 256, 54), 35: ("TQ2_0", 256, 66), 39: ("MXFP4", 32, 17), 40: ("NVFP4", 64, 36),
    41: ("Q1_0", 128, 18),
}  # fmt: skip


class GgufReader(TensorReader):
    """Reads .gguf files. Quantised tensors are uint8: their blocks as they are stored."""

    def __init__(self, path: str) -> None:
        self.path = path
        source = open_source(path)
        with on_error(source.close, path=path):
            header = _Header(source)
            entries = self._read_header(header)
            self._accept(path, entries, [source])

    def _read_header(self, header: _Header) -> list[Entry]:
        version, tensors, keys = header.unpack("IQQ")
        if version not in VERSIONS:
            order = "; big-endian files are not read" if not version & 0xFFFF else ""
            raise SchemaError(f"GGUF of version {version:#x} is not read, but 2 and 3{order}")
        header.check_count(keys, MIN_BYTES[STRING] + 4)
        self.metadata, values = {}, {}
        for _ in range(keys):
            name = header.text()
            if name in values:
                raise DamagedError(f"the key {shortened(name)!r} stands in it twice")
            values[name] = value = header.value(header.unpack("I")[0])
            self.metadata[name] = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        alignment = values.get(ALIGNMENT, 32)
        if type(alignment) is not int or alignment <= 0 or alignment & (alignment - 1):
            raise DamagedError(f"{ALIGNMENT} is {str(alignment)[:40]!r}, not a power of two")
        # Name, axes, type, offset.
        header.check_count(tensors, 24)
        infos = [header.tensor() for _ in range(tensors)]
        self.types = {name: DTYPES.get(kind) or QUANTISED[kind][0] for name, kind, *_ in infos}
        self.shapes = {name: shape for name, _, shape, _ in infos}
        first = end = -(-header.offset // alignment) * alignment
        entries = []
        for name, kind, shape, offset in infos:
            entry = self._entry(name, kind, shape, first + offset)
            if first + offset != end:
                fault = "overlap" if first + offset < end else "leave a gap"
                raise DamagedError(f"the tensors {fault} before {shortened(name)!r}", offset=first + offset)
            end += -(-entry.size // alignment) * alignment
            entries.append(entry)
        return entries

    def _entry(self, name: str, kind: int, shape: tuple[int, ...], start: int) -> Entry:
        if kind in DTYPES:
            dtype = DTYPES[kind]
            return Entry(name, dtype, shape, (self.path, start, math.prod(shape) * BITS[dtype] // 8))
        title, values, size = QUANTISED[kind]
        if not shape or shape[-1] % values:
            raise DamagedError(f"tensor {shortened(name)!r}: rows of {shape[-1:]} are no blocks of {title}")
        packed = (*shape[:-1], shape[-1] // values * size)
        return Entry(name, "uint8", packed, (self.path, start, math.prod(packed)))

    def facts(self) -> dict[str, object]:
        types = Counter(self.types.values())
        brief = {name: text if len(text) <= 200 else f"{text[:200]}…" for name, text in self.metadata.items()}
        return {
            **super().facts(),
            "parameters": sum(map(math.prod, self.shapes.values())),
            "types": dict(types.most_common()),
            "metadata": brief,
        }


class _Header:
    """Reads the header from its beginning to its end; no length is believed before it is in the file."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._end = min(source.size, MAX_HEADER_BYTES)
        self._data, self._start, self._at = b"", 0, 0
        if self.take(4) != MAGIC:
            raise DamagedError("it does not begin with GGUF", offset=0)

    @property
    def offset(self) -> int:
        return self._start + self._at

    def take(self, size: int) -> bytes:
        if self._at + size > len(self._data):
            if size > self._end - self.offset:
                raise DamagedError(f"the header needs {size} more bytes", offset=self.offset)
            self._start, self._at = self.offset, 0
            part = max(size, MIN_PART_BYTES, min(self._start, MAX_PART_BYTES))
            self._data = self._source.view(self._start, min(part, self._end - self._start)).tobytes()
        self._at += size
        return self._data[self._at - size : self._at]

    def unpack(self, codes: str) -> tuple[Any, ...]:
        record = f"<{codes}"
        return struct.unpack(record, self.take(struct.calcsize(record)))

    def text(self) -> str:
        data = self.take(int.from_bytes(self.take(8), "little"))
        with exceptions_as(DamagedError, "a string is no UTF-8", ValueError, offset=self.offset - len(data)):
            return data.decode()

    def check_count(self, count: int, least: int) -> None:
        if count * least > self._end - self.offset:
            raise DamagedError(f"{count} entries do not fit into the header", offset=self.offset)

    def value(self, kind: int, depth: int = 0) -> Any:
        if kind == STRING:
            return self.text()
        if kind in SCALARS:
            return self.unpack(SCALARS[kind])[0]
        if kind != ARRAY or depth == MAX_DEPTH:
            raise DamagedError(f"a value has the type {kind}, {depth} arrays deep", offset=self.offset)
        kind, count = self.unpack("IQ")
        self.check_count(count, MIN_BYTES.get(kind, 1))
        if kind in SCALARS:
            return list(struct.unpack(f"<{count}{SCALARS[kind]}", self.take(count * MIN_BYTES[kind])))
        return [self.value(kind, depth + 1) for _ in range(count)]

    def tensor(self) -> tuple[str, int, tuple[int, ...], int]:
        """Return name, type, shape and offset."""
        name, axes = self.text(), self.unpack("I")[0]
        if axes > MAX_AXES:
            raise DamagedError(f"tensor {shortened(name)!r} has {axes} axes", offset=self.offset)
        *sizes, kind, offset = self.unpack("Q" * axes + "IQ")
        if kind not in DTYPES and kind not in QUANTISED:
            raise SchemaError(f"tensor {shortened(name)!r} has the type {kind}, which is not known here")
        return name, kind, tuple(reversed(sizes)), offset


def sniff(probe: Probe) -> bool:
    return probe.head.startswith(MAGIC)


FORMAT = Format(
    name="gguf",
    title="GGUF",
    suffixes=(".gguf",),
    spec="https://github.com/ggml-org/ggml/blob/master/docs/gguf.md",
    reader=GgufReader,
    sniff=sniff,
    only=TENSORS,
    notes="named tensors, quantised ones as blocks of bytes, used in place",
    can=Capabilities(
        random_access=True,
        memory_map=True,
        column_pruning=True,
        remote_ranges=True,
        splittable=True,
        ecosystem=("llama.cpp", "gguf", "Transformers", "Ollama"),
    ),
)
