"""Text as token ids: the op Tokenize, and convert(tokenize=…)."""

from __future__ import annotations

import importlib
import json
import pickle
import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import batchplant
import repository
from batchplant import Bytes, Mix, Pack, Pipe, Tensor, Text
from batchplant.codecs import tokens as libraries
from batchplant.errors import DecodeError, MissingLibraryError, NotFoundError, OptionError
from batchplant.ops import Convert, Function, Pad, Tokenize

tokenizers = pytest.importorskip("tokenizers")
GOLDEN = repository.GOLDEN / "tokenizer"
FILE = GOLDEN / "tokenizer.json"
KNOWN = json.loads((GOLDEN / "ids.json").read_text(encoding="utf-8"))
TEXTS = [row["text"] for row in KNOWN]
BEGIN, END = 1, 2


def ids_of(op: Any, texts: list[Any] = TEXTS, **how: Any) -> list[list[int]]:
    loader = batchplant.Loader(batchplant.open({"text": texts}), 5, pipelines={"text": [op]}, **how)
    result = []
    for batch in loader:
        values, offsets = batch["text"]
        result += [part.tolist() for part in np.split(values, offsets[1:-1])]
    return result


def letters(text: str) -> list[int]:
    return [ord(item) for item in text]


# -- the op -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("key", "special"), [("ids", True), ("plain", False)])
def test_ids_are_those_of_the_library_one_by_one(key: str, special: bool) -> None:
    assert ids_of(Tokenize(FILE, add_special_tokens=special)) == [item[key] for item in KNOWN]
    given = tokenizers.Tokenizer.from_file(str(FILE))
    assert ids_of(Tokenize(given, add_special_tokens=special)) == [item[key] for item in KNOWN]


def test_options() -> None:
    ids, plain = ([item[key] for item in KNOWN] for key in ("ids", "plain"))
    assert ids_of(Tokenize(GOLDEN, eos="</s>")) == [[*number, END] for number in ids]
    # What the tokenizer itself puts there is not put there twice.
    assert ids_of(Tokenize(FILE, bos=BEGIN, eos=END)) == [[*number, END] for number in ids]
    ends = Tokenize(lambda text: [*letters(text), 7], eos=7, max_length=3)
    assert ids_of(ends, ["a", "ab", "abc"]) == [[97, 7], [97, 98, 7], [97, 98, 7]]
    own = {"add_special_tokens": False, "bos": "<s>"}
    assert ids_of(Tokenize(FILE, **own)) == ids
    assert ids_of(Tokenize(FILE, max_length=8)) == [number[:8] for number in ids]
    assert ids_of(Tokenize(FILE, max_length=8, eos=END)) == [[*number[:7], END] for number in ids]
    left = ids_of(Tokenize(FILE, max_length=8, truncate="left", add_special_tokens=False, eos=END))
    assert left == [[*item[max(0, len(item) - 7) :], END] for item in plain]
    (batch,) = batchplant.Loader({"text": TEXTS[:3]}, 3, pipelines={"text": [Tokenize(FILE, dtype="uint16")]})
    assert batch["text"][0].dtype == np.uint16


def test_what_pads_and_cuts_in_a_file_leaves_no_padding(tmp_path: Path) -> None:
    """Ids must not depend on what else is in a batch."""
    result = tokenizers.Tokenizer.from_file(str(FILE))
    result.enable_padding(length=64)
    result.enable_truncation(6)
    result.save(str(tmp_path / "tokenizer.json"))
    assert ids_of(Tokenize(tmp_path)) == [row["ids"][:6] for row in KNOWN]
    assert ids_of(Tokenize(result, max_length=9)) == [row["ids"][:9] for row in KNOWN]
    assert result.padding is not None


def test_the_own_end_of_a_tokenizer(tmp_path: Path) -> None:
    assert ids_of(Tokenize(FILE, eos=True))[0][-1] == END
    (tmp_path / "tokenizer.json").write_bytes(FILE.read_bytes())
    (tmp_path / "tokenizer_config.json").write_text('{"eos_token": {"content": "<pad>"}}')
    assert ids_of(Tokenize(tmp_path, eos=True))[0][-1] == 0
    (tmp_path / "tokenizer_config.json").write_text("[" * 100_000)
    assert ids_of(Tokenize(tmp_path, eos=True))[0][-1] == END
    with pytest.raises(OptionError, match="does not say which token is its eos"):
        Tokenize(letters, eos=True)


