"""Megatron's .bin and .idx: the suite, what Megatron wrote, documents, damage, a billion sequences."""

from __future__ import annotations

import contextlib
import json
import os
import struct
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import batchplant as bp
from batchplant.cli import main
from batchplant.data.sizes import are_known, sizes_of
from batchplant.formats import megatron
from batchplant.loading.packing import Pack
from batchplant.storage import files, local
from batchplant.storage.platform import resident_memory
from batchplant.testing import FormatSuite
from batchplant.testing.cases import memory_bounded
from repository import GOLDEN
from servers import Bucket

OURS = GOLDEN / "megatron"
TOKENS = {"tokens": bp.Tensor("int32", (None,))}
NUMBERED = {**TOKENS, "document": bp.Int(), "mode": bp.Int("int8")}


class TestMegatron(FormatSuite):
    format = "megatron"
    suffix = ".idx"
    golden = GOLDEN
    # They are stored as other dtypes.
    leave_out = ("sequence uint32", "sequence uint64")

    def files(self, path: str) -> list[Path]:
        return [Path(path), Path(path).with_suffix(".bin")]


def write(path: Path, samples: Any, schema: Any = None, **options: Any) -> str:
    with bp.create(path, TOKENS if schema is None else schema, **options) as out:
        for sample in samples:
            out.append(sample)
    return str(path)


def sequence(length: int, dtype: str = "int32") -> Any:
    return np.arange(length, dtype=dtype)


def header(sequences: int, entries: int, code: int = 8, version: int = 1) -> bytes:
    return megatron.MAGIC + struct.pack("<QBQQ", version, code, sequences, entries)


def numbered(path: Path, documents: list[int], **options: Any) -> str:
    samples = (
        {"tokens": sequence(n), "document": document, "mode": n % 2} for n, document in enumerate(documents)
    )
    return write(path, samples, NUMBERED, **options)


# -- what Megatron wrote -----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["plain.idx", "plain.bin", "plain"])
def test_sequences_of_megatron_opened_by_either_file_or_the_name_they_share(name: str) -> None:
    with bp.open(OURS / name) as reader:
        assert reader.format == "megatron"
        assert dict(reader.schema) == {"tokens": bp.Tensor("uint16", (None,))}
        assert [row["tokens"].tolist() for row in reader] == [
            [0, 7, 14], [], [0, 7, 14, 21, 28, 35, 42, 49], [0]
        ]  # fmt: skip
        assert reader.facts() == {"dtype": "uint16", "tokens": 12, "documents": 4}
    with bp.open(str(OURS / "plain"), format="megatron") as reader:
        assert len(reader) == 4


def test_documents_and_modes_of_megatron() -> None:
    with bp.open(OURS / "parts.idx") as reader:
        assert list(reader.schema) == ["tokens", "document", "mode"]
        assert [row["document"] for row in reader] == [0, 0, 1, 2, 2, 2]
        assert [row["mode"] for row in reader] == [0, 1, 1, 0, 0, 1]
        assert [len(row["tokens"]) for row in reader] == [2, 3, 4, 1, 1, 5]
        assert bp.verify(OURS / "parts.idx").ok


@pytest.mark.parametrize("name", ["plain", "parts"])
def test_what_we_write_is_byte_for_byte_what_megatron_writes(name: str, tmp_path: Path) -> None:
    bp.convert(OURS / f"{name}.idx", tmp_path / "a.idx")
    for suffix in (".idx", ".bin"):
        assert (tmp_path / f"a{suffix}").read_bytes() == (OURS / f"{name}{suffix}").read_bytes()


