"""MDS of MosaicML Streaming: the suite, sets that Streaming wrote, sets for it, and what is damaged."""

from __future__ import annotations

import decimal
import functools
import hashlib
import json
import os
import pickle
import shutil
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

import batchplant as bp
import shard_folders
from batchplant.codecs.media import image
from batchplant.formats import mds
from batchplant.formats.registry import get_format
from batchplant.testing import FormatSuite
from batchplant.testing.cases import cells, jpeg, memory_bounded, pixels, png
from repository import GOLDEN
from shard_folders import change, index_of
from trials import case

OURS = GOLDEN / "mds"
PACKED = ("zstd", "gz", "bz2", "br", "snappy")


class TestMds(FormatSuite):
    format = "mds"
    suffix = ".mds"
    golden = GOLDEN
    # Every few samples another shard.
    options: ClassVar[dict[str, Any]] = {"size_limit": 6000}


class TestPacked(FormatSuite):
    format = "mds"
    suffix = ".mds"
    options: ClassVar[dict[str, Any]] = {"size_limit": 6000, "compression": "gz:1"}
    in_place = False
    wraps = True


written = functools.partial(shard_folders.written, "mds")
numbers = functools.partial(shard_folders.numbers, "mds")


# -- what Streaming wrote ----------------------------------------------------------------------------------


def described(name: str, value: Any) -> Any:
    """A value as expected.json has it."""
    if name in ("photo", "mask", "pixels"):
        mode = {2: "L", 3: f"RGB{'A' * (value.shape[-1] == 4)}"}[value.ndim]
        return [mode, value.shape[1], value.shape[0], hashlib.sha256(value.tobytes()).hexdigest()]
    if isinstance(value, np.ndarray):
        return [value.dtype.name, list(value.shape), hashlib.sha256(value.tobytes()).hexdigest()]
    if name == "pickled":
        return pickle.loads(value)["n"]
    if name == "frames":
        return int.from_bytes(value[4:8], "little")
    return value.hex() if isinstance(value, bytes) else value


def test_every_encoding() -> None:
    expected = json.loads((OURS / "expected.json").read_text("utf-8"))
    with bp.open(OURS / "every") as reader:
        assert reader.format == "mds"
        kinds = {name: field.kind for name, field in reader.schema.items()}
        blocks = reader.blocks()
        assert blocks is not None
        assert (blocks[0], blocks[-1]) == (0, 4)
        result = [{name: described(name, value) for name, value in sample.items()} for sample in reader]
        backwards = cells(reader[::-1])
        assert {name: cell[::-1] for name, cell in cells(reader).items()} == backwards
    for have, want in zip(result, expected, strict=True):
        # Other versions of a decoder may round a JPEG otherwise.
        assert have.pop("photo")[:3] == want.pop("photo")[:3]
        assert have == want
    assert kinds["pickled"] == kinds["frames"] == kinds["blob"] == "bytes"
    assert (kinds["big"], kinds["real"], kinds["price"]) == ("int", "float", "text")
    assert reader.schema["free"] == bp.Tensor("float64", (None, None))
    assert reader.schema["pixels"] == bp.Image("raw", None)
    assert bp.verify(OURS / "every", decode=True).problems == []


@pytest.mark.parametrize("kind", PACKED)
def test_compressed_by_streaming_and_by_us(kind: str, tmp_path: Path) -> None:
    if kind in mds.ARROW:
        pytest.importorskip("pyarrow")
    with bp.open(OURS / "every") as whole, bp.open(OURS / kind) as reader:
        assert cells(reader) == cells(whole.select(list(reader.schema)))
        assert reader.spans("n", [0]) is None
    # What is packed is the same to the last byte, the header and the cut into shards too.
    options = {"compression": kind, "hashes": ["sha1"], "size_limit": 4 << 10}
    bp.convert(OURS / kind, tmp_path / "a.mds", target_options=options)
    ours, theirs = index_of(tmp_path / "a.mds")["shards"], index_of(OURS / kind)["shards"]
    assert [our.pop("zip_data")["basename"] for our in ours] == [
        their.pop("zip_data")["basename"] for their in theirs
    ]
    assert ours == theirs
    assert bp.verify(tmp_path / "a.mds", against=bp.open(OURS / kind)).problems == []


