"""Images for the browser: sheets of thumbnails by the native engine, or a single image of any encoding."""

from __future__ import annotations

import threading
from concurrent.futures import Future
from typing import Any

import numpy as np
import numpy.typing as npt

from ... import _native
from ...codecs import image
from ...errors import BatchplantError, DecodeError
from ...loading.locate import locate, turns_of
from ...schema.columns import I64, AnyArray
from ...schema.kinds import Image
from ...storage import limits
from ...storage.platform import cpu_count
from .cells import Cell, Dataset, cells_of
from .media.colours import classes, colour_classes

U8 = npt.NDArray[np.uint8]
# A JPEG, and the errors of some of its tiles by position.
Sheet = tuple[bytes, dict[int, str]]
NO_SHEET: tuple[Any, Future[Sheet]] = (None, Future())

# Tiles side by side in a sheet.
SHEET_COLUMNS = 10
# Grey of tiles without an image, visible on light and dark pages.
BACKGROUND_GREY = 128
MAX_THREADS = 4
# Status of an image that the engine leaves to other decoders.
STATUS_NOT_NATIVE = 2
# Encodings that browsers show.
BROWSER_MEDIA_TYPES = {
    "jpeg": "image/jpeg",
    "png": "image/png",
    "webp": "image/webp",
    "gif": "image/gif",
    "bmp": "image/bmp",
}


class Images:
    """Makes thumbnails with an engine of a few threads, which starts with the first sheet."""

    def __init__(self) -> None:
        self._engine: _native.Engine | None = None
        self._lock = threading.Lock()
        # The engine makes one sheet after the other anyway; waiting requests then need no memory.
        self._sheets = threading.BoundedSemaphore(2)
        self._closed = False
        # The sheet that was prepared before the page asks for it.
        self._prepared: tuple[Any, Future[Sheet]] = NO_SHEET

    @property
    def engine(self) -> _native.Engine:
        with self._lock:
            if self._closed:
                raise BatchplantError("the viewer was closed")
            if self._engine is None:
                self._engine = _native.Engine(max(1, min(MAX_THREADS, cpu_count())))
            return self._engine

    def close(self) -> None:
        with self._lock:
            self._closed = True
            if self._engine is not None:
                self._engine.close()

    def sheet(self, dataset: Dataset, field: str, samples: I64, size: int) -> Sheet:
        """Return one JPEG with the tiles of these samples, and the errors of some of them by position."""
        key = (field, samples.tolist(), size)
        with self._lock:
            prepared_key, future = self._prepared
            if prepared_key == key:
                self._prepared = NO_SHEET
        return self._sheet(dataset, field, samples, size) if prepared_key != key else future.result()

    def prepare(self, dataset: Dataset, field: str, samples: I64, size: int) -> None:
        """Start making a sheet that the page is about to ask for."""
        future: Future[Sheet] = Future()

        def work() -> None:
            try:
                future.set_result(self._sheet(dataset, field, samples, size))
            except Exception as error:
                future.set_exception(error)

        with self._lock:
            self._prepared = (field, samples.tolist(), size), future
        threading.Thread(target=work, name="view-first-sheet", daemon=True).start()

    def _sheet(self, dataset: Dataset, field: str, samples: I64, size: int) -> Sheet:
        with self._sheets:
            tiles, wrong = self.tiles(dataset, field, samples, size)
            return _sheet(tiles), wrong

    def tiles(self, dataset: Dataset, field: str, samples: I64, size: int) -> tuple[U8, dict[int, str]]:
        """Return images stretched to squares, (n, size, size, 3), and the errors of some by position."""
        out = np.full((len(samples), size, size, 3), BACKGROUND_GREY, dtype=np.uint8)
        if dataset.reader.schema[field].kind != "image":
            raise DecodeError(f"there are no images in {field!r}", path=dataset.reader.path)
        errors: dict[int, str] = {}
        rows = self._native(dataset, field, samples, out, errors)
        # Images that the engine cannot decode, or all of them if they cannot be read together.
        for row, cells in zip(rows, cells_of(dataset, samples[rows].tolist(), [field]), strict=True):
            try:
                if not cells[field].missing:
                    out[row] = _square(to_grey_or_rgb(cells[field]), size)
            except (BatchplantError, OSError, MemoryError) as error:
                errors[int(row)] = getattr(error, "message", None) or str(error)
        return out, errors

    def _native(
        self, dataset: Dataset, field: str, samples: I64, out: U8, errors_by_row: dict[int, str]
    ) -> I64:
        """Fill in the images that the engine decodes; return the rows of the others."""
        kind = dataset.reader.schema[field]
        if not isinstance(kind, Image) or kind.mask or kind.mode not in ("RGB", "L", None):
            return np.arange(len(samples))
        try:
            cells = locate(dataset.reader, field, samples)
            present = np.flatnonzero(cells.size > 0)
            cells = cells.take(present)
            decoded = np.empty((len(present), *out.shape[1:]), dtype=np.uint8)
            status, errors, _ = self.engine.decode(
                cells.bases, cells.base, cells.start, cells.size, cells.shape, None, None, decoded,
                layout="nhwc", filter="area", dct="fast", fast_scale=True, orient=turns_of(cells), mode="RGB",
                most_pixels=limits.max_pixels(),
            )  # fmt: skip
        except (BatchplantError, OSError, MemoryError, ValueError, IndexError):
            return np.arange(len(samples))
        for row, pixels in zip(present[status == 0], decoded[status == 0], strict=True):
            out[row] = pixels
        errors_by_row.update({int(present[row]): message for row, message in errors})
        return np.asarray(present[status == STATUS_NOT_NATIVE])


