"""DatasetWriter: datasets to .beton files, and FFCV's helpers."""

from __future__ import annotations

import functools
import importlib
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Self, TypeVar

import numpy as np

from ... import schema as kinds
from ...cli.terminal import progress_bar
from ...errors import BatchplantError, EncodeError, MissingLibraryError, OptionError
from ...formats.beton import short_names
from ...formats.registry import create
from ...storage import Partial
from ...storage.platform import cpu_count
from .beton_fields import (
    ALLOC_TABLE_TYPE,
    CURRENT_VERSION,
    CUSTOM,
    TYPE_ID_HANDLER,
    BytesField,
    Field,
    FieldDescType,
    FloatField,
    HeaderType,
    IntField,
    JSONField,
    NDArrayField,
    RGBImageField,
    TorchTensorField,
    as_uint8,
    get_metadata_type,
)
from .operations import numba
from .workers import Indexed, Job, Origin, Streamed, read_here, read_in_processes

T = TypeVar("T")

s_print_lock = threading.Lock()


def chunks(lst: Sequence[T], n: int) -> Iterator[Sequence[T]]:
    """Return chunks of ``n`` items; the last may be shorter."""
    return (lst[start : start + n] for start in range(0, len(lst), n))


def is_power_of_2(n: int) -> bool:
    return n > 0 and n & (n - 1) == 0


def align_to_page(ptr: int, page_size: int) -> int:
    """Round up to a multiple of the page size."""
    return -(-ptr // page_size) * page_size


def decode_null_terminated_string(bytes: Any) -> str:
    """Decode ASCII up to the first NUL."""
    return bytes.tobytes().partition(b"\0")[0].decode("ascii")


def s_print(*a: object, **b: Any) -> None:
    """Print, one thread at a time."""
    with s_print_lock:
        print(*a, **b)


def _convert_to_pointer(typingctx: Any, src: Any) -> Any:
    """Convert a number to a pointer to bytes, in compiled code."""
    types = numba().types
    if not isinstance(src, types.Integer):
        return None

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.inttoptr(args[0], context.get_value_type(signature.return_type))

    return types.CPointer(types.uint8)(types.uintp), codegen


def _refuse_pointer(typingctx: Any, src: Any) -> Any:
    raise MissingLibraryError("cast_int_to_byte_ptr works in compiled code alone: pip install numba")


cast_int_to_byte_ptr: Callable[..., Any] = (
    importlib.import_module("numba.extending").intrinsic(_convert_to_pointer) if numba() else _refuse_pointer
)


MIN_PAGE_SIZE = 1 << 21
MAX_PAGE_SIZE = 1 << 32
# Samples that a process reads before it gets new ones: few, since the file is written in order.
TASK_ROWS = 8


class _PageFullError(MemoryError):
    """A MemoryError, as in FFCV: fields may catch that of their ``malloc`` and must raise it again."""


class CustomWriter:
    """Writes a .beton file of a known number of samples through FFCV's interface to fields.

    It runs in one thread, because the ``encode`` of a user's field needs pointers at once.
    """

    def __init__(self, path: str, fields: Mapping[str, Field], page_size: int, length: int) -> None:
        self.path, self.fields, self._page_size = path, fields, page_size
        self._rows = np.zeros(length, dtype=get_metadata_type(fields.values()))
        self._table_offset = HeaderType.itemsize + len(fields) * FieldDescType.itemsize
        self._start = align_to_page(self._table_offset + self._rows.nbytes, page_size)
        self._page = np.zeros(page_size, dtype=np.uint8)
        self._pages = self._used = self._written = 0
        self._allocations: list[tuple[int, int, int]] = []
        self._partial = Partial(path, overwrite=True)
        self._file = self._partial.spool("file")

    def append(self, sample: Mapping[str, Any]) -> None:
        """Write one sample completely into the current page, or into a new one."""
        used, allocation_count = self._used, len(self._allocations)
        try:
            self._encode(sample)
        except _PageFullError:
            self._page[used:] = 0
            self._used = used
            del self._allocations[allocation_count:]
            self._flush()
            try:
                self._encode(sample)
            except _PageFullError as error:
                raise EncodeError(str(error), sample=self._written, path=self.path) from None
        self._written += 1

    def _encode(self, sample: Mapping[str, Any]) -> None:
        if self._written >= len(self._rows):
            raise EncodeError(f"there are more samples than the {len(self._rows)} that were counted")
        for number, (name, field) in enumerate(self.fields.items()):
            entry = self._rows[f"f{number}"][self._written : self._written + 1]
            try:
                field.encode(entry, sample[name], self._malloc)
            except _PageFullError:
                raise
            except BatchplantError as error:
                raise error.at(path=self.path, sample=self._written, field=name) from None
            # A user's code may raise anything.
            except Exception as error:
                raise EncodeError(
                    f"{type(error).__name__}: {error}", path=self.path, sample=self._written, field=name
                ) from error

    def _malloc(self, size: int) -> tuple[int, Any]:
        size = int(size)
        if self._used + size > self._page_size:
            raise _PageFullError(
                f"the sample needs more than a page of {self._page_size} bytes: raise page_size"
            )
        first, self._used = self._used, self._used + size
        ptr = self._start + self._pages * self._page_size + first
        self._allocations.append((self._written, ptr, size))
        return ptr, self._page[first : self._used]

    def _flush(self) -> None:
        if self._used:
            self._file.write_at(self._page, self._start + self._pages * self._page_size)
            self._pages, self._used = self._pages + 1, 0
            self._page[:] = 0

    def close(self) -> None:
        """Complete the file and give it its name."""
        try:
            if self._written != len(self._rows):
                raise EncodeError(
                    f"{len(self._rows)} samples were promised and {self._written} came", path=self.path
                )
            self._flush()
            end = self._start + self._pages * self._page_size
            self._file.resize(end)
            header = (CURRENT_VERSION, len(self.fields), self._page_size, self._written, end)
            self._file.write_at(np.array([header], dtype=HeaderType), 0)
            self._file.write_at(self._descriptors(), HeaderType.itemsize)
            self._file.write_at(self._rows, self._table_offset)
            self._file.write_at(np.array(self._allocations, dtype=ALLOC_TABLE_TYPE), end)
            self._partial.commit("file")
        except BaseException:
            self.abort()
            raise

    def _descriptors(self) -> Any:
        types = {handler: number for number, handler in TYPE_ID_HANDLER.items()}
        descriptors = np.zeros(len(self.fields), dtype=FieldDescType)
        for row, name, field in zip(descriptors, short_names(self.fields), self.fields.values(), strict=True):
            row["type_id"] = types.get(type(field), CUSTOM)
            row["name"][: len(name)] = np.frombuffer(name, dtype=np.uint8)
            row["arguments"][:] = field.to_binary()[0]
        return descriptors

    def abort(self) -> None:
        """Stop and leave no file."""
        self._partial.discard()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, error_type: type[BaseException] | None, *_: object) -> None:
        if error_type is None:
            self.close()
        else:
            self.abort()


