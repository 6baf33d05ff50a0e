"""Models as datasets: what the formats of named tensors share.

A model file is a dataset with one sample for each tensor. ``TENSORS`` is its schema: the name, the dtype, the
shape, and the values as little-endian bytes in row-major order. So every format that holds text and bytes
holds a model too, to the last bit.

Dtypes are called as NumPy and ml_dtypes call them. Those of 4 and 6 bits are packed: the values of ``int4``,
``uint4`` and ``float4_e2m1fn`` stand two in a byte, the first one in its lower half, as ONNX stores them.

A format makes a list of :class:`Entry` and hands it to ``TensorReader._accept``; a writer is told of every
tensor by ``TensorWriter._put``, and finds all of them in ``entries`` when it finishes.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import math
import os
import types
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from ...data.arrays import Array, MemoryArray, RunArray
from ...data.layout import Layout
from ...data.reader import Reader
from ...data.tensors import (
    BITS,
    TENSORS,
    Tensors,
    about_tensor,
    as_array,
    from_array,
    is_tensors,
    numpy_dtype,
    shape_of,
    size_of,
    summary,
    text_of,
)
from ...data.writer import Writer
from ...errors import (
    BatchplantError,
    DamagedError,
    FieldNameError,
    MissingLibraryError,
    OptionError,
    SchemaError,
    no_such,
)
from ...schema import is_text
from ...schema.columns import I64, U8, Columns, Ragged, starts_of
from ...storage import NOTE_ERRORS, Source, is_plain, join, open_source, parent, parse_object, read_whole
from ...storage.spans import Spans

__all__ = [
    "BITS", "TENSORS", "Entry", "Placed", "TensorReader", "TensorWriter", "Tensors", "as_array",
    "from_array", "indexed", "is_tensors", "numpy_dtype", "read_parts", "size_of", "statistics",
    "summary",
]  # fmt: skip

# A multiple of eight, so that packed values begin with a byte.
BLOCK_VALUES = 1 << 20


@dataclasses.dataclass(frozen=True)
class Entry:
    """One tensor. ``where``: (file, start, size) of its bytes, or a function that gives them."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    where: tuple[str, int, int] | Callable[[], U8]

    @functools.cached_property
    def size(self) -> int:
        return size_of(self.dtype, self.shape)

    @property
    def count(self) -> int:
        return math.prod(self.shape)


