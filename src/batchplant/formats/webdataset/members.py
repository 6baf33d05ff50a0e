"""Names, kinds and the note: what a member's name says, and what ours say besides.

A name is a key, a dot and an extension. What comes after the last dot of the extension tells the kind::

    jpg jpeg png webp gif bmp tif tiff ppm pgm pbm pnm   Image        json jsn                  Json
    cls cls2 index inx id                                Int          npy                       Tensor
    txt text transcript                                  Text         any other                 Bytes
    flac wav ogg opus mp3 m4a                            Audio        mp4 mkv webm avi mov      Video

A field of that kind whose name is such an extension (``jpg``, ``seg.png``) is written under it. Beside
images, sound or video, the only field of its kind has the bare extension, so that WebDataset's
``to_tuple("jpg", "cls")`` finds it: the image that is no mask, the label, the text, the JSON. Every other
field ``label`` is written as ``label.cls``, and so on. What the names do not tell stands in the note, the
comment of a PAX header at the start of the archive, which other programs pass over: the schema, which
extensions a field has, and how many samples and bytes were written.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from ... import _native
from ...codecs import npy
from ...codecs.infer import decoded_mode
from ...codecs.media import image
from ...codecs.npy import check_bytes
from ...errors import BatchplantError, DamagedError, DecodeError, SchemaError, exceptions_as
from ...schema import Audio, Bool, Bytes, Field, Float, Image, Int, Json, Schema, Tensor, Text, Video
from ...schema.columns import I64, U8, AnyArray, AnyDType, Column, Ragged, as_bytes, starts_of
from ...storage import NOTE_ERRORS, RANGE_MOST, RemoteSource, Source, parse_object

# -- names --------------------------------------------------------------------------------------------

KEY = "__key__"
# The extension of the member that stands for a sample with no cell at all.
NOTHING = "none"
BLOCK = 512

IMAGES = {suffix[1:]: encoding for suffix, encoding in image.SUFFIXES.items()}
IMAGES |= dict.fromkeys(("ppm", "pgm", "pbm", "pnm"), "")
INTS = ("cls", "cls2", "index", "inx", "id")
TEXTS = ("txt", "text", "transcript")
AUDIO = ("flac", "wav", "ogg", "opus", "mp3", "m4a")
VIDEO = ("mp4", "mkv", "webm", "avi", "mov")
# The extension that an image gets by its encoding, in the order of image.ENCODINGS; the first is for bytes
# that are no image we know.
IMAGE_SUFFIXES = ("img", "jpg", "png", "webp", "gif", "bmp", "tiff")

# What the field of classes is called, where others hold whole numbers too.
LABELS = ("label", "labels", "class", "cls", "target", "y")

_MARK = '{"batchplant":'
# Digits of the two numbers in the note that are known only at the end.
_ROOM = 40


def kind_of(extension: str) -> type[Field]:
    """The kind that an extension stands for."""
    last = extension.rpartition(".")[2]
    for kind, endings in (
        (Image, IMAGES), (Int, INTS), (Text, TEXTS), (Json, ("json", "jsn")), (Tensor, ("npy",)),
        (Audio, AUDIO), (Video, VIDEO),
    ):  # fmt: skip
        if last in endings:
            return kind
    return Bytes


def extensions_of(schema: Mapping[str, Field]) -> dict[str, list[str]]:
    """Field name → the extensions that its members may have; an image's depends on its bytes."""
    extensions: dict[str, list[str]] = {}
    used = {NOTHING}
    bare = _bare(schema)
    for name, field in schema.items():
        stem = _plain(name)
        endings = bare.get(name) or _endings(stem, field)
        candidate, number = endings, 1
        # Names that differ only in case, or in what no extension can hold.
        while used & set(candidate):
            number += 1
            candidate = [f"{stem}-{number}{ending[len(stem) :]}" for ending in endings]
        used |= set(candidate)
        extensions[name] = candidate
    return extensions


