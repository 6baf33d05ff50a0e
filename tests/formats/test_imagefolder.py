"""Folders of images: the suite, the three layouts, and what lies about in real folders."""

import io
import json
import os
import sys
from typing import ClassVar

import numpy as np
import pytest
from PIL import Image as Pillow

import batchplant as bp
from batchplant.codecs.media import image
from batchplant.testing import FormatSuite
from batchplant.testing.cases import cells, jpeg, pixels, png
from processes import run
from repository import GOLDEN


class TestSuite(FormatSuite):
    format = "imagefolder"
    beside: ClassVar = {"image": (bp.Image(), jpeg())}
    # A metadata file that ends early names fewer images, and nobody can tell.
    notices_cuts = False
    golden = GOLDEN


def fill(folder, files):
    for name, data in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data.encode() if isinstance(data, str) else data)
    return folder


# --- layouts ------------------------------------------------------------------------------------------


def test_class_folders(tmp_path):
    fill(
        tmp_path,
        {"dog/b.jpg": jpeg(8, 9), "cat/z.jpg": jpeg(), "dog/a.jpeg": jpeg(9, 8), "cat/sub/y.JPG": jpeg(5, 5)},
    )
    with bp.open(tmp_path, file_names=True) as reader:
        assert reader.schema == bp.Schema(
            image=bp.Image("jpeg"), label=bp.Int(names=("cat", "dog")), file_name=bp.Text()
        )
        names = ["cat/sub/y.JPG", "cat/z.jpg", "dog/a.jpeg", "dog/b.jpg"]
        assert [sample["file_name"] for sample in reader] == names
        assert [sample["label"] for sample in reader] == [0, 0, 1, 1]
        assert cells(reader)["image"] == [(tmp_path / name).read_bytes() for name in names]


def test_images_beside_class_folders_are_refused(tmp_path):
    fill(tmp_path, {"cat/a.jpg": jpeg(), "b.jpg": jpeg()})
    with pytest.raises(bp.SchemaError, match=r"beside them \(b.jpg\)"):
        bp.open(tmp_path)


def test_flat_folder(tmp_path):
    fill(tmp_path, {"b.png": png(4, 5, 3), "a.png": png(3, 3, 3)})
    with bp.open(tmp_path) as reader:
        assert dict(reader.schema) == {"image": bp.Image("png")}
        assert [sample["image"].shape for sample in reader] == [(3, 3, 3), (4, 5, 3)]


def test_metadata_csv(tmp_path):
    rows = [
        "file_name,count,ratio,zip,word,wide",
        'b.jpg,3,0.5,00501,"a, ""b""",12345678901234567890123',
        "sub/a.jpg,-1,2,10001,,7",
        "b.jpg,0,-1e3,90210,größe,8",
    ]
    fill(
        tmp_path,
        {"b.jpg": jpeg(8, 9), "sub/a.jpg": jpeg(), "unnamed.jpg": jpeg(), "metadata.csv": "\n".join(rows)},
    )
    with bp.open(tmp_path) as reader:
        assert reader.schema == bp.Schema(
            image=bp.Image("jpeg"),
            count=bp.Int(),
            ratio=bp.Float(),
            zip=bp.Text(),
            word=bp.Text(),
            wide=bp.Json(),
        )
        actual = [{name: sample[name] for name in list(sample)[1:]} for sample in reader]
        assert actual == [
            {"count": 3, "ratio": 0.5, "zip": "00501", "word": 'a, "b"', "wide": 12345678901234567890123},
            {"count": -1, "ratio": 2.0, "zip": "10001", "word": "", "wide": 7},
            {"count": 0, "ratio": -1000.0, "zip": "90210", "word": "größe", "wide": 8},
        ]
        assert cells(reader)["image"] == [jpeg(8, 9), jpeg(), jpeg(8, 9)]


@pytest.mark.parametrize(
    ("column", "field"),
    [
        (["1", "-2", "0"], bp.Int()),
        (["1", "-2.5", ".5"], bp.Float()),
        (["1", "nan", "-inf"], bp.Float()),
        (["1", ""], bp.Text()),
        (["007", "1"], bp.Text()),
        (["1_000", "2"], bp.Text()),
        ([" 1", "2"], bp.Text()),
        (["\u0661", "\u0662"], bp.Text()),
        (["True", "False"], bp.Text()),
    ],
)
def test_numbers_in_csv_are_what_is_written_as_numbers(column, field, tmp_path):
    lines = ["file_name,x", *(f"a.jpg,{value}" for value in column)]
    fill(tmp_path, {"a.jpg": jpeg(), "metadata.csv": "\n".join(lines)})
    with bp.open(tmp_path) as reader:
        assert reader.schema["x"] == field
        if field == bp.Text():
            assert [sample["x"] for sample in reader] == column