class TensorReader(Reader):
    """A format's ``__init__`` calls ``_accept`` with what it found; the rest is here."""

    metadata: Mapping[str, str] = types.MappingProxyType({})
    _entries: list[Entry]
    _sources: dict[str, Source]

    def _accept(self, path: str, entries: Iterable[Entry], sources: Iterable[Source] = ()) -> None:
        """Check names, sizes and bounds, and make these tensors the samples."""
        self.path = path
        self.schema = TENSORS
        self._sources = {source.path: source for source in sources}
        self._entries = list(entries)
        self.length = len(self._entries)
        seen: set[str] = set()
        for number, entry in enumerate(self._entries):
            try:
                if entry.name in seen:
                    raise DamagedError("there are two of that name")
                if not is_text(entry.name):
                    raise DamagedError(f"{entry.name!r} is no name")
                seen.add(entry.name)
                self._check_bounds(entry)
            except BatchplantError as error:
                raise about_tensor(error, entry.name).at(path=path, sample=number) from None
        self._sizes = np.array([entry.size for entry in self._entries], dtype=np.int64)

    def _check_bounds(self, entry: Entry) -> None:
        size = entry.size
        if isinstance(entry.where, tuple):
            file, start, end = entry.where
            if end != size:
                raise DamagedError(
                    f"{end} bytes are not {entry.dtype} {list(entry.shape)}", path=file, offset=start
                )
            source = self._file(file)
            if start < 0 or start + size > source.size:
                raise DamagedError(
                    f"{size} bytes are needed here, but the file ends at {source.size}",
                    path=file,
                    offset=start,
                )

    def _file(self, file: str) -> Source:
        if file not in self._sources:
            self._sources[file] = open_source(file)
        return self._sources[file]

    def _layout(self) -> Layout:
        return Layout(sizes=self._sizes)

    @property
    def paths(self) -> list[str]:
        """All files that the model lies in."""
        return list(dict.fromkeys([self.path, *self._sources]))

    def where(self, sample: int) -> str:
        location = self._entries[sample].where
        return location[0] if isinstance(location, tuple) else self.path

    def _read(self, indices: I64, fields: Sequence[str]) -> Columns:
        chosen = [self._entries[row] for row in indices.tolist()]
        columns = Columns()
        for field in fields:
            if field == "name":
                columns[field] = Ragged.from_cells([entry.name.encode() for entry in chosen])
            elif field == "dtype":
                columns[field] = Ragged.from_cells([entry.dtype.encode() for entry in chosen])
            elif field == "shape":
                columns[field] = Ragged.from_cells([np.array(entry.shape, np.int64) for entry in chosen])
            else:
                columns[field] = self._data(indices, chosen)
        return columns

    def _data(self, indices: I64, chosen: list[Entry]) -> Ragged:
        offsets = starts_of(self._sizes[indices])
        try:
            out = np.empty(offsets[-1], dtype=np.uint8)
        except MemoryError:
            raise DamagedError(f"{offsets[-1]} bytes do not fit into memory", path=self.path) from None
        runs: dict[str, list[tuple[int, int]]] = {}
        for row, entry in enumerate(chosen):
            if isinstance(entry.where, tuple):
                runs.setdefault(entry.where[0], []).append((row, entry.where[1]))
                continue
            try:
                data = entry.where()
                if data.size != entry.size:
                    raise DamagedError(f"{data.size} bytes came, not {entry.size}")
            except BatchplantError as error:
                raise about_tensor(error, entry.name).at(path=self.path, sample=int(indices[row])) from None
            out[offsets[row] : offsets[row + 1]] = data
        for file, places in runs.items():
            rows, starts = np.array(places, dtype=np.int64).T
            self._file(file).gather_into(starts, self._sizes[indices[rows]], out, offsets[rows])
        return Ragged(out, offsets)

    def _array(self, field: str) -> Array | None:
        """The tensor of this name. One that lies as it is in a file is read there, any other whole."""
        names = self._by_name
        if field not in names:
            raise FieldNameError(no_such("tensor", field, names), path=self.path)
        entry = names[field]
        try:
            if isinstance(entry.where, tuple) and BITS[entry.dtype] >= 8:
                file, start, _ = entry.where
                dtype = numpy_dtype(entry.dtype)
                return RunArray(self.path, field, entry.shape, dtype, self._file(file), start)
            data = self._data(np.array([self._entries.index(entry)]), [entry]).data
            return MemoryArray(self.path, field, as_array(entry.dtype, entry.shape, data))
        except BatchplantError as error:
            raise about_tensor(error, field).at(path=self.path) from None

    @functools.cached_property
    def _by_name(self) -> dict[str, Entry]:
        return {entry.name: entry for entry in self._entries}

    def _spans(self, field: str, indices: I64) -> Spans | None:
        if field != "data":
            return None
        sources: dict[Source, int] = {}
        location = np.zeros((len(indices), 2), dtype=np.int64)
        for row, number in enumerate(indices.tolist()):
            where = self._entries[number].where
            if not isinstance(where, tuple):
                return None
            location[row] = sources.setdefault(self._file(where[0]), len(sources)), where[1]
        return Spans(
            list(sources) or [self.path],
            location[:, 1].copy(),
            self._sizes[indices],
            location[:, 0].astype(np.int32),
        )

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """One by one: tensors may be large."""
        return (self[number] for number in range(len(self)))

    def facts(self) -> dict[str, object]:
        return summary((entry.name, entry.dtype, entry.shape) for entry in self._entries)

    def close(self) -> None:
        for source in self._sources.values():
            source.close()


def read_parts(path: str, read: Callable[[str], Sequence[Entry]]) -> list[Entry]:
    """Tensors of a model in several files, which its index names; ``read`` gives those of one file."""
    chosen: list[Entry] = []
    for file, names in read_index(path).items():
        try:
            by_name = {entry.name: entry for entry in read(file)}
        except FileNotFoundError:
            raise DamagedError(f"{os.path.basename(file)} is missing", path=path) from None
        for name in names:
            if name not in by_name:
                raise DamagedError(f"there is no tensor {name!r}, which the index names", path=file)
            chosen.append(by_name[name])
    return chosen


def read_index(path: str) -> dict[str, list[str]]:
    """File → names, of a ``…index.json`` that says which tensor of a model lies in which file beside it."""
    document: dict[str, list[str]] = {}
    try:
        for name, file in parse_object(read_whole(path))["weight_map"].items():
            if not is_plain(file):
                raise DamagedError(f"{str(file)[:80]!r} is no file beside the index", path=path)
            document.setdefault(file, []).append(name)
    except BatchplantError as error:
        raise error.at(path=path) from None
    except NOTE_ERRORS as error:
        raise DamagedError(f"not an index of tensors: {type(error).__name__}: {error}", path=path) from None
    folder = parent(path)
    return {join(folder, file): names for file, names in document.items()}


def indexed(suffix: str) -> Callable[[str], list[str]]:
    """For ``Format.parts``: the files that an index with this suffix leads to."""
    return lambda path: list(read_index(path)) if path.endswith(suffix) else []


