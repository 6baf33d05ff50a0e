"""The native core. Every function works without the GIL held; arrays are read in place, never converted."""

from collections.abc import Sequence
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

def crc32(data: Buffer | npt.NDArray[np.uint8], seed: int = 0) -> int:
    """zlib's CRC-32 of the bytes; seed continues an earlier result."""

def _crc32_portable(data: Buffer, seed: int = 0) -> int:
    """zlib's CRC-32 without the processor's help, for tests."""

def crc32_runs(
    data: npt.NDArray[np.uint8], starts: npt.NDArray[np.int64], sizes: npt.NDArray[np.int64]
) -> npt.NDArray[np.uint32]:
    """zlib's CRC-32 of every run of the data. IndexError names the first run that is out of bounds."""

def gather_runs_crc32(
    data: npt.NDArray[np.uint8],
    starts: npt.NDArray[np.int64],
    sizes: npt.NDArray[np.int64],
    sums: npt.NDArray[np.uint32],
    which: npt.NDArray[np.int64],
    look: bool = False,
) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64], int] | None:
    """As gather_runs; and the first run i whose CRC-32 (zlib's) is not sums[which[i]], or -1."""

def map_file(fd: int) -> npt.NDArray[np.uint8]:
    """The bytes of an open file, mapped. They outlive the descriptor; whoever holds them last unmaps it."""

def fetch_runs(
    fd: int,
    starts: npt.NDArray[np.int64],
    sizes: npt.NDArray[np.int64],
    out: npt.NDArray[np.uint8],
    out_starts: npt.NDArray[np.int64],
    threads: int = 16,
    _ring: bool = True,
) -> tuple[int, int] | None:
    """Read runs of a file to their places in out, all asked for together.

    By io_uring where the kernel has it (and _ring is True), else by threads. Gives None, or the first run
    that could not be read and the errno, 0 where the file ends. IndexError, and nothing read, if any run does
    not fit into out.
    """

def resident(
    mapping: npt.NDArray[np.uint8], starts: npt.NDArray[np.int64], sizes: npt.NDArray[np.int64]
) -> float:
    """Which part of a few pages of these runs is in memory, 0 to 1.

    Linux tells the truth only to those who own the file or may write it; to others all of it is in memory.
    """

def cached(fd: int, starts: npt.NDArray[np.int64], sizes: npt.NDArray[np.int64]) -> float:
    """The same of an open file, for anyone who may read it; -1 where its file system does not tell."""

def will_need(
    mapping: npt.NDArray[np.uint8], starts: npt.NDArray[np.int64], sizes: npt.NDArray[np.int64]
) -> None:
    """Have the kernel begin to read these runs, without waiting for any."""

def copy_runs(
    src: npt.NDArray[np.uint8],
    src_starts: npt.NDArray[np.int64],
    sizes: npt.NDArray[np.int64],
    dst: npt.NDArray[np.uint8],
    dst_starts: npt.NDArray[np.int64],
) -> None:
    """Copy runs of src to their places in dst. IndexError, and nothing copied, if any is out of bounds."""

class Pieces:
    """The pieces of a column by number, filled in as they become known; a piece is put once, and stays."""

    def __init__(self, count: int) -> None: ...
    def put(
        self, number: int, data: npt.NDArray[np.uint8], offsets: npt.NDArray[np.int64] | None = None
    ) -> None: ...
    def missing(self, numbers: npt.NDArray[np.int64]) -> list[int]:
        """Those that were not put yet, each once."""
    def cells(
        self, piece: npt.NDArray[np.int64], row: npt.NDArray[np.int64]
    ) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64]]:
        """Cells picked by piece and row, one after another: data and offsets. IndexError if any is not."""
    def rows(
        self, width: int, piece: npt.NDArray[np.int64], row: npt.NDArray[np.int64]
    ) -> npt.NDArray[np.uint8]:
        """Rows of one width picked by piece and row, one after another. IndexError if any is not there."""

def pieces_of(
    starts: npt.NDArray[np.int64], numbers: npt.NDArray[np.int64]
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """The piece that every number falls into, and its place there; pieces begin at starts, which ascend."""

def distinct(numbers: npt.NDArray[np.int64]) -> tuple[list[int], npt.NDArray[np.int64]]:
    """The numbers that occur, ascending, and for each number its place among them."""

def gather_runs(
    data: npt.NDArray[np.uint8],
    starts: npt.NDArray[np.int64],
    sizes: npt.NDArray[np.int64],
    look: bool = False,
) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64]] | None:
    """Runs of the data, one after another: data and offsets. IndexError if any is out of bounds.

    With look, data is a mapped file, and None is given where not all of a few pages are in memory.
    """

