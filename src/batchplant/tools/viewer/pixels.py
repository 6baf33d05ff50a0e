"""Images for the browser: many small ones at once by the engine, or one, whatever it is stored as."""

from __future__ import annotations

import os
import threading
from concurrent.futures import Future
from typing import Any

import numpy as np
import numpy.typing as npt

from ... import _native
from ...codecs import image
from ...errors import BatchplantError, DecodeError
from ...loading.locate import turns_of
from ...schema.columns import I64
from ...storage import limits
from .cells.cell import Cell, cells_of
from .media.masks import classes, coloured

U8 = npt.NDArray[np.uint8]
# A JPEG, and what is wrong with some of its tiles.
Sheet = tuple[bytes, dict[int, str]]
NOTHING: tuple[Any, Future[Sheet]] = (None, Future())

# Tiles next to each other in a sheet.
COLUMNS = 10
# What a tile shows where there is no image: neither black nor white, in both themes.
GREY = 128
THREADS = 4
# The status of an image that the engine leaves to other decoders.
NOT_NATIVE = 2
# What browsers show as it is.
SHOWN = {
    "jpeg": "image/jpeg",
    "png": "image/png",
    "webp": "image/webp",
    "gif": "image/gif",
    "bmp": "image/bmp",
}


class Images:
    """An engine of a few threads, started with the first sheet."""

    def __init__(self) -> None:
        self._engine: _native.Engine | None = None
        self._lock = threading.Lock()
        # The engine makes one after the other anyway; those that wait need no memory.
        self._sheets = threading.BoundedSemaphore(2)
        self._closed = False
        # The sheet that was begun before anybody asked for it.
        self._begun: tuple[Any, Future[Sheet]] = NOTHING

    @property
    def engine(self) -> _native.Engine:
        with self._lock:
            if self._closed:
                raise BatchplantError("the viewer was closed")
            if self._engine is None:
                self._engine = _native.Engine(max(1, min(THREADS, len(os.sched_getaffinity(0)))))
            return self._engine

    def close(self) -> None:
        with self._lock:
            self._closed = True
            if self._engine is not None:
                self._engine.close()

    def sheet(self, side: Any, field: str, samples: I64, size: int) -> Sheet:
        """One JPEG of the tiles of these samples, ten in a row; and what is wrong with some, by row."""
        asked = (side.name, field, samples.tolist(), size)
        with self._lock:
            begun, made = self._begun
            if begun == asked:
                self._begun = NOTHING
        return self._sheet(side, field, samples, size) if begun != asked else made.result()

    def begin(self, side: Any, field: str, samples: I64, size: int) -> None:
        """Make a sheet that somebody is about to ask for."""
        made: Future[Sheet] = Future()

        def make() -> None:
            try:
                made.set_result(self._sheet(side, field, samples, size))
            except Exception as error:
                made.set_exception(error)

        with self._lock:
            self._begun = (side.name, field, samples.tolist(), size), made
        threading.Thread(target=make, name="view-first-sheet", daemon=True).start()

    def _sheet(self, side: Any, field: str, samples: I64, size: int) -> Sheet:
        with self._sheets:
            tiles, wrong = self.tiles(side, field, samples, size)
            return _sheet(tiles), wrong

    def tiles(self, side: Any, field: str, samples: I64, size: int) -> tuple[U8, dict[int, str]]:
        """(n, size, size, 3): whole images, stretched to squares; and what is wrong with some, by row."""
        out = np.full((len(samples), size, size, 3), GREY, dtype=np.uint8)
        if side.reader.schema[field].kind != "image":
            raise DecodeError(f"there are no images in {field!r}", path=side.reader.path)
        wrong: dict[int, str] = {}
        rows = self._native(side, field, samples, out, wrong)
        # Those that the engine cannot decode, and all where they cannot be read together.
        for row, cells in zip(rows, cells_of(side, samples[rows].tolist(), [field]), strict=True):
            try:
                if not cells[field].missing:
                    out[row] = _square(as_shown(cells[field]), size)
            except (BatchplantError, OSError, MemoryError) as error:
                wrong[int(row)] = getattr(error, "message", None) or str(error)
        return out, wrong

    def _native(self, side: Any, field: str, samples: I64, out: U8, wrong: dict[int, str]) -> I64:
        """Fills in what the engine decodes; gives the rows that it does not."""
        kind = side.reader.schema[field]
        if kind.mask or kind.mode not in ("RGB", "L", None):
            return np.arange(len(samples))
        try:
            cells = side.locator.find(field, samples)
            there = np.flatnonzero(cells.size > 0)
            cells = cells.take(there)
            made = np.empty((len(there), *out.shape[1:]), dtype=np.uint8)
            status, errors, _ = self.engine.decode(
                cells.bases, cells.base, cells.start, cells.size, cells.shape, None, None, made,
                layout="nhwc", filter="area", dct="fast", fast_scale=True, orient=turns_of(cells), mode="RGB",
                most_pixels=limits.max_pixels(),
            )  # fmt: skip
        except (BatchplantError, OSError, MemoryError, ValueError, IndexError):
            return np.arange(len(samples))
        for row, one in zip(there[status == 0], made[status == 0], strict=True):
            out[row] = one
        wrong.update({int(there[row]): message for row, message in errors})
        return np.asarray(there[status == NOT_NATIVE])


