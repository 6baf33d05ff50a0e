"""Arrow's IPC files and streams: their layout, and what their headers claim held against their bytes.

The formats that are such files, or hold them in their own, read them through :class:`Part`.
"""

from __future__ import annotations

from .part import Part

__all__ = ["Part"]