def test_missing_text_has_no_ids_and_bytes_are_text() -> None:
    texts = ["ab", None, "", "c"]
    assert ids_of(Tokenize(letters, eos=7), texts) == [[97, 98, 7], [], [7], [99, 7]]
    reader = batchplant.open({"text": ["é".encode(), b"\xff", b"a"]})
    assert isinstance(reader.schema["text"], Bytes)
    pipelines = {"text": [Tokenize(letters)]}
    loader = batchplant.Loader(reader, 3, pipelines=pipelines, on_error="skip")
    (batch,) = loader
    assert batch["text"][0].tolist() == [233, 97]
    assert [item.sample for item in loader.skipped] == [1]
    with pytest.raises(DecodeError, match=r"sample 1, field 'text': no text: .*utf-8"):
        list(batchplant.Loader(reader, 3, pipelines=pipelines))


def test_tokenizers_of_other_makers() -> None:
    """By what they have: each is used as its library means it."""

    class Tiktoken:
        name, n_vocab, eot_token = "own", 300, 256

        def encode_ordinary_batch(self, texts: list[str], num_threads: int) -> list[list[int]]:
            return [list(text.encode()) for text in texts]

        def encode_single_token(self, token: str) -> int:
            return {"<|endoftext|>": 256}[token]

    assert ids_of(Tokenize(Tiktoken(), eos=True), ["ab", ""]) == [[97, 98, 256], [256]]
    assert ids_of(Tokenize(Tiktoken(), eos="<|endoftext|>"), ["a"]) == [[97, 256]]
    with pytest.raises(OptionError, match=r"no token '</s>'"):
        Tokenize(Tiktoken(), eos="</s>")

    class Transformers:
        backend_tokenizer = tokenizers.Tokenizer.from_file(str(FILE))
        eos_token_id = 0

    assert ids_of(Tokenize(Transformers(), eos=True)) == [[*row["ids"], 0] for row in KNOWN]

    class Batches:
        def encode_batch(self, texts: list[str]) -> list[Any]:
            return [types.SimpleNamespace(ids=letters(text)) for text in texts]

    assert ids_of(Tokenize(Batches()), ["ab", "c"]) == [[97, 98], [99]]
    assert ids_of(Tokenize(lambda text: {"input_ids": np.array(letters(text))}), ["ab"]) == [[97, 98]]


def test_real_tiktoken() -> None:
    tiktoken = pytest.importorskip("tiktoken")
    ranks = {bytes([number]): number for number in range(256)}
    encoding = tiktoken.Encoding(
        "bytes", pat_str=r".", mergeable_ranks=ranks, special_tokens={"<|endoftext|>": 256}
    )
    text = "<|endoftext|> is text"
    assert ids_of(Tokenize(encoding, eos=True), [text]) == [[*text.encode(), 256]]


def test_a_function_that_fails_is_shown_with_its_sample() -> None:
    def fails(text: str) -> list[int]:
        if text == "bad":
            raise RuntimeError("no such word")
        return [1]

    with pytest.raises(RuntimeError, match="no such word") as caught:
        ids_of(Tokenize(fails), ["a", "b", "bad", "c"])
    assert "sample 2" in "".join(caught.value.__notes__)
    with pytest.raises(DecodeError, match=r"sample 1, field 'text': a tokenizer gives a row of ids"):
        ids_of(Tokenize(lambda text: 0.5 if text == "b" else [1]), ["a", "b"])
    with pytest.raises(DecodeError, match=r"sample 1, field 'text': the id 300 is no uint8"):
        ids_of(Tokenize(lambda text: [300] if text == "b" else [1], dtype="uint8"), ["a", "b"])


def test_it_comes_before_pad_and_packing_and_behind_functions() -> None:
    texts = ["ab", "cdefg", "hi"]
    upper = Function(lambda batch: [item.upper() for item in batch])
    loader = batchplant.Loader(
        {"text": texts}, 3, pipelines={"ids": Pipe("text", [upper, Tokenize(letters), Pad(4)]), "text": None}
    )
    (batch,) = loader
    assert batch["ids"].tolist() == [[65, 66, 0, 0], [67, 68, 69, 70], [72, 73, 0, 0]]
    pipelines = {"tokens": Pipe("text", [Tokenize(letters)]), "text": None}
    pack = Pack(8, eos=1, strategy="first_fit")
    (batch,) = batchplant.Loader({"text": texts}, 3, pipelines=pipelines, pack=pack)
    assert batch["tokens"].tolist() == [[97, 98, 1, 104, 105, 1, 0, 0], [99, 100, 101, 102, 103, 1, 0, 0]]
    with pytest.raises(OptionError, match="Tokenize takes text, and this is Int"):
        batchplant.Loader({"n": [1, 2]}, 1, pipelines={"n": [Tokenize(letters)]})


