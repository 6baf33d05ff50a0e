"""Tables whose cells are the paths of images: CSV, JSON, Parquet and Arrow."""

import json
import pickle

import numpy as np
import pytest
from PIL import Image

import batchplant as bp
from batchplant.cli import main

COUNT = 5


@pytest.fixture
def folder(tmp_path):
    inside = tmp_path / "data"
    (inside / "images").mkdir(parents=True)
    for n in range(COUNT):
        Image.fromarray(np.full((6, 8, 3), n * 20, np.uint8)).save(inside / "images" / f"{n}.jpg")
    Image.fromarray(np.zeros((4, 4, 3), np.uint8)).save(tmp_path / "secret.jpg")
    return inside


def manifest(folder, suffix, names):
    path = folder / f"train.{suffix}"
    rows = [{"image": name, "label": n} for n, name in enumerate(names)]
    if suffix == "csv":
        lines = [f"{row['image'] or ''},{row['label']}\n" for row in rows]
        path.write_text("image,label\n" + "".join(lines))
    elif suffix == "jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    else:
        pa = pytest.importorskip("pyarrow", reason="pip install 'batchplant[arrow]'")
        table = pa.table({"image": pa.array(names, pa.string()), "label": list(range(len(names)))})
        if suffix == "parquet":
            pq = pytest.importorskip("pyarrow.parquet")
            # Plain text, which must not be taken for images that lie in the file.
            pq.write_table(table, path, compression="none", use_dictionary=False)
        else:
            with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, table.schema) as out:
                out.write_table(table)
    return path


def options(suffix):
    return {"types" if suffix in ("csv", "jsonl") else "schema": {"image": "image"}}


@pytest.mark.parametrize("suffix", ["csv", "jsonl", "parquet", "arrow"])
def test_paths_are_opened_as_images(suffix, folder, tmp_path):
    names = [f"images/{n}.jpg" for n in range(COUNT - 1)] + [str(folder / "images" / f"{COUNT - 1}.jpg")]
    path = manifest(folder, suffix, names)
    reader = bp.open(path, **options(suffix))
    assert isinstance(reader.schema["image"], bp.Image)
    assert reader[3]["image"].shape == (6, 8, 3)
    assert reader.read([4])["image"][0].tobytes() == (folder / "images" / "4.jpg").read_bytes()
    assert len(pickle.loads(pickle.dumps(reader))) == COUNT
    [batch] = bp.Loader(reader, COUNT, order="random", seed=1, ids=True)
    assert abs(batch["image"].mean(axis=(1, 2, 3)) - 20 * batch["ids"]).max() < 2
    assert bp.verify(reader).ok
    bp.convert(reader, tmp_path / "a.beton")
    assert bp.verify(tmp_path / "a.beton", against=reader).ok
    # Without being told, text is text.
    assert type(bp.open(path).schema["image"]) is bp.Text


@pytest.mark.parametrize("suffix", ["csv", "jsonl"])
def test_the_loader_reads_the_files_themselves(suffix, folder):
    reader = bp.open(manifest(folder, suffix, ["images/1.jpg", "images/2.jpg"]), **options(suffix))
    assert reader.schema["image"] == bp.Image("jpeg")
    spans = reader.spans("image", [1])
    assert [str(file) for file in spans.files] == [str(folder / "images" / "2.jpg")]
    assert reader.where(1) == str(folder / "images" / "2.jpg")


@pytest.mark.parametrize("suffix", ["csv", "jsonl"])
def test_a_path_may_be_missing(suffix, folder):
    reader = bp.open(manifest(folder, suffix, ["images/1.jpg", None, "images/2.jpg"]), **options(suffix))
    assert reader.schema["image"].optional
    assert [sample["image"] is None for sample in reader] == [False, True, False]


@pytest.mark.parametrize("suffix", ["csv", "jsonl", "parquet", "arrow"])
@pytest.mark.parametrize(
    "name",
    ["../secret.jpg", "images/../../secret.jpg", "{above}/secret.jpg", "s3://bucket/a.jpg", "file:///a.jpg"],
)
def test_paths_never_lead_out_of_the_folder(suffix, name, folder):
    path = manifest(folder, suffix, [name.format(above=folder.parent), "images/1.jpg"])
    with pytest.raises(bp.BatchplantError, match="does not lie in"):
        bp.open(path, **options(suffix))[0]


@pytest.mark.parametrize("suffix", ["csv", "jsonl"])
def test_outside_follows_them(suffix, folder):
    path = manifest(folder, suffix, ["../secret.jpg", str(folder.parent / "secret.jpg"), "images/1.jpg"])
    reader = bp.open(path, outside=True, **options(suffix))
    assert [sample["image"].shape for sample in reader] == [(4, 4, 3), (4, 4, 3), (6, 8, 3)]


def test_what_is_wrong_names_the_sample(folder, tmp_path):
    path = manifest(folder, "csv", ["images/1.jpg", "images/none.jpg"])
    with pytest.raises(bp.DamagedError, match=r"none\.jpg: No such file") as caught:
        bp.open(path, types={"image": "image"})[1]
    assert (caught.value.sample, caught.value.field) == (1, "image")
    path.write_text("image\nabc\n")
    with pytest.raises(bp.DecodeError, match=r"not base64, .* nor the path of a file"):
        bp.open(path, types={"image": "image"})[0]
    path = manifest(folder, "csv", ["images/1.jpg"])
    arguments = ["convert", str(path), str(tmp_path / "b.parquet"), "--option", "types=image=image"]
    assert main(arguments) == 0
    assert isinstance(bp.open(tmp_path / "b.parquet").schema["image"], bp.Image)
