"""Header of a video, without its packets: quick, whatever its length."""

from __future__ import annotations

from typing import Any, NamedTuple

from .container import encoding_of, opened, video_of


class Header(NamedTuple):
    """``fps`` and ``seconds`` are what the file claims, None where it claims nothing; a clip looks closer."""

    encoding: str
    fps: float | None
    width: int
    height: int
    seconds: float | None = None


def header(data: Any) -> Header:
    """The header of one video; DecodeError where it is none."""
    view = memoryview(data)
    with opened(view) as container:
        stream = video_of(container)
        rate = float(stream.average_rate or 0)
        size = stream.codec_context
        # In microseconds.
        seconds = container.duration / 1e6 if (container.duration or 0) > 0 else None
        return Header(encoding_of(view) or "", rate if rate > 0 else None, size.width, size.height, seconds)
