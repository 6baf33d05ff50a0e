"""The images of a batch: one request, which the engine (:mod:`.on_cpu`) or a device answers."""

from __future__ import annotations

import contextlib
import dataclasses
import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from ..codecs.media import image
from ..errors import DataError, DecodeError, OptionError
from ..ops.base import F64, Draws, Op
from ..ops.cutting import Cuts
from ..ops.decode import whole_boxes
from ..schema.columns import I32, I64, U8, as_bytes
from ..storage import limits
from .arguments import unexpected
from .locate import Located
from .stage import LONGEST_SIDE, PROBED_SAMPLES, ImageStage, Target

# Hardly any image becomes so many times its size; of one that says so, the header is looked at.
DOUBTFUL = 1000

# What is wrong with rows of a batch.
Failures = dict[int, DataError]


@dataclasses.dataclass(frozen=True, kw_only=True)
class DecodeOptions:
    """How a Loader makes images.

    decode: how they get to the ``device``. None: made on the CPU and copied; or finished on the device, with
    JPEGs decoded by the ``cpu``, the ``gpu``, either (``hybrid``), both together (``split``), or what
    measures best (``auto``). gpu_share:
    the part that ``hybrid`` gives to the GPU, whatever its speed. dct: ``accurate``, or ``fast``. fast_scale:
    let JPEGs be decoded at a fraction of their size where the result is smaller still.
    """

    decode: str | None = None
    gpu_share: float | None = None
    dct: str = "accurate"
    fast_scale: bool = False

    def but(self, changes: Mapping[str, Any], others: Iterable[str]) -> DecodeOptions:
        """The same with some changed, as they were given to the Loader, which has ``others`` too."""
        own = [one.name for one in dataclasses.fields(self)]
        for name in changes:
            if name not in own:
                raise unexpected(name, [*own, *others])
        return dataclasses.replace(self, **changes)

    def check(self, device: Any) -> None:
        if device is None and (self.decode is not None or self.gpu_share is not None):
            raise OptionError('decode says how images get to a device: name one, as in device="cuda"')
        if self.decode is None and self.gpu_share is not None:
            raise OptionError('gpu_share says how decode="hybrid" splits; without it nothing is split')


@dataclasses.dataclass(frozen=True)
class Request:
    """Images to make, a row for each; of the samples ``ids``.

    sizes: height and width, turned as ``turns`` (EXIF) says; zeros where the header tells none. boxes, flips,
    downs, places: as in :class:`~batchplant.ops.cutting.Cuts`. canvases: height and width of what each
    becomes by itself. redraw: the cuts of a row that turned out to have another size than its header says.
    """

    cells: Located
    sizes: I32
    boxes: F64
    flips: npt.NDArray[np.bool_] | None
    turns: U8 | None
    target: Target
    redraw: Callable[[int, tuple[int, int]], Cuts]
    ids: I64
    canvases: I32
    downs: npt.NDArray[np.bool_] | None = None
    places: I32 | None = None

    def __len__(self) -> int:
        return len(self.sizes)

    def part(self, rows: I64, target: Target) -> Request:
        """Some of them, to become something else."""

        def some(values: Any) -> Any:
            return None if values is None else np.ascontiguousarray(values[rows])

        return Request(
            self.cells.take(rows), self.sizes[rows], self.boxes[rows], some(self.flips), some(self.turns),
            target, lambda row, size: self.redraw(int(rows[row]), size), self.ids[rows],
            self.canvases[rows], some(self.downs), some(self.places),
        )  # fmt: skip

    @property
    def framed(self) -> npt.NDArray[np.bool_]:
        """Which are more than a box, resized and mirrored left to right: more than a device's kernel does."""
        found = np.zeros(len(self), dtype=np.bool_) if self.downs is None else self.downs.copy()
        if self.places is not None:
            found |= (self.places[:, 2:] != (self.target.height, self.target.width)).any(axis=1)
        return found

    def pixels(self, row: int) -> Any:
        """One image, decoded whole, in the mode of the target."""
        data, mode, shape = self.cells.cell(row), self.target.mode, self.cells.shape
        if shape is None or not shape[row].any():
            pixels = image.expand(image.decode(data, mode))
            return pixels if self.turns is None else image.orient(pixels, int(self.turns[row]))
        sizes = tuple(shape[row].tolist())
        if min(sizes) < 0 or math.prod(sizes) != data.size:
            raise DecodeError(f"{data.size} bytes cannot be raw pixels of shape {sizes}")
        pixels = data.reshape(sizes)
        # Gray as RGB loses nothing; every other change of channels would.
        return np.repeat(pixels, 3, axis=2) if mode == "RGB" and pixels.shape[2] == 1 else pixels

    def refused(self) -> Failures:
        """What must not be decoded, found before memory is taken."""
        failures = self._implausible()
        if self.target.as_stored:
            failures = {**self._misfits(), **failures}
        return failures

    def _implausible(self) -> Failures:
        """Images that claim more than they may."""
        cells, encoded = self.cells, ~self.cells.raw
        if not encoded.any():
            return {}
        pixels = self.sizes.astype(np.float64).prod(axis=1)
        values = pixels * self.target.channels
        allowed = np.maximum(limits.max_bytes(), limits.PLAUSIBLE * cells.size)
        doubtful = (values > np.minimum(allowed, DOUBTFUL * cells.size)) | (pixels > limits.max_pixels())
        failures: Failures = {}
        for row in np.flatnonzero(doubtful & encoded).tolist():
            cell = cells.cell(row)
            try:
                image.check(image.header(cell), cell, indices=self.target.mode == "P")
            except DataError as error:
                failures[row] = error
        return failures

    def _misfits(self) -> Failures:
        if 0 in (self.target.height, self.target.width):
            return {row: self._undecodable(row) for row in range(len(self))}
        # One whose header tells no size is looked at when it is decoded.
        target, told = self.target, self.sizes.all(axis=1)
        other = np.flatnonzero((self.canvases != (target.height, target.width)).any(axis=1) & told)
        found = {row: misfit(self.canvases[row].tolist(), target) for row in other.tolist()}
        return {row: error for row, error in found.items() if error is not None}

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
    """Why an image of this height and width cannot be part of a batch whose size the first one gave."""
    height, width = size
    if max(size) > LONGEST_SIDE:
        return _too_long(list(size))
    if (height, width) == (target.height, target.width):
        return None
    return DecodeError(
        f"the image is {width}×{height} and the first is {target.width}×{target.height}; {HINT}"
    )


