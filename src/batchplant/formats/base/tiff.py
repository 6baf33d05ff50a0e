"""TIFF files: directories and their tags, georeference, pages in tiles or strips, levels.

Classic TIFF and BigTIFF. Sizes are checked before anything is read.
"""

from __future__ import annotations

import dataclasses
import math
import struct
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from ... import _native
from ...codecs import image
from ...codecs.media.tiff import MAX_PAGES, RGB, YCBCR
from ...codecs.xml import Parser
from ...data.arrays import Array, ChunkedArray, Index
from ...errors import BatchplantError, DamagedError, OptionError, SchemaError, exceptions_as, needs
from ...schema.columns import I64, U8, AnyArray, AnyDType
from ...storage import MappedSource, Source, limits
from ...storage.cache import ChunkCache, ChunkKeys
from ...storage.spans import SourceRun

SUBFILE_TYPE, DESCRIPTION, SUB_IFDS = 254, 270, 330
CODES = {
    1: "u1", 2: "u1", 3: "u2", 4: "u4", 5: "u4", 6: "i1", 7: "u1", 8: "i2", 9: "i4", 10: "i4", 11: "f4",
    12: "f8", 13: "u4", 16: "u8", 17: "i8", 18: "u8",
}  # fmt: skip
RATIONALS = (5, 10)
MAX_TAGS, MAX_VALUES, MAX_TEXT = 4096, 1 << 16, 64 << 20
# Directories that overlap could be read without end: a tag has 12 bytes, and is read a few times.
TAG_BYTES, READS, MAX_READ_TAGS = 12, 4, 1 << 22


class Directory:
    """Tags of a page. Values that lie elsewhere in the file are read when they are asked for."""

    def __init__(self, file: TiffFile, offset: int) -> None:
        self.offset, self._file = offset, file
        source, order = file.source, file.order
        code, width, number = ("Q", 20, "Q") if file.big else ("H", 12, "I")
        start = offset + struct.calcsize(order + code)
        (count,) = struct.unpack(order + code, source.view(offset, start - offset).tobytes())
        file.tags_left -= count
        if not 0 < count <= MAX_TAGS or file.tags_left < 0:
            raise DamagedError(f"a directory claims {count} tags", offset=offset)
        end = start + width * count
        table = source.view(start, end - start + struct.calcsize(number)).tobytes()
        self._tags: dict[int, tuple[int, int, int]] = {}
        for place in range(0, width * count, width):
            tag, kind, values = struct.unpack_from(f"{order}HH{number}", table, place)
            inline = place + 4 + struct.calcsize(number)
            size = values * np.dtype(CODES.get(kind, "u1")).itemsize * (1 + (kind in RATIONALS))
            where = start + inline
            if size > struct.calcsize(number):
                (where,) = struct.unpack_from(order + number, table, inline)
            if kind in CODES:
                self._tags.setdefault(tag, (kind, values, where))
        (self.next,) = struct.unpack_from(order + number, table, width * count)

    def __contains__(self, tag: int) -> bool:
        return tag in self._tags

    def values(self, tag: int, most: int = MAX_VALUES) -> AnyArray:
        """Return the values of a tag; none where it is missing, DamagedError for more than ``most``."""
        kind, count, where = self._tags.get(tag, (1, 0, 0))
        if count > most:
            raise DamagedError(
                f"the tag {tag} has {count} values, and at most {most} are needed", offset=where
            )
        dtype = np.dtype(self._file.order + CODES[kind])
        count *= 1 + (kind in RATIONALS)
        if not count:
            return np.empty(0, dtype.newbyteorder("="))
        data = self._file.source.view(where, count * dtype.itemsize)
        return np.frombuffer(data.tobytes(), dtype).astype(dtype.newbyteorder("="))

    def read(self, start: int, size: int) -> bytes:
        """Return bytes of the file."""
        return self._file.source.view(start, size).tobytes()

    def number(self, tag: int, default: int) -> int:
        """Return the first value of a tag as a whole number."""
        kind, count, where = self._tags.get(tag, (1, 0, 0))
        if not count or kind in (*RATIONALS, 11, 12):
            return default
        size = np.dtype(CODES[kind]).itemsize
        return int(
            np.frombuffer(self._file.source.view(where, size).tobytes(), self._file.order + CODES[kind])[0]
        )

    def text(self, tag: int) -> str:
        return (
            self.values(tag, MAX_TEXT).astype(np.uint8).tobytes().split(b"\0")[0].decode("utf-8", "replace")
        )


