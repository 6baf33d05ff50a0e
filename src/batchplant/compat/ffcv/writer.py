"""DatasetWriter: from a user's dataset to a .beton file."""

from __future__ import annotations

import functools
import importlib
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from ... import schema as kinds
from ...cli.terminal import progress_bar
from ...errors import BatchplantError, EncodeError, MissingLibraryError, OptionError
from ...formats.registry import create
from .custom import CustomWriter
from .fields import (
    BytesField,
    Field,
    FloatField,
    IntField,
    JSONField,
    NDArrayField,
    RGBImageField,
    TorchTensorField,
)
from .fields.bytes import as_uint8
from .types import (
    ALLOC_TABLE_TYPE,
    CURRENT_VERSION,
    TYPE_ID_HANDLER,
    FieldDescType,
    HeaderType,
    get_metadata_type,
)
from .utils import chunks, is_power_of_2
from .workers import Indexed, Job, Streamed, read_here, read_in_processes

MIN_PAGE_SIZE = 1 << 21
MAX_PAGE_SIZE = 1 << 32
# Samples that a process reads before it gets new ones: few, since the file is written in order.
TASK_ROWS = 8


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
        self.num_workers = num_workers if num_workers >= 1 else len(os.sched_getaffinity(0))
        self.num_samples = 0

    def from_indexed_dataset(
        self,
        dataset: Any,
        indices: Sequence[int] | None = None,
        chunksize: int = 100,
        shuffle_indices: bool = False,
    ) -> None:
        """Write the samples ``dataset[i]``: tuples with a value for every field.

        indices: only these, in this order. chunksize: how many a process reads at a stretch, at most.
        shuffle_indices: in random order, drawn with ``np.random``.
        """
        wanted = np.arange(len(dataset)) if indices is None else np.array(indices)
        if shuffle_indices:
            np.random.shuffle(wanted)
        self._write(
            Indexed(dataset), list(chunks(wanted.tolist(), max(1, min(chunksize, TASK_ROWS)))), len(wanted)
        )

    def from_webdataset(self, shards: Sequence[str], pipeline: Callable[[Any], Iterable[Any]]) -> None:
        """Write the samples of WebDataset shards; ``pipeline`` makes tuples of what WebDataset gives."""
        # Only where pointers have to be known at once; else a second pass over the shards is spared.
        length = sum(count_samples_in_shard(one, pipeline) for one in shards) if self._own() else None
        self._write(Streamed(functools.partial(from_shard, pipeline=pipeline)), list(shards), length)

    def _write(self, job: Job, tasks: list[Any], length: int | None) -> None:
        if self.num_workers > 1 and len(tasks) > 1:
            # Before any thread is there: a fork copies none, but their locks.
            samples = read_in_processes(job, tasks, self.num_workers)
        else:
            samples = read_here(job, tasks)
        first = next(samples, None)
        places: list[Any] = []
        try:
            with self._create(length) as out, progress_bar(os.path.basename(self.fname)) as advance:
                for where, sample in _chain(first, samples):
                    places.append(where)
                    out.append(self._named(sample, where))
                    advance(len(places), length or 0)
        except BatchplantError as error:
            # The writer counts what was written; the user knows the dataset's own numbers.
            if error.path is not None and error.sample is not None and isinstance(places[error.sample], int):
                error.sample = places[error.sample]
            raise error.at(path=self.fname) from error.__cause__
        finally:
            samples.close()
        self.num_samples = len(places)

    def _own(self) -> bool:
        """Whether there are fields that a user wrote."""
        return any(type(field) not in TYPE_ID_HANDLER.values() for field in self.fields.values())

    def _create(self, length: int | None) -> Any:
        if self._own():
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
                name: one.options() for name, one in self.fields.items() if isinstance(one, RGBImageField)
            },
        )

    def _named(self, sample: Any, where: Any) -> dict[str, Any]:
        if isinstance(sample, str | bytes | Mapping) or not isinstance(sample, Iterable):
            raise EncodeError(
                f"a sample is a tuple of values, not {type(sample).__name__}", sample=_number(where)
            )
        values = tuple(sample)
        if len(values) < len(self.fields):
            raise EncodeError(
                f"the sample has {len(values)} values, and there are {len(self.fields)} fields: "
                f"{', '.join(self.fields)}",
                sample=_number(where),
            )
        # More values than fields are left out, as FFCV does.
        return {
            name: _value(field, value)
            for (name, field), value in zip(self.fields.items(), values, strict=False)
        }


def from_shard(shard: str, pipeline: Callable[[Any], Iterable[Any]]) -> Iterable[Any]:
    """The samples that a pipeline makes of a shard."""
    try:
        webdataset = importlib.import_module("webdataset")
    except ImportError:
        raise MissingLibraryError("this needs WebDataset: pip install webdataset") from None
    return pipeline(webdataset.WebDataset(shard, shardshuffle=False))


def count_samples_in_shard(shard: str, pipeline: Callable[[Any], Iterable[Any]]) -> int:
    """How many samples a pipeline makes of a shard."""
    return sum(1 for _ in from_shard(shard, pipeline))


def _kind(field: Field) -> kinds.Field:
    """batchplant's field for one of FFCV's."""
    if isinstance(field, NDArrayField):
        return kinds.Tensor(str(field.dtype.name), field.shape)
    found: dict[type, kinds.Field] = {
        IntField: kinds.Int(),
        FloatField: kinds.Float(),
        BytesField: kinds.Bytes(),
        JSONField: kinds.Json(),
        RGBImageField: kinds.Image(),
    }
    return found[type(field)]


def _value(field: Field, value: Any) -> Any:
    """What FFCV's fields take and batchplant's are strict about."""
    if isinstance(field, NDArrayField) and type(field) in (NDArrayField, TorchTensorField):
        return field.fit(value)
    if type(field) is BytesField and isinstance(value, np.ndarray):
        return as_uint8(value)
    if type(field) is IntField and isinstance(value, float | np.floating) and float(value).is_integer():
        return int(value)
    return value


def _number(where: Any) -> int | None:
    return where if isinstance(where, int) else None


def _chain(first: Any, rest: Iterator[Any]) -> Iterator[Any]:
    if first is not None:
        yield first
        yield from rest


__all__ = [
    "ALLOC_TABLE_TYPE", "CURRENT_VERSION", "MAX_PAGE_SIZE", "MIN_PAGE_SIZE", "TYPE_ID_HANDLER",
    "DatasetWriter", "FieldDescType", "HeaderType", "count_samples_in_shard", "from_shard",
]  # fmt: skip
