"""N5: arrays in blocks, each block one file.

Every array is a folder with ``attributes.json`` (``dimensions``, ``blockSize``, ``dataType``,
``compression``) and its blocks at ``i/j/k``. A block is a header, big-endian: u16 mode, u16 number of axes,
u32 size of each (and, in mode 1, u32 number of values); then the values, big-endian, compressed. A block
that is not there is zeros, one at the edge may be cut. The axes of N5 are those of NumPy in reverse:
samples lie along the last one.

What we write has its schema in the attributes of the top, and its arrays as in Zarr: ``NAME``, or
``NAME/values`` with ``NAME/offsets``, ``NAME/shape`` and ``NAME/valid``. N5 has no truth values, half
floats, complex numbers and dates: they are kept as uint8, uint16 (the bits), a pair of floats, and int64,
and come back as what they were.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import json
import math
import struct
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from ..data.writer import WriteOptions
from ..errors import BatchplantError, DamagedError, NotFoundError, SchemaError
from ..schema import EVERY_KIND, Field, Schema
from ..schema.columns import U8, AnyArray, AnyDType, Column, as_bytes
from ..storage import join, parse_object, read_beside, tree
from ..storage.zips import ZIP_ERRORS
from .base import arrays
from .base.arrays import (
    METADATA_KEY,
    Attributes,
    ChunkLocation,
    Chunks,
    DatasetMetadata,
    Grid,
    GridReader,
    Grids,
    GridWriter,
    Index,
    OutputArray,
    Store,
    Style,
    each_grid,
    good_name,
    unit_of,
    zip_top,
)
from .base.arrays.compression import Coding, numcodecs, pack, unpack
from .base.arrays.layout import parts_of
from .base.format import Capabilities, Format, Probe

__all__ = ["FORMAT", "N5Reader", "N5Writer", "allocate", "range_unit", "write_range"]

ATTRIBUTES = "attributes.json"
VERSION = "2.0.0"
TYPES = {f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)} | {"float32", "float64"}
# Our names of compressions are N5's, but for the one that is none.
PACKINGS = ("none", "gzip", "bzip2", "xz", "blosc", "zstd")
BY_NUMCODECS = ("blosc", "zstd")
# Attributes that say how an array lies.
OWN = {"n5", "dimensions", "blockSize", "dataType", "compression", "compressionType"}
DEEPEST, ARRAYS_MOST = 32, 100_000
# Folders below the top that are looked into for an array where the top has no attributes, and how deep.
PROBED_FOLDERS, PROBED_DEPTH = 8, 4


def stored_as(dtype: AnyDType, row: tuple[int, ...]) -> tuple[AnyDType, tuple[int, ...]]:
    """Return N5's type for a dtype: its own, one of as many bytes, or two of them."""
    if dtype.name in TYPES:
        return dtype, row
    if dtype.kind == "c":
        return np.dtype(f"float{4 * dtype.itemsize}"), (*row, 2)
    return np.dtype({"b": "uint8", "f": "uint16"}.get(dtype.kind, "int64")), row


# --- reading ------------------------------------------------------------------------------------------


def _load(store: Store, name: str) -> dict[str, Any] | None:
    return store.read_json(f"{name}/{ATTRIBUTES}" if name else ATTRIBUTES)


def _head(axes: int, data: U8) -> tuple[int, tuple[int, ...]]:
    """The size of a block's header, and the shape of the block as NumPy sees it."""
    size = 4 + 4 * axes
    if len(data) < size:
        raise DamagedError(f"the block has {len(data)} bytes, and its header alone {size}")
    mode, count, *sizes = struct.unpack(f">HH{axes}I", data[:size].tobytes())
    shape = tuple(sizes[::-1])
    if count != axes or mode not in (0, 1):
        raise DamagedError(f"the block is of mode {mode} and has {count} axes, not {axes}")
    if mode == 1:
        values = int.from_bytes(data[size : size + 4].tobytes(), "big")
        size += 4
        if values != math.prod(shape):
            raise DamagedError(f"the block has {values} values, and the shape {shape}")
    return size, shape


