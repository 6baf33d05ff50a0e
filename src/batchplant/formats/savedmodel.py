"""TensorFlow SavedModel, and checkpoints of TensorFlow: their variables as named tensors. Read only.

A SavedModel is a folder with ``saved_model.pb``, the graph, and ``variables/variables.index`` beside
``variables/variables.data-00000-of-00001`` and so on, a checkpoint. The ``.index`` of any other checkpoint of
that kind opens as well. TensorFlow is not needed.

Names are the keys of the checkpoint, without the ``/.ATTRIBUTES/VARIABLE_VALUE`` at their end.
Values are used where they lie. Tensors of text, such as the object graph of the checkpoint, are listed in the
facts and are no samples. `verify` compares the checksum of every tensor.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import os
from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np

from .. import _native
from ..codecs.protobuf import FIXED32, Message, read_varint
from ..data.tensors import TENSORS
from ..errors import BatchplantError, DamagedError, NotFoundError, Problem, SchemaError, located
from ..schema.columns import U8
from ..storage import Source, join, like, open_source, parent, tree
from .base.format import Capabilities, Format, Probe
from .base.tensors import BITS, Entry, TensorReader, size_of

# -- checkpoints --------------------------------------------------------------------------------------
# Checkpoints of TensorFlow ("tensor bundles"): NAME.index beside NAME.data-00000-of-00001 and so on.
#
# The index is a sorted table. Its key "" holds the number of data files. Every other key is the name of a
# tensor, and its value says of which type and shape it is and where its bytes lie. A tensor that was saved in
# parts has no bytes of its own: its value lists the parts, and each has an entry whose key is made of the
# name and the part.

# -- table --------------------------------------------------------------------------------------------
# Sorted tables, the file format of LevelDB in which TensorFlow keeps the index of a checkpoint.
#
# A table is blocks, then a footer of 48 bytes that names the block with the list of the others. A block is
# entries and a list of places to begin at; every entry says how many bytes of its key are those of the key
# before. Behind each block stand a byte (0: as it is; TensorFlow compresses none) and a checksum.

MAGIC = bytes.fromhex("57fb808b247547db")
FOOTER = 48
# Behind a block.
TRAILER = 5
# Keys are names; a table that makes more of its bytes than this was not written, but thought out.
MAX_KEY_BYTES = 1 << 16
KEYS_ALWAYS, KEYS_PER_BYTE = 16 << 20, 64


def masked(crc: int) -> int:
    """A CRC-32C as tables and checkpoints store it, so that a checksum of checksums stays a good one."""
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def read_table(data: memoryview) -> dict[bytes, bytes]:
    """All entries of a table, in the order of their keys."""
    if len(data) < FOOTER or data[-len(MAGIC) :] != MAGIC:
        raise DamagedError("the table has no footer", offset=max(0, len(data) - FOOTER))
    offset, handles = len(data) - FOOTER, []
    # Of a block that is empty here, and of the one that lists the others.
    for _part in range(4):
        number, offset = read_varint(data, offset, len(data) - len(MAGIC))
        handles.append(number)
    _block(data, *handles[:2])
    start, size = handles[2:]
    table: dict[bytes, bytes] = {}
    room = KEYS_ALWAYS + KEYS_PER_BYTE * len(data)
    end = 0
    last: bytes | None = None
    for _, handle in _entries(_block(data, start, size), start):
        view = memoryview(handle)
        first, after = read_varint(view, 0, len(view))
        size = read_varint(view, after, len(view))[0]
        # Blocks that lie inside each other could make a small file a large table.
        if first < end:
            raise DamagedError("the blocks of the table overlap", offset=start)
        end = first + size
        for key, value in _entries(_block(data, first, size), first):
            if last is not None and key <= last:
                raise DamagedError("the keys of the table are in no order", offset=first)
            room -= len(key)
            if room < 0:
                raise DamagedError("the keys of the table are larger than the file explains", offset=first)
            table[key] = value
            last = key
    return table


def _block(data: memoryview, start: int, size: int) -> memoryview:
    """The entries of a block, its checksum compared."""
    end = start + size
    if end + TRAILER > len(data) - FOOTER:
        raise DamagedError("a block of the table reaches beyond it", offset=start)
    stored = int.from_bytes(data[end + 1 : end + TRAILER], "little")
    if masked(_native.crc32c(data[start : end + 1])) != stored:
        raise DamagedError("the checksum of a block of the table is wrong", offset=start)
    if data[end] == 0:
        return data[start:end]
    raise DamagedError(
        f"a block of the table is packed in a way ({data[end]}) that is not known", offset=start
    )


def _entries(block: memoryview, start: int) -> Iterator[tuple[bytes, bytes]]:
    if len(block) < 4:
        raise DamagedError("a block of the table has no end", offset=start)
    end = len(block) - 4 - 4 * int.from_bytes(block[-4:], "little")
    if end < 0:
        raise DamagedError("a block of the table is too short for what it lists", offset=start)
    key, offset = b"", 0
    while offset < end:
        try:
            shared, offset = read_varint(block, offset, end)
            unshared, offset = read_varint(block, offset, end)
            size, offset = read_varint(block, offset, end)
        except DamagedError as error:
            error.offset = start
            raise
        if shared > len(key) or offset + unshared + size > end or shared + unshared > MAX_KEY_BYTES:
            raise DamagedError("an entry of the table reaches beyond its block", offset=start)
        key = key[:shared] + bytes(block[offset : offset + unshared])
        yield key, bytes(block[offset + unshared : offset + unshared + size])
        offset += unshared + size


# -- bundle -------------------------------------------------------------------------------------------

# DataType in types.proto. Quantised integers are read as the integers that they are.
DTYPES = {
    **{1: "float32", 2: "float64", 3: "int32", 4: "uint8", 5: "int16", 6: "int8", 8: "complex64", 9: "int64"},
    **{10: "bool", 11: "int8", 12: "uint8", 13: "int32", 14: "bfloat16", 15: "int16", 16: "uint16"},
    **{17: "uint16", 18: "complex128", 19: "float16", 22: "uint32", 23: "uint64", 24: "float8_e5m2"},
    **{25: "float8_e4m3fn", 26: "float8_e4m3fnuz", 27: "float8_e4m3b11fnuz", 28: "float8_e5m2fnuz"},
    **{29: "int4", 30: "uint4", 31: "int2", 32: "uint2", 33: "float4_e2m1fn"},
}
OTHER_DTYPES = {7: "string", 20: "resource", 21: "variant"}
STRING = 7
MAX_DIMENSIONS = 254
MAX_SHARDS = 1 << 20


@dataclasses.dataclass(frozen=True)
class Stored:
    """A tensor as the index describes it."""

    key: str
    code: int
    shape: tuple[int, ...]
    shard: int
    start: int
    size: int
    crc: int


class Bundle:
    """The index of a checkpoint."""

    def __init__(self, data: memoryview) -> None:
        table = read_table(data)
        if b"" not in table:
            raise DamagedError("a table without the header of a checkpoint")
        header = Message(memoryview(table.pop(b"")))
        if header.number(2):
            raise DamagedError("a checkpoint with big-endian numbers, which is not read here")
        self.shards = header.number(1)
        if not 0 <= self.shards <= MAX_SHARDS:
            raise DamagedError(f"a checkpoint of {self.shards} files")
        # Keys of slices begin with a zero.
        if any(key[:1] == b"\0" for key in table):
            raise SchemaError(
                "a variable is saved in slices (a partitioned variable), which are not read; "
                "load the checkpoint with TensorFlow, and save its variables whole"
            )
        self.tensors = [self._stored(key, value) for key, value in table.items()]

    def _stored(self, key: bytes, value: bytes) -> Stored:
        try:
            entry = Message(memoryview(value))
            shapes = [open_shape(shape) for shape in entry.messages(2)]
            shape = shapes[-1] if shapes else ()
            if shape is None or None in shape:
                raise DamagedError("a stored tensor has a shape that is not known")
            crcs = [
                int.from_bytes(value[part.start : part.end], "little") for part in entry.parts(6, FIXED32)
            ]
            sizes = tuple(size for size in shape if size is not None)
            stored = Stored(
                key.decode(),
                entry.number(1),
                sizes,
                shard=entry.number(3),
                start=entry.number(4),
                size=entry.number(5),
                crc=crcs[-1] if crcs else 0,
            )
        except (DamagedError, UnicodeDecodeError) as error:
            # The offset is one inside of the entry.
            raise DamagedError(f"the entry of {key[:200]!r} is damaged: {error}") from None
        if not 0 <= stored.shard < self.shards:
            raise DamagedError(f"{stored.key!r} lies in file {stored.shard} of {self.shards}")
        return stored


def open_shape(message: Message) -> tuple[int | None, ...] | None:
    """A TensorShapeProto: None for a size, or for all, that is not known."""
    if message.number(3):
        return None
    sizes = [axis.number(1) for axis in message.messages(2)]
    if len(sizes) > MAX_DIMENSIONS:
        raise DamagedError(f"a shape of more than {MAX_DIMENSIONS} dimensions", offset=message.start)
    return tuple(size if size >= 0 else None for size in sizes)


# -- graph --------------------------------------------------------------------------------------------
# saved_model.pb: the signatures, operators and functions of a SavedModel, for `batchplant info`.

# Signatures that are TensorFlow's own business.
INTERNAL = "__saved_model"


def read_graphs(data: memoryview) -> dict[str, Any]:
    """Facts about a saved_model.pb for info."""
    model = Message(data)
    graphs = model.messages(2)
    if not graphs:
        raise DamagedError("there is no graph in saved_model.pb")
    facts: dict[str, Any] = {"tags": [], "signatures": {}, "schema version": model.number(1)}
    operators: Counter[str] = Counter()
    functions = assets = 0
    for graph in graphs:
        for about in graph.messages(1):
            facts["tags"] += about.texts(4)
            if about.text(5):
                facts["tensorflow"] = about.text(5)
        for definition in graph.messages(2):
            # Nodes of the graph itself, and those of its functions, where most are today.
            bodies = [body for library in definition.messages(2) for body in library.messages(1)]
            functions += len(bodies)
            operators.update(node.text(2) for node in definition.messages(1))
            operators.update(node.text(2) for body in bodies for node in body.messages(3))
        for entry in graph.messages(5):
            if not entry.text(1).startswith(INTERNAL):
                facts["signatures"] |= {entry.text(1): _signature(value) for value in entry.messages(2)}
        assets += len(graph.messages(6))
    facts |= {"assets": assets} if assets else {}
    return facts | {"graphs": len(graphs), "operators": dict(operators.most_common()), "functions": functions}


def _signature(message: Message) -> dict[str, dict[str, str]]:
    """Name and type of each tensor of a SignatureDef."""
    return {
        side: {
            entry.text(1): _tensor(tensor)
            for entry in sorted(message.messages(number), key=lambda entry: entry.text(1))
            for tensor in entry.messages(2)
        }
        for number, side in ((1, "inputs"), (2, "outputs"))
    }


def _tensor(message: Message) -> str:
    """A TensorInfo as text: ``float32 (?, 4)``."""
    code, shapes = message.number(2), [open_shape(shape) for shape in message.messages(3)]
    dtype = DTYPES.get(code) or OTHER_DTYPES.get(code, f"type {code}") if code else ""
    if not shapes or shapes[-1] is None:
        return f"{dtype} unknown shape"
    return f"{dtype} ({', '.join('?' if size is None else str(size) for size in shapes[-1])})"


# -- format -------------------------------------------------------------------------------------------

GRAPH = "saved_model.pb"
VARIABLES = "variables/variables"
SUFFIX = "/.ATTRIBUTES/VARIABLE_VALUE"


class SavedModelReader(TensorReader):
    """Reads the variables of a SavedModel or a checkpoint."""

    def __init__(self, path: str) -> None:
        plain_path = like(path, path.rstrip("/"))
        self._folder: str | None = None
        if os.path.basename(plain_path) == GRAPH:
            self._folder = parent(plain_path) or "."
        elif tree.is_folder(plain_path):
            self._folder = plain_path
        index = plain_path if self._folder is None else join(self._folder, f"{VARIABLES}.index")
        self._prefix = like(index, index.removesuffix(".index"))
        self._bundle: Bundle | None = None
        self.path = path
        self._sources = {}
        with located(path=path):
            if self._folder is None or tree.exists(index):
                source = open_source(index)
                with contextlib.closing(source), located(path=source.path):
                    self._bundle = Bundle(source.view(0, source.size).data)
            else:
                # A model without variables has no checkpoint; one without a graph is no model.
                open_source(join(self._folder, GRAPH)).close()
            numeric = [stored for stored in self._stored_tensors() if stored.code in DTYPES]
            self._numeric = numeric
            names = _names_of(numeric)
            entries = [self._entry(stored, name) for stored, name in zip(numeric, names, strict=True)]
            self._accept(path, entries, self._sources.values())

    def _stored_tensors(self) -> list[Stored]:
        return [] if self._bundle is None else self._bundle.tensors

    def _shard(self, number: int) -> Source:
        assert self._bundle is not None
        path = like(self._prefix, f"{self._prefix}.data-{number:05}-of-{self._bundle.shards:05}")
        try:
            return self._file(path)
        except NotFoundError:
            raise DamagedError("a file of the checkpoint is missing", path=path) from None

    def _entry(self, tensor: Stored, name: str) -> Entry:
        dtype = DTYPES[tensor.code]
        size, stored = self._bounds(tensor), self._stored_size(tensor)
        in_place = size == size_of(dtype, tensor.shape) and (size != stored or BITS[dtype] >= 8)
        if not in_place and size != stored:
            raise DamagedError(
                f"{size} bytes are not {dtype} {tensor.shape}",
                path=self._shard(tensor.shard).path,
                offset=tensor.start,
            )
        if in_place:
            return Entry(name, dtype, tensor.shape, (self._shard(tensor.shard).path, tensor.start, size))
        return Entry(name, dtype, tensor.shape, functools.partial(self._load, tensor))

    @staticmethod
    def _stored_size(stored: Stored) -> int:
        """TensorFlow gives a value of less than a byte a byte."""
        dtype = DTYPES[stored.code]
        return size_of("uint8" if BITS[dtype] < 8 else dtype, stored.shape)

    def _bounds(self, stored: Stored) -> int:
        """The size of a tensor's bytes, which are all there."""
        source = self._shard(stored.shard)
        source.view(stored.start, 0)
        if stored.size < 0 or stored.start + stored.size > source.size:
            raise DamagedError(
                f"{stored.key!r} has {stored.size} bytes here, but the file ends at {source.size}",
                path=source.path,
                offset=stored.start,
            )
        return stored.size

    def _load(self, stored: Stored) -> U8:
        data = self._shard(stored.shard).view(stored.start, stored.size)
        return _pack(DTYPES[stored.code], data) if len(data) == self._stored_size(stored) else data

    def facts(self) -> dict[str, object]:
        facts = super().facts()
        not_numeric = [stored for stored in self._stored_tensors() if stored.code not in DTYPES]
        if not_numeric:
            facts["no numbers"] = {
                stored.key: f"{OTHER_DTYPES.get(stored.code, f'type {stored.code}')} {list(stored.shape)}"
                for stored in not_numeric
            }
        if self._bundle is not None:
            facts["data files"] = self._bundle.shards
        if self._folder is not None:
            source = open_source(join(self._folder, GRAPH))
            with contextlib.closing(source), located(path=source.path):
                facts |= read_graphs(source.view(0, source.size).data)
        return facts

    def own_checks(self) -> tuple[str, ...]:
        return ("CRC of every tensor",) if self._bundle is not None else ()

    def _verify(self) -> Iterator[Problem]:
        try:
            self.facts()
        except BatchplantError as error:
            yield Problem.of(error)
        numbers = {id(kept_tensor): number for number, kept_tensor in enumerate(self._numeric)}
        for tensor in self._stored_tensors():
            number = numbers.get(id(tensor))
            try:
                if self._sum(tensor) != tensor.crc:
                    path = self._shard(tensor.shard).path
                    message = f"the checksum of {tensor.key!r} is wrong"
                    yield Problem(message, path, number, None if number is None else "data", tensor.start)
            except BatchplantError as error:
                yield Problem.of(error.at(path=self.path, sample=number))

    def _sum(self, stored: Stored) -> int:
        self._bounds(stored)
        data = self._shard(stored.shard).view(stored.start, stored.size).data
        return masked(_text_sum(data, stored.shape) if stored.code == STRING else _native.crc32c(data))


