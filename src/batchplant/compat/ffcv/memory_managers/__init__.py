"""Where the bytes of a file come from."""

from __future__ import annotations

from .base import MemoryContext, MemoryManager
from .os_cache import OSCacheManager
from .process_cache import ProcessCacheManager

__all__ = ["MemoryContext", "MemoryManager", "OSCacheManager", "ProcessCacheManager"]
