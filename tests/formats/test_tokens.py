"""Flat files of tokens: the suite, rows and documents, .npy, the index, notes, and what is damaged."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

import batchplant as bp
from batchplant.data.sizes import sizes_of
from batchplant.loading.packing import Pack
from batchplant.testing import FormatSuite
from repository import GOLDEN
from servers import Bucket
from variants import in_one_test

TOKENS = {"tokens": bp.Tensor("uint16", (None,))}


class TestTokens(FormatSuite):
    format = "tokens"
    suffix = ".bin"
    options: ClassVar[dict[str, Any]] = {"eos": 100}
    golden = GOLDEN

    def test_content_tells_the_format(self, tmp_path: Path) -> None:
        """What lies beside a .bin does."""
        path = self.written(tmp_path)
        assert bp.open(path).format == "tokens"


class TestNpy(FormatSuite):
    format = "tokens"
    suffix = ".npy"
    options: ClassVar[dict[str, Any]] = {"eos": 100}
    wraps = True

    def test_content_tells_the_format(self) -> None:
        pytest.skip("an array of numbers stays one")

    def test_a_conversion_keeps_every_byte(self, tmp_path: Path) -> None:
        path, again = self.written(tmp_path), self.path(tmp_path, "again")
        bp.convert(self.open(path), again, target_options={"format": "tokens", "eos": 100})
        assert Path(path).read_bytes() == Path(again).read_bytes()

    def test_an_interrupted_conversion_resumes(self) -> None:
        pytest.skip("the same as of .bin")


def flat(path: Path, values: Any, dtype: str = "<u2") -> str:
    np.asarray(values, dtype).tofile(path)
    return str(path)


def texts(path: Any, **options: Any) -> list[list[int]]:
    with bp.open(path, format="tokens", **options) as reader:
        return [row["tokens"].tolist() for row in reader]


def write(path: Path, samples: list[list[int]], schema: Any = None, **options: Any) -> str:
    with bp.create(path, TOKENS if schema is None else schema, format="tokens", **options) as out:
        for sample in samples:
            out.append({"tokens": np.array(sample, "uint16")})
    return str(path)


# -- reading -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("suffix", [".bin", ".npy"])
def test_rows_and_documents(suffix: str, tmp_path: Path) -> None:
    values = [1, 2, 0, 0, 3, 4, 5, 0, 6]
    path = flat(tmp_path / "a.bin", values)
    output = {"dtype": "uint16"}
    if suffix == ".npy":
        path, output = str(tmp_path / "a.npy"), {}
        np.save(path, np.array(values, np.uint16))
    assert texts(path, length=4, **output) == [[1, 2, 0, 0], [3, 4, 5, 0], [6]]
    assert texts(path, length=4, drop_last=True, **output) == [[1, 2, 0, 0], [3, 4, 5, 0]]
    assert texts(path, eos=0, **output) == [[1, 2], [], [3, 4, 5], [6]]
    assert texts(path, eos=0, keep_eos=True, **output) == [[1, 2, 0], [0], [3, 4, 5, 0], [6]]
    assert texts(path, eos=6, **output) == [values[:-1]]
    assert texts(path, eos=9, **output) == [values]
    with bp.open(path, format="tokens", length=3, **output) as reader:
        assert reader.schema["tokens"] == bp.Tensor("uint16", (3,))
        assert reader.spans("tokens", [1]).size.tolist() == [6]


def test_a_npy_without_the_format_is_numbers(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.arange(5))
    assert list(bp.open(tmp_path / "a.npy").schema) == ["data"]


@in_one_test(
    ("options", "message"),
    [
        ({}, "dtype='uint16'"),
        ({"dtype": "uint16"}, "length=1024"),
        ({"dtype": "uint16", "length": 3, "eos": 0}, "length=1024"),
        ({"dtype": "float32", "length": 3}, "dtype is one of uint8"),
        ({"dtype": "uint16", "length": 0}, "at least 1"),
        ({"dtype": "uint16", "eos": 65_536}, "65536 is no uint16"),
        ({"dtype": "uint16", "eos": "x"}, "eos"),
    ],
)
def test_options_that_do_not_fit(options: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(bp.OptionError, match=message):
        bp.open(flat(tmp_path / "a.bin", range(10)), format="tokens", **options)


def test_files_that_do_not_fit(tmp_path: Path) -> None:
    with pytest.raises(bp.DamagedError, match="20 bytes are no whole number of tokens of int64"):
        texts(flat(tmp_path / "a.bin", range(10)), dtype="int64", length=2)
    for array in (np.zeros((2, 3), np.uint16), np.zeros(3), np.zeros(3, ">u2")):
        np.save(tmp_path / "a.npy", array)
        with pytest.raises(bp.DamagedError, match="little-endian array of one axis"):
            texts(tmp_path / "a.npy", length=2)
    np.save(tmp_path / "a.npy", np.zeros(3, np.uint16))
    with pytest.raises(bp.OptionError, match="its tokens are uint16, not int32"):
        texts(tmp_path / "a.npy", length=2, dtype="int32")
    with open(tmp_path / "a.npy", "ab") as file:
        file.write(bytes(2))
    with pytest.raises(bp.DamagedError, match="promises 6 bytes"):
        texts(tmp_path / "a.npy", length=2)


def test_documents_are_found_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = flat(tmp_path / "a.bin", [1, 0, 2, 3, 0])
    how: dict[str, Any] = {"dtype": "uint16", "index": "write"}
    assert texts(path, eos=0, **how) == [[1], [2, 3]]
    with bp.open(path, format="tokens", eos=0, **how) as reader, monkeypatch.context() as patch:
        patch.setattr(type(reader), "_scan", None)
        assert len(reader.refresh()) == 2
    # That of another token, or dtype, is another one.
    assert texts(path, eos=3, **how) == [[1, 0, 2], [0]]
    assert texts(path, eos=3, **{**how, "dtype": "uint8"}) == [[1, 0, 0, 0, 2, 0], [0, 0, 0]]
    # What was appended is looked at from there on.
    assert texts(path, eos=0, **how) == [[1], [2, 3]]
    with open(path, "ab") as file:
        file.write(np.array([7, 0, 8], "<u2"))
    assert texts(path, eos=0, **how) == [[1], [2, 3], [7], [8]]


def test_lengths_are_known_and_rows_are_packed(tmp_path: Path) -> None:
    path = write(tmp_path / "a.bin", [[1, 2, 3], [], [4, 5]], eos=0)
    with bp.open(path) as reader:
        assert sizes_of(reader, ["tokens"], np.arange(3)).tolist() == [6, 0, 4]
    loader = bp.Loader(bp.open(path), 1, order="sequential", pack=Pack(8, eos=0))
    assert [batch["tokens"].tolist() for batch in loader] == [[[1, 2, 3, 0, 0, 4, 5, 0]]]
    loader.close()


def test_read_from_a_bucket(bucket: Bucket) -> None:
    url = bucket.put("train.bin", np.array([1, 0, 2, 3, 0], "<u2").tobytes())
    assert texts(url, dtype="uint16", eos=0, endpoint=bucket.endpoint) == [[1], [2, 3]]
    assert texts(url, dtype="uint16", length=4, endpoint=bucket.endpoint) == [[1, 0, 2, 3], [0]]


# -- writing -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("suffix", [".bin", ".npy"])
def test_documents_are_appended(suffix: str, tmp_path: Path) -> None:
    path = write(tmp_path / f"a{suffix}", [[1, 2], []], eos=0, checksums=True)
    write(tmp_path / f"a{suffix}", [[3], [4, 5]], mode="append")
    result = np.load(path) if suffix == ".npy" else np.fromfile(path, "<u2")
    assert result.tolist() == [1, 2, 0, 0, 3, 0, 4, 5, 0]
    assert texts(path) == [[1, 2], [], [3], [4, 5]]
    assert bp.verify(path, format="tokens").ok
    assert sorted(os.listdir(tmp_path)) == [f"a{suffix}{text}" for text in ("", ".crc", ".tokens.json")]


def test_files_of_others_are_appended_to(tmp_path: Path) -> None:
    path = flat(tmp_path / "a.bin", [1, 2, 0])
    with pytest.raises(bp.OptionError, match="dtype='uint16'"):
        write(tmp_path / "a.bin", [[3]], mode="append", eos=0)
    write(tmp_path / "a.bin", [[3]], mode="append", eos=0, dtype="uint16")
    assert np.fromfile(path, "<u2").tolist() == [1, 2, 0, 3, 0]
    assert os.listdir(tmp_path) == ["a.bin"]
    flat(tmp_path / "a.bin", [1, 2])
    with pytest.raises(bp.OptionError, match="does not end with 0, but with 2"):
        write(tmp_path / "a.bin", [[3]], mode="append", eos=0, dtype="uint16")


def test_rows_of_one_length_need_no_eos(tmp_path: Path) -> None:
    schema = {"tokens": bp.Tensor("uint16", (2,))}
    path = write(tmp_path / "a.bin", [[1, 2], [3, 4]], schema)
    write(tmp_path / "a.bin", [[5, 6]], schema, mode="append")
    assert np.fromfile(path, "<u2").tolist() == [1, 2, 3, 4, 5, 6]
    assert dict(bp.open(path).schema) == schema
    assert texts(path) == [[1, 2], [3, 4], [5, 6]]
    with pytest.raises(bp.OptionError, match="eos=50256"):
        write(tmp_path / "b.bin", [])


def test_what_documents_may_not_have(tmp_path: Path) -> None:
    with pytest.raises(bp.EncodeError, match=r"sample 1, field 'tokens': it has the token 7 inside"):
        write(tmp_path / "a.bin", [[1], [2, 7, 3]], eos=7)
    with pytest.raises(bp.OptionError, match="300 is no uint8"):
        write(tmp_path / "a.bin", [], eos=300, dtype="uint8")
    with pytest.raises(bp.EncodeError, match="the token 300 is no uint8"):
        write(tmp_path / "a.bin", [[1], [300]], eos=0, dtype="uint8")
    assert os.listdir(tmp_path) == []


def test_notes_that_are_damaged(tmp_path: Path) -> None:
    path = write(tmp_path / "a.bin", [[1], [2, 3]], eos=0)
    note = tmp_path / "a.bin.tokens.json"
    whole = json.loads(note.read_text())
    for wrong in ({"dtype": 3}, {**whole, "eos": "x"}, {**whole, "dtype": "object"}, {**whole, "length": 0}):
        note.write_text(json.dumps(wrong))
        with pytest.raises(bp.BatchplantError):
            bp.open(path)
    note.write_text(json.dumps({**whole, "tokens": 7}))
    assert "it has 5 tokens, and 7 were written" in bp.verify(path).problems[0].message
    # Who says it all needs no note.
    note.write_text("{")
    assert texts(path, dtype="uint16", eos=0) == [[1], [2, 3]]
