"""HDF5: the suite, files that h5py or nobody honest wrote, chunks, and a file that grows."""

import lzma
import multiprocessing
import os
import pickle
import shutil
import sys
import zlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest

import batchplant as bp
import processes
from batchplant.formats.hdf5 import layout, stored
from batchplant.ops import CenterCrop
from batchplant.order import orders
from batchplant.storage import partial_folder
from batchplant.testing import FormatSuite
from batchplant.testing.cases import cells, flips, jpeg, memory_bounded, pixels, survive
from repository import GOLDEN
from variants import exhaustive, in_one_test

h5py = pytest.importorskip("h5py")


class TestSuite(FormatSuite):
    format = "hdf5"
    suffix = ".h5"
    golden = GOLDEN
    # HDF5's strings end at a NUL; that it is said, and that packed holds it, is tested below.
    leave_out = ("text with NUL",)

    def _golden_of_others(self) -> Iterator[Path]:
        # AnnData lies in HDF5.
        return (path for path in super()._golden_of_others() if path.suffix != ".h5ad")


class TestPackedAndCompressed(FormatSuite):
    format = "hdf5"
    suffix = ".h5"
    # The metadata is read as that of the other suite, and chunks and offsets are damaged further below.
    wraps = True
    options: ClassVar = {"layout": "packed", "compression": "gzip", "chunk": 3}


# --- what others wrote --------------------------------------------------------------------------------

RECORDS = np.zeros(12, [("a", "<i4"), ("text", h5py.string_dtype()), ("b", ">f8", (2,)), ("c", "<c8")])
RECORDS["a"], RECORDS["text"], RECORDS["b"] = range(12), [f"№ {n}" for n in range(12)], [[1.5, -2]] * 12
RECORDS["c"] = 1 + 2j
PLAIN = {
    "x": np.arange(12),
    "big": np.arange(24, dtype=">f4").reshape(12, 2),
    "flag": np.arange(12) % 2 == 0,
    "half": np.linspace(0, 1, 12, dtype=np.float16),
    "complex": np.arange(12) * 1j,
}


def written_by_h5py(path, libver="earliest", **how):
    with h5py.File(path, "w", libver=libver, **how) as file:
        for name, array in PLAIN.items():
            file[f"plain/{name}"] = array
        file["records"] = RECORDS
        gzip = {"compression": "gzip", "shuffle": True, "fletcher32": True}
        file.create_dataset("packed", data=np.arange(1200).reshape(12, 10, 10), chunks=(5, 4, 10), **gzip)
        file.create_dataset("lzf", data=np.arange(12, dtype="i2"), chunks=(5,), compression="lzf")
        file.create_dataset("scaled", data=np.arange(12), chunks=(5,), scaleoffset=0)
        file.create_dataset("chunked", data=np.arange(12.0), chunks=(5,), maxshape=(None,))
        file.create_dataset("text", data=["größe" * n for n in range(12)], dtype=h5py.string_dtype())
        file.create_dataset(
            "text lzf", data=["größe" * n for n in range(12)], dtype=h5py.string_dtype(), compression="lzf"
        )
        file["fixed"] = np.array([b"abc", b"de", b"", b"x"] * 3)
        file["class"] = np.array([0, 1, 2] * 4, h5py.enum_dtype({"cat": 0, "dog": 1, "owl": 2}))
        vlen = file.create_dataset("vlen", (12,), h5py.vlen_dtype(np.dtype(">i4")))
        blob = file.create_dataset("blob", (12,), h5py.vlen_dtype(np.uint8))
        for row in range(12):
            vlen[row] = np.arange(row)
            blob[row] = np.full(row * 500, row, np.uint8)
        file.create_dataset("empty", (12, 2), "f4", fillvalue=7)
        file.create_dataset("sparse", (12,), "i4", chunks=(4,), compression="gzip", fillvalue=-1)[4:8] = 5
        file.attrs["title"] = "größe"
        file["text"].attrs["codes"] = [1, 2]


