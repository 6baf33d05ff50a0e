"""Parts of a batch that came to the device in different ways, and the decoder there."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch

from ..codecs import image as pictures
from ..columns import I64
from ..errors import DataError
from .resample import Sources


class Part(NamedTuple):
    """Some pictures of a batch on the device, before the kernel."""

    rows: I64
    sources: Sources
    boxes: Any
    flip: Any


class RawViews:
    """Raw pictures that lie in one tensor, as tensors (height, width, channels)."""

    def __init__(self, whole: Any, places: I64, heights: I64, shape: I64) -> None:
        self._whole, self._places, self._heights, self._shape = whole, places, heights, shape

    def __getitem__(self, row: int) -> Any:
        height, (width, channels) = int(self._heights[row]), (int(one) for one in self._shape[row, 1:])
        start = int(self._places[row])
        return self._whole[start : start + height * width * channels].view(height, width, channels)


class PlanarViews:
    """Pictures (channels, height, width) as (height, width, channels)."""

    def __init__(self, planes: list[Any]) -> None:
        self._planes = planes

    def __getitem__(self, row: int) -> Any:
        return self._planes[row].permute(1, 2, 0)


class _Chosen:
    """The views of several parts, in the order of the batch."""

    def __init__(self, parts: list[Part], part: I64, row: I64) -> None:
        self._parts, self._part, self._row = parts, part, row

    def __getitem__(self, at: int) -> Any:
        return self._parts[self._part[at]].sources.views[int(self._row[at])]


def joined(parts: list[Part], count: int) -> Part:
    """Several parts as one that has all rows of the batch, in order."""
    rows = np.concatenate([part.rows for part in parts])
    back = np.argsort(rows)

    def put(values: list[Any]) -> Any:
        return np.ascontiguousarray(np.concatenate(values)[back])

    sources = [part.sources for part in parts]
    flips = [
        np.zeros(len(part.rows), np.bool_) if part.flip is None else np.asarray(part.flip, np.bool_)
        for part in parts
    ]
    which = put([np.full(len(part.rows), number) for number, part in enumerate(parts)])
    inside = put([np.arange(len(part.rows)) for part in parts])
    return Part(
        np.arange(count),
        Sources(
            put([one.start for one in sources]), put([one.strides for one in sources]),
            put([one.sizes for one in sources]), put([one.top for one in sources]),
            _Chosen(parts, which, inside), [one.kept for one in sources],
        ),
        put([part.boxes for part in parts]),
        put(flips),
    )  # fmt: skip


def decoder_on(device: Any) -> Callable[[list[Any]], list[Any]] | None:
    """Encoded JPEGs to pixels (channels, height, width) on the device; None where nothing can do that."""
    if device.type != "cuda":
        # For tests of the plan: the same pixels as the engine's.
        return lambda encoded: [
            torch.from_numpy(np.ascontiguousarray(_decoded(one).transpose(2, 0, 1))) for one in encoded
        ]
    try:
        from torchvision.io import ImageReadMode, decode_jpeg
    except (ImportError, RuntimeError):
        return None
    return lambda encoded: decode_jpeg(encoded, mode=ImageReadMode.RGB, device=device)


def _decoded(encoded: Any) -> Any:
    try:
        return pictures.decode(encoded.numpy(), "RGB")
    except DataError as error:
        raise RuntimeError(str(error)) from None
