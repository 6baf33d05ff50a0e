"""Fields and values to try a format with, comparison of what was read, and damage to try it with."""

from __future__ import annotations

import contextlib
import datetime
import decimal
import functools
import math
import os
import struct
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ..codecs.cells import cell_bytes
from ..codecs.media import audio, image
from ..codecs.sparse import SparseRow
from ..data.reader import Reader
from ..schema import (
    Audio,
    Bool,
    Bytes,
    Decimal,
    Duration,
    Field,
    Float,
    Image,
    Int,
    Json,
    List,
    Sparse,
    Struct,
    Tensor,
    Text,
    Time,
    Uuid,
    Video,
)
from ..storage.platform import resident_memory

Case = tuple[Field, list[Any]]
Sample = dict[str, Any]

INTS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
FLOATS = ("float16", "float32", "float64")


def pixels(*shape: int, dtype: Any = np.uint8) -> Any:
    """Return an image that is the same every time."""
    return np.random.default_rng(shape).integers(0, np.iinfo(dtype).max, shape, dtype, endpoint=True)


@functools.cache
def jpeg(height: int = 8, width: int = 8, channels: int = 3) -> bytes:
    return image.encode(image.squeeze(pixels(height, width, channels)), "jpeg")


@functools.cache
def png(*shape: int) -> bytes:
    return image.encode(pixels(*shape), "png")


def numbers(dtype: str, *shape: int) -> Any:
    values = np.arange(math.prod(shape)).reshape(shape).astype(dtype)
    if values.dtype.kind == "f" and values.size:
        values.flat[:3] = [math.nan, math.inf, -0.0][: values.size]
    return values


@functools.cache
def sound(frames: int, *, channels: int = 1) -> bytes:
    """Return a WAV file."""
    return audio.write_wav(numbers("int16", frames, channels), 8000, "PCM_16")


@functools.cache
def film(frames: int, side: int = 16) -> bytes:
    """Return an AVI file of JPEG images, the only video that can be written without a library."""

    def chunk(name: bytes, body: bytes) -> bytes:
        return name + struct.pack("<I", len(body)) + body + b"\0" * (len(body) % 2)

    main = struct.pack("<14I", 40_000, 0, 0, 0x10, frames, 0, 1, 0, side, side, 0, 0, 0, 0)
    stream = struct.pack("<4s4sIHH8I", b"vids", b"MJPG", *(0,) * 4, 1, 25, 0, frames, 0, 0, 0)
    stream_format = struct.pack("<IiiHH4sIiiII", 40, side, side, 1, 24, b"MJPG", 3 * side * side, 0, 0, 0, 0)
    track = chunk(b"LIST", b"strl" + chunk(b"strh", stream + bytes(8)) + chunk(b"strf", stream_format))
    images = b"".join(chunk(b"00dc", jpeg(side, side)) for _ in range(frames))
    parts = chunk(b"LIST", b"hdrl" + chunk(b"avih", main) + track) + chunk(b"LIST", b"movi" + images)
    return chunk(b"RIFF", b"AVI " + parts)


@functools.cache
def all_cases() -> dict[str, Case]:
    """Return every kind of field with values at its limits. The caller must not change them."""
    varied = [numbers("float32", n, 2) for n in (3, 0, 1)]
    freely = [numbers("int64", n, 4 - n) for n in (1, 4, 0)]
    cases: dict[str, Case] = {
        "bool": (Bool(), [True, False, True]),
        "class": (Int(names=("cat", "dog")), [1, 0, 1]),
        "bytes": (Bytes(), [b"", b"\0", bytes(range(256)) * 3, b"\xff"]),
        "text": (Text(), ["", "plain", "Größe, размер", "🌱\u200d🧪", 'line\nbreak, "comma"', "x" * 5000]),
        "text with NUL": (Text(), ["a\0b", "\0"]),
        "json": (Json(), [{"a": [1, 2.5, None, True, {"deep": [[]]}]}, [], "text", -3, 0.1, {"ключ": "🌱"}]),
        "audio wav": (Audio("wav", 8000, 1), [sound(5), sound(1)]),
        "video avi": (Video("avi", 25.0, 16, 16), [film(1), film(2)]),
        "audio": (Audio(), [sound(9), sound(0), sound(3, channels=2)]),
        "video": (Video("avi"), [film(3), film(1), film(2, 24)]),
        "tensor without axes": (Tensor("float32"), [np.float32(1.5), np.array(math.nan, np.float32)]),
        "tensor of size 0": (Tensor("int16", (0, 3)), [np.zeros((0, 3), np.int16)] * 3),
        "tensor, first size varies": (Tensor("float32", (None, 2)), varied),
        "tensor, sizes vary": (Tensor("int64", (None, None)), freely),
        "tensor, size 0 inside": (Tensor("uint8", (None, 0)), [np.zeros((n, 0), np.uint8) for n in (2, 0)]),
        "image": (Image(), [pixels(5, 7, 3), pixels(1, 1, 3), pixels(16, 9, 3)]),
        "image L": (Image(mode="L"), [pixels(5, 7), pixels(1, 1)]),
        "image RGBA": (Image(mode="RGBA"), [pixels(5, 7, 4), pixels(2, 1, 4)]),
        "image I;16": (Image(mode="I;16"), [pixels(5, 7, dtype=np.uint16)]),
        "image jpeg": (Image("jpeg"), [jpeg(), jpeg(17, 3), jpeg(channels=1)]),
        "image png": (Image("png"), [png(4, 4, 3), png(3, 5)]),
        "image of any mode": (Image(mode=None), [pixels(3, 4), jpeg(), pixels(2, 2, 4), pixels(2, 5, 3)]),
    }
    cases.update(_narrow_cases())
    for name in INTS:
        cases[name] = Int(name), [int(np.iinfo(name).min), int(np.iinfo(name).max), 0, 7]
    for name in FLOATS:
        largest, smallest = float(np.finfo(name).max), float(np.finfo(name).smallest_subnormal)
        cases[name] = (
            Float(name),
            [0.0, -0.0, 1.5, largest, -largest, smallest, math.nan, math.inf, -math.inf],
        )
    for name in ("bool", *INTS, *FLOATS, "complex64", "datetime64[ms]"):
        cases[f"tensor {name}"] = Tensor(name, (2, 3)), [numbers(name, 2, 3), np.zeros((2, 3), name)]
    return cases