class DatasetWriter:
    """Writes datasets to a .beton file, which appears under its name when it is complete.

    fname: the file. fields: the fields of a sample, in order. page_size: a power of two from 2 MiB on.
    num_workers: processes that read the dataset, and threads that encode (below 1: all cores).
    """

    def __init__(
        self,
        fname: str,
        fields: Mapping[str, Field],
        page_size: int = 4 * MIN_PAGE_SIZE,
        num_workers: int = -1,
    ) -> None:
        if not is_power_of_2(page_size) or not MIN_PAGE_SIZE <= page_size < MAX_PAGE_SIZE:
            raise OptionError(f"page_size must be a power of two from 2 MiB to 2 GiB, not {page_size}")
        self.fname, self.fields, self.page_size = os.fspath(fname), fields, page_size
        self.metadata_type = get_metadata_type(fields.values())
        self.num_workers = num_workers if num_workers >= 1 else cpu_count()
        self.num_samples = 0

    def from_indexed_dataset(
        self,
        dataset: Any,
        indices: Sequence[int] | None = None,
        chunksize: int = 100,
        shuffle_indices: bool = False,
    ) -> None:
        """Write the samples ``dataset[i]``: tuples with a value for every field.

        indices: only these samples, in this order. chunksize: most samples per task of a process.
        shuffle_indices: in random order, drawn with ``np.random``.
        """
        rows = np.arange(len(dataset)) if indices is None else np.array(indices)
        if shuffle_indices:
            np.random.shuffle(rows)
        self._write(
            Indexed(dataset), list(chunks(rows.tolist(), max(1, min(chunksize, TASK_ROWS)))), len(rows)
        )

    def from_webdataset(self, shards: Sequence[str], pipeline: Callable[[Any], Iterable[Any]]) -> None:
        """Write the samples of WebDataset shards; ``pipeline`` turns WebDataset's samples into tuples."""
        # Counting costs a pass over the shards; only custom fields need the number in advance.
        length = None
        if self._has_custom_fields():
            length = sum(count_samples_in_shard(shard, pipeline) for shard in shards)
        self._write(Streamed(functools.partial(from_shard, pipeline=pipeline)), list(shards), length)

    def _write(self, job: Job, tasks: Sequence[object], length: int | None) -> None:
        if self.num_workers > 1 and len(tasks) > 1:
            # Before any thread starts: a fork copies no threads, but their locks.
            samples = read_in_processes(job, tasks, self.num_workers)
        else:
            samples = read_here(job, tasks)
        first = next(samples, None)
        origins: list[Origin] = []
        try:
            with self._create(length) as out, progress_bar(os.path.basename(self.fname)) as advance:
                for origin, sample in _chain(first, samples):
                    origins.append(origin)
                    out.append(self._named(sample, origin))
                    advance(len(origins), length or 0)
        except BatchplantError as error:
            # Report the dataset's own index instead of the position in the file.
            if error.path is not None and error.sample is not None:
                number = _sample_number(origins[error.sample])
                error.sample = error.sample if number is None else number
            raise error.at(path=self.fname) from error.__cause__
        finally:
            samples.close()
        self.num_samples = len(origins)

    def _has_custom_fields(self) -> bool:
        return any(type(field) not in TYPE_ID_HANDLER.values() for field in self.fields.values())

    def _create(self, length: int | None) -> Any:
        if self._has_custom_fields():
            return CustomWriter(self.fname, self.fields, self.page_size, length or 0)
        return create(
            self.fname,
            {name: _kind(field) for name, field in self.fields.items()},
            format="beton",
            overwrite=True,
            length=length,
            workers=self.num_workers,
            page_size=self.page_size,
            images={
                name: field.options()
                for name, field in self.fields.items()
                if isinstance(field, RGBImageField)
            },
        )

    def _named(self, sample: object, origin: Origin) -> dict[str, Any]:
        if isinstance(sample, str | bytes | Mapping) or not isinstance(sample, Iterable):
            raise EncodeError(
                f"a sample is a tuple of values, not {type(sample).__name__}", sample=_sample_number(origin)
            )
        values = tuple(sample)
        if len(values) < len(self.fields):
            raise EncodeError(
                f"the sample has {len(values)} values, and there are {len(self.fields)} fields: "
                f"{', '.join(self.fields)}",
                sample=_sample_number(origin),
            )
        # FFCV ignores further values, too.
        return {
            name: _value(field, value)
            for (name, field), value in zip(self.fields.items(), values, strict=False)
        }


