"""Several readers as one: after one another (``concat``), or taken from in turn (``interleave``)."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, overload

import numpy as np

from .. import _native
from ..errors import DamagedError, DataError, OptionError, Problem, SchemaError
from ..schema import Bytes, Field, Float, Image, Int, Json, Schema, Tensor
from ..schema.columns import (
    I64,
    AnyArray,
    Column,
    Columns,
    Masked,
    Ragged,
    concat_columns,
    starts_of,
    take_cells,
)
from ..storage import Source
from ..storage.cache import ChunkCache
from ..storage.index.progress import in_parallel
from ..storage.patterns import independent
from ..storage.spans import Spans, concat_spans
from . import filters
from .arrays import Array
from .keys import FormatKeys, KeyTable
from .layout import Layout
from .reader import Reader, open_reader

if TYPE_CHECKING:
    from .expressions import Bound


class LazyReaders(Sequence[Reader]):
    """Readers that are opened when their samples are read; the least recently used are closed again.

    Their contents are known beforehand: ``lengths`` in samples, and ``kinds``, the number of each reader's
    schema among ``schemas``. A reader that differs when it is opened has changed meanwhile.
    """

    # A process may map some 65,000 files.
    max_open: ClassVar[int] = 4096

    def __init__(self, lengths: I64, kinds: I64, schemas: Sequence[Schema]) -> None:
        self.lengths, self.kinds, self.schemas = lengths, kinds, schemas
        # The schema that all readers get, if theirs differ.
        self._common_schema: Schema | None = None
        self._opened = ChunkCache(self.max_open)

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
            return [self[i] for i in range(*number.indices(len(self)))]
        number = range(len(self))[number]
        return self._opened.get(number, functools.partial(self._open_checked, number), lambda _: 1)

    def _open_checked(self, number: int) -> Reader:
        reader, schema = self._open(number), self.schemas[self.kinds[number]]
        if len(reader) != self.lengths[number] or reader.schema != schema:
            expected = f"{self.lengths[number]:,} samples of {', '.join(schema)}"
            actual = f"{len(reader):,} samples of {', '.join(reader.schema)}"
            reader.close()
            raise DamagedError(
                f"it has changed since its folder was indexed: it has {actual}, and the index says "
                f"{expected}; open the dataset again, or run batchplant index",
                path=self.path(number),
            )
        if self._common_schema in (None, reader.schema):
            return reader
        return reader.with_schema(self._common_schema) or reader

    def examples(self) -> tuple[Reader, ...]:
        """Open one reader of each kind, if possible one that has samples."""
        numbers = []
        for kind in np.unique(self.kinds).tolist():
            of_kind = np.flatnonzero(self.kinds == kind)
            numbers.append(int(of_kind[np.argmax(self.lengths[of_kind] > 0)]))
        return tuple(self[number] for number in sorted(numbers))

    def widen(self, schema: Schema) -> None:
        """Give all readers this schema."""
        self._common_schema = schema
        # Readers that are open already do not have it.
        self._opened.clear()

    def close(self) -> None:
        for reader in self._opened.values():
            reader.close()
        self._opened.clear()

    def __getstate__(self) -> dict[str, object]:
        return {name: value for name, value in self.__dict__.items() if name != "_opened"}

    def __setstate__(self, state: dict[str, object]) -> None:
        self.__dict__.update(state)
        self._opened = ChunkCache(self.max_open)


class Concat(Reader):
    """Readers with the same fields, one after another."""

    readers: Sequence[Reader]

    def __init__(self, readers: Sequence[Reader]) -> None:
        if not len(readers):
            raise OptionError("there is nothing to join")
        if isinstance(readers, LazyReaders):
            self.schema = _schema_of(readers)
            self.readers, lengths = readers, readers.lengths
            first, last = readers.path(0), readers.path(len(readers) - 1)
        else:
            self.readers = _with_common_fields(tuple(readers))
            self.schema = _common_schema(self.readers)
            lengths = np.array([len(reader) for reader in readers], dtype=np.int64)
            first, last = self.readers[0].path, self.readers[-1].path
        # First sample of each reader, and the number of all samples.
        self._bounds = starts_of(lengths)
        self.length = int(self._bounds[-1])
        self.path = first if len(readers) == 1 else f"{first} … {os.path.basename(last)}"

    def _split(self, indices: I64) -> tuple[I64, I64]:
        """Return the number of each sample's reader, and its number there."""
        numbers = np.searchsorted(self._bounds, indices, side="right") - 1
        return numbers, indices - self._bounds[numbers]

    def _groups(self, indices: I64) -> Iterator[tuple[Reader, I64, slice | I64]]:
        """Yield the readers of these samples, the rows to read there, and their positions in ``indices``."""
        numbers, rows = self._split(indices)
        # Samples are mostly ascending, or few.
        order = np.argsort(numbers, kind="stable") if (numbers[1:] < numbers[:-1]).any() else None
        numbers = numbers if order is None else numbers[order]
        cuts = [0, *(np.flatnonzero(numbers[1:] != numbers[:-1]) + 1).tolist(), len(numbers)]
        for start, stop in itertools.pairwise(cuts if len(numbers) else []):
            positions = slice(start, stop) if order is None else order[start:stop]
            yield self.readers[int(numbers[start])], rows[positions], positions

    def _read(self, indices: I64, fields: Sequence[str]) -> Columns:
        groups = list(self._groups(indices))
        if len(groups) <= 1:
            reader, rows = groups[0][:2] if groups else (self.readers[0], indices)
            return reader._read(rows, fields)
        columns = self._filled(fields, indices)
        missing = [name for name in fields if name not in columns]
        parts = [reader._read(rows, missing) for reader, rows, _ in groups if missing]
        positions = [group[2] for group in groups]
        for name in missing:
            cells = [part[name] for part in parts]
            columns[name] = (
                concat_columns(cells) if isinstance(positions[0], slice) else _scatter(cells, positions)
            )
        return Columns((name, columns[name]) for name in fields)

    def _filled(self, fields: Sequence[str], indices: I64) -> Columns:
        """Return the columns that the readers decode where they belong."""
        columns, rows = Columns(), np.arange(len(indices))
        for name in fields:
            field = self.schema[name]
            if isinstance(field, Tensor) and field.cell is not None:
                dtype, shape = field.cell
                cells = np.empty((len(indices), *shape), dtype)
                if self._fill(name, indices, cells, rows):
                    columns[name] = cells
        return columns

    def _fill(self, field: str, indices: I64, out: AnyArray, rows: I64) -> bool:
        for number, (reader, members, positions) in enumerate(self._groups(indices)):
            if not reader._fill(field, members, out, rows[positions]):
                if not number:
                    return False
                out[rows[positions]] = reader._read(members, [field])[field]
        return len(indices) > 0

    def _spans(self, field: str, indices: I64) -> Spans | None:
        sources: list[Source] = []
        start = np.zeros(len(indices), dtype=np.int64)
        size, file = np.zeros_like(start), np.zeros(len(indices), dtype=np.int32)
        shape = np.zeros((len(indices), 3), dtype=np.int32)
        for reader, rows, positions in self._groups(indices):
            spans = reader._spans(field, rows)
            if spans is None:
                return None
            start[positions], size[positions] = spans.start, spans.size
            file[positions] = spans.file + len(sources)
            if spans.shape is not None:
                shape[positions] = spans.shape
            sources.extend(spans.sources)
        return Spans(sources, start, size, file, shape if shape.any() else None)

    def _ranges(self, fields: Sequence[str], indices: I64) -> Spans | None:
        parts = [reader._ranges(fields, rows) for reader, rows, _ in self._groups(indices)]
        return concat_spans([part for part in parts if part is not None]) if None not in parts else None

    def _layout(self) -> Layout:
        def joined(name: str) -> I64 | None:
            parts = [reader._layout().numbers(name) for reader in self.readers]
            present = [part for part in parts if part is not None]
            return np.concatenate(present) if len(present) == len(parts) else None

        return Layout(
            blocks=self._blocks,
            block_sizes=lambda: joined("block_sizes"),
            boundaries=self._boundaries,
            sizes=lambda: joined("sizes"),
        )

    def _blocks(self) -> I64:
        """Return the blocks of all readers; a reader that has none is one block."""
        parts, first = [], 0
        for reader in self.readers:
            blocks = reader.blocks()
            if blocks is None:
                blocks = np.zeros(len(reader), dtype=np.int64)
            else:
                blocks = np.unique(blocks, return_inverse=True)[1]
            parts.append(blocks + first)
            first += int(blocks.max()) + 1 if len(blocks) else 0
        return np.concatenate(parts).astype(np.int64)

    def _boundaries(self) -> I64:
        """Return the first samples of the files, except shards of one dataset, and each file's boundaries."""
        if isinstance(self.readers, LazyReaders):
            paths = [self.readers.path(number) for number in range(len(self.readers))]
            inside = []
        else:
            paths = [reader.path for reader in self.readers]
            inside = [
                first + reader.boundaries() for reader, first in zip(self.readers, self._bounds, strict=False)
            ]
        starts = independent(paths, self._bounds[:-1])
        return np.unique(np.concatenate([starts[(starts > 0) & (starts < self.length)], *inside]))

    def _keys(self) -> FormatKeys | None:
        format_keys = [keys for keys in (reader._keys() for reader in self.readers) if keys is not None]
        if len(format_keys) < len(self.readers):
            return None

        def read(readers: list[Callable[[I64], Column]], indices: I64) -> Column:
            numbers, rows = self._split(indices)
            parts = [read_keys(rows[numbers == number]) for number, read_keys in enumerate(readers)]
            back = np.argsort(np.argsort(numbers, kind="stable"), kind="stable")
            return Columns(key=concat_columns(parts)).take(back)["key"]

        kinds = list(dict.fromkeys(keys.kind for keys in format_keys))
        short = [keys.read_short for keys in format_keys if keys.read_short is not None]
        return FormatKeys(
            kinds[0] if len(kinds) == 1 else Bytes(),
            functools.partial(read, [keys.read for keys in format_keys]),
            functools.partial(read, short) if len(short) == len(format_keys) else None,
        )

    def _key_table(self, field: str | None, short: bool) -> KeyTable:
        tables = [reader._key_table(field, short) for reader in self.readers]
        return KeyTable.joined(tables, self._bounds[:-1].tolist())

    def _prune(self, bound: Bound) -> filters.Pruned | None:
        return filters.joined([(reader._prune(bound), len(reader)) for reader in self.readers])

    def _row_reader(self, rows: I64) -> Reader | None:
        parts = [reader._row_reader(part) or reader.subset(part) for reader, part, _ in self._groups(rows)]
        return Concat(parts) if parts else None

    def _matches(self, bound: Bound, text: str) -> filters.Matches:
        """Return the matches of all readers, each of which has an index of its own."""
        matches = in_parallel(
            lambda number: self.readers[number]._matches(bound, text), range(len(self.readers))
        )
        rows = [part + first for (part, _), first in zip(matches, self._bounds.tolist(), strict=False)]
        pruned = list(zip((part for _, part in matches), np.diff(self._bounds).tolist(), strict=True))
        return np.concatenate(rows), filters.joined(pruned)

    def locate(self, sample: int) -> tuple[Reader, int]:
        """Return the reader that a sample is in, and its number there."""
        numbers, rows = self._split(np.array([sample]))
        return self.readers[int(numbers[0])], int(rows[0])

    def _cell_array(self, field: str, sample: int) -> Array | None:
        reader, row = self.locate(sample)
        return reader._cell_array(field, row)

    def where(self, sample: int) -> str:
        reader, row = self.locate(sample)
        return reader.where(row)

    def facts(self) -> dict[str, object]:
        return {"shards": len(self.readers)}

    def _verify(self) -> Iterator[Problem]:
        for reader, first in zip(self.readers, self._bounds.tolist(), strict=False):
            try:
                yield from (shifted(problem, first) for problem in reader._verify())
            except DataError as error:
                yield shifted(Problem.of(error.at(path=reader.path)), first)

    def own_checks(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(check for reader in self.readers for check in reader.own_checks()))

    def close(self) -> None:
        if isinstance(self.readers, LazyReaders):
            self.readers.close()
            return
        for reader in self.readers:
            reader.close()