def _row(indices: Sequence[int], values: Sequence[float], dtype: str = "float32") -> SparseRow:
    return SparseRow(np.array(indices, "int32"), np.array(values, dtype))


def _narrow_cases() -> dict[str, Case]:
    """Return cases of times, decimals, UUIDs, lists and structs."""
    moment = datetime.datetime(2024, 2, 29, 23, 59, 59, 123_456)
    far, early = np.datetime64(2**63 - 1, "us"), datetime.datetime(1, 1, 1)
    aware = [time.replace(tzinfo=datetime.UTC) for time in (moment, datetime.datetime(1969, 12, 31))]
    ids = [uuid.UUID(int=0), uuid.UUID(int=2**128 - 1), uuid.UUID("12345678-9abc-4def-8123-456789abcdef")]
    deep = Struct(
        {
            "n": Int(optional=True), "real": Float("float32"), "when": Time("ns", "UTC"),
            "raw": Bytes(optional=True), "price": Decimal(12, 2, optional=True), "id": Uuid(optional=True),
            "tags": List(Text(optional=True)), "box": Tensor("int16", (2,)), "any": Json(optional=True),
        }
    )  # fmt: skip
    value = {
        "n": 2**63 - 1, "real": 0.5, "when": np.datetime64(1, "ns"), "raw": bytes(range(256)),
        "price": decimal.Decimal("-1234567890.12"), "id": ids[1], "tags": ["ß", None, ""],
        "box": np.array([1, -2], np.int16), "any": {"a": [1.5, None]},
    }  # fmt: skip
    empty: dict[str, Any] = dict.fromkeys(value)
    empty.update(real=math.nan, when=value["when"], tags=[], box=value["box"])
    spans = [np.timedelta64(2**63 - 1, "ns"), np.timedelta64(-1, "ns")]
    return {
        "time us": (Time("us"), [moment, early, far]),
        "time of a zone": (Time("us", "Asia/Tokyo"), aware),
        "time ns": (Time("ns", "UTC"), [np.datetime64(2**63 - 1, "ns"), np.datetime64(-1, "ns")]),
        "time s": (Time("s"), [early, datetime.datetime(9999, 12, 31, 23, 59, 59)]),
        "date": (
            Time("D"),
            [datetime.date(2024, 2, 29), datetime.date(1, 1, 1), np.datetime64(2**31 - 1, "D")],
        ),
        "time of day": (Time("us", clock=True), [datetime.time(23, 59, 59, 999_999), datetime.time(0)]),
        "time of day ms": (Time("ms", clock=True), [datetime.time(1, 2, 3, 4000)]),
        "duration ns": (Duration("ns"), spans),
        "duration": (Duration("us"), [datetime.timedelta(days=-3, microseconds=1), datetime.timedelta(0)]),
        "decimal": (
            Decimal(9, 4),
            [decimal.Decimal(text) for text in ("-12345.6789", "0.0000", "99999.9999")],
        ),
        "long decimal": (
            Decimal(60, 30),
            [decimal.Decimal("1E-30"), decimal.Decimal("-" + "9" * 30 + "." + "9" * 30)],
        ),
        "uuid": (Uuid(), ids),
        "sparse": (
            Sparse(5, "float32", "abcde"),
            [_row([1, 4], [math.nan, -0.0]), _row([], []), _row([0], [1])],
        ),
        "list": (List(Text()), [["a", "ß"], [], ["", "c"]]),
        "list with gaps": (List(Int("int32", optional=True)), [[1, None], [], [-(2**31)]]),
        "list of lists": (List(List(Float())), [[[1.5, math.inf], []], [], [[-0.0]]]),
        "struct": (deep, [value, empty]),
        "list of structs": (List(deep), [[value, empty], []]),
    }


