"""Megatron-Energon: prepared folders, metadatasets, and energon itself on what is written."""

import json
import os
import shutil
import sqlite3
import tarfile
from pathlib import Path

import numpy as np
import pytest

import batchplant as bp
from batchplant.formats.energon import prepare
from batchplant.testing.cases import cuts, flips, survive

pytest.importorskip("yaml")

SPLITS = {"train": "part-0000[0-2].tar", "val": ["*-00003.tar"]}


def archives(folder: Path, count: int = 14, **fields: bp.Field) -> Path:
    """Four archives, which are not prepared."""
    folder.mkdir(parents=True)
    kinds = {"__key__": bp.Text(), "txt": bp.Text(), "cls": bp.Int(), **fields}
    with bp.create(folder / "part.tar", kinds, format="webdataset", shard_samples=4) as out:
        for n in range(count):
            extra = {name: np.full((8, 8, 3), n, np.uint8) for name in fields}
            out.append({"__key__": f"k/{n}", "txt": f"größe {n}", "cls": n, **extra})
    return folder


def metadataset(path: Path, splits: object) -> Path:
    head = "__module__: megatron.energon\n__class__: MetadatasetV2\n"
    # YAML has JSON in it.
    path.write_text(f"{head}splits: {json.dumps(splits)}\n")
    return path


def classes(reader: bp.Reader) -> list[int]:
    with reader:
        return [int(number) for number in reader.read(range(len(reader)), ["cls"])["cls"]]


def test_a_prepared_folder(tmp_path: Path) -> None:
    folder = archives(tmp_path / "set", png=bp.Image("png"))
    (folder / "sample_loader.py").write_text("raise SystemExit('imported')")
    prepare(folder, SPLITS)
    with bp.open(folder, split="train") as data:
        assert data.format == "energon"
        assert list(data.schema) == ["__key__", "txt", "cls", "png"]
        assert data[11]["txt"] == "größe 11"
        assert data.spans("png", [3]) is not None
        assert data.facts()["split"] == "train"
        loader = bp.Loader(data, 4, order="random")
        assert sorted(np.concatenate([batch["cls"] for batch in loader])) == list(range(12))
    assert classes(bp.open(folder, split="val")) == [12, 13]
    assert bp.verify(folder, split="val").ok
    with pytest.raises(bp.OptionError, match="one of train, val"):
        bp.open(folder)
    with pytest.raises(bp.OptionError, match="no split 'test'"):
        bp.open(folder, split="test")
    with pytest.raises(bp.ExistsError):
        prepare(folder)
    prepare(folder, overwrite=True)
    assert len(bp.open(folder)) == 14


def test_what_is_written(tmp_path: Path) -> None:
    """Offsets as tarfile has them; the tables of energon 7.4."""
    folder = archives(tmp_path / "set")
    prepare(folder)
    offsets = np.fromfile(folder / "part-00001.tar.idx", "<u8").tolist()
    with tarfile.open(folder / "part-00001.tar") as archive:
        members = [member for member in archive if not member.name.startswith("__")]
        assert offsets == [*(member.offset for member in members[::2]), archive.offset]
    with sqlite3.connect(folder / ".nv-meta/index.sqlite") as index:
        rows = index.execute("SELECT * FROM samples WHERE sample_key = 'k/5'").fetchall()
        assert rows == [(1, "k/5", 1, offsets[1], offsets[2] - offsets[1])]
        parts = index.execute(
            "SELECT * FROM sample_parts WHERE tar_file_id = 1 AND sample_index = 1 ORDER BY 4"
        ).fetchall()
        assert parts == [(1, 1, m.name[4:], m.offset_data, m.size) for m in members[2:4]]
    index.close()
    info = json.loads((folder / ".nv-meta/.info.json").read_text())
    assert info["shard_counts"] == {f"part-0000{n}.tar": 4 - 2 * (n == 3) for n in range(4)}
    shutil.copy(folder / "part-00000.tar", folder / "part-00004.tar")
    with pytest.raises(bp.SchemaError, match="key"):
        prepare(folder, overwrite=True)
    with pytest.raises(bp.NotFoundError):
        prepare(tmp_path / "none")


