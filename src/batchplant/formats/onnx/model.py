"""Contents of an ONNX model: tensors, the locations of their values, and facts for `batchplant info`.

A model is a protobuf message. Only the messages that matter here are looked into, and values are left where
they are.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np

from ...codecs import protobuf
from ...codecs.protobuf import BYTES, VARINT, Part, messages, name, parts, text
from ...errors import DamagedError
from ...schema.columns import U8, as_bytes
from ..base.tensors import BITS

DTYPES = {
    **{1: "float32", 2: "uint8", 3: "int8", 4: "uint16", 5: "int16", 6: "int32", 7: "int64", 9: "bool"},
    **{10: "float16", 11: "float64", 12: "uint32", 13: "uint64", 14: "complex64", 15: "complex128"},
    **{16: "bfloat16", 17: "float8_e4m3fn", 18: "float8_e4m3fnuz", 19: "float8_e5m2", 20: "float8_e5m2fnuz"},
    **{21: "uint4", 22: "int4", 23: "float4_e2m1fn", 24: "float8_e8m0fnu", 25: "uint2", 26: "int2"},
    **{27: "float6_e2m3fn", 28: "float6_e3m2fn"},
}
STRING = 8
# Fields with values one by one: the dtype of fixed sizes, or None for varints.
FLOATS, INTS, LONGS, DOUBLES, UNSIGNED = 4, 5, 7, 10, 11
LISTS: dict[int, str | None] = {FLOATS: "<f4", INTS: None, LONGS: None, DOUBLES: "<f8", UNSIGNED: None}
HELD_BY = {
    **dict.fromkeys(("float32", "complex64"), FLOATS),
    **dict.fromkeys(("float64", "complex128"), DOUBLES),
    **dict.fromkeys(("uint32", "uint64"), UNSIGNED),
    "int64": LONGS,
}
# The same as protobuf's own limit of 100 messages: a graph in a graph is three.
DEEPEST = 33
MOST_DIMENSIONS = 254


@dataclasses.dataclass
class Tensor:
    """A TensorProto. ``raw``: where its bytes lie; ``values``: the fields with values one by one."""

    offset: int
    name: str = ""
    code: int = 0
    shape: tuple[int, ...] = ()
    raw: tuple[int, int] | None = None
    values: list[Part] = dataclasses.field(default_factory=list)
    external: dict[str, str] | None = None

    @property
    def dtype(self) -> str:
        return DTYPES.get(self.code) or ("string" if self.code == STRING else f"type {self.code}")

    @property
    def place(self) -> tuple[int, int] | None:
        """Start and end of its bytes, where they lie in the model as they are; else None."""
        if self.values and self.raw is None:
            [*_, one] = self.values
            fixed = one.kind == BYTES and LISTS[one.number] is not None
            right = HELD_BY.get(self.dtype, INTS) == one.number
            return (one.start, one.end) if fixed and right and len(self.values) == 1 else None
        if self.raw is None and self.external is None and 0 in self.shape:
            return self.offset, self.offset
        return self.raw


class Model:
    """A parsed model. ``constants``: the values of Constant nodes are tensors too."""

    def __init__(self, data: memoryview, *, constants: bool = False) -> None:
        self._data = data
        self._constants = constants
        self.tensors: list[Tensor] = []
        self.sparse: dict[str, str] = {}
        self.operators: Counter[str] = Counter()
        self.inputs: dict[str, str] = {}
        self.outputs: dict[str, str] = {}
        self.facts: dict[str, Any] = {}
        self._opsets: dict[str, int] = {}
        self.metadata: dict[str, str] = {}
        self._functions: dict[str, int] = {}
        self._texts: dict[int, str] = {}
        graphs = 0
        for part in parts(data, 0, len(data)):
            graphs += part[:2] == (7, BYTES)
            self._take(part)
        if not graphs:
            raise DamagedError("it has no graph, or is not an ONNX model")
        own = {tensor.name for tensor in self.tensors}
        # Up to IR version 3 every initialiser is listed among the inputs.
        self.inputs = {name: kind for name, kind in self.inputs.items() if name not in own}

    def _take(self, part: Part) -> None:
        data = self._data
        match part.number, part.kind:
            case 1, 0:
                self.facts["ir version"] = part.value
            case 5, 0:
                self.facts["model version"] = protobuf.signed(part.value)
            case ((2 | 3 | 4 | 6), 2):
                self._texts[part.number] = text(data, part)
            case 7, 2:
                self._graph(part.start, part.end, "", 0)
            case 8, 2:
                domain, version = "", 0
                for one in parts(data, part.start, part.end):
                    if one[:2] == (1, BYTES):
                        domain = text(data, one)
                    elif one[:2] == (2, VARINT):
                        version = protobuf.signed(one.value)
                self._opsets[domain or "ai.onnx"] = version
            case 14, 2:
                key, value = _pair(data, part.start, part.end)
                self.metadata[key] = value
            case 25, 2:
                self._function(part.start, part.end)

    def _function(self, start: int, end: int) -> None:
        title, domain, nodes = "", "", 0
        for part in parts(self._data, start, end):
            if part[:2] == (1, BYTES):
                title = text(self._data, part)
            elif part[:2] == (10, BYTES):
                domain = text(self._data, part)
            nodes += part[:2] == (7, BYTES)
        self._functions[f"{domain}.{title}" if domain else title] = nodes

    def _graph(self, start: int, end: int, prefix: str, depth: int) -> None:
        if depth > DEEPEST:
            raise DamagedError(f"graphs are nested more than {DEEPEST} deep", offset=start)
        data, labels = self._data, set[str]()
        nodes = 0
        for part in parts(data, start, end):
            if part.kind != BYTES:
                continue
            match part.number:
                case 1:
                    self._node(part, prefix, nodes, labels, depth)
                    nodes += 1
                case 2:
                    if not depth:
                        self.facts["graph"] = text(data, part)
                case 5:
                    tensor = read_tensor(data, part.start, part.end)
                    tensor.name = prefix + tensor.name
                    self.tensors.append(tensor)
                case 11 | 12:
                    if not depth:
                        title, kind = _value_info(data, part.start, part.end)
                        (self.inputs if part.number == 11 else self.outputs)[title] = kind
                case 15:
                    self._sparse(part, prefix)

    def _sparse(self, part: Part, prefix: str) -> None:
        shape: list[int] = []
        values = None
        for one in parts(self._data, part.start, part.end):
            if one.number == 3:
                shape += _integers(self._data, one)
            elif one[:2] == (1, BYTES):
                values = read_tensor(self._data, one.start, one.end)
        if values is not None:
            count = values.shape[0] if values.shape else 1
            self.sparse[prefix + values.name] = f"{values.dtype} {_shown(shape)}, {count} values"

    def _node(self, part: Part, prefix: str, number: int, labels: set[str], depth: int) -> None:
        data = self._data
        title = kind = domain = output = ""
        attributes = []
        for attribute in parts(data, part.start, part.end):
            match attribute.number, attribute.kind:
                case 2, 2:
                    output = output or text(data, attribute)
                case 3, 2:
                    title = text(data, attribute)
                case 4, 2:
                    kind = text(data, attribute)
                case 5, 2:
                    attributes.append(attribute)
                case 7, 2:
                    domain = text(data, attribute)
        domain = "" if domain == "ai.onnx" else domain
        self.operators[f"{domain}.{kind}" if domain else kind] += 1
        # Nodes need no names, and those that they have need not differ.
        label = title if title and title not in labels else f"{kind}_{number}"
        labels.add(label)
        for attribute in attributes:
            self._attribute(
                attribute, f"{prefix}{label}", prefix + output if kind == "Constant" else "", depth
            )

    def _attribute(self, part: Part, label: str, constant: str, depth: int) -> None:
        data, title, graphs = self._data, "", []
        for graph in parts(data, part.start, part.end):
            match graph.number, graph.kind:
                case 1, 2:
                    title = text(data, graph)
                case 5, 2:
                    if self._constants and constant:
                        tensor = read_tensor(data, graph.start, graph.end)
                        tensor.name = constant
                        self.tensors.append(tensor)
                case ((6 | 11), 2):
                    graphs.append(graph)
        for number, graph in enumerate(graphs):
            inner = f"{label}.{title}" if len(graphs) == 1 else f"{label}.{title}_{number}"
            self._graph(graph.start, graph.end, f"{inner}.", depth + 1)

    def describe(self) -> dict[str, Any]:
        """Facts for info, without empty ones."""
        producer = " ".join(filter(None, (self._texts.get(2), self._texts.get(3))))
        strings = {tensor.name: _shown(tensor.shape) for tensor in self.tensors if tensor.code == STRING}
        found = {
            "producer": producer,
            "domain": self._texts.get(4),
            **self.facts,
            "opsets": self._opsets,
            "inputs": self.inputs,
            "outputs": self.outputs,
            "nodes": self.operators.total(),
            "operators": dict(self.operators.most_common()),
            "functions": self._functions,
            "metadata": self.metadata,
            "sparse tensors": self.sparse,
            "text tensors": strings,
        }
        return {name: value for name, value in found.items() if value or value == 0}


def read_tensor(data: memoryview, start: int, end: int) -> Tensor:
    """A TensorProto; its values stay where they are."""
    tensor = Tensor(start)
    shape: list[int] = []
    elsewhere, entries = False, {}
    for part in parts(data, start, end):
        match part.number, part.kind:
            case 1, _:
                shape += _integers(data, part)
                if len(shape) > MOST_DIMENSIONS:
                    raise DamagedError(f"a tensor of more than {MOST_DIMENSIONS} dimensions", offset=start)
            case 2, 0:
                tensor.code = part.value
            case 3, 2:
                raise DamagedError("a tensor in segments, which batchplant does not read", offset=start)
            case 8, 2:
                tensor.name = name(data, part)
            case 9, 2:
                tensor.raw = part.start, part.end
            case 13, 2:
                key, value = _pair(data, part.start, part.end)
                entries[key] = value
            case 14, 0:
                elsewhere = part.value == 1
            case number, _ if number in LISTS:
                tensor.values.append(part)
    if min(shape, default=0) < 0:
        raise DamagedError(f"a tensor of the shape {tuple(shape)}", offset=start)
    tensor.shape = tuple(shape)
    tensor.external = entries if elsewhere else None
    if tensor.raw is not None and tensor.values and tensor.raw[0] < tensor.raw[1]:
        raise DamagedError(f"the values of {tensor.name!r} are stored twice", offset=start)
    return tensor


def values_of(data: U8, tensor: Tensor) -> U8:
    """The bytes of a tensor whose values stand one by one."""
    wanted = HELD_BY.get(tensor.dtype, INTS)
    kind = LISTS[wanted]
    found = []
    for part in tensor.values:
        if part.number != wanted or (kind is not None and part.kind == VARINT):
            raise DamagedError(f"{tensor.dtype} values in the field of another type", offset=part.start)
        if part.kind == VARINT:
            found.append(np.array([part.value], dtype=np.uint64).view(np.int64))
        elif kind is None:
            found.append(protobuf.unpack(data[part.start : part.end], part.start))
        elif (part.end - part.start) % np.dtype(kind).itemsize:
            raise DamagedError("numbers of a wrong size", offset=part.start)
        else:
            found.append(data[part.start : part.end].view(kind))
    together = np.concatenate(found)
    if kind is not None:
        return as_bytes(together)
    if BITS[tensor.dtype] == 6:
        bits = np.unpackbits(together.astype(np.uint8)[:, None], axis=1, count=6, bitorder="little")
        return np.packbits(bits.reshape(-1), bitorder="little")
    # The lowest bits are the value; other values of less than a byte are packed already.
    return as_bytes(together.astype(f"<i{max(8, BITS[tensor.dtype]) // 8}"))


def _integers(data: memoryview, part: Part) -> list[int]:
    """Signed varints, packed or one by one."""
    if part.kind == VARINT:
        return [protobuf.signed(part.value)]
    if part.kind != BYTES or part.end - part.start > 10 * MOST_DIMENSIONS:
        raise DamagedError("not a shape", offset=part.start)
    return [int(one) for one in protobuf.unpack(as_bytes(data[part.start : part.end]), part.start)]


def _pair(data: memoryview, start: int, end: int) -> tuple[str, str]:
    """A StringStringEntryProto."""
    found = {1: "", 2: ""}
    for part in parts(data, start, end):
        if part.kind == BYTES and part.number in found:
            found[part.number] = text(data, part)
    return found[1], found[2]


def _value_info(data: memoryview, start: int, end: int) -> tuple[str, str]:
    title, kind = "", "any"
    for part in parts(data, start, end):
        if part[:2] == (1, BYTES):
            title = text(data, part)
        elif part[:2] == (2, BYTES):
            kind = _type(data, part.start, part.end, 0)
    return title, kind


def _type(data: memoryview, start: int, end: int, depth: int) -> str:
    """A TypeProto as text: ``float32 (batch, 3, 224, 224)``, ``sequence of int64 ()``."""
    if depth > DEEPEST:
        raise DamagedError("a type that is nested too deep", offset=start)
    for part in parts(data, start, end):
        if part.kind != BYTES or part.number not in (1, 4, 5, 8, 9):
            continue
        if part.number in (1, 8):
            kind = _tensor_type(data, part.start, part.end)
            return kind if part.number == 1 else f"sparse {kind}"
        inner = list(messages(data, part.start, part.end, 2 if part.number == 5 else 1))
        what = _type(data, *inner[0], depth + 1) if inner else "any"
        return f"{ {4: 'sequence of', 5: 'map to', 9: 'optional'}[part.number] } {what}"
    return "any"


def _tensor_type(data: memoryview, start: int, end: int) -> str:
    dtype, shape = "any", ""
    for part in parts(data, start, end):
        if part[:2] == (1, VARINT):
            dtype = DTYPES.get(part.value) or ("string" if part.value == STRING else f"type {part.value}")
        elif part[:2] == (2, BYTES):
            shape = f" {_shown(list(_dimensions(data, part.start, part.end)))}"
    return dtype + shape


def _dimensions(data: memoryview, start: int, end: int) -> Iterator[Any]:
    for first, last in messages(data, start, end, 1):
        size: Any = "?"
        for part in parts(data, first, last):
            if part[:2] == (1, VARINT):
                size = protobuf.signed(part.value)
            elif part[:2] == (2, BYTES):
                size = text(data, part) or "?"
        yield size


def _shown(shape: Any) -> str:
    return f"({', '.join(map(str, shape))})"