def _schema_of(readers: LazyReaders) -> Schema:
    """Return the common schema; opens one reader of each kind, or none if all have one schema."""
    if (readers.kinds == readers.kinds[0]).all():
        return readers.schemas[int(readers.kinds[0])]
    examples = readers.examples()
    widened = _with_common_fields(examples)
    if widened is not examples:
        readers.widen(widened[0].schema)
    return _common_schema(widened)


def _with_common_fields(readers: tuple[Reader, ...]) -> tuple[Reader, ...]:
    """Give all readers the fields that any of them has, where fields are inferred: a shard may lack some."""
    if all(reader.schema == readers[0].schema for reader in readers):
        return readers
    schemas = list(dict.fromkeys(reader.schema for reader in readers if len(reader)))
    widens = all(reader.widens_floats for reader in readers)
    fields: dict[str, Field] = {}
    for schema in schemas:
        for name, field in schema.items():
            common = _common_field(fields.get(name, field), field, widens=widens)
            if common is None:
                return readers
            fields[name] = common
    for name, field in fields.items():
        if not all(name in schema for schema in schemas):
            fields[name] = dataclasses.replace(field, optional=True)
    wide = Schema(fields)
    widened = [reader if reader.schema == wide else reader.with_schema(wide) for reader in readers]
    if not fields or None in widened:
        return readers
    return tuple(reader for reader in widened if reader is not None)


