"""The images of a batch: where they lie, the request for them, and the engine that answers it.

A device answers the same request, see interop.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import threading
import time
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import numpy as np

from .. import _native
from ..codecs.media import image
from ..data.buffers import BufferPool
from ..data.reader import Reader
from ..errors import DataError, DecodeError, OptionError
from ..ops.base import F64, CellErrors, Draws, Op
from ..ops.base import Batch as Values
from ..ops.crops import whole_boxes
from ..ops.cutting import Cuts
from ..ops.parallel import Threads
from ..schema.columns import I32, I64, U8, AnyArray, Flags, as_bytes
from ..storage import limits
from ..storage.spans import Located
from .stage import LONGEST_SIDE, PROBED_SAMPLES, ImageStage, Target

# Decoded images are rarely larger than their file by this factor; the header of one that is gets checked.
DOUBTFUL_EXPANSION = 1000

# Errors by row of a batch.
Failures = dict[int, DataError]


@dataclasses.dataclass(frozen=True)
class DecodeOptions:
    """Options of a Loader for decoding images: ``Loader(…, decode=DecodeOptions(fast_scale=True))``.

    backend: how images get to the ``device`` of the Loader. None: made on the CPU and copied; or finished on
    the device, with JPEGs decoded by the ``cpu``, the ``gpu``, either (``hybrid``), both together
    (``split``), or the one that measures best (``auto``). gpu_share: the part that ``hybrid`` gives to the
    GPU, whatever its speed. dct: ``accurate``, or ``fast``. fast_scale: let JPEGs be decoded at a fraction of
    their size where the result is smaller still.
    """

    backend: str | None = None
    _: dataclasses.KW_ONLY
    gpu_share: float | None = None
    dct: str = "accurate"
    fast_scale: bool = False

    @classmethod
    def of(cls, decode: str | DecodeOptions | None) -> DecodeOptions:
        """Return the options that ``decode`` of a Loader stands for; a name is that of the back end."""
        if isinstance(decode, DecodeOptions):
            return decode
        if decode is not None and not isinstance(decode, str):
            raise OptionError(f'decode is a back end, such as "gpu", or DecodeOptions, not {decode!r}')
        return cls(decode)

    def check(self, device: object) -> None:
        """Raise OptionError unless the options fit the ``device`` of a Loader."""
        if device is None and (self.backend is not None or self.gpu_share is not None):
            raise OptionError('decode says how images get to a device: name one, as in device="cuda"')
        if self.backend is None and self.gpu_share is not None:
            raise OptionError('gpu_share says how decode="hybrid" splits; without it nothing is split')


@dataclasses.dataclass(frozen=True)
class Request:
    """Images to make, a row for each, of the samples ``ids``.

    sizes: height and width after the EXIF rotation ``turns``; zeros where the header tells none. boxes,
    flips, downs, places: as in :class:`~batchplant.ops.cutting.Cuts`. canvases: height and width of each
    result before collation. redraw: returns the cuts of a row whose size differs from that in its header.
    """

    cells: Located
    sizes: I32
    boxes: F64
    flips: Flags | None
    turns: U8 | None
    target: Target
    redraw: Callable[[int, tuple[int, int]], Cuts]
    ids: I64
    canvases: I32
    downs: Flags | None = None
    places: I32 | None = None

    def __len__(self) -> int:
        return len(self.sizes)

    def part(self, rows: I64, target: Target) -> Request:
        """Return a request for some rows, with another target."""

        def take(values: Any) -> Any:
            return None if values is None else np.ascontiguousarray(values[rows])

        return Request(
            self.cells.take(rows), self.sizes[rows], self.boxes[rows], take(self.flips), take(self.turns),
            target, lambda row, size: self.redraw(int(rows[row]), size), self.ids[rows],
            self.canvases[rows], take(self.downs), take(self.places),
        )  # fmt: skip

    @property
    def framed(self) -> Flags:
        """Rows that need more than crop, resize and horizontal flip, which a device's kernel cannot do."""
        framed = np.zeros(len(self), dtype=np.bool_) if self.downs is None else self.downs.copy()
        if self.places is not None:
            framed |= (self.places[:, 2:] != (self.target.height, self.target.width)).any(axis=1)
        return framed

    def pixels(self, row: int) -> AnyArray:
        """Return one complete image, decoded, in the mode of the target."""
        data, mode, shape = self.cells.cell(row), self.target.mode, self.cells.shape
        if shape is None or not shape[row].any():
            pixels = image.expand(image.decode(data, mode))
            return pixels if self.turns is None else image.orient(pixels, int(self.turns[row]))
        sizes = tuple(shape[row].tolist())
        if min(sizes) < 0 or math.prod(sizes) != data.size:
            raise DecodeError(f"{data.size} bytes cannot be raw pixels of shape {sizes}")
        pixels = data.reshape(sizes)
        # Converting gray to RGB is the only change of channels that loses nothing.
        return np.repeat(pixels, 3, axis=2) if mode == "RGB" and pixels.shape[2] == 1 else pixels

    def stored_rows(self) -> list[U8] | None:
        """Return the bytes of each image where they are stored; None unless the results are these bytes."""
        target, shape = self.target, self.cells.shape
        if (
            shape is None
            or target.normalize is not None
            or target.channels_first
            or target.collate is not None
        ):
            return None
        flips, turns = self.flips, self.turns
        if (
            self.downs is not None
            or self.places is not None
            or (flips is not None and flips.any())
            or (turns is not None and (turns > 1).any())
            or (shape != target.shape).any()
            or (self.cells.size != math.prod(target.shape)).any()
            or (self.boxes != whole_boxes(self.sizes)).any()
        ):
            return None
        return [self.cells.cell(row) for row in range(len(self))]

    def refused(self) -> Failures:
        """Return the errors of images that must not be decoded, before memory is taken."""
        failures = self._implausible()
        if self.target.as_stored:
            failures = {**self._misfits(), **failures}
        return failures

    def _implausible(self) -> Failures:
        """Return the errors of images that claim to be larger than is allowed."""
        cells, encoded = self.cells, ~self.cells.raw
        if not encoded.any():
            return {}
        pixels = self.sizes.astype(np.float64).prod(axis=1)
        values = pixels * self.target.channels
        allowed = np.maximum(limits.max_bytes(), limits.PLAUSIBLE * cells.size)
        doubtful = (values > np.minimum(allowed, DOUBTFUL_EXPANSION * cells.size)) | (
            pixels > limits.max_pixels()
        )
        failures: Failures = {}
        for row in np.flatnonzero(doubtful & encoded).tolist():
            cell = cells.cell(row)
            try:
                image.check(image.header(cell), cell, indices=self.target.mode == "P")
            except DataError as error:
                failures[row] = error
        return failures

    def _misfits(self) -> Failures:
        """Return the errors of images that have another size than the first."""
        if 0 in (self.target.height, self.target.width):
            return {row: self._undecodable(row) for row in range(len(self))}
        # An image without a size in its header is checked when it is decoded.
        target, has_size = self.target, self.sizes.all(axis=1)
        rows = np.flatnonzero((self.canvases != (target.height, target.width)).any(axis=1) & has_size)
        errors = {row: misfit(self.canvases[row].tolist(), target) for row in rows.tolist()}
        return {row: error for row, error in errors.items() if error is not None}

    def _undecodable(self, row: int) -> DataError:
        try:
            self.pixels(row)
        except DataError as error:
            return error
        return DecodeError(f"none of the first {PROBED_SAMPLES} images can be decoded; {HINT}")


