"""The native core.

Functions that work on many bytes release the GIL. Arrays are read in place, never converted: one of
another dtype, or one that is not contiguous, is a TypeError. A *run* is a start and a size in an
array of bytes; runs may overlap.
"""

from collections.abc import Callable, Sequence
from typing import Any, overload

import numpy
from numpy.typing import NDArray
from typing_extensions import Buffer

def crc32c(data: Buffer | NDArray[numpy.uint8], seed: int = 0) -> int:
    """CRC-32C of the bytes; seed continues an earlier result."""

def _crc32c_portable(data: Buffer | NDArray[numpy.uint8], seed: int = 0) -> int:
    """CRC-32C without the processor's instruction, for tests."""

def crc32c_runs(
    data: NDArray[numpy.uint8], starts: NDArray[numpy.int64], sizes: NDArray[numpy.int64]
) -> NDArray[numpy.uint32]:
    """CRC-32C of every run of the data. IndexError names the first run that is out of bounds."""

def crc32(data: Buffer | NDArray[numpy.uint8], seed: int = 0) -> int:
    """zlib's CRC-32 of the bytes; seed continues an earlier result."""

def crc32_runs(
    data: NDArray[numpy.uint8], starts: NDArray[numpy.int64], sizes: NDArray[numpy.int64]
) -> NDArray[numpy.uint32]:
    """zlib's CRC-32 of every run of the data. IndexError names the first run that is out of bounds."""

def gather_runs_crc32(
    data: NDArray[numpy.uint8],
    starts: NDArray[numpy.int64],
    sizes: NDArray[numpy.int64],
    sums: NDArray[numpy.uint32],
    which: NDArray[numpy.int64],
    if_resident: bool = False,
) -> tuple[NDArray[numpy.uint8], NDArray[numpy.int64], int] | None:
    """As gather_runs; and the first run i whose CRC-32 (zlib's) is not sums[which[i]], or -1."""

def copy_runs(
    src: NDArray[numpy.uint8],
    src_starts: NDArray[numpy.int64],
    sizes: NDArray[numpy.int64],
    dst: NDArray[numpy.uint8],
    dst_starts: NDArray[numpy.int64],
) -> None:
    """Copy runs of src to their places in dst. IndexError, and nothing copied, if any is out of bounds."""

def bad_run(starts: NDArray[numpy.int64], sizes: NDArray[numpy.int64], first: int, end: int) -> int:
    """The first run that does not lie between first and end, or -1."""

def are_below(numbers: NDArray[numpy.int64], end: int) -> bool:
    """Return True if all numbers are from 0 up to, not including, end."""

def fill(
    sizes: NDArray[numpy.int64], limit: int, most: int, held: int, taken: int
) -> tuple[NDArray[numpy.int64], int, int]:
    """Which samples begin a new file, where files are filled up to limit bytes and most samples.

    held, taken: the samples and bytes of the file that is being filled; returned as they are at the end.
    """

def stat_files(folder: bytes, names: bytes) -> tuple[NDArray[numpy.int64], NDArray[numpy.int64]]:
    """Sizes and times of the last change, in nanoseconds, of the files of a folder.

    names: one after another, each with a zero behind it. -1 of what is no file.
    """

def probe(
    data: NDArray[numpy.uint8], starts: NDArray[numpy.int64], sizes: NDArray[numpy.int64]
) -> NDArray[numpy.int32]:
    """Read the image header of every run: columns encoding, width, height, mode, bits (n x 5).

    encoding: 0 unknown, 1 jpeg, 2 png, 3 webp, 4 gif, 5 bmp, 6 tiff
    mode:     0 unknown, 1 L, 2 LA, 3 RGB, 4 RGBA, 5 P, 6 CMYK, 7 one bit
    A run of size 0 or -1 (missing) gives zeros; a damaged header gives its encoding and zeros.
    """

def device_decodable(
    data: NDArray[numpy.uint8],
    starts: NDArray[numpy.int64],
    sizes: NDArray[numpy.int64],
    shapes: NDArray[numpy.int64],
) -> NDArray[numpy.uint8]:
    """Which runs are JPEGs that a GPU's decoder takes, of these shapes (height, width).

    Only headers are read: baseline, YCbCr of 8 bits in one scan, complete to the last byte. 0x11, 0x21 or
    0x22 says how many pixels share a colour, in a row and in a column; 0: it is none of those, or missing
    (size -1).
    """

def jpeg_decode(
    data: Buffer | NDArray[numpy.uint8], mode: str | None = None, dct: str = "accurate"
) -> NDArray[numpy.uint8]:
    """Decode a JPEG to height x width x channels.

    mode: None (as stored), "L" or "RGB"; CMYK only as stored. dct: as Engine.decode takes it.
    ValueError says what is wrong with the data.
    """

def jpeg_encode(pixels: NDArray[numpy.uint8], quality: int = 90) -> bytes:
    """Encode height x width x (1 or 3) pixels as a baseline JPEG, colour at 4:2:0."""

def resize_area(pixels: NDArray[numpy.uint8], width: int, height: int) -> NDArray[numpy.uint8]:
    """Shrink pixels; each result is the mean of the area that it covers (OpenCV's INTER_AREA).

    ValueError unless 1 <= width and height <= those of the pixels.
    """

def png_decode(
    data: Buffer | NDArray[numpy.uint8], mode: str | None = None, most_pixels: int = 268435456
) -> NDArray[numpy.uint8] | None:
    """Decode a PNG of up to 8 bits to height x width x channels.

    mode: None (palettes looked up: RGB, or RGBA where the palette has alpha), "L", "LA", "RGB", "RGBA"
    where that loses nothing, or "P": indices of a palette image, levels of a gray one. Gives None
    where this code does not decode it: 16 bits, a mode that would change pixels, odd chunks. ValueError
    says what is damaged, or that the image has more than most_pixels.
    """

def webp_decode(
    data: Buffer | NDArray[numpy.uint8], mode: str | None = None, most_pixels: int = 268435456
) -> NDArray[numpy.uint8] | None:
    """Decode a WebP as png_decode does; None also for animations, and in a build without libwebp."""

def prefetch_images(
    bases: list[NDArray[numpy.uint8]],
    base: NDArray[numpy.int32],
    start: NDArray[numpy.int64],
    size: NDArray[numpy.int64],
    headers: bool,
) -> NDArray[numpy.int32]:
    """Have the kernel read cells of mapped files that are not in memory, all together.

    With headers, give (height, width) of every image as its header says; zeros where it says none, or
    without headers.
    """

