"""Scenes: a folder of TIFF or GeoTIFF files, each of them a sample, cut into windows by ``VolumePatches``.

- ``root/**/*.tif``: field ``data``;
- ``root/images/NAME.tif`` and ``root/labels/NAME.tif``: fields ``image`` and ``mask``, aligned by pixel;
- items of STAC (an item or an ItemCollection in JSON, lines of items, Parquet): a sample for each item, with
  the fields ``item`` and ``datetime``. Assets are files below the folder of the document, unless ``outside``
  allows others.

All scenes have the same type of pixels and the same bands; heights and widths differ. Where their tiles lie
is read once, and remembered in the user's cache, so that opening thousands of scenes again reads one file.
Scenes are opened with ``format="scenes"``: by itself, a folder of TIFF files is one of images.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ..codecs.npy import pack_tensor
from ..data.arrays import Array, each
from ..data.reader import Reader, open_reader
from ..errors import (
    BatchplantError,
    DamagedError,
    NotFoundError,
    OptionError,
    SchemaError,
    exceptions_as,
    located,
    on_error,
)
from ..schema import Bool, Float, Int, Schema, Tensor, Text
from ..schema.columns import I64, AnyArray, Columns, Ragged
from ..storage import (
    Entry,
    Objects,
    PathSources,
    Source,
    index,
    is_remote,
    join,
    limits,
    open_source,
    parent,
    parse,
    parse_object,
    read_whole,
    tree,
)
from ..storage.cache import ChunkCache
from ..storage.files import tag_of
from ..storage.spans import Spans, concat_spans
from .base.folders.files import FileNames, LocalFiles
from .base.folders.media import Asked, pairs_of
from .base.format import Capabilities, Format
from .base.manifest import Outside, resolved
from .base.tiff import DATA, Layout, Level, Pages, TiffFile, level_arrays, read_pyramid, window

SUFFIXES = (".tif", ".tiff", ".btf", ".svs", ".ndpi")
TABLES, LINES = (".parquet", ".geoparquet"), (".jsonl", ".ndjson")
MANIFESTS = (".json", ".geojson", *LINES, *TABLES)
ITEM, DATETIME = "item", "datetime"
FILE_NAME, TRANSFORM, CRS, NODATA = "file_name", "transform", "crs", "nodata"
# Scenes whose places of tiles are kept ready.
MAX_READY_SCENES = 4096
# Bytes of a directory that is read, for the number of threads.
DIRECTORY_BYTES = 64 << 10


# Fields of items of STAC: field → asset, or assets.
Assets = str | Sequence[str] | Mapping[str, str] | None


@dataclasses.dataclass
class Scene:
    """Layout of a file and what is known of its place on earth; tiles ``first`` to ``end`` are its own."""

    layout: Layout
    geo: dict[str, Any]
    first: int
    end: int


class SceneReader(Reader):
    """Reads a folder of TIFF files, each a sample. ``pairs``: folders with files of the same names, aligned
    pixel by pixel, by field, as {"image": "images", "mask": "masks"}; ``assets``: of items of STAC, by field,
    as {"image": "visual", "mask": "scl"}; ``outside``: folders and URLs outside of their own folder that
    items may name, or True for all; ``level``: of pyramids; ``cache``: bytes of unpacked tiles kept;
    ``index``: of places of tiles; see the guide on index files."""

    def __init__(
        self, path: str, *, pairs: Asked = None, assets: Assets = None, outside: Outside = False,
        level: int = 0, cache: int | None = None, index: str = "auto",
    ) -> None:  # fmt: skip
        self.path, self._level, self._cache = path, level, ChunkCache(cache)
        self._maps, self._objects = PathSources(), Objects()
        self._pages = functools.lru_cache(MAX_READY_SCENES)(self._open_pages)
        with on_error(self.close, path=path):
            self._texts: dict[str, list[str]] = {}
            if path.lower().endswith(MANIFESTS):
                if pairs is not None:
                    raise OptionError("pairs are of folders; of items of STAC, choose assets")
                self._open_items(assets, outside)
            elif assets is None and outside is False:
                self._open_folder(pairs)
            else:
                raise OptionError(f"assets and outside are for items of STAC ({', '.join(MANIFESTS)})")
            self._scenes, self._starts, self._sizes = self._remembered(index)
            self.schema = self._schema()
            self.length = self._pyramids = len(next(iter(self._files.values())))

    def _open_folder(self, pairs: Asked) -> None:
        self._entries = self._list()
        names = FileNames.packed(sorted(self._entries))
        if not names:
            raise DamagedError(f"there are no files of TIFF ({', '.join(SUFFIXES)}) in it")
        tops = sorted({*names.tops} - {""})
        self._files = pairs_of(names, tops, pairs, self.path) or {DATA: list(names)}

    def _open_items(self, assets: Assets, outside: Outside) -> None:
        items, folder = read_items(self.path), parent(self.path)
        hrefs = hrefs_of(items, assets)
        self._files = {
            field: [resolved(href, folder, outside, self.path) for href in names]
            for field, names in hrefs.items()
        }
        self._texts = {
            ITEM: [str(item.get("id", "")) for item in items],
            DATETIME: [_datetime(item) for item in items],
        }
        self._entries = {}
        for name in {name for names in self._files.values() for name in names}:
            # What a server has is found out when its directories are read.
            with exceptions_as(NotFoundError, "an asset is missing", OSError, path=name):
                facts = None if is_remote(name) else os.stat(name)
            entry = Entry(name, 0, "") if facts is None else Entry(name, facts.st_size, tag_of(facts))
            self._entries[name] = entry

    def _path_of(self, name: str) -> str:
        return name if self._texts else join(self.path, name)

    def _list(self) -> dict[str, Entry]:
        def wanted(name: str) -> bool:
            return name.lower().endswith(SUFFIXES)

        if is_remote(self.path):
            entries = tree.entries_below(self.path)
            return {name: entry for name, entry in entries if wanted(name) and "/." not in f"/{name}"}
        if not os.path.isdir(self.path):
            if not os.path.lexists(self.path):
                raise NotFoundError("no such folder")
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
        content = index.remember(group, "scenes", about, build, mode=mode, version=2, check=check)
        for name, size, tag in json.loads(content.arrays["entries"].tobytes()):
            self._entries[name] = Entry(name, int(size), str(tag))
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
                raise error.at(path=self._path_of(name)) from None
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
        # Assets of items are opened again without a request.
        entries = json.dumps([[*entry] for entry in self._entries.values() if self._texts]).encode()
        return {
            "scenes": text, "starts": starts, "sizes": sizes, "entries": np.frombuffer(entries, np.uint8),
        }  # fmt: skip

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
        path = self._path_of(name)
        if not is_remote(path):
            return self._maps.map(path)
        if not self._entries[name].size:
            source = open_source(path)
            self._entries[name] = Entry(name, source.size, getattr(source, "tag", ""))
        return self._objects.open(path, self._entries[name])

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
        texts = {name: Text() for name in self._texts}
        clash = fields.keys() & {*texts, FILE_NAME, TRANSFORM, CRS, NODATA}
        if clash:
            raise OptionError(f"a field cannot be called {min(clash)!r}: scenes have one of their own")
        return Schema(
            {
                **fields,
                **texts,
                FILE_NAME: Text(),
                TRANSFORM: Tensor("float64", (6,)),
                CRS: Text(),
                NODATA: Float(),
            }
        )

    def _cell_array(self, field: str, sample: int) -> Pages | None:
        return self._pages(field, sample) if field in self._files else None

    def _pyramid_of(self, number: int) -> tuple[str, list[Array]]:
        name = next(iter(self._files.values()))[number]
        return level_arrays(self._path_of(name), self._source(name), self._cache, name=name)

    def _open_pages(self, field: str, sample: int) -> Pages:
        """Return a scene as an array, of which windows are read alone."""
        name, scene = self._files[field][sample], self._scenes[field][sample]
        starts, sizes = self._starts[scene.first : scene.end], self._sizes[scene.first : scene.end]
        path = join(self.path, name)
        with located(path=path, sample=sample):
            return Pages(path, field, scene.layout, (), starts, sizes, self._source(name), self._cache, name)

    def _read(self, indices: I64, fields: Sequence[str]) -> Columns:
        return Columns.read(fields, lambda name: self._column(name, indices.tolist()), self.path)

    def _column(self, name: str, rows: Sequence[int]) -> Any:
        if name in self._files:
            return Ragged.from_cells([self._whole(name, row) for row in rows])
        if name in self._texts:
            return Ragged.from_cells([self._texts[name][row].encode() for row in rows])
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

    def facts(self) -> dict[str, object]:
        layout = next(iter(self._scenes.values()))[0].layout
        return {"tiles" if layout.tiled else "strips": "×".join(map(str, layout.chunks))}

    def close(self) -> None:
        self._cache.clear()
        self._maps.close()
        self._objects.close()


def _others(layout: Layout) -> tuple[int, ...]:
    return tuple(size for axis, size in zip(layout.axes, layout.shape, strict=True) if axis not in "YX")


def read_items(path: str) -> list[dict[str, Any]]:
    """Return the items of a document of STAC."""
    with exceptions_as(DamagedError, "no items of STAC", ValueError, TypeError, RecursionError, path=path):
        if path.lower().endswith(TABLES):
            with open_reader(path, format="parquet") as table:
                names = [name for name in ("id", "assets", DATETIME) if name in table.schema]
                items = list(table.select(names))
        elif path.lower().endswith(LINES):
            items = [parse_object(line) for line in bytes(read_whole(path)).splitlines() if line.strip()]
        else:
            document = parse(bytes(read_whole(path)))
            if isinstance(document, dict):
                # The items of a collection that was searched for, or a single one.
                document = document.get("features") or ([document] if "assets" in document else [])
            items = [dict(item) for item in document]
        if not items:
            raise SchemaError(
                "there are no items in it; a catalog only links to them: write them into an ItemCollection",
                path=path,
            )
        return items


def hrefs_of(items: Sequence[Mapping[str, Any]], assets: Assets) -> dict[str, list[str]]:
    """Return the files of the chosen assets by field, one of each item."""
    message, hrefs = "an item of STAC is damaged", dict[str, list[str]]()
    with exceptions_as(DamagedError, message, TypeError, AttributeError, KeyError):
        names = [name for name, asset in items[0]["assets"].items() if _is_tiff(asset)]
        if assets is None and len(names) != 1:
            raise OptionError(
                f"items have the TIFF assets {', '.join(names) or 'of no name'}; choose some, as in "
                "assets={'image': NAME}"
            )
        chosen = names[0] if assets is None else assets
        fields = {DATA: chosen} if isinstance(chosen, str) else chosen
        fields = fields if isinstance(fields, Mapping) else {name: name for name in fields}
        if not fields:
            raise OptionError("assets names no asset")
        for field, name in fields.items():
            hrefs[field] = []
            for number, item in enumerate(items):
                asset = item["assets"].get(name)
                if asset is None:
                    raise DamagedError(f"the item {item.get('id')} has no asset {name!r}", sample=number)
                hrefs[field].append(str(asset["href"]))
    return hrefs


def _datetime(item: Mapping[str, Any]) -> str:
    """Return the time of an item; Parquet has its properties beside its assets."""
    properties = item.get("properties")
    return str((properties if isinstance(properties, dict) else item).get(DATETIME) or "")


def _is_tiff(asset: Mapping[str, Any] | None) -> bool:
    if asset is None:
        return False
    is_thumbnail = {"thumbnail", "overview"} & set(asset.get("roles") or ())
    is_named = str(asset["href"]).lower().endswith(SUFFIXES)
    return not is_thumbnail and (is_named or str(asset.get("type") or "").startswith("image/tiff"))


FORMAT = Format(
    name="scenes",
    title="Scenes (GeoTIFF: folder, or STAC items)",
    suffixes=(),
    spec="https://docs.ogc.org/is/19-008r4/19-008r4.html",
    reader=SceneReader,
    kinds=(Int, Float, Bool, Tensor, Text),
    folder=None,
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