def _block(dtype: AnyDType, chunks: tuple[int, ...], kind: str, data: U8) -> AnyArray:
    start, shape = _head(len(chunks), data)
    if any(have > limit for have, limit in zip(shape, chunks, strict=True)):
        raise DamagedError(f"the block has the shape {shape}, and blocks are {chunks}")
    need = dtype.itemsize * math.prod(shape)
    if kind in BY_NUMCODECS:
        numcodecs("n5")
    values: Any = data[start:] if kind == "none" else unpack(kind, data[start:], need)
    if len(values) != need:
        raise DamagedError(f"the block has {len(values)} bytes, and {need} are needed")
    block = np.frombuffer(values, dtype=dtype.newbyteorder(">")).reshape(shape)
    return np.ascontiguousarray(block, dtype=dtype)


def _grid(store: Store, name: str, attributes: dict[str, Any]) -> Grid:
    kind = attributes["dataType"]
    if kind not in TYPES:
        raise SchemaError(f"arrays of {kind} are not read", field=name)
    dtype, shape, chunks = (
        np.dtype(kind),
        tuple(attributes["dimensions"][::-1]),
        tuple(attributes["blockSize"][::-1]),
    )
    # Old writers have compressionType in place of compression.
    packing = attributes.get("compression", {"type": attributes.get("compressionType", "raw")})["type"]
    ours = "none" if packing == "raw" else packing
    if ours not in PACKINGS:
        raise SchemaError(f"the compression {packing!r} is not read; {', '.join(PACKINGS)} are", field=name)
    prefix = f"{name}/" if name else ""

    def locate(index: Index) -> ChunkLocation:
        return ChunkLocation(prefix + "/".join(map(str, index[::-1])))

    def header(data: U8) -> int:
        start, have = _head(len(chunks), data)
        if have[1:] != chunks[1:] or have[0] > chunks[0] or len(data) - start != math.prod(have):
            raise DamagedError(f"the block has the shape {have}, and blocks are {chunks}")
        return start

    decode = functools.partial(_block, dtype, chunks, ours)
    plain = ours == "none" and dtype.itemsize == 1 and chunks[1:] == shape[1:]
    fill = functools.partial(np.zeros, (), dtype)
    coding = None
    # Sizes that no header can hold are refused below.
    with contextlib.suppress(struct.error):
        # A block of this header is whole.
        whole = struct.pack(f">HH{len(chunks)}I", 0, len(chunks), *chunks[::-1])
        coding = Coding(((ours, 0),) * (ours != "none"), whole, dtype.itemsize)
    return Grid(
        store, name, shape, chunks, dtype, locate, decode, fill, plain, packing, header, cropped=True,
        coding=coding,
    )  # fmt: skip


def _walk(store: Store, below: str = "", deep: int = 0) -> Iterator[tuple[str, dict[str, Any]]]:
    for child in store.children(below)[:ARRAYS_MOST] if deep < DEEPEST else ():
        name = f"{below}/{child}" if below else child
        attributes = _load(store, name)
        if attributes is not None and "dimensions" in attributes:
            yield name, attributes
        elif good_name(name):
            yield from _walk(store, name, deep + 1)