HINT = (
    "give the pipeline a decoder with a size, such as RandomResizedCrop(224) or CenterCrop(224), or "
    'Collate("pad")'
)


def misfit(size: tuple[int, int] | list[int], target: Target) -> DataError | None:
    """Return why an image of this height and width cannot be in a batch whose size the first image set."""
    height, width = size
    if max(size) > LONGEST_SIDE:
        return _too_long(list(size))
    if (height, width) == (target.height, target.width):
        return None
    return DecodeError(
        f"the image is {width}×{height} and the first is {target.width}×{target.height}; {HINT}"
    )


def make_request(
    stage: ImageStage, cells: Located, sizes: I32, turns: U8 | None, ready: Flags | None, ids: I64, *,
    seed: int, epoch: int,
) -> tuple[Request, Failures]:  # fmt: skip
    """Return the request of a stage, and the errors of images that must not be decoded.

    sizes: height and width after the EXIF rotation ``turns``; zeros: unknown. ready: images that are cropped
    and resized already.
    """

    def redraw(row: int, size: tuple[int, int]) -> Cuts:
        sample = ids[row : row + 1]
        cuts, errors = stage.cuts(np.array([size], dtype=np.int32), sample, seed=seed, epoch=epoch)
        if errors:
            raise errors[0]
        return cuts

    if stage.target.collate is not None:
        # The size of the batch depends on those of all images.
        sizes = _complete_sizes(cells, sizes, turns)
    # An image of unknown size gets one, or is refused, once it is decoded.
    cuts, errors = stage.cuts(np.maximum(sizes, 1), ids, seed=seed, epoch=epoch)
    if ready is not None:
        cuts.boxes[ready] = whole_boxes(sizes[ready])
    refused: Failures = {row: error for row, error in errors.items() if sizes[row].all()}
    target, places = stage.target, cuts.places
    if target.collate is not None:
        for row in np.flatnonzero((cuts.sizes > LONGEST_SIDE).any(axis=1)).tolist():
            refused.setdefault(row, _too_long(cuts.sizes[row].tolist()))
        if target.collate.how == "pad":
            refused = {**_too_large(cuts.sizes, target, refused), **refused}
            height, width = target.collate.canvas(np.delete(cuts.sizes, list(refused), axis=0))
            target = dataclasses.replace(target, height=height, width=width)
            if places is None:
                places = np.concatenate([np.zeros_like(cuts.sizes), cuts.sizes], axis=1)
    request = Request(
        cells, sizes, cuts.boxes, cuts.flips, turns, target, redraw, ids, cuts.sizes, cuts.downs, places
    )
    return request, {**request.refused(), **refused}