def test_metadata_jsonl(tmp_path):
    rows = [
        {"file_name": "a.jpg", "n": 1, "caption": "größe", "box": [1, 2.5], "maybe": 3, "flag": True},
        {"file_name": "a.jpg", "n": 2, "caption": "", "box": {"x": None}, "flag": False},
        {"file_name": "a.jpg", "n": 3, "caption": "c", "box": [], "maybe": None, "flag": True},
    ]
    fill(tmp_path, {"a.jpg": jpeg(), "metadata.jsonl": "\n\n".join(json.dumps(row) for row in rows) + "\n"})
    with bp.open(tmp_path) as reader:
        assert reader.schema == bp.Schema(
            image=bp.Image("jpeg"),
            n=bp.Int(),
            caption=bp.Text(),
            box=bp.Json(),
            maybe=bp.Int(optional=True),
            flag=bp.Bool(),
        )
        for name in ("n", "caption", "box", "maybe", "flag"):
            assert [sample[name] for sample in reader] == [row.get(name) for row in rows]


@pytest.mark.parametrize("name", ["../x.jpg", "/etc/passwd", "sub/../../x.jpg", "", ".", "a\0.jpg", None, 7])
def test_paths_that_leave_the_folder_are_refused(name, tmp_path):
    (tmp_path / "x.jpg").write_bytes(jpeg())
    rows = json.dumps({"file_name": "a.jpg"}) + "\n" + json.dumps({"file_name": name})
    fill(tmp_path / "data", {"a.jpg": jpeg(), "metadata.jsonl": rows})
    with pytest.raises(bp.DamagedError, match=r"line 2: file_name is .*, not a path below the folder"):
        bp.open(tmp_path / "data")


@pytest.mark.parametrize(
    ("name", "text", "reason"),
    [
        ("metadata.csv", "file_name,n\na.jpg", "more or fewer columns"),
        ("metadata.csv", "file_name,n\na.jpg,1,2", "more or fewer columns"),
        ("metadata.csv", "n\n1", "file_name is None"),
        ("metadata.csv", 'file_name,n\na.jpg,"1', "unexpected end of data"),
        ("metadata.csv", b"file_name\n\xff.jpg", "utf-8"),
        ("metadata.jsonl", "[1]", "line 1 is no JSON object"),
        ("metadata.jsonl", "{", "Expecting"),
        ("metadata.jsonl", "[" * 100_000, "recursion"),
    ],
)
def test_damaged_metadata(name, text, reason, tmp_path):
    fill(tmp_path, {"a.jpg": jpeg(), name: text})
    with pytest.raises(bp.DamagedError, match=reason):
        bp.open(tmp_path)


def test_a_column_called_image_would_hide_the_images(tmp_path):
    fill(tmp_path, {"a.jpg": jpeg(), "metadata.csv": "file_name,image\na.jpg,5"})
    with pytest.raises(bp.SchemaError, match="has a column 'image'"):
        bp.open(tmp_path)


# --- what lies about ----------------------------------------------------------------------------------


def test_what_is_no_image_is_skipped_and_counted(tmp_path):
    fill(tmp_path, {
        "cat/a.jpg": jpeg(), "cat/.hidden.jpg": jpeg(), "cat/notes.txt": "x", ".DS_Store": "x",
        "README": "x", ".git/b.jpg": jpeg(),
    })  # fmt: skip
    os.mkfifo(tmp_path / "cat" / "pipe.jpg")
    with bp.open(tmp_path) as reader:
        assert len(reader) == 1
        assert reader.facts() == {"skipped files": 6}


def test_links(tmp_path):
    fill(tmp_path, {"data/cat/a.jpg": jpeg(), "elsewhere/b.jpg": jpeg(9, 9)})
    data = tmp_path / "data"
    (data / "cat" / "up").symlink_to(data, target_is_directory=True)
    (data / "dog").symlink_to(tmp_path / "elsewhere", target_is_directory=True)
    with bp.open(data, file_names=True) as reader:
        assert [sample["file_name"] for sample in reader] == ["cat/a.jpg", "dog/b.jpg"]
    (data / "dog" / "gone.jpg").symlink_to(data / "nowhere")
    result = bp.verify(data)
    assert [problem.sample for problem in result.problems] == [2]
    assert "gone.jpg: No such file" in result.problems[0].message


