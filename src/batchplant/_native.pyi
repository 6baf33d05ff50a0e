"""The native core. Every function works without the GIL held; arrays are read in place, never converted."""

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

def features() -> dict[str, str]:
    """What this build uses on this machine, by unit."""
