"""Access to the bytes at a pointer: every manager maps the file."""

from __future__ import annotations

import functools
from abc import ABC, ABCMeta, abstractmethod
from collections import defaultdict
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import numpy as np
import numpy.typing as npt

from ..pipeline.compiler import Compiler, numba


class MemoryContext(AbstractContextManager, metaclass=ABCMeta):  # type: ignore[type-arg]
    """Memory that compiled decoders read from during an epoch."""

    @property
    @abstractmethod
    def state(self) -> Any:
        """Last argument of a decoder's function."""

    @abstractmethod
    def __enter__(self) -> Any:
        return self

    def start_batch(self, batch: int) -> None:
        """Called before a batch is read."""

    @abstractmethod
    def __exit__(self, *_: object) -> None:
        return None


class MappedContext(MemoryContext):
    """The mapped file, and the allocated pointers in ascending order with their sizes."""

    def __init__(self, manager: MemoryManager) -> None:
        self.manager = manager

    @property
    def state(self) -> Any:
        return self.manager.data, self.manager.ptrs, self.manager.sizes

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *_: object) -> None:
        return None


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
        return self._group("sample_id")

    @functools.cached_property
    def page_to_samples(self) -> dict[int, set[int]]:
        return self._group("page")

    def _group(self, key: str) -> dict[int, set[int]]:
        table = self.reader.alloc_table
        pages = (table["ptr"] // np.uint64(self.reader.page_size)).tolist()
        groups: dict[int, set[int]] = defaultdict(set)
        for sample, page in zip(table["sample_id"].tolist(), pages, strict=True):
            if key == "page":
                groups[page].add(sample)
            else:
                groups[sample].add(page)
        return groups

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