@pytest.mark.parametrize("how", [None, {"libver": "latest", "userblock_size": 1024}, *exhaustive({})])
def test_files_of_h5py(how, tmp_path):
    if how is None:
        shutil.copy(GOLDEN / "hdf5" / "h5py.h5", tmp_path / "a.h5")
    else:
        written_by_h5py(tmp_path / "a.h5", **how)
    with bp.open(tmp_path / "a.h5") as reader:
        assert dict(reader.schema) == {
            "blob": bp.Bytes(),
            "chunked": bp.Float(),
            "class": bp.Int("uint8", names=("cat", "dog", "owl")),
            "empty": bp.Tensor("float32", (2,)),
            "fixed": bp.Text(),
            "lzf": bp.Int("int16"),
            "packed": bp.Tensor("int64", (10, 10)),
            "plain.big": bp.Tensor("float32", (2,)),
            "plain.complex": bp.Tensor("complex128"),
            "plain.flag": bp.Bool(),
            "plain.half": bp.Float("float16"),
            "plain.x": bp.Int(),
            "records.a": bp.Int("int32"),
            "records.b": bp.Tensor("float64", (2,)),
            "records.c": bp.Tensor("complex64"),
            "records.text": bp.Text(),
            "scaled": bp.Int(),
            "sparse": bp.Int("int32"),
            "text": bp.Text(),
            "text lzf": bp.Text(),
            "vlen": bp.Tensor("int32", (None,)),
        }
        for row, sample in enumerate(reader):
            assert sample["blob"] == bytes([row]) * (row * 500)
            assert sample["text"] == sample["text lzf"] == "größe" * row
            assert sample["fixed"] == ["abc", "de", "", "x"][row % 4]
            assert sample["vlen"].tolist() == list(range(row))
            assert np.array_equal(sample["packed"], np.arange(1200).reshape(12, 10, 10)[row])
            assert (sample["lzf"], sample["chunked"], sample["class"]) == (row, row, row % 3)
            assert sample["scaled"] == row
            assert sample["empty"].tolist() == [7, 7]
            assert sample["sparse"] == (5 if 4 <= row < 8 else -1)
            assert (sample["records.a"], sample["records.text"]) == (row, f"№ {row}")
            assert sample["records.b"].tolist() == [1.5, -2]
            assert sample["records.c"] == 1 + 2j
            for name, array in PLAIN.items():
                assert np.array_equal(sample[f"plain.{name}"], array[row])
        in_place = {name for name in reader.schema if reader.spans(name) is not None}
        assert in_place == {
            "blob", "chunked", "class", "plain.complex", "plain.flag", "plain.half", "plain.x",
            "records.a", "records.c", "records.text", "text", "text lzf",
        }  # fmt: skip
        data = (tmp_path / "a.h5").read_bytes()
        for name in in_place:
            spans = reader.spans(name)
            runs = zip(spans.start, spans.size, strict=True)
            assert [data[at : at + size] for at, size in runs] == cells(reader)[name]
        assert reader.attributes == {"": {"title": "größe"}, "text": {"codes": [1, 2]}}
    assert bp.verify(tmp_path / "a.h5", decode=True).problems == []


def test_every_integer_and_padding(tmp_path):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        for padding in (h5py.h5t.STR_NULLTERM, h5py.h5t.STR_NULLPAD, h5py.h5t.STR_SPACEPAD):
            kind = h5py.h5t.C_S1.copy()
            kind.set_size(5)
            kind.set_strpad(padding)
            space = h5py.h5s.create_simple((3,))
            writer = h5py.h5d.create(file.id, f"s{padding}".encode(), kind, space)
            writer.write(h5py.h5s.ALL, h5py.h5s.ALL, np.frombuffer(b"ab\0c abcde a   ", "S5").copy(), kind)
        file["not text"] = np.array([b"\xff\xfe", b"a", b"b"])
    result = list(bp.open(tmp_path / "a.h5"))
    assert [sample["s0"] for sample in result] == ["ab", "abcde", " a   "]
    assert [sample["s1"] for sample in result] == ["ab\0c ", "abcde", " a   "]
    assert [sample["s2"] for sample in result] == ["ab\0c", "abcde", " a"]
    assert [sample["not text"] for sample in result] == [b"\xff\xfe", b"a", b"b"]


def test_images_in_variable_length_cells_are_decoded_where_they_lie(tmp_path):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        result = file.create_dataset("image", (20,), h5py.vlen_dtype(np.uint8))
        for row in range(20):
            result[row] = np.frombuffer(jpeg(16, 8 + row), np.uint8)
        file["label"] = np.arange(20)
    with bp.open(tmp_path / "a.h5") as reader:
        assert reader.schema == bp.Schema(image=bp.Image("jpeg"), label=bp.Int())
        assert reader.spans("image", [3]).size[0] == len(jpeg(16, 11))
        loader = bp.Loader(reader, 5, pipelines={"image": [CenterCrop(8)]}, order="quasi_random")
        batches = list(loader)
        assert {batch["image"].shape for batch in batches} == {(5, 8, 8, 3)}
        assert sorted(np.concatenate([batch["label"] for batch in batches]).tolist()) == list(range(20))
        assert cells(reader)["image"][4] == jpeg(16, 12)


def test_what_leads_out_of_the_file_is_not_followed(tmp_path):
    with h5py.File(tmp_path / "other.h5", "w") as file:
        file["secret"] = np.arange(3)
    layout = h5py.VirtualLayout((3,), "i8")
    layout[:] = h5py.VirtualSource(tmp_path / "other.h5", "secret", (3,))
    (tmp_path / "raw").write_bytes(bytes(24))
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["x"] = np.arange(3)
        file["soft"] = h5py.SoftLink("/x")
        file["outside"] = h5py.ExternalLink(str(tmp_path / "other.h5"), "/secret")
        file.create_virtual_dataset("virtual", layout)
        file.create_dataset("external", (3,), "i8", external=[(str(tmp_path / "raw"), 0, 24)])
        file["reference"] = np.array([file["x"].ref] * 3, dtype=h5py.ref_dtype)
        file["opaque"] = np.zeros(3, "V5")
        file["single"] = 5
        file["loop/again"] = file["/"]
        file["texts"] = np.array([["a"], ["b"], ["c"]], dtype=h5py.string_dtype())
    with bp.open(tmp_path / "a.h5") as reader:
        assert list(reader.schema) == ["x"]
        output = reader.facts()["left out"]
    for part in ("soft: a soft link", "outside: a link to another file", "virtual: it is a virtual dataset",
                 "external: its data lies in other files", "reference: reference values have no field kind",
                 "opaque: opaque values", "single: a single value has no samples", "loop.again: another name",
                 "texts: arrays of text"):  # fmt: skip
        assert part in output
    with pytest.raises(bp.SchemaError, match="field 'virtual': it is a virtual dataset"):
        bp.open(tmp_path / "a.h5", fields=["x", "virtual"])