def plan_windows(
    start: NDArray[numpy.int64],
    shape: NDArray[numpy.int32],
    box: NDArray[numpy.float64],
    support: float,
    height: float,
    width: float,
) -> tuple[NDArray[numpy.int64], int]:
    """Which part of raw images their boxes (x0, y0, x1, y1) need, and a place for it.

    For a filter that sees support pixels around a pixel where the box becomes height x width. shape:
    height, width, channels. Gives an array with a row for each of top, left, rows, columns, and of what
    Engine.gather takes: start, line, width in bytes, place; and the bytes that all take together.
    """

class Engine:
    """Decodes batches of images on threads of its own, which keep decoders and scratch memory.

    Any number of threads may call it at once; their calls queue. It does not survive a fork: in the
    child every call is a RuntimeError, as after close().
    """

    def __init__(
        self,
        threads: int,
        cpus: Sequence[int] | None = None,
        *,
        nice: int = 0,
        _kernels: str | None = None,
        _baseline: bool = True,
    ) -> None:
        """With cpus, thread i stays on cpus[i % len(cpus)]. nice: as of Unix, for these threads.

        For tests: _kernels, a name of kernel_sets(); _baseline=False, libjpeg alone decodes JPEGs.
        """

    def decode(
        self,
        bases: list[NDArray[numpy.uint8]],
        base: NDArray[numpy.int32],
        start: NDArray[numpy.int64],
        size: NDArray[numpy.int64],
        shape: NDArray[numpy.int32] | None,
        box: NDArray[numpy.float64] | None,
        flip: NDArray[Any] | None,
        out: NDArray[Any],
        *,
        layout: str,
        filter: str,
        dct: str = "accurate",
        fast_scale: bool = False,
        strict: bool = True,
        scale: NDArray[numpy.float32] | None = None,
        offset: NDArray[numpy.float32] | None = None,
        orient: NDArray[numpy.uint8] | None = None,
        mode: str | None = None,
        most_pixels: int = 268435456,
        down: NDArray[Any] | None = None,
        place: NDArray[numpy.int32] | None = None,
        fill: NDArray[numpy.uint8] | None = None,
    ) -> tuple[NDArray[numpy.int32], list[tuple[int, str]], int]:
        """Crop, resize and flip images into out; gives (status, errors, warnings).

        Image i is size[i] bytes from start[i] on of bases[base[i]]: raw pixels where shape[i] (height,
        width, channels) is not zeros, else an encoded image. box[i] is x0, y0, x1, y1, zeros for the whole
        image; flip mirrors left and right. out is n x H x W x C ("nhwc") or n x C x H x W ("nchw") of
        uint8, float16 or float32, the last two as value * scale + offset by channel; C is 1 to 4, for JPEG 1
        or 3.

        filter:      "area" (OpenCV's INTER_AREA), "bilinear" or "bicubic" (Pillow's), "nearest"
        dct:         "accurate", or "fast" for libjpeg's quicker and coarser one
        fast_scale:  let libjpeg scale large images by 1/2, 1/4 or 1/8; pixels differ a little
        strict:      fail images that libjpeg warns about, rather than keep what it made of them
        orient:      EXIF orientation of encoded images, 1 to 8: applied first, the box is in the result
        mode:        of PNG and WebP, as png_decode takes it; None: L, LA, RGB or RGBA by the channels of out
        most_pixels: an encoded image that has more fails
        down:        which images are turned upside down
        place:       top, left, height, width of what becomes of each box in out; the rest is filled
        fill:        with this colour, a byte for each channel; it is scaled like pixels. None: black

        status:      0 decoded; 1 failed: its pixels are zeros, and errors has (index, message); 2 not
                     native: no JPEG, PNG or WebP, or one that needs another decoder or would lose by the
                     change to these channels: its pixels are as they were
        warnings:    how many libjpeg gave
        """

    def code(
        self,
        bases: list[NDArray[numpy.uint8]],
        base: NDArray[numpy.int32],
        start: NDArray[numpy.int64],
        size: NDArray[numpy.int64],
        part: NDArray[numpy.int64],
        out: NDArray[numpy.uint8],
        *,
        scans: bool = False,
    ) -> tuple[NDArray[numpy.int64], int]:
        """Read the coefficients of parts of JPEGs, for a device that makes pixels of them.

        Gives (table, used). Image i is as in decode(); part[i] is left, top, right, bottom, whole pixels.
        What is read goes to out, of which used bytes are taken. table has 11 columns: the place in out (-1
        where the image is not of the common kind, is damaged, or there is no room), the number of blocks,
        the number of entries; then first column, columns, first row and rows of the brightness, and the same
        of the colours, in blocks of 8 x 8.

        At its place, an image has 3 x 64 steps (uint8, in rows), its blocks (uint32 first entry, uint16
        entries, int16 first coefficient; component after component, each in rows), and its entries (int16:
        value times 64 plus place in the block's rows; the place 0 adds its value times 512 to the one
        before).

        scans: leave the reading to the device, too. Then an image has its steps, four Huffman codes of 288
        bytes (how many there are of each length from 0 to 16, then what they stand for; of first
        coefficients and of others, of brightness and of colours), and its bits in uint32 words, the first
        bit highest. The third column is the number of bits, and four columns follow: MCUs in a row, rows of
        them, 1 where all bits must be read, and a number that is the same where the codes are.
        """

    def wait_turn(self) -> None:
        """Wait until the work of all calls so far is handed out, so that the next call begins at once."""

    def warp(
        self,
        images: NDArray[numpy.uint8],
        inverse: NDArray[numpy.float64],
        canvases: NDArray[numpy.int32],
        out: NDArray[numpy.uint8],
        filter: str,
        fill: NDArray[numpy.uint8],
    ) -> None:
        """Rotate, shear or see images (n x H x W x C of uint8) in perspective, into out.

        inverse (n x k x 3 x 3) takes positions (x, y, 1) in out to those in each of k canvases that an image
        goes through; the first is the image. canvases (n x k x 2) has their heights and widths: what is
        outside any of them is filled. filter: "bilinear" or "nearest", as Pillow's.
        """

    def jitter(self, images: NDArray[numpy.uint8], amounts: NDArray[numpy.float32]) -> None:
        """Change the colours of images (n x H x W x 3 of uint8), in place.

        amounts (n x 4): brightness, contrast and saturation to multiply by, and the part of the circle that
        the hue is turned by, one after the other; NaN leaves one as it is.
        """

    def gather(
        self,
        bases: list[NDArray[numpy.uint8]],
        base: NDArray[numpy.int32],
        start: NDArray[numpy.int64],
        line: NDArray[numpy.int64],
        rows: NDArray[numpy.int64],
        width: NDArray[numpy.int64],
        out: NDArray[numpy.uint8],
        places: NDArray[numpy.int64],
    ) -> None:
        """Copy windows of the bases to their places in out, in parallel; they must not overlap there.

        Window i: rows[i] times width[i] bytes, line[i] bytes apart, from start[i] on. IndexError, and
        nothing copied, if any is out of bounds.
        """

    @property
    def threads(self) -> int:
        """Number of threads."""

    @property
    def baseline_jpegs(self) -> int:
        """Number of JPEGs decoded without libjpeg so far: the common kind, undamaged."""

    @property
    def seconds(self) -> tuple[float, float]:
        """Seconds that threads spent decoding and resampling, added up; raw pixels need no decoding."""

    def close(self) -> None:
        """End the threads, after the calls under way."""

