"""Reader: a dataset to read from. A format implements ``_read``; the rest has a sensible default."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Self, overload

import numpy as np
import numpy.typing as npt

from ..codecs.cells import decode_sample
from ..codecs.infer import infer_mask
from ..errors import (
    BatchplantError,
    DataError,
    MissingLibraryError,
    OptionError,
    Problem,
    SampleIndexError,
    SchemaError,
    located,
)
from ..order.keyed import whole
from ..schema import Image, Schema
from ..schema.columns import I64, AnyArray, Columns, Ragged, end_within, masked, sample_numbers
from ..storage import Source, index, is_remote, open_source, tag_of, tree
from ..storage.spans import Spans, concat_spans
from . import filters, hooks, keys
from .arrays import Array, array_of
from .buffers import BufferPool
from .filters import FilterSummary, Matches, Pruned, ScanRun
from .keys import FormatKeys, Keys, KeyTable
from .layout import Layout
from .tensors import TENSORS, Tensors, is_tensors

if TYPE_CHECKING:
    # Imported when a reader is filtered: it takes long.
    from .expressions import Bound, Condition

# Cells from which ``with_masks`` infers the mode.
MASK_PROBE_SAMPLES = 16
# Samples whose ranges tell in which files a reader's cells lie.
FILE_PROBE_SAMPLES = 1 << 14
# Sizes of batches whose memory waits for the next.
MAX_BATCH_SIZES = 4

IndexBuilder = Callable[["Reader"], tuple[index.Arrays, index.Facts]]


@dataclasses.dataclass(frozen=True)
class ReaderTuning:
    """Limits of the samples that a reader reads at once, and of their bytes where sizes are known."""

    verify_rows: int = 256
    verify_bytes: int = 64 << 20
    scan_rows: int = 1 << 14
    scan_bytes: int = 64 << 20
    # Decoded row groups that a quasi-random epoch shuffles at a time; two such windows fit in the cache.
    window_bytes: int = 128 << 20
    # A filter that scans fewer bytes scans them again rather than store its result in an index.
    min_indexed_bytes: int = 8 << 20


def open_reader(source: Any, **options: Any) -> Reader:
    """Open a dataset as :func:`batchplant.open` does; a Reader is returned as it is."""
    return source if isinstance(source, Reader) else hooks.part("open")(source, **options)


class Reader:
    """Samples by number, safe from many threads, picklable by the arguments of its constructor.

    A format's reader sets ``schema`` and ``length`` in its ``__init__`` and implements ``_read``.
    """

    format: str = ""
    path: str
    schema: Schema
    length: int
    # Blocks to shuffle at a time, where the reader knows better than the order.
    window: int | None = None
    # Large images in which the viewer pans and zooms; see ``_pyramid_of``.
    _pyramids: int = 0
    # False for a manifest, whose spans lie in the files that it names.
    own_spans: ClassVar[bool] = True
    # True if ``with_schema`` can return arrays of float32 as float64.
    widens_floats: ClassVar[bool] = False
    tuning: ReaderTuning = ReaderTuning()

    # Arguments of the constructor, for pickling and refresh(): no format writes its own.
    _init_args: tuple[tuple[Any, ...], dict[str, Any]]
    # Tag (size, time, inode) of the local file at the path before it was opened; empty if there is none.
    _file_tag: str
    # Opens the dataset once more; set by code that searched for the files, since there may be others by now.
    _reopen: Callable[[], Reader] | None = None
    _keys_by_field: dict[str | None, Keys] | None = None
    # Memory for cells that are decoded right into a batch.
    _buffers: BufferPool

    def __new__(cls, *args: Any, **options: Any) -> Self:
        self = super().__new__(cls)
        self._init_args = (args, options)
        self._file_tag = _file_tag_of(args)
        self._buffers = BufferPool(max_sizes=MAX_BATCH_SIZES)
        return self

    def __reduce__(self) -> tuple[Callable[..., object], tuple[object, ...]]:
        return _construct, (type(self), *self._init_args)

    # -- what a format implements ----------------------------------------------------------------------

    def _read(self, indices: I64, fields: Sequence[str]) -> Columns:
        """Read the cells of these samples (checked, not negative) in these fields."""
        raise NotImplementedError

    def _fill(self, field: str, indices: I64, out: AnyArray, rows: I64) -> bool:
        """Decode these cells right into ``out[rows]``; False, with nothing written, if that saves no copy."""
        return False

    def _spans(self, field: str, indices: I64) -> Spans | None:
        """Return the spans of these cells, bounds checked; None if cells are not plain runs of bytes."""
        return None

    def _ranges(self, fields: Sequence[str], indices: I64) -> Spans | None:
        """Return the byte ranges that reading these cells takes, in any number of runs; None if unknown.

        Must not read cells; it may read tables that are small and stay in memory. By default the spans of
        the fields.
        """
        spans = [self._spans(name, indices) for name in fields]
        return concat_spans([span for span in spans if span is not None]) if None not in spans else None

    def _layout(self) -> Layout:
        """Return how samples lie in storage: their blocks, boundaries, sizes and the like."""
        return Layout()

    def _array(self, field: str) -> Array | None:
        """Return a field as one array, if the format knows more of it than its rows; else None."""
        return None

    def _cell_array(self, field: str, sample: int) -> Array | None:
        """Return one cell as an array that is read when it is sliced, if the format can; else None."""
        return None

    def _pyramid_of(self, number: int) -> tuple[str, list[Array]]:
        """Return the levels of one of ``_pyramids`` images, largest first, and a letter for each axis: Y and
        X, S for colours, others for planes."""
        raise NotImplementedError

    def where(self, sample: int) -> str:
        """Return the path of the file that a sample lies in."""
        return self.path

    def with_schema(self, schema: Schema) -> Reader | None:
        """Return the same samples with these fields, if the schema was inferred from data; else None."""
        return None

    def facts(self) -> dict[str, object]:
        """Return facts that `info` shows besides samples and fields: page size, version, compression …"""
        return {}

    @property
    def metadata(self) -> Mapping[str, str]:
        """Metadata of the file, as text by name; ``convert`` keeps it where the target can."""
        return {}

    @property
    def attributes(self) -> Mapping[str, Mapping[str, object]]:
        """Attributes of the file under ``""`` and of its fields under their names; any values.

        ``convert`` keeps them where the target can, and remarks on it where it cannot.
        """
        return {}

    def _verify(self) -> Iterator[Problem]:
        """Yield the problems of the structure that reading every sample would not find."""
        return iter(())

    def own_checks(self) -> tuple[str, ...]:
        """Return the names of the format's checksums that ``verify`` compares: ``CRC of every record``."""
        return ()

    def _keys(self) -> FormatKeys | None:
        """Return the format's own keys of its samples, in a model the tensors' names; None if it has none."""
        if not is_tensors(self.schema):
            return None
        return FormatKeys(TENSORS["name"], lambda indices: self._read(indices, ("name",))["name"])

    def _key_table(self, field: str | None, short: bool) -> KeyTable:
        """Return the hashes of all keys: the format's own, or those in a field, whose table is indexed."""
        if field is None:
            return keys.scan_keys(self, field, short)

        def build(reader: Reader) -> tuple[index.Arrays, index.Facts]:
            table = keys.scan_keys(reader, field, short)
            return {"hashes": table.hashes, "rows": table.rows}, {"samples": len(self)}

        def check(stored: index.Index) -> bool:
            return stored.facts["samples"] == len(self) and keys.is_table(stored.arrays, len(self))

        stored = self._indexed((field,), "keys", "", build, version=keys.VERSION, check=check)
        if stored is None:
            return keys.scan_keys(self, field, short)
        return KeyTable(stored.arrays["hashes"], stored.arrays["rows"])

    def _prune(self, bound: Bound) -> Pruned | None:
        """Return where a condition can be true, as far as statistics tell; None: they do not."""
        return None

    def _row_reader(self, rows: I64) -> Reader | None:
        """Return a reader of these samples (ascending) that reads none between them; else None."""
        return None

    def _scan_runs(self, fields: Sequence[str]) -> Iterator[ScanRun]:
        """Yield runs of samples, all of them in order, each of which is read well at once, past caches."""
        for start, end in _runs_within(self, self.tuning.scan_rows, self.tuning.scan_bytes):
            yield ScanRun(start, end, functools.partial(self._read_range, start, end, fields))

    def _read_range(self, start: int, end: int, fields: Sequence[str]) -> Columns:
        return self._read(np.arange(start, end), fields)

    def _fingerprint_source(self, fields: Sequence[str]) -> Source | None:
        """Return the source whose fingerprint changes when these cells do: a file, or several (``Whole``).

        None if there is no such source; then nothing that is computed from these cells is stored.
        """
        args = self._init_args[0]
        # A wrapper has a path too, but its file does not tell which samples it has.
        opened_by_path = len(args) == 1 and isinstance(args[0], str)
        if opened_by_path and self.path and (is_remote(self.path) or tree.is_file(self.path)):
            # The file may have been replaced since: an index of the new one is not about these cells.
            if not is_remote(self.path) and _file_tag_of((self.path,)) != self._file_tag:
                return None
            ranges = self._ranges(fields, np.arange(min(len(self), FILE_PROBE_SAMPLES)))
            if ranges is None or set(ranges.files) <= {self.path}:
                return open_source(self.path)
        return None

    def close(self) -> None:
        """Close files."""

    # -- what users call ---------------------------------------------------------------------------

    def __len__(self) -> int:
        return self.length

    def read(self, indices: npt.ArrayLike, fields: Iterable[str] | None = None) -> Columns:
        """Return the encoded cells of samples; negative numbers count from the end.

        A column of numbers is an array; where some may be missing it is Masked: ``values`` and ``mask``.

        Raises: SampleIndexError for a number out of range, FieldNameError for a field that is not there,
        DamagedError where the file is damaged.
        """
        return masked(self.schema, self._read(self._check(indices), self._names(fields)))

    def spans(self, field: str, indices: npt.ArrayLike | None = None) -> Spans | None:
        """Return the spans of a field's cells in files, or None: then there is only ``read``."""
        self.schema.select([field])
        return self._spans(field, np.arange(len(self)) if indices is None else self._check(indices))

    def ranges(
        self, fields: Iterable[str] | None = None, indices: npt.ArrayLike | None = None
    ) -> Spans | None:
        """Return the byte ranges that reading these cells takes, not one for each cell; None: unknown."""
        rows = np.arange(len(self)) if indices is None else self._check(indices)
        return self._ranges(self._names(fields), rows)

    def blocks(self) -> I64 | None:
        """Return the number of every sample's storage unit (page, row group, shard), or None."""
        return self._layout().all_blocks()

    def boundaries(self) -> I64:
        """Return the samples that begin a sequence of their own, in ascending order, without 0.

        A sequence is a file among several that do not belong together, or an episode of a file.
        """
        boundaries = self._layout().numbers("boundaries")
        return np.empty(0, dtype=np.int64) if boundaries is None else boundaries

    def sizes(self) -> I64 | None:
        """Return the bytes of every sample, if they are known and differ much; else None."""
        return self._layout().numbers("sizes")

    def scan(self, size: int = 1024, fields: Iterable[str] | None = None) -> Iterator[Columns]:
        """Yield all samples in order, ``size`` at a time. Arrays may lie in the file: copy to change them.

        Raises: DataError, with the sample and the field, for what cannot be read.
        """
        whole("size", size, 1)
        return (masked(self.schema, columns) for columns in self._consecutive(size, self._names(fields)))

    def _consecutive(self, size: int, fields: tuple[str, ...]) -> Iterator[Columns]:
        for start in range(0, len(self), size):
            yield self._read_range(start, min(start + size, len(self)), fields)

    @overload
    def __getitem__(self, index: slice) -> Reader: ...
    @overload
    def __getitem__(self, index: int) -> dict[str, Any]: ...
    def __getitem__(self, index: int | slice) -> dict[str, Any] | Reader:
        """Return one decoded sample, or for a slice a view of these samples."""
        if isinstance(index, slice):
            return self.subset(range(*index.indices(len(self))))
        rows = self._check([index])
        with located(path=self.path, sample=int(rows[0])):
            return decode_sample(self.schema, self._read(rows, tuple(self.schema)), 0)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """Yield every sample, decoded."""
        number = 0
        for columns in self.scan(64):
            for row in range(columns.rows):
                try:
                    yield decode_sample(self.schema, columns, row)
                except BatchplantError as error:
                    raise error.at(path=self.path, sample=number) from None
                number += 1

    def select(self, fields: Iterable[str]) -> Reader:
        """Return the same samples with only these fields, in this order.

        Raises: FieldNameError.
        """
        return View(self, fields=self._names(fields))

    def with_masks(self, fields: Iterable[str]) -> Reader:
        """Return the same samples; images in these fields are masks, whose values are classes (see Image).

        Raises: FieldNameError where there is no such field; OptionError where it holds no images.
        """
        return View(self, masks=self._names(fields))

    def rename(self, names: Mapping[str, str]) -> Reader:
        """Return the same samples, fields under other names: old → new.

        Raises: FieldNameError where there is no such field; SchemaError where two fields get one name.
        """
        return Renamed(self, dict(names))

    def subset(self, indices: npt.ArrayLike) -> Reader:
        """Return only these samples, in this order.

        Raises: SampleIndexError.
        """
        return View(self, indices=self._check(indices))

    def filter(self, where: str | Condition) -> Reader:
        """Return the samples that a condition is true of.

        As in ``reader.filter("label == 'cat' and width >= 224")``, or made of :func:`batchplant.col`. What
        compares a missing cell is never true, nor is its opposite; ``x is null`` finds it. What cannot match
        is skipped by the format's statistics, where it has some; ``facts()`` of the result says how much.

        Raises: FieldNameError for a field that is not there; OptionError for a condition that cannot be
        parsed, or that compares a field with a value of another kind.
        """
        from .expressions import bind

        condition = filters.parse_condition(where)
        text = str(condition)
        try:
            rows, pruned = self._matches(bind(condition, self.schema), text)
        except (SchemaError, OptionError) as error:
            raise error.at(path=self.path) from None
        skipped = {} if pruned is None else pruned.facts()
        return View(self, indices=rows, filtered=FilterSummary(text, len(self), skipped))

    def _matches(self, bound: Bound, text: str) -> Matches:
        """Return the samples that a condition is true of, in ascending order, and what was skipped."""
        from .expressions import fields_of

        fields = fields_of(bound)
        pruned = self._prune(bound)
        if pruned is not None and not len(pruned.ranges):
            return np.empty(0, dtype=np.int64), pruned
        all_rows = pruned is None or pruned.ranges.tolist() == [[0, len(self)]]
        candidates = None if all_rows or pruned is None else pruned.rows

        def scan(reader: Reader) -> I64:
            if candidates is None:
                return filters.scan(reader, bound, fields)
            try:
                candidate_reader = reader._row_reader(candidates) or reader.subset(candidates)
                return candidates[filters.scan(candidate_reader, bound, fields)]
            except BatchplantError as error:
                if error.sample is not None and error.sample < len(candidates):
                    error.sample = int(candidates[error.sample])
                raise

        if pruned is not None and pruned.looked_at <= self.tuning.min_indexed_bytes:
            return scan(self), pruned

        def build(reader: Reader) -> tuple[index.Arrays, index.Facts]:
            return filters.pack_rows(scan(reader), len(self)), {"samples": len(self)}

        def check(stored: index.Index) -> bool:
            same_length = stored.facts["samples"] == len(self)
            return same_length and filters.unpack_rows(stored.arrays, len(self)) is not None

        stored = self._indexed(fields, "filter", text, build, version=filters.VERSION, check=check)
        rows = scan(self) if stored is None else filters.unpack_rows(stored.arrays, len(self))
        assert rows is not None
        return rows, pruned

    def keys(self, field: str | None = None) -> Keys:
        """Return the keys of all samples: the format's own, or the values of a field of unique values.

        ``key in keys``, ``len(keys)``, ``keys.index(key)``, ``keys.indices(many)``; iterating gives them in
        the order of the samples.

        Raises: OptionError where the format has none and no field is named; SampleKeyError for a key that no
        sample has, or several.
        """
        cache = self._keys_by_field = self._keys_by_field or {}
        field_keys = cache.get(field)
        # A copy with other fields shares the dict, and a dataset can grow.
        if field_keys is None or field_keys.reader is not self or field_keys.samples != len(self):
            field_keys = cache[field] = Keys(self, field)
        return field_keys

    def by_key(self, key: Any, field: str | None = None) -> dict[str, Any]:
        """Return the sample, decoded, that has this key: the format's own, or the value of a field.

        Raises: SampleKeyError where no sample has it, or several do.
        """
        return self[self.keys(field).index(key)]

    def refresh(self) -> Reader:
        """Return the dataset as it is now, with what was appended since. This reader stays as it was.

        A view (fields, samples) becomes the same view. Samples keep their numbers when others are appended.

        Raises: what :func:`batchplant.open` raises, such as NotFoundError where the dataset is gone;
        OptionError where samples were taken away.
        """
        if self._reopen is not None:
            return self._reopen()
        args, options = self._init_args
        options = {name: _refreshed(value) for name, value in options.items()}
        return type(self)(*map(_refreshed, args), **options)

    def to_torch(self, fields: Iterable[str] | None = None) -> Any:
        """Return a map-style dataset of torch: decoded samples as dicts, numbers and arrays as tensors."""
        return hooks.part("torch").Samples(self if fields is None else self.select(fields))

    def to_arrow(self, fields: Iterable[str] | None = None) -> Any:
        """Return all samples as a pyarrow.Table, in memory; its metadata has the kinds of the fields.

        Raises: MissingLibraryError without pyarrow; DataError for a sample that cannot be read.
        """
        from ..codecs.arrow import table_of

        schema = self.schema.select(self._names(fields))
        return table_of(schema, self.scan(4096, schema))

    def to_pandas(self, fields: Iterable[str] | None = None) -> Any:
        """Return all samples as a pandas.DataFrame; tensors and lists are objects in it.

        Raises: MissingLibraryError without pandas; DataError for a sample that cannot be read.
        """
        table = self.to_arrow(fields)
        try:
            return table.to_pandas()
        except ImportError:
            raise MissingLibraryError("data frames need pandas: pip install pandas") from None

    def to_hf(self, fields: Iterable[str] | None = None) -> Any:
        """Return all samples as a datasets.Dataset of Hugging Face, in memory.

        Images, sounds, videos and class names are its features. What is larger than memory is converted to
        Parquet, which ``datasets.load_dataset`` opens with the same features.

        Raises: MissingLibraryError without datasets; DataError for a sample that cannot be read.
        """
        from ..codecs.arrow import dataset_of

        schema = self.schema.select(self._names(fields))
        return dataset_of(schema, self.scan(4096, schema))

    def array(self, field: str) -> Array:
        """Return a field (of a model: a tensor) as one N-d array, samples first, that is read when sliced.

        Raises: SchemaError where its cells are not arrays of one shape.
        """
        return array_of(self, field)

    def tensors(self) -> Mapping[str, AnyArray]:
        """Return the tensors of a model by name, each read when it is asked for, in place where it can be.

        Raises: SchemaError where the dataset is no model.
        """
        return Tensors(self)

    def verify(self) -> Iterator[Problem]:
        """Yield everything that is wrong with structure and bounds, every damaged sample by name."""
        try:
            yield from self._verify()
        except DataError as error:
            yield Problem.of(error.at(path=self.path))
        for start, end in _runs_within(self, self.tuning.verify_rows, self.tuning.verify_bytes):
            problems: list[Problem] = []
            self.read_undamaged(np.arange(start, end), problems, sys.maxsize)
            yield from problems

    def read_undamaged(
        self, rows: I64, problems: list[Problem], max_problems: int
    ) -> tuple[I64, Columns | None]:
        """Read those of these samples that are not damaged; return their numbers and their cells.

        Appends the problems of the others to ``problems``, and stops at ``max_problems``.
        """
        parts: list[Columns] = []
        sound_rows: list[I64] = []
        position, step = 0, len(rows)
        while position < len(rows) and len(problems) < max_problems:
            batch = rows[position : position + step]
            try:
                parts.append(self.read(batch))
                sound_rows.append(batch)
            except DataError as error:
                if len(batch) > 1:
                    # Then one by one; as long as they are sound, more and more at once.
                    step = 1
                    continue
                problem = dataclasses.replace(Problem.of(error.at(path=self.path)), sample=int(batch[0]))
                problems += list(self._damaged_cells(int(batch[0]))) or [problem]
            else:
                step *= 2
            position += len(batch)
        if not parts:
            return np.empty(0, dtype=np.int64), None
        return np.concatenate(sound_rows), Columns.concat(parts)

    def _damaged_cells(self, row: int) -> Iterator[Problem]:
        """Read a sample field by field, and yield the problem of each damaged cell."""
        # No field at first: the record may be damaged as a whole.
        for fields in ([], *([name] for name in self.schema)):
            try:
                self.read([row], fields)
            except DataError as error:
                error.at(path=self.path, field=fields[0] if fields else None)
                yield dataclasses.replace(Problem.of(error), sample=row)
                if not fields:
                    break

    def _indexed(
        self,
        fields: Sequence[str],
        kind: str,
        about: str,
        build: IndexBuilder,
        *,
        version: int,
        check: Callable[[index.Index], bool],
    ) -> index.Index | None:
        """Return what ``build`` computes of these cells, from an index file if one is valid.

        ``build`` gets the reader whose cells it reads. None if there is nothing to tell whether the cells
        have changed. The other arguments are those of ``storage.index.remember``.
        """
        source = None
        if self._init_args[1].get("index") != "memory":
            with contextlib.suppress(BatchplantError, OSError):
                source = self._fingerprint_source(fields)
        if source is None:
            return None

        def build_and_report(_: Source, report: index.Report) -> tuple[index.Arrays, index.Facts]:
            reader = source.fresh() if isinstance(source, index.FileGroup) and source.fresh else self
            try:
                content = build(reader)
            finally:
                if reader is not self:
                    reader.close()
            report(source.size)
            return content

        # The same file can be opened with other options and as other kinds.
        open_options = source.options if isinstance(source, index.FileGroup) else self._init_args[1]
        options = sorted(((name, value) for name, value in open_options.items() if name != "index"), key=str)
        kinds = [(name, str(self.schema[name])) for name in fields]
        with contextlib.closing(source):
            recipe = f"{about}\0{self.format}\0{kinds}\0{options}"
            return index.remember(source, kind, recipe, build_and_report, version=version, check=check)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<{self.format or type(self).__name__}: {len(self)} samples of {', '.join(self.schema)}>"

    def _repr_html_(self) -> str:
        """Render its fields and first samples, small, for notebooks."""
        return hooks.part("notebook").reader_html(self)

    def _names(self, fields: Iterable[str] | None) -> tuple[str, ...]:
        """Return the names of these fields, checked; None: of all."""
        if isinstance(fields, list | tuple) and all(map(self.schema.__contains__, fields)):
            return tuple(fields)
        return tuple(self.schema if fields is None else self.schema.select(fields))

    def _check(self, indices: npt.ArrayLike) -> I64:
        """Return sample numbers as int64, none negative, none out of range."""
        try:
            return sample_numbers(indices, len(self))
        except SampleIndexError as error:
            raise error.at(path=self.path) from None


