"""Arrow's IPC files and streams: their layout, and what their headers claim held against their bytes.

A stream is a row of messages: ``FF FF FF FF``, the size of the metadata, the metadata (a FlatBuffer), and the
body. The first message is the schema, then come dictionaries and record batches; a size of 0 ends the stream.
A file is ``ARROW1``, a stream, and a footer that says where the messages are. The metadata of a record batch
says how many rows it has, how many values of each column are missing, and where in its body each buffer lies.
Nothing here is trusted: a number that leads out of its bytes is damage. The formats that are such files, or
hold them in their own, read them through :class:`Part`.
"""

from __future__ import annotations

import contextlib
import struct
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ...codecs.arrow import pyarrow
from ...codecs.arrow.hugging_face import is_missing, with_files
from ...codecs.arrow.infer import check_names, has_gaps, is_whole_list
from ...codecs.arrow.types import is_file_struct
from ...errors import BatchplantError, DamagedError, SchemaError, exceptions_as
from ...schema.columns import I64, as_bytes
from ...storage import MappedSource, Source, limits, open_source

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


# What mostly holds the metadata of a message.
MESSAGE_HEAD = 4096
# Packed buffers begin with their unpacked size; -1: this one is not packed after all.
PREFIX, AS_IT_IS = 8, -1


class Part:
    """One file: its schema, and where its record batches are."""

    def __init__(self, file: str | Source) -> None:
        self.source: Source = file if isinstance(file, Source) else open_source(file)
        self.path = path = self.source.path
        self.ended = True
        self._dictionaries: list[Message] = []
        self.batches: list[Batch] = []
        try:
            self._open()
        except BatchplantError as error:
            raise error.at(path=path) from None
        # The library raises what it likes on nonsense.
        except Exception as error:
            message = str(error).strip().split("\n")[0]
            raise DamagedError(f"it cannot be read: {message}", path=path) from None

    def _open(self) -> None:
        head = self.source.view(0, min(8, self.source.size)).tobytes()
        if head.startswith(FEATHER_1):
            raise SchemaError(
                "this is Feather's first version, which is not read; write it again with "
                "pandas.read_feather(…).to_feather(…)"
            )
        self.file = head.startswith(MAGIC)
        messages = self._listed() if self.file else self._walked()
        self.schema = pyarrow().ipc.read_schema(pyarrow().py_buffer(self._first))
        check_names(self.schema)
        for message in messages:
            if message.kind == BATCH:
                self.batches.append(read_batch(message))
            elif message.kind == DICTIONARY:
                self._dictionaries.append(message)
            else:
                raise DamagedError(f"a message of kind {message.kind}", offset=message.offset)
        self.rows = [batch.rows for batch in self.batches]
        check_rows(self.source, self.schema, self.batches)
        check_dictionaries(self.source, [read_batch(dictionary) for dictionary in self._dictionaries])
        self._has_dictionaries = any(has_dictionary(field.type) for field in self.schema)

    def _listed(self) -> list[Message]:
        self._first, dictionaries, batches = read_footer(self.source)
        offsets = np.array([*dictionaries, *batches], dtype=np.int64)
        if not isinstance(self.source, MappedSource) and self.source.outside(offsets, offsets * 0) is None:
            self.source.request(offsets, np.minimum(MESSAGE_HEAD, self.source.size - offsets))
        messages = [read_message(self.source, offset) for offset in (*dictionaries, *batches)]
        kinds = [None if message is None else message.kind for message in messages]
        if kinds != [DICTIONARY] * len(dictionaries) + [BATCH] * len(batches):
            raise DamagedError("the footer points at something else than record batches")
        return [message for message in messages if message is not None]

    def _walked(self) -> list[Message]:
        first = read_message(self.source, 0)
        if first is None or first.kind != SCHEMA:
            raise DamagedError("it does not begin with a schema")
        self._first = self.source.view(0, first.end).tobytes()
        messages, offset = [], first.end
        while (message := read_message(self.source, offset)) is not None:
            messages.append(message)
            offset = message.end
        self.ended = offset + 4 <= self.source.size
        return messages

    def _buffer(self, start: int, end: int) -> pa.Buffer:
        return pyarrow().py_buffer(self.source.view(start, end - start))

    def load(self, number: int, names: Sequence[str]) -> pa.Table:
        """These columns of a record batch."""
        pa = pyarrow()
        batch = self.batches[number]
        message = batch.message
        if not batch.packed and not self._has_dictionaries:
            parsed = pa.ipc.read_message(self._buffer(message.offset, message.end))
            return pa.ipc.read_record_batch(parsed, self.schema).select(names)
        numbers = [self.schema.get_field_index(name) for name in names]
        options = pa.ipc.IpcReadOptions(included_fields=numbers)
        if self.file and isinstance(self.source, MappedSource):
            data = pa.BufferReader(self._buffer(0, self.source.size))
            return pa.ipc.open_file(data, options=options).get_batch(number).select(names)
        before = [batch for batch in self._dictionaries if self.file or batch.offset < message.offset]
        pieces = [self.source.view(batch.offset, batch.end - batch.offset) for batch in (*before, message)]
        data = pa.py_buffer(np.concatenate([as_bytes(self._first), *pieces]))
        stream = pa.ipc.open_stream(pa.BufferReader(data), options=options)
        return stream.read_next_batch().select(names)

    def first_rows(self, names: Sequence[str]) -> pa.Table:
        """A few rows; None where there are none, or they cannot be read."""
        try:
            table = self.load(0, names).slice(0, 16) if self.rows and names else None
            return None if table is None else with_files(table, self.path)
        except Exception:
            return None

    def starts(self) -> dict[str, tuple[int, int | None]]:
        """The numbers of the first node and buffer of every column; None where batches differ in that."""
        starts: dict[str, tuple[int, int | None]] = {}
        node, buffer = 0, 0
        all_known = True
        for field in self.schema:
            starts[field.name] = (node, buffer if all_known else None)
            nodes, buffers = tree_size(field.type)
            node, buffer = node + nodes, buffer + (buffers or 0)
            all_known = all_known and buffers is not None
        return starts

    def nulls(self) -> set[str]:
        """The columns with missing values."""
        names = set()
        # Whether some value that others refer to is missing.
        missing_in_dictionary = any(read_batch(message).nulls.any() for message in self._dictionaries)
        for field in self.schema:
            nodes = [self.starts()[field.name][0]]
            if is_file_struct(field.type):
                # An image is missing where its bytes are; both parts of the struct are one node.
                nodes.append(nodes[0] + 1 + [part.name for part in field.type].index("bytes"))
            packed = pyarrow().types.is_dictionary(field.type) and missing_in_dictionary
            batches = [
                n for n, b in enumerate(self.batches) if max(nodes) >= len(b.nulls) or b.nulls[nodes].any()
            ]
            if packed or (
                batches and not (is_file_struct(field.type) and self._has_paths(field.name, batches))
            ):
                names.add(field.name)
        return names

    def _has_paths(self, name: str, batches: Sequence[int]) -> bool:
        """True if files that lack their bytes have a path in all of these batches."""
        try:
            return not any(is_missing(self.load(number, [name]).column(name)) for number in batches)
        # Whoever reads it will meet the same damage, and say where.
        except Exception:
            return False

    def gaps(self) -> set[str]:
        """The lists of whole numbers inside of which some are missing."""
        names = set()
        for field in self.schema:
            first = self.starts()[field.name][0]
            inside = slice(first + 1, first + tree_size(field.type)[0])
            if not is_whole_list(field.type):
                continue
            for number in range(len(self.rows)):
                # Those of a list that is missing as a whole are counted, too.
                if self.batches[number].nulls[inside].any():
                    # Whoever reads it will meet the same damage, and say where.
                    with contextlib.suppress(Exception):
                        if has_gaps(self.load(number, [field.name]).column(field.name)):
                            names.add(field.name)
                            break
        return names

    def close(self) -> None:
        self.source.close()


