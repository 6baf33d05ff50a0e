"""DICOM: series as volumes, in whatever order their files are; several frames, rescaling, damage."""

import os
from pathlib import Path

import numpy as np
import pytest

import batchplant as bp
from batchplant.testing.cases import cuts, flips, memory_bounded, survive

pydicom = pytest.importorskip("pydicom", reason="pip install 'batchplant[dicom]'")

RNG = np.random.default_rng(12)
VALUES = RNG.integers(0, 4096, (6, 20, 16)).astype(np.uint16)
AXIAL = (1, 0, 0, 0, 1, 0)


def dataset(pixels, **tags):
    """A data set of CT with these pixels, little-endian."""
    header = pydicom.dataset.FileMetaDataset()
    header.TransferSyntaxUID = tags.pop("syntax", pydicom.uid.ExplicitVRLittleEndian)
    header.MediaStorageSOPClassUID = pydicom.uid.CTImageStorage
    header.MediaStorageSOPInstanceUID = pydicom.uid.generate_uid()
    content = pydicom.Dataset()
    content.file_meta = header
    content.SOPClassUID, content.SOPInstanceUID = (
        header.MediaStorageSOPClassUID,
        header.MediaStorageSOPInstanceUID,
    )
    content.Rows, content.Columns = pixels.shape[-2:]
    content.SamplesPerPixel, content.PhotometricInterpretation = 1, "MONOCHROME2"
    content.BitsAllocated = 8 * pixels.dtype.itemsize
    content.PixelRepresentation = int(pixels.dtype.kind == "i")
    content.BitsStored = tags.pop("BitsStored", content.BitsAllocated)
    content.HighBit = content.BitsStored - 1
    content.PixelData = pixels.tobytes()
    content["PixelData"].VR = "OW"
    for name, value in tags.items():
        setattr(content, name, value)
    return content


def series(folder, values=VALUES, uid="1.2.3", step=2.5, name="slice", **tags):
    """Files of slices, whose names and instance numbers do not follow their positions."""
    folder.mkdir(exist_ok=True)
    for place in RNG.permutation(len(values)).tolist():
        slice_tags = {
            "SeriesInstanceUID": uid, "InstanceNumber": int(len(values) - place), "PixelSpacing": [0.7, 0.5],
            "ImagePositionPatient": [10, -20, 100 + step * place], "ImageOrientationPatient": list(AXIAL),
            "BitsStored": 12, "RescaleSlope": 1, "RescaleIntercept": -1024, **tags,
        }  # fmt: skip
        number = RNG.integers(1 << 40)
        path = folder / f"{name}{number}.dcm"
        dataset(values[place], **slice_tags).save_as(path, enforce_file_format=True)


def test_a_series_is_sorted_by_position(tmp_path):
    series(tmp_path / "scan")
    with bp.open(tmp_path / "scan") as data:
        assert data.format == "dicom"
        [sample] = data
        assert data.schema["image"] == bp.Tensor("int16", (16, 20, 6))
        assert np.array_equal(sample["image"], VALUES.transpose(2, 1, 0).astype(int) - 1024)
        assert np.allclose(sample["spacing"], (0.5, 0.7, 2.5))
        assert np.allclose(sample["affine"] @ [0, 0, 0, 1], [-10, 20, 100, 1])
        assert np.allclose(sample["affine"] @ [2, 3, 4, 1], [-11, 17.9, 110, 1])
        assert sample["name"] == "1.2.3"
        patches = bp.VolumePatches(data, size=(8, 8, 3), random=5)
        for patch in patches:
            box = tuple(slice(a, a + b) for a, b in zip(patch["position"], (8, 8, 3), strict=True))
            assert np.array_equal(patch["image"], sample["image"][box])
    with bp.open(tmp_path / "scan", orientation="RAS") as data:
        assert np.array_equal(data[0]["image"], sample["image"][::-1, ::-1])
    assert bp.verify(tmp_path / "scan").ok


def test_several_series(tmp_path):
    series(tmp_path / "study")
    other = RNG.integers(-500, 500, (3, 8, 9)).astype(np.int16)
    series(tmp_path / "study", other, "1.2.4", name="b", RescaleSlope=0.5, BitsStored=16)
    (tmp_path / "study" / "notes.txt").write_text("no DICOM")
    with bp.open(tmp_path / "study") as data:
        assert [sample["name"] for sample in data] == ["1.2.3", "1.2.4"]
        assert np.array_equal(data[1]["image"], (other * 0.5 - 1024).astype(np.float32).transpose(2, 1, 0))
        assert data[0]["image"].dtype == np.float32


def test_several_frames(tmp_path):
    content = dataset(VALUES, NumberOfFrames=6, SpacingBetweenSlices=3, PixelSpacing=[2, 1], BitsStored=12)
    content.save_as(tmp_path / "a.dcm", enforce_file_format=True)
    with bp.open(tmp_path / "a.dcm") as data:
        assert data.schema["image"].dtype == "int16"
        assert np.array_equal(data[0]["image"], VALUES.transpose(2, 1, 0))
        assert np.allclose(data[0]["spacing"], (1, 2, 3))


