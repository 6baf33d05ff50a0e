"""TIFF, one file as an array: a stack of pages, or one large image in tiles or strips; whole slides, GeoTIFF.

The pages that are like the first one are the first axis; where there is only one page, its rows are. A page
has the axes (height, width[, colours]), or (colours, height, width) where each colour lies by itself, and a
depth where it has one. OME-TIFF has the axes that its XML names. The array is the field ``data``.

A pyramid's levels are the directories below a page, or smaller pages of the same image: ``level`` chooses
one, ``page`` any page. ``tiles=True``: each tile of a level is a sample, an image with its position; JPEG
tiles stay JPEG. Transform, coordinate system and nodata of GeoTIFF are attributes.

Directories are parsed here, with every size checked before it is believed; imagecodecs unpacks what is not
JPEG. Nothing outside of the file is opened, whatever its metadata names.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from ..codecs import npy
from ..data.arrays import Array, each_or_error
from ..data.layout import Layout
from ..data.reader import Reader
from ..errors import BatchplantError, DataError, OptionError, on_error
from ..schema import Bool, Float, Image, Int, Schema, Tensor
from ..schema.columns import I64, U8, AnyArray, Columns, Ragged
from ..storage import open_source
from ..storage.cache import ChunkCache
from ..storage.spans import Spans, spans_of
from .base.format import Capabilities, Format, Probe
from .base.tiff import DATA, JPEG, NAMES, Pages, TiffFile, jpeg_of, level_arrays, read_pyramid, scaled, window

IMAGE, POSITION = "image", "position"
MAGIC = (b"II*\0", b"MM\0*", b"II+\0", b"MM\0+")
MODES = {1: "L", 3: "RGB", 4: "RGBA"}
# Largest level whose pixels are looked at.
MAX_PIXELS = 1 << 26


class TiffReader(Reader):
    """Reads a TIFF file as one array. ``level``: of a pyramid, 0 is the largest; ``page``: only this one, and
    its rows are the samples; ``tiles``: samples are the tiles of the level, as images with their positions;
    ``tissue``: of these only tiles of which at least this share is tissue; ``cache``: bytes of unpacked tiles
    kept."""

    def __init__(
        self, path: str, *, level: int = 0, page: int | None = None, tiles: bool = False,
        tissue: float | None = None, cache: int | None = None,
    ) -> None:  # fmt: skip
        self.path, self._page = path, page
        self._source = open_source(path)
        with on_error(self._source.close, path=path):
            file = TiffFile(self._source)
            pyramid = self._pyramid = read_pyramid(file, level, page)
            stored = pyramid.level
            self._volume = Pages(
                path, DATA, stored.layout, stored.outer, stored.starts, stored.sizes, self._source,
                ChunkCache(cache),
            )  # fmt: skip
            if tissue is not None and not tiles:
                raise OptionError("tissue selects among tiles=True; of patches, where=reader.tissue(size)")
            self._tiles = self._tile_places(tissue) if tiles else None
            if self._tiles is None:
                self.schema = Schema({DATA: npy.field_of(self._volume.dtype, self._volume.shape[1:])})
        self.length = len(self._volume if self._tiles is None else self._tiles)

    def _tile_places(self, tissue: float | None) -> I64:
        """Set the schema of tiles; return the place of each in the grid."""
        layout, volume = self._volume.layout, self._volume
        mode = MODES.get(volume.shape[-1] if layout.axes[-1] == "S" else 1)
        if layout.axes not in ("YX", "YXS") or volume.ndim > 3 or layout.dtype != "u1" or mode is None:
            raise OptionError(
                f"tiles are images of 8 bits in 1, 3 or 4 colours, not {volume.dtype} {volume.shape}"
            )
        if layout.sliced:
            rows, columns = layout.chunks[:2]
            raise OptionError(f"NDPI keeps slices of {rows} × {columns} pixels, and no tiles: cut Patches")
        self._encoded = bool(layout.compression == JPEG and layout.tiled and volume.sizes.all())
        self.schema = Schema(
            {IMAGE: Image("jpeg" if self._encoded else None, mode=mode), POSITION: Tensor("int64", (2,))}
        )
        places: I64 = np.indices(layout.grid[:2]).reshape(2, -1).T.astype(np.int64)
        if tissue is None:
            return places
        return places[self.tissue(layout.chunks[:2], tissue)(places * np.array(layout.chunks[:2]))]

    def tissue(self, size: Sequence[int], share: float = 0.5) -> Tissue:
        """Return a function for ``where`` of ``Patches``: keeps boxes of ``size`` with this share of tissue.

        Tissue has more colour than glass, by Otsu's threshold on the lowest level.
        """
        height, width = self._pyramid.sizes[-1]
        if height * width > MAX_PIXELS:
            raise OptionError(f"its lowest level has {height} × {width} pixels: too many to look for tissue")
        with TiffReader(self.path, level=len(self._pyramid.sizes) - 1) as lowest:
            thumbnail = np.asarray(lowest._volume)
        if thumbnail.ndim > 3 or self._volume.layout.axes not in ("YX", "YXS"):
            raise OptionError(f"tissue is found in images, not in arrays of shape {thumbnail.shape}")
        return Tissue(thumbnail, self._volume.layout.size, size, share)

    @property
    def levels(self) -> list[tuple[int, int]]:
        """Height and width of every level of the pyramid, largest first."""
        return list(self._pyramid.sizes)

    @property
    def attributes(self) -> Mapping[str, Mapping[str, object]]:
        """``transform`` (a, b, c, d, e, f: x = a·column + b·row + c, y = d·column + e·row + f), ``crs`` and
        ``nodata`` of the field, where the file has them."""
        geo = dict(self._pyramid.geo)
        if "transform" in geo:
            geo["transform"] = scaled(geo["transform"], self._pyramid.sizes[0], self._volume.layout.size)
        return {next(iter(self.schema)): geo} if geo else {}

    def window_of(self, bounds: Sequence[float]) -> tuple[slice, slice]:
        """Return the rows and columns that touch (left, bottom, right, top) in the file's coordinates."""
        transform: Any = self.attributes.get(next(iter(self.schema)), {}).get("transform")
        return window(transform, self._volume.layout.size, bounds)

    _pyramids = 1

    def _pyramid_of(self, number: int) -> tuple[str, list[Array]]:
        return level_arrays(self.path, self._source, self._volume._cache, self._page)

    def _array(self, field: str) -> Array | None:
        return self._volume if field == DATA and self._tiles is None else None

    def _read(self, indices: I64, fields: Sequence[str]) -> Columns:
        return Columns.read(fields, lambda name: self._column(name, indices), self.path)

    def _column(self, name: str, indices: I64) -> Any:
        if self._tiles is None:
            return self._rows(indices)
        places = self._tiles[indices]
        if name == POSITION:
            return places * np.array(self._volume.layout.chunks[:2])
        self._volume._ahead([self._index(place) for place in places])
        cells = each_or_error(
            lambda row: self._tile(places[row]), range(len(places)), self._volume._chunk_bytes
        )
        for row, cell in enumerate(cells):
            if isinstance(cell, DataError):
                raise cell.at(sample=int(indices[row]))
        images: list[Any] = cells
        shapes = () if self._encoded else [(*image.shape, 1)[:3] for image in images]
        return Ragged.from_cells([image.reshape(-1) for image in images], shapes)

    def _index(self, place: I64) -> tuple[int, ...]:
        return (*map(int, place), *(0,) * (self._volume.ndim - 2))

    def _tile(self, place: I64) -> U8:
        index, volume = self._index(place), self._volume
        if not self._encoded:
            return np.ascontiguousarray(volume._chunk(index))
        try:
            return jpeg_of(volume.layout, volume.bytes_of(index))
        except BatchplantError as error:
            raise error.at(offset=int(volume.starts[volume._number(index)])) from None

    def _rows(self, indices: I64) -> AnyArray:
        out: AnyArray = np.empty((len(indices), 1, *self._volume.shape[1:]), dtype=self._volume.dtype)
        try:
            self._volume.read_boxes(indices[:, None], (1,), out)
        except BatchplantError as error:
            row, error.sample = error.sample, None
            raise error.at(sample=None if row is None else int(indices[row])) from None
        return out[:, 0]

    def _ranges(self, fields: Sequence[str], indices: I64) -> Spans | None:
        if self._tiles is None:
            return self._volume.ranges(indices[:, None], (1,))
        images = [self._index(place) for place in self._tiles[indices]] if IMAGE in fields else []
        return spans_of(self._volume._places(images) or [])

    def _layout(self) -> Layout:
        if self._tiles is not None:
            return Layout()
        return Layout(blocks=lambda: np.arange(self.length, dtype=np.int64) // self._volume.chunks[0])

    def facts(self) -> dict[str, object]:
        layout, pyramid = self._volume.layout, self._pyramid
        facts: dict[str, object] = {
            "pages": pyramid.pages,
            "tiles" if layout.tiled else "strips": "×".join(map(str, layout.chunks)),
            "compression": NAMES.get(layout.compression, str(layout.compression)),
        }
        if len(pyramid.sizes) > 1:
            facts["levels"] = ", ".join(f"{height}×{width}" for height, width in pyramid.sizes)
        return facts | ({"pages left out": pyramid.left_out} if pyramid.left_out else {})

    def close(self) -> None:
        self._volume._cache.clear()
        self._source.close()


class Tissue:
    """Flags boxes of which at least ``share`` is tissue.

    thumbnail: a low level of an image of ``size``. It is called with positions (boxes, 2), as ``where`` of
    ``Patches``.
    """

    def __init__(self, thumbnail: AnyArray, size: Sequence[int], box: Sequence[int], share: float) -> None:
        if len(box) != 2:
            raise OptionError(f"tissue is found in boxes of (height, width), not of {tuple(box)}")
        if not 0 < share <= 1:
            raise OptionError(f"tissue is a share between 0 and 1, not {share!r}")
        if thumbnail.dtype != np.uint8:
            raise OptionError(f"tissue is found in images of uint8, not {thumbnail.dtype}")
        colour = np.ptp(thumbnail, axis=2) if thumbnail.ndim == 3 else 255 - thumbnail
        self.mask = colour > threshold(colour)
        self._sums = np.pad(self.mask.cumsum(0, dtype=np.int64).cumsum(1), ((1, 0), (1, 0)))
        self._scale = np.array(self.mask.shape) / np.array(size)
        self._box, self._share = np.array(box), share

    def __call__(self, positions: I64) -> npt.NDArray[np.bool_]:
        edges = np.array(self.mask.shape)
        low = np.clip(np.floor(positions * self._scale).astype(np.int64), 0, edges - 1)
        high = np.clip(np.ceil((positions + self._box) * self._scale).astype(np.int64), low + 1, edges)
        (top, left), (bottom, right), sums = low.T, high.T, self._sums
        tissue = sums[bottom, right] - sums[top, right] - sums[bottom, left] + sums[top, left]
        return tissue >= self._share * (high - low).prod(axis=1)


def threshold(values: AnyArray) -> int:
    """Return the value that parts bytes into two groups of the least variance within (Otsu's method)."""
    counts = np.bincount(values.reshape(-1), minlength=256).astype(np.float64)
    below, sums = counts.cumsum(), (counts * np.arange(256)).cumsum()
    above = below[-1] - below
    with np.errstate(divide="ignore", invalid="ignore"):
        between = below * above * (sums / below - (sums[-1] - sums) / above) ** 2
    return int(np.nan_to_num(between).argmax())


def sniff(probe: Probe) -> bool:
    return probe.head[:4] in MAGIC


FORMAT = Format(
    name="tiff",
    title="TIFF",
    suffixes=(".tif", ".tiff", ".btf", ".svs", ".ndpi"),
    spec="https://www.loc.gov/preservation/digital/formats/fdd/fdd000022.shtml",
    reader=TiffReader,
    sniff=sniff,
    kinds=(Int, Float, Bool, Tensor, Image),
    extra="tiff",
    notes="one file as one array, or its tiles as images; pyramids, whole slides, GeoTIFF, OME-TIFF, BigTIFF",
    can=Capabilities(
        random_access=True,
        compression=("deflate", "lzw", "zstd"),
        compressed="chunk",
        remote_ranges=True,
        splittable=True,
        ecosystem=("tifffile", "GDAL", "ImageJ", "QuPath"),
    ),
)