def make_request(
    stage: ImageStage, cells: Located, sizes: I32, turns: U8 | None, ready: Any, ids: I64, *,
    seed: int, epoch: int,
) -> tuple[Request, Failures]:  # fmt: skip
    """What a stage asks for images of these sizes (height, width, as they are turned; zeros: unknown), and
    what is wrong with those that must not be decoded. ``ready``: those that are cut and resized already."""

    def redraw(row: int, size: tuple[int, int]) -> Cuts:
        one = slice(row, row + 1)
        cuts, wrong = stage.cuts(np.array([size], dtype=np.int32), ids[one], seed=seed, epoch=epoch)
        if wrong:
            raise wrong[0]
        return cuts

    if stage.target.collate is not None:
        # Their sizes are those of the batch.
        sizes = _told(cells, sizes, turns)
    # An image of no known size is refused, or has one, once it is decoded.
    cuts, wrong = stage.cuts(np.maximum(sizes, 1), ids, seed=seed, epoch=epoch)
    if ready is not None:
        cuts.boxes[ready] = whole_boxes(sizes[ready])
    refused: Failures = {row: error for row, error in wrong.items() if sizes[row].all()}
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


def _told(cells: Located, sizes: I32, turns: U8 | None) -> I32:
    """The sizes, also of images whose encoding the engine does not know."""
    sizes = sizes.copy()
    for row in np.flatnonzero(~sizes.all(axis=1)).tolist():
        # What is wrong with it is said when it is decoded.
        with contextlib.suppress(DataError):
            found = image.header(cells.cell(row))
            turned = turns is not None and turns[row] >= 5
            sizes[row] = (found.width, found.height) if turned else (found.height, found.width)
    return sizes


def _too_long(size: list[int]) -> DataError:
    return DecodeError(f"a side of {max(size)} pixels is more than a batch can have, {LONGEST_SIDE}; {HINT}")


def _too_large(sizes: I32, target: Target, refused: Failures) -> Failures:
    """The largest image, where an array as large as it would mostly hold padding, and more than may be."""
    assert target.collate is not None
    kept = np.delete(np.arange(len(sizes)), list(refused))
    if not len(kept):
        return {}
    some = sizes[kept].astype(np.float64)
    bytes_each = target.channels * target.dtype.itemsize
    whole = math.prod(target.collate.canvas(sizes[kept])) * len(kept) * bytes_each
    if whole <= max(limits.max_bytes(), limits.PLAUSIBLE * some.prod(axis=1).sum() * bytes_each):
        return {}
    row = int(kept[np.argmax(some.max(axis=1))])
    height, width = sizes[row].tolist()
    return {
        row: DecodeError(
            f"the image is {width}×{height}, and to pad the others of its batch to that would take "
            f'{whole / 2**30:.1f} GiB: put Resize(longer=…) before Collate, or use Collate("list")'
        )
    }


def as_raw(pixels: Any) -> Located:
    """One decoded image as a cell."""
    raw = as_bytes(pixels)
    zero = np.zeros(1, dtype=np.int64)
    shape = np.array([pixels.shape], dtype=np.int32)
    return Located([raw], zero.astype(np.int32), zero, np.array([raw.size], dtype=np.int64), shape)


class Result(NamedTuple):
    """The images as one array or tensor, and what is wrong with some; then the array is of no use.

    sizes: of those that lie in a larger array, height and width.
    """

    array: Any
    failures: Failures
    sizes: I32 | None = None


class Backend(Protocol):
    """Makes images. Requests are begun in the order of batches, one at a time, and finished in parallel.

    A batch that is made again, without samples that failed, is begun whenever that is found.
    """

    def begin(self, request: Request) -> Callable[[], Result]:
        """Take memory and a place in the queue; what comes back does the work."""


class Device(Backend, Protocol):
    """A back end on a device, which also runs steps there."""

    def run(self, op: Op, batch: Any, ids: I64, draws: Draws) -> Any:
        """The device form of a step."""

    def send(self, batch: Any) -> Any:
        """An array there, for steps that follow."""

    def fetch(self, batch: Any, *, tensor: bool) -> Any:
        """A batch back in memory, for steps on the CPU: as a tensor or as an array."""

    def producers(self, raw: bool) -> int:
        """How many threads should make batches: of raw pixels, or of encoded images."""

    def stats(self) -> dict[str, Any]: ...

    def close(self) -> None: ...
