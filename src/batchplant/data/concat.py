"""Readers as one, one after another: ``concat``."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, overload

import numpy as np

from .. import _native
from ..errors import DamagedError, DataError, OptionError, Problem, SchemaError
from ..schema import Bytes, Field, Float, Image, Int, Json, Schema, Tensor
from ..schema.columns import (
    I64,
    Column,
    Columns,
    Masked,
    Ragged,
    Spans,
    concat_columns,
    concat_spans,
    starts_of,
)
from ..storage.cache import ChunkCache
from ..storage.index.progress import in_parallel
from ..storage.patterns import independent
from . import filters
from .keys import FormatKeys, KeyTable
from .reader import Reader

if TYPE_CHECKING:
    from .expressions import Bound

# Readers that are kept open; a process may map some 65,000 files.
OPEN_MOST = 4096


class Unopened(Sequence[Reader]):
    """Readers that are opened when samples of them are wanted, and let go when many others were since.

    What each has is known before: ``lengths``, how many samples, and ``kinds``, which of the ``schemas``. One
    that has something else when it is opened has changed meanwhile.
    """

    def __init__(self, lengths: I64, kinds: I64, schemas: Sequence[Schema]) -> None:
        self.lengths, self.kinds, self.schemas = lengths, kinds, schemas
        # The schema that all are given, where they have several.
        self.wide: Schema | None = None
        self._opened = ChunkCache(OPEN_MOST)

    def path(self, number: int) -> str:
        raise NotImplementedError

    def _open(self, number: int) -> Reader:
        raise NotImplementedError

    def __len__(self) -> int:
        return len(self.lengths)

    @overload
    def __getitem__(self, number: int) -> Reader: ...
    @overload
    def __getitem__(self, number: slice) -> Sequence[Reader]: ...
    def __getitem__(self, number: int | slice) -> Reader | Sequence[Reader]:
        if isinstance(number, slice):
            return [self[one] for one in range(*number.indices(len(self)))]
        place = range(len(self))[number]
        return self._opened.get(place, functools.partial(self._checked, place), lambda _: 1)

    def _checked(self, number: int) -> Reader:
        found, schema = self._open(number), self.schemas[self.kinds[number]]
        if len(found) != self.lengths[number] or found.schema != schema:
            said = f"{self.lengths[number]:,} samples of {', '.join(schema)}"
            has = f"{len(found):,} samples of {', '.join(found.schema)}"
            found.close()
            raise DamagedError(
                f"it has changed since its folder was indexed: it has {has}, and the index says {said}; "
                "open the dataset again, or run batchplant index",
                path=self.path(number),
            )
        return found if self.wide in (None, found.schema) else found.with_schema(self.wide) or found

    def examples(self) -> tuple[Reader, ...]:
        """One of each kind, opened; one that has samples, where there is such a one."""
        firsts = []
        for kind in np.unique(self.kinds).tolist():
            ours = np.flatnonzero(self.kinds == kind)
            firsts.append(int(ours[np.argmax(self.lengths[ours] > 0)]))
        return tuple(self[one] for one in sorted(firsts))

    def widen(self, schema: Schema) -> None:
        """Give all of them this schema; those that are open do not have it."""
        self.wide = schema
        self._opened.clear()

    def close(self) -> None:
        for one in self._opened.values():
            one.close()
        self._opened.clear()

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "_opened"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._opened = ChunkCache(OPEN_MOST)


class Concat(Reader):
    """Readers with the same fields, one after another."""

    readers: Sequence[Reader]

    def __init__(self, readers: Sequence[Reader]) -> None:
        if not len(readers):
            raise OptionError("there is nothing to join")
        if isinstance(readers, Unopened):
            self.schema = _schema_of(readers)
            self.readers, lengths = readers, readers.lengths
            first, last = readers.path(0), readers.path(len(readers) - 1)
        else:
            self.readers = _alike(tuple(readers))
            self.schema = _common_schema(self.readers)
            lengths = np.array([len(reader) for reader in readers], dtype=np.int64)
            first, last = self.readers[0].path, self.readers[-1].path
        self._ends = starts_of(lengths)
        self.length = int(self._ends[-1])
        self.path = first if len(readers) == 1 else f"{first} … {os.path.basename(last)}"

    def _parts(self, indices: I64) -> tuple[I64, I64]:
        """Which reader each sample is in, and its number there."""
        which = np.searchsorted(self._ends, indices, side="right") - 1
        return which, indices - self._ends[which]

    def _groups(self, indices: I64) -> Iterator[tuple[Reader, I64, slice | I64]]:
        """The readers of these samples: the numbers there, and which of those asked for they are."""
        which, rows = self._parts(indices)
        # Mostly they follow each other, or are few.
        order = np.argsort(which, kind="stable") if (which[1:] < which[:-1]).any() else None
        which = which if order is None else which[order]
        cuts = [0, *(np.flatnonzero(which[1:] != which[:-1]) + 1).tolist(), len(which)]
        for start, stop in itertools.pairwise(cuts if len(which) else []):
            at = slice(start, stop) if order is None else order[start:stop]
            yield self.readers[int(which[start])], rows[at], at

    def _read(self, indices: I64, fields: Sequence[str]) -> Columns:
        groups = list(self._groups(indices))
        if len(groups) <= 1:
            reader, rows = groups[0][:2] if groups else (self.readers[0], indices)
            return reader._read(rows, fields)
        parts = [reader._read(rows, fields) for reader, rows, _ in groups]
        if isinstance(groups[0][2], slice):
            return Columns((name, concat_columns([part[name] for part in parts])) for name in fields)
        places = [at for *_, at in groups]
        return Columns((name, _placed([part[name] for part in parts], places)) for name in fields)

    def _spans(self, field: str, indices: I64) -> Spans | None:
        files: list[str] = []
        start = np.zeros(len(indices), dtype=np.int64)
        size, file = np.zeros_like(start), np.zeros(len(indices), dtype=np.int32)
        shape = np.zeros((len(indices), 3), dtype=np.int32)
        for reader, rows, at in self._groups(indices):
            spans = reader._spans(field, rows)
            if spans is None:
                return None
            start[at], size[at], file[at] = spans.start, spans.size, spans.file + len(files)
            if spans.shape is not None:
                shape[at] = spans.shape
            files.extend(spans.files)
        return Spans(files, start, size, file, shape if shape.any() else None)

    def _ranges(self, fields: Sequence[str], indices: I64) -> Spans | None:
        found = [reader._ranges(fields, rows) for reader, rows, _ in self._groups(indices)]
        return concat_spans([one for one in found if one is not None]) if None not in found else None

    def blocks(self) -> I64 | None:
        """The blocks of the parts; a part that has none is one block."""
        found, first = [], 0
        for reader in self.readers:
            own = reader.blocks()
            own = (
                np.zeros(len(reader), dtype=np.int64)
                if own is None
                else np.unique(own, return_inverse=True)[1]
            )
            found.append(own + first)
            first += int(own.max()) + 1 if len(own) else 0
        return np.concatenate(found).astype(np.int64)

    def boundaries(self) -> I64:
        """The first samples of the files, shards of one dataset apart, and the boundaries of each file."""
        if isinstance(self.readers, Unopened):
            paths = [self.readers.path(number) for number in range(len(self.readers))]
            inside = []
        else:
            paths = [reader.path for reader in self.readers]
            inside = [
                first + reader.boundaries() for reader, first in zip(self.readers, self._ends, strict=False)
            ]
        starts = independent(paths, self._ends[:-1])
        return np.unique(np.concatenate([starts[(starts > 0) & (starts < self.length)], *inside]))

    def sizes(self) -> I64 | None:
        found = [one for one in (reader.sizes() for reader in self.readers) if one is not None]
        return np.concatenate(found) if len(found) == len(self.readers) else None

    def _keys(self) -> FormatKeys | None:
        keys_of_readers = [keys for keys in (reader._keys() for reader in self.readers) if keys is not None]
        if len(keys_of_readers) < len(self.readers):
            return None

        def gathered(read_keys: list[Callable[[I64], Column]], indices: I64) -> Column:
            numbers, rows = self._parts(indices)
            parts = [read(rows[numbers == number]) for number, read in enumerate(read_keys)]
            back = np.argsort(np.argsort(numbers, kind="stable"), kind="stable")
            return Columns(key=concat_columns(parts)).take(back)["key"]

        kinds = list(dict.fromkeys(keys.kind for keys in keys_of_readers))
        full = [keys.read for keys in keys_of_readers]
        short = [keys.read_short for keys in keys_of_readers if keys.read_short is not None]
        return FormatKeys(
            kinds[0] if len(kinds) == 1 else Bytes(),
            functools.partial(gathered, full),
            functools.partial(gathered, short) if len(short) == len(full) else None,
        )

    def _key_table(self, field: str | None, short: bool) -> KeyTable:
        parts = [reader._key_table(field, short) for reader in self.readers]
        return KeyTable.joined(parts, self._ends[:-1].tolist())

    def _prune(self, bound: Bound) -> filters.Pruned | None:
        return filters.joined([(reader._prune(bound), len(reader)) for reader in self.readers])

    def _row_reader(self, rows: I64) -> Reader | None:
        parts = [reader._row_reader(some) or reader.subset(some) for reader, some, _ in self._groups(rows)]
        return Concat(parts) if parts else None

    def _matches(self, bound: Bound, text: str) -> filters.Matches:
        """That of the parts, each of which remembers its own."""
        found = in_parallel(
            lambda number: self.readers[number]._matches(bound, text), range(len(self.readers))
        )
        rows = [some + first for (some, _), first in zip(found, self._ends.tolist(), strict=False)]
        pruned = list(zip((one for _, one in found), np.diff(self._ends).tolist(), strict=True))
        return np.concatenate(rows), filters.joined(pruned)

    def locate(self, sample: int) -> tuple[Reader, int]:
        """The reader that a sample is in, and its number there."""
        which, rows = self._parts(np.array([sample]))
        return self.readers[int(which[0])], int(rows[0])

    def where(self, sample: int) -> str:
        part, row = self.locate(sample)
        return part.where(row)

    def facts(self) -> dict[str, Any]:
        return {"shards": len(self.readers)}

    def _verify(self) -> Iterator[Problem]:
        for reader, first in zip(self.readers, self._ends.tolist(), strict=False):
            try:
                yield from (shifted(problem, first) for problem in reader._verify())
            except DataError as error:
                yield shifted(Problem.of(error.at(path=reader.path)), first)

    def own_checks(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(one for reader in self.readers for one in reader.own_checks()))

    def close(self) -> None:
        if isinstance(self.readers, Unopened):
            self.readers.close()
            return
        for reader in self.readers:
            reader.close()


def _schema_of(readers: Unopened) -> Schema:
    """The schema that they have together; only one of each kind is opened, and of a single kind none."""
    if (readers.kinds == readers.kinds[0]).all():
        return readers.schemas[int(readers.kinds[0])]
    examples = readers.examples()
    alike = _alike(examples)
    if alike is not examples:
        readers.widen(alike[0].schema)
    return _common_schema(alike)


def _alike(readers: tuple[Reader, ...]) -> tuple[Reader, ...]:
    """All with the fields that any has, where fields are inferred: one shard may lack what others have."""
    if all(reader.schema == readers[0].schema for reader in readers):
        return readers
    schemas = list(dict.fromkeys(reader.schema for reader in readers if len(reader)))
    widens = all(reader.widens_floats for reader in readers)
    wide: dict[str, Field] = {}
    for schema in schemas:
        for name, field in schema.items():
            joined = _joined(wide.get(name, field), field, widens=widens)
            if joined is None:
                return readers
            wide[name] = joined
    for name, field in wide.items():
        if not all(name in schema for schema in schemas):
            wide[name] = dataclasses.replace(field, optional=True)
    made = [one if one.schema == Schema(wide) else one.with_schema(Schema(wide)) for one in readers]
    return tuple(one for one in made if one is not None) if wide and None not in made else readers


def _joined(one: Field, other: Field, *, widens: bool) -> Field | None:
    """The field that holds the cells of both; None where their kinds differ.

    ``widens``: float32 beside float64 becomes float64.
    """
    optional = one.optional or other.optional
    one, other = dataclasses.replace(one, optional=optional), dataclasses.replace(other, optional=optional)
    if isinstance(one, Image) and isinstance(other, Image):
        encoding = one.encoding if one.encoding == other.encoding else None
        return Image(encoding, one.mode if one.mode == other.mode else None, optional=optional)
    one, other = _as_row(one, other), _as_row(other, one)
    if widens and isinstance(one, Tensor) and type(one) is type(other):
        dtypes = {one.dtype, getattr(other, "dtype", "")}
        if dtypes == {"float32", "float64"}:
            one, other = (dataclasses.replace(each, dtype="float64") for each in (one, other))
    if one == other:
        return one
    if type(one) is Tensor and type(other) is Tensor and len(one.shape) == len(other.shape):
        pairs = zip(one.shape, other.shape, strict=True)
        shape = tuple(size if size == there else None for size, there in pairs)
        return dataclasses.replace(one, shape=shape) if one.dtype == other.dtype else None
    return None


def _as_row(field: Field, beside: Field) -> Field:
    """A number as a row of one, where other shards have rows."""
    if isinstance(field, Int | Float) and type(field) in (Int, Float) and isinstance(beside, Tensor):
        return Tensor(field.dtype, (1,), optional=field.optional)
    return field


def _common_schema(readers: Sequence[Reader]) -> Schema:
    """The first schema; where only encoding or mode of images differ, both become unknown.

    Lists and structs of other kinds are all JSON.
    """
    fields = dict(readers[0].schema)
    for reader in readers[1:]:
        if reader.schema == readers[0].schema:
            continue
        if list(reader.schema) != list(fields):
            raise SchemaError(
                f"its fields are {', '.join(reader.schema)}, "
                f"and those of {readers[0].path} are {', '.join(fields)}",
                path=reader.path,
            )
        for name, field in reader.schema.items():
            known = fields[name]
            if isinstance(known, Image) and isinstance(field, Image):
                encoding = known.encoding if known.encoding == field.encoding else None
                mode = known.mode if known.mode == field.mode else None
                fields[name] = Image(encoding, mode, optional=known.optional or field.optional)
            elif isinstance(known, Json) and isinstance(field, Json):
                optional = known.optional or field.optional
                same = dataclasses.replace(known, optional=field.optional) == field
                fields[name] = dataclasses.replace(known if same else Json(), optional=optional)
            elif known != field:
                raise SchemaError(
                    f"it is {field}, and in {readers[0].path} {known}", path=reader.path, field=name
                )
    return Schema(fields)


def _placed(parts: Sequence[Column], places: Sequence[Any]) -> Column:
    """What several readers gave, each cell at its place among those that were asked for."""
    ragged = [part for part in parts if isinstance(part, Ragged)]
    if len(ragged) == len(parts):
        whole, first = _placed_cells(ragged, places), ragged[0]
        return Masked(whole, first.dtype, first.row) if isinstance(first, Masked) else whole
    back = np.empty(sum(map(len, parts)), dtype=np.int64)
    back[np.concatenate(places)] = np.arange(len(back))
    return Columns(one=concat_columns(parts)).take(back)["one"]


def _placed_cells(parts: Sequence[Ragged], places: Sequence[Any]) -> Ragged:
    """Each cell is copied once."""
    count = sum(map(len, parts))
    sizes, shape, valid = np.empty(count, np.int64), None, None
    if any(part.shape is not None for part in parts):
        shape = np.zeros((count, 3), np.int32)
    if any(part.valid is not None for part in parts):
        valid = np.ones(count, np.bool_)
    for part, at in zip(parts, places, strict=True):
        sizes[at] = part.sizes
        if shape is not None and part.shape is not None:
            shape[at] = part.shape
        if valid is not None and part.valid is not None:
            valid[at] = part.valid
    offsets = starts_of(sizes)
    data = np.empty(offsets[-1], dtype=np.uint8)
    for part, at in zip(parts, places, strict=True):
        _native.copy_runs(part.data, part.starts, part.sizes, data, offsets[at])
    return Ragged(data, offsets, shape, valid)


def concat(readers: Iterable[Reader]) -> Reader:
    """Readers with the same fields as one, one after another."""
    return Concat(tuple(readers))


def shifted(problem: Problem, by: int) -> Problem:
    """The same problem, where ``by`` samples come before."""
    return dataclasses.replace(problem, sample=None if problem.sample is None else problem.sample + by)
