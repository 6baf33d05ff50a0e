"""WebDataset: the suite, archives of other programs, and those of nobody honest."""

import contextlib
import gzip
import hashlib
import io
import itertools
import json
import os
import pickle
import shutil
import struct
import tarfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import batchplant as bp
import processes
from batchplant import _native
from batchplant.formats.webdataset.members import Note
from batchplant.storage import open_source
from batchplant.storage.index import sidecar
from batchplant.testing import FormatSuite
from batchplant.testing.cases import cells, equal, jpeg, memory_bounded, pixels, png
from repository import GOLDEN

MINE = GOLDEN / "webdataset"
BLOCK = 512


class TestSuite(FormatSuite):
    format = "webdataset"
    suffix = ".tar"
    golden = GOLDEN


class TestCompressed(FormatSuite):
    wraps = True
    format = "webdataset"
    suffix = ".tar.gz"
    in_place = False


def archive(path, members, format=tarfile.PAX_FORMAT, **options):
    """Written by Python's tarfile: (name or TarInfo, bytes) of each member."""
    with tarfile.open(path, "w", format=format, **options) as out:
        for name, data in members:
            info = name if isinstance(name, tarfile.TarInfo) else tarfile.TarInfo(name)
            info.size = len(data)
            out.addfile(info, io.BytesIO(data))
    return str(path)


def header(name=b"a.txt", size=b"00000000001\0", kind=b"0", magic=b"ustar\00000", prefix=b"", signed=False):
    """A header made by hand."""
    block = bytearray(BLOCK)
    block[: len(name)] = name
    block[124 : 124 + len(size)] = size
    block[148:156] = b" " * 8
    block[156:157] = kind
    block[257 : 257 + len(magic)] = magic
    block[345 : 345 + len(prefix)] = prefix
    total = sum(np.frombuffer(bytes(block), np.int8 if signed else np.uint8).tolist())
    block[148:156] = b"%06o\0 " % total
    return bytes(block)


def padded(data):
    return data + bytes(-len(data) % BLOCK)


def opened(tmp_path, data, **options):
    path = tmp_path / "made.tar"
    path.write_bytes(data)
    return bp.open(path, format="webdataset", **options)


def digest(data):
    return hashlib.sha256(bytes(data)).hexdigest()


# --- archives of other programs -----------------------------------------------------------------------


def test_shards_that_webdataset_wrote():
    expected = json.loads((MINE / "expected.json").read_text())
    with bp.open(f"{MINE}/train-{{000000..000002}}.tar") as reader:
        assert dict(reader.schema) == {
            "__key__": bp.Text(),
            "cls": bp.Int(),
            "jpg": bp.Image("jpeg"),
            "json": bp.Json(),
            "npy": bp.Tensor("float32", (2, 3)),
            "seg.png": bp.Image("png", "L"),
            "txt": bp.Text(optional=True),
        }
        assert len(reader) == len(expected)
        answer = cells(reader)
        for row, (sample, want) in enumerate(zip(reader, expected, strict=True)):
            assert sample["__key__"] == want["key"]
            assert (sample["cls"], sample["json"], sample["txt"]) == (want["cls"], want["json"], want["txt"])
            assert np.array_equal(sample["npy"], np.array(want["npy"], np.float32))
            assert digest(answer["jpg"][row]) == want["jpg_sha256"]
            assert digest(answer["seg.png"][row]) == want["png_sha256"]
    for number in range(3):
        result = bp.verify(MINE / f"train-{number:06d}.tar", decode=True)
        assert result.ok, result.problems


ODD = ("jpg", "cls", "b.c.jpg", "b.c.cls", "txt")


@pytest.mark.parametrize("name", ["odd-pax.tar", "odd-gnu.tar"])
def test_odd_archives(name):
    fields = {"__key__": "text", **dict.fromkeys(ODD, bp.Bytes(optional=True))}
    with bp.open(MINE / name, schema=fields) as reader:
        assert [{k: v for k, v in sample.items() if v is not None} for sample in reader] == [
            {"__key__": "dir/" + "n" * 180, "jpg": b"JJ", "cls": b"3"},
            {"__key__": "a", "b.c.jpg": b"JJJ", "b.c.cls": b"4"},
            {"__key__": "unié", "txt": "ünï".encode()},
            {"__key__": "empty", "txt": b""},
        ]
        assert reader.facts()["skipped members"] == 3


