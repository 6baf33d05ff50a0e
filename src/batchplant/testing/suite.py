"""FormatSuite: the tests that every format has to pass."""

from __future__ import annotations

import atexit
import contextlib
import copy
import dataclasses
import functools
import lzma
import os
import pickle
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

from ..codecs.cells import cell_bytes
from ..codecs.media import image
from ..data.concat import concat
from ..data.reader import Reader
from ..data.shards import ShardWriter
from ..data.writer import Writer
from ..errors import (
    BatchplantError,
    ExistsError,
    FieldNameError,
    MissingLibraryError,
    SampleIndexError,
    SchemaError,
)
from ..formats import registry
from ..formats.base.format import Format, Probe, never
from ..formats.base.tensors import BITS, TENSORS, size_of
from ..jobs.conversion.run import Conversion
from ..jobs.convert import convert
from ..jobs.convert_options import ConvertOptions, ConvertTuning
from ..jobs.verify import verify
from ..schema import Audio, Field, Image, Int, Video
from ..schema.columns import Columns, Ragged
from ..storage import side_car
from .cases import (
    EXAMPLE_FIELDS,
    EXHAUSTIVE,
    REPRESENTATIVE_CASES,
    Case,
    Sample,
    all_cases,
    cells,
    check_samples,
    cuts,
    equal,
    example_fields,
    film,
    flip,
    flips,
    jpeg,
    memory_bounded,
    pixels,
    sequences,
    sound,
    survive,
)

# A suite of files that only wrap those of another one tries damage at this many times fewer places.
WRAPPED_DAMAGE_DIVISOR = 8
# Tests that such a suite leaves out of a short run: the parser passes them in the other suite.
PARSER_TESTS = (
    *("values_belong_to_the_caller", "overwriting_has_to_be_asked_for", "columns_are_checked"),
    *("images_from_paths_and_pillow", "field_names_of_any_script", "what_the_format_cannot_hold_is_refused"),
    *("numbers_out_of_range", "parts_of_a_dataset", "files_of_other_formats_are_not_taken_for_ours"),
)
# Cases that have a dataset of their own also where others share one: a row may be nothing but this field.
SINGLE_FIELD_CASES = (
    *("bytes", "text", "text, optional", "int64", "int64, optional"),
    *("tensor float32", "tensor, first size varies", "struct", "image jpeg"),
)
# Field names that are tried, in one dataset.
FIELD_NAMES = ("Größe", "ラベル", "with space", "🌱", "a.b", "a" * 60)


def _kinds(schema: Mapping[str, Field]) -> list[tuple[str, Field]]:
    """Return the fields without the encoding of images, which is the writer's choice."""
    return [
        (name, dataclasses.replace(field, encoding=None) if isinstance(field, Image) else field)
        for name, field in schema.items()
    ]


