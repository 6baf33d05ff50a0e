"""Encode and decode one image in one way, and see what it cost: what `bench codecs` adds up."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import io
import math
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from ... import _native
from ...codecs.cells import decode_cell
from ...codecs.media import image, pillow
from ...data.reader import Reader
from ...errors import DataError, DecodeError, EncodeError, MissingLibraryError
from ...schema import Image
from ...schema.columns import as_bytes
from ...storage import limits

RAW = "raw"
# What Pillow may know and the Loader does not, by the name that Pillow has for it.
BY_PILLOW = {"avif": "AVIF", "jxl": "JPEG XL"}
# Of one image in one way: who takes longer is not asked again, for a moment more or less does not matter.
SLOW = 0.2
# Windows of 8 x 8 pixels, one for every 4: as video encoders measure SSIM.
STEP = 4


@dataclasses.dataclass(frozen=True)
class Candidate:
    """A way to store an image."""

    name: str
    encoding: str
    quality: int | None = None

    @property
    def lossless(self) -> bool:
        return self.quality is None

    def encode(self, pixels: image.Pixels) -> bytes:
        if self.encoding == RAW:
            return pixels.tobytes()
        if self.encoding in BY_PILLOW:
            if pixels.dtype != np.uint8:
                raise EncodeError(f"Pillow writes {BY_PILLOW[self.encoding]} of 8 bits, not {pixels.dtype}")
            return pillow.save(
                image.squeeze(pixels), self.encoding, image.mode_of(pixels), quality=self.quality
            )
        return image.encode(pixels, self.encoding, quality=self.quality or 90, lossless=self.lossless)


def pillow_has(encoding: str) -> bool:
    """True where Pillow, or an installed plug-in of it, both reads and writes such images."""
    try:
        library = pillow.library()
    except MissingLibraryError:
        return False
    if encoding == "jxl":
        with contextlib.suppress(ImportError):
            importlib.import_module("pillow_jxl")
    library.init()
    return encoding.upper() in library.SAVE and encoding.upper() in library.OPEN


class Tally:
    """Measurements of a candidate so far."""

    def __init__(self, rounds: int) -> None:
        self.bytes = self.pixels = 0
        # Of all images, by round.
        self.encode, self.decode = np.zeros(rounds), np.zeros(rounds)
        self.psnr: list[float] = []
        self.ssim: list[float] = []
        self.worst = 0
        self.refused: list[str] = []


def load(
    reader: Reader, field: str, row: int, *, to_rgb: bool, mask: bool = False
) -> tuple[Any, tuple[int, ...] | None, image.Pixels]:
    """The stored cell, its shape where it is raw pixels, and its pixels."""
    column = reader.read([row], [field]).ragged(field)
    cell = column[0]
    if cell is None:
        raise DecodeError("there is no image")
    shape = (
        tuple(int(size) for size in column.shape[0]) if column.raw[0] and column.shape is not None else None
    )
    if shape is not None:
        pixels = decode_cell(Image(mode=None), column, 0)
        return cell, shape, image.pixels_to_rgb(pixels) if to_rgb else pixels
    if to_rgb:
        return cell, None, image.to_rgb(cell)
    if image.header(cell).mode == "CMYK":
        raise DecodeError("the image is CMYK, which nothing else here holds; --to-rgb converts it")
    pixels = image.decode(cell, mask=mask)
    if pixels.dtype not in (np.uint8, np.uint16) or image.expand(pixels).shape[2] > 4:
        raise DecodeError(
            f"{image.mode_of(pixels)} pixels are for TIFF alone, so there is nothing to compare"
        )
    return cell, None, pixels


def one_way(engine: _native.Engine, way: Candidate, pixels: image.Pixels, tally: Tally, rounds: int) -> None:
    """Add one image to a candidate's tally."""
    cell = b""
    spent = np.zeros(rounds)
    try:
        for number in range(rounds):
            began = time.process_time()
            cell = way.encode(pixels)
            spent[number] = time.process_time() - began
            if spent[number] > SLOW:
                spent[number:] = spent[number]
                break
        shape = image.expand(pixels).shape if way.encoding == RAW and pixels.dtype == np.uint8 else None
        if way.encoding == RAW and shape is None:
            raise EncodeError(f"raw pixels are of 8 bits, not {pixels.dtype}")
        decode = (
            decode_by_pillow(cell) if way.encoding in BY_PILLOW else decoder(engine, as_bytes(cell), shape)
        )
        decoded, seconds = watch(decode, rounds)
    except DataError as error:
        tally.refused.append(error.message)
        return
    loss, most = difference(pixels, decoded)
    tally.bytes += len(cell)
    tally.pixels += pixels.shape[0] * pixels.shape[1]
    tally.encode += spent
    tally.decode += seconds
    tally.psnr.append(loss)
    tally.ssim.append(ssim(pixels, decoded))
    tally.worst = max(tally.worst, most)


