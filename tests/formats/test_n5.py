"""N5: the suite, the six compressions as tensorstore writes and reads them, and blocks that lie."""

import json
import shutil
import struct
import sys
from pathlib import Path

import numpy as np
import pytest

import batchplant as bp
import processes
from batchplant.formats import n5
from batchplant.testing import FormatSuite, cases
from batchplant.testing.cases import all_cases, check_samples, jpeg
from repository import GOLDEN
from variants import first, in_one_test

pytest.importorskip("numcodecs")

KINDS = ("raw", "gzip", "bzip2", "xz", "blosc", "zstd")


class TestSuite(FormatSuite):
    format = "n5"
    suffix = ".n5"
    golden = GOLDEN

    def files(self, path):
        """Attributes of the top and of an array, and blocks of each packing."""
        names = ("attributes.json", "fixed/attributes.json", "text/offsets/0", "fixed/0/0/0", "number/0")
        return [Path(path, name) for name in names]


# --- by other hands -----------------------------------------------------------------------------------


@in_one_test("kind", KINDS)
def test_arrays_of_tensorstore(kind):
    # Its axes are those of N5, ours those of NumPy.
    expected = np.load(GOLDEN / "n5" / f"{kind}.npy").T
    with bp.open(GOLDEN / "n5" / kind) as reader:
        assert reader.format == "n5"
        assert dict(reader.schema) == {"data": bp.Tensor("uint16", (21, 37))}
        assert np.array_equal(reader.read(range(5))["data"], expected)
        assert np.array_equal(reader.read([4, 0, 4])["data"], expected[[4, 0, 4]])
        assert reader.facts()["chunks of data"] == f"5×8×16 uint16 (1.25 KiB), {kind}"
    assert bp.verify(GOLDEN / "n5" / kind, decode=True).problems == []


@pytest.mark.parametrize("kind", KINDS)
def test_damaged_blocks(kind, tmp_path):
    shutil.copytree(GOLDEN / "n5" / kind, tmp_path / "a.n5")
    block = tmp_path / "a.n5" / "1" / "1" / "0"
    whole = block.read_bytes()
    rng = np.random.default_rng(3)
    for size in [*rng.integers(0, len(whole), 12).tolist(), len(whole) - 1, 0]:
        block.write_bytes(whole[:size])
        with bp.open(tmp_path / "a.n5") as reader, pytest.raises(bp.DamagedError) as caught:
            reader.read([2])
        assert caught.value.path == str(block)
        assert (caught.value.sample, caught.value.field) == (2, "data")
    for place in rng.integers(0, len(whole), 25):
        broken = bytearray(whole)
        broken[place] ^= 1 << int(rng.integers(8))
        block.write_bytes(broken)
        with bp.open(tmp_path / "a.n5") as reader:
            try:
                reader.read([2])
            except bp.DamagedError:
                continue
    # A block that is not there is zeros, unless that is not wanted.
    block.unlink()
    with bp.open(tmp_path / "a.n5") as reader:
        assert not reader.read([2])["data"][0, 8:16, 16:32].any()
    with (
        bp.open(tmp_path / "a.n5", missing="error") as reader,
        pytest.raises(bp.DamagedError, match="missing"),
    ):
        reader.read([2])


@pytest.mark.parametrize(
    ("compression", "suffix"), first(2, [("auto", ".n5.zip"), *((kind, ".n5") for kind in n5.PACKINGS)])
)
def test_every_kind_comes_back(compression, suffix, tmp_path):
    cases = [case for case in all_cases().values() if len(case[1]) >= 2]
    schema = {f"f{n}": field for n, (field, _) in enumerate(cases)}
    samples = [{f"f{n}": item[row % len(item)] for n, (_, item) in enumerate(cases)} for row in range(7)]
    path = tmp_path / f"a{suffix}"
    with bp.create(path, schema, compression=compression, chunk_samples=3) as out:
        for sample in samples:
            out.append(sample)
    with bp.open(path) as reader:
        check_samples(reader, schema, samples)
    assert bp.verify(path, decode=True).problems == []


@pytest.mark.reference
@in_one_test("compression", n5.PACKINGS)
def test_tensorstore_reads_what_we_write(compression, tmp_path):
    tensorstore = pytest.importorskip("tensorstore")
    x = np.random.default_rng(0).random((25, 3, 2)).astype("float32")
    schema = {"x": bp.Tensor("float32", (3, 2)), "n": bp.Int("uint16"), "wave": bp.Tensor("complex64")}
    with bp.create(tmp_path / "a.n5", schema, compression=compression, chunk_samples=10) as out:
        for row in range(25):
            out.append({"x": x[row], "n": row, "wave": np.complex64(row + 2j)})

    def read(name):
        kvstore = {"driver": "file", "path": str(tmp_path / "a.n5" / name)}
        return tensorstore.open({"driver": "n5", "kvstore": kvstore}).result().read().result().T

    assert np.array_equal(read("x"), x)
    assert read("n").tolist() == list(range(25))
    assert read("wave").tolist() == [[row, 2] for row in range(25)]