@overload
def look_up(
    pixels: NDArray[numpy.uint8],
    tables: NDArray[numpy.uint16],
    out: NDArray[numpy.uint16],
    plane: int = 0,
    engine: Engine | None = None,
) -> None: ...
@overload
def look_up(
    pixels: NDArray[numpy.uint8],
    tables: NDArray[numpy.uint32],
    out: NDArray[numpy.uint32],
    plane: int = 0,
    engine: Engine | None = None,
) -> None: ...
@overload
def look_up(
    pixels: NDArray[numpy.uint8],
    tables: NDArray[numpy.uint64],
    out: NDArray[numpy.uint64],
    plane: int = 0,
    engine: Engine | None = None,
) -> None:
    """The value of every byte, by the tables of its channel: (channels, 256), of what out is.

    plane: the pixels of an image, whose channels then come behind each other.
    """

def change_images(
    images: NDArray[numpy.uint8],
    codes: NDArray[numpy.uint8],
    amounts: NDArray[numpy.float64],
    fill: NDArray[numpy.uint8],
    smooth: bool,
    engine: Engine | None = None,
) -> None:
    """Change images (n, height, width, channels) in place, on the threads of an engine.

    codes: (n, steps), what is done to each, one after the other (ops.changes.Change); amounts: six for each
    code. fill, one for each channel: what comes from outside of an image that is moved; smooth: moved
    pixels are blended of four.
    """

def mix_changed(
    images: NDArray[numpy.uint8],
    codes: NDArray[numpy.uint8],
    amounts: NDArray[numpy.float64],
    weights: NDArray[numpy.float32],
    fill: NDArray[numpy.uint8],
    smooth: bool,
    engine: Engine | None = None,
) -> None:
    """Add up images as they are and after each of some chains of changes, by weight, in place.

    codes, amounts, fill, smooth: as change_images takes them, those of one chain after those of another.
    weights: (n, 1 + chains), that of the image itself first.
    """

def add_noise(
    images: NDArray[numpy.uint8],
    keys: NDArray[numpy.uint64],
    sigmas: NDArray[numpy.float32],
    quantiles: NDArray[numpy.float32],
    engine: Engine | None = None,
) -> None:
    """Add noise to images (n, height, width, channels) in place, by the key of each.

    quantiles: 4096 of the distribution. A sigma of 0 leaves an image as it is.
    """

def lend(memory: NDArray[numpy.uint8], shelf: list[Any], most: int) -> NDArray[numpy.uint8]:
    """Give the same bytes as an array that puts memory on the shelf once nothing refers to them.

    Unless the shelf has so many already. No Python code runs then.
    """

def random_boxes(
    keys: NDArray[numpy.uint64],
    sizes: NDArray[numpy.int32],
    scale: tuple[float, float],
    ratio: tuple[float, float],
    tries: int,
    first: int,
) -> NDArray[numpy.float64]:
    """A random box (x0, y0, x1, y1) in each image of (height, width).

    first: the number of the first of 2 * tries + 2 draws that each sample's key gives.
    """

def derive(key: NDArray[numpy.uint64], numbers: NDArray[numpy.int64]) -> NDArray[numpy.uint64]:
    """A key of its own for each number; either may have one element for all of the other."""

def permute(
    at: NDArray[numpy.int64], count: NDArray[numpy.uint64], key: NDArray[numpy.uint64]
) -> NDArray[numpy.int64]:
    """Where each number below its count goes in the permutation that its key chooses.

    count and key have one element for all numbers, or one for each.
    """

class Spectrogram:
    """Short-time spectra of real signals.

    Windows of one length, hop apart, each transformed; absolute values to a power; filters are sums of bins.
    """

    def __init__(
        self,
        window: NDArray[numpy.float32],
        hop: int,
        centered: bool,
        power: float,
        firsts: NDArray[numpy.int64],
        offsets: NDArray[numpy.int64],
        weights: NDArray[numpy.float32],
    ) -> None:
        """window: as long as a transform.

        centered: the signal is mirrored at its ends, so that frame t is around number t * hop; a signal must
        be longer than half a window. Filter i has weights[offsets[i]:offsets[i + 1]], from bin firsts[i] on;
        without filters all bins are given.
        """

    def frames(self, length: int) -> int:
        """Number of frames of a signal of this length."""

    def run(self, signals: NDArray[numpy.float32], out: NDArray[numpy.float32]) -> None:
        """Transform signals (n x length) into out (n x rows x frames), which may have any strides."""

@overload
def shuffle(count: int, key: int, at: int, back: bool = False) -> int: ...
@overload
def shuffle(count: int, key: int, at: NDArray[numpy.int64], back: bool = False) -> NDArray[numpy.int64]:
    """Position of each number below the count in the permutation of the key; back: the inverse."""

@overload
def shuffle_runs(count: int, size: int, phases: Sequence[int], key: int, at: int) -> int: ...
@overload
def shuffle_runs(
    count: int, size: int, phases: Sequence[int], key: int, at: NDArray[numpy.int64]
) -> NDArray[numpy.int64]:
    """The same within runs of one size, once for each phase: where the first one begins."""

@overload
def shuffle_windows(edges: NDArray[numpy.int64], key: int, at: int) -> int: ...
@overload
def shuffle_windows(edges: NDArray[numpy.int64], key: int, at: NDArray[numpy.int64]) -> NDArray[numpy.int64]:
    """The same between every two edges, which ascend from 0."""

@overload
def walk(
    turns: NDArray[numpy.int64],
    starts: NDArray[numpy.int64],
    firsts: NDArray[numpy.int64],
    rows: NDArray[numpy.int64] | None,
    at: int,
) -> int: ...
@overload
def walk(
    turns: NDArray[numpy.int64],
    starts: NDArray[numpy.int64],
    firsts: NDArray[numpy.int64],
    rows: NDArray[numpy.int64] | None,
    at: NDArray[numpy.int64],
) -> NDArray[numpy.int64]:
    """The samples of blocks that are taken by turns.

    starts: the first position of each turn, and the end; firsts: where the samples of each block begin in
    rows (or where that is None, among all samples), and the end.
    """