def _process_folder() -> Path:
    """Return a folder that is removed when the process ends."""
    folder = Path(tempfile.mkdtemp(prefix="batchplant-suite-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


@functools.cache
def unpack_golden(golden: Path) -> dict[str, list[Path]]:
    """Return the golden files by format, decompressed; once for all suites."""
    files: dict[str, list[Path]] = {}
    for file in sorted(golden.glob("*/*")):
        format = registry.all_formats().get(file.parent.name)
        plain = file.name.removesuffix(".xz")
        if format is None or not file.is_file() or not plain.endswith(format.suffixes):
            continue
        path = _process_folder() / plain
        data = file.read_bytes()
        path.write_bytes(data if plain == file.name else lzma.decompress(data))
        files.setdefault(format.name, []).append(path)
    return files


@functools.cache
def write_all_formats() -> dict[str, Path]:
    """Return a small file of every format that can be written here, by name; once for all suites."""
    folder = _process_folder()
    paths: dict[str, Path] = {}
    for name, format in registry.all_formats().items():
        path = folder / f"other.{name}"
        values = {"n": 1, "image": jpeg(), "audio": sound(4), "video": film(1)}
        for field in (None, Image(), Audio(), Video()):
            schema: dict[str, Field] = {"n": Int()} if field is None else {field.kind: field, "n": Int()}
            if format.writer is None or path.exists():
                continue
            with (
                contextlib.suppress(SchemaError, MissingLibraryError),
                registry.create(path, schema, format=name) as out,
            ):
                out.append({key: values[key] for key in schema})
        if path.exists():
            paths[name] = path
    return paths


# Errors are sent back; the process goes on with the next request.
_READER_SCRIPT = """
import os, pickle, sys, traceback
from batchplant.testing.cases import cells
source, sink = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
os.dup2(2, 1)
while True:
    try:
        environ, path, pickled = pickle.load(source)
    except EOFError:
        # Without finalization: threads of some libraries crash in it now and then.
        os._exit(0)
    os.environ.update(environ)
    sys.path[:] = path
    try:
        views = [pickle.loads(view) for view in pickled]
        result = [cells(view) for view in views], None
        views[0].close()
    except Exception:
        result = None, traceback.format_exc()
    pickle.dump(result, sink)
    sink.flush()
"""


def read_in_other_process(views: Sequence[Reader]) -> list[Any]:
    """Return the cells of these readers as another process reads them after unpickling them."""
    process = _reader_process(os.getpid())
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        pickle.dump((dict(os.environ), sys.path, [pickle.dumps(view) for view in views]), process.stdin)
        process.stdin.flush()
        result, error = pickle.load(process.stdout)
    except (EOFError, BrokenPipeError):
        _reader_process.cache_clear()
        raise AssertionError(f"the process that reads ended with {process.wait()}") from None
    assert error is None, error
    return list(result)


@functools.cache
def _reader_process(parent: int) -> subprocess.Popen[bytes]:
    """Return the process that reads for this one; starting it takes long, so all suites share it."""
    process = subprocess.Popen(
        [sys.executable, "-c", _READER_SCRIPT], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    atexit.register(_end, process, parent)
    return process


def _end(process: subprocess.Popen[bytes], parent: int) -> None:
    if os.getpid() == parent and process.stdin is not None and process.stdout is not None:
        process.stdin.close()
        process.stdout.close()
        process.wait()


# Suite → path of its dataset.
_shared_datasets: dict[type, str] = {}


class FormatSuite:
    """Tests of a format: subclass it as ``Test…``, and set at least ``format`` and ``suffix``.

    format: the name of the format. suffix: that of its files; empty for folders. options: given to every
    ``create``; open_options: to every ``open``.

    beside: name → (field, value) that every dataset of this format needs; left out where the field under test
    is of that kind itself. only_field: for a format with a single field that it names itself: that name, a
    field that it can hold, and a function from sample numbers to values. leave_out: names of
    ``batchplant.testing.cases.all_cases()`` that do not apply; values: other values for some of them.

    keeps_schema: the very same kinds come back. keeps_jpeg: JPEG files are stored byte for byte. in_place:
    some field has spans. notices_cuts: every truncation is detected. wraps: the parser is that of another
    suite, behind a compression for example: fewer tests, kinds and less damage are tried. golden: a folder
    with one folder of files per format, which the format must not take for its own.
    """

    format: ClassVar[str]
    suffix: ClassVar[str] = ""
    options: ClassVar[Mapping[str, Any]] = {}
    open_options: ClassVar[Mapping[str, Any]] = {}
    beside: ClassVar[Mapping[str, tuple[Field, Any]]] = {}
    leave_out: ClassVar[Collection[str]] = ()
    values: ClassVar[Mapping[str, list[Any]]] = {}
    keeps_schema: ClassVar[bool] = True
    keeps_jpeg: ClassVar[bool] = True
    in_place: ClassVar[bool] = True
    wraps: ClassVar[bool] = False
    notices_cuts: ClassVar[bool] = True
    golden: ClassVar[Path | None] = None
    only_field: ClassVar[tuple[str, Field, Callable[[int], Any]] | None] = None

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if cls.wraps and not EXHAUSTIVE:
            for name in PARSER_TESTS:
                setattr(cls, f"test_{name}", None)

    # -- methods that a subclass may override --------------------------------------------------------

    def write(
        self, path: str, schema: Mapping[str, Field], samples: Iterable[Sample], **options: Any
    ) -> None:
        with self.create(path, schema, **options) as out:
            for sample in samples:
                out.append(sample)

    def files(self, path: str) -> list[Path]:
        """Return the files to damage."""
        paths = [Path(path)] if os.path.isfile(path) else sorted(Path(path).rglob("*"))
        return [file for file in paths if file.is_file()]

    # -- helpers -------------------------------------------------------------------------------------

    def names(self, folder: Path) -> list[str]:
        """Return the names in a folder, without the side-cars that the format writes."""
        names = sorted(os.listdir(folder))
        templates = self.spec.writer.side_cars if self.spec.writer is not None else ()
        side_cars = {side_car(name, template).name for name in names for template in templates}
        return [name for name in names if name not in side_cars]

    @property
    def spec(self) -> Format:
        return registry.get_format(self.format)

    def create(self, path: str, schema: Mapping[str, Field], **options: Any) -> Writer | ShardWriter:
        if self.spec.writer is None:
            pytest.skip(f"{self.format} is read only")
        return registry.create(path, schema, format=self.format, **{**self.options, **options})

    def open(self, path: str) -> Reader:
        return registry.open(path, format=self.format, **self.open_options)

    def path(self, folder: Path, name: str = "data") -> str:
        return str(folder / (name + self.suffix))

    def cases(self, *, supported: bool = True) -> dict[str, Case]:
        """Return the cases that the format holds, or those that it refuses.

        Representative cases, or all in an exhaustive run, also have a variant with missing values.
        """
        cases: dict[str, Case] = {}
        for name, (field, values) in all_cases().items():
            is_representative = name in REPRESENTATIVE_CASES or EXHAUSTIVE
            values = self.values.get(name, values)
            if name not in self.leave_out and (is_representative or not self.wraps):
                cases[name] = field, values
            if name not in self.leave_out and is_representative:
                optional = dataclasses.replace(field, optional=True)
                cases[f"{name}, optional"] = optional, [None, *values, None]
        if self.spec.fields and supported:
            cases = {
                name: (field, self.values.get(name, values)) for name, (field, values) in sequences().items()
            }
        return {
            name: (field, values)
            for name, (field, values) in cases.items()
            if name not in self.leave_out and (self.spec.refuses(field) is None) == supported
        }

    def combined_cases(self) -> dict[str, Case]:
        """Return the cases that are tried as fields of one dataset; none in an exhaustive run.

        Images, sounds and videos have a dataset of their own where the format holds one of them per sample.
        """
        if EXHAUSTIVE or self.spec.fields or self.only_field is not None:
            return {}
        return {
            name: (field, values)
            for name, (field, values) in self.cases().items()
            if (self.wraps or name not in SINGLE_FIELD_CASES)
            and not (isinstance(field, Image | Audio | Video) and (self.beside or self.spec.media))
        }

    def dataset_of(
        self, name: str, field: Field, values: Iterable[Any]
    ) -> tuple[dict[str, Field], list[Sample]]:
        """Return a dataset with one field of these values, and the fields that the format needs."""
        beside = {key: entry for key, entry in self.beside.items() if entry[0].kind != field.kind}
        if self.only_field is not None and self.spec.refuses(field) is None:
            name = self.only_field[0]
        if self.spec.fields and self.spec.refuses(field) is None:
            name = next(iter(self.spec.fields))
        schema = {**{key: needed for key, (needed, _) in beside.items()}, name: field}
        needed_values = {key: value for key, (_, value) in beside.items()}
        return schema, [{**needed_values, name: value} for value in values]

    def dataset_of_cases(self, cases: Mapping[str, Case]) -> tuple[dict[str, Field], list[Sample]]:
        """Return a dataset with these fields, whose values are repeated until all are equally many."""
        rows = max(len(values) for _, values in cases.values())
        schema: dict[str, Field] = {}
        samples: list[Sample] = [{} for _ in range(rows)]
        for name, (field, values) in cases.items():
            fields, parts = self.dataset_of(name, field, (values[row % len(values)] for row in range(rows)))
            schema |= fields
            for sample, part in zip(samples, parts, strict=True):
                sample |= part
        return schema, samples

    def dataset(self, count: int, *fields: str) -> tuple[dict[str, Field], list[Sample]]:
        """Return samples with one field of every kind that the format holds, or with these fields."""
        if self.only_field is not None:
            name, field, value = self.only_field
            return {name: field}, [{name: value(n)} for n in range(count)]
        chosen = {name: EXAMPLE_FIELDS[name] for name in fields or EXAMPLE_FIELDS}
        if self.spec.fields:
            chosen = example_fields(self.spec.fields)
        schema = {name: field for name, (field, _) in chosen.items() if self.spec.refuses(field) is None}
        kinds = {field.kind for field in schema.values()}
        beside = {name: entry for name, entry in self.beside.items() if entry[0].kind not in kinds}
        schema = {**{name: field for name, (field, _) in beside.items()}, **schema}
        return schema, [
            {name: beside[name][1] if name in beside else chosen[name][1](n) for name in schema}
            for n in range(count)
        ]

    def written(self, folder: Path, count: int = 20, *fields: str, **options: Any) -> str:
        path = self.path(folder)
        self.write(path, *self.dataset(count, *fields), **options)
        return path

    def shared(self) -> str:
        """Return the path of a dataset of 20 samples that all tests of this suite read and none changes."""
        suite = type(self)
        if suite not in _shared_datasets:
            _shared_datasets[suite] = self._checked(_process_folder(), 20)
        return _shared_datasets[suite]

    def _checked(self, folder: Path, count: int) -> str:
        """Return the path of a new dataset, with checksums where the format has a writer."""
        return self.written(folder, count, checksums=self.spec.writer is not None)

    def convert(self, source: str, target: str, **options: Any) -> Conversion:
        if self.spec.writer is None:
            pytest.skip(f"{self.format} is read only")
        return convert(
            source,
            target,
            source_options=self.open_options,
            target_options={"format": self.format, **self.options},
            **options,
        )

    def is_sound(self, path: str) -> bool:
        """Read and verify the file; return False if batchplant reports that something is wrong."""
        try:
            with self.open(path) as reader:
                for row in range(min(len(reader), 1000)):
                    with contextlib.suppress(BatchplantError):
                        reader[row]
                for name in reader.schema:
                    with contextlib.suppress(BatchplantError):
                        reader.spans(name)
            return verify(path, format=self.format, decode=True, **self.open_options).ok
        except BatchplantError:
            return False

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        if "case" in metafunc.fixturenames:
            combined = self.combined_cases()
            metafunc.parametrize("case", [name for name in self.cases() if name not in combined])

    # -- round trips ---------------------------------------------------------------------------------

    def test_round_trip(self, case: str, tmp_path: Path) -> None:
        schema, samples = self.dataset_of("value", *self.cases()[case])
        path = self.path(tmp_path)
        self.write(path, schema, samples, checksums=True)
        assert verify(path, format=self.format, **self.open_options).problems == []
        with self.open(path) as reader:
            check_samples(reader, schema, samples)
            if self.keeps_schema:
                assert _kinds(reader.schema) == _kinds(schema)
            if case == "image jpeg" and self.keeps_jpeg:
                name = list(schema)[-1]
                assert cells(reader)[name] == [sample[name] for sample in samples]

    def test_many_kinds_in_one_dataset(self, tmp_path: Path) -> None:
        cases = self.combined_cases()
        if not cases:
            pytest.skip("each kind has a dataset of its own")
        schema, samples = self.dataset_of_cases(
            {f"value{number}": case for number, case in enumerate(cases.values())}
        )
        path = self.path(tmp_path)
        self.write(path, schema, samples, checksums=True)
        assert verify(path, format=self.format, **self.open_options).problems == []
        with self.open(path) as reader:
            check_samples(reader, schema, samples)
            if self.keeps_schema:
                assert _kinds(reader.schema) == _kinds(schema)

    def test_what_the_format_cannot_hold_is_refused(self, tmp_path: Path) -> None:
        for name, case in self.cases(supported=False).items():
            schema, _ = self.dataset_of("value", *case)
            refusal = None
            try:
                self.create(self.path(tmp_path), schema).abort()
            except SchemaError as error:
                refusal = error
            assert refusal is not None, f"{name} is not refused"
            assert refusal.field == "value", name
            assert "'value'" in str(refusal), name
            assert os.listdir(tmp_path) == [], name

    @pytest.mark.parametrize("count", [0, 1, 20])
    def test_every_kind_at_once(self, count: int, tmp_path: Path) -> None:
        schema, samples = self.dataset(count)
        path = self.shared() if count == 20 else self._checked(tmp_path, count)
        with self.open(path) as reader:
            check_samples(reader, schema, samples)
            assert reader.read([]).rows == 0
        assert verify(path, format=self.format, decode=True, **self.open_options).problems == []

    def test_images_from_paths_and_pillow(self, tmp_path: Path) -> None:
        if Image not in self.spec.kinds:
            pytest.skip(f"{self.format} holds no images")
        pillow = pytest.importorskip("PIL.Image")
        file = tmp_path / "one.jpg"
        file.write_bytes(jpeg())
        with pillow.open(file) as opened:
            values = [file, str(file), opened, pillow.fromarray(pixels(4, 5, 3))]
            schema, samples = self.dataset_of("value", Image(), values)
            self.write(self.path(tmp_path), schema, samples)
        name = list(schema)[-1]
        with self.open(self.path(tmp_path)) as reader:
            read = [sample[name] for sample in reader]
            assert not self.keeps_jpeg or cells(reader)[name][:2] == [jpeg(), jpeg()]
        decoded = image.decode(jpeg())
        assert all(map(equal, [decoded, decoded, decoded, pixels(4, 5, 3)], read))

    def test_field_names_of_any_script(self, tmp_path: Path) -> None:
        if self.spec.fields or self.only_field is not None:
            pytest.skip(f"{self.format} gives its fields their names")
        case = next(name for name in ("int64", "bytes", "image") if name in self.cases())
        fields = dict.fromkeys(FIELD_NAMES, self.cases()[case])
        if isinstance(fields[FIELD_NAMES[0]][0], Image) and self.spec.media:
            fields = {FIELD_NAMES[0]: fields[FIELD_NAMES[0]]}
        schema, samples = self.dataset_of_cases(fields)
        self.write(self.path(tmp_path), schema, samples)
        with self.open(self.path(tmp_path)) as reader:
            check_samples(reader, schema, samples)

    # -- reading -------------------------------------------------------------------------------------

    def test_samples_by_number(self) -> None:
        path = self.shared()
        with self.open(path) as reader:
            all_cells = cells(reader)
        requests: list[Any] = [[3, 3, 19, 0], np.array([-1, -20]), np.arange(19, -1, -3), [5], []]
        for indices in requests:
            # A new reader: one that has read something may have it cached.
            with self.open(path) as reader:
                columns = reader.read(indices)
                for name, expected in all_cells.items():
                    read = [cell_bytes(columns[name], row) for row in range(columns.rows)]
                    assert read == [expected[index] for index in indices], (name, indices)

    def test_numbers_out_of_range(self) -> None:
        path = self.shared()
        with self.open(path) as reader:
            for wrong in ([20], [-21], [0, 2**40], [2**64 - 1]):
                with pytest.raises(SampleIndexError, match="there are 20"):
                    reader.read(wrong)
            with pytest.raises(IndexError):
                reader[20]

    def test_spans_are_where_the_cells_are(self) -> None:
        path = self.shared()
        indices = [7, 0, 7, 19]
        with self.open(path) as reader:
            spans_by_field = {name: reader.spans(name, indices) for name in reader.schema}
            columns = reader.read(indices)
        assert not self.in_place or any(spans is not None for spans in spans_by_field.values())
        for name, spans in spans_by_field.items():
            for row in range(len(indices) if spans is not None else 0):
                assert spans is not None
                with open(spans.files[spans.file[row]], "rb") as file:
                    file.seek(spans.start[row])
                    assert file.read(spans.size[row]) == cell_bytes(columns[name], row), name
            column = columns[name]
            if spans is not None and isinstance(column, Ragged):
                shapes = [() if shape is None else shape.tolist() for shape in (spans.shape, column.shape)]
                assert shapes[0] == shapes[1], name

    def test_pickled_reader_reads_in_another_process(self) -> None:
        path = self.shared()
        with self.open(path) as reader:
            views = [reader, reader.select(list(reader.schema)[:1])[3:9]]
            assert read_in_other_process(views) == [cells(view) for view in views]

    def test_many_threads_read_the_same(self) -> None:
        path = self.shared()
        with self.open(path) as reader, self.open(path) as alone, ThreadPoolExecutor(4) as pool:
            orders = [np.random.default_rng(seed).permutation(20) for seed in range(8)]
            read = list(pool.map(lambda order: cells(reader.subset(order)), orders))
            assert read == [cells(alone.subset(order)) for order in orders]

    def test_parts_of_a_dataset(self) -> None:
        path = self.shared()
        with self.open(path) as reader:
            all_cells = cells(reader)
            [name, *_], last = reader.schema, list(reader.schema)[-1]
            assert cells(reader.select([last])) == {last: all_cells[last]}
            assert cells(reader.subset([4, -1, 4]))[name] == [all_cells[name][n] for n in (4, 19, 4)]
            assert cells(reader[15:3:-4])[name] == all_cells[name][15:3:-4]
            twice = concat([reader, reader[:3]])
            assert cells(twice)[name] == all_cells[name] + all_cells[name][:3]
            assert cells(twice.subset([20, 1, 22]))[name] == [all_cells[name][n] for n in (0, 1, 2)]
            assert sum(columns.rows for columns in reader.scan(7)) == 20
            with pytest.raises(FieldNameError, match="no field 'nonsense'"):
                reader.select(["nonsense"])

    # -- writing -------------------------------------------------------------------------------------

    def test_values_belong_to_the_caller(self, tmp_path: Path) -> None:
        """Append does not change them, and changing them after append does not change the file."""
        schema, samples = self.dataset(4)
        mutable = copy.deepcopy(samples)
        for sample in mutable:
            sample |= {name: bytearray(sample[name]) for name in ("blob", "image") if name in sample}
        with self.create(self.path(tmp_path), schema) as out:
            for sample, original in zip(mutable, samples, strict=True):
                out.append(sample)
                for name, value in sample.items():
                    same = bytes(value) if isinstance(value, bytearray) else value
                    assert equal(original[name], same)
                    if isinstance(value, np.ndarray):
                        value[:] = 99
                    elif isinstance(value, bytearray):
                        value[:] = bytes(len(value))
                    elif isinstance(value, dict):
                        value["n"] = "later"
                    elif isinstance(value, list):
                        value.append("later")
                sample.clear()
        with self.open(self.path(tmp_path)) as reader:
            check_samples(reader, schema, samples)

    @pytest.mark.parametrize("exists", [False, True])
    def test_an_aborted_write_leaves_things_as_they_were(self, exists: bool, tmp_path: Path) -> None:
        if exists:
            self.written(tmp_path, 3)
        before = {file: file.read_bytes() for file in tmp_path.rglob("*") if file.is_file()}
        schema, samples = self.dataset(20)

        def interrupted() -> Iterator[Sample]:
            yield from samples
            raise ZeroDivisionError

        self.create(self.path(tmp_path), schema, overwrite=True).abort()
        with pytest.raises(ZeroDivisionError):
            self.write(self.path(tmp_path), schema, interrupted(), overwrite=True)
        assert {file: file.read_bytes() for file in tmp_path.rglob("*") if file.is_file()} == before
        assert len(self.names(tmp_path)) == exists

    def test_overwriting_has_to_be_asked_for(self, tmp_path: Path) -> None:
        path = self.written(tmp_path, 3)
        with pytest.raises(ExistsError, match="overwrite=True"):
            self.create(path, self.dataset(0)[0])
        self.written(tmp_path, 5, overwrite=True)
        assert len(self.open(path)) == 5
        assert self.names(tmp_path) == [os.path.basename(path)]

    def test_an_interrupted_conversion_resumes(self, tmp_path: Path) -> None:
        options = ConvertOptions(tuning=ConvertTuning(checkpoint_seconds=0))
        source = self.path(tmp_path)
        self.write(source, *self.dataset(34))
        done: list[int] = []

        def interrupt(now: int, _: int) -> None:
            done.append(now)
            if len(done) == 3:
                raise KeyboardInterrupt

        stopped = self.path(tmp_path / "out")
        with pytest.raises(KeyboardInterrupt):
            self.convert(source, stopped, progress=interrupt, options=options)
        assert not os.path.exists(stopped)
        result = self.convert(source, stopped, resume=True)
        assert 0 < result.resumed_at < 34
        assert result.samples == 34
        original = registry.open(source, **self.open_options)
        assert verify(stopped, decode=True, against=original, **self.open_options).problems == []
        assert cells(self.open(stopped)) == cells(self.open(source))
        assert self.names(tmp_path / "out") == [os.path.basename(stopped)]

    # -- detection of formats ------------------------------------------------------------------------

    def test_content_tells_the_format(self, tmp_path: Path) -> None:
        if self.spec.sniff is never:
            pytest.skip(f"{self.format} has no magic")
        path = self.shared()
        copy_file = shutil.copytree if os.path.isdir(path) else shutil.copy
        copy_file(path, tmp_path / "nameless")
        assert registry.find_format(str(tmp_path / "nameless")) is self.spec

    def test_files_of_other_formats_are_not_taken_for_ours(self) -> None:
        foreign_files = [*self._written_by_others(), *self._golden_of_others()]
        assert foreign_files
        for path in foreign_files:
            assert not self.spec.matches(Probe(str(path))), f"{path.name} is not {self.format}"

    def _written_by_others(self) -> Iterator[Path]:
        return (path for name, path in write_all_formats().items() if name != self.format)

    def _golden_of_others(self) -> Iterator[Path]:
        files = unpack_golden(self.golden) if self.golden is not None else {}
        return (path for name, paths in files.items() if name != self.format for path in paths)

    # -- damage --------------------------------------------------------------------------------------

    @pytest.mark.parametrize("damage", [cuts, flips])
    def test_damage_gives_errors_or_values(
        self, damage: Callable[[Path, int], Iterator[str]], tmp_path: Path
    ) -> None:
        """No other exception, crash or hang, and no more memory than the size of the file explains."""
        path = self.written(tmp_path, 3, "image", "number", "text", "fixed")
        assert self.is_sound(path)

        def is_sound() -> bool:
            with memory_bounded(size):
                return self.is_sound(path)

        files = self.files(path)
        share = len(files) * (WRAPPED_DAMAGE_DIVISOR if self.wraps and not EXHAUSTIVE else 1)
        for file in files:
            size = file.stat().st_size
            for description, is_valid in survive(damage(file, share), is_sound):
                assert not (is_valid and damage is cuts and self.notices_cuts), f"unnoticed: {description}"

    def test_checksums_find_a_flipped_bit(self, tmp_path: Path) -> None:
        path = self.written(tmp_path, checksums=True)
        with self.open(path) as reader:
            spans_by_field = {name: reader.spans(name, [11]) for name in reader.schema}
        in_place = [
            (name, spans) for name, spans in spans_by_field.items() if spans is not None and spans.size[0] > 0
        ]
        if not in_place:
            pytest.skip(f"{self.format} has no cells in place")
        name, spans = in_place[0]
        assert verify(path, format=self.format, **self.open_options).problems == []
        flip(Path(spans.files[spans.file[0]]), int(spans.start[0] + spans.size[0] // 2), 3)
        result = verify(path, format=self.format, **self.open_options)
        assert "checksums" in result.checks
        places = {(problem.sample, problem.field) for problem in result.problems}
        # A checksum of the format's own may be one of the whole sample.
        assert places & {(11, name), (11, None)}
        assert places <= {(11, name), (11, None), (None, None)}

    def test_columns_are_checked(self, tmp_path: Path) -> None:
        schema, _ = self.dataset(0)
        with self.create(self.path(tmp_path), schema) as out, pytest.raises(SchemaError):
            out.append(Columns())


SHAPES: list[tuple[int, ...]] = [(2, 3), (), (5,), (0, 4), (1, 2, 3, 2)]


def tensor(name: str, dtype: str, shape: tuple[int, ...]) -> Sample:
    """Return a tensor whose bytes are the same every time; those of a bool are 0 and 1."""
    size = size_of(dtype, shape)
    data = np.random.default_rng([size, *map(ord, name)]).integers(0, 256, size, np.uint8)
    data = data & 1 if dtype == "bool" else data
    return {"name": name, "dtype": dtype, "shape": np.array(shape, np.int64), "data": data.tobytes()}


class ModelSuite(FormatSuite):
    """Like FormatSuite, with tensors for samples. ``dtypes``: those that the format holds."""

    dtypes: ClassVar[Collection[str]] = tuple(name for name, bits in BITS.items() if bits >= 8)
    # Fields are always the same four.
    test_field_names_of_any_script: ClassVar[Any] = None

    def cases(self, *, supported: bool = True) -> dict[str, Case]:
        """Return no supported cases: the fields are always the same."""
        return {} if supported else super().cases(supported=False)

    def dataset(self, count: int, *fields: str) -> tuple[dict[str, Field], list[Sample]]:
        dtypes = list(self.dtypes)
        samples = [
            tensor(f"layer.{n}.größe/{n}", dtypes[n % len(dtypes)], SHAPES[n % len(SHAPES)])
            for n in range(count)
        ]
        return dict(TENSORS), samples

    def test_every_dtype_and_shape(self, tmp_path: Path) -> None:
        samples = [tensor(f"{n} {d}", d, shape) for d in self.dtypes for n, shape in enumerate(SHAPES)]
        self.write(self.path(tmp_path), TENSORS, samples)
        with self.open(self.path(tmp_path)) as reader:
            assert [sample["name"] for sample in reader] == [sample["name"] for sample in samples]
            for read, wrote in zip(reader, samples, strict=True):
                assert (read["dtype"], read["shape"].tolist()) == (wrote["dtype"], wrote["shape"].tolist())
                assert read["data"] == wrote["data"]
            for name, array in reader.tensors().items():
                wrote = next(sample for sample in samples if sample["name"] == name)
                assert array.shape == tuple(wrote["shape"])
                assert array.dtype.name == wrote["dtype"]
                assert array.tobytes() == wrote["data"]
