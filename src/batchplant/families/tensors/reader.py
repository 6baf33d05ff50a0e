"""TensorReader: what the readers of models share. Tensors: their tensors by name."""

from __future__ import annotations

import dataclasses
import functools
import math
import os
import types
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from ...columns import I64, U8, Columns, Ragged, Spans, starts_of
from ...errors import BatchplantError, DamagedError, SchemaError
from ...reader import Reader
from ...schema import is_text
from ...storage import NOTE_ERRORS, Source, is_plain, mapped, open_source, parse_object, read_whole
from .kinds import TENSORS, as_array, is_tensors, shape_of, size_of, summary, text_of

# Files that say in which others the tensors of a model lie.
INDEXES = (".safetensors.index.json", ".bin.index.json")


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


def _named(error: BatchplantError, name: str) -> BatchplantError:
    """The error, and which tensor it is about."""
    error.message = f"tensor {name[:200]!r}: {error.message}"
    return error


class TensorReader(Reader):
    """A format's ``__init__`` calls ``_accept`` with what it found; the rest is here."""

    # What the file says about itself, as text; a writer that has an option of that name keeps it.
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
                raise _named(error, entry.name).at(path=path, sample=number) from None
        self._sizes = np.array([entry.size for entry in self._entries], dtype=np.int64)

    def _check_bounds(self, entry: Entry) -> None:
        size = entry.size
        if isinstance(entry.where, tuple):
            file, start, there = entry.where
            if there != size:
                raise DamagedError(
                    f"{there} bytes are not {entry.dtype} {list(entry.shape)}", path=file, offset=start
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

    def sizes(self) -> I64 | None:
        return self._sizes

    @property
    def paths(self) -> list[str]:
        """All files that the model lies in."""
        return list(dict.fromkeys([self.path, *self._sources]))

    def where(self, sample: int) -> str:
        place = self._entries[sample].where
        return place[0] if isinstance(place, tuple) else self.path

    def _read(self, indices: I64, fields: Sequence[str]) -> Columns:
        chosen = [self._entries[row] for row in indices.tolist()]
        found = Columns()
        for field in fields:
            if field == "name":
                found[field] = Ragged.from_cells([entry.name.encode() for entry in chosen])
            elif field == "dtype":
                found[field] = Ragged.from_cells([entry.dtype.encode() for entry in chosen])
            elif field == "shape":
                found[field] = Ragged.from_cells([np.array(entry.shape, np.int64) for entry in chosen])
            else:
                found[field] = self._data(indices, chosen)
        return found

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
                raise _named(error, entry.name).at(path=self.path, sample=int(indices[row])) from None
            out[offsets[row] : offsets[row + 1]] = data
        for file, places in runs.items():
            rows, starts = np.array(places, dtype=np.int64).T
            self._file(file).gather_into(starts, self._sizes[indices[rows]], out, offsets[rows])
        return Ragged(out, offsets)

    def _spans(self, field: str, indices: I64) -> Spans | None:
        if field != "data":
            return None
        files: dict[str, int] = {}
        place = np.zeros((len(indices), 2), dtype=np.int64)
        for row, number in enumerate(indices.tolist()):
            where = self._entries[number].where
            if not isinstance(where, tuple):
                return None
            place[row] = files.setdefault(where[0], len(files)), where[1]
        return Spans(
            list(files) or [self.path], place[:, 1].copy(), self._sizes[indices], place[:, 0].astype(np.int32)
        )

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """One by one: tensors may be large."""
        return (self[number] for number in range(len(self)))

    def facts(self) -> dict[str, Any]:
        return summary((entry.name, entry.dtype, entry.shape) for entry in self._entries)

    def close(self) -> None:
        for source in self._sources.values():
            source.close()


class Tensors(Mapping[str, npt.NDArray[Any]]):
    """The tensors of a model by name, read when they are asked for; in place where the format lets them."""

    def __init__(self, reader: Reader) -> None:
        if not is_tensors(reader.schema):
            raise SchemaError(
                f"this is no model: its fields are {', '.join(reader.schema)}, not {', '.join(TENSORS)}",
                path=reader.path,
            )
        self._reader = reader
        self._rows: dict[str, int] = {}
        for columns in reader.scan(4096, ["name"]):
            for row in range(columns.rows):
                name = text_of(columns["name"], row)
                if name in self._rows:
                    raise SchemaError(f"two tensors are called {name!r}", path=reader.path)
                self._rows[name] = len(self._rows)

    def __len__(self) -> int:
        return len(self._rows)

    def __iter__(self) -> Iterator[str]:
        return iter(self._rows)

    def __contains__(self, name: object) -> bool:
        return name in self._rows

    def __getitem__(self, name: str) -> npt.NDArray[Any]:
        row = self._rows[name]
        try:
            dtype, shape = self.kind(name)
            return as_array(dtype, shape, self.bytes_of(name))
        except BatchplantError as error:
            raise _named(error, name).at(path=self._reader.path, sample=row) from None

    def kind(self, name: str) -> tuple[str, tuple[int, ...]]:
        """Dtype and shape, without reading the values."""
        columns = self._reader.read([self._rows[name]], ["dtype", "shape"])
        return text_of(columns["dtype"], 0), shape_of(columns["shape"], 0)

    def bytes_of(self, name: str) -> U8:
        """The values as they are stored."""
        row = self._rows[name]
        spans = self._reader.spans("data", [row])
        data = None if spans is None else mapped(spans.files[int(spans.file[0])])
        if spans is not None and data is not None:
            start = int(spans.start[0])
            return data[start : start + int(spans.size[0])]
        found = self._reader.read([row], ["data"])["data"]
        assert isinstance(found, Ragged)
        return found.data[found.offsets[0] : found.offsets[1]]


def read_index(path: str) -> dict[str, list[str]]:
    """File → names, of a ``…index.json`` that says which tensor of a model lies in which file beside it."""
    found: dict[str, list[str]] = {}
    try:
        for name, file in parse_object(read_whole(path))["weight_map"].items():
            if not is_plain(file):
                raise DamagedError(f"{str(file)[:80]!r} is no file beside the index", path=path)
            found.setdefault(file, []).append(name)
    except BatchplantError as error:
        raise error.at(path=path) from None
    except NOTE_ERRORS as error:
        raise DamagedError(f"not an index of tensors: {type(error).__name__}: {error}", path=path) from None
    folder = path.rpartition("/")[0]
    return {
        f"{folder}/{file}" if folder or path.startswith("/") else file: names for file, names in found.items()
    }


def without_indexed(paths: list[str]) -> list[str]:
    """These files without those that an index among them leads to: their tensors come through it, once."""
    indexes = [path for path in paths if path.endswith(INDEXES)] if len(paths) > 1 else []
    named = {os.path.normpath(file) for path in indexes for file in read_index(path)}
    return [path for path in paths if os.path.normpath(path) not in named]
