"""Scenes: a folder of TIFF or GeoTIFF files, each of them a sample, cut into windows by ``VolumePatches``.

- ``root/**/*.tif``: field ``data``;
- ``root/images/NAME.tif`` and ``root/labels/NAME.tif``: fields ``image`` and ``mask``, aligned by pixel.

All scenes have the same type of pixels and the same bands; heights and widths differ. Where their tiles lie
is read once, and remembered in the user's cache, so that opening thousands of scenes again reads one file.
Scenes are opened with ``format="scenes"``: by itself, a folder of TIFF files is one of images.
"""

from __future__ import annotations

import dataclasses
import json
import os
import threading
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ..codecs.arrays import pack_tensor
from ..data.arrays import Array
from ..data.arrays.parallel import each
from ..data.reader import Reader
from ..errors import BatchplantError, DamagedError, OptionError, SchemaError, located, on_error
from ..schema import Bool, Float, Int, Schema, Tensor, Text
from ..schema.columns import I64, AnyArray, Columns, Ragged
from ..storage import Entry, Objects, PathSources, Source, index, is_remote, join, limits, tree
from ..storage.cache import ChunkCache
from ..storage.files import tag_of
from ..storage.spans import Spans, concat_spans
from .base.capabilities import Capabilities
from .base.folders.files import FileNames, LocalFiles
from .base.folders.pairs import Asked, pairs_of
from .base.format import Format
from .base.tiff.directory import TiffFile
from .base.tiff.geo import window
from .base.tiff.pages import DATA, Layout, Pages
from .base.tiff.pyramid import Level, level_arrays, read_pyramid

SUFFIXES = (".tif", ".tiff", ".btf", ".svs")
FILE_NAME, TRANSFORM, CRS, NODATA = "file_name", "transform", "crs", "nodata"
# Scenes whose places of tiles are kept ready.
MAX_READY_SCENES = 4096
# Bytes of a directory that is read, for the number of threads.
DIRECTORY_BYTES = 64 << 10


@dataclasses.dataclass
class Scene:
    """Layout of a file and what is known of its place on earth; tiles ``first`` to ``end`` are its own."""

    layout: Layout
    geo: dict[str, Any]
    first: int
    end: int


