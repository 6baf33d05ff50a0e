"""libsndfile as a codec of bytes in memory, for :mod:`~batchplant.codecs.media.audio`."""

from __future__ import annotations

import contextlib
import functools
import io
import os
import sys
import threading
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import numpy as np

from ...errors import DecodeError, EncodeError, needs
from . import mp3
from .memory import Memory
from .wav import Samples

# No encoding gets more frames into a byte. So a header that lies takes little memory.
MOST_FRAMES_PER_BYTE = 1 << 13
# What libsndfile says where a FLAC file does not tell its length.
UNKNOWN = 1 << 62
# Its Vorbis encoder overruns the stack where it gets much more at once.
ENCODED_AT_ONCE = 4096
# The last page of an Ogg file, and whatever another program may have put behind it.
OGG_TAIL = 1 << 17


@contextlib.contextmanager
def opened(view: memoryview, encoding: str) -> Iterator[Any]:
    """libsndfile's view of a sound; whatever it raises becomes a DecodeError."""
    if not encoding:
        raise DecodeError("these bytes are not a sound that batchplant knows")
    if encoding in ("ogg", "opus"):
        _check_ogg(view)
    if encoding == "mp3":
        view = mp3.with_length(view)
    opener = _opener(library())
    try:
        with opener(Memory(view)) as file:
            frames = int(file.frames)
            if len(view) * MOST_FRAMES_PER_BYTE < frames < UNKNOWN:
                raise DecodeError(f"the header says {frames} frames, which {len(view)} bytes cannot hold")
            yield file
    except DecodeError:
        raise
    except MemoryError:
        raise DecodeError("there is not enough memory for its samples") from None
    # The library has its own exceptions, and cffi others.
    except Exception as error:
        message = str(error).partition(">: ")[2] or str(getattr(error, "error_string", "") or error)
        raise DecodeError(f"this {encoding} sound cannot be decoded: {message.strip()}") from None


def _check_ogg(view: memoryview) -> None:
    """To libsndfile a file that was cut is just shorter. But its last page is not marked as the last."""
    tail = bytes(view[-OGG_TAIL:])
    page = tail.rfind(b"OggS")
    sizes = tail[page + 27 : page + 27 + tail[page + 26]] if 0 <= page < len(tail) - 27 else b""
    complete = bool(sizes) and page + 27 + tail[page + 26] + sum(sizes) <= len(tail)
    if not complete or not tail[page + 5] & 4:
        raise DecodeError("an Ogg file that ends before its last page")


def last_page(view: memoryview) -> int:
    """The frame at which the last page of an Ogg file begins; 0 where that is not told."""
    tail = bytes(view[-OGG_TAIL:])
    page = tail.rfind(b"OggS")
    while (page := tail.rfind(b"OggS", 0, max(0, page))) >= 0:
        end = int.from_bytes(tail[page + 6 : page + 14], "little", signed=True)
        # -1: no packet ends on it.
        if end >= 0:
            return end
    return 0


def library() -> ModuleType:
    # OSError: the package is there, and the library it wraps is not.
    with needs("this sound needs soundfile", "audio"):
        import soundfile
    return soundfile


@functools.cache
def _opener(module: ModuleType) -> Any:
    """Class that opens files for sequential reads: soundfile itself seeks after every read."""

    class Straight(module.SoundFile):  # type: ignore[name-defined,misc]
        def seekable(self) -> bool:
            return False

    return Straight


def _after_fork() -> None:
    """soundfile opens files under a lock, which a thread of the parent may have held at the fork."""
    opener = getattr(sys.modules.get("soundfile"), "SoundFile", None)
    if opener is not None and hasattr(opener, "_sf_error_lock"):
        opener._sf_error_lock = threading.Lock()


os.register_at_fork(after_in_child=_after_fork)


def encode(samples: Samples, rate: int, encoding: str, subtype: str | None) -> bytes:
    module = library()
    out = io.BytesIO()
    if not len(samples):
        raise EncodeError(f"{encoding} cannot hold a sound without frames; use wav")
    container = {"opus": "OGG"}.get(encoding, encoding.upper())
    kind = subtype or {"ogg": "VORBIS", "opus": "OPUS"}.get(encoding)
    try:
        with module.SoundFile(out, "w", rate, samples.shape[1], subtype=kind, format=container) as file:
            for start in range(0, len(samples), ENCODED_AT_ONCE):
                file.write(np.ascontiguousarray(samples[start : start + ENCODED_AT_ONCE]))
    # As above.
    except Exception as error:
        raise EncodeError(f"{encoding}: {error}") from None
    return out.getvalue()
