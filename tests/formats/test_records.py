"""RecordReader and RecordWriter: the schema, errors in their place, files that are not mapped."""

import json
import os
from pathlib import Path

import numpy as np
import pytest

import batchplant as bp
from batchplant.data.writer import WriteOptions
from batchplant.formats.base import records
from batchplant.schema.columns import starts_of
from batchplant.storage import Source, open_source
from batchplant.testing.cases import cells, jpeg


class Reader(records.RecordReader):
    """The smallest format: u64 number of records, their u64 sizes, the records."""

    format = "smallest"

    def __init__(self, path, *, schema=None, stored=None, unmapped=False):
        self.path = os.fspath(path)
        source = open_source(self.path)
        self.source = Unmapped(source) if unmapped else source
        self.length = int(source.array("<u8", 0, 1)[0])
        self.record_sizes = source.array("<i8", 8, self.length)
        self.checked = []
        self._set_schema(self.path, given=schema, stored=stored)

    def _runs(self, indices):
        starts = 8 + 8 * self.length + starts_of(self.record_sizes)[:-1][indices]
        assert self.source.outside(starts, self.record_sizes[indices]) is None
        return starts, self.record_sizes[indices]

    def _check_records(self, indices, data, starts, sizes):
        self.checked += indices.tolist()
        assert all(starts + sizes <= len(data))


class Unmapped(Source):
    """As a URL or a packed file is: bytes come as copies."""

    def __init__(self, source):
        super().__init__(source.path, source.size)
        self.source = source

    def _view(self, start, size):
        return self.source.view(start, size).copy()

    def _gather(self, starts, sizes, out, out_starts):
        for at, size, to in zip(starts, sizes, out_starts, strict=True):
            out[to : to + size] = self.view(at, size)


class Writer(records.RecordWriter):
    format = "smallest"

    def _begin(self, state):
        self._sizes, self._data = self.partial.spool("sizes"), self.partial.spool("data")

    def _write_records(self, found):
        self._sizes.write(found.sizes)
        self._data.write(found.data)

    def _finish(self):
        file = self.partial.spool("whole")
        file.write(np.array([self.written], "<u8"))
        file.write(self._sizes.read_at(self._sizes.size, 0))
        file.write(self._data.read_at(self._data.size, 0))
        return "whole"


class InsideWriter(Writer):
    schema_inside = True


class CountingWriter(Writer):
    count_inside = True


def written(folder, schema, samples, kind=Writer):
    path = str(folder / "a.rec")
    with kind(path, bp.Schema(schema), WriteOptions()) as out:
        for sample in samples:
            out.append(sample)
    return path


SCHEMA = {"image": bp.Image(), "n": bp.Int("int8", optional=True), "t": bp.Text()}
SAMPLES = [{"image": jpeg(4, 4 + n), "n": n or None, "t": "x" * n} for n in range(9)]


@pytest.mark.parametrize("unmapped", [False, True])
def test_samples_there_and_back(unmapped, tmp_path):
    path = written(tmp_path, SCHEMA, SAMPLES)
    assert sorted(os.listdir(tmp_path)) == ["a.rec", "a.rec.schema.json"]
    with Reader(path, unmapped=unmapped) as reader:
        assert dict(reader.schema) == {**SCHEMA, "image": bp.Image()}
        assert not reader.raw
        actual = [[sample[name] for name in ("n", "t")] for sample in reader]
        assert actual == [[sample["n"], sample["t"]] for sample in SAMPLES]
        assert cells(reader)["image"] == [sample["image"] for sample in SAMPLES]
        assert reader.read([8, 0, 8], ["t"])["t"].sizes.tolist() == [8, 0, 8]
        assert reader.read([1], []) == {}
        assert reader.blocks().tolist() == [0] * 9
        assert list(reader.verify()) == []
        spans = reader.spans("image", [3, 1])
        assert (spans is None) == unmapped
        assert reader.spans("n") is None
    if not unmapped:
        data = open_source(path)
        assert data.view(spans.start[0], spans.size[0]).tobytes() == SAMPLES[3]["image"]


@pytest.mark.parametrize("unmapped", [False, True])
def test_bytes_are_the_records_themselves(unmapped, tmp_path):
    path = written(tmp_path, {"data": bp.Bytes()}, [{"data": bytes(n)} for n in range(5)], CountingWriter)
    assert os.listdir(tmp_path) == ["a.rec"]
    with Reader(path, unmapped=unmapped) as reader:
        assert reader.raw
        assert cells(reader) == {"data": [bytes(n) for n in range(5)]}
        assert cells(reader.subset([4, 2])) == {"data": [bytes(4), bytes(2)]}
        spans = reader.spans("data", [4, 2])
        assert spans is None if unmapped else spans.size.tolist() == [4, 2]


def test_records_are_checked_where_they_are_read(tmp_path):
    reader = Reader(written(tmp_path, SCHEMA, SAMPLES))
    reader.spans("image", [1, 2])
    assert reader.checked == []
    reader.read([5, 7], ["n"])
    assert reader.checked == [5, 7]