def bad_run(starts: npt.NDArray[np.int64], sizes: npt.NDArray[np.int64], first: int, end: int) -> int:
    """The first run that does not lie between first and end, or -1."""

def are_below(numbers: npt.NDArray[np.int64], end: int) -> bool:
    """Whether all numbers are from 0 up to, not including, end."""

def gather_strided(
    data: npt.NDArray[np.uint8],
    start: int,
    stride: int,
    width: int,
    row: npt.NDArray[np.int64],
    look: bool = False,
) -> npt.NDArray[np.uint8] | None:
    """Rows of one width, row i beginning at start + i * stride; IndexError and look as for gather_runs."""

def photos(
    data: npt.NDArray[np.uint8],
    starts: npt.NDArray[np.int64],
    sizes: npt.NDArray[np.int64],
    shapes: npt.NDArray[np.int64],
) -> npt.NDArray[np.bool_]:
    """Which runs are JPEGs of the common kind, and of these shapes (height, width); not those missing (-1).

    Baseline, YCbCr of 8 bits in one scan, colours at full size or half, whole to the end; headers are read.
    """

def probe(
    data: npt.NDArray[np.uint8], starts: npt.NDArray[np.int64], sizes: npt.NDArray[np.int64]
) -> npt.NDArray[np.int32]:
    """Image headers of every run, as columns encoding, width, height, mode, bits (n x 5).

    encoding: 0 unknown, 1 jpeg, 2 png, 3 webp, 4 gif, 5 bmp, 6 tiff
    mode:     0 unknown, 1 L, 2 LA, 3 RGB, 4 RGBA, 5 P, 6 CMYK, 7 one bit
    A run of size 0 or -1 (missing) gives zeros; a damaged header gives its encoding and zeros.
    """

def recordio_scan(
    data: npt.NDArray[np.uint8], at: int, until: int
) -> tuple[
    npt.NDArray[np.int64],
    npt.NDArray[np.int64],
    npt.NDArray[np.int64],
    int,
    int,
    int,
    tuple[str, int, bool] | None,
]:
    """The records that begin in [at, until): starts of their headers, sizes of their data, numbers of those
    that are split; the least and the largest first word; the place behind the last; and what stopped the
    scan: (reason, offset, whether the data just end there).
    """

def recordio_join(
    data: npt.NDArray[np.uint8],
    starts: npt.NDArray[np.int64],
    sizes: npt.NDArray[np.int64],
    out: npt.NDArray[np.uint8],
    out_starts: npt.NDArray[np.int64],
) -> int:
    """Copy records to their places in out, split ones joined; the number of the first bad one, or -1."""

def recordio_frame(
    data: npt.NDArray[np.uint8], starts: npt.NDArray[np.int64], sizes: npt.NDArray[np.int64]
) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64]]:
    """The records as they stand in a file, and where each begins."""

_Tree = tuple[int, int, int, int]

def lmdb_meta(
    data: npt.NDArray[np.uint8],
) -> tuple[int, int, int, _Tree, _Tree, tuple[str, int] | None]:
    """The newer meta page: page size, last page, transaction, tree of free pages, main tree; what is wrong.

    A tree is (root, entries, depth, flags).
    """

def lmdb_tree(record: npt.NDArray[np.uint8]) -> _Tree:
    """The tree that the record of a named database describes."""

def lmdb_walk(
    data: npt.NDArray[np.uint8], page_size: int, tree: _Tree
) -> tuple[
    npt.NDArray[np.int64],
    npt.NDArray[np.uint16],
    npt.NDArray[np.int64],
    npt.NDArray[np.int64],
    npt.NDArray[np.int64],
    tuple[str, int] | None,
    bool,
]:
    """All entries in order: starts and sizes of keys, starts and sizes of values, numbers of the entries that
    are named databases; (reason, offset) of what is wrong; whether that is only several values of a key.
    """