@overload
def in_lanes(lanes: int, size: int, each: int, at: int) -> int: ...
@overload
def in_lanes(lanes: int, size: int, each: int, at: NDArray[numpy.int64]) -> NDArray[numpy.int64]:
    """Positions of lanes, each so long, that are taken from in turn, size at a time."""

def interleave(shares: NDArray[numpy.int64]) -> tuple[NDArray[numpy.uint32], NDArray[numpy.uint32]]:
    """One period of a mixture: who comes at each place, and how often it came before.

    Each source comes as often as its share says, and at every place as often as it should, give or take 1.
    """

def pack(
    sizes: NDArray[numpy.int64], length: int, strategy: str, overlong: str
) -> tuple[NDArray[numpy.int64], NDArray[numpy.int64], NDArray[numpy.int64], NDArray[numpy.int64]]:
    """Rows of one length for documents of these sizes: (rows, document, start, count).

    Row r has the pieces rows[r] to rows[r + 1], each so many tokens of a document from a start on.
    strategy: none, first_fit, best_fit or concat_split. overlong: split, truncate or drop.
    """

@overload
def fill_rows(
    bases: list[NDArray[numpy.uint8]],
    base: NDArray[numpy.int32],
    begin: NDArray[numpy.int64],
    size: NDArray[numpy.int64],
    dtype: str,
    prompt: NDArray[numpy.int64] | None,
    rows: NDArray[numpy.int64],
    document: NDArray[numpy.int64],
    start: NDArray[numpy.int64],
    count: NDArray[numpy.int64],
    into: NDArray[numpy.int32],
    labels: NDArray[numpy.int32] | None,
    position: NDArray[numpy.int32] | None,
    documents: NDArray[numpy.int32] | None,
    learned: NDArray[numpy.uint8] | None,
    pad: int,
    ignore: int,
    end: int | None,
    shifted: bool,
    multiple: int = 1,
) -> None: ...
@overload
def fill_rows(
    bases: list[NDArray[numpy.uint8]],
    base: NDArray[numpy.int32],
    begin: NDArray[numpy.int64],
    size: NDArray[numpy.int64],
    dtype: str,
    prompt: NDArray[numpy.int64] | None,
    rows: NDArray[numpy.int64],
    document: NDArray[numpy.int64],
    start: NDArray[numpy.int64],
    count: NDArray[numpy.int64],
    into: NDArray[numpy.int64],
    labels: NDArray[numpy.int64] | None,
    position: NDArray[numpy.int64] | None,
    documents: NDArray[numpy.int32] | None,
    learned: NDArray[numpy.uint8] | None,
    pad: int,
    ignore: int,
    end: int | None,
    shifted: bool,
    multiple: int = 1,
) -> None:
    """Put the pieces that pack found into rows.

    Document i is size[i] bytes at begin[i] of bases[base[i]], tokens of that dtype at whole
    places. prompt: how many tokens of each are not learned. into, labels, position, documents,
    learned: rows to fill, the tokens themselves and what is told of each; None: not. multiple: each piece is
    padded to a multiple of so many tokens.
    """

@overload
def fill_rows(
    indptr: NDArray[numpy.int64],
    indices: NDArray[Any],
    values: NDArray[Any],
    places: NDArray[numpy.int64],
    out: NDArray[Any],
) -> None:
    """Add values of CSR rows to the rows of a dense array of their dtype.

    places: for each column where it goes in a row of out, or -1. IndexError for a column that is not there.
    """

def lay_out(
    rows: NDArray[numpy.int64],
    document: NDArray[numpy.int64],
    start: NDArray[numpy.int64],
    count: NDArray[numpy.int64],
    length: int,
    across: bool,
    multiple: int = 1,
) -> tuple[NDArray[numpy.int64], NDArray[numpy.int32]]:
    """Where pieces stand: five numbers of each (row, place, count, start, document), and the cuts.

    Cuts are where sequences begin in the rows as one, and last where they end. Each piece is a sequence, with
    its padding to a multiple of so many tokens; with across each row. So is the padding at the end of a row.
    """

def msgpack_scan(
    piece: NDArray[numpy.uint8], base: int, left: int, most: int, todo: int, skip: int
) -> tuple[NDArray[numpy.int64], int, int, int, int]:
    """Find where the values at the top of a MessagePack stream begin; a piece of the stream at a time.

    base: where in the stream the piece lies. left: bytes that the stream has from there on. most: stop
    after so many values. todo, skip: as the piece before gave them, 0 at the start. Gives starts, bytes
    used (the rest goes before the next piece), todo, skip, and a fault: 0 none, 1 the stream ends inside
    a value, 2 a byte that MessagePack never has.
    """

def msgpack_find(
    data: NDArray[numpy.uint8],
    starts: NDArray[numpy.int64],
    sizes: NDArray[numpy.int64],
    keys: list[bytes] | None,
) -> tuple[NDArray[numpy.int32], NDArray[numpy.int64], NDArray[numpy.int64], tuple[int, int, str] | None]:
    """Find the values of these keys in the map of each run; with None, the runs are values themselves.

    Gives info, start and size, each with a row for every key, and (run, offset, reason) of a failure.
    info is kind | bytes of the value's head << 8 | type of an extension << 16; start and size are those
    of the value with its head. kind: 0 absent, 1 nil, 2 true or false, 3 signed, 4 unsigned, 5 float, 6
    str, 7 bin, 8 array, 9 map, 10 extension.
    """

def msgpack_numbers(
    data: NDArray[numpy.uint8],
    info: NDArray[numpy.int32],
    starts: NDArray[numpy.int64],
    kind: str,
    width: int,
    out: NDArray[numpy.uint8],
) -> tuple[int, int, str] | None:
    """Convert numbers that msgpack_find found to NumPy's kind (b, i, u, f) and width; absent ones stay."""

def msgpack_arrays(
    data: NDArray[numpy.uint8],
    info: NDArray[numpy.int32],
    starts: NDArray[numpy.int64],
    sizes: NDArray[numpy.int64],
    dtype: bytes,
    width: int,
    rank: int,
) -> tuple[
    NDArray[numpy.uint8],
    NDArray[numpy.int64],
    NDArray[numpy.int64],
    NDArray[numpy.int64],
    tuple[int, int, str] | None,
]:
    """Find the values of arrays that msgpack_find found: our extension, or msgpack-numpy's map.

    Gives found (0 absent or nil, 1 an array of this dtype and rank, 2 anything else), the values' starts
    and sizes, shapes, and a failure.
    """

