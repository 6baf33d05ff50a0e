"""NIfTI: values and affines as nibabel has them, folders, patches, orientation, spacing; damage."""

import contextlib
import gzip
import itertools
import json
import os
import pickle
import struct

import numpy as np
import pytest

import batchplant as bp
from batchplant.formats import nifti
from batchplant.formats.base import volumes
from batchplant.testing.cases import cuts, flips, memory_bounded, survive
from variants import exhaustive, in_one_test

RNG = np.random.default_rng(41)
VALUES = RNG.integers(-500, 900, (13, 9, 7)).astype(np.int16)
# Oblique, and no axis along that of the patient with its number.
AFFINE = np.array([[0.1, -2.0, 0.2, 30], [0.05, 0.1, 3.0, -20], [-1.5, 0.0, 0.1, 10], [0, 0, 0, 1]])
DTYPES = ("u1", "i1", "i2", "u2", "i4", "u4", "i8", "u8", "f4", "f8", "c8", "c16")


def check(path, **options):
    """Compare a file with nibabel."""
    nibabel = pytest.importorskip("nibabel")
    theirs = nibabel.load(path)
    values = np.asanyarray(theirs.dataobj)
    with bp.open(path, **options) as data:
        sample = data[0]
        assert data.format == "nifti"
        assert sample["image"].dtype.isnative
        assert np.array_equal(sample["image"], values.astype(sample["image"].dtype), equal_nan=True)
        assert np.allclose(sample["affine"], theirs.affine, rtol=1e-6, atol=1e-6)
        zooms = np.array([*theirs.header.get_zooms(), 1, 1])[: min(3, values.ndim)]
        assert np.allclose(sample["spacing"][: len(zooms)], zooms, rtol=1e-5)
        return sample["image"], values


@pytest.mark.parametrize(
    ("version", "suffix"), [(1, ".nii"), (2, ".nii.gz"), *exhaustive((1, ".nii.gz"), (2, ".nii"))]
)
def test_dtypes_and_byte_orders(version, suffix, tmp_path):
    nibabel = pytest.importorskip("nibabel")
    kind = nibabel.Nifti1Image if version == 1 else nibabel.Nifti2Image
    for order, dtype in itertools.product("<>", DTYPES):
        header = kind.header_class(endianness=order)
        header.set_data_dtype(dtype)
        path = tmp_path / f"a{suffix}"
        nibabel.save(kind(VALUES.astype(order + dtype), AFFINE, header), path)
        ours, theirs = check(path)
        assert ours.dtype == theirs.dtype.newbyteorder("=")


@in_one_test(
    "shape", [(5,), (5, 3), (1, 1, 1), (17, 1, 3), (4, 5, 6, 3), (3, 4, 5, 1, 2), (2, 1, 3, 1, 1, 2, 2)]
)
def test_shapes(shape, tmp_path):
    nibabel = pytest.importorskip("nibabel")
    values = RNG.random(shape).astype(np.float32)
    nibabel.save(nibabel.Nifti1Image(values, np.eye(4)), tmp_path / "a.nii")
    assert np.array_equal(check(tmp_path / "a.nii")[0], values)


@pytest.mark.parametrize("dtype", ["u1", "i2", "i4", "f4", "f8"])
def test_slope_and_intercept(dtype, tmp_path):
    nibabel = pytest.importorskip("nibabel")
    image = nibabel.Nifti1Image(VALUES.astype(dtype), AFFINE)
    nibabel.save(image, tmp_path / "a.nii")
    for slope, intercept in ((0.37, -1024.5), (1, 3), (1, 0), (0, 5), (np.nan, 1), (np.inf, 0), (-2, 1)):
        data = bytearray((tmp_path / "a.nii").read_bytes())
        struct.pack_into("<2f", data, 112, slope, intercept)
        (tmp_path / "b.nii").write_bytes(data)
        ours, theirs = check(tmp_path / "b.nii")
        if theirs.dtype == np.float64 and dtype != "f8":
            assert ours.dtype == np.float32
            ours, _ = check(tmp_path / "b.nii", dtype="float64")
        assert np.array_equal(ours, theirs)


