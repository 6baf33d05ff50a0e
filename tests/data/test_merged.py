"""Many files opened by the index that they share: none is looked at before it is read."""

from __future__ import annotations

import os
import pickle
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import batchplant as bp
from batchplant.cli import main
from batchplant.data.concat import Concat, LazyReaders
from batchplant.data.reader import Reader
from batchplant.storage import index
from batchplant.storage.index import sets
from batchplant.storage.patterns import natural, naturally

FILES, EACH = 6, 4
SUFFIXES = ["beton", "ffr", "tfrecord", "tar", "npz"]


@pytest.fixture(autouse=True)
def few_are_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index, "tuning", index.IndexTuning(min_shared_files=3))


def write(path: Path, first: int, count: int = EACH) -> None:
    with bp.create(path, {"label": bp.Int(), "blob": bp.Bytes()}) as out:
        for number in range(first, first + count):
            out.append({"label": number, "blob": b"x" * (number % 7)})


@pytest.fixture(scope="module", params=SUFFIXES)
def indexed(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp(request.param)
    for number in range(FILES):
        write(folder / f"part-{number}.{request.param}", number * EACH)
    assert main(["index", str(folder / f"part-*.{request.param}"), "--json"]) == 0
    return folder


@pytest.fixture
def folder(indexed: Path, tmp_path: Path) -> Path:
    # With their times, by which the index knows the files.
    return Path(shutil.copytree(indexed, tmp_path / "set"))


def shard(folder: Path, number: int) -> Path:
    [result] = [path for path in folder.glob(f"part-{number}.*") if path.suffix[1:] in SUFFIXES]
    return result


def opened(path: Any, **options: Any) -> Reader:
    """The dataset, none of whose files was opened for it."""
    reader = bp.open(path, **options)
    assert isinstance(reader, Concat)
    assert isinstance(reader.readers, LazyReaders)
    assert not len(reader.readers._opened)
    return reader


def labels(reader: Reader) -> list[int]:
    return [int(item) for item in reader.read(np.arange(len(reader)), ["label"])["label"]]


def test_nothing_is_opened_before_it_is_read(folder: Path) -> None:
    suffix = shard(folder, 0).suffix
    names = [str(shard(folder, number)) for number in (4, 1, 2)]
    for path in (folder, str(folder / f"*{suffix}"), str(folder / f"part-{{0..{FILES - 1}}}{suffix}")):
        with opened(path) as reader:
            assert (len(reader), list(reader.schema)) == (FILES * EACH, ["label", "blob"])
            assert reader[9]["label"] == 9
            assert len(reader.readers._opened) == 1  # type: ignore[attr-defined]
            assert labels(reader) == list(range(FILES * EACH))
            assert labels(pickle.loads(pickle.dumps(reader))) == list(range(FILES * EACH))
    with opened(names) as reader:
        assert labels(reader) == [16, 17, 18, 19, 4, 5, 6, 7, 8, 9, 10, 11]
    assert not isinstance(bp.open(names[:2]).readers, LazyReaders)  # type: ignore[attr-defined]
    assert not [
        path for path in folder.iterdir() if path.suffix == ".bpindex" and path.name != "_index.bpindex"
    ]


def test_it_gives_what_opening_every_file_gives(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lazy = opened(folder)
    monkeypatch.setattr(index, "tuning", index.IndexTuning(min_shared_files=FILES + 1))
    eager = bp.open(folder)
    assert not isinstance(eager.readers, LazyReaders)  # type: ignore[attr-defined]
    assert (lazy.path, lazy.schema, len(lazy)) == (eager.path, eager.schema, len(eager))
    at = np.array([23, 0, 5, 5, 17, 1, 22])
    assert lazy.read(at)["label"].tolist() == eager.read(at)["label"].tolist()
    assert [lazy[int(item)] for item in at] == [eager[int(item)] for item in at]
    assert [lazy.where(3), lazy.facts()] == [eager.where(3), eager.facts()]
    places = [item.spans("blob", at) for item in (lazy, eager)]
    if places[0] is None or places[1] is None:
        assert places == [None, None]
    else:
        result = [
            ([place.files[file] for file in place.file], place.start.tolist()) for place in places if place
        ]
        assert result[0] == result[1]
    assert [list(item.verify()) for item in (lazy, eager)] == [[], []]


def test_a_shard_that_was_replaced_before_is_read_as_it_is(folder: Path) -> None:
    write_again(folder, 2, 100, 7)
    with bp.open(folder) as reader:
        assert list(reader.readers._opened.values()) == []  # type: ignore[attr-defined]
        assert labels(reader) == [*range(8), *range(100, 107), *range(12, 24)]


def test_shards_that_were_added_or_removed(folder: Path) -> None:
    shard(folder, 1).unlink()
    suffix = shard(folder, 0).suffix
    write(folder / f"part-10{suffix}", 50, 2)
    for path in (folder, str(folder / f"part*{suffix}")):
        with opened(path) as reader:
            assert labels(reader) == [*range(4), *range(8, 24), 50, 51]
    with pytest.raises(bp.NotFoundError):
        bp.open([str(folder / f"part-{number}{suffix}") for number in range(FILES)])


def write_again(folder: Path, number: int, first: int, count: int) -> None:
    """As another program does it, which knows of no index."""
    path = shard(folder, number)
    write(folder.parent / path.name, first, count)
    for item in folder.parent.glob(path.name + "*"):
        os.replace(item, folder / item.name)


def test_a_shard_that_changes_after_opening_is_noticed_when_it_is_read(folder: Path) -> None:
    with opened(folder) as reader:
        write_again(folder, 2, 100, 7)
        assert reader[0]["label"] == 0
        with pytest.raises(bp.DamagedError, match="has changed since its folder was indexed") as caught:
            reader[9]
        assert str(shard(folder, 2)) in str(caught.value)
    with opened(folder) as reader:
        # What is as long is read as it is.
        write_again(folder, 3, 200, EACH)
        assert reader[7 + 8]["label"] == 200


def test_a_shard_that_is_gone_or_cut_after_opening(folder: Path) -> None:
    with opened(folder) as reader:
        shard(folder, 1).unlink()
        cut = shard(folder, 2)
        os.truncate(cut, cut.stat().st_size // 2)
        assert reader[0]["label"] == 0
        with pytest.raises(bp.NotFoundError):
            reader[5]
        with pytest.raises(bp.BatchplantError) as caught:
            reader[9]
        assert str(cut) in str(caught.value)


def test_options_and_formats_are_heard(folder: Path) -> None:
    name = bp.open(shard(folder, 0)).format
    assert labels(opened(folder, format=name)) == list(range(FILES * EACH))
    with pytest.raises(bp.BatchplantError):
        bp.open(str(folder / f"*{shard(folder, 0).suffix}"), format="npy")
    reader = bp.open(folder, where="label < 6")
    assert labels(reader) == list(range(6))


@pytest.mark.parametrize("indexed", ["tfrecord"], indirect=True)
def test_a_schema_that_is_written_later_counts(folder: Path) -> None:
    note = folder / "part-2.tfrecord.schema.json"
    text = note.read_text().replace('"blob"', '"blub"')
    note.write_text(text)
    result = (folder / "_index.bpindex").stat().st_mtime_ns
    os.utime(note, ns=(result + 1, result + 1))
    with pytest.raises(bp.SchemaError):
        bp.open(folder)


@pytest.mark.parametrize("indexed", ["beton"], indirect=True)
def test_what_is_no_shard(folder: Path, tmp_path: Path) -> None:
    (folder / "README").write_text("what this is")
    (folder / ".hidden").write_text("")
    assert labels(opened(folder)) == list(range(FILES * EACH))
    # A link is what it leads to; what is no file is looked at as ever.
    os.rename(shard(folder, 0), tmp_path / "away.beton")
    os.symlink(tmp_path / "away.beton", folder / "part-0.beton")
    assert labels(opened(folder)) == list(range(FILES * EACH))
    (folder / "part-0.beton").unlink()
    (folder / "part-0.beton").mkdir()
    with pytest.raises(bp.BatchplantError):
        bp.open(str(folder / "*.beton"))
    np.save(folder / "more.npy", np.zeros(3))
    with pytest.raises(bp.UnknownFormatError, match="several formats"):
        bp.open(folder)


@pytest.mark.parametrize("indexed", ["beton"], indirect=True)
def test_an_index_that_lies_is_not_believed(folder: Path) -> None:
    place = str(folder / "_index.bpindex")
    good = sets._read(place)
    assert good is not None
    assert good.listed is not None
    names = list(good)

    def changed(**arrays: Any) -> None:
        listed = good.listed._replace(**{name: np.array(array) for name, array in arrays.items()})  # type: ignore
        good.listed = listed  # type: ignore[misc]

    for wrong in ({"samples": [2**60] * 6}, {"samples": [-1] * 6}, {"kinds": [-1] * 6}, {"sizes": [3] * 6}):
        before = good.listed
        changed(**wrong)
        assert not isinstance(bp.open(folder).readers, LazyReaders), wrong  # type: ignore[attr-defined]
        good.listed = before  # type: ignore[misc]
    changed(samples=[4, 4, 5, 4, 4, 4])
    with opened(folder) as reader, pytest.raises(bp.DamagedError, match=r"4 samples .* says 5"):
        reader[8]
    assert len(names) == FILES
    Path(place).write_bytes(b"BPIDX1\n\0 nonsense")
    assert not isinstance(bp.open(folder).readers, LazyReaders)  # type: ignore[attr-defined]


def test_images_of_two_encodings_are_of_both(tmp_path: Path) -> None:
    image = np.zeros((4, 4, 3), np.uint8)
    for number, form in enumerate(["png", "jpeg", "png", "jpeg"]):
        images = bp.ImageOptions(image_format=form)
        with bp.create(tmp_path / f"{number}.tar", {"image": bp.Image()}, images=images) as out:
            out.append({"image": image})
    assert main(["index", str(tmp_path / "*.tar"), "--json"]) == 0
    lazy = bp.open(tmp_path)
    assert isinstance(lazy, Concat)
    assert isinstance(lazy.readers, LazyReaders)
    assert len(set(lazy.readers.schemas)) == 2
    eager = Concat([bp.open(tmp_path / f"{number}.tar") for number in range(4)])
    assert lazy.schema == eager.schema
    assert [row["image"].shape for row in lazy] == [(4, 4, 3)] * 4


def test_records_of_which_some_lack_a_feature(tmp_path: Path) -> None:
    """Fields that are found by looking are those of all files, as where every file is opened."""
    for number in range(4):
        fields: dict[str, Any] = {"a": bp.Int(), **({"b": bp.Int()} if number % 2 else {})}
        with bp.create(tmp_path / f"{number}.tfrecord", fields) as out:
            out.append(dict.fromkeys(fields, number))
        (tmp_path / f"{number}.tfrecord.schema.json").unlink()
    assert main(["index", str(tmp_path / "*.tfrecord"), "--json"]) == 0
    lazy = bp.open(tmp_path)
    assert isinstance(lazy, Concat)
    assert isinstance(lazy.readers, LazyReaders)
    eager = Concat([bp.open(tmp_path / f"{number}.tfrecord") for number in range(4)])
    assert lazy.schema == eager.schema
    assert list(lazy) == list(eager)
    assert list(pickle.loads(pickle.dumps(lazy))) == list(eager)


def test_only_so_many_are_kept_open(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LazyReaders, "max_open", 2)
    with opened(folder) as reader:
        assert labels(reader) == list(range(FILES * EACH))
        assert len(reader.readers._opened) == 2  # type: ignore[attr-defined]
        assert len(reader.readers[-2:]) == 2  # type: ignore[attr-defined]
        with pytest.raises(IndexError):
            reader.readers[FILES]  # type: ignore[attr-defined]


@pytest.mark.parametrize("indexed", ["beton"], indirect=True)
def test_the_index_of_files_that_need_none(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pattern = str(folder / "*.beton")
    assert main(["index", pattern]) == 0
    assert capsys.readouterr().out.count("fresh") == FILES
    assert main(["index", pattern, "--where"]) == 0
    assert capsys.readouterr().out.count("_index.bpindex") == FILES
    assert main(["index", pattern, "--remove"]) == 0
    assert not (folder / "_index.bpindex").exists()
    capsys.readouterr()
    assert main(["index", str(shard(folder, 0))]) == 0
    assert "beton needs no index" in capsys.readouterr().out


@given(st.lists(st.text("ab019-.é\n²", max_size=5)))
def test_names_stand_naturally(names: list[str]) -> None:
    try:
        expected = sorted(sorted(names), key=natural)
    except ValueError:
        return
    assert naturally(names) == expected


def test_names_of_one_width_stand_as_text() -> None:
    assert naturally(["b-10", "b-09", "b-11"]) == ["b-09", "b-10", "b-11"]
    assert naturally(["b-10", "b-9"]) == ["b-9", "b-10"]