def statistics(dtype: str, shape: tuple[int, ...], data: U8) -> dict[str, Any]:
    """``mean``, ``min`` and ``max`` in float64 over all values that are numbers, and how many are ``nan``.

    Of complex numbers only the mean. Empty where there is no value, or where NumPy cannot hold them.
    """
    total, count, wrong = 0.0, math.prod(shape), 0
    low, high = math.inf, -math.inf
    complex_total = 0j
    for start in range(0, count, BLOCK_VALUES):
        size = min(BLOCK_VALUES, count - start)
        part = data[start * BITS[dtype] // 8 : -(-(start + size) * BITS[dtype] // 8)]
        try:
            values = as_array(dtype, (size,), part)
        except (MissingLibraryError, SchemaError):
            return {}
        if values.dtype.kind == "c":
            complex_total += complex(values.sum(dtype=np.complex128))
            continue
        with np.errstate(all="ignore"):
            reals = values.astype(np.float64)
            good = reals[~np.isnan(reals)]
            wrong += size - len(good)
            if len(good):
                total += float(good.sum())
                low, high = min(low, float(good.min())), max(high, float(good.max()))
    if BITS[dtype] > 8 and dtype.startswith("complex"):
        return {"mean": complex_total / count} if count else {}
    if count == wrong:
        return {"nan": wrong} if wrong else {}
    result: dict[str, Any] = {"mean": total / (count - wrong), "min": low, "max": high}
    return result | ({"nan": wrong} if wrong else {})


# -- writing -----------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Placed:
    """A tensor that was written: ``start`` is what ``_put`` returned."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    size: int
    start: int


class TensorWriter(Writer):
    """Takes the samples of TENSORS. A format implements ``_finish``, and ``_put`` where it needs its own."""

    # What the format can hold; a sentence for those that it cannot.
    dtypes: ClassVar[Collection[str]] = tuple(BITS)
    elsewhere: ClassVar[str] = "safetensors holds most dtypes"
    entries: list[Placed]

    @staticmethod
    def _checked_metadata(path: str, metadata: Mapping[str, str] | None) -> dict[str, str]:
        """Return the option of a format that keeps text about the model."""
        if not all(isinstance(text, str) for pair in (metadata or {}).items() for text in pair):
            raise OptionError("metadata is text by name", path=path)
        return dict(metadata or {})

    def _unfit(self, columns: Columns) -> dict[int, BatchplantError]:
        failed: dict[int, BatchplantError] = {}
        for row in range(columns.rows):
            try:
                name, dtype, shape, data = _row(columns, row)
                if dtype in BITS and dtype not in self.dtypes:
                    raise SchemaError(f"tensor {name!r}: {self.format} has no {dtype}; {self.elsewhere}")
                size = size_of(dtype, shape)
                if size != data.size:
                    raise SchemaError(
                        f"tensor {name!r}: {dtype} {list(shape)} has {size} bytes, and {data.size} were given"
                    )
                self._check(name, dtype, shape)
            except BatchplantError as error:
                failed[row] = error
        return failed

    def _check(self, name: str, dtype: str, shape: tuple[int, ...]) -> None:
        """Raise SchemaError where the format cannot hold it; the dtype is one of its own. In a worker."""

    def _begin(self, state: dict[str, Any] | None) -> None:
        # Nothing is encoded, and tensors may be large: few of them are under way at a time.
        self._workers = 1
        self._data = self.partial.spool("data")
        self._list = self.partial.spool("entries")
        lines = self._list.read_at(self._list.size, 0).splitlines()
        self.entries = [
            Placed(name, dtype, tuple(shape), *rest) for name, dtype, shape, *rest in map(json.loads, lines)
        ]
        self._names = {entry.name for entry in self.entries}

    def _write(self, columns: Columns) -> None:
        for row in range(columns.rows):
            name, dtype, shape, data = _row(columns, row)
            if name in self._names:
                raise SchemaError(
                    f"two tensors are called {name!r}",
                    path=self.path,
                    sample=self.written + row,
                    field="name",
                )
            self._names.add(name)
            start = self._put(name, dtype, shape, data)
            self.entries.append(Placed(name, dtype, shape, data.size, start))
            self._list.write(json.dumps([name, dtype, shape, data.size, start]).encode() + b"\n")

    def _put(self, name: str, dtype: str, shape: tuple[int, ...], data: U8) -> int:
        """Write the values down; where they begin, in the spool ``data`` unless the format says otherwise."""
        start = self._data.size
        self._data.write(data)
        return start


def _row(columns: Columns, row: int) -> tuple[str, str, tuple[int, ...], U8]:
    data = columns["data"][row]
    assert data is not None
    return (
        text_of(columns["name"], row),
        text_of(columns["dtype"], row),
        shape_of(columns["shape"], row),
        data,
    )