def _names_of(tensors: list[Stored]) -> list[str]:
    short = [tensor.key.removesuffix(SUFFIX) for tensor in tensors]
    often = Counter(short)
    return [name if often[name] == 1 else tensor.key for name, tensor in zip(short, tensors, strict=True)]


def _pack(dtype: str, data: U8) -> U8:
    """Values of less than a byte, one in each, as many in a byte as fit; the first one lowest."""
    bits = BITS[dtype]
    if bits >= 8:
        return data
    values_per_byte = 8 // bits
    padded = np.pad(data, (0, -len(data) % values_per_byte)) & np.uint8((1 << bits) - 1)
    shifts = np.arange(0, 8, bits, dtype=np.uint8)
    return np.bitwise_or.reduce(padded.reshape(-1, values_per_byte) << shifts, axis=1)


def _text_sum(data: memoryview, shape: tuple[int, ...]) -> int:
    """The CRC-32C of text: of all lengths as numbers of 4 or 8 bytes, their checksum, and the text."""
    count = 1
    for size in shape:
        count *= size
    if count > len(data):
        raise DamagedError(f"{len(data)} bytes are not {count} texts")
    offset, lengths = 0, []
    for _ in range(count):
        size, offset = read_varint(data, offset, len(data))
        lengths.append(size.to_bytes(4 if size < 1 << 32 else 8, "little"))
    crc = _native.crc32c(b"".join(lengths))
    return int(_native.crc32c(data[offset:], crc))


def sniff(probe: Probe) -> bool:
    """A folder with a graph, or a table whose first entry is the header of a checkpoint."""
    if probe.folder:
        return GRAPH in probe.names
    if os.path.basename(probe.path) == GRAPH:
        return probe.head[:1] == b"\x08"
    # Other tables end alike, but only a checkpoint begins with an empty key and a number of files.
    if probe.size < FOOTER or probe.head[:2] != b"\0\0" or probe.head[3:4] != b"\x08":
        return False
    return probe.source.view(probe.size - len(MAGIC), len(MAGIC)).tobytes() == MAGIC


FORMAT = Format(
    name="savedmodel",
    title="TensorFlow SavedModel",
    suffixes=(".index",),
    spec="https://www.tensorflow.org/guide/saved_model",
    reader=SavedModelReader,
    sniff=sniff,
    folder=None,
    only=TENSORS,
    notes="read only: variables, used in place, without TensorFlow; also checkpoints by their .index",
    can=Capabilities(
        random_access=True,
        memory_map=True,
        checksums="tensor",
        column_pruning=True,
        remote_ranges=True,
        splittable=True,
        ecosystem=("TensorFlow", "Keras", "TensorFlow Serving"),
    ),
)