@pytest.mark.reference
def test_megatron_reads_what_we_write(tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        theirs = pytest.importorskip("megatron.core.datasets.indexed_dataset")
    path = numbered(tmp_path / "a.idx", [0, 0, 1, 4, 4])
    indexed_dataset = theirs.IndexedDataset(path.removesuffix(".idx"), multimodal=True)
    assert [(item.tolist(), int(mode)) for item, mode in indexed_dataset] == [
        (list(range(n)), n % 2) for n in range(5)
    ]
    assert indexed_dataset.document_indices.tolist() == [0, 2, 3, 3, 3, 5]


# -- documents ---------------------------------------------------------------------------------------------


def test_documents_without_sequences_keep_their_numbers(tmp_path: Path) -> None:
    path = numbered(tmp_path / "a.idx", [2, 2, 5, 9], checksums=True)
    assert [sample["document"] for sample in bp.open(path)] == [2, 2, 5, 9]
    assert bp.verify(path).ok
    bp.convert(path, tmp_path / "b.idx")
    assert (tmp_path / "b.idx").read_bytes() == (tmp_path / "a.idx").read_bytes()


def test_as_many_documents_as_sequences_that_are_not_one_each(tmp_path: Path) -> None:
    assert [sample["document"] for sample in bp.open(numbered(tmp_path / "a.idx", [0, 0, 2]))] == [0, 0, 2]


@pytest.mark.parametrize("documents", [[], [0], [0, 1, 2], [0, 0, 2]])
def test_a_field_that_was_written_is_read(documents: list[int], tmp_path: Path) -> None:
    """So that shards, and parts that several processes write, have the same fields."""
    schema = {**TOKENS, "document": bp.Int()}

    def samples(numbers: list[int]) -> list[dict[str, Any]]:
        return [{"tokens": sequence(3), "document": number} for number in numbers]

    path = write(tmp_path / "a.idx", samples(documents), schema, checksums=True)
    assert dict(bp.open(path).schema) == schema
    assert bp.verify(path).ok
    write(tmp_path / "a.idx", samples([2, 3]), schema, mode="append")
    assert [sample["document"] for sample in bp.open(path)] == [*documents, 2, 3]
    assert bp.verify(path).ok


def test_the_field_can_be_asked_for_or_left_out(tmp_path: Path) -> None:
    path = write(tmp_path / "a.idx", [{"tokens": sequence(n)} for n in range(3)])
    assert list(bp.open(path).schema) == ["tokens"]
    assert [sample["document"] for sample in bp.open(path, documents=True)] == [0, 1, 2]
    assert list(bp.open(OURS / "parts", documents=False).schema) == ["tokens", "mode"]


def test_documents_that_are_mixed_are_refused(tmp_path: Path) -> None:
    with pytest.raises(bp.EncodeError, match=r"document 0 comes after 1.*--fields tokens") as told:
        numbered(tmp_path / "a.idx", [0, 1, 0])
    assert (told.value.sample, told.value.field) == (2, "document")
    with pytest.raises(bp.EncodeError, match="comes after"):
        numbered(tmp_path / "a.idx", [0, megatron.MAX_DOCUMENT_GAP + 1])
    with pytest.raises(bp.EncodeError, match="-1 is no number from 0"):
        numbered(tmp_path / "a.idx", [-1])
    assert os.listdir(tmp_path) == []


# -- writing -----------------------------------------------------------------------------------------------


def test_tokens_are_stored_as_asked_for_if_all_fit(tmp_path: Path) -> None:
    schema = {"tokens": bp.Tensor("int64", (None,))}
    good = [{"tokens": sequence(n, "int64") + 60_000} for n in range(4)]
    path = write(tmp_path / "a.idx", good, schema, dtype="uint16", checksums=True)
    assert bp.open(path).schema["tokens"] == bp.Tensor("uint16", (None,))
    assert (tmp_path / "a.bin").stat().st_size == 12
    assert bp.verify(path).ok
    for wrong in (65_536, -1):
        with pytest.raises(bp.EncodeError, match=f"sample 1, .*the token {wrong} is no uint16"):
            write(tmp_path / "b.idx", [*good[:1], {"tokens": np.array([1, wrong])}], schema, dtype="uint16")
    with bp.create(tmp_path / "b.idx", schema, dtype="uint16", on_error="skip") as out:
        for sample in (*good[:2], {"tokens": np.array([1, -1])}, good[3]):
            out.append(sample)
    assert [len(sample["tokens"]) for sample in bp.open(tmp_path / "b.idx")] == [0, 1, 3]
    with pytest.raises(bp.OptionError, match=r"dtype is one of .*uint16.*not 'uint24'"):
        bp.create(tmp_path / "c.idx", schema, dtype="uint24")
    with pytest.raises(bp.OptionError, match="float32 are not stored as uint16"):
        bp.create(tmp_path / "c.idx", {"tokens": bp.Tensor("float32", (None,))}, dtype="uint16")


def test_what_has_no_code_is_stored_as_what_holds_it(tmp_path: Path) -> None:
    path = write(
        tmp_path / "a.idx", [{"tokens": sequence(4, "uint32")}], {"tokens": bp.Tensor("uint32", (4,))}
    )
    assert bp.open(path)[0]["tokens"].dtype == np.int32
    with pytest.raises(bp.EncodeError, match="4294967295 is no int32"):
        write(tmp_path / "b.idx", [{"tokens": np.array([2**32 - 1], np.uint32)}],
              {"tokens": bp.Tensor("uint32", (None,))})  # fmt: skip


def test_ids_of_a_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Columns of tables may have gaps, as far as their types say."""
    schema = {"input_ids": bp.Tensor("int64", (None,), optional=True), "document": bp.Int(optional=True)}
    ids = [[1, 2, 3], [], [4], None]
    with bp.create(tmp_path / "a.jsonl", schema) as out:
        for number, item in enumerate(ids):
            tokens = None if item is None else np.array(item, np.int64)
            out.append({"input_ids": tokens, "document": number // 2})
    how = {"rename": {"input_ids": "tokens"}, "target_options": {"dtype": "uint16"}}
    with pytest.raises(bp.EncodeError, match="sample 3, field 'tokens': it is missing"):
        bp.convert(tmp_path / "a.jsonl", tmp_path / "a.idx", **how)
    done = bp.convert(tmp_path / "a.jsonl", tmp_path / "a.idx", on_error="skip", **how)
    assert len(done.skipped) == 1
    assert [sample["tokens"].tolist() for sample in bp.open(tmp_path / "a.idx")] == ids[:3]
    assert [sample["document"] for sample in bp.open(tmp_path / "a.idx")] == [0, 0, 1]
    assert main(["convert", str(tmp_path / "a.idx"), str(tmp_path / "b.idx"), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["bytes"] == sum((tmp_path / name).stat().st_size for name in ("b.idx", "b.bin"))
    assert main(["info", str(tmp_path / "b.idx"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["bytes"] == told["bytes"]


@pytest.mark.parametrize(
    ("name", "schema", "message"),
    [
        ("a.idx", {"input_ids": bp.Tensor("int32", (None,))}, "--rename input_ids=tokens"),
        ("a.idx", {**TOKENS, "text": bp.Text()}, "leave 'text' out"),
        ("a.idx", {"tokens": bp.Text()}, "tokens is text"),
        ("a.idx", {**TOKENS, "mode": bp.Bool()}, "leave 'mode' out"),
        ("a.idx", {"tokens": bp.Tensor("bool", (None,))}, "no tokens of bool"),
        ("a.idx", {"tokens": bp.Tensor("int32", (None, 2))}, "one axis"),
        ("a.bin", TOKENS, "NAME.idx"),
    ],
)
def test_what_it_does_not_hold(name: str, schema: Any, message: str, tmp_path: Path) -> None:
    with pytest.raises(bp.BatchplantError, match=message):
        bp.create(tmp_path / name, schema, format="megatron")
    assert os.listdir(tmp_path) == []


def test_a_bin_of_somebody_else_is_not_overwritten(tmp_path: Path) -> None:
    (tmp_path / "model.bin").write_bytes(b"weights")
    with pytest.raises(bp.ExistsError, match=r"model\.bin"):
        bp.create(tmp_path / "model.idx", TOKENS)
    assert (tmp_path / "model.bin").read_bytes() == b"weights"


def test_the_new_follows_the_old(tmp_path: Path) -> None:
    path = numbered(tmp_path / "a.idx", [0, 1, 1], checksums=True)
    old = (tmp_path / "a.bin").read_bytes()
    before = bp.open(path)
    with pytest.raises(bp.EncodeError, match="document 0 comes after 1"):
        numbered(tmp_path / "a.idx", [0], mode="append")
    numbered(tmp_path / "a.idx", [1, 2, 2], mode="append")
    with bp.open(path) as reader:
        assert [row["document"] for row in reader] == [0, 1, 1, 1, 2, 2]
        assert [row["tokens"].tolist() for row in reader] == [list(range(n % 3)) for n in range(6)]
        assert [row["mode"] for row in reader] == [0, 1, 0, 0, 1, 0]
    assert (tmp_path / "a.bin").read_bytes().startswith(old)
    assert bp.verify(path).ok
    assert len(before.refresh()) == 6
    assert [row["document"] for row in before] == [0, 1, 1]
    with pytest.raises(bp.BatchplantError, match="field 'tokens'"):
        bp.create(path, {**NUMBERED, "tokens": bp.Tensor("int64", (None,))}, mode="append")
    with pytest.raises(bp.OptionError, match="its tokens are int32, not uint16"):
        bp.create(path, mode="append", dtype="uint16")
    assert sorted(os.listdir(tmp_path)) == ["a.bin", "a.idx", "a.idx.crc"]


def test_appended_one_document_each_equals_written_at_once(tmp_path: Path) -> None:
    samples = [{"tokens": sequence(n)} for n in range(7)]
    write(tmp_path / "a.idx", samples[:3], mode="append")
    write(tmp_path / "a.idx", samples[3:], mode="append")
    write(tmp_path / "b.idx", samples)
    for suffix in (".idx", ".bin"):
        assert (tmp_path / f"a{suffix}").read_bytes() == (tmp_path / f"b{suffix}").read_bytes()


def test_shards_and_folders(tmp_path: Path) -> None:
    samples = [{"tokens": sequence(n)} for n in range(7)]
    with bp.create(tmp_path / "a.idx", TOKENS, shard_samples=3) as out:
        for sample in samples:
            out.append(sample)
    assert len(os.listdir(tmp_path)) == 6
    for path in (tmp_path, tmp_path / "*", tmp_path / "*.idx", tmp_path / "*.bin"):
        assert [len(sample["tokens"]) for sample in bp.open(path)] == list(range(7)), path


# -- for training ------------------------------------------------------------------------------------------


def test_lengths_are_known_and_rows_are_packed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    samples = [{"tokens": 1 + rng.integers(0, 99, n).astype(np.int32)} for n in rng.integers(0, 40, 50)]
    path = write(tmp_path / "a.idx", samples)
    with bp.open(path) as reader, monkeypatch.context() as patch:
        patch.setattr(type(reader), "_read", None)
        assert are_known(reader, ["tokens"])
        lengths = [len(sample["tokens"]) for sample in samples]
        assert sizes_of(reader, ["tokens"], np.arange(50)).tolist() == [4 * n for n in lengths]
    loader = bp.Loader(bp.open(path), 4, order="random", pack=Pack(64, eos=0))
    rows = [batch["tokens"] for batch in loader]
    loader.close()
    seen = np.concatenate([row.reshape(-1) for row in rows])
    assert sorted(seen[seen > 0].tolist()) == sorted(
        np.concatenate([sample["tokens"] for sample in samples]).tolist()
    )


def test_read_from_a_bucket_by_ranges(
    bucket: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = numbered(tmp_path / "a.idx", [n // 3 for n in range(40)])
    for suffix in (".idx", ".bin"):
        bucket.put(f"set/a{suffix}", (tmp_path / f"a{suffix}").read_bytes())
    with bp.open(path) as near:
        expected = [(row["tokens"].tolist(), row["document"], row["mode"]) for row in near]
    for max_bytes in (megatron.Index.max_fetched_bytes, 0):
        monkeypatch.setattr(megatron.Index, "max_fetched_bytes", max_bytes)
        for name in ("a.idx", "a.bin"):
            with bp.open(f"{bucket.url}/set/{name}", endpoint=bucket.endpoint) as far:
                assert [(row["tokens"].tolist(), row["document"], row["mode"]) for row in far] == expected
                assert far.spans("tokens", [3]).size.tolist() == [12]
        rows = []
        for place, options in ((path, {}), (f"{bucket.url}/set/a.idx", {"endpoint": bucket.endpoint})):
            with bp.open(place, **options) as reader:
                loader = bp.Loader(reader, 2, order="random", seed=1, pack=Pack(64, eos=0))
                rows.append([batch["tokens"].tolist() for batch in loader])
                loader.close()
        assert rows[0] == rows[1]


# -- damage ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"MMIDIDX\0", "does not begin with MMIDIDX"),
        (megatron.MAGIC + bytes(10), "ends inside of its header"),
        (header(0, 1, version=2) + bytes(8), "version 2"),
        (header(0, 1, code=9) + bytes(8), "9 is no code"),
        (header(2**63, 1) + bytes(100), "do not take 134 bytes"),
        (header(1, 2**64 - 1) + bytes(100), "do not take 134 bytes"),
        (header(1, 2) + bytes(27), "do not take 61 bytes"),
        (header(1, 2) + struct.pack("<iqqq", 3, 0, 0, 1), "lie at 0 to 6 of .*a.bin, which has 4 bytes"),
        (header(1, 2) + struct.pack("<iqqq", -1, 0, 0, 1), "lie at 0 to -2"),
        (header(1, 2) + struct.pack("<iqqq", 1, -2, 0, 1), "lie at -2"),
        (header(1, 2) + struct.pack("<iqqq", 1, 2**63 - 1, 0, 1), "lie at 9223372036854775807"),
    ],
)  # fmt: skip
def test_hostile_indexes(content: bytes, message: str, tmp_path: Path) -> None:
    (tmp_path / "a.idx").write_bytes(content)
    (tmp_path / "a.bin").write_bytes(bytes(4))
    with memory_bounded(1 << 10), pytest.raises(bp.DamagedError, match=message) as told:
        bp.open(tmp_path / "a.idx", format="megatron")
    assert told.value.path == str(tmp_path / "a.idx")


def test_sequences_upon_each_other_take_no_memory(tmp_path: Path) -> None:
    count, size = 2000, 1 << 20
    entries = np.full(count, size // 2, "<i4").tobytes() + bytes(8 * count)
    entries += np.arange(count + 1).astype("<i8").tobytes()
    (tmp_path / "a.idx").write_bytes(header(count, count + 1) + entries)
    (tmp_path / "a.bin").write_bytes(bytes(size))
    with bp.open(tmp_path / "a.idx") as reader:
        assert len(reader[7]["tokens"]) == size // 2
        with memory_bounded(size), pytest.raises(bp.DamagedError, match="upon each other"):
            reader.read(range(count))


@pytest.mark.parametrize(
    ("documents", "message"),
    [([0, 2, 1, 3], "1 comes after 2"), ([1, 2, 3], "1 comes after 0"), ([0, 2], "2 sequences, and there"),
     ([0, 4], "4 sequences"), ([0, -1, 3], "-1 comes after 0")],
)  # fmt: skip
def test_lists_of_documents_that_are_wrong(documents: list[int], message: str, tmp_path: Path) -> None:
    sound = struct.pack("<3i3q", 1, 1, 0, 0, 2, 4)
    listed = np.array(documents, "<i8").tobytes()
    (tmp_path / "a.idx").write_bytes(header(3, len(documents)) + sound + listed)
    (tmp_path / "a.bin").write_bytes(bytes(4))
    result = bp.verify(tmp_path / "a.idx").problems
    assert message in result[0].message
    assert result[0].offset is not None
    with bp.open(tmp_path / "a.idx") as opened:
        for row in range(3):
            with contextlib.suppress(bp.DamagedError):
                assert 0 <= opened[row].get("document", 0) < len(documents)


@pytest.mark.parametrize("name", ["a.idx", "a.bin"])
def test_one_of_the_pair_is_missing(name: str, tmp_path: Path) -> None:
    write(tmp_path / "a.idx", [{"tokens": sequence(3)}])
    (tmp_path / name).unlink()
    with pytest.raises(bp.NotFoundError, match=name):
        bp.open(tmp_path / "a.idx", format="megatron")


def test_opening_a_pair_opens_few_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """There may be thousands of pairs: the index for its header and for its ends, the tokens once."""
    path, opened = write(tmp_path / "a.idx", [{"tokens": sequence(3)}]), list[str]()

    def counted(path: str) -> Any:
        opened.append(Path(path).name)
        return files.open_with_status(path)

    monkeypatch.setattr(local, "open_with_status", counted)
    bp.open(path)
    assert sorted(opened) == ["a.bin", "a.idx", "a.idx"]


def test_a_billion_sequences_open_without_being_read(tmp_path: Path) -> None:
    """A sparse file: opening touches both ends of it, reading what is asked for."""
    count, last = 10**9, 10**9 - megatron.CHECKED_ENTRIES
    documents = megatron.ARRAYS + 12 * count
    try:
        with open(tmp_path / "a.idx", "wb") as file:
            file.write(header(count, count + 1))
            file.truncate(documents + 8 * (count + 1))
            file.seek(documents)
            file.write(np.arange(megatron.CHECKED_ENTRIES).astype("<i8"))
            file.seek(documents + 8 * last)
            file.write(np.arange(last, count + 1).astype("<i8"))
    except OSError:
        pytest.skip("no sparse files here")
    (tmp_path / "a.bin").write_bytes(b"")
    before = resident_memory("VmHWM")
    with bp.open(tmp_path / "a.idx") as reader:
        assert len(reader) == count
        assert list(reader.schema) == ["tokens"]
        assert reader.read([count - 1, 3])["tokens"].sizes.tolist() == [0, 0]
    assert resident_memory("VmHWM") - before < 64 << 20


@pytest.mark.parametrize("overwrite", [False, True])
@pytest.mark.parametrize("name", ["a.tar", "a.rec"])
def test_it_is_no_index_of_another_dataset(name: str, overwrite: bool, tmp_path: Path) -> None:
    """Tar files and RecordIO have an index NAME.idx, which would go with what it belongs to."""
    with bp.create(tmp_path / "a.idx", {"tokens": bp.Tensor("int32", (None,))}) as out:
        out.append({"tokens": np.arange(3, dtype=np.int32)})
    with pytest.raises(bp.ExistsError, match=r"a\.idx beside it is a dataset of another format \(megatron\)"):
        bp.create(tmp_path / name, {"n": bp.Int()}, overwrite=overwrite)
    assert bp.open(tmp_path / "a.idx")[0]["tokens"].tolist() == [0, 1, 2]
    # One that really is an index goes.
    (tmp_path / "a.idx").write_text("v1.2 1\n")
    with bp.create(tmp_path / name, {"n": bp.Int()}) as out:
        out.append({"n": 1})
    assert len(bp.open(tmp_path / name)) == 1