def msgpack_lists(
    data: NDArray[numpy.uint8],
    info: NDArray[numpy.int32],
    starts: NDArray[numpy.int64],
    sizes: NDArray[numpy.int64],
    kind: str,
    width: int,
    rank: int,
) -> tuple[NDArray[numpy.uint8], NDArray[numpy.int64], NDArray[numpy.int64], NDArray[numpy.uint8]]:
    """Convert the lists of numbers, nested rank deep, that msgpack_find found.

    Gives found (0 absent or nil, 1 converted, 2 anything else), sizes in bytes, shapes (-1 for what a
    list without an element does not tell), and the values of all.
    """

def msgpack_pack(
    rows: int, columns: list[tuple[Any, ...]]
) -> tuple[NDArray[numpy.uint8], NDArray[numpy.int64], tuple[int, int, str] | None]:
    """Write one map for each row: data and offsets, and a failure (row, column, reason).

    After a failure, data and offsets mean nothing. A column is (key, mode, width, data, starts, sizes,
    heads, head size, headed); native/records/msgpack.hpp says what they mean.
    """

def msgpack_load(
    data: NDArray[numpy.uint8], start: int, size: int, extension: Callable[[int, bytes], object]
) -> Any:
    """Load one value as Python objects; extension(type, data) makes those of extensions.

    Text that is not UTF-8 comes as bytes. ValueError for what is cut short, or nested too deeply.
    """

def datum_scan(
    data: NDArray[numpy.uint8], starts: NDArray[numpy.int64], sizes: NDArray[numpy.int64]
) -> tuple[NDArray[numpy.int64], tuple[int, str] | None]:
    """Find the parts of Caffe's Datum messages, and (row, reason) of the first that is none.

    Columns: channels, height, width, label, encoded, start and size of data (-1: none), start and count
    of float_data (n x 9).
    """

def datum_floats(message: NDArray[numpy.uint8], out: NDArray[numpy.float32]) -> None:
    """Copy the values of float_data of one Datum message."""

def recordio_scan(
    data: NDArray[numpy.uint8], at: int, until: int
) -> tuple[
    NDArray[numpy.int64],
    NDArray[numpy.int64],
    NDArray[numpy.int64],
    int,
    int,
    int,
    tuple[str, int, bool] | None,
]:
    """Find the records that begin in [at, until).

    Starts of their headers, sizes of their data, numbers of those that are split; the least and the
    largest first word; the place behind the last; and what stopped the scan: (reason, offset, whether
    the data just end there).
    """

def recordio_join(
    data: NDArray[numpy.uint8],
    starts: NDArray[numpy.int64],
    sizes: NDArray[numpy.int64],
    out: NDArray[numpy.uint8],
    out_starts: NDArray[numpy.int64],
) -> int:
    """Copy records to their places in out, split ones joined; the number of the first bad one, or -1."""

def recordio_frame(
    data: NDArray[numpy.uint8], starts: NDArray[numpy.int64], sizes: NDArray[numpy.int64]
) -> tuple[NDArray[numpy.uint8], NDArray[numpy.int64]]:
    """The records as they stand in a file, and where each begins."""

def riegeli_read(
    data: NDArray[numpy.uint8],
    starts: NDArray[numpy.int64],
    sizes: NDArray[numpy.int64],
    positions: NDArray[numpy.int64],
) -> tuple[NDArray[numpy.uint8], NDArray[numpy.int64], NDArray[numpy.int64], tuple[int, str] | None]:
    """Read the chunk at the beginning of every run, which lies at a position of its file.

    The data of the chunks without block headers, where each begins, a row (kind, size, records, decoded
    size) for each; and the first that is not sound: (run, reason).
    """

def riegeli_frame(
    data: NDArray[numpy.uint8],
    starts: NDArray[numpy.int64],
    sizes: NDArray[numpy.int64],
    records: NDArray[numpy.int64],
    decoded: NDArray[numpy.int64],
    position: int,
    kind: int,
) -> tuple[NDArray[numpy.uint8], NDArray[numpy.int64]]:
    """The runs as chunks at a position of a file, with block headers; and where each chunk begins."""

def tfrecord_scan(
    data: NDArray[numpy.uint8], start: int, until: int, check_data: bool = False
) -> tuple[NDArray[numpy.int64], NDArray[numpy.int64], int, int]:
    """Find the records of a TFRecord file that begin in [start, until).

    Starts and sizes of their data, where the next one begins, and what is wrong there: 0 nothing; 1 the
    file ends inside a length; 2 the checksum of the length is wrong; 3 the file ends inside the data; 4
    the checksum of the data is wrong (with check_data).
    """

def tfrecord_check(
    data: NDArray[numpy.uint8],
    starts: NDArray[numpy.int64],
    sizes: NDArray[numpy.int64],
    check_data: bool = True,
) -> tuple[int, int]:
    """The first damaged record of these, or -1, and what is wrong: as tfrecord_scan; 5 another length."""

def tfrecord_gather(
    data: NDArray[numpy.uint8],
    starts: NDArray[numpy.int64],
    sizes: NDArray[numpy.int64],
    if_resident: bool = False,
) -> tuple[NDArray[numpy.uint8], NDArray[numpy.int64], int, int] | None:
    """As gather_runs, with records checked on the way: data, offsets, and what tfrecord_check gives."""

def tfrecord_frame(
    data: NDArray[numpy.uint8], starts: NDArray[numpy.int64], sizes: NDArray[numpy.int64]
) -> NDArray[numpy.uint8]:
    """The runs as TFRecord records, one after another. IndexError names the first that is out of bounds."""

def example_read(
    data: NDArray[numpy.uint8],
    starts: NDArray[numpy.int64],
    sizes: NDArray[numpy.int64],
    features: Sequence[tuple[bytes, bool, int]],
) -> tuple[
    list[
        tuple[
            NDArray[numpy.int8],
            NDArray[numpy.int64],
            NDArray[numpy.int64],
            NDArray[numpy.int64],
            NDArray[numpy.float32],
            NDArray[numpy.int64],
        ]
    ],
    int,
    int,
]:
    """Read the values of features in serialized tf.train.Examples or SequenceExamples.

    A feature is a name, whether it is one of the feature lists, and a kind: 1 bytes, 2 float, 3 int64, 0
    any. For each come six arrays: kind of each record (0 none, 4 several); count of values or, of a
    list, steps of each record, -1 where the feature is missing; of lists the count of values of each
    step; then the values, one after another: of bytes start and size in data in turn, of floats float32,
    of ints int64. Values of another kind than asked for are counted and left out.

    Last come the first record that is no Example, or -1, and where in data it is wrong.
    """

