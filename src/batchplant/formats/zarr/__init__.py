"""Zarr 2 and 3: arrays in chunks, in a folder, a ZIP file or below a URL.

A dataset is a group whose arrays are equally long: each is a field, with samples along the first axis;
arrays in groups inside have dotted names. An array at the top is a dataset of one field, ``data``. What we
write has its schema in the attributes of the group (``batchplant``), and as arrays

- numbers and tensors of one shape: ``NAME``;
- with missing cells: ``NAME/values`` and ``NAME/valid``;
- cells of differing length: ``NAME/values``, all of them one after another, and ``NAME/offsets``, where they
  begin; ``NAME/shape`` for raw images, ``NAME/valid`` where cells may be missing.

An image of OME-Zarr has the fields ``image`` and ``labels.NAME``, of one level; the images of a plate are the
samples of ``image``, well by well.

Reading goes without zarr-python: chunks are found and unpacked here, one library call for each, without an
event loop that a fork would lose, and with every size checked before it is believed.
"""

from __future__ import annotations

import base64
import binascii
import json
import math
import threading
import zipfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from ...data.arrays import Array
from ...data.writer import WriteOptions
from ...errors import BatchplantError, DamagedError, OptionError, Problem, SchemaError, exceptions_as
from ...schema import EVERY_KIND, Field, Schema
from ...schema.columns import U8, AnyArray, AnyDType, Column, as_bytes
from ...storage import Source, is_remote, join, open_source, parent, parse_object, read_whole, tree
from ...storage.spans import SourceRun
from ...storage.zips import ZIP_ERRORS
from ..base import arrays
from ..base.arrays import (
    METADATA_KEY,
    Attributes,
    ChunkLocation,
    Chunks,
    DatasetMetadata,
    GridArray,
    GridReader,
    Grids,
    GridWriter,
    OutputArray,
    Store,
    Style,
    unit_of,
    zip_top,
)
from ..base.arrays.compression import pack
from ..base.format import Capabilities, Format, Probe
from ..base.manifest import Outside, resolved
from . import ome
from .metadata import (
    ARRAY,
    ATTRIBUTES,
    GROUP,
    ROOTS,
    TOGETHER,
    V3,
    Document,
    attributes_v2,
    attributes_v3,
    find,
    pack_shard,
    written_v2,
    written_v3,
)

# -- references ---------------------------------------------------------------------------------------
# Virtual Zarr: a JSON document of kerchunk says which bytes of other files are the chunks of a store.

SUFFIX = ".json"
MAX_TARGET = 4096


