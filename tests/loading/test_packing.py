"""Packing: documents of tokens to rows, planned from lengths alone, and loaded on any number of ranks."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import batchplant
from batchplant import Mix, Pack, _native
from batchplant.errors import DataError, OptionError
from batchplant.loading.packing.documents import OUTPUTS, OVERLONG, STRATEGIES, DocumentCache
from batchplant.ops import Function
from batchplant.testing.cases import EXHAUSTIVE

EOS = 9_999_999


def documents(count: int, first: int = 0, seed: int = 0, mean: float = 3.0) -> batchplant.Reader:
    """Documents whose tokens tell the document and the place: number * 1000 + place."""
    sizes = np.random.default_rng(seed).lognormal(mean, 0.8, count).astype(np.int64).clip(0, 900)
    tokens = [(first + number) * 1000 + np.arange(size) for number, size in enumerate(sizes)]
    return batchplant.open({"tokens": tokens, "number": np.arange(first, first + count)})


@given(
    st.lists(st.integers(0, 60), max_size=60), st.integers(1, 50), st.sampled_from(STRATEGIES),
    st.sampled_from(OVERLONG),
)  # fmt: skip
def test_every_token_has_one_place(sizes: list[int], length: int, strategy: str, overlong: str) -> None:
    rows, document, start, count = _native.pack(np.array(sizes, dtype=np.int64), length, strategy, overlong)
    assert rows[0] == 0
    assert rows[-1] == len(document)
    assert (np.diff(rows) > 0).all()
    filled = np.add.reduceat(count, rows[:-1]) if len(count) else count
    assert (filled <= length).all()
    if strategy == "none":
        assert (np.diff(rows) == 1).all()
    for number, size in enumerate(sizes):
        own = np.flatnonzero(document == number)
        whole = (
            0
            if overlong == "drop" and size > length
            else min(size, length)
            if overlong == "truncate"
            else size
        )
        # The pieces of a document follow each other without a gap.
        pieces = sorted((int(start[item]), int(count[item])) for item in own)
        at = 0
        for begin, some in pieces:
            assert begin == at
            at += some
        assert at == whole
    if len(rows) > 1:
        firsts = document[rows[:-1]]
        assert (np.diff(firsts) >= 0).all()


def test_best_fit_leaves_less_than_one_in_a_hundred_empty() -> None:
    sizes = np.random.default_rng(1).lognormal(6, 1, 4096).astype(np.int64)
    rows, *_, count = _native.pack(sizes, 8192, "best_fit", "split")
    assert count.sum() / ((len(rows) - 1) * 8192) >= 0.99


def test_rows_hold_documents_labels_positions_and_borders() -> None:
    reader = batchplant.open(
        {"tokens": [np.arange(1, 4), np.arange(11, 13), np.arange(21, 26)], "prompt": [1, 0, 2]}
    )
    pack = Pack(8, eos=99, labels="shifted", prompt="prompt", strategy="first_fit")
    (batch,) = batchplant.Loader(reader, 4, pack=pack)
    assert batch["tokens"].tolist() == [[1, 2, 3, 99, 11, 12, 99, 0], [21, 22, 23, 24, 25, 99, 0, 0]]
    assert batch["labels"].tolist() == [
        [2, 3, 99, -100, 12, 99, -100, -100], [-100, 23, 24, 25, 99, -100, -100, -100],
    ]  # fmt: skip
    assert batch["loss_mask"].tolist() == (batch["labels"] != -100).tolist()
    assert batch["position_ids"].tolist() == [[0, 1, 2, 3, 0, 1, 2, 0], [0, 1, 2, 3, 4, 5, 0, 1]]
    assert batch["document_ids"].tolist() == [[0, 0, 0, 0, 1, 1, 1, -1], [0, 0, 0, 0, 0, 0, -1, -1]]
    assert batch["cu_seqlens"].tolist() == [0, 4, 7, 8, 14, 16]
    assert batch["max_seqlen"] == 6
    assert batch["pieces"].tolist() == [[0, 0, 4, 0, 0], [0, 4, 3, 0, 1], [1, 0, 6, 0, 2]]


@pytest.mark.parametrize("across", [False, True])
@pytest.mark.parametrize("outputs", [(), *((output,) for output in OUTPUTS), ["max_seqlen", "labels"]])
def test_what_is_not_wanted_is_not_made(outputs: Sequence[str], across: bool) -> None:
    whole = batchplant.Loader(documents(30), 4, pack=Pack(64, across=across))
    some = batchplant.Loader(documents(30), 4, pack=Pack(64, across=across, outputs=outputs))
    for known, item in zip(whole, some, strict=True):
        assert set(item) == {"tokens", "number", *outputs}
        for name in item:
            np.testing.assert_array_equal(item[name], known[name])


def test_labels_as_they_are_and_one_sequence_across() -> None:
    reader = batchplant.open({"tokens": [np.arange(1, 4), np.arange(11, 13)]})
    (batch,) = batchplant.Loader(reader, 1, pack=Pack(6, strategy="first_fit", across=True, dtype="int32"))
    assert batch["tokens"].dtype == np.int32
    assert batch["labels"].tolist() == [[1, 2, 3, 11, 12, -100]]
    assert batch["position_ids"].tolist() == [[0, 1, 2, 3, 4, 5]]
    assert batch["cu_seqlens"].tolist() == [0, 5, 6]


def test_documents_are_padded_to_multiples() -> None:
    reader = batchplant.open({"tokens": [np.arange(1, 4), np.arange(11, 13), np.arange(21, 32)]})
    pack = Pack(8, eos=99, labels="shifted", strategy="first_fit", multiple_of=4)
    batches = list(batchplant.Loader(reader, 3, pack=pack))
    assert [name for batch in batches for name in batch["tokens"].tolist()] == [
        [1, 2, 3, 99, 11, 12, 99, 0], [21, 22, 23, 24, 25, 26, 27, 28], [29, 30, 31, 99, 0, 0, 0, 0],
    ]  # fmt: skip
    (batch,) = batchplant.Loader(reader, 3, pack=dataclasses.replace(pack, eos=None))
    assert batch["tokens"].tolist() == [
        [1, 2, 3, 0, 11, 12, 0, 0], [21, 22, 23, 24, 25, 26, 27, 28], [29, 30, 31, 0, 0, 0, 0, 0],
    ]  # fmt: skip
    assert batch["labels"].tolist()[0] == [2, 3, -100, -100, 12, -100, -100, -100]
    assert batch["position_ids"].tolist()[::2] == [[0, 1, 2, 3, 0, 1, 2, 3], [0, 1, 2, 3, 0, 1, 2, 3]]
    assert batch["document_ids"].tolist()[0] == [0, 0, 0, -1, 1, 1, -1, -1]
    assert batch["loss_mask"].tolist() == (batch["labels"] != -100).tolist()
    assert batch["cu_seqlens"].tolist() == [0, 4, 8, 16, 20, 24]
    assert batch["pieces"].tolist()[:2] == [[0, 0, 3, 0, 0], [0, 4, 2, 0, 1]]


@given(
    st.lists(st.integers(0, 60), min_size=1, max_size=40), st.integers(1, 9), st.integers(1, 6),
    st.sampled_from(STRATEGIES),
)  # fmt: skip
def test_padding_to_multiples_loses_no_token(
    sizes: list[int], multiple: int, blocks: int, strategy: str
) -> None:
    tokens = np.split(np.arange(1, sum(sizes) + 1), np.cumsum(sizes)[:-1])
    schema = {"tokens": batchplant.Tensor("int64", (None,))}
    reader = batchplant.open({"tokens": tokens}, schema=schema)
    pack = Pack(multiple * blocks, strategy=strategy, multiple_of=multiple)
    batches = list(batchplant.Loader(reader, 4, pack=pack, workers=1))
    seen = np.concatenate([[], *(batch["tokens"][batch["document_ids"] >= 0] for batch in batches)])
    assert sorted(seen.tolist()) == list(range(1, sum(sizes) + 1))
    for batch in batches:
        assert not (batch["cu_seqlens"] % multiple).any()
        assert not (batch["pieces"][:, 1] % multiple).any()


def test_the_label_of_a_cut_is_the_token_that_follows_in_the_next_row() -> None:
    reader = batchplant.open({"tokens": [np.arange(10)]})
    (batch,) = batchplant.Loader(reader, 4, pack=Pack(4, labels="shifted", strategy="concat_split"))
    assert batch["labels"].tolist() == [[1, 2, 3, 4], [5, 6, 7, 8], [9, -100, -100, -100]]


def test_what_other_fields_hold_comes_by_document() -> None:
    reader = documents(40)
    for batch in batchplant.Loader(reader, 3, pack=Pack(64, eos=EOS), order="random", ids=True):
        row, place, size, start, document = batch["pieces"].T
        np.testing.assert_array_equal(batch["number"], batch["ids"])
        for number in range(len(row)):
            tokens = batch["tokens"][row[number], place[number] : place[number] + size[number]]
            stored = tokens[tokens != EOS]
            expected = batch["number"][document[number]] * 1000 + start[number] + np.arange(len(stored))
            np.testing.assert_array_equal(stored, expected)


def rows_of(loader: batchplant.Loader) -> list[Any]:
    return [batch["tokens"] for batch in loader]


def mixture() -> Mix:
    sources = {"0": (documents(70), 3), "1": (documents(50, 1000, 1), 2), "2": (documents(20, 2000, 2), 1)}
    return Mix(sources, stop="all")


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_ranks_and_resumes_give_what_one_run_would_have_given(strategy: str) -> None:
    """Random worlds, batches and places to stop: the union of what follows is exactly what was left."""
    rng = np.random.default_rng(5)
    pack = Pack(96, eos=EOS, window=16, strategy=strategy, dtype="int32")
    whole = np.concatenate(rows_of(batchplant.Loader(mixture(), 5, order="random", pack=pack, seed=3)))
    for _ in range(50 if EXHAUSTIVE else 5):
        world_size, then = (int(integer) for integer in rng.integers(1, 5, 2))
        size, after = (int(integer) for integer in rng.integers(1, 7, 2))
        options: dict[str, Any] = {"order": "random", "pack": pack, "seed": 3}
        loaders = [
            batchplant.Loader(mixture(), size, rank=r, world_size=world_size, **options)
            for r in range(world_size)
        ]
        epochs = [iter(loader) for loader in loaders]
        steps = int(rng.integers(0, len(loaders[0]) + 1))
        given = [next(epoch)["tokens"] for _ in range(steps) for epoch in epochs]
        states = [json.loads(json.dumps(loader.state_dict())) for loader in loaders]
        assert all(state == states[0] for state in states)
        again = [batchplant.Loader(mixture(), after, rank=r, world_size=then, **options) for r in range(then)]
        for item in again:
            item.load_state_dict(states[0])
        if steps < len(loaders[0]):
            parts = [rows_of(item) for item in again]
            given += [batch for step in zip(*parts, strict=True) for batch in step]
        np.testing.assert_array_equal(np.concatenate([whole[:0], *given]), whole)
        for value in (*loaders, *again):
            value.close()


def test_an_epoch_without_an_end_begins_at_once() -> None:
    mix = Mix([(documents(30), 1), (documents(10, 1000, 1), 1)], stop="never")
    loader = batchplant.Loader(mix, 2, order="random", pack=Pack(64, window=8))
    epoch = iter(loader)
    for _ in range(40):
        next(epoch)
    state = loader.state_dict()
    expected = next(epoch)["tokens"]
    again = batchplant.Loader(mix, 2, order="random", pack=Pack(64, window=8))
    again.load_state_dict(state)
    np.testing.assert_array_equal(next(iter(again))["tokens"], expected)
    loader.close()
    again.close()


def test_text_is_packed_by_what_a_function_makes_of_it() -> None:
    words = ["a bb ccc", "dd", "e f g h i j k", ""]
    reader = batchplant.open({"text": words})
    tokenize = Function(
        lambda text: [len(word) for word in text.split()], each=True, shape=(None,), dtype=np.int64
    )
    pack = Pack(6, field="text", eos=0, pad=-1)
    (batch,) = batchplant.Loader(reader, 4, pipelines={"text": [tokenize]}, pack=pack)
    tokens = batch["text"][batch["text"] > 0]
    assert sorted(tokens.tolist()) == sorted(len(word) for text in words for word in text.split())


def test_what_is_made_to_learn_its_length_is_not_made_twice() -> None:
    calls = []

    def tokenize(text: str) -> list[int]:
        calls.append(text)
        return [ord(item) for item in text]

    texts = ["x" * (1 + number % 7) for number in range(60)]
    op = Function(tokenize, each=True, shape=(None,), dtype=np.int64)
    reader = batchplant.open({"text": texts, "number": np.arange(60)})
    pack = Pack(16, field="text", window=10)
    loader = batchplant.Loader(reader, 2, order="random", pipelines={"text": [op]}, pack=pack)
    numbers = np.concatenate([batch["number"] for batch in loader])
    assert sorted(numbers.tolist()) == list(range(60))
    assert len(calls) == 60
    with pytest.raises(OptionError, match="documents are rows of tokens, not text: put Tokenize before it"):
        list(batchplant.Loader(reader, 2, pack=pack))


def test_what_is_not_kept_any_more_is_made_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(DocumentCache, "max_tokens", 0)
    texts = ["x" * (1 + number % 7) for number in range(60)]
    op = Function(lambda text: [ord(item) for item in text], each=True, shape=(None,), dtype=np.int64)
    pack = Pack(16, field="text", window=2)
    loader = batchplant.Loader({"text": texts}, 4, pipelines={"text": [op]}, pack=pack)
    assert len(loader) > 2
    result = [batch["text"] for batch in loader]
    assert sum(int((item > 0).sum()) for item in result) == sum(map(len, texts))


def test_of_some_samples_what_cannot_be_read_leaves_padding() -> None:
    def fails(tokens: Any) -> Any:
        if tokens[0] == 5:
            raise DataError("no")
        return tokens

    reader = batchplant.open({"tokens": [np.full(1 + number % 3, number) for number in range(12)]})
    op = Function(fails, each=True, shape=(None,))
    loader = batchplant.Loader(
        reader, 8, pipelines={"tokens": [op]}, pack=Pack(6, strategy="first_fit", pad=-1), on_error="skip",
        indices=np.arange(4, 12),
    )  # fmt: skip
    (batch,) = loader
    left = [number for number in range(4, 12) if number != 5 for _ in range(1 + number % 3)]
    assert sorted(batch["tokens"][batch["tokens"] >= 0].tolist()) == left
    assert {item.sample for item in loader.skipped} == {5}


def test_a_document_that_cannot_be_read_leaves_padding() -> None:
    def fails(tokens: Any) -> Any:
        if 3000 in tokens:
            raise DataError("broken")
        return tokens

    reader = batchplant.open({"tokens": [number * 1000 + np.arange(5) for number in range(8)]})
    op = Function(fails, each=True, shape=(None,))
    pack = Pack(16, window=8, sizes=lambda samples: np.full(len(samples), 5))
    loader = batchplant.Loader(reader, 8, pipelines={"tokens": [op]}, pack=pack, on_error="skip")
    (batch,) = loader
    there = batch["tokens"][batch["document_ids"] >= 0] // 1000
    assert sorted(set(there.tolist())) == [0, 1, 2, 4, 5, 6, 7]
    assert len(loader.skipped) == 1


def test_stats_tell_how_full_rows_are() -> None:
    loader = batchplant.Loader(documents(200), 4, pack=Pack(512, window=200))
    for _ in loader:
        pass
    packing = loader.stats()["packing"]
    assert packing["documents"] >= 195
    assert packing["fill"] > 0.9


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"length": 0}, "length must be from 1"),
        ({"length": 8, "strategy": "worst"}, "strategy is one of"),
        ({"length": 8, "labels": "next"}, "labels is one of"),
        ({"length": 8, "multiple_of": 3}, "a multiple of multiple_of, and 8 is not of 3"),
        ({"length": 8, "multiple_of": 2, "across": True}, "a row is one sequence"),
        ({"length": 8, "field": "token"}, "tokens"),
        ({"length": 8, "prompt": "nothing"}, "no field of the batch"),
        ({"length": 8, "eos": "</s>"}, "eos must be a whole number, not '</s>'"),
        ({"length": 8, "pad": None}, "pad must be a whole number"),
        ({"length": 8, "dtype": "int32", "ignore": 2**31}, "ignore must be from"),
        ({"length": 8, "outputs": ["label"]}, "did you mean.*labels"),
        ({"length": 8, "outputs": "labels"}, r"a list of names, as \['labels'\]"),
    ],
)
def test_what_makes_no_sense_is_said(options: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        batchplant.Loader(documents(3), 1, pack=Pack(**options))


def test_a_length_is_no_pack() -> None:
    with pytest.raises(OptionError, match=r"a Pack, as Pack\(2048\), not 512"):
        batchplant.Loader(documents(3), 1, pack=512)  # type: ignore[arg-type]


def test_sizes_that_lie_are_an_error() -> None:
    reader = batchplant.open({"tokens": [np.arange(5), np.arange(6)]})
    with pytest.raises(DataError, match="not as long as was said"):
        list(batchplant.Loader(reader, 1, pack=Pack(16, sizes=lambda samples: np.full(len(samples), 7))))


def test_a_state_is_not_taken_up_with_another_packing() -> None:
    loader = batchplant.Loader(documents(30), 1, pack=Pack(64))
    next(iter(loader))
    other = batchplant.Loader(documents(30), 1, pack=Pack(128))
    with pytest.raises(OptionError, match="pack"):
        other.load_state_dict(loader.state_dict())


def test_a_step_is_replayed_from_the_seed_alone() -> None:
    options: dict[str, Any] = {
        "order": "random",
        "pack": Pack(96, eos=EOS, window=16),
        "seed": 3,
        "ids": True,
    }
    seen = []
    for rank in range(2):
        loader = batchplant.Loader(mixture(), 3, rank=rank, world_size=2, **options)
        seen.append(list(loader))
        loader.close()
    loader = batchplant.Loader(mixture(), 3, **options)
    for rank in range(2):
        for step, batch in enumerate(seen[rank]):
            result = loader.replay(step, rank, 2)
            np.testing.assert_array_equal(result.samples, batch["ids"])
            np.testing.assert_array_equal(result.pieces, batch["pieces"])
            assert result.origins is not None
            # Documents of the second source have numbers from 1000 on, those of the third from 2000 on.
            assert [1000 * int(name) + number for name, number, _ in result.origins] == batch[
                "number"
            ].tolist()
    loader.close()


def test_a_replay_reads_no_document(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = documents(30)
    with batchplant.create(tmp_path / "docs.idx", {"tokens": batchplant.Tensor("int64", (None,))}) as out:
        for sample in source:
            out.append({"tokens": sample["tokens"]})
    reader = batchplant.open(tmp_path / "docs.idx")
    loader = batchplant.Loader(reader, 2, order="random", pack=Pack(64), ids=True)
    seen = [batch["ids"] for batch in loader]

    def unread(*_: Any) -> None:
        raise AssertionError("it was read")

    monkeypatch.setattr(type(reader), "_read", unread)
    again = batchplant.Loader(reader, 2, order="random", pack=Pack(64))
    for step, ids in enumerate(seen):
        np.testing.assert_array_equal(again.replay(step).samples, ids)


# -- images and text --------------------------------------------------------------------------------------


def imaged(count: int, first: int = 0) -> batchplant.Reader:
    """Documents with an image whose colour tells the document, and how many patches it is cut into."""
    pixels = [np.full((4, 4, 3), (first + number) % 256, dtype=np.uint8) for number in range(count)]
    tokens = [(first + number) * 10 + np.arange(1 + number % 5) for number in range(count)]
    patches = np.array([2 + number % 3 for number in range(count)])
    schema = {
        "image": batchplant.Image(),
        "tokens": batchplant.Tensor("int64", (None,)),
        "patches": batchplant.Int(),
    }
    rows = zip(pixels, tokens, patches.tolist(), strict=True)
    result = [dict(zip(schema, row, strict=True)) for row in rows]
    return batchplant.open(result, schema=batchplant.Schema(schema))


IMAGE = -7


@pytest.mark.parametrize("how", ["field", "function", "numbers", "constant"])
def test_images_take_places_before_the_text_of_their_document(how: str) -> None:
    reader = imaged(24)
    patches = np.array([2 + number % 3 for number in range(24)])
    asked = {
        "field": "patches",
        "function": lambda samples: patches[samples],
        "numbers": patches,
        "constant": 3,
    }
    counts = np.full(24, 3) if how == "constant" else patches
    pack = Pack(16, eos=EOS, image_tokens=asked[how], image_token_id=IMAGE)
    seen = []
    for batch in batchplant.Loader(reader, 3, order="random", pack=pack):
        assert len(batch["image"]) == len(batch["patches"])
        for row, place, size, start, document in batch["pieces"].tolist():
            number = int(batch["image"][document][0, 0, 0])
            seen.append(number)
            tokens = batch["tokens"][row, place : place + size].tolist()
            text = (number * 10 + np.arange(1 + number % 5)).tolist()
            assert tokens == [*[IMAGE] * counts[number], *text, EOS][start : start + size]
            learned = batch["loss_mask"][row, place : place + size]
            assert learned.tolist() == [token != IMAGE for token in tokens]
    assert sorted(seen) == list(range(24))


def test_mixtures_of_images_and_text_go_on_exactly() -> None:
    mix = Mix({"a": (imaged(20), 2), "b": (imaged(9, 100), 1)}, stop="all")
    pack = Pack(24, eos=EOS, window=8, image_tokens="patches", image_token_id=IMAGE)
    options: dict[str, Any] = {"order": "random", "pack": pack, "seed": 2}
    whole = np.concatenate(rows_of(batchplant.Loader(mix, 2, **options)))
    two = [batchplant.Loader(mix, 2, rank=rank, world_size=2, **options) for rank in range(2)]
    epochs = [iter(item) for item in two]
    given = [next(epoch)["tokens"] for epoch in epochs]
    three = [batchplant.Loader(mix, 1, rank=rank, world_size=3, **options) for rank in range(3)]
    for item in three:
        item.load_state_dict(two[0].state_dict())
    parts = [rows_of(item) for item in three]
    given += [batch for step in zip(*parts, strict=True) for batch in step]
    np.testing.assert_array_equal(np.concatenate(given), whole)
    other = batchplant.Loader(
        mix, 2, order="random", seed=2, pack=Pack(24, eos=EOS, window=8, image_tokens=2)
    )
    with pytest.raises(OptionError, match="pack"):
        other.load_state_dict(two[0].state_dict())
    for value in (*two, *three, other):
        value.close()


@pytest.mark.parametrize("dtype", ["uint16", "int32"])
def test_tokens_that_lie_in_memory_are_not_read(
    dtype: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows are filled from mapped files where these are in memory, and are the same."""
    with batchplant.create(tmp_path / "docs.idx", {"tokens": batchplant.Tensor(dtype, (None,))}) as out:
        for sample in documents(60):
            out.append({"tokens": (sample["tokens"] % 60_000).astype(dtype)})
    options: dict[str, Any] = {"order": "random", "pack": Pack(96, eos=EOS, window=16), "ids": True}
    loader = batchplant.Loader(tmp_path / "docs.idx", 3, **options)
    taken = []
    assert loader._packing is not None
    usual = loader._packing.filler._mapped_tokens

    def in_place(*some: Any) -> Any:
        taken.append(1)
        return usual(*some)

    monkeypatch.setattr(loader._packing.filler, "_mapped_tokens", in_place)
    batches = [*loader, *loader]
    assert len(taken) == len(batches)
    monkeypatch.setattr("batchplant.loading.packing.rows.RowFiller._in_memory", lambda *_: False)
    again = batchplant.Loader(tmp_path / "docs.idx", 3, **options)
    for batch, other in zip(batches, [*again, *again], strict=True):
        assert batch.keys() == other.keys()
        for name in batch:
            np.testing.assert_array_equal(batch[name], other[name])