def _runs_within(reader: Reader, max_rows: int, max_bytes: int) -> Iterator[tuple[int, int]]:
    """Yield the bounds of consecutive runs of samples within these limits."""
    sizes, end = reader.sizes(), 0
    while end < len(reader):
        start, end = end, end_within(sizes, end, min(max_rows, len(reader) - end), max_bytes)
        yield start, end


def _construct(reader_class: type[Reader], args: tuple[Any, ...], options: dict[str, Any]) -> Reader:
    return reader_class(*args, **options)


def _refreshed(argument: object) -> object:
    """Return an argument of a constructor with the readers in it refreshed."""
    if isinstance(argument, list | tuple) and any(isinstance(entry, Reader) for entry in argument):
        return [_refreshed(entry) for entry in argument]
    return argument.refresh() if isinstance(argument, Reader) else argument


def _file_tag_of(args: tuple[object, ...]) -> str:
    if len(args) != 1 or not isinstance(args[0], str) or is_remote(args[0]):
        return ""
    try:
        return tag_of(os.stat(args[0]))
    except (OSError, ValueError):
        return ""


class DerivedReader(Reader):
    """Base class of readers that make samples from those of another reader: ``base``.

    ``_base_rows`` says from which sample of the base each sample is made, or the first of them.
    """

    base: Reader

    def _base_rows(self, rows: I64) -> I64:
        """Return the numbers of these samples in the base."""
        raise NotImplementedError

    def where(self, sample: int) -> str:
        return self.base.where(int(self._base_rows(np.array([sample]))[0]))

    def facts(self) -> dict[str, object]:
        return self.base.facts()

    @property
    def metadata(self) -> Mapping[str, str]:
        return self.base.metadata

    @property
    def attributes(self) -> Mapping[str, Mapping[str, object]]:
        return self.base.attributes

    def _verify(self) -> Iterator[Problem]:
        """Yield the problems of the base; the message names the row, of which several samples may be made."""
        for problem in self.base._verify():
            row = "" if problem.sample is None else f"row {problem.sample}: "
            yield dataclasses.replace(problem, message=row + problem.message, sample=None)

    def own_checks(self) -> tuple[str, ...]:
        return self.base.own_checks()

    def close(self) -> None:
        self.base.close()


