"""LakeReader: the rows of Parquet files in the order in which a table lists them."""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import functools
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from ..chunks import ChunkCache
from ..codecs import arrow
from ..codecs.arrow.types import is_binary, is_file_struct
from ..columns import I64, Column, Columns, Ragged, column_runs, starts_of
from ..errors import BatchplantError, DamagedError, OptionError
from ..reader import Reader
from ..schema import Field, Schema
from ..storage import is_remote, open_source

# What is looked at to see what bytes are.
SAMPLE_FILES, SAMPLE_ROWS = 4, 8
MOST_ROWS = 2**53


@dataclasses.dataclass(frozen=True)
class Part:
    """One file of a table.

    rows, size: what the table says about it, None where it says nothing. constants: Arrow scalars of fields
    that lie in no file. names: field → column, where they differ. deleted: rows that do not count any more.
    scan: the library's own reading of one field, for files that do not tell by themselves what counts.
    """

    path: str
    rows: int | None = None
    size: int | None = None
    constants: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    names: Mapping[str, str] = dataclasses.field(default_factory=dict)
    deleted: I64 | None = None
    scan: Callable[[str], Any] | None = None


class LakeReader(Reader):
    """The subclass finds the parts and the Arrow schema in its ``__init__``, and calls ``_set_parts``."""

    def _set_parts(self, parts: Sequence[Part], described: Any, given: Mapping[str, Field] | None) -> None:
        self._parts = tuple(parts)
        self._cache = ChunkCache()
        self._footers: dict[int, tuple[Any, I64, I64]] = {}
        rows = [self._rows_of(number) for number in range(len(self._parts))]
        if not 0 <= min(rows, default=0) <= sum(rows) <= MOST_ROWS:
            raise DamagedError(f"the table says that it has {sum(rows)} rows", path=self.path)
        self._starts = starts_of(np.array(rows, dtype=np.int64))
        self.length = int(self._starts[-1])
        found = dict(arrow.schema_of(described, self._sample(described)))
        self.schema = Schema({**found, **(given or {})}).select([*found])

    def _rows_of(self, number: int) -> int:
        part = self._parts[number]
        if part.rows is None:
            return int(self._footer(number)[1][-1])
        return part.rows - (0 if part.deleted is None else len(part.deleted))

    def _sample(self, described: Any) -> Any:
        """The first rows of columns of bytes that no description explains."""
        names = [
            one.name
            for one in described
            if arrow.KEY not in (one.metadata or {}) and (is_binary(one.type) or is_file_struct(one.type))
        ]
        found: dict[str, Any] = {}
        for number in np.flatnonzero(np.diff(self._starts))[:SAMPLE_FILES].tolist():
            for name in names:
                column = None if name in found else self._arrow_column(number, 0, name)
                if column is not None and column.null_count < len(column):
                    found[name] = column.drop_null()[:SAMPLE_ROWS]
        # Columns of a table are equally long.
        rows = min((len(column) for column in found.values()), default=0)
        return arrow.pyarrow().table({name: column[:rows] for name, column in found.items()})

    # -- files -----------------------------------------------------------------------------------------

    def _footer(self, number: int) -> tuple[Any, I64, I64]:
        """The metadata of a file; where its row groups begin, without the deleted rows and with them."""
        if number not in self._footers:
            part = self._parts[number]
            if part.scan is not None:
                ends = np.array([0, part.rows or 0], dtype=np.int64)
                self._footers[number] = None, ends, ends
            else:
                self._footers[number] = self._read_footer(part)
        return self._footers[number]

    def _read_footer(self, part: Part) -> tuple[Any, I64, I64]:
        import pyarrow.parquet as pq

        with wrapped(part.path), self._opened(part.path) as file:
            size = os.path.getsize(file) if isinstance(file, str) else file.size()
            if part.size not in (None, size):
                raise DamagedError(f"it has {size} bytes, and the table says {part.size}")
            found = pq.read_metadata(file)
            sizes = [found.row_group(group).num_rows for group in range(found.num_row_groups)]
            every = starts_of(np.array(sizes, dtype=np.int64))
            if min(sizes, default=0) < 0 or part.rows not in (None, int(every[-1])):
                raise DamagedError(f"it has {int(every[-1])} rows, and the table says {part.rows}")
        return found, every if part.deleted is None else every - np.searchsorted(part.deleted, every), every

    @contextlib.contextmanager
    def _opened(self, path: str) -> Iterator[Any]:
        """What pyarrow reads a file from."""
        if not is_remote(path):
            yield path
            return
        source = open_source(path)
        try:
            yield arrow.pyarrow().PythonFile(source.file())
        finally:
            source.close()

    def _column_in(self, file: Any, part: Part, name: str) -> str | None:
        """What a field is called in a file of this Arrow schema; None where the file lacks it."""
        column = part.names.get(name, name)
        return column if column in file.names else None

    def _arrow_column(self, number: int, group: int, name: str) -> Any:
        """The rows of a row group that count, as an Arrow array; None where the file has no such column."""
        import pyarrow.parquet as pq

        part = self._parts[number]
        metadata, starts, physical = self._footer(number)
        rows = int(starts[group + 1] - starts[group])
        if name in part.constants:
            return arrow.pyarrow().repeat(part.constants[name], rows)
        with wrapped(part.path):
            if part.scan is not None:
                return part.scan(name)
            column = self._column_in(metadata.schema.to_arrow_schema(), part, name)
            if column is None:
                return None
            with self._opened(part.path) as file, pq.ParquetFile(file, metadata=metadata) as opened:
                found = opened.read_row_group(group, columns=[column]).column(column)
            if len(found) != physical[group + 1] - physical[group]:
                raise DamagedError(f"row group {group} is not as long as it says", path=part.path)
            if part.deleted is not None:
                first, last = np.searchsorted(part.deleted, physical[group : group + 2])
                here = part.deleted[first:last] - physical[group]
                found = found.take(np.delete(np.arange(len(found)), here))
        return found

    def _column(self, number: int, group: int, name: str) -> Column:
        starts = self._footer(number)[1]
        try:
            found = self._arrow_column(number, group, name)
            field = self.schema[name]
            if found is None:
                rows = int(starts[group + 1] - starts[group])
                found = arrow.pyarrow().nulls(rows, arrow.storage(field))
            with wrapped(self._parts[number].path):
                return arrow.column_of(field, found)
        except BatchplantError as error:
            if error.sample is not None:
                error.sample += int(self._starts[number] + starts[group])
            raise error.at(path=self._parts[number].path, field=name) from None

    # -- what a reader does ----------------------------------------------------------------------------

    def _read(self, indices: I64, fields: Sequence[str]) -> Columns:
        if not len(indices):
            nothing = {name: arrow.pyarrow().nulls(0, arrow.storage(self.schema[name])) for name in fields}
            return Columns((name, arrow.column_of(self.schema[name], nothing[name])) for name in fields)
        which = np.searchsorted(self._starts, indices, side="right") - 1
        pieces, places = [], []
        for number in np.unique(which).tolist():
            at = np.flatnonzero(which == number)
            rows = indices[at] - self._starts[number]
            starts = self._footer(number)[1]
            groups = np.searchsorted(starts, rows, side="right") - 1
            for group in np.unique(groups).tolist():
                here = groups == group
                pieces.append(self._rows(number, group, rows[here] - starts[group], fields))
                places.append(at[here])
        read = Columns.concat(pieces)
        order = np.concatenate(places)
        if (order[1:] > order[:-1]).all():
            return read
        back = np.empty_like(order)
        back[order] = np.arange(len(order))
        return read.take(back)

    def _rows(self, number: int, group: int, rows: I64, fields: Sequence[str]) -> Columns:
        found = Columns(
            (
                name,
                self._cache.get(
                    (number, group, name), functools.partial(self._column, number, group, name), _size
                ),
            )
            for name in fields
        )
        if len(rows) == rows[-1] - rows[0] + 1 and (rows[1:] - rows[:-1] == 1).all():
            return found.take(slice(int(rows[0]), int(rows[-1]) + 1))
        return found.take(rows)

    def blocks(self) -> I64 | None:
        sizes = [np.diff(self._footer(number)[1]) for number in range(len(self._parts))]
        every = np.concatenate([np.empty(0, np.int64), *sizes])
        return np.repeat(np.arange(len(every)), every)

    def where(self, sample: int) -> str:
        return self._parts[int(np.searchsorted(self._starts, sample, side="right")) - 1].path

    def close(self) -> None:
        self._cache.clear()