def test_affines(tmp_path):
    nibabel = pytest.importorskip("nibabel")
    for number in range(20):
        rotation = np.linalg.qr(RNG.normal(size=(3, 3)))[0] * RNG.uniform(0.5, 3, 3)
        affine = np.eye(4)
        affine[:3] = np.column_stack([rotation, RNG.normal(size=3) * 50])
        image = nibabel.Nifti1Image(VALUES, affine)
        image.set_sform(affine, code=int(number % 3 == 0))
        image.set_qform(affine, code=int(number % 3 == 1))
        nibabel.save(image, tmp_path / "a.nii")
        check(tmp_path / "a.nii")
        turned = nibabel.as_closest_canonical(nibabel.load(tmp_path / "a.nii"))
        with bp.open(tmp_path / "a.nii", orientation="ras") as data:
            assert np.array_equal(data[0]["image"], np.asarray(turned.dataobj))
            assert np.allclose(data[0]["affine"], turned.affine, atol=1e-4)
            assert data.facts()["orientation"] == "RAS"


def test_pairs(tmp_path):
    nibabel = pytest.importorskip("nibabel")
    nibabel.save(nibabel.Nifti1Pair(VALUES, AFFINE), tmp_path / "a.hdr")
    check(tmp_path / "a.hdr")
    assert [sample["name"] for sample in bp.open(tmp_path, format="nifti")] == ["a"]
    (tmp_path / "a.img").unlink()
    with pytest.raises(bp.NotFoundError, match=r"\.img"):
        bp.open(tmp_path / "a.hdr")


def test_what_we_write_nibabel_reads(tmp_path):
    nibabel = pytest.importorskip("nibabel")
    for name, values in (("a.nii", VALUES), ("b.nii.gz", VALUES > 0), ("c.nii", VALUES.astype(">f8").T)):
        nifti.save(tmp_path / name, values, AFFINE)
        image = nibabel.load(tmp_path / name)
        assert np.array_equal(np.asarray(image.dataobj), values)
        assert np.allclose(image.affine, AFFINE)
        assert image.header.get_xyzt_units()[0] == "mm"
    for bad in (VALUES.astype("f2"), np.zeros((0, 3)), np.zeros((40_000, 1), np.uint8)):
        with pytest.raises(bp.EncodeError):
            nifti.save(tmp_path / "d.nii", bad)


# -- folders -----------------------------------------------------------------------------------------------


def scans(folder, shapes=((13, 9, 7), (8, 11, 5), (10, 10, 10)), suffix=".nii.gz"):
    """Volumes of differing shapes."""
    folder.mkdir(exist_ok=True)
    arrays = [RNG.integers(0, 900, shape).astype(np.int16) for shape in shapes]
    for number, values in enumerate(arrays):
        nifti.save(folder / f"case{number}{suffix}", values, np.diag([2, 2, 4, 1.0]))
    return arrays


def test_a_folder_of_volumes(tmp_path):
    arrays = scans(tmp_path / "scans")
    with bp.open(tmp_path / "scans") as data:
        assert data.schema["image"] == bp.Tensor("int16", (None, None, None))
        assert [sample["name"] for sample in data] == ["case0", "case1", "case2"]
        assert np.array_equal(data.by_key("case1")["image"], arrays[1])
        assert all(
            np.array_equal(a["image"], b)
            for a, b in zip(pickle.loads(pickle.dumps(data)), arrays, strict=True)
        )
        assert data.ranges(["image"]).bytes == sum(os.path.getsize(data.where(n)) for n in range(3))
    assert bp.verify(tmp_path / "scans").ok
    with bp.open(str(tmp_path / "scans" / "*.nii.gz")) as data:
        assert np.array_equal(data[2]["image"], arrays[2])
        patches = bp.VolumePatches(data, size=(4, 4, 4))
        assert np.array_equal(patches[len(patches) - 1]["image"], arrays[2][4:8, 4:8, 4:8])


def test_volumes_of_one_shape_make_batches(tmp_path):
    arrays = scans(tmp_path / "scans", [(6, 5, 4)] * 4, ".nii")
    nifti.save(tmp_path / "scans" / "case0.nii", arrays[0].astype(np.float32))
    batch = next(iter(bp.Loader(tmp_path / "scans", 4)))
    assert batch["image"].dtype == np.float32
    assert np.array_equal(batch["image"], np.stack(arrays))
    assert bp.convert(tmp_path / "scans", tmp_path / "scans.beton").samples == 4
    assert np.array_equal(bp.open(tmp_path / "scans.beton")[2]["image"], arrays[2])