@pytest.mark.parametrize(
    ("files", "field"),
    [
        ([jpeg(), jpeg(channels=1)], bp.Image("jpeg", "RGB")),
        ([jpeg(channels=1)], bp.Image("jpeg", "L")),
        ([jpeg(), png(4, 4, 3)], bp.Image(None, "RGB")),
        ([png(4, 4, 4), png(4, 4, 4)], bp.Image("png", "RGBA")),
        ([png(4, 4, 4), png(4, 4, 3)], bp.Image("png", None)),
        ([image.encode(pixels(4, 4, dtype=np.uint16), "png")], bp.Image("png", "I;16")),
    ],
)
def test_mode_and_encoding_are_found_by_looking(files, field, tmp_path):
    fill(tmp_path, {f"{n}.png": data for n, data in enumerate(files)})
    with bp.open(tmp_path) as reader:
        assert reader.schema["image"] == field
        for sample, data in zip(reader, files, strict=True):
            assert np.array_equal(sample["image"], image.decode(data, field.mode))


def test_mode_can_be_given(tmp_path):
    fill(tmp_path, {"0.jpg": jpeg(channels=1), "1.png": png(4, 4, 4)})
    with bp.open(tmp_path, mode="RGB") as reader:
        assert reader[0]["image"].shape == (8, 8, 3)
        with pytest.raises(bp.DecodeError, match="making it RGB would change its pixels"):
            reader[1]
    assert [problem.sample for problem in bp.verify(tmp_path, decode=True, mode="RGB").problems] == [1]


def test_a_suffix_does_not_matter_to_the_bytes(tmp_path):
    fill(tmp_path, {"a.jpg": png(4, 4, 3)})
    with bp.open(tmp_path) as reader:
        assert reader.schema["image"].encoding == "png"
        assert np.array_equal(reader[0]["image"], pixels(4, 4, 3))


def test_files_that_vanish(tmp_path):
    fill(tmp_path, {f"{n}.jpg": jpeg() for n in range(4)})
    with bp.open(tmp_path) as reader:
        (tmp_path / "2.jpg").unlink()
        for use in (lambda: reader[2], lambda: reader.read([0, 2]), lambda: reader.spans("image")):
            with pytest.raises(bp.DamagedError, match=r"2\.jpg: No such file") as caught:
                use()
            assert (caught.value.sample, caught.value.field) == (2, "image")
        assert len(reader.read([0, 1, 3])["image"]) == 3
        [problem] = bp.verify(reader).problems
        assert (problem.sample, problem.field) == (2, "image")


def test_metadata_that_names_a_missing_file_still_opens(tmp_path):
    fill(tmp_path, {"a.jpg": jpeg(), "metadata.csv": "file_name,n\na.jpg,1\nb.jpg,2\na.jpg,3"})
    assert [problem.sample for problem in bp.verify(tmp_path).problems] == [1]


def test_a_truncated_image_is_found_by_decoding(tmp_path):
    fill(tmp_path, {"a.jpg": jpeg(), "b.jpg": jpeg()[:-20], "c.jpg": b""})
    assert bp.verify(tmp_path).problems == []
    assert [problem.sample for problem in bp.verify(tmp_path, decode=True).problems] == [1, 2]


def test_an_empty_folder_is_no_dataset(tmp_path):
    with pytest.raises(bp.UnknownFormatError, match="nothing that batchplant reads"):
        bp.open(tmp_path)


# --- writing ------------------------------------------------------------------------------------------


def test_classes_become_folders(tmp_path):
    schema = {"photo": bp.Image(), "kind": bp.Int("uint8", names=("dog", "cat", "unused"))}
    samples = [
        {"photo": jpeg(), "kind": 1},
        {"photo": pixels(3, 4, 3), "kind": 0},
        {"photo": png(2, 2, 3), "kind": 1},
    ]
    with bp.create(tmp_path / "out", schema) as out:
        for sample in samples:
            out.append(sample)
    actual = sorted(str(path.relative_to(tmp_path / "out")) for path in (tmp_path / "out").rglob("*.*g"))
    assert actual == ["cat/00000000.jpg", "cat/00000002.png", "dog/00000001.png"]
    with bp.open(tmp_path / "out") as reader:
        assert reader.schema["kind"] == schema["kind"]
        assert [sample["kind"] for sample in reader] == [1, 0, 1]
        assert np.array_equal(reader[1]["photo"], pixels(3, 4, 3))
        assert reader.facts() == {"skipped files": 0}