def _common_field(a: Field, b: Field, *, widens: bool) -> Field | None:
    """Return the field that holds the cells of both; None if their kinds differ.

    ``widens``: float32 beside float64 becomes float64.
    """
    optional = a.optional or b.optional
    a, b = dataclasses.replace(a, optional=optional), dataclasses.replace(b, optional=optional)
    if isinstance(a, Image) and isinstance(b, Image):
        return _common_image(a, b)
    a, b = _as_row(a, b), _as_row(b, a)
    if widens and isinstance(a, Tensor) and isinstance(b, Tensor) and type(a) is type(b):
        dtypes = {a.dtype, b.dtype}
        if dtypes == {"float32", "float64"}:
            a, b = dataclasses.replace(a, dtype="float64"), dataclasses.replace(b, dtype="float64")
    if a == b:
        return a
    if type(a) is Tensor and type(b) is Tensor and len(a.shape) == len(b.shape):
        shape = tuple(n if n == m else None for n, m in zip(a.shape, b.shape, strict=True))
        return dataclasses.replace(a, shape=shape) if a.dtype == b.dtype else None
    return None


def _common_image(a: Image, b: Image) -> Image:
    """Return the field that holds the images of both; an encoding or mode that differs is unknown."""
    encoding = a.encoding if a.encoding == b.encoding else None
    return Image(encoding, a.mode if a.mode == b.mode else None, optional=a.optional or b.optional)


