"""Managers of a file's memory."""

from __future__ import annotations

from .base import MemoryContext, MemoryManager
from .os_cache import OSCacheManager
from .process_cache import ProcessCacheManager

__all__ = ["MemoryContext", "MemoryManager", "OSCacheManager", "ProcessCacheManager"]
