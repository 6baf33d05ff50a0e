"""Patches: a dataset of boxes cut out of big arrays. The package's own ``__init__`` gives it to users."""

from __future__ import annotations

from .reader import Patches
from .volumes import VolumePatches

__all__ = ["Patches", "VolumePatches"]