def test_documents_that_are_longer_than_a_row_are_counted() -> None:
    sizes = [3, 10, 20, 8, 9]
    reader = batchplant.open({"tokens": [np.arange(size) for size in sizes]})
    for overlong, tokens in (("split", 50), ("truncate", 35), ("drop", 11)):
        loader = batchplant.Loader(reader, 2, pack=Pack(8, overlong=overlong))
        list(loader)
        packing = loader.stats()["packing"]
        assert (packing["overlong"], packing["tokens"]) == (3, tokens)


# -- documents that end already --------------------------------------------------------------------------


def ended(count: int, first: int = 0, every: int = 1) -> batchplant.Reader:
    """Documents of 3 to 9 tokens, of which every so many-th ends with EOS."""
    tokens = [
        np.array([*((first + number) * 1000 + np.arange(3 + number % 7)), *[EOS] * (number % every == 0)])
        for number in range(count)
    ]
    return batchplant.open({"tokens": tokens})


def per_document(loader: batchplant.Loader) -> dict[int, list[int]]:
    """The tokens of every document, by its number, taken from the rows of an epoch."""
    result: dict[int, list[int]] = {}
    for batch in loader:
        for row, place, size, *_ in batch["pieces"].tolist():
            tokens = batch["tokens"][row, place : place + size].tolist()
            result[tokens[0] // 1000] = tokens
    return result


@pytest.mark.parametrize("every", [1, 2, 1000])
@pytest.mark.parametrize("how", ["memory", "file", "made"])
def test_no_document_ends_twice(tmp_path: Path, every: int, how: str) -> None:
    reader, pipelines = ended(200, every=every), None
    if how == "file":
        batchplant.convert(reader, tmp_path / "docs.idx")
        reader = batchplant.open(tmp_path / "docs.idx")
    if how == "made":
        pipelines = {"tokens": batchplant.Pipe("tokens", [Function(lambda tokens: tokens)])}
    pack = Pack(32, eos=EOS, window=64)
    loader = batchplant.Loader(reader, 4, order="random", pack=pack, pipelines=pipelines)
    result = per_document(loader)
    assert len(result) == 200
    for number, tokens in result.items():
        assert tokens == [*(number * 1000 + np.arange(3 + number % 7)).tolist(), EOS]


def test_the_sources_of_a_mixture_end_each_in_its_own_way() -> None:
    mix = Mix({"has": ended(80), "has not": ended(80, 1000, every=1000)[1:], "some": ended(80, 2000, 3)})
    loader = batchplant.Loader(mix, 4, order="random", pack=Pack(64, eos=EOS, labels="shifted"))
    for batch in loader:
        for row, place, size, *_ in batch["pieces"].tolist():
            tokens = batch["tokens"][row, place : place + size]
            assert (tokens == EOS).tolist() == [False] * (size - 1) + [True]
            labels = batch["labels"][row, place : place + size].tolist()
            assert labels == [*tokens[1:].tolist(), -100]


def test_a_state_of_documents_that_ended_twice_is_refused() -> None:
    state = None
    for every in (1000, 1):
        loader = batchplant.Loader(ended(100, every=every)[1:], 2, pack=Pack(32, eos=EOS), order="random")
        if state is not None:
            with pytest.raises(OptionError, match="made with pack"):
                loader.load_state_dict(state)
        next(batches := iter(loader))
        state = json.loads(json.dumps(loader.state_dict()))
        batches.close()
