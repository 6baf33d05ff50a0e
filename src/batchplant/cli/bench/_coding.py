"""Encode and decode one picture in one way, and see what it cost: what `bench codecs` adds up."""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from ... import _native, limits
from ...codecs.cells import decode_cell
from ...codecs.media import image
from ...columns import Ragged, as_bytes
from ...errors import DataError, DecodeError, EncodeError
from ...reader import Reader
from ...schema import Image

RAW = "raw"


@dataclasses.dataclass(frozen=True)
class Candidate:
    """A way to store a picture."""

    name: str
    encoding: str
    quality: int | None = None

    @property
    def lossless(self) -> bool:
        return self.quality is None

    def encode(self, pixels: image.Pixels) -> bytes:
        if self.encoding == RAW:
            return pixels.tobytes()
        return image.encode(pixels, self.encoding, quality=self.quality or 90, lossless=self.lossless)


class Tally:
    """What was measured of one candidate so far."""

    def __init__(self, rounds: int) -> None:
        self.bytes = 0
        # Of all pictures, by round.
        self.encode, self.decode = np.zeros(rounds), np.zeros(rounds)
        self.psnr: list[float] = []
        self.worst = 0
        self.refused: list[str] = []


def load(
    reader: Reader, field: str, row: int, *, to_rgb: bool, mask: bool = False
) -> tuple[Any, tuple[int, ...] | None, image.Pixels]:
    """The stored cell, its shape where it is raw pixels, and its pixels."""
    column = reader.read([row], [field])[field]
    assert isinstance(column, Ragged)
    cell = column[0]
    if cell is None:
        raise DecodeError("there is no picture")
    shape = (
        tuple(int(size) for size in column.shape[0]) if column.raw[0] and column.shape is not None else None
    )
    if shape is not None:
        pixels = decode_cell(Image(mode=None), column, 0)
        return cell, shape, image.pixels_to_rgb(pixels) if to_rgb else pixels
    if to_rgb:
        return cell, None, image.to_rgb(cell)
    if image.header(cell).mode == "CMYK":
        raise DecodeError("the picture is CMYK, which nothing else here holds; --to-rgb converts it")
    pixels = image.decode(cell, mask=mask)
    if pixels.dtype not in (np.uint8, np.uint16) or image.expand(pixels).shape[2] > 4:
        raise DecodeError(
            f"{image.mode_of(pixels)} pixels are for TIFF alone, so there is nothing to compare"
        )
    return cell, None, pixels


def one_way(engine: _native.Engine, way: Candidate, pixels: image.Pixels, tally: Tally, rounds: int) -> None:
    """Add one picture to a candidate's tally."""
    cell = b""
    spent = np.zeros(rounds)
    try:
        for number in range(rounds):
            began = time.process_time()
            cell = way.encode(pixels)
            spent[number] = time.process_time() - began
        shape = image.expand(pixels).shape if way.encoding == RAW and pixels.dtype == np.uint8 else None
        if way.encoding == RAW and shape is None:
            raise EncodeError(f"raw pixels are of 8 bits, not {pixels.dtype}")
        decoded, seconds = watch(engine, as_bytes(cell), shape, rounds)
    except DataError as error:
        tally.refused.append(error.message)
        return
    loss, most = difference(pixels, decoded)
    tally.bytes += len(cell)
    tally.encode += spent
    tally.decode += seconds
    tally.psnr.append(loss)
    tally.worst = max(tally.worst, most)


def watch(
    engine: _native.Engine, cell: Any, shape: tuple[int, ...] | None, rounds: int
) -> tuple[image.Pixels, Any]:
    """The decoded pixels, and the processor time of each round."""
    decode = decoder(engine, cell, shape)
    decoded = decode()
    seconds = np.zeros(rounds)
    for number in range(rounds):
        began = time.process_time()
        decode()
        seconds[number] = time.process_time() - began
    return decoded, seconds


def decoder(engine: _native.Engine, cell: Any, shape: tuple[int, ...] | None) -> Callable[[], Any]:
    """As the Loader decodes: in the engine where that can, else as `image.decode` does."""
    zero = np.zeros(1, dtype=np.int64)
    where = [cell], zero.astype(np.int32), zero, np.array([len(cell)], dtype=np.int64)
    shapes = None if shape is None else np.array([shape], dtype=np.int32)
    if shape is None:
        told = image.header(cell)
        shape = told.height, told.width, {"L": 1, "RGB": 3}.get(told.mode, 0) if told.bits == 8 else 0
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
    one, two = image.expand(pixels), image.expand(decoded)
    if one.shape[2] != two.shape[2]:
        # WebP knows RGB and RGBA alone, and no alpha where all is opaque.
        one, two = _rgba(one), _rgba(two)
    if one.shape != two.shape:
        raise DecodeError(f"it was {pixels.shape} and decodes to {decoded.shape}")
    error = np.abs(one.astype(np.int32) - two)
    mean = float(np.square(error, dtype=np.float64).mean())
    top = 65535 if pixels.dtype == np.uint16 else 255
    return (10 * math.log10(top * top / mean) if mean else math.inf), int(error.max())


def _rgba(pixels: image.Pixels) -> image.Pixels:
    """Gray three times, opaque where there is no alpha."""
    colours = pixels[:, :, :1] if pixels.shape[2] < 3 else pixels[:, :, :3]
    alpha = pixels[:, :, -1:] if pixels.shape[2] in (2, 4) else np.full_like(pixels[:, :, :1], 255)
    return np.concatenate([np.broadcast_to(colours, (*pixels.shape[:2], 3)), alpha], axis=2)
