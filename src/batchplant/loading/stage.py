"""The first steps of an image pipeline, fused into one pass of the engine or of a device.

Crops, resizes, flips and padding, in any order and number, become one box of every image, resized once and
put on a canvas; normalisation and channels first cost nothing more.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
from typing import Any, Generic, TypeVar

import numpy as np

from ..codecs.cells import decode_cell
from ..codecs.media import image as images
from ..data.reader import Reader
from ..errors import DataError, DecodeError, OptionError
from ..ops.base import Draws, Op, Spec
from ..ops.crops import CenterCrop, Collate, ImageDecoder, RandomHorizontalFlip
from ..ops.cutting import Cuts, Cutting, colour, cuts_of
from ..ops.normalize import ChannelsFirst, Normalize, NormalizedPlanes
from ..ops.policies import Policy
from ..ops.warping import Warp
from ..schema import Image
from ..schema.columns import I32, I64, AnyDType

CHANNELS = {"L": 1, "P": 1, "LA": 2, "RGB": 3, "RGBA": 4, "CMYK": 4}
# Samples that are tried, since the first ones may be damaged, to learn the size of images.
PROBED_SAMPLES = 64
# The longest side of an image that the engine can make, in pixels.
LONGEST_SIDE = 65535

# The filters that also take pixels from beside the box.
SEE_BEYOND = ("bilinear", "bicubic")

OpT = TypeVar("OpT", bound=Op, covariant=True)


@dataclasses.dataclass(frozen=True)
class Step(Generic[OpT]):
    """An op, the key of its random draws, and the spec of its result."""

    op: OpT
    key: str
    spec: Spec


@dataclasses.dataclass(frozen=True)
class Target:
    """Size, type and layout that every image of a batch gets.

    ``mode``: the mode that images are decoded to; P: the indices of palettes, the levels of gray images.
    ``as_stored``: the pipeline names no size, so all images must have that of the first. ``fill``: the colour
    beside images, a number for each channel. ``collate``: how images of unequal sizes become a batch; then
    height and width are those of one batch, and zeros in a plan.
    """

    mode: str
    filter: str
    height: int
    width: int
    channels: int
    as_stored: bool
    normalize: Normalize | None = None
    channels_first: bool = False
    fill: tuple[int, ...] = ()
    collate: Collate | None = None

    @property
    def dtype(self) -> AnyDType:
        return np.dtype(np.uint8) if self.normalize is None else self.normalize.dtype

    @property
    def shape(self) -> tuple[int, int, int]:
        size = (self.height, self.width)
        return (self.channels, *size) if self.channels_first else (*size, self.channels)

    @property
    def as_list(self) -> bool:
        """True if images become a list of arrays."""
        return self.collate is not None and self.collate.how == "list"

    @property
    def pixels(self) -> Target:
        """The target without normalisation and with channels last."""
        return dataclasses.replace(self, normalize=None, channels_first=False)


@dataclasses.dataclass(frozen=True)
class ImageStage:
    """Steps of images that are done in one pass: box, resize, flips, place, normalisation, layout.

    ``steps``: the decoder, and the steps fused with it.
    """

    steps: tuple[Step[Cutting], ...]
    target: Target

    @property
    def decoder(self) -> Step[ImageDecoder]:
        first = self.steps[0]
        assert isinstance(first.op, ImageDecoder)
        return Step(first.op, first.key, first.spec)

    @property
    def plain(self) -> bool:
        """True if it has nothing but the boxes of the decoder and flips."""
        flips = all(type(step.op) is RandomHorizontalFlip for step in self.steps[1:])
        return flips and self.decoder.op.boxed and self.target.collate is None

    def cuts(self, sizes: I32, ids: I64, *, seed: int, epoch: int) -> tuple[Cuts, dict[int, DataError]]:
        """Return how images of these sizes are cut, and the errors of those that a step cannot take."""

        def draws(step: Step[Op]) -> Draws:
            return Draws(seed, epoch, ids, step.key)

        if self.plain:
            decoder, flips = self.decoder, np.zeros(len(ids), dtype=np.bool_)
            boxes = decoder.op.boxes(sizes, draws(decoder))
            for step in self.steps[1:]:
                assert isinstance(step.op, RandomHorizontalFlip)
                flips ^= step.op.flips(draws(step))
            mirrored = flips if len(self.steps) > 1 else None
            return Cuts(boxes, mirrored, None, None, decoder.op.after(sizes)), {}
        motions, current = [], sizes
        errors: dict[int, DataError] = {}
        for step in self.steps:
            small = step.op.too_small(current)
            for row in np.flatnonzero(small).tolist() if small is not None else ():
                size = f"the image is {current[row, 1]}×{current[row, 0]}"
                error = DecodeError(f"{size}, too small for {step.op!r}; pad_if_needed=True pads it")
                errors.setdefault(row, error)
            motions.append(step.op.move(current, draws(step)))
            current = motions[-1].sizes
        return cuts_of(sizes, motions), errors

    def __str__(self) -> str:
        ops: list[Op] = [step.op for step in self.steps]
        ops += [op for op in (self.target.collate, self.target.normalize) if op is not None]
        return ", ".join([*map(repr, ops), *(["ChannelsFirst()"] if self.target.channels_first else [])])


Ops = list[tuple[Op, str]]


def fuse(
    reader: Reader, name: str, field: Image, ops: Ops, *, on_device: bool
) -> tuple[ImageStage, Spec, Ops]:
    """Return the stage that is done in one pass, the spec of its result, and the ops that follow it.

    ``ops`` begin with a decoder. ``on_device``: a device makes the images; steps that its kernel cannot do
    stay ops, which have a device form.
    """
    mode = field.mode or "RGB"
    if field.mask and field.mode in (None, "L"):
        mode = "P"
    channels = CHANNELS.get(mode)
    if channels is None or field.optional:
        raise OptionError(f"{field} cannot be decoded into a batch; leave it out or convert it first")
    ops = [(_adapted(op, number, field.mask), key) for number, (op, key) in enumerate(ops)]
    spec = Spec(np.dtype(np.uint8), (None, None, channels), unequal=True)
    as_stored = _stays_unequal(spec, [op for op, _ in ops])
    if as_stored:
        decoder = ops[0][0]
        assert isinstance(decoder, ImageDecoder)
        size = _first_size(reader, name, mode, decoder.orient)
        spec = spec.replace(shape=(*size, channels), unequal=False)
    steps, target, spec, remaining = _fuse_leading(ops, spec, mode, as_stored, on_device)
    return ImageStage(steps, target), spec, _joined(remaining)


def _adapted(op: Op, number: int, mask: bool) -> Op:
    """Return the op in the form that fits its position and, for masks, that does not blend values."""
    if number and isinstance(op, CenterCrop):
        op = op.after_decoding()
    if mask and isinstance(op, Policy):
        return op.of_masks()
    if mask and isinstance(op, Cutting | Warp) and op.resamples:
        if op.filter not in (None, "nearest"):
            raise OptionError(f"{op.filter} would blend the values of a mask: give filter='nearest', or none")
        op = copy.copy(op)
        op.filter = "nearest"
    return op


def _stays_unequal(spec: Spec, ops: list[Op]) -> bool:
    """Return True if images still have different sizes at a step that cannot take them."""
    for op in ops:
        if not isinstance(op, Cutting | Warp | Collate) or not spec.unequal:
            break
        if isinstance(op, Collate):
            return False
        spec = op.infer(spec)
    return spec.unequal


def _fuse_leading(
    ops: Ops, spec: Spec, mode: str, as_stored: bool, on_device: bool
) -> tuple[tuple[Step[Cutting], ...], Target, Spec, Ops]:
    channels = CHANNELS[mode]
    steps: list[Step[Cutting]] = []
    fill: Any = None
    filter = ""
    collate: Collate | None = None
    remaining = list(ops)
    while remaining and isinstance(remaining[0][0], Cutting) and remaining[0][0].composes:
        op, key = remaining[0]
        assert isinstance(op, Cutting)
        height, width = spec.shape[:2]
        fills = op.fills((height, width))
        if steps:
            # Resampling twice differs from once, and so do a border that is resampled with its image and
            # pixels that these filters see beyond the edge of a crop.
            if op.resamples and (filter or fill is not None or (op.filter in SEE_BEYOND and _crops(steps))):
                break
            if fills and fill is not None and not np.array_equal(fill, colour(op.fill, channels)):
                break
            if on_device and (fills or op.mirrors_down) and not spec.unequal:
                break
        spec = op.infer(spec)
        if op.resamples:
            filter = op.filter or "area"
        if fills:
            fill = colour(op.fill, channels)
        steps.append(Step(op, key, spec))
        remaining = remaining[1:]
    if remaining and type(remaining[0][0]) is Collate:
        candidate = remaining[0][0]
        padding = colour(candidate.fill, channels)
        if candidate.how == "list" or fill is None or np.array_equal(fill, padding):
            collate, spec, remaining = candidate, candidate.infer(spec), remaining[1:]
            fill = padding if candidate.how == "pad" else fill
    if collate is None and spec.unequal:
        # The next step takes images one by one.
        collate = Collate("list")
    normalize: Normalize | None = None
    channels_first = False
    while remaining and type(remaining[0][0]) in (Normalize, ChannelsFirst) and not channels_first:
        op = remaining[0][0]
        if isinstance(op, Normalize):
            if normalize is not None or op.dtype == np.float64:
                break
            normalize = op
        else:
            channels_first = True
        spec = op.infer(spec)
        remaining = remaining[1:]
    last = steps[-1].spec.shape
    height, width = (0, 0) if collate is not None else (last[0] or 0, last[1] or 0)
    target = Target(
        mode, filter or "area", height, width, channels, as_stored, normalize, channels_first,
        () if fill is None else tuple(fill.tolist()), collate,
    )  # fmt: skip
    return tuple(steps), target, spec, remaining


def _crops(steps: list[Step[Cutting]]) -> bool:
    return any(step.op.size is not None for step in steps)


def _joined(ops: Ops) -> Ops:
    """Join neighbours that can run in one pass: warps; a normalisation and channels first."""
    result: Ops = []
    for op, key in ops:
        joined: Op | None = None
        if result and isinstance(op, Warp):
            joined = op.joined(key, result[-1])
        elif result and type(op) is ChannelsFirst and type(result[-1][0]) is Normalize:
            joined = NormalizedPlanes(result[-1][0])
        if joined is None:
            result.append((op, key))
        else:
            result[-1] = joined, result[-1][1]
    return result


def _first_size(reader: Reader, name: str, mode: str, orient: bool) -> tuple[int, int]:
    """Return the size that all images must have if the pipeline names none: that of the first decodable one.

    The image is decoded: batches take memory for this size, and a header alone is not trusted.
    """
    for sample in range(min(len(reader), PROBED_SAMPLES)):
        # The error of a sample is reported when it is read.
        with contextlib.suppress(DataError):
            column = reader.read([sample], [name]).ragged(name)
            pixels = decode_cell(Image(mode=mode), column, 0)
            if pixels is None or max(pixels.shape) > LONGEST_SIDE:
                continue
            raw = column.shape is not None and column.shape[0].any()
            height, width = pixels.shape[:2]
            turned = orient and not raw and images.orientation(column[0]) >= 5
            return (width, height) if turned else (height, width)
    return (0, 0)