class ReferenceStore(Store):
    """The keys of a document: text, or parts of files below its folder, or below what ``outside`` allows."""

    def __init__(self, path: str, outside: Outside) -> None:
        super().__init__(path)
        try:
            document = parse_object(read_whole(path), finite=False)
            references = document["refs"] if "version" in document else document
            templates = document.get("templates") or {}
            if document.get("gen") or any("{{" in str(text) for text in templates.values()):
                raise SchemaError("references that are computed (gen) are not read; write them out")
            self._references: dict[str, Any] = dict(references)
            self._templates = {f"{{{{{name}}}}}": str(text) for name, text in templates.items()}
        except (KeyError, ValueError, TypeError, AttributeError) as error:
            raise DamagedError(f"no document of references: {error!r}", path=path) from None
        self._folder, self._outside = parent(path), outside
        self._sources: dict[str, Source] = {}
        self._lock = threading.Lock()
        self._children: dict[str, set[str]] = {}
        for name in self._references:
            steps = name.split("/")
            for depth in range(len(steps) - 1):
                self._children.setdefault("/".join(steps[:depth]), set()).add(steps[depth])
        lists = (reference for reference in self._references.values() if isinstance(reference, list))
        self.slow = is_remote(path) or any(
            "://" in self._filled(str(target)) for target in next(lists, [])[:1]
        )

    def _filled(self, target: str) -> str:
        """Return a target with the texts of templates in it."""
        for mark, text in self._templates.items():
            if len(target) <= MAX_TARGET:
                target = target.replace(mark, text[:MAX_TARGET])
        if len(target) > MAX_TARGET:
            raise DamagedError(f"a reference names {target[:80]}…", path=self.path)
        return target

    def _source(self, target: str) -> Source:
        target = self._filled(target)
        with self._lock:
            if target not in self._sources:
                self._sources[target] = open_source(resolved(target, self._folder, self._outside, self.path))
            return self._sources[target]

    def _run(self, name: str) -> tuple[Source, int, int] | None:
        """Return the file of a key and the part of it; None if the key is text, or missing."""
        reference = self._references.get(name)
        if not isinstance(reference, list):
            return None
        match reference:
            case [str() as target]:
                source = self._source(target)
                return source, 0, source.size
            case [str() as target, int() as start, int() as size]:
                source = self._source(target)
                source.check_bounds(start, size)
                return source, start, size
        raise DamagedError(f"the reference of {name} is {str(reference)[:80]}", path=self.path)

    def read(self, name: str, start: int = 0, size: int | None = None) -> U8 | None:
        run, reference = self._run(name), self._references.get(name)
        if run is None:
            if reference is None:
                return None
            data = np.frombuffer(self._text(name, reference), dtype=np.uint8)
            start = max(0, len(data) + start) if start < 0 else start
            return data[start : None if size is None else start + size]
        source, first, length = run
        start = max(0, length + start) if start < 0 else min(start, length)
        return source.view(first + start, length - start if size is None else min(size, length - start))

    def _text(self, name: str, reference: Any) -> bytes:
        if isinstance(reference, str) and reference.startswith("base64:"):
            try:
                return base64.b64decode(reference[7:], validate=True)
            except binascii.Error as error:
                raise DamagedError(f"the text of {name} is no base64: {error}", path=self.path) from None
        if isinstance(reference, str):
            return reference.encode()
        raise DamagedError(f"the reference of {name} is {str(reference)[:80]}", path=self.path)

    def runs(self, places: Sequence[ChunkLocation]) -> list[SourceRun]:
        runs = (self._run(place.name) for place in places)
        return [run for run in runs if run is not None]

    def ahead(self, places: Sequence[ChunkLocation]) -> None:
        runs: dict[Source, list[tuple[int, int]]] = {}
        for source, start, size in self.runs(places):
            runs.setdefault(source, []).append((start, size))
        for source, parts in runs.items():
            starts, sizes = np.array(parts, dtype=np.int64).T.copy()
            source.request(starts, sizes)

    def children(self, name: str) -> list[str]:
        return sorted(self._children.get(name, ()))

    def close(self) -> None:
        with self._lock:
            for source in self._sources.values():
                source.close()
            self._sources.clear()


# -- style --------------------------------------------------------------------------------------------
# Writing of Zarr stores: the documents of arrays, and the bytes of chunks.