def _as_row(field: Field, beside: Field) -> Field:
    """Return a number as a row of one, where other shards have rows."""
    if isinstance(field, Int | Float) and type(field) in (Int, Float) and isinstance(beside, Tensor):
        return Tensor(field.dtype, (1,), optional=field.optional)
    return field


def _common_schema(readers: Sequence[Reader]) -> Schema:
    """Return the schema of all readers, which may differ only in details of images and of JSON."""
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
            common = fields[name]
            if isinstance(common, Image) and isinstance(field, Image):
                fields[name] = _common_image(common, field)
            elif isinstance(common, Json) and isinstance(field, Json):
                optional = common.optional or field.optional
                same = dataclasses.replace(common, optional=field.optional) == field
                fields[name] = dataclasses.replace(common if same else Json(), optional=optional)
            elif common != field:
                raise SchemaError(
                    f"it is {field}, and in {readers[0].path} {common}", path=reader.path, field=name
                )
    return Schema(fields)


def _scatter(parts: Sequence[Column], positions: Sequence[Any]) -> Column:
    """Merge columns of several readers; ``positions``: those of each column's cells in the result."""
    ragged = [part for part in parts if isinstance(part, Ragged)]
    if len(ragged) == len(parts):
        cells, first = _scatter_cells(ragged, positions), ragged[0]
        return Masked(cells, first.dtype, first.row) if isinstance(first, Masked) else cells
    back = np.empty(sum(map(len, parts)), dtype=np.int64)
    back[np.concatenate(positions)] = np.arange(len(back))
    return take_cells(concat_columns(parts), back)