@pytest.mark.parametrize("schema", [
    {"image": bp.Image(), "label": bp.Int(names=("a", "b"))}, {"image": bp.Image()},
])  # fmt: skip
def test_empty_datasets_keep_their_schema(schema, tmp_path):
    bp.create(tmp_path / "out", schema).close()
    with bp.open(tmp_path / "out") as reader:
        assert (len(reader), dict(reader.schema)) == (0, schema)


@pytest.mark.parametrize(
    ("schema", "reason"),
    [
        ({"n": bp.Int()}, "exactly one image field, not 0"),
        ({"a": bp.Image(), "b": bp.Image()}, "exactly one image field, not 2"),
        ({"image": bp.Image(), "file_name": bp.Text()}, "file_name is the folder's own"),
        ({"image": bp.Image(), "x": bp.Int(names=("a/b",))}, "cannot be a folder's name"),
        ({"image": bp.Image(), "x": bp.Int(names=("..",))}, "cannot be a folder's name"),
        ({"image": bp.Image(), "x": bp.Int(names=(".a",))}, "cannot be a folder's name"),
        ({"image": bp.Image(), "x": bp.Int(names=("",))}, "cannot be a folder's name"),
        ({"image": bp.Image(), "x": bp.Int(names=("a", "a"))}, "two classes have one name"),
        ({"image": bp.Image(optional=True)}, "cannot leave one out"),
    ],
)
def test_schemas_that_make_no_folder(schema, reason, tmp_path):
    with pytest.raises(bp.SchemaError, match=reason):
        bp.create(tmp_path / "out", schema, format="imagefolder")
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ({"image": jpeg(), "label": 2}, "there is no class 2"),
        ({"image": b"text", "label": 0}, "no image"),
    ],
)
def test_samples_that_make_no_file(value, reason, tmp_path):
    schema = {"image": bp.Image(), "label": bp.Int(names=("a", "b"))}
    good = {"image": jpeg(), "label": 0}

    def write(**options):
        with bp.create(tmp_path / "out", schema, **options) as out:
            for sample in (good, value, good):
                out.append(sample)
        return out

    with pytest.raises(bp.EncodeError, match=f"sample 1.*{reason}"):
        write()
    assert [problem.sample for problem in write(on_error="skip").skipped] == [1]
    assert len(bp.open(tmp_path / "out")) == 2


@pytest.mark.parametrize("note", ["", "{}", "[]", '{"image": "x", "schema": 5}', "[" * 100_000, "\0"])
def test_a_damaged_note(note, tmp_path):
    fill(tmp_path, {"a.jpg": jpeg(), ".batchplant.json": note})
    with pytest.raises(bp.DamagedError, match="is damaged"):
        bp.open(tmp_path)


def test_a_note_that_speaks_of_another_folder(tmp_path):
    with bp.create(tmp_path / "out", {"image": bp.Image(), "label": bp.Int(names=("a", "b"))}) as out:
        out.append({"image": jpeg(), "label": 0})
    (tmp_path / "out" / "a").rename(tmp_path / "out" / "c")
    with pytest.raises(bp.DamagedError, match="does not know the class c"):
        bp.open(tmp_path / "out")


def test_a_folder_replaces_a_folder_and_nothing_else(tmp_path):
    schema = {"image": bp.Image()}
    fill(tmp_path, {"out/old.jpg": jpeg(), "file": "x"})
    bp.create(tmp_path / "out", schema, overwrite=True).close()
    assert sorted(os.listdir(tmp_path / "out")) == [".batchplant.json"]
    with pytest.raises(bp.ExistsError, match="it is no folder"):
        bp.create(tmp_path / "file", schema, overwrite=True, format="imagefolder").close()
    assert (tmp_path / "file").read_text() == "x"
    with pytest.raises(bp.ExistsError, match="it is a folder"):
        bp.create(tmp_path / "out", schema, overwrite=True, format="npz").close()
    assert sorted(os.listdir(tmp_path)) == ["file", "out"]