def _sheet(tiles: U8) -> bytes:
    count, size = tiles.shape[:2]
    width = min(count, COLUMNS)
    whole, rest = divmod(count, width)
    grid = np.full((whole + bool(rest), size, width, size, 3), GREY, dtype=np.uint8)
    grid[:whole] = tiles[: whole * width].reshape(whole, width, size, size, 3).swapaxes(1, 2)
    if rest:
        grid[whole, :, :rest] = tiles[whole * width :].swapaxes(0, 1)
    return image.encode(grid.reshape(len(grid) * size, width * size, 3), "jpeg", quality=85)


def as_shown(cell: Cell) -> U8:
    """An image as 8 bits, grey or RGB, turned as EXIF says. Other values are stretched to 0…255."""
    raw = cell.pixels_shape
    if cell.shows == "mask":
        return coloured(classes(cell.value()))[..., :3]
    if raw is None and _plain_cmyk(cell):
        return np.asarray(image.to_rgb(cell.data), dtype=np.uint8)
    pixels = np.asarray(cell.value())
    if raw is None:
        pixels = image.orient(image.expand(pixels), image.orientation(cell.data))
    return _as_bytes(image.expand(pixels))


def _plain_cmyk(cell: Cell) -> bool:
    return image.header(cell.data).mode == "CMYK"


def _as_bytes(pixels: npt.NDArray[Any]) -> U8:
    channels = pixels.shape[2]
    if channels == 2:
        # Grey and alpha.
        pixels = pixels[..., :1]
    elif channels == 4 and pixels.dtype == np.uint8:
        alpha = pixels[..., 3:].astype(np.uint16)
        pixels = ((pixels[..., :3] * alpha + GREY * (255 - alpha)) // 255).astype(np.uint8)
    elif channels > 3:
        pixels = pixels[..., :3]
    if pixels.dtype == np.uint8:
        return pixels
    if pixels.dtype == np.bool_:
        return pixels.astype(np.uint8) * 255
    if pixels.dtype == np.uint16 and pixels.size and pixels.max() > 4095:
        return (pixels >> 8).astype(np.uint8)
    return stretched(pixels)


def stretched(values: npt.NDArray[Any]) -> U8:
    """Any numbers as 0 to 255, the least to the largest; what is not finite as 0."""
    finite = np.isfinite(values)
    good = values[finite]
    if not good.size:
        return np.zeros(values.shape, dtype=np.uint8)
    low, high = float(good.min()), float(good.max())
    scale = 255 / (high - low) if high > low else 0.0
    with np.errstate(all="ignore"):
        made = (np.where(finite, values, low).astype(np.float64) - low) * scale
    return np.asarray(made.clip(0, 255), dtype=np.uint8)


def _square(pixels: U8, size: int) -> U8:
    pixels = image.fit(pixels, 4 * size)
    rows, columns = (((np.arange(size) + 0.5) * old / size).astype(np.int64) for old in pixels.shape[:2])
    made = image.expand(pixels)[rows][:, columns]
    return np.broadcast_to(made, (size, size, 3)) if made.shape[2] == 1 else made


def for_browser(cell: Cell, longest: int) -> tuple[bytes, str]:
    """The image and its media type: as it is stored where a browser shows that and it is not larger."""
    raw = cell.pixels_shape
    if raw is None and cell.shows != "mask":
        data = cell.data
        found = image.header(data)
        image.check(found, data)
        # Browsers differ in the colours of CMYK, and cut 16 bits as they like.
        plain = found.encoding in SHOWN and found.mode != "CMYK" and found.bits <= 8
        if plain and max(found.width, found.height) <= longest:
            return data.tobytes(), SHOWN[found.encoding]
    pixels = image.fit(as_shown(cell), longest)
    # Small images have hard edges that JPEG smears.
    if max(pixels.shape[:2]) <= 256:
        return image.encode(image.squeeze(pixels), "png"), "image/png"
    return image.encode(image.squeeze(pixels), "jpeg", quality=92), "image/jpeg"