class ReaderWrapper(DerivedReader):
    """Base class of readers that show samples of another reader.

    ``_base_rows`` and ``_base_names`` map samples and fields to those of the base. All else is delegated
    through these two, so a subclass overrides only what differs.
    """

    # Number in the base of every sample; None if the numbers are the same.
    indices: I64 | None = None

    def __init__(self, base: Reader) -> None:
        self.base, self.path, self.format, self.window = base, base.path, base.format, base.window
        self.schema, self.length = base.schema, len(base)

    def _base_rows(self, rows: I64) -> I64:
        """Return the numbers of these samples in the base."""
        return rows if self.indices is None else self.indices[rows]

    def _base_names(self, fields: Sequence[str]) -> Sequence[str]:
        """Return the names of these fields in the base."""
        return fields

    def _read(self, indices: I64, fields: Sequence[str]) -> Columns:
        return self.base._read(self._base_rows(indices), fields)

    def _fill(self, field: str, indices: I64, out: AnyArray, rows: I64) -> bool:
        return self.base._fill(self._base_names([field])[0], self._base_rows(indices), out, rows)

    def _spans(self, field: str, indices: I64) -> Spans | None:
        return self.base._spans(self._base_names([field])[0], self._base_rows(indices))

    def _ranges(self, fields: Sequence[str], indices: I64) -> Spans | None:
        return self.base._ranges(self._base_names(fields), self._base_rows(indices))

    def _cell_array(self, field: str, sample: int) -> Array | None:
        return self.base._cell_array(
            self._base_names([field])[0], int(self._base_rows(np.array([sample]))[0])
        )

    def _layout(self) -> Layout:
        return self.base._layout().take(self.indices)

    def _keys(self) -> FormatKeys | None:
        format_keys = self.base._keys()
        return (
            format_keys
            if format_keys is None or self.indices is None
            else format_keys.mapped(self._base_rows)
        )

    def _verify(self) -> Iterator[Problem]:
        return self.base._verify()


