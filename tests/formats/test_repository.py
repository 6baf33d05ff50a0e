"""Dataset repositories: configurations and splits of a card, local and at hf://."""

from __future__ import annotations

import pickle
import warnings
from pathlib import Path

import numpy as np
import pytest

import batchplant as bp
from hub import REPOSITORY, hub_server
from variants import in_one_test

pytest.importorskip("pyarrow")
pytest.importorskip("yaml")

CARD = """---
license: mit
pretty_name: "Tiny: a set"
configs:
- config_name: default
  data_files:
  - split: train
    path: data/train-*.parquet
  - split: test
    path:
    - data/test-00000.parquet
- config_name: raw
  data_dir: raw
  data_files: "*.csv"
dataset_info:
  features: []
---
# A set
configs: this is text
"""


def make(folder: Path, card: str = CARD) -> Path:
    (folder / "data").mkdir(parents=True)
    (folder / "raw").mkdir()
    (folder / "README.md").write_text(card)
    for name, rows in (("data/train-00010.parquet", [3]), ("data/train-00002.parquet", [1, 2]),
                       ("data/test-00000.parquet", [9]), ("raw/a.csv", [5, 6])):  # fmt: skip
        bp.convert({"n": np.array(rows)}, folder / name)
    return folder


def values(reader: bp.Reader) -> list[int]:
    return list(reader.read(range(len(reader)), ["n"])["n"])


def test_configurations_and_splits(tmp_path: Path) -> None:
    path = make(tmp_path / "set")
    with bp.open(path, split="train") as reader:
        assert reader.format == "repository"
        assert values(reader) == [1, 2, 3]
        assert (reader.facts()["config"], reader.facts()["split"]) == ("default", "train")
        assert values(pickle.loads(pickle.dumps(reader))) == [1, 2, 3]
    assert values(bp.open(path, split="test")) == [9]
    assert values(bp.open(path, config="raw")) == [5, 6]
    with pytest.raises(bp.OptionError, match=r"several splits; split=… is one of train, test"):
        bp.open(path)
    with pytest.raises(bp.OptionError, match="no config 'x'"):
        bp.open(path, config="x")
    with pytest.raises(bp.OptionError, match="no split 'x'"):
        bp.open(path, split="x")


@pytest.mark.usefixtures("_no_settings")
def test_a_repository_of_the_hub(tmp_path: Path) -> None:
    make(tmp_path / "set")
    with hub_server(tmp_path / "set") as hub:
        reader = bp.open(f"hf://datasets/{REPOSITORY}@main", split="train", endpoint=hub.endpoint)
        assert values(reader) == [1, 2, 3]
        assert hub.count("/revision/") == 1


@pytest.mark.parametrize(
    "files",
    [
        "../x.parquet",
        "/etc/*.parquet",
        "[1, 2.parquet]",
        "{a: [../b.parquet]}",
        "no-*.parquet",
        "[{a: b.parquet}]",
        "&a [*a, x.parquet]",
    ],
)
def test_cards_that_are_hostile(files: str, tmp_path: Path) -> None:
    path = make(tmp_path / "set", f"---\nconfigs:\n- config_name: default\n  data_files: {files}\n---\n")
    with pytest.raises(bp.BatchplantError):
        bp.open(path)


@in_one_test("card", ["", "---\n---\n", "---\nconfigs: 3\n---\n", "no front matter", "---\nconfigs:\n"])
def test_folders_without_such_a_card_open_as_before(card: str, tmp_path: Path) -> None:
    path = make(tmp_path / "set", card)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert sorted(values(bp.open(path / "data"))) == [1, 2, 3, 9]
        with pytest.raises(bp.BatchplantError):
            bp.open(path, format="repository")
