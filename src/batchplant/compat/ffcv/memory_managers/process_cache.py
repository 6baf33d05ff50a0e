"""The manager of ``os_cache=False``, which maps the file too."""

from __future__ import annotations

from .base import MappedContext, MemoryContext, MemoryManager


class ProcessCacheContext(MappedContext):
    """The mapped file, and the batches that will be read."""

    def __init__(self, manager: MemoryManager, batches: object) -> None:
        super().__init__(manager)
        self.batches = batches


class ProcessCacheManager(MemoryManager):
    """For files that are larger than the memory: use it with the quasi-random order."""

    def schedule_epoch(self, batches: object) -> MemoryContext:
        return ProcessCacheContext(self, batches)
