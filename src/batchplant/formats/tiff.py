"""TIFF, one file as an array: a stack of pages, or one large image in tiles or strips.

The pages that are like the first one are the first axis; where there is only one page, its rows are. A page
has the axes (height, width[, colours]), or (colours, height, width) where each colour lies by itself, and a
depth before them where it has one. The array is the field ``data``. Pages that differ (a pyramid, say) are
left out; ``page`` chooses one. A folder of images is read as ``imagefolder``, whatever they are.

tifffile says what lies where and unpacks; nothing outside of the file is opened, whatever its metadata names.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from .. import _native
from ..codecs import npy
from ..codecs.media import tiff
from ..data.arrays import Array, ChunkedArray, Index
from ..data.reader import Reader
from ..errors import BatchplantError, DamagedError, OptionError, SchemaError
from ..schema import Bool, Float, Int, Schema, Tensor
from ..schema.columns import I64, U8, Columns
from ..storage import MappedSource, Source, limits, open_source
from ..storage.cache import ChunkCache
from ..storage.spans import SourceRun, Spans
from .base.capabilities import Capabilities
from .base.format import Format, Probe

DATA = "data"
MAGIC = (b"II*\0", b"MM\0*", b"II+\0", b"MM\0+")
NONE, JPEG = 1, 7
NAMES = {
    1: "none", 5: "LZW", 7: "JPEG", 8: "Deflate", 32773: "PackBits", 32946: "Deflate", 34925: "LZMA",
    50000: "zstd",
}  # fmt: skip


class Pages(ChunkedArray):
    """Pages of one kind, each in tiles or strips."""

    def __init__(
        self, path: str, pages: Sequence[Any], order: str, source: Source, cache: ChunkCache
    ) -> None:
        first = pages[0]
        stacked = len(pages) > 1
        self._chunked: tuple[int, ...] = first.chunked
        chunks = (*(1,) * (len(first.chunked) - len(first.chunks)), *first.chunks)
        sizes = zip(first.shape, chunks, strict=False)
        if (
            len(chunks) != len(first.shape)
            or min(chunks) < 1
            or self._chunked != tuple(-(-a // b) for a, b in sizes)
        ):
            raise DamagedError(f"a page of shape {first.shape} has tiles of {first.chunks}")
        super().__init__(
            path, DATA, (len(pages),) * stacked + first.shape, first.dtype.newbyteorder("="),
            (1,) * stacked + chunks,
        )  # fmt: skip
        self._page, self._stacked, self._source, self._cache = first, stacked, source, cache
        self._starts = np.array([page.dataoffsets for page in pages], dtype=np.int64).reshape(-1)
        self._sizes = np.array([page.databytecounts for page in pages], dtype=np.int64).reshape(-1)
        if len(self._starts) != len(pages) * math.prod(self._chunked):
            raise DamagedError(f"{len(self._starts)} tiles are said to be {len(pages)} × {self._chunked}")
        bad = source.outside(self._starts, self._sizes)
        if bad is not None:
            raise DamagedError(f"tile {bad} lies outside of the file", offset=int(self._starts[bad]))
        limits.check("a tile", math.prod(self.chunks) * self.dtype.itemsize, int(self._sizes.max(initial=0)))
        bytewise = first.bitspersample == 8 * first.dtype.itemsize and first.dtype.kind != "b"
        # Then the bytes are the values.
        self._plain = first.compression == NONE and first.predictor == 1 and first.fillorder == 1 and bytewise
        self._dtype = first.dtype.newbyteorder(order)

    def _number(self, index: Index) -> int:
        number = 0
        grid = (len(self._starts), *self._chunked) if self._stacked else self._chunked
        for offset, size in zip(index, grid, strict=True):
            number = number * size + offset
        return number

    def _chunk(self, index: Index) -> npt.NDArray[Any]:
        number = self._number(index)
        if self._plain and isinstance(self._source, MappedSource):
            return self._load(number, index)
        return self._cache.get(number, lambda: self._load(number, index), lambda array: int(array.nbytes))

    def _load(self, number: int, index: Index) -> npt.NDArray[Any]:
        start, size = int(self._starts[number]), int(self._sizes[number])
        inside = zip(index, self.chunks, self.shape, strict=True)
        shape = [min(chunk, axis_size - position * chunk) for position, chunk, axis_size in inside]
        if self._page.is_tiled:
            shape = list(self.chunks)
        if not size:
            # Nothing was written.
            fill = np.array(self._page.nodata, dtype=self.dtype)
            return np.broadcast_to(fill, shape)
        data = self._source.view(start, size)
        try:
            if not self._plain:
                return self._decode(data, number % math.prod(self._chunked), shape)
            if data.size != math.prod(shape) * self._dtype.itemsize:
                raise DamagedError(f"it has {data.size} bytes, and values of shape {tuple(shape)} are needed")
            return np.asarray(data.view(self._dtype).reshape(shape))
        except BatchplantError as error:
            error.message = f"tile {'.'.join(map(str, index))}: {error.message}"
            raise error.at(offset=start) from None

    def _decode(self, data: U8, number: int, shape: list[int]) -> npt.NDArray[Any]:
        if self._page.compression == JPEG:
            # Its own header says how much it takes.
            result = _native.probe(data, np.zeros(1, np.int64), np.array([data.size]))[0].tolist()
            if result[0] != 1 or result[1] * result[2] > 4 * math.prod(self._page.chunks[:2]) + 4096:
                raise DamagedError(f"it is no JPEG of {self._page.chunks}")
        try:
            values, _, _ = self._page.decode(data.tobytes(), number)
        # The library raises many kinds on damaged bytes.
        except Exception as error:
            raise DamagedError(f"it does not unpack: {type(error).__name__}: {error}") from None
        cut = tuple(map(slice, self._four(shape)))
        if any(have < need.stop for have, need in zip(values.shape, cut, strict=True)):
            raise DamagedError(f"it unpacks to the shape {values.shape}, and {tuple(shape)} is needed")
        result = np.ascontiguousarray(values[cut], dtype=self.dtype).reshape(shape)
        return result

    def _four(self, shape: Sequence[int]) -> tuple[int, ...]:
        """Depth, height, width and colours, as the library has them."""
        axes = dict(zip(self._page.axes, shape[self._stacked :], strict=True))
        colours = 1 if self._page.axes.startswith("S") else axes.get("S", 1)
        return axes.get("Z", 1), axes["Y"], axes["X"], colours

    def _ahead(self, chunks: Sequence[Index]) -> None:
        if not isinstance(self._source, MappedSource):
            numbers = [self._number(chunk) for chunk in chunks]
            self._source.request(self._starts[numbers], self._sizes[numbers])

    def _places(self, chunks: Sequence[Index]) -> list[SourceRun] | None:
        numbers = [self._number(chunk) for chunk in chunks]
        runs = zip(self._starts[numbers].tolist(), self._sizes[numbers].tolist(), strict=True)
        return [(self._source, start, size) for start, size in runs if size]

    def _stored(self) -> int | None:
        return int(self._sizes.sum())


class TiffReader(Reader):
    """Reads a TIFF file as one array. ``page``: only this one, and its rows are the samples; ``cache``: bytes
    of unpacked tiles kept."""

    def __init__(self, path: str, *, page: int | None = None, cache: int | None = None) -> None:
        self.path = path
        self._source = open_source(path)
        try:
            tifffile = tiff.library()
            try:
                with tifffile.TiffFile(self._source.file(), is_ome=False) as file:
                    pages, self._left_out = _similar_pages(file, page)
                    self._volume = Pages(path, pages, file.byteorder, self._source, ChunkCache(cache))
            except BatchplantError:
                raise
            # The library raises many kinds on damaged bytes.
            except Exception as error:
                failed = self._source.failure()
                if failed is not None:
                    raise failed from None
                raise DamagedError(f"not a TIFF that can be read: {type(error).__name__}: {error}") from None
            self.schema = Schema({DATA: npy.field_of(self._volume.dtype, self._volume.shape[1:])})
        except BatchplantError as error:
            self._source.close()
            raise error.at(path=path) from None
        self.length = len(self._volume)
        self._pages = len(pages)

    def _array(self, field: str) -> Array | None:
        return self._volume if field == DATA else None

    def _read(self, indices: I64, fields: Sequence[str]) -> Columns:
        return Columns.read(fields, lambda _: self._rows(indices), self.path)

    def _rows(self, indices: I64) -> npt.NDArray[Any]:
        out: npt.NDArray[Any] = np.empty((len(indices), 1, *self._volume.shape[1:]), dtype=self._volume.dtype)
        try:
            self._volume.read_boxes(indices[:, None], (1,), out)
        except BatchplantError as error:
            row, error.sample = error.sample, None
            raise error.at(sample=None if row is None else int(indices[row])) from None
        return out[:, 0]

    def _ranges(self, fields: Sequence[str], indices: I64) -> Spans | None:
        return self._volume.ranges(indices[:, None], (1,))

    def blocks(self) -> I64 | None:
        return np.arange(self.length, dtype=np.int64) // self._volume.chunks[0]

    def facts(self) -> dict[str, Any]:
        page = self._volume._page
        facts: dict[str, Any] = {
            "pages": self._pages,
            "tiles" if page.is_tiled else "strips": "×".join(map(str, page.chunks)),
            "compression": NAMES.get(int(page.compression), str(page.compression)),
        }
        return facts | ({"pages left out": self._left_out} if self._left_out else {})

    def close(self) -> None:
        self._volume._cache.clear()
        self._source.close()


def _similar_pages(file: Any, chosen: int | None) -> tuple[list[Any], int]:
    """The first page and those like it that follow; and how many others there are."""
    pages: list[Any] = []
    different = 0
    seen: set[int] = set()
    for number in itertools.count():
        try:
            page = file.pages[number]
        except IndexError:
            break
        if page.offset in seen or number == tiff.MAX_PAGES:
            raise DamagedError("its pages have no end", offset=page.offset)
        seen.add(page.offset)
        if not pages and number == (chosen or 0):
            _check(page)
            pages.append(page)
        elif chosen is None and not different and _kind(page) == _kind(pages[0]):
            pages.append(page)
        else:
            different += 1
    if not pages:
        raise OptionError(f"there is no page {chosen}; there are {different}")
    return pages, different


def _kind(page: Any) -> tuple[Any, ...]:
    return (
        page.shape, page.dtype, page.chunks, page.chunked, page.compression, page.predictor, page.fillorder,
        page.photometric, page.planarconfig, page.bitspersample, page.jpegtables,
    )  # fmt: skip


def _check(page: Any) -> None:
    if page.dtype is None or page.dtype.kind not in "biufc":
        raise SchemaError(f"pixels of {page.bitspersample} bits and kind {page.sampleformat} are not read")
    if page.compression not in (*tiff.BOUNDED, JPEG):
        raise SchemaError(f"tiles of compression {page.compression} are not read; convert them")
    if not page.shape or math.prod(page.shape) == 0 or set(page.axes) - set("SZYX"):
        raise DamagedError(f"a page has the shape {page.shape} ({page.axes})")


def sniff(probe: Probe) -> bool:
    return probe.head[:4] in MAGIC


FORMAT = Format(
    name="tiff",
    title="TIFF",
    suffixes=(".tif", ".tiff", ".btf"),
    spec="https://www.loc.gov/preservation/digital/formats/fdd/fdd000022.shtml",
    reader=TiffReader,
    writer=None,
    sniff=sniff,
    kinds=(Int, Float, Bool, Tensor),
    extra="tiff",
    notes="one file as one array, pages or rows first; tiles are read when they are touched; BigTIFF too",
    can=Capabilities(
        random_access=True,
        compression=("deflate", "lzw", "zstd"),
        compressed="chunk",
        remote_ranges=True,
        splittable=True,
        ecosystem=("tifffile", "GDAL", "ImageJ", "QuPath"),
    ),
)
