"""The native core. Every function works without the GIL held; arrays are read in place, never converted."""

from typing import Any

import numpy as np
import numpy.typing as npt
from typing_extensions import Buffer

def crc32c(data: Buffer, seed: int = 0) -> int:
    """CRC-32C of the bytes; seed continues an earlier result."""

def _crc32c_portable(data: Buffer, seed: int = 0) -> int:
    """CRC-32C without the processor's help, for tests."""

def crc32c_runs(
    data: npt.NDArray[np.uint8], starts: npt.NDArray[np.int64], sizes: npt.NDArray[np.int64]
) -> npt.NDArray[np.uint32]:
    """CRC-32C of every run of the data. IndexError names the first run that is out of bounds."""

def copy_runs(
    src: npt.NDArray[np.uint8],
    src_starts: npt.NDArray[np.int64],
    sizes: npt.NDArray[np.int64],
    dst: npt.NDArray[np.uint8],
    dst_starts: npt.NDArray[np.int64],
) -> None:
    """Copy runs of src to their places in dst. IndexError, and nothing copied, if any is out of bounds."""

def probe(
    data: npt.NDArray[np.uint8], starts: npt.NDArray[np.int64], sizes: npt.NDArray[np.int64]
) -> npt.NDArray[np.int32]:
    """Image headers of every run, as columns encoding, width, height, mode, bits (n x 5).

    encoding: 0 unknown, 1 jpeg, 2 png, 3 webp, 4 gif, 5 bmp, 6 tiff
    mode:     0 unknown, 1 L, 2 LA, 3 RGB, 4 RGBA, 5 P, 6 CMYK, 7 one bit
    A run of size 0 or -1 (missing) gives zeros; a damaged header gives its encoding and zeros.
    """

def jpeg_decode(data: Buffer, mode: str | None = None) -> npt.NDArray[np.uint8]:
    """Decode a JPEG to height x width x channels; mode is None (as stored), 'L' or 'RGB'.

    ValueError says what is wrong with the data. CMYK comes out as stored only.
    """

def jpeg_encode(pixels: npt.NDArray[np.uint8], quality: int = 90) -> bytes:
    """Encode height x width x (1 or 3) pixels as a baseline JPEG, colour at 4:2:0."""

def resize_area(pixels: npt.NDArray[np.uint8], width: int, height: int) -> npt.NDArray[np.uint8]:
    """Shrink pixels, each result the mean of the area it covers (OpenCV's INTER_AREA).

    ValueError unless 1 <= width and height <= those of the pixels.
    """

class Engine:
    """Decodes batches of pictures on threads of its own, each with a decoder and scratch memory it keeps.

    May be called from any number of threads at once; their calls queue. It does not survive a fork: in the
    child every call is a RuntimeError, as after close().
    """

    def __init__(self, threads: int, cpus: list[int] | None = None, *, _portable: bool = False) -> None:
        """With cpus, thread i stays on cpus[i % len(cpus)]. _portable, for tests: no vector instructions."""

    def decode(
        self,
        bases: list[npt.NDArray[np.uint8]],
        base: npt.NDArray[np.int32],
        start: npt.NDArray[np.int64],
        size: npt.NDArray[np.int64],
        shape: npt.NDArray[np.int32] | None,
        box: npt.NDArray[np.float64] | None,
        flip: npt.NDArray[np.bool_] | npt.NDArray[np.uint8] | None,
        out: npt.NDArray[Any],
        *,
        layout: str,
        filter: str,
        dct: str = "accurate",
        fast_scale: bool = False,
        strict: bool = True,
        scale: npt.NDArray[np.float32] | None = None,
        offset: npt.NDArray[np.float32] | None = None,
    ) -> tuple[npt.NDArray[np.int32], list[tuple[int, str]], int]:
        """Crop, resize and flip pictures into out; gives (status, errors, warnings).

        Picture i is size[i] bytes from start[i] on of bases[base[i]]: raw pixels where shape[i] (height,
        width, channels) is not zeros, else an encoded picture. box[i] is x0, y0, x1, y1, zeros for all
        of it; flip mirrors left and right. out is n x H x W x C ("nhwc") or n x C x H x W ("nchw") of uint8,
        float16 or float32, the last two as value * scale + offset by channel; C is 1 to 4, for JPEG 1 or 3.

        filter:      "area" (OpenCV's INTER_AREA), "bilinear" or "bicubic" (Pillow's, antialiased), "nearest"
        dct:         "accurate", or "fast" for libjpeg's quicker and coarser one
        fast_scale:  let libjpeg halve, quarter or eighth large pictures; pixels differ a little
        strict:      fail pictures that libjpeg warns about, rather than keep what it made of them

        status:      0 decoded; 1 failed: its pixels are zeros, and errors has (index, message); 2 not native:
                     no JPEG, CMYK, or other channels than out: its pixels are as they were
        warnings:    how many libjpeg gave
        """

    def gather(
        self,
        bases: list[npt.NDArray[np.uint8]],
        base: npt.NDArray[np.int32],
        start: npt.NDArray[np.int64],
        size: npt.NDArray[np.int64],
        out: npt.NDArray[np.uint8],
        out_starts: npt.NDArray[np.int64],
    ) -> None:
        """Copy runs of the bases to their places in out, in parallel; they must not overlap there.

        IndexError, and nothing copied, if any is out of bounds.
        """

    @property
    def threads(self) -> int:
        """How many threads it has."""

    @property
    def seconds(self) -> tuple[float, float]:
        """Seconds that the threads spent decoding and resampling so far, added up."""

    def close(self) -> None:
        """End the threads, after the calls under way."""

def features() -> dict[str, str]:
    """What this build uses on this machine, by unit."""
