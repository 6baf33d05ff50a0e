"""LitData of Lightning: the suite, sets that LitData wrote, sets for it, and what is damaged."""

from __future__ import annotations

import decimal
import functools
import hashlib
import itertools
import json
import pickle
import shutil
import struct
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

import batchplant as bp
import shard_folders
from batchplant.formats.litdata import cells as litdata_cells
from batchplant.formats.litdata import spec_of
from batchplant.formats.registry import get_format
from batchplant.testing import FormatSuite
from batchplant.testing.cases import cells, jpeg, memory_bounded, pixels, png
from repository import GOLDEN
from servers import Bucket
from shard_folders import change, index_of
from trials import case

OURS = GOLDEN / "litdata"
EXPECTED = json.loads((OURS / "expected.json").read_text("utf-8"))
LEVELS = ("chunk", "batch", "sample")


class TestLitData(FormatSuite):
    format = "litdata"
    suffix = ".litdata"
    golden = GOLDEN
    # Every few samples another chunk.
    options: ClassVar[dict[str, Any]] = {"chunk_bytes": 6000}


# MDS's suite tries shards that are packed.
@pytest.mark.exhaustive
class TestPacked(FormatSuite):
    format = "litdata"
    suffix = ".litdata"
    options: ClassVar[dict[str, Any]] = {
        "chunk_bytes": 6000, "compression": "zstd:1", "compression_level": "batch",
    }  # fmt: skip
    in_place = False
    wraps = True

    @pytest.fixture(autouse=True)
    def library(self) -> None:
        pytest.importorskip("pyarrow")


written = functools.partial(shard_folders.written, "litdata")
numbers = functools.partial(shard_folders.numbers, "litdata")


# -- what LitData wrote ------------------------------------------------------------------------------------


def described(value: Any) -> Any:
    """A value as expected.json has it."""
    if isinstance(value, np.ndarray | np.generic) and not isinstance(value, float):
        digest = hashlib.sha256(np.ascontiguousarray(value).tobytes()).hexdigest()
        return [value.dtype.name, list(value.shape), digest]
    if isinstance(value, bytes):
        return value.hex() if len(value) < 64 else hashlib.sha256(value).hexdigest()
    return value


def flat(value: Any, name: str = "") -> dict[str, Any]:
    """The leaves of a sample of expected.json; lists there may be arrays."""
    if isinstance(value, dict):
        parts = {
            key: item for part, inner in value.items() for key, item in flat(inner, f"{name}.{part}").items()
        }
        return {key.removeprefix("."): part for key, part in parts.items()}
    return {name: value}


@pytest.mark.parametrize(
    "name", ["old", "tables", "packed_tables", "zstd_chunk", "zstd_batch", "zstd_sample"]
)
def test_what_litdata_wrote(name: str) -> None:
    if name != "old":
        pytest.importorskip("pyarrow")
    with bp.open(OURS / name) as reader:
        assert reader.format == "litdata"
        # Not all samples have all keys.
        expected = [{**dict.fromkeys(reader.schema), **value} for value in EXPECTED[name]]
        assert [{key: described(value) for key, value in item.items()} for item in reader] == expected
        backwards = cells(reader[::-1])
        assert {name: cell[::-1] for name, cell in cells(reader).items()} == backwards
        assert (reader.spans("text", [0]) is not None) == (name == "old")
    assert bp.verify(OURS / name, decode=True).problems == []


def test_every_encoding() -> None:
    with bp.open(OURS / "every") as reader:
        schema = reader.schema
        rest = reader.select([name for name in schema if name != "label"])
        result, raw = list(rest), cells(rest)
        blocks = reader.blocks()
        assert blocks is not None
        assert (blocks[0], blocks[-1]) == (0, 2)
        assert reader.facts()["not read"] == "label (pickled)"
    for number, (have, item) in enumerate(zip(result, EXPECTED["every"], strict=True)):
        want = flat(item)
        corner = want.pop("box.corner")
        want |= {"box.corner.0": corner[0], "box.corner.1": corner[1]}
        del want["label"]
        for name in ("photo", "mask"):
            have[name] = raw[name][number]
        assert {name: described(value) for name, value in have.items()} == want
    assert schema["free"] == bp.Tensor("float64", (None, None))
    assert schema["scalar"] == bp.Tensor("bool")
    assert (schema["pixels"], schema["mask"]) == (bp.Image("raw", None), bp.Image("png"))
    assert bp.verify(OURS / "every", decode=True, schema={"label": "bytes"}).problems == []