class N5Reader(GridReader):
    """Reads N5. ``fields``: only these arrays; ``missing``: a block that is not there is zeros (fill) or an
    error (error), by default the latter in what we wrote; ``cache``: bytes of unpacked blocks kept;
    ``decode``: numbers become what they stand for by their attributes (scale_factor, add_offset, _FillValue,
    missing_value), or stay as they are stored, which without it is warned of."""

    roots = (ATTRIBUTES,)

    def _find(self, store: Store) -> tuple[Grids, dict[str, Any]]:
        top = _load(store, "")
        if top is None and not store.children(""):
            raise NotFoundError(f"there is no {ATTRIBUTES}; this is no N5 container", path=store.path)
        top = top or {}
        self._version = str(top.get("n5", "unknown"))
        if "dimensions" in top:
            return {"": _grid(store, "", top)}, top
        if METADATA_KEY not in top:
            return each_grid(functools.partial(_grid, store), dict(_walk(store))), top
        note = DatasetMetadata.from_json(top[METADATA_KEY])
        grids = {}
        for name, field in note.schema.items():
            for part in parts_of(field):
                path = f"{note.paths[name]}/{part}" if part else note.paths[name]
                attributes = _load(store, path)
                if attributes is not None:
                    grids[path] = _grid(store, path, attributes)
        return grids, top

    def _attributes_of(self, path: str) -> dict[str, Any]:
        attributes = _load(self.store, path) or {}
        return {name: value for name, value in attributes.items() if name not in (*OWN, METADATA_KEY)}

    def _as_described(self, grid: Grid, dtype: AnyDType, row: tuple[int, ...]) -> Grid:
        stored, shape = stored_as(dtype, row)
        if stored == dtype or (grid.dtype, grid.row) != (stored, shape):
            return grid
        decode, locate = grid.decode, grid.locate
        axes = 1 + len(row)

        def behind(index: Index) -> ChunkLocation | None:
            return locate((*index, *(0,) * (len(shape) - len(row))))

        def view(data: U8) -> AnyArray:
            values: AnyArray = decode(data)
            return values.view(dtype).reshape(values.shape[:axes])

        return dataclasses.replace(
            grid, dtype=dtype, shape=grid.shape[:axes], chunks=grid.chunks[:axes], decode=view, locate=behind,
            plain=grid.plain and len(shape) == len(row),
        )  # fmt: skip

    def facts(self) -> dict[str, object]:
        return {"version": f"N5 {self._version}", **super().facts()}


# --- writing ------------------------------------------------------------------------------------------


class N5Style(Style):
    """Writes blocks and attributes."""

    packings = PACKINGS
    extra = "n5"

    def pack(self, part: OutputArray, values: AnyArray) -> Any:
        stored, row = stored_as(part.dtype, values.shape[1:])
        values = np.ascontiguousarray(values).view(stored).reshape(len(values), *row)
        shape = values.shape[::-1]
        head = struct.pack(f">HH{len(shape)}I", 0, len(shape), *shape)
        data = values.astype(stored.newbyteorder(">"), copy=False)
        return b"".join([head, bytes(pack(part.packing, part.level, as_bytes(data), stored.itemsize))])

    def file(self, part: OutputArray, number: int, tile: Index) -> str:
        pairs = ["0"] * (len(stored_as(part.dtype, part.row)[1]) - len(part.row))
        return "/".join([part.path, *pairs, *map(str, tile[::-1]), str(number)])

    def describe(self, parts: Sequence[OutputArray], metadata: DatasetMetadata) -> dict[str, bytes]:
        documents: dict[str, Any] = {
            ATTRIBUTES: {**self.attributes, "n5": VERSION, METADATA_KEY: metadata.to_json()}
        }
        for part in parts:
            dtype, row = stored_as(part.dtype, part.row)
            documents[f"{part.path}/{ATTRIBUTES}"] = {
                **part.attributes,
                "dimensions": [*row[::-1], part.rows],
                "blockSize": [*stored_as(part.dtype, part.cell)[1][::-1], part.chunk],
                "dataType": dtype.name,
                "compression": self._compression(part),
            }
        return {
            name: json.dumps(document, ensure_ascii=False).encode() for name, document in documents.items()
        }

    def _compression(self, part: OutputArray) -> dict[str, Any]:
        level = part.level
        configs: dict[str, dict[str, Any]] = {
            "none": {"type": "raw"},
            "gzip": {"level": level, "useZlib": False},
            "bzip2": {"blockSize": max(1, level)},
            "xz": {"preset": level},
            "blosc": {"cname": "zstd", "clevel": level, "shuffle": 1, "blocksize": 0},
            "zstd": {"level": level},
        }
        return {"type": part.packing, **configs[part.packing]}