def test_what_streaming_has_unpacked_is_read_as_it_is(tmp_path: Path) -> None:
    shutil.copytree(OURS / "gz", tmp_path / "a")
    with bp.open(tmp_path / "a") as reader:
        for number, row in enumerate(index_of(tmp_path / "a")["shards"]):
            data = reader.shards.open(number).source
            (tmp_path / "a" / row["raw_data"]["basename"]).write_bytes(data.view(0, data.size).tobytes())
            (tmp_path / "a" / row["zip_data"]["basename"]).unlink()
        want = cells(reader)
    with bp.open(tmp_path / "a") as reader:
        assert cells(reader) == want


def test_hashes_are_compared(tmp_path: Path) -> None:
    for kind in ("every", "gz"):
        shutil.copytree(OURS / kind, tmp_path / kind)
        change(tmp_path / kind, lambda row: row["shards"][1]["raw_data"]["hashes"].update(sha1="0" * 40))
        result = bp.verify(tmp_path / kind)
        assert "sha1 of every shard" in result.checks
        [problem] = result.problems
        assert "the index says 0000" in problem.message
        assert "shard.00001.mds" in str(problem)
    # One that nobody here knows is no reason to complain.
    change(tmp_path / "gz", lambda row: row["shards"][1]["raw_data"].update(hashes={"odd": "1"}))
    assert bp.verify(tmp_path / "gz").ok


def test_kinds_that_a_caller_knows_better() -> None:
    with bp.open(OURS / "every", schema={"price": "bytes", "n": bp.Time("s")}) as reader:
        assert reader[3]["price"] == b"0.375"
        assert reader[3]["n"] == np.datetime64(0, "s")
    for wrong in ({"n": "text"}, {"row": bp.Tensor("int32", (None,))}, {"other": "int"}):
        with pytest.raises(bp.SchemaError):
            bp.open(OURS / "every", schema=wrong)


def test_numbers_as_text_that_are_none(tmp_path: Path) -> None:
    streaming_set(tmp_path / "a", {"big": "str_int"}, [[b"12"], [b"-3"], [b"9" * 30], [b"x"], [b"1" * 9999]])
    with bp.open(tmp_path / "a") as reader:
        assert [reader[0]["big"], reader[1]["big"]] == [12, -3]
        for row in (2, 3, 4):
            with pytest.raises(bp.DecodeError, match=r"is no int64|does not fit into int64") as caught:
                reader[row]
            assert caught.value.sample == row


def test_numbers_as_text_beyond_64_bits(tmp_path: Path) -> None:
    """Streaming makes Python's integers of them, which have any size."""
    huge = [3, -(2**70), 2**90]
    streaming_set(tmp_path / "huge", {"n": "str_int"}, [[str(item).encode()] for item in huge])
    with bp.open(tmp_path / "huge") as reader:
        assert reader.schema["n"] == bp.Text()
        assert [int(sample["n"]) for sample in reader] == huge
    streaming_set(tmp_path / "unsigned", {"n": "str_int"}, [[b"3"], [str(2**64 - 1).encode()]])
    with bp.open(tmp_path / "unsigned") as reader:
        assert reader.schema["n"] == bp.Int("uint64")
        assert [sample["n"] for sample in reader] == [3, 2**64 - 1]
    later = [[b"1"]] * 9 + [[str(2**64).encode()]]
    streaming_set(tmp_path / "later", {"n": "str_int"}, later)
    with bp.open(tmp_path / "later") as reader, pytest.raises(bp.DecodeError, match="as text") as caught:
        reader.read(range(10))
    assert (caught.value.sample, caught.value.field) == (9, "n")
    with bp.open(tmp_path / "later", schema={"n": "text"}) as reader:
        assert reader[9]["n"] == str(2**64)


# -- what Streaming reads ----------------------------------------------------------------------------------

SCHEMA = {
    "n": bp.Int(), "small": bp.Int("uint8"), "flag": bp.Bool(), "real": bp.Float("float32"),
    "when": bp.Time("s"), "text": bp.Text(), "blob": bp.Bytes(), "meta": bp.Json(),
    "price": bp.Decimal(9, 2), "photo": bp.Image("jpeg"), "mask": bp.Image("png", "L"),
    "pixels": bp.Image("raw"), "fixed": bp.Tensor("float32", (2, 3)), "row": bp.Tensor("int16", (None, 2)),
    "free": bp.Tensor("complex64", (None, None)), "tags": bp.List(bp.Text()),
}  # fmt: skip


