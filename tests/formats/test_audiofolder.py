"""Folders of sounds: the suite, what the files have in common, and loading them."""

import sys
from typing import ClassVar

import numpy as np
import pytest

import batchplant as bp
from batchplant.codecs.media import audio
from batchplant.testing import FormatSuite
from batchplant.testing.cases import sound
from repository import GOLDEN


class TestSuite(FormatSuite):
    format = "audiofolder"
    beside: ClassVar = {"audio": (bp.Audio(), sound(4))}
    # A metadata file that ends early names fewer sounds, and nobody can tell.
    notices_cuts = False
    golden = GOLDEN

    def files(self, path):
        """One sound is enough: the tests of the codec damage more of them."""
        result = super().files(path)
        return [file for file in result if file.suffix != ".wav" or file.stem == "00000000"]


def flac(rate=8000, channels=1):
    return audio.encode(np.zeros((40, channels), np.int16), rate, "flac")


@pytest.mark.parametrize(
    ("files", "field"),
    [
        ([sound(5), sound(9)], bp.Audio("wav", 8000, 1)),
        ([sound(5), sound(9, channels=2)], bp.Audio("wav", 8000, None)),
        ([sound(5), flac()], bp.Audio(None, 8000, 1)),
        ([flac(), flac(44100)], bp.Audio("flac", None, 1)),
        ([flac(44100, 2)], bp.Audio("flac", 44100, 2)),
        ([sound(5), sound(9)[:20]], bp.Audio("wav", 8000, 1)),
        ([sound(5), b"text"], bp.Audio(None, 8000, 1)),
        ([b"", b"text"], bp.Audio()),
    ],
)
def test_what_all_have_is_found_by_looking(files, field, tmp_path):
    for number, data in enumerate(files):
        (tmp_path / f"{number}.wav").write_bytes(data)
    with bp.open(tmp_path) as reader:
        assert dict(reader.schema) == {"audio": field}
        assert [sample["audio"] for sample in reader] == files


def test_facts_stay_open_where_the_library_is_missing(tmp_path, monkeypatch):
    """WAV and FLAC need none to tell; an Ogg file does."""
    (tmp_path / "a.ogg").write_bytes(audio.encode(np.zeros((4000, 1), np.float32), 8000, "ogg"))
    with bp.open(tmp_path) as reader:
        assert reader.schema["audio"] == bp.Audio("ogg", 8000, 1)
    monkeypatch.setitem(sys.modules, "soundfile", None)
    with bp.open(tmp_path) as reader:
        assert reader.schema["audio"] == bp.Audio("ogg")


@pytest.mark.parametrize("encoding", ["wav", "flac", "ogg", "mp3"])
def test_files_are_named_by_what_they_are(encoding, tmp_path):
    data = audio.encode(np.zeros((4000, 1), np.int16), 8000, encoding)
    with bp.create(tmp_path / "out", {"s": bp.Audio()}) as out:
        out.append({"s": data})
    assert (tmp_path / "out" / f"00000000.{encoding}").read_bytes() == data
    with bp.open(tmp_path / "out") as reader:
        assert reader.format == "audiofolder"
        assert reader[0]["s"] == data


def test_a_damaged_sound_is_found_by_decoding(tmp_path):
    for name, data in {"a": sound(9), "b": flac()[:30], "c": b""}.items():
        (tmp_path / f"{name}.wav").write_bytes(data)
    assert bp.verify(tmp_path).problems == []
    assert [problem.sample for problem in bp.verify(tmp_path, decode=True).problems] == [1, 2]


def test_a_loader_decodes_windows(tmp_path):
    for label in ("high", "low"):
        (tmp_path / label).mkdir()
        for number in range(4):
            samples = np.arange(100, dtype=np.int16) + 1000 * number
            (tmp_path / label / f"{number}.wav").write_bytes(audio.encode(samples, 8000, "wav"))
    decode = bp.ops.DecodeAudio(frames=60, window="centre", dtype="int16")
    loader = bp.Loader(tmp_path, 4, order="sequential", pipelines={"audio": [decode]})
    batches = [{name: np.array(value) for name, value in batch.items()} for batch in loader]
    loader.close()
    assert [batch["audio"].shape for batch in batches] == [(4, 60, 1)] * 2
    assert np.array_equal(batches[0]["audio"][2, :, 0], np.arange(20, 80) + 2000)
    assert [batch["label"].tolist() for batch in batches] == [[0] * 4, [1] * 4]