def datum_scan(
    data: npt.NDArray[np.uint8], starts: npt.NDArray[np.int64], sizes: npt.NDArray[np.int64]
) -> tuple[npt.NDArray[np.int64], tuple[int, str] | None]:
    """Caffe's Datum messages: channels, height, width, label, encoded, start and size of data (-1: none),
    start and count of float_data (n x 9); and (row, reason) of the first that is none.
    """

def datum_floats(message: npt.NDArray[np.uint8], out: npt.NDArray[np.float32]) -> None:
    """Copy the values of float_data of one Datum message."""

def jpeg_decode(data: Buffer, mode: str | None = None, dct: str = "accurate") -> npt.NDArray[np.uint8]:
    """Decode a JPEG to height x width x channels; mode is None (as stored), 'L' or 'RGB'; dct as Engine's.

    ValueError says what is wrong with the data. CMYK comes out as stored only.
    """

def png_decode(
    data: npt.NDArray[np.uint8] | Buffer, mode: str | None = None, most_pixels: int = 1 << 28
) -> npt.NDArray[np.uint8] | None:
    """Decode a PNG of 8 bits to height x width x channels, without the GIL.

    mode: None (palettes looked up: RGB, or RGBA where the palette has alpha), "L", "LA", "RGB", "RGBA" where
    that loses nothing, or "P": indices of a palette picture, levels of a gray one.
    Gives None where this code does not decode it: 16 bits, a mode that would change pixels, odd chunks.
    ValueError says what is damaged, or that it has more than most_pixels.
    """

def webp_decode(
    data: npt.NDArray[np.uint8] | Buffer, mode: str | None = None, most_pixels: int = 1 << 28
) -> npt.NDArray[np.uint8] | None:
    """Decode a WebP as png_decode does; None also for animations, and in a build without libwebp."""

def jpeg_encode(pixels: npt.NDArray[np.uint8], quality: int = 90) -> bytes:
    """Encode height x width x (1 or 3) pixels as a baseline JPEG, colour at 4:2:0."""

def resize_area(pixels: npt.NDArray[np.uint8], width: int, height: int) -> npt.NDArray[np.uint8]:
    """Shrink pixels, each result the mean of the area it covers (OpenCV's INTER_AREA).

    ValueError unless 1 <= width and height <= those of the pixels.
    """

def lend(memory: npt.NDArray[np.uint8], shelf: list[Any], most: int) -> npt.NDArray[np.uint8]:
    """The same bytes as an array that puts memory on the shelf once nobody holds it or a view of it.

    Unless ``most`` are there already. No Python code runs then.
    """

def random_boxes(
    keys: npt.NDArray[np.uint64],
    sizes: npt.NDArray[np.int32],
    scale: tuple[float, float],
    ratio: tuple[float, float],
    tries: int,
    first: int,
) -> npt.NDArray[np.float64]:
    """A random box (x0, y0, x1, y1) in each picture of (height, width).

    ``first``: the number of the first of 2 * tries + 2 draws that each sample's key gives.
    """

def derive(key: npt.NDArray[np.uint64], numbers: npt.NDArray[np.int64]) -> npt.NDArray[np.uint64]:
    """A key of its own for each number; either may have one element for all of the other."""

def permute(
    at: npt.NDArray[np.int64], count: npt.NDArray[np.uint64], key: npt.NDArray[np.uint64]
) -> npt.NDArray[np.int64]:
    """Where each number below its count goes in the permutation that its key chooses.

    ``count`` and ``key`` have one element for all numbers, or one for each.
    """

def plan_windows(
    start: npt.NDArray[np.int64],
    shape: npt.NDArray[np.int32],
    box: npt.NDArray[np.float64],
    support: float,
    height: float,
    width: float,
) -> tuple[npt.NDArray[np.int64], int]:
    """Which part of raw pictures their boxes (x0, y0, x1, y1) need, and a place for it.

    For a filter that sees ``support`` pixels around a pixel where the box becomes ``height`` x ``width``.
    ``shape``: height, width, channels. Gives an array with a row for each of: top, left, rows, columns, and
    what Engine.gather wants: start, line, width in bytes, place; and the bytes that all take together.
    """

def look(
    bases: list[npt.NDArray[np.uint8]],
    base: npt.NDArray[np.int32],
    start: npt.NDArray[np.int64],
    size: npt.NDArray[np.int64],
    headers: bool,
) -> npt.NDArray[np.int32]:
    """Ask the kernel for cells of mapped files that are not in memory, all together.

    Then, if the headers are wanted, (height, width) of every picture; zeros where there is none.
    """

