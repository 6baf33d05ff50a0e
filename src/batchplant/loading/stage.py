"""What is done to images in one pass, by the engine or by a device: the first steps of their pipeline.

Crops, resizes, flips and padding, in any order and number, are one box of every image, resized once, at a
place of a canvas; normalisation and channels first cost nothing more.
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
from ..ops.cutting import Cuts, Cutting, colour, cuts_of
from ..ops.decode import CenterCrop, ChannelsFirst, ImageDecoder, Normalize, RandomHorizontalFlip
from ..ops.framing import Collate
from ..ops.planes import NormalizedPlanes
from ..ops.policies import Policy
from ..ops.warping import Warp
from ..schema import Image
from ..schema.columns import I32, I64, Ragged

CHANNELS = {"L": 1, "P": 1, "LA": 2, "RGB": 3, "RGBA": 4, "CMYK": 4}
# How many samples may be damaged before the size of images cannot be told.
PROBED_SAMPLES = 64
# Of an image in a batch; the engine makes none that is longer.
LONGEST_SIDE = 65535

# The filters that take pixels from beside the box, too.
SEE_BEYOND = ("bilinear", "bicubic")

OpT = TypeVar("OpT", bound=Op, covariant=True)


@dataclasses.dataclass(frozen=True)
class Step(Generic[OpT]):
    """An op, the name its random draws go by, and what comes out of it."""

    op: OpT
    key: str
    spec: Spec


@dataclasses.dataclass(frozen=True)
class Target:
    """What every image of a batch becomes.

    ``mode`` is the one that they are decoded to; P: the indices of palettes, the levels of gray images.
    ``as_stored``: nobody asked for a size, so all must have that of the first. ``fill``: what is beside
    images, a number for each channel. ``collate``: how images of unequal sizes become a batch; then
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
    def dtype(self) -> np.dtype[Any]:
        return np.dtype(np.uint8) if self.normalize is None else self.normalize.dtype

    @property
    def shape(self) -> tuple[int, int, int]:
        size = (self.height, self.width)
        return (self.channels, *size) if self.channels_first else (*size, self.channels)

    @property
    def as_list(self) -> bool:
        """Whether it becomes a list of arrays."""
        return self.collate is not None and self.collate.how == "list"

    @property
    def pixels(self) -> Target:
        """The same without normalisation and with channels last."""
        return dataclasses.replace(self, normalize=None, channels_first=False)