def test_datasets_of_differing_length(tmp_path):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["train/x"], file["train/y"] = np.arange(6), np.arange(6)
        file["test/x"], file["test/y"] = np.arange(3), np.arange(3)
    with pytest.raises(bp.SchemaError, match=r"train.x 6.*choose equal ones with fields"):
        bp.open(tmp_path / "a.h5")
    assert list(bp.open(tmp_path / "a.h5", group="test"))[2] == {"x": 2, "y": 2}
    assert list(bp.open(tmp_path / "a.h5", fields=["train.y"]))[5] == {"train.y": 5}
    with pytest.raises(bp.SchemaError, match=r"no dataset .*; the datasets are: test\.x"):
        bp.open(tmp_path / "a.h5", fields=["z"])
    with pytest.raises(bp.OptionError, match="there is no group 'nowhere'"):
        bp.open(tmp_path / "a.h5", group="nowhere")
    with h5py.File(tmp_path / "a.h5", "a") as file:
        file["train/mean"] = np.zeros(2)
        del file["test"]
    with bp.open(tmp_path / "a.h5") as reader:
        assert list(reader.schema) == ["train.x", "train.y"]
        assert reader.facts()["left out"] == "train.mean: it has 2 rows, and the others 6"


# --- what we write ------------------------------------------------------------------------------------


def test_h5py_reads_what_we_write(tmp_path):
    schema = {
        "group.n": bp.Int("int16", names=("a", "b")),
        "text": bp.Text(optional=True),
        "image": bp.Image(),
        "ragged": bp.Tensor("float32", (None, 2)),
        "when": bp.Tensor("datetime64[ms]", (2,)),
        "maybe": bp.Float(optional=True),
    }
    when = np.array(["2020-01-01", "NaT"], "datetime64[ms]")
    about = {"": {"title": "größe"}, "text": {"codes": np.arange(3)}}
    with bp.create(tmp_path / "a.h5", schema, attributes=about) as out:
        ragged = np.arange(6, dtype=np.float32).reshape(3, 2)
        one = {"group.n": 1, "text": "größe", "image": pixels(2, 3, 3), "ragged": ragged, "when": when}
        out.append({**one, "maybe": 0.5})
        out.append({**one, "text": None, "image": jpeg(), "ragged": ragged[:0], "maybe": None})
    with h5py.File(tmp_path / "a.h5") as file:
        assert file["group/n"][:].tolist() == [1, 1]
        assert file["group/n"].dtype == np.int16
        assert file["text"].asstr()[:].tolist() == ["größe", ""]
        assert file["image"][0].tobytes() == pixels(2, 3, 3).tobytes()
        assert file["image"][1].tobytes() == jpeg()
        assert file["ragged"][0].tolist() == list(range(6))
        assert file["when"][0].view("M8[ms]").tolist() == when.tolist()
        assert file["maybe"][:].tolist() == [0.5, 0]
        assert file["batchplant/valid/maybe"][:].tolist() == [True, False]
        assert file["batchplant/shape/image"][:].tolist() == [[2, 3, 3], [0, 0, 0]]
        assert file.attrs["title"] == "größe"
    with bp.open(tmp_path / "a.h5") as reader:
        assert reader.attributes == {"": {"title": "größe"}, "text": {"codes": [0, 1, 2]}}
    bp.convert(tmp_path / "a.h5", tmp_path / "b.h5", fields=["text", "maybe"], rename={"text": "said"})
    with bp.open(tmp_path / "b.h5") as reader:
        assert reader.attributes == {"": {"title": "größe"}, "said": {"codes": [0, 1, 2]}}
        assert list(bp.open(tmp_path / "a.h5", fields=["maybe"])) == [{"maybe": 0.5}, {"maybe": None}]


def test_what_our_first_version_wrote():
    with bp.open(GOLDEN / "hdf5" / "ours.h5") as reader:
        assert list(reader) == [{"n": n, "t": None if n == 1 else f"№ {n}", "b": bytes(n)} for n in range(3)]
        assert reader.schema == bp.Schema(n=bp.Int("int16"), t=bp.Text(optional=True), b=bp.Bytes())


def test_text_with_nul_is_refused_or_packed(tmp_path):
    schema = {"n": bp.Int(), "t": bp.Text()}
    out = bp.create(tmp_path / "a.h5", schema)
    for text in ("fine", "a\0b"):
        out.append({"n": 1, "t": text})
    with pytest.raises(bp.EncodeError, match=r'sample 1, field \'t\'.*layout="packed"'):
        out.close()
    with bp.create(tmp_path / "a.h5", schema, on_error="skip") as out:
        for text in ("a\0b", "fine", "\0", "also"):
            out.append({"n": 1, "t": text})
    assert [problem.sample for problem in out.skipped] == [0, 2]
    assert [sample["t"] for sample in bp.open(tmp_path / "a.h5")] == ["fine", "also"]


def test_many_class_names(tmp_path):
    names = tuple(f"class № {n}" for n in range(20_000))
    with bp.create(tmp_path / "a.h5", {"n": bp.Int(names=names)}) as out:
        out.append({"n": 19_999})
    assert bp.open(tmp_path / "a.h5").schema["n"].names == names