class NvJpeg:
    """NVIDIA's JPEG decoder on the device that is current, which has to be so in all calls.

    RuntimeError where there is no such library, or no device. One thread at a time.
    """

    def __init__(self, library: str, *, _hardware: bool = True) -> None:
        """The device's circuits for JPEG are used where it has some; for tests: not if _hardware=False."""

    @property
    def hardware(self) -> bool:
        """Whether circuits decode, or else the device's processors."""

    def decode(
        self,
        data: npt.NDArray[np.uint8],
        starts: npt.NDArray[np.int64],
        sizes: npt.NDArray[np.int64],
        shapes: npt.NDArray[np.int64],
        address: int,
        room: int,
        places: npt.NDArray[np.int64],
        stream: int,
    ) -> None:
        """Begin, on a CUDA stream, to decode to memory of the device: ``room`` bytes from ``address`` on.

        Picture i goes to places[i], as (height, width, 3). ValueError where it does not take one,
        RuntimeError where the device fails. The encoded bytes have to stay until it is done.
        """

class Engine:
    """Decodes batches of pictures on threads of its own, each with a decoder and scratch memory it keeps.

    May be called from any number of threads at once; their calls queue. It does not survive a fork: in the
    child every call is a RuntimeError, as after close().
    """

    def __init__(
        self,
        threads: int,
        cpus: list[int] | None = None,
        *,
        nice: int = 0,
        _portable: bool = False,
        _baseline: bool = True,
    ) -> None:
        """With cpus, thread i stays on cpus[i % len(cpus)]. nice: how much other threads go before them.

        For tests: _portable, no vector instructions; _baseline=False, JPEGs are decoded by libjpeg alone.
        """

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
        orient: npt.NDArray[np.uint8] | None = None,
        mode: str | None = None,
        most_pixels: int = 1 << 28,
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
        orient:      EXIF's orientation of encoded pictures, 1 to 8: they are turned first, the box is in what
                     comes of it
        mode:        of PNG and WebP, as png_decode takes it; None: L, LA, RGB or RGBA by the channels of out
        most_pixels: an encoded picture that has more fails

        status:      0 decoded; 1 failed: its pixels are zeros, and errors has (index, message); 2 not native:
                     no JPEG, PNG or WebP, or one that needs another decoder or would lose by the change to
                     these channels: its pixels are as they were
        warnings:    how many libjpeg gave
        """

    def wait_turn(self) -> None:
        """Wait until the work of all calls so far is handed out, so that the next call begins at once."""

    def gather(
        self,
        bases: list[npt.NDArray[np.uint8]],
        base: npt.NDArray[np.int32],
        start: npt.NDArray[np.int64],
        line: npt.NDArray[np.int64],
        rows: npt.NDArray[np.int64],
        width: npt.NDArray[np.int64],
        out: npt.NDArray[np.uint8],
        places: npt.NDArray[np.int64],
    ) -> None:
        """Copy windows of the bases to their places in out, in parallel; they must not overlap there.

        Window i: ``rows[i]`` times ``width[i]`` bytes, ``line[i]`` bytes apart, from ``start[i]`` on.
        IndexError, and nothing copied, if any is out of bounds.
        """

    @property
    def threads(self) -> int:
        """How many threads it has."""

    @property
    def own_jpegs(self) -> int:
        """How many JPEGs were decoded without libjpeg so far: the common kind, undamaged."""

    @property
    def seconds(self) -> tuple[float, float]:
        """Seconds that the threads spent decoding and resampling so far, added up."""

    def close(self) -> None:
        """End the threads, after the calls under way."""

def msgpack_scan(
    piece: npt.NDArray[np.uint8], base: int, left: int, most: int, todo: int, skip: int
) -> tuple[npt.NDArray[np.int64], int, int, int, int]:
    """Where the values at the top of a MessagePack stream begin; a piece of the stream at a time.

    base: where in the stream the piece lies. left: bytes that the stream has from there on. most: stop after
    so many values. todo, skip: as the piece before gave them, 0 at the start.
    Gives starts, bytes used (the rest goes before the next piece), todo, skip, and a fault: 0 none,
    1 the stream ends inside of a value, 2 a byte that MessagePack never has.
    """

def msgpack_find(
    data: npt.NDArray[np.uint8],
    starts: npt.NDArray[np.int64],
    sizes: npt.NDArray[np.int64],
    keys: list[bytes] | None,
) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int64], npt.NDArray[np.int64], tuple[int, int, str] | None]:
    """Where the values of these keys lie in the map of each run; with None, the runs are values themselves.

    Gives info, start and size, each with a row for every key, and (run, offset, reason) of a failure.
    info is kind | bytes of the value's head << 8 | type of an extension << 16; start and size are those of
    the value with its head. kind: 0 absent, 1 nil, 2 true or false, 3 signed, 4 unsigned, 5 float, 6 str,
    7 bin, 8 array, 9 map, 10 extension.
    """

def msgpack_numbers(
    data: npt.NDArray[np.uint8],
    info: npt.NDArray[np.int32],
    starts: npt.NDArray[np.int64],
    kind: str,
    width: int,
    out: npt.NDArray[np.uint8],
) -> tuple[int, int, str] | None:
    """Convert numbers that msgpack_find found to NumPy's kind (b, i, u, f) and width; absent ones stay."""

