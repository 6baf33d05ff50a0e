"""Changes of augmentation to images, by code, in the native core or on a device.

An op draws :class:`Changes`: for every image of a batch which changes, one after the other, and how much of
each. Then ``change`` makes them in one pass over the batch, and ``change_on_device`` on tensors.
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Callable
from types import ModuleType

import numpy as np
import numpy.typing as npt

from .. import _native
from ..order.keyed import U64, derive
from ..schema.columns import I64, AnyArray
from .base import Tensor, Tensors, per_sample
from .cutting import colour, engine
from .geometry import F64, I32, Motion
from .warping import warp_tensor

U8 = npt.NDArray[np.uint8]
# Amounts of a change; all but AFFINE use the first only.
AMOUNTS = 6


class Change(enum.IntEnum):
    """Codes of changes; native/images/changes.hpp defines their amounts."""

    NONE = 0
    BRIGHTNESS = 1
    CONTRAST = 2
    SATURATION = 3
    SHARPNESS = 4
    POSTERIZE = 5
    SOLARIZE = 6
    INVERT = 7
    AUTOCONTRAST = 8
    EQUALIZE = 9
    JPEG = 10
    AFFINE = 11


@dataclasses.dataclass(frozen=True)
class Changes:
    """codes: (images, steps). amounts: (images, steps, AMOUNTS)."""

    codes: U8
    amounts: F64

    @staticmethod
    def none(images: int, steps: int) -> Changes:
        return Changes(np.zeros((images, steps), np.uint8), np.zeros((images, steps, AMOUNTS)))

    def motion(self, sizes: I32) -> Motion | None:
        """Motion of the pixels of images of these sizes; None: nothing moves."""
        if not (self.codes == Change.AFFINE).any():
            return None
        matrix = np.broadcast_to(np.eye(3), (len(sizes), 3, 3)).copy()
        for step in range(self.codes.shape[1]):
            rows = np.flatnonzero(self.codes[:, step] == Change.AFFINE)
            back = np.broadcast_to(np.eye(3), (len(rows), 3, 3)).copy()
            back[:, :2] = self.amounts[rows, step].reshape(-1, 2, 3)
            matrix[rows] = np.linalg.inv(back) @ matrix[rows]
        return Motion(matrix, np.asarray(sizes, dtype=np.int32))


def change(images: AnyArray, changes: Changes, fill: AnyArray | int = 0, smooth: bool = False) -> AnyArray:
    """Images (n, height, width, channels) of bytes, changed; in place, where they lie in one piece.

    ``fill``: what moves into an image. ``smooth``: pixels that are moved are blended of four.
    """
    images = np.ascontiguousarray(images)
    fill = colour(fill, images.shape[-1])
    _native.change_images(images, changes.codes, changes.amounts, fill, smooth, engine())
    return images


def mix_changed(
    images: AnyArray, chains: list[Changes], weights: F64, fill: AnyArray | int = 0, smooth: bool = False
) -> AnyArray:
    """The sum of the images as they are and after each of the chains, by weight; in place as ``change``.

    ``weights``: (n, 1 + chains), that of the image as it is first.
    """
    images = np.ascontiguousarray(images)
    codes = np.concatenate([chain.codes for chain in chains], axis=1)
    amounts = np.concatenate([chain.amounts for chain in chains], axis=1)
    fill = colour(fill, images.shape[-1])
    _native.mix_changed(images, codes, amounts, weights.astype(np.float32), fill, smooth, engine())
    return images


# Amounts (n, AMOUNTS) and the images (n, height, width, channels) that they are for.
Form = Callable[[Tensor, F64, Tensors], Tensor]


def change_on_device(
    images: Tensor, changes: Changes, tensors: Tensors, fill: AnyArray | int = 0, smooth: bool = False
) -> Tensor:
    """Apply ``change`` to a tensor, out of place."""
    for step in range(changes.codes.shape[1]):
        codes = changes.codes[:, step]
        result = images
        for code in np.unique(codes):
            if code == Change.NONE:
                continue
            rows = np.flatnonzero(codes == code)
            amounts = changes.amounts[rows, step]
            index = tensors.send(rows)
            selected = images if len(rows) == len(images) else images[index]
            if code == Change.AFFINE:
                changed = _move(selected, amounts, tensors, fill, smooth)
            else:
                changed = FORMS[Change(code)](selected, amounts, tensors)
            if selected is images:
                result = changed
            else:
                result = result.clone() if result is images else result
                result[index] = changed
        images = result
    return images


def _ratio(amounts: F64, tensors: Tensors) -> Tensor:
    return tensors.send(per_sample(amounts[:, 0].astype(np.float32), 4))


def _blend(start: Tensor, end: Tensor, amounts: F64, tensors: Tensors) -> Tensor:
    level = start + _ratio(amounts, tensors) * (end - start)
    return level.clamp(0, 255).to(tensors.torch.uint8)


def _brightness(images: Tensor, amounts: F64, tensors: Tensors) -> Tensor:
    return _blend(0, images.float(), amounts, tensors)


def _contrast(images: Tensor, amounts: F64, tensors: Tensors) -> Tensor:
    levels = images.float()
    gray = luma(levels, tensors.torch) if levels.shape[-1] == 3 else levels
    mean = gray.flatten(1).mean(1, dtype=tensors.torch.float64)
    return _blend((mean + 0.5).floor().float().view(-1, 1, 1, 1), levels, amounts, tensors)


def _saturation(images: Tensor, amounts: F64, tensors: Tensors) -> Tensor:
    if images.shape[-1] != 3:
        return images
    levels = images.float()
    return _blend(luma(levels, tensors.torch)[..., None], levels, amounts, tensors)


def _sharpness(images: Tensor, amounts: F64, tensors: Tensors) -> Tensor:
    height, width = images.shape[1:3]
    if height < 3 or width < 3:
        return images
    levels = images.float()
    middle = levels[:, 1:-1, 1:-1]
    lines = levels[:, :-2] + levels[:, 1:-1] + levels[:, 2:]
    around = lines[:, :, :-2] + lines[:, :, 1:-1] + lines[:, :, 2:]
    sharpened = images.clone()
    sharpened[:, 1:-1, 1:-1] = _blend(((around + 4 * middle + 6) / 13).floor(), middle, amounts, tensors)
    return sharpened


def _posterize(images: Tensor, amounts: F64, tensors: Tensors) -> Tensor:
    bits = amounts[:, 0].astype(np.int64).clip(0, 8)
    return images & tensors.send(per_sample(((0xFF << (8 - bits)) & 0xFF).astype(np.uint8), 4))


def _solarize(images: Tensor, amounts: F64, tensors: Tensors) -> Tensor:
    return tensors.torch.where(images < _ratio(amounts, tensors), images, 255 - images)


def _invert(images: Tensor, amounts: F64, tensors: Tensors) -> Tensor:
    return 255 - images


def _look_up(images: Tensor, tables: Tensor) -> Tensor:
    """Every level by the table of its image and channel, (n, channels, 256)."""
    planes = images.permute(0, 3, 1, 2)
    levels = tables.gather(2, planes.flatten(2).long())
    return levels.view(planes.shape).permute(0, 2, 3, 1).contiguous()


def _autocontrast(images: Tensor, amounts: F64, tensors: Tensors) -> Tensor:
    torch = tensors.torch
    low = images.amin((1, 2))[..., None].double()
    high = images.amax((1, 2))[..., None].double()
    levels = torch.arange(256, device=images.device, dtype=torch.float64)
    # A number over a tensor would be its reciprocal times the number, rounded twice.
    scale = torch.full_like(high, 255.0) / (high - low).clamp(min=1)
    tables = (levels * scale - low * scale).clamp(0, 255)
    return _look_up(images, torch.where(high <= low, levels, tables).to(torch.uint8))


def _equalize(images: Tensor, amounts: F64, tensors: Tensors) -> Tensor:
    torch, device = tensors.torch, images.device
    count, height, width, channels = images.shape
    histogram_start = torch.arange(count * channels, device=device).view(count, 1, 1, channels) * 256
    bin_index = (images.long() + histogram_start).flatten()
    ones = torch.ones(1, device=device, dtype=torch.int64).expand_as(bin_index)
    seen = torch.zeros(count * channels * 256, device=device, dtype=torch.int64).scatter_add_(
        0, bin_index, ones
    )
    seen = seen.view(count, channels, 256)
    levels = torch.arange(256, device=device)
    lightest = torch.where(seen > 0, levels, 0).amax(2, keepdim=True)
    step = (height * width - seen.gather(2, lightest)) // 255
    below = step // 2 + seen.cumsum(2) - seen
    tables = torch.where(step == 0, levels, (below // step.clamp(min=1)).clamp(max=255))
    return _look_up(images, tables.to(torch.uint8))


def _jpeg(images: Tensor, amounts: F64, tensors: Tensors) -> Tensor:
    return through_jpeg(images, amounts[:, 0].astype(np.int64), tensors)


FORMS: dict[Change, Form] = {
    Change.BRIGHTNESS: _brightness,
    Change.CONTRAST: _contrast,
    Change.SATURATION: _saturation,
    Change.SHARPNESS: _sharpness,
    Change.POSTERIZE: _posterize,
    Change.SOLARIZE: _solarize,
    Change.INVERT: _invert,
    Change.AUTOCONTRAST: _autocontrast,
    Change.EQUALIZE: _equalize,
    Change.JPEG: _jpeg,
}


def _move(images: Tensor, matrices: F64, tensors: Tensors, fill: AnyArray | int, smooth: bool) -> Tensor:
    """Sample every pixel at the position that the matrix (n, AMOUNTS) of its image gives."""
    count, height, width, channels = images.shape
    if smooth:
        inverse = np.broadcast_to(np.eye(3), (count, 1, 3, 3)).copy()
        inverse[:, 0, :2] = matrices.reshape(-1, 2, 3)
        canvases = np.broadcast_to(np.array([height, width], np.int32), (count, 1, 2))
        return warp_tensor(images, inverse, canvases, True, fill, tensors)
    torch, device = tensors.torch, images.device
    # Pillow's fixed-point arithmetic, so that ties fall the same way.
    first, right, down = (tensors.send(part) for part in _fixed(matrices))
    row = torch.arange(height, device=device).view(1, 1, -1, 1)
    column = torch.arange(width, device=device).view(1, 1, 1, -1)
    x, y = ((first + right * column + down * row) >> 16).unbind(1)
    inside = (x >= 0) & (x < width) & (y >= 0) & (y < height)
    index = (y.clamp(0, height - 1) * width + x.clamp(0, width - 1)).view(count, -1, 1)
    flat = images.reshape(count, height * width, channels)
    moved = flat.gather(1, index.expand(-1, -1, channels)).view(images.shape)
    return torch.where(inside[..., None], moved, tensors.send(np.asarray(fill, np.uint8)))


def _fixed(matrices: F64) -> tuple[I64, I64, I64]:
    """In 16.16 bits, (n, 2, 1, 1) each: where the first pixel comes from, and one step right and down."""
    pairs = matrices.reshape(-1, 2, 3)
    origin = pairs[..., 2] + pairs[..., 0] * 0.5 + pairs[..., 1] * 0.5
    first, right, down = (
        np.floor(part * 65536.0 + 0.5).astype(np.int64)[..., None, None]
        for part in (origin, pairs[..., 0], pairs[..., 1])
    )
    return first, right, down


# The cosine transform times 2**13, in the whole numbers that libjpeg's accurate one works with; its transpose
# goes back.
_EVEN = ((8192, 8192, 8192, 8192), (10703, 4433, -4433, -10703), (8192, -8192, -8192, 8192),
         (4433, -10704, 10704, -4433))  # fmt: skip
_ODD = ((11363, 9633, 6437, 2260), (9633, -2259, -11362, -6436), (6437, -11362, 2261, 9633),
        (2260, -6436, 9633, -11363))  # fmt: skip
_BITS = 13
# Extra bits of precision between the two passes.
_EXTRA_BITS = 2

# Annex K of the standard.
_LUMA = (
    (16, 11, 10, 16, 24, 40, 51, 61), (12, 12, 14, 19, 26, 58, 60, 55),
    (14, 13, 16, 24, 40, 57, 69, 56), (14, 17, 22, 29, 51, 87, 80, 62),
    (18, 22, 37, 56, 68, 109, 103, 77), (24, 35, 55, 64, 81, 104, 113, 92),
    (49, 64, 78, 87, 103, 121, 120, 101), (72, 92, 95, 98, 112, 100, 103, 99),
)  # fmt: skip
_CHROMA = (
    (17, 18, 24, 47, 99, 99, 99, 99), (18, 21, 26, 66, 99, 99, 99, 99),
    (24, 26, 56, 99, 99, 99, 99, 99), (47, 66, 99, 99, 99, 99, 99, 99),
    *((99,) * 8,) * 4,
)  # fmt: skip


def _matrix() -> Tensor:
    rows = []
    for even, odd in zip(_EVEN, _ODD, strict=True):
        rows += [(*even, *even[::-1]), (*odd, *(-value for value in odd[::-1]))]
    return np.array(rows, dtype=np.int64)


def _steps(table: npt.ArrayLike, qualities: I64) -> I64:
    """The quantisation of every image, (n, 1, 8, 1, 8)."""
    scale = np.where(qualities < 50, 5000 // qualities, 200 - 2 * qualities)[:, None, None]
    steps: I64 = ((np.asarray(table) * scale + 50) // 100).clip(1, 255)
    return steps[:, None, :, None, :]


def through_jpeg(images: Tensor, qualities: I64, tensors: Tensors) -> Tensor:
    """Images (n, height, width, 1 or 3) of bytes as a JPEG of their quality leaves them."""
    matrix = tensors.send(_matrix()).double()
    luma, chroma = (tensors.send(_steps(table, qualities)).double() for table in (_LUMA, _CHROMA))
    levels = images.double()
    if images.shape[-1] == 1:
        return _transform_plane(levels[..., 0], matrix, luma).to(images.dtype)[..., None]
    red, green, blue = levels.unbind(-1)
    height, width = images.shape[1:3]
    y = ((19595 * red + 38470 * green + 7471 * blue + 32768) / 65536).floor()
    cb = ((-11059 * red - 21709 * green + 32768 * blue + (128 << 16) + 32767) / 65536).floor()
    cr = ((32768 * red - 27439 * green - 5329 * blue + (128 << 16) + 32767) / 65536).floor()
    y = _transform_plane(y, matrix, luma)
    cb, cr = (
        _double(_transform_plane(_halve(plane), matrix, chroma), height, width) - 128 for plane in (cb, cr)
    )
    red = y + ((91881 * cr + 32768) / 65536).floor()
    green = y + ((-22554 * cb - 46802 * cr + 32768) / 65536).floor()
    blue = y + ((116130 * cb + 32768) / 65536).floor()
    return tensors.torch.stack([red, green, blue], -1).clamp(0, 255).to(images.dtype)


def _pad_edges(plane: Tensor, height: int, width: int) -> Tensor:
    """Repeat the last row and column up to this size."""
    down, right = height - plane.shape[1], width - plane.shape[2]
    if right:
        plane = _cat(plane, plane[:, :, -1:].expand(-1, -1, right), 2)
    return _cat(plane, plane[:, -1:].expand(-1, down, -1), 1) if down else plane


def _cat(first: Tensor, second: Tensor, axis: int) -> Tensor:
    shape = list(first.shape)
    shape[axis] += second.shape[axis]
    joined = first.new_empty(shape)
    joined.narrow(axis, 0, first.shape[axis]).copy_(first)
    joined.narrow(axis, first.shape[axis], second.shape[axis]).copy_(second)
    return joined


def _transform_plane(plane: Tensor, matrix: Tensor, steps: Tensor) -> Tensor:
    """One channel (n, height, width), transformed, quantised, and back."""
    count, height, width = plane.shape
    plane = _pad_edges(plane, -(-height // 8) * 8, -(-width // 8) * 8)
    blocks = plane.reshape(count, plane.shape[1] // 8, 8, plane.shape[2] // 8, 8) - 128
    coefficients = _round_shift(
        _transform_columns(matrix, _round_shift(blocks @ matrix.T, _BITS - _EXTRA_BITS)), _BITS + _EXTRA_BITS
    )
    # The transform gives eight times what is quantised.
    quantized = (
        ((coefficients.abs() + (4 * steps).floor()) / (8 * steps)).floor() * coefficients.sign() * steps
    )
    back = (
        _round_shift(
            _round_shift(_transform_columns(matrix.T, quantized), _BITS - _EXTRA_BITS) @ matrix,
            _BITS + _EXTRA_BITS + 3,
        )
        + 128
    )
    return back.clamp(0, 255).reshape(plane.shape)[:, :height, :width]


def _transform_columns(matrix: Tensor, blocks: Tensor) -> Tensor:
    """The matrix times the columns of every block."""
    return (matrix @ blocks.transpose(2, 3)).transpose(2, 3)


def _round_shift(values: Tensor, bits: int) -> Tensor:
    return ((values + 2 ** (bits - 1)) / 2**bits).floor()


def _halve(plane: Tensor) -> Tensor:
    """Means of two by two; rounded up and down in turn."""
    height, width = plane.shape[1:]
    grown = _pad_edges(plane, height + height % 2, -(-width // 16) * 16)
    sums = grown[:, ::2, ::2] + grown[:, 1::2, ::2] + grown[:, ::2, 1::2] + grown[:, 1::2, 1::2]
    sums[:, :, ::2] += 1
    sums[:, :, 1::2] += 2
    return (sums / 4).floor()


def _double(plane: Tensor, height: int, width: int) -> Tensor:
    """Twice the size: three parts of the nearer value, one of the farther, on both axes."""
    plane = plane[:, :, : (width + 1) // 2]
    count, rows, columns = plane.shape
    if columns <= 2:
        return plane.repeat_interleave(2, 1).repeat_interleave(2, 2)[:, :height, :width]
    above = _cat(plane[:, :1], plane[:, :-1], 1)
    below = _cat(plane[:, 1:], plane[:, -1:], 1)
    lines = plane.new_empty((count, rows, 2, columns))
    lines[:, :, 0], lines[:, :, 1] = 3 * plane + above, 3 * plane + below
    lines = lines.view(count, 2 * rows, columns)
    before = _cat(lines[:, :, :1], lines[:, :, :-1], 2)
    after = _cat(lines[:, :, 1:], lines[:, :, -1:], 2)
    doubled = lines.new_empty((count, 2 * rows, columns, 2))
    doubled[..., 0] = ((3 * lines + before + 8) / 16).floor()
    doubled[..., 1] = ((3 * lines + after + 7) / 16).floor()
    return doubled.view(count, 2 * rows, 2 * columns)[:, :height, :width]


# Numbers of 12 bits in each word of 64.
LANES = 5


def numbers_of(key: U64, first: int, end: int) -> I64:
    """Numbers ``first`` to ``end`` - 1, each from 0 to 4095, of the stream of one key, (1,)."""
    words = derive(key, np.arange(first // LANES, -(-end // LANES)))
    lanes = (words[:, None] >> (12 * np.arange(LANES, dtype=np.uint64))) & np.uint64(4095)
    start = first - first // LANES * LANES
    return lanes.reshape(-1)[start : start + end - first].astype(np.int64)


def numbers_on_device(keys: U64, count: int, tensors: Tensors) -> Tensor:
    """The first ``count`` numbers of the stream of every key, (keys, count)."""
    torch = tensors.torch
    key = tensors.send(keys.view(np.int64))[:, None]
    words = torch.arange(1, -(-count // LANES) + 1, device=key.device)
    bits = key + words * _signed(0x9E3779B97F4A7C15)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB), (31, 1)):
        # Without the sign that a shift of a signed number repeats.
        bits = (bits ^ ((bits >> shift) & ((1 << (64 - shift)) - 1))) * _signed(factor)
    lanes = bits[..., None] >> (12 * torch.arange(LANES, device=key.device))
    return (lanes & 4095).flatten(1)[:, :count]


def _signed(number: int) -> int:
    return number - (1 << 64) if number >> 63 else number


def luma(images: Tensor, xp: ModuleType = np) -> Tensor:
    """The gray of every pixel, exactly as Pillow's ``convert("L")``; all its steps are exact in float32."""
    red, green, blue = (images[..., channel] for channel in range(3))
    return xp.floor((19595 * red + 38470 * green + 7471 * blue + 32768) / 65536)