@dataclasses.dataclass(frozen=True)
class ImageStage:
    """What is done to images in one pass: box, resize, flips, place, normalisation, layout.

    ``steps``: the decoder, and what goes on from there.
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
        """Whether the boxes of the decoder and flips are all of it."""
        flips = all(type(step.op) is RandomHorizontalFlip for step in self.steps[1:])
        return flips and self.decoder.op.boxed and self.target.collate is None

    def cuts(self, sizes: I32, ids: I64, *, seed: int, epoch: int) -> tuple[Cuts, dict[int, DataError]]:
        """How images of these sizes are cut, and which of them a step cannot take."""

        def draws(step: Step[Any]) -> Draws:
            return Draws(seed, epoch, ids, step.key)

        if self.plain:
            decoder, flips = self.decoder, np.zeros(len(ids), dtype=np.bool_)
            boxes = decoder.op.boxes(sizes, draws(decoder))
            for step in self.steps[1:]:
                assert isinstance(step.op, RandomHorizontalFlip)
                flips ^= step.op.flips(draws(step))
            mirrored = flips if len(self.steps) > 1 else None
            return Cuts(boxes, mirrored, None, None, decoder.op.after(sizes)), {}
        motions, at = [], sizes
        wrong: dict[int, DataError] = {}
        for step in self.steps:
            small = step.op.too_small(at)
            for row in np.flatnonzero(small).tolist() if small is not None else ():
                size = f"the image is {at[row, 1]}×{at[row, 0]}"
                error = DecodeError(f"{size}, too small for {step.op!r}; pad_if_needed=True pads it")
                wrong.setdefault(row, error)
            motions.append(step.op.move(at, draws(step)))
            at = motions[-1].sizes
        return cuts_of(sizes, motions), wrong

    def __str__(self) -> str:
        said: list[Any] = [step.op for step in self.steps]
        said += [one for one in (self.target.collate, self.target.normalize) if one is not None]
        return ", ".join([*map(repr, said), *(["ChannelsFirst()"] if self.target.channels_first else [])])


Ops = list[tuple[Op, str]]


def fuse(
    reader: Reader, name: str, field: Image, ops: Ops, *, on_device: bool
) -> tuple[ImageStage, Spec, Ops]:
    """The stage that is done in one pass, what comes out of it, and the ops that are left.

    ``ops`` begin with a decoder. ``on_device``: a device makes the images; what its kernel cannot do is
    left to ops, which have a device form.
    """
    mode = field.mode or "RGB"
    if field.mask and field.mode in (None, "L"):
        mode = "P"
    channels = CHANNELS.get(mode)
    if channels is None or field.optional:
        raise OptionError(f"{field} cannot be decoded into a batch; leave it out or convert it first")
    ops = [(_fitted(op, number, field.mask), key) for number, (op, key) in enumerate(ops)]
    spec = Spec(np.dtype(np.uint8), (None, None, channels), unequal=True)
    as_stored = _stays_unequal(spec, [op for op, _ in ops])
    if as_stored:
        decoder = ops[0][0]
        assert isinstance(decoder, ImageDecoder)
        size = _first_size(reader, name, mode, decoder.orient)
        spec = spec.but(shape=(*size, channels), unequal=False)
    steps, target, spec, rest = _leading(ops, spec, mode, as_stored, on_device)
    return ImageStage(steps, target), spec, _joined(rest)


def _fitted(op: Op, number: int, mask: bool) -> Op:
    """The op as it is meant there."""
    if number and isinstance(op, CenterCrop):
        op = op.behind()
    if mask and isinstance(op, Policy):
        return op.of_masks()
    if mask and isinstance(op, Cutting | Warp) and op.resamples:
        if op.filter not in (None, "nearest"):
            raise OptionError(f"{op.filter} would blend the values of a mask: give filter='nearest', or none")
        op = copy.copy(op)
        op.filter = "nearest"
    return op


def _stays_unequal(spec: Spec, ops: list[Op]) -> bool:
    """Whether images still have their own sizes when a step comes that cannot take them."""
    for op in ops:
        if not isinstance(op, Cutting | Warp | Collate) or not spec.unequal:
            break
        if isinstance(op, Collate):
            return False
        spec = op.infer(spec)
    return spec.unequal


def _leading(
    ops: Ops, spec: Spec, mode: str, as_stored: bool, on_device: bool
) -> tuple[tuple[Step[Cutting], ...], Target, Spec, Ops]:
    channels = CHANNELS[mode]
    steps: list[Step[Cutting]] = []
    fill: Any = None
    filter = ""
    collate: Collate | None = None
    rest = list(ops)
    while rest and isinstance(rest[0][0], Cutting) and rest[0][0].composes:
        op, key = rest[0]
        assert isinstance(op, Cutting)
        height, width = spec.shape[:2]
        fills = op.fills((height, width))
        if steps:
            # Twice resampled is not the same as once; nor is a border that is resampled with its image, nor
            # what these filters see beyond the edge of a crop.
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
        rest = rest[1:]
    if rest and type(rest[0][0]) is Collate:
        one = rest[0][0]
        padding = colour(one.fill, channels)
        if one.how == "list" or fill is None or np.array_equal(fill, padding):
            collate, spec, rest = one, one.infer(spec), rest[1:]
            fill = padding if one.how == "pad" else fill
    if collate is None and spec.unequal:
        # Some step that takes images one by one comes next.
        collate = Collate("list")
    normalize: Normalize | None = None
    channels_first = False
    while rest and type(rest[0][0]) in (Normalize, ChannelsFirst) and not channels_first:
        op = rest[0][0]
        if isinstance(op, Normalize):
            if normalize is not None or op.dtype == np.float64:
                break
            normalize = op
        else:
            channels_first = True
        spec = op.infer(spec)
        rest = rest[1:]
    last = steps[-1].spec.shape
    height, width = (0, 0) if collate is not None else (last[0] or 0, last[1] or 0)
    target = Target(
        mode, filter or "area", height, width, channels, as_stored, normalize, channels_first,
        () if fill is None else tuple(fill.tolist()), collate,
    )  # fmt: skip
    return tuple(steps), target, spec, rest


def _crops(steps: list[Step[Cutting]]) -> bool:
    return any(step.op.size is not None for step in steps)


def _joined(ops: Ops) -> Ops:
    """Neighbours that are one pass together: warps; a normalisation and channels first."""
    made: Ops = []
    for op, key in ops:
        joined: Op | None = None
        if made and isinstance(op, Warp):
            joined = op.joined(key, made[-1])
        elif made and type(op) is ChannelsFirst and type(made[-1][0]) is Normalize:
            joined = NormalizedPlanes(made[-1][0])
        if joined is None:
            made.append((op, key))
        else:
            made[-1] = joined, made[-1][1]
    return made


def _first_size(reader: Reader, name: str, mode: str, orient: bool) -> tuple[int, int]:
    """The size that all images have to have when none is asked for: that of the first that can be decoded.

    A header alone is not believed: batches take memory for it.
    """
    for sample in range(min(len(reader), PROBED_SAMPLES)):
        # What is wrong with a sample is said when it is read.
        with contextlib.suppress(DataError):
            column = reader.read([sample], [name])[name]
            assert isinstance(column, Ragged)
            pixels = decode_cell(Image(mode=mode), column, 0)
            if pixels is None or max(pixels.shape) > LONGEST_SIDE:
                continue
            raw = column.shape is not None and column.shape[0].any()
            height, width = pixels.shape[:2]
            turned = orient and not raw and images.orientation(column[0]) >= 5
            return (width, height) if turned else (height, width)
    return (0, 0)