def _bare(schema: Mapping[str, Field]) -> dict[str, list[str]]:
    """The fields that have an extension to themselves, where there are images, sound or video."""
    images = [name for name, field in schema.items() if isinstance(field, Image) and not field.mask]
    by_kind = {
        kind: [name for name, field in schema.items() if type(field) is kind]
        for kind in (Audio, Video, Int, Text, Json)
    }
    if not (images or by_kind[Audio] or by_kind[Video]):
        return {}
    classes = [
        name for name in by_kind[Int] if getattr(schema[name], "names", None) or name.lower() in LABELS
    ]
    by_kind[Int] = classes or by_kind[Int]
    usual = {name: _endings(_plain(name), field) for name, field in schema.items()}
    by_ending: dict[str, list[str]] = {}
    for names in (images, *by_kind.values()):
        name = names[0] if len(names) == 1 else None
        # One whose name is an extension stays under it.
        if name is None or usual[name] == [_plain(name)]:
            continue
        endings = [ending.rpartition(".")[2] for ending in usual[name]]
        elsewhere = {
            ending
            for other_name, other_endings in usual.items()
            if other_name != name
            for ending in other_endings
        }
        if kind_of(endings[-1]) is not Bytes and not elsewhere & set(endings):
            by_ending[name] = endings
    return by_ending


def _plain(name: str) -> str:
    """A field's name as others read it: WebDataset makes small letters of it."""
    with exceptions_as(SchemaError, "its name cannot be written", UnicodeEncodeError, field=name):
        name.encode()
    return name.lower().replace("/", "_")


def _endings(stem: str, field: Field) -> list[str]:
    if isinstance(field, (Bytes, kind_of(stem))):
        return [stem]
    if isinstance(field, Image):
        return [f"{stem}.{suffix}" for suffix in IMAGE_SUFFIXES]
    if isinstance(field, Audio | Video):
        suffixes = AUDIO if isinstance(field, Audio) else VIDEO
        return [f"{stem}.{field.encoding if field.encoding in suffixes else field.kind}"]
    return [f"{stem}.{ {'int': 'cls', 'text': 'txt', 'json': 'json'}.get(field.kind, 'npy') }"]


@dataclasses.dataclass(frozen=True)
class Note:
    """Metadata of our own archives. ``key``: the field that the members' keys are, if any."""

    schema: Schema
    extensions: dict[str, list[str]]
    key: str | None = None
    samples: int = 0
    size: int = 0

    def to_bytes(self) -> bytes:
        """The header; as long for every number of samples and bytes."""
        numbers = {"samples": self.samples, "size": self.size}
        document = {"batchplant": 1, **self.to_json()}
        room = _ROOM - sum(len(str(number)) for number in numbers.values())
        return _native.tar_comment(json.dumps(document).encode() + b" " * room)

    @classmethod
    def from_comment(cls, comment: bytes) -> Note | None:
        """The note in an archive's comment; None if another writer made it."""
        if not comment.startswith(_MARK.encode()):
            return None
        with exceptions_as(DamagedError, "its note is damaged", *NOTE_ERRORS, SchemaError, offset=0):
            document = parse_object(comment)
            schema, extensions, key = (document[name] for name in ("schema", "extensions", "key"))
            schema = Schema.from_json(schema)
            lists = isinstance(extensions, dict) and all(
                isinstance(extension, list) and all(isinstance(ending, str) for ending in extension)
                for extension in extensions.values()
            )
            if not lists or set(extensions) != set(schema) - {key} or (key is not None and key not in schema):
                raise ValueError("it does not say where every field is")
            return cls(schema, extensions, key, int(document["samples"]), int(document["size"]))

    def to_json(self) -> dict[str, Any]:
        return {
            "schema": self.schema.to_json(), "extensions": self.extensions, "key": self.key,
            "samples": self.samples, "size": self.size,
        }  # fmt: skip

    @classmethod
    def from_json(cls, document: dict[str, Any]) -> Note:
        return cls(**{**document, "schema": Schema.from_json(document["schema"])})


# -- cells --------------------------------------------------------------------------------------------
# Cells to the bytes of members and back: whole numbers are decimal text, all else NPY files.

# No number is longer: uint64 has 20 digits, and there may be blanks around it; reals have more.
MAX_NUMBER_CHARS = 64


def packed(field: Field, column: Column) -> Ragged:
    """The bytes of the members; what is missing stays so."""
    if not isinstance(field, Int | Float | Bool | Tensor):
        assert isinstance(column, Ragged)
        return column
    if _varies(field):
        assert isinstance(column, Ragged)
        assert isinstance(field, Tensor)
        return _packed_arrays(field, column) if field.flat else column
    dtype, shape = _number(field)
    valid = column.valid if isinstance(column, Ragged) else None
    values = column if not isinstance(column, Ragged) else _values(column, dtype, shape)
    cells = _decimals(values) if isinstance(field, Int) else _npy_files(values, dtype, shape)
    return cells if valid is None else _spread(cells, valid)