def example_write(
    n: int,
    sources: Sequence[
        tuple[
            bytes,
            int,
            NDArray[numpy.uint8],
            NDArray[numpy.int64],
            NDArray[numpy.int64],
            NDArray[numpy.int64] | None,
        ]
    ],
) -> tuple[NDArray[numpy.uint8], NDArray[numpy.int64]]:
    """Write n serialized tf.train.Examples, and their n + 1 offsets; keys in order of bytes.

    A source is a name, a kind, and runs of data, one for each record, -1 where it lacks the feature: one
    bytes value, or float32s, or int64s. With counts, of bytes only, record i has counts[i] runs, each a
    value; -1 where it lacks the feature.
    """

class ExampleSurvey:
    """Finds which features serialized Examples have; not for several threads at once."""

    def __init__(self) -> None: ...
    def add(
        self, data: NDArray[numpy.uint8], starts: NDArray[numpy.int64], sizes: NDArray[numpy.int64]
    ) -> int:
        """Take in records. -1, or the first that is no Example: it and those behind it are not counted."""

    def skip(self) -> None:
        """Count a record without reading it."""

    def features(self) -> list[tuple[bytes, bool, int, int, int, int, int, int, int]]:
        """What is known of each feature, as a tuple.

        Name, whether it is a feature list, bits of the kinds it had, how many records have it, fewest and
        most values (or steps), fewest and most values of a step (-1: none), first record of another kind.
        """

    @property
    def records(self) -> int:
        """Number of records that were read or skipped."""

    @property
    def unknown(self) -> int:
        """Number of parts that do not belong to these messages."""

    @property
    def foreign(self) -> int:
        """Number of records that have such parts and no feature."""

def map_file(fd: int) -> NDArray[numpy.uint8]:
    """Map the bytes of an open file. They outlive the descriptor, until nothing refers to the array."""

def fetch_runs(
    fd: int,
    starts: NDArray[numpy.int64],
    sizes: NDArray[numpy.int64],
    out: NDArray[numpy.uint8],
    out_starts: NDArray[numpy.int64],
    threads: int = 16,
    _ring: bool = True,
) -> tuple[int, int] | None:
    """Read runs of a file to their places in out, all requested together.

    Uses io_uring where the kernel has it (and _ring is True), else threads. Gives None, or the first run
    that could not be read and its errno, 0 where the file ends. IndexError, and nothing read, if any run
    does not fit into out.
    """

def fetch_spans(
    fds: NDArray[numpy.int32],
    file: NDArray[numpy.int32],
    starts: NDArray[numpy.int64],
    sizes: NDArray[numpy.int64],
    least: NDArray[numpy.int64],
    out: NDArray[numpy.uint8],
    out_starts: NDArray[numpy.int64],
    threads: int = 16,
    _ring: bool = True,
) -> tuple[int, int] | None:
    """As fetch_runs, of several files: run i is of the file fds[file[i]].

    least[i] bytes of it have to come: of a file that is read past the page cache, whole blocks are asked
    for, and the last is cut short by the file's end.
    """

def resident_fraction(
    mapping: NDArray[numpy.uint8],
    starts: NDArray[numpy.int64],
    sizes: NDArray[numpy.int64],
    each: bool = False,
) -> float:
    """How much of a few pages of these runs is in memory, 0 to 1; each: of a page of every run.

    Linux answers only the owner of the file and those who may write it; to others it says 1.
    """

def cached_fraction(fd: int, starts: NDArray[numpy.int64], sizes: NDArray[numpy.int64]) -> float:
    """As resident_fraction, of an open file, for all who may read it; -1 where the kernel cannot tell."""

def prefixed_sizes(
    fd: int,
    starts: NDArray[numpy.int64],
    sizes: NDArray[numpy.int64],
    counts: NDArray[numpy.int64],
    past: bool = True,
    threads: int = 8,
) -> tuple[NDArray[numpy.int64], NDArray[numpy.uint8]]:
    """The sizes of cells that fill runs of a file, each behind its size in four bytes.

    Past the page cache where they are not in it; not where all of it is being read into it.

    counts[i] cells in run i; of which runs that is true is the second part, the sizes in others are
    anything. IndexError if there is no room for so many.
    """

def prefixed_sizes_in(
    memory: NDArray[numpy.uint8],
    starts: NDArray[numpy.int64],
    sizes: NDArray[numpy.int64],
    counts: NDArray[numpy.int64],
) -> tuple[NDArray[numpy.int64], NDArray[numpy.uint8]]:
    """As prefixed_sizes, of memory."""

def will_need(
    mapping: NDArray[numpy.uint8], starts: NDArray[numpy.int64], sizes: NDArray[numpy.int64]
) -> None:
    """Have the kernel begin to read these runs, without waiting for any."""

class Pieces:
    """The pieces of a column by number, filled in as they become known. A piece never changes."""

    def __init__(self, count: int) -> None: ...
    def put(
        self, number: int, data: NDArray[numpy.uint8], offsets: NDArray[numpy.int64] | None = None
    ) -> None:
        """Add a piece: its cells one after another, and their offsets unless all have one width."""

    def missing(self, numbers: NDArray[numpy.int64]) -> list[int]:
        """The numbers of pieces that were not put yet, each once."""

    def cells(
        self, piece: NDArray[numpy.int64], row: NDArray[numpy.int64]
    ) -> tuple[NDArray[numpy.uint8], NDArray[numpy.int64]]:
        """Copy cells, picked by piece and row: data and offsets. IndexError if there is no such cell."""

    def rows(
        self, width: int, piece: NDArray[numpy.int64], row: NDArray[numpy.int64]
    ) -> NDArray[numpy.uint8]:
        """Copy rows of one width, picked by piece and row. IndexError if there is no such row."""

def gather_runs(
    data: NDArray[numpy.uint8],
    starts: NDArray[numpy.int64],
    sizes: NDArray[numpy.int64],
    if_resident: bool = False,
) -> tuple[NDArray[numpy.uint8], NDArray[numpy.int64]] | None:
    """Copy runs of the data, one after another: data and offsets.

    IndexError if any run is out of bounds. if_resident: data is a mapped file; give None, and copy
    nothing, unless all of a few of its pages are in memory.
    """

def gather_strided(
    data: NDArray[numpy.uint8],
    start: int,
    stride: int,
    width: int,
    row: NDArray[numpy.int64],
    if_resident: bool = False,
) -> NDArray[numpy.uint8] | None:
    """Copy rows of one width; row i begins at start + i * stride. Otherwise as gather_runs."""

def pieces_of(
    starts: NDArray[numpy.int64], numbers: NDArray[numpy.int64]
) -> tuple[NDArray[numpy.int64], NDArray[numpy.int64]]:
    """Find the piece that every number falls into, and its place there. Pieces begin at starts, ascending."""