def msgpack_arrays(
    data: npt.NDArray[np.uint8],
    info: npt.NDArray[np.int32],
    starts: npt.NDArray[np.int64],
    sizes: npt.NDArray[np.int64],
    dtype: bytes,
    width: int,
    rank: int,
) -> tuple[
    npt.NDArray[np.uint8],
    npt.NDArray[np.int64],
    npt.NDArray[np.int64],
    npt.NDArray[np.int64],
    tuple[int, int, str] | None,
]:
    """Where the values of arrays lie that msgpack_find found: our extension, or msgpack-numpy's map.

    Gives found (0 absent or nil, 1 an array of this dtype and rank, 2 anything else), the values' starts and
    sizes, shapes, and a failure.
    """

def msgpack_lists(
    data: npt.NDArray[np.uint8],
    info: npt.NDArray[np.int32],
    starts: npt.NDArray[np.int64],
    sizes: npt.NDArray[np.int64],
    kind: str,
    width: int,
    rank: int,
) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64], npt.NDArray[np.int64], npt.NDArray[np.uint8]]:
    """Convert the lists of numbers, nested rank deep, that msgpack_find found.

    Gives found (0 absent or nil, 1 converted, 2 anything else), sizes in bytes, shapes (-1 for what a list
    without an element does not tell), and the values of all.
    """

def msgpack_pack(
    rows: int, columns: list[tuple[Any, ...]]
) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64], tuple[int, int, str] | None]:
    """One map for each row: data and offsets, or a failure (row, column, reason).

    A column is (key, mode, width, data, starts, sizes, heads, head size, headed); native/msgpack.hpp says
    what they mean.
    """

def msgpack_load(data: npt.NDArray[np.uint8], start: int, size: int, extension: Any) -> Any:
    """One value as Python objects; extension(type, data) makes those of extensions.

    Text that is no UTF-8 comes as bytes. ValueError for what is cut short, or nested too deeply.
    """

def features() -> dict[str, str]:
    """What this build uses on this machine, by unit."""

class TarScanner:
    """Reads the headers of a tar archive and groups its members into samples.

    The archive may come in pieces: give ``scan`` the bytes from ``next`` on, until ``next`` is its end. A
    piece of 16 MiB and two blocks, or all that is left, moves it on.
    """

    def __init__(self) -> None: ...
    def scan(self, data: npt.NDArray[np.uint8], total: int) -> tuple[str, int] | None:
        """Take the bytes from ``next`` on of an archive of ``total`` bytes; what is wrong, and where."""

    def finish(self) -> dict[str, Any]:
        """After the last bytes: ``failure`` (None, or what is wrong and where), and what was found.

        keys, key_offsets, firsts: the key and the first header of every sample. extensions: bytes.
        rows, starts, sizes: sample, place and size of every member, by extension (extension_offsets).
        skipped: members in no sample. comment: of the first PAX header for the whole archive.
        """

    @property
    def next(self) -> int:
        """Where the next header is expected."""

def tar_without_header(
    data: npt.NDArray[np.uint8], starts: npt.NDArray[np.int64], sizes: npt.NDArray[np.int64]
) -> int:
    """The first run that does not lie behind a header of a file of its size, or -1."""