def _complete_sizes(cells: Located, sizes: I32, turns: U8 | None) -> I32:
    """Return the sizes, with those of images whose encoding the engine does not know."""
    sizes = sizes.copy()
    for row in np.flatnonzero(~sizes.all(axis=1)).tolist():
        # The error is reported when the image is decoded.
        with contextlib.suppress(DataError):
            header = image.header(cells.cell(row))
            turned = turns is not None and turns[row] >= 5
            sizes[row] = (header.width, header.height) if turned else (header.height, header.width)
    return sizes


def _too_long(size: list[int]) -> DataError:
    return DecodeError(f"a side of {max(size)} pixels is more than a batch can have, {LONGEST_SIDE}; {HINT}")


def _too_large(sizes: I32, target: Target, refused: Failures) -> Failures:
    """Return an error for the largest image if padding the others to it would exceed the memory limit."""
    assert target.collate is not None
    rows = np.delete(np.arange(len(sizes)), list(refused))
    if not len(rows):
        return {}
    sides = sizes[rows].astype(np.float64)
    pixel_bytes = target.channels * target.dtype.itemsize
    batch_bytes = math.prod(target.collate.canvas(sizes[rows])) * len(rows) * pixel_bytes
    if batch_bytes <= max(limits.max_bytes(), limits.PLAUSIBLE * sides.prod(axis=1).sum() * pixel_bytes):
        return {}
    row = int(rows[np.argmax(sides.max(axis=1))])
    height, width = sizes[row].tolist()
    return {
        row: DecodeError(
            f"the image is {width}×{height}, and to pad the others of its batch to that would take "
            f'{batch_bytes / 2**30:.1f} GiB: put Resize(longer=…) before Collate, or use Collate("list")'
        )
    }


def as_raw(pixels: AnyArray) -> Located:
    """Return one decoded image as a cell."""
    raw = as_bytes(pixels)
    zero = np.zeros(1, dtype=np.int64)
    shape = np.array([pixels.shape], dtype=np.int32)
    return Located([raw], zero.astype(np.int32), zero, np.array([raw.size], dtype=np.int64), shape)


class Result(NamedTuple):
    """The images as one array or tensor, and their errors; with errors, the array is of no use.

    sizes: height and width of images that lie in a larger array.
    """

    array: Values
    failures: Failures
    sizes: I32 | None = None