class ZarrStyle(Style):
    """Writes arrays; our metadata are in the attributes of the root."""

    packings = ("none", "zstd", "gzip", "blosc")

    def __init__(self, version: int) -> None:
        if version not in (2, 3):
            raise OptionError(f"zarr_format is 2 or 3, not {version!r}")
        self.version = version

    def pack(self, part: OutputArray, values: AnyArray) -> Any:
        if self.full_size(part) is not None:
            # The end of a plain chunk is a hole in the file.
            return as_bytes(values)
        if part.chunks_per_file == 1:
            return self._pack_one(part, values)
        runs = (values[start : start + part.chunk] for start in range(0, len(values), part.chunk))
        chunks = [self._pack_one(part, tile) for rows in runs for _, tile in part.tiles(rows)]
        return pack_shard(chunks, part.chunks_per_file * math.prod(part.across))

    def _pack_one(self, part: OutputArray, values: AnyArray) -> Any:
        full = (part.chunk, *part.cell) if part.width else (part.chunk, *part.row)
        if values.shape != full:
            # A chunk has its full size, also at the edges of the array.
            chunk: AnyArray = np.zeros(full, part.dtype)
            chunk[tuple(map(slice, values.shape))] = values
            values = chunk
        data = as_bytes(np.ascontiguousarray(values))
        return pack(part.packing, part.level, data, part.dtype.itemsize, checksum=self.version == 3)

    def full_size(self, part: OutputArray) -> int | None:
        plain = part.packing == "none" and part.chunks_per_file == 1 and part.cut is None
        return part.chunk * part.width if plain else None

    def file(self, part: OutputArray, number: int, tile: tuple[int, ...]) -> str:
        coordinates = map(str, tile)
        if self.version == 3:
            return "/".join([part.path, "c", str(number), *coordinates])
        return f"{part.path}/{'.'.join([str(number), *coordinates])}"

    def describe(self, parts: Sequence[OutputArray], metadata: DatasetMetadata) -> dict[str, bytes]:
        attributes = {**self.attributes, METADATA_KEY: metadata.to_json()}
        groups = sorted({part.path.rpartition("/")[0] for part in parts} - {""})
        if self.version == 2:
            group, nodes = {"zarr_format": 2}, {}
            for name in groups:
                nodes[f"{name}/{GROUP}"] = group
            for part in parts:
                nodes[f"{part.path}/{ARRAY}"] = self._array_v2(part)
                if user_attributes := written_v2(part)[0]:
                    nodes[f"{part.path}/{ATTRIBUTES}"] = user_attributes
            every = {GROUP: group, ATTRIBUTES: attributes, **nodes}
            documents = {**every, TOGETHER: {"zarr_consolidated_format": 1, "metadata": every}}
        else:
            inner = {name: {"zarr_format": 3, "node_type": "group", "attributes": {}} for name in groups}
            inner |= {part.path: self._array_v3(part) for part in parts}
            consolidated = {"kind": "inline", "must_understand": False, "metadata": inner}
            top = {
                "zarr_format": 3, "node_type": "group", "attributes": attributes,
                "consolidated_metadata": consolidated,
            }  # fmt: skip
            documents = {V3: top, **{f"{name}/{V3}": content for name, content in inner.items()}}
        return {
            name: json.dumps(document, ensure_ascii=False).encode() for name, document in documents.items()
        }

    def _array_v2(self, part: OutputArray) -> Document:
        compressor: Any = {"id": part.packing, "level": part.level}
        if part.packing == "blosc":
            compressor = {"id": "blosc", "cname": "zstd", "clevel": part.level, "shuffle": 1, "blocksize": 0}
        return {
            "zarr_format": 2,
            "shape": list(part.counted),
            "chunks": _chunk_shape(part, 1),
            "dtype": part.dtype.str,
            "compressor": None if part.packing == "none" else compressor,
            "fill_value": written_v2(part)[1],
            "order": "C",
            "filters": None,
            "dimension_separator": ".",
        }

    def _array_v3(self, part: OutputArray) -> Document:
        codecs: list[Any] = [{"name": "bytes", "configuration": {"endian": "little"}}]
        config: dict[str, Any] = {"level": part.level}
        if part.packing == "zstd":
            config["checksum"] = True
        if part.packing == "blosc":
            config = {
                "typesize": part.dtype.itemsize, "cname": "zstd", "clevel": part.level, "shuffle": "shuffle",
                "blocksize": 0,
            }  # fmt: skip
        if part.packing != "none":
            codecs.append({"name": part.packing, "configuration": config})
        if part.chunks_per_file > 1:
            index = [{"name": "bytes", "configuration": {"endian": "little"}}, {"name": "crc32c"}]
            inner = {
                "chunk_shape": _chunk_shape(part, 1), "codecs": codecs, "index_codecs": index,
                "index_location": "end",
            }  # fmt: skip
            codecs = [{"name": "sharding_indexed", "configuration": inner}]
        grid = {"chunk_shape": _chunk_shape(part, part.chunks_per_file)}
        attributes, beside = written_v3(part)
        return {
            "zarr_format": 3,
            "node_type": "array",
            "shape": list(part.counted),
            "data_type": _name_v3(part.dtype),
            "chunk_grid": {"name": "regular", "configuration": grid},
            "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
            "codecs": codecs,
            "attributes": attributes,
            "storage_transformers": [],
            **beside,
        }