def sample(n: int) -> dict[str, Any]:
    return {
        "n": n - 3, "small": n, "flag": n % 2 == 0, "real": n / 4, "when": np.datetime64(n, "s"),
        "text": "ß" * n, "blob": bytes(n), "meta": {"n": [n, None]}, "price": decimal.Decimal(n) / 4,
        "photo": jpeg(4 + n, 5), "mask": png(3, 4 + n), "pixels": pixels(2, 3 + n, 3),
        "fixed": np.full((2, 3), n, "f4"), "row": np.ones((1 + 90 * n, 2), "i2"),
        "free": np.full((n + 1, 2), n * 1j, "c8"), "tags": ["a"] * n,
    }  # fmt: skip


def test_streaming_reads_what_we_write(tmp_path: Path) -> None:
    streaming = pytest.importorskip("streaming", reason="pip install mosaicml-streaming")
    written(tmp_path / "a", SCHEMA, [sample(n) for n in range(8)], size_limit=4000, hashes=["sha1"])
    streaming_dataset = streaming.StreamingDataset(
        local=str(tmp_path / "a"), shuffle=False, batch_size=1, validate_hash="sha1"
    )
    assert len(streaming_dataset) == 8
    for n in range(8):
        have, want = streaming_dataset[n], sample(n)
        for name in ("n", "small", "flag", "real", "text", "blob", "meta", "price", "tags"):
            assert have[name] == want[name], name
        for name in ("fixed", "row"):
            assert np.array_equal(have[name], want[name])
        assert np.array_equal(have["free"], np.stack([want["free"].real, want["free"].imag], axis=-1))
        assert np.array_equal(have["pixels"], want["pixels"])
        assert np.array_equal(have["mask"], image.decode(want["mask"]))
        assert have["photo"].size == (5, 4 + n)


def test_streaming_writes_the_same_bytes(tmp_path: Path) -> None:
    streaming = pytest.importorskip("streaming", reason="pip install mosaicml-streaming")
    names = ("n", "small", "real", "text", "blob", "fixed", "row", "pixels", "tags")
    samples = [{name: sample(n)[name] for name in names} for n in range(8)]
    written(tmp_path / "ours", {name: SCHEMA[name] for name in names}, samples, size_limit=3000)
    from PIL import Image

    [shard, *_] = index_of(tmp_path / "ours")["shards"]
    columns = dict(zip(shard["column_names"], shard["column_encodings"], strict=True))
    with streaming.MDSWriter(out=str(tmp_path / "theirs"), columns=columns, size_limit=3000) as out:
        for row in samples:
            out.write({**row, "pixels": Image.fromarray(row["pixels"])})
    assert index_of(tmp_path / "ours")["shards"] == index_of(tmp_path / "theirs")["shards"]
    for file in (tmp_path / "theirs").glob("*.mds"):
        assert (tmp_path / "ours" / file.name).read_bytes() == file.read_bytes()


# -- shards ------------------------------------------------------------------------------------------------


def test_shards_are_cut_by_size(tmp_path: Path) -> None:
    path = written(
        tmp_path / "a", {"x": bp.Bytes()}, [{"x": bytes(n)} for n in (10, 5000, 10, 20, 30)], size_limit=1000
    )
    result = index_of(path)["shards"]
    # One that is larger than a shard is one by itself.
    assert [row["samples"] for row in result] == [1, 1, 3]
    assert [row["raw_data"]["basename"] for row in result] == [f"shard.{n:05d}.mds" for n in range(3)]
    assert [(path / row["raw_data"]["basename"]).stat().st_size for row in result] == [
        row["raw_data"]["bytes"] for row in result
    ]


def test_shards_are_full_whatever_comes_at_a_time(tmp_path: Path) -> None:
    sizes = [n * 37 % 300 for n in range(100)]
    path = written(tmp_path / "a", {"x": bp.Bytes()}, [{"x": bytes(n)} for n in sizes], size_limit=1000)
    result = index_of(path)["shards"]
    ends = np.cumsum([row["samples"] for row in result])
    assert ends[-1] == 100
    for row, end in zip(result[:-1], ends, strict=False):
        # A sample takes an offset and a size besides.
        assert row["raw_data"]["bytes"] <= 1000 < row["raw_data"]["bytes"] + sizes[end] + 8


