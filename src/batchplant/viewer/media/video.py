"""Videos: what they say of themselves, single frames, and a strip of frames along the time."""

from __future__ import annotations

from typing import Any

from ...codecs import image
from ...codecs.media.video import Clip, encoding_of

# What browsers have a player for, by encoding; they try, and the frames are shown anyway.
PLAYED = {"mp4": "video/mp4", "mov": "video/mp4", "webm": "video/webm", "mkv": "video/x-matroska"}
# Larger pictures of frames are made smaller.
LARGEST = 1280


def shape_of(clip: Clip) -> tuple[int, int]:
    """Height and width as a player shows it: phones store their videos turned."""
    return (clip.width, clip.height) if clip.rotation % 180 else (clip.height, clip.width)


def facts(clip: Clip) -> dict[str, Any]:
    height, width = shape_of(clip)
    return {
        "encoding": clip.encoding, "codec": clip.codec, "fps": clip.fps, "frames": clip.frames,
        "width": width, "height": height, "seconds": clip.duration,
        "sound": clip.audio_rate is not None, "plays": clip.encoding in PLAYED,
    }  # fmt: skip


def frame(clip: Clip, number: int, largest: int) -> bytes:
    """One frame as JPEG, no side longer than ``largest``."""
    height, width = shape_of(clip)
    longest = max(height, width, largest)
    size = max(1, height * largest // longest), max(1, width * largest // longest)
    number = min(max(0, number), clip.frames - 1)
    return image.encode(clip.read(number, 1, size=size, upright=True)[0], "jpeg", quality=85)


def strip(clip: Clip, count: int, height: int) -> bytes:
    """Frames at equal distances in one picture, from left to right."""
    tall, wide = shape_of(clip)
    count = min(count, clip.frames)
    stride = clip.frames // count
    # However odd its shape, something of it is to be seen.
    width = min(max(8, round(wide * height / tall)), 8 * height)
    pictures = clip.read(stride // 2, count, stride=stride, size=(height, width), upright=True)
    return image.encode(pictures.swapaxes(0, 1).reshape(height, -1, 3), "jpeg", quality=80)


__all__ = ["PLAYED", "Clip", "encoding_of", "facts", "frame", "strip"]