def test_samples_that_are_no_dicts() -> None:
    with bp.open(OURS / "tuples") as reader:
        assert list(reader.schema) == ["0", "1.0", "1.1"]
        assert reader[3]["1.0"].tolist() == [0, 1, 2]
        assert [row["0"] for row in reader] == [value[0] for value in EXPECTED["tuples"]]


def test_pickles_are_refused_and_the_rest_is_read() -> None:
    with bp.open(OURS / "every") as reader:
        for ask in (lambda: reader[0], lambda: reader.read([0], ["label"]), lambda: reader.spans("label")):
            with pytest.raises(bp.UnsafeError, match="pickles") as caught:
                ask()
            assert caught.value.field == "label"
        assert reader.read([2], ["n"])["n"].tolist() == [-1]
    with bp.open(OURS / "every", schema={"label": "bytes"}) as reader:
        assert pickle.loads(reader[3]["label"]) == 3
    with pytest.raises(bp.SchemaError, match="pickle, which cannot be"):
        bp.open(OURS / "every", schema={"label": "int"})


def test_tokens_as_they_were_written_and_in_blocks() -> None:
    with bp.open(OURS / "tokens") as reader:
        assert reader.schema == bp.Schema({"tokens": bp.Tensor("int32", (None,))})
        assert [row["tokens"].tolist() for row in reader] == [list(range(5 * n)) for n in range(1, 12)]
        assert reader.facts()["tokens"] == 330
    with bp.open(OURS / "tokens", block_size=8) as reader:
        assert [described(row["tokens"]) for row in reader] == EXPECTED["tokens"]
        assert reader.spans("tokens") is not None
    assert bp.verify(OURS / "tokens", block_size=8).ok
    for path, size in ((OURS / "tokens", 0), (OURS / "old", 8)):
        with pytest.raises(bp.OptionError, match="block_size"):
            bp.open(path, block_size=size)