def _varies(field: Field) -> bool:
    """True if a cell is more, or less, than the values of an array of one known shape."""
    return isinstance(field, Tensor) and (None in field.shape or (field.optional and not field.flat))


def _number(field: Field) -> tuple[AnyDType, tuple[int, ...]]:
    shape = tuple(size or 0 for size in field.shape) if isinstance(field, Tensor) else ()
    return np.dtype(getattr(field, "dtype", "bool")), shape


def _values(cells: Ragged, dtype: AnyDType, shape: tuple[int, ...]) -> AnyArray:
    present = cells if cells.valid is None else cells.take(cells.valid)
    data = present.data[present.offsets[0] : present.offsets[-1]]
    return data.view(dtype).reshape(len(present), *shape)


def _decimals(values: AnyArray) -> Ragged:
    text = values.astype("S21").reshape(-1, 1).view(np.uint8)
    used = text != 0
    return Ragged(text[used], starts_of(used.sum(axis=1)))


def _npy_files(values: AnyArray, dtype: AnyDType, shape: tuple[int, ...]) -> Ragged:
    header = np.frombuffer(npy.header_bytes(dtype, shape), np.uint8)
    width = dtype.itemsize * int(np.prod(shape))
    files = np.empty((len(values), len(header) + width), np.uint8)
    files[:, : len(header)] = header
    files[:, len(header) :] = as_bytes(values).reshape(len(values), width)
    return Ragged(files.reshape(-1), np.arange(len(values) + 1, dtype=np.int64) * files.shape[1])


def _spread(cells: Ragged, valid: npt.NDArray[np.bool_]) -> Ragged:
    """Cells to the rows where they are; the others are missing."""
    sizes = np.zeros(len(valid), dtype=np.int64)
    sizes[valid] = cells.sizes
    return Ragged(cells.data, starts_of(sizes), valid=None if valid.all() else valid)


def _packed_arrays(field: Tensor, column: Ragged) -> Ragged:
    """Bare values whose first size varies, each behind the header for its size."""
    dtype, inner = np.dtype(field.dtype), tuple(size or 0 for size in field.shape[1:])
    width = dtype.itemsize * int(np.prod(inner))
    headers: dict[int, bytes] = {}
    files: list[bytes | None] = []
    for cell in column:
        if cell is None:
            files.append(None)
            continue
        first = cell.size // width
        if first not in headers:
            headers[first] = npy.header_bytes(dtype, (first, *inner))
        files.append(headers[first] + cell.tobytes())
    return Ragged.from_cells(files)


def unpacked(field: Field, cells: Ragged) -> Column:
    """The cells of a field from the bytes of its members; an error has the row as its ``sample``."""
    if not isinstance(field, Int | Float | Bool | Tensor):
        return cells
    if _varies(field):
        return _unpacked_arrays(field, cells)
    dtype, shape = _number(field)
    rows = np.arange(len(cells)) if cells.valid is None else np.flatnonzero(cells.valid)
    present = cells if cells.valid is None else cells.take(rows)
    try:
        values = _parsed(field, present, dtype, shape)
    except BatchplantError as error:
        if error.sample is not None:
            error.sample = int(rows[error.sample])
        raise
    if field.cell is not None:
        return values
    result = Ragged(as_bytes(values), np.arange(len(values) + 1, dtype=np.int64) * values[:1].nbytes)
    return _spread(result, np.ones(len(cells), np.bool_) if cells.valid is None else cells.valid)


def _parsed(field: Field, cells: Ragged, dtype: AnyDType, shape: tuple[int, ...]) -> AnyArray:
    if not len(cells):
        return np.empty((0, *shape), dtype)
    head = cells.data[cells.offsets[0] : cells.offsets[1]]
    if head[: len(npy.MAGIC)].tobytes() == npy.MAGIC:
        return _from_npy(field, cells, dtype, shape)
    if isinstance(field, Tensor):
        _check_bare(field, cells)
        return cells.data[cells.offsets[0] : cells.offsets[-1]].view(dtype).reshape(len(cells), *shape)
    if isinstance(field, Float):
        return _from_text(field, cells, np.dtype(np.float64)).astype(dtype)
    # Bool, too: 0 or 1.
    limits = np.iinfo(dtype) if isinstance(field, Int) else None
    smallest, limit = (limits.min, limits.max) if limits is not None else (0, 1)
    numbers = _from_text(field, cells, np.dtype(np.uint64 if dtype == np.uint64 else np.int64))
    bad = (numbers < smallest) | (numbers > limit)
    if bad.any():
        row = int(np.argmax(bad))
        raise DecodeError(f"{numbers[row]} is out of range for {field}", sample=row)
    return numbers.astype(dtype)


