"""EXIF and ICC profiles of encoded images: read, and attached to re-encoded ones.

JPEG, PNG, WebP and TIFF can hold both. Only bytes are parsed here; no library is needed.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from typing import Any, NamedTuple

from ...errors import DecodeError, EncodeError, exceptions_as
from . import tiff

EXIF, PROFILE = b"Exif\0\0", b"ICC_PROFILE\0"
# Real profiles have some kilobytes, a few of them a megabyte or two. In a PNG they are packed.
MAX_PROFILE_BYTES = 16 << 20
MAX_SEGMENT_BYTES = 65533


class Metadata(NamedTuple):
    """Metadata of an image: EXIF as a small TIFF, an ICC profile; empty if there is none."""

    exif: bytes = b""
    icc: bytes = b""


def orientation(data: Any) -> int:
    """EXIF orientation of an image, 1 to 8; 1 (upright) if it has none."""
    view = _view(data)
    blob = view if tiff.order_of(view) else _exif(view)
    order = tiff.order_of(blob)
    if order is None:
        return 1
    for tag, kind, _, _, where in tiff.entries(blob, tiff.first_offset(blob, order), order):
        if tag == tiff.ORIENTATION and kind == tiff.SHORT:
            value = struct.unpack_from(order + "H", blob, where)[0]
            return value if 1 <= value <= 8 else 1
    return 1


def read(data: Any) -> Metadata:
    """The EXIF and the ICC profile of an image."""
    view = _view(data)
    order = tiff.order_of(view)
    if order is not None:
        return _read_tiff(view, order)
    return Metadata(bytes(_exif(view)), _icc(view))


def upright(metadata: Metadata) -> Metadata:
    """Return the metadata for pixels that have been turned upright."""
    blob = bytearray(metadata.exif)
    order = tiff.order_of(blob)
    if order is None:
        return metadata
    for tag, kind, _, _, where in list(tiff.entries(blob, tiff.first_offset(blob, order), order)):
        if tag == tiff.ORIENTATION and kind == tiff.SHORT:
            struct.pack_into(order + "H", blob, where, 1)
    return metadata._replace(exif=bytes(blob))


def attach(data: bytes, encoding: str, metadata: Metadata, *, channels: int = 3) -> bytes:
    """An encoded image with EXIF and profile, which it has none of yet; unchanged where it can hold none.

    A profile for another number of channels than the image's is left out: it says nothing about them.
    """
    space = bytes(metadata.icc[16:20])
    if {b"GRAY": (1, 2), b"RGB ": (3, 4), b"CMYK": (4,)}.get(space, (channels,)).count(channels) == 0:
        metadata = metadata._replace(icc=b"")
    if not any(metadata) or encoding not in _ATTACH:
        return data
    return _ATTACH[encoding](data, metadata)


def is_lossy_webp(data: Any) -> bool:
    """True for a WebP whose pixels are stored with loss."""
    view = _view(data)
    return _encoding(view) == "webp" and any(kind == b"VP8 " for kind, _, _ in _webp_chunks(view))


def _view(data: Any) -> memoryview:
    return memoryview(data).cast("B")


def _encoding(view: memoryview) -> str:
    head = bytes(view[:12])
    if head.startswith(b"\xff\xd8\xff"):
        return "jpeg"
    if head.startswith(b"\x89PNG\r\n\x1a\n"):
        return "png"
    return "webp" if head.startswith(b"RIFF") and head.endswith(b"WEBP") else ""


def _exif(view: memoryview) -> bytes | memoryview:
    """The EXIF data of an image that is no TIFF."""
    for kind, start, end in _blocks(view):
        # Some writers put the prefix of a JPEG into other encodings, too.
        prefixed = bytes(view[start : start + 6]) == EXIF
        if kind in (b"eXIf", b"EXIF") or (kind == 0xE1 and prefixed):
            return view[start + 6 * prefixed : end]
    return b""


def _blocks(view: memoryview) -> Iterator[tuple[int | bytes, int, int]]:
    """(marker or type, start, end) of the segments or chunks of an image that is no TIFF."""
    walks = {"jpeg": _jpeg_segments, "png": _png_chunks, "webp": _webp_chunks}
    encoding = _encoding(view)
    return walks[encoding](view) if encoding else iter(())


def _icc(view: memoryview) -> bytes:
    parts: dict[int, bytes] = {}
    for kind, start, end in _blocks(view):
        if kind == b"iCCP":
            return _unpack_profile(bytes(view[start:end]))
        if kind == b"ICCP":
            return bytes(view[start:end])
        if kind == 0xE2 and end - start >= 14 and bytes(view[start : start + 12]) == PROFILE:
            parts[view[start + 12]] = bytes(view[start + 14 : end])
    return b"".join(parts[number] for number in sorted(parts))


def _unpack_profile(chunk: bytes) -> bytes:
    name, _, packed = chunk.partition(b"\0")
    unpack = zlib.decompressobj()
    with exceptions_as(DecodeError, "its ICC profile is damaged", zlib.error):
        profile = unpack.decompress(packed[1:], MAX_PROFILE_BYTES)
    if unpack.unconsumed_tail:
        raise DecodeError(f"its ICC profile unpacks to more than {MAX_PROFILE_BYTES} bytes")
    return profile if len(name) < 80 else b""


def _jpeg_segments(view: memoryview) -> Iterator[tuple[int | bytes, int, int]]:
    """(marker, start, end) of the segments before the pixels."""
    position, size = 2, len(view)
    while position + 4 <= size:
        if view[position] != 0xFF:
            return
        marker = view[position + 1]
        if marker == 0xFF:
            position += 1
            continue
        if marker in (0xD9, 0xDA):
            return
        if marker == 0x01 or 0xD0 <= marker <= 0xD8:
            position += 2
            continue
        end = position + 2 + (view[position + 2] << 8 | view[position + 3])
        if end > size or end < position + 4:
            return
        yield marker, position + 4, end
        position = end


def _png_chunks(view: memoryview) -> Iterator[tuple[int | bytes, int, int]]:
    position = 8
    while position + 12 <= len(view):
        length, kind = struct.unpack_from(">I4s", view, position)
        end = position + 8 + length
        if end + 4 > len(view) or kind == b"IEND":
            return
        yield kind, position + 8, end
        position = end + 4


def _webp_chunks(view: memoryview) -> Iterator[tuple[bytes, int, int]]:
    position = 12
    while position + 8 <= len(view):
        kind, length = struct.unpack_from("<4sI", view, position)
        end = position + 8 + length
        if end > len(view):
            return
        yield kind, position + 8, end
        position = end + length % 2


def _read_tiff(view: memoryview, order: str) -> Metadata:
    directory = tiff.read_directory(view, tiff.first_offset(view, order), order, max_bytes=MAX_PROFILE_BYTES)
    profile = directory.get(tiff.ICC)
    icc = profile.data if isinstance(profile, tiff.Value) else b""
    tags = {tag: value for tag, value in directory.items() if tag not in tiff.STRUCTURE}
    if not tags:
        return Metadata(b"", icc)
    return Metadata(b"II*\0" + struct.pack("<I", 8) + tiff.write_directory(tags, 8), icc)


def _attach_to_jpeg(data: bytes, metadata: Metadata) -> bytes:
    new = []
    if metadata.exif:
        if len(metadata.exif) + len(EXIF) > MAX_SEGMENT_BYTES:
            raise EncodeError(f"a JPEG cannot hold EXIF data of {len(metadata.exif)} bytes")
        new.append(_segment(0xE1, EXIF + metadata.exif))
    size = MAX_SEGMENT_BYTES - len(PROFILE) - 2
    parts = [metadata.icc[position : position + size] for position in range(0, len(metadata.icc), size)]
    if len(parts) > 255:
        raise EncodeError(f"a JPEG cannot hold an ICC profile of {len(metadata.icc)} bytes")
    for number, part in enumerate(parts, 1):
        new.append(_segment(0xE2, PROFILE + bytes([number, len(parts)]) + part))
    # Behind the JFIF segment, which comes first.
    first = next(_jpeg_segments(_view(data)), (0, 0, 2))
    position = first[2] if first[0] == 0xE0 else 2
    return b"".join([data[:position], *new, data[position:]])


def _segment(marker: int, data: bytes) -> bytes:
    return struct.pack(">BBH", 0xFF, marker, len(data) + 2) + data


def _attach_to_png(data: bytes, metadata: Metadata) -> bytes:
    new = []
    if metadata.icc:
        new.append(_chunk(b"iCCP", b"ICC profile\0\0" + zlib.compress(metadata.icc)))
    if metadata.exif:
        new.append(_chunk(b"eXIf", metadata.exif))
    # Behind the header.
    return b"".join([data[:33], *new, data[33:]])


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def _attach_to_webp(data: bytes, metadata: Metadata) -> bytes:
    chunks = [(kind, data[start:end]) for kind, start, end in _webp_chunks(_view(data))]
    profile, exif, alpha = 0x20, 0x08, 0x10
    if chunks[0][0] == b"VP8X":
        _, head = chunks.pop(0)
        flags, size = head[0], head[4:10]
    else:
        kind, body = chunks[0]
        if kind == b"VP8L":
            packed = int.from_bytes(body[1:5], "little")
            width, height = (packed & 0x3FFF), (packed >> 14 & 0x3FFF)
            flags = alpha if packed >> 28 & 1 else 0
        else:
            width, height = (side & 0x3FFF for side in struct.unpack_from("<HH", body, 6))
            width, height, flags = width - 1, height - 1, 0
        size = width.to_bytes(3, "little") + height.to_bytes(3, "little")
    if metadata.icc:
        flags |= profile
        chunks.insert(0, (b"ICCP", metadata.icc))
    if metadata.exif:
        flags |= exif
        chunks.append((b"EXIF", metadata.exif))
    chunks.insert(0, (b"VP8X", bytes([flags, 0, 0, 0]) + size))
    body = b"".join(
        kind + struct.pack("<I", len(data)) + data + b"\0" * (len(data) % 2) for kind, data in chunks
    )
    return b"RIFF" + struct.pack("<I", len(body) + 4) + b"WEBP" + body


def _attach_to_tiff(data: bytes, metadata: Metadata) -> bytes:
    """With a new directory at the end; the pixels stay where they are. We write little-endian files."""
    directory = tiff.read_directory(data, tiff.first_offset(data, "<"), "<")
    added: tiff.Directory = {}
    order = tiff.order_of(metadata.exif)
    if order is not None:
        exif_tags = tiff.read_directory(metadata.exif, tiff.first_offset(metadata.exif, order), order)
        added = {tag: value for tag, value in exif_tags.items() if tag not in tiff.STRUCTURE}
    if metadata.icc:
        added[tiff.ICC] = tiff.Value(tiff.UNDEFINED, metadata.icc)
    data += b"\0" * (len(data) % 2)
    return (
        data[:4]
        + struct.pack("<I", len(data))
        + data[8:]
        + tiff.write_directory({**directory, **added}, len(data))
    )


_ATTACH = {"jpeg": _attach_to_jpeg, "png": _attach_to_png, "webp": _attach_to_webp, "tiff": _attach_to_tiff}