def texts(data: NDArray[numpy.uint8], offsets: NDArray[numpy.int64]) -> list[str] | None:
    """Decode the cells between the offsets as a list of str; None if one of them is not UTF-8."""

def distinct(numbers: NDArray[numpy.int64]) -> tuple[list[int], NDArray[numpy.int64]]:
    """The numbers that occur, ascending, and for each number its place among them."""

class TarScanner:
    """Reads the headers of a tar archive and groups its members into samples.

    The archive may come in pieces: give scan the bytes from next on, until next is its end. A piece of
    16 MiB and two blocks, or all that is left, moves it on.
    """

    def __init__(self) -> None: ...
    def scan(self, data: NDArray[numpy.uint8], total: int) -> tuple[str, int] | None:
        """Take the bytes from next on of an archive of total bytes; what is wrong, and where."""

    def finish(self) -> dict[str, Any]:
        """After the last bytes: failure (None, or what is wrong and where), and what was found.

        keys, key_offsets, firsts: the key and the first header of every sample. extensions: bytes.
        rows, starts, sizes: sample, place and size of every member, by extension (extension_offsets).
        skipped: members in no sample. comment: of the first PAX header for the whole archive.
        """

    @property
    def next(self) -> int:
        """Offset where the next header is expected."""

def is_tar_header(data: NDArray[numpy.uint8]) -> bool:
    """Return True if the bytes begin with a tar header whose checksum is right."""

def tar_headers(
    names: NDArray[numpy.uint8], offsets: NDArray[numpy.int64], sizes: NDArray[numpy.int64]
) -> tuple[NDArray[numpy.uint8], NDArray[numpy.int64]]:
    """Headers before the bytes of each member, one after another, and their offsets."""

def tar_comment(text: bytes) -> bytes:
    """A PAX header with a comment on the whole archive."""

class CsvScanner:
    """Finds the rows of a CSV file that comes in pieces."""

    def __init__(
        self,
        delimiter: str,
        columns: int,
        blank_rows: bool,
        missing: Sequence[str],
        line: int,
        escape: str = "",
    ) -> None:
        """line: the number of the first line. missing: unquoted cells that mean no value."""

    @property
    def classes(self) -> list[int]:
        """Of each column, bits of what its cells could be: Class in native/text/text.hpp."""

    def feed(self, piece: NDArray[numpy.uint8], base: int, final: bool) -> int:
        """Take a piece that begins at base of the file; gives how many of its bytes were used.

        What is left over is the beginning of a row, and goes before the next piece. final: it is the last
        piece.
        """

    @property
    def starts(self) -> NDArray[numpy.int64]:
        """Offsets of the rows."""

    @property
    def bad(self) -> NDArray[numpy.int64]:
        """(offset, line, column, reason, extra) of every row that cannot be read."""

class JsonScanner:
    """Finds the records of a JSON file that comes in pieces."""

    def __init__(self, layout: int) -> None:
        """layout: 0 a record on each line, 1 values one after another, 2 one array."""

    @property
    def broken(self) -> bool:
        """True if the array cannot be read on."""

    @property
    def objects(self) -> int:
        """Number of records that are objects."""

    @property
    def too_many(self) -> bool:
        """True if there are too many different keys for a table."""

    @property
    def bare(self) -> tuple[bytes, int, int, int, list[int], bool, bool]:
        """As keys, of the records that are not objects."""

    @property
    def keys(self) -> list[tuple[bytes, int, int, int, list[int], bool, bool]]:
        """What the values of each key are like.

        (name, classes, records that have it, classes of elements, sizes of axes, irregular, empty).
        """

    def feed(self, piece: NDArray[numpy.uint8], base: int, final: bool) -> int:
        """Take a piece that begins at base of the file; gives how many of its bytes were used.

        What is left over is the beginning of a row, and goes before the next piece. final: it is the last
        piece.
        """

    @property
    def starts(self) -> NDArray[numpy.int64]:
        """Offsets of the rows."""

    @property
    def bad(self) -> NDArray[numpy.int64]:
        """(offset, line, column, reason, extra) of every row that cannot be read."""

def csv_first(
    data: NDArray[numpy.uint8], delimiter: str, final: bool, escape: str = ""
) -> tuple[list[bytes], int, int, int] | None:
    """The fields of the first row, where it ends, the fault and its place; None where the data end before."""

def csv_find(
    data: NDArray[numpy.uint8],
    starts: NDArray[numpy.int64],
    sizes: NDArray[numpy.int64],
    delimiter: str,
    missing: Sequence[str],
    columns: int,
    wanted: Sequence[int],
    empty: Sequence[bool],
    escape: str = "",
) -> tuple[NDArray[numpy.int64], NDArray[numpy.int64], NDArray[numpy.uint8], tuple[int, int, str] | None]:
    """Find the cells of the wanted columns in rows, which have so many columns.

    Gives start, size (-1: missing) and what csv_unquote has to do, each with a row for every column, and
    a failure. empty, for each of these: an empty field is an empty cell, not a missing one.
    """

def json_find(
    data: NDArray[numpy.uint8],
    starts: NDArray[numpy.int64],
    sizes: NDArray[numpy.int64],
    keys: list[bytes] | None,
) -> tuple[NDArray[numpy.uint8], NDArray[numpy.int64], NDArray[numpy.int64], tuple[int, int, str] | None]:
    """Find the values of these keys in records; with None, the records are values themselves.

    Gives kind, start and size, each with a row for every key, and a failure. kind: 0 absent, 1 null, 2
    true, 3 false, 4 number, 5 string, 6 string with escapes, 7 array, 8 object. A string is without its
    quotes.
    """

def csv_unquote(
    data: NDArray[numpy.uint8],
    starts: NDArray[numpy.int64],
    sizes: NDArray[numpy.int64],
    special: NDArray[numpy.uint8],
    escape: str = "",
) -> tuple[NDArray[numpy.uint8], NDArray[numpy.int64]]:
    """Copy cells; in those marked 1 two quotes become one, in those marked 2 escapes are resolved."""

def json_unescape(
    data: NDArray[numpy.uint8],
    starts: NDArray[numpy.int64],
    sizes: NDArray[numpy.int64],
    escaped: NDArray[numpy.uint8],
) -> tuple[NDArray[numpy.uint8], NDArray[numpy.int64]]:
    """Copy cells; in those that are marked escapes are resolved."""

