"""Large folders are listed once: their names come from the user's cache until a folder changes."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

import batchplant as bp
from batchplant.testing.cases import jpeg

FOLDERS, FILES = 100, 201


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of more files than are listed anew each time, all of them links to one image per class."""
    root = tmp_path_factory.mktemp("listing") / "photos"
    for folder in range(FOLDERS):
        inside = root / f"class{folder:03}" / ("deep" if folder == 7 else "")
        inside.mkdir(parents=True)
        (inside / "0.jpg").write_bytes(jpeg())
        for file in range(1, FILES):
            os.link(inside / "0.jpg", inside / f"{file}.jpg")
    return root


def settle() -> None:
    """Wait until folders that changed are trusted to tell of a further change."""
    time.sleep(2.1)


@pytest.fixture
def scans(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[str]:
    """The folders that are listed, after the cache was empty."""
    monkeypatch.setenv("BATCHPLANT_INDEX_DIR", str(tmp_path / "indexes"))
    scandir, scanned = os.scandir, []

    def count(path: str) -> object:
        scanned.append(path)
        return scandir(path)

    monkeypatch.setattr(os, "scandir", count)
    return scanned


def keys(path: Path) -> list[str]:
    with bp.open(path, format="imagefolder", file_names=True) as reader:
        names = reader.read(range(len(reader)), ["file_name"])["file_name"]
        return [bytes(name).decode() for name in names]


def files_of(path: Path) -> list[str]:
    start = len(str(path)) + 1
    return sorted(
        f"{top}/{name}"[start:] for top, _, names in os.walk(path, followlinks=True) for name in names
    )


def test_a_second_opening_lists_nothing(photos: Path, scans: list[str]) -> None:
    settle()
    with bp.open(photos) as reader:
        first = reader.read(range(0, len(reader), 501))
        assert len(reader) == FOLDERS * FILES
        assert len(scans) > FOLDERS
    scans.clear()
    with bp.open(photos) as reader:
        second = reader.read(range(0, len(reader), 501))
        assert len(scans) < FOLDERS
        assert reader.schema["label"].names[7] == "class007"
        assert reader.by_key("class007/deep/200.jpg")["label"] == 7
    assert (second["label"] == first["label"]).all()
    assert keys(photos) == files_of(photos)


@pytest.mark.exhaustive
def test_a_damaged_listing_is_written_anew(photos: Path, scans: list[str], tmp_path: Path) -> None:
    settle()
    expected = keys(photos)
    [stored] = (tmp_path / "indexes").rglob("*.bpindex")
    content = bytearray(stored.read_bytes())
    for place in range(50, len(content), len(content) // 7):
        content[place] ^= 0xFF
    stored.write_bytes(content)
    assert keys(photos) == expected
    scans.clear()
    assert keys(photos) == expected
    assert len(scans) < FOLDERS


def test_a_change_in_any_folder_is_seen(photos: Path, scans: list[str], tmp_path: Path) -> None:
    deep = photos / "class007" / "deep"

    def link() -> None:
        deep.rename(tmp_path / "elsewhere")
        (tmp_path / "elsewhere" / "1.jpg").unlink()
        deep.symlink_to(tmp_path / "elsewhere")

    changes = [
        lambda: os.link(deep / "0.jpg", deep / "new.jpg"),
        lambda: (deep / "new.jpg").rename(deep / "newer.jpg"),
        link,
        (tmp_path / "elsewhere" / "2.jpg").unlink,
    ]
    for change in changes:
        settle()
        before = keys(photos)
        scans.clear()
        assert keys(photos) == before
        assert len(scans) < FOLDERS
        change()
        assert keys(photos) == files_of(photos) != before