def test_shards_are_opened_when_they_are_needed(tmp_path: Path) -> None:
    path = numbers(tmp_path / "a", 60, size_limit=400)
    with bp.open(path) as reader:
        assert reader.facts()["shards"] > 10
        assert [row["n"] for row in reader.subset(range(59, -1, -1))] == list(range(59, -1, -1))
        assert reader.where(0).endswith("shard.00000.mds")
    (path / "shard.00002.mds").unlink()
    with bp.open(path) as reader:
        assert reader[0]["n"] == 0
        lost = [problem for problem in reader.verify() if "the index lists it" in problem.message]
    assert lost


def test_new_shards_are_appended(tmp_path: Path) -> None:
    path = numbers(tmp_path / "a", 20, size_limit=500)
    before = {file.name: file.read_bytes() for file in path.glob("*.mds")}
    with bp.create(path, mode="append", size_limit=500, compression="gz") as out:
        for n in range(20, 40):
            out.append({"n": n, "text": "y"})
    assert {name: (path / name).read_bytes() for name in before} == before
    assert len(list(path.glob("*.mds.gz"))) > 1
    with bp.open(path) as reader:
        assert [row["n"] for row in reader] == list(range(40))
        assert reader.schema == bp.Schema({"n": bp.Int(), "text": bp.Text()})
    assert bp.verify(path).ok


def test_what_streaming_wrote_is_appended_to_as_it_is(tmp_path: Path) -> None:
    shutil.copytree(OURS / "every", tmp_path / "a")
    with bp.open(OURS / "every") as reader, bp.create(tmp_path / "a", mode="append", format="mds") as out:
        out.append(reader.read([2]))
        out.append({**reader[3], "big": -(2**63), "free": np.zeros((300, 2))})
    with bp.open(tmp_path / "a") as reader:
        assert len(reader) == 14
        assert cells(reader[12:13]) == cells(reader[2:3])
        assert reader[13]["big"] == -(2**63)
        assert reader[13]["free"].shape == (300, 2)
    new, old = index_of(tmp_path / "a"), index_of(OURS / "every")
    assert new["shards"][:-1] == old["shards"]
    assert new["shards"][-1]["column_encodings"] == old["shards"][0]["column_encodings"]
    assert "batchplant" not in new


