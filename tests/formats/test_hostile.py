"""Files that are none, notes that lie, names that lead elsewhere, servers that fail: our exceptions."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import shutil
import socket
import threading
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import batchplant as bp
import repository
from batchplant import _native, storage
from batchplant.formats.registry import all_formats
from proxy import Fault, answers, ignored_range, truncated
from variants import exhaustive

HALF = "\ud800"
DETECTION = ("coco", "voc", "yolo")
NOTED = ("csv", "jsonl", "msgpack", "tfrecord", "ffr", "rec")


@contextlib.contextmanager
def unblocking(path):
    """Whoever waits for the other end of the pipe gets it after a while, and the test fails."""
    waited = []

    def come():
        with contextlib.suppress(OSError):
            os.close(os.open(path, os.O_WRONLY | os.O_NONBLOCK))
            waited.append(path)

    timer = threading.Timer(60, come)
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        timer.join()
    assert not waited, "it waited for somebody to write into the pipe"


def use(path, **options):
    """Everything that looks at the bytes; only our exceptions may come out."""
    try:
        with bp.open(path, **options) as reader:
            reader.facts()
            for number in range(len(reader)):
                with contextlib.suppress(bp.BatchplantError):
                    reader[number]
            bp.verify(reader, decode=True)
    except bp.BatchplantError as error:
        str(error).encode()
        return error
    return None


def small(folder, name):
    """A dataset of one number, or as a model of one tensor; None where nobody writes the format."""
    one = all_formats()[name]
    if one.writer is None:
        return None
    path = folder / f"a{(one.suffixes or ('',))[0]}"
    kinds = {"image": bp.Image(), "sound": bp.Audio(), "clip": bp.Video(), "x": bp.Int()}
    golden = repository.GOLDEN
    values = {
        "image": np.zeros((2, 2, 3), np.uint8),
        "sound": (golden / "audio" / "ulaw.wav").read_bytes(),
        "clip": (golden / "video" / "vp9.webm").read_bytes(),
        "x": 1,
    }
    if one.tensors:
        from batchplant.formats.base.tensors import TENSORS, from_array

        kinds, values = dict(TENSORS), from_array("a", np.zeros(3, np.float32))
    elif "image" in one.fields:
        kinds = {"image": kinds["image"]}
    elif one.fields:
        kinds, values = {"tokens": one.fields["tokens"]}, {"tokens": np.ones(3, one.fields["tokens"].dtype)}
    elif name.endswith("folder"):
        own = {"imagefolder": "image", "audiofolder": "sound", "videofolder": "clip"}[name]
        kinds = {own: kinds[own], "x": kinds["x"]}
    else:
        kinds = {"x": kinds["x"]}
    options = {"eos": 0} if name == "tokens" else {}
    with bp.create(path, kinds, format=name, checksums=True, **options) as out:
        out.append({key: values[key] for key in kinds})
    return path


# --- files that are none ------------------------------------------------------------------------------


@pytest.mark.parametrize("name", sorted(all_formats()))
def test_a_pipe_in_place_of_any_file_is_an_error_at_once(name, tmp_path):
    (tmp_path / "whole").mkdir()
    try:
        path = small(tmp_path / "whole", name)
    except bp.MissingLibraryError as error:
        pytest.skip(str(error))
    if path is None:
        return
    files = [
        path.relative_to(tmp_path / "whole")
        for path in sorted((tmp_path / "whole").rglob("*"))
        if path.is_file()
    ]
    for number, file in enumerate(files):
        here = tmp_path / str(number)
        shutil.copytree(tmp_path / "whole", here)
        (here / file).unlink()
        os.mkfifo(here / file)
        with unblocking(here / file):
            use(here / path.name, format=name)
            use(here / path.name)


@pytest.mark.parametrize("kind", ["pipe", "socket", "device"])
def test_what_is_no_file_is_named(kind, tmp_path):
    path = tmp_path / "a.npy"
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "socket":
        with socket.socket(socket.AF_UNIX) as bound:
            bound.bind(str(path))
    else:
        path.symlink_to("/dev/null")
    with pytest.raises(bp.AccessError, match=f"a.npy: this is a (named )?{kind}, a file is needed"):
        bp.open(path)
    with pytest.raises(bp.AccessError):
        bp.open(path, format="npy")


def test_a_folder_where_a_file_is_needed(tmp_path):
    (tmp_path / "a.npy").mkdir()
    with pytest.raises(bp.NotFoundError, match="this is a folder"):
        bp.open(tmp_path / "a.npy", format="npy")
    with bp.create(tmp_path / "a.csv", {"x": bp.Int()}) as out:
        out.append({"x": 1})
    (tmp_path / "a.csv.schema.json").unlink()
    (tmp_path / "a.csv.schema.json").mkdir()
    with pytest.raises(bp.NotFoundError, match=r"schema\.json: this is a folder"):
        bp.open(tmp_path / "a.csv")


SHARDED = sorted(
    name for name, item in all_formats().items()
    if item.writer is not None and item.suffixes and not (item.tensors or item.fields or name in DETECTION)
)  # fmt: skip


@pytest.mark.parametrize("name", SHARDED)
@pytest.mark.parametrize("pattern", ["folder", *exhaustive("glob")])
def test_a_folder_in_place_of_a_shard(name, pattern, tmp_path):
    suffix = all_formats()[name].suffixes[0]
    with bp.create(tmp_path / f"s{suffix}", {"x": bp.Int()}, format=name, shard_samples=2) as out:
        for number in range(5):
            out.append({"x": number})
    first = out.files[0]
    shutil.rmtree(first) if os.path.isdir(first) else os.unlink(first)
    os.mkdir(first)
    leave = {"allow_pickle": True} if name in ("pickle", "joblib") else {}
    with pytest.raises(bp.BatchplantError) as caught:
        bp.open(tmp_path if pattern == "folder" else tmp_path / f"s-*{suffix}", **leave)
    assert first in str(caught.value)


def test_what_is_not_there_is_not_found(tmp_path):
    opened = []
    for name in sorted(all_formats()):
        for path in ("missing", "missing/"):
            with contextlib.suppress(bp.NotFoundError):
                bp.open(f"{tmp_path}/{path}", format=name).close()
                opened.append((name, path))
    assert opened == []


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_file_that_may_not_be_read(tmp_path):
    (tmp_path / "a.npy").write_bytes(b"x")
    (tmp_path / "a.npy").chmod(0)
    with pytest.raises(bp.AccessError, match="Permission denied"):
        bp.open(tmp_path / "a.npy")


def test_images_and_vocabularies_out_of_pipes(tmp_path):
    os.mkfifo(tmp_path / "a.jpg")
    with unblocking(tmp_path / "a.jpg"):
        with bp.create(tmp_path / "a.beton", {"image": bp.Image()}, on_error="skip") as out:
            out.append({"image": str(tmp_path / "a.jpg")})
        assert out.skipped
        with pytest.raises(bp.AccessError, match="named pipe"):
            bp.ops.Categories(str(tmp_path / "a.jpg"))


def test_no_descriptor_stays_open(tmp_path):
    os.mkfifo(tmp_path / "a")
    for _ in range(3):
        with pytest.raises(OSError, match="named pipe"):
            storage.open_regular(tmp_path / "a")
        with pytest.raises(IsADirectoryError):
            storage.open_regular(tmp_path)
    held = []
    for name in os.listdir("/proc/self/fd"):
        # Threads of other tests may close theirs.
        with contextlib.suppress(FileNotFoundError):
            held.append(os.readlink(f"/proc/self/fd/{name}"))
    assert not [item for item in held if item.startswith(str(tmp_path))]


# --- notes that lie -----------------------------------------------------------------------------------


LIES = (
    ('"shape": [2]', '"shape": [Infinity]'),
    ('"shape": [2]', '"shape": [1e999]'),
    ('"shape": [2]', '"shape": [NaN]'),
    ('"samples": 1', '"samples": Infinity'),
    ('"samples": 1', '"samples": 1e999'),
    ('"name": "v"', '"name": "\\ud800"'),
    ('"kind": "tensor"', '"kind": {}'),
    ('"schema": [', '"schema": 5, "x": ['),
)


@pytest.mark.parametrize("suffix", NOTED)
def test_notes_that_lie(suffix, tmp_path):
    path = tmp_path / f"a.{suffix}"
    with bp.create(path, {"v": bp.Tensor("int32", (2,))}) as out:
        out.append({"v": np.arange(2, dtype=np.int32)})
    note = tmp_path / f"a.{suffix}.schema.json"
    text = note.read_text()
    for old, new in LIES:
        assert old in text
        note.write_text(text.replace(old, new))
        assert isinstance(use(path), bp.DamagedError), new


@pytest.mark.parametrize("suffix", ["csv", "jsonl", "msgpack", "tfrecord"])
def test_a_note_whose_optional_is_no_truth_value(suffix, tmp_path):
    path = tmp_path / f"a.{suffix}"
    inner = bp.List(bp.Struct({"y": bp.Int()}, optional=True))
    with bp.create(path, {"x": bp.Int(optional=True), "g": inner}) as out:
        out.append({"x": 1, "g": [{"y": 1}]})
    note = tmp_path / f"a.{suffix}.schema.json"
    note.write_text(note.read_text().replace('"optional": true', '"optional": {"a": 1}'))
    assert isinstance(use(path), bp.DamagedError)
    with pytest.raises(bp.DamagedError):
        next(iter(bp.Loader(path, 1, workers=1)))


FIELDS = (
    bp.Int(names=("a", "b")), bp.Float(), bp.Bool(), bp.Bytes(), bp.Text(), bp.Json(),
    bp.Tensor("int8", (None, 2)), bp.Decimal(10, 2), bp.Uuid(), bp.List(bp.Struct({"y": bp.Int()})),
    bp.Time("us", tz="UTC"), bp.Duration("s"), bp.Image("png"), bp.Audio("wav"), bp.Video("mp4"),
    bp.Boxes(labels=("l",)), bp.Labels(("a",)), bp.Keypoints(2, names=("left", "right")), bp.Polygons(),
)  # fmt: skip
JUNK = (
    None, True, 0, -1, 2**70, 1.5, "", "x", "complex64", "O", "a" * 500, [], [None], [[1, 2]], ["a", "a"],
    {}, {"a": 1}, {"kind": "int"}, [{"name": "x", "kind": "int"}], [2**40],
)  # fmt: skip


@pytest.mark.parametrize("field", FIELDS, ids=lambda field: field.kind)
def test_any_description_is_a_field_or_refused(field):
    described = {"name": "x", **field.to_json(), "optional": True}
    keys = {part.name for other in FIELDS for part in dataclasses.fields(other)} | {"kind", "name"}
    for key in keys:
        for value in (*JUNK, *(other.kind for other in FIELDS if key == "kind")):
            items = [{**described, key: value}]
            # Inside of a list, only what the kind itself reads.
            items += [{"name": "g", "kind": "list", "of": items[0]}] if key in described else []
            for item in items:
                try:
                    schema = bp.Schema.from_json([item])
                except bp.BatchplantError:
                    continue
                assert hash(schema) == hash(bp.Schema.from_json(json.loads(json.dumps(schema.to_json()))))
                assert str(schema)


def test_json_is_read_in_one_place():
    assert storage.parse(b'\xef\xbb\xbf{"a": [1, 2.5, "\\ud83c\\udf31"]}') == {"a": [1, 2.5, "🌱"]}
    assert np.isnan(storage.parse("[NaN]", finite=False)[0])
    for text in (
        "[NaN]",
        "[-Infinity]",
        "[1e999]",
        '["\\ud800"]',
        '{"\\udfff": 1}',
        "[" * 10**5,
        "{",
        b"\xff",
    ):
        with pytest.raises(ValueError, match=r"number|surrogate|nested|property|decode"):
            storage.parse(text)
    with pytest.raises(ValueError, match="no JSON object"):
        storage.parse_object("[]")


def test_a_note_of_many_bytes_is_not_read(tmp_path, monkeypatch):
    with bp.create(tmp_path / "a.csv", {"x": bp.Int()}) as out:
        out.append({"x": 1})
    with open(tmp_path / "a.csv.schema.json", "r+b") as file:
        file.truncate(1 << 40)
    with pytest.raises(bp.DamagedError, match=r"schema\.json.*the limit"):
        bp.open(tmp_path / "a.csv")


@pytest.mark.parametrize(
    "change",
    [
        lambda top: top["metadata"].update({"extra.zattrs": 5}),
        lambda top: top.update(metadata=[1]),
        lambda top: top.update(metadata={"x/.zarray": []}),
        lambda top: top["metadata"].update({".zattrs": "x"}),
        lambda top: top["metadata"]["x/.zarray"].update(chunks=[float("inf")]),
        lambda top: top["metadata"]["x/.zarray"].update(shape=[1e999]),
    ],
)
def test_odd_consolidated_metadata(change, tmp_path):
    path = tmp_path / "a.zarr"
    with bp.create(path, {"x": bp.Int()}, zarr_format=2) as out:
        out.append({"x": 1})
    top = json.loads((path / ".zmetadata").read_text())
    change(top)
    (path / ".zmetadata").write_text(json.dumps(top))
    assert isinstance(use(path), bp.DamagedError)


RESIZED = {"image": [bp.ops.Resize(8)]}


@pytest.mark.parametrize(
    ("which", "steps", "lie"),
    [
        ([0], None, (32774, 5, 3)), ([2], RESIZED, (32774, 5, 3)),
        ([0, 1, 2, 3], RESIZED, (-6, 5, 3)), ([2], None, (-6, 5, 3)),
        ([2], None, (6, 5, 4)), ([0], RESIZED, (6, 5, 4)),
        ([0], RESIZED, (2**30, 2**30, 3)), ([0, 1, 2, 3], None, (2**30, 2**30, 3)),
    ],
)  # fmt: skip
def test_raw_images_whose_shape_lies(which, steps, lie, tmp_path):
    path = tmp_path / "a.zarr"
    with bp.create(path, {"image": bp.Image()}, compression="none") as out:
        for number in range(4):
            out.append({"image": np.full((6, 5, 3), number, np.uint8)})
    [shapes] = (path / "image" / "shape" / "c").rglob("0/0")
    values = np.fromfile(shapes, np.int32).reshape(-1, 3)
    assert values[0].tolist() == [6, 5, 3]
    values[which] = lie
    values.tofile(shapes)
    with bp.open(path) as reader:
        with pytest.raises(bp.DataError):
            reader[which[0]]
        loader = bp.Loader(reader, 2, pipelines=steps, on_error="skip", workers=1)
        left = [int(image[0, 0, 0]) for batch in loader for image in batch["image"]]
    assert left == [number for number in range(4) if number not in which]


def test_not_a_number_in_the_attributes_of_others(tmp_path):
    path = tmp_path / "a.zarr"
    with bp.create(path, {"x": bp.Float()}, zarr_format=2) as out:
        out.append({"x": 1.0})
    (path / ".zmetadata").unlink()
    (path / ".zattrs").write_text('{"valid_max": NaN, "valid_min": -Infinity}')
    with bp.open(path) as reader:
        assert reader[0]["x"] == 1.0


def test_a_list_line_without_a_tab(tmp_path):
    (tmp_path / "a.lst").write_text("0\t1.0\ta.jpg\nno tab here\n")
    with pytest.raises(bp.DamagedError, match="line 2"):
        bp.open(tmp_path / "a.lst")


SCANNED = ["csv", "jsonl", "msgpack", "tfrecord", "tfrecord.gz", "rec", "tar"]
PACKED = exhaustive("jsonl.gz", "msgpack.gz", "tar.gz")


@pytest.mark.parametrize("suffix", [*SCANNED, *PACKED])
def test_a_side_car_that_lies_is_made_anew(suffix, tmp_path):
    """Its checksums fit; but what a scan would say is missing, or of another kind."""
    path = tmp_path / f"a.{suffix}"
    with bp.create(path, {"n": bp.Int(), "t": bp.Text()}) as out:
        for number in range(3):
            out.append({"n": number, "t": "x"})
    bp.open(path, index="write").close()
    place = tmp_path / f"a.{suffix}.bpindex"
    data = place.read_bytes()
    size = int.from_bytes(data[8:12], "little")
    header, arrays = json.loads(data[16 : 16 + size]), data[-(-(16 + size) // 64) * 64 :]

    def lie(part, name, value):
        answer = json.loads(json.dumps(header))
        if value is None:
            del answer[part][name]
        else:
            answer[part][name] = value
        text = json.dumps(answer).encode()
        head = data[:8] + len(text).to_bytes(4, "little") + _native.crc32c(text).to_bytes(4, "little") + text
        place.write_bytes(head + bytes(-len(head) % 64) + arrays)

    for part in ("facts", "arrays"):
        for name in header[part]:
            for value in (None,) if part == "arrays" else (None, {}, [{}], -1, "x", 10**30):
                lie(part, name, value)
                # What it cannot know is a lie is one of our errors.
                with contextlib.suppress(bp.BatchplantError), bp.open(path) as reader:
                    assert [len(value) for value in reader.read(range(len(reader))).values()]
                    list(reader.verify())


# --- names that lead elsewhere ------------------------------------------------------------------------

ODD_NAMES = ["", ".", "..", "../a", "a/../../b", "/etc/passwd", "a\0b", HALF, f"{HALF}.jpg", 5, None]
# Names that would be taken for URLs. (No driver may be asked for, and no server.)
URL_NAMES = ["http://127.0.0.1:9/x", "simplecache::http://127.0.0.1:9/x", "memory://x", "simplecache::x"]


def test_names_that_are_not_below_a_folder():
    for name in ODD_NAMES + URL_NAMES:
        assert not storage.is_below(name), name
        assert not storage.is_plain(name), name


def test_names_that_are():
    for name in ("a", "größe.jpg", "a/b", "..a", "a..b", "a b"):
        assert storage.is_below(name)
    assert storage.is_plain("a")
    assert not storage.is_plain("a/b")


@pytest.fixture(scope="module")
def folders_with_an_index(tmp_path_factory):
    """A folder of MDS and one of LitData; the text of their indexes."""
    folder = tmp_path_factory.mktemp("indexed")
    for suffix in ("mds", "litdata"):
        with bp.create(folder / f"t.{suffix}", {"x": bp.Int()}) as out:
            out.append({"x": 1})
    return {index.parent: index.read_text() for index in folder.rglob("index.json")}


@pytest.mark.parametrize("name", [name for name in ODD_NAMES if name not in (".", "")] + URL_NAMES)
def test_every_index_refuses_them(name, tmp_path, folders_with_an_index):
    images = tmp_path / "images"
    images.mkdir()
    Image.new("RGB", (4, 4)).save(images / "a.jpg")
    (images / "metadata.jsonl").write_text(json.dumps({"file_name": name, "x": 1}) + "\n")
    assert isinstance(use(images), bp.DamagedError)
    saved = tmp_path / "saved"
    saved.mkdir()
    (saved / "state.json").write_text(json.dumps({"_data_files": [{"filename": name}]}))
    assert isinstance(use(saved, format="arrow"), bp.BatchplantError)
    for index in ("m.safetensors.index.json", "pytorch_model.bin.index.json"):
        (tmp_path / index).write_text(json.dumps({"weight_map": {"a": name}}))
        assert isinstance(use(tmp_path / index), bp.DamagedError)
    for folder, text in folders_with_an_index.items():
        index = json.loads(text)
        if folder.suffix == ".mds":
            index["shards"][0]["raw_data"]["basename"] = name
        else:
            index["chunks"][0]["filename"] = name
        (folder / "index.json").write_text(json.dumps(index))
        assert isinstance(use(folder), bp.DamagedError)
    if isinstance(name, str) and "\0" not in name and HALF not in name:
        (images / "annotations.json").write_text(coco_of(name))
        assert isinstance(use(images / "annotations.json", format="coco"), bp.DamagedError)
        (tmp_path / "t.lst").write_text(f"0\t1.0\t{name}\n")
        assert isinstance(use(tmp_path / "t.lst"), bp.DamagedError)


def coco_of(name):
    image = {"id": 1, "file_name": name, "width": 4, "height": 4}
    return json.dumps({"images": [image], "annotations": [], "categories": [{"id": 1, "name": "a"}]})


def test_classes_may_be_called_like_a_chain_of_file_systems(tmp_path):
    """As those of a programming language are: only names out of an index are no URLs."""
    folder = tmp_path / "images"
    with bp.create(folder, {"image": bp.Image(), "label": bp.Int(names=("std::map", "std::set"))}) as out:
        out.append({"image": np.zeros((4, 4, 3), np.uint8), "label": 1})
    assert bp.open(folder).schema["label"].names == ("std::map", "std::set")


def test_names_of_files_that_are_no_text(tmp_path):
    folder = tmp_path / "images"
    (folder / os.fsdecode(b"b\xff")).mkdir(parents=True)
    Image.new("RGB", (4, 4)).save(os.path.join(folder, os.fsdecode(b"b\xff"), "a.png"))
    assert isinstance(use(folder), bp.BatchplantError)
    flat = tmp_path / "flat"
    flat.mkdir()
    Image.new("RGB", (4, 4)).save(os.path.join(flat, os.fsdecode(b"\xff.png")))
    with bp.open(flat) as reader:
        assert reader[0]["image"].shape == (4, 4, 3)
    assert isinstance(use(flat, file_names=True), bp.BatchplantError)
    bad = os.path.join(tmp_path, os.fsdecode(b"\xff.npy"))
    Path(bad).write_bytes(b"x")
    with pytest.raises(bp.BatchplantError) as caught:
        bp.open(bad)
    assert str(caught.value).encode()


# --- servers that fail --------------------------------------------------------------------------------


class Server:
    """Gives the files of a folder; ``fails``: what it does in place of that."""

    def __init__(self, web):
        self.url, self._proxy = web.endpoint, web.proxy

    @property
    def fails(self):
        raise AttributeError

    @fails.setter
    def fails(self, how):
        self._proxy.reset()
        if how is not None:
            method = "GET" if how in ("cut", "whole") else ""
            self._proxy.fail(answers(how) if isinstance(how, int) else FAULTS[how], method=method, times=None)


FAULTS = {
    "cut": truncated(10),
    "drop": Fault(then="close", after=-1),
    "whole": ignored_range(),
    "no size": Fault(headers={"Content-Length": None, "Connection": "close"}, ignore_range=True),
}
FAILURES = [500, 503, 404, 403, "cut", "drop", "whole"]


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    """One dataset in several formats: more than opening brings along, packed or not."""
    folder = tmp_path_factory.mktemp("served")
    text = np.random.default_rng(0).bytes(50 * 2000).hex()
    for suffix in ("beton", "tfrecord", "tfrecord.gz", "npz", "csv"):
        with bp.create(folder / f"a.{suffix}", {"x": bp.Int(), "t": bp.Text()}) as out:
            for number in range(50):
                out.append({"x": number, "t": text[number * 4000 : number * 4000 + 4000]})
    return folder


@pytest.fixture
def server(web, served):
    pytest.importorskip("obstore")
    shutil.copytree(served, web.root, dirs_exist_ok=True)
    return Server(web)


@pytest.mark.parametrize("fails", FAILURES)
def test_a_server_that_fails_later(fails, server):
    url = f"{server.url}/a.beton"
    with bp.open(url) as reader:
        assert reader[30]["x"] == 30
        server.fails = fails
        with pytest.raises(bp.AccessError) as caught:
            reader[31]
        assert (caught.value.path, caught.value.sample) == (url, 31)
        assert caught.value.offset is not None
        with pytest.raises(bp.AccessError):
            bp.verify(reader)
        # It says nothing about the samples, so that they are not passed over.
        with pytest.raises(bp.AccessError):
            list(bp.Loader(reader, 25, on_error="skip"))


@pytest.mark.parametrize("fails", [500, 403, "drop", "no size"])
def test_a_server_that_fails_at_once(fails, server):
    server.fails = fails
    with pytest.raises(bp.AccessError) as caught:
        bp.open(f"{server.url}/a.beton")
    assert caught.value.path == f"{server.url}/a.beton"
    if fails == "no size":
        assert "how large" in str(caught.value)


def test_a_file_that_a_server_does_not_have(server):
    with pytest.raises(bp.NotFoundError):
        bp.open(f"{server.url}/b.beton")


@pytest.mark.parametrize("suffix", ["tfrecord", "npz", "csv"])
def test_other_formats_behind_a_server_that_fails(suffix, server):
    with bp.open(f"{server.url}/a.{suffix}") as reader:
        assert reader[3]["x"] == 3
        server.fails = 500
        with contextlib.suppress(bp.AccessError):
            reader[40]
        with contextlib.suppress(bp.AccessError):
            bp.verify(reader)


def test_what_is_packed_behind_a_server_that_fails(server):
    """The library that unpacks it sees only that a read failed."""
    with bp.open(f"{server.url}/a.tfrecord.gz") as reader:
        assert reader[3]["x"] == 3
        server.fails = 500
        with pytest.raises(bp.AccessError, match="answered 500"):
            reader[40]
        with pytest.raises(bp.AccessError):
            list(bp.Loader(reader, 25, on_error="skip"))
        server.fails = None
        assert reader[40]["x"] == 40


def test_a_side_car_that_a_server_does_not_speak_of(server, tmp_path):
    """Stores without a right to list say 403 of what is not there; a server that fails says nothing."""
    url = f"{server.url}/a.tfrecord.schema.json"
    assert storage.read_beside(f"{server.url}/nothing") is None
    assert storage.read_beside(url) is not None
    server.fails = 403
    assert storage.read_beside(url) is None
    server.fails = 500
    with pytest.raises(bp.AccessError):
        storage.read_beside(url)


def test_ranges_are_asked_for_by_name(monkeypatch):
    """Drivers of fsspec have other arguments in between."""
    fsspec = pytest.importorskip("fsspec")
    memory = fsspec.filesystem("memory")
    data = bytes(range(250)) * 1000
    memory.pipe("/named/a.npy", data)
    source = storage.open_source("memory://named/a.npy")
    asked = []
    original = type(memory).cat_file
    monkeypatch.setattr(
        type(memory),
        "cat_file",
        lambda self, path, **given: asked.append(given) or original(self, path, **given),
    )
    assert source.view(200_002, 3).tobytes() == data[200_002:200_005]
    assert [row["start"] for row in asked] == [200_002]
    assert asked[0].keys() == {"start", "end"}
