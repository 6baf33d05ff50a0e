"""Reader of the tables of a .beton file, the file's fields for batchplant's Loader, and its memory."""

from __future__ import annotations

import functools
import os
from abc import ABC, ABCMeta, abstractmethod
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

import numpy as np
import numpy.typing as npt

from ...errors import DamagedError, OptionError
from ...formats.beton import MEMBERS, BetonReader
from ...schema import Bytes, Int, Schema
from ...schema import Field as Kind
from ...schema.columns import I64, AnyDType, Columns
from .beton_fields import (
    ALLOC_TABLE_TYPE,
    CURRENT_VERSION,
    CUSTOM,
    Field,
    FieldDescType,
    HeaderType,
    get_handlers,
    get_metadata_type,
)
from .operations import Compiler, numba

# A field that every file has: the sample numbers, for decoders that read the file themselves. No field of a
# file has this name, because names contain no line break.
IDS = "sample\nnumbers"


class FfcvSource(BetonReader):
    """A .beton file as FFCV sees it: FFCV's types only, and custom fields as their entries in the table."""

    def __init__(self, path: str, *, members: Mapping[str, AnyDType] | None = None) -> None:
        self._members = dict(members or {})
        super().__init__(path)
        self.schema = Schema({**self.schema, IDS: Int()})

    def _fields(self, descriptors: Any, custom: dict[str, Kind]) -> tuple[Schema, list[int]]:
        names = [descriptor["name"].decode("latin-1") for descriptor in descriptors]
        missing = [
            name
            for name, descriptor in zip(names, descriptors, strict=True)
            if descriptor["type"] == CUSTOM and name not in self._members
        ]
        if missing:
            raise OptionError(
                f"the field {missing[0]!r} is of a custom kind; say which with custom_fields="
                f"{{{missing[0]!r}: ItsField}}",
                path=self.path,
            )
        self._entries = [self._members.get(name) for name in names]
        fields, types = super()._fields(descriptors, dict.fromkeys(self._members, Bytes()))
        # JSON stays text, as in FFCV.
        fields = Schema((name, Bytes() if field.kind == "json" else field) for name, field in fields.items())
        return fields, [
            CUSTOM if name in self._members else kind for name, kind in zip(names, types, strict=True)
        ]

    def _row_dtype(self) -> AnyDType:
        entries = [
            entry if entry is not None else MEMBERS[kind]
            for entry, kind in zip(self._entries, self.types, strict=True)
        ]
        return np.dtype([(f"f{number}", entry) for number, entry in enumerate(entries)], align=True)

    def _noted(self, at: int) -> Schema | None:
        """Return the stored names only, which may be longer than FFCV's."""
        stored = super()._noted(at) if CUSTOM not in self.types else None
        return None if stored is None else Schema(zip(stored, self.schema.values(), strict=True))

    def _read(self, indices: I64, fields: Sequence[str]) -> Columns:
        columns = super()._read(indices, [name for name in fields if name != IDS])
        if IDS in fields:
            columns[IDS] = indices.astype(np.int64)
        return columns