@pytest.mark.parametrize("format", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_names_as_every_kind_of_tar_has_them(format, tmp_path):
    long = "folder/" * 20 + "x" * 30
    names = ["a", "b" * 90, long, "größe", "./dotted.folder/c", "../up", "/absolute", "sp ace"]
    path = archive(tmp_path / "a.tar", [(f"{name}.txt", name.encode()) for name in names], format)
    with bp.open(path) as reader:
        assert [sample["__key__"] for sample in reader] == names
        assert [sample["txt"] for sample in reader] == names
    # Names are data: nothing was made in the folder.
    assert os.listdir(tmp_path) == ["a.tar"]


def test_what_is_no_regular_file_is_passed_over(tmp_path):
    odd = []
    for kind in (tarfile.DIRTYPE, tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE, tarfile.FIFOTYPE):
        info = tarfile.TarInfo("a.jpg")
        info.type, info.linkname = kind, "/etc/passwd"
        odd.append((info, b""))
    names = ["noext", ".hidden", "__meta__", "__meta__/x.txt", "dir.d/noext", "dot."]
    members = [*odd, *((name, b"x") for name in names), ("a.txt", b"1"), *odd, ("a.cls", b"2")]
    with bp.open(archive(tmp_path / "a.tar", members)) as reader:
        assert list(reader) == [{"__key__": "a", "cls": 2, "txt": "1"}]
        assert reader.facts()["skipped members"] == 16


@pytest.mark.parametrize(
    "head",
    [
        header(magic=b""),
        header(magic=b"ustar  \0"),
        header(size=b"          1 "),
        header(size=b"\x80" + bytes(10) + b"\1"),
        header(kind=b"\0"),
        header(kind=b"7"),
        header(name=b"\xe4.txt", magic=b"", signed=True),
        header(name=b"b.txt", prefix=b"a/b"),
        # What GNU keeps where others have a prefix.
        header(magic=b"ustar  \0", prefix=b"00000000000"),
    ],
)
def test_headers_of_every_age(head, tmp_path):
    with opened(tmp_path, head + padded(b"7")) as reader:
        assert cells(reader)["txt"] == [b"7"]
        keys = {b"\xe4": b"\xe4", b"b.": b"a/b/b", b"a.": b"a"}
        assert cells(reader)["__key__"] == [keys[head[:2].replace(b"\xe4.", b"\xe4")]]


def pax(kind, *records):
    result = b"".join(records)
    return header(b"pax", b"%011o\0" % len(result), kind) + padded(result)


def test_pax_headers_override_what_the_header_says(tmp_path):
    data = (
        pax(b"x", b"17 path=new.jpg\n"[:16].replace(b"17", b"16"), b"9 size=5\n")
        + header(b"old.txt", b"00000000000\0")
        + padded(b"12345")
        + pax(b"g", b"15 comment=you\n")
        # No value: as if it were not there.
        + pax(b"x", b"8 path=\n")
        + header(b"b.txt")
        + padded(b"x")
    )
    with opened(tmp_path, data, schema={"__key__": "text", "jpg": bp.Bytes(optional=True)}) as reader:
        assert list(reader) == [{"__key__": "new", "jpg": b"12345"}, {"__key__": "b", "jpg": None}]


@pytest.mark.parametrize("end", [b"", bytes(100), bytes(BLOCK), bytes(20 * BLOCK)])
def test_ends_of_archives(end, tmp_path):
    whole = header() + padded(b"7")
    with opened(tmp_path, whole + end) as reader:
        assert len(reader) == 1
    with opened(tmp_path, whole + end * (len(end) % BLOCK == 0) + header(b"b.txt") + padded(b"8")) as reader:
        assert [sample["txt"] for sample in reader] == ["7", "8"]
    # The padding of the last member may be missing.
    with opened(tmp_path, header() + b"7") as reader:
        assert reader[0]["txt"] == "7"


def test_an_archive_of_nothing(tmp_path):
    with opened(tmp_path, bytes(2 * BLOCK)) as reader:
        assert (len(reader), list(reader.schema)) == (0, ["__key__"])
        assert len(reader.blocks()) == 0
    assert bp.verify(tmp_path / "made.tar").ok


NAMES = st.text(st.sampled_from("ab./_AÉ"), min_size=1, max_size=9).filter(
    lambda name: not name.endswith(("/", ".")) and not name.lower().endswith(".__key__")
)


@settings(suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture])
@given(st.lists(NAMES, max_size=8))
def test_samples_are_those_of_webdataset(tmp_path, names):
    wds = pytest.importorskip("webdataset")
    members = [(name, str(n).encode()) for n, name in enumerate(names)]
    path = archive(tmp_path / "a.tar", members)
    try:
        with open(path, "rb") as file:
            files = [{**item, "__url__": path} for item in wds.tariterators.tar_file_iterator(file)]
        theirs = list(wds.tariterators.group_by_keys(files))
    except ValueError:
        with pytest.raises(bp.DamagedError, match="two members with the extension"):
            bp.open(path, index="memory")
        return
    with bp.open(path, index="memory") as reader:
        fields = {name: bp.Bytes(optional=True) for name in reader.schema}
    with bp.open(path, index="memory", schema={**fields, "__key__": bp.Text()}) as reader:
        mine = [{name: value for name, value in sample.items() if value is not None} for sample in reader]
    assert mine == [{k: v for k, v in their.items() if k != "__url__"} for their in theirs]


def test_what_webdataset_writes(tmp_path):
    wds = pytest.importorskip("webdataset")
    path = str(tmp_path / "a.tar")
    array = np.arange(6.0).reshape(2, 3)
    with wds.TarWriter(path) as out:
        for n in range(5):
            sample = {"__key__": f"s{n}", "png": pixels(4, 5, 3), "cls": n, "npy": array + n, "x.json": [n]}
            out.write(sample | {"txt": f"größe {n}", "pyd": {"never": "loaded"}})
    with bp.open(path) as reader:
        assert reader.schema["pyd"] == bp.Bytes()
        sample = reader[3]
        assert equal(sample["png"], pixels(4, 5, 3))
        assert equal(sample["npy"], array + 3)
        assert (sample["__key__"], sample["cls"], sample["x.json"]) == ("s3", 3, [3])
        assert sample["txt"] == "größe 3"


# --- what the bytes tell about kinds -------------------------------------------------------------------


def npy_bytes(array, version=None):
    out = io.BytesIO()
    np.lib.format.write_array(out, np.asanyarray(array), version=version, allow_pickle=True)
    return out.getvalue()