def test_which_schema_counts(tmp_path):
    path = written(tmp_path, SCHEMA, SAMPLES)
    stored = bp.Schema(t=bp.Bytes())
    assert Reader(path, stored=stored).schema == stored
    given = {"n": {"kind": "int", "optional": True}, "t": "text"}
    for item in (given, json.dumps(given), json.dumps([{"name": "n", "kind": "int", "optional": True}])):
        reader = Reader(path, schema=item, stored=stored)
        assert reader.schema["n"] == bp.Int(optional=True)
        assert reader[3]["n"] == 3
    for wrong in ("{", "3", '{"n": "nonsense"}'):
        with pytest.raises((bp.OptionError, bp.SchemaError)):
            Reader(path, schema=wrong)
    with pytest.raises(bp.SchemaError, match="no field"):
        Reader(path, schema={})
    os.remove(f"{path}.schema.json")
    assert Reader(path).schema == records.RAW
    assert Reader(path)[0]["data"].startswith(b"\x83\xa5image")


def test_a_record_can_be_a_image(tmp_path):
    path = written(tmp_path, {"data": bp.Bytes()}, [{"data": jpeg(5, 6)}])
    reader = Reader(path, schema={"data": bp.Image()})
    assert reader.raw
    assert reader[0]["data"].shape == (5, 6, 3)
    assert reader.spans("data").size.tolist() == [len(jpeg(5, 6))]
    # But not where it is known to be packed.
    os.remove(path)
    path = written(tmp_path, {"data": bp.Image()}, [{"data": jpeg(5, 6)}])
    assert not Reader(path, schema={"data": bp.Image()}).raw
    assert Reader(path)[0]["data"].shape == (5, 6, 3)


@pytest.mark.parametrize("unmapped", [False, True])
def test_an_error_names_sample_and_byte(unmapped, tmp_path):
    path = written(tmp_path, SCHEMA, SAMPLES)
    with Reader(path) as reader:
        starts, sizes = reader._runs(np.array([6]))
    with open(path, "r+b") as file:
        # The key t becomes u, so that t is missing.
        file.seek(int(starts[0] + sizes[0]) - 8)
        assert file.read(1) == b"t"
        file.seek(-1, 1)
        file.write(b"u")
    reader = Reader(path, unmapped=unmapped)
    with pytest.raises(bp.DecodeError, match="missing") as caught:
        reader.read([8, 6, 1])
    error = caught.value
    assert (error.path, error.sample, error.field, error.offset) == (path, 6, "t", starts[0])
    with open(path, "r+b") as file:
        file.seek(int(starts[0]))
        file.write(b"\x84")
    with pytest.raises(bp.DamagedError, match="cut short") as caught:
        reader.read([8, 6, 1], ["n"])
    assert (caught.value.path, caught.value.sample, caught.value.offset) == (path, 6, starts[0] + sizes[0])
    assert {problem.sample for problem in reader.verify()} == {6}


def test_a_cut_between_records_is_seen_by_the_side_car(tmp_path):
    path = written(tmp_path, SCHEMA, SAMPLES)
    beside = tmp_path / "a.rec.schema.json"
    note = json.loads(beside.read_text())
    assert note["samples"] == 9
    beside.write_text(json.dumps({**note, "samples": 12}))
    [problem] = Reader(path).verify()
    assert problem.message == "there are 9 samples, and 12 were written"


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"schema": 3}', '{"schema": [{"name": "a"}]}', "[" * 100_000]
)
def test_a_damaged_side_car(text, tmp_path):
    path = written(tmp_path, SCHEMA, SAMPLES)
    with open(f"{path}.schema.json", "w") as file:
        file.write(text)
    with pytest.raises(bp.DamagedError, match=r"a\.rec\.schema\.json: the schema is damaged"):
        Reader(path)


def test_a_schema_that_is_kept_inside_has_no_side_car(tmp_path):
    written(tmp_path, SCHEMA, SAMPLES, InsideWriter)
    assert os.listdir(tmp_path) == ["a.rec"]
    note = records.note_of(bp.Schema(SCHEMA))
    assert records.schema_of(note) == bp.Schema(SCHEMA)


def test_a_count_that_is_not_kept_inside_stands_beside(tmp_path):
    path = written(tmp_path, {"data": bp.Bytes()}, [{"data": bytes(n)} for n in range(5)])
    assert json.loads(Path(f"{path}.schema.json").read_text())["samples"] == 5
    assert Reader(path).raw


def test_overwriting_takes_the_old_side_car_away(tmp_path):
    path = written(tmp_path, SCHEMA, SAMPLES)
    with CountingWriter(path, records.RAW, WriteOptions(overwrite=True)) as out:
        out.append({"data": b"x"})
    assert os.listdir(tmp_path) == ["a.rec"]
    assert list(Reader(path)) == [{"data": b"x"}]