class SceneReader(Reader):
    """Reads a folder of TIFF files, each a sample. ``pairs``: folders with files of the same names, aligned
    pixel by pixel, by field, as {"image": "images", "mask": "masks"}; ``level``: of pyramids; ``cache``:
    bytes of unpacked tiles kept; ``index``: of places of tiles; see the guide on index files."""

    def __init__(
        self, path: str, *, pairs: Asked = None, level: int = 0, cache: int | None = None, index: str = "auto"
    ) -> None:
        self.path, self._level, self._cache = path, level, ChunkCache(cache)
        self._maps, self._objects, self._lock = PathSources(), Objects(), threading.Lock()
        self._ready: OrderedDict[tuple[str, int], Pages] = OrderedDict()
        with on_error(self.close, path=path):
            self._entries = self._list()
            names = FileNames.packed(sorted(self._entries))
            if not names:
                raise DamagedError(f"there are no files of TIFF ({', '.join(SUFFIXES)}) in it")
            tops = sorted({*names.tops} - {""})
            self._files = pairs_of(names, tops, pairs, path) or {DATA: list(names)}
            self._scenes, self._starts, self._sizes = self._remembered(index)
            self.schema = self._schema()
            self.length = self._pyramids = len(next(iter(self._files.values())))

    def _list(self) -> dict[str, Entry]:
        def wanted(name: str) -> bool:
            return name.lower().endswith(SUFFIXES)

        if is_remote(self.path):
            entries = tree.entries_below(self.path)
            return {name: entry for name, entry in entries if wanted(name) and "/." not in f"/{name}"}
        if not os.path.isdir(self.path):
            raise DamagedError("a folder of TIFF files is needed")
        files, entries_by_name = LocalFiles(self.path), {}
        for name in files.walk(wanted, ""):
            facts = os.stat(files.path(name))
            entries_by_name[name] = Entry(name, facts.st_size, tag_of(facts))
        return entries_by_name

    # -- directories -----------------------------------------------------------------------------------

    def _remembered(self, mode: str) -> tuple[dict[str, list[Scene]], I64, I64]:
        """Return the scenes of every field, and where all tiles lie."""
        group = index.FileGroup(self.path, self._entries.values(), state={}, options={})

        def build(_: Source, report: index.Report) -> tuple[index.Arrays, index.Facts]:
            content = self._read_directories()
            report(group.size)
            return content, {}

        def check(content: index.Index) -> bool:
            try:
                return bool(self._scenes_of(content.arrays))
            except (LookupError, ValueError, TypeError):
                return False

        about = f"{self._level} {json.dumps(self._files)}"
        content = index.remember(group, "scenes", about, build, mode=mode, version=1, check=check)
        return self._scenes_of(content.arrays)

    def _read_directories(self) -> index.Arrays:
        rows = [(field, row) for field, names in self._files.items() for row in range(len(names))]
        parts: list[Any] = [None] * len(rows)

        def read(number: int) -> None:
            field, row = rows[number]
            name = self._files[field][row]
            try:
                pyramid = read_pyramid(TiffFile(self._source(name)), self._level)
            except BatchplantError as error:
                raise error.at(path=join(self.path, name)) from None
            if pyramid.level.outer:
                raise SchemaError(f"a scene is one page, and this is a stack of {pyramid.pages}", path=name)
            layout = dataclasses.asdict(pyramid.level.layout)
            layout["tables"] = layout["tables"].hex()
            parts[number] = layout, pyramid.geo, pyramid.level

        each(read, range(len(rows)), DIRECTORY_BYTES * len(rows))
        document: dict[str, list[Any]] = {field: [] for field in self._files}
        end = 0
        for (field, _), (layout, geo, level) in zip(rows, parts, strict=True):
            first, end = end, end + len(level.starts)
            document[field].append((layout, geo, first, end))
        text = np.frombuffer(json.dumps(document).encode(), dtype=np.uint8)
        levels: list[Level] = [level for _, _, level in parts]
        starts, sizes = (
            np.concatenate([getattr(level, name) for level in levels]) for name in ("starts", "sizes")
        )
        return {"scenes": text, "starts": starts, "sizes": sizes}

    def _scenes_of(self, arrays: Mapping[str, AnyArray]) -> tuple[dict[str, list[Scene]], I64, I64]:
        document, starts, sizes = json.loads(arrays["scenes"].tobytes()), arrays["starts"], arrays["sizes"]
        scenes: dict[str, list[Scene]] = {}
        for field, names in self._files.items():
            scenes[field] = []
            for layout, geo, first, end in document[field]:
                lists = {name: tuple(layout[name]) for name in ("shape", "chunks")}
                parsed = Layout(**{**layout, **lists, "tables": bytes.fromhex(layout["tables"])})
                geo = {
                    name: tuple(value) if isinstance(value, list) else value for name, value in geo.items()
                }
                scenes[field].append(Scene(parsed, geo, int(first), int(end)))
            if len(scenes[field]) != len(names):
                raise ValueError(f"{len(scenes[field])} scenes of {len(names)} files")
        return scenes, starts, sizes

    def _source(self, name: str) -> Source:
        path = join(self.path, name)
        if is_remote(self.path):
            return self._objects.open(path, self._entries[name])
        return self._maps.map(path)

    # -- reading ---------------------------------------------------------------------------------------

    def _schema(self) -> Schema:
        fields: dict[str, Any] = {}
        for field, scenes in self._scenes.items():
            first, names = scenes[0].layout, self._files[field]
            for number, scene in enumerate(scenes):
                layout, reference = scene.layout, next(iter(self._scenes.values()))[number].layout
                if (layout.dtype, layout.axes, _others(layout)) != (first.dtype, first.axes, _others(first)):
                    raise SchemaError(
                        f"{names[number]} has {layout.dtype} {layout.axes} {layout.shape}, and "
                        f"{names[0]} has {first.dtype} {first.axes} {first.shape}", field=field,
                    )  # fmt: skip
                if layout.size != reference.size:
                    other = next(iter(self._files.values()))[number]
                    raise SchemaError(
                        f"{names[number]} {layout.size} and {other} {reference.size} are not aligned"
                    )
            sizes = zip(first.axes, first.shape, strict=True)
            shape = tuple(None if axis in "YX" else size for axis, size in sizes)
            fields[field] = Tensor(np.dtype(first.dtype).name, shape)
        return Schema(
            {**fields, FILE_NAME: Text(), TRANSFORM: Tensor("float64", (6,)), CRS: Text(), NODATA: Float()}
        )

    def _cell_array(self, field: str, sample: int) -> Pages | None:
        return self._pages(field, sample) if field in self._files else None

    def _pyramid_of(self, number: int) -> tuple[str, list[Array]]:
        name = next(iter(self._files.values()))[number]
        return level_arrays(join(self.path, name), self._source(name), self._cache, name=name)

    def _pages(self, field: str, sample: int) -> Pages:
        """Return a scene as an array, of which windows are read alone."""
        with self._lock:
            pages = self._ready.pop((field, sample), None)
        if pages is None:
            name, scene = self._files[field][sample], self._scenes[field][sample]
            starts, sizes = self._starts[scene.first : scene.end], self._sizes[scene.first : scene.end]
            path = join(self.path, name)
            with located(path=path, sample=sample):
                pages = Pages(
                    path, field, scene.layout, (), starts, sizes, self._source(name), self._cache, name
                )
        with self._lock:
            self._ready[field, sample] = pages
            while len(self._ready) > MAX_READY_SCENES:
                self._ready.popitem(last=False)
        return pages

    def _read(self, indices: I64, fields: Sequence[str]) -> Columns:
        return Columns.read(fields, lambda name: self._column(name, indices.tolist()), self.path)

    def _column(self, name: str, rows: Sequence[int]) -> Any:
        if name in self._files:
            return Ragged.from_cells([self._whole(name, row) for row in rows])
        files, scenes = next(iter(self._files.values())), next(iter(self._scenes.values()))
        geos = [scenes[row].geo for row in rows]
        if name == FILE_NAME:
            return Ragged.from_cells([files[row].encode("utf-8", "surrogateescape") for row in rows])
        if name == CRS:
            return Ragged.from_cells([str(geo.get("crs", "")).encode() for geo in geos])
        if name == NODATA:
            numbers = [geo.get("nodata") for geo in geos]
            return np.array([number if isinstance(number, float) else np.nan for number in numbers])
        nothing = (np.nan,) * 6
        return np.array([geo.get("transform", nothing) for geo in geos], dtype=np.float64).reshape(-1, 6)

    def _whole(self, field: str, row: int) -> bytes:
        pages = self._pages(field, row)
        limits.check("a scene", pages.nbytes, int(pages.sizes.sum()))
        with located(sample=row):
            kind = self.schema[field]
            assert isinstance(kind, Tensor)
            return pack_tensor(kind, np.asarray(pages))

    def _ranges(self, fields: Sequence[str], indices: I64) -> Spans | None:
        spans = []
        for field in fields:
            for row in indices.tolist() if field in self._files else ():
                pages = self._pages(field, row)
                ranges = pages.ranges(np.zeros((1, pages.ndim), dtype=np.int64), pages.shape)
                spans += [] if ranges is None else [ranges]
        return concat_spans(spans)

    def window_of(self, sample: int, bounds: Sequence[float]) -> tuple[slice, slice]:
        """Return the rows and columns of a scene that touch (left, bottom, right, top) in its coordinates."""
        scene = next(iter(self._scenes.values()))[sample]
        return window(scene.geo.get("transform"), scene.layout.size, bounds)

    def positions_of(self, points: Sequence[Sequence[float]], size: Sequence[int]) -> I64:
        """Return positions of windows of ``size`` around points (x, y), for ``VolumePatches(positions=)``.

        A point lies in the first scene that covers it; a window is moved so that it lies inside.
        OptionError for a point that no scene covers.
        """
        scenes = next(iter(self._scenes.values()))
        if not {*"YX"} <= {*scenes[0].layout.axes[: len(size)]}:
            raise OptionError(f"size has {len(size)} axes, and scenes have {scenes[0].layout.axes}")
        placed = [n for n, scene in enumerate(scenes) if "transform" in scene.geo]
        transforms = np.array([scenes[n].geo["transform"] for n in placed], dtype=np.float64).reshape(-1, 6)
        sizes = np.array([scenes[n].layout.size for n in placed], dtype=np.int64).reshape(-1, 2)
        (a, b, c, d, e, f), axes = transforms.T, scenes[0].layout.axes
        positions = np.zeros((len(points), 1 + len(size)), dtype=np.int64)
        for number, (x, y) in enumerate(points):
            row = (a * (y - f) - d * (x - c)) / (a * e - b * d)
            column = (e * (x - c) - b * (y - f)) / (a * e - b * d)
            inside = np.flatnonzero((row >= 0) & (column >= 0) & (row < sizes[:, 0]) & (column < sizes[:, 1]))
            if not len(inside):
                raise OptionError(f"no scene covers the point {(x, y)}", path=self.path)
            scene = inside[0]
            positions[number, 0] = placed[scene]
            for axis, place, length in zip("YX", (row[scene], column[scene]), sizes[scene], strict=True):
                at = axes.index(axis)
                positions[number, 1 + at] = max(0, min(int(place) - size[at] // 2, length - size[at]))
        return positions

    def facts(self) -> dict[str, Any]:
        layout = next(iter(self._scenes.values()))[0].layout
        return {"tiles" if layout.tiled else "strips": "×".join(map(str, layout.chunks))}

    def close(self) -> None:
        self._cache.clear()
        self._maps.close()
        self._objects.close()


def _others(layout: Layout) -> tuple[int, ...]:
    return tuple(size for axis, size in zip(layout.axes, layout.shape, strict=True) if axis not in "YX")


FORMAT = Format(
    name="scenes",
    title="Scenes (folder of GeoTIFF)",
    suffixes=(),
    spec="https://docs.ogc.org/is/19-008r4/19-008r4.html",
    reader=SceneReader,
    writer=None,
    kinds=(Int, Float, Bool, Tensor, Text),
    folder=True,
    extra="tiff",
    notes="read only, opened by name; a file is a sample; windows by pixel or coordinates (VolumePatches)",
    can=Capabilities(
        random_access=True,
        column_pruning=True,
        compression=("deflate", "lzw", "zstd"),
        compressed="chunk",
        remote_ranges=True,
        splittable=True,
        ecosystem=("GDAL", "rasterio", "QGIS", "tifffile"),
    ),
)
