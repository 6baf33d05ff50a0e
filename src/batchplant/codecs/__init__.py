"""Bytes of a cell to a value and back: ``cells`` for every kind, ``media/`` for images, sound, video.

``msgpack``, ``example``, ``protobuf``, ``text`` and ``arrow/`` are encodings that
several formats share. Any layer above may call a codec; a codec knows no file and no format.

Public: ``from batchplant.codecs import image, audio, rle, video``.
"""

from __future__ import annotations

from .media import audio, image, rle, video

__all__ = ["audio", "image", "rle", "video"]