def _size(column: Column) -> int:
    return int(column_runs(column)[2].clip(0).sum()) + (
        column.offsets.nbytes if isinstance(column, Ragged) else 0
    )


@contextlib.contextmanager
def wrapped(path: str) -> Iterator[None]:
    """Whatever a library says about damaged bytes is one of our errors."""
    try:
        yield
    except BatchplantError as error:
        raise error.at(path=path) from None
    except FileNotFoundError:
        raise DamagedError("the table lists it, but it is not there", path=path) from None
    except Exception as error:
        raise DamagedError(first_line(error), path=path) from None
    except BaseException as error:
        # A panic of a library in Rust is no Exception.
        if type(error).__name__ != "PanicException":
            raise
        raise DamagedError(first_line(error), path=path) from None


def first_line(error: BaseException) -> str:
    """What a library says, without the trace that it adds."""
    text = str(error).strip().splitlines()
    return text[0] if text else type(error).__name__


def as_time(given: str | datetime.datetime) -> datetime.datetime:
    """A point in time; one without a zone is UTC."""
    try:
        found = given if isinstance(given, datetime.datetime) else datetime.datetime.fromisoformat(given)
    except (TypeError, ValueError):
        raise OptionError(f"at is a time as 2025-01-31T12:00:00, not {given!r}") from None
    return found if found.tzinfo else found.replace(tzinfo=datetime.UTC)