def test_frames_with_places_of_their_own(tmp_path):
    content = dataset(VALUES, NumberOfFrames=6, BitsStored=12)
    shared, frames = pydicom.Dataset(), []
    shared.PlaneOrientationSequence = [pydicom.Dataset()]
    shared.PlaneOrientationSequence[0].ImageOrientationPatient = [0, 1, 0, 0, 0, 1]
    shared.PixelMeasuresSequence = [pydicom.Dataset()]
    shared.PixelMeasuresSequence[0].PixelSpacing = [2, 1]
    places = [5, 0, 3, 1, 4, 2]
    for place in places:
        frames.append(pydicom.Dataset())
        frames[-1].PlanePositionSequence = [pydicom.Dataset()]
        frames[-1].PlanePositionSequence[0].ImagePositionPatient = [1.5 * place, 0, 0]
    content.SharedFunctionalGroupsSequence, content.PerFrameFunctionalGroupsSequence = [shared], frames
    content.save_as(tmp_path / "a.dcm", enforce_file_format=True)
    with bp.open(tmp_path / "a.dcm") as data:
        assert np.array_equal(data[0]["image"], VALUES[np.argsort(places)].transpose(2, 1, 0))
        assert np.allclose(data[0]["spacing"], (1, 2, 1.5))
        assert data.facts()["orientation"] == "PSL"


@pytest.mark.filterwarnings("ignore")
def test_values_are_those_of_pydicom():
    """Files of the library itself, as far as they come with it: byte orders, palettes, colours, RLE."""
    checked = 0
    files = sorted((Path(pydicom.__file__).parent / "data" / "test_files").glob("*.dcm"))
    paths = [str(path) for path in files if path.stat().st_size < 200_000]
    for path in paths[:: 1 if os.environ.get("BATCHPLANT_EXHAUSTIVE") else 3]:
        try:
            expected = pydicom.dcmread(path).pixel_array
        except Exception:
            continue
        try:
            with bp.open(path, format="dicom") as data:
                image = data[0]["image"]
        except bp.BatchplantError:
            continue
        content = pydicom.dcmread(path)
        if content.get("RescaleSlope") is None and image.ndim == 3 and expected.ndim in (2, 3):
            stack = expected if expected.ndim == 3 else expected[None]
            assert np.array_equal(np.sort(image.ravel()), np.sort(stack.ravel())), path
            checked += 1
    assert checked > 5


def test_slices_that_are_missing_are_a_remark_of_verify(tmp_path):
    series(tmp_path / "scan")
    paths = sorted((tmp_path / "scan").iterdir(), key=lambda path: pydicom.dcmread(path).InstanceNumber)
    paths[2].unlink()
    assert bp.open(tmp_path / "scan")[0]["image"].shape == (16, 20, 5)
    [problem] = bp.verify(tmp_path / "scan").problems
    assert "from 2.5 to 5 mm apart" in problem.message


def test_pixels_that_need_plug_ins(tmp_path):
    content = dataset(VALUES[0], syntax=pydicom.uid.JPEG2000Lossless)
    content.PixelData = pydicom.encaps.encapsulate([b"\xff\x4f" + bytes(98)])
    content["PixelData"].VR = "OB"
    content["PixelData"].is_undefined_length = True
    content.save_as(tmp_path / "a.dcm", enforce_file_format=True)
    with bp.open(tmp_path / "a.dcm") as data, pytest.raises((bp.MissingLibraryError, bp.DamagedError)):
        data.read([0])


def test_what_is_none(tmp_path):
    (tmp_path / "a.dcm").write_bytes(bytes(128) + b"DICM" + b"1.2.840.10008.1.2.1.99" + bytes(100))
    with pytest.raises(bp.SchemaError, match="deflated"):
        bp.open(tmp_path / "a.dcm")
    (tmp_path / "a.dcm").write_bytes(bytes(200))
    with pytest.raises(bp.NotFoundError, match="no slices"):
        bp.open(tmp_path / "a.dcm", format="dicom")


@pytest.mark.parametrize(("name", "value"), [("Rows", 65535), ("NumberOfFrames", 2**30), ("Columns", 0)])
def test_headers_that_lie(name, value, tmp_path):
    content = dataset(VALUES[0])
    setattr(content, name, value)
    content.save_as(tmp_path / "a.dcm", enforce_file_format=True)
    with memory_bounded(1 << 20), pytest.raises(bp.DamagedError) as caught:
        bp.open(tmp_path / "a.dcm")[0]
    assert caught.value.path == str(tmp_path / "a.dcm")


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("damage", [cuts, flips])
def test_damage_is_an_error_of_ours(damage, tmp_path):
    path = tmp_path / "a.dcm"
    dataset(VALUES[0]).save_as(path, enforce_file_format=True)

    def sound():
        try:
            with bp.open(path, format="dicom") as data:
                return np.array_equal(data[0]["image"][..., 0], VALUES[0].T)
        except bp.BatchplantError:
            return False

    with memory_bounded(64 << 20):
        for what, good in survive(damage(path), sound):
            assert not good or damage is flips, f"unnoticed: {what}"