@pytest.mark.reference
def test_groups_of_tensorstore_and_sparse_arrays(tmp_path):
    tensorstore = pytest.importorskip("tensorstore")
    for name in ("a/deep", "b"):
        array = tensorstore.open(
            {
                "driver": "n5",
                "kvstore": {"driver": "file", "path": str(tmp_path / "c.n5" / name)},
                "metadata": {
                    "dimensions": [4, 10], "blockSize": [3, 4], "dataType": "int16",
                    "compression": {"type": "gzip"},
                },
                "create": True,
            }
        ).result()  # fmt: skip
        array[:, 5:] = np.arange(1, 21, dtype="int16").reshape(4, 5)
    (tmp_path / "c.n5" / "attributes.json").write_text('{"n5": "4.0.0"}')
    expected = np.zeros((10, 4), "int16")
    expected[5:] = np.arange(1, 21).reshape(4, 5).T
    with bp.open(tmp_path / "c.n5") as reader:
        assert dict(reader.schema) == {"a.deep": bp.Tensor("int16", (4,)), "b": bp.Tensor("int16", (4,))}
        assert reader.facts()["version"] == "N5 4.0.0"
        for column in reader.read(range(10)).values():
            assert np.array_equal(column, expected)


def test_below_a_url(tmp_path):
    fsspec = pytest.importorskip("fsspec")
    with bp.create(tmp_path / "a.n5", {"n": bp.Int(), "image": bp.Image()}) as out:
        for n in range(9):
            out.append({"n": n, "image": jpeg()})
    memory = fsspec.filesystem("memory")
    for file in [path for path in (tmp_path / "a.n5").rglob("*") if path.is_file()]:
        memory.pipe(f"/x.n5/{file.relative_to(tmp_path / 'a.n5')}", file.read_bytes())
    try:
        with bp.open("memory://x.n5") as reader:
            assert reader.read([8, 1])["n"].tolist() == [8, 1]
            assert reader.read([3])["image"][0].tobytes() == jpeg()
    finally:
        memory.rm("/x.n5", recursive=True)


WRITES_A_PART = """
import sys
import numpy as np
from batchplant.formats import n5
path, part = sys.argv[1], int(sys.argv[2])
unit = n5.range_unit(path)
for start in range(part * unit, 500, 2 * unit):
    rows = np.arange(start, min(start + unit, 500))
    n5.write_range(path, start, {"n": rows, "ok": rows % 2 == 0})
"""


# Zarr shares the code, and is written by processes in every run.
@pytest.mark.exhaustive
def test_processes_write_ranges_of_one_dataset(tmp_path):
    path = str(tmp_path / "a.n5")
    n5.allocate(path, {"n": bp.Int(), "ok": bp.Bool()}, 500, chunk_samples=30)
    commands = [[sys.executable, "-c", WRITES_A_PART, path, str(part)] for part in range(2)]
    assert [item.returncode for item in processes.run_together(*commands)] == [0] * 2
    with bp.open(path) as reader:
        assert reader.read(range(500))["n"].tolist() == list(range(500))
        assert reader.read(range(500))["ok"].tolist() == [n % 2 == 0 for n in range(500)]


# --- lies ---------------------------------------------------------------------------------------------


def attributes(**changes):
    return {
        "dimensions": [2, 4], "blockSize": [2, 4], "dataType": "uint8",
        "compression": {"type": "raw"}, **changes,
    }  # fmt: skip


def block(*sizes, mode=0, axes=None, data=bytes(8)):
    axes = len(sizes) if axes is None else axes
    return struct.pack(f">HH{len(sizes)}I", mode, axes, *sizes) + data


LIES = [
    (attributes(dataType="string"), block(2, 4)),
    (attributes(dataType=None), block(2, 4)),
    (attributes(compression={"type": "lz4"}), block(2, 4)),
    (attributes(compression={}), block(2, 4)),
    (attributes(dimensions=[2, -4]), block(2, 4)),
    (attributes(dimensions=[2, 2**63]), block(2, 4)),
    (attributes(dimensions="24"), block(2, 4)),
    (attributes(dimensions=[2.0, 4.0]), block(2, 4)),
    (attributes(blockSize=[2, 0]), block(2, 4)),
    (attributes(blockSize=[2]), block(2, 4)),
    (attributes(blockSize=None), block(2, 4)),
    (attributes(blockSize=[2**40, 2**40]), block(2, 4)),
    (attributes(), block(2, 4, mode=2)),
    (attributes(), block(2, 4, axes=3)),
    (attributes(), block(2, 5)),
    (attributes(), block(4, 2)),
    (attributes(), block(2, 2**32 - 1)),
    (attributes(), block(2, 4, data=bytes(7))),
    (attributes(), block(2, 4, data=bytes(9))),
    (attributes(), block(2, 4, mode=1, data=struct.pack(">I", 9) + bytes(8))),
    (attributes(dataType="int64"), block(2, 4)),
    (attributes(compression={"type": "gzip"}), block(2, 4)),
    (attributes(compression={"type": "blosc"}), block(2, 4, data=bytes([2, 1, 0, 1]) + b"\xff" * 12)),
]