def check_rows(source: Source, schema: pa.Schema, batches: list[Batch]) -> None:
    """DamagedError where the batches claim more than they have."""
    rows = sum(batch.rows for batch in batches)
    # Whatever a row is made of, it takes a byte.
    limits.check(f"a table of {rows:,} rows", rows, source.size)
    needs: Needs | None = None
    for batch in batches:
        if needs is None or len(batch.views):
            needs = Needs((field.type for field in schema), batch.views.tolist())
        try:
            _check(source, batch, needs)
        except (ValueError, IndexError, OverflowError) as error:
            raise DamagedError(
                f"its record batch of {batch.rows} rows is damaged: {error}", offset=batch.message.offset
            ) from None


def check_dictionaries(source: Source, dictionaries: list[Batch]) -> None:
    """The same for the values that dictionaries hold, whose types are not known here."""
    for dictionary in dictionaries:
        limits.check(f"a dictionary of {dictionary.rows:,} values", dictionary.rows, dictionary.message.size)
        try:
            _unpacked(source, dictionary)
        except ValueError as error:
            raise DamagedError(
                f"a dictionary is damaged: {error}", offset=dictionary.message.offset
            ) from None


def _check(source: Source, batch: Batch, needs: Needs) -> None:
    lengths, sizes = batch.lengths, _unpacked(source, batch)
    if needs.nodes != len(lengths) or len(needs.buffers) > len(sizes):
        raise ValueError(f"{len(lengths)} columns and {len(sizes)} buffers do not fit its schema")
    if (lengths[needs.columns] != batch.rows).any() or (lengths < 0).any():
        raise ValueError("its columns differ in length")
    # Python's numbers: sizes that are lies may be of any size.
    if any(lengths[inner] < int(lengths[outer]) * factor for outer, inner, factor in needs.inside.tolist()):
        raise ValueError("a column is longer than what it is made of")
    nodes, bits, extra = needs.buffers.T
    if len(lengths) and int(lengths.max()) > 2**56 // max(1, int(bits.max(initial=0))):
        raise ValueError(f"a column of {lengths.max()} values")
    of = lengths[nodes]
    needed = np.where(of > 0, ((of + extra) * bits + 7) // 8, 0)
    short = np.flatnonzero(needed > sizes[: len(needed)])
    if len(short):
        raise ValueError(f"a column needs {needed[short[0]]} bytes, and {sizes[short[0]]} are there")


def _unpacked(source: Source, batch: Batch) -> I64:
    """The bytes of each buffer, unpacked; more than is allowed is a DamagedError."""
    sizes: I64 = batch.buffers["size"].astype(np.int64)
    if not batch.packed:
        return sizes
    prefixed = np.flatnonzero(sizes >= PREFIX)
    starts = batch.message.body + batch.buffers["offset"][prefixed].astype(np.int64)
    stated = (
        source.gather(starts, np.full(len(prefixed), PREFIX, dtype=np.int64))
        .data.view("<i8")
        .astype(np.int64)
    )
    unpacked = np.zeros(len(sizes), dtype=np.int64)
    unpacked[prefixed] = np.where(stated == AS_IT_IS, sizes[prefixed] - PREFIX, stated)
    if (unpacked < 0).any():
        raise ValueError(f"a buffer of {unpacked.min()} bytes")
    for number in np.flatnonzero(unpacked > limits.max_bytes()).tolist():
        limits.check("a buffer", int(unpacked[number]), int(sizes[number]))
    return unpacked
