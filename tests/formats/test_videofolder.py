"""Folders of videos: the suite, what the files have in common, and loading them."""

import sys
from typing import ClassVar

import numpy as np
import pytest

import batchplant as bp
from batchplant.codecs.media import video
from batchplant.testing import FormatSuite
from batchplant.testing.cases import film
from repository import GOLDEN


class TestSuite(FormatSuite):
    format = "videofolder"
    beside: ClassVar = {"video": (bp.Video(), film(1))}
    # A metadata file that ends early names fewer videos, and nobody can tell.
    notices_cuts = False
    golden = GOLDEN

    def files(self, path):
        """Without the videos: the tests of the codec damage those, and decoding them takes long."""
        return [file for file in super().files(path) if file.suffix != ".avi"]


@pytest.mark.parametrize(
    ("files", "field"),
    [
        ([film(1), film(3)], bp.Video("avi", 25.0, 16, 16)),
        ([film(1), film(2, 24)], bp.Video("avi", 25.0)),
        ([film(1), film(2)[:100]], bp.Video("avi", 25.0, 16, 16)),
        ([film(1), b"text"], bp.Video(None, 25.0, 16, 16)),
        ([b"", b"text"], bp.Video()),
    ],
)
def test_what_all_have_is_found_by_looking(files, field, tmp_path):
    pytest.importorskip("av")
    for number, data in enumerate(files):
        (tmp_path / f"{number}.avi").write_bytes(data)
    with bp.open(tmp_path) as reader:
        assert dict(reader.schema) == {"video": field}
        assert [sample["video"] for sample in reader] == files


def test_facts_stay_open_where_the_library_is_missing(tmp_path, monkeypatch):
    (tmp_path / "a.avi").write_bytes(film(2))
    monkeypatch.setitem(sys.modules, "av", None)
    with bp.open(tmp_path) as reader:
        assert reader.schema["video"] == bp.Video("avi")
        assert reader[0]["video"] == film(2)


@pytest.mark.parametrize("encoding", ["mp4", "mkv", "webm"])
def test_files_are_named_by_what_they_are(encoding, tmp_path):
    pytest.importorskip("av")
    data = video.encode(np.zeros((2, 16, 32, 3), np.uint8), 10, encoding)
    with bp.create(tmp_path / "out", {"v": bp.Video(), "k": bp.Int(names=("a", "b"))}) as out:
        out.append({"v": data, "k": 1})
    assert (tmp_path / "out" / "b" / f"00000000.{encoding}").read_bytes() == data
    with bp.open(tmp_path / "out") as reader:
        assert (reader.format, reader[0]["v"], reader[0]["k"]) == ("videofolder", data, 1)
    # Without our note the files are looked at.
    (tmp_path / "out" / ".batchplant.json").unlink()
    with bp.open(tmp_path / "out") as reader:
        assert reader.schema["video"] == bp.Video(encoding, 10.0, 32, 16)


def test_a_loader_decodes_clips(tmp_path):
    pytest.importorskip("av")
    for label in ("fast", "slow"):
        (tmp_path / label).mkdir()
        for number in range(2):
            (tmp_path / label / f"{number}.avi").write_bytes(film(4 + number))
    decode = bp.ops.DecodeVideo(frames=3, at="start")
    loader = bp.Loader(tmp_path, 2, order="sequential", pipelines={"video": [decode]})
    batches = [{name: np.array(value) for name, value in batch.items()} for batch in loader]
    loader.close()
    assert [batch["video"].shape for batch in batches] == [(2, 3, 16, 16, 3)] * 2
    assert np.array_equal(batches[1]["video"][1], video.Clip(film(5)).read(0, 3))
    assert [batch["label"].tolist() for batch in batches] == [[0, 0], [1, 1]]