@pytest.mark.parametrize(
    ("arrays", "field"),
    [
        ([np.zeros((2, 3), ">f4"), np.asfortranarray(np.ones((2, 3), "f4"))], bp.Tensor("float32", (2, 3))),
        ([np.arange(3), np.arange(5)], bp.Tensor("int64", (None,))),
        ([np.ones((n, 4 - n), ">i2") for n in range(4)], bp.Tensor("int16", (None, None))),
        ([np.array(1.5), np.array(2.5)], bp.Tensor("float64", ())),
        ([np.zeros((0, 3), bool)] * 2, bp.Tensor("bool", (0, 3))),
        ([np.zeros(2, "f4"), np.zeros(2, "f8")], bp.Bytes()),
        ([np.zeros(2), np.zeros((2, 2))], bp.Bytes()),
        ([np.array([{}], object)], bp.Bytes()),
        ([np.zeros(2, [("a", "i4")])], bp.Bytes()),
    ],
)
def test_arrays(arrays, field, tmp_path):
    files = [npy_bytes(array, version=(2, 0) if n else None) for n, array in enumerate(arrays)]
    path = archive(tmp_path / "a.tar", [(f"{n}.npy", data) for n, data in enumerate(files)])
    with bp.open(path) as reader:
        assert reader.schema["npy"] == field
        want = files if field == bp.Bytes() else [a.astype(a.dtype.newbyteorder("=")) for a in arrays]
        assert all(equal(mine, sample["npy"]) for mine, sample in zip(want, reader, strict=True))
    assert bp.verify(path, decode=True).ok


@pytest.mark.parametrize(
    ("values", "field"),
    [
        ([b"1", b"-20\n", b" 7 "], bp.Int()),
        ([b"1", b"n01440764"], bp.Text()),
        ([b"1", b""], bp.Text()),
        ([b"1", b"9223372036854775808"], bp.Text()),
        ([b"1", b"1" * 100], bp.Text()),
    ],
)
def test_numbers(values, field, tmp_path):
    path = archive(tmp_path / "a.tar", [(f"{n}.cls", value) for n, value in enumerate(values)])
    with bp.open(path) as reader:
        assert reader.schema["cls"] == field
        whole = field == bp.Int()
        assert [sample["cls"] for sample in reader] == [
            int(value) if whole else value.decode() for value in values
        ]


def test_a_schema_of_the_users_own(tmp_path):
    members = [("0.score", b"1.5e3"), ("0.cls", b"255"), ("0.b", b"1"), ("1.score", b"nan"), ("1.cls", b"0")]
    path = archive(tmp_path / "a.tar", members)
    schema = {"score": bp.Float("float32"), "cls": bp.Int("uint8"), "b": bp.Bool(optional=True)}
    with bp.open(path, schema=schema) as reader:
        assert list(reader.schema) == ["score", "cls", "b"]
        assert reader[0] == {"score": 1500.0, "cls": 255, "b": True}
        assert equal(reader.read([1, 0])["cls"], np.array([0, 255], np.uint8))
        assert reader[1]["b"] is None
    with bp.open(path, schema={"cls": bp.Int("int8")}) as reader:
        with pytest.raises(bp.DecodeError, match="255 is out of range") as caught:
            reader.read([1, 0])
        assert (caught.value.sample, caught.value.field, caught.value.offset) == (0, "cls", 3 * BLOCK)
    with bp.open(path, schema={"b": bp.Bool()}) as reader:
        with pytest.raises(bp.DamagedError, match="has no such member") as caught:
            reader.read([0, 1])
        assert caught.value.sample == 1
    with bp.open(path, schema={"score": bp.Int()}) as reader:
        with pytest.raises(bp.DecodeError, match="not Int") as caught:
            reader.read([1])
        assert caught.value.sample == 1
    with bp.open(path, schema={"nonsense": "text"}) as reader, pytest.raises(bp.DamagedError):
        reader[0]


def test_keys_that_are_no_text_are_bytes(tmp_path):
    with opened(tmp_path, header(b"\xff\xfe.t\xe9t") + padded(b"x")) as reader:
        assert reader.schema == bp.Schema({"__key__": bp.Bytes(), "t\\xe9t": bp.Bytes()})
        assert reader[0] == {"__key__": b"\xff\xfe", "t\\xe9t": b"x"}


def test_shards_may_lack_what_others_have(tmp_path):
    shards = [
        [
            ("a.cls", b"1"),
            ("a.npy", npy_bytes(np.zeros(2))),
            ("b.cls", b"2"),
            ("b.npy", npy_bytes(np.ones(2))),
        ],
        [("c.cls", b"3"), ("c.txt", b"three"), ("d.txt", b"four")],
        [],
        [("e.npy", npy_bytes(np.zeros(5))), ("e.cls", b"5")],
    ]
    paths = [archive(tmp_path / f"{n}.tar", members) for n, members in enumerate(shards)]
    with bp.open(paths) as reader:
        assert dict(reader.schema) == {
            "__key__": bp.Text(),
            "cls": bp.Int(optional=True),
            "npy": bp.Tensor("float64", (None,), optional=True),
            "txt": bp.Text(optional=True),
        }
        assert [sample["cls"] for sample in reader] == [1, 2, 3, None, 5]
        assert cells(pickle.loads(pickle.dumps(reader))) == cells(reader)
        assert [sample["txt"] for sample in reader] == [None, None, "three", "four", None]
        assert equal(reader[4]["npy"], np.zeros(5))
        assert cells(reader.subset([4, 0, 3]))["__key__"] == [b"e", b"a", b"d"]
    # Where none lacks one, it is a plain number.
    with bp.open([paths[0], paths[3], paths[2]]) as reader:
        assert reader.schema["cls"] == bp.Int()
        assert reader.read([2, 0])["cls"].tolist() == [5, 1]


