"""The viewer: maps of embeddings, sparse rows, volumes of which only slices are read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import batchplant as bp
from batchplant.formats import nifti
from browser import viewed
from viewing import asked


@pytest.fixture(scope="module")
def atlas(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Cells on a circle; every fourth has no type, one has no place."""
    path = tmp_path_factory.mktemp("atlas") / "a.beton"
    fields: dict[str, Any] = {
        "X": bp.Sparse(50, "float32"), "obsm.X_umap": bp.Tensor("float32", (2,)),
        "type": bp.Int(names=("B", "T"), optional=True), "counts": bp.Tensor("int64", (2,)),
    }  # fmt: skip
    with bp.create(path, fields) as out:
        for n in range(40):
            place = np.array([np.cos(n), np.sin(n)] if n else [np.nan, 0], np.float32)
            row = (np.array([n, 3]), np.array([2, 1], np.float32))
            kind = None if n % 4 == 0 else n % 2
            out.append({"X": row, "obsm.X_umap": place, "type": kind, "counts": [n, n]})
    return path


def test_a_map_has_a_point_for_each_sample(atlas: Path) -> None:
    with asked(bp.open(atlas)) as ask:
        assert ask("dataset")["maps"] == ["obsm.X_umap"]
        found = ask("map", field="obsm.X_umap", classes="type")
        assert (found["samples"], found["of"], found["odd"]) == (40, 40, 1)
        groups = {group["name"]: group["points"] for group in found["groups"]}
        assert {name: len(points) for name, points in groups.items()} == {"B": 10, "T": 20, "others": 9}
        x, y, _, sample = groups["T"][3]
        assert (x, y) == pytest.approx((np.cos(sample), np.sin(sample)), abs=1e-6)
        assert sample == 7
        [group] = ask("map", field="obsm.X_umap")["groups"]
        assert (group["name"], len(group["points"])) == ("obsm.X_umap", 39)
        ask("rows", where="type == 'B'")
        assert ask("map", field="obsm.X_umap", where="type == 'B'")["of"] == 10
        # An answer of a job.
        assert "no field of embeddings" in str(ask("map", field="counts"))


def test_a_map_of_many_samples_is_a_draw_of_them(tmp_path: Path) -> None:
    with bp.create(tmp_path / "a.npz", {"embedding": bp.Tensor("float32", (4,))}) as out:
        for n in range(9000):
            out.append({"embedding": np.full(4, n, np.float32)})
    with asked(bp.open(tmp_path / "a.npz")) as ask:
        found = ask("map", field="embedding")
        assert (found["samples"], found["of"]) == (8000, 9000)
        samples = [point[3] for point in found["groups"][0]["points"]]
        assert len(set(samples)) == 8000
        assert abs(np.mean(samples) - 4500) < 100


def test_a_sparse_row_is_a_curve_of_all_columns(atlas: Path) -> None:
    with asked(bp.open(atlas)) as ask:
        [cell] = [cell for cell in ask("sample/5")["cells"] if cell["field"] == "X"]
        assert cell["shape"] == [50]
        response = ask("slice/5/X")
        values = np.frombuffer(response.content, "<f4")
        assert np.flatnonzero(values).tolist() == [3, 5]


def test_a_slice_of_a_volume_is_that_of_the_file(tmp_path: Path) -> None:
    values = np.arange(12 * 10 * 8, dtype=np.int16).reshape(12, 10, 8)
    nifti.save(tmp_path / "a.nii.gz", values)
    nifti.save(tmp_path / "b.nii.gz", values[:, :9])
    with asked(bp.open(tmp_path)) as ask:
        for axes, at, expected in (("1,2", "3,0,0", values[3]), ("0,1", "0,0,5", values[:, :, 5])):
            response = ask("slice/0/image", axes=axes, at=at)
            shown = np.frombuffer(response.content, "<f4").reshape(expected.shape)
            assert np.array_equal(shown, expected)
        ask("slice/1/image", 400, axes="0,2", at="0,9,0")


def test_three_planes_and_a_map_in_a_browser(chromium: Any, atlas: Path, tmp_path: Path) -> None:
    nifti.save(tmp_path / "a.nii", np.arange(12 * 10 * 8, dtype=np.int16).reshape(12, 10, 8))
    with viewed(chromium, bp.open(tmp_path / "a.nii"), width=900, height=700) as tab:
        page = tab.go("sample=0").page
        page.get_by_label("three planes").check()
        canvases = page.locator(".planes-of-volume .heat canvas")
        canvases.nth(2).wait_for()
        assert canvases.count() == 3
        canvases.nth(0).click(position={"x": 1, "y": 1})
        page.get_by_text("axis 1: 0 of 10").wait_for()
        assert tab.axe() == []
    with viewed(chromium, bp.open(atlas), width=900, height=700) as tab:
        page = tab.go("tab=map").page
        page.get_by_role("img", name="obsm.X_umap of 40 samples").wait_for()
        assert tab.axe() == []