def _sheet(tiles: U8) -> bytes:
    count, size = tiles.shape[:2]
    width = min(count, SHEET_COLUMNS)
    full_rows, last_row = divmod(count, width)
    grid = np.full((full_rows + bool(last_row), size, width, size, 3), BACKGROUND_GREY, dtype=np.uint8)
    grid[:full_rows] = tiles[: full_rows * width].reshape(full_rows, width, size, size, 3).swapaxes(1, 2)
    if last_row:
        grid[full_rows, :, :last_row] = tiles[full_rows * width :].swapaxes(0, 1)
    return image.encode(grid.reshape(len(grid) * size, width * size, 3), "jpeg", quality=85)


def to_grey_or_rgb(cell: Cell) -> U8:
    """Return an image as 8-bit grey or RGB, upright. Other values are stretched to 0…255."""
    raw = cell.pixels_shape
    if cell.shows == "mask":
        return colour_classes(classes(cell.value()))[..., :3]
    if raw is None and _plain_cmyk(cell):
        return np.asarray(image.to_rgb(cell.data), dtype=np.uint8)
    pixels = np.asarray(cell.value())
    if raw is None:
        pixels = image.orient(image.expand(pixels), image.orientation(cell.data))
    return _as_bytes(image.expand(pixels))


def _plain_cmyk(cell: Cell) -> bool:
    return image.header(cell.data).mode == "CMYK"


def _as_bytes(pixels: AnyArray) -> U8:
    channels = pixels.shape[2]
    if channels == 2:
        # Grey and alpha.
        pixels = pixels[..., :1]
    elif channels == 4 and pixels.dtype == np.uint8:
        alpha = pixels[..., 3:].astype(np.uint16)
        pixels = ((pixels[..., :3] * alpha + BACKGROUND_GREY * (255 - alpha)) // 255).astype(np.uint8)
    elif channels > 3:
        pixels = pixels[..., :3]
    if pixels.dtype == np.uint8:
        return pixels
    if pixels.dtype == np.bool_:
        return pixels.astype(np.uint8) * 255
    if pixels.dtype == np.uint16 and pixels.size and pixels.max() > 4095:
        return (pixels >> 8).astype(np.uint8)
    return stretch_to_bytes(pixels)


def stretch_to_bytes(values: AnyArray) -> U8:
    """Map numbers to 0 … 255, from the least to the largest; numbers that are not finite to 0."""
    finite = np.isfinite(values)
    good = values[finite]
    if not good.size:
        return np.zeros(values.shape, dtype=np.uint8)
    low, high = float(good.min()), float(good.max())
    scale = 255 / (high - low) if high > low else 0.0
    with np.errstate(all="ignore"):
        scaled = (np.where(finite, values, low).astype(np.float64) - low) * scale
    return np.asarray(scaled.clip(0, 255), dtype=np.uint8)


def _square(pixels: U8, size: int) -> U8:
    pixels = image.fit(pixels, 4 * size)
    rows, columns = (((np.arange(size) + 0.5) * old / size).astype(np.int64) for old in pixels.shape[:2])
    square = image.expand(pixels)[rows][:, columns]
    return np.broadcast_to(square, (size, size, 3)) if square.shape[2] == 1 else square


def for_browser(cell: Cell, longest: int) -> tuple[bytes, str]:
    """Return an image and its media type: the stored bytes if browsers show them and they are small."""
    raw = cell.pixels_shape
    if raw is None and cell.shows != "mask":
        data = cell.data
        header = image.header(data)
        image.check(header, data)
        # Browsers disagree on the colours of CMYK and on 16 bits.
        plain = header.encoding in BROWSER_MEDIA_TYPES and header.mode != "CMYK" and header.bits <= 8
        if plain and max(header.width, header.height) <= longest:
            return data.tobytes(), BROWSER_MEDIA_TYPES[header.encoding]
    pixels = image.fit(to_grey_or_rgb(cell), longest)
    # JPEG would smear the hard edges of small images.
    if max(pixels.shape[:2]) <= 256:
        return image.encode(image.squeeze(pixels), "png"), "image/png"
    return image.encode(image.squeeze(pixels), "jpeg", quality=92), "image/jpeg"