def _scatter_cells(parts: Sequence[Ragged], positions: Sequence[Any]) -> Ragged:
    """Merge ragged columns; copies each cell once."""
    count = sum(map(len, parts))
    sizes, shape, valid = np.empty(count, np.int64), None, None
    if any(part.shape is not None for part in parts):
        shape = np.zeros((count, 3), np.int32)
    if any(part.valid is not None for part in parts):
        valid = np.ones(count, np.bool_)
    for part, rows in zip(parts, positions, strict=True):
        sizes[rows] = part.sizes
        if shape is not None and part.shape is not None:
            shape[rows] = part.shape
        if valid is not None and part.valid is not None:
            valid[rows] = part.valid
    offsets = starts_of(sizes)
    data = np.empty(offsets[-1], dtype=np.uint8)
    for part, rows in zip(parts, positions, strict=True):
        _native.copy_runs(part.data, part.starts, part.sizes, data, offsets[rows])
    return Ragged(data, offsets, shape, valid)


def shifted(problem: Problem, by: int) -> Problem:
    """Return the same problem, where ``by`` samples come before."""
    return dataclasses.replace(problem, sample=None if problem.sample is None else problem.sample + by)


def concat(readers: Iterable[Any]) -> Reader:
    """The samples of datasets with the same fields as one dataset, one after another.

    readers: Readers, or what :func:`batchplant.open` takes.

    Raises: SchemaError where their fields differ; OptionError where there are none.
    """
    return Concat(_opened(readers))


def _opened(sources: Iterable[Any]) -> list[Reader]:
    if isinstance(sources, str | os.PathLike | Reader):
        raise OptionError("give a list of datasets")
    return [open_reader(source) for source in sources]


def interleave(
    readers: Iterable[Any], *, cycle: int | None = None, block: int = 1, seed: int | None = None
) -> Reader:
    """The samples of datasets with the same fields, in turn: ``block`` samples of each of ``cycle``.

    readers: Readers, or what :func:`batchplant.open` takes. The order is that of tf.data's interleave: where
    a reader has no more, the next one takes its turn. With a ``seed`` the readers are shuffled first.

    Raises: SchemaError where their fields differ; OptionError where there are none.
    """
    shards = _opened(readers)
    if seed is not None:
        shards = [shards[number] for number in np.random.default_rng(seed).permutation(len(shards))]
    joined = Concat(shards)
    cycle = len(shards) if cycle is None else cycle
    if cycle < 1 or block < 1:
        raise OptionError(f"cycle and block must be at least 1, not {cycle} and {block}")
    return joined.subset(interleaved(joined._bounds, cycle, block))


def interleaved(bounds: I64, cycle: int, block: int) -> I64:
    """Return the order of samples in which shards of ``np.diff(bounds)`` samples are interleaved."""
    next_rows, ends = bounds[:-1].copy(), bounds[1:]
    slots: list[int | None] = [None] * min(cycle, len(next_rows))
    parts: list[I64] = [np.empty(0, dtype=np.int64)]
    waiting = iter(range(len(next_rows)))
    turn = 0
    while True:
        active = [shard for shard in slots if shard is not None]
        if turn == 0 and len(active) == len(slots):
            # Until a shard runs out, take whole rounds at once.
            rounds = int(((ends[active] - next_rows[active]) // block).min())
            offsets = np.arange(rounds * block).reshape(rounds, 1, block)
            parts.append((offsets + next_rows[active][:, None]).reshape(-1))
            next_rows[active] += rounds * block
        slots[turn] = next(waiting, None) if slots[turn] is None else slots[turn]
        shard = slots[turn]
        if shard is not None:
            count = min(block, int(ends[shard] - next_rows[shard]))
            parts.append(np.arange(next_rows[shard], next_rows[shard] + count))
            next_rows[shard] += count
            slots[turn] = shard if count == block else None
        elif all(slot is None for slot in slots):
            return np.concatenate(parts)
        turn = (turn + 1) % len(slots)
