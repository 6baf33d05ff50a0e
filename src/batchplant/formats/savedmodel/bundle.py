"""Checkpoints of TensorFlow ("tensor bundles"): NAME.index beside NAME.data-00000-of-00001 and so on.

The index is a sorted table. Its key "" holds the number of data files. Every other key is the name of a
tensor, and its value says of which type and shape it is and where its bytes lie. A tensor that was saved in
parts has no bytes of its own: its value lists the parts, and each has an entry whose key is made of the name
and the part.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from ... import _native
from ...codecs import protobuf
from ...codecs.protobuf import read_varint
from ...errors import DamagedError, SchemaError

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


@dataclasses.dataclass
class Stored:
    """A tensor as the index describes it."""

    key: str
    code: int = 0
    shape: tuple[int, ...] = ()
    shard: int = 0
    start: int = 0
    size: int = 0
    crc: int = 0


class Bundle:
    """The index of a checkpoint."""

    def __init__(self, data: memoryview) -> None:
        table = read_table(data)
        self.shards = self._header(table.pop(b"", None))
        # Keys of slices begin with a zero.
        if any(key[:1] == b"\0" for key in table):
            raise SchemaError(
                "a variable is saved in slices (a partitioned variable), which are not read; "
                "load the checkpoint with TensorFlow, and save its variables whole"
            )
        self.tensors = [self._stored(key, value) for key, value in table.items()]

    def _header(self, value: bytes | None) -> int:
        if value is None:
            raise DamagedError("a table without the header of a checkpoint")
        shards = big = 0
        for part in protobuf.parts(memoryview(value), 0, len(value)):
            if part[:2] == (1, protobuf.VARINT):
                shards = part.value
            elif part[:2] == (2, protobuf.VARINT):
                big = part.value
        if big:
            raise DamagedError("a checkpoint with big-endian numbers, which is not read here")
        if not 0 <= shards <= MAX_SHARDS:
            raise DamagedError(f"a checkpoint of {shards} files")
        return shards

    def _stored(self, key: bytes, value: bytes) -> Stored:
        try:
            stored = Stored(key.decode())
            view = memoryview(value)
            for part in protobuf.parts(view, 0, len(view)):
                self._read_field(stored, view, part)
        except (DamagedError, UnicodeDecodeError) as error:
            # The offset is one inside of the entry.
            raise DamagedError(f"the entry of {key[:200]!r} is damaged: {error}") from None
        if not 0 <= stored.shard < self.shards:
            raise DamagedError(f"{stored.key!r} lies in file {stored.shard} of {self.shards}")
        return stored

    def _read_field(self, stored: Stored, view: memoryview, part: protobuf.Part) -> None:
        match part.number, part.kind:
            case 1, protobuf.VARINT:
                stored.code = part.value
            case 2, protobuf.BYTES:
                stored.shape = shape_of(view, part.start, part.end)
            case 3, protobuf.VARINT:
                stored.shard = protobuf.signed(part.value)
            case 4, protobuf.VARINT:
                stored.start = protobuf.signed(part.value)
            case 5, protobuf.VARINT:
                stored.size = protobuf.signed(part.value)
            case 6, protobuf.FIXED32:
                stored.crc = int.from_bytes(view[part.start : part.end], "little")


def shape_of(view: memoryview, start: int, end: int) -> tuple[int, ...]:
    """A TensorShapeProto whose sizes are all known."""
    shape = open_shape(view, start, end)
    if shape is None or None in shape:
        raise DamagedError("a stored tensor has a shape that is not known", offset=start)
    return tuple(size for size in shape if size is not None)


def open_shape(view: memoryview, start: int, end: int) -> tuple[int | None, ...] | None:
    """A TensorShapeProto: None for a size, or for all, that is not known."""
    sizes: list[int | None] = []
    for part in protobuf.parts(view, start, end):
        if part[:2] == (3, protobuf.VARINT) and part.value:
            return None
        if part[:2] != (2, protobuf.BYTES):
            continue
        size = 0
        for inner in protobuf.parts(view, part.start, part.end):
            if inner[:2] == (1, protobuf.VARINT):
                size = protobuf.signed(inner.value)
        sizes.append(size if size >= 0 else None)
        if len(sizes) > MAX_DIMENSIONS:
            raise DamagedError(f"a shape of more than {MAX_DIMENSIONS} dimensions", offset=start)
    return tuple(sizes)