def nnunet(folder, channels=2, cases=3):
    """A raw folder of nnU-Net, and its images and labels."""
    for name in ("imagesTr", "labelsTr"):
        (folder / name).mkdir(parents=True)
    images, labels = [], []
    for case in range(cases):
        shape = (12 + case, 10, 8)
        images.append(RNG.random((*shape, channels)).astype(np.float32))
        labels.append((RNG.random(shape) > 0.97).astype(np.uint8))
        for channel in range(channels):
            file = folder / "imagesTr" / f"hip_{case:03d}_{channel:04d}.nii.gz"
            nifti.save(file, images[-1][..., channel], np.diag([-1, -1, 2, 1]))
        nifti.save(folder / "labelsTr" / f"hip_{case:03d}.nii.gz", labels[-1], np.diag([-1, -1, 2, 1]))
    content = {"channel_names": {"0": "T1", "1": "T2"}, "labels": {"background": 0, "bone": 1}}
    (folder / "dataset.json").write_text(json.dumps({**content, "file_ending": ".nii.gz"}))
    return images, labels


@pytest.mark.parametrize("channels", [1, 2])
def test_nnunet(channels, tmp_path):
    images, labels = nnunet(tmp_path / "raw", channels)
    with bp.open(tmp_path / "raw") as data:
        assert [sample["name"] for sample in data] == ["hip_000", "hip_001", "hip_002"]
        for sample, image, label in zip(data, images, labels, strict=True):
            assert np.array_equal(sample["image"], image if channels == 2 else image[..., 0])
            assert np.array_equal(sample["label"], label)
        assert json.loads(data.metadata["labels"]) == {"background": 0, "bone": 1}
        patches = bp.VolumePatches(data, size=(6, 6, 6), random=5, seed=3)
        assert set(patches.schema) >= {"image", "label", "position", "volume"}
        for patch in patches:
            box = tuple(slice(first, first + 6) for first in patch["position"])
            image = images[patch["volume"]][box]
            assert np.array_equal(patch["image"], image if channels == 2 else image[..., 0])
            assert np.array_equal(patch["label"], labels[patch["volume"]][box])
    with pytest.raises(bp.BatchplantError):
        bp.open(tmp_path / "raw", split="test")
    (tmp_path / "raw/labelsTr/hip_001.nii.gz").unlink()
    with pytest.raises(bp.DamagedError, match="no label of hip_001"):
        bp.open(tmp_path / "raw")


def test_a_missing_channel(tmp_path):
    nnunet(tmp_path / "raw")
    (tmp_path / "raw/imagesTr/hip_001_0001.nii.gz").unlink()
    with pytest.raises(bp.DamagedError, match="hip_001 has the channels 0000"):
        bp.open(tmp_path / "raw")


# -- patches -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("suffix", [".nii", ".nii.gz"])
@pytest.mark.parametrize("options", [{}, {"dtype": "float32"}, {"orientation": "LPS"}])
def test_patches_read_slabs(suffix, options, tmp_path):
    """Of a compressed volume that takes much of the cache, slabs are unpacked."""
    values = RNG.integers(0, 60, (60, 30, 25)).astype(np.int16)
    nifti.save(tmp_path / f"a{suffix}", values, np.diag([1, 1, 2, 1]))
    expected = values[::-1, ::-1] if "orientation" in options else values
    with bp.open(tmp_path / f"a{suffix}", cache=200_000, **options) as data:
        patches = bp.VolumePatches(data, size=(9, 8, 7), stride=5, pad=-1)
        padded = np.pad(expected, [(0, 20)] * 3, constant_values=-1)
        for batch in bp.Loader(patches, 8, order="quasi_random", seed=1):
            for patch, start in zip(batch["image"], batch["position"], strict=True):
                box = tuple(slice(a, a + b) for a, b in zip(start, (9, 8, 7), strict=True))
                assert np.array_equal(patch, padded[box])
        assert np.array_equal(data[0]["image"], expected)