def text_numbers(
    data: NDArray[numpy.uint8],
    starts: NDArray[numpy.int64],
    sizes: NDArray[numpy.int64],
    kind: str,
    size: int,
    out: NDArray[numpy.uint8],
) -> tuple[int, int, str] | None:
    """Convert text to numbers; missing ones (-1) are zero. The first cell that is not a number, or None."""

def text_base64(
    data: NDArray[numpy.uint8], starts: NDArray[numpy.int64], sizes: NDArray[numpy.int64]
) -> tuple[NDArray[numpy.uint8], NDArray[numpy.int64], tuple[int, int, str] | None]:
    """Decode base64 texts: data, offsets and a failure."""

def json_elements(
    data: NDArray[numpy.uint8],
) -> tuple[NDArray[numpy.int64], NDArray[numpy.int64], tuple[int, int, str] | None]:
    """Locations of the elements of a JSON array: (starts, sizes, failure)."""

def json_arrays(
    data: NDArray[numpy.uint8],
    starts: NDArray[numpy.int64],
    sizes: NDArray[numpy.int64],
    kind: str,
    size: int,
    dims: Sequence[int],
) -> tuple[NDArray[numpy.uint8], NDArray[numpy.int64], tuple[int, int, str] | None]:
    """Convert nested lists of numbers of these sizes (the first may be -1): data, offsets and a failure."""

def json_check(
    data: NDArray[numpy.uint8], starts: NDArray[numpy.int64], sizes: NDArray[numpy.int64]
) -> NDArray[numpy.uint8]:
    """Why each run is not one JSON value; 0 where it is."""

def utf8_check(
    data: NDArray[numpy.uint8], starts: NDArray[numpy.int64], sizes: NDArray[numpy.int64]
) -> NDArray[numpy.uint8]:
    """1 for each run that is not UTF-8."""

def text_pack(
    rows: int, parts: list[tuple[Any, ...]], json: bool, delimiter: str, before: bytes, after: bytes
) -> tuple[NDArray[numpy.uint8], NDArray[numpy.int64]]:
    """Write rows of CSV or JSON from columns: data and offsets.

    A part is (key, mode, kind, size, data, starts, sizes, inner axes, omit); native/text/text.hpp says
    what they mean.
    """

def rle_counts(text: NDArray[numpy.uint8], pixels: int) -> NDArray[numpy.int64] | None:
    """The counts of COCO's run-length text; None where it is none of so many pixels."""

def rle_text(counts: NDArray[numpy.int64]) -> bytes:
    """Counts as COCO's run-length text."""

@overload
def rle_paint(counts: NDArray[numpy.int64], canvas: NDArray[numpy.uint8], value: int) -> None:
    """Set the pixels that are in to a value. Counts go down the columns, out and in by turns."""

@overload
def rle_paint(counts: NDArray[numpy.int64], canvas: NDArray[numpy.uint16], value: int) -> None:
    """The same on a canvas of 16 bits."""

def rle_of_mask(mask: NDArray[numpy.uint8]) -> NDArray[numpy.int64]:
    """The counts of a mask: what is not 0 is in."""

def rle_of_polygon(corners: NDArray[numpy.float64], height: int, width: int) -> NDArray[numpy.int64] | None:
    """The counts of a polygon (x, y, x, y, ...); None where it reaches too far."""

class ParquetLists:
    """Lists in lists of a column of Parquet in which nothing is missing, page by page."""

    def __init__(self, depth: int, values: int) -> None: ...
    def add(
        self, repetition: NDArray[numpy.uint8], definition: NDArray[numpy.uint8], present: int, count: int
    ) -> bool:
        """A page by its levels; False, and it is of no use, where a value is missing."""

    def offsets(self) -> list[NDArray[numpy.int32]]:
        """Offsets of the lists of each depth, from outside in; only once."""

@overload
def parquet_look_up(
    data: NDArray[numpy.uint8], width: int, dictionary: NDArray[numpy.uint8], out: NDArray[numpy.uint8]
) -> bool: ...
@overload
def parquet_look_up(
    data: NDArray[numpy.uint8], width: int, dictionary: NDArray[numpy.uint16], out: NDArray[numpy.uint16]
) -> bool: ...
@overload
def parquet_look_up(
    data: NDArray[numpy.uint8], width: int, dictionary: NDArray[numpy.uint32], out: NDArray[numpy.uint32]
) -> bool: ...
@overload
def parquet_look_up(
    data: NDArray[numpy.uint8], width: int, dictionary: NDArray[numpy.uint64], out: NDArray[numpy.uint64]
) -> bool:
    """The entries that packed numbers name; False where there is none."""

class ChunkCoding:
    """Steps from the stored bytes of an array's chunks to their values."""

    def __init__(
        self, steps: Sequence[tuple[str, int]], bytes: int, prefix: bytes = ..., swap: int = 1
    ) -> None:
        """Steps in the order in which they are undone, each with a number.

        shuffle: the size of values; blosc, lz4 and zstd: the address of blosc_decompress_ctx,
        LZ4_decompress_safe or ZSTD_decompress; others: none. bytes: of a chunk's values. prefix: stands
        before every whole chunk. swap: the size of values whose bytes are stored the other way round.
        """

class ChunkBoxes:
    """Boxes of an array by the chunks that they touch."""

    def __init__(self, boxes: NDArray[numpy.int64], steps: Sequence[int], chunks: Sequence[int]) -> None:
        """For each box its starts, counts and places in its output; for each axis a step and chunk size."""

    @property
    def indices(self) -> list[tuple[int, ...]]:
        """The chunks, ascending, each by its number along each axis."""

    def place(self, chunk: int) -> int:
        """Place along the first axis of the output of what the first box takes of a chunk."""

    def first(self, chunk: int) -> int:
        """The first box that touches a chunk."""

class ChunkThreads:
    """Threads that decode chunks and copy boxes out of them."""

    def __init__(self, threads: int) -> None: ...
    def decode(
        self,
        coding: ChunkCoding,
        sources: list[Any],
        starts: NDArray[numpy.int64],
        sizes: NDArray[numpy.int64],
    ) -> list[NDArray[numpy.uint8] | None]:
        """Decode chunks: the values of each, or None for one that is missing, damaged or not whole.

        A source is a buffer, or the path of a file as bytes, of which a run is read; -1: up to the end.
        """

    def copy(
        self,
        boxes: ChunkBoxes,
        first: int,
        chunks: list[Any],
        out: object,
        rows: NDArray[numpy.int64] | None = None,
    ) -> None:
        """Copy what boxes take of some chunks, from the first on, into an output or rows of it."""

def features() -> dict[str, str]:
    """Libraries and instructions that this build uses on this machine, by unit of native/."""

def kernel_sets() -> list[str]:
    """The loops over pixels that this machine can run, by name; first those that it uses."""
