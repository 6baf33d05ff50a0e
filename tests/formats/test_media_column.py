"""Columns of paths that are the files they name: ``open(…, media=…)``."""

import json
import os
import pickle

import numpy as np
import pytest

import batchplant as bp
from batchplant.codecs.media import audio
from batchplant.testing.cases import jpeg

ROWS = 6


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "images").mkdir()
    for number in range(ROWS):
        (tmp_path / "images" / f"{number}.jpg").write_bytes(jpeg(8, 8 + number))
    return tmp_path


def table(target, **columns):
    """A table of these columns in the format of the path's suffix."""
    rows = len(next(iter(columns.values())))
    schema = {
        name: bp.Text()
        if isinstance(values[0], str)
        else bp.Float()
        if isinstance(values[0], float)
        else bp.Int()
        for name, values in columns.items()
    }
    with bp.create(target, schema) as out:
        for row in range(rows):
            out.append({name: values[row] for name, values in columns.items()})
    return target


def names(prefix="images"):
    return [f"{prefix}/{number}.jpg" for number in range(ROWS)]


@pytest.mark.parametrize("suffix", [".csv", ".jsonl", ".parquet", ".arrow"])
def test_any_table(folder, suffix):
    path = table(folder / f"index{suffix}", path=names(), label=list(range(ROWS)))
    with bp.open(path, media={"path": bp.Image()}) as reader:
        assert dict(reader.schema)["path"] == bp.Image("jpeg")
        assert [reader[n]["path"].shape for n in range(ROWS)] == [(8, 8 + n, 3) for n in range(ROWS)]
        assert reader.spans("path", [2]).files[0].endswith("images/2.jpg")
        assert bytes(reader.read([4, 1])["path"][1]) == jpeg(8, 9)
        assert reader.where(3).endswith("images/3.jpg")
        assert pickle.loads(pickle.dumps(reader))[1]["label"] == 1
    steps = [bp.ops.RandomResizedCrop(8)]
    batches = list(bp.Loader(bp.open(path, media="path=image"), 4, pipelines={"path": steps}))
    assert sum(len(batch["label"]) for batch in batches) == ROWS


def test_converting_embeds_the_files(folder):
    path = table(folder / "index.csv", path=names(), label=list(range(ROWS)))
    bp.convert(path, folder / "out.beton", source_options={"media": "path=image"})
    with bp.open(folder / "out.beton") as reader:
        assert bytes(reader.read([5])["path"][0]) == jpeg(8, 13)


def test_nothing_outside_is_read(folder):
    (folder / "inner").mkdir()
    for name in ("../images/0.jpg", str(folder / "images" / "0.jpg"), "http://127.0.0.1:9/a.jpg"):
        path = folder / "inner" / "index.jsonl"
        path.write_text(json.dumps({"path": name}) + "\n")
        with bp.open(path, media={"path": bp.Image("jpeg")}) as reader:
            with pytest.raises(bp.DamagedError, match="does not lie in") as caught:
                reader[0]
            assert caught.value.field == "path"
        if not name.startswith("http"):
            with bp.open(path, media={"path": bp.Image("jpeg")}, outside=True) as reader:
                assert reader[0]["path"].shape == (8, 8, 3)


def test_parts_of_files(folder):
    blob = b"".join(jpeg(8, 8 + n) for n in range(ROWS))
    (folder / "all.bin").write_bytes(blob)
    sizes = [len(jpeg(8, 8 + n)) for n in range(ROWS)]
    starts = [sum(sizes[:n]) for n in range(ROWS)]
    path = table(folder / "index.csv", path=["all.bin"] * ROWS, start=starts, size=sizes)
    with bp.open(path, media={"path": bp.Image("jpeg")}) as reader:
        assert reader.spans("path", [3]).start.tolist() == [starts[3]]
        assert [bytes(cell) for cell in reader.read(range(ROWS))["path"]] == [
            jpeg(8, 8 + n) for n in range(ROWS)
        ]
    path = table(folder / "bad.csv", path=["all.bin"] * 2, start=[0, -1], size=[len(blob) + 1, 2])
    with bp.open(path, media={"path": bp.Bytes()}) as reader:
        for row in range(2):
            with pytest.raises(bp.DamagedError, match="do not lie in"):
                reader[row]
            with pytest.raises(bp.DamagedError, match="do not lie in"):
                reader.spans("path", [row])


def test_seconds_of_sounds(tmp_path):
    samples = np.arange(16_000, dtype=np.int16).reshape(-1, 1)
    (tmp_path / "a.wav").write_bytes(audio.write_wav(samples, 8000, "PCM_16"))
    (tmp_path / "a.flac").write_bytes(audio.encode(samples, 8000, "flac"))
    path = table(tmp_path / "index.csv", audio=["a.wav", "a.flac"], start=[0.5, 1.0], duration=[0.25, 9.0])
    with bp.open(path, media={"audio": bp.Audio()}) as reader:
        assert reader.schema["audio"] == bp.Audio("wav")
        for row, part in enumerate((samples[4000:6000], samples[8000:])):
            sound = bytes(reader.read([row])["audio"][0])
            assert (audio.decode(sound, dtype="int16") == part).all()


def test_wrong_media(folder):
    path = table(folder / "index.csv", path=names(), label=list(range(ROWS)))
    with pytest.raises(bp.OptionError, match="images, sounds"):
        bp.open(path, media={"path": bp.Int()})
    with pytest.raises(bp.SchemaError, match="is text"):
        bp.open(path, media={"label": bp.Image()})
    with pytest.raises(bp.FieldNameError):
        bp.open(path, media={"nothing": bp.Image()})
    os.remove(folder / "images" / "2.jpg")
    problems = bp.verify(path, media="path=image").problems
    assert [problem.sample for problem in problems] == [2]