def test_resampling(tmp_path):
    x, y, z = np.meshgrid(*(np.arange(n) + 0.5 for n in (12, 10, 8)), indexing="ij")
    ramp = (2 * x + 3 * y - z).astype(np.float32)
    nifti.save(tmp_path / "a.nii", ramp, np.diag([2, 1, 3, 1]))
    with bp.open(tmp_path / "a.nii", spacing=(1, 2, 1.5)) as data:
        sample = data[0]
        image, affine = sample["image"], sample["affine"]
        assert image.shape == (24, 5, 16)
        assert np.allclose(sample["spacing"], (1, 2, 1.5))
        # Where no edge is near, a ramp is interpolated exactly.
        at = np.stack(np.meshgrid(*map(np.arange, image.shape), indexing="ij"), axis=-1)
        old = (
            np.linalg.solve(np.diag([2, 1, 3]), (at @ affine[:3, :3].T + affine[:3, 3])[..., None])[..., 0]
            + 0.5
        )
        inside = np.s_[1:-1, :, 1:-1]
        assert np.allclose(image[inside], (old @ (2.0, 3.0, -1.0))[inside], atol=1e-4)
        patches = bp.VolumePatches(data, size=(7, 3, 6), stride=2)
        for patch in patches:
            box = tuple(slice(a, a + b) for a, b in zip(patch["position"], (7, 3, 6), strict=True))
            assert np.allclose(patch["image"], image[box], atol=1e-5)
    labels = RNG.integers(0, 4, (6, 6, 6)).astype(np.uint8)
    grid = volumes.Resampled(
        bp.Patches({"a": labels}, size=(1, 1, 1))._arrays["a"], (12, 12, 12), nearest=True
    )
    assert np.array_equal(np.asarray(grid), labels.repeat(2, 0).repeat(2, 1).repeat(2, 2))


def test_options(tmp_path):
    nifti.save(tmp_path / "a.nii", VALUES)
    wrong = {"orientation": ["RAX", "RLS"], "spacing": [0, [1, 2]], "dtype": ["seven"], "split": ["val"]}
    for options in ({name: value} for name, values in wrong.items() for value in values):
        path = tmp_path if "split" in options else tmp_path / "a.nii"
        with pytest.raises(bp.OptionError):
            bp.open(path, format="nifti", **options)


# -- damage ------------------------------------------------------------------------------------------------


@in_one_test("damage", [cuts, flips])
@in_one_test("suffix", [".nii", ".nii.gz"])
def test_damage_is_an_error_of_ours(damage, suffix, tmp_path):
    path = tmp_path / f"a{suffix}"
    nifti.save(path, VALUES, AFFINE)
    paths = set()

    def sound():
        try:
            with bp.open(path, format="nifti") as data:
                return np.array_equal(data[0]["image"], VALUES)
        except bp.BatchplantError as error:
            paths.add(error.path)
            return False

    with memory_bounded(64 << 20):
        for what, good in survive(damage(path), sound):
            # The last bytes of a compressed file are its checksum, which only verify looks at.
            assert not good or damage is flips or suffix == ".nii.gz", f"unnoticed: {what}"
    assert paths <= {str(path)}


@in_one_test(
    ("place", "packed"),
    [
        ((42, "<3h"), (32767, 32767, 32767)),
        ((40, "<h"), (0,)),
        ((40, "<h"), (8,)),
        ((42, "<h"), (-3,)),
        ((70, "<h"), (128,)),
        ((70, "<h"), (77,)),
        ((108, "<f"), (np.nan,)),
        ((108, "<f"), (-8,)),
        ((108, "<f"), (1e30,)),
        ((112, "<2f"), (2, np.nan)),
        ((256, "<3f"), (2, 2, 2)),
        ((344, "<4s"), (b"n+9\0",)),
        ((0, "<i"), (349,)),
    ],
)
@in_one_test("suffix", [".nii", ".nii.gz"])
def test_headers_that_lie(place, packed, suffix, tmp_path):
    nifti.save(tmp_path / "a.nii", VALUES, AFFINE)
    data = bytearray((tmp_path / "a.nii").read_bytes())
    struct.pack_into("<2h", data, 252, 1, 0)
    struct.pack_into(place[1], data, place[0], *packed)
    path = tmp_path / f"b{suffix}"
    path.write_bytes(gzip.compress(data) if suffix.endswith(".gz") else data)
    with memory_bounded(1 << 20), pytest.raises((bp.DamagedError, bp.SchemaError)) as caught:
        bp.open(path, format="nifti")[0]
    assert caught.value.path == str(path)


def test_a_checksum_that_differs_is_found_by_verify(tmp_path):
    nifti.save(tmp_path / "a.nii.gz", VALUES)
    data = bytearray((tmp_path / "a.nii.gz").read_bytes())
    data[-5] ^= 1
    (tmp_path / "a.nii.gz").write_bytes(data)
    report = bp.verify(tmp_path / "a.nii.gz")
    assert "gzip" in report.problems[0].message