class Renamed(ReaderWrapper):
    """A reader with some fields under other names."""

    def __init__(self, base: Reader, names: Mapping[str, str]) -> None:
        super().__init__(base)
        self.schema = base.schema.rename(names)
        self._old_names = dict(zip(self.schema, base.schema, strict=True))

    def _base_names(self, fields: Sequence[str]) -> list[str]:
        return [self._old_names[name] for name in fields]

    def _read(self, indices: I64, fields: Sequence[str]) -> Columns:
        columns = self.base._read(indices, self._base_names(fields))
        return Columns((name, columns[self._old_names[name]]) for name in fields)

    @property
    def attributes(self) -> Mapping[str, Mapping[str, object]]:
        new_names = {old: name for name, old in self._old_names.items()}
        return {new_names.get(name, name): values for name, values in self.base.attributes.items()}


class View(ReaderWrapper):
    """Some samples or some fields of another reader; some of its images as masks."""

    def __init__(
        self,
        base: Reader,
        *,
        indices: I64 | None = None,
        fields: Sequence[str] | None = None,
        masks: Sequence[str] = (),
        filtered: FilterSummary | None = None,
    ) -> None:
        super().__init__(base)
        self.schema = base.schema.select(base._names(fields))
        self.indices = indices
        self.length = self.length if indices is None else len(indices)
        self._filter = filtered
        # Reads these samples and nothing between them, if the format can.
        self._row_base = base._row_reader(indices) if filtered is not None and indices is not None else None
        self.schema = Schema({**self.schema, **{name: self._mask(name) for name in masks}})

    def _mask(self, name: str) -> Image:
        """Return a field as one of masks; infers the mode from a few cells."""
        field = self.schema[name]
        if not isinstance(field, Image):
            raise OptionError(f"a mask is an image, and {name!r} is {field}", path=self.path)
        with contextlib.suppress(DataError):
            cells = self.read(range(min(len(self), MASK_PROBE_SAMPLES)), [name]).ragged(name)
            return infer_mask(field, cells)
        return infer_mask(field, Ragged.from_cells([]))

    def _read(self, indices: I64, fields: Sequence[str]) -> Columns:
        if self._row_base is not None:
            return self._row_base._read(indices, fields)
        return super()._read(indices, fields)

    def _consecutive(self, size: int, fields: tuple[str, ...]) -> Iterator[Columns]:
        if self._row_base is not None:
            return self._row_base._consecutive(size, fields)
        return super()._consecutive(size, fields)

    def _ranges(self, fields: Sequence[str], indices: I64) -> Spans | None:
        if self._row_base is not None:
            return self._row_base._ranges(fields, indices)
        return super()._ranges(fields, indices)

    def _layout(self) -> Layout:
        return self.base._layout() if self.indices is None else super()._layout()

    def _prune(self, bound: Bound) -> Pruned | None:
        return filters.within(self.base._prune(bound), self.indices)

    def _row_reader(self, rows: I64) -> Reader | None:
        rows = self._base_rows(rows)
        return self.base._row_reader(rows) if (np.diff(rows) > 0).all() else None

    def _matches(self, bound: Bound, text: str) -> Matches:
        return self.base._matches(bound, text) if self.indices is None else super()._matches(bound, text)

    def refresh(self) -> Reader:
        return super().refresh() if self._filter is None else self.base.refresh().filter(self._filter.where)

    def _array(self, field: str) -> Array | None:
        return self.base._array(field) if self.indices is None else None

    def _key_table(self, field: str | None, short: bool) -> KeyTable:
        table = self.base._key_table(field, short)
        return table if self.indices is None else table.take(self.indices, len(self.base))

    def facts(self) -> dict[str, object]:
        return {**self.base.facts(), **({} if self._filter is None else self._filter.facts())}

    @property
    def attributes(self) -> Mapping[str, Mapping[str, object]]:
        """Attributes of the file, and of the fields of this view."""
        attributes = self.base.attributes
        return {name: values for name, values in attributes.items() if name == "" or name in self.schema}

    def _verify(self) -> Iterator[Problem]:
        """Yield the problems of the whole, and of the samples and fields of this view."""
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
