"""The manager of ``os_cache=True``."""

from __future__ import annotations

from .base import MappedContext, MemoryContext, MemoryManager


class OSCacheContext(MappedContext):
    """The mapped file."""


class OSCacheManager(MemoryManager):
    """Leaves it to the operating system which pages stay in memory."""

    def schedule_epoch(self, schedule: object) -> MemoryContext:
        return OSCacheContext(self)
