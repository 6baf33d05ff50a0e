"""Datasets as they are published: a miniature of each layout, with the very names and bytes."""

import contextlib
import gzip
import io
import itertools
import json
import pickle
import struct
import tarfile
import zlib

import numpy as np
import pytest

import batchplant as bp
from batchplant.codecs.media import audio
from batchplant.testing.cases import cuts, flips, jpeg, survive
from variants import in_one_test

RNG = np.random.default_rng(5)
PIXELS = RNG.integers(0, 256, (6, 3, 32, 32), dtype=np.uint8)
DIGITS = RNG.integers(0, 256, (5, 28, 28), dtype=np.uint8)
LABELS = [3, 0, 9, 1, 1, 2]
CLASSES = ["airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"]
WNIDS = ["n01440764", "n01443537", "n02123045"]


def idx(array):
    return bytes([0, 0, 8, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape) + array.tobytes()


def mnist(folder, prefix="", packed=False, splits=("train", "t10k"), array=DIGITS):
    folder.mkdir(exist_ok=True)
    for split in splits:
        for kind, values in (("images-idx3", array), ("labels-idx1", np.array(LABELS[: len(array)], "u1"))):
            data = gzip.compress(idx(values)) if packed else idx(values)
            (folder / f"{prefix}{split}-{kind}-ubyte{'.gz' if packed else ''}").write_bytes(data)
    return folder


def archive(path, members):
    with tarfile.open(path, "w", format=tarfile.USTAR_FORMAT) as out:
        for name, data in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            out.addfile(info, io.BytesIO(data))
    return path


@pytest.mark.parametrize("packed", [False, True])
def test_mnist(tmp_path, packed):
    folder = mnist(tmp_path / "mnist", packed=packed)
    with pytest.raises(bp.OptionError, match="several splits"):
        bp.open(folder)
    with bp.open(folder, split="test") as reader:
        assert reader.format == "published"
        assert dict(reader.schema) == {"image": bp.Image("raw", "L"), "label": bp.Int("uint8")}
        assert [sample["label"] for sample in reader] == LABELS[:5]
        assert (reader[3]["image"] == DIGITS[3]).all()
        assert (reader.spans("image", [3]) is None) == packed
        assert pickle.loads(pickle.dumps(reader))[1]["label"] == 0
    batch = next(iter(bp.Loader(bp.open(folder, split="train"), 5, order="sequential")))
    assert (np.asarray(batch["image"]).reshape(5, 28, 28) == DIGITS).all()
    assert bp.verify(folder, split="train").ok


def test_emnist(tmp_path):
    folder = mnist(tmp_path / "gzip", "emnist-letters-", splits=("train", "test"))
    mnist(folder, "emnist-digits-", splits=("train",))
    (folder / "emnist-letters-mapping.txt").write_text("".join(f"{n} {65 + n} {97 + n}\n" for n in range(10)))
    with bp.open(folder, split="letters-test") as reader:
        assert reader.schema["label"].names[:2] == ("Aa", "Bb")
    with pytest.raises(bp.OptionError, match="digits-train, letters-test"):
        bp.open(folder, split="train")


def python2_pickle(pixels, labels, **keys):
    """A batch as Python 2 pickled it: protocol 2, strings as bytes."""

    def string(data):
        return (
            b"U" + bytes([len(data)]) + data
            if len(data) < 256
            else b"T" + struct.pack("<i", len(data)) + data
        )

    out = b"\x80\x02}(" + string(b"batch_label") + string(b"training batch 1 of 5")
    for key, values in (keys or {"labels": labels}).items():
        out += string(key.encode()) + b"](" + b"".join(b"K" + bytes([value]) for value in values) + b"e"
    rows = pixels.reshape(len(pixels), -1)
    out += (
        string(b"data") + b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85" + string(b"b")
    )
    out += b"\x87R(K\x01M" + struct.pack("<HB", len(rows), 0x4D) + struct.pack("<H", rows.shape[1]) + b"\x86"
    out += (
        b"cnumpy\ndtype\n" + string(b"u1") + b"K\x00K\x01\x87R(K\x03" + string(b"|") + b"NNNJ\xff\xff\xff\xff"
    )
    return out + b"J\xff\xff\xff\xffK\x00tb\x89" + string(rows.tobytes()) + b"tbu."


def cifar10(folder, dump):
    folder.mkdir()
    for name in ("data_batch_1", "data_batch_2", "test_batch"):
        (folder / name).write_bytes(dump(PIXELS, LABELS))
    (folder / "batches.meta").write_bytes(pickle.dumps({"label_names": CLASSES, "num_vis": 3072}, 2))
    (folder / "readme.html").write_text("<html>")
    return folder


@in_one_test("protocol", [None, 2, 4, 5])
def test_cifar10(tmp_path, protocol):
    def dump(pixels, labels):
        if protocol is None:
            return python2_pickle(pixels, labels)
        return pickle.dumps({b"data": pixels.reshape(-1, 3072), b"labels": labels}, protocol)

    folder = cifar10(tmp_path / "cifar-10-batches-py", dump)
    with bp.open(folder, split="train") as reader:
        assert dict(reader.schema) == {
            "image": bp.Image("raw"),
            "label": bp.Int("uint8", names=tuple(CLASSES)),
        }
        assert len(reader) == 12
        assert (reader[8]["image"] == PIXELS[2].transpose(1, 2, 0)).all()
        assert reader[8]["label"] == 9
    assert bp.verify(folder, split="test").ok
    bp.convert(bp.open(folder, split="test"), tmp_path / "out.beton")
    assert (bp.open(tmp_path / "out.beton")[5]["image"] == PIXELS[5].transpose(1, 2, 0)).all()


def test_pickles_run_nothing(tmp_path):
    class Evil:
        def __reduce__(self):
            return (open, (str(tmp_path / "ran"), "w"))

    folder = cifar10(tmp_path / "cifar", python2_pickle)
    (folder / "test_batch").write_bytes(pickle.dumps({"data": Evil(), "labels": []}, 2))
    with pytest.raises(bp.UnsafeError, match="not loaded"):
        bp.open(folder, split="test")
    assert not (tmp_path / "ran").exists()


def test_cifar100(tmp_path):
    meta = {"fine_label_names": [f"fine {n}" for n in range(10)], "coarse_label_names": ["a", "b", "c"]}
    coarse = [0, 1, 2, 0, 1, 2]
    for name in ("train", "test"):
        data = python2_pickle(PIXELS, None, fine_labels=LABELS, coarse_labels=coarse)
        (tmp_path / name).write_bytes(data)
    (tmp_path / "meta").write_bytes(pickle.dumps(meta, 2))
    with bp.open(tmp_path, split="test") as reader:
        assert [(sample["label"], sample["coarse_label"]) for sample in reader] == list(
            zip(LABELS, coarse, strict=True)
        )
        assert reader.schema["coarse_label"].names == ("a", "b", "c")


def test_cifar_binary(tmp_path):
    (ten := tmp_path / "cifar-10-batches-bin").mkdir()
    rows = b"".join(bytes([label]) + image.tobytes() for label, image in zip(LABELS, PIXELS, strict=True))
    for name in ("data_batch_1.bin", "test_batch.bin"):
        (ten / name).write_bytes(rows)
    (ten / "batches.meta.txt").write_text("\n".join(CLASSES) + "\n\n")
    with bp.open(ten, split="test") as reader:
        assert reader.schema["label"].names == tuple(CLASSES)
        assert (reader[4]["image"] == PIXELS[4].transpose(1, 2, 0)).all()
    (ten / "test_batch.bin").write_bytes(rows[:-1])
    with pytest.raises(bp.DamagedError, match="no whole records"):
        bp.open(ten, split="test")
    (hundred := tmp_path / "cifar-100-binary").mkdir()
    pairs = [bytes([label % 3, label]) + image.tobytes() for label, image in zip(LABELS, PIXELS, strict=True)]
    (hundred / "test.bin").write_bytes(b"".join(pairs))
    (hundred / "fine_label_names.txt").write_text("\n".join(f"fine_{n}" for n in range(10)))
    (hundred / "coarse_label_names.txt").write_text("x\ny\nz\n")
    with bp.open(hundred) as reader:
        assert [(sample["label"], sample["coarse_label"]) for sample in reader] == [
            (n, n % 3) for n in LABELS
        ]
        assert (reader[2]["image"] == PIXELS[2].transpose(1, 2, 0)).all()


# -- ILSVRC 2012 --------------------------------------------------------------------------------------------


def train_tar(folder):
    classes = {}
    for label, wnid in enumerate(WNIDS):
        images = {f"{wnid}_{number}.JPEG": jpeg(8, 8 + 3 * label + number) for number in range(3)}
        classes[f"{wnid}.tar"] = archive(folder / "inner.tar", images).read_bytes()
    (folder / "inner.tar").unlink()
    return archive(folder / "ILSVRC2012_img_train.tar", classes)


def matrix(kind, shape, *elements, name=b""):
    def element(code, data):
        return struct.pack("<II", code, len(data)) + data + bytes(-len(data) % 8)

    body = element(6, struct.pack("<II", kind, 0)) + element(5, struct.pack("<ii", *shape)) + element(1, name)
    return element(14, body + b"".join(e if code is None else element(code, e) for code, e in elements))


def meta_mat(ids):
    """meta.mat of the development kit, as far as structures of two fields go."""
    cells = []
    for number, wnid in ids.items():
        cells.append((None, matrix(6, (1, 1), (2, bytes([number])))))
        cells.append((None, matrix(4, (1, len(wnid)), (16, wnid.encode()))))
    names = b"".join(name.ljust(32, b"\0") for name in (b"ILSVRC2012_ID", b"WNID"))
    length = struct.pack("<HHi", 5, 4, 32)
    synsets = matrix(2, (len(ids), 1), (None, length), (1, names), *cells, name=b"synsets")
    packed = zlib.compress(synsets)
    return b"MATLAB 5.0 MAT-file".ljust(124) + b"\x00\x01IM" + struct.pack("<II", 15, len(packed)) + packed


def test_ilsvrc_training_set(tmp_path):
    path = train_tar(tmp_path)
    with bp.open(path) as reader:
        assert reader.format == "published"
        assert dict(reader.schema) == {"image": bp.Image("jpeg"), "label": bp.Int(names=tuple(WNIDS))}
        assert [sample["label"] for sample in reader] == [0, 0, 0, 1, 1, 1, 2, 2, 2]
        assert bytes(reader.read([5])["image"][0]) == jpeg(8, 13)
        assert reader.spans("image", [5]).files == (str(path),)
        assert reader.by_key("n01443537_2")["label"] == 1
    with bp.open(tmp_path, split="train", index="write") as reader:
        assert len(reader) == 9
    with bp.open(path) as reader:
        assert reader[8]["image"].shape == (8, 16, 3)


@in_one_test("kit", ["none", "folder", "archive"])
@in_one_test("packed", [False, True])
def test_ilsvrc_validation_set(tmp_path, kit, packed):
    ids = [2, 3, 1, 3]
    images = {f"ILSVRC2012_val_{n + 1:08d}.JPEG": jpeg(8, 8 + n) for n in range(4)}
    truth = "".join(f"{number}\n" for number in ids).encode()
    # The challenge numbers synsets in another order than that of their names.
    meta = meta_mat({1: WNIDS[2], 2: WNIDS[0], 3: WNIDS[1]})
    (tmp_path / "ILSVRC2012_validation_ground_truth.txt").write_bytes(truth)
    if kit == "folder":
        (tmp_path / "ILSVRC2012_devkit_t12/data").mkdir(parents=True)
        (tmp_path / "ILSVRC2012_devkit_t12/data/meta.mat").write_bytes(meta)
    elif kit == "archive":
        path = archive(tmp_path / "kit.tar", {"ILSVRC2012_devkit_t12/data/meta.mat": meta})
        (tmp_path / "ILSVRC2012_devkit_t12.tar.gz").write_bytes(gzip.compress(path.read_bytes()))
        path.unlink()
    if packed:
        archive(tmp_path / "ILSVRC2012_img_val.tar", dict(reversed(images.items())))
    for name, data in () if packed else images.items():
        (tmp_path / name).write_bytes(data)
    with bp.open(tmp_path) as reader:
        assert reader.format == "published"
        field = "ilsvrc_id" if kit == "none" else "label"
        assert [sample[field] for sample in reader] == (ids if kit == "none" else [0, 1, 2, 1])
        assert reader.schema[field].names == (None if kit == "none" else tuple(sorted(WNIDS)))
        assert [sample["image"].shape[1] for sample in reader] == [8, 9, 10, 11]


# -- tables -------------------------------------------------------------------------------------------------


def test_common_voice(tmp_path):
    (tmp_path / "clips").mkdir()
    header = "client_id\tpath\tsentence\tup_votes\tdown_votes\tage\n"
    rows = [f'{n:02x}\tcommon_voice_en_{n}.mp3\t"Sentence" {n}\t{n}\t0\t\n' for n in range(4)]
    for n in range(4):
        sound = audio.write_wav(np.full((160, 1), n, np.int16), 8000, "PCM_16")
        (tmp_path / f"clips/common_voice_en_{n}.mp3").write_bytes(sound)
    for split, part in (("train", rows[:3]), ("test", rows[3:])):
        (tmp_path / f"{split}.tsv").write_text(header + "".join(part))
    with bp.open(tmp_path, split="train") as reader:
        assert reader.format == "published"
        assert [sample["sentence"] for sample in reader] == [f'"Sentence" {n}' for n in range(3)]
        assert isinstance(reader.schema["audio"], bp.Audio)
        assert reader.read([2])["up_votes"].tolist() == [2]
        assert bytes(reader.read([1])["audio"][0])[:4] == b"RIFF"
        assert reader.where(1).endswith("clips/common_voice_en_1.mp3")
    (tmp_path / "test.tsv").write_bytes((header + "".join(rows)).replace("\n", "\r\n").encode()[:-2])
    with bp.open(tmp_path, split="test") as reader:
        assert [sample["age"] for sample in reader] == [""] * 4
        assert [sample["up_votes"] for sample in reader] == list(range(4))
    (tmp_path / "test.tsv").write_text(header + rows[0] + "1\t2\n")
    with pytest.raises(bp.DamagedError, match="line 3 has 2 columns of 6"):
        bp.open(tmp_path, split="test")
    (tmp_path / "test.tsv").write_text(header + "1\t../../secret.mp3\ta\t1\t0\t\n")
    with bp.open(tmp_path, split="test") as reader, pytest.raises(bp.DamagedError, match="does not lie in"):
        reader[0]


def test_wids(tmp_path):
    for shard in range(2):
        members = {
            f"{shard}{n}.{ext}": data
            for n in range(3)
            for ext, data in (("jpg", jpeg(8, 8)), ("cls", b"%d" % n))
        }
        archive(tmp_path / f"train-{shard}.tar", members)
    names = [{"url": f"train-{shard}.tar", "nsamples": 3} for shard in range(2)]
    listing = tmp_path / "train.json"
    listing.write_text(json.dumps({"__kind__": "wids-shard-index-v1", "wids_version": 1, "shardlist": names}))
    with bp.open(listing) as reader:
        assert [sample["cls"] for sample in reader] == [0, 1, 2, 0, 1, 2]
        assert reader.format == "published"
    names[0]["url"] = "../train-0.tar"
    listing.write_text(json.dumps({"wids_version": 1, "shardlist": names}))
    with pytest.raises(bp.DamagedError, match="no path below"):
        bp.open(listing)


# -- damage -------------------------------------------------------------------------------------------------


def test_damage(tmp_path):
    """Damaged files give errors of ours, whichever layout they are of."""
    small = PIXELS[:2]
    folders = {
        "train-images-idx3-ubyte": mnist(tmp_path / "mnist", splits=("train",), array=DIGITS[:1]),
        "test_batch": cifar10(tmp_path / "cifar", lambda *_: python2_pickle(small, LABELS[:2])),
        "batches.meta": tmp_path / "cifar",
    }
    (tmp_path / "train").mkdir()
    folders["ILSVRC2012_img_train.tar"] = train_tar(tmp_path / "train").parent
    for name, folder in folders.items():
        split = "test" if folder.name == "cifar" else "train"

        def read(folder=folder, split=split):
            with (
                contextlib.suppress(bp.BatchplantError),
                bp.open(folder, split=split, index="memory") as reader,
            ):
                return len(list(reader)) > 0
            return False

        damage = [cuts(folder / name, 12), flips(folder / name, 12)]
        assert sum(was_read for _, was_read in survive(itertools.chain(*damage), read)) > 0
