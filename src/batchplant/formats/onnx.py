"""ONNX models: their initialisers as named tensors, in the order in which they stand.

The model is read by hand, without a library, and values are used where they lie: in ``raw_data``, in lists of
floats and doubles, and in files of external data, which must be in the folder of the model. Values in other
lists are put together when they are read. The initialisers of graphs inside of nodes (If, Loop) carry the
node and its attribute in their name: ``node.then_branch.weight``. Sparse initialisers, and those of text, are
listed in the facts and are no samples.

What is written is a model that has initialisers, which are its outputs, and no operators.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import os
import posixpath
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

import numpy as np

from .._version import __version__
from ..codecs import protobuf
from ..codecs.protobuf import BYTES, VARINT, Part, block, messages, parts
from ..data.tensors import TENSORS
from ..data.writer import WriteOptions
from ..errors import (
    BatchplantError,
    DamagedError,
    SchemaError,
    UnsafeError,
    located,
)
from ..schema import Schema
from ..schema.columns import U8, as_bytes
from ..storage import is_remote, join, open_source, parent
from .base.format import Capabilities, Format, Probe
from .base.tensors import BITS, Entry, TensorReader, TensorWriter, size_of

# -- model --------------------------------------------------------------------------------------------
# Contents of an ONNX model: tensors, the locations of their values, and facts for `batchplant info`.
#
# A model is a protobuf message. Only the messages that matter here are looked into, and values are left where
# they are.

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
MAX_DEPTH = 33
MAX_DIMENSIONS = 254


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
    def location(self) -> tuple[int, int] | None:
        """Start and end of its bytes, where they lie in the model as they are; else None."""
        if self.values and self.raw is None:
            [*_, part] = self.values
            fixed = part.kind == BYTES and LISTS[part.number] is not None
            right = HELD_BY.get(self.dtype, INTS) == part.number
            return (part.start, part.end) if fixed and right and len(self.values) == 1 else None
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
        initialisers = {tensor.name for tensor in self.tensors}
        # Up to IR version 3 every initialiser is listed among the inputs.
        self.inputs = {name: kind for name, kind in self.inputs.items() if name not in initialisers}

    def _take(self, part: Part) -> None:
        data = self._data
        match part.number, part.kind:
            case 1, 0:
                self.facts["ir version"] = part.value
            case 5, 0:
                self.facts["model version"] = protobuf.signed(part.value)
            case ((2 | 3 | 4 | 6), 2):
                self._texts[part.number] = protobuf.text(data, part)
            case 7, 2:
                self._graph(part.start, part.end, "", 0)
            case 8, 2:
                [domain] = protobuf.texts(data, part.start, part.end, 1)
                fields = parts(data, part.start, part.end)
                versions = [protobuf.signed(field.value) for field in fields if field[:2] == (2, VARINT)]
                self._opsets[domain or "ai.onnx"] = versions[-1] if versions else 0
            case 14, 2:
                key, value = protobuf.texts(data, part.start, part.end, 1, 2)
                self.metadata[key] = value
            case 25, 2:
                self._function(part.start, part.end)

    def _function(self, start: int, end: int) -> None:
        title, domain = protobuf.texts(self._data, start, end, 1, 10)
        nodes = len(list(messages(self._data, start, end, 7)))
        self._functions[f"{domain}.{title}" if domain else title] = nodes

    def _graph(self, start: int, end: int, prefix: str, depth: int) -> None:
        if depth > MAX_DEPTH:
            raise DamagedError(f"graphs are nested more than {MAX_DEPTH} deep", offset=start)
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
                        self.facts["graph"] = protobuf.text(data, part)
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
        for field in parts(self._data, part.start, part.end):
            if field.number == 3:
                shape += _integers(self._data, field)
            elif field[:2] == (1, BYTES):
                values = read_tensor(self._data, field.start, field.end)
        if values is not None:
            count = values.shape[0] if values.shape else 1
            self.sparse[prefix + values.name] = f"{values.dtype} {_shape_text(shape)}, {count} values"

    def _node(self, part: Part, prefix: str, number: int, labels: set[str], depth: int) -> None:
        data = self._data
        output, title, kind, domain = protobuf.texts(data, part.start, part.end, 2, 3, 4, 7)
        domain = "" if domain == "ai.onnx" else domain
        self.operators[f"{domain}.{kind}" if domain else kind] += 1
        # Nodes need no names, and those that they have need not differ.
        label = title if title and title not in labels else f"{kind}_{number}"
        labels.add(label)
        constant = prefix + output if self._constants and kind == "Constant" else ""
        for attribute in messages(data, part.start, part.end, 5):
            self._attribute(*attribute, f"{prefix}{label}", constant, depth)

    def _attribute(self, start: int, end: int, label: str, constant: str, depth: int) -> None:
        data, graphs = self._data, []
        [title] = protobuf.texts(data, start, end, 1)
        for part in parts(data, start, end):
            if part[:2] == (5, BYTES) and constant:
                tensor = read_tensor(data, part.start, part.end)
                tensor.name = constant
                self.tensors.append(tensor)
            elif part.kind == BYTES and part.number in (6, 11):
                graphs.append(part)
        for number, graph in enumerate(graphs):
            inner = f"{label}.{title}" if len(graphs) == 1 else f"{label}.{title}_{number}"
            self._graph(graph.start, graph.end, f"{inner}.", depth + 1)

    def describe(self) -> dict[str, Any]:
        """Facts for info, without empty ones."""
        producer = " ".join(filter(None, (self._texts.get(2), self._texts.get(3))))
        strings = {tensor.name: _shape_text(tensor.shape) for tensor in self.tensors if tensor.code == STRING}
        facts = {
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
        return {name: value for name, value in facts.items() if value or value == 0}


def read_tensor(data: memoryview, start: int, end: int) -> Tensor:
    """A TensorProto; its values stay where they are."""
    tensor = Tensor(start)
    shape: list[int] = []
    elsewhere, entries = False, {}
    for part in parts(data, start, end):
        match part.number, part.kind:
            case 1, _:
                shape += _integers(data, part)
                if len(shape) > MAX_DIMENSIONS:
                    raise DamagedError(f"a tensor of more than {MAX_DIMENSIONS} dimensions", offset=start)
            case 2, 0:
                tensor.code = part.value
            case 3, 2:
                raise DamagedError("a tensor in segments, which batchplant does not read", offset=start)
            case 8, 2:
                tensor.name = protobuf.name(data, part)
            case 9, 2:
                tensor.raw = part.start, part.end
            case 13, 2:
                key, value = protobuf.texts(data, part.start, part.end, 1, 2)
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
    number = HELD_BY.get(tensor.dtype, INTS)
    kind = LISTS[number]
    values = []
    for part in tensor.values:
        if part.number != number or (kind is not None and part.kind == VARINT):
            raise DamagedError(f"{tensor.dtype} values in the field of another type", offset=part.start)
        if part.kind == VARINT:
            values.append(np.array([part.value], dtype=np.uint64).view(np.int64))
        elif kind is None:
            values.append(protobuf.unpack(data[part.start : part.end], part.start))
        elif (part.end - part.start) % np.dtype(kind).itemsize:
            raise DamagedError("numbers of a wrong size", offset=part.start)
        else:
            values.append(data[part.start : part.end].view(kind))
    together = np.concatenate(values)
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
    if part.kind != BYTES or part.end - part.start > 10 * MAX_DIMENSIONS:
        raise DamagedError("not a shape", offset=part.start)
    return [int(integer) for integer in protobuf.unpack(as_bytes(data[part.start : part.end]), part.start)]


def _value_info(data: memoryview, start: int, end: int) -> tuple[str, str]:
    [title] = protobuf.texts(data, start, end, 1)
    kinds = [_type(data, *kind, 0) for kind in messages(data, start, end, 2)]
    return title, kinds[-1] if kinds else "any"


def _type(data: memoryview, start: int, end: int, depth: int) -> str:
    """A TypeProto as text: ``float32 (batch, 3, 224, 224)``, ``sequence of int64 ()``."""
    if depth > MAX_DEPTH:
        raise DamagedError("a type that is nested too deep", offset=start)
    for part in parts(data, start, end):
        if part.kind != BYTES or part.number not in (1, 4, 5, 8, 9):
            continue
        if part.number in (1, 8):
            kind = _tensor_type(data, part.start, part.end)
            return kind if part.number == 1 else f"sparse {kind}"
        inner = list(messages(data, part.start, part.end, 2 if part.number == 5 else 1))
        element = _type(data, *inner[0], depth + 1) if inner else "any"
        return f"{ {4: 'sequence of', 5: 'map to', 9: 'optional'}[part.number] } {element}"
    return "any"


def _tensor_type(data: memoryview, start: int, end: int) -> str:
    dtype, shape = "any", ""
    for part in parts(data, start, end):
        if part[:2] == (1, VARINT):
            dtype = DTYPES.get(part.value) or ("string" if part.value == STRING else f"type {part.value}")
        elif part[:2] == (2, BYTES):
            shape = f" {_shape_text(list(_dimensions(data, part.start, part.end)))}"
    return dtype + shape


def _dimensions(data: memoryview, start: int, end: int) -> Iterator[Any]:
    for first, last in messages(data, start, end, 1):
        size: Any = "?"
        for part in parts(data, first, last):
            if part[:2] == (1, VARINT):
                size = protobuf.signed(part.value)
            elif part[:2] == (2, BYTES):
                size = protobuf.text(data, part) or "?"
        yield size


def _shape_text(shape: Any) -> str:
    return f"({', '.join(map(str, shape))})"


# -- reader -------------------------------------------------------------------------------------------
# The initialisers of an ONNX model as named tensors.


class OnnxReader(TensorReader):
    """Reads the initialisers of ONNX models.

    ``constants``: the values of Constant nodes too, under the name of their output. ``links``: external data
    may be a link that leads out of the model's folder.
    """

    def __init__(
        self,
        path: str,
        *,
        constants: bool = False,
        links: bool = False,
    ) -> None:
        self.path = path
        self._links = links
        source = open_source(path)
        self._bytes = source.view(0, source.size)
        self._external_files: list[str] = []
        with located(path=path):
            self._model = Model(self._bytes.data, constants=constants)
            self.metadata = self._model.metadata
            numbers = [tensor for tensor in self._model.tensors if tensor.code != STRING]
            self._accept(path, [self._entry(tensor) for tensor in numbers], [source])

    def _entry(self, tensor: Tensor) -> Entry:
        if tensor.code not in DTYPES:
            raise SchemaError(f"tensor {tensor.name!r} has the {tensor.dtype}, which is not known here")
        dtype, shape, location = tensor.dtype, tensor.shape, tensor.location
        try:
            size = size_of(dtype, shape)
            if tensor.external is not None:
                return Entry(tensor.name, dtype, shape, self._external(tensor.external, size))
            if location is not None:
                return Entry(tensor.name, dtype, shape, (self.path, location[0], location[1] - location[0]))
            # A value has at least a byte, or two of them have one.
            stored = sum(max(1, part.end - part.start) for part in tensor.values)
            if stored < min(size, math.prod(shape)):
                raise DamagedError(f"{stored} bytes are not {dtype} {list(shape)}")
        except BatchplantError as error:
            error.message = f"tensor {tensor.name!r}: {error.message}"
            raise error.at(offset=tensor.offset) from None
        return Entry(tensor.name, dtype, shape, functools.partial(self._values, tensor))

    def _values(self, tensor: Tensor) -> U8:
        # An error where the reader was closed.
        self._file(self.path).view(tensor.offset, 0)
        return values_of(self._bytes, tensor)

    def _external(self, message: dict[str, str], size: int) -> tuple[str, int, int]:
        file = self._beside(message.get("location", ""))
        numbers = []
        for key, default in (("offset", 0), ("length", size)):
            text = message.get(key, str(default))
            if not re.fullmatch("[0-9]{1,18}", text):
                raise DamagedError(f"the {key} of its external data is {text[:40]!r}")
            numbers.append(int(text))
        if file not in self._external_files:
            self._external_files.append(file)
        return file, numbers[0], numbers[1]

    def _beside(self, location: str) -> str:
        """The path of external data, which must lie in the folder of the model or below."""
        steps = location.split("/")
        if not location or location[0] == "/" or ".." in steps or re.search(r"[\\:\0]", location):
            raise UnsafeError(f"its external data {location[:200]!r} is no file in the folder of the model")
        file = join(parent(self.path), posixpath.normpath(location))
        # A server has no links.
        if is_remote(file):
            return file
        home, real = os.path.realpath(parent(self.path) or "."), os.path.realpath(file)
        if not self._links and os.path.commonpath([home, real]) != home:
            raise UnsafeError(
                f"its external data {location[:200]!r} is a link that leads out of the folder of the model; "
                "open it with links=True (--option links=true) only if you trust its source"
            )
        # Opening a pipe would wait for a writer.
        if not os.path.isfile(real):
            raise DamagedError(f"its external data {location[:200]!r} is missing")
        return file

    def facts(self) -> dict[str, object]:
        facts = super().facts() | self._model.describe()
        if self._external_files:
            facts["external data"] = [os.path.basename(file) for file in self._external_files]
        return facts


# -- writer -------------------------------------------------------------------------------------------
# Named tensors as an ONNX model that has initialisers, which are its outputs, and no operators.

CODES = {name: code for code, name in DTYPES.items()}
DATA = "{name}.data"
# So that external data can be mapped; small tensors are not worth the gap.
PAGE = 4096
# IR version and opset: the first that have the dtype. Others are in all of them.
SINCE = {
    **dict.fromkeys(("float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz"), (9, 19)),
    **dict.fromkeys(("int4", "uint4"), (10, 21)),
    "float4_e2m1fn": (11, 23),
    "float8_e8m0fnu": (12, 24),
    **dict.fromkeys(("int2", "uint2"), (13, 25)),
    **dict.fromkeys(("float6_e2m3fn", "float6_e3m2fn"), (14, 28)),
}
OLDEST = (8, 17)


class OnnxWriter(TensorWriter):
    """Writes a model without operators whose outputs are the tensors, which ONNX Runtime loads and gives.

    ``metadata``: text by name, for its metadata_props.
    ``external``: keep the values in NAME.onnx.data beside the model. What does not fit into the 2 GB that a
    model may have goes there in any case.
    """

    side_cars = (DATA,)
    dtypes = tuple(CODES)
    # Protobuf ends at 2 GiB, and the rest of the model needs room too.
    max_inline_bytes: ClassVar[int] = 2_000_000_000
    elsewhere: ClassVar[str] = "write safetensors or npz"

    def __init__(
        self,
        path: str,
        schema: Schema,
        options: WriteOptions,
        *,
        external: bool = False,
        metadata: Mapping[str, str] | None = None,
    ) -> None:
        self._external = external
        self._metadata = self._checked_metadata(path, metadata)
        super().__init__(path, schema, options)

    def _check(self, name: str, dtype: str, shape: tuple[int, ...]) -> None:
        if not name:
            raise SchemaError("an initialiser needs a name")

    def _begin(self, state: dict[str, Any] | None) -> None:
        super()._begin(state)
        self._model = self.partial.spool("model")
        if not self._model.size:
            self._model.write(self._head() + block(2, b"tensors"))

    def _head(self, size: int = 0) -> bytes:
        """All before the graph; as long for every size of the graph."""
        ir, opset = max((SINCE.get(entry.dtype, OLDEST) for entry in self.entries), default=OLDEST)
        texts = [block(2, b"batchplant"), block(3, __version__.encode()), block(8, protobuf.number(2, opset))]
        for key, value in self._metadata.items():
            texts.append(block(14, block(1, key.encode()) + block(2, value.encode())))
        # A varint may have leading zeros.
        groups = [size >> shift & 0x7F | 0x80 for shift in (0, 7, 14, 21)]
        graph = protobuf.varint(7 << 3 | 2) + bytes([*groups, size >> 28])
        return protobuf.number(1, ir) + b"".join(texts) + graph

    def _put(self, name: str, dtype: str, shape: tuple[int, ...], data: U8) -> int:
        sizes = b"".join(protobuf.number(1, size) for size in shape)
        tensor = sizes + protobuf.number(2, CODES[dtype]) + block(8, name.encode())
        inside = not self._external and self._model.size + len(tensor) + len(data) < self.max_inline_bytes
        if inside or not len(data):
            tensor += protobuf.head(9, len(data))
            self._model.write(protobuf.head(5, len(tensor) + len(data)) + tensor)
            start = self._model.size
            self._model.write(data)
            return start
        start = self._data.size + (-self._data.size % (PAGE if len(data) >= PAGE else 64))
        self._data.write_at(data, start)
        location = os.path.basename(DATA.format(name=self.path))
        for key, value in (("location", location), ("offset", str(start)), ("length", str(len(data)))):
            tensor += block(13, block(1, key.encode()) + block(2, value.encode()))
        tensor += protobuf.number(14, 1)
        self._model.write(protobuf.head(5, len(tensor)) + tensor)
        return start

    def _finish(self) -> str:
        # Runtimes refuse a graph without outputs. An initialiser may be one as it is.
        for entry in self.entries:
            sizes = b"".join(block(1, protobuf.number(1, size)) for size in entry.shape)
            tensor = protobuf.number(1, CODES[entry.dtype]) + block(2, sizes)
            self._model.write(block(12, block(1, entry.name.encode()) + block(2, block(1, tensor))))
        size = self._model.size - len(self._head())
        if size >= 1 << 31:
            raise SchemaError("the names and shapes alone are more than the 2 GB of a model", path=self.path)
        self._model.write_at(self._head(size), 0)
        return "model"

    def _beside(self) -> list[tuple[str, str]]:
        return [("data", DATA)] if self._data.size else []

    def remarks(self) -> list[str]:
        return ["the model has initialisers, which are its outputs, and no operators"]


# -- format -------------------------------------------------------------------------------------------

# The wire types of the fields that a model may begin with, up to its graph.
KINDS = {1: VARINT, 5: VARINT, **dict.fromkeys((2, 3, 4, 6, 8, 14, 20, 25, 26), BYTES)}
GRAPH = 7
MAX_IR_VERSION = 100


def sniff(probe: Probe) -> bool:
    """A message that begins with the IR version and comes to a graph that fits into the file."""
    head = probe.head
    try:
        for count, part in enumerate(parts(memoryview(head), 0, probe.size)):
            if part[:2] == (GRAPH, BYTES):
                return count > 0 and part.start < part.end
            if KINDS.get(part.number) != part.kind or (part.number == 1) != (count == 0):
                return False
            if count == 0 and not 0 < part.value <= MAX_IR_VERSION:
                return False
    # The graph may come later than what is looked at; then the suffix tells.
    except (BatchplantError, IndexError):
        pass
    return False


FORMAT = Format(
    name="onnx",
    title="ONNX",
    suffixes=(".onnx",),
    spec="https://onnx.ai/onnx/repo-docs/IR.html",
    reader=OnnxReader,
    writer=OnnxWriter,
    sniff=sniff,
    only=TENSORS,
    notes="initialisers, used in place, also in external data; writes a model of outputs without operators",
    can=Capabilities(
        random_access=True,
        memory_map=True,
        keeps_schema=True,
        streaming_write=True,
        max_size="2 GB; larger tensors lie beside it",
        metadata=True,
        ecosystem=("ONNX Runtime", "PyTorch", "TensorRT", "OpenVINO"),
    ),
)