def test_equal_data_gives_equal_files(tmp_path):
    for name in ("a", "b"):
        with bp.create(tmp_path / f"{name}.h5", {"n": bp.Int(), "t": bp.Text()}) as out:
            for number in range(50):
                out.append({"n": number, "t": str(number)})
    assert (tmp_path / "a.h5").read_bytes() == (tmp_path / "b.h5").read_bytes()


@in_one_test(
    ("schema", "options", "reason"),
    [
        ({"a/b": bp.Int()}, {}, "rename the field"),
        ({"a..b": bp.Int()}, {}, "rename the field"),
        ({"batchplant.x": bp.Int()}, {}, "rename the field"),
        ({"a": bp.Int(), "a.b": bp.Int()}, {}, "'a' would be a dataset and the group of 'a.b'"),
        ({"a": bp.Bytes(), "a.data": bp.Int()}, {"layout": "packed"}, "rename one field"),
        ({"a": bp.Int()}, {"layout": "wide"}, "layout is vlen or packed"),
        ({"a": bp.Int()}, {"compression": "rar"}, "compression is one of none, gzip, lzf, zstd"),
        ({"a": bp.Int()}, {"chunk": 0}, "a chunk of 1 or more"),
        ({"a": bp.Int()}, {"attributes": {"b": {}}}, "attributes belong to '' or a field"),
    ],
)
def test_what_cannot_be_written(schema, options, reason, tmp_path):
    with pytest.raises(bp.OptionError, match=reason):
        bp.create(tmp_path / "a.h5", schema, **options)
    assert os.listdir(tmp_path) == []


def test_without_the_library_the_error_says_what_to_install(tmp_path, monkeypatch):
    written_by_h5py(tmp_path / "a.h5")
    monkeypatch.setitem(sys.modules, "h5py", None)
    for name in ("layout",):
        monkeypatch.delitem(sys.modules, f"batchplant.formats.hdf5.{name}", raising=False)
        monkeypatch.delattr(f"batchplant.formats.hdf5.{name}", raising=False)
    for use in (lambda: bp.open(tmp_path / "a.h5"), lambda: bp.create(tmp_path / "b.h5", {"n": bp.Int()})):
        with pytest.raises(bp.MissingLibraryError, match=r'pip install "batchplant\[hdf5\]"'):
            use()


# --- chunks -------------------------------------------------------------------------------------------


def chunked(path, rows=600, **how):
    values = np.random.default_rng(0).integers(0, 9, (rows, 50), np.int32)
    with bp.create(path, {"x": bp.Tensor("int32", (50,)), "n": bp.Int()}, **how) as out:
        out.append(bp.Columns(x=values, n=np.arange(rows)))
    return values