def _chunk_shape(part: OutputArray, times: int) -> list[int]:
    """Shape of a chunk, or of a file of several along the first axis with all others beside them."""
    if times == 1:
        return [part.chunk, *part.cell]
    return [part.chunk * times, *(size * many for size, many in zip(part.cell, part.across, strict=True))]


def _name_v3(dtype: AnyDType) -> Any:
    if dtype.kind not in "mM":
        return dtype.name
    unit, step = np.datetime_data(dtype)
    kind = "numpy.datetime64" if dtype.kind == "M" else "numpy.timedelta64"
    return {"name": kind, "configuration": {"unit": unit, "scale_factor": step}}


# -- format -------------------------------------------------------------------------------------------

__all__ = ["FORMAT", "ZarrReader", "ZarrWriter", "allocate", "range_unit", "write_range"]


class ZarrReader(GridReader):
    """Reads Zarr. ``fields``: only these arrays; ``missing``: a chunk that is not there is fill values
    (fill) or an error (error), by default the latter in what we wrote; ``cache``: bytes of unpacked chunks
    kept; ``decode``: numbers become what they stand for by their attributes (scale_factor, add_offset,
    _FillValue, missing_value), or stay as they are stored, which without it is warned of; ``level``: of the
    images and labels of OME-Zarr, 0 is the largest; ``channels``: of these images only some;
    ``outside``: folders and URLs outside of its own folder that a document of kerchunk (``.json``, opened
    with ``format="zarr"``) may name, or True for all."""

    roots = ROOTS

    def __init__(
        self, path: str, *, fields: Iterable[str] | None = None, missing: str = "auto",
        cache: int | None = None, decode: bool | None = None, level: int = 0,
        channels: Sequence[int] | None = None, outside: Outside = False,
    ) -> None:  # fmt: skip
        self._outside = outside
        self._level, self._channels = level, None if channels is None else list(channels)
        super().__init__(path, fields=fields, missing=missing, cache=cache, decode=decode)

    def _open_store(self, path: str) -> Store:
        if path.lower().endswith(SUFFIX):
            return ReferenceStore(path, self._outside)
        return super()._open_store(path)

    def _find(self, store: Store) -> tuple[Grids, dict[str, Any]]:
        arrays = find(store)
        self._version, self._consolidated, self.store = arrays.version, arrays.consolidated, store
        top = arrays.attributes
        if METADATA_KEY in top or not ome.is_ome(top):
            if self._level or self._channels is not None:
                raise OptionError("level and channels are for images of OME-Zarr, and this is none")
            return arrays.grids, top
        self._levels, self._pyramids = arrays.grids, int("plate" not in top.get("ome", top))
        return ome.choose(arrays.grids, self._group_attributes, self._level, self._channels), top

    def _pyramid_of(self, number: int) -> tuple[str, list[Array]]:
        message = "its metadata of OME is damaged"
        with exceptions_as(DamagedError, message, KeyError, TypeError, AttributeError, path=self.path):
            axes, grids = ome.pyramid(self._levels, self._group_attributes, self._channels)
        return axes, [GridArray(self.path, ome.IMAGE, grid, self._cache) for grid in grids]

    def _group_attributes(self, path: str) -> dict[str, Any]:
        document = self._document(path, ATTRIBUTES if self._version == 2 else V3)
        return document if self._version == 2 else dict(document.get("attributes") or {})

    def _attributes_of(self, path: str) -> dict[str, Any]:
        if self._version == 2:
            return attributes_v2(self._document(path, ATTRIBUTES), self._document(path, ARRAY))
        return attributes_v3(self._document(path, V3))

    def _document(self, path: str, kind: str) -> dict[str, Any]:
        name = f"{path}/{kind}" if path else kind
        consolidated = self._consolidated.get(name)
        return consolidated if consolidated is not None else self.store.read_json(name) or {}

    def _differing(self) -> Iterator[Problem]:
        for name, document in self._consolidated.items():
            if _comparable(self.store.read_json(name)) != _comparable(document):
                message = "the metadata repeated at the top differs from it; consolidate it again"
                yield Problem(message, self.store.full(name))

    def facts(self) -> dict[str, object]:
        return {"version": f"Zarr {self._version}", **super().facts()}


