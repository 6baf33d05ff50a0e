"""FormatSuite: what every format has to do."""

from __future__ import annotations

import atexit
import contextlib
import copy
import dataclasses
import functools
import lzma
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ..codecs.cells import cell_bytes
from ..codecs.media import image
from ..data.concat import concat
from ..errors import ExistsError, FieldNameError, MissingLibraryError, SampleIndexError, SchemaError
from ..formats import registry
from ..formats.base.format import Probe, never
from ..jobs.conversion import task
from ..jobs.verify import verify
from ..schema import Audio, Field, Image, Int, Video
from ..schema.columns import Columns, Ragged
from .base import Bench
from .cases import Sample, cells, check_samples, equal, film, jpeg, pixels, sound
from .damage import EXHAUSTIVE, cuts, flip, flips, memory_bounded, survive
from .elsewhere import read_elsewhere

# A suite of files that are only packed otherwise tries damage at so much fewer places.
WRAPPED = 8


def _kinds(schema: Mapping[str, Field]) -> list[tuple[str, Field]]:
    """The fields, whatever images are encoded as: that is the writer's choice."""
    return [
        (name, dataclasses.replace(field, encoding=None) if isinstance(field, Image) else field)
        for name, field in schema.items()
    ]


def _lasting_folder() -> Path:
    """One that goes with the process."""
    folder = Path(tempfile.mkdtemp(prefix="batchplant-suite-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


@functools.cache
def unpacked(golden: Path) -> dict[str, list[Path]]:
    """Format → its golden files, those that are packed with xz unpacked; made once for all suites."""
    found: dict[str, list[Path]] = {}
    for file in sorted(golden.glob("*/*")):
        one = registry.all_formats().get(file.parent.name)
        plain = file.name.removesuffix(".xz")
        if one is None or not file.is_file() or not plain.endswith(one.suffixes):
            continue
        path = _lasting_folder() / plain
        data = file.read_bytes()
        path.write_bytes(data if plain == file.name else lzma.decompress(data))
        found.setdefault(one.name, []).append(path)
    return found


@functools.cache
def written_by_all() -> dict[str, Path]:
    """A small file of every format that can be written here, by name; made once for all suites."""
    folder = _lasting_folder()
    found: dict[str, Path] = {}
    for name, one in registry.all_formats().items():
        path = folder / f"other.{name}"
        values = {"n": 1, "image": jpeg(), "audio": sound(4), "video": film(1)}
        for field in (None, Image(), Audio(), Video()):
            schema: dict[str, Field] = {"n": Int()} if field is None else {field.kind: field, "n": Int()}
            if one.writer is None or path.exists():
                continue
            with (
                contextlib.suppress(SchemaError, MissingLibraryError),
                registry.create(path, schema, format=name) as out,
            ):
                out.append({key: values[key] for key in schema})
        if path.exists():
            found[name] = path
    return found


class FormatSuite(Bench):
    """Tests of a format: subclass it as ``Test…``, and set at least ``format`` and ``suffix``.

    format: the name of the format. suffix: that of its files; empty for folders. options: given to every
    ``create``; open_options: to every ``open``.

    beside: name → (field, value) that a dataset of this format cannot do without; left out where the field
    under test is of that kind itself. only_field: of a format that holds a single field and gives it a name
    of its own: that name, a field that it can hold, and a function from sample numbers to values. leave_out:
    names of ``batchplant.testing.cases.all_cases()`` that do not apply; values: other values for some of
    them.

    keeps_schema: the very same kinds come back. keeps_jpeg: JPEG files are stored byte for byte. in_place:
    some field has spans. notices_cuts: no truncation goes unnoticed. wraps: the same parser as that of
    another suite, behind a compression for example: it is tried with fewer kinds and less damage. golden: a
    folder with one folder of files per format, which the format must not take for its own.
    """

    # -- what goes in comes out ------------------------------------------------------------------------

    def test_round_trip(self, case: str, tmp_path: Path) -> None:
        schema, samples = self.around("value", *self.cases()[case])
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
        cases = self.together()
        if not cases:
            pytest.skip("each kind has a dataset of its own")
        rows = max(len(values) for _, values in cases.values())
        schema: dict[str, Field] = {}
        samples: list[Sample] = [{} for _ in range(rows)]
        for number, (field, values) in enumerate(cases.values()):
            repeated = [values[row % len(values)] for row in range(rows)]
            fields, parts = self.around(f"value{number}", field, repeated)
            schema |= fields
            for sample, part in zip(samples, parts, strict=True):
                sample |= part
        path = self.path(tmp_path)
        self.write(path, schema, samples, checksums=True)
        assert verify(path, format=self.format, **self.open_options).problems == []
        with self.open(path) as reader:
            check_samples(reader, schema, samples)
            if self.keeps_schema:
                assert _kinds(reader.schema) == _kinds(schema)

    def test_what_the_format_cannot_hold_is_refused(self, tmp_path: Path) -> None:
        for name, case in self.cases(held=False).items():
            schema, _ = self.around("value", *case)
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
        path = self.written(tmp_path, count, checksums=self.spec.writer is not None)
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
            schema, samples = self.around("value", Image(), values)
            self.write(self.path(tmp_path), schema, samples)
        name = list(schema)[-1]
        with self.open(self.path(tmp_path)) as reader:
            found = [sample[name] for sample in reader]
            assert not self.keeps_jpeg or cells(reader)[name][:2] == [jpeg(), jpeg()]
        decoded = image.decode(jpeg())
        assert all(map(equal, [decoded, decoded, decoded, pixels(4, 5, 3)], found))

    @pytest.mark.parametrize("name", ["Größe", "ラベル", "with space", "🌱", "a.b", "a" * 60])
    def test_field_names_of_any_script(self, name: str, tmp_path: Path) -> None:
        if self.spec.fields or self.only_field is not None:
            pytest.skip(f"{self.format} gives its fields their names")
        case = next(one for one in ("int64", "bytes", "image") if one in self.cases())
        schema, samples = self.around(name, *self.cases()[case])
        self.write(self.path(tmp_path), schema, samples)
        with self.open(self.path(tmp_path)) as reader:
            check_samples(reader, schema, samples)

    # -- reading ---------------------------------------------------------------------------------------

    def test_samples_by_number(self, tmp_path: Path) -> None:
        path = self.written(tmp_path)
        with self.open(path) as reader:
            whole = cells(reader)
        several: list[Any] = [[3, 3, 19, 0], np.array([-1, -20]), np.arange(19, -1, -3), [5], []]
        for wanted in several:
            # A reader that has read something else already would know more.
            with self.open(path) as reader:
                found = reader.read(wanted)
                for name, expected in whole.items():
                    have = [cell_bytes(found[name], row) for row in range(found.rows)]
                    assert have == [expected[number] for number in wanted], (name, wanted)

    def test_numbers_out_of_range(self, tmp_path: Path) -> None:
        path = self.written(tmp_path)
        with self.open(path) as reader:
            for wrong in ([20], [-21], [0, 2**40], [2**64 - 1]):
                with pytest.raises(SampleIndexError, match="there are 20"):
                    reader.read(wrong)
            with pytest.raises(IndexError):
                reader[20]

    def test_spans_are_where_the_cells_are(self, tmp_path: Path) -> None:
        path = self.written(tmp_path)
        wanted = [7, 0, 7, 19]
        with self.open(path) as reader:
            found = {name: reader.spans(name, wanted) for name in reader.schema}
            columns = reader.read(wanted)
        assert not self.in_place or any(spans is not None for spans in found.values())
        for name, spans in found.items():
            for row in range(len(wanted) if spans is not None else 0):
                assert spans is not None
                with open(spans.files[spans.file[row]], "rb") as file:
                    file.seek(spans.start[row])
                    assert file.read(spans.size[row]) == cell_bytes(columns[name], row), name
            column = columns[name]
            if spans is not None and isinstance(column, Ragged):
                shapes = [() if one is None else one.tolist() for one in (spans.shape, column.shape)]
                assert shapes[0] == shapes[1], name

    def test_pickled_reader_reads_in_another_process(self, tmp_path: Path) -> None:
        path = self.written(tmp_path)
        with self.open(path) as reader:
            views = [reader, reader.select(list(reader.schema)[:1])[3:9]]
            assert read_elsewhere(views) == [cells(view) for view in views]

    def test_many_threads_read_the_same(self, tmp_path: Path) -> None:
        path = self.written(tmp_path)
        with self.open(path) as reader, self.open(path) as alone, ThreadPoolExecutor(8) as pool:
            orders = [np.random.default_rng(seed).permutation(20) for seed in range(16)]
            found = list(pool.map(lambda order: cells(reader.subset(order)), orders))
            assert found == [cells(alone.subset(order)) for order in orders]

    def test_parts_of_a_dataset(self, tmp_path: Path) -> None:
        path = self.written(tmp_path)
        with self.open(path) as reader:
            every = cells(reader)
            [name, *_], last = reader.schema, list(reader.schema)[-1]
            assert cells(reader.select([last])) == {last: every[last]}
            assert cells(reader.subset([4, -1, 4]))[name] == [every[name][n] for n in (4, 19, 4)]
            assert cells(reader[15:3:-4])[name] == every[name][15:3:-4]
            twice = concat([reader, reader[:3]])
            assert cells(twice)[name] == every[name] + every[name][:3]
            assert cells(twice.subset([20, 1, 22]))[name] == [every[name][n] for n in (0, 1, 2)]
            assert sum(columns.rows for columns in reader.scan(7)) == 20
            with pytest.raises(FieldNameError, match="no field 'nonsense'"):
                reader.select(["nonsense"])

    # -- writing ---------------------------------------------------------------------------------------

    def test_values_belong_to_the_caller(self, tmp_path: Path) -> None:
        """Neither are they changed, nor does changing them after append change what is written."""
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

    def test_converts_to_itself(self, tmp_path: Path) -> None:
        path = self.written(tmp_path)
        again = self.path(tmp_path, "again")
        self.converted(path, again)
        other = registry.open(path, **self.open_options)
        assert verify(again, decode=True, against=other, **self.open_options).problems == []
        assert cells(self.open(again)) == cells(self.open(path))

    def test_an_interrupted_conversion_resumes(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(task, "CHECKPOINT_SECONDS", 0)
        source = self.path(tmp_path)
        self.write(source, *self.dataset(100))
        done: list[int] = []

        def interrupt(now: int, _: int) -> None:
            done.append(now)
            if len(done) == 3:
                raise KeyboardInterrupt

        whole, stopped = (self.path(tmp_path / "out", name) for name in ("whole", "stopped"))
        self.converted(source, whole)
        with pytest.raises(KeyboardInterrupt):
            self.converted(source, stopped, progress=interrupt)
        assert not os.path.exists(stopped)
        found = self.converted(source, stopped, resume=True)
        assert 0 < found.resumed_at < 100
        assert found.samples == 100
        other = registry.open(whole, **self.open_options)
        assert verify(stopped, against=other, **self.open_options).problems == []
        assert self.names(tmp_path / "out") == sorted(map(os.path.basename, (whole, stopped)))

    # -- telling formats apart -------------------------------------------------------------------------

    def test_content_tells_the_format(self, tmp_path: Path) -> None:
        if self.spec.sniff is never:
            pytest.skip(f"{self.format} has no magic")
        path = self.written(tmp_path)
        os.rename(path, tmp_path / "nameless")
        assert registry.find_format(str(tmp_path / "nameless")) is self.spec

    def test_files_of_other_formats_are_not_taken_for_ours(self) -> None:
        others = [*self._written_by_others(), *self._golden_of_others()]
        assert others
        for path in others:
            assert not self.spec.matches(Probe(str(path))), f"{path.name} is not {self.format}"

    def _written_by_others(self) -> Iterator[Path]:
        return (path for name, path in written_by_all().items() if name != self.format)

    def _golden_of_others(self) -> Iterator[Path]:
        found = unpacked(self.golden) if self.golden is not None else {}
        return (path for name, paths in found.items() if name != self.format for path in paths)

    # -- damage ----------------------------------------------------------------------------------------

    @pytest.mark.parametrize("damage", [cuts, flips])
    def test_damage_gives_errors_or_values(
        self, damage: Callable[[Path, int], Iterator[str]], tmp_path: Path
    ) -> None:
        """Never another exception, a crash, a hang, or more memory than the file explains."""
        path = self.written(tmp_path, 3, "image", "number", "text", "fixed")
        assert self.is_sound(path)

        def is_sound() -> bool:
            with memory_bounded(size):
                return self.is_sound(path)

        files = self.files(path)
        share = len(files) * (WRAPPED if self.wraps and not EXHAUSTIVE else 1)
        for file in files:
            size = file.stat().st_size
            for what, fine in survive(damage(file, share), is_sound):
                assert not (fine and damage is cuts and self.notices_cuts), f"unnoticed: {what}"

    def test_checksums_find_a_flipped_bit(self, tmp_path: Path) -> None:
        path = self.written(tmp_path, checksums=True)
        with self.open(path) as reader:
            found = {name: reader.spans(name, [11]) for name in reader.schema}
        held = [(name, spans) for name, spans in found.items() if spans is not None and spans.size[0] > 0]
        if not held:
            pytest.skip(f"{self.format} has no cells in place")
        name, spans = held[0]
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
