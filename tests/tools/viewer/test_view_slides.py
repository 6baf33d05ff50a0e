"""The viewer: large images as tiles of a pyramid, panned and zoomed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import batchplant as bp
from batchplant.codecs import image
from browser import viewed
from viewing import asked

tifffile = pytest.importorskip("tifffile")
pytest.importorskip("imagecodecs")
HEIGHT, WIDTH = 700, 1100


@pytest.fixture(scope="module")
def slide(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Red grows to the right, green downwards; two levels."""
    path = tmp_path_factory.mktemp("slides") / "a.svs"
    y, x = np.mgrid[:HEIGHT, :WIDTH]
    pixels = np.stack([x * 255 // WIDTH, y * 255 // HEIGHT, np.full_like(x, 90)], axis=-1).astype(np.uint8)
    with tifffile.TiffWriter(path) as out:
        for step in (1, 2):
            options = {"tile": (256, 256), "photometric": "rgb", "metadata": None, "compression": "zlib"}
            out.write(pixels[::step, ::step], **options)
    return path


def test_tiles_of_every_level(slide: Path) -> None:
    with asked(bp.open(slide)) as ask:
        assert ask("dataset")["slides"] == 1
        facts = ask("slide/0")
        assert facts == {"levels": [[700, 1100], [350, 550]], "tile": 256, "planes": []}
        for level, row, column, shape in ((0, 0, 0, (256, 256)), (0, 2, 4, (188, 76)), (1, 1, 2, (94, 38))):
            pixels = image.decode(ask(f"slide/0/{level}/{row}/{column}").content)
            assert pixels.shape == (*shape, 3)
            step = 2**level
            red = (column * 256 + shape[1] / 2) * step * 255 / WIDTH
            assert abs(float(pixels[..., 0].mean()) - red) < 3
        for wrong in ("0/0/3/0", "0/2/0/0", "0/0/0/-1", "1/0/0/0", "0/1/2/0", "0/x/0/0"):
            ask(f"slide/{wrong}", 404)
        ask("slide/0/0/0/0", 404, at="1")
        ask("slide/0/0/0/0", 400, at="x")


def test_planes_are_chosen_and_stretched(tmp_path: Path) -> None:
    zarr = pytest.importorskip("zarr")
    group = zarr.open_group(tmp_path / "cells.zarr", mode="w", zarr_format=2)
    values = np.linspace(0, 1, 2 * 4 * 40 * 60).reshape(2, 4, 40, 60).astype(np.float32)
    values[1, 2, 5:9] = np.nan
    for level, step in enumerate((1, 2)):
        group.create_array(str(level), data=values[:, ::step, ::step, ::step], chunks=(1, 1, 16, 16))
    levels = {"axes": [{"name": name} for name in "czyx"], "datasets": [{"path": "0"}, {"path": "1"}]}
    group.attrs["multiscales"] = [levels]
    with asked(bp.open(tmp_path / "cells.zarr")) as ask:
        facts = ask("slide/0")
        assert facts["levels"] == [[40, 60], [20, 30]]
        assert [(plane["name"], plane["size"]) for plane in facts["planes"]] == [("channel", 2), ("depth", 4)]
        for level, shape in ((0, (40, 60)), (1, (20, 30))):
            pixels = image.decode(ask(f"slide/0/{level}/0/0", at="1,2").content)
            assert pixels.shape[:2] == shape
            assert pixels.min() < 10
            assert pixels.max() > 245


def test_a_table_has_no_slides() -> None:
    with asked(bp.open({"x": np.zeros(9)})) as ask:
        assert ask("dataset")["slides"] == 0
        ask("slide/0", 404)


COLOUR = """() => { const canvas = document.querySelector('.slide canvas');
  return [...canvas.getContext('2d').getImageData(canvas.width / 2, canvas.height / 2, 1, 1).data]; }"""


ZOOM = "Number(new URLSearchParams(location.hash.slice(1)).get('zoom'))"


def test_panning_and_zooming(chromium: Any, slide: Path) -> None:
    with viewed(chromium, bp.open(slide), width=560, height=600) as tab:
        page = tab.go("tab=slide").page

        def check(x: float, y: float, level: int) -> None:
            page.wait_for_selector(f".slide output:has-text('level {level} of 2 · at {x:,.0f}, {y:,.0f}')")
            page.wait_for_selector(".slide canvas[data-waiting='0']")
            red, green, blue, _ = page.evaluate(COLOUR)
            assert max(abs(red - x * 255 / WIDTH), abs(green - y * 255 / HEIGHT), abs(blue - 90)) < 8

        check(550, 350, 1)
        assert tab.axe() == []
        canvas = page.get_by_role("application")
        canvas.focus()
        for key, level in (("+", 0), ("0", 1)):
            page.keyboard.press(key)
            check(550, 350, level)
        page.keyboard.press("ArrowLeft")
        page.wait_for_function("() => Number(new URLSearchParams(location.hash.slice(1)).get('x')) < 500")
        page.keyboard.press("ArrowRight")
        fit = page.evaluate(ZOOM)
        page.get_by_role("button", name="Zoom in").click()
        page.get_by_role("button", name="Zoom in").click()
        # The address follows a quarter of a second later.
        page.wait_for_function(f"() => {ZOOM} > {2 * fit}")
        zoom = page.evaluate(ZOOM)
        box = canvas.bounding_box()
        x, y = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
        page.mouse.move(x, y)
        page.mouse.down()
        page.mouse.move(x - 100 * zoom, y + 50 * zoom)
        page.mouse.up()
        check(650, 300, 0)
        page.wait_for_function("() => location.hash.includes('x=650&y=300')")
        page.reload()
        check(650, 300, 0)