@pytest.mark.parametrize(
    "options",
    [
        {"compression": "lz4"}, {"compression": "zstd:99"}, {"size_limit": 0}, {"size_limit": 1 << 32},
        {"hashes": ["shake_128"]}, {"hashes": ["crc9"]},
    ],
)  # fmt: skip
def test_options_that_are_none(options: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(bp.OptionError):
        numbers(tmp_path / "a", **options)
    assert list(tmp_path.iterdir()) == []


# -- damage ------------------------------------------------------------------------------------------------


def streaming_set(path: Path, columns: dict[str, str], samples: list[list[bytes]], **more: Any) -> Path:
    """A set of one shard as the description of the format says, without any code of ours."""
    path.mkdir()
    names = sorted(columns)
    config = {
        "version": 2, "format": "mds", "compression": None, "hashes": [], "size_limit": None,
        "column_names": names, "column_encodings": [columns[name] for name in names],
        "column_sizes": [None] * len(names),
    }  # fmt: skip
    text = json.dumps(config).encode()
    result = [np.array([len(cell) for cell in row], "<u4").tobytes() + b"".join(row) for row in samples]
    offsets = 8 + 4 * len(result) + len(text) + np.cumsum([0, *map(len, result)])
    data = np.array([len(result), *offsets], "<u4").tobytes() + text + b"".join(result)
    (path / "shard.00000.mds").write_bytes(data)
    file = {"basename": "shard.00000.mds", "bytes": len(data), "hashes": {}}
    shard = {**config, "samples": len(result), "raw_data": file, "zip_data": None, **more}
    (path / "index.json").write_text(json.dumps({"version": 2, "shards": [shard]}))
    return path


def first(key: str, value: Any) -> Callable[[Any], None]:
    return lambda row: row["shards"][0].update({key: value})


def raw(key: str, value: Any) -> Callable[[Any], None]:
    return lambda row: row["shards"][0]["raw_data"].update({key: value})


LYING_INDEXES = [
    raw("basename", "../shard.00000.mds"), raw("basename", "/etc/passwd"), raw("basename", 3),
    raw("basename", ""), raw("bytes", 2**40), raw("bytes", -1), raw("bytes", 99), raw("hashes", []),
    first("samples", 2**31), first("samples", 11), first("samples", -1), first("samples", 1.0),
    first("format", "jsonl"), first("version", 1), first("compression", "zstd"), first("zip_data", {}),
    first("column_sizes", [None, None]), first("column_sizes", [8]), first("column_names", ["n", "n"]),
    first("column_encodings", ["int", "ndarray:float32:99999999,99999999,9999999"]),
    first("column_encodings", ["int", "nonsense"]), first("column_encodings", None),
    lambda item: item.update(version=3), lambda item: item.update(shards={"a": 1}),
    lambda item: item.pop("shards"), lambda row: row["shards"].append({}),
    lambda row: row["batchplant"].update(schema=[]),
    lambda row: row["batchplant"].update(missing="n"), lambda item: item.update(batchplant=[]),
    lambda row: row["batchplant"]["schema"][0].update(kind="text"),
    lambda row: row["batchplant"]["schema"][0].update(optional=True),
]  # fmt: skip


def test_an_index_that_lies(tmp_path: Path) -> None:
    for number, edit in enumerate(LYING_INDEXES):
        path = numbers(tmp_path / str(number))
        change(path, edit)
        with case(number), memory_bounded(1 << 12), pytest.raises(bp.BatchplantError):
            list(bp.open(path, format="mds"))


def test_no_way_out_of_the_folder(tmp_path: Path) -> None:
    """A set that is sound but for the place of its shard."""
    path = numbers(tmp_path / "a")
    (path / "shard.00000.mds").rename(tmp_path / "shard.00000.mds")
    for name in ("../shard.00000.mds", str(tmp_path / "shard.00000.mds"), "x/../../shard.00000.mds"):
        change(path, raw("basename", name))
        with pytest.raises(bp.DamagedError, match="is no file in its folder"):
            bp.open(path)
    # Streaming's merged sets have shards in folders.
    (path / "part").mkdir()
    (tmp_path / "shard.00000.mds").rename(path / "part" / "shard.00000.mds")
    change(path, raw("basename", "part/shard.00000.mds"))
    with bp.open(path) as reader:
        assert len(list(reader)) == 12


@pytest.mark.parametrize("value", [0, 5, 2**31, 2**32 - 1])
@pytest.mark.parametrize("at", [0, 4, 8, 12])
def test_a_shard_that_lies(at: int, value: int, tmp_path: Path) -> None:
    path = streaming_set(tmp_path / "a", {"x": "bytes", "y": "bytes"}, [[b"abc", b"d" * 9], [b"", b"e"]])
    data = bytearray((path / "shard.00000.mds").read_bytes())
    data[at : at + 4] = np.uint32(value).tobytes()
    (path / "shard.00000.mds").write_bytes(data)
    with memory_bounded(1 << 12):
        assert not bp.verify(path).ok


@pytest.mark.parametrize("sizes", [(2**32 - 1, 1), (2**31, 2**31), (3, 8), (0, 0), (9, 9)])
def test_a_sample_that_lies(sizes: tuple[int, int], tmp_path: Path) -> None:
    path = streaming_set(tmp_path / "a", {"x": "bytes", "y": "bytes"}, [[b"abc", b"d" * 9], [b"", b"e"]])
    data = (path / "shard.00000.mds").read_bytes()
    lying = data.replace(
        np.array([3, 9], "<u4").tobytes() + b"abc", np.array(sizes, "<u4").tobytes() + b"abc"
    )
    (path / "shard.00000.mds").write_bytes(lying)
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
    change(path, lambda row: row["shards"][0].update(samples=2**29))
    with pytest.raises(bp.DamagedError, match="do not fit"):
        bp.open(path)
    change(path, raw("bytes", 2**32 - 1))
    with pytest.raises(bp.DamagedError, match="the index says"):
        bp.open(path)


@pytest.mark.parametrize(
    ("encoding", "cell"),
    [
        ("ndarray:int16", b"\x04\x05" + bytes(8)), ("ndarray:int16", b"\x07" + b"\xff" * 8 + bytes(4)),
        ("ndarray:int16", b"\x08\x01\x07\x00"), ("ndarray:int16", b""), ("ndarray:int16", b"\x06\x01"),
        ("ndarray", b"\x10\x04\x01\x07\x00"), ("ndarray", b"\x11"),
        ("pil", b"abc"), ("pil", np.array([2**31, 2**31, 3], "<u4").tobytes() + b"RGB" + bytes(12)),
        ("pil", np.array([2, 2, 2**32 - 1], "<u4").tobytes() + b"RGB" + bytes(12)),
        ("pil", np.array([2, 2, 1], "<u4").tobytes() + b"F" + bytes(16)),
    ],
)  # fmt: skip
def test_a_cell_that_lies(encoding: str, cell: bytes, tmp_path: Path) -> None:
    """The others can be read, and the error says which it is."""
    good = {
        "ndarray:int16": b"\x04\x01\x07\x00", "ndarray": b"\x11\x04\x01\x07\x00",
        "pil": np.array([1, 1, 1], "<u4").tobytes() + b"L\x07",
    }[encoding]  # fmt: skip
    path = streaming_set(tmp_path / "a", {"x": encoding}, [[good]] * 4 + [[cell]])
    with memory_bounded(1 << 12), bp.open(path) as reader:
        assert reader[3]["x"].flat[0] == 7
        for wanted in ([4], [0, 4]):
            with pytest.raises(bp.DecodeError) as caught:
                reader.read(wanted)
            assert (caught.value.sample, caught.value.field) == (4, "x")
    assert [problem.sample for problem in bp.verify(path).problems] == [4]


@pytest.mark.parametrize("kind", PACKED)
def test_a_bomb(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither what is packed in a small file nor what the index says of it is believed."""
    if kind in mds.ARROW:
        pytest.importorskip("pyarrow")
    path = written(tmp_path / "a", {"x": bp.Bytes()}, [{"x": bytes(8 << 20)}], compression=kind)
    for item in (2**32 - 1, 5000):
        change(path, raw("bytes", item))
        with memory_bounded(1 << 20), bp.open(path) as reader, pytest.raises(bp.DamagedError):
            reader[0]


def test_files_that_are_not_ours(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    for text in ("", "{}", '{"shards": [{"format": "jsonl"}], "version": 2}', '{"chunks": [], "config": {}}'):
        (tmp_path / "a" / "index.json").write_text(text)
        assert not bp.Probe(str(tmp_path / "a")).ask(get_format("mds").sniff)
    (tmp_path / "a" / "index.json").write_text('{"shards": [], "version": 2}')
    with pytest.raises(bp.SchemaError, match="no shards"):
        bp.open(tmp_path / "a")


def test_a_loader_of_millions_of_samples_takes_no_memory_for_each(tmp_path) -> None:
    samples, shards = 10_000, 1_000
    with bp.create(tmp_path / "train.mds", {"x": bp.Int("uint8")}) as out:
        for number in range(samples):
            out.append({"x": number % 256})
    path = tmp_path / "train.mds" / "index.json"
    index = json.loads(path.read_text())
    [shard] = index["shards"]
    first = shard["raw_data"]["basename"]
    names = [first, *(f"shard.{number:05d}.mds" for number in range(1, shards))]
    for name in names[1:]:
        os.link(path.with_name(first), path.with_name(name))
    index["shards"] = [{**shard, "raw_data": {**shard["raw_data"], "basename": name}} for name in names]
    path.write_text(json.dumps(index))
    for order in ("quasi_random", "shards"):
        with bp.open(tmp_path / "train.mds") as data:
            tracemalloc.start()
            try:
                loader = bp.Loader(data, 32, order=order)
                batch = next(iter(loader))
                peak = tracemalloc.get_traced_memory()[1]
            finally:
                tracemalloc.stop()
            assert len(data) == samples * shards
            assert len(batch["x"]) == 32
            # A byte for each sample would be 10 MB.
            assert peak < 5_000_000
            loader.close()
