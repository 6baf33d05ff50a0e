"""A suite of tests that every format has to pass; for plug-ins too. Needs pytest.

::

    class TestNpz(FormatSuite):
        format = "npz"
        suffix = ".npz"

The attributes of :class:`FormatSuite` say what is peculiar about a format. A format without a writer
overrides ``write``, with the format's own library for example.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import importlib
import lzma
import math
import os
import pickle
import shutil
import subprocess
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

from . import checksums, registry
from .codecs import image
from .codecs.cells import cell_bytes
from .columns import Columns
from .convert import convert
from .errors import BatchplantError, ExistsError, SampleIndexError, SchemaError
from .format import Format, Probe, never
from .reader import Reader
from .schema import Audio, Bool, Bytes, Field, Float, Image, Int, Json, Schema, Tensor, Text, Video
from .shards import concat
from .verify import verify
from .writer import Writer

Case = tuple[Field, list[Any]]
Sample = dict[str, Any]

INTS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
FLOATS = ("float16", "float32", "float64")
# Files up to this size are cut at every byte; of larger ones the ends, and some places between.
CUT_EVERYWHERE, CUT_ENDS, CUT_BETWEEN = 64 << 10, 4 << 10, 300
FLIPS = 400
MEMORY_ALWAYS, MEMORY_PER_BYTE = 64 << 20, 8


def pixels(*shape: int, dtype: Any = np.uint8) -> Any:
    """A picture that is the same every time."""
    return np.random.default_rng(shape).integers(0, np.iinfo(dtype).max, shape, dtype, endpoint=True)


def jpeg(height: int = 8, width: int = 8, channels: int = 3) -> bytes:
    return image.encode(image.squeeze(pixels(height, width, channels)), "jpeg")


def all_cases() -> dict[str, Case]:
    """Every kind of field with values at its limits."""
    found: dict[str, Case] = {
        "bool": (Bool(), [True, False, True]),
        "class": (Int(names=("cat", "dog")), [1, 0, 1]),
        "bytes": (Bytes(), [b"", b"\0", bytes(range(256)) * 3, b"\xff"]),
        "text": (Text(), ["", "plain", "Größe, размер", "🌱\u200d🧪", 'line\nbreak, "comma"', "x" * 5000]),
        "text with NUL": (Text(), ["a\0b", "\0"]),
        "json": (Json(), [{"a": [1, 2.5, None, True, {"deep": [[]]}]}, [], "text", -3, 0.1, {"ключ": "🌱"}]),
        "audio": (Audio(), [b"RIFF....", b"\0\1\2"]),
        "video": (Video("mp4"), [b"....ftyp", bytes(1000)]),
        "tensor without axes": (Tensor("float32"), [np.float32(1.5), np.array(math.nan, np.float32)]),
        "tensor of size 0": (Tensor("int16", (0, 3)), [np.zeros((0, 3), np.int16)] * 3),
        "tensor, first size varies": (Tensor("float32", (None, 2)), [_numbers("float32", n, 2) for n in (3, 0, 1)]),
        "tensor, sizes vary": (Tensor("int64", (None, None)), [_numbers("int64", n, 4 - n) for n in (1, 4, 0)]),
        "tensor, size 0 inside": (Tensor("uint8", (None, 0)), [np.zeros((n, 0), np.uint8) for n in (2, 0)]),
        "image": (Image(), [pixels(5, 7, 3), pixels(1, 1, 3), pixels(16, 9, 3)]),
        "image L": (Image(mode="L"), [pixels(5, 7), pixels(1, 1)]),
        "image RGBA": (Image(mode="RGBA"), [pixels(5, 7, 4), pixels(2, 1, 4)]),
        "image I;16": (Image(mode="I;16"), [pixels(5, 7, dtype=np.uint16)]),
        "image jpeg": (Image("jpeg"), [jpeg(), jpeg(17, 3), jpeg(channels=1)]),
        "image png": (Image("png"), [image.encode(pixels(4, 4, 3), "png"), image.encode(pixels(3, 5), "png")]),
        "image of any mode": (Image(mode=None), [pixels(3, 4), jpeg(), pixels(2, 2, 4), pixels(2, 5, 3)]),
    }  # fmt: skip
    for name in INTS:
        found[name] = Int(name), [int(np.iinfo(name).min), int(np.iinfo(name).max), 0, 7]
    for name in FLOATS:
        most = float(np.finfo(name).max)
        small = float(np.finfo(name).smallest_subnormal)
        found[name] = Float(name), [0.0, -0.0, 1.5, most, -most, small, math.nan, math.inf, -math.inf]
    for name in ("bool", *INTS, *FLOATS, "complex64", "datetime64[ms]"):
        found[f"tensor {name}"] = Tensor(name, (2, 3)), [_numbers(name, 2, 3), np.zeros((2, 3), name)]
    return found


def _numbers(dtype: str, *shape: int) -> Any:
    values = np.arange(math.prod(shape)).reshape(shape).astype(dtype)
    if values.dtype.kind == "f" and values.size:
        values.flat[:3] = [math.nan, math.inf, -0.0][: values.size]
    return values


def equal(mine: Any, theirs: Any) -> bool:
    """Equal to the last bit, NaN included; pictures and arrays by dtype, shape and values."""
    if isinstance(mine, np.ndarray | np.generic):
        theirs = np.asarray(theirs)
        same = (mine.dtype, mine.shape) == (theirs.dtype, theirs.shape)
        return same and bool(mine.tobytes() == theirs.tobytes())
    if isinstance(mine, float) and isinstance(theirs, float):
        same = mine == theirs and math.copysign(1, mine) == math.copysign(1, theirs)
        return same or (math.isnan(mine) and math.isnan(theirs))
    return type(mine) is type(theirs) and bool(mine == theirs)


def check_samples(reader: Reader, schema: Mapping[str, Field], samples: Sequence[Sample]) -> None:
    """The reader holds exactly these samples; pictures that went in encoded are compared decoded."""
    assert len(reader) == len(samples)
    for number, (read, wrote) in enumerate(zip(reader, samples, strict=True)):
        assert list(read) == list(schema)
        for name, field in schema.items():
            value = wrote[name]
            if isinstance(field, Image) and isinstance(value, bytes):
                value = image.decode(value, field.mode)
            assert equal(value, read[name]), f"sample {number}, {name}: {value!r} became {read[name]!r}"


def cells(reader: Reader) -> list[list[bytes | None]]:
    """The bytes of every cell, field by field."""
    columns = reader.read(range(len(reader)))
    return [[cell_bytes(columns[name], row) for row in range(len(reader))] for name in reader.schema]


@contextlib.contextmanager
def memory_bounded(size: int) -> Iterator[None]:
    """The peak of resident memory grows by no more than a small multiple of ``size``."""
    reset = Path("/proc/self/clear_refs")
    if not reset.exists():
        yield
        return
    reset.write_text("5")
    before = _resident("VmRSS")
    yield
    grown = _resident("VmHWM") - before
    assert grown <= MEMORY_ALWAYS + MEMORY_PER_BYTE * size, f"{grown >> 20} MiB for a file of {size} bytes"


def _resident(name: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith(name)).split()[1]) << 10


def cut_points(size: int) -> list[int]:
    """Where to cut a file, longest first."""
    if size <= CUT_EVERYWHERE:
        return list(range(size - 1, -1, -1))
    between = np.random.default_rng(size).integers(CUT_ENDS, size - CUT_ENDS, CUT_BETWEEN).tolist()
    return sorted({*range(CUT_ENDS), *between, *range(size - CUT_ENDS, size)}, reverse=True)


def flip_points(size: int) -> list[tuple[int, int]]:
    """(byte, bit) to flip: half of them near the ends, where structure is."""
    rng = np.random.default_rng(size)
    places = rng.integers(0, size, FLIPS)
    ends = rng.integers(0, min(CUT_ENDS, size), FLIPS)
    places[::4], places[2::4] = ends[::4], size - 1 - ends[2::4]
    return list(zip(places.tolist(), rng.integers(0, 8, FLIPS).tolist(), strict=True))


_READ_ELSEWHERE = """
import pickle, sys
from batchplant.testing import cells
pickle.dump(cells(pickle.load(sys.stdin.buffer)), sys.stdout.buffer)
"""


class FormatSuite:
    """Subclass it as ``Test…`` and set at least ``format`` and ``suffix``.

    options: given to every ``create``. beside: name → (field, value) that a dataset of this format cannot
    do without; left out where the field under test is of that kind itself. leave_out: names of
    :func:`all_cases` that do not apply; values: other values for some of them. keeps_schema: the very same
    schema comes back. keeps_jpeg: JPEG files are stored byte for byte. in_place: some field has spans.
    notices_cuts: no truncation goes unnoticed. golden: a folder with one folder of files per format.
    """

    format: ClassVar[str]
    suffix: ClassVar[str] = ""
    options: ClassVar[Mapping[str, Any]] = {}
    beside: ClassVar[Mapping[str, tuple[Field, Any]]] = {}
    leave_out: ClassVar[Collection[str]] = ()
    values: ClassVar[Mapping[str, list[Any]]] = {}
    keeps_schema: ClassVar[bool] = True
    keeps_jpeg: ClassVar[bool] = True
    in_place: ClassVar[bool] = True
    notices_cuts: ClassVar[bool] = True
    golden: ClassVar[Path | None] = None

    # -- what a subclass may override ------------------------------------------------------------------

    def write(
        self, path: str, schema: Mapping[str, Field], samples: Iterable[Sample], **options: Any
    ) -> None:
        with self.create(path, schema, **options) as out:
            for sample in samples:
                out.append(sample)

    def files(self, path: str) -> list[Path]:
        """The files to damage."""
        found = [Path(path)] if os.path.isfile(path) else sorted(Path(path).rglob("*"))
        return [file for file in found if file.is_file()]

    # -- helpers ---------------------------------------------------------------------------------------

    @property
    def spec(self) -> Format:
        return registry.get_format(self.format)

    def create(self, path: str, schema: Mapping[str, Field], **options: Any) -> Writer:
        if self.spec.writer is None:
            pytest.skip(f"{self.format} is read only")
        return registry.create(path, schema, format=self.format, **{**self.options, **options})

    def open(self, path: str) -> Reader:
        return registry.open(path, format=self.format)

    def path(self, folder: Path, name: str = "data") -> str:
        return str(folder / (name + self.suffix))

    def cases(self, *, held: bool = True) -> dict[str, Case]:
        """The cases that the format holds, or does not; each also with missing values."""
        found: dict[str, Case] = {}
        for name, (field, values) in all_cases().items():
            values = self.values.get(name, values)
            found[name] = field, values
            found[f"{name}, optional"] = dataclasses.replace(field, optional=True), [None, *values, None]
        return {
            name: (field, values)
            for name, (field, values) in found.items()
            if name.removesuffix(", optional") not in self.leave_out
            and (self.spec.refuses(field) is None) == held
        }

    def around(self, name: str, field: Field, values: Iterable[Any]) -> tuple[dict[str, Field], list[Sample]]:
        """A dataset with one field of these values, and those that the format cannot do without."""
        beside = {key: one for key, one in self.beside.items() if one[0].kind != field.kind}
        schema = {**{key: other for key, (other, _) in beside.items()}, name: field}
        rest = {key: value for key, (_, value) in beside.items()}
        return schema, [{**rest, name: value} for value in values]

    def dataset(
        self, count: int, fields: Collection[str] | None = None
    ) -> tuple[dict[str, Field], list[Sample]]:
        """Samples with one field of every kind that the format holds."""
        kinds: dict[str, tuple[Field, Callable[[int], Any]]] = {
            "image": (Image(), lambda n: jpeg(8, 8 + n % 5)),
            "number": (Int(), lambda n: n * n - 3),
            "real": (Float("float32"), lambda n: n / 8),
            "flag": (Bool(), lambda n: n % 3 == 0),
            "blob": (Bytes(), lambda n: bytes([n % 256]) * (n % 7)),
            "text": (Text(), lambda n: f"sample № {n}"),
            "meta": (Json(), lambda n: {"n": n, "list": [n, None]}),
            "fixed": (Tensor("int16", (2, 3)), lambda n: np.full((2, 3), n, np.int16)),
            "varied": (Tensor("float32", (None, 2)), lambda n: np.full((n % 4, 2), n, np.float32)),
        }
        schema = {
            name: field
            for name, (field, _) in kinds.items()
            if self.spec.refuses(field) is None and (fields is None or name in fields)
        }
        return schema, [{name: kinds[name][1](n) for name in schema} for n in range(count)]

    def written(self, folder: Path, count: int = 20, **options: Any) -> tuple[str, list[Sample]]:
        schema, samples = self.dataset(count)
        path = self.path(folder)
        self.write(path, schema, samples, **options)
        return path, samples

    def survives(self, path: str) -> bool:
        """Read all of it in every way; False where something was wrong, in our own terms."""
        good = True
        try:
            with self.open(path) as reader:
                for row in range(min(len(reader), 1000)):
                    with contextlib.suppress(BatchplantError):
                        reader[row]
                for name in reader.schema:
                    with contextlib.suppress(BatchplantError):
                        reader.spans(name)
            good = verify(path, format=self.format, decode=True).ok
        except BatchplantError:
            good = False
        return good

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        if "case" in metafunc.fixturenames:
            metafunc.parametrize("case", list(self.cases()))

    # -- the tests -------------------------------------------------------------------------------------

    def test_round_trip(self, case: str, tmp_path: Path) -> None:
        schema, samples = self.around("value", *self.cases()[case])
        path = self.path(tmp_path)
        self.write(path, schema, samples)
        with self.open(path) as reader:
            check_samples(reader, schema, samples)
            if self.keeps_schema:
                assert reader.schema == Schema(schema)
            if case == "image jpeg" and self.keeps_jpeg:
                assert cells(reader)[-1] == [sample["value"] for sample in samples]

    def test_every_kind_at_once(self, tmp_path: Path) -> None:
        path, samples = self.written(tmp_path)
        with self.open(path) as reader:
            check_samples(reader, self.dataset(0)[0], samples)
            assert {field.kind for field in reader.schema.values()} <= {kind.kind for kind in self.spec.kinds}

    @pytest.mark.parametrize("count", [0, 1])
    def test_few_samples(self, count: int, tmp_path: Path) -> None:
        path, samples = self.written(tmp_path, count, checksums=True)
        with self.open(path) as reader:
            check_samples(reader, self.dataset(0)[0], samples)
            assert reader.read([]).rows == 0
        assert verify(path, format=self.format, decode=True).problems == []

    def test_pictures_from_paths_and_pillow(self, tmp_path: Path) -> None:
        if Image not in self.spec.kinds:
            pytest.skip(f"{self.format} holds no pictures")
        pillow = pytest.importorskip("PIL.Image")
        file = tmp_path / "one.jpg"
        file.write_bytes(jpeg())
        with pillow.open(file) as opened:
            schema, samples = self.around("value", Image(), [file, str(file), pillow.fromarray(pixels(4, 5, 3)), opened])
            self.write(self.path(tmp_path), schema, samples)
        with self.open(self.path(tmp_path)) as reader:
            found = [sample["value"] for sample in reader]
            assert not self.keeps_jpeg or cells(reader)[-1][:2] == [jpeg(), jpeg()]
        decoded = image.decode(jpeg())
        assert all(map(equal, [decoded, decoded, pixels(4, 5, 3), decoded], found))

    def test_field_names_of_any_script(self, tmp_path: Path) -> None:
        case = next(name for name in ("int64", "bytes", "image") if name in self.cases())
        for name in ("Größe", "ラベル", "with space", "🌱", "a.b", "a" * 60):
            schema, samples = self.around(name, *self.cases()[case])
            path = self.path(tmp_path, str(len(os.listdir(tmp_path))))
            self.write(path, schema, samples)
            with self.open(path) as reader:
                check_samples(reader, schema, samples)

    def test_samples_by_number(self, tmp_path: Path) -> None:
        path, _ = self.written(tmp_path, 20)
        with self.open(path) as reader:
            every = cells(reader)
            for numbers in ([3, 3, 19, 0], [-1, -20], np.arange(19, -1, -3), np.array([5], np.uint8), range(4)):
                columns = reader.read(numbers)
                for field, name in enumerate(reader.schema):
                    found = [cell_bytes(columns[name], row) for row in range(columns.rows)]
                    assert found == [every[field][number] for number in numbers]
            for wrong in ([20], [-21], [0, 2**40], [2**64 - 1]):
                with pytest.raises(SampleIndexError):
                    reader.read(wrong)
            with pytest.raises(SampleIndexError):
                reader[20]

    def test_spans_are_where_the_cells_are(self, tmp_path: Path) -> None:
        path, _ = self.written(tmp_path)
        numbers = [7, 0, 7, 19]
        with self.open(path) as reader:
            seen = 0
            for name in reader.schema:
                spans = reader.spans(name, numbers)
                if spans is None:
                    continue
                column = reader.read(numbers)[name]
                shape = getattr(column, "shape", None) if isinstance(reader.schema[name], Image) else None
                for row in range(len(numbers)):
                    with open(spans.files[spans.file[row]], "rb") as file:
                        file.seek(spans.start[row])
                        assert file.read(spans.size[row]) == cell_bytes(column, row)
                assert (spans.shape is None) == (shape is None)
                seen += 1
        assert seen or not self.in_place

    def test_pickled_reader_reads_in_another_process(self, tmp_path: Path) -> None:
        path, _ = self.written(tmp_path)
        with self.open(path) as reader:
            for view in (reader, reader.select(list(reader.schema)[:1])[3:9]):
                data = pickle.dumps(view)
                done = subprocess.run([sys.executable, "-c", _READ_ELSEWHERE], input=data, capture_output=True)
                assert done.returncode == 0, done.stderr.decode()
                assert pickle.loads(done.stdout) == cells(view)

    def test_many_threads_read_the_same(self, tmp_path: Path) -> None:
        path, _ = self.written(tmp_path)
        with self.open(path) as reader, ThreadPoolExecutor(8) as pool:
            expected = self.open(path)
            orders = [np.random.default_rng(n).permutation(20) for n in range(40)]
            found = pool.map(lambda order: cells(reader.subset(order)), orders)
            assert all(map(lambda one, order: one == cells(expected.subset(order)), found, orders))
