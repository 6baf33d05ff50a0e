"""What folders of images, sounds and videos have in common, and how they are told apart."""

import json
import os

import pytest

import batchplant as bp
from batchplant.formats.base import folders
from batchplant.testing.cases import cells, film, jpeg, sound
from trials import case

# format → (field, suffix, three files)
FOLDERS = {
    "imagefolder": ("image", ".jpg", [jpeg(), jpeg(9, 9), jpeg(5, 6)]),
    "audiofolder": ("audio", ".wav", [sound(5), sound(9), sound(1)]),
    "videofolder": ("video", ".avi", [film(1), film(2), film(3)]),
}


@pytest.fixture(params=list(FOLDERS))
def one(request):
    return request.param, *FOLDERS[request.param]


def fill(folder, files):
    for name, data in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data.encode() if isinstance(data, str) else data)
    return folder


# --- the same rules for all ---------------------------------------------------------------------------


def test_class_folders(one, tmp_path):
    format, field, suffix, files = one
    names = [f"cat/sub/y{suffix.upper()}", f"cat/z{suffix}", f"dog/a{suffix}"]
    fill(tmp_path, {**dict(zip(names, files, strict=True)), "dog/notes.txt": "x", "cat/.h" + suffix: "x"})
    with bp.open(tmp_path, file_names=True) as reader:
        assert (reader.format, list(reader.schema)) == (format, [field, "label", "file_name"])
        assert reader.schema["label"] == bp.Int(names=("cat", "dog"))
        assert [(sample["label"], sample["file_name"]) for sample in reader] == list(
            zip([0, 0, 1], names, strict=True)
        )
        assert cells(reader)[field] == files
        assert reader.facts() == {"skipped files": 2}


def test_flat_folder(one, tmp_path):
    format, field, suffix, files = one
    fill(tmp_path, {f"{n}{suffix}": data for n, data in enumerate(files)})
    with bp.open(tmp_path) as reader:
        assert (reader.format, list(reader.schema)) == (format, [field])
        assert cells(reader)[field] == files


@pytest.mark.parametrize("metadata", ["metadata.csv", "metadata.jsonl"])
def test_metadata(one, metadata, tmp_path):
    format, field, suffix, files = one
    names = [f"sub/c{suffix}", f"a{suffix}", f"b{suffix}"]
    rows = [{"file_name": name, "n": n, "word": f"w{n}"} for n, name in enumerate(names)]
    if metadata.endswith("csv"):
        text = "file_name,n,word\n" + "".join("{file_name},{n},{word}\n".format(**row) for row in rows)
    else:
        text = "".join(json.dumps(row) + "\n" for row in rows)
    fill(tmp_path, {**dict(zip(names, files, strict=True)), metadata: text})
    with bp.open(tmp_path) as reader:
        assert (reader.format, list(reader.schema)) == (format, [field, "n", "word"])
        assert [(sample["n"], sample["word"]) for sample in reader] == [(0, "w0"), (1, "w1"), (2, "w2")]
        assert cells(reader)[field] == files


def test_paths_that_leave_the_folder_are_refused(one, tmp_path):
    _, _, suffix, files = one
    fill(tmp_path, {f"a{suffix}": files[0]})
    message = r"line 2: file_name is .*, not a path below the folder"
    for name in ("../x", "/etc/passwd", "sub/../../x", "", ".", "a\0", None, 7):
        rows = [{"file_name": f"a{suffix}"}, {"file_name": name}]
        (tmp_path / "metadata.jsonl").write_text("\n".join(map(json.dumps, rows)))
        with case(name), pytest.raises(bp.DamagedError, match=message):
            bp.open(tmp_path)


def test_a_column_with_the_name_of_the_media(one, tmp_path):
    _, field, suffix, files = one
    fill(tmp_path, {f"a{suffix}": files[0], "metadata.csv": f"file_name,{field}\na{suffix},5"})
    with pytest.raises(bp.SchemaError, match=f"has a column '{field}', .* rename it"):
        bp.open(tmp_path)


def test_files_that_vanish_shrink_or_are_none(one, tmp_path):
    _, field, suffix, files = one
    fill(tmp_path, {f"{n}{suffix}": data for n, data in enumerate(files)})
    rows = [*(f"{n}{suffix}" for n in range(3)), f"pipe{suffix}", "sub"]
    (tmp_path / "sub").mkdir()
    os.mkfifo(tmp_path / f"pipe{suffix}")
    fill(tmp_path, {"metadata.csv": "\n".join(["file_name", *rows])})
    with bp.open(tmp_path) as reader:
        (tmp_path / f"1{suffix}").unlink()
        (tmp_path / f"2{suffix}").write_bytes(b"")
        for index, reason in ((1, "No such file"), (3, "it is no file"), (4, "it is no file")):
            for use in (lambda: reader[index], lambda: reader.spans(field, [0, index])):  # noqa: B023
                with pytest.raises(bp.DamagedError, match=reason) as caught:
                    use()
                assert (caught.value.sample, caught.value.field) == (index, field)
        # What is there now is what there is.
        assert cells(reader.subset([0, 2, 0]))[field] == [files[0], b"", files[0]]
        assert [problem.sample for problem in bp.verify(reader).problems] == [1, 3, 4]


