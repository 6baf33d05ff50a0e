"""The demo's image generator: reproducible, of a photograph's weight, with labels that can be learned."""

from __future__ import annotations

import importlib.util
import io
import os
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from PIL import Image

import repository
from variants import exhaustive


def _load() -> ModuleType:
    path = repository.ROOT / "demo" / "photos.py"
    spec = importlib.util.spec_from_file_location("demo_photos", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


photos = _load()


def _jpegs(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*.jpg"))}


def test_same_seed_and_index_same_image() -> None:
    first = photos.photo(3, seed=1, width=160, height=120, label=2)
    photos.photo(4, seed=1, width=160, height=120)
    assert np.array_equal(first, photos.photo(3, seed=1, width=160, height=120, label=2))
    for other in ({"index": 4, "seed": 1}, {"index": 3, "seed": 2}):
        assert not np.array_equal(first, photos.photo(**other, width=160, height=120, label=2))


@pytest.mark.parametrize(("width", "height"), [(500, 375), (64, 96), (17, 16), (1, 1), (900, 20)])
def test_size_and_type(width: int, height: int) -> None:
    image = photos.photo(0, width=width, height=height)
    assert image.shape == (height, width, 3)
    assert image.dtype == np.uint8
    assert image.flags.c_contiguous


@pytest.mark.parametrize(("width", "height"), exhaustive((256, 192), (400, 300), (500, 375)))
def test_weighs_what_a_photograph_weighs(width: int, height: int) -> None:
    weights = []
    for index in range(100):
        file = io.BytesIO()
        image = photos.photo(index, width=width, height=height, label=index % 8)
        Image.fromarray(image).save(file, "JPEG", quality=90)
        weights.append(len(file.getvalue()) / (width * height))
    assert 0.4 < np.mean(weights) < 0.6
    assert 0.15 < min(weights) < 0.35
    assert 0.5 < max(weights) < 1.0


@pytest.mark.exhaustive
def test_has_a_photograph_s_spectrum() -> None:
    """Natural images' power falls about as the frequency squared; white noise's does not fall at all."""
    f = np.fft.fftfreq(256)
    radius = np.hypot(f[:, None], f)
    low, high = (radius > 0.02) & (radius < 0.04), (radius > 0.2) & (radius < 0.4)
    window = np.hanning(256)[:, None] * np.hanning(256)
    slopes = []
    for index in range(20):
        grey = photos.photo(index, width=256, height=256).mean(axis=2)
        power = np.abs(np.fft.fft2((grey - grey.mean()) * window)) ** 2
        slopes.append(np.log10(power[high].mean() / power[low].mean()))
    assert -2.8 < np.mean(slopes) < -1.4


@pytest.mark.exhaustive
def test_label_can_be_told_from_colour() -> None:
    def colour(index: int, label: int) -> npt.NDArray[Any]:
        image = photos.photo(index, width=128, height=96, label=label).reshape(-1, 3).astype(np.float32)
        vivid = np.ptp(image, axis=1)
        return np.asarray(((image - image.mean(axis=1, keepdims=True)) * vivid[:, None] ** 2).mean(axis=0))

    def directions(indices: range, label: int) -> npt.NDArray[Any]:
        result = np.array([colour(index, label) for index in indices])
        return np.asarray(result / np.linalg.norm(result, axis=1, keepdims=True))

    centres = np.array([directions(range(20), label).mean(axis=0) for label in range(8)])
    right = [np.mean(np.argmax(directions(range(20, 40), k) @ centres.T, axis=1) == k) for k in range(8)]
    assert np.mean(right) > 0.6  # by chance: 0.125


def test_folder_is_complete_and_kept(tmp_path: Path) -> None:
    root = tmp_path / "images"
    seen: list[tuple[int, int]] = []
    photos.make_folder(root, 24, size=64, seed=5, progress=lambda done, count: seen.append((done, count)))
    assert seen == [(n, 24) for n in range(1, 25)]
    assert [p.name for p in tmp_path.iterdir()] == ["images"]
    assert sorted(p.name for p in root.iterdir() if p.is_dir()) == sorted(photos.NAMES)
    before = _jpegs(root)
    assert len(before) == 24
    sizes = [Image.open(io.BytesIO(data)).size for data in before.values()]
    assert all(max(size) == 64 for size in sizes)
    assert any(w > h for w, h in sizes)
    assert any(w < h for w, h in sizes)

    inode = os.stat(root).st_ino
    photos.make_folder(root, 24, size=64, seed=5, progress=lambda *_: pytest.fail("made again"))
    assert os.stat(root).st_ino == inode
    photos.make_folder(root, 24, size=64, seed=6)
    assert _jpegs(root).keys() == before.keys()
    assert _jpegs(root) != before


@pytest.mark.exhaustive
def test_processes_make_the_same_files(tmp_path: Path) -> None:
    for workers in (1, 2):
        photos.make_folder(tmp_path / str(workers), 100, size=32, workers=workers)
    assert _jpegs(tmp_path / "1") == _jpegs(tmp_path / "2")


@pytest.mark.parametrize("workers", [1, *exhaustive(2)])
def test_interrupted_leaves_nothing(tmp_path: Path, workers: int) -> None:
    def stop(done: int, count: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        photos.make_folder(tmp_path / "out", 100, size=32, workers=workers, progress=stop)
    assert list(tmp_path.iterdir()) == []


def test_other_people_s_folder_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(FileExistsError):
        photos.make_folder(tmp_path, 4, size=32)
    assert [p.name for p in tmp_path.iterdir()] == ["notes.txt"]