class Backend(Protocol):
    """Makes images. Requests are begun in the order of batches, one at a time, and finished in parallel.

    A batch that is made again without failed samples is begun out of order.
    """

    def begin(self, request: Request) -> Callable[[], Result]:
        """Take memory and a place in the queue; the returned function does the work."""


class Device(Backend, Protocol):
    """A back end on a device, which also runs steps there."""

    def run(self, op: Op, batch: Values, ids: I64, draws: Draws) -> Values:
        """Run the device form of a step."""

    def send(self, batch: Values) -> Values:
        """Copy an array to the device, for steps that follow."""

    def fetch(self, batch: Values, *, tensor: bool) -> Values:
        """Copy a batch back to memory, for steps on the CPU: as a tensor or as an array."""

    def producers(self, raw: bool, size: float) -> int:
        """Return the number of threads that should make batches.

        raw: of raw pixels. size: bytes of an encoded image, as far as is known.
        """

    def max_samples(self, sample_bytes: float) -> float:
        """Return how many samples, of so many bytes in a batch, it can make at a time."""

    @property
    def name(self) -> str:
        """Name of the device in every process of the machine; OptionError where processes cannot share it."""

    def exports(self) -> Exports:
        """Return memory of the device from which other processes copy batches."""

    def imports(self) -> Imports:
        """Return access to the memory that another process exports."""

    def stats(self) -> dict[str, Any]: ...

    def close(self) -> None: ...


class Exported(Protocol):
    """A batch in memory of a device; its reader opens that by ``handle``."""

    handle: bytes
    size: int

    def retire(self) -> None: ...


class Exports(Protocol):
    """Memory of a device that a server fills; see interop.gpu.ipc."""

    bytes: int

    def array(self, value: object) -> AnyArray | None: ...
    def describe(self, value: object, start: int) -> tuple[list[Any], int] | None: ...
    def export(self, tensors: list[tuple[Any, int]], size: int) -> Exported: ...


class Imports(Protocol):
    """Memory of a server's device that a reader copies from."""

    def copy(self, handle: bytes, size: int) -> Callable[[int, str, list[int]], Any]: ...
    def close(self) -> None: ...


def locate(reader: Reader, field: str, ids: I64) -> Located:
    """Locate the cells of a field in memory. Any thread may ask."""
    spans = reader.spans(field, ids)
    located = None if spans is None else spans.locate()
    if located is not None:
        return located
    column = reader.read(ids, [field]).ragged(field)
    start = np.ascontiguousarray(column.starts)
    return Located([column.data], np.zeros(len(ids), dtype=np.int32), start, column.sizes, column.shape)


def header_sizes(cells: Located) -> I32:
    """(height, width) of every image; zeros where the header tells none."""
    raw = cells.raw
    all_raw = bool(raw.all())
    sizes = _native.prefetch_images(cells.bases, cells.base, cells.start, cells.size, headers=not all_raw)
    if cells.shape is not None:
        if all_raw:
            return cells.shape[:, :2].copy()
        sizes[raw] = cells.shape[raw, :2]
    return sizes


def turns_of(cells: Located) -> U8:
    """EXIF's orientation of every image; 1 for raw pixels."""
    turns = np.ones(len(cells.start), dtype=np.uint8)
    for row in np.flatnonzero(~cells.raw).tolist():
        turns[row] = image.orientation(cells.cell(row))
    return turns


# The status of an image that the engine cannot decode.
NOT_NATIVE = 2


