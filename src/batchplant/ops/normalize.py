"""Normalize numbers and pixels, with a mean and a std that may be computed from the data; channels first."""

from __future__ import annotations

import json
import os
import warnings
from collections.abc import Sequence
from typing import Self

import numpy as np

from .. import _native
from ..data.reader import Reader
from ..errors import DamagedError, OptionError, exceptions_as
from ..ops.base import DType
from ..schema.columns import I64, AnyArray
from ..storage import NOTE_ERRORS, parse_object, put_file, read_whole
from .base import Batch, Draws, Op, Spec, Tensors
from .cutting import engine
from .values import FIT_SAMPLES, moments


class Normalize(Op):
    """(value - mean) / std, as float32, float16 or float64.

    Of images and clips of uint8, whose levels are from 0 to 255: one mean and std for each channel. Of
    other numbers: one for all, or one for each number of the last axis. ``fit`` finds them in the data.
    dtype: of the result.
    """

    def __init__(
        self, mean: float | Sequence[float], std: float | Sequence[float], dtype: DType = "float32"
    ) -> None:
        self.mean, self.std = (np.atleast_1d(np.array(numbers, dtype=np.float64)) for numbers in (mean, std))
        self.dtype = np.dtype(dtype)
        if self.dtype not in (np.dtype(np.float16), np.dtype(np.float32), np.dtype(np.float64)):
            raise OptionError(f"Normalize gives float16, float32 or float64, not {self.dtype}")
        if self.mean.shape != self.std.shape or self.mean.ndim != 1 or (self.std == 0).any():
            raise OptionError("mean and std need one number for each channel, and std no zero")

    @classmethod
    def fit(
        cls,
        reader: Reader,
        field: str,
        *,
        each: bool = True,
        samples: int = FIT_SAMPLES,
        dtype: DType = "float32",
    ) -> Self:
        """Return the op with mean and std of a field of images, numbers or arrays, but for NaN and missing.

        Of images: for each channel, of at most ``samples`` of them, evenly spread. Of arrays: for each
        number of the last axis, or with ``each=False`` one for all. What never varies has the std 1.
        """
        mean, std = moments(reader, field, each=each, samples=samples)
        return cls(mean.tolist(), std.tolist(), dtype)

    @classmethod
    def stored(cls, reader: Reader, field: str, *, dtype: DType = "float32") -> Self:
        """Return the op with the ``mean`` and ``std`` that the dataset holds about a field (its attributes).

        What never varies has the std 1. Raises: OptionError where the dataset holds none.
        """
        noted = reader.attributes.get(field, {})
        with exceptions_as(OptionError, f"it holds no mean and std of {field!r}", KeyError, path=reader.path):
            mean, std = (np.asarray(noted[key], dtype=np.float64).reshape(-1) for key in ("mean", "std"))
        return cls(mean.tolist(), np.where(std > 0, std, 1.0).tolist(), dtype)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """Return the op with what a file that ``save`` wrote has."""
        where = os.fspath(path)
        with exceptions_as(DamagedError, "no mean and std", *NOTE_ERRORS, path=where):
            stored = parse_object(read_whole(where))
            return cls(stored["mean"], stored["std"], stored["dtype"])

    def save(self, path: str | os.PathLike[str]) -> None:
        """As a JSON file, which appears when it is complete."""
        content = {"mean": self.mean.tolist(), "std": self.std.tolist(), "dtype": self.dtype.name}
        put_file(os.fspath(path), json.dumps({"batchplant": 1, **content}).encode())

    def infer(self, spec: Spec) -> Spec:
        if spec.dtype == np.uint8 and len(spec.shape) >= 3:
            self._check_images(spec)
        elif spec.dtype is None or spec.dtype.kind not in "biuf":
            raise OptionError(f"Normalize needs images or numbers, not {spec}")
        elif len(self.mean) not in (1, spec.shape[-1] if spec.shape else 1):
            raise OptionError(f"Normalize has {len(self.mean)} means, and they do not fit {spec}")
        return spec.replace(dtype=self.dtype)

    def _check_images(self, spec: Spec) -> None:
        # Clips are images below each other.
        channels = spec.replace(shape=spec.shape[-3:]).channels(self, unequal=True)
        if channels != len(self.mean):
            raise OptionError(f"Normalize needs uint8 images of {len(self.mean)} channels, not {spec}")
        if ((self.mean > 0) & (self.mean < 1)).all():
            mean, std = (
                ", ".join(f"{255 * number:.6g}" for number in many) for many in (self.mean, self.std)
            )
            warnings.warn(
                "Normalize has means below 1, and the levels of images are from 0 to 255: multiply means "
                f"and stds by 255, Normalize(({mean}), ({std}))",
                stacklevel=2,
            )

    def table(self) -> AnyArray:
        """The value of every level in every channel."""
        return ((np.arange(256)[:, None] - self.mean) / self.std).astype(self.dtype)

    def run(self, batch: Batch, ids: I64, draws: Draws) -> Batch:
        if isinstance(batch, list):
            return [self.run(image[None], ids, draws)[0] for image in batch]
        if isinstance(batch, tuple):
            return self.run(batch[0], ids, draws), batch[1]
        if batch.dtype != np.uint8 or batch.ndim < 4:
            mean, std = (self.mean, self.std) if batch.ndim > 1 else (self.mean[0], self.std[0])
            return ((batch.astype(np.float64) - mean) / std).astype(self.dtype)
        return self.pixels(batch, np.empty(batch.shape, dtype=self.dtype))

    def pixels(self, batch: Batch, out: AnyArray, plane: int = 0) -> AnyArray:
        """Return images of uint8, in ``out``; ``plane``: the pixels of each, where channels come first."""
        # As whole numbers of that size: they are only copied.
        bits = np.dtype(f"u{self.dtype.itemsize}")
        tables = np.ascontiguousarray(self.table().T)
        levels = np.ascontiguousarray(batch).reshape(-1)
        _native.look_up(levels, tables.view(bits), out.reshape(-1).view(bits), plane, engine())
        return out

    def on_device(self, batch: Batch, ids: I64, draws: Draws, tensors: Tensors) -> Batch:
        mean, std = tensors.send(self.mean), tensors.send(self.std)
        return ((batch.float() - mean) / std).to(getattr(tensors.torch, self.dtype.name))