def decimals(cells: Ragged, dtype: AnyDType) -> AnyArray:
    """Numbers written as text; ValueError or OverflowError where one is not."""
    sizes = cells.sizes
    width = int(sizes.max(initial=1))
    if width > MAX_NUMBER_CHARS:
        raise ValueError("it is too long")
    grid = np.zeros((len(cells), max(width, 1)), dtype=np.uint8)
    places = np.arange(len(cells), dtype=np.int64) * grid.shape[1]
    _native.copy_runs(cells.data, np.ascontiguousarray(cells.starts), sizes, grid.reshape(-1), places)
    return grid.view(f"S{grid.shape[1]}")[:, 0].astype(dtype)


def _from_text(field: Field, cells: Ragged, dtype: AnyDType) -> AnyArray:
    try:
        return decimals(cells, dtype)
    except (ValueError, OverflowError) as error:
        for row in range(len(cells)):
            try:
                decimals(cells.take(slice(row, row + 1)), dtype)
            except (ValueError, OverflowError):
                raise DecodeError(f"not {field}: {error}", sample=row) from None
        raise DecodeError(f"not {field}: {error}") from None


def _from_npy(field: Field, cells: Ragged, dtype: AnyDType, shape: tuple[int, ...]) -> AnyArray:
    """Arrays of one dtype and shape. Where all have the header of the first, nothing else is looked at."""
    data = cells.data[cells.offsets[0] : cells.offsets[-1]]
    sizes = cells.sizes
    if (sizes == sizes[0]).all() and sizes[0]:
        table = data.reshape(len(cells), int(sizes[0]))
        header = _header(table[0], 0)
        plain = not header.fortran or len(header.shape) < 2
        fits = (header.dtype, header.shape) == (dtype, shape) and header.start + header.size == sizes[0]
        if plain and fits and (table[:, : header.start] == table[0, : header.start]).all():
            return np.ascontiguousarray(table[:, header.start :]).view(dtype).reshape(len(cells), *shape)
    values = np.empty((len(cells), *shape), dtype)
    for row in range(len(cells)):
        array = _array(cells, row)
        if array.dtype.newbyteorder("=") != dtype or array.shape != shape:
            raise DecodeError(f"an array {array.dtype} {array.shape} is not {field}", sample=row)
        values[row] = array
    return values


def _check_bare(field: Tensor, cells: Ragged, first: int = 0) -> None:
    """That cells which are no NPY files are bare values, as the user says."""
    try:
        check_bytes(field, cells.starts, cells.sizes)
    except DecodeError as error:
        # A place in these cells is none in the archive.
        row = first + (error.sample or 0)
        raise DecodeError(f"it is no NPY file: {error.message}", sample=row) from None


def _header(data: Any, row: int) -> npy.Header:
    try:
        return npy.parse_header(data[: npy.MAX_HEADER_BYTES + 12].tobytes())
    except DamagedError as error:
        raise DecodeError(error.message, sample=row) from None


def _array(cells: Ragged, row: int) -> AnyArray:
    cell = cells[row]
    assert cell is not None
    try:
        return npy.read(cell)
    except DamagedError as error:
        raise DecodeError(error.message, sample=row) from None


def _unpacked_arrays(field: Field, cells: Ragged) -> Ragged:
    assert isinstance(field, Tensor)
    dtype = np.dtype(field.dtype)
    arrays: list[bytes | None] = []
    for row in range(len(cells)):
        if cells.valid is not None and not cells.valid[row]:
            arrays.append(None)
            continue
        cell = cells[row]
        assert cell is not None
        if field.flat and cell[: len(npy.MAGIC)].tobytes() != npy.MAGIC:
            _check_bare(field, cells.take(slice(row, row + 1)), row)
            arrays.append(cell.tobytes())
            continue
        array = _array(cells, row)
        if array.dtype.newbyteorder("=") != dtype or not field.fits(array.shape):
            raise DecodeError(f"an array {array.dtype} {array.shape} is not {field}", sample=row)
        array = array.astype(dtype, copy=False)
        arrays.append(array.tobytes() if field.flat else npy.write(array))
    return Ragged.from_cells(arrays)


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
            if sizes[part].max() > MAX_NUMBER_CHARS:
                return Text()
            decimals(source.gather(starts[part], sizes[part]), np.dtype(np.int64))
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