def from_shard(shard: str, pipeline: Callable[[Any], Iterable[Any]]) -> Iterable[Any]:
    """Return the samples that a pipeline makes of a shard."""
    try:
        webdataset = importlib.import_module("webdataset")
    except ImportError:
        raise MissingLibraryError("this needs WebDataset: pip install webdataset") from None
    return pipeline(webdataset.WebDataset(shard, shardshuffle=False))


def count_samples_in_shard(shard: str, pipeline: Callable[[Any], Iterable[Any]]) -> int:
    """Return the number of samples that a pipeline makes of a shard."""
    return sum(1 for _ in from_shard(shard, pipeline))


def _kind(field: Field) -> kinds.Field:
    """Return batchplant's field for one of FFCV's."""
    if isinstance(field, NDArrayField):
        return kinds.Tensor(str(field.dtype.name), field.shape)
    by_type: dict[type, kinds.Field] = {
        IntField: kinds.Int(),
        FloatField: kinds.Float(),
        BytesField: kinds.Bytes(),
        JSONField: kinds.Json(),
        RGBImageField: kinds.Image(),
    }
    return by_type[type(field)]


def _value(field: Field, value: Any) -> Any:
    """Convert a value that FFCV's field accepts to one that batchplant's stricter field accepts."""
    if isinstance(field, NDArrayField) and type(field) in (NDArrayField, TorchTensorField):
        return field.fit(value)
    if type(field) is BytesField and isinstance(value, np.ndarray):
        return as_uint8(value)
    if type(field) is IntField and isinstance(value, float | np.floating) and float(value).is_integer():
        return int(value)
    return value


def _sample_number(origin: object) -> int | None:
    return origin if isinstance(origin, int) else None


def _chain(first: Any, remaining: Iterator[Any]) -> Iterator[Any]:
    if first is not None:
        yield first
        yield from remaining