# One of every kind in all_cases, for tests that do not try all of them.
REPRESENTATIVE_CASES = (
    "bool", "class", "bytes", "text", "json", "audio wav", "video avi", "int64", "uint8", "float32",
    "tensor float32", "tensor bool", "tensor, first size varies", "tensor, sizes vary", "image", "image jpeg",
    "time us", "date", "duration", "decimal", "uuid", "sparse", "list", "struct",
)  # fmt: skip

# One field of every kind, and its value in sample n.
EXAMPLE_FIELDS: dict[str, tuple[Field, Callable[[int], Any]]] = {
    "image": (Image(), lambda n: jpeg(8, 8 + n % 5)),
    "audio": (Audio("wav", 8000, 1), lambda n: sound(1 + n % 5)),
    "video": (Video("avi", 25.0, 16, 16), lambda n: film(1 + n % 3)),
    "number": (Int(), lambda n: n * n - 3),
    "real": (Float("float32"), lambda n: n / 8),
    "flag": (Bool(), lambda n: n % 3 == 0),
    "blob": (Bytes(), lambda n: bytes([n % 256]) * (n % 7)),
    "text": (Text(), lambda n: f"sample № {n}"),
    "meta": (Json(), lambda n: {"n": n, "list": [n, None]}),
    "when": (Time("us", "UTC"), lambda n: datetime.datetime(2024, 1, 1 + n % 31, tzinfo=datetime.UTC)),
    "span": (Duration("ms"), lambda n: datetime.timedelta(milliseconds=n)),
    "price": (Decimal(9, 2), lambda n: decimal.Decimal(n).scaleb(-2)),
    "id": (Uuid(), lambda n: uuid.UUID(int=n)),
    "tags": (List(Text()), lambda n: [f"tag {k}" for k in range(n % 3)]),
    "counts": (Sparse(9, "uint16"), lambda n: _row(range(n % 4), range(1, n % 4 + 1), "uint16")),
    "record": (Struct({"n": Int(), "day": Time("D")}), lambda n: {"n": n, "day": datetime.date(2024, 1, 1)}),
    "fixed": (Tensor("int16", (2, 3)), lambda n: np.full((2, 3), n, np.int16)),
    "varied": (Tensor("float32", (None, 2)), lambda n: np.full((n % 4, 2), n, np.float32)),
}


def sequences() -> dict[str, Case]:
    """Return the cases of formats that hold only sequences of numbers."""
    return {
        f"sequence {name}": (Tensor(name, (None,)), [numbers(name, n)[::-1] + 1 for n in (5, 1, 0, 12)])
        for name in (*INTS, "float32", "float64")
    }


def example_fields(fields: Mapping[str, Field]) -> dict[str, tuple[Field, Callable[[int], Any]]]:
    """Return EXAMPLE_FIELDS for a format whose fields are fixed (``Format.fields``)."""
    name, field = next(iter(fields.items()))
    if isinstance(field, Image):
        return {name: EXAMPLE_FIELDS["image"]}
    assert isinstance(field, Tensor)
    return {name: (field, lambda n: np.arange(1, 1 + n % 7, dtype=field.dtype))}


def equal(mine: Any, theirs: Any) -> bool:
    """Compare to the last bit, NaN included; arrays by dtype, shape and bytes."""
    if isinstance(mine, np.ndarray | np.generic):
        theirs = np.asarray(theirs)
        alike = (mine.dtype, mine.shape) == (theirs.dtype, theirs.shape)
        return alike and bool(mine.tobytes() == theirs.tobytes())
    if isinstance(mine, float) and isinstance(theirs, float):
        alike = mine == theirs and math.copysign(1, mine) == math.copysign(1, theirs)
        return alike or (math.isnan(mine) and math.isnan(theirs))
    if isinstance(mine, list | tuple) and type(mine) is type(theirs):
        return len(mine) == len(theirs) and all(map(equal, mine, theirs))
    if isinstance(mine, dict) and isinstance(theirs, dict):
        return mine.keys() == theirs.keys() and all(
            equal(value, theirs[name]) for name, value in mine.items()
        )
    # Sounds and videos are subclasses of bytes.
    if isinstance(mine, bytes) and isinstance(theirs, bytes):
        return mine == theirs
    return type(mine) is type(theirs) and bool(mine == theirs)


