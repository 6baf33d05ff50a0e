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
import itertools
import math
import os
import posixpath
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any, ClassVar

import numpy as np

from .._version import __version__
from ..codecs import protobuf
from ..codecs.protobuf import BYTES, VARINT, Message, Part, block, parts
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
    name: str
    code: int
    shape: tuple[int, ...]
    raw: tuple[int, int] | None
    values: list[Part]
    external: dict[str, str] | None

    @property
    def dtype(self) -> str:
        return _dtype_name(self.code)

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
        self._constants = constants
        self.tensors: list[Tensor] = []
        self.operators: Counter[str] = Counter()
        self.sparse: dict[str, str] = {}
        message = Message(data)
        graphs = message.messages(7)
        if not graphs:
            raise DamagedError("it has no graph, or is not an ONNX model")
        self.metadata = {entry.text(1): entry.text(2) for entry in message.messages(14)}
        values: list[dict[str, str]] = [{}, {}]
        for graph in graphs:
            self._graph(graph, "", 0)
            for number, known in zip((11, 12), values, strict=True):
                known |= {value.text(1): _value_type(value) for value in graph.messages(number)}
        inputs, outputs = values
        initialisers = {tensor.name for tensor in self.tensors}
        facts = {
            "producer": f"{message.text(2)} {message.text(3)}".strip(),
            "domain": message.text(4),
            "ir version": message.number(1),
            "model version": message.number(5),
            "graph": graphs[-1].text(2),
            "opsets": {opset.text(1) or "ai.onnx": opset.number(2) for opset in message.messages(8)},
            # Up to IR version 3 every initialiser is listed among the inputs.
            "inputs": {name: kind for name, kind in inputs.items() if name not in initialisers},
            "outputs": outputs,
            "nodes": self.operators.total(),
            "operators": dict(self.operators.most_common()),
            "functions": {
                _qualified(function, 10, 1): len(function.messages(7)) for function in message.messages(25)
            },
            "metadata": self.metadata,
            "sparse tensors": self.sparse,
            "text tensors": {t.name: _shape_text(t.shape) for t in self.tensors if t.code == STRING},
        }
        self.facts = {name: fact for name, fact in facts.items() if fact or name == "nodes"}

    def _graph(self, graph: Message, prefix: str, depth: int) -> None:
        if depth > MAX_DEPTH:
            raise DamagedError(f"graphs are nested more than {MAX_DEPTH} deep", offset=graph.start)
        labels = set[str]()
        for number, node in enumerate(graph.messages(1)):
            kind, title = _qualified(node, 7, 4), node.text(3)
            self.operators[kind] += 1
            # Nodes need no names, and those that they have need not differ.
            label = title if title and title not in labels else f"{node.text(4)}_{number}"
            labels.add(label)
            for attribute in node.messages(5):
                constants = attribute.messages(5) if self._constants and kind == "Constant" else ()
                self.tensors += [read_tensor(value, prefix + node.text(2)) for value in constants]
                inner = [*attribute.messages(6), *attribute.messages(11)]
                for position, body in enumerate(inner):
                    name = attribute.text(1) if len(inner) == 1 else f"{attribute.text(1)}_{position}"
                    self._graph(body, f"{prefix}{label}.{name}.", depth + 1)
        for tensor in map(read_tensor, graph.messages(5)):
            tensor.name = prefix + tensor.name
            self.tensors.append(tensor)
        for sparse in graph.messages(15):
            for values in map(read_tensor, sparse.messages(1)):
                shape = _shape_text(size for part in sparse.parts(3) for size in _integers(sparse.data, part))
                count = values.shape[0] if values.shape else 1
                self.sparse[prefix + values.name] = f"{values.dtype} {shape}, {count} values"


def read_tensor(message: Message, name: str | None = None) -> Tensor:
    """A TensorProto; its values stay where they are."""
    data, start = message.data, message.start
    sizes = (size for part in message.parts(1) for size in _integers(data, part))
    shape = tuple(itertools.islice(sizes, MAX_DIMENSIONS + 1))
    if len(shape) > MAX_DIMENSIONS:
        raise DamagedError(f"a tensor of more than {MAX_DIMENSIONS} dimensions", offset=start)
    if min(shape, default=0) < 0:
        raise DamagedError(f"a tensor of the shape {shape}", offset=start)
    if message.parts(3, BYTES):
        raise DamagedError("a tensor in segments, which batchplant does not read", offset=start)
    for part in message.parts(8, BYTES) if name is None else ():
        name = protobuf.name(data, part)
    raw = next(((part.start, part.end) for part in reversed(message.parts(9, BYTES))), None)
    values = [part for number in LISTS for part in message.parts(number)]
    if raw is not None and values and raw[0] < raw[1]:
        raise DamagedError(f"the values of {name!r} are stored twice", offset=start)
    external = {entry.text(1): entry.text(2) for entry in message.messages(13)}
    elsewhere = message.number(14) == 1
    return Tensor(start, name or "", message.number(2), shape, raw, values, external if elsewhere else None)


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


def _value_type(message: Message) -> str:
    """The type of a ValueInfoProto as text: ``float32 (batch, 3, 224, 224)``, ``sequence of int64 ()``."""
    types = message.messages(2)
    return _type(types[-1], 0) if types else "any"


def _type(message: Message, depth: int) -> str:
    if depth > MAX_DEPTH:
        raise DamagedError("a type that is nested too deep", offset=message.start)
    for tensor in (*message.messages(1), *message.messages(8)):
        shapes = tensor.messages(2)
        # A size of a dimension is a number or a name.
        sizes = (
            [
                axis.number(1) if axis.parts(1, VARINT) else axis.text(2) or "?"
                for axis in shapes[-1].messages(1)
            ]
            if shapes
            else []
        )
        dtype = _dtype_name(tensor.number(1)) if tensor.number(1) else "any"
        kind = f"{dtype} {_shape_text(sizes)}" if shapes else dtype
        return kind if message.messages(1) else f"sparse {kind}"
    for number, words, element in ((4, "sequence of", 1), (5, "map to", 2), (9, "optional", 1)):
        for container in message.messages(number):
            inner = container.messages(element)
            return f"{words} {_type(inner[0], depth + 1) if inner else 'any'}"
    return "any"


def _dtype_name(code: int) -> str:
    return DTYPES.get(code) or ("string" if code == STRING else f"type {code}")


def _qualified(message: Message, domain: int, title: int) -> str:
    """The name of an operator or function, with its domain if that is not ONNX's own."""
    own = message.text(domain) in ("", "ai.onnx")
    return message.text(title) if own else f"{message.text(domain)}.{message.text(title)}"


def _shape_text(shape: Iterable[Any]) -> str:
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
        facts = super().facts() | self._model.facts
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
