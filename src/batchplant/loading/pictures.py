"""The pictures of a batch: one request, which the engine (:mod:`.on_cpu`) or a device answers."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from .. import limits
from ..codecs.media import image
from ..columns import I32, I64, U8, as_bytes
from ..errors import DataError, DecodeError, OptionError, near
from ..ops.base import F64, Draws, Op
from ..storage.settings import NAMES as STORAGE
from .locate import Located
from .plan import LONGEST_SIDE, PROBED_SAMPLES, Target

# Hardly any picture becomes so many times its size; of one that says so, the header is looked at.
DOUBTFUL = 1000

# What is wrong with rows of a batch.
Failures = dict[int, DataError]


@dataclasses.dataclass(frozen=True, kw_only=True)
class PictureOptions:
    """How a Loader makes pictures.

    decode: how they get to the ``device``. None: made on the CPU and copied; or finished on the device, with
    JPEGs decoded by the ``cpu``, the ``gpu``, both (``hybrid``), or what measures best (``auto``). gpu_share:
    the part that ``hybrid`` gives to the GPU, whatever its speed. dct: ``accurate``, or ``fast``. fast_scale:
    let JPEGs be decoded at a fraction of their size where the result is smaller still.
    """

    decode: str | None = None
    gpu_share: float | None = None
    dct: str = "accurate"
    fast_scale: bool = False

    def but(self, changes: Mapping[str, Any], others: Iterable[str]) -> PictureOptions:
        """The same with some changed, as they were given to the Loader, which has ``others`` too."""
        own = [one.name for one in dataclasses.fields(self)]
        for name in changes:
            if name not in own:
                hint = near(name, [*own, *others])
                if name in STORAGE:
                    hint = f'; open the source with it: source_options={{"{name}": …}}'
                raise TypeError(f"Loader() got an unexpected keyword argument {name!r}{hint}")
        return dataclasses.replace(self, **changes)

    def check(self, device: Any) -> None:
        if device is None and (self.decode is not None or self.gpu_share is not None):
            raise OptionError('decode says how pictures get to a device: name one, as in device="cuda"')
        if self.decode is None and self.gpu_share is not None:
            raise OptionError('gpu_share says how decode="hybrid" splits; without it nothing is split')


@dataclasses.dataclass(frozen=True)
class Request:
    """Pictures to make, a row for each; of the samples ``ids``.

    sizes: height and width, turned as ``turns`` (EXIF) says; zeros where the header tells none. boxes: (left,
    top, right, bottom). redraw: the box of a row that turned out to have another size than its header says.
    """

    cells: Located
    sizes: I32
    boxes: F64
    flips: npt.NDArray[np.bool_] | None
    turns: U8 | None
    target: Target
    redraw: Callable[[int, tuple[int, int]], F64]
    ids: I64

    def __len__(self) -> int:
        return len(self.sizes)

    def part(self, rows: I64, target: Target) -> Request:
        """Some of them, to become something else."""
        return Request(
            self.cells.take(rows), self.sizes[rows], self.boxes[rows],
            None if self.flips is None else self.flips[rows],
            None if self.turns is None else self.turns[rows],
            target, lambda row, size: self.redraw(int(rows[row]), size), self.ids[rows],
        )  # fmt: skip

    def pixels(self, row: int) -> Any:
        """One picture, decoded whole, in the mode of the target."""
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
        """Pictures that claim more than they may."""
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
        other = (self.sizes != (self.target.height, self.target.width)).any(axis=1)
        found = {row: misfit(self.sizes[row].tolist(), self.target) for row in np.flatnonzero(other).tolist()}
        return {row: error for row, error in found.items() if error is not None}

    def _undecodable(self, row: int) -> DataError:
        try:
            self.pixels(row)
        except DataError as error:
            return error
        return DecodeError(f"none of the first {PROBED_SAMPLES} pictures can be decoded; {HINT}")


HINT = "give the pipeline a decoder with a size, such as RandomResizedCrop(224) or CenterCrop(224)"


def misfit(size: tuple[int, int] | list[int], target: Target) -> DataError | None:
    """Why a picture of this height and width cannot be part of a batch whose size the first one gave."""
    height, width = size
    if max(size) > LONGEST_SIDE:
        return DecodeError(
            f"a side of {max(size)} pixels is more than a batch can have, {LONGEST_SIDE}; {HINT}"
        )
    # One whose header tells no size is looked at when it is decoded.
    if min(size) <= 0 or (height, width) == (target.height, target.width):
        return None
    return DecodeError(
        f"the picture is {width}×{height} and the first is {target.width}×{target.height}; {HINT}"
    )


def as_raw(pixels: Any) -> Located:
    """One decoded picture as a cell."""
    raw = as_bytes(pixels)
    zero = np.zeros(1, dtype=np.int64)
    shape = np.array([pixels.shape], dtype=np.int32)
    return Located([raw], zero.astype(np.int32), zero, np.array([raw.size], dtype=np.int64), shape)


class Result(NamedTuple):
    """The pictures as one array or tensor, and what is wrong with some; then the array is of no use."""

    array: Any
    failures: Failures


class Backend(Protocol):
    """Makes pictures. Requests are begun in the order of batches, one at a time, and finished in parallel.

    A batch that is made again, without samples that failed, is begun whenever that is found.
    """

    def begin(self, request: Request) -> Callable[[], Result]:
        """Take memory and a place in the queue; what comes back does the work."""


class Device(Backend, Protocol):
    """A back end on a device, which also runs steps there."""

    def run(self, op: Op, batch: Any, ids: I64, draws: Draws) -> Any:
        """The device form of a step."""

    def fetch(self, batch: Any, *, tensor: bool) -> Any:
        """A batch back in memory, for steps on the CPU: as a tensor or as an array."""

    def producers(self, raw: bool) -> int:
        """How many threads should make batches: of raw pixels, or of encoded pictures."""

    def stats(self) -> dict[str, Any]: ...

    def close(self) -> None: ...
