"""Reader: a dataset to read from. A format implements ``_read``; the rest has a sensible default."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Self, overload

import numpy as np

from ..codecs.cells import decode_sample
from ..codecs.infer import infer_mask
from ..errors import BatchplantError, DataError, OptionError, Problem, SampleIndexError
from ..order.orders import Order
from ..schema import Field, Image, Schema
from ..schema.columns import I64, Column, Columns, Ragged, Spans, concat_spans, masked, sample_numbers
from . import checks
from .arrays import Array
from .exports import Exported
from .filters import Filterable, Filtered, Matches, Pruned, matches, within
from .keys import Keyed, Table
from .origin import Made

if TYPE_CHECKING:
    from .expressions import Bound

# Cells that tell the mode of masks.
PROBED_SAMPLES = 16


class Reader(Made, Keyed, Filterable, Exported):
    """Samples by number, safe from many threads, picklable by the arguments it was made with.

    A format's reader sets ``schema`` and ``length`` in its ``__init__`` and implements ``_read``.
    """

    format: str = ""
    path: str
    schema: Schema
    length: int
    # How many blocks to shuffle at a time, where the reader knows better than the order.
    window: int | None = None
    # Whether spans lie in the format's own files; those of a manifest lie in the files that it names.
    own_spans: ClassVar[bool] = True

    # -- what a format implements ----------------------------------------------------------------------

    def _read(self, indices: I64, fields: Sequence[str]) -> Columns:
        """The cells of these samples (checked, not negative) in these fields."""
        raise NotImplementedError

    def _spans(self, field: str, indices: I64) -> Spans | None:
        """Where these cells lie, bounds checked; None where they are not plain runs of bytes."""
        return None

    def _ranges(self, fields: Sequence[str], indices: I64) -> Spans | None:
        """Where the bytes lie that reading these cells takes, in any number of runs; None where unknown. It
        must not read cells; tables that are small and stay in memory may be. By default the spans of the
        fields."""
        found = [self._spans(name, indices) for name in fields]
        return concat_spans([one for one in found if one is not None]) if None not in found else None

    def _unread(self, fields: Sequence[str], indices: I64) -> Spans | None:
        """The same without what the reader holds in memory, and will still hold when it is asked for it."""
        return self._ranges(fields, indices)

    def _bytes_of(self, fields: Sequence[str]) -> int | None:
        """The bytes that all cells of these fields take, where that costs nothing to know."""
        return None

    def blocks(self) -> I64 | None:
        """For every sample the number of the storage unit (page, row group, shard) it lies in, or None."""
        return None

    def boundaries(self) -> I64:
        """Samples that begin a part independent of the sample before them, in ascending order, without 0.

        A part is a file among several that do not belong together, or an episode of a file. Shards of one
        dataset are no parts. ``Windows`` never crosses a boundary unless it is asked to.
        """
        return np.empty(0, dtype=np.int64)

    def _array(self, field: str) -> Array | None:
        """A field as one array, where the format knows more of it than its rows; else None."""
        return None

    def sizes(self) -> I64 | None:
        """The bytes of every sample, where they are known and one may be as large as the rest; else None."""
        return None

    def own_order(self, order: Any, *, seed: int, epoch: int, **options: Any) -> Order | None:
        """The order of an epoch, where it is not one of all samples: that of a mixture."""
        return None

    def where(self, sample: int) -> str:
        """The file that a sample lies in."""
        return self.path

    # Whether ``with_schema`` can give arrays of float32 as float64.
    widens_floats: ClassVar[bool] = False

    def with_schema(self, schema: Schema) -> Reader | None:
        """The same samples with these fields, where they were inferred from the data; else None."""
        return None

    def facts(self) -> dict[str, Any]:
        """What `info` shows besides samples and fields: page size, version, compression …"""
        return {}

    @property
    def metadata(self) -> Mapping[str, str]:
        """What the file says about itself, as text by name; ``convert`` keeps it where the target can."""
        return {}

    @property
    def attributes(self) -> Mapping[str, Mapping[str, Any]]:
        """What the file says about itself under ``""``, about its fields under their names: any values.

        ``convert`` keeps them where the target can, and remarks on it where it cannot.
        """
        return {}

    def _verify(self) -> Iterator[Problem]:
        """What is wrong with the structure, beyond what reading every sample would find."""
        return iter(())

    def own_checks(self) -> tuple[str, ...]:
        """The checksums of the format's own that ``verify`` compares, in words: ``CRC of every record``."""
        return ()

    def close(self) -> None:
        """Let go of files."""

    # -- what everybody uses ---------------------------------------------------------------------------

    def __len__(self) -> int:
        return self.length

    def read(self, indices: Any, fields: Iterable[str] | None = None) -> Columns:
        """The encoded cells of samples; negative numbers count from the end.

        A column of numbers is an array; where some may be missing it is Masked: ``values`` and ``mask``.
        """
        return masked(self.schema, self._read(self._check(indices), self._names(fields)))

    def spans(self, field: str, indices: Any = None) -> Spans | None:
        """Where the cells of a field lie in files, or None: then there is only ``read``."""
        self.schema.select([field])
        return self._spans(field, np.arange(len(self)) if indices is None else self._check(indices))

    def ranges(self, fields: Iterable[str] | None = None, indices: Any = None) -> Spans | None:
        """The bytes that reading these cells takes: runs in files, not one for each cell; None: unknown."""
        rows = np.arange(len(self)) if indices is None else self._check(indices)
        return self._ranges(self._names(fields), rows)

    def scan(self, size: int = 1024, fields: Iterable[str] | None = None) -> Iterator[Columns]:
        """All samples in order, ``size`` at a time. Arrays may lie in the file: copy them to change them."""
        return (masked(self.schema, columns) for columns in self._consecutive(size, self._names(fields)))

    def _consecutive(self, size: int, fields: tuple[str, ...]) -> Iterator[Columns]:
        for start in range(0, len(self), size):
            yield self._read(np.arange(start, min(start + size, len(self))), fields)

    @overload
    def __getitem__(self, index: slice) -> Reader: ...
    @overload
    def __getitem__(self, index: int) -> dict[str, Any]: ...
    def __getitem__(self, index: int | slice) -> dict[str, Any] | Reader:
        """One decoded sample, or a part of the dataset."""
        if isinstance(index, slice):
            return self.subset(range(*index.indices(len(self))))
        rows = self._check([index])
        try:
            return decode_sample(self.schema, self._read(rows, tuple(self.schema)), 0)
        except BatchplantError as error:
            raise error.at(path=self.path, sample=int(rows[0])) from None

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """Every sample, decoded."""
        number = 0
        for columns in self.scan(64):
            for row in range(columns.rows):
                try:
                    yield decode_sample(self.schema, columns, row)
                except BatchplantError as error:
                    raise error.at(path=self.path, sample=number) from None
                number += 1

    def select(self, fields: Iterable[str]) -> Reader:
        """The same samples with only these fields, in this order."""
        return View(self, fields=self._names(fields))

    def with_masks(self, fields: Iterable[str]) -> Reader:
        """The same samples; the images in these fields are masks, whose values are classes (see Image)."""
        return View(self, masks=self._names(fields))

    def rename(self, names: Mapping[str, str]) -> Reader:
        """The same samples, fields under other names: old → new."""
        return Renamed(self, dict(names))

    def subset(self, indices: Any) -> Reader:
        """Only these samples, in this order."""
        return View(self, indices=self._check(indices))

    def _filtered(self, rows: I64, told: Filtered) -> Reader:
        return View(self, indices=rows, filtered=told)

    def verify(self) -> Iterator[Problem]:
        """Everything that is wrong with structure and bounds, every damaged sample by name."""
        return checks.verify(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<{self.format or type(self).__name__}: {len(self)} samples of {', '.join(self.schema)}>"

    def _names(self, fields: Iterable[str] | None) -> tuple[str, ...]:
        """The names of these fields, all of which are there."""
        if isinstance(fields, list | tuple) and all(map(self.schema.__contains__, fields)):
            return tuple(fields)
        return tuple(self.schema if fields is None else self.schema.select(fields))

    def _check(self, indices: Any) -> I64:
        """Sample numbers as int64, none negative, none out of range."""
        try:
            return sample_numbers(indices, len(self))
        except SampleIndexError as error:
            raise error.at(path=self.path) from None


class Over(Reader):
    """The samples of another reader in another way. What is not said otherwise is as it is there."""

    def __init__(self, base: Reader) -> None:
        self.base, self.path, self.format, self.window = base, base.path, base.format, base.window
        self.schema, self.length = base.schema, len(base)

    def _read(self, indices: I64, fields: Sequence[str]) -> Columns:
        return self.base._read(indices, fields)

    def _ranges(self, fields: Sequence[str], indices: I64) -> Spans | None:
        return self.base._ranges(fields, indices)

    def blocks(self) -> I64 | None:
        return self.base.blocks()

    def boundaries(self) -> I64:
        return self.base.boundaries()

    def sizes(self) -> I64 | None:
        return self.base.sizes()

    def _key_kind(self) -> Field | None:
        return self.base._key_kind()

    def _keys(self, indices: I64, short: bool = False) -> Column | None:
        return self.base._keys(indices, short)

    def where(self, sample: int) -> str:
        return self.base.where(sample)

    def facts(self) -> dict[str, Any]:
        return self.base.facts()

    @property
    def metadata(self) -> Mapping[str, str]:
        return self.base.metadata

    @property
    def attributes(self) -> Mapping[str, Mapping[str, Any]]:
        return self.base.attributes

    def _verify(self) -> Iterator[Problem]:
        return self.base._verify()

    def own_checks(self) -> tuple[str, ...]:
        return self.base.own_checks()

    def close(self) -> None:
        self.base.close()


class Renamed(Over):
    """The same samples, some fields under other names."""

    def __init__(self, base: Reader, names: Mapping[str, str]) -> None:
        super().__init__(base)
        self.schema = base.schema.rename(names)
        self._old = dict(zip(self.schema, base.schema, strict=True))

    def _read(self, indices: I64, fields: Sequence[str]) -> Columns:
        found = self.base._read(indices, [self._old[name] for name in fields])
        return Columns((name, found[self._old[name]]) for name in fields)

    def _spans(self, field: str, indices: I64) -> Spans | None:
        return self.base._spans(self._old[field], indices)

    def _ranges(self, fields: Sequence[str], indices: I64) -> Spans | None:
        return self.base._ranges([self._old[name] for name in fields], indices)

    @property
    def attributes(self) -> Mapping[str, Mapping[str, Any]]:
        new = {old: name for name, old in self._old.items()}
        return {new.get(name, name): values for name, values in self.base.attributes.items()}


class View(Over):
    """Some samples or some fields of another reader; some of its images taken for masks."""

    def __init__(
        self,
        base: Reader,
        *,
        indices: I64 | None = None,
        fields: Sequence[str] | None = None,
        masks: Sequence[str] = (),
        filtered: Filtered | None = None,
    ) -> None:
        super().__init__(base)
        self.schema = base.schema.select(base._names(fields))
        self.indices = indices
        self.length = self.length if indices is None else len(indices)
        self._told = filtered
        # Who reads these samples and nothing between them.
        self._reads = base._picked(indices) if filtered is not None and indices is not None else None
        self.schema = Schema({**self.schema, **{name: self._mask(name) for name in masks}})

    def _mask(self, name: str) -> Image:
        """A field as one of masks: a few cells tell the mode."""
        field = self.schema[name]
        if not isinstance(field, Image):
            raise OptionError(f"a mask is an image, and {name!r} is {field}", path=self.path)
        with contextlib.suppress(DataError):
            cells = self.read(range(min(len(self), PROBED_SAMPLES)), [name])[name]
            assert isinstance(cells, Ragged)
            return infer_mask(field, cells)
        return infer_mask(field, Ragged.from_cells([]))

    def _rows(self, indices: I64) -> I64:
        return indices if self.indices is None else self.indices[indices]

    def _read(self, indices: I64, fields: Sequence[str]) -> Columns:
        if self._reads is not None:
            return self._reads._read(indices, fields)
        return self.base._read(self._rows(indices), fields)

    def _consecutive(self, size: int, fields: tuple[str, ...]) -> Iterator[Columns]:
        found = None if self._reads is None else self._reads._consecutive(size, fields)
        return super()._consecutive(size, fields) if found is None else found

    def _spans(self, field: str, indices: I64) -> Spans | None:
        return self.base._spans(field, self._rows(indices))

    def _ranges(self, fields: Sequence[str], indices: I64) -> Spans | None:
        if self._reads is not None:
            return self._reads._ranges(fields, indices)
        return self.base._ranges(fields, self._rows(indices))

    def _prune(self, bound: Bound) -> Pruned | None:
        return within(self.base._prune(bound), self.indices)

    def _picked(self, rows: I64) -> Reader | None:
        rows = self._rows(rows)
        return self.base._picked(rows) if (np.diff(rows) > 0).all() else None

    def _matches(self, bound: Bound, text: str) -> Matches:
        return self.base._matches(bound, text) if self.indices is None else matches(self, bound, text)

    def refresh(self) -> Reader:
        return super().refresh() if self._told is None else self.base.refresh().filter(self._told.where)

    def _array(self, field: str) -> Array | None:
        return self.base._array(field) if self.indices is None else None

    def blocks(self) -> I64 | None:
        found = self.base.blocks()
        return found if found is None or self.indices is None else found[self.indices]

    def boundaries(self) -> I64:
        found = self.base.boundaries()
        if self.indices is None or not len(found):
            return found
        parts = np.searchsorted(found, self.indices, side="right")
        return np.flatnonzero(parts[1:] != parts[:-1]) + 1

    def sizes(self) -> I64 | None:
        found = self.base.sizes()
        return found if found is None or self.indices is None else found[self.indices]

    def _keys(self, indices: I64, short: bool = False) -> Column | None:
        return self.base._keys(self._rows(indices), short)

    def _find_keys(self, keys: Ragged) -> I64 | None:
        return self.base._find_keys(keys) if self.indices is None else None

    def _key_table(self, field: str | None, short: bool) -> Table:
        found = self.base._key_table(field, short)
        return found if self.indices is None else found.take(self.indices, len(self.base))

    def where(self, sample: int) -> str:
        return self.base.where(int(self._rows(np.array([sample]))[0]))

    def facts(self) -> dict[str, Any]:
        return {**self.base.facts(), **({} if self._told is None else self._told.facts())}

    @property
    def attributes(self) -> Mapping[str, Mapping[str, Any]]:
        """Those of the file, and of the fields that are seen here."""
        found = self.base.attributes
        return {name: values for name, values in found.items() if name == "" or name in self.schema}

    def _verify(self) -> Iterator[Problem]:
        """What is wrong with the whole, and with those samples and fields that are seen here."""
        rows: dict[int, list[int]] = {}
        for row, sample in enumerate(() if self.indices is None else self.indices.tolist()):
            rows.setdefault(sample, []).append(row)
        for problem in self.base._verify():
            if problem.field is not None and problem.field not in self.schema:
                continue
            if problem.sample is None or self.indices is None:
                yield problem
            else:
                yield from (dataclasses.replace(problem, sample=row) for row in rows.get(problem.sample, ()))