def test_a_file_that_changes_while_it_is_read(one, tmp_path, monkeypatch):
    _, field, suffix, files = one
    fill(tmp_path, {f"a{suffix}": files[0], f"b{suffix}": files[1]})
    with bp.open(tmp_path) as reader:
        true = reader._below.sizes
        for more in (1, -1):
            monkeypatch.setattr(reader._below, "sizes", lambda names, more=more: true(names) + more)
            with pytest.raises(bp.DamagedError, match="its size changed while it was read") as caught:
                reader.read([1, 0])
            assert (caught.value.sample, caught.value.field) == (1, field)


def test_links_that_lead_round_in_circles(one, tmp_path):
    _, field, suffix, files = one
    fill(tmp_path, {f"cat/a{suffix}": files[0]})
    (tmp_path / "cat" / "up").symlink_to(tmp_path, target_is_directory=True)
    (tmp_path / "cat" / "itself").symlink_to("itself", target_is_directory=True)
    with bp.open(tmp_path) as reader:
        assert cells(reader)[field] == [files[0]]


def test_links_that_double_the_folder_again_and_again(one, tmp_path):
    _, _, suffix, files = one
    fill(tmp_path, {f"30/x/a{suffix}": files[0]})
    for level in range(30):
        (tmp_path / f"{level}").mkdir()
        for twin in "ab":
            (tmp_path / f"{level}" / twin).symlink_to(tmp_path / f"{level + 1}", target_is_directory=True)
    with pytest.raises(bp.DamagedError, match="more than 100 links lead there"):
        bp.open(tmp_path, format=one[0])


def test_a_folder_deeper_than_the_stack(tmp_path):
    places = [str(tmp_path)]
    for _ in range(1050):
        places.append(f"{places[-1]}/d")
        os.mkdir(places[-1])
    fill(tmp_path, {f"{places[-1]}/a.jpg": jpeg()})
    try:
        with bp.open(tmp_path, format="imagefolder") as reader:
            assert cells(reader)["image"] == [jpeg()]
    finally:
        # pytest would not get down there to remove it.
        os.unlink(f"{places[-1]}/a.jpg")
        for place in places[:0:-1]:
            os.rmdir(place)


NOTES = [
    "", "{}", "[]", "7", '{"NAME": "x", "schema": 5}', "[" * 100_000, "\0",
    '{"NAME": "n", "schema": [{"name": "n", "kind": "int"}]}',
]  # fmt: skip


def test_a_damaged_note(one, tmp_path):
    _, field, suffix, files = one
    fill(tmp_path, {f"a{suffix}": files[0]})
    for note in NOTES:
        (tmp_path / ".batchplant.json").write_text(note.replace("NAME", field))
        with case(note[:60]), pytest.raises(bp.DamagedError, match=r"is damaged|names other fields"):
            bp.open(tmp_path)


@pytest.mark.parametrize("target", [".tar", ".parquet", ".beton", ".tfrecord", ".npz"])
def test_there_and_back_byte_for_byte(one, target, tmp_path):
    if target == ".parquet":
        pytest.importorskip("pyarrow")
    format, field, suffix, files = one
    names = [f"a/0{suffix}", f"b/1{suffix}", f"b/2{suffix}"]
    fill(tmp_path / "in", dict(zip(names, files, strict=True)))
    bp.convert(tmp_path / "in", tmp_path / f"x{target}")
    bp.convert(tmp_path / f"x{target}", tmp_path / "out", fields=[field, "label"])
    with bp.open(tmp_path / "in") as before, bp.open(tmp_path / "out") as after:
        assert after.format == format
        assert after.schema == before.schema
        assert cells(after) == cells(before)
    result = [f"a/00000000{suffix}", f"b/00000001{suffix}", f"b/00000002{suffix}"]
    assert [(tmp_path / "out" / name).read_bytes() for name in result] == files