def test_checksums_lie_beside_the_folder(tmp_path):
    with bp.create(f"{tmp_path}/out/", {"image": bp.Image()}, checksums=True) as out:
        out.append({"image": jpeg()})
    assert sorted(os.listdir(tmp_path)) == ["out", "out.crc"]
    (tmp_path / "out" / "00000000.jpg").write_bytes(jpeg(9, 9))
    for path in (tmp_path / "out", f"{tmp_path}/out/"):
        assert [problem.message for problem in bp.verify(path).problems] == ["the checksum is wrong"]


def test_any_image_that_pillow_writes_passes_through(tmp_path):
    files = {}
    for kind in ("PNG", "WEBP", "TIFF", "BMP", "GIF", "JPEG"):
        buffer = io.BytesIO()
        Pillow.fromarray(pixels(6, 7, 3)).save(buffer, kind)
        files[kind] = buffer.getvalue()
    with bp.create(tmp_path / "out", {"image": bp.Image(mode=None)}) as out:
        for data in files.values():
            out.append({"image": data})
    names = sorted(name for name in os.listdir(tmp_path / "out") if name[0] != ".")
    assert [name.split(".")[1] for name in names] == ["png", "webp", "tiff", "bmp", "gif", "jpg"]
    assert cells(bp.open(tmp_path / "out"))["image"] == list(files.values())


# --- images and their masks -----------------------------------------------------------------------------


def paired(folder, images="images", masks="masks", names=("a", "b", "sub/c"), lost=()):
    for number, name in enumerate(names):
        for where, suffix, value in ((images, ".png", 10 + number), (masks, ".png", number)):
            path = folder / where / f"{name}{suffix}"
            if f"{where}/{name}" in lost:
                continue
            path.parent.mkdir(parents=True, exist_ok=True)
            shape = (4, 6, 3) if where == images else (4, 6)
            Pillow.fromarray(np.full(shape, value, np.uint8)).save(path)
    return folder


@pytest.mark.parametrize(
    ("images", "masks"), [("images", "masks"), ("Img", "labels"), ("image", "annotations")]
)
def test_images_beside_their_masks(images, masks, tmp_path):
    with bp.open(paired(tmp_path / "set", images, masks)) as reader:
        assert reader.format == "imagefolder"
        assert dict(reader.schema) == {
            "image": bp.Image("png", "RGB"),
            "mask": bp.Image("png", "L", mask=True),
        }
        assert [(sample["image"][0, 0, 0], sample["mask"][0, 0]) for sample in reader] == [
            (10, 0),
            (11, 1),
            (12, 2),
        ]
        assert len(reader.spans("mask")) == 3
    [batch] = bp.Loader(tmp_path / "set", 3, pipelines={"image": [], "mask": []})
    assert batch["mask"][:, 0, 0, 0].tolist() == [0, 1, 2]
    assert bp.verify(tmp_path / "set").ok


def test_which_folders_belong_together_can_be_said(tmp_path):
    folder = paired(tmp_path / "set")
    with bp.open(folder, pairs=False) as reader:
        assert reader.schema["label"].names == ("images", "masks")
        assert len(reader) == 6
    folder = paired(tmp_path / "other", "left", "right")
    with bp.open(folder) as reader:
        assert reader.schema["label"].names == ("left", "right")
    for pairs in ("left,right", ["left", "right"], {"image": "left", "mask": "right"}):
        with bp.open(folder, pairs=pairs) as reader:
            assert list(reader.schema) == ["image", "mask"]
            assert len(reader) == 3
    with pytest.raises(bp.OptionError, match="no images in a folder 'depth'"):
        bp.open(folder, pairs="left,depth")
    with pytest.raises(bp.OptionError, match="pairs is"):
        bp.open(folder, pairs=["left"])


def test_a_image_without_its_mask_is_said(tmp_path):
    folder = paired(tmp_path / "set", lost=["masks/b"])
    with pytest.raises(bp.SchemaError, match=r"images/b\.png has no partner in masks; pairs=False"):
        bp.open(folder)