def test_behind_a_url(bucket, tmp_path):
    scans(tmp_path / "scans")
    for file in (tmp_path / "scans").iterdir():
        bucket.put(f"scans/{file.name}", file.read_bytes())
    folder = bucket.put("scans/a.nii.gz", file.read_bytes()).rpartition("/")[0]
    with bp.open(folder, endpoint=bucket.endpoint) as data, bp.open(tmp_path / "scans") as local:
        assert len(data) == 4
        assert np.array_equal(data.by_key("case2")["image"], local.by_key("case2")["image"])


def bids_root(root):
    """A root of two subjects, one of them with two sessions."""
    names = [
        "sub-01/ses-a/anat/sub-01_ses-a_T1w.nii.gz", "sub-01/ses-b/anat/sub-01_ses-b_T1w.nii.gz",
        "sub-02/anat/sub-02_acq-fine_T1w.nii", "sub-01/ses-a/func/sub-01_ses-a_task-rest_bold.nii.gz",
        "derivatives/masks/sub-01/anat/sub-01_T1w.nii",
    ]  # fmt: skip
    for number, name in enumerate(names):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        values = RNG.integers(0, 9, (4, 5, 6, 2) if "bold" in name else (4 + number, 5, 6)).astype(np.int16)
        nifti.save(root / name, values)
    for name, content in {
        "dataset_description.json": {"Name": "größe", "BIDSVersion": "1.10.0"},
        "T1w.json": {"Field": 3, "Scanner": "a"}, "sub-02/anat/sub-02_acq-fine_T1w.json": {"Scanner": "b"},
        "acq-other_T1w.json": {"Field": 7}, "task-rest_bold.json": {"RepetitionTime": 2},
    }.items():  # fmt: skip
        (root / name).write_text(json.dumps(content))
    table = "participant_id\tage\tsite\tscore\tname\nsub-02\t31\t007\t1.5\tx\nsub-01\tn/a\t12\tn/a\ty\n"
    (root / "participants.tsv").write_text(table)
    return root


def test_a_root_of_bids_is_a_table(tmp_path):
    root = bids_root(tmp_path / "bids")
    with pytest.raises(bp.OptionError, match="suffix is one of T1w, bold"):
        bp.open(root)
    with bp.open(root, suffix="T1w") as data:
        assert data.format == "nifti"
        assert data.metadata["Name"] == "größe"
        rows = {sample["name"]: sample for sample in data}
        assert list(rows) == ["sub-01_ses-a_T1w", "sub-01_ses-b_T1w", "sub-02_acq-fine_T1w"]
        fine = rows["sub-02_acq-fine_T1w"]
        assert fine["image"].shape == (6, 5, 6)
        keys = ("sub", "ses", "acq", "datatype", "suffix", "age", "site", "score")
        assert [fine[key] for key in keys] == ["02", None, "fine", "anat", "T1w", 31, "007", 1.5]
        assert fine["sidecar"] == {"Field": 3, "Scanner": "b"}
        assert rows["sub-01_ses-a_T1w"]["sidecar"] == {"Field": 3, "Scanner": "a"}
        assert rows["sub-01_ses-a_T1w"]["age"] is None
        assert [sample["name"] for sample in data.filter(bp.col("ses") == "b")] == ["sub-01_ses-b_T1w"]
        patches = bp.VolumePatches(data, size=(2, 2, 2), random=3)
        assert {patch["sub"] for patch in patches} == {"01", "02"}
        bp.convert(data, tmp_path / "a.beton")
    with bp.open(tmp_path / "a.beton") as copy:
        assert copy[2]["sidecar"] == fine["sidecar"]
    with bp.open(root, suffix="bold") as data:
        assert [data[0]["task"], data[0]["sidecar"], data[0]["image"].shape] == [
            "rest", {"RepetitionTime": 2}, (4, 5, 6, 2)
        ]  # fmt: skip


@in_one_test("name", ["T1w.json", "dataset_description.json", "participants.tsv"])
@in_one_test("content", [b"[1]", b"{", b"\xff\xfe", b'a\tb\n"x', b"[" * 100000])
def test_damaged_metadata_of_bids_is_an_error_of_ours(name, content, tmp_path):
    root = bids_root(tmp_path / "bids")
    (root / name).write_bytes(content)
    opens = name == "participants.tsv" and not content.startswith((b"\xff", b"a\tb"))
    with contextlib.nullcontext() if opens else pytest.raises(bp.BatchplantError, match=name):
        list(bp.open(root, suffix="T1w"))