def is_tar_header(data: npt.NDArray[np.uint8]) -> bool:
    """Whether the bytes begin with a tar header whose checksum is right."""

def tar_headers(
    names: npt.NDArray[np.uint8], offsets: npt.NDArray[np.int64], sizes: npt.NDArray[np.int64]
) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64]]:
    """What stands before the bytes of each member, one after another, and the offsets of each."""

def tar_comment(text: bytes) -> bytes:
    """A PAX header with a comment on the whole archive."""

def tfrecord_scan(
    data: npt.NDArray[np.uint8], start: int, until: int, check_data: bool = False
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], int, int]:
    """Starts and sizes of the data of the records that begin in [start, until) of a TFRecord file, where the
    next one begins, and what is wrong there.

    0 nothing; 1 the file ends inside of a length; 2 the checksum of the length is wrong; 3 the file ends
    inside of the data; 4 the checksum of the data is wrong (with check_data).
    """

def tfrecord_check(
    data: npt.NDArray[np.uint8],
    starts: npt.NDArray[np.int64],
    sizes: npt.NDArray[np.int64],
    check_data: bool = True,
) -> tuple[int, int]:
    """The first of these records that is damaged, or -1, and what is wrong: as above; 5 another length."""

def tfrecord_gather(
    data: npt.NDArray[np.uint8],
    starts: npt.NDArray[np.int64],
    sizes: npt.NDArray[np.int64],
    look: bool = False,
) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64], int, int] | None:
    """As gather_runs, records checked on the way: data, offsets, and what tfrecord_check gives."""

def tfrecord_frame(
    data: npt.NDArray[np.uint8], starts: npt.NDArray[np.int64], sizes: npt.NDArray[np.int64]
) -> npt.NDArray[np.uint8]:
    """The runs as TFRecord records, one after another. IndexError names the first that is out of bounds."""

def example_read(
    data: npt.NDArray[np.uint8],
    starts: npt.NDArray[np.int64],
    sizes: npt.NDArray[np.int64],
    wishes: list[tuple[bytes, bool, int]],
) -> tuple[list[tuple[npt.NDArray[Any], ...]], int, int]:
    """The values of features in serialized tf.train.Examples or SequenceExamples.

    A wish is a name, whether it is one of the feature lists, and a kind: 1 bytes, 2 float, 3 int64, 0 any.
    For each wish come six arrays: kind of each record (0 none, 4 several); count of values or, of a list,
    steps of each record, -1 where the feature is missing; of lists the count of values of each step; then
    the values, one after another: of bytes start and size in data in turn, of floats float32, of ints int64.
    Values of another kind than wished are counted and left out.

    Last come the first record that is no Example, or -1, and where in data it is wrong.
    """

def example_write(
    n: int,
    sources: list[
        tuple[
            bytes,
            int,
            npt.NDArray[np.uint8],
            npt.NDArray[np.int64],
            npt.NDArray[np.int64],
            npt.NDArray[np.int64] | None,
        ]
    ],
) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64]]:
    """n serialized tf.train.Examples, one after another, and their n + 1 offsets; keys in order of bytes.

    A source is a name, a kind, and runs of data, one for each record, -1 where it lacks the feature: one
    bytes value, or float32s, or int64s. With counts, of bytes only, record i has counts[i] runs, each a
    value; -1 where it lacks the feature.
    """

class ExampleSurvey:
    """Which features serialized Examples have; not for several threads at once."""

    def __init__(self) -> None: ...
    def add(
        self, data: npt.NDArray[np.uint8], starts: npt.NDArray[np.int64], sizes: npt.NDArray[np.int64]
    ) -> int:
        """Take in records. -1, or the first that is no Example: it and those behind it are not counted."""

    def skip(self) -> None:
        """Count a record without looking at it."""

    def features(self) -> list[tuple[bytes, bool, int, int, int, int, int, int, int]]:
        """Name, whether it is a feature list, bits of the kinds it had, how many records have it, fewest and
        most values (or steps), fewest and most values of a step (-1: none), first record of another kind."""

    @property
    def records(self) -> int:
        """How many were taken in or skipped."""

    @property
    def unknown(self) -> int:
        """How many parts were not of these messages."""

    @property
    def foreign(self) -> int:
        """How many records have such parts, and no feature."""