def test_files_of_energon(tmp_path: Path) -> None:
    """YAML, braces, samples and archives that are excluded, names of fields."""
    folder = archives(tmp_path / "set")
    prepare(folder)
    meta = folder / ".nv-meta"
    info = json.loads((meta / ".info.json").read_text())
    (meta / ".info.json").unlink()
    counts = "".join(f"  {name}: {count}\n" for name, count in info["shard_counts"].items())
    (meta / ".info.yaml").write_text(f"energon_version: 7.0.0\nshard_counts:\n{counts}")
    (meta / "split.yaml").write_text(
        "split_parts:\n  train: [ 'part-{00000..00002}.tar' ]\n  val: []\n"
        "exclude: [ 'part-00000.tar/{1..2}', part-00001.tar, part-00003.tar/0 ]\n"
    )
    (meta / "dataset.yaml").write_text(
        "__module__: megatron.energon\nfield_map: {label: cls, other: 'json[a]'}\n"
    )
    with bp.open(folder) as data:
        assert list(data.schema) == ["__key__", "txt", "label"]
        assert [sample["label"] for sample in data] == [0, 3, 8, 9, 10, 11]


@pytest.mark.parametrize(
    ("file", "content"),
    [
        (".info.json", '{"shard_counts": {"../a.tar": 1, "part-00000.tar": 4}}'),
        (".info.json", '{"shard_counts": {"part-00000.tar": 5}}'),
        (".info.json", '{"shard_counts": {"part-00000.tar": -4}}'),
        (".info.json", '{"shard_counts": 7}'),
        (".info.json", "{"),
        ("split.yaml", "split_parts: {train: [../a.tar]}"),
        ("split.yaml", "split_parts: {train: ['{0..99999}{0..99999}{0..99999}']}"),
        ("split.yaml", "split_parts: {train: 3}"),
        ("split.yaml", "split_parts: {train: [part-00000.tar]}\nexclude: [part-00000.tar]"),
        ("split.yaml", "split_parts: {train: [part-00000.tar]}\nexclude: ['{0..99999}{0..99999}{0..99999}']"),
    ],
)
def test_metadata_that_lies(file: str, content: str, tmp_path: Path) -> None:
    folder = archives(tmp_path / "set", 4)
    shutil.copy(folder / "part-00000.tar", tmp_path / "a.tar")
    prepare(folder)
    if file.endswith("json"):
        (folder / ".nv-meta/split.yaml").unlink()
    (folder / ".nv-meta" / file).write_text(content)
    with pytest.raises(bp.DamagedError):
        bp.open(folder, format="energon", split="train")


@pytest.mark.parametrize("damage", [cuts, flips])
@pytest.mark.parametrize("file", [".info.json", "split.yaml"])
def test_damage(file: str, damage: object, tmp_path: Path) -> None:
    folder = archives(tmp_path / "set", 4)
    prepare(folder)

    def read() -> bool:
        try:
            return bool(classes(bp.open(folder, format="energon", split="train")))
        except bp.BatchplantError:
            return False

    assert list(survive(damage(folder / ".nv-meta" / file, 8), read))


# -- metadatasets ----------------------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("one", "two"):
        prepare(archives(tmp_path / name), SPLITS)
    return tmp_path


def test_a_blend_is_a_mixture(folder: Path) -> None:
    two = {"path": "./two", "split_part": "val", "weight": 1}
    inner = metadataset(folder / "inner.yaml", {"train": {"blend": [{"path": "one", "weight": 9}, two]}})
    blend = [{"path": inner.name, "weight": 3}, {"path": "two", "weight": 1}]
    path = metadataset(folder / "outer.yaml", {"train": {"blend": blend}, "val": {"path": "one"}})
    with bp.open(path, stop=4000) as data:
        assert isinstance(data, bp.Mix)
        assert data.format == "metadataset"
        loader = bp.Loader(data, 40, order="random")
        rows = np.concatenate(
            [batch["cls"] for batch in bp.Loader(bp.open(path, stop=4000, fields=["cls"]), 40)]
        )
        assert len(loader) == 100
    # One of 14 has these classes in two, and all of two's validation set.
    assert (rows >= 12).mean() == pytest.approx(0.75 * 0.1, abs=0.01)
    assert classes(bp.open(path, split="val")) == [12, 13]
    with pytest.raises(bp.OptionError, match="one of train, val"):
        bp.open(path, split="test")


