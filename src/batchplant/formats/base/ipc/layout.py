"""Layout of Arrow IPC files and streams.

A stream is a row of messages: ``FF FF FF FF``, the size of the metadata, the metadata (a FlatBuffer), and the
body. The first message is the schema, then come dictionaries and record batches; a size of 0 ends the stream.
A file is ``ARROW1``, a stream, and a footer that says where the messages are. The metadata of a record batch
says how many rows it has, how many values of each column are missing, and where in its body each buffer lies.
Nothing here is trusted: a number that leads out of its bytes is damage.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ....codecs.arrow import pyarrow
from ....errors import DamagedError, exceptions_as
from ....schema.columns import I64
from ....storage import Source

if TYPE_CHECKING:
    import pyarrow as pa

MAGIC = b"ARROW1"
FEATHER_1 = b"FEA1"
CONTINUES = 0xFFFFFFFF
END = struct.pack("<II", CONTINUES, 0)
SCHEMA, DICTIONARY, BATCH = 1, 2, 3
# No metadata is larger.
MAX_METADATA_BYTES = 256 << 20
BLOCK = np.dtype([("offset", "<i8"), ("metadata", "<i4"), ("pad", "<i4"), ("body", "<i8")])
NODE = np.dtype([("rows", "<i8"), ("nulls", "<i8")])
_ERRORS = (struct.error, ValueError, IndexError, OverflowError)


class Table:
    """A table of a FlatBuffer: fields by number, at places relative to each other."""

    def __init__(self, data: bytes, offset: int) -> None:
        self.data, self.at = data, offset
        back = self._number("<i", offset)
        self._fields = offset - back
        if not 0 <= self._fields <= len(data) - 4:
            raise ValueError("a table has no fields")
        self._size = self._number("<H", self._fields)

    @classmethod
    def root(cls, data: bytes) -> Table:
        return cls(data, *struct.unpack_from("<I", data, 0))

    def _number(self, kind: str, offset: int) -> int:
        # Python's struct takes negative places from the end.
        if offset < 0:
            raise ValueError("a place before the beginning")
        return struct.unpack_from(kind, self.data, offset)[0]

    def _place(self, field: int) -> int | None:
        if 4 + 2 * field + 2 > self._size:
            return None
        inside = self._number("<H", self._fields + 4 + 2 * field)
        return self.at + inside if inside else None

    def number(self, field: int, kind: str) -> int:
        offset = self._place(field)
        return 0 if offset is None else self._number(kind, offset)

    def table(self, field: int) -> Table | None:
        offset = self._place(field)
        return None if offset is None else Table(self.data, offset + self._number("<I", offset))

    def vector(self, field: int, kind: Any) -> Any:
        """An array of structures."""
        offset = self._place(field)
        kind = np.dtype(kind)
        if offset is None:
            return np.empty(0, kind)
        start = offset + self._number("<I", offset)
        count = self._number("<I", start)
        if count * kind.itemsize > len(self.data) - start - 4:
            raise ValueError("a vector reaches beyond the end")
        return np.frombuffer(self.data, kind, count, start + 4)


class Message(NamedTuple):
    """A message: what it is, where it begins, and where and how long its body is."""

    kind: int
    offset: int
    body: int
    size: int
    header: Table

    @property
    def end(self) -> int:
        return self.body + self.size


def read_message(source: Source, offset: int) -> Message | None:
    """The message at an offset; None where the stream ends."""
    with exceptions_as(DamagedError, "not an Arrow message", *_ERRORS, offset=offset):
        size, start = _prefix(source, offset)
        if size == 0:
            return None
        if not 0 < size <= MAX_METADATA_BYTES:
            raise ValueError(f"{size} bytes of metadata")
        root = Table.root(source.view(start, size).tobytes())
        header = root.table(2)
        body = root.number(3, "<q")
        if header is None or body < 0 or start + size + body > source.size:
            raise ValueError(f"a body of {body} bytes")
        return Message(root.number(1, "<B"), offset, start + size, body, header)


def _prefix(source: Source, offset: int) -> tuple[int, int]:
    """Return length and start of the metadata. Before version 0.15 there was no marker."""
    if offset + 4 > source.size:
        return 0, offset
    [size] = struct.unpack("<I", source.view(offset, 4).tobytes())
    if size != CONTINUES:
        return size, offset + 4
    [size] = struct.unpack("<I", source.view(offset + 4, 4).tobytes())
    return size, offset + 8


class Batch(NamedTuple):
    """A record batch: its message and rows; the length and the missing values of each column; its buffers,
    packed or not; and how many buffers each column of views has."""

    message: Message
    rows: int
    lengths: I64
    nulls: I64
    buffers: Any
    packed: bool
    views: I64


def read_batch(message: Message) -> Batch:
    """The batch of a message; of a dictionary, its values as a batch of one column."""
    with exceptions_as(DamagedError, "not a record batch", *_ERRORS, offset=message.offset):
        header = message.header.table(1) if message.kind == DICTIONARY else message.header
        if header is None:
            raise ValueError("it has no values")
        rows = header.number(0, "<q")
        nodes = header.vector(1, NODE)
        buffers = header.vector(2, [("offset", "<i8"), ("size", "<i8")])
        packed = header.table(3) is not None
        views = header.vector(4, "<i8").astype(np.int64)
        offsets, sizes = buffers["offset"], buffers["size"]
        outside = (offsets < 0) | (sizes < 0) | (offsets > message.size) | (sizes > message.size - offsets)
        if rows < 0 or outside.any() or (len(nodes) and (nodes["nulls"] < 0).any()):
            raise ValueError("its buffers lie outside of it")
        if (views < 0).any() or (views > len(buffers)).any():
            raise ValueError("its views lie outside of it")
        lengths, nulls = nodes["rows"].astype(np.int64), nodes["nulls"].astype(np.int64)
        return Batch(message, rows, lengths, nulls, buffers, packed, views)


class Footer(NamedTuple):
    """Footer of a file: its schema, and the starts of its dictionaries and record batches."""

    schema: bytes
    dictionaries: list[int]
    batches: list[int]


def read_footer(source: Source) -> Footer:
    """The schema comes as a message of its own. The one at the beginning of a file is not looked at: some
    writers leave out its length, or let it begin elsewhere than at byte 8."""
    with exceptions_as(DamagedError, "the footer is damaged", *_ERRORS):
        if source.size < 24 or source.view(source.size - 6, 6).tobytes() != MAGIC:
            raise ValueError("it does not end with ARROW1; it was cut short")
        [size] = struct.unpack("<i", source.view(source.size - 10, 4).tobytes())
        if not 0 < size <= source.size - 18:
            raise ValueError(f"a footer of {size} bytes")
        data = source.view(source.size - 10 - size, size).tobytes()
        footer = Table.root(data)
        schema = footer.table(1)
        if schema is None:
            raise ValueError("it has no schema")
        dictionaries, batches = footer.vector(2, BLOCK), footer.vector(3, BLOCK)
        return Footer(
            _schema_message(data, schema.at), dictionaries["offset"].tolist(), batches["offset"].tolist()
        )


def _schema_message(footer: bytes, offset: int) -> bytes:
    """A message whose header is the schema at this place of a footer, which stands behind it as it is."""
    # Table at 16: version, kind of the header, the header, size of the body, each at its distance from it.
    fields = struct.pack("<HHHHHH", 12, 24, 4, 6, 8, 16)
    table = struct.pack("<ihBxI", 12, 4, SCHEMA, 40 + offset - 24) + b"\0\0\0\0" + struct.pack("<q", 0)
    out = struct.pack("<I", 16) + fields + table
    assert len(out) == 40
    out += footer + b"\0" * (-len(footer) % 8)
    return struct.pack("<II", CONTINUES, len(out)) + out


def make_footer(schema: bytes, blocks: Any) -> bytes:
    """The end of a file: the footer, its size, ``ARROW1``.

    ``schema`` is the metadata of the schema's message. It stands behind the footer's own table as it is: what
    is in a FlatBuffer refers to its surroundings only by distance.
    """
    header = Table.root(schema).table(2)
    assert header is not None
    batches = np.ascontiguousarray(blocks, dtype=BLOCK)
    first = 48 + batches.nbytes
    # Table at 16: schema, dictionaries, batches, version, each at its distance from the table.
    fields = struct.pack("<HHHHHH", 12, 18, 16, 4, 8, 12)
    table = struct.pack("<iIIIh", 12, first + header.at - 20, 36 - 24, 44 - 28, 4)
    out = struct.pack("<I", 16) + fields + table + b"\0\0" + struct.pack("<III", 0, 0, len(batches))
    assert len(out) == 48
    out += batches.tobytes() + schema
    out += b"\0" * (-len(out) % 8)
    return END + out + struct.pack("<i", len(out)) + MAGIC


# -- which buffers a column has ----------------------------------------------------------------------------


class Needs:
    """Buffers that a schema needs of a record batch: the node of each, and its bits per value."""

    def __init__(self, kinds: Iterable[pa.DataType], views: Iterable[int] = ()) -> None:
        self._views = iter(views)
        self.has_views = False
        self.nodes = 0
        # Of each buffer: the node whose length it follows, bits for each value, and further values.
        self._buffers: list[tuple[int, int, int]] = []
        # (node, node in it, how many values of that for each of this)
        self._inside: list[tuple[int, int, int]] = []
        columns = [self._add(kind) for kind in kinds]
        self.buffers = np.array(self._buffers, dtype=np.int64).reshape(-1, 3)
        self.inside = np.array(self._inside, dtype=np.int64).reshape(-1, 3)
        self.columns = np.array(columns, dtype=np.int64)

    def _add(self, kind: pa.DataType) -> int:
        pa = pyarrow()
        types = pa.types
        if isinstance(kind, pa.BaseExtensionType):
            return self._add(kind.storage_type)
        node, self.nodes = self.nodes, self.nodes + 1
        if types.is_dictionary(kind):
            self._own(node, 0, kind.index_type.bit_width)
            return node
        if types.is_null(kind):
            return node
        if types.is_run_end_encoded(kind):
            self._add(kind.run_end_type)
            self._add(kind.value_type)
            return node
        if types.is_union(kind):
            self._own(node, 8, *([] if kind.mode == "sparse" else [32]))
        elif types.is_string_view(kind) or types.is_binary_view(kind):
            self.has_views = True
            self._own(node, 0, 128, *[0] * next(self._views, 0))
        elif types.is_list_view(kind) or types.is_large_list_view(kind):
            self._own(node, 0, *[32 if types.is_list_view(kind) else 64] * 2)
        elif types.is_struct(kind) or types.is_fixed_size_list(kind):
            self._own(node, 0)
        elif types.is_list(kind) or types.is_large_list(kind) or types.is_map(kind):
            self._own(node, 0)
            self._buffers.append((node, 64 if types.is_large_list(kind) else 32, 1))
        elif types.is_string(kind) or types.is_binary(kind):
            self._own(node, 0)
            self._buffers += [(node, 32, 1), (node, 0, 0)]
        elif types.is_large_string(kind) or types.is_large_binary(kind):
            self._own(node, 0)
            self._buffers += [(node, 64, 1), (node, 0, 0)]
        else:
            self._own(node, 0, kind.bit_width)
        factor = kind.list_size if types.is_fixed_size_list(kind) else 1
        same = types.is_struct(kind) or types.is_fixed_size_list(kind)
        for number in range(kind.num_fields):
            child = self._add(kind.field(number).type)
            if same:
                self._inside.append((node, child, factor))
        return node

    def _own(self, node: int, *bits: int) -> None:
        # The first says which values are there, and may be left out.
        self._buffers += [(node, width, 0) for width in bits]


def tree_size(kind: pa.DataType) -> tuple[int, int | None]:
    """Number of nodes and buffers a type has in a record batch; None where each batch has its own number."""
    needs = Needs([kind])
    return needs.nodes, None if needs.has_views else len(needs.buffers)


def has_dictionary(kind: pa.DataType) -> bool:
    pa = pyarrow()
    if isinstance(kind, pa.BaseExtensionType):
        return has_dictionary(kind.storage_type)
    return bool(pa.types.is_dictionary(kind)) or any(
        has_dictionary(kind.field(number).type) for number in range(kind.num_fields)
    )