def test_mixtures_of_text_are_packed_and_go_on_exactly() -> None:
    sources = {
        "a": (batchplant.open({"text": [f"{text} {n}" for n in range(3) for text in TEXTS]}), 2),
        "b": (batchplant.open({"text": TEXTS[:5]}), 1),
    }
    mix = Mix(sources, stop="all")
    how: dict[str, Any] = {
        "order": "random", "seed": 4, "pack": Pack(48, eos=END, window=12),
        "pipelines": {"tokens": Pipe("text", [Tokenize(FILE)]), "text": None},
    }  # fmt: skip

    def rows(loaders: list[Any]) -> list[Any]:
        return [batch["tokens"] for step in zip(*loaders, strict=True) for batch in step]

    whole = np.concatenate(rows([batchplant.Loader(mix, 3, **how)]))
    two = [batchplant.Loader(mix, 3, rank=rank, world_size=2, **how) for rank in range(2)]
    epochs = [iter(item) for item in two]
    given = [next(epoch)["tokens"] for _ in range(3) for epoch in epochs]
    three = [batchplant.Loader(mix, 2, rank=rank, world_size=3, **how) for rank in range(3)]
    for item in three:
        item.load_state_dict(json.loads(json.dumps(two[1].state_dict())))
    np.testing.assert_array_equal(np.concatenate([*given, *rows(three)]), whole)
    for value in (*two, *three):
        value.close()


def test_it_travels_by_its_file_which_must_stay_the_same(tmp_path: Path) -> None:
    file = tmp_path / "tokenizer.json"
    file.write_bytes(FILE.read_bytes())
    op = Tokenize(file, eos=True)
    travelling = pickle.dumps(op)
    assert len(travelling) < 1000
    assert ids_of(pickle.loads(travelling)) == ids_of(op)
    loader = batchplant.Loader({"text": TEXTS}, 4, pipelines={"text": [op]})
    assert next(iter(pickle.loads(pickle.dumps(loader))))["text"][0].tolist() == [
        *ids_of(op)[0], *ids_of(op)[1], *ids_of(op)[2], *ids_of(op)[3],
    ]  # fmt: skip
    other = tokenizers.Tokenizer.from_file(str(file))
    other.add_tokens(["batchplant"])
    other.save(str(file))
    with pytest.raises(OptionError, match="is not the one that it was"):
        pickle.loads(travelling)
    held = Tokenize(other)
    assert ids_of(pickle.loads(pickle.dumps(held)), ["batchplant"]) == ids_of(held, ["batchplant"])


@pytest.mark.parametrize(
    ("given", "options", "error", "message"),
    [
        ("nothing.json", {}, NotFoundError, "no such file"),
        (__file__, {}, OptionError, r"no file of the tokenizers library \(tokenizer.json\)"),
        (7, {}, OptionError, "a tokenizer is the path of a tokenizer.json"),
        (FILE, {"eos": "<nothing>"}, OptionError, "it has no token '<nothing>', which is to be its eos"),
        (FILE, {"eos": -1}, OptionError, "eos is an id from 0 on, not -1"),
        (FILE, {"max_length": 1}, OptionError, "max_length is at least 2: the tokenizer adds 1"),
        (FILE, {"max_length": 2, "bos": 0, "eos": 2}, OptionError, "max_length is at least 3"),
        (FILE, {"truncate": "middle"}, OptionError, "truncate is right or left"),
        (FILE, {"dtype": "float32"}, OptionError, "ids are whole numbers"),
    ],
)
def test_what_makes_no_sense_is_said(given: Any, options: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        Tokenize(given, **options)


def test_without_the_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(importlib.import_module("sys").modules, "tokenizers", None)
    with pytest.raises(MissingLibraryError, match=r"pip install \"batchplant\[text\]\""):
        Tokenize(FILE)


def test_ranks_of_one_machine_share_its_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    """The library's threads are started with our number, and the environment stays as it was."""
    seen = []
    monkeypatch.setattr(libraries, "_started", set())
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "1000")
    monkeypatch.setattr(libraries.os, "cpu_count", lambda: 64)
    monkeypatch.delenv("RAYON_NUM_THREADS", raising=False)
    libraries._bounded(lambda texts: seen.append(libraries.os.environ["RAYON_NUM_THREADS"]))
    libraries._bounded(seen.append)
    assert seen == ["1"]
    assert "RAYON_NUM_THREADS" not in libraries.os.environ