# --- writing ------------------------------------------------------------------------------------------


def members_of(path):
    with tarfile.open(path) as archive:
        return {member.name: archive.extractfile(member).read() for member in archive}


EVERY = {
    "image": bp.Image("jpeg"),
    "mask": bp.Image(mode="L"),
    "label": bp.Int(names=("cat", "dog")),
    "Score": bp.Float("float32"),
    "flag": bp.Bool(),
    "caption": bp.Text(optional=True),
    "meta": bp.Json(),
    "blob": bp.Bytes(),
    "vector": bp.Tensor("int16", (3,)),
    "sound": bp.Audio("flac"),
    "jpg": bp.Image("jpeg"),
    "seg.png": bp.Image("png", "L"),
}


def every(n):
    return {
        "image": jpeg(),
        "mask": pixels(3, 4),
        "label": n % 2,
        "Score": n / 3,
        "flag": n % 2 == 0,
        "caption": f"größe {n}" if n else None,
        "meta": {"n": n},
        "blob": bytes([n, 0]),
        "vector": np.full(3, n, np.int16),
        "sound": b"fLaC....",
        "jpg": jpeg(9, 9),
        "seg.png": png(3, 5),
    }


def written(path, count=3, schema=EVERY, value=every, **options):
    with bp.create(path, schema, **options) as out:
        for n in range(count):
            out.append(value(n))
    return str(path)


def test_names_of_members(tmp_path):
    result = members_of(written(tmp_path / "a.tar"))
    endings = [
        "blob",
        "cls",
        "flac",
        "flag.npy",
        "image.jpg",
        "jpg",
        "json",
        "mask.png",
        "score.npy",
        "seg.png",
    ]
    endings += ["txt", "vector.npy"]
    assert sorted(name for name in result if name.startswith("00000001.")) == [
        f"00000001.{e}" for e in endings
    ]
    # Missing is left out.
    assert "00000000.txt" not in result
    assert (result["00000001.cls"], result["00000001.blob"]) == (b"1", b"\1\0")
    assert result["00000002.image.jpg"] == jpeg()


@pytest.mark.parametrize(
    ("schema", "names"),
    [
        ({"image": bp.Image(), "label": bp.Int()}, ["jpg", "cls"]),
        ({"image": bp.Image("png"), "digit": bp.Int()}, ["jpg", "cls"]),
        ({"image": bp.Image(), "caption": bp.Text(), "meta": bp.Json()}, ["jpg", "txt", "json"]),
        # The label is the one that has classes, or is called so.
        ({"image": bp.Image(), "id": bp.Int(), "label": bp.Int()}, ["jpg", "id", "cls"]),
        ({"image": bp.Image(), "n": bp.Int(), "c": bp.Int(names=("a", "b"))}, ["jpg", "n.cls", "cls"]),
        ({"image": bp.Image(), "n": bp.Int(), "m": bp.Int()}, ["jpg", "n.cls", "m.cls"]),
        # A mask is not the image; of two images none is.
        ({"image": bp.Image(), "mask": bp.Image(mask=True)}, ["jpg", "mask.jpg"]),
        ({"left": bp.Image(), "right": bp.Image()}, ["left.jpg", "right.jpg"]),
        # What other fields are called is theirs.
        ({"image": bp.Image(), "cls": bp.Bytes(), "label": bp.Int()}, ["jpg", "cls", "label.cls"]),
        ({"image": bp.Image(), "png": bp.Bytes()}, ["image.jpg", "png"]),
        ({"image": bp.Image(), "jpg": bp.Image()}, ["image.jpg", "jpg"]),
        # Names that are extensions stay.
        ({"seg.jpg": bp.Image(), "index": bp.Int()}, ["seg.jpg", "index"]),
        ({"sound": bp.Audio("flac"), "words": bp.Text()}, ["flac", "txt"]),
        ({"sound": bp.Audio(), "words": bp.Text()}, ["sound.audio", "txt"]),
        # Tables keep the names of their columns.
        ({"n": bp.Int(), "name": bp.Text()}, ["n.cls", "name.txt"]),
    ],
)
def test_the_image_and_its_label_are_named_as_others_look_for_them(tmp_path, schema, names):
    values = {"image": jpeg(), "int": 1, "text": "a", "json": [1], "bytes": b"b", "audio": b"fLaC...."}
    sample = {name: values[field.kind] for name, field in schema.items()}
    path = written(tmp_path / "a.tar", 1, schema, lambda n: sample)
    assert [name.partition(".")[2] for name in members_of(path)] == names
    with bp.open(path) as reader:
        assert list(reader.schema) == list(schema)
        assert {name: value.kind for name, value in reader.schema.items()} == {
            n: f.kind for n, f in schema.items()
        }
        plain = [name for name in schema if schema[name].kind not in ("image", "audio")]
        assert reader.select(plain)[0] == {name: sample[name] for name in plain}


def test_webdataset_finds_the_image_and_its_label(tmp_path):
    wds = pytest.importorskip("webdataset")
    schema = {"image": bp.Image(), "label": bp.Int(names=("cat", "dog"))}
    path = written(tmp_path / "a.tar", 4, schema, lambda n: {"image": jpeg(), "label": n % 2})
    with open(path, "rb") as file:
        files = wds.tariterators.tar_file_expander([{"url": path, "stream": file}])
        samples = wds.tariterators.group_by_keys(files)
        decoded = wds.filters.decode("rgb8")(samples)
        result = list(wds.filters.to_tuple("jpg", "cls")(decoded))
    assert [label for _, label in result] == [0, 1, 0, 1]
    assert all(equal(image, bp.open(path)[0]["image"]) for image, _ in result)