def check_samples(reader: Reader, schema: Mapping[str, Field], samples: Sequence[Sample]) -> None:
    """Assert that the reader holds exactly these samples; encoded images are compared decoded."""
    assert len(reader) == len(samples)
    for number, (read, wrote) in enumerate(zip(reader, samples, strict=True)):
        assert list(read) == list(schema)
        for name, field in schema.items():
            value = wrote[name]
            if isinstance(field, Image) and isinstance(value, bytes):
                value = image.decode(value, field.mode)
            assert equal(value, read[name]), f"sample {number}, {name}: {value!r} became {read[name]!r}"


def cells(reader: Reader) -> dict[str, list[bytes | None]]:
    """Return the bytes of every cell."""
    columns = reader.read(range(len(reader)))
    return {name: [cell_bytes(columns[name], row) for row in range(len(reader))] for name in reader.schema}


# `make test-all` sets this variable: small files are cut at every byte, otherwise at some offsets.
EXHAUSTIVE = os.environ.get("BATCHPLANT_EXHAUSTIVE", "0") not in ("", "0")
# Of a dataset: its files share them.
MAX_CUTS, MAX_FLIPS = (8 << 10, 400) if EXHAUSTIVE else (24, 20)
MIN_POINTS_PER_FILE = 6
# Memory that reading may take: a constant, and a multiple of the size of the file.
BASE_MEMORY_BYTES, MEMORY_PER_FILE_BYTE = 64 << 20, 8


def cut_points(size: int, count: int = MAX_CUTS) -> list[int]:
    """Return sizes to cut a file to, longest first: all, or ``count`` of them, half near the ends."""
    if size <= count:
        return list(range(size - 1, -1, -1))
    ends = max(count // 4, 1)
    between = np.random.default_rng(size).integers(ends, size - ends, count - 2 * ends).tolist()
    return sorted({*range(ends), *between, *range(size - ends, size)}, reverse=True)


def flip_points(size: int, count: int = MAX_FLIPS) -> list[tuple[int, int]]:
    """Return (byte, bit) to flip: half of them near the ends, where the structure is."""
    rng = np.random.default_rng(size)
    offsets = rng.integers(0, size, count)
    ends = rng.integers(0, min(4 << 10, size), count)
    offsets[::4], offsets[2::4] = ends[::4], size - 1 - ends[2::4]
    return list(zip(offsets.tolist(), rng.integers(0, 8, count).tolist(), strict=True))


def _points_per_file(points: int, files: int) -> int:
    return max(points // files, MIN_POINTS_PER_FILE)


def flip(file: Path, offset: int, bit: int) -> None:
    with open(file, "r+b") as stream:
        stream.seek(offset)
        [byte] = stream.read(1)
        stream.seek(offset)
        stream.write(bytes([byte ^ 1 << bit]))


def cuts(file: Path, files: int = 1) -> Iterator[str]:
    """Truncate a file at one offset after another and describe each; restore the file at the end.

    ``files``: the number of files that share the cuts.
    """
    original = file.read_bytes()
    for size in cut_points(len(original), _points_per_file(MAX_CUTS, files)):
        os.truncate(file, size)
        yield f"{file.name} cut to {size} of {len(original)} bytes"
    file.write_bytes(original)


def flips(file: Path, files: int = 1) -> Iterator[str]:
    """Flip one bit of a file after another and describe each; flip each back.

    ``files``: the number of files that share the flips.
    """
    for offset, bit in flip_points(os.path.getsize(file), _points_per_file(MAX_FLIPS, files)):
        flip(file, offset, bit)
        yield f"{file.name} with bit {bit} of byte {offset} flipped"
        flip(file, offset, bit)


def survive(damage: Iterator[str], read: Callable[[], bool]) -> Iterator[tuple[str, bool]]:
    """Yield (description of the damage, result of ``read``); an exception names the damage."""
    for description in damage:
        try:
            yield description, read()
        except Exception as error:
            error.add_note(description)
            raise


@contextlib.contextmanager
def memory_bounded(size: int) -> Iterator[None]:
    """Check that the peak of resident memory grows by no more than a small multiple of ``size``."""
    reset = Path("/proc/self/clear_refs")
    # The address sanitizer keeps freed memory for a while.
    if not reset.exists() or "libasan" in os.environ.get("LD_PRELOAD", ""):
        yield
        return
    reset.write_text("5")
    before = resident_memory()
    yield
    grown = resident_memory("VmHWM") - before
    assert grown <= BASE_MEMORY_BYTES + MEMORY_PER_FILE_BYTE * size, (
        f"{grown >> 20} MiB for a file of {size} bytes"
    )