_Failure = tuple[int, int, str] | None

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
    ) -> None: ...
    def feed(self, piece: npt.NDArray[np.uint8], base: int, final: bool) -> int: ...
    @property
    def starts(self) -> npt.NDArray[np.int64]: ...
    @property
    def bad(self) -> npt.NDArray[np.int64]: ...
    @property
    def classes(self) -> list[int]: ...

_KeyFacts = tuple[bytes, int, int, int, list[int], bool, bool]

class JsonScanner:
    """Finds the records of a JSON file that comes in pieces."""

    def __init__(self, layout: int) -> None: ...
    def feed(self, piece: npt.NDArray[np.uint8], base: int, final: bool) -> int: ...
    @property
    def broken(self) -> bool: ...
    @property
    def starts(self) -> npt.NDArray[np.int64]: ...
    @property
    def bad(self) -> npt.NDArray[np.int64]: ...
    @property
    def objects(self) -> int: ...
    @property
    def too_many(self) -> bool: ...
    @property
    def bare(self) -> _KeyFacts: ...
    @property
    def keys(self) -> list[_KeyFacts]: ...

def csv_first(
    data: npt.NDArray[np.uint8], delimiter: str, final: bool, escape: str = ""
) -> tuple[list[bytes], int, int, int] | None:
    """The fields of the first row, where it ends, the fault and its place; None where the data end before."""

def csv_find(
    data: npt.NDArray[np.uint8],
    starts: npt.NDArray[np.int64],
    sizes: npt.NDArray[np.int64],
    delimiter: str,
    missing: Sequence[str],
    columns: int,
    wanted: Sequence[int],
    empty: Sequence[bool],
    escape: str = "",
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], npt.NDArray[np.uint8], _Failure]:
    """Where the cells of these columns lie in rows."""

def json_find(
    data: npt.NDArray[np.uint8],
    starts: npt.NDArray[np.int64],
    sizes: npt.NDArray[np.int64],
    keys: list[bytes] | None,
) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64], npt.NDArray[np.int64], _Failure]:
    """Where the values of these keys lie in records."""

def csv_unquote(
    data: npt.NDArray[np.uint8],
    starts: npt.NDArray[np.int64],
    sizes: npt.NDArray[np.int64],
    special: npt.NDArray[np.uint8],
    escape: str = "",
) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64]]:
    """Cells one after another; in those marked 1 two quotes become one, in those marked 2 escapes go."""

def json_unescape(
    data: npt.NDArray[np.uint8],
    starts: npt.NDArray[np.int64],
    sizes: npt.NDArray[np.int64],
    escaped: npt.NDArray[np.uint8],
) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64]]:
    """Cells one after another; in those that are marked escapes are resolved."""

def text_numbers(
    data: npt.NDArray[np.uint8],
    starts: npt.NDArray[np.int64],
    sizes: npt.NDArray[np.int64],
    kind: str,
    size: int,
    out: npt.NDArray[np.uint8],
) -> _Failure:
    """Numbers out of their text; missing ones (-1) are zero. The first that is none, or None."""

def text_base64(
    data: npt.NDArray[np.uint8], starts: npt.NDArray[np.int64], sizes: npt.NDArray[np.int64]
) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64], _Failure]:
    """The bytes of base64 texts."""

def json_arrays(
    data: npt.NDArray[np.uint8],
    starts: npt.NDArray[np.int64],
    sizes: npt.NDArray[np.int64],
    kind: str,
    size: int,
    dims: Sequence[int],
) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64], _Failure]:
    """The numbers of nested lists of these sizes (the first may be -1)."""

def json_check(
    data: npt.NDArray[np.uint8], starts: npt.NDArray[np.int64], sizes: npt.NDArray[np.int64]
) -> npt.NDArray[np.uint8]:
    """Why each run is not one JSON value; 0 where it is."""

def utf8_check(
    data: npt.NDArray[np.uint8], starts: npt.NDArray[np.int64], sizes: npt.NDArray[np.int64]
) -> npt.NDArray[np.uint8]:
    """1 for each run that is no UTF-8."""

def text_pack(
    rows: int, parts: list[tuple[Any, ...]], json: bool, delimiter: str, before: bytes, after: bytes
) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64]]:
    """Rows of CSV or JSON, put together from columns."""