def test_archives_of_earlier_versions(tmp_path, monkeypatch):
    """They have every field under its own name; they are read, and added to, as they are."""
    schema = {"image": bp.Image(), "label": bp.Int()}
    with monkeypatch.context() as earlier:
        earlier.setattr("batchplant.formats.webdataset.members._bare", lambda schema: {})
        path = written(tmp_path / "a.tar", 2, schema, lambda n: {"image": jpeg(), "label": n})
    assert list(members_of(path)) == [
        f"0000000{n}.{text}" for n in range(2) for text in ("image.jpg", "label.cls")
    ]
    with bp.open(path) as reader:
        assert [sample["label"] for sample in reader] == [0, 1]
    with bp.create(path, bp.Schema(schema), mode="append") as out:
        out.append({"image": jpeg(), "label": 2})
    assert list(members_of(path))[-2:] == ["00000002.image.jpg", "00000002.label.cls"]
    with bp.open(path) as reader:
        assert [sample["label"] for sample in reader] == [0, 1, 2]
        assert list(reader.verify()) == []


@pytest.mark.parametrize("suffix", [".tar", ".tar.gz", ".tgz"])
def test_webdataset_reads_what_we_write(suffix, tmp_path):
    wds = pytest.importorskip("webdataset")
    path = written(tmp_path / f"a{suffix}")
    # What WebDataset([path]).decode("pil") does; but that does not close its files.
    decode = wds.autodecode.Decoder([wds.autodecode.imagehandler("pil")])
    with open(path, "rb") as file:
        files = wds.tariterators.tar_file_expander([{"url": path, "stream": file}])
        result = [decode(key) for key in wds.tariterators.group_by_keys(files)]
    assert [row["__key__"] for row in result] == ["00000000", "00000001", "00000002"]
    assert "txt" not in result[0]
    one = result[1]
    assert equal(np.asarray(one["image.jpg"]), bp.open(path)[1]["image"])
    assert one["mask.png"].size == (4, 3)
    assert (one["cls"], one["txt"], one["json"]) == (1, "größe 1", {"n": 1})
    assert equal(one["score.npy"], np.array(1 / 3, np.float32))
    assert (one["flag.npy"].item(), one["blob"]) == (False, b"\1\0")
    assert equal(one["vector.npy"], np.full(3, 1, np.int16))
    assert one["flac"] == b"fLaC...."
    assert one["jpg"].size == (9, 9)