def _comparable(document: dict[str, Any] | None) -> str:
    """A document to compare: without what it repeats itself. No attributes are empty ones."""
    metadata = {name: value for name, value in (document or {}).items() if name != "consolidated_metadata"}
    return json.dumps(metadata, sort_keys=True)


class ZarrWriter(GridWriter):
    """Writes Zarr. ``zarr_format``: 2 or 3; ``compression``: none, zstd, gzip or blosc (auto: zstd, but not
    for images, sound and video, which are packed already and then used in place); ``level``: of the
    compression; ``chunk_samples``: rows of a chunk (default: about 1 MiB, without compression 64 MiB);
    ``chunks``: the shape of a chunk, samples first, for all fields with as many axes or by field;
    ``chunks_per_shard``: so many chunks in one file (Zarr 3); ``attributes``: ``{"": {…}, field: {…}}``."""

    def __init__(
        self, path: str, schema: Schema, options: WriteOptions, *, zarr_format: int = 3,
        compression: str = "auto", level: int | None = None, chunk_samples: int | None = None,
        chunks: Chunks | None = None, chunks_per_shard: int = 1, attributes: Attributes | None = None,
    ) -> None:  # fmt: skip
        if zarr_format == 2 and chunks_per_shard != 1:
            raise OptionError("shards need zarr_format=3", path=path)
        style = ZarrStyle(zarr_format)
        super().__init__(
            path,
            schema,
            options,
            style,
            compression,
            level,
            chunk_samples,
            chunks_per_shard,
            attributes=attributes,
            chunks=chunks,
        )

    def _style_of(self, base: GridReader) -> ZarrStyle:
        assert isinstance(base, ZarrReader)
        return ZarrStyle(base._version)


def allocate(path: str, schema: Schema | Mapping[str, Field], samples: int, **options: Any) -> None:
    """Make an empty dataset of so many samples, for several processes to fill with :func:`write_range`.

    Only for fields whose cells all have one size. Options are those of the writer, and ``overwrite``.
    """
    arrays.allocate(ZarrWriter, path, schema, samples, **options)


def range_unit(path: str) -> int:
    """Ranges of samples begin and end at multiples of this; only the last may end at the end."""
    with ZarrReader(path) as reader:
        return unit_of(reader)


def write_range(path: str, start: int, columns: Mapping[str, Column]) -> None:
    """Write samples from ``start`` on into a dataset that :func:`allocate` made.

    Safe from several processes at a time whose ranges do not overlap: each writes files of its own.
    """
    with ZarrReader(path) as reader:
        arrays.write_range(reader, ZarrStyle(reader._version), start, columns)


def sniff(probe: Probe) -> bool:
    """The metadata at the top of a folder, or of a ZIP file."""
    if probe.folder:
        return any(tree.is_file(join(probe.path, name)) for name in ROOTS)
    if probe.head[:4] != b"PK\3\4":
        return False
    try:
        with zipfile.ZipFile(probe.source.file()) as archive:
            return zip_top(archive.namelist(), ROOTS) is not None
    except (*ZIP_ERRORS, BatchplantError):
        return False


FORMAT = Format(
    name="zarr",
    title="Zarr",
    suffixes=(".zarr", ".zarr.zip"),
    spec="https://zarr-specs.readthedocs.io/en/latest/v3/core/index.html",
    reader=ZarrReader,
    writer=ZarrWriter,
    sniff=sniff,
    kinds=EVERY_KIND,
    optional=True,
    folder=None,
    extra="zarr",
    notes="versions 2 and 3, shards; folders, ZIP files and URLs; plain chunks are used in place",
    can=Capabilities(
        random_access=True,
        checksums="chunk",
        compression=("zstd", "gzip", "blosc"),
        compressed="chunk",
        column_pruning=True,
        remote_ranges=True,
        keeps_schema=True,
        streaming_write=True,
        splittable=True,
        metadata=True,
        ecosystem=("zarr", "xarray", "Dask", "TensorStore"),
    ),
)
