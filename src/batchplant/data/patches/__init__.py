"""Patches and clips: datasets of boxes cut out of big arrays, and of runs of frames of videos.

The package's own ``__init__`` gives them to users.
"""

from __future__ import annotations

from .reader import Patches
from .videos import VideoClips
from .volumes import VolumePatches

__all__ = ["Patches", "VideoClips", "VolumePatches"]