class NormalizedPlanes(Op):
    """Normalize and ChannelsFirst in one pass; the plan puts it in place of both."""

    def __init__(self, normalize: Normalize) -> None:
        self._normalize, self._first = normalize, ChannelsFirst()

    def __repr__(self) -> str:
        return f"{self._normalize!r}, {self._first!r}"

    def infer(self, spec: Spec) -> Spec:
        return self._first.infer(self._normalize.infer(spec))

    def run(self, batch: Batch, ids: I64, draws: Draws) -> Batch:
        if isinstance(batch, list):
            return [self.run(image[None], ids, draws)[0] for image in batch]
        if batch.dtype != np.uint8:
            return self._first.run(self._normalize.run(batch, ids, draws), ids, draws)
        count, height, width, channels = batch.shape
        out = np.empty((count, channels, height, width), dtype=self._normalize.dtype)
        return self._normalize.pixels(batch, out, height * width)

    def on_device(self, batch: Batch, ids: I64, draws: Draws, tensors: Tensors) -> Batch:
        normalized = self._normalize.on_device(batch, ids, draws, tensors)
        return self._first.on_device(normalized, ids, draws, tensors)


class ChannelsFirst(Op):
    """(height, width, channels) to (channels, height, width)."""

    def infer(self, spec: Spec) -> Spec:
        channels = spec.channels(self, unequal=True)
        return spec.replace(shape=(channels, *spec.shape[:2]), channels_first=True)

    def run(self, batch: Batch, ids: I64, draws: Draws) -> Batch:
        if isinstance(batch, list):
            return [self.run(image[None], ids, draws)[0] for image in batch]
        return np.ascontiguousarray(np.moveaxis(batch, -1, 1))

    def on_device(self, batch: Batch, ids: I64, draws: Draws, tensors: Tensors) -> Batch:
        return batch.permute(0, 3, 1, 2).contiguous()