class TiffFile:
    """The header of a file, and its directories."""

    def __init__(self, source: Source) -> None:
        head = source.view(0, min(16, source.size)).tobytes()
        self.source = source
        self.tags_left = min(READS * (source.size // TAG_BYTES) + MAX_TAGS, MAX_READ_TAGS)
        self.order: Any = {b"II": "<", b"MM": ">"}.get(head[:2], "")
        version = int.from_bytes(head[2:4], "big" if self.order == ">" else "little")
        self.big = version == 43
        if not self.order or version not in (42, 43) or len(head) < (16 if self.big else 8):
            raise DamagedError("not a TIFF that can be read: its header is no TIFF's", offset=0)
        if not self.big and source.size >> 32:
            raise SchemaError("a TIFF above 4 GiB has to be a BigTIFF; NDPI of that size is not read")
        if self.big and head[4:8] != struct.pack(self.order + "HH", 8, 0):
            raise DamagedError("not a TIFF that can be read: offsets have another size than 8", offset=4)
        (self._first,) = struct.unpack(
            self.order + ("Q" if self.big else "I"), head[8:16] if self.big else head[4:8]
        )

    def pages(self) -> Iterator[Directory]:
        """Yield the directories of the chain; DamagedError where it leads back or is too long."""
        seen: set[int] = set()
        offset = self._first
        while offset:
            if offset in seen or len(seen) == MAX_PAGES:
                raise DamagedError("its pages have no end", offset=offset)
            seen.add(offset)
            page = Directory(self, offset)
            yield page
            offset = page.next
        if not seen:
            raise DamagedError("not a TIFF that can be read: it has no pages", offset=4)

    def below(self, page: Directory) -> list[Directory]:
        """Return the directories that a page names as its own: levels of a pyramid."""
        offsets = page.values(SUB_IFDS).tolist()
        if len(offsets) > MAX_PAGES or len(set(offsets)) < len(offsets):
            raise DamagedError(f"a page names {len(offsets)} levels", offset=page.offset)
        return [Directory(self, int(offset)) for offset in offsets]


PIXEL_SCALE, TIEPOINTS, TRANSFORMATION, GEO_KEYS, GEO_TEXTS = 33550, 33922, 34264, 34735, 34737
RASTER_TYPE, CITATION, GEOGRAPHIC, GEOGRAPHIC_CITATION, PROJECTED, PROJECTED_CITATION = (
    1025, 1026, 2048, 2049, 3072, 3073,
)  # fmt: skip
PIXEL_IS_POINT, USER_DEFINED = 2, 32767
NODATA = 42113
MAX_KEYS = 4096

# a, b, c, d, e, f: x = a·column + b·row + c, y = d·column + e·row + f, of the corner of a pixel.
Transform = tuple[float, float, float, float, float, float]


def georeference(page: Directory) -> dict[str, Any]:
    """Return ``transform``, ``crs`` and ``nodata`` of a page, those that it has."""
    keys = _keys(page)
    result: dict[str, Any] = {}
    transform = _transform(page)
    if transform is not None:
        a, b, c, d, e, f = transform
        if keys.get(RASTER_TYPE) == PIXEL_IS_POINT:
            c, f = c - (a + b) / 2, f - (d + e) / 2
        result["transform"] = (a, b, c, d, e, f)
    codes = [keys.get(name) for name in (PROJECTED, GEOGRAPHIC)]
    texts = [keys.get(name) for name in (PROJECTED_CITATION, CITATION, GEOGRAPHIC_CITATION)]
    names = [f"EPSG:{code}" for code in codes if isinstance(code, int) and 1024 <= code < USER_DEFINED]
    names += [text for text in texts if isinstance(text, str)]
    if names:
        result["crs"] = names[0]
    nodata = page.text(NODATA).strip()
    if nodata:
        try:
            result["nodata"] = float(nodata)
        except ValueError:
            result["nodata"] = nodata
    return result


def _transform(page: Directory) -> Transform | None:
    matrix, scale, ties = (
        page.values(tag).astype(np.float64).tolist() for tag in (TRANSFORMATION, PIXEL_SCALE, TIEPOINTS)
    )
    if len(matrix) == 16:
        a, b, _, c, d, e, _, f = matrix[:8]
    elif len(scale) >= 2 and len(ties) >= 6:
        a, b, d, e = scale[0], 0.0, 0.0, -scale[1]
        c, f = ties[3] - ties[0] * a, ties[4] - ties[1] * e
    else:
        return None
    transform = (a, b, c, d, e, f)
    if not all(map(math.isfinite, transform)) or not a * e - b * d:
        raise DamagedError(f"its georeference is damaged: {transform}", offset=page.offset)
    return transform


def _keys(page: Directory) -> dict[int, int | str]:
    """Return the keys that are numbers or texts."""
    numbers, texts = page.values(GEO_KEYS).tolist(), page.text(GEO_TEXTS)
    keys: dict[int, int | str] = {}
    for place in range(4, min(len(numbers), 4 * MAX_KEYS) - 3, 4):
        key, tag, count, value = map(int, numbers[place : place + 4])
        if tag == 0:
            keys[key] = value
        elif tag == GEO_TEXTS:
            keys[key] = texts[value : value + count].rstrip("|")
    return keys


def scaled(transform: Transform, full: Sequence[int], level: Sequence[int]) -> Transform:
    """Return the transform of a level of this (height, width)."""
    (a, b, c, d, e, f), y, x = transform, full[0] / level[0], full[1] / level[1]
    return a * x, b * y, c, d * x, e * y, f


def window(transform: Transform | None, size: Sequence[int], bounds: Sequence[float]) -> tuple[slice, slice]:
    """Return the rows and columns that touch ``(left, bottom, right, top)``, cut to the page."""
    if transform is None:
        raise OptionError("it has no georeference: windows are by pixels only")
    a, b, c, d, e, f = transform
    with exceptions_as(OptionError, "bounds are (left, bottom, right, top)", ValueError, TypeError):
        left, bottom, right, top = map(float, bounds)
    if not (left < right and bottom < top):
        raise OptionError(f"bounds are (left, bottom, right, top), not {tuple(bounds)}")
    x, y, det = (
        np.array([left, left, right, right]) - c,
        np.array([bottom, top, bottom, top]) - f,
        a * e - b * d,
    )
    columns, rows = (e * x - b * y) / det, (a * y - d * x) / det
    picks = []
    for places, length in ((rows, size[0]), (columns, size[1])):
        # Coordinates are rounded where they were written: a thousandth of a pixel is no pixel.
        first, end = math.floor(places.min() + 1e-3), math.ceil(places.max() - 1e-3)
        picks.append(slice(max(0, first), min(length, end)))
    if any(pick.start >= pick.stop for pick in picks):
        raise OptionError(f"the bounds {tuple(bounds)} lie outside of what it covers")
    return picks[0], picks[1]


DATA = "data"
NONE, JPEG = 1, 7
NAMES = {
    1: "none", 5: "LZW", 7: "JPEG", 8: "Deflate", 32773: "PackBits", 32946: "Deflate", 34925: "LZMA",
    50000: "zstd", 33005: "JPEG 2000", 34712: "JPEG 2000", 34887: "LERC", 50001: "WebP",
}  # fmt: skip
# Tiles that are images of their own, with a header that names their size.
JPEG_2000, LERC, WEBP = (33005, 34712), 34887, 50001
DECODERS = {
    5: "lzw_decode", 8: "deflate_decode", 32773: "packbits_decode", 32946: "deflate_decode",
    34925: "lzma_decode", 50000: "zstd_decode",
}  # fmt: skip
KINDS = {1: "u", 2: "i", 3: "f", 4: "u", 6: "c"}
# No compression, differences of neighbours, differences of the bytes of floats.
PREDICTORS = (1, 2, 3)
# A marker of JPEG with the meaning of its three colours: 0 red, green and blue, 1 luma and chroma.
ADOBE = b"\xff\xee\x00\x0eAdobe\x00\x64\x00\x00\x00\x00"
GDAL_NODATA = 42113
# NDPI: a page is one JPEG, whose restart intervals are slices that are decoded by themselves.
NDPI, SLICE_STARTS, MAX_SLICES, MAX_HEADER = 65420, 65426, 1 << 24, 1 << 16
SOI, EOI = b"\xff\xd8", b"\xff\xd9"
RESTARTS = tuple(bytes((0xFF, 0xD0 + number)) for number in range(8))
# Markers SOC and SIZ of JPEG 2000 with their length and profile; width, height, left, top; width and height
# of its own tiles, each of which takes memory; colours.
J2K_SIZ, MAX_J2K_TILES = struct.Struct(">8s6I8xH"), 256
# Bytes of LERC beside the values.
LERC_OVERHEAD = 1 << 16


@dataclasses.dataclass(frozen=True)
class Layout:
    """Everything about a page but where its tiles are. Plain values, so that an index can hold it."""

    shape: tuple[int, ...]
    axes: str
    dtype: str
    chunks: tuple[int, ...]
    order: str
    tiled: bool
    bits: int
    compression: int = NONE
    predictor: int = 1
    fillorder: int = 1
    photometric: int = 1
    tables: bytes = b""
    fill: float = 0
    # Tiles are slices of one JPEG, without the header that they share (``tables``).
    sliced: bool = False

    @property
    def grid(self) -> tuple[int, ...]:
        """Number of chunks along each axis."""
        return tuple(-(-size // chunk) for size, chunk in zip(self.shape, self.chunks, strict=True))

    @property
    def size(self) -> tuple[int, int]:
        """Height and width."""
        return self.shape[self.axes.index("Y")], self.shape[self.axes.index("X")]

    @classmethod
    def of(cls, page: Directory, order: str) -> Layout:
        """Return the layout of a page; SchemaError for what is not read, DamagedError for what cannot be."""
        height, width, depth = page.number(257, 0), page.number(256, 0), page.number(32997, 1)
        colours, separate = page.number(277, 1), page.number(284, 1) == 2
        bits, kinds = set(page.values(258).tolist()) or {1}, set(page.values(339).tolist()) or {1}
        photometric, compression = page.number(262, 1), page.number(259, NONE)
        if min(height, width, depth, colours) < 1:
            shape = (depth, height, width, colours)
            raise DamagedError(f"a page has the shape {shape}", offset=page.offset)
        dtype = _dtype(bits, kinds)
        if dtype is None:
            raise SchemaError(f"pixels of {sorted(bits)} bits and kind {sorted(kinds)} are not read")
        layout = cls(
            shape=(height, width), axes="YX", dtype=dtype.str[1:], chunks=(0, 0), order=order,
            tiled=322 in page, bits=bits.pop(), compression=compression, predictor=page.number(317, 1),
            fillorder=page.number(266, 1), photometric=photometric, tables=page.values(347).tobytes(),
            fill=_fill(page.text(GDAL_NODATA), dtype),
        )  # fmt: skip
        if layout.tiled:
            chunks, deep = (page.number(323, 0), page.number(322, 0)), page.number(32998, 1)
        else:
            chunks, deep = (min(page.number(278, height), height), width), 1
        axes: list[tuple[str, int, int]] = [("Y", height, chunks[0]), ("X", width, chunks[1])]
        axes = ([("Z", depth, deep)] if depth > 1 else []) + axes
        if colours > 1:
            axes = [("S", colours, 1), *axes] if separate else [*axes, ("S", colours, colours)]
        names, shape, sides = zip(*axes, strict=True)
        if min(sides) < 1 or max(*sides, *shape) > 1 << 31:
            raise DamagedError(f"a page of shape {shape} has tiles of {sides}", offset=page.offset)
        layout = dataclasses.replace(layout, axes="".join(names), shape=shape, chunks=sides)
        if compression == JPEG and NDPI in page and SLICE_STARTS in page:
            layout = _sliced(page, layout)
        layout._check_readable()
        return layout

    def _check_readable(self) -> None:
        if self.compression not in (NONE, JPEG, *JPEG_2000, LERC, WEBP, *DECODERS):
            raise SchemaError(f"tiles of compression {self.compression} are not read; convert them")
        jpeg = (self.bits, self.photometric in (RGB, YCBCR), self.chunks[-1] if self.axes[-1] == "S" else 1)
        if self.compression == JPEG and jpeg not in ((8, True, 3), (8, False, 1)):
            raise SchemaError(
                f"JPEG tiles of {jpeg[2]} colours (kind {self.photometric}) and {self.bits} bits are not read"
            )
        if self.bits == 1 and self.axes[-1] == "S":
            raise SchemaError(f"pixels of {self.shape[-1]} bits are not read")
        if self.compression != JPEG and self.photometric == YCBCR:
            raise SchemaError("tiles of luma and chroma without JPEG are not read")
        bytewise = self.bits == 8 * np.dtype(self.dtype).itemsize
        if self.predictor not in PREDICTORS or (self.predictor != 1 and not bytewise):
            raise SchemaError(f"tiles of predictor {self.predictor} are not read; convert them")

    @property
    def plain(self) -> bool:
        """True if the bytes of a tile are its values."""
        bytewise = self.bits == 8 * np.dtype(self.dtype).itemsize
        return self.compression == NONE and self.predictor == 1 and self.fillorder == 1 and bytewise


def _sliced(page: Directory, layout: Layout) -> Layout:
    """Return the layout of a page of NDPI; SchemaError where its slices are no grid."""
    start, size = page.number(273, 0), page.number(SLICE_STARTS, 0)
    if not 0 < size <= MAX_HEADER:
        raise DamagedError(f"the header of a JPEG has {size} bytes", offset=start)
    header, at = bytearray(page.read(start, size)), 2
    interval, step, frame = 0, (0, 0), 0
    while at + 4 <= size and header[at] == 0xFF and frame * interval == 0:
        marker, length = header[at + 1], int.from_bytes(header[at + 2 : at + 4], "big")
        if marker == 0xDD:
            interval = int.from_bytes(header[at + 4 : at + 6], "big")
        elif marker in (0xC0, 0xC1):
            factors = header[at + 11 : at + 2 + length : 3]
            frame = at + 5
            step = (
                8 * max((f & 15 for f in factors), default=0),
                8 * max((f >> 4 for f in factors), default=0),
            )
        at += 2 + length
    rows, columns = step[0], interval * step[1]
    if min(rows, columns) < 1 or max(rows, columns) >= 1 << 16 or -(-layout.size[1] // step[1]) % interval:
        raise SchemaError("its JPEG has no restart markers that part it into equal slices; convert it")
    # A slice is an image of its own size.
    header[frame : frame + 4] = struct.pack(">HH", rows, columns)
    chunks = (rows, columns, *layout.chunks[2:])
    return dataclasses.replace(layout, chunks=chunks, tiled=True, tables=bytes(header), sliced=True)


def _dtype(bits: set[int], kinds: set[int]) -> AnyDType | None:
    """Return the dtype of pixels; None where NumPy has none, or channels differ."""
    kind, many = KINDS.get(next(iter(kinds)), ""), next(iter(bits))
    if len(bits) > 1 or len(kinds) > 1 or not kind:
        return None
    if kind == "u" and many == 1:
        return np.dtype(bool)
    if kind == "u" and 1 < many <= 32:
        return np.dtype(f"u{next(size for size in (1, 2, 4) if 8 * size >= many)}")
    sizes = {"u": (64,), "i": (8, 16, 32, 64), "f": (16, 32, 64), "c": (64, 128)}
    return np.dtype(f"{kind}{many // 8}") if many in sizes[kind] else None


def _fill(text: str, dtype: AnyDType) -> float:
    """Return the value of tiles that were not written."""
    try:
        value = float(text)
        if math.isnan(value) and dtype.kind in "fc":
            # One object, so that layouts with it are equal.
            return math.nan
        return value if dtype.kind in "fc" or np.array(int(value), dtype) == value else 0
    except (ValueError, OverflowError):
        return 0


def tile_places(page: Directory, layout: Layout) -> tuple[I64, I64]:
    """Return where the tiles of a page are, and their sizes; those of size 0 were not written."""
    tiled, count = layout.tiled, math.prod(layout.grid)
    if layout.sliced:
        start, size = page.number(273, 0), page.number(279, 0)
        places = page.values(SLICE_STARTS, MAX_SLICES).astype(np.int64)
        sizes = np.diff(places, append=size)
        if len(places) != count or (sizes < 0).any():
            raise DamagedError(f"{len(places)} slices are said to be {layout.grid}", offset=page.offset)
        return start + places, sizes
    starts, sizes = (page.values(tag, count) for tag in ((324, 325) if tiled else (273, 279)))
    if not len(sizes) and len(starts) == count == 1 and layout.plain:
        sizes = np.array([math.prod(layout.shape) * np.dtype(layout.dtype).itemsize])
    if not len(starts) == len(sizes) == count:
        raise DamagedError(
            f"{len(starts)} tiles of {len(sizes)} sizes are said to be {layout.grid}", offset=page.offset
        )
    return starts.astype(np.int64), sizes.astype(np.int64)


class Pages(ChunkedArray):
    """Pages of one kind, each in tiles or strips; ``outer`` is the shape of the stack that they are."""

    def __init__(
        self, path: str, field: str, layout: Layout, outer: tuple[int, ...], starts: I64, sizes: I64,
        source: Source, cache: ChunkCache, name: str = "",
    ) -> None:  # fmt: skip
        dtype = np.dtype(layout.dtype)
        super().__init__(path, field, outer + layout.shape, dtype, (1,) * len(outer) + layout.chunks)
        self.layout, self.starts, self.sizes = layout, starts, sizes
        # Several files may share a cache.
        self._source, self._cache, self._name = source, cache, name
        self._grid = outer + layout.grid
        if len(starts) != math.prod(self._grid):
            raise DamagedError(f"{len(starts)} tiles are said to be {self._grid}")
        bad = source.outside(starts, sizes)
        if bad is not None:
            raise DamagedError(f"tile {bad} lies outside of the file", offset=int(starts[bad]))
        limits.check("a tile", self._chunk_bytes, int(sizes.max(initial=0)))
        # Local tiles that are values as they lie need no cache.
        self._in_place = layout.plain and isinstance(source, MappedSource)

    def _number(self, index: Index) -> int:
        return int(np.ravel_multi_index(index, self._grid))

    def _chunk(self, index: Index) -> AnyArray:
        if self._in_place:
            return self.load(index)
        key = self._name, self._number(index)
        return self._cache.get(key, lambda: self.load(index), lambda array: int(array.nbytes))

    def chunk_keys(self, starts: I64, size: Sequence[int]) -> ChunkKeys | None:
        if self._in_place:
            return None
        indices = self._touched(starts, size)[0].indices
        return self._cache, [(self._name, self._number(index)) for index in indices]

    def bytes_of(self, index: Index) -> U8:
        """Return the stored bytes of a tile; none where it was not written."""
        number = self._number(index)
        # Tiles are small, and requested together: no more is read than a tile.
        return self._source.only(int(self.starts[number]), int(self.sizes[number]))

    def load(self, index: Index) -> AnyArray:
        """Return a tile, unpacked; a strip is cut to the page."""
        data = self.bytes_of(index)
        outer = len(self._grid) - len(self.layout.shape)
        shape = list(self.chunks)
        if not self.layout.tiled:
            shape = [min(n, size - at * n) for at, n, size in zip(index, shape, self.shape, strict=True)]
        if not data.size:
            return np.broadcast_to(np.array(self.layout.fill).astype(self.dtype), shape)
        try:
            return self._decode(data, tuple(shape[outer:])).reshape(shape)
        except BatchplantError as error:
            error.message = f"tile {'.'.join(map(str, index))}: {error.message}"
            raise error.at(offset=int(self.starts[self._number(index)])) from None

    def _decode(self, data: U8, shape: tuple[int, ...]) -> AnyArray:
        layout, dtype = self.layout, np.dtype(self.layout.order + self.layout.dtype)
        if layout.compression == JPEG:
            return self._jpeg(data, shape)
        if layout.compression in (*JPEG_2000, LERC, WEBP):
            return self._image(data, shape)
        # Lines of pixels are padded to whole bytes.
        runs = shape[-2:] if layout.axes[-1] == "S" else shape[-1:]
        line = -(-math.prod(runs) * layout.bits // 8)
        need = line * math.prod(shape[: len(shape) - len(runs)])
        if layout.plain and data.size != need:
            raise DamagedError(f"it has {data.size} bytes, and values of shape {shape} are needed")
        if not layout.plain:
            data = self._unpack(data, line * math.prod(layout.chunks[: len(shape) - len(runs)]))
            if data.size < need:
                raise DamagedError(f"it has {data.size} bytes, and {need} are needed for the shape {shape}")
        data = data[:need]
        if layout.bits != 8 * dtype.itemsize or dtype.kind == "b":
            values = _codecs().packints_decode(data, dtype, layout.bits, runlen=math.prod(runs))
            return np.asarray(values.astype(self.dtype).reshape(shape))
        if layout.predictor == 3:
            axis = -2 if layout.axes[-1] == "S" else -1
            values = _codecs().floatpred_decode(data.view(dtype).reshape(shape), axis=axis)
            return np.asarray(values, dtype=self.dtype)
        values = data.view(dtype).reshape(shape)
        if layout.plain:
            return values
        # Only values without compression lie in the file itself.
        values = values.astype(self.dtype, copy=layout.compression == NONE)
        if layout.predictor == 2:
            axis = -2 if layout.axes[-1] == "S" else -1
            _codecs().delta_decode(values, axis=axis, out=values)
        return values

    def _unpack(self, data: U8, room: int) -> U8:
        codecs = _codecs()
        try:
            if self.layout.fillorder == 2:
                data = np.frombuffer(codecs.bitorder_decode(data.tobytes()), np.uint8)
            if self.layout.compression == NONE:
                return data
            out = np.empty(room, np.uint8)
            result = getattr(codecs, DECODERS[self.layout.compression])(data, out=out)
            return np.frombuffer(result, np.uint8)
        # Each codec raises an error of its own.
        except Exception as error:
            raise DamagedError(f"it does not unpack: {type(error).__name__}: {error}") from None

    def _image(self, data: U8, shape: tuple[int, ...]) -> AnyArray:
        """Unpack a tile that is an image; its own size is checked before memory is taken for it."""
        layout = self.layout
        rows, columns = (shape[layout.axes.index(axis)] for axis in "YX")
        colours = shape[-1] if layout.axes[-1] == "S" else 1
        out = np.empty((rows, columns, colours)[: 2 + (colours > 1)], self.dtype)
        values: Any = None
        try:
            if layout.compression == WEBP:
                header = image.header(data)
                if (header.encoding, header.height, header.width) == ("webp", rows, columns):
                    # Alpha that is opaque everywhere may be left out.
                    values = np.full_like(out, 255)
                    decoded = image.decode(data)
                    values[..., : decoded.shape[2]] = decoded
            elif layout.compression == LERC:
                values = _lerc(data, out)
            elif _size_of_j2k(data) == (rows, columns, colours):
                values = _codecs().jpeg2k_decode(data, out=out)
        # Each codec raises an error of its own.
        except Exception as error:
            raise DamagedError(f"it does not unpack: {type(error).__name__}: {error}") from None
        if values is None:
            name = NAMES[layout.compression]
            raise DamagedError(f"it is no {name} of {rows} × {columns} pixels in {colours} colours")
        return np.asarray(values, self.dtype).reshape(shape)

    def _jpeg(self, data: U8, shape: tuple[int, ...]) -> AnyArray:
        jpeg = jpeg_of(self.layout, data)
        # Its own header says how much it takes.
        kind, width, height = _native.probe(jpeg, np.zeros(1, np.int64), np.array([jpeg.size]))[0].tolist()[
            :3
        ]
        rows, columns = (shape[self.layout.axes.index(axis)] for axis in "YX")
        if kind != 1 or width < columns or height < rows or width * height > 4 * rows * columns + 65536:
            raise DamagedError(f"it is no JPEG of {rows} × {columns} pixels")
        try:
            values = _native.jpeg_decode(jpeg, "RGB" if self.layout.photometric in (RGB, YCBCR) else "L")
        except ValueError as error:
            raise DamagedError(f"it does not unpack: {error}") from None
        return np.ascontiguousarray(values[:rows, :columns]).reshape(shape)

    def _ahead(self, chunks: Sequence[Index]) -> None:
        if not isinstance(self._source, MappedSource):
            numbers = [self._number(chunk) for chunk in chunks]
            self._source.request(self.starts[numbers], self.sizes[numbers])

    def _places(self, chunks: Sequence[Index]) -> list[SourceRun] | None:
        numbers = [self._number(chunk) for chunk in chunks]
        runs = zip(self.starts[numbers].tolist(), self.sizes[numbers].tolist(), strict=True)
        return [(self._source, start, size) for start, size in runs if size]

    def _stored(self) -> int | None:
        return int(self.sizes.sum())


def jpeg_of(layout: Layout, data: U8) -> U8:
    """Return a tile as a JPEG that stands alone: with the tables of its page, and what its colours mean."""
    if layout.sliced:
        ends = data[-2:].tobytes() in RESTARTS
        parts = [layout.tables, (data[:-2] if ends else data).tobytes(), EOI]
        return np.frombuffer(SOI + _colours(layout) + b"".join(parts)[2:], np.uint8)
    tables = layout.tables[2:-2] if layout.tables[:2] == SOI and layout.tables[-2:] == EOI else b""
    if data[:2].tobytes() != SOI:
        raise DamagedError("it is no JPEG")
    return np.concatenate([np.frombuffer(SOI + _colours(layout) + tables, np.uint8), data[2:]])


def _colours(layout: Layout) -> bytes:
    """Return the marker that says what three colours mean."""
    named = layout.photometric in (RGB, YCBCR)
    return ADOBE + struct.pack("B", layout.photometric == YCBCR) if named else b""


def _lerc(data: U8, out: AnyArray) -> AnyArray:
    """Unpack LERC, which may be packed once more, into an array; it refuses one of another size."""
    codecs, magic = _codecs(), data[:4].tobytes()
    if not magic.startswith(b"Lerc"):
        unpack = codecs.zstd_decode if magic == b"\x28\xb5\x2f\xfd" else codecs.deflate_decode
        data = unpack(data, out=np.empty(2 * out.nbytes + LERC_OVERHEAD, np.uint8))
    values, valid = codecs.lerc_decode(data, masks=True, out=out)
    if valid is not None and values.dtype.kind == "f":
        values[~np.asarray(valid, bool)] = np.nan
    return np.asarray(values)


def _size_of_j2k(data: U8) -> tuple[int, int, int] | None:
    """Return height, width and colours of a codestream of JPEG 2000, all of one size; None for others."""
    head = data[: J2K_SIZ.size].tobytes()
    if len(head) < J2K_SIZ.size or head[:4] != b"\xff\x4f\xff\x51":
        return None
    _, width, height, left, top, *tile, colours = J2K_SIZ.unpack(head)
    if min(tile) < 1 or -(-width // tile[0]) * -(-height // tile[1]) > MAX_J2K_TILES:
        return None
    # Depth, and steps across and down, of each colour.
    sampling = data[len(head) : len(head) + 3 * colours]
    good = len(sampling) == 3 * colours > 0 and (sampling.reshape(-1, 3)[:, 1:] == 1).all()
    return (height - top, width - left, colours) if good else None


def _codecs() -> Any:
    with needs("TIFF tiles that are compressed need imagecodecs", "tiff"):
        import imagecodecs
    return imagecodecs


MASK = 4
# Pixels by which a level may differ from the size that its height implies.
ROUNDED = 2


@dataclasses.dataclass
class Level:
    """A stack of pages of one kind, and where their tiles lie."""

    layout: Layout
    outer: tuple[int, ...]
    starts: I64
    sizes: I64


@dataclasses.dataclass
class Pyramid:
    """The chosen level of a file, the sizes of all, and facts about them."""

    level: Level
    sizes: list[tuple[int, int]]
    pages: int
    left_out: int
    geo: dict[str, Any]


def read_pyramid(file: TiffFile, level: int = 0, page: int | None = None) -> Pyramid:
    """Return a level, of the first page and those like it, or of one page alone."""
    pages = list(file.pages())
    if page is not None and not 0 <= page < len(pages):
        raise OptionError(f"there is no page {page}; there are {len(pages)}")
    first = pages[page or 0]
    layout = Layout.of(first, file.order)
    stack = [first]
    if page is None:
        for following in pages[1:]:
            if _layout(following, file.order) != layout:
                break
            stack.append(following)
    outer = ome_axes(first.text(DESCRIPTION)) if page is None else ()
    planes = math.prod(outer)
    if not outer or planes > len(stack):
        outer, planes = ((len(stack),) if len(stack) > 1 else ()), len(stack)
    left_out, stack = len(pages) - planes, stack[:planes]
    levels: list[tuple[Layout, list[Directory]]] = [(layout, stack)]
    inner = file.below(first) if page is None else []
    for number, below in enumerate(inner):
        smaller = _layout(below, file.order)
        if smaller is not None and _is_level(levels[0][0], levels[-1][0], smaller):
            levels.append((smaller, [below]))
            if len(levels) == level + 1 and len(stack) > 1:
                every = [file.below(one) for one in stack]
                if any(len(one) != len(inner) for one in every):
                    raise DamagedError("its pages differ in levels", offset=first.offset)
                levels[-1] = smaller, [one[number] for one in every]
    for following in pages[1:] if page is None and len(stack) == 1 and not inner else ():
        smaller = _layout(following, file.order)
        masks = following.number(SUBFILE_TYPE, 0) & MASK
        if smaller is not None and not masks and _is_level(layout, levels[-1][0], smaller):
            levels.append((smaller, [following]))
            left_out -= 1
    if not 0 <= level < len(levels):
        raise OptionError(f"there is no level {level}; there are {len(levels)}")
    chosen, stack = levels[level]
    if any(_layout(page, file.order) != chosen for page in stack):
        raise DamagedError(f"the pages of level {level} differ", offset=stack[0].offset)
    places = [tile_places(one, chosen) for one in stack]
    starts, sizes = (np.concatenate(parts) for parts in zip(*places, strict=True))
    sizes_of_levels = [layout.size for layout, _ in levels]
    return Pyramid(
        Level(chosen, outer, starts, sizes), sizes_of_levels, len(stack), left_out, georeference(first)
    )


def level_arrays(
    path: str, source: Source, cache: ChunkCache, page: int | None = None, name: str = ""
) -> tuple[str, list[Array]]:
    """Return all levels as arrays, and a letter for each axis: I for those of the stack."""
    sizes, levels = read_pyramid(TiffFile(source), 0, page).sizes, []
    for number in range(len(sizes)):
        level = read_pyramid(TiffFile(source), number, page).level
        key = f"{name} level {number}"
        levels.append(
            Pages(path, DATA, level.layout, level.outer, level.starts, level.sizes, source, cache, key)
        )
    axes = levels[0].layout.axes
    return "I" * (levels[0].ndim - len(axes)) + axes, [*levels]


def _layout(page: Directory, order: str) -> Layout | None:
    """Return the layout of a page; None where it is not read."""
    try:
        return Layout.of(page, order)
    except BatchplantError:
        return None


def _is_level(full: Layout, last: Layout, layout: Layout) -> bool:
    """True for the same image, smaller than the last level."""
    # The lowest levels of NDPI have no slices.
    names = ("axes", "dtype") if full.sliced else ("axes", "dtype", "tiled")
    alike = all(getattr(full, name) == getattr(layout, name) for name in names)
    (height, width), (h, w), (before_h, before_w) = full.size, layout.size, last.size
    smaller = h <= before_h and w <= before_w and (h, w) != (before_h, before_w)
    off = min(abs(w - width * h / height), abs(h - height * w / width))
    other = [size for axis, size in zip(full.axes, full.shape, strict=True) if axis not in "YX"]
    other_of_level = [size for axis, size in zip(layout.axes, layout.shape, strict=True) if axis not in "YX"]
    return alike and smaller and off <= ROUNDED and other == other_of_level


def ome_axes(description: str) -> tuple[int, ...]:
    """Return the sizes of T, C and Z of OME-XML, slowest first, those above 1.

    None without OME-XML, and where it puts pages into another order than that in the file.
    """
    if "<OME" not in description[:4096]:
        return ()
    pixels: list[dict[str, str]] = []
    samples: list[int] = []
    planes: list[dict[str, str]] = []

    def start(tag: str, attributes: dict[str, str]) -> None:
        name = tag.rpartition(" ")[2]
        if name == "Pixels":
            pixels.append(attributes)
        elif name == "Channel" and len(pixels) == 1:
            samples.append(int(attributes.get("SamplesPerPixel", "1")))
        elif name == "TiffData" and len(pixels) == 1:
            planes.append(attributes)

    try:
        Parser(start, lambda _: None, lambda _: None, "OME-TIFF").feed(description.encode(), True)
        order = pixels[0]["DimensionOrder"]
        sizes = {axis: int(pixels[0][f"Size{axis}"]) for axis in "TCZ"}
        # Colours of a pixel lie in one page.
        sizes["C"] = len(samples) or sizes["C"]
        names = [axis for axis in reversed(order) if axis in "TCZ"]
        for plane in planes:
            number = 0
            for axis in names:
                number = number * sizes[axis] + int(plane.get(f"First{axis}", "0"))
            if int(plane.get("IFD", number)) != number:
                return ()
        if min(sizes.values()) < 1:
            raise ValueError(f"sizes {tuple(sizes.values())}")
        return tuple(sizes[axis] for axis in names if sizes[axis] > 1)
    except (BatchplantError, LookupError, ValueError) as error:
        raise DamagedError(f"its OME-XML is damaged: {error}") from None
