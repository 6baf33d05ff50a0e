"""The viewer in a real browser: what every part of the page has to keep to."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import batchplant as bp
from batchplant.codecs import rle
from browser import viewed


def objects() -> bp.Reader:
    """Images with boxes, classes, outlines, run-length masks and keypoints, as COCO has them."""
    beside = ("labels", "polygons", "rle", "points")
    kinds = {
        "image": bp.Image(encoding="raw"), "boxes": bp.Boxes("xywh", labels=beside),
        "labels": bp.Labels(names=("cat", "dog", "evil\u202egnp")), "polygons": bp.Polygons(),
        "rle": bp.List(bp.Text()), "points": bp.Keypoints(2),
    }  # fmt: skip
    data = {
        "image": np.full((2, 40, 60, 3), 90, np.uint8),
        "boxes": [np.float32([[6, 4, 30, 20], [40, 20, 10, 10]]), np.empty((0, 4), np.float32)],
        "labels": [np.array([1, 2]), np.empty(0, np.int64)],
        "polygons": [[[[6, 4, 36, 4, 36, 24]], []], []],
        "rle": [["", rle.text_of({"size": [40, 60], "counts": [1620, 10, 770]}, 40, 60)], []],
        "points": [
            np.float32([[[8, 8, 2], [30, 10, 2]], [[0, 0, 0], [0, 0, 0]]]),
            np.empty((0, 2, 3), np.float32),
        ],
    }
    return bp.open(data, schema=bp.Schema(kinds))


def test_page_opens_and_is_accessible(chromium: Any) -> None:
    reader = bp.open({"label": [0, 1, 2]})
    with viewed(chromium, reader) as tab:
        page, held = tab.page, []
        page.route("**/api/samples?*", lambda route: held.append(route))
        with page.expect_request("**/api/samples?*"):
            tab.go()
        page.wait_for_selector("[role=tab]")
        assert tab.axe() == []
        # An example of a filter is of fields that are there.
        assert page.locator("#where").get_attribute("placeholder") == "Filter: label > 5"
        # A sample that is asked for before it came is opened when it comes.
        page.keyboard.press("ArrowDown")
        page.keyboard.press("Enter")
        assert page.locator("article").count() == 0
        held[0].continue_()
        page.locator("article[aria-label=label]").wait_for()
        assert page.inner_text(".sample h2") == "Sample 1"


@pytest.mark.exhaustive
def test_class_names_neither_turn_nor_fill_the_page(chromium: Any) -> None:
    """Marks of direction are shown as codes in every part of the page; a name of any length is cut."""
    names = ["cat", "evil\u202egnp", "L" * 10_000]
    kinds = {"image": bp.Image(encoding="raw"), "label": bp.Int(names=names)}
    data = {"image": np.zeros((6, 8, 8, 3), np.uint8), "label": [0, 1, 2] * 2}
    with viewed(chromium, bp.open(data, schema=bp.Schema(kinds))) as tab:
        page = tab.go().page
        for hash, ready in (
            ("", ".tile .label .hidden-letter"), ("layout=table", ".line .hidden-letter"),
            ("sample=1", "article .hidden-letter"), ("sample=2", "article pre.text"),
            ("tab=overview", ".bars .hidden-letter"), ("tab=order", ".plot-legend .hidden-letter"),
            ("tab=health", ".health .verdict"),
        ):  # fmt: skip
            page.evaluate("(hash) => { location.hash = hash; }", hash)
            page.wait_for_selector(ready)
            text = page.evaluate("document.body.innerText")
            read = page.evaluate(
                "[...document.querySelectorAll('[title], [aria-label]')]"
                ".map((one) => `${one.title} ${one.ariaLabel}`).join()"
            )
            assert "\u202e" not in text + read, hash
            assert "L" * 2001 not in text + read, hash
            assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), hash


@pytest.mark.exhaustive
def test_annotations_of_a_sample_are_named_and_drawn(chromium: Any) -> None:
    with viewed(chromium, objects(), width=1200) as tab:
        page = tab.go("sample=0").page
        page.wait_for_selector(".overlay rect.edge")
        # The image is as wide as its pane or as high as most of the window.
        assert page.locator("img.large").bounding_box()["width"] > 600
        labels = page.locator("article[aria-label=labels]")
        assert labels.locator("li").all_inner_texts() == ["dog", "evilU+202Egnp"]
        boxes = page.locator("article[aria-label=boxes]")
        assert boxes.locator("thead").inner_text().split() == ["class", "left", "top", "width", "height"]
        assert boxes.locator(".numbers tbody th").all_inner_texts() == ["dog", "evilU+202Egnp"]
        # Only the numbers of boxes can be meant in several ways.
        names = page.locator(".sample .overlay-control select").evaluate_all(
            "all => all.map((one) => one.ariaLabel)"
        )
        assert names == ["How the numbers of boxes are meant", "Unit of boxes", "Unit of points"]
        assert tab.axe() == []
        page.evaluate(
            "location.hash = 'tab=augment&aug_ops=' + JSON.stringify([['CenterCrop', {size: 40, ratio: 1}]])"
        )
        page.wait_for_selector(".aug-shown rect.edge")
        box = page.locator(".aug-shown").first.locator("rect.edge").first
        # 40 of 60 columns are left: 10 are cut off at the left.
        assert [round(float(box.get_attribute(name))) for name in ("x", "y", "width", "height")] == [
            0,
            4,
            26,
            20,
        ]
        # An outline, and the outline of a run-length mask.
        assert page.locator(".aug-shown").first.locator("polygon").count() == 2
        assert page.locator(".aug-shown").first.locator("path.dot").count() == 1
        assert page.locator(".aug-shown").first.locator(".box-label").all_inner_texts()[0] == "dog"
        assert tab.axe() == []


@pytest.mark.exhaustive
def test_tensors_are_opened_by_keys_and_fit_a_phone(chromium: Any, tmp_path: Path) -> None:
    name = "model.layers.0.self_attn.q_proj.weight"
    save = pytest.importorskip("safetensors.numpy").save_file
    save({name: np.zeros((8, 8), np.float32), "z": np.ones(3, np.float32)}, str(tmp_path / "x.safetensors"))
    with viewed(chromium, bp.open(tmp_path / "x.safetensors"), width=390, scheme="dark") as tab:
        page = tab.go().page
        first = page.locator("button.tensor").first
        first.wait_for()
        # A name is one line, and what can be set has the colour of the theme.
        assert first.bounding_box()["height"] < 32
        assert page.evaluate("getComputedStyle(document.body).accentColor") == "rgb(108, 197, 189)"
        page.keyboard.press("Enter")
        page.wait_for_selector(".opened-tensor canvas")
        page.keyboard.press("ArrowDown")
        assert page.evaluate("document.activeElement.textContent") == "z"
        page.keyboard.press("/")
        page.keyboard.type("q_proj")
        page.locator("tr", has_text="float32").nth(1).wait_for(state="detached")
        page.keyboard.press("Enter")
        page.wait_for_selector(".opened-tensor canvas")
        assert tab.axe() == []


@pytest.mark.exhaustive
def test_volumes_and_tokens_fill_the_pane(chromium: Any) -> None:
    volumes = bp.open({"ct": np.arange(2 * 4 * 16 * 16, dtype=np.float32).reshape(2, 4, 16, 16)})
    with viewed(chromium, volumes) as tab:
        # What is asked for first is held back: the page says that it is on its way.
        page, held = tab.page, []
        page.route("**/api/dataset", lambda route: held.append(route))
        with page.expect_request("**/api/dataset"):
            tab.go()
        assert page.inner_text("main") == "Loading …"
        held[0].continue_()
        page.wait_for_selector("img.heat-small")
        size = "(one) => one.decode().then(() => [one.naturalWidth, one.naturalHeight])"
        assert page.locator("img.heat-small").first.evaluate(size) == [16, 16]
        page.evaluate("location.hash = 'sample=0'")
        page.wait_for_selector(".heat canvas")
        assert page.locator(".heat canvas").bounding_box()["width"] > 450
    with viewed(chromium, bp.open({"tokens": np.arange(200).reshape(2, 100)})) as tab:
        cell = tab.go().page.locator(".line [role=gridcell]").nth(1)
        tab.page.wait_for_selector(".line .tokens")
        assert cell.bounding_box()["width"] > 900