@pytest.mark.parametrize("compression", ["gzip", "lzf", "zstd", "blosc", "blosc2", "lz4", "bitshuffle"])
def test_a_shuffled_epoch_unpacks_each_chunk_once_in_a_window(compression, tmp_path):
    if compression not in ("gzip", "lzf"):
        pytest.importorskip("hdf5plugin")
    values = chunked(tmp_path / "a.h5", compression=compression, chunk=20)
    with bp.open(tmp_path / "a.h5") as reader:
        blocks = reader.blocks()
        assert blocks.tolist() == [n // 20 for n in range(600)]
        order = orders.quasi_random(600, seed=1, epoch=0, blocks=blocks, window=4).take(np.arange(600))
        for start in range(0, 600, 16):
            wanted = order[start : start + 16]
            assert np.array_equal(reader.read(wanted, ["x"])["x"], values[wanted])
        assert reader._cache.misses == 30
        assert "x: chunks of 20×50 (4000 bytes)" in reader.facts()["layout"]
        assert compression in reader.facts()["layout"]
        assert reader.facts()["chunk size"] == "20 samples in a chunk, as asked for"
    with h5py.File(tmp_path / "a.h5") as file:
        assert np.array_equal(file["x"][:], values)


def test_the_chunk_size_is_chosen_from_the_data(tmp_path):
    chunked(tmp_path / "a.h5", rows=9000, compression="gzip")
    with bp.open(tmp_path / "a.h5") as reader:
        assert "x: chunks of 5242×50 (1048400 bytes), shuffle+gzip" in reader.facts()["layout"]
        assert reader.facts()["chunk size"].startswith("about 1 MiB of samples in a chunk")
    chunked(tmp_path / "b.h5")
    assert bp.open(tmp_path / "b.h5").facts()["chunk size"].startswith("no chunks: nothing is compressed")


@pytest.mark.parametrize("cache", [None, 3000])
@pytest.mark.parametrize("compression", [None, "gzip", "lzf"])
def test_chunks_that_split_samples_and_chunks_that_are_not_there(compression, cache, tmp_path):
    values = np.full((23, 7, 9, 3), 3, np.uint8)
    with h5py.File(tmp_path / "a.h5", "w") as file:
        result = file.create_dataset(
            "x", values.shape, "u1", chunks=(5, 4, 2, 3), fillvalue=3, compression=compression
        )
        for at in [(slice(5, 10), slice(0, 4)), (slice(20, 23), slice(4, 7))]:
            values[at] = result[at] = pixels(*values[at].shape)
    with bp.open(tmp_path / "a.h5", cache=cache) as reader:
        wanted = np.random.default_rng(0).permutation(23)
        assert np.array_equal(reader.read(wanted)["x"], values[wanted])
        assert reader._cache.bytes <= (cache or 1 << 30)


def test_damaged_chunks_are_named_sample_by_sample(tmp_path):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file.create_dataset("x", data=np.arange(40), chunks=(10,), fletcher32=True)
        info = file["x"].id.get_chunk_info(2)
    data = bytearray((tmp_path / "a.h5").read_bytes())
    data[info.byte_offset + 3] ^= 1
    (tmp_path / "a.h5").write_bytes(data)
    problems = bp.verify(tmp_path / "a.h5").problems
    assert [problem.sample for problem in problems] == list(range(20, 30))
    assert {problem.message for problem in problems} == {"the checksum of a chunk is wrong"}
    assert problems[0].offset == info.byte_offset


@in_one_test("size", [0, 1, 2, 7, 100_001])
def test_fletcher32_is_that_of_the_library(size, tmp_path):
    if size:
        data = pixels(size)
        with h5py.File(tmp_path / "a.h5", "w") as file:
            file.create_dataset("x", data=data, chunks=(size,), fletcher32=True)
            output = int.from_bytes(file["x"].id.read_direct_chunk((0,))[1][-4:], "little")
        assert stored._is_sum(stored.fletcher32(data), output)
    assert stored.fletcher32(np.zeros(size, np.uint8)) == (0, 0)


@pytest.mark.parametrize("compression", ["gzip", "lzf"])
def test_a_forked_process_reads(compression, tmp_path):
    def open_objects() -> int:
        return h5py.h5f.get_obj_count(h5py.h5f.OBJ_ALL, h5py.h5f.OBJ_FILE)

    # Files that a test before this one has yet to drop.
    before = open_objects()
    values = chunked(tmp_path / "a.h5", compression=compression, chunk=20)
    with bp.open(tmp_path / "a.h5") as reader, ThreadPoolExecutor(2) as pool:
        busy = [pool.submit(reader.read, [n % 600]) for n in range(200)]
        context = multiprocessing.get_context("fork")
        queue = context.SimpleQueue()

        def read():
            try:
                queue.put(reader.read([599, 3])["x"].tolist())
            except BaseException as error:
                queue.put(repr(error))

        child = context.Process(target=read)
        with processes.started(child):
            assert queue.get() == values[[599, 3]].tolist()
            child.join(processes.PATIENCE)
            assert child.exitcode == 0
        assert [item.result()["n"][0] for item in busy] == [n % 600 for n in range(200)]
    assert open_objects() <= before


def test_a_file_that_this_process_has_open_already(tmp_path):
    values = chunked(tmp_path / "a.h5", compression="gzip")
    with h5py.File(tmp_path / "a.h5") as own, bp.open(tmp_path / "a.h5") as reader:
        assert reader.read([5])["x"].tolist() == own["x"][5:6].tolist() == values[5:6].tolist()


def test_a_closed_reader_says_so(tmp_path):
    chunked(tmp_path / "a.h5", compression="lzf")
    reader = bp.open(tmp_path / "a.h5")
    reader.close()
    with pytest.raises(bp.OptionError, match="it was closed"):
        reader.read([0])


# --- a file that grows --------------------------------------------------------------------------------


def test_swmr_sees_what_another_process_appends(tmp_path):
    path = tmp_path / "a.h5"
    with h5py.File(path, "w", libver="latest") as file:
        result = file.create_dataset("x", (4,), "i8", maxshape=(None,), chunks=(4,))
        result[:] = range(4)
        file.swmr_mode = True
        with bp.open(path, swmr=True) as reader:
            assert reader.read(range(4))["x"].tolist() == [0, 1, 2, 3]
            result.resize((10,))
            result[4:] = range(4, 10)
            result.flush()
            assert len(reader) == 4
            assert reader.refresh().read(range(10))["x"].tolist() == list(range(10))
            assert len(reader) == 4


# --- lies ---------------------------------------------------------------------------------------------


def vlen_file(path, count=3):
    with h5py.File(path, "w") as file:
        result = file.create_dataset("b", (count,), h5py.vlen_dtype(np.uint8))
        for row in range(count):
            result[row] = np.full(100 + row, row, np.uint8)
        file.attrs["title"] = "in a heap too"
        return result.id.get_offset()


@in_one_test(
    ("part", "value", "reason"),
    [
        ("heap", 2**64 - 1, "a heap outside of the file"),
        ("heap", 0, "in no heap"),
        ("number", 60_000, "not in its heap"),
        ("number", 0, "not in its heap"),
        ("count", 5000, "not in its heap"),
        ("count", 2**32 - 1, "not in its heap"),
    ],
)
def test_descriptors_that_lie(part, value, reason, tmp_path):
    path = tmp_path / "a.h5"
    start = vlen_file(path)
    data = bytearray(path.read_bytes())
    descriptors = np.frombuffer(data, stored.DESCRIPTOR, 3, start)
    descriptors[part][1] = value
    path.write_bytes(data)
    with memory_bounded(len(data)), bp.open(path) as reader:
        assert reader[2]["b"] == bytes([2]) * 102
        for read in (lambda: reader[1], lambda: reader.read([2, 1, 0]), lambda: reader.spans("b")):
            with pytest.raises(bp.DamagedError, match=reason) as caught:
                read()
            assert (caught.value.sample, caught.value.field) == (1, "b")


@in_one_test("size", [0, 8, 2**64 - 1, 2**64 - 16, 2**63])
def test_heaps_that_lie_hold_nobody_up(size, tmp_path):
    """The library runs for ever on some of these, when it is asked for the attribute."""
    path = tmp_path / "a.h5"
    vlen_file(path)
    data = bytearray(path.read_bytes())
    at = data.index(b"GCOL")
    data[at + 16 + 8 : at + 16 + 16] = size.to_bytes(8, "little")
    path.write_bytes(data)
    with memory_bounded(len(data)), bp.open(path) as reader:
        for row in range(3):
            with pytest.raises(bp.DamagedError, match="not in its heap"):
                reader[row]


def test_an_attribute_that_cannot_be_read_is_left_out(tmp_path):
    path = tmp_path / "a.h5"
    vlen_file(path)
    assert layout.read_texts(str(path), {"/": ["title"]}) != {}
    assert layout.read_texts(str(path), {"/": ["title"]}, timeout_seconds=0) == {}


@in_one_test(
    ("shape", "how"),
    [
        ((1 << 40,), {}),
        ((1 << 40,), {"chunks": (1 << 20,)}),
        ((1 << 40, 0), {}),
        ((1 << 40,), {"chunks": (1 << 20,), "compression": "gzip"}),
        ((3, 1 << 30), {"chunks": (3, 1 << 28), "compression": "gzip"}),
    ],
)
def test_datasets_that_are_said_to_be_huge_take_no_memory(shape, how, tmp_path):
    path = tmp_path / "a.h5"
    with h5py.File(path, "w") as file:
        file.create_dataset("x", shape, "u1", **how)
    with memory_bounded(path.stat().st_size), pytest.raises(bp.DamagedError) as caught:
        bp.open(path)[0]
    assert caught.value.path == str(path)


def test_a_bomb_is_not_unpacked(tmp_path):
    path = tmp_path / "a.h5"
    with h5py.File(path, "w") as file:
        result = file.create_dataset("x", (100,), "u1", chunks=(100,), compression="gzip")
        result.id.write_direct_chunk((0,), zlib.compress(bytes(200 << 20), 1))
    with memory_bounded(path.stat().st_size), bp.open(path) as reader, pytest.raises(bp.DamagedError):
        reader[0]


def test_a_note_that_does_not_fit(tmp_path):
    with bp.create(tmp_path / "a.h5", {"n": bp.Int(), "t": bp.Text(optional=True)}) as out:
        out.append({"n": 1, "t": None})
        out.append({"n": 1, "t": "x"})
    whole = (tmp_path / "a.h5").read_bytes()
    for change in (
        lambda file: file.__delitem__("n"),
        lambda file: (file.__delitem__("n"), file.__setitem__("n", np.arange(3))),
        lambda file: (file.__delitem__("n"), file.__setitem__("n", np.arange(2.0))),
        lambda file: (file.__delitem__("t"), file.__setitem__("t", np.arange(2))),
        lambda file: file.attrs.__setitem__("batchplant", np.bytes_(b"[")),
        lambda file: (file.__delitem__("batchplant/valid/t"), file.__setitem__("batchplant/valid/t", [True])),
    ):
        (tmp_path / "a.h5").write_bytes(whole)
        with h5py.File(tmp_path / "a.h5", "a") as file:
            change(file)
        with pytest.raises(bp.DamagedError) as caught:
            bp.open(tmp_path / "a.h5")
        assert caught.value.path == str(tmp_path / "a.h5")


# --- files of pandas, MATLAB and others -------------------------------------------------------------------


def test_a_table_of_pandas_opens_as_it_is_stored(tmp_path):
    path = tmp_path / "frame.h5"
    path.write_bytes(lzma.decompress((GOLDEN / "hdf5" / "pandas_table.h5.xz").read_bytes()))
    with bp.open(path, group="df") as reader:
        assert len(reader) == 10
        assert {"table.index", "table.values_block_0"} <= set(reader.schema)
        assert [sample["table.index"] for sample in reader] == list(range(10))
    for what, _ in survive(flips(path, 8), lambda: TestSuite().is_sound(str(path))):
        assert what


def test_single_values_are_no_columns(tmp_path):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["rate"], file["name"] = 44100, "x"
    with bp.open(tmp_path / "a.h5") as reader:
        assert list(reader) == [{"name": "x", "rate": 44100}]
    with h5py.File(tmp_path / "a.h5", "a") as file:
        file["x"] = np.arange(4)
    with bp.open(tmp_path / "a.h5") as reader:
        assert [sample["x"] for sample in reader] == [0, 1, 2, 3]
        assert "rate: a single value has no samples" in reader.facts()["left out"]
    with bp.open(tmp_path / "a.h5", fields=["rate"]) as reader:
        assert list(reader) == [{"rate": 44100}]


def test_an_error_about_lengths_names_the_ways(tmp_path):
    with h5py.File(tmp_path / "a.mat", "w") as file:
        file["train/x"], file["test/x"] = np.zeros((5, 2)), np.zeros((3, 2))
    with pytest.raises(
        bp.SchemaError, match=r'fields=\[…\], or those of a group with group="/test" or "/train"'
    ):
        bp.open(tmp_path / "a.mat", format="hdf5")
    with bp.open(tmp_path / "a.mat", format="hdf5", group="/train") as reader:
        assert len(reader) == 5


def test_a_strange_member_takes_nothing_away_from_the_others(tmp_path):
    kind = np.dtype([("n", "<i4"), ("blob", "V5"), ("words", "S3", (2,)), ("x", "<f8")])
    with h5py.File(tmp_path / "a.h5", "w") as file:
        rows = np.zeros(3, kind)
        rows["n"], rows["x"] = [1, 2, 3], [0.5, 1, 1.5]
        file["t"] = rows
    with bp.open(tmp_path / "a.h5") as reader:
        assert list(reader) == [{"t.n": n, "t.x": n / 2} for n in (1, 2, 3)]
        assert "t.blob" in reader.facts()["left out"]
        assert "t.words" in reader.facts()["left out"]
    with pytest.raises(bp.SchemaError, match="opaque"):
        bp.open(tmp_path / "a.h5", fields=["t.blob"])


ATTRIBUTES = {
    "": {"title": "Größe", "version": 3, "bounds": [0.5, 1.5], "names": ["a", "b"]},
    "x": {"unit": "m", "scale": 0.25},
    "t": {"language": "de"},
}


@pytest.mark.parametrize("name", ["a.zarr", *exhaustive("a.n5", "v2.zarr")])
def test_attributes_go_to_other_formats_and_back(name, tmp_path):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["x"] = np.arange(4)
        file.create_dataset("t", data=["a", "b", "c", "d"], dtype=h5py.string_dtype())
        for field, values in ATTRIBUTES.items():
            for key, value in values.items():
                file[field or "/"].attrs[key] = value
    options = {"zarr_format": 2} if name == "v2.zarr" else {}
    done = bp.convert(tmp_path / "a.h5", tmp_path / name, target_options=options)
    assert not any("attributes" in remark for remark in done.remarks)
    with bp.open(tmp_path / name) as reader:
        assert reader.attributes == ATTRIBUTES
    bp.convert(tmp_path / name, tmp_path / "b.h5", rename={"x": "y"})
    with bp.open(tmp_path / "b.h5") as reader:
        assert reader.attributes == {
            **{k: v for k, v in ATTRIBUTES.items() if k != "x"},
            "y": ATTRIBUTES["x"],
        }
    assert bp.verify(tmp_path / name, against=tmp_path / "a.h5").ok


def test_what_has_no_place_for_attributes_is_said(tmp_path):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["x"] = np.arange(4)
        file["x"].attrs["unit"], file.attrs["made"] = "m", 7
    done = bp.convert(tmp_path / "a.h5", tmp_path / "a.csv")
    assert "the source's attributes are not kept: made, x.unit" in done.remarks


def test_attributes_that_hdf5_has_no_type_for_are_json(tmp_path):
    given = {"": {"tree": {"a": [1, None]}, "nothing": None, "mixed": [1, "a"]}}
    with bp.create(tmp_path / "a.zarr", {"x": bp.Int()}, attributes=given) as out:
        out.append({"x": 1})
    assert bp.open(tmp_path / "a.zarr").attributes == given
    bp.convert(tmp_path / "a.zarr", tmp_path / "a.h5")
    with bp.open(tmp_path / "a.h5") as reader:
        assert reader.attributes == {"": {"tree": '{"a": [1, null]}', "nothing": "null", "mixed": '[1, "a"]'}}
    with pytest.raises(bp.OptionError, match="attributes belong to"):
        bp.create(tmp_path / "b.zarr", {"x": bp.Int()}, attributes={"y": {}})


@pytest.mark.parametrize("most", [400_000, *exhaustive(50_000, 900_000)])
def test_a_full_disk_is_an_error_and_no_signal(tmp_path, most):
    """The library does not survive a write that fails; here files may not grow beyond a size."""
    script = """
import resource, signal, sys
import batchplant as bp
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
most, outputs = int(sys.argv[1]), []
for layout, path in zip(("vlen", "packed"), sys.argv[2:]):
    outputs.append(bp.create(path, {"blob": bp.Bytes(), "x": bp.Int()}, layout=layout, workers=1))
    for number in range(1000):
        outputs[-1].append({"blob": bytes(1000), "x": number})
    outputs[-1].checkpoint()
resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))
for out in outputs:
    try:
        out.close()
    except OSError as error:
        print("said", error.strerror)
"""
    paths = [str(tmp_path / name) for name in ("vlen.h5", "packed.h5")]
    done = processes.run([sys.executable, "-c", script, str(most), *paths], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "said File too large\n" * 2
    for path in paths:
        assert not os.path.exists(path)
        assert partial_folder(path).exists()


def episodes(path, sizes, **more):
    with h5py.File(path, "w") as file:
        for number, steps in enumerate(sizes):
            group = file.create_group(f"data/demo_{number}")
            group["actions"] = np.full((steps, 2), number, np.float32)
            group["obs/state"] = np.arange(steps) + 100 * number
            for name, value in more.get(f"demo_{number}", {}).items():
                group[name] = value
        file["mask/train"] = np.arange(3)


def test_groups_that_match_a_pattern_are_joined(tmp_path):
    sizes = [3, 5, 0, *[2] * 9]
    episodes(tmp_path / "a.h5", sizes)
    with bp.open(tmp_path / "a.h5", group="data/*", group_field="episode") as data:
        assert list(data.schema) == ["actions", "obs.state", "episode"]
        assert len(data) == sum(sizes)
        # demo_2 comes before demo_10.
        names = [f"demo_{number}" for number, steps in enumerate(sizes) for _ in range(steps)]
        assert [sample["episode"] for sample in data] == names
        assert data[4]["obs.state"] == 101
        assert data[-1]["actions"].tolist() == [11, 11]
        assert data.boundaries().tolist() == [3, *range(8, 26, 2)]
        assert pickle.loads(pickle.dumps(data))[4]["episode"] == "demo_1"
        windows = bp.Windows(data.select(["obs.state"]), length=2)
        assert [window["obs.state"][0] for window in windows][:7] == [0, 1, 100, 101, 102, 103, 300]
        batches = list(bp.Loader(data, 8, order="quasi_random"))
        assert sum(len(batch["actions"]) for batch in batches) == len(data)
    with bp.open(tmp_path / "a.h5", group="data/demo_1?", fields=["obs.state"]) as data:
        assert [sample["obs.state"] for sample in data] == [1000, 1001, 1100, 1101]
    assert bp.verify(tmp_path / "a.h5", group="data/*").ok


def test_groups_that_do_not_match_or_differ(tmp_path):
    path = tmp_path / "a.h5"
    episodes(path, [3, 5], demo_1={"extra": np.arange(5)})
    with pytest.raises(bp.SchemaError, match="nothing in data/demo_0") as error:
        bp.open(path, group="data/*")
    assert error.value.field == "extra"
    assert len(bp.open(path, group="data/*", fields=["actions"])) == 8
    with pytest.raises(
        bp.OptionError, match=r"no group matches 'nowhere/\*'; there are data, mask, data/demo_0"
    ):
        bp.open(path, group="nowhere/*")
    with pytest.raises(bp.OptionError, match="group_field is for a pattern"):
        bp.open(path, group="data/demo_0", group_field="episode")
    with pytest.raises(bp.OptionError, match="a field 'actions' already"):
        bp.open(path, group="data/demo_0*", group_field="actions")
    assert list(bp.open(path, group="data/demo_0*", fields=["name"], group_field="name").schema) == ["name"]
    with h5py.File(path, "a") as file:
        file["data/demo_2"] = h5py.ExternalLink("/etc/passwd", "/")
        file["data/demo_3"] = h5py.SoftLink("/data/demo_0")
    assert len(bp.open(path, group="data/*", fields=["actions"])) == 8


def test_netcdf(tmp_path):
    """Axes do not count where lengths differ, and those without values are no fields."""
    path = tmp_path / "a.nc"
    values = np.arange(36, dtype="i2").reshape(4, 3, 3)
    with h5py.File(path, "w") as file:
        for name, length in (("time", 4), ("lat", 3), ("lon", 3)):
            file[name] = np.arange(float(length))
            file[name].make_scale(name)
        file["bound"] = np.zeros(3, ">f4")
        file["bound"].make_scale("This is a netCDF dimension but not a netCDF variable.         3")
        file["bound"].attrs["_Netcdf4Dimid"] = np.int32(3)
        file["t2m"] = values
        file["t2m"].attrs.update({"scale_factor": 0.5, "add_offset": 10.0, "_FillValue": np.int16(7)})
        for axis, name in enumerate(("time", "lat", "lon")):
            file["t2m"].dims[axis].attach_scale(file[name])
    with bp.open(path, decode=True) as data:
        assert list(data.schema) == ["t2m", "time"]
        wanted = np.where(values == 7, np.nan, values * 0.5 + 10)
        assert np.array_equal(data.read(range(4))["t2m"], wanted, equal_nan=True)
        assert data.attributes["t2m"]["_ARRAY_DIMENSIONS"] == ["time", "lat", "lon"]
    with bp.open(path, decode=False, fields=["lat", "lon"]) as data:
        assert len(data) == 3


def test_netcdf_3_is_named(tmp_path):
    path = tmp_path / "a.nc"
    path.write_bytes(b"CDF\1" + bytes(60))
    with pytest.raises(bp.SchemaError, match="nccopy"):
        bp.open(path)


@pytest.mark.reference
def test_values_are_those_of_netcdf4(tmp_path):
    netcdf = pytest.importorskip("netCDF4")
    rng = np.random.default_rng(3)
    with netcdf.Dataset(tmp_path / "a.nc4", "w") as out:
        for name, length in (("time", None), ("lat", 5), ("lon", 7)):
            out.createDimension(name, length)
            out.createVariable(name, "f8", (name,))[:] = np.arange(6 if length is None else length)
        options = (
            {"zlib": True, "chunksizes": (2, 5, 7)},
            {"shuffle": True, "zlib": True, "fletcher32": True},
            {},
        )
        for number, (dtype, option) in enumerate(zip((">i2", ">f4", ">i1"), options, strict=True)):
            packed = out.createVariable(
                f"v{number}", dtype, ("time", "lat", "lon"), fill_value=9, endian="big", **option
            )
            if dtype != ">f4":
                packed.scale_factor, packed.add_offset = 0.5, 100.0
            packed[:] = np.ma.masked_array(
                100 + rng.integers(0, 40, (6, 5, 7)) * 0.5, rng.random((6, 5, 7)) < 0.2
            )
    with netcdf.Dataset(tmp_path / "a.nc4") as file, bp.open(tmp_path / "a.nc4", decode=True) as data:
        assert list(data.schema) == ["time", "v0", "v1", "v2"]
        for name in data.schema:
            wanted = np.ma.filled(file[name][:].astype("f8"), np.nan)
            assert np.allclose(data.read(range(6))[name], wanted, equal_nan=True)
