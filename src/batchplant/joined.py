"""Readers as one, one after another: ``concat``."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from . import filters
from .columns import I64, Column, Columns, Spans, concat_columns, concat_spans, starts_of
from .errors import DataError, OptionError, Problem, SchemaError
from .expressions import Bound
from .keys import Table
from .reader import Reader
from .schema import Bytes, Field, Float, Image, Int, Json, Schema, Tensor
from .storage.index.progress import in_parallel


class Concat(Reader):
    """Readers with the same fields, one after another."""

    def __init__(self, readers: Sequence[Reader]) -> None:
        if not readers:
            raise OptionError("there is nothing to join")
        self.readers = _alike(tuple(readers))
        self.schema = _common_schema(self.readers)
        self._ends = starts_of(np.array([len(reader) for reader in readers], dtype=np.int64))
        self.length = int(self._ends[-1])
        first, last = self.readers[0].path, self.readers[-1].path
        self.path = first if len(readers) == 1 else f"{first} … {os.path.basename(last)}"

    def _parts(self, indices: I64) -> tuple[I64, I64]:
        """Which reader each sample is in, and its number there."""
        which = np.searchsorted(self._ends, indices, side="right") - 1
        return which, indices - self._ends[which]

    def _read(self, indices: I64, fields: Sequence[str]) -> Columns:
        which, rows = self._parts(indices)
        used = np.unique(which)
        if len(used) <= 1:
            return self.readers[int(used[0]) if len(used) else 0]._read(rows, fields)
        parts = [self.readers[one]._read(rows[which == one], fields) for one in used]
        # The parts stand in order of reader; put the rows back in the order that was asked for.
        back = np.argsort(np.argsort(which, kind="stable"), kind="stable")
        return Columns((name, concat_columns([part[name] for part in parts])) for name in fields).take(back)

    def _spans(self, field: str, indices: I64) -> Spans | None:
        which, rows = self._parts(indices)
        files: list[str] = []
        start = np.zeros(len(indices), dtype=np.int64)
        size, file = np.zeros_like(start), np.zeros(len(indices), dtype=np.int32)
        shape = np.zeros((len(indices), 3), dtype=np.int32)
        for one in np.unique(which):
            at = which == one
            spans = self.readers[one]._spans(field, rows[at])
            if spans is None:
                return None
            start[at], size[at], file[at] = spans.start, spans.size, spans.file + len(files)
            if spans.shape is not None:
                shape[at] = spans.shape
            files.extend(spans.files)
        return Spans(files, start, size, file, shape if shape.any() else None)

    def _ranges(self, fields: Sequence[str], indices: I64) -> Spans | None:
        which, rows = self._parts(indices)
        found = [self.readers[one]._ranges(fields, rows[which == one]) for one in np.unique(which)]
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

    def sizes(self) -> I64 | None:
        found = [one for one in (reader.sizes() for reader in self.readers) if one is not None]
        return np.concatenate(found) if len(found) == len(self.readers) else None

    def _key_kind(self) -> Field | None:
        kinds = list(dict.fromkeys(reader._key_kind() for reader in self.readers))
        return kinds[0] if len(kinds) == 1 else None if None in kinds else Bytes()

    def _keys(self, indices: I64, short: bool = False) -> Column | None:
        which, rows = self._parts(indices)
        found = [reader._keys(rows[which == one], short) for one, reader in enumerate(self.readers)]
        parts = [one for one in found if one is not None]
        back = np.argsort(np.argsort(which, kind="stable"), kind="stable")
        return Columns(key=concat_columns(parts)).take(back)["key"] if len(parts) == len(found) else None

    def _key_table(self, field: str | None, short: bool) -> Table:
        parts = [reader._key_table(field, short) for reader in self.readers]
        return Table.joined(parts, self._ends[:-1].tolist())

    def _prune(self, bound: Bound) -> filters.Pruned | None:
        return filters.joined([(reader._prune(bound), len(reader)) for reader in self.readers])

    def _picked(self, rows: I64) -> Reader | None:
        which, inside = self._parts(rows)
        parts: list[Reader] = []
        for one in np.unique(which).tolist():
            some = inside[which == one]
            parts.append(self.readers[one]._picked(some) or self.readers[one].subset(some))
        return Concat(parts) if parts else None

    def _matches(self, bound: Bound, text: str) -> filters.Matches:
        """That of the parts, each of which remembers its own."""
        found = in_parallel(lambda one: one._matches(bound, text), self.readers)
        rows = [some + first for (some, _), first in zip(found, self._ends.tolist(), strict=False)]
        pruned = [(one, len(reader)) for (_, one), reader in zip(found, self.readers, strict=True)]
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
        for reader in self.readers:
            reader.close()


def _alike(readers: tuple[Reader, ...]) -> tuple[Reader, ...]:
    """All with the fields that any has, where fields are inferred: one shard may lack what others have."""
    schemas = list(dict.fromkeys(reader.schema for reader in readers if len(reader)))
    if len(schemas) == 1 and all(reader.schema == schemas[0] for reader in readers):
        return readers
    wide: dict[str, Field] = {}
    for schema in schemas:
        for name, field in schema.items():
            joined = _joined(wide.get(name, field), field)
            if joined is None:
                return readers
            wide[name] = joined
    for name, field in wide.items():
        if not all(name in schema for schema in schemas):
            wide[name] = dataclasses.replace(field, optional=True)
    made = [one if one.schema == Schema(wide) else one.with_schema(Schema(wide)) for one in readers]
    return tuple(one for one in made if one is not None) if wide and None not in made else readers


def _joined(one: Field, other: Field) -> Field | None:
    """The field that holds the cells of both; None where their kinds differ."""
    optional = one.optional or other.optional
    one, other = dataclasses.replace(one, optional=optional), dataclasses.replace(other, optional=optional)
    if isinstance(one, Image) and isinstance(other, Image):
        encoding = one.encoding if one.encoding == other.encoding else None
        return Image(encoding, one.mode if one.mode == other.mode else None, optional=optional)
    one, other = _as_row(one, other), _as_row(other, one)
    if isinstance(one, Tensor) and isinstance(other, Tensor) and len(one.shape) == len(other.shape):
        pairs = zip(one.shape, other.shape, strict=True)
        shape = tuple(size if size == there else None for size, there in pairs)
        return dataclasses.replace(one, shape=shape) if one.dtype == other.dtype else None
    return one if one == other else None


def _as_row(field: Field, beside: Field) -> Field:
    """A number as a row of one, where other shards have rows."""
    if isinstance(field, Int | Float) and type(field) in (Int, Float) and isinstance(beside, Tensor):
        return Tensor(field.dtype, (1,), optional=field.optional)
    return field


def _common_schema(readers: Sequence[Reader]) -> Schema:
    """The first schema; where only encoding or mode of pictures differ, both become unknown.

    Lists and structs of other kinds are all JSON.
    """
    fields = dict(readers[0].schema)
    for reader in readers[1:]:
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


def concat(readers: Iterable[Reader]) -> Reader:
    """Readers with the same fields as one, one after another."""
    return Concat(tuple(readers))


def shifted(problem: Problem, by: int) -> Problem:
    """The same problem, where ``by`` samples come before."""
    return dataclasses.replace(problem, sample=None if problem.sample is None else problem.sample + by)