def test_repetitions_and_subsets(folder: Path) -> None:
    val = {"path": "one", "split_part": "val"}
    some = {"path": "two", "split_part": "train", "subset": {"range": [2, "end"]}, "repetitions": 0.5}
    splits = {
        "epochs": {"blend_epochized": [{**val, "repetitions": 2}, some]},
        "both": {"concat": [val, {"path": "two", "split_part": "val"}]},
        "part": {"path": "one", "split_part": "train", "subset": {"range": ["25%", "50%"]}},
    }
    path = metadataset(folder / "a.yaml", splits)
    assert classes(bp.open(path, split="epochs")) == [12, 13, 12, 13, 2, 3, 4, 5, 6]
    assert classes(bp.open(path, split="both")) == [12, 13, 12, 13]
    assert classes(bp.open(path, split="part")) == [3, 4, 5]


def test_joins(folder: Path) -> None:
    train = {"split_part": "train"}
    parts = {"a": {"path": "one", **train, "subset": {"range": [4, 8]}}, "b": {"path": "two", **train}}
    path = metadataset(folder / "a.yaml", {"train": {"join": parts, "joiner": "os.abort"}})
    with bp.open(path) as data:
        assert list(data.schema) == ["__key__", "txt.a", "cls.a", "txt.b", "cls.b"]
        assert [(row["__key__"], row["cls.a"], row["cls.b"]) for row in data] == [
            (f"k/{n}", n, n) for n in range(4, 8)
        ]
    parts["b"]["split_part"] = "val"
    with pytest.raises(bp.SampleKeyError):
        bp.open(metadataset(path, {"train": {"join": parts}}))
    parts["b"]["nonmatch"] = "none"
    with pytest.raises(bp.OptionError, match="nonmatch"):
        bp.open(metadataset(path, {"train": {"join": parts}}))


def test_metadatasets_that_lead_elsewhere(folder: Path) -> None:
    (folder / "in").mkdir()
    path = metadataset(folder / "in/a.yaml", {"train": {"path": "../one"}})
    with pytest.raises(bp.UnsafeError, match="outside=True"):
        bp.open(path)
    assert len(bp.open(path, outside=True)) == 12
    for splits in (
        {"train": {"path": "a.yaml"}},
        {"train": {"blend": []}},
        {"train": {"blend": 3}},
        {"train": {"blend": [{"path": "one", "weight": 1e300}]}},
        {"train": {}},
        {"train": 7},
        {"train": {"path": "one", "subset": {"range": [0, 10**9]}}},
        {"train": {"blend_epochized": [{"path": "one", "repetitions": 1e18}]}},
    ):
        shutil.rmtree(folder / "in/one", ignore_errors=True)
        shutil.copytree(folder / "one", folder / "in/one")
        with pytest.raises(bp.BatchplantError):
            bp.open(metadataset(path, splits))


# -- energon itself --------------------------------------------------------------------------------------


@pytest.mark.reference
def test_energon_reads_what_is_written(tmp_path: Path) -> None:
    """It loads the samples and writes no file; and what its own preparation writes is the same."""
    energon = pytest.importorskip("megatron.energon")
    cooking = pytest.importorskip("megatron.energon.task_encoder.cooking")
    preparing = pytest.importorskip("megatron.energon.flavors.webdataset.prepare")

    @energon.stateless
    def cook(sample: object) -> object:
        return sample

    class Encoder(energon.DefaultTaskEncoder):
        cookers = [cooking.Cooker(cook)]  # noqa: RUF012

    folder = archives(tmp_path / "set")
    prepare(folder, SPLITS)
    files = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    config = energon.WorkerConfig(rank=0, world_size=1, num_workers=0)
    options = {"worker_config": config, "batch_size": None, "task_encoder": Encoder()}
    loader = energon.get_loader(energon.get_val_dataset(folder, split_part="train", **options))
    assert [sample["__key__"] for sample in loader] == [f"k/{n}" for n in range(12)]
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == files
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    names = sorted(path.name for path in folder.glob("*.tar"))
    for name in names:
        shutil.copy(folder / name, theirs)
    preparing.WebdatasetPreparator.prepare_dataset(
        theirs, names, split_parts_patterns=[("train", "part-0000[0-2].tar"), ("val", ".*3.tar")], workers=1
    )
    for path in folder.glob("*.idx"):
        assert (theirs / path.name).read_bytes() == path.read_bytes()
    assert classes(bp.open(theirs, split="train")) == list(range(12))
    assert os.path.exists(theirs / ".nv-meta/split.yaml")
