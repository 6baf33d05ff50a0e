"""JPEGs decoded on a device, by NVIDIA's nvJPEG.

Its library comes with torchvision, with CUDA, or alone from PyPI (nvidia-nvjpeg). It is called directly,
which is faster than through torchvision (benchmarks/gpu.py): a batch goes to one piece of memory.
"""

from __future__ import annotations

import atexit
import ctypes.util
import functools
import importlib.util
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch

from ... import _native
from ...codecs.media import image as pictures
from ...columns import I64, U8
from ...errors import DataError, OptionError
from . import colour
from .streams import rounded

# Pictures begin at multiples of this.
ALIGNED = 256
# Pixels; the circuits for JPEG take no more.
LONGEST_SIDE = 16384
NEEDED = (
    "nvJPEG decodes on the GPU; it comes with torchvision, or with `pip install nvidia-nvjpeg` "
    "(for CUDA 12: nvidia-nvjpeg-cu12)"
)


class Decoder(Protocol):
    """Decodes JPEGs of the common kind to (height, width, 3)."""

    def decode(self, data: U8, start: I64, size: I64, shape: I64) -> tuple[Any, I64]:
        """Memory of the device with all pixels, and where each picture begins.

        They lie in ``data``; every array has a row for each, ``shape`` its height and width. ValueError
        where one of them cannot be decoded, RuntimeError where the device fails.
        """


class NvJpeg:
    """Of one CUDA device, for any number of threads."""

    def __init__(self, device: Any, library: str) -> None:
        self._device, self._library = device, library
        self._idle = [self._new()]

    def _new(self) -> tuple[Any, Any]:
        """Pictures that one decodes wait for each other, so each has a stream of its own."""
        with torch.cuda.device(self._device):
            return _native.NvJpeg(self._library), torch.cuda.Stream(self._device)

    def decode(self, data: U8, start: I64, size: I64, shape: I64) -> tuple[Any, I64]:
        try:
            return self._decode(data, start, size, shape)
        except torch.cuda.OutOfMemoryError:
            raise
        except RuntimeError:
            # nvJPEG takes memory of its own; torch may hold on to some that nobody uses.
            torch.cuda.empty_cache()
            return self._decode(data, start, size, shape)

    def _decode(self, data: U8, start: I64, size: I64, shape: I64) -> tuple[Any, I64]:
        sampling = _native.device_decodable(data, start, size, shape)
        if not sampling.all():
            raise ValueError("nvJPEG does not take them all")
        shared = colour.shared_by(sampling)
        stored, needed = behind_each_other(colour.stored_size(shape, shared))
        place, room = places(shape)
        try:
            native, stream = one = self._idle.pop()
        except IndexError:
            native, stream = one = self._new()
        try:
            with torch.cuda.device(self._device), torch.cuda.stream(stream):
                # Memory that was freed on this stream: nobody else reads or writes it any more.
                made = torch.empty(rounded(needed), dtype=torch.uint8, device=self._device)
                whole = torch.empty(rounded(room), dtype=torch.uint8, device=self._device)
                native.decode(
                    data, start, size, shape, made.data_ptr(), needed, stored, stream.cuda_stream
                )  # fmt: skip
                held: list[Any] = []
                planes = colour.whole_planes(made, stored, shape, shared)
                window = np.concatenate([np.zeros_like(shape), shape], axis=1)
                colour.to_rgb(planes, window, whole, place, lambda array: self._sent(array, held))
                done = torch.cuda.Event(blocking=True)
                done.record(stream)
                # It keeps what it works with, and may begin anew only when it is done.
                done.synchronize()
        except ValueError:
            # It took a look and refused one. After any other error nobody knows what state it is in.
            stream.synchronize()
            self._idle.append(one)
            raise
        self._idle.append(one)
        return whole, place

    def _sent(self, array: Any, held: list[Any]) -> Any:
        held.append(torch.from_numpy(array).pin_memory())
        return held[-1].to(self._device, non_blocking=True)


class InMemory:
    """Where the device is the CPU, for tests of the plan: the engine's own pixels."""

    def decode(self, data: U8, start: I64, size: I64, shape: I64) -> tuple[Any, I64]:
        place, room = places(shape)
        whole = np.empty(room, np.uint8)
        for first, length, at in zip(start.tolist(), size.tolist(), place.tolist(), strict=True):
            try:
                pixels = pictures.decode(data[first : first + length], "RGB")
            except DataError as error:
                raise ValueError(str(error)) from None
            whole[at : at + pixels.size] = pixels.reshape(-1)
        return torch.from_numpy(whole), place


def places(shape: I64) -> tuple[I64, int]:
    """Where pictures of (height, width) begin, one behind the other, and the bytes that all take."""
    return behind_each_other(shape.prod(axis=1) * 3)


def behind_each_other(sizes: I64) -> tuple[I64, int]:
    """Where pieces of these sizes begin, and the bytes that all take."""
    room = -(-sizes // ALIGNED) * ALIGNED
    ends = np.cumsum(room)
    return ends - room, int(ends[-1]) if len(ends) else 0


def decoder_on(device: Any) -> Decoder:
    """OptionError where there is none."""
    if device.type != "cuda":
        return InMemory()
    with torch.cuda.device(device):
        return _on_cuda(torch.cuda.current_device())


@functools.cache
def _on_cuda(index: int) -> NvJpeg:
    """One for the process: all loaders share its decoders."""
    why = "no library of that name is installed"
    for library in libraries():
        try:
            return NvJpeg(torch.device("cuda", index), library)
        except RuntimeError as error:
            why = str(error)
    raise OptionError(f"{NEEDED}: {why}")


# While CUDA is still there.
atexit.register(_on_cuda.cache_clear)


def libraries() -> Iterator[str]:
    """Where nvJPEG's library may be, the likeliest first: files, then a name for the system to look for."""
    cuda = Path(os.environ.get("CUDA_HOME", "/usr/local/cuda"))
    folders = [Path(sys.prefix) / "lib", cuda / "lib64"]
    for package, beside in (("nvidia", "nvidia/*/lib"), ("torchvision", "torchvision.libs")):
        spec = importlib.util.find_spec(package)
        for place in (spec and spec.submodule_search_locations) or ():
            folders[:0] = sorted(Path(place).parent.glob(beside))
    for folder in folders:
        # The newest first.
        yield from (str(file) for file in sorted(folder.glob("libnvjpeg[.-]*so*"), reverse=True))
    if (found := ctypes.util.find_library("nvjpeg")) is not None:
        yield found