def test_pairs_are_never_taken_for_classes(tmp_path):
    # Nothing in common but the folders' names.
    for name in ("images", "masks"):
        folder = paired(tmp_path / "classes", name, name, names=[f"{name}{n}" for n in range(3)])
    with pytest.raises(bp.SchemaError, match=r"images and masks hold no files of one name .* pairs=False"):
        bp.open(folder)
    assert bp.open(folder, pairs=False).schema["label"].names == ("images", "masks")
    # More than two folders: which is which?
    folder = paired(tmp_path / "three")
    paired(folder, "depth", "depth")
    with pytest.raises(
        bp.SchemaError, match=r"depth, masks lie beside images: say what .*pairs=images,masks or"
    ):
        bp.open(folder)
    assert list(bp.open(folder, pairs="images,masks").schema) == ["image", "mask"]
    reader = bp.open(folder, pairs={"image": "images", "mask": "masks", "depth": "depth"})
    assert list(reader.schema) == ["image", "mask", "depth"]
    # Splits with images and masks in each.
    folder = tmp_path / "splits"
    for split in ("train", "val"):
        paired(folder, f"{split}/images", f"{split}/masks")
    with pytest.raises(bp.UnknownFormatError, match=r"train and val look like datasets of their own: open "):
        bp.open(folder)
    with pytest.raises(bp.SchemaError, match=r"train and val each have images and masks: open one of them"):
        bp.open(folder, format="imagefolder")
    assert len(bp.open(folder / "train")) == 3
    # Labels that nobody knows.
    folder = paired(tmp_path / "labels", "images", "images")
    (folder / "labels").mkdir()
    (folder / "labels" / "a.bin").write_bytes(b"?")
    with pytest.raises(bp.SchemaError, match="labels beside images holds neither masks"):
        bp.open(folder)


def test_pairs_in_folders_of_splits(tmp_path):
    paired(tmp_path / "set", "images", "masks", names=["train/a", "val/b"])
    with bp.open(tmp_path / "set", file_names=True) as reader:
        assert [sample["file_name"] for sample in reader] == ["images/train/a.png", "images/val/b.png"]
        assert [sample["mask"][0, 0] for sample in reader] == [0, 1]


def test_masks_with_something_behind_their_names(tmp_path):
    folder = paired(tmp_path / "set", names=["a", "b"])
    for name in ("a", "b"):
        (folder / "masks" / f"{name}.png").rename(folder / "masks" / f"{name}_mask.png")
    assert [sample["mask"][0, 0] for sample in bp.open(folder)] == [0, 1]


def test_a_mask_that_vanished(tmp_path):
    folder = paired(tmp_path / "set")
    with bp.open(folder) as reader:
        (folder / "masks" / "b.png").unlink()
        with pytest.raises(bp.DamagedError, match=r"masks/b\.png") as caught:
            reader[1]
        assert (caught.value.sample, caught.value.field) == (1, "mask")


OPENED = """
import sys
import batchplant as bp
opened, folders = [], []
def audit(event, args):
    if event == "open" and str(args[0]).endswith(".jpg"):
        opened.append(args[0])
    if event == "os.scandir":
        folders.append(args[0])
sys.addaudithook(audit)
with bp.open(sys.argv[1]) as reader:
    print(len(reader), len(opened), len(folders))
    bp.Loader(reader, 32, order="random", pipelines={"image": None}).close()
    print(len(opened))
"""


def test_opening_a_large_folder_lists_it_once_and_opens_few_files(tmp_path):
    fill(tmp_path, {"first.jpg": jpeg()})
    for number in range(1_000):
        path = tmp_path / "images" / f"class_{number % 10}" / f"{number}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        os.link(tmp_path / "first.jpg", path)
    answer = run(
        [sys.executable, "-c", OPENED, str(tmp_path / "images")], capture_output=True, check=True, text=True
    ).stdout
    samples, opened, folders, later = map(int, answer.split())
    assert samples == 1_000
    assert opened <= later <= 200
    # To find out what it is, and to list it.
    assert folders <= 3 * 11


def test_splits_with_class_folders(tmp_path):
    for split, label, count in (("train", "cat", 2), ("train", "dog", 1), ("val", "dog", 3)):
        (tmp_path / split / label).mkdir(parents=True)
        for number in range(count):
            (tmp_path / split / label / f"{number}.jpg").write_bytes(jpeg(8, 8))
    with bp.open(tmp_path, split="val") as reader:
        # A class has the same number in every split.
        assert reader.schema["label"].names == ("cat", "dog")
        assert [sample["label"] for sample in reader] == [1, 1, 1]
    assert len(bp.open(tmp_path, split="train")) == 3
    with pytest.raises(bp.OptionError, match=r"several splits.*train, val"):
        bp.open(tmp_path)
    with pytest.raises(bp.OptionError, match="there is no split 'test'; there are train, val"):
        bp.open(tmp_path, split="test")
    assert bp.verify(tmp_path, split="train").ok
