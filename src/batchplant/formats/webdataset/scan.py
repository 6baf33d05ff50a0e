"""Scan an archive once: where the members are, and which kinds of fields they make."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np

from ... import _native
from ...codecs import npy
from ...codecs.infer import decoded_mode
from ...codecs.media import image
from ...errors import BatchplantError, DamagedError
from ...schema import Audio, Bytes, Field, Image, Int, Tensor, Text, Video
from ...schema.columns import I64, U8, AnyArray, AnyDType, Ragged, starts_of
from ...storage import RANGE_MOST, RemoteSource, Source
from . import members
from .layout import IMAGES, KEY, Note, kind_of

# -- passed -------------------------------------------------------------------------------------------
# Beginnings of small members, which the scan of a remote archive keeps from the bytes that pass.
#
# The fields are told by them afterwards, and to fetch them then would be to fetch all that lies between.

# The most of a member that is kept: a number, or the header of an NPY file.
MAX_PASSED_BYTES = 128


class PassedMembers(Source):
    """An archive, and the beginnings of members that are numbers or arrays."""

    def __init__(self, source: Source) -> None:
        super().__init__(source.path, source.size)
        self._source = source
        self._parts: list[tuple[I64, I64, U8]] = []
        self._sorted_parts: tuple[I64, I64, I64, U8] | None = None

    def add(self, piece: U8, offset: int) -> None:
        """Look at bytes that begin with a header, at this place of the archive."""
        scanner = _native.TarScanner()
        if scanner.scan(piece, self.size - offset) is not None:
            return
        arrays = scanner.finish()
        if arrays["failure"] is not None:
            return
        probes = [
            kind_of(name.decode(errors="replace").lower()) in (Int, Tensor) for name in arrays["extensions"]
        ]
        chosen = np.repeat(np.array(probes, dtype=np.bool_), np.diff(arrays["extension_offsets"]))
        starts, sizes = arrays["starts"], np.minimum(arrays["sizes"], MAX_PASSED_BYTES)
        chosen &= starts + sizes <= len(piece)
        starts, sizes = starts[chosen], sizes[chosen]
        to = starts_of(sizes)
        data = np.empty(int(to[-1]), dtype=np.uint8)
        _native.copy_runs(piece, starts, sizes, data, to[:-1])
        self._parts.append((starts + offset, sizes, data))

    def _view(self, start: int, size: int) -> U8:
        return self._source.view(start, size)

    def _gather(self, starts: I64, sizes: I64, out: U8, out_starts: I64) -> None:
        if self._sorted_parts is None:
            none = np.empty(0, dtype=np.int64)
            parts = list(zip(*self._parts, strict=True)) or [(none,), (none,), (np.empty(0, np.uint8),)]
            begins, lengths, data = (np.concatenate(part) for part in parts)
            order = np.argsort(begins, kind="stable")
            self._sorted_parts = begins[order], lengths[order], starts_of(lengths)[:-1][order], data
        begins, lengths, positions, data = self._sorted_parts
        row = np.minimum(np.searchsorted(begins, starts), max(len(begins) - 1, 0))
        cached = np.zeros(len(starts), dtype=np.bool_)
        if len(begins):
            cached = (begins[row] == starts) & (sizes <= lengths[row])
        _native.copy_runs(data, positions[row[cached]], sizes[cached], out, out_starts[cached])
        self._source.gather_into(starts[~cached], sizes[~cached], out, out_starts[~cached])


# -- scan ---------------------------------------------------------------------------------------------

ARRAYS = ("keys", "key_offsets", "firsts", "extension_offsets", "rows", "starts", "sizes")
# Larger than the largest header, so that every piece moves the scan on.
SCANNED_BYTES = 32 << 20
# Of a file on a server: what is read where the scan jumped over a member of at least so many bytes.
FIRST, JUMP = 64 << 10, 1 << 20
# Enough to tell which encodings and modes images have without opening every one.
PROBED_SAMPLES = 48
# Cells that are looked at in one go.
ROWS_PER_STEP = 1 << 16

Arrays = dict[str, AnyArray]
Facts = dict[str, Any]


def scan(
    source: Source, report: Callable[[int], None], *, piece_bytes: int = SCANNED_BYTES
) -> tuple[Arrays, Facts]:
    """Arrays and facts of the index. Members are in the order of their extensions, and of samples in each."""
    if source.size == 0:
        raise DamagedError("the file is empty; a tar archive has at least one block", offset=0)
    scanner = _native.TarScanner()
    failure = None
    remote = isinstance(source, RemoteSource)
    piece = FIRST if remote else piece_bytes
    passed = PassedMembers(source) if remote else None
    while scanner.next < source.size and failure is None:
        position = scanner.next
        end = min(position + piece, source.size)
        data = source.view(position, end - position)
        failure = scanner.scan(data, source.size)
        if passed is not None:
            passed.add(data, position)
        # Large members are not fetched for their headers; what is between small ones is.
        limit = RANGE_MOST if remote and scanner.next > position else piece_bytes
        piece = FIRST if remote and scanner.next - end >= JUMP else min(2 * piece, limit)
        report(scanner.next)
    result: dict[str, Any] = {"failure": failure} if failure is not None else scanner.finish()
    if result["failure"] is not None:
        message, offset = result["failure"]
        raise DamagedError(message, offset=offset)
    arrays = {name: result[name] for name in ARRAYS}
    told_by = passed or source
    return arrays, describe(told_by, arrays, result["extensions"], result["skipped"], result["comment"])


def describe(source: Source, arrays: Arrays, extensions: list[bytes], skipped: int, comment: bytes) -> Facts:
    """Facts in the index besides its arrays."""
    note = Note.from_comment(comment)
    if note is not None:
        _check_note(note, source.size, len(arrays["firsts"]))
    names = _names(extensions)
    if KEY in names:
        key_start = int(arrays["starts"][arrays["extension_offsets"][names.index(KEY)]])
        raise DamagedError(
            f"a member has the extension {KEY}, the name of the field of keys", offset=key_start
        )
    kinds = {}
    for number, name in enumerate(names if note is None else ()):
        bounds = slice(*arrays["extension_offsets"][number : number + 2])
        kinds[name] = infer(source, name, arrays["starts"][bounds], arrays["sizes"][bounds]).to_json()
    try:
        arrays["keys"].tobytes().decode()
        key: Field = Text()
    except UnicodeDecodeError:
        key = Bytes()
    return {
        "extensions": names, "kinds": kinds, "key": key.to_json(), "skipped": skipped,
        "note": None if note is None else note.to_json(),
    }  # fmt: skip


def _check_note(note: Note, size: int, samples: int) -> None:
    if size < note.size:
        raise DamagedError(f"the archive is cut short: {note.size} bytes were written", offset=size)
    # One that is longer was appended to.
    if size == note.size and samples != note.samples:
        raise DamagedError(f"{note.samples} samples were written, and {samples} are here", offset=0)


def _names(extensions: list[bytes]) -> list[str]:
    """Extensions as text, in small letters as WebDataset has them, unless two would be one."""
    plain = [extension.decode(errors="backslashreplace") for extension in extensions]
    small = [text.lower() for text in plain]
    for names in (small, plain):
        if len(set(names)) == len(names):
            return names
    raise DamagedError("two extensions differ only in bytes that are not text")


def infer(source: Source, name: str, starts: I64, sizes: I64) -> Field:
    """The field that the members of an extension make."""
    kind = kind_of(name)
    if kind is Image:
        return _infer_image(source, name, starts, sizes)
    if kind is Int:
        return _infer_int(source, starts, sizes)
    if kind is Tensor:
        return _infer_tensor(source, starts, sizes)
    last = name.rpartition(".")[2]
    return kind(last) if issubclass(kind, Audio | Video) else kind()


def _infer_image(source: Source, name: str, starts: I64, sizes: I64) -> Field:
    step = max(1, len(starts) // PROBED_SAMPLES)
    starts, sizes = starts[::step][:PROBED_SAMPLES], np.minimum(sizes[::step][:PROBED_SAMPLES], 1 << 16)
    cells = source.gather(starts, sizes)
    headers = [image.header(cell) for cell in cells if cell is not None]
    encodings = {header.encoding for header in headers}
    by_name = IMAGES[name.rpartition(".")[2]] or None
    encoding = (encodings.pop() or by_name) if len(encodings) == 1 else None
    return Image(encoding, decoded_mode(header.mode for header in headers))


def _infer_int(source: Source, starts: I64, sizes: I64) -> Field:
    """Int where every one is a number, else Text."""
    try:
        for first in range(0, len(starts), ROWS_PER_STEP):
            part = slice(first, first + ROWS_PER_STEP)
            if sizes[part].max() > members.MAX_NUMBER_CHARS:
                return Text()
            members.decimals(source.gather(starts[part], sizes[part]), np.dtype(np.int64))
    except (ValueError, OverflowError) as error:
        if isinstance(error, BatchplantError):
            raise
        return Text()
    return Int()


def _infer_tensor(source: Source, starts: I64, sizes: I64) -> Field:
    """Tensor where all are arrays of one dtype and rank; sizes that differ vary. Else Bytes."""
    dtypes: set[AnyDType] = set()
    shapes: set[tuple[int, ...]] = set()
    headers: dict[bytes, npy.Header] = {}
    try:
        for first in range(0, len(starts), ROWS_PER_STEP):
            part = slice(first, first + ROWS_PER_STEP)
            for head in set(_heads(source.gather, starts[part], sizes[part])) - set(headers):
                headers[head] = header = npy.parse_header(head)
                dtypes.add(header.dtype.newbyteorder("="))
                shapes.add(header.shape)
            if len(dtypes) > 1 or len({len(shape) for shape in shapes}) > 1:
                return Bytes()
        [dtype] = dtypes
        found_sizes = [set(axis) for axis in zip(*shapes, strict=True)]
        return Tensor(dtype.name, tuple(axis.pop() if len(axis) == 1 else None for axis in found_sizes))
    # Objects, structures, and what is no array.
    except (BatchplantError, ValueError):
        return Bytes()


def _heads(gather: Callable[[I64, I64], Ragged], starts: I64, sizes: I64) -> list[bytes]:
    prefixes = gather(starts, np.minimum(sizes, 10))
    lengths = np.full(len(starts), npy.MAX_HEADER_BYTES + 12, dtype=np.int64)
    complete = prefixes.sizes == 10
    table = prefixes.take(complete).data.reshape(-1, 10)
    # Version 1 has a length of two bytes; of the others, which are rare, more is taken than needed.
    stated = 10 + table[:, 8] + 256 * table[:, 9].astype(np.int64)
    lengths[complete] = np.where(table[:, 6] == 1, stated, lengths[complete])
    cells = gather(starts, np.minimum(sizes, np.minimum(lengths, npy.MAX_HEADER_BYTES + 12)))
    data, ends = cells.data.tobytes(), cells.offsets.tolist()
    return [data[a:b] for a, b in itertools.pairwise(ends)]


def verify(source: Source, arrays: Arrays) -> None:
    """DamagedError unless the archive is sound, and what its index says."""
    scanned, _ = scan(source, lambda done: None)
    if not all(np.array_equal(scanned[name], arrays[name]) for name in ARRAYS):
        raise DamagedError("its index belongs to another archive; build it again (batchplant index --force)")