def watch(decode: Callable[[], image.Pixels], rounds: int) -> tuple[image.Pixels, Any]:
    """The decoded pixels, and the processor time of each round."""
    decoded = decode()
    seconds = np.zeros(rounds)
    for number in range(rounds):
        began = time.process_time()
        decode()
        seconds[number] = time.process_time() - began
        if seconds[number] > SLOW:
            seconds[number:] = seconds[number]
            break
    return decoded, seconds


def decode_by_pillow(cell: bytes) -> Callable[[], image.Pixels]:
    """Images that the bench made itself, so that nothing about them has to be checked."""
    return lambda: np.asarray(pillow.library().open(io.BytesIO(cell)))


def decoder(engine: _native.Engine, cell: Any, shape: tuple[int, ...] | None) -> Callable[[], Any]:
    """As the Loader decodes: in the engine where that can, else as `image.decode` does."""
    zero = np.zeros(1, dtype=np.int64)
    where = [cell], zero.astype(np.int32), zero, np.array([len(cell)], dtype=np.int64)
    shapes = None if shape is None else np.array([shape], dtype=np.int32)
    if shape is None:
        header = image.header(cell)
        shape = header.height, header.width, {"L": 1, "RGB": 3}.get(header.mode, 0) if header.bits == 8 else 0
    # Absurd sizes are refused by who decodes; until then nothing is allocated for them.
    if 0 in shape or math.prod(shape) > limits.allowed(len(cell)):
        return lambda: image.decode(cell)
    out = np.empty((1, *shape), dtype=np.uint8)

    def native() -> image.Pixels | None:
        status, errors, _ = engine.decode(*where, shapes, None, None, out, layout="nhwc", filter="area")
        if errors:
            raise DecodeError(errors[0][1])
        return None if status[0] else image.squeeze(out[0])

    return native if native() is not None else lambda: image.decode(cell)


def difference(pixels: image.Pixels, decoded: image.Pixels) -> tuple[float, int]:
    """PSNR in dB (infinite where nothing differs) and the largest error."""
    first, second = _alike(pixels, decoded)
    error = np.abs(first.astype(np.int32) - second)
    mean = float(np.square(error, dtype=np.float64).mean())
    top = _top(pixels)
    return (10 * math.log10(top * top / mean) if mean else math.inf), int(error.max())


def ssim(pixels: image.Pixels, decoded: image.Pixels) -> float:
    """Similarity of two images, 1 where they are the same: the mean SSIM of their brightness.

    Of windows of 8 x 8 pixels; an image smaller than that is one window.
    """
    first, second = (_brightness(each) for each in _alike(pixels, decoded))
    means = [_window_means(each) for each in (first, second, first * first, second * second, first * second)]
    left, right, left_square, right_square, both = means
    calm, noise = (0.01 * _top(pixels)) ** 2, (0.03 * _top(pixels)) ** 2
    alike = (2 * left * right + calm) * (2 * (both - left * right) + noise)
    most = (left**2 + right**2 + calm) * (left_square - left**2 + right_square - right**2 + noise)
    return float((alike / most).mean())


def _alike(pixels: image.Pixels, decoded: image.Pixels) -> tuple[image.Pixels, image.Pixels]:
    """Both with the same channels."""
    first, second = image.expand(pixels), image.expand(decoded)
    if first.shape[2] != second.shape[2]:
        # WebP knows RGB and RGBA alone, and no alpha where all is opaque.
        first, second = _rgba(first), _rgba(second)
    if first.shape != second.shape:
        raise DecodeError(f"it was {pixels.shape} and decodes to {decoded.shape}")
    return first, second


def _top(pixels: image.Pixels) -> int:
    return 65535 if pixels.dtype == np.uint16 else 255


def _brightness(pixels: image.Pixels) -> Any:
    if pixels.shape[2] < 3:
        return pixels[:, :, 0].astype(np.float64)
    return pixels[:, :, :3] @ np.array([0.299, 0.587, 0.114])


def _window_means(values: Any) -> Any:
    height, width = (size - size % STEP for size in values.shape)
    if min(height, width) < 2 * STEP:
        return values.mean()
    tiles = values[:height, :width].reshape(height // STEP, STEP, width // STEP, STEP).mean(axis=(1, 3))
    return (tiles[:-1, :-1] + tiles[1:, :-1] + tiles[:-1, 1:] + tiles[1:, 1:]) / 4


def _rgba(pixels: image.Pixels) -> image.Pixels:
    """Gray three times, opaque where there is no alpha."""
    colours = pixels[:, :, :1] if pixels.shape[2] < 3 else pixels[:, :, :3]
    alpha = pixels[:, :, -1:] if pixels.shape[2] in (2, 4) else np.full_like(pixels[:, :, :1], 255)
    return np.concatenate([np.broadcast_to(colours, (*pixels.shape[:2], 3)), alpha], axis=2)