@pytest.mark.parametrize("label", [2, -1])
def test_samples_that_make_no_file(one, label, tmp_path):
    _, field, _, files = one
    schema = {field: {"image": bp.Image, "audio": bp.Audio, "video": bp.Video}[field]()}
    schema["label"] = bp.Int(names=("a", "b"))
    with bp.create(tmp_path / "out", schema, on_error="skip") as out:
        for data, number in ((files[0], 0), (files[0], label), (b"text", 1), (files[1], 1)):
            out.append({field: data, "label": number})
    reasons = [problem.message for problem in out.skipped]
    assert reasons[0] == f"there is no class {label}"
    assert "these bytes are no" in reasons[1]
    with bp.open(tmp_path / "out") as reader:
        assert cells(reader)[field] == files[:2]


@pytest.mark.parametrize("format", list(FOLDERS))
def test_schemas_that_make_no_folder(format, tmp_path):
    kind = {"image": bp.Image, "audio": bp.Audio, "video": bp.Video}[FOLDERS[format][0]]
    for schema, reason in (
        ({"n": bp.Int()}, "exactly one .* field, not 0"),
        ({"a": kind(), "b": kind()}, "exactly one .* field, not 2"),
        ({"a": kind(), "file_name": bp.Text()}, "file_name is the folder's own"),
        ({"a": kind(optional=True)}, "cannot leave one out"),
        ({"a": kind(), "x": bp.Int(names=("a/b",))}, "cannot be a folder's name"),
        ({"a": kind(), "x": bp.Int(names=("a", "a"))}, "two classes have one name"),
    ):
        with pytest.raises(bp.SchemaError, match=reason):
            bp.create(tmp_path / "out", schema, format=format)
    assert os.listdir(tmp_path) == []


# --- telling them apart -------------------------------------------------------------------------------

EVERY = {f"{format}{suffix}": files[0] for format, (_, suffix, files) in FOLDERS.items()}


@pytest.mark.parametrize("below", ["", "class/"])
def test_several_kinds_have_to_be_told_apart(below, one, tmp_path):
    format, field, _, files = one
    fill(tmp_path, {below + name: data for name, data in EVERY.items()})
    expected = (
        r"holds images and sounds and videos; say which with format \(--format\): "
        r"imagefolder or audiofolder or videofolder; or name the files in a metadata.csv"
    )
    with pytest.raises(bp.UnknownFormatError, match=expected):
        bp.open(tmp_path)
    with bp.open(tmp_path, format=format) as reader:
        assert cells(reader)[field] == files[:1]
        assert reader.facts() == {"skipped files": 2}


@pytest.mark.parametrize("metadata", ["metadata.csv", "metadata.jsonl"])
def test_metadata_tells_them_apart(metadata, one, tmp_path):
    format, field, suffix, files = one
    rows = {"metadata.csv": f"file_name\n{format}{suffix}\n", "metadata.jsonl": None}
    rows["metadata.jsonl"] = json.dumps({"file_name": f"{format}{suffix}"})
    fill(tmp_path, {**EVERY, metadata: rows[metadata]})
    with bp.open(tmp_path) as reader:
        assert reader.format == format
        assert cells(reader)[field] == files[:1]


def test_metadata_that_names_several_kinds(tmp_path):
    fill(tmp_path, {**EVERY, "metadata.csv": "\n".join(["file_name", *EVERY])})
    with pytest.raises(bp.UnknownFormatError, match="images and sounds and videos"):
        bp.open(tmp_path)


def test_our_note_tells_them_apart(one, tmp_path):
    format, field, _, files = one
    kind = {"image": bp.Image, "audio": bp.Audio, "video": bp.Video}[field]
    with bp.create(tmp_path / "out", {"x": kind()}) as out:
        out.append({"x": files[0]})
    fill(tmp_path / "out", EVERY)
    with bp.open(tmp_path / "out") as reader:
        assert reader.format == format
        assert len(reader) == 2
    for other in FOLDERS:
        if other != format:
            with pytest.raises(bp.SchemaError, match=f"open it with format='{format}'"):
                bp.open(tmp_path / "out", format=other)


def test_an_empty_dataset_is_still_of_its_kind(one, tmp_path):
    format, field, _, _ = one
    kind = {"image": bp.Image, "audio": bp.Audio, "video": bp.Video}[field]
    bp.create(tmp_path / "out", {field: kind()}).close()
    with bp.open(tmp_path / "out") as reader:
        assert (reader.format, len(reader), dict(reader.schema)) == (format, 0, {field: kind()})


def test_no_suffix_belongs_to_two_kinds():
    every = [suffix for item in folders.MEDIA for suffix in item.suffixes]
    assert len(set(every)) == len(every)
    for item in folders.MEDIA:
        for encoding in set(item.suffixes.values()):
            assert item.suffixes[item.suffix(encoding)] == encoding
