"""Writing: cells are spooled, and the file is made of them at the end, when all sizes are known.

HDF5 files cannot be written by several threads or processes at a time, nor cut back to a checkpoint. So many
threads encode, one spools, and at the end one thread writes; only compression with gzip uses all of them.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import math
import zlib
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from ...codecs.media.image_rules import ANY_ENCODED, ImageTarget
from ...data.reader import Reader
from ...data.writer import WriteOptions, Writer
from ...errors import BatchplantError, EncodeError, OptionError, located, needs
from ...schema import Field, Image, Json, Schema, Tensor, Text
from ...schema.columns import AnyArray, AnyDType, Columns, Ragged, dense_of
from ...storage import Patch, open_source
from ..base.arrays.layout import Chunks, chunk_shapes
from ..base.records import note_of
from ..base.sink import Overlay, Sink
from .attribute_texts import AXES

# -- attributes ---------------------------------------------------------------------------------------
# Attributes as HDF5 has them: values of its types, the names of axes as labels and dimension scales.

# These are of the type of the values that they stand among.
TYPED = ("_FillValue", "missing_value")


def write_attributes(thing: Any, values: Mapping[str, Any]) -> None:
    """Give a group or a dataset these attributes."""
    shape, dtype = getattr(thing, "shape", None), getattr(thing, "dtype", None)
    for key, value in values.items():
        named = isinstance(value, list | tuple) and all(isinstance(name, str) for name in value)
        if key == AXES and shape is not None and named and len(value) == len(shape):
            for axis, name in zip(thing.dims, value, strict=True):
                axis.label = name
        elif key in TYPED and dtype is not None and dtype.kind in "iuf" and _fits(value, dtype):
            thing.attrs[key] = np.asarray(value, dtype)
        else:
            thing.attrs[key] = attribute(value)


def attach_scales(file: Any, names: Sequence[str]) -> None:
    """Make fields of numbers that are called like an axis of others the dimension scales of that axis."""
    datasets = {name: file[name] for name in names if hasattr(file.get(name), "dims")}
    scales = {
        name: dataset
        for name, dataset in datasets.items()
        if dataset.ndim == 1 and dataset.dims[0].label == name and dataset.dtype.kind in "iuf"
    }
    for name, scale in scales.items():
        scale.make_scale(name)
    for name, dataset in datasets.items():
        for size, axis in zip(dataset.shape, dataset.dims, strict=True):
            scale = scales.get(axis.label)
            if scale is not None and name != axis.label and scale.shape[0] == size:
                axis.attach_scale(scale)


def _fits(value: Any, dtype: AnyDType) -> bool:
    array = np.asarray(value)
    return array.dtype.kind in "iuf" and (dtype.kind == "f" or bool((array.astype(dtype) == array).all()))


def attribute(value: Any) -> Any:
    """Convert a value to one that HDF5 can hold: numbers, texts, arrays of one kind; else its JSON."""
    if isinstance(value, list | tuple):
        kinds = {type(element) for element in value}
        if not value or kinds == {str} or kinds <= {int, float, bool}:
            return list(value)
    elif not isinstance(value, dict | None):
        return value
    return json.dumps(value, ensure_ascii=False)


# -- growing ------------------------------------------------------------------------------------------
# Datasets of an HDF5 file that grow: new rows behind those that are there.
#
# The library changes a file all over when it appends to it. It works on an Overlay, so that
# what it changes is written by one change at the end, and a killed writer leaves the file as it was.

RESERVED = "batchplant"
# Rows and cells of varying length are handed to the library this many bytes at a time.
PART_BYTES = 16 << 20
HINT = "make it with resizable=True (--to-option resizable=true), so that more can follow"

# Type and shape of the rows of a dataset.
Rows = tuple[Any, tuple[int, ...]]


def varying_kind(library: Any, field: Field) -> tuple[Any, AnyDType]:
    """The type of cells of varying length, and that of what they are made of."""
    dtype: AnyDType = np.dtype(np.uint8)
    if isinstance(field, Tensor) and field.flat:
        dtype = np.dtype(field.dtype)
        dtype = np.dtype(np.int64) if dtype.kind in "mM" else dtype
    text = isinstance(field, Text | Json)
    return library.string_dtype() if text else library.vlen_dtype(dtype), dtype


def obstacle(file: Any, rows: dict[str, Rows]) -> str | None:
    """Why rows cannot be added to datasets; None where they can."""
    for name, (dtype, shape) in rows.items():
        dataset = file.get(name)
        if dataset is None or not hasattr(dataset, "maxshape"):
            return f"there is no dataset {name} that could grow; {HINT}"
        if not dataset.maxshape or dataset.maxshape[0] is not None:
            return f"the dataset {name} has a fixed size; {HINT}"
        if dataset.dtype != dtype or dataset.shape[1:] != shape:
            return (
                f"the dataset {name} has rows of {dataset.dtype} {dataset.shape[1:]}, not of {dtype} {shape}"
            )
    return None


def patches(overlay: Overlay, tail: Path, name: str) -> list[Patch]:
    """Changes to a file: overwritten and appended bytes."""
    result = [Patch(tail.name, name, overlay.before)]
    for number, (offset, data) in enumerate(overlay.edits()):
        edit = tail.with_name(f"edit-{number}")
        edit.write_bytes(data)
        result.append(Patch(edit.name, name, offset))
    return result


def grow(dataset: Any, rows: int) -> int:
    """Make room for more rows; the number of the first of them."""
    first = int(dataset.shape[0])
    dataset.resize(first + rows, axis=0)
    return first


def write_rows(dataset: Any, array: AnyArray, check: Callable[[], None]) -> None:
    """Rows behind those that are there, some at a time."""
    first = grow(dataset, len(array))
    step = max(1, PART_BYTES // max(1, array.nbytes // max(1, len(array))))
    for start in range(0, len(array), step):
        part = array[start : start + step]
        dataset[first + start : first + start + len(part)] = part
        check()


# -- writer -------------------------------------------------------------------------------------------

FILE = "file.h5"
# Large enough that reading and unpacking one is worth it, small enough that a window of 32 stays in memory.
CHUNK_BYTES = 1 << 20
# References to such cells in a chunk.
CELLS = 4096
PLUGINS = {"zstd": "Zstd", "blosc": "Blosc", "blosc2": "Blosc2", "lz4": "LZ4", "bitshuffle": "Bitshuffle"}


class Hdf5Writer(Writer):
    """Writes HDF5 files. ``compression``: gzip, lzf, or with hdf5plugin zstd, blosc, blosc2, lz4, bitshuffle;
    ``level``: of gzip; ``chunk``: samples in a chunk (default: about 1 MiB of them); ``chunks``: its shape,
    samples first, for all fields with as many axes or by field; ``layout``: vlen, or packed, which is written
    faster and holds NUL in text; ``resizable``: more can be appended later (default: where an append makes
    the file); ``attributes``: ``{"": {…}, field: {…}}``."""

    appends: ClassVar[bool] = True

    def __init__(
        self,
        path: str,
        schema: Schema,
        options: WriteOptions,
        *,
        compression: str | None = None,
        level: int = 4,
        chunk: int | None = None,
        chunks: Chunks | None = None,
        layout: str = "vlen",
        resizable: bool | None = None,
        attributes: Mapping[str, Mapping[str, Any]] | None = None,
    ) -> None:
        if layout not in ("vlen", "packed"):
            raise OptionError(f"layout is vlen or packed, not {layout!r}", path=path)
        if resizable and layout == "packed":
            raise OptionError(
                "what is packed cannot grow; write resizable datasets with layout=vlen", path=path
            )
        compression = None if compression == "none" else compression
        if compression not in (None, "gzip", "lzf", *PLUGINS):
            names = ", ".join(("none", "gzip", "lzf", *PLUGINS))
            raise OptionError(f"compression is one of {names}, not {compression!r}", path=path)
        if not 0 <= level <= 9 or (chunk is not None and chunk < 1):
            raise OptionError(f"a level of 0 to 9 and a chunk of 1 or more, not {level}, {chunk}", path=path)
        if attributes is not None and not set(attributes) <= {"", *schema}:
            raise OptionError(f"attributes belong to '' or a field, not {', '.join(attributes)}", path=path)
        with located(path=path):
            self._shapes = chunk_shapes(chunks, schema, dense_of)
        self._library = _library()
        self._filter = _filter(compression, level)
        self._compression, self._level, self._chunk, self._layout = compression, level, chunk, layout
        self._attributes = attributes or {}
        self._resizable = options.append if resizable is None else resizable
        self._parts = {name: list(_spools_of(name, field)) for name, field in schema.items()}
        _check_names(schema, layout)
        super().__init__(path, schema, options)

    @classmethod
    def refuses(cls, field: Field) -> str | None:
        dtype = np.dtype(getattr(field, "dtype", "bool"))
        large = dtype.itemsize > (16 if dtype.kind == "c" else 8)
        return f"hdf5 cannot hold {dtype}, which is different on every machine" if large else None

    @classmethod
    def image_target(cls, field: Image) -> ImageTarget:
        return ImageTarget(ANY_ENCODED | {"raw"})

    def remarks(self) -> list[str]:
        ragged = [name for name, field in self.schema.items() if dense_of(field) is None]
        if not ragged or self._compression is None:
            return []
        return [f"HDF5 does not compress cells of varying length: {', '.join(ragged)}"]

    def _unfit(self, columns: Columns) -> dict[int, BatchplantError]:
        problems: dict[int, BatchplantError] = {}
        for name, field in self.schema.items():
            column = columns[name]
            if self._layout == "packed" or not isinstance(field, Text | Json):
                continue
            assert isinstance(column, Ragged)
            zeros = column.offsets[0] + np.flatnonzero(
                column.data[column.offsets[0] : column.offsets[-1]] == 0
            )
            for row in np.unique(np.searchsorted(column.offsets, zeros, "right") - 1).tolist():
                message = 'text with NUL does not fit into HDF5\'s strings; write it with layout="packed"'
                problems.setdefault(row, EncodeError(message, field=name))
        return problems

    def _begin(self, state: dict[str, Any] | None) -> None:
        spools = [part for parts in self._parts.values() for part in parts]
        self._spools = {name: self.partial.spool(f"{n}.array") for n, name in enumerate(spools)}
        for name, field in self.schema.items():
            if dense_of(field) is None and not self._spools[f"{name}/offsets"].size:
                self._spools[f"{name}/offsets"].write(np.zeros(1, dtype=np.int64))

    def _write(self, columns: Columns) -> None:
        for name, field in self.schema.items():
            column, dense = columns[name], dense_of(field)
            valid = None
            if not isinstance(column, Ragged):
                self._spools[f"{name}/data"].write(column)
            elif dense is not None:
                valid = np.ones(len(column), dtype=np.bool_) if column.valid is None else column.valid
                values = np.zeros((len(column), *dense[1]), dtype=dense[0])
                packed = column.take(valid)
                values[valid] = packed.data.view(dense[0]).reshape(-1, *dense[1]) if values.size else 0
                self._spools[f"{name}/data"].write(values)
            else:
                packed = column.take(slice(None))
                self._spools[f"{name}/offsets"].write(packed.offsets[1:] + self._spools[f"{name}/data"].size)
                self._spools[f"{name}/data"].write(packed.data)
                valid = packed.valid
            if f"{name}/valid" in self._spools:
                self._spools[f"{name}/valid"].write(
                    np.ones(len(column), dtype="?") if valid is None else valid
                )
            if f"{name}/shape" in self._spools:
                shape = column.shape if isinstance(column, Ragged) else None
                none = np.zeros((len(column), 3), dtype=np.int32)
                self._spools[f"{name}/shape"].write(none if shape is None else shape)

    # -- the file --------------------------------------------------------------------------------------

    def _finish(self) -> str:
        if self.base is not None:
            return self._finish_append(FILE)
        # Newer layouts keep checksums of the metadata; every HDF5 since 2016 reads them.
        # Large runs begin at a page: a row then lies in as few pages as it can.
        aligned = {"alignment_threshold": 1 << 16, "alignment_interval": 4096}
        self._sink = sink = Sink(self.partial.folder / FILE)
        # Freed space is not reused: readers of an older state still see it.
        free_space = {"fs_strategy": "none"} if self._resizable else {}
        with (
            contextlib.closing(sink),
            self._library.File(sink, "w", libver="v110", track_order=True, **aligned, **free_space) as file,
        ):
            for name, field in self.schema.items():
                sink.check()
                where = name.replace(".", "/")
                dense = dense_of(field)
                if dense is not None:
                    dtype = np.dtype(np.int64) if dense[0].kind in "mM" else dense[0]
                    self._add(file, where, name, dtype, dense[1])
                elif self._layout == "packed":
                    self._plain(file, f"{where}/data", self._array(f"{name}/data", np.dtype(np.uint8)))
                    self._plain(file, f"{where}/offsets", self._array(f"{name}/offsets", np.dtype(np.int64)))
                else:
                    self._add_varying(file, where, name, field)
                if field.optional:
                    valid = self._array(f"{name}/valid", np.dtype("?"))
                    if self._resizable or not valid.all():
                        self._plain(file, f"{RESERVED}/valid/{where}", valid)
                if isinstance(field, Image):
                    shapes = self._array(f"{name}/shape", np.dtype(np.int32), (3,))
                    if shapes.any() or self._resizable:
                        self._plain(file, f"{RESERVED}/shape/{where}", shapes)
                write_attributes(file[where], self._attributes.get(name, {}))
            write_attributes(file, self._attributes.get("", {}))
            attach_scales(file, [name.replace(".", "/") for name in self.schema])
            self._write_note(file, self._chunks_text())
        sink.check()
        return FILE

    def _write_note(self, file: Any, chunks: str) -> None:
        note = json.loads(note_of(self.schema, self.before + self.written))
        text = json.dumps({**note, "chunks": chunks}, ensure_ascii=False).encode()
        # Of fixed length: it does not lie in a heap.
        file.attrs.create(RESERVED, np.bytes_(text), dtype=self._library.string_dtype("utf-8", len(text)))

    def _chunks_text(self) -> str:
        if self._shapes:
            return "chunks as asked for"
        if self._compression is None and self._chunk is None and not self._resizable:
            return "no chunks: nothing is compressed, and so every sample can be used where it lies"
        if self._chunk is not None:
            return f"{self._chunk} samples in a chunk, as asked for"
        return "about 1 MiB of samples in a chunk: worth a read, and 32 of them fit into memory"

    def _array(self, spool: str, dtype: AnyDType, shape: tuple[int, ...] = ()) -> AnyArray:
        """A spool, mapped."""
        source = open_source(str(self._spools[spool].path))
        width = dtype.itemsize * math.prod(shape)
        if not width:
            return np.empty((self.written, *shape), dtype)
        return source.array(dtype, 0, source.size // dtype.itemsize).reshape(-1, *shape)

    def _plain(self, file: Any, where: str, array: AnyArray) -> Any:
        options: dict[str, Any] = {}
        if self._resizable:
            rows = max(1, CHUNK_BYTES // max(1, array.dtype.itemsize * math.prod(array.shape[1:])))
            options = {
                "maxshape": (None, *array.shape[1:]),
                "chunks": (rows, *(max(1, n) for n in array.shape[1:])),
            }
        return file.create_dataset(where, data=array, track_times=False, **options)

    def _add(self, file: Any, where: str, name: str, dtype: AnyDType, shape: tuple[int, ...]) -> None:
        array = self._array(f"{name}/data", dtype, shape)
        chunk_rows, cut = self._shapes.get(name, (self._chunk, None))
        if (self._compression is None and chunk_rows is None) or not (array.size or self._resizable):
            self._plain(file, where, array)
            return
        width = max(1, dtype.itemsize * math.prod(shape))
        rows = chunk_rows or max(1, CHUNK_BYTES // width)
        rows = rows if self._resizable else min(len(array), rows)
        chunk = rows, *(max(1, n) for n in (shape if cut is None else cut))
        dataset = file.create_dataset(
            where, array.shape, dtype, chunks=chunk, track_times=False,
            maxshape=(None, *shape) if self._resizable else None, **self._filter,
        )  # fmt: skip
        if self._compression != "gzip":
            # A few chunks at a time, so that the library holds no more than that.
            step = rows * max(1, PART_BYTES // (rows * width))
            for start in range(0, len(array), step):
                dataset[start : start + step] = array[start : start + step]
                self._sink.check()
            return
        for begin, data in self._deflated(array, chunk):
            dataset.id.write_direct_chunk(begin, data)
            self._sink.check()

    def _deflated(self, array: AnyArray, chunk: tuple[int, ...]) -> Iterator[tuple[tuple[int, ...], bytes]]:

        def work(start: tuple[int, ...]) -> bytes:
            part = array[
                tuple(slice(offset, offset + size) for offset, size in zip(start, chunk, strict=True))
            ]
            full = np.zeros(chunk, dtype=array.dtype)
            full[tuple(map(slice, part.shape))] = part
            plain = full.reshape(-1).view(np.uint8).reshape(-1, array.dtype.itemsize)
            return zlib.compress(plain.T.tobytes(), self._level)

        with ThreadPoolExecutor(self._workers) as pool:
            under_way: deque[tuple[tuple[int, ...], Future[bytes]]] = deque()
            steps = (range(0, size, step) for size, step in zip(array.shape, chunk, strict=True))
            for begin in itertools.product(*steps):
                under_way.append((begin, pool.submit(work, begin)))
                if len(under_way) > 2 * self._workers:
                    first, task = under_way.popleft()
                    yield first, task.result()
            for first, task in under_way:
                yield first, task.result()

    def _add_varying(self, file: Any, where: str, name: str, field: Field) -> None:
        offsets = self._array(f"{name}/offsets", np.dtype(np.int64))
        data = self._array(f"{name}/data", np.dtype(np.uint8))
        text = isinstance(field, Text | Json)
        library = self._library
        kind, dtype = varying_kind(library, field)
        if self.base is None:
            options = {"maxshape": (None,), "chunks": (CELLS,)} if self._resizable else {}
            dataset = file.create_dataset(where, (len(offsets) - 1,), kind, track_times=False, **options)
            behind = 0
        else:
            dataset = file[where]
            behind = grow(dataset, len(offsets) - 1)
        space = dataset.id.get_space()
        first = 0
        while first < len(offsets) - 1:
            last = int(np.searchsorted(offsets, offsets[first] + PART_BYTES, "right")) - 1
            last = min(max(last, first + 1), first + 100_000, len(offsets) - 1)
            cells = np.empty(last - first, dtype=kind)
            ends = offsets[first : last + 1].tolist()
            for row in range(last - first):
                cell = data[ends[row] : ends[row + 1]]
                cells[row] = cell.tobytes() if text else cell.view(dtype)
            # Not made[first:last] = cells: cells of equal length would be taken for a table.
            space.select_hyperslab((behind + first,), (last - first,))
            dataset.id.write(library.h5s.create_simple((last - first,)), space, cells)
            self._sink.check()
            first = last

    # -- appending -------------------------------------------------------------------------------------

    def _begin_append(self, base: Reader, state: dict[str, Any]) -> None:
        super()._begin_append(base, state)
        with self._opened(self.path, "r", locking=False) as file:
            # Files of others have no such datasets, and nothing in them is missing.
            self._noted = RESERVED in file.attrs
            reason = obstacle(file, {dataset: rows for dataset, _, rows in self._datasets()})
        if reason is not None:
            raise self.cannot_append(reason)

    @contextlib.contextmanager
    def _opened(self, file_or_path: Any, mode: str, **options: Any) -> Iterator[Any]:
        try:
            with self._library.File(file_or_path, mode, **options) as file:
                yield file
        except OSError as error:
            raise self.cannot_append(f"the library does not open it: {error}") from None

    def _datasets(self) -> Iterator[tuple[str, str, Rows]]:
        """Every dataset that grows, the spool of its rows, and what they are."""
        for name, field in self.schema.items():
            where, dense = name.replace(".", "/"), dense_of(field)
            if dense is not None:
                dtype = np.dtype(np.int64) if dense[0].kind in "mM" else dense[0]
                yield where, f"{name}/data", (dtype, dense[1])
            else:
                yield where, "", (varying_kind(self._library, field)[0], ())
            if field.optional and self._noted:
                yield f"{RESERVED}/valid/{where}", f"{name}/valid", (np.dtype("?"), ())
            if isinstance(field, Image) and self._noted:
                yield f"{RESERVED}/shape/{where}", f"{name}/shape", (np.dtype(np.int32), (3,))

    def _finish_append(self, tail: str) -> str:
        self._sink = sink = Overlay(Path(self.path), self.partial.folder / tail)
        with contextlib.closing(sink):
            with self._opened(sink, "r+", libver="v110") as file:
                for dataset, spool, (dtype, shape) in self._datasets():
                    if spool:
                        write_rows(file[dataset], self._array(spool, dtype, shape), sink.check)
                for name, field in self.schema.items():
                    if dense_of(field) is None:
                        self._add_varying(file, name.replace(".", "/"), name, field)
                if self._noted:
                    self._write_note(file, str(json.loads(bytes(file.attrs[RESERVED])).get("chunks", "")))
            sink.check()
            self._patches = patches(sink, self.partial.folder / tail, self.partial.name)
        return tail

    def _changes(self, name: str) -> tuple[list[Patch], list[tuple[str, str]]]:
        return self._patches, []


def _library() -> Any:
    with needs("HDF5 needs h5py", "hdf5"):
        import h5py
    return h5py


def _filter(compression: str | None, level: int) -> dict[str, Any]:
    if compression == "gzip":
        return {"compression": "gzip", "compression_opts": level, "shuffle": True}
    if compression == "lzf":
        return {"compression": "lzf", "shuffle": True}
    if compression is None:
        return {}
    with needs(f"{compression} needs hdf5plugin", "hdf5-filters"):
        import hdf5plugin
    return dict(getattr(hdf5plugin, PLUGINS[compression])())


def _spools_of(name: str, field: Field) -> Iterator[str]:
    yield f"{name}/data"
    if dense_of(field) is None:
        yield f"{name}/offsets"
    if isinstance(field, Image):
        yield f"{name}/shape"
    if field.optional:
        yield f"{name}/valid"


def _check_names(schema: Schema, layout: str) -> None:
    """Every dataset needs a path of its own, and no group may be a dataset too."""
    paths = {}
    for name, field in schema.items():
        parts = name.split(".")
        if "/" in name or "" in parts or parts[0] == RESERVED:
            raise OptionError(f"{name!r} cannot be the name of a dataset; rename the field")
        packed = layout == "packed" and dense_of(field) is None
        for path in [name, *((f"{name}.data", f"{name}.offsets") if packed else ())]:
            paths[path] = name
    for path, name in paths.items():
        above = path.split(".")
        for depth in range(1, len(above)):
            holder = paths.get(".".join(above[:depth]))
            if holder not in (None, name):
                raise OptionError(
                    f"{holder!r} would be a dataset and the group of {name!r}; rename one field"
                )