class Reader:
    """Header, fields, table and allocations of a file. The tables are views of the mapped file."""

    def __init__(self, fname: Any, custom_handlers: Mapping[str, Any] = {}) -> None:
        self._fname = str(fname)
        self._custom_handlers = custom_handlers
        self.read_header()
        self.read_field_descriptors()
        self.read_metadata()
        self.read_allocation_table()

    @property
    def file_name(self) -> str:
        return self._fname

    def _table(self, dtype: AnyDType, offset: int, count: int) -> Any:
        if not count:
            return np.empty(0, dtype=dtype)
        return np.asarray(np.memmap(self._fname, dtype, mode="r", offset=offset, shape=(count,)))

    def read_header(self) -> None:
        # Check the header before trusting any offset in it.
        try:
            header = self._table(HeaderType, 0, 1)[0]
        except ValueError:
            raise DamagedError("the file has no whole header", path=self._fname) from None
        if header["version"] != CURRENT_VERSION:
            raise DamagedError(
                f"version {header['version']} is not FFCV's version {CURRENT_VERSION}", path=self._fname
            )
        self.header = header
        self.num_samples, self.page_size = int(header["num_samples"]), int(header["page_size"])
        self.num_fields = int(header["num_fields"])

    def read_field_descriptors(self) -> None:
        descriptors = self._table(FieldDescType, HeaderType.itemsize, self.num_fields)
        self.field_descriptors = descriptors
        stored = [row["name"].tobytes().rstrip(b"\0").decode("latin-1") for row in descriptors]
        custom: dict[str, Field] = {
            name: self._custom_handlers[name].from_binary(row["arguments"])
            for name, row in zip(stored, descriptors, strict=True)
            if name in self._custom_handlers
        }
        self.source = FfcvSource(
            self._fname, members={name: field.metadata_type for name, field in custom.items()}
        )
        self.field_names = [name for name in self.source.schema if name != IDS]
        handlers = get_handlers(descriptors)
        self.handlers: dict[str, Any] = {
            name: custom.get(short, handler)
            for name, short, handler in zip(self.field_names, stored, handlers, strict=True)
        }
        # Names of the fields that users wrote.
        self.custom = {name for name, short in zip(self.field_names, stored, strict=True) if short in custom}
        self.metadata_type = get_metadata_type(self.handlers.values())

    def read_metadata(self) -> None:
        offset = HeaderType.itemsize + self.field_descriptors.nbytes
        self.metadata = self._table(self.metadata_type, offset, self.num_samples)

    def read_allocation_table(self) -> None:
        offset = int(self.header["alloc_table_ptr"])
        table_bytes = os.path.getsize(self._fname) - offset
        self.alloc_table = self._table(ALLOC_TABLE_TYPE, offset, table_bytes // ALLOC_TABLE_TYPE.itemsize)


class MemoryContext(AbstractContextManager[Any], metaclass=ABCMeta):
    """Memory that compiled decoders read from during an epoch."""

    @property
    @abstractmethod
    def state(self) -> Any:
        """Last argument of a decoder's function."""

    def start_batch(self, batch: int) -> None:
        """Called before a batch is read."""

    def __exit__(self, *_: object) -> None:
        return None


class MappedContext(MemoryContext):
    """The mapped file, and the allocated pointers in ascending order with their sizes."""

    def __init__(self, manager: MemoryManager) -> None:
        self.manager = manager

    @property
    def state(self) -> Any:
        return self.manager.data, self.manager.ptrs, self.manager.sizes


class MemoryManager(ABC):
    """Reads the bytes at a pointer. Tables that few operations need are computed on first use."""

    def __init__(self, reader: Any) -> None:
        self.reader = reader

    @functools.cached_property
    def data(self) -> npt.NDArray[np.uint8]:
        return np.asarray(np.memmap(self.reader.file_name, np.uint8, mode="r"))

    @functools.cached_property
    def _by_ptr(self) -> Any:
        table = self.reader.alloc_table
        return table[np.lexsort([table["size"], table["ptr"]])]

    @functools.cached_property
    def ptrs(self) -> npt.NDArray[np.uint64]:
        return np.ascontiguousarray(self._by_ptr["ptr"])

    @functools.cached_property
    def sizes(self) -> npt.NDArray[np.uint64]:
        return np.ascontiguousarray(self._by_ptr["size"])

    @functools.cached_property
    def ptr_to_size(self) -> dict[int, int]:
        return dict(zip(self.ptrs.tolist(), self.sizes.tolist(), strict=True))

    @functools.cached_property
    def sample_to_pages(self) -> dict[int, set[int]]:
        groups: dict[int, set[int]] = defaultdict(set)
        for sample, page in self._samples_and_pages():
            groups[sample].add(page)
        return groups

    @functools.cached_property
    def page_to_samples(self) -> dict[int, set[int]]:
        groups: dict[int, set[int]] = defaultdict(set)
        for sample, page in self._samples_and_pages():
            groups[page].add(sample)
        return groups

    def _samples_and_pages(self) -> Iterator[tuple[int, int]]:
        table = self.reader.alloc_table
        pages = table["ptr"] // np.uint64(self.reader.page_size)
        return zip(table["sample_id"].tolist(), pages.tolist(), strict=True)

    @abstractmethod
    def schedule_epoch(self, batches: object) -> MemoryContext:
        """Return the memory that decoders read from while these batches are made."""

    def compile_reader(self) -> Callable[..., Any]:
        """Return a function of (pointer, state) that returns the bytes; compiled where numba is installed."""

        def read(address: Any, mem_state: Any) -> Any:
            # The last allocation at that pointer: an empty one may share it.
            index = np.searchsorted(mem_state[1], address, side="right") - 1
            return mem_state[0][address : address + mem_state[2][index]]

        return Compiler.compile(read)

    @property
    def state_type(self) -> Any:
        """Numba type of the state, None without numba."""
        module = numba()
        if module is None:
            return None
        numbers = module.types.Array(module.uint64, 1, "C")
        return module.types.Tuple([module.types.Array(module.uint8, 1, "C", readonly=True), numbers, numbers])


class OSCacheContext(MappedContext):
    """The mapped file."""


class OSCacheManager(MemoryManager):
    """Leaves it to the operating system which pages stay in memory."""

    def schedule_epoch(self, schedule: object) -> MemoryContext:
        return OSCacheContext(self)


class ProcessCacheContext(MappedContext):
    """The mapped file, and the batches that will be read."""

    def __init__(self, manager: MemoryManager, batches: object) -> None:
        super().__init__(manager)
        self.batches = batches


class ProcessCacheManager(MemoryManager):
    """For files that are larger than the memory: use it with the quasi-random order."""

    def schedule_epoch(self, batches: object) -> MemoryContext:
        return ProcessCacheContext(self, batches)