@pytest.mark.skipif(shutil.which("tar") is None, reason="needs tar")
def test_tar_has_nothing_to_say_about_it(tmp_path):
    long = {"__key__": bp.Text(), "t": bp.Text()}
    path = written(tmp_path / "a.tar", 2, long, lambda n: {"__key__": f"{'d' * 150}/{n}", "t": "x" * n})
    done = processes.run(["tar", "-tf", path], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.split() == [f"{'d' * 150}/{n}.t.txt" for n in range(2)]


def test_images_are_named_by_what_they_are(tmp_path):
    values = [jpeg(), png(3, 4, 3), pixels(2, 2, 3), b"no image"]
    schema = {"image": bp.Image(), "label": bp.Int()}
    path = written(tmp_path / "a.tar", 4, schema, lambda n: {"image": values[n], "label": n})
    names = [name.partition(".")[2] for name in members_of(path) if "cls" not in name]
    assert names == ["jpg", "png", "png", "img"]
    with bp.open(path) as reader:
        assert cells(reader)["image"][:2] == values[:2]
        spans = reader.spans("image", [3, 0])
        assert spans.size.tolist() == [8, len(jpeg())]


def test_names_that_differ_only_in_case(tmp_path):
    schema = {"A": bp.Int(), "a": bp.Int(), "a/b": bp.Int(), "A_b": bp.Int(), "none": bp.Bytes()}
    path = written(
        tmp_path / "a.tar", 1, schema, lambda n: {"A": 1, "a": 2, "a/b": 3, "A_b": 4, "none": b"5"}
    )
    assert len({name.lower() for name in members_of(path)}) == 5
    assert bp.open(path)[0] == {"A": 1, "a": 2, "a/b": 3, "A_b": 4, "none": b"5"}


def test_a_sample_of_nothing_still_is_one(tmp_path):
    schema = {"a": bp.Int(optional=True), "b": bp.Image(optional=True)}
    path = written(tmp_path / "a.tar", 3, schema, lambda n: {"a": n if n == 1 else None, "b": None})
    assert list(bp.open(path)) == [{"a": None, "b": None}, {"a": 1, "b": None}, {"a": None, "b": None}]
    assert list(members_of(path)) == ["00000000.none", "00000001.cls", "00000002.none"]
    with bp.open(path, schema={"__key__": "text", "a": bp.Int(optional=True)}) as reader:
        assert reader[1] == {"__key__": "00000001", "a": 1}


def test_keys_of_the_users_own(tmp_path):
    keys = ["train/0", "train.d/größe", "x y", "./z"]
    schema = {"name": bp.Text(), "cls": bp.Int()}
    path = written(tmp_path / "a.tar", 4, schema, lambda n: {"name": keys[n], "cls": n}, key="name")
    assert list(members_of(path)) == [f"{key}.cls" for key in keys]
    with bp.open(path) as reader:
        assert list(reader) == [{"name": key, "cls": n} for n, key in enumerate(keys)]
    # From one archive to another, names and all.
    bp.convert(MINE / "train-000000.tar", tmp_path / "b.tar")
    assert list(members_of(tmp_path / "b.tar")) == sorted(members_of(MINE / "train-000000.tar"))
    assert bp.verify(tmp_path / "b.tar", against=MINE / "train-000000.tar").ok


@pytest.mark.parametrize(
    ("key", "reason"),
    [
        ("", "needs a last part"),
        ("a.b", "without a dot"),
        ("a/", "needs a last part"),
        ("/etc/passwd", "no path inside a folder"),
        ("../../up", "no path inside a folder"),
        ("a\0b", "no path inside a folder"),
        ("__a__/b", "metadata"),
    ],
)
def test_keys_that_cannot_be_names(key, reason, tmp_path):
    schema = {"__key__": bp.Text(), "n": bp.Int()}
    with pytest.raises(bp.EncodeError, match=reason) as caught:
        written(tmp_path / "a.tar", 2, schema, lambda n: {"__key__": key if n else "good", "n": n})
    assert (caught.value.sample, caught.value.field) == (1, "__key__")
    assert os.listdir(tmp_path) == []
    with bp.create(tmp_path / "a.tar", schema, on_error="skip") as out:
        out.append({"__key__": key, "n": 1})
        out.append({"__key__": "good", "n": 0})
    assert list(bp.open(tmp_path / "a.tar")) == [{"__key__": "good", "n": 0}]


def test_two_neighbours_with_one_key_are_refused(tmp_path):
    schema = {"__key__": bp.Text(), "n": bp.Int(optional=True)}
    with pytest.raises(bp.EncodeError, match="would be read as one") as caught:
        written(tmp_path / "a.tar", 40, schema, lambda n: {"__key__": str(min(n, 30)), "n": n})
    assert caught.value.sample == 31
    with pytest.raises(bp.SchemaError, match="has to be Text"):
        bp.create(tmp_path / "a.tar", {"__key__": bp.Int()})
    with pytest.raises(bp.SchemaError, match="no field 'name'"):
        bp.create(tmp_path / "a.tar", schema, key="name")


def test_equal_data_gives_equal_files(tmp_path):
    for suffix in (".tar", ".tar.gz"):
        one, two = (written(tmp_path / f"{name}{suffix}", 20) for name in "ab")
        assert Path(one).read_bytes() == Path(two).read_bytes()


@pytest.mark.parametrize("suffix", [".tar", ".tar.gz"])
def test_shards(suffix, tmp_path):
    source = written(tmp_path / "all.npz", 10)
    bp.convert(source, tmp_path / f"train{suffix}", shard_samples=4)
    shards = sorted(str(path) for path in tmp_path.glob("train-*"))
    assert [os.path.basename(shard) for shard in shards] == [f"train-{n:05d}{suffix}" for n in range(3)]
    if suffix == ".tar":
        keys = {name.partition(".")[0] for shard in shards for name in members_of(shard)}
        assert sorted(keys)[::9] == ["00000-00000000", "00002-00000001"]
        assert len(keys) == 10
    assert bp.verify(tmp_path / f"train-{{00000..00002}}{suffix}", against=source).ok


def test_shards_as_webdataset_names_them(tmp_path):
    pattern = f"{tmp_path}/train-%06d.tar"
    with bp.create(pattern, {"cls": bp.Int(), "txt": bp.Text()}, shard_samples=4) as out:
        for n in range(10):
            out.append({"cls": n, "txt": "x" * n})
    assert sorted(os.listdir(tmp_path)) == [f"train-{n:06d}.tar" for n in range(3)]
    with bp.open(f"{tmp_path}/train-{{000000..000002}}.tar") as reader:
        assert [sample["cls"] for sample in reader] == list(range(10))
    with bp.create(pattern, {"cls": bp.Int()}, shard_size=30, overwrite=True) as out:
        for n in range(7):
            out.append({"cls": n})
    assert [os.path.basename(file) for file in out.files] == [f"train-{n:06d}.tar" for n in range(3)]


def test_an_archive_that_was_appended_to(tmp_path):
    path = written(tmp_path / "a.tar", 2)
    with tarfile.open(path, "a") as out:
        for name, data in members_of(written(tmp_path / "b.tar", 3)).items():
            info = tarfile.TarInfo("more" + name)
            info.size = len(data)
            out.addfile(info, io.BytesIO(data))
    with bp.open(path) as reader:
        assert [sample["label"] for sample in reader] == [0, 1, 0, 1, 0]
        assert dict(reader.schema)["label"] == EVERY["label"]


# --- damage -------------------------------------------------------------------------------------------


def sparse():
    return header(kind=b"S") + padded(b"7")


@pytest.mark.parametrize(
    ("data", "reason", "offset"),
    [
        (b"", "the file is empty", 0),
        (b"x" * 2000, "not a tar archive", 0),
        (header(), "cut short: a member of 1 bytes", 0),
        (header()[:300], "cut short inside a header", 0),
        (header() + padded(b"7") + header(b"b.txt", b"00000002000\0") + bytes(800), "cut short", 1024),
        (header() + padded(b"7") + header(b"b.txt").replace(b"b.", b"c."), "checksum is wrong", 1024),
        (header() + padded(b"7") + bytes(1024) + b"rubbish".ljust(512), "behind the end", 2048),
        (
            header() + padded(b"7") + header(b"a.TXT") + padded(b"7"),
            "two members with the extension txt",
            1024,
        ),
        (header(size=b"nonsense") + padded(b"7"), "not a number", 0),
        (header(size=b"\xff" * 12) + padded(b"7"), "not a number|cut short", 0),
        (header(size=b"\x80" + b"\xff" * 11) + padded(b"7"), "not a number|cut short", 0),
        (sparse(), "sparse", 0),
        (pax(b"x", b"22 GNU.sparse.major=1\n") + header() + padded(b"7"), "sparse", 0),
        (pax(b"x", b"99 path=a.txt\n") + header() + padded(b"7"), "PAX header is damaged", 0),
        (pax(b"x", b"3 a\n") + header() + padded(b"7"), "PAX header is damaged", 0),
        (pax(b"x", b"0 a=\n") + header() + padded(b"7"), "PAX header is damaged", 0),
        (pax(b"x", b"11 size=-1\n") + header() + padded(b"7"), "PAX header is damaged", 0),
        (
            pax(b"x", b"30 size=9999999999999999999999\n") + header() + padded(b"7"),
            "PAX header is damaged",
            0,
        ),
        (pax(b"g", b"14 path=a.txt\n") + header() + padded(b"7"), "all members one path", 0),
        (pax(b"x", b"14 path=a.txt\n"), "no member after it", 0),
        (header(b"L", b"00000000002\0", b"L") + padded(b"b\0") + bytes(1024), "no member after it", 0),
        (header(b"L", b"77777777777\0", b"L") + padded(b"b\0"), "cut short", 0),
        (header(b"a.__key__") + padded(b"7"), "__key__", 512),
    ],
)
def test_damage_is_told_with_its_place(data, reason, offset, tmp_path):
    with pytest.raises(bp.DamagedError, match=reason) as caught:
        opened(tmp_path, data)
    assert (caught.value.path, caught.value.offset) == (str(tmp_path / "made.tar"), offset)


def test_too_many_extensions_are_names_with_dots(tmp_path):
    names = np.frombuffer(b"".join(b"img.%06d.jpg" % n for n in range(5000)), np.uint8)
    offsets = np.arange(5001, dtype=np.int64) * 14
    data, _ = _native.tar_headers(names, offsets, np.zeros(5000, np.int64))
    with memory_bounded(len(data)), pytest.raises(bp.DamagedError, match="at the first dot of a name"):
        opened(tmp_path, data.tobytes())


def test_long_headers_come_in_pieces(tmp_path):
    from batchplant.formats.webdataset import members

    path = archive(tmp_path / "a.tar", [(f"{'x' * 3000}{n}.txt", b"7" * 5000) for n in range(20)])
    source = open_source(str(path))
    expected, facts = members.scan(source, lambda done: None)
    arrays, same_facts = members.scan(source, lambda done: None, piece_bytes=6000)
    assert same_facts == facts
    assert len(arrays["firsts"]) == 20
    assert {name: array.tolist() for name, array in arrays.items()} == {
        name: array.tolist() for name, array in expected.items()
    }


@pytest.mark.parametrize(
    "change",
    [
        lambda item: item.pop("schema"),
        lambda item: item.update(schema=[{"name": "n", "kind": "nonsense"}]),
        lambda item: item.update(extensions={}),
        lambda item: item.update(extensions={"n": "n.cls"}),
        lambda item: item.update(extensions={"n": [1]}),
        lambda item: item.update(key="m"),
        lambda item: item.update(key=["n"]),
        lambda item: item.update(samples=None),
        lambda item: item.update(samples=2),
        lambda item: item.update(size=1 << 40),
        lambda item: item.update(size="x"),
    ],
)
def test_a_note_that_lies(change, tmp_path):
    schema = bp.Schema({"n": bp.Int()})
    members = header(b"a.n.cls") + padded(b"7") + bytes(1024)
    note = Note(schema, {"n": ["n.cls"]}, None, 1, 0).to_bytes()
    answer = json.loads(note[BLOCK:].partition(b"=")[2].rstrip(b"\0"))
    answer["size"] = len(note) + len(members)
    good = _native.tar_comment(json.dumps(answer).encode().ljust(len(note) - BLOCK - 15))
    answer["size"] = len(good) + len(members)
    good = _native.tar_comment(json.dumps(answer).encode())
    with opened(tmp_path, good + members) as reader:
        assert list(reader) == [{"n": 7}]
    change(answer)
    with pytest.raises(bp.DamagedError):
        opened(tmp_path, _native.tar_comment(json.dumps(answer).encode()) + members)


def test_a_field_in_two_members(tmp_path):
    path = written(tmp_path / "a.tar", 2, {"image": bp.Image()}, lambda n: {"image": jpeg()})
    with tarfile.open(path, "a") as out:
        info = tarfile.TarInfo("00000001.png")
        info.size = 3
        out.addfile(info, io.BytesIO(b"png"))
    with bp.open(path) as reader, pytest.raises(bp.DamagedError, match="to the same field"):
        reader[0]


def test_a_compressed_archive_that_is_damaged(tmp_path):
    path = tmp_path / "a.tar.gz"
    path.write_bytes(gzip.compress(b"no tar" * 1000))
    with pytest.raises(bp.DamagedError, match="not a tar archive"):
        bp.open(path)
    path.write_bytes(gzip.compress(b""))
    with pytest.raises(bp.DamagedError, match="empty"):
        bp.open(path)


# --- the index, and reading from elsewhere --------------------------------------------------------------


@pytest.mark.parametrize("suffix", [".tar", ".tar.gz"])
def test_the_side_car(suffix, tmp_path, monkeypatch):
    path = written(tmp_path / f"a{suffix}", 20)
    plain = tmp_path / f"b{suffix}"
    members = [
        (f"{n}.{ending}", data) for n in range(9) for ending, data in (("txt", b"x" * n), ("cls", b"%d" % n))
    ]
    archive(tmp_path / "b.tar", members)
    if suffix != ".tar":
        plain.write_bytes(gzip.compress((tmp_path / "b.tar").read_bytes()))
    want = []
    for item in (path, str(plain)):
        with bp.open(item, index="write") as reader:
            want.append((reader.schema, cells(reader)))
        assert Path(item + ".bpindex").exists()
    with monkeypatch.context() as patch:
        patch.setattr(
            "batchplant.formats.webdataset.members.scan", lambda *_: pytest.fail("it was scanned again")
        )
        for value, (schema, expected) in zip((path, str(plain)), want, strict=True):
            with bp.open(value) as reader:
                assert (reader.schema, cells(reader)) == (schema, expected)
    # One of another archive is noticed, and made anew.
    written(tmp_path / f"a{suffix}", 5, overwrite=True)
    assert len(bp.open(path)) == 5


def test_an_index_whose_extensions_are_no_text_is_made_anew(tmp_path):
    path = Path(written(tmp_path / "a.tar", 8_500, {"b": bp.Bytes()}, lambda n: {"b": bytes(10)}))
    bp.open(path).close()
    side_car = Path(f"{path}.bpindex")
    header, start, data = sidecar.read(side_car)
    header["facts"]["extensions"] = [[name] for name in header["facts"]["extensions"]]
    text = json.dumps(header).encode()
    sizes = struct.pack("<II", len(text), _native.crc32c(text))
    head = sidecar.MAGIC + sizes + text
    side_car.write_bytes(head + bytes(-len(head) % sidecar.ALIGN) + data[start:].tobytes())
    with bp.open(path) as reader:
        assert reader[3]["b"] == bytes(10)


def test_verify_looks_at_headers_that_an_index_would_skip(tmp_path):
    path = Path(written(tmp_path / "a.tar", 8_500, {"b": bp.Bytes()}, lambda n: {"b": bytes(10)}))
    bp.open(path).close()
    assert Path(f"{path}.bpindex").exists()
    when = path.stat()
    with open(path, "r+b") as file:
        # Not one of the places that the index has a hash of.
        file.seek(BLOCK * 10_000 + 120)
        file.write(b"X")
    os.utime(path, ns=(when.st_atime_ns, when.st_mtime_ns))
    [problem] = bp.verify(path).problems
    assert "checksum" in problem.message


def test_archives_elsewhere():
    fsspec = pytest.importorskip("fsspec")
    data = (MINE / "train-000001.tar").read_bytes()
    fsspec.filesystem("memory").pipe("/wds/a.tar", data)
    with bp.open("memory://wds/a.tar", index="memory") as far, bp.open(MINE / "train-000001.tar") as near:
        assert far.schema == near.schema
        assert cells(far) == cells(near)


# --- loading ------------------------------------------------------------------------------------------


def images(n):
    return {"image": jpeg(40 + n % 7, 50 + n % 5), "label": n}


IMAGES = {"image": bp.Image("jpeg"), "label": bp.Int()}


def batches(source, **options):
    crop = [bp.ops.RandomResizedCrop(32), bp.ops.RandomHorizontalFlip()]
    loader = bp.Loader(source, 4, order="random", pipelines={"image": crop}, seed=3, **options)
    with contextlib.closing(loader):
        return [{"image": batch["image"].copy(), "label": batch["label"].copy()} for batch in loader]


def test_a_loader_gives_the_pixels_of_a_beton(tmp_path):
    beton = written(tmp_path / "a.beton", 30, IMAGES, images)
    want = batches(beton)
    assert len(want) == 8
    bp.convert(beton, tmp_path / "train.tar", shard_samples=11)
    bp.convert(beton, tmp_path / "train.tar.gz")
    for source in (f"{tmp_path}/train-{{00000..00002}}.tar", str(tmp_path / "train.tar.gz")):
        for mine, theirs in zip(batches(source), want, strict=True):
            assert all(equal(mine[name], theirs[name]) for name in theirs)


@pytest.mark.parametrize("world_size", [2, 3])
def test_every_sample_is_seen_once_by_one_of_the_ranks(world_size, tmp_path):
    samples = ([(f"{n:04d}.cls", b"%d" % n), (f"{n:04d}.jpg", jpeg())] for n in range(25))
    members = list(itertools.chain.from_iterable(samples))
    for shard, part in enumerate((members[:6], members[6:40], members[40:])):
        archive(tmp_path / f"s-{shard}.tar", part)
    reader = bp.open(f"{tmp_path}/s-*.tar")
    crop = {"jpg": [bp.ops.CenterCrop(8)]}
    seen = []
    for rank in range(world_size):
        loader = bp.Loader(reader, 4, order="random", pipelines=crop, rank=rank, world_size=world_size)
        with contextlib.closing(loader):
            seen.append(np.concatenate([batch["cls"].copy() for batch in loader]))
    assert sorted(np.concatenate(seen).tolist()) == list(range(25))
    assert max(map(len, seen)) - min(map(len, seen)) <= 1
