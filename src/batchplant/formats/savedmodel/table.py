"""Sorted tables, the file format of LevelDB in which TensorFlow keeps the index of a checkpoint.

A table is blocks, then a footer of 48 bytes that names the block with the list of the others. A block is
entries and a list of places to begin at; every entry says how many bytes of its key are those of the key
before. Behind each block stand a byte (0: as it is, 1: packed by Snappy) and a checksum.
"""

from __future__ import annotations

from collections.abc import Iterator

from ... import _native
from ...codecs.protobuf import read_varint
from ...errors import DamagedError

MAGIC = bytes.fromhex("57fb808b247547db")
FOOTER = 48
# Behind a block.
TRAILER = 5
# Keys are names; a table that makes more of its bytes than this was not written, but thought out.
LONGEST_KEY = 1 << 16
KEYS_ALWAYS, KEYS_PER_BYTE = 16 << 20, 64
# A copy of 64 bytes takes three.
SNAPPY_MOST = 24


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
    if data[end] == 1:
        return memoryview(unsnap(data[start:end], start))
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
            own, offset = read_varint(block, offset, end)
            size, offset = read_varint(block, offset, end)
        except DamagedError as error:
            error.offset = start
            raise
        if shared > len(key) or offset + own + size > end or shared + own > LONGEST_KEY:
            raise DamagedError("an entry of the table reaches beyond its block", offset=start)
        key = key[:shared] + bytes(block[offset : offset + own])
        yield key, bytes(block[offset + own : offset + own + size])
        offset += own + size


def unsnap(data: memoryview, offset: int) -> bytearray:
    """Unpack Snappy; ``offset`` is where the bytes lie, for errors."""
    wrong = DamagedError("a block of the table is no Snappy", offset=offset)
    try:
        size, at = read_varint(data, 0, len(data))
    except DamagedError:
        raise wrong from None
    if size > SNAPPY_MOST * len(data):
        raise wrong
    out = bytearray()
    while at < len(data):
        tag = data[at]
        kind, at = tag & 3, at + 1
        if kind == 0:
            count, more = tag >> 2, max(0, (tag >> 2) - 59)
            if more:
                count = int.from_bytes(data[at : at + more], "little")
            at += more
            out += data[at : at + count + 1]
            at += count + 1
            if at > len(data):
                raise wrong
        else:
            more = (0, 1, 2, 4)[kind]
            back = int.from_bytes(data[at : at + more], "little")
            count = (tag >> 2) + 1
            if kind == 1:
                back, count = back | tag >> 5 << 8, (tag >> 2 & 7) + 4
            at += more
            if at > len(data) or not 0 < back <= len(out):
                raise wrong
            for _ in range(0, count, back):
                piece = out[len(out) - back : len(out) - back + min(back, count)]
                out += piece
                count -= len(piece)
        if len(out) > size:
            raise wrong
    if len(out) != size:
        raise wrong
    return out