def test_what_litdata_has_unpacked_is_read_as_it_is(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    shutil.copytree(OURS / "zstd_chunk", tmp_path / "a")
    with bp.open(tmp_path / "a") as reader:
        want = cells(reader)
        for number, row in enumerate(index_of(tmp_path / "a")["chunks"]):
            data = reader.shards.open(number).source
            raw = tmp_path / "a" / row["filename"].replace(".zstd", "")
            raw.write_bytes(data.view(0, data.size).tobytes())
            (tmp_path / "a" / row["filename"]).unlink()
    with bp.open(tmp_path / "a") as reader:
        assert cells(reader) == want


def test_kinds_that_a_caller_knows_better() -> None:
    with bp.open(OURS / "every", schema={"text": "bytes", "n": bp.Time("s")}) as reader:
        assert reader.read([1], ["text"])["text"][0].tobytes() == "Größe".encode()
        assert reader.select(["n"])[3]["n"] == np.datetime64(0, "s")
    with bp.open(OURS / "every", schema={"n": bp.Int("uint8")}) as reader:
        assert reader.read([3], ["n"])["n"].tolist() == [0]
        with pytest.raises(bp.DecodeError, match="is no uint8") as caught:
            reader.read([3, 0], ["n"])
        assert caught.value.sample == 0
    for wrong in ({"n": "text"}, {"ids": bp.Tensor("int64", (None,))}, {"other": "int"}):
        with pytest.raises(bp.SchemaError):
            bp.open(OURS / "every", schema=wrong)


def test_what_is_not_read_says_so(tmp_path: Path) -> None:
    path = numbers(tmp_path / "a")
    for config, match in (
        ({"encryption": {"algorithm": "fernet", "level": "sample"}}, "encrypted .fernet."),
        ({"item_loader": "ParquetLoader"}, "Parquet files"),
        ({"item_loader": "TemporalArrayLoader"}, "TemporalArrayLoader"),
        ({"compression": "lz4"}, "only zstd"),
        ({"compression": "zstd", "compression_level": "page"}, "compression_level"),
    ):
        before = index_of(path)
        change(path, lambda row, config=config: row["config"].update(config))
        with pytest.raises(bp.SchemaError, match=match):
            bp.open(path)
        (path / "index.json").write_text(json.dumps(before))


# -- what LitData reads ------------------------------------------------------------------------------------

SCHEMA = {
    "n": bp.Int(), "small": bp.Int("uint8"), "huge": bp.Int("uint64"), "flag": bp.Bool(),
    "real": bp.Float("float32"), "when": bp.Time("s"), "text": bp.Text(), "blob": bp.Bytes(),
    "meta": bp.Json(), "price": bp.Decimal(9, 2), "photo": bp.Image("jpeg"), "mask": bp.Image("png", "L"),
    "pixels": bp.Image("raw"), "fixed": bp.Tensor("float32", (2, 3)), "row": bp.Tensor("int16", (None, 2)),
    "line": bp.Tensor("uint32", (None,)), "zero": bp.Tensor("float64"),
    "free": bp.Tensor("complex64", (None, None)), "tags": bp.List(bp.Text()),
}  # fmt: skip


def sample(n: int) -> dict[str, Any]:
    return {
        "n": n - 3, "small": n, "huge": 2**64 - 1 - n, "flag": n % 2 == 0, "real": n / 4,
        "when": np.datetime64(n, "s"), "text": "ß" * n, "blob": bytes(n), "meta": {"n": [n, None]},
        "price": decimal.Decimal(n) / 4, "photo": jpeg(4 + n, 5), "mask": png(3, 4 + n),
        "pixels": pixels(2, 3 + n, 3), "fixed": np.full((2, 3), n, "f4"),
        "row": np.ones((1 + 90 * n, 2), "i2"), "line": np.arange(n, dtype="u4"), "zero": np.float64(n),
        "free": np.full((n + 1, 2), n * 1j, "c8"), "tags": ["a"] * n,
    }  # fmt: skip


def litdata() -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return pytest.importorskip("litdata", reason="pip install litdata")


@pytest.mark.parametrize(
    "how", [{}, *({"compression": "zstd", "compression_level": level} for level in LEVELS)]
)
@pytest.mark.reference
@pytest.mark.filterwarnings("ignore")
def test_litdata_reads_what_we_write(how: dict[str, str], tmp_path: Path) -> None:
    lit = litdata()
    written(tmp_path / "a", SCHEMA, [sample(n) for n in range(8)], chunk_bytes=3000, **how)

    class Raw(lit.streaming.serializers.BytesSerializer):  # type: ignore[misc, name-defined]
        """What decodes images is not LitData."""

        def deserialize(self, data: Any) -> Any:
            return bytes(data)

    streaming_dataset = lit.StreamingDataset(str(tmp_path / "a"), serializers={"jpeg": Raw(), "bytes": Raw()})
    assert len(streaming_dataset) == 8
    for n in range(8):
        have, want = streaming_dataset[n], sample(n)
        assert list(have) == list(SCHEMA)
        for name in ("n", "small", "flag", "real", "text", "blob", "meta", "photo", "mask", "tags"):
            assert have[name] == want[name], name
        for name in ("fixed", "row", "line", "zero", "free"):
            assert have[name].dtype == want[name].dtype
            assert np.array_equal(have[name], want[name]), name
        assert (have["huge"].tolist(), have["when"], have["price"]) == (
            [want["huge"]], n, f"{want['price']:.2f}",
        )  # fmt: skip
        assert np.array_equal(have["pixels"], want["pixels"])
    # LitData unpacks chunks where they lie.
    with bp.open(tmp_path / "a") as reader:
        assert reader[7]["text"] == "ß" * 7


@pytest.mark.reference
@pytest.mark.filterwarnings("ignore")
def test_litdata_reads_tokens_that_we_write(tmp_path: Path) -> None:
    lit = litdata()
    schema = {"ids": bp.Tensor("int32", (None,))}
    path = written(
        tmp_path / "a", schema, [{"ids": np.arange(3 * n, dtype="i4")} for n in range(20)],
        tokens=True, chunk_bytes=400,
    )  # fmt: skip
    streaming_dataset = lit.StreamingDataset(str(path), item_loader=lit.TokensLoader(block_size=7))
    with bp.open(path, block_size=7) as reader:
        assert len(streaming_dataset) == len(reader) > 20
        assert all(
            np.array_equal(streaming_dataset[n], reader[n]["ids"]) for n in range(len(streaming_dataset))
        )


@pytest.mark.reference
@pytest.mark.filterwarnings("ignore")
def test_litdata_writes_the_same_bytes(tmp_path: Path) -> None:
    writer = litdata().streaming.writer.BinaryWriter
    names = ("n", "flag", "real", "text", "blob", "fixed", "line", "free", "pixels")
    samples = [{name: sample(n)[name] for name in names} for n in range(8)]
    written(tmp_path / "ours", {name: SCHEMA[name] for name in names}, samples, chunk_bytes=1000)
    from PIL import Image

    out = writer(str(tmp_path / "theirs"), chunk_bytes=1000)
    for number, row in enumerate(samples):
        out[number] = {**row, "pixels": Image.fromarray(row["pixels"])}
    out.done()
    out.merge()
    ours, theirs = index_of(tmp_path / "ours"), index_of(tmp_path / "theirs")
    assert ours["chunks"] == theirs["chunks"]
    del ours["config"]["types"], theirs["config"]["types"]
    assert ours["config"] == theirs["config"]
    for file in (tmp_path / "theirs").glob("*.bin"):
        assert (tmp_path / "ours" / file.name).read_bytes() == file.read_bytes()


def test_what_is_packed_is_what_litdata_packs(tmp_path: Path) -> None:
    """Samples of a golden set, written with its own encodings, take the same chunks."""
    pytest.importorskip("pyarrow")
    for level in LEVELS:
        theirs = OURS / f"zstd_{level}"
        options = {"compression": "zstd", "compression_level": level, "chunk_bytes": 1500}
        bp.convert(theirs, tmp_path / level, target_options={"format": "litdata", **options})
        ours, want = index_of(tmp_path / level), index_of(theirs)
        names = ("chunk_size", "dim", "filename")
        assert [[our[name] for name in names] for our in ours["chunks"]] == [
            [item[name] for name in names] for item in want["chunks"]
        ]
        with bp.open(tmp_path / level) as reader, bp.open(theirs) as other:
            assert cells(reader) == cells(other)
            for number in range(3):
                one, two = reader.shards.open(number).source, other.shards.open(number).source
                assert one.view(0, one.size).tobytes() == two.view(0, two.size).tobytes()


def test_flags_of_other_fields(tmp_path: Path) -> None:
    schema = {"a": bp.Int(optional=True), "b": bp.Int(optional=True)}
    path = written(tmp_path / "a", schema, [{"a": 1, "b": None}] * 2)
    change(path, lambda row: row["batchplant"]["schema"][1].update(optional=False))
    with bp.open(path) as reader:
        assert reader.read([0], ["b"])["b"].tolist() == [0]
        with pytest.raises(bp.DecodeError, match="not a byte for each") as caught:
            reader.read([1], ["a"])
        assert (caught.value.sample, caught.value.field) == (1, "a")


# -- chunks ------------------------------------------------------------------------------------------------


def test_chunks_are_cut_by_size(tmp_path: Path) -> None:
    path = written(
        tmp_path / "a", {"x": bp.Bytes()}, [{"x": bytes(n)} for n in (10, 5000, 10, 20, 30)], chunk_bytes=1000
    )
    result = index_of(path)["chunks"]
    # One that is larger than a chunk is one by itself.
    assert [row["chunk_size"] for row in result] == [1, 1, 3]
    assert [row["filename"] for row in result] == [f"chunk-0-{n}.bin" for n in range(3)]
    assert [(path / row["filename"]).stat().st_size for row in result] == [
        row["chunk_bytes"] for row in result
    ]


def test_updated_at_depends_on_the_bytes_alone(tmp_path: Path) -> None:
    """By it LitData knows whether its copy is still good; every engine writes the same."""
    schema = {"x": bp.Bytes()}
    paths = [written(tmp_path / f"{n}", schema, [{"x": bytes([n % 2])}]) for n in range(3)]
    first, other, again = (index_of(path)["updated_at"] for path in paths)
    assert first == again != other


def test_chunks_are_opened_when_they_are_needed(tmp_path: Path) -> None:
    path = numbers(tmp_path / "a", 60, chunk_bytes=200)
    with bp.open(path) as reader:
        assert reader.facts()["chunks"] > 10
        assert [row["n"] for row in reader.subset(range(59, -1, -1))] == list(range(59, -1, -1))
        assert reader.where(0).endswith("chunk-0-0.bin")
    (path / "chunk-0-2.bin").unlink()
    with bp.open(path) as reader:
        assert reader[0]["n"] == 0
        lost = [problem for problem in reader.verify() if "the index lists it" in problem.message]
    assert lost


@pytest.mark.parametrize(
    "how", [{}, *({"compression": "zstd", "compression_level": level} for level in LEVELS)]
)
def test_new_chunks_are_appended(how: dict[str, str], tmp_path: Path) -> None:
    if how:
        pytest.importorskip("pyarrow")
    path = numbers(tmp_path / "a", 20, chunk_bytes=200, **how)
    before = {file.name: file.read_bytes() for file in path.glob("*.bin")}
    old = index_of(path)["updated_at"]
    with bp.create(path, mode="append", chunk_bytes=200) as out:
        for n in range(20, 40):
            out.append({"n": n, "text": "y"})
    assert {name: (path / name).read_bytes() for name in before} == before
    assert len(list(path.glob("*.bin"))) > len(before) + 1
    assert index_of(path)["updated_at"] != old
    with bp.open(path) as reader:
        assert [row["n"] for row in reader] == list(range(40))
        assert reader.schema == bp.Schema({"n": bp.Int(), "text": bp.Text()})
    assert bp.verify(path).ok
    if not how:
        pytest.importorskip("pyarrow")
        with pytest.raises(bp.OptionError, match="packs all of them or none"):
            bp.create(path, mode="append", compression="zstd")


def test_what_litdata_wrote_is_appended_to_as_it_is(tmp_path: Path) -> None:
    shutil.copytree(OURS / "every", tmp_path / "a")
    with pytest.raises(bp.OptionError, match="'label' holds pickles"):
        bp.create(tmp_path / "a", mode="append")
    for name in ("old", "tuples", "tokens"):
        shutil.copytree(OURS / name, tmp_path / name)
        with bp.open(OURS / name) as reader, bp.create(tmp_path / name, mode="append") as out:
            out.append(reader.read([2]))
            out.append(reader[3])
        with bp.open(tmp_path / name) as reader:
            count = len(reader)
            assert cells(reader[count - 2 :]) == cells(reader[2:4])
        new, old = index_of(tmp_path / name), index_of(OURS / name)
        assert new["chunks"][:-1] == old["chunks"]
        assert new["config"] == old["config"]
        assert "batchplant" not in new
    assert new["chunks"][-1]["dim"] == 15 + 20


def test_arrow_tables_are_appended_to_where_they_hold_no_more(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    shutil.copytree(OURS / "tables", tmp_path / "a")
    with pytest.raises(bp.OptionError, match="Arrow tables"):
        bp.create(tmp_path / "a", mode="append")


def test_tokens_are_one_array(tmp_path: Path) -> None:
    line, square = bp.Tensor("int32", (None,)), bp.Tensor("f4", (2, 2))
    for schema in ({"a": bp.Int()}, {"a": line, "b": bp.Int()}, {"a": square}):
        with pytest.raises(bp.SchemaError, match="tokens=True is for"):
            bp.create(tmp_path / "a", schema, format="litdata", tokens=True)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "options",
    [
        {"compression": "lz4"}, {"compression": "zstd:99"}, {"chunk_bytes": 0}, {"chunk_bytes": 1 << 32},
        {"compression": "zstd", "compression_level": "7"},
    ],
)  # fmt: skip
def test_options_that_are_none(options: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(bp.OptionError):
        numbers(tmp_path / "a", **options)
    assert list(tmp_path.iterdir()) == []


# -- damage ------------------------------------------------------------------------------------------------


def litdata_set(path: Path, values: dict[str, str], samples: list[list[bytes]], **config: Any) -> Path:
    """A set of one chunk as the description of the format says, without the writer."""
    path.mkdir()
    result = [np.array([len(cell) for cell in row], "<u4").tobytes() + b"".join(row) for row in samples]
    offsets = 8 + 4 * len(result) + np.cumsum([0, *map(len, result)])
    data = np.array([len(result), *offsets], "<u4").tobytes() + b"".join(result)
    (path / "chunk-0-0.bin").write_bytes(data)
    chunk = {"filename": "chunk-0-0.bin", "chunk_bytes": len(data), "chunk_size": len(result), "dim": None}
    whole = {
        "compression": None, "data_format": list(values.values()), "data_spec": spec_of(list(values)),
        "item_loader": "PyTreeLoader", **config,
    }  # fmt: skip
    (path / "index.json").write_text(json.dumps({"chunks": [chunk], "config": whole}))
    return path


def first(key: str, value: Any) -> Callable[[Any], None]:
    return lambda row: row["chunks"][0].update({key: value})


def config(key: str, value: Any) -> Callable[[Any], None]:
    return lambda row: row["config"].update({key: value})


def tree(node: Any, version: int = 1) -> Callable[[Any], None]:
    return config("data_spec", json.dumps([version, node]))


LEAF = {"type": None, "context": None, "children_spec": []}


LYING_INDEXES = [
    first("filename", "../chunk-0-0.bin"), first("filename", "/etc/passwd"), first("filename", 3),
    first("filename", ""), first("chunk_bytes", 2**40), first("chunk_bytes", -1),
    first("chunk_bytes", 99), first("chunk_size", 2**31), first("chunk_size", 11),
    first("chunk_size", -1), first("chunk_size", 1.0), first("dim", "x"),
    config("data_format", ["int"]), config("data_format", None), config("data_format", ["int", 3]),
    config("data_format", ["int", "json"]), config("data_format", ["int", "pickle"]),
    config("data_format", ["no_header_numpy:99999999999", "str"]), config("data_spec", None),
    config("data_spec", "nonsense"), config("data_spec", "[" * 9999), tree(LEAF), tree(LEAF, 2),
    tree({"type": "builtins.dict", "context": '["n"]', "children_spec": [LEAF, LEAF]}),
    tree({"type": "builtins.dict", "context": '["n", "n"]', "children_spec": [LEAF, LEAF]}),
    tree({"type": "os.system", "context": '["n", "text"]', "children_spec": [LEAF, LEAF]}),
    config("item_loader", "TokensLoader"), config("item_loader", 3), config("compression", 3),
    config("compression", "zstd"), lambda one: one.pop("config"), lambda one: one.update(chunks={"a": 1}),
    lambda one: one.pop("chunks"), lambda one: one["chunks"].append({}),
    lambda one: one["batchplant"].update(schema=[]),
    lambda one: one["batchplant"].update(missing="n"), lambda one: one.update(batchplant=[]),
    lambda one: one["batchplant"]["schema"][0].update(kind="text"),
    lambda one: one["batchplant"]["schema"][0].update(optional=True),
]  # fmt: skip


def test_an_index_that_lies(tmp_path: Path) -> None:
    for number, edit in enumerate(LYING_INDEXES):
        with case(number):
            path = numbers(tmp_path / str(number))
            change(path, edit)
            with (
                memory_bounded(1 << 12),
                pytest.raises(bp.BatchplantError) as caught,
                bp.open(path, format="litdata") as reader,
            ):
                list(reader)
            assert caught.value.path is not None


def test_no_way_out_of_the_folder(tmp_path: Path) -> None:
    """A set that is sound but for the place of its chunk."""
    path = numbers(tmp_path / "a")
    (path / "chunk-0-0.bin").rename(tmp_path / "chunk-0-0.bin")
    for name in ("../chunk-0-0.bin", str(tmp_path / "chunk-0-0.bin"), "x/../../chunk-0-0.bin"):
        change(path, first("filename", name))
        with pytest.raises(bp.DamagedError, match="is no file in its folder"):
            bp.open(path)


def test_a_chunk_that_lies(tmp_path: Path) -> None:
    path = litdata_set(tmp_path / "a", {"x": "bytes", "y": "bytes"}, [[b"abc", b"d" * 9], [b"", b"e"]])
    data = (path / "chunk-0-0.bin").read_bytes()
    for at, value in itertools.product([0, 4, 8, 12], [0, 5, 2**31, 2**32 - 1]):
        (path / "chunk-0-0.bin").write_bytes(data[:at] + np.uint32(value).tobytes() + data[at + 4 :])
        with memory_bounded(1 << 12):
            assert not bp.verify(path).ok, (at, value)


@pytest.mark.parametrize("sizes", [(2**32 - 1, 1), (2**31, 2**31), (3, 8), (0, 0), (9, 9)])
def test_a_sample_that_lies(sizes: tuple[int, int], tmp_path: Path) -> None:
    path = litdata_set(tmp_path / "a", {"x": "bytes", "y": "bytes"}, [[b"abc", b"d" * 9], [b"", b"e"]])
    data = (path / "chunk-0-0.bin").read_bytes()
    lying = data.replace(
        np.array([3, 9], "<u4").tobytes() + b"abc", np.array(sizes, "<u4").tobytes() + b"abc"
    )
    (path / "chunk-0-0.bin").write_bytes(lying)
    with memory_bounded(1 << 12), bp.open(path) as reader:
        assert reader[1] == {"x": b"", "y": b"e"}
        with pytest.raises(bp.DamagedError, match="its cells take") as caught:
            reader.read([1, 0], ["x"])
        assert caught.value.sample == 0
        with pytest.raises(bp.DamagedError):
            reader.spans("y", [0])


def test_more_samples_than_there_is_room_for(tmp_path: Path) -> None:
    """Whoever shuffles them would take memory for all."""
    path = numbers(tmp_path / "a")
    change(path, first("chunk_size", 2**29))
    with pytest.raises(bp.DamagedError, match="do not fit"):
        bp.open(path)
    path = written(tmp_path / "b", {"x": bp.Tensor("u1", (None,))}, [{"x": np.zeros(9, "u1")}], tokens=True)
    change(path, first("dim", 2**31))
    for size in (1, 9):
        with pytest.raises(bp.DamagedError), bp.open(path, block_size=size) as reader:
            reader[0]
    change(path, first("dim", None))
    with pytest.raises(bp.DamagedError, match="does not count the tokens"):
        bp.open(path, block_size=1)


def head(*numbers: int, order: str = "<") -> bytes:
    return np.array(numbers, order + "u4").tobytes()


@pytest.mark.parametrize(
    ("encoding", "cell"),
    [
        ("numpy", head(1, 1, 5) + bytes(8)), ("numpy", head(1, 1, 2**32 - 1) + bytes(4)),
        ("numpy", head(1, 2, 1, 1) + bytes(2)), ("numpy", b""), ("numpy", head(1, 1)),
        ("numpy", head(2, 1, 1) + bytes(4)), ("numpy", head(99, 1, 1) + bytes(2)),
        ("tensor", head(14, 1, 1) + bytes(2)), ("tensor", head(14, 2**31, 1, order=">") + bytes(2)),
        ("int", b"abc"), ("float", bytes(9)), ("bool", b""), ("no_header_numpy:1", b"abc"),
        ("pil", b"abc"), ("pil", head(2**31, 2**31, 3) + b"RGB" + bytes(12)),
        ("pil", head(2, 2, 2**32 - 1) + b"RGB" + bytes(12)), ("pil", head(2, 2, 1) + b"F" + bytes(16)),
        ("json", b""), ("json", b"\x05" + head(2**31)), ("json", b"\x63"), ("json", b"\x01" + head(1, 9)),
    ],
)  # fmt: skip
def test_a_cell_that_lies(encoding: str, cell: bytes, tmp_path: Path) -> None:
    """The others can be read, and the error says which it is."""
    good = {
        "numpy": head(1, 1, 1) + b"\7\0", "tensor": head(14, 1, 1, order=">") + b"\7\0",
        "int": struct.pack("<q", 7), "float": struct.pack("<d", 7), "bool": b"\1",
        "no_header_numpy:1": b"\7\0", "json": b"\x08" + struct.pack("<q", 7), "pil": head(1, 1, 1) + b"L\7",
    }[encoding]  # fmt: skip
    path = litdata_set(tmp_path / "a", {"x": encoding}, [[good]] * 4 + [[cell]])
    with memory_bounded(1 << 12), bp.open(path) as reader:
        assert np.ravel(reader[3]["x"])[0] == (1 if encoding == "bool" else 7)
        for wanted in ([4], [0, 4]):
            with pytest.raises(bp.DecodeError) as caught:
                # What is text is looked at when it is decoded.
                reader.read(wanted) if cell != b"\x63" else reader[4]
            assert (caught.value.sample, caught.value.field) == (4, "x")
    assert [problem.sample for problem in bp.verify(path, decode=True).problems] == [4]


@pytest.mark.parametrize(
    "data",
    [
        b"\x06" + head(2**31, 1, 1) + b"k", b"\x06" + head(5, 0), b"\x00" + head(2) + b"{]", b"\x08\x00",
        b"\x01" + head(2**32 - 1), b"\x0b\x0b", b"\x05" + head(1, 1) + b"k\x05" + head(1),
        b"\x06" + head(60_000, 1, 60_000) + b"k" * 60_000 + b"\x10" * 60_000,
        b"".join([b"\x05" + head(1, 0)] * 5000),
    ],
)  # fmt: skip
def test_packed_lists_that_lie(data: bytes) -> None:
    with memory_bounded(1 << 16), pytest.raises(bp.DataError):
        litdata_cells.text_of(data)


@pytest.mark.parametrize("level", LEVELS)
def test_a_bomb(level: str, tmp_path: Path) -> None:
    """Neither what is packed in a small file nor what the index says of it is believed."""
    pytest.importorskip("pyarrow")
    samples = [{"x": bytes(8 << 20)}]
    path = written(tmp_path / "a", {"x": bp.Bytes()}, samples, compression="zstd", compression_level=level)
    for item in (2**32 - 1, 5000):
        change(path, first("chunk_bytes", item))
        with memory_bounded(1 << 20), bp.open(path) as reader, pytest.raises(bp.DamagedError):
            reader[0]


@pytest.mark.parametrize("name", ["zstd_batch", "zstd_sample", "packed_tables"])
@pytest.mark.parametrize("value", [7, 2**32 - 1])
def test_a_packed_chunk_that_lies(name: str, value: int, tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    shutil.copytree(OURS / name, tmp_path / "a")
    file = tmp_path / "a" / "chunk-0-0.bin"
    whole = file.read_bytes()
    rows, errors = index_of(tmp_path / "a")["chunks"][0]["chunk_size"], []
    for at in [*range(0, 100, 4), *range(len(whole) - 40, len(whole) - 3, 4)]:
        file.write_bytes(whole[:at] + head(value) + whole[at + 4 :])
        with memory_bounded(1 << 16):
            try:
                with bp.open(tmp_path / "a") as reader:
                    reader.read(range(rows))
            # Without its table, a value of the first sample is a pickle.
            except (bp.DataError, bp.UnsafeError) as error:
                errors.append(error)
    assert len(errors) > 5
    assert all(error.path is not None for error in errors)


def test_files_that_are_not_ours(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    chunk = '{"chunk_size": 1, "filename": "a.parquet"}'
    for text in ("", "{}", '{"shards": [], "version": 2}', f'{{"chunks": [{chunk}]}}', '{"chunks": []}'):
        (tmp_path / "a" / "index.json").write_text(text)
        assert not bp.Probe(str(tmp_path / "a")).ask(get_format("litdata").sniff)


def test_on_a_server(bucket: Bucket) -> None:
    """Every layout; the names of the index lead to no other place than the folder."""
    pytest.importorskip("pyarrow")
    shutil.copytree(OURS, Path(bucket.root, "sets"))
    for name in EXPECTED:
        schema = {"label": "bytes"} if name == "every" else {}
        with bp.open(f"{bucket.url}/sets/{name}", schema=schema, endpoint=bucket.endpoint) as there:
            assert there.format == "litdata"
            with bp.open(OURS / name, schema=schema) as here:
                assert cells(there) == cells(here)
                # Cells of one field, which are fetched by themselves.
                name = [*here.schema][-1]
                assert cells(there.select([name])[-1:]) == cells(here.select([name])[-1:])
    path = Path(bucket.root, "sets", "old")
    change(path, first("filename", "../../secret"))
    with pytest.raises(bp.DamagedError, match="is no file in its folder"):
        bp.open(f"{bucket.url}/sets/old", endpoint=bucket.endpoint)
