"""The Loader and its orders."""

from __future__ import annotations

from .loader import Loader, OrderOption

__all__ = ["Loader", "OrderOption"]