# -- convert ------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("text") / "web.jsonl"
    rows = [{"id": n, "text": f"{TEXTS[n % len(TEXTS)]} {n}", "url": f"u{n}"} for n in range(200)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def expected(source: Path, **how: Any) -> list[list[int]]:
    texts = [json.loads(line)["text"] for line in source.read_text(encoding="utf-8").splitlines()]
    return ids_of(Tokenize(FILE, **how), texts)


@pytest.mark.parametrize("name", ["a.idx", "a.parquet", "a.beton", "a.jsonl"])
def test_ids_take_the_place_of_text(source: Path, name: str, tmp_path: Path) -> None:
    if name == "a.parquet":
        pytest.importorskip("pyarrow")
    done = batchplant.convert(source, tmp_path / name, tokenize={"text": Tokenize(FILE, eos=True)})
    ids = expected(source, eos=True)
    reader = batchplant.open(tmp_path / name)
    assert [sample["tokens"].tolist() for sample in reader] == ids
    assert done.tokens == sum(map(len, ids))
    if name == "a.idx":
        assert done.remarks == ["megatron holds tokens: not written: id, url"]
    else:
        assert list(reader.schema) == ["id", "tokens", "url"]
        assert done.remarks == []


def test_fields_and_names(source: Path, tmp_path: Path) -> None:
    for fields in (["text", "id"], ["tokens", "id"]):
        batchplant.convert(source, tmp_path / "a.beton", tokenize=FILE, fields=fields, overwrite=True)
        assert list(batchplant.open(tmp_path / "a.beton").schema) == ["tokens", "id"]
    both = {"text": FILE, "url": Tokenize(letters, dtype="uint8")}
    batchplant.convert(source, tmp_path / "b.beton", tokenize=both, rename={"url": "letters"})
    schema = batchplant.open(tmp_path / "b.beton").schema
    assert schema["text_tokens"] == Tensor("int32", (None,))
    assert schema["letters"] == Tensor("uint8", (None,))
    with pytest.raises(OptionError, match="only text is tokenized, and this is Int"):
        batchplant.convert(source, tmp_path / "c.beton", tokenize={"id": FILE})
    with pytest.raises(OptionError, match=r"no field 'txt' \(did you mean text\?\)"):
        batchplant.convert(source, tmp_path / "c.beton", tokenize={"txt": FILE})
    with pytest.raises(OptionError, match=r"which field is tokenized\? it has a, b"):
        batchplant.convert({"a": ["x"], "b": ["y"]}, tmp_path / "c.beton", tokenize=FILE)
    with pytest.raises(OptionError, match="as another field is"):
        batchplant.convert({"text": ["x"], "tokens": [1]}, tmp_path / "c.beton", tokenize=FILE)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.beton", "b.beton"]


def test_every_engine_writes_the_same_bytes(source: Path, tmp_path: Path) -> None:
    how: dict[str, Any] = {"tokenize": Tokenize(FILE, eos=True)}
    batchplant.convert(source, tmp_path / "a.idx", **how)
    engine = batchplant.jobs.engines.make("processes", workers=2)
    done = batchplant.convert(source, tmp_path / "b.idx", engine=engine, **how)
    for suffix in ("idx", "bin"):
        assert (tmp_path / f"a.{suffix}").read_bytes() == (tmp_path / f"b.{suffix}").read_bytes()
    assert done.tokens == sum(map(len, expected(source, eos=True)))
    batchplant.convert(
        source,
        tmp_path / "s.idx",
        shuffle=True,
        **how,
        options=batchplant.ConvertOptions(two_passes=True, seed=3),
    )
    batchplant.convert(
        source, tmp_path / "t.idx", shuffle=True, **how, options=batchplant.ConvertOptions(seed=3)
    )
    assert (tmp_path / "s.bin").read_bytes() == (tmp_path / "t.bin").read_bytes()


def test_a_function_that_other_processes_cannot_load(source: Path, tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="other processes cannot load this tokenizer"):
        batchplant.convert(
            source, tmp_path / "a.idx", tokenize={"text": lambda text: [1]}, engine="processes"
        )


def test_shards_are_planned_without_tokenizing(source: Path, tmp_path: Path) -> None:
    calls = []

    def counts(text: str) -> list[int]:
        calls.append(text)
        return letters(text)

    done = batchplant.convert(source, tmp_path / "a.beton", tokenize={"text": counts}, shard_size=4000)
    assert len(done.files) > 2
    assert len(calls) == 200


def test_a_resume_goes_on_with_the_same_tokenizer_alone(source: Path, tmp_path: Path) -> None:
    tuning = batchplant.ConvertTuning(checkpoint_seconds=0, max_batch_rows=10)
    options = batchplant.ConvertOptions(tuning=tuning)
    calls = []

    def stop(now: int, total: int) -> None:
        calls.append(now)
        if len(calls) == 4:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        batchplant.convert(source, tmp_path / "a.idx", tokenize=FILE, progress=stop, options=options)
    other = tokenizers.Tokenizer.from_file(str(FILE))
    other.add_tokens(["batchplant"])
    for tokenize in (other, Tokenize(FILE, eos=True)):
        with pytest.raises(OptionError, match=r"had other options \(tokenize\)"):
            batchplant.convert(source, tmp_path / "a.idx", tokenize=tokenize, resume=True)
    done = batchplant.convert(source, tmp_path / "a.idx", tokenize=FILE, resume=True)
    assert done.resumed_at > 0
    ids = expected(source)
    assert done.tokens == sum(map(len, ids))
    assert [sample["tokens"].tolist() for sample in batchplant.open(tmp_path / "a.idx")] == ids


def test_what_is_no_text_is_named_or_skipped(tmp_path: Path) -> None:
    reader = batchplant.open({"text": [b"a", b"\xff\xff", b"b"]})
    with pytest.raises(DecodeError, match=r"sample 1, field 'text': no text"):
        batchplant.convert(reader, tmp_path / "a.idx", tokenize={"text": letters})
    done = batchplant.convert(reader, tmp_path / "a.idx", tokenize={"text": letters}, on_error="skip")
    assert [item.sample for item in done.skipped] == [1]
    assert [sample["tokens"].tolist() for sample in batchplant.open(tmp_path / "a.idx")] == [[97], [98]]
    optional = batchplant.open({"text": ["a", None, "b"]})
    assert optional.schema["text"] == Text(optional=True)
    batchplant.convert(optional, tmp_path / "b.idx", tokenize=letters)
    assert [sample["tokens"].tolist() for sample in batchplant.open(tmp_path / "b.idx")] == [[97], [], [98]]


def test_the_command(source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main = importlib.import_module("batchplant.cli").main
    target = str(tmp_path / "a.idx")
    assert (
        main(["convert", str(source), target, "--tokenize", str(FILE), "--append-eos", "--max-length", "9"])
        == 0
    )
    output = capsys.readouterr().out
    ids = [[*value[:8], END] for value in expected(source)]
    assert f"200 samples, {sum(map(len, ids)):,} tokens" in output
    assert "tokens/s" in output
    assert [sample["tokens"].tolist() for sample in batchplant.open(target)] == ids
    for wrong, why in (
        (["--field", "text"], "--field goes with --tokenize FILE"),
        (["--tokenize", str(FILE), "--eos", "2", "--append-eos"], "give one of them"),
        (["--tokenize", str(FILE), "--eos", "nothing"], "it has no token 'nothing'"),
    ):
        assert main(["convert", str(source), str(tmp_path / "b.idx"), *wrong]) == 2
        assert why in capsys.readouterr().err


# -- padding ------------------------------------------------------------------------------------------------


def test_a_function_whose_shape_begins_with_none_fits_before_pad() -> None:
    texts = ["ab", "cde"]

    def listed(batch: list[str]) -> list[list[int]]:
        return [letters(item) for item in batch]

    def joined(batch: list[str]) -> tuple[Any, Any]:
        return np.array(letters("".join(batch))), np.cumsum([0, *map(len, batch)])

    for function in (listed, joined):
        pipelines = {"text": [Function(function, shape=(None,)), Pad(4, mask="attention_mask")]}
        loader = batchplant.Loader({"text": texts}, 2, pipelines=pipelines)
        assert str(loader.plan).splitlines()[0].endswith("int64 (4,)")
        (batch,) = loader
        assert batch["text"].tolist() == [[97, 98, 0, 0], [99, 100, 101, 0]]
        assert batch["attention_mask"].tolist() == [[True, True, False, False], [True, True, True, False]]
    wrong = Function(lambda batch: {"input_ids": []}, shape=(None,))
    with pytest.raises(OptionError, match=r"gives values of varying length: a list .*, not dict"):
        list(batchplant.Loader({"text": texts}, 2, pipelines={"text": [wrong, Pad(4)]}))


ROWS = [np.arange(1, 4), np.arange(1, 8), np.arange(0)]


@pytest.mark.parametrize(
    ("options", "padded"),
    [
        ({}, [[1, 2, 3, 0, 0, 0, 0], [1, 2, 3, 4, 5, 6, 7], [0] * 7]),
        ({"length": 4}, [[1, 2, 3, 0], [1, 2, 3, 4], [0] * 4]),
        ({"length": 4, "side": "left", "truncate": "left"}, [[0, 1, 2, 3], [4, 5, 6, 7], [0] * 4]),
        ({"multiple_of": 4, "value": 0}, [[1, 2, 3, 0, 0, 0, 0, 0], [1, 2, 3, 4, 5, 6, 7, 0], [0] * 8]),
        ({"multiple_of": 2, "max_length": 6}, [[1, 2, 3, 0, 0, 0], [1, 2, 3, 4, 5, 6], [0] * 6]),
    ],
)
def test_padding_and_where_it_is(options: dict[str, Any], padded: list[list[int]]) -> None:
    pipelines = {"x": [Pad(**options, mask=True)]}
    (batch,) = batchplant.Loader({"x": ROWS}, 3, pipelines=pipelines)
    assert batch["x"].tolist() == padded
    assert batch["x_mask"].dtype == np.bool_
    np.testing.assert_array_equal(batch["x_mask"], np.array(padded) != 0)


def test_what_is_padded_may_have_more_axes() -> None:
    values = [np.ones((2, 3), np.float32), np.full((1, 3), 2, np.float32)]
    (batch,) = batchplant.Loader(
        {"x": values}, 2, pipelines={"x": [Pad(value=-1, side="left", mask="there")]}
    )
    assert batch["x"].tolist() == [[[1] * 3] * 2, [[-1] * 3, [2] * 3]]
    assert batch["there"].tolist() == [[True, True], [False, True]]


def test_a_mask_has_steps_of_its_own_and_a_name_of_its_own() -> None:
    pipelines: dict[str, Any] = {"x": [Pad(4, mask=True)], "x_mask": [Convert("int64")]}
    (batch,) = batchplant.Loader({"x": ROWS[:2]}, 2, pipelines=pipelines)
    assert batch["x_mask"].dtype == np.int64
    assert batch["x_mask"].tolist() == [[1, 1, 1, 0], [1, 1, 1, 1]]
    with pytest.raises(OptionError, match="would be called 'x', as is another output"):
        batchplant.Loader({"x": ROWS}, 1, pipelines={"x": [Pad(mask="x")]})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"length": 4, "multiple_of": 2}, "leave length out"),
        ({"multiple_of": 8, "max_length": 12}, "divides max_length"),
        ({"max_length": 0}, "max_length is at least 1"),
        ({"truncate": "middle"}, "truncate is left or right"),
    ],
)
def test_padding_that_makes_no_sense(options: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        Pad(**options)


def test_ids_of_two_bytes(source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main = importlib.import_module("batchplant.cli").main
    command = ["convert", str(source), str(tmp_path / "a.idx"), "--tokenize", str(FILE), "--dtype", "uint16"]
    assert main([*command, "--field", "text"]) == 0
    with batchplant.open(tmp_path / "a.idx") as reader:
        assert reader.schema["tokens"] == Tensor("uint16", (None,))
        assert [sample["tokens"].tolist() for sample in reader] == expected(source)
    capsys.readouterr()
    assert main(["convert", str(source), str(tmp_path / "b.idx"), "--dtype", "uint16"]) != 0
    assert "--dtype goes with --tokenize" in capsys.readouterr().err


def test_a_vocabulary_that_does_not_fit_is_refused() -> None:
    with pytest.raises(OptionError, match=r"does not fit into uint8: it has ids up to .* holds up to 255"):
        Tokenize(FILE, dtype="uint8")
    with pytest.raises(OptionError, match="does not fit into uint16: it has ids up to 70,000"):
        Tokenize(letters, eos=70_000, dtype="uint16")