class N5Writer(GridWriter):
    """Writes N5. ``compression``: none, gzip, bzip2, xz, blosc or zstd (auto: zstd, but not for images,
    sound and video, which are packed already and then used in place); ``level``: of the compression;
    ``chunk_samples``: rows of a block (default: about 1 MiB, without compression 64 MiB); ``chunks``: the
    shape of a block, samples first, for all fields with as many axes or by field."""

    def __init__(
        self, path: str, schema: Schema, options: WriteOptions, *, compression: str = "auto",
        level: int | None = None, chunk_samples: int | None = None, chunks: Chunks | None = None,
        attributes: Attributes | None = None,
    ) -> None:  # fmt: skip
        super().__init__(
            path, schema, options, N5Style(), compression, level, chunk_samples, attributes=attributes,
            chunks=chunks,
        )  # fmt: skip


def allocate(path: str, schema: Schema | Mapping[str, Field], samples: int, **options: Any) -> None:
    """Make an empty dataset of so many samples, for several processes to fill; as of Zarr."""
    arrays.allocate(N5Writer, path, schema, samples, **options)


def range_unit(path: str) -> int:
    """Ranges of samples begin and end at multiples of this; only the last may end at the end."""
    with N5Reader(path) as reader:
        return unit_of(reader)


def write_range(path: str, start: int, columns: Mapping[str, Column]) -> None:
    """Write samples from ``start`` on; safe from several processes whose ranges do not overlap."""
    with N5Reader(path) as reader:
        arrays.write_range(reader, N5Style(), start, columns)


def _has_array(path: str, depth: int) -> bool:
    """True if a folder holds an array, which others write without attributes of the top."""
    names = [entry.name for entry in tree.entries(path) if entry.folder][:PROBED_FOLDERS]
    for name in names:
        data = read_beside(join(path, name, ATTRIBUTES))
        if data is not None and {"dimensions", "blockSize"} <= set(parse_object(data, finite=False)):
            return True
    return depth > 1 and any(_has_array(join(path, name), depth - 1) for name in names[:2])


def sniff(probe: Probe) -> bool:
    """Attributes at the top that are those of a container or of an array; or an array in a folder NAME.n5."""
    try:
        if probe.folder:
            data = read_beside(join(probe.path, ATTRIBUTES)) or b""
            if not data:
                named = probe.path.rstrip("/").lower().endswith(".n5")
                return named and _has_array(probe.path, PROBED_DEPTH)
        elif probe.head[:4] == b"PK\3\4":
            with zipfile.ZipFile(probe.source.file()) as archive:
                top = zip_top(archive.namelist(), (ATTRIBUTES,))
                if top is None or archive.getinfo(top + ATTRIBUTES).file_size > 1 << 24:
                    return False
                data = archive.read(top + ATTRIBUTES)
        else:
            return False
        document = parse_object(data, finite=False)
        return "n5" in document or {"dimensions", "blockSize"} <= set(document)
    except (*ZIP_ERRORS, BatchplantError, KeyError):
        return False


FORMAT = Format(
    name="n5",
    title="N5",
    suffixes=(".n5", ".n5.zip"),
    spec="https://github.com/saalfeldlab/n5",
    reader=N5Reader,
    writer=N5Writer,
    sniff=sniff,
    kinds=EVERY_KIND,
    optional=True,
    folder=None,
    extra="n5",
    notes="raw, gzip, bzip2, xz, blosc and zstd; folders, ZIP files and URLs",
    can=Capabilities(
        random_access=True,
        compression=("gzip", "bzip2", "xz", "blosc", "zstd"),
        compressed="chunk",
        column_pruning=True,
        remote_ranges=True,
        keeps_schema=True,
        streaming_write=True,
        splittable=True,
        metadata=True,
        ecosystem=("Fiji", "zarr", "z5py", "TensorStore"),
    ),
)