class OnCpu:
    """The engine as a :class:`~batchplant.loading.images.Backend`. ``warnings``: number of libjpeg's."""

    def __init__(
        self, engine: _native.Engine, buffers: BufferPool, *, dct: str = "accurate", fast_scale: bool = False
    ) -> None:
        self.engine, self.buffers = engine, buffers
        self._dct, self._fast_scale = dct, fast_scale
        # For images that the engine cannot decode.
        self._threads = Threads(engine.threads)
        self.warnings = 0
        # Seconds spent on them.
        self._other_seconds = 0.0
        self._lock = threading.Lock()

    @property
    def exact(self) -> bool:
        """True if JPEGs are decoded to the same pixels as by libjpeg's defaults."""
        return self._dct == "accurate" and not self._fast_scale

    def stats(self) -> dict[str, float]:
        """Return the seconds that all decoding threads spent on pixels, and the number of threads."""
        decode, resize = self.engine.seconds
        return {"threads": self.engine.threads, "decode": decode + self._other_seconds, "resize": resize}

    def close(self) -> None:
        self.engine.close()
        self._threads.close()

    def begin(self, request: Request) -> Callable[[], Result]:
        # Memory is taken when the turn of the batch has come: one that waits for the engine needs none. Raw
        # pixels are copied so fast that waiting would cost more than it saves.
        if request.cells.shape is None:
            self.engine.wait_turn()
        target = request.target
        if target.as_list:
            return lambda: self._one_by_one(request)
        out = self.buffers.take((len(request), *target.shape), target.dtype)
        sizes = None if target.collate is None else request.canvases
        return lambda: Result(out, self.decode(request, out), sizes)

    def _one_by_one(self, request: Request) -> Result:
        """Make images of unequal sizes, each an array."""
        arrays: list[AnyArray] = []
        parts: list[Request] = []
        for row, (height, width) in enumerate(request.canvases.tolist()):
            target = dataclasses.replace(request.target, height=height, width=width)
            parts.append(request.part(np.array([row]), target))
            arrays.append(self.buffers.take((1, *target.shape), target.dtype))
        errors = self._threads.each(len(parts), lambda row: self.decode(parts[row], arrays[row]))
        failures: Failures = {row: error[0] for row, error in enumerate(errors) if error}
        return Result([array[0] for array in arrays], failures)

    def decode(self, request: Request, out: AnyArray) -> Failures:
        """Decode the images into ``out``."""
        if not len(request):
            return {}
        cuts = Cuts(request.boxes, request.flips, request.downs, request.places, request.canvases)
        status, errors, warned = self._run(request.cells, cuts, request.turns, request.target, out)
        self.warnings += warned
        failures: Failures = {row: DecodeError(message) for row, message in errors}
        rows = np.flatnonzero(status == NOT_NATIVE).tolist()
        try:
            self._threads.each(len(rows), lambda n: self._decode_other(request, rows[n], out))
        except CellErrors as failed:
            failures.update({rows[n]: error for n, error in failed.errors.items()})
        return failures

    def _run(
        self, cells: Located, cuts: Cuts, turns: U8 | None, target: Target, out: AnyArray
    ) -> tuple[I32, list[tuple[int, str]], int]:
        scale = offset = None
        fill = np.array(target.fill, dtype=np.uint8) if target.fill else None
        if target.normalize is not None:
            scale = (1 / target.normalize.std).astype(np.float32)
            offset = (-target.normalize.mean / target.normalize.std).astype(np.float32)
        return self.engine.decode(
            cells.bases, cells.base, cells.start, cells.size, cells.shape, cuts.boxes, cuts.flips, out,
            layout="nchw" if target.channels_first else "nhwc", filter=target.filter, strict=True,
            scale=scale, offset=offset, orient=turns, mode=target.mode, most_pixels=limits.max_pixels(),
            dct=self._dct, fast_scale=self._fast_scale, down=cuts.downs, place=cuts.places, fill=fill,
        )  # fmt: skip

    def _decode_other(self, request: Request, row: int, out: AnyArray) -> None:
        """Make an image that the engine cannot decode: decode it to pixels, then resize these."""
        began = time.perf_counter()
        pixels = request.pixels(row)
        with self._lock:
            self._other_seconds += time.perf_counter() - began
        size, target = pixels.shape[:2], request.target
        if size != tuple(request.sizes[row]):
            # The header told no size, or another one.
            cuts = request.redraw(row, size)
            error = misfit(tuple(cuts.sizes[0].tolist()), target) if target.as_stored else None
            if error is not None:
                raise error
        else:
            alone = request.part(np.array([row]), target)
            cuts = Cuts(alone.boxes, alone.flips, alone.downs, alone.places, alone.canvases)
        status, errors, _ = self._run(as_raw(pixels), cuts, None, target, out[row : row + 1])
        if status[0]:
            why = errors[0][1] if errors else f"an image of {pixels.shape[2]} channels does not fit"
            raise DecodeError(why)