@in_one_test(("document", "data"), LIES)
def test_attributes_and_blocks_that_lie(document, data, tmp_path):
    top = tmp_path / "a.n5"
    (top / "0").mkdir(parents=True)
    (top / "attributes.json").write_text(json.dumps(document))
    (top / "0" / "0").write_bytes(data)

    def read():
        with bp.open(top, format="n5") as reader:
            reader.read([0, 3])

    with cases.memory_bounded(1000), pytest.raises(bp.BatchplantError):
        read()


def test_a_block_of_mode_1_and_one_that_is_cut_at_the_edge(tmp_path):
    top = tmp_path / "a.n5"
    (top / "0").mkdir(parents=True)
    (top / "attributes.json").write_text(json.dumps(attributes(dimensions=[2, 6])))
    (top / "0" / "0").write_bytes(block(2, 4, mode=1, data=struct.pack(">I", 8) + bytes(range(8))))
    (top / "0" / "1").write_bytes(block(2, 2, data=bytes(range(8, 12))))
    with bp.open(top) as reader:
        assert reader.read(range(6))["data"].tolist() == np.arange(12).reshape(6, 2).tolist()
        spans = reader.spans("data", [5, 0])
        for file, start, size, row in zip(spans.file, spans.start, spans.size, (5, 0), strict=True):
            data = Path(spans.files[file]).read_bytes()[start : start + size]
            assert list(data) == [2 * row, 2 * row + 1]


def test_what_is_no_container(tmp_path):
    (tmp_path / "a.n5").mkdir()
    with pytest.raises(bp.NotFoundError, match="no N5 container"):
        bp.open(tmp_path / "a.n5", format="n5")
    (tmp_path / "a.n5" / "attributes.json").write_text("[" * 100_000)
    with pytest.raises(bp.DamagedError, match=r"attributes\.json: the metadata is damaged"):
        bp.open(tmp_path / "a.n5", format="n5")


def test_one_array_that_is_not_read_leaves_the_others(tmp_path):
    top = tmp_path / "a.n5"
    for name, more in (("x", {}), ("odd", {"compression": {"type": "lossy"}})):
        (top / name / "0").mkdir(parents=True)
        (top / name / "attributes.json").write_text(json.dumps(attributes(dimensions=[2, 4]) | more))
        (top / name / "0" / "0").write_bytes(block(2, 4, data=bytes(range(8))))
    (top / "attributes.json").write_text(json.dumps({"n5": "2.0.0"}))
    with bp.open(top) as reader:
        assert list(reader.schema) == ["x"]
        assert "odd: the compression 'lossy' is not read" in reader.facts()["left out"]
    with pytest.raises(bp.SchemaError, match="'lossy' is not read"):
        bp.open(top, fields=["odd"])


def test_an_array_below_a_folder_without_attributes_is_recognised(tmp_path):
    """As tensorstore writes it: no attributes of the top."""
    for below in ("v", "setup0/timepoint0/s0"):
        top = tmp_path / f"{below.count('/')}.n5"
        (top / below / "0").mkdir(parents=True)
        (top / below / "attributes.json").write_text(json.dumps(attributes()))
        with bp.open(top) as data, bp.open(top, format="n5") as named:
            assert data.format == "n5"
            assert data.schema == named.schema
    (tmp_path / "other.n5" / "v").mkdir(parents=True)
    with pytest.raises(bp.UnknownFormatError):
        bp.open(tmp_path / "other.n5")


def test_the_missing_library_is_asked_for_by_the_name_of_the_format(tmp_path, monkeypatch):
    path = tmp_path / "made.n5"
    with bp.create(path, {"x": bp.Int()}, compression="zstd") as out:
        out.append({"x": 1})
    for name in ("numcodecs", "numcodecs.zstd", "numcodecs.blosc", "numcodecs.lz4"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(bp.MissingLibraryError, match=r"batchplant\[n5\]"):
        bp.open(path)[0]
    with pytest.raises(bp.MissingLibraryError, match=r"batchplant\[n5\]"):
        bp.create(tmp_path / "other.n5", {"x": bp.Int()}, compression="zstd")
